package redislock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

type tenant struct{}

func tenantContext(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, tenant{}, name)
}

// quota is a hook that refuses commands of the tenants it is told of.
type quota struct {
	mu      sync.Mutex
	refused map[string]bool
	delay   time.Duration // before it refuses
}

func (q *quota) refuse(tenants ...string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refused = map[string]bool{}
	for _, name := range tenants {
		q.refused[name] = true
	}
}

func (q *quota) check(ctx context.Context) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if name, _ := ctx.Value(tenant{}).(string); q.refused[name] {
		time.Sleep(q.delay)
		return fmt.Errorf("tenant %s is over its quota", name)
	}
	return nil
}

func (q *quota) DialHook(next redis.DialHook) redis.DialHook { return next }

func (q *quota) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := q.check(ctx); err != nil {
			return err
		}
		return next(ctx, cmd)
	}
}

func (q *quota) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// poison is part of a request at which the connection is cut, as servers and
// proxies do with requests that are too large for them.
const poison = "poison"

type cutAtPoison struct{ net.Conn }

func (c cutAtPoison) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(poison)) {
		c.Close()
		return 0, &net.OpError{Op: "write", Net: "tcp", Err: errors.New("connection reset by " + poison)}
	}
	return c.Conn.Write(b)
}

func cuttingAtPoison(o *redis.Options) {
	dial := o.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return cutAtPoison{conn}, nil
	}
}

// What fails for one caller's sake says nothing about the others who stand
// behind it for a lock that is free.
func TestAFailureOfOneCallerIsNotThatOfTheOthersInLine(t *testing.T) {
	for name, c := range map[string]struct {
		client func(*redis.Options)
		quota  *quota
		opts   []AcquireOption
		why    string
	}{
		"refused by a hook": {func(*redis.Options) {}, &quota{refused: map[string]bool{"A": true}, delay: time.Millisecond}, nil, "tenant A"},
		"cut off":           {cuttingAtPoison, &quota{}, []AcquireOption{WithMetadata(poison)}, "connection reset by"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				client := r.connect(c.client)
				client.AddHook(c.quota)
				lk := r.lockerOn(client)
				r.net.setLatency(func() time.Duration { return time.Millisecond })
				a := waitFor(tenantContext(t.Context(), "A"), lk, "a", time.Minute, c.opts...)
				synctest.Wait()
				var others []<-chan acquired
				for i := range 5 {
					others = append(others, waitFor(tenantContext(t.Context(), fmt.Sprint("B", i)), lk, "a", time.Minute))
				}
				got := <-a
				requireFailure(t, got.err, opAcquire, "lock:a")
				require.ErrorContains(t, got.err, c.why)
				for range others {
					time.Sleep(time.Second)
					var held acquired
					for i, other := range others {
						select {
						case held = <-other:
							others[i] = nil
						default:
						}
					}
					require.NoError(t, held.err)
					require.NotNil(t, held.lock, "nobody has the lock, who waits alone")
					require.Equal(t, held.lock.Token(), r.value("lock:a"))
					require.NoError(t, held.lock.Release(t.Context()))
				}
			})
		})
	}
}

// A Redis that accepts requests and answers none fails everybody at about the
// same time: nobody waits for the time-outs of those before it.
func TestASilentRedisFailsALineAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		r.net.stall()
		start := time.Now()
		var waiters []<-chan acquired
		for range 50 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			waiters = append(waiters, waitFor(ctx, lk, "a", time.Minute))
		}
		for _, w := range waiters {
			got := <-w
			requireFailure(t, got.err, opAcquire, "lock:a")
			requireNotContextError(t, got.err)
			require.ErrorContains(t, got.err, " Redis within ")
			require.LessOrEqual(t, got.at.Sub(start), 2*wire.Tries*(5*time.Second+time.Second))
		}
		r.net.flow()
		requireNoGoroutines(t)
	})
}

// What is sure to be everybody's is told to everybody at once, without a hook's
// words for the one who met with it.
func TestACommonFailureIsPassedOnInTheWordsOfRedis(t *testing.T) {
	for name, begin := range map[string]func(*fakeRedis){
		"refused": func(r *fakeRedis) { r.net.down() },
		"NOPERM":  func(r *fakeRedis) { r.answerWith(func(string) string { return "NOPERM no" }) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				client := r.connect()
				client.AddHook(annotating{})
				lk := r.lockerOn(client)
				begin(r)
				r.net.setLatency(func() time.Duration { return time.Millisecond })
				waiters := map[string]<-chan acquired{}
				for i := range 50 {
					tenant := fmt.Sprintf("<%d>", i)
					waiters[tenant] = waitFor(tenantContext(t.Context(), tenant), lk, "a", time.Minute)
					synctest.Wait()
				}
				for tenant, w := range waiters {
					got := <-w
					requireFailure(t, got.err, opAcquire, "lock:a")
					text := strings.ReplaceAll(got.err.Error(), "tenant "+tenant, "")
					require.NotContains(t, text, "tenant")
				}
				require.LessOrEqual(t, r.requests(opAcquire), wire.Tries)
			})
		})
	}
}

// annotating is a hook that puts its caller's name before each error.
type annotating struct{ redis.Hook }

func (annotating) DialHook(next redis.DialHook) redis.DialHook { return next }

func (annotating) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err != nil && !strings.HasPrefix(err.Error(), "NOSCRIPT") {
			err = fmt.Errorf("tenant %s: %w", ctx.Value(tenant{}), err)
			cmd.SetErr(err)
		}
		return err
	}
}

func (annotating) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// One whose questions are refused while it waits keeps nobody behind it from
// the lock, and has it once it is let through.
func TestAWaiterThatIsRefusedKeepsNobodyFromTheLock(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		r.refuseSubscriptions()
		client := r.connect()
		var q quota
		client.AddHook(&q)
		lk := r.lockerOn(client)
		holder := r.acquire("a", time.Hour)
		q.refuse("A", "C")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		a := waitFor(tenantContext(ctx, "A"), lk, "a", time.Minute)
		c := waitFor(tenantContext(ctx, "C"), lk, "a", time.Minute)
		q.refuse()
		time.Sleep(time.Second) // they know that somebody has it
		q.refuse("A", "C")
		b := waitFor(tenantContext(ctx, "B"), lk, "a", time.Minute)
		time.Sleep(5 * time.Second)
		require.NoError(t, holder.Release(t.Context()))
		released := time.Now()
		got := <-b
		require.NoError(t, got.err)
		require.Less(t, got.at.Sub(released), 3*wire.LastPause)
		require.NoError(t, got.lock.Release(t.Context())) // to one of the others
		for range 2 {
			select {
			case got = <-a:
			case got = <-c:
			}
			require.NoError(t, got.err)
			require.NoError(t, got.lock.Release(t.Context()))
			q.refuse()
		}
	})
}

// The error of one whose ctx ends during an outage has none of another caller's
// words.
func TestTheErrorOfAWaiterHasNoWordsOfAnothers(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		client := r.connect()
		var q quota
		client.AddHook(&q)
		lk := r.lockerOn(client, WithPollInterval(100*time.Millisecond))
		r.acquire("a", time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		waiters := map[string]<-chan acquired{}
		for _, name := range []string{"A", "B", "C"} {
			waiters[name] = waitFor(tenantContext(ctx, name), lk, "a", time.Minute)
			time.Sleep(time.Second)
		}
		q.refuse("A", "B", "C")
		for name, w := range waiters {
			got := <-w
			requireFailure(t, got.err, opAcquire, "lock:a", context.DeadlineExceeded)
			text := strings.ReplaceAll(got.err.Error(), "tenant "+name, "")
			require.NotContains(t, text, "tenant")
			require.ErrorContains(t, got.err, "Redis did not serve")
		}
	})
}

// A connection that is cut for the sake of one request fails all that travel
// with it. The others come through, since their last try travels alone.
func TestRequestsSurviveOthersForWhichTheirConnectionIsCut(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		r.net.setLatency(func() time.Duration { return 5 * time.Millisecond })
		lk := r.lockerOn(r.connect(cuttingAtPoison, func(o *redis.Options) { o.MaxRetries = -1 }))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		over := make(chan struct{})
		var poisoners, others sync.WaitGroup
		for i := range 30 {
			poisoners.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-over:
						return
					case <-time.After(time.Millisecond):
					}
					_, err := lk.TryAcquire(ctx, fmt.Sprint("poisoned ", i, n), time.Minute, WithMetadata(poison))
					if err == nil {
						t.Error("it was let through")
					}
				}
			})
		}
		for i := range 60 {
			others.Go(func() {
				for n := range 10 {
					lock, err := lk.Acquire(ctx, fmt.Sprint(i, n), time.Minute)
					if err != nil {
						t.Error(err)
						return
					}
					if _, err := lk.Inspect(ctx, lock.Name()); err != nil {
						t.Error(err)
					}
					if err := lock.Extend(ctx, time.Minute); err != nil {
						t.Error(err)
					}
					if err := lock.Release(ctx); err != nil {
						t.Error(err)
					}
				}
			})
		}
		others.Wait()
		close(over)
		poisoners.Wait()
	})
}
