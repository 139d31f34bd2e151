"""The driver for asyncio: one task for each lock that is held or waited for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from . import _clock
from ._engine import Engine, Target
from ._wire import reason_of
from .errors import PalisadeError

log = logging.getLogger("palisade")

# A name's next address is tried after this time, in seconds (RFC 8305).
NEXT_ADDRESS = 0.25


class Driver:
    """Drives one engine in the running event loop, until the engine is finished."""

    def __init__(self, engine: Engine, on_change: Callable[[], None]) -> None:
        self._engine = engine
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._pipe: _Pipe | None = None
        self._task = self._loop.create_task(self._run(), name="palisade-lock")

    def command(self, action: Callable[[float], object]) -> None:
        """Runs a command of the engine."""
        action(_clock.now())
        self.wake()

    def wake(self) -> None:
        self._wake.set()

    async def join(self) -> None:
        """Waits for the task, which ends by itself when the engine is finished."""
        await asyncio.shield(self._task)

    def abort(self) -> None:
        """Ends the task at once, whatever the server is told."""
        self._task.cancel()

    @property
    def is_done(self) -> bool:
        return self._task.done()

    async def _run(self) -> None:
        try:
            while not self._step():
                await self._sleep()
        except asyncio.CancelledError:
            # The loop is shut down, or a second cancellation came while a first was carried out.
            self._fail("the event loop cancelled the task of the lock")
        except Exception as error:
            log.exception("the task of a lock failed; the lock counts as lost")
            self._fail(f"the client failed: {error!r}")
        finally:
            if self._pipe is not None:
                await self._pipe.close()
            self._on_change()

    def _fail(self, reason: str) -> None:
        self._engine.hold.fail(PalisadeError(reason, "client_failed"))

    def _step(self) -> bool:
        """Makes the connection what the engine wants. Returns whether the engine is finished."""
        self._wake.clear()
        self._engine.tick(_clock.now())
        target = self._engine.target
        wanted = target.number if target else None
        if self._pipe is not None and self._pipe.number != wanted:
            self._pipe.abort()
            self._pipe = None
        if self._pipe is None and target is not None and not self._engine.is_finished:
            self._pipe = _Pipe(target, self._engine, self.wake)
        if self._pipe is not None:
            self._pipe.send(self._engine.outgoing(self._pipe.number))
        self._on_change()
        return self._engine.is_finished

    async def _sleep(self) -> None:
        """Waits for a report or a command, or until the engine has something to do."""
        timeout = min(self._engine.wake_at() - _clock.now(), _clock.LONGEST_SLEEP)
        timer = self._loop.call_later(max(timeout, 0), self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()


class _Pipe(asyncio.Protocol):
    """A TCP connection in the making, or one that stands. Reports to the engine."""

    def __init__(self, target: Target, engine: Engine, wake: Callable[[], None]) -> None:
        self.number = target.number
        self._target = target
        self._engine = engine
        self._wake = wake
        self._transport: asyncio.WriteTransport | None = None
        self._is_closed = False
        self._dial_task = asyncio.get_running_loop().create_task(self._dial(), name="palisade-dial")

    async def _dial(self) -> None:
        loop, endpoint = asyncio.get_running_loop(), self._target.endpoint
        try:
            # One of a name's addresses may lead nowhere, such as IPv6 without a route: the next is
            # tried while it still connects.
            await loop.create_connection(
                lambda: self, endpoint.host, endpoint.port, happy_eyeballs_delay=NEXT_ADDRESS
            )
        except Exception as error:
            # Not only OSError: some versions of asyncio stumble when all addresses fail.
            self._engine.failed(self.number, reason_of(error), _clock.now())
            self._wake()

    def send(self, data: bytes) -> None:
        if data and self._transport is not None:
            self._transport.write(data)

    def abort(self) -> None:
        """Gives the connection up, with what was not sent."""
        self._is_closed = True
        self._dial_task.cancel()
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Sends what the network takes at once, and leaves nothing behind."""
        self._is_closed = True
        self._dial_task.cancel()
        if self._transport is not None:
            # `write` has handed everything to the system that it takes without waiting.
            self._transport.abort()
        await asyncio.gather(self._dial_task, return_exceptions=True)
        # The transport closes its socket in a callback of the loop.
        await asyncio.sleep(0)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        if self._is_closed:
            transport.abort()
            return
        self._engine.connected(self.number, _clock.now())
        self._wake()

    def data_received(self, data: bytes) -> None:
        if not self._is_closed:
            self._engine.received(self.number, data, _clock.now())
            self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._is_closed:
            reason = reason_of(error) if error else "the node closed the connection"
            self._engine.ended(self.number, reason, _clock.now())
            self._wake()
