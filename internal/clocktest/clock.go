// Package clocktest has a clock for tests that suspend the machine.
package clocktest

import (
	"sync/atomic"
	"time"
	"unsafe"
)

// Clock is that of a machine which can be suspended. The zero value shows the
// time.
type Clock struct{ gained atomic.Int64 }

// Now is the time: its wall clock reading is ahead of the monotonic one by what
// the machine was suspended.
func (c *Clock) Now() time.Time {
	return ShiftWall(time.Now(), time.Duration(c.gained.Load()))
}

// Suspend has the wall clock gain whole seconds on the monotonic clock. A
// negative d sets it back.
func (c *Clock) Suspend(d time.Duration) { c.gained.Add(int64(d)) }

// ShiftWall shifts the wall clock reading of a time by whole seconds and leaves
// the monotonic clock reading as it is. There is no other way to make such a
// Time than to suspend the machine. A time without a monotonic clock reading,
// as in a synctest bubble, is shifted as a whole.
func ShiftWall(at time.Time, d time.Duration) time.Time {
	if at == at.Round(0) {
		return at.Add(d)
	}
	shifted := at
	(*struct {
		wall uint64
		ext  int64
		loc  *time.Location
	})(unsafe.Pointer(&shifted)).wall += uint64(d/time.Second) << 30
	if shifted.Sub(at) != 0 || shifted.Round(0).Sub(at.Round(0)) != d {
		panic("clocktest: package time has changed, or the shift is no multiple of a second")
	}
	return shifted
}
