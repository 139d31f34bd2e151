package palisade

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// FenceHeader is the header that carries a fencing token: a resource refuses a request with a lower one than it has
// seen.
const FenceHeader = "X-Fence-Token"

// Lock is a lock that was granted. It is renewed in the background until it is released or lost. All methods may be
// called from several goroutines.
type Lock struct {
	keys   []string
	run    *runner
	base   context.Context
	ctx    context.Context
	cancel func(error)
	lost   chan struct{}

	mu       sync.Mutex
	state    lockState
	token    uint64
	signed   []string
	leaseEnd instant
	lostErr  *LostError
}

type lockState int

const (
	stateAsked lockState = iota
	stateHeld
	stateLost
	stateReleased
)

type lockKey struct{}

func newLock(base context.Context, keys []string) *Lock {
	l := &Lock{keys: append([]string(nil), keys...), base: base, lost: make(chan struct{})}
	l.ctx, l.cancel = withCause(context.WithValue(base, lockKey{}, l))
	return l
}

// Keys are the lock's keys, in the order in which they were asked for.
func (l *Lock) Keys() []string { return append([]string(nil), l.keys...) }

// Token is the fencing token: greater than that of every earlier grant in the cluster. Send it with every write to what
// the lock protects ([Lock.SetHeader]), and let the resource refuse a lower one than it has seen.
func (l *Lock) Token() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.token
}

// SignedTokens are the signed tokens of the grant, one for each of Keys and in their order, if the cluster signs its
// grants.
func (l *Lock) SignedTokens() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.signed...)
}

// SetHeader puts the fencing token into a request's header, as X-Fence-Token.
func (l *Lock) SetHeader(header http.Header) {
	header.Set(FenceHeader, strconv.FormatUint(l.Token(), 10))
}

// Context ends when the lock is lost or released. Pass it to the work that the lock protects. [Cause] tells why it has
// ended, and so does [context.Cause] since Go 1.20: a *LostError, or ErrReleased.
//
// It has the values of the context that the lock was acquired with. It ends with that context only if the lock was
// acquired by [Client.Do].
func (l *Lock) Context() context.Context { return l.ctx }

// Lost is closed when the lock is lost, at the latest at the end of its lease. It stays open if the lock is released.
func (l *Lock) Lost() <-chan struct{} { return l.lost }

// Err is nil while the lock is held, a *LostError after it was lost, and ErrReleased after Release was called.
func (l *Lock) Err() error {
	l.look()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.state {
	case stateLost:
		return l.lostErr
	case stateReleased:
		return ErrReleased
	}
	return nil
}

// Valid reports whether the lock is held, by the clock: after the process was paused for longer than the lease, the
// first look says no. A pause may also come right after the look, so a look is no substitute for the fencing token.
func (l *Lock) Valid() bool { return l.Remaining() > 0 }

// Remaining is the time until the end of the lease, if it is not renewed until then; 0 if the lock is not held.
func (l *Lock) Remaining() time.Duration {
	at := l.look()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != stateHeld {
		return 0
	}
	return l.leaseEnd.sub(at)
}

// look reads the clock, and says at once that the lock is lost if its lease has ended.
func (l *Lock) look() instant {
	l.mu.Lock()
	at := now()
	expired := l.state == stateHeld && at >= l.leaseEnd
	l.mu.Unlock()
	if expired && l.lose(&LostError{Code: "expired", Message: "no node has renewed the lease in time"}) {
		l.run.wake()
	}
	return at
}

// Release gives the lock back. It returns nil when a node has confirmed it, or when the lease has ended at the cluster
// too (in the moment in which it ends here, up to a margin earlier); a *LostError if the lock had been lost before; and ctx.Err() if ctx is done earlier, while the release goes on in
// the background until then. Whatever it returns, the lock counts as released from the moment of the call: Context
// ends, and Lost stays open. A second call waits for the same release.
//
// Release the lock when the work has stopped, not in order to stop it.
func (l *Lock) Release(ctx context.Context) error {
	l.look()
	l.mu.Lock()
	if l.state == stateLost {
		defer l.mu.Unlock()
		return l.lostErr
	}
	first := l.state == stateHeld
	l.state = stateReleased
	l.mu.Unlock()
	if first {
		l.cancel(ErrReleased)
		l.run.release()
	}
	select {
	case <-l.run.done:
		return l.run.releaseErr
	default:
	}
	select {
	case <-l.run.done:
		return l.run.releaseErr
	case <-ctx.Done():
		return ctx.Err()
	}
}

// SetValue replaces the lock's value, at all its keys, and returns when a node has confirmed it. A value has at most
// 4,096 bytes; the client refuses a longer one at once, as "invalid". Several calls at the same time have no order: make
// the next one when the last one has returned. If ctx is done earlier, the value may be replaced or not.
func (l *Lock) SetValue(ctx context.Context, value string) error {
	if len(value) > maxValue {
		text := fmt.Sprintf("the value has %d bytes; a value has at most %d", len(value), maxValue)
		return &Refused{Code: "invalid", Message: text}
	}
	answer := make(chan error, 1)
	begun := l.run.command(func(at instant) {
		n := l.run.engine.setValue(at, value)
		l.run.answers[n] = answer
	})
	if begun {
		select {
		case err := <-answer:
			return err
		case <-l.run.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case err := <-answer:
		return err
	default:
	}
	if err := l.Err(); err != nil {
		return err
	}
	return ErrReleased
}

// extend publishes the end of the lease. It reports false if the lock was found expired meanwhile: a lock that was once
// said to be lost stays lost.
func (l *Lock) extend(leaseEnd instant) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == stateHeld {
		l.leaseEnd = leaseEnd
	}
	return l.state != stateLost
}

func (l *Lock) grant(token uint64, signed []string, leaseEnd instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state, l.token, l.signed, l.leaseEnd = stateHeld, token, signed, leaseEnd
}

// lose says that the lock is lost, if it is held. It reports whether it did.
func (l *Lock) lose(lost *LostError) bool {
	l.mu.Lock()
	if l.state != stateHeld {
		l.mu.Unlock()
		return false
	}
	named := *lost
	named.Lock = fmt.Sprintf("the lock %q (token %d)", strings.Join(l.keys, ", "), l.token)
	l.state, l.lostErr = stateLost, &named
	l.mu.Unlock()
	l.cancel(&named)
	close(l.lost)
	return true
}

// FromContext finds the lock whose [Lock.Context] ctx is, or is derived from.
func FromContext(ctx context.Context) (*Lock, bool) {
	l, found := ctx.Value(lockKey{}).(*Lock)
	return l, found
}

// Cause tells why a context that is derived from [Lock.Context] has ended: a *LostError or ErrReleased if it was for the
// lock, else ctx.Err(). It is what context.Cause tells since Go 1.20, and works with every version.
func Cause(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	for from := ctx; ; {
		l, found := FromContext(from)
		if !found {
			return ctx.Err()
		}
		if err := l.Err(); err != nil {
			return err
		}
		from = l.base
	}
}

// valuesOf has the values of a context, and not its end.
type valuesOf struct{ context.Context }

func (valuesOf) Deadline() (time.Time, bool) { return time.Time{}, false }
func (valuesOf) Done() <-chan struct{}       { return nil }
func (valuesOf) Err() error                  { return nil }
