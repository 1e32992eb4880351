package redislock

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// durationOptions are the options that take a duration which has to be
// positive.
var durationOptions = map[string]func(time.Duration) Option{
	"WithFenceRetention": WithFenceRetention,
	"WithPollInterval":   WithPollInterval,
	"WithReplicas":       func(d time.Duration) Option { return WithReplicas(1, d) },
	"WithNodeTimeout":    WithNodeTimeout,
}

var extremeDurations = map[string]time.Duration{
	"longest":  math.MaxInt64,
	"shortest": 1,
}

// acknowledging has a fake Redis answer WAIT, which miniredis does not know.
func (r *fakeRedis) acknowledging() *fakeRedis {
	r.Server().SetPreHook(func(peer *server.Peer, cmd string, args ...string) bool {
		if cmd == "WAIT" {
			peer.WriteInt(1)
			return true
		}
		return r.hook(peer, cmd, args...)
	})
	return r
}

// onEveryDeployment runs a test on one Redis and on a quorum, with Lockers that
// have these options.
func onEveryDeployment(t *testing.T, test func(t *testing.T, locker func(...Option) *Locker), quorum bool) {
	t.Run("one Redis", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *fakeRedis) { test(t, r.acknowledging().locker) })
	})
	if quorum {
		t.Run("quorum", func(t *testing.T) {
			inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) { test(t, q.locker) })
		})
	}
}

// requireWorking goes through all operations with a Locker: under a ctx that
// cannot end, and under one whose deadline is far away.
func requireWorking(t *testing.T, locker func(...Option) *Locker, ttl time.Duration, opts []Option, acquire ...AcquireOption) {
	t.Helper()
	distant, cancel := context.WithDeadline(context.Background(), time.Now().Add(math.MaxInt64))
	defer cancel()
	for _, ctx := range []context.Context{context.Background(), distant} {
		lk, other := locker(opts...), locker(opts...)
		lock, err := lk.Acquire(ctx, "a", ttl, acquire...)
		require.NoError(t, err)
		require.True(t, lock.Until().After(time.Now()), "%s", lock.Until())
		require.NoError(t, lock.Err())
		left, err := lock.TTL(ctx)
		require.NoError(t, err)
		require.Positive(t, left)
		require.NoError(t, lock.Extend(ctx, ttl))
		require.NoError(t, lock.Err())
		info, err := lk.Inspect(ctx, "a")
		require.NoError(t, err)
		require.True(t, info.Held)
		require.Positive(t, info.TTL)
		_, err = other.TryAcquire(ctx, "a", ttl, acquire...)
		require.ErrorIs(t, err, ErrNotAcquired)

		resumed, err := other.Resume(ctx, "a", lock.Token(), ttl, acquire...)
		require.NoError(t, err)
		require.NoError(t, resumed.Err())
		waited := make(chan error, 1)
		go func() {
			waited <- lk.WithLock(ctx, "a", ttl, func(context.Context, *Lock) error { return nil }, acquire...)
		}()
		time.Sleep(10 * time.Millisecond)
		require.NoError(t, resumed.Release(ctx))
		require.NoError(t, <-waited)
		synctest.Wait()
		_, err = other.TryAcquire(ctx, "a", time.Minute)
		require.NoError(t, err, "nothing is left behind")
		require.ErrorIs(t, lock.Release(ctx), ErrNotHeld)
		time.Sleep(time.Minute + time.Second)
	}
}

func TestExtremeDurationsOfOptions(t *testing.T) {
	for name, option := range durationOptions {
		for size, d := range extremeDurations {
			t.Run(name+"/"+size, func(t *testing.T) {
				onEveryDeployment(t, func(t *testing.T, locker func(...Option) *Locker) {
					requireWorking(t, locker, time.Minute, []Option{option(d)})
				}, name != "WithReplicas")
			})
		}
		for _, d := range []time.Duration{math.MinInt64, -1, 0} {
			require.Panics(t, func() { option(d) }, "%s(%d)", name, d)
		}
	}
}

// All options at their longest, together with the longest lease.
func TestLongestDurationsTogether(t *testing.T) {
	var longest []Option
	for name, option := range durationOptions {
		if name != "WithReplicas" {
			longest = append(longest, option(math.MaxInt64))
		}
	}
	for name, acquire := range map[string][]AcquireOption{
		"no watchdog": {WithoutWatchdog()},
		"watchdog":    {WithWatchdog(), WithMaxHold(math.MaxInt64)},
	} {
		t.Run(name, func(t *testing.T) {
			onEveryDeployment(t, func(t *testing.T, locker func(...Option) *Locker) {
				requireWorking(t, locker, math.MaxInt64, longest, acquire...)
			}, true)
		})
	}
	t.Run("replicas", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *fakeRedis) {
			longest := append(longest, WithReplicas(1, math.MaxInt64))
			requireWorking(t, r.acknowledging().locker, math.MaxInt64, longest)
		})
	})
}

func TestExtremeTTLs(t *testing.T) {
	onEveryDeployment(t, func(t *testing.T, locker func(...Option) *Locker) {
		lk := locker()
		lock, err := lk.TryAcquire(t.Context(), "held", time.Minute)
		require.NoError(t, err)
		for _, ttl := range []time.Duration{math.MinInt64, -1, 0, 1} {
			for name, acquire := range acquirers {
				_, err := acquire(lk, t.Context(), "a", ttl)
				require.ErrorIs(t, err, ErrInvalidTTL, "%s(%d)", name, ttl)
			}
			_, err = lk.Resume(t.Context(), "held", lock.Token(), ttl)
			require.ErrorIs(t, err, ErrInvalidTTL)
			require.ErrorIs(t, lock.Extend(t.Context(), ttl), ErrInvalidTTL)
		}
		requireWorking(t, locker, math.MaxInt64, nil)
		requireWorking(t, locker, math.MaxInt64, nil, WithWatchdog())
	}, true)
}

func TestExtremeMaxHolds(t *testing.T) {
	onEveryDeployment(t, func(t *testing.T, locker func(...Option) *Locker) {
		requireWorking(t, locker, time.Minute, nil, WithWatchdog(), WithMaxHold(math.MaxInt64))
		lock, err := locker().TryAcquire(t.Context(), "long", time.Minute, WithWatchdog(), WithMaxHold(math.MaxInt64))
		require.NoError(t, err)
		time.Sleep(time.Hour)
		require.NoError(t, lock.Err(), "it is renewed")
		require.NoError(t, lock.Release(t.Context()))
		lock, err = locker().TryAcquire(t.Context(), "short", time.Minute, WithWatchdog(), WithMaxHold(1))
		require.NoError(t, err)
		requireLost(t, lock, time.Minute)
	}, true)
}

// A context may have any deadline, and a foreign implementation an odd one.
func TestExtremeDeadlines(t *testing.T) {
	onEveryDeployment(t, func(t *testing.T, locker func(...Option) *Locker) {
		for _, deadline := range []time.Time{{}, time.Unix(math.MinInt64, 0), time.Unix(1<<40, 0), time.Unix(1<<60, 0)} {
			ctx := oddDeadline{t.Context(), deadline}
			lock, err := locker().TryAcquire(ctx, "a", time.Minute)
			require.NoError(t, err, "%s", deadline)
			require.NoError(t, lock.Extend(ctx, time.Minute), "%s", deadline)
			require.NoError(t, lock.Release(ctx), "%s", deadline)
			synctest.Wait()
		}
	}, true)
}

// oddDeadline is a context whose deadline has nothing to do with its end.
type oddDeadline struct {
	context.Context
	deadline time.Time
}

func (c oddDeadline) Deadline() (time.Time, bool) { return c.deadline, true }

// A poll interval of a nanosecond does not make a waiter ask without a pause.
func TestShortestPollIntervalIsBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		r.acquire("a", time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := r.locker(WithPollInterval(1)).Acquire(ctx, "a", time.Minute)
		require.ErrorIs(t, err, ErrNotAcquired)
		require.LessOrEqual(t, r.requests(opAcquire), 130, "at most one in 8.75 ms")
	})
}

func TestNoErrorSpeaksOfANegativeTime(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		r.net.stall()
		client := r.connect(func(o *redis.Options) { o.ReadTimeout = time.Second })
		_, err := r.lockerOn(client, WithReplicas(1, math.MaxInt64)).TryAcquire(t.Context(), "a", time.Minute)
		require.Error(t, err)
		require.NotContains(t, err.Error(), "within -")
		r.net.flow()
		time.Sleep(undoBound + time.Second) // what is left is undone
	})
}
