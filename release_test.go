package redislock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// hasty is a client that gives up soon, and repeats nothing.
func hasty(o *redis.Options) {
	o.ReadTimeout, o.WriteTimeout, o.MaxRetries = 200*time.Millisecond, 200*time.Millisecond, -1
}

// delayReleases keeps all tries of the next Release on their way until arrive
// is called.
func (r *fakeRedis) delayReleases() (arrive func()) {
	var all []func()
	for range wire.Tries {
		all = append(all, r.net.delay(opRelease))
	}
	return func() {
		for _, arrive := range all {
			arrive()
		}
		synctest.Wait()
	}
}

// requireReleased fails unless the handle has ended as one that was released,
// whatever its owner asks.
func requireReleased(t *testing.T, r *fakeRedis, lock *Lock, contexts ...context.Context) {
	t.Helper()
	require.True(t, isDone(lock))
	requireFailure(t, lock.Err(), opHold, lock.Key(), ErrReleased)
	synctest.Wait() // derived contexts end in goroutines of their own
	for _, ctx := range contexts {
		require.Same(t, lock.Err(), context.Cause(ctx))
	}
	before := r.Dump()
	extends := r.requests(opExtend)
	requireFailure(t, lock.Extend(t.Context(), 30*time.Second), opExtend, lock.Key(), ErrReleased)
	require.Equal(t, extends, r.requests(opExtend), "Extend has sent something")
	require.Equal(t, before, r.Dump())
}

// A release that was sent and whose reply was not awaited is executed at any
// time. Who trusts the handle meanwhile works beside the next holder.
func TestReleaseThatMayBeExecutedLateEndsTheHandle(t *testing.T) {
	for name, watchdog := range map[string]AcquireOption{"watchdog": WithWatchdog(), "none": WithoutWatchdog()} {
		for how, release := range map[string]func(t *testing.T, lock *Lock) error{
			"time-out": func(t *testing.T, lock *Lock) error {
				err := lock.Release(t.Context())
				requireNotContextError(t, err)
				require.True(t, wire.IsTimeout(err), "%v", err)
				return err
			},
			"ctx that never ends": func(_ *testing.T, lock *Lock) error { return lock.Release(context.Background()) },
			"ctx ends meanwhile": func(t *testing.T, lock *Lock) error {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				err := lock.Release(ctx)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				return err
			},
			"ctx has ended": func(t *testing.T, lock *Lock) error {
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				err := lock.Release(ctx)
				require.ErrorIs(t, err, context.Canceled)
				return err
			},
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					a, err := r.lockerOn(r.connect(hasty)).TryAcquire(t.Context(), "a", 20*time.Second, watchdog)
					require.NoError(t, err)
					held, cancel := a.Context(t.Context())
					defer cancel()
					arrive := r.delayReleases()
					requireFailure(t, release(t, a), opRelease, "lock:a")
					require.Equal(t, a.Token(), r.value("lock:a"), "it is not executed yet")
					requireReleased(t, r, a, held)

					time.Sleep(3 * time.Second)
					requireReleased(t, r, a, held)
					require.Zero(t, r.requests(opExtend), "no renewal leaves after Release has begun")
					arrive()
					b := r.acquire("a", time.Minute)
					requireReleased(t, r, a, held)
					require.NoError(t, a.Release(t.Context()), "an earlier try has done the work")
					requireFailure(t, a.Release(t.Context()), opRelease, "lock:a", ErrReleased)
					require.Equal(t, b.Token(), r.value("lock:a"))
					require.NoError(t, b.Err())
					require.Empty(t, r.logged(""))
					requireNoGoroutines(t)
				})
			})
		}
	}
}

// The end does not wait for the answer, nor for the time-out.
func TestHandleEndsWhenItsReleaseIsSent(t *testing.T) {
	for name, ctx := range map[string]func(*testing.T) context.Context{
		"ctx that can end":    (*testing.T).Context,
		"ctx that never ends": func(*testing.T) context.Context { return context.Background() },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lock := r.acquire("a", time.Hour, WithWatchdog())
				held, cancel := lock.Context(t.Context())
				defer cancel()
				arrive := r.net.delay(opRelease)
				released := make(chan error, 1)
				go func() { released <- lock.Release(ctx(t)) }()
				synctest.Wait()
				requireReleased(t, r, lock, held)
				require.Empty(t, released, "it still waits")
				arrive()
				require.NoError(t, <-released)
			})
		})
	}
}

// As long as nobody has asked, the answer decides how the lock has ended.
func TestAnswerOfARelease(t *testing.T) {
	for name, c := range map[string]struct {
		before func(r *fakeRedis)
		asked  bool // while the request is on its way
		err    error
		end    error // nil: it is still held
	}{
		"done":            {func(*fakeRedis) {}, false, nil, ErrReleased},
		"not held":        {func(r *fakeRedis) { r.take("lock:a") }, false, ErrNotHeld, ErrLost},
		"not held, asked": {func(r *fakeRedis) { r.take("lock:a") }, true, ErrNotHeld, ErrReleased},
		"refused":         {func(r *fakeRedis) { r.answerOnce(opRelease, "MISCONF no") }, false, errWork, nil},
		"refused, asked":  {func(r *fakeRedis) { r.answerOnce(opRelease, "MISCONF no") }, true, errWork, ErrReleased},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lock := r.acquire("a", time.Minute, WithWatchdog())
				c.before(r)
				arrive := r.net.delay(opRelease)
				released := make(chan error, 1)
				go func() { released <- lock.Release(t.Context()) }()
				synctest.Wait()
				var said error
				if c.asked {
					said = lock.Err()
					requireFailure(t, said, opHold, "lock:a", ErrReleased)
				}
				arrive()
				switch err := <-released; {
				case c.err == nil:
					require.NoError(t, err)
				case errors.Is(c.err, errWork):
					requireFailure(t, err, opRelease, "lock:a")
				default:
					requireFailure(t, err, opRelease, "lock:a", c.err)
				}
				if c.end == nil {
					require.NoError(t, lock.Err())
				} else {
					requireFailure(t, lock.Err(), opHold, "lock:a", c.end)
				}
				if c.asked {
					require.Same(t, said, lock.Err(), "it stays the same")
				}
				before := r.requests(opExtend)
				requireFailure(t, lock.Extend(t.Context(), time.Hour), opExtend, "lock:a", ErrReleased)
				time.Sleep(2 * time.Minute)
				require.Equal(t, before, r.requests(opExtend), "no renewal")
				require.True(t, isDone(lock))
				if c.end != nil {
					requireFailure(t, lock.Err(), opHold, "lock:a", c.end)
				}
				require.Zero(t, lock.lk.clocks.Watched(), "nothing looks after it any more")
			})
		})
	}
}

// Where no connection could be made nothing is executed late. The handle keeps
// what remains of its lease, but is not renewed.
func TestReleaseThatWasNotSentLeavesTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		idle := func(o *redis.Options) { o.ConnMaxIdleTime = time.Second }
		lock, err := r.lockerOn(r.connect(idle)).TryAcquire(t.Context(), "a", time.Minute, WithWatchdog())
		require.NoError(t, err)
		r.net.down()
		time.Sleep(2 * time.Second)
		requireFailure(t, lock.Release(t.Context()), opRelease, "lock:a")
		require.NoError(t, lock.Err())
		require.False(t, isDone(lock))
		r.net.up()
		requireFailure(t, lock.Extend(t.Context(), time.Hour), opExtend, "lock:a", ErrReleased)
		awaitEnd(t, lock.Done())
		requireFailure(t, lock.Err(), opHold, "lock:a", ErrLost)
		require.Zero(t, r.requests(opExtend))
		require.NoError(t, lock.Release(t.Context()), "the key is still there")
	})
}

// A release that was abandoned before it was sent ends the handle, but excuses
// nothing: if the lease is over when a later one finds nothing, the work may
// have run twice.
func TestAbandonedReleaseExcusesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		idle := func(o *redis.Options) { o.ConnMaxIdleTime = time.Second }
		lock, err := r.lockerOn(r.connect(idle)).TryAcquire(t.Context(), "a", 10*time.Second)
		require.NoError(t, err)
		r.net.down()
		time.Sleep(2 * time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		requireFailure(t, lock.Release(ctx), opRelease, "lock:a", context.Canceled)
		requireReleased(t, r, lock)
		ended := lock.Err()
		time.Sleep(10 * time.Second)
		r.net.up()
		r.take("lock:a")
		requireFailure(t, lock.Release(t.Context()), opRelease, "lock:a", ErrNotHeld)
		require.Len(t, r.logged("WARN redislock: nothing to release"), 1)
		require.Same(t, ended, lock.Err())
		require.Equal(t, "other", r.value("lock:a"))
	})
}

// The second try has the excuse of being sent in time, also where the first,
// which was refused, has been seen as the end.
func TestReleaseIsSentInTimeByALaterTry(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", time.Minute)
		_ = lock.Done() // makes the first try the end
		r.answerOnce(opRelease, "READONLY You can't write against a read only replica.")
		r.net.fail(opRelease, noFault, 1)
		r.net.fail(opRelease, cutReply, 1)
		require.NoError(t, lock.Release(t.Context()))
		require.False(t, r.Exists("lock:a"))
		require.Empty(t, r.logged(""))
	})
}

func TestQuorumReleaseThatMayBeExecutedLateEndsTheHandle(t *testing.T) {
	for silent := 1; silent <= 3; silent++ {
		t.Run(fmt.Sprint(silent), func(t *testing.T) {
			inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
				lock := q.acquire("a", 10*time.Second, WithWatchdog())
				held, cancel := lock.Context(t.Context())
				defer cancel()
				for _, r := range q.nodes[:silent] {
					r.net.stall()
				}
				err := lock.Release(t.Context())
				require.Equal(t, silent > 1, err != nil, "%v", err)
				for _, r := range q.nodes {
					requireReleased(t, r, lock, held)
				}
				time.Sleep(3 * time.Second)
				for _, r := range q.nodes[:silent] {
					r.net.flow()
				}
				time.Sleep(undoBound)
				q.requireFree("a")
				require.Zero(t, q.nodes[2].requests(opExtend))
			})
		})
	}
}

// --- several handles of one token ---------------------------------------------------

// Resume makes a second handle. A release ends all that this Locker knows of.
func TestReleaseEndsTheOtherHandlesOfItsToken(t *testing.T) {
	for name, first := range map[string]bool{"by the first": true, "by the last": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				handles := []*Lock{r.acquire("a", time.Minute, WithWatchdog())}
				lk := handles[0].lk
				for range 2 {
					lock, err := lk.Resume(t.Context(), "a", handles[0].Token(), time.Minute, WithWatchdog())
					require.NoError(t, err)
					handles = append(handles, lock)
				}
				other, err := lk.TryAcquire(t.Context(), "b", time.Minute)
				require.NoError(t, err)
				releasing := handles[2]
				if first {
					releasing = handles[0]
				}
				arrive := r.net.delay(opRelease)
				released := make(chan error, 1)
				go func() { released <- releasing.Release(t.Context()) }()
				synctest.Wait()
				for _, lock := range handles {
					require.True(t, isDone(lock), "as soon as it is sent")
					if lock != releasing {
						requireFailure(t, lock.Err(), opHold, "lock:a", ErrLost)
						requireFailure(t, lock.Extend(t.Context(), time.Hour), opExtend, "lock:a", ErrNotHeld)
					}
				}
				arrive()
				require.NoError(t, <-released)
				require.NoError(t, other.Err())
				require.Empty(t, r.logged(""))
				requireNoGoroutines(t)
			})
		})
	}
}

// A token whose release may be executed late is not adopted by the same Locker.
func TestResumeRefusesATokenThatMayYetBeReleased(t *testing.T) {
	resume := func(t *testing.T, lock *Lock) error {
		_, err := lock.lk.Resume(t.Context(), lock.Name(), lock.Token(), time.Hour)
		return err
	}
	t.Run("Release", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *fakeRedis) {
			lock, err := r.lockerOn(r.connect(hasty)).TryAcquire(t.Context(), "a", time.Minute)
			require.NoError(t, err)
			arrive := r.delayReleases()
			require.Error(t, lock.Release(t.Context()))
			r.requireSilence(func() { requireFailure(t, resume(t, lock), opResume, "lock:a", ErrReleased) })
			arrive()
			require.NoError(t, lock.Release(t.Context()))
			requireFailure(t, resume(t, lock), opResume, "lock:a", ErrNotHeld)
		})
	})
	t.Run("WithLock", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *fakeRedis) {
			var lock *Lock
			err := r.locker().WithLock(t.Context(), "a", 2*time.Second, func(_ context.Context, l *Lock) error {
				lock = l
				r.net.stall()
				return nil
			})
			require.Error(t, err)
			requireReleased(t, r, lock)
			r.requireSilence(func() { requireFailure(t, resume(t, lock), opResume, "lock:a", ErrReleased) })
			r.net.flow()
			requireNoGoroutines(t)
		})
	})
}

// The lease that a late release may cut short can be longer than that of the
// handle which was released.
func TestResumeRefusesATokenWhoseLeaseIsLongerThanItsHandleKnows(t *testing.T) {
	for name, prolong := range map[string]func(t *testing.T, r *fakeRedis, a *Lock){
		"by another handle": func(t *testing.T, _ *fakeRedis, a *Lock) {
			_, err := a.lk.Resume(t.Context(), "a", a.Token(), 10*time.Minute)
			require.NoError(t, err)
		},
		"by an Extend of another handle": func(t *testing.T, _ *fakeRedis, a *Lock) {
			b, err := a.lk.Resume(t.Context(), "a", a.Token(), time.Second)
			require.NoError(t, err)
			require.NoError(t, b.Extend(t.Context(), 10*time.Minute))
			require.NotEmpty(t, b.Detach())
		},
		"by an Extend whose reply is lost": func(t *testing.T, r *fakeRedis, a *Lock) {
			r.net.fail(opExtend, cutReply, wire.Tries)
			require.Error(t, a.Extend(t.Context(), 10*time.Minute))
		},
		"by a Resume whose reply is lost": func(t *testing.T, r *fakeRedis, a *Lock) {
			r.net.fail(opExtend, cutReply, wire.Tries)
			_, err := a.lk.Resume(t.Context(), "a", a.Token(), 10*time.Minute)
			require.Error(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				a, err := r.locker().TryAcquire(t.Context(), "a", time.Second)
				require.NoError(t, err)
				prolong(t, r, a)
				arrive := r.delayReleases()
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				require.Error(t, a.Release(ctx))
				time.Sleep(45 * time.Second)
				_, err = a.lk.Resume(t.Context(), "a", a.Token(), 10*time.Minute)
				requireFailure(t, err, opResume, "lock:a", ErrReleased)
				arrive()
				require.NoError(t, r.acquire("a", time.Minute).Err())
			})
		})
	}
}

// What is known of tokens that may yet be released does not grow for ever.
func TestDoubtsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d doubts
		for i := range 10_000 {
			d.note(fmt.Sprint(i), time.Second)
			time.Sleep(100 * time.Millisecond)
		}
		require.True(t, d.has("9999"))
		require.False(t, d.has("9000"))
		require.LessOrEqual(t, len(d.until), 500)
		d.forget("9999")
		require.False(t, d.has("9999"))
	})
}

// --- WithLock -----------------------------------------------------------------------

func TestWithLockWaitsForItsReleaseForALimitedTime(t *testing.T) {
	for name, c := range map[string]struct {
		ttl  time.Duration
		fn   func(ctx context.Context, cancel func()) error
		want time.Duration
	}{
		"long lease":      {time.Minute, func(context.Context, func()) error { return errWork }, finishLimit},
		"endless lease":   {1<<63 - 1, func(context.Context, func()) error { return errWork }, finishLimit},
		"short lease":     {3 * time.Second, func(context.Context, func()) error { return errWork }, validity(3 * time.Second)},
		"fn was slow":     {9 * time.Second, func(context.Context, func()) error { time.Sleep(7 * time.Second); return errWork }, validity(9*time.Second) - 7*time.Second},
		"shortest lease":  {100 * time.Millisecond, func(context.Context, func()) error { return errWork }, finishGrace},
		"lost":            {time.Second, func(ctx context.Context, _ func()) error { <-ctx.Done(); return errWork }, finishGrace},
		"fn panics":       {time.Minute, func(context.Context, func()) error { panic(errWork) }, finishGrace},
		"fn calls Goexit": {time.Minute, func(context.Context, func()) error { runtime.Goexit(); return nil }, finishGrace},
		"ctx has ended":   {time.Minute, func(_ context.Context, cancel func()) error { cancel(); return errWork }, finishGrace},
		"ctx ends later": {time.Minute, func(_ context.Context, cancel func()) error {
			time.AfterFunc(time.Second, cancel)
			return errWork
		}, time.Second + finishGrace},
		"ctx ends at the limit": {time.Minute, func(_ context.Context, cancel func()) error {
			time.AfterFunc(finishLimit-finishGrace/2, cancel)
			return errWork
		}, finishLimit},
	} {
		for _, endless := range []bool{true, false} {
			if endless && len(name) > 3 && name[:3] == "ctx" {
				continue
			}
			t.Run(fmt.Sprintf("%s/endless ctx %t", name, endless), func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					if endless {
						ctx = context.Background()
					}
					lk := r.locker()
					lock, err := lk.TryAcquire(t.Context(), "warm", time.Minute)
					require.NoError(t, err)
					require.NoError(t, lock.Release(t.Context()))
					var began time.Time
					var wg sync.WaitGroup
					wg.Go(func() {
						defer func() { _ = recover() }()
						err = lk.WithLock(ctx, "a", c.ttl, func(ctx context.Context, l *Lock) error {
							lock = l
							r.net.stall()
							defer func() { began = time.Now() }()
							return c.fn(ctx, cancel)
						}, WithoutWatchdog())
					})
					wg.Wait()
					require.Equal(t, c.want, time.Since(began))
					require.True(t, isDone(lock))
					if err != nil {
						require.ErrorIs(t, err, errWork)
						require.NotErrorIs(t, err, ErrNotHeld)
					}
					r.net.flow()
					requireNoGoroutines(t)
					require.False(t, r.Exists("lock:a"), "the release went on in the background")
				})
			})
		}
	}
}

// Under a ctx that never ends Release waits as long as the client for each try.
// When the lease is over there is nothing left that another try could save.
func TestReleaseUnderAnEndlessContextTriesWhileTheLeaseLasts(t *testing.T) {
	const timeout = 2 * time.Second
	for ttl, want := range map[time.Duration]int{time.Second: 1, 3 * time.Second: 2, time.Minute: wire.Tries} {
		t.Run(ttl.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				client := r.connect(func(o *redis.Options) { o.ReadTimeout, o.DialTimeout = timeout, timeout })
				lock, err := r.lockerOn(client).TryAcquire(t.Context(), "a", ttl)
				require.NoError(t, err)
				r.net.stall()
				took := elapsed(func() { err = lock.Release(context.Background()) })
				requireFailure(t, err, opRelease, "lock:a")
				require.True(t, wire.IsTimeout(err), "%v", err)
				require.WithinRange(t, time.Unix(0, int64(took)), time.Unix(0, int64(want)*int64(timeout)), time.Unix(0, int64(want)*int64(timeout)+int64(100*time.Millisecond)))
				r.net.flow()
			})
		})
	}
}
