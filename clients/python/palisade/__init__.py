"""Client of Palisade, a lock service with fencing tokens.

    import palisade

    client = palisade.Client("127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403")
    with client.lock("nightly", ttl=30, wait=60) as lock:
        write_report(lock.token)

`client.records` is the store of records, `client.show` and `client.list` tell who holds what, and
`client.watch` follows it (`palisade.events`). `palisade.aio` is the same for asyncio.

No client of a lock service can prevent that it is paused
and goes on after its lease has ended: pass `lock.token` to the resource (`lock.headers()`), and let
the resource refuse a token that is lower than the highest it has seen.
"""

from . import events
from ._blocking import Client, Lock, LostSignal, Records, Watch
from .errors import (
    Cancelled,
    Compacted,
    Held,
    LockLost,
    NoRecord,
    OtherVersion,
    PalisadeError,
    Refused,
    StaleToken,
    StoreFull,
    Timeout,
    UnknownOutcome,
    Unreachable,
)
from .types import (
    Append,
    Delete,
    Holder,
    IfHeld,
    IfVersion,
    LockPage,
    LockView,
    Put,
    Record,
    RecordSummary,
    Waiter,
)

__version__ = "0.2.0"

__all__ = [
    "Append",
    "Cancelled",
    "Client",
    "Compacted",
    "Delete",
    "Held",
    "Holder",
    "IfHeld",
    "IfVersion",
    "Lock",
    "LockLost",
    "LockPage",
    "LockView",
    "LostSignal",
    "NoRecord",
    "OtherVersion",
    "PalisadeError",
    "Put",
    "Record",
    "RecordSummary",
    "Records",
    "Refused",
    "StaleToken",
    "StoreFull",
    "Timeout",
    "UnknownOutcome",
    "Unreachable",
    "Waiter",
    "Watch",
    "events",
]
