package redislock

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// mischief is a hook that does not return from some requests.
type mischief struct {
	mu    sync.Mutex
	op    string // which requests; "" is none, "*" all of them
	times int
	how   func()
	after bool // the request was executed
	batch bool // only those that travel together
}

// hooked is a client with such a hook.
func (r *fakeRedis) hooked() (*redis.Client, *mischief) {
	m := &mischief{}
	client := r.connect()
	client.AddHook(m)
	return client, m
}

// next has the next requests of op end in how, before or after they are
// executed.
func (m *mischief) next(op string, times int, how func(), after bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.op, m.times, m.how, m.after = op, times, how, after
}

func (m *mischief) due(after bool, cmds ...redis.Cmder) func() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, cmd := range cmds {
		args := cmd.Args()
		if m.batch && len(cmds) == 1 || !strings.HasPrefix(cmd.Name(), "eval") || m.times == 0 || m.after != after {
			continue
		}
		if text := fmt.Sprint(args[1]); m.op == "*" || text == allScripts[m.op].Digest || text == allScripts[m.op].Source {
			m.times--
			return m.how
		}
	}
	return func() {}
}

func (m *mischief) DialHook(next redis.DialHook) redis.DialHook { return next }

func (m *mischief) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		m.due(false, cmd)()
		err := next(ctx, cmd)
		m.due(true, cmd)()
		return err
	}
}

func (m *mischief) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		m.due(false, cmds...)()
		err := next(ctx, cmds)
		m.due(true, cmds...)()
		return err
	}
}

// misbehaviour is what hooks do, and what the error and the log say then.
var misbehaviour = map[string]struct {
	do   func()
	text string
}{
	"panic":          {func() { panic("oh no") }, "a hook or mock of the client panicked: oh no"},
	"panic of error": {func() { panic(redis.ErrClosed) }, "a hook or mock of the client panicked: redis: client is closed"},
	"Goexit":         {runtime.Goexit, "a hook or mock of the client called runtime.Goexit"},
}

// requireStray fails unless the error says what the hook did, and the log once
// for each.
func (r *fakeRedis) requireStray(err error, text string, lines int) {
	r.t.Helper()
	require.ErrorContains(r.t, err, text)
	require.NotErrorIs(r.t, err, redis.ErrClosed)
	require.NotErrorIs(r.t, err, ErrNotAcquired)
	require.Len(r.t, r.logged(text), lines)
}

const theLog = "redislock: a call of the client did not return"

func TestAHookThatDoesNotReturnFailsOneCall(t *testing.T) {
	for what, m := range misbehaviour {
		for when, after := range map[string]bool{"before": false, "after": true} {
			t.Run(what+" "+when+" the request is executed", func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					client, hook := r.hooked()
					lk := r.lockerOn(client)
					ctx := t.Context()
					for op, acquire := range map[string]func() (*Lock, error){
						"TryAcquire": func() (*Lock, error) { return lk.TryAcquire(ctx, "a", time.Minute) },
						"Acquire":    func() (*Lock, error) { return lk.Acquire(ctx, "a", time.Minute) },
					} {
						before := len(r.logged(theLog))
						hook.next(opAcquire, 1, m.do, after)
						_, err := acquire()
						r.requireStray(err, m.text, before+1)
						requireFailure(t, err, opAcquire, "lock:a")
						time.Sleep(time.Second)
						synctest.Wait()
						require.False(t, r.Exists("lock:a"), "%s is undone", op)
						lock, err := acquire()
						require.NoError(t, err, op)

						hook.next(opExtend, 1, m.do, after)
						r.requireStray(lock.Extend(ctx, time.Minute), m.text, before+2)
						require.NoError(t, lock.Err())
						require.NoError(t, lock.Extend(ctx, time.Minute))

						hook.next(opRelease, 1, m.do, after)
						r.requireStray(lock.Release(ctx), m.text, before+3)
						require.NoError(t, lock.Release(ctx), "it can be tried again")
					}
					hook.next(opInspect, 1, m.do, after)
					_, err := lk.Inspect(ctx, "a")
					require.ErrorContains(t, err, m.text)
					require.Contains(t, r.logged(theLog)[0], "mischief", "the stack")
					requireIdle(t, lk)
					requireNoGoroutines(t)
				})
			})
		}
	}
}

// In a batch it fails all, whatever contexts they have, and nobody else.
func TestAHookThatDoesNotReturnFailsItsBatch(t *testing.T) {
	for what, m := range misbehaviour {
		for when, after := range map[string]bool{"before": false, "after": true} {
			t.Run(what+" "+when+" the batch is executed", func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					client, hook := r.hooked()
					hook.batch = true
					lk := r.lockerOn(client)
					r.delayed()
					const n = 20
					var all sync.WaitGroup
					for i := range wire.Trips {
						all.Go(func() {
							_, err := lk.TryAcquire(t.Context(), fmt.Sprint("first", i), time.Minute)
							assert.NoError(t, err)
						})
					}
					synctest.Wait()
					hook.next(opAcquire, 1, m.do, after)
					for i := range n {
						all.Go(func() {
							ctx := t.Context()
							if i%2 == 0 {
								ctx = context.Background()
							}
							_, err := lk.TryAcquire(ctx, fmt.Sprint(i), time.Minute)
							assert.ErrorContains(t, err, m.text)
						})
					}
					all.Wait()
					require.Len(t, r.logged(theLog), 1)
					together(n, func(i int) {
						_, err := lk.TryAcquire(context.Background(), fmt.Sprint("later", i), time.Minute)
						assert.NoError(t, err)
					})
					time.Sleep(time.Second)
					requireIdle(t, lk)
					for i := range n {
						require.False(t, r.Exists(fmt.Sprint("lock:", i)), "it is undone")
					}
				})
			})
		}
	}
}

// In the caller's own goroutine a panic goes on, and leaves nothing behind.
func TestAPanicInTheCallersGoroutineGoesOn(t *testing.T) {
	for when, after := range map[string]bool{"before": false, "after": true} {
		t.Run(when+" the request is executed", func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				ctx, oh := context.Background(), func() { panic("oh no") }
				for op, acquire := range map[string]func(*Locker) (*Lock, error){
					"TryAcquire": func(lk *Locker) (*Lock, error) { return lk.TryAcquire(ctx, "a", time.Minute, WithWatchdog()) },
					"Acquire":    func(lk *Locker) (*Lock, error) { return lk.Acquire(ctx, "a", time.Minute, WithWatchdog()) },
				} {
					client, hook := r.hooked()
					lk := r.lockerOn(client)
					hook.next(opAcquire, 1, oh, after)
					require.PanicsWithValue(t, "oh no", func() { _, _ = acquire(lk) }, op)
					synctest.Wait()
					require.False(t, r.Exists("lock:a"), op)
					lock, err := acquire(lk)
					require.NoError(t, err, op)
					hook.next(opExtend, 1, oh, after)
					require.PanicsWithValue(t, "oh no", func() { _ = lock.Extend(ctx, 30*time.Second) }, op)
					time.Sleep(2 * time.Minute)
					require.NoError(t, lock.Err(), "renewed by what it may have been cut down to")

					next := make(chan error, 1)
					go func() {
						got, err := lk.Acquire(t.Context(), "a", time.Minute)
						if err == nil {
							err = got.Release(t.Context())
						}
						next <- err
					}()
					synctest.Wait()
					hook.next(opRelease, 1, oh, after)
					require.PanicsWithValue(t, "oh no", func() { _ = lock.Release(ctx) }, op)
					require.NoError(t, lock.Release(ctx))
					require.Less(t, elapsed(func() { require.NoError(t, <-next, "who waits is not stuck") }), time.Second)
					time.Sleep(time.Second) // a question of the waiter may have been executed late
					require.False(t, r.Exists("lock:a"))
					requireIdle(t, lk)
				}
				require.Empty(t, r.logged(theLog))
			})
		})
	}
}

func TestARenewalThatDoesNotReturnIsTriedAgain(t *testing.T) {
	for what, m := range misbehaviour {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				client, hook := r.hooked()
				lock, err := r.lockerOn(client).TryAcquire(t.Context(), "a", 3*time.Second, WithWatchdog())
				require.NoError(t, err)
				hook.next(opExtend, 3, m.do, false)
				time.Sleep(10 * time.Second)
				require.NoError(t, lock.Err())
				require.Len(t, r.logged(theLog), 3)
				hook.next(opExtend, 1000, m.do, false)
				requireLost(t, lock, 3*time.Second)
				require.ErrorContains(t, lock.Err(), m.text)
			})
		})
	}
}

func TestAReleaseInTheBackgroundThatDoesNotReturn(t *testing.T) {
	for what, m := range misbehaviour {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				client, hook := r.hooked()
				lk := r.lockerOn(client)
				hook.next(opRelease, 2, m.do, false)
				err := lk.WithLock(t.Context(), "a", time.Hour, func(context.Context, *Lock) error { return nil })
				require.ErrorContains(t, err, m.text)
				time.Sleep(time.Second)
				synctest.Wait()
				require.False(t, r.Exists("lock:a"), "it goes on after another failure")
			})
		})
	}
}

func TestANodeWhoseHookDoesNotReturnHasNoVote(t *testing.T) {
	for what, m := range misbehaviour {
		t.Run(what, func(t *testing.T) {
			inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
				clients, hooks := make([]Client, 3), make([]*mischief, 3)
				for i, r := range q.nodes {
					clients[i], hooks[i] = r.hooked()
				}
				r := q.nodes[0]
				lk, err := NewQuorum(clients, WithLogger(r.locker().opts.logger))
				require.NoError(t, err)
				hooks[1].next("*", 1000, m.do, false)
				lock, err := lk.TryAcquire(t.Context(), "a", time.Minute)
				require.NoError(t, err, "two of three")
				require.NoError(t, lock.Extend(t.Context(), time.Minute))
				require.NoError(t, lock.Release(t.Context()))
				hooks[2].next("*", 1000, m.do, false)
				_, err = lk.TryAcquire(t.Context(), "a", time.Minute)
				requireNoQuorum(t, err, 1, 2)
				require.ErrorContains(t, err, m.text)
				require.NotEmpty(t, r.logged(theLog))
				hooks[1].next("", 0, nil, false)
				hooks[2].next("", 0, nil, false)
				time.Sleep(20 * time.Second)
				q.requireFree("a")
				requireNoGoroutines(t)
			})
		})
	}
}

// infoHook does not return from INFO.
type infoHook struct {
	prefixing
	do func()
}

func (h infoHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "info" {
			h.do()
		}
		return next(ctx, cmd)
	}
}

func TestNewQuorumWithAHookThatDoesNotReturn(t *testing.T) {
	for what, m := range misbehaviour {
		t.Run(what, func(t *testing.T) {
			inQuorum(t, 2, func(t *testing.T, q *fakeQuorum) {
				client := q.nodes[0].connect()
				client.AddHook(infoHook{do: m.do})
				_, err := NewQuorum([]Client{client, q.nodes[1].connect()})
				require.ErrorContains(t, err, "redislock: NewQuorum: node 1 (127.0.0.1:6379): "+m.text)
			})
		})
	}
}

// noSubscriber is a client whose Subscribe does not return.
type noSubscriber struct {
	*redis.Client
	do func()
}

func (c noSubscriber) Subscribe(context.Context, ...string) *redis.PubSub {
	c.do()
	return nil
}

func TestASubscriptionThatDoesNotReturnIsOneThatIsRefused(t *testing.T) {
	for what, m := range misbehaviour {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				holder := r.acquire("a", time.Hour)
				lk := r.lockerOn(noSubscriber{r.client, m.do})
				waiter := make(chan error, 1)
				go func() {
					_, err := lk.Acquire(t.Context(), "a", time.Minute)
					waiter <- err
				}()
				time.Sleep(5 * time.Minute)
				require.NoError(t, holder.Release(t.Context()))
				require.LessOrEqual(t, elapsed(func() { require.NoError(t, <-waiter) }), wire.LastPause, "it polls")
				require.Len(t, r.logged(m.text), 1, "though it was tried every half a minute")
				requireNoGoroutines(t)
			})
		})
	}
}

// oddCluster is a wrapper of a cluster's client whose own methods panic.
type oddCluster struct {
	*redis.ClusterClient
	odd *atomic.Value
}

func (c oddCluster) MasterForKey(ctx context.Context, key string) (*redis.Client, error) {
	if c.odd.Load() == "MasterForKey" {
		panic("oh no")
	}
	return c.ClusterClient.MasterForKey(ctx, key)
}

func (c oddCluster) ReloadState(ctx context.Context) {
	if c.odd.Load() == "ReloadState" {
		panic("oh no")
	}
	c.ClusterClient.ReloadState(ctx)
}

func (c oddCluster) ForEachMaster(ctx context.Context, fn func(context.Context, *redis.Client) error) error {
	if c.odd.Load() == "ForEachMaster" {
		panic("oh no")
	}
	return c.ClusterClient.ForEachMaster(ctx, fn)
}

func TestATopologyThatPanicsDoesNoHarm(t *testing.T) {
	for _, method := range []string{"MasterForKey", "ReloadState", "ForEachMaster"} {
		t.Run(method, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				var odd atomic.Value
				odd.Store("")
				lk := r.lockerOn(oddCluster{r.cluster(), &odd})
				lock, err := lk.TryAcquire(t.Context(), "a", 30*time.Second, WithWatchdog())
				require.NoError(t, err)
				odd.Store(method)
				r.net.fail(opExtend, loseReply, 1)
				time.Sleep(time.Minute)
				require.NoError(t, lock.Err())
				require.NoError(t, lock.Release(t.Context()))
				require.NotEmpty(t, r.logged("oh no"))
			})
		})
	}
}

// --- mocks ------------------------------------------------------------------------

// mock answers commands as go-redis/redismock does: instead of sending them,
// with values that it sets by reflection in the command behind the pointer it
// is given. A value of another type panics, and so does a command that is no
// pointer.
type mock struct {
	prefixing
	answers map[string]any // by script
}

func (m *mock) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error { return m.process(cmd) }
}

func (m *mock) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if err := m.process(cmd); err != nil {
				return err
			}
		}
		return nil
	}
}

func (m *mock) process(cmd redis.Cmder) error {
	for op, s := range scriptsByName {
		if answer, expected := m.answers[op]; expected && cmd.Args()[1] == s.Digest {
			v := reflect.ValueOf(cmd).Elem().FieldByName("val")
			if !v.IsValid() {
				panic("cmd did not find key 'val'")
			}
			v = reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Elem()
			v.Set(reflect.ValueOf(answer)) // panics if it does not fit
			return nil
		}
	}
	err := fmt.Errorf("call to cmd '%v' was not expected", cmd)
	cmd.SetErr(err)
	return err
}

func TestMocksAnswerAsServersDo(t *testing.T) {
	for name, ctx := range map[string]func(*testing.T) (context.Context, context.CancelFunc){
		"deadline": func(t *testing.T) (context.Context, context.CancelFunc) {
			return context.WithTimeout(t.Context(), time.Second)
		},
		"no end": func(*testing.T) (context.Context, context.CancelFunc) { return context.Background(), func() {} },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				ctx, cancel := ctx(t)
				defer cancel()
				client := r.connect()
				m := &mock{answers: map[string]any{opAcquire: "1700000000000000", opRelease: int64(1)}}
				client.AddHook(m)
				lk := r.lockerOn(client)
				lock, err := lk.TryAcquire(ctx, "a", time.Minute)
				require.NoError(t, err)
				require.EqualValues(t, 1700000000000000, lock.Fence())
				require.ErrorContains(t, lock.Extend(ctx, time.Minute), "was not expected")
				require.NoError(t, lock.Release(ctx))
			})
		})
	}
}
