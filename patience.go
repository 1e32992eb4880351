package redislock

import "time"

// patience is how long somebody waits for something.
type patience struct {
	done, hurry <-chan struct{}
	grace       time.Duration // after hurry
	limit       time.Duration // in any case; 0: none
}

// over reports whether done was closed in time.
func (w patience) over() bool {
	var limited <-chan time.Time
	if w.limit > 0 {
		timer := time.NewTimer(w.limit)
		defer timer.Stop()
		limited = timer.C
	}
	select {
	case <-w.done:
		return true
	case <-limited:
		return false
	case <-w.hurry:
	}
	timer := time.NewTimer(w.grace)
	defer timer.Stop()
	select {
	case <-w.done:
		return true
	case <-limited:
	case <-timer.C:
	}
	return false
}
