package main

import (
	"context"
	"errors"
	"time"
)

// extender is a lock whose library leaves the renewal to its user.
type extender interface {
	held
	extend(ctx context.Context, ttl time.Duration) error
}

// keep gives h a watchdog such as its user has to write, if the settings ask for
// one: a goroutine, a ticker, a request every TTL/3.
func (s settings) keep(h extender) held {
	if !s.renew {
		return h
	}
	ctx, cancel := context.WithCancel(context.Background())
	k := &kept{extender: h, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(k.ended)
		k.err = renew(ctx, h, s.ttl)
	}()
	return k
}

type kept struct {
	extender
	cancel context.CancelFunc
	ended  chan struct{}
	err    error // once ended
}

// renew extends h every TTL/3. It ends with ctx, or with an error before.
func renew(ctx context.Context, h extender, ttl time.Duration) error {
	tick := time.NewTicker(ttl / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := h.extend(ctx, ttl); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

func (k *kept) unlock(ctx context.Context) error {
	k.cancel()
	<-k.ended
	return errors.Join(k.err, k.extender.unlock(ctx))
}
