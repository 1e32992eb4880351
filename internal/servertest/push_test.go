package servertest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/e2e3f2a3/redislock"
	"github.com/e2e3f2a3/redislock/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tap stands in the subscriptions of a client, and makes faults in them alone.
// It works on what one Read brings: pushes must come one at a time.
type tap struct {
	mu      sync.Mutex
	drop    bool // messages vanish
	hold    bool // what comes is kept
	conns   []*tapped
	dropped int
	held    int
}

// tapped is a connection, perhaps that of a subscription.
type tapped struct {
	net.Conn
	tap        *tap
	subscribed bool   // guarded by tap.mu, like all
	dead       bool   // nothing passes, and nobody is told
	kept       []byte // has come, but is not delivered
}

// through makes a client's connections pass the tap.
func (p *tap) through(o *redis.Options) {
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &tapped{Conn: conn, tap: p}, nil
	}
}

func (c *tapped) Write(b []byte) (int, error) {
	c.tap.mu.Lock()
	if !c.subscribed && bytes.Contains(b, []byte("subscribe\r\n")) {
		c.subscribed = true
		c.tap.conns = append(c.tap.conns, c)
	}
	dead := c.dead
	c.tap.mu.Unlock()
	if dead {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *tapped) Read(b []byte) (int, error) {
	for {
		n, _ := c.deliver(b)
		if n > 0 {
			return n, nil
		}
		n, err := c.Conn.Read(b[:min(len(b), 4096)])
		c.arrived(b[:n])
		if _, rest := c.deliver(nil); err != nil && !rest {
			return 0, err
		}
	}
}

// deliver what was kept, and tell whether there is more that may be delivered.
func (c *tapped) deliver(b []byte) (n int, more bool) {
	c.tap.mu.Lock()
	defer c.tap.mu.Unlock()
	if c.subscribed && c.tap.hold {
		return 0, false
	}
	n = copy(b, c.kept)
	c.kept = c.kept[n:]
	return n, len(c.kept) > 0
}

func (c *tapped) arrived(b []byte) {
	c.tap.mu.Lock()
	defer c.tap.mu.Unlock()
	message := c.subscribed && bytes.Contains(b, []byte("message\r\n"))
	switch {
	case c.dead:
	case message && c.tap.drop:
		c.tap.dropped++
	default:
		c.kept = append(c.kept, b...)
		if message && c.tap.hold {
			c.tap.held++
		}
	}
}

func (p *tap) set(change func(*tap)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p)
}

// blackHole makes the present subscriptions silent.
func (p *tap) blackHole() {
	p.set(func(p *tap) {
		for _, c := range p.conns {
			c.dead = true
		}
	})
}

// release delivers what was held.
func (p *tap) release() {
	p.set(func(p *tap) {
		p.hold = false
		for _, c := range p.conns {
			_ = c.SetReadDeadline(time.Now()) // wakes Read
		}
	})
}

func (p *tap) count(n *int) func() bool {
	return func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return *n > 0
	}
}

func TestServerPushThatIsLostDelaysAWaiterUntilItsNextQuestion(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for bound, how := range map[string]struct{ lease, poll, within time.Duration }{
		"poll interval":   {time.Minute, pollInterval, pollInterval + wakeUp},
		"remaining lease": {400 * time.Millisecond, time.Hour, 400*time.Millisecond + wakeUp},
	} {
		t.Run(bound, func(t *testing.T) {
			var pushes tap
			name := t.Name()
			lk := r.lockerWith(r.relay.Client(t, pushes.through), redislock.WithPollInterval(how.poll))
			holder := hold(t, r.locker(t), name, how.lease)
			wait := r.waiting(t.Context(), t, lk, name, 10*time.Second)
			pushes.set(func(p *tap) { p.drop = true })
			released := time.Now()
			require.NoError(t, holder.Release(t.Context()))
			assert.NotEmpty(t, r.value(t, name), "handed over")
			lock, err := wait(t)
			took := time.Since(released)
			require.NoError(t, err)
			assert.LessOrEqual(t, took, how.within)
			assert.True(t, pushes.count(&pushes.dropped)(), "no push was lost")
			assert.Greater(t, lock.Fence(), holder.Fence())
			assert.Greater(t, time.Until(lock.Until()), 9*time.Second)
			r.served(t, func(testing.TB) (*redislock.Lock, error) { return lock, nil })
		})
	}
	r.settled(t)
}

// Noticed at once, also if the release falls into the time without a
// subscription.
func TestServerSubscriptionThatIsCutIsNoticedAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lk, ctx := r.asleep(t), t.Context()
	t.Run("release at the same time", func(t *testing.T) {
		for range 20 {
			holder := hold(t, r.locker(t), t.Name(), time.Minute)
			wait := r.waiting(ctx, t, lk, t.Name(), time.Minute)
			begin := time.Now()
			var cut sync.WaitGroup
			cut.Go(func() { assert.NoError(t, r.direct.ClientKillByFilter(ctx, "TYPE", "pubsub").Err()) })
			require.NoError(t, holder.Release(ctx))
			cut.Wait()
			lock, err := wait(t)
			assert.LessOrEqual(t, time.Since(begin), 2*wakeUp)
			r.served(t, func(testing.TB) (*redislock.Lock, error) { return lock, err })
		}
	})
	t.Run("release in between", func(t *testing.T) {
		name := t.Name()
		holder := hold(t, r.locker(t), name, time.Minute)
		wait := r.waiting(ctx, t, lk, name, time.Minute)
		r.relay.Refuse(true)
		defer r.relay.Refuse(false)
		require.NoError(t, r.direct.ClientKillByFilter(ctx, "TYPE", "pubsub").Err())
		require.Eventually(t, func() bool { return r.subscribers() == 0 }, soon, tick)
		released := time.Now()
		require.NoError(t, holder.Release(ctx))
		r.relay.Refuse(false)
		lock, err := wait(t)
		assert.LessOrEqual(t, time.Since(released), 500*time.Millisecond+wakeUp, "polls meanwhile")
		r.served(t, func(testing.TB) (*redislock.Lock, error) { return lock, err })
	})
	t.Run("afterwards it is told again", func(t *testing.T) {
		name := t.Name()
		holder := hold(t, r.locker(t), name, time.Minute)
		wait := r.waiting(ctx, t, lk, name, time.Minute)
		inbox := r.inboxes()[0][len("lock:inbox:"):]
		for range 3 {
			again := r.next(1, redistest.And(r.opOn("acquire", name), redistest.ArgContains(inbox)))
			require.NoError(t, r.direct.ClientKillByFilter(ctx, "TYPE", "pubsub").Err())
			r.await(t, again, "question with a ticket")
		}
		require.Eventually(t, func() bool { return r.queued(name) == 1 && r.subscribers() == 1 }, soon, tick)
		released := time.Now()
		require.NoError(t, holder.Release(ctx))
		lock, err := wait(t)
		assert.LessOrEqual(t, time.Since(released), wakeUp)
		r.served(t, func(testing.TB) (*redislock.Lock, error) { return lock, err })
	})
	r.settled(t)
	assert.Empty(t, r.log.about("refuses"))
}

// A connection that dies without a word is found by its silence, or the waiter
// asks before that.
func TestServerSubscriptionThatFallsSilentIsFound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for bound, how := range map[string]struct{ poll, within time.Duration }{
		"by the poll interval": {pollInterval, pollInterval + wakeUp},
		"by a probe":           {time.Hour, 3*time.Second + wakeUp},
	} {
		t.Run(bound, func(t *testing.T) {
			t.Parallel()
			var pushes tap
			name := t.Name()
			lk := r.lockerWith(r.relay.Client(t, pushes.through), redislock.WithPollInterval(how.poll))
			holder := hold(t, r.locker(t), name, time.Minute)
			wait := r.waiting(t.Context(), t, lk, name, time.Minute)
			pushes.blackHole()
			released := time.Now()
			require.NoError(t, holder.Release(t.Context()))
			lock, err := wait(t)
			assert.LessOrEqual(t, time.Since(released), how.within)
			r.served(t, func(testing.TB) (*redislock.Lock, error) { return lock, err })

			holder = hold(t, r.locker(t), name, time.Minute)
			wait = r.waiting(t.Context(), t, lk, name, time.Minute)
			require.NoError(t, holder.Release(t.Context()))
			r.served(t, wait)
		})
	}
}

// The server stands still, for longer than a silence is believed.
func TestServerThatStoodStillHandsOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	holder := hold(t, r.locker(t), "a", time.Minute)
	wait := r.waiting(t.Context(), t, r.asleep(t), "a", time.Minute)
	connects := r.next(1, redistest.Command("hello"))
	r.server.Pause()
	r.await(t, connects, "new connection") // it lies in the socket of the server
	r.server.Resume()
	released := time.Now()
	require.NoError(t, holder.Release(t.Context()))
	lock, err := wait(t)
	assert.LessOrEqual(t, time.Since(released), time.Second)
	r.served(t, func(testing.TB) (*redislock.Lock, error) { return lock, err })
	r.settled(t)
}

// A grant whose push arrives when its lease is over is not trusted.
func TestServerGrantThatArrivesAfterItsLeaseIsNoLock(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var pushes tap
	ctx := t.Context()
	lk := r.lockerWith(r.relay.Client(t, pushes.through), redislock.WithPollInterval(time.Hour))
	holder := hold(t, r.locker(t), "a", time.Minute)
	joined := time.Now()
	wait := r.waiting(ctx, t, lk, "a", 300*time.Millisecond)
	r.restsFor(t, "a", joined, 600*time.Millisecond)
	pushes.set(func(p *tap) { p.hold = true })
	require.NoError(t, holder.Release(ctx))
	require.Eventually(t, pushes.count(&pushes.held), soon, tick)
	r.gone(t, "a", soon) // the lease of the grant
	require.True(t, r.direct.SetNX(ctx, keyOf("a"), "other", 500*time.Millisecond).Val())
	asks := r.next(1, r.opOn("acquire", "a"))
	pushes.release()
	r.await(t, asks, "question whether the grant is still good")
	lock, err := wait(t)
	require.NoError(t, err)
	// It is that of the next grant: the other's lease is over.
	assert.NotEqual(t, "other", r.value(t, "a"))
	assert.Equal(t, r.fence(t, "a"), lock.Fence())
	assert.Greater(t, lock.Fence(), holder.Fence())
	assert.Greater(t, time.Until(lock.Until()), 100*time.Millisecond)
	_ = lock.Release(ctx)
	r.settled(t)
}

// What a push was on its way for is taken from the lease.
func TestServerGrantThatArrivesLateIsTrustedForTheRestOfItsLease(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	r := newRig(t)
	var pushes tap
	lk := r.lockerWith(r.relay.Client(t, pushes.through), redislock.WithPollInterval(time.Hour))
	holder := hold(t, r.locker(t), "a", time.Minute)
	joined := time.Now()
	wait := r.waiting(t.Context(), t, lk, "a", ttl)
	r.restsFor(t, "a", joined, ttl/2)
	pushes.set(func(p *tap) { p.hold = true })
	require.NoError(t, holder.Release(t.Context()))
	released := time.Now()
	require.Eventually(t, pushes.count(&pushes.held), soon, tick)
	time.Sleep(ttl / 4) // the delay itself
	asked := r.relay.Requests(r.opOn("acquire", "a"))
	pushes.release()
	lock, err := wait(t)
	require.NoError(t, err)
	assert.Equal(t, asked, r.relay.Requests(r.opOn("acquire", "a")), "it was the push that told")
	assert.LessOrEqual(t, lock.Until(), released.Add(ttl), "the lease counts from the grant")
	assert.LessOrEqual(t, time.Until(lock.Until()), r.direct.PTTL(t.Context(), keyOf("a")).Val())
	require.NoError(t, lock.Err())
	require.NoError(t, lock.Release(t.Context()))
	r.settled(t)
}

// Whoever may publish cannot make a holder of one who waits: what is not a
// grant, is for somebody else, or is older than what the waiter knows is at
// most a reason to ask.
func TestServerForgedGrantsMakeNoHolder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	holder := hold(t, r.locker(t), "a", time.Minute)
	waiter := r.asleep(t)
	wait := r.waiting(ctx, t, waiter, "a", time.Minute)
	ticket := strings.Fields(r.direct.ZRange(ctx, queueOf("a"), 0, 0).Val()[0])
	token, inbox := ticket[0], "lock:inbox:"+ticket[4]
	require.Equal(t, []string{inbox}, r.inboxes())
	now := r.direct.Time(ctx).Val().UnixMicro()
	past := now - time.Hour.Microseconds()
	var done sync.WaitGroup
	var lock *redislock.Lock
	var err error
	got := make(chan struct{})
	done.Go(func() { lock, err = wait(t); close(got) })
	for _, forged := range []string{
		"", " ", "\x00", "garbage", strings.Repeat("x", 100_000), token, token + " ", token + " 1", token + " 1 ",
		fmt.Sprintf("%s %d %d", "unknown", now, now),
		fmt.Sprintf("%s %d %d", holder.Token(), now, now),
		fmt.Sprintf("%s %d %d", token, now, past),
		fmt.Sprintf("%s %d %d", token, now, 0),
		fmt.Sprintf("%s %d %d", token, now, -now),
		fmt.Sprintf("%s %d %d", token, 0, now),
		fmt.Sprintf("%s %d %d", token, -1, now),
		fmt.Sprintf("%s %d %s", token, now, "9223372036854775808"),
		fmt.Sprintf("%s %s %d", token, "99999999999999999999", now),
		fmt.Sprintf("%s x %d", token, now), fmt.Sprintf("%s %d x", token, now),
		fmt.Sprintf("%s 0x10 %d", token, now), fmt.Sprintf("%s 1e3 1e30", token),
		fmt.Sprintf("%s %d %d more", token, now, now),
	} {
		require.Equal(t, int64(1), r.direct.Publish(ctx, inbox, forged).Val())
	}
	// The last one is known to be read when a question follows that it has
	// provoked.
	asks := r.next(1, r.opOn("acquire", "a"))
	require.Equal(t, int64(1), r.direct.Publish(ctx, inbox, fmt.Sprintf("%s %d %d", token, now, past)).Val())
	r.await(t, asks, "question")
	assert.False(t, isClosed(got), "it believes a forged grant: %v", err)
	assert.Equal(t, holder.Token(), r.value(t, "a"))
	assert.Equal(t, int64(1), r.queued("a"))
	require.NoError(t, holder.Release(ctx))
	r.await(t, got, "real grant")
	done.Wait()
	r.served(t, func(testing.TB) (*redislock.Lock, error) { return lock, err })
	r.settled(t)
}

// Where nobody can subscribe, waiting is by polling, and that is said once.
func TestServerRefusedSubscriptionMakesWaitersPoll(t *testing.T) {
	t.Parallel()
	for refusal, lines := range map[string]int{
		"NOPERM this user has no permissions to access one of the channels used as arguments": 1,
		"ERR unknown command 'subscribe', with args beginning with: 'lock:inbox:x' ":          1,
		"ERR unsupported by this proxy": 1,
		"LOADING Redis is loading":      0, // passes by itself: it is tried again
	} {
		t.Run(refusal, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.relay.Always(redistest.Command("subscribe"), redistest.ReplyWith("-"+refusal+"\r\n"))
			lk, ctx := r.asleep(t), t.Context()
			holder := hold(t, r.locker(t), "a", time.Minute)
			first := r.polling(ctx, t, lk, "a", time.Minute)
			second := r.inLine(ctx, t, lk, "a", time.Minute)
			released := time.Now()
			require.NoError(t, holder.Release(ctx))
			lock, err := first(t)
			assert.LessOrEqual(t, time.Since(released), 500*time.Millisecond+wakeUp)
			r.served(t, func(testing.TB) (*redislock.Lock, error) { return lock, err })
			r.served(t, second)
			require.NoError(t, r.direct.Set(ctx, keyOf("a"), "other", 0).Err())
			wait := r.polling(ctx, t, lk, "a", time.Minute)
			require.NoError(t, r.direct.Del(ctx, keyOf("a")).Err())
			r.served(t, wait)
			assert.Len(t, r.log.about("refuses the subscription", "lock:inbox:"), lines)
			assert.Len(t, r.log.about(), lines)
			r.nobodyWaits(t)
		})
	}
	t.Run("connection closed", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		r.relay.Always(redistest.Command("subscribe"), redistest.DropRequest)
		holder := hold(t, r.locker(t), "a", time.Minute)
		wait := r.polling(t.Context(), t, r.asleep(t), "a", time.Minute)
		require.NoError(t, holder.Release(t.Context()))
		r.served(t, wait)
		r.nobodyWaits(t)
	})
}

// A client that is closed while somebody waits for a grant.
func TestServerClosedClientEndsWaitingForAGrantAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	client := r.relay.Client(t)
	lk := r.lockerWith(client)
	holder := hold(t, r.locker(t), "a", time.Minute)
	waits := []func(testing.TB) (*redislock.Lock, error){r.waiting(t.Context(), t, lk, "a", time.Minute)}
	for range 3 {
		waits = append(waits, r.inLine(t.Context(), t, lk, "a", time.Minute))
	}
	require.NoError(t, client.Close())
	closed := time.Now()
	for _, wait := range waits {
		_, err := wait(t)
		require.ErrorIs(t, err, redis.ErrClosed)
		assert.False(t, errors.Is(err, redislock.ErrNotAcquired))
	}
	assert.LessOrEqual(t, time.Since(closed), time.Second)
	require.Eventually(t, func() bool { return r.subscribers() == 0 }, soon, tick)
	require.NoError(t, holder.Release(t.Context()))
	assert.Empty(t, r.value(t, "a"), "handed to one who is gone")
	assert.Empty(t, r.log.about())
	r.nobodyWaits(t)
}
