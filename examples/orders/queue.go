package main

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// queue simulates a broker that delivers at least once, as SQS, Pub/Sub or
// NATS JetStream do: a message that is not acknowledged within the visibility
// timeout is delivered again, whether its consumer is dead or only slow.
type queue struct {
	visibility time.Duration
	fresh      chan *message // both have room for every message, so that sending
	again      chan *message // never blocks; one that comes back jumps the line
	drained    chan struct{} // closed once every message is acknowledged

	mu          sync.Mutex
	open        int // messages not yet acknowledged
	deliveries  int
	redelivered int
}

type message struct {
	order   order
	attempt int
	acked   bool
	timer   *time.Timer // runs while the message is in flight
}

// delivery is one handing-over of a message. Its attempt tells a late answer
// from one to the newest delivery.
type delivery struct {
	order   order
	attempt int
	message *message
}

func newQueue(orders []order, visibility time.Duration) *queue {
	q := &queue{
		visibility: visibility,
		fresh:      make(chan *message, len(orders)),
		again:      make(chan *message, len(orders)),
		drained:    make(chan struct{}),
		open:       len(orders),
	}
	for _, o := range orders {
		q.fresh <- &message{order: o}
	}
	return q
}

// receive blocks until there is a delivery, and says false when every message
// is acknowledged or ctx has ended.
func (q *queue) receive(ctx context.Context) (delivery, bool) {
	for {
		var next *message
		select {
		case next = <-q.fresh:
		case next = <-q.again:
		case <-q.drained:
			return delivery{}, false
		case <-ctx.Done():
			return delivery{}, false
		}
		if d, open := q.deliver(next); open {
			return d, true
		}
	}
}

// deliver says false for a message that was acknowledged while it stood in
// line for another delivery.
func (q *queue) deliver(m *message) (delivery, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if m.acked {
		return delivery{}, false
	}
	m.attempt++
	q.deliveries++
	d := delivery{order: m.order, attempt: m.attempt, message: m}
	m.timer = time.AfterFunc(q.visibility, func() { q.release(d) })
	return d, true
}

// ack ends a message, even if it has been delivered again since: the work
// is done.
func (q *queue) ack(d delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if d.message.acked {
		return
	}
	d.message.acked = true
	d.message.land()
	if q.open--; q.open == 0 {
		close(q.drained)
	}
}

// release puts a delivery back in line, unless it is acknowledged or already
// superseded. A consumer that failed calls it, or the visibility timeout does.
func (q *queue) release(d delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	m := d.message
	if m.acked || m.attempt != d.attempt || !m.inFlight() {
		return
	}
	m.land()
	q.redelivered++
	q.again <- m
}

func (m *message) inFlight() bool { return m.timer != nil }

func (m *message) land() {
	if m.inFlight() {
		m.timer.Stop()
		m.timer = nil
	}
}

// counts says how many deliveries there were, and how many messages came back.
func (q *queue) counts() (deliveries, redelivered int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.deliveries, q.redelivered
}

// sentTwice is a producer that publishes about one order in ten twice, the
// second a few places later, as one does whose confirmation was lost. The order
// called except is sent once, to keep its story readable.
func sentTwice(orders []order, except string, seed uint64) []order {
	type slot struct {
		at    int
		order order
	}
	random := rand.New(rand.NewPCG(seed, 0))
	var slots []slot
	for i, o := range orders {
		slots = append(slots, slot{i, o})
		if twice, gap := random.IntN(10) == 0, random.IntN(4); twice && o.ID != except {
			slots = append(slots, slot{i + gap, o})
		}
	}
	slices.SortStableFunc(slots, func(a, b slot) int { return a.at - b.at })
	sent := make([]order, len(slots))
	for i, s := range slots {
		sent[i] = s.order
	}
	return sent
}
