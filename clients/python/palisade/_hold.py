"""One hold of a lock, as a state machine: from the first `acquire` to the end.

This module knows no socket, thread, event loop or clock. Its caller passes in the time (seconds on
a clock that goes on while the machine sleeps) and the server's messages, sends what lies in
`outbox`, and does what the returned `Next` says about the connection. A hold outlives connections:
the session that the server opened for it is resumed over the next one.

The rules that keep the promise "never believe in a lease that has ended":

1. The lease is counted from a moment *before* the frame that the server answered was sent: the
   `acquire` or `resume` whose `waiting` or `granted` came, or the `here` whose `renewed` came. The
   server opens or renews the session before each of these answers. Nothing else moves the lease.
2. It ends a `margin` early: for the rate errors of both clocks, and so that the user has time to
   stop.
3. Time goes first: every input looks at the clock before it looks at the message. A message that
   was read after the lease's end changes nothing, even if it would have extended the lease.
4. The end is final. No later message makes a lost lock held again, and a user who has once seen the
   end never sees the lock held again.
"""

from __future__ import annotations

import enum
import json
from collections import deque
from dataclasses import dataclass

from . import _messages as messages
from ._messages import Failure, Garbage, Message
from ._request import Request
from .errors import Cancelled, Held, LockLost, PalisadeError, Refused, Timeout, Unreachable

# What the user has to stop after a loss: a share of the TTL, and its bounds in seconds.
REACTION = 0.1
LEAST_REACTION = 0.02
MOST_REACTION = 1.0
# The share of a TTL that is kept because each of two clocks may be wrong by 1 %.
CLOCK_RATES = 0.02
# The share of a TTL that is left to ask another node, when the connected one renews no more.
ANOTHER_NODE = 1 / 8
# How long a node is looked for at least, in seconds, if the wait is shorter.
LEAST_PATIENCE = 1.0
# A wait that is cancelled, or that ends, is withdrawn from the server for at most this long, in
# seconds.
CANCEL_LIMIT = 2.0
# After a refusal for want of disk space, or of too many requests, in seconds.
SLOW_RETRY = 1.0
# Before another session is opened in place of one that ended while it waited, in seconds.
RESTART_PAUSE = 0.1
# Checks that may be unanswered at once. A server sends the next after a third of the TTL.
MAX_CHECKS = 64

# The node cannot serve at the moment; the same request may succeed at once or soon.
TRANSIENT = frozenset(
    {
        "no_leader",
        "not_leader",
        "leadership_lost",
        "shutting_down",
        "overloaded",
        "change_not_ready",
    }
)
# The node cannot go on, and does not know whether it has done what it was asked to do.
OUTCOME_UNKNOWN = TRANSIENT - {"overloaded"}
# The cluster can serve, but not now. A request that waits repeats itself slowly.
SLOW = frozenset({"no_space", "too_soon"})
# The session or its grant has ended.
GONE = frozenset({"no_session", "not_holder", "gone"})
# A held lock is held no longer. Any other refusal is of one node, for example of one whose file of
# bearer tokens is older; another node may go on with the session while it lives.
FINAL_WHILE_HELD = GONE | {"withdrawn"}
# The node does not know this client. As the answer to an upgrade it says nothing about a session
# that another node has opened; as a frame it is the word of the access rules.
UNKNOWN_CLIENT = frozenset({"denied", "unauthenticated"})


class Phase(enum.Enum):
    ACQUIRING = "acquiring"
    HELD = "held"
    # A release or the withdrawal of a wait is under way. The lock no longer counts as held.
    RELEASING = "releasing"
    ENDED = "ended"


@dataclass(frozen=True)
class Stay:
    """Go on with the connection."""


@dataclass(frozen=True)
class Reconnect:
    """Give the connection up, and connect again: to `leader` if it is named.

    With a `pause` (seconds) the node did nothing wrong: ask the same one again after it. Otherwise
    the next node is asked, at the pace of the route.
    """

    reason: str
    leader: str | None = None
    pause: float = 0.0


Next = Stay | Reconnect
STAY = Stay()


def margin(ttl: float) -> float:
    """How long before its nominal end a lease counts as over, in seconds, as in the other clients
    (docs/protocol.md, "Cluster time")."""
    return min(max(ttl * REACTION, LEAST_REACTION), MOST_REACTION) + ttl * CLOCK_RATES


class Hold:
    """The state of one acquire, the lease it leads to, and its release."""

    def __init__(self, request: Request, now: float, patience: float) -> None:
        self.request = request
        self.phase = Phase.ACQUIRING
        self.outbox: deque[str] = deque()
        # When the lock counts as lost, unless its lease is renewed.
        self.lease_end = 0.0
        # A look at a held lock has seen the end of its lease.
        self._end_was_seen = False
        self.token: int | None = None
        self.signed: str | tuple[str, ...] | None = None
        # Why the acquire failed, or why the lock is lost.
        self.error: PalisadeError | None = None
        # The loss is told to the user: it happened before any release.
        self.lost = False
        # Answers to `value` frames: None for "proclaimed".
        self.answers: dict[int, PalisadeError | None] = {}

        self._session: str | None = None
        # A grant whose lease had ended when it was read. The next renewal delivers it.
        self._late: messages.Granted | None = None
        self._ttl = request.ttl_ms / 1000
        # When the frame was sent that the lease counts from.
        self._base = 0.0
        self._wait_end = now + request.wait
        # Nodes that cannot be reached do not prolong a wait; but to connect takes a moment.
        least = min(LEAST_PATIENCE, patience) if request.wait > 0 else patience
        self._unreachable_at = now + max(request.wait, least)
        self._timeout_at = now + request.wait + patience
        self._connected = False
        # The lease was renewed over this connection, after its first frame.
        self._renewed_here = False
        # When the first frame of this connection was sent; None once its answer has come.
        self._first_sent: float | None = None
        self._has_asked = False
        # A node has opened a session for the acquire.
        self._has_waited = False
        # When `here` was sent, by the number of its check, on this connection.
        self._here: dict[int, float] = {}
        self._release_by = 0.0
        # `release` was sent on this connection; on an earlier one.
        self._release_sent = False
        self._release_sent_before = False
        self._values: deque[tuple[int, str]] = deque()
        # The first of them was sent on this connection.
        self._value_sent = False
        self._last_value = 0
        self._last_reason = "nothing was tried"
        # The answer of a node that does not know this client, until another node serves it.
        self._unknown_client: Failure | None = None

    # What the user sees.

    def is_valid(self, now: float) -> bool:
        """Whether the lock is held, by the clock and by what the server has said."""
        return self.phase is Phase.HELD and not self._is_over(now)

    def remaining(self, now: float) -> float:
        """Seconds to the end of the lease; 0 if the lock is not held."""
        return max(0.0, self.lease_end - now) if self.is_valid(now) else 0.0

    def is_lost(self, now: float) -> bool:
        """Whether the lock is lost, told or about to be told."""
        return self.lost or (self.phase is Phase.HELD and self._is_over(now))

    def _is_over(self, now: float) -> bool:
        """Whether the lease has ended, now or at an earlier look.

        The driver's thread may stop between its look at the clock and a renewal, while another
        thread looks and sees the end. The renewal must not revive what that thread has seen end.
        """
        if now >= self.lease_end:
            self._end_was_seen = True
        return self._end_was_seen

    @property
    def ttl(self) -> float:
        return self._ttl

    @property
    def has_session(self) -> bool:
        return self._session is not None

    # Commands of the user.

    def release(self, now: float) -> None:
        """Gives the lock up. From now on it is not held, whatever becomes of the request."""
        self.tick(now)
        if self.phase is Phase.ACQUIRING:
            self.cancel(now)
        elif self.phase is Phase.HELD:
            self._begin_release(self._nominal_end)

    def cancel(self, now: float) -> None:
        """Gives up an acquire that waits, or hurries a release that takes too long."""
        self.tick(now)
        if self.phase is Phase.ACQUIRING:
            self.error = Cancelled(f"the acquire of {self.request.name} was cancelled")
            if self._has_asked:
                self._begin_release(now + CANCEL_LIMIT)
            else:
                self._end()
        elif self.phase is Phase.HELD:
            self._begin_release(min(self._nominal_end, now + CANCEL_LIMIT))
        elif self.phase is Phase.RELEASING:
            self._release_by = min(self._release_by, now + CANCEL_LIMIT)

    def propose(self, value: str) -> int:
        """Replaces the grant's value. The number's answer will be in `answers`."""
        self._last_value += 1
        if self.phase is not Phase.HELD:
            self.answers[self._last_value] = self.error or _not_held()
            return self._last_value
        self._values.append((self._last_value, value))
        if self._connected and len(self._values) == 1:
            self._send_value()
        return self._last_value

    def fail(self, error: PalisadeError) -> None:
        """Ends the hold because the client itself is broken: a bug must not look like a lock."""
        if self.phase is Phase.HELD:
            self._lose(error.code, str(error))
        elif self.phase is not Phase.ENDED:
            self.error = self.error or error
            self._end()

    # Events of the connection.

    def opened(self, now: float) -> None:
        """A connection is open: say who we are."""
        self.tick(now)
        if self.phase is Phase.ENDED:
            return
        self._connected = True
        self._release_sent_before |= self._release_sent
        self._release_sent = False
        self._value_sent = False
        self._here.clear()
        self._renewed_here = False
        self.outbox.clear()
        self._first_sent = now
        if self._session is None:
            self._open_session(now)
        else:
            self._resume(now)

    def cut(self, reason: str) -> None:
        """The connection is gone, for whatever reason."""
        self._connected = False
        self._renewed_here = False
        self._value_sent = False
        self._last_reason = reason
        self.outbox.clear()

    def receive(self, message: Message, now: float) -> Next:
        """One message of the server. Raises `Garbage` if it does not fit what was said before."""
        self.tick(now)
        if self.phase is Phase.ENDED:
            return STAY
        match message:
            case messages.Check(n):
                self._answer_check(n, now)
            case messages.Renewed(n, ttl_ms):
                self._renew(n, ttl_ms)
                self._deliver_late(now)
            case messages.Waiting():
                self._wait_began(message)
            case messages.Granted():
                return self._granted(message, now)
            case messages.Lost(failure):
                return self._told_lost(failure, now)
            case messages.Released():
                self._released()
            case messages.Proclaimed(n):
                self._value_answered(n, None)
            case messages.Refusal(failure, n) if n is not None:
                return self._value_refused(n, failure)
            case messages.Refusal(failure, _):
                return self.refused(failure, now)
            case messages.Interrupted(failure):
                pause = SLOW_RETRY if failure.code in SLOW else 0.0
                return Reconnect(f"interrupted: {failure.code}", failure.leader, pause)
        return STAY

    def refused(self, failure: Failure, now: float, *, asks_on: bool = False) -> Next:
        """The node refused the connection's first frame, or the connection itself (HTTP).

        With `asks_on` the node does not know this client, and another one may: the file of bearer
        tokens of this node may be older.
        """
        self.tick(now)
        code, reason = failure.code, f"{failure.code}: {failure.message}"
        if self.phase is Phase.ENDED:
            return STAY
        if code in TRANSIENT:
            return Reconnect(reason, leader=failure.leader)
        if code in GONE and self._session is not None:
            return self._told_lost(failure, now)
        if self.phase is Phase.ACQUIRING:
            if code in SLOW and now < self._wait_end:
                return Reconnect(reason, pause=SLOW_RETRY)
            is_of_the_upgrade = code in UNKNOWN_CLIENT and not self._connected
            if is_of_the_upgrade and self._session is not None and now < self._nominal_end:
                return Reconnect(reason)
            if asks_on:
                self._unknown_client = failure
                return Reconnect(reason)
            self._acquire_refused(failure, now)
        elif self.phase is Phase.HELD and code in FINAL_WHILE_HELD:
            self._lose(code, failure.message)
        elif self._is_withdrawing and (self._is_answered or code not in UNKNOWN_CLIENT):
            # The cancelled acquire has failed by itself.
            self._end()
        else:
            if code == "invalid" and self.phase is Phase.HELD:
                self._fail_sent_value(failure)
            return Reconnect(reason, pause=SLOW_RETRY if code in SLOW else 0.0)
        return STAY

    def unusable(self, reason: str) -> None:
        """No node can ever serve this request, for example because no certificate is trusted."""
        if self.phase is Phase.ACQUIRING:
            self.error = Unreachable(f"no node can serve the lock {self.request.name}: {reason}")
            self._end()

    # Time.

    def tick(self, now: float) -> None:
        """Does what is due at this time."""
        if self.phase is Phase.HELD and self._is_over(now):
            failed = "" if self._connected else f"; the last failure was: {self._last_reason}"
            message = f"the lease has ended on this client's clock without a renewal{failed}"
            self._lose("expired", message)
        elif self.phase is Phase.RELEASING and now >= self._release_by:
            self._end()
        elif self.phase is Phase.ACQUIRING and now >= self._give_up_at:
            self._give_up(now)

    def wake_at(self) -> float | None:
        """When `tick` has something to do, or None when the hold has ended."""
        match self.phase:
            case Phase.HELD:
                return 0.0 if self._end_was_seen else self.lease_end
            case Phase.RELEASING:
                return self._release_by
            case Phase.ACQUIRING:
                return self._give_up_at
            case _:
                return None

    @property
    def renewal_due(self) -> float | None:
        """When to ask another node unless this one has renewed the lease once more. The first
        renewal over a connection takes longer than the others: None before it."""
        if self.phase is not Phase.HELD or not self._renewed_here:
            return None
        return self.lease_end - self._ttl * ANOTHER_NODE

    @property
    def _give_up_at(self) -> float:
        # A node that has the request answers at the end of the wait; its answer needs some time.
        is_queued = self._connected and self._session is not None
        return self._timeout_at if is_queued else self._unreachable_at

    @property
    def _is_answered(self) -> bool:
        """No session is at stake at another node: none is known, or this node serves it."""
        is_served = self._connected and self._first_sent is None
        return self._session is None or is_served

    @property
    def _is_withdrawing(self) -> bool:
        """The acquire has failed for the user, and its claim is withdrawn from the server."""
        return self.phase is Phase.RELEASING and self.error is not None

    # Steps.

    def _open_session(self, now: float) -> None:
        if self.phase is not Phase.ACQUIRING:
            # Cancelled before the session was known. If there is one, it ends by its TTL.
            self._end()
            return
        self._has_asked = True
        self._say("acquire", self.request.options(self._remaining_wait_ms(now)))

    @property
    def _granted_token(self) -> int | None:
        """The token of the session's grant, whether the user was told of it or not."""
        return self._late.token if self._late is not None else self.token

    def _resume(self, now: float) -> None:
        token = self._granted_token
        holds = token is not None
        # A held grant keeps its value, which `set_value` may have replaced since the acquire.
        fields = self.request.options(self._remaining_wait_ms(now), with_value=not holds)
        fields["session"] = self._session
        if holds:
            fields["token"] = token
        self._say("resume", fields)
        if self.phase is Phase.RELEASING and not holds:
            self._send_release()

    def _remaining_wait_ms(self, now: float) -> int:
        remaining = min(self.request.wait_ms, round((self._wait_end - now) * 1000))
        return max(0, remaining)

    def _answer_check(self, n: int, now: float) -> None:
        if self.phase is Phase.RELEASING:
            return
        # A repeated check counts from its first answer: which one the server took is unknown.
        self._here.setdefault(n, now)
        while len(self._here) > MAX_CHECKS:
            del self._here[next(iter(self._here))]
        self._say("here", n)

    def _renew(self, n: int, ttl_ms: int) -> None:
        sent = self._here.get(n)
        if sent is None or self.phase is Phase.RELEASING:
            return
        self._renewed_here = True
        self._here = {number: time for number, time in self._here.items() if time > sent}
        self._count_from(max(self._base, sent), ttl_ms)

    def _count_from(self, base: float, ttl_ms: int) -> None:
        # A server that promises more than was asked for is not believed.
        self._ttl = min(ttl_ms, self.request.ttl_ms) / 1000
        self._base = base
        self.lease_end = self._nominal_end - margin(self._ttl)

    @property
    def _nominal_end(self) -> float:
        """The server keeps the session until then at least, if both clocks are right."""
        return self._base + self._ttl

    def _wait_began(self, waiting: messages.Waiting) -> None:
        if self._session not in (None, waiting.session):
            raise Garbage("`waiting` names another session")
        self._session_answered(waiting.session, waiting.ttl_ms)

    def _session_answered(self, session: str, ttl_ms: int) -> None:
        """The server has opened or renewed the session, after the connection's first frame."""
        self._session = session
        self._has_waited = True
        self._unknown_client = None
        if self._first_sent is not None:
            self._count_from(max(self._base, self._first_sent), ttl_ms)
            self._first_sent = None

    def _granted(self, grant: messages.Granted, now: float) -> Next:
        if sorted(grant.keys) != sorted(self.request.keys):
            raise Garbage("`granted` names other keys")
        is_same = self._session in (None, grant.session)
        is_same = is_same and self._granted_token in (None, grant.token)
        if not is_same:
            raise Garbage("`granted` names another session or token")
        signed = self._in_order(grant)
        self._session_answered(grant.session, grant.ttl_ms)
        if self.phase is Phase.RELEASING:
            if not self._release_sent:
                self._send_release()
            return STAY
        if self.phase is Phase.ACQUIRING and now >= self.lease_end:
            # This process or the network was stopped. The session may live: it is not left to its
            # TTL, during which its grant would keep all other clients from the lock.
            self._late = grant
            self._last_reason = "the grant arrived after the end of its lease"
            return STAY
        self._late = None
        self.token, self.signed = grant.token, signed
        self.phase = Phase.HELD
        self._send_value()
        return STAY

    def _deliver_late(self, now: float) -> None:
        """Hands a grant that was read too late to the user, once its lease has time left."""
        grant = self._late
        if grant is not None and self.phase is Phase.ACQUIRING and now < self.lease_end:
            self._late = None
            self.token, self.signed = grant.token, self._in_order(grant)
            self.phase = Phase.HELD

    def _in_order(self, grant: messages.Granted) -> str | tuple[str, ...] | None:
        """The signed tokens in the order of the request's keys: the server sorts the keys."""
        if not isinstance(grant.signed, tuple):
            return grant.signed
        if len(grant.signed) != len(grant.keys):
            raise Garbage("`granted` has not one signed token for each key")
        signed = dict(zip(grant.keys, grant.signed))
        return tuple(signed[key] for key in self.request.keys)

    def _start_again(self, reason: str) -> Next:
        """Another session, at the end of the queue."""
        self._forget_session()
        return Reconnect(reason, pause=RESTART_PAUSE)

    def _forget_session(self) -> None:
        self._session = None
        self._late = None

    def _told_lost(self, failure: Failure, now: float) -> Next:
        if self.phase is Phase.HELD:
            self._lose(failure.code, failure.message)
        elif self.phase is Phase.ACQUIRING:
            if now < self._unreachable_at:
                return self._start_again(f"the session has ended: {failure.code}")
            self._forget_session()
            self._give_up(now)
        else:
            # A repeated release that finds nothing finds what the first one has done.
            was_released = self._release_sent_before and failure.code in GONE
            if self.error is None and not was_released:
                self.error = self._loss(failure.code, failure.message)
            self._end()
        return STAY

    def _released(self) -> None:
        if self.phase is not Phase.RELEASING:
            raise Garbage("`released` without a release")
        self._end()

    def _acquire_refused(self, failure: Failure, now: float) -> None:
        name, code = self.request.name, failure.code
        text = failure.message or code
        is_over = self.request.wait_ms > 0 and now >= self._wait_end
        if code == "timeout" or (code == "held" and is_over):
            self.error = Timeout(f"the wait for {name} ended without a grant: {text}")
        elif code == "held":
            token, owner = failure.holder_token, failure.holder_owner
            self.error = Held(f"{name} is held: {text}", owner, token, failure.queue)
        else:
            self.error = self._refusal_of(failure)
        self._end()

    def _refusal_of(self, failure: Failure) -> Refused:
        text = failure.message or failure.code
        return Refused(f"the server refused the lock {self.request.name}: {text}", failure.code)

    def _give_up(self, now: float) -> None:
        """The acquire has failed. A session that waits is withdrawn, or the server would grant it
        a lock that no client knows of."""
        name = self.request.name
        if self.request.wait_ms > 0 and self._has_waited:
            self.error = Timeout(f"the wait for {name} ended without a grant")
        elif self._unknown_client is not None:
            self.error = self._refusal_of(self._unknown_client)
        else:
            self.error = Unreachable(
                f"no node could serve the lock {name} in time; the last failure was: "
                f"{self._last_reason}"
            )
        if self._session is not None:
            self._begin_release(now + CANCEL_LIMIT)
        else:
            self._farewell()
            self._end()

    def _begin_release(self, limit: float) -> None:
        self.phase = Phase.RELEASING
        self._release_by = limit
        if self._connected:
            self._send_release()

    def _send_release(self) -> None:
        self._release_sent = True
        self._say("release", {})

    def _lose(self, code: str, message: str) -> None:
        """The lock is lost. The server is told nothing: it may have renewed the lease in an answer
        that is still on its way, and a release would free the lock while the user still works."""
        self.error = self._loss(code, message)
        self.lost = True
        self._end()

    def _loss(self, code: str, message: str) -> LockLost:
        token = f" (token {self.token})" if self.token is not None else ""
        return LockLost(f"the lock {self.request.name}{token} is lost: {message or code}", code)

    def _farewell(self) -> None:
        """Tells the server, if it can be told, that the session of an acquire that has failed can
        end now. The client does not wait for the answer."""
        if self._connected:
            self._say("release", {})

    def _end(self) -> None:
        self.phase = Phase.ENDED
        for n, _ in self._values:
            self.answers[n] = self.error or _not_held()
        self._values.clear()

    def _send_value(self) -> None:
        # One at a time: a repetition after a reconnect must not undo a later value.
        if self._values and self.phase is Phase.HELD:
            n, value = self._values[0]
            self._value_sent = True
            self._say("value", {"n": n, "value": value})

    def _value_refused(self, n: int, failure: Failure) -> Next:
        if failure.code in OUTCOME_UNKNOWN:
            # The value is sent again after the resume.
            return Reconnect(f"{failure.code}: {failure.message}", leader=failure.leader)
        self._value_answered(n, _refused(failure))
        return STAY

    def _value_answered(self, n: int, error: PalisadeError | None) -> None:
        if self._values and self._values[0][0] == n:
            self._values.popleft()
            self._value_sent = False
            self.answers[n] = error
            self._send_value()

    def _fail_sent_value(self, failure: Failure) -> None:
        """The server could not read a frame. The value that was sent over this connection would be
        refused again and again."""
        if self._value_sent:
            self._value_sent = False
            n, _ = self._values.popleft()
            self.answers[n] = _refused(failure)

    def _say(self, kind: str, body: object) -> None:
        self.outbox.append(json.dumps({kind: body}, ensure_ascii=False, separators=(",", ":")))


def _refused(failure: Failure) -> Refused:
    return Refused(failure.message or failure.code, failure.code)


def _not_held() -> LockLost:
    return LockLost("the lock is not held, so its value was not replaced", "not_holder")
