"""The face for asyncio: `palisade.aio.Client`, `palisade.aio.Lock` and `palisade.aio.Watch`.

    client = palisade.aio.Client("127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403")
    async with client.lock("nightly", ttl=30, wait=60) as lock:
        await write_report(lock.token)

**If the lock is lost, the body of `async with` is cancelled**, as by `asyncio.timeout`: it sees
`asyncio.CancelledError` at its `await`, may clean up, and `async with` then raises `LockLost`. With
`cancel_on_lost=False` the body goes on; it looks at `lock.lost` itself, and `LockLost` is raised at
the end of the body.

A task in the same event loop renews the lease. Code that blocks the loop for longer than the TTL
loses the lock; `lock.is_valid` is false at the first look after it. Run such code in a thread
(`asyncio.to_thread`).

A loop that ends (`asyncio.run` cancels all tasks that are left) goes on with each lock for two
seconds at most, so that the tasks that hold it release it, and a wait leaves the queue. A lock that
no task is left to release ends with its TTL.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Any, TypeVar

from . import _clock, _requests
from ._base import BaseClient, BaseLock
from ._engine import Engine
from ._hold import Phase
from ._request import Request, check_value
from ._requests import Steps
from ._tasks import Carrier, Driver, run
from ._watch import WatchLink
from .errors import Compacted, LockLost
from .events import Event, Listing
from .types import Append, Change, Condition, Delete, LockPage, LockView, Put, Record

T = TypeVar("T")
OnLost = Callable[[LockLost], object]


class Client(BaseClient):
    """A cluster's client for asyncio. Cheap: it connects when a lock is acquired."""

    def lock(
        self,
        keys: str | Sequence[str],
        *,
        ttl: float = 30.0,
        wait: float = 0.0,
        owner: str | None = None,
        mode: str | None = None,
        permits: int | None = None,
        of: int | None = None,
        max_queue: int | None = None,
        value: str | None = None,
        on_lost: OnLost | None = None,
        cancel_on_lost: bool = True,
    ) -> Lock:
        """A lock that is not acquired yet: use it in `async with`, or call `acquire`.

        The options are those of `palisade.Client.lock`. `on_lost` is called in the event loop, and
        must not block. `cancel_on_lost` is for `async with`: see the module's documentation.
        """
        request = self._request(keys, ttl, wait, owner, mode, permits, of, max_queue, value)
        return Lock(self, request, on_lost, cancel_on_lost)

    async def show(self, key: str, *, stale: bool = False) -> LockView:
        """Who holds the lock, and who waits for it: as `palisade.Client.show`."""
        return await _result(_requests.show(self, key, stale))

    async def list(
        self,
        prefix: str = "",
        *,
        limit: int | None = None,
        after: str | None = None,
        stale: bool = False,
    ) -> LockPage:
        """A page of the locks that are held or waited for: as `palisade.Client.list`."""
        return await _result(_requests.list_locks(self, prefix, limit, after, stale))

    @property
    def records(self) -> Records:
        """The store of records beside the locks."""
        return Records(self)

    def watch(
        self, *, key: str | None = None, prefix: str | None = None, after: str | None = None
    ) -> Watch:
        """What happens to the lock and the record on `key`, or on all keys with this prefix.

        As `palisade.Client.watch`, for `async for`:

        >>> async with client.watch(key="nightly") as events:
        ...     async for event in events:
        ...         print(event)
        """
        return Watch(_requests.watch(self, key, prefix, after))


class Records:
    """The records of a cluster: the coroutines of `palisade.Records`, with the same errors.

    The outcome of a write whose task is cancelled is unknown.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def get(self, key: str, *, stale: bool = False) -> Record:
        """The record. Raises `NoRecord` if there is none."""
        return await _result(_requests.get(self._client, key, stale))

    async def put(
        self,
        key: str,
        value: str | bytes,
        *,
        lock: BaseLock | None = None,
        if_version: int | None = None,
    ) -> int:
        """Gives the record this content, of at most 64 KiB."""
        return await _result(_requests.write(self._client, Put(key, value), lock, if_version))

    async def append(
        self,
        key: str,
        value: str | bytes,
        *,
        lock: BaseLock | None = None,
        if_version: int | None = None,
    ) -> int:
        """Adds to the record's content. A record that does not exist begins empty."""
        return await _result(_requests.write(self._client, Append(key, value), lock, if_version))

    async def delete(
        self, key: str, *, lock: BaseLock | None = None, if_version: int | None = None
    ) -> int:
        """Removes the record. That there is none is no error."""
        return await _result(_requests.write(self._client, Delete(key), lock, if_version))

    async def transact(
        self,
        changes: Sequence[Change],
        conditions: Sequence[Condition] = (),
        *,
        lock: BaseLock | None = None,
    ) -> int:
        """Makes all changes, in their order, if all conditions hold, and none otherwise."""
        return await _result(_requests.transact(self._client, changes, conditions, lock))


async def _result(steps: Steps[T]) -> T:
    """Drives the calls of a request in this task."""
    while True:
        try:
            call = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await run(call)


class Watch:
    """An asynchronous iterator of what a watch tells: as `palisade.Watch`.

    One task iterates it. A task that is cancelled while it waits misses nothing: iterate it again.
    """

    def __init__(self, link: WatchLink) -> None:
        self._link = link
        self._carrier: Carrier | None = None
        self._is_closed = False

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> Event | Listing:
        link = self._link
        if not self._is_closed and not link.items and not link.is_finished:
            carrier = self._carrier = self._carrier or Carrier(link)
            await carrier.drive(lambda: bool(link.items) or self._is_closed)
            if self._is_closed:
                # Another task has ended it meanwhile.
                await carrier.close()
        if self._is_closed:
            raise StopAsyncIteration
        if not link.items:
            await self.aclose()
            if link.error is not None:
                raise link.error
            raise StopAsyncIteration
        item = link.items.popleft()
        if isinstance(item, Compacted):
            raise item
        return item

    async def aclose(self) -> None:
        """Ends the watch. A task that waits for the next event gets the iterator's end."""
        self._is_closed = True
        carrier, self._carrier = self._carrier, None
        if carrier is not None:
            carrier.wake()
            await carrier.close()

    async def __aenter__(self) -> Watch:
        return self

    async def __aexit__(self, *why: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if self._carrier is not None:
            # Perhaps in another thread, or after the end of the loop.
            with contextlib.suppress(Exception):
                self._carrier.abandon()


class LostSignal:
    """Tells that the lock is lost, and nothing of a release.

    `lock.lost.is_set()`, or `await lock.lost` in another task: True when the lock is lost, False
    when it is released.
    """

    def __init__(self, lock: Lock, engine: Engine | None) -> None:
        self._lock = lock
        self._engine = engine

    def is_set(self) -> bool:
        """Whether the lock is lost. Looks at the clock, so it is true right after a long pause."""
        return self._engine is not None and self._engine.hold.is_lost(_clock.now())

    async def wait(self) -> bool:
        """Waits for the end of the lock: True when it is lost, False when it is released."""
        engine = self._engine
        if engine is not None:
            await self._lock._wait_until(engine, lambda: engine.is_finished)
        return self.is_set()

    def __await__(self) -> Generator[Any, None, bool]:
        return self.wait().__await__()


class Lock(BaseLock):
    """A lock in the hands of one program. It can be acquired again after it has ended.

    A lock belongs to the event loop in which it was acquired.
    """

    def __init__(
        self,
        client: Client,
        request: Request,
        on_lost: OnLost | None = None,
        cancel_on_lost: bool = True,
    ) -> None:
        super().__init__(request)
        self._client = client
        self._on_lost = on_lost
        self._cancel_on_lost = cancel_on_lost
        self._driver: Driver | None = None
        self._waiters: set[asyncio.Future[None]] = set()
        self._loss_is_told = False
        # The task that runs the body of `async with`, and how often it was cancelled before.
        self._body: asyncio.Task[Any] | None = None
        self._cancellations = 0
        self._body_is_cancelled = False

    async def acquire(self) -> Lock:
        """Acquires the lock, and waits for it as long as the options say.

        Raises `Held`, `Timeout`, `Refused`, `Unreachable` or `Cancelled`, and then holds nothing.
        If the task is cancelled, the lock leaves the queue first.
        """
        if self._is_in_use:
            raise RuntimeError(f"the lock {self._request.name} is acquired already; make another")
        engine = self._client._engine(self._request)
        self._begin(engine)
        self._loss_is_told = False
        driver = self._driver = Driver(engine, lambda: self._changed(engine))
        hold = engine.hold
        try:
            done = (Phase.HELD, Phase.ENDED)
            await self._wait_until(engine, lambda: hold.phase in done)
            if engine.is_finished:
                await driver.join()
        except BaseException:
            await self._abandon(driver, engine)
            raise
        if engine.is_finished and hold.error is not None and not hold.lost:
            raise hold.error
        return self

    def cancel(self) -> None:
        """Gives up an acquire that waits in another task; that one raises `Cancelled`."""
        driver, engine = self._driver, self._mine
        if driver is not None and engine is not None and engine.hold.phase is Phase.ACQUIRING:
            driver.command(engine.cancel)

    async def release(self) -> None:
        """Releases the lock. Returns when the server has confirmed it, or when the TTL is over.

        Raises `LockLost` if the lock was lost before: what was done under it was not protected to
        the end. Releasing a lock again changes nothing.
        """
        driver, engine = self._driver, self._mine
        if driver is None or engine is None:
            return
        driver.command(engine.release)
        try:
            await driver.join()
        except BaseException:
            await self._abandon(driver, engine)
            raise
        if isinstance(engine.hold.error, LockLost):
            raise engine.hold.error

    async def set_value(self, value: str) -> None:
        """Replaces the text that other clients read with the lock.

        Returns when the cluster has it. Raises `LockLost` if the lock ends before that, and
        `Refused` if the server refuses the value.
        """
        check_value(value)
        self.check()
        driver, engine = self._driver, self._mine
        assert driver is not None and engine is not None
        number = engine.propose(value, _clock.now())
        driver.wake()
        answers = engine.hold.answers
        await self._wait_until(engine, lambda: number in answers)
        error = answers.pop(number)
        if error is not None:
            raise error

    @property
    def lost(self) -> LostSignal:
        """`lock.lost.is_set()`, or `await lock.lost` in another task."""
        return LostSignal(self, self._mine)

    async def __aenter__(self) -> Lock:
        self._body_is_cancelled = False
        await self.acquire()
        self._body = asyncio.current_task()
        self._cancellations = _cancellations(self._body)
        if self.lost.is_set():
            self._cancel_body()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Releases the lock; raises `LockLost` if it was lost, unless the body raised an error."""
        body, self._body = self._body, None
        is_ours = self._body_is_cancelled and body is not None and await self._take_back(body)
        try:
            await self.release()
        except LockLost:
            if error is None or (is_ours and isinstance(error, asyncio.CancelledError)):
                raise

    def _cancel_body(self) -> None:
        if self._body is not None and self._cancel_on_lost and not self._body_is_cancelled:
            self._body_is_cancelled = True
            self._body.cancel()

    async def _take_back(self, body: asyncio.Task[Any]) -> bool:
        """Takes our cancellation back. Returns whether no other task has cancelled the body.

        The body may have ended before it saw the cancellation: then it is still to come, and is
        caught here.
        """
        uncancel = getattr(body, "uncancel", None)  # since Python 3.11
        if uncancel is not None:
            uncancel()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            # Another cancellation may have come in the meantime, and be the one that arrives here.
            if _cancellations(body) > self._cancellations:
                raise
        return _cancellations(body) <= self._cancellations

    def _changed(self, engine: Engine) -> None:
        """The driver has made a step."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        error = engine.hold.error
        if engine.hold.lost and not self._loss_is_told and isinstance(error, LockLost):
            self._loss_is_told = True
            self._cancel_body()
            if self._on_lost is not None:
                asyncio.get_running_loop().call_soon(self._on_lost, error)

    async def _wait_until(self, engine: Engine, is_done: Callable[[], bool]) -> None:
        """Waits for a step of the driver after which `is_done`, or for the engine's end."""
        while not is_done() and not engine.is_finished:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)

    async def _abandon(self, driver: Driver, engine: Engine) -> None:
        """Ends the hold within a moment, because the task that waited was cancelled."""
        driver.command(engine.cancel)
        try:
            await driver.join()
        except asyncio.CancelledError:
            driver.abort()
            raise


def _cancellations(task: asyncio.Task[Any] | None) -> int:
    cancelling = getattr(task, "cancelling", None)  # since Python 3.11
    return int(cancelling()) if cancelling else 0


__all__ = ["Client", "Lock", "LostSignal", "Records", "Watch"]
