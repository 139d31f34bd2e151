"""Client of Palisade, a lock service with fencing tokens.

    import palisade

    client = palisade.Client("127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403")
    with client.lock("nightly", ttl=30, wait=60) as lock:
        write_report(lock.token)

`palisade.aio` is the same for asyncio. No client of a lock service can prevent that it is paused
and goes on after its lease has ended: pass `lock.token` to the resource (`lock.headers()`), and let
the resource refuse a token that is lower than the highest it has seen.
"""

from ._blocking import Client, Lock, LostSignal
from .errors import (
    Cancelled,
    Held,
    LockLost,
    PalisadeError,
    Refused,
    Timeout,
    Unreachable,
)

__version__ = "0.2.0"

__all__ = [
    "Cancelled",
    "Client",
    "Held",
    "Lock",
    "LockLost",
    "LostSignal",
    "PalisadeError",
    "Refused",
    "Timeout",
    "Unreachable",
]
