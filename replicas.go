package redislock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// replicated is an engine on which an acquisition counts only once enough replicas
// have acknowledged it. All other requests pass.
//
// WAIT speaks of the writes of its own connection, so the script and WAIT go down one,
// in a pipeline by themselves: WAIT blocks the connection, and everybody behind. A lock
// that was handed over by somebody else is confirmed in the same way (see lockOf): the
// script then writes the lease once more.
type replicated struct {
	engine
	client   Client
	replicas int
	timeout  time.Duration
}

func (e *replicated) start(ctx context.Context, r request) *call {
	if r.script != acquireScript {
		return e.engine.start(ctx, r)
	}
	c := newCall(ctx, r)
	c.willFinish()
	go e.acquire(c)
	return c
}

func (e *replicated) do(ctx context.Context, r request) *call {
	if r.script != acquireScript {
		return e.engine.do(ctx, r)
	}
	c := newCall(ctx, r)
	e.acquire(c)
	return c
}

func (e *replicated) acquire(c *call) {
	reply, err := e.acquireAndWait(c.ctx, c.request)
	if isNoScript(err) {
		reply, err = e.acquireAndWait(c.ctx, c.request.withSource())
	}
	var few *notReplicatedError
	if errors.As(err, &few) {
		few.givenBack = e.giveBack(c)
	}
	c.finish(reply, err)
}

// acquireAndWait makes one round trip.
func (e *replicated) acquireAndWait(ctx context.Context, r request) (string, error) {
	client, err := e.primary(ctx, r)
	if err != nil {
		return "", err
	}
	script := once{redis.NewCmd(ctx, r.line...)}
	wait := once{redis.NewCmd(ctx, "wait", e.replicas, milliseconds(e.timeout))}
	pipe := client.Pipeline()
	_ = pipe.Process(ctx, script) // only gathers
	_ = pipe.Process(ctx, wait)
	_, trip := pipe.Exec(ctx)
	reply, err := script.result(trip)
	if err != nil {
		return "", e.redirected(err)
	}
	if answer, err := parseAcquire(reply); err != nil || !answer.acquired {
		return reply, err
	}
	return reply, e.enough(wait)
}

// enough is nil if WAIT says so.
func (e *replicated) enough(wait once) error {
	n, err := wait.Int()
	switch {
	case err == nil && n >= e.replicas:
		return nil
	case err != nil && maybeExecuted(err): // no reply: nothing is known
		return err
	case err != nil:
		return &notReplicatedError{reason: err.Error()}
	}
	return &notReplicatedError{reason: fmt.Sprintf("%d of %d replicas have acknowledged it within %s", n, e.replicas, e.timeout)}
}

// primary is the client to one server, since a cluster's sends WAIT to any.
func (e *replicated) primary(ctx context.Context, r request) (Client, error) {
	if c, ok := e.client.(*redis.ClusterClient); ok {
		return c.MasterForKey(ctx, r.key())
	}
	return e.client, nil
}

// redirected makes an error that passes of a redirect, which the client of one node
// does not follow.
func (e *replicated) redirected(err error) error {
	if _, ok := e.client.(*redis.ClusterClient); !ok {
		return err
	}
	e.suspect()
	if _, moved := redis.IsMovedError(err); moved {
		return fmt.Errorf("the slot has moved: %s", err) // not wrapped: to be tried again
	}
	if _, asking := redis.IsAskError(err); asking {
		return fmt.Errorf("the slot is moving: %s", err)
	}
	return err
}

// giveBack frees the lock, so that nothing is left when the caller hears of it. If that
// fails it is undone in the background, as other acquisitions are.
func (e *replicated) giveBack(c *call) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), undoLimit)
	defer cancel()
	keys, args := c.request.keys(), c.request.args()
	back := e.engine.start(ctx, releaseScript.request(undoLimit, keys, args[0], args[3]))
	select {
	case <-back.done:
		return back.err == nil
	case <-ctx.Done():
		return false
	}
}
