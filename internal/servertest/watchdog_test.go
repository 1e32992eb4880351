package servertest_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/e2e3f2a3/redislock"
	"github.com/e2e3f2a3/redislock/internal/redistest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A server that falls silent right after a renewal: the lock is over before the
// lease can be over there. Not parallel: it measures to 20 ms.
func TestServerSilentAfterARenewalEndsTheLockInTime(t *testing.T) {
	const ttl = 1500 * time.Millisecond
	r := newRig(t)
	for fault, silence := range map[string]struct{ begin, end func() }{
		"paused":     {r.server.Pause, r.server.Resume},
		"black hole": {func() { r.relay.BlackHole(true) }, func() { r.relay.BlackHole(false) }},
		"cut off":    {r.disconnect, r.reconnect},
	} {
		t.Run(fault, func(t *testing.T) {
			name := t.Name()
			lk := r.locker(t, patience(300*time.Millisecond))
			lock := hold(t, lk, name, ttl, redislock.WithWatchdog())
			ctx, cancel := lock.Context(t.Context())
			defer cancel()

			first := lock.Until()
			renewal := r.next(1, r.opOn("tick", name))
			r.await(t, renewal, "renewal")
			passed := time.Now() // later than its sending
			require.Eventually(t, func() bool { return lock.Until().After(first) }, soon, time.Millisecond)
			silence.begin()
			defer silence.end()

			assert.Less(t, lock.Until().Sub(passed), ttl, "the lease may be over in Redis")
			deadline := make(chan time.Time, 1) // as late as this machine's timers are
			time.AfterFunc(ttl-time.Since(passed), func() { deadline <- time.Now() })
			awaitWithin(t, ctx.Done(), ttl+soon, "end of the lock")
			ended := time.Now()
			require.ErrorIs(t, context.Cause(ctx), redislock.ErrLost)
			require.ErrorIs(t, lock.Err(), redislock.ErrLost)
			assert.Less(t, ended.Sub(<-deadline), 2*time.Millisecond, "the lease may be over in Redis")
			assert.Greater(t, ended.Sub(passed), ttl-ttl/50-50*time.Millisecond, "the lock was given up early")
			silence.end()
			r.quiet(t, 2*soon)
			assert.Len(t, r.log.about("lock lost", name), 1)
		})
	}
}

// Replies are late: what counts is when the request was sent.
func TestServerLeaseIsCountedFromTheSending(t *testing.T) {
	t.Parallel()
	const ttl, late = 3 * time.Second, 400 * time.Millisecond
	r := newRig(t)
	ctx, lk := t.Context(), r.locker(t)
	_, err := lk.Inspect(ctx, "warm up")
	require.NoError(t, err)
	r.relay.Delay(late)
	check := func(method string, begin time.Time, lock *redislock.Lock) {
		assert.GreaterOrEqual(t, time.Since(begin), late, method)
		assert.Less(t, lock.Until().Sub(begin), ttl+late/4, method)
		assert.Greater(t, lock.Until().Sub(begin), ttl-ttl/20, method)
	}
	begin := time.Now()
	lock := hold(t, lk, "a", ttl)
	check("TryAcquire", begin, lock)

	begin = time.Now()
	require.NoError(t, lock.Extend(ctx, ttl))
	check("Extend", begin, lock)

	begin = time.Now()
	resumed, err := lk.Resume(ctx, "a", lock.Token(), ttl, redislock.WithWatchdog())
	require.NoError(t, err)
	check("Resume", begin, resumed)

	before := resumed.Until()
	r.await(t, r.next(1, r.opOn("tick", "a")), "renewal")
	begin = time.Now() // later than its sending
	require.Eventually(t, func() bool { return resumed.Until().After(before) }, soon, tick)
	check("renewal", begin, resumed)

	waiting := started(func() (*redislock.Lock, error) { return lk.Acquire(ctx, "a", ttl) })
	require.NoError(t, resumed.Release(ctx))
	lock, err = waiting(t)
	require.NoError(t, err)
	assert.Less(t, time.Until(lock.Until()), ttl-late/2, "Acquire that waited")
	require.NoError(t, lock.Release(ctx))
	r.relay.Delay(0)
}

// One failure of each kind, and the next renewal works: the lock stays.
func TestServerOneFailedRenewalLosesNothing(t *testing.T) {
	t.Parallel()
	const ttl = 900 * time.Millisecond
	r := newRig(t)
	lk := r.locker(t, impatient)
	failures := map[string]redistest.Action{
		"BUSY":              redistest.ReplyWith("-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n"),
		"LOADING":           redistest.ReplyWith("-LOADING Redis is loading the dataset in memory\r\n"),
		"READONLY":          redistest.ReplyWith("-READONLY You can't write against a read only replica.\r\n"),
		"READONLY in Lua":   redistest.ReplyWith("-ERR Error running script (call to f_1): @user_script:1: -READONLY You can't write against a read only replica.\r\n"),
		"TRYAGAIN":          redistest.ReplyWith("-TRYAGAIN Multiple keys request during rehashing of slot\r\n"),
		"CLUSTERDOWN":       redistest.ReplyWith("-CLUSTERDOWN The cluster is down\r\n"),
		"MASTERDOWN":        redistest.ReplyWith("-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n"),
		"NOREPLICAS":        redistest.ReplyWith("-NOREPLICAS Not enough good replicas to write.\r\n"),
		"max clients":       redistest.ReplyWith("-ERR max number of clients reached\r\n"),
		"NOSCRIPT":          redistest.ReplyWith("-NOSCRIPT No matching script. Please use EVAL.\r\n"),
		"EOF before":        redistest.DropRequest,
		"EOF after":         redistest.DropReply,
		"reply swallowed":   redistest.SwallowReply,
		"request swallowed": redistest.SwallowRequest,
	}
	var wg sync.WaitGroup
	for failure, action := range failures {
		wg.Go(func() {
			lock, err := lk.TryAcquire(t.Context(), failure, ttl, redislock.WithWatchdog())
			if !assert.NoError(t, err) {
				return
			}
			fault := r.relay.Once(r.opOn("tick", failure), action)
			<-fault.Hit()
			failedAt := lock.Until()
			renewed := func() bool { return lock.Until().Sub(failedAt) > ttl/2 } // more than one renewal later
			assert.True(t, eventually(soon, renewed), "%s: not renewed", failure)
			assert.NoError(t, lock.Err(), failure)
			assert.NoError(t, lock.Release(t.Context()), failure)
			assert.Empty(t, r.value(t, failure), failure)
		})
	}
	wg.Wait()
	r.quiet(t, soon)
	assert.Empty(t, r.log.about(), "nothing went wrong that a person should look into")
}

func TestServerConnectionErrorsEndNoLaterRenewals(t *testing.T) {
	t.Parallel()
	const ttl = 600 * time.Millisecond
	r := newRig(t)
	lk := r.locker(t, impatient)
	for range 2 { // this lock, and a later one of the same name
		lock := hold(t, lk, "a", ttl, redislock.WithWatchdog())
		for range 3 {
			renewals := r.next(1, r.opOn("tick", "a"))
			r.relay.Cut()
			r.await(t, renewals, "renewal after the connections were cut")
			require.NoError(t, lock.Err())
		}
		before := lock.Until()
		require.Eventually(t, func() bool { return lock.Until().After(before) }, ttl, tick)
		require.NoError(t, lock.Release(t.Context()))
	}
	r.quiet(t, soon)
	assert.Empty(t, r.log.about())
}

// losses are what can happen to a key that is held, and what stands there then.
var losses = map[string]struct {
	strike func(t *testing.T, r *rig, name string)
	left   string
}{
	"taken over": {func(t *testing.T, r *rig, name string) {
		require.NoError(t, r.direct.Set(t.Context(), keyOf(name), "other", time.Minute).Err())
	}, "other"},
	"deleted": {func(t *testing.T, r *rig, name string) {
		require.NoError(t, r.direct.Del(t.Context(), keyOf(name)).Err())
	}, ""},
	"expired": {func(t *testing.T, r *rig, name string) {
		require.NoError(t, r.direct.PExpire(t.Context(), keyOf(name), time.Millisecond).Err())
		r.gone(t, name, soon)
	}, ""},
	"flushed": {func(t *testing.T, r *rig, _ string) {
		require.NoError(t, r.direct.FlushAll(t.Context()).Err())
	}, ""},
	"evicted": {func(t *testing.T, r *rig, name string) {
		ctx := t.Context()
		require.NoError(t, r.direct.ConfigSet(ctx, "maxmemory-policy", "allkeys-lru").Err())
		require.NoError(t, r.direct.ConfigSet(ctx, "maxmemory", "1").Err())
		r.gone(t, name, soon)
		require.NoError(t, r.direct.ConfigSet(ctx, "maxmemory", "0").Err())
	}, ""},
}

func TestServerLossIsToldWithinOneRenewalAndOnce(t *testing.T) {
	t.Parallel()
	const ttl = 600 * time.Millisecond
	r := newRig(t)
	lk := r.locker(t)
	for loss, how := range losses {
		t.Run(loss, func(t *testing.T) {
			name := t.Name()
			lock := hold(t, lk, name, ttl, redislock.WithWatchdog())
			ctx, cancel := lock.Context(t.Context())
			defer cancel()
			how.strike(t, r, name)
			awaitWithin(t, ctx.Done(), ttl/3+100*time.Millisecond, "end of the lock")
			require.ErrorIs(t, context.Cause(ctx), redislock.ErrLost)
			require.ErrorIs(t, lock.Err(), redislock.ErrLost)
			r.quiet(t, soon) // renewal has stopped

			require.ErrorIs(t, lock.Extend(t.Context(), time.Minute), redislock.ErrNotHeld)
			_, err := lock.TTL(t.Context())
			require.ErrorIs(t, err, redislock.ErrNotHeld)
			assert.Equal(t, how.left, r.value(t, name))
			require.ErrorIs(t, lock.Release(t.Context()), redislock.ErrNotHeld)
			assert.Equal(t, how.left, r.value(t, name))
			require.ErrorIs(t, lock.Err(), redislock.ErrLost)
			assert.Len(t, r.log.about("lock lost", name), 1)
		})
	}
}

func TestServerExtendAndReleaseOfALostLockWriteNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lk := r.locker(t)
	for loss, how := range losses {
		for first, call := range map[string]func(context.Context, *redislock.Lock) error{
			"Extend":  func(ctx context.Context, l *redislock.Lock) error { return l.Extend(ctx, time.Minute) },
			"Release": func(ctx context.Context, l *redislock.Lock) error { return l.Release(ctx) },
			"TTL":     func(ctx context.Context, l *redislock.Lock) error { _, err := l.TTL(ctx); return err },
			"Resume": func(ctx context.Context, l *redislock.Lock) error {
				_, err := lk.Resume(ctx, l.Name(), l.Token(), time.Minute)
				return err
			},
		} {
			t.Run(loss+"/"+first, func(t *testing.T) {
				name := t.Name()
				lock := hold(t, lk, name, time.Minute)
				how.strike(t, r, name)
				require.ErrorIs(t, call(t.Context(), lock), redislock.ErrNotHeld)
				assert.Equal(t, how.left, r.value(t, name))
				if how.left != "" {
					assert.LessOrEqual(t, r.direct.PTTL(t.Context(), keyOf(name)).Val(), time.Minute)
				}
				if first == "Extend" || first == "Release" {
					require.ErrorIs(t, lock.Err(), redislock.ErrLost)
				}
			})
		}
	}
}

func TestServerWithLockTellsOfTheLoss(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lk := r.locker(t)
	for loss, how := range losses {
		t.Run(loss+"/while fn runs", func(t *testing.T) {
			name := t.Name()
			err := lk.WithLock(t.Context(), name, 300*time.Millisecond, func(ctx context.Context, _ *redislock.Lock) error {
				how.strike(t, r, name)
				awaitWithin(t, ctx.Done(), soon, "end of fn's context")
				assert.ErrorIs(t, context.Cause(ctx), redislock.ErrLost)
				return nil
			})
			require.ErrorIs(t, err, redislock.ErrLost)
			require.ErrorIs(t, err, redislock.ErrNotHeld)
			assert.Equal(t, how.left, r.value(t, name))
		})
		t.Run(loss+"/unnoticed until the release", func(t *testing.T) {
			name := t.Name()
			err := lk.WithLock(t.Context(), name, time.Minute, func(context.Context, *redislock.Lock) error {
				how.strike(t, r, name)
				return nil
			})
			require.ErrorIs(t, err, redislock.ErrNotHeld)
			assert.Equal(t, how.left, r.value(t, name))
		})
	}
}

func TestServerMaxHoldEndsAnEndlessHolder(t *testing.T) {
	t.Parallel()
	const maxHold, ttl = 500 * time.Millisecond, 600 * time.Millisecond
	r := newRig(t)
	lk, other := r.locker(t), r.locker(t)
	begin := time.Now()
	bounded, cancel := context.WithTimeout(t.Context(), 2*soon)
	defer cancel()
	endless := make(chan error, 1)
	inside := make(chan struct{})
	go func() {
		endless <- lk.WithLock(bounded, "a", ttl, func(ctx context.Context, _ *redislock.Lock) error {
			close(inside)
			<-ctx.Done()
			assert.ErrorIs(t, context.Cause(ctx), redislock.ErrLost)
			assert.Greater(t, time.Since(begin), maxHold, "it was renewed until then")
			return nil
		}, redislock.WithMaxHold(maxHold))
	}()
	r.await(t, inside, "acquisition")
	ctx, stop := context.WithTimeout(t.Context(), soon)
	defer stop()
	lock, err := other.Acquire(ctx, "a", time.Minute)
	require.NoError(t, err)
	assert.LessOrEqual(t, time.Since(begin), maxHold+ttl+200*time.Millisecond)
	require.ErrorIs(t, <-endless, redislock.ErrLost)
	assert.Equal(t, lock.Token(), r.value(t, "a"))
	require.NoError(t, lock.Release(t.Context()))
}

// SCRIPT FLUSH before every single request, renewals included: each finds that
// the server does not know its script.
func TestServerForgottenScriptsAreNotNoticed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, lk := t.Context(), r.locker(t)
	flush := func() { require.NoError(t, r.direct.ScriptFlush(ctx).Err()) }
	for range 3 {
		flush()
		lock, err := lk.Acquire(ctx, "a", time.Minute)
		require.NoError(t, err)
		flush()
		_, err = lk.TryAcquire(ctx, "a", time.Minute)
		require.ErrorIs(t, err, redislock.ErrNotAcquired)
		flush()
		require.NoError(t, lock.Extend(ctx, time.Minute))
		flush()
		_, err = lock.TTL(ctx)
		require.NoError(t, err)
		flush()
		info, err := lk.Inspect(ctx, "a")
		require.NoError(t, err)
		assert.Equal(t, lock.Token(), info.Token)
		flush()
		resumed, err := lk.Resume(ctx, "a", lock.Token(), time.Minute)
		require.NoError(t, err)
		assert.Equal(t, lock.Fence(), resumed.Fence())
		flush()
		require.NoError(t, lock.Release(ctx))
		assert.Empty(t, r.value(t, "a"))
	}
	t.Run("renewal", func(t *testing.T) {
		evalsha := redistest.And(redistest.Command("evalsha"), r.opOn("tick", "b"))
		forgotten := r.relay.Always(evalsha, redistest.ReplyWith("-NOSCRIPT No matching script. Please use EVAL.\r\n"))
		lock := hold(t, lk, "b", 300*time.Millisecond, redislock.WithWatchdog())
		r.await(t, r.next(4, evalsha), "renewals")
		require.NoError(t, lock.Err())
		require.Eventually(t, func() bool { return forgotten.Count() >= 4 }, soon, tick)
		require.NoError(t, lock.Release(ctx))
	})
	assert.Empty(t, r.log.about())
}

func TestServerScriptFlushStormIsNotNoticed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, stop := context.WithCancel(t.Context())
	var storm, work sync.WaitGroup
	for range 2 {
		storm.Go(func() {
			for ctx.Err() == nil {
				_ = r.direct.ScriptFlush(ctx).Err()
			}
		})
	}
	lk := r.locker(t)
	watched := hold(t, lk, "watched", time.Second, redislock.WithWatchdog())
	for range 4 {
		work.Go(func() {
			for range 60 {
				err := lk.WithLock(ctx, "a", time.Minute, func(ctx context.Context, lock *redislock.Lock) error {
					return lock.Extend(ctx, time.Minute)
				})
				assert.NoError(t, err)
			}
		})
	}
	work.Wait()
	assert.NoError(t, watched.Err())
	assert.NoError(t, watched.Release(ctx))
	stop()
	storm.Wait()
	assert.Empty(t, r.log.about())
	calls := r.direct.Info(t.Context(), "commandstats").Val()
	assert.True(t, strings.Contains(calls, "cmdstat_eval:"), "the storm has made it use EVAL")
}
