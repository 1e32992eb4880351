package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// delayed is a connection whose reads are delayed, and its other end.
func delayed(t *testing.T, delay func() time.Duration) (conn *delayedConn, peer net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	peer, err = l.Accept()
	require.NoError(t, err)
	conn, err = delayReads(near, delay)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = conn.Close()
		_ = peer.Close()
	})
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	return conn, peer
}

func always(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

func send(t *testing.T, conn net.Conn, s string) {
	t.Helper()
	_, err := io.WriteString(conn, s)
	require.NoError(t, err)
}

func receive(t *testing.T, conn net.Conn, bytes int) string {
	t.Helper()
	buffer := make([]byte, bytes)
	_, err := io.ReadFull(conn, buffer)
	require.NoError(t, err)
	return string(buffer)
}

func TestDelayDelays(t *testing.T) {
	const delay = 30 * time.Millisecond
	conn, peer := delayed(t, always(delay))
	for range 3 {
		begin := time.Now()
		send(t, peer, "reply")
		require.Equal(t, "reply", receive(t, conn, 5))
		require.GreaterOrEqual(t, time.Since(begin), delay)
	}
	begin := time.Now()
	send(t, conn, "request")
	require.Equal(t, "request", receive(t, peer, 7))
	require.Less(t, time.Since(begin), delay, "what is written is not delayed")
}

// A delay of less than a millisecond is possible. With the timers of a Go process
// that has nothing else to do it is not, on Linux: they have whole milliseconds.
func TestDelayIsExact(t *testing.T) {
	const delay = 500 * time.Microsecond
	conn, peer := delayed(t, always(delay))
	var took []time.Duration
	for range 60 {
		begin := time.Now()
		send(t, peer, "x")
		receive(t, conn, 1)
		took = append(took, time.Since(begin))
	}
	require.GreaterOrEqual(t, slices.Min(took), delay)
	require.Less(t, slices.Min(took), time.Millisecond)
}

// Many pieces that arrive within one delay are all read after one delay: they
// wait side by side.
func TestDelayDoesNotSerialise(t *testing.T) {
	const delay, pieces = 200 * time.Millisecond, 50
	conn, peer := delayed(t, always(delay))
	begin := time.Now()
	for range pieces {
		send(t, peer, "x")
		time.Sleep(time.Millisecond) // so that they arrive one by one
	}
	receive(t, conn, pieces)
	took := time.Since(begin)
	require.GreaterOrEqual(t, took, delay)
	require.Less(t, took, pieces*delay/5)
}

// A piece whose own delay is shorter does not overtake the one before.
func TestDelayKeepsOrder(t *testing.T) {
	delays := []time.Duration{40 * time.Millisecond, 0, 20 * time.Millisecond, 0}
	next := 0
	conn, peer := delayed(t, func() time.Duration {
		next++
		return delays[next%len(delays)]
	})
	var sent bytes.Buffer
	go func() {
		for i := range 40 {
			_, _ = peer.Write(bytes.Repeat([]byte{byte('a' + i%26)}, 100))
			time.Sleep(time.Millisecond)
		}
	}()
	for i := range 40 {
		sent.Write(bytes.Repeat([]byte{byte('a' + i%26)}, 100))
	}
	require.Equal(t, sent.String(), receive(t, conn, sent.Len()))
}

func TestDelayedReadEndsWithItsDeadline(t *testing.T) {
	conn, peer := delayed(t, always(time.Minute))
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
	_, err := conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "nothing has arrived")

	send(t, peer, "x")
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "what has arrived is not due")

	ended := make(chan error, 1)
	require.NoError(t, conn.SetReadDeadline(time.Time{}))
	go func() {
		_, err := conn.Read(make([]byte, 1))
		ended <- err
	}()
	require.NoError(t, conn.Close())
	require.ErrorIs(t, <-ended, net.ErrClosed)
}

func TestDelayedReadSeesTheEnd(t *testing.T) {
	conn, peer := delayed(t, always(5*time.Millisecond))
	send(t, peer, "last")
	require.NoError(t, peer.Close())
	all, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Equal(t, "last", string(all))
}

func TestJitterIsSeededAndWithinItsBounds(t *testing.T) {
	draw := func(n network, process int, connection uint64) (out []time.Duration) {
		delay := n.jitter(process, connection)
		for range 1000 {
			out = append(out, delay())
		}
		return out
	}
	first := draw(lan, 0, 1)
	require.Equal(t, first, draw(lan, 0, 1))
	require.NotEqual(t, first, draw(lan, 0, 2))
	require.NotEqual(t, first, draw(lan, 1, 1))
	require.NotEqual(t, first, draw(network{lan.Min, lan.Max, 7}, 0, 1))
	require.GreaterOrEqual(t, slices.Min(first), lan.Min)
	require.LessOrEqual(t, slices.Max(first), lan.Max)
	require.InDelta(t, 0.001, quantile(first, 0.5), 0.0001)
}

func TestDialThatFails(t *testing.T) {
	_, err := lan.dialer(0, (&net.Dialer{}).DialContext)(t.Context(), "tcp", "127.0.0.1:1")
	require.Error(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	near, _ := net.Pipe()
	_, err = lan.dialer(0, func(context.Context, string, string) (net.Conn, error) { return near, nil })(ctx, "tcp", "")
	require.ErrorIs(t, err, context.Canceled)
}

// Each adapter that takes part in a scenario on a network has the network's delay
// for each round trip, whatever its client.
func TestAdaptersHaveTheNetwork(t *testing.T) {
	admin := startedAdmin(t)
	// rueidislock gives up after 20 ms.
	slow := network{Min: 8 * time.Millisecond, Max: 8 * time.Millisecond}
	for _, a := range adapters() {
		t.Run(a.id, func(t *testing.T) {
			t.Parallel()
			name := "network-" + a.id
			if a.prepare != nil {
				require.NoError(t, a.prepare(t.Context(), admin, []string{name}))
			}
			l, err := a.open(settings{addr: admin.Options().Addr, ttl: time.Minute, conns: 1, network: slow})
			require.NoError(t, err)
			defer l.close()
			for range 2 { // the first makes connections
				begin := time.Now()
				h, err := takeFree(t.Context(), l, name)
				require.NoError(t, err)
				require.GreaterOrEqual(t, time.Since(begin), slow.Min)
				require.NoError(t, h.unlock(t.Context()))
			}
		})
	}
}
