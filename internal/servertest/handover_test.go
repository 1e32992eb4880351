package servertest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/e2e3f2a3/redislock"
	"github.com/e2e3f2a3/redislock/internal/redistest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The lock is released at each moment between the failed try and the time when
// the waiter stands in the queue and knows it.
func TestServerReleaseWhileAWaiterSetsUpIsNotMissed(t *testing.T) {
	t.Parallel()
	r, open := newRig(t), t // what goes on in the background needs its client for longer than a subtest
	acquire, subscribe := r.op("acquire"), redistest.Command("subscribe")
	withTicket := redistest.And(acquire, redistest.ArgContains(" 60000 5 ")) // token, ttl, length of the prefix
	for moment, how := range map[string]struct {
		match  redistest.Match
		action redistest.Action
		held   bool // also until the waiter has the lock
	}{
		"first question on its way":          {acquire, redistest.Hold, false},
		"first answer on its way":            {acquire, redistest.HoldReply, false},
		"subscription on its way":            {subscribe, redistest.Hold, true},
		"confirmation on its way":            {subscribe, redistest.HoldReply, true},
		"ticket on its way":                  {withTicket, redistest.Hold, false},
		"answer to the ticket on its way":    {withTicket, redistest.HoldReply, true},
		"answer to the ticket never arrives": {withTicket, redistest.SwallowReply, true},
		"connection lost with the answer":    {withTicket, redistest.DropReply, true},
	} {
		t.Run(moment, func(t *testing.T) {
			name, ctx := t.Name(), t.Context()
			holder := hold(t, r.locker(open), name, time.Minute)
			match := how.match
			if moment != "subscription on its way" && moment != "confirmation on its way" {
				match = redistest.And(match, on(name))
			}
			rule := r.relay.Once(match, how.action)
			lk := r.asleep(open)
			wait := started(func() (*redislock.Lock, error) { return lk.Acquire(ctx, name, time.Minute) })
			r.await(t, rule.Hit(), moment)
			released := time.Now()
			require.NoError(t, holder.Release(ctx))
			if !how.held {
				rule.Release()
			}
			lock, err := wait(t)
			assert.LessOrEqual(t, time.Since(released), wakeUp)
			rule.Release()
			r.served(t, func(testing.TB) (*redislock.Lock, error) { return lock, err })
			r.gone(t, name, undoBound)
		})
	}
	r.settled(t)
}

func TestServerWaiterIsServedAtTheReleaseAndNotBefore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	holders := r.locker(t)
	for kind, waiter := range map[string]*redislock.Locker{"own process": holders, "another process": r.asleep(t)} {
		t.Run(kind, func(t *testing.T) {
			name, ctx := t.Name(), t.Context()
			holder := hold(t, holders, name, 450*time.Millisecond, redislock.WithWatchdog())
			bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			wait := r.inLine(bounded, t, waiter, name, time.Second)
			got := make(chan struct{})
			var lock *redislock.Lock
			var err error
			go func() { lock, err = wait(t); close(got) }()
			r.await(t, r.next(6, r.opOn("tick", name)), "renewals for two leases")
			require.False(t, isClosed(got), "two hold the lock")
			released := time.Now()
			require.NoError(t, holder.Release(ctx))
			r.await(t, got, "waiter with the lock")
			assert.LessOrEqual(t, time.Since(released), wakeUp)
			assert.Greater(t, time.Until(lock.Until()), 600*time.Millisecond)
			r.served(t, func(testing.TB) (*redislock.Lock, error) { return lock, err })
		})
	}
	r.settled(t)
}

func TestServerContextThatEndsWhileWaitingIsContentionAndLeavesNoTicket(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	holder := hold(t, r.locker(t), "a", time.Minute)
	lk := r.asleep(t)
	for ending, end := range endings {
		t.Run(ending, func(t *testing.T) {
			ctx, cancel := end(300 * time.Millisecond)
			defer cancel()
			waits := []func(testing.TB) (*redislock.Lock, error){
				r.inLine(ctx, t, lk, "a", time.Minute), r.inLine(ctx, t, lk, "a", time.Minute),
				r.inLine(ctx, t, r.asleep(t), "a", time.Minute),
			}
			for place, wait := range waits {
				var err error
				assert.LessOrEqual(t, late(ctx, func() { _, err = wait(t) }), 10*jitter, place)
				require.ErrorIs(t, err, redislock.ErrNotAcquired, place)
				require.ErrorIs(t, err, ctx.Err(), place)
			}
			require.Eventually(t, func() bool { return r.queued("a") == 0 }, soon, tick)
		})
	}
	require.NoError(t, holder.Release(t.Context()))
	assert.Empty(t, r.value(t, "a"))
	r.settled(t)
	assert.Empty(t, r.log.about())
}

// The reply to a release that has handed the lock over is lost: it is repeated,
// and must neither disturb the new holder nor mint a second fence.
func TestServerReleaseWhoseReplyIsLostHandsOverOnce(t *testing.T) {
	t.Parallel()
	r, open := newRig(t), t // what goes on in the background needs its client for longer than a subtest
	for loss, action := range lossy {
		for kind, own := range map[string]bool{"own process": true, "another process": false} {
			t.Run(loss+"/"+kind, func(t *testing.T) {
				name, ctx := t.Name(), t.Context()
				lk := r.locker(open, impatient)
				holder := hold(t, lk, name, time.Minute)
				var wait func(testing.TB) (*redislock.Lock, error)
				if own {
					wait = r.inLine(ctx, t, lk, name, time.Minute)
				} else {
					wait = r.waiting(ctx, t, r.asleep(open), name, time.Minute)
				}
				rule := r.relay.Once(r.opOn("release", name), action)
				released := time.Now()
				require.NoError(t, holder.Release(ctx))
				assert.Equal(t, 1, rule.Count())
				lock, err := wait(t)
				assert.LessOrEqual(t, time.Since(released), 600*time.Millisecond)
				require.NoError(t, err)
				assert.Greater(t, lock.Fence(), holder.Fence())
				r.served(t, func(testing.TB) (*redislock.Lock, error) { return lock, nil })
			})
		}
	}
	r.settled(t)
	assert.Empty(t, r.log.about("lock lost"))
	assert.Empty(t, r.log.about("nothing to release"))
}

func TestServerGoroutinesOfOneProcessAreServedInTheOrderOfTheirCalls(t *testing.T) {
	t.Parallel()
	const goroutines = 50
	r := newRig(t)
	lk := r.asleep(t)
	for kind, holders := range map[string]*redislock.Locker{"behind their own": lk, "behind another process": r.locker(t)} {
		t.Run(kind, func(t *testing.T) {
			ctx := t.Context()
			holder := hold(t, holders, kind, time.Minute)
			waits := make([]func(testing.TB) (*redislock.Lock, error), goroutines)
			for i := range waits {
				waits[i] = r.inLine(ctx, t, lk, kind, time.Minute)
			}
			asked := r.relay.Requests(r.opOn("acquire", kind))
			if kind == "behind their own" {
				assert.LessOrEqual(t, asked, goroutines/5, "only the head asks")
			}
			last := holder
			for _, wait := range waits {
				require.NoError(t, last.Release(ctx))
				lock, err := wait(t)
				require.NoError(t, err)
				require.Greater(t, lock.Fence(), last.Fence())
				last = lock
			}
			require.NoError(t, last.Release(ctx))
			assert.LessOrEqual(t, r.relay.Requests(r.opOn("acquire", kind))-asked, goroutines/5)
		})
	}
	r.settled(t)
}

func TestServerProcessesTakeTurns(t *testing.T) {
	t.Parallel()
	const processes, goroutines = 3, 10
	r := newRig(t)
	ctx := t.Context()
	holder := hold(t, r.locker(t), "a", time.Minute)
	var order []int // of the processes; guarded by the lock
	var wg sync.WaitGroup
	for p := range processes {
		lk := r.asleep(t)
		for i := range goroutines {
			var wait func(testing.TB) (*redislock.Lock, error)
			if i == 0 {
				wait = r.waiting(ctx, t, lk, "a", time.Minute)
			} else {
				wait = r.inLine(ctx, t, lk, "a", time.Minute)
			}
			wg.Go(func() {
				lock, err := wait(t)
				if assert.NoError(t, err) {
					order = append(order, p)
					assert.NoError(t, lock.Release(ctx))
				}
			})
		}
	}
	require.NoError(t, holder.Release(ctx))
	wg.Wait()
	require.Len(t, order, processes*goroutines)
	for i, p := range order {
		assert.Equal(t, i%processes, p, "turn %d", i)
	}
	r.settled(t)
}

// Waiters with different leases, watchdogs and metadata get their own,
// whichever way the lock comes to them.
func TestServerWaitersGetWhatTheyAskedFor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lk, holders, ctx := r.asleep(t), r.locker(t), t.Context()
	type wish struct {
		ttl      time.Duration
		watchdog bool
		metadata string
	}
	wishes := []wish{
		{time.Minute, false, "first"},
		{700 * time.Millisecond, true, "a b  c {x} \n \x00 é"},
		{500 * time.Millisecond, false, ""},
		{time.Hour, false, "60000 5 inbox"},
		{800 * time.Millisecond, true, ""},
		{2 * time.Minute, true, " "},
	}
	for kind, from := range map[string]*redislock.Locker{"from their own": lk, "from another process": holders} {
		t.Run(kind, func(t *testing.T) {
			holder := hold(t, from, kind, time.Minute)
			var waits []func(testing.TB) (*redislock.Lock, error)
			for _, w := range wishes {
				watchdog := redislock.WithoutWatchdog()
				if w.watchdog {
					watchdog = redislock.WithWatchdog()
				}
				waits = append(waits, r.inLine(ctx, t, lk, kind, w.ttl, watchdog, redislock.WithMetadata(w.metadata)))
			}
			rival := r.inLine(ctx, t, holders, kind, time.Minute) // so that some come by the queue
			rivalServed := started(func() (*redislock.Lock, error) { return r.served(t, rival), nil })
			require.NoError(t, holder.Release(ctx))
			for i, wait := range waits {
				lock, err := wait(t)
				require.NoError(t, err)
				w := wishes[i]
				info, err := lk.Inspect(ctx, kind)
				require.NoError(t, err)
				assert.Equal(t, lock.Token(), info.Token, i)
				assert.Equal(t, w.metadata, info.Metadata, i)
				assert.LessOrEqual(t, info.TTL, w.ttl, i)
				assert.Greater(t, info.TTL, w.ttl-time.Second, i)
				assert.LessOrEqual(t, time.Until(lock.Until()), w.ttl, i)
				if w.ttl < time.Second {
					before := lock.Until()
					renewed := func() bool { return lock.Err() != nil || lock.Until().Sub(before) > w.ttl }
					require.Eventually(t, renewed, soon, tick, i)
					assert.Equal(t, w.watchdog, lock.Err() == nil, i)
				}
				if w.watchdog || w.ttl > time.Second {
					require.NoError(t, lock.Release(ctx), i)
				}
			}
			_, err := rivalServed(t)
			require.NoError(t, err)
		})
	}
	r.settled(t)
}

func TestServerRestartWhileWaitedOn(t *testing.T) {
	t.Parallel()
	for kind, opts := range map[string][]redistest.Option{"with data": {redistest.WithPersistence()}, "without data": nil} {
		for how, stop := range map[string]func(*redistest.Server){"restarted": func(*redistest.Server) {}, "killed": (*redistest.Server).Kill} {
			t.Run(kind+"/"+how, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, opts...)
				ctx := t.Context()
				holder := hold(t, r.locker(t), "a", time.Minute)
				lk, other := r.asleep(t), r.asleep(t)
				first := r.waiting(ctx, t, lk, "a", time.Minute)
				second := r.waiting(ctx, t, other, "a", time.Minute)
				stop(r.server)
				r.server.Restart()
				up := time.Now()
				if kind == "with data" {
					back := func() bool { return len(r.inboxes()) == 2 && r.queued("a") == 2 }
					require.Eventually(t, back, soon, tick)
					assert.Equal(t, holder.Token(), r.value(t, "a"))
					up = time.Now()
					require.NoError(t, holder.Release(ctx))
				}
				// Without data nobody is before the other: both ask anew.
				var wg sync.WaitGroup
				for _, wait := range []func(testing.TB) (*redislock.Lock, error){first, second} {
					wg.Go(func() {
						lock, err := wait(t)
						if assert.NoError(t, err) {
							assert.LessOrEqual(t, time.Since(up), 500*time.Millisecond+2*wakeUp)
							assert.Greater(t, lock.Fence(), holder.Fence())
							assert.Equal(t, lock.Token(), r.value(t, "a"))
							assert.NoError(t, lock.Release(ctx))
						}
					})
				}
				wg.Wait()
				r.settled(t)
			})
		}
	}
}

// The cancel of a waiter races with the grant, in every way in which it can get
// the lock. No key is orphaned, no ticket stays, and the waiter behind it is
// woken.
func TestServerCancelThatRacesWithTheHandOverLosesNothing(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	const workers, rounds = 8, 250 // of each of three kinds: 10,000 in all with those that need not wait
	r := newRig(t)
	lockers := func() *redislock.Locker { return r.lockerWith(r.server.Client(t)) }
	a, b, c := lockers(), lockers(), lockers()
	for kind, of := range map[string]struct{ holder, cancelled, next *redislock.Locker }{
		"one process":     {a, a, a},
		"three processes": {a, b, c},
		"two processes":   {a, a, b},
	} {
		t.Run(kind, func(t *testing.T) {
			var granted atomic.Int64
			var wg sync.WaitGroup
			for w := range workers {
				wg.Go(func() {
					reach := time.Millisecond
					for range rounds {
						if r.raceHandOver(t, fmt.Sprint(kind, w), of.holder, of.cancelled, of.next, reach) {
							granted.Add(1)
							reach = max(reach*19/20, 50*time.Microsecond)
						} else {
							reach = min(reach*20/19, 20*time.Millisecond)
						}
					}
				})
			}
			wg.Wait()
			t.Logf("%d of %d granted", granted.Load(), workers*rounds)
			assert.Greater(t, granted.Load(), int64(workers*rounds/10), "no race")
			assert.Less(t, granted.Load(), int64(workers*rounds*9/10), "no race")
		})
	}
	r.nobodyWaits(t)
	assert.Empty(t, r.log.about())
}

// raceHandOver has a lock with two waiters released while the first gives up,
// and tells whether that one got it.
func (r *rig) raceHandOver(t *testing.T, name string, holders, cancelled, next *redislock.Locker, reach time.Duration) (granted bool) {
	ctx := context.Background()
	holder, err := holders.Acquire(ctx, name, time.Minute) // what was abandoned before may be under way to be undone
	if !assert.NoError(t, err) {
		return false
	}
	leaving, cancel := context.WithCancel(ctx)
	defer cancel()
	first := &noticed{Context: leaving, waiting: make(chan struct{})}
	second := &noticed{Context: ctx, waiting: make(chan struct{})}
	var wg sync.WaitGroup
	wg.Go(func() {
		lock, err := cancelled.Acquire(first, name, time.Minute)
		if err != nil {
			assert.ErrorIs(t, err, context.Canceled)
			return
		}
		granted = true
		assert.Equal(t, lock.Token(), r.value(t, name))
		assert.NoError(t, lock.Release(ctx))
	})
	<-first.waiting
	var released time.Time
	wg.Go(func() {
		lock, err := next.Acquire(second, name, time.Minute)
		if assert.NoError(t, err) {
			assert.Less(t, time.Since(released), 2500*time.Millisecond, "a wake-up was lost")
			assert.NoError(t, lock.Release(ctx))
		}
	})
	<-second.waiting
	timer := time.AfterFunc(rand.N(reach), cancel)
	defer timer.Stop()
	pause := rand.N(reach / 2)
	<-time.After(pause)
	released = time.Now()
	assert.NoError(t, holder.Release(ctx))
	wg.Wait()
	return granted
}

func TestServerNobodyWaitsCostsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lk, ctx := r.locker(t), t.Context()
	for range 20 {
		lock, err := lk.Acquire(ctx, "a", time.Minute)
		require.NoError(t, err)
		_, err = lk.TryAcquire(ctx, "a", time.Minute)
		require.ErrorIs(t, err, redislock.ErrNotAcquired)
		r.quiet(t, soon)
		require.NoError(t, lock.Release(ctx))
	}
	r.quiet(t, soon)
	assert.Zero(t, r.relay.Requests(redistest.Command("subscribe", "ping")))
	assert.Empty(t, r.inboxes())
	assert.Zero(t, r.subscribers())
	assert.Empty(t, r.goroutines())
	assert.Zero(t, r.queued("a"))
}

// A lock of another library is waited for among our own waiters, and none of
// them is forgotten when it is gone.
func TestServerForeignLockBetweenHandOvers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	theirs := r.server.Client(t)
	for round := range 3 {
		require.True(t, theirs.SetNX(ctx, keyOf("a"), "theirs", time.Minute).Val(), round)
		var waits []func(testing.TB) (*redislock.Lock, error)
		for range 3 {
			lk := r.poller(t)
			waits = append(waits, r.waiting(ctx, t, lk, "a", time.Minute), r.inLine(ctx, t, lk, "a", time.Minute))
		}
		assert.Equal(t, "theirs", r.value(t, "a"))
		require.Equal(t, int64(1), deleteIf.Run(ctx, theirs, []string{keyOf("a")}, "theirs").Val())
		freed := time.Now()
		var fences sync.Map
		var wg sync.WaitGroup
		for _, wait := range waits {
			wg.Go(func() {
				lock, err := wait(t)
				if assert.NoError(t, err) {
					_, taken := fences.LoadOrStore(lock.Fence(), true)
					assert.False(t, taken, "a fence twice")
					assert.Equal(t, lock.Token(), r.value(t, "a"))
					assert.NoError(t, lock.Release(ctx))
				}
			})
		}
		wg.Wait()
		assert.LessOrEqual(t, time.Since(freed), pollInterval+3*wakeUp) // for all six
	}
	r.settled(t)
}
