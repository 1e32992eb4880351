package servertest_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/e2e3f2a3/redislock"
	"github.com/e2e3f2a3/redislock/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func (r *rig) outOfMemory(t *testing.T, on bool) {
	t.Helper()
	limit := "0"
	if on {
		limit = "1"
	}
	require.NoError(t, r.direct.ConfigSet(t.Context(), "maxmemory", limit).Err())
}

func TestServerOutOfMemoryRefusesOnlyAcquisitions(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.WithConfig("maxmemory-policy", "noeviction"))
	ctx, lk := t.Context(), r.locker(t)
	held := hold(t, lk, "held", time.Minute)
	watched := hold(t, lk, "watched", 600*time.Millisecond, redislock.WithWatchdog())
	bare := hold(t, lk, "without fence", time.Minute)
	bareWatched := hold(t, lk, "watched without fence", 600*time.Millisecond, redislock.WithWatchdog())
	require.NoError(t, r.direct.Del(ctx, fenceOf("without fence"), fenceOf("watched without fence")).Err())
	awaitedOne := hold(t, lk, "awaited", time.Minute)
	wait := r.waiting(ctx, t, r.poller(t), "awaited", time.Minute)
	require.NoError(t, r.direct.Set(ctx, keyOf("other's"), "other", 0).Err())
	waitForOther := r.waiting(ctx, t, r.poller(t), "other's", time.Minute)

	r.outOfMemory(t, true)
	for method, acquire := range acquirers {
		t.Run(method, func(t *testing.T) {
			var err error
			took := timed(func() {
				err = acquire(ctx, lk, "new", func(*redislock.Lock) { t.Error("used without a lock") })
			})
			require.ErrorContains(t, err, "OOM")
			require.ErrorContains(t, err, "maxmemory")
			require.ErrorContains(t, err, keyOf("new"))
			assert.NotErrorIs(t, err, redislock.ErrNotAcquired)
			assert.LessOrEqual(t, took, 500*time.Millisecond)
			assert.Empty(t, r.value(t, "new"))
		})
	}
	t.Run("contention is still told", func(t *testing.T) {
		_, err := lk.TryAcquire(ctx, "held", time.Minute)
		require.ErrorIs(t, err, redislock.ErrNotAcquired)
	})
	t.Run("Extend", func(t *testing.T) {
		for _, lock := range []*redislock.Lock{held, bare, bareWatched} {
			require.NoError(t, lock.Extend(ctx, 2*time.Minute), lock.Name())
			assert.Greater(t, r.direct.PTTL(ctx, lock.Key()).Val(), time.Minute, lock.Name())
		}
		require.NoError(t, bareWatched.Extend(ctx, 600*time.Millisecond))
	})
	t.Run("TTL and Inspect", func(t *testing.T) {
		_, err := held.TTL(ctx)
		require.NoError(t, err)
		_, err = lk.Inspect(ctx, "held")
		require.NoError(t, err)
	})
	t.Run("Resume", func(t *testing.T) {
		for _, lock := range []*redislock.Lock{held, bare} {
			resumed, err := lk.Resume(ctx, lock.Name(), lock.Token(), time.Minute)
			require.NoError(t, err, lock.Name())
			assert.GreaterOrEqual(t, resumed.Fence(), lock.Fence())
		}
	})
	t.Run("watchdog", func(t *testing.T) {
		for _, lock := range []*redislock.Lock{watched, bareWatched} {
			before := lock.Until()
			renewed := func() bool { return lock.Until().Sub(before) > 300*time.Millisecond } // twice
			require.Eventually(t, renewed, soon, tick, lock.Name())
			require.NoError(t, lock.Err(), lock.Name())
		}
	})
	t.Run("Release", func(t *testing.T) {
		for _, lock := range []*redislock.Lock{held, watched, bare, bareWatched} {
			require.NoError(t, lock.Release(ctx), lock.Name())
			assert.Empty(t, r.value(t, lock.Name()))
		}
	})
	t.Run("Release hands over to those who wait already", func(t *testing.T) {
		require.NoError(t, awaitedOne.Release(ctx))
		lock, err := wait(t)
		require.NoError(t, err)
		assert.Equal(t, lock.Token(), r.value(t, "awaited"))
		assert.Greater(t, lock.Fence(), awaitedOne.Fence())
		require.NoError(t, lock.Release(ctx))
		assert.Empty(t, r.value(t, "awaited"))
	})
	t.Run("a waiter that acquires by itself hears of it", func(t *testing.T) {
		require.NoError(t, r.direct.Del(ctx, keyOf("other's"), queueOf("other's")).Err())
		_, err := waitForOther(t)
		require.ErrorContains(t, err, "OOM")
		assert.NotErrorIs(t, err, redislock.ErrNotAcquired)
	})
	r.outOfMemory(t, false)
	require.NoError(t, hold(t, lk, "new", time.Minute).Release(ctx))
	assert.Empty(t, r.log.about())
}

// A reply that was lost, and no memory when the request is repeated.
func TestServerOutOfMemoryWhileAcquireIsRepeated(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lost := r.relay.Once(r.opOn("acquire", "a"), redistest.SwallowReply)
	lk := r.locker(t, impatient)
	lock, err := during(t, lost.Hit(), func() (*redislock.Lock, error) {
		return lk.TryAcquire(t.Context(), "a", time.Minute)
	}, func() { r.outOfMemory(t, true) })
	require.NoError(t, err)
	assert.Equal(t, lock.Token(), r.value(t, "a"))
	require.NoError(t, lock.Release(t.Context()))
}

// wrongTypes put something else where a string belongs.
var wrongTypes = map[string]func(ctx context.Context, c *redis.Client, key string) error{
	"list": func(ctx context.Context, c *redis.Client, key string) error { return c.RPush(ctx, key, "v").Err() },
	"hash": func(ctx context.Context, c *redis.Client, key string) error { return c.HSet(ctx, key, "f", "v").Err() },
	"zset": func(ctx context.Context, c *redis.Client, key string) error { return c.ZAdd(ctx, key, redis.Z{}).Err() },
	"stream": func(ctx context.Context, c *redis.Client, key string) error {
		return c.XAdd(ctx, &redis.XAddArgs{Stream: key, Values: []string{"f", "v"}}).Err()
	},
}

func TestServerWrongTypeSurfacesAndNothingIsDeleted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, lk := t.Context(), r.locker(t)
	for kind, put := range wrongTypes {
		t.Run(kind+" at the lock key", func(t *testing.T) {
			name := t.Name()
			held := hold(t, lk, name, time.Minute)
			watched := hold(t, lk, name+" watched", 300*time.Millisecond, redislock.WithWatchdog())
			waited := r.waiting(ctx, t, r.poller(t), name, time.Minute)
			for _, key := range []string{held.Key(), watched.Key()} {
				require.NoError(t, put(ctx, r.direct, "other"))
				require.NoError(t, r.direct.Rename(ctx, "other", key).Err()) // at once: somebody waits for it
			}
			check := func(method string, err error) {
				assert.ErrorContains(t, err, "WRONGTYPE", method)
				assert.ErrorContains(t, err, name, method)
				assert.NotErrorIs(t, err, redislock.ErrNotAcquired, method)
				assert.NotErrorIs(t, err, redislock.ErrNotHeld, method)
			}
			_, err := held.TTL(ctx)
			check("TTL", err)
			check("Extend", held.Extend(ctx, time.Minute))
			check("Release", held.Release(ctx))
			for method, acquire := range acquirers {
				check(method, acquire(ctx, lk, name, func(*redislock.Lock) { t.Error("used without a lock") }))
			}
			_, err = lk.Resume(ctx, name, held.Token(), time.Minute)
			check("Resume", err)
			_, err = lk.Inspect(ctx, name)
			check("Inspect", err)
			_, err = waited(t)
			check("waiting Acquire", err)
			awaitWithin(t, watched.Done(), soon, "end of the lease")
			assert.ErrorIs(t, watched.Err(), redislock.ErrLost)
			for _, key := range []string{held.Key(), watched.Key()} {
				assert.Equal(t, kind, r.direct.Type(ctx, key).Val())
				assert.Equal(t, time.Duration(-1), r.direct.PTTL(ctx, key).Val(), "it was given an expiry")
			}
		})
		t.Run(kind+" at the fence key", func(t *testing.T) {
			name := t.Name()
			require.NoError(t, put(ctx, r.direct, fenceOf(name)))
			for method, acquire := range acquirers {
				err := acquire(ctx, lk, name, func(*redislock.Lock) { t.Error("used without a lock") })
				require.ErrorContains(t, err, "WRONGTYPE", method)
				require.ErrorContains(t, err, name, method)
				assert.NotErrorIs(t, err, redislock.ErrNotAcquired, method)
				assert.Empty(t, r.value(t, name), "a lock without a fence")
			}
			assert.Equal(t, kind, r.direct.Type(ctx, fenceOf(name)).Val())
		})
		t.Run(kind+" at the fence key of a held lock", func(t *testing.T) {
			name := t.Name()
			lock := hold(t, lk, name, 10*time.Second)
			require.NoError(t, r.direct.Del(ctx, fenceOf(name)).Err())
			require.NoError(t, put(ctx, r.direct, fenceOf(name)))
			if err := lock.Extend(ctx, time.Minute); err != nil {
				assert.ErrorContains(t, err, "WRONGTYPE")
				assert.LessOrEqual(t, r.direct.PTTL(ctx, lock.Key()).Val(), 10*time.Second, "extended, though it says it has failed")
			}
			require.NoError(t, lock.Release(ctx), "a release needs no fence")
			assert.Empty(t, r.value(t, name))
			assert.Equal(t, kind, r.direct.Type(ctx, fenceOf(name)).Val())
		})
	}
}

// A fence record that holds no number is a lost record.
func TestServerGarbageAtTheFenceKeyIsALostRecord(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lk := r.locker(t)
	for _, garbage := range []string{"", "x", "-5", "1e3", "0x10", "nan", "inf", "1e300", " 7 "} {
		t.Run(fmt.Sprintf("%q", garbage), func(t *testing.T) {
			name := t.Name()
			require.NoError(t, r.direct.Set(t.Context(), fenceOf(name), garbage, time.Minute).Err())
			begin := time.Now().Add(-time.Second).UnixMicro()
			lock := hold(t, lk, name, time.Minute)
			assert.Greater(t, lock.Fence(), begin)
			assert.Less(t, lock.Fence(), begin+int64(time.Hour/time.Microsecond))
			assert.Equal(t, lock.Fence(), r.fence(t, name))
			require.NoError(t, lock.Release(t.Context()))
		})
	}
}

func TestServerReplicaRefusesAcquisitionsAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, lk := t.Context(), r.locker(t)
	held := hold(t, lk, "held", time.Minute)
	const ttl = 6 * time.Second // longer than the acquisitions that are refused take
	watched := hold(t, lk, "watched", ttl, redislock.WithWatchdog())
	r.server.Do(t, "REPLICAOF", "127.0.0.1", 1) // no such primary: a replica with old data
	for method, acquire := range acquirers {
		t.Run(method, func(t *testing.T) {
			begin := r.relay.Requests(r.op("acquire"))
			err := acquire(ctx, lk, "new", func(*redislock.Lock) { t.Error("used without a lock") })
			require.ErrorContains(t, err, "READONLY")
			require.ErrorContains(t, err, keyOf("new"))
			assert.NotErrorIs(t, err, redislock.ErrNotAcquired)
			assert.Equal(t, 1, r.relay.Requests(r.op("acquire"))-begin, "surfaces at once")
		})
	}
	t.Run("Extend and Release", func(t *testing.T) {
		err := held.Extend(ctx, time.Minute)
		require.ErrorContains(t, err, "READONLY")
		assert.NotErrorIs(t, err, redislock.ErrNotHeld)
		err = held.Release(ctx)
		require.ErrorContains(t, err, "READONLY")
		assert.NotErrorIs(t, err, redislock.ErrNotHeld)
	})
	t.Run("renewal waits it out", func(t *testing.T) {
		awaitWithin(t, r.next(1, r.opOn("tick", "watched")), ttl, "renewal that is refused")
		before := watched.Until()
		r.server.Do(t, "REPLICAOF", "NO", "ONE")
		require.Eventually(t, func() bool { return watched.Until().After(before) }, soon, tick)
		require.NoError(t, watched.Err())
		require.NoError(t, watched.Release(ctx))
		require.NoError(t, held.Release(ctx), "it failed, and can be tried again")
	})
	assert.Empty(t, r.log.about())
}

// A lock that is lost while the server refuses writes says why.
func TestServerThatRefusesRenewalsForTooLongEndsTheLock(t *testing.T) {
	t.Parallel()
	const ttl = 500 * time.Millisecond
	r := newRig(t)
	for state, refusal := range map[string]string{
		"READONLY": "-READONLY You can't write against a read only replica.\r\n",
		"MISCONF":  "-MISCONF Redis is configured to save RDB snapshots, but it's unable to persist to disk.\r\n",
		"NOPERM":   "-NOPERM this user has no permissions to run the 'evalsha' command\r\n",
	} {
		t.Run(state, func(t *testing.T) {
			name := t.Name()
			lock := hold(t, r.locker(t), name, ttl, redislock.WithWatchdog())
			r.relay.Always(r.opOn("tick", name), redistest.ReplyWith(refusal))
			awaitWithin(t, lock.Done(), ttl+soon, "end of the lock")
			require.ErrorIs(t, lock.Err(), redislock.ErrLost)
			require.ErrorContains(t, lock.Err(), state)
		})
	}
}

func TestServerTTLs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, lk := t.Context(), r.locker(t)
	resumable := hold(t, lk, "resume", time.Hour)
	extended := hold(t, lk, "extend", 24*time.Hour)
	set := map[string]func(name string, ttl time.Duration) error{
		"Acquire":    func(name string, ttl time.Duration) error { _, err := lk.Acquire(ctx, name, ttl); return err },
		"TryAcquire": func(name string, ttl time.Duration) error { _, err := lk.TryAcquire(ctx, name, ttl); return err },
		"WithLock": func(name string, ttl time.Duration) error {
			err := errTTLSeen
			return lk.WithLock(ctx, name, ttl, func(context.Context, *redislock.Lock) error { return err })
		},
		"Resume": func(_ string, ttl time.Duration) error {
			_, err := lk.Resume(ctx, "resume", resumable.Token(), ttl)
			return err
		},
		"Extend": func(_ string, ttl time.Duration) error { return extended.Extend(ctx, ttl) },
	}
	for _, ttl := range []time.Duration{math.MinInt64, -1, 0, 1, 999_999, 9 * time.Millisecond, 10*time.Millisecond - 1} {
		for method, call := range set {
			before := r.relay.Requests(redistest.Any())
			err := call("invalid", ttl)
			require.ErrorIs(t, err, redislock.ErrInvalidTTL, "%s(%d)", method, ttl)
			assert.Equal(t, before, r.relay.Requests(redistest.Any()), "%s(%d): traffic", method, ttl)
		}
	}
	assert.False(t, r.exists(keyOf("invalid")))
	assert.Greater(t, r.direct.PTTL(ctx, keyOf("extend")).Val(), 23*time.Hour)
	assert.Greater(t, r.direct.PTTL(ctx, keyOf("resume")).Val(), 59*time.Minute)

	// What the server is asked for, since a lease of 10 ms may be over before
	// it can be looked at.
	const century = 100 * 365 * 24 * time.Hour
	for ttl, want := range map[time.Duration]int64{
		time.Second:                    1000,
		time.Second + 1:                1001,
		10500 * time.Microsecond * 100: 1050,
		24 * time.Hour:                 86_400_000,
		century:                        century.Milliseconds(),
		century + time.Nanosecond:      century.Milliseconds(),
		math.MaxInt64:                  century.Milliseconds(),
		math.MaxInt64 - time.Hour:      century.Milliseconds(),
	} {
		for _, method := range []string{"TryAcquire", "Acquire", "Resume", "Extend"} {
			name := fmt.Sprint(method, int64(ttl))
			key := map[string]string{"Resume": keyOf("resume"), "Extend": keyOf("extend")}[method]
			if key == "" {
				key = keyOf(name)
			}
			before := r.direct.Time(ctx).Val() // the server's
			require.NoError(t, set[method](name, ttl), name)
			ends := r.direct.PExpireTime(ctx, key).Val().Milliseconds()
			assert.GreaterOrEqual(t, ends, before.UnixMilli()+want, "%s: the lease is shorter than asked for", name)
			left := r.direct.PTTL(ctx, key).Val()
			assert.Greater(t, left, time.Duration(0), name)
			assert.LessOrEqual(t, left.Milliseconds(), want, name)
			assert.Greater(t, left.Milliseconds(), want-900, name)
			if fence := fenceOf(name); r.exists(fence) {
				// Redis 7.0 reads the clock anew for each command of a script.
				lease, record := r.direct.PExpireTime(ctx, key).Val(), r.direct.PExpireTime(ctx, fence).Val()
				assert.Less(t, lease-record, 20*time.Millisecond, "%s: the fence's record lives as long as the lease", name)
			}
		}
	}
	for _, ttl := range []time.Duration{10 * time.Millisecond, 10500 * time.Microsecond} {
		granted := func() bool { // a slow machine may be too late for it
			name := fmt.Sprint("short", ttl)
			lock, err := lk.TryAcquire(ctx, name, ttl)
			left := r.direct.PTTL(ctx, keyOf(name)).Val()
			assert.NotEqual(t, time.Duration(-1), left, "a key without an end")
			assert.LessOrEqual(t, left, 11*time.Millisecond)
			return err == nil && lock.Err() == nil && left > 0
		}
		require.Eventually(t, granted, soon, 12*time.Millisecond)
	}
}

var errTTLSeen = fmt.Errorf("fn ran")
