package line

import (
	"time"

	"github.com/e2e3f2a3/redislock/internal/lease"
	"github.com/e2e3f2a3/redislock/internal/wire"
)

// Waiter is one goroutine that waits for a lock. Its exported fields do not
// change once it has joined a line; the others are guarded by [Lines].
type Waiter struct {
	Owner any // what the package's user makes of it
	Key   string
	Token string
	TTL   time.Duration
	Asks  bool // no grant counts before Redis was asked: replicas have to acknowledge it

	line   *Line
	state  state
	gone   bool         // from its line
	served bool         // it has gone with the lock
	tries  int          // requests that failed before there was any answer
	pause  wire.Backoff // between questions of one that is not in the queue
	apart  bool         // its next question travels alone

	joined time.Time // its line
	due    time.Time // when it asks Redis next; zero: not while others are before it
	nudged bool      // something has happened since it began its last question: it is due

	asked      *Inbox        // whose ticket its last question carried; nil: it had none
	inbox      string        // in its last ticket; empty: it had none
	stale      string        // in an earlier one, which may stand in the queue: the slot has moved
	ticketed   time.Time     // when its first ticket was sent; zero: none was
	registered *registration // the latest of its ticket; nil: it has none in the queue
	prepared   preparedTicket

	grant *Grant // the first that has arrived, unless it was taken

	wake chan struct{} // it is due, or has a grant; nil while nobody sleeps on it

	before, behind *Waiter // in its line
}

// state is what a waiter does, as in the table of this package.
type state uint8

const (
	inLine  state = iota // waits until it is the head
	relying              // on a release of this process
	asking               // Redis, now or as soon as its goroutine runs
	queued               // has a ticket in the queue, and waits for a push
	polling              // asks again after a pause
)

// preparedTicket is the text of the ticket for an inbox.
type preparedTicket struct{ inbox, text string }

// Wake has a value when there is something to do, see [Lines.Next]. Only the
// waiter's own goroutine may call it.
func (w *Waiter) Wake() <-chan struct{} { return w.wake }

// Counts tells whether a grant is a lock. Else it has to be confirmed by
// asking: its lease is over, or replicas have to acknowledge it.
func (w *Waiter) Counts(g Grant, now time.Time) bool {
	return !w.Asks && g.Err == nil && lease.From(g.Anchor, w.TTL).Remaining(now) > 0
}

// ticketFor is the text for an inbox, if it is prepared.
func (w *Waiter) ticketFor(inbox string) string {
	if inbox != w.prepared.inbox {
		return ""
	}
	return w.prepared.text
}

// rouse has w look again, if it sleeps.
func (w *Waiter) rouse() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// sleeps makes sure that w can be roused.
func (w *Waiter) sleeps() {
	if w.wake == nil {
		w.wake = make(chan struct{}, 1)
	}
}

// taken is the grant that has arrived, or nil.
func (w *Waiter) taken() *Grant {
	g := w.grant
	w.grant = nil
	return g
}

func (w *Waiter) give(g Grant) {
	if w.grant == nil { // else it has one already, for the same token
		w.grant = &g
		w.rouse()
	}
}

// row is a list of waiters. Unlike container/list it allocates nothing for
// each.
type row struct{ first, last *Waiter }

func (r *row) add(w *Waiter) {
	if w.before = r.last; w.before != nil {
		w.before.behind = w
	} else {
		r.first = w
	}
	r.last = w
}

func (r *row) remove(w *Waiter) {
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
