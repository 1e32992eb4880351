package servertest_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/e2e3f2a3/redislock"
	"github.com/e2e3f2a3/redislock/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A virtual address leads to the promoted replica. The old primary lives on as
// a replica, and keeps the subscription. Pushes and turns are back within two
// poll intervals.
func TestServerSubscriptionOnADemotedPrimaryIsMadeAnew(t *testing.T) {
	t.Parallel()
	old, replicas := redistest.StartReplicated(t, 1)
	promoted := replicas[0]
	r := newRigOn(t, old) // the relay is the address
	ctx := t.Context()
	lk := r.lockerWith(r.relay.Client(t), redislock.WithPollInterval(pollInterval))
	holder := hold(t, r.locker(t), "a", time.Minute)
	wait := r.waiting(ctx, t, lk, "a", time.Minute)
	inbox := r.inboxes()[0]

	now := promoted.Client(t)
	require.True(t, eventually(soon, func() bool { return now.ZCard(ctx, queueOf("a")).Val() == 1 }), "it is not replicated")
	promoted.Do(t, "replicaof", "no", "one")
	r.relay.Lead(promoted.Addr())
	switched := time.Now()
	_, port, err := net.SplitHostPort(promoted.Addr())
	require.NoError(t, err)
	old.Do(t, "replicaof", "127.0.0.1", port)

	listens := func() bool { return now.PubSubNumSub(ctx, inbox).Val()[inbox] == 1 }
	require.True(t, eventually(soon, listens), "the subscription stays where it was")
	assert.LessOrEqual(t, time.Since(switched), 2*pollInterval+wakeUp)
	require.True(t, eventually(soon, func() bool { return now.ZCard(ctx, queueOf("a")).Val() == 1 }))
	require.NoError(t, holder.Release(ctx))
	released := time.Now()
	lock, err := wait(t)
	require.NoError(t, err)
	assert.LessOrEqual(t, time.Since(released), wakeUp)
	require.NoError(t, lock.Release(ctx))
	require.True(t, eventually(soon, func() bool {
		return r.direct.PubSubNumSub(ctx, inbox).Val()[inbox] == 0
	}), "and is held there in vain")

	// Turns: under contention with a process that has come later it has its
	// share.
	var turns [2]atomic.Int64
	short, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	contend := func(lk *redislock.Locker, n *atomic.Int64) func(testing.TB) (any, error) {
		return started(func() (any, error) {
			for short.Err() == nil {
				_ = lk.WithLock(short, "b", time.Minute, func(context.Context, *redislock.Lock) error { n.Add(1); return nil })
			}
			return nil, nil
		})
	}
	for _, done := range []func(testing.TB) (any, error){
		contend(lk, &turns[0]), contend(lk, &turns[0]), contend(r.locker(t), &turns[1]), contend(r.locker(t), &turns[1]),
	} {
		_, _ = done(t)
	}
	assert.Greater(t, turns[0].Load(), turns[1].Load()/10, "of %d", turns[0].Load()+turns[1].Load())
	assert.Empty(t, r.log.about("polling"))
}

// elsewhere is a client whose subscriptions lead to another server than its
// scripts.
type elsewhere struct {
	*redis.Client
	to atomic.Pointer[redis.Client]
	n  atomic.Int64
}

func (c *elsewhere) Subscribe(ctx context.Context, channels ...string) *redis.PubSub {
	c.n.Add(1)
	return c.to.Load().Subscribe(ctx, channels...)
}

func TestServerSubscriptionElsewhereIsReportedOnce(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	r := newRig(t)
	other := redistest.Start(t)
	client := &elsewhere{Client: r.relay.Client(t)}
	client.to.Store(other.Client(t))
	ctx, lk := t.Context(), r.lockerWith(client)
	holder := hold(t, r.locker(t), "a", time.Minute)
	wait := r.polling(ctx, t, lk, "a", time.Minute)
	require.True(t, eventually(soon, func() bool { return len(r.log.about("waiting by polling", "lock:inbox:")) == 1 }))
	released := time.Now()
	require.NoError(t, holder.Release(ctx))
	lock, err := wait(t)
	assert.LessOrEqual(t, time.Since(released), 500*time.Millisecond+wakeUp)
	r.served(t, func(testing.TB) (*redislock.Lock, error) { return lock, err })

	holder = hold(t, r.locker(t), "a", time.Minute)
	wait = r.polling(ctx, t, lk, "a", time.Minute)
	client.to.Store(r.relay.Client(t))
	require.True(t, eventually(4*soon, func() bool { return r.queued("a") == 1 }), "it recovers by itself")
	require.NoError(t, holder.Release(ctx))
	released = time.Now()
	lock, err = wait(t)
	assert.LessOrEqual(t, time.Since(released), wakeUp)
	r.served(t, func(testing.TB) (*redislock.Lock, error) { return lock, err })
	assert.Len(t, r.log.about(), 1)
	assert.LessOrEqual(t, client.n.Load(), int64(7), "0, 1, 3, 7, 15, … s after the first")
	r.nobodyWaits(t)
}

// cutter closes a connection when a subscription has been confirmed on it.
type cutter struct {
	cuts atomic.Bool
	made atomic.Int64
}

func (p *cutter) through(o *redis.Options) {
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &cuttable{Conn: conn, by: p}, nil
	}
}

type cuttable struct {
	net.Conn
	by *cutter
}

func (c *cuttable) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if bytes.Contains(b[:n], []byte("\r\nsubscribe\r\n")) {
		c.by.made.Add(1)
		if c.by.cuts.Load() {
			_ = c.Conn.Close() // what was read is delivered
		}
	}
	return n, err
}

// A proxy confirms subscriptions and cuts them.
func TestServerSubscriptionsThatAreCutAreNoStorm(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	r := newRig(t)
	const names, watched = 200, 5 * time.Second
	ctx := t.Context()
	var proxy cutter
	lk := r.lockerWith(r.relay.Client(t, proxy.through))
	other := r.locker(t)
	locks := make([]*redislock.Lock, names)
	waits := make([]func(testing.TB) (*redislock.Lock, error), names)
	for i := range names {
		locks[i] = hold(t, other, strconv.Itoa(i), time.Minute)
		waits[i] = r.waiting(ctx, t, lk, strconv.Itoa(i), time.Minute)
	}
	r.relay.ForgetRequests()
	proxy.cuts.Store(true)
	made := proxy.made.Load()
	require.NoError(t, r.direct.ClientKillByFilter(ctx, "TYPE", "pubsub").Err())
	time.Sleep(watched) // the measurement itself
	asked, subscribed := r.relay.Requests(redistest.Command("evalsha")), proxy.made.Load()-made
	t.Logf("%d scripts, %d subscriptions", asked, subscribed)
	assert.LessOrEqual(t, asked, 12*names, "a few each")
	assert.LessOrEqual(t, subscribed, int64(60))
	assert.Len(t, r.log.about("polling", "does not last"), 1, "%v", r.log.about())

	proxy.cuts.Store(false)
	require.True(t, eventually(soon, func() bool { return r.subscribers() == 1 }))
	for i := range names {
		require.True(t, eventually(2*soon, func() bool { return r.queued(strconv.Itoa(i)) == 1 }), fmt.Sprint(i))
		require.NoError(t, locks[i].Release(ctx))
		r.served(t, waits[i])
	}
	assert.Len(t, r.log.about(), 1)
	r.nobodyWaits(t)
}

// A slot that moves takes its names to another node, and the subscription
// there. Other names on the old node keep theirs, and nobody is warned.
func TestServerClusterSlotThatMovesLeavesOtherNamesTheirSubscription(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	ctx, log := t.Context(), &journal{}
	client := c.Client(t)
	locker := func() *redislock.Locker { return (&rig{log: log}).lockerWith(c.Client(t)) }
	from := c.Primary(t, "{moves}")
	stays := ""
	for i := 0; stays == ""; i++ {
		if name := fmt.Sprintf("{%d}", i); c.Primary(t, name) == from && c.Slot(t, name) != c.Slot(t, "{moves}") {
			stays = name
		}
	}
	holder, waiter := locker(), locker()
	names := []string{"{moves}", stays}
	locks := make([]*redislock.Lock, len(names))
	waits := make([]func(testing.TB) (*redislock.Lock, error), len(names))
	queued := func(name string) func() bool {
		return func() bool { return client.ZCard(ctx, "lock:"+name+":queue").Val() == 1 }
	}
	for i, name := range names {
		locks[i] = hold(t, holder, name, time.Minute)
		waits[i] = started(func() (*redislock.Lock, error) { return waiter.Acquire(ctx, name, time.Minute) })
		require.True(t, eventually(soon, queued(name)), name)
	}
	direct := from.Client(t)
	subscriptions := func() string { return direct.ClientList(ctx).Val() }
	id := subscriberIDs(subscriptions())
	require.Len(t, id, 1)
	for _, node := range c.Nodes() {
		if node != from {
			c.MoveSlot(t, "{moves}", node)
			break
		}
	}
	time.Sleep(2 * time.Second) // longer than it takes to take a subscription for misplaced
	assert.Equal(t, id, subscriberIDs(subscriptions()), "the subscription on the old node is made anew")
	for i, name := range names {
		require.True(t, eventually(2*soon, queued(name)), name)
		require.NoError(t, locks[i].Release(ctx))
		released := time.Now()
		lock, err := waits[i](t)
		require.NoError(t, err)
		assert.LessOrEqual(t, time.Since(released), wakeUp)
		require.NoError(t, lock.Release(ctx))
	}
	assert.Empty(t, log.about())
}

// subscriberIDs are the connections in a CLIENT LIST that are subscribed to
// something.
func subscriberIDs(list string) (ids []string) {
	for line := range strings.Lines(list) {
		if !strings.Contains(line, " sub=0 psub=0 ") {
			ids = append(ids, strings.Fields(line)[0])
		}
	}
	return ids
}
