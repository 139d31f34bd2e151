"""What only the face for threads has: the `with` statement, signals, pauses, forks."""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

import palisade
from palisade._threads import Driver

from .node import Connection, ScriptedNode
from .peer import failure, waiting
from .test_faces import good

PACKAGE = str(Path(__file__).resolve().parent.parent)


def losing(connection: Connection) -> None:
    """Grants the lock, and takes it back at the first `value`."""
    connection.grant()
    connection.expect("value")
    connection.say("lost", failure("not_holder"))
    connection.gone()


def lose(lock: palisade.Lock) -> None:
    try:
        lock.set_value("x")
    except palisade.LockLost:
        return
    raise AssertionError("the lock was not lost")


def lock_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "palisade" in thread.name]


class WithStatement(unittest.TestCase):
    def tearDown(self) -> None:
        for thread in lock_threads():
            thread.join(5)
        self.assertEqual(lock_threads(), [], "a thread is left behind")

    def test_error_in_the_body_releases_the_lock(self) -> None:
        with ScriptedNode(good) as node:
            with (
                self.assertRaises(ZeroDivisionError),
                palisade.Client(node.address).lock("nightly", ttl=3),
            ):
                raise ZeroDivisionError
            self.assertEqual(node.seen, [("release", {})])

    def test_loss_is_raised_at_the_end_of_the_body(self) -> None:
        with ScriptedNode(losing) as node:
            client = palisade.Client(node.address)
            with self.assertRaises(palisade.LockLost), client.lock("nightly", ttl=3) as lock:
                lose(lock)

    def test_error_of_the_body_is_not_hidden_by_a_loss(self) -> None:
        with ScriptedNode(losing) as node:
            client = palisade.Client(node.address)
            with self.assertRaises(ZeroDivisionError), client.lock("nightly", ttl=3) as lock:
                lose(lock)
                raise ZeroDivisionError

    def test_callback_may_release_the_lock(self) -> None:
        told: list[str] = []

        def on_lost(error: palisade.LockLost) -> None:
            try:
                lock.release()
            except palisade.LockLost:
                told.append(error.code)
            raise RuntimeError("a callback that fails does no harm")

        with ScriptedNode(losing) as node, self.assertLogs("palisade"):
            lock = palisade.Client(node.address).lock("nightly", ttl=3, on_lost=on_lost)
            lock.acquire()
            lose(lock)
            assert lock._driver is not None
            lock._driver._thread.join()
        self.assertEqual(told, ["not_holder"])

    def test_callback_may_wait_for_the_thread_that_releases(self) -> None:
        ended: list[bool] = []

        def on_lost(error: palisade.LockLost) -> None:
            worker.join(10)
            ended.append(not worker.is_alive())

        def work() -> None:
            try:
                with palisade.Client(node.address).lock("nightly", ttl=3, on_lost=on_lost) as lock:
                    lose(lock)
            except palisade.LockLost as error:
                told.append(error.code)

        told: list[str] = []
        with ScriptedNode(losing) as node:
            worker = threading.Thread(target=work)
            worker.start()
            worker.join(20)
            for thread in lock_threads():
                thread.join(20)
        self.assertEqual((told, ended), (["not_holder"], [True]))

    def test_ctrl_c_leaves_the_queue(self) -> None:
        def script(connection: Connection) -> None:
            connection.accept()
            connection.expect("acquire")
            connection.say("waiting", waiting())
            _thread.interrupt_main()
            connection.expect("release")
            connection.say("released", {})
            connection.gone()

        with ScriptedNode(script) as node, self.assertRaises(KeyboardInterrupt):
            palisade.Client(node.address).lock("nightly", ttl=3, wait=600).acquire()

    def test_ctrl_c_before_the_thread_has_started_leaves_no_acquire(self) -> None:
        def interrupted(driver: Driver) -> None:
            raise KeyboardInterrupt

        with ScriptedNode(good) as node:
            lock = palisade.Client(node.address).lock("nightly", ttl=3)
            with (
                mock.patch.object(Driver, "start", interrupted),
                self.assertRaises(KeyboardInterrupt),
            ):
                lock.acquire()
            self.assertEqual(node.connections, 0)
            with lock:  # it can be acquired again
                self.assertTrue(lock.is_valid)

    def test_ctrl_c_after_the_thread_has_started_leaves_no_acquire(self) -> None:
        def script(connection: Connection) -> None:
            connection.accept()
            connection.expect("acquire")
            connection.say("waiting", waiting())
            acquired.set()
            connection.expect("release")
            connection.say("released", {})
            connection.gone()

        start = Driver.start

        def interrupted(driver: Driver) -> None:
            start(driver)
            acquired.wait(20)
            raise KeyboardInterrupt

        acquired = threading.Event()
        with ScriptedNode(script) as node:
            lock = palisade.Client(node.address).lock("nightly", ttl=3, wait=600)
            with (
                mock.patch.object(Driver, "start", interrupted),
                self.assertRaises(KeyboardInterrupt),
            ):
                lock.acquire()
            self.assertFalse(lock._is_in_use)

    def test_thread_that_starts_after_its_acquire_was_given_up_does_nothing(self) -> None:
        drivers: list[Driver] = []

        def interrupted(driver: Driver) -> None:
            drivers.append(driver)
            raise KeyboardInterrupt

        with ScriptedNode(good) as node:
            lock = palisade.Client(node.address).lock("nightly", ttl=3)
            with (
                mock.patch.object(Driver, "start", interrupted),
                self.assertRaises(KeyboardInterrupt),
            ):
                lock.acquire()
            [driver] = drivers
            driver.start()
            driver.join()
            self.assertEqual(node.connections, 0)


class Processes(unittest.TestCase):
    def child(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            cwd=PACKAGE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            self.addCleanup(stream.close)
        return process

    def line(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def pause(self, program: str) -> list[str]:
        """Stops a holder for longer than its TTL; returns what it says afterwards."""
        with ScriptedNode(good) as node:
            process = self.child(program, node.address)
            self.assertEqual(self.line(process), "held")
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(3.5)
            os.kill(process.pid, signal.SIGCONT)
            return [self.line(process), self.line(process)]

    @unittest.skipUnless(hasattr(signal, "SIGSTOP"), "this system cannot stop a process")
    def test_first_look_after_a_pause_beyond_the_ttl_is_false(self) -> None:
        program = """if True:
            import palisade, sys, time
            sys.setswitchinterval(0.05)  # the lock's thread does not run before the first look
            lock = palisade.Client(sys.argv[1]).lock("nightly", ttl=3)
            lock.acquire()
            print("held", flush=True)
            last = time.monotonic()
            while True:
                now, valid, lost = time.monotonic(), lock.is_valid, lock.lost.is_set()
                if now - last > 2 or not valid:
                    break
                last = now
            print(valid, lost, flush=True)
            print(lock.lost.wait(5), flush=True)
            """
        # The loop ends at its first look after the pause, for one reason or the other.
        self.assertEqual(self.pause(program), ["False True", "True"])

    @unittest.skipUnless(hasattr(signal, "SIGSTOP"), "this system cannot stop a process")
    def test_pause_is_told_to_the_body_of_an_asyncio_lock(self) -> None:
        program = """if True:
            import asyncio, palisade.aio, sys
            async def main():
                lock = palisade.aio.Client(sys.argv[1]).lock("nightly", ttl=3)
                try:
                    async with lock:
                        print("held", flush=True)
                        try:
                            await asyncio.sleep(60)
                        finally:
                            print(lock.is_valid, lock.lost.is_set(), flush=True)
                except palisade.LockLost as error:
                    print(error.code, flush=True)
            asyncio.run(main())
            """
        self.assertEqual(self.pause(program), ["False True", "expired"])

    @unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
    def test_fork_holds_nothing(self) -> None:
        program = """if True:
            import os, palisade, sys
            with palisade.Client(sys.argv[1]).lock("nightly", ttl=3) as lock:
                pid = os.fork()
                if pid == 0:
                    lock.release()
                    print(lock.is_valid, lock.lost.is_set(), flush=True)
                    os._exit(0)
                os.waitpid(pid, 0)
                print(lock.is_valid, lock.lost.is_set(), flush=True)
            """
        with ScriptedNode(good) as node:
            process = self.child(program, node.address)
            self.assertEqual(self.line(process), "False False", "in the child")
            self.assertEqual(self.line(process), "True False", "in the parent")
            self.assertEqual(process.wait(20), 0)
            self.assertEqual(node.seen.count(("release", {})), 1)

    def test_forgotten_lock_does_not_keep_the_process_running(self) -> None:
        program = """if True:
            import palisade, sys
            palisade.Client(sys.argv[1]).lock("nightly", ttl=3).acquire()
            print("held", flush=True)
            """
        with ScriptedNode(good) as node:
            process = self.child(program, node.address)
            self.assertEqual(self.line(process), "held")
            self.assertEqual(process.wait(20), 0)
            self.assertEqual(node.seen, [], "the lock is left to its TTL")


if __name__ == "__main__":
    unittest.main()
