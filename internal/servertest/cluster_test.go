package servertest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/e2e3f2a3/redislock"
	"github.com/e2e3f2a3/redislock/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// recovery is what the package adds to a failover of Redis itself, at most: the
// time from the moment when all nodes name a new primary until a lock is served
// there.
const recovery = 2 * time.Second

// lastPause is the longest time between two questions while Redis does not
// serve.
const lastPause = 500 * time.Millisecond

// shards is a real cluster: three primaries with a replica each.
type shards struct {
	*redistest.Cluster
	direct *redis.ClusterClient // the test's own
	log    *journal

	options []func(*redis.ClusterOptions)               // of the Lockers' clients
	wrap    func(*redis.ClusterClient) redislock.Client // them; nil: they are taken as they are
}

func startShards(t *testing.T) *shards {
	t.Helper()
	c := &shards{Cluster: redistest.StartCluster(t, 3, 1), log: &journal{}}
	c.direct = c.Client(t, func(o *redis.ClusterOptions) {
		o.MaxRedirects, o.DialTimeout, o.ReadTimeout = 2, time.Second, 200*time.Millisecond // of a lost node
	})
	return c
}

// locker is a Locker with a client of its own, as another process has.
func (c *shards) locker(t testing.TB, opts ...redislock.Option) *redislock.Locker {
	client := c.Client(t, c.options...)
	if c.wrap != nil {
		return c.lockerWith(c.wrap(client), opts...)
	}
	return c.lockerWith(client, opts...)
}

func (c *shards) lockerWith(client redislock.Client, opts ...redislock.Option) *redislock.Locker {
	return redislock.New(client, append([]redislock.Option{redislock.WithLogger(slog.New(c.log))}, opts...)...)
}

// asleep is a Locker that asks once, and then only if it has a reason.
func (c *shards) asleep(t testing.TB) *redislock.Locker {
	return c.locker(t, redislock.WithPollInterval(time.Hour))
}

func (c *shards) value(name string) string {
	return seen(c, c.direct.Get(context.Background(), keyOf(name)))
}

func (c *shards) queued(name string) int64 {
	return seen(c, c.direct.ZCard(context.Background(), keysOf(name)[2]))
}

// seen is what the test has read. After an error it looks for a new primary.
func seen[T any](c *shards, cmd interface{ Result() (T, error) }) T {
	value, err := cmd.Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		c.direct.ReloadState(context.Background())
	}
	return value
}

// keysOf are the keys of a lock whose name may have a hash tag.
func keysOf(name string) []string {
	if _, behind, _ := strings.Cut(name, "{"); strings.Index(behind, "}") > 0 {
		return []string{keyOf(name), keyOf(name) + ":fence", keyOf(name) + ":queue"}
	}
	return []string{keyOf(name), fenceOf(name), queueOf(name)}
}

// gone waits until the lock's key is gone.
func (c *shards) gone(t testing.TB, name string) {
	t.Helper()
	free := func() bool {
		n, err := c.direct.Exists(context.Background(), keyOf(name)).Result()
		return err == nil && n == 0
	}
	require.Eventually(t, free, soon, tick, "the key of %q is still there", name)
}

// waiting starts an Acquire, and returns once its ticket stands in the queue.
func (c *shards) waiting(ctx context.Context, t testing.TB, lk *redislock.Locker, name string, ttl time.Duration, opts ...redislock.AcquireOption) func(testing.TB) (*redislock.Lock, error) {
	t.Helper()
	before := c.queued(name)
	wait := started(func() (*redislock.Lock, error) { return lk.Acquire(ctx, name, ttl, opts...) })
	require.Eventually(t, func() bool { return c.queued(name) > before }, soon, tick, "no ticket in the queue for %q", name)
	return wait
}

// inLine starts an Acquire, and returns once it stands in the line of lk.
func inLine(ctx context.Context, t testing.TB, lk *redislock.Locker, name string, ttl time.Duration, opts ...redislock.AcquireOption) func(testing.TB) (*redislock.Lock, error) {
	t.Helper()
	watched := &noticed{Context: ctx, waiting: make(chan struct{})}
	wait := started(func() (*redislock.Lock, error) { return lk.Acquire(watched, name, ttl, opts...) })
	awaitWithin(t, watched.waiting, soon, "goroutine in line")
	return wait
}

// stats sums over servers how many of some commands they have executed.
func stats(t testing.TB, servers []*redistest.Server, commands ...string) (calls int) {
	t.Helper()
	for _, s := range servers {
		for line := range strings.Lines(s.Do(t, "info", "commandstats").(string)) {
			for _, command := range commands {
				var n int
				if _, err := fmt.Sscanf(line, "cmdstat_"+command+":calls=%d", &n); err == nil {
					calls += n
				}
			}
		}
	}
	return calls
}

// subscribers is the number of connections to a server that are subscribed.
func subscribers(t testing.TB, s *redistest.Server) (n int) {
	t.Helper()
	for line := range strings.Lines(s.Do(t, "client", "list").(string)) {
		if !strings.Contains(line, " sub=0 psub=0 ") {
			n++
		}
	}
	return n
}

// nameOn is a name whose lock stands on this primary.
func (c *shards) nameOn(t testing.TB, s *redistest.Server, prefix string) string {
	t.Helper()
	for i := 0; ; i++ {
		if name := fmt.Sprint(prefix, i); c.Primary(t, keyOf(name)) == s {
			return name
		}
	}
}

// others are the primaries but for that of a key.
func (c *shards) others(t testing.TB, key string) (others []*redistest.Server) {
	t.Helper()
	own := c.Primary(t, key)
	for _, s := range c.Nodes() {
		if s != own && len(c.Replicas(t, s)) > 0 {
			others = append(others, s)
		}
	}
	return others
}

// renewed waits until the watchdog has renewed a lock.
func renewed(t testing.TB, lock *redislock.Lock, within time.Duration) {
	t.Helper()
	before := lock.Until()
	ok := eventually(within, func() bool { return lock.Err() != nil || lock.Until().After(before) })
	require.NoError(t, lock.Err())
	require.True(t, ok, "no renewal")
}

// resource is what a lock protects: it refuses those whose fence is too small.
type resource struct {
	mu       sync.Mutex
	greatest int64
	accepted int
	refused  int
}

func (r *resource) write(fence int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if fence < r.greatest {
		r.refused++
		return false
	}
	r.greatest = fence
	r.accepted++
	return true
}

func TestServerClusterKeysOfALockShareASlot(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	c := startShards(t)
	ctx, a, b := t.Context(), c.asleep(t), c.asleep(t)
	for name, valid := range map[string]bool{
		"a": true, "{t}a": true, "a{b}c": true, "{a{b}": true, "a{": true, "}a{b}": true, "é 漢": true, " a  b\n": true, "{{}}": true,
		strings.Repeat("x", 1<<20): true, "{" + strings.Repeat("x", 1<<20) + "}": true,
		"{}": false, "a}b{": false, "a{}b{c}": false, "a}b": false, "}{": false, "": false,
	} {
		t.Run(fmt.Sprintf("%.20q", name), func(t *testing.T) {
			holder, err := a.TryAcquire(ctx, name, time.Minute)
			if !valid {
				require.ErrorIs(t, err, redislock.ErrInvalidName)
				_, err = a.Acquire(ctx, name, time.Minute)
				require.ErrorIs(t, err, redislock.ErrInvalidName)
				_, err = a.Inspect(ctx, name)
				require.ErrorIs(t, err, redislock.ErrInvalidName)
				return
			}
			require.NoError(t, err)
			wait := c.waiting(ctx, t, b, name, time.Minute)
			require.NoError(t, holder.Release(ctx))
			lock, err := wait(t)
			require.NoError(t, err)
			assert.Greater(t, lock.Fence(), holder.Fence())
			require.NoError(t, lock.Release(ctx))
			assert.Empty(t, c.value(name))
		})
	}

	t.Run("every method", func(t *testing.T) { c.everyMethod(t) })
	t.Run("hand-over on all nodes", func(t *testing.T) { c.handOverEverywhere(t) })
	t.Run("one subscription for each node", func(t *testing.T) { c.oneSubscriptionEach(t) })
	t.Run("a turn costs one request", func(t *testing.T) { c.turns(t) })
	t.Run("scripts are forgotten", func(t *testing.T) { c.forgottenScripts(t) })
	t.Run("replicas are not asked", func(t *testing.T) { c.readOnlyClients(t) })
	assert.Empty(t, c.log.about())
}

func (c *shards) everyMethod(t *testing.T) {
	ctx, lk := t.Context(), c.locker(t)
	for i, s := range c.Nodes()[:3] {
		name := c.nameOn(t, s, "method")
		lock := hold(t, lk, name, time.Minute, redislock.WithMetadata("me"))
		_, err := lk.TryAcquire(ctx, name, time.Minute)
		require.ErrorIs(t, err, redislock.ErrNotAcquired)
		require.NoError(t, lock.Extend(ctx, time.Hour))
		left, err := lock.TTL(ctx)
		require.NoError(t, err)
		assert.Greater(t, left, 59*time.Minute)
		info, err := lk.Inspect(ctx, name)
		require.NoError(t, err)
		assert.Equal(t, redislock.Info{Held: true, Token: lock.Token(), Metadata: "me", TTL: info.TTL, Fence: lock.Fence()}, info, i)
		adopted, err := c.locker(t).Resume(ctx, name, lock.Token(), time.Minute)
		require.NoError(t, err)
		assert.Equal(t, lock.Fence(), adopted.Fence())
		require.NoError(t, adopted.Release(ctx))
		require.ErrorIs(t, c.locker(t).WithLock(ctx, name, time.Minute, func(_ context.Context, l *redislock.Lock) error {
			assert.Greater(t, l.Fence(), lock.Fence())
			return redis.ErrClosed
		}), redis.ErrClosed)
		assert.Empty(t, c.value(name))
	}
}

func (c *shards) handOverEverywhere(t *testing.T) {
	ctx, a, b := t.Context(), c.asleep(t), c.asleep(t)
	var wg sync.WaitGroup
	for i := range 12 {
		name := fmt.Sprint("everywhere", i)
		holder := hold(t, a, name, time.Minute)
		wait := c.waiting(ctx, t, b, name, time.Minute)
		own := inLine(ctx, t, a, name, time.Minute)
		wg.Go(func() {
			released := time.Now()
			assert.NoError(t, holder.Release(ctx))
			last := holder
			for _, wait := range []func(testing.TB) (*redislock.Lock, error){wait, own} {
				lock, err := wait(t)
				if assert.NoError(t, err) {
					assert.LessOrEqual(t, time.Since(released), wakeUp)
					assert.Greater(t, lock.Fence(), last.Fence())
					released = time.Now()
					assert.NoError(t, lock.Release(ctx))
					last = lock
				}
			}
		})
	}
	wg.Wait()
}

func (c *shards) oneSubscriptionEach(t *testing.T) {
	const names = 30
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a := c.asleep(t)
	primaries := c.Nodes()[:3]
	none := func() bool {
		return !slices.ContainsFunc(c.Nodes(), func(s *redistest.Server) bool { return subscribers(t, s) > 0 })
	}
	require.Eventually(t, none, soon, tick, "of those before")
	lockers := []*redislock.Locker{c.asleep(t), c.asleep(t)}
	for i := range names {
		name := fmt.Sprint("sub", i)
		hold(t, a, name, time.Minute)
		for _, lk := range lockers {
			c.waiting(ctx, t, lk, name, time.Minute)
		}
	}
	for _, s := range primaries {
		assert.Equal(t, len(lockers), subscribers(t, s))
	}
	for _, s := range c.Nodes()[3:] {
		assert.Zero(t, subscribers(t, s), "on a replica")
	}
	cancel()
	require.Eventually(t, none, 5*time.Second, tick, "subscriptions outlive those who waited")
}

func (c *shards) turns(t *testing.T) {
	const processes, goroutines, turns = 8, 8, 800
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	holder := hold(t, c.locker(t), "hot", time.Minute)
	crowd := &crowd{enough: turns, cancel: cancel}
	for p := range processes {
		lk := c.locker(t)
		crowd.counts = append(crowd.counts, make([]int, goroutines))
		for g := range goroutines {
			first := &noticed{Context: ctx, waiting: make(chan struct{})}
			crowd.wg.Go(func() { crowd.work(t, ctx, first, lk, 10*time.Second, &crowd.counts[p][g]) })
			awaitWithin(t, first.waiting, soon, "goroutine in line")
		}
	}
	require.Eventually(t, func() bool { return c.queued("hot") == processes }, soon, tick)
	before := stats(t, c.Nodes(), "eval", "evalsha")
	require.NoError(t, holder.Release(t.Context()))
	crowd.wg.Wait()
	each := float64(stats(t, c.Nodes(), "eval", "evalsha")-before) / turns
	fair := fairness(slices.Concat(crowd.counts...))
	t.Logf("%.3f requests each, fairness %.4f", each, fair)
	assert.LessOrEqual(t, each, 1.05)
	assert.GreaterOrEqual(t, fair, 0.98)
}

// NOSCRIPT costs a round trip and nothing else, wherever it comes: also of a
// batch.
func (c *shards) forgottenScripts(t *testing.T) {
	ctx, a, b := t.Context(), c.asleep(t), c.asleep(t)
	forget := func() {
		for _, s := range c.Nodes() {
			s.Do(t, "script", "flush")
		}
	}
	for i := range 6 {
		name := fmt.Sprint("forgotten", i)
		forget()
		holder := hold(t, a, name, time.Minute)
		forget()
		wait := c.waiting(ctx, t, b, name, time.Minute)
		forget()
		require.NoError(t, holder.Extend(ctx, time.Minute))
		forget()
		require.NoError(t, holder.Release(ctx))
		lock, err := wait(t)
		require.NoError(t, err)
		forget()
		require.NoError(t, lock.Release(ctx))
	}
	forget()
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			assert.NoError(t, a.WithLock(ctx, fmt.Sprint("batch", i), time.Minute, func(context.Context, *redislock.Lock) error { return nil }))
		})
	}
	wg.Wait()
}

// readOnlyClients have their reads served by replicas. Ownership is not among
// them.
func (c *shards) readOnlyClients(t *testing.T) {
	ctx := t.Context()
	for kind, option := range map[string]func(*redis.ClusterOptions){
		"ReadOnly":       func(o *redis.ClusterOptions) { o.ReadOnly = true },
		"RouteByLatency": func(o *redis.ClusterOptions) { o.RouteByLatency = true },
		"RouteRandomly":  func(o *redis.ClusterOptions) { o.RouteRandomly = true },
	} {
		t.Run(kind, func(t *testing.T) {
			before := stats(t, c.Nodes()[3:], "eval", "evalsha", "eval_ro", "evalsha_ro")
			a, b := c.lockerWith(c.Client(t, option), redislock.WithPollInterval(time.Hour)), c.lockerWith(c.Client(t, option), redislock.WithPollInterval(time.Hour))
			for i := range 9 {
				name := fmt.Sprint("read", i)
				holder := hold(t, a, name, time.Minute)
				_, err := b.TryAcquire(ctx, name, time.Minute)
				require.ErrorIs(t, err, redislock.ErrNotAcquired)
				wait := c.waiting(ctx, t, b, name, time.Minute)
				require.NoError(t, holder.Extend(ctx, time.Minute))
				_, err = holder.TTL(ctx)
				require.NoError(t, err)
				_, err = b.Inspect(ctx, name)
				require.NoError(t, err)
				require.NoError(t, holder.Release(ctx))
				lock, err := wait(t)
				require.NoError(t, err)
				require.NoError(t, lock.Release(ctx))
			}
			assert.Zero(t, stats(t, c.Nodes()[3:], "eval", "evalsha", "eval_ro", "evalsha_ro")-before)
		})
	}
}

// What moves a slot, or its primary, while both are in good health.
func TestServerClusterTopologyChangesWhileHeldAndWaitedFor(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	c := startShards(t)
	for change, move := range map[string]func(t testing.TB, key string){
		"slot moves":       func(t testing.TB, key string) { c.MoveSlot(t, key, c.others(t, key)[0]) },
		"manual fail-over": func(t testing.TB, key string) { c.Failover(t, key) },
	} {
		t.Run(change, func(t *testing.T) { c.moveWhileWaitedFor(t, move) })
		t.Run(change+", again and again", func(t *testing.T) { c.moveUnderLoad(t, move) })
	}
	t.Run("manual fail-over, and reads go to replicas", func(t *testing.T) {
		c.options = []func(*redis.ClusterOptions){func(o *redis.ClusterOptions) { o.RouteRandomly = true }}
		defer func() { c.options = nil }()
		c.moveWhileWaitedFor(t, func(t testing.TB, key string) { c.Failover(t, key) })
	})
	assert.Empty(t, c.log.about("lock lost"))
	assert.Empty(t, c.log.about("nothing to release"))
	t.Run("half migrated", c.halfMigrated)
	t.Run("undone while half migrated", c.undoneWhileHalfMigrated)
}

func (c *shards) moveWhileWaitedFor(t *testing.T, move func(t testing.TB, key string)) {
	const ttl = 3 * time.Second
	ctx, name := t.Context(), "moved "+t.Name()
	holders, others := c.asleep(t), []*redislock.Locker{c.asleep(t), c.asleep(t)}
	holder := hold(t, holders, name, ttl, redislock.WithWatchdog())
	waits := []func(testing.TB) (*redislock.Lock, error){
		c.waiting(ctx, t, others[0], name, time.Minute, redislock.WithWatchdog()),
		c.waiting(ctx, t, others[1], name, time.Minute),
		inLine(ctx, t, holders, name, time.Minute),
	}
	move(t, keyOf(name))
	renewed(t, holder, ttl)
	renewed(t, holder, ttl)
	require.NoError(t, holder.Extend(ctx, 2*ttl))
	_, err := holder.TTL(ctx)
	require.NoError(t, err)
	assert.Equal(t, holder.Token(), c.value(name))
	released := time.Now()
	require.NoError(t, holder.Release(ctx))

	// They were queued where the slot was, are told to ask, and queue where it
	// is now: who is the first depends on who is quick.
	var inside atomic.Int32
	var fences resource
	var wg sync.WaitGroup
	for _, wait := range waits {
		wg.Go(func() {
			lock, err := wait(t)
			if !assert.NoError(t, err) {
				return
			}
			assert.Equal(t, int32(1), inside.Add(1), "two hold the lock")
			assert.True(t, fences.write(lock.Fence()))
			assert.Equal(t, lock.Token(), c.value(name))
			t.Logf("served after %s", time.Since(released))
			inside.Add(-1)
			assert.NoError(t, lock.Release(ctx))
		})
	}
	wg.Wait()
	assert.LessOrEqual(t, time.Since(released), 3*wakeUp)
	assert.Greater(t, fences.greatest, holder.Fence())
	c.gone(t, name)
	c.handedOver(t, name, holders, others[0])
}

// soonAfter checks that a release was noticed at once by one that waits, or by
// the time it has to have recovered from the fail-over.
func soonAfter(t testing.TB, released, up time.Time, within time.Duration) {
	t.Helper()
	assert.True(t, time.Since(released) <= wakeUp || time.Since(up) <= within,
		"%s after the release and %s after the fail-over", time.Since(released), time.Since(up))
}

func isUnansweredRelease(err error) bool {
	var failed *redislock.Error
	var timeout interface{ Timeout() bool }
	return errors.As(err, &failed) && failed.Op == "release" && errors.As(err, &timeout) && timeout.Timeout()
}

// handedOver checks that pushes arrive.
func (c *shards) handedOver(t *testing.T, name string, from, to *redislock.Locker) {
	t.Helper()
	ctx := t.Context()
	holder := hold(t, from, name, time.Minute)
	wait := c.waiting(ctx, t, to, name, time.Minute)
	released := time.Now()
	require.NoError(t, holder.Release(ctx))
	lock, err := wait(t)
	require.NoError(t, err)
	assert.LessOrEqual(t, time.Since(released), wakeUp)
	require.NoError(t, lock.Release(ctx))
}

func (c *shards) moveUnderLoad(t *testing.T, move func(t testing.TB, key string)) {
	const lockers, goroutines, moves = 3, 4, 6
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	name := "load " + t.Name()
	var inside atomic.Int32
	var fences resource
	var wg sync.WaitGroup
	for range lockers {
		lk := c.locker(t)
		for range goroutines {
			wg.Go(func() {
				for ctx.Err() == nil {
					// A fail-over that gets no votes pauses the primary for 5
					// s.
					err := lk.WithLock(ctx, name, 30*time.Second, func(_ context.Context, lock *redislock.Lock) error {
						assert.Equal(t, int32(1), inside.Add(1), "two hold the lock")
						assert.True(t, fences.write(lock.Fence()))
						inside.Add(-1)
						return lock.Err()
					})
					// So a release may have no answer in the 5 s that WithLock
					// waits for it. It goes on in the background.
					if ctx.Err() == nil && !isUnansweredRelease(err) {
						assert.NoError(t, err)
					}
				}
			})
		}
	}
	sections := func() int {
		fences.mu.Lock()
		defer fences.mu.Unlock()
		return fences.accepted
	}
	var done []int
	for range moves {
		move(t, keyOf(name))
		before := sections()
		require.Eventually(t, func() bool { return sections() >= before+50 }, soon, tick, "service does not resume")
		done = append(done, sections())
	}
	cancel()
	wg.Wait()
	t.Logf("sections after each change: %v", done)
	c.gone(t, name)
}

// While a slot is on its way, with some keys here and some there, a lock can be
// renewed, extended and released. One that needs all of its keys has to wait.
func (c *shards) halfMigrated(t *testing.T) {
	for i, moved := range [][]int{{}, {0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}, {0, 1, 2}} {
		t.Run(fmt.Sprint("keys on the other side: ", moved), func(t *testing.T) {
			const ttl = 900 * time.Millisecond
			ctx, tag := t.Context(), fmt.Sprintf("{half%d}", i)
			name := tag + "held"
			holders, other := c.asleep(t), c.locker(t)
			holder := hold(t, holders, name, ttl, redislock.WithWatchdog())
			resumed := hold(t, holders, tag+"resumed", time.Minute)
			free := hold(t, holders, tag+"free", time.Minute)
			require.NoError(t, free.Release(ctx)) // only the record of its fence is left
			wait := c.waiting(ctx, t, other, name, time.Minute)
			own := inLine(ctx, t, holders, name, time.Minute)

			m := c.BeginMigration(t, keyOf(name), c.others(t, keyOf(name))[0])
			for _, k := range moved {
				m.MoveKeys(t, keysOf(name)[k], keysOf(tag + "resumed")[k], keysOf(tag + "free")[k])
			}
			renewed(t, holder, ttl)
			renewed(t, holder, ttl)
			require.NoError(t, holder.Extend(ctx, 2*ttl))
			left, err := holder.TTL(ctx)
			require.NoError(t, err)
			assert.Greater(t, left, ttl)
			adopted, err := other.Resume(ctx, tag+"resumed", resumed.Token(), time.Minute)
			if err == nil {
				require.NoError(t, adopted.Release(ctx))
			} else {
				require.ErrorContains(t, err, "TRYAGAIN") // its fence is elsewhere
			}
			for _, taken := range []string{name, tag + "free", tag + "new"} {
				lock, err := other.TryAcquire(ctx, taken, ttl)
				if err != nil && !strings.Contains(err.Error(), "TRYAGAIN") {
					require.ErrorIs(t, err, redislock.ErrNotAcquired)
					require.Equal(t, name, taken)
				}
				if err == nil {
					require.NotEqual(t, name, taken)
					require.NoError(t, lock.Release(ctx))
				}
			}
			require.NoError(t, holder.Err())
			require.NoError(t, holder.Release(ctx))

			m.Finish(t)
			finished := time.Now()
			first := make(chan *redislock.Lock, 2)
			for _, wait := range []func(testing.TB) (*redislock.Lock, error){wait, own} {
				go func() {
					lock, err := wait(t)
					assert.NoError(t, err)
					first <- lock
				}()
			}
			lock := <-first
			require.NotNil(t, lock)
			t.Logf("served %s after the end", time.Since(finished))
			assert.Equal(t, lock.Token(), c.value(name))
			assert.Greater(t, lock.Fence(), holder.Fence())
			require.NoError(t, lock.Release(ctx))
			next := <-first
			require.NotNil(t, next)
			assert.LessOrEqual(t, time.Since(finished), lastPause+2*wakeUp, "both ask again and again while they are refused")
			assert.Greater(t, next.Fence(), lock.Fence())
			require.NoError(t, next.Release(ctx))
			c.gone(t, name)
			lock = hold(t, other, tag+"new", time.Minute)
			require.NoError(t, lock.Release(ctx))
			c.handedOver(t, name, holders, other)
		})
	}
}

// forgetful is a client that loses replies: n times, then it calls after.
type forgetful struct {
	redislock.Client
	match redistest.Match
	n     atomic.Int32
	after func()
}

func (f *forgetful) Process(ctx context.Context, cmd redis.Cmder) error {
	err := f.Client.Process(ctx, cmd)
	var args []string
	for _, arg := range cmd.Args() {
		args = append(args, fmt.Sprint(arg))
	}
	if !f.match(args) {
		return err
	}
	switch n := f.n.Add(-1); {
	case n < 0:
		return err
	case n == 0:
		f.after()
	}
	cmd.SetErr(io.EOF)
	return io.EOF
}

// What an acquisition may have left behind does not wait for the end of a
// migration.
func (c *shards) undoneWhileHalfMigrated(t *testing.T) {
	ctx, name := t.Context(), "undone"
	var m *redistest.Migration
	client := &forgetful{Client: c.Client(t), match: redistest.Command("evalsha", "eval"), after: func() {
		assert.NotEmpty(t, c.value(name))
		m = c.BeginMigration(t, keyOf(name), c.others(t, keyOf(name))[0])
		m.MoveKeys(t, keyOf(name))
	}}
	client.n.Store(3)
	lk := c.lockerWith(client)
	_, err := lk.TryAcquire(ctx, name, time.Minute)
	require.ErrorIs(t, err, io.EOF)
	c.gone(t, name)
	m.Finish(t)
	require.NoError(t, hold(t, lk, name, time.Minute).Release(ctx))
}

// A primary is lost while a lock on it is held and waited for.
func TestServerClusterPrimaryIsLost(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	c := startShards(t)
	for way, fault := range map[string]struct{ lose, find func(*redistest.Server) }{
		"killed": {(*redistest.Server).Kill, (*redistest.Server).Restart},
		"paused": {(*redistest.Server).Pause, (*redistest.Server).Resume},
	} {
		t.Run(way, func(t *testing.T) { c.losePrimary(t, way, fault.lose, fault.find) })
	}
	t.Run("with what it has not replicated", c.loseUnreplicated)
	t.Run("under load", c.loseUnderLoad)
}

func (c *shards) losePrimary(t *testing.T, way string, lose, find func(*redistest.Server)) {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	tag := "{" + way + "}"
	kept, short, both := tag+"kept", tag+"short", tag+"both"
	old := c.Primary(t, keyOf(kept))
	holders, other, fresh := c.asleep(t), c.asleep(t), c.locker(t)
	// A client that begins with a silent node is stuck in go-redis (COMMAND,
	// CLUSTER SLOTS).
	_, err := fresh.Inspect(ctx, "warm")
	require.NoError(t, err)

	// One is held by a process that goes on, one by a process that is gone, and
	// one is waited for by its own process as well.
	holder := hold(t, holders, kept, 15*time.Second, redislock.WithWatchdog())
	busy := hold(t, holders, kept+"2", 9*time.Second, redislock.WithWatchdog())
	hold(t, holders, short, 2*time.Second)
	local := hold(t, holders, both, time.Minute)
	first := c.waiting(ctx, t, other, kept, time.Minute)
	second := c.waiting(ctx, t, other, short, time.Minute)
	third := inLine(ctx, t, holders, both, time.Minute)
	c.WaitReady(t, soon) // the replica has it all

	lose(old)
	lost := time.Now()
	served := make(chan time.Time, 3)
	watch := func(what string, get func() error) {
		go func() {
			assert.NoError(t, get(), what)
			served <- time.Now()
			t.Logf("%s: %s", what, time.Since(lost))
		}()
	}
	watch("an acquisition by somebody new", func() error {
		for {
			lock, err := fresh.TryAcquire(ctx, tag+"new", time.Minute)
			if err == nil {
				return lock.Release(ctx)
			}
			if ctx.Err() != nil {
				return err
			}
		}
	})
	watch("a waiter for a lease that ends", func() error {
		lock, err := second(t)
		if err == nil {
			err = lock.Release(ctx)
		}
		return err
	})
	watch("a release with one in line", func() error {
		for {
			err := local.Release(ctx)
			if err == nil || ctx.Err() != nil {
				return err
			}
		}
	})
	c.WaitForPrimary(t, keyOf(kept), old, 30*time.Second)
	up := time.Now()
	t.Logf("fail-over of the cluster: %s", up.Sub(lost))
	for range 3 {
		select {
		case at := <-served:
			assert.LessOrEqual(t, at.Sub(up), recovery)
		case <-time.After(20 * time.Second):
			require.FailNow(t, "service does not resume")
		}
	}
	lock, err := third(t)
	require.NoError(t, err)
	require.NoError(t, lock.Release(ctx))
	renewed(t, holder, 8*time.Second)
	renewed(t, busy, 8*time.Second)
	released := time.Now()
	require.NoError(t, holder.Release(ctx))
	lock, err = first(t)
	require.NoError(t, err)
	t.Logf("hand-over after that: %s", time.Since(released))
	soonAfter(t, released, up, recovery)
	assert.Greater(t, lock.Fence(), holder.Fence())
	require.NoError(t, lock.Release(ctx))
	c.handedOver(t, kept, holders, other)

	find(old)
	c.WaitReady(t, 30*time.Second)
	require.NoError(t, busy.Err())
	require.NoError(t, busy.Release(ctx))
	c.handedOver(t, kept, other, holders)
	c.handedOver(t, short, holders, fresh)
}

// The replica that takes over does not have the lock. So there is another
// holder while the first still trusts its lease: it is told at its next
// renewal, and until then a resource that looks at fences is safe.
func (c *shards) loseUnreplicated(t *testing.T) {
	const ttl = 15 * time.Second
	ctx, name := t.Context(), "unreplicated"
	old := c.Primary(t, keyOf(name))
	a, b := c.locker(t), c.locker(t)
	require.NoError(t, hold(t, a, name, ttl).Release(ctx))
	_, err := b.Inspect(ctx, name)
	require.NoError(t, err)
	replica := c.Replicas(t, old)[0]
	replica.Pause()
	old.Do(t, "client", "kill", "type", "replica")
	first := hold(t, a, name, ttl, redislock.WithWatchdog())
	old.Kill()
	replica.Resume()
	fenced(t, first, b, &resource{}, func() { c.WaitForPrimary(t, keyOf(name), old, 30*time.Second) })
	old.Restart()
	c.WaitReady(t, 30*time.Second)
	c.handedOver(t, name, a, b)
}

// While many take turns their primary dies. What it granted last may be unknown
// to its successor, so that two can hold the lock for once: the fences tell
// them apart.
func (c *shards) loseUnderLoad(t *testing.T) {
	const lockers, goroutines, ttl = 3, 4, 3 * time.Second
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	name := "load"
	var inside, overlaps, failures atomic.Int32
	var mu sync.Mutex
	var fences []int64 // in the order of the sections
	var wg sync.WaitGroup
	for range lockers {
		lk := c.locker(t)
		for range goroutines {
			wg.Go(func() {
				for ctx.Err() == nil {
					err := lk.WithLock(ctx, name, ttl, func(_ context.Context, lock *redislock.Lock) error {
						if inside.Add(1) > 1 {
							overlaps.Add(1)
						}
						defer inside.Add(-1)
						mu.Lock()
						defer mu.Unlock()
						fences = append(fences, lock.Fence())
						return nil
					})
					if err != nil && ctx.Err() == nil {
						failures.Add(1)
					}
				}
			})
		}
	}
	sections := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(fences)
	}
	require.Eventually(t, func() bool { return sections() >= 100 }, soon, tick)
	old := c.Primary(t, keyOf(name))
	old.Kill()
	c.WaitForPrimary(t, keyOf(name), old, 30*time.Second)
	before := sections()
	// Whoever held the lock then may not have been able to release it.
	require.Eventually(t, func() bool { return sections() >= before+100 }, ttl+recovery, tick, "service does not resume")
	old.Restart()
	c.WaitReady(t, 30*time.Second)
	before = sections()
	require.Eventually(t, func() bool { return sections() >= before+100 }, soon, tick)
	cancel()
	wg.Wait()
	t.Logf("%d sections, %d of them beside another, %d failures", len(fences), overlaps.Load(), failures.Load())
	assert.LessOrEqual(t, overlaps.Load(), int32(1))
	backwards := 0
	for i := range fences[1:] {
		if fences[i+1] <= fences[i] {
			backwards++
		}
	}
	assert.LessOrEqual(t, backwards, 1, "fences fall: a resource refuses these")
	slices.Sort(fences)
	assert.Len(t, slices.Compact(fences), len(fences), "two with one fence")
	c.gone(t, name)
}

// fenced loses the primary on which first stands, and has b take the lock on
// the new one.
func fenced(t *testing.T, first *redislock.Lock, b *redislock.Locker, r *resource, lose func()) {
	t.Helper()
	ctx := t.Context()
	require.True(t, r.write(first.Fence()))
	lose()
	up := time.Now()
	var second *redislock.Lock
	require.Eventually(t, func() (ok bool) {
		var err error
		second, err = b.TryAcquire(ctx, first.Name(), time.Minute)
		return err == nil
	}, recovery, tick)
	t.Logf("acquired anew after %s", time.Since(up))
	assert.Greater(t, second.Fence(), first.Fence())
	assert.True(t, r.write(second.Fence()))
	if first.Err() == nil { // it does not know yet
		assert.False(t, r.write(first.Fence()), "the resource takes what an old holder writes")
	}
	awaitWithin(t, first.Done(), soon+recovery, "loss of the lock that was not replicated")
	require.ErrorIs(t, first.Err(), redislock.ErrLost)
	require.ErrorIs(t, first.Release(ctx), redislock.ErrNotHeld)
	require.NoError(t, second.Err())
	require.NoError(t, second.Extend(ctx, time.Minute), "it was disturbed by the old one")
	assert.True(t, r.write(second.Fence()))
	require.NoError(t, second.Release(ctx))
}

// The inbox is that of a node, and stands in the ticket. After the slot has
// moved the ticket with the old one must not stay beside the new one.
func TestServerClusterWaiterHasOneTicketAfterItsSlotHasMoved(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	client := c.Client(t)
	holder, err := redislock.New(client).TryAcquire(t.Context(), "a", time.Minute)
	require.NoError(t, err)
	other := redislock.New(c.Client(t), redislock.WithPollInterval(100*time.Millisecond))
	acquired := make(chan *redislock.Lock, 1)
	go func() {
		lock, err := other.Acquire(t.Context(), "a", time.Minute)
		assert.NoError(t, err)
		acquired <- lock
	}()
	tickets := func() []string { return client.ZRange(t.Context(), "{lock:a}:queue", 0, -1).Val() }
	require.Eventually(t, func() bool { return len(tickets()) == 1 }, soon, tick)
	before := tickets()[0]
	for _, node := range c.Nodes() {
		if node != c.Primary(t, "lock:a") {
			c.MoveSlot(t, "lock:a", node)
			break
		}
	}
	require.Eventually(t, func() bool { now := tickets(); return len(now) > 0 && now[len(now)-1] != before }, soon, tick)
	require.Len(t, tickets(), 1)
	require.NoError(t, holder.Release(t.Context()))
	require.NoError(t, (<-acquired).Release(t.Context()))
}
