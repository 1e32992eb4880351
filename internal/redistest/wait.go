package redistest

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

const (
	readyTimeout = 60 * time.Second // far more than any start takes
	lookTick     = 10 * time.Millisecond
	tailLines    = 20
)

// eventually returns once check has no objection. If it still has one after
// within, t fails with it and with what the servers logged last.
func eventually(t testing.TB, within time.Duration, what string, servers []*Server, check func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	tick := time.NewTicker(lookTick)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("redistest: %s: not within %v: %v%s", what, within, err, tails(servers))
		}
		<-tick.C
	}
}

// tails returns the end of each server's log.
func tails(servers []*Server) string {
	var all strings.Builder
	for _, s := range servers {
		lines := bytes.Split(s.log(0), []byte("\n"))
		last := bytes.Join(lines[max(0, len(lines)-tailLines):], []byte("\n\t"))
		fmt.Fprintf(&all, "\nend of the log of %s (%s):\n\t%s", s.Addr(), s.state(), last)
	}
	return all.String()
}

// state says what the test did to the process.
func (s *Server) state() string {
	if s.running() {
		return "running"
	}
	return "paused or dead"
}

// running reports whether the process exists and is not paused.
func (s *Server) running() bool { return s.current().running() }

// running returns those servers that can be asked.
func running(servers []*Server) (up []*Server) {
	for _, s := range servers {
		if s.running() {
			up = append(up, s)
		}
	}
	return up
}

// agreed puts one question to all running servers at once, and returns their
// answer if they have the same.
func agreed[T any](servers []*Server, ask func(*Server) (T, error)) (T, error) {
	var none T
	up := running(servers)
	if len(up) == 0 {
		return none, errors.New("no server runs")
	}
	answers := make(map[*Server]*T, len(up))
	for _, s := range up {
		answers[s] = new(T)
	}
	err := together(up, func(s *Server) (err error) {
		if *answers[s], err = ask(s); err != nil {
			err = fmt.Errorf("%s: %w", s.Addr(), err)
		}
		return err
	})
	if err != nil {
		return none, err
	}
	first := *answers[up[0]]
	for _, s := range up[1:] {
		if other := *answers[s]; !reflect.DeepEqual(first, other) {
			return none, fmt.Errorf("%s says %v, %s says %v", up[0].Addr(), first, s.Addr(), other)
		}
	}
	return first, nil
}
