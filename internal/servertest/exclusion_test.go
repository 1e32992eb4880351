package servertest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/e2e3f2a3/redislock"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestServerFencesGrowWhateverHappens(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	lk := r.lockerWith(r.relay.Client(t), redislock.WithFenceRetention(time.Minute))
	acquire := func() *redislock.Lock { return hold(t, lk, "a", 50*time.Millisecond) }
	last := acquire()
	expire := func() { r.gone(t, "a", soon) }
	var recorded int64
	for i, happen := range []func(){
		func() { _ = last.Release(ctx) },
		expire,
		func() { require.NoError(t, r.direct.Del(ctx, keyOf("a")).Err()) },
		func() { require.NoError(t, r.direct.Del(ctx, keyOf("a"), fenceOf("a")).Err()) },
		func() { require.NoError(t, r.direct.FlushAll(ctx).Err()) },
		r.server.Restart, // without persistence
		func() { r.server.Kill(); r.server.Restart() },
		func() { // its clock is an hour behind: what it minted before is in the record
			recorded = last.Fence() + 3_600_000_000
			require.NoError(t, r.direct.Set(ctx, fenceOf("a"), recorded, time.Minute).Err())
			expire()
		},
		func() { _ = last.Release(ctx); expire() },
	} {
		happen()
		var next *redislock.Lock
		require.Eventually(t, func() (ok bool) { // the pool may hold connections to the old process
			var err error
			next, err = lk.TryAcquire(ctx, "a", 50*time.Millisecond)
			return err == nil
		}, soon, tick)
		assert.Greater(t, next.Fence(), last.Fence(), "after event %d", i)
		assert.Greater(t, next.Fence(), recorded, "after event %d", i)
		last = next
	}
	_ = last.Release(ctx)
}

func TestServerFencesOfConcurrentAcquirersGrowInTheOrderOfHolding(t *testing.T) {
	t.Parallel()
	const lockers, each = 4, 25
	r := newRig(t)
	var fences []int64 // guarded by the lock under test
	var wg sync.WaitGroup
	for range lockers {
		lk := r.poller(t)
		for range each {
			wg.Go(func() {
				assert.NoError(t, lk.WithLock(t.Context(), "a", 10*time.Second, func(_ context.Context, lock *redislock.Lock) error {
					fences = append(fences, lock.Fence())
					return nil
				}))
			})
		}
	}
	wg.Wait()
	require.Len(t, fences, lockers*each)
	for i := range fences[1:] {
		assert.Greater(t, fences[i+1], fences[i])
	}
}

func TestServerLocksOfOtherLibrariesAndOursExcludeEachOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, lk := t.Context(), r.poller(t)
	theirs := func(name string, ttl time.Duration) bool { // SET key token NX PX
		return r.direct.SetNX(ctx, keyOf(name), "theirs", ttl).Val()
	}
	t.Run("theirs excludes ours", func(t *testing.T) {
		require.True(t, theirs("a", time.Minute))
		_, err := lk.TryAcquire(ctx, "a", time.Minute)
		require.ErrorIs(t, err, redislock.ErrNotAcquired)
		info, err := lk.Inspect(ctx, "a")
		require.NoError(t, err)
		assert.True(t, info.Held)
		assert.Equal(t, "theirs", info.Token)
		wait := r.waiting(ctx, t, lk, "a", time.Minute)
		require.Equal(t, int64(1), deleteIf.Run(ctx, r.direct, []string{keyOf("a")}, "theirs").Val())
		lock, err := wait(t)
		require.NoError(t, err)
		require.NoError(t, lock.Release(ctx))
	})
	for _, metadata := range []string{"", "me"} {
		t.Run(fmt.Sprintf("ours excludes theirs, metadata %q", metadata), func(t *testing.T) {
			lock := hold(t, lk, "b", time.Minute, redislock.WithMetadata(metadata))
			assert.False(t, theirs("b", time.Minute))
			assert.Equal(t, int64(0), deleteIf.Run(ctx, r.direct, []string{keyOf("b")}, "theirs").Val())
			if metadata == "" {
				assert.Equal(t, lock.Token(), r.value(t, "b"), "the token, exactly")
			} else {
				assert.Equal(t, lock.Token()+" "+metadata, r.value(t, "b"))
			}
			require.NoError(t, lock.Release(ctx))
			assert.True(t, theirs("b", time.Millisecond))
			r.gone(t, "b", soon)
		})
	}
	t.Run("theirs can release and adopt ours by its token", func(t *testing.T) {
		lock := hold(t, lk, "c", time.Minute)
		require.Equal(t, int64(1), deleteIf.Run(ctx, r.direct, []string{keyOf("c")}, lock.Token()).Val())
		require.ErrorIs(t, lock.Release(ctx), redislock.ErrNotHeld)
	})
	t.Run("ours adopts theirs by its token", func(t *testing.T) {
		require.True(t, theirs("d", time.Minute))
		lock, err := lk.Resume(ctx, "d", "theirs", 2*time.Minute)
		require.NoError(t, err)
		assert.Positive(t, lock.Fence())
		assert.Greater(t, r.direct.PTTL(ctx, keyOf("d")).Val(), time.Minute)
		require.NoError(t, lock.Release(ctx))
		assert.Empty(t, r.value(t, "d"))
	})
	t.Run("a token that begins like another", func(t *testing.T) {
		require.NoError(t, r.direct.Set(ctx, keyOf("e"), "tokens", time.Minute).Err())
		_, err := lk.Resume(ctx, "e", "token", time.Minute)
		require.ErrorIs(t, err, redislock.ErrNotHeld)
	})
}

// hammer has 50 goroutines of three processes and a stranger with SET NX PX
// work on one lock, until ctx ends, and counts how often each kind held it.
// What they change is guarded by nothing else.
//
// Those who wait hand the lock over to each other, so that it is never free for
// one who polls. Hence the lulls, in which they let those finish who have
// begun.
type hammer struct {
	lull      sync.RWMutex // held for writing: nobody begins
	inside    atomic.Int32 // how many are in the critical section
	violation atomic.Int32
	sections  int   // guarded by the lock under test
	fence     int64 // the greatest so far; likewise
	counted   atomic.Int64
	strangers atomic.Int64
}

func (h *hammer) section(t *testing.T, fence int64) {
	if h.inside.Add(1) != 1 {
		h.violation.Add(1)
	}
	n := h.sections
	if fence != 0 {
		if fence <= h.fence {
			t.Errorf("fence %d after %d", fence, h.fence)
		}
		h.fence = fence
	}
	time.Sleep(200 * time.Microsecond) // the work
	h.sections = n + 1
	h.counted.Add(1)
	h.inside.Add(-1)
}

func (h *hammer) stranger(ctx context.Context, t *testing.T, c *redis.Client) {
	for i := 0; ctx.Err() == nil; i++ {
		token := fmt.Sprint("stranger", i)
		lull := i%50 == 49
		if lull {
			h.lull.Lock()
		}
		ok, err := c.SetNX(ctx, keyOf("a"), token, time.Minute).Result()
		if lull {
			h.lull.Unlock() // the others come while the stranger has it
		}
		if err != nil || !ok {
			continue
		}
		h.section(t, 0)
		h.strangers.Add(1)
		assert.Equal(t, int64(1), deleteIf.Run(context.Background(), c, []string{keyOf("a")}, token).Val())
		time.Sleep(2 * time.Millisecond) // leaves the others something
	}
}

func (h *hammer) goroutine(ctx context.Context, t *testing.T, lk *redislock.Locker, i int) {
	for ctx.Err() == nil {
		h.once(ctx, t, lk, i%5 == 0)
	}
}

// once takes the lock once. Some only try, hold it without a watchdog, and
// release it by themselves.
func (h *hammer) once(ctx context.Context, t *testing.T, lk *redislock.Locker, try bool) {
	h.lull.RLock()
	defer h.lull.RUnlock()
	if !try {
		err := lk.WithLock(ctx, "a", 3*time.Second, func(_ context.Context, lock *redislock.Lock) error {
			h.section(t, lock.Fence())
			return nil
		})
		assert.NotErrorIs(t, err, redislock.ErrLost)
		assert.NotErrorIs(t, err, redislock.ErrNotHeld)
		return
	}
	lock, err := lk.TryAcquire(ctx, "a", 10*time.Second)
	if err != nil {
		return
	}
	h.section(t, lock.Fence())
	for err = lock.Release(context.Background()); err != nil; err = lock.Release(context.Background()) {
		if !assert.NotErrorIs(t, err, redislock.ErrNotHeld) || !assert.NotErrorIs(t, err, redislock.ErrReleased) {
			return
		}
	}
}

// Not parallel: it takes all the machine has.
func TestServerMutualExclusionHoldsUnderChaos(t *testing.T) {
	const lockers, goroutines = 3, 50
	r := newRig(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	var h hammer
	var wg sync.WaitGroup
	for l := range lockers {
		lk := r.lockerWith(r.relay.Client(t), redislock.WithPollInterval(10*time.Millisecond))
		for i := l; i < goroutines; i += lockers {
			wg.Go(func() { h.goroutine(ctx, t, lk, i) })
		}
	}
	wg.Go(func() { h.stranger(ctx, t, r.server.Client(t, named("stranger"))) })
	kills := 0
	for ctx.Err() == nil {
		kills += r.killOne(t)
		if kills%4 == 0 {
			assert.NoError(t, r.direct.ScriptFlush(t.Context()).Err())
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond): // the pace of the chaos
		}
	}
	wg.Wait()
	r.quiet(t, undoBound)
	assert.Zero(t, h.violation.Load(), "two held the lock at the same time")
	assert.Equal(t, h.counted.Load(), int64(h.sections), "increments were lost")
	assert.Greater(t, h.counted.Load(), int64(100))
	assert.Positive(t, h.strangers.Load())
	t.Logf("%d sections, %d of them by the stranger; %d connections killed", h.sections, h.strangers.Load(), kills)
	assert.Empty(t, r.log.about("lock lost"))
	assert.Empty(t, r.log.about("nothing to release"))
}

func named(name string) func(*redis.Options) {
	return func(o *redis.Options) { o.ClientName = name }
}

// killOne kills some connection, but for the stranger's (whose own retries
// would be at fault) and the one that it uses itself.
func (r *rig) killOne(t *testing.T) int {
	ctx := context.Background()
	var ids []string
	for line := range strings.Lines(r.direct.ClientList(ctx).Val()) {
		if id, _, ok := strings.Cut(strings.TrimPrefix(line, "id="), " "); ok && !strings.Contains(line, "name=stranger") && !strings.Contains(line, "cmd=client") {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return 0
	}
	return int(r.direct.ClientKillByFilter(ctx, "ID", ids[rand.N(len(ids))]).Val())
}
