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
	"time"

	"github.com/redis/go-redis/v9"
)

// Every decision about ownership is made by one of these scripts, each of which
// runs atomically in Redis.
var (
	//go:embed lua/common.lua
	commonSource string
	//go:embed lua/queue.lua
	queueSource string
	//go:embed lua/acquire.lua
	acquireSource string
	//go:embed lua/extend.lua
	extendSource string
	//go:embed lua/release.lua
	releaseSource string
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

	acquireScript = newScript(commonSource, queueSource, acquireSource)
	extendScript  = newScript(commonSource, extendSource)
	releaseScript = newScript(commonSource, queueSource, releaseSource)
	inspectScript = newScript(commonSource, inspectSource)

	raiseScript    = newScript(commonSource, quorumSource, raiseSource)
	retakeScript   = newScript(commonSource, quorumSource, retakeSource)
	handBackScript = newScript(commonSource, quorumSource, handBackSource)
)

// script is a Lua script and the name that Redis knows it by.
type script struct {
	source string
	sha    string
}

func newScript(parts ...string) *script {
	source := withoutComments(strings.Join(parts, ""))
	sum := sha1.Sum([]byte(source))
	return &script{source: source, sha: hex.EncodeToString(sum[:])}
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

// run executes the script and returns its reply, which is always an array. Redis
// forgets scripts (restart, failover, SCRIPT FLUSH); one more trip with the
// source makes it know them again.
//
// redis.Script is not used because its commands are repeated by the client after
// a lost reply, without a word: a lock could be reported as held by somebody
// else who is ourselves, and a release as one that found nothing.
func (s *script) run(ctx context.Context, client Client, keys []string, args []any) ([]any, error) {
	reply, err := process(ctx, client, "evalsha", s.sha, keys, args)
	if err != nil && isNoScript(err) {
		return process(ctx, client, "eval", s.source, keys, args)
	}
	return reply, err
}

// once is a command that the client sends once and never repeats by itself.
type once struct{ *redis.Cmd }

// NoRetry is go-redis's question (since 9.19).
func (once) NoRetry() bool { return true }

func process(ctx context.Context, client Client, name, script string, keys []string, args []any) ([]any, error) {
	line := make([]any, 0, 3+len(keys)+len(args))
	line = append(line, name, script, len(keys))
	for _, key := range keys {
		line = append(line, key)
	}
	cmd := once{redis.NewCmd(ctx, append(line, args...)...)}
	if err := client.Process(ctx, cmd); err != nil {
		return nil, err
	}
	return cmd.Slice()
}

// isNoScript looks at the whole text of a server's answer: proxies and some
// servers put a prefix before the code.
func isNoScript(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer) && hasState(answer, "NOSCRIPT")
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

func parseAcquire(reply []any) (r acquireReply, err error) {
	n, err := integers(reply, 3)
	if err != nil {
		return r, err
	}
	if n[0] == 1 {
		return acquireReply{acquired: true, fence: n[1], server: n[2]}, nil
	}
	if n, err = integers(reply, 4); err != nil {
		return r, err
	}
	return acquireReply{left: time.Duration(min(n[1], milliseconds(maxLease))) * time.Millisecond, server: n[2], queued: n[3] == 1}, nil
}

type extendReply struct {
	held   bool
	fence  int64
	free   bool   // nobody holds the lock
	record string // if free: the last fence, or empty
}

func parseExtend(reply []any) (r extendReply, err error) {
	n, err := integers(reply, 1)
	if err != nil {
		return r, err
	}
	if n[0] == 0 {
		return notExtended(reply[1:]), nil
	}
	if n, err = integers(reply, 2); err != nil {
		return r, err
	}
	return extendReply{held: true, fence: n[1]}, nil
}

// notExtended reads why: the reply of who has no interest in it is shorter.
func notExtended(why []any) (r extendReply) {
	if n, err := integers(why, 1); err == nil && n[0] == 1 && len(why) > 1 {
		r.record, r.free = why[1].(string)
	}
	return r
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

func parseRelease(reply []any) (r releaseReply, err error) {
	n, err := integers(reply, 1)
	if err != nil || n[0] == 0 {
		return r, err
	}
	if n, err = integers(reply, 2); err != nil {
		return r, err
	}
	r = releaseReply{found: true, next: n[1]}
	if r.next == nextNone {
		return r, nil
	}
	if n, err = integers(reply, 4); err != nil {
		return r, err
	}
	r.fence, r.left, r.server = n[2], time.Duration(n[2])*time.Millisecond, n[3]
	return r, nil
}

type inspectReply struct {
	value string
	left  int64 // ms; -1 without an end, -2 not held
	fence int64
	queue int64 // number of tickets
}

func parseInspect(reply []any) (r inspectReply, err error) {
	if len(reply) == 0 {
		return r, unexpected(reply)
	}
	value, ok := reply[0].(string)
	if !ok {
		return r, unexpected(reply)
	}
	n, err := integers(reply[1:], 3)
	if err != nil {
		return r, err
	}
	return inspectReply{value: value, left: n[0], fence: n[1], queue: n[2]}, nil
}

// integers reads the first n elements of a reply, which are numbers or their text.
func integers(reply []any, n int) ([]int64, error) {
	if len(reply) < n {
		return nil, unexpected(reply)
	}
	out := make([]int64, n)
	for i := range out {
		switch v := reply[i].(type) {
		case int64:
			out[i] = v
		case string:
			parsed, err := strconv.ParseInt(v, 10, 64)
			if err != nil {
				return nil, unexpected(reply)
			}
			out[i] = parsed
		default:
			return nil, unexpected(reply)
		}
	}
	return out, nil
}

func unexpected(reply []any) error {
	return fmt.Errorf("unexpected reply of a script: %v", reply)
}
