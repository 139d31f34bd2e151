"""The face for plain threads: `palisade.Client`, `palisade.Lock` and `palisade.Watch`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeVar

from . import _clock, _requests
from ._base import BaseClient, BaseLock
from ._engine import Engine
from ._hold import Phase
from ._request import Request, check_value
from ._requests import Steps
from ._threads import Carrier, Driver, run
from ._watch import WatchLink
from .errors import Compacted, LockLost
from .events import Event, Listing
from .types import Append, Change, Condition, Delete, LockPage, LockView, Put, Record

T = TypeVar("T")
OnLost = Callable[[LockLost], object]


class Client(BaseClient):
    """A cluster's client. Cheap: it connects when a lock is acquired, one connection for each.

    >>> client = palisade.Client("127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403")
    >>> with client.lock("nightly", ttl=30, wait=60) as lock:
    ...     write_report(lock.token)
    """

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
    ) -> Lock:
        """A lock that is not acquired yet: use it in a `with` statement, or call `acquire`.

        - `keys`: one key, or a list of up to 32, which are locked together or not at all.
        - `ttl`: seconds after which the server frees the lock of a client that has died.
        - `wait`: how many seconds to wait for the lock. 0: do not wait.
        - `owner`: the name that operators see, in place of the client's.
        - `mode`: `"exclusive"` (the default) or `"shared"`.
        - `permits`, `of`: in place of a mode, take `permits` of a semaphore's `of` permits.
        - `max_queue`: do not wait if so many sessions wait already.
        - `value`: a text that other clients read with the lock, such as this program's address.
        - `on_lost`: called once, in the lock's own thread, if the lock is lost.

        Raises `ValueError` for options that no server accepts.
        """
        request = self._request(keys, ttl, wait, owner, mode, permits, of, max_queue, value)
        return Lock(self, request, on_lost)

    def show(self, key: str, *, stale: bool = False) -> LockView:
        """Who holds the lock, and who waits for it. A lock that is free is shown, too.

        It has every change that was acknowledged before this call. With `stale` any node answers
        from what it knows, and `age` says how old that may be.

        Raises `Refused` or `Unreachable`.
        """
        return _result(_requests.show(self, key, stale))

    def list(
        self,
        prefix: str = "",
        *,
        limit: int | None = None,
        after: str | None = None,
        stale: bool = False,
    ) -> LockPage:
        """The locks that are held or waited for whose keys begin with `prefix`, in their order.

        A page has 100 locks, or `limit`, at most 1,000, and sometimes fewer. For the next page, set
        `after` to the `next_after` of this one, until that is None. Each page is a read of its own,
        as `show` is.
        """
        return _result(_requests.list_locks(self, prefix, limit, after, stale))

    @property
    def records(self) -> Records:
        """The store of records beside the locks."""
        return Records(self)

    def watch(
        self, *, key: str | None = None, prefix: str | None = None, after: str | None = None
    ) -> Watch:
        """What happens to the lock and the record on `key`, or on all keys with this prefix.

        Without `after` the watch begins with listings of the present state; with it, with what has
        happened after the event that has this `id`. Use it in a `for` loop:

        >>> with client.watch(key="nightly") as events:
        ...     for event in events:
        ...         print(event)
        """
        return Watch(_requests.watch(self, key, prefix, after))


class Records:
    """The records of a cluster, and how to change them.

    A write returns the record's new version. It is made only if all of this holds:

    - `lock`: the cluster has this lock held, with this token, at the very moment of the write. The
      client does not decide it, and sends the token of a lock that it knows to be lost, too. What
      was written under a lock is changed under locks only, until it is deleted.
    - `if_version`: the record has this version; 0: there is no such record.

    Raises `StaleToken`, `OtherVersion`, `StoreFull`, another `Refused`, or `Unreachable`: then the
    write was not made, and will not be.

    **Raises `UnknownOutcome` if an answer is lost** and the write may have been made, or may still
    be. Only a write whose `if_version` is not 0 is sent again, because it cannot be made twice. If
    the repetition is refused, the first attempt may have been made. Then the client reads the
    record, which shows what has happened in two cases: the version is still `if_version` and the
    token is stale, so nothing was written; or a `put` finds its content under its lock's token.
    (Another thread that puts the same content under the same lock at the same time would deceive
    it.)
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def get(self, key: str, *, stale: bool = False) -> Record:
        """The record. Raises `NoRecord` if there is none. `stale` as in `Client.show`."""
        return _result(_requests.get(self._client, key, stale))

    def put(
        self,
        key: str,
        value: str | bytes,
        *,
        lock: BaseLock | None = None,
        if_version: int | None = None,
    ) -> int:
        """Gives the record this content, of at most 64 KiB."""
        return _result(_requests.write(self._client, Put(key, value), lock, if_version))

    def append(
        self,
        key: str,
        value: str | bytes,
        *,
        lock: BaseLock | None = None,
        if_version: int | None = None,
    ) -> int:
        """Adds to the record's content. A record that does not exist begins empty."""
        return _result(_requests.write(self._client, Append(key, value), lock, if_version))

    def delete(
        self, key: str, *, lock: BaseLock | None = None, if_version: int | None = None
    ) -> int:
        """Removes the record. That there is none is no error."""
        return _result(_requests.write(self._client, Delete(key), lock, if_version))

    def transact(
        self,
        changes: Sequence[Change],
        conditions: Sequence[Condition] = (),
        *,
        lock: BaseLock | None = None,
    ) -> int:
        """Makes all changes, in their order, if all conditions hold, and none otherwise.

        At most 32 of both, and 256 KiB as JSON: a longer transaction is `Refused` as `too_large`,
        and not sent. After a lost answer it is sent again only if it changes a record whose
        version, other than 0, is one of the conditions; a refused repetition is `UnknownOutcome`.
        """
        return _result(_requests.transact(self._client, changes, conditions, lock))


def _result(steps: Steps[T]) -> T:
    """Drives the calls of a request in this thread."""
    while True:
        try:
            call = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        run(call)


class Watch:
    """An iterator of what a watch tells: `palisade.events.Listing` and the events after it.

    It goes on at another node when its node ends, after the event that it has told last: nothing is
    told twice, and nothing is left out. So it has no end of its own. While no node can be reached,
    it goes on trying; `close` ends it, also from another thread.

    Raises `Compacted` if the next events are not there any more; go on with the iterator then,
    which tells a listing next. Raises `Refused` if all nodes refuse it, and `Unreachable` if none
    serves it within the client's `timeout` at the beginning.
    """

    def __init__(self, link: WatchLink) -> None:
        self._link = link
        self._carrier: Carrier | None = None
        self._is_closed = False
        # One thread at a time carries bytes.
        self._turn = threading.Lock()

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> Event | Listing:
        try:
            with self._turn:
                item = self._next()
        finally:
            if self._is_closed:
                self.close()
        if item is None:
            raise StopIteration
        if isinstance(item, Compacted):
            raise item
        return item

    def close(self) -> None:
        """Ends the watch. A thread that waits for the next event gets the iterator's end."""
        self._is_closed = True
        if self._turn.acquire(blocking=False):
            try:
                carrier, self._carrier = self._carrier, None
                if carrier is not None:
                    carrier.close()
            finally:
                self._turn.release()
        else:
            carrier = self._carrier
            if carrier is not None:
                carrier.wake()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *why: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def _next(self) -> Event | Listing | Compacted | None:
        link = self._link
        if not self._is_closed and not link.items and not link.is_finished:
            carrier = self._carrier = self._carrier or Carrier(link)
            carrier.drive(lambda: bool(link.items) or self._is_closed)
        if self._is_closed:
            return None
        if link.items:
            return link.items.popleft()
        self._is_closed = True
        if link.error is not None:
            raise link.error
        return None


class LostSignal:
    """Like a `threading.Event` that is set when the lock is lost, and never by a release."""

    def __init__(self, engine: Engine | None, driver: Driver | None) -> None:
        self._engine = engine
        self._driver = driver

    def is_set(self) -> bool:
        """Whether the lock is lost. Looks at the clock, so it is true right after a long pause."""
        return self._engine is not None and self._engine.hold.is_lost(_clock.now())

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the lock is lost (True); False when it is released, or after `timeout`."""
        driver, engine = self._driver, self._engine
        if driver is None or engine is None:
            return False
        driver.wait_for(lambda: engine.is_finished or self.is_set(), timeout)
        return self.is_set()


class Lock(BaseLock):
    """A lock in the hands of one program. It can be acquired again after it has ended.

    A thread of its own renews the lease, as long as this process runs. All methods may be called
    from any thread.
    """

    def __init__(self, client: Client, request: Request, on_lost: OnLost | None = None) -> None:
        super().__init__(request)
        self._client = client
        self._on_lost = on_lost
        self._driver: Driver | None = None

    def acquire(self) -> Lock:
        """Acquires the lock, and waits for it as long as the options say.

        Raises `Held`, `Timeout`, `Refused`, `Unreachable` or `Cancelled`, and then holds nothing.
        """
        if self._is_in_use:
            raise RuntimeError(f"the lock {self._request.name} is acquired already; make another")
        engine = self._client._engine(self._request)
        driver = Driver(engine, self._on_lost)
        try:
            self._begin(engine)
            self._driver = driver
            # From here on another thread can cancel the acquire, so no server knows of it before.
            driver.start()
            done = (Phase.HELD, Phase.ENDED)
            driver.wait_for(lambda: engine.hold.phase in done)
        except BaseException:
            # Ctrl-C while it waits: leave the queue, and take no longer than a moment for it.
            driver.abandon()
            raise
        if engine.is_finished:
            driver.join()
            if engine.hold.error is not None and not engine.hold.lost:
                raise engine.hold.error
        return self

    def cancel(self) -> None:
        """Gives up an acquire that waits in another thread; that one raises `Cancelled`."""
        driver, engine = self._driver, self._mine
        if driver is None or engine is None:
            return
        if engine.hold.phase is Phase.ACQUIRING:
            driver.command(engine.cancel_acquire)

    def release(self) -> None:
        """Releases the lock. Returns when the server has confirmed it, or when the TTL is over.

        Raises `LockLost` if the lock was lost before: what was done under it was not protected to
        the end. Releasing a lock again changes nothing.
        """
        driver, engine = self._driver, self._mine
        if driver is None or engine is None:
            return
        try:
            driver.command(engine.release)
            driver.join()
        except BaseException:
            driver.abandon()
            raise
        if isinstance(engine.hold.error, LockLost):
            raise engine.hold.error

    def set_value(self, value: str) -> None:
        """Replaces the text that other clients read with the lock.

        Returns when the cluster has it. Raises `LockLost` if the lock ends before that, and
        `Refused` if the server refuses the value.
        """
        check_value(value)
        self.check()
        driver, engine = self._driver, self._mine
        assert driver is not None and engine is not None
        numbers: list[int] = []
        answers = engine.hold.answers
        driver.command(lambda now: numbers.append(engine.propose(value, now)))
        driver.wait_for(lambda: bool(numbers) and numbers[0] in answers)
        error = answers.pop(numbers[0]) if numbers else self._loss()
        if error is not None:
            raise error

    @property
    def lost(self) -> LostSignal:
        """Set when the lock is lost: `lock.lost.is_set()`, `lock.lost.wait(timeout)`."""
        return LostSignal(self._mine, self._driver)

    def __enter__(self) -> Lock:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Releases the lock. Raises `LockLost` if it was lost, unless the body raised an error."""
        try:
            self.release()
        except LockLost:
            if error is None:
                raise


__all__ = ["Client", "Lock", "LostSignal", "Records", "Watch"]
