package line

import (
	"time"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// A subscription can work, and yet be on another server than the one that runs
// the scripts: an address that leads to another one now (a virtual address, a
// service of Kubernetes) while the old one lives on as a replica, a managed
// cluster behind one address, a proxy. The scripts tell: a question that
// carries the ticket of a live inbox is answered that it is not queued. The
// same answer comes where the server refuses what queueing needs (PUBSUB,
// ZADD), or has no memory for it.
//
// Then the subscription is made anew: a new connection leads to where the
// address leads now. Where that does not help it is done less and less often,
// and one warning is logged.

const (
	misplacedPause = time.Second  // between the first two subscriptions that are given up
	misplacedReset = time.Minute  // after this long without trouble it begins anew
	misplacedSplit = inboxRefused // for how long a subscription that serves some is left alone
	// PollingSaid is from when on it is worth a warning that a line has to poll
	// although the subscription is live, and noSubscriptionSaid although there
	// should be one.
	PollingSaid        = time.Second
	noSubscriptionSaid = 3 * time.Second
)

// placement is what is known of where the subscription of an inbox is. It is
// guarded by the inbox's mu.
type placement struct {
	first, last time.Time // answers that it is misplaced, without a minute between them

	next  time.Time     // when it may be given up again
	pause time.Duration // after that

	// Of the subscription of the moment: the first question by which it is
	// misplaced, and the last time when another one, made later, was queued all
	// the same. Then it serves some names, which are on its server, and another
	// one would serve others.
	doubted, split time.Time
}

// begin notes that there is a new subscription.
func (p *placement) begin() { p.doubted, p.split = time.Time{}, time.Time{} }

// found is told of a question that was sent at sent and queued.
func (p *placement) found(sent time.Time) {
	if !p.doubted.IsZero() && sent.After(p.doubted) {
		p.split = time.Now()
	}
}

// missed is told of a question that was sent at sent and not queued, and
// reports whether the subscription is to be given up.
func (p *placement) missed(sent time.Time) bool {
	now := time.Now()
	if now.Sub(p.last) > misplacedReset {
		p.first, p.next, p.pause = now, time.Time{}, 0
	}
	p.last = now
	if p.doubted.IsZero() {
		p.doubted = sent
	}
	if now.Before(p.next) || !p.split.IsZero() && now.Sub(p.split) < misplacedSplit {
		return false
	}
	p.pause = min(max(misplacedPause, 2*p.pause), inboxRefused)
	p.next = now.Add(p.pause)
	return true
}

// Queued is told that a question with a ticket of the inbox, sent at sent, was
// queued.
func (in *Inbox) Queued(sent time.Time) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.live.Load() && !sent.Before(in.since) {
		in.placed.found(sent)
		in.trouble = nil
	}
}

// NotQueued is told that it was not. Only what was sent since the subscription
// was confirmed says something about it.
func (in *Inbox) NotQueued(sent time.Time) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.live.Load() || in.givenUp || sent.Before(in.since) {
		return
	}
	if in.brief > 1 {
		return // subscriptions do not last: Redis may know that this one was cut, and we not yet
	}
	in.trouble = errMisplaced
	if in.placed.missed(sent) {
		in.givenUp = true
		ps := in.ps
		go wire.Catch(func() { _ = ps.Close() }, func(*wire.StrayError) {}) // it may block, and ends the receiving
	}
}

func (in *Inbox) isGivenUp() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.givenUp
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Polls is told since when a line has had to poll. After a while that is worth
// a warning, if there is a reason that is not known to pass by itself: none is
// that the subscription is being made, or was lost just now.
func (in *Inbox) Polls(since time.Time) {
	in.mu.Lock()
	defer in.mu.Unlock()
	said := noSubscriptionSaid
	if in.live.Load() { // then one subscription at least was given up, in vain
		said = PollingSaid
		since = later(since, in.placed.first)
	}
	if in.trouble != nil && time.Since(since) >= said {
		in.warnOfPolling()
	}
}

// warnOfPolling is called with mu held.
func (in *Inbox) warnOfPolling() {
	if in.warned {
		return
	}
	in.warned = true
	in.of.Warn("redislock: no pushes arrive; waiting by polling", "channel", in.Channel, "error", in.trouble)
}
