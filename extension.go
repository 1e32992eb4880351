package redislock

import (
	"context"
	"errors"
	"time"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// Extend sets the lease to ttl from now, longer or shorter than it was. With a
// watchdog, later renewals use this ttl. A ttl above 100 years (of 365 days)
// counts as 100 years.
//
// It returns [ErrNotHeld] if the lock was lost, expired, deleted or taken over,
// [ErrReleased] after Release has begun (even if it failed), [ErrDetached]
// after Detach, and [ErrInvalidTTL] for a ttl below [MinTTL]; in each of these
// cases nothing is written. It never recreates a key. It blocks for one round
// trip, or three if they fail in transport (see [Locker.Acquire]), and returns
// within 50 ms of the end of ctx. After a failure in transport the lock keeps
// the rest of its lease, or ttl if that is shorter. Extends of one lock are
// made one after another.
func (l *Lock) Extend(ctx context.Context, ttl time.Duration) error {
	if l.none() {
		return l.failed(opExtend, errNoLock)
	}
	err := checkTTL(ttl)
	if err == nil {
		err = l.extend(ctx, min(ttl, maxLease))
	}
	if err != nil {
		l.logged(ctx, err)
		return l.failed(opExtend, err)
	}
	return nil
}

func (l *Lock) extend(ctx context.Context, ttl time.Duration) error {
	if ctx.Err() != nil {
		return wire.ContextError(ctx)
	}
	turn := l.extendTurn()
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
		return wire.ContextError(ctx)
	}
	if err := l.beginExtend(ttl); err != nil {
		return err
	}
	err := l.requestExtend(ctx, ttl)
	if errors.Is(err, ErrNotHeld) && l.ended() == nil {
		l.lose("the key does not hold its token any more")
	}
	return err
}

// extendTurn lets one Extend through at a time. Few locks ever need it.
func (l *Lock) extendTurn() chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.extending == nil {
		l.extending = make(chan struct{}, 1)
	}
	return l.extending
}

// ended is why nothing can be extended any more, or nil.
func (l *Lock) ended() error {
	l.mu.Lock()
	err := l.givenUp()
	l.mu.Unlock()
	if err == nil {
		err = l.Err()
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrDetached):
		return ErrDetached
	case errors.Is(err, ErrReleased):
		return ErrReleased
	}
	return ErrNotHeld
}

// givenUp is how the owner has given the lock up, or nil. A release that has
// begun counts even if it has failed: it may yet be executed, or be tried
// again. The caller has locked mu.
func (l *Lock) givenUp() error {
	switch {
	case l.release == nil:
		return nil
	case l.release.over && errors.Is(l.release.err, ErrDetached):
		return ErrDetached
	}
	return ErrReleased
}

// beginExtend trusts a shorter lease from now on, before it is asked for: the
// reply may be late or lost.
func (l *Lock) beginExtend(ttl time.Duration) error {
	if err := l.ended(); err != nil {
		return err
	}
	l.term.Shorten(ttl)
	l.lk.handles.extend(l.token.text, ttl)
	return nil
}

func (l *Lock) requestExtend(ctx context.Context, ttl time.Duration) error {
	defer l.watchdog.changed() // what remains may be shorter than it knows
	answered := false
	err := wire.Repeat(ctx, func(alone bool) (enough bool, err error) {
		r, err := l.claim.extend(ctx, extendTry{ttl: ttl, alone: alone})
		if err == nil {
			l.adoptFloor(r)
			answered = true
			return true, l.extended(r, ttl)
		}
		if wire.MaybeLate(err) {
			l.term.MayBeCutTo(ttl)
		}
		if ended := l.ended(); ended != nil {
			answered = true
			return true, ended
		}
		return false, err
	})
	if answered {
		return err
	}
	return wire.Ended(ctx, err)
}

func (l *Lock) extended(r extendReply, ttl time.Duration) error {
	if err := l.ended(); err != nil {
		return err // Done is final, whatever Redis has done meanwhile
	}
	if !r.held {
		return ErrNotHeld
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.givenUp(); err != nil {
		return err // since we have asked
	}
	if !l.term.Extended(r.sent, ttl) {
		return ErrNotHeld
	}
	l.watchdog.changed()
	return nil
}
