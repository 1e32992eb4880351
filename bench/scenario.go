package main

import (
	"fmt"
	"time"
)

// scenario is one load, put on all adapters of its group in turn.
type scenario struct {
	id      string
	title   string
	about   string
	op      string // what "per op" means
	group   group
	task    task
	warmUp  time.Duration
	window  time.Duration
	rounds  int
	columns []column
	chart   metric // what its plot shows, and who is first is told by
	twin    string // on a network: the same without it
	series  []series
}

// column is one column of a scenario's table: a metric, or its ratio to that of
// the adapter against.
type column struct {
	metric  metric
	against string
}

const (
	leaseTTL   = 10 * time.Second // longer than any stall of a busy machine
	idleTTL    = time.Minute      // the holder does not renew
	passedOn   = 8                // names that are handed over at the same time
	crowdSize  = 64               // goroutines in one process
	crowdOf    = 8                // processes, and goroutines in each of them
	betweenOps = 5 * time.Millisecond
)

// Ids of scenarios.
const (
	serial             = "serial"
	serialCancelable   = "serial-cancelable"
	withLock           = "withlock"
	parallel           = "parallel"
	parallelCancelable = "parallel-cancelable"
	hot                = "hot"
	hotCancelable      = "hot-cancelable"
	hotPause           = "hot-pause"
	hotProcesses       = "hot-processes"
	handOver           = "handover"
	networkSerial      = "network-serial"
	networkParallel    = "network-parallel"
	networkHandOver    = "network-handover"
	networkHot         = "network-hot"
	idle               = "idle"
	holdMany           = "held"
	growth             = "growth"
)

// scenarios are in the order of the report. A context that can end is what a
// program has almost always, so these rows come first.
func scenarios(p plan) []scenario {
	one, crowd := task{Goroutines: 1}, task{Goroutines: crowdSize}
	oneEndless, crowdEndless := endless(one), endless(crowd)
	crowds := task{Processes: crowdOf, Goroutines: crowdOf, Endless: true}
	return []scenario{
		cycling(p, serialCancelable, "Uncontended, one goroutine", "One goroutine acquires and releases one name. Its context can be cancelled.", one),
		networked(cycling(p, networkSerial, "Uncontended, one goroutine", "", one), serialCancelable),
		cycling(p, serial, "Uncontended, one goroutine, endless context", "The same with a context that can never end.", oneEndless),
		cycling(p, withLock, "Uncontended, around a function", "One goroutine runs an empty function while it holds one name: the lease is renewed meanwhile, "+
			"the function's context ends when the lock is lost, and the lock is released whatever the function does. redislock has WithLock for it, "+
			"rueidislock does it always; for the others it is written by hand (`within.go`).", task{Goroutines: 1, Within: true}),
		cycling(p, parallelCancelable, "Uncontended, 64 goroutines", "Each acquires and releases a name of its own. Their contexts can be cancelled.", crowd),
		networked(cycling(p, networkParallel, "Uncontended, 64 goroutines", "", crowd), parallelCancelable),
		cycling(p, parallel, "Uncontended, 64 goroutines, endless context", "The same with contexts that can never end.", crowdEndless),
		contending(p, hot, "One hot name, one process", "64 goroutines of one process, no pause between two sections. Their contexts can never end.",
			task{Processes: 1, Goroutines: crowdSize, Endless: true}),
		contending(p, hotCancelable, "One hot name, one process, cancelable context", "The same with a context that can be cancelled.",
			task{Processes: 1, Goroutines: crowdSize}),
		contending(p, hotPause, "One hot name, one process, 5 ms pause", "As the first, but each pauses for 5 ms after its section.",
			task{Processes: 1, Goroutines: crowdSize, Endless: true, Pause: betweenOps}),
		contending(p, hotProcesses, "One hot name, 8 processes", "8 operating system processes of 8 goroutines each, no pause between two sections. Their contexts can never end.",
			crowds),
		networked(contending(p, networkHot, "One hot name, 8 processes", "", crowds), hotProcesses),
		handingOver(p, handOver), networked(handingOver(p, networkHandOver), handOver),
		idling(p), holdingMany(p), growing(p),
	}
}

func endless(t task) task {
	t.Endless = true
	return t
}

// networked is s, which is the scenario twin but for the network.
func networked(s scenario, twin string) scenario {
	s.twin, s.task.Network = twin, lan
	s.title += ", network"
	s.about = fmt.Sprintf("The same on a network: everything that Redis sends takes %s longer, uniformly distributed.", lan.span())
	return s
}

func cycling(p plan, id, title, about string, t task) scenario {
	t.Job, t.Processes, t.TTL = jobCycles, 1, leaseTTL
	s := scenario{
		id: id, title: title, about: about, op: "cycle", group: uncontended, task: t,
		warmUp: p.warmUp, window: p.duration, rounds: p.rounds, chart: timePerOp,
		columns: []column{
			{timePerOp, ""}, {timePerOp, pair}, {commandsPerOp, ""}, {serverTime, ""}, {serverTime, pair},
			{serverCPUPerOp, ""}, {clientCPUPerOp, ""}, {clientCPUPerOp, pair}, {allocsPerOp, ""},
		},
	}
	if t.Goroutines > 1 {
		s.columns = append(s.columns, column{fairGoroutines, ""})
	}
	return s
}

// contending counts hand-overs: most sections of a library that polls are those
// of the releaser, who takes the lock straight back.
func contending(p plan, id, title, about string, t task) scenario {
	t.Job, t.Shared, t.TTL = jobCycles, true, leaseTTL
	s := scenario{
		id: id, title: title, op: "hand-over", group: contended, task: t,
		about: about + " A hand-over is a section whose goroutine is not that of the section before. " +
			"Other sections are of no use to those who wait: the releaser took the lock straight back.",
		warmUp: p.warmUp, window: p.duration, rounds: p.rounds, chart: opsPerSecond,
		columns: []column{
			{opsPerSecond, ""}, {opsPerSecond, pair}, {opsPerSecond, queue}, {timePerOp, ""}, {sectionsRate, ""},
			{commandsPerOp, ""}, {commandsPerOp, pair}, {commandsPerOp, queue}, {serverTime, ""}, {serverCPUPerOp, ""},
			{clientCPUPerOp, ""}, {allocsPerOp, ""}, {fairGoroutines, ""},
		},
	}
	if t.Processes > 1 {
		s.columns = append(s.columns, column{fairProcesses, ""})
	}
	return s
}

func handingOver(p plan, id string) scenario {
	return scenario{
		id: id, title: "Hand-over latency", op: "hand-over", group: latency,
		about: fmt.Sprintf("From the start of the release in one client to the return of the acquisition in another, both of one process "+
			"(one clock). %d names at different moments, each held for %v to %v after the other began to wait. "+
			"Of PING, one trip.", passedOn, minHold, maxHold),
		task:   task{Job: jobHandOver, Processes: 1, Goroutines: passedOn, TTL: leaseTTL},
		warmUp: maxHold, window: p.passing, rounds: p.rounds, chart: latencyMedian,
		columns: []column{
			{latencyMedian, ""}, {latencyMedian, pair}, {latencyMedian, queue}, {latencyP99, ""}, {latencyP99, queue},
			{commandsPerOp, ""}, {serverTime, ""}, {serverCPUPerOp, ""}, {clientCPUPerOp, ""}, {allocsPerOp, ""},
		},
	}
}

func idling(p plan) scenario {
	return scenario{
		id: idle, title: "Idle waiters", group: waiting,
		about:  fmt.Sprintf("%d goroutines of one process wait for one name, which is held all the time. Window of %v.", p.waiters, p.idling),
		task:   task{Job: jobIdle, Processes: 1, Goroutines: p.waiters, Shared: true, TTL: idleTTL, Settle: p.settle},
		window: p.idling, rounds: p.idleRounds, chart: commandsRate,
		columns: []column{
			{commandsRate, ""}, {serverShare, ""}, {clientShare, ""}, {goroutines, ""}, {connections, ""}, {bytesEach, ""},
		},
	}
}

func holdingMany(p plan) scenario {
	return scenario{
		id: holdMany, title: "Held locks", group: holding,
		about: fmt.Sprintf("%d locks held and renewed, TTL %v: %.0f renewals per second if each comes after a third of it. Window of %v. "+
			"Processor time in percent of one core. Memory is heap and stacks for each lock, without connections.",
			p.locks, p.heldTTL, 3*float64(p.locks)/p.heldTTL.Seconds(), p.heldTTL),
		task:   task{Job: jobHold, Processes: 1, Goroutines: p.locks, TTL: p.heldTTL},
		window: p.heldTTL, rounds: p.heldRounds, chart: clientShare,
		columns: []column{
			{commandsRate, ""}, {serverShare, ""}, {clientShare, ""}, {clientShare, pair}, {bytesEach, ""}, {goroutines, ""}, {connections, ""},
		},
	}
}
