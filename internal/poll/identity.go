package poll

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// IdentifyLimit is how long Identify waits for the run ids.
const IdentifyLimit = time.Second

// servers knows the run id of each node of a quorum. Two nodes that are the
// same server would give two votes for one key, and so make a majority of what
// is none.
type servers struct {
	mu    sync.Mutex
	known map[int]string // run ids by node; empty: the server has none
}

// Identify asks all nodes for their run ids. Those that do not answer in time
// are left for later.
func (ns *Nodes) Identify() error {
	ctx, cancel := context.WithTimeout(context.Background(), IdentifyLimit)
	defer cancel()
	results := make(chan error, len(ns.all))
	for _, n := range ns.all {
		go wire.Catch(func() { results <- n.identify(ctx) }, func(err *wire.StrayError) {
			err.Log(ns.log)
			results <- fmt.Errorf("%s: %w", n, err)
		})
	}
	for range ns.all {
		select {
		case err := <-results:
			if err != nil && !wire.IsTransient(err) {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

func (n *node) identify(ctx context.Context) error {
	err := n.of.verify(ctx, n)
	n.remember(err)
	if err == nil {
		return nil
	}
	var unasked *unaskedError
	if errors.As(err, &unasked) {
		err = unasked.err // it was asked, here
	}
	return fmt.Errorf("%s: %w", n, err)
}

// verify finds out whether a node may vote, if that is not known yet.
func (ns *Nodes) verify(ctx context.Context, n *node) error {
	if ns.servers.knows(n.index) {
		return nil
	}
	id, err := n.runID(ctx)
	if err == nil {
		err = ns.admit(n, id)
	}
	if err == nil && ctx.Err() != nil {
		err = ctx.Err() // it came too late for what was to be asked
	}
	if err != nil {
		return &unaskedError{err}
	}
	return nil
}

func (s *servers) knows(node int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.known[node]
	return known
}

// sameServerError says that two nodes of a quorum are one server. It counts as
// an answer of the server: waiting does not mend it.
type sameServerError struct{ first *node }

func (e *sameServerError) Error() string {
	return fmt.Sprintf("same server as %s, by its run id", e.first)
}

// RedisError makes it a redis.Error.
func (e *sameServerError) RedisError() {}

func (ns *Nodes) admit(n *node, id string) error {
	s := &ns.servers
	s.mu.Lock()
	defer s.mu.Unlock()
	for other, known := range s.known {
		if id != "" && known == id && other != n.index {
			return &sameServerError{ns.all[other]}
		}
	}
	if s.known == nil {
		s.known = make(map[int]string)
	}
	s.known[n.index] = id
	return nil
}

// runID asks a server for its run id. One that does not know the question (not
// every server that speaks the protocol is Redis) has none, and is taken at its
// word. One that does not permit it could tell: that is an error.
func (n *node) runID(ctx context.Context) (string, error) {
	cmd := wire.NewOnce(ctx, "info", "server")
	err := n.Client.Process(ctx, cmd)
	var answer redis.Error
	switch {
	case err == nil:
	case errors.As(err, &answer) && !wire.IsOutage(err) && !wire.HasState(answer, "NOPERM"):
		return "", nil
	default:
		return "", fmt.Errorf("INFO: %w", err)
	}
	text, _ := cmd.Text()
	for line := range strings.Lines(text) {
		if id, found := strings.CutPrefix(line, "run_id:"); found {
			return strings.TrimSpace(id), nil
		}
	}
	return "", nil
}
