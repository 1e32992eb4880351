package redislock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A lock that is released through one handle ends all others with its token at
// once, whatever became of the handles made before and after them. Else they
// would say that they hold the lock while somebody else has it.
func TestEveryHandleEndsWithARelease(t *testing.T) {
	resume := func(t *testing.T, lk *Locker, a *Lock, ttl time.Duration) *Lock {
		lock, err := lk.Resume(t.Context(), a.Name(), a.Token(), ttl)
		require.NoError(t, err)
		return lock
	}
	for name, release := range map[string]func(t *testing.T, r *fakeRedis, lk *Locker, a *Lock) (others []*Lock){
		"that was not sent at first": func(t *testing.T, r *fakeRedis, lk *Locker, a *Lock) []*Lock {
			b := resume(t, lk, a, time.Minute)
			r.net.down()
			require.Error(t, a.Release(t.Context()))
			r.net.up()
			require.NoError(t, a.Release(t.Context()))
			return []*Lock{b}
		},
		"through the third one, and the second was detached": func(t *testing.T, _ *fakeRedis, lk *Locker, a *Lock) []*Lock {
			b := resume(t, lk, a, time.Minute)
			require.Equal(t, a.Token(), b.Detach())
			require.NoError(t, resume(t, lk, a, time.Minute).Release(t.Context()))
			return []*Lock{a}
		},
		"through the third one, and the second has ended": func(t *testing.T, _ *fakeRedis, lk *Locker, a *Lock) []*Lock {
			b := resume(t, lk, a, time.Second)
			require.NoError(t, a.Extend(t.Context(), time.Minute))
			time.Sleep(time.Second)
			require.ErrorIs(t, b.Err(), ErrLost)
			require.NoError(t, resume(t, lk, a, time.Minute).Release(t.Context()))
			return []*Lock{a}
		},
		"through one that is over by its own clock": func(t *testing.T, _ *fakeRedis, lk *Locker, a *Lock) []*Lock {
			b := resume(t, lk, a, time.Second)
			require.NoError(t, a.Extend(t.Context(), time.Minute))
			time.Sleep(time.Second)
			require.NoError(t, b.Release(t.Context()))
			return []*Lock{a}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lk := r.locker()
				a, err := lk.TryAcquire(t.Context(), "a", time.Minute)
				require.NoError(t, err)
				others := release(t, r, lk, a)
				next := r.acquire("a", time.Minute)
				require.NoError(t, next.Err())
				for _, other := range others {
					require.ErrorIs(t, other.Err(), ErrLost)
				}
				lk.handles.requireNone(t)
			})
		})
	}
}

func TestEveryHandleEndsWithAReleaseOnAQuorum(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		a := q.acquire("a", time.Minute)
		b, err := q.Resume(t.Context(), "a", a.Token(), time.Minute)
		require.NoError(t, err)
		require.Equal(t, a.Token(), b.Detach())
		c, err := q.Resume(t.Context(), "a", a.Token(), time.Minute)
		require.NoError(t, err)
		require.NoError(t, c.Release(t.Context()))
		next, err := q.locker().TryAcquire(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		require.NoError(t, next.Err())
		require.ErrorIs(t, a.Err(), ErrLost)
	})
}

// A vote that another handle was about to win back is not left for nobody.
func TestAReleaseTakesBackWhatOtherHandlesMayYetGet(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		q.nodes[2].net.down()
		a := q.acquire("a", time.Minute)
		q.nodes[2].net.up()
		time.Sleep(2 * time.Second)
		b, err := q.Resume(t.Context(), "a", a.Token(), time.Minute)
		require.NoError(t, err)
		synctest.Wait()
		q.nodes[2].Del("lock:a") // as if it had been restarted
		arrive := q.nodes[2].net.delay(opRetake)
		require.NoError(t, b.Extend(t.Context(), 10*time.Minute))
		synctest.Wait()
		require.NoError(t, a.Release(t.Context()))
		time.Sleep(time.Second)
		arrive()
		time.Sleep(30 * time.Second)
		require.Equal(t, []string{"", "", ""}, q.values("a"))
	})
}

func TestResumeWhileAReleaseIsUnderWay(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		a, err := lk.TryAcquire(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		arrive := r.net.delay(opRelease)
		released := make(chan error, 1)
		go func() { released <- a.Release(t.Context()) }()
		synctest.Wait()
		before := r.requests(opExtend)
		_, err = lk.Resume(t.Context(), "a", a.Token(), time.Minute)
		require.ErrorIs(t, err, ErrReleased)
		require.Equal(t, before, r.requests(opExtend))
		arrive()
		require.NoError(t, <-released)
		_, err = lk.Resume(t.Context(), "a", a.Token(), time.Minute)
		require.ErrorIs(t, err, ErrNotHeld, "the answer says so")
		lk.handles.requireNone(t)
	})
}

func TestReleaseWhileResumeIsUnderWay(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		a, err := lk.TryAcquire(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		arrive := r.net.delayReply(opExtend)
		resumed := make(chan error, 1)
		go func() {
			_, err := lk.Resume(t.Context(), "a", a.Token(), time.Minute)
			resumed <- err
		}()
		synctest.Wait()
		require.NoError(t, a.Release(t.Context()))
		next := r.acquire("a", time.Minute)
		arrive()
		require.ErrorIs(t, <-resumed, ErrReleased)
		require.NoError(t, next.Err())
		lk.handles.requireNone(t)
		require.Empty(t, r.logged("lost"))
	})
}

// Handles that have ended are forgotten, however many of one token there were.
func TestHandlesThatHaveEndedAreForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		a, err := lk.TryAcquire(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		for range 100 {
			_, err := lk.Resume(t.Context(), "a", a.Token(), time.Second)
			require.NoError(t, err)
			time.Sleep(900 * time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond)
		lk.handles.requireNone(t)
	})
}

func (hs *handles[H]) requireNone(t *testing.T) {
	t.Helper()
	hs.mu.Lock()
	defer hs.mu.Unlock()
	require.Empty(t, hs.byToken)
}

// WithLock's release was never sent. What goes on in the background takes the lock
// away all the same, so no handle of the token is trusted, and none is made anew.
func TestHandlesEndWhereWithLockLeavesTheReleaseToTheBackground(t *testing.T) {
	for name, refuse := range map[string]func(r *fakeRedis) (end func()){
		"not sent": func(r *fakeRedis) func() { r.net.down(); return r.net.up },
		"refused": func(r *fakeRedis) func() {
			r.answerWith(func(op string) string { return map[bool]string{true: "NOPERM x"}[op == opRelease] })
			return func() { r.answerWith(nil) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lk := r.locker()
				var own, twin *Lock
				var end func()
				err := lk.WithLock(t.Context(), "a", time.Minute, func(_ context.Context, lock *Lock) (err error) {
					own = lock
					twin, err = lk.Resume(t.Context(), "a", lock.Token(), time.Minute)
					end = refuse(r)
					return err
				})
				require.Error(t, err)
				require.ErrorIs(t, own.Err(), ErrReleased)
				require.ErrorIs(t, twin.Err(), ErrLost)
				end()
				_, err = lk.Resume(t.Context(), "a", own.Token(), time.Minute)
				require.ErrorIs(t, err, ErrReleased)
				time.Sleep(3 * time.Second)
				require.False(t, r.Exists("lock:a"))
			})
		})
	}
}

// A handle that has ended for its user is forgotten, even if Redis has refused its
// release and the lock stays until its lease ends.
func TestHandlesOfARefusedReleaseAreForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		lock, err := lk.TryAcquire(t.Context(), "a", time.Second)
		require.NoError(t, err)
		done := lock.Done()
		r.answerWith(func(op string) string { return map[bool]string{true: "LOADING x"}[op == opRelease] })
		require.Error(t, lock.Release(t.Context()))
		<-done
		lk.handles.requireNone(t)
	})
}

// A lock that Resume has made too late stands in no line.
func TestALateResumeHoldsNobodyUp(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		lock, err := lk.TryAcquire(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		arrive := r.net.delayReply(opExtend)
		resumed := make(chan error, 1)
		go func() {
			_, err := lk.Resume(t.Context(), "a", lock.Token(), time.Minute)
			resumed <- err
		}()
		synctest.Wait()
		require.NoError(t, lock.Release(t.Context()))
		arrive()
		require.ErrorIs(t, <-resumed, ErrReleased)
		require.Zero(t, elapsed(func() {
			next, err := lk.Acquire(t.Context(), "a", time.Minute)
			require.NoError(t, err)
			require.NoError(t, next.Release(t.Context()))
		}))
		lines, _ := lk.lines.Len()
		require.Zero(t, lines)
	})
}

// A release that Redis has refused is not executed later, so it ends no handle
// that Resume makes after it, even while an earlier Resume is under way.
func TestResumeAfterARefusedRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		lock, err := lk.TryAcquire(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		arrive := r.net.delayReply(opExtend)
		early := make(chan error, 1)
		go func() {
			_, err := lk.Resume(t.Context(), "a", lock.Token(), time.Minute)
			early <- err
		}()
		synctest.Wait()
		r.answerWith(func(op string) string { return map[bool]string{true: "NOPERM x"}[op == opRelease] })
		require.Error(t, lock.Release(t.Context()))
		r.answerWith(nil)
		late, err := lk.Resume(t.Context(), "a", lock.Token(), time.Minute)
		require.NoError(t, err)
		arrive()
		require.ErrorIs(t, <-early, ErrReleased, "the release was sent meanwhile")
		require.NoError(t, late.Err())
		require.NoError(t, late.Release(t.Context()))
		require.NoError(t, r.acquire("a", time.Minute).Err())
		lk.handles.requireNone(t)
	})
}
