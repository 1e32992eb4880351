package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/e2e3f2a3/redislock"
)

// config is what the flags say.
type config struct {
	redisAddr  string // "" for an embedded one
	ordersFile string // "" for the shipped one
	workers    int
	ttl        time.Duration
	unsafe     bool
	seed       uint64
}

// demo is one run: the parts that all workers share.
type demo struct {
	config
	style    style
	out      io.Writer
	queue    *queue
	store    *store
	locks    *redislock.Locker // nil with -unsafe
	timeline *timeline
	paused   string // id of the order whose first worker is paused
	pauseFor time.Duration
	patience time.Duration // doubles with each failure in a row
	losses   atomic.Int64  // of locks, the paused one aside

	// authorise is the slow call to the payment provider. It reserves the money
	// and may be repeated; only the booking in the store takes it.
	authorise func(context.Context, order) error
	// stall is the pause. Tests put one here that ends with an event, not a time.
	stall func(ctx context.Context, id string) error
}

// newDemo wires a run together. The lease decides the other times: a message
// comes back before it ends, so that somebody has to wait for the lock, and the
// pause lasts well beyond it.
func newDemo(c config, orders []order, db *store, locks *redislock.Locker, out io.Writer, style style) *demo {
	paused := orders[len(orders)/10].ID
	d := &demo{
		config:    c,
		style:     style,
		out:       out,
		queue:     newQueue(sentTwice(orders, paused, c.seed), c.ttl*3/4),
		store:     db,
		locks:     locks,
		timeline:  newTimeline(out, style),
		paused:    paused,
		pauseFor:  3 * c.ttl,
		patience:  25 * time.Millisecond,
		authorise: askProvider,
	}
	d.stall = func(ctx context.Context, _ string) error { return sleep(ctx, d.pauseFor) }
	return d
}

// askProvider takes as long as a fast payment provider.
func askProvider(ctx context.Context, _ order) error {
	return sleep(ctx, 4*time.Millisecond+rand.N(6*time.Millisecond))
}

// run sets the workers to work and waits for them all. One that gives up stops
// the others. An interruption is no error: the verdict says how far it came.
func (d *demo) run(ctx context.Context) error {
	working, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	var team sync.WaitGroup
	for _, name := range d.names() {
		team.Go(func() {
			w := worker{demo: d, name: name}
			if err := w.run(working); err != nil {
				giveUp(err)
			}
		})
	}
	team.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(working)
}

func (d *demo) names() []string {
	names := make([]string, d.workers)
	for i := range names {
		names[i] = fmt.Sprintf("w%d", i+1)
	}
	return names
}

// runDemo does everything from the CSV to the verdict. Its error is about the
// run; that orders were charged twice or not at all is in the verdict.
func runDemo(ctx context.Context, c config, out io.Writer, style style) (verdict, error) {
	orders, bad, err := loadOrders(c.ordersFile)
	if err != nil {
		return verdict{}, err
	}
	dir, err := os.MkdirTemp("", "redislock-orders-")
	if err != nil {
		return verdict{}, err
	}
	defer os.RemoveAll(dir)
	db, err := openStore(ctx, dir, orders)
	if err != nil {
		return verdict{}, err
	}
	defer db.close()
	locks, closeRedis, err := openLocks(ctx, c)
	if err != nil {
		return verdict{}, err
	}
	defer closeRedis()

	d := newDemo(c, orders, db, locks, out, style)
	d.printHead(len(orders), bad)
	runErr := d.run(ctx)
	// Even after Ctrl-C the reader is told what had been charged by then.
	v, err := db.verdict(context.WithoutCancel(ctx))
	if err == nil {
		d.printTail(v, ctx.Err() != nil)
	}
	return v, errors.Join(runErr, err)
}

func loadOrders(file string) ([]order, []badRow, error) {
	in, err := openOrders(file)
	if err != nil {
		return nil, nil, err
	}
	defer in.Close()
	orders, bad, err := readOrders(in)
	if err == nil && len(orders) == 0 {
		err = fmt.Errorf("no valid order, and %s", count(len(bad), "malformed row", "malformed rows"))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", fileName(file), err)
	}
	return orders, bad, nil
}
