//go:build !go1.20

package palisade

import "context"

// withCause makes a context that can be ended. Before Go 1.20 a context has no cause; [Cause] tells it.
func withCause(parent context.Context) (context.Context, func(error)) {
	ctx, cancel := context.WithCancel(parent)
	return ctx, func(error) { cancel() }
}
