package servertest_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/e2e3f2a3/redislock"
	"github.com/e2e3f2a3/redislock/internal/redistest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// watched is a real primary with two replicas, and sentinels that watch them.
type watched struct {
	*redistest.Sentinel
	log *journal
}

func startWatched(t *testing.T) *watched {
	t.Helper()
	return &watched{Sentinel: redistest.StartSentinel(t, 2), log: &journal{}}
}

// locker is a Locker with a failover client of its own, as another process has.
func (d *watched) locker(t testing.TB, opts ...redislock.Option) *redislock.Locker {
	return redislock.New(d.Client(t), append([]redislock.Option{redislock.WithLogger(slog.New(d.log))}, opts...)...)
}

func (d *watched) asleep(t testing.TB) *redislock.Locker {
	return d.locker(t, redislock.WithPollInterval(time.Hour))
}

// waiting starts an Acquire, and returns once its ticket stands in the queue of
// the present primary.
func (d *watched) waiting(ctx context.Context, t testing.TB, lk *redislock.Locker, name string, ttl time.Duration) func(testing.TB) (*redislock.Lock, error) {
	t.Helper()
	direct := d.Primary(t).Client(t)
	queued := func() int64 { return direct.ZCard(context.Background(), queueOf(name)).Val() }
	before := queued()
	wait := started(func() (*redislock.Lock, error) { return lk.Acquire(ctx, name, ttl) })
	// Longer than usual: the inbox may still be waiting for the answer of a
	// lost server.
	require.Eventually(t, func() bool { return queued() > before }, 4*soon, tick, "no ticket in the queue for %q", name)
	return wait
}

// handedOver checks that pushes arrive.
func (d *watched) handedOver(t *testing.T, name string, from, to *redislock.Locker) {
	t.Helper()
	ctx := t.Context()
	holder := hold(t, from, name, time.Minute)
	wait := d.waiting(ctx, t, to, name, time.Minute)
	released := time.Now()
	require.NoError(t, holder.Release(ctx))
	lock, err := wait(t)
	require.NoError(t, err)
	assert.LessOrEqual(t, time.Since(released), wakeUp)
	assert.Greater(t, lock.Fence(), holder.Fence())
	require.NoError(t, lock.Release(ctx))
}

func TestServerSentinelReplacesThePrimary(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	d := startWatched(t)
	for _, way := range []struct {
		name       string
		lose, find func(*redistest.Server)
	}{
		{"by hand", nil, nil},
		{"killed", (*redistest.Server).Kill, (*redistest.Server).Restart},
		{"paused", (*redistest.Server).Pause, (*redistest.Server).Resume},
	} {
		t.Run(way.name, func(t *testing.T) { d.losePrimary(t, way.name, way.lose, way.find) })
	}
	t.Run("with what it has not replicated", d.loseUnreplicated)
}

func (d *watched) losePrimary(t *testing.T, name string, lose, find func(*redistest.Server)) {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	old := d.Primary(t)
	holders, other, fresh := d.asleep(t), d.asleep(t), d.locker(t)
	_, err := fresh.Inspect(ctx, "warm")
	require.NoError(t, err)
	holder := hold(t, holders, name, 12*time.Second, redislock.WithWatchdog())
	short := hold(t, holders, name+" short", 2*time.Second)
	first := d.waiting(ctx, t, other, name, time.Minute)
	second := d.waiting(ctx, t, other, name+" short", time.Minute)
	d.WaitReady(t, 2*soon) // the replicas have it all

	if lose != nil {
		lose(old)
	}
	lost := time.Now()
	served := make(chan time.Time, 2)
	watch := func(what string, get func() error) {
		go func() {
			assert.NoError(t, get(), what)
			served <- time.Now()
			t.Logf("%s: %s", what, time.Since(lost))
		}()
	}
	watch("an acquisition by somebody new", func() error {
		for {
			lock, err := fresh.TryAcquire(ctx, name+" new", time.Minute)
			if err == nil {
				return lock.Release(ctx)
			}
			if ctx.Err() != nil {
				return err
			}
		}
	})
	watch("a waiter for a lease that ends", func() error {
		lock, err := second(t)
		if err == nil {
			assert.Greater(t, lock.Fence(), short.Fence())
			err = lock.Release(ctx)
		}
		return err
	})
	if lose == nil {
		d.Failover(t)
	} else {
		d.WaitForPrimary(t, old, 30*time.Second)
	}
	up := time.Now()
	t.Logf("fail-over of the sentinels: %s", up.Sub(lost))
	for range 2 {
		select {
		case at := <-served:
			assert.LessOrEqual(t, at.Sub(up), recovery)
		case <-time.After(20 * time.Second):
			require.FailNow(t, "service does not resume")
		}
	}
	renewed(t, holder, 8*time.Second)
	released := time.Now()
	require.NoError(t, holder.Release(ctx))
	lock, err := first(t)
	require.NoError(t, err)
	t.Logf("hand-over after that: %s", time.Since(released))
	soonAfter(t, released, up, 2*recovery) // clients ask the sentinels anew for each connection
	assert.Greater(t, lock.Fence(), holder.Fence())
	require.NoError(t, lock.Release(ctx))
	d.handedOver(t, name, holders, other)

	if find != nil {
		find(old)
	}
	d.WaitReady(t, 30*time.Second)
	d.handedOver(t, name, other, holders)
	d.handedOver(t, name, fresh, other)
	assert.Empty(t, d.log.about("lock lost", name+`"`))
}

// The replicas stop to follow before the lock is acquired, and one of them
// takes over.
func (d *watched) loseUnreplicated(t *testing.T) {
	const name = "unreplicated"
	ctx, a, b := t.Context(), d.locker(t), d.locker(t)
	require.NoError(t, hold(t, a, name, time.Minute).Release(ctx))
	_, err := b.Inspect(ctx, name)
	require.NoError(t, err)
	old := d.Primary(t)
	var replicas []*redistest.Server
	for _, s := range d.Servers() {
		if s != old {
			s.Pause()
			replicas = append(replicas, s)
		}
	}
	old.Do(t, "client", "kill", "type", "replica")
	first := hold(t, a, name, 15*time.Second, redislock.WithWatchdog())
	old.Kill()
	for _, s := range replicas {
		s.Resume()
	}
	fenced(t, first, b, &resource{}, func() { d.WaitForPrimary(t, old, 30*time.Second) })
	old.Restart()
	d.WaitReady(t, 30*time.Second)
	d.handedOver(t, name, a, b)
}
