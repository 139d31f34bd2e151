package palisade

import (
	"context"
	"encoding/json"
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
	// ErrNoRecord: there is no such record.
	ErrNoRecord = errors.New("there is no such record")
	// ErrStaleToken: a write was refused because its lock is not held with its token, or because it has no token and the
	// record was written under one. Nothing was changed.
	ErrStaleToken = errors.New("the fencing token is stale")
	// ErrOtherVersion: a write was refused because the record has another version. Nothing was changed.
	ErrOtherVersion = errors.New("the record has another version")
	// ErrStoreFull: a write was refused because all records together would be too large. Nothing was changed.
	ErrStoreFull = errors.New("the store is full")
	// ErrUnknownOutcome: a write was sent, and its answer was lost.
	ErrUnknownOutcome = errors.New("the outcome of the write is unknown")
	// ErrCompacted: the events that a watch asks for are not all there any more.
	ErrCompacted = errors.New("the events are not there any more")
)

// codes are the errors that stand for codes of the server.
var codes = map[string]error{
	"held": ErrHeld, "timeout": ErrTimeout, "no_record": ErrNoRecord, "stale fencing token": ErrStaleToken,
	"other_version": ErrOtherVersion, "store_full": ErrStoreFull,
}

// Refused is the server's refusal of a request. Programs decide by Code, one of the codes in docs/api.md;
// Message is for people.
//
// A refusal with the code "held" is [ErrHeld], one with "timeout" [ErrTimeout], and one with "no_record" [ErrNoRecord];
// *StaleTokenError and *OtherVersionError wrap the refusals of writes that have more to say.
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
func (r *Refused) Is(target error) bool { return target != nil && codes[r.Code] == target }

// StaleTokenError is a write that was refused for its fencing token. It is [ErrStaleToken]. Stop: another holder may be
// at work. Nothing was changed.
type StaleTokenError struct {
	// Seen is the greatest token that is known there; 0 if the server does not say.
	Seen uint64
	// Got is the token of the write; 0 if it had none, and the record was written under Seen.
	Got     uint64
	Refused *Refused
}

func (s *StaleTokenError) Error() string { return s.Refused.Error() }

func (s *StaleTokenError) Unwrap() error { return s.Refused }

// OtherVersionError is a write that was refused for the record's version. It is [ErrOtherVersion]. Nothing was changed.
type OtherVersionError struct {
	// Version is the one that the record has; 0 if there is no such record.
	Version uint64
	Refused *Refused
}

func (o *OtherVersionError) Error() string { return o.Refused.Error() }

func (o *OtherVersionError) Unwrap() error { return o.Refused }

// typed is a refusal as the type that has its fields.
func typed(r *Refused) error {
	var fields struct {
		Seen    uint64  `json:"seen"`
		Got     uint64  `json:"got"`
		Version *uint64 `json:"version"`
	}
	if json.Unmarshal(r.Body, &fields) != nil {
		return r
	}
	switch {
	case r.Code == "stale fencing token":
		return &StaleTokenError{Seen: fields.Seen, Got: fields.Got, Refused: r}
	case r.Code == "other_version" && fields.Version != nil:
		return &OtherVersionError{Version: *fields.Version, Refused: r}
	}
	return r
}

// UnknownOutcomeError is a write that was sent to a node, and whose answer was lost: it was done, or was not, or may
// still be. It is [ErrUnknownOutcome], and no other error than that of the caller's context, if that has ended: least of
// all a refusal, which Err may be.
type UnknownOutcomeError struct {
	// Err is what went wrong last. A refusal is that of a repetition: the write may have been done before.
	Err error
}

func (u *UnknownOutcomeError) Error() string {
	return fmt.Sprintf("palisade: %v: it may have been done, or may still be; read the record (%v)", ErrUnknownOutcome, u.Err)
}

// Is reports whether target is [ErrUnknownOutcome], or the end of the caller's context.
func (u *UnknownOutcomeError) Is(target error) bool {
	ended := target == context.Canceled || target == context.DeadlineExceeded
	return target == ErrUnknownOutcome || ended && errors.Is(u.Err, target)
}

// CompactedError is a watch that has missed events, or may have. It is [ErrCompacted]. Begin another watch without After:
// it starts with the present state.
type CompactedError struct {
	// Floor: the node has all events of entries after this revision.
	Floor uint64
}

func (c *CompactedError) Error() string {
	return fmt.Sprintf("palisade: %v up to revision %d; begin a watch without After", ErrCompacted, c.Floor)
}

// Is reports whether target is [ErrCompacted].
func (c *CompactedError) Is(target error) bool { return target == ErrCompacted }

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
