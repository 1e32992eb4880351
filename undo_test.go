package redislock

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// keysLike are the keys that have a prefix and a suffix.
func (r *fakeRedis) keysLike(prefix, suffix string) (keys []string) {
	for _, key := range r.Keys() {
		if strings.HasPrefix(key, prefix) && strings.HasSuffix(key, suffix) {
			keys = append(keys, key)
		}
	}
	return keys
}

// locks are the keys of locks that stand.
func (r *fakeRedis) locks() []string { return r.keysLike("lock:", "") }

// tickets are the queues in which somebody stands.
func (r *fakeRedis) tickets() []string { return r.keysLike("{lock:", ":queue") }

// distance sets the time of a round trip.
func (r *fakeRedis) distance(d time.Duration) {
	r.net.setLatency(func() time.Duration { return d / 2 })
}

// undoingGoroutines is how many there are for undoing.
func undoingGoroutines() (n int) {
	for _, stack := range packageGoroutines() {
		if strings.Contains(stack, "/undo.go:") || strings.Contains(stack, "/undoings.go:") {
			n++
		}
	}
	return n
}

// hastily calls TryAcquire for n names, one each pause, under a deadline.
func hastily(t *testing.T, lk *Locker, n int, pause, deadline, ttl time.Duration) {
	t.Helper()
	var calls sync.WaitGroup
	defer calls.Wait()
	for i := range n {
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			_, err := lk.TryAcquire(ctx, fmt.Sprint("n", i), ttl)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		})
		time.Sleep(pause)
	}
}

// 300 calls a second whose deadline is shorter than the way to Redis, for ten
// seconds.
func TestUndoingKeepsUpWithCallsThatFail(t *testing.T) {
	for _, timeouts := range []bool{false, true} {
		t.Run(fmt.Sprint("ContextTimeoutEnabled=", timeouts), func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				r.beQuick()
				r.distance(50 * time.Millisecond)
				lk := r.lockerOn(r.connect(func(o *redis.Options) { o.ContextTimeoutEnabled = timeouts }))
				hastily(t, lk, 3000, time.Second/300, 30*time.Millisecond, 10*time.Minute)
				time.Sleep(20 * time.Second)
				require.Zero(t, len(r.locks()))
			})
		})
	}
}

// 1,500 names, 100 ms away: in 15 seconds eight looks at a time would reach
// 1,200.
func TestWaitersThatLeaveAtOnceLeaveNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		const names = 500 // more than one at a time in eight could undo in 15 s
		r.distance(300 * time.Millisecond)
		holders, waiters := r.lockerOn(r.connect()), r.lockerOn(r.connect(), WithPollInterval(time.Hour))
		locks := make([]*Lock, names)
		var calls sync.WaitGroup
		for i := range locks {
			calls.Go(func() {
				var err error
				locks[i], err = holders.TryAcquire(t.Context(), fmt.Sprint("n", i), time.Hour)
				require.NoError(t, err)
			})
		}
		calls.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		for i := range locks {
			calls.Go(func() {
				_, err := waiters.Acquire(ctx, fmt.Sprint("n", i), time.Hour)
				require.ErrorIs(t, err, ErrNotAcquired)
			})
		}
		time.Sleep(10 * time.Second)
		require.Equal(t, names, len(r.tickets()))
		cancel()
		require.LessOrEqual(t, elapsed(calls.Wait), 50*time.Millisecond)
		time.Sleep(20 * time.Second)
		require.Zero(t, len(r.tickets()))
		for _, lock := range locks {
			calls.Go(func() { require.NoError(t, lock.Release(t.Context())) })
		}
		calls.Wait()
		time.Sleep(time.Second)
		require.Zero(t, len(r.locks()))
	})
}

// Redis stands still for ten seconds, in which 100 calls a second fail.
func TestUndoingIsBoundedWhileRedisIsSilent(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		r.beQuick()
		lk := r.locker()
		lock, err := lk.TryAcquire(t.Context(), "warm", time.Second)
		require.NoError(t, err)
		require.NoError(t, lock.Release(t.Context()))
		r.net.stall()
		most := 0
		stop := make(chan struct{})
		var watching sync.WaitGroup
		watching.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(490 * time.Millisecond):
					most = max(most, undoingGoroutines())
				}
			}
		})
		hastily(t, lk, 300, 33*time.Millisecond, 30*time.Millisecond, 10*time.Minute)
		r.net.flow()
		time.Sleep(25 * time.Second)
		require.Zero(t, len(r.locks()))
		close(stop)
		watching.Wait()
		require.LessOrEqual(t, most, 8) // go-redis lets go of a connection after 5 s
		require.Positive(t, most)
	})
}

// What was sent to a Redis that stands still is undone, whenever it wakes up
// before the 15 seconds are over.
func TestUndoingLastsFor15SecondsFromTheFirstLook(t *testing.T) {
	for _, silence := range []time.Duration{time.Second, 7 * time.Second, 13 * time.Second, 14500 * time.Millisecond} {
		t.Run(silence.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lk := r.locker()
				r.net.fail(opAcquire, loseReply, 1) // it is executed
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				defer cancel()
				time.AfterFunc(5*time.Millisecond, r.net.stall)
				_, err := lk.TryAcquire(ctx, "a", time.Hour)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.True(t, r.Exists("lock:a"))
				time.Sleep(silence - 100*time.Millisecond)
				r.net.cut() // what was sent is lost
				r.net.flow()
				time.Sleep(1500 * time.Millisecond)
				require.False(t, r.Exists("lock:a"))
			})
		})
	}
}

// No look can be sent for longer than 15 seconds.
func TestUndoingWaitsUntilRedisCanBeReached(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		r.net.fail(opAcquire, loseReply, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		time.AfterFunc(5*time.Millisecond, r.net.down)
		_, err := lk.TryAcquire(ctx, "a", time.Hour)
		require.Error(t, err)
		time.Sleep(time.Minute)
		require.True(t, r.Exists("lock:a"))
		require.LessOrEqual(t, undoingGoroutines(), undoTrips)
		r.net.up()
		time.Sleep(2 * time.Second)
		require.False(t, r.Exists("lock:a"))
	})
}

// A client without time-outs holds on to a request for 40 seconds.
func TestARequestThatIsExecutedAfterALongTimeIsUndone(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.lockerOn(r.connect(func(o *redis.Options) { o.ReadTimeout = -1 }))
		arrive := r.net.delay(opAcquire)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := lk.TryAcquire(ctx, "a", time.Hour)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(40 * time.Second)
		synctest.Wait()
		require.Empty(t, undoingGoroutines(), "nothing to do before it has ended")
		arrive()
		time.Sleep(time.Millisecond)
		require.Positive(t, r.requests(opAcquire))
		require.False(t, r.Exists("lock:a"))
	})
}

// The ticket comes after its waiter has left, and between two looks. Then it is
// granted the lock.
func TestAGrantForATokenThatIsBeingUndoneIsGivenBackAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		holder, waiters := r.lockerOn(r.connect()), r.lockerOn(r.connect(), WithPollInterval(time.Hour))
		lock, err := holder.TryAcquire(t.Context(), "a", time.Hour)
		require.NoError(t, err)
		_, err = holder.TryAcquire(t.Context(), "b", time.Hour)
		require.NoError(t, err)
		others, leave := context.WithCancel(t.Context())
		defer leave()
		go func() { _, _ = waiters.Acquire(others, "b", time.Hour) }() // has the inbox opened
		time.Sleep(time.Second)

		arrive := r.net.delay(opAcquire)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err = waiters.Acquire(ctx, "a", time.Hour)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(8 * time.Second) // go-redis gives up after 5 s; by now the pauses are long
		looks := r.requests(opRelease)
		for deadline := time.Now().Add(4 * time.Second); r.requests(opRelease) == looks; time.Sleep(time.Millisecond) {
			require.True(t, time.Now().Before(deadline), "no look")
		}
		looks++
		arrive()
		time.Sleep(time.Millisecond)
		require.Equal(t, looks, r.requests(opRelease))
		require.Contains(t, r.tickets(), "{lock:a}:queue")
		require.NoError(t, lock.Release(t.Context()))
		time.Sleep(time.Millisecond)
		require.False(t, r.Exists("lock:a"), "granted to nobody")
	})
}

// A thousand undoings do not make a caller wait, nor a watchdog.
func TestNothingWaitsForUndoing(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		const distance = 200 * time.Millisecond
		r.beQuick()
		lk := r.locker()
		kept, err := lk.TryAcquire(t.Context(), "kept", time.Second, WithWatchdog())
		require.NoError(t, err)
		r.distance(distance)
		var calls sync.WaitGroup
		for i := range 5000 {
			calls.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				defer cancel()
				_, _ = lk.TryAcquire(ctx, fmt.Sprint("n", i), time.Hour)
			})
		}
		calls.Wait()
		time.Sleep(distance) // what they have sent has arrived
		for i := range 5 {
			took := elapsed(func() {
				lock, err := lk.TryAcquire(t.Context(), fmt.Sprint("other", i), time.Hour)
				require.NoError(t, err)
				require.NoError(t, lock.Release(t.Context()))
			})
			require.LessOrEqual(t, took, 2*distance+2*wire.Overdue)
		}
		require.NoError(t, kept.Err())
		require.NoError(t, kept.Release(t.Context()))
		time.Sleep(20 * time.Second)
		require.Zero(t, len(r.locks()))
	})
}

// One of three nodes stands still, and acquisitions fail for want of time.
func TestUndoingOnAQuorumIsDoneByTheNode(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		for _, r := range q.nodes {
			r.beQuick()
			r.distance(50 * time.Millisecond)
		}
		lk := q.locker(WithNodeTimeout(200 * time.Millisecond))
		q.nodes[2].net.stall()
		most := 0
		var calls sync.WaitGroup
		for i := range 2000 {
			calls.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
				defer cancel()
				_, err := lk.TryAcquire(ctx, fmt.Sprint("n", i), time.Hour)
				require.Error(t, err)
			})
			time.Sleep(5 * time.Millisecond)
			if i%100 == 99 {
				most = max(most, undoingGoroutines())
			}
		}
		calls.Wait()
		time.Sleep(time.Second)
		require.Zero(t, len(q.nodes[0].locks()))
		require.Zero(t, len(q.nodes[1].locks()))
		require.LessOrEqual(t, most, 2*undoTrips+2*undoStuck)
		q.nodes[2].net.flow()
		time.Sleep(20 * time.Second)
		for i := range q.nodes {
			require.Zero(t, len(q.nodes[i].locks()), "node %d", i)
		}
	})
}

// A question whose reply comes after the grant, and after the release, was
// executed before both. Nothing has to be looked after.
func TestAQuestionOvertakenByTheGrantCostsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		holder := r.acquire("a", time.Hour)
		lk := r.lockerOn(r.connect())
		got := make(chan *Lock)
		go func() {
			lock, err := lk.Acquire(t.Context(), "a", time.Hour)
			assert.NoError(t, err)
			got <- lock
		}()
		synctest.Wait()
		require.Len(t, r.tickets(), 1)
		arrive := r.net.delayReply(opAcquire)
		before := r.requests(opAcquire)
		time.Sleep(time.Second)
		require.Equal(t, before+1, r.requests(opAcquire), "its reply is on the way")
		require.NoError(t, holder.Release(t.Context()))
		lock := <-got
		require.NotNil(t, lock)
		require.NoError(t, lock.Release(t.Context()))
		require.Equal(t, 2, r.requests(opRelease))
		arrive()
		time.Sleep(time.Minute)
		require.Equal(t, 2, r.requests(opRelease), "no look")
		lk.one().undoings.requireNone(t)
	})
}

// A question that is executed after the release queues a ticket for nobody. It is
// withdrawn, whatever became of the lock, or the next release would serve it.
func TestATicketQueuedAfterTheReleaseIsWithdrawn(t *testing.T) {
	for name, c := range map[string]struct {
		extend  bool // to another TTL than that of the ticket
		lostTry bool // tries of the release, of which the first has no reply
	}{
		"at once":                        {},
		"after an extension":             {extend: true},
		"between two tries of a release": {lostTry: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				holder := r.acquire("a", time.Hour)
				lk := r.lockerOn(r.connect())
				first := waitFor(t.Context(), lk, "a", 10*time.Minute)
				time.Sleep(2 * time.Second) // it is queued
				asked := r.requests(opAcquire)
				arrive := r.net.delay(opAcquire)
				for i := 0; r.requests(opAcquire) == asked && i < 2500; i++ {
					time.Sleep(time.Millisecond) // until a question is on its way
				}
				require.NoError(t, holder.Release(t.Context()))
				lock := (<-first).lock
				require.NotNil(t, lock)
				if c.extend {
					require.NoError(t, lock.Extend(t.Context(), 20*time.Minute))
				}
				if c.lostTry {
					r.net.fail(opRelease, loseReply, 1)
				}
				released := make(chan error, 1)
				go func() { released <- lock.Release(t.Context()) }()
				time.Sleep(time.Second) // executed
				other := r.acquire("a", time.Hour)
				arrive()
				require.NoError(t, <-released)
				time.Sleep(30 * time.Second)
				require.Empty(t, r.tickets())
				next := waitFor(t.Context(), lk, "a", time.Minute) // its inbox is live
				time.Sleep(time.Second)
				require.NoError(t, other.Release(t.Context()))
				require.NoError(t, (<-next).err)
			})
		})
	}
}
