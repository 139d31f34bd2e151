package palisade

import "time"

// instant is a reading of the clock that leases are counted on: the time since a fixed moment, the start of the
// machine where the system can tell it.
//
// Go's own monotonic clock stands still while the machine is suspended, and a lease does not: the cluster goes on
// counting. So leases, and all other deadlines of the client, are readings of [now], which goes on during a suspend
// where the system has such a clock (clock_linux.go).
type instant time.Duration

// never is later than every deadline.
const never = instant(1<<63 - 1)

func (i instant) add(d time.Duration) instant { return i + instant(d) }

func (i instant) sub(earlier instant) time.Duration { return time.Duration(i - earlier) }

func earliest(first instant, others ...instant) instant {
	for _, other := range others {
		if other < first {
			first = other
		}
	}
	return first
}

func latest(a, b instant) instant {
	if a > b {
		return a
	}
	return b
}

// recheckEvery bounds a sleep of the client. Go's timers do not count a suspend, so a sleep until a deadline is made of
// shorter ones, each followed by a look at the clock: a suspend is noticed at most so long after the machine resumed.
const recheckEvery = 200 * time.Millisecond

var processStart = time.Now()

// monotonic is the clock for systems without one that goes on during a suspend.
func monotonic() instant { return instant(time.Since(processStart)) }
