// Package servertest tests package redislock against real Redis servers that it
// starts and stops itself. It has no code of its own.
package servertest
