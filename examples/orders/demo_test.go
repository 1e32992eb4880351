package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock"
)

// page is a plain writer that also reports when a certain line was written, so
// that tests can act on what a reader sees.
type page struct {
	mu    sync.Mutex
	text  bytes.Buffer
	waits []await
}

type await struct {
	line *regexp.Regexp
	seen chan struct{}
}

func (p *page) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.wake()
	return p.text.Write(b)
}

func (p *page) wake() {
	for i := len(p.waits) - 1; i >= 0; i-- {
		if w := p.waits[i]; w.line.Match(p.text.Bytes()) {
			close(w.seen)
			p.waits = append(p.waits[:i], p.waits[i+1:]...)
		}
	}
}

// await returns a channel that is closed once the page contains pattern.
func (p *page) await(pattern string) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := make(chan struct{})
	p.waits = append(p.waits, await{regexp.MustCompile(pattern), seen})
	p.wake()
	return seen
}

func (p *page) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

func (p *page) has(t *testing.T, pattern string) {
	t.Helper()
	require.Regexp(t, "(?m)"+pattern, p.String())
}

func (p *page) hasNot(t *testing.T, pattern string) {
	t.Helper()
	require.NotRegexp(t, "(?m)"+pattern, p.String())
}

// rig is a demo on a miniredis of its own.
type rig struct {
	*demo
	page  *page
	redis *miniredis.Miniredis
}

func newRig(t *testing.T, c config, orders []order) rig {
	t.Helper()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	require.NoError(t, m.Start())
	t.Cleanup(m.Close)
	var locks *redislock.Locker
	if !c.unsafe {
		client := redis.NewClient(&redis.Options{Addr: m.Addr(), MaxRetries: -1})
		t.Cleanup(func() { client.Close() })
		locks = newLocker(client)
	}
	page := &page{}
	d := newDemo(c, orders, newStore(t, orders), locks, page, style{})
	d.authorise = func(ctx context.Context, _ order) error { return ctx.Err() }
	d.patience = time.Millisecond
	return rig{demo: d, page: page, redis: m}
}

// wakeAfter ends the pause the moment the pattern stands on the page: the
// worst one, at which no timer can be trusted to ring.
func (r rig) wakeAfter(pattern string) {
	r.stall = func(ctx context.Context, _ string) error {
		select {
		case <-r.page.await(pattern):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Minute):
			return fmt.Errorf("no line matched %s", pattern)
		}
	}
}

// finish runs the demo to its end, and returns what the database says.
func (r rig) finish(t *testing.T) verdict {
	t.Helper()
	require.NoError(t, r.run(t.Context()))
	v, err := r.store.verdict(t.Context())
	require.NoError(t, err)
	r.printTail(v, false)
	return v
}

// heldLocks are the lock keys in Redis, the fences aside.
func (r rig) heldLocks() []string {
	var held []string
	for _, key := range r.redis.Keys() {
		if strings.HasPrefix(key, "orders-demo:lock:") {
			held = append(held, key)
		}
	}
	return held
}

// testTTL is long enough for a busy machine under the race detector not to lose
// locks that the test does not want lost.
const testTTL = 500 * time.Millisecond

const chargedOnPage = `(?m)w\d+  O-006  charged 1\.06 EUR$`

func TestPausedWorkerIsRefusedAndEveryOrderChargedOnce(t *testing.T) {
	r := newRig(t, config{workers: 4, ttl: testTTL, seed: 1}, someOrders(60))
	r.wakeAfter(chargedOnPage)
	v := r.finish(t)
	require.True(t, v.holds(), r.page)
	require.Equal(t, 1, v.Refusals, r.page)

	r.page.has(t, `w\d+  O-006  lock held.*, fence \d{16}$`)
	r.page.has(t, `w\d+  O-006  PAUSED for 1.5s`)
	r.page.has(t, `w\d+  O-006  delivered again`)
	r.page.has(t, `w\d+  O-006  AWAKE .* cause Is ErrLost: true$`)
	r.page.has(t, `w\d+  O-006  REFUSED: UPDATE … WHERE fence < \d{16} changed no row$`)
	r.page.has(t, `w\d+  O-006  WithLock returned ErrLost, (ErrNotHeld, )?errStale; message not acknowledged$`)
	r.page.has(t, `^  w\d  [ .#-]*#~*X`)
	r.page.has(t, `^  stale writes refused +1$`)
	r.page.has(t, `^OK: every order was charged exactly once \(60 of 60\)\.$`)
	require.Empty(t, r.heldLocks())
	requireRefusedFenceIsOlder(t, r.store)
}

func requireRefusedFenceIsOlder(t *testing.T, s *store) {
	t.Helper()
	var older bool
	require.NoError(t, s.db.QueryRowContext(t.Context(),
		`SELECT r.fence < c.fence AND r.worker <> c.worker FROM refusals r JOIN charges c USING (order_id)`).Scan(&older))
	require.True(t, older)
}

func TestWithoutLockThePausedWorkerChargesAgain(t *testing.T) {
	r := newRig(t, config{workers: 4, ttl: testTTL, seed: 1, unsafe: true}, someOrders(60))
	r.wakeAfter(chargedOnPage)
	v := r.finish(t)
	require.False(t, v.holds())
	require.GreaterOrEqual(t, v.More, 1)
	require.Zero(t, v.Never)
	require.Equal(t, v.Orders, v.Once+v.More)

	r.page.has(t, `w\d+  O-006  CHARGED AGAIN: 1\.06 EUR for the second time$`)
	r.page.has(t, `^DOUBLE CHARGES: \d+ orders? (was|were) charged more than once, \d+ charges? too many\.$`)
	r.page.hasNot(t, `\bOK\b`)
}

// A queue that delivers everything again all the time, to many workers.
func TestChargedOnceHoweverOftenDelivered(t *testing.T) {
	r := newRig(t, config{workers: 16, ttl: testTTL, seed: 7}, someOrders(60))
	r.wakeAfter(chargedOnPage)
	r.queue = newQueue(sentTwice(someOrders(60), r.paused, 7), 5*time.Millisecond)
	r.authorise = func(ctx context.Context, _ order) error { return sleep(ctx, rand.N(3*time.Millisecond)) }
	v := r.finish(t)
	require.True(t, v.holds(), r.page)
	_, redelivered := r.queue.counts()
	require.Positive(t, redelivered)
}

// Alone, the paused worker meets no other: its write is good, and the
// redelivered message must not charge again.
func TestPauseWithNobodyElseAround(t *testing.T) {
	r := newRig(t, config{workers: 1, ttl: 50 * time.Millisecond, seed: 1}, someOrders(10))
	v := r.finish(t)
	require.True(t, v.holds(), r.page)
	require.Zero(t, v.Refusals)
	r.page.has(t, `AWAKE .* cause Is ErrLost: true$`)
	r.page.has(t, `WithLock returned ErrLost`)
}

func TestInterruptionReleasesLocksAndLosesNothing(t *testing.T) {
	r := newRig(t, config{workers: 3, ttl: time.Minute, seed: 1}, someOrders(30))
	ctx, cancel := context.WithCancel(t.Context())
	context.AfterFunc(t.Context(), cancel)
	go func() {
		<-r.page.await("PAUSED")
		cancel()
	}()
	require.NoError(t, r.run(ctx))
	require.NotContains(t, r.heldLocks(), "orders-demo:lock:"+r.paused, "WithLock has released it when it returns")
	require.Eventually(t, func() bool { return len(r.heldLocks()) == 0 }, 10*time.Second, time.Millisecond,
		"redislock takes back in the background what was granted too late")
	v, err := r.store.verdict(t.Context())
	require.NoError(t, err)
	require.Equal(t, v.Orders, v.Once+v.Never)
	r.printTail(v, true)
	r.page.has(t, `^INTERRUPTED: \d+ of 30 orders charged, 0 of them more than once; held locks are released\.$`)
}

func TestRunGivesUpWhenRedisStaysBroken(t *testing.T) {
	r := newRig(t, config{workers: 2, ttl: testTTL, seed: 1}, someOrders(10))
	r.redis.SetError("MISCONF no disk")
	err := r.run(t.Context())
	require.ErrorContains(t, err, "gives up after 8 failures in a row")
	require.ErrorContains(t, err, "MISCONF no disk")
	r.page.has(t, `w\d+  tries again after: .*MISCONF no disk$`)
	v, err := r.store.verdict(t.Context())
	require.NoError(t, err)
	require.Equal(t, 10, v.Never)
	r.printTail(v, false)
	r.page.has(t, `^INCOMPLETE: 0 of 10 orders were charged\.$`)
}

func TestTransientFailureIsRidenOut(t *testing.T) {
	r := newRig(t, config{workers: 2, ttl: testTTL, seed: 1}, someOrders(10))
	r.wakeAfter(`(?m)w\d+  O-001  charged`)
	var once sync.Once
	r.authorise = func(context.Context, order) (err error) {
		once.Do(func() { err = errors.New("provider is away") })
		return err
	}
	require.True(t, r.finish(t).holds(), r.page)
	r.page.has(t, `tries again after: .*provider is away$`)
}

func TestPlainOutputIsNarrowAndHasNoEscapes(t *testing.T) {
	page := &page{}
	code := cli(t.Context(), nil, page, io.Discard, style{})
	require.Zero(t, code, page)
	require.NotContains(t, page.String(), "\x1b")
	lines := strings.Split(page.String(), "\n")
	require.Less(t, len(lines), 60)
	for _, line := range lines {
		require.LessOrEqual(t, len([]rune(line)), 100, line)
	}
	page.has(t, `^300 orders, 5 workers, lease 400ms, embedded Redis, SQLite$`)
	page.has(t, `^orders\.csv \(shipped\): 8 malformed rows skipped$`)
	page.has(t, `^  line   42  unclosed or stray quote$`)
	page.has(t, `^OK: every order was charged exactly once \(300 of 300\)\.$`)
}

func TestColoursOnATerminal(t *testing.T) {
	r := newRig(t, config{workers: 2, ttl: testTTL, seed: 1}, someOrders(10))
	r.style = style{terminal: true}
	r.timeline = newTimeline(r.page, r.style)
	r.stall = func(context.Context, string) error { return nil }
	require.True(t, r.finish(t).holds())
	r.page.has(t, `w\d  O-001  \x1b\[32mAWAKE in time: the lock is still held\x1b\[0m$`)
	r.page.has(t, `\x1b\[1;32mOK: every order was charged exactly once \(10 of 10\)\.\x1b\[0m$`)
	r.page.has(t, "\x1b\\[32m█")
}

// A machine too slow for the lease must not bury the story.
func TestOnlyAFewLossesAreTold(t *testing.T) {
	r := newRig(t, config{workers: 1, ttl: testTTL, seed: 1}, someOrders(10))
	w := worker{demo: r.demo, name: "w1"}
	for _, o := range someOrders(10) {
		w.tellEnd(delivery{order: o}, redislock.ErrNotHeld)
	}
	r.printTail(verdict{}, false)
	require.Equal(t, 4, strings.Count(r.page.String(), "WithLock returned ErrNotHeld"), "three, and the paused order's")
	r.page.has(t, `^9 more locks were lost by workers too slow for a lease of 500ms`)
}
