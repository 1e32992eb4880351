package servertest_test

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/e2e3f2a3/redislock"
	"github.com/e2e3f2a3/redislock/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// frozen are waiters for the lock "a" that stand still, while the server sees
// their connections and subscriptions.
type frozen struct {
	freeze, thaw func()
	served       func() // returns when one of them has the lock, and has released it
}

// stoppedWaiters are in a process that is stopped.
func stoppedWaiters(t *testing.T, r *rig, n int, ttl time.Duration) frozen {
	c := r.spawn(t, n, ttl)
	return frozen{
		freeze: func() { c.stop(t) },
		thaw:   func() { c.signal(t, syscall.SIGCONT) },
		served: func() {
			line := c.line(t, 4*soon)
			for line == "released <nil>" { // of the one before, to the next of the same process
				line = c.line(t, 4*soon)
			}
			assert.Contains(t, line, "held")
			_, err := fmt.Fprintln(c.in)
			require.NoError(t, err)
		},
	}
}

// vanishedWaiters are on a machine from which nothing comes any more, and to
// which nothing goes.
func vanishedWaiters(t *testing.T, r *rig, n int, ttl time.Duration) frozen {
	relay := redistest.NewRelay(t, r.server.Addr())
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	served := make(chan error, n)
	var waiters sync.WaitGroup
	t.Cleanup(waiters.Wait)
	t.Cleanup(cancel)
	before := r.queued("a")
	for range n {
		// Its time-outs are long, as is what a machine does not notice.
		lk := redislock.New(relay.Client(t, patience(time.Minute)), redislock.WithPollInterval(time.Hour))
		waiters.Go(func() {
			lock, err := lk.Acquire(ctx, "a", ttl)
			if err == nil {
				err = lock.Release(context.Background())
			}
			served <- err
		})
	}
	require.Eventually(t, func() bool { return r.queued("a") == before+int64(n) }, soon, tick)
	return frozen{
		freeze: func() { relay.BlackHole(true) },
		thaw:   func() { relay.BlackHole(false) },
		served: func() { require.NoError(t, <-served) },
	}
}

// However many of those before them in the queue stand still, the others wait
// for one lease, whatever the poll interval. Those that go on come back to
// their places.
func TestServerFrozenWaitersCostOneLeaseTogether(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	for kind, waiters := range map[string]func(*testing.T, *rig, int, time.Duration) frozen{
		"stopped": stoppedWaiters, "vanished": vanishedWaiters,
	} {
		for _, n := range []int{4, 10} {
			for _, interval := range []time.Duration{100 * time.Millisecond, time.Hour} {
				t.Run(fmt.Sprintf("%d %s, poll interval %s", n, kind, interval), func(t *testing.T) {
					t.Parallel()
					r := newRig(t)
					ctx := t.Context()
					locker := func() *redislock.Locker {
						return r.lockerWith(r.server.Client(t), redislock.WithPollInterval(interval))
					}
					holder := hold(t, r.locker(t), "a", time.Minute)
					f := waiters(t, r, n, ttl)
					first := r.waiting(ctx, t, locker(), "a", ttl)
					second := r.waiting(ctx, t, locker(), "a", ttl)
					f.freeze()
					released := time.Now()
					require.NoError(t, holder.Release(ctx))
					lock, err := first(t)
					require.NoError(t, err)
					took := time.Since(released)
					t.Logf("served %s after the release", took)
					assert.GreaterOrEqual(t, took, ttl-tick)
					assert.LessOrEqual(t, took, ttl+wakeUp)
					require.NoError(t, lock.Release(ctx))
					released = time.Now()
					lock, err = second(t)
					require.NoError(t, err)
					assert.LessOrEqual(t, time.Since(released), wakeUp, "it was behind the other, and nobody else")

					newcomer := r.waiting(ctx, t, locker(), "a", time.Minute)
					require.NoError(t, lock.Extend(ctx, time.Minute))
					f.thaw()
					require.Eventually(t, func() bool { return r.queued("a") == int64(n)+1 }, 4*soon, tick)
					require.NoError(t, lock.Release(ctx))
					for range n {
						f.served()
					}
					r.served(t, newcomer)
				})
			}
		}
	}
}

// A minimal hold that is over costs those who wait no lease, whoever is frozen
// before them in the queue.
func TestServerFrozenWaitersBehindAMinimalHold(t *testing.T) {
	t.Parallel()
	const ttl, least = 20 * time.Second, 4 * time.Second
	for kind, waiters := range map[string]func(*testing.T, *rig, int, time.Duration) frozen{
		"stopped": stoppedWaiters, "vanished": vanishedWaiters,
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			ctx := t.Context()
			asked := time.Now()
			holder := hold(t, r.locker(t), "a", time.Minute, redislock.WithMinHold(least))
			granted := time.Now()
			f := waiters(t, r, 10, ttl)
			locker := func() *redislock.Locker {
				return r.lockerWith(r.server.Client(t), redislock.WithPollInterval(time.Hour))
			}
			first := r.waiting(ctx, t, locker(), "a", ttl)
			second := r.waiting(ctx, t, locker(), "a", ttl)
			f.freeze()
			defer f.thaw()
			require.NoError(t, holder.Release(ctx))
			require.Less(t, time.Since(granted), least, "the machine is too busy for this test")
			for _, wait := range []func(testing.TB) (*redislock.Lock, error){first, second} {
				lock, err := wait(t)
				require.NoError(t, err)
				assert.GreaterOrEqual(t, time.Since(asked), least-tick)
				assert.LessOrEqual(t, time.Since(granted), least+2*wakeUp)
				require.NoError(t, lock.Release(ctx))
			}
		})
	}
}

// Where nobody is frozen, a lease that ends changes nothing in the order of
// those who wait, whoever of them finds out first. The same for a key that was
// deleted.
func TestServerTheOrderSurvivesALeaseThatEnds(t *testing.T) {
	t.Parallel()
	for how, end := range map[string]func(*testing.T, *rig, *redislock.Lock){
		"expired": func(t *testing.T, r *rig, _ *redislock.Lock) {
			require.True(t, r.direct.PExpire(t.Context(), keyOf("a"), 400*time.Millisecond).Val())
		},
		"deleted": func(t *testing.T, r *rig, _ *redislock.Lock) {
			require.EqualValues(t, 1, r.direct.Del(t.Context(), keyOf("a")).Val())
		},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			const waiters = 12
			r := newRig(t)
			ctx := t.Context()
			holder := hold(t, r.locker(t), "a", time.Minute)
			var waits []func(testing.TB) (*redislock.Lock, error)
			for range waiters {
				waits = append(waits, r.waiting(ctx, t, r.poller(t), "a", time.Minute))
			}
			end(t, r, holder)
			var fence int64
			for _, wait := range waits {
				lock := r.served(t, wait)
				assert.Greater(t, lock.Fence(), fence)
				fence = lock.Fence()
			}
			r.settled(t)
		})
	}
}

// Those who try without waiting do not get the lock as long as somebody waits.
func TestServerThoseWhoTryDoNotStarveTheQueue(t *testing.T) {
	t.Parallel()
	const ttl, leases, waiters = 50 * time.Millisecond, 20, 3
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hold(t, r.locker(t), "a", ttl)
	var all sync.WaitGroup
	var mu sync.Mutex
	turns, stolen := 0, 0
	for range waiters {
		lk := r.lockerWith(r.server.Client(t))
		all.Go(func() {
			for {
				_, err := lk.Acquire(ctx, "a", ttl) // and lets the lease end
				if err != nil {
					assert.ErrorIs(t, err, context.Canceled)
					return
				}
				mu.Lock()
				if turns++; turns == leases {
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	require.Eventually(t, func() bool { return r.queued("a") > 0 }, soon, tick)
	for range 2 {
		lk := r.lockerWith(r.server.Client(t))
		all.Go(func() {
			for ctx.Err() == nil {
				_, err := lk.TryAcquire(context.WithoutCancel(ctx), "a", ttl)
				if err == nil {
					mu.Lock()
					stolen++
					mu.Unlock()
				}
			}
		})
	}
	awaited := make(chan struct{})
	go func() { all.Wait(); close(awaited) }()
	awaitWithin(t, awaited, 4*soon, "turn of those who wait")
	t.Logf("%d turns of those who wait, %d of those who try", turns, stolen)
	assert.LessOrEqual(t, stolen, leases)
}

// A queue of which all are frozen costs those who try nothing but a moment.
func TestServerAQueueOfFrozenWaitersDoesNotKeepTheLock(t *testing.T) {
	t.Parallel()
	const ttl = 300 * time.Millisecond
	r := newRig(t)
	ctx := t.Context()
	holder := hold(t, r.locker(t), "a", time.Minute)
	f := vanishedWaiters(t, r, 10, ttl)
	f.freeze()
	defer f.thaw()
	require.NoError(t, holder.Release(ctx))
	released := time.Now()
	lk := r.locker(t)
	var lock *redislock.Lock
	require.Eventually(t, func() bool {
		var err error
		lock, err = lk.TryAcquire(ctx, "a", time.Minute)
		return err == nil
	}, soon, tick)
	assert.LessOrEqual(t, time.Since(released), ttl+wakeUp)
	require.NoError(t, lock.Release(ctx))
}

// What is told how many is bounded. Those beyond ask by themselves.
func TestServerAQueueOfThousandsIsEmptiedInBoundedTime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	monitor := r.direct.Subscribe(ctx, "lock:inbox:elsewhere")
	defer func() { _ = monitor.Close() }()
	_, err := monitor.Receive(ctx)
	require.NoError(t, err)
	_, err = r.direct.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range 3000 {
			p.ZAdd(ctx, queueOf("a"), redis.Z{Score: float64(i), Member: fmt.Sprintf("token%d 60000 5 1 elsewhere", i)})
		}
		return nil
	})
	require.NoError(t, err)
	lk := r.locker(t)
	took := timed(func() { _, err = lk.TryAcquire(ctx, "a", time.Minute) })
	t.Logf("took %s", took)
	require.ErrorIs(t, err, redislock.ErrNotAcquired)
	assert.Zero(t, r.queued("a"))
	info, err := lk.Inspect(ctx, "a")
	require.NoError(t, err)
	assert.True(t, info.Held)
	assert.Empty(t, info.Token, "it is nobody's for a moment")
	told := 0
	for message := range monitor.Channel() {
		assert.Equal(t, fmt.Sprintf("token%d 0 0", told), message.Payload)
		if told++; told == 1000 {
			break
		}
	}
}
