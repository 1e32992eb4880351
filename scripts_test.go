package redislock

import (
	"context"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// --- text of the scripts (fault 44) -----------------------------------------------------

// luaFiles are lua/*.lua and what they include, without comments.
func luaFiles(t *testing.T) map[string]string {
	out := map[string]string{}
	require.NoError(t, fs.WalkDir(sources, "lua", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := sources.ReadFile(file)
		require.False(t, strings.HasPrefix(string(text), "#!"), "%s: a shebang breaks Redis 6", file)
		out[file] = wire.NewScript(string(text)).Source
		return err
	}))
	require.NotEmpty(t, out)
	return out
}

// wholeScripts are the names of all scripts.
func wholeScripts(t *testing.T) (names []string) {
	files, err := fs.Glob(sources, "lua/*.lua")
	require.NoError(t, err)
	for _, file := range files {
		names = append(names, strings.TrimSuffix(path.Base(file), ".lua"))
	}
	require.NotEmpty(t, names)
	return names
}

// Each script names all that it needs, and nothing else.
func TestScriptsIncludeWhatTheyUse(t *testing.T) {
	function := regexp.MustCompile(`(?m)^local function (\w+)`)
	for _, name := range wholeScripts(t) {
		text := wire.NewScript(sourceOf(name)).Source
		for _, made := range function.FindAllStringSubmatch(text, -1) {
			require.Equal(t, 1, strings.Count(text, "function "+made[1]+"("), "%s: %s is included twice", name, made[1])
		}
		require.NotContains(t, text, "include", name)
	}
	require.Panics(t, func() { sourceOf("nothing") })
}

// luacheck is in the Debian package lua-check. It finds what no test would: a
// name that is not defined where it is used, which Redis says only when the
// script gets there.
func TestScriptsPassLuacheck(t *testing.T) {
	check, err := exec.LookPath("luacheck")
	if err != nil {
		if os.Getenv("REDISLOCK_REQUIRE_REDIS") != "" {
			t.Fatal("luacheck is not installed, and REDISLOCK_REQUIRE_REDIS is set")
		}
		t.Skip("luacheck is not installed (Debian: apt-get install lua-check)")
	}
	for _, name := range wholeScripts(t) {
		cmd := exec.Command(check, "--config", ".luacheckrc", "--filename", name+".lua", "-")
		cmd.Stdin = strings.NewReader(sourceOf(name))
		said, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", said)
	}
}

var (
	redisCall   = regexp.MustCompile(`redis\.p?call\(\s*([^,)]*)(?:,\s*([^,)]*))?`)
	keysIndex   = regexp.MustCompile(`KEYS\s*\[([^\]]*)\]`)
	keysAnyhow  = regexp.MustCompile(`\bKEYS\b`)
	literalName = regexp.MustCompile(`^'[A-Z]+'$`)
	literalKey  = regexp.MustCompile(`^KEYS\[[1-9]\]$`)
)

// keyless are the commands that take no key.
var keyless = []string{"'TIME'", "'PUBLISH'", "'PUBSUB'"}

func TestScriptsUseKeysLiterally(t *testing.T) {
	for file, text := range luaFiles(t) {
		for _, call := range redisCall.FindAllStringSubmatch(text, -1) {
			require.Regexp(t, literalName, call[1], "%s: %s: which command it is can be read", file, call[0])
			if !slices.Contains(keyless, call[1]) {
				require.Regexp(t, literalKey, call[2], "%s: %s: the key is KEYS[n], literally", file, call[0])
			}
		}
		for _, index := range keysIndex.FindAllStringSubmatch(text, -1) {
			require.Regexp(t, `^[1-9]$`, index[1], "%s: %s", file, index[0])
		}
		require.Len(t, keysIndex.FindAllString(text, -1), len(keysAnyhow.FindAllString(text, -1)),
			"%s: KEYS is only ever indexed", file)
	}
}

func TestScriptsUseRelativeExpiryOnly(t *testing.T) {
	for file, text := range luaFiles(t) {
		for _, word := range []string{"EXPIREAT", "PXAT", "EXAT", "KEEPTTL", "PERSIST"} {
			require.NotContains(t, strings.ToUpper(text), word, file)
		}
		for line := range strings.Lines(text) {
			if strings.Contains(line, "'SET'") {
				require.Contains(t, line, "'PX'", "%s: every key has an end", file)
			}
		}
	}
}

func TestScriptsHaveNoEndlessLoopAndNeedNothingSpecial(t *testing.T) {
	for file, text := range luaFiles(t) {
		for _, word := range []string{"while", "repeat", "goto", "CONFIG", "CLIENT", "notify-keyspace", "loadstring", "math.random"} {
			require.NotRegexp(t, `\b`+word+`\b`, text, file)
		}
	}
}

func TestScriptsAreSentWithoutComments(t *testing.T) {
	for file, text := range luaFiles(t) {
		require.NotContains(t, text, "--", "%s: comments stand on lines of their own", file)
	}
	for op, s := range scriptsByName {
		require.Len(t, s.Digest, 40, op)
	}
}

func TestScriptsTouchOnlyTheKeysTheyWereGiven(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		var declared []string
		seen := map[string]bool{}
		lock := r.acquire("held", time.Hour)
		r.Server().SetPreHook(func(_ *server.Peer, cmd string, args ...string) bool {
			switch cmd {
			case "EVALSHA", "EVAL":
				n, err := strconv.Atoi(args[1])
				assert.NoError(t, err)
				declared = args[2 : 2+n]
			case "HELLO", "TIME":
			default:
				seen[cmd] = true
				assert.Contains(t, declared, args[0], "%s %v", cmd, args)
			}
			return false
		})
		lk := r.locker()
		for _, name := range []string{"Acquire", "TTL", "Inspect", "Extend", "Resume", "Release"} { // one at a time
			require.NoError(t, calls[name](t.Context(), lk, lock), name)
		}
		_, err := lk.TryAcquire(t.Context(), "a", time.Minute)
		require.ErrorIs(t, err, ErrNotAcquired)
		require.NoError(t, lk.WithLock(t.Context(), "b", time.Second, func(context.Context, *Lock) error {
			time.Sleep(10*time.Second + time.Millisecond)
			return nil
		}))
		require.Subset(t, slices.Collect(maps.Keys(seen)), []string{"GET", "SET", "DEL", "PTTL", "PEXPIRE"})
	})
}

// --- scripts that Redis has forgotten (fault 42) ------------------------------------------------

// useEverything calls all methods that talk to Redis, and lets watchdogs tick.
func useEverything(t *testing.T, lk *Locker) {
	lock, err := lk.Acquire(t.Context(), "a", 3*time.Second, WithWatchdog())
	require.NoError(t, err)
	time.Sleep(time.Minute)
	require.NoError(t, lock.Err())
	_, err = lk.TryAcquire(t.Context(), "a", time.Second)
	require.ErrorIs(t, err, ErrNotAcquired)
	require.NoError(t, lock.Extend(t.Context(), 9*time.Second))
	ttl, err := lock.TTL(t.Context())
	require.NoError(t, err)
	require.Equal(t, 9*time.Second, ttl)
	info, err := lk.Inspect(t.Context(), "a")
	require.NoError(t, err)
	require.True(t, info.Held)

	waiter := waitFor(t.Context(), lk, "a", time.Hour)
	time.Sleep(10 * time.Second)
	require.NoError(t, lock.Release(t.Context()))
	got := <-waiter
	require.NoError(t, got.err)
	resumed, err := lk.Resume(t.Context(), "a", got.lock.Token(), 6*time.Second, WithWatchdog())
	require.NoError(t, err)
	time.Sleep(10 * time.Second)
	require.NoError(t, resumed.Release(t.Context()))
	require.NoError(t, lk.WithLock(t.Context(), "a", time.Second, func(ctx context.Context, _ *Lock) error {
		time.Sleep(10 * time.Second)
		return ctx.Err()
	}))
}

func TestForgottenScriptsAreNotNoticed(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		var bySHA, bySource atomic.Int32
		r.Server().SetPreHook(func(_ *server.Peer, cmd string, args ...string) bool {
			switch cmd {
			case "EVALSHA":
				bySHA.Add(1)
				assert.NoError(t, r.admin.ScriptFlush(context.Background()).Err())
			case "EVAL":
				bySource.Add(1)
			}
			return false
		})
		useEverything(t, r.locker())
		require.Greater(t, bySHA.Load(), int32(60))
		require.InDelta(t, bySHA.Load(), bySource.Load(), 3, "one more trip each, unless another has just made the script known")
		require.Empty(t, r.logged(""))
	})
}

func TestNoScriptIsRecognisedWithAPrefix(t *testing.T) {
	for _, text := range []string{
		"NOSCRIPT No matching script. Please use EVAL.",
		"ERR proxy: NOSCRIPT No matching script",
		"ERR Error running script: -NOSCRIPT No matching script",
	} {
		t.Run(text, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				r.Server().SetPreHook(func(peer *server.Peer, cmd string, args ...string) bool {
					if cmd == "EVALSHA" {
						peer.WriteError(text)
					}
					return cmd == "EVALSHA"
				})
				lock := r.acquire("a", time.Minute)
				require.Equal(t, lock.Token(), r.value("lock:a"))
				require.NoError(t, lock.Release(t.Context()))
			})
		})
	}
}

// --- replies ----------------------------------------------------------------------------------

// A proxy, or a server with other scripts, may answer anything.
func TestUnexpectedRepliesAreErrors(t *testing.T) {
	for name, write := range map[string]func(*server.Peer){
		"empty":     func(p *server.Peer) { p.WriteLen(0) },
		"too short": func(p *server.Peer) { p.WriteLen(1); p.WriteBulk("x") },
		"strings":   func(p *server.Peer) { p.WriteLen(3); p.WriteBulk("a"); p.WriteBulk("b"); p.WriteBulk("c") },
		"nulls":     func(p *server.Peer) { p.WriteLen(3); p.WriteNull(); p.WriteNull(); p.WriteNull() },
		"no array":  func(p *server.Peer) { p.WriteOK() },
		"null":      func(p *server.Peer) { p.WriteNull() },
		"half":      func(p *server.Peer) { p.WriteLen(2); p.WriteInt(1); p.WriteBulk("x") },
	} {
		for call, do := range calls {
			t.Run(name+"/"+call, func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					lk := r.locker()
					lock := r.acquire("held", time.Hour)
					r.Server().SetPreHook(func(peer *server.Peer, cmd string, args ...string) bool {
						if cmd == "EVALSHA" {
							write(peer)
						}
						return cmd == "EVALSHA"
					})
					err := do(t.Context(), lk, lock)
					if call == "Release" && name == "half" {
						return // more than was asked for is not wrong
					}
					require.Error(t, err)
					var e *Error
					require.ErrorAs(t, err, &e)
					for _, sentinel := range sentinels {
						require.NotErrorIs(t, err, sentinel)
					}
					requireNoGoroutines(t)
				})
			})
		}
	}
}

func TestCommandsAreNeverRepeatedByTheClient(t *testing.T) {
	require.True(t, wire.NewOnce(t.Context()).NoRetry())
	for client, options := range clients {
		t.Run(client, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				r.answerWith(func(string) string { return "LOADING Redis is loading" })
				_, err := r.lockerOn(r.connect(options)).TryAcquire(t.Context(), "a", time.Minute)
				require.Error(t, err)
				require.Equal(t, wire.Tries, r.requests(opAcquire))
			})
		})
	}
}

// The frequent part of release.lua does what queue.lua would.
func TestReleaseServesTheQueue(t *testing.T) {
	const lock, fence, queue = "lock:a", "{lock:a}:fence", "{lock:a}:queue"
	keys := []string{lock, fence, queue}
	hand := []any{"tok", 31000, "", "next 30000 5 1 live", 10000, "next", 30000}
	for name, test := range map[string]struct {
		args  []any
		queue []string
		reply string // with T for the time
		after []string
	}{
		"its own next is first in the queue": {hand, []string{"next 30000 5 1 live"}, "1 1", nil},
		"dead inbox":                         {hand, []string{"d 30000 5 1 dead"}, "1 1", nil},
		"own ticket":                         {[]any{"tok", 1000, "tok 30000 5 1 live"}, []string{"tok 30000 5 1 live"}, "1", nil},
		"another":                            {hand, []string{"w 3600000 5 1 live"}, "1 2 3600000", []string{"next 30000 5 1 live"}},
		"another, no inbox":                  {[]any{"tok", 31000, "", "next 30000 5 1 -", 0, "next", 30000}, []string{"w 3600000 5 1 live"}, "1 3 3600000", nil},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				sub := r.admin.Subscribe(t.Context(), "lock:inbox:live")
				defer sub.Close()
				_, err := sub.Receive(t.Context())
				require.NoError(t, err)
				require.NoError(t, r.admin.Set(t.Context(), lock, "tok", time.Hour).Err())
				for i, ticket := range test.queue {
					_, _ = r.ZAdd(queue, float64(i), ticket)
				}
				reply, err := r.admin.Eval(t.Context(), releaseScript.Source, keys, test.args...).Text()
				if err != nil {
					reply = "1"
				}
				require.Regexp(t, "^"+test.reply+"( [0-9]{15,16}){0,2}$", reply)
				left, _ := r.ZMembers(queue)
				require.Equal(t, test.after, left)
				if r.Exists(lock) {
					require.Greater(t, r.TTL(fence), r.TTL(lock)-time.Second)
				}
				if len(test.after) > 0 {
					require.Equal(t, 10*time.Second, r.TTL(queue))
				}
			})
		})
	}
}

// A number is the reply of a release or a renewal only.
func TestNumbersAsReplies(t *testing.T) {
	_, err := parseAcquire(wire.ReplyDone)
	require.Error(t, err)
	released, err := parseRelease(wire.ReplyDone)
	require.NoError(t, err)
	require.True(t, released.found)
}

// Resume asks for the fence, and a lock without one would defeat fencing.
func TestResumeNeedsAFence(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", time.Minute)
		r.pretend[opExtend] = "1 0"
		_, err := r.locker().Resume(t.Context(), "a", lock.Token(), time.Minute)
		require.ErrorContains(t, err, "unexpected script reply")
	})
}
