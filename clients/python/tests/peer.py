"""The server's side of the hold protocol for tests, without a socket."""

from __future__ import annotations

import json
from typing import Any

from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

SESSION = "00000000-0000-0001-a3d2-6ffe1fa85f94"


class Peer:
    """Decodes what the client sends, and encodes what a node would answer."""

    def __init__(self) -> None:
        self.protocol = ServerProtocol()
        self.request: Request | None = None
        # Decoded frames of the client: (kind, body).
        self.frames: list[tuple[str, Any]] = []

    def feed(self, data: bytes) -> None:
        self.protocol.receive_data(data)
        for event in self.protocol.events_received():
            if isinstance(event, Request):
                self.request = event
            elif isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                [(kind, body)] = json.loads(bytes(event.data)).items()
                self.frames.append((kind, body))

    def accept(self) -> bytes:
        """Opens the WebSocket."""
        assert self.request is not None
        self.protocol.send_response(self.protocol.accept(self.request))
        return self.taken()

    def say(self, kind: str, body: object) -> bytes:
        return self.text(json.dumps({kind: body}))

    def text(self, text: str) -> bytes:
        self.protocol.send_text(text.encode())
        return self.taken()

    def binary(self, data: bytes) -> bytes:
        self.protocol.send_binary(data)
        return self.taken()

    def ping(self) -> bytes:
        self.protocol.send_ping(b"are you there")
        return self.taken()

    def goodbye(self) -> bytes:
        """A Close frame."""
        self.protocol.send_close(1001)
        return self.taken()

    def taken(self) -> bytes:
        return b"".join(self.protocol.data_to_send())


def http(status: int, body: object = None, **headers: str) -> bytes:
    """An HTTP answer in place of a WebSocket."""
    content = b"" if body is None else json.dumps(body).encode()
    fields = Headers({"Content-Length": str(len(content)), **headers})
    return Response(status, "Reason", fields).serialize() + content


def failure(code: str, **more: object) -> dict[str, object]:
    return {"error": code, "message": f"a sentence about {code}", **more}


def waiting(session: str = SESSION, ttl_ms: int = 3000) -> dict[str, object]:
    return {"session": session, "ttl_ms": ttl_ms}


def granted(
    token: int = 17, session: str = SESSION, ttl_ms: int = 3000, key: str = "nightly"
) -> dict[str, object]:
    return {"key": key, "token": token, "session": session, "ttl_ms": ttl_ms}
