package redislock

import (
	"fmt"
	"runtime/debug"
)

// strayError is what became of a call while a hook or mock of the client, or a method of
// a wrapper, panicked or called runtime.Goexit in a goroutine of the package. There it
// would end the program, or a goroutine that others wait for. What a caller's own
// goroutine meets goes on there.
//
// Its text has the panic's, and it wraps nothing: an error that was the panic's value
// would say what had become of the request, which nobody knows.
type strayError struct {
	value any // that of the panic; nil: runtime.Goexit
	stack string
}

func (e *strayError) Error() string {
	if e.value == nil {
		return "a hook or mock of the client called runtime.Goexit"
	}
	return fmt.Sprintf("a hook or mock of the client panicked: %v", e.value)
}

// catch runs f, and calls failed if f does not return. It returns after a panic, but the
// goroutine ends after runtime.Goexit, which nothing can stop: what has to be done all
// the same must be done by failed.
func catch(f func(), failed func(*strayError)) {
	returned := false
	defer func() {
		if !returned {
			failed(&strayError{recover(), string(debug.Stack())})
		}
	}()
	f()
	returned = true
}

// log writes the line that the owner of the hook needs.
func (e *strayError) log(to *reports) {
	to.error("redislock: a call of the client did not return", "error", e, "stack", e.stack)
}
