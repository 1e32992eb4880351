package redistest

import (
	"slices"
	"strings"
)

// turn is a request that waits for its reply.
type turn struct {
	command string // lower case
	named   int    // number of arguments: to a pub/sub command, of channels
	pending int    // of a pub/sub command half answered: confirmations to come
	fate    fate
	rule    *Rule // to be told that the fault struck; nil for none
}

func newTurn(args []string, f fate) *turn {
	return &turn{command: strings.ToLower(args[0]), named: len(args) - 1, fate: f}
}

// dialogue tells which frame of one connection answers which request. Replies
// come in the order of requests, but for what a server says out of turn, and
// for pub/sub commands, which have one confirmation for each channel.
type dialogue struct {
	turns    []*turn
	channels map[string]bool // confirmed subscriptions, see note
}

func (d *dialogue) ask(t *turn) { d.turns = append(d.turns, t) }

// answer returns the request that f answers, or begins to answer, and nil for a
// frame that comes out of turn or goes on with an answer.
func (d *dialogue) answer(f frame) *turn {
	if len(d.turns) > 0 && d.turns[0].confirmedBy(f) {
		return d.confirm(d.turns[0], f)
	}
	if d.outOfTurn(f) {
		d.note(f) // a cluster node unsubscribes by itself when a slot moves away
		return nil
	}
	t := d.pop()
	if t.command == "reset" && f.kind == '+' {
		d.channels = nil
	}
	return t
}

// local takes the next turn if it is one that the relay answers itself.
func (d *dialogue) local() *turn {
	if len(d.turns) == 0 || !d.turns[0].fate.local {
		return nil
	}
	return d.pop()
}

func (d *dialogue) pop() *turn {
	t := d.turns[0]
	d.turns[0] = nil
	d.turns = d.turns[1:]
	return t
}

func (d *dialogue) outOfTurn(f frame) bool {
	switch {
	case f.kind == '>', f.kind == '\n', len(d.turns) == 0:
		return true
	case f.kind == '*' && len(d.channels) > 0 && len(f.words) > 0: // RESP2
		return slices.Contains([]string{"message", "pmessage", "smessage"}, f.words[0])
	}
	return false
}

// confirm takes one confirmation of t, the turn at the head, and the turn
// itself with the last.
func (d *dialogue) confirm(t *turn, f frame) *turn {
	first := t.pending == 0
	if first {
		t.pending = d.confirmations(t)
	}
	d.note(f)
	if t.pending--; t.pending == 0 {
		d.pop()
	}
	if !first {
		return nil
	}
	return t
}

// confirmations is how many frames answer t. To unsubscribe without a name is
// to leave all channels of the family; where there are none, that is said once.
func (d *dialogue) confirmations(t *turn) int {
	if t.named > 0 {
		return t.named
	}
	family, _, _ := pubsub(t.command)
	n := 0
	for channel := range d.channels {
		if strings.HasPrefix(channel, family+":") {
			n++
		}
	}
	return max(n, 1)
}

// note keeps account of the subscriptions.
func (d *dialogue) note(f frame) {
	if len(f.words) < 2 {
		return
	}
	family, leaving, ok := pubsub(f.words[0])
	channel := family + ":" + f.words[1]
	switch {
	case !ok:
	case leaving:
		delete(d.channels, channel)
	default:
		if d.channels == nil {
			d.channels = make(map[string]bool)
		}
		d.channels[channel] = true
	}
}

// confirmedBy reports whether f is a confirmation of the pub/sub command t: an
// array in RESP2, a push in RESP3. A refusal is an ordinary reply.
func (t *turn) confirmedBy(f frame) bool {
	_, _, ok := pubsub(t.command)
	return ok && (f.kind == '*' || f.kind == '>') && len(f.words) > 0 && f.words[0] == t.command
}

// pubsub takes the name of a pub/sub command apart: its family is "" for
// channels, "p" for patterns, "s" for shard channels.
func pubsub(command string) (family string, leaving, ok bool) {
	prefix, ok := strings.CutSuffix(command, "subscribe")
	if !ok || !slices.Contains([]string{"", "p", "s", "un", "pun", "sun"}, prefix) {
		return "", false, false
	}
	family = strings.TrimSuffix(prefix, "un")
	return family, family != prefix, true
}
