package servertest_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/e2e3f2a3/redislock"
	"github.com/e2e3f2a3/redislock/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// followed is a rig whose server has replicas.
type followed struct {
	*rig
	replicas []*redistest.Server
}

func newFollowed(t *testing.T, replicas int) *followed {
	t.Helper()
	primary, others := redistest.StartReplicated(t, replicas)
	return &followed{newRigOn(t, primary), others}
}

// acknowledged is a Locker that wants n replicas to have a lock.
func (r *rig) acknowledged(t testing.TB, n int, timeout time.Duration, opts ...func(*redis.Options)) *redislock.Locker {
	return r.lockerWith(r.relay.Client(t, opts...), redislock.WithReplicas(n, timeout), redislock.WithPollInterval(time.Hour))
}

// notReplicated checks that an acquisition failed for want of replicas, and has
// left nothing.
func (r *rig) notReplicated(t testing.TB, name string, err error, text string) {
	t.Helper()
	value := r.value(t, name)
	require.ErrorIs(t, err, redislock.ErrNotReplicated)
	require.NotErrorIs(t, err, redislock.ErrNotAcquired)
	require.ErrorContains(t, err, text)
	assert.Empty(t, value, "the key is there when the call returns")
}

func TestServerReplicasThatAreMissing(t *testing.T) {
	t.Parallel()
	const timeout = 100 * time.Millisecond
	open := t
	for why, how := range map[string]struct {
		opts []redistest.Option
		rule string
		text string
		wait time.Duration
	}{
		"none attached":   {nil, "", "0 of 1 replicas", timeout},
		"WAIT is unknown": {[]redistest.Option{redistest.WithConfig("rename-command", "WAIT", "")}, "", "unknown command 'wait'", 0},
		"WAIT is refused": {nil, "-NOPERM this user has no permissions to run the 'wait' command\r\n", "NOPERM this user has no", 0},
	} {
		t.Run(why, func(t *testing.T) {
			r := newRig(t, how.opts...)
			if how.rule != "" {
				r.relay.Always(redistest.Command("wait"), redistest.ReplyWith(how.rule))
			}
			lk := r.acknowledged(open, 1, timeout)
			for op, acquire := range map[string]func(name string) error{
				"TryAcquire": func(name string) error { _, err := lk.TryAcquire(t.Context(), name, time.Minute); return err },
				"Acquire":    func(name string) error { _, err := lk.Acquire(t.Context(), name, time.Minute); return err },
				"for ever":   func(name string) error { _, err := lk.Acquire(context.Background(), name, time.Minute); return err },
				"WithLock": func(name string) error {
					return lk.WithLock(t.Context(), name, time.Minute, func(context.Context, *redislock.Lock) error {
						assert.Fail(t, "fn is called")
						return nil
					})
				},
			} {
				took := timed(func() { r.notReplicated(t, op, acquire(op), how.text) })
				assert.GreaterOrEqual(t, took, how.wait, op)
				assert.LessOrEqual(t, took, how.wait+wakeUp, op)
			}
			holder := hold(t, r.locker(t), "taken", time.Minute)
			_, err := lk.TryAcquire(t.Context(), "taken", time.Minute)
			require.ErrorIs(t, err, redislock.ErrNotAcquired)
			require.NotErrorIs(t, err, redislock.ErrNotReplicated)
			require.NoError(t, holder.Release(t.Context()))
			r.settled(t)
		})
	}
}

func TestServerReplicasHaveTheLock(t *testing.T) {
	t.Parallel()
	r := newFollowed(t, 1)
	ctx, replica := t.Context(), r.replicas[0].Client(t)
	lk, other := r.acknowledged(t, 1, soon), r.acknowledged(t, 1, soon)
	onReplica := func(lock *redislock.Lock) {
		t.Helper()
		assert.Equal(t, lock.Token(), replica.Get(ctx, lock.Key()).Val())
		fence, err := replica.Get(ctx, fenceOf(lock.Name())).Int64()
		require.NoError(t, err)
		assert.Equal(t, lock.Fence(), fence)
	}
	wait, scripts := redistest.Command("wait"), redistest.Command("evalsha", "eval")

	t.Run("when the call returns", func(t *testing.T) {
		r.relay.ForgetRequests()
		const rounds = 50
		for i := range rounds {
			lock := hold(t, lk, fmt.Sprint("round", i), time.Minute)
			onReplica(lock)
			require.NoError(t, lock.Release(ctx))
		}
		assert.Equal(t, rounds, r.relay.Requests(wait))
		assert.Equal(t, 2*rounds, r.relay.Requests(scripts))
		assert.Zero(t, r.relay.Requests(redistest.Command("multi", "exec", "get", "role", "info")))
	})
	t.Run("after one round trip", func(t *testing.T) {
		const delay = 60 * time.Millisecond
		require.NoError(t, hold(t, lk, "warm", time.Minute).Release(ctx))
		r.relay.Delay(delay)
		defer r.relay.Delay(0)
		var lock *redislock.Lock
		took := timed(func() { lock = hold(t, lk, "delayed", time.Minute) })
		assert.Less(t, took, 2*delay)
		require.NoError(t, lock.Release(ctx))
	})
	for kind, to := range map[string]*redislock.Locker{"another process": other, "its own process": lk} {
		t.Run("after a hand-over to "+kind, func(t *testing.T) {
			holder := hold(t, lk, kind, time.Minute)
			var get func(testing.TB) (*redislock.Lock, error)
			if to == lk {
				asked := r.next(1, r.opOn("acquire", kind))
				get = r.inLine(ctx, t, to, kind, time.Minute)
				r.await(t, asked, "question, for want of anything better to do")
			} else {
				get = r.waiting(ctx, t, to, kind, time.Minute)
			}
			r.relay.ForgetRequests()
			released := time.Now()
			require.NoError(t, holder.Release(ctx))
			lock, err := get(t)
			require.NoError(t, err)
			assert.LessOrEqual(t, time.Since(released), wakeUp)
			assert.Positive(t, r.relay.Requests(wait))
			assert.LessOrEqual(t, r.relay.Requests(wait), 2)
			onReplica(lock)
			assert.Greater(t, lock.Fence(), holder.Fence())
			require.NoError(t, lock.Release(ctx))
		})
	}
	t.Run("when scripts are forgotten", func(t *testing.T) {
		for range 5 {
			require.NoError(t, r.direct.ScriptFlush(ctx).Err())
			lock := hold(t, lk, "flushed", time.Minute)
			onReplica(lock)
			require.NoError(t, r.direct.ScriptFlush(ctx).Err())
			require.NoError(t, lock.Extend(ctx, time.Minute))
			require.NoError(t, lock.Release(ctx))
		}
	})
	t.Run("or the reply is lost", func(t *testing.T) {
		lk := r.acknowledged(t, 1, soon, impatient)
		for loss, action := range lossy {
			for what, match := range map[string]redistest.Match{"script": scripts, "WAIT": wait} {
				name := loss + " " + what
				rule := r.relay.Once(match, action)
				lock, err := lk.TryAcquire(ctx, name, time.Minute)
				require.NoError(t, err, name)
				assert.Equal(t, 1, rule.Count(), name)
				onReplica(lock)
				require.NoError(t, lock.Release(ctx), name)
			}
		}
	})
	t.Run("of many goroutines", func(t *testing.T) {
		limited, cancel := context.WithCancel(ctx)
		defer cancel()
		c := &crowd{enough: 200, cancel: cancel}
		for _, lk := range []*redislock.Locker{lk, other} {
			for range 8 {
				c.wg.Go(func() { c.work(t, limited, limited, lk, time.Minute, new(int)) })
			}
		}
		c.wg.Wait()
	})
	r.settled(t)
	assert.Empty(t, r.log.about())
}

func TestServerSomeReplicasAreSilent(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	const timeout = 300 * time.Millisecond
	r := newFollowed(t, 2)
	ctx := t.Context()
	one, two := r.acknowledged(t, 1, timeout), r.acknowledged(t, 2, timeout)
	r.acknowledges(t, two)
	r.replicas[0].Pause()
	t.Run("one is enough", func(t *testing.T) {
		took := timed(func() { require.NoError(t, hold(t, one, "a", time.Minute).Release(ctx)) })
		assert.Less(t, took, timeout)
	})
	t.Run("one is not enough", func(t *testing.T) {
		_, err := two.TryAcquire(ctx, "a", time.Minute)
		r.notReplicated(t, "a", err, "1 of 2 replicas have acknowledged it within 300ms")
	})
	r.replicas[1].Pause()
	t.Run("a waiter fails, and the next one has its turn", func(t *testing.T) {
		plain := r.asleep(t)
		holder := hold(t, plain, "b", time.Minute)
		waits := []func(testing.TB) (*redislock.Lock, error){
			r.waiting(ctx, t, one, "b", time.Minute),
			r.inLine(ctx, t, one, "b", time.Minute),
			r.waiting(ctx, t, two, "b", time.Minute),
		}
		last := r.inLine(ctx, t, plain, "b", time.Minute)
		released := time.Now()
		require.NoError(t, holder.Release(ctx))
		lock, err := last(t)
		require.NoError(t, err)
		assert.LessOrEqual(t, time.Since(released), 3*(timeout+wakeUp))
		require.NoError(t, lock.Release(ctx))
		for i, wait := range waits {
			_, err := wait(t)
			require.ErrorIs(t, err, redislock.ErrNotReplicated, i)
		}
		r.gone(t, "b", soon)
	})
	t.Run("a waiter fails, and the lock is free", func(t *testing.T) {
		for kind, holders := range map[string]*redislock.Locker{"pushed": r.asleep(t), "own": two} {
			var holder *redislock.Lock
			if kind == "own" {
				lock := hold(t, r.asleep(t), kind, time.Minute)
				var err error
				holder, err = two.Resume(ctx, kind, lock.Token(), time.Minute)
				require.NoError(t, err)
			} else {
				holder = hold(t, holders, kind, time.Minute)
			}
			wait := r.inLine(ctx, t, two, kind, time.Minute)
			if kind == "pushed" {
				require.Eventually(t, func() bool { return r.queued(kind) == 1 }, soon, tick)
			}
			require.NoError(t, holder.Release(ctx))
			_, err := wait(t)
			r.notReplicated(t, kind, err, "0 of 2 replicas")
		}
	})
	t.Run("the caller leaves", func(t *testing.T) {
		lk := r.acknowledged(t, 1, soon)
		for ending, end := range endings {
			for op, acquire := range map[string]func(context.Context, string, time.Duration, ...redislock.AcquireOption) (*redislock.Lock, error){
				"TryAcquire": lk.TryAcquire, "Acquire": lk.Acquire,
			} {
				name := ending + " " + op
				ctx, cancel := end(150 * time.Millisecond)
				var err error
				assert.LessOrEqual(t, late(ctx, func() { _, err = acquire(ctx, name, time.Minute) }), jitter, name)
				cancel()
				require.ErrorIs(t, err, ctx.Err(), name)
				require.NotErrorIs(t, err, redislock.ErrNotAcquired, name)
				r.gone(t, name, wakeUp)
			}
		}
	})
	t.Run("until they are back", func(t *testing.T) {
		for _, s := range r.replicas {
			s.Resume()
		}
		r.acknowledges(t, two)
	})
	r.settled(t)
}

// acknowledges waits until the replicas are quick enough for lk.
func (r *rig) acknowledges(t testing.TB, lk *redislock.Locker) {
	t.Helper()
	require.Eventually(t, func() bool {
		lock, err := lk.TryAcquire(t.Context(), "probe", time.Minute)
		return err == nil && lock.Release(t.Context()) == nil
	}, soon, tick)
}

// A request whose reply is late says that too few replicas have the lock, after
// a later one has said that enough have. The lock is held, and must not be
// given back.
func TestServerLateWordOfMissingReplicasIsIgnored(t *testing.T) {
	t.Parallel()
	r := newFollowed(t, 1)
	lk := r.acknowledged(t, 1, 100*time.Millisecond, patience(2*soon))
	r.acknowledges(t, lk)
	late := r.relay.Once(redistest.Command("wait"), redistest.HoldReply)
	r.replicas[0].Pause()
	acquired := started(func() (*redislock.Lock, error) {
		return lk.TryAcquire(t.Context(), "a", time.Second, redislock.WithWatchdog())
	})
	r.await(t, late.Hit(), "reply of WAIT")
	r.replicas[0].Resume()
	lock, err := acquired(t)
	require.NoError(t, err)
	late.Release()
	for range 3 {
		renewed(t, lock, soon)
	}
	assert.Equal(t, lock.Token(), r.value(t, "a"))
	require.NoError(t, lock.Release(t.Context()))
	r.settled(t)
}

// What a replica has acknowledged it has when it takes over: on Sentinel and
// Cluster.
func TestServerAcknowledgedLockOutlivesItsPrimary(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	t.Run("Cluster", func(t *testing.T) {
		c := startShards(t)
		ctx, name := t.Context(), "{a}acknowledged"
		acknowledged := redislock.WithReplicas(1, soon)
		lk, other := c.locker(t, acknowledged), c.locker(t, acknowledged)
		old := c.Primary(t, keyOf(name))

		// Only what is acknowledged is asked here, and it is handed over by
		// push.
		plain := hold(t, c.locker(t), name, time.Minute)
		wait := c.waiting(ctx, t, other, name, time.Minute)
		require.NoError(t, plain.Release(ctx))
		lock, err := wait(t)
		require.NoError(t, err)
		require.NoError(t, lock.Release(ctx))
		c.handedOver(t, name, lk, other)

		for range 3 {
			c.MoveSlot(t, keyOf(name), c.others(t, keyOf(name))[0])
			for _, lk := range []*redislock.Locker{lk, other} {
				lock, err := lk.TryAcquire(ctx, name, time.Minute)
				require.NoError(t, err)
				require.NoError(t, lock.Release(ctx))
			}
		}
		c.MoveSlot(t, keyOf(name), old)

		holder := hold(t, lk, name, 20*time.Second, redislock.WithWatchdog())
		old.Kill()
		c.WaitForPrimary(t, keyOf(name), old, 30*time.Second)
		assert.Equal(t, holder.Token(), eventualValue(t, func() string { return c.value(name) }))
		renewed(t, holder, 2*soon)
		require.NoError(t, holder.Release(ctx))
		few := c.locker(t, redislock.WithReplicas(1, 100*time.Millisecond))
		_, err = few.TryAcquire(ctx, name, time.Minute)
		require.ErrorIs(t, err, redislock.ErrNotReplicated, "its only replica is the primary now")
		assert.Empty(t, c.value(name))
		old.Restart()
		c.WaitReady(t, 30*time.Second)
		c.handedOver(t, name, lk, other)
	})
	t.Run("Sentinel", func(t *testing.T) {
		d := startWatched(t)
		ctx := t.Context()
		lk := d.locker(t, redislock.WithReplicas(2, soon))
		holder := hold(t, lk, "a", 20*time.Second, redislock.WithWatchdog())
		old := d.Primary(t)
		old.Kill()
		primary := d.WaitForPrimary(t, old, 30*time.Second)
		assert.Equal(t, holder.Token(), primary.Do(t, "get", keyOf("a")))
		renewed(t, holder, 2*soon)
		require.NoError(t, holder.Release(ctx))
	})
}

func eventualValue(t testing.TB, value func() string) (got string) {
	t.Helper()
	require.Eventually(t, func() bool { got = value(); return got != "" }, soon, tick)
	return strings.TrimSpace(got)
}

// switched is a client that is led to another server.
type switched struct{ to atomic.Pointer[redis.Client] }

func (s *switched) Process(ctx context.Context, cmd redis.Cmder) error {
	return s.to.Load().Process(ctx, cmd)
}
func (s *switched) Pipeline() redis.Pipeliner { return s.to.Load().Pipeline() }
func (s *switched) Subscribe(ctx context.Context, channels ...string) *redis.PubSub {
	return s.to.Load().Subscribe(ctx, channels...)
}

// A replica that does not have the lock yet does not decide that it is not
// held.
func TestServerReplicaDecidesNothing(t *testing.T) {
	t.Parallel()
	r := newFollowed(t, 1)
	ctx, replica := t.Context(), r.replicas[0]
	var client switched
	client.to.Store(r.server.Client(t))
	lk := r.lockerWith(&client)
	replica.Do(t, "replicaof", "127.0.0.1", "1") // it follows nobody
	lock := hold(t, lk, "a", time.Minute)
	client.to.Store(replica.Client(t, noRetries))
	for op, err := range map[string]error{
		"extend":  lock.Extend(ctx, time.Minute),
		"release": lock.Release(ctx),
		"acquire": func() error { _, err := lk.TryAcquire(ctx, "a", time.Minute); return err }(),
		"resume":  func() error { _, err := lk.Resume(ctx, "a", lock.Token(), time.Minute); return err }(),
	} {
		require.ErrorContains(t, err, "READONLY", op)
		require.NotErrorIs(t, err, redislock.ErrNotHeld, op)
	}
	require.NoError(t, lock.Err(), "the release was refused")
	client.to.Store(r.server.Client(t))
	require.ErrorIs(t, lock.Extend(ctx, time.Minute), redislock.ErrReleased, "it has begun")
	require.NoError(t, lock.Release(ctx))
	r.settled(t)
}
