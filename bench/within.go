package main

import (
	"context"
	"errors"
	"time"
)

// withLocker is a locker that runs a section itself: it renews the lease
// meanwhile, ends the section's context when the lock is lost, and releases it
// whatever the section does.
type withLocker interface {
	withLock(ctx context.Context, name string, section func(context.Context) error) error
}

// withinOf returns how l runs a section: its own way, or, where it has none, what
// its user writes to get the same.
func withinOf(l locker, ttl time.Duration) withLocker {
	if w, ok := l.(withLocker); ok {
		return w
	}
	return byHand{l, ttl}
}

type byHand struct {
	locker locker
	ttl    time.Duration
}

func (b byHand) withLock(ctx context.Context, name string, section func(context.Context) error) (err error) {
	h, err := b.locker.lock(ctx, name)
	if err != nil {
		return err
	}
	inside, cancel := context.WithCancelCause(ctx)
	joinRenewal := b.renew(inside, cancel, h)
	defer func() {
		cancel(nil)
		err = errors.Join(err, joinRenewal(), h.unlock(context.WithoutCancel(ctx)))
	}()
	return section(inside)
}

// renew goes on until ctx ends, and ends it by cancel when the lock cannot be
// renewed. What it returns waits for its end.
func (b byHand) renew(ctx context.Context, cancel context.CancelCauseFunc, h held) (join func() error) {
	e, ok := h.(extender)
	if !ok { // it has no lease
		return func() error { return nil }
	}
	ended := make(chan error, 1)
	go func() {
		err := renew(ctx, e, b.ttl)
		if err != nil {
			cancel(err)
		}
		ended <- err
	}()
	return func() error { return <-ended }
}
