// Command bench measures redislock side by side with other lock libraries, with
// what one would write by hand, and with what Redis itself is capable of. It
// prints a report in Markdown and writes plots.
//
//	go -C bench run . -quick
//
// It starts a redis-server of its own, or uses the one given with -redis. Each
// measurement has processes of its own; the adapters take turns in rounds, the
// report has medians over the rounds, and ratios are formed within each round.
// It exits with status 1 if a lock let two in at once or an adapter failed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9/logging"
)

func main() {
	logging.Disable() // a worker closes connections under those who wait, which go-redis reports
	if spec := os.Getenv(workerEnv); spec != "" {
		os.Exit(workerMain(spec))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

var (
	errViolated = errors.New("mutual exclusion was violated")
	errFailed   = errors.New("not everything could be measured")
)

// run is the program without its process.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parseOptions(args, stderr)
	if err != nil {
		return err
	}
	if o.redis == "" {
		s, err := startServer(ctx)
		if err != nil {
			return err
		}
		defer s.stop()
		o.redis = s.addr
	}
	admin := newClient(o.redis)
	defer admin.Close()
	version, err := serverVersion(ctx, admin)
	if err != nil {
		return err
	}
	c := campaign{scenarios: o.scenarios, adapters: o.adapters, admin: admin, progress: stderr}
	res, err := c.run(ctx)
	if err != nil {
		return err
	}
	return publish(report{campaign: c, results: res, redis: version, args: args, out: o.out}, stdout)
}

func publish(r report, stdout io.Writer) error {
	if err := r.plot(); err != nil {
		return err
	}
	if err := r.write(stdout); err != nil {
		return err
	}
	switch {
	case len(r.results.violations) > 0:
		return errViolated
	case len(r.results.failures) > 0:
		return errFailed
	}
	return nil
}

// options is what the command line says.
type options struct {
	redis     string
	out       string
	scenarios []scenario
	adapters  []adapter
}

func parseOptions(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.redis, "redis", "", "`address` of a Redis to use, which should have nothing else to do; "+
		"default: a redis-server of its own. Keys have a random prefix, and expire within an hour or are deleted")
	flags.StringVar(&o.out, "out", "plots", "`folder` for the plots, which are called "+filePrefix+"*.svg; empty: none")
	quick := flags.Bool("quick", false, "less of everything: a few minutes, with more noise")
	rounds := flags.Int("rounds", 0, "how `often` each adapter is measured in each scenario")
	duration := flags.Duration("duration", 0, "of each measurement; held locks are measured for their TTL")
	only := flags.String("scenario", "", "comma-separated `ids`; default all: "+strings.Join(scenarioIDs(), ","))
	among := flags.String("adapters", "", "comma-separated `ids`; default all: "+strings.Join(adapterIDs(), ","))
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	if flags.NArg() > 0 {
		return options{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	var err error
	if o.scenarios, err = choose(scenarios(choosePlan(*quick, *rounds, *duration)), scenario.name, *only); err != nil {
		return options{}, err
	}
	o.adapters, err = choose(adapters(), adapter.name, *among)
	return o, err
}

func choosePlan(quick bool, rounds int, duration time.Duration) plan {
	p := fullPlan()
	if quick {
		p = quickPlan()
	}
	if rounds > 0 {
		p.setRounds(rounds)
	}
	if duration > 0 {
		p.setDuration(duration)
	}
	return p
}

// choose returns those of all whose name is in the list, and all for an empty one.
func choose[T any](all []T, name func(T) string, list string) ([]T, error) {
	if list == "" {
		return all, nil
	}
	var chosen []T
	for wanted := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(all, func(t T) bool { return name(t) == wanted })
		if i < 0 {
			return nil, fmt.Errorf("%q is unknown, see -h", wanted)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

func (s scenario) name() string { return s.id }

func (a adapter) name() string { return a.id }

func scenarioIDs() []string { return names(scenarios(fullPlan()), scenario.name) }

func adapterIDs() []string { return names(adapters(), adapter.name) }

func names[T any](all []T, name func(T) string) (out []string) {
	for _, t := range all {
		out = append(out, name(t))
	}
	return out
}
