"""Requests over HTTP with their connections: everything but the sockets and the clock.

A `Link` asks one node after the other, and a `Call` is a link for one request and its answer. The
drivers drive a link as they drive an engine (_engine.py).

A request that changes nothing is sent until it is answered. One that writes is sent again only if
the node that had it has certainly done nothing, or if a repetition cannot write twice.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from . import _messages as messages
from ._engine import FIRST_ATTEMPT, LONGEST_ATTEMPT, STATUS_CODES, Target
from ._hold import SLOW_RETRY, TRANSIENT
from ._http import Data, End, Head, HttpEvent, HttpRequest, HttpWire
from ._messages import Failure, Garbage
from ._route import Directory, Route
from ._wire import Security
from .errors import (
    NoRecord,
    OtherVersion,
    PalisadeError,
    Refused,
    StaleToken,
    StoreFull,
    UnknownOutcome,
    Unreachable,
)

T = TypeVar("T")

# The longest body of an answer that is no stream: a page of locks or records.
MAX_BODY = 32 * 1024 * 1024
# The node has had the request, and cannot say whether it was or will be executed. A node that says
# another one of `TRANSIENT` has done nothing.
MAYBE_DONE = frozenset({"leadership_lost", "shutting_down"})
# A driver looks at the clock more often. So this process, or the reader of a watch, stood still for
# a longer time, in seconds, and the node is not to blame for it.
STANDSTILL = 3.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def location(self) -> str | None:
        return self.headers.get("location")

    @property
    def pause(self) -> float:
        """After how many seconds the node wants to be asked again."""
        text = self.headers.get("retry-after", "")
        return float(text) if re.fullmatch(r"[0-9]{1,4}", text) else SLOW_RETRY


class Link:
    """A request that is sent to one node after the other, each time over a new connection."""

    def __init__(self, directory: Directory, security: Security, now: float) -> None:
        self.target: Target | None = None
        self.is_finished = False
        self.error: PalisadeError | None = None
        self._route = Route(directory)
        self._count = len(directory.endpoints)
        self._security = security
        self._wire: HttpWire | None = None
        # The answer that is being read.
        self._head: Head | None = None
        self._body = bytearray()
        # Connections so far.
        self._number = 0
        # Without a target: when to connect. With one: when to give it up.
        self._connect_at = now
        self._give_up_at = now
        self._looked_at = now
        # Endpoints in a row whose certificate was not trusted.
        self._distrusted = 0
        self._last_failure = "no node was asked"

    # What the kinds of links differ in.

    def _request(self) -> HttpRequest:
        raise NotImplementedError

    def _reply_limit(self, now: float) -> float:
        """Until when the connected node has time to answer."""
        raise NotImplementedError

    def _data(self, data: bytes, now: float) -> None:
        """A part of the body has come."""
        self._body += data
        if len(self._body) > MAX_BODY:
            raise Garbage("the node's answer is too long")

    def _answered(self, answer: Answer, now: float) -> None:
        raise NotImplementedError

    def _dropped(self, was_sent: bool) -> None:
        """The connection has failed. The next node is asked unless this finishes the link."""

    def _unusable(self, reason: str) -> None:
        """No node's certificate is trusted."""

    def _check_deadline(self, now: float) -> None:
        """Finishes the link if its time is over."""

    def _deadline(self) -> float:
        return float("inf")

    # Reports of the driver.

    def connected(self, number: int, now: float) -> None:
        self._look(now)
        if self.target is None or self.target.number != number or self._wire is not None:
            return
        try:
            self._wire = HttpWire(self.target.endpoint, self._security, self._request())
        except (ssl.SSLError, ValueError) as error:
            # A redirect may name a host that no certificate and no header can have.
            self._drop(str(error), now)
        else:
            self._give_up_at = self._reply_limit(now)

    def failed(self, number: int, reason: str, now: float) -> None:
        if self.target is not None and self.target.number == number:
            self._drop(reason, now)
        self.tick(now)

    def received(self, number: int, data: bytes, now: float) -> None:
        self._look(now)
        if self._wire is None or self.target is None or self.target.number != number:
            return
        try:
            self._handle(self._wire.feed(data), now)
        except ssl.SSLCertVerificationError as error:
            self._distrust(error, now)
        except (Garbage, ssl.SSLError) as error:
            self._drop(str(error), now)
        self.tick(now)

    def ended(self, number: int, reason: str, now: float) -> None:
        # No answer is complete because its connection ends.
        self.failed(number, reason, now)

    def outgoing(self, number: int) -> bytes:
        if self._wire is not None and self.target is not None and self.target.number == number:
            return self._wire.outgoing()
        return b""

    # Time.

    def tick(self, now: float) -> None:
        self._look(now)
        if not self.is_finished and self.target is not None and now >= self._give_up_at:
            self._drop("the node did not answer in time", now)
        if not self.is_finished:
            self._check_deadline(now)
        if not self.is_finished and self.target is None and now >= self._connect_at:
            self._number += 1
            self.target = Target(self._number, self._route.current)
            first = FIRST_ATTEMPT * 1.5 ** min(self._route.rounds, 10)
            self._give_up_at = min(now + min(first, LONGEST_ATTEMPT), self._deadline())

    def wake_at(self) -> float:
        own = self._connect_at if self.target is None else self._give_up_at
        return min(own, self._deadline())

    def _look(self, now: float) -> None:
        """Credits a standstill, before anything sets a limit that begins now."""
        if now - self._looked_at > STANDSTILL:
            self._stood_still(now - self._looked_at)
        self._looked_at = max(self._looked_at, now)

    def _stood_still(self, seconds: float) -> None:
        self._give_up_at += seconds

    # Steps.

    def _handle(self, events: list[HttpEvent], now: float) -> None:
        wire = self._wire
        for event in events:
            if self._wire is not wire or self.is_finished:
                return
            match event:
                case Head():
                    self._head = event
                    self._distrusted = 0
                    # The head shows that the node serves: the first event of a watch may be far.
                    self._data(b"", now)
                case Data(data):
                    self._data(data, now)
                case End() if self._head is not None:
                    head = self._head
                    self._answered(Answer(head.status, head.headers, bytes(self._body)), now)

    def _refusal_of(self, answer: Answer) -> Failure | None:
        """What the node says, or None if no node of Palisade says so."""
        failure = messages.decode_failure(answer.body)
        if failure is None and answer.status in STATUS_CODES:
            code = STATUS_CODES[answer.status]
            failure = Failure(code, f"{self._name} answered with the status {answer.status}")
        return failure

    def _drop(self, reason: str, now: float) -> None:
        """This connection failed."""
        was_sent = self._wire is not None and self._wire.is_sent
        self._leave(reason)
        self._connect_at = now + self._route.failed()
        self._dropped(was_sent)

    def _distrust(self, error: ssl.SSLCertVerificationError, now: float) -> None:
        if not self._route.is_on_detour:
            self._distrusted += 1
        reason = f"the node's certificate is not trusted: {error.verify_message}"
        name = self._name
        self._drop(reason, now)
        if self._distrusted >= self._count:
            self._unusable(f"{name}: {reason}")

    @property
    def _name(self) -> str:
        return str(self.target.endpoint) if self.target else "no node"

    def _leave(self, reason: str) -> None:
        self._last_failure = f"{self._name}: {reason}"
        self.target = None
        self._wire = None
        self._head = None
        self._body.clear()

    def _finish(self, error: PalisadeError | None = None) -> None:
        self.error = error
        self.is_finished = True
        self.target = None
        self._wire = None


class Call(Link, Generic[T]):
    """One request and its answer, within a time."""

    def __init__(
        self,
        what: str,
        request: HttpRequest,
        decode: Callable[[Answer], T],
        directory: Directory,
        security: Security,
        now: float,
        patience: float,
        *,
        writes: bool = False,
        may_repeat: bool = True,
    ) -> None:
        """`what` is the request's name in messages. `decode` raises `Garbage` for no answer.

        With `writes` the request changes something, and `may_repeat` says whether it changes it
        once also if nodes execute it twice.
        """
        super().__init__(directory, security, now)
        self._what = what
        self._content = request
        self._decode = decode
        self._writes = writes
        self._may_repeat = may_repeat
        self._patience = patience
        self._until = now + patience
        self._results: list[T] = []
        # An attempt may have been executed, or may still be.
        self._is_unsure = False
        self._slowed: Failure | None = None
        self.tick(now)

    def value(self) -> T:
        """The result, once the call is finished. Raises the error if there is one."""
        if self.error is not None:
            raise self.error
        return self._results[0]

    def _request(self) -> HttpRequest:
        return self._content

    def _reply_limit(self, now: float) -> float:
        if self._writes and not self._may_repeat:
            # Another node cannot be asked, so this one has all the time.
            return self._until
        limit = FIRST_ATTEMPT * 1.5 ** min(self._route.rounds, 10)
        return min(now + min(limit, LONGEST_ATTEMPT), self._until)

    def _deadline(self) -> float:
        return self._until

    def _stood_still(self, seconds: float) -> None:
        super()._stood_still(seconds)
        self._until += seconds

    def _answered(self, answer: Answer, now: float) -> None:
        if 200 <= answer.status < 300:
            self._results.append(self._decode(answer))
            self._route.answered()
            self._finish()
            return
        self._slowed = None
        failure = self._refusal_of(answer)
        if 300 <= answer.status < 400:
            self._leave("the node redirects")
            location = answer.location or (failure.leader if failure else None)
            self._connect_at = now + self._route.redirected(location)
        elif failure is None or failure.code in MAYBE_DONE:
            said = f"{failure.code}: {failure.message}" if failure else f"status {answer.status}"
            self._drop(said, now)
        elif failure.code in TRANSIENT:
            self._leave(f"{failure.code}: {failure.message}")
            self._connect_at = now + self._route.failed()
        elif failure.code == "too_soon":
            self._leave(f"{failure.code}: {failure.message}")
            self._slowed = failure
            self._connect_at = now + answer.pause
        else:
            self._fail(self._refused(failure))

    def _dropped(self, was_sent: bool) -> None:
        self._slowed = None
        if was_sent and self._writes:
            self._is_unsure = True
            if not self._may_repeat:
                self._fail(None)

    def _unusable(self, reason: str) -> None:
        if not self.is_finished:
            self._fail(Unreachable(f"no node can serve {self._what}: {reason}"))

    def _check_deadline(self, now: float) -> None:
        if now < self._until:
            return
        if self._slowed is not None:
            self._fail(self._refused(self._slowed))
        else:
            within = f"within {self._patience} s; the last failure was: {self._last_failure}"
            self._fail(Unreachable(f"no node served {self._what} {within}"))

    def _fail(self, error: PalisadeError | None) -> None:
        """Ends with this error, unless an earlier attempt may have been executed."""
        if self._is_unsure or error is None:
            refusal = error if isinstance(error, Refused) else None
            why = f"a repetition was refused ({refusal})" if refusal else self._last_failure
            message = f"the outcome of {self._what} is unknown, because an answer was lost: {why}"
            self._finish(UnknownOutcome(message, refusal))
        else:
            self._finish(error)

    def _refused(self, failure: Failure) -> Refused:
        message = f"{self._what}: {failure.message or failure.code}"
        match failure.code:
            case "stale fencing token":
                return StaleToken(message, failure.seen, failure.got)
            case "other_version":
                return OtherVersion(message, failure.version)
            case "store_full":
                return StoreFull(message)
            case "no_record":
                return NoRecord(message)
            case code:
                return Refused(message, code)
