// Package redistest gives tests the real thing: redis-server processes that can
// be paused, killed and restarted, and a TCP relay in front of them that loses,
// delays and fakes chosen requests and replies.
//
//	server := redistest.Start(t)
//	relay := redistest.NewRelay(t, server.Addr())
//	client := relay.Client(t, redistest.NoRetry)
//	rule := relay.Once(redistest.Command("evalsha"), redistest.SwallowReply)
//	... // a call that uses client
//	<-rule.Hit() // the server has executed the script; client will not learn it
//
// StartCluster, StartSentinel, StartReplicated and StartMany start servers that
// work together, or apart, each of them a Server that can fail by itself.
//
// It is imported by tests only. What it starts ends with the test that started
// it, in a Cleanup: no process, no connection and no goroutine is left.
//
// Problems of the tools themselves fail the test with Fatal, so the functions
// that take or keep a testing.TB must be called from the test's own goroutine,
// unless they say otherwise.
package redistest
