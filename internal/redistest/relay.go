package redistest

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Relay is a TCP relay in front of one Redis server. It passes every byte on as
// it is, tells requests and replies apart, and makes faults when told to. All
// its faults are off at first.
//
// It keeps every request that it has seen, for Requests, until ForgetRequests.
// It cannot follow CLIENT REPLY, nor commands that share a connection with
// MONITOR, and it fails the test on inline commands and on TLS.
//
// Its methods are safe for concurrent use.
type Relay struct {
	t        testing.TB
	listener *net.TCPListener
	gate     gate
	delay    atomic.Int64
	book     book
	wg       sync.WaitGroup // the accepting goroutine and the links

	mu     sync.Mutex
	target string
	refuse bool
	links  map[*link]struct{}
}

// NewRelay starts a relay to target, a host:port that need not answer yet. It
// ends with the test: its connections are closed and its goroutines, four for
// each connection, have ended before the Cleanup returns.
func NewRelay(t testing.TB, target string) *Relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("redistest: relay: %v", err)
	}
	r := &Relay{t: t, target: target, listener: l.(*net.TCPListener), links: make(map[*link]struct{})}
	r.wg.Go(r.accept)
	t.Cleanup(r.close)
	return r
}

// Addr returns the host:port on which the relay listens.
func (r *Relay) Addr() string { return r.listener.Addr().String() }

// Client returns a client of the relay with go-redis's defaults, changed by
// opts. It is closed when t ends.
func (r *Relay) Client(t testing.TB, opts ...func(*redis.Options)) *redis.Client {
	t.Helper()
	return newClient(t, r.Addr(), opts...)
}

// Delay makes every reply and push that comes from now on arrive d later, as a
// longer way would: those of a pipeline are not delayed one after the other.
// Zero ends it.
func (r *Relay) Delay(d time.Duration) { r.delay.Store(int64(d)) }

// BlackHole stops all traffic in both directions, as a cable that is cut: what
// is sent vanishes, connections stay open, new ones are accepted and silent.
// The relay reads on, so Requests counts and rules strike. Once BlackHole(true)
// has returned no byte passes; with BlackHole(false) those that were kept go
// on, also the requests of clients that have left.
func (r *Relay) BlackHole(on bool) { r.gate.set(on) }

// Cut resets all present connections, and loses what they hold. New ones work.
func (r *Relay) Cut() {
	for _, l := range r.open() {
		l.reset()
	}
}

// Refuse closes every new connection right away while it is on. Present ones
// work; with Cut after it the server is gone for the clients.
func (r *Relay) Refuse(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse = on
}

// Conns returns the number of open client connections. One that a client closed
// counts until its requests are executed and the server has closed its side.
func (r *Relay) Conns() int { return len(r.open()) }

// Once applies action to the next request that matches. Where several rules
// match a request only the oldest is applied.
func (r *Relay) Once(match Match, action Action) *Rule { return r.Times(1, match, action) }

// Times applies action to the next n requests that match.
func (r *Relay) Times(n int, match Match, action Action) *Rule {
	return r.book.add(match, action, n)
}

// Always applies action to all requests that match, until Rule.Remove.
func (r *Relay) Always(match Match, action Action) *Rule {
	return r.book.add(match, action, forever)
}

// Requests returns how many requests that match have come from clients,
// whatever became of them.
func (r *Relay) Requests(match Match) int { return r.book.count(match) }

// ForgetRequests starts the count of Requests anew.
func (r *Relay) ForgetRequests() { r.book.forget() }

// OnRequest calls f for each request that comes, before a rule is applied, one
// at a time. It must not block, change the slice, or call the relay; it may
// keep the slice.
func (r *Relay) OnRequest(f func(args []string)) { r.book.observe(f) }

// Lead makes new connections lead to another target, as a virtual address does
// that has moved. Present ones go on.
func (r *Relay) Lead(target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target = target
}

// leads returns where new connections lead.
func (r *Relay) leads() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.target
}

func (r *Relay) accept() {
	for {
		conn, err := r.listener.AcceptTCP()
		if err != nil {
			return // closed
		}
		l := newLink(r, conn)
		if !r.admit(l) {
			l.close() // a reset might strike while the client is still connecting
			continue
		}
		r.wg.Go(l.run)
	}
}

func (r *Relay) admit(l *link) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.refuse {
		r.links[l] = struct{}{}
	}
	return !r.refuse
}

func (r *Relay) forget(l *link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.links, l)
}

func (r *Relay) open() []*link {
	r.mu.Lock()
	defer r.mu.Unlock()
	links := make([]*link, 0, len(r.links))
	for l := range r.links {
		links = append(links, l)
	}
	return links
}

func (r *Relay) close() {
	r.Refuse(true) // also what waits to be accepted
	_ = r.listener.Close()
	r.Cut()
	r.wg.Wait()
}
