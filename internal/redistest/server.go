package redistest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	bootTimeout  = 20 * time.Second // loading an append-only file included
	probeTimeout = time.Second
	adminTimeout = 30 * time.Second
	probeTick    = 2 * time.Millisecond
	bootTries    = 10
	configFile   = "redis.conf"
)

var errPortTaken = errors.New("port taken")

// Option changes how Start starts a server.
type Option func(*Server)

// WithConfig sets a redis.conf directive, as on the command line:
// WithConfig("maxmemory", "1mb"). A requirepass is also used by Do and Client,
// and between servers that work together.
func WithConfig(directive string, values ...string) Option {
	return func(s *Server) {
		s.config = append(append(s.config, "--"+directive), values...)
		if directive == "requirepass" && len(values) == 1 {
			s.password = values[0]
			s.config = append(s.config, "--masterauth", s.password)
		}
	}
}

// withConfigs sets one directive with one value after the other.
func withConfigs(pairs ...string) Option {
	return func(s *Server) {
		for pair := range slices.Chunk(pairs, 2) {
			WithConfig(pair[0], pair[1])(s)
		}
	}
}

// WithPersistence keeps data over Kill and Restart: append-only file, written
// to disk before every reply.
func WithPersistence() Option {
	return func(s *Server) {
		WithConfig("appendonly", "yes")(s)
		WithConfig("appendfsync", "always")(s)
	}
}

// Server is a redis-server process of its own on a loopback port, without
// persistence unless asked for. Its methods are safe for concurrent use; those
// that find the process in the wrong state fail the test that started it.
type Server struct {
	t        testing.TB
	bin      string
	dir      string
	port     int
	password string
	base     []string // what every server of this version gets
	config   []string // what the test asked for
	file     string   // what its configuration file says at first

	mu   sync.Mutex
	proc *process
}

// Start starts a redis-server and returns once it answers. It ends with the
// test, and its log is shown if the test failed. Where there is no redis-server
// the test is skipped, see Require.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	return StartMany(t, 1, opts...)[0]
}

// StartMany starts n servers at once that know nothing of each other, see
// Start.
func StartMany(t testing.TB, n int, opts ...Option) []*Server {
	t.Helper()
	servers := newServers(t, n, opts)
	t.Cleanup(func() { cleanup(servers) })
	if err := together(servers, (*Server).bootAnywhere); err != nil {
		t.Fatalf("redistest: start: %v", err)
	}
	return servers
}

func newServers(t testing.TB, n int, opts []Option) []*Server {
	t.Helper()
	bin := findServer(t)
	base, err := baseConfig(bin)
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	servers := make([]*Server, n)
	for i := range servers {
		s := &Server{t: t, bin: bin, dir: t.TempDir(), base: base}
		for _, opt := range opts {
			opt(s)
		}
		// Servers that others give orders, as Sentinel does, keep them here.
		if err := os.WriteFile(filepath.Join(s.dir, configFile), []byte(s.file), 0o600); err != nil {
			t.Fatalf("redistest: %v", err)
		}
		servers[i] = s
	}
	return servers
}

// together does f with all servers at once and waits for the last.
func together(servers []*Server, f func(*Server) error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(servers))
	for i, s := range servers {
		wg.Go(func() { errs[i] = f(s) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func cleanup(servers []*Server) {
	_ = together(servers, func(s *Server) error {
		if p := s.current(); p != nil {
			p.stop()
		}
		leavePort(s.port)
		return nil
	})
	for _, s := range servers {
		if s.t.Failed() {
			s.t.Logf("log of redis-server %s:\n%s", s.Addr(), s.log(0))
		}
	}
}

func baseConfig(bin string) ([]string, error) {
	major, err := majorVersion(bin)
	if err != nil {
		return nil, err
	}
	config := []string{
		"--bind", "127.0.0.1", "--daemonize", "no", "--loglevel", "warning", "--logfile", "",
		"--save", "", "--appendonly", "no",
	}
	if major >= 7 { // a paused replica must not keep its primary from stopping
		config = append(config, "--enable-debug-command", "local", "--shutdown-timeout", "0")
	}
	return config, nil
}

// Addr returns host:port, the same for the server's whole life.
func (s *Server) Addr() string { return loopback(s.port) }

// PID returns the id of the present process, or of the last one.
func (s *Server) PID() int { return s.current().pid() }

// Pause stops the process (SIGSTOP): the kernel still accepts connections and
// bytes, nothing is answered. It returns once the process stands still.
func (s *Server) Pause() { s.current().halt() }

// Resume lets a paused process go on (SIGCONT).
func (s *Server) Resume() { s.current().resume() }

// Kill ends the process at once (SIGKILL), paused or not, and returns when it
// is gone. Its connections are reset, and new ones are refused until Restart.
func (s *Server) Kill() { s.current().kill() }

// Restart stops the process if it runs (SIGTERM) and starts it again with the
// same port, directory and settings. It returns once the new process has loaded
// its data and answers. Settings made with CONFIG SET or ACL SETUSER are gone
// but for those that CONFIG REWRITE kept, and data too without WithPersistence.
// A node of a cluster, a replica and a sentinel are again what they were.
func (s *Server) Restart() {
	s.t.Helper()
	s.current().stop()
	var err error
	for range bootTries { // the port cannot be chosen anew: others have to let go of it
		if err = s.boot(); !errors.Is(err, errPortTaken) {
			break
		}
	}
	if err != nil {
		s.t.Fatalf("redistest: restart: %v", err)
	}
}

// Client returns a client with go-redis's defaults, changed by opts. It is
// closed when t ends.
func (s *Server) Client(t testing.TB, opts ...func(*redis.Options)) *redis.Client {
	t.Helper()
	return newClient(t, s.Addr(), append([]func(*redis.Options){
		func(o *redis.Options) { o.Password = s.password },
	}, opts...)...)
}

// NoRetry is an option for Client: each command is sent once, and the client
// makes no requests of its own but HELLO, so that a test can count.
func NoRetry(o *redis.Options) {
	o.MaxRetries = -1
	o.DialerRetries = 1
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

func newClient(t testing.TB, addr string, opts ...func(*redis.Options)) *redis.Client {
	o := &redis.Options{Addr: addr}
	for _, opt := range opts {
		opt(o)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Do runs one command over a connection of its own, as the default user, and
// returns the reply as RESP2 has it: string, int64, []any, or nil. An error
// reply fails t. It waits up to 30 s, so DEBUG SLEEP works. Nothing of it
// stays: CLIENT LIST shows the connections of the test alone.
func (s *Server) Do(t testing.TB, args ...any) any {
	t.Helper()
	reply, err := s.try(adminTimeout, args...)
	if err != nil {
		t.Fatalf("redistest: %v: %v", args, err)
	}
	return reply
}

// try is Do for those who can do without the reply.
func (s *Server) try(timeout time.Duration, args ...any) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	o := &redis.Options{Addr: s.Addr(), Password: s.password, Protocol: 2, ReadTimeout: timeout}
	NoRetry(o)
	c := redis.NewClient(o)
	defer c.Close()
	reply, err := c.Do(ctx, args...).Result()
	if errors.Is(err, redis.Nil) {
		err = nil
	}
	return reply, err
}

func (s *Server) current() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

// bootAnywhere starts the server on the first port that turns out to be free.
func (s *Server) bootAnywhere() error {
	var err error
	for range bootTries {
		if s.port, err = takePort(); err != nil {
			return err
		}
		if err = s.boot(); !errors.Is(err, errPortTaken) {
			return err
		}
		leavePort(s.port)
	}
	return err
}

// boot starts one process and waits until it answers.
func (s *Server) boot() error {
	log, err := os.OpenFile(s.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	info, err := log.Stat()
	if err != nil {
		return err
	}
	args := append([]string{configFile, "--port", strconv.Itoa(s.port), "--dir", s.dir}, s.base...)
	p, err := spawn(s.bin, s.dir, log, append(args, s.config...)...)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.proc = p
	s.mu.Unlock()
	return s.await(p, info.Size())
}

// await returns once the process answers, or why it does not. The log of this
// process begins at logStart.
func (s *Server) await(p *process, logStart int64) error {
	timeout := time.NewTimer(bootTimeout)
	defer timeout.Stop()
	tick := time.NewTicker(probeTick)
	defer tick.Stop()
	for !s.answers(p.pid()) {
		select {
		case <-tick.C:
		case <-p.exited:
			return s.whyExited(logStart)
		case <-timeout.C:
			p.kill()
			return fmt.Errorf("no answer within %v: %s", bootTimeout, s.log(logStart))
		}
	}
	return nil
}

func (s *Server) whyExited(logStart int64) error {
	log := s.log(logStart)
	if bytes.Contains(log, []byte("Address already in use")) {
		return fmt.Errorf("%w: %s", errPortTaken, s.Addr())
	}
	return fmt.Errorf("redis-server exited: %s", log)
}

// answers reports whether the process with this id, and not another server that
// was quicker to take the port, serves commands.
func (s *Server) answers(pid int) bool {
	conn, err := net.DialTimeout("tcp", s.Addr(), probeTimeout)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(probeTimeout))
	w := newWire(conn)
	if s.password != "" {
		_, _ = ask(conn, w, "AUTH", s.password)
	}
	pong, err := ask(conn, w, "PING") // an error while data are loaded
	if err != nil || pong != "+PONG\r\n" {
		return false
	}
	info, err := ask(conn, w, "INFO", "server")
	return err == nil && strings.Contains(info, fmt.Sprintf("\nprocess_id:%d\r", pid))
}

func (s *Server) logPath() string { return filepath.Join(s.dir, "redis.log") }

func (s *Server) log(from int64) []byte {
	log, err := os.ReadFile(s.logPath())
	if err != nil {
		return []byte(err.Error())
	}
	return bytes.TrimSpace(log[min(from, int64(len(log))):])
}
