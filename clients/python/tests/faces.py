"""Both faces of the client behind one, so that each test runs against threads and asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

import palisade
import palisade.aio

T = TypeVar("T")
# How long a test waits for what must happen, in seconds.
PATIENCE = 20.0


class Handle:
    """A lock of either face. Calls block; `start_*` return futures."""

    def __init__(self, face: Face, lock: palisade.Lock | palisade.aio.Lock) -> None:
        self._face = face
        self.lock = lock
        self.losses: list[palisade.LockLost] = []
        self.told = threading.Event()

    def on_lost(self, error: palisade.LockLost) -> None:
        self.losses.append(error)
        self.told.set()

    def start_acquire(self) -> Future[Any]:
        return self._face.start(self.lock.acquire)

    def acquire(self) -> None:
        self.start_acquire().result(PATIENCE)

    def start_release(self) -> Future[Any]:
        return self._face.start(self.lock.release)

    def release(self) -> None:
        self.start_release().result(PATIENCE)

    def set_value(self, value: str) -> None:
        self._face.start(lambda: self.lock.set_value(value)).result(PATIENCE)

    def cancel(self) -> None:
        self._face.call(self.lock.cancel)

    def start_waiting_for_loss(self) -> Future[Any]:
        return self._face.start(lambda: self.lock.lost.wait())


class Face(Protocol):
    """How a test calls a face."""

    def lock(self, endpoints: str, keys: Any = "nightly", **options: Any) -> Handle: ...

    def client(self, endpoints: str, **options: Any) -> Any: ...

    def start_next(self, watch: Any) -> Future[Any]: ...

    def close_watch(self, watch: Any) -> None: ...

    def start(self, method: Callable[[], Any]) -> Future[Any]: ...

    def call(self, method: Callable[[], Any]) -> None: ...

    def leftovers(self) -> list[str]: ...

    def close(self) -> None: ...


SECURITY = ("ca", "cert", "key", "token", "timeout")


def _split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    client = {name: options.pop(name) for name in SECURITY if name in options}
    return client, {"ttl": 3, **options}


class ThreadsFace:
    """Each blocking call runs in a thread of its own."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def lock(self, endpoints: str, keys: Any = "nightly", **options: Any) -> Handle:
        client_options, lock_options = _split(options)
        client = palisade.Client(endpoints, **client_options)
        handle: Handle
        lock = client.lock(keys, on_lost=lambda error: handle.on_lost(error), **lock_options)
        handle = Handle(self, lock)
        return handle

    def client(self, endpoints: str, **options: Any) -> palisade.Client:
        return palisade.Client(endpoints, **options)

    def start_next(self, watch: palisade.Watch) -> Future[Any]:
        return self.start(lambda: next(watch, None))

    def close_watch(self, watch: palisade.Watch) -> None:
        watch.close()

    def start(self, method: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(method())
            except BaseException as error:
                future.set_exception(error)

        thread = threading.Thread(target=run, name="test")
        self._threads.append(thread)
        thread.start()
        return future

    def call(self, method: Callable[[], Any]) -> None:
        method()

    def leftovers(self) -> list[str]:
        for thread in self._threads:
            thread.join(PATIENCE)
        # The thread of a lock that is lost runs the callback, and then ends.
        ending = [thread for thread in threading.enumerate() if "palisade" in thread.name]
        for thread in ending:
            thread.join(PATIENCE)
        return [thread.name for thread in ending if thread.is_alive()]

    def close(self) -> None:
        pass


class AsyncioFace:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop")
        self._thread.start()

    def lock(self, endpoints: str, keys: Any = "nightly", **options: Any) -> Handle:
        client_options, lock_options = _split(options)
        client = palisade.aio.Client(endpoints, **client_options)
        handle: Handle
        lock = client.lock(keys, on_lost=lambda error: handle.on_lost(error), **lock_options)
        handle = Handle(self, lock)
        return handle

    def client(self, endpoints: str, **options: Any) -> palisade.aio.Client:
        return palisade.aio.Client(endpoints, **options)

    def start_next(self, watch: palisade.aio.Watch) -> Future[Any]:
        async def step() -> Any:
            try:
                return await watch.__anext__()
            except StopAsyncIteration:
                return None

        return self.start(step)

    def close_watch(self, watch: palisade.aio.Watch) -> None:
        self.run(watch.aclose())

    def start(self, method: Callable[[], Any]) -> Future[Any]:
        async def run() -> Any:
            return await method()

        return asyncio.run_coroutine_threadsafe(run(), self._loop)

    def call(self, method: Callable[[], Any]) -> None:
        async def run() -> None:
            method()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE)

    def leftovers(self) -> list[str]:
        async def tasks() -> list[str]:
            for _ in range(3):
                await asyncio.sleep(0)
            return [task.get_name() for task in asyncio.all_tasks()]

        return [name for name in self.run(tasks()) if "palisade" in name]

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()
