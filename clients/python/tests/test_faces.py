"""Each rule of the hold protocol, for both faces, against a node that follows a script."""

from __future__ import annotations

import contextlib
import shutil
import ssl
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import palisade
from palisade._base import BaseLock
from palisade._engine import Engine

from .faces import PATIENCE, AsyncioFace, Face, Handle, ThreadsFace
from .node import Connection, Gone, ScriptedNode, resolver, silent_address, unused_address
from .peer import failure, granted, http, waiting


def good(connection: Connection) -> None:
    """Grants, renews, releases."""
    connection.grant()
    connection.serve()


def resumed(connection: Connection) -> None:
    """Takes the session up again, renews, releases."""
    connection.accept()
    body = connection.expect("resume")
    assert body["token"] == 17, body
    connection.say("granted", granted())
    connection.serve()


def refusing(connection: Connection) -> None:
    connection.answer(http(503, failure("no_leader")))


class FaceTest(unittest.TestCase):
    """Runs with threads; `AsyncioTest` runs the same tests with asyncio."""

    face: Face

    def setUp(self) -> None:
        self.face = self.new_face()
        self.addCleanup(self.face.close)

    def new_face(self) -> Face:
        return ThreadsFace()

    def lock(self, *nodes: ScriptedNode | str, **options: Any) -> Handle:
        addresses = (node if isinstance(node, str) else node.address for node in nodes)
        return self.face.lock(",".join(addresses), **options)

    def assert_all_ended(self) -> None:
        self.assertEqual(self.face.leftovers(), [], "a thread or task is left behind")

    def test_lock_is_granted_renewed_and_released(self) -> None:
        with ScriptedNode(good) as node:
            handle = self.lock(node)
            handle.acquire()
            lock = handle.lock
            self.assertEqual(lock.token, 17)
            self.assertEqual(lock.headers(), {"X-Fence-Token": "17"})
            time.sleep(3.5)  # longer than the TTL
            self.assertTrue(lock.is_valid)
            self.assertGreater(lock.remaining, 0)
            self.assertLessEqual(lock.remaining, 2.64)
            handle.release()
            self.assertFalse(lock.is_valid)
            self.assertEqual(lock.remaining, 0)
            with self.assertRaises(palisade.LockLost):
                lock.check()
            self.assertGreaterEqual(node.seen.count(("release", {})), 1)
            self.assertGreaterEqual(len([kind for kind, _ in node.seen if kind == "here"]), 2)
            self.assertEqual((handle.losses, lock.lost.is_set()), ([], False))
        self.assert_all_ended()

    def test_options_are_sent(self) -> None:
        bodies: list[dict[str, Any]] = []

        def script(connection: Connection) -> None:
            connection.accept()
            bodies.append(connection.expect("acquire"))
            connection.say("error", failure("held"))

        with ScriptedNode(script) as node:
            options = dict(mode="shared", max_queue=4, owner="me", value="v", wait=2)
            handle = self.lock(node, keys=["a", "b"], **options)
            with self.assertRaises(palisade.Held):
                handle.acquire()
        [body] = bodies
        self.assertEqual(body["keys"], ["a", "b"])
        self.assertEqual((body["mode"], body["max_queue"], body["owner"]), ("shared", 4, "me"))
        self.assertTrue(0 < body["wait_ms"] <= 2000, body)
        self.assert_all_ended()

    def test_cut_connection_is_resumed(self) -> None:
        cut = threading.Event()

        def script(connection: Connection) -> None:
            connection.grant()
            cut.wait(PATIENCE)
            connection.cut()

        with ScriptedNode(script, resumed) as node:
            handle = self.lock(node)
            handle.acquire()
            cut.set()
            time.sleep(3.5)
            self.assertTrue(handle.lock.is_valid)
            self.assertEqual(handle.lock.token, 17)
            handle.release()
            self.assertEqual(handle.losses, [])
            self.assertEqual(node.connections, 2)
        self.assert_all_ended()

    def test_redirect_leads_to_the_leader(self) -> None:
        with ScriptedNode(good) as leader:

            def follower(connection: Connection) -> None:
                location = f"http://{leader.address}/v1/hold"
                connection.answer(http(307, failure("not_leader"), Location=location))

            with ScriptedNode(follower) as node:
                handle = self.lock(node)
                handle.acquire()
                handle.release()
        self.assertEqual(leader.connections, 1)
        self.assert_all_ended()

    def test_other_endpoints_are_asked(self) -> None:
        with ScriptedNode(refusing) as refuser, ScriptedNode(good) as node:
            handle = self.lock(unused_address(), refuser, node)
            handle.acquire()
            handle.release()
        self.assert_all_ended()

    def test_frozen_node_is_left_for_another_one(self) -> None:
        def freezing(connection: Connection) -> None:
            connection.grant(ttl_ms=6000)
            connection.freeze()

        with ScriptedNode(freezing) as frozen, ScriptedNode(resumed) as node:
            handle = self.lock(frozen, node, ttl=6)
            handle.acquire()
            self.assertFalse(handle.told.wait(7))
            self.assertTrue(handle.lock.is_valid)
            handle.release()
        self.assert_all_ended()

    def test_lock_is_lost_by_its_lease_while_all_nodes_are_frozen(self) -> None:
        def freezing(connection: Connection) -> None:
            connection.grant()
            connection.freeze()

        with ScriptedNode(
            freezing, Connection.freeze, Connection.freeze, Connection.freeze
        ) as node:
            before = time.monotonic()
            handle = self.lock(node)
            handle.acquire()
            waits = handle.start_waiting_for_loss()
            self.assertTrue(handle.told.wait(PATIENCE))
            self.assertGreater(time.monotonic() - before, 2.5)
            self.assertTrue(waits.result(PATIENCE))
            lock = handle.lock
            self.assertEqual((lock.is_valid, lock.remaining), (False, 0))
            self.assertTrue(lock.lost.is_set())
            self.assertEqual(lock.token, 17, "the token is still known")
            for look in (lock.check, lock.headers):
                with self.assertRaises(palisade.LockLost) as raised:
                    look()
                self.assertEqual(raised.exception.code, "expired")
            with self.assertRaises(palisade.LockLost):
                handle.release()
            self.assertEqual(len(handle.losses), 1, "the loss is told once")
        self.assert_all_ended()

    def test_end_of_a_lease_frees_nothing(self) -> None:
        def script(connection: Connection) -> None:
            connection.grant(ttl_ms=500)
            with contextlib.suppress(Gone, OSError):
                while not connection.node.stopping.wait(0.05):
                    # The connection is alive, and nothing is renewed.
                    connection.raw(connection.peer.ping())
                    connection._read_once()
            frames.extend(connection.peer.frames)
            ended.set()

        frames: list[tuple[str, Any]] = []
        ended = threading.Event()
        with ScriptedNode(script) as node:
            handle = self.lock(node, ttl=0.5)
            handle.acquire()
            self.assertTrue(handle.told.wait(PATIENCE))
            with self.assertRaises(palisade.LockLost):
                handle.release()
            self.assertTrue(ended.wait(PATIENCE))
            self.assertEqual(frames, [])
        self.assert_all_ended()

    def test_broken_lock_is_lost_at_once(self) -> None:
        def script(connection: Connection) -> None:
            connection.grant(ttl_ms=60_000)
            connection.say("lost", failure("not_holder"))
            connection.gone()

        with ScriptedNode(script) as node:
            handle = self.lock(node, ttl=60)
            handle.acquire()
            self.assertTrue(handle.told.wait(PATIENCE))
            self.assertEqual(handle.losses[0].code, "not_holder")
            self.assertFalse(handle.lock.is_valid)
        self.assert_all_ended()

    def test_lost_answer_to_a_release_is_no_loss(self) -> None:
        def script(connection: Connection) -> None:
            connection.grant()
            connection.expect("release")
            connection.cut()

        def after(connection: Connection) -> None:
            connection.accept()
            connection.expect("resume")
            connection.say("lost", failure("no_session"))
            connection.gone()

        with ScriptedNode(script, after) as node:
            handle = self.lock(node)
            handle.acquire()
            waits = handle.start_waiting_for_loss()
            handle.release()
            self.assertEqual(node.connections, 2)
            self.assertFalse(waits.result(PATIENCE))
            self.assertEqual((handle.losses, handle.lock.lost.is_set()), ([], False))
        self.assert_all_ended()

    def test_unanswered_release_ends_with_the_ttl(self) -> None:
        def script(connection: Connection) -> None:
            connection.grant()
            connection.freeze()

        with ScriptedNode(script) as node:
            handle = self.lock(node)
            before = time.monotonic()
            handle.acquire()
            release = handle.start_release()
            while handle.lock.is_valid:
                time.sleep(0.01)
            release.result(PATIENCE)
            self.assertGreaterEqual(time.monotonic() - before, 3)
            self.assertEqual((handle.losses, handle.lock.lost.is_set()), ([], False))
        self.assert_all_ended()

    def test_wait_ends_with_the_servers_timeout(self) -> None:
        def script(connection: Connection) -> None:
            connection.accept()
            connection.expect("acquire")
            connection.say("waiting", waiting())
            connection.say("check", {"n": 1})
            assert connection.expect("here") == 1
            connection.say("error", failure("timeout"))
            connection.gone()

        with ScriptedNode(script) as node:
            with self.assertRaises(palisade.Timeout) as raised:
                self.lock(node, wait=30).acquire()
            self.assertEqual(raised.exception.code, "timeout")
            self.assertIsInstance(raised.exception, TimeoutError)
        self.assert_all_ended()

    def test_unreachable_nodes_end_the_acquire(self) -> None:
        with self.assertRaises(palisade.Unreachable) as raised:
            self.lock(unused_address(), unused_address(), timeout=0.5).acquire()
        self.assertIn("refused", str(raised.exception))
        self.assert_all_ended()

    def test_unknown_host_ends_the_acquire(self) -> None:
        with self.assertRaises(palisade.Unreachable):
            self.lock("no-such-host.invalid:7401", timeout=0.5).acquire()

    def test_other_addresses_of_a_name_are_tried(self) -> None:
        """As with two versions of IP, one of which leads nowhere."""
        with silent_address() as silent, ScriptedNode(good, good) as node:
            for first in (silent, unused_address()):
                resolve = resolver("dual.test", [first, silent, node.address])
                with mock.patch("socket.getaddrinfo", resolve):
                    handle = self.lock("dual.test:7401", timeout=3)
                    handle.acquire()
                    handle.release()
        self.assert_all_ended()

    def test_name_whose_addresses_all_fail_ends_the_acquire(self) -> None:
        with silent_address() as silent:
            for addresses in ([unused_address(), unused_address()], [unused_address(), silent], []):
                with mock.patch("socket.getaddrinfo", resolver("dual.test", addresses)):
                    with self.assertRaises(palisade.Unreachable):
                        self.lock("dual.test:7401", timeout=0.8).acquire()
        self.assert_all_ended()

    def test_garbage_costs_the_connection_and_not_the_lock(self) -> None:
        def garbled(connection: Connection) -> None:
            connection.grant()
            connection.raw(connection.peer.text('{"granted":{"token":"many"}}'))
            connection.gone()

        def binary(connection: Connection) -> None:
            connection.accept()
            connection.expect("resume")
            connection.raw(b"\xff\x00 this is no WebSocket")
            connection.gone()

        def no_http(connection: Connection) -> None:
            connection.answer(b"SSH-2.0-OpenSSH_9.6\r\n")
            connection.gone()

        with ScriptedNode(garbled, binary, no_http, resumed) as node:
            handle = self.lock(node)
            handle.acquire()
            self.assertFalse(handle.told.wait(3.5))
            handle.release()
            self.assertEqual(node.connections, 4)
        self.assert_all_ended()

    def test_value_is_replaced(self) -> None:
        with ScriptedNode(good) as node:
            handle = self.lock(node)
            handle.acquire()
            handle.set_value("first")
            handle.set_value("second")
            values = [body["value"] for kind, body in node.seen if kind == "value"]
            self.assertEqual(values, ["first", "second"])
            handle.release()
            with self.assertRaises(palisade.LockLost):
                handle.set_value("third")
        self.assert_all_ended()

    def test_cancelled_acquire_leaves_the_queue(self) -> None:
        queued = threading.Event()

        def script(connection: Connection) -> None:
            connection.accept()
            connection.expect("acquire")
            connection.say("waiting", waiting())
            queued.set()
            connection.expect("release")
            left.set()
            connection.say("released", {})
            connection.gone()

        left = threading.Event()
        with ScriptedNode(script) as node:
            handle = self.lock(node, wait=600)
            acquire = handle.start_acquire()
            self.assertTrue(queued.wait(PATIENCE))
            handle.cancel()
            with self.assertRaises(palisade.Cancelled):
                acquire.result(PATIENCE)
            self.assertTrue(left.is_set(), "the server was told before the acquire returned")
        self.assert_all_ended()

    def test_acquire_can_be_cancelled_as_soon_as_a_node_knows_of_it(self) -> None:
        asked = threading.Event()

        def script(connection: Connection) -> None:
            connection.accept()
            connection.expect("acquire")
            asked.set()
            connection.say("waiting", waiting())
            connection.expect("release")
            connection.say("released", {})
            connection.gone()

        begin, early = BaseLock._begin, []

        def late(lock: BaseLock, engine: Engine) -> None:
            # Before this, `cancel` knows of no acquire.
            early.append(asked.wait(1))
            begin(lock, engine)

        with ScriptedNode(script) as node, mock.patch.object(BaseLock, "_begin", late):
            handle = self.lock(node, wait=600)
            acquire = handle.start_acquire()
            self.assertTrue(asked.wait(PATIENCE))
            handle.cancel()
            with self.assertRaises(palisade.Cancelled):
                acquire.result(PATIENCE)
        self.assertEqual(early, [False], "a node was asked before the acquire could be cancelled")
        self.assert_all_ended()

    def test_waiter_resumes_its_session(self) -> None:
        def first(connection: Connection) -> None:
            connection.accept()
            connection.expect("acquire")
            connection.say("waiting", waiting())
            connection.say("interrupted", failure("shutting_down", leader=None))

        def second(connection: Connection) -> None:
            connection.accept()
            body = connection.expect("resume")
            assert "token" not in body, body
            connection.say("waiting", waiting())
            connection.say("granted", granted())
            connection.serve()

        with ScriptedNode(first, second) as node:
            handle = self.lock(node, wait=30)
            handle.acquire()
            handle.release()
        self.assert_all_ended()

    def test_lock_can_be_acquired_again(self) -> None:
        def second(connection: Connection) -> None:
            connection.grant(18)
            connection.serve()

        with ScriptedNode(good, second) as node:
            handle = self.lock(node)
            handle.acquire()
            with self.assertRaises(RuntimeError):
                handle.acquire()
            handle.release()
            handle.release()  # changes nothing
            handle.acquire()
            self.assertEqual(handle.lock.token, 18)
            handle.release()
        self.assert_all_ended()


class AsyncioTest(FaceTest):
    def new_face(self) -> Face:
        return AsyncioFace()


class Certificates(unittest.TestCase):
    """Makes a CA and a node's certificate with the `openssl` command."""

    def setUp(self) -> None:
        if shutil.which("openssl") is None:
            self.skipTest("there is no openssl command")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for name in ("ca", "other"):
            self.openssl(
                "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                "-keyout", f"{name}.key", "-out", f"{name}.crt", "-subj", f"/CN={name}",
                "-days", "2", "-addext", "keyUsage=critical,keyCertSign,cRLSign",
            )  # fmt: skip
        self.openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-keyout", "node.key", "-out", "node.crt", "-subj", "/CN=node", "-days", "2",
            "-CA", "ca.crt", "-CAkey", "ca.key", "-addext", "subjectAltName=IP:127.0.0.1",
            "-addext", "basicConstraints=critical,CA:FALSE",
        )  # fmt: skip
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(self.folder / "node.crt", self.folder / "node.key")

    def openssl(self, *arguments: str) -> None:
        command = ["openssl", *arguments]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True)


class Tls(Certificates):
    """TLS and the bearer token."""

    def test_token_and_frames_go_over_tls(self) -> None:
        for face in (ThreadsFace(), AsyncioFace()):
            self.addCleanup(face.close)
            with self.subTest(face=type(face).__name__):
                tokens: list[str | None] = []

                def script(connection: Connection, tokens: list[str | None] = tokens) -> None:
                    connection.grant()
                    tokens.append(connection.header("Authorization"))
                    connection.serve()

                with ScriptedNode(script, tls=self.context) as node:
                    ca = str(self.folder / "ca.crt")
                    handle = face.lock(node.address, ca=ca, token="secret")
                    handle.acquire()
                    handle.set_value("v")
                    handle.release()
                self.assertEqual(tokens, ["Bearer secret"])
                self.assertEqual(face.leftovers(), [])

    def test_client_certificate_is_presented(self) -> None:
        self.context.load_verify_locations(self.folder / "ca.crt")
        self.context.verify_mode = ssl.CERT_REQUIRED
        with ScriptedNode(good, tls=self.context) as node:
            files = {name: str(self.folder / file) for name, file in
                     (("ca", "ca.crt"), ("cert", "node.crt"), ("key", "node.key"))}  # fmt: skip
            handle = ThreadsFace().lock(node.address, **files)
            handle.acquire()
            handle.release()

    def test_untrusted_node_ends_the_acquire_at_once(self) -> None:
        node = ScriptedNode(good, tls=self.context)
        self.addCleanup(node.stop)
        handle = ThreadsFace().lock(node.address, ca=str(self.folder / "other.crt"), wait=600)
        with self.assertRaises(palisade.Unreachable) as raised:
            handle.acquire()
        self.assertIn("not trusted", str(raised.exception))
        self.assertTrue(all(problem.startswith("TLS:") for problem in node.problems))

    def test_token_without_tls_is_refused(self) -> None:
        with self.assertRaises(ValueError):
            palisade.Client("127.0.0.1:7401", token="secret")


if __name__ == "__main__":
    unittest.main()
