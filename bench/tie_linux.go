package main

import (
	"os/exec"
	"syscall"
)

// tie makes the kernel end the child when this process dies without a chance to
// do it. The signal really follows the thread that forked; Go ends a thread only
// with a goroutine that is locked to it, of which there is none here.
func tie(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
