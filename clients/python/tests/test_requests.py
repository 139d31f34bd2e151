"""Locks that are shown, records and watches, for both faces, against nodes that follow scripts."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
import threading
import time
import unittest
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import palisade
import palisade.aio
from palisade import Append, Delete, IfHeld, IfVersion, Put, events

from .faces import PATIENCE, AsyncioFace, Face, ThreadsFace
from .node import Connection, Gone, Script, ScriptedNode, silent_address, unused_address
from .peer import failure, http
from .test_call import STREAM, chunked, listing, sse, written
from .test_faces import Certificates, good

HOLDER = {
    "owner": "worker-7",
    "session": 3,
    "token": 17,
    "expires_in_ms": 28714,
    "mode": "exclusive",
    "permits": None,
    "of": None,
    "holds": 1,
    "keys": [],
    "value": "10.0.0.7:8080",
}
WAITER = {"owner": "worker-8", "session": 5, "mode": "shared", "permits": None, "of": None}
LOCK = {
    "key": "nightly",
    "held": True,
    "holder": HOLDER,
    "holders": [HOLDER],
    "queue": [WAITER | {"keys": ["nightly", "b"]}],
}
FREE = {"key": "free", "held": False, "holder": None, "holders": [], "queue": []}


@dataclass
class Asked:
    """A request as a node has read it."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


def asked(connection: Connection) -> Asked:
    data = b""
    while b"\r\n\r\n" not in data:
        data += receive(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (it.partition(":") for it in lines)
    }
    while len(body) < int(headers.get("content-length", "0")):
        body += receive(connection)
    method, target, _ = first.split(" ")
    url = urlsplit(target)
    query = {name: value for name, [value] in parse_qs(url.query, keep_blank_values=True).items()}
    return Asked(method, url.path, query, headers, json.loads(body) if body else None)


def receive(connection: Connection) -> bytes:
    while not connection.node.stopping.is_set():
        try:
            data = connection.socket.recv(65536)
        except TimeoutError:
            continue
        if not data:
            raise Gone
        return data
    raise Gone


class Node(ScriptedNode):
    """Answers requests, one for each connection, and notes them. An answer of None is lost."""

    def __init__(self, *answers: bytes | Script | None, **options: Any) -> None:
        self.asked: list[Asked] = []
        super().__init__(*map(self._script, answers), **options)

    def __enter__(self) -> Node:
        return self

    def _script(self, answer: bytes | Script | None) -> Script:
        def script(connection: Connection) -> None:
            self.asked.append(asked(connection))
            if answer is None:
                connection.cut()
            elif isinstance(answer, bytes):
                connection.raw(answer)
            else:
                answer(connection)

        return script


def record(value: bytes, version: int, **headers: str) -> bytes:
    head = {"Content-Length": str(len(value)), "X-Version": str(version)} | headers
    lines = "".join(f"{name}: {text}\r\n" for name, text in head.items())
    return f"HTTP/1.1 200 OK\r\n{lines}\r\n".encode() + value


def streaming(*parts: bytes, then: str = "cut") -> Script:
    """Begins a stream with these parts. Then cuts it, or leaves it open."""

    def script(connection: Connection) -> None:
        connection.raw(STREAM + chunked(*parts))
        if then == "cut":
            time.sleep(0.05)
            connection.cut()
        else:
            connection.node.stopping.wait()

    return script


STALE = http(409, failure("stale fencing token", seen=18, got=17))
DONE = http(200, {"version": 17})


class RequestTest(unittest.TestCase):
    """Runs with threads; `AsyncioRequestTest` runs the same tests with asyncio."""

    def setUp(self) -> None:
        self.face = self.new_face()
        self.addCleanup(self.face.close)

    def new_face(self) -> Face:
        return ThreadsFace()

    def client(self, *nodes: ScriptedNode | str, **options: Any) -> Any:
        addresses = (node if isinstance(node, str) else node.address for node in nodes)
        return self.face.client(",".join(addresses), **options)

    def do(self, method: Any) -> Any:
        return self.face.start(method).result(PATIENCE)

    def next(self, watch: Any) -> Any:
        return self.face.start_next(watch).result(PATIENCE)

    def assert_all_ended(self) -> None:
        self.assertEqual(self.face.leftovers(), [], "a thread or task is left behind")

    # Locks.

    def test_lock_is_shown(self) -> None:
        with Node(http(200, LOCK), http(200, FREE | {"age_ms": 40})) as node:
            client = self.client(node)
            lock = self.do(lambda: client.show("nightly/é?"))
            self.assertEqual((lock.key, lock.is_held, lock.age), ("nightly", True, None))
            holder = palisade.Holder(
                "worker-7", 3, 17, 28.714, "exclusive", None, None, 1, (), "10.0.0.7:8080"
            )
            self.assertEqual((lock.holder, lock.holders), (holder, (holder,)))
            [waiter] = lock.queue
            self.assertEqual((waiter.owner, waiter.keys), ("worker-8", ("nightly", "b")))
            lock = self.do(lambda: client.show("free", stale=True))
            self.assertEqual((lock.is_held, lock.holder, lock.age), (False, None, 0.04))
        self.assertEqual(unquote(node.asked[0].path), "/v1/locks/nightly/é?")
        self.assertEqual([it.query for it in node.asked], [{}, {"consistency": "stale"}])
        self.assert_all_ended()

    def test_locks_are_listed_in_pages(self) -> None:
        pages = [
            http(200, {"locks": [LOCK], "next_after": "nightly"}),
            http(200, {"locks": [FREE], "next_after": None}),
        ]
        with Node(*pages) as node:
            client = self.client(node)
            first = self.do(lambda: client.list("n", limit=1))
            self.assertEqual([lock.key for lock in first.locks], ["nightly"])
            last = self.do(lambda: client.list("n", after=first.next_after))
            self.assertEqual((last.locks[0].key, last.next_after), ("free", None))
        queries = [{"prefix": "n", "limit": "1"}, {"prefix": "n", "after": "nightly"}]
        self.assertEqual([it.query for it in node.asked], queries)

    def test_read_is_asked_of_another_node(self) -> None:
        malformed = http(200, LOCK | {"holders": [HOLDER | {"token": "17"}]})
        with Node(None, malformed, http(503, failure("shutting_down")), http(200, LOCK)) as node:
            client = self.client(unused_address(), node)
            self.assertTrue(self.do(lambda: client.show("nightly")).is_held)
        self.assert_all_ended()

    def test_silent_node_is_left(self) -> None:
        with Node(http(200, LOCK)) as node, silent_address() as silent:
            client = self.client(silent, node)
            self.assertTrue(self.do(lambda: client.show("nightly")).is_held)
        self.assert_all_ended()

    def test_no_node(self) -> None:
        client = self.client(unused_address(), timeout=0.5)
        for read in (lambda: client.show("k"), lambda: client.records.get("k")):
            with self.assertRaises(palisade.Unreachable):
                self.do(read)
        with self.assertRaises(palisade.Unreachable):
            self.do(lambda: client.records.append("k", "x"))
        with self.assertRaises(palisade.Unreachable):
            self.next(client.watch(key="k"))
        self.assert_all_ended()

    def test_what_no_server_accepts_is_an_error_at_once(self) -> None:
        client = self.client(unused_address())
        for wrong in (
            lambda: client.show(""),
            lambda: client.records.get("x" * 513),
            lambda: client.records.put("k", "v", if_version=-1),
            lambda: client.records.transact([]),
            lambda: client.records.put("k", "\ud800"),
        ):
            with self.assertRaises(ValueError):
                self.do(wrong)
        for options in ({}, {"key": "a", "prefix": "b"}, {"key": "a", "after": "x"}):
            with self.assertRaises(ValueError):
                client.watch(**options)
        lock = self.face.lock(unused_address()).lock
        with self.assertRaises(RuntimeError, msg="the lock was never acquired"):
            self.do(lambda: client.records.put("k", "v", lock=lock))

    def test_transaction_that_no_node_reads_is_refused_at_once(self) -> None:
        """A node would refuse it before it has read all, and its answer could be lost."""
        client = self.client(unused_address())
        changes = [Put(f"k{n}", b"x" * 65_536) for n in range(4)]
        for write in (
            lambda: client.records.put("k", "x" * 200_000),
            lambda: client.records.transact(changes),
        ):
            with self.assertRaises(palisade.Refused) as raised:
                self.do(write)
            self.assertEqual(raised.exception.code, "too_large")

    # Records.

    def test_record_is_read(self) -> None:
        missing = http(404, failure("no_record"))
        found = record(b"\xff", 17, **{"X-Max-Fence": "12"})
        with Node(found, record("é".encode(), 18), missing) as node:
            records = self.client(node).records
            first = self.do(lambda: records.get("a/b"))
            self.assertEqual(first, palisade.Record("a/b", b"\xff", 17, 12))
            second = self.do(lambda: records.get("k", stale=True))
            self.assertEqual((second.text, second.fence), ("é", None))
            with self.assertRaises(palisade.NoRecord):
                self.do(lambda: records.get("k"))
        self.assertEqual(node.asked[0].path, "/v1/kv/a%2Fb")
        self.assert_all_ended()

    def test_writes_say_their_conditions(self) -> None:
        with ScriptedNode(good) as holder, Node(*[DONE] * 5) as node:
            records = self.client(node).records
            held = self.face.lock(holder.address)
            held.acquire()
            under = held.lock
            self.assertEqual(self.do(lambda: records.put("k", "v")), 17)
            self.do(lambda: records.append("k", b"\xff", lock=under, if_version=4))
            self.do(lambda: records.delete("k", if_version=0))
            changes = [Put("a", "v"), Append("b", "w"), Delete("c")]
            self.do(lambda: records.transact(changes, [IfVersion("a", 3), IfHeld("x", 9)]))
            self.do(lambda: records.transact(changes, lock=under))
            held.release()
        self.assertEqual({(it.method, it.path) for it in node.asked}, {("POST", "/v1/kv")})
        token = {"held": {"lock": "nightly", "token": 17}}
        self.assertEqual(
            [it.body["conditions"] for it in node.asked],
            [
                [],
                [token, {"version": {"key": "k", "version": 4}}],
                [{"version": {"key": "k", "version": 0}}],
                [{"version": {"key": "a", "version": 3}}, {"held": {"lock": "x", "token": 9}}],
                [token],
            ],
        )

        def value(text: bytes) -> dict[str, str]:
            return {"base64": base64.b64encode(text).decode()}

        self.assertEqual(
            node.asked[0].body["changes"], [{"put": {"key": "k", "value": value(b"v")}}]
        )
        self.assertEqual(
            node.asked[1].body["changes"], [{"append": {"key": "k", "value": value(b"\xff")}}]
        )
        self.assertEqual(node.asked[2].body["changes"], [{"delete": {"key": "k"}}])
        self.assertEqual(
            node.asked[4].body["changes"],
            [
                {"put": {"key": "a", "value": value(b"v")}},
                {"append": {"key": "b", "value": value(b"w")}},
                {"delete": {"key": "c"}},
            ],
        )

    def test_refusals_are_typed(self) -> None:
        other = http(409, failure("other_version", version=5))
        with Node(STALE, other, http(507, failure("store_full"))) as node:
            records = self.client(node).records
            with self.assertRaises(palisade.StaleToken) as stale:
                self.do(lambda: records.put("k", "v"))
            self.assertEqual((stale.exception.seen, stale.exception.got), (18, 17))
            with self.assertRaises(palisade.OtherVersion) as version:
                self.do(lambda: records.put("k", "v", if_version=4))
            self.assertEqual(version.exception.version, 5)
            with self.assertRaises(palisade.StoreFull):
                self.do(lambda: records.put("k", "v"))

    def test_lost_answer_without_a_version_is_unknown_and_not_repeated(self) -> None:
        with Node(None, None, None, None, None) as node:
            records = self.client(node, node).records
            for write in (
                lambda: records.append("k", "x"),
                lambda: records.append("k", "x", if_version=0),
                lambda: records.put("k", "x"),
                lambda: records.delete("k"),
                lambda: records.transact([Append("k", "x")], [IfVersion("other", 4)]),
            ):
                with self.assertRaises(palisade.UnknownOutcome):
                    self.do(write)
            self.assertEqual(node.connections, 5)
        self.assert_all_ended()

    def test_lost_answer_of_a_write_with_a_version_is_asked_for_again(self) -> None:
        with Node(None) as first, Node(DONE, DONE) as second:
            records = self.client(first, second).records
            self.assertEqual(self.do(lambda: records.append("k", "x", if_version=4)), 17)
            self.assertEqual(first.asked[0].body, second.asked[0].body)

    def unsure(self, refusal: bytes, found: bytes, *, under: bool = True, **how: Any) -> Any:
        """A write whose answer is lost, whose repetition is refused, and what a read finds then."""
        with ScriptedNode(good) as holder, Node(None, refusal, found) as node:
            client = self.client(node)
            held = self.face.lock(holder.address)
            held.acquire()
            lock = held.lock if under else None
            write = getattr(client.records, how.pop("do", "put"))
            try:
                return self.do(lambda: write("k", "new", lock=lock, if_version=4))
            finally:
                held.release()

    def test_read_shows_what_became_of_a_put_under_a_lock(self) -> None:
        other = http(409, failure("other_version", version=6))
        ours = record(b"new", 6, **{"X-Max-Fence": "17"})
        self.assertEqual(self.unsure(other, ours), 6)
        self.assertEqual(self.unsure(STALE, ours), 6)
        for found in (
            record(b"new", 6),  # without a token
            record(b"new", 6, **{"X-Max-Fence": "18"}),  # by the next holder
            record(b"later", 6, **{"X-Max-Fence": "17"}),
            http(404, failure("no_record")),
            http(403, failure("denied")),
        ):
            with self.assertRaises(palisade.UnknownOutcome) as raised:
                self.unsure(other, found)
            assert isinstance(raised.exception.refusal, palisade.OtherVersion)
            self.assertEqual(raised.exception.refusal.version, 6)

    def test_content_proves_nothing_without_a_lock(self) -> None:
        """Two clients that count from 4 write the same content, and only one may believe it."""
        other = http(409, failure("other_version", version=6))
        with self.assertRaises(palisade.UnknownOutcome):
            self.unsure(other, record(b"new", 6), under=False)
        with self.assertRaises(palisade.UnknownOutcome):
            self.unsure(other, record(b"new", 6, **{"X-Max-Fence": "17"}), do="append")

    def test_read_shows_that_a_former_holder_has_not_written(self) -> None:
        with self.assertRaises(palisade.StaleToken):
            self.unsure(STALE, record(b"old", 4, **{"X-Max-Fence": "16"}))
        # It may still be done later.
        with self.assertRaises(palisade.UnknownOutcome):
            self.unsure(http(403, failure("denied")), record(b"old", 4))

    # Watches.

    def test_watch_goes_on_at_another_node(self) -> None:
        with (
            Node(streaming(listing(5), written(6), written(7)[:-5])) as first,
            Node(streaming(written(7), written(8), then="wait")) as second,
        ):
            watch = self.client(first, second).watch(key="k")
            told = [self.next(watch) for _ in range(4)]
            self.face.close_watch(watch)
            self.assertIsNone(self.next(watch))
        assert isinstance(told[0], events.Listing)
        self.assertEqual([it.id for it in told], ["5", "6", "7", "8"])
        self.assertEqual(told[1], events.RecordPut("6", 6, "k", 6))
        self.assertEqual([it.query for it in first.asked], [{"key": "k"}])
        self.assertEqual([it.query for it in second.asked], [{"key": "k", "after": "6"}])
        self.assert_all_ended()

    def test_compacted_past_is_an_error_and_then_a_listing(self) -> None:
        gone = sse("compacted", {"floor": 120, "message": "gone"}, "")
        with Node(streaming(gone, listing(130), then="wait")) as node:
            watch = self.client(node).watch(prefix="jobs/", after="47.1")
            with self.assertRaises(palisade.Compacted) as raised:
                self.next(watch)
            self.assertEqual(raised.exception.floor, 120)
            self.assertEqual(self.next(watch).revision, 130)
            self.face.close_watch(watch)
        self.assertEqual(node.asked[0].query, {"prefix": "jobs/", "after": "47.1"})

    def test_refused_watch_ends(self) -> None:
        with Node(http(403, failure("denied"))) as node:
            watch = self.client(node).watch(key="k")
            with self.assertRaises(palisade.Refused) as raised:
                self.next(watch)
            self.assertEqual(raised.exception.code, "denied")
            self.assertIsNone(self.next(watch))
        self.assert_all_ended()

    def test_watch_can_be_closed_while_it_waits(self) -> None:
        with Node(streaming(listing(5), then="wait")) as node:
            watch = self.client(node).watch(key="k")
            self.next(watch)
            waiting = self.face.start_next(watch)
            time.sleep(0.2)
            self.assertFalse(waiting.done())
            self.face.close_watch(watch)
            self.assertIsNone(waiting.result(PATIENCE))
        self.assert_all_ended()

    def test_slow_reader_is_told_everything(self) -> None:
        """What the client does not read stays with the node."""
        count = 3000
        sent = threading.Event()

        def flooding(connection: Connection) -> None:
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            connection.socket.settimeout(None)
            connection.raw(STREAM)
            for version in range(1, count + 1):
                connection.raw(chunked(written(version, padding="x" * 1000)))
            sent.set()
            connection.node.stopping.wait()

        with Node(flooding) as node:
            watch = self.client(node).watch(key="k", after="0")
            told = [self.next(watch).id]
            time.sleep(0.5)
            self.assertFalse(sent.is_set(), "the client reads what nobody takes")
            told += [self.next(watch).id for _ in range(count - 1)]
            self.assertEqual(told, [str(version) for version in range(1, count + 1)])
            self.face.close_watch(watch)


class AsyncioRequestTest(RequestTest):
    def new_face(self) -> Face:
        return AsyncioFace()


class Languages(unittest.TestCase):
    """What only one of the faces has."""

    def test_watch_of_threads_is_an_iterator(self) -> None:
        with Node(streaming(listing(5), written(6), then="wait")) as node:
            seen = []
            with palisade.Client(node.address).watch(key="k") as watch:
                for event in watch:
                    seen.append(event.revision)
                    if len(seen) == 2:
                        break
            self.assertEqual((seen, list(watch)), ([5, 6], []))

    def test_cancelled_reader_of_a_watch_misses_nothing(self) -> None:
        begun = threading.Event()

        def late(connection: Connection) -> None:
            connection.raw(STREAM + chunked(listing(5)))
            begun.wait(PATIENCE)
            connection.raw(chunked(written(6), written(7)))
            connection.node.stopping.wait()

        async def main() -> list[str | None]:
            async with palisade.aio.Client(node.address).watch(key="k") as watch:
                ids = [(await watch.__anext__()).id]
                for _ in range(3):
                    with self.assertRaises(asyncio.TimeoutError):
                        await asyncio.wait_for(watch.__anext__(), 0.1)
                begun.set()
                async for event in watch:
                    ids.append(event.id)
                    if event.id == "7":
                        return ids
            return []

        with Node(late) as node:
            self.assertEqual(asyncio.run(main()), ["5", "6", "7"])

    def test_cancelled_request_leaves_nothing_behind(self) -> None:
        def silent(connection: Connection) -> None:
            try:
                receive(connection)
            except (Gone, OSError):
                gone.set()

        async def main() -> None:
            client = palisade.aio.Client(node.address)
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(client.records.put("k", "v"), 0.3)
            self.assertEqual(len(asyncio.all_tasks()), 1)

        gone = threading.Event()
        with Node(silent) as node:
            asyncio.run(main())
            self.assertTrue(gone.wait(PATIENCE))


class TlsRequests(Certificates):
    """The same over TLS, with a bearer token."""

    def test_records_and_watches_go_over_tls(self) -> None:
        faces: list[Any] = [ThreadsFace(), AsyncioFace()]
        for face in faces:
            self.addCleanup(face.close)
            answers: list[bytes | Script] = [
                DONE,
                record(b"x" * 60_000, 17),
                streaming(listing(5), then="wait"),
            ]
            with (
                self.subTest(face=type(face).__name__),
                Node(*answers, tls=self.context) as node,
            ):
                ca = str(self.folder / "ca.crt")
                client = face.client(node.address, ca=ca, token="secret")
                put = face.start(lambda client=client: client.records.put("k", "x" * 60_000))
                self.assertEqual(put.result(PATIENCE), 17)
                get = face.start(lambda client=client: client.records.get("k"))
                self.assertEqual(len(get.result(PATIENCE).value), 60_000)
                watch = client.watch(key="k")
                self.assertEqual(face.start_next(watch).result(PATIENCE).revision, 5)
                face.close_watch(watch)
                self.assertEqual(
                    {it.headers["authorization"] for it in node.asked}, {"Bearer secret"}
                )

    def test_untrusted_node_had_no_write(self) -> None:
        node = Node(DONE, tls=self.context)
        self.addCleanup(node.stop)
        client = palisade.Client(node.address, ca=str(self.folder / "other.crt"))
        with self.assertRaises(palisade.Unreachable) as raised:
            client.records.append("k", "x")
        self.assertIn("not trusted", str(raised.exception))

    def test_node_that_refuses_the_certificate_had_no_write(self) -> None:
        """With TLS 1.3 the node says so after the client has sent its request."""
        self.context.load_verify_locations(self.folder / "ca.crt")
        self.context.verify_mode = ssl.CERT_REQUIRED
        node = Node(DONE, tls=self.context)
        self.addCleanup(node.stop)
        ca = str(self.folder / "ca.crt")
        client = palisade.Client(node.address, ca=ca, timeout=0.5)
        with self.assertRaises(palisade.Unreachable):
            client.records.append("k", "x")


if __name__ == "__main__":
    unittest.main()
