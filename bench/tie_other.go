//go:build !linux

package main

import "os/exec"

func tie(*exec.Cmd) {}
