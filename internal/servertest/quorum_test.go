package servertest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
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

// quorumRig is several real servers, each with its relay.
type quorumRig struct {
	nodes []*rig
}

func newQuorumRig(t *testing.T, n int, opts ...redistest.Option) *quorumRig {
	t.Helper()
	q := &quorumRig{nodes: []*rig{newRig(t, opts...)}}
	first := q.nodes[0]
	for len(q.nodes) < n {
		server := redistest.Start(t, opts...)
		r := &rig{
			server: server, relay: redistest.NewRelay(t, server.Addr()), direct: server.Client(t, redistest.NoRetry),
			log: first.log, label: first.label, scripts: first.scripts,
		}
		r.relay.OnRequest(r.onRequest)
		q.nodes = append(q.nodes, r)
	}
	return q
}

func (q *quorumRig) clients(t testing.TB, opts ...func(*redis.Options)) (clients []redislock.Client) {
	for _, r := range q.nodes {
		clients = append(clients, r.relay.Client(t, opts...))
	}
	return clients
}

// patientNodes is a node time-out that a busy machine keeps.
var patientNodes = redislock.WithNodeTimeout(2 * time.Second)

func (q *quorumRig) locker(t testing.TB, opts ...redislock.Option) *redislock.Locker {
	return q.lockerWith(t, q.clients(t), opts...)
}

func (q *quorumRig) lockerWith(t testing.TB, clients []redislock.Client, opts ...redislock.Option) *redislock.Locker {
	t.Helper()
	lk, err := redislock.NewQuorum(clients, append([]redislock.Option{redislock.WithLogger(slog.New(q.nodes[0].log))}, opts...)...)
	require.NoError(t, err)
	return lk
}

// values are what the nodes hold for a name.
func (q *quorumRig) values(name string) (values []string) {
	for _, r := range q.nodes {
		values = append(values, r.direct.Get(context.Background(), keyOf(name)).Val())
	}
	return values
}

// on is the number of nodes that hold the token.
func (q *quorumRig) on(name, token string) (n int) {
	for _, value := range q.values(name) {
		if value == token {
			n++
		}
	}
	return n
}

func (q *quorumRig) awaitOn(t testing.TB, name, token string, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return q.on(name, token) == n }, soon, tick, "%v", q.values(name))
}

// settled waits until nothing is left on any node, and nothing is under way.
func (q *quorumRig) settled(t testing.TB) {
	t.Helper()
	for _, r := range q.nodes {
		r.nothingHeld(t)
	}
	q.nodes[0].quiet(t, undoBound)
}

// Faults 40 and 1: three nodes, each in each of these states, all combinations
// at once.
func TestServerQuorumInEveryStateOfItsNodes(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	const majority, timeout = 2, 300 * time.Millisecond
	q := newQuorumRig(t, 3)
	limit := make(chan struct{}, 8)
	states := []string{"free", "taken", "down", "silent", "slow"}
	begin := func(r *rig, state, name string) (end func()) {
		asks := r.opOn("acquire", name)
		switch state {
		case "taken":
			require.NoError(t, r.direct.Set(t.Context(), keyOf(name), "other", time.Hour).Err())
		case "down":
			return r.relay.Always(asks, redistest.DropRequest).Remove
		case "silent":
			return r.relay.Always(asks, redistest.SwallowReply).Remove
		case "slow":
			return r.relay.Always(asks, redistest.Hold).Release
		}
		return func() {}
	}
	var wg sync.WaitGroup
	for i := range len(states) * len(states) * len(states) {
		now := []string{states[i%5], states[i/5%5], states[i/25]}
		name := strings.Join(now, "-")
		var ends []func()
		for j, r := range q.nodes {
			ends = append(ends, begin(r, now[j], name))
		}
		count := func(state string) int {
			return 3 - len(slices.DeleteFunc(slices.Clone(now), func(s string) bool { return s == state }))
		}
		limit <- struct{}{}
		// One for each name: what shares a round trip shares its fate, and a
		// node that was silent for one name is not asked about another for a
		// while.
		lk := q.lockerWith(t, q.clients(t), redislock.WithNodeTimeout(timeout))
		wg.Go(func() {
			defer func() { <-limit }()
			var lock *redislock.Lock
			var err error
			took := timed(func() { lock, err = lk.TryAcquire(t.Context(), name, time.Hour) })
			assert.Less(t, took, 2*timeout+200*time.Millisecond, name)
			switch {
			case count("free") >= majority:
				if assert.NoError(t, err, name) {
					assert.GreaterOrEqual(t, q.on(name, lock.Token()), majority, name)
					assert.NoError(t, lock.Release(t.Context()), name)
				}
			case count("taken") >= majority:
				assert.ErrorIs(t, err, redislock.ErrNotAcquired, name)
			default:
				assert.ErrorContains(t, err, "no quorum (2 of 3 needed)", name)
				assert.NotErrorIs(t, err, redislock.ErrNotAcquired, name)
			}
			clean := func() bool {
				return !slices.ContainsFunc(q.values(name), func(v string) bool { return v != "" && v != "other" })
			}
			if !slices.Contains(now, "slow") {
				assert.True(t, eventually(2*timeout, clean), "%s: %v", name, q.values(name))
			}
			for _, end := range ends {
				end()
			}
			assert.True(t, eventually(undoBound, clean), "%s: %v", name, q.values(name))
			for _, r := range q.nodes {
				_ = deleteIf.Run(context.Background(), r.direct, []string{keyOf(name)}, "other").Err()
			}
		})
	}
	wg.Wait()
	for _, r := range q.nodes {
		r.relay.Cut() // what stalls
	}
	q.settled(t)
}

func TestServerQuorumWithOneNodeUnreachableDoesNotWaitForIt(t *testing.T) {
	t.Parallel()
	for fault, strike := range map[string]func(r *rig) (end func()){
		"black hole": func(r *rig) func() { r.relay.BlackHole(true); return func() { r.relay.BlackHole(false) } },
		"paused":     func(r *rig) func() { r.server.Pause(); return r.server.Resume },
		"killed":     func(r *rig) func() { r.server.Kill(); return r.server.Restart },
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			q := newQuorumRig(t, 3)
			lk := q.locker(t, patientNodes)
			end := strike(q.nodes[1])
			ctx := t.Context()
			for range 3 {
				assert.Less(t, timed(func() {
					lock := hold(t, lk, "a", time.Minute)
					_, err := lk.TryAcquire(ctx, "a", time.Minute)
					require.ErrorIs(t, err, redislock.ErrNotAcquired)
					require.NoError(t, lock.Extend(ctx, time.Minute))
					_, err = lock.TTL(ctx)
					require.NoError(t, err)
					require.NoError(t, lock.Release(ctx))
				}), time.Second)
			}
			var made *redislock.Locker
			assert.Less(t, timed(func() { made = q.locker(t, patientNodes) }), 1500*time.Millisecond)
			require.NoError(t, hold(t, made, "b", time.Minute).Release(ctx))
			end()
			q.settled(t)
		})
	}
}

func TestServerQuorumWithoutAMajorityFailsAndSaysWhy(t *testing.T) {
	t.Parallel()
	q := newQuorumRig(t, 3)
	lk := q.lockerWith(t, q.clients(t, redistest.NoRetry))
	q.nodes[0].relay.BlackHole(true)
	q.nodes[2].server.Kill()
	for range 2 {
		var err error
		assert.Less(t, timed(func() { _, err = lk.TryAcquire(t.Context(), "a", time.Minute) }), 300*time.Millisecond)
		require.NotErrorIs(t, err, redislock.ErrNotAcquired)
		// Where no connection can be set up in time the error says that nothing
		// was sent.
		require.Regexp(t, `node 1 \(`+q.nodes[0].relay.Addr()+`\): (no reply from Redis|nothing was sent to Redis) within`, err.Error())
		require.ErrorContains(t, err, fmt.Sprintf("node 3 (%s)", q.nodes[2].relay.Addr()))
		require.NotContains(t, err.Error(), "; node 2")
	}
	q.nodes[0].relay.BlackHole(false)
	q.nodes[2].server.Restart()
	q.settled(t)
}

// Fault 19: a bare cancel and a deadline, while the majority is silent.
func TestServerQuorumReturnsWhenItsContextEnds(t *testing.T) {
	q := newQuorumRig(t, 3)
	lk := q.locker(t, redislock.WithNodeTimeout(10*time.Second))
	q.nodes[0].relay.BlackHole(true)
	q.nodes[1].relay.BlackHole(true)
	for _, bare := range []bool{true, false} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if bare {
			ctx, cancel = context.WithCancel(t.Context())
			time.AfterFunc(100*time.Millisecond, cancel)
		}
		for _, call := range []func() error{
			func() error { _, err := lk.TryAcquire(ctx, "a", time.Minute); return err },
			func() error { _, err := lk.Acquire(ctx, "a", time.Minute); return err },
			func() error { _, err := lk.Inspect(ctx, "a"); return err },
		} {
			var err error
			assert.Less(t, late(ctx, func() { err = call() }), jitter)
			require.ErrorIs(t, err, ctx.Err())
		}
		cancel()
	}
	q.nodes[0].relay.BlackHole(false)
	q.nodes[1].relay.BlackHole(false)
	q.settled(t)
}

// Faults 1, 2 and 7.
func TestServerQuorumRepliesAreSwallowed(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	q := newQuorumRig(t, 3)
	for name, opts := range map[string]func(*redis.Options){"default retries": defaultOptions, "no retries": noRetries} {
		lk := q.lockerWith(t, q.clients(t, opts), redislock.WithNodeTimeout(time.Second))
		for swallow := 1; swallow <= 3; swallow++ {
			name := fmt.Sprintf("%s %d", name, swallow)
			for _, r := range q.nodes[:swallow] {
				r.relay.Once(r.opOn("acquire", name), redistest.SwallowReply)
			}
			lock := hold(t, lk, name, time.Minute)
			assert.GreaterOrEqual(t, q.on(name, lock.Token()), 2)
			for _, r := range q.nodes[:swallow] {
				r.relay.Once(r.opOn("release", name), redistest.SwallowReply)
			}
			require.NoError(t, lock.Release(t.Context()))
			require.Eventually(t, func() bool { return q.on(name, "") == 3 }, soon, tick)
		}
	}
	for _, r := range q.nodes {
		r.relay.Cut()
	}
	q.settled(t)
}

func TestServerQuorumScriptsAreFlushed(t *testing.T) {
	t.Parallel()
	q := newQuorumRig(t, 3)
	lk := q.locker(t, patientNodes)
	flush := func() {
		for _, r := range q.nodes {
			require.NoError(t, r.direct.ScriptFlush(t.Context()).Err())
		}
	}
	flush()
	lock := hold(t, lk, "a", time.Minute)
	flush()
	require.NoError(t, lock.Extend(t.Context(), time.Minute))
	flush()
	_, err := lock.TTL(t.Context())
	require.NoError(t, err)
	flush()
	require.NoError(t, lock.Release(t.Context()))
	q.settled(t)
}

// --- fences ----------------------------------------------------------------------

// The majorities {0, 1, 2} and {2, 3, 4} have one node in common. Node 0 has a
// record an hour ahead, as if its clock had been.
func TestServerQuorumFencesGrowAlthoughMajoritiesDiffer(t *testing.T) {
	t.Parallel()
	q := newQuorumRig(t, 5)
	ctx, lk := t.Context(), q.locker(t, patientNodes)
	ahead := time.Now().Add(time.Hour).UnixMicro()
	require.NoError(t, q.nodes[0].direct.Set(ctx, fenceOf("a"), ahead, time.Hour).Err())
	q.nodes[3].disconnect()
	q.nodes[4].disconnect()
	lock := hold(t, lk, "a", time.Minute)
	require.Equal(t, ahead+1, lock.Fence())
	require.NoError(t, lock.Release(ctx))
	q.nodes[3].reconnect()
	q.nodes[4].reconnect()
	q.nodes[0].disconnect()
	q.nodes[1].disconnect()
	next := hold(t, lk, "a", time.Minute)
	assert.Greater(t, next.Fence(), lock.Fence())
	assert.Equal(t, 3, q.on("a", next.Token()))
	require.NoError(t, next.Release(ctx))
	q.nodes[0].reconnect()
	q.nodes[1].reconnect()
	q.settled(t)
}

// Fault 50.
func TestServerQuorumFencesGrowWhateverHappens(t *testing.T) {
	for _, n := range []int{1, 3, 5, 7} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			q := newQuorumRig(t, n)
			ctx, lk := t.Context(), q.locker(t, patientNodes)
			minority := func(f func(r *rig)) func() {
				return func() {
					for i := range (n - 1) / 2 {
						f(q.nodes[(i+1)%n])
					}
				}
			}
			last := hold(t, lk, "a", time.Minute)
			for i, happen := range []func(){
				func() { _ = last.Release(ctx) },
				func() { require.NoError(t, last.Extend(ctx, 300*time.Millisecond)) },
				func() {
					for _, r := range q.nodes {
						require.NoError(t, r.direct.Del(ctx, keyOf("a")).Err())
					}
				},
				func() {
					for _, r := range q.nodes {
						require.NoError(t, r.direct.FlushAll(ctx).Err())
					}
				},
				func() { _ = last.Release(ctx); minority((*rig).disconnect)() },
				func() { _ = last.Release(ctx); minority((*rig).reconnect)() },
				func() { _ = last.Release(ctx); minority(func(r *rig) { r.server.Restart() })() },
				func() { _ = last.Release(ctx); minority(func(r *rig) { r.server.Kill(); r.server.Restart() })() },
			} {
				happen()
				next, err := lk.Acquire(ctx, "a", time.Minute)
				for end := time.Now().Add(soon); err != nil && time.Now().Before(end); { // dead connections in the pools
					next, err = lk.Acquire(ctx, "a", time.Minute)
				}
				require.NoError(t, err, "after event %d", i)
				assert.Greater(t, next.Fence(), last.Fence(), "after event %d", i)
				last = next
			}
			require.NoError(t, last.Release(ctx))
			q.settled(t)
		})
	}
}

func TestServerQuorumFencesOfConcurrentAcquirersGrowInTheOrderOfHolding(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	for _, n := range []int{1, 3, 5, 7} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			q := newQuorumRig(t, n)
			var fences []int64 // guarded by the lock under test
			var wg sync.WaitGroup
			for range 4 {
				lk := q.locker(t, patientNodes)
				for range 10 {
					wg.Go(func() {
						assert.NoError(t, lk.WithLock(t.Context(), "a", 10*time.Second, func(_ context.Context, lock *redislock.Lock) error {
							fences = append(fences, lock.Fence())
							return nil
						}))
					})
				}
			}
			wg.Wait()
			require.Len(t, fences, 40)
			for i := range fences[1:] {
				assert.Greater(t, fences[i+1], fences[i])
			}
			q.settled(t)
		})
	}
}

// --- holding -----------------------------------------------------------------------

func TestServerQuorumWatchdogKeepsTheLockWhileNodesAreRestarted(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	q := newQuorumRig(t, 3)
	ctx, lk := t.Context(), q.locker(t, redislock.WithNodeTimeout(200*time.Millisecond))
	require.NoError(t, lk.WithLock(ctx, "a", ttl, func(ctx context.Context, lock *redislock.Lock) error {
		q.awaitOn(t, "a", lock.Token(), 3)
		for _, r := range q.nodes {
			r.server.Kill()
			before := lock.Until()
			require.Eventually(t, func() bool { return lock.Until().Sub(before) > ttl }, 4*ttl, tick, "not renewed while a node is down")
			r.server.Restart() // it has forgotten everything
			q.awaitOn(t, "a", lock.Token(), 3)
			require.GreaterOrEqual(t, r.fence(t, "a"), lock.Fence())
		}
		return ctx.Err()
	}))
	q.settled(t)
	assert.Empty(t, q.nodes[0].log.about())
}

func TestServerQuorumLockIsLostInTimeWithoutAMajority(t *testing.T) {
	const ttl = 1500 * time.Millisecond
	q := newQuorumRig(t, 3)
	lk := q.locker(t, redislock.WithNodeTimeout(100*time.Millisecond))
	lock := hold(t, lk, "a", ttl, redislock.WithWatchdog())
	q.nodes[0].server.Pause()
	q.nodes[1].relay.BlackHole(true)
	awaitWithin(t, lock.Done(), ttl+soon, "end of the lock")
	assert.False(t, time.Now().After(lock.Until().Add(20*time.Millisecond)))
	require.ErrorIs(t, lock.Err(), redislock.ErrLost)
	q.nodes[0].server.Resume()
	q.nodes[1].relay.BlackHole(false)
	q.settled(t)
}

func TestServerQuorumReleaseOfNodesThatAreSlowLeavesNothing(t *testing.T) {
	t.Parallel()
	q := newQuorumRig(t, 3)
	ctx, lk := t.Context(), q.locker(t)
	for i, op := range []string{"acquire", "extend", "release"} {
		name, r := op, q.nodes[i]
		kept := r.relay.Once(r.opOn(op, name), redistest.Hold)
		lock := hold(t, lk, name, time.Minute)
		require.NoError(t, lock.Extend(ctx, time.Minute))
		require.NoError(t, lock.Release(ctx))
		awaitWithin(t, kept.Hit(), soon, op)
		kept.Release()
	}
	q.settled(t)
}

// --- exclusion ----------------------------------------------------------------------

// Several processes work on one lock while one node after the other is paused,
// killed and cut off. Their data survive: a node that forgets a lock can give
// it away again.
func TestServerQuorumMutualExclusionHoldsUnderChaos(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	for n, down := range map[int]int{3: 1, 5: 2} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			q := newQuorumRig(t, n, redistest.WithPersistence())
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			var h hammer
			var wg sync.WaitGroup
			for range 4 {
				lk := q.lockerWith(t, q.clients(t, resolute))
				for i := range 4 {
					wg.Go(func() { h.quorumGoroutine(ctx, t, lk, i%4 == 0) })
				}
			}
			// For 5 s, and on a busy machine until it has done enough to tell
			// something.
			for began := time.Now(); ctx.Err() == nil && (time.Since(began) < 5*time.Second || h.counted.Load() <= 20); {
				q.strike(ctx, down)
			}
			cancel()
			wg.Wait()
			assert.Zero(t, h.violation.Load(), "two held the lock at the same time")
			assert.Equal(t, h.counted.Load(), int64(h.sections), "increments were lost")
			assert.Greater(t, h.sections, 20)
			t.Logf("%d sections", h.sections)
			q.settled(t)
		})
	}
}

// quorumGoroutine takes the lock again and again. An outage that a caller meets
// is no failure of the test: the pools may be full of dead connections.
func (h *hammer) quorumGoroutine(ctx context.Context, t *testing.T, lk *redislock.Locker, try bool) {
	for ctx.Err() == nil {
		if !try {
			err := lk.WithLock(ctx, "a", 5*time.Second, func(_ context.Context, lock *redislock.Lock) error {
				h.section(t, lock.Fence())
				return nil
			})
			assert.NotErrorIs(t, err, redislock.ErrLost)
			assert.NotErrorIs(t, err, redislock.ErrNotHeld)
			continue
		}
		lock, err := lk.TryAcquire(ctx, "a", 10*time.Second)
		if err != nil {
			time.Sleep(rand.N(20 * time.Millisecond)) // the pace of those who only try
			continue
		}
		h.section(t, lock.Fence())
		for err = lock.Release(context.Background()); err != nil; err = lock.Release(context.Background()) {
			if !assert.NotErrorIs(t, err, redislock.ErrNotHeld) || !assert.NotErrorIs(t, err, redislock.ErrReleased) {
				return
			}
		}
	}
}

// resolute are client options with which a node is used again as soon as it is
// back: a pool that has failed to dial as often as it may have connections
// tries once a second.
func resolute(o *redis.Options) { o.PoolSize, o.DialerRetries = 1000, 1 }

// strike makes some nodes fail for a while, each in one of several ways.
func (q *quorumRig) strike(ctx context.Context, down int) {
	var ends []func()
	for _, i := range rand.Perm(len(q.nodes))[:down] {
		r := q.nodes[i]
		switch rand.N(4) {
		case 0:
			r.server.Pause()
			ends = append(ends, r.server.Resume)
		case 1:
			r.server.Kill()
			ends = append(ends, r.server.Restart)
		case 2:
			r.relay.BlackHole(true)
			ends = append(ends, func() { r.relay.BlackHole(false) })
		case 3:
			r.disconnect()
			ends = append(ends, r.reconnect)
		}
	}
	pace := func() {
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	pace()
	for _, end := range ends {
		end()
	}
	pace()
}

// --- construction ---------------------------------------------------------------------

// Fault 41.
func TestServerNewQuorumRefusesTheSameServerTwice(t *testing.T) {
	t.Parallel()
	q := newQuorumRig(t, 2)
	a, b := q.nodes[0], q.nodes[1]
	_, err := redislock.NewQuorum([]redislock.Client{a.direct, b.direct, a.relay.Client(t)})
	require.ErrorContains(t, err, "same server as node ")

	a.disconnect() // then it is not known yet
	lk, err := redislock.NewQuorum([]redislock.Client{a.direct, b.direct, a.relay.Client(t)}, patientNodes)
	require.NoError(t, err)
	a.reconnect()
	lock := hold(t, lk, "a", time.Minute)
	require.NoError(t, lock.Release(t.Context()))
	b.server.Kill()
	_, err = lk.TryAcquire(t.Context(), "a", time.Minute)
	require.NotErrorIs(t, err, redislock.ErrNotAcquired)
	require.ErrorContains(t, err, "same server as node 1", "one server is no majority of three")
	b.server.Restart()
	q.settled(t)
}

func TestServerNewQuorumNeedsTheRightToCompareServers(t *testing.T) {
	t.Parallel()
	q := newQuorumRig(t, 1)
	r := q.nodes[0]
	_, err := redislock.NewQuorum([]redislock.Client{r.userClient(t, rights()...)})
	require.ErrorContains(t, err, "INFO: NOPERM")
	var answer redis.Error
	require.True(t, errors.As(err, &answer))

	lk := q.lockerWith(t, []redislock.Client{r.userClient(t, append(rights(rightsToBeTold...), "+info")...)})
	lock := hold(t, lk, "a", time.Minute)
	require.NoError(t, lock.Extend(t.Context(), time.Minute))
	require.NoError(t, lock.Release(t.Context()))
	q.settled(t)
}
