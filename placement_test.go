package redislock

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// address is one that leads to a server, and later to another.
type address struct {
	mu sync.Mutex
	to *fakeRedis
}

func (a *address) lead(to *fakeRedis) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.to = to
}

func (a *address) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.to.net.dial(ctx, network, addr)
}

func (a *address) connect(t *testing.T) *redis.Client {
	c := redis.NewClient(clientOptions(a.dial))
	t.Cleanup(func() { c.Close() })
	return c
}

// onTwoServers runs a test on two servers that know nothing of each other.
func onTwoServers(t *testing.T, test func(t *testing.T, one, two *fakeRedis)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newFakeRedis(t), newFakeRedis(t)) })
}

// queuedFor is how many tickets stand in the queue for a name.
func (r *fakeRedis) queuedFor(name string) int {
	queue, _ := r.ZMembers("{lock:" + name + "}:queue")
	return len(queue)
}

// subscribers is how many are subscribed to the inbox of a Locker.
func (r *fakeRedis) subscribers(lk *Locker) int {
	channel := lk.lines.Inboxes.Of("lock:a").Channel
	return r.PubSubNumSub(channel)[channel]
}

// requireTold fails unless the first one who waits for lock is told of its
// release.
func requireTold(t *testing.T, lock *Lock, waiter <-chan acquired) {
	t.Helper()
	require.NoError(t, lock.Release(t.Context()))
	released := time.Now()
	got := <-waiter
	require.NoError(t, got.err)
	require.Equal(t, released, got.at, "found by asking")
	require.NoError(t, got.lock.Release(t.Context()))
}

// An address in front of a primary and its replica leads to the promoted one.
// The old one lives on as a replica, and answers PING.
func TestASubscriptionOnTheOldServerIsMadeAnew(t *testing.T) {
	onTwoServers(t, func(t *testing.T, old, promoted *fakeRedis) {
		virtual := &address{to: old}
		lk := old.lockerOn(virtual.connect(t))
		const names = 20
		waiters, locks := make([]<-chan acquired, names), make([]*Lock, names)
		for i := range names {
			locks[i] = old.acquire(fmt.Sprint(i), time.Hour)
			waiters[i] = waitFor(t.Context(), lk, fmt.Sprint(i), time.Hour)
		}
		time.Sleep(time.Minute)
		require.Equal(t, 1, old.queuedFor("0"))

		old.answerWith(func(string) string { return "READONLY You can't write against a read only replica." })
		other := promoted.locker()
		for i, lock := range locks {
			require.NoError(t, promoted.Set(lock.Key(), lock.Token()))
			promoted.SetTTL(lock.Key(), time.Hour)
			var err error
			locks[i], err = other.Resume(t.Context(), lock.Name(), lock.Token(), time.Hour)
			require.NoError(t, err)
		}
		virtual.lead(promoted)
		time.Sleep(defaultPollInterval + time.Second)
		synctest.Wait()
		require.Equal(t, 1, promoted.subscribers(lk))
		require.Zero(t, old.subscribers(lk))
		for i := range names {
			require.Equal(t, 1, promoted.queuedFor(fmt.Sprint(i)))
			requireTold(t, locks[i], waiters[i])
		}
		require.Empty(t, old.logged("polling"))
	})
}

// elsewhere is a client whose subscriptions lead to another server than its
// scripts.
type elsewhere struct {
	*redis.Client
	mu            sync.Mutex
	to            *redis.Client
	subscriptions int
}

func (c *elsewhere) Subscribe(ctx context.Context, channels ...string) *redis.PubSub {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscriptions++
	return c.to.Subscribe(ctx, channels...)
}

func (c *elsewhere) lead(to *redis.Client) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.to = to
}

func (c *elsewhere) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.subscriptions
}

func TestASubscriptionThatIsNotWhereTheScriptsRunIsReportedOnce(t *testing.T) {
	onTwoServers(t, func(t *testing.T, r, other *fakeRedis) {
		client := &elsewhere{Client: r.connect(), to: other.connect()}
		lk := r.lockerOn(client)
		a, b := r.acquire("a", 24*time.Hour), r.acquire("b", 24*time.Hour)
		first, second := waitFor(t.Context(), lk, "a", time.Hour), waitFor(t.Context(), lk, "b", time.Hour)
		time.Sleep(5 * time.Second)
		said := r.logged("waiting by polling")
		require.Len(t, said, 1)
		require.Contains(t, said[0], "WARN")
		require.Contains(t, said[0], lk.lines.Inboxes.Of("lock:a").Channel)
		time.Sleep(10 * time.Minute)
		require.Len(t, r.logged(""), 1)
		require.LessOrEqual(t, client.count(), 6+20, "at last every 30 s")
		before := r.requests(opAcquire)
		time.Sleep(time.Minute)
		require.LessOrEqual(t, r.requests(opAcquire)-before, 2*(int(time.Minute/(wire.LastPause/2))+2))

		require.NoError(t, b.Release(t.Context()))
		released := time.Now()
		got := <-second
		require.NoError(t, got.err)
		require.LessOrEqual(t, got.at.Sub(released), wire.LastPause)

		client.lead(r.connect())
		time.Sleep(31 * time.Second)
		require.Equal(t, 1, r.queuedFor("a"), "it recovers by itself")
		requireTold(t, a, first)
		require.Len(t, r.logged(""), 1)
	})
}

// The server refuses what queueing needs, and makes no secret of the
// subscription.
func TestATicketThatIsRefusedIsReportedOnce(t *testing.T) {
	for _, refused := range []string{"ZADD", "PUBSUB"} {
		t.Run(refused, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lock := r.acquire("a", time.Hour)
				refuse := func(cmd string, _ ...string) string {
					return map[bool]string{true: "NOPERM this user has no permissions to run the command"}[cmd == refused]
				}
				r.onCommand(refuse)
				waiter := waitFor(t.Context(), r.lockerOn(r.connect()), "a", time.Hour)
				time.Sleep(time.Minute)
				require.Len(t, r.logged("waiting by polling"), 1)
				require.Len(t, r.logged(""), 1)
				r.onCommand(nil)
				time.Sleep(time.Second)
				requireTold(t, lock, waiter)
			})
		})
	}
}

// cutting is a proxy that confirms subscriptions and cuts them.
type cutting struct {
	dial  dialer
	after func() time.Duration // a negative one: it does not cut
	made  atomic.Int32         // subscriptions
}

func (c *cutting) through(o *redis.Options) {
	c.dial = o.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := c.dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &cuttable{Conn: conn, by: c}, nil
	}
}

type cuttable struct {
	net.Conn
	by *cutting
}

func (c *cuttable) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if bytes.Contains(b[:n], []byte("\r\nsubscribe\r\n")) {
		c.by.made.Add(1)
		if after := c.by.after(); after >= 0 {
			time.AfterFunc(after, func() { c.Conn.Close() })
		}
	}
	return n, err
}

// Each subscription that is confirmed, and each that is cut, is a reason to
// ask. Where they do not last these are few.
func TestSubscriptionsThatAreCutAreNoStorm(t *testing.T) {
	const watched = 5 * time.Second
	for life, names := range map[time.Duration]int{0: 100, 20 * time.Millisecond: 25, 500 * time.Millisecond: 25} {
		for begin, most := range map[string]int{"later": 10 * names, "from the start": 15 * names} {
			t.Run(life.String()+" "+begin, func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					var cuts atomic.Bool
					cuts.Store(begin != "later")
					proxy := &cutting{after: func() time.Duration {
						if cuts.Load() {
							return life
						}
						return -1
					}}
					lk := r.lockerOn(r.connect(proxy.through))
					locks, waiters := make([]*Lock, names), make([]<-chan acquired, names)
					for i := range names {
						locks[i] = r.acquire(fmt.Sprint(i), time.Hour)
					}
					asked, made := r.requests(opAcquire), proxy.made.Load()
					for i := range names {
						waiters[i] = waitFor(t.Context(), lk, fmt.Sprint(i), time.Hour)
					}
					if begin == "later" {
						time.Sleep(time.Minute)
						asked, made = r.requests(opAcquire), proxy.made.Load()
						cuts.Store(true)
						r.net.cut()
					}
					time.Sleep(watched)
					questions, subscriptions := r.requests(opAcquire)-asked, int(proxy.made.Load()-made)
					t.Logf("%d questions, %d subscriptions", questions, subscriptions)
					require.LessOrEqual(t, questions, most)
					require.LessOrEqual(t, subscriptions, 2*(7+int(watched/(wire.LastPause/2))), "two each: go-redis makes one by itself")
					require.Len(t, r.logged("does not last"), 1)
					require.Len(t, r.logged("polling"), 1)

					cuts.Store(false)
					time.Sleep(3 * time.Second)
					for i := range names {
						requireTold(t, locks[i], waiters[i])
					}
				})
			})
		}
	}
}

func TestASubscriptionThatIsCutOnceIsMadeAnewAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		proxy := &cutting{after: func() time.Duration { return -1 }}
		lk := r.lockerOn(r.connect(proxy.through))
		lock := r.acquire("a", time.Hour)
		waiter := waitFor(t.Context(), lk, "a", time.Hour)
		for range 3 { // apart from each other
			time.Sleep(time.Minute)
			asked, cut := r.requests(opAcquire), time.Now()
			require.NoError(t, r.admin.Do(t.Context(), "PING").Err())
			r.net.cut()
			for r.subscribers(lk) == 0 {
				time.Sleep(time.Microsecond)
			}
			synctest.Wait()
			require.Less(t, time.Since(cut), time.Millisecond)
			require.LessOrEqual(t, r.requests(opAcquire)-asked, 2, "one, which may meet a connection that is cut")
		}
		requireTold(t, lock, waiter)
		require.Empty(t, r.logged("polling"))
	})
}

// An answer to PING is a sign of life, whatever it says: a server that cannot
// save refuses it with MISCONF.
func TestAnErrorAnswerToPingIsNoRefusal(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", time.Hour)
		lk := r.locker()
		waiter := waitFor(t.Context(), lk, "a", time.Hour)
		time.Sleep(time.Second)
		var pings atomic.Int32
		r.onCommand(func(cmd string, _ ...string) string {
			if cmd != "PING" {
				return ""
			}
			pings.Add(1)
			return "MISCONF Redis is configured to save RDB snapshots"
		})
		time.Sleep(time.Minute)
		require.Positive(t, pings.Load())
		require.Equal(t, 1, r.subscribers(lk))
		requireTold(t, lock, waiter)
		require.Empty(t, r.logged(""))
	})
}
