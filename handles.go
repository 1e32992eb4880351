package redislock

import (
	"slices"
	"sync"
	"time"
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
	first      H             // a live handle, unless it is zero
	others     []H           // more of them: few tokens ever have any
	releasing  int32         // releases of which a request is being made
	resuming   int32         // calls of Resume under way
	departures int32         // requests to release that were sent
	longest    time.Duration // the longest lease that a request was made for
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

// enter adds a handle that has not ended, and that was made for ttl.
func (hs *handles[H]) enter(token string, h H, ttl time.Duration) {
	hs.change(token, func(s tokenState[H]) tokenState[H] {
		s.longest = max(s.longest, ttl)
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

// resume notes that Resume is about to ask for ttl with a token. It reports
// false if a release of the token is under way. The number is for resumed.
func (hs *handles[H]) resume(token string, ttl time.Duration) (departures int32, possible bool) {
	hs.change(token, func(s tokenState[H]) tokenState[H] {
		if possible = s.releasing == 0; possible {
			s.resuming++
			s.longest = max(s.longest, ttl)
		}
		departures = s.departures
		return s
	})
	return departures, possible
}

// resumed ends what resume has begun, after its handle was entered. It reports
// false if a release was sent in between: that may be executed at any time.
func (hs *handles[H]) resumed(token string, departures int32) (still bool) {
	hs.change(token, func(s tokenState[H]) tokenState[H] {
		still = s.departures == departures
		s.resuming--
		return s
	})
	return still
}

// extend notes that a live handle is about to ask for ttl.
func (hs *handles[H]) extend(token string, ttl time.Duration) {
	hs.change(token, func(s tokenState[H]) tokenState[H] {
		s.longest = max(s.longest, ttl)
		return s
	})
}

// longest is the longest lease that was asked for since there is a handle of
// the token, or a call that is under way; 0 if there is neither.
func (hs *handles[H]) longest(token string) time.Duration {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	return hs.byToken[token].longest
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
		s.departures++
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
