"""What only the face for asyncio has: the body of `async with`, and cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import unittest
from collections.abc import Coroutine
from typing import Any

import palisade
import palisade.aio

from .node import Connection, ScriptedNode, silent_address
from .peer import failure, granted, waiting
from .test_blocking import losing
from .test_faces import good


async def lose(lock: palisade.aio.Lock) -> None:
    """Lets the node take the lock back; the loss reaches the body at its next `await`."""
    with contextlib.suppress(palisade.LockLost):
        await lock.set_value("x")


def freezing(connection: Connection) -> None:
    connection.grant()
    connection.freeze()


class Body(unittest.TestCase):
    def run_all(self, main: Coroutine[Any, Any, None]) -> None:
        """Runs `main`, and checks that it leaves no task behind."""

        async def checked() -> None:
            await main
            for _ in range(3):
                await asyncio.sleep(0)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            self.assertEqual([task.get_name() for task in others if task], [])

        asyncio.run(checked())

    def test_body_is_cancelled_when_the_lock_is_lost(self) -> None:
        seen: list[str] = []

        async def main() -> None:
            with self.assertRaises(palisade.LockLost) as raised:
                async with palisade.aio.Client(node.address).lock("nightly", ttl=3) as lock:
                    try:
                        await asyncio.sleep(60)
                    except asyncio.CancelledError:
                        seen.append(f"valid: {lock.is_valid}")
                        raise
            self.assertEqual(raised.exception.code, "expired")
            self.assert_not_cancelled()
            await asyncio.sleep(0.01)

        with ScriptedNode(freezing) as node:
            self.run_all(main())
        self.assertEqual(seen, ["valid: False"])

    def assert_not_cancelled(self) -> None:
        task = asyncio.current_task()
        cancelling = getattr(task, "cancelling", None)  # since Python 3.11
        self.assertEqual(cancelling() if cancelling else 0, 0)

    def test_body_that_ends_before_it_sees_the_cancellation(self) -> None:
        async def main() -> None:
            with self.assertRaises(palisade.LockLost):
                async with palisade.aio.Client(node.address).lock("nightly", ttl=3):
                    time.sleep(3.2)  # blocks the loop beyond the TTL, and never awaits
            self.assert_not_cancelled()
            await asyncio.sleep(0.01)

        with ScriptedNode(freezing) as node:
            self.run_all(main())

    def test_loss_while_the_cancellation_is_pending(self) -> None:
        async def main() -> None:
            with self.assertRaises(palisade.LockLost):
                async with palisade.aio.Client(node.address).lock("nightly", ttl=3) as lock:
                    lock._cancel_body()  # as at a loss, with no `await` before the end
                    assert lock._engine is not None
                    lock._engine.hold.tick(float("inf"))
            self.assert_not_cancelled()
            await asyncio.sleep(0.01)

        with ScriptedNode(freezing) as node:
            self.run_all(main())

    def test_body_goes_on_if_it_wants_to(self) -> None:
        async def main() -> None:
            client = palisade.aio.Client(node.address)
            with self.assertRaises(palisade.LockLost):
                async with client.lock("nightly", ttl=3, cancel_on_lost=False) as lock:
                    await lose(lock)
                    self.assertTrue(await lock.lost)
                    await asyncio.sleep(0.01)
                    steps.append("went on")

        steps: list[str] = []
        with ScriptedNode(losing) as node:
            self.run_all(main())
        self.assertEqual(steps, ["went on"])

    def test_error_of_the_body_is_not_hidden_by_a_loss(self) -> None:
        async def main() -> None:
            with self.assertRaises(ZeroDivisionError):
                async with palisade.aio.Client(node.address).lock("nightly", ttl=3):
                    try:
                        await asyncio.sleep(60)
                    finally:
                        raise ZeroDivisionError

        with ScriptedNode(freezing) as node:
            self.run_all(main())

    def test_error_in_the_body_releases_the_lock(self) -> None:
        async def main() -> None:
            with self.assertRaises(ZeroDivisionError):
                async with palisade.aio.Client(node.address).lock("nightly", ttl=3):
                    raise ZeroDivisionError

        with ScriptedNode(good) as node:
            self.run_all(main())
            self.assertEqual(node.seen, [("release", {})])

    def test_cancelled_body_releases_the_lock(self) -> None:
        async def job() -> None:
            async with palisade.aio.Client(node.address).lock("nightly", ttl=3):
                held.set()
                await asyncio.sleep(60)

        async def main() -> None:
            task = asyncio.create_task(job())
            await held.wait()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        held = asyncio.Event()
        with ScriptedNode(good) as node:
            self.run_all(main())
            self.assertEqual(node.seen, [("release", {})])

    def test_cancellation_by_others_wins_over_a_loss(self) -> None:
        async def job() -> None:
            async with palisade.aio.Client(node.address).lock("nightly", ttl=3):
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    lost.set()
                    await asyncio.sleep(60)

        async def main() -> None:
            task = asyncio.create_task(job())
            await lost.wait()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        if not hasattr(asyncio.Task, "uncancel"):
            self.skipTest("before Python 3.11, a task does not count its cancellations")
        lost = asyncio.Event()
        with ScriptedNode(freezing) as node:
            self.run_all(main())

    def test_cancellation_by_others_that_follows_ours_is_kept(self) -> None:
        async def job() -> None:
            task = asyncio.current_task()
            assert task is not None
            async with palisade.aio.Client(node.address).lock("nightly", ttl=3) as lock:
                lock._cancel_body()  # as at a loss, with no `await` before the end
                assert lock._engine is not None and lock._driver is not None
                lock._engine.hold.tick(float("inf"))
                lock._driver.wake()
                # It strikes while the end of the body takes our cancellation back.
                asyncio.get_running_loop().call_soon(task.cancel)

        async def main() -> None:
            with self.assertRaises(asyncio.CancelledError):
                await asyncio.create_task(job())
            await asyncio.sleep(0.01)

        if not hasattr(asyncio.Task, "uncancel"):
            self.skipTest("before Python 3.11, a task does not count its cancellations")
        with ScriptedNode(freezing) as node:
            self.run_all(main())

    def test_timeout_of_an_acquire_leaves_the_queue(self) -> None:
        def script(connection: Connection) -> None:
            connection.accept()
            connection.expect("acquire")
            connection.say("waiting", waiting())
            connection.expect("release")
            released.set()
            connection.say("released", {})
            connection.gone()

        async def main() -> None:
            lock = palisade.aio.Client(node.address).lock("nightly", ttl=3, wait=600)
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(lock.acquire(), 0.5)
            self.assertTrue(released.is_set())

        released = threading.Event()
        with ScriptedNode(script) as node:
            self.run_all(main())

    def test_second_cancellation_ends_at_once(self) -> None:
        async def main() -> None:
            lock = palisade.aio.Client(node.address).lock("nightly", ttl=60)
            await lock.acquire()
            task = asyncio.create_task(lock.release())
            for _ in range(2):
                await asyncio.sleep(0.1)
                task.cancel()
            before = time.monotonic()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertLess(time.monotonic() - before, 20, "not until the end of the lease")
            await asyncio.sleep(0.05)
            self.assertEqual((lock.is_valid, lock.lost.is_set()), (False, False))

        def script(connection: Connection) -> None:
            connection.grant(ttl_ms=60_000)
            connection.freeze()

        with ScriptedNode(script) as node:
            self.run_all(main())

    def test_end_of_the_loop_gives_the_lock_of_another_task_back(self) -> None:
        """`asyncio.run` cancels all tasks that are left: the job, and the task of its lock."""
        steps: list[str] = []

        async def job(client: palisade.aio.Client, held: asyncio.Event) -> None:
            lock = client.lock("nightly", ttl=3, on_lost=lambda error: steps.append(error.code))
            async with lock:
                held.set()
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    await asyncio.sleep(0.5)
                    steps.append(f"valid: {lock.is_valid}")
                    raise

        async def main() -> None:
            held = asyncio.Event()
            jobs.append(asyncio.create_task(job(palisade.aio.Client(node.address), held)))
            await held.wait()

        jobs: list[asyncio.Task[None]] = []
        with ScriptedNode(good) as node:
            asyncio.run(main())
            self.assertEqual([kind for kind, _ in node.seen if kind != "here"], ["release"])
        self.assertEqual(steps, ["valid: True"])
        self.assertTrue(jobs[0].cancelled())

    def test_end_of_the_loop_withdraws_a_wait(self) -> None:
        def script(connection: Connection) -> None:
            connection.accept()
            connection.expect("acquire")
            connection.say("waiting", waiting())
            waits.set()
            connection.expect("release")
            withdrawn.set()
            connection.say("released", {})
            connection.gone()

        async def main() -> None:
            client = palisade.aio.Client(node.address)
            jobs.append(asyncio.create_task(client.lock("nightly", ttl=3, wait=600).acquire()))
            await asyncio.to_thread(waits.wait, 20)
            await asyncio.sleep(0.1)

        jobs: list[asyncio.Task[Any]] = []
        waits, withdrawn = threading.Event(), threading.Event()
        with ScriptedNode(script) as node:
            asyncio.run(main())
            self.assertTrue(withdrawn.is_set())

    def test_end_of_the_loop_takes_two_seconds_at_most(self) -> None:
        async def job(client: palisade.aio.Client, held: asyncio.Event) -> None:
            async with client.lock("nightly", ttl=60):
                held.set()
                await asyncio.sleep(60)

        async def main() -> None:
            held = asyncio.Event()
            jobs.append(asyncio.create_task(job(palisade.aio.Client(node.address), held)))
            await held.wait()

        def script(connection: Connection) -> None:
            connection.grant(ttl_ms=60_000)
            connection.expect("release")
            released.set()
            connection.freeze()

        released = threading.Event()
        jobs: list[asyncio.Task[None]] = []
        with ScriptedNode(script) as node:
            before = time.monotonic()
            asyncio.run(main())
            self.assertLess(time.monotonic() - before, 4)
            self.assertTrue(released.is_set())

    def test_end_of_the_loop_releases_over_another_connection(self) -> None:
        """The attempt to connect is a task, too, that the end of the loop cancels."""

        async def job(client: palisade.aio.Client, held: asyncio.Event) -> None:
            async with client.lock("nightly", ttl=30):
                held.set()
                await asyncio.sleep(60)

        async def main() -> None:
            held = asyncio.Event()
            client = palisade.aio.Client(f"{node.address},{silent},{node.address}")
            jobs.append(asyncio.create_task(job(client, held)))
            await held.wait()
            cut.set()
            await asyncio.sleep(0.3)

        def cutting(connection: Connection) -> None:
            connection.grant(ttl_ms=30_000)
            cut.wait(20)
            connection.cut()

        def resumed(connection: Connection) -> None:
            connection.accept()
            connection.expect("resume")
            connection.say("granted", granted(ttl_ms=30_000))
            connection.expect("release")
            released.set()
            connection.say("released", {})
            connection.gone()

        cut, released = threading.Event(), threading.Event()
        jobs: list[asyncio.Task[None]] = []
        with ScriptedNode(cutting, resumed) as node, silent_address() as silent:
            asyncio.run(main())
            self.assertTrue(released.is_set())

    def test_end_of_the_loop_leaves_a_forgotten_lock_to_its_ttl(self) -> None:
        async def main() -> None:
            locks.append(await palisade.aio.Client(node.address).lock("nightly", ttl=3).acquire())

        locks: list[palisade.aio.Lock] = []
        with ScriptedNode(good) as node:
            before = time.monotonic()
            asyncio.run(main())
            self.assertLess(time.monotonic() - before, 1, "no task is left that could release it")
            self.assertFalse(locks[0].is_valid)
            self.assertEqual(node.seen, [])

    def test_several_locks_at_once(self) -> None:
        async def job(number: int) -> None:
            async with client.lock("nightly", ttl=3) as lock:
                await asyncio.sleep(1.5)
                self.assertTrue(lock.is_valid)

        async def main() -> None:
            await asyncio.gather(*(job(number) for number in range(20)))

        with ScriptedNode(*[good] * 20) as node:
            client = palisade.aio.Client(node.address)
            self.run_all(main())

    def test_refusal_is_raised(self) -> None:
        def script(connection: Connection) -> None:
            connection.accept()
            connection.expect("acquire")
            connection.say("error", failure("held", holder={"owner": "o", "token": 3}, queue=2))
            connection.gone()

        async def main() -> None:
            with self.assertRaises(palisade.Held) as raised:
                async with palisade.aio.Client(node.address).lock("nightly", ttl=3):
                    self.fail("the body must not run")
            self.assertEqual(raised.exception.holder_owner, "o")

        with ScriptedNode(script) as node:
            self.run_all(main())


if __name__ == "__main__":
    unittest.main()
