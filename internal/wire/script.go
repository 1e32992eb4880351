package wire

import (
	"crypto/sha1" // the name Redis gives to a script, not a matter of security
	"encoding/hex"
	"fmt"
	"strings"
)

// Script is a Lua script and the name that Redis knows it by.
type Script struct {
	Source string
	Digest string // its SHA1, in hex
	name   any    // Digest as an argument
}

// NewScript joins parts of Lua to a script.
func NewScript(parts ...string) *Script {
	source := withoutComments(strings.Join(parts, ""))
	sum := sha1.Sum([]byte(source))
	s := &Script{Source: source, Digest: hex.EncodeToString(sum[:])}
	s.name = s.Digest
	return s
}

// withoutComments shortens what goes over the wire when Redis does not know the
// script yet. The files hold comments on lines of their own only.
func withoutComments(source string) string {
	var b strings.Builder
	for line := range strings.Lines(source) {
		if text := strings.TrimSpace(line); text != "" && !strings.HasPrefix(text, "--") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// isNoScript tells whether the server does not know the script of a request.
func isNoScript(err error) bool {
	if err == nil {
		return false // most often; errors.As would allocate
	}
	return HasState(err, "NOSCRIPT")
}

// Unexpected is the error of a reply that no script gives.
func Unexpected(reply string) error {
	return fmt.Errorf("unexpected script reply %.20q", reply)
}
