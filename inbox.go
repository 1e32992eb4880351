package redislock

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// inboxProbe is for how long the inbox may be silent before a ping is sent, and
	// how long the pong may take. go-redis's own health check sends a ping as well,
	// but never looks for the pong.
	inboxProbe = 1500 * time.Millisecond
	// inboxLinger is how long the subscription outlives the last waiter.
	inboxLinger = 2 * time.Second
	// inboxRefused is how long to do without when the server has refused.
	inboxRefused = 30 * time.Second
)

// inboxes are those of one Locker, by the server: one, but on a cluster one for each
// node on which a name is waited for.
type inboxes struct {
	lk *Locker

	mu       sync.Mutex
	byServer map[string]*inbox
}

// of is the inbox on the server where a key stands, or nil if that is not known.
func (ins *inboxes) of(key string) *inbox {
	server, on := ins.lk.engine.home(key)
	if on == nil {
		return nil
	}
	ins.mu.Lock()
	defer ins.mu.Unlock()
	in := ins.byServer[server]
	if in == nil {
		if ins.byServer == nil {
			ins.byServer = make(map[string]*inbox)
		}
		in = newInbox(ins.lk)
		ins.byServer[server] = in
	}
	in.setSubscriber(on)
	return in
}

// inbox is the channel to which grants for a Locker are published on one server. Its
// subscription exists while somebody waits, and a little longer. A nil inbox is one
// that cannot be opened.
type inbox struct {
	lk      *Locker
	id      string // in tickets
	channel string

	mu        sync.Mutex
	on        subscriber
	users     int // names that are waited for
	idleSince time.Time
	running   bool      // the goroutine that listens
	live      bool      // Redis has confirmed the subscription
	notBefore time.Time // after a refusal
	warned    bool
}

func newInbox(lk *Locker) *inbox {
	// 72 random bits, and not a UUID: it stands in every ticket, and short ones are
	// cheaper for Redis.
	var random [9]byte
	_, _ = rand.Read(random[:]) // it never fails
	id := base64.RawURLEncoding.EncodeToString(random[:])
	return &inbox{lk: lk, id: id, channel: lk.opts.prefix + "inbox:" + id}
}

// setSubscriber notes what to subscribe with. A cluster makes another client for a
// node that has left and come back; what the old one was refused is forgotten then.
func (in *inbox) setSubscriber(on subscriber) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if was, ok := in.on.(*redis.Client); in.on == nil || ok && was != on { // others may not be comparable
		in.on, in.notBefore = on, time.Time{}
	}
}

// need is told when somebody begins to wait for a name, and when nobody waits for
// it any more.
func (in *inbox) need(waiting bool) {
	if in == nil {
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if !waiting {
		in.users--
		in.idleSince = time.Now()
		return
	}
	in.users++
	in.start()
}

// start has somebody listen, if there is need.
func (in *inbox) start() {
	if in.users > 0 && !in.running && time.Now().After(in.notBefore) {
		in.running = true
		go in.listen()
	}
}

// liveID is what stands in a ticket: the inbox if grants can arrive, else noInbox.
func (in *inbox) liveID() string {
	if in == nil {
		return noInbox
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.live {
		in.start() // after a refusal, when it is time to try again
		return noInbox
	}
	return in.id
}

// idle tells whether nobody has waited for a while. If so, the listener ends.
func (in *inbox) idle() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.users > 0 || time.Since(in.idleSince) < inboxLinger {
		return false
	}
	in.running, in.live = false, false
	return true
}

// setLive notes whether grants can arrive, and reports whether they could before.
// Live again is news too: messages were lost in between.
func (in *inbox) setLive(live bool) (before bool) {
	in.mu.Lock()
	before, in.live = in.live, live
	in.mu.Unlock()
	if live || before {
		in.lk.lines.wakeHeads(in, live)
	}
	return before
}

// listen subscribes, and subscribes anew whenever the connection is lost: at once
// if it had worked, else after a growing pause. It ends when nobody waits, or
// Redis refuses.
func (in *inbox) listen() {
	ctx := context.Background()
	for b := (backoff{}); !in.idle(); {
		var err error
		stray := false
		catch(func() { err = in.subscribe(ctx) }, func(e *strayError) { // the goroutine may be at its end
			stray = true
			_ = in.setLive(false)
			in.refused(e)
		})
		if err == nil || stray {
			return
		}
		worked := in.setLive(false)
		switch {
		case !isOutage(err):
			in.refused(err)
			return
		case worked:
			b = backoff{}
		default:
			pause(ctx, b.next())
		}
	}
}

// refused ends the listener for a while; those who wait poll.
func (in *inbox) refused(err error) {
	in.mu.Lock()
	warn := !in.warned && !errors.Is(err, redis.ErrClosed)
	in.warned = in.warned || warn
	in.running = false
	in.notBefore = time.Now().Add(inboxRefused)
	in.mu.Unlock()
	if warn {
		in.lk.reports.warn("redislock: Redis refuses the subscription for pushes; waiting by polling",
			"channel", in.channel, "error", err)
	}
}

var errSilent = errors.New("the connection is silent")

// subscribe receives until the connection fails, or nobody waits any more (nil).
func (in *inbox) subscribe(ctx context.Context) error {
	in.mu.Lock()
	on := in.on
	in.mu.Unlock()
	ps := on.Subscribe(ctx, in.channel)
	defer func() { _ = ps.Close() }() // closing can only fail if it is closed
	probing := false
	for {
		message, err := ps.ReceiveTimeout(ctx, inboxProbe)
		switch {
		case in.idle():
			return nil
		case err == nil:
			probing = false
			in.received(message)
		case !isTimeout(err):
			return err
		case probing:
			return errSilent
		default:
			probing = true
			if err := ps.Ping(ctx); err != nil {
				return err
			}
		}
	}
}

func (in *inbox) received(message any) {
	switch m := message.(type) {
	case *redis.Subscription:
		_ = in.setLive(m.Kind == "subscribe")
	case *redis.Message:
		if token, g, ok := parseGrant(m.Payload); ok {
			if !in.lk.lines.pushed(token, g) && g.fence > 0 {
				in.lk.undoings.pushed(token) // or noise, or given back by now
			}
			runtime.Gosched()
		}
	}
}
