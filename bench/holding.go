package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// holders is locks that are held and renewed.
type holders struct {
	task   task
	locker locker
	held   []held
	bytes  float64
}

// atOnce is how many locks are acquired, and released, at the same time.
const atOnce = 64

func newHolders(t task, a adapter) (job, error) {
	locker, err := a.open(t.settings())
	return &holders{task: t, locker: locker, held: make([]held, t.Goroutines)}, err
}

// start takes the first locks before it looks at the memory, so that connections
// and their buffers do not count.
func (h *holders) start(ctx context.Context) error {
	warm := min(atOnce, h.task.Goroutines/2)
	if err := h.acquire(ctx, 0, warm); err != nil {
		return err
	}
	before := footprint()
	if err := h.acquire(ctx, warm, h.task.Goroutines); err != nil {
		return err
	}
	h.bytes = (footprint() - before) / float64(h.task.Goroutines-warm)
	return nil
}

func (h *holders) acquire(ctx context.Context, from, to int) error {
	return h.each(ctx, from, to, func(i int) (err error) {
		h.held[i], err = takeFree(ctx, h.locker, h.task.name(i))
		return err
	})
}

const (
	// takeLimit is how long an acquisition of a free lock may take before it is
	// given up and made again.
	takeLimit = 2 * time.Second
	takeTries = 10
)

// takeFree acquires a lock that nobody has. rueidislock gives up a request that took
// more than 20 ms, and then waits until it hears of the name, which it never does
// if nobody has it: where sixty-four ask at once that happens now and then.
//
// The limit is not a deadline of the context, since with rueidislock the lock ends
// with the context that it was acquired under.
func takeFree(ctx context.Context, l locker, name string) (held, error) {
	err := error(context.DeadlineExceeded)
	for range takeTries {
		attempt, cancel := context.WithCancel(ctx)
		limit := time.AfterFunc(takeLimit, cancel)
		got, lockErr := l.lock(attempt, name)
		if limit.Stop() {
			return got, lockErr
		}
		if lockErr == nil { // too late: its context has ended
			lockErr = got.unlock(ctx)
		}
		err = errors.Join(context.DeadlineExceeded, lockErr)
	}
	return nil, err
}

// each calls f for the locks from up to to, some at once.
func (h *holders) each(ctx context.Context, from, to int, f func(i int) error) error {
	var c crew
	for first := range atOnce {
		c.run(ctx, func() error {
			for i := from + first; i < to; i += atOnce {
				if err := f(i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return c.join()
}

func (h *holders) begin() {}

func (h *holders) end(res *result) { res.Bytes = h.bytes }

// stop releases everything, since ten thousand leases that run out later would
// be work for the server during the next measurement. A lock that was lost meanwhile
// is an error: it was not renewed.
func (h *holders) stop() error {
	defer h.locker.close()
	ctx := context.Background()
	return h.each(ctx, 0, len(h.held), func(i int) error {
		if h.held[i] == nil { // start has failed
			return nil
		}
		if err := h.held[i].unlock(ctx); err != nil {
			return fmt.Errorf("release of %s: %w", h.task.name(i), err)
		}
		return nil
	})
}
