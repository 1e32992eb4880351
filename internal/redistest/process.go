package redistest

import (
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"
)

// stopGrace is how long a process may take over SIGTERM before it is killed.
const stopGrace = 3 * time.Second

// process is one child process and its end. Its methods are safe for concurrent
// use and do nothing once the process is gone.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed once the process is gone and reaped
	halted atomic.Bool
}

// spawn starts a child that writes both its streams to log.
func spawn(bin, dir string, log *os.File, args ...string) (*process, error) {
	cmd := exec.Command(bin, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	tie(cmd)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, exited: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended stands in the log
		close(p.exited)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) signal(sig os.Signal) { _ = p.cmd.Process.Signal(sig) }

// halt stops the process where it stands and returns when it stands.
func (p *process) halt() {
	p.halted.Store(true)
	p.signal(sigStop)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !stopped(p.pid()) {
		select {
		case <-tick.C:
		case <-p.exited:
			return
		}
	}
}

func (p *process) resume() {
	p.signal(sigCont)
	p.halted.Store(false)
}

// running reports whether the process is there and not halted.
func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return !p.halted.Load()
	}
}

// stop ends the process: politely, then not.
func (p *process) stop() {
	p.signal(syscall.SIGTERM)
	p.resume() // a halted process sees SIGTERM only once it runs again
	grace := time.NewTimer(stopGrace)
	defer grace.Stop()
	select {
	case <-p.exited:
	case <-grace.C:
		p.kill()
	}
}

// kill ends the process at once, also a halted one, and waits until it is gone.
func (p *process) kill() {
	p.signal(os.Kill)
	<-p.exited
}
