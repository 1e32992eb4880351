package redislock

// How waiting works. Goroutines of one Locker that wait for the same name stand
// in a line; only its head is represented in Redis.
//
//	  Acquire
//	     │ joins
//	     ▼
//	  in line          until everybody before it has left; then it is the head:
//	     │
//	     ├─ this Locker holds the lock ─► relying
//	     └─ else ───────────────────────► asking
//
//	  in line ── the head failed before there was any answer ────► asking, without a ticket
//
//	  relying ── release of this Locker gave it the lock ────────► lock
//	          ── that release let the queue go first ────────────► queued
//	          ── due or nudged ──────────────────────────────────► asking
//	  asking  ── the lock was free, or is its own already ───────► lock
//	          ── somebody else has it, and it has a ticket ──────► queued
//	          ── somebody else has it, and there is no inbox ────► polling
//	          ── no answer: as polling; before there was any: error after three tries
//	  queued  ── push ───────────────────────────────────────────► lock
//	          ── the holder's lease is over, or nudged, or the pause is ─► asking
//	  polling ── 10 to 500 ms are over, or nudged ───────────────► asking
//
//	  from each of them: ctx ended ► error; a ticket or grant is undone, and the next
//	  in line is the head. A grant that came before counts: it is a lock, no error.
//
// Whatever happens to a head that can mean that it missed something (the inbox
// came up or went down, a lock of this Locker was lost, a release got no reply,
// a grant came too late) nudges it: it asks at once, and an answer to an
// earlier question does not put that off. So a head always has a time at which
// it asks next: after as long again as it has waited, and the longest pause is
// the poll interval. Asking is harmless: the script knows the token.
//
// A ticket in Redis:
//
//	  none    ── acquire.lua: taken, inbox subscribed ───────────► queued
//	          ── release.lua: brought along, another went first ─► queued
//	          ── release.lua: brought along, queue empty ────────► granted, told by the reply
//	  queued  ── release.lua: first, inbox live ─────────────────► granted, told by a push
//	          ── the same, but nobody listens to its inbox ──────► none (its process is dead, or will ask)
//	          ── acquire.lua: the lock is found free ────────────► none, told to ask: queued again if it is alive
//	          ── acquire.lua: first of those who have answered ──► granted, told by a push
//	          ── undo: its waiter gave up ───────────────────────► none
//	  granted ── its waiter has the lock, or finds it by asking
//	          ── undo: its waiter has gone ──────────────────────► released, to the next
//
// A ticket that is popped or lost while its head still waits is queued again by
// the head's next question, at the place it had. A head that gives up leaves
// its place to the next in its line.
//
// model_test.go enumerates the interleavings of all this.

import (
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/e2e3f2a3/redislock/internal/line"
	"github.com/e2e3f2a3/redislock/internal/wire"
)

// lines holds what a Locker knows of each name that it holds or waits for.
type lines struct {
	mu    sync.Mutex
	names map[string]*localLine // by lock key
	heads map[string]*waiter    // by token: those a grant may be pushed to
}

// localLine is the local queue for one name: first come, first served. Only its
// head is represented in Redis; the others cost nothing.
type localLine struct {
	holder    *Lock // the lock of this Locker that stands in the key, as far as known
	waiters   row
	contended bool        // somebody has been seen to hold the lock; before that, nobody waits but asks
	inbox     *line.Inbox // where its head's grants arrive; nil while nobody waits, or that is unknown
	place     int64       // of the line's ticket in the queue, us; 0: none. A head that gives up leaves it to the next
	outage    error       // why the last question was not answered, or nil
	sufferer  *waiter     // the one that had asked it
	warned    bool        // of the outage
	turn      time.Time   // since when it has had the lock without a break
	polling   time.Time   // since when its heads have found no place in the queue, although there is an inbox

	alarm *time.Timer // rouses the head when it is due; nil until one has had to wait for that
}

// waiter is one goroutine that waits for a lock, in (*waiter).run. What others
// change is guarded by lines.mu.
type waiter struct {
	a     *acquisition
	line  *localLine
	left  bool         // its line
	lock  *Lock        // what it has left with, if anything
	tries int          // requests that failed before there was any answer
	pause wire.Backoff // between questions of one that is not in the queue
	apart bool         // its next question travels alone
	asked *line.Inbox  // whose ticket its last question carried; nil: it had none

	joined     time.Time     // its line
	due        time.Time     // when it asks Redis next; zero: not while others are before it
	nudged     bool          // something has happened since it began its last question: it is due
	ticketed   time.Time     // when its first ticket was sent; zero: none was
	registered *registration // the latest of its ticket; nil: it has none in the queue
	stale      string        // a ticket with another inbox, which may stand in the queue: the slot has moved

	grant    *grant // the first that has arrived, unless it was taken
	reported bool   // it has something in the log

	wake chan struct{} // it is due, or has a grant; nil while nobody sleeps on it

	before, behind *waiter // in its line
}

// unusedLines keeps lines for the next acquisition: one that is not waited for
// comes and goes with each.
var unusedLines = sync.Pool{New: func() any { return new(localLine) }}

// at finds the line for a key. A line exists while it has a holder or waiters.
func (ls *lines) at(key string) *localLine {
	l := ls.names[key]
	if l == nil {
		if ls.names == nil {
			ls.names = make(map[string]*localLine)
		}
		l = unusedLines.Get().(*localLine)
		ls.names[key] = l
	}
	return l
}

// tidy follows every change of a line: it forgets an empty one, and minds that
// the inbox is open while somebody waits: the one on the server where the key
// stands now.
func (ls *lines) tidy(key string, l *localLine, ins *line.Inboxes) {
	var in *line.Inbox
	if l.contended && l.waiters.first != nil {
		in = ins.Of(key)
	}
	if in != l.inbox {
		l.inbox.Need(false)
		in.Need(true)
		l.inbox, l.polling = in, time.Time{}
	}
	if l.holder == nil && l.waiters.first == nil && ls.names[key] == l {
		delete(ls.names, key)
		if l.alarm != nil {
			l.alarm.Stop()
		}
		*l = localLine{}
		unusedLines.Put(l)
	}
}

// row is a list of waiters. Unlike container/list it allocates nothing for
// each.
type row struct{ first, last *waiter }

func (r *row) add(w *waiter) {
	if w.before = r.last; w.before != nil {
		w.before.behind = w
	} else {
		r.first = w
	}
	r.last = w
}

func (r *row) remove(w *waiter) {
	if w.before != nil {
		w.before.behind = w.behind
	} else {
		r.first = w.behind
	}
	if w.behind != nil {
		w.behind.before = w.before
	} else {
		r.last = w.before
	}
	w.before, w.behind = nil, nil
}

// head is the waiter that is represented in Redis, or nil.
func (l *localLine) head() *waiter {
	return l.waiters.first
}

// join puts a waiter at the end of its line.
func (ls *lines) join(w *waiter) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	w.line, w.joined = ls.at(w.a.keys.lock), time.Now()
	w.line.waiters.add(w)
	if w.line.head() == w {
		w.promote()
		w.askIn(min(time.Until(w.due), localWait))
	}
	ls.tidy(w.a.keys.lock, w.line, &w.a.lk.inboxes)
	if w.line.contended {
		w.a.prepareTicket(w.line.inbox.LiveID())
	}
}

// localWait is how long a waiter that finds a holder of this Locker, and nobody
// waiting, relies on being brought along. The holder may have lost the lock
// without knowing it yet; but where sections are short it is not worth a
// request to find out.
const localWait = 25 * time.Millisecond

// promote makes w the head. If a lock of this Locker is before it, that one's
// release will bring it along; until then it looks after things once in a
// while.
func (w *waiter) promote() {
	if w.line.holder != nil {
		w.askIn(w.longPause())
	} else {
		w.askIn(0)
	}
}

// leave takes w out of its line, with the lock it got, or with nil and why. A
// grant that came before is ours, and not to be lost: then leave returns its
// lock. Where nobody has had an answer yet the others must not fail one after
// the other.
func (ls *lines) leave(w *waiter, lock *Lock, err error) *Lock {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := w.line
	if lock == nil {
		lock = w.lastGrant()
	}
	wasHead := l.head() == w
	l.waiters.remove(w)
	w.left, w.lock = true, lock
	delete(ls.heads, w.a.token.text)
	if lock != nil {
		l.hold(lock)
	}
	if l.turn.IsZero() {
		l.turn = time.Now()
	}
	if lock != nil || l.waiters.first == nil {
		l.place = 0
	}
	if next := l.head(); wasHead && next != nil {
		next.promote()
	}
	if lock == nil && !l.contended {
		l.failed(err)
	}
	ls.tidy(w.a.keys.lock, l, &w.a.lk.inboxes)
	return lock
}

// lastGrant is the lock of a grant that w has not looked at, or nil.
func (w *waiter) lastGrant() *Lock {
	if g := w.taken(); g != nil {
		return w.lockOf(*g)
	}
	return nil
}

// failed is told why the head of a line has failed before there was any answer.
// What is sure to be everybody's failure is passed on. Else nobody can be given
// another's error, and all find out for themselves, at the same time: each
// waiting for those before it, on a server that is silent, would take a
// time-out for each.
func (l *localLine) failed(err error) {
	common := wire.Common(err)
	for w := l.waiters.first; w != nil; w = w.behind {
		switch {
		case common != nil:
			w.give(grant{err: common})
		case !isOwn(err) && w.due.IsZero():
			w.askIn(0)
		}
	}
}

// isOwn tells whether a failure says nothing about the others in a line, and
// was no failure of Redis: it is due to the ctx or to the TTL of the caller
// that failed, or a panic.
func isOwn(err error) bool {
	var stray *wire.StrayError
	return wire.IsContextError(err) || errors.Is(err, errLate) || errors.Is(err, errInterrupted) || errors.As(err, &stray)
}

// hold notes that lock stands in the key, unless it has ended by now.
func (l *localLine) hold(lock *Lock) {
	if cause, _ := lock.term.Peek(); cause == nil {
		l.holder = lock
		l.answered()
		if l.turn.IsZero() {
			l.turn = time.Now()
		}
	}
}

// answered notes that somebody holds the lock.
func (l *localLine) answered() {
	l.contended, l.outage, l.sufferer, l.warned = true, nil, nil, false
}

// held is hold for a lock that nobody here had to wait for.
func (ls *lines) held(lock *Lock) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.at(lock.keys.lock)
	l.hold(lock)
	ls.tidy(lock.keys.lock, l, &lock.lk.inboxes)
}

// lost notes that lock does not stand in the key any more, and that nobody was
// brought along: the head has to ask.
func (ls *lines) lost(lock *Lock) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.names[lock.keys.lock]
	if l == nil || l.holder != lock {
		return
	}
	l.holder = nil
	if w := l.head(); w != nil {
		w.nudge()
	}
	ls.tidy(lock.keys.lock, l, &lock.lk.inboxes)
}

// givesWay lets the next in line ask, in a while. w, which is the head, goes to
// the end: a hook that refuses w by its ctx would keep it from the lock for as
// long as w waits, and with it everybody behind. w's ticket may stand in the
// queue all the same, and counts.
func (w *waiter) givesWay(d time.Duration) {
	l := w.line
	l.waiters.remove(w)
	l.waiters.add(w)
	w.due = time.Time{}
	next := l.head()
	next.pause = w.pause // where all fail, the pauses grow as they do for one
	next.askIn(d)
}

// nudge has w ask at once, because something has happened. An answer to an
// earlier question does not put that off.
func (w *waiter) nudge() {
	w.nudged = true
	w.askIn(0)
}

// askIn sets when w asks Redis next.
func (w *waiter) askIn(d time.Duration) {
	if w.nudged {
		d = 0
	}
	w.due = time.Now().Add(d)
	switch {
	case d <= 0:
		w.rouse()
	case w.line.head() == w:
		w.a.lk.lines.setAlarm(w.a.keys.lock, w.line, d)
	default: // see (*localLine).failed: a try or two
		time.AfterFunc(d, w.a.lk.lines.rouse(w))
	}
}

// rouse returns what rouses w.
func (ls *lines) rouse(w *waiter) func() {
	return func() {
		ls.mu.Lock()
		defer ls.mu.Unlock()
		w.rouse()
	}
}

// waitsItsTurn tells whether w has to do nothing before it is the head.
func (w *waiter) waitsItsTurn() bool {
	turn := w.line.head() != w && w.line.contended
	if turn {
		w.due = time.Time{}
	}
	return turn
}

// setAlarm has a line's head roused in a while. It is one timer for the line,
// because a waiter that had its own would have to be woken to set it when it
// becomes the head, and most heads have the lock before they are due.
func (ls *lines) setAlarm(key string, l *localLine, d time.Duration) {
	if l.alarm != nil {
		l.alarm.Reset(d)
		return
	}
	l.alarm = time.AfterFunc(d, func() {
		ls.mu.Lock()
		defer ls.mu.Unlock()
		if l := ls.names[key]; l != nil && l.head() != nil { // perhaps another line by now; it looks in vain
			l.head().rouse()
		}
	})
}

// rouse has w look again, if it sleeps.
func (w *waiter) rouse() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// sleeps makes sure that w can be roused.
func (w *waiter) sleeps() {
	if w.wake == nil {
		w.wake = make(chan struct{}, 1)
	}
}

// taken is the grant that has arrived, or nil.
func (w *waiter) taken() *grant {
	g := w.grant
	w.grant = nil
	return g
}

// take is taken for w itself.
func (ls *lines) take(w *waiter) *grant {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return w.taken()
}

// askAgain nudges w itself.
func (ls *lines) askAgain(w *waiter) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	w.nudge()
}

// next is what w does next: take a grant, or else ask if it is due, and else
// sleep.
func (ls *lines) next(w *waiter) (g *grant, due bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if g = w.taken(); g != nil {
		return g, false
	}
	due = !w.due.IsZero() && time.Until(w.due) <= 0
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
func (w *waiter) longPause() time.Duration {
	return jittered(min(max(earliestLook, time.Since(w.joined)), w.a.lk.opts.pollInterval))
}

// jittered keeps the waiters of many processes apart.
func jittered(d time.Duration) time.Duration { return d - rand.N(d/8+1) }

// leasePause is how long w leaves a holder alone whose lease ends in left
// (negative: never): not past its end, and no longer than longPause. While w
// waits, the lock may go to others with shorter leases, which may die; w's own
// TTL is the best guess of theirs, and once a second is often enough.
func (w *waiter) leasePause(left time.Duration) time.Duration {
	d := min(w.longPause(), max(w.a.ttl, time.Second))
	if left < 0 {
		return d
	}
	return min(d, left+time.Millisecond+rand.N(5*time.Millisecond))
}

// bring is the waiter that the release of lock brings along, if anybody waits,
// and the inbox of its ticket.
func (ls *lines) bring(lock *Lock) (w *waiter, inbox string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.names[lock.keys.lock]
	if l == nil {
		return nil, ""
	}
	if l.holder != nil && l.holder.token.text == lock.token.text { // Resume makes a second handle
		l.holder = nil
	}
	if w = l.head(); w == nil {
		ls.tidy(lock.keys.lock, l, &lock.lk.inboxes)
		return nil, ""
	}
	inbox = l.inbox.LiveID()
	if inbox == line.None && time.Since(l.turn) > longestTurn {
		l.turn = time.Time{}
		w.askIn(turnPause)
		return nil, ""
	}
	ls.expectGrant(w, inbox)
	return w, inbox
}

// Without an inbox, nobody stands in the queue: other processes find the lock
// by polling, or never, if it is always handed on here. So it is left free for
// a while now and then. With an inbox, the queue sees to it that processes take
// turns.
const (
	longestTurn = 250 * time.Millisecond
	turnPause   = 100 * time.Millisecond
)

// expectGrant makes w known to the inbox, before its ticket is sent. Until the
// registration is answered, all that is known of a grant is that it is not
// older than the first ticket.
func (ls *lines) expectGrant(w *waiter, inbox string) {
	if inbox != line.None && inbox != w.a.inbox {
		if w.a.inbox != "" {
			w.stale = w.a.ticket(w.a.inbox)
		}
		w.a.inbox = inbox
	}
	if ls.heads == nil {
		ls.heads = make(map[string]*waiter)
	}
	ls.heads[w.a.token.text] = w
	if w.ticketed.IsZero() {
		w.ticketed = time.Now()
	}
	if w.registered == nil {
		w.registered = &registration{sent: w.ticketed}
	}
}

// begin notes that w begins a question. If there is an inbox the question
// carries a ticket, which asks for a place in the queue. A grant may come
// before the answer if w has a ticket, or a release of this Locker can bring it
// along.
//
// One that is not the head has no ticket: a Locker has one place in a queue.
func (ls *lines) begin(w *waiter) (t ticketing, expecting bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	w.nudged, w.asked = false, nil
	if w.line.head() != w {
		w.sleeps()
		return t, true
	}
	in := w.line.inbox
	if in == nil { // nobody has waited yet; the inbox may be open all the same
		in = w.a.lk.inboxes.Of(w.a.keys.lock)
	}
	if inbox := in.LiveID(); inbox != line.None {
		ls.expectGrant(w, inbox)
		w.asked = in
		t = ticketing{inbox: inbox, ticket: w.a.ticket(inbox), place: w.line.place, stale: w.stale}
	}
	if expecting = t.ticket != "" || w.line.contended || !w.ticketed.IsZero(); expecting {
		w.sleeps()
	}
	return t, expecting
}

// learned notes what a question came to, and when the next one is due. It
// returns the error that ends w's waiting, if it has to end: one that waiting
// does not mend, or a few failures before there was any answer.
func (ls *lines) learned(w *waiter, sent time.Time, out outcome) error {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := w.line
	w.apart = false
	switch {
	case out.lock != nil:
	case out.err != nil:
		if wire.IsOutage(out.err) && !errors.Is(out.err, net.ErrClosed) { // by the caller: its client says so next
			l.outage, l.sufferer = out.err, w
		}
		if out.opposed {
			l.contended = true // nodes that are down are waited out, as the holder is
		}
		if err := w.verdict(out.err); err != nil {
			return err
		}
		w.apart = wire.MaybeAnothers(out.err) && (l.contended || w.tries == wire.Tries-1)
		d := min(w.pause.Next(), jittered(w.a.lk.opts.pollInterval))
		switch {
		case w.waitsItsTurn():
		case l.contended && w.behind != nil && wire.MaybeAnothers(out.err):
			w.givesWay(d)
		default:
			w.askIn(d)
		}
	case out.queued:
		w.stale = ""
		w.asked.Queued(sent)
		w.enqueued(registration{sent: sent, server: out.server})
		w.askIn(w.leasePause(out.left))
	default:
		w.notQueued(sent)
		w.unqueued(out.left)
	}
	ls.tidy(w.a.keys.lock, l, &w.a.lk.inboxes)
	return nil
}

// verdict on a failure: nil if it is waited out.
func (w *waiter) verdict(err error) error {
	if w.line.contended {
		if !wire.IsOutage(err) {
			return err
		}
		return nil
	}
	w.tries++
	if w.tries == wire.Tries || !worthRepeating(err) {
		return err
	}
	return nil
}

// lastAnswer is what is known of w's lock: whether somebody has been seen to
// hold it, and why the last question was not answered, in words that may be
// told w.
func (ls *lines) lastAnswer(w *waiter) (contended bool, outage error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := w.line
	if l.outage == nil || l.sufferer == w {
		return l.contended, l.outage
	}
	return l.contended, wire.Shareable(l.outage)
}

// newOutage is an outage that nobody was warned of yet, or nil.
func (ls *lines) newOutage(l *localLine) error {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l.outage == nil || l.warned || !l.contended {
		return nil
	}
	l.warned = true
	return l.outage
}

// brought tells w what became of it in a release. If w has left meanwhile, it
// returns with what.
func (ls *lines) brought(w *waiter, r releaseReply, err error) (left bool, lock *Lock) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	switch {
	case w.left:
		return true, w.lock
	case err != nil:
		w.nudge()
	case r.next == nextGranted:
		w.give(grant{fence: r.fence, server: r.server, anchor: r.sent})
	case r.next == nextQueued:
		w.enqueued(registration{sent: r.sent, server: r.server})
		w.askIn(w.leasePause(r.left))
	case r.next == nextPassed:
		w.unqueued(r.left)
	default:
		w.nudge()
	}
	return false, nil
}

// unqueued notes that somebody else has the lock, and that w is not in the
// queue: it has to poll.
func (w *waiter) unqueued(left time.Duration) {
	w.line.answered()
	if w.waitsItsTurn() {
		return
	}
	w.registered, w.line.place = nil, 0
	d, in := w.leasePause(left), w.line.inbox
	if in != nil {
		if w.line.polling.IsZero() {
			w.line.polling = time.Now()
		}
		in.Polls(w.line.polling)
	}
	if !in.Flaps() { // else pushes are about to come back, again and again
		d = min(d, w.pause.Next())
	}
	w.askIn(d)
}

// notQueued notes that w is not in the queue although its question asked for
// that: the inbox is not subscribed where the question was executed. On a
// cluster this is most often because the slot has moved, or is moving: the
// client will know in a moment.
func (w *waiter) notQueued(sent time.Time) {
	l, lk := w.line, w.a.lk
	switch {
	case w.asked == nil:
	case lk.clustered && (lk.inboxes.Of(w.a.keys.lock) != w.asked || l.polling.IsZero() || time.Since(l.polling) < line.PollingSaid):
	default:
		w.asked.NotQueued(sent)
	}
}

// askHead has the head of a line ask at once.
func (ls *lines) askHead(key string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l := ls.names[key]; l != nil && l.head() != nil {
		l.head().nudge()
	}
}

func (w *waiter) give(g grant) {
	if w.grant == nil { // else it has one already, for the same token
		w.grant = &g
		w.rouse()
	}
}

func (w *waiter) enqueued(r registration) {
	w.registered = &r
	w.pause, w.line.polling = wire.Backoff{}, time.Time{}
	w.line.answered()
	if w.line.place == 0 {
		w.line.place = r.server
	}
}

// pushed hands a grant from the inbox to the waiter it is for. It reports false
// if there is none.
func (ls *lines) pushed(token string, g grant) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	w := ls.heads[token]
	if w == nil {
		return false
	}
	now := time.Now()
	if g.fence == 0 || w.registered == nil || !plausible(g, *w.registered, now) {
		w.nudge() // Redis will tell
		return true
	}
	g.anchor = anchorOf(g, *w.registered, now)
	w.give(g)
	return true
}

// wakeHeads has the heads ask that have to do with an inbox: when it has become
// live all of them, to get into the queue; when it has failed those that rely
// on it, since their tickets are dead. The others ask anyhow.
func (ls *lines) wakeHeads(in *line.Inbox, live bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.names {
		w := l.head()
		if l.inbox != in || w == nil || l.holder != nil && w.registered == nil {
			continue // nobody, or one that a local release will bring along
		}
		if !live {
			if w.registered == nil {
				continue
			}
			w.registered = nil
		}
		w.nudge()
	}
}
