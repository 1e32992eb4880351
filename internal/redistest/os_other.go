//go:build !unix

package redistest

import (
	"os/exec"
	"syscall"
)

const (
	signals = false // Require skips
	sigStop = syscall.Signal(0)
	sigCont = syscall.Signal(0)
)

func tie(*exec.Cmd) {}

func stopped(int) bool { return true }
