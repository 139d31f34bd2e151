// Package palisade takes locks of a Palisade cluster, reads and writes its records, and watches both.
//
//	client, err := palisade.NewClient("127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403", palisade.Options{})
//	…
//	err = client.Do(ctx, "nightly", palisade.LockOptions{Wait: time.Minute}, func(ctx context.Context, lock *palisade.Lock) error {
//		return report(ctx, lock.Token())
//	})
//
// A lock is held over one WebSocket (GET /v1/hold). The server asks at intervals whether this process is there, and
// renews the lock after each answer. If the connection breaks, the client goes on over another one, at any node. If no
// node renews the lock, the lock is lost, and the client says so at the end of the lease at the latest: [Lock.Context]
// ends, [Lock.Lost] is closed, and [Lock.Valid] says no.
//
// # What a lock does not promise
//
// A process can be paused (by the scheduler, a debugger, a suspended machine) between its look at the lock and its
// write, for longer than the lease. It then writes although another holder has begun. No lock service prevents that. So
// send [Lock.Token] with every write, and let the resource refuse a lower token than it has seen: see [Lock.SetHeader]
// and the recipes in the README.
//
// [Records] are a store that does so itself: a write under a lock is done only while the lock is held. [Client.Show] and
// [Client.List] read who holds what, and [Client.Watch] follows it.
//
// # Clocks
//
// A lease is counted from the moment before its renewal was sent, and ends before its time is over: by a tenth of the TTL
// (20 ms to 1 s), so that the caller has time to stop, and by 2% of the TTL, for the rate errors of this clock and of the
// leader's. On Linux it is counted on CLOCK_BOOTTIME, which goes on while the machine is suspended: a machine that slept
// beyond a lease finds the lock lost within 200 ms after it has resumed, and at the first look. On other systems Go
// offers no such clock without a dependency: there, a suspend is not counted, and the loss is noticed when the node
// answers. The fencing token protects the resource in any case.
package palisade
