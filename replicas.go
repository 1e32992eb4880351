package redislock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// replicated is the engine for one server on which an acquisition counts only once enough
// replicas have acknowledged it. Acquisitions have a group commit of their own: WAIT
// blocks a connection, and everything behind it on that connection, for as long as the
// replicas take. All other requests, and above all what keeps a lock, never wait for it.
type replicated struct {
	*pipeline
	acquiring *pipeline
}

func (e *replicated) start(ctx context.Context, r request) *call { return e.of(r).start(ctx, r) }

func (e *replicated) do(ctx context.Context, r request) *call { return e.of(r).do(ctx, r) }

func (e *replicated) of(r request) *pipeline {
	if r.script == acquireScript {
		return e.acquiring
	}
	return e.pipeline
}

// acknowledgement is what the replicas have to say to an acquisition.
//
// WAIT speaks of all writes that its own connection has made before. So it stands behind
// the scripts of a batch, once for all of them, in the same pipeline. Too few replicas
// for the last write may be enough for the first one, but nobody can tell.
//
// A lock that was handed over by somebody else is confirmed in the same way (see lockOf):
// the script then writes the lease once more. Where too few replicas have it, it is the
// acquisition that frees the lock, since only it knows that no other request of its is
// about to succeed.
type acknowledgement struct {
	replicas int
	timeout  time.Duration
}

// newAcknowledgement is nil unless there are replicas to be waited for.
func newAcknowledgement(opts options) *acknowledgement {
	if opts.replicas == 0 {
		return nil
	}
	return &acknowledgement{replicas: opts.replicas, timeout: opts.replicaTimeout}
}

// longestWait is how long a round trip may take that is not overdue. Redis looks ten
// times a second whether the time of a WAIT is over.
func (a *acknowledgement) longestWait() time.Duration {
	return min(a.timeout, maxLease) + 200*time.Millisecond
}

// fill makes cmd the WAIT behind a batch that begins with first.
func (a *acknowledgement) fill(ctx context.Context, cmd, first *once, redirected bool) {
	words := append(cmd.words[:0], "wait", a.replicas, milliseconds(a.timeout))
	if !redirected {
		cmd.Cmd = *redis.NewCmd(ctx, words...)
		return
	}
	words[1] = &routed{replicas: a.replicas, to: first}
	cmd.Cmd = *redis.NewCmd(ctx, words...)
	cmd.SetFirstKeyPos(1)
}

// routed is the first argument of a WAIT for a client that chooses among servers. WAIT has
// no key, and would go to any of them. So its argument is declared to be a key: that of a
// script, as hooks have left it, while what is written is the number. Asking the server
// of the key directly was rejected, since it goes past the hooks of the client.
type routed struct {
	replicas int
	to       *once
}

// MarshalBinary is what go-redis asks when it writes.
func (a *routed) MarshalBinary() ([]byte, error) {
	return strconv.AppendInt(nil, int64(a.replicas), 10), nil
}

// String is what go-redis asks when it looks for the slot.
func (a *routed) String() string { return a.to.key() }

// key is the lock's, as hooks have left it.
func (cmd *once) key() string { return fmt.Sprint(cmd.words[3]) }

// errElsewhere says that a script was executed on another server than the WAIT behind it.
var errElsewhere = errors.New("the slot of the lock has moved")

// confirm is what an acquisition came to, given the reply of its script.
func (a *acknowledgement) confirm(reply string, wait *once, together bool) (string, error) {
	answer, err := parseAcquire(reply)
	switch {
	case err != nil || !answer.acquired:
		return reply, err
	case !together:
		return "", errElsewhere
	}
	return reply, a.enough(wait)
}

// enough is nil if WAIT says so.
func (a *acknowledgement) enough(wait *once) error {
	n, err := wait.Int()
	switch {
	case err == nil && n >= a.replicas:
		return nil
	case err != nil && wire.MaybeExecuted(err): // no reply: nothing is known
		return err
	case err != nil:
		return wire.NotReplicated(ErrNotReplicated, err.Error())
	}
	return wire.NotReplicated(ErrNotReplicated, fmt.Sprintf("%d of %d replicas have acknowledged it within %s", n, a.replicas, a.timeout))
}

// passing makes an error that passes of a redirect that the client has not followed.
func passing(err error) error {
	if _, moved := redis.IsMovedError(err); moved {
		return fmt.Errorf("the slot has moved: %s", err) // not wrapped: to be tried again
	}
	if _, asking := redis.IsAskError(err); asking {
		return fmt.Errorf("the slot is moving: %s", err)
	}
	return err
}
