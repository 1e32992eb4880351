package servertest_test

import (
	"context"
	"testing"
	"time"

	"github.com/e2e3f2a3/redislock"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A release within the minimal hold leaves the name taken, and those that wait,
// in the same process or others, are served when it is over and not when the
// lease would have ended.
func TestServerMinimalHold(t *testing.T) {
	t.Parallel()
	const least = 3 * time.Second
	everywhere(t, func(t *testing.T, locker func(...redislock.Option) *redislock.Locker, log *journal) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		here, there := locker(), locker()

		asked := time.Now()
		lock, err := here.Acquire(ctx, "a", 10*time.Minute, redislock.WithMinHold(least), redislock.WithMetadata("me"), redislock.WithWatchdog())
		require.NoError(t, err)
		granted := time.Now() // late by what replicas take to acknowledge it
		type entry struct {
			at    time.Time
			fence int64
		}
		entries := make(chan entry, 2)
		for _, lk := range []*redislock.Locker{here, there} {
			go func() {
				assert.NoError(t, lk.WithLock(ctx, "a", time.Minute, func(_ context.Context, lock *redislock.Lock) error {
					entries <- entry{time.Now(), lock.Fence()}
					return nil
				}))
			}()
		}
		time.Sleep(least / 3) // work
		require.NoError(t, lock.Release(ctx))
		require.ErrorIs(t, lock.Err(), redislock.ErrReleased)
		require.ErrorIs(t, lock.Release(ctx), redislock.ErrReleased)
		info, err := there.Inspect(ctx, "a")
		require.NoError(t, err)
		if time.Since(granted) < least/2 { // the machine was not too busy
			require.True(t, info.Held)
			require.Equal(t, "me", info.Metadata)
			require.Empty(t, info.Token)
			require.LessOrEqual(t, info.TTL, least)
		}
		for range 2 {
			got := <-entries
			require.Greater(t, got.fence, lock.Fence())
			require.GreaterOrEqual(t, got.at.Sub(asked), least-tick, "not before") // the clocks of server and test
			require.Less(t, got.at.Sub(granted), least+soon, "and not at the end of the lease")
		}

		over, err := here.Acquire(ctx, "b", time.Minute, redislock.WithMinHold(time.Millisecond))
		require.NoError(t, err)
		time.Sleep(10 * time.Millisecond)
		require.NoError(t, over.Release(ctx))
		next, err := there.TryAcquire(ctx, "b", time.Minute)
		require.NoError(t, err)
		require.NoError(t, next.Release(ctx))
		require.Empty(t, log.about(""))
	})
}

// A name can be kept while Redis is out of memory, as a lock can be released.
func TestServerMinimalHoldWhileOutOfMemory(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, lk := t.Context(), r.locker(t)
	lock := hold(t, lk, "a", time.Minute, redislock.WithMinHold(time.Hour), redislock.WithMetadata("me"))
	require.NoError(t, r.direct.ConfigSet(ctx, "maxmemory", "1").Err())
	require.NoError(t, lock.Release(ctx))
	require.Equal(t, "kept:"+lock.Token()+" me", r.value(t, "a"))
	left, err := r.direct.PTTL(ctx, keyOf("a")).Result()
	require.NoError(t, err)
	require.InDelta(t, time.Hour, left, float64(time.Minute))
}

// The process is gone, and its replies were lost: nobody has to see to it.
func TestServerMinimalHoldWhoseHolderIsGone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	client := r.relay.Client(t, impatient)
	lock := hold(t, r.lockerWith(client), "a", 10*time.Minute, redislock.WithMinHold(2*time.Second))
	granted := time.Now()
	require.NoError(t, lock.Release(t.Context()))
	require.NoError(t, client.Close())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	next, err := redislock.New(r.server.Client(t, func(*redis.Options) {})).Acquire(ctx, "a", time.Minute)
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(granted), 1900*time.Millisecond)
	require.Greater(t, next.Fence(), lock.Fence())
}

// A lock that too few replicas have is freed, and not kept.
func TestServerMinimalHoldOfALockThatIsNotReplicated(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lk := r.acknowledged(t, 1, 100*time.Millisecond)
	_, err := lk.TryAcquire(t.Context(), "a", time.Minute, redislock.WithMinHold(time.Hour))
	r.notReplicated(t, "a", err, "0 of 1 replicas")
}
