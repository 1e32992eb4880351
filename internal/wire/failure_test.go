package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

var errWork = errors.New("work failed")

type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}

// parts is a failure of several servers.
type parts []error

func (p parts) Error() string     { return errors.Join(p...).Error() }
func (p parts) Unwrap() []error   { return p }
func (p parts) Parts() []error    { return p }
func (parts) MaybeExecuted() bool { return true }
func (parts) Transient() bool     { return false }
func (parts) Outage() bool        { return true }

func TestTransientAndAmbiguousErrors(t *testing.T) {
	for _, c := range []struct {
		err                      error
		transient, maybeExecuted bool
		outage, late, timeout    bool
	}{
		{io.EOF, true, true, true, false, false},
		{io.ErrUnexpectedEOF, true, true, true, false, false},
		{&net.OpError{Op: "read", Err: errWork}, true, true, true, false, false},
		{&net.OpError{Op: "write", Err: errWork}, true, true, true, false, false},
		{&net.OpError{Op: "dial", Err: errWork}, true, false, true, false, false},
		{fmt.Errorf("wrapped: %w", &net.OpError{Op: "dial", Err: errWork}), true, false, true, false, false},
		{NoReply(time.Second), true, true, true, true, true},
		{noReply(time.Second, notHandedOver, false, ""), true, true, true, true, true},
		{noReply(time.Second, notHandedOver, true, ""), true, false, true, false, true},
		{redis.ErrPoolTimeout, true, false, true, false, false},
		{redis.ErrClosed, false, false, false, false, false},
		{serverError("LOADING x"), true, false, true, false, false},
		{serverError("ERR prefix: -READONLY x"), true, false, true, false, false},
		{serverError("WRONGTYPE x"), false, false, false, false, false},
		{serverError("OOM x"), false, false, false, false, false},
		{serverError("NOPERM x"), false, false, false, false, false},
		{serverError("NOAUTH x"), false, false, true, false, false},
		{notSent(io.EOF), true, false, true, false, false},
		{notSent(redis.ErrClosed), false, false, false, false, false},
		{notSent(context.DeadlineExceeded), true, false, true, false, true},
		{resent(serverError("MOVED 1 x")), true, true, true, true, true},
		{notReplicated(errWork, "0 of 1"), false, false, false, false, false},
		{errReplaced, true, true, true, true, false},
		{&StrayError{value: "oh"}, false, true, false, false, false},
		{context.DeadlineExceeded, true, true, true, true, true},
		{context.Canceled, true, true, true, true, false},
		{fmt.Errorf("wrapped: %w", notSent(io.EOF)), true, false, true, false, false},
		{parts{notSent(io.EOF), serverError("NOAUTH x")}, false, true, true, false, false},
		{parts{notSent(io.EOF), NoReply(time.Second)}, false, true, true, true, true},
	} {
		require.Equal(t, c.transient, IsTransient(c.err), "transient: %v", c.err)
		require.Equal(t, c.maybeExecuted, MaybeExecuted(c.err), "maybe executed: %v", c.err)
		require.Equal(t, c.outage, IsOutage(c.err), "outage: %v", c.err)
		require.Equal(t, c.late, MaybeLate(c.err), "maybe late: %v", c.err)
		require.Equal(t, c.timeout, IsTimeout(c.err), "time-out: %v", c.err)
	}
	require.False(t, MaybeExecuted(nil))
}

// What one caller's request has failed with is told another only in words that
// are not its own.
func TestWhatMayBeToldOthers(t *testing.T) {
	dial := &net.OpError{Op: "dial", Err: errWork}
	silent := NoReply(time.Second)
	for _, c := range []struct{ err, common, shareable error }{
		{fmt.Errorf("a hook's words: %w", dial), dial, dial},
		{fmt.Errorf("a hook's words: %w", serverError("OOM x")), serverError("OOM x"), serverError("OOM x")},
		{fmt.Errorf("a hook's words: %w", silent), nil, silent},
		{serverError("ERR x"), nil, errUnanswered},
		{errWork, nil, errUnanswered},
		{resent(serverError("MOVED 1 x")), nil, errUnanswered},
		{redis.ErrClosed, redis.ErrClosed, redis.ErrClosed},
		{fmt.Errorf("a hook's words: %w", io.EOF), nil, io.EOF},
		{parts{serverError("OOM x")}, nil, errUnanswered},
	} {
		require.Equal(t, c.common, Common(c.err), "%v", c.err)
		require.Equal(t, c.shareable, Shareable(c.err), "%v", c.err)
	}
	require.True(t, HasState(parts{io.EOF, serverError("OOM x")}, "OOM"), "that of any")
	require.False(t, isSplit(parts{serverError("TRYAGAIN x")}))
	require.True(t, isSplit(serverError("TRYAGAIN x")))
}

// What is refused while connections work is no outage.
func TestARefusalIsNoFailureToSetUpAConnection(t *testing.T) {
	for _, err := range []error{
		errors.New("failed to authenticate: a hook's words"),
		serverError("NOPERM this user has no permissions to access one of the channels used as arguments"),
		serverError("ERR unknown command 'NOAUTH'"),
		fmt.Errorf("traced: %w", serverError("NOPERM x")),
		serverError("NOPERM this user has no permissions to run the 'evalsha' command"),
		serverError("NOPERM ACL failure in script: User u has no permissions to run the 'set' command"),
	} {
		require.False(t, isSetUp(err), err)
	}
	for _, said := range []string{
		"NOPERM this user has no permissions to run the 'select' command or its subcommand", // Redis 6
		"NOPERM this user has no permissions to run the 'client|setname' command",           // Redis 7.0
		"NOPERM User u has no permissions to run the 'select' command",                      // Valkey 8
		"ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
		"ERR DB index is out of range",
	} {
		require.True(t, IsOutage(serverError(said)), said)
		require.False(t, IsTransient(serverError(said)), said)
	}
	require.False(t, IsOutage(serverError("NOPERM x")))
	require.False(t, IsOutage(redis.ErrClosed))
	require.True(t, IsOutage(fmt.Errorf("traced: %w", fmt.Errorf("failed to initialize connection options: %w", serverError("NOPERM x")))))
	require.True(t, IsOutage(serverError("LOADING x")))
	require.False(t, slices.ContainsFunc(transientStates, func(s string) bool { return isSetUp(serverError(s)) }))
}
