package redislock

import (
	"context"
	"fmt"
	"log/slog"
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
//
// Where too few have, it is the acquisition that frees the lock, since only it knows
// that no other request of its is about to succeed.
type replicated struct {
	engine
	client   Client
	cluster  *cluster // nil if it is one server
	logger   *slog.Logger
	replicas int
	timeout  time.Duration
}

func (e *replicated) start(ctx context.Context, r request) *call {
	if r.script != acquireScript {
		return e.engine.start(ctx, r)
	}
	c := newCall(ctx, r)
	c.willFinish()
	go catch(func() { e.acquire(c) }, func(err *strayError) {
		err.log(e.logger)
		c.finish("", err)
	})
	return c
}

func (e *replicated) do(ctx context.Context, r request) *call {
	if r.script != acquireScript {
		return e.engine.do(ctx, r)
	}
	if e.cluster != nil { // see (*cluster).do
		c := e.start(ctx, r)
		<-c.done
		return c
	}
	c := newCall(ctx, r)
	e.acquire(c)
	return c
}

func (e *replicated) acquire(c *call) {
	if e.cluster != nil {
		addr, _ := e.cluster.home(c.request.key())
		defer e.cluster.attend(addr, []*call{c})()
	}
	reply, err := e.acquireAndWait(c.ctx, &c.request, false)
	if isNoScript(err) {
		reply, err = e.acquireAndWait(c.ctx, &c.request, true)
	}
	c.finish(reply, err)
}

// acquireAndWait makes one round trip, or two if the slot has moved: a cluster's client
// follows that, but the client of one node does not.
func (e *replicated) acquireAndWait(ctx context.Context, r *request, whole bool) (string, error) {
	if e.cluster == nil {
		return e.tripTo(ctx, e.client, r, whole)
	}
	reply, err := e.tripToPrimary(ctx, r, whole)
	if _, moved := redis.IsMovedError(err); moved {
		e.cluster.look()
		reply, err = e.tripToPrimary(ctx, r, whole)
	}
	if err = passing(err); err == nil || isTransient(err) {
		e.cluster.after(err)
	}
	return reply, err
}

// tripToPrimary does not use the cluster's client itself, which sends WAIT to any node.
func (e *replicated) tripToPrimary(ctx context.Context, r *request, whole bool) (string, error) {
	node, err := e.cluster.of.MasterForKey(ctx, r.key())
	if err != nil {
		return "", err
	}
	return e.tripTo(ctx, node, r, whole)
}

// passing makes an error that passes of a redirect.
func passing(err error) error {
	if _, moved := redis.IsMovedError(err); moved {
		return fmt.Errorf("the slot has moved: %s", err) // not wrapped: to be tried again
	}
	if _, asking := redis.IsAskError(err); asking {
		return fmt.Errorf("the slot is moving: %s", err)
	}
	return err
}

func (e *replicated) tripTo(ctx context.Context, client Client, r *request, whole bool) (string, error) {
	script, wait := new(once), newOnce(ctx, "wait", e.replicas, milliseconds(e.timeout))
	script.fill(ctx, r, whole)
	pipe := client.Pipeline()
	_ = pipe.Process(ctx, script) // only gathers
	_ = pipe.Process(ctx, wait)
	_, trip := pipe.Exec(ctx)
	reply, err := script.result(trip)
	if err != nil {
		return "", err
	}
	if answer, err := parseAcquire(reply); err != nil || !answer.acquired {
		return reply, err
	}
	return reply, e.enough(wait)
}

// enough is nil if WAIT says so.
func (e *replicated) enough(wait *once) error {
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
