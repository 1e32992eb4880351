package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// serverUsage is what a server has done so far, of the commands in question.
type serverUsage struct {
	commands    float64
	time        time.Duration // in those commands, as commandstats has it
	cpu         time.Duration // of the process, in user and system mode
	connections int
}

// inspectServer counts the commands in sends. A script's own calls stand in
// commandstats beside what clients send, and their time a second time; so it must
// be known which commands are sent.
func inspectServer(ctx context.Context, admin *redis.Client, sends []string) (serverUsage, error) {
	info, err := admin.Info(ctx, "all").Result()
	if err != nil {
		return serverUsage{}, err
	}
	return parseInfo(info, sends), nil
}

func parseInfo(info string, sends []string) serverUsage {
	var u serverUsage
	for line := range strings.Lines(info) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch key {
		case "used_cpu_sys", "used_cpu_user":
			u.cpu += seconds(value)
		case "connected_clients":
			_, _ = fmt.Sscan(value, &u.connections)
		}
		for _, command := range sends {
			var calls, usec float64
			if key == "cmdstat_"+command {
				_, _ = fmt.Sscanf(value, "calls=%g,usec=%g", &calls, &usec)
				u.commands += calls
				u.time += time.Duration(usec) * time.Microsecond
			}
		}
	}
	return u
}

func seconds(s string) time.Duration {
	var f float64
	_, _ = fmt.Sscan(s, &f)
	return time.Duration(f * float64(time.Second))
}

// since is what was done since before. The connections are those of now.
func (u serverUsage) since(before serverUsage) serverUsage {
	u.commands -= before.commands
	u.time -= before.time
	u.cpu -= before.cpu
	return u
}

func serverVersion(ctx context.Context, admin *redis.Client) (string, error) {
	info, err := admin.Info(ctx, "server").Result()
	if err != nil {
		return "", err
	}
	_, rest, _ := strings.Cut(info, "redis_version:")
	version, _, _ := strings.Cut(rest, "\r\n")
	return version, nil
}
