package redislock

import (
	"slices"
	"sync"
)

// handles are the live handles of one Locker, by their token. [Locker.Resume]
// makes several of one token, and a release through one of them ends the
// others: their lock may be somebody else's as soon as the request is sent. So
// each of them has to be found at that moment, whatever became of those made
// before and after it.
//
// H is *Lock, of which nothing has to be known here. The mutex is held for
// nothing else, and no other is taken meanwhile.
type handles[H comparable] struct {
	mu      sync.Mutex
	byToken map[string]tokenState[H]
}

// tokenState is what a Locker does with one token.
type tokenState[H comparable] struct {
	first     H    // a live handle, unless it is zero
	others    []H  // more of them: few tokens ever have any
	releasing int  // releases of which a request is being made
	resuming  int  // calls of Resume under way
	departed  bool // a request to release was sent while Resume was under way
}

// change has f change the state of a token.
func (hs *handles[H]) change(token string, f func(s tokenState[H]) tokenState[H]) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	s := f(hs.byToken[token])
	var none H
	if s.first == none && len(s.others) == 0 && s.releasing == 0 && s.resuming == 0 {
		delete(hs.byToken, token)
		return
	}
	if hs.byToken == nil {
		hs.byToken = make(map[string]tokenState[H])
	}
	hs.byToken[token] = s
}

// enter adds a handle that has not ended.
func (hs *handles[H]) enter(token string, h H) {
	hs.change(token, func(s tokenState[H]) tokenState[H] {
		var none H
		if s.first == none {
			s.first = h
		} else {
			s.others = append(s.others, h)
		}
		return s
	})
}

// leave removes a handle that has ended. It may be called more than once.
func (hs *handles[H]) leave(token string, h H) {
	hs.change(token, func(s tokenState[H]) tokenState[H] {
		if s.first == h {
			var none H
			s.first = none
			return s
		}
		s.others = slices.DeleteFunc(s.others, func(other H) bool { return other == h })
		return s
	})
}

// resume notes that Resume is about to send a request with a token. It reports
// false if a release of the token is under way.
func (hs *handles[H]) resume(token string) (possible bool) {
	hs.change(token, func(s tokenState[H]) tokenState[H] {
		if possible = s.releasing == 0; possible {
			s.resuming++
		}
		return s
	})
	return possible
}

// resumed ends what resume has begun, after its handle was entered. It reports
// false if a release was sent in between: that may be executed at any time.
func (hs *handles[H]) resumed(token string) (still bool) {
	hs.change(token, func(s tokenState[H]) tokenState[H] {
		still = !s.departed
		if s.resuming--; s.resuming == 0 {
			s.departed = false
		}
		return s
	})
	return still
}

// release notes that a request to release a token is about to be made.
func (hs *handles[H]) release(token string) {
	hs.change(token, func(s tokenState[H]) tokenState[H] {
		s.releasing++
		return s
	})
}

// released notes that the request is over.
func (hs *handles[H]) released(token string) {
	hs.change(token, func(s tokenState[H]) tokenState[H] {
		s.releasing--
		return s
	})
}

// depart notes that the request is about to be written, and returns the other
// handles with the token of h.
func (hs *handles[H]) depart(token string, h H) (others []H) {
	hs.change(token, func(s tokenState[H]) tokenState[H] {
		s.departed = s.departed || s.resuming > 0
		var none H
		if s.first != none && s.first != h {
			others = append(others, s.first)
		}
		for _, other := range s.others {
			if other != h {
				others = append(others, other)
			}
		}
		return s
	})
	return others
}
