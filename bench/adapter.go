package main

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// locker is one process's access to locks. It is safe for concurrent use.
type locker interface {
	// lock waits for name until ctx ends.
	lock(ctx context.Context, name string) (held, error)
	// close also ends the waiting of those that do not listen to their ctx.
	close()
}

// held is a lock that somebody has. It is an interface and not a function, since
// a closure would be an allocation that no user of the library has to pay.
type held interface {
	unlock(ctx context.Context) error
}

// settings are what a scenario asks of a locker.
type settings struct {
	addr  string
	ttl   time.Duration
	renew bool // the lease is renewed until unlock
	conns int  // callers at once, for those that need a connection for each

	network network // between the client and Redis
	process int     // number of this one
}

// options are those of a go-redis client.
func (s settings) options() *redis.Options {
	o := &redis.Options{Addr: s.addr, ContextTimeoutEnabled: true}
	if s.network.delays() {
		o.Dialer = s.network.dialer(s.process, redis.NewDialer(&redis.Options{DialTimeout: dialTimeout}))
	}
	return o
}

// dialTimeout is the default of go-redis and of rueidis.
const dialTimeout = 5 * time.Second

func (s settings) client() *redis.Client { return redis.NewClient(s.options()) }

// adapter is one way to lock.
type adapter struct {
	id      string
	title   string
	config  string // how it is set up, for the report
	module  string // where it comes from
	library bool   // somebody's published library other than this one
	unsafe  bool   // it excludes, but has neither lease nor token
	noLock  bool   // it excludes nobody
	groups  group  // scenarios it takes part in
	sends   []string
	prepare func(ctx context.Context, admin *redis.Client, names []string) error // before others use the names
	open    func(settings) (locker, error)
}

// group is a set of kinds of scenarios.
type group int

const (
	uncontended group = 1 << iota
	contended
	latency
	waiting
	holding
	manyNames
	manyWaiters

	growths    = manyNames | manyWaiters // takes long, so not everybody takes part
	everywhere = uncontended | contended | latency | waiting | holding
	queueing   = contended | latency | waiting
)

// The adapters that ratios are made with.
const (
	ours  = "redislock"
	pair  = "pair"
	queue = "queue"
)

const goRedis = "github.com/redis/go-redis/v9"

func adapters() []adapter {
	return []adapter{
		redislockAdapter(), bsmAdapter(), bsmExponentialAdapter(), redsyncAdapter(), rueidislockAdapter(),
		pairAdapter(), queueAdapter(), pingAdapter(),
	}
}

func adapterByID(id string) (adapter, bool) {
	for _, a := range adapters() {
		if a.id == id {
			return a, true
		}
	}
	return adapter{}, false
}

// newClient is for what is not measured: it has no network.
func newClient(addr string) *redis.Client { return settings{addr: addr}.client() }
