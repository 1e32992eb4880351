package redislock

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// MinTTL is the shortest lease that can be asked for. With a shorter one, clock
// differences and network delays would not be small compared with the lease.
const MinTTL = 10 * time.Millisecond

// MaxMetadata is the longest text, in bytes, that WithMetadata accepts. A
// server closes the connection when a request is too long for it, and so would
// fail the other requests of the same batch.
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

// WithPrefix sets the text before every name in Redis. The default is "lock:".
// Lockers exclude each other only if they use the same prefix on the same
// server (or Cluster) and in the same database number (SELECT, the field DB of
// the client's options). An empty prefix is allowed: the key is then the name
// itself.
func WithPrefix(prefix string) Option {
	return func(o *options) { o.prefix = prefix }
}

// WithLogger sets the logger for warnings. By default, and with nil, nothing is
// logged. A lost lock, a release that finds nothing to release, and the start
// of an outage while waiting are warnings. Tokens are shortened to their first
// eight characters, since a token is all that is needed to release a lock.
//
// One goroutine of the Locker at a time calls the handler, in the order of the
// events, after the contexts concerned have ended. It ends when no line is left
// to write. A slow or blocked handler delays no lock. A call that has reported
// something waits for its line, for 250 ms at most. Beyond 32768 waiting lines
// further ones are counted and dropped. If the handler panics, its line is
// lost.
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
// without asking Redis, even if it expects a push. The default is five seconds.
// Some changes are not pushed: a lock that was deleted by hand or released by
// another library, a lost message. To notice them, a waiter asks after a pause
// as long as the time it has waited so far, but 100 ms at least, and at the
// latest when the holder's lease ends or this interval is over. So it asks
// often at first, and once per interval later. On a quorum it is the longest
// pause of the polling, which grows to 500 ms at most. Less than 10 ms counts
// as 10 ms. It panics unless d is positive.
func WithPollInterval(d time.Duration) Option {
	mustBePositive("WithPollInterval", d)
	d = min(max(d, wire.FirstPause), maxLease)
	return func(o *options) { o.pollInterval = d }
}

// WithReplicas makes an acquisition count only once n replicas have
// acknowledged it, waiting for at most timeout (in ms, rounded up) in the same
// round trip, with the command WAIT. If fewer have, the lock is released again
// and the acquisition fails with [ErrNotReplicated]. A lock that another
// process hands over takes one more round trip. The default is 0: replicas are
// not asked. timeout should be shorter than the TTL, and than the client's
// ReadTimeout; Redis may take 100 ms longer to say that it is over. It is not
// for a quorum.
//
// Acquisitions of one Locker that wait for replicas travel in batches: two at a
// time (on a Cluster, two to each node), with one WAIT for all acquisitions of
// a batch, and separate from all other requests. So they occupy two
// connections, and renewals and releases never wait for them. While replicas do
// not answer, an acquisition may have to wait for an earlier batch, and one
// that finds the lock taken returns only when the WAIT of its batch is over. If
// fewer than n replicas have the last lock of a batch in time, all locks that
// the batch has acquired count as not acknowledged.
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
// twice, and the validity counts from the beginning of the attempt. Other
// Lockers do not need it. Less than 1 ms counts as 1 ms. It panics unless d is
// positive.
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
// may be used for any number of acquisitions, even at the same time. A nil
// AcquireOption does nothing.
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

// WithWatchdog renews the lease every third of its TTL until the lock is
// released or lost. It uses a timer, and a goroutine while a renewal is under
// way. It is the default in WithLock, and not in
// Acquire, TryAcquire and Resume. Check the error of Release even with a
// watchdog.
func WithWatchdog() AcquireOption {
	return func(o *acquireOptions) { o.watchdog = true }
}

// WithoutWatchdog leaves renewal to the caller ([Lock.Extend]).
func WithoutWatchdog() AcquireOption {
	return func(o *acquireOptions) { o.watchdog = false }
}

// WithMaxHold stops the watchdog d after the lock was granted, so that a holder
// that never finishes loses its lock within d + TTL. The default is no limit.
// It does not limit Extend, and has no effect on a lock without a watchdog. An
// acquisition with d <= 0 fails with ErrInvalidTTL.
func WithMaxHold(d time.Duration) AcquireOption {
	return func(o *acquireOptions) { o.maxHold, o.hasMaxHold = min(d, maxLease), true }
}

// WithMinHold keeps the name taken for at least d, counted from the grant by
// the clock of the Redis server. It is for a scheduled job that must not run
// again on a machine whose clock or scheduler is late. A Release before d is
// over succeeds, and leaves the name taken until then. No process needs to live
// that long. A waiter is served when d is over. A later Release frees the lock
// as usual. A lease that ends before d, because the holder died or was
// detached, is not prolonged: choose a TTL above d if the name must stay taken
// in that case too. Extend is not affected.
//
// For a job that runs once per period on one of several replicas, choose d
// longer than one replica can be later than another, and shorter than the
// period less that lateness. With a shorter d a late replica runs the job
// again. With a longer d the name may still be taken at the next tick, which is
// then skipped. Use [Locker.TryAcquire], which does not try again when the name
// is taken. Alternatively put the tick into the name ("report:2026-12-01"):
// then d has no upper bound.
//
// A name that is kept shows as held in [Locker.Inspect], with the metadata of
// its last holder and without a token. The default is 0, none. Resume with this
// option counts from the grant as well; without it, the adopted lock has no
// minimal hold. On a quorum each server counts by its own clock. An acquisition
// that fails keeps nothing. A negative d fails with [ErrInvalidTTL].
func WithMinHold(d time.Duration) AcquireOption {
	return func(o *acquireOptions) { o.minHold = min(d, maxLease) }
}

// WithMetadata stores a text beside the token in Redis, which describes the
// holder for [Locker.Inspect] and redis-cli. It may contain any bytes. A text
// longer than [MaxMetadata] fails with [ErrInvalidMetadata]. Resume otherwise
// ignores the text and does not change the metadata in Redis.
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
