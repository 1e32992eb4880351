package redislock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// trips notes the size of every round trip of a client.
type trips struct {
	mu      sync.Mutex
	sizes   []int
	named   int            // scripts that were sent by their name
	sources map[string]int // scripts that were sent as a whole
	panic   atomic.Bool    // instead of sending
}

func (h *trips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.note(cmd)
		return next(ctx, cmd)
	}
}

func (h *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.note(cmds...)
		return next(ctx, cmds)
	}
}

func (h *trips) note(cmds ...redis.Cmder) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.panic.Load() {
		panic("hook")
	}
	h.sizes = append(h.sizes, len(cmds))
	for _, cmd := range cmds {
		switch cmd.Name() {
		case "eval":
			h.sources[cmd.Args()[1].(string)]++
		case "evalsha":
			h.named++
		}
	}
}

func (h *trips) taken() []int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sizes
}

func (r *fakeRedis) countTrips() *trips {
	h := &trips{sources: map[string]int{}}
	r.client.AddHook(h)
	return h
}

const flight = 10 * time.Millisecond

// slow makes every round trip take as long as a flight, on connections that
// stand already: in both pools, since go-redis 9.23 has one of its own for
// pipelines.
func (r *fakeRedis) slow() {
	together(3*wire.Trips, func(int) {
		r.client.Get(r.t.Context(), "x")
		_, _ = r.client.Pipelined(r.t.Context(), func(p redis.Pipeliner) error {
			p.Get(r.t.Context(), "x")
			return p.Get(r.t.Context(), "x").Err()
		})
	})
	r.delayed()
}

// delayed does so without making connections.
func (r *fakeRedis) delayed() { r.net.setLatency(func() time.Duration { return flight / 2 }) }

// requireIdle fails if the engine of lk is left with anything.
func requireIdle(t *testing.T, lk *Locker) {
	t.Helper()
	synctest.Wait()
	trips, waiting := lk.one().conn.Engine.(interface{ UnderWay() (trips, waiting int) }).UnderWay()
	require.Zero(t, trips, "round trips")
	require.Zero(t, waiting, "requests")
}

// occupy begins as many requests as may be under way. They last a flight.
func (r *fakeRedis) occupy(lk *Locker) {
	for i := range wire.Trips {
		go func() {
			_, err := lk.TryAcquire(r.t.Context(), fmt.Sprint("occupied", i), time.Minute)
			assert.NoError(r.t, err)
		}()
	}
	synctest.Wait()
}

// together calls f as often as said, all at once, and waits for all.
func together(n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) })
	}
	all.Wait()
}

func TestARequestAloneLeavesAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		r.slow()
		h := r.countTrips()
		start := time.Now()
		lock, err := lk.TryAcquire(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		require.NoError(t, lock.Release(context.Background()))
		require.LessOrEqual(t, time.Since(start), 3*flight, "a handshake and two round trips")
		require.Equal(t, []int{1, 1}, h.taken()[len(h.taken())-2:])
		requireIdle(t, lk)
	})
}

func TestRequestsGatherWhileOthersAreUnderWay(t *testing.T) {
	for name, ctx := range map[string]func(t *testing.T) context.Context{
		"callers in a hurry":    (*testing.T).Context,
		"callers with patience": func(*testing.T) context.Context { return context.Background() },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lk := r.locker()
				r.slow()
				h := r.countTrips()
				start := time.Now()
				together(wire.Trips+2*wire.BatchSize, func(i int) {
					_, err := lk.TryAcquire(ctx(t), fmt.Sprint(i), time.Minute)
					assert.NoError(t, err)
				})
				require.Equal(t, []int{1, 1, wire.BatchSize, wire.BatchSize}, h.taken())
				require.Equal(t, 2*flight, time.Since(start))
				requireIdle(t, lk)
			})
		})
	}
}

func TestAFailureInABatchIsThatOfOneRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		_, err := r.Lpush("lock:3", "not a string")
		require.NoError(t, err)
		r.slow()
		h := r.countTrips()
		r.occupy(lk)
		together(10, func(i int) {
			_, err := lk.TryAcquire(t.Context(), fmt.Sprint(i), time.Minute)
			if i == 3 {
				assert.ErrorContains(t, err, "WRONGTYPE")
			} else {
				assert.NoError(t, err)
			}
		})
		require.Contains(t, h.taken(), 10)
	})
}

func TestForgottenScriptsInABatchAreRepairedOneByOne(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		var locks []*Lock
		for i := range 3 {
			lock, err := lk.Acquire(t.Context(), fmt.Sprint("held", i), time.Minute)
			require.NoError(t, err)
			locks = append(locks, lock)
		}
		r.slow()
		r.occupy(lk)
		require.NoError(t, r.admin.ScriptFlush(t.Context()).Err())
		require.NoError(t, r.admin.ScriptLoad(t.Context(), acquireScript.Source).Err())
		h := r.countTrips()
		together(6, func(i int) {
			start := time.Now()
			if i%2 == 0 {
				assert.NoError(t, locks[i/2].Extend(t.Context(), time.Hour))
				return
			}
			_, err := lk.TryAcquire(t.Context(), fmt.Sprint(i), time.Minute)
			assert.NoError(t, err)
			assert.LessOrEqual(t, time.Since(start), 2*flight, "its batch, and the one before")
		})
		require.Equal(t, []int{6, 3}, h.taken())
		require.Equal(t, map[string]int{extendScript.Source: 3}, h.sources)
	})
}

func TestAStuckRoundTripDoesNotHoldUpOthers(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		r.net.fail(opAcquire, loseReply, wire.Trips)
		for i := range wire.Trips {
			go func() { _, _ = lk.TryAcquire(t.Context(), fmt.Sprint("stuck", i), time.Hour) }()
		}
		synctest.Wait()
		for round := range 5 {
			start := time.Now()
			together(10, func(i int) {
				_, err := lk.TryAcquire(t.Context(), fmt.Sprint(round, i), time.Minute)
				assert.NoError(t, err)
			})
			require.LessOrEqual(t, time.Since(start), wire.Overdue)
			require.True(t, round == 0 || time.Since(start) == 0, "those that are overdue do not count any more")
		}
		time.Sleep(time.Minute)
		requireIdle(t, lk)
		require.Len(t, r.Keys(), 5*10+2*wire.Trips, "the stuck ones were executed, and repeated; other leases are over")
	})
}

func TestARequestWhoseCallerHasLeftIsNotSent(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		r.slow()
		r.occupy(lk)
		ctx, cancel := context.WithTimeout(t.Context(), flight/10)
		defer cancel()
		_, err := lk.TryAcquire(ctx, "a", time.Minute)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(time.Minute - flight)
		require.False(t, r.Exists("lock:a"))
		require.False(t, r.Exists("{lock:a}:fence"), "it was not executed")
		requireIdle(t, lk)
	})
}

func TestABatchIsNotRepeatedByTheClient(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		const n = 10
		var locks [n]*Lock
		for i := range locks {
			var err error
			locks[i], err = lk.Acquire(t.Context(), fmt.Sprint(i), time.Minute)
			require.NoError(t, err)
		}
		r.slow()
		r.occupy(lk)
		h := r.countTrips()
		r.net.fail(opRelease, cutReply, 1)
		before := r.requests(opRelease)
		together(n, func(i int) { assert.NoError(t, locks[i].Release(t.Context())) })
		require.Equal(t, n, h.taken()[0])
		require.Equal(t, 2*n, r.requests(opRelease)-before, "once by the cut batch, and once more to make sure")
		for i := range locks {
			require.False(t, r.Exists(fmt.Sprint("lock:", i)))
		}
	})
}

func TestARefusedConnectionFailsABatchAndNothingElse(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		r.delayed()
		r.net.down()
		together(10, func(i int) {
			_, err := lk.TryAcquire(t.Context(), fmt.Sprint(i), time.Minute)
			var refused *net.OpError
			assert.True(t, errors.As(err, &refused) || errors.Is(err, errRefused), "%v", err)
		})
		r.net.up()
		_, err := lk.TryAcquire(t.Context(), "a", time.Minute)
		require.NoError(t, err)
	})
}

func TestAHookThatPanicsLeavesNothingUnderWay(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		h := r.countTrips()
		h.panic.Store(true)
		for range 2 * wire.Trips {
			require.PanicsWithValue(t, "hook", func() { _, _ = lk.TryAcquire(context.Background(), "a", time.Minute) })
		}
		h.panic.Store(false) // while undoing may be under way
		_, err := lk.TryAcquire(context.Background(), "a", time.Minute)
		require.NoError(t, err)
		requireIdle(t, lk)
	})
}

func TestACallerLeavesWhileAScriptIsRepeated(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		_, _ = lk.Inspect(t.Context(), "x")
		r.slow()
		for i := range 20 {
			require.NoError(t, r.admin.ScriptFlush(t.Context()).Err())
			ctx, cancel := context.WithTimeout(t.Context(), flight+flight/2)
			_, err := lk.TryAcquire(ctx, fmt.Sprint(i), time.Minute)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
			time.Sleep(time.Second)
		}
	})
}

func TestAnEmptyReplyMayMeanAnything(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		r.Server().SetPreHook(func(peer *server.Peer, cmd string, args ...string) bool {
			if operation(cmd, args) == opAcquire {
				peer.WriteNull()
				return true
			}
			return r.hook(peer, cmd, args...)
		})
		_, err := r.locker().TryAcquire(t.Context(), "a", time.Minute)
		require.ErrorContains(t, err, "unexpected script reply")
		synctest.Wait()
		require.Positive(t, r.requests(opRelease), "it is undone")
	})
}

func TestRepliesThatCameBeforeTheConnectionWasLostCount(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		r.delayed()
		h := r.countTrips()
		r.occupy(lk)
		const n, fatal = 10, 6
		var mu sync.Mutex
		asked := 0
		r.answerWith(func(string) string {
			mu.Lock()
			asked++
			lost := asked == wire.Trips+fatal
			mu.Unlock()
			if lost {
				time.Sleep(flight) // the replies to the others arrive
				r.net.cut()
			}
			return ""
		})
		together(n, func(i int) {
			_, err := lk.TryAcquire(t.Context(), fmt.Sprint(i), time.Minute)
			assert.NoError(t, err)
		})
		const again = n - (fatal - 1) + wire.Trips // on what they were sent first, the other connections are lost as well
		require.LessOrEqual(t, h.named, wire.Trips+n+again, "only those without a reply are sent again")
	})
}
