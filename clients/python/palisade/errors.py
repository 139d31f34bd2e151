"""What can go wrong, as exceptions.

Every error is a `PalisadeError`, and its `code` is the server's error code (docs/api.md, "Errors")
or one of this client's own: `unreachable`, `unknown`, `compacted`, `expired`, `cancelled`, and
`client_failed` for a bug of the client, at which a held lock counts as lost. Programs decide by the
class or the code; the text is for people.
"""

from __future__ import annotations


class PalisadeError(Exception):
    """Base class of all errors of this package."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Held(PalisadeError):
    """Another session holds the lock, and the request does not wait, or not in so long a queue."""

    def __init__(
        self,
        message: str,
        holder_owner: str | None = None,
        holder_token: int | None = None,
        queue: int | None = None,
    ) -> None:
        super().__init__(message, "held")
        self.holder_owner = holder_owner
        self.holder_token = holder_token
        self.queue = queue


class Timeout(PalisadeError, TimeoutError):
    """The wait ended without a grant. The session has left the queue."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "timeout")


class LockLost(PalisadeError):
    """The lock was held and is held no longer, though the program has not released it.

    `code` says why: `expired` (the lease ended on this client's clock), or the server's code, such
    as `not_holder` (an operator broke the lock) and `no_session` (the session expired).
    """


class Refused(PalisadeError):
    """The server refused the request. `code` is its error code: `denied`, `invalid`, `limit`, …"""


class StaleToken(Refused):
    """The write was not made: the lock is not held with this token.

    Or the record was written under a token, and the write has none: then `got` is None. `seen` is
    the greatest token that the cluster knows there, if this client may see it.
    """

    def __init__(self, message: str, seen: int | None = None, got: int | None = None) -> None:
        super().__init__(message, "stale fencing token")
        self.seen = seen
        self.got = got


class OtherVersion(Refused):
    """The write was not made: the record has another version, `version`; 0: there is no record."""

    def __init__(self, message: str, version: int | None = None) -> None:
        super().__init__(message, "other_version")
        self.version = version


class StoreFull(Refused):
    """The write was not made: all records together would be too large."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "store_full")


class NoRecord(Refused):
    """There is no such record."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "no_record")


class UnknownOutcome(PalisadeError):
    """The write may have been made, may not, or may still be: its answer was lost.

    `refusal` is how the server refused a repetition, if it did. That says nothing about the first
    attempt. Read the record to see what it is like now.
    """

    def __init__(self, message: str, refusal: Refused | None = None) -> None:
        super().__init__(message, "unknown")
        self.refusal = refusal


class Compacted(PalisadeError):
    """A watch has missed events: the node no longer has all of those that come next.

    The node has all events of log entries after `floor`. The watch can be iterated again, and then
    begins with a listing of the present state.
    """

    def __init__(self, message: str, floor: int) -> None:
        super().__init__(message, "compacted")
        self.floor = floor


class Unreachable(PalisadeError, ConnectionError):
    """No node could serve the request in time. The message has the last failure."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "unreachable")


class Cancelled(PalisadeError):
    """`Lock.cancel` gave up the acquire."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "cancelled")
