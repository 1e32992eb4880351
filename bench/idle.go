package main

import (
	"context"
	"errors"
)

// idlers is goroutines that wait for a name whose holder does not release it.
type idlers struct {
	task   task
	holder locker
	locker locker // of all who wait
	ledger *ledger
	crew   crew
	bytes  float64
}

var errLetIn = errors.New("a waiter was let in while the lock was held")

func newIdlers(t task, a adapter) (job, error) {
	ledger, err := mapLedger(t.Ledger, t.contenders())
	if err != nil {
		return nil, err
	}
	holder, err := a.open(t.settings())
	if err != nil {
		return nil, err
	}
	locker, err := a.open(t.settings())
	return &idlers{task: t, holder: holder, locker: locker, ledger: ledger}, err
}

func (i *idlers) start(ctx context.Context) error {
	if _, err := i.holder.lock(ctx, i.task.name(0)); err != nil {
		return err
	}
	before := footprint()
	for range i.task.Goroutines {
		i.crew.run(ctx, func() error { return i.wait(ctx) })
	}
	if err := sleep(ctx, i.task.Settle); err != nil {
		return err
	}
	i.bytes = (footprint() - before) / float64(i.task.Goroutines)
	return nil
}

func (i *idlers) wait(ctx context.Context) error {
	_, err := i.locker.lock(ctx, i.task.name(0))
	if err == nil {
		i.ledger.violate()
		err = errLetIn
	}
	return err
}

func (i *idlers) begin() {}

func (i *idlers) end(res *result) { res.Bytes = i.bytes }

func (i *idlers) stop() error { return i.crew.stop(stopGrace, i.locker, i.holder) }
