"""What the cluster shows of locks and records, and what a transaction is made of."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Holder:
    """A session that holds a lock."""

    owner: str
    # The public number of its session, which opens nothing.
    session: int
    token: int
    # Seconds until its session expires, if it is not renewed.
    expires_in: float
    # "exclusive", "shared" or "semaphore".
    mode: str
    # Of a semaphore: the permits that it takes, and all that there are.
    permits: int | None
    of: int | None
    # How many releases give the lock up.
    holds: int
    # All keys of the claim, if there are several.
    keys: tuple[str, ...]
    # The text that the holder shows.
    value: str | None


@dataclass(frozen=True)
class Waiter:
    """A session in the queue of a lock."""

    owner: str
    session: int
    mode: str
    permits: int | None
    of: int | None
    keys: tuple[str, ...]


@dataclass(frozen=True)
class LockView:
    """A lock as the cluster shows it; also one that is free."""

    key: str
    # In the order of their grants.
    holders: tuple[Holder, ...]
    # In the order in which they will be granted the lock.
    queue: tuple[Waiter, ...]
    # Of a stale read: its age in seconds, if the node knows it.
    age: float | None = None

    @property
    def is_held(self) -> bool:
        return bool(self.holders)

    @property
    def holder(self) -> Holder | None:
        """The first of the holders: an exclusive one is alone."""
        return self.holders[0] if self.holders else None


@dataclass(frozen=True)
class LockPage:
    """Some of the locks that are held or waited for, in the order of their keys."""

    locks: tuple[LockView, ...]
    # The `after` of the next page; None if this is the last one.
    next_after: str | None
    # Of a stale read: its age in seconds, if the node knows it.
    age: float | None = None


@dataclass(frozen=True)
class Record:
    """A record with its content."""

    key: str
    value: bytes
    version: int
    # The greatest token that its last write had to hold; None if it had to hold none.
    fence: int | None
    # Of a stale read: its age in seconds, if the node knows it.
    age: float | None = None

    @property
    def text(self) -> str:
        """The content as text. Raises `UnicodeDecodeError` if it is none."""
        return self.value.decode()


@dataclass(frozen=True)
class RecordSummary:
    """A record without its content."""

    key: str
    version: int
    fence: int | None
    # The length of its content.
    bytes: int


@dataclass(frozen=True)
class Put:
    """Gives the record this content, whether or not there is such a record."""

    key: str
    value: str | bytes = field(repr=False)


@dataclass(frozen=True)
class Append:
    """Adds to the record's content. A record that does not exist begins empty."""

    key: str
    value: str | bytes = field(repr=False)


@dataclass(frozen=True)
class Delete:
    """Removes the record, if there is one."""

    key: str


Change = Put | Append | Delete


@dataclass(frozen=True)
class IfHeld:
    """The lock on this key is held with this token."""

    lock: str
    token: int


@dataclass(frozen=True)
class IfVersion:
    """The record has this version; 0: there is no such record."""

    key: str
    version: int


Condition = IfHeld | IfVersion

__all__ = [
    "Append",
    "Change",
    "Condition",
    "Delete",
    "Holder",
    "IfHeld",
    "IfVersion",
    "LockPage",
    "LockView",
    "Put",
    "Record",
    "RecordSummary",
    "Waiter",
]
