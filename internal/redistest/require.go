package redistest

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
)

// Environment variables that decide about real servers.
const (
	// EnvRequire set to 1 makes a missing redis-server a failure, not a skip.
	EnvRequire = "REDISLOCK_REQUIRE_REDIS"
	// EnvBinary names the server binary, in place of redis-server in PATH.
	EnvBinary = "REDISLOCK_REDIS_SERVER"
	// EnvLong set to anything has the long tests run, see Long.
	EnvLong = "REDISLOCK_LONG_TESTS"
)

const howToInstall = "install it (apt-get install redis-server, brew install redis) or name one in " + EnvBinary

// Require skips the test where no real Redis can be started, with one line that
// says how to get one. With REDISLOCK_REQUIRE_REDIS=1 it fails the test
// instead. Start calls it.
func Require(t testing.TB) {
	t.Helper()
	findServer(t)
}

// Long skips a test that watches failovers, topologies or chaos for longer than
// somebody who has just changed a line wants to wait. CI always runs them.
func Long(t testing.TB) {
	t.Helper()
	if os.Getenv(EnvLong) == "" {
		t.Skipf("takes long: set %s=1 to run it, as CI does", EnvLong)
	}
}

// findServer returns the path of the server binary, or ends the test.
func findServer(t testing.TB) string {
	t.Helper()
	name := os.Getenv(EnvBinary)
	if name == "" {
		name = "redis-server"
	}
	path, err := exec.LookPath(name)
	if err == nil && !signals {
		err = fmt.Errorf("no POSIX signals on this system")
	}
	if err == nil {
		return path
	}
	if os.Getenv(EnvRequire) == "1" {
		t.Fatalf("redistest: no redis-server: %v; %s", err, howToInstall)
	}
	t.Skipf("redistest: no redis-server, test skipped: %v; %s", err, howToInstall)
	return ""
}

var versionPattern = regexp.MustCompile(`\bv=(\d+)\.`)

// majorVersion asks the binary, since an unknown setting on the command line
// keeps a server from starting.
func majorVersion(path string) (int, error) {
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		return 0, fmt.Errorf("%s --version: %w", path, err)
	}
	found := versionPattern.FindSubmatch(out)
	if found == nil {
		return 0, fmt.Errorf("%s --version: no version in %q", path, out)
	}
	return strconv.Atoi(string(found[1]))
}
