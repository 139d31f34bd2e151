"""The driver for plain threads: one thread for each lock that is held or waited for.

The thread sleeps in `select` until the node sends something, the engine has something to do, or a
command wakes it. It never blocks elsewhere, so it tells a loss in time whatever the network does;
a name is therefore looked up in a thread of its own.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import math
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from . import _clock
from ._engine import Engine, Exchange, Target
from ._wire import reason_of
from .errors import LockLost, PalisadeError

log = logging.getLogger("palisade")

_IN_PROGRESS = (0, errno.EINPROGRESS, errno.EWOULDBLOCK, getattr(errno, "WSAEWOULDBLOCK", 0))
# What `getaddrinfo` returns for one address: family, type, protocol, name, address.
_Address = tuple[Any, Any, Any, Any, Any]
# A name's next address is tried after this time, in seconds, while the earlier ones still connect
# (RFC 8305): one of them may lead nowhere, such as IPv6 without a route.
NEXT_ADDRESS = 0.25


class Carrier:
    """Carries bytes between one exchange and its connections, in the thread that calls."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self._connection: _Connection | None = None
        # The connection's sockets that the selector knows.
        self._watched: set[socket.socket] = set()

    def drive(self, is_done: Callable[[], bool]) -> None:
        """Carries bytes until `is_done`, or until the exchange is finished."""
        while not self._advance() and not is_done():
            self._sleep()

    def wake(self) -> None:
        # Full: the thread wakes anyway. Closed: it has ended.
        with contextlib.suppress(OSError):
            self._wake_out.send(b"w")

    def close(self) -> None:
        self._close_connection()
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()

    def _advance(self) -> bool:
        """Makes the connection what the exchange wants. Returns whether that is finished."""
        self._exchange.tick(_clock.now())
        self._follow_target()
        if self._connection is not None:
            number = self._connection.number
            self._connection.pending += self._exchange.outgoing(number)
            self._flush()
        return self._exchange.is_finished

    def _follow_target(self) -> None:
        target = self._exchange.target
        wanted = target.number if target else None
        if self._connection is not None and self._connection.number != wanted:
            self._close_connection()
        if self._connection is None and target is not None and not self._exchange.is_finished:
            self._connection = _Connection(target, self.wake)

    def _flush(self) -> None:
        connection = self._connection
        if connection is None or connection.socket is None:
            return
        try:
            while connection.pending:
                sent = connection.socket.send(connection.pending)
                del connection.pending[:sent]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._exchange.ended(connection.number, reason_of(error), _clock.now())
            self._follow_target()

    def _sleep(self) -> None:
        """Waits for the next event, and reports it to the exchange."""
        self._watch()
        due = self._exchange.wake_at()
        if self._connection is not None:
            due = min(due, self._connection.wake_at())
        timeout = min(due - _clock.now(), _clock.LONGEST_SLEEP)
        # A pause of the process can end the timeout before the data was seen: look again, so that a
        # healthy connection is not given up as silent.
        ready = self._selector.select(max(timeout, 0)) or self._selector.select(0)
        for key, _ in ready:
            if key.fileobj is self._wake_in:
                self._drain()
        connection = self._connection
        if connection is None:
            return
        for key, _ in ready:
            if isinstance(key.fileobj, socket.socket):
                connection.ready(key.fileobj, self._exchange)
        connection.tick(self._exchange)

    def _watch(self) -> None:
        """Registers the connection's sockets for what they wait for."""
        events = self._connection.events() if self._connection is not None else {}
        # First those that are closed: a new socket may have the number of one of them.
        for sock in self._watched - events.keys():
            self._selector.unregister(sock)
        for sock, mask in events.items():
            if sock in self._watched:
                self._selector.modify(sock, mask)
            else:
                self._selector.register(sock, mask)
        self._watched = set(events)

    def _drain(self) -> None:
        try:
            while self._wake_in.recv(4096):
                pass
        except (BlockingIOError, InterruptedError):
            pass

    def _close_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._watch()


class Driver(Carrier):
    """Drives one engine in a thread of its own, from `start` until the engine is finished."""

    def __init__(self, engine: Engine, on_lost: Callable[[LockLost], object] | None) -> None:
        super().__init__(engine)
        self._engine = engine
        self._on_lost = on_lost
        # Only this thread touches the engine; other threads leave commands here, and wait with
        # locks of their own. So Ctrl-C, wherever it strikes, leaves no lock taken that this thread
        # needs. Appending and removing are atomic.
        self._commands: deque[Callable[[float], object]] = deque()
        self._waiters: list[threading.Lock] = []
        # The engine is finished. The thread may still run `on_lost`.
        self._is_over = False
        self._tells_loss = False
        # The driver of the engine takes it: the thread, or `abandon` before the thread has begun.
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="palisade-lock", daemon=True)

    def start(self) -> None:
        """Starts the thread. Commands may have come before."""
        self._thread.start()

    def command(self, action: Callable[[float], object]) -> None:
        """Lets the thread run a command of the engine."""
        self._commands.append(action)
        self.wake()

    def wait_for(self, is_done: Callable[[], bool], timeout: float | None = None) -> None:
        """Waits for a step after which `is_done`, for the engine's end, or for `timeout`."""
        end = None if timeout is None else time.monotonic() + timeout
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        try:
            while not is_done() and not self._is_over:
                left = -1.0 if end is None else end - time.monotonic()
                if end is not None and left <= 0:
                    return
                waiter.acquire(timeout=left)
        finally:
            self._waiters.remove(waiter)

    def _notify(self) -> None:
        for waiter in list(self._waiters):
            with contextlib.suppress(RuntimeError):
                waiter.release()

    def join(self) -> None:
        """Waits until the engine is finished, and for the thread unless it tells a loss.

        The callback that the thread runs then may itself wait for the caller.
        """
        self.wait_for(lambda: False)
        is_other = threading.current_thread() is not self._thread
        # A thread that was never started is not alive.
        if not self._tells_loss and is_other and self._thread.is_alive():
            self._thread.join()

    def abandon(self) -> None:
        """Ends the hold within a moment, whether the thread was started or not.

        Ctrl-C inside `start` does not tell whether the thread will run.
        """
        self.command(self._engine.cancel)
        if self._turn.acquire(blocking=False):
            # Nothing was asked of any node, so this ends the engine.
            self._engine.cancel(_clock.now())
            self.close()
            self._is_over = True
            self._notify()
        self.join()

    def _run(self) -> None:
        if not self._turn.acquire(blocking=False):
            return
        try:
            while not self._step():
                self._sleep()
        except BaseException as error:
            log.exception("the thread of a lock failed; the lock counts as lost")
            failure = PalisadeError(f"the client failed: {error!r}", "client_failed")
            self._engine.hold.fail(failure)
        finally:
            try:
                self.close()
            finally:
                lost = self._engine.hold.error if self._engine.hold.lost else None
                self._tells_loss = isinstance(lost, LockLost) and self._on_lost is not None
                self._is_over = True
                self._notify()
        if isinstance(lost, LockLost) and self._on_lost is not None:
            try:
                self._on_lost(lost)
            except Exception:
                log.exception("the callback `on_lost` failed")

    def _step(self) -> bool:
        """Carries out the commands. Returns whether the engine is finished."""
        while self._commands:
            self._commands.popleft()(_clock.now())
        is_finished = self._advance()
        self._notify()
        return is_finished


def run(exchange: Exchange) -> None:
    """Drives an exchange to its end, in this thread."""
    carrier = Carrier(exchange)
    try:
        carrier.drive(lambda: False)
    finally:
        carrier.close()


class _Connection:
    """A TCP connection in the making, or one that stands."""

    def __init__(self, target: Target, wake: Callable[[], None]) -> None:
        self.number = target.number
        self._target = target
        self._wake = wake
        # Results of the name's look-up: addresses, or one error.
        self._found: deque[list[_Address] | OSError] = deque()
        # Addresses that were not tried yet, and when the next of them is.
        self._addresses: deque[_Address] = deque()
        self._next_at = 0.0
        # Sockets that connect, each to an address of its own. The first that succeeds is taken.
        self._attempts: list[socket.socket] = []
        self._reason = "the name has no address"
        # The socket of the connection that stands.
        self.socket: socket.socket | None = None
        self.pending = bytearray()
        self._look_up()

    def wake_at(self) -> float:
        """When `tick` has something to do."""
        is_due = self.socket is None and self._addresses
        return self._next_at if is_due else math.inf

    def tick(self, exchange: Exchange) -> None:
        """Begins to connect once the name is looked up, and tries the next address in time."""
        if self._found:
            found = self._found.popleft()
            if isinstance(found, OSError):
                exchange.failed(self.number, f"cannot look the name up: {found}", _clock.now())
                return
            self._addresses = deque(_alternated(found))
            self._try_next(exchange)
        elif _clock.now() >= self.wake_at():
            self._try_next(exchange)

    def events(self) -> dict[socket.socket, int]:
        """What each socket waits for."""
        if self.socket is None:
            return dict.fromkeys(self._attempts, selectors.EVENT_WRITE)
        writes = selectors.EVENT_WRITE if self.pending else 0
        return {self.socket: selectors.EVENT_READ | writes}

    def ready(self, sock: socket.socket, exchange: Exchange) -> None:
        """A socket can be read or written."""
        if sock is self.socket:
            self._read(sock, exchange)
        elif sock in self._attempts:
            self._finish_connecting(sock, exchange)

    def close(self) -> None:
        for sock in self._attempts:
            sock.close()
        self._attempts.clear()
        self._addresses.clear()
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def _look_up(self) -> None:
        host, port = self._target.endpoint.host, self._target.endpoint.port
        try:
            flags = socket.AI_NUMERICHOST
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
        except (OSError, UnicodeError):
            # No address but a name. The look-up may block for many seconds.
            threading.Thread(target=self._resolve, name="palisade-resolve", daemon=True).start()
        else:
            self._found.append(list(found))
            self._wake()

    def _resolve(self) -> None:
        endpoint = self._target.endpoint
        try:
            found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
            self._found.append(list(found))
        except OSError as error:
            self._found.append(error)
        except UnicodeError as error:
            self._found.append(OSError(str(error)))
        self._wake()

    def _try_next(self, exchange: Exchange) -> None:
        """Begins to connect to the next of the name's addresses."""
        while self._addresses:
            family, kind, protocol, _, address = self._addresses.popleft()
            try:
                sock = socket.socket(family, kind, protocol)
            except OSError as error:
                self._reason = reason_of(error)
                continue
            try:
                sock.setblocking(False)
                code = sock.connect_ex(address)
            except OSError as error:
                self._reason = reason_of(error)
            else:
                if code in _IN_PROGRESS:
                    self._attempts.append(sock)
                    self._next_at = _clock.now() + NEXT_ADDRESS
                    return
                self._reason = os.strerror(code)
            sock.close()
        if not self._attempts:
            exchange.failed(self.number, self._reason, _clock.now())

    def _finish_connecting(self, sock: socket.socket, exchange: Exchange) -> None:
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self._attempts.remove(sock)
        if code != 0:
            sock.close()
            self._reason = os.strerror(code)
            self._try_next(exchange)
            return
        self.close()
        # Some systems refuse it for a connection that was reset; `recv` reports that.
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = sock
        exchange.connected(self.number, _clock.now())

    def _read(self, sock: socket.socket, exchange: Exchange) -> None:
        try:
            data = sock.recv(65536)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            exchange.ended(self.number, reason_of(error), _clock.now())
            return
        if data:
            exchange.received(self.number, data, _clock.now())
        else:
            exchange.ended(self.number, "the node closed the connection", _clock.now())


def _alternated(addresses: list[_Address]) -> list[_Address]:
    """The addresses with their families in turn, so that the second is of another family."""
    families: dict[Any, deque[_Address]] = {}
    for address in addresses:
        families.setdefault(address[0], deque()).append(address)
    rounds = itertools.zip_longest(*families.values())
    return [address for group in rounds for address in group if address is not None]
