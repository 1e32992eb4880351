package redislock

import (
	"embed"
	"errors"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/e2e3f2a3/redislock/internal/line"
	"github.com/e2e3f2a3/redislock/internal/wire"
)

// Every decision about ownership is made by one of these scripts, each of which
// runs atomically in Redis.
var (
	//go:embed lua
	sources embed.FS

	acquireScript = wire.NewScript(sourceOf("acquire"))
	extendScript  = wire.NewScript(sourceOf("extend"))
	releaseScript = wire.NewScript(sourceOf("release"))
	keepScript    = wire.NewScript(sourceOf("keep"))
	inspectScript = wire.NewScript(sourceOf("inspect"))

	raiseScript    = wire.NewScript(sourceOf("raise"))
	retakeScript   = wire.NewScript(sourceOf("retake"))
	handBackScript = wire.NewScript(sourceOf("handback"))
)

// sourceOf is lua/name.lua with what it includes: a line "-- include: x" stands
// for lua/lib/x.lua, or for another script, once in the whole. Redis itself has
// nothing of the kind: functions (FUNCTION LOAD) are not in Redis 6.
func sourceOf(name string) string {
	var b strings.Builder
	include(&b, "lua/"+name+".lua", make(map[string]bool))
	return b.String()
}

func include(b *strings.Builder, file string, included map[string]bool) {
	if included[file] {
		return
	}
	included[file] = true
	source, err := sources.ReadFile(file)
	if err != nil {
		panic(err) // it is part of the program: every test would fail
	}
	for line := range strings.Lines(string(source)) {
		name, is := strings.CutPrefix(strings.TrimSpace(line), "-- include: ")
		switch {
		case !is:
			b.WriteString(line)
		case exists("lua/lib/" + name + ".lua"):
			include(b, "lua/lib/"+name+".lua", included)
		default:
			include(b, "lua/"+name+".lua", included)
		}
	}
}

func exists(file string) bool {
	_, err := fs.Stat(sources, file)
	return err == nil
}

// For each script follow its arguments and its reply. A reply of another shape
// comes from no server that runs our scripts; it is an error rather than a
// panic.

// --- acquire.lua -------------------------------------------------------------

type acquireArgs struct {
	token     lockToken
	value     any // what the key is to hold: the token and metadata
	ttl       time.Duration
	retention any // of the record of the fence, ms
	ticketing
	lifetime int64 // of the queue, ms
}

func (a *acquireArgs) request(limit time.Duration, keys *lockKeys) (r wire.Request) {
	ttl := milliseconds(a.ttl)
	if a.ticket == "" {
		r = acquireScript.Request(limit, keys.all(), a.token.arg, a.value, ttl, a.retention)
	} else {
		r = acquireScript.Request(limit, keys.all(), a.token.arg, a.value, ttl, a.retention,
			a.ticket, a.lifetime, a.place, a.stale)
	}
	r.Departure, r.Acknowledged = wire.Unobserved{}, isAcquired
	return r
}

// isAcquired tells whether a reply has something that replicas have to
// acknowledge.
func isAcquired(reply string) (bool, error) {
	r, err := parseAcquire(reply)
	return r.acquired, err
}

type acquireReply struct {
	sent     time.Time // before the request was written, on our clock
	acquired bool
	fence    int64         // if acquired
	left     time.Duration // else: of the holder's lease; negative without an end
	server   int64         // time of the server, us
	queued   bool          // the ticket stands in the queue

	overtaken bool // nobody waited for the reply: a grant had come, see acquireTry
	final     bool // of a failure: no time is left for another try
	opposed   bool // of a failure: somebody else has a part of the servers
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
	return r, wire.Unexpected(reply)
}

// --- extend.lua --------------------------------------------------------------

type extendArgs struct {
	token     lockToken
	ttl       time.Duration
	retention any  // of the record of the fence, ms
	grow      bool // never shorten the lease
}

func (a *extendArgs) request(limit time.Duration, keys *lockKeys) wire.Request {
	mode := "set"
	if a.grow {
		mode = "grow"
	}
	return extendScript.Request(limit, keys.all()[:2], a.token.arg, milliseconds(a.ttl), a.retention, mode)
}

type extendReply struct {
	sent   time.Time // before the request was written, on our clock
	held   bool
	fence  int64
	free   bool   // nobody holds the lock
	record string // if free: the last fence, or empty

	// floor is what the lease may yet be cut down to by an earlier request,
	// where that is known better than by the lock itself; 0: it is not.
	floor time.Duration
}

func parseExtend(reply string) (r extendReply, err error) {
	if record, free := strings.CutPrefix(reply, "0 1 "); free {
		return extendReply{free: true, record: record}, nil
	}
	if reply == wire.ReplyDone { // no fence was asked for
		return extendReply{held: true}, nil
	}
	var n [2]int64
	count, err := integers(reply, n[:])
	switch {
	case err != nil || n[0] == 0:
		return r, err
	case count < 2 || n[0] != 1:
		return r, wire.Unexpected(reply)
	}
	return extendReply{held: true, fence: n[1]}, nil
}

// --- release.lua, keep.lua ---------------------------------------------------

type releaseArgs struct {
	token     lockToken
	retention any    // of the record of the fence, ms
	ticket    string // of the token, to be withdrawn from the queue, or empty
	next      string // ticket of the next one, or empty: nobody
	lifetime  int64  // of the queue, ms; 0: the next one cannot be queued
	kept      minHold
}

func (a *releaseArgs) request(limit time.Duration, keys *lockKeys) (r wire.Request) {
	args := make([]any, 2, 6)
	args[0], args[1] = a.token.arg, a.retention
	switch {
	case a.next != "":
		args = append(args, a.ticket, a.next, a.lifetime)
	case a.ticket != "":
		args = append(args, a.ticket)
	}
	script := releaseScript
	if a.kept.least > 0 {
		script, args = keepScript, append(args, a.kept.arg())
	}
	r = script.Request(limit, keys.all(), args...)
	r.FirstKeyWillDo = true
	return r
}

type releaseReply struct {
	sent   time.Time     // before the request was written, on our clock
	found  bool          // the key held the token
	next   line.Next     // what became of the ticket that was brought along
	fence  int64         // of the next one, if granted
	left   time.Duration // lease of the current owner, if it is another
	server int64         // time of the server, us
}

func parseRelease(reply string) (r releaseReply, err error) {
	if reply == wire.ReplyDone {
		return releaseReply{found: true}, nil
	}
	var n [4]int64
	count, err := integers(reply, n[:])
	switch {
	case err != nil || n[0] == 0:
		return r, err
	case n[0] != 1:
		return r, wire.Unexpected(reply)
	case count < 4:
		return r, wire.Unexpected(reply)
	}
	left := time.Duration(min(n[2], milliseconds(maxLease))) * time.Millisecond
	return releaseReply{found: true, next: line.Next(n[1]), fence: n[2], left: left, server: n[3]}, nil
}

// --- raise.lua, retake.lua, handback.lua: of a quorum --------------------------

type raiseArgs struct {
	token     lockToken
	fence     int64
	retention any // of the record of the fence, ms
}

func (a *raiseArgs) request(limit time.Duration, keys *lockKeys) wire.Request {
	return raiseScript.Request(limit, keys.all()[:2], a.token.arg, a.fence, a.retention)
}

type retakeArgs struct {
	token     lockToken
	value     any // what the key is to hold
	ttl       time.Duration
	retention any // of the record of the fence, ms
	fence     int64
	record    string // when the node was free, or empty
}

func (a *retakeArgs) request(limit time.Duration, keys *lockKeys) wire.Request {
	r := retakeScript.Request(limit, keys.all()[:2],
		a.token.arg, a.value, milliseconds(a.ttl), a.retention, a.fence, a.record)
	r.Departure = wire.Unobserved{}
	return r
}

type handBackArgs struct {
	token lockToken
	bound int64 // the greatest fence that the attempt was given
}

func (a *handBackArgs) request(limit time.Duration, keys *lockKeys) wire.Request {
	return handBackScript.Request(limit, keys.all()[:2], a.token.arg, a.bound)
}

// parseDone reads the reply of these: whether the node has done it.
func parseDone(reply string) (done bool, err error) {
	if reply != "0" && reply != "1" {
		return false, wire.Unexpected(reply)
	}
	return reply == "1", nil
}

// --- inspect.lua -------------------------------------------------------------

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
			return r, wire.Unexpected(reply)
		}
		reply = rest
	}
	return inspectReply{left: n[0], fence: n[1], queue: n[2], value: reply}, nil
}

// --- what a request has left -------------------------------------------------

// leftBy reads what a request that was answered has left in Redis for its
// token, or for the one whose ticket it carried: something or nothing. If it
// was an acquisition, at is when it was executed, by the clock of the server,
// us; else 0.
func leftBy(c *wire.Call) (something bool, at int64) {
	if c.Err != nil {
		return errors.Is(c.Err, ErrNotReplicated), 0
	}
	if c.Request.Script == acquireScript {
		r, err := parseAcquire(c.Reply)
		return err != nil || r.acquired || r.queued, r.server
	}
	var n [4]int64 // the first says whether there is something, and the last of four whether it is queued
	_, err := integers(c.Reply, n[:])
	return err != nil || n[0] != 0 || n[3] != 0, 0
}

// integers reads the numbers of a reply, at least one and at most as many as
// there is room for, and returns how many there are.
func integers(reply string, into []int64) (count int, err error) {
	for word := range strings.SplitSeq(reply, " ") {
		if count == len(into) {
			return 0, wire.Unexpected(reply)
		}
		if into[count], err = strconv.ParseInt(word, 10, 64); err != nil {
			return 0, wire.Unexpected(reply)
		}
		count++
	}
	return count, nil
}
