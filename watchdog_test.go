package redislock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

func TestWatchdogRenewsEveryThirdOfTheTTL(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", 3*time.Second, WithWatchdog())
		for tick := range 100 {
			time.Sleep(time.Second - 1)
			synctest.Wait()
			require.Equal(t, tick, r.requests(opExtend))
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			require.Equal(t, tick+1, r.requests(opExtend))
			require.Equal(t, 3*time.Second, r.TTL("lock:a"))
			require.Equal(t, time.Now().Add(validity(3*time.Second)), lock.Until())
		}
		require.NoError(t, lock.Err())
		require.NoError(t, lock.Release(t.Context()))
		require.Empty(t, r.logged(""))
	})
}

func TestWatchdogIsOffUnlessAskedFor(t *testing.T) {
	for name, opts := range map[string][]AcquireOption{
		"default": nil, "without": {WithoutWatchdog()}, "last option counts": {WithWatchdog(), WithoutWatchdog()},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lock := r.acquire("a", time.Second, opts...)
				synctest.Wait()
				require.Empty(t, packageGoroutines())
				awaitEnd(t, lock.Done())
				require.Zero(t, r.requests(opExtend))
			})
		})
	}
}

// Fault 8. The renewal's tick and the end of the lock fall on the same instant,
// or the tick's request is under way when the lock ends.
func TestEndAtTheRenewalTickLeavesNothing(t *testing.T) {
	const ttl, rounds = 30 * time.Millisecond, 5_000
	ends := map[string]func(t *testing.T, lk *Locker, after time.Duration){
		"release": func(t *testing.T, lk *Locker, after time.Duration) {
			lock, err := lk.Acquire(t.Context(), "a", ttl, WithWatchdog())
			require.NoError(t, err)
			time.Sleep(after)
			require.NoError(t, lock.Release(t.Context()))
		},
		"cancel": func(t *testing.T, lk *Locker, after time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), after)
			defer cancel()
			err := lk.WithLock(ctx, "a", ttl, func(ctx context.Context, lock *Lock) error {
				awaitEnd(t, ctx.Done())
				require.NoError(t, lock.Err())
				return nil
			})
			require.NoError(t, err)
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				r.beQuick()
				lk := r.locker()
				var latency atomic.Int64
				r.net.setLatency(func() time.Duration { return time.Duration(latency.Load()) * time.Duration(rand.IntN(4)) })
				renewed := 0
				for i := range rounds {
					latency.Store(int64(i%2) * int64(50*time.Microsecond)) // in one round nothing takes time, in the next requests overtake each other
					jitter := time.Duration(i%9-4) * 100 * time.Microsecond
					before := r.requests(opExtend)
					end(t, lk, ttl/3+jitter)
					require.False(t, r.Exists("lock:a"), "round %d", i)
					renewed += r.requests(opExtend) - before
				}
				require.Greater(t, renewed, rounds/10, "the tick was met")
				require.Less(t, renewed, rounds, "the tick was missed")
				require.Empty(t, r.logged(""))
				time.Sleep(time.Second) // for what is still on its way
				synctest.Wait()
				require.Empty(t, packageGoroutines())
				r.requireSilence(func() { time.Sleep(time.Minute) })
			})
		})
	}
}

// Fault 9.
func TestSilenceIsALossBeforeTheLeaseCanHaveEnded(t *testing.T) {
	for _, ttl := range []time.Duration{300 * time.Millisecond, 3 * time.Second, 30 * time.Second} {
		for _, retries := range []int{-1, 3} {
			t.Run(fmt.Sprintf("%s/MaxRetries %d", ttl, retries), func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					lk := r.lockerOn(r.connect(func(o *redis.Options) { o.MaxRetries = retries }))
					lock, err := lk.TryAcquire(t.Context(), "a", ttl, WithWatchdog())
					require.NoError(t, err)
					ctx, cancel := lock.Context(t.Context())
					defer cancel()
					time.Sleep(10 * ttl)
					synctest.Wait()
					require.Equal(t, ttl, r.TTL("lock:a"), "a renewal has just been confirmed")
					sent := time.Now()
					r.net.stall()

					awaitEnd(t, lock.Done())
					require.Equal(t, validity(ttl), time.Since(sent))
					require.Equal(t, lock.Token(), r.value("lock:a"), "told before the lease has ended")
					requireFailure(t, lock.Err(), opHold, "lock:a", ErrLost)
					require.ErrorContains(t, lock.Err(), "renewing it failed", "says why")
					awaitEnd(t, ctx.Done())
					require.Same(t, lock.Err(), context.Cause(ctx))
					require.Len(t, r.logged("lock lost"), 1)
					r.net.flow()
					requireNoGoroutines(t)
				})
			})
		}
	}
}

func TestSilenceAtAnyMomentIsALossBeforeTheLeaseHasEnded(t *testing.T) {
	const ttl = 3 * time.Second
	for range 25 {
		after := rand.N(10 * time.Second)
		inBubble(t, func(t *testing.T, r *fakeRedis) {
			r.net.setLatency(func() time.Duration { return rand.N(100 * time.Millisecond) })
			lock := r.acquire("a", ttl, WithWatchdog())
			time.Sleep(after)
			r.net.stall()
			awaitEnd(t, lock.Done())
			require.Equal(t, lock.Token(), r.value("lock:a"), "silence after %s", after)
			require.GreaterOrEqual(t, r.TTL("lock:a"), ttl/100)
			r.net.flow()
			_ = lock.Release(t.Context())
		})
	}
}

// Fault 10.
func TestTakeoverIsALossWithinOneRenewal(t *testing.T) {
	const ttl = 3 * time.Second
	for name, value := range map[string]func(lock *Lock) string{
		"another token":    func(*Lock) string { return "other" },
		"a longer token":   func(lock *Lock) string { return lock.Token() + "x" },
		"a shorter token":  func(lock *Lock) string { return lock.Token()[:35] },
		"ours as metadata": func(lock *Lock) string { return "other " + lock.Token() },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lock := r.acquire("a", ttl, WithWatchdog())
				time.Sleep(10*time.Second + 1)
				require.NoError(t, r.Set("lock:a", value(lock)))
				r.SetTTL("lock:a", time.Hour)
				requireLost(t, lock, ttl/3)
				asked := r.requests(opExtend)
				time.Sleep(20 * ttl)
				require.Equal(t, asked, r.requests(opExtend), "renewal has stopped")
				require.Equal(t, value(lock), r.value("lock:a"))
				require.Equal(t, time.Hour-20*ttl, r.TTL("lock:a").Round(ttl))
				require.Len(t, r.logged(""), 1, "signalled once")
				requireNoGoroutines(t)
			})
		})
	}
}

// Fault 11.
func TestVanishedKeyIsALossAndIsNeverRecreated(t *testing.T) {
	const ttl = 3 * time.Second
	for name, vanish := range map[string]func(r *fakeRedis){
		"deleted": func(r *fakeRedis) { r.Del("lock:a") },
		"expired": func(r *fakeRedis) { r.FastForward(time.Hour) },
		"flushed": func(r *fakeRedis) { r.FlushAll() },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lock := r.acquire("a", ttl, WithWatchdog())
				time.Sleep(10*time.Second + 1)
				vanish(r)
				requireLost(t, lock, ttl/3)
				require.Equal(t, 1, len(r.logged("lock lost")))
				requireFailure(t, lock.Extend(t.Context(), ttl), opExtend, "lock:a", ErrNotHeld)
				time.Sleep(time.Minute)
				require.False(t, r.Exists("lock:a"))
				requireNoGoroutines(t)
			})
		})
	}
}

// Fault 12.
func TestRenewalThatFailsOnceIsRepeated(t *testing.T) {
	const ttl = 3 * time.Second
	failures := map[string]func(r *fakeRedis){
		"EOF":             func(r *fakeRedis) { r.net.fail(opExtend, cutReply, 1) },
		"EOF on request":  func(r *fakeRedis) { r.net.fail(opExtend, cutRequest, 1) },
		"reply lost":      func(r *fakeRedis) { r.net.fail(opExtend, loseReply, 1) },
		"all closed":      func(r *fakeRedis) { r.net.cut() },
		"short silence":   func(r *fakeRedis) { r.net.stall(); time.AfterFunc(1500*time.Millisecond, r.net.flow) },
		"refused a while": func(r *fakeRedis) { r.net.down(); time.AfterFunc(1500*time.Millisecond, r.net.up) },
	}
	for _, text := range []string{
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
		"LOADING Redis is loading the dataset in memory",
		"READONLY You can't write against a read only replica.",
		"ERR Error running script: @user_script:1: -READONLY You can't write against a read only replica.",
		"TRYAGAIN Multiple keys request during rehashing of slot",
		"CLUSTERDOWN The cluster is down",
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
		"NOREPLICAS Not enough good replicas to write.",
		"ERR max number of clients reached",
	} {
		failures[text] = func(r *fakeRedis) { r.answerOnce(opExtend, text) }
	}
	for name, fail := range failures {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lock := r.acquire("a", ttl, WithWatchdog())
				time.Sleep(10 * time.Second)
				synctest.Wait()
				fail(r)
				for range 100 { // the lease is renewed before it ends, and forever after
					time.Sleep(ttl / 10)
					require.NoError(t, lock.Err())
					require.Equal(t, lock.Token(), r.value("lock:a"))
				}
				require.NoError(t, lock.Release(t.Context()))
				require.Empty(t, r.logged(""))
				requireNoGoroutines(t)
			})
		})
	}
}

// Fault 13.
func TestConnectionErrorsEndNoLaterRenewals(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		for range 3 {
			lock := r.acquire("a", 3*time.Second, WithWatchdog())
			for range 20 {
				r.net.cut()
				r.net.fail(opExtend, cutReply, rand.N(3))
				// Never so many failures in a row that the lease is over.
				time.Sleep(time.Second + rand.N(2*time.Second))
				require.NoError(t, lock.Err())
			}
			require.NoError(t, lock.Release(t.Context()))
		}
		require.Empty(t, r.logged(""))
	})
}

// What Redis answers for good ends the lock when its lease is over, and says
// why.
func TestRenewalThatFailsForGoodIsALossWithItsReason(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", 3*time.Second, WithWatchdog())
		r.answerWith(func(op string) string {
			if op == opExtend {
				return "NOPERM this user has no permissions"
			}
			return ""
		})
		requireLost(t, lock, 3*time.Second)
		require.ErrorContains(t, lock.Err(), "NOPERM")
		require.NoError(t, lock.Release(t.Context()))
		require.False(t, r.Exists("lock:a"))
	})
}

// Fault 14.
func TestMaxHoldEndsAnEndlessHolder(t *testing.T) {
	const ttl, maxHold = 3 * time.Second, time.Second
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		start := time.Now()
		ended := make(chan error, 1)
		go func() {
			ended <- r.locker().WithLock(t.Context(), "a", ttl, func(ctx context.Context, _ *Lock) error {
				awaitEnd(t, ctx.Done())
				time.Sleep(time.Minute) // never returns, as far as others can wait
				return nil
			}, WithMaxHold(maxHold))
		}()
		synctest.Wait()
		other, err := r.lockerOn(r.connect()).Acquire(t.Context(), "a", ttl, WithWatchdog())
		require.NoError(t, err)
		require.LessOrEqual(t, time.Since(start), maxHold+ttl+10*time.Millisecond, "as soon as it asks")
		err = <-ended
		require.ErrorIs(t, err, ErrLost)
		require.ErrorIs(t, err, ErrNotHeld)
		require.NoError(t, other.Err())
		require.NoError(t, other.Release(t.Context()))
	})
}

func TestMaxHoldLetsRenewalRunUntilThen(t *testing.T) {
	const ttl, maxHold = 3 * time.Second, 20 * time.Second
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		start := time.Now()
		lock := r.acquire("a", ttl, WithWatchdog(), WithMaxHold(maxHold))
		awaitEnd(t, lock.Done())
		require.Greater(t, time.Since(start), maxHold)
		require.LessOrEqual(t, time.Since(start), maxHold+ttl)
		requireNoGoroutines(t)
	})
}

func TestReleaseWaitsForNoRenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", 3*time.Second, WithWatchdog())
		arrive := r.net.delay(opExtend)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Zero(t, elapsed(func() { require.NoError(t, lock.Release(t.Context())) }))
		require.False(t, r.Exists("lock:a"))
		arrive()
		requireNoGoroutines(t)
		require.Equal(t, 1, r.requests(opExtend), "the late renewal has arrived")
		require.False(t, r.Exists("lock:a"))
		requireFailure(t, lock.Err(), opHold, "lock:a", ErrReleased)
		require.Empty(t, r.logged(""))
	})
}

func TestNoRenewalLeavesAfterReleaseHasBegun(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", 3*time.Second, WithWatchdog())
		arrive := r.net.delay(opRelease)
		released := make(chan error, 1)
		go func() { released <- lock.Release(t.Context()) }()
		time.Sleep(2 * time.Second)
		arrive()
		require.NoError(t, <-released)
		require.Zero(t, r.requests(opExtend))
	})
}

// --- Extend and renewal ------------------------------------------------------------

func TestRenewalGoesOnWithTheTTLOfExtend(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, 90 * time.Second} {
		t.Run(ttl.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lock := r.acquire("a", 9*time.Second, WithWatchdog())
				time.Sleep(4 * time.Second)
				require.NoError(t, lock.Extend(t.Context(), ttl))
				before := r.requests(opExtend)
				early := ttl / 3 / 32 // at most, see inStep
				for range 10 {
					time.Sleep(ttl / 3)
					synctest.Wait()
					require.GreaterOrEqual(t, r.TTL("lock:a"), ttl-2*early)
					require.LessOrEqual(t, r.TTL("lock:a"), ttl)
					require.WithinRange(t, lock.Until(), time.Now().Add(validity(ttl)-2*early), time.Now().Add(validity(ttl)))
				}
				require.Contains(t, []int{10, 11}, r.requests(opExtend)-before)
				require.NoError(t, lock.Err())
				require.NoError(t, lock.Release(t.Context()))
			})
		})
	}
}

// An Extend to a shorter lease whose reply is lost may have been executed, and
// may be executed at any later time.
func TestShorterExtendIsBelievedBeforeItIsConfirmed(t *testing.T) {
	const long, short = 30 * time.Second, time.Second
	for name, watchdog := range map[string]AcquireOption{"watchdog": WithWatchdog(), "none": WithoutWatchdog()} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lock := r.acquire("a", long, watchdog)
				arrive := r.net.delay(opExtend)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				defer cancel()
				requireFailure(t, lock.Extend(ctx, short), opExtend, "lock:a", context.DeadlineExceeded)
				for range 50 {
					require.LessOrEqual(t, time.Until(lock.Until()), short)
					time.Sleep(15 * time.Millisecond)
				}
				require.NoError(t, lock.Err())
				arrive()
				synctest.Wait()
				require.False(t, lock.Until().After(time.Now().Add(r.TTL("lock:a"))))
				require.NoError(t, lock.Release(t.Context()))
			})
		})
	}
}

// Redis may have executed the two in either order.
func TestRenewalThatOverlapsAnExtendProvesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", 9*time.Second, WithWatchdog())
		arrive := r.net.delayReply(opExtend)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		require.Equal(t, 9*time.Second, r.TTL("lock:a"), "the renewal is executed, its reply on the way")
		require.NoError(t, lock.Extend(t.Context(), time.Second))
		arrive()
		synctest.Wait()
		require.Equal(t, time.Second, r.TTL("lock:a"))
		require.LessOrEqual(t, time.Until(lock.Until()), time.Second)
		require.NoError(t, lock.Release(t.Context()))
	})
}

// However requests are delayed, lost, repeated and overtaken: as long as a lock
// counts as held, Redis keeps its key for at least as long as Until says.
func TestValidityNeverExceedsTheLease(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) { checkValidity(t, r, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func checkValidity(t *testing.T, r *fakeRedis, random *rand.Rand) {
	upTo := func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(d))) + 1 }
	lock := r.acquire("a", 2*time.Second, []AcquireOption{WithWatchdog(), WithoutWatchdog()}[random.IntN(2)])
	// At least 1 ms, so that what is sent now is not executed now, between the
	// two readings below.
	latency := upTo(100 * time.Millisecond)
	r.net.setLatency(func() time.Duration { return time.Millisecond + rand.N(latency) })
	end := time.Now().Add(20 * time.Second)

	for range 1 + random.IntN(3) {
		ttls := [...]time.Duration{upTo(5 * time.Second), upTo(5 * time.Second), upTo(5 * time.Second)}
		pause := upTo(300 * time.Millisecond)
		go func() {
			for time.Now().Before(end) && lock.Err() == nil {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond+rand.N(2*time.Second))
				_ = lock.Extend(ctx, MinTTL+ttls[rand.IntN(3)])
				cancel()
				time.Sleep(rand.N(pause))
			}
		}()
	}
	for time.Now().Before(end) {
		switch random.IntN(40) {
		case 0:
			r.net.fail(opExtend, loseReply, 1)
		case 1:
			r.net.fail(opExtend, cutReply, 1)
		case 2:
			time.AfterFunc(upTo(4*time.Second), r.net.delay(opExtend))
		}
		time.Sleep(upTo(20 * time.Millisecond))
		left, until := r.TTL("lock:a"), lock.Until()
		if lock.Err() != nil {
			break
		}
		require.False(t, until.After(time.Now().Add(left)), "valid until %s, but the lease ends at %s", until, time.Now().Add(left))
	}
	time.Sleep(time.Minute)
	require.Error(t, lock.Err(), "nothing extends it any more")
}

// --- goroutines (fault 17) -----------------------------------------------------------

func TestNoGoroutineIsLeftOnAnyPath(t *testing.T) {
	paths := map[string]func(t *testing.T, r *fakeRedis){
		"released": func(t *testing.T, r *fakeRedis) {
			require.NoError(t, r.acquire("a", 3*time.Second, WithWatchdog()).Release(t.Context()))
		},
		"not held": func(t *testing.T, r *fakeRedis) {
			lock := r.acquire("a", 3*time.Second, WithWatchdog())
			r.take("lock:a")
			require.ErrorIs(t, lock.Release(t.Context()), ErrNotHeld)
		},
		"release failed": func(t *testing.T, r *fakeRedis) {
			lock := r.acquire("a", 3*time.Second, WithWatchdog())
			r.net.down()
			require.Error(t, lock.Release(t.Context()))
		},
		"lost and never released": func(t *testing.T, r *fakeRedis) {
			lock := r.acquire("a", 3*time.Second, WithWatchdog())
			r.take("lock:a")
			awaitEnd(t, lock.Done())
		},
		"abandoned without watchdog": func(t *testing.T, r *fakeRedis) { r.acquire("a", time.Hour) },
		"not acquired": func(t *testing.T, r *fakeRedis) {
			r.take("lock:a")
			_, err := r.locker().TryAcquire(t.Context(), "a", time.Second, WithWatchdog())
			require.ErrorIs(t, err, ErrNotAcquired)
		},
		"gave up waiting": func(t *testing.T, r *fakeRedis) {
			r.take("lock:a")
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			_, err := r.locker().Acquire(ctx, "a", time.Second, WithWatchdog())
			require.ErrorIs(t, err, ErrNotAcquired)
		},
		"error": func(t *testing.T, r *fakeRedis) {
			r.net.down()
			_, err := r.locker().TryAcquire(t.Context(), "a", time.Second, WithWatchdog())
			require.Error(t, err)
		},
		"cancelled in flight": func(t *testing.T, r *fakeRedis) {
			r.net.stall()
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			_, err := r.locker().Acquire(ctx, "a", time.Second, WithWatchdog())
			require.ErrorIs(t, err, context.DeadlineExceeded)
		},
		"calls cancelled in flight": func(t *testing.T, r *fakeRedis) {
			lock := r.acquire("a", 3*time.Second, WithWatchdog())
			r.net.stall()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			require.Error(t, lock.Extend(ctx, time.Second))
			_, err := lock.TTL(ctx)
			require.Error(t, err)
			require.Error(t, lock.Release(ctx))
		},
		"client closed while held": func(t *testing.T, r *fakeRedis) {
			client := r.connect()
			lock, err := r.lockerOn(client).TryAcquire(t.Context(), "a", 3*time.Second, WithWatchdog())
			require.NoError(t, err)
			require.NoError(t, client.Close())
			time.Sleep(time.Second + time.Millisecond)
			synctest.Wait()
			require.Empty(t, packageGoroutines(), "the next renewal was the last")
			requireLost(t, lock, 3*time.Second)
			requireFailure(t, lock.Release(t.Context()), opRelease, "lock:a", redis.ErrClosed)
		},
		"client closed while waited for": func(t *testing.T, r *fakeRedis) {
			client := r.connect()
			r.take("lock:a")
			time.AfterFunc(time.Second, func() { client.Close() })
			_, err := r.lockerOn(client).Acquire(t.Context(), "a", 3*time.Second)
			requireFailure(t, err, opAcquire, "lock:a", redis.ErrClosed)
		},
		"maximal hold": func(t *testing.T, r *fakeRedis) {
			awaitEnd(t, r.acquire("a", 3*time.Second, WithWatchdog(), WithMaxHold(time.Second)).Done())
		},
	}
	for name, path := range paths {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				path(t, r)
				requireNoGoroutines(t)
			})
		})
	}
}

// A shorter Extend that fails leaves less of the lease than the watchdog had in
// mind: it does not sleep past it.
func TestFailedShorterExtendIsMadeUpForByTheWatchdog(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", 30*time.Second, WithWatchdog())
		r.net.fail(opExtend, cutRequest, wire.Tries)
		require.Error(t, lock.Extend(t.Context(), time.Second))
		time.Sleep(time.Minute)
		require.NoError(t, lock.Err())
		require.NoError(t, lock.Release(t.Context()))
	})
}

// A wall clock that says the lease is over ends the lock at the next renewal,
// not only when the timer looks.
func TestRenewalThatFindsTheLeaseOverEndsTheLock(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk, machine := suspendable(r.locker())
		lock, err := lk.TryAcquire(t.Context(), "a", time.Hour, WithWatchdog())
		require.NoError(t, err)
		machine.Suspend(time.Hour)
		require.NoError(t, lock.renew(t.Context()))
		require.ErrorIs(t, lock.Err(), ErrLost)
	})
}

func TestRenewalsOfManyLocksTravelTogether(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		const n, ttl = 200, 30 * time.Second
		lk := r.locker()
		var locks []*Lock
		for i := range n {
			lock, err := lk.Acquire(t.Context(), fmt.Sprint(i), ttl, WithWatchdog())
			require.NoError(t, err)
			locks = append(locks, lock)
			time.Sleep(ttl / 3 / n)
		}
		h := r.countTrips()
		r.net.setLatency(func() time.Duration { return time.Millisecond })
		time.Sleep(ttl)
		renewals := 0
		for _, size := range h.taken() {
			renewals += size
		}
		require.GreaterOrEqual(t, renewals, 3*n-n/10) // the last ones may be on their way
		require.LessOrEqual(t, len(h.taken()), renewals/2)
		for _, lock := range locks {
			require.NoError(t, lock.Err())
			require.NoError(t, lock.Release(context.Background()))
		}
	})
}
