package servertest_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock"
	"github.com/e2e3f2a3/redislock/internal/redistest"
)

// A storm is many goroutines of several Lockers that use everything there is on
// a few names, at random, while something disturbs the deployment. After each
// grant it is checked that no other handle of the name is alive, and that the
// fence is greater than all before. At the end nothing may be left.
type storm struct {
	t       *testing.T
	lockers []*redislock.Locker
	names   []string

	mu    sync.Mutex
	alive map[string][]*redislock.Lock // handles of each name that may be alive
	fence map[string]int64
	held  int // sections
}

const stormTTL = time.Second // the longest

func newStorm(t *testing.T, lockers []*redislock.Locker, names ...string) *storm {
	return &storm{t: t, lockers: lockers, names: names, alive: make(map[string][]*redislock.Lock), fence: make(map[string]int64)}
}

// rage lets the storm go on for a while, and until there were enough sections
// to say something: on a busy machine that takes longer.
func (s *storm) rage(d time.Duration, goroutines int, disturb func(ctx context.Context)) {
	const enough = 100
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	time.AfterFunc(d, func() {
		defer cancel()
		assert.True(s.t, eventually(time.Minute, func() bool { return s.sections() > enough }), "there are too few sections")
	})
	seed := rand.Uint64()
	s.t.Logf("seed %d", seed)
	var wg sync.WaitGroup
	for i := range goroutines {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		lk := s.lockers[i%len(s.lockers)]
		wg.Go(func() {
			for ctx.Err() == nil {
				s.once(ctx, r, lk)
			}
		})
	}
	wg.Go(func() { disturb(ctx) })
	wg.Wait()
	s.t.Logf("%d sections", s.held)
}

// sections is how many there were.
func (s *storm) sections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held
}

func upTo(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }

// once takes a lock, does something with it, and lets it go in one way or
// another.
func (s *storm) once(ctx context.Context, r *rand.Rand, lk *redislock.Locker) {
	name := s.names[r.IntN(len(s.names))]
	ttl := stormTTL/4 + upTo(r, stormTTL*3/4)
	var opts []redislock.AcquireOption
	if r.IntN(3) == 0 {
		opts = append(opts, redislock.WithWatchdog())
	}
	if r.IntN(4) == 0 {
		opts = append(opts, redislock.WithMinHold(upTo(r, 30*time.Millisecond)))
	}
	if r.IntN(4) == 0 {
		opts = append(opts, redislock.WithMetadata(strings.Repeat("m", r.IntN(100))))
	}
	bounded, cancel := context.WithTimeout(ctx, upTo(r, 300*time.Millisecond))
	defer cancel()
	switch r.IntN(5) {
	case 0:
		err := lk.WithLock(bounded, name, ttl, func(ctx context.Context, lock *redislock.Lock) error {
			s.enter(lock)
			s.work(ctx, r, lk, lock)
			s.exit(lock)
			return nil
		}, opts...)
		s.harmless(err)
	case 1:
		lock, err := lk.TryAcquire(bounded, name, ttl, opts...)
		s.harmless(err)
		s.hold(ctx, r, lk, lock)
	default:
		lock, err := lk.Acquire(bounded, name, ttl, opts...)
		s.harmless(err)
		s.hold(ctx, r, lk, lock)
	}
}

func (s *storm) hold(ctx context.Context, r *rand.Rand, lk *redislock.Locker, lock *redislock.Lock) {
	if lock == nil {
		return
	}
	s.enter(lock)
	s.work(ctx, r, lk, lock)
	s.exit(lock)
	bounded, cancel := context.WithTimeout(context.Background(), upTo(r, 50*time.Millisecond))
	defer cancel()
	switch n := r.IntN(60); {
	case n == 0:
		lock.Detach() // to the end of its lease
	case n < 6:
		s.harmless(lock.Release(bounded))
	case n < 9: // handed over
		token := lock.Detach()
		if token == "" {
			return
		}
		next, err := s.lockers[r.IntN(len(s.lockers))].Resume(bounded, lock.Name(), token, stormTTL/2)
		s.harmless(err)
		if err == nil {
			s.enterAgain(next)
			s.exit(next)
			s.harmless(next.Release(context.Background()))
		}
	case n < 12: // two handles at a time
		twin, err := lk.Resume(bounded, lock.Name(), lock.Token(), stormTTL/2)
		s.harmless(err)
		if err == nil && r.IntN(2) == 0 {
			s.harmless(twin.Release(context.Background()))
			if lock.Err() == nil {
				s.t.Errorf("a handle outlives the release by its twin")
			}
			return
		}
		s.harmless(lock.Release(context.Background()))
		if err == nil && twin.Err() == nil {
			s.t.Errorf("a twin outlives the release")
		}
	default:
		s.harmless(lock.Release(context.Background()))
	}
}

func (s *storm) work(ctx context.Context, r *rand.Rand, lk *redislock.Locker, lock *redislock.Lock) {
	bounded, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	switch r.IntN(6) {
	case 0:
		s.harmless(lock.Extend(bounded, stormTTL/4+upTo(r, stormTTL/2)))
	case 1:
		_, err := lk.Inspect(bounded, lock.Name())
		s.harmless(err)
	case 2:
		_, err := lock.TTL(bounded)
		s.harmless(err)
	case 3:
		time.Sleep(upTo(r, 5*time.Millisecond))
	}
}

// enter checks that nobody else is inside: neither lock has ended after that
// was seen.
func (s *storm) enter(lock *redislock.Lock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held++
	name := lock.Name()
	for _, other := range s.alive[name] {
		if other.Token() != lock.Token() && other.Err() == nil && lock.Err() == nil {
			s.t.Errorf("%q: %.8s (fence %d) and %.8s (fence %d) are both held", name, other.Token(), other.Fence(), lock.Token(), lock.Fence())
		}
	}
	if lock.Err() == nil && lock.Fence() <= s.fence[name] {
		s.t.Errorf("%q: fence %d after %d", name, lock.Fence(), s.fence[name])
	}
	s.fence[name] = max(s.fence[name], lock.Fence())
	s.alive[name] = append(s.alive[name], lock)
}

// enterAgain is enter for a lock that goes on in another handle. On a quorum
// its fence may be greater than that of the first one: it is not known there,
// see quorum_vote.go.
func (s *storm) enterAgain(lock *redislock.Lock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if lock.Err() == nil && lock.Fence() < s.fence[lock.Name()] {
		s.t.Errorf("%q: resumed with fence %d, the last is %d", lock.Name(), lock.Fence(), s.fence[lock.Name()])
	}
	s.fence[lock.Name()] = max(s.fence[lock.Name()], lock.Fence())
	s.alive[lock.Name()] = append(s.alive[lock.Name()], lock)
}

// exit is called before the lock is let go.
func (s *storm) exit(lock *redislock.Lock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := s.alive[lock.Name()][:0]
	for _, other := range s.alive[lock.Name()] {
		if other != lock && other.Err() == nil {
			left = append(left, other)
		}
	}
	s.alive[lock.Name()] = left
}

// harmless fails the test for an error that has no place in a storm.
func (s *storm) harmless(err error) {
	for _, known := range []error{
		redislock.ErrNotAcquired, redislock.ErrNotHeld, redislock.ErrLost, redislock.ErrReleased, redislock.ErrDetached,
		context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, known) {
			return
		}
	}
	var answer redis.Error
	if errors.As(err, &answer) && !strings.Contains(err.Error(), "TRYAGAIN") && !strings.Contains(err.Error(), "no quorum") {
		s.t.Errorf("refused: %v", err)
	}
}

// over waits until nothing of the storm is left: value and tickets read what
// stands in Redis for a name.
func (s *storm) over(value func(name string) string, tickets func(name string) int64) {
	s.t.Helper()
	for _, name := range s.names {
		assert.Eventually(s.t, func() bool { return value(name) == "" }, stormTTL+undoBound, 10*tick, "%q is held by %q", name, value(name))
		assert.Eventually(s.t, func() bool { return tickets(name) == 0 }, soon, 10*tick, "%q has tickets", name)
		// A last acquisition: what was undone late must not come back.
		lock, err := s.lockers[0].Acquire(s.t.Context(), name, time.Minute)
		require.NoError(s.t, err)
		require.NoError(s.t, lock.Release(context.Background()))
	}
}

var stormNames = []string{"wind", "{t}rain", "hail"}

func TestServerStorm(t *testing.T) {
	redistest.Long(t)
	t.Run("single", func(t *testing.T) {
		r := newRig(t)
		var lockers []*redislock.Locker
		for i := range 4 {
			protocol := func(o *redis.Options) { o.Protocol, o.ContextTimeoutEnabled = 2+i%2, i >= 2 }
			lockers = append(lockers, r.lockerWith(r.relay.Client(t, protocol)))
		}
		s := newStorm(t, lockers, stormNames...)
		s.rage(4*time.Second, 24, func(ctx context.Context) {
			for n := 0; ctx.Err() == nil; n++ {
				r.killOne(t)
				if n%8 == 0 {
					assert.NoError(t, r.direct.ScriptFlush(context.Background()).Err())
				}
				if n%20 == 0 {
					r.relay.Delay(time.Duration(rand.N(20)) * time.Millisecond)
				}
				pause(ctx, 20*time.Millisecond)
			}
			r.relay.Delay(0)
		})
		s.over(func(name string) string { return r.direct.Get(context.Background(), keyOf(name)).Val() },
			func(name string) int64 { return r.direct.ZCard(context.Background(), keysOf(name)[2]).Val() })
		r.quiet(t, undoBound)
	})
	t.Run("cluster", func(t *testing.T) {
		c := startShards(t)
		var lockers []*redislock.Locker
		for range 4 {
			lockers = append(lockers, c.locker(t))
		}
		s := newStorm(t, lockers, stormNames...)
		s.rage(6*time.Second, 24, func(ctx context.Context) {
			for n := 0; ctx.Err() == nil; n++ {
				key := keyOf(stormNames[n%len(stormNames)])
				m := c.BeginMigration(t, key, c.others(t, key)[0])
				pause(ctx, 50*time.Millisecond)
				m.Finish(t)
				pause(ctx, 200*time.Millisecond)
			}
		})
		s.over(c.value, c.queued)
	})
	t.Run("replicas", func(t *testing.T) {
		f := newFollowed(t, 2)
		var lockers []*redislock.Locker
		for range 4 {
			lockers = append(lockers, f.acknowledged(t, 1, 100*time.Millisecond))
		}
		s := newStorm(t, lockers, stormNames...)
		s.rage(4*time.Second, 24, func(ctx context.Context) {
			for n := 0; ctx.Err() == nil; n++ {
				stopped := f.replicas[n%2]
				stopped.Pause()
				f.killOne(t)
				pause(ctx, 100*time.Millisecond)
				stopped.Resume()
			}
		})
		s.over(func(name string) string { return f.direct.Get(context.Background(), keyOf(name)).Val() },
			func(name string) int64 { return f.direct.ZCard(context.Background(), keysOf(name)[2]).Val() })
	})
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprint("quorum of ", n), func(t *testing.T) {
			q := newQuorumRig(t, n)
			var lockers []*redislock.Locker
			for range 4 {
				lockers = append(lockers, q.locker(t, redislock.WithNodeTimeout(100*time.Millisecond)))
			}
			s := newStorm(t, lockers, stormNames...)
			s.rage(6*time.Second, 16, func(ctx context.Context) {
				for i := 0; ctx.Err() == nil; i++ {
					node := q.nodes[i%n]
					switch i % 3 {
					case 0:
						node.relay.BlackHole(true)
						pause(ctx, 300*time.Millisecond)
						node.relay.BlackHole(false)
					case 1:
						node.server.Pause()
						pause(ctx, 300*time.Millisecond)
						node.server.Resume()
					default:
						node.relay.Cut()
						pause(ctx, 50*time.Millisecond)
					}
				}
			})
			for _, r := range q.nodes {
				for _, name := range stormNames {
					assert.Eventually(t, func() bool { return r.value(t, name) == "" }, stormTTL+undoBound, 10*tick, "%s: %q", r.server.Addr(), r.value(t, name))
				}
			}
			s.over(func(string) string { return "" }, func(string) int64 { return 0 })
			q.nodes[0].quiet(t, undoBound)
		})
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
