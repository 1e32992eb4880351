package redislock

import (
	"errors"
	"fmt"
	"strconv"
)

// The conditions a caller can act on. Every method returns them wrapped in an
// [*Error]; compare with errors.Is.
//
// An outage has no value of its own. The error of an acquisition that Is none
// of these values and no context error is an outage, or an answer in which the
// server refuses the request. errors.As with a redis.Error finds the answer of
// the server.
var (
	// ErrNotAcquired says that another holder has the lock, or another process
	// has waited for it longer. TryAcquire returns it at once. Acquire returns
	// it when its ctx ended while it waited (the error then also Is ctx.Err()).
	// An outage of Redis is never reported as ErrNotAcquired.
	ErrNotAcquired = errors.New("lock is held by somebody else")

	// ErrNotHeld says that the key does not hold this lock's token: the lease
	// expired, or the key was taken over, deleted or evicted. From Release it
	// is the signal that the work done under the lock may have run twice.
	ErrNotHeld = errors.New("lock is not held")

	// ErrLost is why a lock's context ended without Release: the lease could
	// not be renewed in time, or Redis answered that the key does not hold the
	// token any more. WithLock returns it when that happened while the function
	// ran.
	ErrLost = errors.New("lock was lost")

	// ErrReleased is what methods of a lock return after its Release succeeded.
	// Extend returns it as soon as Release has begun. As soon as a request to
	// release was sent, Err returns it and contexts end with it as their cause:
	// that request may be executed at any time, whatever Release returned.
	// Resume returns it for a token with such a request.
	ErrReleased = errors.New("lock is released")

	// ErrDetached is what methods of a lock return after [Lock.Detach], and why
	// its context ended: the caller gave up the handle, and left the key to its
	// lease or to another process.
	ErrDetached = errors.New("lock is detached")

	// ErrInvalidTTL says that a TTL is below [MinTTL], that WithMaxHold was
	// given a duration that is not positive, or WithMinHold a negative one.
	// Nothing was sent to Redis.
	ErrInvalidTTL = errors.New("invalid TTL")

	// ErrInvalidMetadata says that the text given to WithMetadata is longer
	// than [MaxMetadata]. Nothing was sent to Redis.
	ErrInvalidMetadata = errors.New("invalid metadata")

	// ErrNotReplicated says that fewer replicas than asked for with
	// [WithReplicas] acknowledged the lock in time, or that the server does not
	// know or permit WAIT. The lock was released again.
	ErrNotReplicated = errors.New("lock is not replicated")

	// ErrInvalidName says that a lock name cannot be used: it is empty, or its
	// keys can be those of another name with the same prefix ("{t}:fence" is
	// the fence of "{t}"), or, on a Redis Cluster, it has a '}' that keeps its
	// keys from sharing a slot. Nothing was sent to Redis.
	ErrInvalidName = errors.New("invalid lock name")
)

// Error is the error that methods of this package return: the operation, the
// Redis key, and the cause. Unwrap returns the cause, so errors.Is works for
// the Err... values above, for context errors and for go-redis's errors. The
// cause of a request that Redis did not answer in its time has a method
// Timeout() bool, as in package net, and is not a context error. The text of a
// cause that comes from a hook of the client is that of the hook, and can
// contain whatever the hook puts into it.
type Error struct {
	Op  string // "acquire", "extend", "release", "resume", "inspect", "ttl", "hold"
	Key string // prefix + name
	Err error
}

// Operations, as Error.Op has them.
const (
	opAcquire = "acquire"
	opResume  = "resume"
	opInspect = "inspect"
	opExtend  = "extend"
	opTTL     = "ttl"
	opRelease = "release"
	opHold    = "hold" // why a lock ended
)

// maxKeyText bounds how much of a key stands in an error text: names may be
// long, log lines should not be.
const maxKeyText = 128

func (e *Error) Error() string {
	return fmt.Sprintf("redislock: %s %s: %v", e.Op, quoteKey(e.Key), e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

func quoteKey(key string) string {
	if len(key) <= maxKeyText {
		return strconv.Quote(key)
	}
	return strconv.Quote(key[:maxKeyText]) + "..."
}

// errInterrupted stands for the result of a call until there is one: a hook of
// the client may panic, or end the goroutine.
var errInterrupted = errors.New("interrupted by a panic or runtime.Goexit")

// errLate says that Redis granted the lock, but so late that the lease was over
// when the reply arrived.
var errLate = errors.New("reply arrived after the lease had ended")
