package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"
)

// network is how long a round trip takes beyond what it takes on this machine:
// uniformly distributed between Min and Max. The zero value adds nothing.
//
// The whole of it is added to what a client reads. For a round trip that is the
// same as half of it on the way there and half on the way back, and for a push
// to another client as well: from the release in one to the arrival in the
// other is one delay. A delay of what is written would need a goroutine and a
// copy more for each connection.
type network struct {
	Min, Max time.Duration
	Seed     uint64 // of the jitter
}

// lan is a network such as within a data centre, across its zones.
var lan = network{Min: 500 * time.Microsecond, Max: 1500 * time.Microsecond}

func (n network) delays() bool { return n.Max > 0 }

func (n network) span() string {
	return fmt.Sprintf("%.1f to %.1f ms", n.Min.Seconds()*1e3, n.Max.Seconds()*1e3)
}

type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// dialer wraps dial, whose connections and their setting-up are then as slow as
// the network. The jitter of the connections of process number process is a
// sequence for each, the same in each run with the same Seed.
func (n network) dialer(process int, dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		delay := n.jitter(process, dialed.Add(1))
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if err := sleep(ctx, delay()); err != nil { // the handshake
			_ = conn.Close()
			return nil, err
		}
		return delayReads(conn, delay)
	}
}

// dialed is the number of connections that this process has made.
var dialed atomic.Uint64

// jitter returns the delays of one connection.
func (n network) jitter(process int, connection uint64) func() time.Duration {
	random := rand.New(rand.NewPCG(n.Seed, uint64(process)<<32|connection))
	return func() time.Duration {
		return n.Min + time.Duration(random.Int64N(int64(n.Max-n.Min)+1))
	}
}
