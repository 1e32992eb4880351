package servertest_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/e2e3f2a3/redislock"
	"github.com/e2e3f2a3/redislock/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// holdAll acquires n names at once.
func holdAll(t *testing.T, lk *redislock.Locker, n int) []*redislock.Lock {
	t.Helper()
	locks, errs := make([]*redislock.Lock, n), make([]error, n)
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() { locks[i], errs[i] = lk.TryAcquire(t.Context(), fmt.Sprint("n", i), 10*time.Minute) })
	}
	calls.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	return locks
}

// waitForAll has a goroutine wait for each of n names, and returns once all
// have tickets. They come in groups: the first question of too many would be
// late.
func waitForAll(ctx context.Context, t *testing.T, lk *redislock.Locker, n int, tickets func() int) (returned *sync.WaitGroup, locks []*redislock.Lock) {
	t.Helper()
	returned, locks = &sync.WaitGroup{}, make([]*redislock.Lock, n)
	for i := range n {
		returned.Go(func() { locks[i], _ = lk.Acquire(ctx, fmt.Sprint("n", i), 10*time.Minute) })
		if started := i + 1; started%500 == 0 || started == n {
			countOf(t, tickets, started, undoBound)
		}
	}
	return returned, locks
}

func releaseAll(t *testing.T, locks []*redislock.Lock) {
	t.Helper()
	errs := make([]error, len(locks))
	var calls sync.WaitGroup
	for i, lock := range locks {
		calls.Go(func() { errs[i] = lock.Release(t.Context()) })
	}
	calls.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
}

// keysLike counts keys; -1 is an error.
func keysLike(client *redis.Client, pattern string) func() int {
	return func() int {
		keys, err := client.Keys(context.Background(), pattern).Result()
		if err != nil {
			return -1
		}
		return len(keys)
	}
}

// countOf waits until there are n of something.
func countOf(t *testing.T, count func() int, n int, within time.Duration) {
	t.Helper()
	last := 0
	counted := func() bool { last = count(); return last == n }
	for end := time.Now().Add(within); !counted(); time.Sleep(20 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "there are %d, not %d", last, n)
	}
}

// 300 calls a second with a deadline of 30 ms, over 50 ms: none of them has a
// lock, and each is granted one.
func TestServerNoLockStaysOfCallsThatTimeOut(t *testing.T) {
	t.Parallel()
	for _, timeouts := range []bool{false, true} {
		t.Run(fmt.Sprint("ContextTimeoutEnabled=", timeouts), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			lk := r.locker(t, func(o *redis.Options) { o.ContextTimeoutEnabled = timeouts })
			r.relay.Delay(50 * time.Millisecond)
			var calls sync.WaitGroup
			ticker := time.NewTicker(time.Second / 300)
			defer ticker.Stop()
			for i := range 3000 {
				<-ticker.C
				calls.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
					defer cancel()
					lock, err := lk.TryAcquire(ctx, fmt.Sprint("n", i), 10*time.Minute)
					if err == nil { // the machine was so busy that the reply had come by then
						_ = lock.Release(context.Background())
					}
				})
			}
			calls.Wait()
			r.nothingHeld(t)
			r.quiet(t, undoBound)
			r.nothingHeld(t)
		})
	}
}

// 10,000 waiters on as many names, 30 ms away, leave at once; then the holders
// release.
func TestServerNoTicketStaysOfWaitersThatLeave(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	const names = 10_000
	r := newRig(t)
	locks := holdAll(t, r.locker(t), names)
	r.relay.Delay(30 * time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	returned, acquired := waitForAll(ctx, t, r.asleep(t), names, keysLike(r.direct, "*:queue"))
	cancel()
	returned.Wait()
	for _, lock := range acquired {
		require.Nil(t, lock)
	}
	countOf(t, keysLike(r.direct, "*:queue"), 0, undoBound)
	releaseAll(t, locks)
	countOf(t, keysLike(r.direct, "lock:n*"), 0, soon)
	r.quiet(t, undoBound)
}

// Holders release while the waiters leave: grants that come for tokens whose
// waiters have gone are given back.
func TestServerGrantsToWaitersThatLeaveAreGivenBack(t *testing.T) {
	t.Parallel()
	const names = 2000
	r := newRig(t)
	locks := holdAll(t, r.locker(t), names)
	r.relay.Delay(30 * time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	returned, acquired := waitForAll(ctx, t, r.asleep(t), names, keysLike(r.direct, "*:queue"))
	time.AfterFunc(100*time.Millisecond, cancel)
	releaseAll(t, locks)
	returned.Wait()
	releaseAll(t, slices.DeleteFunc(acquired, func(lock *redislock.Lock) bool { return lock == nil }))
	countOf(t, keysLike(r.direct, "*:queue"), 0, undoBound)
	countOf(t, keysLike(r.direct, "lock:n*"), 0, undoBound)
}

// 100 calls a second fail for eight seconds, in which Redis stands still.
func TestServerUndoingIsBoundedWhileRedisStandsStill(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	r := newRig(t)
	lk := r.locker(t)
	lock := hold(t, lk, "warm", time.Minute)
	require.NoError(t, lock.Release(t.Context()))
	r.server.Pause()
	t.Cleanup(r.server.Resume)
	most := 0
	var calls sync.WaitGroup
	for i := range 800 {
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
			defer cancel()
			_, err := lk.TryAcquire(ctx, fmt.Sprint("n", i), 10*time.Minute)
			assert.Error(t, err)
		})
		if i%20 == 0 {
			undoing := slices.DeleteFunc(r.goroutines(), func(stack string) bool { return !strings.Contains(stack, "cleaner") })
			most = max(most, len(undoing))
		}
		time.Sleep(10 * time.Millisecond)
	}
	calls.Wait()
	r.server.Resume()
	require.LessOrEqual(t, most, 8)
	r.quiet(t, 2*undoBound)
	r.nothingHeld(t)
}

// A node of three is silent while waiters of names on all of them leave.
func TestServerClusterSilentNodeHoldsUpUndoingOnNoOther(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	const names = 1500
	c := &shards{Cluster: redistest.StartCluster(t, 3, 0), log: &journal{}}
	c.direct = c.Client(t)
	locks := holdAll(t, c.locker(t), names)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	nodes := make([]*redis.Client, len(c.Nodes()))
	for i, s := range c.Nodes() {
		nodes[i] = s.Client(t)
	}
	tickets := func() (n int) {
		for _, node := range nodes {
			n += keysLike(node, "*:queue")()
		}
		return n
	}
	returned, _ := waitForAll(ctx, t, c.asleep(t), names, tickets)
	require.Positive(t, keysLike(nodes[0], "*:queue")())
	silent := c.Nodes()[0]
	silent.Pause()
	t.Cleanup(silent.Resume)
	cancel()
	returned.Wait()
	for _, node := range nodes[1:] {
		countOf(t, keysLike(node, "*:queue"), 0, soon)
	}
	silent.Resume()
	countOf(t, keysLike(nodes[0], "*:queue"), 0, undoBound)
	releaseAll(t, locks)
	for _, node := range nodes {
		countOf(t, keysLike(node, "lock:n*"), 0, soon)
	}
}
