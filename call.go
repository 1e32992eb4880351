package redislock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// request is one script with its arguments. It is never handed to the client, whose hooks
// may change what they get: each sending gets a copy (see once).
type request struct {
	script *script
	words  [mostWords]any // the command: EVALSHA, the script's name, the number of keys, the keys, the arguments
	length int            // of the command
	limit  time.Duration  // how long one try waits for its reply
	ttl    time.Duration  // that it asks for; 0: it asks for none
	claim  *claim         // of a quorum: what the request's token may have on which node
	alone  bool           // it shares no round trip
	leaves departure      // is told when it is sent; may be nil

	progress *atomic.Int32 // of its call; nil until it has one
}

// departure is told that a request is about to be written to a connection: from then on
// it may be executed. It may be told more than once, and in any goroutine.
type departure interface{ departs() }

// unobserved is for requests of which only the error is to say whether they were sent: what
// was not has nothing to undo.
type unobserved struct{}

func (unobserved) departs() {}

// mostWords has an acquisition with a ticket. A longer request panics when it is made.
const mostWords = 3 + 3 + 8

// request makes a request to run the script. args is not kept.
func (s *script) request(limit time.Duration, keys []any, args ...any) request {
	r := request{script: s, limit: limit, length: 3 + len(keys) + len(args)}
	r.words[0], r.words[1], r.words[2] = "evalsha", s.name, len(keys)
	copy(r.words[3:], keys)
	copy(r.words[3+len(keys):r.length], args)
	return r
}

// line is the command. It is a part of the request, and not for the client.
func (r *request) line() []any { return r.words[:r.length:r.length] }

// withLockAlone is the same request with no other key than the lock.
func (r *request) withLockAlone() request {
	alone := r.script.request(r.limit, r.keys()[:1], r.args()...)
	alone.ttl = r.ttl
	return alone // no claim: a quorum's nodes are no cluster
}

// key is the lock.
func (r *request) key() string { return r.words[3].(string) }

func (r *request) keys() []any { return r.line()[3 : 3+r.words[2].(int)] }

func (r *request) args() []any { return r.line()[3+r.words[2].(int):] }

// mode is the last argument of an extension.
func (r *request) mode() any { return r.words[r.length-1] }

// departing is an argument that tells when it is about to be written to a connection. That
// a request is handed to the client does not say so much: it may find no connection.
type departing struct {
	text  []byte
	to    departure
	place [20]byte // for the text, if it is a number
	told  atomic.Bool
}

// tell makes the word one that tells.
func (a *departing) tell(to departure, word *any) {
	switch value := (*word).(type) {
	case int64:
		a.text = strconv.AppendInt(a.place[:0], value, 10)
	case string:
		a.text = []byte(value)
	default:
		return // the reply says so, too, but later
	}
	a.to = to
	*word = a
}

// MarshalBinary is what go-redis asks when it writes.
func (a *departing) MarshalBinary() ([]byte, error) {
	a.told.Store(true)
	a.to.departs()
	return a.text, nil
}

// stayed tells whether the command with these words was surely not written: nobody has put
// another word in the place of this one, and it was never asked for its text.
func (a *departing) stayed(words []any) bool {
	return a.to != nil && words[len(words)-1] == any(a) && !a.told.Load()
}

func (a *departing) String() string { return string(a.text) }

// counted is an argument that counts how often it was written to a connection.
type counted struct {
	text  string
	times int
}

// MarshalBinary is what go-redis asks when it writes.
func (a *counted) MarshalBinary() ([]byte, error) {
	a.times++
	return []byte(a.text), nil
}

func (a *counted) String() string { return a.text }

// explains tells whether err is why a command failed whose argument this is. A cluster's
// client sends what was redirected, or found no connection, once more. If it then has no
// reply, but its neighbours in the pipeline have failed before it, go-redis leaves the
// error of the earlier try in its place, by which nothing was executed.
func (a *counted) explains(err error) bool {
	_, moved := redis.IsMovedError(err)
	_, asking := redis.IsAskError(err)
	var answer redis.Error
	switch {
	case moved || asking:
		return a.times <= 1
	case errors.As(err, &answer):
		return true
	}
	return a.times == 0 || wire.MaybeExecuted(err)
}

// replyLimit is how long a request about a lock with this TTL waits for its
// reply. Beyond the TTL a reply would be worthless; beyond five seconds (what
// go-redis itself waits by default) a fresh connection is the better bet.
func replyLimit(ttl time.Duration) time.Duration {
	return min(max(ttl, time.Second), 5*time.Second)
}

// replyLimit is the same, but leaves replicas the time to acknowledge, also a batch before
// the request's own, and the nodes of a quorum theirs for two phases.
func (lk *Locker) replyLimit(ttl time.Duration) time.Duration {
	limit := replyLimit(ttl) + 2*lk.opts.replicaTimeout
	if lk.quorum == nil {
		return limit
	}
	return max(limit, 2*lk.quorum.nodeTimeout(ttl)+time.Second)
}

// engine is what stands between a Locker and Redis. Requests are made of it one by
// one; how they travel, and to how many servers, is its matter. The reply it gives
// is one that the script of the request can have given.
type engine interface {
	// start makes a request and does not block. When ctx ends the caller is gone, but
	// the request may still be executed.
	start(ctx context.Context, r request) *call
	// do is start for one who is in no hurry: the call is done when it returns.
	do(ctx context.Context, r request) *call
	// home is the server on which a key stands, and what subscribes there; nil if that
	// is not known, or more than one. It does not block.
	home(key string) (addr string, on subscriber)
	// suspect is told that a request had no reply in time.
	suspect()
	// shortage says that there is no free connection to the server of a key, or nothing.
	shortage(key string) string
	// at is the group commit for the server with this address, as home says it; nil on a
	// quorum, whose nodes have each a Locker.
	at(addr string) *pipeline
}

// subscriber is a client's method.
type subscriber interface {
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
}

// newEngine chooses the engine for a client.
func newEngine(client Client, d deployment, opts options) engine {
	replicas := newAcknowledgement(opts)
	if d.cluster != nil {
		return newCluster(client, d.cluster, replicas, opts.reports)
	}
	plain := &pipeline{client: client, reports: opts.reports, redirected: !d.single}
	if replicas == nil {
		return plain
	}
	acquiring := &pipeline{client: client, reports: opts.reports, redirected: !d.single, replicas: replicas, alone: !d.single}
	return &replicated{pipeline: plain, acquiring: acquiring}
}

// call is one request on its way to Redis.
type call struct {
	ctx     context.Context // of the caller, who may leave before the call is done
	request request
	sent    time.Time // before anything was written: leases are counted from here
	done    <-chan struct{}
	alone   [1]*call // the call, as a batch by itself
	reply   string   // reply and err are set when done is closed
	err     error
	floor   time.Duration // of an extension by a quorum: what an earlier one may yet cut the lease to

	finished chan struct{} // is done; nil if nobody can wait for it
	over     atomic.Bool   // reply and err are set, or about to be
	progress atomic.Int32  // towards the server
	watchers atomic.Pointer[watcher]
}

// watcher is called when a call is done. It is one of a list.
type watcher struct {
	f    func()
	next *watcher
}

// nobodyElse stands in the place of the watchers of a call that is done.
var nobodyElse watcher

// newCall makes a call that is done by the one who asks.
func newCall(ctx context.Context, r request) *call {
	c := &call{ctx: ctx, request: r, sent: time.Now(), done: closed}
	c.alone[0] = c
	if c.request.progress == nil { // else it is the call of a quorum's node
		c.request.progress = &c.progress
	}
	return c
}

// willFinish makes it one that others do.
func (c *call) willFinish() {
	c.finished = make(chan struct{})
	c.done = c.finished
}

// interrupted is a call that nobody sees the end of, since a panic has come between. It is
// over: the request was executed before that, or never.
func interrupted(r request) *call {
	c := newCall(context.Background(), r)
	c.err = errInterrupted
	return c
}

// finish ends the call, unless it has ended: a reply that comes after a call was given
// up is lost.
func (c *call) finish(reply string, err error) {
	if !c.over.CompareAndSwap(false, true) {
		return
	}
	c.reply, c.err = reply, err
	if c.finished == nil {
		return
	}
	close(c.finished)
	for w := c.watchers.Swap(&nobodyElse); w != nil; w = w.next {
		w.f()
	}
}

// whenDone has f called once the call is done: at once if it is. f must not block. It
// takes the place of a goroutine that waits.
func (c *call) whenDone(f func()) {
	if c.finished == nil {
		f()
		return
	}
	w := &watcher{f: f}
	for {
		w.next = c.watchers.Load()
		if w.next == &nobodyElse {
			f()
			return
		}
		if c.watchers.CompareAndSwap(w.next, w) {
			return
		}
	}
}

// isTooLate finishes a call whose caller has left before it was sent.
func (c *call) isTooLate() bool {
	err := c.ctx.Err()
	if err != nil {
		c.finish("", wire.NotSent(err))
	}
	return err != nil
}

// ask sends a request and waits for its reply, for at most its limit and not
// past the end of ctx. When it gives up, the call may still be executed.
//
// Under a ctx that never ends nobody is in a hurry: the time-outs of the client
// are limit enough, and a goroutine is saved.
func (lk *Locker) ask(ctx context.Context, r request) (*call, string, error) {
	if ctx.Done() == nil {
		c := lk.engine.do(ctx, r)
		return c, c.reply, lk.plainError(ctx, c.err, c)
	}
	bounded, cancel := context.WithTimeout(ctx, r.limit)
	defer cancel() // also frees a command that still waits for a connection
	c := lk.engine.start(bounded, r)
	select {
	case <-c.done:
	case <-bounded.Done():
	}
	reply, err := lk.result(ctx, bounded, c)
	return c, reply, err
}

// result is what a call came to for one who waited until it was done or bounded
// ended. A reply counts, also if ctx ended meanwhile.
func (lk *Locker) result(ctx, bounded context.Context, c *call) (string, error) {
	select {
	case <-c.done:
		return c.reply, lk.plainError(ctx, c.err, c)
	default:
		lk.engine.suspect()
		return "", lk.plainError(ctx, bounded.Err(), c)
	}
}

func (c *call) underWay() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// answered tells whether the server has replied, so that the request cannot be
// executed any more.
func (c *call) answered() bool { return !c.underWay() && !wire.MaybeExecuted(c.err) }

// leftNothing tells whether a call that was answered has left nothing in Redis: neither
// lock nor ticket.
func (c *call) leftNothing() bool {
	if c.err != nil {
		return !errors.Is(c.err, ErrNotReplicated)
	}
	var n [4]int64 // in all replies the first says whether there is something, and the last of four whether it is queued
	_, err := integers(c.reply, n[:])
	return err == nil && n[0] == 0 && n[3] == 0
}

// askedBefore tells whether the request is a question that is known to have been
// executed before a time of the server.
func (c *call) askedBefore(server int64) bool {
	if c.request.script != acquireScript || c.err != nil {
		return false
	}
	r, err := parseAcquire(c.reply)
	return err == nil && r.server < server
}

// plainError tells the end of the caller's ctx from the end of our own limit:
// both arrive as a context error of the bounded ctx.
func (lk *Locker) plainError(ctx context.Context, err error, c *call) error {
	switch {
	case err == nil || !wire.IsContextError(err):
		return err
	case ctx.Err() != nil:
		return contextError(ctx)
	default:
		return c.noReply(c.request.limit, lk.engine)
	}
}

// noReply is the error of a call whose time was over, with what is known of why.
func (c *call) noReply(limit time.Duration, e engine) error {
	progress := c.request.progress.Load()
	return wire.NoReplyAfter(limit, progress, progress != wire.MayBeWritten && !c.underWay(), e.shortage(c.request.key()))
}

// persist repeats a request that failed in transport a few times. It is for
// requests whose repetition is harmless and whose failure needs no undoing.
func (lk *Locker) persist(ctx context.Context, r request) (c *call, reply string, err error) {
	err = wire.Repeat(ctx, func(alone bool) (enough bool, err error) {
		r.alone = alone
		c, reply, err = lk.ask(ctx, r)
		return false, err
	})
	return c, reply, ended(ctx, err)
}

// ended makes the last failure of several tries a context error, if it was ctx that
// ended them. (With ContextTimeoutEnabled, a time-out of the socket comes a moment
// before the end of ctx.)
func ended(ctx context.Context, err error) error {
	if deadline, limited := ctx.Deadline(); limited && wire.IsTimeout(err) && !time.Now().Before(deadline) {
		<-ctx.Done()
	}
	if err == nil || ctx.Err() == nil || wire.IsContextError(err) || !wire.IsTransient(err) {
		return err
	}
	return fmt.Errorf("%w: %w", contextError(ctx), err)
}
