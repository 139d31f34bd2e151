package palisade

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// Client takes locks of one cluster, reads and writes its records, and watches both. It may be used by several
// goroutines, and need not be closed: each lock and each watch has a connection of its own, and the connections of other
// requests are kept for 5 s after the last of them.
type Client struct {
	// Records are the cluster's records.
	Records Records

	endpoints []string
	options   Options
	transport *http.Transport
	// lastAnswer is the index of the endpoint that has answered the last request.
	lastAnswer atomic.Int32
}

var errNotReading = errors.New("the node does not read what the client sends")

const (
	// cancelWait bounds how long a Lock whose context has ended waits for the node to confirm that the request is
	// withdrawn.
	cancelWait = time.Second
	// doRelease bounds how long Do waits for its release to be confirmed.
	doRelease = 30 * time.Second
)

// NewClient makes a client for the cluster with these nodes: HOST:PORT, separated by commas or spaces. A bare port takes
// the host of the endpoint before it ("127.0.0.1:7401,7402,7403"), and an endpoint may be a URL, as palisade dev prints
// it. It does not connect yet. One node is enough to find the others, as long as it runs.
func NewClient(endpoints string, options Options) (*Client, error) {
	list, err := splitEndpoints(endpoints, options.TLS != nil)
	if err != nil {
		return nil, err
	}
	if options.Token != "" && options.TLS == nil {
		return nil, errors.New("palisade: Options.Token needs Options.TLS: without TLS the token is sent in clear text")
	}
	if strings.ContainsAny(options.Token, "\r\n") {
		return nil, errors.New("palisade: Options.Token has a line break; read the token file without its last one")
	}
	if options.Patience < 0 {
		return nil, fmt.Errorf("palisade: Options.Patience is %v; it must be positive", options.Patience)
	}
	if options.Patience == 0 {
		options.Patience = defaultPatience
	}
	c := &Client{endpoints: list, options: options, transport: newTransport(options)}
	c.Records = Records{c}
	return c, nil
}

// Lock acquires a lock. The errors are ErrHeld (the lock is held, and Wait is 0), ErrTimeout (the wait is over),
// ErrUnreachable, a *Refused with another code of the server, or ctx.Err().
//
// ctx is for the acquire alone: when it ends, the wait ends, and the queue position is given up. A lock that was granted
// outlives it, until [Lock.Release]. (A lock that ends with a context is that of [Client.Do].)
//
// If the connection breaks before the node has answered at all, the request is sent again, and the first one may leave a
// session behind that keeps the lock, or a position in its queue, for one TTL.
func (c *Client) Lock(ctx context.Context, key string, options LockOptions) (*Lock, error) {
	return c.acquire(ctx, valuesOf{ctx}, []string{key}, options)
}

// LockAll acquires several locks together or not at all: up to 32, with one token for all. Requests that name the same
// keys in different orders never wait for one another in a circle.
func (c *Client) LockAll(ctx context.Context, keys []string, options LockOptions) (*Lock, error) {
	return c.acquire(ctx, valuesOf{ctx}, keys, options)
}

// Do acquires a lock, calls f, and releases the lock when f returns, with or without an error, or panics.
//
// The context that f gets ends with ctx, and when the lock is lost; f must stop then. Do never releases the lock while f
// runs: another holder would begin before f has stopped. So an f that ignores its context keeps the lock as long as it
// runs, or until its lease ends.
//
// Do returns the error of the acquire, or that of f. If the lock was lost while f ran, the error is ErrLost, too, even if
// f returned nil: another holder may have been at work at the same time. Do waits for the confirmation of the release
// for at most 30 s; that it is missing is no error, because the lock is free when its TTL is over.
func (c *Client) Do(ctx context.Context, key string, options LockOptions, f func(context.Context, *Lock) error) error {
	return c.DoAll(ctx, []string{key}, options, f)
}

// DoAll is [Client.Do] with several locks, which are acquired together.
func (c *Client) DoAll(
	ctx context.Context, keys []string, options LockOptions, f func(context.Context, *Lock) error,
) (err error) {
	lock, err := c.acquire(ctx, ctx, keys, options)
	if err != nil {
		return err
	}
	defer func() {
		patience, cancel := context.WithTimeout(context.Background(), doRelease)
		defer cancel()
		var lost *LostError
		if !errors.As(lock.Release(patience), &lost) {
			return
		}
		if err == nil {
			err = lost
		} else if !errors.Is(err, ErrLost) {
			err = &bothError{err: err, lost: lost}
		}
	}()
	return f(lock.Context(), lock)
}

// acquire asks for a lock whose Context is derived from base.
func (c *Client) acquire(ctx, base context.Context, keys []string, options LockOptions) (*Lock, error) {
	asked, err := options.claim(keys)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	lock := newLock(base, keys)
	lock.run = newRunner(c, lock, asked)
	go lock.run.run()
	select {
	case err := <-lock.run.result:
		if err == nil {
			return lock, nil
		}
		lock.cancel(err)
		return nil, err
	case <-ctx.Done():
	}
	// The grant may arrive in this moment: it is released, too.
	lock.run.release()
	lock.cancel(ctx.Err())
	timer := time.NewTimer(cancelWait)
	defer timer.Stop()
	select {
	case <-lock.run.done:
	case <-timer.C:
	}
	return nil, fmt.Errorf("palisade: gave up the lock %q: %w", keys, ctx.Err())
}
