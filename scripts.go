package redislock

import (
	_ "embed"
	"strconv"
	"strings"
	"time"

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

	acquireScript = wire.NewScript(acquireSource, valueSource, commonSource, recordSource, queueSource, acquireContendedSource)
	extendScript  = wire.NewScript(valueSource, commonSource, recordSource, extendSource)
	releaseScript = wire.NewScript(releaseSource, valueSource, commonSource, queueSource, releaseNextSource)
	releaseAlone  = wire.NewScript(valueSource, commonSource, releaseAloneSource)
	keepScript    = wire.NewScript(valueSource, commonSource, queueSource, keepSource, releaseSource, releaseNextSource)
	keepAlone     = wire.NewScript(valueSource, commonSource, queueSource, keepSource, releaseAloneSource)
	inspectScript = wire.NewScript(inspectSource)

	raiseScript    = wire.NewScript(valueSource, commonSource, recordSource, quorumSource, raiseSource)
	retakeScript   = wire.NewScript(valueSource, commonSource, recordSource, quorumSource, retakeSource)
	handBackScript = wire.NewScript(valueSource, commonSource, recordSource, quorumSource, handBackSource)
)

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
	return r, wire.Unexpected(reply)
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
	case count == 3 && n[1] == nextGranted: // the fence is the time
		return releaseReply{found: true, next: nextGranted, fence: n[2], server: n[2]}, nil
	case count < 4:
		return r, wire.Unexpected(reply)
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
			return r, wire.Unexpected(reply)
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
			return 0, wire.Unexpected(reply)
		}
		if into[count], err = strconv.ParseInt(word, 10, 64); err != nil {
			return 0, wire.Unexpected(reply)
		}
		count++
	}
	return count, nil
}
