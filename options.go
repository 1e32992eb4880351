package redislock

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// MinTTL is the shortest lease that can be asked for. Below it the time that
// clocks and the network need is no longer small against the lease.
const MinTTL = 10 * time.Millisecond

// MaxMetadata is the longest text, in bytes, that WithMetadata takes. A server
// that cuts the connection where a request is too long for it would cut off the
// requests of others that travel along.
const MaxMetadata = 64 << 10

const (
	defaultPrefix         = "lock:"
	defaultFenceRetention = time.Hour
	defaultPollInterval   = 5 * time.Second
)

// Option configures a [Locker]. A nil Option does nothing.
type Option func(*options)

type options struct {
	prefix         string
	logger         *slog.Logger
	reports        *reports // what brings lines to it
	fenceRetention time.Duration
	usualRetention any // the same in ms, as an argument of a command
	pollInterval   time.Duration
	replicas       int
	replicaTimeout time.Duration
	nodeTimeout    time.Duration // 0: by the TTL
}

func newOptions(opts []Option) *options {
	o := &options{
		prefix:         defaultPrefix,
		logger:         slog.New(slog.DiscardHandler),
		fenceRetention: defaultFenceRetention,
		pollInterval:   defaultPollInterval,
	}
	for _, opt := range opts {
		if opt != nil {
			opt(o)
		}
	}
	o.reports = &reports{logger: o.logger}
	o.usualRetention = milliseconds(o.fenceRetention)
	return o
}

// WithPrefix sets what stands before every name in Redis. The default is
// "lock:". Lockers exclude each other only if their prefix is the same. An
// empty prefix is allowed: the key is then the name itself.
func WithPrefix(prefix string) Option {
	return func(o *options) { o.prefix = prefix }
}

// WithLogger sets the logger for warnings. By default, and with nil, nothing is
// logged. A lost lock, a release that finds nothing to release, and the start
// of an outage while waiting are warnings. Tokens are shortened to their first
// eight characters, since a token is all that is needed to release a lock.
//
// The handler is called by one goroutine of the Locker at a time, which ends
// when nothing is left to be written, and in the order of the events, after the
// contexts concerned have ended. A slow or blocked handler holds up no lock:
// calls that have reported something wait for its line, for 250 ms at most, and
// of 32768 lines that wait the rest is counted and left out. If it panics, its
// line is lost.
func WithLogger(logger *slog.Logger) Option {
	return func(o *options) {
		if logger != nil {
			o.logger = logger
		}
	}
}

// WithFenceRetention sets how long Redis keeps the record of a name's last
// fencing token after the lock was last acquired or extended. The default is
// one hour. Fencing tokens grow even if the clock of the Redis server is set
// back, as long as it is set back by less than this. The record is never kept
// shorter than the lease. It panics unless d is positive.
func WithFenceRetention(d time.Duration) Option {
	mustBePositive("WithFenceRetention", d)
	d = min(d, maxLease)
	return func(o *options) { o.fenceRetention = d }
}

// WithPollInterval sets the longest time that the first waiter for a name goes
// without asking Redis, whatever pushes it expects. The default is five
// seconds. A waiter notices what nobody tells it (a lock that was deleted by
// hand or released by another library, a lost message) within as long again as
// it has waited, but 100 ms at least, and at the latest when the holder's lease
// ends or this interval is over: it asks often at first, and once per interval
// in the long run. On a quorum it is the longest pause of the polling, which
// grows to 500 ms at most. Less than 10 ms counts as 10 ms. It panics unless d
// is positive.
func WithPollInterval(d time.Duration) Option {
	mustBePositive("WithPollInterval", d)
	d = min(max(d, wire.FirstPause), maxLease)
	return func(o *options) { o.pollInterval = d }
}

// WithReplicas makes an acquisition count only once n replicas have
// acknowledged it, waiting for at most timeout (in ms, rounded up) in the same
// round trip, with the command WAIT. If fewer have, the lock is released again
// and the acquisition fails with [ErrNotReplicated]. A lock that another
// process hands over takes a round trip more. The default is 0: replicas are
// not asked. timeout should be shorter than the TTL, and than the client's
// ReadTimeout; Redis may take 100 ms longer to say that it is over. It is not
// for a quorum.
//
// Acquisitions of one Locker that wait for replicas travel in batches: two at a
// time (on a Cluster, two to each node), with one WAIT for all acquisitions of
// a batch, and apart from all other requests. So they occupy two connections,
// and what keeps a lock never waits for them. While replicas are silent, an
// acquisition may have to wait for a batch before its own, and one that finds
// the lock taken hears of it only when the WAIT of its batch is over. Should
// fewer than n have the last lock of a batch in time, all locks that the batch
// has acquired count as not acknowledged.
//
// It narrows the window in which a failover forgets a lock and does not close
// it: a replica that has not acknowledged can be the one that is promoted, and
// renewals and releases are not waited for (Redis documentation, WAIT). It
// panics if n is negative, or timeout not positive.
func WithReplicas(n int, timeout time.Duration) Option {
	if n < 0 {
		panic(fmt.Sprintf("redislock: WithReplicas(%d): must not be negative", n))
	}
	mustBePositive("WithReplicas", timeout)
	timeout = min(timeout, maxLease)
	return func(o *options) { o.replicas, o.replicaTimeout = n, timeout }
}

// WithNodeTimeout sets how long a Locker made by [NewQuorum] waits for the
// answer of one server to one request. The default is 50 ms, or a twentieth of
// the TTL if that is shorter, but at least 5 ms. It should be well above the
// usual time of a round trip, and small against the TTL: an attempt may take it
// twice, and the validity runs meanwhile. Other Lockers do not need it. Less
// than 1 ms counts as 1 ms. It panics unless d is positive.
func WithNodeTimeout(d time.Duration) Option {
	mustBePositive("WithNodeTimeout", d)
	d = min(max(d, time.Millisecond), maxLease)
	return func(o *options) { o.nodeTimeout = d }
}

func mustBePositive(option string, d time.Duration) {
	if d <= 0 {
		panic(fmt.Sprintf("redislock: %s(%s): must be positive", option, d))
	}
}

// AcquireOption configures one acquisition. It holds no state: the same value
// may be used for any number of acquisitions, also at the same time. A nil one
// does nothing.
type AcquireOption func(*acquireOptions)

type acquireOptions struct {
	watchdog   bool
	maxHold    time.Duration
	hasMaxHold bool
	minHold    time.Duration
	metadata   string
}

func (o acquireOptions) with(opts []AcquireOption) acquireOptions {
	if len(opts) == 0 {
		return o
	}
	changed := o // on the heap: functions see its address
	for _, opt := range opts {
		if opt != nil {
			opt(&changed)
		}
	}
	return changed
}

func (o acquireOptions) check() error {
	if o.hasMaxHold && o.maxHold <= 0 {
		return fmt.Errorf("%w: a maximal hold of %s is not positive", ErrInvalidTTL, o.maxHold)
	}
	if o.minHold < 0 {
		return fmt.Errorf("%w: a minimal hold of %s is negative", ErrInvalidTTL, o.minHold)
	}
	if len(o.metadata) > MaxMetadata {
		return fmt.Errorf("%w: %d bytes are more than %d", ErrInvalidMetadata, len(o.metadata), MaxMetadata)
	}
	return nil
}

// WithWatchdog has a goroutine renew the lease every third of its TTL until the
// lock is released or lost. It is the default in WithLock, and not in Acquire,
// TryAcquire and Resume. The watchdog does not replace the check at release.
func WithWatchdog() AcquireOption {
	return func(o *acquireOptions) { o.watchdog = true }
}

// WithoutWatchdog leaves renewal to the caller ([Lock.Extend]).
func WithoutWatchdog() AcquireOption {
	return func(o *acquireOptions) { o.watchdog = false }
}

// WithMaxHold stops the watchdog d after the lock was granted, so that a holder
// that never comes to an end loses its lock within d + TTL. The default is no
// limit. It stops neither Extend nor anything of a lock without a watchdog. An
// acquisition with d <= 0 fails with ErrInvalidTTL.
func WithMaxHold(d time.Duration) AcquireOption {
	return func(o *acquireOptions) { o.maxHold, o.hasMaxHold = min(d, maxLease), true }
}

// WithMinHold has the name stay taken for d at least, counted from the grant by
// the clock of the Redis server: for a job that must not run again so soon, on
// another machine whose clock differs or that hears of it late. A Release
// before d is over succeeds, and leaves the name taken until then, without any
// process that has to see to it; a waiter is served then. A later Release frees
// the lock as always. A lease that ends before d, since the holder died or was
// detached, is not prolonged: choose a TTL above d, or a watchdog, if d is to
// hold in that case too. Extend is not concerned.
//
// A name that is kept shows as held in [Locker.Inspect], with the metadata of
// its last holder and without a token. The default is 0, none. Resume with this
// option counts from the grant as well; without it, the adopted lock has no
// minimal hold. On a quorum each server counts by its own clock. An acquisition
// that fails keeps nothing. A negative d fails with [ErrInvalidTTL].
func WithMinHold(d time.Duration) AcquireOption {
	return func(o *acquireOptions) { o.minHold = min(d, maxLease) }
}

// WithMetadata keeps a text beside the token in Redis, for [Locker.Inspect] and
// for people with redis-cli: the holder of the lock. It may hold any bytes. A
// text longer than [MaxMetadata] fails with [ErrInvalidMetadata]. Resume
// otherwise ignores it and leaves the metadata as it stands.
func WithMetadata(metadata string) AcquireOption {
	return func(o *acquireOptions) { o.metadata = metadata }
}

// queueLifetime is for how long, in ms, the queue of a name stays after the
// last change. Everybody in it asks again within a poll interval, and that of
// another Locker may be longer than ours: hence ten minutes at least.
func (o *options) queueLifetime() int64 {
	return milliseconds(max(10*time.Minute, min(o.pollInterval, maxLease/3)*3))
}

// retention is how long the record of a fence is kept, in ms: never shorter
// than the lease.
func (o *options) retention(ttl time.Duration) any {
	if longer := min(ttl, maxLease) + time.Second; longer > o.fenceRetention {
		return milliseconds(longer)
	}
	return o.usualRetention
}

// checkTTL is every method's check of a TTL, before any traffic.
func checkTTL(ttl time.Duration) error {
	if ttl < MinTTL {
		return fmt.Errorf("%w: %s is below %s", ErrInvalidTTL, ttl, MinTTL)
	}
	return nil
}

// maxLease is where every duration that a user gives is cut off, before
// anything is computed from it. Redis itself refuses an expiry that lies past
// the end of its 64-bit clock, and sums of the longest Go durations overflow. A
// century is out of reach of any program, and twice a century can be added to
// today without either.
const maxLease = 100 * 365 * 24 * time.Hour

// milliseconds is d as Redis takes it, rounded up so that a lease is never
// shorter than asked for.
func milliseconds(d time.Duration) int64 {
	d = min(d, maxLease)
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
