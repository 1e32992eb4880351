package wire

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestScriptsAreSentWithoutComments(t *testing.T) {
	s := NewScript("-- x\na\n\n", "  -- y\nb\n")
	require.Equal(t, "a\nb\n", s.Source)
	require.Len(t, s.Digest, 40)
	require.Equal(t, s.Digest, NewScript("a\nb\n").Digest)
}

func TestNoScriptIsAnAnswerOfTheServer(t *testing.T) {
	require.True(t, isNoScript(serverError("ERR proxy: NOSCRIPT No matching script")))
	require.False(t, isNoScript(nil))
	require.False(t, isNoScript(errWork))
	require.False(t, isNoScript(fmt.Errorf("NOSCRIPT, but not from Redis")))
}

func TestAReplyThatWasCutOffIsNone(t *testing.T) {
	cmd := NewOnce(t.Context(), "evalsha", "name")
	cmd.SetVal("") // as go-redis does
	cmd.SetErr(context.DeadlineExceeded)
	cmd.keep()
	_, err := cmd.result(nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// The number 1 is a reply, and only where there is no error.
func TestNumbersAsReplies(t *testing.T) {
	reply := func(n int64, err error) (string, error) {
		cmd := NewOnce(t.Context(), "evalsha", "x")
		cmd.SetVal(n)
		cmd.SetErr(err)
		return cmd.result(nil)
	}
	text, err := reply(1, nil)
	require.NoError(t, err)
	require.Equal(t, ReplyDone, text)
	_, err = reply(5, nil)
	require.Error(t, err)
	_, err = reply(1, errors.New("of a hook"))
	require.ErrorContains(t, err, "of a hook")
}

// A request is a script with its keys and arguments. While its slot is being
// moved it may do with the first key.
func TestRequest(t *testing.T) {
	s := NewScript("return 1\n")
	r := s.Request(time.Second, []any{"a", "b"}, "x", 2)
	require.Equal(t, []any{"evalsha", s.Digest, 2, "a", "b", "x", 2}, r.line())
	require.Equal(t, "a", r.Key())
	require.Equal(t, []any{"a", "b"}, r.Keys())
	require.Equal(t, []any{"x", 2}, r.Args())
	again := serverError("TRYAGAIN Multiple keys request during rehashing of slot")
	_, possible := r.WhileMoving(again)
	require.False(t, possible, "it has to wait")
	r.FirstKeyWillDo = true
	_, possible = r.WhileMoving(serverError("CLUSTERDOWN"))
	require.False(t, possible)
	r, possible = r.WhileMoving(again)
	require.True(t, possible)
	require.Equal(t, []any{"evalsha", s.Digest, 1, "a", "x", 2}, r.line())
	require.Equal(t, time.Second, r.Limit)
}
