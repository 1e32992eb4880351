package redislock

import (
	"errors"
	"fmt"
	"strconv"
)

// The conditions a caller can act on. Every method returns them wrapped in an
// [*Error]; compare with errors.Is.
var (
	// ErrNotAcquired says that somebody else holds the lock, or has waited for
	// it longer. It is what TryAcquire returns at once, and what Acquire
	// returns when its ctx ended while it waited (the error then also Is
	// ctx.Err()). An outage of Redis is never reported as ErrNotAcquired.
	ErrNotAcquired = errors.New("lock is held by somebody else")

	// ErrNotHeld says that the key does not hold this lock's token: the lease
	// expired, or the key was taken over, deleted or evicted. From Release it
	// is the signal that the work done under the lock may have run twice.
	ErrNotHeld = errors.New("lock is not held")

	// ErrLost is why a lock's context ended without Release: the lease could
	// not be renewed in time, or Redis answered that the key is no longer ours.
	// WithLock returns it when that happened while the function ran.
	ErrLost = errors.New("lock was lost")

	// ErrReleased is what a lock answers after its own Release succeeded,
	// Extend as soon as Release has begun, and Err, Done and contexts as soon
	// as a request to release was sent: it may be executed at any time,
	// whatever Release returned. Resume returns it for a token of which that is
	// so.
	ErrReleased = errors.New("lock is released")

	// ErrDetached is what a lock answers after [Lock.Detach], and why its
	// context ended: the handle was given up on purpose, and the key left to
	// its lease or to another process.
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

	// ErrInvalidName says that a lock name cannot be used: it is empty, or the
	// keys that would belong to it can belong to another name with the same
	// prefix ("{t}:fence" is the fence of "{t}"), or, on a Redis Cluster, it
	// has a '}' that keeps these keys from sharing a slot. Nothing was sent to
	// Redis.
	ErrInvalidName = errors.New("invalid lock name")
)

// Error is what every method of this package returns: the operation, the Redis
// key it was about, and the cause. Unwrap gives the cause, so errors.Is works
// for the Err... values above, for context errors and for go-redis's errors. A
// request that Redis did not answer in the time given to it has a cause with a
// method Timeout() bool, as in package net, and is no context error.
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
