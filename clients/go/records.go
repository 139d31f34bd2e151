package palisade

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"
)

// Records are the key-value store beside the locks, for the small state that a lock guards: a checkpoint, the address of
// a leader. A write under a lock is done only if the lock is held with its token at the very moment of the write, so a
// former holder writes nothing. What was written under a lock, only holders change, until one of them deletes it.
//
// # Writes whose answer is lost
//
// If a node may have executed a write and its answer is lost, the client sends the write again only if it cannot be
// executed twice: if it compares the version (other than 0) of a record that it changes. The version of that record is
// another one then, and never comes back. Otherwise the error is an *UnknownOutcomeError: the write was executed, or was
// not, or may still be. A refusal of a repetition is one, too, because it may be the answer to what the first sending has
// done. Read the record to find out. Every other error says that nothing was changed.
type Records struct {
	client *Client
}

// Record is a record that was read.
type Record struct {
	Key   string
	Value []byte
	// Version is the number of the transaction that changed the record last. It never comes back.
	Version uint64
	// Fence is the greatest token that the last write needed; 0 if it was written without a lock.
	Fence uint64
	// Age is that of a stale answer, or AgeUnknown.
	Age time.Duration
}

// WriteOptions are the conditions of a write. The zero value has none.
type WriteOptions struct {
	// Lock must be held, with its token, when the write is executed. It may be any lock that the writers of the record
	// have agreed on. The cluster is the judge: the client sends the write also if it takes the lock for lost.
	Lock *Lock
	// IfVersion must be the record's version: see [Version].
	IfVersion *uint64
}

// Version is a version for [WriteOptions]. 0: there must be no such record.
func Version(version uint64) *uint64 { return &version }

// maxTransaction bounds a transaction, in bytes of its JSON. A node does not read a longer one to its end.
const maxTransaction = 256 << 10

// Get reads a record. If there is none, the error is ErrNoRecord.
func (r Records) Get(ctx context.Context, key string, options ReadOptions) (*Record, error) {
	if key == "" {
		return nil, invalid("the key is empty")
	}
	var record *Record
	err := r.client.do(ctx, call{
		method: http.MethodGet, path: "/v1/kv/" + escape(key), query: options.query(),
		read: func(header http.Header, body []byte) (err error) {
			read := Record{Key: key, Value: body}
			if read.Version, err = number(header, "X-Version"); err != nil || read.Version == 0 {
				return fmt.Errorf("the server sent a record without a version: %q", header.Get("X-Version"))
			}
			if header.Get("X-Max-Fence") != "" {
				if read.Fence, err = number(header, "X-Max-Fence"); err != nil {
					return err
				}
			}
			if options.Stale {
				read.Age = AgeUnknown
				if ms, err := number(header, "X-Age-Ms"); err == nil {
					read.Age = time.Duration(ms) * time.Millisecond
				}
			}
			record = &read
			return nil
		},
	})
	return record, err
}

func number(header http.Header, name string) (uint64, error) {
	return strconv.ParseUint(header.Get(name), 10, 64)
}

// Put gives a record this value, at most 64 KiB, whether or not it exists. It returns the record's new version. The
// errors are *StaleTokenError, *OtherVersionError, *UnknownOutcomeError, ErrStoreFull, ErrUnreachable (nothing was
// changed), a *Refused with another code, or ctx.Err() (nothing was changed).
func (r Records) Put(ctx context.Context, key string, value []byte, options WriteOptions) (uint64, error) {
	return r.write(ctx, key, Put(key, value), options)
}

// Append adds to a record's value, and makes the record if there is none. It returns the record's new version, and
// otherwise the errors of [Records.Put].
func (r Records) Append(ctx context.Context, key string, value []byte, options WriteOptions) (uint64, error) {
	return r.write(ctx, key, Append(key, value), options)
}

// Delete removes a record, if it exists. It returns the number of the transaction, and otherwise the errors of
// [Records.Put].
func (r Records) Delete(ctx context.Context, key string, options WriteOptions) (uint64, error) {
	return r.write(ctx, key, Delete(key), options)
}

func (r Records) write(ctx context.Context, key string, change Change, options WriteOptions) (uint64, error) {
	var conditions []Condition
	if options.Lock != nil {
		conditions = append(conditions, Held(options.Lock))
	}
	if options.IfVersion != nil {
		conditions = append(conditions, VersionIs(key, *options.IfVersion))
	}
	return r.Transact(ctx, []Change{change}, conditions)
}

// Change is a change of a record in a transaction: a [Put], an [Append] or a [Delete].
type Change struct {
	kind  string
	key   string
	value []byte
}

// Put is the change of [Records.Put].
func Put(key string, value []byte) Change { return Change{"put", key, value} }

// Append is the change of [Records.Append].
func Append(key string, value []byte) Change { return Change{"append", key, value} }

// Delete is the change of [Records.Delete].
func Delete(key string) Change { return Change{kind: "delete", key: key} }

// Condition is what must be the case for a transaction to be done: [Held], [HeldWith] or [VersionIs].
type Condition struct {
	kind  string
	key   string
	count uint64
}

// Held is the condition that a lock is held by this grant.
func Held(lock *Lock) Condition { return HeldWith(lock.keys[0], lock.Token()) }

// HeldWith is the condition that the lock with this key is held with this token: for a process that was handed the token
// of a lock which another process holds.
func HeldWith(key string, token uint64) Condition { return Condition{"held", key, token} }

// VersionIs is the condition that a record has this version. 0: there is no such record.
func VersionIs(key string, version uint64) Condition { return Condition{"version", key, version} }

// Transact makes changes together and in their order if all conditions are met, and otherwise none. Changes and
// conditions are together at most 32, with 72 KiB of keys and values. It returns the version that all changed records
// have then, and otherwise the errors of [Records.Put]; a refusal names the first reason.
func (r Records) Transact(ctx context.Context, changes []Change, conditions []Condition) (uint64, error) {
	body, err := encodeTransaction(changes, conditions)
	if err != nil {
		return 0, err
	}
	var version uint64
	err = r.client.do(ctx, call{
		method: http.MethodPost, path: "/v1/kv", body: body, writes: true, once: isOnce(changes, conditions),
		read: func(_ http.Header, body []byte) error {
			var answer struct {
				Version uint64 `json:"version"`
			}
			if err := decodeAnswer(body, &answer); err != nil {
				return err
			}
			if answer.Version == 0 {
				return errors.New("the server's answer to a write has no version")
			}
			version = answer.Version
			return nil
		},
	})
	return version, err
}

// isOnce reports whether a transaction that was done can never be done again: a version that it compares, of a record
// that it changes, does not come back. 0 may: the record is made, and another client deletes it.
func isOnce(changes []Change, conditions []Condition) bool {
	for _, condition := range conditions {
		for _, change := range changes {
			if condition.kind == "version" && condition.count != 0 && condition.key == change.key {
				return true
			}
		}
	}
	return false
}

func encodeTransaction(changes []Change, conditions []Condition) ([]byte, error) {
	transaction := struct {
		Conditions []map[string]any `json:"conditions"`
		Changes    []map[string]any `json:"changes"`
	}{Conditions: []map[string]any{}, Changes: []map[string]any{}}
	size := 0
	for _, change := range changes {
		fields := map[string]any{"key": change.key}
		if change.kind != "delete" {
			fields["value"] = map[string]string{"base64": base64.StdEncoding.EncodeToString(change.value)}
		}
		transaction.Changes = append(transaction.Changes, map[string]any{change.kind: fields})
		size += len(change.value)
		if !utf8.ValidString(change.key) {
			return nil, invalid("the key %q is not UTF-8", change.key)
		}
	}
	for _, condition := range conditions {
		fields := map[string]any{"key": condition.key, "version": condition.count}
		if condition.kind == "held" {
			fields = map[string]any{"lock": condition.key, "token": condition.count}
		}
		transaction.Conditions = append(transaction.Conditions, map[string]any{condition.kind: fields})
		if !utf8.ValidString(condition.key) {
			return nil, invalid("the key %q is not UTF-8", condition.key)
		}
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(transaction); err != nil {
		return nil, err
	}
	if text.Len() > maxTransaction {
		message := fmt.Sprintf("the transaction has %d bytes of values, and %d as JSON; a node reads %d of JSON",
			size, text.Len(), maxTransaction)
		return nil, &Refused{Code: "too_large", Message: message}
	}
	return text.Bytes(), nil
}
