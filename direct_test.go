package redislock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// A client with ContextTimeoutEnabled leaves a read in time, so that a request
// needs no goroutine of its own although the caller's ctx can end.

func obeying(o *redis.Options) { o.ContextTimeoutEnabled = true }

// watched notes how scripts are written to connections, and how many
// connections were made and closed.
type watched struct {
	dial         dialer
	made, closed atomic.Int32

	mu     sync.Mutex
	stacks []string
}

func (w *watched) through(o *redis.Options) {
	w.dial = o.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := w.dial(ctx, network, addr)
		w.made.Add(1)
		return watchedConn{conn, w}, err
	}
}

type watchedConn struct {
	net.Conn
	w *watched
}

func (c watchedConn) Write(b []byte) (int, error) {
	if strings.Contains(strings.ToLower(string(b)), "evalsha") {
		c.w.mu.Lock()
		c.w.stacks = append(c.w.stacks, string(debug.Stack()))
		c.w.mu.Unlock()
	}
	return c.Conn.Write(b)
}

func (c watchedConn) Close() error {
	c.w.closed.Add(1)
	return c.Conn.Close()
}

// direct is which scripts since the last call were written by the caller.
func (w *watched) direct() (direct []bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, stack := range w.stacks {
		direct = append(direct, strings.Contains(stack, ".TestDirect"))
	}
	w.stacks = nil
	return direct
}

// directly makes a Locker whose requests are direct by now.
func (r *fakeRedis) directly(change ...func(*redis.Options)) (*Locker, *watched, *redis.Client) {
	w := &watched{}
	client := r.connect(append([]func(*redis.Options){obeying, w.through}, change...)...)
	lk := r.lockerOn(client)
	for range 2 {
		lock, err := lk.TryAcquire(r.t.Context(), "warm", time.Minute)
		require.NoError(r.t, err)
		require.NoError(r.t, lock.Release(r.t.Context()))
	}
	w.direct()
	return lk, w, client
}

func TestDirectRequests(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk, w, _ := r.directly()
		ctx := t.Context()
		lock, err := lk.TryAcquire(ctx, "a", time.Minute)
		require.NoError(t, err)
		require.NoError(t, lock.Release(ctx))
		lock, err = lk.Acquire(ctx, "a", time.Minute)
		require.NoError(t, err)
		require.NoError(t, lock.Release(ctx))
		require.NoError(t, lk.WithLock(ctx, "a", time.Minute, func(context.Context, *Lock) error { return nil }))
		require.Equal(t, []bool{true, true, true, true, true, true}, w.direct())
	})
}

// A hook may take its time, also one that was added later.
func TestDirectRequestsAreNotMadeThroughHooks(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk, w, client := r.directly()
		h := &blockingHook{}
		client.AddHook(h)
		time.Sleep(time.Second)
		lock, err := lk.TryAcquire(t.Context(), "a", time.Minute)
		require.NoError(t, err, "it is seen with the first request")
		require.NoError(t, lock.Release(t.Context()))
		w.direct()
		lock, err = lk.TryAcquire(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		require.NoError(t, lock.Release(t.Context()))
		require.Equal(t, []bool{false, false}, w.direct())

		unblock := h.block()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		require.LessOrEqual(t, elapsed(func() { _, err = lk.TryAcquire(ctx, "a", time.Minute) }), 150*time.Millisecond)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		unblock()
		time.Sleep(time.Minute)
	})
}

// blockingHook does nothing, until it blocks.
type blockingHook struct {
	mu    sync.Mutex
	until chan struct{}
}

func (h *blockingHook) block() (unblock func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.until = make(chan struct{})
	return func() { close(h.until) }
}

func (h *blockingHook) wait() {
	h.mu.Lock()
	until := h.until
	h.mu.Unlock()
	if until != nil {
		<-until
	}
}

func (h *blockingHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *blockingHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.wait()
		return next(ctx, cmd)
	}
}

func (h *blockingHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.wait()
		return next(ctx, cmds)
	}
}

// A hook that was added later may block with the first request that it sees.
func TestDirectRequestsAreNotMadeThroughHooksThatBlockAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk, _, client := r.directly()
		h := &blockingHook{}
		client.AddHook(h)
		time.Sleep(time.Second)
		r.requireInTime(lk, h.block())
	})
}

// A hook that does not hand commands on, as that of a circuit breaker, is not
// seen on the stack.
func TestDirectRequestsAreNotMadeThroughHooksThatAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		client := r.connect(obeying)
		h := &answeringHook{}
		client.AddHook(h)
		lk := r.lockerOn(client)
		for range 3 {
			_, err := lk.TryAcquire(t.Context(), "a", time.Minute)
			require.ErrorIs(t, err, errAnswered)
		}
		r.requireInTime(lk, h.block())
	})
}

var errAnswered = errors.New("the circuit is open")

// answeringHook lets nothing through.
type answeringHook struct{ blockingHook }

func (h *answeringHook) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		h.wait()
		cmd.SetErr(errAnswered)
		return errAnswered
	}
}

// requireInTime makes a request while something blocks, and unblocks it long
// after the end of the ctx.
func (r *fakeRedis) requireInTime(lk *Locker, unblock func()) {
	time.AfterFunc(time.Second, unblock)
	ctx, cancel := context.WithTimeout(r.t.Context(), 100*time.Millisecond)
	defer cancel()
	var err error
	require.LessOrEqual(r.t, elapsed(func() { _, err = lk.TryAcquire(ctx, "b", time.Minute) }), 150*time.Millisecond)
	require.ErrorIs(r.t, err, context.DeadlineExceeded)
	time.Sleep(time.Minute) // what goes on in the background is over
}

// While a connection is set up, go-redis calls functions of the program in the
// goroutine of the request.
func TestDirectRequestsAreNotHeldUpByCallbacks(t *testing.T) {
	for name, set := range map[string]func(o *redis.Options, called func()){
		"OnConnect": func(o *redis.Options, called func()) {
			o.OnConnect = func(context.Context, *redis.Conn) error { called(); return nil }
		},
		"CredentialsProvider": func(o *redis.Options, called func()) {
			o.CredentialsProvider = func() (string, string) { called(); return "", "" }
		},
		"CredentialsProviderContext": func(o *redis.Options, called func()) {
			o.CredentialsProviderContext = func(context.Context) (string, string, error) { called(); return "", "", nil }
		},
		"StreamingCredentialsProvider": func(o *redis.Options, called func()) {
			o.StreamingCredentialsProvider = blockingCredentials(called)
		},
		"Dialer": func(o *redis.Options, called func()) {
			dial := o.Dialer
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				called()
				return dial(ctx, network, addr)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				h := &blockingHook{}
				lk, _, _ := r.directly(func(o *redis.Options) {
					o.ConnMaxIdleTime = time.Second
					set(o, h.wait)
				})
				// The pool has no connection any more that can be used, and
				// hooks were looked for a moment ago.
				lock, err := lk.TryAcquire(t.Context(), "a", time.Minute)
				require.NoError(t, err)
				require.NoError(t, lock.Release(t.Context()))
				time.Sleep(50 * time.Millisecond)
				r.net.cut()
				r.requireInTime(lk, h.block())
			})
		})
	}
}

// blockingCredentials are those of nobody.
type blockingCredentials func()

func (f blockingCredentials) Subscribe(auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	f()
	return auth.NewBasicCredentials("", ""), func() error { return nil }, nil
}

// Where a round trip takes longer, a try in the caller's goroutine is not worth
// the risk of losing the connection.
func TestDirectRequestsAreNotMadeOverALongWay(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		r.net.setLatency(func() time.Duration { return 10 * time.Millisecond })
		lk, w, _ := r.directly()
		lock, err := lk.TryAcquire(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		require.NoError(t, lock.Release(t.Context()))
		require.Equal(t, []bool{false, false}, w.direct())

		r.net.setLatency(func() time.Duration { return 0 })
		for range 2 {
			lock, err = lk.TryAcquire(t.Context(), "a", time.Minute)
			require.NoError(t, err)
			require.NoError(t, lock.Release(t.Context()))
		}
		require.True(t, w.direct()[3], "near again")
	})
}

// Neither a ctx without a deadline nor one that is cancelled while the request
// is on its way makes a difference.
func TestDirectCallsReturnWithTheirContext(t *testing.T) {
	for _, after := range []time.Duration{0, 1, 5 * time.Millisecond, 15 * time.Millisecond, 40 * time.Millisecond} {
		for name, call := range map[string]func(context.Context, *Locker, *Lock) error{
			"TryAcquire": func(ctx context.Context, lk *Locker, _ *Lock) error {
				_, err := lk.TryAcquire(ctx, "b", time.Minute)
				return err
			},
			"Acquire": func(ctx context.Context, lk *Locker, _ *Lock) error {
				_, err := lk.Acquire(ctx, "b", time.Minute)
				return err
			},
			"Release": func(ctx context.Context, _ *Locker, lock *Lock) error { return lock.Release(ctx) },
		} {
			t.Run(fmt.Sprint(name, " ", after), func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					lk, _, _ := r.directly()
					lock, err := lk.TryAcquire(t.Context(), "a", time.Minute)
					require.NoError(t, err)
					r.net.stall()
					ctx, cancel := context.WithCancel(t.Context())
					time.AfterFunc(after, cancel)
					require.LessOrEqual(t, elapsed(func() { err = call(ctx, lk, lock) }), after+50*time.Millisecond)
					require.ErrorIs(t, err, context.Canceled)
					r.net.flow()
					time.Sleep(time.Minute)
					synctest.Wait()
					require.False(t, r.Exists("lock:b"))
				})
			})
		}
	}
}

// Redis that stands still for a while costs one connection, however many
// goroutines ask.
func TestDirectRequestsCostOneConnectionWhileRedisStandsStill(t *testing.T) {
	for _, stall := range []time.Duration{30 * time.Millisecond, 60 * time.Millisecond, 200 * time.Millisecond} {
		t.Run(stall.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lk, w, _ := r.directly()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				cycles := func() {
					var calls sync.WaitGroup
					for i := range 20 {
						calls.Go(func() {
							lock, err := lk.TryAcquire(ctx, fmt.Sprint(i), time.Minute)
							require.NoError(t, err)
							require.NoError(t, lock.Release(ctx))
						})
					}
					calls.Wait()
				}
				r.net.setLatency(func() time.Duration { return time.Millisecond })
				cycles()        // so that there are connections to be lost
				synctest.Wait() // round trips that are over make room a moment later
				closed, asked := w.closed.Load(), r.requests(opAcquire)
				r.net.stall()
				time.AfterFunc(stall, r.net.flow)
				cycles()
				require.EqualValues(t, 1, w.closed.Load()-closed)
				require.LessOrEqual(t, r.requests(opAcquire)-asked, 20+1, "one was repeated")
				time.Sleep(time.Minute)
				require.Empty(t, r.locks())
			})
		})
	}
}

// What has no reply soon enough is made once more. The first one may be
// executed at any time.
func TestDirectAcquireThatIsExecutedLateIsUndone(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk, _, _ := r.directly()
		arrive := r.net.delay(opAcquire)
		var lock *Lock
		var err error
		require.Equal(t, wire.Briefly, elapsed(func() { lock, err = lk.TryAcquire(t.Context(), "a", time.Hour) }))
		require.NoError(t, err)
		require.NoError(t, lock.Release(t.Context()))
		arrive()
		time.Sleep(time.Second)
		synctest.Wait()
		require.False(t, r.Exists("lock:a"))
	})
}

func TestDirectReleaseWhoseReplyIsLate(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, lk *Locker, meanwhile func()) error{
		"Release": func(t *testing.T, lk *Locker, meanwhile func()) error {
			lock, err := lk.TryAcquire(t.Context(), "a", time.Hour)
			require.NoError(t, err)
			meanwhile()
			return lock.Release(t.Context())
		},
		"WithLock": func(t *testing.T, lk *Locker, meanwhile func()) error {
			return lk.WithLock(t.Context(), "a", time.Hour, func(context.Context, *Lock) error {
				meanwhile()
				return nil
			})
		},
	} {
		for fault, begin := range map[string]func(r *fakeRedis){
			"executed":           func(r *fakeRedis) { r.net.fail(opRelease, loseReply, 1) },
			"late":               func(r *fakeRedis) { r.net.delay(opRelease) },
			"the connection cut": func(r *fakeRedis) { r.net.fail(opRelease, cutReply, 1) },
		} {
			t.Run(name+" "+fault, func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					lk, _, _ := r.directly()
					require.NoError(t, leave(t, lk, func() { begin(r) }), "the lease was valid when it was sent")
					require.False(t, r.Exists("lock:a"))
					require.NoError(t, r.acquire("a", time.Minute).Err())
					require.Empty(t, r.logged("twice"))
				})
			})
		}
	}
}

// A release through the caller's goroutine brings along the next one, and says
// so when nothing was found.
func TestDirectReleaseHandsOver(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk, w, _ := r.directly()
		lock, err := lk.TryAcquire(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		waiter := waitFor(t.Context(), lk, "a", time.Minute)
		synctest.Wait()
		w.direct()
		require.NoError(t, lock.Release(t.Context()))
		require.Equal(t, []bool{true}, w.direct())
		got := <-waiter
		require.NoError(t, got.err)
		r.Del("lock:a")
		require.ErrorIs(t, got.lock.Release(t.Context()), ErrNotHeld)
		require.Len(t, r.logged("twice"), 1)
	})
}
