package redistest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

const (
	signals = true
	sigStop = syscall.SIGSTOP
	sigCont = syscall.SIGCONT
)

// tie makes the kernel kill the child when this process dies, since a test
// binary that times out or is killed runs no Cleanup. The signal really follows
// the thread that forked; Go ends a thread only when a goroutine exits while
// locked to it, which nothing here does.
func tie(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// stopped reports whether the process has come to a halt: kill(2) returns while
// the target may still be running on another core.
func stopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, found := bytes.Cut(stat, []byte(") "))
	return err != nil || (found && bytes.HasPrefix(state, []byte("T")))
}
