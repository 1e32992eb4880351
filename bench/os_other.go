//go:build !unix

package main

import (
	"errors"
	"os"
	"time"
)

var errNotUnix = errors.New("this program needs a Unix system: shared memory and getrusage")

func mapShared(*os.File, int) ([]byte, error) { return nil, errNotUnix }

func unmapShared([]byte) error { return errNotUnix }

func processorTime() (time.Duration, error) { return 0, errNotUnix }
