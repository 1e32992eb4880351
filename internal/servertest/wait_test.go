package servertest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/e2e3f2a3/redislock"
	"github.com/e2e3f2a3/redislock/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	pollInterval = 300 * time.Millisecond // what tests with a bound on waiting use
	wakeUp       = 200 * time.Millisecond // what the contract gives a waiter beyond its due time
)

// waiting starts an Acquire, and returns once its ticket stands in the queue.
// No other goroutine of lk may wait for that name, and none of its locks may
// hold it.
func (r *rig) waiting(ctx context.Context, t *testing.T, lk *redislock.Locker, name string, ttl time.Duration, opts ...redislock.AcquireOption) func(testing.TB) (*redislock.Lock, error) {
	t.Helper()
	before := r.queued(name)
	wait := started(func() (*redislock.Lock, error) { return lk.Acquire(ctx, name, ttl, opts...) })
	require.Eventually(t, func() bool { return r.queued(name) > before }, soon, tick, "no ticket in the queue for %q", name)
	return wait
}

// restsFor returns when one who has waited for a name since joined has just
// asked, and does not ask again for d unless it has a reason: the pause is as
// long again as it has waited, or an eighth less.
func (r *rig) restsFor(t testing.TB, name string, joined time.Time, d time.Duration) {
	t.Helper()
	for time.Since(joined)*7/8 < d {
		r.await(t, r.next(1, r.opOn("acquire", name)), "question of one that waits")
	}
}

// polling starts an Acquire that cannot subscribe, and returns once it has
// asked more often than one would that can.
func (r *rig) polling(ctx context.Context, t *testing.T, lk *redislock.Locker, name string, ttl time.Duration) func(testing.TB) (*redislock.Lock, error) {
	t.Helper()
	// A server that was restarted is asked with EVAL again: that is no question
	// of its own.
	asked := r.next(4, redistest.And(redistest.Command("evalsha"), r.opOn("acquire", name)))
	wait := started(func() (*redislock.Lock, error) { return lk.Acquire(ctx, name, ttl) })
	r.await(t, asked, "waiter that polls")
	assert.Zero(t, r.queued(name), "a ticket that nobody can be told about")
	return wait
}

func (r *rig) poller(t testing.TB, opts ...func(*redis.Options)) *redislock.Locker {
	return r.lockerWith(r.relay.Client(t, opts...), redislock.WithPollInterval(pollInterval))
}

// deleteIf is how other libraries release.
const deleteIfSource = `if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) else return 0 end`

var deleteIf = redis.NewScript(deleteIfSource)

func TestServerWaiterNoticesAKeyThatOthersFree(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for way, free := range map[string]func(ctx context.Context, key string) error{
		"deleted by hand": func(ctx context.Context, key string) error { return r.direct.Del(ctx, key).Err() },
		"released by another library": func(ctx context.Context, key string) error {
			return deleteIf.Run(ctx, r.direct, []string{key}, "other").Err()
		},
		"flushed": func(ctx context.Context, _ string) error { return r.direct.FlushAll(ctx).Err() },
	} {
		for lease, ttl := range map[string]time.Duration{"endless": 0, "long": time.Minute} {
			t.Run(way+"/"+lease+" lease", func(t *testing.T) {
				name, ctx := t.Name(), t.Context()
				require.NoError(t, r.direct.Set(ctx, keyOf(name), "other", ttl).Err())
				wait := r.waiting(ctx, t, r.poller(t), name, time.Minute)
				freed := time.Now()
				require.NoError(t, free(ctx, keyOf(name)))
				lock, err := wait(t)
				require.NoError(t, err)
				assert.LessOrEqual(t, time.Since(freed), pollInterval+wakeUp)
				assert.Equal(t, lock.Token(), r.value(t, name))
				require.NoError(t, lock.Release(ctx))
			})
		}
	}
}

func TestServerWaiterOutlivesAHolderThatVanishes(t *testing.T) {
	t.Parallel()
	const holders, ttl = 8, 1400 * time.Millisecond
	r := newRig(t)
	for vanished, vanish := range map[string]func(*redis.Client) error{
		"connections killed": func(*redis.Client) error { return r.direct.ClientKillByFilter(t.Context(), "TYPE", "normal").Err() },
		"client closed":      (*redis.Client).Close,
	} {
		t.Run(vanished, func(t *testing.T) {
			ctx, client, waiter := t.Context(), r.relay.Client(t), r.locker(t)
			gone := r.lockerWith(client)
			waits := make(map[string]func(testing.TB) (*redislock.Lock, error))
			for i := range holders { // so many that none is in time by chance
				name := fmt.Sprint(vanished, i)
				hold(t, gone, name, ttl) // nobody renews it
				waits[name] = r.waiting(ctx, t, waiter, name, time.Minute)
			}
			_ = vanish(client)
			var served sync.WaitGroup
			for name, wait := range waits {
				due := time.Now().Add(r.direct.PTTL(ctx, keyOf(name)).Val())
				served.Go(func() {
					lock, err := wait(t)
					if !assert.NoError(t, err) {
						return
					}
					assert.LessOrEqual(t, time.Since(due), 3*wakeUp) // for all eight
					assert.Greater(t, time.Until(lock.Until()), 50*time.Second, "its lease begins when it gets the lock")
					assert.NoError(t, lock.Release(ctx))
				})
			}
			served.Wait()
		})
	}
}

// Waiters of several processes whose lock is snatched away again and again by a
// stranger: they go on waiting, and nobody returns early.
func TestServerWaiterThatLosesTheRaceGoesOnWaiting(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	require.NoError(t, r.direct.Set(ctx, keyOf("a"), "stranger", 0).Err())
	var waits []func(testing.TB) (*redislock.Lock, error)
	for range 4 {
		waits = append(waits, r.waiting(ctx, t, r.poller(t), "a", time.Minute))
	}
	short, cancel := context.WithTimeout(ctx, 700*time.Millisecond)
	defer cancel()
	impatientOne := r.waiting(short, t, r.poller(t), "a", time.Minute)

	snatch := redis.NewScript(`redis.call("DEL", KEYS[1]) return redis.call("SET", KEYS[1], ARGV[1], "PX", 1000)`)
	for short.Err() == nil {
		require.NoError(t, snatch.Run(ctx, r.direct, []string{keyOf("a")}, "stranger").Err())
		r.await(t, r.next(1, r.opOn("acquire", "a")), "waiter that asks")
	}
	_, err := impatientOne(t)
	require.ErrorIs(t, err, redislock.ErrNotAcquired)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Equal(t, "stranger", r.value(t, "a"))

	require.NoError(t, r.direct.Del(ctx, keyOf("a")).Err())
	var served sync.WaitGroup
	for _, wait := range waits {
		served.Go(func() {
			lock, err := wait(t)
			if assert.NoError(t, err) {
				assert.Equal(t, lock.Token(), r.value(t, "a"))
				assert.NoError(t, lock.Release(ctx))
			}
		})
	}
	served.Wait()
}

// outages are ways for a server to be away, and to come back.
func (r *rig) outages() map[string]struct{ begin, end func() } {
	return map[string]struct{ begin, end func() }{
		"killed":     {r.server.Kill, r.server.Restart},
		"paused":     {r.server.Pause, r.server.Resume},
		"cut off":    {r.disconnect, r.reconnect},
		"black hole": {func() { r.relay.BlackHole(true) }, func() { r.relay.BlackHole(false) }},
	}
}

// An outage is not contention.
func TestServerThatIsAwayIsNotContention(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	r := newRig(t)
	for outage, how := range r.outages() {
		t.Run(outage, func(t *testing.T) {
			how.begin()
			defer how.end()
			for method, acquire := range acquirers {
				for bounded, bound := range map[string]time.Duration{"endless ctx": 0, "short ctx": 50 * time.Millisecond} {
					t.Run(method+"/"+bounded, func(t *testing.T) {
						ctx, cancel := context.WithCancel(t.Context())
						if bound > 0 {
							ctx, cancel = context.WithTimeout(t.Context(), bound)
						}
						defer cancel()
						var err error
						lk := r.locker(t, impatient)
						var tooLate time.Duration
						took := timed(func() {
							tooLate = late(ctx, func() {
								err = acquire(ctx, lk, t.Name(), func(*redislock.Lock) { t.Error("used without a lock") })
							})
						})
						require.Error(t, err)
						assert.NotErrorIs(t, err, redislock.ErrNotAcquired)
						assert.LessOrEqual(t, took, 2*time.Second, "the first request's error is not waited out")
						if ctx.Err() != nil {
							assert.ErrorIs(t, err, ctx.Err())
							assert.LessOrEqual(t, tooLate, jitter)
						}
					})
				}
			}
		})
	}
	r.quiet(t, undoBound+soon)
}

func TestServerOutageIsWaitedOut(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for outage, how := range r.outages() {
		t.Run(outage, func(t *testing.T) {
			name, ctx := t.Name(), t.Context()
			require.NoError(t, r.direct.Set(ctx, keyOf(name), "other", 0).Err())
			lk := r.poller(t, impatient)
			wait := r.waiting(ctx, t, lk, name, time.Minute)
			how.begin()
			warned := func() bool { return len(r.log.about("waiting for a lock", name)) > 0 }
			require.Eventually(t, warned, soon, tick)
			select {
			case <-r.next(3, r.opOn("acquire", name)): // those that reach the relay at all
			case <-time.After(500 * time.Millisecond):
			}
			// A slow answer after the end is another outage.
			assert.Len(t, r.log.about("waiting for a lock", name), 1, "one warning for one outage")
			how.end()
			r.await(t, r.next(2, r.opOn("acquire", name)), "question after the outage")
			r.server.Do(t, "EVAL", deleteIfSource, 1, keyOf(name), "other") // gone already if it was killed
			lock, err := wait(t)
			require.NoError(t, err)
			assert.Equal(t, lock.Token(), r.value(t, name))
			require.NoError(t, lock.Release(ctx))
		})
	}
	r.quiet(t, soon)
}

func TestServerContextThatEndsDuringAnOutageIsNotContention(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for outage, how := range r.outages() {
		t.Run(outage, func(t *testing.T) {
			name := t.Name()
			require.NoError(t, r.direct.Set(t.Context(), keyOf(name), "other", 0).Err())
			lk := r.locker(t, impatient)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			first := r.waiting(ctx, t, lk, name, time.Minute)
			second := started(func() (*redislock.Lock, error) { return lk.Acquire(ctx, name, time.Minute) }) // behind it
			how.begin()
			defer how.end()
			warned := func() bool { return len(r.log.about("waiting for a lock", name)) > 0 }
			require.Eventually(t, warned, soon, tick)
			cancel()
			for place, wait := range map[string]func(testing.TB) (*redislock.Lock, error){"first": first, "second": second} {
				var err error
				took := timed(func() { _, err = wait(t) })
				require.ErrorIs(t, err, context.Canceled, place)
				assert.LessOrEqual(t, took, 100*time.Millisecond, place)
				assert.NotErrorIs(t, err, redislock.ErrNotAcquired, place)
				var transport net.Error
				assert.True(t, errors.Is(err, io.EOF) || errors.As(err, &transport), "%s: the transport's error is missing: %v", place, err)
			}
		})
	}
	r.quiet(t, undoBound+soon)
}

// What a waiter asked while the server stood still may be granted when it goes
// on.
func TestServerWaiterThatLeftDuringAnOutageLeavesNoLock(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, options := range []func(*redis.Options){defaultOptions, impatient} {
		require.NoError(t, r.direct.Set(t.Context(), keyOf("a"), "other", 400*time.Millisecond).Err())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		wait := r.waiting(ctx, t, r.locker(t, options), "a", time.Minute)
		r.server.Pause()
		time.Sleep(500 * time.Millisecond) // the other's lease ends, and it has asked meanwhile
		cancel()
		_, err := wait(t)
		require.ErrorIs(t, err, context.Canceled)
		r.server.Resume()
		r.gone(t, "a", undoBound)
		r.quiet(t, undoBound)
		r.gone(t, "a", undoBound)
	}
}

// States of a server that pass are waited out once Acquire waits. The others
// surface at once.
func TestServerErrorsWhileWaiting(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for reply, passing := range map[string]bool{
		"LOADING Redis is loading the dataset in memory":                                   true,
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL.":              true,
		"READONLY You can't write against a read only replica.":                            true,
		"TRYAGAIN Multiple keys request during rehashing of slot":                          true,
		"CLUSTERDOWN The cluster is down":                                                  true,
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.": true,
		"NOREPLICAS Not enough good replicas to write.":                                    true,
		"MISCONF Redis is configured to save RDB snapshots, but it's unable to persist":    false,
		"OOM command not allowed when used memory > 'maxmemory'.":                          false,
		"WRONGTYPE Operation against a key holding the wrong kind of value":                false,
		"NOPERM this user has no permissions to run the 'evalsha' command":                 false,
		"NOAUTH Authentication required.":                                                  true, // the password is being rotated
		"ERR unknown command 'evalsha'":                                                    false,
		"EXECABORT Transaction discarded because of previous errors.":                      false,
		"CROSSSLOT Keys in request don't hash to the same slot":                            false,
		"UNKILLABLE Sorry the script already executed write commands against the dataset.": false,
	} {
		t.Run(reply, func(t *testing.T) {
			name, ctx := t.Name(), t.Context()
			require.NoError(t, r.direct.Set(ctx, keyOf(name), "other", 0).Err())
			wait := r.waiting(ctx, t, r.poller(t), name, time.Minute)
			failing := r.relay.Always(r.opOn("acquire", name), redistest.ReplyWith("-"+reply+"\r\n"))
			if passing {
				r.await(t, r.next(3, r.opOn("acquire", name)), "further questions")
				failing.Remove()
				require.NoError(t, r.direct.Del(ctx, keyOf(name)).Err())
				lock, err := wait(t)
				require.NoError(t, err)
				require.NoError(t, lock.Release(ctx))
				assert.Len(t, r.log.about("waiting for a lock", name), 1)
				return
			}
			_, err := wait(t)
			require.ErrorContains(t, err, reply)
			require.ErrorContains(t, err, name)
			assert.NotErrorIs(t, err, redislock.ErrNotAcquired)
			assert.Equal(t, 1, failing.Count(), "surfaces at once")
			assert.Equal(t, "other", r.value(t, name))
		})
	}
	r.quiet(t, soon)
}

func TestServerErrorsOfTheFirstRequest(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for reply, tries := range map[string]int{
		"LOADING Redis is loading the dataset in memory":                                3,
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL.":           3,
		"READONLY You can't write against a read only replica.":                         1,
		"MISCONF Redis is configured to save RDB snapshots, but it's unable to persist": 1,
		"OOM command not allowed when used memory > 'maxmemory'.":                       1,
		"NOPERM this user has no permissions to run the 'evalsha' command":              1,
	} {
		for method, acquire := range acquirers {
			t.Run(reply+"/"+method, func(t *testing.T) {
				name := t.Name()
				failing := r.relay.Always(r.opOn("acquire", name), redistest.ReplyWith("-"+reply+"\r\n"))
				err := acquire(t.Context(), r.locker(t), name, func(*redislock.Lock) { t.Error("used without a lock") })
				require.ErrorContains(t, err, reply)
				require.ErrorContains(t, err, name)
				var e *redislock.Error
				require.ErrorAs(t, err, &e)
				assert.NotErrorIs(t, err, redislock.ErrNotAcquired)
				assert.Equal(t, tries, failing.Count())
			})
		}
	}
	r.quiet(t, soon)
}

// stalls are states of a real server in which it does not serve for a while.
func (r *rig) stalls(t *testing.T) map[string]func() {
	do := func(args ...any) { r.server.Do(t, args...) }
	return map[string]func(){
		"DEBUG SLEEP":        func() { do("DEBUG", "SLEEP", "0.5") },
		"CLIENT PAUSE":       func() { do("CLIENT", "PAUSE", 500) },
		"CLIENT PAUSE WRITE": func() { do("CLIENT", "PAUSE", 500, "WRITE") },
		"CLIENT KILL":        func() { do("CLIENT", "KILL", "TYPE", "normal") },
		"BUSY": func() {
			do("CONFIG", "SET", "lua-time-limit", 20)
			do("EVAL", `local s = redis.call('TIME') repeat local n = redis.call('TIME') until (n[1]-s[1])*1000000+n[2]-s[2] > 500000`, 0)
		},
		"READONLY": func() {
			do("REPLICAOF", "127.0.0.1", 1)
			<-time.After(500 * time.Millisecond) // as long as the other stalls
			do("REPLICAOF", "NO", "ONE")
		},
	}
}

// Held and waited for while the server does not serve for a while.
func TestServerStallsAreSurvived(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	r := newRig(t)
	for stall, strike := range r.stalls(t) {
		t.Run(stall, func(t *testing.T) {
			name, ctx := t.Name(), t.Context()
			holder := hold(t, r.locker(t), name, 1500*time.Millisecond, redislock.WithWatchdog())
			wait := r.waiting(ctx, t, r.locker(t), name, time.Minute)
			strike()
			before := holder.Until()
			renewed := func() bool { return holder.Until().After(before) }
			require.Eventually(t, renewed, soon, tick)
			require.NoError(t, holder.Err())
			assert.Equal(t, holder.Token(), r.value(t, name))
			require.NoError(t, holder.Release(ctx))
			lock, err := wait(t)
			require.NoError(t, err)
			assert.Greater(t, lock.Fence(), holder.Fence())
			require.NoError(t, lock.Release(ctx))
		})
	}
	r.quiet(t, soon)
	assert.Empty(t, r.log.about("lock lost"))
}

func TestServerClosedClientEndsWaitingAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	client := r.relay.Client(t)
	lk := r.lockerWith(client)
	require.NoError(t, r.direct.Set(t.Context(), keyOf("a"), "other", 0).Err())
	first := r.waiting(t.Context(), t, lk, "a", time.Minute)
	second := started(func() (*redislock.Lock, error) { return lk.Acquire(t.Context(), "a", time.Minute) })
	require.NoError(t, client.Close())
	closed := time.Now()
	for _, wait := range []func(testing.TB) (*redislock.Lock, error){first, second} {
		_, err := wait(t)
		require.ErrorIs(t, err, redis.ErrClosed)
		assert.NotErrorIs(t, err, redislock.ErrNotAcquired)
	}
	assert.LessOrEqual(t, time.Since(closed), time.Second)
	r.quiet(t, soon)
}

func TestServerClosedClientWhileHeld(t *testing.T) {
	t.Parallel()
	const ttl = 600 * time.Millisecond
	r := newRig(t)
	client := r.relay.Client(t)
	lk := r.lockerWith(client)
	held := hold(t, lk, "a", ttl, redislock.WithWatchdog())
	require.NoError(t, client.Close())
	for method, call := range map[string]func(context.Context) error{
		"Extend":     func(ctx context.Context) error { return held.Extend(ctx, ttl) },
		"TTL":        func(ctx context.Context) error { _, err := held.TTL(ctx); return err },
		"TryAcquire": func(ctx context.Context) error { _, err := lk.TryAcquire(ctx, "b", ttl); return err },
		"Acquire":    func(ctx context.Context) error { _, err := lk.Acquire(ctx, "b", ttl); return err },
		"Inspect":    func(ctx context.Context) error { _, err := lk.Inspect(ctx, "b"); return err },
	} {
		var err error
		took := timed(func() { err = call(t.Context()) })
		require.ErrorIs(t, err, redis.ErrClosed, method)
		assert.LessOrEqual(t, took, 100*time.Millisecond, method)
	}
	awaitWithin(t, held.Done(), ttl+soon, "end of the lock")
	require.ErrorIs(t, held.Err(), redislock.ErrLost)
	require.ErrorIs(t, held.Release(t.Context()), redis.ErrClosed)
	r.quiet(t, soon)
}
