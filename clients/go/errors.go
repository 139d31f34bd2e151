package palisade

import (
	"errors"
	"fmt"
)

// The errors to compare with, by [errors.Is].
var (
	// ErrHeld: another session holds the lock, and the request does not wait, or not in so long a queue.
	ErrHeld = errors.New("the lock is held by another session")
	// ErrTimeout: the wait ended without a grant.
	ErrTimeout = errors.New("the wait for the lock is over")
	// ErrLost: the lock was held, and is held no longer, without having been released by its holder.
	ErrLost = errors.New("the lock is lost")
	// ErrReleased: the lock was released by its holder. It is the cause with which [Lock.Context] ends then.
	ErrReleased = errors.New("the lock was released")
	// ErrUnreachable: no node of the cluster could answer in time.
	ErrUnreachable = errors.New("no node of the cluster could answer")
)

// Refused is the server's refusal of a request. Programs decide by Code, one of the codes in docs/api.md;
// Message is for people.
//
// A refusal with the code "held" is [ErrHeld], and one with the code "timeout" is [ErrTimeout].
type Refused struct {
	// Code is "held", "timeout", "invalid", "denied", "limit", "unauthenticated", …
	Code string
	// Message is a sentence.
	Message string
	// Body is the whole JSON object of the refusal, with the fields that some codes have (holder, queue, …); nil if
	// the client itself refused the request.
	Body []byte
}

func (r *Refused) Error() string {
	return fmt.Sprintf("palisade: %s (%s)", r.Message, r.Code)
}

// Is reports whether target is the error that the code stands for.
func (r *Refused) Is(target error) bool {
	return target == ErrHeld && r.Code == "held" || target == ErrTimeout && r.Code == "timeout"
}

// LostError says why a lock was lost. It is [ErrLost].
type LostError struct {
	// Lock names the lock for people, with its keys and its token; it is empty if there was no grant.
	Lock string
	// Code is "expired" if no node renewed the lock in time, as far as this client knows; otherwise the server's code:
	// "not_holder", "no_session", …
	Code string
	// Message is a sentence.
	Message string
}

func (l *LostError) Error() string {
	lock := l.Lock
	if lock == "" {
		lock = "the lock"
	}
	return fmt.Sprintf("palisade: %s is lost: %s (%s)", lock, l.Message, l.Code)
}

// Is reports whether target is [ErrLost].
func (l *LostError) Is(target error) bool { return target == ErrLost }

// UnreachableError says why no node could answer. It is [ErrUnreachable], and wraps what went wrong last.
type UnreachableError struct {
	// Endpoint is the address of the last attempt.
	Endpoint string
	// Err is what went wrong there.
	Err error
}

func (u *UnreachableError) Error() string {
	if u.Err == nil {
		return fmt.Sprintf("palisade: %v; %s has not answered yet", ErrUnreachable, u.Endpoint)
	}
	return fmt.Sprintf("palisade: %v; the last attempt, at %s: %v", ErrUnreachable, u.Endpoint, u.Err)
}

func (u *UnreachableError) Unwrap() error { return u.Err }

// Is reports whether target is [ErrUnreachable].
func (u *UnreachableError) Is(target error) bool { return target == ErrUnreachable }

// bothError is what [Client.Do] returns if its function failed and the lock was lost: both are found by [errors.Is].
type bothError struct {
	err  error
	lost *LostError
}

func (b *bothError) Error() string { return fmt.Sprintf("%v (%v)", b.err, b.lost) }

func (b *bothError) Unwrap() error { return b.err }

func (b *bothError) Is(target error) bool { return errors.Is(b.lost, target) }

func (b *bothError) As(target any) bool { return errors.As(b.lost, target) }
