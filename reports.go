package redislock

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"time"
)

const (
	// reportsKept bounds the lines that wait for a logger which does not keep
	// up.
	reportsKept = 1 << 15
	// reportPatience is how long a call waits until the log has the line that
	// it has reported: the program may end when it returns. A slower logger
	// delays nothing more.
	reportPatience = 250 * time.Millisecond
	// reportGrace is the same after the end of the caller's ctx.
	reportGrace = 10 * time.Millisecond
)

// reports brings a Locker's lines to its logger, in the order in which they
// came, and with them those of what it sends requests with. The handler of the
// logger is code of the caller and may take its time. Nothing that has other
// work waits for it: a timer that ends a thousand locks, the first in a line,
// the listener of an inbox. So one goroutine calls it, which ends when there
// are no more lines. (A goroutine for each line would need no queue, but lose
// the order.)
type reports struct {
	logger *slog.Logger

	mu      sync.Mutex
	lines   []*report
	current *report // in the hands of the handler
	writing bool    // there is a goroutine
	left    int     // lines that found no room
}

// report is one line.
type report struct {
	record  slog.Record
	written chan struct{} // closed when the handler has it; nil if nobody waits for that
}

// warn reports what a person should look into.
func (rs *reports) warn(message string, args ...any) { rs.report(slog.LevelWarn, message, args) }

// Error reports what a person has to mend.
func (rs *reports) Error(message string, args ...any) { rs.report(slog.LevelError, message, args) }

func (rs *reports) report(level slog.Level, message string, args []any) {
	var caller [1]uintptr
	runtime.Callers(3, caller[:])
	record := slog.NewRecord(time.Now(), level, message, caller[0])
	record.Add(args...)
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if len(rs.lines) == reportsKept {
		rs.left++
		return
	}
	rs.lines = append(rs.lines, &report{record: record})
	if !rs.writing {
		rs.writing = true
		go rs.write()
	}
}

// write hands lines to the handler until there are none.
func (rs *reports) write() {
	ended := false
	defer func() {
		if !ended {
			go rs.write() // the handler has called runtime.Goexit
		}
	}()
	for line := rs.next(); line != nil; line = rs.next() {
		rs.handle(line.record)
	}
	ended = true
}

// next is the line to be written now, or nil: then the goroutine ends.
func (rs *reports) next() *report {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.current != nil && rs.current.written != nil {
		close(rs.current.written)
	}
	switch {
	case len(rs.lines) > 0:
		rs.current, rs.lines = rs.lines[0], rs.lines[1:]
	case rs.left > 0:
		rs.current = &report{record: slog.NewRecord(time.Now(), slog.LevelWarn, "redislock: lines are missing here, since the logger is too slow", 0)}
		rs.current.record.Add("lines", rs.left)
		rs.left = 0
	default:
		rs.current, rs.lines, rs.writing = nil, nil, false
	}
	return rs.current
}

// handle calls the handler. If it panics the line is lost, and nothing else:
// there is nobody to whom that could be told.
func (rs *reports) handle(record slog.Record) {
	defer func() { _ = recover() }()
	handler, ctx := rs.logger.Handler(), context.Background()
	if handler.Enabled(ctx, record.Level) {
		_ = handler.Handle(ctx, record)
	}
}

// last is closed when all lines that there are now are written; nil if there
// are none.
func (rs *reports) last() <-chan struct{} {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	line := rs.current
	if n := len(rs.lines); n > 0 {
		line = rs.lines[n-1]
	}
	switch {
	case line == nil:
		return nil
	case line.written == nil:
		line.written = make(chan struct{})
	}
	return line.written
}

// wait is for a call that has reported something, and is about to return: it
// waits until that is written, but not for long.
func (rs *reports) wait(ctx context.Context) {
	if written := rs.last(); written != nil {
		patience{done: written, hurry: ctx.Done(), grace: reportGrace, limit: reportPatience}.over()
	}
}
