package redistest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are taken from below the ranges that systems give to outgoing
// connections (Linux from 32768, others from 49152). A port of such a range can
// be lost to any client while the server restarts, even to one that dials the
// port itself: it may get connected to its own socket. A cluster bus (port +
// 10000) stays below too.
const (
	lowestPort  = 12000
	highestPort = 21999
)

// portsTaken keeps the servers of one test binary apart while they are down.
var portsTaken sync.Map

// takePort returns a loopback port that was free a moment ago. It is the
// caller's until leavePort.
func takePort() (int, error) {
	var last error
	for range 100 {
		port := lowestPort + rand.IntN(highestPort-lowestPort+1)
		if _, taken := portsTaken.LoadOrStore(port, true); taken {
			continue
		}
		l, err := net.Listen("tcp", loopback(port))
		if err == nil {
			return port, l.Close()
		}
		leavePort(port)
		last = err
	}
	return 0, fmt.Errorf("no free port: %w", last)
}

func leavePort(port int) { portsTaken.Delete(port) }

func loopback(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
