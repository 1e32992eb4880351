package redistest

import "sync"

// gate stands before every byte that a relay passes on. The zero gate is open.
type gate struct {
	mu     sync.RWMutex
	opened chan struct{} // closed at opening; nil while open
}

// set shuts or opens the gate. Once set(true) returns nothing passes any more,
// what was under way has passed.
func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case shut && g.opened == nil:
		g.opened = make(chan struct{})
	case !shut && g.opened != nil:
		close(g.opened)
		g.opened = nil
	}
}

// pass runs f once the gate is open; not at all if done comes first.
func (g *gate) pass(done <-chan struct{}, f func()) {
	for {
		opened := g.try(f)
		if opened == nil {
			return
		}
		select {
		case <-opened:
		case <-done:
			return
		}
	}
}

// try runs f if the gate is open, and returns what to wait for if not.
func (g *gate) try(f func()) <-chan struct{} {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.opened == nil {
		f()
		return nil
	}
	return g.opened
}
