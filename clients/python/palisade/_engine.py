"""A hold with its connections: everything but the sockets and the clock.

Both faces, threads and asyncio, drive this engine the same way:

- `target` says which connection there should be. If its number differs from that of the driver's
  connection, the driver closes that one and opens a connection to `target.endpoint`.
- The driver reports what happens (`connected`, `failed`, `received`, `ended`), with the number of
  the connection: reports about an earlier one are ignored.
- After each report, each command and each `wake_at`, the driver calls `tick`, sends `outgoing`,
  and looks at `target` again; when `is_finished`, it sends what is left and stops.

Every method takes the time, read by the driver *before* it calls.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Protocol

from websockets.exceptions import WebSocketException

from . import _messages as messages
from ._hold import Hold, Phase, Reconnect
from ._messages import Failure, Garbage
from ._request import Request
from ._route import Directory, Endpoint, Route
from ._wire import Answer, Closed, Opened, Security, Text, Wire

# The answer to an acquire takes a commit; repeating it too early leaves a session behind.
ACQUIRE_REPLY = 5.0
# How long connecting may take at first, in seconds, while no session is at stake.
FIRST_ATTEMPT = 2.0
# Bounds of the time for connecting, and for the answer to a resume, in seconds.
SHORTEST_ATTEMPT = 0.5
LONGEST_ATTEMPT = 5.0
# The longest silence of a connection, in seconds: a node pings every 20 s.
LONGEST_SILENCE = 30.0
# Codes of HTTP answers without an error body.
STATUS_CODES = {401: "unauthenticated", 403: "denied", 404: "not_found", 429: "too_soon"}


@dataclass(frozen=True)
class Target:
    """The connection that the engine wants."""

    number: int
    endpoint: Endpoint


class Exchange(Protocol):
    """What a driver drives: an engine, or a request over HTTP (_call.py)."""

    @property
    def target(self) -> Target | None: ...

    @property
    def is_finished(self) -> bool: ...

    def connected(self, number: int, now: float) -> None: ...

    def failed(self, number: int, reason: str, now: float) -> None: ...

    def received(self, number: int, data: bytes, now: float) -> None: ...

    def ended(self, number: int, reason: str, now: float) -> None: ...

    def outgoing(self, number: int) -> bytes: ...

    def tick(self, now: float) -> None: ...

    def wake_at(self) -> float: ...


class Engine:
    """One acquire, its lease and its release, over as many connections as it takes."""

    def __init__(
        self,
        request: Request,
        directory: Directory,
        security: Security,
        now: float,
        patience: float,
        route: Route | None = None,
    ) -> None:
        self.hold = Hold(request, now, patience)
        self.target: Target | None = None
        self._route = route or Route(directory)
        self._count = len(directory.endpoints)
        self._security = security
        self._wire: Wire | None = None
        self._is_open = False
        # Connections so far.
        self._number = 0
        # Without a target: when to connect. With one: when to give it up if nothing comes.
        self._connect_at = now
        self._give_up_at = now
        # Endpoints in a row whose certificate was not trusted; that do not know this client.
        self._distrusted = 0
        self._unknown = 0
        self._is_releasing = False
        self.tick(now)

    @property
    def is_finished(self) -> bool:
        return self.hold.phase is Phase.ENDED

    # Commands.

    def release(self, now: float) -> None:
        self.hold.release(now)
        self._settle(now)

    def cancel(self, now: float) -> None:
        self.hold.cancel(now)
        self._settle(now)

    def cancel_acquire(self, now: float) -> None:
        """Cancels the acquire, unless it has ended in the meantime."""
        if self.hold.phase is Phase.ACQUIRING:
            self.cancel(now)

    def propose(self, value: str, now: float) -> int:
        self.hold.tick(now)
        number = self.hold.propose(value)
        self._settle(now)
        return number

    # Reports of the driver.

    def connected(self, number: int, now: float) -> None:
        """The connection to the target's endpoint stands."""
        if self.target is None or self.target.number != number or self._wire is not None:
            return
        try:
            self._wire = Wire(self.target.endpoint, self._security)
        except (ssl.SSLError, ValueError, WebSocketException) as error:
            # A redirect may name a host that no certificate and no URI can have.
            self._drop(str(error), now)

    def failed(self, number: int, reason: str, now: float) -> None:
        """The connection could not be made."""
        if self.target is not None and self.target.number == number:
            self._drop(reason, now)
        self.tick(now)

    def received(self, number: int, data: bytes, now: float) -> None:
        if self._wire is None or self.target is None or self.target.number != number:
            return
        self.hold.tick(now)
        if self._is_open:
            self._give_up_at = now + self._hurried(self._quiet_limit, now)
        try:
            self._handle(self._wire.feed(data), now)
        except ssl.SSLCertVerificationError as error:
            self._distrust(error, now)
        except (Garbage, ssl.SSLError) as error:
            self._drop(str(error), now)
        self.tick(now)

    def ended(self, number: int, reason: str, now: float) -> None:
        """The peer closed the connection, or the network broke it."""
        if self.target is None or self.target.number != number:
            return
        self.hold.tick(now)
        try:
            if self._wire is not None:
                self._handle(self._wire.end(), now)
        except Garbage as error:
            reason = str(error)
        if self.target is not None and self.target.number == number:
            self._drop(reason, now)
        self.tick(now)

    def outgoing(self, number: int) -> bytes:
        """The bytes to send on the connection."""
        if self._wire is not None and self.target is not None and self.target.number == number:
            return self._wire.outgoing()
        return b""

    # Time.

    def tick(self, now: float) -> None:
        """Does what is due at this time."""
        self.hold.tick(now)
        if not self.is_finished and self.target is not None and now >= self._dropped_at:
            what = "was silent for too long" if self._is_open else "did not answer in time"
            if now < self._give_up_at:
                what = "has not renewed the lease in time"
            self._drop(f"the node {what}", now)
        if not self.is_finished and self.target is None and now >= self._connect_at:
            self._number += 1
            self.target = Target(self._number, self._route.current)
            self._give_up_at = now + self._hurried(self._attempt_limit, now)
        self._settle(now)

    def wake_at(self) -> float:
        """When the next `tick` is due."""
        own = self._connect_at if self.target is None else self._dropped_at
        due = self.hold.wake_at()
        return own if due is None else min(own, due)

    # Steps.

    @property
    def _attempt_limit(self) -> float:
        """A lease must survive a node that does not answer, if another one does. A network may be
        slow, too: so each round of failures gives the endpoints more time."""
        first = max(self.hold.ttl / 6, SHORTEST_ATTEMPT) if self.hold.has_session else FIRST_ATTEMPT
        longest = max(self.hold.ttl / 3, first) if self.hold.has_session else LONGEST_ATTEMPT
        return min(first * 1.5 ** min(self._route.rounds, 10), longest, LONGEST_ATTEMPT)

    @property
    def _dropped_at(self) -> float:
        """When the connection is given up: a node may also talk and renew nothing."""
        due = self.hold.renewal_due
        return self._give_up_at if due is None else min(self._give_up_at, due)

    @property
    def _quiet_limit(self) -> float:
        """A check comes every third of the TTL; without one for half of it, the node is gone. Pings
        show that the node is there while the checks of a long TTL are far apart."""
        return min(self.hold.ttl / 2, LONGEST_SILENCE)

    def _hurried(self, limit: float, now: float) -> float:
        """The limit for this connection, in seconds, cut so that a release can be repeated at
        another node before its time is over."""
        due = self.hold.wake_at()
        if self.hold.phase is not Phase.RELEASING or not self.hold.has_session or due is None:
            return limit
        return min(limit, max((due - now) / 2, SHORTEST_ATTEMPT), LONGEST_ATTEMPT)

    def _handle(self, events: list[Opened | Text | Answer | Closed], now: float) -> None:
        number = self.target.number if self.target else 0
        for event in events:
            if self.target is None or self.target.number != number or self.is_finished:
                return
            match event:
                case Opened():
                    self._opened(now)
                case Text(text):
                    self._text(text, now)
                case Answer():
                    self._answered(event, now)
                case Closed(reason):
                    self._drop(reason, now)

    def _opened(self, now: float) -> None:
        self._is_open = True
        self._distrusted = 0
        self._unknown = 0
        is_new = not self.hold.has_session
        self.hold.opened(now)
        reply = ACQUIRE_REPLY if is_new else self.hold.ttl / 4
        reply = min(max(reply, SHORTEST_ATTEMPT), LONGEST_ATTEMPT)
        self._give_up_at = now + self._hurried(reply, now)
        self._settle(now)

    def _text(self, text: str, now: float) -> None:
        message = messages.decode(text)
        if message is None:
            return
        step = self.hold.receive(message, now)
        if isinstance(message, messages.Renewed):
            self._route.served()
        elif isinstance(message, messages.Waiting | messages.Granted):
            self._route.answered()
        if isinstance(step, Reconnect):
            self._reconnect(step, now)
        self._settle(now)

    def _answered(self, answer: Answer, now: float) -> None:
        failure = messages.decode_failure(answer.body)
        if 300 <= answer.status < 400:
            location = answer.location or (failure.leader if failure else None)
            self._leave(f"{self._name} redirects")
            self._connect_at = now + self._route.redirected(location)
            return
        if failure is None and answer.status in STATUS_CODES:
            failure = Failure(STATUS_CODES[answer.status], f"{self._name} answered {answer.status}")
        if failure is None:
            self._drop(f"the node answered with the status {answer.status}", now)
            return
        is_unknown = failure.code == "unauthenticated"
        if is_unknown and not self._route.is_on_detour:
            self._unknown += 1
        asks_on = is_unknown and self._unknown < self._count
        step = self.hold.refused(failure, now, asks_on=asks_on)
        if isinstance(step, Reconnect):
            self._reconnect(step, now)

    def _reconnect(self, step: Reconnect, now: float) -> None:
        reason = f"{self._name}: {step.reason}"
        self._leave(reason)
        if step.pause > 0:
            self._connect_at = now + step.pause
        elif step.leader is not None:
            self._connect_at = now + self._route.redirected(step.leader)
        else:
            self._connect_at = now + self._route.failed()

    def _drop(self, reason: str, now: float) -> None:
        """This connection failed."""
        self._leave(f"{self._name}: {reason}")
        self._connect_at = now + self._route.failed()

    def _distrust(self, error: ssl.SSLCertVerificationError, now: float) -> None:
        if not self._route.is_on_detour:
            self._distrusted += 1
        reason = f"the node's certificate is not trusted: {error.verify_message}"
        if self._distrusted >= self._count:
            self.hold.unusable(f"{self._name}: {reason}")
        self._drop(reason, now)

    @property
    def _name(self) -> str:
        return str(self.target.endpoint) if self.target else "no node"

    def _leave(self, reason: str) -> None:
        self.hold.cut(reason)
        self.target = None
        self._wire = None
        self._is_open = False

    def _settle(self, now: float) -> None:
        """Hands the hold's frames to the connection, and closes it after the last one."""
        if self.hold.phase is Phase.RELEASING and not self._is_releasing:
            # The limit was set when no release was at stake.
            self._is_releasing = True
            self._give_up_at = min(self._give_up_at, now + self._hurried(LONGEST_SILENCE, now))
        outbox = self.hold.outbox
        while outbox and self._wire is not None and self._is_open:
            self._wire.send(outbox.popleft())
        if self.is_finished and self._wire is not None and self._is_open:
            self._is_open = False
            self._wire.close()
