package poll

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// fakeServer answers after a while, and has a run id.
type fakeServer struct {
	wire.Engine // none: what is not overridden panics
	id          string
	takes       time.Duration
	reply       string
	err         error
	asked       atomic.Int32
}

func (f *fakeServer) Do(ctx context.Context, r wire.Request) *wire.Call {
	f.asked.Add(1)
	c := wire.NewCall(ctx, r)
	if !wire.Pause(ctx, f.takes) {
		c.Finish("", ctx.Err())
		return c
	}
	c.Finish(f.reply, f.err)
	return c
}

func (f *fakeServer) Shortage(string) string { return "" }

func (f *fakeServer) Process(_ context.Context, cmd redis.Cmder) error {
	cmd.(*wire.Once).SetVal("# Server\r\nrun_id:" + f.id + "\r\n")
	return nil
}

type noLog struct{ wire.Log }

func nodesOf(servers ...*fakeServer) *Nodes {
	var all []Server
	for _, s := range servers {
		all = append(all, Server{Client: s, Conn: wire.Conn{Engine: s}})
	}
	return New(all, noLog{})
}

func yesOrNo(_ int, reply string) (Vote, error) {
	switch reply {
	case "yes":
		return Yes, nil
	case "no":
		return No, nil
	}
	return NoVote, wire.Unexpected(reply)
}

var question = wire.NewScript("return 1\n").Request(time.Second, []any{"key"})

func TestAVoteIsDecidedAsSoonAsItCanBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fast := func(reply string) *fakeServer {
			return &fakeServer{id: reply + "1", takes: time.Millisecond, reply: reply}
		}
		slow := &fakeServer{id: "slow", takes: 400 * time.Millisecond, reply: "yes"}
		down := &fakeServer{id: "down", err: errors.New("broken pipe")}
		for name, c := range map[string]struct {
			servers   []*fakeServer
			won, lost bool
			takes     time.Duration
		}{
			"a majority is in favour":        {[]*fakeServer{fast("yes"), {id: "2", reply: "yes"}, slow}, true, false, time.Millisecond},
			"a majority is against":          {[]*fakeServer{fast("no"), {id: "2", reply: "no"}, slow}, false, true, time.Millisecond},
			"the last one decides":           {[]*fakeServer{fast("no"), {id: "2", reply: "yes"}, slow}, true, false, slow.takes},
			"nothing can come of it":         {[]*fakeServer{down, {id: "2", err: errors.New("reset")}, slow}, false, false, 0},
			"open: contention or an outage?": {[]*fakeServer{down, fast("no"), slow}, false, false, slow.takes},
		} {
			ns := nodesOf(c.servers...)
			require.NoError(t, ns.Identify(), name)
			began := time.Now()
			tally := ns.Count(ns.Send(t.Context(), time.Second, question, ns.All()), time.Second, 0)
			tally.Until(t.Context(), tally.Decided, yesOrNo)
			require.Equal(t, c.takes, time.Since(began), name)
			require.Equal(t, c.won, tally.Won(), name)
			require.Equal(t, c.lost, tally.Lost(), name)
			time.Sleep(time.Second)
		}
	})
}

func TestAFailureSaysWhichNodesAndWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ns := nodesOf(
			&fakeServer{id: "1", reply: "no"},
			&fakeServer{id: "2", err: errors.New("broken pipe")},
			&fakeServer{id: "3", takes: time.Minute, reply: "yes"},
		)
		require.NoError(t, ns.Identify())
		tally := ns.Count(ns.Send(t.Context(), 50*time.Millisecond, question, ns.All()), 50*time.Millisecond, 0)
		tally.Until(t.Context(), tally.Decided, yesOrNo)
		err := tally.Failure()
		require.ErrorContains(t, err, "no quorum (2 of 3 needed): 0 in favor, 1 against; node 2: broken pipe; node 3: ")
		require.True(t, wire.IsOutage(err))
		require.True(t, wire.MaybeExecuted(err), "node 3 may execute it late")
		var undecided *Error
		require.ErrorAs(t, err, &undecided)
		require.True(t, undecided.Opposed())
		time.Sleep(time.Minute)
	})
}

// A node that has been silent for a while is asked once in a while only.
func TestASilentNodeIsNotAskedByEverybody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := &fakeServer{id: "3", takes: time.Hour}
		ns := nodesOf(&fakeServer{id: "1", reply: "yes"}, &fakeServer{id: "2", reply: "yes"}, silent)
		require.NoError(t, ns.Identify())
		for range 100 { // 10 seconds
			ns.Send(t.Context(), 50*time.Millisecond, question, ns.All())
			time.Sleep(100 * time.Millisecond)
		}
		require.LessOrEqual(t, silent.asked.Load(), int32(10+9*5), "each for a second, then one in 200 ms")
		require.GreaterOrEqual(t, silent.asked.Load(), int32(40))
		synctest.Wait()
		silent.takes, silent.reply = 0, "yes"
		time.Sleep(probePause)
		for range 2 {
			ns.Send(t.Context(), 50*time.Millisecond, question, ns.All())
			synctest.Wait()
		}
		before := silent.asked.Load()
		ns.Send(t.Context(), 50*time.Millisecond, question, ns.All())
		synctest.Wait()
		require.Equal(t, before+1, silent.asked.Load(), "the first answer ends that")
	})
}

func TestOneServerHasOneVote(t *testing.T) {
	ns := nodesOf(&fakeServer{id: "1"}, &fakeServer{id: "2"}, &fakeServer{id: "1"})
	require.ErrorContains(t, ns.Identify(), "by its run id")
	ns = nodesOf(&fakeServer{id: ""}, &fakeServer{id: ""}, &fakeServer{id: "1"})
	require.NoError(t, ns.Identify(), "a server without a run id is taken at its word")
}
