package redislock

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// setUpFailure is a way in which no connection can be set up for a while. The
// scripts of tests have been loaded before, and connections that are made
// already work on.
type setUpFailure struct {
	options func(*redis.Options)
	prepare func(r *fakeRedis) // before the first connection
	begin   func(r *fakeRedis)
	end     func(r *fakeRedis)
	says    string
}

var setUpFailures = map[string]setUpFailure{
	"another password": {
		options: func(o *redis.Options) { o.Password = "old" },
		prepare: func(r *fakeRedis) { r.demand("old") },
		begin:   func(r *fakeRedis) { r.demand("new") },
		end:     func(r *fakeRedis) { r.demand("old") },
		says:    "WRONGPASS",
	},
	"no password is known": {
		begin: func(r *fakeRedis) {
			r.demand("new")
			r.onCommand(func(cmd string, _ ...string) string { // miniredis confirms these all the same
				return map[bool]string{true: "NOAUTH Authentication required."}[cmd == "SUBSCRIBE" || cmd == "HELLO"]
			})
		},
		end:  func(r *fakeRedis) { r.demand(""); r.onCommand(nil) },
		says: "NOAUTH",
	},
	"an option is not permitted": {
		options: func(o *redis.Options) { o.ClientName = "worker" },
		begin: func(r *fakeRedis) {
			r.onCommand(func(cmd string, _ ...string) string {
				return map[bool]string{true: "NOPERM this user has no permissions to run the 'client|setname' command"}[cmd == "CLIENT" || cmd == "HELLO"]
			})
		},
		end:  func(r *fakeRedis) { r.onCommand(nil) },
		says: "NOPERM",
	},
}

// demand sets another password. Nothing may be under way: miniredis looks at it without
// its mutex.
func (r *fakeRedis) demand(password string) {
	synctest.Wait()
	r.RequireAuth(password)
}

func (f setUpFailure) connect(r *fakeRedis) *redis.Client {
	if f.options == nil {
		return r.connect()
	}
	return r.connect(f.options)
}

// inSetUpFailures runs test once for each way, on so many servers.
func inSetUpFailures(t *testing.T, servers int, test func(t *testing.T, f setUpFailure, all []*fakeRedis)) {
	for name, f := range setUpFailures {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := make([]*fakeRedis, servers)
				for i := range all {
					all[i] = newFakeRedis(t)
					if f.prepare != nil {
						f.prepare(all[i])
					}
				}
				test(t, f, all)
			})
		})
	}
}

func TestWaitersRideOutThatConnectionsCannotBeSetUp(t *testing.T) {
	inSetUpFailures(t, 1, func(t *testing.T, f setUpFailure, all []*fakeRedis) {
		r := all[0]
		locker := func() *Locker { return r.lockerOn(f.connect(r)) }
		ctx := t.Context()
		lock, err := locker().TryAcquire(ctx, "a", time.Minute, WithWatchdog())
		require.NoError(t, err)
		lk := locker()
		waiter := waitFor(ctx, lk, "a", time.Minute)
		leaves, cancel := context.WithCancel(ctx)
		left := locker()
		leaver := waitFor(leaves, left, "a", time.Minute)
		time.Sleep(time.Second)
		tickets := func(lk *Locker) (n int) {
			queue, _ := r.ZMembers(lock.keys.queue)
			for _, ticket := range queue {
				n += strings.Count(ticket, lk.lines.Inboxes.Of(lock.keys.lock).ID)
			}
			return n
		}
		require.Equal(t, 1, tickets(lk))
		require.Equal(t, 1, tickets(left))

		f.begin(r)
		r.net.cut()
		time.Sleep(10 * time.Second)
		for _, c := range []<-chan acquired{waiter, leaver} {
			select {
			case got := <-c:
				t.Fatalf("it does not wait: %v", got.err)
			default:
			}
		}
		require.Len(t, r.logged("waiting for a lock"), 2, "once for each of the two lines")
		require.Len(t, r.logged(""), 2)
		cancel()
		gaveUp := (<-leaver).err
		requireFailure(t, gaveUp, opAcquire, "lock:a", context.Canceled)
		require.ErrorContains(t, gaveUp, f.says)
		first := locker()
		var took time.Duration
		for _, acquire := range []func(context.Context, string, time.Duration, ...AcquireOption) (*Lock, error){first.TryAcquire, first.Acquire} {
			took += elapsed(func() { _, err = acquire(ctx, "b", time.Minute) })
			requireFailure(t, err, opAcquire, "lock:b")
			require.ErrorContains(t, err, f.says)
		}
		require.Zero(t, took, "as the first answer it surfaces at once")

		f.end(r)
		time.Sleep(defaultPollInterval)
		require.Equal(t, 1, tickets(lk), "its place is kept")
		require.Zero(t, tickets(left), "withdrawn")
		require.NoError(t, lock.Err(), "renewals ride it out")
		require.NoError(t, lock.Release(ctx))
		released := time.Now()
		got := <-waiter
		require.NoError(t, got.err)
		require.Equal(t, released, got.at, "it is told")
		require.NoError(t, got.lock.Release(ctx))
		require.Len(t, r.logged(""), 2)
	})
}

func TestWaitersOnAQuorumRideOutThatConnectionsCannotBeSetUp(t *testing.T) {
	inSetUpFailures(t, 3, func(t *testing.T, f setUpFailure, all []*fakeRedis) {
		locker := func() *Locker {
			clients := make([]Client, len(all))
			for i, r := range all {
				clients[i] = f.connect(r)
			}
			lk, err := NewQuorum(clients)
			require.NoError(t, err)
			return lk
		}
		ctx := t.Context()
		lock, err := locker().TryAcquire(ctx, "a", time.Minute, WithWatchdog())
		require.NoError(t, err)
		fresh := locker()
		waiter := waitFor(ctx, locker(), "a", time.Minute)
		time.Sleep(time.Second)
		for _, r := range all[:2] {
			f.begin(r)
			r.net.cut()
		}
		time.Sleep(25 * time.Second)
		select {
		case got := <-waiter:
			t.Fatalf("it does not wait: %v", got.err)
		default:
		}
		took := elapsed(func() { _, err = fresh.TryAcquire(ctx, "b", time.Minute) })
		require.ErrorContains(t, err, f.says)
		require.LessOrEqual(t, took, 2*nodeTimeout)
		for _, r := range all[:2] {
			f.end(r)
		}
		time.Sleep(25 * time.Second)
		require.NoError(t, lock.Err(), "renewals ride it out")
		released := time.Now()
		require.NoError(t, lock.Release(ctx))
		got := <-waiter
		require.NoError(t, got.err)
		require.LessOrEqual(t, got.at.Sub(released), wire.LastPause)
	})
}
