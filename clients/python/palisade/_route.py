"""Which node to ask next, and when.

The endpoints are asked in turn, a redirect is followed for a few hops, and a round of failures is
followed by a pause that grows. No I/O, no clock.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

# `HOST:PORT`, with brackets around an IPv6 address.
_FORM = r"(?:\[(?P<ipv6>[^\[\]\s]+)\]|(?P<host>[^\[\]:/@?#\s]+)):(?P<port>[0-9]{1,5})"
_ADDRESS = re.compile(_FORM)
_URL = re.compile(rf"(?:https?|wss?)://{_FORM}/?")
MAX_HOPS = 4
# Pauses after a round in which every endpoint failed, in seconds.
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 0.5


@dataclass(frozen=True)
class Endpoint:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass
class Directory:
    """The nodes that a client was told of, and which one answered last. Shared by its locks."""

    endpoints: tuple[Endpoint, ...]
    last_good: Endpoint | None = None


def parse_endpoints(endpoints: str | Sequence[str]) -> tuple[tuple[Endpoint, ...], bool]:
    """The nodes of a list, and whether one of them demands TLS (`https://`).

    In a text, endpoints stand between commas or spaces. A bare port belongs to the host before it:
    `10.0.0.7:7401,7402`. An endpoint may be a URL, as `palisade dev` prints it.
    """
    if isinstance(endpoints, str):
        parts = [word for part in endpoints.split(",") for word in part.split() or [""]]
    else:
        parts = [part.strip() for part in endpoints]
    found: list[Endpoint] = []
    demands_tls = False
    for part in parts:
        if found and part.isascii() and part.isdecimal():
            part = f"{Endpoint(found[-1].host, int(part))}"
        demands_tls |= part.startswith(("https://", "wss://"))
        found.append(_parse_one(part))
    if not found:
        raise ValueError("no endpoints; name at least one node as HOST:PORT")
    return tuple(found), demands_tls


def _parse_one(text: str) -> Endpoint:
    form = _URL if "://" in text else _ADDRESS
    found = form.fullmatch(text)
    port = int(found["port"]) if found else 0
    if not found or not 0 < port < 65536:
        raise ValueError(f"the endpoint {text!r} has not the form HOST:PORT")
    return Endpoint(found["ipv6"] or found["host"].lower(), port)


def parse_location(location: str) -> Endpoint | None:
    """The node that a redirect or a `leader` leads to, or None if it cannot be read.

    Only host and port count: this client asks every node for the same path, and whether it uses TLS
    is decided by its own options, never by an answer.
    """
    try:
        url = urlsplit(location if "://" in location else f"http://{location}")
        host, port = url.hostname, url.port
    except ValueError:
        return None
    if not host or not port:
        return None
    return Endpoint(host, port)


class Route:
    """The order of one lock's connections."""

    def __init__(self, directory: Directory, chance: random.Random | None = None) -> None:
        self._directory = directory
        self._chance = chance or random.Random()
        self._index = 0
        self._detour: Endpoint | None = None
        self._hops = 0
        # Failures since the last node that has renewed the session.
        self._failures = 0
        good = directory.last_good
        if good in directory.endpoints:
            self._index = directory.endpoints.index(good)
        else:
            self._detour = good

    @property
    def current(self) -> Endpoint:
        return self._detour or self._directory.endpoints[self._index]

    @property
    def is_on_detour(self) -> bool:
        """Whether the current node was named by another one."""
        return self._detour is not None

    @property
    def rounds(self) -> int:
        """How many times all endpoints have failed since the last renewal. The time that they get
        grows with it; that of a named node does not, for it may be dead."""
        return 0 if self._detour else self._failures // len(self._directory.endpoints)

    def answered(self) -> None:
        """The current node has opened or resumed the session. It is the first that others ask.

        That ends no series of failures: nodes may answer once and end the connection, in turns.
        """
        self._directory.last_good = self.current

    def served(self) -> None:
        """The current node has renewed the session."""
        self._failures = 0
        self._hops = 0
        self._directory.last_good = self.current

    def redirected(self, location: str | None) -> float:
        """The current node names another one. Returns the pause before it is asked, in seconds."""
        endpoint = parse_location(location) if location else None
        self._hops += 1
        if endpoint is None or endpoint == self.current or self._hops > MAX_HOPS:
            return self.failed()
        self._detour = endpoint
        return 0.0

    def failed(self) -> float:
        """The current node cannot serve. Returns the pause before the next is asked."""
        if self._directory.last_good == self.current:
            self._directory.last_good = None
        count = len(self._directory.endpoints)
        self._detour = None
        self._hops = 0
        self._failures += 1
        self._index = (self._index + 1) % count
        if self._failures < count:
            return 0.0
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self.rounds, 10))
        return self._chance.uniform(FIRST_PAUSE, longest)
