package redislock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/poll"
	"github.com/e2e3f2a3/redislock/internal/wire"
)

// fakeQuorum is several fake servers, numbered from 0, and a Locker on all of
// them.
type fakeQuorum struct {
	t     *testing.T
	nodes []*fakeRedis
	*Locker
}

// nodeTimeout is the default for the TTLs of these tests, a minute.
const nodeTimeout = 50 * time.Millisecond

func inQuorum(t *testing.T, n int, test func(t *testing.T, q *fakeQuorum)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		q := &fakeQuorum{t: t}
		for range n {
			q.nodes = append(q.nodes, newFakeRedis(t))
		}
		q.Locker = q.locker()
		test(t, q)
	})
}

// locker is one more Locker, as another process has one.
func (q *fakeQuorum) locker(opts ...Option) *Locker {
	q.t.Helper()
	clients := make([]Client, len(q.nodes))
	for i, r := range q.nodes {
		clients[i] = r.connect(func(o *redis.Options) { o.DialerRetries = 1 })
	}
	lk, err := NewQuorum(clients, append([]Option{WithLogger(slog.New(q.nodes[0].journal))}, opts...)...)
	require.NoError(q.t, err)
	return lk
}

func (q *fakeQuorum) acquire(name string, ttl time.Duration, opts ...AcquireOption) *Lock {
	q.t.Helper()
	lock, err := q.TryAcquire(q.t.Context(), name, ttl, opts...)
	require.NoError(q.t, err)
	synctest.Wait() // also the nodes that were not waited for
	return lock
}

// values are what stands at the nodes for one lock.
func (q *fakeQuorum) values(name string) (values []string) {
	for _, r := range q.nodes {
		values = append(values, r.value("lock:"+name))
	}
	return values
}

// requireOn fails unless the token stands on exactly these nodes.
func (q *fakeQuorum) requireOn(name, token string, nodes ...int) {
	q.t.Helper()
	for i, value := range q.values(name) {
		require.Equal(q.t, slices.Contains(nodes, i), value == token, "node %d holds %q, not %s", i, value, token)
	}
}

func (q *fakeQuorum) requireFree(name string) {
	q.t.Helper()
	require.Equal(q.t, make([]string, len(q.nodes)), q.values(name))
}

// requireVotes fails if the error is not that of a missing quorum, or names
// other nodes.
func requireNoQuorum(t *testing.T, err error, failed ...int) {
	t.Helper()
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrNotAcquired)
	require.NotErrorIs(t, err, ErrNotHeld)
	var several *poll.Error
	require.ErrorAs(t, err, &several)
	for node := range several.Nodes {
		require.Equal(t, slices.Contains(failed, node), strings.Contains(err.Error(), fmt.Sprintf("node %d (", node+1)), "%v", err)
	}
}

// --- every state of every node (fault 40) -------------------------------------

type nodeState int

const (
	stateFree   nodeState = iota
	stateTaken            // by somebody else
	stateDown             // connections are refused
	stateSilent           // executes, and the reply never comes
	stateSlow             // executes, and the reply comes too late
	nodeStates
)

func (s nodeState) String() string {
	return []string{"free", "taken", "down", "silent", "slow"}[s]
}

func (s nodeState) begin(r *fakeRedis, key string) {
	switch s {
	case stateTaken:
		r.take(key)
	case stateDown:
		r.net.down()
	case stateSilent:
		r.net.fail(opAcquire, loseReply, 10)
	case stateSlow:
		r.net.setLatency(func() time.Duration { return nodeTimeout })
	}
}

func (s nodeState) end(r *fakeRedis) {
	switch s {
	case stateDown:
		r.net.up()
	case stateSilent:
		r.net.mu.Lock()
		r.net.faults = nil
		r.net.mu.Unlock()
	case stateSlow:
		r.net.setLatency(func() time.Duration { return 0 })
	}
}

func count(states []nodeState, wanted ...nodeState) (n int) {
	for _, s := range states {
		if slices.Contains(wanted, s) {
			n++
		}
	}
	return n
}

func everyState(n int) (all [][]nodeState) {
	all = [][]nodeState{nil}
	for range n {
		var longer [][]nodeState
		for _, states := range all {
			for s := range nodeStates {
				longer = append(longer, append(slices.Clone(states), s))
			}
		}
		all = longer
	}
	return all
}

func TestQuorumInEveryStateOfItsNodes(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 5, 7} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			inQuorum(t, n, func(t *testing.T, q *fakeQuorum) {
				for i, states := range everyState(n) {
					if n > 3 && !slices.IsSorted(states) { // which node it is does not matter
						continue
					}
					if n > 5 && i%4 != 0 {
						continue
					}
					q.tryIn(states, fmt.Sprint(states))
				}
			})
		})
	}
}

// tryIn has TryAcquire meet nodes in these states, and checks what comes of it.
func (q *fakeQuorum) tryIn(states []nodeState, name string) {
	t, majority := q.t, len(states)/2+1
	key := "lock:" + name
	for i, s := range states {
		s.begin(q.nodes[i], key)
	}
	silent, slow := count(states, stateSilent), count(states, stateSlow)
	free, taken := count(states, stateFree), count(states, stateTaken)
	begin := time.Now()
	lock, err := q.TryAcquire(t.Context(), name, time.Minute)
	took := time.Since(begin)
	ours := func(value string) bool { return value != "" && value != "other" }

	require.LessOrEqual(t, took, 2*nodeTimeout, name)
	if free >= majority || taken > len(states)-majority {
		require.Zero(t, took, "%s: it was decided by nodes that answer at once", name)
	}
	switch {
	case free >= majority:
		require.NoError(t, err, name)
		require.NoError(t, lock.Err())
		n := 0
		for i, s := range states {
			if q.nodes[i].value(key) == lock.Token() {
				require.NotEqual(t, stateTaken, s)
				n++
			}
		}
		require.GreaterOrEqual(t, n, majority, name)
		require.NoError(t, lock.Release(t.Context()), name)
	case taken > len(states)-majority:
		requireFailure(t, err, opAcquire, key, ErrNotAcquired)
	default:
		requireFailure(t, err, opAcquire, key)
		require.ErrorContains(t, err, "no quorum")
		for i, s := range states { // once no majority is left, it is enough to say why
			failed := s == stateDown || s == stateSilent || s == stateSlow
			require.True(t, failed || !strings.Contains(err.Error(), fmt.Sprintf("; node %d (", i+1)), "%v", err)
		}
	}
	if slow == 0 { // a node that is slow is slow to be undone, too
		time.Sleep(time.Until(begin.Add(2*nodeTimeout + time.Millisecond)))
		require.False(t, slices.ContainsFunc(q.values(name), ours), "%s: %v", name, q.values(name))
	}
	for i, s := range states {
		s.end(q.nodes[i])
	}
	if slow+silent+count(states, stateDown) > 0 {
		time.Sleep(undoBound + 10*time.Second) // beyond all time-outs
	}
	synctest.Wait()
	require.False(t, slices.ContainsFunc(q.values(name), ours), "%s: %v", name, q.values(name))
}

func TestQuorumWithOneNodeSilentDoesNotWaitForIt(t *testing.T) {
	for silent := range 3 {
		inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
			q.nodes[silent].net.stall()
			var lock *Lock
			var err error
			require.Zero(t, elapsed(func() {
				lock, err = q.TryAcquire(t.Context(), "a", time.Minute)
				require.NoError(t, err)
				_, err = q.locker(WithPrefix("lock:")).TryAcquire(t.Context(), "a", time.Minute)
			})-poll.IdentifyLimit, "but for NewQuorum, which waits for it")
			require.ErrorIs(t, err, ErrNotAcquired)
			require.Zero(t, elapsed(func() {
				require.NoError(t, lock.Extend(t.Context(), time.Minute))
				_, err = lock.TTL(t.Context())
				require.NoError(t, err)
				require.NoError(t, lock.Release(t.Context()))
			}))
			q.nodes[silent].net.flow()
			time.Sleep(undoBound)
			q.requireFree("a")
		})
	}
}

func TestQuorumSaysWhichNodesFailAndWhy(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		q.nodes[1].net.down()
		q.nodes[2].net.stall()
		_, err := q.TryAcquire(t.Context(), "a", time.Minute)
		requireNoQuorum(t, err, 1, 2)
		require.ErrorContains(t, err, "no quorum (2 of 3 needed)")
		require.ErrorContains(t, err, "connection refused")
		require.ErrorContains(t, err, "nothing was sent to Redis within")
		requireNotContextError(t, err)
		q.nodes[2].net.flow()
	})
}

func TestQuorumOfServersThatRefuse(t *testing.T) {
	const wrongType = "WRONGTYPE Operation against a key holding the wrong kind of value"
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		require.NoError(t, errors.Join(q.nodes[0].Set("x", "y")))
		_, err := q.nodes[0].Lpush("lock:a", "x")
		require.NoError(t, err)
		lock := q.acquire("a", time.Minute)
		require.NoError(t, lock.Extend(t.Context(), time.Minute), "one that refuses is one that is missing")
		require.NoError(t, lock.Release(t.Context()))
		_, err = q.nodes[1].Lpush("lock:a", "x")
		require.NoError(t, err)
		for name, acquire := range acquirers {
			_, err = acquire(q.Locker, t.Context(), "a", time.Minute)
			var answer redis.Error
			require.ErrorAs(t, err, &answer, name)
			require.ErrorContains(t, err, wrongType)
			requireFailure(t, err, opAcquire, "lock:a")
			require.False(t, wire.IsTransient(err))
		}
		time.Sleep(undoBound) // a vote can come after the decision
		require.Empty(t, q.nodes[2].value("lock:a"))
	})
}

// --- attempts -----------------------------------------------------------------

// Fault 7: the first attempt leaves the token on a node that does not say so.
func TestQuorumCountsItsOwnTokenOfAnEarlierAttempt(t *testing.T) {
	for _, n := range []int{1, 3, 5, 7} {
		for _, name := range []string{"Acquire", "TryAcquire"} {
			t.Run(fmt.Sprint(name, n), func(t *testing.T) {
				inQuorum(t, n, func(t *testing.T, q *fakeQuorum) {
					majority := n/2 + 1
					for _, r := range q.nodes[majority:] {
						r.net.down()
					}
					q.nodes[0].net.fail(opAcquire, loseReply, 1)
					lock, err := acquirers[name](q.Locker, t.Context(), "a", time.Minute)
					require.NoError(t, err)
					require.Equal(t, 2, q.nodes[0].requests(opAcquire))
					require.Equal(t, slices.Repeat([]string{lock.Token()}, majority), q.values("a")[:majority])
					require.NoError(t, lock.Release(t.Context()))
					synctest.Wait()
					q.requireFree("a")
					for _, r := range q.nodes {
						r.net.up()
					}
				})
			})
		}
	}
}

// What the first attempt gave back arrives in the middle of the second, or
// after it, and takes no vote that was counted. Also where the second attempt
// finds the token of the first, with the same fence, and that is the greatest
// it is given.
func TestQuorumLateHandBackTakesNoVote(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Hour, 0, time.Hour} {
		inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
			q.setClocks(ahead, 0, 0)
			q.nodes[2].net.down()
			q.nodes[1].net.fail(opAcquire, cutRequest, 1)
			arrive := q.nodes[0].net.delay(opHandBack)
			lock := q.acquire("a", time.Minute)
			q.requireOn("a", lock.Token(), 0, 1)
			require.Zero(t, q.nodes[0].requests(opHandBack))
			arrive()
			synctest.Wait()
			require.Equal(t, 1, q.nodes[0].requests(opHandBack))
			q.requireOn("a", lock.Token(), 0, 1)
			require.NoError(t, lock.Extend(t.Context(), time.Minute))
			require.NoError(t, lock.Release(t.Context()))
			q.nodes[2].net.up()
		})
	}
}

// Two that have a node each, of the two that work, give them back: one of them
// gets both.
func TestQuorumMinoritiesAreGivenBack(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		other := q.locker()
		q.nodes[0].take("lock:a")
		q.nodes[1].take("lock:a")
		_, err := other.TryAcquire(t.Context(), "a", time.Hour)
		require.ErrorIs(t, err, ErrNotAcquired)
		synctest.Wait()
		require.Empty(t, q.nodes[2].value("lock:a"), "the vote of a minority is given back at once")
	})
}

func TestQuorumAbandonedAcquisitionIsUndone(t *testing.T) {
	for n := range 3 { // how many nodes are silent
		inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
			ctx, cancel := context.WithCancel(t.Context())
			for _, r := range q.nodes[:n+1] {
				r.net.fail(opAcquire, loseReply, 1)
			}
			time.AfterFunc(10*time.Millisecond, cancel)
			lock, err := q.TryAcquire(ctx, "a", time.Minute)
			if n == 0 {
				require.NoError(t, err)
				require.NoError(t, lock.Release(t.Context()))
			} else {
				requireFailure(t, err, opAcquire, "lock:a", context.Canceled)
			}
			time.Sleep(2 * nodeTimeout)
			q.requireFree("a")
		})
	}
}

// --- fences (fault 50) ---------------------------------------------------------

// setClocks has the servers' clocks be ahead of ours, or behind.
func (q *fakeQuorum) setClocks(ahead ...time.Duration) {
	for i, d := range ahead {
		q.nodes[i].SetTime(time.Now().Add(d))
	}
}

// The majorities {0, 1, 2} and {2, 3, 4} have only node 2 in common, and it is
// the one whose clock is behind: what it mints by itself is less than what the
// first majority has given out. Only if it was told will it know.
func (q *fakeQuorum) fencesOfTwoMajorities() (first, second int64) {
	t := q.t
	q.setClocks(time.Hour, 2*time.Hour, 0, 0, time.Minute)
	q.nodes[3].net.down()
	q.nodes[4].net.down()
	lock := q.acquire("a", time.Minute)
	q.requireOn("a", lock.Token(), 0, 1, 2)
	require.NoError(t, lock.Release(t.Context()))
	synctest.Wait()
	q.nodes[3].net.up()
	q.nodes[4].net.up()
	q.nodes[0].net.down()
	q.nodes[1].net.down()
	next, err := q.Acquire(t.Context(), "a", time.Minute)
	require.NoError(t, err)
	q.requireOn("a", next.Token(), 2, 3, 4)
	require.NoError(t, next.Release(t.Context()))
	q.nodes[0].net.up()
	q.nodes[1].net.up()
	return lock.Fence(), next.Fence()
}

func TestQuorumFencesGrowAlthoughMajoritiesDiffer(t *testing.T) {
	inQuorum(t, 5, func(t *testing.T, q *fakeQuorum) {
		first, second := q.fencesOfTwoMajorities()
		require.Greater(t, second, first)
		require.Greater(t, first, time.Now().Add(time.Hour).UnixMicro(), "the greatest of them")
	})
}

// The same with nodes that only say they have written the fence: the test above
// proves something.
func TestQuorumFencesWouldFallWithoutTheWriteBack(t *testing.T) {
	inQuorum(t, 5, func(t *testing.T, q *fakeQuorum) {
		for _, r := range q.nodes {
			r.pretend[opRaise] = "1"
		}
		first, second := q.fencesOfTwoMajorities()
		require.Less(t, second, first)
	})
}

func TestQuorumFencesGrowWhileNodesComeAndGoAndClocksJump(t *testing.T) {
	for _, n := range []int{1, 3, 5, 7} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			inQuorum(t, n, func(t *testing.T, q *fakeQuorum) {
				last := int64(0)
				for i := range 60 {
					for j, r := range q.nodes { // a minority is down, each time another one
						r.net.setRefuse((i+j)%n < (n-1)/2)
						r.net.cut()
						r.SetTime(time.Now().Add(time.Duration((i*7+j*13)%11-5) * time.Minute))
					}
					lock, err := q.Acquire(t.Context(), "a", time.Minute)
					for err != nil { // the pools are full of dead connections, which go-redis cannot tell on a pipe
						lock, err = q.Acquire(t.Context(), "a", time.Minute)
					}
					require.Greater(t, lock.Fence(), last)
					last = lock.Fence()
					require.NoError(t, lock.Release(t.Context()))
				}
				for _, r := range q.nodes {
					r.net.up()
				}
				time.Sleep(undoBound)
			})
		})
	}
}

func TestQuorumAcquiresOnlyIfTheFenceIsWritten(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		q.setClocks(0, time.Second, 2*time.Second)
		for _, r := range q.nodes {
			for range 10 { // not executed: it would do its work, and count in the next attempt
				defer r.net.delay(opRaise)()
			}
		}
		begin := time.Now()
		_, err := q.TryAcquire(t.Context(), "a", time.Minute)
		require.LessOrEqual(t, time.Since(begin), 2*nodeTimeout)
		require.Error(t, err)
		require.NotErrorIs(t, err, ErrNotAcquired)
		time.Sleep(time.Until(begin.Add(2*nodeTimeout + time.Millisecond)))
		q.requireFree("a")
	})
}

// An attempt that waits for a silent node, and another one whose second phase
// would.
func TestQuorumTryAcquireTakesTwoNodeTimeoutsInAll(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		q.setClocks(0, time.Second, 2*time.Second)
		q.nodes[2].net.down()
		q.nodes[1].net.fail(opAcquire, loseReply, 1)
		q.nodes[0].net.fail(opRaise, loseReply, 10)
		begin := time.Now()
		_, err := q.TryAcquire(t.Context(), "a", time.Minute)
		require.LessOrEqual(t, time.Since(begin), 2*nodeTimeout)
		requireNoQuorum(t, err, 0)
		require.Equal(t, 1, q.nodes[0].requests(opRaise))
		q.nodes[2].net.up()
		time.Sleep(time.Until(begin.Add(2*nodeTimeout + time.Millisecond)))
		q.requireFree("a")
	})
}

func TestQuorumOfOneTakesOneRoundTrip(t *testing.T) {
	inQuorum(t, 1, func(t *testing.T, q *fakeQuorum) {
		before := q.nodes[0].CommandCount()
		lock := q.acquire("a", time.Minute)
		require.Equal(t, before+1, q.nodes[0].requests(opAcquire)+before)
		require.Zero(t, q.nodes[0].requests(opRaise))
		require.NoError(t, lock.Release(t.Context()))
	})
}

// --- holding -------------------------------------------------------------------

func TestQuorumRenewalTakesNodesThatCameBackEmpty(t *testing.T) {
	for op, renew := range map[string]func(*testing.T, *Lock){
		"Extend":   func(t *testing.T, l *Lock) { require.NoError(t, l.Extend(t.Context(), time.Minute)) },
		"watchdog": func(*testing.T, *Lock) { time.Sleep(21 * time.Second) },
	} {
		t.Run(op, func(t *testing.T) {
			inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
				lock := q.acquire("a", time.Minute, WithMetadata("me"), WithWatchdog())
				q.nodes[1].FlushAll()
				renew(t, lock)
				synctest.Wait()
				require.Equal(t, slices.Repeat([]string{lock.Token() + " me"}, 3), q.values("a"))
				require.Positive(t, q.nodes[1].TTL("lock:a"))
				require.Equal(t, fmt.Sprint(lock.Fence()), q.nodes[1].value("{lock:a}:fence"))
				q.nodes[0].FlushAll() // now node 1 is needed
				require.NoError(t, lock.Extend(t.Context(), time.Minute))
				synctest.Wait()
				require.NoError(t, lock.Release(t.Context()))
				synctest.Wait()
				q.requireFree("a")
			})
		})
	}
}

func TestQuorumNodesThatAreFreeAreNoVotes(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		lock := q.acquire("a", time.Minute)
		q.nodes[0].FlushAll()
		q.nodes[1].FlushAll()
		requireFailure(t, lock.Extend(t.Context(), time.Minute), opExtend, "lock:a", ErrNotHeld)
		synctest.Wait()
		q.requireOn("a", lock.Token(), 2)
		requireFailure(t, lock.Err(), opHold, "lock:a", ErrLost)
		require.ErrorIs(t, lock.Release(t.Context()), ErrNotHeld)
		synctest.Wait()
		q.requireFree("a")
	})
}

// Between the moment when a node was seen to be free and the one when it is
// taken again somebody else may have had it, and others.
func TestQuorumDoesNotRetakeANodeThatOthersHad(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		lock := q.acquire("a", time.Minute)
		q.nodes[1].FlushAll()
		arrive := q.nodes[1].net.delay(opRetake)
		require.NoError(t, lock.Extend(t.Context(), time.Minute))
		synctest.Wait()
		other, err := q.nodes[1].locker().TryAcquire(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		require.NoError(t, other.Release(t.Context()))
		arrive()
		synctest.Wait()
		require.Equal(t, 1, q.nodes[1].requests(opRetake))
		q.requireOn("a", lock.Token(), 0, 2)
		require.NoError(t, lock.Release(t.Context()))
	})
}

// The node that has to be repaired answers when the lock is released.
func TestQuorumReleaseBeforeARepairPreventsIt(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		lock := q.acquire("a", time.Minute)
		q.nodes[1].FlushAll()
		arrive := q.nodes[1].net.delayReply(opExtend)
		require.NoError(t, lock.Extend(t.Context(), time.Minute))
		require.NoError(t, lock.Release(t.Context()))
		arrive()
		synctest.Wait()
		require.Zero(t, q.nodes[1].requests(opRetake))
		q.requireFree("a")
	})
}

func TestQuorumReleaseDuringARepairLeavesNothing(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		lock := q.acquire("a", time.Minute)
		q.nodes[1].FlushAll()
		arrive := q.nodes[1].net.delay(opRetake)
		require.NoError(t, lock.Extend(t.Context(), time.Minute))
		synctest.Wait() // the repair is on its way
		require.NoError(t, lock.Release(t.Context()))
		synctest.Wait()
		q.requireFree("a")
		time.Sleep(time.Second)
		arrive()
		synctest.Wait()
		require.Equal(t, 1, q.nodes[1].requests(opRetake))
		time.Sleep(time.Second)
		q.requireFree("a")
	})
}

func TestQuorumLateAcquireIsUndoneAfterTheRelease(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		arrive := q.nodes[1].net.delay(opAcquire)
		lock := q.acquire("a", time.Minute)
		q.requireOn("a", lock.Token(), 0, 2)
		require.NoError(t, lock.Release(t.Context()))
		time.Sleep(time.Second)
		arrive()
		time.Sleep(2 * time.Second)
		require.Equal(t, 1, q.nodes[1].requests(opAcquire))
		q.requireFree("a")
	})
}

func TestQuorumWatchdogKeepsTheLockWhileOneNodeAfterTheOtherIsRestarted(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		lock := q.acquire("a", 3*time.Second, WithWatchdog())
		for i := range 9 {
			r := q.nodes[i%3]
			r.net.down()
			time.Sleep(10 * time.Second)
			require.NoError(t, lock.Err())
			r.FlushAll()
			r.net.up()
			time.Sleep(2 * time.Second)
			q.requireOn("a", lock.Token(), 0, 1, 2)
		}
		require.NoError(t, lock.Release(t.Context()))
		synctest.Wait()
		q.requireFree("a")
		require.Empty(t, q.nodes[0].logged(""))
	})
}

func TestQuorumLockIsLostInTimeWithoutAMajority(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		lock := q.acquire("a", 3*time.Second, WithWatchdog())
		time.Sleep(3500 * time.Millisecond)
		q.nodes[0].net.stall()
		q.nodes[2].net.stall()
		confirmed := lock.Until()
		requireLost(t, lock, 3*time.Second)
		require.False(t, time.Now().After(confirmed))
		require.ErrorContains(t, lock.Err(), "node 1 (")
		require.ErrorContains(t, lock.Err(), "node 3 (")
		q.nodes[0].net.flow()
		q.nodes[2].net.flow()
		time.Sleep(undoBound)
	})
}

// An Extend to less that a node has not answered may be executed there at any
// time. As long as too few others have a longer lease, the longer one is not
// trusted.
func TestQuorumLateExtendIsAllowedFor(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		lock := q.acquire("a", time.Minute)
		arrive := []func(){q.nodes[1].net.delay(opExtend), q.nodes[2].net.delay(opExtend)}
		require.NoError(t, lock.Extend(t.Context(), 10*time.Second), "the second try")
		require.NoError(t, lock.Extend(t.Context(), time.Hour))
		require.Less(t, time.Until(lock.Until()), 10*time.Second)
		for _, f := range arrive {
			f()
		}
		synctest.Wait()
		require.NoError(t, lock.Extend(t.Context(), time.Hour))
		require.Greater(t, time.Until(lock.Until()), 50*time.Minute, "they have been executed by now")
		require.NoError(t, lock.Release(t.Context()))
	})
}

func TestQuorumExtendSetsTheLeaseOnAllNodes(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		lock := q.acquire("a", time.Minute)
		for _, ttl := range []time.Duration{time.Second, time.Hour, time.Minute} {
			require.NoError(t, lock.Extend(t.Context(), ttl))
			require.Equal(t, validity(ttl), time.Until(lock.Until()))
			synctest.Wait()
			for _, r := range q.nodes {
				require.Equal(t, ttl, r.TTL("lock:a"))
			}
			left, err := lock.TTL(t.Context())
			require.NoError(t, err)
			require.Equal(t, ttl, left)
		}
		require.NoError(t, lock.Release(t.Context()))
		require.ErrorIs(t, lock.Extend(t.Context(), time.Minute), ErrReleased)
	})
}

func TestQuorumResume(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		q.setClocks(0, time.Minute, time.Hour)
		lock := q.acquire("a", time.Minute)
		q.nodes[2].net.down()
		other := q.Locker
		resumed, err := other.Resume(t.Context(), "a", lock.Token(), time.Hour)
		require.NoError(t, err)
		require.GreaterOrEqual(t, resumed.Fence(), lock.Fence())
		require.NoError(t, resumed.Release(t.Context()))
		_, err = other.Resume(t.Context(), "a", lock.Token(), time.Hour)
		requireFailure(t, err, opResume, "lock:a", ErrNotHeld)
		q.nodes[2].net.up()
		time.Sleep(undoBound)
		q.requireFree("a")
		next := q.acquire("a", time.Minute)
		require.Greater(t, next.Fence(), resumed.Fence())
		require.NoError(t, next.Release(t.Context()))
	})
}

// --- releasing -----------------------------------------------------------------

func TestQuorumReleaseSpeaksForTheMajority(t *testing.T) {
	for lost := range 4 {
		inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
			lock := q.acquire("a", time.Minute)
			for _, r := range q.nodes[:lost] {
				r.take("lock:a")
			}
			err := lock.Release(t.Context())
			if lost < 2 {
				require.NoError(t, err)
			} else {
				requireFailure(t, err, opRelease, "lock:a", ErrNotHeld)
			}
			synctest.Wait()
			for i, value := range q.values("a") {
				require.Equal(t, map[bool]string{true: "other"}[i < lost], value)
			}
		})
	}
}

func TestQuorumReleaseThatFailedCanBeRepeated(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		lock := q.acquire("a", time.Minute)
		q.nodes[1].net.stall()
		q.nodes[2].net.stall()
		err := lock.Release(t.Context())
		requireNoQuorum(t, err, 1, 2)
		requireFailure(t, lock.Extend(t.Context(), time.Minute), opExtend, "lock:a", ErrReleased)
		requireFailure(t, lock.Err(), opHold, "lock:a", ErrReleased)
		q.nodes[1].net.flow()
		q.nodes[2].net.flow()
		time.Sleep(undoBound)
		q.requireFree("a") // in the background
		require.NoError(t, lock.Release(t.Context()), "an earlier try did the work")
		requireFailure(t, lock.Release(t.Context()), opRelease, "lock:a", ErrReleased)
		require.Empty(t, q.nodes[0].logged("nothing to release"))
	})
}

func TestQuorumReleaseWhoseRepliesAreLost(t *testing.T) { // fault 2
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		for range 10 {
			lock := q.acquire("a", time.Minute)
			for _, r := range q.nodes {
				r.net.fail(opRelease, loseReply, 1)
			}
			require.NoError(t, lock.Release(t.Context()))
			q.requireFree("a")
			time.Sleep(undoBound)
		}
	})
}

func TestQuorumWithLock(t *testing.T) {
	inQuorum(t, 5, func(t *testing.T, q *fakeQuorum) {
		q.nodes[4].net.down()
		ran := false
		require.NoError(t, q.WithLock(t.Context(), "a", time.Second, func(ctx context.Context, lock *Lock) error {
			ran = true
			time.Sleep(time.Minute)
			require.NoError(t, ctx.Err())
			_, err := q.TryAcquire(t.Context(), "a", time.Second)
			require.ErrorIs(t, err, ErrNotAcquired)
			return nil
		}))
		require.True(t, ran)
		synctest.Wait()
		q.requireFree("a")
		q.nodes[4].net.up()

		err := q.WithLock(t.Context(), "a", time.Second, func(ctx context.Context, lock *Lock) error {
			for _, r := range q.nodes[:3] {
				r.take("lock:a")
			}
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), ErrLost)
			return nil
		})
		require.ErrorIs(t, err, ErrLost)
		require.ErrorIs(t, err, ErrNotHeld)
		time.Sleep(undoBound)
	})
}

// --- waiting -------------------------------------------------------------------

func TestQuorumReleaseWakesTheNextInLineAtOnce(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		lock := q.acquire("a", time.Hour)
		var order []int
		done := make(chan struct{})
		for i := range 5 {
			go func() {
				defer func() { done <- struct{}{} }()
				next, err := q.Acquire(t.Context(), "a", time.Hour)
				require.NoError(t, err)
				order = append(order, i) // guarded by the lock
				require.NoError(t, next.Release(t.Context()))
			}()
			synctest.Wait()
		}
		time.Sleep(200 * time.Millisecond) // not so long that other processes are given a chance
		require.Zero(t, elapsed(func() {
			require.NoError(t, lock.Release(t.Context()))
			for range 5 {
				<-done
			}
		}))
		require.Equal(t, []int{0, 1, 2, 3, 4}, order)
		for _, r := range q.nodes {
			require.Empty(t, r.PubSubChannels("*"))
		}
	})
}

func TestQuorumWaitersPollAndAreServed(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		lock := q.acquire("a", time.Hour)
		other := q.locker()
		got := make(chan time.Time)
		go func() {
			next, err := other.Acquire(t.Context(), "a", time.Hour)
			require.NoError(t, err)
			require.NoError(t, next.Release(t.Context()))
			got <- time.Now()
		}()
		time.Sleep(10 * time.Second)
		asked := q.nodes[0].requests(opAcquire)
		time.Sleep(100 * time.Second)
		asked = q.nodes[0].requests(opAcquire) - asked
		require.Less(t, asked, 401)
		require.Greater(t, asked, 199)
		released := time.Now()
		require.NoError(t, lock.Release(t.Context()))
		require.LessOrEqual(t, (<-got).Sub(released), wire.LastPause+time.Millisecond)
		synctest.Wait()
		q.requireFree("a")
	})
}

func TestQuorumWaitersWaitOutAnOutage(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		q.nodes[0].take("lock:a")
		q.nodes[1].net.down() // no majority for anybody
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := q.Acquire(ctx, "a", time.Minute)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, ErrNotAcquired, "an outage")
		require.ErrorContains(t, err, "node 2 (")

		time.AfterFunc(30*time.Second, q.nodes[1].net.up)
		lock, err := q.Acquire(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		require.NoError(t, lock.Release(t.Context()))
		time.Sleep(undoBound)
	})
}

func TestQuorumContendersGetTheirTurn(t *testing.T) {
	for _, n := range []int{3, 5} {
		inQuorum(t, n, func(t *testing.T, q *fakeQuorum) {
			var inside, sections atomic.Int32
			done := make(chan struct{})
			for range 6 {
				lk := q.locker()
				go func() {
					defer func() { done <- struct{}{} }()
					for range 10 {
						require.NoError(t, lk.WithLock(t.Context(), "a", time.Minute, func(context.Context, *Lock) error {
							require.EqualValues(t, 1, inside.Add(1))
							time.Sleep(5 * time.Millisecond)
							inside.Add(-1)
							sections.Add(1)
							return nil
						}))
					}
				}()
			}
			for _, r := range q.nodes { // each on its own way
				var d atomic.Int64
				r.net.setLatency(func() time.Duration { return time.Duration(d.Add(317)%1000) * time.Microsecond })
			}
			for range 6 {
				<-done
			}
			require.EqualValues(t, 60, sections.Load())
		})
	}
}

// --- looking -------------------------------------------------------------------

func TestQuorumInspectTellsWhatTheMajorityAgreesOn(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		inspect := func() Info {
			info, err := q.Inspect(t.Context(), "a")
			require.NoError(t, err)
			return info
		}
		require.Equal(t, Info{}, inspect())
		lock := q.acquire("a", time.Minute, WithMetadata("me"))
		want := Info{Held: true, Token: lock.Token(), Metadata: "me", TTL: time.Minute, Fence: lock.Fence()}
		require.Equal(t, want, inspect())
		q.nodes[0].take("lock:a")
		require.Equal(t, want, inspect())
		q.nodes[2].SetTTL("lock:a", time.Second)
		want.TTL = time.Second
		require.Equal(t, want, inspect(), "after that the majority is none")
		q.nodes[1].FlushAll()
		require.False(t, inspect().Held, "each node says something else")
		q.nodes[1].net.down()
		q.nodes[2].net.down()
		_, err := q.Inspect(t.Context(), "a")
		requireNoQuorum(t, err, 1, 2)
		q.nodes[1].net.up()
		q.nodes[2].net.up()
	})
}

// --- TTLs (fault 18) -------------------------------------------------------------

func TestQuorumEveryTTLIsRefusedWithoutTrafficOrBecomesALease(t *testing.T) {
	for _, n := range []int{1, 3, 5, 7} {
		for _, ttl := range []time.Duration{
			math.MinInt64, -1, 0, 1, 999_999, 9 * time.Millisecond, MinTTL - 1,
			MinTTL, 10*time.Millisecond + 500*time.Microsecond, 24 * time.Hour, maxLease + time.Hour, math.MaxInt64,
		} {
			inQuorum(t, n, func(t *testing.T, q *fakeQuorum) { q.useTTL(ttl) })
		}
	}
}

// useTTL hands a TTL to everything that takes one.
func (q *fakeQuorum) useTTL(ttl time.Duration) {
	t := q.t
	held := q.acquire("held", time.Minute)
	for name, call := range map[string]func() error{
		"Acquire":    func() error { _, err := q.Acquire(t.Context(), "a", ttl); return err },
		"TryAcquire": func() error { _, err := q.TryAcquire(t.Context(), "b", ttl); return err },
		"Resume":     func() error { _, err := q.Resume(t.Context(), "held", held.Token(), ttl); return err },
		"Extend":     func() error { return held.Extend(t.Context(), ttl) },
		"WithLock": func() error {
			return q.WithLock(t.Context(), "c", ttl, func(context.Context, *Lock) error { return nil })
		},
	} {
		if ttl < MinTTL {
			for _, r := range q.nodes {
				r.requireSilence(func() { require.ErrorIs(t, call(), ErrInvalidTTL, name) })
			}
			continue
		}
		require.NoError(t, call(), "%s %d", name, ttl)
		synctest.Wait()
		for _, r := range q.nodes {
			for _, key := range r.Keys() {
				require.Positive(t, r.TTL(key), "%s has no end", key)
			}
			if name == "Acquire" {
				requireLease(t, r, ttl)
			}
		}
	}
}

// --- construction (fault 41) -------------------------------------------------------

func TestNewQuorumRefusesWhatIsNone(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	ring := redis.NewRing(&redis.RingOptions{})
	defer ring.Close()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer cluster.Close()
	for want, clients := range map[string][]Client{
		"a client is needed":                 {},
		"client 1 is nil":                    {nil},
		"client 2 is nil":                    {client, (*redis.Client)(nil)},
		"client 1 is a *redis.Ring":          {ring},
		"client 2 is a *redis.ClusterClient": {client, cluster},
		"clients 1 and 2 are the same":       {client, client},
	} {
		lk, err := NewQuorum(clients)
		require.Nil(t, lk)
		require.ErrorContains(t, err, "redislock: NewQuorum: "+want)
	}
}

func TestNewQuorumRefusesTheSameServerTwice(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		a, b := q.nodes[0], q.nodes[1]
		_, err := NewQuorum([]Client{a.client, b.client, a.connect()})
		require.ErrorContains(t, err, "same server as node ")
	})
}

// A server that was down when the quorum was made is asked who it is before it
// votes.
func TestQuorumServerThatTurnsOutToBeAnotherHasNoVote(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		q.nodes[1].net.down()
		q.nodes[2].net.down()
		lk := q.locker()
		q.nodes[1].net.up()
		q.nodes[1].runID = q.nodes[0].runID
		q.nodes[2].net.up()
		lock, err := lk.TryAcquire(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		synctest.Wait()
		q.requireOn("a", lock.Token(), 0, 2)
		require.NoError(t, lock.Release(t.Context()))
		q.nodes[2].net.down()
		_, err = lk.TryAcquire(t.Context(), "a", time.Minute)
		requireNoQuorum(t, err, 0, 1, 2) // 0 is whom it is the same as
		require.ErrorContains(t, err, "same server as node 1")
		require.NotContains(t, err.Error(), "; node 1")
		q.nodes[2].net.up()
	})
}

func TestNewQuorumWaitsAtMostASecond(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		for _, r := range q.nodes {
			r.net.stall()
		}
		require.Equal(t, time.Second, elapsed(func() { q.locker() }))
		for _, r := range q.nodes {
			r.net.flow()
		}
		require.Zero(t, elapsed(func() { q.locker() }))
	})
}

func TestNodeTimeout(t *testing.T) {
	require.PanicsWithValue(t, "redislock: WithNodeTimeout(0s): must be positive", func() { WithNodeTimeout(0) })
	for ttl, want := range map[time.Duration]time.Duration{
		MinTTL: 5 * time.Millisecond, 200 * time.Millisecond: 10 * time.Millisecond,
		time.Second: 50 * time.Millisecond, math.MaxInt64: 50 * time.Millisecond,
	} {
		require.Equal(t, want, (&quorum{opts: newOptions(nil)}).nodeTimeout(ttl))
		require.Equal(t, time.Second, (&quorum{opts: newOptions([]Option{WithNodeTimeout(time.Second)})}).nodeTimeout(ttl))
	}
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		lk := q.locker(WithNodeTimeout(time.Second))
		for _, r := range q.nodes[1:] {
			r.net.delayReply(opAcquire)
		}
		require.LessOrEqual(t, elapsed(func() {
			_, err := lk.TryAcquire(t.Context(), "a", time.Minute)
			require.NoError(t, err, "the second attempt")
		}), 2*time.Second)
		time.Sleep(undoBound)
	})
}

// A node that is down for long costs no more than a few probes, however busy
// the others are, and is used again as soon as it is back.
func TestQuorumSilentNodeCostsLittle(t *testing.T) {
	for name, c := range map[string]struct{ begin, end func(*network) }{
		"silent": {(*network).stall, (*network).flow},
		"down":   {(*network).down, (*network).up},
	} {
		t.Run(name, func(t *testing.T) {
			inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
				c.begin(q.nodes[2].net)
				for range 500 {
					lock, err := q.TryAcquire(t.Context(), "a", 5*time.Second)
					require.NoError(t, err)
					require.NoError(t, lock.Release(t.Context()))
					time.Sleep(40 * time.Millisecond)
				}
				require.Less(t, len(packageGoroutines()), 200)
				c.end(q.nodes[2].net)
				time.Sleep(time.Second + nodeTimeout) // a pool that has often failed to dial tries once a second
				lock := q.acquire("b", time.Minute)
				q.requireOn("b", lock.Token(), 0, 1, 2)
				require.NoError(t, lock.Release(t.Context()))
				requireNoGoroutines(t)
				q.requireFree("a")
			})
		})
	}
}

func TestQuorumLeavesNoGoroutine(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		q.nodes[2].net.stall()
		lock := q.acquire("a", 3*time.Second, WithWatchdog())
		time.Sleep(10 * time.Second)
		require.NoError(t, lock.Release(t.Context()))
		q.nodes[1].net.stall()
		_, err := q.TryAcquire(t.Context(), "a", time.Second)
		require.Error(t, err)
		q.nodes[1].net.flow()
		q.nodes[2].net.flow()
		requireNoGoroutines(t)
		q.requireFree("a")
	})
}

// --- everything at random ------------------------------------------------------------

// trouble makes something fail on some node, until it ends.
type trouble struct {
	q   *fakeQuorum
	rnd *rand.Rand
}

func (tr *trouble) strike() {
	ops := slices.Sorted(maps.Keys(allScripts))
	kinds := []faultKind{loseReply, cutReply, cutRequest}
	for _, r := range tr.q.nodes {
		for range tr.rnd.IntN(3) {
			r.net.fail(ops[tr.rnd.IntN(len(ops))], kinds[tr.rnd.IntN(len(kinds))], 1)
		}
		for range tr.rnd.IntN(4) { // on its way for longer than anybody waits
			arrive := r.net.delay(ops[tr.rnd.IntN(len(ops))])
			time.AfterFunc(time.Duration(tr.rnd.Int64N(int64(2*time.Second))), arrive)
		}
		slowest := []int64{1, 10, 60}[tr.rnd.IntN(3)]
		seed := tr.rnd.Int64N(1000)
		var n atomic.Int64
		r.net.setLatency(func() time.Duration {
			return time.Duration((n.Add(1)*7919+seed)%1000*slowest) * time.Millisecond / 1000
		})
	}
	if tr.rnd.IntN(4) == 0 {
		r := tr.q.nodes[tr.rnd.IntN(len(tr.q.nodes))]
		r.net.down()
		time.AfterFunc(time.Second, r.net.up)
	}
}

// TestQuorumExcludesWhateverIsLostOrLate has several processes fight for one
// lock, while requests of every kind are lost, cut off or late on every node.
// The nodes keep their data. It is a short look. With twelve seeds of 200 s it
// found, several times, that a hand-back without a bound lets two in.
func TestQuorumExcludesWhateverIsLostOrLate(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			inQuorum(t, []int{3, 3, 4, 5}[seed%4], func(t *testing.T, q *fakeQuorum) {
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				var f fight
				var wg sync.WaitGroup
				for i := range 4 {
					lk, rnd := q.locker(WithNodeTimeout(100*time.Millisecond)), rand.New(rand.NewPCG(seed, uint64(i)))
					wg.Go(func() { f.fighter(ctx, t, lk, rnd) })
				}
				tr := &trouble{q: q, rnd: rand.New(rand.NewPCG(seed, 99))}
				for ctx.Err() == nil {
					tr.strike()
					time.Sleep(300 * time.Millisecond)
				}
				wg.Wait()
				t.Logf("%d sections", f.sections)
				require.Greater(t, f.sections, 5)
				for _, r := range q.nodes {
					r.net.up()
					r.net.setLatency(func() time.Duration { return 0 })
					r.net.mu.Lock()
					r.net.faults = nil
					r.net.mu.Unlock()
				}
				time.Sleep(undoBound + 10*time.Second)
				q.requireFree("a")
			})
		})
	}
}

type fight struct {
	mu       sync.Mutex
	holder   *Lock // that is valid as far as its process knows
	fence    int64
	sections int
}

func (f *fight) fighter(ctx context.Context, t *testing.T, lk *Locker, rnd *rand.Rand) {
	for ctx.Err() == nil {
		ttl := time.Duration(1+rnd.IntN(3)) * time.Second
		var opts []AcquireOption
		if rnd.IntN(2) == 0 {
			opts = append(opts, WithWatchdog())
		}
		lock, err := lk.Acquire(ctx, "a", ttl, opts...)
		if err != nil {
			continue
		}
		f.enter(t, lock)
		for range rnd.IntN(4) {
			wire.Pause(ctx, time.Duration(rnd.IntN(300))*time.Millisecond)
			if rnd.IntN(2) == 0 {
				_ = lock.Extend(ctx, time.Duration(200+rnd.IntN(2000))*time.Millisecond)
			}
		}
		f.leave(lock)
		for range 3 {
			if lock.Release(context.Background()) == nil {
				break
			}
		}
		wire.Pause(ctx, time.Duration(rnd.IntN(100))*time.Millisecond)
	}
}

func (f *fight) enter(t *testing.T, lock *Lock) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if lock.Err() != nil {
		return
	}
	if f.holder != nil && f.holder.Err() == nil {
		t.Errorf("%s has the lock, with fence %d, while %s has it", lock.Token(), lock.Fence(), f.holder.Token())
	}
	if lock.Fence() <= f.fence {
		t.Errorf("fence %d after %d", lock.Fence(), f.fence)
	}
	f.holder, f.fence = lock, lock.Fence()
	f.sections++
}

func (f *fight) leave(lock *Lock) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.holder == lock {
		f.holder = nil
	}
}

func TestQuorumFenceIsNotWrittenByAnOddReply(t *testing.T) {
	for _, odd := range []string{"OK", "2", "-1", "x y"} {
		inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
			for _, r := range q.nodes {
				r.mu.Lock()
				r.pretend[opRaise] = odd
				r.mu.Unlock()
			}
			q.setClocks(0, time.Second, 2*time.Second)
			_, err := q.TryAcquire(t.Context(), "a", time.Minute)
			require.Error(t, err)
		})
	}
}

// wrapper and oddClient are clients that cannot be compared, which the first
// does not show.
type oddClient struct {
	Client
	_ []int
}

type wrapper struct{ Client }

func TestNewQuorumOfWrappers(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		_, err := NewQuorum([]Client{wrapper{oddClient{Client: r.client}}, wrapper{oddClient{Client: r.client}}})
		require.ErrorContains(t, err, "same server")
	})
}

func TestQuorumHandBackThatIsRefusedIsMadeLater(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		for _, r := range q.nodes[:2] {
			r.take("lock:a")
			r.slow() // they answer when the third has granted its vote
		}
		q.nodes[2].answerOnce(opHandBack, "BUSY Redis is busy running a script")
		_, err := q.TryAcquire(t.Context(), "a", time.Minute)
		require.ErrorIs(t, err, ErrNotAcquired)
		require.Equal(t, 1, q.nodes[2].requests(opHandBack))
		time.Sleep(time.Second)
		require.Empty(t, q.nodes[2].value("lock:a"))
	})
}

func TestQuorumReleaseWithOddRepliesMayHaveBeenExecuted(t *testing.T) {
	inQuorum(t, 1, func(t *testing.T, q *fakeQuorum) {
		lock := q.acquire("a", time.Minute)
		for _, r := range q.nodes {
			r.mu.Lock()
			r.pretend[opRelease] = "what"
			r.mu.Unlock()
		}
		_, err := lock.requestRelease(t.Context(), false, nil)
		require.Error(t, err)
		require.True(t, wire.MaybeExecuted(err), "%v", err)
	})
}

func TestQuorumInspectSeesAForeignHolderWithoutAToken(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		for _, r := range q.nodes {
			require.NoError(t, r.Set("lock:a", ""))
		}
		info, err := q.Inspect(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, Info{Held: true, TTL: -1}, info, "as on one server")
	})
}

func TestNewQuorumRefusesReplicas(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		clients := make([]Client, len(q.nodes))
		for i, r := range q.nodes {
			clients[i] = r.client
		}
		_, err := NewQuorum(clients, WithReplicas(1, time.Second))
		require.ErrorContains(t, err, "WithReplicas")
	})
}
