package main

import (
	"context"
	"crypto/tls"
	"net"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

func rueidislockAdapter() adapter {
	return adapter{
		id: "rueidislock", title: "rueidislock", library: true, groups: everywhere | growths,
		config: "KeyMajority 1 and NoLoopTracking, which its README recommends for one Redis of 7.0.5 or newer; KeyValidity is the TTL; " +
			"TryNextAfter is its default, so it gives up a request that takes more than 20 ms. " +
			"It always renews, every TTL/2.",
		module: "github.com/redis/rueidis",
		sends:  []string{"eval", "evalsha", "ping"},
		open: func(s settings) (locker, error) {
			l, err := rueidislock.NewLocker(rueidislock.LockerOption{
				ClientOption:   s.rueidisOption(),
				KeyMajority:    1,
				NoLoopTracking: true,
				KeyValidity:    s.ttl,
			})
			return rueidislockLocker{l}, err
		},
	}
}

func (s settings) rueidisOption() rueidis.ClientOption {
	o := rueidis.ClientOption{InitAddress: []string{s.addr}}
	if s.network.delays() {
		o.DialCtxFn = func(ctx context.Context, addr string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return s.network.dialer(s.process, dialer.DialContext)(ctx, "tcp", addr)
		}
	}
	return o
}

type rueidislockLocker struct{ rueidislock.Locker }

func (l rueidislockLocker) lock(ctx context.Context, name string) (held, error) {
	_, cancel, err := l.WithContext(ctx, name)
	return rueidislockHeld(cancel), err
}

func (l rueidislockLocker) withLock(ctx context.Context, name string, section func(context.Context) error) error {
	inside, cancel, err := l.WithContext(ctx, name)
	if err != nil {
		return err
	}
	defer cancel()
	return section(inside)
}

func (l rueidislockLocker) close() { l.Close() }

type rueidislockHeld context.CancelFunc

func (h rueidislockHeld) unlock(context.Context) error {
	h()
	return nil
}
