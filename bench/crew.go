package main

import (
	"context"
	"sync"
	"time"
)

// crew is the goroutines of a job. Errors count until its ctx ends: then locks
// are given up and connections closed under those who use them.
type crew struct {
	wg  sync.WaitGroup
	mu  sync.Mutex
	err error // the first
}

func (c *crew) run(ctx context.Context, f func() error) {
	c.wg.Go(func() {
		if err := f(); err != nil && ctx.Err() == nil {
			c.fail(err)
		}
	})
}

func (c *crew) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
}

// join returns when all have ended.
func (c *crew) join() error {
	c.wg.Wait()
	return c.failure()
}

func (c *crew) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

const (
	// stopGrace is for those whose ctx has ended, or who are about to look at it.
	stopGrace = 50 * time.Millisecond
	// turnsGrace is for those who wait for a lock under a ctx that never ends: each has
	// it once more.
	turnsGrace = 5 * time.Second
	// closeGrace is for those whose client has been closed.
	closeGrace = 2 * time.Second
)

// stop closes the lockers and returns when all have ended. It is not in a hurry to
// close, since some take a failing connection for a reason to try again: for so long
// that those who do not end soon are left to the end of the process.
func (c *crew) stop(grace time.Duration, lockers ...locker) error {
	ended := make(chan struct{})
	go func() {
		c.wg.Wait()
		close(ended)
	}()
	wait := func(d time.Duration) {
		select {
		case <-ended:
		case <-time.After(d):
		}
	}
	wait(grace)
	for _, l := range lockers {
		l.close()
	}
	wait(closeGrace)
	return c.failure()
}
