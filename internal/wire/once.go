package wire

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// Once is a command that the client sends once and never repeats by itself,
// unless a cluster has redirected it or there was no connection (see counted).
//
// redis.Script is not used because its commands are repeated by the client
// after a lost reply, without a word: a grant could be reported as held by
// somebody else although it is ours, and a release as one that found nothing.
//
// It is for one sending. go-redis does not copy the arguments that it is given,
// and hooks of the client may change them in place (a prefix before each key).
// So they are the command's own, and a request that is sent again is written
// into another one.
//
// The client gets a pointer, as with go-redis's own commands: mocks set the
// reply by reflection.
type Once struct {
	redis.Cmd                // a copy of what go-redis has made, for one allocation less
	words     [mostWords]any // the arguments
	times     *counted       // that among them which counts, or nil
	departing departing      // the last of them, if somebody is to be told when it is sent
	looks     *directness    // looks for hooks while the command is written; nil: not this time

	progress *atomic.Int32 // of the call; nil: nobody wants to know
}

// fill makes cmd the command for a request, with the source of its script or by
// its name.
func (cmd *Once) fill(ctx context.Context, r *Request, whole bool) {
	words := cmd.words[:copy(cmd.words[:], r.line()):r.length]
	if whole {
		words[0], words[1] = "eval", r.Script.Source
	}
	if r.Departure != nil {
		cmd.departing.tell(r.Departure, &words[len(words)-1])
	}
	cmd.Cmd = *redis.NewCmd(ctx, words...)
	cmd.progress = r.progress
	cmd.progress.CompareAndSwap(notHandedOver, handedOver)
}

// Args is what go-redis asks when it writes the command. Hooks ask too, and
// clients that choose among servers: only if nobody has asked it is certain
// that nothing was written. An argument that notes when it is written would
// know, but mocks compare arguments.
func (cmd *Once) Args() []any {
	if d := cmd.looks; d != nil {
		cmd.looks = nil
		d.look()
	}
	if cmd.progress != nil && cmd.progress.Load() != mayBeWritten {
		cmd.progress.Store(mayBeWritten)
	}
	return cmd.Cmd.Args()
}

// NewOnce makes a command that runs no script.
func NewOnce(ctx context.Context, words ...any) *Once {
	return &Once{Cmd: *redis.NewCmd(ctx, words...)}
}

// count makes cmd note how often it is written.
func (cmd *Once) count() {
	cmd.times = &counted{text: cmd.words[1].(string)}
	cmd.words[1] = cmd.times
}

// NoRetry is go-redis's question (since 9.19). It holds for a whole pipeline.
func (*Once) NoRetry() bool { return true }

// keep has a reply count that was read. go-redis fails a whole pipeline if the
// connection is lost behind it. (An empty one may have been cut off.)
func (cmd *Once) keep() {
	text, read := cmd.Val().(string)
	if read && text != "" || cmd.Val() == int64(1) {
		cmd.SetErr(nil)
	}
}

// ReplyDone is the reply 1 of a script that has done what it was asked, and has
// nothing more to say: a number, which costs nothing to read. Other numbers are
// no replies of ours.
const ReplyDone = "done"

// result is the reply of a script, which is a text or 1. trip is the error of
// the round trip as a whole: that of a hook which did not let the command
// through.
func (cmd *Once) result(trip error) (string, error) {
	if cmd.Err() == nil && cmd.Val() == nil && trip != nil {
		return "", cmd.unsent(trip)
	}
	if cmd.Err() == nil && cmd.Val() == int64(1) {
		return ReplyDone, nil
	}
	text, err := cmd.Text()
	switch {
	case err == nil:
		return text, nil
	case errors.Is(err, redis.Nil): // it is no error of the server, and may mean anything
		return "", Unexpected("nil")
	}
	if cmd.times != nil && !cmd.times.explains(err) {
		return "", resent(err)
	}
	return "", cmd.unsent(err)
}

// unsent says so in err if the command was not sent. The error alone does not
// tell: a connection that breaks while it is set up has the same as one that
// breaks later.
func (cmd *Once) unsent(err error) error {
	if !cmd.departing.stayed(cmd.Cmd.Args()) || !MaybeExecuted(err) {
		return err
	}
	return notSent(err)
}
