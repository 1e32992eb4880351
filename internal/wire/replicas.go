package wire

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// replicated is the engine for one server on which some requests count only
// once enough replicas have acknowledged what they have written. These have a
// group commit of their own: WAIT blocks a connection, and everything behind it
// on that connection, for as long as the replicas take. All other requests
// never wait for it.
type replicated struct {
	*pipeline
	acknowledged *pipeline
}

// Start makes the request.
func (e *replicated) Start(ctx context.Context, r Request) *Call { return e.of(r).Start(ctx, r) }

// Do is Start for a caller whose ctx cannot end.
func (e *replicated) Do(ctx context.Context, r Request) *Call { return e.of(r).Do(ctx, r) }

func (e *replicated) of(r Request) *pipeline {
	if r.Acknowledged != nil {
		return e.acknowledged
	}
	return e.pipeline
}

// acknowledgement is what the replicas have to say to a request.
//
// WAIT speaks of all writes that its own connection has made before. So it
// stands behind the scripts of a batch, once for all of them, in the same
// pipeline. Too few replicas for the last write may be enough for the first
// one, but nobody can tell.
//
// Where too few replicas have what was written, it is the owner of the request
// that takes it back, since only the owner knows that no other request of its
// own is about to succeed.
type acknowledgement struct {
	replicas int
	timeout  time.Duration
	missing  error // what a request fails with that too few have acknowledged
}

// newAcknowledgement is nil unless there are replicas to be waited for.
func newAcknowledgement(config Config) *acknowledgement {
	if config.Replicas == 0 {
		return nil
	}
	return &acknowledgement{replicas: config.Replicas, timeout: config.Timeout, missing: config.Missing}
}

// longestWait is how long a round trip may take that is not overdue. Redis
// looks ten times a second whether the time of a WAIT is over.
func (a *acknowledgement) longestWait() time.Duration {
	return a.timeout + 200*time.Millisecond
}

// fill makes cmd the WAIT behind a batch that begins with first.
func (a *acknowledgement) fill(ctx context.Context, cmd, first *Once, redirected bool) {
	words := append(cmd.words[:0], "wait", a.replicas, int64((a.timeout+time.Millisecond-1)/time.Millisecond))
	if !redirected {
		cmd.Cmd = *redis.NewCmd(ctx, words...)
		return
	}
	words[1] = &routed{replicas: a.replicas, to: first}
	cmd.Cmd = *redis.NewCmd(ctx, words...)
	cmd.SetFirstKeyPos(1)
}

// routed is the first argument of a WAIT for a client that chooses among
// servers. WAIT has no key, and would go to any of them. So its argument is
// declared to be a key: that of a script, as hooks have left it, while what is
// written is the number. Asking the server of the key directly was rejected,
// since it goes past the hooks of the client.
type routed struct {
	replicas int
	to       *Once
}

// MarshalBinary is what go-redis asks when it writes.
func (a *routed) MarshalBinary() ([]byte, error) {
	return strconv.AppendInt(nil, int64(a.replicas), 10), nil
}

// String is what go-redis asks when it looks for the slot.
func (a *routed) String() string { return a.to.key() }

// key is the first, as hooks have left it.
func (cmd *Once) key() string { return fmt.Sprint(cmd.words[3]) }

// errElsewhere says that a script was executed on another server than the WAIT
// behind it.
var errElsewhere = errors.New("the slot of the lock has moved")

// confirm is what a request came to, given the reply of its script.
func (a *acknowledgement) confirm(r *Request, reply string, wait *Once, together bool) (string, error) {
	if r.Acknowledged == nil {
		return reply, nil
	}
	written, err := r.Acknowledged(reply)
	switch {
	case err != nil || !written:
		return reply, err
	case !together:
		return "", errElsewhere
	}
	return reply, a.enough(wait)
}

// enough is nil if WAIT says so.
func (a *acknowledgement) enough(wait *Once) error {
	n, err := wait.Int()
	switch {
	case err == nil && n >= a.replicas:
		return nil
	case err != nil && MaybeExecuted(err): // no reply: nothing is known
		return err
	case err != nil:
		return notReplicated(a.missing, err.Error())
	}
	return notReplicated(a.missing, fmt.Sprintf("%d of %d replicas have acknowledged it within %s", n, a.replicas, a.timeout))
}

// passing makes an error that passes of a redirect that the client has not
// followed.
func passing(err error) error {
	if _, moved := redis.IsMovedError(err); moved {
		return fmt.Errorf("the slot has moved: %s", err) // not wrapped: to be tried again
	}
	if _, asking := redis.IsAskError(err); asking {
		return fmt.Errorf("the slot is moving: %s", err)
	}
	return err
}
