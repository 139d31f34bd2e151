"""The face for plain threads: `palisade.Client` and `palisade.Lock`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType

from . import _clock
from ._base import BaseClient, BaseLock
from ._engine import Engine
from ._hold import Phase
from ._request import Request, check_value
from ._threads import Driver
from .errors import LockLost

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
        """Releases the lock. Returns when the server has confirmed it, or the lease has ended.

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


__all__ = ["Client", "Lock", "LostSignal"]
