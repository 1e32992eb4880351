package wire

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// Briefly is how long a request may take that is made in the goroutine of a
	// caller whose ctx can end. The caller may be that late, and has other
	// things to wait for: 50 ms are promised for all.
	Briefly = 15 * time.Millisecond
	// quickTrip is how long a round trip takes at most where a request is worth
	// a try in the caller's goroutine.
	quickTrip = 5 * time.Millisecond
	// hooksLook is for how long it is trusted that the client has no hooks.
	hooksLook = 100 * time.Millisecond
)

// directness says whether a pipeline may make requests in the goroutines of
// callers whose ctx can end. A goroutine for each request costs more than the
// request costs on a near server.
//
// go-redis leaves a read when the deadline of its ctx comes, if
// ContextTimeoutEnabled is set. So a request that is made with a deadline of
// Briefly holds up nobody for longer, whatever the server does. Then the
// connection is lost. So there is one such request at a time, and none after
// one that took long, until another round trip was quick: a server that stalls
// costs one connection of each Locker.
//
// Clients with hooks are left out: a hook may take its time. That they have
// some is seen on the stack of a request that is made in the usual way, and a
// direct one needs such a look that is recent: the look of the direct one itself
// would come when the hook already holds up the caller. A hook that is added
// between a look and the direct requests of the next 100 ms is not seen in time.
// (WithTimeout, which gives a client other time-outs of the socket, would do
// without ContextTimeoutEnabled. But the client that it returns has no hooks,
// and one that renames keys must not be passed by.)
type directness struct {
	possible bool // the client is go-redis's own, for one server, and obeys ctx

	quick  atomic.Bool  // the last round trip was
	busy   atomic.Bool  // there is a request
	hooked atomic.Bool  // the client has hooks
	looked atomic.Int64 // when none were seen last, ns since 1970
}

// obeys tells whether a client leaves a read when the deadline of ctx comes,
// and is nothing but a client. Functions of the program that go-redis calls in
// the goroutine of a request, before it and while it sets up a connection, need
// not heed ctx: a provider of credentials may ask another server. (A Dialer has
// a goroutine of its own.)
func obeys(client Client) bool {
	c, plain := client.(*redis.Client)
	if !plain {
		return false
	}
	o := c.Options()
	return o.ContextTimeoutEnabled && o.Limiter == nil && o.OnConnect == nil &&
		o.CredentialsProvider == nil && o.CredentialsProviderContext == nil && o.StreamingCredentialsProvider == nil
}

// took is told of each round trip.
func (d *directness) took(t time.Duration) {
	if quick := t < quickTrip; d.possible && quick != d.quick.Load() {
		d.quick.Store(quick)
	}
}

// isDue tells whether it is time to look for hooks. It stays so until a look has
// found none: a hook that does not hand the command on has nobody look.
func (d *directness) isDue(now time.Time) bool {
	return d.possible && !d.hooked.Load() && now.UnixNano()-d.looked.Load() >= int64(hooksLook)
}

// look is called by the client while it writes a command that was handed to it
// by send: between the two there is nothing but go-redis, or there are hooks.
func (d *directness) look() {
	var stack [32]uintptr
	frames := runtime.CallersFrames(stack[:runtime.Callers(2, stack[:])])
	for {
		frame, more := frames.Next()
		name := frame.Function
		switch {
		case strings.HasSuffix(name, "/wire.(*pipeline).send"):
			d.looked.Store(time.Now().UnixNano())
			return
		case strings.HasSuffix(name, "/wire.(*Once).Args"), strings.HasPrefix(name, "github.com/redis/go-redis/v9."),
			strings.HasPrefix(name, "github.com/redis/go-redis/v9/internal/"):
		default:
			d.hooked.Store(true)
			return
		}
		if !more {
			d.hooked.Store(true) // send is not among them, for whatever reason
			return
		}
	}
}

// Direct is a round trip that is reserved for the goroutine of a caller, which
// makes one request with it at once.
type Direct struct {
	p      *pipeline
	number int
}

// Direct reserves one, or returns nil if there can be none now.
func (p *pipeline) Direct() *Direct {
	d := &p.direct
	if !d.possible || !d.quick.Load() || d.hooked.Load() {
		return nil
	}
	now := time.Now()
	if d.isDue(now) || !d.busy.CompareAndSwap(false, true) {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.hasRoom(now) {
		d.busy.Store(false)
		return nil
	}
	return &Direct{p, p.begin(now)}
}

// Ask makes a request, and waits for its reply for as long as Briefly. After
// that the error is one that IsNotYet. The end of ctx does not shorten it, but
// its deadline does. If the client panics, that is an error, as in a goroutine
// of the package.
func (d *Direct) Ask(ctx context.Context, r Request) (*Call, string, error) {
	bounded, cancel := context.WithTimeout(ctx, Briefly)
	defer cancel()
	c := NewCall(bounded, r)
	defer d.p.arrived(d.number)
	defer d.p.direct.busy.Store(false)
	d.p.venture(c.alone[:])
	if err := c.Err; err != nil && ctx.Err() == nil && (IsContextError(err) || IsTimeout(err)) {
		return c, "", &notYet{failure{text: "no reply soon enough: " + err.Error(), executed: MaybeExecuted(err), transient: true, outage: true}}
	}
	return c, c.Reply, Conn{d.p}.plainError(ctx, c.Err, c)
}

// notYet is what a direct request has come to that had no reply in time.
type notYet struct{ failure }

// IsNotYet tells whether a direct request had no reply in time. It is to be
// made once more, in the usual way.
func IsNotYet(err error) bool {
	var late *notYet
	return err != nil && errors.As(err, &late)
}
