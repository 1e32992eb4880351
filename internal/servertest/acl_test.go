package servertest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/e2e3f2a3/redislock"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What a user needs for the prefix "lock:". docs/operations.md lists the same.
var (
	// Without one of these something fails at once.
	rightKeys     = []string{"~lock:*", "~{lock:*"}
	rightCommands = []string{
		"+eval", "+evalsha", "+get", "+set", "+del", "+exists", "+pexpire", "+pttl", "+time", "+zcard",
	}
	// Without one of these everything works, but waiting is by polling.
	rightsToBeTold = []string{"&lock:*", "+subscribe", "+publish", "+pubsub|numsub", "+zadd", "+zpopmin"}
	// Without this one, one who gave up waiting may be granted the lock.
	rightToLeave = "+zrem"
	// Without this one, waiters of other processes notice the end of a minimal
	// hold at their next question.
	rightToTellOfAMinimalHold = "+zrange"
	// Without this one nothing is missing: a refusal shows that a subscription
	// is alive.
	rightToProbe = "+ping"
)

// rights are all rights but those that are left out.
func rights(without ...string) []string {
	all := slices.Concat(rightKeys, rightCommands, rightsToBeTold, []string{rightToLeave, rightToTellOfAMinimalHold, rightToProbe})
	return slices.DeleteFunc(all, func(right string) bool { return slices.Contains(without, right) })
}

// user makes an ACL user with these rights alone, and a Locker of it.
func (r *rig) user(t *testing.T, rules ...string) *redislock.Locker {
	t.Helper()
	return r.lockerWith(r.userClient(t, rules...))
}

func (r *rig) userClient(t *testing.T, rules ...string) *redis.Client {
	t.Helper()
	name := strings.NewReplacer(" ", "-", "/", "-").Replace(t.Name())
	args := []any{"ACL", "SETUSER", name, "reset", "on", ">secret"}
	for _, rule := range rules {
		args = append(args, rule)
	}
	r.server.Do(t, args...)
	return r.relay.Client(t, func(o *redis.Options) { o.Username, o.Password = name, "secret" })
}

// exercise uses everything, with the watchdog and another process that waits,
// and returns the first error.
func (r *rig) exercise(t *testing.T, lk, other *redislock.Locker, name string) error {
	t.Helper()
	ctx := t.Context()
	if _, err := lk.Inspect(ctx, name); err != nil {
		return err
	}
	if _, err := lk.Resume(ctx, name, "nobody's", time.Minute); err != nil && !isNotHeld(err) {
		return err
	}
	lock, err := lk.Acquire(ctx, name, 900*time.Millisecond, redislock.WithWatchdog(), redislock.WithMetadata("who"))
	if err != nil {
		return err
	}
	defer func() { _ = lock.Release(ctx) }()
	for _, lk := range []*redislock.Locker{lk, other} {
		if err := contend(ctx, lk, name); !isNotAcquired(err) {
			return err
		}
	}
	if _, err := lock.TTL(ctx); err != nil {
		return err
	}
	if err := lock.Extend(ctx, 900*time.Millisecond); err != nil {
		return err
	}
	before := lock.Until()
	if !eventually(soon, func() bool { return lock.Until().After(before) || lock.Err() != nil }) || lock.Err() != nil {
		return lock.Err()
	}
	return lock.Release(ctx)
}

// contend tries to acquire a lock that is held, until there is an answer.
func contend(ctx context.Context, lk *redislock.Locker, name string) (err error) {
	for limit := 30 * time.Millisecond; limit < soon; limit *= 2 {
		short, cancel := context.WithTimeout(ctx, limit)
		_, err = lk.Acquire(short, name, time.Minute)
		cancel()
		if isNotAcquired(err) || !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	return err
}

// told tells whether a waiter is told of the release of a lock, and has not to
// ask. The release is made as soon as the waiter is ready.
func (r *rig) told(t *testing.T, from, to *redislock.Locker, name string, ready func() bool) bool {
	t.Helper()
	ctx := t.Context()
	lock := hold(t, from, name, time.Minute)
	wait := started(func() (*redislock.Lock, error) { return to.Acquire(ctx, name, time.Minute) })
	require.True(t, eventually(soon, ready), "nobody waits")
	asked := r.relay.Requests(r.opOn("acquire", name))
	require.NoError(t, lock.Release(ctx))
	next, err := wait(t)
	require.NoError(t, err)
	told := r.relay.Requests(r.opOn("acquire", name)) == asked
	assert.Equal(t, next.Token(), r.value(t, name))
	require.NoError(t, next.Release(ctx))
	return told
}

// keptFor releases a lock within its minimal hold, while another process waits.
func (r *rig) keptFor(t *testing.T, lk, other *redislock.Locker, name string) error {
	t.Helper()
	lock := hold(t, lk, name, time.Minute, redislock.WithMinHold(300*time.Millisecond))
	wait := started(func() (*redislock.Lock, error) { return other.Acquire(t.Context(), name, time.Minute) })
	require.True(t, eventually(soon, func() bool { return r.queued(name) > 0 }), "nobody waits")
	if err := lock.Release(t.Context()); err != nil {
		return err
	}
	next, err := wait(t)
	if err != nil {
		return err
	}
	return next.Release(t.Context())
}

func TestServerACLRightsSuffice(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	check := func(t *testing.T, lk, other *redislock.Locker) {
		require.NoError(t, r.exercise(t, lk, other, "a"))
		require.NoError(t, r.exercise(t, lk, other, "{tagged}"), "key and fence are lock:{tagged}…")
		assert.Empty(t, r.value(t, "a"))
		assert.True(t, r.told(t, lk, other, "b", func() bool { return r.queued("b") > 0 }))
		assert.Empty(t, r.log.about("polling"))
		require.NoError(t, r.keptFor(t, lk, other, "c"))
	}
	for _, state := range []string{"first use", "scripts forgotten"} {
		t.Run(state, func(t *testing.T) {
			require.NoError(t, r.direct.ScriptFlush(t.Context()).Err())
			r.server.Do(t, "ACL", "LOG", "RESET")
			lk, other := r.user(t, rights()...), r.user(t, rights()...)
			check(t, lk, other)
			refused, err := r.direct.Do(t.Context(), "ACL", "LOG").Slice()
			require.NoError(t, err)
			assert.Empty(t, refused, "in a script, too")
		})
	}
	t.Run("default user off", func(t *testing.T) {
		lk, other := r.user(t, rights()...), r.user(t, rights()...)
		r.server.Do(t, "ACL", "SETUSER", "default", "-@all", "+zcard", "+get") // the test's own
		check(t, lk, other)
	})
}

// Each right is needed: without it something fails at once, with the server's
// text and the key's name. Redis calls it NOPERM only outside of scripts and
// for keys.
func TestServerACLRightThatIsMissingSurfacesAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, missing := range slices.Concat(rightKeys, rightCommands) {
		t.Run(missing, func(t *testing.T) {
			require.NoError(t, r.direct.ScriptFlush(t.Context()).Err())
			lk := r.user(t, rights(missing)...)
			var err error
			took := timed(func() { err = r.exercise(t, lk, lk, "a") })
			require.Error(t, err)
			assert.Regexp(t, "NOPERM|ERR The user executing the script can't run this command", err.Error())
			assert.Contains(t, err.Error(), "lock:a")
			assert.NotErrorIs(t, err, redislock.ErrNotAcquired)
			assert.NotErrorIs(t, err, redislock.ErrNotHeld)
			assert.LessOrEqual(t, took, time.Second)
			require.NoError(t, r.direct.FlushAll(t.Context()).Err())
		})
	}
}

// Without a right that only the hand-over needs everything works, but one who
// waits has to ask. That there are no pushes is said once.
func TestServerACLWithoutARightToBeToldWaitingIsByPolling(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, missing := range rightsToBeTold {
		t.Run(missing, func(t *testing.T) {
			t.Parallel()
			name := t.Name()
			// Those without which the subscription is refused. Without the
			// others nobody can know that he is not told.
			refused := slices.Contains([]string{"&lock:*", "+subscribe"}, missing)
			log := &journal{} // of the one who waits
			user := func(log *journal) *redislock.Locker {
				client := r.userClient(t, rights(missing)...)
				return redislock.New(client, redislock.WithPollInterval(pollInterval), redislock.WithLogger(slog.New(log)))
			}
			holder, waiter := user(r.log), user(log)
			require.NoError(t, r.exercise(t, holder, waiter, name))
			// A question under way when the lock is released looks like no
			// question, so a few tries are given; a push would be there in each
			// of them.
			told := true
			for try := 2; told && try < 6; try++ {
				again := name + strconv.Itoa(try)
				asks := r.next(4, r.opOn("acquire", again))
				told = r.told(t, holder, waiter, again, func() bool {
					return isClosed(asks) && (!refused || len(log.about("refuses the subscription", "lock:inbox:")) > 0)
				})
			}
			assert.False(t, told)
			want := map[bool]int{true: 1}[refused]
			assert.Len(t, log.about("refuses the subscription"), want)
			assert.Len(t, log.about(), want, "there is nothing else to say")
		})
	}
}

// A refusal of PING is a sign of life of the connection.
func TestServerACLWithoutTheRightToProbe(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	holder, waiter := r.user(t, rights(rightToProbe)...), r.user(t, rights(rightToProbe)...)
	told := r.told(t, holder, waiter, "a", func() bool {
		denied, err := r.direct.Do(t.Context(), "ACL", "LOG").Slice()
		return err == nil && len(denied) > 0 && r.queued("a") > 0
	})
	assert.True(t, told)
	assert.Empty(t, r.log.about())
}

// Without +zrem a ticket stays when its owner leaves. With it, it does not.
func TestServerACLRightToLeaveTheQueue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for may, user := range map[bool][]string{true: rights(), false: rights(rightToLeave)} {
		t.Run(fmt.Sprint(may), func(t *testing.T) {
			name := t.Name()
			require.NoError(t, r.direct.Set(t.Context(), keyOf(name), "other", time.Minute).Err())
			ctx, cancel := context.WithCancel(t.Context())
			wait := r.waiting(ctx, t, r.user(t, user...), name, time.Minute)
			cancel()
			_, err := wait(t)
			require.ErrorIs(t, err, redislock.ErrNotAcquired)
			if may {
				require.Eventually(t, func() bool { return r.queued(name) == 0 }, soon, tick)
				return
			}
			r.quiet(t, soon)
			assert.NotZero(t, r.queued(name))
		})
	}
}

// Without the pattern for the companion keys nobody can acquire, and nothing is
// left half done.
func TestServerACLWithoutCompanionKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lk := r.user(t, rights("~{lock:*")...)
	for method, acquire := range acquirers {
		t.Run(method, func(t *testing.T) {
			var err error
			took := timed(func() {
				err = acquire(t.Context(), lk, "a", func(*redislock.Lock) { t.Error("used without a lock") })
			})
			require.ErrorContains(t, err, "NOPERM")
			require.ErrorContains(t, err, "lock:a")
			assert.NotErrorIs(t, err, redislock.ErrNotAcquired)
			assert.LessOrEqual(t, took, 500*time.Millisecond)
			assert.Empty(t, r.value(t, "a"))
		})
	}
	t.Run("while waiting", func(t *testing.T) {
		require.NoError(t, r.direct.Set(t.Context(), keyOf("a"), "other", time.Minute).Err())
		_, err := lk.Acquire(t.Context(), "a", time.Minute)
		require.ErrorContains(t, err, "NOPERM")
		assert.Equal(t, "other", r.value(t, "a"))
	})
	t.Run("rights withdrawn", func(t *testing.T) {
		name, ctx := "b", t.Context()
		lk := r.lockerWith(r.userClient(t, rights()...), redislock.WithPollInterval(pollInterval))
		require.NoError(t, r.direct.Set(ctx, keyOf(name), "other", time.Minute).Err())
		wait := r.waiting(ctx, t, lk, name, time.Minute)
		user := strings.NewReplacer(" ", "-", "/", "-").Replace(t.Name())
		r.server.Do(t, "ACL", "SETUSER", user, "-evalsha")
		_, err := wait(t)
		require.ErrorContains(t, err, "NOPERM")
	})
}

func isNotHeld(err error) bool     { return errors.Is(err, redislock.ErrNotHeld) }
func isNotAcquired(err error) bool { return errors.Is(err, redislock.ErrNotAcquired) }
