package line

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// This file checks the hand-over protocol by brute force: a small world is run
// through every order in which its events can happen, breadth first, so that a
// counterexample is a shortest one. The lines of its processes are real ones:
// each event of a line is an event of a [Line], see driver. The rest is a
// model: of the scripts (lua/), of what an acquisition and a release do
// (acquire.go, release.go, undo.go in the root), of inboxes and connections.
//
// # What is modelled
//
// One name. Redis: whose token the lock key holds, the queue of tickets by
// place, which inboxes count as subscribed. Processes with a Line each, and
// whether their inbox is live. Goroutines, one acquisition each: waiting with
// what they know (due, registered, a grant not yet taken, requests whose reply
// they did not see), holding, releasing, gone. And every message by itself:
// questions, releases with the ticket they bring along, undos, their replies,
// pushes. Messages overtake each other freely, as on a pool of connections.
//
// Events: a goroutine joins, asks, takes a grant, is cancelled at any moment,
// releases; a request is executed, a reply or push arrives. Faults, each out of
// a budget: a reply is lost, a request is given up and executed later, a push
// is lost, a subscription is cut (noticed by the server first, or by the
// process first), a process is killed. Lapses, out of another budget: a holder
// outlives its validity, a lease ends on the server, a grant is overdue when it
// arrives.
//
// # What is abstracted away
//
// Time. Of clocks the model knows only what the code relies on: the lease in
// Redis ends after the validity in the process (leaseFrom), so expire waits
// until nobody trusts the token, and a grant under way is late from then on
// (anchorOf). Pauses are "at once" or "poll"; a poll that fires while anything
// else is under way costs from a budget. A line that polls never has its turn
// for too long (longestTurn). A request that fails has timed out: it is not
// known to be another caller's fault, and no error for good. An undo, which
// really ends after 15 seconds, is repeated until it is answered, and its last
// look comes when no request of its acquisition is on its way any more. A
// roll-call is answered by all at once: a lock that is found free goes to the
// first live ticket. So what can happen between its parts is left out, and with
// it processes that are frozen: rollcall_test.go has those. Minimal holds and
// other marks, fences, errors of the server, renewals, Resume and the idle end
// of a subscription are left out. Goroutines of a process join in one order.
//
// # What is checked
//
//   - exclusion: whoever believes to hold the lock has its token in the key; so no
//     two do, and nobody does while the key holds another's.
//   - wake-up: without faults and lapses, when nothing is under way but polls, no
//     live waiter waits for a lock that nobody holds. With them, from every state
//     where nothing is under way but polls, the polls alone get all who wait served.
//   - nothing left: when nothing is under way, neither the key nor the queue holds
//     the token of one that has left (of a killed process it may).
//   - order: the lock never goes past a live ticket that was there before, and never
//     to a dead one.
//   - truth: Release reports "not held" only if the lock had really ended.
//
// That the model is able to fail is shown by TestModelFindsFlaws: each flaw of
// a list, when built in, must produce a counterexample.

const (
	maxProcs   = 3
	maxWaiters = 4
	maxQueue   = maxWaiters
	maxNet     = 10
)

// token numbers the goroutines from 1, since each acquires once; 0 is nobody.
type token uint8

type phase uint8

const (
	idle      phase = iota
	waiting         // in line
	undecided       // out of line, has not looked for a grant yet (flaw drainsLate only)
	holding         // has the lock; believes in it while valid
	releasing       // Release has begun
	done            // had the lock
	left            // gave up
	dead            // its process was killed
)

type due uint8

const (
	never  due = iota
	atOnce     // also: after a short pause
	polls      // at the end of the lease it was told of, at the latest after a poll interval
)

type grantState uint8

const (
	noGrant grantState = iota
	freshGrant
	lateGrant // its lease has ended by now
)

// Registrations. One that is unanswered has no time of the server.
type regState uint8

const (
	unregistered regState = iota
	unanswered
	registered
)

type waiterState struct {
	phase  phase
	due    due
	asking bool // waits for the reply to a question
	known  bool // to the inbox (Lines.tokens)
	grants grantState
	does   state // of a Waiter
	nudged bool

	reg  regState
	regN uint8 // how many grants this token had been given when the registration was made

	given     uint8 // grants so far: stands for the server's clock
	queued    bool  // acquisition.queued: a ticket of it may have left the process
	uncertain bool  // acquisition.unanswered is not empty
	valid     bool  // the lease is trusted
	inTime    bool  // Lock.sentInTime
	lapsed    bool  // it ended before Release began, here or on the server

	toUndo, toConfirm, toSettle bool // steps of undo and settle that are still to come
}

type ticketState struct {
	tok   token
	place uint8
}

// Whether a subscription exists as the server sees it. A stale one counts as
// live but leads nowhere.
type subscription uint8

const (
	absent subscription = iota
	stale
	subscribed
)

type procState struct {
	sub    subscription
	live   bool // inbox.live
	holder token
	place  uint8 // Line.place
	seen   bool  // Line.contended
}

type kind uint8

const (
	none kind = iota
	question
	answer
	releaseOrder
	releaseAnswer
	push
)

type result uint8

const (
	nothing result = iota // release: free now, or not found
	granted
	inQueue
	refused // not ours, and not in the queue
)

type messageState struct {
	kind   kind
	tok    token // who asks, who releases, whom a push is for
	next   token // brought along
	ticket bool  // with a channel
	undo   bool
	orphan bool // nobody waits for the reply
	failed bool // given up with an error
	inTime bool // release: sent while the lease was trusted
	found  bool
	res    result
	late   bool  // grants, but the lease has ended
	place  uint8 // asked for; or the server's time
	n      uint8 // grants of tok (of next) when it was executed
}

type budget struct{ faults, cancels, lapses, polls uint8 }

type world struct {
	key    token
	queue  [maxQueue]ticketState
	net    [maxNet]messageState // sorted; the empty ones first
	procs  [maxProcs]procState
	w      [maxWaiters + 1]waiterState // by token
	budget budget
	broken verdict // by the last step
}

type verdict uint8

const (
	fine verdict = iota
	exclusion
	wakeUp
	nothingLeft
	order
	truth
)

func (v verdict) String() string {
	return [...]string{"fine", "exclusion", "wake-up", "nothing left", "order", "truth"}[v]
}

// flaws can be built into the model. The second group is how the code was
// before the model found what is wrong with it.
type flaws struct {
	acquireForgets   bool // acquire does not recognise its own token
	releaseUnchecked bool // release does not compare the token
	releaseKeepsOwn  bool // an undo does not withdraw the ticket
	releasePrefers   bool // the ticket brought along goes before the queue
	leaveWithoutUndo bool
	leaveNoPromote   bool // the next in line is not told that it is the head
	broughtForgets   bool // brought ignores who has left
	neverSettles     bool
	lateTrusted      bool // accept does not look at the lease
	deadServed       bool // tickets are not checked for a subscription
	noSentInTime     bool
	noPoll           bool // whoever is in the queue relies on the push alone

	drainsLate      bool // leave, and the look for a grant, are two steps
	stalePush       bool // a push from before the registration counts from the registration
	carrierForgot   bool // a given-up release is no request of the one it brought along
	queuedUnsaid    bool // release answers "queued" for a ticket without a channel too
	undoBrings      bool // an undo brings the head along, and brought ignores who has left with the lock
	ticketForgot    bool // a brought ticket counts only as long as the registration
	settleImpatient bool // settle does not wait for requests that ended in an error
	newsForgot      bool // an answer postpones what was set by news that is younger
}

type model struct {
	of        []int // the process of each token (index 0 unused)
	budget    budget
	deaf      [maxProcs]bool // subscriptions are refused
	listening bool           // they stand from the start
	reverse   bool           // of two tickets at one place the later token goes first
	kills     bool
	alike     bool // the processes have equally many goroutines: which of them joins first does not matter
	flaws     flaws
	driver    *driver
}

func (m *model) proc(s *world, t token) *procState { return &s.procs[m.of[t]] }

func (m *model) initial() (s world) {
	s.budget = m.budget
	for p := range m.procs() {
		if m.listening && !m.deaf[p] {
			s.procs[p] = procState{sub: subscribed, live: true}
		}
	}
	return s
}

func (m *model) procs() int          { return slices.Max(m.of) + 1 }
func (m *model) tokens() int         { return len(m.of) - 1 }
func (m *model) name(t token) string { return fmt.Sprintf("%c%d", 'A'+m.of[t], t) }
func (m *model) letter(p int) string { return string(rune('A' + p)) }
func (s *world) trusts(t token) bool { return s.w[t].valid && s.w[t].phase == holding }
func (m *model) alive(s *world, t token) bool {
	return m.proc(s, t).sub != absent || m.flaws.deadServed
}

// ---- Redis

// acquire is lua/acquire.lua.
func (m *model) acquire(s *world, q messageState) messageState {
	t := q.tok
	if s.key == t && !m.flaws.acquireForgets {
		return m.answer(s, q, granted)
	}
	if s.key == 0 {
		first, own := m.firstInQueue(s, onlyIf(q.ticket, t))
		if first.tok == 0 || own {
			m.handOver(s, t, first.place, false)
			return m.answer(s, q, granted)
		}
		m.handOver(s, first.tok, first.place, true)
	}
	if q.ticket && m.alive(s, t) {
		now := m.now(s)
		if q.place == 0 {
			q.place = now
		}
		m.enqueue(s, t, q.place)
		a := m.answer(s, q, inQueue)
		a.place = now
		return a
	}
	return m.answer(s, q, refused)
}

func onlyIf(ok bool, t token) token {
	if ok {
		return t
	}
	return 0
}

func (m *model) answer(s *world, q messageState, r result) messageState {
	return messageState{kind: answer, tok: q.tok, res: r, n: s.w[q.tok].given}
}

// release is lua/release.lua.
func (m *model) release(s *world, q messageState) messageState {
	a := messageState{kind: releaseAnswer, tok: q.tok, next: q.next, undo: q.undo, inTime: q.inTime}
	if s.key != q.tok && !(m.flaws.releaseUnchecked && s.key != 0) {
		if q.undo && !m.flaws.releaseKeepsOwn {
			s.withdraw(q.tok)
		}
		return a
	}
	a.found = true
	own, first := false, ticketState{}
	if q.next == 0 || !m.flaws.releasePrefers {
		first, own = m.firstInQueue(s, onlyIf(q.ticket, q.next))
	}
	if first.tok == 0 {
		if q.next == 0 {
			s.key = 0
			return a
		}
		first, own = ticketState{tok: q.next, place: m.now(s)}, true
	}
	m.handOver(s, first.tok, first.place, !own)
	switch {
	case own:
		a.res = granted
	case q.next == 0:
	case q.ticket:
		a.res, a.place = inQueue, m.now(s)
		m.enqueue(s, q.next, a.place)
	case m.flaws.queuedUnsaid:
		a.res = inQueue
	default:
		a.res = refused
	}
	a.n = s.w[q.next].given
	return a
}

// firstInQueue is first_in_queue: dead tickets before the first live one go
// too.
func (m *model) firstInQueue(s *world, own token) (first ticketState, isOwn bool) {
	for s.queue[0].tok != 0 {
		first = s.queue[0]
		copy(s.queue[:], s.queue[1:])
		s.queue[maxQueue-1] = ticketState{}
		if first.tok == own || m.alive(s, first.tok) {
			return first, first.tok == own
		}
	}
	return ticketState{}, false
}

// handOver is hand_over. It also watches over the order.
func (m *model) handOver(s *world, t token, place uint8, tell bool) {
	if s.key != t {
		s.w[t].given++
	}
	s.key = t
	for _, q := range s.queue {
		if q.tok != 0 && q.place < place && m.alive(s, q.tok) {
			s.broken = order
		}
	}
	if tell && m.proc(s, t).sub == absent {
		s.broken = order
	}
	if tell && m.proc(s, t).sub == subscribed && (s.w[t].phase == waiting || s.w[t].phase == undecided) {
		s.send(messageState{kind: push, tok: t, n: s.w[t].given})
	}
}

func (m *model) enqueue(s *world, t token, place uint8) {
	for i, q := range s.queue {
		switch {
		case q.tok == t:
			return
		case q.tok == 0 || q.place > place || q.place == place && (q.tok > t) != m.reverse:
			copy(s.queue[i+1:], s.queue[i:])
			s.queue[i] = ticketState{t, place}
			s.withdrawAfter(i, t)
			return
		}
	}
	panic("the queue is too small")
}

func (s *world) withdraw(t token) { s.withdrawAfter(-1, t) }

func (s *world) withdrawAfter(i int, t token) {
	for j := i + 1; j < maxQueue; j++ {
		if s.queue[j].tok == t {
			copy(s.queue[j:], s.queue[j+1:])
			s.queue[maxQueue-1] = ticketState{}
			return
		}
	}
}

// now is a time of the server later than all others in the state.
func (m *model) now(s *world) (now uint8) {
	s.places(func(p *uint8) { now = max(now, *p) })
	return now + 1
}

func (s *world) places(visit func(*uint8)) {
	for i := range s.queue {
		visit(&s.queue[i].place)
	}
	for i := range s.procs {
		visit(&s.procs[i].place)
	}
	for i := range s.net {
		visit(&s.net[i].place)
	}
}

// ---- the lines

func (m *model) head(s *world, p int) token {
	for t := 1; t <= m.tokens(); t++ {
		if m.of[t] == p && s.w[t].phase == waiting {
			return token(t)
		}
	}
	return 0
}

func (m *model) join(s *world, t token) {
	d := m.drive(s, m.of[t])
	s.w[t].phase = waiting
	d.line.join(d.waiter(t), d.now)
	d.done(s)
}

// leave takes t out of its line; it includes the end of (*acquisition).wait,
// and finish.
func (m *model) leave(s *world, t token, lock bool) {
	w := &s.w[t]
	d := m.drive(s, m.of[t])
	before := w.grants
	if m.flaws.drainsLate {
		d.waiters[t].grant = nil
	}
	late := d.line.leave(d.waiter(t), departure{held: lock, own: true}, d.now)
	if next := d.line.head(); next != nil && m.flaws.leaveNoPromote {
		next.due = time.Time{}
	}
	w.phase = left
	switch {
	case lock || late != nil:
		w.phase = holding
	case m.flaws.drainsLate:
		w.phase = undecided
	}
	d.done(s)
	w.known, w.due, w.asking, w.does, w.nudged = false, never, false, inLine, false
	w.grants = before // of what was there, see finish
	if w.phase != undecided {
		m.finish(s, t)
	}
}

// finish follows leave. A lock may have to be settled, a failure to be undone.
func (m *model) finish(s *world, t token) {
	w, p := &s.w[t], m.proc(s, t)
	if w.phase == undecided {
		w.phase = left
		if w.grants == freshGrant {
			w.phase, p.holder = holding, t
		}
	}
	w.uncertain = w.uncertain || m.underWay(s, t)
	if w.phase == holding {
		w.valid = true
		w.toSettle = w.uncertain && !m.flaws.neverSettles
	} else if !m.flaws.leaveWithoutUndo {
		w.toUndo = w.toUndo || w.queued || w.uncertain || w.reg != unregistered || w.grants != noGrant
		w.toConfirm = w.uncertain
	}
	w.queued, w.uncertain, w.grants, w.reg, w.regN = false, false, noGrant, unregistered, 0
}

// underWay tells whether a request of t may yet be executed that t cannot tell
// the result of.
func (m *model) underWay(s *world, t token) bool {
	for _, q := range s.net {
		if q.failed && m.flaws.settleImpatient {
			continue
		}
		if q.kind == question && q.tok == t || q.kind == releaseOrder && q.next == t && q.failed && !m.flaws.carrierForgot {
			return true
		}
	}
	return false
}

// lost: the lock of t is not trusted any more.
func (m *model) lost(s *world, t token) {
	d := m.drive(s, m.of[t])
	d.line.lost(tokens[t], d.now)
	d.done(s)
}

// bring is the one that a release of t brings along.
func (m *model) bring(s *world, t token) (next token, ticket bool) {
	d := m.drive(s, m.of[t])
	w, inbox := d.line.bring(tokens[t], d.now)
	d.done(s)
	if w == nil {
		return 0, false
	}
	next, ticket = d.tokenOf(w), inbox != None
	s.w[next].queued = s.w[next].queued || ticket && !m.flaws.ticketForgot
	return next, ticket
}

// brought tells t what became of it in a release.
func (m *model) brought(s *world, t token, r messageState, failed bool) {
	if t == 0 || s.w[t].phase == dead {
		return
	}
	w := &s.w[t]
	if w.phase != waiting {
		m.broughtLate(s, t, failed || r.res != nothing)
		return
	}
	d := m.drive(s, m.of[t])
	if m.flaws.newsForgot {
		d.waiters[t].nudged = false
	}
	next := [...]Next{nothing: NextNobody, granted: NextGranted, inQueue: NextQueued, refused: NextPassed}
	d.line.brought(d.waiter(t), News{
		Next: next[r.res], Sent: d.at(r.late), Fence: 1, Server: serverTime(r.n), Remaining: -1, Failed: failed,
	}, d.now)
	d.placed = r.place
	d.done(s)
	w.uncertain = w.uncertain || failed && !m.flaws.carrierForgot
}

// broughtLate is for one that has left meanwhile.
func (m *model) broughtLate(s *world, t token, concerned bool) {
	w := &s.w[t]
	switch {
	case !concerned || m.flaws.broughtForgets:
	case w.phase == left || w.phase == undecided:
		w.toUndo = true
		w.toConfirm = w.toConfirm || m.underWay(s, t)
	case !m.flaws.undoBrings:
		w.toSettle = true
	}
}

func (m *model) pushed(s *world, q messageState) {
	if w := &s.w[q.tok]; !w.known || w.phase != waiting {
		return
	}
	d := m.drive(s, m.of[q.tok])
	w := d.waiter(q.tok)
	if w.registered != nil {
		// The lease counts from about the registration that was before the
		// grant: the first, while the last one has no answer. If that is the
		// younger one, it can be made a moment ago.
		younger := w.registered.server != 0 && q.n <= s.w[q.tok].regN
		w.registered.sent = d.at(q.late && !younger)
		if m.flaws.stalePush && younger {
			w.registered.server = 0
		}
	}
	d.line.pushed(w, Grant{Fence: serverTime(q.n), Server: serverTime(q.n)}, d.now)
	d.done(s)
}

func (m *model) wakeHeads(s *world, p int, live bool) {
	d := m.drive(s, p)
	d.line.changed(&d.inbox, live, d.now)
	d.done(s)
}

// learned is for an answer that was waited for, or the failure of a question.
func (m *model) learned(s *world, r messageState, err error) {
	w := &s.w[r.tok]
	w.asking = false
	d := m.drive(s, m.of[r.tok])
	if m.flaws.newsForgot {
		d.waiters[r.tok].nudged = false
	}
	a := Answer{Sent: d.at(false), Server: serverTime(r.n), Remaining: -1, Err: err}
	switch {
	case err != nil:
	case r.res == granted && r.late && !m.flaws.lateTrusted: // it stands in Redis, and must not stay
		w.uncertain = true
		a.Err, a.Lasting = errModelLate, true
	default:
		a.Granted, a.Queued = r.res == granted, r.res == inQueue
	}
	over := d.line.learned(d.waiter(r.tok), a, d.now)
	d.placed = r.place
	d.done(s)
	if a.Granted || over != nil {
		m.leave(s, r.tok, a.Granted)
	}
}

var (
	errModelLate  = errors.New("the lease is over")
	errModelReply = wire.NoReply(time.Second)
)

// driver is the real line of one process, made for one event from what the
// world knows of it.
type driver struct {
	m       *model
	p       int
	now     time.Time
	line    Line
	waiters [maxWaiters + 1]Waiter
	inbox   Inbox
	todo    todo
	placed  uint8 // the place by the answer that the event is
}

// tokens are those of waiters, as texts.
var tokens = [maxWaiters + 1]string{"", "1", "2", "3", "4"}

const modelTTL = time.Hour

// serverTime is the server's clock when a token had been given n grants: later
// than any registration with fewer of them.
func serverTime(n uint8) int64 { return 1000 + int64(n) }

// at is a moment from which a lease still counts, or is over.
func (d *driver) at(late bool) time.Time {
	if late {
		return d.now.Add(-2 * modelTTL)
	}
	return d.now.Add(-time.Second)
}

func (d *driver) waiter(t token) *Waiter { return &d.waiters[t] }

func (d *driver) tokenOf(w *Waiter) token {
	return token(slices.Index(tokens[:], w.Token))
}

var modelNow = time.Unix(1_800_000_000, 0)

// drive makes the line of a process.
func (m *model) drive(s *world, p int) *driver {
	d := m.driver // one at a time, and it is large
	d.m, d.p, d.now, d.placed = m, p, modelNow, 0
	clear(d.waiters[:])
	in := s.procs[p]
	d.inbox.ID = "inbox"
	d.inbox.live.Store(in.live)
	d.line = Line{todo: &d.todo, poll: time.Minute, holder: tokens[in.holder], contended: in.seen, turn: d.now, place: int64(in.place)}
	for t := token(1); int(t) <= m.tokens(); t++ {
		if m.of[t] == p {
			d.waiters[t] = Waiter{Token: tokens[t], TTL: modelTTL, line: &d.line}
			if s.w[t].phase == waiting {
				d.stands(s, t)
			}
		}
	}
	if d.line.listens() {
		d.line.inbox = &d.inbox
	}
	return d
}

// stands puts a waiter into the line, with what the world knows of it.
func (d *driver) stands(s *world, t token) {
	w, has := &d.waiters[t], &s.w[t]
	w.joined, w.state, w.nudged = d.at(false), has.does, has.nudged
	switch has.due {
	case atOnce:
		w.due = d.now
	case polls:
		w.due = d.now.Add(time.Minute)
	}
	if has.known {
		w.ticketed = d.at(false)
	}
	switch has.reg {
	case unanswered:
		w.registered = &registration{sent: d.at(false)}
	case registered:
		w.registered = &registration{sent: d.at(false), server: serverTime(has.regN)}
	}
	if has.grants != noGrant {
		w.grant = &Grant{Fence: 1, Anchor: d.at(has.grants == lateGrant)}
	}
	d.line.waiters.add(w)
}

// done is the world after the event.
func (d *driver) done(s *world) {
	in := &s.procs[d.p]
	in.holder = token(slices.Index(tokens[:], d.line.holder))
	in.seen = d.line.contended && !d.line.empty()
	switch {
	case d.line.place == 0:
		in.place = 0
	case in.place == 0:
		in.place = d.placed
	}
	for t := token(1); int(t) <= d.m.tokens(); t++ {
		if d.m.of[t] == d.p && s.w[t].phase == waiting {
			d.learn(s, t)
		}
	}
}

// learn is what the world knows of a waiter after the event. The pause of one
// that polls is short, of one that is told it is long.
func (d *driver) learn(s *world, t token) {
	w, has := &d.waiters[t], &s.w[t]
	has.does, has.nudged, has.known = w.state, w.nudged, !w.ticketed.IsZero()
	switch {
	case w.due.IsZero() || has.asking && !w.nudged:
		has.due = never
	case w.due.After(d.now) && w.state != polling:
		has.due = polls
	default:
		has.due = atOnce
	}
	before := has.reg
	switch {
	case w.registered == nil:
		has.reg, has.regN = unregistered, 0
	case w.registered.server != 0:
		has.reg, has.regN = registered, uint8(w.registered.server-serverTime(0))
	default:
		if has.reg = unanswered; before != unanswered {
			has.regN = has.given
		}
	}
	switch {
	case w.grant == nil:
		has.grants = noGrant
	case w.Counts(*w.grant, d.now):
		has.grants = freshGrant
	default:
		has.grants = lateGrant
	}
}

// ---- acquire.go, release.go

func (m *model) ask(s *world, t token) {
	d := m.drive(s, m.of[t])
	asks := d.line.begin(d.waiter(t), &d.inbox, d.now)
	q := messageState{kind: question, tok: t, ticket: asks.Inbox != "", place: uint8(asks.Place)}
	w := &s.w[t]
	w.queued = w.queued || q.ticket
	w.asking = true
	d.done(s)
	s.send(q)
}

// abandon leaves the question of t to the background; failed: with an error.
func (s *world) abandon(t token, failed bool) {
	for i := range s.net {
		q := &s.net[i]
		if q.tok != t || q.orphan {
			continue
		}
		switch q.kind {
		case question:
			q.orphan, q.failed = true, failed
		case answer:
			*q = messageState{}
		}
	}
	s.w[t].asking, s.w[t].uncertain = false, true
}

func (m *model) accept(s *world, t token) {
	w := &s.w[t]
	if w.asking {
		s.abandon(t, false)
	}
	d := m.drive(s, m.of[t])
	g, _ := d.line.next(d.waiter(t), d.now)
	if d.waiter(t).Counts(*g, d.now) || m.flaws.lateTrusted {
		d.done(s)
		m.leave(s, t, true)
		return
	}
	w.queued = true
	d.line.nudge(d.waiter(t), d.now)
	d.done(s)
}

func (m *model) cancel(s *world, t token) {
	if s.w[t].asking {
		s.abandon(t, false)
	}
	m.leave(s, t, false)
}

// releaseOnce is requestRelease, or one try of undone: that brings nobody
// along.
func (m *model) releaseOnce(s *world, t token, undo bool) {
	q := messageState{kind: releaseOrder, tok: t, undo: undo, inTime: s.w[t].valid && !undo}
	if !undo || m.flaws.undoBrings {
		q.next, q.ticket = m.bring(s, t)
	}
	s.send(q)
}

// releaseFailed is for a try that ended in an error.
func (m *model) releaseFailed(s *world, r messageState) {
	m.brought(s, r.next, r, true)
	w := &s.w[r.tok]
	switch {
	case w.phase == dead:
	case r.undo:
		w.toUndo = true
	default:
		w.inTime = w.inTime || r.inTime
	}
}

func (m *model) releaseAnswered(s *world, r messageState) {
	m.brought(s, r.next, r, false)
	w := &s.w[r.tok]
	if r.undo && r.found {
		m.askHead(s, m.of[r.tok])
	}
	if r.undo || w.phase != releasing {
		return
	}
	if !r.found && (!w.inTime || m.flaws.noSentInTime) && !w.lapsed {
		s.broken = truth
	}
	w.phase, w.valid, w.inTime, w.lapsed = done, false, false, false
}

func (m *model) askHead(s *world, p int) {
	d := m.drive(s, p)
	if w := d.line.head(); w != nil {
		d.line.nudge(w, d.now)
	}
	d.done(s)
}

// settle includes the second look of undo: it comes when all requests have
// ended.
func (m *model) settle(s *world, t token) {
	w := &s.w[t]
	if !w.toConfirm && !w.toSettle || m.underWay(s, t) {
		return
	}
	if w.toConfirm {
		w.toConfirm, w.toUndo = false, true
	}
	if w.toSettle && w.phase != releasing {
		w.toSettle = false
		w.toUndo = w.toUndo || w.phase != holding || !w.valid
	}
}

// ---- messages

func (s *world) send(q messageState) {
	for i := range s.net {
		if s.net[i].kind == none {
			s.net[i] = q
			return
		}
	}
	panic("the net is too small")
}

// arrive is a request executed, or a reply or push delivered.
func (m *model) arrive(s *world, i int) {
	q := s.net[i]
	s.net[i] = messageState{}
	switch q.kind {
	case question, releaseOrder:
		run := m.acquire
		if q.kind == releaseOrder {
			run = m.release
		}
		if a := run(s, q); !q.orphan {
			s.send(a)
		}
	case answer:
		m.learned(s, q, nil)
	case releaseAnswer:
		m.releaseAnswered(s, q)
	case push:
		m.pushed(s, q)
	}
}

// lose is a reply or a push that never arrives, or a request given up.
func (m *model) lose(s *world, i int) {
	q := s.net[i]
	switch q.kind {
	case question:
		s.abandon(q.tok, true)
		m.learned(s, messageState{tok: q.tok}, errModelReply)
	case releaseOrder:
		s.net[i].orphan, s.net[i].failed = true, true
		m.releaseFailed(s, q)
	case answer:
		s.net[i] = messageState{}
		s.w[q.tok].uncertain = true
		m.learned(s, messageState{tok: q.tok}, errModelReply)
	case releaseAnswer:
		s.net[i] = messageState{}
		m.releaseFailed(s, q)
	case push:
		s.net[i] = messageState{}
	}
}

// overdue: whatever grants the lock to t does so too late.
func (s *world) overdue(t token) {
	for i := range s.net {
		q := &s.net[i]
		q.late = q.late || q.grants() == t
	}
	if s.w[t].grants != noGrant {
		s.w[t].grants = lateGrant
	}
}

// grants is whom a message tells that the lock is his.
func (q messageState) grants() token {
	switch {
	case q.kind == push, q.kind == answer && q.res == granted:
		return q.tok
	case q.kind == releaseAnswer && q.res == granted:
		return q.next
	}
	return 0
}

func (m *model) kill(s *world, p int) {
	for t := 1; t <= m.tokens(); t++ {
		if m.of[t] == p {
			s.w[t] = waiterState{phase: dead}
		}
	}
	for i := range s.net {
		q := &s.net[i]
		switch {
		case q.kind == none || m.of[q.tok] != p:
		case q.kind == question || q.kind == releaseOrder:
			q.orphan = true
		default:
			*q = messageState{}
		}
	}
	s.procs[p] = procState{}
}

// ---- events

type op uint8

const (
	opArrive op = iota
	opUndo
	opNotice
	opSubscribe
	opConfirmed
	opForget
	opTake
	opFinish
	opAsk
	opGo
	opPoll
	opJoin
	opCancel
	opLapse
	opExpire
	opOverdue
	opLose
	opCut
	opSilence
	opKill
)

type event struct {
	op op
	i  uint8
}

// events are all that can happen next.
func (m *model) events(s *world, out []event) []event {
	out = out[:0]
	busy := m.busy(s)
	for i, q := range s.net {
		if q.kind == none || i > 0 && q == s.net[i-1] {
			continue
		}
		out = append(out, event{opArrive, uint8(i)})
		if s.budget.faults > 0 && !q.orphan {
			out = append(out, event{opLose, uint8(i)})
		}
	}
	for t := token(1); int(t) <= m.tokens(); t++ {
		out = m.waiterEvents(s, t, busy, out)
	}
	for p := range m.procs() {
		out = m.inboxEvents(s, p, out)
	}
	if s.key != 0 && !s.w[s.key].valid && (s.budget.lapses > 0 || s.w[s.key].phase == dead) {
		out = append(out, event{opExpire, 0})
	}
	return out
}

func (m *model) waiterEvents(s *world, t token, busy bool, out []event) []event {
	w := &s.w[t]
	add := func(ok bool, o op) {
		if ok {
			out = append(out, event{o, uint8(t)})
		}
	}
	add(w.toUndo, opUndo)
	switch w.phase {
	case idle:
		add(m.mayJoin(s, t), opJoin)
	case waiting:
		add(w.grants != noGrant, opTake)
		add(!w.asking && w.due == atOnce, opAsk)
		add(!w.asking && w.due == polls && (!busy || s.budget.polls > 0) && !(m.flaws.noPoll && w.reg == registered), opPoll)
		add(s.budget.cancels > 0, opCancel)
	case undecided:
		add(true, opFinish)
	case holding:
		add(true, opGo)
		add(w.valid && s.budget.lapses > 0, opLapse)
	case releasing:
		add(!s.releaseUnderWay(t), opGo)
		add(w.valid && s.budget.lapses > 0, opLapse)
	}
	add(s.budget.lapses > 0 && s.granting(t), opOverdue)
	return out
}

// mayJoin: the goroutines of a process join in one order, and so do the first
// of processes that are alike.
func (m *model) mayJoin(s *world, t token) bool {
	before := t - 1
	if m.of[before] != m.of[t] && m.alike {
		before = token(1 + slices.Index(m.of[1:], m.of[before]))
	}
	return t == 1 || !m.alike && m.of[before] != m.of[t] || s.w[before].phase != idle
}

func (s *world) releaseUnderWay(t token) bool {
	return slices.ContainsFunc(s.net[:], func(q messageState) bool {
		return q.tok == t && (q.kind == releaseOrder || q.kind == releaseAnswer) && !q.undo && !q.orphan
	})
}

// granting tells whether a grant in time is under way to t.
func (s *world) granting(t token) bool {
	return s.w[t].grants == freshGrant || slices.ContainsFunc(s.net[:], func(q messageState) bool {
		return q.grants() == t && !q.late
	})
}

func (m *model) inboxEvents(s *world, p int, out []event) []event {
	in := s.procs[p]
	add := func(ok bool, o op) {
		if ok {
			out = append(out, event{o, uint8(p)})
		}
	}
	waits := m.head(s, p) != 0 && in.seen
	add(in.live && in.sub != subscribed, opNotice)
	add(!in.live && in.sub == absent && waits && !m.deaf[p], opSubscribe)
	add(!in.live && in.sub == stale, opForget)
	add(!in.live && in.sub == subscribed, opConfirmed)
	if s.budget.faults > 0 {
		add(in.live && in.sub == subscribed, opCut)
		add(in.live && in.sub == subscribed, opSilence)
		add(m.kills && m.lives(s, p), opKill)
	}
	return out
}

func (m *model) lives(s *world, p int) bool {
	for t := 1; t <= m.tokens(); t++ {
		if m.of[t] == p && s.w[t].phase != idle && s.w[t].phase != dead {
			return true
		}
	}
	return false
}

// apply is the state after an event.
func (m *model) apply(s world, e event) world {
	t, p := token(e.i), int(e.i)
	switch e.op {
	case opArrive:
		m.arrive(&s, p)
	case opUndo:
		s.w[t].toUndo = false
		m.releaseOnce(&s, t, true)
	case opTake:
		m.accept(&s, t)
	case opFinish:
		m.finish(&s, t)
	case opPoll:
		if m.busy(&s) {
			s.budget.polls--
		}
		m.ask(&s, t)
	case opAsk:
		m.ask(&s, t)
	case opGo:
		s.w[t].phase = releasing
		m.releaseOnce(&s, t, false)
	case opJoin:
		m.join(&s, t)
	case opCancel:
		s.budget.cancels--
		m.cancel(&s, t)
	default:
		m.applyMore(&s, e)
	}
	for t := token(1); int(t) <= m.tokens(); t++ {
		m.settle(&s, t)
	}
	s.normalise(m)
	if s.broken == fine {
		s.broken = m.check(&s)
	}
	return s
}

func (m *model) applyMore(s *world, e event) {
	t, p := token(e.i), int(e.i)
	in := &s.procs[min(p, maxProcs-1)]
	switch e.op {
	case opLapse:
		s.budget.lapses--
		s.w[t].valid = false
		if s.w[t].phase == holding {
			s.w[t].lapsed = true
			m.lost(s, t)
		}
	case opExpire:
		m.expire(s)
	case opOverdue:
		s.budget.lapses--
		s.overdue(t)
	case opLose:
		s.budget.faults--
		m.lose(s, p)
	case opCut:
		s.budget.faults--
		in.sub = absent
	case opSilence:
		s.budget.faults--
		in.sub = stale
	case opKill:
		s.budget.faults--
		m.kill(s, p)
	case opNotice:
		in.live = false
		for i, q := range s.net {
			if q.kind == push && m.of[q.tok] == p {
				s.net[i] = messageState{}
			}
		}
		m.wakeHeads(s, p, false)
	case opForget:
		in.sub = absent
	case opSubscribe:
		in.sub = subscribed
	case opConfirmed:
		in.live = true
		m.wakeHeads(s, p, true)
	}
}

func (m *model) expire(s *world) {
	t := s.key
	s.key = 0
	if s.w[t].phase != dead {
		s.budget.lapses--
		s.w[t].lapsed = true
		s.overdue(t)
	}
}

// normalise makes states equal that differ in nothing that matters.
func (s *world) normalise(m *model) {
	var used [256]bool
	s.places(func(p *uint8) { used[*p] = true })
	var rank [256]uint8
	n := uint8(0)
	for p := 1; p < 64; p++ {
		if used[p] {
			n++
			rank[p] = n
		}
	}
	s.places(func(p *uint8) { *p = rank[*p] })
	for t := 1; t <= m.tokens(); t++ {
		s.forgetCounts(token(t))
		if w := &s.w[t]; w.phase == left || w.phase == done {
			w.lapsed = false
		}
	}
	for i := 1; i < maxNet; i++ {
		for j := i; j > 0 && s.net[j].pack() < s.net[j-1].pack(); j-- {
			s.net[j], s.net[j-1] = s.net[j-1], s.net[j]
		}
	}
}

// forgetCounts: grants are counted for the sake of pushes under way only.
func (s *world) forgetCounts(t token) {
	for _, q := range s.net {
		if q.kind == push && q.tok == t {
			return
		}
	}
	s.w[t].given, s.w[t].regN = 0, 0
	for i := range s.net {
		q := &s.net[i]
		if q.kind == answer && q.tok == t || q.kind == releaseAnswer && q.next == t {
			q.n = 0
		}
	}
}

// packed is a state in little room.
type packed [maxNet + maxWaiters + 3]uint32

func (s *world) pack() (p packed) {
	for i, q := range s.net {
		p[i] = q.pack()
	}
	for i, w := range s.w[1:] {
		p[maxNet+i] = w.pack()
	}
	rest := p[maxNet+maxWaiters:]
	for i, q := range s.queue {
		rest[0] |= (uint32(q.tok)<<4 | uint32(q.place)) << (8 * i)
	}
	for i, in := range s.procs {
		rest[1] |= (uint32(in.sub)<<8 | bits(in.live)<<7 | uint32(in.holder)<<4 | uint32(in.place)) << (10 * i)
	}
	b := s.budget
	rest[2] = bits(s.procs[0].seen, s.procs[1].seen, s.procs[2].seen)<<11 | uint32(s.key)<<8 | uint32(b.faults)<<6 | uint32(b.cancels)<<4 | uint32(b.lapses)<<2 | uint32(b.polls)
	return p
}

func (q messageState) pack() uint32 {
	return uint32(q.kind)<<21 | uint32(q.tok)<<18 | uint32(q.next)<<15 | uint32(q.res)<<13 | uint32(q.place)<<9 | uint32(q.n)<<7 |
		bits(q.ticket, q.undo, q.orphan, q.failed, q.inTime, q.found, q.late)
}

func (w waiterState) pack() uint32 {
	return uint32(w.does)<<24 | uint32(w.phase)<<21 | uint32(w.due)<<19 | uint32(w.grants)<<17 | uint32(w.reg)<<15 | uint32(w.regN)<<13 | uint32(w.given)<<11 |
		bits(w.nudged, w.asking, w.known, w.queued, w.uncertain, w.valid, w.inTime, w.lapsed, w.toUndo, w.toConfirm, w.toSettle)
}

func bits(flags ...bool) (n uint32) {
	for _, f := range flags {
		n <<= 1
		if f {
			n |= 1
		}
	}
	return n
}

// ---- properties

// busy tells whether anything is under way but polls, or bound to happen.
func (m *model) busy(s *world) bool {
	if s.net[maxNet-1].kind != none {
		return true
	}
	for t := 1; t <= m.tokens(); t++ {
		w := &s.w[t]
		if w.toUndo || w.toConfirm || w.toSettle || w.phase == releasing || w.phase == undecided ||
			w.phase == waiting && (w.grants != noGrant || w.asking || w.due == atOnce) {
			return true
		}
	}
	for p := range m.procs() {
		if in := s.procs[p]; m.head(s, p) != 0 && in.seen && !m.deaf[p] && !(in.live && in.sub == subscribed) {
			return true
		}
	}
	return false
}

func (m *model) check(s *world) verdict {
	for t := token(1); int(t) <= m.tokens(); t++ {
		if s.trusts(t) && s.key != t {
			return exclusion
		}
	}
	if m.busy(s) {
		return fine
	}
	if m.leftBehind(s) {
		return nothingLeft
	}
	faultless := s.budget.faults == m.budget.faults && s.budget.lapses == m.budget.lapses
	if faultless && m.waits(s) && (s.key == 0 || s.w[s.key].phase != holding) {
		return wakeUp
	}
	return fine
}

func (m *model) leftBehind(s *world) bool {
	gone := func(t token) bool { return s.w[t].phase == left || s.w[t].phase == done }
	if s.key != 0 && gone(s.key) {
		return true
	}
	for _, q := range s.queue {
		if q.tok != 0 && (gone(q.tok) || s.w[q.tok].phase == holding) {
			return true
		}
	}
	return false
}

func (m *model) waits(s *world) bool {
	for p := range m.procs() {
		if m.head(s, p) != 0 {
			return true
		}
	}
	return false
}

// calm lets things take their course from a state in which only polls are
// pending, without cancels, faults and newcomers: everybody who waits has to be
// served.
func (m *model) calm(s world) (world, bool) {
	var events []event
	turn := 0
	for range 400 {
		if !m.waits(&s) && !m.busy(&s) {
			return s, true
		}
		s.budget = budget{polls: 1}
		events = m.events(&s, events)
		e, ok := calmEvent(events, &turn)
		if !ok {
			return s, false
		}
		if s = m.apply(s, e); s.broken != fine {
			return s, false
		}
	}
	return s, false
}

// calmEvent prefers what is under way, news before requests. Those who ask,
// poll or release, and the lease of a dead process, take turns.
func calmEvent(events []event, turn *int) (event, bool) {
	for _, e := range slices.Backward(events) {
		if e.op < opAsk {
			return e, true
		}
	}
	events = slices.DeleteFunc(events, func(e event) bool { return e.op == opJoin })
	if len(events) == 0 {
		return event{}, false
	}
	*turn++
	return events[*turn%len(events)], true
}

// ---- search

type step struct {
	from int32
	e    event
}

type search struct {
	m     *model
	seen  map[packed]struct{}
	steps []step
}

// explore visits all states, or stops at the first that breaks a property and
// returns it as a trace.
func (m *model) explore(limit int) (states int, broken verdict, trace string) {
	m.driver = new(driver)
	first := m.initial()
	x := search{m: m, seen: map[packed]struct{}{first.pack(): {}}, steps: []step{{from: -1}}}
	level, ids := []world{first}, []int32{0}
	var events []event
	for len(level) > 0 && len(x.steps) < limit {
		var nextLevel []world
		var nextIDs []int32
		for i := range level {
			events = m.events(&level[i], events)
			for _, e := range events {
				s := m.apply(level[i], e)
				seen := s.pack()
				if _, ok := x.seen[seen]; ok {
					continue
				}
				x.seen[seen] = struct{}{}
				x.steps = append(x.steps, step{ids[i], e})
				id := int32(len(x.steps) - 1)
				if s.broken != fine {
					return len(x.steps), s.broken, x.trace(id)
				}
				if !m.busy(&s) && m.waits(&s) {
					if end, ok := m.calm(s); !ok {
						v := max(end.broken, wakeUp)
						return len(x.steps), v, x.trace(id) + "   left to itself from here: " + m.describeState(&end)
					}
				}
				nextLevel, nextIDs = append(nextLevel, s), append(nextIDs, id)
			}
		}
		level, ids = nextLevel, nextIDs
	}
	return len(x.steps), fine, ""
}

// trace tells how a state came about, by doing it again.
func (x *search) trace(id int32) string {
	var es []event
	for ; x.steps[id].from >= 0; id = x.steps[id].from {
		es = append(es, x.steps[id].e)
	}
	slices.Reverse(es)
	var b strings.Builder
	s := x.m.initial()
	for i, e := range es {
		text := x.m.describe(&s, e)
		s = x.m.apply(s, e)
		fmt.Fprintf(&b, "%2d %-64s %s\n", i+1, text, x.m.describeState(&s))
	}
	return b.String()
}

func (m *model) describe(s *world, e event) string {
	switch e.op {
	case opArrive, opLose:
		q := s.net[e.i]
		verb := map[kind]string{question: "executed", releaseOrder: "executed"}[q.kind]
		if verb == "" {
			verb = "arrives"
		}
		if e.op == opLose {
			verb = "LOST"
			if q.kind == question || q.kind == releaseOrder {
				verb = "GIVEN UP (may be executed later)"
			}
		}
		return m.describeMessage(q) + ": " + verb
	case opNotice, opSubscribe, opConfirmed, opForget, opCut, opSilence, opKill:
		return m.letter(int(e.i)) + " " + map[op]string{
			opNotice: "notices that its inbox is down", opSubscribe: "subscribes", opConfirmed: "has its inbox live",
			opForget: "'s old subscription is forgotten by the server", opCut: "'s SUBSCRIPTION IS CUT",
			opSilence: "'s SUBSCRIPTION TURNS SILENT", opKill: "IS KILLED",
		}[e.op]
	case opExpire:
		return "the lease of " + m.name(s.key) + " ends on the server"
	}
	return m.name(token(e.i)) + " " + map[op]string{
		opUndo: "is undone: a release is sent", opTake: "takes its grant", opFinish: "looks for a grant after leaving", opAsk: "asks", opPoll: "polls",
		opGo: "releases", opJoin: "joins", opCancel: "is CANCELLED", opLapse: "outlives its validity",
		opOverdue: "'s grant is overdue",
	}[e.op]
}

func (m *model) describeMessage(q messageState) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s of %s", [...]string{"", "question", "answer", "release", "release answer", "push"}[q.kind], m.name(q.tok))
	if q.undo {
		b.WriteString(" (undo)")
	}
	if q.next != 0 {
		fmt.Fprintf(&b, " with next %s", m.name(q.next))
	}
	if q.kind == answer || q.kind == releaseAnswer {
		fmt.Fprintf(&b, " = %s", [...]string{"nothing", "granted", "queued", "not queued"}[q.res])
	}
	if q.orphan {
		b.WriteString(", unheeded")
	}
	if q.late {
		b.WriteString(", late")
	}
	return b.String()
}

func (m *model) describeState(s *world) string {
	var b strings.Builder
	b.WriteString("| key ")
	if s.key == 0 {
		b.WriteString("-")
	} else {
		b.WriteString(m.name(s.key))
	}
	b.WriteString(" queue")
	for _, q := range s.queue {
		if q.tok != 0 {
			fmt.Fprintf(&b, " %s@%d", m.name(q.tok), q.place)
		}
	}
	for t := token(1); int(t) <= m.tokens(); t++ {
		w := s.w[t]
		fmt.Fprintf(&b, " | %s %s", m.name(t), [...]string{"-", "waits", "leaves", "HOLDS", "releases", "done", "left", "dead"}[w.phase])
		if w.phase == holding && !w.valid {
			b.WriteString("(no more)")
		}
		if w.phase == waiting {
			b.WriteString([...]string{"", " due", " poll"}[w.due])
		}
	}
	return b.String()
}

// ---- tests

const modelLimit = 16_000_000 // states; a bound for what went wrong

// modelCases are small enough for every run. Those of the deep list take
// minutes, and are explored if REDISLOCK_MODEL is "deep".
var modelCases = []modelCase{
	{"2x2", model{of: []int{0, 0, 0, 1, 1}, alike: true, listening: true, budget: budget{polls: 1}}},
	{"2x2 cancel", model{of: []int{0, 0, 0, 1, 1}, alike: true, listening: true, budget: budget{cancels: 1}}},
	{"2+1 inboxes come up, cancel, poll", model{of: []int{0, 0, 0, 1}, budget: budget{cancels: 1, polls: 1}}},
	{"2+1 one without inbox, two cancels", model{of: []int{0, 0, 0, 1}, deaf: [maxProcs]bool{true}, listening: true, budget: budget{cancels: 2}}},
	{"2+1 fault, cancel", model{of: []int{0, 0, 0, 1}, listening: true, budget: budget{faults: 1, cancels: 1}}},
	{"1+1 fault, two lapses, poll", model{of: []int{0, 0, 1}, listening: true, kills: true, budget: budget{faults: 1, lapses: 2, polls: 1}}},
	{"1+1 fault, lapse, cancel", model{of: []int{0, 0, 1}, listening: true, kills: true, budget: budget{faults: 1, cancels: 1, lapses: 1}}},
	{"3x1 fault", model{of: []int{0, 0, 1, 2}, alike: true, listening: true, kills: true, budget: budget{faults: 1}}},
}

var deepCases = []modelCase{
	{"1+1 two faults, lapse, cancel, poll", model{of: []int{0, 0, 1}, listening: true, kills: true, budget: budget{faults: 2, cancels: 1, lapses: 1, polls: 1}}},
	{"2+1 without inbox, fault, two cancels", model{of: []int{0, 0, 0, 1}, deaf: [maxProcs]bool{true, true}, budget: budget{cancels: 2, faults: 1}}},
	{"2+1 one without inbox, fault, two cancels", model{of: []int{0, 0, 0, 1}, deaf: [maxProcs]bool{true}, budget: budget{cancels: 2, faults: 1}}},
	{"2+1 reversed, two cancels", model{of: []int{0, 0, 0, 1}, reverse: true, listening: true, budget: budget{cancels: 2, polls: 1}}},
	{"2+1 lapse, cancel, poll", model{of: []int{0, 0, 0, 1}, listening: true, budget: budget{cancels: 1, lapses: 1, polls: 1}}},
	{"2+1 two faults", model{of: []int{0, 0, 0, 1}, listening: true, kills: true, budget: budget{faults: 2}}},
	{"2+1 fault, lapse, cancel", model{of: []int{0, 0, 0, 1}, listening: true, budget: budget{faults: 1, cancels: 1, lapses: 1}}},
	{"2x2 reversed, two cancels", model{of: []int{0, 0, 0, 1, 1}, reverse: true, alike: true, listening: true, budget: budget{cancels: 2}}},
	{"3x1 fault, cancel, lapse", model{of: []int{0, 0, 1, 2}, alike: true, listening: true, kills: true, budget: budget{faults: 1, cancels: 1, lapses: 1}}},
}

type modelCase struct {
	name string
	m    model
}

func TestModel(t *testing.T) {
	if testing.Short() {
		t.Skip("takes ten seconds, a minute under the race detector")
	}
	cases := modelCases
	if os.Getenv("REDISLOCK_MODEL") == "deep" {
		cases = append(cases, deepCases...)
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			states, broken, trace := c.m.explore(modelLimit)
			t.Logf("%d states in %s", states, time.Since(start).Round(time.Millisecond))
			require.Equal(t, fine.String(), broken.String(), "\n"+trace)
			require.Less(t, states, modelLimit)
		})
	}
}

// TestModelFindsFlaws builds one flaw after the other into the model. Each has
// to break a property, in a case that is fine without it. The second half is
// how the code first was.
func TestModelFindsFlaws(t *testing.T) {
	for _, c := range []struct {
		name   string
		flaws  flaws
		in     string
		breaks verdict
	}{
		{"acquire is not idempotent", flaws{acquireForgets: true}, "2x2", nothingLeft},
		{"release does not compare the token", flaws{releaseUnchecked: true}, "2x2", exclusion},
		{"an undo leaves the ticket in the queue", flaws{releaseKeepsOwn: true}, "2x2", nothingLeft},
		{"release serves its own process first", flaws{releasePrefers: true}, "2x2", order},
		{"who leaves is not undone", flaws{leaveWithoutUndo: true}, "2x2 cancel", nothingLeft},
		{"the next in line is not promoted", flaws{leaveNoPromote: true}, "2x2 cancel", wakeUp},
		{"brought ignores who has left", flaws{broughtForgets: true}, "2x2 cancel", nothingLeft},
		{"nothing is settled", flaws{neverSettles: true}, "2x2", nothingLeft},
		{"late grants are trusted", flaws{lateTrusted: true}, "1+1 fault, two lapses, poll", exclusion},
		{"dead tickets are served", flaws{deadServed: true}, "3x1 fault", order},
		{"a repeated release reports a loss", flaws{noSentInTime: true}, "2+1 fault, cancel", truth},
		{"who is in the queue never polls", flaws{noPoll: true}, "2+1 fault, cancel", wakeUp},

		{"a grant is looked for after leaving", flaws{drainsLate: true}, "2x2 cancel", exclusion},
		{"an old push counts from a younger registration", flaws{stalePush: true}, "1+1 fault, two lapses, poll", exclusion},
		{"a release given up is forgotten by whom it brought", flaws{carrierForgot: true}, "2+1 fault, cancel", nothingLeft},
		{"release says queued when it is not", flaws{queuedUnsaid: true}, "2+1 one without inbox, two cancels", wakeUp},
		{"an undo brings the head along", flaws{undoBrings: true}, "2x2", nothingLeft},
		{"a ticket is forgotten with its registration", flaws{ticketForgot: true}, "2+1 fault, cancel", nothingLeft},
		{"settle does not wait for failed requests", flaws{settleImpatient: true}, "2+1 fault, cancel", nothingLeft},
		{"an old answer overrides news", flaws{newsForgot: true}, "2+1 inboxes come up, cancel, poll", wakeUp},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			i := slices.IndexFunc(modelCases, func(mc modelCase) bool { return mc.name == c.in })
			m := modelCases[i].m
			m.flaws = c.flaws
			states, broken, trace := m.explore(modelLimit)
			t.Logf("%s after %d states of %s\n%s", broken, states, c.in, trace)
			require.Equal(t, c.breaks.String(), broken.String())
		})
	}
}
