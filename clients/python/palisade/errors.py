"""What can go wrong with a lock, as exceptions.

Every error is a `PalisadeError`, and its `code` is the server's error code (docs/api.md, "Errors")
or one of this client's own: `unreachable`, `expired`, `cancelled`, and `client_failed` for a bug of
the client, at which a held lock counts as lost. Programs decide by the class or the code; the text
is for people.
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


class Unreachable(PalisadeError, ConnectionError):
    """No node could serve the request in time. The message has the last failure."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "unreachable")


class Cancelled(PalisadeError):
    """`Lock.cancel` gave up the acquire."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "cancelled")
