package redislock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// watchdog renews a lease. It is a timer until a renewal is due, and a goroutine
// while one is under way: of the locks that a program holds most are idle, and
// a goroutine takes five times the memory of the rest of a lock.
type watchdog struct {
	lock *Lock
	end  time.Time // the maximal hold; zero: none

	mu       sync.Mutex
	timer    *time.Timer // nil until it is started
	failures wire.Backoff
	renewing context.CancelFunc // ends the renewal under way; nil: there is none
	stopped  bool
}

func newWatchdog(l *Lock, opts acquireOptions) *watchdog {
	w := &watchdog{lock: l}
	if opts.hasMaxHold {
		w.end = time.Now().Add(opts.maxHold)
	}
	return w
}

// start sets the timer, unless the watchdog is stopped already.
func (w *watchdog) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stopped {
		w.timer = time.AfterFunc(w.untilRenewal(), w.renew)
	}
}

// stop ends renewal: with the lock, or when Release begins. A nil watchdog is
// none.
func (w *watchdog) stop() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	if w.timer != nil {
		w.timer.Stop()
	}
	if w.renewing != nil {
		w.renewing()
	}
}

// changed has the watchdog look at the TTL anew.
func (w *watchdog) changed() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil && !w.stopped && w.renewing == nil {
		w.timer.Reset(w.untilRenewal())
	}
}

// renew is called by the timer.
func (w *watchdog) renew() {
	ctx := w.begin()
	if ctx == nil {
		return
	}
	err := w.lock.renew(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.renewing()
	w.renewing = nil
	if w.stopped || errors.Is(err, redis.ErrClosed) && !wire.IsTransient(err) {
		return // nothing is mended by trying again; the lease runs out
	}
	w.timer.Reset(w.untilRenewal())
}

// begin returns the context of a renewal, or nil if renewal is over.
func (w *watchdog) begin() (ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.stopped || w.renewing != nil: // changed has set the timer while it fired
		return nil
	case w.end.IsZero():
		ctx, w.renewing = context.WithCancel(context.Background())
	case !time.Now().Before(w.end):
		return nil
	default:
		ctx, w.renewing = context.WithDeadline(context.Background(), w.end)
	}
	return ctx
}

// inStep shortens a pause by less than step, so that those of many locks end at
// the same moments: ten thousand watchdogs are cheap if they wake the process
// up a few times a second, and their requests travel together.
func inStep(pause, step time.Duration) time.Duration {
	return pause - time.Duration(time.Now().Add(pause).UnixNano()%max(1, int64(step)))
}

// untilRenewal is a third of the TTL, or a little less, after the last
// confirmation, or a growing pause after a failure. The caller has locked mu.
func (w *watchdog) untilRenewal() time.Duration {
	sent, trusted, failure := w.lock.term.Confirmed()
	if failure != nil {
		return w.failures.Next()
	}
	w.failures = wire.Backoff{}
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

// adoptFloor takes over what a claim knows of earlier extensions that may yet
// be executed.
func (l *Lock) adoptFloor(r extendReply) {
	if r.floor > 0 {
		l.term.SetFloor(r.floor)
	}
}
