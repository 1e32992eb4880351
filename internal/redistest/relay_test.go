package redistest

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// stage is a server, a relay before it, and one client behind the relay.
type stage struct {
	*Server
	*Relay
	c   *redis.Client
	ctx context.Context
}

func (s *stage) get(key string) any { return s.Server.Do(s.Server.t, "get", key) }

// newStage gives a client that tries once and has one connection at a time.
func newStage(t *testing.T, opts ...func(*redis.Options)) *stage {
	t.Parallel()
	server := Start(t)
	relay := NewRelay(t, server.Addr())
	opts = append([]func(*redis.Options){NoRetry, func(o *redis.Options) { o.PoolSize = 1 }}, opts...)
	c := relay.Client(t, opts...)
	s := &stage{Server: server, Relay: relay, c: c, ctx: testContext(t)}
	require.NoError(t, c.Ping(s.ctx).Err())
	return s
}

func shortReads(o *redis.Options) { o.ReadTimeout = 100 * time.Millisecond }

func (s *stage) incr() <-chan error {
	return inBackground(func() error { return s.c.Incr(s.ctx, "n").Err() })
}

func TestRelayPassesEveryByteBothWays(t *testing.T) {
	s := newStage(t)
	var requests strings.Builder
	for i := range 200 {
		requests.Write(encode("set", fmt.Sprint("k", i), strings.Repeat("\r\n$1", rand.IntN(1000))))
		requests.Write(encode("get", fmt.Sprint("k", i)))
		requests.Write(encode("eval", "return {1,{'a',{KEYS[1]},false},redis.error_reply('x'),redis.status_reply('y')}", "1", "k"))
	}
	requests.Write([]byte("*0\r\n"))
	requests.Write(encode("hello", "3"))
	requests.Write(encode("config", "get", "*max*"))
	requests.Write(encode("subscribe", "c", "d"))
	requests.Write(encode("set", "big", strings.Repeat("x", 5<<20)))
	requests.Write(encode("get", "big"))
	for _, protocol := range []string{"attrib", "map", "set", "double", "null", "bignum", "verbatim", "true"} {
		requests.Write(encode("debug", "protocol", protocol))
	}
	requests.Write(encode("quit"))
	direct := exchange(t, s.Server.Addr(), requests.String())
	require.Greater(t, len(direct), 5<<20)
	require.True(t, direct == exchange(t, s.Relay.Addr(), requests.String()), "bytes differ")
}

// clientID is what HELLO says that is not the same for two connections.
var clientID = regexp.MustCompile(`\$2\r\nid\r\n:\d+`)

// exchange sends what to addr in pieces and returns all that comes back, client
// ids left out.
func exchange(t *testing.T, addr, what string) string {
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(bound)))
	go func() {
		for what != "" {
			n := min(len(what), 1+rand.IntN(64<<10))
			if _, err := conn.Write([]byte(what[:n])); err != nil {
				return
			}
			what = what[n:]
		}
	}()
	all, err := io.ReadAll(conn)
	require.NoError(t, err)
	return clientID.ReplaceAllString(string(all), "id")
}

func TestRequestsAreCountedAndObserved(t *testing.T) {
	s := newStage(t)
	var mu sync.Mutex
	var seen [][]string
	s.OnRequest(func(args []string) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, args)
	})
	s.ForgetRequests()
	require.NoError(t, s.c.Set(s.ctx, "key:1", "v", 0).Err())
	_, err := s.c.Pipelined(s.ctx, func(p redis.Pipeliner) error {
		p.Get(s.ctx, "key:1")
		p.Get(s.ctx, "key:2")
		return nil
	})
	require.ErrorIs(t, err, redis.Nil)
	require.Equal(t, 2, s.Requests(Command("GET")))
	require.Equal(t, 2, s.Requests(ArgContains("y:1")))
	require.Equal(t, 3, s.Requests(And(Any(), Command("get", "Set"))))
	mu.Lock()
	defer mu.Unlock()
	require.Contains(t, seen, []string{"set", "key:1", "v"})
	s.ForgetRequests()
	require.Zero(t, s.Requests(Any()))
}

func TestSwallowedReplyStallsItsConnectionAlone(t *testing.T) {
	s := newStage(t, shortReads)
	rule := s.Once(Command("incr"), SwallowReply)
	require.ErrorContains(t, s.c.Incr(s.ctx, "n").Err(), "i/o timeout")
	await(t, rule.Hit())
	require.Equal(t, "1", s.get("n"))
	require.NoError(t, s.c.Incr(s.ctx, "n").Err())
	require.Equal(t, "2", s.get("n"))
	require.Equal(t, 1, rule.Count())
}

func TestSwallowedReplyHoldsLaterOnesOfThePipeline(t *testing.T) {
	s := newStage(t, shortReads)
	s.Once(ArgContains("b"), SwallowReply)
	p := s.c.Pipeline()
	a, b, c := p.Incr(s.ctx, "a"), p.Incr(s.ctx, "b"), p.Incr(s.ctx, "c")
	_, err := p.Exec(s.ctx)
	require.ErrorContains(t, err, "i/o timeout")
	require.EqualValues(t, 1, a.Val())
	require.Zero(t, b.Val())
	require.Zero(t, c.Val())
	require.Equal(t, "1", s.get("c"))
}

func TestSwallowedRequestIsNotExecuted(t *testing.T) {
	s := newStage(t, shortReads)
	rule := s.Once(Command("incr"), SwallowRequest)
	require.ErrorContains(t, s.c.Incr(s.ctx, "n").Err(), "i/o timeout")
	require.Equal(t, 1, rule.Count())
	require.Nil(t, s.get("n"))
}

func TestDroppedReplyIsExecutedAndClosed(t *testing.T) {
	s := newStage(t)
	rule := s.Once(ArgContains("b"), DropReply)
	p := s.c.Pipeline()
	a, b := p.Incr(s.ctx, "a"), p.Incr(s.ctx, "b")
	_, err := p.Exec(s.ctx)
	require.ErrorIs(t, err, io.EOF)
	require.EqualValues(t, 1, a.Val())
	require.Error(t, b.Err())
	require.Equal(t, 1, rule.Count())
	require.Equal(t, "1", s.get("b"))
	require.NoError(t, s.c.Incr(s.ctx, "b").Err())
}

func TestDroppedRequestEndsThePipelineThere(t *testing.T) {
	s := newStage(t)
	s.Once(ArgContains("b"), DropRequest)
	p := s.c.Pipeline()
	a := p.Incr(s.ctx, "a")
	p.Incr(s.ctx, "b")
	p.Incr(s.ctx, "c")
	_, err := p.Exec(s.ctx)
	require.Error(t, err)
	require.EqualValues(t, 1, a.Val())
	require.Nil(t, s.get("b"))
	require.Nil(t, s.get("c"))
}

func TestRetryingClientExecutesTwiceAfterADroppedReply(t *testing.T) {
	s := newStage(t)
	rule := s.Once(Command("incr"), DropReply)
	c := s.Relay.Client(t) // go-redis's defaults
	require.EqualValues(t, 2, c.Incr(s.ctx, "n").Val())
	require.Equal(t, 1, rule.Count())
	require.Equal(t, 2, s.Requests(Command("incr")))
}

func TestCannedAnswerKeepsItsPlace(t *testing.T) {
	s := newStage(t)
	rule := s.Times(2, Command("get"), ReplyWith("-LOADING Redis is loading\r\n"))
	p := s.c.Pipeline()
	a, b, c, d := p.Incr(s.ctx, "a"), p.Get(s.ctx, "a"), p.Get(s.ctx, "a"), p.Get(s.ctx, "a")
	_, err := p.Exec(s.ctx)
	require.ErrorContains(t, err, "LOADING")
	require.EqualValues(t, 1, a.Val())
	require.ErrorContains(t, b.Err(), "LOADING")
	require.ErrorContains(t, c.Err(), "LOADING")
	require.Equal(t, "1", d.Val())
	require.Equal(t, 2, rule.Count())
}

func TestHeldRequestWaitsForRelease(t *testing.T) {
	s := newStage(t)
	rule := s.Once(Command("incr"), Hold)
	reply := s.incr()
	await(t, rule.Hit())
	nothingFrom(t, reply)
	require.Nil(t, s.get("n"))
	rule.Release()
	rule.Release()
	require.NoError(t, await(t, reply))
	require.Equal(t, "1", s.get("n"))
}

func TestHeldRequestOfAClientThatLeftIsExecuted(t *testing.T) {
	s := newStage(t, shortReads)
	rule := s.Once(Command("incr"), Hold)
	require.Error(t, s.c.Incr(s.ctx, "n").Err())
	require.Nil(t, s.get("n"))
	rule.Release()
	require.Eventually(t, func() bool { return s.get("n") == "1" }, bound, time.Millisecond)
}

func TestHeldReplyIsExecutedBeforeRelease(t *testing.T) {
	s := newStage(t)
	rule := s.Once(Command("incr"), HoldReply)
	reply := s.incr()
	await(t, rule.Hit())
	require.Equal(t, "1", s.get("n"))
	nothingFrom(t, reply)
	rule.Release()
	require.NoError(t, await(t, reply))
}

func TestRulesApplyUntilUsedUpOrRemoved(t *testing.T) {
	s := newStage(t)
	no := ReplyWith("-ERR no\r\n")
	always := s.Always(Command("get"), no)
	twice := s.Times(2, Any(), ReplyWith("-ERR twice\r\n"))
	for range 5 {
		require.EqualError(t, s.c.Get(s.ctx, "k").Err(), "ERR no") // the oldest rule wins
	}
	require.Equal(t, 5, always.Count())
	require.Zero(t, twice.Count())
	always.Remove()
	require.EqualError(t, s.c.Get(s.ctx, "k").Err(), "ERR twice")
	require.EqualError(t, s.c.Ping(s.ctx).Err(), "ERR twice")
	require.NoError(t, s.c.Ping(s.ctx).Err())
	require.Equal(t, 2, twice.Count())
	nothingFrom(t, s.Once(Command("nothing"), no).Hit())
}

func TestMatchers(t *testing.T) {
	t.Parallel()
	args := []string{"EvalSha", "abc", "1", "lock:a"}
	yes, no := Any(), Not(Any())
	for name, test := range map[string]struct {
		match Match
		want  bool
	}{
		"command":   {Command("evalsha"), true},
		"others":    {Command("eval", "lock:a"), false},
		"one of":    {Command("eval", "EVALSHA"), true},
		"arg":       {ArgContains("lock:"), true},
		"not name":  {ArgContains("Eval"), false},
		"and":       {And(yes, yes), true},
		"and not":   {And(yes, no), false},
		"or":        {Or(no, yes), true},
		"or not":    {Or(no, no), false},
		"and empty": {And(), true},
		"or empty":  {Or(), false},
	} {
		require.Equal(t, test.want, test.match(args), name)
	}
	third := Skip(2, Command("evalsha"))
	require.False(t, third([]string{"get"}))
	require.Equal(t, []bool{false, false, true, true}, []bool{third(args), third(args), third(args), third(args)})
}

func TestDelayIsLatencyNotThroughput(t *testing.T) {
	s := newStage(t)
	const delay = 50 * time.Millisecond
	s.Delay(delay)
	begin := time.Now()
	require.NoError(t, s.c.Ping(s.ctx).Err())
	require.GreaterOrEqual(t, time.Since(begin), delay)
	begin = time.Now()
	_, err := s.c.Pipelined(s.ctx, func(p redis.Pipeliner) error {
		for range 100 {
			p.Incr(s.ctx, "n")
		}
		return nil
	})
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(begin), delay)
	require.Less(t, time.Since(begin), 50*delay) // one after the other it would be a hundred
	s.Delay(0)
	s.Times(1, Command("ping"), HoldReply).Release()
	require.NoError(t, s.c.Ping(s.ctx).Err())
}

func TestBlackHoleKeepsBytesAndConnections(t *testing.T) {
	s := newStage(t)
	s.BlackHole(true)
	s.BlackHole(true)
	reply := s.incr()
	nothingFrom(t, reply)
	require.Nil(t, s.get("n"))
	require.Equal(t, 1, s.Requests(Command("incr")))
	require.Equal(t, 1, s.Conns())
	s.BlackHole(false)
	s.BlackHole(false)
	require.NoError(t, await(t, reply))
	require.Equal(t, "1", s.get("n"))
}

func TestBlackHoleAcceptsNewConnectionsInSilence(t *testing.T) {
	s := newStage(t)
	s.BlackHole(true)
	conn, err := net.Dial("tcp", s.Relay.Addr())
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write(encode("ping"))
	require.NoError(t, err)
	read := inBackground(func() string {
		b := make([]byte, 7)
		_, err := io.ReadFull(conn, b)
		return fmt.Sprint(string(b), err)
	})
	nothingFrom(t, read)
	s.BlackHole(false)
	require.Equal(t, "+PONG\r\n<nil>", await(t, read))
}

func TestBlackHoleStopsRepliesUnderWay(t *testing.T) {
	s := newStage(t)
	rule := s.Once(Command("incr"), HoldReply)
	reply := s.incr()
	await(t, rule.Hit())
	s.BlackHole(true)
	rule.Release()
	nothingFrom(t, reply)
	s.Server.Kill() // nor does the end of the server get through
	nothingFrom(t, reply)
	s.BlackHole(false)
	require.NoError(t, await(t, reply))
}

func TestRequestsInABlackHoleOutliveTheirClient(t *testing.T) {
	s := newStage(t, shortReads)
	s.BlackHole(true)
	require.Error(t, s.c.Incr(s.ctx, "n").Err())
	require.NoError(t, s.c.Close())
	s.BlackHole(false)
	require.Eventually(t, func() bool { return s.get("n") == "1" && s.Conns() == 0 }, bound, time.Millisecond)
}

func TestCutResetsPresentConnectionsOnly(t *testing.T) {
	s := newStage(t)
	rule := s.Once(Command("incr"), Hold)
	reply := s.incr()
	await(t, rule.Hit())
	s.Cut()
	require.Error(t, await(t, reply))
	require.Zero(t, s.Conns())
	rule.Release() // what a cut connection held is lost
	require.NoError(t, s.c.Ping(s.ctx).Err())
	require.Nil(t, s.get("n"))
	require.Equal(t, 1, s.Conns())
}

func TestRefuseClosesNewConnectionsOnly(t *testing.T) {
	s := newStage(t)
	s.Refuse(true)
	require.NoError(t, s.c.Ping(s.ctx).Err())
	require.Error(t, s.Relay.Client(t, NoRetry).Ping(s.ctx).Err())
	s.Cut()
	require.Error(t, s.c.Ping(s.ctx).Err())
	require.Zero(t, s.Conns())
	s.Refuse(false)
	require.NoError(t, s.c.Ping(s.ctx).Err())
}

func TestDeadServerClosesItsClients(t *testing.T) {
	s := newStage(t)
	s.Server.Pause()
	reply := s.incr()
	nothingFrom(t, reply)
	s.Server.Kill()
	require.Error(t, await(t, reply))
	require.Error(t, s.c.Ping(s.ctx).Err())
	s.Server.Restart()
	require.NoError(t, s.c.Ping(s.ctx).Err())
}

func TestPubSubPassesInBothProtocols(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprint("RESP", protocol), func(t *testing.T) {
			s := newStage(t, func(o *redis.Options) { o.Protocol = protocol })
			sub := s.c.Subscribe(s.ctx, "channel:a", "channel:b")
			defer sub.Close()
			require.NoError(t, sub.PSubscribe(s.ctx, "pattern:*"))
			for range 3 {
				require.IsType(t, &redis.Subscription{}, receive(t, s, sub))
			}
			for _, channel := range []string{"channel:a", "pattern:x", "channel:b"} {
				s.Server.Do(t, "publish", channel, "hello")
				require.Equal(t, channel, receive(t, s, sub).(*redis.Message).Channel)
			}
			require.NoError(t, sub.Unsubscribe(s.ctx)) // from both
			require.NoError(t, sub.Ping(s.ctx, "still"))
			held := s.Once(ArgContains("there"), HoldReply) // the reply to this ping and no other
			require.NoError(t, sub.Ping(s.ctx, "there"))
			for range 2 {
				require.Equal(t, "unsubscribe", receive(t, s, sub).(*redis.Subscription).Kind)
			}
			require.Equal(t, "still", receive(t, s, sub).(*redis.Pong).Payload)
			await(t, held.Hit())
			held.Release()
			require.Equal(t, "there", receive(t, s, sub).(*redis.Pong).Payload)
		})
	}
}

func receive(t *testing.T, s *stage, sub *redis.PubSub) any {
	t.Helper()
	m, err := sub.ReceiveTimeout(s.ctx, bound)
	require.NoError(t, err)
	return m
}

func TestSubscriptionCanBeRefusedAndSwallowed(t *testing.T) {
	s := newStage(t, shortReads)
	s.Once(Command("subscribe"), ReplyWith("-NOPERM no channels\r\n"))
	sub := s.c.Subscribe(s.ctx, "channel:a")
	defer sub.Close()
	_, err := sub.ReceiveTimeout(s.ctx, bound)
	require.ErrorContains(t, err, "NOPERM")
	rule := s.Once(Command("subscribe"), SwallowReply)
	mute := s.c.Subscribe(s.ctx, "channel:b")
	defer mute.Close()
	await(t, rule.Hit())
	require.Equal(t, []any{"channel:b", int64(1)}, s.Server.Do(t, "pubsub", "numsub", "channel:b"))
	_, err = mute.ReceiveTimeout(s.ctx, blink)
	require.ErrorContains(t, err, "i/o timeout")
}

func TestReplicationPasses(t *testing.T) {
	s := newStage(t)
	replica := Start(t)
	s.Server.Do(t, "config", "set", "repl-diskless-sync-delay", "0")
	host, port, err := net.SplitHostPort(s.Relay.Addr())
	require.NoError(t, err)
	replica.Do(t, "replicaof", host, port)
	require.NoError(t, s.c.Set(s.ctx, "k", "v", 0).Err())
	require.EqualValues(t, 1, s.waitReplicas(bound))
	require.Equal(t, "v", replica.Do(t, "get", "k"))
	s.BlackHole(true)
	require.EqualValues(t, 0, s.waitReplicas(blink))
	s.BlackHole(false)
	require.EqualValues(t, 1, s.waitReplicas(bound))
}

// waitReplicas writes, and says how many replicas have it in time.
func (s *stage) waitReplicas(timeout time.Duration) any {
	c := s.Server.Client(s.Server.t, NoRetry, func(o *redis.Options) { o.PoolSize = 1 })
	defer c.Close()
	p := c.Pipeline()
	p.Incr(s.ctx, "w")
	n := p.Do(s.ctx, "wait", 1, timeout.Milliseconds())
	_, _ = p.Exec(s.ctx)
	return n.Val()
}

func TestManyClientsThroughOneRelay(t *testing.T) {
	s := newStage(t)
	c := s.Relay.Client(t, NoRetry)
	const clients, rounds = 16, 100
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			key := fmt.Sprint("key:", i)
			for n := range rounds {
				p := c.Pipeline()
				incr, get := p.Incr(s.ctx, key), p.Get(s.ctx, key)
				_, err := p.Exec(s.ctx)
				if err != nil || incr.Val() != int64(n+1) || get.Val() != fmt.Sprint(n+1) {
					t.Errorf("%s: round %d: %v %v %v", key, n, incr, get, err)
					return
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, clients*rounds, s.Requests(Command("incr")))
}

func TestFaultsUnderLoadLeaveNothing(t *testing.T) {
	s := newStage(t)
	c := s.Relay.Client(t, NoRetry, func(o *redis.Options) { o.ReadTimeout = 10 * time.Millisecond })
	actions := []Action{SwallowReply, SwallowRequest, DropReply, DropRequest, Hold, HoldReply, ReplyWith("-ERR x\r\n")}
	for i, action := range actions {
		s.Always(Skip(i, ArgContains(fmt.Sprint("key:", i))), action)
	}
	ctx, cancel := context.WithTimeout(s.ctx, 200*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				_ = c.Incr(ctx, fmt.Sprint("key:", rand.IntN(2*len(actions)))).Err()
			}
		})
	}
	for on := true; ctx.Err() == nil; on = !on {
		s.BlackHole(on)
		s.Refuse(!on)
		s.Cut()
		s.Conns()
		time.Sleep(time.Millisecond) // the weather changes; nothing is awaited
	}
	wg.Wait()
}

func TestRelayEndsWithItsTest(t *testing.T) {
	t.Parallel()
	s := Start(t)
	for name, trouble := range map[string]func(*Relay){
		"idle":  func(*Relay) {},
		"hole":  func(r *Relay) { r.BlackHole(true) },
		"held":  func(r *Relay) { r.Always(Any(), Hold) },
		"stall": func(r *Relay) { r.Always(Any(), SwallowReply) },
		"delay": func(r *Relay) { r.Delay(time.Hour) },
	} {
		var r *Relay
		a := act(t, func(t testing.TB) {
			r = NewRelay(t, s.Addr())
			conn, err := net.Dial("tcp", r.Addr())
			require.NoError(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			came := make(chan struct{})
			r.OnRequest(func([]string) { close(came) })
			trouble(r)
			_, err = conn.Write(encode("ping"))
			require.NoError(t, err)
			await(t, came)
		})
		require.Empty(t, a.said, name)
		require.Zero(t, r.Conns(), name)
		_, err := r.listener.Accept()
		require.ErrorIs(t, err, net.ErrClosed, name)
	}
	require.Eventually(t, func() bool {
		list, _ := s.Do(t, "client", "list").(string)
		return countLines(list) == 1 // that of Do
	}, bound, time.Millisecond)
}

func TestWhatIsNotRESPFailsTheTest(t *testing.T) {
	t.Parallel()
	s := Start(t)
	a := act(t, func(t testing.TB) {
		conn, err := net.Dial("tcp", NewRelay(t, s.Addr()).Addr())
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.Write([]byte("PING\r\n"))
		require.NoError(t, err)
		_, err = conn.Read(make([]byte, 1))
		require.Error(t, err)
	})
	require.Regexp(t, `^redistest: relay to .*: malformed RESP.*\n$`, a.said)
	require.True(t, a.failed)
}

func TestRelayWithoutServerClosesClients(t *testing.T) {
	t.Parallel()
	port, err := takePort()
	require.NoError(t, err)
	defer leavePort(port)
	r := NewRelay(t, loopback(port))
	require.Error(t, r.Client(t, NoRetry).Ping(testContext(t)).Err())
}

func BenchmarkPing(b *testing.B) {
	s := Start(b)
	for name, addr := range map[string]string{"direct": s.Addr(), "relay": NewRelay(b, s.Addr()).Addr()} {
		b.Run(name, func(b *testing.B) {
			c := newClient(b, addr, NoRetry)
			for b.Loop() {
				if err := c.Ping(b.Context()).Err(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestRelayLeadsNewConnectionsElsewhere(t *testing.T) {
	s := newStage(t, func(o *redis.Options) { o.PoolSize = 2 })
	other := Start(t)
	s.Server.Do(t, "set", "which", "first")
	other.Do(t, "set", "which", "second")
	sub := s.c.Subscribe(s.ctx, "channel")
	defer sub.Close()
	_, err := sub.Receive(s.ctx)
	require.NoError(t, err)
	s.Lead(other.Addr())
	require.Equal(t, "second", s.Relay.Client(t, NoRetry).Get(s.ctx, "which").Val())
	require.Equal(t, "first", s.c.Get(s.ctx, "which").Val())
	s.Server.Do(t, "publish", "channel", "still here")
	message, err := sub.ReceiveMessage(s.ctx)
	require.NoError(t, err)
	require.Equal(t, "still here", message.Payload)
}
