package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// server is a redis-server of our own, on a free port of the loopback interface
// and without persistence.
type server struct {
	addr   string
	dir    string
	cmd    *exec.Cmd
	exited chan struct{}
}

// envBinary names the server binary, in place of redis-server in PATH, as it does
// for the tests of redislock.
const envBinary = "REDISLOCK_REDIS_SERVER"

const (
	bootTimeout = 10 * time.Second
	stopTimeout = 3 * time.Second
	bootTries   = 5 // somebody else may be quicker to take the port
)

func startServer(ctx context.Context) (*server, error) {
	program, err := exec.LookPath(cmp.Or(os.Getenv(envBinary), "redis-server"))
	if err != nil {
		return nil, fmt.Errorf("%w; install it or give the address of one with -redis", err)
	}
	for range bootTries {
		var s *server
		if s, err = bootServer(ctx, program); err == nil {
			return s, nil
		}
	}
	return nil, err
}

func bootServer(ctx context.Context, program string) (*server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "redislock-bench")
	if err != nil {
		return nil, err
	}
	s := &server{addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), dir: dir, exited: make(chan struct{})}
	s.cmd = exec.Command(program, "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir,
		"--save", "", "--appendonly", "no", "--loglevel", "warning")
	s.cmd.Dir = dir
	tie(s.cmd)
	if err := s.cmd.Start(); err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	go func() {
		_ = s.cmd.Wait()
		close(s.exited)
	}()
	if err := s.await(ctx); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// await returns once the server answers, and not another one on its port.
func (s *server) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	client := newClient(s.addr)
	defer client.Close()
	want := fmt.Sprintf("process_id:%d\r\n", s.cmd.Process.Pid)
	for {
		if info, err := client.Info(ctx, "server").Result(); err == nil && strings.Contains(info, want) {
			return nil
		}
		select {
		case <-s.exited:
			return fmt.Errorf("redis-server on %s has ended early", s.addr)
		case <-ctx.Done():
			return fmt.Errorf("redis-server on %s does not answer: %w", s.addr, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// stop returns when the server is gone, and its folder too.
func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.exited:
	case <-time.After(stopTimeout):
		_ = s.cmd.Process.Kill()
		<-s.exited
	}
	_ = os.RemoveAll(s.dir)
}
