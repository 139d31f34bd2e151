"""What a watch tells: listings of the present state, and the events that follow them.

    for event in client.watch(key="nightly"):
        match event:
            case events.Granted(owner=owner, token=token):
                print(f"{owner} holds the lock with token {token}")
            case events.Released(because=because):
                print(f"the lock was released: {because}")

`id` is that of the event: a watch with `after=event.id` begins with the next event, at any node and
in any process. `revision` is the index of its entry in the cluster's log. Newer servers may have
more kinds of events; a watch passes over those that this client does not know.
"""

from __future__ import annotations

from dataclasses import dataclass

from .types import LockView, RecordSummary


@dataclass(frozen=True)
class Listing:
    """A part of the present state, at the beginning of a watch without `after`.

    A listing with `begins` replaces everything that was told before. Between its parts there may be
    events, without an `id`, of keys that were listed already.
    """

    # None before the last part.
    id: str | None
    revision: int
    begins: bool
    complete: bool
    # Those that are held or waited for.
    locks: tuple[LockView, ...]
    records: tuple[RecordSummary, ...]


@dataclass(frozen=True)
class Event:
    """What all events have."""

    # None between two parts of a listing.
    id: str | None
    revision: int
    # The key of the lock or the record.
    key: str


@dataclass(frozen=True)
class Granted(Event):
    """A session holds the lock."""

    # The public number of the session.
    session: int
    owner: str
    token: int
    # "exclusive", "shared" or "semaphore".
    mode: str
    permits: int | None = None
    of: int | None = None
    # All keys of the claim, if there are several.
    keys: tuple[str, ...] = ()
    value: str | None = None


@dataclass(frozen=True)
class Queued(Event):
    """A session waits for the lock, as the last in the queue."""

    session: int
    owner: str
    mode: str
    # How many wait before it.
    ahead: int
    permits: int | None = None
    of: int | None = None
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class ValueReplaced(Event):
    """The holder has replaced the text that it shows."""

    session: int
    token: int
    value: str


@dataclass(frozen=True)
class Released(Event):
    """The session holds the lock no longer."""

    session: int
    token: int
    # "request", "expired", "closed", "broken" or "denied".
    because: str


@dataclass(frozen=True)
class Withdrawn(Event):
    """The session waits no longer, and was not granted the lock."""

    session: int
    because: str


@dataclass(frozen=True)
class Expired(Event):
    """The session's deadline has passed. `Released` or `Withdrawn` follows."""

    session: int
    # Of a holder.
    token: int | None = None


@dataclass(frozen=True)
class Broken(Event):
    """An operator has broken the grant. `Released` follows."""

    session: int
    token: int


@dataclass(frozen=True)
class RecordPut(Event):
    """The record was written."""

    version: int
    # The greatest token that the write had to hold; None if it had to hold none.
    fence: int | None = None


@dataclass(frozen=True)
class RecordDeleted(Event):
    """The record was deleted."""

    version: int


__all__ = [
    "Broken",
    "Event",
    "Expired",
    "Granted",
    "Listing",
    "Queued",
    "RecordDeleted",
    "RecordPut",
    "Released",
    "ValueReplaced",
    "Withdrawn",
]
