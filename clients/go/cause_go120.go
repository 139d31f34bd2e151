//go:build go1.20

package palisade

import "context"

// withCause makes a context whose end has a cause, for [context.Cause].
func withCause(parent context.Context) (context.Context, func(error)) {
	ctx, cancel := context.WithCancelCause(parent)
	return ctx, cancel
}
