"""One HTTP/1.1 request and its answer as bytes, over TLS or without it, without a socket."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from ._messages import Garbage
from ._route import Endpoint
from ._wire import Security, Tls

# The first byte with which a node that requires TLS answers a request without it.
TLS_ALERT = b"\x15"
# The node does not accept the client's certificate: the alerts of TLS, by OpenSSL's names.
BAD_CERTIFICATE = re.compile(r"ALERT_.*(CERTIFICATE|UNKNOWN_CA)")
MAX_HEAD = 64 * 1024
MAX_LINE = 1024


@dataclass(frozen=True)
class HttpRequest:
    method: str
    # With its query, percent-encoded.
    path: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def encode(self, endpoint: Endpoint, token: str | None) -> bytes:
        """Raises `ValueError` if the endpoint's name cannot stand in a header."""
        host = str(endpoint)
        if not host.isascii() or not host.isprintable() or " " in host:
            raise ValueError(f"no host has the name {host!r}")
        lines = [f"{self.method} {self.path} HTTP/1.1", f"Host: {host}", "Connection: close"]
        if token is not None:
            lines.append(f"Authorization: Bearer {token}")
        if self.body is not None:
            lines += [f"Content-Length: {len(self.body)}", "Content-Type: application/json"]
        lines += (f"{name}: {value}" for name, value in self.headers.items())
        return "".join(f"{line}\r\n" for line in [*lines, ""]).encode() + (self.body or b"")


@dataclass(frozen=True)
class Head:
    """The beginning of an answer. The names of headers are in lower case."""

    status: int
    headers: dict[str, str]


@dataclass(frozen=True)
class Data:
    """A part of the answer's body."""

    data: bytes


@dataclass(frozen=True)
class End:
    """The answer is complete."""


HttpEvent = Head | Data | End


class HttpWire:
    """The protocol layers of one connection that carries one request."""

    def __init__(self, endpoint: Endpoint, security: Security, request: HttpRequest) -> None:
        self._tls = Tls(security.context, endpoint.host) if security.context else None
        self._unsent = request.encode(endpoint, security.token)
        self._reader = Reader()
        self._is_answered = False
        # Whether bytes of the request were handed to the network, and the node may have read them.
        self.is_sent = False

    def feed(self, data: bytes) -> list[HttpEvent]:
        """What the bytes from the node mean. Raises `Garbage` and `ssl.SSLError`."""
        if self._tls is None and not self._is_answered and data.startswith(TLS_ALERT):
            self.is_sent = False
            raise Garbage("the node requires TLS: name the CA's file (ca=…)")
        self._is_answered = True
        try:
            return self._reader.feed(data if self._tls is None else self._tls.feed(data)[0])
        except ssl.SSLError as error:
            if BAD_CERTIFICATE.search(error.reason or ""):
                # With TLS 1.3 the node says so after the request was sent, and does not read it.
                self.is_sent = False
            raise

    def outgoing(self) -> bytes:
        """The bytes to send to the node."""
        plain, self._unsent = self._unsent, b""
        if self._tls is None:
            self.is_sent = True
            return plain
        data = self._tls.outgoing(plain)
        self.is_sent = self._tls.is_ready
        return data


class Reader:
    """Decodes one answer. Raises `Garbage` for what is none."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._state = "head"
        # Bytes of the body, or of its chunk, that are still to come.
        self._left = 0

    def feed(self, data: bytes) -> list[HttpEvent]:
        self._buffer += data
        events: list[HttpEvent] = []
        while True:
            state, before = self._state, len(self._buffer)
            event = self._next()
            if event is not None:
                events.append(event)
            elif (state, before) == (self._state, len(self._buffer)):
                return events

    def _next(self) -> HttpEvent | None:
        """Takes the next part from the buffer. None if there is none, or if it means nothing."""
        match self._state:
            case "head":
                return self._head()
            case "length" if self._left == 0:
                self._state = "done"
                return End()
            case "length" | "chunk" if self._left > 0:
                return self._body()
            case "chunk":
                line = self._line("the end of a chunk")
                if line:
                    raise Garbage("a chunk of the node's answer is longer than its size")
                self._state = "chunk" if line is None else "size"
            case "size":
                self._size()
            case "trailer":
                if self._line("a trailer") == "":
                    self._state = "done"
                    return End()
            case _:
                self._buffer.clear()
        return None

    def _head(self) -> Head | None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD:
                raise Garbage("the node's answer has no end of its head")
            return None
        first, *lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        status = re.fullmatch(r"HTTP/1\.[01] (\d{3})(?: .*)?", first)
        if status is None:
            raise Garbage(f"the node does not answer in HTTP: {first[:80]!r}")
        headers = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise Garbage(f"a header of the node's answer has no colon: {line[:80]!r}")
            headers[name.strip().lower()] = value.strip()
        head = Head(int(status[1]), headers)
        if head.status < 200:
            # 100 Continue and its like: the answer follows.
            return None
        self._expect_body(head)
        return head

    def _expect_body(self, head: Head) -> None:
        coding, length = head.headers.get("transfer-encoding"), head.headers.get("content-length")
        if head.status in (204, 304):
            self._state = "length"
        elif coding is not None:
            if coding.lower() != "chunked":
                raise Garbage(f"the node's answer has the coding {coding!r}")
            self._state = "size"
        elif length is None:
            raise Garbage("the node's answer has no length, so its end could not be told")
        elif re.fullmatch(r"[0-9]{1,15}", length):
            self._state, self._left = "length", int(length)
        else:
            raise Garbage(f"the node's answer has the length {length!r}")

    def _body(self) -> Data | None:
        data = bytes(self._buffer[: self._left])
        del self._buffer[: len(data)]
        self._left -= len(data)
        return Data(data) if data else None

    def _size(self) -> None:
        line = self._line("the size of a chunk")
        if line is None:
            return
        size = re.fullmatch(r"([0-9A-Fa-f]{1,12})[ \t]*(?:;.*)?", line)
        if size is None:
            raise Garbage(f"the size of a chunk is {line[:80]!r}")
        self._left = int(size[1], 16)
        self._state = "chunk" if self._left else "trailer"

    def _line(self, what: str) -> str | None:
        """The next line, if it has come."""
        end = self._buffer.find(b"\r\n")
        if end > MAX_LINE or (end < 0 and len(self._buffer) > MAX_LINE):
            raise Garbage(f"{what} in the node's answer is too long")
        if end < 0:
            return None
        line = bytes(self._buffer[:end]).decode("latin-1")
        del self._buffer[: end + 2]
        return line
