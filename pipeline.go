package redislock

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// pipelines is how many round trips of one Locker may be under way while further
	// requests gather. One is not enough to keep both ends busy; with more, fewer
	// requests meet.
	pipelines = 2
	// pipelined bounds how many requests travel together: Redis serves nobody else
	// while it executes what has arrived on one connection.
	pipelined = 64
	// overdue is how long a request waits for a round trip under way before it leaves
	// by itself: the connection of that one may be stuck while others work.
	overdue = 25 * time.Millisecond
)

// pipeline is the engine for one Redis. It is a group commit: a request leaves at
// once while few are under way; else it waits until one of these has returned, and
// leaves together with all that have come meanwhile. So many callers cost few round
// trips, system calls and connections, and one alone waits for nobody.
//
// go-redis does not interrupt a command in flight when its ctx ends. So requests
// travel in goroutines of their own, and whoever waits for one can leave. Such a
// goroutine ends when the client gives up, at the latest after the socket's time-outs.
//
// go-redis's AutoPipeliner is not used: it has goroutines that somebody has to stop,
// its instance is shared with the rest of the program, and while one batch is stuck
// everybody waits.
type pipeline struct {
	client Client
	attend func([]*call) (stop func()) // told of every round trip that begins, stop when it ends; may be nil
	after  func(failure error)         // told of what every round trip came to; may be nil

	mu       sync.Mutex
	underWay int     // round trips
	waiting  []*call // in the order of their arrival
	watched  bool    // a timer looks after those that wait
}

func (p *pipeline) home(string) (addr string, on subscriber) { return "", p.client }

func (p *pipeline) suspect() {}

func (p *pipeline) start(ctx context.Context, r request) *call {
	c := newCall(ctx, r)
	c.willFinish()
	if p.leave(c) {
		go p.travel([]*call{c})
	}
	return c
}

func (p *pipeline) do(ctx context.Context, r request) *call {
	c := newCall(ctx, r)
	if !p.leave(c) {
		<-c.done
		return c
	}
	defer p.arrived() // also if a hook of the client panics
	p.execute([]*call{c})
	return c
}

// leave reports whether c leaves at once; else it waits.
func (p *pipeline) leave(c *call) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.underWay < pipelines {
		p.underWay++
		return true
	}
	if c.finished == nil {
		c.willFinish()
	}
	p.waiting = append(p.waiting, c)
	p.watch()
	return false
}

// arrived ends a round trip that was made in a caller's goroutine.
func (p *pipeline) arrived() {
	if batch := p.next(); batch != nil {
		go p.travel(batch)
	}
}

// travel makes round trips as long as there are requests.
func (p *pipeline) travel(batch []*call) {
	for batch != nil {
		p.execute(batch)
		if len(batch) > 1 {
			runtime.Gosched() // those who have their replies may have more to ask
		}
		batch = p.next()
	}
}

// next takes what leaves next, or ends a round trip for good. Those that were
// begun for overdue requests end when nothing is overdue any more.
func (p *pipeline) next() []*call {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) == 0 || p.underWay > pipelines && !p.late() {
		p.underWay--
		return nil
	}
	return p.take()
}

func (p *pipeline) take() []*call {
	n := min(len(p.waiting), pipelined)
	batch := p.waiting[:n:n]
	if p.waiting = p.waiting[n:]; len(p.waiting) == 0 {
		p.waiting = nil
	}
	return batch
}

func (p *pipeline) late() bool { return time.Since(p.waiting[0].sent) >= overdue }

// watch has a timer look after those that wait, if there is none yet.
func (p *pipeline) watch() {
	if !p.watched {
		p.watched = true
		time.AfterFunc(overdue, p.look)
	}
}

func (p *pipeline) look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watched = false
	if len(p.waiting) == 0 {
		return
	}
	if p.late() {
		p.underWay++
		go p.travel(p.take())
	}
	if len(p.waiting) > 0 {
		p.watch()
	}
}

// execute makes one round trip, and another one for scripts that Redis has
// forgotten (restart, failover, SCRIPT FLUSH): their source makes it know them again.
func (p *pipeline) execute(batch []*call) {
	batch = slices.DeleteFunc(batch, (*call).isTooLate)
	forgotten := p.roundTrip(batch, isNoScript)
	for _, c := range forgotten {
		c.request = c.request.withSource()
	}
	p.roundTrip(forgotten, func(error) bool { return false })
}

// roundTrip sends a batch and finishes its calls, but for those that are to be sent
// again.
func (p *pipeline) roundTrip(batch []*call, again func(error) bool) (unfinished []*call) {
	commands := make([]once, len(batch))
	for i, c := range batch {
		commands[i] = once{redis.NewCmd(c.ctx, c.request.line...)}
	}
	trip := p.attended(batch, commands)
	var worst error // of those that time may mend
	for i, c := range batch {
		reply, failure := commands[i].result(trip)
		if failure != nil && isTransient(failure) {
			worst = failure
		}
		if again(failure) {
			unfinished = append(unfinished, c)
		} else {
			c.finish(reply, failure)
		}
	}
	if p.after != nil && len(batch) > 0 {
		p.after(worst)
	}
	return unfinished
}

func (p *pipeline) attended(batch []*call, commands []once) error {
	if p.attend != nil && len(batch) > 0 {
		defer p.attend(batch)()
	}
	return p.send(batch, commands)
}

// send hands commands to the client, which notes in each what became of it. One by
// itself goes the plain way, where the client's pool and hooks see it as any other.
func (p *pipeline) send(batch []*call, commands []once) error {
	switch len(commands) {
	case 0:
		return nil
	case 1:
		return p.client.Process(batch[0].ctx, commands[0])
	}
	ctx, cancel := tripContext(batch)
	defer cancel()
	pipe := p.client.Pipeline()
	for _, cmd := range commands {
		_ = pipe.Process(ctx, cmd) // only gathers
	}
	_, err := pipe.Exec(ctx)
	return err
}

// tripContext ends with the last of the callers' deadlines, and never if one has
// none. It carries nothing else of theirs: the trip is nobody's in particular.
func tripContext(batch []*call) (context.Context, context.CancelFunc) {
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
