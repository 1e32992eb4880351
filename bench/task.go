package main

import (
	"fmt"
	"time"
)

// task is what one worker process is told to do.
type task struct {
	Job        jobKind
	Adapter    string
	Addr       string
	Prefix     string // of all names of this measurement
	Ledger     string // path
	Process    int    // number of this process
	Processes  int
	Goroutines int           // of this process; for idling the waiters, for holding the locks
	Shared     bool          // one name for all
	Endless    bool          // contexts that can never end
	Pause      time.Duration // between two sections
	Settle     time.Duration // until everybody waits who should
	TTL        time.Duration
	Network    network
	Within     bool // the section is a function that the library calls, with renewal
	Weigh      bool // the memory of the process is measured
}

type jobKind string

const (
	jobCycles   jobKind = "cycles"   // acquire and release, again and again
	jobHandOver jobKind = "handover" // from one client to another, to measure how long it takes
	jobIdle     jobKind = "idle"     // waiting for a lock that nobody releases
	jobHold     jobKind = "hold"     // holding locks that are renewed
	jobTurnover jobKind = "turnover" // holding locks, and giving one after the other back and taking it again
)

// name is the lock of the goroutine with this number.
func (t task) name(goroutine int) string {
	if t.Shared {
		goroutine = 0
	}
	return fmt.Sprintf("%s:%d", t.Prefix, goroutine)
}

// names are all the locks of the task.
func (t task) names() []string {
	n := t.Goroutines
	if t.Shared {
		n = 1
	}
	names := make([]string, n)
	for i := range names {
		names[i] = t.name(i)
	}
	return names
}

// contender is the number of a goroutine among those of all processes.
func (t task) contender(goroutine int) int { return t.Process*t.Goroutines + goroutine }

// contenders is how many goroutines there are in all processes.
func (t task) contenders() int { return t.Processes * t.Goroutines }

func (t task) settings() settings {
	return settings{
		addr: t.Addr, ttl: t.TTL, renew: t.Job == jobHold, conns: t.Goroutines,
		network: t.Network, process: t.Process,
	}
}
