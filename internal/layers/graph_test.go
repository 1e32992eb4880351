package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func ref(from, to string) reference { return reference{from: from, to: to, name: "x"} }

func TestGraphOfATree(t *testing.T) {
	g := newGraph([]reference{ref("a", "b"), ref("a", "c"), ref("b", "c"), ref("c", "c")})
	assert.Equal(t, []string{"a", "b", "c"}, g.files)
	assert.Equal(t, 3, g.edges())
	assert.Empty(t, g.largestCycle())
	assert.Empty(t, g.pairs())
	assert.Empty(t, g.upward())
}

func TestGraphWithCycles(t *testing.T) {
	g := newGraph([]reference{
		ref("a", "b"), ref("b", "c"), ref("c", "a"), // one cycle
		ref("d", "e"), ref("e", "d"), // another one
		ref("a", "d"), ref("f", "a"),
	})
	assert.Equal(t, []string{"a", "b", "c"}, g.largestCycle())
	assert.Equal(t, []string{"d <-> e"}, g.pairs())
	assert.Len(t, g.upward(), 2, "one for each cycle")
}

// The order in which one arrow runs upward has to be found among orders in
// which several do.
func TestGraphUpwardIsTheLeast(t *testing.T) {
	g := newGraph([]reference{ref("c", "a"), ref("c", "b"), ref("b", "a"), ref("a", "c")})
	assert.Equal(t, []string{"a -> c: x"}, g.upward())
}

func TestGraphUpwardInALargeCycle(t *testing.T) {
	names := []string{"j", "i", "h", "g", "f", "e", "d", "c", "b", "a"}
	var refs []reference
	for i, from := range names {
		for _, to := range names[i+1:] {
			refs = append(refs, ref(from, to))
		}
	}
	g := newGraph(append(refs, ref("a", "j")))
	assert.Len(t, g.largestCycle(), 10)
	assert.Equal(t, []string{"a -> j: x"}, g.upward())
}

func TestMove(t *testing.T) {
	assert.Equal(t, []string{"b", "a", "c"}, move([]string{"a", "b", "c"}, 0, 1))
	assert.Equal(t, []string{"c", "a", "b"}, move([]string{"a", "b", "c"}, 2, 0))
}
