package redislock

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// prefixing is a hook as applications have them: it rewrites the keys of
// scripts where they stand, in the arguments of the command.
type prefixing struct{}

func (prefixing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (prefixing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		prefixing{}.rewrite(cmd)
		return next(ctx, cmd)
	}
}

func (prefixing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			prefixing{}.rewrite(cmd)
		}
		return next(ctx, cmds)
	}
}

func (prefixing) rewrite(cmd redis.Cmder) {
	args := cmd.Args()
	if name := args[0]; name != "eval" && name != "evalsha" {
		return
	}
	keys := args[2].(int)
	for i := 3; i < 3+keys; i++ {
		args[i] = "t:" + args[i].(string)
	}
	for i := 3 + keys; i < len(args); i++ {
		if _, text := args[i].(string); !text {
			args[i] = fmt.Sprint(args[i])
		}
	}
}

// requireOnePrefix fails if a key of the package is not exactly once prefixed.
func (r *fakeRedis) requireOnePrefix() {
	r.t.Helper()
	for _, key := range r.Keys() {
		rest, found := strings.CutPrefix(key, "t:")
		require.True(r.t, found, key)
		require.False(r.t, strings.HasPrefix(rest, "t:"), key)
	}
}

// forgetScripts makes the server ask for the source of each script again.
func (r *fakeRedis) forgetScripts() {
	require.NoError(r.t, r.admin.ScriptFlush(r.t.Context()).Err())
}

func TestAHookThatRewritesKeysSeesThemUntouchedEachTime(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		client := r.connect()
		client.AddHook(prefixing{})
		one, two := r.lockerOn(client), r.lockerOn(client)
		ctx := t.Context()
		for round := range 3 {
			name := fmt.Sprint("job", round)
			r.forgetScripts()
			lock, err := one.TryAcquire(ctx, name, time.Minute)
			require.NoError(t, err)
			for range 2 {
				r.forgetScripts()
				_, err = two.TryAcquire(ctx, name, time.Minute)
				requireFailure(t, err, opAcquire, "lock:"+name, ErrNotAcquired)
			}
			r.forgetScripts()
			require.NoError(t, lock.Extend(ctx, 2*time.Minute))
			r.forgetScripts()
			info, err := two.Inspect(ctx, name)
			require.NoError(t, err)
			require.Equal(t, lock.Token(), info.Token)
			r.forgetScripts()
			adopted, err := two.Resume(ctx, name, lock.Token(), time.Minute)
			require.NoError(t, err)
			require.Equal(t, lock.Token(), r.value("t:lock:"+name))
			r.requireOnePrefix()
			r.forgetScripts()
			require.NoError(t, adopted.Release(ctx))
			require.False(t, r.Exists("t:lock:"+name))
		}
	})
}

func TestAHookThatRewritesKeysSeesThemUntouchedInBatches(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		client := r.connect()
		client.AddHook(prefixing{})
		lk, other := r.lockerOn(client), r.lockerOn(client)
		r.slow()
		const n = 20
		locks := make([]*Lock, n)
		for range 2 {
			r.forgetScripts()
			together(n, func(i int) {
				lock, err := lk.TryAcquire(t.Context(), fmt.Sprint(i), time.Minute)
				assert.NoError(t, err)
				locks[i] = lock
			})
			r.requireOnePrefix()
			r.forgetScripts()
			together(n, func(i int) {
				_, err := other.TryAcquire(t.Context(), fmt.Sprint(i), time.Minute)
				assert.ErrorIs(t, err, ErrNotAcquired)
			})
			r.forgetScripts()
			together(n, func(i int) { assert.NoError(t, locks[i].Release(t.Context())) })
		}
		require.False(t, slices.ContainsFunc(r.Keys(), func(key string) bool { return strings.HasPrefix(key, "t:lock:") }))
		r.requireOnePrefix()
	})
}

func TestAHookThatRewritesKeysAndRepetitionsRenewalsAndUndoing(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		client := r.connect(func(o *redis.Options) { o.MaxRetries = -1 })
		client.AddHook(prefixing{})
		lk := r.lockerOn(client)
		ctx := t.Context()

		r.net.fail(opAcquire, cutReply, 2)
		lock, err := lk.TryAcquire(ctx, "a", 3*time.Second, WithWatchdog())
		require.NoError(t, err)
		for range 10 {
			r.forgetScripts()
			time.Sleep(time.Second)
		}
		require.NoError(t, lock.Err(), "renewed")
		r.net.fail(opRelease, cutRequest, 2)
		require.NoError(t, lock.Release(ctx))
		require.False(t, r.Exists("t:lock:a"))

		r.net.fail(opAcquire, loseReply, 1)
		bounded, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err = lk.TryAcquire(bounded, "a", time.Minute)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(time.Minute / 2)
		synctest.Wait()
		require.False(t, r.Exists("t:lock:a"), "it is undone")
		r.requireOnePrefix()
	})
}

func TestAHookThatRewritesKeysOnAQuorum(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		locker := func() *Locker {
			clients := make([]Client, len(q.nodes))
			for i, r := range q.nodes {
				client := r.connect()
				client.AddHook(prefixing{})
				clients[i] = client
			}
			lk, err := NewQuorum(clients)
			require.NoError(t, err)
			return lk
		}
		forget := func() {
			synctest.Wait() // the nodes that were not waited for
			for _, r := range q.nodes {
				r.forgetScripts()
			}
		}
		one, two := locker(), locker()
		ctx := t.Context()
		for range 3 {
			forget()
			lock, err := one.TryAcquire(ctx, "job", time.Minute)
			require.NoError(t, err)
			forget()
			_, err = two.TryAcquire(ctx, "job", time.Minute)
			requireFailure(t, err, opAcquire, "lock:job", ErrNotAcquired)
			forget()
			require.NoError(t, q.nodes[0].admin.Del(ctx, "t:lock:job").Err())
			require.NoError(t, lock.Extend(ctx, time.Minute), "and takes the free node again")
			synctest.Wait()
			for _, r := range q.nodes {
				require.Equal(t, lock.Token(), r.value("t:lock:job"))
				r.requireOnePrefix()
			}
			forget()
			require.NoError(t, lock.Release(ctx))
			synctest.Wait()
			for _, r := range q.nodes {
				require.False(t, r.Exists("t:lock:job"))
			}
		}
	})
}

type tenantKey struct{}

// tenants notes the values that a hook finds in the contexts of requests.
type tenants struct {
	prefixing
	seen []any
}

func (h *tenants) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			h.seen = append(h.seen, ctx.Value(tenantKey{}))
		}
		return next(ctx, cmd)
	}
}

// A request that travels by itself carries the values of its caller's context,
// whatever is made of the context on the way.
func TestARequestByItselfHasTheValuesOfItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		client := r.connect()
		h := &tenants{}
		client.AddHook(h)
		lk := r.lockerOn(client)
		limited, cancel := context.WithCancel(context.WithValue(t.Context(), tenantKey{}, "A"))
		defer cancel()
		for _, ctx := range []context.Context{limited, context.WithoutCancel(limited)} {
			h.seen = nil
			lock, err := lk.Acquire(ctx, "a", time.Minute)
			require.NoError(t, err)
			require.NoError(t, lock.Extend(ctx, time.Minute))
			require.NoError(t, lock.Release(ctx))
			r.forgetScripts()
			_, err = lk.Inspect(ctx, "a")
			require.NoError(t, err)
			require.GreaterOrEqual(t, len(h.seen), 5, "each, and one with the source of its script")
			require.NotContains(t, h.seen, nil)
		}
	})
}

// The channel of a waiter's inbox is named by the lock's key, which the hook
// makes longer, and its subscription passes no hook.
func TestAHookThatRewritesKeysLeavesWaitersTheirPushes(t *testing.T) {
	for _, prefix := range []string{"lock:", "", "a b:"} {
		for queue, dead := range map[string]bool{"a queue of one": false, "behind a dead one": true} {
			t.Run(prefix+" "+queue, func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					lockers := make([]*Locker, 2)
					for i := range lockers {
						client := r.connect()
						client.AddHook(prefixing{})
						lockers[i] = r.lockerOn(client, WithPrefix(prefix))
					}
					lock, err := lockers[0].TryAcquire(t.Context(), "job 1", time.Hour)
					require.NoError(t, err)
					queued := "t:" + lock.keys.queue
					if dead {
						_, err = r.ZAdd(queued, 1, fmt.Sprintf("dead 60000 %d 5 nobody", len(prefix)))
						require.NoError(t, err)
					}
					waiter := waitFor(t.Context(), lockers[1], "job 1", time.Hour)
					time.Sleep(time.Minute)
					tickets, err := r.ZMembers(queued)
					require.NoError(t, err)
					require.NotEmpty(t, tickets)
					asked, released := r.requests(opAcquire), time.Now()
					require.NoError(t, lock.Release(t.Context()))
					got := <-waiter
					require.NoError(t, got.err)
					require.Equal(t, released, got.at, "told, and not found by asking")
					require.Equal(t, asked, r.requests(opAcquire))
					require.Equal(t, got.lock.Token(), r.value("t:"+got.lock.Key()))
					require.Empty(t, r.logged(""))
				})
			})
		}
	}
}
