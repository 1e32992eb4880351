package redistest

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
)

// layout is who serves which slots, as one node tells clients. Both the ranges
// and the replicas are in order, so that equal layouts look the same.
type layout []slotRange

type slotRange struct {
	first, last int
	primary     string
	replicas    []string // those in working order
}

// layout asks a node. CLUSTER SLOTS leaves out the replicas that have failed or
// never synchronised.
func (s *Server) layout() (layout, error) {
	reply, err := s.try(probeTimeout, "cluster", "slots")
	if err != nil {
		return nil, err
	}
	var l layout
	for _, entry := range reply.([]any) {
		said := entry.([]any)
		r := slotRange{first: int(said[0].(int64)), last: int(said[1].(int64)), primary: nodeAddr(said[2])}
		for _, replica := range said[3:] {
			r.replicas = append(r.replicas, nodeAddr(replica))
		}
		slices.Sort(r.replicas)
		l = append(l, r)
	}
	slices.SortFunc(l, func(a, b slotRange) int { return cmp.Compare(a.first, b.first) })
	return l, nil
}

func nodeAddr(node any) string {
	said := node.([]any)
	host, _ := said[0].(string) // nil while unknown
	return net.JoinHostPort(host, strconv.FormatInt(said[1].(int64), 10))
}

// primary returns the owner of a slot, or "".
func (l layout) primary(slot int) string {
	for _, r := range l {
		if r.first <= slot && slot <= r.last {
			return r.primary
		}
	}
	return ""
}

func (l layout) isPrimary(addr string) bool {
	return slices.ContainsFunc(l, func(r slotRange) bool { return r.primary == addr })
}

func (l layout) replicas(primary string) []string {
	for _, r := range l {
		if r.primary == primary {
			return r.replicas
		}
	}
	return nil
}

// complete objects unless every slot has an owner and so many nodes are in
// working order.
func (l layout) complete(nodes int) error {
	covered, seen := 0, make(map[string]bool)
	for _, r := range l {
		covered += r.last - r.first + 1
		for _, addr := range append(r.replicas, r.primary) {
			seen[addr] = true
		}
	}
	if covered != slots || len(seen) != nodes {
		return fmt.Errorf("%d of %d slots are served, by %d of %d nodes: %v", covered, slots, len(seen), nodes, l)
	}
	return nil
}
