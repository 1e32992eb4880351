package redislock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// newLock makes the handle of a lock that Redis has granted, and starts what
// looks after it: a timer that ends it with its lease, and the watchdog if there
// is to be one.
func (lk *Locker) newLock(a *acquisition, g grant) *Lock {
	l := &Lock{
		lk: lk, name: a.name, keys: a.keys, token: a.token, fence: g.fence, claim: a.claim, granted: g.server,
		floor: maxLease,
	}
	l.released = Error{Op: opHold, Key: l.keys.lock, Err: ErrReleased}
	l.mu.Lock() // the timer may fire before it is assigned
	defer l.mu.Unlock()
	l.confirm(g.anchor, a.ttl)
	lk.clocks.watch(l)
	l.expiry = time.AfterFunc(l.lease.left(time.Now()), l.look)
	if a.opts.watchdog {
		l.changed = make(chan struct{}, 1)
		go l.watch(l.renewalContext(a.opts))
	}
	return l
}

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

// confirm notes that Redis has set the lease to ttl with a request sent at sent.
// An Extend whose reply was lost may be executed late and cut the lease down to
// its own TTL, hence the floor.
func (l *Lock) confirm(sent time.Time, ttl time.Duration) {
	l.ttl, l.confirmed = ttl, sent
	l.lease = leaseFrom(sent, min(ttl, l.floor))
}

// inStep shortens a pause by less than step, so that those of many locks end at the
// same moments: ten thousand watchdogs are cheap if they wake the process up a few
// times a second, and their requests travel together.
func inStep(pause, step time.Duration) time.Duration {
	return pause - time.Duration(time.Now().Add(pause).UnixNano()%max(1, int64(step)))
}

// look ends the lock if its lease has ended, and else sets the timer for when it does.
func (l *Lock) look() {
	if l.expired() {
		l.lose(l.whyExpired())
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, final := l.ending.peek(); !final {
		l.expiry.Reset(l.lease.left(time.Now()))
	}
}

func (l *Lock) currentTTL() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ttl
}

func (l *Lock) expired() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lease.left(time.Now()) <= 0
}

func (l *Lock) whyExpired() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.renewal != nil {
		return "its lease ended, and renewing it failed: " + l.renewal.Error()
	}
	return "its lease ended"
}

// endWith ends the lock with a cause, and reports false if it has ended before.
func (l *Lock) endWith(cause error) bool {
	first := l.ending.come(cause)
	l.retire()
	return first
}

// retire stops what looks after a lock that has ended.
func (l *Lock) retire() {
	l.expiry.Stop()
	l.lk.clocks.forget(l)
	if l.stopRenewal != nil {
		l.stopRenewal()
	}
}

// lose ends the lock, unless it has ended already.
func (l *Lock) lose(why string) {
	lost := l.failed(opHold, fmt.Errorf("%w: %s", ErrLost, why))
	if !l.endWith(lost) {
		return
	}
	l.lk.lines.lost(l)
	l.mu.Lock()
	silent := l.release.underWay() // which will have something to say itself
	l.mu.Unlock()
	if silent {
		return
	}
	l.lk.warn("redislock: lock lost", l, lost)
}

// watch is the watchdog's goroutine.
func (l *Lock) watch(ctx context.Context) {
	var failures backoff
	timer := time.NewTimer(l.untilRenewal(&failures))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.changed:
		case <-timer.C:
			if err := l.renew(ctx); errors.Is(err, redis.ErrClosed) && !isTransient(err) {
				return // nothing is mended by trying again; the lease runs out
			}
		}
		timer.Reset(l.untilRenewal(&failures))
	}
}

// untilRenewal is a third of the TTL, or a little less, after the last confirmation, or a growing
// pause after a failure.
func (l *Lock) untilRenewal(failures *backoff) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.renewal != nil {
		return failures.next()
	}
	*failures = backoff{}
	third := min(l.ttl, l.floor) / 3
	return inStep(time.Until(l.confirmed.Add(third)), third/32)
}

// renew makes one attempt to renew the lease.
func (l *Lock) renew(ctx context.Context) error {
	r, ttl, epoch := l.renewalRequest()
	if r.limit <= 0 {
		l.look() // it is over, perhaps by the wall clock alone, and the timer far off
		return nil
	}
	c, reply, err := l.askExtend(ctx, r)
	if ctx.Err() != nil {
		return nil // whatever came of it, it says nothing about a lock that is being released
	}
	var extended extendReply
	if err == nil {
		l.heed(c)
		extended, err = parseExtend(reply)
	}
	if err == nil && !extended.held {
		l.lose("the key does not hold its token any more")
		return nil
	}
	l.renewed(c.sent, ttl, epoch, err)
	return err
}

// renewalRequest never outlives the validity. It waits for a third of the TTL
// only, so that there is time for another attempt if the reply is lost.
func (l *Lock) renewalRequest() (r request, ttl time.Duration, epoch int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r = l.extendRequest(l.ttl, "grow")
	r.limit = min(r.limit, l.ttl/3, l.lease.left(time.Now()))
	return r, l.ttl, l.epoch
}

// renewed notes what an attempt came to. If an Extend has begun meanwhile, Redis
// may have executed the two in either order, and only the Extend counts.
func (l *Lock) renewed(sent time.Time, ttl time.Duration, epoch int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if cause, _ := l.ending.peek(); cause != nil || epoch != l.epoch {
		return
	}
	l.renewal = err
	if err != nil {
		return
	}
	l.confirm(sent, ttl)
	l.expiry.Reset(l.lease.left(time.Now()))
}
