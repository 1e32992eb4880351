package redislock

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

func init() { logging.Disable() } // go-redis would write down every refused connection

// inBubble runs test on a fresh fakeRedis inside a synctest bubble: time is
// virtual, passes only while everybody waits, and can be compared exactly.
func inBubble(t *testing.T, test func(t *testing.T, r *fakeRedis)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newFakeRedis(t)) })
}

// fakeRedis is a miniredis with a network in front of it whose replies can be
// lost, and a client on that network.
type fakeRedis struct {
	*miniredis.Miniredis
	t       *testing.T
	net     *network
	client  *redis.Client
	admin   *redis.Client // has a network of its own, which never fails
	journal *journal

	mu      sync.Mutex
	asked   map[string]int // requests by operation
	quick   bool
	runID   string
	pretend map[string]string                       // replies by operation, instead of executing it
	answer  func(op string) string                  // a server error instead of the result; "" is none
	command func(cmd string, args ...string) string // the same for each command inside a script
}

func newFakeRedis(t *testing.T) *fakeRedis {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	t.Cleanup(m.Close)
	t.Cleanup(func() { // let everybody find that the clients are closed: go-redis, and what a failed test left
		time.Sleep(2 * time.Second)
		if t.Failed() {
			time.Sleep(48 * time.Hour)
		}
	})
	r := &fakeRedis{Miniredis: m, t: t, runID: rand.Text(), pretend: map[string]string{}, net: newNetwork(m), journal: &journal{}, asked: map[string]int{}}
	t.Cleanup(r.net.close)
	r.admin = redis.NewClient(clientOptions(func(context.Context, string, string) (net.Conn, error) { return m.Dial() }))
	t.Cleanup(func() { r.admin.Close() })
	for _, s := range allScripts {
		require.NoError(t, r.admin.ScriptLoad(t.Context(), s.Source).Err())
	}
	m.Server().SetPreHook(r.hook)
	r.client = r.connect()
	return r
}

type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

func clientOptions(dial dialer) *redis.Options {
	return &redis.Options{
		Addr:                     "127.0.0.1:6379", // a name would be looked up, outside the bubble
		Dialer:                   dial,
		DisableIdentity:          true,
		PoolSize:                 1000, // who waits for a connection shares timers with other bubbles
		ReadBufferSize:           4 << 10,
		WriteBufferSize:          batchSize,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// connect makes another client, as another process has one.
func (r *fakeRedis) connect(change ...func(*redis.Options)) *redis.Client {
	o := clientOptions(r.net.dial)
	for _, f := range change {
		f(o)
	}
	c := redis.NewClient(o)
	r.t.Cleanup(func() { c.Close() })
	return c
}

// locker makes a Locker that writes its warnings into the journal.
func (r *fakeRedis) locker(opts ...Option) *Locker { return r.lockerOn(r.client, opts...) }

func (r *fakeRedis) lockerOn(client Client, opts ...Option) *Locker {
	return New(client, append([]Option{WithLogger(slog.New(r.journal))}, opts...)...)
}

// acquire is TryAcquire that must succeed.
func (r *fakeRedis) acquire(name string, ttl time.Duration, opts ...AcquireOption) *Lock {
	r.t.Helper()
	lock, err := r.locker().TryAcquire(r.t.Context(), name, ttl, opts...)
	require.NoError(r.t, err)
	return lock
}

var scriptsByName = map[string]*wire.Script{
	opAcquire: acquireScript, opExtend: extendScript, opRelease: releaseScript, opInspect: inspectScript,
}

// What a lock with a minimal hold asks instead of a release.
const opKeep = "keep"

// What only a quorum asks of its nodes.
const (
	opRaise    = "raise"
	opRetake   = "retake"
	opHandBack = "hand back"
)

var allScripts = func() map[string]*wire.Script {
	all := map[string]*wire.Script{opKeep: keepScript, opRaise: raiseScript, opRetake: retakeScript, opHandBack: handBackScript}
	maps.Copy(all, scriptsByName)
	return all
}()

func (r *fakeRedis) hook(peer *server.Peer, cmd string, args ...string) bool {
	r.mu.Lock()
	answer, command, quick, runID := r.answer, r.command, r.quick, r.runID
	op := operation(cmd, args)
	if op != "" {
		r.asked[op]++
	}
	reply := r.pretend[op]
	r.mu.Unlock()
	text := ""
	switch {
	case op != "" && answer != nil:
		text = answer(op)
	case op == "" && command != nil:
		text = command(cmd, args...)
	}
	if cmd == "INFO" { // miniredis does not know this section
		peer.WriteBulk("# Server\r\nredis_version:7.0.15\r\nrun_id:" + runID + "\r\nport:6379\r\n")
		return true
	}
	if text == "" && quick && op != "" {
		reply = r.runQuickly(op, args[2:])
	}
	if text == "" && reply != "" {
		peer.WriteBulk(reply)
		return true
	}
	if text != "" {
		peer.WriteError(text)
	}
	return text != ""
}

// beQuick makes the server execute the scripts' meaning in Go: for tests of ten
// thousand rounds, most of whose time would go into starting Lua.
func (r *fakeRedis) beQuick() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.quick = true
}

func (r *fakeRedis) runQuickly(op string, args []string) string {
	r.mu.Lock() // one script at a time
	defer r.mu.Unlock()
	key, held := args[0], r.value(args[0])
	now := time.Now().UnixMicro()
	token, ttl := args[3], "" // behind the keys
	switch op {
	case opAcquire:
		ttl = args[5]
	case opExtend:
		token, ttl = args[2], args[3]
	}
	switch {
	case op == opRelease && held == token:
		r.Del(key)
		return wire.ReplyDone
	case held != token && op != opAcquire:
		return "0"
	case held != token && held != "":
		return fmt.Sprintf("0 %d %d 0", r.TTL(key).Milliseconds(), now)
	}
	ms, _ := strconv.Atoi(ttl)
	_ = r.Set(key, token)
	r.SetTTL(key, time.Duration(ms)*time.Millisecond)
	if op == opExtend {
		return fmt.Sprint("1 ", now)
	}
	return strconv.FormatInt(now, 10)
}

// operation is what a request asks for; "" if it runs none of our scripts.
func operation(cmd string, args []string) string {
	for op, s := range allScripts {
		if cmd == "EVALSHA" && args[0] == s.Digest || cmd == "EVAL" && args[0] == s.Source {
			return op
		}
	}
	return ""
}

// answerWith makes the server answer requests with the error text that f
// returns, and execute those for which f returns "".
func (r *fakeRedis) answerWith(f func(op string) string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = f
}

// answerOnce makes the server answer the next request of op with an error.
func (r *fakeRedis) answerOnce(op, text string) {
	var once sync.Once
	r.answerWith(func(o string) (answer string) {
		if o == op {
			once.Do(func() { answer = text })
		}
		return answer
	})
}

// onCommand is answerWith for the commands inside scripts.
func (r *fakeRedis) onCommand(f func(cmd string, args ...string) string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.command = f
}

// requests is how many requests of op have reached the server.
func (r *fakeRedis) requests(op string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked[op]
}

// requireSilence fails if f sends anything at all.
func (r *fakeRedis) requireSilence(f func()) {
	r.t.Helper()
	before := r.CommandCount()
	f()
	synctest.Wait()
	require.Equal(r.t, before, r.CommandCount(), "commands sent")
}

// value is what stands at key, "" if there is none.
func (r *fakeRedis) value(key string) string {
	v, err := r.Get(key)
	if err != nil {
		return ""
	}
	return v
}

// take is another holder taking the key over.
func (r *fakeRedis) take(key string) {
	require.NoError(r.t, r.Set(key, "other"))
	r.SetTTL(key, time.Hour)
}

// network carries bytes between clients and the fake Redis, as TCP does: what
// was sent before a connection was closed still arrives.
type network struct {
	m    *miniredis.Miniredis
	done chan struct{}

	mu      sync.Mutex
	open    chan struct{} // closed while bytes pass
	refuse  bool
	latency func() time.Duration // of each direction
	faults  []*fault
	links   map[*link]struct{}
}

// fault happens once, to the next request of its operation.
type fault struct {
	op    string
	kind  faultKind
	until <-chan struct{} // of what is late
}

type faultKind int

const (
	noFault     faultKind = iota
	loseReply             // the request is executed; nothing comes back on this connection any more
	cutReply              // the request is executed; the connection is closed instead of the reply
	cutRequest            // the connection is closed before the request arrives
	lateRequest           // the request is executed when until is closed, whatever the client does
	lateReply             // the request is executed; the reply arrives when until is closed
)

func newNetwork(m *miniredis.Miniredis) *network {
	open := make(chan struct{})
	close(open)
	return &network{m: m, done: make(chan struct{}), open: open, links: map[*link]struct{}{},
		latency: func() time.Duration { return 0 }}
}

// close ends all connections; also those that go-redis 9.22 forgets to close
// when their handshake fails (redis/go-redis#3982).
func (n *network) close() {
	close(n.done)
	n.cut()
}

// fail adds a fault of this kind for the next request of op, or of the next
// few.
func (n *network) fail(op string, kind faultKind, times int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for range times {
		n.faults = append(n.faults, &fault{op: op, kind: kind})
	}
}

// delay keeps the next request of op on its way until the returned function is
// called.
func (n *network) delay(op string) (arrive func()) { return n.keep(op, lateRequest) }

// delayReply is the same for the reply.
func (n *network) delayReply(op string) (arrive func()) { return n.keep(op, lateReply) }

func (n *network) keep(op string, kind faultKind) (arrive func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	until := make(chan struct{})
	n.faults = append(n.faults, &fault{op: op, kind: kind, until: until})
	return sync.OnceFunc(func() { close(until) })
}

// stall keeps everything that is on its way where it is; also on connections
// that are made later.
func (n *network) stall() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open = make(chan struct{})
}

// flow ends stall.
func (n *network) flow() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.open)
}

// cut closes all connections.
func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for l := range n.links {
		l.near.Close()
	}
}

// down refuses new connections, until up, and closes all there are.
func (n *network) down() { n.setRefuse(true); n.cut() }
func (n *network) up()   { n.setRefuse(false) }

func (n *network) setRefuse(refuse bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refuse = refuse
}

func (n *network) setLatency(f func() time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.latency = f
}

// link is one connection: near is the end of the client, far that of the
// server.
type link struct {
	near, far net.Conn
	mu        sync.Mutex
	fate      fault // of the replies
}

func (l *link) setFate(f fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fate = f
}

func (l *link) getFate() fault {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fate
}

var errRefused = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

func (n *network) dial(context.Context, string, string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.refuse {
		return nil, errRefused
	}
	far, err := n.m.Dial()
	if err != nil {
		return nil, err
	}
	client, near := net.Pipe()
	l := &link{near: near, far: far}
	n.links[l] = struct{}{}
	go n.upstream(l)
	go n.downstream(l)
	return client, nil
}

// batchSize is more than what is sent at a time, so that it passes as one.
const batchSize = 64 << 10

func (n *network) upstream(l *link) {
	defer l.far.Close()
	defer n.forget(l)
	buf := make([]byte, batchSize)
	for {
		size, err := l.near.Read(buf)
		if err != nil {
			return
		}
		f := n.faultFor(buf[:size])
		switch f.kind {
		case loseReply, cutReply, lateReply:
			l.setFate(f)
		case cutRequest:
			l.near.Close()
			return
		case lateRequest:
			select {
			case <-f.until:
			case <-n.done:
			}
		}
		if !n.pass(n.arrival()) {
			return
		}
		if _, err := l.far.Write(buf[:size]); err != nil {
			return
		}
	}
}

// packet is on its way until it is due.
type packet struct {
	bytes []byte
	due   time.Time
}

// downstream keeps what is on its way, as sockets do: the server answers the
// requests of a batch one by one, and a client reads nothing before it has sent
// all.
func (n *network) downstream(l *link) {
	packets := make(chan packet, 1000)
	go n.deliver(l, packets)
	defer close(packets)
	buf := make([]byte, 4<<10)
	for {
		size, err := l.far.Read(buf)
		if err != nil {
			return
		}
		packets <- packet{bytes.Clone(buf[:size]), n.arrival()}
	}
}

func (n *network) deliver(l *link, packets <-chan packet) {
	defer func() {
		l.near.Close()
		for range packets { // until the other end is closed as well
		}
	}()
	for p := range packets {
		fate := l.getFate()
		switch fate.kind {
		case loseReply:
			continue
		case cutReply:
			return
		case lateReply:
			select {
			case <-fate.until:
			case <-n.done:
			}
		}
		if !n.pass(p.due) {
			return
		}
		if _, err := l.near.Write(p.bytes); err != nil {
			return
		}
	}
}

func (n *network) forget(l *link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.links, l)
}

func (n *network) faultFor(bytes []byte) fault {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, f := range n.faults {
		if asksFor(bytes, f.op) {
			n.faults = slices.Delete(n.faults, i, i+1)
			return *f
		}
	}
	return fault{}
}

func asksFor(request []byte, op string) bool {
	s := allScripts[op]
	return bytes.Contains(request, []byte(s.Digest)) || bytes.Contains(request, []byte(s.Source))
}

func (n *network) arrival() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return time.Now().Add(n.latency())
}

// pass waits until bytes that are due may pass, and reports false at the end of
// the test.
func (n *network) pass(due time.Time) bool {
	if wait := time.Until(due); wait > 0 {
		select {
		case <-time.After(wait):
		case <-n.done:
			return false
		}
	}
	n.mu.Lock()
	open := n.open
	n.mu.Unlock()
	select {
	case <-open:
		return true
	case <-n.done:
		return false
	}
}

// journal is a slog.Handler that keeps what is logged.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) Enabled(context.Context, slog.Level) bool { return true }
func (j *journal) WithAttrs([]slog.Attr) slog.Handler       { return j }
func (j *journal) WithGroup(string) slog.Handler            { return j }

func (j *journal) Handle(_ context.Context, r slog.Record) error {
	line := r.Level.String() + " " + r.Message
	r.Attrs(func(a slog.Attr) bool {
		line += " " + a.String()
		return true
	})
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
	return nil
}

// logged returns the lines of the log that contain text.
func (r *fakeRedis) logged(text string) (lines []string) {
	synctest.Wait() // a loss is written down after it was signalled
	r.journal.mu.Lock()
	defer r.journal.mu.Unlock()
	for _, line := range r.journal.lines {
		if strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}

var sentinels = []error{ErrNotAcquired, ErrNotHeld, ErrLost, ErrReleased, ErrDetached, ErrInvalidTTL, ErrInvalidName, ErrInvalidMetadata}

// requireFailure checks everything that is promised of every error: it is an
// *Error with op and key, both stand in its text, it Is each of causes, and
// none of the package's other errors.
func requireFailure(t *testing.T, err error, op, key string, causes ...error) {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, op, e.Op)
	require.Equal(t, key, e.Key)
	require.Contains(t, err.Error(), "redislock: "+op+" ")
	require.Contains(t, err.Error(), key)
	for _, cause := range causes {
		require.ErrorIs(t, err, cause)
	}
	for _, sentinel := range sentinels {
		if !slices.Contains(causes, sentinel) {
			require.NotErrorIs(t, err, sentinel)
		}
	}
}

func requireNotContextError(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err)
	require.NotErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
}

func isDone(lock *Lock) bool {
	select {
	case <-lock.Done():
		return true
	default:
		return false
	}
}

// awaitEnd waits for something that a broken watchdog would never let happen.
func awaitEnd(t *testing.T, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(10 * time.Minute):
		require.Fail(t, "no end in sight")
	}
}

// requireLost fails unless the lock's end is signalled within the given time,
// as a loss.
func requireLost(t *testing.T, lock *Lock, within time.Duration) {
	t.Helper()
	select {
	case <-lock.Done():
	case <-time.After(within):
		require.Fail(t, "the loss is not signalled")
	}
	requireFailure(t, lock.Err(), opHold, lock.Key(), ErrLost)
}

// requireNoGoroutines fails if the package still runs one when everything that
// was abandoned has timed out.
func requireNoGoroutines(t *testing.T) {
	t.Helper()
	time.Sleep(30 * time.Second) // beyond the time-outs of go-redis and of undo
	synctest.Wait()
	require.Empty(t, packageGoroutines())
}

var createdBy = regexp.MustCompile(`created by github\.com/e2e3f2a3/redislock\..*\n\t(\S+\.go):`)

// packageGoroutines returns the stacks of the goroutines that were started by
// the package, and not by its tests.
func packageGoroutines() (stacks []string) {
	buf := make([]byte, 1<<20)
	for len(buf) == runtime.Stack(buf, true) {
		buf = make([]byte, 2*len(buf))
	}
	all := string(buf[:runtime.Stack(buf, true)])
	for stack := range strings.SplitSeq(all, "\n\n") {
		m := createdBy.FindStringSubmatch(stack)
		if m != nil && !strings.HasSuffix(m[1], "_test.go") {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}

// elapsed is how long f takes on the bubble's clock.
func elapsed(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

// keySlot is the Redis Cluster slot of a key, written from the specification
// and not from the code under test.
func keySlot(key string) uint16 {
	if tag, ok := hashTag(key); ok {
		key = tag
	}
	var crc uint16
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			crc <<= 1
			if carry {
				crc ^= 0x1021
			}
		}
	}
	return crc % 16384
}

// hashTag is what stands between the first '{' and the first '}' behind it, if
// that is not empty.
func hashTag(key string) (tag string, ok bool) {
	open := strings.IndexByte(key, '{')
	length := strings.IndexByte(key[open+1:], '}')
	if open < 0 || length < 1 {
		return "", false
	}
	return key[open+1 : open+1+length], true
}

func TestKeySlotOfTheTestsFollowsTheSpecification(t *testing.T) {
	require.EqualValues(t, 0x31C3, keySlot("123456789")) // the specification's reference value
	require.EqualValues(t, 12182, keySlot("foo"))
	require.Equal(t, keySlot("foo"), keySlot("{foo}:fence"))
	require.Equal(t, keySlot("bar"), keySlot("foo{bar}{zap}"))
	require.Equal(t, keySlot("{bar"), keySlot("foo{{bar}}zap"))
	require.NotEqual(t, keySlot(""), keySlot("foo{}{bar}"))
}

var errWork = errors.New("work failed")
