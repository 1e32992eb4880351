package wire

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// Trips is how many round trips of one group commit may be under way while
	// further requests gather. One is not enough to keep both ends busy; with
	// more, fewer requests meet.
	Trips = 2
	// BatchSize bounds how many requests travel together: Redis serves nobody
	// else while it executes what has arrived on one connection.
	BatchSize = 64
	// Overdue is how long a request waits for a round trip under way before it
	// leaves by itself: the connection of that one may be stuck while others
	// work.
	Overdue = 25 * time.Millisecond
)

// pipeline is the engine for one Redis. It is a group commit: a request leaves
// at once while few are under way; else it waits until one of these has
// returned, and leaves together with all that have come meanwhile. So many
// callers cost few round trips, system calls and connections, and one alone
// waits for nobody.
//
// go-redis does not interrupt a command in flight when its ctx ends. So
// requests travel in goroutines of their own, and whoever waits for one can
// leave. Such a goroutine ends when the client gives up, at the latest after
// the socket's time-outs.
//
// go-redis's AutoPipeliner is not used: it has goroutines that somebody has to
// stop, its instance is shared with the rest of the program, and while one
// batch is stuck everybody waits.
type pipeline struct {
	client Client
	attend func([]*Call) (stop func()) // told of every round trip that begins, stop when it ends; may be nil
	after  func(failure error)         // told of what every round trip came to; may be nil

	reports    Log
	redirected bool // the client sends a command again when another server is in charge

	replicas *acknowledgement        // what has to acknowledge each batch; nil: nothing
	place    func(key string) string // of a cluster: the server of a key, as far as known
	relocate func()                  // has the client look at the topology
	alone    bool                    // nothing travels together: it may have to go to several servers

	direct directness // how requests travel in the goroutines of callers

	mu      sync.Mutex
	trips   []trip  // under way, without those that are overdue
	last    int     // number of a trip
	waiting []*Call // in the order of their arrival
	watched bool    // a timer looks after those that wait
}

// trip is a round trip under way.
type trip struct {
	number   int
	departed time.Time
}

// Home is the client: which server that is, nobody needs to know.
func (p *pipeline) Home(string) (addr string, on Subscriber) { return "", p.client }

// Suspect does nothing: the client follows a failover by itself.
func (p *pipeline) Suspect() {}

// Shortage is that of the client.
func (p *pipeline) Shortage(string) string { return shortageOf(p.client) }

// shortageOf says that all connections of a client are in use, if it has a pool
// that says so. (Counted in vain are those for pipelines, which go-redis has
// apart since 9.23.)
func shortageOf(client any) string {
	c, pooled := client.(interface {
		PoolStats() *redis.PoolStats
		Options() *redis.Options
	})
	if !pooled {
		return ""
	}
	stats, size := c.PoolStats(), c.Options().PoolSize
	if used := int(stats.TotalConns) - int(stats.IdleConns); used < size {
		return ""
	}
	return fmt.Sprintf("all %d connections of the client are in use", size)
}

// Travel makes one round trip.
func (p *pipeline) Travel(_ string, calls []*Call) { p.venture(calls) }

// UnderWay is how many round trips and requests it is busy with.
func (p *pipeline) UnderWay() (trips, waiting int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.trips), len(p.waiting)
}

// Start makes a request.
func (p *pipeline) Start(ctx context.Context, r Request) *Call {
	c := NewCall(ctx, r)
	c.WillFinish()
	if number, leaves := p.leave(c); leaves {
		go p.travel(number, c.alone[:])
	}
	return c
}

// Do makes it in the caller's goroutine, if it leaves at once.
func (p *pipeline) Do(ctx context.Context, r Request) *Call {
	c := NewCall(ctx, r)
	number, leaves := p.leave(c)
	if !leaves {
		<-c.Done
		return c
	}
	defer p.arrived(number) // also if a hook of the client panics
	p.execute(c.alone[:])
	return c
}

// leave reports whether c leaves at once; else it waits.
func (p *pipeline) leave(c *Call) (number int, leaves bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hasRoom(c.Sent) {
		return p.begin(c.Sent), true
	}
	if c.finished == nil {
		c.WillFinish()
	}
	p.waiting = append(p.waiting, c)
	p.watch(c.Sent)
	return 0, false
}

// hasRoom tells whether one more trip may begin. Those that are overdue do not
// count: they may be stuck until the time-outs of the client, and whatever
// comes of them, they take nobody along any more.
func (p *pipeline) hasRoom(now time.Time) bool {
	if len(p.trips) == Trips {
		p.trips = slices.DeleteFunc(p.trips, func(t trip) bool { return now.Sub(t.departed) >= p.overdue() })
	}
	return len(p.trips) < Trips
}

// overdue is after what time a round trip does not count any more.
func (p *pipeline) overdue() time.Duration {
	if p.replicas != nil {
		return Overdue + p.replicas.longestWait()
	}
	return Overdue
}

func (p *pipeline) begin(now time.Time) (number int) {
	p.last++
	p.trips = append(p.trips, trip{p.last, now})
	return p.last
}

// arrived ends a trip that was made in a caller's goroutine.
func (p *pipeline) arrived(number int) {
	if number, batch := p.next(number); batch != nil {
		go p.travel(number, batch)
	}
}

// travel makes round trips as long as there are requests. Should a hook of the
// client end its goroutine, another one goes on.
func (p *pipeline) travel(number int, batch []*Call) {
	defer func() {
		if batch != nil {
			p.arrived(number)
		}
	}()
	for batch != nil {
		p.venture(batch)
		if len(batch) > 1 {
			runtime.Gosched() // callers that have their replies may have more to ask
		}
		number, batch = p.next(number)
	}
}

// venture is execute for a goroutine that nobody's calls depend on: whatever
// the client does, all calls of the batch are finished.
func (p *pipeline) venture(batch []*Call) {
	Catch(func() { p.execute(batch) }, func(err *StrayError) {
		err.Log(p.reports)
		for _, c := range batch {
			if c != nil { // execute has removed those that were too late
				c.Finish("", err)
			}
		}
	})
}

// next ends a trip, and begins another with those that wait, if any.
func (p *pipeline) next(ended int) (number int, batch []*Call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trips = slices.DeleteFunc(p.trips, func(t trip) bool { return t.number == ended })
	if len(p.waiting) == 0 || len(p.trips) >= Trips {
		return 0, nil
	}
	return p.begin(time.Now()), p.take()
}

func (p *pipeline) take() []*Call {
	n := min(len(p.waiting), BatchSize)
	i := slices.IndexFunc(p.waiting[:n], func(c *Call) bool { return c.Request.Alone })
	switch {
	case p.alone:
		n = 1
	case i >= 0:
		n = max(i, 1)
	}
	batch := p.waiting[:n:n]
	if p.waiting = p.waiting[n:]; len(p.waiting) == 0 {
		p.waiting = nil
	}
	return batch
}

// watch has a timer look after those that wait, if there is none yet: when the
// first of the trips under way is overdue.
func (p *pipeline) watch(now time.Time) {
	if !p.watched {
		p.watched = true
		time.AfterFunc(p.overdue()-now.Sub(p.trips[0].departed), p.sendOverdue)
	}
}

func (p *pipeline) sendOverdue() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watched = false
	now := time.Now()
	for len(p.waiting) > 0 && p.hasRoom(now) {
		go p.travel(p.begin(now), p.take())
	}
	if len(p.waiting) > 0 {
		p.watch(now)
	}
}

// execute makes one round trip, and another one for scripts that Redis has
// forgotten (restart, failover, SCRIPT FLUSH): their source makes it know them
// again.
func (p *pipeline) execute(batch []*Call) {
	batch = slices.DeleteFunc(batch, (*Call).isTooLate)
	forgotten, elsewhere := p.roundTrip(batch, false)
	_, more := p.roundTrip(forgotten, true)
	if elsewhere = append(elsewhere, more...); len(elsewhere) > 0 {
		if p.relocate != nil {
			p.relocate()
		}
	}
	for _, c := range elsewhere { // one by one: they need not be together any more
		if _, still := p.roundTrip([]*Call{c}, true); still != nil {
			c.Finish("", errElsewhere)
		}
	}
}

// roundTrip sends a batch, with the source of each script or by its name, and
// finishes its calls, but for those whose script is not known by that, and
// those that were executed elsewhere than the WAIT behind them.
func (p *pipeline) roundTrip(batch []*Call, whole bool) (forgotten, elsewhere []*Call) {
	if len(batch) == 0 {
		return nil, nil
	}
	commands := p.commands(batch, whole)
	departed := time.Now()
	trip := p.attended(batch, commands)
	p.direct.took(time.Since(departed))
	var worst error // of those that time may mend
	for i, c := range batch {
		reply, failure := p.result(&c.Request, commands, i, trip)
		if failure != nil && IsOutage(failure) {
			worst = failure
		}
		switch {
		case !whole && isNoScript(failure):
			forgotten = append(forgotten, c)
		case errors.Is(failure, errElsewhere):
			elsewhere = append(elsewhere, c)
		default:
			c.Finish(reply, failure)
		}
	}
	if p.after != nil {
		p.after(worst)
	}
	return forgotten, elsewhere
}

// commands are those of a batch, and the WAIT behind them if replicas have to
// acknowledge them.
func (p *pipeline) commands(batch []*Call, whole bool) []Once {
	n := len(batch)
	if p.replicas != nil {
		n++
	}
	commands := make([]Once, n)
	for i, c := range batch {
		commands[i].fill(c.ctx, &c.Request, whole)
		if p.redirected && n > 1 {
			commands[i].count()
		}
	}
	if p.replicas != nil {
		p.replicas.fill(batch[0].ctx, &commands[n-1], &commands[0], p.redirected)
	}
	return commands
}

// result is what became of one command of a trip.
func (p *pipeline) result(r *Request, commands []Once, i int, trip error) (string, error) {
	cmd := &commands[i]
	if len(commands) > 1 {
		cmd.keep()
	}
	reply, err := cmd.result(trip)
	if p.replicas == nil {
		return reply, err
	}
	if err != nil {
		return "", passing(err)
	}
	return p.replicas.confirm(r, reply, &commands[len(commands)-1], p.together(cmd, &commands[0]))
}

// together tells whether a script and the WAIT behind the first of its batch
// went to the same server.
func (p *pipeline) together(cmd, first *Once) bool {
	switch {
	case cmd.times == nil:
		return true
	case cmd.times.times > 1: // WAIT does not follow a redirect
		return false
	}
	return cmd == first || p.place != nil && p.place(cmd.key()) == p.place(first.key())
}

func (p *pipeline) attended(batch []*Call, commands []Once) error {
	if p.attend != nil {
		defer p.attend(batch)()
	}
	return p.send(batch, commands)
}

// send hands commands to the client, which notes in each what became of it. One
// by itself goes the plain way, where the client's pool and hooks see it as any
// other.
func (p *pipeline) send(batch []*Call, commands []Once) error {
	if len(commands) == 1 {
		if p.direct.isDue(time.Now()) {
			commands[0].looks = &p.direct
		}
		return p.client.Process(batch[0].ctx, &commands[0])
	}
	ctx, cancel := tripContext(batch)
	defer cancel()
	pipe := p.client.Pipeline()
	for i := range commands {
		_ = pipe.Process(ctx, &commands[i]) // only gathers
	}
	_, err := pipe.Exec(ctx)
	return err
}

// tripContext ends with the last of the callers' deadlines, and never if one
// has none. It carries nothing else of theirs: the trip is nobody's in
// particular. One by itself keeps its context.
func tripContext(batch []*Call) (context.Context, context.CancelFunc) {
	if len(batch) == 1 {
		return batch[0].ctx, func() {}
	}
	var last time.Time
	for _, c := range batch {
		deadline, limited := c.ctx.Deadline()
		if !limited {
			return context.Background(), func() {}
		}
		if deadline.After(last) {
			last = deadline
		}
	}
	return context.WithDeadline(context.Background(), last)
}
