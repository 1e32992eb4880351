package redislock

import (
	"context"
	"crypto/sha1" // the name Redis gives to a script, not a matter of security
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// Every decision about ownership is made by one of these scripts, each of which
// runs atomically in Redis.
var (
	//go:embed lua/value.lua
	valueSource string
	//go:embed lua/common.lua
	commonSource string
	//go:embed lua/record.lua
	recordSource string
	//go:embed lua/queue.lua
	queueSource string
	//go:embed lua/acquire.lua
	acquireSource string
	//go:embed lua/acquire_contended.lua
	acquireContendedSource string
	//go:embed lua/extend.lua
	extendSource string
	//go:embed lua/release.lua
	releaseSource string
	//go:embed lua/release_next.lua
	releaseNextSource string
	//go:embed lua/release_alone.lua
	releaseAloneSource string
	//go:embed lua/keep.lua
	keepSource string
	//go:embed lua/inspect.lua
	inspectSource string
	//go:embed lua/quorum.lua
	quorumSource string
	//go:embed lua/raise.lua
	raiseSource string
	//go:embed lua/retake.lua
	retakeSource string
	//go:embed lua/handback.lua
	handBackSource string

	acquireScript = newScript(acquireSource, valueSource, commonSource, recordSource, queueSource, acquireContendedSource)
	extendScript  = newScript(valueSource, commonSource, recordSource, extendSource)
	releaseScript = newScript(releaseSource, valueSource, commonSource, queueSource, releaseNextSource)
	releaseAlone  = newScript(valueSource, commonSource, releaseAloneSource)
	keepScript    = newScript(valueSource, commonSource, queueSource, keepSource, releaseSource, releaseNextSource)
	keepAlone     = newScript(valueSource, commonSource, queueSource, keepSource, releaseAloneSource)
	inspectScript = newScript(inspectSource)

	raiseScript    = newScript(valueSource, commonSource, recordSource, quorumSource, raiseSource)
	retakeScript   = newScript(valueSource, commonSource, recordSource, quorumSource, retakeSource)
	handBackScript = newScript(valueSource, commonSource, recordSource, quorumSource, handBackSource)
)

// script is a Lua script and the name that Redis knows it by.
type script struct {
	source string
	sha    string
	name   any // sha as an argument
}

func newScript(parts ...string) *script {
	source := withoutComments(strings.Join(parts, ""))
	sum := sha1.Sum([]byte(source))
	s := &script{source: source, sha: hex.EncodeToString(sum[:])}
	s.name = s.sha
	return s
}

// withoutComments shortens what goes over the wire when Redis does not know the
// script yet. The files hold comments on lines of their own only.
func withoutComments(source string) string {
	var b strings.Builder
	for line := range strings.Lines(source) {
		if text := strings.TrimSpace(line); text != "" && !strings.HasPrefix(text, "--") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// once is a command that the client sends once and never repeats by itself, unless a
// cluster has redirected it or there was no connection (see counted).
//
// redis.Script is not used because its commands are repeated by the client after
// a lost reply, without a word: a lock could be reported as held by somebody
// else who is ourselves, and a release as one that found nothing.
//
// It is for one sending. go-redis does not copy the arguments that it is given, and hooks
// of the client may change them in place (a prefix before each key). So they are the
// command's own, and a request that is sent again is written into another one.
//
// The client gets a pointer, as with go-redis's own commands: mocks set the reply by
// reflection.
type once struct {
	redis.Cmd                // a copy of what go-redis has made, for one allocation less
	words     [mostWords]any // the arguments
	times     *counted       // that among them which counts, or nil
	departing departing      // the last of them, if somebody is to be told when it is sent

	progress *atomic.Int32 // of the call; nil: nobody wants to know
}

// fill makes cmd the command for a request, with the source of its script or by its name.
func (cmd *once) fill(ctx context.Context, r *request, whole bool) {
	words := cmd.words[:copy(cmd.words[:], r.line()):r.length]
	if whole {
		words[0], words[1] = "eval", r.script.source
	}
	if r.leaves != nil {
		cmd.departing.tell(r.leaves, &words[len(words)-1])
	}
	cmd.Cmd = *redis.NewCmd(ctx, words...)
	cmd.progress = r.progress
	cmd.progress.CompareAndSwap(wire.NotHandedOver, wire.HandedOver)
}

// Args is what go-redis asks when it writes the command. Hooks ask too, and clients that
// choose among servers: only if nobody has asked it is certain that nothing was written.
// An argument that notes when it is written would know, but mocks compare arguments.
func (cmd *once) Args() []any {
	if cmd.progress != nil && cmd.progress.Load() != wire.MayBeWritten {
		cmd.progress.Store(wire.MayBeWritten)
	}
	return cmd.Cmd.Args()
}

// newOnce makes a command that runs no script.
func newOnce(ctx context.Context, words ...any) *once {
	return &once{Cmd: *redis.NewCmd(ctx, words...)}
}

// count makes cmd note how often it is written.
func (cmd *once) count() {
	cmd.times = &counted{text: cmd.words[1].(string)}
	cmd.words[1] = cmd.times
}

// NoRetry is go-redis's question (since 9.19). It holds for a whole pipeline.
func (*once) NoRetry() bool { return true }

// keep has a reply count that was read. go-redis fails a whole pipeline if the connection
// is lost behind it. (An empty one may have been cut off.)
func (cmd *once) keep() {
	text, read := cmd.Val().(string)
	if read && text != "" || cmd.Val() == int64(1) {
		cmd.SetErr(nil)
	}
}

// replyDone is the reply 1 of a script that has freed or renewed a lock, and nothing more to
// say: a number, which costs nothing to read. Other numbers are no replies of ours.
const replyDone = "done"

// result is the reply of a script, which is a text or 1. trip is the error of the
// round trip as a whole: that of a hook which did not let the command through.
func (cmd *once) result(trip error) (string, error) {
	if cmd.Err() == nil && cmd.Val() == nil && trip != nil {
		return "", cmd.unsent(trip)
	}
	if cmd.Err() == nil && cmd.Val() == int64(1) {
		return replyDone, nil
	}
	text, err := cmd.Text()
	switch {
	case err == nil:
		return text, nil
	case errors.Is(err, redis.Nil): // it is no error of the server, and may mean anything
		return "", unexpected("nil")
	}
	if cmd.times != nil && !cmd.times.explains(err) {
		return "", wire.Resent(err)
	}
	return "", cmd.unsent(err)
}

// unsent says so in err if the command was not sent. The error alone does not tell: a
// connection that breaks while it is set up has the same as one that breaks later.
func (cmd *once) unsent(err error) error {
	if !cmd.departing.stayed(cmd.Cmd.Args()) || !wire.MaybeExecuted(err) {
		return err
	}
	return wire.NotSent(err)
}

// isNoScript tells whether the server does not know the script of a request.
func isNoScript(err error) bool {
	if err == nil {
		return false // most often; errors.As would allocate
	}
	return wire.HasState(err, "NOSCRIPT")
}

// Replies of the scripts. A reply of another shape comes from no server that
// runs our scripts; it is an error rather than a panic.

type acquireReply struct {
	acquired bool
	fence    int64         // if acquired
	left     time.Duration // else: of the holder's lease; negative without an end
	server   int64         // time of the server, us
	queued   bool          // the ticket stands in the queue
}

func parseAcquire(reply string) (r acquireReply, err error) {
	var n [4]int64
	count, err := integers(reply, n[:])
	switch {
	case err != nil:
		return r, err
	case n[0] > 0 && count == 1: // the fence is the time
		return acquireReply{acquired: true, fence: n[0], server: n[0]}, nil
	case n[0] > 0 && count == 2:
		return acquireReply{acquired: true, fence: n[0], server: n[1]}, nil
	case n[0] == 0 && count == 4:
		return acquireReply{left: time.Duration(min(n[1], milliseconds(maxLease))) * time.Millisecond, server: n[2], queued: n[3] == 1}, nil
	}
	return r, unexpected(reply)
}

type extendReply struct {
	held   bool
	fence  int64
	free   bool   // nobody holds the lock
	record string // if free: the last fence, or empty
}

func parseExtend(reply string) (r extendReply, err error) {
	if record, free := strings.CutPrefix(reply, "0 1 "); free {
		return extendReply{free: true, record: record}, nil
	}
	if reply == replyDone { // no fence was asked for
		return extendReply{held: true}, nil
	}
	var n [2]int64
	count, err := integers(reply, n[:])
	switch {
	case err != nil || n[0] == 0:
		return r, err
	case count < 2 || n[0] != 1:
		return r, unexpected(reply)
	}
	return extendReply{held: true, fence: n[1]}, nil
}

// What became of the ticket that a release brought along.
const (
	nextNone    = 0 // nothing: the lock is free, or was not the caller's
	nextGranted = 1 // it has the lock
	nextQueued  = 2 // somebody else has it, the ticket is in the queue
	nextPassed  = 3 // somebody else has it, the ticket could not be queued
)

type releaseReply struct {
	found  bool // the key held the token
	next   int64
	fence  int64         // of the next one, if granted
	left   time.Duration // lease of the one who has the lock now, if it is another
	server int64         // time of the server, us
}

func parseRelease(reply string) (r releaseReply, err error) {
	if reply == replyDone {
		return releaseReply{found: true}, nil
	}
	var n [4]int64
	count, err := integers(reply, n[:])
	switch {
	case err != nil || n[0] == 0:
		return r, err
	case n[0] != 1:
		return r, unexpected(reply)
	case count == 3 && n[1] == nextGranted: // the fence is the time
		return releaseReply{found: true, next: nextGranted, fence: n[2], server: n[2]}, nil
	case count < 4:
		return r, unexpected(reply)
	}
	left := time.Duration(min(n[2], milliseconds(maxLease))) * time.Millisecond
	return releaseReply{found: true, next: n[1], fence: n[2], left: left, server: n[3]}, nil
}

type inspectReply struct {
	left  int64 // ms; -1 without an end, -2 not held
	fence int64
	queue int64 // number of tickets
	value string
}

func parseInspect(reply string) (r inspectReply, err error) {
	var n [3]int64
	for i := range n {
		word, rest, found := strings.Cut(reply, " ")
		if n[i], err = strconv.ParseInt(word, 10, 64); err != nil || !found {
			return r, unexpected(reply)
		}
		reply = rest
	}
	return inspectReply{left: n[0], fence: n[1], queue: n[2], value: reply}, nil
}

// integers reads the numbers of a reply, at least one and at most as many as there
// is room for, and returns how many there are.
func integers(reply string, into []int64) (count int, err error) {
	for word := range strings.SplitSeq(reply, " ") {
		if count == len(into) {
			return 0, unexpected(reply)
		}
		if into[count], err = strconv.ParseInt(word, 10, 64); err != nil {
			return 0, unexpected(reply)
		}
		count++
	}
	return count, nil
}

func unexpected(reply string) error {
	return fmt.Errorf("unexpected reply of a script: %.20q", reply)
}
