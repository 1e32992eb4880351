package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// process is a worker, seen from its parent.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startProcess(ctx context.Context, t task) (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	spec, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), workerEnv+"="+string(spec))
	cmd.Stderr = os.Stderr
	tie(cmd)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &process{cmd: cmd, in: in, out: bufio.NewReader(out)}, cmd.Start()
}

func (p *process) tell(line string) error {
	_, err := fmt.Fprintln(p.in, line)
	return err
}

// started returns once the load is on.
func (p *process) started() error {
	line, err := p.out.ReadString('\n')
	if err != nil {
		return fmt.Errorf("a worker has ended early: %w", err)
	}
	if line == lineStart+"\n" {
		return nil
	}
	var res result // it could not start, and says why
	if err := json.Unmarshal([]byte(line), &res); err != nil {
		return err
	}
	return errors.New(res.Error)
}

func (p *process) result() (result, error) {
	var res result
	if err := json.NewDecoder(p.out).Decode(&res); err != nil {
		return result{}, fmt.Errorf("a worker's result: %w", err)
	}
	if res.Error != "" {
		return result{}, errors.New(res.Error)
	}
	return res, nil
}

// end ends a worker that has not ended by itself, and returns when it is gone.
func (p *process) end() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// crowd is the workers of one measurement.
type crowd []*process

func startCrowd(ctx context.Context, t task) (crowd, error) {
	var c crowd
	for t.Process = range t.Processes {
		p, err := startProcess(ctx, t)
		if err != nil {
			c.end()
			return nil, err
		}
		c = append(c, p)
	}
	return c, nil
}

func (c crowd) end() {
	for _, p := range c {
		p.end()
	}
}

func (c crowd) each(f func(*process) error) error {
	for _, p := range c {
		if err := f(p); err != nil {
			return err
		}
	}
	return nil
}

func (c crowd) tell(line string) error {
	return c.each(func(p *process) error { return p.tell(line) })
}

// start returns once all have their load.
func (c crowd) start() error {
	if err := c.tell(lineStart); err != nil {
		return err
	}
	return c.each((*process).started)
}

// results adds up what all have to say.
func (c crowd) results() (sum result, err error) {
	err = c.each(func(p *process) error {
		res, err := p.result()
		sum.CPU += res.CPU
		sum.Allocs += res.Allocs
		sum.Goroutines += res.Goroutines
		sum.Bytes += res.Bytes
		sum.Memory += res.Memory
		sum.Latencies = append(sum.Latencies, res.Latencies...)
		return err
	})
	return sum, err
}
