package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Failure is an error that says itself what it means for the request that ended
// in it. The errors of this package do, and those that are made of them. What
// comes from go-redis, a server or a hook says so by its type and its text, see
// below.
type Failure interface {
	error
	// MaybeExecuted: the request can have been executed, or can still be.
	MaybeExecuted() bool
	// Transient: the same request may succeed a moment later.
	Transient() bool
	// Outage: a caller that has time should wait for it to succeed. What is
	// transient is an outage.
	Outage() bool
}

// manifold is a Failure that is made of the failures of several servers.
type manifold interface {
	Failure
	Parts() []error
}

// failure is a Failure of this package. It is set where it arises.
type failure struct {
	text      string
	cause     error // what it wraps; nil: nothing
	executed  bool  // perhaps
	transient bool
	outage    bool
}

func (f *failure) Error() string       { return f.text }
func (f *failure) Unwrap() error       { return f.cause }
func (f *failure) MaybeExecuted() bool { return f.executed }
func (f *failure) Transient() bool     { return f.transient }
func (f *failure) Outage() bool        { return f.outage }

// timeout is a failure that counts as a time-out where net.Error conventions
// are used. It is a type of its own since errors.As takes the first error that
// has the method, whatever that returns.
type timeout struct {
	failure
	shareable bool // its text has nothing of one caller's
}

// Timeout makes it a time-out.
func (*timeout) Timeout() bool { return true }

// The progress of a request towards the server.
const (
	notHandedOver int32 = iota // others are before it
	handedOver                 // to the client, which has not written it
	mayBeWritten               // see (*Once).Args
)

// NoReply is the package's own time-out of one request. It is not a context
// error: the caller's ctx has not ended, and a caller who checks for
// context.DeadlineExceeded must not mistake one for the other.
func NoReply(waited time.Duration) error { return noReply(waited, mayBeWritten, false, "") }

// noReply is NoReply with what is known of why: how far the request got,
// whether it never was written nor will be, and that connections are short.
func noReply(waited time.Duration, progress int32, never bool, shortage string) error {
	what, why := "nothing was sent to Redis", shortage
	switch {
	case progress == mayBeWritten:
		what = "no reply from Redis"
	case progress == handedOver && why == "":
		why = "no connection was made"
	}
	text := fmt.Sprintf("%s within %s", what, waited)
	if why != "" {
		text += ": " + why
	}
	return &timeout{failure: failure{text: text, executed: !never, transient: true, outage: true}, shareable: true}
}

// notSent says that a request failed before it was sent: the caller had left,
// or there was no connection.
func notSent(err error) error {
	return &failure{text: "not sent: " + err.Error(), cause: err, transient: IsTransient(err), outage: IsOutage(err)}
}

// resent says that a command was sent again after an earlier try, which ended
// in err, and got no reply then. The error of the earlier one is a text only:
// it would say that nothing was executed. It is a time-out, since it may be
// executed late: it is not known whether the connection has ended.
func resent(err error) error {
	text := "no reply from Redis when it was sent again after: " + err.Error()
	return &timeout{failure: failure{text: text, executed: true, transient: true, outage: true}}
}

// notReplicated is missing, which is what the owner of the request calls it,
// with its reason. The reason is a text only: a server's answer would say that
// nothing was executed. It was, and is answered; its owner takes it back.
func notReplicated(missing error, reason string) error {
	return &failure{text: missing.Error() + ": " + reason, cause: missing}
}

// errReplaced is why a cluster gives up a request to a node that is silent.
var errReplaced error = &failure{
	text: "no reply, and the slot has got another primary", executed: true, transient: true, outage: true,
}

// ContextError is ctx's error together with the cause given to its cancel
// function, where there is one.
func ContextError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == nil || errors.Is(cause, err) {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// IsContextError tells whether err is that of a context.
func IsContextError(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// transientStates are the answers of a server that is there but cannot serve
// yet. They are the same in Redis 6.2, 7.0, 7.4 and 8.0 and in Valkey 8.0,
// taken from the texts in their programs; where a text behind the code differs,
// only the code counts. ("BUSY Valkey is busy", "LOADING Dragonfly is
// loading".)
//
// Left out on purpose: MISCONF and OOM, which last until somebody mends them,
// and which an acquisition has to report at once; UNBLOCKED, which among our
// commands only WAIT can get (see acknowledgement); and what only other
// commands are answered: UNKILLABLE and NOTBUSY (SCRIPT KILL), NOGOODSLAVE and
// INPROG (SENTINEL FAILOVER), NOMASTERLINK (PSYNC), IOERR (MIGRATE), EXECABORT
// (EXEC), and Valkey's REDIRECT, which a client has to ask for.
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

// IsTransient tells whether the same request may succeed a moment later. It is
// so for transient server states and for everything that is no answer of the
// server at all: refused and broken connections, time-outs, an exhausted pool.
func IsTransient(err error) bool {
	var said Failure
	var answer redis.Error
	switch {
	case errors.As(err, &said):
		return said.Transient()
	case errors.Is(err, redis.ErrClosed):
		return false
	case errors.As(err, &answer):
		return HasState(answer, transientStates...)
	}
	return true
}

// setUpAnswers begin what servers answer only to the commands by which a client
// sets up a connection. Most often go-redis hands on the answer as it is, so
// that only its words tell. Sources: server.c, acl.c and networking.c of Redis
// 5 to 8 and Valkey 8.
var setUpAnswers = []string{
	"NOAUTH", "WRONGPASS", // no script says that the client is not authenticated
	"ERR invalid password", "ERR Client sent AUTH", "ERR AUTH ", "ERR DB index",
}

// setUpCommands are those that this package never sends itself, as they are
// named by an answer that a user must not run them ("... permissions to run the
// 'select' command").
var setUpCommands = []string{"hello", "auth", "select", "client", "readonly"}

// setUpSteps are what go-redis puts before the answer where it does not hand it
// on as it is: on the connections of subscriptions.
var setUpSteps = []string{
	"failed to authenticate: ", "failed to initialize connection options: ", "failed to enable maintnotifications: ",
}

// isSetUp tells whether err is an answer of the server by which no connection
// could be set up, and not one to the command itself. A password that is being
// rotated looks so, and a user whose rights are being changed. (Without a
// password go-redis sends the command all the same, and the answer is its own.)
//
// To count how often the command was written to a connection would tell for
// sure. It was rejected, since hooks of the client would find an argument that
// is no string.
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

// IsOutage tells whether a caller that has time should wait for the same
// request to succeed. That is so for what is transient, and where connections
// cannot be set up. The first request of a caller is not repeated for the
// latter: a wrong password should be heard of at once.
func IsOutage(err error) bool {
	var said Failure
	if errors.As(err, &said) {
		return said.Outage()
	}
	return IsTransient(err) || isSetUp(err)
}

// commonAnswers are the answers of a server that do not depend on what was
// asked for, but on the server, the key and the user.
var commonAnswers = append([]string{"WRONGTYPE", "NOPERM", "NOAUTH", "WRONGPASS", "OOM", "MISCONF"}, transientStates...)

// Common is the part of a failure with which every other caller's request for
// the same lock was sure to fail too: there is no connection, or the server
// answers everybody so. It is nil if there is none. What a hook says or puts
// around such an error, a connection that is cut, and a time-out, can be due to
// one caller's ctx, metadata or TTL. (What is made of the failures of several
// servers is in their words.)
func Common(err error) error {
	var several manifold
	var answer redis.Error
	var network *net.OpError
	switch {
	case errors.As(err, &several):
		return nil
	case IsContextError(err), IsTimeout(err): // also of a dial: it may be the caller's ctx that has ended
		return nil
	case errors.As(err, &answer):
		if HasState(answer, commonAnswers...) {
			return answer
		}
	case errors.Is(err, redis.ErrClosed):
		return redis.ErrClosed
	case errors.As(err, &network) && network.Op == "dial":
		return network
	}
	return nil
}

// errUnanswered stands for why another caller's question about the same key
// failed.
var errUnanswered = errors.New("no reply to the last question for the lock")

// Shareable is what may be told one caller of how another one's question has
// failed: what the connection to Redis did, and not what a hook has said.
func Shareable(err error) error {
	var silence *timeout
	var network *net.OpError
	switch {
	case errors.As(err, &silence) && silence.shareable:
		return silence
	case errors.As(err, &network):
		return network
	}
	for _, common := range []error{Common(err), io.EOF, io.ErrUnexpectedEOF, redis.ErrPoolTimeout} {
		if common != nil && errors.Is(err, common) {
			return common
		}
	}
	return errUnanswered
}

// MaybeAnothers tells whether a request may have failed because of another one
// that travelled with it, or alone because of its own: a hook has refused them,
// or the connection was cut. Then the last try travels alone, so that nobody
// gets an error that another caller has brought about. It is not so for
// failures that take long: requests that travel one by one would hold up
// others.
func MaybeAnothers(err error) bool {
	var several manifold
	var answer redis.Error
	return err != nil && Common(err) == nil && !IsContextError(err) && !IsTimeout(err) &&
		!errors.As(err, &several) && !errors.As(err, &answer) && !errors.Is(err, redis.ErrPoolTimeout)
}

// isSplit tells whether a cluster is moving the slot of a request, so that some
// of its keys may stand on one node and some on another. It was not executed.
func isSplit(err error) bool {
	if err == nil {
		return false // most often; errors.As would allocate
	}
	var several manifold // its servers are no cluster
	return !errors.As(err, &several) && HasState(err, "TRYAGAIN")
}

// beforeState matches what may stand before the state in an answer: "ERR",
// where an error was raised inside a script (until Redis 6.2), and what a proxy
// puts before it, which is a word and a colon. What follows a word without one
// is a text, and may quote a key or metadata.
var beforeState = regexp.MustCompile(`^(?:-?ERR |Error (?:running|compiling) script(?: \([^)]*\))?: |[\w@.-]*:(?: ?\d+:)? )*-?`)

// HasState tells whether err is an answer of the server that begins with one of
// these states. Of several servers the answer of any counts.
func HasState(err error, states ...string) bool {
	var several manifold
	if errors.As(err, &several) {
		return slices.ContainsFunc(several.Parts(), func(cause error) bool { return HasState(cause, states...) })
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

// MaybeLate tells whether a request that ended in err can still be executed at
// any time: nobody has seen its connection end.
func MaybeLate(err error) bool {
	return MaybeExecuted(err) && (IsContextError(err) || IsTimeout(err) || errors.Is(err, errReplaced))
}

// IsTimeout tells whether err is a time-out by the conventions of package net.
func IsTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

// refusals are further answers by which Redis has not executed a request.
var refusals = append([]string{
	"NOSCRIPT", "MOVED", "ASK", "CROSSSLOT", "DENIED", "unknown command", "wrong number of arguments",
}, commonAnswers...)

// isRefusal tells whether an answer says that the request was not executed. It
// has to be one of Redis itself, of which that is known: it has refused the
// command, or a script has failed, which check before they write (such an
// answer names the script). What else answers with an error may stand between,
// and not know: a proxy says "upstream failure", or "Connection timed out",
// where the server has executed the request and the reply was lost, too.
func isRefusal(answer redis.Error) bool {
	return HasState(answer, refusals...) || strings.Contains(answer.Error(), "user_script")
}

// MaybeExecuted tells whether a request that ended in err can have been
// executed all the same, or can still be. A refusal of the server says that it
// was not, and so does a connection that was never made.
func MaybeExecuted(err error) bool {
	if err == nil {
		return false // most often; errors.As would allocate
	}
	var said Failure
	var answer redis.Error
	var network *net.OpError
	switch {
	case errors.As(err, &said):
		return said.MaybeExecuted()
	case errors.As(err, &answer):
		return !isRefusal(answer) && !isSetUp(err)
	case errors.Is(err, redis.ErrClosed), errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return false
	case errors.As(err, &network) && network.Op == "dial":
		return false
	}
	return true
}
