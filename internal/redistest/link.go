package redistest

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// link is one client's connection and the one to the server that goes with it.
// Two goroutines read and two write; all end with the link.
type link struct {
	relay    *Relay
	client   *net.TCPConn
	requests *outbox
	replies  *outbox
	ctx      context.Context // ends with the link
	cancel   context.CancelFunc

	mu       sync.Mutex
	server   *net.TCPConn // nil until dialled
	dialogue dialogue
	ended    int // readers that have seen the end of their connection
}

func newLink(r *Relay, client *net.TCPConn) *link {
	l := &link{relay: r, client: client, requests: newOutbox(), replies: newOutbox()}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// run serves the link until it ends.
func (l *link) run() {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(l.readRequests)
	wg.Go(func() { l.replies.drain(l.ctx.Done(), &l.relay.gate, l.writeReply) })
	if !l.dial() {
		l.close()
		return
	}
	wg.Go(l.readReplies)
	l.requests.drain(l.ctx.Done(), &l.relay.gate, l.writeRequest)
}

// dial connects to the server, as soon as there is no black hole before it.
func (l *link) dial() bool {
	l.relay.gate.pass(l.ctx.Done(), func() {})
	conn, err := new(net.Dialer).DialContext(l.ctx, "tcp", l.relay.leads())
	if err != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		_ = conn.Close()
		return false
	}
	l.server = conn.(*net.TCPConn)
	return true
}

// close ends the link in order: what was written is delivered.
func (l *link) close() { l.shut(func(conn *net.TCPConn) { _ = conn.Close() }) }

// reset ends the link at once: both peers see a reset, if they look.
func (l *link) reset() {
	l.shut(func(conn *net.TCPConn) {
		_ = conn.SetLinger(0)
		_ = conn.Close()
	})
}

func (l *link) shut(end func(*net.TCPConn)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return
	}
	l.cancel()
	end(l.client)
	if l.server != nil {
		end(l.server)
	}
	l.relay.forget(l)
}

// readRequests reads to the client's last request. Those go to the server even
// if the client no longer waits for the replies, as on a real network.
func (l *link) readRequests() {
	in := newWire(l.client)
	for {
		req, err := in.request()
		if err != nil {
			if !l.malformed(err) {
				l.requests.push(parcel{data: in.partial()})
				l.readerEnded(l.requests)
			}
			return
		}
		if len(req.args) == 0 {
			l.requests.push(parcel{data: req.raw})
			continue
		}
		t := l.admit(req)
		if t.fate.deaf {
			return
		}
		if t.command == "psync" {
			l.copy(in, l.requests)
			return
		}
	}
}

// admit decides what becomes of a request.
func (l *link) admit(req request) *turn {
	rule := l.relay.book.enter(req.args)
	t := newTurn(req.args, fate{})
	if rule != nil {
		t.fate = rule.action.fate(rule.released)
		if t.fate.strikesReply() {
			t.rule = rule
		} else {
			rule.apply()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dialogue.ask(t) // before the server can answer
	if !t.fate.local {
		l.requests.push(parcel{data: req.raw, hold: t.fate.hold})
	}
	l.answerLocals()
	return t
}

// readReplies reads to the server's last reply.
func (l *link) readReplies() {
	in := newWire(l.server)
	for {
		f, err := in.frame()
		if err != nil {
			if !l.malformed(err) {
				l.deliver(f) // half a reply is passed on as such
				l.readerEnded(l.replies)
			}
			return
		}
		if t := l.deliver(f); t != nil && t.command == "psync" {
			l.copy(in, l.replies)
			return
		}
	}
}

// deliver sends a frame on, as the request that it answers wants it.
func (l *link) deliver(f frame) *turn {
	if len(f.raw) == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.dialogue.answer(f)
	p := parcel{data: f.raw}
	if t != nil {
		p.hold, p.last = t.fate.reply.hold, t.fate.reply.last
		if t.rule != nil {
			t.rule.apply()
		}
	}
	l.reply(p)
	l.answerLocals()
	return t
}

// answerLocals gives the relay's own answers whose turn has come.
func (l *link) answerLocals() {
	for t := l.dialogue.local(); t != nil; t = l.dialogue.local() {
		l.reply(t.fate.reply)
	}
}

func (l *link) reply(p parcel) {
	if d := l.relay.delay.Load(); d > 0 {
		p.due = time.Now().Add(time.Duration(d))
	}
	l.replies.push(p)
}

// copy passes on what is not RESP: replication, after PSYNC.
func (l *link) copy(in *wire, out *outbox) {
	for {
		chunk, err := in.chunk()
		if err != nil {
			l.readerEnded(out)
			return
		}
		out.push(parcel{data: chunk})
	}
}

// malformed fails the test if the reader has met bytes that it cannot tell
// apart.
func (l *link) malformed(err error) bool {
	if !errors.Is(err, errMalformed) {
		return false
	}
	l.relay.t.Errorf("redistest: relay to %s: %v", l.relay.leads(), err)
	l.close()
	return true
}

// readerEnded passes the end of one connection on to the other, behind all that
// came before it. Once both are at their end nobody is left to wait for.
func (l *link) readerEnded(out *outbox) {
	l.mu.Lock()
	l.ended++
	both := l.ended == 2
	l.mu.Unlock()
	if both {
		l.close()
		return
	}
	out.push(parcel{last: true})
}

func (l *link) writeRequest(p parcel) (more bool) {
	if p.last {
		_ = l.server.CloseWrite()
		return false
	}
	_, err := l.server.Write(p.data)
	return err == nil // the reader of replies sees the failure too, and acts on it
}

func (l *link) writeReply(p parcel) (more bool) {
	if !p.last {
		_, err := l.client.Write(p.data)
		if err == nil {
			return true
		}
	}
	l.close()
	return false
}
