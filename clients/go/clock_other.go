//go:build !linux

package palisade

// now reads the clock that leases are counted on. On this system it does not count the time that the machine is
// suspended: after a suspend that is longer than the lease, the client may take the lock for held until the cluster
// tells it otherwise. The fencing token protects the resource all the same.
func now() instant { return monotonic() }
