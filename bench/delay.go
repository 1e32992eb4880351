package main

import (
	"net"
	"os"
	"sync"
	"time"
)

// delayedConn is a connection whose bytes arrive later than they do. Its
// goroutine reads from the socket all the time and notes for each piece when it
// is due, so pieces that arrive one soon after the other are delayed side by
// side: a connection that sends many requests before it reads the first reply
// waits once and not once for each.
//
// Pieces keep their order. One whose own delay would let it overtake the one
// before is due with that one, as on TCP.
//
// A Read waits for the due time itself, rather than being woken by a goroutine
// that waits: the arrival then costs the client a wake-up within the delay, and
// none after it.
type delayedConn struct {
	net.Conn
	delay   func() time.Duration
	alarm   *alarm      // of a Read that waits for a due time
	timer   *time.Timer // of a Read that waits for its deadline
	changed chan struct{}

	reading sync.Mutex // one Read at a time

	mu       sync.Mutex
	bytes    []byte // that have arrived; the first taken have been read
	taken    int
	pieces   []piece // of what has not been read
	err      error   // what came after the last piece
	deadline time.Time
	closed   bool
}

// piece is what one read of the socket has brought.
type piece struct {
	size int // 0 for the error at the end
	due  time.Time
}

func delayReads(conn net.Conn, delay func() time.Duration) (*delayedConn, error) {
	alarm, err := newAlarm()
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	c := &delayedConn{Conn: conn, delay: delay, alarm: alarm, timer: time.NewTimer(time.Hour), changed: make(chan struct{}, 1)}
	c.timer.Stop()
	go c.receive()
	return c, nil
}

// receive ends when the socket does.
func (c *delayedConn) receive() {
	buffer := make([]byte, 16<<10)
	for {
		n, err := c.Conn.Read(buffer)
		c.arrived(buffer[:n], err)
		if err != nil {
			return
		}
	}
}

func (c *delayedConn) arrived(bytes []byte, err error) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.makeRoom()
	if len(bytes) > 0 {
		c.bytes = append(c.bytes, bytes...)
		c.append(len(bytes), now)
	}
	if err != nil {
		c.err = err
		c.append(0, now)
	}
	c.notify()
}

// makeRoom forgets what has been read, so that the buffers do not grow for ever.
func (c *delayedConn) makeRoom() {
	if c.taken > 0 {
		c.bytes = append(c.bytes[:0], c.bytes[c.taken:]...)
		c.taken = 0
	}
}

func (c *delayedConn) append(size int, now time.Time) {
	due := now.Add(c.delay())
	if n := len(c.pieces); n > 0 && due.Before(c.pieces[n-1].due) {
		due = c.pieces[n-1].due
	}
	c.pieces = append(c.pieces, piece{size, due})
}

// notify wakes the Read that waits, if there is one.
func (c *delayedConn) notify() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func (c *delayedConn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	for {
		n, next, err := c.take(p)
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		c.wait(next)
	}
}

// event is what a Read that has nothing yet waits for.
type event struct {
	due      time.Time // of the first piece; zero: until there is one
	deadline time.Time // zero: none
}

// take takes what is due.
func (c *delayedConn) take(p []byte) (int, event, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	switch {
	case c.closed:
		return 0, event{}, net.ErrClosed
	case !c.deadline.IsZero() && !now.Before(c.deadline):
		return 0, event{}, os.ErrDeadlineExceeded
	case len(c.pieces) == 0:
		return 0, event{deadline: c.deadline}, nil
	case now.Before(c.pieces[0].due):
		return 0, event{due: c.pieces[0].due, deadline: c.deadline}, nil
	case c.pieces[0].size == 0:
		return 0, event{}, c.err
	}
	return c.copy(p, now), event{}, nil
}

// copy takes as much as is due and fits, as a socket gives it out.
func (c *delayedConn) copy(p []byte, now time.Time) (n int) {
	done := 0
	for n < len(p) && done < len(c.pieces) {
		first := &c.pieces[done]
		if first.size == 0 || now.Before(first.due) {
			break
		}
		size := copy(p[n:], c.bytes[c.taken:c.taken+first.size])
		n, c.taken, first.size = n+size, c.taken+size, first.size-size
		if first.size == 0 {
			done++
		}
	}
	c.pieces = append(c.pieces[:0], c.pieces[done:]...)
	return n
}

func (c *delayedConn) wait(next event) {
	if !next.due.IsZero() {
		c.waitForDue(next)
		return
	}
	var expired <-chan time.Time
	if !next.deadline.IsZero() {
		c.timer.Reset(time.Until(next.deadline))
		defer c.timer.Stop()
		expired = c.timer.C
	}
	select {
	case <-c.changed:
	case <-expired:
	}
}

// waitForDue ends early with Close. A deadline that is set meanwhile is seen
// when it ends, a delay later at most.
func (c *delayedConn) waitForDue(next event) {
	until := next.due
	if !next.deadline.IsZero() && next.deadline.Before(until) {
		until = next.deadline
	}
	c.alarm.wait(time.Until(until))
}

// SetReadDeadline is for Read. The socket has none: it is read all the time.
func (c *delayedConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.deadline = t
	c.notify()
	return nil
}

func (c *delayedConn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// Close ends the goroutine too.
func (c *delayedConn) Close() error {
	err := c.Conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		c.alarm.close()
		c.notify()
	}
	return err
}
