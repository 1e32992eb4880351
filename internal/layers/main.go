// Command layers measures how the files of this module depend on each other,
// and checks the bounds that the module has set itself. Run it in the module's
// root:
//
//	go run ./internal/layers
//
// A file refers to another one of its package if it names something that is
// declared there: a type, function, variable, constant, method or field. Of the
// root package it prints the largest cycle of files, the pairs of files that
// refer to each other, and the references that point upward: the fewest that
// run against any one order of the files. Of the internal packages it prints
// what each imports of the others, and compares that with the order of the
// layers.
//
// It exits with status 1 if a bound is passed. With -v it lists the references.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
)

// limits are what the root package may have. They may only fall.
var limits = struct{ cycle, pairs, upward int }{cycle: 4, pairs: 3, upward: 3}

// layers lists, for each internal package, the packages of this module that it
// may import. A package that is missing here must import none and must not be
// imported by one that is listed.
var layers = map[string][]string{
	"internal/lease": {},
	"internal/wire":  {},
	"internal/poll":  {"internal/wire"},
	"internal/line":  {"internal/lease", "internal/wire"},
	".":              {"internal/lease", "internal/line", "internal/poll", "internal/wire"},
}

func main() {
	verbose := flag.Bool("v", false, "list the references between the files of the root package")
	flag.Parse()
	broken, err := run(*verbose)
	if err != nil {
		fmt.Fprintln(os.Stderr, "layers:", err)
		os.Exit(2)
	}
	if len(broken) > 0 {
		fmt.Fprintln(os.Stderr, "layers: "+strings.Join(broken, "\nlayers: "))
		os.Exit(1)
	}
}

func run(verbose bool) (broken []string, err error) {
	m, err := loadModule()
	if err != nil {
		return nil, err
	}
	broken = append(broken, m.checkImports()...)
	refs, err := m.references(".")
	if err != nil {
		return nil, err
	}
	g := newGraph(refs)
	if verbose {
		g.list(os.Stdout)
	}
	cycle, pairs, upward := g.largestCycle(), g.pairs(), g.upward()
	fmt.Printf("root package: %d files, %d references between them (%.1f per file)\n", len(g.files), g.edges(), float64(g.edges())/float64(len(g.files)))
	fmt.Printf("  largest cycle: %d files: %s\n", len(cycle), strings.Join(cycle, " "))
	fmt.Printf("  pairs that refer to each other: %d\n", len(pairs))
	for _, p := range pairs {
		fmt.Printf("    %s\n", p)
	}
	fmt.Printf("  references that point upward: %d\n", len(upward))
	for _, e := range upward {
		fmt.Printf("    %s\n", e)
	}
	for _, b := range []struct {
		what      string
		is, limit int
	}{
		{"files in the largest cycle", len(cycle), limits.cycle},
		{"pairs of files that refer to each other", len(pairs), limits.pairs},
		{"references that point upward", len(upward), limits.upward},
	} {
		if b.is > b.limit {
			broken = append(broken, fmt.Sprintf("%s: %d, at most %d", b.what, b.is, b.limit))
		}
	}
	return broken, nil
}
