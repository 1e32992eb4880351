package main

import "context"

// cycles is acquiring and releasing, again and again.
type cycles struct {
	task   task
	locker locker
	ledger *ledger
	crew   crew
}

func newCycles(t task, a adapter) (job, error) {
	ledger, err := mapLedger(t.Ledger, t.contenders())
	if err != nil {
		return nil, err
	}
	locker, err := a.open(t.settings())
	return &cycles{task: t, locker: locker, ledger: ledger}, err
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
	h, err := c.locker.lock(ctx, name)
	if err != nil {
		return err
	}
	if c.task.Shared {
		c.ledger.enter(contender)
		c.ledger.leave(contender)
	} else {
		c.ledger.count(contender)
	}
	return h.unlock(ctx)
}

func (c *cycles) begin() {}

func (c *cycles) end(*result) {}

func (c *cycles) stop() error {
	if c.task.Endless {
		return c.crew.stop(turnsGrace, c.locker)
	}
	return c.crew.stop(stopGrace, c.locker)
}
