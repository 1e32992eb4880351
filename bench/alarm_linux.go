package main

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// alarm waits, to within some ten microseconds, and can be closed meanwhile. A
// time.Timer will not do for delays of a millisecond: a Go process with nothing
// else to do sleeps in whole milliseconds on Linux (epoll_wait), so that half a
// millisecond takes more than one, and the network would be the slower the less
// a client does. For a timerfd the kernel wakes the process when it is time.
type alarm struct {
	file    *os.File
	control syscall.RawConn
	spec    unix.ItimerSpec
	failed  error
	setFunc func(fd uintptr) // set, made once
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	a := &alarm{file: os.NewFile(uintptr(fd), "timerfd")}
	a.setFunc = a.set
	a.control, err = a.file.SyscallConn()
	return a, err
}

// set goes through control, which keeps the descriptor from being closed, and
// used for something else, meanwhile.
func (a *alarm) set(fd uintptr) { a.failed = unix.TimerfdSettime(int(fd), 0, &a.spec, nil) }

// wait is for one goroutine at a time.
func (a *alarm) wait(d time.Duration) {
	if d <= 0 { // which a timerfd would take for never
		return
	}
	a.spec.Value = unix.NsecToTimespec(d.Nanoseconds())
	if a.control.Control(a.setFunc) != nil || a.failed != nil {
		return // closed; its user looks at the clock anyway
	}
	var expirations [8]byte
	_, _ = a.file.Read(expirations[:])
}

func (a *alarm) close() { _ = a.file.Close() }
