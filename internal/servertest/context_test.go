package servertest_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/e2e3f2a3/redislock"
	"github.com/e2e3f2a3/redislock/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// endings are contexts that end after d.
var endings = map[string]func(d time.Duration) (context.Context, context.CancelFunc){
	"deadline": func(d time.Duration) (context.Context, context.CancelFunc) {
		return context.WithTimeout(context.Background(), d)
	},
	"cancel": func(d time.Duration) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(context.Background())
		timer := time.AfterFunc(d, cancel)
		return ctx, func() { timer.Stop(); cancel() }
	},
}

var contextHandling = map[string]func(*redis.Options){
	"default client":        defaultOptions,
	"ContextTimeoutEnabled": contextTimeouts,
}

// methodsOf are the methods of a Locker and of locks that it holds, each with a
// ctx. Every one has a name of its own, which begins with prefix.
func methodsOf(t *testing.T, lk *redislock.Locker, prefix string) map[string]func(context.Context) error {
	held := func(name string) *redislock.Lock { return hold(t, lk, prefix+name, time.Minute) }
	extended, asked, released, resumed := held("Extend"), held("TTL"), held("Release"), held("Resume")
	return map[string]func(context.Context) error{
		"Acquire": func(ctx context.Context) error {
			_, err := lk.Acquire(ctx, prefix+"Acquire", time.Minute)
			return err
		},
		"TryAcquire": func(ctx context.Context) error {
			_, err := lk.TryAcquire(ctx, prefix+"TryAcquire", time.Minute)
			return err
		},
		"WithLock": func(ctx context.Context) error {
			return lk.WithLock(ctx, prefix+"WithLock", time.Minute, func(context.Context, *redislock.Lock) error {
				t.Error("fn ran without the lock")
				return nil
			})
		},
		"Resume": func(ctx context.Context) error {
			_, err := lk.Resume(ctx, resumed.Name(), resumed.Token(), time.Minute)
			return err
		},
		"Inspect": func(ctx context.Context) error { _, err := lk.Inspect(ctx, prefix); return err },
		"Extend":  func(ctx context.Context) error { return extended.Extend(ctx, time.Minute) },
		"TTL":     func(ctx context.Context) error { _, err := asked.TTL(ctx); return err },
		"Release": released.Release,
	}
}

// Not parallel: it measures to 50 ms.
func TestServerEveryCallReturnsWithItsContextWhileRedisIsSilent(t *testing.T) {
	r := newRig(t)
	for connection, prepare := range map[string]func(){"warm": func() {}, "cold": r.relay.Cut} {
		for ending, end := range endings {
			for handling, options := range contextHandling {
				t.Run(connection+"/"+ending+"/"+handling, func(t *testing.T) {
					methods := methodsOf(t, r.locker(t, options), t.Name())
					prepare()
					r.relay.BlackHole(true)
					var calls sync.WaitGroup
					for method, call := range methods {
						calls.Go(func() {
							ctx, cancel := end(100 * time.Millisecond)
							defer cancel()
							var err error
							assert.LessOrEqual(t, late(ctx, func() { err = call(ctx) }), jitter, method)
							assert.ErrorIs(t, err, ctx.Err(), method)
							assert.NotErrorIs(t, err, redislock.ErrNotAcquired, method)
							assert.NotErrorIs(t, err, redislock.ErrNotHeld, method)
						})
					}
					calls.Wait()
					r.relay.BlackHole(false)
					r.quiet(t, undoBound)
					for _, method := range []string{"Acquire", "TryAcquire", "WithLock", "Release"} {
						r.gone(t, t.Name()+method, undoBound)
					}
				})
			}
		}
	}
}

func TestServerWaitingAcquireReturnsWithItsContextWhileRedisIsSilent(t *testing.T) {
	r := newRig(t)
	for ending, end := range endings {
		for handling, options := range contextHandling {
			t.Run(ending+"/"+handling, func(t *testing.T) {
				name := t.Name()
				lk := r.locker(t, options)
				holder := hold(t, r.locker(t, options), name, time.Minute)
				waiting := r.next(1, r.opOn("acquire", name))
				ctx, cancel := end(200 * time.Millisecond)
				defer cancel()
				wait := started(func() (*redislock.Lock, error) { return lk.Acquire(ctx, name, time.Minute) })
				r.await(t, waiting, "waiting")
				r.relay.BlackHole(true)
				defer r.relay.BlackHole(false)
				var err error
				assert.LessOrEqual(t, late(ctx, func() { _, err = wait(t) }), jitter)
				require.ErrorIs(t, err, ctx.Err())
				r.relay.BlackHole(false)
				require.NoError(t, holder.Release(context.Background()))
				r.quiet(t, undoBound)
				assert.Empty(t, r.value(t, name))
			})
		}
	}
}

func TestServerAcquireAbandonedInFlightIsUndone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for fault, action := range map[string]redistest.Action{
		"request held": redistest.Hold,
		"reply held":   redistest.HoldReply,
	} {
		for ending, end := range endings {
			for handling, options := range contextHandling {
				for method, acquire := range acquirers {
					t.Run(fault+"/"+ending+"/"+handling+"/"+method, func(t *testing.T) {
						name := t.Name()
						lk := r.locker(t, options)
						held := r.relay.Once(r.opOn("acquire", name), action)
						ctx, cancel := end(100 * time.Millisecond)
						defer cancel()
						err := acquire(ctx, lk, name, func(*redislock.Lock) { t.Error("used without a lock") })
						require.ErrorIs(t, err, ctx.Err())
						require.NotErrorIs(t, err, redislock.ErrNotAcquired)
						if action == redistest.HoldReply {
							r.gone(t, name, soon)
						}
						held.Release()
						executed := func() bool { return r.exists(fenceOf(name)) }
						require.Eventually(t, executed, soon, tick)
						r.gone(t, name, soon)
						assert.Zero(t, r.relay.Requests(r.opOn("extend", name)), "a watchdog was started")
					})
				}
			}
		}
	}
	r.quiet(t, undoBound)
	r.nothingHeld(t)
	assert.Empty(t, r.log.about())
}

func TestServerAcquireAbandonedOnASlowNetworkIsUndone(t *testing.T) {
	r := newRig(t)
	for method, acquire := range acquirers {
		t.Run(method, func(t *testing.T) {
			name := t.Name()
			lk := r.locker(t)
			_, err := lk.Inspect(t.Context(), "warm up")
			require.NoError(t, err)
			r.relay.Delay(300 * time.Millisecond)
			defer r.relay.Delay(0)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			assert.LessOrEqual(t, late(ctx, func() {
				err = acquire(ctx, lk, name, func(*redislock.Lock) { t.Error("used without a lock") })
			}), jitter)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			r.gone(t, name, time.Second) // two round trips, if it takes a new connection
		})
	}
	r.quiet(t, undoBound)
	r.nothingHeld(t)
}

// A request can lie in a proxy or in a kernel's buffer for longer than its
// client cares, and be executed when nobody expects it any more.
func TestServerAcquireExecutedAfterItsClientGaveUpIsUndone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, late := range []time.Duration{130 * time.Millisecond, 400 * time.Millisecond, time.Second} {
		t.Run(fmt.Sprint(late, " late"), func(t *testing.T) {
			name := t.Name()
			lk := r.locker(t, patience(100*time.Millisecond))
			held := r.relay.Once(r.opOn("acquire", name), redistest.Hold)
			ctx, cancel := context.WithCancel(t.Context())
			_, err := during(t, held.Hit(), func() (*redislock.Lock, error) {
				return lk.TryAcquire(ctx, name, time.Minute)
			}, cancel)
			require.ErrorIs(t, err, context.Canceled)
			time.Sleep(late) // the fault itself
			held.Release()
			require.Eventually(t, func() bool { return r.exists(fenceOf(name)) }, soon, tick, "executed")
			r.gone(t, name, undoBound)
		})
	}
	r.quiet(t, undoBound)
}

// The same where the server itself stood still: requests of all connections lie
// in its sockets, and are executed in an order that nobody knows.
func TestServerAcquireAbandonedWhileTheServerStandsStillIsUndone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, options := range map[string]func(*redis.Options){"default": defaultOptions, "impatient": patience(100 * time.Millisecond)} {
		t.Run(name, func(t *testing.T) {
			lk := r.locker(t, options)
			_, err := lk.Inspect(t.Context(), "warm up")
			require.NoError(t, err)
			r.server.Pause()
			var calls sync.WaitGroup
			for i := range 20 {
				calls.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
					defer cancel()
					_, err := lk.TryAcquire(ctx, fmt.Sprint(name, i), time.Minute)
					assert.ErrorIs(t, err, context.DeadlineExceeded)
				})
			}
			calls.Wait()
			time.Sleep(300 * time.Millisecond) // the fault itself: longer than one client's patience
			r.server.Resume()
			r.quiet(t, undoBound)
			for i := range 20 {
				r.gone(t, fmt.Sprint(name, i), undoBound)
			}
		})
	}
}

var errOfFn = errors.New("fn failed")

// leaves are the ways to leave a critical section early. Each calls WithLock.
var leaves = map[string]func(ctx context.Context, cancel context.CancelFunc, with func(context.Context, func(context.Context, *redislock.Lock) error) error) error{
	"fn fails": func(ctx context.Context, _ context.CancelFunc, with func(context.Context, func(context.Context, *redislock.Lock) error) error) error {
		return with(ctx, func(context.Context, *redislock.Lock) error { return errOfFn })
	},
	"ctx is cancelled": func(ctx context.Context, cancel context.CancelFunc, with func(context.Context, func(context.Context, *redislock.Lock) error) error) error {
		return with(ctx, func(held context.Context, _ *redislock.Lock) error {
			cancel()
			<-held.Done()
			return held.Err()
		})
	},
	"fn panics": func(ctx context.Context, _ context.CancelFunc, with func(context.Context, func(context.Context, *redislock.Lock) error) error) (err error) {
		defer func() { err, _ = recover().(error) }()
		return with(ctx, func(context.Context, *redislock.Lock) error { panic(errOfFn) })
	},
	"fn calls Goexit": func(ctx context.Context, _ context.CancelFunc, with func(context.Context, func(context.Context, *redislock.Lock) error) error) error {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = with(ctx, func(context.Context, *redislock.Lock) error { runtime.Goexit(); return nil })
		}()
		<-done
		return errOfFn
	},
}

func TestServerWithLockReleasesHoweverItIsLeft(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for leave, run := range leaves {
		for handling, options := range contextHandling {
			t.Run(leave+"/"+handling, func(t *testing.T) {
				name := t.Name()
				lk := r.locker(t, options)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				err := run(ctx, cancel, func(ctx context.Context, fn func(context.Context, *redislock.Lock) error) error {
					return lk.WithLock(ctx, name, time.Minute, fn)
				})
				require.Error(t, err)
				assert.NotErrorIs(t, err, redislock.ErrLost)
				assert.NotErrorIs(t, err, redislock.ErrNotHeld)
				assert.Empty(t, r.value(t, name), "released when it returns")
			})
		}
	}
	r.quiet(t, soon)
}

func TestServerWithLockReleasesInTheBackgroundWhileRedisIsSilent(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	r := newRig(t)
	for leave, run := range leaves {
		if leave == "fn fails" {
			continue // then the release is waited for
		}
		for handling, options := range contextHandling {
			t.Run(leave+"/"+handling, func(t *testing.T) {
				name := t.Name()
				lk := r.locker(t, options)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var left time.Time
				err := run(ctx, cancel, func(ctx context.Context, fn func(context.Context, *redislock.Lock) error) error {
					return lk.WithLock(ctx, name, time.Minute, func(ctx context.Context, lock *redislock.Lock) error {
						r.relay.BlackHole(true)
						left = time.Now()
						return fn(ctx, lock)
					})
				})
				assert.LessOrEqual(t, time.Since(left), time.Second)
				require.Error(t, err)
				r.relay.BlackHole(false)
				r.gone(t, name, soon)
				r.quiet(t, 2*soon)
			})
		}
	}
}

// Nobody can release it again when WithLock has returned, so that it goes on.
func TestServerWithLockReleasesWhenAShortOutageIsOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for leave, run := range leaves {
		t.Run(leave, func(t *testing.T) {
			name, lk := t.Name(), r.locker(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			err := run(ctx, cancel, func(ctx context.Context, fn func(context.Context, *redislock.Lock) error) error {
				return lk.WithLock(ctx, name, time.Minute, func(ctx context.Context, lock *redislock.Lock) error {
					r.disconnect()
					return fn(ctx, lock)
				})
			})
			require.Error(t, err)
			time.Sleep(300 * time.Millisecond) // the outage
			r.reconnect()
			r.gone(t, name, 2*time.Second)
		})
	}
	r.quiet(t, undoBound)
}

func TestServerReleaseWithAContextThatHasEnded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for handling, options := range contextHandling {
		t.Run(handling, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			lk := r.locker(t, options)

			lock := hold(t, lk, "healthy", time.Minute, redislock.WithWatchdog())
			_ = lock.Release(ctx)
			r.gone(t, "healthy", soon)

			lock = hold(t, lk, "silent", time.Minute, redislock.WithWatchdog())
			r.relay.BlackHole(true)
			var err error
			took := timed(func() { err = lock.Release(ctx) })
			r.relay.BlackHole(false)
			assert.LessOrEqual(t, took, time.Second)
			require.ErrorIs(t, err, context.Canceled)
			r.gone(t, "silent", soon)
			r.quiet(t, 2*soon)
		})
	}
}

// A nil error if and only if the caller has the lock, however the cancel and
// the grant race.
func TestServerCancelThatRacesWithTheGrantLeavesNoOrphan(t *testing.T) {
	t.Parallel()
	const workers, rounds = 4, 500
	r := newRig(t)
	for handling, options := range contextHandling {
		t.Run(handling, func(t *testing.T) {
			lk := r.lockerWith(r.server.Client(t, options))
			var granted atomic.Int64
			var wg sync.WaitGroup
			for w := range workers {
				wg.Go(func() {
					reach := 500 * time.Microsecond // follows the machine, so that either side wins half of the races
					for round := range rounds {
						name := fmt.Sprintf("%s-%d-%d", handling, w, round)
						ctx, cancel := context.WithCancel(context.Background())
						timer := time.AfterFunc(rand.N(reach), cancel)
						err := raced(ctx, t, r, lk, name, round)
						timer.Stop()
						cancel()
						if err == nil {
							granted.Add(1)
							reach = max(reach*19/20, 20*time.Microsecond)
							continue
						}
						reach = reach * 20 / 19
						assert.ErrorIs(t, err, context.Canceled)
						assert.NotErrorIs(t, err, redislock.ErrNotAcquired)
					}
				})
			}
			wg.Wait()
			t.Logf("%d of %d granted", granted.Load(), workers*rounds)
			assert.Greater(t, granted.Load(), int64(workers*rounds/5), "no race")
			assert.Less(t, granted.Load(), int64(workers*rounds*4/5), "no race")
			r.quiet(t, undoBound)
			r.nothingHeld(t)
		})
	}
}

// Many requests are cancelled at once, as when a server shuts down its
// handlers. Redis is healthy, and the pool small.
func TestServerManyAcquiresAbandonedAtOnceAreUndone(t *testing.T) {
	t.Parallel()
	const calls = 2000
	r := newRig(t)
	for handling, options := range contextHandling {
		t.Run(handling, func(t *testing.T) {
			lk := r.lockerWith(r.server.Client(t, options))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var wg sync.WaitGroup
			for i := range calls {
				wg.Go(func() {
					lock, err := lk.TryAcquire(ctx, fmt.Sprint(handling, i), time.Minute)
					cancel() // as soon as the first is served
					if err != nil {
						assert.ErrorIs(t, err, context.Canceled)
						return
					}
					assert.NoError(t, lock.Release(context.Background()))
				})
			}
			wg.Wait()
			r.quiet(t, undoBound)
			r.nothingHeld(t)
		})
	}
}

// raced acquires with a ctx that may end at any moment, in one of three ways.
func raced(ctx context.Context, t *testing.T, r *rig, lk *redislock.Locker, name string, round int) error {
	use := func(lock *redislock.Lock) {
		assert.Equal(t, lock.Token(), r.value(t, name), "used without the lock")
	}
	if round%3 == 0 {
		ran := false
		err := lk.WithLock(ctx, name, time.Minute, func(_ context.Context, lock *redislock.Lock) error {
			ran = true
			use(lock)
			return nil
		})
		if ran {
			return nil // an error of the release may say that ctx has ended
		}
		return err
	}
	acquire := lk.TryAcquire
	if round%3 == 1 {
		acquire = lk.Acquire
	}
	lock, err := acquire(ctx, name, time.Minute)
	if err != nil {
		return err
	}
	use(lock)
	assert.NoError(t, lock.Release(context.Background()))
	return nil
}
