// Orders charges a queue of orders, each exactly once, with several workers, a
// queue that delivers some orders twice, and a worker that is paused for longer
// than its lease. Every order is charged inside redislock's WithLock, and the
// database takes a charge only with a newer fence than the last.
//
//	go -C examples run ./orders            # nothing to install or start
//	go -C examples run ./orders -unsafe    # the same without lock and fence
//	go -C examples run ./orders -redis localhost:6379
//
// It reads a CSV with the header id,customer,amount,currency, one order a line.
// Malformed are, and skipped with their line number: a wrong number of fields;
// a stray or unclosed quote; an id that is missing, has blanks, is longer than
// 32 bytes or was used before; no customer; an amount that is not a plain
// positive decimal number or has more decimals than its currency; an unknown
// currency; text that is not UTF-8.
//
// The exit code is 0 when every order was charged exactly once (with -unsafe:
// when the run came to its end), 1 when not, and 2 for wrong flags.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program on the spot
	os.Exit(cli(ctx, os.Args[1:], os.Stdout, os.Stderr, styleFor(os.Stdout)))
}

// cli returns the exit code.
func cli(ctx context.Context, args []string, stdout, stderr io.Writer, style style) int {
	c, err := parseFlags(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "orders:", err)
		return 2
	}
	v, err := runDemo(ctx, c, stdout, style)
	switch {
	case err != nil:
		fmt.Fprintln(stderr, "orders:", err)
		return 1
	case v.holds(), c.unsafe && ctx.Err() == nil:
		return 0
	}
	return 1
}

func parseFlags(args []string, stderr io.Writer) (config, error) {
	var c config
	flags := flag.NewFlagSet("orders", flag.ContinueOnError)
	flags.StringVar(&c.redisAddr, "redis", "", "`host:port` of a Redis; an embedded one by default")
	flags.StringVar(&c.ordersFile, "orders", "", "CSV `file` of orders: id,customer,amount,currency; the shipped one by default")
	flags.IntVar(&c.workers, "workers", 5, "how `many` workers share the queue, 1 to 64")
	flags.DurationVar(&c.ttl, "ttl", 400*time.Millisecond, "lease of a lock, 50ms to 1m; the paused worker sleeps through three of them")
	flags.BoolVar(&c.unsafe, "unsafe", false, "work without lock and fence, and see double charges")
	flags.Uint64Var(&c.seed, "seed", 1, "decides which orders the producer sends twice")

	var faults strings.Builder // flag would print an error and then the whole usage
	flags.SetOutput(&faults)
	flags.Usage = func() {}
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		flags.SetOutput(stderr)
		fmt.Fprintln(stderr, "usage: orders [flags]")
		flags.PrintDefaults()
	}
	if err != nil {
		return c, err
	}
	return c, c.check(flags.Args())
}

func (c config) check(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q (see -h)", rest[0])
	case c.workers < 1 || c.workers > 64:
		return fmt.Errorf("-workers %d: want 1 to 64", c.workers)
	case c.ttl < 50*time.Millisecond || c.ttl > time.Minute:
		return fmt.Errorf("-ttl %s: want 50ms to 1m", c.ttl)
	case c.redisAddr != "":
		if _, port, err := net.SplitHostPort(c.redisAddr); err != nil || port == "" {
			return fmt.Errorf("-redis %q: want host:port", c.redisAddr)
		}
	}
	return nil
}

func openOrders(file string) (io.ReadCloser, error) {
	if file == "" {
		return io.NopCloser(strings.NewReader(shippedOrders)), nil
	}
	return os.Open(file)
}

func fileName(file string) string {
	if file == "" {
		return "orders.csv (shipped)"
	}
	return filepath.Base(file)
}
