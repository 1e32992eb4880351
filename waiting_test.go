package redislock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// acquired is what a call of Acquire came to.
type acquired struct {
	lock *Lock
	err  error
	at   time.Time
}

// waitFor calls Acquire in a goroutine.
func waitFor(ctx context.Context, lk *Locker, name string, ttl time.Duration, opts ...AcquireOption) <-chan acquired {
	c := make(chan acquired, 1)
	go func() {
		lock, err := lk.Acquire(ctx, name, ttl, opts...)
		c <- acquired{lock, err, time.Now()}
	}()
	return c
}

func TestWaiterHoldsTheLockSoonAfterItIsReleased(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		holder := r.acquire("a", time.Hour)
		waiter := waitFor(t.Context(), r.lockerOn(r.connect()), "a", time.Minute)
		time.Sleep(time.Minute)
		released := time.Now()
		require.NoError(t, holder.Release(t.Context()))
		got := <-waiter
		require.NoError(t, got.err)
		require.LessOrEqual(t, got.at.Sub(released), wire.LastPause)
		require.Equal(t, got.lock.Token(), r.value("lock:a"))
		require.Greater(t, got.lock.Fence(), holder.Fence())
	})
}

// Fault 28: the holder is dead.
func TestWaiterHoldsTheLockWhenTheLeaseEnds(t *testing.T) {
	for _, lease := range []time.Duration{20 * time.Millisecond, time.Second, 30 * time.Second} {
		t.Run(lease.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				r.acquire("a", lease)
				ends := time.Now().Add(lease)
				got := <-waitFor(t.Context(), r.locker(), "a", time.Minute)
				require.NoError(t, got.err)
				require.False(t, got.at.Before(ends))
				require.LessOrEqual(t, got.at.Sub(ends), 200*time.Millisecond)
			})
		})
	}
}

// Fault 20.
func TestWaitIsLimitedByContextAndNotByTTL(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		start := time.Now()
		holder := r.acquire("a", time.Second, WithWatchdog())
		time.AfterFunc(3*time.Second, func() { _ = holder.Release(context.Background()) })
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		got := <-waitFor(ctx, r.locker(), "a", time.Second)
		require.NoError(t, got.err)
		require.GreaterOrEqual(t, got.at.Sub(start), 3*time.Second)
		require.LessOrEqual(t, got.at.Sub(start), 3*time.Second+wire.LastPause)
	})
}

// Fault 16.
func TestLeaseIsCountedFromTheGrantAndNotFromTheCall(t *testing.T) {
	const ttl = time.Second
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		r.acquire("a", 3*ttl)
		got := <-waitFor(t.Context(), r.locker(), "a", ttl)
		require.NoError(t, got.err)
		require.GreaterOrEqual(t, got.lock.Until().Sub(got.at), 9*ttl/10)
		require.Equal(t, ttl, r.TTL("lock:a"))
	})
}

// Fault 21.
func TestContextThatEndsWhileWaitingIsBothErrors(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		holder := r.acquire("a", time.Hour)
		lk := r.locker()
		deadline, cancelDeadline := context.WithTimeout(t.Context(), time.Second)
		defer cancelDeadline()
		bare, cancelBare := context.WithCancelCause(t.Context())
		defer cancelBare(nil)
		time.AfterFunc(time.Second, func() { cancelBare(errWork) })
		ends := time.Now().Add(time.Second)

		for name, waiter := range map[string]<-chan acquired{
			"deadline": waitFor(deadline, lk, "a", time.Minute), // one of them polls, the other stands in line
			"cancel":   waitFor(bare, lk, "a", time.Minute),
		} {
			got := <-waiter
			require.Nil(t, got.lock)
			require.Equal(t, ends, got.at, "returns as ctx ends")
			want := []error{ErrNotAcquired, context.DeadlineExceeded}
			if name == "cancel" {
				want = []error{ErrNotAcquired, context.Canceled, errWork}
			}
			requireFailure(t, got.err, opAcquire, "lock:a", want...)
		}
		require.Equal(t, holder.Token(), r.value("lock:a"))
		requireNoGoroutines(t)
	})
}

// Fault 23.
func TestCancelThatRacesWithTheGrantLosesNoLock(t *testing.T) {
	const rounds = 1_000
	races := map[string]func(t *testing.T, r *fakeRedis, lk *Locker, after time.Duration){
		"free lock": func(t *testing.T, r *fakeRedis, lk *Locker, after time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), after)
			defer cancel()
			lock, err := lk.Acquire(ctx, "a", time.Minute)
			requireLockOrError(t, r, lock, err)
		},
		"released lock": func(t *testing.T, r *fakeRedis, lk *Locker, after time.Duration) {
			holder, err := lk.TryAcquire(t.Context(), "a", time.Minute)
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond+after)
			defer cancel()
			waiter := waitFor(ctx, lk, "a", time.Minute)
			time.Sleep(rand.N(20 * time.Millisecond))
			require.NoError(t, holder.Release(t.Context()))
			got := <-waiter
			requireLockOrError(t, r, got.lock, got.err)
		},
		"WithLock": func(t *testing.T, r *fakeRedis, lk *Locker, after time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), after)
			defer cancel()
			ran := false
			err := lk.WithLock(ctx, "a", time.Minute, func(_ context.Context, lock *Lock) error {
				ran = true
				require.Equal(t, lock.Token(), r.value("lock:a"), "fn is run with the lock")
				return nil
			})
			require.Equal(t, ran, err == nil, err)
			requireGone(t, r)
		},
	}
	for name, race := range races {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				r.acquire("warm", time.Hour)
				r.beQuick()
				r.net.setLatency(func() time.Duration { return time.Duration(rand.IntN(5)) * time.Millisecond })
				lk := r.locker()
				for range rounds {
					race(t, r, lk, time.Duration(rand.IntN(12))*time.Millisecond)
				}
				require.Empty(t, r.logged(""))
			})
		})
	}
}

// requireLockOrError: nil error if and only if the key holds our token and the
// caller has the handle.
func requireLockOrError(t *testing.T, r *fakeRedis, lock *Lock, err error) {
	t.Helper()
	if err == nil {
		require.Equal(t, lock.Token(), r.value("lock:a"))
		require.NoError(t, lock.Release(t.Context()))
		return
	}
	require.Nil(t, lock)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	requireGone(t, r)
}

// requireGone: an abandoned acquisition is released within 250 ms.
func requireGone(t *testing.T, r *fakeRedis) {
	t.Helper()
	time.Sleep(250 * time.Millisecond)
	synctest.Wait()
	require.False(t, r.Exists("lock:a"))
}

// Fault 31.
func TestWaiterThatLosesARaceGoesOnWaiting(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		r.take("lock:a")
		waiters := []<-chan acquired{
			waitFor(t.Context(), r.lockerOn(r.connect()), "a", time.Second, WithWatchdog()),
			waitFor(t.Context(), r.lockerOn(r.connect()), "a", time.Second, WithWatchdog()),
			waitFor(t.Context(), r.lockerOn(r.connect()), "a", time.Second, WithWatchdog()),
		}
		time.Sleep(time.Second)
		for range 10 { // others are faster, again and again
			require.NoError(t, r.Set("lock:a", "stolen"))
			r.SetTTL("lock:a", time.Minute)
			time.Sleep(5 * time.Second)
			for _, w := range waiters {
				require.Empty(t, w, "nobody returns early")
			}
		}
		r.Del("lock:a")
		for range waiters {
			var got acquired
			select {
			case got = <-waiters[0]:
			case got = <-waiters[1]:
			case got = <-waiters[2]:
			}
			require.NoError(t, got.err)
			require.Equal(t, got.lock.Token(), r.value("lock:a"))
			require.NoError(t, got.lock.Release(t.Context()))
		}
	})
}

func TestWaitersOfOneProcessAreServedInTheOrderOfTheirCalls(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		holder, err := lk.Acquire(t.Context(), "a", time.Hour)
		require.NoError(t, err)
		var order []int
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				require.NoError(t, lk.WithLock(t.Context(), "a", time.Minute, func(context.Context, *Lock) error {
					order = append(order, i) // the lock is the mutex
					return nil
				}))
			})
			time.Sleep(time.Second)
		}
		require.NoError(t, holder.Release(t.Context()))
		wg.Wait()
		require.Len(t, order, 20)
		require.IsIncreasing(t, order)
	})
}

func TestWaiterThatLeavesItsPlaceLosesNobodysTurn(t *testing.T) {
	for leaving := range 4 {
		t.Run(fmt.Sprint(leaving), func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lk := r.locker()
				holder, err := lk.Acquire(t.Context(), "a", time.Hour)
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				waiters := make([]<-chan acquired, 4)
				for i := range waiters {
					c := t.Context()
					if i == leaving {
						c = ctx
					}
					waiters[i] = waitFor(c, lk, "a", time.Hour)
					time.Sleep(time.Second)
				}
				cancel()
				require.ErrorIs(t, (<-waiters[leaving]).err, context.Canceled)
				require.NoError(t, holder.Release(t.Context()))
				for i, w := range waiters {
					if i != leaving {
						got := <-w
						require.NoError(t, got.err)
						require.NoError(t, got.lock.Release(t.Context()))
					}
				}
				lines, _ := lk.lines.Len()
				require.Zero(t, lines, "a line without anybody is gone")
			})
		})
	}
}

func TestOnlyTheFirstInLineAsksRedis(t *testing.T) {
	const waiting = 20 * time.Second
	asked := func(waiters int) (requests int) {
		inBubble(t, func(t *testing.T, r *fakeRedis) {
			ctx, cancel := context.WithCancel(t.Context())
			lk := r.locker()
			r.acquire("a", time.Hour)
			first := waitFor(ctx, lk, "a", time.Minute)
			time.Sleep(time.Second)
			before := r.requests(opAcquire)
			others := make([]<-chan acquired, waiters-1)
			for i := range others {
				others[i] = waitFor(ctx, lk, "a", time.Minute)
			}
			time.Sleep(waiting)
			requests = r.requests(opAcquire) - before
			cancel()
			for _, w := range append(others, first) {
				require.ErrorIs(t, (<-w).err, ErrNotAcquired)
			}
		})
		return requests
	}
	require.InDelta(t, asked(1), asked(100), 8)
	require.LessOrEqual(t, asked(100), int(waiting/(wire.LastPause/2))+1)
}

func TestWaitersOfDifferentNamesDoNotHinderEachOther(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		r.acquire("a", time.Hour)
		b := r.acquire("b", time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		stuck := waitFor(ctx, lk, "a", time.Minute)
		free := waitFor(t.Context(), lk, "b", time.Minute)
		time.Sleep(time.Second)
		require.NoError(t, b.Release(t.Context()))
		require.NoError(t, (<-free).err)
		cancel()
		require.ErrorIs(t, (<-stuck).err, ErrNotAcquired)
	})
}

func TestTryAcquireDoesNotStandInLine(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		r.acquire("a", time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		waiter := waitFor(ctx, lk, "a", time.Minute)
		time.Sleep(time.Second)
		require.Zero(t, elapsed(func() {
			_, err := lk.TryAcquire(t.Context(), "a", time.Minute)
			requireFailure(t, err, opAcquire, "lock:a", ErrNotAcquired)
		}))
		cancel()
		<-waiter
	})
}

// --- outages -------------------------------------------------------------------------

// outages are the ways in which Redis does not serve for a while.
var outages = map[string]struct {
	begin, end func(r *fakeRedis)
	text       string
}{
	"refused": {func(r *fakeRedis) { r.net.down() }, func(r *fakeRedis) { r.net.up() }, "connection refused"},
	"silent":  {func(r *fakeRedis) { r.net.stall() }, func(r *fakeRedis) { r.net.flow() }, " Redis within "},
	"loading": {
		func(r *fakeRedis) { r.answerWith(func(string) string { return "LOADING Redis is loading" }) },
		func(r *fakeRedis) { r.answerWith(nil) }, "LOADING",
	},
}

func TestWaiterWaitsOutagesOut(t *testing.T) {
	for name, outage := range outages {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				r.acquire("a", time.Minute)
				lk := r.locker()
				waiter, behind := waitFor(t.Context(), lk, "a", 30*time.Second), waitFor(t.Context(), lk, "a", 30*time.Second)
				time.Sleep(30 * time.Second)
				outage.begin(r)
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				require.Empty(t, waiter)
				require.Len(t, r.logged("does not serve"), 1, "one line for one outage")
				outage.end(r)
				back := time.Now()
				var got acquired
				select {
				case got = <-waiter:
				case got = <-behind:
					behind = waiter
				}
				require.NoError(t, got.err)
				require.LessOrEqual(t, got.at.Sub(back), 2*time.Second)
				require.Equal(t, got.lock.Token(), r.value("lock:a"))
				require.NoError(t, got.lock.Release(t.Context()))
				require.NoError(t, (<-behind).err)
			})
		})
	}
}

// An outage is not contention, and the caller learns what was wrong.
func TestContextThatEndsInAnOutageIsNotErrNotAcquired(t *testing.T) {
	for name, outage := range outages {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				r.acquire("a", time.Minute)
				lk := r.locker()
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				waiters := []<-chan acquired{waitFor(ctx, lk, "a", time.Minute), waitFor(ctx, lk, "a", time.Minute)}
				time.Sleep(time.Minute / 2)
				outage.begin(r)
				for _, w := range waiters {
					got := <-w
					requireFailure(t, got.err, opAcquire, "lock:a", context.DeadlineExceeded)
					require.ErrorContains(t, got.err, outage.text)
				}
				outage.end(r)
				requireNoGoroutines(t)
			})
		})
	}
}

// Fault 6.
func TestFirstRequestOfAnAcquisitionReportsAnOutage(t *testing.T) {
	for name, acquire := range acquirers {
		for _, outage := range []string{"refused", "loading"} {
			t.Run(name+"/"+outage, func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					outages[outage].begin(r)
					var err error
					require.Less(t, elapsed(func() { _, err = acquire(r.locker(), t.Context(), "a", time.Minute) }), 10*time.Second)
					requireFailure(t, err, opAcquire, "lock:a")
					requireNotContextError(t, err)
					require.ErrorContains(t, err, outages[outage].text)
				})
			})
		}
	}
}

func TestFirstRequestIsRepeatedAfterATransportError(t *testing.T) {
	for name, acquire := range acquirers {
		for _, kind := range []faultKind{cutRequest, cutReply, loseReply} {
			t.Run(fmt.Sprintf("%s/%d", name, kind), func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					r.net.fail(opAcquire, kind, 1)
					lock, err := acquire(r.locker(), t.Context(), "a", time.Minute)
					require.NoError(t, err)
					if name != "WithLock" {
						require.Equal(t, lock.Token(), r.value("lock:a"))
					}
				})
			})
		}
	}
}

// What Redis refuses for good surfaces at once, also from one who waits.
func TestServerErrorsSurfaceAtOnce(t *testing.T) {
	for _, text := range []string{
		"WRONGTYPE Operation against a key holding the wrong kind of value",
		"NOPERM this user has no permissions to access one of the keys used as arguments",
		"OOM command not allowed when used memory > 'maxmemory'.",
		"READONLY You can't write against a read only replica.",
		"MISCONF Redis is configured to save RDB snapshots",
		"NOAUTH Authentication required.",
		"ERR Error running script: @user_script:1: -OOM command not allowed",
	} {
		for name, acquire := range acquirers {
			t.Run(name+"/"+text, func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					r.answerWith(func(string) string { return text })
					var err error
					require.Zero(t, elapsed(func() { _, err = acquire(r.locker(), t.Context(), "a", time.Minute) }))
					requireFailure(t, err, opAcquire, "lock:a")
					require.ErrorContains(t, err, text)
					var answer redis.Error
					require.ErrorAs(t, err, &answer, "the caller can ask go-redis what it is")
					require.Equal(t, 1, r.requests(opAcquire))
				})
			})
		}
	}
}

func TestServerErrorSurfacesFromAWaiter(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		r.acquire("a", time.Hour)
		waiter := waitFor(t.Context(), r.locker(), "a", time.Minute)
		time.Sleep(5 * time.Second)
		r.answerWith(func(string) string { return "NOPERM no" })
		before := time.Now()
		got := <-waiter
		require.LessOrEqual(t, got.at.Sub(before), defaultPollInterval+200*time.Millisecond)
		requireFailure(t, got.err, opAcquire, "lock:a")
		require.ErrorContains(t, got.err, "NOPERM")
	})
}

func TestPollIntervalBoundsTheTimeBetweenQuestions(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		r.acquire("a", time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		<-waitFor(ctx, r.locker(WithPollInterval(20*time.Millisecond)), "a", time.Minute)
		require.GreaterOrEqual(t, r.requests(opAcquire), 200)
	})
}

func TestForeignLockWithoutAnEndIsWaitedFor(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		require.NoError(t, r.Set("lock:a", "foreign"))
		waiter := waitFor(t.Context(), r.locker(), "a", time.Minute)
		time.Sleep(time.Minute)
		require.Less(t, r.requests(opAcquire), 300, "with pauses")
		r.Del("lock:a")
		require.NoError(t, (<-waiter).err)
	})
}

// --- exclusion over many kinds of trouble -------------------------------------------------

// Ten processes contend while connections are cut and replies are lost. Nobody
// is inside together with another whose lock still counts.
func TestNoTwoHoldersInTrouble(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		r.net.setLatency(func() time.Duration { return rand.N(2 * time.Millisecond) })
		var mu sync.Mutex
		var holders []*Lock
		entered := 0
		enter := func(lock *Lock) {
			mu.Lock()
			defer mu.Unlock()
			for _, h := range holders {
				require.Error(t, h.Err(), "two hold the lock")
				require.Less(t, h.Fence(), lock.Fence())
			}
			holders = append(holders, lock)
			entered++
		}
		leave := func(lock *Lock) {
			mu.Lock()
			defer mu.Unlock()
			holders = slices.DeleteFunc(holders, func(h *Lock) bool { return h == lock })
		}
		end := time.Now().Add(30 * time.Second)
		var wg sync.WaitGroup
		for range 10 {
			lk := r.lockerOn(r.connect())
			wg.Go(func() {
				for time.Now().Before(end) {
					err := lk.WithLock(t.Context(), "a", 300*time.Millisecond, func(ctx context.Context, lock *Lock) error {
						enter(lock)
						defer leave(lock)
						select {
						case <-time.After(rand.N(time.Second)):
						case <-ctx.Done():
							time.Sleep(rand.N(500 * time.Millisecond)) // late to notice
						}
						return nil
					})
					require.True(t, err == nil || !errors.Is(err, ErrNotAcquired), err)
				}
			})
		}
		for time.Now().Before(end) {
			time.Sleep(rand.N(time.Second))
			switch rand.IntN(6) {
			case 0:
				r.net.cut()
			case 1:
				r.net.fail(opAcquire, cutReply, 1)
			case 2:
				r.net.fail(opExtend, loseReply, 1)
			case 3:
				r.net.fail(opRelease, cutReply, 1)
			case 4:
				r.net.stall()
				time.Sleep(rand.N(time.Second))
				r.net.flow()
			}
		}
		wg.Wait()
		require.Greater(t, entered, 10)
	})
}

// On a cluster a process may listen on another node than the one that its slot
// has moved to. PSUBSCRIBE stands for it here: a message arrives, but NUMSUB
// does not count it.
func TestATicketThatIsPassedOverIsToldToAskAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", time.Minute)
		_, err := r.ZAdd(lock.keys.queue, 1, "passed 60000 5 1 elsewhere")
		require.NoError(t, err)
		elsewhere := r.admin.PSubscribe(t.Context(), "lock:inbox:*")
		defer elsewhere.Close()
		_, err = elsewhere.Receive(t.Context())
		require.NoError(t, err)
		require.NoError(t, lock.Release(t.Context()))
		message, err := elsewhere.ReceiveMessage(t.Context())
		require.NoError(t, err)
		require.Equal(t, "lock:inbox:elsewhere passed 0 0", message.Channel+" "+message.Payload)
	})
}

func TestAWaiterThatWasPassedOverAsksAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		r.take("lock:a")
		ctx, cancel := context.WithCancel(t.Context())
		lk := r.locker()
		over := make(chan struct{})
		go func() {
			defer close(over)
			_, err := lk.Acquire(ctx, "a", time.Minute)
			assert.ErrorIs(t, err, ErrNotAcquired)
		}()
		time.Sleep(100 * time.Millisecond) // its ticket is queued
		tickets, err := r.ZMembers("{lock:a}:queue")
		require.NoError(t, err)
		require.Len(t, tickets, 1)
		ticket := strings.Fields(tickets[0])
		before := r.requests(opAcquire)
		require.NoError(t, r.admin.Publish(t.Context(), "lock:inbox:"+ticket[4], ticket[0]+" 0 0").Err())
		synctest.Wait()
		require.Equal(t, before+1, r.requests(opAcquire))
		cancel()
		<-over
	})
}

// A head that became one while this Locker held the lock asks once in a poll
// interval all the same.
func TestHeadBehindItsOwnLockerFindsADeletedKey(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		holder := r.acquire("a", time.Hour)
		lk := r.lockerOn(r.connect())
		first := waitFor(t.Context(), lk, "a", time.Hour)
		time.Sleep(time.Second)
		second := waitFor(t.Context(), lk, "a", time.Hour)
		time.Sleep(time.Second)
		require.NoError(t, holder.Release(t.Context()))
		require.NoError(t, (<-first).err)
		time.Sleep(time.Second)
		r.Del("lock:a") // by hand
		deleted := time.Now()
		got := <-second
		require.NoError(t, got.err)
		require.Less(t, got.at.Sub(deleted), defaultPollInterval+time.Second)
		require.NoError(t, got.lock.Release(t.Context()))
	})
}

// Nothing of a lock that was released is left to a timer.
func TestTimersStop(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		lock, err := lk.Acquire(t.Context(), "a", time.Hour)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		waiter := waitFor(ctx, lk, "a", time.Hour)
		time.Sleep(time.Second)
		cancel()
		<-waiter
		require.NoError(t, lock.Release(t.Context()))
		synctest.Wait()
		require.Zero(t, lk.clocks.Watched(), "expiry")
	})
}

// A hook that panics takes nobody's turn, and leaves no lock behind.
func TestPanicInAcquireLeavesTheLine(t *testing.T) {
	for name, executed := range map[string]bool{"before the request": false, "after it": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				client := r.connect()
				lk := r.lockerOn(client)
				client.AddHook(panicOnce{executed, new(atomic.Bool)})
				require.Panics(t, func() { _, _ = lk.Acquire(context.Background(), "a", time.Minute) })
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				lock, err := lk.Acquire(ctx, "a", time.Minute)
				require.NoError(t, err)
				require.NoError(t, lock.Release(t.Context()))
			})
		})
	}
}

// panicOnce is a hook of a client that panics at the first command.
type panicOnce struct {
	executed bool // before it panics
	done     *atomic.Bool
}

func (h panicOnce) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h panicOnce) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.done.CompareAndSwap(false, true) {
			if h.executed {
				_ = next(ctx, cmd)
			}
			panic("of a hook")
		}
		return next(ctx, cmd)
	}
}

func (h panicOnce) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
