package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/e2e3f2a3/redislock"
)

// worker takes orders from the queue and charges them, one at a time.
type worker struct {
	*demo
	name     string
	failures int // in a row; see backOff
}

// run works until the queue is drained or ctx ends. It returns an error only
// where it gives up.
func (w *worker) run(ctx context.Context) error {
	for {
		d, open := w.queue.receive(ctx)
		if !open {
			return nil
		}
		if err := w.settle(ctx, d, w.process(ctx, d)); err != nil {
			return err
		}
	}
}

func (w *worker) process(ctx context.Context, d delivery) error {
	t := w.timeline.begin(w.name, d.order.ID)
	defer w.timeline.end(t)
	if w.locks == nil {
		return w.chargeUnlocked(ctx, d, t)
	}
	w.tellHolder(ctx, d)
	return w.chargeLocked(ctx, d, t)
}

// settle is where the kinds of error part. Only a delivery that ended well is
// acknowledged; all others come back, to this worker or to another.
func (w *worker) settle(ctx context.Context, d delivery, err error) error {
	if err == nil {
		w.failures = 0
		w.queue.ack(d)
		return nil
	}
	w.queue.release(d)
	switch {
	case ctx.Err() != nil: // we are told to stop; nobody needs to hear of it
		return nil
	case mayHaveRunTwice(err):
		// The next delivery finds out from the database, under a lock of its own.
		w.tellEnd(d, err)
		return nil
	}
	return w.backOff(ctx, err)
}

// mayHaveRunTwice separates the errors after which another worker may have had
// the order from those after which nothing was done.
func mayHaveRunTwice(err error) bool {
	return errors.Is(err, redislock.ErrLost) || errors.Is(err, redislock.ErrNotHeld) || errors.Is(err, errStale)
}

// kinds names what an error is. WithLock joins what the work returned with what
// the lock has to say, so it may be several things.
func kinds(err error) string {
	var names []string
	for _, kind := range []struct {
		name string
		err  error
	}{{"ErrLost", redislock.ErrLost}, {"ErrNotHeld", redislock.ErrNotHeld}, {"errStale", errStale}} {
		if errors.Is(err, kind.err) {
			names = append(names, kind.name)
		}
	}
	return strings.Join(names, ", ")
}

// backOff waits out a Redis or a database that is away, but not for ever.
func (w *worker) backOff(ctx context.Context, err error) error {
	const most = 8
	w.failures++
	switch w.failures {
	case 1:
		w.timeline.tell(w.name, "", bad, "tries again after: %v", err)
	case most:
		return fmt.Errorf("%s gives up after %d failures in a row: %w", w.name, most, err)
	}
	sleep(ctx, min(time.Second, w.patience<<w.failures))
	return nil
}

func (w *worker) chargeLocked(ctx context.Context, d delivery, t *turn) error {
	opts := []redislock.AcquireOption{redislock.WithMetadata(w.name)}
	if w.isPaused(d) {
		// The watchdog of a paused process is paused with it.
		opts = append(opts, redislock.WithoutWatchdog())
	}
	return w.locks.WithLock(ctx, d.order.ID, w.ttl, func(held context.Context, lock *redislock.Lock) error {
		t.got(lock)
		defer t.left(lock)
		w.tell(d, good, "lock held%s, fence %s", t.waited(), w.style.fence(lock.Fence()))
		return w.chargeHeld(ctx, held, d, lock, t)
	}, opts...)
}

// chargeHeld charges under the lock: look, authorise, book. ctx is the run's
// and held the lock's; only the paused worker needs to tell them apart.
func (w *worker) chargeHeld(ctx, held context.Context, d delivery, lock *redislock.Lock, t *turn) error {
	charged, err := w.store.look(held, d.order.ID, lock.Fence())
	if err != nil || charged {
		return t.found(charged, err)
	}
	if err := w.authorise(held, d.order); err != nil {
		return err
	}
	if w.isPaused(d) {
		if err := w.pause(ctx, d); err != nil {
			return err
		}
		w.tellLoss(held, d, lock)
		// A program that looks at its context stops here. This one stands for a
		// write that had left the process before the pause and arrives only now.
		held = context.WithoutCancel(held)
	}
	err = w.store.charge(held, d.order, w.name, lock.Fence())
	w.tellWrite(d, lock, err)
	return t.wrote(1, err)
}

// chargeUnlocked does the same without a lock. Two workers that look before
// either has booked both charge.
func (w *worker) chargeUnlocked(ctx context.Context, d delivery, t *turn) error {
	t.began = t.asked
	charged, err := w.store.charged(ctx, d.order.ID)
	if err != nil || charged {
		return t.found(charged, err)
	}
	w.tell(d, plain, "finds it not charged yet")
	if err := w.authorise(ctx, d.order); err != nil {
		return err
	}
	if w.isPaused(d) {
		if err := w.pause(ctx, d); err != nil {
			return err
		}
		w.tell(d, bad, "AWAKE, and goes on: nothing tells it that the order is not its own any more")
	}
	times, err := w.store.chargeUnfenced(ctx, d.order, w.name)
	if times > 1 {
		w.tell(d, bad, "CHARGED AGAIN: %s for the %s time", d.order.Amount, ordinal(times))
	} else if err == nil {
		w.tell(d, good, "charged %s", d.order.Amount)
	}
	return t.wrote(times, err)
}

// pause simulates a process that is stopped: garbage collection, a suspended
// machine, a container out of CPU. It is not given the lock's context, since a
// stopped process cannot look at one; it ends early only with the whole run.
func (w *worker) pause(ctx context.Context, d delivery) error {
	w.tell(d, bad, "PAUSED for %s with the payment authorised and not yet booked", w.pauseFor)
	return w.stall(ctx, d.order.ID)
}

// tellHolder says whom a message that came back will have to wait for. It is
// for the reader only: by the time anybody acted on it, it might not be true.
func (w *worker) tellHolder(ctx context.Context, d delivery) {
	if d.attempt == 1 {
		return
	}
	holder := ""
	if info, err := w.locks.Inspect(ctx, d.order.ID); err == nil && info.Held {
		holder = fmt.Sprintf("; %s holds the lock for another %s: waits", info.Metadata, ms(info.TTL))
	}
	w.tell(d, plain, "delivered again%s", holder)
}

func (w *worker) tellLoss(held context.Context, d delivery, lock *redislock.Lock) {
	if lock.Err() == nil {
		w.tell(d, good, "AWAKE in time: the lock is still held")
		return
	}
	<-held.Done() // follows at once, but by another goroutine
	w.tell(d, bad, "AWAKE %s after its lease ended; its context's cause Is ErrLost: %t",
		ms(time.Since(lock.Until())), errors.Is(context.Cause(held), redislock.ErrLost))
	w.tell(d, faint, "%v", lock.Err())
	w.tell(d, bad, "writes all the same, as if the write had been on its way")
}

func (w *worker) tellWrite(d delivery, lock *redislock.Lock, err error) {
	switch {
	case err == nil:
		w.tell(d, good, "charged %s", d.order.Amount)
	case errors.Is(err, errStale):
		w.tell(d, bad, "REFUSED: UPDATE … WHERE fence < %s changed no row", w.style.fence(lock.Fence()))
	}
}

// tellEnd speaks of other orders than the paused one too, since their locks are
// not lost by design but by a machine too slow for the lease. On such a machine
// there may be many.
func (w *worker) tellEnd(d delivery, err error) {
	const most = 3
	if d.order.ID == w.paused || w.losses.Add(1) <= most {
		w.timeline.tell(w.name, d.order.ID, bad, "WithLock returned %s; message not acknowledged", kinds(err))
	}
}

// tell speaks of the paused order only; hundreds of others go as they should.
func (w *worker) tell(d delivery, tone tone, format string, args ...any) {
	if d.order.ID == w.paused {
		w.timeline.tell(w.name, d.order.ID, tone, format, args...)
	}
}

// isPaused picks the first worker that gets the order chosen for the pause.
func (w *worker) isPaused(d delivery) bool {
	return d.order.ID == w.paused && d.attempt == 1
}

// sleep returns early, with its error, when ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
