package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"
)

// Every measurement has processes of its own, so that no adapter inherits
// another's connections, goroutines or heap. A worker is this program again,
// with the task in its environment.
const workerEnv = "REDISLOCK_BENCH_TASK"

// What a worker reads from its standard input, a line each. It answers "start"
// when the load is on, and "end" with its result.
const (
	lineStart = "start"
	lineBegin = "begin" // of what is measured
	lineEnd   = "end"
)

// result is what a worker tells of the time between begin and end.
type result struct {
	Error      string          `json:",omitempty"`
	CPU        time.Duration   // user and system time of the process
	Allocs     uint64          // allocations of the process
	Goroutines int             // at the end
	Latencies  []time.Duration // of hand-overs
	Bytes      float64         // of heap and stacks for each lock or waiter
	Memory     float64         // heap and stacks, with everything that the locker needs
}

// job is the load of a worker.
type job interface {
	// start returns when the load is on. It goes on until ctx ends.
	start(ctx context.Context) error
	// begin and end enclose what is measured.
	begin()
	end(*result)
	// stop is called once ctx has ended. It returns when nothing runs any more,
	// and tells what went wrong before ctx ended.
	stop() error
}

// workerMain is main in a worker. It ends with its parent, whose end of the pipe
// is then closed.
func workerMain(spec string) int {
	if err := runWorker(spec, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		return 1
	}
	return 0
}

func runWorker(spec string, in io.Reader, out io.Writer) error {
	var t task
	if err := json.Unmarshal([]byte(spec), &t); err != nil {
		return err
	}
	j, err := newJob(t)
	if err != nil {
		return err
	}
	res, err := conduct(j, bufio.NewScanner(in), out)
	if err != nil {
		res.Error = err.Error()
	}
	return json.NewEncoder(out).Encode(res)
}

func newJob(t task) (job, error) {
	a, ok := adapterByID(t.Adapter)
	if !ok {
		return nil, fmt.Errorf("no adapter %q", t.Adapter)
	}
	switch t.Job {
	case jobCycles:
		return newCycles(t, a)
	case jobHandOver:
		return newHandOvers(t, a)
	case jobIdle:
		return newIdlers(t, a)
	case jobHold:
		return newHolders(t, a)
	case jobTurnover:
		return newTurnover(t, a)
	}
	return nil, fmt.Errorf("no job %q", t.Job)
}

// conduct leads a job through the lines that come in.
func conduct(j job, in *bufio.Scanner, out io.Writer) (result, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := await(in, lineStart); err != nil {
		return result{}, err
	}
	if err := j.start(ctx); err != nil {
		return result{}, err
	}
	if _, err := fmt.Fprintln(out, lineStart); err != nil {
		return result{}, err
	}
	res, err := observe(j, in)
	cancel()
	if failed := j.stop(); failed != nil {
		err = failed
	}
	return res, err
}

// observe takes the measure of the time between begin and end.
func observe(j job, in *bufio.Scanner) (result, error) {
	if err := await(in, lineBegin); err != nil {
		return result{}, err
	}
	before, err := takeUsage()
	if err != nil {
		return result{}, err
	}
	j.begin()
	if err := await(in, lineEnd); err != nil {
		return result{}, err
	}
	after, err := takeUsage()
	res := result{
		CPU: after.cpu - before.cpu, Allocs: after.allocs - before.allocs,
		Goroutines: runtime.NumGoroutine(),
	}
	j.end(&res)
	return res, err
}

func await(in *bufio.Scanner, line string) error {
	if !in.Scan() {
		return fmt.Errorf("the parent has gone before %q: %w", line, io.ErrUnexpectedEOF)
	}
	if in.Text() != line {
		return fmt.Errorf("%q where %q was expected", in.Text(), line)
	}
	return nil
}

// usage is what this process has used so far.
type usage struct {
	cpu    time.Duration
	allocs uint64
}

func takeUsage() (usage, error) {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	cpu, err := processorTime()
	return usage{cpu: cpu, allocs: memory.Mallocs}, err
}

// footprint is the memory in use, in heap and stacks. The second collection
// frees what the first has left in pools.
func footprint() float64 {
	var memory runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&memory)
	return float64(memory.HeapAlloc + memory.StackInuse)
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
