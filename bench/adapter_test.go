package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/redistest"
)

// Commands that every client sends when it connects. They are not counted.
var greetings = []string{"hello", "client", "command", "cluster"}

var monitored = regexp.MustCompile(`^\S+ \[\d+ (\S+)\] "([^"]+)"`)

// What an adapter says that it sends is what it does send: else its commands and
// their time would be counted wrong. MONITOR tells apart what scripts call.
func TestAdaptersSendWhatTheySay(t *testing.T) {
	server := redistest.Start(t)
	for _, a := range adapters() {
		t.Run(a.id, func(t *testing.T) {
			log := monitor(t, server.Addr())
			useLocker(t, a, server.Addr())
			require.NoError(t, server.Client(t).Echo(t.Context(), "last").Err())
			sent := sentUntilEcho(t, log)
			for _, command := range sent {
				require.Contains(t, append(greetings, a.sends...), command)
			}
			require.NotEmpty(t, sent)
		})
	}
}

// useLocker acquires with and without somebody waiting, and lets a lease be
// renewed.
func useLocker(t *testing.T, a adapter, addr string) {
	t.Helper()
	name := "send-" + a.id
	if a.prepare != nil {
		admin := newClient(addr)
		defer admin.Close()
		require.NoError(t, a.prepare(t.Context(), admin, []string{name}))
	}
	l, err := a.open(settings{addr: addr, ttl: 300 * time.Millisecond, renew: true, conns: 4})
	require.NoError(t, err)
	defer l.close()
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			h, err := l.lock(t.Context(), name)
			if err == nil {
				time.Sleep(150 * time.Millisecond)
				err = h.unlock(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// monitor sees all that the server executes once it has returned.
func monitor(t *testing.T, addr string) *bufio.Scanner {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err = io.WriteString(conn, "MONITOR\r\n")
	require.NoError(t, err)
	log := bufio.NewScanner(conn)
	require.True(t, log.Scan())
	require.Equal(t, "+OK", log.Text())
	return log
}

func sentUntilEcho(t *testing.T, log *bufio.Scanner) (sent []string) {
	t.Helper()
	for log.Scan() {
		found := monitored.FindStringSubmatch(log.Text())
		switch {
		case found == nil, found[1] == "lua":
		case strings.EqualFold(found[2], "echo"):
			return sent
		default:
			sent = append(sent, strings.ToLower(found[2]))
		}
	}
	t.Fatal("no ECHO in MONITOR: ", log.Err())
	return nil
}

// A lease that nobody renews ends, one that is renewed does not.
func TestSettingsRenew(t *testing.T) {
	server := redistest.Start(t)
	const ttl = 300 * time.Millisecond
	for _, a := range adapters() {
		if a.groups&holding == 0 {
			continue
		}
		t.Run(a.id, func(t *testing.T) {
			t.Parallel()
			l, err := a.open(settings{addr: server.Addr(), ttl: ttl, renew: true})
			require.NoError(t, err)
			defer l.close()
			h, err := l.lock(t.Context(), "renewed-"+a.id)
			require.NoError(t, err)

			ctx, cancel := context.WithTimeout(t.Context(), 3*ttl)
			defer cancel()
			other, err := a.open(settings{addr: server.Addr(), ttl: ttl})
			require.NoError(t, err)
			defer other.close()
			_, err = other.lock(ctx, "renewed-"+a.id)
			require.Error(t, err, "the lease has ended")
			require.NoError(t, h.unlock(t.Context()))
		})
	}
}

func TestRenewalThatFailsShowsAtUnlock(t *testing.T) {
	h := settings{ttl: 3 * time.Millisecond, renew: true}.keep(&lapsing{}).(*kept)
	<-h.ended
	require.ErrorIs(t, h.unlock(t.Context()), errTaken)
}

type lapsing struct{}

func (*lapsing) unlock(context.Context) error { return nil }
func (*lapsing) extend(context.Context, time.Duration) error {
	return fmt.Errorf("extend: %w", errTaken)
}
