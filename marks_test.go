package redislock

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/e2e3f2a3/redislock/internal/wire"
	"github.com/stretchr/testify/require"
)

// marks are the kinds of marks that may stand in the key of a lock, with the
// token of the one who had it, where they have that; and for how long they
// stand.
var marks = map[string]struct {
	mark func(token string) string
	left time.Duration
}{
	"kept":                   {func(token string) string { return keptMark + token }, time.Minute},
	"kept, with metadata":    {func(token string) string { return keptMark + token + " pod 7" }, time.Minute},
	"revoked":                {func(token string) string { return revokedMark + token }, time.Minute},
	"revoked, with metadata": {func(token string) string { return revokedMark + token + " pod 7" }, time.Minute},
}

func (r *fakeRedis) mark(value string, left time.Duration) {
	r.t.Helper()
	require.NoError(r.t, r.Set("lock:a", value))
	r.SetTTL("lock:a", left)
}

// eachMark runs a test for every kind of mark, which stands where the lock of a
// handle stood.
func eachMark(t *testing.T, test func(t *testing.T, r *fakeRedis, lock *Lock, value string, left time.Duration)) {
	for name, m := range marks {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lock := r.acquire("a", time.Hour)
				value := m.mark(lock.Token())
				r.mark(value, m.left)
				test(t, r, lock, value, m.left)
			})
		})
	}
}

func TestValuesOfALock(t *testing.T) {
	for value, want := range map[string]lockValue{
		"":                     {},
		"tok":                  {token: "tok"},
		"tok some one":         {token: "tok", metadata: "some one"},
		"tok kept:x":           {token: "tok", metadata: "kept:x"},
		"host:42":              {token: "host:42"}, // of another library
		"kept":                 {token: "kept"},
		"Kept:tok":             {token: "Kept:tok"},
		"kept:tok":             {mark: keptMark, data: "tok"},
		"kept:tok some one":    {mark: keptMark, data: "tok", metadata: "some one"},
		"roll:1790:12":         {mark: rollMark, data: "1790:12"},
		"revoked:tok some one": {mark: revokedMark, data: "tok", metadata: "some one"},
	} {
		require.Equal(t, want, parseValue(value), "%q", value)
		require.Equal(t, want == lockValue{token: value} && value != "", isToken(value), "%q", value)
	}
}

// No script takes a mark for the token in it: nothing changes.
func TestNoScriptTakesAMarkForAToken(t *testing.T) {
	const token, next = "tok", "next 60000 5 1 x"
	for name, s := range map[string]struct {
		script *wire.Script
		keys   int
		args   []any // behind the token
		want   string
	}{
		"acquire":             {acquireScript, 3, []any{"tok m", 60000, 60000}, `^0 \d+ \d+ 0$`},
		"extend":              {extendScript, 2, []any{600000, 60000, "set"}, "^0$"},
		"renewal":             {extendScript, 2, []any{600000, 60000, "grow"}, "^0$"},
		"extend, lock alone":  {extendScript, 1, []any{600000, 60000, "set"}, "^0$"},
		"release":             {releaseScript, 3, []any{60000}, "^0$"},
		"release with a next": {releaseScript, 3, []any{60000, "", next, 60000}, "^0$"},
		"release, lock alone": {releaseScript, 1, []any{60000, "ticket", next, 60000}, "^0$"},
		"keep":                {keepScript, 3, []any{60000, "1 60000000"}, "^0$"},
		"keep, lock alone":    {keepScript, 1, []any{60000, "1 60000000"}, "^0$"},
		"raise":               {raiseScript, 2, []any{"9000000000000000", 60000}, "^0$"},
		"retake":              {retakeScript, 2, []any{"tok m", 60000, 60000, "9000000000000000", "5"}, "^0$"},
		"handback":            {handBackScript, 2, []any{"9000000000000000"}, "^0$"},
	} {
		for kind, m := range marks {
			value := m.mark(token)
			if s.script == keepScript && parseValue(value).mark == keptMark {
				continue // its own, see TestKeepScript
			}
			t.Run(name+" at "+kind, func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					r.mark(value, m.left)
					require.NoError(t, r.Set("{lock:a}:fence", "5"))
					keys := []string{"lock:a", "{lock:a}:fence", "{lock:a}:queue"}[:s.keys]
					reply, err := r.admin.Eval(t.Context(), s.script.Source, keys, append([]any{token}, s.args...)...).Result()
					require.NoError(t, err)
					require.Regexp(t, s.want, fmt.Sprint(reply))
					require.Equal(t, value, r.value("lock:a"))
					require.Equal(t, m.left, r.TTL("lock:a"))
					require.Equal(t, "5", r.value("{lock:a}:fence"))
					require.False(t, r.Exists("{lock:a}:queue"))
				})
			})
		}
	}
}

// A name with a mark is taken, by nobody, until the mark ends by itself.
func TestANameWithAMarkIsTakenAndNobodys(t *testing.T) {
	eachMark(t, func(t *testing.T, r *fakeRedis, lock *Lock, value string, left time.Duration) {
		lk := r.locker()
		info, err := lk.Inspect(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, Info{Held: true, Metadata: parseValue(value).metadata, TTL: left, Fence: lock.Fence()}, info)
		_, err = lk.TryAcquire(t.Context(), "a", time.Minute)
		requireFailure(t, err, opAcquire, "lock:a", ErrNotAcquired)
		for _, token := range []string{lock.Token(), value, strings.Fields(value)[0], parseValue(value).mark} {
			_, err = lk.Resume(t.Context(), "a", token, time.Minute)
			requireFailure(t, err, opResume, "lock:a", ErrNotHeld)
		}
		_, err = lock.TTL(t.Context())
		requireFailure(t, err, opTTL, "lock:a", ErrNotHeld)
		requireFailure(t, lock.Extend(t.Context(), time.Hour), opExtend, "lock:a", ErrNotHeld)
		requireFailure(t, lock.Release(t.Context()), opRelease, "lock:a", ErrNotHeld)
		require.Equal(t, value, r.value("lock:a"))
		require.Equal(t, left, r.TTL("lock:a"))
		time.Sleep(left)
		_, err = lk.TryAcquire(t.Context(), "a", time.Minute)
		require.NoError(t, err)
	})
}

// The one who had the lock learns of a mark from its next renewal.
func TestARenewalThatFindsAMarkEndsTheLock(t *testing.T) {
	for name, m := range marks {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lock := r.acquire("a", 3*time.Second, WithWatchdog())
				value := m.mark(lock.Token())
				r.mark(value, time.Hour)
				requireLost(t, lock, time.Second+10*time.Millisecond)
				require.Equal(t, value, r.value("lock:a"))
				requireFailure(t, lock.Release(t.Context()), opRelease, "lock:a", ErrNotHeld)
				require.Equal(t, value, r.value("lock:a"))
			})
		})
	}
}

// Those that wait are served, in their order, as soon as a mark ends.
func TestWaitersBehindAMarkAreServedWhenItEnds(t *testing.T) {
	eachMark(t, func(t *testing.T, r *fakeRedis, lock *Lock, value string, left time.Duration) {
		began := time.Now()
		var waiters []<-chan acquired
		one := r.lockerOn(r.connect(), WithPollInterval(time.Hour))
		for _, lk := range []*Locker{one, one, r.lockerOn(r.connect(), WithPollInterval(time.Hour)), r.lockerOn(r.connect(), WithPollInterval(time.Hour))} {
			waiters = append(waiters, waitFor(t.Context(), lk, "a", time.Hour))
			time.Sleep(10 * time.Millisecond)
		}
		require.Equal(t, value, r.value("lock:a"))
		fence := lock.Fence()
		for _, i := range []int{0, 2, 3, 1} { // processes take turns
			got := <-waiters[i]
			require.NoError(t, got.err)
			require.GreaterOrEqual(t, got.at.Sub(began), left)
			require.LessOrEqual(t, got.at.Sub(began), left+20*time.Millisecond)
			require.Greater(t, got.lock.Fence(), fence)
			fence = got.lock.Fence()
			require.NoError(t, got.lock.Release(t.Context()))
		}
		require.False(t, r.Exists("lock:a"))
		require.False(t, r.Exists("{lock:a}:queue"))
	})
}

// What is taken back of an acquisition leaves a mark alone.
func TestAWaiterThatGivesUpLeavesAMarkAlone(t *testing.T) {
	eachMark(t, func(t *testing.T, r *fakeRedis, _ *Lock, value string, left time.Duration) {
		ctx, cancel := context.WithTimeout(t.Context(), left/2)
		defer cancel()
		_, err := r.locker().Acquire(ctx, "a", time.Hour)
		require.ErrorIs(t, err, ErrNotAcquired)
		synctest.Wait()
		require.Equal(t, value, r.value("lock:a"))
		require.Equal(t, left-left/2, r.TTL("lock:a"))
		require.False(t, r.Exists("{lock:a}:queue"))
	})
}

// A majority of a quorum with the same mark is a name that is taken.
func TestQuorumNodesWithMarks(t *testing.T) {
	for name, m := range marks {
		t.Run(name, func(t *testing.T) {
			inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
				lock := q.acquire("a", time.Hour)
				synctest.Wait()
				value := m.mark(lock.Token())
				for _, r := range q.nodes[:2] {
					r.mark(value, m.left)
				}
				info, err := q.Inspect(t.Context(), "a")
				require.NoError(t, err)
				require.Equal(t, Info{Held: true, Metadata: parseValue(value).metadata, TTL: m.left, Fence: lock.Fence()}, info)
				_, err = lock.TTL(t.Context())
				require.ErrorIs(t, err, ErrNotHeld)
				require.ErrorIs(t, lock.Extend(t.Context(), time.Hour), ErrNotHeld)
				require.ErrorIs(t, lock.Release(t.Context()), ErrNotHeld)
				waiter := waitFor(t.Context(), q.locker(), "a", time.Minute)
				time.Sleep(m.left / 2)
				for _, r := range q.nodes[:2] {
					require.Equal(t, value, r.value("lock:a"))
				}
				got := <-waiter
				require.NoError(t, got.err)
				require.Greater(t, got.lock.Fence(), lock.Fence())
			})
		})
	}
}
