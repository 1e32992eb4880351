package servertest_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock"
	"github.com/e2e3f2a3/redislock/internal/redistest"
)

// occupy fills the pool of a client with commands that block, and returns what
// frees it.
func (r *rig) occupy(t *testing.T, client *redis.Client, connections int) (free func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{}, connections)
	for i := range connections {
		go func() {
			client.BLPop(ctx, time.Minute, fmt.Sprint("list", i))
			done <- struct{}{}
		}()
	}
	require.Eventually(t, func() bool { return r.blocked(t) == connections }, soon, tick)
	return func() {
		cancel()
		for i := range connections {
			r.direct.RPush(context.Background(), fmt.Sprint("list", i), "x")
			<-done
		}
		for i := range connections {
			r.direct.Del(context.Background(), fmt.Sprint("list", i))
		}
	}
}

// A client whose connections are all in use has sent nothing, and the error
// says so.
func TestServerNoFreeConnectionIsNoSilence(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	const connections, ttl = 3, 1500 * time.Millisecond
	const busy = "all 3 connections of the client are in use"
	r := newRig(t)
	client := r.server.Client(t, func(o *redis.Options) { o.PoolSize = connections })
	lk := r.lockerWith(client)
	held := hold(t, lk, "held", ttl, redislock.WithWatchdog())
	waited := hold(t, r.locker(t), "waited", time.Minute)
	free := r.occupy(t, client, connections)

	began := time.Now()
	select {
	case <-held.Done():
	case <-time.After(2 * ttl):
		require.FailNow(t, "it is not lost")
	}
	assert.LessOrEqual(t, time.Since(began), ttl, "in time")
	require.ErrorIs(t, held.Err(), redislock.ErrLost)
	require.Regexp(t, "nothing was sent to Redis within .*: "+busy, held.Err().Error())
	require.NotContains(t, held.Err().Error(), "no reply")
	require.Eventually(t, func() bool { return len(r.log.about(busy)) > 0 }, soon, tick, "and in the log")

	for op, call := range map[string]func(context.Context) error{
		"acquire": func(ctx context.Context) error { _, err := lk.TryAcquire(ctx, "a", ttl); return err },
		"inspect": func(ctx context.Context) error { _, err := lk.Inspect(ctx, "a"); return err },
		"resume": func(ctx context.Context) error {
			_, err := lk.Resume(ctx, "waited", waited.Token(), ttl)
			return err
		},
	} {
		err := call(t.Context())
		require.ErrorContains(t, err, busy, op)
		require.ErrorContains(t, err, "nothing was sent to Redis within", op)
		require.NotErrorIs(t, err, redislock.ErrNotAcquired, op)
	}
	assert.Empty(t, r.value(t, "a"))
	free()
	lock, err := lk.TryAcquire(t.Context(), "a", ttl)
	require.NoError(t, err)
	require.NoError(t, lock.Release(t.Context()))
	require.NoError(t, waited.Release(t.Context()))
}

// reading is a hook that looks at the arguments, as one for traces does.
type reading struct{ prefixing }

func (reading) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		_ = cmd.String()
		_ = cmd.Args()
		return next(ctx, cmd)
	}
}

func (reading) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// With a hook that looks at the arguments nobody knows whether they were
// written.
func TestServerNoFreeConnectionBehindAHook(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	client := r.server.Client(t, func(o *redis.Options) { o.PoolSize = 2 })
	client.AddHook(reading{})
	lk := r.lockerWith(client)
	free := r.occupy(t, client, 2)
	defer free()
	_, err := lk.TryAcquire(t.Context(), "a", time.Second)
	require.ErrorContains(t, err, "no reply from Redis within 1s: all 2 connections of the client are in use")
}

// A server that does not answer is one that does not answer.
func TestServerThatIsSilentIsNoShortage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lk := r.locker(t)
	lock := hold(t, lk, "a", time.Minute)
	r.server.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := lk.TryAcquire(ctx, "b", time.Second)
	r.server.Resume()
	require.ErrorContains(t, err, " Redis within 1s")
	require.NotContains(t, err.Error(), "in use")
	require.NoError(t, lock.Release(t.Context()))
	r.gone(t, "b", undoBound)
}
