package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// graph holds, for each file, the files that it refers to, and by which names.
type graph struct {
	files []string
	to    map[string]map[string][]string
}

func newGraph(refs []reference) *graph {
	g := &graph{to: make(map[string]map[string][]string)}
	for _, r := range refs {
		if g.to[r.from] == nil {
			g.to[r.from] = make(map[string][]string)
		}
		if r.from != r.to {
			g.to[r.from][r.to] = append(g.to[r.from][r.to], r.name)
		}
	}
	g.files = slices.Sorted(maps.Keys(g.to))
	return g
}

func (g *graph) edges() (n int) {
	for _, targets := range g.to {
		n += len(targets)
	}
	return n
}

func (g *graph) list(w io.Writer) {
	for _, from := range g.files {
		for _, to := range slices.Sorted(maps.Keys(g.to[from])) {
			names := g.to[from][to]
			slices.Sort(names)
			fmt.Fprintf(w, "%s -> %s: %s\n", from, to, strings.Join(names, " "))
		}
	}
}

// pairs are the files that refer to each other.
func (g *graph) pairs() (pairs []string) {
	for _, a := range g.files {
		for b := range g.to[a] {
			if _, back := g.to[b][a]; back && a < b {
				pairs = append(pairs, a+" <-> "+b)
			}
		}
	}
	slices.Sort(pairs)
	return pairs
}

func (g *graph) largestCycle() (largest []string) {
	for _, cycle := range g.cycles() {
		if len(cycle) > len(largest) {
			largest = cycle
		}
	}
	slices.Sort(largest)
	return largest
}

// cycles are the strongly connected components of more than one file: the files
// that can reach each other. The graph is small, so reachability will do.
func (g *graph) cycles() (cycles [][]string) {
	reach := make(map[string]map[string]bool)
	for _, f := range g.files {
		reach[f] = g.reachable(f)
	}
	done := make(map[string]bool)
	for _, a := range g.files {
		if done[a] || !reach[a][a] {
			continue
		}
		var cycle []string
		for _, b := range g.files {
			if reach[a][b] && reach[b][a] {
				cycle = append(cycle, b)
				done[b] = true
			}
		}
		cycles = append(cycles, cycle)
	}
	return cycles
}

func (g *graph) reachable(from string) map[string]bool {
	seen := make(map[string]bool)
	var visit func(string)
	visit = func(f string) {
		for next := range g.to[f] {
			if !seen[next] {
				seen[next] = true
				visit(next)
			}
		}
	}
	visit(from)
	return seen
}

// upward are the references that run against an order of the files in which as
// few as possible do. Only inside a cycle can a reference be such. For cycles
// of up to eight files the order is the best there is; for larger ones it is
// found by moving one file at a time while that helps, and may not be the best.
func (g *graph) upward() (against []string) {
	for _, cycle := range g.cycles() {
		order := g.bestOrder(cycle)
		for i, from := range order {
			for _, to := range order[:i] {
				if names, refers := g.to[from][to]; refers {
					slices.Sort(names)
					against = append(against, fmt.Sprintf("%s -> %s: %s", from, to, strings.Join(names, " ")))
				}
			}
		}
	}
	return against
}

func (g *graph) bestOrder(cycle []string) []string {
	if len(cycle) <= 8 {
		return g.bestPermutation(cycle)
	}
	order := slices.Clone(cycle)
	for improved := true; improved; {
		improved = false
		for i := range order {
			for j := range order {
				moved := move(order, i, j)
				if g.against(moved) < g.against(order) {
					order, improved = moved, true
				}
			}
		}
	}
	return order
}

func (g *graph) bestPermutation(cycle []string) []string {
	best := slices.Clone(cycle)
	var permute func(order []string, n int)
	permute = func(order []string, n int) {
		if n == len(order) {
			if g.against(order) < g.against(best) {
				best = slices.Clone(order)
			}
			return
		}
		for i := n; i < len(order); i++ {
			order[n], order[i] = order[i], order[n]
			permute(order, n+1)
			order[n], order[i] = order[i], order[n]
		}
	}
	permute(slices.Clone(cycle), 0)
	return best
}

func move(order []string, from, to int) []string {
	moved := slices.Delete(slices.Clone(order), from, from+1)
	return slices.Insert(moved, to, order[from])
}

// against counts the references that run from a later file to an earlier one.
func (g *graph) against(order []string) (n int) {
	for i, from := range order {
		for _, to := range order[:i] {
			if _, refers := g.to[from][to]; refers {
				n++
			}
		}
	}
	return n
}
