package wire

import (
	"fmt"
	"runtime/debug"
)

// StrayError is what became of a call while a hook or mock of the client, or a
// method of a wrapper, panicked or called runtime.Goexit in a goroutine of the
// package. There it would end the program, or a goroutine that others wait for.
// What a caller's own goroutine meets goes on there.
//
// Its text has the panic's, and it wraps nothing: an error that was the panic's
// value would say what had become of the request, which nobody knows.
type StrayError struct {
	value any // that of the panic; nil: runtime.Goexit
	stack string
}

func (e *StrayError) Error() string {
	if e.value == nil {
		return "a hook or mock of the client called runtime.Goexit"
	}
	return fmt.Sprintf("a hook or mock of the client panicked: %v", e.value)
}

// Catch runs f, and calls failed if f does not return. It returns after a
// panic, but the goroutine ends after runtime.Goexit, which nothing can stop:
// what has to be done all the same must be done by failed.
func Catch(f func(), failed func(*StrayError)) {
	returned := false
	defer func() {
		if !returned {
			failed(&StrayError{recover(), string(debug.Stack())})
		}
	}()
	f()
	returned = true
}

// MaybeExecuted is true: nobody knows.
func (e *StrayError) MaybeExecuted() bool { return true }

// Transient is false: a panic is to be heard of at once.
func (e *StrayError) Transient() bool { return false }

// Outage is false as well.
func (e *StrayError) Outage() bool { return false }

// Log is where what somebody has to mend is reported. It does not block.
type Log interface {
	Error(message string, args ...any)
}

// Log writes the line that the owner of the hook needs.
func (e *StrayError) Log(to Log) {
	to.Error("redislock: a call of the client did not return", "error", e, "stack", e.stack)
}
