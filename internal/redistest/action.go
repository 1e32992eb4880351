package redistest

// Action is what a Rule does to a request: one of the constants below, or
// ReplyWith.
type Action interface {
	// fate plans what becomes of a request; released is closed by Rule.Release.
	fate(released <-chan struct{}) fate
}

const (
	// SwallowReply lets the server execute the request and keeps the reply.
	// The connection stalls: it stays open, and later replies stay away too.
	SwallowReply verb = iota
	// SwallowRequest keeps the request from the server, and the connection
	// stalls as with SwallowReply: for the client the two look the same.
	SwallowRequest
	// DropReply lets the server execute the request, and closes the connection
	// when the reply has come. Replies to earlier requests are delivered.
	DropReply
	// DropRequest keeps the request, and all that follow on its connection,
	// from the server, and closes the connection once earlier requests are
	// answered.
	DropRequest
	// Hold keeps the request, and those behind it on its connection, until
	// Rule.Release. Then they go to the server, even if the client has given
	// up.
	Hold
	// HoldReply lets the server execute the request, and keeps the reply and
	// those behind it until Rule.Release.
	HoldReply
)

// ReplyWith keeps the request from the server and answers it with these bytes
// of RESP, line end included: "-LOADING Redis is loading\r\n". The answer keeps
// its place among the replies of a pipeline.
func ReplyWith(raw string) Action { return canned(raw) }

type verb int

type canned string

// fate is what becomes of one request and of its reply. The zero fate lets both
// pass.
type fate struct {
	hold  <-chan struct{} // the request waits for this; nil: it does not
	local bool            // the request does not reach the server; reply is all there is
	deaf  bool            // nothing more is read from the client
	reply parcel          // how the reply travels; its data too, if local
}

// never is a channel to wait for in vain.
var never = make(chan struct{})

func (v verb) fate(released <-chan struct{}) fate {
	switch v {
	case SwallowReply:
		return fate{reply: parcel{hold: never}}
	case SwallowRequest:
		return fate{local: true, reply: parcel{hold: never}}
	case DropReply:
		return fate{reply: parcel{last: true}}
	case DropRequest:
		return fate{local: true, deaf: true, reply: parcel{last: true}}
	case Hold:
		return fate{hold: released}
	default: // HoldReply
		return fate{reply: parcel{hold: released}}
	}
}

func (c canned) fate(<-chan struct{}) fate {
	return fate{local: true, reply: parcel{data: []byte(c)}}
}

// strikesReply reports whether the fault happens only when the reply has come.
func (f fate) strikesReply() bool {
	return !f.local && (f.reply.hold != nil || f.reply.last)
}
