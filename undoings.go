package redislock

import (
	"container/heap"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

const (
	// undoTrips is how many round trips of undoing to one server are under way.
	// They are not those of a pipeline: what keeps or takes a lock waits for no
	// undoing.
	undoTrips = 2
	// undoOverdue is how long a round trip counts for that. A longer one may be
	// stuck while other connections work.
	undoOverdue = 250 * time.Millisecond
	// undoStuck is how many may be under way with those that are overdue: while
	// a server is silent no more connections and goroutines are used.
	undoStuck = 4
	// undoAbandoned is for how long one counts at all. The time-outs of a
	// client have come by then; one without time-outs may never let go of a
	// connection that is dead.
	undoAbandoned = 6 * time.Second
	// undoTimeout bounds what a client waits for before it sends: a connection.
	undoTimeout = 5 * time.Second
	// undoBatch and undoBytes bound how many looks travel together: so many
	// that the backlog of an outage is gone soon after it, and that during the
	// outage looks are sent about as fast as requests fail. Redis reads what
	// arrives on one connection in pieces of 16 KiB or a little more, and
	// serves others in between.
	undoBatch = 1024
	undoBytes = 256 << 10
	// undoRest is the longest pause after a round trip that brought no answer.
	undoRest = time.Second
)

// undoings are all of a Locker. They travel by the server, each with round
// trips of its own, so that a silent node of a cluster holds up nothing on the
// others. There is a goroutine for each round trip under way, and a timer
// between them; nothing while there is nothing to undo.
type undoings struct {
	conn wire.Conn
	opts *options

	freed func(key string)   // is told that a lock is free now, as far as known; may be nil
	ended func(token string) // is told, under the mutex, that Redis does not have a token any more; may be nil

	mu      sync.Mutex
	byToken map[string]*undoing
	servers map[string]*cleaner // as wire.Engine.Home names them
}

// add begins an undoing, or makes it a part of one that is under way for the
// token.
func (us *undoings) add(u *undoing) {
	u, calls := us.enter(u)
	if len(calls) == 0 {
		return
	}
	ended := func() { us.callEnded(u) }
	for _, c := range calls {
		c.WhenDone(ended)
	}
}

// enter returns the calls that are under way.
func (us *undoings) enter(u *undoing) (entered *undoing, calls []*wire.Call) {
	us.mu.Lock()
	defer us.mu.Unlock()
	now := time.Now()
	due := u.due // of the first look
	if due.Before(now) {
		due = now
	}
	u.ctx = context.WithoutCancel(u.ctx)
	u.place, u.pause = nowhere, undoPause
	u.patience = now.Add(undoBound + u.lifetime(us.opts))
	u.update()
	if u.void() {
		return u, nil
	}
	calls = slices.Clone(u.calls)
	if known := us.byToken[u.token.text]; known != nil && known.join(u) {
		u = known
	} else {
		if us.byToken == nil {
			us.byToken = make(map[string]*undoing)
		}
		us.byToken[u.token.text] = u
	}
	us.schedule(u, due).advance(now)
	return u, calls
}

// callEnded is told of each call that an undoing waits for. Once all have ended
// it is time to look: what they have brought about stands there now.
func (us *undoings) callEnded(u *undoing) {
	us.mu.Lock()
	defer us.mu.Unlock()
	if u.over || u.underWay() {
		return
	}
	u.update()
	if u.void() {
		us.finish(u)
		return
	}
	u.changed()
	u.since, u.pause = time.Time{}, undoPause
	now := time.Now()
	us.schedule(u, now).advance(now)
}

// pushed is told of a grant that nobody waits for. If its token is being
// undone, the lock is given back at once.
func (us *undoings) pushed(token string) {
	us.mu.Lock()
	defer us.mu.Unlock()
	u := us.byToken[token]
	if u == nil {
		return
	}
	u.stands = true
	u.changed()
	now := time.Now()
	us.schedule(u, now).advance(now)
}

// schedule sets when u is looked at next, on the server where its lock stands
// now.
func (us *undoings) schedule(u *undoing, due time.Time) *cleaner {
	server, _ := us.conn.Home(u.keys.lock)
	c := us.servers[server]
	if c == nil {
		if us.servers == nil {
			us.servers = make(map[string]*cleaner)
		}
		c = &cleaner{us: us, server: server}
		us.servers[server] = c
	}
	if u.place != nowhere && u.queue != &c.pending {
		heap.Remove(u.queue, u.place)
	}
	u.queue = &c.pending
	if u.place != nowhere {
		if due.Before(u.due) {
			u.due = due
			heap.Fix(&c.pending, u.place)
		}
		return c
	}
	u.due = due
	heap.Push(&c.pending, u)
	return c
}

func (us *undoings) finish(u *undoing) {
	u.over = true
	if u.place != nowhere {
		heap.Remove(u.queue, u.place)
	}
	if us.byToken[u.token.text] == u {
		delete(us.byToken, u.token.text)
	}
}

// again schedules the next look after one that did not end u, unless there is
// one already.
func (us *undoings) again(u *undoing, now time.Time, failed bool) {
	switch {
	case u.over || u.flying > 0 || u.place != nowhere:
	case u.isLate(now):
		us.rest(u)
	default:
		pause := u.pause
		u.pause *= 2
		if failed { // it is the server's fault, which may be back at any time
			pause = min(pause, undoRest)
		}
		due := now.Add(pause)
		if last := u.since.Add(undoBound); !u.since.IsZero() && due.After(last) {
			due = last
		}
		us.schedule(u, due)
	}
}

// rest ends an undoing whose time is over. One whose calls are still under way
// is looked at again when they have ended.
func (us *undoings) rest(u *undoing) {
	if !u.underWay() {
		us.finish(u)
	} else if u.place != nowhere {
		heap.Remove(u.queue, u.place)
	}
}

// cleaner makes the looks on one server. It is a group commit: a look leaves at
// once while few round trips are under way; else it leaves together with those
// that come meanwhile. It is guarded by undoings.mu, and exists while it has
// something to do.
type cleaner struct {
	us      *undoings
	server  string
	pending queueOfUndoings
	trips   []*cleaning

	pause     time.Duration // after the last round trip, if it brought no answer
	notBefore time.Time     // the end of that pause
	reviewed  time.Time
	alarm     *time.Timer
}

// cleaning is one round trip.
type cleaning struct {
	looks     []*undoLook
	began     time.Time
	abandoned bool // its undoings do not wait for it any more
}

// undoLook is one request to take back what stands there.
type undoLook struct {
	u       *undoing
	kept    minHold
	ticket  *ticket // to be withdrawn, or nil
	version int     // of u, when it was made
	last    bool    // nothing can come after it

	trip  *cleaning
	sent  atomic.Int64 // ns since the trip began; 0: not known to be sent
	found bool
	err   error
}

// Departs is told when the request is written to a connection.
func (l *undoLook) Departs() {
	l.sent.CompareAndSwap(0, max(1, int64(time.Since(l.trip.began))))
}

// sentAt is when it was sent, if it was.
func (l *undoLook) sentAt() (at time.Time, sent bool) {
	d := l.sent.Load()
	return l.trip.began.Add(time.Duration(d)), d > 0 || l.err == nil || wire.MaybeExecuted(l.err)
}

// advance does what is due.
func (c *cleaner) advance(now time.Time) {
	for _, t := range c.trips {
		if !t.abandoned && now.Sub(t.began) >= undoLimit {
			t.abandoned = true
			c.reclaim(t, now)
		}
	}
	for c.hasRoom(now) {
		t := c.take(now)
		if t == nil {
			break
		}
		c.trips = append(c.trips, t)
		go c.travel(t)
	}
	if c.isStuck(now) && now.Sub(c.reviewed) >= undoLimit {
		c.review(now)
	}
	c.setAlarm(now)
}

// reclaim has the undoings of a round trip that takes too long looked at once
// more, as soon as another one can begin.
func (c *cleaner) reclaim(t *cleaning, now time.Time) {
	for _, l := range t.looks {
		l.u.flying--
		if !l.u.over {
			l.u.failed = true
			c.us.schedule(l.u, now)
		}
	}
}

func (c *cleaner) hasRoom(now time.Time) bool {
	fresh, all := c.underWay(now)
	return fresh < undoTrips && all < undoStuck && !now.Before(c.notBefore)
}

// isStuck tells whether the server leaves everything unanswered, as far as
// known.
func (c *cleaner) isStuck(now time.Time) bool {
	_, all := c.underWay(now)
	return all >= undoStuck || now.Before(c.notBefore)
}

func (c *cleaner) underWay(now time.Time) (fresh, all int) {
	for _, t := range c.trips {
		switch age := now.Sub(t.began); {
		case age < undoOverdue:
			fresh++
			all++
		case age < undoAbandoned:
			all++
		}
	}
	return fresh, all
}

// take makes a round trip of what is due, or nil if nothing is.
func (c *cleaner) take(now time.Time) *cleaning {
	t := &cleaning{began: now}
	for size := 0; len(c.pending) > 0 && len(t.looks) < undoBatch && size < undoBytes; {
		u := c.pending[0]
		if u.due.After(now) {
			break
		}
		if home := c.us.schedule(u, now); home != c { // the slot has moved
			home.advance(now)
			continue
		}
		heap.Pop(&c.pending)
		u.update()
		if u.void() {
			c.us.finish(u)
			continue
		}
		u.flying++
		t.looks = append(t.looks, &undoLook{u: u, kept: u.kept, ticket: u.ticket, version: u.version, last: u.settled(), trip: t})
		size += u.ticket.size()
	}
	if len(t.looks) == 0 {
		return nil
	}
	return t
}

// review looks after those that wait while the server does not answer: it
// forgets those whose time is over, and finds out whether slots have got
// another server.
func (c *cleaner) review(now time.Time) {
	c.reviewed = now
	for _, u := range slices.Clone(c.pending) {
		u.update()
		switch {
		case u.void():
			c.us.finish(u)
		case u.isLate(now):
			c.us.rest(u)
		default:
			if home := c.us.schedule(u, u.due); home != c {
				home.advance(now)
			}
		}
	}
}

// setAlarm sets when there is something to do next, apart from what happens.
func (c *cleaner) setAlarm(now time.Time) {
	next := time.Time{}
	consider := func(at time.Time) {
		if at.After(now) && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	if len(c.pending) > 0 {
		consider(c.pending[0].due)
		consider(c.notBefore)
		consider(c.reviewed.Add(undoLimit))
	}
	for _, t := range c.trips {
		if !t.abandoned {
			consider(t.began.Add(undoLimit))
		}
		if len(c.pending) > 0 {
			consider(t.began.Add(undoOverdue))
			consider(t.began.Add(undoAbandoned))
		}
	}
	switch {
	case !next.IsZero() && c.alarm == nil:
		c.alarm = time.AfterFunc(next.Sub(now), c.wake)
	case !next.IsZero():
		c.alarm.Reset(next.Sub(now))
	case c.alarm != nil:
		c.alarm.Stop()
	}
	if len(c.pending) == 0 && len(c.trips) == 0 && c.us.servers[c.server] == c {
		delete(c.us.servers, c.server)
	}
}

func (c *cleaner) wake() {
	c.us.mu.Lock()
	defer c.us.mu.Unlock()
	c.advance(time.Now())
}

// travel makes a round trip, in a goroutine of its own.
func (c *cleaner) travel(t *cleaning) {
	for _, l := range t.looks {
		l.err = errInterrupted // until there is a result: a hook of the client may end the goroutine
	}
	defer c.arrived(t)
	ctx, cancel := t.context()
	defer cancel()
	c.send(ctx, t)
}

// context carries the values of a caller only where a look travels alone, as
// with all requests.
func (t *cleaning) context() (context.Context, context.CancelFunc) {
	ctx := context.Background()
	if len(t.looks) == 1 {
		ctx = t.looks[0].u.ctx
	}
	return context.WithTimeout(ctx, undoTimeout)
}

// send makes the requests.
//
// Each of them serves the queue, but brings nobody along: the head of this
// moment may have had the lock, and be gone, when it is executed. (Only a
// holder knows that the head cannot have it before.) So the head has to ask.
func (c *cleaner) send(ctx context.Context, t *cleaning) {
	conn := c.us.conn
	calls := make([]*wire.Call, len(t.looks))
	for i, l := range t.looks {
		calls[i] = wire.NewCall(ctx, l.request(c.us.opts))
	}
	conn.Travel(c.server, slices.Clone(calls)) // it does not keep the order
	var split []*undoLook
	var alone []*wire.Call
	for i, l := range t.looks {
		l.answered(calls[i])
		// The ticket has to wait until the slot has moved, but not the lock.
		if instead, possible := calls[i].Request.WhileMoving(l.err); possible {
			split, alone = append(split, l), append(alone, wire.NewCall(ctx, instead))
		}
	}
	conn.Travel(c.server, slices.Clone(alone))
	for i, l := range split {
		reason := l.err
		l.answered(alone[i])
		if l.err == nil && l.ticket != nil {
			l.err = reason
		}
	}
}

func (l *undoLook) request(opts *options) wire.Request {
	u := l.u
	args := releaseArgs{
		token: u.token, retention: opts.retention(MinTTL), ticket: l.ticket.text(opts.prefix, &u.keys, u.token), kept: l.kept,
	}
	r := args.request(undoLimit, &u.keys)
	r.Departure = l
	return r
}

// answered notes what became of the request.
func (l *undoLook) answered(c *wire.Call) {
	if !c.Finished() {
		return // interrupted
	}
	l.err = c.Err
	if l.err == nil {
		var r releaseReply
		r, l.err = parseRelease(c.Reply)
		l.found = r.found
	}
}

// arrived ends a round trip.
func (c *cleaner) arrived(t *cleaning) {
	for _, key := range c.settle(t) {
		if c.us.freed != nil {
			c.us.freed(key)
		}
	}
}

// settle takes note of what the looks came to. It returns the locks that are
// free now, as far as known.
func (c *cleaner) settle(t *cleaning) (freed []string) {
	c.us.mu.Lock()
	defer c.us.mu.Unlock()
	now := time.Now()
	c.trips = slices.DeleteFunc(c.trips, func(other *cleaning) bool { return other == t })
	answered := false
	for _, l := range t.looks {
		u := l.u
		if !t.abandoned {
			u.flying--
		}
		answered = answered || l.err == nil
		if l.found || l.err == nil && u.failed {
			freed = append(freed, u.keys.lock)
		}
		if !u.over {
			c.us.conclude(l, now)
		}
	}
	c.breathe(answered, now)
	c.advance(now)
	return freed
}

// conclude is told what a look came to.
func (us *undoings) conclude(l *undoLook, now time.Time) {
	u, current := l.u, l.version == l.u.version
	at, sent := l.sentAt()
	if sent && u.since.IsZero() && current {
		u.since = at
	}
	switch {
	case l.err == nil && current && l.last:
		if us.ended != nil {
			us.ended(u.token.text)
		}
		us.finish(u)
		return
	case isHopeless(l.err):
		us.rest(u)
		return
	case l.err == nil && current:
		u.stands = false // but there may be more to come
	case l.err != nil:
		u.failed = u.failed || sent
	}
	us.again(u, now, l.err != nil)
}

// breathe sets the pause after a round trip: none if the server has done
// anything.
func (c *cleaner) breathe(answered bool, now time.Time) {
	if answered {
		c.pause, c.notBefore = 0, time.Time{}
		return
	}
	c.pause = min(max(2*c.pause, undoPause), undoRest)
	c.notBefore = now.Add(c.pause)
}
