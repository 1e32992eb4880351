package redistest

import (
	"slices"
	"strings"
)

// Match chooses requests by their arguments, of which the first is the
// command's name as the client spells it. A relay calls it for one request at a
// time; it must neither change the slice nor call the relay.
type Match func(args []string) bool

// Command matches requests by the name of the command, whatever its case:
// Command("eval", "evalsha").
func Command(names ...string) Match {
	return func(args []string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, args[0]) })
	}
}

// ArgContains matches requests with s inside one of the arguments after the
// command's name.
func ArgContains(s string) Match {
	return func(args []string) bool {
		return slices.ContainsFunc(args[1:], func(arg string) bool { return strings.Contains(arg, s) })
	}
}

// Any matches every request.
func Any() Match { return func([]string) bool { return true } }

// And matches what all of ms match. They are asked in order, and only until one
// says no.
func And(ms ...Match) Match {
	return func(args []string) bool {
		return !slices.ContainsFunc(ms, func(m Match) bool { return !m(args) })
	}
}

// Or matches what one of ms matches. They are asked in order, and only until
// one says yes.
func Or(ms ...Match) Match {
	return func(args []string) bool {
		return slices.ContainsFunc(ms, func(m Match) bool { return m(args) })
	}
}

// Not matches what m does not match.
func Not(m Match) Match {
	return func(args []string) bool { return !m(args) }
}

// Skip matches what m matches, but for the first n times: Skip(1, m) strikes at
// the second. It counts, so each rule needs its own.
func Skip(n int, m Match) Match {
	return func(args []string) bool {
		if !m(args) {
			return false
		}
		n--
		return n < 0
	}
}
