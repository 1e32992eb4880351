package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock"
)

// The code in this file stands in the pages under docs/, and is compiled and run
// here (see readme_test.go).

// locks is what the shop needs of a *redislock.Locker.
type locks interface {
	WithLock(ctx context.Context, name string, ttl time.Duration,
		fn func(ctx context.Context, lock *redislock.Lock) error, opts ...redislock.AcquireOption) error
}

// packOrder packs an order once, whatever the number of hosts that try.
func packOrder(ctx context.Context, locks locks, order string, pack func(ctx context.Context) error) error {
	return locks.WithLock(ctx, "order:"+order, 30*time.Second, func(ctx context.Context, _ *redislock.Lock) error {
		return pack(ctx)
	})
}

func TestAnOrderThatIsBeingPackedIsLeftAlone(t *testing.T) {
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	require.NoError(t, server.Set("lock:order:42", "somebody else's token"))

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := packOrder(ctx, redislock.New(client), "42", func(context.Context) error {
		return errors.New("packed twice")
	})
	require.ErrorIs(t, err, redislock.ErrNotAcquired)
}

func TestPackingStopsWhenTheLockIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := miniredis.NewMiniRedis()
		defer server.Close()
		server.ClockTTL(true) // leases follow the clock, here a virtual one
		client := redis.NewClient(&redis.Options{
			Addr:   "127.0.0.1:6379", // not a name, which would be looked up outside of the bubble
			Dialer: func(context.Context, string, string) (net.Conn, error) { return server.Dial() },
		})
		defer client.Close()

		began := time.Now()
		err := packOrder(t.Context(), redislock.New(client), "42", func(ctx context.Context) error {
			server.Del("lock:order:42") // somebody has cleaned up by hand
			<-ctx.Done()
			return context.Cause(ctx)
		})
		require.ErrorIs(t, err, redislock.ErrLost)
		require.LessOrEqual(t, time.Since(began), 10*time.Second) // a third of the TTL, virtual
	})
}

// transfer locks both accounts, always in the same order.
func transfer(ctx context.Context, locker *redislock.Locker, from, to string, move func(ctx context.Context) error) error {
	const ttl = 30 * time.Second
	return locker.WithLock(ctx, "account:"+min(from, to), ttl, func(ctx context.Context, _ *redislock.Lock) error {
		return locker.WithLock(ctx, "account:"+max(from, to), ttl, func(ctx context.Context, _ *redislock.Lock) error {
			return move(ctx)
		})
	})
}

func TestTransfersInBothDirectionsDoNotBlockEachOther(t *testing.T) {
	client, server := exampleRedis()
	defer server.Close()
	defer client.Close()
	locker := redislock.New(client)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var balance [2]int // guarded by the locks
	results := make(chan error)
	run := func(from, to int) {
		name := func(i int) string { return string(rune('a' + i)) }
		for range 50 {
			if err := transfer(ctx, locker, name(from), name(to), func(context.Context) error {
				balance[from]--
				balance[to]++
				return nil
			}); err != nil {
				results <- err
				return
			}
		}
		results <- nil
	}
	go run(0, 1)
	go run(1, 0)
	require.NoError(t, errors.Join(<-results, <-results))
	require.Equal(t, [2]int{}, balance)
}

// untilReady waits until Redis serves, or ctx ends.
func untilReady(ctx context.Context, client *redis.Client) error {
	for {
		err := client.Ping(ctx).Err()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// A first request does not wait until Redis has loaded; untilReady does.
func TestAProcessThatStartsBeforeRedis(t *testing.T) {
	client, server := exampleRedis()
	defer server.Close()
	defer client.Close()
	const loading = "LOADING Redis is loading the dataset in memory"
	server.SetError(loading)
	locker := redislock.New(client)
	began := time.Now()
	_, err := locker.Acquire(t.Context(), "order:42", time.Minute)
	require.ErrorContains(t, err, loading)
	require.NotErrorIs(t, err, redislock.ErrNotAcquired)
	require.Less(t, time.Since(began), 10*time.Second, "it is not waited out")

	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, untilReady(short, client), context.DeadlineExceeded)
	time.AfterFunc(50*time.Millisecond, func() { server.SetError("") })
	require.NoError(t, untilReady(t.Context(), client))
	lock, err := locker.Acquire(t.Context(), "order:42", time.Minute)
	require.NoError(t, err)
	require.NoError(t, lock.Release(t.Context()))
}

// isOutage reports whether an acquisition failed because Redis was not reached
// or did not answer.
func isOutage(err error) bool {
	var answer redis.Error
	if err == nil || errors.As(err, &answer) {
		return false
	}
	for _, known := range []error{
		redislock.ErrNotAcquired, redislock.ErrNotHeld, redislock.ErrReleased, redislock.ErrNotReplicated,
		redislock.ErrInvalidTTL, redislock.ErrInvalidName, redislock.ErrInvalidMetadata,
		context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, known) {
			return false
		}
	}
	return true
}

func TestAnOutageIsToldFromEveryOtherFailure(t *testing.T) {
	client, server := exampleRedis()
	defer server.Close()
	defer client.Close()
	locker := redislock.New(client)
	try := func(ctx context.Context, ttl time.Duration) error {
		_, err := locker.TryAcquire(ctx, "order:42", ttl)
		return err
	}
	require.NoError(t, try(t.Context(), time.Minute))
	require.False(t, isOutage(nil))
	require.False(t, isOutage(try(t.Context(), time.Minute)), "the lock is taken")
	require.False(t, isOutage(try(t.Context(), time.Nanosecond)), "a mistake")
	_, err := locker.Resume(t.Context(), "order:42", "no token", time.Minute)
	require.False(t, isOutage(err), "another token: %v", err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.False(t, isOutage(try(ended, time.Minute)), "a caller that has left")
	server.SetError("NOPERM this user has no permissions")
	require.False(t, isOutage(try(t.Context(), time.Minute)), "an answer of the server")
	server.SetError("")
	server.Close()
	err = try(t.Context(), time.Minute)
	require.True(t, isOutage(err), "%v", err)
}

// isFailure reports whether the error of a command counts for a circuit breaker.
func isFailure(err error) bool {
	return err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "NOSCRIPT")
}

// tenant is the key of a context value, and carrier a hook that looks for it.
type tenant struct{}

type carrier struct{ errors, failures, scripts, withTenant atomic.Int32 }

func (*carrier) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *carrier) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *carrier) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if !strings.HasPrefix(cmd.Name(), "eval") {
			return err
		}
		c.scripts.Add(1)
		if ctx.Value(tenant{}) != nil {
			c.withTenant.Add(1)
		}
		if err != nil {
			c.errors.Add(1)
		}
		if isFailure(err) {
			c.failures.Add(1)
		}
		return err
	}
}

// A script that the server does not know is an error to a hook, and no failure.
func TestAHookSeesNoScriptAsAnError(t *testing.T) {
	client, server := exampleRedis()
	defer server.Close()
	defer client.Close()
	var hook carrier
	client.AddHook(&hook)
	for range 2 {
		lock, err := redislock.New(client).Acquire(t.Context(), "order:42", time.Minute)
		require.NoError(t, err)
		require.NoError(t, lock.Release(t.Context()))
	}
	require.EqualValues(t, 2, hook.errors.Load(), "once for each of the two scripts")
	require.Zero(t, hook.failures.Load())
}

// A request that travels by itself carries the values of the caller's context. A
// renewal has no caller.
func TestWhichRequestsCarryTheCallersContext(t *testing.T) {
	client, server := exampleRedis()
	defer server.Close()
	defer client.Close()
	var hook carrier
	client.AddHook(&hook)
	ctx := context.WithValue(t.Context(), tenant{}, "blue")
	locker := redislock.New(client)
	lock, err := locker.Acquire(ctx, "order:42", time.Minute)
	require.NoError(t, err)
	require.NoError(t, lock.Extend(ctx, time.Minute))
	require.NoError(t, lock.Release(ctx))
	require.NotZero(t, hook.scripts.Load())
	require.Equal(t, hook.scripts.Load(), hook.withTenant.Load())

	lock, err = locker.Acquire(ctx, "order:42", 300*time.Millisecond, redislock.WithWatchdog())
	require.NoError(t, err)
	require.Eventually(t, func() bool { return hook.scripts.Load() > hook.withTenant.Load() }, 10*time.Second, time.Millisecond)
	_ = lock.Release(ctx) // on a busy machine it may have been lost
}
