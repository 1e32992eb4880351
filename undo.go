package redislock

import (
	"context"
	"errors"
	"time"
)

// Undoing looks at Redis at once, and then after pauses that double from
// undoPause, until undoBound after the first look.
const (
	undoPause = 50 * time.Millisecond
	undoBound = 15 * time.Second // beyond every default time-out of go-redis
	undoLimit = time.Second      // of one look
	undoSlots = 8                // looks at a time: a server that shuts down cancels everything at once
)

// undo takes back in the background what a failed acquisition may have brought
// about: a ticket in the queue, a grant, or the effect of an unanswered request.
// The first look does not wait for those requests, since their connection may be
// stuck while others work. But a request that is still under way can be executed
// after it, and one that ended in an error may still lie in the socket of a server
// that stood still. So there are more looks where it is needed. What is not found
// by then ends with its TTL.
func (a *acquisition) undo(ctx context.Context) {
	if a.claim != nil {
		a.claim.undo(ctx)
		return
	}
	a.lk.undo(ctx, a.keys, a.token, a.ticket(a.inbox), a.unanswered)
}

func (lk *Locker) undo(ctx context.Context, keys lockKeys, token lockToken, ticket string, unanswered []*call) {
	u := &undoing{
		lk: lk, keys: keys, token: token, ticket: ticket, unanswered: unanswered,
		ctx: context.WithoutCancel(ctx), began: time.Now(), pause: undoPause,
	}
	go u.look()
}

// undoing frees what stands in Redis under a token that is nobody's any longer. It
// goes on by timers: between two looks there is no goroutine, unless a request is
// under way, which has one as well.
type undoing struct {
	lk         *Locker
	keys       lockKeys
	token      lockToken
	ticket     string // that may stand in the queue, or empty
	unanswered []*call
	ctx        context.Context
	began      time.Time
	pause      time.Duration
	failed     bool // a look had no answer, and may have freed the lock
}

func (u *undoing) look() {
	last := u.answered() // before looking: what is executed after a look is not seen by it
	err := u.withdraw()
	over := last // that it found something proves nothing: there may be more to come
	if err != nil {
		var stray *strayError // which says nothing about the server
		over = !isOutage(err) && !errors.As(err, &stray)
	}
	if over || time.Since(u.began)+u.pause > undoBound {
		return
	}
	pause := u.pause
	u.pause *= 2
	if c := u.underWay(); c != nil {
		select {
		case <-c.done: // now is the time, and soon after
			pause, u.pause = 0, undoPause
		case <-time.After(pause):
			pause = 0
		}
	}
	time.AfterFunc(pause, u.look)
}

func (u *undoing) answered() bool {
	for _, c := range u.unanswered {
		if !c.answered() {
			return false
		}
	}
	return true
}

func (u *undoing) underWay() *call {
	for _, c := range u.unanswered {
		if c.underWay() {
			return c
		}
	}
	return nil
}

var errNoSlot = errors.New("too much to be undone on a server that does not answer")

// withdraw releases the lock if the token holds it, and takes its ticket out of the
// queue.
//
// Such a release serves the queue, but brings nobody along: the one who is the head
// now may have had the lock, and be gone, when it is executed. (Only a holder knows
// that the head cannot have it before.) So the head has to ask.
func (u *undoing) withdraw() error {
	select {
	case u.lk.undoSlots <- struct{}{}:
	case <-time.After(undoBound - time.Since(u.began)):
		return errNoSlot
	}
	defer func() { <-u.lk.undoSlots }()
	ctx, cancel := context.WithTimeout(u.ctx, undoLimit)
	defer cancel()
	request := u.lk.releaseRequest(&u.keys, u.token, u.ticket, undoLimit)
	_, reply, err := u.lk.ask(ctx, request)
	split := err
	if isSplit(split) { // the ticket has to wait until the slot has moved, but not the lock
		_, reply, err = u.lk.ask(ctx, request.releaseAlone())
	}
	if err != nil {
		u.failed = true
		return err
	}
	r, err := parseRelease(reply)
	if r.found || u.failed {
		u.lk.lines.askHead(u.keys.lock)
	}
	if err == nil && u.ticket != "" {
		err = split
	}
	return err
}

// settle looks after requests that were overtaken by the grant. One that is executed
// while the lock is held does nothing. But if it may be executed after the release,
// it may take or queue for the lock once more, under a token that is nobody's any
// longer. A lock that ends otherwise is left alone: it may have been handed to
// another process, which goes on with its token.
func (a *acquisition) settle(lock *Lock) {
	late := false
	for _, c := range a.unanswered {
		<-c.done
		late = late || !c.askedBefore(lock.granted) && (lock.releasing() || !c.answered())
	}
	if !late {
		return
	}
	lock.whenReleased(func() { a.undo(context.Background()) })
}
