package servertest_test

import (
	"strings"
	"testing"
	"time"

	"github.com/e2e3f2a3/redislock"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// For a while no connection can be set up, as when a password is rotated: those
// who hold and those who wait ride it out, and a first request fails at once.
func TestServerConnectionsThatCannotBeSetUpForAWhile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, how := range map[string]struct{ begin, end, says string }{
		"another password":       {"resetpass >another", "resetpass >secret", "WRONGPASS"},
		"the user is off":        {"off", "on", "WRONGPASS"},
		"the user is gone":       {"", strings.Join(append(rights(), "+select", "on", ">secret"), " "), "WRONGPASS"},
		"no right to a database": {"-select", "+select", "NOPERM"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, lock, user := t.Context(), t.Name(), strings.NewReplacer(" ", "-", "/", "-").Replace(t.Name())
			log := &journal{}
			direct := r.server.Client(t, func(o *redis.Options) { o.DB = 1 })
			r.server.Do(t, words("ACL SETUSER "+user+" reset on >secret +select "+strings.Join(rights(), " "))...)
			locker := func() *redislock.Locker {
				client := r.relay.Client(t, func(o *redis.Options) { o.Username, o.Password, o.DB = user, "secret", 1 })
				return (&rig{log: log}).lockerWith(client)
			}
			holder := hold(t, locker(), lock, 4*time.Second, redislock.WithWatchdog())
			waiter := locker()
			wait := started(func() (*redislock.Lock, error) { return waiter.Acquire(ctx, lock, time.Minute) })
			subscribed := func() bool {
				tickets := direct.ZRange(ctx, queueOf(lock), 0, -1).Val()
				if len(tickets) != 1 {
					return false
				}
				inbox := "lock:inbox:" + strings.Fields(tickets[0])[4]
				return direct.PubSubNumSub(ctx, inbox).Val()[inbox] == 1
			}
			require.True(t, eventually(soon, subscribed), "nobody waits")

			if how.begin == "" {
				r.server.Do(t, "ACL", "DELUSER", user) // closes its connections
			} else {
				r.server.Do(t, words("ACL SETUSER "+user+" "+how.begin)...)
				require.NoError(t, direct.ClientKillByFilter(ctx, "USER", user).Err())
			}
			require.True(t, eventually(soon, func() bool { return len(log.about("waiting for a lock", how.says)) == 1 }), "%v", log.about())
			fresh := locker()
			for _, acquire := range []func() (*redislock.Lock, error){
				func() (*redislock.Lock, error) { return fresh.Acquire(ctx, "other", time.Minute) },
				func() (*redislock.Lock, error) { return fresh.TryAcquire(ctx, "other", time.Minute) },
			} {
				var err error
				took := timed(func() { _, err = acquire() })
				require.ErrorContains(t, err, how.says)
				assert.NotErrorIs(t, err, redislock.ErrNotAcquired)
				assert.LessOrEqual(t, took, wakeUp)
			}
			time.Sleep(1500 * time.Millisecond) // the outage itself: a renewal falls into it
			require.NoError(t, holder.Err())
			r.server.Do(t, words("ACL SETUSER "+user+" "+how.end)...)
			require.True(t, eventually(5*time.Second, subscribed), "it is back within a poll interval")
			next := hold(t, locker(), lock+" next", time.Minute) // what was refused works again
			require.NoError(t, next.Release(ctx))
			require.True(t, eventually(soon, func() bool { return holder.Extend(ctx, 4*time.Second) == nil }), "renewals ride it out")
			require.NoError(t, holder.Release(ctx))
			released := time.Now()
			got, err := wait(t)
			require.NoError(t, err)
			assert.LessOrEqual(t, time.Since(released), wakeUp)
			require.NoError(t, got.Release(ctx))
			assert.Len(t, log.about(), 1, "nobody was refused for good: %v", log.about())
		})
	}
}

func words(command string) (args []any) {
	for word := range strings.FieldsSeq(command) {
		args = append(args, word)
	}
	return args
}
