"""The clock that leases are measured on.

A lease goes on while the machine sleeps, so the clock must, too: CLOCK_BOOTTIME where the system
has it (Linux). Elsewhere this is the monotonic clock of Python, which stops during a sleep on some
systems; there, a machine that wakes may believe in a lease that has ended.
"""

from __future__ import annotations

import time

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """Seconds since some fixed moment. Never goes back."""
    if _BOOTTIME is None:
        return time.monotonic()
    return time.clock_gettime(_BOOTTIME)


# The systems' timers (`select`, event loops) stop while the machine sleeps. A driver sleeps no
# longer than this between two looks at the clock, so a loss is told this soon after waking.
LONGEST_SLEEP = 1.0
