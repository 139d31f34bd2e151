//go:build go1.20

package palisade

import (
	"context"
	"errors"
	"testing"
)

func TestTheContextHasACause(t *testing.T) {
	n := newNode(t, func(p *peer) { p.grant(); p.send(`{"lost":{"error":"no_session","message":"m"}}`) })
	lock := mustLock(t, client(t, Options{}, n), LockOptions{TTL: ttl})
	await(t, "the end of the context", lock.Context().Done())
	if cause := context.Cause(lock.Context()); !errors.Is(cause, ErrLost) {
		t.Fatalf("the cause is %v", cause)
	}
}
