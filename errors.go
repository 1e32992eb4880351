package redislock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// The conditions a caller can act on. Every method returns them wrapped in an
// [*Error]; compare with errors.Is.
var (
	// ErrNotAcquired says that somebody else holds the lock, or has waited for it
	// longer. It is what TryAcquire returns at once, and what Acquire returns when
	// its ctx ended while it waited (the error then also Is ctx.Err()). An outage
	// of Redis is never reported as ErrNotAcquired.
	ErrNotAcquired = errors.New("lock is held by somebody else")

	// ErrNotHeld says that the key does not hold this lock's token: the lease
	// expired, or the key was taken over, deleted or evicted. From Release it
	// is the signal that the work done under the lock may have run twice.
	ErrNotHeld = errors.New("lock is not held")

	// ErrLost is why a lock's context ended without Release: the lease could
	// not be renewed in time, or Redis answered that the key is no longer ours.
	// WithLock returns it when that happened while the function ran.
	ErrLost = errors.New("lock was lost")

	// ErrReleased is what a lock answers after its own Release succeeded, Extend as
	// soon as Release has begun, and Err, Done and contexts as soon as a request to
	// release was sent: it may be executed at any time, whatever Release returned.
	// Resume returns it for a token of which that is so.
	ErrReleased = errors.New("lock is released")

	// ErrDetached is what a lock answers after [Lock.Detach], and why its context
	// ended: the handle was given up on purpose, and the key left to its lease or to
	// another process.
	ErrDetached = errors.New("lock is detached")

	// ErrInvalidTTL says that a TTL is below [MinTTL], or that WithMaxHold was
	// given a duration that is not positive. Nothing was sent to Redis.
	ErrInvalidTTL = errors.New("invalid TTL")

	// ErrInvalidMetadata says that the text given to WithMetadata is longer than
	// [MaxMetadata]. Nothing was sent to Redis.
	ErrInvalidMetadata = errors.New("invalid metadata")

	// ErrNotReplicated says that fewer replicas than asked for with [WithReplicas]
	// acknowledged the lock in time, or that the server does not know or permit WAIT.
	// The lock was released again.
	ErrNotReplicated = errors.New("lock is not replicated")

	// ErrInvalidName says that a lock name cannot be used: it is empty, or the
	// keys that would belong to it can belong to another name with the same prefix
	// ("{t}:fence" is the fence of "{t}"), or, on a Redis Cluster, it has a '}' that
	// keeps these keys from sharing a slot. Nothing was sent to Redis.
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

// noReplyError is the package's own time-out of one request. It is not a
// context error: the caller's ctx has not ended, and a caller who checks for
// context.DeadlineExceeded must not mistake one for the other.
type noReplyError struct {
	waited   time.Duration
	progress int32  // of the call until then
	never    bool   // nor will be
	shortage string // of connections; empty: none that is known
}

func (e *noReplyError) Error() string {
	what, why := "nothing was sent to Redis", e.shortage
	switch {
	case e.progress == mayBeWritten:
		what = "no reply from Redis"
	case e.progress == handedOver && why == "":
		why = "no connection was made"
	}
	text := fmt.Sprintf("%s within %s", what, e.waited)
	if why != "" {
		text += ": " + why
	}
	return text
}

// Timeout makes the error count as a time-out where net.Error conventions are
// used.
func (e *noReplyError) Timeout() bool { return true }

// notSentError says that a request failed before it was sent: the caller had left, or there
// was no connection.
type notSentError struct{ err error }

func (e *notSentError) Error() string { return "not sent: " + e.err.Error() }

func (e *notSentError) Unwrap() error { return e.err }

// resentError says that a command was sent again after an earlier try, and got no reply
// then. The error of the earlier one is a text only: it would say that nothing was
// executed.
type resentError struct{ before string }

func (e *resentError) Error() string {
	return "no reply from Redis when it was sent again after: " + e.before
}

// Timeout makes it one that may be executed late: it is not known whether the connection
// has ended.
func (e *resentError) Timeout() bool { return true }

// notReplicatedError is an ErrNotReplicated with its reason. The reason is a text only:
// a server's answer would say that nothing was executed.
type notReplicatedError struct{ reason string }

func (e *notReplicatedError) Error() string { return ErrNotReplicated.Error() + ": " + e.reason }

func (e *notReplicatedError) Unwrap() error { return ErrNotReplicated }

// errLate says that Redis granted the lock, but so late that the lease was over
// when the reply arrived.
var errLate = errors.New("reply arrived after the lease had ended")

// contextError is ctx's error together with the cause given to its cancel
// function, where there is one.
func contextError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == nil || errors.Is(cause, err) {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}

func isContextError(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// transientStates are the answers of a server that is there but cannot serve yet. They
// are the same in Redis 6.2, 7.0, 7.4 and 8.0 and in Valkey 8.0, taken from the texts in
// their programs; where a text behind the code differs, only the code counts. ("BUSY
// Valkey is busy", "LOADING Dragonfly is loading".)
//
// Left out on purpose: MISCONF and OOM, which last until somebody mends them, and which
// an acquisition has to report at once; UNBLOCKED, which among our commands only WAIT can
// get (see acknowledgement); and what only other commands are answered: UNKILLABLE and
// NOTBUSY (SCRIPT KILL), NOGOODSLAVE and INPROG (SENTINEL FAILOVER), NOMASTERLINK (PSYNC),
// IOERR (MIGRATE), EXECABORT (EXEC), and Valkey's REDIRECT, which a client has to ask for.
var transientStates = []string{
	"LOADING",     // it has started, or is a replica that gets the data of its primary
	"BUSY",        // it runs a long script, or a long command of a module
	"READONLY",    // it has become a replica
	"MASTERDOWN",  // it is a replica without a primary (replica-serve-stale-data no)
	"NOREPLICAS",  // it has too few replicas (min-replicas-to-write)
	"CLUSTERDOWN", // "The cluster is down", "Hash slot not served"
	"TRYAGAIN",    // the slot is moving
	"max number of clients reached",
	"max number of clients + cluster connections reached", // of a cluster's node
}

// isTransient tells whether the same request may succeed a moment later. It is
// so for transient server states and for everything that is no answer of the
// server at all: refused and broken connections, time-outs, an exhausted pool.
func isTransient(err error) bool {
	var answer redis.Error
	var several *quorumError
	var stray *strayError
	switch {
	case errors.As(err, &several):
		return !several.refused
	case errors.Is(err, redis.ErrClosed), errors.Is(err, ErrNotReplicated), errors.As(err, &stray):
		return false
	case errors.As(err, &answer):
		return hasState(answer, transientStates...)
	}
	return true
}

// setUpAnswers begin what servers answer only to the commands by which a client sets up
// a connection. Most often go-redis hands on the answer as it is, so that only its words
// tell. Sources: server.c, acl.c and networking.c of Redis 5 to 8 and Valkey 8.
var setUpAnswers = []string{
	"NOAUTH", "WRONGPASS", // no script says that the client is not authenticated
	"ERR invalid password", "ERR Client sent AUTH", "ERR AUTH ", "ERR DB index",
}

// setUpCommands are those that this package never sends itself, as they are named by an
// answer that a user must not run them ("... permissions to run the 'select' command").
var setUpCommands = []string{"hello", "auth", "select", "client", "readonly"}

// setUpSteps are what go-redis puts before the answer where it does not hand it on as it
// is: on the connections of subscriptions.
var setUpSteps = []string{
	"failed to authenticate: ", "failed to initialize connection options: ", "failed to enable maintnotifications: ",
}

// isSetUp tells whether err is an answer of the server by which no connection could be
// set up, and not one to the command itself. A password that is being rotated looks so,
// and a user whose rights are being changed. (Without a password go-redis sends the
// command all the same, and the answer is its own.)
//
// To count how often the command was written to a connection would tell for sure. It was
// rejected, since hooks of the client would find an argument that is no string.
func isSetUp(err error) bool {
	var answer redis.Error
	if !errors.As(err, &answer) {
		return false
	}
	text, said := err.Error(), answer.Error()
	return slices.ContainsFunc(setUpAnswers, func(begin string) bool { return strings.HasPrefix(said, begin) }) ||
		strings.HasPrefix(said, "NOPERM") && slices.ContainsFunc(setUpCommands, func(command string) bool {
			return strings.Contains(said, "run the '"+command+"'") || strings.Contains(said, "run the '"+command+"|")
		}) ||
		slices.ContainsFunc(setUpSteps, func(step string) bool { return strings.Contains(text, step) })
}

// isOutage tells whether one who has time should wait for the same request to succeed.
// That is so for what is transient, and where connections cannot be set up. The first
// request of a caller is not repeated for the latter: a wrong password should be heard
// of at once.
func isOutage(err error) bool {
	var several *quorumError
	if errors.As(err, &several) {
		return !several.hopeless
	}
	return isTransient(err) || isSetUp(err)
}

// commonAnswers are the answers of a server that do not depend on what was asked for, but
// on the server, the key and the user.
var commonAnswers = append([]string{"WRONGTYPE", "NOPERM", "NOAUTH", "WRONGPASS", "OOM", "MISCONF"}, transientStates...)

// everybodys is the part of a failure with which every other caller's request for the
// same lock was sure to fail too: there is no connection, or the server answers
// everybody so. It is nil if there is none. What a hook says or puts around such an
// error, a connection that is cut, and a time-out, can be due to one caller's ctx,
// metadata or TTL. (A quorum's failure is made of several, in the words of its nodes.)
func everybodys(err error) error {
	var several *quorumError
	var answer redis.Error
	var network *net.OpError
	switch {
	case errors.As(err, &several):
		return nil
	case isContextError(err), isTimeout(err): // also of a dial: it may be the caller's ctx that has ended
		return nil
	case errors.As(err, &answer):
		if hasState(answer, commonAnswers...) {
			return answer
		}
	case errors.Is(err, redis.ErrClosed):
		return redis.ErrClosed
	case errors.As(err, &network) && network.Op == "dial":
		return network
	}
	return nil
}

// errUnanswered stands for why another caller's question about the same lock failed.
var errUnanswered = errors.New("no reply to the last question for the lock")

// outageOf is what may be told one caller of how another one's question has failed: what
// the connection to Redis did, and not what a hook has said.
func outageOf(err error) error {
	var silence *noReplyError
	var network *net.OpError
	switch {
	case errors.As(err, &silence):
		return silence
	case errors.As(err, &network):
		return network
	}
	for _, common := range []error{everybodys(err), io.EOF, io.ErrUnexpectedEOF, redis.ErrPoolTimeout} {
		if common != nil && errors.Is(err, common) {
			return common
		}
	}
	return errUnanswered
}

// maybeAnothers tells whether a request may have failed because of another one that
// travelled with it, or alone because of its own: a hook has refused them, or the
// connection was cut. Then the last try travels alone, so that nobody gets an error
// that another caller has brought about. It is not so for failures that take long:
// requests that travel one by one would hold up others.
func maybeAnothers(err error) bool {
	var several *quorumError
	var answer redis.Error
	return err != nil && everybodys(err) == nil && !isContextError(err) && !isTimeout(err) &&
		!errors.As(err, &several) && !errors.As(err, &answer) && !errors.Is(err, redis.ErrPoolTimeout)
}

// isSplit tells whether a cluster is moving the slot of a request, so that some of its
// keys may stand on one node and some on another. It was not executed.
func isSplit(err error) bool {
	if err == nil {
		return false // most often; errors.As would allocate
	}
	var several *quorumError // whose nodes are no cluster
	return !errors.As(err, &several) && hasState(err, "TRYAGAIN")
}

// beforeState matches what may stand before the state in an answer: "ERR", where an error
// was raised inside a script (until Redis 6.2), and what a proxy puts before it, which is
// a word and a colon. What follows a word without one is a text, and may quote a key or
// metadata.
var beforeState = regexp.MustCompile(`^(?:-?ERR |Error (?:running|compiling) script(?: \([^)]*\))?: |[\w@.-]*:(?: ?\d+:)? )*-?`)

// hasState tells whether err is an answer of the server that begins with one of these
// states. Of a quorum the answer of any node counts.
func hasState(err error, states ...string) bool {
	var several *quorumError
	if errors.As(err, &several) {
		return slices.ContainsFunc(several.causes, func(cause error) bool { return hasState(cause, states...) })
	}
	var answer redis.Error
	if !errors.As(err, &answer) {
		return false
	}
	text := answer.Error()
	text = text[len(beforeState.FindString(text)):]
	return slices.ContainsFunc(states, func(state string) bool {
		behind, found := strings.CutPrefix(text, state)
		return found && !startsWithLetter(behind)
	})
}

// startsWithLetter tells BUSYKEY from BUSY.
func startsWithLetter(s string) bool { return s != "" && (s[0]|0x20 >= 'a' && s[0]|0x20 <= 'z') }

// maybeLate tells whether a request that ended in err can still be executed at any
// time: nobody has seen its connection end.
func maybeLate(err error) bool {
	return maybeExecuted(err) && (isContextError(err) || isTimeout(err) || errors.Is(err, errReplaced))
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

// maybeExecuted tells whether a request that ended in err can have been executed
// all the same, or can still be. An answer of the server says that it was not
// (the scripts check before they write), and so does a connection that was
// never made.
func maybeExecuted(err error) bool {
	var answer redis.Error
	var network *net.OpError
	var unsent *notSentError
	var several *quorumError
	var unasked *unaskedError
	var silence *noReplyError
	switch {
	case errors.As(err, &several):
		return several.maybeExecuted
	case errors.As(err, &unasked):
		return false
	case errors.As(err, &silence):
		return !silence.never
	case err == nil, errors.Is(err, ErrNotReplicated): // it was, and is answered: see giveBack
		return false
	case errors.As(err, &answer), errors.As(err, &unsent), errors.Is(err, redis.ErrClosed), errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return false
	case errors.As(err, &network) && network.Op == "dial":
		return false
	}
	return true
}
