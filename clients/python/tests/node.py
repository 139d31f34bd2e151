"""A node that follows a script, on a real socket."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from websockets.exceptions import InvalidState

from .peer import SESSION, Peer, granted, waiting

# How long a script waits for the client before the test fails, in seconds.
PATIENCE = 20.0


class Gone(Exception):
    """The client has closed the connection."""


class Connection:
    """One connection, as the script sees it."""

    def __init__(self, sock: socket.socket, node: ScriptedNode) -> None:
        self.socket = sock
        self.node = node
        self.peer = Peer()
        sock.settimeout(0.05)

    def handshake(self) -> None:
        """Reads the upgrade."""
        self._read_until(lambda: self.peer.request is not None)

    def accept(self) -> None:
        self.handshake()
        self.socket.sendall(self.peer.accept())

    def answer(self, data: bytes) -> None:
        """Answers the upgrade with this HTTP answer."""
        self.handshake()
        self.socket.sendall(data)

    def header(self, name: str) -> str | None:
        assert self.peer.request is not None
        return self.peer.request.headers.get(name)

    def expect(self, kind: str) -> Any:
        """The body of the client's next frame, which must be of this kind."""
        self._read_until(lambda: bool(self.peer.frames))
        found, body = self.peer.frames.pop(0)
        assert found == kind, f"the client sent `{found}`: {body}; expected `{kind}`"
        return body

    def next_frame(self) -> tuple[str, Any]:
        self._read_until(lambda: bool(self.peer.frames))
        return self.peer.frames.pop(0)

    def say(self, kind: str, body: object) -> None:
        try:
            self.raw(self.peer.say(kind, body))
        except InvalidState as error:
            raise Gone from error

    def raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def freeze(self) -> None:
        """Neither reads nor writes until the node is stopped."""
        self.node.stopping.wait()

    def gone(self) -> None:
        """Waits until the client closes the connection."""
        try:
            self._read_until(lambda: False)
        except Gone:
            return

    def cut(self) -> None:
        """Breaks the connection, with a reset in place of a farewell."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def grant(self, token: int = 17, ttl_ms: int = 3000, key: str = "nightly") -> dict[str, Any]:
        """Opens the WebSocket, and answers an acquire with a grant."""
        self.accept()
        body: dict[str, Any] = self.expect("acquire")
        self.say("waiting", waiting(ttl_ms=ttl_ms))
        self.say("granted", granted(token, ttl_ms=ttl_ms, key=key))
        return body

    def serve(self, ttl_ms: int = 3000, first_check: int = 1) -> None:
        """Renews the lease as a good node does, until the client releases the lock or goes away."""
        check = first_check
        due = time.monotonic() + ttl_ms / 3000
        try:
            while not self.node.stopping.is_set():
                if time.monotonic() >= due:
                    self.say("check", {"n": check})
                    check += 1
                    due += ttl_ms / 3000
                self._read_once()
                for kind, body in self.peer.frames:
                    self.node.seen.append((kind, body))
                    if kind == "here":
                        self.say("renewed", {"n": body, "ttl_ms": ttl_ms})
                    elif kind == "value":
                        self.say("proclaimed", {"n": body["n"]})
                    elif kind == "release":
                        self.say("released", {})
                self.peer.frames.clear()
        except (Gone, OSError):
            return

    def _read_once(self) -> None:
        try:
            data = self.socket.recv(65536)
        except TimeoutError:
            return
        except OSError as error:
            raise Gone from error
        if not data:
            raise Gone
        self.peer.feed(data)
        # Answers to pings and Close frames, once the WebSocket is open.
        automatic = self.peer.taken()
        if automatic:
            self.socket.sendall(automatic)

    def _read_until(self, is_done: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not is_done():
            if self.node.stopping.is_set():
                raise Gone
            if time.monotonic() > end:
                raise AssertionError(f"the client sent nothing for {PATIENCE} s")
            self._read_once()


Script = Callable[[Connection], None]


class ScriptedNode:
    """Runs the n-th script on the n-th connection, and refuses further ones.

    What goes wrong in a script fails the test when it leaves the `with` block.
    """

    def __init__(self, *scripts: Script, tls: ssl.SSLContext | None = None) -> None:
        self._scripts = list(scripts)
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=16)
        self._listener.settimeout(0.05)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.stopping = threading.Event()
        # Frames that `serve` has read.
        self.seen: list[tuple[str, Any]] = []
        self.problems: list[str] = []
        self.connections = 0
        self._threads = [threading.Thread(target=self._listen, name="scripted-node")]
        self._threads[0].start()

    def __enter__(self) -> ScriptedNode:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.stop()
        if error is None and self.problems:
            raise AssertionError("a script failed:\n" + "\n".join(self.problems))

    def stop(self) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join()

    def _listen(self) -> None:
        while not self.stopping.is_set():
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                continue
            self.connections += 1
            if not self._scripts:
                sock.close()
                continue
            thread = threading.Thread(target=self._run, args=(sock, self._scripts.pop(0)))
            self._threads.append(thread)
            thread.start()
        self._listener.close()

    def _run(self, sock: socket.socket, script: Script) -> None:
        with sock:
            try:
                if self._tls is not None:
                    sock = self._tls.wrap_socket(sock, server_side=True)
                script(Connection(sock, self))
            except Gone:
                if not self.stopping.is_set():
                    self.problems.append(f"{script}: the client went away")
            except ssl.SSLError as error:
                self.problems.append(f"TLS: {error}")
            except Exception:
                self.problems.append(traceback.format_exc())
            finally:
                sock.close()


def unused_address() -> str:
    """An address at which no program listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


@contextlib.contextmanager
def silent_address() -> Iterator[str]:
    """An address that answers no attempt to connect: the listener's queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def resolver(name: str, addresses: list[str]) -> Callable[..., list[Any]]:
    """A `socket.getaddrinfo` for which `name` has these addresses."""
    real = socket.getaddrinfo

    def resolve(
        host: Any, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[Any]:
        if host != name:
            return list(real(host, port, family, type, proto, flags))
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "this is a name")
        ends = [address.rsplit(":", 1) for address in addresses]
        kind = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        return [(*kind, (number, int(end))) for number, end in ends]

    return resolve


__all__ = [
    "SESSION",
    "Connection",
    "Gone",
    "ScriptedNode",
    "resolver",
    "silent_address",
    "unused_address",
]
