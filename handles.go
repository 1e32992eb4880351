package redislock

import "sync"

// handles are the live handles of one Locker, by their token. [Locker.Resume] makes
// several of one token, and a release through one of them ends the others: their lock
// may be somebody else's as soon as the request is sent. So each of them has to be
// found at that moment, whatever became of those made before and after it.
//
// The mutex is held for nothing else, and no other is taken meanwhile.
type handles struct {
	mu      sync.Mutex
	byToken map[string]tokenState
}

// tokenState is what a Locker does with one token.
type tokenState struct {
	newest    *Lock // the live handle made last; older ones hang on its older
	releasing int   // releases of which a request is being made
	resuming  int   // calls of Resume under way
	departed  bool  // a request to release was sent while Resume was under way
}

func (hs *handles) set(token string, s tokenState) {
	if s == (tokenState{}) {
		delete(hs.byToken, token)
		return
	}
	if hs.byToken == nil {
		hs.byToken = make(map[string]tokenState)
	}
	hs.byToken[token] = s
}

// enter adds a handle that has not ended.
func (hs *handles) enter(l *Lock) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	s := hs.byToken[l.token.text]
	l.older, s.newest = s.newest, l
	hs.set(l.token.text, s)
}

// leave removes a handle that has ended. It may be called more than once.
func (hs *handles) leave(l *Lock) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	s := hs.byToken[l.token.text]
	for at := &s.newest; *at != nil; at = &(*at).older {
		if *at == l {
			*at, l.older = l.older, nil
			hs.set(l.token.text, s)
			return
		}
	}
}

// resume notes that Resume is about to send a request with a token. It reports false
// if a release of the token is under way.
func (hs *handles) resume(token string) bool {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	s := hs.byToken[token]
	if s.releasing > 0 {
		return false
	}
	s.resuming++
	hs.set(token, s)
	return true
}

// resumed ends what resume has begun, after its handle was entered. It reports false
// if a release was sent in between: that may be executed at any time.
func (hs *handles) resumed(token string) bool {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	s := hs.byToken[token]
	departed := s.departed
	if s.resuming--; s.resuming == 0 {
		s.departed = false
	}
	hs.set(token, s)
	return !departed
}

// release notes that a request to release l is about to be made.
func (hs *handles) release(l *Lock) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	s := hs.byToken[l.token.text]
	s.releasing++
	hs.set(l.token.text, s)
}

// released notes that the request is over.
func (hs *handles) released(l *Lock) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	s := hs.byToken[l.token.text]
	s.releasing--
	hs.set(l.token.text, s)
}

// depart notes that the request is about to be written, and returns the other handles
// with the token of l.
func (hs *handles) depart(l *Lock) (others []*Lock) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	s := hs.byToken[l.token.text]
	if s.resuming > 0 {
		s.departed = true
		hs.set(l.token.text, s)
	}
	for other := s.newest; other != nil; other = other.older {
		if other != l {
			others = append(others, other)
		}
	}
	return others
}
