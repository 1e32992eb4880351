package redislock

// Detach gives the lock up without releasing it, and returns its token: for
// work that goes on in another process, which calls [Locker.Resume] with the
// token, or for a name that is to stay taken until its lease ends. Renewal
// stops, nothing is logged, and Done is closed with a cause that Is
// [ErrDetached], which every further call on the handle returns. The key stays
// in Redis until the lease that it has now ends; a renewal that is on its way
// may still set it to the whole TTL. Goroutines of the same Locker that wait
// for the name go on waiting as behind any other holder.
//
// Of a handle that has ended, is being released or is nil, Detach returns ""
// and changes nothing. Inside [Locker.WithLock] it ends fn's context, is no
// error, and leaves nothing to be released. It sends nothing, does not block,
// and may be called while other methods are running; an Extend that is under
// way then returns [ErrDetached].
//
// Redis may still execute an Extend that has failed or is under way, and set
// the lease to its TTL. If that is less than the TTL of Resume, the new holder
// does not know.
func (l *Lock) Detach() string {
	if l.none() || l.Err() != nil || !l.detach() {
		return ""
	}
	l.claim.abandon()
	l.leaveKey()
	return l.token.text
}

// detach ends the handle, unless it has ended or its release is under way. The
// handle ends before the claim: a renewal that finds the claim closed must not
// take it for a loss.
func (l *Lock) detach() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.release.underWay() || !l.endWith(l.failed(opHold, ErrDetached)) {
		return false
	}
	l.release = &release{over: true, err: ErrDetached} // so that none begins
	return true
}
