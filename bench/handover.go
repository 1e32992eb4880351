package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// handOvers passes locks back and forth between two clients of one process, one
// clock therefore, and takes the time from the start of unlock in one to the
// return of lock in the other. Several names at different moments, since the
// lock is held for a while each time: the waiter must be waiting, and where it
// polls, the release must come at any moment between two polls.
type handOvers struct {
	task    task
	noLock  bool
	lockers [2]locker
	ledger  *ledger
	crew    crew

	mu        sync.Mutex
	open      bool
	latencies []time.Duration
}

const (
	minHold = 2 * time.Millisecond
	maxHold = 102 * time.Millisecond
)

func newHandOvers(t task, a adapter) (job, error) {
	ledger, err := mapLedger(t.Ledger, t.contenders())
	if err != nil {
		return nil, err
	}
	h := &handOvers{task: t, noLock: a.noLock, ledger: ledger}
	for i := range h.lockers {
		if h.lockers[i], err = a.open(t.settings()); err != nil {
			return nil, err
		}
	}
	return h, nil
}

func (h *handOvers) start(ctx context.Context) error {
	for g := range h.task.Goroutines {
		h.crew.run(ctx, func() error { return h.passOn(ctx, h.task.name(g)) })
	}
	return nil
}

// passOn hands one name back and forth.
func (h *handOvers) passOn(ctx context.Context, name string) error {
	holder, err := h.lockers[0].lock(ctx, name)
	if err != nil {
		return err
	}
	for turn := 1; ; turn++ {
		waiter := h.wait(ctx, name, turn)
		if err := sleep(ctx, minHold+rand.N(maxHold-minHold)); err != nil {
			return err
		}
		if holder, err = h.pass(ctx, holder, waiter); err != nil {
			return err
		}
	}
}

// pass unlocks and returns the lock that the waiter then has.
func (h *handOvers) pass(ctx context.Context, holder held, waiter <-chan arrival) (held, error) {
	start := time.Now()
	if err := holder.unlock(ctx); err != nil {
		return nil, err
	}
	unlocked := time.Now()
	a := <-waiter
	switch {
	case a.err != nil:
		return nil, a.err
	case h.noLock: // nobody waited; what it shows is one trip
		a.at = unlocked
	case a.at.Before(start):
		h.ledger.violate()
	}
	h.record(a.at.Sub(start))
	return a.held, nil
}

type arrival struct {
	held held
	at   time.Time
	err  error
}

func (h *handOvers) wait(ctx context.Context, name string, turn int) <-chan arrival {
	arrived := make(chan arrival, 1)
	locker := h.lockers[turn%len(h.lockers)]
	h.crew.run(ctx, func() error {
		held, err := locker.lock(ctx, name)
		arrived <- arrival{held, time.Now(), err}
		return nil
	})
	return arrived
}

func (h *handOvers) record(latency time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open {
		h.latencies = append(h.latencies, latency)
	}
}

func (h *handOvers) begin() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open = true
}

func (h *handOvers) end(res *result) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open = false
	res.Latencies = h.latencies
}

func (h *handOvers) stop() error { return h.crew.stop(stopGrace, h.lockers[:]...) }
