"""A watch with its connections, over server-sent events: everything but the sockets and the clock.

A watch goes on at another node after the last event that it has read, so nothing is told twice and
nothing is left out. It ends by an error only if every node refuses it.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from urllib.parse import urlencode

from . import _messages as messages
from . import _views as views
from ._call import MAX_BODY, Answer, Link
from ._engine import LONGEST_ATTEMPT, LONGEST_SILENCE
from ._hold import SLOW_RETRY, TRANSIENT
from ._http import HttpRequest
from ._messages import Failure, Garbage
from ._route import Directory, Endpoint
from ._wire import Security
from .errors import Compacted, Refused, Unreachable
from .events import Event, Listing

# The node ends the watch, or does not begin it, and another one may go on.
AGAIN = TRANSIENT | {"too_slow", "too_soon"}
# A node that has told something for so long, in seconds, does serve the watch. If all nodes end it
# sooner, there are pauses between the attempts.
SERVES = 1.0
# IDs of events.
ID = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?")


@dataclass(frozen=True)
class SentEvent:
    """One server-sent event. `id` is None if it has none; an empty one takes the last one back."""

    kind: str
    data: str
    id: str | None


class EventStream:
    """Decodes server-sent events. Raises `Garbage` for what is none."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        # Up to where the buffer has no end of an event.
        self._searched = 0

    def feed(self, data: bytes) -> list[SentEvent]:
        self._buffer += data
        found: list[SentEvent] = []
        while (end := self._buffer.find(b"\n\n", self._searched)) >= 0:
            block = bytes(self._buffer[:end])
            del self._buffer[: end + 2]
            self._searched = 0
            event = self._event(block)
            if event is not None:
                found.append(event)
        self._searched = max(len(self._buffer) - 1, 0)
        if len(self._buffer) > MAX_BODY:
            raise Garbage("an event of the node has no end")
        return found

    def _event(self, block: bytes) -> SentEvent | None:
        try:
            lines = block.decode().split("\n")
        except UnicodeDecodeError:
            raise Garbage("an event of the node is not UTF-8") from None
        fields: dict[str, str] = {}
        for line in lines:
            # A line that begins with a colon is a comment.
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            fields[name] = f"{fields[name]}\n{value}" if name == "data" in fields else value
        if "event" not in fields or "data" not in fields:
            return None
        return SentEvent(fields["event"], fields["data"], fields.get("id"))


class WatchLink(Link):
    """Follows a key or a prefix, from node to node."""

    def __init__(
        self,
        what: dict[str, str],
        after: str | None,
        directory: Directory,
        security: Security,
        now: float,
        patience: float,
    ) -> None:
        """`what` is `key` or `prefix`. If no node has served the watch within `patience` seconds,
        it fails; once a node has, it looks for nodes without an end."""
        super().__init__(directory, security, now)
        # What was read and is not told yet.
        self.items: deque[Event | Listing | Compacted] = deque()
        self._what = what
        # After which event the next node goes on.
        self._after = after
        self._patience = patience
        self._until = now + patience
        self._stream: EventStream | None = None
        self._began_at = now
        self._endpoints = set(directory.endpoints)
        # Nodes that have refused the watch since one has served it.
        self._refusals: dict[Endpoint, Refused] = {}
        self.tick(now)

    @property
    def name(self) -> str:
        [(kind, text)] = self._what.items()
        return f"the watch of the {kind} {text!r}"

    def _request(self) -> HttpRequest:
        query = self._what | ({"after": self._after} if self._after is not None else {})
        return HttpRequest("GET", f"/v1/watch?{urlencode(query)}")

    def _reply_limit(self, now: float) -> float:
        return now + LONGEST_ATTEMPT

    def _deadline(self) -> float:
        return self._until

    def _stood_still(self, seconds: float) -> None:
        super()._stood_still(seconds)
        self._until += seconds

    def _leave(self, reason: str) -> None:
        super()._leave(reason)
        self._stream = None

    def _data(self, data: bytes, now: float) -> None:
        if self._head is None or self._head.status != 200:
            super()._data(data, now)
            return
        # Also a comment shows that the node is there.
        self._give_up_at = now + LONGEST_SILENCE
        if self._stream is None:
            self._stream, self._began_at = EventStream(), now
            self._until = float("inf")
            self._refusals.clear()
        if now - self._began_at > SERVES:
            self._route.served()
        for event in self._stream.feed(data):
            if event.kind == "end":
                self._ended_by(messages.decode_failure(event.data), now)
                return
            self._tell(event)

    def _tell(self, event: SentEvent) -> None:
        id = event.id
        if id and not ID.fullmatch(id):
            raise Garbage(f"the node's event has the ID {id[:80]!r}")
        body = messages.parse(event.data)
        item: Event | Listing | Compacted | None
        if event.kind == "listing":
            item = views.listing(id or None, body)
        elif event.kind == "compacted":
            floor = views.floor(body)
            message = f"{self.name} has missed events: the node has those of entries after {floor}"
            item, id = Compacted(message, floor), ""
        else:
            item = views.event(id or None, event.kind, body)
        if id is not None:
            # Without an ID the next node begins with a listing.
            self._after = id or None
        if item is not None:
            self.items.append(item)

    def _answered(self, answer: Answer, now: float) -> None:
        if answer.status == 200:
            self._drop("the node has ended the watch", now)
        elif 300 <= answer.status < 400:
            self._drop("the node redirects a watch", now)
        else:
            self._ended_by(self._refusal_of(answer), now, answer.pause)

    def _ended_by(self, failure: Failure | None, now: float, pause: float = SLOW_RETRY) -> None:
        """The node does not serve the watch, or no longer."""
        said = f"{failure.code}: {failure.message}" if failure else "the node ends the watch"
        endpoint = self.target.endpoint if self.target else self._route.current
        self._drop(said, now)
        if failure is None or failure.code in AGAIN:
            if failure is not None and failure.code == "too_soon":
                self._connect_at = now + pause
            return
        refused = Refused(f"{self.name}: {failure.message or failure.code}", failure.code)
        self._refusals[endpoint] = refused
        if self._endpoints <= self._refusals.keys():
            self._finish(refused)

    def _unusable(self, reason: str) -> None:
        if self._until != float("inf"):
            self._finish(Unreachable(f"no node can serve {self.name}: {reason}"))

    def _check_deadline(self, now: float) -> None:
        if now < self._until:
            return
        if self._refusals:
            # The other nodes cannot be reached.
            self._finish(list(self._refusals.values())[-1])
        else:
            within = f"within {self._patience} s; the last failure was: {self._last_failure}"
            self._finish(Unreachable(f"no node served {self.name} {within}"))
