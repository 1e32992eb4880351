package redislock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// frozenTickets puts tickets into the queue, before all others, whose process
// is counted as subscribed and does not answer.
func (r *fakeRedis) frozenTickets(n int) {
	ps := r.admin.Subscribe(r.t.Context(), "lock:inbox:frozen")
	r.t.Cleanup(func() { ps.Close() })
	_, err := ps.Receive(r.t.Context())
	require.NoError(r.t, err)
	go func() { // a connection of the fake network has no buffer
		for range ps.Channel() {
		}
	}()
	for i := range n {
		_, err := r.ZAdd("{lock:a}:queue", float64(i), fmt.Sprintf("frozen%d 2000 5 1 frozen", i))
		require.NoError(r.t, err)
	}
}

// The lock goes on after one lease of those who do not answer, and a moment in
// which they might have answered. Then they cost nothing any more.
func TestTicketsThatDoNotAnswerCostOneLease(t *testing.T) {
	for _, n := range []int{1, 2, 10, 100} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				holder := r.acquire("a", time.Hour)
				r.frozenTickets(n)
				first := waitFor(t.Context(), r.lockerOn(r.connect()), "a", 2*time.Second)
				time.Sleep(time.Second)
				second := waitFor(t.Context(), r.lockerOn(r.connect()), "a", 2*time.Second)
				time.Sleep(time.Second)
				require.NoError(t, holder.Release(t.Context()))
				released := time.Now()
				got := <-first
				require.NoError(t, got.err)
				require.LessOrEqual(t, got.at.Sub(released), 2*time.Second+75*time.Millisecond)
				require.NoError(t, got.lock.Release(t.Context()))
				released = time.Now()
				got = <-second
				require.NoError(t, got.err)
				require.Zero(t, got.at.Sub(released))
				require.NoError(t, got.lock.Release(t.Context()))
				require.False(t, r.Exists("{lock:a}:queue"))
			})
		})
	}
}

// Where all who are queued answer, nobody waits for the end of the time to do
// so, and the order stays.
func TestARollCallEndsWhenAllHaveAnswered(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		r.acquire("a", time.Hour)
		var waiters []<-chan acquired
		for range 8 {
			waiters = append(waiters, waitFor(t.Context(), r.lockerOn(r.connect()), "a", time.Hour))
			time.Sleep(time.Second)
		}
		r.net.setLatency(func() time.Duration { return time.Millisecond })
		before := r.requests(opAcquire)
		r.Del("lock:a")
		_, err := r.locker().TryAcquire(t.Context(), "a", time.Hour)
		require.ErrorIs(t, err, ErrNotAcquired)
		found := time.Now()
		for i, w := range waiters {
			got := <-w
			require.NoError(t, got.err)
			if i == 0 {
				require.LessOrEqual(t, got.at.Sub(found), 10*time.Millisecond, "three trips")
				require.LessOrEqual(t, r.requests(opAcquire)-before, 1+2*len(waiters))
			}
			require.NoError(t, got.lock.Release(t.Context()))
		}
	})
}

// While those who are queued are called the lock is held by nobody, and cannot
// be taken past them. If nobody answers it is free again.
func TestNobodyHoldsALockWhileTheRollIsCalled(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		r.frozenTickets(3)
		lk := r.locker()
		_, err := lk.TryAcquire(t.Context(), "a", time.Minute)
		require.ErrorIs(t, err, ErrNotAcquired)
		info, err := lk.Inspect(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, Info{Held: true, TTL: 250 * time.Millisecond, Fence: info.Fence}, info)
		time.Sleep(40 * time.Millisecond)
		_, err = lk.TryAcquire(t.Context(), "a", time.Minute)
		require.ErrorIs(t, err, ErrNotAcquired)
		time.Sleep(20 * time.Millisecond)
		lock, err := lk.TryAcquire(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		require.NoError(t, lock.Release(t.Context()))

		r.frozenTickets(3)
		_, err = lk.TryAcquire(t.Context(), "a", time.Minute)
		require.ErrorIs(t, err, ErrNotAcquired)
		time.Sleep(251 * time.Millisecond)
		require.False(t, r.Exists("lock:a"), "of those who have left no trace is left")
	})
}

// A queue that is none (somebody has written to its key) is left alone, and
// keeps nobody from the lock.
func TestAQueueOfAnotherTypeKeepsNobodyFromTheLock(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		require.NoError(t, r.Set("{lock:a}:queue", "a string"))
		lock := r.acquire("a", time.Minute)
		require.NoError(t, lock.Release(t.Context()))
		require.Equal(t, "a string", r.value("{lock:a}:queue"))
	})
}

// Without the right to publish nobody can be called, and the one that asks has
// the lock.
func TestWithoutPublishNobodyIsCalled(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		r.frozenTickets(3)
		r.onCommand(func(cmd string, _ ...string) string {
			if cmd == "PUBLISH" {
				return "NOPERM this user has no permissions to run the 'publish' command"
			}
			return ""
		})
		lock := r.acquire("a", time.Minute)
		require.Equal(t, lock.Token(), r.value("lock:a"))
	})
}

// A waiter that goes away while the roll is called leaves nothing behind.
func TestAWaiterThatLeavesDuringARollCall(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		r.acquire("a", time.Hour)
		r.frozenTickets(3)
		lk := r.lockerOn(r.connect())
		ctx, cancel := context.WithCancel(t.Context())
		waiter := waitFor(ctx, lk, "a", time.Hour)
		time.Sleep(time.Second)
		r.Del("lock:a")
		_, err := r.locker().TryAcquire(t.Context(), "a", time.Hour)
		require.ErrorIs(t, err, ErrNotAcquired)
		synctest.Wait()
		cancel()
		require.ErrorIs(t, (<-waiter).err, ErrNotAcquired)
		time.Sleep(time.Second)
		require.False(t, r.Exists("lock:a"))
		require.False(t, r.Exists("{lock:a}:queue"))
	})
}

// The one that finds the lock free may be the first in the queue, and its
// section short. Those behind it come back in any order, and have the lock in
// theirs.
func TestTheFirstInTheQueueDoesNotGoPastARollCall(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		r.acquire("a", time.Hour)
		waiters := []<-chan acquired{waitFor(t.Context(), r.lockerOn(r.connect(), WithPollInterval(300*time.Millisecond)), "a", time.Hour)}
		for range 11 {
			time.Sleep(10 * time.Millisecond)
			waiters = append(waiters, waitFor(t.Context(), r.lockerOn(r.connect(), WithPollInterval(time.Hour)), "a", time.Hour))
		}
		time.Sleep(time.Second) // the others ask seldom by now
		r.net.setLatency(func() time.Duration { return rand.N(5 * time.Millisecond) })
		r.Del("lock:a")
		fence := int64(0)
		for i, w := range waiters {
			got := <-w
			require.NoError(t, got.err)
			require.Greater(t, got.lock.Fence(), fence, "waiter %d", i)
			fence = got.lock.Fence()
			require.NoError(t, got.lock.Release(t.Context()))
		}
	})
}

// farAway delays what a client asks.
type farAway struct{ by atomic.Int64 }

func (f *farAway) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *farAway) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		time.Sleep(time.Duration(f.by.Load()))
		return next(ctx, cmd)
	}
}

func (f *farAway) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		time.Sleep(time.Duration(f.by.Load()))
		return next(ctx, cmds)
	}
}

// One that answers too late loses its turn, and not its place.
func TestAWaiterThatAnswersARollCallLate(t *testing.T) {
	for _, late := range []time.Duration{100 * time.Millisecond, time.Second} {
		t.Run(late.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				r.acquire("a", time.Hour)
				client := r.connect()
				var distance farAway
				client.AddHook(&distance)
				far := waitFor(t.Context(), r.lockerOn(client, WithPollInterval(time.Hour)), "a", time.Hour)
				time.Sleep(time.Second)
				first := waitFor(t.Context(), r.lockerOn(r.connect(), WithPollInterval(time.Hour)), "a", time.Hour)
				time.Sleep(time.Second)
				second := waitFor(t.Context(), r.lockerOn(r.connect(), WithPollInterval(time.Hour)), "a", time.Hour)
				time.Sleep(time.Second)
				distance.by.Store(int64(late))
				r.Del("lock:a")
				_, err := r.locker().TryAcquire(t.Context(), "a", time.Hour)
				require.ErrorIs(t, err, ErrNotAcquired)
				found := time.Now()
				got := <-first
				require.NoError(t, got.err)
				require.LessOrEqual(t, got.at.Sub(found), 60*time.Millisecond)
				time.Sleep(2 * late)
				for _, w := range []<-chan acquired{far, second} {
					require.NoError(t, got.lock.Release(t.Context()))
					got = <-w
					require.NoError(t, got.err)
				}
			})
		})
	}
}

// A waiter that gets the lock past more dead tickets than are skipped at once
// leaves no ticket behind them: the lock would go to it once more after its
// release, for nobody.
func TestTheOwnTicketDoesNotStayBehindDeadOnes(t *testing.T) {
	for name, free := range map[string]func(t *testing.T, r *fakeRedis, holder *Lock){
		"found free":         func(_ *testing.T, r *fakeRedis, _ *Lock) { r.Del("lock:a") },
		"brought to a queue": func(t *testing.T, _ *fakeRedis, holder *Lock) { require.NoError(t, holder.Release(t.Context())) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lk := r.locker()
				holder, err := lk.TryAcquire(t.Context(), "a", time.Hour)
				require.NoError(t, err)
				waiter := waitFor(t.Context(), lk, "a", 10*time.Minute)
				time.Sleep(2 * time.Second)
				for i := range 1100 {
					_, err := r.ZAdd("{lock:a}:queue", float64(i+1), fmt.Sprintf("dead%d 1000 5 1 nobody", i))
					require.NoError(t, err)
				}
				free(t, r, holder)
				got := <-waiter
				require.NoError(t, got.err)
				require.NoError(t, got.lock.Release(t.Context()))
				time.Sleep(time.Minute)
				require.Empty(t, r.value("lock:a"))
			})
		})
	}
}
