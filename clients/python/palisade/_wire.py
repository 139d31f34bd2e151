"""One connection to one node, as bytes: TLS and WebSocket without a socket.

The drivers move bytes between this and a socket, and know nothing of what they mean. Both layers
are sans-IO: `ssl.SSLObject` and `websockets.client.ClientProtocol`.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from dataclasses import dataclass, field

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import parse_uri

from ._messages import Garbage
from ._route import Endpoint

PATH = "/v1/hold"
# The largest message of a node: a grant on 32 keys, each with a signed token.
MAX_MESSAGE = 256 * 1024


@dataclass(frozen=True)
class Security:
    """How the client trusts the nodes, and how it proves who it is."""

    context: ssl.SSLContext | None = None
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Opened:
    """The WebSocket is open."""


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Answer:
    """The node answered the upgrade with something else than a WebSocket."""

    status: int
    location: str | None
    body: bytes


@dataclass(frozen=True)
class Closed:
    """The node closed the connection."""

    reason: str


Event = Opened | Text | Answer | Closed


class Wire:
    """The protocol layers of one connection."""

    def __init__(self, endpoint: Endpoint, security: Security) -> None:
        scheme = "wss" if security.context else "ws"
        self._protocol = ClientProtocol(
            parse_uri(f"{scheme}://{endpoint}{PATH}"), max_size=MAX_MESSAGE
        )
        self._tls = Tls(security.context, endpoint.host) if security.context else None
        self._fragments: list[bytes] = []
        self._is_open = False
        request = self._protocol.connect()
        if security.token is not None:
            request.headers["Authorization"] = f"Bearer {security.token}"
        self._protocol.send_request(request)

    def feed(self, data: bytes) -> list[Event]:
        """What the bytes from the node mean. Raises `Garbage` and `ssl.SSLError`."""
        plain, at_end = (data, False) if self._tls is None else self._tls.feed(data)
        try:
            if plain:
                self._protocol.receive_data(plain)
            return self._events() + (self._finish() if at_end else [])
        except Garbage:
            raise
        except Exception as error:
            # Whatever a parser stumbles over came from the node, and must cost no more than the
            # connection.
            raise Garbage(f"the node's bytes make no sense: {error!r}") from error

    def end(self) -> list[Event]:
        """The node sends nothing any more."""
        try:
            return self._finish()
        except Garbage:
            raise
        except Exception as error:
            raise Garbage(f"the node's last bytes make no sense: {error!r}") from error

    def send(self, text: str) -> None:
        """Sends a frame, unless the node has closed the connection in the meantime."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_text(text.encode())

    def close(self) -> None:
        """Sends a close frame, without waiting for the answer."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(1000)

    def outgoing(self) -> bytes:
        """The bytes to send to the node."""
        plain = b"".join(self._protocol.data_to_send())
        return plain if self._tls is None else self._tls.outgoing(plain)

    def _finish(self) -> list[Event]:
        if self._protocol.state is not State.CLOSED:
            self._protocol.receive_eof()
        events = self._events()
        return events or [Closed("the node closed the connection")]

    def _events(self) -> list[Event]:
        events: list[Event] = []
        for event in self._protocol.events_received():
            if isinstance(event, Response):
                events.append(self._answered(event))
            elif isinstance(event, Frame):
                events.extend(self._frame(event))
        if self._protocol.parser_exc is not None:
            raise Garbage(f"the node broke the WebSocket protocol: {self._protocol.parser_exc}")
        failed = self._protocol.handshake_exc
        if failed is not None and not isinstance(failed, InvalidStatus):
            hint = "" if self._tls else " (if the node uses TLS, name the CA's file: ca=…)"
            raise Garbage(f"the node did not open a WebSocket: {failed}{hint}")
        return events

    def _answered(self, response: Response) -> Event:
        if response.status_code == 101 and self._protocol.handshake_exc is None:
            return Opened()
        location = response.headers.get("Location")
        return Answer(response.status_code, location, bytes(response.body or b""))

    def _frame(self, frame: Frame) -> list[Event]:
        if frame.opcode is Opcode.CLOSE:
            return [Closed(f"the node closed the WebSocket: {self._protocol.close_reason}")]
        if frame.opcode is Opcode.BINARY:
            raise Garbage("the node sent a binary frame")
        if frame.opcode not in (Opcode.TEXT, Opcode.CONT):
            return []
        self._fragments.append(bytes(frame.data))
        if not frame.fin:
            return []
        message, self._fragments = b"".join(self._fragments), []
        try:
            return [Text(message.decode())]
        except UnicodeDecodeError:
            raise Garbage("the node sent a text frame that is not UTF-8") from None


def reason_of(error: Exception) -> str:
    """Why the network failed, for a message: the system's words without its numbers."""
    code = getattr(error, "errno", None)
    return os.strerror(code) if isinstance(code, int) and code > 0 else str(error)


class Tls:
    """The client's side of TLS, between two buffers."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._in, self._out, server_hostname=host)
        self._is_ready = False
        # Plaintext that waits for the handshake.
        self._waiting = b""
        self._handshake()

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """The plaintext of `data`, and whether the peer has ended the stream."""
        self._in.write(data)
        self._handshake()
        plain: list[bytes] = []
        while self._is_ready:
            try:
                part = self._object.read(65536)
            except ssl.SSLWantReadError:
                break
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b"".join(plain), True
            if not part:
                return b"".join(plain), True
            plain.append(part)
        return b"".join(plain), False

    @property
    def is_ready(self) -> bool:
        """Whether the handshake is done, so that plaintext goes out."""
        return self._is_ready

    def outgoing(self, plain: bytes) -> bytes:
        self._waiting += plain
        if self._is_ready and self._waiting:
            # The peer may have ended the session. Then the stream ends, too, and `feed` tells it.
            with contextlib.suppress(ssl.SSLError):
                self._object.write(self._waiting)
            self._waiting = b""
        return self._out.read()

    def _handshake(self) -> None:
        if self._is_ready:
            return
        try:
            self._object.do_handshake()
            self._is_ready = True
        except ssl.SSLWantReadError:
            pass
