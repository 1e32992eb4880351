package redislock

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// slowJournal is a journal that does something before each line.
type slowJournal struct {
	*journal
	before func(slog.Record)
}

func (j *slowJournal) Handle(ctx context.Context, r slog.Record) error {
	j.before(r)
	return j.journal.Handle(ctx, r)
}

func (j *journal) count() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.lines)
}

func slowly(j *journal, before func(slog.Record)) Option {
	return WithLogger(slog.New(&slowJournal{j, before}))
}

// blocked is a handler that does not return before the test's end.
func blocked(t *testing.T, j *journal) Option {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	return slowly(j, func(slog.Record) { <-release })
}

// A machine that was suspended wakes with many locks that are lost. All
// contexts end, though the logger does not return from the first line; then all
// lines are written. (In real time: a bubble has no monotonic clock.)
func TestSlowLoggerDelaysNoContext(t *testing.T) {
	const locks = 1000
	log, written := &journal{}, make(chan struct{})
	lk, machine := suspendable(New(clusterClient(t, neverDial(t)), slowly(log, func(slog.Record) { <-written })))
	var contexts []context.Context
	for range locks {
		lock := unconnected(t, lk)
		ctx, cancel := lock.Context(t.Context())
		defer cancel()
		contexts = append(contexts, ctx)
	}
	machine.Suspend(time.Hour)
	timer := time.NewTimer(10 * time.Second)
	defer timer.Stop()
	for i, ctx := range contexts {
		select {
		case <-ctx.Done():
			require.ErrorIs(t, context.Cause(ctx), ErrLost)
		case <-timer.C:
			close(written)
			require.FailNow(t, "contexts wait for the logger", "%d have ended", i)
		}
	}
	require.Zero(t, log.count())
	close(written)
	require.Eventually(t, func() bool { return log.count() == locks }, 10*time.Second, time.Millisecond, "no line is lost")
	require.Eventually(t, func() bool { return lk.reports.last() == nil }, 10*time.Second, time.Millisecond)
}

func TestLinesKeepTheirOrderAndTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, start := &journal{}, time.Now()
		var times []time.Duration
		lk := New(clusterClient(t, neverDial(t)), slowly(log, func(r slog.Record) {
			times = append(times, r.Time.Sub(start)) // one goroutine at a time
			time.Sleep(time.Second)
		}))
		for i := range 100 {
			lk.reports.warn("line", "number", i)
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(100 * time.Second)
		synctest.Wait()
		require.Equal(t, 100, log.count())
		for i, line := range log.lines {
			require.Equal(t, fmt.Sprintf("WARN line number=%d", i), line)
			require.Equal(t, time.Duration(i)*10*time.Millisecond, times[i], "when it happened")
		}
		require.Empty(t, packageGoroutines())
	})
}

// The first in a line has its outage in the log, and is not held up by that:
// others are behind it.
func TestBlockedLoggerHoldsUpNoWaiter(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		holder := r.acquire("a", time.Hour)
		lk := r.lockerOn(r.connect(), blocked(t, r.journal))
		first := waitFor(t.Context(), lk, "a", time.Minute)
		time.Sleep(time.Second)
		second := waitFor(t.Context(), lk, "a", time.Minute)
		r.answerWith(func(string) string { return "LOADING Redis is loading the dataset in memory" })
		time.Sleep(10 * time.Second)
		r.answerWith(nil)
		require.NoError(t, holder.Release(t.Context()))
		for _, waiter := range []<-chan acquired{first, second} {
			select {
			case got := <-waiter:
				require.NoError(t, got.err)
				require.NoError(t, got.lock.Release(t.Context()))
			case <-time.After(10 * time.Second):
				require.Fail(t, "the waiter is held up")
			}
		}
	})
}

// A call waits for the line that it has reported, so that a program may end
// after it.
func TestCallsReturnWithTheirLineInTheLog(t *testing.T) {
	for name, call := range map[string]func(ctx context.Context, lk *Locker, r *fakeRedis) error{
		"Release": func(ctx context.Context, lk *Locker, r *fakeRedis) error {
			lock, err := lk.TryAcquire(ctx, "a", time.Minute)
			require.NoError(r.t, err)
			r.take("lock:a")
			return lock.Release(ctx)
		},
		"Extend": func(ctx context.Context, lk *Locker, r *fakeRedis) error {
			lock, err := lk.TryAcquire(ctx, "a", time.Minute)
			require.NoError(r.t, err)
			r.take("lock:a")
			return lock.Extend(ctx, time.Minute)
		},
		"WithLock": func(ctx context.Context, lk *Locker, r *fakeRedis) error {
			return lk.WithLock(ctx, "a", time.Minute, func(context.Context, *Lock) error {
				r.take("lock:a")
				return nil
			})
		},
	} {
		for _, endless := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/endless ctx %t", name, endless), func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					ctx := t.Context()
					if endless {
						ctx = context.Background()
					}
					lk := r.locker(slowly(r.journal, func(slog.Record) { time.Sleep(5 * time.Millisecond) }))
					require.ErrorIs(t, call(ctx, lk, r), ErrNotHeld)
					require.Equal(t, 1, r.journal.count())

					r.Del("lock:a")
					lk = r.locker(blocked(t, r.journal))
					require.Equal(t, reportPatience, elapsed(func() {
						require.ErrorIs(t, call(ctx, lk, r), ErrNotHeld)
					}), "but not for long")
				})
			})
		}
	}
}

func TestBlockedLoggerDoesNotOutlastAContext(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock, err := r.locker(blocked(t, r.journal)).TryAcquire(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		r.take("lock:a")
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		took := elapsed(func() { require.ErrorIs(t, lock.Release(ctx), ErrNotHeld) })
		require.LessOrEqual(t, took, 150*time.Millisecond)
	})
}

// A handler that panics, or ends its goroutine, costs its own line only.
func TestHandlerThatFailsCostsOneLine(t *testing.T) {
	for name, fail := range map[string]func(){"panic": func() { panic(errWork) }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log, n := &journal{}, 0
				lk := New(clusterClient(t, neverDial(t)), slowly(log, func(slog.Record) {
					if n++; n == 2 {
						fail()
					}
				}))
				for i := range 3 {
					lk.reports.warn("line", "number", i)
				}
				synctest.Wait()
				require.Equal(t, []string{"WARN line number=0", "WARN line number=2"}, log.lines)
				lk.reports.warn("line", "number", 3)
				synctest.Wait()
				require.Len(t, log.lines, 3)
				require.Empty(t, packageGoroutines())
			})
		})
	}
}

func TestLinesThatWaitAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &journal{}
		lk := New(clusterClient(t, neverDial(t)), slowly(log, func(slog.Record) { time.Sleep(time.Millisecond) }))
		for i := range reportsKept + 1 + 7 {
			lk.reports.warn("line", "number", i)
			if i == 0 {
				synctest.Wait() // it is in the hands of the handler
			}
		}
		time.Sleep((reportsKept + 10) * time.Millisecond)
		synctest.Wait()
		require.Len(t, log.lines, reportsKept+2)
		require.Contains(t, log.lines[reportsKept+1], "lines=7")
		require.Empty(t, packageGoroutines())
	})
}

// The handler may use the Locker.
func TestHandlerMayUseTheLocker(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		var lk *Locker
		var got []string
		var mu sync.Mutex
		lk = r.locker(slowly(r.journal, func(slog.Record) {
			lock, err := lk.TryAcquire(context.Background(), "b", time.Minute)
			require.NoError(t, err)
			require.NoError(t, lock.Release(context.Background()))
			mu.Lock()
			defer mu.Unlock()
			got = append(got, "b")
		}))
		lock, err := lk.TryAcquire(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		r.take("lock:a")
		require.ErrorIs(t, lock.Release(t.Context()), ErrNotHeld)
		mu.Lock()
		defer mu.Unlock()
		require.True(t, slices.Equal(got, []string{"b"}))
	})
}

// What a hook has done is in the log as well, and nobody waits for that who is
// served by the same round trip.
func TestBlockedLoggerHoldsUpNoCallThatAHookHasBroken(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		client := r.connect()
		lk := r.lockerOn(client, blocked(t, r.journal))
		client.AddHook(panickingHook{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var err error
		took := elapsed(func() { _, err = lk.TryAcquire(ctx, "a", time.Minute) })
		require.ErrorContains(t, err, "a hook or mock of the client panicked")
		require.LessOrEqual(t, took, 2*time.Second)
	})
}

type panickingHook struct{}

func (panickingHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (panickingHook) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(context.Context, redis.Cmder) error { panic("no") }
}
func (panickingHook) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(context.Context, []redis.Cmder) error { panic("no") }
}
