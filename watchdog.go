package redislock

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// renewalContext ends when renewal is to stop: with the lock, when Release
// begins, and at the maximal hold.
func (l *Lock) renewalContext(opts acquireOptions) (ctx context.Context) {
	if opts.hasMaxHold {
		ctx, l.stopRenewal = context.WithTimeout(context.Background(), opts.maxHold)
	} else {
		ctx, l.stopRenewal = context.WithCancel(context.Background())
	}
	return ctx
}

// inStep shortens a pause by less than step, so that those of many locks end at
// the same moments: ten thousand watchdogs are cheap if they wake the process
// up a few times a second, and their requests travel together.
func inStep(pause, step time.Duration) time.Duration {
	return pause - time.Duration(time.Now().Add(pause).UnixNano()%max(1, int64(step)))
}

// watch is the watchdog's goroutine.
func (l *Lock) watch(ctx context.Context) {
	var failures wire.Backoff
	timer := time.NewTimer(l.untilRenewal(&failures))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.changed:
		case <-timer.C:
			if err := l.renew(ctx); errors.Is(err, redis.ErrClosed) && !wire.IsTransient(err) {
				return // nothing is mended by trying again; the lease runs out
			}
		}
		timer.Reset(l.untilRenewal(&failures))
	}
}

// untilRenewal is a third of the TTL, or a little less, after the last
// confirmation, or a growing pause after a failure.
func (l *Lock) untilRenewal(failures *wire.Backoff) time.Duration {
	sent, trusted, failure := l.term.Confirmed()
	if failure != nil {
		return failures.Next()
	}
	*failures = wire.Backoff{}
	third := trusted / 3
	return inStep(time.Until(sent.Add(third)), third/32)
}

// renew makes one attempt to renew the lease. The request never outlives the
// lease. It waits for a third of the TTL only, so that there is time for
// another attempt if the reply is lost.
func (l *Lock) renew(ctx context.Context) error {
	renewal := l.term.BeginRenewal()
	limit := min(renewal.TTL/3, renewal.Remaining)
	if limit <= 0 {
		l.checkLease() // it is over, perhaps by the wall clock alone, and the timer far off
		return nil
	}
	r, err := l.claim.extend(ctx, extendTry{ttl: renewal.TTL, grow: true, limit: limit})
	if ctx.Err() != nil {
		return nil // whatever came of it, it says nothing about a lock that is being released
	}
	if err == nil {
		l.adoptFloor(r)
		if !r.held {
			l.lose("the key does not hold its token any more")
			return nil
		}
	}
	l.term.Renewed(renewal, r.sent, err)
	return err
}
