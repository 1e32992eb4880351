package servertest_test

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"log/slog"
	"regexp"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/e2e3f2a3/redislock"
	"github.com/e2e3f2a3/redislock/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	// soon bounds events that have no bound of their own in the contract.
	soon = 5 * time.Second
	// undoBound is how long Acquire's documentation gives a late request to be
	// undone.
	undoBound = 15 * time.Second
	// tick is how often a condition is looked at that makes no event.
	tick = 2 * time.Millisecond
)

// rig is a real server, a relay in front of it, and what tests want to know.
type rig struct {
	server *redistest.Server
	relay  *redistest.Relay
	direct *redis.Client // past the relay
	log    *journal
	label  string

	mu       sync.Mutex
	learning string
	scripts  map[string]map[string]bool // operation -> hashes of its scripts
	awaited  []*awaited
}

// awaited is the n-th request from now that matches.
type awaited struct {
	match redistest.Match
	left  int
	done  chan struct{}
}

var rigs atomic.Int64

// newRig starts a server with a relay. The goroutines that the test starts from
// now on are told apart from those of parallel tests by a label.
func newRig(t *testing.T, opts ...redistest.Option) *rig {
	t.Helper()
	return newRigOn(t, redistest.Start(t, opts...))
}

func newRigOn(t *testing.T, server *redistest.Server) *rig {
	t.Helper()
	r := &rig{
		server:  server,
		relay:   redistest.NewRelay(t, server.Addr()),
		direct:  server.Client(t, redistest.NoRetry),
		log:     &journal{},
		label:   fmt.Sprintf("rig-%d", rigs.Add(1)),
		scripts: make(map[string]map[string]bool),
	}
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("rig", r.label)))
	r.relay.OnRequest(r.onRequest)
	r.learn(t)
	r.relay.ForgetRequests()
	return r
}

// onRequest learns which script an operation uses, and wakes who awaits it.
func (r *rig) onRequest(args []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if hash := scriptOf(args); hash != "" && r.learning != "" {
		if r.scripts[r.learning] == nil {
			r.scripts[r.learning] = make(map[string]bool)
		}
		r.scripts[r.learning][hash] = true
	}
	kept := r.awaited[:0]
	for _, a := range r.awaited {
		if a.match(args) {
			a.left--
		}
		if a.left == 0 {
			close(a.done)
			continue
		}
		kept = append(kept, a)
	}
	r.awaited = kept
}

// scriptOf is the hash of the script that a request runs, or "".
func scriptOf(args []string) string {
	switch {
	case len(args) > 1 && strings.EqualFold(args[0], "evalsha"):
		return strings.ToLower(args[1])
	case len(args) > 1 && strings.EqualFold(args[0], "eval"):
		sum := sha1.Sum([]byte(args[1]))
		return hex.EncodeToString(sum[:])
	}
	return ""
}

// learn finds out by use which scripts belong to which operation, so that tests
// depend on no detail of the protocol. The server knows the scripts afterwards.
func (r *rig) learn(t *testing.T) {
	t.Helper()
	ctx, lk := t.Context(), redislock.New(r.relay.Client(t))
	during := func(op string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.learning = op
	}
	during("acquire")
	lock, err := lk.TryAcquire(ctx, "learn", time.Minute)
	require.NoError(t, err)
	_, err = lk.TryAcquire(ctx, "learn", time.Minute)
	require.ErrorIs(t, err, redislock.ErrNotAcquired)
	during("extend")
	require.NoError(t, lock.Extend(ctx, time.Minute))
	during("resume")
	_, err = lk.Resume(ctx, "learn", lock.Token(), time.Minute)
	require.NoError(t, err)
	during("inspect")
	_, err = lk.Inspect(ctx, "learn")
	require.NoError(t, err)
	_, err = lock.TTL(ctx)
	require.NoError(t, err)
	during("release")
	require.NoError(t, lock.Release(ctx))
	during("acquire")
	lock, err = lk.Acquire(ctx, "learn", 300*time.Millisecond, redislock.WithWatchdog())
	require.NoError(t, err)
	during("tick")
	r.await(t, r.next(1, redistest.Any()), "a renewal")
	during("")
	_ = lock.Release(ctx) // it may be lost by now, if the machine is busy
}

// op matches the requests of an operation: "acquire", "extend", "resume",
// "inspect", "release", or "tick" for a renewal by the watchdog.
func (r *rig) op(op string) redistest.Match {
	hashes := r.scripts[op]
	return func(args []string) bool { return hashes[scriptOf(args)] }
}

// opOn is op for one name.
func (r *rig) opOn(op, name string) redistest.Match {
	return redistest.And(r.op(op), on(name))
}

// on matches requests about the lock of this name.
func on(name string) redistest.Match {
	key := keyOf(name)
	return func(args []string) bool {
		for _, arg := range args[1:] {
			if arg == key {
				return true
			}
		}
		return false
	}
}

func keyOf(name string) string   { return "lock:" + name }
func fenceOf(name string) string { return "{lock:" + name + "}:fence" }
func queueOf(name string) string { return "{lock:" + name + "}:queue" }

// queued is the number of tickets in the queue for this name.
func (r *rig) queued(name string) int64 {
	return r.direct.ZCard(context.Background(), queueOf(name)).Val()
}

// inboxes are the channels on which somebody listens for grants.
func (r *rig) inboxes() []string {
	return r.direct.PubSubChannels(context.Background(), "lock:inbox:*").Val()
}

// subscribers is the number of connections that are subscribed to anything.
func (r *rig) subscribers() (n int) {
	for line := range strings.Lines(r.direct.ClientList(context.Background()).Val()) {
		if !strings.Contains(line, " sub=0 psub=0 ") {
			n++
		}
	}
	return n
}

// next is closed when the n-th request from now that matches reaches the relay.
func (r *rig) next(n int, match redistest.Match) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := &awaited{match: match, left: n, done: make(chan struct{})}
	r.awaited = append(r.awaited, a)
	return a.done
}

// await fails the test if the event does not come soon.
func (r *rig) await(t testing.TB, event <-chan struct{}, what string) {
	t.Helper()
	awaitWithin(t, event, soon, what)
}

func awaitWithin(t testing.TB, event <-chan struct{}, within time.Duration, what string) {
	t.Helper()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-event:
	case <-timer.C:
		require.FailNow(t, "no "+what+" within "+within.String())
	}
}

// locker is a Locker behind the relay, whose warnings go to the rig's journal.
func (r *rig) locker(t testing.TB, opts ...func(*redis.Options)) *redislock.Locker {
	return r.lockerWith(r.relay.Client(t, opts...))
}

func (r *rig) lockerWith(client redislock.Client, opts ...redislock.Option) *redislock.Locker {
	return redislock.New(client, append([]redislock.Option{redislock.WithLogger(slog.New(r.log))}, opts...)...)
}

// impatient are client options that keep a test with lost replies short.
func impatient(o *redis.Options) { patience(150 * time.Millisecond)(o) }

func patience(d time.Duration) func(*redis.Options) {
	return func(o *redis.Options) {
		o.ReadTimeout, o.WriteTimeout = d, d
		o.DialTimeout, o.DialerRetries = 2*time.Second, 1
	}
}

func noRetries(o *redis.Options)       { o.MaxRetries = -1 }
func contextTimeouts(o *redis.Options) { o.ContextTimeoutEnabled = true }
func defaultOptions(*redis.Options)    {}

// disconnect makes the server unreachable for clients of the relay.
func (r *rig) disconnect() { r.relay.Refuse(true); r.relay.Cut() }
func (r *rig) reconnect()  { r.relay.Refuse(false) }

// hold acquires a lock at once or fails the test.
func hold(t testing.TB, lk *redislock.Locker, name string, ttl time.Duration, opts ...redislock.AcquireOption) *redislock.Lock {
	t.Helper()
	lock, err := lk.TryAcquire(t.Context(), name, ttl, opts...)
	require.NoError(t, err)
	return lock
}

// value is what the lock's key holds, "" if nothing.
func (r *rig) value(t testing.TB, name string) string {
	t.Helper()
	value, err := r.direct.Get(context.Background(), keyOf(name)).Result()
	if err != nil {
		require.ErrorIs(t, err, redis.Nil)
	}
	return value
}

func (r *rig) fence(t testing.TB, name string) int64 {
	t.Helper()
	fence, err := r.direct.Get(context.Background(), fenceOf(name)).Int64()
	require.NoError(t, err)
	return fence
}

func (r *rig) exists(key string) bool {
	n, err := r.direct.Exists(context.Background(), key).Result()
	return err == nil && n == 1
}

// gone waits until the lock's key is gone.
func (r *rig) gone(t testing.TB, name string, within time.Duration) {
	t.Helper()
	free := func() bool {
		n, err := r.direct.Exists(context.Background(), keyOf(name)).Result()
		return err == nil && n == 0
	}
	require.Eventually(t, free, within, tick, "the key of %q is still there", name)
}

// nothingHeld waits until no key of a lock is left.
func (r *rig) nothingHeld(t testing.TB) {
	t.Helper()
	var held []string
	if !eventually(undoBound, func() bool {
		var err error
		held, err = r.direct.Keys(context.Background(), "lock:*").Result()
		return err == nil && len(held) == 0
	}) {
		require.FailNow(t, "locks are left behind", "%v", held)
	}
}

// quiet waits until no goroutine of the package runs on behalf of this rig, but
// for one that listens for grants, which stays a little longer: see
// nobodyWaits.
func (r *rig) quiet(t testing.TB, within time.Duration) {
	t.Helper()
	var left []string
	listens := func(stack string) bool { return strings.Contains(stack, "redislock/internal/line.(*Inbox).listen") }
	if !eventually(within, func() bool { left = slices.DeleteFunc(r.goroutines(), listens); return len(left) == 0 }) {
		require.FailNow(t, "goroutines are left", strings.Join(left, "\n\n"))
	}
}

var ofThePackage = regexp.MustCompile(`e2e3f2a3/redislock(/internal/(lease|line|poll|wire))?\.`)

// goroutines are the stacks of this rig's goroutines that run code of the
// package.
func (r *rig) goroutines() (stacks []string) {
	var profile bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&profile, 1)
	for stack := range strings.SplitSeq(profile.String(), "\n\n") {
		if strings.Contains(stack, `"`+r.label+`"`) && ofThePackage.MatchString(stack) {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}

// eventually is require.Eventually without its failure.
func eventually(within time.Duration, condition func() bool) bool {
	for end := time.Now().Add(within); ; time.Sleep(tick) {
		if condition() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// journal is a slog.Handler that keeps what it is told.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) Enabled(context.Context, slog.Level) bool { return true }
func (j *journal) WithAttrs([]slog.Attr) slog.Handler       { return j }
func (j *journal) WithGroup(string) slog.Handler            { return j }

func (j *journal) Handle(_ context.Context, record slog.Record) error {
	line := record.Message
	record.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
	return nil
}

// about are the lines that contain all the texts.
func (j *journal) about(texts ...string) (lines []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
next:
	for _, line := range j.lines {
		for _, text := range texts {
			if !strings.Contains(line, text) {
				continue next
			}
		}
		lines = append(lines, line)
	}
	return lines
}

// late is by how much call returned later than 50 ms after the end of ctx,
// which is what the contract allows. The 50 ms are those of a timer that starts
// when another goroutine hears of the end, so that a machine that is late
// itself makes no difference.
func late(ctx context.Context, call func()) time.Duration {
	due := make(chan time.Time, 1)
	defer context.AfterFunc(ctx, func() {
		<-time.After(50 * time.Millisecond)
		due <- time.Now()
	})()
	call()
	returned := time.Now()
	if ctx.Err() == nil {
		return 0
	}
	return max(0, returned.Sub(<-due))
}

// jitter is what two timers of one moment may differ by.
const jitter = 5 * time.Millisecond

func isClosed(event <-chan struct{}) bool {
	select {
	case <-event:
		return true
	default:
		return false
	}
}

// timed is how long f takes.
func timed(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

// during runs call, and act as soon as the event has come.
func during[T any](t testing.TB, event <-chan struct{}, call func() (T, error), act func()) (T, error) {
	t.Helper()
	wait := started(call)
	awaitWithin(t, event, soon, "event")
	act()
	return wait(t)
}

// started runs call in a goroutine of its own. What it returns waits for the
// result.
func started[T any](call func() (T, error)) func(testing.TB) (T, error) {
	type result struct {
		value T
		err   error
	}
	results := make(chan result, 1)
	go func() {
		value, err := call()
		results <- result{value, err}
	}()
	return func(t testing.TB) (T, error) {
		t.Helper()
		timer := time.NewTimer(4 * soon)
		defer timer.Stop()
		select {
		case r := <-results:
			return r.value, r.err
		case <-timer.C:
			require.FailNow(t, "the call does not return")
			panic("unreachable")
		}
	}
}

// noticed is a ctx that tells when it is first waited for. A goroutine that
// waits behind another one, or behind a lock of its own Locker, makes no other
// event.
type noticed struct {
	context.Context
	once    sync.Once
	waiting chan struct{}
}

func (c *noticed) Done() <-chan struct{} {
	c.once.Do(func() { close(c.waiting) })
	return c.Context.Done()
}

// inLine starts an Acquire, and returns once it stands in the line of lk.
func (r *rig) inLine(ctx context.Context, t testing.TB, lk *redislock.Locker, name string, ttl time.Duration, opts ...redislock.AcquireOption) func(testing.TB) (*redislock.Lock, error) {
	t.Helper()
	watched := &noticed{Context: ctx, waiting: make(chan struct{})}
	wait := started(func() (*redislock.Lock, error) { return lk.Acquire(watched, name, ttl, opts...) })
	r.await(t, watched.waiting, "goroutine in line")
	return wait
}

// asleep is a Locker that asks seldom unless it has a reason: after as long
// again as it has waited.
func (r *rig) asleep(t testing.TB, opts ...func(*redis.Options)) *redislock.Locker {
	return r.lockerWith(r.relay.Client(t, opts...), redislock.WithPollInterval(time.Hour))
}

// served gets the lock that somebody waits for, checks that it is held, and
// releases it.
func (r *rig) served(t testing.TB, wait func(testing.TB) (*redislock.Lock, error)) *redislock.Lock {
	t.Helper()
	lock, err := wait(t)
	require.NoError(t, err)
	require.NoError(t, lock.Err())
	value := r.value(t, lock.Name())
	assert.Equal(t, lock.Token(), strings.SplitN(value, " ", 2)[0], "the key is somebody else's")
	assert.Equal(t, r.fence(t, lock.Name()), lock.Fence())
	require.NoError(t, lock.Release(context.Background()))
	return lock
}

// settled waits until nothing of those who waited stands in Redis, or is under
// way.
func (r *rig) settled(t testing.TB) {
	t.Helper()
	r.nothingHeld(t)
	r.quiet(t, undoBound)
	queues := func() []string { return r.direct.Keys(context.Background(), "*:queue").Val() }
	require.Eventually(t, func() bool { return len(queues()) == 0 }, soon, tick, "tickets are left in %v", queues())
}

// nobodyWaits waits until no trace of those who waited is left: also no
// channel, and no connection and goroutine that listens for grants.
func (r *rig) nobodyWaits(t testing.TB) {
	t.Helper()
	r.settled(t)
	gone := func() bool { return len(r.inboxes()) == 0 && r.subscribers() == 0 && len(r.goroutines()) == 0 }
	require.Eventually(t, gone, 5*time.Second, tick, "a subscription is left")
}
