// Quickstart: two workers contend for one lock, on a Redis embedded in this program.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/e2e3f2a3/redislock"
	"github.com/redis/go-redis/v9"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	server := miniredis.NewMiniRedis()
	server.ClockTTL(true) // leases end by the clock, as in a real Redis
	if err := server.Start(); err != nil {
		log.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{Addr: server.Addr()}) // yours: "localhost:6379"
	var order row
	var workers sync.WaitGroup
	for _, name := range []string{"alice", "bob"} {
		locker := redislock.New(client) // a process needs one; these stand for two processes
		workers.Go(func() {
			err := locker.WithLock(ctx, "order:42", 30*time.Second, func(ctx context.Context, lock *redislock.Lock) error {
				fmt.Println(name, "holds the lock, fence", lock.Fence())
				select {
				case <-time.After(time.Second): // the work
					return order.write(name, lock.Fence())
				case <-ctx.Done(): // the lock was lost, or the program is to stop
					return context.Cause(ctx)
				}
			})
			fmt.Println(name, "is done, error:", err)
		})
	}
	workers.Wait()
	if ctx.Err() != nil {
		os.Exit(1) // both locks are released
	}
	fmt.Println("a write that comes too late:", order.write("paused worker", order.fence-1))
}

type row struct{ fence int64 } // stands for a database row, which compares in one transaction

func (r *row) write(who string, fence int64) error {
	if fence < r.fence {
		return fmt.Errorf("%s has fence %d, and %d has written", who, fence, r.fence)
	}
	r.fence = fence
	return nil
}
