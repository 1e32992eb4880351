package redislock

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// names are lock names with an empty prefix, so that they are the keys; those
// that have a '}' and no hash tag cannot be matched on Redis Cluster.
var names = map[string]struct{ fence string }{
	"a":                                {"{a}:fence"},
	"{t}a":                             {"{t}a:fence"},
	"a{b}c":                            {"a{b}c:fence"},
	"{a}{b}c":                          {"{a}{b}c:fence"},
	"{{a}}":                            {"{{a}}:fence"},
	"}{a}":                             {"}{a}:fence"},
	"a{":                               {"{a{}:fence"},
	"{":                                {"{{}:fence"},
	"a{b":                              {"{a{b}:fence"},
	"üñí 锁":                            {"{üñí 锁}:fence"},
	"with spaces\tand\nlines":          {"{with spaces\tand\nlines}:fence"},
	"\x00\xff":                         {"{\x00\xff}:fence"},
	strings.Repeat("x", 1<<20):         {"{" + strings.Repeat("x", 1<<20) + "}:fence"},
	"{}":                               {},
	"a}b{":                             {},
	"a{}b{c}":                          {},
	"a}b":                              {},
	"{}x":                              {},
	"}":                                {},
	strings.Repeat("x", 1<<20) + "{}b": {},
}

func short(name string) string { return fmt.Sprintf("%.40q", name) }

// Fault 35. On one node every name works.
func TestEveryNameWorksOnOneNode(t *testing.T) {
	for name, want := range names {
		t.Run(short(name), func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lk := r.locker(WithPrefix(""))
				lock, err := lk.Acquire(t.Context(), name, time.Minute, WithMetadata("m"))
				require.NoError(t, err)
				require.Equal(t, name, lock.Key())
				require.Equal(t, name, lock.Name())
				require.Equal(t, lock.Token()+" m", r.value(name))
				require.Len(t, r.Keys(), 2)
				if want.fence != "" {
					require.Equal(t, fmt.Sprint(lock.Fence()), r.value(want.fence))
				}
				require.NoError(t, lock.Extend(t.Context(), time.Hour))
				info, err := lk.Inspect(t.Context(), name)
				require.NoError(t, err)
				require.Equal(t, Info{Held: true, Token: lock.Token(), Metadata: "m", TTL: time.Hour, Fence: lock.Fence()}, info)
				require.NoError(t, lock.Release(t.Context()))
				require.False(t, r.Exists(name))
			})
		})
	}
}

func TestCompanionKeysShareTheSlotOfTheLock(t *testing.T) {
	lk := New(redis.NewClient(clientOptions(neverDial(t))), WithPrefix(""))
	for name, want := range names {
		keys, err := lk.keysFor(name)
		require.NoError(t, err)
		require.Equal(t, name, keys.lock)
		require.Equal(t, strings.TrimSuffix(keys.fence, ":fence"), strings.TrimSuffix(keys.queue, ":queue"))
		if want.fence != "" {
			require.Equal(t, want.fence, keys.fence)
			for _, key := range []string{keys.lock, keys.fence, keys.queue} {
				require.Equal(t, keySlot(keys.lock), keySlot(key), short(key))
			}
		}
	}
}

func TestPrefixBelongsToTheKey(t *testing.T) {
	for _, c := range []struct{ prefix, name, lock, fence string }{
		{"lock:", "a", "lock:a", "{lock:a}:fence"},
		{"", "a", "a", "{a}:fence"},
		{"{app}:", "a", "{app}:a", "{app}:a:fence"},
		{"{app}:", "x}y", "{app}:x}y", "{app}:x}y:fence"},
		{"p{", "a}b", "p{a}b", "p{a}b:fence"},
	} {
		keys, err := New(redis.NewClient(clientOptions(neverDial(t))), WithPrefix(c.prefix)).keysFor(c.name)
		require.NoError(t, err)
		require.Equal(t, c.lock, keys.lock)
		require.Equal(t, c.fence, keys.fence)
		for _, key := range []string{keys.lock, keys.fence, keys.queue} {
			require.Equal(t, keySlot(keys.lock), keySlot(key))
		}
	}
}

// neverDial fails the test when something is sent.
func neverDial(t *testing.T) dialer {
	return func(context.Context, string, string) (net.Conn, error) {
		t.Error("traffic")
		return nil, errRefused
	}
}

func clusterClient(t *testing.T, dial dialer) *redis.ClusterClient {
	c := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{"127.0.0.1:7000"}, Dialer: dial, MaintNotificationsConfig: clientOptions(nil).MaintNotificationsConfig,
	})
	t.Cleanup(func() { c.Close() })
	return c
}

func TestNamesThatCannotBeMatchedAreRefusedOnClusterBeforeTraffic(t *testing.T) {
	for name, want := range names {
		if want.fence != "" {
			continue
		}
		t.Run(short(name), func(t *testing.T) {
			lk := New(clusterClient(t, neverDial(t)), WithPrefix(""))
			for _, acquire := range acquirers {
				_, err := acquire(lk, t.Context(), name, time.Minute)
				require.ErrorIs(t, err, ErrInvalidName)
				require.Less(t, len(err.Error()), 400)
			}
			_, err := lk.Resume(t.Context(), name, "token", time.Minute)
			require.ErrorIs(t, err, ErrInvalidName)
			_, err = lk.Inspect(t.Context(), name)
			require.ErrorIs(t, err, ErrInvalidName)
		})
	}
}

func TestNamesThatCanBeMatchedAreSentOnCluster(t *testing.T) {
	for name, want := range names {
		if want.fence == "" {
			continue
		}
		t.Run(short(name), func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				var dialled atomic.Bool
				lk := New(clusterClient(t, func(context.Context, string, string) (net.Conn, error) {
					dialled.Store(true)
					return nil, errRefused
				}), WithPrefix(""))
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := lk.TryAcquire(ctx, name, time.Minute)
				require.Error(t, err)
				require.NotErrorIs(t, err, ErrInvalidName)
				require.True(t, dialled.Load())
				requireNoGoroutines(t)
			})
		})
	}
}

// rivals are the keys whose companions may be those of key, or key itself.
func rivals(key string) (keys []string) {
	bare := func(key string) string { return strings.TrimSuffix(strings.TrimPrefix(key, "{"), "}") }
	keys = []string{bare(key), "{" + key + "}"}
	for _, suffix := range []string{":fence", ":queue"} {
		base := strings.TrimSuffix(key, suffix)
		keys = append(keys, base, bare(base), key+suffix, "{"+key+"}"+suffix)
	}
	return slices.DeleteFunc(keys, func(k string) bool { return k == key })
}

func allKeys(lock string) []string {
	k := newLockKeys("", lock, hasHashTag(lock))
	return []string{k.lock, k.fence, k.queue}
}

// requireOwnKeys fails if another name has a key in common with name and both
// are accepted. It reports whether one would have.
func requireOwnKeys(t *testing.T, lk *Locker, prefix, name string) (disputed bool) {
	keys, err := lk.keysFor(name)
	own := allKeys(prefix + name)
	for _, rival := range rivals(prefix + name) {
		theirs := allKeys(rival)
		other, ok := strings.CutPrefix(rival, prefix)
		if !ok || other == "" || !slices.ContainsFunc(theirs, func(k string) bool { return slices.Contains(own, k) }) {
			continue
		}
		disputed = true
		_, errOther := lk.keysFor(other)
		require.False(t, err == nil && errOther == nil, "%q and %q have a key in common: %q", keys.lock, rival, theirs)
	}
	return disputed
}

// The fence of "{t}" would stand where the lock "{t}:fence" stands. Either such
// a name is refused, or the two do not disturb each other.
func TestNoLockIsDisturbedByTheCompanionKeysOfAnother(t *testing.T) {
	for _, c := range []struct {
		prefix string
		names  [2]string
	}{
		{"lock:", [2]string{"{t}", "{t}:fence"}},
		{"lock:", [2]string{"{t}", "{t}:queue"}},
		{"", [2]string{"x", "{x}:fence"}},
		{"", [2]string{"x", "{x}"}},
		{"", [2]string{"a}{b", "{a}{b}"}},
		{"", [2]string{"}", "{}}:fence"}},
	} {
		prefix, names := c.prefix, c.names
		for _, order := range [][2]int{{0, 1}, {1, 0}} {
			t.Run(fmt.Sprintf("%s%s/%s first", prefix, names[1], names[order[0]]), func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					lk := r.locker(WithPrefix(prefix))
					for _, name := range names {
						require.True(t, requireOwnKeys(t, lk, prefix, name))
					}
					var locks []*Lock
					for _, i := range order {
						lock, err := lk.TryAcquire(t.Context(), names[i], time.Minute)
						if err != nil {
							require.ErrorIs(t, err, ErrInvalidName, "nobody holds %s", names[i])
							continue
						}
						locks = append(locks, lock)
					}
					require.NotEmpty(t, locks)
					for _, lock := range locks {
						require.NoError(t, lock.Extend(t.Context(), time.Minute), "%s is still held", lock.Key())
					}
				})
			})
		}
	}
}
