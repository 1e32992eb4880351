package line

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

const (
	// inboxProbe is for how long the inbox may be silent before a ping is sent,
	// and how long the pong may take. go-redis's own health check sends a ping
	// as well, but never looks for the pong.
	inboxProbe = 1500 * time.Millisecond
	// inboxLinger is how long the subscription outlives the last waiter.
	inboxLinger = 2 * time.Second
	// inboxRefused is how long waiters poll before a refused subscription is
	// tried again.
	inboxRefused = 30 * time.Second
	// inboxLasts is from when on a subscription has worked.
	inboxLasts = time.Second
	// inboxGap is how long the heads of lines rely on another subscription to
	// come.
	inboxGap = 100 * time.Millisecond
)

// None stands in a ticket that can only be brought along by a release of its
// own process, since nobody else could tell it.
const None = "-"

// Config is what inboxes need to know.
type Config struct {
	Prefix string // of their channels
	// Home is the server on which a key stands, and what subscribes there; nil
	// if that is not known.
	Home func(key string) (addr string, on wire.Subscriber)
	// Received is told what was published.
	Received func(payload string)
	// Changed is told that an inbox has become live, so that waiters can get
	// into the queue; or that it has failed, so that their tickets are dead.
	Changed func(in *Inbox, live bool)
	// Warn is told what a person should know.
	Warn func(message string, args ...any)
	Log  wire.Log
}

// Inboxes are those of one Locker, by the server: one, but on a cluster one for
// each node on which a name is waited for.
type Inboxes struct {
	Config

	mu       sync.Mutex
	byServer map[string]*Inbox
}

// Of is the inbox on the server where a key stands, or nil if that is not
// known.
func (ins *Inboxes) Of(key string) *Inbox {
	server, on := ins.Home(key)
	if on == nil {
		return nil
	}
	ins.mu.Lock()
	defer ins.mu.Unlock()
	in := ins.byServer[server]
	if in == nil {
		if ins.byServer == nil {
			ins.byServer = make(map[string]*Inbox)
		}
		in = newInbox(&ins.Config)
		ins.byServer[server] = in
	}
	in.setSubscriber(on)
	return in
}

// Inbox is the channel to which grants for a Locker are published on one
// server. Its subscription exists while somebody waits, and a little longer. A
// nil inbox is one that cannot be opened.
type Inbox struct {
	ID      string // in tickets; does not change
	Channel string // does not change

	of *Config

	live  atomic.Bool // Redis has confirmed the subscription. It changes under mu only
	flaps atomic.Bool // brief > 1, for readers without mu

	mu        sync.Mutex
	on        wire.Subscriber
	users     int // names that are waited for
	idleSince time.Time
	running   bool      // the goroutine that listens
	notBefore time.Time // after a refusal
	warned    bool

	since   time.Time     // when Redis confirmed the subscription
	ps      *redis.PubSub // the subscription, to be closed when it is given up
	givenUp bool
	brief   int          // subscriptions in a row that did not last
	flapped time.Time    // when the second of them ended
	pause   wire.Backoff // before the next one
	trouble error        // why there is none that lasts, or that is of use; nil: nothing is known
	gap     *time.Timer  // has the heads ask that relied on the last one; nil: nobody has to
	placed  placement
}

func newInbox(of *Config) *Inbox {
	// 72 random bits, and not a UUID: it stands in every ticket, and short ones
	// are cheaper for Redis.
	var random [9]byte
	_, _ = rand.Read(random[:]) // it never fails
	id := base64.RawURLEncoding.EncodeToString(random[:])
	return &Inbox{of: of, ID: id, Channel: of.Prefix + "inbox:" + id}
}

// setSubscriber notes what to subscribe with. A cluster makes another client
// for a node that has left and come back; what the old one was refused is
// forgotten then.
func (in *Inbox) setSubscriber(on wire.Subscriber) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if was, ok := in.on.(*redis.Client); in.on == nil || ok && was != on { // others may not be comparable
		in.on, in.notBefore = on, time.Time{}
		in.start()
	}
}

// Need is told when somebody begins to wait for a name, and when nobody waits
// for it any more.
func (in *Inbox) Need(waiting bool) {
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
func (in *Inbox) start() {
	if in.users > 0 && !in.running && !time.Now().Before(in.notBefore) {
		in.running = true
		go in.listen()
	}
}

// LiveID is what stands in a ticket: the inbox if grants can arrive, else None.
func (in *Inbox) LiveID() string {
	if in == nil || !in.live.Load() {
		return None
	}
	return in.ID
}

// idle tells whether nobody has waited for a while. If so, the listener ends.
func (in *Inbox) idle() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.users > 0 || time.Since(in.idleSince) < inboxLinger {
		return false
	}
	in.running, in.ps, in.givenUp = false, nil, false
	in.live.Store(false)
	return true
}

// listen subscribes, and subscribes anew whenever the connection is lost: at
// once if it had worked, else after a growing pause. It ends when nobody waits,
// or Redis refuses.
func (in *Inbox) listen() {
	for ctx := context.Background(); !in.idle(); {
		var err error
		stray := false
		wire.Catch(func() { err = in.subscribe(ctx) }, func(e *wire.StrayError) { // the goroutine may be at its end
			stray = true
			_, _ = in.ended(e)
			in.refused(e)
		})
		if err == nil || stray {
			return
		}
		d, again := in.ended(err)
		if !again {
			in.refused(err)
			return
		}
		wire.Pause(ctx, d)
	}
}

// ended notes why a subscription has ended, and returns the pause until the
// next. There is none after one that has worked: one that lasted, or the first
// after such a one. Those that are confirmed and cut, again and again, count as
// failures, like those that are never confirmed. There is none either after one
// that was given up, which is not done often.
//
// If Redis refuses there will be no next one.
func (in *Inbox) ended(err error) (d time.Duration, again bool) {
	in.mu.Lock()
	worked, givenUp := in.live.Load(), in.givenUp
	lasted := worked && time.Since(in.since) >= inboxLasts
	in.live.Store(false)
	in.ps, in.givenUp = nil, false
	again = givenUp || wire.IsOutage(err)
	if !givenUp {
		in.trouble = err
	}
	switch {
	case lasted:
		in.setBrief(0)
		in.pause = wire.Backoff{}
	case givenUp || !again:
	case worked && in.brief == 0:
		in.setBrief(1)
	case worked:
		in.setBrief(in.brief + 1)
		if in.brief == 2 {
			in.flapped = time.Now()
		}
		fallthrough
	default:
		d = in.pause.Next()
	}
	if in.brief > 1 && again && !givenUp {
		in.trouble = fmt.Errorf("the subscription does not last: %w", err)
		// Heads that ask while there is a subscription are queued, so that no
		// line polls for long, and yet many pushes are lost.
		if time.Since(in.flapped) >= noSubscriptionSaid {
			in.warnOfPolling()
		}
	}
	if worked && in.gap == nil {
		in.gap = time.AfterFunc(inboxGap, in.tellOfGap)
	}
	in.mu.Unlock()
	if !worked {
		in.tellOfGap()
	}
	return d, again
}

// confirmed notes that grants can arrive. Waiters have to ask, to get into the
// queue, and because messages were lost since the last subscription. After
// several that did not last, they rely on one only when it has stood for a
// while: each time they would ask in vain.
func (in *Inbox) confirmed() {
	in.mu.Lock()
	since := time.Now()
	in.since = since
	in.live.Store(true)
	in.placed.begin()
	flaps := in.brief > 1
	if !flaps {
		in.trouble = nil
	} else {
		time.AfterFunc(inboxLasts, func() { in.lasts(since) })
	}
	in.mu.Unlock()
	if !flaps {
		in.stands(since)
	}
}

// lasts ends a series of subscriptions that did not, if that of since is still
// there.
func (in *Inbox) lasts(since time.Time) {
	in.mu.Lock()
	if in.live.Load() && in.since.Equal(since) {
		in.setBrief(0)
		in.pause, in.trouble = wire.Backoff{}, nil
	}
	in.mu.Unlock()
	in.stands(since)
}

// stands has all heads ask, unless the subscription is not that of since any
// more.
func (in *Inbox) stands(since time.Time) {
	in.mu.Lock()
	stands := in.live.Load() && in.since.Equal(since)
	if stands {
		in.closeGap()
	}
	in.mu.Unlock()
	if stands {
		in.of.Changed(in, true)
	}
}

// tellOfGap has the heads ask that rely on pushes, because some were lost: when
// there was no subscription for longer than it takes to make another. That
// would tell them all the same, and once is enough.
func (in *Inbox) tellOfGap() {
	in.mu.Lock()
	open := in.gap != nil
	in.closeGap()
	in.mu.Unlock()
	if open {
		in.of.Changed(in, false)
	}
}

func (in *Inbox) closeGap() {
	if in.gap != nil {
		in.gap.Stop()
		in.gap = nil
	}
}

// Flaps tells whether subscriptions are made and cut again and again.
func (in *Inbox) Flaps() bool { return in != nil && in.flaps.Load() }

// setBrief counts subscriptions that did not last. The caller has locked mu.
func (in *Inbox) setBrief(n int) {
	in.brief = n
	in.flaps.Store(n > 1)
}

// refused ends the listener for a while; waiters poll.
func (in *Inbox) refused(err error) {
	in.tellOfGap()
	in.mu.Lock()
	warn := !in.warned && !errors.Is(err, redis.ErrClosed)
	in.warned = in.warned || warn
	in.running = false
	in.notBefore = time.Now().Add(inboxRefused)
	in.mu.Unlock()
	time.AfterFunc(inboxRefused, in.tryAgain)
	if warn {
		in.of.Warn("redislock: Redis refuses the subscription for pushes; waiting by polling",
			"channel", in.Channel, "error", err)
	}
}

// tryAgain is called some time after a refusal.
func (in *Inbox) tryAgain() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.start()
}

var (
	errSilent       = errors.New("the connection is silent")
	errUnsubscribed = errors.New("the server has ended the subscription")
	errMisplaced    = errors.New("the subscription is confirmed, but the server that runs the scripts does not queue its tickets")
)

// subscribe receives until the connection fails, or nobody waits any more
// (nil).
func (in *Inbox) subscribe(ctx context.Context) error {
	in.mu.Lock()
	on := in.on
	in.mu.Unlock()
	ps := on.Subscribe(ctx, in.Channel)
	defer func() { _ = ps.Close() }() // closing can only fail if it is closed
	in.mu.Lock()
	in.ps = ps
	in.mu.Unlock()
	probing := false
	for {
		message, err := ps.ReceiveTimeout(ctx, inboxProbe)
		switch {
		case in.idle():
			return nil
		case in.isGivenUp():
			return errMisplaced
		case err == nil:
			probing = false
			if err := in.received(message); err != nil {
				return err
			}
		case in.live.Load() && errors.As(err, new(redis.Error)):
			probing = false // an answer to PING, whatever it says: MISCONF, or that we must not
		case !wire.IsTimeout(err):
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

func (in *Inbox) received(message any) error {
	switch m := message.(type) {
	case *redis.Subscription:
		if m.Kind != "subscribe" {
			return errUnsubscribed
		}
		in.confirmed()
	case *redis.Message:
		in.of.Received(m.Payload)
		runtime.Gosched() // to the one that was told
	}
	return nil
}
