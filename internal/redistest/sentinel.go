package redistest

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// PrimaryName is the name under which sentinels watch their primary.
	PrimaryName = "primary"

	sentinels = 3
	quorum    = 2
)

// Sentinel is a primary and its replicas, and three sentinels that watch them.
// Pause, Kill and Restart each as any Server. A primary that is silent for a
// second is replaced, after 2 to 3 s in all, if two sentinels run.
//
// Its methods ask the sentinels that run, and wait until those agree. They must
// be called from the goroutine of the test t, which fails with the ends of all
// logs if that takes too long.
type Sentinel struct {
	servers   []*Server
	sentinels []*Server
}

// StartSentinel starts a primary with so many replicas, see StartReplicated,
// and three sentinels. It returns once all sentinels know of all servers and of
// each other, so that a failover can succeed.
func StartSentinel(t testing.TB, replicas int, opts ...Option) *Sentinel {
	t.Helper()
	primary, others := StartReplicated(t, replicas, opts...)
	d := &Sentinel{servers: append([]*Server{primary}, others...)}
	d.sentinels = StartMany(t, sentinels, sentinelOf(primary))
	for _, s := range d.sentinels {
		// By default they look for each other every 2 s, and at the servers
		// every 10 s. Redis 6 cannot do it faster.
		_, _ = s.try(probeTimeout, "sentinel", "debug", "publish-period", "200", "info-period", "500")
	}
	d.WaitReady(t, readyTimeout)
	return d
}

// sentinelOf is what makes a server a sentinel. It keeps what it knows in its
// configuration file.
func sentinelOf(primary *Server) Option {
	var file strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&file, "sentinel "+format+"\n", args...) }
	say("monitor %s 127.0.0.1 %d %d", PrimaryName, primary.port, quorum)
	say("down-after-milliseconds %s 1000", PrimaryName)
	say("failover-timeout %s 3000", PrimaryName)
	if primary.password != "" {
		say("auth-pass %s %s", PrimaryName, primary.password)
	}
	return func(s *Server) {
		s.file = file.String()
		s.config = append(s.config, "--loglevel", "notice", "--sentinel")
	}
}

// Servers returns the primary and the replicas, the first primary first.
func (d *Sentinel) Servers() []*Server { return slices.Clone(d.servers) }

// Sentinels returns the sentinels.
func (d *Sentinel) Sentinels() []*Server { return slices.Clone(d.sentinels) }

// Client returns a client that asks the sentinels for the primary, with
// go-redis's defaults, changed by opts. It is closed when t ends.
func (d *Sentinel) Client(t testing.TB, opts ...func(*redis.FailoverOptions)) *redis.Client {
	t.Helper()
	o := &redis.FailoverOptions{MasterName: PrimaryName, Password: d.servers[0].password}
	for _, s := range d.sentinels {
		o.SentinelAddrs = append(o.SentinelAddrs, s.Addr())
	}
	for _, opt := range opts {
		opt(o)
	}
	client := redis.NewFailoverClient(o)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Primary returns the primary. While a lost one is not yet replaced, that is
// still the lost one.
func (d *Sentinel) Primary(t testing.TB) *Server {
	t.Helper()
	return d.waitForPrimary(t, readyTimeout, func(*Server) error { return nil })
}

// WaitForPrimary waits until another server than old is the primary and takes
// writes, and returns it.
func (d *Sentinel) WaitForPrimary(t testing.TB, old *Server, within time.Duration) *Server {
	t.Helper()
	return d.waitForPrimary(t, within, func(primary *Server) error {
		if primary == old {
			return fmt.Errorf("%s is still the primary", old.Addr())
		}
		return primary.isPrimary()
	})
}

// Failover makes a replica take the place of the primary, both being healthy
// (SENTINEL FAILOVER), and returns it once all sentinels know. The old primary
// becomes its replica.
func (d *Sentinel) Failover(t testing.TB) *Server {
	t.Helper()
	old := d.Primary(t)
	asked := false
	return d.waitForPrimary(t, readyTimeout, func(primary *Server) error {
		if primary != old {
			return primary.isPrimary()
		}
		if !asked { // refused while a failover goes on, and while no replica is good enough
			_, err := running(d.sentinels)[0].try(probeTimeout, "sentinel", "failover", PrimaryName)
			if err != nil {
				return err
			}
			asked = true
		}
		return fmt.Errorf("%s is still the primary", old.Addr())
	})
}

// WaitReady waits until every server and sentinel runs, with all replicas in
// sync and all sentinels knowing of everybody. So it is after StartSentinel,
// and again some time after a lost server was restarted.
func (d *Sentinel) WaitReady(t testing.TB, within time.Duration) {
	t.Helper()
	replicas := len(d.servers) - 1
	eventually(t, within, "sentinels ready", d.all(), func() error {
		if len(running(d.all())) < len(d.all()) {
			return fmt.Errorf("not all run")
		}
		err := together(d.sentinels, func(s *Server) error { return s.watches(replicas) })
		if err != nil {
			return err
		}
		primary, err := d.primary()
		if err != nil {
			return err
		}
		return primary.replicated(replicas)
	})
}

func (d *Sentinel) waitForPrimary(t testing.TB, within time.Duration, accept func(*Server) error) *Server {
	t.Helper()
	var primary *Server
	eventually(t, within, "primary of the sentinels", d.all(), func() (err error) {
		if primary, err = d.primary(); err != nil {
			return err
		}
		return accept(primary)
	})
	return primary
}

// primary returns the server that all running sentinels name.
func (d *Sentinel) primary() (*Server, error) {
	addr, err := agreed(d.sentinels, func(s *Server) (string, error) {
		reply, err := s.try(probeTimeout, "sentinel", "get-master-addr-by-name", PrimaryName)
		if err != nil || reply == nil {
			return "", err
		}
		said := reply.([]any)
		return net.JoinHostPort(said[0].(string), said[1].(string)), nil
	})
	if err != nil {
		return nil, err
	}
	for _, s := range d.servers {
		if s.Addr() == addr {
			return s, nil
		}
	}
	return nil, fmt.Errorf("the primary is said to be %q", addr)
}

func (d *Sentinel) all() []*Server { return append(d.Servers(), d.sentinels...) }

// watches objects unless the sentinel sees a healthy primary, so many healthy
// replicas, and its colleagues.
func (s *Server) watches(replicas int) error {
	reply, err := s.try(probeTimeout, "sentinel", "master", PrimaryName)
	if err != nil {
		return err
	}
	primary := fields(reply)
	if primary["flags"] != "master" || primary["num-other-sentinels"] != fmt.Sprint(sentinels-1) {
		return fmt.Errorf("sentinel %s: %v", s.Addr(), primary)
	}
	if reply, err = s.try(probeTimeout, "sentinel", "replicas", PrimaryName); err != nil {
		return err
	}
	healthy := 0
	for _, one := range reply.([]any) {
		if replica := fields(one); replica["flags"] == "slave" && replica["master-link-status"] == "ok" {
			healthy++
		}
	}
	if healthy != replicas {
		return fmt.Errorf("sentinel %s: %d of %d replicas are healthy: %v", s.Addr(), healthy, replicas, reply)
	}
	return nil
}

// fields makes a map of names and values that follow each other.
func fields(reply any) map[string]string {
	said := reply.([]any)
	m := make(map[string]string, len(said)/2)
	for i := 0; i+1 < len(said); i += 2 {
		name, _ := said[i].(string)
		m[name], _ = said[i+1].(string)
	}
	return m
}
