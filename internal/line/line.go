package line

import (
	"errors"
	"math/rand/v2"
	"net"
	"time"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// Line is the local queue for one name: first come, first served. Only its head
// is represented in Redis; the others cost nothing.
//
// It is pure: each method is told of an event and of its time, changes the
// line, wakes waiters, and leaves in todo what else is to be done. It calls
// nobody, knows no clock and no mutex. [Lines] gives it these; the model
// checker of this package drives it through every order of events.
type Line struct {
	poll time.Duration // the longest pause between two questions

	holder    string // the token of this process that stands in the key, as far as known; empty: none
	waiters   row
	contended bool      // somebody has been seen to hold the lock; before that, nobody waits but asks
	inbox     *Inbox    // where its head's grants arrive; nil while nobody waits, or that is unknown
	place     int64     // of the line's ticket in the queue, us; 0: none. A head that gives up leaves it to the next
	outage    error     // why the last question was not answered, or nil
	sufferer  *Waiter   // the one that had asked it
	warned    bool      // of the outage
	turn      time.Time // since when it has had the lock without a break
	polling   time.Time // since when its heads have found no place in the queue, although there is an inbox

	todo *todo // where events leave what is to be done; the same for all lines
}

// todo is what an event leaves to be done: by Lines, once its mutex is free.
type todo struct {
	alarm time.Duration // the head is to be roused after it; 0: as before
	rouse *Waiter       // another one is to be roused, unless it is nil,
	after time.Duration // after this time

	queued, missed *Inbox    // a question with a ticket of it was queued, or was not
	sent           time.Time // when that was sent
	inVain         bool      // its tickets have not been queued for a while
	polls          time.Time // since when the line polls; zero: it does not
}

// head is the waiter that is represented in Redis, or nil.
func (l *Line) head() *Waiter { return l.waiters.first }

// empty tells whether it may be forgotten.
func (l *Line) empty() bool { return l.holder == "" && l.waiters.first == nil }

// listens tells whether its inbox should be open.
func (l *Line) listens() bool { return l.contended && l.waiters.first != nil }

// --- who stands in the line --------------------------------------------------

// localWait is how long a waiter that finds a holder of this process, and
// nobody waiting, relies on being brought along. The holder may have lost the
// lock without knowing it yet; but where sections are short it is not worth a
// request to find out.
const localWait = 25 * time.Millisecond

// join puts a waiter at the end.
func (l *Line) join(w *Waiter, now time.Time) {
	w.line, w.joined, w.state = l, now, inLine
	l.waiters.add(w)
	if l.head() == w {
		l.promote(now)
		l.askIn(w, min(w.due.Sub(now), localWait), now)
	}
}

// promote makes the first in line the head. If a lock of this process is before
// it, that one's release will bring it along; until then it looks after things
// once in a while.
func (l *Line) promote(now time.Time) {
	w := l.head()
	if l.holder != "" {
		w.state = relying
		l.askIn(w, l.longPause(w, now), now)
	} else {
		w.state = asking
		l.askIn(w, 0, now)
	}
}

// departure is how a waiter leaves.
type departure struct {
	held bool  // it has the lock
	err  error // else why it has not
	own  bool  // which says nothing about the others, and was no failure of Redis
}

// leave takes w out. A grant that came before is its own, and not to be lost:
// then leave returns that. Where nobody has had an answer yet the others must
// not fail one after the other.
func (l *Line) leave(w *Waiter, d departure, now time.Time) (late *Grant) {
	if !d.held {
		if late = w.taken(); late != nil && !w.Counts(*late, now) {
			late = nil
		}
	}
	w.gone, w.served = true, d.held || late != nil
	wasHead := l.head() == w
	l.waiters.remove(w)
	if w.served {
		l.hold(w.Token, now)
	}
	if l.turn.IsZero() {
		l.turn = now
	}
	if w.served || l.waiters.first == nil {
		l.place = 0
	}
	if wasHead && l.head() != nil {
		l.promote(now)
	}
	if !w.served && !l.contended {
		l.failed(d, now)
	}
	return late
}

// failed is told why the head has failed before there was any answer. What is
// sure to be everybody's failure is passed on. Else nobody can be given
// another's error, and all find out for themselves, at the same time: each
// waiting for those before it, on a server that is silent, would take a
// time-out for each.
func (l *Line) failed(d departure, now time.Time) {
	common := wire.Common(d.err)
	for w := l.waiters.first; w != nil; w = w.behind {
		switch {
		case common != nil:
			w.give(Grant{Err: common})
		case !d.own && w.state == inLine:
			w.state = asking
			l.askIn(w, 0, now)
		}
	}
}

// hold notes that a token of this process stands in the key.
func (l *Line) hold(token string, now time.Time) {
	l.holder = token
	l.answered()
	if l.turn.IsZero() {
		l.turn = now
	}
}

// lost notes that a token does not stand in the key any more, and that nobody
// was brought along: the head has to ask.
func (l *Line) lost(token string, now time.Time) {
	if l.holder != token {
		return
	}
	l.holder = ""
	if w := l.head(); w != nil {
		l.nudge(w, now)
	}
}

// answered notes that somebody holds the lock.
func (l *Line) answered() {
	l.contended, l.outage, l.sufferer, l.warned = true, nil, nil, false
}

// --- when a waiter asks ------------------------------------------------------

// nudge has w ask at once, because something has happened. An answer to an
// earlier question does not put that off.
func (l *Line) nudge(w *Waiter, now time.Time) {
	w.state, w.nudged = asking, true
	l.askIn(w, 0, now)
}

// askIn sets when w asks Redis next. There is one timer for the line, because a
// waiter that had its own would have to be woken to set it when it becomes the
// head, and most heads have the lock before they are due.
func (l *Line) askIn(w *Waiter, d time.Duration, now time.Time) {
	if w.nudged {
		d = 0
	}
	w.due = now.Add(d)
	switch {
	case d <= 0:
		w.rouse()
	case l.head() == w:
		l.todo.alarm = d
	default: // see failed: a try or two
		l.todo.rouse, l.todo.after = w, d
	}
}

// waitsItsTurn tells whether w has to do nothing before it is the head.
func (l *Line) waitsItsTurn(w *Waiter) bool {
	turn := l.head() != w && l.contended
	if turn {
		w.state, w.due = inLine, time.Time{}
	}
	return turn
}

// givesWay lets the next in line ask, in a while. w, which is the head, goes to
// the end: a hook that refuses w by its ctx would keep it from the lock for as
// long as w waits, and with it everybody behind. w's ticket may stand in the
// queue all the same, and counts.
func (l *Line) givesWay(w *Waiter, d time.Duration, now time.Time) {
	l.waiters.remove(w)
	l.waiters.add(w)
	w.state, w.due = inLine, time.Time{}
	next := l.head()
	next.state = polling
	next.pause = w.pause // where all fail, the pauses grow as they do for one
	l.askIn(next, d, now)
}

// next is what w does next: take a grant, or else ask if it is due, and else
// sleep.
func (l *Line) next(w *Waiter, now time.Time) (g *Grant, due bool) {
	if g = w.taken(); g != nil {
		return g, false
	}
	due = !w.due.IsZero() && !w.due.After(now)
	if !due {
		w.sleeps()
	}
	return nil, due
}

// earliestLook is when the head of a line asks for the first time whether it
// has missed something. Where sections are short it has the lock before.
const earliestLook = 100 * time.Millisecond

// longPause is how long w relies on being told of everything: as long again as
// it has waited, but not past the poll interval. So a holder that tells nobody
// (another library, a key deleted by hand) makes nobody wait more than twice as
// long, and many names that are held for long cost one question per poll
// interval. What w is waiting for may have gone to others meanwhile: its time
// goes on counting, or a name that is in demand would be asked for ten times a
// second by each process.
func (l *Line) longPause(w *Waiter, now time.Time) time.Duration {
	return jittered(min(max(earliestLook, now.Sub(w.joined)), l.poll))
}

// jittered keeps the waiters of many processes apart.
func jittered(d time.Duration) time.Duration { return d - rand.N(d/8+1) }

// leasePause is how long w leaves a holder alone whose lease ends in remaining
// (negative: never): not past its end, and no longer than longPause. While w
// waits, the lock may go to others with shorter leases, which may die; w's own
// TTL is the best guess of theirs, and once a second is often enough.
func (l *Line) leasePause(w *Waiter, remaining time.Duration, now time.Time) time.Duration {
	d := min(l.longPause(w, now), max(w.TTL, time.Second))
	if remaining < 0 {
		return d
	}
	return min(d, remaining+time.Millisecond+rand.N(5*time.Millisecond))
}

// --- questions and answers ---------------------------------------------------

// Question is what a waiter asks of Redis.
type Question struct {
	Inbox  string // of the ticket that asks for a place in the queue; empty: there is none
	Ticket string // its text, if that was prepared
	Place  int64  // to stand at, us; 0: the last
	Stale  string // the inbox of an earlier ticket, to be withdrawn, or empty
	Alone  bool   // it shares no round trip

	// Expecting says that a grant may come before the answer: w has a ticket,
	// or a release of this process can bring it along.
	Expecting bool
}

// begin notes that w begins a question. If the inbox in is live the question
// carries a ticket.
//
// One that is not the head has no ticket: a process has one place in a queue.
func (l *Line) begin(w *Waiter, in *Inbox, now time.Time) Question {
	w.state, w.nudged, w.asked = asking, false, nil
	q := Question{Alone: w.apart}
	if l.head() != w {
		w.sleeps()
		q.Expecting = true
		return q
	}
	if inbox := in.LiveID(); inbox != None {
		l.expectGrant(w, inbox, now)
		w.asked = in
		q.Inbox, q.Ticket, q.Place, q.Stale = inbox, w.ticketFor(inbox), l.place, w.stale
	}
	if q.Expecting = q.Inbox != "" || l.contended || !w.ticketed.IsZero(); q.Expecting {
		w.sleeps()
	}
	return q
}

// expectGrant is told that a ticket of w is about to be sent. Until the
// registration is answered, all that is known of a grant is that it is not
// older than the first ticket.
func (l *Line) expectGrant(w *Waiter, inbox string, now time.Time) {
	if inbox != None && inbox != w.inbox {
		w.stale, w.inbox = w.inbox, inbox
	}
	if w.ticketed.IsZero() {
		w.ticketed = now
	}
	if w.registered == nil {
		w.registered = &registration{sent: w.ticketed}
	}
}

// Answer is what a question came to.
type Answer struct {
	Sent    time.Time // the question
	Granted bool      // the lock is w's
	Queued  bool      // somebody else has it, and w's ticket stands in the queue

	Remaining time.Duration // of the other holder's lease; negative without an end
	Server    int64         // time of the server, us

	Err     error // there was no answer
	Lasting bool  // and asking again does not mend that
	Opposed bool  // somebody else has a part of the servers
}

// learned notes what a question came to, and when the next one is due. It
// returns the error that ends w's waiting, if it has to end: one that waiting
// does not mend, or a few failures before there was any answer.
func (l *Line) learned(w *Waiter, a Answer, now time.Time) error {
	w.apart = false
	switch {
	case a.Granted:
	case a.Err != nil:
		return l.unanswered(w, a, now)
	case a.Queued:
		w.stale = ""
		l.todo.queued, l.todo.sent = w.asked, a.Sent
		l.enqueued(w, registration{sent: a.Sent, server: a.Server})
		l.askIn(w, l.leasePause(w, a.Remaining, now), now)
	default:
		l.notQueued(w, a.Sent, now)
		l.unqueued(w, a.Remaining, now)
	}
	return nil
}

func (l *Line) unanswered(w *Waiter, a Answer, now time.Time) error {
	if wire.IsOutage(a.Err) && !errors.Is(a.Err, net.ErrClosed) { // by the caller: its client says so next
		l.outage, l.sufferer = a.Err, w
	}
	if a.Opposed {
		l.contended = true // nodes that are down are waited out, as the holder is
	}
	if !l.waitsOut(w, a) {
		return a.Err
	}
	another := wire.MaybeAnothers(a.Err)
	w.apart = another && (l.contended || w.tries == wire.Tries-1)
	d := min(w.pause.Next(), jittered(l.poll))
	switch {
	case l.waitsItsTurn(w):
	case another && l.contended && w.behind != nil:
		l.givesWay(w, d, now)
	default:
		w.state = polling
		l.askIn(w, d, now)
	}
	return nil
}

// waitsOut is the verdict on a failure.
func (l *Line) waitsOut(w *Waiter, a Answer) bool {
	if l.contended {
		return wire.IsOutage(a.Err)
	}
	w.tries++
	return w.tries < wire.Tries && !a.Lasting
}

func (l *Line) enqueued(w *Waiter, r registration) {
	w.state, w.registered = queued, &r
	w.pause, l.polling = wire.Backoff{}, time.Time{}
	l.answered()
	if l.place == 0 {
		l.place = r.server
	}
}

// unqueued notes that somebody else has the lock, and that w is not in the
// queue: it has to poll.
func (l *Line) unqueued(w *Waiter, remaining time.Duration, now time.Time) {
	l.answered()
	if l.waitsItsTurn(w) {
		return
	}
	w.state, w.registered, l.place = polling, nil, 0
	d := l.leasePause(w, remaining, now)
	if l.inbox != nil {
		if l.polling.IsZero() {
			l.polling = now
		}
		l.todo.polls = l.polling
	}
	if !l.inbox.Flaps() { // else pushes are about to come back, again and again
		d = min(d, w.pause.Next())
	}
	l.askIn(w, d, now)
}

// notQueued notes that w is not in the queue although its question asked for
// that: the inbox is not subscribed where the question was executed.
func (l *Line) notQueued(w *Waiter, sent, now time.Time) {
	l.todo.missed, l.todo.sent = w.asked, sent
	l.todo.inVain = !l.polling.IsZero() && now.Sub(l.polling) >= PollingSaid
}

// lastAnswer is what is known of w's lock, see [Lines.LastAnswer].
func (l *Line) lastAnswer(w *Waiter) (contended bool, outage error) {
	if l.outage == nil || l.sufferer == w {
		return l.contended, l.outage
	}
	return l.contended, wire.Shareable(l.outage)
}

// newOutage is an outage that nobody was warned of yet, or nil.
func (l *Line) newOutage() error {
	if l.outage == nil || l.warned || !l.contended {
		return nil
	}
	l.warned = true
	return l.outage
}

// --- grants ------------------------------------------------------------------

// Without an inbox, nobody stands in the queue: other processes find the lock
// by polling, or never, if it is always handed on here. So it is left free for
// a while now and then. With an inbox, the queue sees to it that processes take
// turns.
const (
	longestTurn = 250 * time.Millisecond
	turnPause   = 100 * time.Millisecond
)

// bring is the waiter that the release of a token brings along, if anybody
// waits, and the inbox of its ticket.
func (l *Line) bring(token string, now time.Time) (w *Waiter, inbox string) {
	if l.holder == token {
		l.holder = ""
	}
	if w = l.head(); w == nil {
		return nil, ""
	}
	inbox = l.inbox.LiveID()
	if inbox == None && now.Sub(l.turn) > longestTurn {
		l.turn = time.Time{}
		l.askIn(w, turnPause, now)
		return nil, ""
	}
	l.expectGrant(w, inbox, now)
	return w, inbox
}

// Next is what became of the ticket that a release has brought along.
type Next int64

// What can become of it.
const (
	NextNobody  Next = iota // nothing is known, or the lock is free
	NextGranted             // it has the lock
	NextQueued              // another one was before it, and it is in the queue
	NextPassed              // another one was before it, and it is not in the queue
)

// News is what a release has to say to the one that it has brought along.
type News struct {
	Next      Next
	Sent      time.Time // the release
	Fence     int64
	Server    int64
	Remaining time.Duration // of the other one's lease
	Failed    bool          // it has no reply
}

// brought tells w what became of it in a release.
func (l *Line) brought(w *Waiter, n News, now time.Time) {
	switch {
	case n.Failed:
		l.nudge(w, now)
	case n.Next == NextGranted:
		w.give(Grant{Fence: n.Fence, Server: n.Server, Anchor: n.Sent})
	case n.Next == NextQueued:
		l.enqueued(w, registration{sent: n.Sent, server: n.Server})
		l.askIn(w, l.leasePause(w, n.Remaining, now), now)
	case n.Next == NextPassed:
		l.unqueued(w, n.Remaining, now)
	default:
		l.nudge(w, now)
	}
}

// pushed hands w a grant from the inbox.
func (l *Line) pushed(w *Waiter, g Grant, now time.Time) {
	if g.Fence == 0 || w.registered == nil || !plausible(g, *w.registered, now) {
		l.nudge(w, now) // Redis will tell
		return
	}
	g.Anchor = anchorOf(g, *w.registered, now)
	w.give(g)
}

// changed is told that an inbox has become live, so that the head can get into
// the queue; or that it has failed: then a head asks that relies on it, since
// its ticket is dead. The others ask anyhow.
func (l *Line) changed(in *Inbox, live bool, now time.Time) {
	w := l.head()
	if l.inbox != in || w == nil || l.holder != "" && w.registered == nil {
		return // nobody, or one that a local release will bring along
	}
	if !live {
		if w.registered == nil {
			return
		}
		w.registered = nil
	}
	l.nudge(w, now)
}
