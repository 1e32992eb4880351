package servertest_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/e2e3f2a3/redislock"
	"github.com/e2e3f2a3/redislock/internal/redistest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// blocked is how many connections wait in a blocking command, WAIT for example.
func (r *rig) blocked(t testing.TB) int {
	t.Helper()
	for line := range strings.Lines(r.direct.Info(context.Background(), "clients").Val()) {
		if n, found := strings.CutPrefix(line, "blocked_clients:"); found {
			blocked, err := strconv.Atoi(strings.TrimSpace(n))
			require.NoError(t, err)
			return blocked
		}
	}
	require.FailNow(t, "no blocked_clients")
	return 0
}

// What keeps a lock does not wait behind acquisitions that wait for replicas,
// however many they are.
func TestServerReplicasThatAreSilentCostNoRenewal(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	const ttl, crowd, atOnce = 3 * time.Second, 200, 2
	r := newFollowed(t, 1)
	client := r.server.Client(t) // with the default pool
	lk := r.lockerWith(client, redislock.WithReplicas(1, time.Second))
	r.acknowledges(t, lk)
	held := hold(t, lk, "held", ttl, redislock.WithWatchdog())
	r.replicas[0].Pause()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range crowd {
		all.Go(func() {
			for ctx.Err() == nil {
				_, err := lk.TryAcquire(ctx, fmt.Sprint("other", i), time.Minute)
				assert.Error(t, err)
				if ctx.Err() == nil {
					assert.ErrorIs(t, err, redislock.ErrNotReplicated)
				}
			}
		})
	}
	most := 0
	for began := time.Now(); time.Since(began) < 4*ttl; time.Sleep(10 * time.Millisecond) { // what is measured
		most = max(most, r.blocked(t))
		require.NoError(t, held.Err())
		require.Greater(t, time.Until(held.Until()), ttl/4, "it is renewed in time")
	}
	t.Logf("at most %d connections waited", most)
	assert.Positive(t, most)
	assert.LessOrEqual(t, most, atOnce)
	cancel()
	all.Wait()
	require.NoError(t, held.Release(t.Context()))
	r.settled(t)
}

// One WAIT speaks for a whole batch, of which some have the lock and some have
// not.
func TestServerReplicasAnswerForABatch(t *testing.T) {
	t.Parallel()
	const n = 30
	r := newFollowed(t, 1)
	ctx := t.Context()
	lk := r.acknowledged(t, 1, 300*time.Millisecond)
	r.acknowledges(t, lk)
	plain := r.locker(t)
	var taken []*redislock.Lock
	for i := range n / 3 {
		taken = append(taken, hold(t, plain, fmt.Sprint("b", 3*i), time.Minute))
	}
	attempt := func() (errs [n]error) {
		r.relay.ForgetRequests()
		r.relay.Delay(20 * time.Millisecond)
		defer r.relay.Delay(0)
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				var lock *redislock.Lock
				if lock, errs[i] = lk.TryAcquire(ctx, fmt.Sprint("b", i), time.Minute); errs[i] == nil {
					errs[i] = lock.Release(ctx)
				}
			})
		}
		all.Wait()
		return errs
	}
	waits := func() int { return stats(t, []*redistest.Server{r.server}, "wait") }
	for _, forgotten := range []bool{false, true} {
		if forgotten {
			require.NoError(t, r.direct.ScriptFlush(ctx).Err())
		}
		before := waits()
		for i, err := range attempt() {
			if i%3 == 0 {
				require.ErrorIs(t, err, redislock.ErrNotAcquired, i)
			} else {
				require.NoError(t, err, i)
			}
		}
		assert.LessOrEqual(t, waits()-before, 10, "they gather")
	}
	r.replicas[0].Pause()
	for i, err := range attempt() {
		name := fmt.Sprint("b", i)
		if i%3 == 0 {
			require.ErrorIs(t, err, redislock.ErrNotAcquired, i)
			assert.Equal(t, taken[i/3].Token(), r.value(t, name), "it was not freed")
		} else {
			r.notReplicated(t, name, err, "0 of 1 replicas")
		}
	}
	r.replicas[0].Resume()
	for _, lock := range taken {
		require.NoError(t, lock.Release(ctx))
	}
	r.settled(t)
}

// On a cluster each primary has its batches, which slots may leave at any time.
func TestServerReplicasAnswerForABatchOnACluster(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	c := startShards(t)
	ctx := t.Context()
	lk := c.locker(t, redislock.WithReplicas(1, soon))
	moved := "moved"
	moving, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() {
		for moving.Err() == nil {
			c.MoveSlot(t, keyOf(moved), c.others(t, keyOf(moved))[0])
		}
	})
	var some sync.WaitGroup
	for g := range 16 {
		some.Go(func() {
			for round := range 30 {
				name := fmt.Sprintf("n%d-%d", g, round)
				if g == 0 {
					name = moved
				}
				lock, err := lk.TryAcquire(ctx, name, time.Minute)
				if name == moved && err != nil && strings.Contains(err.Error(), "TRYAGAIN") {
					continue // its keys were on two nodes for longer than three tries take
				}
				if assert.NoError(t, err, name) {
					assert.NoError(t, lock.Release(ctx), name)
				}
			}
		})
	}
	some.Wait()
	stop()
	all.Wait()
	assert.Empty(t, c.log.about())
}
