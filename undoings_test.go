package redislock

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// one is the backend of a Locker on one Redis.
func (lk *Locker) one() *single { return lk.backend.(*single) }

func (us *undoings) size() (undoings, servers int) {
	us.mu.Lock()
	defer us.mu.Unlock()
	return len(us.byToken), len(us.servers)
}

func (us *undoings) requireNone(t *testing.T) {
	t.Helper()
	undoings, servers := us.size()
	require.Zero(t, undoings)
	require.Zero(t, servers)
}

func (lk *Locker) orphan(t *testing.T, name string) *undoing {
	t.Helper()
	keys, err := lk.keysFor(name)
	require.NoError(t, err)
	return &undoing{ctx: t.Context(), keys: keys, token: newLockToken("token of " + name), ttl: time.Hour, traces: traces{stands: true}}
}

func TestLooksTravelTogether(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		r.distance(100 * time.Millisecond)
		for i := range 2*undoTrips*undoBatch + undoTrips {
			o := lk.orphan(t, fmt.Sprint("n", i))
			require.NoError(t, r.Set(o.keys.lock, o.token.text))
			lk.one().undoings.add(o)
		}
		synctest.Wait()
		require.Equal(t, undoTrips, undoingGoroutines())
		time.Sleep(3 * time.Second) // one by one it would be more than 200
		require.Zero(t, len(r.locks()))
		synctest.Wait()
		lk.one().undoings.requireNone(t)
	})
}

// Two undoings of one token are one.
func TestUndoingsOfOneTokenAreJoined(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		r.distance(100 * time.Millisecond)
		for range 100 {
			o := lk.orphan(t, "a")
			o.ticket = &ticket{inbox: "inbox", ttl: time.Second}
			lk.one().undoings.add(o)
		}
		undoings, _ := lk.one().undoings.size()
		require.Equal(t, 1, undoings)
		time.Sleep(time.Second)
		require.LessOrEqual(t, r.requests(opRelease), 1+undoTrips)
		lk.one().undoings.requireNone(t)
	})
}

func TestDifferentTicketsOfOneTokenAreBothWithdrawn(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		for _, inbox := range []string{"one", "two"} {
			o := lk.orphan(t, "a")
			o.ticket = &ticket{inbox: inbox, ttl: time.Second, metadata: "who I am"}
			_, err := r.ZAdd(o.keys.queue, 1, o.ticket.text(lk.opts.prefix, &o.keys, o.token))
			require.NoError(t, err)
			lk.one().undoings.add(o)
		}
		time.Sleep(time.Second)
		require.Zero(t, len(r.tickets()))
		lk.one().undoings.requireNone(t)
	})
}

// What was never sent leaves nothing to undo.
func TestRequestsThatWereNotSentAreNotUndone(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		r.net.down()
		for i := range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, err := lk.TryAcquire(ctx, fmt.Sprint("n", i), time.Hour)
			require.Error(t, err)
			cancel()
		}
		time.Sleep(10 * time.Second)
		lk.one().undoings.requireNone(t)
		require.Zero(t, r.requests(opRelease))
	})
}

// Something else stands under the keys; asking again would not help.
func TestUndoingEndsWhereNothingOfItCanBe(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		r.answerWith(func(string) string { return "WRONGTYPE Operation against a key holding the wrong kind of value" })
		lk.one().undoings.add(lk.orphan(t, "a"))
		synctest.Wait()
		lk.one().undoings.requireNone(t)
	})
}

// What a server refuses may be permitted a moment later.
var passingRefusals = []string{
	"MISCONF Redis is configured to save RDB snapshots, but it's unable to persist to disk.",
	"OOM command not allowed when used memory > 'maxmemory'.",
	"NOPERM this user has no permissions to run the 'evalsha' command",
	"upstream failure",
}

func TestUndoingOutlastsARefusal(t *testing.T) {
	for _, refusal := range passingRefusals {
		refuse := func(op string) string {
			return map[bool]string{true: refusal}[op == opRelease]
		}
		t.Run(refusal[:4]+" and a ticket", func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				holder := r.acquire("a", time.Hour)
				ctx, cancel := context.WithCancel(t.Context())
				waiter := waitFor(ctx, r.locker(), "a", 10*time.Minute)
				time.Sleep(2 * time.Second)
				require.Equal(t, 1, r.queuedFor("a"))
				r.answerWith(refuse)
				cancel()
				require.ErrorIs(t, (<-waiter).err, context.Canceled)
				time.Sleep(500 * time.Millisecond)
				r.answerWith(nil)
				time.Sleep(2 * time.Second)
				require.Zero(t, r.queuedFor("a"))
				require.NoError(t, holder.Release(t.Context()))
				require.Empty(t, r.value("lock:a"))
			})
		})
		t.Run(refusal[:4]+" and a request under way", func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lk := r.locker()
				arrive := r.net.delay(opAcquire)
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				r.answerWith(refuse)
				_, err := lk.TryAcquire(ctx, "a", 10*time.Minute)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				time.Sleep(time.Second)
				r.answerWith(nil)
				arrive()
				time.Sleep(5 * time.Second)
				require.Empty(t, r.value("lock:a"))
			})
		})
		t.Run(refusal[:4]+" and the release of WithLock", func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lk := r.locker()
				err := lk.WithLock(t.Context(), "a", 10*time.Minute, func(context.Context, *Lock) error {
					r.answerWith(refuse)
					return nil
				})
				require.Error(t, err)
				time.Sleep(500 * time.Millisecond)
				r.answerWith(nil)
				time.Sleep(2 * time.Second)
				require.Empty(t, r.value("lock:a"))
				synctest.Wait()
				require.Empty(t, lk.doubts.until)
			})
		})
	}
}

// A Redis that is gone for good does not keep a process busy for ever.
func TestUndoingEndsWithTheLeaseIfRedisNeverComesBack(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		r.net.down()
		o := lk.orphan(t, "a")
		o.ttl = time.Minute
		lk.one().undoings.add(o)
		time.Sleep(time.Minute)
		undoings, _ := lk.one().undoings.size()
		require.Equal(t, 1, undoings)
		time.Sleep(undoBound + 5*time.Second)
		lk.one().undoings.requireNone(t)
	})
}
