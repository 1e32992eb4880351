package redislock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// --- New -----------------------------------------------------------------------

func TestNewRefusesClientsThatCannotKeepALock(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{}})
	defer ring.Close()
	var nilClient *redis.Client
	var nilCluster *redis.ClusterClient
	for name, client := range map[string]Client{
		"nil": nil, "typed nil client": nilClient, "typed nil cluster": nilCluster, "ring": ring,
	} {
		t.Run(name, func(t *testing.T) {
			defer func() { require.Contains(t, fmt.Sprint(recover()), "redislock: New(") }()
			New(client)
			require.Fail(t, "no panic")
		})
	}
}

func TestNewSendsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		r.requireSilence(func() { r.locker() })
	})
}

// --- Acquire and TryAcquire -----------------------------------------------------

// acquirers are the ways to acquire a free lock.
var acquirers = map[string]func(*Locker, context.Context, string, time.Duration, ...AcquireOption) (*Lock, error){
	"Acquire":    (*Locker).Acquire,
	"TryAcquire": (*Locker).TryAcquire,
	"WithLock": func(lk *Locker, ctx context.Context, name string, ttl time.Duration, opts ...AcquireOption) (held *Lock, err error) {
		err = lk.WithLock(ctx, name, ttl, func(_ context.Context, lock *Lock) error {
			held = lock
			return nil
		}, opts...)
		return held, err
	},
}

func TestAcquiredKeyHoldsTokenAndLease(t *testing.T) {
	for _, name := range []string{"Acquire", "TryAcquire"} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lock, err := acquirers[name](r.locker(), t.Context(), "order:42", time.Minute)
				require.NoError(t, err)
				require.Equal(t, "order:42", lock.Name())
				require.Equal(t, "lock:order:42", lock.Key())
				require.Equal(t, lock.Token(), r.value("lock:order:42"))
				require.Equal(t, time.Minute, r.TTL("lock:order:42"))
				require.Equal(t, fmt.Sprint(lock.Fence()), r.value("{lock:order:42}:fence"))
				require.Equal(t, time.Hour, r.TTL("{lock:order:42}:fence"))
				require.NoError(t, lock.Err())
				require.False(t, isDone(lock))
			})
		})
	}
}

func TestTokensAreFreshRandomUUIDs(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		seen := map[string]bool{}
		for range 100 {
			lock := r.acquire("a", time.Second)
			id, err := uuid.Parse(lock.Token())
			require.NoError(t, err)
			require.EqualValues(t, 4, id.Version())
			require.Equal(t, id.String(), lock.Token(), "canonical form")
			require.False(t, seen[lock.Token()])
			seen[lock.Token()] = true
			require.NoError(t, lock.Release(t.Context()))
		}
	})
}

func TestMetadataStandsBesideTheToken(t *testing.T) {
	for _, metadata := range []string{"pod-7", "two words", " ", "\x00\xff\n", "ü", ""} {
		t.Run(fmt.Sprintf("%q", metadata), func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lock := r.acquire("a", time.Minute, WithMetadata(metadata))
				want := lock.Token()
				if metadata != "" {
					want += " " + metadata
				}
				require.Equal(t, want, r.value("lock:a"))
				require.NoError(t, uuid.Validate(lock.Token()), "Token is the token alone")

				info, err := r.locker().Inspect(t.Context(), "a")
				require.NoError(t, err)
				require.Equal(t, Info{Held: true, Token: lock.Token(), Metadata: metadata, TTL: time.Minute, Fence: lock.Fence()}, info)

				require.NoError(t, lock.Extend(t.Context(), time.Hour))
				require.Equal(t, want, r.value("lock:a"), "metadata outlives Extend")
				require.NoError(t, lock.Release(t.Context()))
				require.False(t, r.Exists("lock:a"))
			})
		})
	}
}

func TestTryAcquireNeverWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		holder := r.acquire("a", time.Minute)
		var err error
		require.Zero(t, elapsed(func() { _, err = r.locker().TryAcquire(t.Context(), "a", time.Minute) }))
		requireFailure(t, err, opAcquire, "lock:a", ErrNotAcquired)
		requireNotContextError(t, err)
		require.Equal(t, holder.Token(), r.value("lock:a"))
		require.Equal(t, 2, r.requests(opAcquire))
	})
}

func TestNamesAreIndependent(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		a, b := r.acquire("a", time.Minute), r.acquire("b", time.Minute)
		require.NoError(t, a.Release(t.Context()))
		require.Equal(t, b.Token(), r.value("lock:b"))
	})
}

func TestContextOfAcquireDoesNotLimitTheHolding(t *testing.T) {
	for _, name := range []string{"Acquire", "TryAcquire"} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				lock, err := acquirers[name](r.locker(), ctx, "a", 3*time.Second, WithWatchdog())
				require.NoError(t, err)
				time.Sleep(time.Minute)
				require.NoError(t, lock.Err())
				require.Equal(t, lock.Token(), r.value("lock:a"))
				require.NoError(t, lock.Release(t.Context()))
			})
		})
	}
}

func TestForeignLocksExcludeOursAndOursExcludeTheirs(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		setNX := func(value string) bool {
			err := r.admin.SetArgs(t.Context(), "lock:a", value, redis.SetArgs{Mode: "NX", TTL: time.Second}).Err()
			require.True(t, err == nil || errors.Is(err, redis.Nil), err)
			return err == nil
		}
		require.True(t, setNX("theirs"))
		_, err := r.locker().TryAcquire(t.Context(), "a", time.Minute)
		require.ErrorIs(t, err, ErrNotAcquired)

		time.Sleep(time.Second)
		r.acquire("a", time.Minute)
		require.False(t, setNX("theirs"))
	})
}

func TestEndedContextSendsNothing(t *testing.T) {
	for name, acquire := range acquirers {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				ctx, cancel := context.WithCancelCause(t.Context())
				cancel(errWork)
				var err error
				r.requireSilence(func() { _, err = acquire(r.locker(), ctx, "a", time.Minute) })
				requireFailure(t, err, opAcquire, "lock:a", context.Canceled, errWork)
				require.False(t, r.Exists("lock:a"))
			})
		})
	}
}

// Fault 46.
func TestKeyOfAnotherTypeSurfacesAndIsLeftAlone(t *testing.T) {
	put := map[string]func(*fakeRedis){
		"list": func(r *fakeRedis) { _, _ = r.Push("lock:a", "x") },
		"hash": func(r *fakeRedis) { r.HSet("lock:a", "f", "x") },
		"zset": func(r *fakeRedis) { _, _ = r.ZAdd("lock:a", 1, "x") },
	}
	calls := map[string]func(ctx context.Context, lk *Locker, lock *Lock) (op string, err error){
		"Inspect": func(ctx context.Context, lk *Locker, _ *Lock) (string, error) {
			_, err := lk.Inspect(ctx, "a")
			return opInspect, err
		},
		"Resume": func(ctx context.Context, lk *Locker, lock *Lock) (string, error) {
			_, err := lk.Resume(ctx, "a", lock.Token(), time.Minute)
			return opResume, err
		},
		"Extend": func(ctx context.Context, _ *Locker, lock *Lock) (string, error) {
			return opExtend, lock.Extend(ctx, time.Minute)
		},
		"TTL": func(ctx context.Context, _ *Locker, lock *Lock) (string, error) {
			_, err := lock.TTL(ctx)
			return opTTL, err
		},
		"Release": func(ctx context.Context, _ *Locker, lock *Lock) (string, error) {
			return opRelease, lock.Release(ctx)
		},
	}
	for name, acquire := range acquirers {
		calls[name] = func(ctx context.Context, lk *Locker, _ *Lock) (string, error) {
			_, err := acquire(lk, ctx, "a", time.Minute)
			return opAcquire, err
		}
	}
	for kind, put := range put {
		for name, call := range calls {
			t.Run(kind+"/"+name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					lock := r.acquire("a", time.Minute)
					r.Del("lock:a")
					put(r)
					before := r.Dump()
					var op string
					var err error
					require.Zero(t, elapsed(func() { op, err = call(t.Context(), r.locker(), lock) }), "at once")
					requireFailure(t, err, op, "lock:a")
					require.ErrorContains(t, err, "WRONGTYPE")
					require.Equal(t, before, r.Dump())
				})
			})
		}
	}
}

// --- TTL (fault 18) ----------------------------------------------------------------

func TestEveryTTLIsRefusedWithoutTrafficOrBecomesALease(t *testing.T) {
	ttls := []time.Duration{
		math.MinInt64, -1, 0, 1, 999_999, 9 * time.Millisecond, MinTTL - 1,
		MinTTL, 10*time.Millisecond + 500*time.Microsecond, 10*time.Millisecond + 1, 24 * time.Hour, maxLease + time.Hour, math.MaxInt64,
	}
	for _, ttl := range ttls {
		for op, set := range ttlSetters {
			t.Run(fmt.Sprintf("%s/%d", op, ttl), func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) { set(t, r, ttl) })
			})
		}
	}
}

var ttlSetters = map[string]func(t *testing.T, r *fakeRedis, ttl time.Duration){
	"Acquire": func(t *testing.T, r *fakeRedis, ttl time.Duration) {
		setTTL(t, r, opAcquire, ttl, func() error {
			_, err := r.locker().Acquire(t.Context(), "a", ttl)
			return err
		})
	},
	"TryAcquire": func(t *testing.T, r *fakeRedis, ttl time.Duration) {
		setTTL(t, r, opAcquire, ttl, func() error {
			_, err := r.locker().TryAcquire(t.Context(), "a", ttl)
			return err
		})
	},
	"WithLock": func(t *testing.T, r *fakeRedis, ttl time.Duration) {
		if ttl < MinTTL {
			setTTL(t, r, opAcquire, ttl, func() error {
				return r.locker().WithLock(t.Context(), "a", ttl, func(context.Context, *Lock) error {
					require.Fail(t, "fn was run")
					return nil
				})
			})
			return
		}
		require.NoError(t, r.locker().WithLock(t.Context(), "a", ttl, func(context.Context, *Lock) error {
			requireLease(t, r, ttl)
			return nil
		}))
	},
	"Extend": func(t *testing.T, r *fakeRedis, ttl time.Duration) {
		lock := r.acquire("a", time.Minute)
		setTTL(t, r, opExtend, ttl, func() error { return lock.Extend(t.Context(), ttl) })
		if ttl < MinTTL {
			require.Equal(t, time.Minute, r.TTL("lock:a"))
		}
	},
	"Resume": func(t *testing.T, r *fakeRedis, ttl time.Duration) {
		lock := r.acquire("a", time.Minute)
		setTTL(t, r, opResume, ttl, func() error {
			_, err := r.locker().Resume(t.Context(), "a", lock.Token(), ttl)
			return err
		})
	},
}

func setTTL(t *testing.T, r *fakeRedis, op string, ttl time.Duration, set func() error) {
	if ttl < MinTTL {
		var err error
		r.requireSilence(func() { err = set() })
		requireFailure(t, err, op, "lock:a", ErrInvalidTTL)
		return
	}
	require.NoError(t, set())
	requireLease(t, r, ttl)
}

// requireLease checks 0 < PTTL <= ceil(ttl), and that it is not less than was
// asked for, up to the century where leases are cut off.
func requireLease(t *testing.T, r *fakeRedis, ttl time.Duration) {
	t.Helper()
	left := r.TTL("lock:a")
	require.Positive(t, left)
	require.GreaterOrEqual(t, left, min(ttl, maxLease))
	require.Less(t, left-ttl, time.Millisecond)
	require.GreaterOrEqual(t, r.TTL("{lock:a}:fence"), left, "the fence's record lives as long as the lease")
}

// A script may be stopped at each of its commands: by a lack of memory or of
// permission, or because Redis is shut down.
func TestNoKeyWithoutTTLWhenAScriptFailsHalfway(t *testing.T) {
	calls := map[string]struct {
		do   func(ctx context.Context, lk *Locker, lock *Lock) error
		done func(r *fakeRedis) bool // what success promises
	}{
		"acquire": {
			func(ctx context.Context, lk *Locker, _ *Lock) error {
				_, err := lk.TryAcquire(ctx, "new", time.Minute)
				return err
			},
			func(r *fakeRedis) bool { return r.Exists("lock:new") },
		},
		"extend": {
			func(ctx context.Context, _ *Locker, lock *Lock) error { return lock.Extend(ctx, time.Hour) },
			func(r *fakeRedis) bool { return r.TTL("lock:a") == time.Hour },
		},
		"release": {
			func(ctx context.Context, _ *Locker, lock *Lock) error { return lock.Release(ctx) },
			func(r *fakeRedis) bool { return !r.Exists("lock:a") },
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			for failing := 1; ; failing++ {
				failed := false
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					lock := r.acquire("a", time.Minute)
					n := 0
					r.onCommand(func(string, ...string) string {
						if n++; n != failing {
							return ""
						}
						failed = true
						return "OOM command not allowed when used memory > 'maxmemory'."
					})
					err := call.do(t.Context(), r.locker(), lock)
					r.onCommand(nil)
					require.True(t, err == nil || failed, err)
					require.True(t, err != nil || call.done(r), "success is true")
					for _, key := range r.Keys() {
						require.Positive(t, r.TTL(key), key)
					}
					require.False(t, err != nil && r.Exists("lock:new"), "an error, but a lock")
				})
				if !failed {
					require.Greater(t, failing, 2, "commands were failed")
					return
				}
			}
		})
	}
}

// --- Release ------------------------------------------------------------------------

func TestReleaseFreesTheLockOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", time.Minute)
		require.NoError(t, lock.Release(t.Context()))
		require.False(t, r.Exists("lock:a"))
		require.True(t, isDone(lock))
		requireFailure(t, lock.Err(), opHold, "lock:a", ErrReleased)

		other := r.acquire("a", time.Minute)
		r.requireSilence(func() {
			requireFailure(t, lock.Release(t.Context()), opRelease, "lock:a", ErrReleased)
		})
		require.Equal(t, other.Token(), r.value("lock:a"))
		require.Empty(t, r.logged(""))
	})
}

func TestOneOfSeveralReleasesSucceeds(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", time.Minute, WithWatchdog())
		r.net.setLatency(func() time.Duration { return time.Millisecond })
		var succeeded atomic.Int32
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if err := lock.Release(t.Context()); err == nil {
					succeeded.Add(1)
				} else {
					requireFailure(t, err, opRelease, "lock:a", ErrReleased)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, succeeded.Load())
		require.Equal(t, 1, r.requests(opRelease))
	})
}

// endings are the ways in which a lock can end without Release. Each says
// whether another holder has the key then.
var endings = map[string]func(r *fakeRedis, lock *Lock) (taken bool){
	"expired":          func(r *fakeRedis, lock *Lock) bool { time.Sleep(time.Until(lock.Until()) + time.Second); return false },
	"expired in Redis": func(r *fakeRedis, lock *Lock) bool { r.FastForward(time.Hour); return false },
	"deleted":          func(r *fakeRedis, lock *Lock) bool { r.Del(lock.Key()); return false },
	"flushed":          func(r *fakeRedis, lock *Lock) bool { r.FlushAll(); return false },
	"taken over":       func(r *fakeRedis, lock *Lock) bool { r.take(lock.Key()); return true },
	"taken over by a token that ours is the beginning of": func(r *fakeRedis, lock *Lock) bool {
		_ = r.Set(lock.Key(), lock.Token()+"x")
		return true
	},
	"expired and taken over": func(r *fakeRedis, lock *Lock) bool {
		time.Sleep(time.Until(lock.Until()) + time.Second)
		r.take(lock.Key())
		return true
	},
}

func TestReleaseOfAnEndedLockIsNotHeld(t *testing.T) {
	for name, end := range endings {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lock := r.acquire("a", 10*time.Second)
				taken := end(r, lock)
				before := r.Dump()
				requireFailure(t, lock.Release(t.Context()), opRelease, "lock:a", ErrNotHeld)
				require.Equal(t, taken, r.Exists("lock:a"))
				require.Equal(t, before, r.Dump())
				requireFailure(t, lock.Err(), opHold, "lock:a", ErrLost)
				require.True(t, isDone(lock))
				require.Len(t, r.logged("WARN redislock: nothing to release"), 1)

				r.requireSilence(func() {
					requireFailure(t, lock.Release(t.Context()), opRelease, "lock:a", ErrNotHeld)
				})
				require.Len(t, r.logged("WARN redislock: nothing to release"), 1)
			})
		})
	}
}

func TestReleaseAfterTheValidityStillFreesOurKey(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", 10*time.Second)
		awaitEnd(t, lock.Done())
		requireFailure(t, lock.Err(), opHold, "lock:a", ErrLost)
		require.Equal(t, lock.Token(), r.value("lock:a"), "Redis keeps the key a little longer")
		require.NoError(t, lock.Release(t.Context()))
		require.False(t, r.Exists("lock:a"))
		requireFailure(t, lock.Err(), opHold, "lock:a", ErrLost)
		require.Empty(t, r.logged("nothing to release"))
	})
}

func TestReleaseStopsRenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", 3*time.Second, WithWatchdog())
		time.Sleep(10*time.Second + 500*time.Millisecond)
		require.NoError(t, lock.Release(t.Context()))
		r.requireSilence(func() { time.Sleep(time.Minute) })
		require.Empty(t, packageGoroutines())
	})
}

// --- Extend ------------------------------------------------------------------------

func TestExtendSetsTheLeaseFromNow(t *testing.T) {
	for _, ttl := range []time.Duration{10 * time.Second, time.Minute, time.Hour, 2 * time.Hour} {
		t.Run(ttl.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lock := r.acquire("a", time.Minute)
				time.Sleep(30 * time.Second)
				require.NoError(t, lock.Extend(t.Context(), ttl))
				require.Equal(t, ttl, r.TTL("lock:a"))
				require.Equal(t, time.Now().Add(validity(ttl)), lock.Until())
				require.GreaterOrEqual(t, r.TTL("{lock:a}:fence"), ttl)

				time.Sleep(validity(ttl) - 1)
				require.NoError(t, lock.Err())
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				require.True(t, isDone(lock))
				require.True(t, r.Exists("lock:a"), "the validity ends before the lease")
			})
		})
	}
}

func TestExtendAfterTheEndWritesNothing(t *testing.T) {
	for name, end := range endings {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lock := r.acquire("a", 10*time.Second)
				end(r, lock)
				before := r.Dump()
				requireFailure(t, lock.Extend(t.Context(), 3*time.Hour), opExtend, "lock:a", ErrNotHeld)
				require.Equal(t, before, r.Dump())
				require.LessOrEqual(t, r.TTL("lock:a"), time.Hour)
				require.True(t, isDone(lock))
				requireFailure(t, lock.Err(), opHold, "lock:a", ErrLost)
			})
		})
	}
}

func TestExtendAfterReleaseIsReleasedAndWritesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", 10*time.Second)
		require.NoError(t, lock.Release(t.Context()))
		r.requireSilence(func() {
			requireFailure(t, lock.Extend(t.Context(), time.Hour), opExtend, "lock:a", ErrReleased)
		})
		require.False(t, r.Exists("lock:a"))
	})
}

func TestExtendWhileReleaseIsUnderWayIsReleased(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", 10*time.Second)
		arrive := r.net.delay(opRelease)
		released := make(chan error, 1)
		go func() { released <- lock.Release(t.Context()) }()
		synctest.Wait()
		requireFailure(t, lock.Extend(t.Context(), time.Hour), opExtend, "lock:a", ErrReleased)
		require.Zero(t, r.requests(opExtend))
		arrive()
		require.NoError(t, <-released)
	})
}

// Done is final, also where Redis still has the key and would extend it.
func TestDoneIsFinal(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", 10*time.Second)
		awaitEnd(t, lock.Done())
		lost := lock.Err()
		require.Equal(t, lock.Token(), r.value("lock:a"))
		r.requireSilence(func() {
			requireFailure(t, lock.Extend(t.Context(), time.Hour), opExtend, "lock:a", ErrNotHeld)
		})
		require.Less(t, r.TTL("lock:a"), time.Second)
		require.Same(t, lost, lock.Err())
	})
}

func TestExtendThatIsAnsweredTooLateDoesNotRevive(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", 10*time.Second)
		time.Sleep(9 * time.Second)
		arrive := r.net.delay(opExtend)
		extended := make(chan error, 1)
		go func() { extended <- lock.Extend(t.Context(), time.Hour) }()
		awaitEnd(t, lock.Done())
		arrive()
		requireFailure(t, <-extended, opExtend, "lock:a", ErrNotHeld)
		requireFailure(t, lock.Err(), opHold, "lock:a", ErrLost)
		require.True(t, lock.Until().Before(time.Now().Add(time.Minute)))
	})
}

func TestExtendsAreMadeOneAfterAnother(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", time.Minute)
		r.net.stall()
		first := make(chan error, 1)
		go func() { first <- lock.Extend(t.Context(), time.Hour) }()
		synctest.Wait()

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var err error
		require.Equal(t, time.Second, elapsed(func() { err = lock.Extend(ctx, time.Minute) }))
		requireFailure(t, err, opExtend, "lock:a", context.DeadlineExceeded)
		r.net.flow()
		require.NoError(t, <-first)
		require.Equal(t, time.Hour, r.TTL("lock:a"))
	})
}

// --- Until, TTL, Done, Err, Context --------------------------------------------------

// validity is the contract's: ttl - ttl/100 - 2 ms, from before sending.
func validity(ttl time.Duration) time.Duration { return ttl - ttl/100 - 2*time.Millisecond }

func TestUntilIsCountedFromBeforeSending(t *testing.T) {
	for _, ttl := range []time.Duration{MinTTL, time.Second, 30 * time.Second, 24 * time.Hour} {
		t.Run(ttl.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				r.acquire("warm", time.Minute)
				r.net.setLatency(func() time.Duration { return time.Millisecond })
				sent := time.Now()
				lock := r.acquire("a", ttl)
				require.Equal(t, 2*time.Millisecond, time.Since(sent), "the reply took a while")
				require.Equal(t, sent.Add(validity(ttl)), lock.Until())
				<-lock.Done()
				require.Equal(t, sent.Add(validity(ttl)), time.Now())
			})
		})
	}
}

func TestTTLIsTheServersRemainingLease(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", time.Minute)
		time.Sleep(20 * time.Second)
		ttl, err := lock.TTL(t.Context())
		require.NoError(t, err)
		require.Equal(t, 40*time.Second, ttl)

		require.NoError(t, lock.Release(t.Context()))
		r.requireSilence(func() { _, err = lock.TTL(t.Context()) })
		requireFailure(t, err, opTTL, "lock:a", ErrReleased)
	})
}

func TestTTLOfAnEndedLockIsNotHeld(t *testing.T) {
	for name, end := range endings {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lock := r.acquire("a", 10*time.Second)
				end(r, lock)
				_, err := lock.TTL(t.Context())
				requireFailure(t, err, opTTL, "lock:a", ErrNotHeld)
			})
		})
	}
}

func TestContextEndsWithTheLock(t *testing.T) {
	type key struct{}
	for name, c := range map[string]struct {
		end  func(r *fakeRedis, lock *Lock)
		want error
	}{
		"released": {func(r *fakeRedis, lock *Lock) { require.NoError(r.t, lock.Release(r.t.Context())) }, ErrReleased},
		"expired":  {func(r *fakeRedis, lock *Lock) { awaitEnd(r.t, lock.Done()) }, ErrLost},
		"taken":    {func(r *fakeRedis, lock *Lock) { r.take("lock:a"); _ = lock.Extend(r.t.Context(), time.Minute) }, ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lock := r.acquire("a", time.Minute)
				ctx, cancel := lock.Context(context.WithValue(t.Context(), key{}, "kept"))
				defer cancel()
				require.NoError(t, ctx.Err())
				require.Equal(t, "kept", ctx.Value(key{}))

				c.end(r, lock)
				synctest.Wait()
				require.ErrorIs(t, ctx.Err(), context.Canceled)
				require.Same(t, lock.Err(), context.Cause(ctx))
				requireFailure(t, context.Cause(ctx), opHold, "lock:a", c.want)

				late, cancel := lock.Context(t.Context())
				defer cancel()
				require.Error(t, late.Err(), "a context of an ended lock has ended")
				require.Same(t, lock.Err(), context.Cause(late))
			})
		})
	}
}

func TestContextEndsWithItsParentAndKeepsTheCause(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", time.Minute)
		parent, end := context.WithCancelCause(t.Context())
		ctx, cancel := lock.Context(parent)
		defer cancel()
		end(errWork)
		require.Same(t, errWork, context.Cause(ctx))
		require.NoError(t, lock.Err(), "the lock is still held")

		late, cancel := lock.Context(parent)
		defer cancel()
		require.Same(t, errWork, context.Cause(late))
	})
}

func TestContextsAreIndependentAndCostNoGoroutine(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", time.Minute)
		before := runtime.NumGoroutine()
		_, _ = lock.Context(t.Context())
		first, cancelFirst := lock.Context(t.Context())
		second, cancelSecond := lock.Context(t.Context())
		defer cancelSecond()
		require.Equal(t, before, runtime.NumGoroutine())
		cancelFirst()
		require.Equal(t, context.Canceled, context.Cause(first))
		require.NoError(t, second.Err())
		require.NoError(t, lock.Err())
		require.Equal(t, lock.Token(), r.value("lock:a"))
	})
}

// --- nil and zero Lock (fault 48) ----------------------------------------------------

func TestNilAndZeroLockAnswerWithErrors(t *testing.T) {
	for name, lock := range map[string]*Lock{"nil": nil, "zero": {}} {
		t.Run(name, func(t *testing.T) {
			require.Empty(t, lock.Name())
			require.Empty(t, lock.Key())
			require.Empty(t, lock.Token())
			require.Zero(t, lock.Fence())
			require.True(t, lock.Until().IsZero())
			require.True(t, isDone(lock))
			requireFailure(t, lock.Err(), opHold, "", ErrNotHeld)
			requireFailure(t, lock.Release(t.Context()), opRelease, "", ErrNotHeld)
			requireFailure(t, lock.Extend(t.Context(), time.Minute), opExtend, "", ErrNotHeld)
			_, err := lock.TTL(t.Context())
			requireFailure(t, err, opTTL, "", ErrNotHeld)

			ctx, cancel := lock.Context(t.Context())
			defer cancel()
			require.Error(t, ctx.Err())
			requireFailure(t, context.Cause(ctx), opHold, "", ErrNotHeld)
		})
	}
}

// --- Resume --------------------------------------------------------------------------

func TestResumeAdoptsALock(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		first := r.acquire("a", time.Minute, WithMetadata("first"))
		time.Sleep(20 * time.Second)
		second, err := r.locker().Resume(t.Context(), "a", first.Token(), 10*time.Second, WithMetadata("ignored"))
		require.NoError(t, err)
		require.Equal(t, 10*time.Second, r.TTL("lock:a"), "the lease is set")
		require.Equal(t, time.Now().Add(validity(10*time.Second)), second.Until())
		require.Equal(t, first.Token(), second.Token())
		require.Equal(t, first.Fence(), second.Fence())
		require.Equal(t, first.Token()+" first", r.value("lock:a"))
		require.NoError(t, second.Release(t.Context()))
		require.False(t, r.Exists("lock:a"))
		requireFailure(t, first.Release(t.Context()), opRelease, "lock:a", ErrNotHeld)
	})
}

func TestResumeRenewsWithWatchdog(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		first := r.acquire("a", time.Minute)
		second, err := r.locker().Resume(t.Context(), "a", first.Token(), 3*time.Second, WithWatchdog())
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.NoError(t, second.Err())
		require.NoError(t, second.Release(t.Context()))
	})
}

func TestResumeNeverCreates(t *testing.T) {
	const token = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
	for name, c := range map[string]struct{ value, token string }{
		"free":                           {"", token},
		"held by another":                {"other", token},
		"held by a longer token":         {token + "x", token},
		"token is another's metadata":    {"other " + token, token},
		"empty token, free":              {"", ""},
		"empty token, held":              {"other", ""},
		"empty token, value begins with": {" other", ""},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				if c.value != "" {
					require.NoError(t, r.Set("lock:a", c.value))
				}
				before := r.Dump()
				lock, err := r.locker().Resume(t.Context(), "a", c.token, time.Minute)
				require.Nil(t, lock)
				requireFailure(t, err, opResume, "lock:a", ErrNotHeld)
				require.Equal(t, before, r.Dump())
				require.Zero(t, r.TTL("lock:a"), "no lease was set")
			})
		})
	}
}

// What stands in Redis may be handed to Resume by somebody who read the key and
// not Info.Token. Token is the token alone, so that is not a token.
func TestResumeTakesTheTokenAlone(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", time.Minute, WithMetadata("pod-7"))
		resumed, err := r.locker().Resume(t.Context(), "a", r.value("lock:a"), time.Minute)
		if err == nil {
			require.Equal(t, lock.Token(), resumed.Token())
		} else {
			requireFailure(t, err, opResume, "lock:a", ErrNotHeld)
		}
	})
}

// --- Inspect -------------------------------------------------------------------------

func TestInspectTellsWhatStandsInRedis(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		inspect := func() Info {
			info, err := lk.Inspect(t.Context(), "a")
			require.NoError(t, err)
			return info
		}
		require.Equal(t, Info{}, inspect())
		require.Empty(t, r.Keys(), "Inspect writes nothing")

		lock := r.acquire("a", time.Minute)
		time.Sleep(time.Second)
		require.Equal(t, Info{Held: true, Token: lock.Token(), TTL: 59 * time.Second, Fence: lock.Fence()}, inspect())

		require.NoError(t, lock.Release(t.Context()))
		require.Equal(t, Info{Fence: lock.Fence()}, inspect(), "the fence outlives the lock")

		require.NoError(t, r.Set("lock:a", "foreign"))
		require.Equal(t, Info{Held: true, Token: "foreign", TTL: -1, Fence: lock.Fence()}, inspect(), "a foreign lock without an end")

		require.NoError(t, r.Set("lock:a", ""))
		require.True(t, inspect().Held)
	})
}

// --- Fences (fault 50) -----------------------------------------------------------------

func TestFencesGrow(t *testing.T) {
	for name, between := range map[string]func(r *fakeRedis, lock *Lock){
		"release": func(r *fakeRedis, lock *Lock) { require.NoError(r.t, lock.Release(r.t.Context())) },
		"expiry":  func(r *fakeRedis, lock *Lock) { time.Sleep(time.Second) },
		"expiry of the record": func(r *fakeRedis, lock *Lock) {
			time.Sleep(2 * time.Hour)
		},
		"deletion": func(r *fakeRedis, lock *Lock) { time.Sleep(1 * time.Microsecond); r.Del("lock:a") },
		"deletion of lock and record": func(r *fakeRedis, lock *Lock) {
			time.Sleep(time.Microsecond)
			r.Del("lock:a")
			r.Del("{lock:a}:fence")
		},
		"FLUSHALL": func(r *fakeRedis, lock *Lock) { time.Sleep(time.Microsecond); r.FlushAll() },
		"clock set back by less than the retention": func(r *fakeRedis, lock *Lock) {
			r.SetTime(time.Now().Add(-59 * time.Minute))
			r.Del("lock:a")
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				first := r.acquire("a", time.Second)
				require.EqualValues(t, time.Now().UnixMicro(), first.Fence(), "the server's clock")
				last := first
				for range 3 {
					between(r, last)
					next := r.acquire("a", time.Second)
					require.Greater(t, next.Fence(), last.Fence())
					last = next
				}
			})
		})
	}
}

func TestFencesOfConcurrentAcquirersGrow(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lockers := []*Locker{r.locker(), r.lockerOn(r.connect()), r.lockerOn(r.connect())}
		var mu sync.Mutex
		var fences []int64
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				err := lockers[i%3].WithLock(t.Context(), "a", time.Second, func(_ context.Context, lock *Lock) error {
					mu.Lock()
					defer mu.Unlock()
					fences = append(fences, lock.Fence())
					return nil
				})
				require.NoError(t, err)
			})
		}
		wg.Wait()
		require.Len(t, fences, 100)
		require.IsIncreasing(t, fences)
	})
}

func TestFenceIsThatOfTheAcquisitionWhenItsRecordIsLost(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", time.Minute)
		time.Sleep(time.Second)
		r.Del("{lock:a}:fence")
		require.NoError(t, lock.Extend(t.Context(), time.Minute))
		require.NoError(t, lock.Release(t.Context()))
		require.Greater(t, r.acquire("a", time.Minute).Fence(), lock.Fence())
	})
}

func TestFenceRetentionIsNeverShorterThanTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker(WithFenceRetention(time.Second))
		lock, err := lk.TryAcquire(t.Context(), "a", time.Minute, WithWatchdog())
		require.NoError(t, err)
		for range 100 {
			time.Sleep(7 * time.Second)
			require.GreaterOrEqual(t, r.TTL("{lock:a}:fence"), r.TTL("lock:a"))
		}
		require.NoError(t, lock.Release(t.Context()))
	})
}

// A renewal by one handle must not cut the record short that a longer lease of
// another handle, or a Locker with a longer retention, relies on.
func TestRenewalNeverShortensTheFencesRecord(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock, err := r.locker(WithFenceRetention(time.Minute)).TryAcquire(t.Context(), "a", 30*time.Second, WithWatchdog())
		require.NoError(t, err)
		_, err = r.locker().Resume(t.Context(), "a", lock.Token(), 2*time.Hour)
		require.NoError(t, err)
		time.Sleep(time.Hour)
		require.GreaterOrEqual(t, r.TTL("{lock:a}:fence"), r.TTL("lock:a"))
		require.NoError(t, lock.Release(t.Context()))
	})
}

// --- WithLock ----------------------------------------------------------------------

func TestWithLockHoldsTheLockWhileFnRuns(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		type key struct{}
		parent := context.WithValue(t.Context(), key{}, "kept")
		err := r.locker().WithLock(parent, "a", time.Minute, func(ctx context.Context, lock *Lock) error {
			require.Equal(t, lock.Token(), r.value("lock:a"))
			require.Equal(t, "kept", ctx.Value(key{}))
			require.NoError(t, ctx.Err())
			return nil
		})
		require.NoError(t, err)
		require.False(t, r.Exists("lock:a"))
	})
}

func TestWithLockReturnsFnsErrorUnchanged(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		err := r.locker().WithLock(t.Context(), "a", time.Minute, func(context.Context, *Lock) error { return errWork })
		require.Same(t, errWork, err)
		require.False(t, r.Exists("lock:a"))
	})
}

func TestWithLockReleasesWhenFnPanics(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		value := &struct{}{}
		func() {
			defer func() { require.Same(t, value, recover()) }()
			_ = r.locker().WithLock(t.Context(), "a", time.Minute, func(context.Context, *Lock) error { panic(value) })
		}()
		require.False(t, r.Exists("lock:a"))
		requireNoGoroutines(t)
	})
}

func TestWithLockReleasesWhenFnCallsGoexit(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		returned := false
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = r.locker().WithLock(t.Context(), "a", time.Minute, func(context.Context, *Lock) error {
				runtime.Goexit()
				return nil
			})
			returned = true
		})
		wg.Wait()
		require.False(t, returned, "Goexit goes on")
		require.False(t, r.Exists("lock:a"))
		requireNoGoroutines(t)
	})
}

func TestWithLockReleasesWhenItsContextEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(errWork) })
		err := r.locker().WithLock(ctx, "a", time.Minute, func(ctx context.Context, lock *Lock) error {
			awaitEnd(t, ctx.Done())
			require.NoError(t, lock.Err(), "fn still has the lock")
			require.Same(t, errWork, context.Cause(ctx))
			return ctx.Err()
		})
		require.Equal(t, context.Canceled, err)
		require.False(t, r.Exists("lock:a"))
	})
}

// Fault 22.
func TestWithLockReturnsSoonFromASilentRedis(t *testing.T) {
	for name, c := range map[string]struct {
		fn     func(ctx context.Context, cancel func()) error
		within time.Duration
	}{
		"ctx ended in fn": {func(ctx context.Context, cancel func()) error { cancel(); return errWork }, time.Second},
		"fn panics":       {func(context.Context, func()) error { panic(errWork) }, time.Second},
		"fn calls Goexit": {func(context.Context, func()) error { runtime.Goexit(); return nil }, time.Second},
		"fn returns":      {func(context.Context, func()) error { return errWork }, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var err error
				took := elapsed(func() {
					var wg sync.WaitGroup
					wg.Go(func() {
						defer func() { _ = recover() }()
						err = r.locker().WithLock(ctx, "a", time.Minute, func(ctx context.Context, _ *Lock) error {
							r.net.stall()
							return c.fn(ctx, cancel)
						})
					})
					wg.Wait()
				})
				require.LessOrEqual(t, took, c.within)
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

func TestWithLockReportsALossAlsoWhereFnSucceeds(t *testing.T) {
	lose := map[string]struct {
		how     func(r *fakeRedis)
		notHeld bool
	}{
		"deleted": {func(r *fakeRedis) { r.Del("lock:a") }, true},
		"taken":   {func(r *fakeRedis) { r.take("lock:a") }, true},
		"silence": {func(r *fakeRedis) { r.net.stall() }, false}, // the key is still ours when Redis is back
	}
	for name, c := range lose {
		for _, fnErr := range []error{nil, errWork} {
			t.Run(fmt.Sprintf("%s/%v", name, fnErr), func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					err := r.locker().WithLock(t.Context(), "a", 10*time.Second, func(ctx context.Context, lock *Lock) error {
						c.how(r)
						awaitEnd(t, ctx.Done())
						require.ErrorIs(t, context.Cause(ctx), ErrLost)
						if !c.notHeld {
							r.net.flow()
						}
						return fnErr
					})
					require.ErrorIs(t, err, ErrLost)
					require.Equal(t, c.notHeld, errors.Is(err, ErrNotHeld), err)
					require.NotErrorIs(t, err, ErrReleased)
					require.Equal(t, fnErr != nil, errors.Is(err, errWork))
					require.Contains(t, err.Error(), "lock:a")
					require.Equal(t, name == "taken", r.Exists("lock:a"))
				})
			})
		}
	}
}

// The loss may not have been noticed before fn returned.
func TestWithLockReportsALossFoundAtRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		err := r.locker().WithLock(t.Context(), "a", time.Minute, func(context.Context, *Lock) error {
			r.take("lock:a")
			return nil
		})
		requireFailure(t, err, opRelease, "lock:a", ErrNotHeld)
		require.Equal(t, "other", r.value("lock:a"))
	})
}

func TestWithLockDoesNotSayTwiceWhatFnSaid(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		var said error
		err := r.locker().WithLock(t.Context(), "a", time.Minute, func(ctx context.Context, _ *Lock) error {
			r.net.stall()
			awaitEnd(t, ctx.Done())
			r.net.flow()
			said = context.Cause(ctx)
			return said
		})
		require.Same(t, said, err)
	})
}

func TestWithLockAcceptsThatFnReleases(t *testing.T) {
	for _, fnErr := range []error{nil, errWork} {
		t.Run(fmt.Sprint(fnErr), func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				err := r.locker().WithLock(t.Context(), "a", time.Minute, func(ctx context.Context, lock *Lock) error {
					require.NoError(t, lock.Release(ctx))
					awaitEnd(t, ctx.Done())
					require.ErrorIs(t, context.Cause(ctx), ErrReleased)
					return fnErr
				})
				require.Equal(t, fnErr, err)
				require.Empty(t, r.logged(""))
			})
		})
	}
}

func TestWithLockNeverRunsFnWithoutTheLock(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		r.acquire("a", time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := r.locker().WithLock(ctx, "a", time.Minute, func(context.Context, *Lock) error {
			require.Fail(t, "fn was run")
			return nil
		})
		requireFailure(t, err, opAcquire, "lock:a", ErrNotAcquired, context.DeadlineExceeded)
	})
}

func TestWithLockRenewsByDefault(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		err := r.locker().WithLock(t.Context(), "a", time.Second, func(ctx context.Context, _ *Lock) error {
			time.Sleep(time.Minute)
			return ctx.Err()
		})
		require.NoError(t, err)
		require.Empty(t, r.logged(""))
	})
}

func TestWithLockWithoutWatchdogEndsWithItsLease(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		start := time.Now()
		err := r.locker().WithLock(t.Context(), "a", time.Second, func(ctx context.Context, _ *Lock) error {
			awaitEnd(t, ctx.Done())
			require.Equal(t, validity(time.Second), time.Since(start))
			time.Sleep(time.Second)
			return nil
		}, WithoutWatchdog())
		require.ErrorIs(t, err, ErrLost)
		require.ErrorIs(t, err, ErrNotHeld)
		require.Zero(t, r.requests(opExtend))
	})
}

// --- mutual exclusion and concurrent use ----------------------------------------------

func TestOnlyOneIsInside(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		r.net.setLatency(func() time.Duration { return rand.N(3 * time.Millisecond) })
		lockers := []*Locker{r.locker(), r.lockerOn(r.connect()), r.lockerOn(r.connect())}
		var inside atomic.Int32
		var wg sync.WaitGroup
		for i := range 30 {
			wg.Go(func() {
				for range 3 {
					err := lockers[i%3].WithLock(t.Context(), "a", 200*time.Millisecond, func(context.Context, *Lock) error {
						require.EqualValues(t, 1, inside.Add(1))
						defer inside.Add(-1)
						time.Sleep(rand.N(10 * time.Millisecond))
						return nil
					})
					require.NoError(t, err)
				}
			})
		}
		wg.Wait()
		require.False(t, r.Exists("lock:a"))
	})
}

// For the race detector.
func TestOneLockIsUsedByManyGoroutines(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		r.net.setLatency(func() time.Duration { return rand.N(2 * time.Millisecond) })
		lock := r.acquire("a", time.Second, WithWatchdog())
		uses := []func(){
			func() { _ = lock.Extend(t.Context(), time.Second+rand.N(time.Second)) },
			func() { _, _ = lock.TTL(t.Context()) },
			func() { _ = lock.Err() },
			func() { _, _, _, _ = lock.Name(), lock.Key(), lock.Token(), lock.Fence() },
			func() { _ = lock.Until(); _ = isDone(lock) },
			func() { ctx, cancel := lock.Context(t.Context()); _ = ctx.Err(); cancel() },
			func() { _, _ = lock.lk.Inspect(t.Context(), "a") },
		}
		var wg sync.WaitGroup
		for i := range 4 * len(uses) {
			wg.Go(func() {
				for range 20 {
					uses[i%len(uses)]()
					time.Sleep(rand.N(20 * time.Millisecond))
				}
			})
		}
		for range 3 {
			wg.Go(func() {
				time.Sleep(300 * time.Millisecond)
				if err := lock.Release(t.Context()); err != nil {
					requireFailure(t, err, opRelease, "lock:a", ErrReleased)
				}
			})
		}
		wg.Wait()
		requireFailure(t, lock.Err(), opHold, "lock:a", ErrReleased)
		require.False(t, r.Exists("lock:a"))
		requireNoGoroutines(t)
	})
}

func TestWithLockNeedsAFunction(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		r.requireSilence(func() {
			require.Panics(t, func() { _ = lk.WithLock(t.Context(), "a", time.Minute, nil) })
		})
	})
}

// Who waited for a release that failed hears that, also when another has begun.
func TestResultIsThatOfItsOwnRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", time.Hour)
		r.answerOnce(opRelease, "MISCONF no")
		first, _ := lock.startRelease(t.Context(), nil)
		_, done := lock.startRelease(t.Context(), make(chan struct{}))
		require.ErrorContains(t, lock.result(first), "MISCONF")
		<-done
		require.ErrorContains(t, lock.result(first), "MISCONF")
		require.ErrorIs(t, lock.Err(), ErrReleased)
	})
}
