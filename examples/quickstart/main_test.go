package main

import (
	"bufio"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func build(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "quickstart.exe")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}

func TestBothWorkersGetTheLockAndALateWriteIsRefused(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), build(t)).CombinedOutput()
	require.NoError(t, err, "%s", out)
	granted := regexp.MustCompile(`(?m)^(alice|bob) holds the lock, fence (\d+)$`).FindAllStringSubmatch(string(out), -1)
	require.Len(t, granted, 2, "%s", out)
	require.NotEqual(t, granted[0][1], granted[1][1])
	first, err := strconv.ParseInt(granted[0][2], 10, 64)
	require.NoError(t, err)
	second, err := strconv.ParseInt(granted[1][2], 10, 64)
	require.NoError(t, err)
	require.Greater(t, second, first, "fences of one name grow")
	require.Regexp(t, `(?m)^a write that comes too late: paused worker has fence \d+, and \d+ has written$`, string(out))
}

// Both workers stop: the one that holds the lock and the one that waits for it.
func TestASignalStopsIt(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no signals to send")
	}
	binary := build(t)
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			program := exec.CommandContext(t.Context(), binary)
			stdout, err := program.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, program.Start())
			lines := bufio.NewReader(stdout)
			line, err := lines.ReadString('\n')
			require.NoError(t, err)
			require.Contains(t, line, "holds the lock")
			require.NoError(t, program.Process.Signal(signal))
			rest, err := io.ReadAll(lines)
			require.NoError(t, err)
			var exit *exec.ExitError
			require.ErrorAs(t, program.Wait(), &exit)
			require.Equal(t, 1, exit.ExitCode())
			require.Regexp(t, `(?m)^(alice|bob) is done, error: (.* signal received|context canceled)$`, string(rest))
			require.Regexp(t, `(?m)^(alice|bob) is done, error: redislock: acquire "lock:order:42": `, string(rest))
		})
	}
}
