package redistest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// script is a dialogue in the order in which the server's side of it comes.
type script struct {
	d dialogue
	t *testing.T
}

func newScript(t *testing.T, commands ...string) *script {
	s := &script{t: t}
	for _, command := range commands {
		s.d.ask(newTurn(strings.Fields(command), fate{}))
	}
	return s
}

// answers says that raw answers a command, or "" for none.
func (s *script) answers(raw, command string) {
	s.t.Helper()
	f, err := newWire(strings.NewReader(raw)).frame()
	require.NoError(s.t, err)
	got := ""
	if turn := s.d.answer(f); turn != nil {
		got = turn.command
	}
	require.Equal(s.t, command, got, "%q", raw)
}

// saying is an array (RESP2) or push (RESP3) of bulk strings and a count.
func saying(kind byte, words ...string) string {
	raw := encode(append(words, "0")...)
	raw[0] = kind
	return string(raw)
}

func TestRepliesAnswerInOrderPushesDoNot(t *testing.T) {
	t.Parallel()
	s := newScript(t, "GET a", "eval x", "ping")
	s.answers(saying('>', "message", "c"), "")
	s.answers("$-1\r\n", "get")
	s.answers(saying('>', "invalidate"), "")
	s.answers(saying('*', "message", "c"), "eval") // no subscription: what a script returned
	s.answers("-ERR\r\n", "ping")
	s.answers("+line of a MONITOR\r\n", "")
}

func TestEachChannelIsConfirmedAndTheCommandAnsweredOnce(t *testing.T) {
	t.Parallel()
	for _, kind := range []byte("*>") {
		s := newScript(t, "subscribe a b a", "PSUBSCRIBE p*", "ping")
		s.answers(saying(kind, "subscribe", "a"), "subscribe")
		s.answers(saying(kind, "message", "a"), "")
		s.answers(saying(kind, "subscribe", "b"), "")
		s.answers(saying(kind, "subscribe", "a"), "")
		s.answers(saying(kind, "psubscribe", "p*"), "psubscribe")
		s.answers(saying(kind, "pmessage", "p*"), "")
		s.answers("*2\r\n$4\r\npong\r\n$0\r\n\r\n", "ping")
	}
}

func TestUnsubscribeFromAllIsConfirmedForEachOfTheFamily(t *testing.T) {
	t.Parallel()
	for _, kind := range []byte("*>") {
		s := newScript(t, "subscribe a b", "psubscribe p", "unsubscribe", "unsubscribe", "punsubscribe", "ping")
		s.answers(saying(kind, "subscribe", "a"), "subscribe")
		s.answers(saying(kind, "subscribe", "b"), "")
		s.answers(saying(kind, "psubscribe", "p"), "psubscribe")
		s.answers(saying(kind, "unsubscribe", "b"), "unsubscribe")
		s.answers(saying(kind, "unsubscribe", "a"), "")
		s.answers(saying(kind, "unsubscribe", ""), "unsubscribe")
		s.answers(saying(kind, "punsubscribe", "p"), "punsubscribe")
		s.answers("+PONG\r\n", "ping")
	}
}

func TestRefusedSubscriptionIsAnOrdinaryReply(t *testing.T) {
	t.Parallel()
	s := newScript(t, "subscribe a b", "ping")
	s.answers("-NOPERM no channels\r\n", "subscribe")
	s.answers("+PONG\r\n", "ping")
}

func TestForcedUnsubscriptionIsOutOfTurn(t *testing.T) {
	t.Parallel()
	s := newScript(t, "ssubscribe a b")
	s.answers(saying('>', "ssubscribe", "a"), "ssubscribe")
	s.answers(saying('>', "ssubscribe", "b"), "")
	s.answers(saying('>', "sunsubscribe", "b"), "")
	require.Equal(t, map[string]bool{"s:a": true}, s.d.channels)
}

func TestResetEndsSubscriptions(t *testing.T) {
	t.Parallel()
	s := newScript(t, "subscribe a", "reset", "eval x")
	s.answers(saying('*', "subscribe", "a"), "subscribe")
	s.answers("+RESET\r\n", "reset")
	s.answers(saying('*', "message", "a"), "eval")
}

func TestLocalAnswersWaitForTheirTurn(t *testing.T) {
	t.Parallel()
	s := newScript(t, "get a")
	s.d.ask(newTurn([]string{"set"}, fate{local: true}))
	s.d.ask(newTurn([]string{"ping"}, fate{}))
	require.Nil(t, s.d.local())
	s.answers("$-1\r\n", "get")
	require.Equal(t, "set", s.d.local().command)
	require.Nil(t, s.d.local())
	s.answers("+PONG\r\n", "ping")
	require.Nil(t, s.d.local())
}
