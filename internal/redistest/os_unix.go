//go:build unix && !linux

package redistest

import (
	"os/exec"
	"syscall"
)

const (
	signals = true
	sigStop = syscall.SIGSTOP
	sigCont = syscall.SIGCONT
)

func tie(*exec.Cmd) {}

func stopped(int) bool { return true }
