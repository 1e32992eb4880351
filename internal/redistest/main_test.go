package redistest

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// bound is how long a test waits for what must come at once.
const bound = 10 * time.Second

// blink is how long a test looks on to see that nothing happens.
const blink = 50 * time.Millisecond

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	t.Cleanup(cancel)
	return ctx
}

// await fails the test if c brings nothing in time.
func await[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(bound):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

// nothingFrom fails the test if c brings something while one looks.
func nothingFrom[T any](t testing.TB, c <-chan T) {
	t.Helper()
	select {
	case v := <-c:
		t.Fatalf("unexpected: %v", v)
	case <-time.After(blink):
	}
}

// inBackground runs f and returns its result on a channel.
func inBackground[T any](f func() T) <-chan T {
	c := make(chan T, 1)
	go func() { c <- f() }()
	return c
}

// actor plays the test whose end is tested.
type actor struct {
	testing.TB
	mu       sync.Mutex
	cleanups []func()
	said     string
	failed   bool
	skipped  bool
}

// act runs f as a test of its own would be run, Cleanups included.
func act(t *testing.T, f func(t testing.TB)) *actor {
	a := &actor{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer a.cleanup()
		f(a)
	}()
	<-done
	return a
}

func (a *actor) Cleanup(f func()) { a.cleanups = append(a.cleanups, f) }

func (a *actor) cleanup() {
	for i := len(a.cleanups) - 1; i >= 0; i-- {
		a.cleanups[i]()
	}
}

func (a *actor) say(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.said += fmt.Sprintf(format, args...) + "\n"
}

func (a *actor) Logf(format string, args ...any) { a.say(format, args...) }

func (a *actor) Errorf(format string, args ...any) {
	a.say(format, args...)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed = true
}

func (a *actor) Fatalf(format string, args ...any) {
	a.Errorf(format, args...)
	runtime.Goexit()
}

func (a *actor) FailNow() {
	a.Errorf("failed")
	runtime.Goexit()
}

func (a *actor) Skipf(format string, args ...any) {
	a.say(format, args...)
	a.skipped = true
	runtime.Goexit()
}

func (a *actor) Failed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failed
}
