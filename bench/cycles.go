package main

import "context"

// cycles is acquiring and releasing, again and again.
type cycles struct {
	task   task
	locker locker
	within withLocker // for sections that are functions
	ledger *ledger
	crew   crew
	unused float64 // memory before there was a locker
}

func newCycles(t task, a adapter) (job, error) {
	ledger, err := mapLedger(t.Ledger, t.contenders())
	if err != nil {
		return nil, err
	}
	c := &cycles{task: t, ledger: ledger}
	if t.Weigh {
		c.unused = footprint()
	}
	if c.locker, err = a.open(t.settings()); err != nil {
		return nil, err
	}
	c.within = withinOf(c.locker, t.TTL)
	return c, nil
}

func (c *cycles) start(ctx context.Context) error {
	locking := ctx
	if c.task.Endless {
		locking = context.Background()
	}
	for g := range c.task.Goroutines {
		c.crew.run(ctx, func() error { return c.repeat(ctx, locking, g) })
	}
	return nil
}

func (c *cycles) repeat(ctx, locking context.Context, goroutine int) error {
	name, contender := c.task.name(goroutine), c.task.contender(goroutine)
	for ctx.Err() == nil {
		if err := c.once(locking, name, contender); err != nil {
			return err
		}
		if c.task.Pause > 0 {
			if err := sleep(ctx, c.task.Pause); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *cycles) once(ctx context.Context, name string, contender int) error {
	if c.task.Within {
		return c.within.withLock(ctx, name, func(context.Context) error {
			c.visit(contender)
			return nil
		})
	}
	h, err := c.locker.lock(ctx, name)
	if err != nil {
		return err
	}
	c.visit(contender)
	return h.unlock(ctx)
}

// visit is the section.
func (c *cycles) visit(contender int) {
	if c.task.Shared {
		c.ledger.enter(contender)
		c.ledger.leave(contender)
	} else {
		c.ledger.count(contender)
	}
}

func (c *cycles) begin() {}

// end takes the memory while the load is on, and after the measurement: the
// garbage collections would disturb it.
func (c *cycles) end(res *result) {
	if c.task.Weigh {
		res.Memory = footprint() - c.unused
	}
}

func (c *cycles) stop() error {
	if c.task.Endless {
		return c.crew.stop(turnsGrace, c.locker)
	}
	return c.crew.stop(stopGrace, c.locker)
}
