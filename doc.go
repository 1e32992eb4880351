// Package redislock is a mutual-exclusion lock that lives in Redis.
package redislock
