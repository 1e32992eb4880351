package servertest_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock"
)

// countingDials has a client count the connections that it makes.
func countingDials(made *atomic.Int32) func(*redis.Options) {
	return func(o *redis.Options) {
		dial := redis.NewDialer(o)
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			made.Add(1)
			return dial(ctx, network, addr)
		}
	}
}

// A server that stands still for a moment, under load: every section is run,
// under a lock of its own, and few connections are lost. Requests that callers
// make themselves lose one at most, see docs/decisions/17-direct-requests.md.
func TestServerDirectRequestsSurviveAServerThatStandsStill(t *testing.T) {
	const goroutines, stalls = 16, 5
	for _, stall := range []time.Duration{30 * time.Millisecond, 60 * time.Millisecond, 200 * time.Millisecond} {
		t.Run(stall.String(), func(t *testing.T) {
			r := newRig(t)
			var made, cycles atomic.Int32
			lk := r.lockerWith(r.server.Client(t, contextTimeouts, countingDials(&made)))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var stopped atomic.Bool
			var work sync.WaitGroup
			for i := range goroutines {
				work.Go(func() {
					for !stopped.Load() {
						err := lk.WithLock(ctx, fmt.Sprint(i), 10*time.Second, func(context.Context, *redislock.Lock) error {
							cycles.Add(1)
							return nil
						})
						if !assert.NoError(t, err) {
							return
						}
					}
				})
			}
			ran := func(n int32) bool {
				until := cycles.Load() + n
				return eventually(10*time.Second, func() bool { return cycles.Load() >= until })
			}
			require.True(t, ran(1000), "warm")
			before := made.Load()
			for range stalls {
				r.server.Do(t, "DEBUG", "SLEEP", stall.Seconds())
				require.True(t, ran(200), "it goes on")
			}
			stopped.Store(true)
			work.Wait()
			t.Logf("%d connections before, %d more for %d stalls; %d sections", before, made.Load()-before, stalls, cycles.Load())
			// Besides the direct one, two round trips are under way in each 25
			// ms of a stall, on connections that are not lost.
			assert.LessOrEqual(t, int(made.Load()-before), stalls+2*int(stall/(25*time.Millisecond)+1)+2)
			r.nothingHeld(t)
		})
	}
}

// One goroutine alone, whose requests are direct: a stall costs one connection
// and one repetition.
func TestServerDirectRequestThatIsLateIsMadeOnceMore(t *testing.T) {
	r := newRig(t)
	var made atomic.Int32
	lk := r.lockerWith(r.server.Client(t, contextTimeouts, countingDials(&made)))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cycle := func() {
		lock, err := lk.TryAcquire(ctx, "a", 10*time.Second)
		require.NoError(t, err)
		require.NoError(t, lock.Release(ctx))
	}
	// stall has the server stand still, and returns how many connections that
	// costs.
	stall := func() int32 {
		for range 100 {
			cycle()
		}
		before := made.Load()
		slept := make(chan struct{})
		go func() {
			defer close(slept)
			r.server.Do(t, "DEBUG", "SLEEP", "0.2")
		}()
		for !isClosed(slept) {
			cycle()
		}
		cycle()
		return made.Load() - before
	}
	var lost int32
	for range 10 { // on a busy machine no request may be direct when it begins
		lost = max(lost, stall())
		require.LessOrEqual(t, lost, int32(4), "the one that was lost, and those of its repetition")
		if lost > 0 {
			break
		}
	}
	require.Positive(t, lost, "no request was direct")
	r.nothingHeld(t)
}
