package redislock

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/line"
	"github.com/e2e3f2a3/redislock/internal/wire"
)

// FuzzRoundTrip takes any name, prefix, metadata and TTL through a lock's life.
func FuzzRoundTrip(f *testing.F) {
	for _, name := range []string{"a", "order:42", "{t}a", "a{b}c", "{}", "a}b{", "a{}b{c}", "ü 锁", "\x00\xff", "", ":fence", "{x}", "{x}:fence", "{t}a:queue", "a}{b", "{a}{b}", "}", "{}}:fence", strings.Repeat("x", 1000)} {
		for _, prefix := range []string{"lock:", "", "{app}:", "}", "p{"} {
			f.Add(prefix, name, "pod-7 since noon", int64(1500*time.Millisecond))
		}
	}
	for _, ttl := range []time.Duration{-1 << 63, -1, 0, 1, MinTTL - 1, MinTTL, MinTTL + 1, 10500 * time.Microsecond, 24 * time.Hour, maxLease, maxLease + 1, 1<<63 - 1} {
		f.Add("lock:", "a", "", int64(ttl))
	}
	for _, metadata := range []string{" ", "\n", "\x00", "\xff\xfe", "a b", strings.Repeat("m", 10_000)} {
		f.Add("lock:", "a", metadata, int64(time.Minute))
	}

	m := miniredis.NewMiniRedis() // one for all inputs of this process
	f.Cleanup(m.Close)
	client := redis.NewClient(clientOptions(func(context.Context, string, string) (net.Conn, error) { return m.Dial() }))
	f.Cleanup(func() { client.Close() })
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:0"}})
	f.Cleanup(func() { cluster.Close() })

	f.Fuzz(func(t *testing.T, prefix, name, metadata string, ttl int64) {
		m.FlushAll()
		roundTrip(t, m, New(client, WithPrefix(prefix)), prefix, name, metadata, time.Duration(ttl))
		checkKeys(t, New(cluster, WithPrefix(prefix)), prefix, name)
	})
}

func roundTrip(t *testing.T, m *miniredis.Miniredis, lk *Locker, prefix, name, metadata string, ttl time.Duration) {
	ctx := t.Context()
	if ttl >= MinTTL && ttl < time.Minute {
		ttl += time.Minute // time is real here, and a busy machine would lose a short lease
	}
	lock, err := lk.TryAcquire(ctx, name, ttl, WithMetadata(metadata))
	switch {
	case name == "":
		require.ErrorIs(t, err, ErrInvalidName)
		return
	case errors.Is(err, ErrInvalidName):
		require.True(t, requireOwnKeys(t, lk, prefix, name), "%q is refused, although its keys are its own", prefix+name)
		return
	case ttl < MinTTL:
		require.ErrorIs(t, err, ErrInvalidTTL)
		require.Empty(t, m.Keys())
		return
	}
	require.NoError(t, err)
	requireOwnKeys(t, lk, prefix, name)
	value, err := m.Get(prefix + name)
	require.NoError(t, err)
	want := lock.Token()
	if metadata != "" {
		want += " " + metadata
	}
	require.Equal(t, want, value)
	require.Equal(t, prefix+name, lock.Key())

	info, err := lk.Inspect(ctx, name)
	require.NoError(t, err)
	require.Equal(t, Info{Held: true, Token: lock.Token(), Metadata: metadata, TTL: m.TTL(prefix + name), Fence: lock.Fence()}, info)
	requireCeil(t, ttl, info.TTL)
	require.Len(t, m.Keys(), 2)

	require.NoError(t, lock.Extend(ctx, time.Hour))
	left, err := lock.TTL(ctx)
	require.NoError(t, err)
	require.Equal(t, time.Hour, left)
	require.NoError(t, lock.Extend(ctx, ttl))
	requireCeil(t, ttl, m.TTL(prefix+name))
	for _, key := range m.Keys() {
		require.Positive(t, m.TTL(key), "%q has no end", key)
	}
	require.NoError(t, lock.Release(ctx))
	require.False(t, m.Exists(prefix+name))
}

// requireCeil checks that a lease is ttl, rounded up to milliseconds, and cut
// off at a century.
func requireCeil(t *testing.T, ttl, lease time.Duration) {
	t.Helper()
	if ttl > maxLease {
		ttl = maxLease
	}
	require.GreaterOrEqual(t, lease, ttl)
	require.Less(t, lease-ttl, time.Millisecond)
	require.Zero(t, lease%time.Millisecond)
}

// checkKeys checks that all keys are in one slot, or else the name is refused
// on a cluster.
func checkKeys(t *testing.T, onCluster *Locker, prefix, name string) {
	keys, err := onCluster.keysFor(name)
	require.Equal(t, prefix+name, keys.lock)
	if err != nil {
		require.ErrorIs(t, err, ErrInvalidName)
		_, tagged := hashTag(keys.lock)
		require.True(t, name == "" || !tagged && strings.Contains(keys.lock, "}") || requireOwnKeys(t, onCluster, prefix, name), "%q is refused", keys.lock)
		return
	}
	requireOwnKeys(t, onCluster, prefix, name)
	for _, key := range []string{keys.lock, keys.fence, keys.queue} {
		require.Equal(t, keySlot(keys.lock), keySlot(key), "%q and %q", keys.lock, key)
	}
}

// FuzzReplies: whatever a server says, only what the scripts can say is good
// news.
func FuzzReplies(f *testing.F) {
	for _, reply := range []string{"", "0", "1", "1 0", "done", "7 3", "0 1 ", "1 1 5", "1 2 5 9", "9 0", "5 7", "0 -1 5 1", "-2 0 0 ", "9223372036854775808 1", "t 0 0"} {
		f.Add(reply)
	}
	f.Fuzz(func(t *testing.T, reply string) {
		first, _, _ := strings.Cut(reply, " ")
		n, _ := strconv.ParseInt(first, 10, 64)
		a, err := parseAcquire(reply)
		require.True(t, !a.acquired || err == nil && a.fence > 0 && a.fence == n)
		e, err := parseExtend(reply)
		require.True(t, !e.held || err == nil && (n == 1 || reply == wire.ReplyDone))
		r, err := parseRelease(reply)
		require.True(t, !r.found || err == nil && (n == 1 || reply == wire.ReplyDone))
		require.True(t, err == nil || r == releaseReply{})
		_, _ = parseInspect(reply)
		_, _, _ = line.ParseGrant(reply)
		_, _ = parseDone(reply)
		require.Less(t, len(wire.Unexpected(reply).Error()), 300)
	})
}
