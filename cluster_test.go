package redislock

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// cluster makes a client that takes r for a cluster of one node.
func (r *fakeRedis) cluster() *redis.ClusterClient {
	const addr = "127.0.0.1:6379"
	c := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{addr}, Dialer: r.net.dial, WriteBufferSize: batchSize, DisableIdentity: true,
		MaintNotificationsConfig: clientOptions(nil).MaintNotificationsConfig,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: addr}}}}, nil
		},
	})
	r.t.Cleanup(func() { c.Close() })
	return c
}

func TestABatchThatWasRedirectedAndThenLostIsInDoubt(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.lockerOn(r.cluster())
		_, err := lk.TryAcquire(t.Context(), "first", time.Minute)
		require.NoError(t, err)
		r.slow()
		var mu sync.Mutex
		moved := 0
		const n = 4
		for i := range wire.Trips {
			go func() { _, _ = lk.Inspect(t.Context(), fmt.Sprint("occupied", i)) }()
		}
		synctest.Wait()
		r.answerWith(func(op string) string {
			mu.Lock()
			defer mu.Unlock()
			if op != opAcquire || moved == n {
				return ""
			}
			if moved++; moved == n {
				r.net.fail(opAcquire, cutReply, 1)
			}
			return "MOVED 1 127.0.0.1:6379"
		})
		together(n, func(i int) {
			lock, err := lk.TryAcquire(t.Context(), fmt.Sprint(i), time.Minute)
			if assert.NoError(t, err) {
				assert.NoError(t, lock.Release(t.Context()))
			}
		})
		time.Sleep(20 * time.Second)
		for i := range n {
			require.Empty(t, r.value(fmt.Sprint("lock:", i)))
		}
	})
}

// twoPrimaries is a cluster of two fake servers, the first of which has all
// slots, until fail-over gives them to the second.
type twoPrimaries struct {
	old, new *fakeRedis
	client   *redis.ClusterClient
	mu       sync.Mutex
	moved    bool
}

func newTwoPrimaries(t *testing.T) *twoPrimaries {
	p := &twoPrimaries{old: newFakeRedis(t), new: newFakeRedis(t)}
	addrs := []string{"10.0.0.1:6379", "10.0.0.2:6379"}
	o := &redis.ClusterOptions{Addrs: addrs, WriteBufferSize: batchSize, DisableIdentity: true, ReadTimeout: 5 * time.Second}
	o.MaintNotificationsConfig = clientOptions(nil).MaintNotificationsConfig
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if addr == addrs[0] {
			return p.old.net.dial(ctx, network, addr)
		}
		return p.new.net.dial(ctx, network, addr)
	}
	o.ClusterSlots = func(context.Context) ([]redis.ClusterSlot, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		addr := addrs[0]
		if p.moved {
			addr = addrs[1]
		}
		return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: addr}}}}, nil
	}
	p.client = redis.NewClusterClient(o)
	t.Cleanup(func() { p.client.Close() })
	return p
}

func (p *twoPrimaries) failOver() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moved = true
}

func TestAnExtendThatWasGivenUpMayFollowARedirectLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTwoPrimaries(t)
		lk := p.new.lockerOn(p.client)
		lock, err := lk.TryAcquire(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		require.NoError(t, p.new.Set("lock:a", lock.Token())) // the replica has it
		p.new.SetTTL("lock:a", time.Minute)
		p.old.net.stall()
		time.AfterFunc(100*time.Millisecond, p.failOver)
		require.NoError(t, lock.Extend(context.Background(), 3*time.Second))
		require.NoError(t, lock.Extend(t.Context(), time.Hour))
		p.old.answerWith(func(string) string { return "MOVED 1 10.0.0.2:6379" })
		p.old.net.flow() // the first primary is back, as a replica
		time.Sleep(time.Second)
		require.LessOrEqual(t, p.new.TTL("lock:a"), 3*time.Second, "the first try was executed last")
		require.Less(t, time.Until(lock.Until()), p.new.TTL("lock:a"))
	})
}
