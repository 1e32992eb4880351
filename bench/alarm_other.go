//go:build !linux

package main

import (
	"sync"
	"time"
)

// alarm waits, and can be closed meanwhile. How exact it is depends on the
// timers of Go.
type alarm struct {
	timer  *time.Timer
	closed chan struct{}
	once   sync.Once
}

func newAlarm() (*alarm, error) {
	a := &alarm{timer: time.NewTimer(time.Hour), closed: make(chan struct{})}
	a.timer.Stop()
	return a, nil
}

// wait is for one goroutine at a time.
func (a *alarm) wait(d time.Duration) {
	a.timer.Reset(d)
	defer a.timer.Stop()
	select {
	case <-a.timer.C:
	case <-a.closed:
	}
}

func (a *alarm) close() { a.once.Do(func() { close(a.closed) }) }
