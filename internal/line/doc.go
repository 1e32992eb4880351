// Package line is the line of those that wait for a lock in one process, and
// the inbox on which Redis announces the next owner. It knows tokens, tickets
// and times; it knows nothing of locks and of scripts.
//
// How waiting works. Goroutines of one Locker that wait for the same name stand
// in a line; only its head is represented in Redis.
//
//	Acquire
//	   │ joins
//	   ▼
//	in line          until everybody before it has left; then it is the head:
//	   │
//	   ├─ this process holds the lock ─► relying
//	   └─ else ───────────────────────► asking
//
//	in line ── the head failed before there was any answer ────► asking, without a ticket
//
//	relying ── release of this process gave it the lock ────────► lock
//	        ── that release let the queue go first ────────────► queued
//	        ── due or nudged ──────────────────────────────────► asking
//	asking  ── the lock was free, or is its own already ───────► lock
//	        ── somebody else has it, and it has a ticket ──────► queued
//	        ── somebody else has it, and there is no inbox ────► polling
//	        ── no answer: as polling; before there was any: error after three tries
//	queued  ── push ───────────────────────────────────────────► lock
//	        ── the holder's lease is over, or nudged, or the pause is ─► asking
//	polling ── 10 to 500 ms are over, or nudged ───────────────► asking
//
//	from each of them: ctx ended ► error; a ticket or grant is undone, and the next
//	in line is the head. A grant that came before counts: it is a lock, no error.
//
// Whatever happens to a head that can mean that it missed something (the inbox
// came up or went down, a lock of this process was lost, a release got no
// reply, a grant came too late) nudges it: it asks at once, and an answer to an
// earlier question does not put that off. So a head always has a time at which
// it asks next: after as long again as it has waited, and the longest pause is
// the poll interval. Asking is harmless: the script knows the token.
//
// A ticket in Redis:
//
//	none    ── acquire.lua: taken, inbox subscribed ───────────► queued
//	        ── release.lua: brought along, another went first ─► queued
//	        ── release.lua: brought along, queue empty ────────► granted, told by the reply
//	queued  ── release.lua: first, inbox live ─────────────────► granted, told by a push
//	        ── the same, but nobody listens to its inbox ──────► none (its process is dead, or will ask)
//	        ── acquire.lua: the lock is found free ────────────► none, told to ask: queued again if it is alive
//	        ── acquire.lua: first of those who have answered ──► granted, told by a push
//	        ── undo: its waiter gave up ───────────────────────► none
//	granted ── its waiter has the lock, or finds it by asking
//	        ── undo: its waiter has gone ──────────────────────► released, to the next
//
// A ticket that is popped or lost while its head still waits is queued again by
// the head's next question, at the place it had. A head that gives up leaves
// its place to the next in its line.
//
// model_test.go enumerates the interleavings of all this.
package line
