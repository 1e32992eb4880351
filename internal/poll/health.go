package poll

import (
	"fmt"
	"sync"
	"time"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// enoughSilence is for how long a node may leave everything unanswered before
// it is asked by one request at a time only.
const enoughSilence = time.Second

// probePause is between two of these requests.
const probePause = 200 * time.Millisecond

// health keeps a node that is down from costing more than it is worth. Each
// request to it would keep a goroutine and a connection until the client's
// time-outs, and each lock would have to be undone there for 15 seconds, since
// nobody knows what was executed. So after a while of silence only one request
// in 200 ms is sent, to find out whether the node is back; to the others it is
// a node that does not answer. The first answer ends that.
type health struct {
	mu    sync.Mutex
	since time.Time // of the first request after which nothing was heard; zero: all is well
	probe time.Time // when the next request may be sent in spite of that
}

// ask tells whether a request may be sent that waits for its answer for limit,
// or for how long the node has been silent.
func (h *health) ask(limit time.Duration) (silent time.Duration, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if h.since.IsZero() {
		h.since = now
	}
	silent = now.Sub(h.since)
	if silent < max(enoughSilence, 2*limit) {
		return silent, true
	}
	if now.Before(h.probe) {
		return silent, false
	}
	h.probe = now.Add(max(limit, probePause))
	return silent, true
}

// heard notes that the node has answered.
func (h *health) heard() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.since = time.Time{}
}

// unaskedError is why a node has no vote that was not asked for it.
type unaskedError struct{ err error }

func (e *unaskedError) Error() string { return "skipped: " + e.err.Error() }
func (e *unaskedError) Unwrap() error { return e.err }

// MaybeExecuted, Transient and Outage make it a [wire.Failure].
func (e *unaskedError) MaybeExecuted() bool { return false }

// Transient is so if why it was not asked is.
func (e *unaskedError) Transient() bool { return wire.IsTransient(e.err) }

// Outage as well.
func (e *unaskedError) Outage() bool { return wire.IsOutage(e.err) }

func silentFor(d time.Duration) error {
	return &unaskedError{fmt.Errorf("no answer for %s", d.Round(time.Millisecond))}
}
