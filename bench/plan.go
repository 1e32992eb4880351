package main

import "time"

// plan is how much is measured.
type plan struct {
	rounds   int
	duration time.Duration // of a window of cycles
	warmUp   time.Duration // before it
	passing  time.Duration // the window of hand-overs between two clients

	waiters    int
	settle     time.Duration // until all wait
	idling     time.Duration // the window with idle waiters
	idleRounds int

	locks      int
	heldTTL    time.Duration // also the window with held locks, so that all are renewed alike
	heldRounds int

	growing      time.Duration // the window of each point of growth
	growthRounds int
	names        []int // in use
	crowds       []int // of waiters
	processes    []int
}

func fullPlan() plan {
	return plan{
		rounds: 5, duration: 2 * time.Second, warmUp: 300 * time.Millisecond, passing: 5 * time.Second,
		waiters: 1000, settle: 2 * time.Second, idling: 6 * time.Second, idleRounds: 3,
		locks: 10_000, heldTTL: 30 * time.Second, heldRounds: 1,
		growing: time.Second, growthRounds: 3, names: powersOfTen(), crowds: powersOfTen(), processes: powersOfTwo(),
	}
}

// quickPlan renews as many locks per second as fullPlan: their number and TTL are
// smaller by the same factor.
func quickPlan() plan {
	return plan{
		rounds: 3, duration: 120 * time.Millisecond, warmUp: 40 * time.Millisecond, passing: 300 * time.Millisecond,
		waiters: 1000, settle: 300 * time.Millisecond, idling: 300 * time.Millisecond, idleRounds: 1,
		locks: 400, heldTTL: 1200 * time.Millisecond, heldRounds: 1,
		growing: 120 * time.Millisecond, growthRounds: 1, names: powersOfTen(), crowds: powersOfTen(), processes: powersOfTwo(),
	}
}

// setRounds is what -rounds asks for, in all scenarios.
func (p *plan) setRounds(n int) { p.rounds, p.idleRounds, p.heldRounds, p.growthRounds = n, n, n, n }

// setDuration is what -duration asks for. The window with held locks is bound to
// their TTL.
func (p *plan) setDuration(d time.Duration) { p.duration, p.passing, p.idling, p.growing = d, d, d, d }

func powersOfTen() []int { return []int{1, 10, 100, 1000, 10_000} }

func powersOfTwo() []int { return []int{1, 2, 4, 8, 16, 32} }
