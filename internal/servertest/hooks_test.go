package servertest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/e2e3f2a3/redislock"
	"github.com/e2e3f2a3/redislock/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// prefixing is a hook that rewrites the keys of scripts in place.
type prefixing struct{}

func (prefixing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (prefixing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		addPrefix(cmd)
		return next(ctx, cmd)
	}
}

func (prefixing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			addPrefix(cmd)
		}
		return next(ctx, cmds)
	}
}

func addPrefix(cmd redis.Cmder) {
	if name := cmd.Name(); name != "eval" && name != "evalsha" {
		return
	}
	args := cmd.Args()
	for i := 3; i < 3+args[2].(int); i++ {
		args[i] = "t:" + args[i].(string)
	}
}

func TestServerAHookThatRewritesKeys(t *testing.T) {
	t.Parallel()
	r := newFollowed(t, 1)
	ctx := t.Context()
	for kind, opts := range map[string][]redislock.Option{
		"one server":   nil,
		"WithReplicas": {redislock.WithReplicas(1, soon)},
	} {
		t.Run(kind, func(t *testing.T) {
			locker := func() *redislock.Locker {
				client := r.server.Client(t)
				client.AddHook(prefixing{})
				return r.lockerWith(client, opts...)
			}
			one, two := locker(), locker()
			for round := range 5 {
				name := fmt.Sprint(kind, round)
				require.NoError(t, r.direct.ScriptFlush(ctx).Err())
				lock, err := one.TryAcquire(ctx, name, time.Minute)
				require.NoError(t, err)
				require.NoError(t, r.direct.ScriptFlush(ctx).Err())
				_, err = two.TryAcquire(ctx, name, time.Minute)
				require.ErrorIs(t, err, redislock.ErrNotAcquired)
				assert.Equal(t, lock.Token(), r.direct.Get(ctx, "t:"+keyOf(name)).Val())
				require.NoError(t, r.direct.ScriptFlush(ctx).Err())
				require.NoError(t, lock.Release(ctx))
				assert.Zero(t, r.direct.Exists(ctx, "t:"+keyOf(name)).Val())
			}
			for _, key := range r.direct.Keys(ctx, "*lock:"+kind+"*").Val() {
				assert.Equal(t, 1, strings.Count(key, "t:lock:")+strings.Count(key, "t:{lock:"), key)
				assert.NotContains(t, key, "t:t:")
			}
		})
	}
}

func TestServerAHookThatRewritesKeysLeavesWaitersTheirPushes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	locker := func() *redislock.Locker {
		client := r.relay.Client(t)
		client.AddHook(prefixing{})
		return r.lockerWith(client)
	}
	one, two := locker(), locker()
	for round := range 5 {
		name := fmt.Sprint("job ", round)
		queued := func() bool { return r.direct.ZCard(ctx, "t:"+queueOf(name)).Val() == 1 }
		lock := hold(t, one, name, time.Minute)
		wait := started(func() (*redislock.Lock, error) { return two.Acquire(ctx, name, time.Minute) })
		require.True(t, eventually(soon, queued), "no ticket is queued")
		asked := r.relay.Requests(redistest.ArgContains("t:" + keyOf(name)))
		require.NoError(t, lock.Release(ctx))
		next, err := wait(t)
		require.NoError(t, err)
		assert.Equal(t, asked+1, r.relay.Requests(redistest.ArgContains("t:"+keyOf(name))), "the release alone")
		assert.Equal(t, next.Token(), r.direct.Get(ctx, "t:"+keyOf(name)).Val())
		require.NoError(t, next.Release(ctx))
	}
	assert.Empty(t, r.log.about())
}

// The hook is the cluster client's, and sees what WithReplicas sends, too.
func TestServerAHookThatRewritesKeysOnACluster(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	c := startShards(t)
	ctx := t.Context()
	c.wrap = func(client *redis.ClusterClient) redislock.Client {
		client.AddHook(prefixing{})
		return client
	}
	for kind, opts := range map[string][]redislock.Option{
		"plain":        nil,
		"WithReplicas": {redislock.WithReplicas(1, soon)},
	} {
		one, two := c.locker(t, opts...), c.locker(t, opts...)
		for i := range 10 {
			name := fmt.Sprintf("{%s%d}job", kind, i)
			lock, err := one.TryAcquire(ctx, name, time.Minute)
			require.NoError(t, err)
			_, err = two.TryAcquire(ctx, name, time.Minute)
			require.ErrorIs(t, err, redislock.ErrNotAcquired)
			assert.Equal(t, lock.Token(), c.direct.Get(ctx, "t:"+keyOf(name)).Val())
			assert.Empty(t, c.value(name))
			require.NoError(t, lock.Release(ctx))
			assert.Zero(t, c.direct.Exists(ctx, "t:"+keyOf(name)).Val())
		}
	}
}
