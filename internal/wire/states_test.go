package wire

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// Answers as servers give them: the texts stand in the programs of Redis
// 6.2.16, 7.0.15, 7.4.1 and 8.0 and of Valkey 8.0.1, and those of scripts were
// seen there.
func TestTransientAnswersOfServers(t *testing.T) {
	script := "ERR Error running script (call to f_2597e0576dd54eb42864e3a1b8392b96e018bcc3): @user_script:1: @user_script: 1: -"
	behind := " script: 2597e0576dd54eb42864e3a1b8392b96e018bcc3, on @user_script:1."
	for _, text := range []string{
		"LOADING Redis is loading the dataset in memory",
		"LOADING Valkey is loading the dataset in memory",
		"LOADING",
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
		"BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.",
		"BUSY Redis is busy running a module command.",
		"BUSY Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
		"READONLY You can't write against a read only replica.",
		"READONLY You can't write against a read only replica." + behind,
		"READONLY Can not run script with write flag on readonly replica",
		script + "READONLY You can't write against a read only replica.",
		"@user_script: 1: -READONLY You can't write against a read only replica.",
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
		"MASTERDOWN Link with MASTER is down, replica-serve-stale-data is set to 'no' and 'allow-stale' flag is not set on the script.",
		"NOREPLICAS Not enough good replicas to write.",
		"NOREPLICAS Not enough good replicas to write." + behind,
		script + "NOREPLICAS Not enough good replicas to write.",
		"CLUSTERDOWN The cluster is down",
		"CLUSTERDOWN The cluster is down and only accepts read commands",
		"CLUSTERDOWN Hash slot not served",
		"TRYAGAIN Multiple keys request during rehashing of slot",
		"ERR max number of clients reached",
		"ERR max number of clients + cluster connections reached",
		"-ERR max number of clients reached",
		"ERR proxy: LOADING Redis is loading",
		"my-proxy.local: READONLY x",
		"ERR Error compiling script (new function): :1: READONLY x", // miniredis
	} {
		require.True(t, IsTransient(serverError(text)), text)
		require.True(t, IsTransient(fmt.Errorf("wrapped: %w", serverError(text))), text)
		require.False(t, MaybeExecuted(serverError(text)), text)
	}
}

// Names and metadata may stand in an answer, and so may those of users. None of
// them makes it a state.
func TestWhatIsQuotedInAnAnswerIsNoState(t *testing.T) {
	for _, text := range []string{
		"ERR unknown command `evalsha`, with args beginning with: `BUSY`, `lock: LOADING x`, ",
		"ERR unknown command 'evalsha', with args beginning with: 'READONLY x' ",
		"NOPERM User BUSY has no permissions to run the 'evalsha' command",
		"NOPERM No permissions to access the 'lock: LOADING' key",
		"WRONGTYPE Operation against a key holding the wrong kind of value: lock: READONLY",
		"ERR wrong key 'NOSCRIPT max number of clients reached'",
		"BUSYKEY Target key name already exists.",
		"BUSYGROUP Consumer Group name already exists",
		"NOTBUSY No scripts in execution right now.",
		"UNKILLABLE Sorry the script already executed write commands against the dataset.",
		"MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist on disk.",
		"OOM command not allowed when used memory > 'maxmemory'.",
		"NOGOODSLAVE No suitable replica to promote",
		"DENIED Redis is running in protected mode",
		"CROSSSLOT Keys in request don't hash to the same slot",
		"",
	} {
		require.False(t, IsTransient(serverError(text)), text)
		require.False(t, HasState(serverError(text), "NOSCRIPT"), text)
		require.False(t, isSplit(serverError(text)), text)
	}
}
