package redistest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	slots = 16384
	// manualFailover is how long a replica tries after one CLUSTER FAILOVER. It
	// fails if the others have voted about the same primary too recently.
	manualFailover = 5 * time.Second
)

// clusterNode is what makes a server a node. The time after which a silent node
// is replaced is short, but no busy machine makes a healthy node silent for as
// long. Nothing but the loss of a primary or the test changes who is whose
// replica.
var clusterNode = withConfigs(
	"cluster-enabled", "yes",
	"cluster-config-file", "nodes.conf",
	"cluster-announce-ip", "127.0.0.1",
	"cluster-node-timeout", "1500",
	"cluster-replica-validity-factor", "0",
	"cluster-allow-replica-migration", "no",
	"cluster-require-full-coverage", "no",
)

// Cluster is a Redis Cluster, each node a Server of its own. Pause, Kill and
// Restart its nodes as any Server; they keep port and identity.
//
// Its methods ask the nodes that run, and wait until those agree. They must be
// called from the goroutine of the test t, which fails with the ends of the
// nodes' logs if that takes too long.
type Cluster struct {
	nodes []*Server
}

// StartCluster starts a cluster and returns once all its nodes take commands
// and all replicas are in sync. Each primary has as many replicas. It ends with
// the test, and needs Redis 7, see Start.
//
// With the settings of StartCluster, which opts may change, a lost primary is
// replaced after some 3 s, and the slots of others work meanwhile.
func StartCluster(t testing.TB, primaries, replicasOfEach int, opts ...Option) *Cluster {
	t.Helper()
	opts = append([]Option{replication, clusterNode}, opts...)
	c := &Cluster{nodes: StartMany(t, primaries*(1+replicasOfEach), opts...)}
	c.assignSlots(t, primaries)
	c.meet(t)
	for i, s := range c.nodes[primaries:] {
		s.Do(t, "cluster", "replicate", c.nodes[i%primaries].id(t))
	}
	c.WaitReady(t, readyTimeout)
	return c
}

func (c *Cluster) assignSlots(t testing.TB, primaries int) {
	t.Helper()
	for i, s := range c.nodes[:primaries] {
		s.Do(t, "cluster", "addslotsrange", slots*i/primaries, slots*(i+1)/primaries-1)
		s.Do(t, "cluster", "set-config-epoch", i+1) // else they settle it one by one, later
	}
}

// meet makes every node known to every other: to wait for gossip takes longer.
func (c *Cluster) meet(t testing.TB) {
	t.Helper()
	var ids []string
	for i, s := range c.nodes {
		ids = append(ids, s.id(t))
		for _, other := range c.nodes[:i] {
			s.Do(t, "cluster", "meet", "127.0.0.1", other.port)
		}
	}
	eventually(t, readyTimeout, "cluster nodes know each other", c.nodes, func() error {
		return together(c.nodes, func(s *Server) error { return s.knows(ids) })
	})
}

func (s *Server) id(t testing.TB) string {
	t.Helper()
	return s.Do(t, "cluster", "myid").(string)
}

func (s *Server) knows(ids []string) error {
	known, err := s.try(probeTimeout, "cluster", "nodes")
	if err != nil {
		return err
	}
	for _, id := range ids {
		if !strings.Contains("\n"+known.(string), "\n"+id) { // in a handshake it has a passing one
			return fmt.Errorf("%s does not know %s:\n%s", s.Addr(), id, known)
		}
	}
	return nil
}

// Nodes returns all nodes, those that were primaries at the start first.
func (c *Cluster) Nodes() []*Server { return slices.Clone(c.nodes) }

// Client returns a client of the cluster with go-redis's defaults, changed by
// opts. It is closed when t ends.
func (c *Cluster) Client(t testing.TB, opts ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	t.Helper()
	o := &redis.ClusterOptions{Password: c.nodes[0].password}
	for _, s := range c.nodes {
		o.Addrs = append(o.Addrs, s.Addr())
	}
	for _, opt := range opts {
		opt(o)
	}
	client := redis.NewClusterClient(o)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Slot returns the hash slot of a key.
func (c *Cluster) Slot(t testing.TB, key string) int {
	t.Helper()
	up := running(c.nodes)
	if len(up) == 0 {
		t.Fatalf("redistest: no node of the cluster runs")
	}
	return int(up[0].Do(t, "cluster", "keyslot", key).(int64))
}

// Primary returns the primary that owns the slot of key. While a lost primary
// is not yet replaced, that is still the lost one.
func (c *Cluster) Primary(t testing.TB, key string) *Server {
	t.Helper()
	return c.waitForOwner(t, key, readyTimeout, func(*Server) error { return nil })
}

// WaitForPrimary waits until another node than old owns the slot of key and
// serves it, and returns that node.
func (c *Cluster) WaitForPrimary(t testing.TB, key string, old *Server, within time.Duration) *Server {
	t.Helper()
	return c.waitForOwner(t, key, within, func(owner *Server) error {
		if owner == old {
			return fmt.Errorf("%s is still the primary", owner.Addr())
		}
		return owner.serves()
	})
}

// Replicas returns the replicas of a primary that are in working order, so far
// as the cluster knows: it takes its time to notice a lost one.
func (c *Cluster) Replicas(t testing.TB, primary *Server) []*Server {
	t.Helper()
	var l layout
	eventually(t, readyTimeout, "replicas of "+primary.Addr(), c.nodes, func() (err error) {
		l, err = c.layout()
		return err
	})
	return c.named(l.replicas(primary.Addr()))
}

// Failover makes a replica of the primary that owns the slot of key take its
// place, both being healthy (CLUSTER FAILOVER), and returns it once the whole
// cluster knows. The old primary becomes its replica. It takes less than 1 s,
// but some 6 s for a primary that was replaced and came back within the last 3
// s.
func (c *Cluster) Failover(t testing.TB, key string) *Server {
	t.Helper()
	old := c.Primary(t, key)
	replica := c.replica(t, old)
	var asked time.Time
	return c.waitForOwner(t, key, readyTimeout, func(owner *Server) error {
		if owner == replica {
			return owner.serves()
		}
		if time.Since(asked) > manualFailover {
			asked = time.Now()
			if _, err := replica.try(probeTimeout, "cluster", "failover"); err != nil {
				return err
			}
		}
		return fmt.Errorf("%s is still the primary", owner.Addr())
	})
}

// replica returns a replica that runs, as soon as there is one.
func (c *Cluster) replica(t testing.TB, primary *Server) (replica *Server) {
	t.Helper()
	eventually(t, readyTimeout, "replica of "+primary.Addr(), c.nodes, func() error {
		l, err := c.layout()
		if err != nil {
			return err
		}
		up := running(c.named(l.replicas(primary.Addr())))
		if len(up) == 0 {
			return fmt.Errorf("none: %v", l)
		}
		replica = up[0]
		return nil
	})
	return replica
}

// WaitReady waits until every node runs, agrees with all others, and takes
// commands, with all replicas in sync. So it is after StartCluster, and again
// some time after a lost node was restarted.
func (c *Cluster) WaitReady(t testing.TB, within time.Duration) {
	t.Helper()
	eventually(t, within, "cluster ready", c.nodes, func() error {
		l, err := c.layout()
		if err != nil {
			return err
		}
		return errors.Join(l.complete(len(c.nodes)), together(c.nodes, func(s *Server) error {
			if l.isPrimary(s.Addr()) {
				return errors.Join(s.serves(), s.replicated(len(l.replicas(s.Addr()))))
			}
			return s.serves()
		}))
	})
}

// waitForOwner returns the owner of the slot of key, once all running nodes
// name the same and accept does not object to it.
func (c *Cluster) waitForOwner(t testing.TB, key string, within time.Duration, accept func(*Server) error) *Server {
	t.Helper()
	slot := c.Slot(t, key)
	var owner *Server
	eventually(t, within, fmt.Sprintf("primary of slot %d", slot), c.nodes, func() error {
		addr, err := agreed(c.nodes, func(s *Server) (string, error) {
			l, err := s.layout()
			return l.primary(slot), err
		})
		if err != nil {
			return err
		}
		named := c.named([]string{addr})
		if len(named) == 0 {
			return fmt.Errorf("nobody owns it")
		}
		owner = named[0]
		return accept(owner)
	})
	return owner
}

// layout returns what all running nodes know alike.
func (c *Cluster) layout() (layout, error) { return agreed(c.nodes, (*Server).layout) }

// named returns the nodes with these addresses.
func (c *Cluster) named(addrs []string) (found []*Server) {
	for _, s := range c.nodes {
		if slices.Contains(addrs, s.Addr()) {
			found = append(found, s)
		}
	}
	return found
}

// serves objects unless the node takes commands.
func (s *Server) serves() error {
	info, err := s.try(probeTimeout, "cluster", "info")
	if err == nil && !strings.Contains(info.(string), "cluster_state:ok") {
		err = fmt.Errorf("%s: %s", s.Addr(), info)
	}
	return err
}
