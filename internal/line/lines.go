package line

import (
	"sync"
	"time"
)

// Lines are those of one Locker, by the key of their name. It gives each [Line]
// a clock, a timer and a mutex, and does what a line leaves to be done.
//
// Its mutex guards all lines and waiters. While it is held nobody is called,
// and no other mutex is taken: inboxes and timers are told afterwards, and what
// they say is read from atomic variables.
type Lines struct {
	Inboxes   Inboxes
	Poll      time.Duration // the longest pause between two questions of the first in a line
	Clustered bool          // keys may move to other servers

	mu     sync.Mutex
	byKey  map[string]*entry
	tokens map[string]*Waiter // those a grant may be pushed to
	todo   todo               // of the line that has changed last, see tidy
}

// entry is a line while it has a holder or waiters.
type entry struct {
	Line
	alarm *time.Timer // rouses the head when it is due; nil until one has had to wait for that
}

// unused keeps entries for the next acquisition: a line that nobody waits in
// comes and goes with each.
var unused = sync.Pool{New: func() any { return new(entry) }}

// at is the line for a key. The caller has locked mu.
func (ls *Lines) at(key string) *entry {
	e := ls.byKey[key]
	if e == nil {
		if ls.byKey == nil {
			ls.byKey = make(map[string]*entry)
		}
		e = unused.Get().(*entry)
		e.poll, e.todo = ls.Poll, &ls.todo
		ls.byKey[key] = e
	}
	return e
}

// chores is what is to be done once mu is free.
type chores struct {
	todo
	closed  *Inbox // nobody in the line needs it any more
	listens bool   // the line needs an inbox,
	inbox   *Inbox // and has this one; nil: none yet
}

// tidy follows every change of a line: it forgets an empty one, and returns
// what is to be done afterwards. The caller has locked mu.
func (ls *Lines) tidy(key string, e *entry) chores {
	c := chores{todo: ls.todo, listens: e.listens()}
	ls.todo = todo{}
	if !c.listens && e.inbox != nil {
		c.closed, e.inbox, e.polling = e.inbox, nil, time.Time{}
	}
	c.inbox = e.inbox
	if c.alarm > 0 {
		ls.setAlarm(key, e, c.alarm)
	}
	if e.empty() && ls.byKey[key] == e {
		delete(ls.byKey, key)
		if e.alarm != nil {
			e.alarm.Stop()
		}
		*e = entry{}
		unused.Put(e)
	}
	return c
}

func (ls *Lines) setAlarm(key string, e *entry, d time.Duration) {
	if e.alarm != nil {
		e.alarm.Reset(d)
		return
	}
	e.alarm = time.AfterFunc(d, func() {
		ls.mu.Lock()
		defer ls.mu.Unlock()
		if e := ls.byKey[key]; e != nil && e.head() != nil { // perhaps another line by now; it looks in vain
			e.head().rouse()
		}
	})
}

// do does what is left of a change, and minds that the inbox is open while
// somebody waits: the one on the server where the key stands now.
func (ls *Lines) do(key string, c chores) {
	if c.rouse != nil {
		ls.rouseIn(c.rouse, c.after)
	}
	c.closed.Need(false)
	if c.queued != nil {
		c.queued.Queued(c.sent)
	}
	if c.missed != nil && ls.isMisplaced(key, c) {
		c.missed.NotQueued(c.sent)
	}
	if c.listens {
		if in := ls.Inboxes.Of(key); in != c.inbox {
			ls.place(key, in)
		}
	}
	if !c.polls.IsZero() && c.inbox != nil {
		c.inbox.Polls(c.polls)
	}
}

// rouseIn has w look again after a while.
func (ls *Lines) rouseIn(w *Waiter, d time.Duration) {
	time.AfterFunc(d, func() {
		ls.mu.Lock()
		defer ls.mu.Unlock()
		w.rouse()
	})
}

// isMisplaced tells whether a ticket that was not queued says something about
// its inbox. On a cluster this is most often because the slot has moved, or is
// moving: the client will know in a moment.
func (ls *Lines) isMisplaced(key string, c chores) bool {
	return !ls.Clustered || c.inVain && ls.Inboxes.Of(key) == c.missed
}

// place gives a line another inbox, if it still needs one.
func (ls *Lines) place(key string, in *Inbox) {
	var was *Inbox
	ls.mu.Lock()
	e := ls.byKey[key]
	changed := e != nil && e.listens() && e.inbox != in
	if changed {
		was, e.inbox, e.polling = e.inbox, in, time.Time{}
	}
	ls.mu.Unlock()
	if changed {
		was.Need(false)
		in.Need(true)
	}
}

// Join puts a waiter at the end of its line. It returns the inbox that the
// ticket of w will most likely have, for Prepare; empty if nobody waits there.
func (ls *Lines) Join(w *Waiter) (inbox string) {
	ls.mu.Lock()
	e := ls.at(w.Key)
	e.join(w, time.Now())
	c := ls.tidy(w.Key, e)
	contended := e.contended
	ls.mu.Unlock()
	ls.do(w.Key, c)
	if !contended {
		return ""
	}
	return ls.inboxOf(w).LiveID()
}

func (ls *Lines) inboxOf(w *Waiter) *Inbox {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return w.line.inbox
}

// Prepare keeps the text of w's ticket for an inbox, so that whoever sends it
// need not make it.
func (ls *Lines) Prepare(w *Waiter, inbox, ticket string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	w.prepared = preparedTicket{inbox, ticket}
}

// Leave takes w out of its line, with the lock or, if held is false, with err;
// own says that this is due to its caller alone. A grant that came before is
// w's, and not to be lost: then Leave returns that, and w has the lock.
func (ls *Lines) Leave(w *Waiter, held bool, err error, own bool) *Grant {
	ls.mu.Lock()
	delete(ls.tokens, w.Token)
	late := w.line.leave(w, departure{held: held, err: err, own: own}, time.Now())
	c := ls.tidy(w.Key, ls.byKey[w.Key])
	ls.mu.Unlock()
	ls.do(w.Key, c)
	return late
}

// Held notes that a token of this process stands in a key.
func (ls *Lines) Held(key, token string) {
	ls.mu.Lock()
	e := ls.at(key)
	e.hold(token, time.Now())
	c := ls.tidy(key, e)
	ls.mu.Unlock()
	ls.do(key, c)
}

// Lost notes that a token does not stand in a key any more, and that nobody was
// brought along.
func (ls *Lines) Lost(key, token string) {
	ls.mu.Lock()
	e := ls.byKey[key]
	if e == nil {
		ls.mu.Unlock()
		return
	}
	e.lost(token, time.Now())
	c := ls.tidy(key, e)
	ls.mu.Unlock()
	ls.do(key, c)
}

// Next is what w does next: take a grant, or else ask if it is due, and else
// sleep until there is a value of w.Wake.
func (ls *Lines) Next(w *Waiter) (g *Grant, due bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return w.line.next(w, time.Now())
}

// Take is the grant that has arrived for w, or nil.
func (ls *Lines) Take(w *Waiter) *Grant {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return w.taken()
}

// AskAgain has w ask at once.
func (ls *Lines) AskAgain(w *Waiter) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	w.line.nudge(w, time.Now())
}

// AskHead has the head of a line ask at once.
func (ls *Lines) AskHead(key string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if e := ls.byKey[key]; e != nil && e.head() != nil {
		e.nudge(e.head(), time.Now())
	}
}

// Begin notes that w begins a question.
func (ls *Lines) Begin(w *Waiter) Question {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	in := w.line.inbox
	if in == nil && w.line.head() == w { // nobody has waited yet; the inbox may be open all the same
		ls.mu.Unlock()
		in = ls.Inboxes.Of(w.Key)
		ls.mu.Lock()
	}
	q := w.line.begin(w, in, time.Now())
	if q.Inbox != "" {
		ls.expect(w)
	}
	return q
}

// expect makes w known to its inbox, before its ticket is sent. The caller has
// locked mu.
func (ls *Lines) expect(w *Waiter) {
	if ls.tokens == nil {
		ls.tokens = make(map[string]*Waiter)
	}
	ls.tokens[w.Token] = w
}

// Learned notes what a question of w came to. It returns the error that ends
// its waiting, if that has to end. outage is one that nobody was warned of yet.
func (ls *Lines) Learned(w *Waiter, a Answer) (err, outage error) {
	ls.mu.Lock()
	err = w.line.learned(w, a, time.Now())
	outage = w.line.newOutage()
	c := ls.tidy(w.Key, ls.byKey[w.Key])
	ls.mu.Unlock()
	ls.do(w.Key, c)
	return err, outage
}

// LastAnswer is what is known of w's lock: whether somebody has been seen to
// hold it, and why the last question was not answered, in words that may be
// told w.
func (ls *Lines) LastAnswer(w *Waiter) (contended bool, outage error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return w.line.lastAnswer(w)
}

// Bring is the waiter that the release of a token brings along, if anybody
// waits, the inbox of its ticket and, if that is prepared, the ticket.
func (ls *Lines) Bring(key, token string) (w *Waiter, inbox, ticket string) {
	ls.mu.Lock()
	e := ls.byKey[key]
	if e != nil && e.listens() && e.inbox == nil { // another goroutine is about to see to it
		ls.mu.Unlock()
		ls.place(key, ls.Inboxes.Of(key))
		ls.mu.Lock()
		e = ls.byKey[key]
	}
	if e == nil {
		ls.mu.Unlock()
		return nil, "", ""
	}
	if w, inbox = e.bring(token, time.Now()); w != nil {
		ls.expect(w)
		ticket = w.ticketFor(inbox)
	}
	c := ls.tidy(key, e)
	ls.mu.Unlock()
	ls.do(key, c)
	return w, inbox, ticket
}

// Brought tells w what became of it in a release. If it has gone meanwhile, it
// returns whether with the lock.
func (ls *Lines) Brought(w *Waiter, n News) (gone, served bool) {
	ls.mu.Lock()
	if w.gone {
		defer ls.mu.Unlock()
		return true, w.served
	}
	w.line.brought(w, n, time.Now())
	c := ls.tidy(w.Key, ls.byKey[w.Key])
	ls.mu.Unlock()
	ls.do(w.Key, c)
	return false, false
}

// Pushed hands a grant from an inbox to the waiter it is for. It reports false
// if there is none.
func (ls *Lines) Pushed(token string, g Grant) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	w := ls.tokens[token]
	if w == nil {
		return false
	}
	w.line.pushed(w, g, time.Now())
	return true
}

// Changed is told that an inbox has become live, or has failed.
func (ls *Lines) Changed(in *Inbox, live bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	now := time.Now()
	for _, e := range ls.byKey {
		e.changed(in, live, now)
	}
}

// Len is how many lines there are, and how many waiters a grant may be pushed
// to.
func (ls *Lines) Len() (lines, expecting int) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return len(ls.byKey), len(ls.tokens)
}
