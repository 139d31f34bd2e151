"""The driver for asyncio: one task for each lock that is held or waited for."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable
from typing import Any

from . import _clock
from ._engine import Engine, Exchange, Target
from ._hold import CANCEL_LIMIT, Phase
from ._wire import reason_of
from .errors import PalisadeError

log = logging.getLogger("palisade")

# A name's next address is tried after this time, in seconds (RFC 8305).
NEXT_ADDRESS = 0.25
# How often a cancelled driver checks whether a task is left that may release the lock, in seconds.
LOOK_AROUND = 0.05

# The tasks of this client, in all loops. None of them releases a lock.
_own_tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()


class Carrier:
    """Carries bytes between one exchange and its connections, in the running event loop."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._pipe: _Pipe | None = None

    async def drive(self, is_done: Callable[[], bool]) -> None:
        """Carries bytes until `is_done`, or until the exchange is finished."""
        if self._pipe is not None:
            self._pipe.read_on()
        try:
            while not self._advance() and not is_done():
                await self._sleep(_clock.LONGEST_SLEEP)
        finally:
            # The caller takes no events now, so the node may send no more of them.
            if self._pipe is not None:
                self._pipe.hold_back()

    def wake(self) -> None:
        self._wake.set()

    async def close(self) -> None:
        if self._pipe is not None:
            await self._pipe.close()

    def abandon(self) -> None:
        """Closes the connection from any thread."""
        if self._pipe is not None:
            self._loop.call_soon_threadsafe(self._pipe.abort)

    def _advance(self) -> bool:
        """Makes the connection what the exchange wants. Returns whether that is finished."""
        self._wake.clear()
        self._exchange.tick(_clock.now())
        target = self._exchange.target
        wanted = target.number if target else None
        if self._pipe is not None and self._pipe.number != wanted:
            self._pipe.abort()
            self._pipe = None
        if self._pipe is None and target is not None and not self._exchange.is_finished:
            self._pipe = _Pipe(target, self._exchange, self.wake)
        if self._pipe is not None:
            self._pipe.send(self._exchange.outgoing(self._pipe.number))
        return self._exchange.is_finished

    async def _sleep(self, longest: float) -> None:
        """Waits for a report or a command, or until the exchange has something to do."""
        timeout = min(self._exchange.wake_at() - _clock.now(), longest)
        timer = self._loop.call_later(max(timeout, 0), self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()


async def run(exchange: Exchange) -> None:
    """Drives an exchange to its end, in this task."""
    carrier = Carrier(exchange)
    try:
        await carrier.drive(lambda: False)
    finally:
        await carrier.close()


class Driver(Carrier):
    """Drives one engine in the running event loop, until the engine is finished."""

    def __init__(self, engine: Engine, on_change: Callable[[], None]) -> None:
        super().__init__(engine)
        self._engine = engine
        self._on_change = on_change
        # When to end though the lock is not given back, after a first cancellation of the task.
        self._leave_by: float | None = None
        self._is_aborted = False
        self._task = self._loop.create_task(self._run(), name="palisade-lock")
        _own_tasks.add(self._task)

    def command(self, action: Callable[[float], object]) -> None:
        """Runs a command of the engine."""
        action(_clock.now())
        self.wake()

    async def join(self) -> None:
        """Waits for the task, which ends by itself when the engine is finished."""
        await asyncio.shield(self._task)

    def abort(self) -> None:
        """Ends the task at once, whatever the server is told."""
        self._is_aborted = True
        self._task.cancel()

    @property
    def is_done(self) -> bool:
        return self._task.done()

    async def _run(self) -> None:
        try:
            while not self._step():
                if self._must_leave():
                    self._fail("the event loop cancelled the task of the lock")
                    break
                try:
                    is_leaving = self._leave_by is not None
                    await self._sleep(LOOK_AROUND if is_leaving else _clock.LONGEST_SLEEP)
                except asyncio.CancelledError:
                    self._cancelled()
        except asyncio.CancelledError:
            # A second cancellation came while a first was carried out.
            self._fail("the task of the lock was cancelled")
        except Exception as error:
            log.exception("the task of a lock failed; the lock counts as lost")
            self._fail(f"the client failed: {error!r}")
        finally:
            if self._pipe is not None:
                try:
                    # A release may not have been handed over yet.
                    self._pipe.send(self._engine.outgoing(self._pipe.number))
                finally:
                    await self._pipe.close()
            self._on_change()

    def _cancelled(self) -> None:
        """Begins to give the lock back, at the first cancellation.

        The loop is shut down: it cancels all tasks, and those that hold the lock release it now.
        """
        if self._is_aborted or self._leave_by is not None:
            raise asyncio.CancelledError
        self._leave_by = _clock.now() + CANCEL_LIMIT
        if self._engine.hold.phase is not Phase.HELD:
            self._engine.cancel(_clock.now())

    def _must_leave(self) -> bool:
        """Whether a cancelled task drives on no longer: its time is over, or the lock is held and
        no task is left that could release it."""
        if self._leave_by is None:
            return False
        if _clock.now() >= self._leave_by:
            return True
        # Another loop's thread may add a task meanwhile, so the set is not iterated.
        is_forgotten = all(task in _own_tasks for task in asyncio.all_tasks())
        return is_forgotten and self._engine.hold.phase is Phase.HELD

    def _fail(self, reason: str) -> None:
        self._engine.hold.fail(PalisadeError(reason, "client_failed"))

    def _step(self) -> bool:
        """Makes the next step. Returns whether the engine is finished."""
        is_finished = self._advance()
        self._on_change()
        return is_finished


class _Pipe(asyncio.Protocol):
    """A TCP connection in the making, or one that stands. Reports to the exchange."""

    def __init__(self, target: Target, exchange: Exchange, wake: Callable[[], None]) -> None:
        self.number = target.number
        self._target = target
        self._exchange = exchange
        self._wake = wake
        self._transport: asyncio.Transport | None = None
        self._is_closed = False
        self._is_held_back = False
        self._dial_task = asyncio.get_running_loop().create_task(self._dial(), name="palisade-dial")
        _own_tasks.add(self._dial_task)

    async def _dial(self) -> None:
        loop, endpoint = asyncio.get_running_loop(), self._target.endpoint
        try:
            # One of a name's addresses may lead nowhere, such as IPv6 without a route: the next is
            # tried while it still connects.
            await loop.create_connection(
                lambda: self, endpoint.host, endpoint.port, happy_eyeballs_delay=NEXT_ADDRESS
            )
        except asyncio.CancelledError:
            # Unless this pipe was closed, the loop is shut down; a release may need a connection.
            if not self._is_closed:
                self._exchange.failed(self.number, "the attempt was cancelled", _clock.now())
                self._wake()
            raise
        except Exception as error:
            # Not only OSError: some versions of asyncio stumble when all addresses fail.
            self._exchange.failed(self.number, reason_of(error), _clock.now())
            self._wake()

    def send(self, data: bytes) -> None:
        if data and self._transport is not None:
            self._transport.write(data)

    def hold_back(self) -> None:
        """Reads nothing until `read_on`."""
        self._is_held_back = True
        if self._transport is not None:
            self._transport.pause_reading()

    def read_on(self) -> None:
        self._is_held_back = False
        if self._transport is not None:
            self._transport.resume_reading()

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
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._is_closed:
            transport.abort()
            return
        if self._is_held_back:
            transport.pause_reading()
        self._exchange.connected(self.number, _clock.now())
        self._wake()

    def data_received(self, data: bytes) -> None:
        if not self._is_closed:
            self._exchange.received(self.number, data, _clock.now())
            self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._is_closed:
            reason = reason_of(error) if error else "the node closed the connection"
            self._exchange.ended(self.number, reason, _clock.now())
            self._wake()
