package redistest

import (
	"sync"
	"time"
)

// joinLimit bounds how many bytes of a pipeline go out in one write.
const joinLimit = 64 << 10

// parcel is one request or reply on its way, and what it waits for.
type parcel struct {
	data []byte
	due  time.Time       // leaves no earlier; zero: at once
	hold <-chan struct{} // leaves once this is closed; nil: at once
	last bool            // in place of data: the connection ends here
}

// outbox is one direction of a connection: parcels leave in the order in which
// they came, and one that waits holds up those behind it.
type outbox struct {
	mu      sync.Mutex
	parcels []parcel
	filled  chan struct{} // holds a token after a push
}

func newOutbox() *outbox { return &outbox{filled: make(chan struct{}, 1)} }

func (o *outbox) push(p parcel) {
	o.mu.Lock()
	o.parcels = append(o.parcels, p)
	o.mu.Unlock()
	select {
	case o.filled <- struct{}{}:
	default:
	}
}

// drain hands the parcels to write as they become ready and the gate is open.
// It returns when write says so, or when done is closed.
func (o *outbox) drain(done <-chan struct{}, g *gate, write func(parcel) (more bool)) {
	for {
		p, ok := o.next(done)
		if !ok || !p.wait(done) {
			return
		}
		o.join(&p)
		more := false
		g.pass(done, func() { more = write(p) })
		if !more {
			return
		}
	}
}

// next takes the first parcel, and waits for one if there is none.
func (o *outbox) next(done <-chan struct{}) (parcel, bool) {
	for {
		if p, ok := o.take(func(parcel) bool { return true }); ok {
			return p, true
		}
		select {
		case <-o.filled:
		case <-done:
			return parcel{}, false
		}
	}
}

// join adds to p what can leave with it, since a pipeline that arrived as one
// packet should not leave as a hundred.
func (o *outbox) join(p *parcel) {
	for !p.last && len(p.data) < joinLimit {
		follower, ok := o.take(parcel.ready)
		if !ok {
			return
		}
		p.data = append(p.data, follower.data...)
	}
}

func (o *outbox) take(fit func(parcel) bool) (parcel, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.parcels) == 0 || !fit(o.parcels[0]) {
		return parcel{}, false
	}
	p := o.parcels[0]
	o.parcels[0] = parcel{} // let go of the bytes
	o.parcels = o.parcels[1:]
	return p, true
}

// ready reports whether p is bytes that wait for nothing.
func (p parcel) ready() bool {
	if p.last || (!p.due.IsZero() && time.Now().Before(p.due)) {
		return false
	}
	select {
	case <-p.hold:
		return true
	default:
		return p.hold == nil
	}
}

// wait returns true once p may leave, false if done comes first.
func (p parcel) wait(done <-chan struct{}) bool {
	if p.hold != nil {
		select {
		case <-p.hold:
		case <-done:
			return false
		}
	}
	if p.due.IsZero() {
		return true
	}
	timer := time.NewTimer(time.Until(p.due))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-done:
		return false
	}
}
