package redislock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// --- every error (fault 49) -----------------------------------------------------------

func TestEveryErrorNamesOperationKeyAndOneCause(t *testing.T) {
	type path struct {
		op     string
		causes []error
		do     func(t *testing.T, r *fakeRedis) error
	}
	tryAcquire := func(t *testing.T, r *fakeRedis, opts ...AcquireOption) error {
		_, err := r.locker().TryAcquire(t.Context(), "a", time.Minute, opts...)
		return err
	}
	ended := func(t *testing.T) context.Context {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		return ctx
	}
	expired := func(r *fakeRedis) *Lock {
		lock := r.acquire("a", time.Second)
		time.Sleep(2 * time.Second)
		return lock
	}
	released := func(t *testing.T, r *fakeRedis) *Lock {
		lock := r.acquire("a", time.Minute)
		require.NoError(t, lock.Release(t.Context()))
		return lock
	}
	detached := func(r *fakeRedis) *Lock {
		lock := r.acquire("a", time.Minute)
		lock.Detach()
		return lock
	}
	for name, p := range map[string]path{
		"acquire: held": {opAcquire, []error{ErrNotAcquired}, func(t *testing.T, r *fakeRedis) error {
			r.take("lock:a")
			return tryAcquire(t, r)
		}},
		"acquire: held until ctx ended": {opAcquire, []error{ErrNotAcquired, context.DeadlineExceeded}, func(t *testing.T, r *fakeRedis) error {
			r.take("lock:a")
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := r.locker().Acquire(ctx, "a", time.Minute)
			return err
		}},
		"acquire: TTL": {opAcquire, []error{ErrInvalidTTL}, func(t *testing.T, r *fakeRedis) error {
			_, err := r.locker().Acquire(t.Context(), "a", 0)
			return err
		}},
		"acquire: maximal hold": {opAcquire, []error{ErrInvalidTTL}, func(t *testing.T, r *fakeRedis) error {
			return tryAcquire(t, r, WithMaxHold(0))
		}},
		"acquire: minimal hold": {opAcquire, []error{ErrInvalidTTL}, func(t *testing.T, r *fakeRedis) error {
			return tryAcquire(t, r, WithMinHold(-1))
		}},
		"acquire: metadata": {opAcquire, []error{ErrInvalidMetadata}, func(t *testing.T, r *fakeRedis) error {
			return tryAcquire(t, r, WithMetadata(strings.Repeat("x", MaxMetadata+1)))
		}},
		"acquire: ctx ended": {opAcquire, []error{context.Canceled}, func(t *testing.T, r *fakeRedis) error {
			_, err := r.locker().Acquire(ended(t), "a", time.Minute)
			return err
		}},
		"acquire: refused": {opAcquire, nil, func(t *testing.T, r *fakeRedis) error {
			r.net.down()
			return tryAcquire(t, r)
		}},
		"acquire: server error": {opAcquire, nil, func(t *testing.T, r *fakeRedis) error {
			r.answerOnce(opAcquire, "NOPERM no")
			return tryAcquire(t, r)
		}},
		"acquire: client closed": {opAcquire, []error{redis.ErrClosed}, func(t *testing.T, r *fakeRedis) error {
			r.client.Close()
			return tryAcquire(t, r)
		}},
		"resume: not ours": {opResume, []error{ErrNotHeld}, func(t *testing.T, r *fakeRedis) error {
			_, err := r.locker().Resume(t.Context(), "a", "token", time.Minute)
			return err
		}},
		"resume: TTL": {opResume, []error{ErrInvalidTTL}, func(t *testing.T, r *fakeRedis) error {
			_, err := r.locker().Resume(t.Context(), "a", "token", time.Millisecond)
			return err
		}},
		"resume: ctx ended": {opResume, []error{context.Canceled}, func(t *testing.T, r *fakeRedis) error {
			_, err := r.locker().Resume(ended(t), "a", "token", time.Minute)
			return err
		}},
		"resume: refused": {opResume, nil, func(t *testing.T, r *fakeRedis) error {
			r.net.down()
			_, err := r.locker().Resume(t.Context(), "a", "token", time.Minute)
			return err
		}},
		"inspect: refused": {opInspect, nil, func(t *testing.T, r *fakeRedis) error {
			r.net.down()
			_, err := r.locker().Inspect(t.Context(), "a")
			return err
		}},
		"inspect: ctx ended": {opInspect, []error{context.Canceled}, func(t *testing.T, r *fakeRedis) error {
			_, err := r.locker().Inspect(ended(t), "a")
			return err
		}},
		"extend: expired": {opExtend, []error{ErrNotHeld}, func(t *testing.T, r *fakeRedis) error {
			return expired(r).Extend(t.Context(), time.Minute)
		}},
		"extend: released": {opExtend, []error{ErrReleased}, func(t *testing.T, r *fakeRedis) error {
			return released(t, r).Extend(t.Context(), time.Minute)
		}},
		"extend: TTL": {opExtend, []error{ErrInvalidTTL}, func(t *testing.T, r *fakeRedis) error {
			return r.acquire("a", time.Minute).Extend(t.Context(), 0)
		}},
		"extend: ctx ended": {opExtend, []error{context.Canceled}, func(t *testing.T, r *fakeRedis) error {
			return r.acquire("a", time.Minute).Extend(ended(t), time.Minute)
		}},
		"extend: refused": {opExtend, nil, func(t *testing.T, r *fakeRedis) error {
			lock := r.acquire("a", time.Minute)
			r.net.down()
			return lock.Extend(t.Context(), time.Minute)
		}},
		"ttl: expired": {opTTL, []error{ErrNotHeld}, func(t *testing.T, r *fakeRedis) error {
			_, err := expired(r).TTL(t.Context())
			return err
		}},
		"ttl: released": {opTTL, []error{ErrReleased}, func(t *testing.T, r *fakeRedis) error {
			_, err := released(t, r).TTL(t.Context())
			return err
		}},
		"ttl: refused": {opTTL, nil, func(t *testing.T, r *fakeRedis) error {
			lock := r.acquire("a", time.Minute)
			r.net.down()
			_, err := lock.TTL(t.Context())
			return err
		}},
		"release: expired": {opRelease, []error{ErrNotHeld}, func(t *testing.T, r *fakeRedis) error {
			return expired(r).Release(t.Context())
		}},
		"release: released": {opRelease, []error{ErrReleased}, func(t *testing.T, r *fakeRedis) error {
			return released(t, r).Release(t.Context())
		}},
		"release: refused": {opRelease, nil, func(t *testing.T, r *fakeRedis) error {
			lock := r.acquire("a", time.Minute)
			r.net.down()
			return lock.Release(t.Context())
		}},
		"release: server error": {opRelease, nil, func(t *testing.T, r *fakeRedis) error {
			lock := r.acquire("a", time.Minute)
			r.answerOnce(opRelease, "NOPERM no")
			return lock.Release(t.Context())
		}},
		"extend: detached": {opExtend, []error{ErrDetached}, func(t *testing.T, r *fakeRedis) error {
			return detached(r).Extend(t.Context(), time.Minute)
		}},
		"ttl: detached": {opTTL, []error{ErrDetached}, func(t *testing.T, r *fakeRedis) error {
			_, err := detached(r).TTL(t.Context())
			return err
		}},
		"release: detached": {opRelease, []error{ErrDetached}, func(t *testing.T, r *fakeRedis) error {
			return detached(r).Release(t.Context())
		}},
		"hold: detached": {opHold, []error{ErrDetached}, func(t *testing.T, r *fakeRedis) error { return detached(r).Err() }},
		"hold: expired":  {opHold, []error{ErrLost}, func(t *testing.T, r *fakeRedis) error { return expired(r).Err() }},
		"hold: released": {opHold, []error{ErrReleased}, func(t *testing.T, r *fakeRedis) error {
			return released(t, r).Err()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				err := p.do(t, r)
				requireFailure(t, err, p.op, "lock:a", p.causes...)
				if len(p.causes) == 0 {
					requireNotContextError(t, err)
				}
			})
		})
	}
}

func TestEmptyNameIsRefusedWithoutTraffic(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		r.requireSilence(func() {
			for name, acquire := range acquirers {
				_, err := acquire(lk, t.Context(), "", time.Minute)
				requireFailure(t, err, opAcquire, "lock:", ErrInvalidName)
				_ = name
			}
			_, err := lk.Resume(t.Context(), "", "token", time.Minute)
			requireFailure(t, err, opResume, "lock:", ErrInvalidName)
			_, err = lk.Inspect(t.Context(), "")
			requireFailure(t, err, opInspect, "lock:", ErrInvalidName)
		})
	})
}

func TestErrorTextIsOneShortLine(t *testing.T) {
	for _, key := range []string{strings.Repeat("x", 1<<20), "line\nbreak", "\x00\xff"} {
		text := (&Error{Op: opAcquire, Key: key, Err: errWork}).Error()
		require.Less(t, len(text), 300)
		require.NotContains(t, text, "\n")
	}
}

// --- conditions that are told apart --------------------------------------------------------

// Fault 24.
func TestOwnTimeOutIsNotTheCallersContext(t *testing.T) {
	for name, limits := range map[string]func(*redis.Options){
		"go-redis waits longer": func(*redis.Options) {},
		"go-redis gives up":     func(o *redis.Options) { o.ReadTimeout = 300 * time.Millisecond },
		"go-redis obeys ctx":    func(o *redis.Options) { o.ContextTimeoutEnabled = true },
	} {
		for call, do := range calls {
			if call == "Acquire" || call == "WithLock" {
				continue // same as TryAcquire until they wait
			}
			t.Run(name+"/"+call, func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					lk := r.lockerOn(r.connect(limits))
					lock, err := lk.TryAcquire(t.Context(), "held", time.Hour)
					require.NoError(t, err)
					r.net.stall()
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
					defer cancel()
					err = do(ctx, lk, lock)
					requireNotContextError(t, err)
					var timeout net.Error
					var own interface{ Timeout() bool }
					require.True(t, errors.As(err, &timeout) || errors.As(err, &own), err)
					r.net.flow()
					requireNoGoroutines(t)
				})
			})
		}
	}
}

// A dial that times out ends in an error that Is context.DeadlineExceeded:
// package net says so of its own time-outs. It is not the caller's all the
// same.
func TestDialTimeOutIsNotTheCallersContext(t *testing.T) {
	for name, call := range calls {
		for kind, newContext := range map[string]func() (context.Context, context.CancelFunc){
			"without an end": func() (context.Context, context.CancelFunc) { return context.Background(), func() {} },
			"long": func() (context.Context, context.CancelFunc) {
				return context.WithTimeout(context.Background(), time.Hour)
			},
		} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					silent := false
					lk := r.lockerOn(r.connect(func(o *redis.Options) {
						dial := o.Dialer
						o.ConnMaxIdleTime = time.Second
						o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
							if !silent {
								return dial(ctx, network, addr)
							}
							<-ctx.Done()
							return nil, &net.OpError{Op: "dial", Net: network, Err: ctx.Err()}
						}
					}))
					lock, err := lk.TryAcquire(t.Context(), "held", time.Hour)
					require.NoError(t, err)
					time.Sleep(2 * time.Second) // the connection is not used again
					silent = true
					ctx, cancel := newContext()
					defer cancel()
					requireNotContextError(t, call(ctx, lk, lock))
					time.Sleep(time.Minute) // go-redis dials five times, for five seconds each
					requireNoGoroutines(t)
				})
			})
		}
	}
}

// A cause that was given to cancel is kept.
func TestContextErrorCarriesItsCause(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errWork)
	require.ErrorIs(t, wire.ContextError(ctx), context.Canceled)
	require.ErrorIs(t, wire.ContextError(ctx), errWork)

	ctx, cancel = context.WithCancelCause(t.Context())
	cancel(nil)
	require.Equal(t, context.Canceled, wire.ContextError(ctx))
}

// --- lost replies (faults 1, 2, 3, 5) ---------------------------------------------------------

// clients are go-redis with and without retries of its own.
var clients = map[string]func(*redis.Options){
	"default":      func(*redis.Options) {},
	"no retries":   func(o *redis.Options) { o.MaxRetries = -1 },
	"ctx deadline": func(o *redis.Options) { o.ContextTimeoutEnabled = true },
}

func TestLostReplyToAcquireIsALockOrNoKey(t *testing.T) {
	for client, options := range clients {
		for name, acquire := range acquirers {
			for _, kind := range []faultKind{loseReply, cutReply} {
				for _, times := range []int{1, 2, wire.Tries} {
					t.Run(fmt.Sprintf("%s/%s/%d/%d", client, name, kind, times), func(t *testing.T) {
						inBubble(t, func(t *testing.T, r *fakeRedis) {
							r.net.fail(opAcquire, kind, times)
							start := time.Now()
							lock, err := acquire(r.lockerOn(r.connect(options)), t.Context(), "a", time.Minute)
							switch {
							case err != nil:
								requireFailure(t, err, opAcquire, "lock:a")
								requireNotContextError(t, err)
								requireGone(t, r)
							case name == "WithLock":
								require.False(t, r.Exists("lock:a"))
							default:
								require.Equal(t, lock.Token(), r.value("lock:a"))
								require.EqualValues(t, start.UnixMicro(), lock.Fence(), "one acquisition, one fence: that of the try that was executed first")
								require.Equal(t, fmt.Sprint(lock.Fence()), r.value("{lock:a}:fence"))
								require.LessOrEqual(t, time.Until(lock.Until()), r.TTL("lock:a"))
							}
							require.Equal(t, times == wire.Tries, err != nil, "repeated a few times")
							requireNoGoroutines(t)
						})
					})
				}
			}
		}
	}
}

// A request that was overtaken by its own repetition is executed when the lock
// has been released already.
func TestLateRequestOfAnAcquisitionLeavesNoKeyAfterRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		arrive := r.net.delay(opAcquire)
		lock, err := r.locker().TryAcquire(t.Context(), "a", time.Second)
		require.NoError(t, err)
		require.NoError(t, lock.Release(t.Context()))
		require.False(t, r.Exists("lock:a"))
		arrive()
		requireGone(t, r)
	})
}

func TestLateRequestOfAnAcquisitionDoesNotUndoAnExtend(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		arrive := r.net.delay(opAcquire)
		lock, err := r.locker().TryAcquire(t.Context(), "a", time.Second)
		require.NoError(t, err)
		require.NoError(t, lock.Extend(t.Context(), time.Hour))
		arrive()
		synctest.Wait()
		require.Equal(t, 2, r.requests(opAcquire), "both were executed")
		require.Equal(t, time.Hour, r.TTL("lock:a"))
		require.NoError(t, lock.Release(t.Context()))
		requireNoGoroutines(t)
		require.False(t, r.Exists("lock:a"))
	})
}

func TestRepeatedAcquireNeverTakesWhatAnotherHas(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		r.net.fail(opAcquire, cutReply, 1)
		r.answerWith(func(op string) string { // between the first try and the second, the lock changes hands
			if op == opAcquire && r.requests(opAcquire) == 2 {
				r.take("lock:a")
			}
			return ""
		})
		_, err := r.locker().TryAcquire(t.Context(), "a", time.Minute)
		requireFailure(t, err, opAcquire, "lock:a", ErrNotAcquired)
		require.Equal(t, "other", r.value("lock:a"))
		require.Equal(t, time.Hour, r.TTL("lock:a"))
		requireNoGoroutines(t)
		require.Equal(t, "other", r.value("lock:a"))
	})
}

func TestReplyThatArrivesAfterTheLeaseIsNoLock(t *testing.T) {
	for name, acquire := range acquirers {
		if name == "Acquire" || name == "TryAcquire" {
			t.Run(name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					r.net.setLatency(func() time.Duration { return 60 * time.Millisecond })
					_, err := acquire(r.locker(), t.Context(), "a", 100*time.Millisecond)
					requireFailure(t, err, opAcquire, "lock:a")
					requireNotContextError(t, err)
					requireGone(t, r)
				})
			})
		}
	}
}

func TestLostReplyToReleaseIsSuccess(t *testing.T) {
	for client, options := range clients {
		for _, kind := range []faultKind{loseReply, cutReply, cutRequest} {
			t.Run(fmt.Sprintf("%s/%d", client, kind), func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					lk := r.lockerOn(r.connect(options))
					lock, err := lk.TryAcquire(t.Context(), "a", time.Minute, WithWatchdog())
					require.NoError(t, err)
					r.net.fail(opRelease, kind, 1)
					require.NoError(t, lock.Release(t.Context()))
					require.False(t, r.Exists("lock:a"))
					requireFailure(t, lock.Err(), opHold, "lock:a", ErrReleased)
					require.Empty(t, r.logged(""))
					requireNoGoroutines(t)
				})
			})
		}
	}
}

// The lock was known to be lost before Release: a lost reply does not turn that
// into a success.
func TestLostReplyToReleaseOfALostLockIsNotHeld(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", time.Minute, WithWatchdog())
		r.take("lock:a")
		awaitEnd(t, lock.Done())
		require.True(t, time.Now().Before(lock.Until()), "the lease would have gone on")
		r.net.fail(opRelease, cutReply, 1)
		requireFailure(t, lock.Release(t.Context()), opRelease, "lock:a", ErrNotHeld)
	})
}

func TestFailedReleaseCanBeRepeated(t *testing.T) {
	for name, fail := range map[string]struct {
		begin, end func(r *fakeRedis)
		held       bool // the handle still is, since nothing can be executed late
	}{
		"refused":      {func(r *fakeRedis) { r.net.down(); time.Sleep(2 * time.Second) }, func(r *fakeRedis) { r.net.up() }, true},
		"breaks":       {outages["refused"].begin, outages["refused"].end, true}, // before anything is written
		"silent":       {outages["silent"].begin, outages["silent"].end, false},
		"server error": {func(r *fakeRedis) { r.answerWith(func(string) string { return "MISCONF no" }) }, func(r *fakeRedis) { r.answerWith(nil) }, true},
		"replies lost": {func(r *fakeRedis) { r.net.fail(opRelease, cutReply, wire.Tries) }, func(*fakeRedis) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				idle := func(o *redis.Options) { o.ConnMaxIdleTime = time.Second }
				lock, err := r.lockerOn(r.connect(idle)).TryAcquire(t.Context(), "a", time.Hour, WithWatchdog())
				require.NoError(t, err)
				fail.begin(r)
				err = lock.Release(t.Context())
				requireFailure(t, err, opRelease, "lock:a")
				if fail.held {
					require.NoError(t, lock.Err(), "not released, not lost")
				} else {
					requireFailure(t, lock.Err(), opHold, "lock:a", ErrReleased)
				}
				fail.end(r)
				require.NoError(t, lock.Release(t.Context()))
				require.False(t, r.Exists("lock:a"))
				requireFailure(t, lock.Release(t.Context()), opRelease, "lock:a", ErrReleased)
				require.Empty(t, r.logged(""))
				requireNoGoroutines(t)
			})
		})
	}
}

func TestLostReplyToExtendIsRepeated(t *testing.T) {
	for _, kind := range []faultKind{loseReply, cutReply, cutRequest} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lock := r.acquire("a", time.Minute)
				r.net.fail(opExtend, kind, 1)
				require.NoError(t, lock.Extend(t.Context(), time.Hour))
				require.Equal(t, time.Hour, r.TTL("lock:a"))
				require.NoError(t, lock.Release(t.Context()))
			})
		})
	}
}

// An Extend that succeeds sets the lease to what was asked for, and the
// validity follows, although an earlier and shorter one was in doubt a while
// ago.
func TestExtendRecoversFromAnEarlierLostReply(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", time.Minute)
		r.net.fail(opExtend, cutReply, 1)
		require.NoError(t, lock.Extend(t.Context(), 30*time.Second))
		time.Sleep(20 * time.Second)
		require.NoError(t, lock.Extend(t.Context(), 2*time.Minute))
		require.Equal(t, 2*time.Minute, r.TTL("lock:a"))
		time.Sleep(time.Minute)
		require.NoError(t, lock.Err(), "Redis keeps the key for a minute more")
	})
}

// A try of Resume that was overtaken by its own repetition sets the lease when
// it is executed at last, to less than what an Extend has asked for since.
func TestValidityAllowsForALateRequestOfResume(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		first := r.acquire("a", time.Hour)
		arrive := r.net.delay(opExtend)
		lock, err := r.locker().Resume(t.Context(), "a", first.Token(), 2*time.Second)
		require.NoError(t, err)
		require.NoError(t, lock.Extend(t.Context(), time.Hour))
		arrive()
		synctest.Wait()
		require.False(t, lock.Until().After(time.Now().Add(r.TTL("lock:a"))))
	})
}

// --- the end of ctx (faults 4, 19, 22) -----------------------------------------------------------

// calls are all methods that talk to Redis, on the free name "a" and on lock.
var calls = map[string]func(ctx context.Context, lk *Locker, lock *Lock) error{
	"Acquire": func(ctx context.Context, lk *Locker, _ *Lock) error {
		_, err := lk.Acquire(ctx, "a", time.Minute)
		return err
	},
	"TryAcquire": func(ctx context.Context, lk *Locker, _ *Lock) error {
		_, err := lk.TryAcquire(ctx, "a", time.Minute)
		return err
	},
	"WithLock": func(ctx context.Context, lk *Locker, _ *Lock) error {
		return lk.WithLock(ctx, "a", time.Minute, func(context.Context, *Lock) error { panic("fn was run") })
	},
	"Resume": func(ctx context.Context, lk *Locker, lock *Lock) error {
		_, err := lk.Resume(ctx, lock.Name(), lock.Token(), time.Minute)
		return err
	},
	"Inspect": func(ctx context.Context, lk *Locker, _ *Lock) error { _, err := lk.Inspect(ctx, "a"); return err },
	"Extend":  func(ctx context.Context, _ *Locker, lock *Lock) error { return lock.Extend(ctx, time.Minute) },
	"TTL":     func(ctx context.Context, _ *Locker, lock *Lock) error { _, err := lock.TTL(ctx); return err },
	"Release": func(ctx context.Context, _ *Locker, lock *Lock) error { return lock.Release(ctx) },
}

// contexts end in two ways; go-redis by itself notices neither.
var contexts = map[string]func(parent context.Context, after time.Duration) (context.Context, context.CancelFunc){
	"deadline": context.WithTimeout,
	"cancel": func(parent context.Context, after time.Duration) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(parent)
		time.AfterFunc(after, cancel)
		return ctx, cancel
	},
}

func TestEveryCallReturnsSoonAfterItsContextEnds(t *testing.T) {
	const after, bound = 100 * time.Millisecond, 50 * time.Millisecond
	states := map[string]func(r *fakeRedis){
		"silent":            func(r *fakeRedis) { r.net.stall() },
		"silent, cold":      func(r *fakeRedis) { r.net.cut(); r.net.stall() },
		"refused":           func(r *fakeRedis) { r.net.down() },
		"busy":              func(r *fakeRedis) { r.answerWith(func(string) string { return "BUSY" }) },
		"connections break": (*fakeRedis).failEverything,
	}
	for state, begin := range states {
		for kind, newContext := range contexts {
			for name, call := range calls {
				t.Run(state+"/"+kind+"/"+name, func(t *testing.T) {
					inBubble(t, func(t *testing.T, r *fakeRedis) {
						lk := r.locker()
						lock, err := lk.TryAcquire(t.Context(), "held", time.Hour)
						require.NoError(t, err)
						begin(r)
						ctx, cancel := newContext(t.Context(), after)
						defer cancel()
						took := elapsed(func() { err = call(ctx, lk, lock) })
						require.LessOrEqual(t, took, after+bound)
						if state == "silent" || state == "silent, cold" {
							require.GreaterOrEqual(t, took, after)
						}
						if took >= after {
							require.ErrorIs(t, err, ctx.Err())
						}
						require.NotErrorIs(t, err, ErrNotAcquired)
						require.NotErrorIs(t, err, ErrNotHeld)
						if state == "silent" {
							time.Sleep(time.Minute) // no look can be sent, so undoing goes on until the lease is over
						}
						requireNoGoroutines(t)
					})
				})
			}
		}
	}
}

// failEverything cuts the connection of every request.
func (r *fakeRedis) failEverything() {
	for op := range scriptsByName {
		r.net.fail(op, cutRequest, 100)
	}
}

func TestAbandonedAcquisitionLeavesNoKey(t *testing.T) {
	for kind, newContext := range contexts {
		for name, acquire := range acquirers {
			t.Run(kind+"/"+name, func(t *testing.T) {
				for fault, c := range map[string]struct {
					begin func(r *fakeRedis) (end func())
					after time.Duration
					gone  time.Duration // after that, at the latest
				}{
					"reply lost":                {func(r *fakeRedis) func() { r.net.fail(opAcquire, loseReply, 1); return func() {} }, 0, 250 * time.Millisecond},
					"silent":                    {func(r *fakeRedis) func() { r.net.stall(); return r.net.flow }, 3 * time.Second, 250 * time.Millisecond},
					"late":                      {func(r *fakeRedis) func() { return r.net.delay(opAcquire) }, 3 * time.Second, 250 * time.Millisecond},
					"later than go-redis waits": {func(r *fakeRedis) func() { return r.net.delay(opAcquire) }, 5*time.Second + 50*time.Millisecond, 10 * time.Second},
				} {
					t.Run(fault, func(t *testing.T) {
						inBubble(t, func(t *testing.T, r *fakeRedis) {
							lk := r.locker()
							_, err := lk.Inspect(t.Context(), "a") // makes a connection
							require.NoError(t, err)
							start := time.Now()
							end := c.begin(r)
							ctx, cancel := newContext(t.Context(), 100*time.Millisecond)
							defer cancel()
							require.Equal(t, 100*time.Millisecond, elapsed(func() { _, err = acquire(lk, ctx, "a", time.Hour, WithWatchdog()) }))
							requireFailure(t, err, opAcquire, "lock:a", ctx.Err())
							time.Sleep(time.Until(start.Add(c.after)))
							end()
							time.Sleep(c.gone)
							synctest.Wait()
							require.False(t, r.Exists("lock:a"))
							require.Zero(t, r.requests(opExtend), "no watchdog")
							requireNoGoroutines(t)
							require.False(t, r.Exists("lock:a"))
						})
					})
				}
			})
		}
	}
}

func TestReleaseIsMadeAlsoWhenItsContextHasEnded(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		lock := r.acquire("a", time.Hour)
		r.net.setLatency(func() time.Duration { return 5 * time.Millisecond })
		require.NoError(t, lock.Release(ctx), "Redis answered in time")
		require.False(t, r.Exists("lock:a"))
	})
}

func TestReleaseGoesOnInTheBackground(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", time.Hour)
		r.net.stall()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var err error
		require.LessOrEqual(t, elapsed(func() { err = lock.Release(ctx) }), 50*time.Millisecond)
		requireFailure(t, err, opRelease, "lock:a", context.Canceled)
		time.Sleep(4 * time.Second)
		r.net.flow()
		synctest.Wait()
		require.False(t, r.Exists("lock:a"))
		require.NoError(t, lock.Release(t.Context()), "and its success is told to the next who asks")
		requireFailure(t, lock.Release(t.Context()), opRelease, "lock:a", ErrReleased)
		requireNoGoroutines(t)
	})
}

// Also where ctx ends in the pause between two tries the error Is ctx.Err().
// Only Release, which does not end with its ctx, may know better.
func TestContextThatEndsBetweenTwoTriesIsTheError(t *testing.T) {
	for name, call := range calls {
		if name == "Release" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lk := r.locker()
				lock := r.acquire("held", time.Hour)
				ctx, cancel := context.WithCancel(t.Context())
				r.failEverything()
				time.AfterFunc(time.Millisecond, cancel)
				err := call(ctx, lk, lock)
				require.ErrorIs(t, err, context.Canceled)
				requireNoGoroutines(t)
			})
		})
	}
}

// A proxy may answer with an error of its own although the server has executed
// the request. Texts of Envoy and twemproxy.
func TestAnErrorOfAProxySaysNothingAboutExecution(t *testing.T) {
	for _, answer := range []string{"upstream failure", "ERR Connection timed out", "ERR Connection reset by peer"} {
		t.Run(answer, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lk := r.locker()
				lock, err := lk.TryAcquire(t.Context(), "a", time.Minute, WithWatchdog())
				require.NoError(t, err)
				r.answerWith(func(op string) string {
					if op != opRelease {
						return ""
					}
					r.Del("lock:a") // executed
					return answer
				})
				require.Error(t, lock.Release(t.Context()))
				r.answerWith(nil)
				next := r.acquire("a", time.Minute)
				require.NoError(t, next.Err())
				require.ErrorIs(t, lock.Err(), ErrReleased)
				require.NoError(t, lock.Release(t.Context()), "an earlier try did the work")
				require.Empty(t, r.logged(""))

				r.answerWith(func(op string) string {
					if op != opAcquire {
						return ""
					}
					require.NoError(t, r.Set("lock:b", "somebody"))
					return answer
				})
				_, err = lk.TryAcquire(t.Context(), "b", time.Minute)
				require.Error(t, err)
				time.Sleep(time.Second)
				require.Positive(t, r.requests(opRelease), "what may have been acquired is taken back")
			})
		})
	}
}

// detachedContext keeps the deadline of its parent, and never ends.
type detachedContext struct{ context.Context }

func (detachedContext) Done() <-chan struct{} { return nil }
func (detachedContext) Err() error            { return nil }

func TestAContextWithADeadlineThatNeverEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.lockerOn(r.connect(func(o *redis.Options) { o.ContextTimeoutEnabled = true; o.MaxRetries = -1 }))
		_, err := lk.TryAcquire(t.Context(), "warm", time.Minute)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		r.net.stall()
		defer r.net.flow()
		began := time.Now()
		_, err = lk.TryAcquire(detachedContext{ctx}, "a", time.Minute)
		require.Error(t, err)
		require.Less(t, time.Since(began), time.Minute)
	})
}
