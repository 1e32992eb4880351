package servertest_test

import (
	"context"
	"testing"
	"time"

	"github.com/e2e3f2a3/redislock"
	"github.com/e2e3f2a3/redislock/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// lossy are the ways to lose one request or its reply.
var lossy = map[string]redistest.Action{
	"reply swallowed":   redistest.SwallowReply,
	"reply dropped":     redistest.DropReply,
	"request swallowed": redistest.SwallowRequest,
	"request dropped":   redistest.DropRequest,
}

var retries = map[string]func(*redis.Options){
	"client with retries":    defaultOptions,
	"client without retries": noRetries,
}

// acquirers are the ways to acquire a lock. Each runs use while it holds it,
// and releases it.
var acquirers = map[string]func(ctx context.Context, lk *redislock.Locker, name string, use func(*redislock.Lock)) error{
	"Acquire": func(ctx context.Context, lk *redislock.Locker, name string, use func(*redislock.Lock)) error {
		lock, err := lk.Acquire(ctx, name, time.Minute)
		if err != nil {
			return err
		}
		use(lock)
		return lock.Release(ctx)
	},
	"TryAcquire": func(ctx context.Context, lk *redislock.Locker, name string, use func(*redislock.Lock)) error {
		lock, err := lk.TryAcquire(ctx, name, time.Minute)
		if err != nil {
			return err
		}
		use(lock)
		return lock.Release(ctx)
	},
	"WithLock": func(ctx context.Context, lk *redislock.Locker, name string, use func(*redislock.Lock)) error {
		return lk.WithLock(ctx, name, time.Minute, func(_ context.Context, lock *redislock.Lock) error {
			use(lock)
			return nil
		})
	},
}

func TestServerAcquireWhoseReplyIsLostYieldsAUsableLock(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for loss, action := range lossy {
		for client, options := range retries {
			for method, acquire := range acquirers {
				t.Run(loss+"/"+client+"/"+method, func(t *testing.T) {
					name := t.Name()
					lk := r.locker(t, impatient, options)
					r.relay.Once(r.opOn("acquire", name), action)
					used := false
					ctx, cancel := context.WithTimeout(t.Context(), soon)
					defer cancel()
					err := acquire(ctx, lk, name, func(lock *redislock.Lock) {
						used = true
						assert.Equal(t, lock.Token(), r.value(t, name))
						assert.Equal(t, lock.Fence(), r.fence(t, name), "two fences were minted")
						assert.NoError(t, lock.Extend(t.Context(), time.Minute))
						assert.NoError(t, lock.Err())
					})
					require.NoError(t, err)
					assert.True(t, used)
					assert.Equal(t, 2, r.relay.Requests(r.opOn("acquire", name)), "one lost and one repeated")
					assert.Empty(t, r.value(t, name))
				})
			}
		}
	}
	r.quiet(t, soon)
	assert.Empty(t, r.log.about())
}

func TestServerAcquireThatGetsNoReplyLeavesNoLock(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for loss, action := range map[string]redistest.Action{
		"replies swallowed": redistest.SwallowReply,
		"replies dropped":   redistest.DropReply,
	} {
		for client, options := range retries {
			for method, acquire := range acquirers {
				t.Run(loss+"/"+client+"/"+method, func(t *testing.T) {
					name := t.Name()
					lk := r.locker(t, patience(80*time.Millisecond), options)
					executed := r.relay.Always(r.opOn("acquire", name), action)
					err := acquire(t.Context(), lk, name, func(*redislock.Lock) { t.Error("used without a lock") })
					r.gone(t, name, soon)
					require.Error(t, err)
					assert.NotErrorIs(t, err, redislock.ErrNotAcquired)
					var e *redislock.Error
					require.ErrorAs(t, err, &e)
					assert.Equal(t, "acquire", e.Op)
					assert.Equal(t, keyOf(name), e.Key)
					assert.Positive(t, executed.Count())
				})
			}
		}
	}
	r.quiet(t, undoBound)
	r.nothingHeld(t)
}

func TestServerRetriedAcquireLeavesAnotherHoldersLeaseAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	// The other takes the key while the reply is missed.
	taken := func(t *testing.T, lease time.Duration, acquire func(lk *redislock.Locker, name string) (*redislock.Lock, error)) (*redislock.Lock, error) {
		name, lk := t.Name(), r.locker(t, impatient)
		lost := r.relay.Once(r.opOn("acquire", name), redistest.SwallowReply)
		return during(t, lost.Hit(), func() (*redislock.Lock, error) { return acquire(lk, name) }, func() {
			require.NoError(t, r.direct.Set(t.Context(), keyOf(name), "other", lease).Err())
		})
	}
	t.Run("TryAcquire", func(t *testing.T) {
		name := t.Name()
		_, err := taken(t, time.Minute, func(lk *redislock.Locker, name string) (*redislock.Lock, error) {
			return lk.TryAcquire(t.Context(), name, time.Hour)
		})
		require.ErrorIs(t, err, redislock.ErrNotAcquired)
		r.quiet(t, undoBound) // the lost request has been undone, or what is left of it
		assert.Equal(t, "other", r.value(t, name))
		left := r.direct.PTTL(t.Context(), keyOf(name)).Val()
		assert.Greater(t, left, time.Duration(0))
		assert.LessOrEqual(t, left, time.Minute)
	})
	t.Run("Acquire", func(t *testing.T) {
		name := t.Name()
		lock, err := taken(t, 700*time.Millisecond, func(lk *redislock.Locker, name string) (*redislock.Lock, error) {
			return lk.Acquire(t.Context(), name, time.Minute)
		})
		require.NoError(t, err)
		assert.Equal(t, lock.Token(), r.value(t, name))
		assert.Equal(t, lock.Fence(), r.fence(t, name))
		require.NoError(t, lock.Release(t.Context()))
	})
}

func TestServerRetriedAcquireMintsNoSecondFence(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lk := r.locker(t, impatient)
	lost := r.relay.Times(2, r.opOn("acquire", "a"), redistest.DropReply)
	var minted int64
	lock, err := during(t, lost.Hit(), func() (*redislock.Lock, error) {
		return lk.TryAcquire(t.Context(), "a", time.Minute)
	}, func() { minted = r.fence(t, "a") })
	require.NoError(t, err)
	assert.Equal(t, 2, lost.Count())
	assert.Equal(t, minted, lock.Fence())
	assert.Equal(t, lock.Fence(), r.fence(t, "a"))
	require.NoError(t, lock.Release(t.Context()))
	next := hold(t, lk, "a", time.Minute)
	assert.Greater(t, next.Fence(), lock.Fence())
	require.NoError(t, next.Release(t.Context()))
}

func TestServerReleaseWhoseReplyIsLostIsNoError(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for loss, action := range lossy {
		for client, options := range retries {
			t.Run(loss+"/"+client+"/Release", func(t *testing.T) {
				name := t.Name()
				lock := hold(t, r.locker(t, impatient, options), name, time.Minute)
				lost := r.relay.Once(r.opOn("release", name), action)
				require.NoError(t, lock.Release(t.Context()))
				assert.Equal(t, 1, lost.Count())
				assert.Empty(t, r.value(t, name))
				require.ErrorIs(t, lock.Release(t.Context()), redislock.ErrReleased)
				require.ErrorIs(t, lock.Err(), redislock.ErrReleased)
			})
			t.Run(loss+"/"+client+"/WithLock", func(t *testing.T) {
				name := t.Name()
				lost := r.relay.Once(r.opOn("release", name), action)
				lk := r.locker(t, impatient, options)
				require.NoError(t, lk.WithLock(t.Context(), name, time.Minute, func(context.Context, *redislock.Lock) error { return nil }))
				assert.Equal(t, 1, lost.Count())
				assert.Empty(t, r.value(t, name))
			})
		}
	}
	assert.Empty(t, r.log.about(), "nothing went wrong that a person should look into")
}

// The reply is lost, and the client notices only when the lease is over. The
// release was executed all the same, and while the lock was held.
func TestServerReleaseRetriedAfterTheLeaseIsNoError(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for loss, action := range map[string]redistest.Action{
		"reply swallowed":   redistest.SwallowReply,
		"request swallowed": redistest.SwallowRequest,
	} {
		t.Run(loss+"/Release", func(t *testing.T) {
			name := t.Name()
			lock := hold(t, r.locker(t, patience(400*time.Millisecond)), name, 200*time.Millisecond)
			r.relay.Once(r.opOn("release", name), action)
			require.NoError(t, lock.Release(t.Context()))
			assert.True(t, time.Now().After(lock.Until()), "the lease was to be over")
			assert.Empty(t, r.value(t, name))
			require.ErrorIs(t, lock.Release(t.Context()), redislock.ErrReleased)
		})
		t.Run(loss+"/WithLock", func(t *testing.T) {
			name := t.Name()
			r.relay.Once(r.opOn("release", name), action)
			lk := r.locker(t, patience(400*time.Millisecond))
			require.NoError(t, lk.WithLock(t.Context(), name, 200*time.Millisecond, func(context.Context, *redislock.Lock) error { return nil }))
			assert.Empty(t, r.value(t, name))
		})
	}
}

// A lost reply excuses only a release that was sent while the lease was valid.
func TestServerReleaseSentAfterTheLeaseFindsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lock := hold(t, r.locker(t, impatient), "a", 50*time.Millisecond)
	r.await(t, lock.Done(), "end of the lease")
	r.gone(t, "a", soon)
	r.relay.Once(r.opOn("release", "a"), redistest.DropReply)
	require.ErrorIs(t, lock.Release(t.Context()), redislock.ErrNotHeld)
}

func TestServerReleaseThatFailedCanBeTriedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, watchdog := range []redislock.AcquireOption{redislock.WithoutWatchdog(), redislock.WithWatchdog()} {
		lock := hold(t, r.locker(t, impatient), "a", time.Minute, watchdog)
		r.disconnect()
		err := lock.Release(t.Context())
		require.Error(t, err)
		assert.NotErrorIs(t, err, redislock.ErrNotHeld)
		assert.NotErrorIs(t, err, redislock.ErrReleased)
		assert.NoError(t, lock.Err())
		assert.Equal(t, lock.Token(), r.value(t, "a"))
		r.reconnect()
		require.NoError(t, lock.Release(t.Context()))
		assert.Empty(t, r.value(t, "a"))
		require.ErrorIs(t, lock.Release(t.Context()), redislock.ErrReleased)
	}
	r.quiet(t, soon)
}

func TestServerExtendWhoseReplyIsLostExtends(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for loss, action := range lossy {
		t.Run(loss, func(t *testing.T) {
			name := t.Name()
			lock := hold(t, r.locker(t, impatient), name, 5*time.Second)
			r.relay.Once(r.opOn("extend", name), action)
			require.NoError(t, lock.Extend(t.Context(), time.Minute))
			assert.Greater(t, r.direct.PTTL(t.Context(), keyOf(name)).Val(), 50*time.Second)
			require.NoError(t, lock.Release(t.Context()))
		})
	}
}
