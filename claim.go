package redislock

import (
	"context"
	"slices"
	"time"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// backend is where the locks of a Locker stand: one Redis (single.go), or the
// servers of a quorum (quorum.go). What differs between them stands behind it
// and behind claim.
type backend interface {
	// claim makes the claim of a token.
	claim(s subject) claim
	// inspect reads what stands under the keys of one lock, or under the first
	// of them.
	inspect(ctx context.Context, keys []any) (inspectReply, error)
	// direct reserves a round trip that the caller makes in its own goroutine,
	// see [wire.Engine]; nil: that is not possible now.
	direct() *wire.Direct
	// home is the server on which a key stands, and what subscribes there; nil
	// if that is not known, or nobody is told of a grant there. It does not
	// block.
	home(key string) (addr string, on wire.Subscriber)
	// pushed is told of a grant to a token that nobody waits with.
	pushed(token string)
}

// subject is what a claim is about.
type subject struct {
	keys     lockKeys
	token    lockToken
	metadata string
	ttl      time.Duration
}

// about makes a claim of what embeds it.
func (s *subject) about() *subject { return s }

// value is what the lock key will hold.
func (s *subject) value() any {
	if s.metadata == "" {
		return s.token.arg
	}
	return s.token.text + " " + s.metadata
}

func (s *subject) ticketFor(inbox string) *ticket {
	return &ticket{inbox: inbox, ttl: s.ttl, metadata: s.metadata}
}

// claim is what one token asks of Redis about one name, what it has there, and
// what it may yet get from requests whose outcome is not known. It lives as
// long as the acquisition and the Lock that share it. It is safe for concurrent
// use.
//
// acquire, extend and release make one request, and wait for its reply for as
// long as it is worth, but not past the end of ctx. An error may mean that the
// request was or will be executed all the same, see wire.MaybeExecuted.
type claim interface {
	// about is what it is about. That does not change.
	about() *subject

	acquire(ctx context.Context, t acquireTry) (acquireReply, error)
	extend(ctx context.Context, t extendTry) (extendReply, error)
	release(ctx context.Context, t releaseTry) (releaseReply, error)

	// granted is told that the lock was acquired, and when by the clock of the
	// server, us (0: that is not known). What may yet be executed does no harm
	// before a release.
	granted(server int64)
	// adopt is told that the token was acquired elsewhere.
	adopt()
	// offer is told that a release of another token carries a ticket of this
	// one.
	offer(inbox string)
	// mayGet is told of a request for another token that has no reply, and may
	// give the lock to this one.
	mayGet(c *wire.Call)

	// abandon ends the claim, and leaves what it has where it stands: another
	// process may go on with the token.
	abandon()
	// undo ends the claim, and takes back in the background what it has or may
	// yet get. It may be called again when there may be more.
	undo(ctx context.Context)
	// undoLate takes back, after the lock was released by another claim with
	// its token, what requests of this one may yet bring about.
	undoLate(ctx context.Context)
}

// acquireTry is one try to acquire.
type acquireTry struct {
	ticketing
	alone bool // it shares no round trip
	brief bool // it is one of a TryAcquire

	// After each value of wake, enough tells whether to leave the request to
	// the background, since a grant has come. They are nil where none can come.
	wake   <-chan struct{}
	enough func() bool
}

// extendTry is one try to extend the lease.
type extendTry struct {
	ttl    time.Duration
	grow   bool          // never shorten the lease
	fenced bool          // the reply has to have a fence
	alone  bool          // it shares no round trip
	limit  time.Duration // for the reply; 0: what the TTL makes of it
}

// releaseTry is one try to release.
type releaseTry struct {
	ttl     time.Duration // of the lease
	kept    minHold
	alone   bool // it shares no round trip
	departs wire.Departure
	direct  *wire.Direct // reserved for it, or nil
	next    handOver
}

// successor is one that waits, as the release that brings it along knows it.
type successor interface {
	// bringing is what is to be done for it with a ticket; empty: that is not
	// made yet.
	bringing(inbox, ticket string) handOver
	// undo takes back what was done for it after it had gone.
	undo(ctx context.Context)
}

// handOver is whom a release brings along: the next one in the same process.
type handOver struct {
	to     claim // nil: nobody
	inbox  string
	ticket string
	ttl    time.Duration
}

// traces are what a token has on one server, or may yet get there.
type traces struct {
	stands bool         // something may stand there
	lost   bool         // a request had no reply, and may be executed at any time
	calls  []*wire.Call // requests that are under way
	before int64        // questions that were executed before this time of the server, us, left nothing
	latest int64        // when it granted the lock last, as far as known, us
}

// note adds a request that can put something there.
func (t *traces) note(c *wire.Call) {
	t.calls = append(t.calls, c)
	t.update()
}

// update takes note of the requests that have ended, so that a long outage does
// not fill the memory.
func (t *traces) update() {
	t.calls = slices.DeleteFunc(t.calls, func(c *wire.Call) bool {
		switch {
		case c.UnderWay():
			return false
		case !c.HasReply():
			t.lost = true
		default:
			something, at := leftBy(c)
			if something && (at == 0 || at >= t.before) {
				t.stands = true
			}
			if something {
				t.latest = max(t.latest, at)
			}
		}
		return true
	})
}

// settled tells whether nothing can come any more.
func (t *traces) settled() bool { return len(t.calls) == 0 && !t.lost }

// void tells whether there is nothing to undo either.
func (t *traces) void() bool { return t.settled() && !t.stands }

func (t *traces) underWay() bool { return slices.ContainsFunc(t.calls, (*wire.Call).UnderWay) }

// interrupted is a call that nobody sees the end of, since a panic has come
// between. It is over: the request was executed before that, or never.
func interrupted(r wire.Request) *wire.Call {
	c := wire.NewCall(context.Background(), r)
	c.Err = errInterrupted
	return c
}
