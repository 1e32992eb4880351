package servertest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/e2e3f2a3/redislock"
	"github.com/e2e3f2a3/redislock/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What one holder sends is held up, and it does not wait for the answer. Its
// handle must not be trusted beside the next holder's.
func TestServerReleaseThatIsExecutedLateEndsTheHandle(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	hasty := func(o *redis.Options) {
		o.ReadTimeout, o.WriteTimeout, o.MaxRetries = 200*time.Millisecond, 200*time.Millisecond, -1
	}
	for kind, watchdog := range map[string]redislock.AcquireOption{"watchdog": redislock.WithWatchdog(), "none": redislock.WithoutWatchdog()} {
		t.Run(kind, func(t *testing.T) {
			name, ctx := t.Name(), t.Context()
			a := hold(t, r.locker(t, hasty), name, 30*time.Second, watchdog)
			held, cancel := a.Context(ctx)
			defer cancel()
			delayed := r.relay.Times(3, r.opOn("release", name), redistest.Hold)
			err := a.Release(ctx)
			require.Error(t, err)
			assert.NotErrorIs(t, err, redislock.ErrNotHeld)
			assert.Equal(t, a.Token(), r.value(t, name), "it is not executed yet")
			require.ErrorIs(t, a.Err(), redislock.ErrReleased)
			r.await(t, a.Done(), "end of the handle")
			r.await(t, held.Done(), "end of its context")
			assert.ErrorIs(t, context.Cause(held), redislock.ErrReleased)
			require.ErrorIs(t, a.Extend(ctx, 30*time.Second), redislock.ErrReleased)

			assert.Zero(t, r.relay.Requests(r.opOn("extend", name)), "Extend has sent something")
			assert.Zero(t, r.relay.Requests(r.opOn("tick", name)), "no renewal leaves after Release has begun")

			delayed.Release()
			b, err := r.lockerWith(r.server.Client(t)).Acquire(ctx, name, time.Minute)
			require.NoError(t, err)
			require.ErrorIs(t, a.Err(), redislock.ErrReleased)
			require.ErrorIs(t, a.Extend(ctx, 30*time.Second), redislock.ErrReleased)
			assert.Equal(t, 3, delayed.Count())
			require.NoError(t, a.Release(ctx), "an earlier try has done the work")
			require.ErrorIs(t, a.Release(ctx), redislock.ErrReleased)
			assert.Equal(t, b.Token(), r.value(t, name))
			require.NoError(t, b.Release(ctx))
		})
	}
}

// Under a ctx that never ends WithLock waits for its release for a limited
// time, and the release goes on.
func TestServerWithLockReturnsFromASilentRedisUnderAnEndlessContext(t *testing.T) {
	t.Parallel()
	for kind, c := range map[string]struct {
		ttl, most time.Duration
		lose      bool
	}{
		"long lease":  {time.Minute, 5 * time.Second, false},
		"short lease": {2 * time.Second, 2 * time.Second, false},
		"lost":        {time.Second, 750 * time.Millisecond, true},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			var left time.Time
			err := r.locker(t).WithLock(context.Background(), "a", c.ttl, func(ctx context.Context, _ *redislock.Lock) error {
				r.relay.BlackHole(true)
				if c.lose {
					r.await(t, ctx.Done(), "loss of the lock")
				}
				left = time.Now()
				return nil
			})
			assert.LessOrEqual(t, time.Since(left), c.most+500*time.Millisecond)
			require.Error(t, err)
			assert.Equal(t, c.lose, errors.Is(err, redislock.ErrLost))
			r.relay.BlackHole(false)
			r.gone(t, "a", soon)
			r.quiet(t, undoBound)
		})
	}
}
