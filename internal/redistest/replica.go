package redistest

import (
	"fmt"
	"testing"
	"time"
)

// ackTimeout is how long replicas may take over saying what they have, before
// they are asked again.
const ackTimeout = 500 * time.Millisecond

// replication makes servers synchronise at once, and notice soon.
var replication = withConfigs(
	"loglevel", "notice",
	"repl-diskless-sync", "yes",
	"repl-diskless-sync-delay", "0",
	"repl-ping-replica-period", "1",
)

// StartReplicated starts a primary and so many replicas of it, see Start. All
// replicas are in sync when it returns, so WAIT counts them. Without
// WithPersistence, Restart of the primary empties the replicas too.
func StartReplicated(t testing.TB, replicas int, opts ...Option) (*Server, []*Server) {
	t.Helper()
	servers := StartMany(t, 1+replicas, append([]Option{replication}, opts...)...)
	for i, s := range servers[1:] { // those that come while another one is served wait for 1 s
		s.replicate(t, servers[0])
		eventually(t, readyTimeout, "replicas in sync", servers, func() error {
			return servers[0].replicated(i + 1)
		})
	}
	return servers[0], servers[1:]
}

// replicate makes s a replica, also after a Restart.
func (s *Server) replicate(t testing.TB, primary *Server) {
	t.Helper()
	s.Do(t, "replicaof", "127.0.0.1", primary.port)
	s.Do(t, "config", "rewrite")
}

// replicated objects unless s is a primary with so many replicas which all have
// what it has.
func (s *Server) replicated(replicas int) error {
	name, online, err := s.role()
	if err != nil {
		return err
	}
	if name != "master" || online != replicas {
		return fmt.Errorf("%s is a %s with %d replicas of %d", s.Addr(), name, online, replicas)
	}
	// WAIT is about all that the primary had replicated when it last served
	// this connection, which was for HELLO.
	have, err := s.try(probeTimeout, "wait", replicas, ackTimeout.Milliseconds())
	if err == nil && have != int64(replicas) {
		err = fmt.Errorf("%v of %d replicas of %s are up to date", have, replicas, s.Addr())
	}
	return err
}

// role returns what s is, master or slave, and of a master how many replicas
// are online.
func (s *Server) role() (name string, replicas int, err error) {
	reply, err := s.try(probeTimeout, "role")
	if err != nil {
		return "", 0, err
	}
	said := reply.([]any)
	if name = said[0].(string); name == "master" {
		replicas = len(said[2].([]any))
	}
	return name, replicas, nil
}

func (s *Server) isPrimary() error {
	name, _, err := s.role()
	if err == nil && name != "master" {
		err = fmt.Errorf("%s is a %s", s.Addr(), name)
	}
	return err
}
