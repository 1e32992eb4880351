package redislock

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/e2e3f2a3/redislock/internal/line"
	"github.com/e2e3f2a3/redislock/internal/wire"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// requireKept fails unless the name is taken for left, by nobody's token.
func requireKept(t *testing.T, r *fakeRedis, lk *Locker, lock *Lock, left time.Duration, metadata string) {
	t.Helper()
	info, err := lk.Inspect(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, Info{Held: true, Metadata: metadata, TTL: left, Fence: lock.Fence()}, info)
	_, err = lk.TryAcquire(t.Context(), "a", time.Minute)
	require.ErrorIs(t, err, ErrNotAcquired)
	require.Greater(t, r.TTL("{lock:a}:fence"), left, "the fence's record lives longer")
}

func TestReleaseWithinTheMinimalHoldLeavesTheNameTaken(t *testing.T) {
	for name, c := range map[string]struct {
		ttl, least, held time.Duration
		opts             []AcquireOption
	}{
		"lease longer":  {10 * time.Minute, 5 * time.Second, time.Second, nil},
		"lease shorter": {2 * time.Second, 5 * time.Second, time.Second, nil},
		"at once":       {time.Minute, time.Hour, 0, nil},
		"watchdog":      {3 * time.Second, time.Minute, 20 * time.Second, []AcquireOption{WithWatchdog()}},
		"metadata":      {time.Minute, time.Hour, time.Second, []AcquireOption{WithMetadata("pod 7")}},
		"microseconds":  {time.Minute, time.Second + time.Nanosecond, time.Second - time.Microsecond, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				client := r.connect()
				lock, err := r.lockerOn(client).TryAcquire(t.Context(), "a", c.ttl, append(c.opts, WithMinHold(c.least))...)
				require.NoError(t, err)
				time.Sleep(c.held)
				require.NoError(t, lock.Release(t.Context()))
				require.True(t, isDone(lock))
				requireFailure(t, lock.Err(), opHold, "lock:a", ErrReleased)
				require.NoError(t, client.Close(), "nobody has to see to it")

				left := (c.least - c.held + time.Millisecond - 1).Truncate(time.Millisecond)
				requireKept(t, r, r.locker(), lock, left, acquireOptions{}.with(c.opts).metadata)
				time.Sleep(left - time.Millisecond)
				require.True(t, r.Exists("lock:a"))
				time.Sleep(time.Millisecond)
				require.False(t, r.Exists("lock:a"))
				require.Empty(t, r.logged(""))
				requireNoGoroutines(t)
			})
		})
	}
}

func TestReleaseAfterTheMinimalHoldIsAsAlways(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.lockerOn(r.connect())
		lock, err := lk.TryAcquire(t.Context(), "a", time.Minute, WithMinHold(5*time.Second))
		require.NoError(t, err)
		waiter := waitFor(t.Context(), lk, "a", time.Minute, WithMinHold(5*time.Second))
		time.Sleep(5 * time.Second)
		asked := r.requests(opAcquire)
		require.NoError(t, lock.Release(t.Context()))
		got := <-waiter
		require.NoError(t, got.err)
		require.Equal(t, asked, r.requests(opAcquire), "the release has brought it along")
		time.Sleep(5 * time.Second)
		require.NoError(t, got.lock.Release(t.Context()))
		require.False(t, r.Exists("lock:a"))
		require.Equal(t, 2, r.requests(opKeep))
		require.Zero(t, r.requests(opRelease))
	})
}

func TestMinimalHoldDoesNotProlongALease(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", time.Second, WithMinHold(time.Hour))
		require.Equal(t, time.Second, r.TTL("lock:a"))
		require.NoError(t, lock.Extend(t.Context(), 2*time.Second))
		require.Equal(t, 2*time.Second, r.TTL("lock:a"))
		time.Sleep(2 * time.Second)
		require.False(t, r.Exists("lock:a"))
		require.ErrorIs(t, lock.Release(t.Context()), ErrNotHeld)
		require.False(t, r.Exists("lock:a"), "nothing is recreated")

		detached := r.acquire("a", time.Second, WithMinHold(time.Hour))
		require.NotEmpty(t, detached.Detach())
		require.Equal(t, time.Second, r.TTL("lock:a"))

		time.Sleep(time.Second)
		limited := r.acquire("a", time.Second, WithMinHold(time.Hour), WithWatchdog(), WithMaxHold(2*time.Second))
		awaitEnd(t, limited.Done())
		time.Sleep(time.Second)
		require.False(t, r.Exists("lock:a"))
	})
}

// The handle, and others with its token, have no effect on a name that is kept.
func TestTheTokenOfAKeptNameIsVoid(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", 30*time.Second, WithMinHold(time.Hour), WithWatchdog())
		second, err := r.locker().Resume(t.Context(), "a", lock.Token(), 30*time.Second)
		require.NoError(t, err)
		arrive := r.net.delay(opExtend)
		time.Sleep(11 * time.Second) // a renewal is on its way
		require.NoError(t, lock.Release(t.Context()))
		arrive()
		synctest.Wait()
		value := r.value("lock:a")
		require.Equal(t, time.Hour-11*time.Second, r.TTL("lock:a"))

		requireFailure(t, lock.Release(t.Context()), opRelease, "lock:a", ErrReleased)
		requireFailure(t, lock.Extend(t.Context(), time.Minute), opExtend, "lock:a", ErrReleased)
		requireFailure(t, second.Extend(t.Context(), time.Minute), opExtend, "lock:a", ErrNotHeld)
		requireFailure(t, second.Release(t.Context()), opRelease, "lock:a", ErrNotHeld)
		for _, token := range []string{lock.Token(), value, strings.Fields(value)[0]} {
			_, err = r.locker().Resume(t.Context(), "a", token, time.Minute)
			requireFailure(t, err, opResume, "lock:a", ErrNotHeld)
		}
		require.Equal(t, value, r.value("lock:a"))
		require.Equal(t, time.Hour-11*time.Second, r.TTL("lock:a"))
	})
}

func TestKeepingReleaseWhoseReplyIsLost(t *testing.T) {
	for name, lose := range map[string]func(r *fakeRedis){
		"reply":             func(r *fakeRedis) { r.net.fail(opKeep, cutReply, 1) },
		"replies":           func(r *fakeRedis) { r.net.fail(opKeep, cutReply, 2) },
		"request":           func(r *fakeRedis) { r.net.fail(opKeep, cutRequest, 1) },
		"forgotten scripts": func(r *fakeRedis) { require.NoError(r.t, r.admin.ScriptFlush(r.t.Context()).Err()) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lk := r.lockerOn(r.connect())
				lock, err := lk.TryAcquire(t.Context(), "a", time.Hour, WithMinHold(time.Minute))
				require.NoError(t, err)
				granted := time.Now()
				waiter := waitFor(t.Context(), lk, "a", time.Hour)
				time.Sleep(time.Second)
				lose(r)
				require.NoError(t, lock.Release(t.Context()))
				require.InDelta(t, time.Minute, time.Since(granted)+r.TTL("lock:a"), float64(time.Second))
				got := <-waiter
				require.NoError(t, got.err)
				require.InDelta(t, time.Minute, got.at.Sub(granted), float64(10*time.Millisecond))
			})
		})
	}
}

// The retry comes when the minimal hold is over, and somebody else has the
// lock.
func TestKeepingReleaseThatIsRepeatedLate(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", time.Minute, WithMinHold(time.Second))
		r.net.fail(opKeep, loseReply, 1)
		released := make(chan error, 1)
		go func() { released <- lock.Release(context.Background()) }()
		next := <-waitFor(t.Context(), r.lockerOn(r.connect()), "a", time.Minute)
		require.NoError(t, next.err)
		require.NoError(t, <-released)
		require.Equal(t, next.lock.Token(), r.value("lock:a"))
	})
}

func TestMinimalHoldThatCannotBeMeant(t *testing.T) {
	for _, d := range []time.Duration{-1, math.MinInt64} {
		for name, take := range optionTakers {
			t.Run(fmt.Sprint(name, d), func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					r.requireSilence(func() {
						op, err := take(r.locker(), t.Context(), WithMinHold(d))
						requireFailure(t, err, op, "lock:a", ErrInvalidTTL)
					})
				})
			})
		}
	}
}

func TestMinimalHoldOfAnyLength(t *testing.T) {
	for d, want := range map[time.Duration]time.Duration{
		0: 0, 1: time.Millisecond, time.Millisecond + 1: 2 * time.Millisecond,
		24 * time.Hour: 24 * time.Hour, maxLease: maxLease, math.MaxInt64: maxLease,
	} {
		t.Run(fmt.Sprint(d), func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lock := r.acquire("a", time.Second, WithMinHold(d))
				require.NoError(t, lock.Release(t.Context()))
				require.Equal(t, want > 0, r.Exists("lock:a"))
				require.Equal(t, want, r.TTL("lock:a"))
				if want == 0 {
					require.Equal(t, 1, r.requests(opRelease), "none costs nothing")
				}
			})
		})
	}
}

func TestMinimalHoldInWithLock(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		run := func() error {
			return r.locker().WithLock(t.Context(), "a", time.Second, func(context.Context, *Lock) error { return errWork }, WithMinHold(time.Minute))
		}
		require.Equal(t, errWork, run())
		require.Equal(t, time.Minute, r.TTL("lock:a"))
		time.Sleep(time.Minute)
		require.Equal(t, errWork, run())
	})
}

// WithLock's release fails, and goes on in the background.
func TestMinimalHoldInTheBackground(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		err := r.locker().WithLock(t.Context(), "a", time.Minute, func(context.Context, *Lock) error {
			r.net.down()
			time.AfterFunc(2*time.Second, r.net.up)
			return nil
		}, WithMinHold(time.Hour))
		require.Error(t, err)
		time.Sleep(undoBound)
		require.True(t, strings.HasPrefix(r.value("lock:a"), keptMark))
		require.Equal(t, time.Hour, r.TTL("lock:a").Round(time.Minute))
	})
}

func TestMinimalHoldOfAnAdoptedLockCountsFromTheGrant(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", time.Minute)
		time.Sleep(20 * time.Second)
		resumed, err := r.locker().Resume(t.Context(), "a", lock.Detach(), time.Minute, WithMinHold(time.Hour))
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		require.NoError(t, resumed.Release(t.Context()))
		requireKept(t, r, r.locker(), lock, time.Hour-30*time.Second, "")
	})
}

// The option belongs to a handle: an adopted lock has none, unless Resume is
// told.
func TestMinimalHoldIsNotInherited(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", time.Minute, WithMinHold(time.Hour))
		resumed, err := r.locker().Resume(t.Context(), "a", lock.Detach(), time.Minute)
		require.NoError(t, err)
		require.NoError(t, resumed.Release(t.Context()))
		require.False(t, r.Exists("lock:a"))
	})
}

func TestAcquisitionThatFailsKeepsNothing(t *testing.T) {
	t.Run("abandoned", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *fakeRedis) {
			r.net.fail(opAcquire, loseReply, 1)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, err := r.locker().Acquire(ctx, "a", time.Minute, WithMinHold(time.Hour))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			time.Sleep(undoBound)
			require.False(t, r.Exists("lock:a"))
			require.Zero(t, r.requests(opKeep))
		})
	})
	t.Run("not replicated", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *fakeRedis) { // miniredis does not know WAIT
			_, err := r.locker(WithReplicas(1, time.Second)).TryAcquire(t.Context(), "a", time.Minute, WithMinHold(time.Hour))
			require.ErrorIs(t, err, ErrNotReplicated)
			require.False(t, r.Exists("lock:a"))
		})
	})
	t.Run("no majority", func(t *testing.T) {
		inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
			q.nodes[0].net.down()
			q.nodes[1].take("lock:a")
			_, err := q.TryAcquire(t.Context(), "a", time.Minute, WithMinHold(time.Hour))
			require.Error(t, err)
			time.Sleep(undoBound)
			require.Empty(t, q.nodes[0].value("lock:a"))
			require.Empty(t, q.nodes[2].value("lock:a"))
		})
	})
}

// A grant comes while a hook panics: nobody gets the lock.
func TestGrantThatNobodyGetsKeepsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		client := r.connect()
		lk := r.lockerOn(client)
		client.AddHook(panicWithGrant{lk, new(atomic.Bool)})
		require.Panics(t, func() {
			_, _ = lk.Acquire(context.Background(), "a", time.Minute, WithMinHold(time.Hour))
		})
		require.Equal(t, 1, r.requests(opAcquire))
		time.Sleep(time.Second)
		require.False(t, r.Exists("lock:a"))
	})
}

// panicWithGrant has the one that asks be brought along by a release, and
// panics.
type panicWithGrant struct {
	lk   *Locker
	done *atomic.Bool
}

func (h panicWithGrant) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h panicWithGrant) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == "evalsha" && h.done.CompareAndSwap(false, true) {
			now := time.Now()
			h.lk.lines.Held("lock:a", "holder")
			w, _, _ := h.lk.lines.Bring("lock:a", "holder")
			h.lk.lines.Brought(w, line.News{Next: line.NextGranted, Sent: now, Fence: now.UnixMicro(), Server: now.UnixMicro()})
			panic("of a hook")
		}
		return err
	}
}

func (h panicWithGrant) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// --- the server's clock -----------------------------------------------------------------

func TestMinimalHoldCountsByTheServersClock(t *testing.T) {
	const least = time.Minute
	for name, c := range map[string]struct{ set, want time.Duration }{
		"went on":         {20 * time.Second, 40 * time.Second},
		"was set back":    {-time.Hour, least},
		"was set forward": {59 * time.Second, time.Second},
		"is past it":      {time.Minute, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				server := time.Now().Add(1000 * time.Hour)
				r.SetTime(server)
				lock := r.acquire("a", 12*time.Hour, WithMinHold(least))
				r.SetTime(server.Add(c.set))
				require.NoError(t, lock.Release(t.Context()))
				require.Equal(t, c.want, r.TTL("lock:a"))
			})
		})
	}
}

// The fence is above the time of the grant then.
func TestMinimalHoldOfALockThatWasGrantedAfterTheClockWasSetBack(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		server := time.Now().Add(1000 * time.Hour)
		r.SetTime(server)
		require.NoError(t, r.acquire("a", time.Minute).Release(t.Context()))
		server = server.Add(-10 * time.Minute)
		r.SetTime(server)
		lock := r.acquire("a", time.Hour, WithMinHold(time.Minute))
		require.Greater(t, lock.Fence(), server.Add(9*time.Minute).UnixMicro())
		r.SetTime(server.Add(20 * time.Second))
		require.NoError(t, lock.Release(t.Context()))
		require.Equal(t, 40*time.Second, r.TTL("lock:a"))
	})
}

// --- waiters ----------------------------------------------------------------------------

// They have been told of a lease of ten minutes, and would ask again after as
// long as they have waited.
func TestWaitersAreServedWhenTheMinimalHoldIsOver(t *testing.T) {
	const ttl, least, held = 10 * time.Minute, 100 * time.Second, 99 * time.Second
	for name, lockers := range map[string][]int{ // whose: 0 is the holder's
		"same process":     {0},
		"another":          {1},
		"several of one":   {0, 0, 0},
		"several":          {1, 2, 3, 0, 1},
		"more than a few":  {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
		"theirs, then own": {1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				var all []*Locker
				for range 13 {
					all = append(all, r.lockerOn(r.connect(), WithPollInterval(time.Hour)))
				}
				lock, err := all[0].TryAcquire(t.Context(), "a", ttl, WithMinHold(least))
				require.NoError(t, err)
				granted := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				entered := make(chan time.Time, len(lockers))
				var wg sync.WaitGroup
				defer wg.Wait()
				for _, i := range lockers {
					wg.Go(func() {
						if err := all[i].WithLock(ctx, "a", ttl, func(context.Context, *Lock) error {
							entered <- time.Now()
							return nil
						}); err != nil {
							t.Error(err)
						}
					})
					time.Sleep(50 * time.Millisecond)
				}
				time.Sleep(time.Until(granted.Add(held)))
				asked := r.requests(opAcquire)
				require.NoError(t, lock.Release(t.Context()))
				synctest.Wait()
				require.LessOrEqual(t, r.requests(opAcquire)-asked, len(lockers), "they ask once")
				time.Sleep(time.Until(granted.Add(least - 10*time.Millisecond)))
				require.Empty(t, entered, "not before")
				for range lockers {
					at := <-entered
					require.InDelta(t, least, at.Sub(granted), float64(50*time.Millisecond))
				}
			})
		})
	}
}

// Those of them that are frozen cost nothing but the roll-call, however many
// there are: the others are told of the end all the same, and have the lock in
// their order.
func TestFrozenWaitersBehindAMinimalHold(t *testing.T) {
	const least = 100 * time.Second
	for _, n := range []int{1, 4, 10, 100, 900} {
		for _, withOwn := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d, own waiter: %t", n, withOwn), func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					own := r.lockerOn(r.connect(), WithPollInterval(time.Hour))
					lock, err := own.TryAcquire(t.Context(), "a", 10*time.Minute, WithMinHold(least))
					require.NoError(t, err)
					granted := time.Now()
					r.frozenTickets(n)
					var waiters []<-chan acquired
					lockers := []*Locker{r.lockerOn(r.connect(), WithPollInterval(time.Hour)), r.lockerOn(r.connect(), WithPollInterval(time.Hour))}
					if withOwn { // which the release brings along
						lockers = append(lockers, own)
					}
					for _, lk := range lockers {
						waiters = append(waiters, waitFor(t.Context(), lk, "a", 10*time.Minute))
						time.Sleep(50 * time.Millisecond)
					}
					time.Sleep(time.Until(granted.Add(least - time.Second)))
					require.NoError(t, lock.Release(t.Context()))
					over := granted.Add(least)
					for _, w := range waiters {
						got := <-w
						require.NoError(t, got.err)
						require.GreaterOrEqual(t, got.at.Sub(over), time.Duration(0))
						require.LessOrEqual(t, got.at.Sub(over), 75*time.Millisecond)
						require.NoError(t, got.lock.Release(t.Context()))
					}
					require.False(t, r.Exists("{lock:a}:queue"))
				})
			})
		}
	}
}

// A waiter that has the option itself keeps the name in turn, from its own
// grant.
func TestMinimalHoldOfAWaiter(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		holder := r.acquire("a", time.Hour)
		pushed := waitFor(t.Context(), r.lockerOn(r.connect()), "a", time.Hour, WithMinHold(time.Minute), WithMetadata("second"))
		time.Sleep(30 * time.Second)
		require.NoError(t, holder.Release(t.Context()))
		got := <-pushed
		require.NoError(t, got.err)
		granted := time.Now()
		last := waitFor(t.Context(), r.lockerOn(r.connect()), "a", time.Hour)
		time.Sleep(10 * time.Second)
		require.NoError(t, got.lock.Release(t.Context()))
		info, err := r.locker().Inspect(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, Info{Held: true, Metadata: "second", TTL: 50 * time.Second, Fence: got.lock.Fence(), Waiters: 1}, info)
		next := <-last
		require.NoError(t, next.err)
		require.InDelta(t, time.Minute, next.at.Sub(granted), float64(20*time.Millisecond))
	})
}

func TestPollingWaitersAreServedWhenTheMinimalHoldIsOver(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		r.onCommand(func(cmd string, _ ...string) string {
			if cmd == "SUBSCRIBE" {
				return "NOPERM no"
			}
			return ""
		})
		lk := r.lockerOn(r.connect())
		lock, err := lk.TryAcquire(t.Context(), "a", time.Hour, WithMinHold(10*time.Second))
		require.NoError(t, err)
		granted := time.Now()
		own, other := waitFor(t.Context(), lk, "a", time.Second), waitFor(t.Context(), r.lockerOn(r.connect()), "a", time.Second)
		time.Sleep(5 * time.Second)
		require.NoError(t, lock.Release(t.Context()))
		first := <-own
		require.NoError(t, first.err)
		require.GreaterOrEqual(t, first.at.Sub(granted), 10*time.Second)
		require.LessOrEqual(t, first.at.Sub(granted), 12*time.Second)
		require.NoError(t, (<-other).err)
	})
}

// --- the script ---------------------------------------------------------------------------

func TestKeepScript(t *testing.T) {
	const lock, fence, queue = "lock:a", "{lock:a}:fence", "{lock:a}:queue"
	inBubbleEach := func(name string, test func(t *testing.T, r *fakeRedis, run func(args ...any) string)) {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				run := func(args ...any) string {
					reply, err := r.admin.Eval(t.Context(), keepScript.Source, []string{lock, fence, queue}, args...).Result()
					require.NoError(t, err)
					return fmt.Sprint(reply)
				}
				require.NoError(t, r.admin.Set(t.Context(), lock, "tok some one", time.Hour).Err())
				require.NoError(t, r.admin.Set(t.Context(), fence, "5", time.Second).Err())
				test(t, r, run)
			})
		})
	}
	now := func() int64 { return time.Now().UnixMicro() }
	hold := func(passed, least time.Duration) string {
		return minHold{granted: now() - passed.Microseconds(), least: least}.arg()
	}

	inBubbleEach("kept, and again", func(t *testing.T, r *fakeRedis, run func(args ...any) string) {
		for range 2 {
			require.Equal(t, "1", run("tok", 1000, hold(time.Second, time.Minute)))
			require.Equal(t, "kept:tok some one", r.value(lock))
			require.Equal(t, 59*time.Second, r.TTL(lock))
			require.Equal(t, time.Minute, r.TTL(fence))
		}
	})
	inBubbleEach("its ticket is withdrawn", func(t *testing.T, r *fakeRedis, run func(args ...any) string) {
		_, _ = r.ZAdd(queue, 1, "tok 60000 5 1 x")
		require.Equal(t, "1", run("tok", 1000, "tok 60000 5 1 x", hold(0, time.Minute)))
		require.False(t, r.Exists(queue))
	})
	inBubbleEach("brings along", func(t *testing.T, r *fakeRedis, run func(args ...any) string) {
		want := fmt.Sprintf("1 2 60000 %d", now())
		require.Equal(t, want, run("tok", 1000, "", "next 30000 5 1 x", 10000, "next", 30000, hold(0, time.Minute)))
		require.Equal(t, want, run("tok", 1000, "", "next 30000 5 1 x", 10000, "next", 30000, hold(0, time.Minute)))
		tickets, _ := r.ZMembers(queue)
		require.Equal(t, []string{"next 30000 5 1 x"}, tickets)
		require.Equal(t, 10*time.Second, r.TTL(queue))
	})
	inBubbleEach("brings along without an inbox", func(t *testing.T, r *fakeRedis, run func(args ...any) string) {
		want := fmt.Sprintf("1 3 60000 %d", now())
		require.Equal(t, want, run("tok", 1000, "", "next 30000 5 1 -", 0, "next", 30000, hold(0, time.Minute)))
		require.False(t, r.Exists(queue))
	})
	inBubbleEach("over", func(t *testing.T, r *fakeRedis, run func(args ...any) string) {
		require.Equal(t, "1", run("tok", 1000, hold(time.Minute, time.Minute)))
		require.False(t, r.Exists(lock))
	})
	inBubbleEach("over, and brings along", func(t *testing.T, r *fakeRedis, run func(args ...any) string) {
		require.Equal(t, fmt.Sprintf("1 1 %d %[1]d", now()), run("tok", 1000, "", "next 30000 5 1 x", 10000, "next", 30000, hold(time.Hour, time.Minute)))
		require.Equal(t, "next", r.value(lock))
	})
	for _, value := range []string{"other", "tokk", "kept:other tok", "kept:tokk"} {
		inBubbleEach("not its token: "+value, func(t *testing.T, r *fakeRedis, run func(args ...any) string) {
			require.NoError(t, r.admin.Set(t.Context(), lock, value, time.Hour).Err())
			require.Equal(t, "0", run("tok", 1000, hold(0, time.Minute)))
			require.Equal(t, value, r.value(lock))
			require.Equal(t, time.Hour, r.TTL(lock))
		})
	}
	inBubbleEach("those that wait are told", func(t *testing.T, r *fakeRedis, run func(args ...any) string) {
		sub := r.admin.PSubscribe(t.Context(), "lock:inbox:*")
		defer sub.Close()
		_, err := sub.Receive(t.Context())
		require.NoError(t, err)
		for i := range 20 {
			_, _ = r.ZAdd(queue, float64(i), fmt.Sprintf("t%d 60000 5 1 x%[1]d", i))
		}
		_, _ = r.ZAdd(queue, -1, "garbage")
		over := make(chan struct{})
		go func() { // miniredis publishes to those that read
			defer close(over)
			run("tok", 1000, hold(0, time.Minute))
		}()
		for i := range 20 {
			message, err := sub.ReceiveMessage(t.Context())
			require.NoError(t, err)
			require.Equal(t, fmt.Sprintf("lock:inbox:x%d t%[1]d 0 0", i), message.Channel+" "+message.Payload)
		}
		<-over
		_, err = sub.ReceiveTimeout(t.Context(), time.Second)
		require.True(t, wire.IsTimeout(err), "%v", err)
	})
	inBubbleEach("SET is refused", func(t *testing.T, r *fakeRedis, run func(args ...any) string) {
		r.onCommand(func(cmd string, args ...string) string {
			if cmd == "SET" {
				return "NOPERM no"
			}
			return ""
		})
		require.Equal(t, "1", run("tok", 1000, hold(0, time.Minute)))
		require.Equal(t, time.Minute, r.TTL(lock))
	})
}

// While a cluster moves the slot, the lock alone is asked for.
func TestMinimalHoldWhileTheSlotIsMoved(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", time.Minute, WithMinHold(time.Hour), WithMetadata("m"))
		r.answerOnce(opKeep, "TRYAGAIN Multiple keys request during rehashing of slot")
		require.NoError(t, lock.Release(t.Context()))
		require.Equal(t, keptMark+lock.Token()+" m", r.value("lock:a"))
		require.Equal(t, time.Hour, r.TTL("lock:a"))

		late := r.locker()
		time.Sleep(time.Hour)
		lock, err := late.TryAcquire(t.Context(), "a", time.Minute, WithMinHold(time.Second))
		require.NoError(t, err)
		time.Sleep(time.Second)
		r.answerOnce(opKeep, "TRYAGAIN Multiple keys request during rehashing of slot")
		require.NoError(t, lock.Release(t.Context()))
		require.False(t, r.Exists("lock:a"))
	})
}

// --- quorum -------------------------------------------------------------------------------

func TestQuorumMinimalHold(t *testing.T) {
	for name, prepare := range map[string]func(q *fakeQuorum){
		"all":           func(*fakeQuorum) {},
		"one is down":   func(q *fakeQuorum) { q.nodes[1].net.down() },
		"one is taken":  func(q *fakeQuorum) { q.nodes[1].take("lock:a") },
		"one is silent": func(q *fakeQuorum) { q.nodes[1].net.stall() },
	} {
		t.Run(name, func(t *testing.T) {
			inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
				prepare(q)
				lock := q.acquire("a", 10*time.Minute, WithMinHold(10*time.Second), WithMetadata("me"))
				granted := time.Now()
				waiter := waitFor(t.Context(), q.Locker, "a", time.Minute)
				other := waitFor(t.Context(), q.locker(), "a", time.Minute)
				time.Sleep(4 * time.Second)
				require.NoError(t, lock.Release(t.Context()))
				info, err := q.Inspect(t.Context(), "a")
				require.NoError(t, err)
				require.Equal(t, "me", info.Metadata)
				require.Empty(t, info.Token)
				require.True(t, info.Held)
				require.InDelta(t, 10*time.Second, time.Since(granted)+info.TTL, float64(200*time.Millisecond))
				requireFailure(t, lock.Release(t.Context()), opRelease, "lock:a", ErrReleased)
				var first acquired
				select {
				case first = <-waiter:
				case first = <-other:
				}
				require.NoError(t, first.err)
				require.GreaterOrEqual(t, first.at.Sub(granted), 10*time.Second-200*time.Millisecond)
				require.LessOrEqual(t, first.at.Sub(granted), 12*time.Second)
				require.NoError(t, first.lock.Release(t.Context()))
				select {
				case first = <-waiter:
				case first = <-other:
				}
				require.NoError(t, first.err)
			})
		})
	}
}

// Each node counts by its own clock, from when it granted the lock itself.
func TestQuorumMinimalHoldWithClocksThatDiffer(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		clocks := []time.Duration{0, 10 * time.Minute, -time.Hour}
		q.setClocks(clocks...)
		lock := q.acquire("a", time.Hour, WithMinHold(time.Minute))
		time.Sleep(20 * time.Second)
		q.setClocks(clocks...)
		require.NoError(t, lock.Release(t.Context()))
		synctest.Wait()
		for i, r := range q.nodes {
			require.Equal(t, 40*time.Second, r.TTL("lock:a"), "node %d", i)
		}
	})
}

// A node that has not been heard of yet is kept by the background.
func TestQuorumMinimalHoldOfANodeThatIsAwayAtTheRelease(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		lock := q.acquire("a", 2*time.Minute, WithMinHold(time.Minute))
		q.nodes[2].net.down()
		time.Sleep(time.Second)
		require.NoError(t, lock.Release(t.Context()))
		time.Sleep(2 * time.Second)
		q.nodes[2].net.up()
		time.Sleep(10 * time.Second)
		marks := slices.Compact(q.values("a"))
		require.Equal(t, []string{keptMark + lock.Token()}, marks)
		for i, r := range q.nodes {
			require.InDelta(t, 47*time.Second, r.TTL("lock:a"), float64(100*time.Millisecond), "node %d", i)
		}
	})
}

func TestQuorumKeepingReleaseWhoseRepliesAreLost(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		lock := q.acquire("a", time.Minute, WithMinHold(time.Hour))
		for _, r := range q.nodes {
			r.net.fail(opKeep, cutReply, 1)
		}
		require.NoError(t, lock.Release(t.Context()))
		synctest.Wait()
		require.Equal(t, []string{keptMark + lock.Token()}, slices.Compact(q.values("a")))
	})
}
