"""Requests over HTTP and watches, with the bytes of their connections: no socket, no clock."""

from __future__ import annotations

import json
import ssl
import unittest
from collections.abc import Sequence
from typing import Any

from palisade import _views as views
from palisade import events
from palisade._call import Answer, Call, Link
from palisade._http import Data, End, Head, HttpEvent, HttpRequest, Reader
from palisade._messages import Garbage
from palisade._requests import can_write_once_only
from palisade._route import Directory, parse_endpoints
from palisade._watch import EventStream, WatchLink
from palisade._wire import Security
from palisade.errors import (
    Compacted,
    NoRecord,
    OtherVersion,
    Refused,
    StaleToken,
    StoreFull,
    UnknownOutcome,
    Unreachable,
)
from palisade.types import Append, Change, Condition, Delete, IfHeld, IfVersion, Put

from .peer import failure, http

Item = events.Event | events.Listing | Compacted


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


def sse(kind: str, data: object, id: str | None = None) -> bytes:
    line = "" if id is None else f"id: {id}\n"
    return f"{line}event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def written(version: int, **more: Any) -> bytes:
    """The event of a record that was written."""
    body = {"event": "put", "key": "k", "revision": version, "version": version, **more}
    return sse("put", body, str(version))


def listing(revision: int, begins: bool = True, complete: bool = True) -> bytes:
    body = dict(revision=revision, begins=begins, complete=complete, locks=[], records=[])
    return sse("listing", body, str(revision) if complete else None)


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class World:
    """A link, a clock, and the end of the connection that the link has now."""

    def __init__(self, endpoints: str = "a:1,b:2") -> None:
        self.now = 1000.0
        self.directory = Directory(parse_endpoints(endpoints)[0])
        self.link: Link

    def write(self, *, may_repeat: bool, patience: float = 5.0) -> Call[int]:
        request = HttpRequest("POST", "/v1/kv", b"{}")
        call = Call(
            "the write",
            request,
            views.version_answer,
            self.directory,
            Security(),
            self.now,
            patience,
            writes=True,
            may_repeat=may_repeat,
        )
        self.link = call
        return call

    def read(self, patience: float = 5.0) -> Call[int]:
        request, decode = HttpRequest("GET", "/v1/kv/k"), views.version_answer
        call = Call("the read", request, decode, self.directory, Security(), self.now, patience)
        self.link = call
        return call

    def watch(self, after: str | None = None) -> WatchLink:
        link = WatchLink({"key": "k"}, after, self.directory, Security(), self.now, 5.0)
        self.link = link
        return link

    def sleep(self, seconds: float) -> None:
        """Lets time pass, in the steps that the link asks for, of a second at most."""
        end = self.now + seconds
        while self.now < end and not self.link.is_finished:
            self.now = min(max(self.link.wake_at(), self.now + 0.001), self.now + 1, end)
            self.link.tick(self.now)

    def host(self) -> str:
        if self.link.target is None:
            self.sleep(0.6)
        assert self.link.target is not None, "the link wants a connection"
        return self.link.target.endpoint.host

    def connect(self, host: str) -> bytes:
        """Makes the connection that the link wants. Returns the request."""
        assert self.host() == host, self.host()
        assert self.link.target is not None
        number = self.link.target.number
        self.link.connected(number, self.now)
        return self.link.outgoing(number)

    def arrive(self, data: bytes) -> None:
        assert self.link.target is not None
        self.link.received(self.link.target.number, data, self.now)

    def cut(self) -> None:
        assert self.link.target is not None
        self.link.ended(self.link.target.number, "reset", self.now)

    def distrust(self, host: str) -> None:
        """The node's certificate is not trusted."""
        self.connect(host)
        error = ssl.SSLCertVerificationError()
        error.verify_message = "unknown CA"
        self.link._distrust(error, self.now)
        self.link.tick(self.now)

    def refuse(self) -> None:
        """The connection cannot be made."""
        self.host()
        assert self.link.target is not None
        self.link.failed(self.link.target.number, "connection refused", self.now)


class Reading(unittest.TestCase):
    """Answers of HTTP/1.1."""

    def body(self, found: Sequence[HttpEvent]) -> bytes:
        return b"".join(event.data for event in found if isinstance(event, Data))

    def test_answers_may_be_cut_anywhere(self) -> None:
        whole = [
            http(200, {"version": 17}, **{"X-Version": "17"}),
            b"HTTP/1.1 100 Continue\r\n\r\n" + http(200, {"version": 17}),
            STREAM + chunked(b'{"version"', b": 17}") + b"0\r\nTrailer: x\r\n\r\n",
        ]
        for answer in whole:
            for cut in range(len(answer) + 1):
                reader = Reader()
                found = reader.feed(answer[:cut]) + reader.feed(answer[cut:])
                self.assertIsInstance(found[0], Head)
                self.assertEqual(found[-1], End())
                self.assertEqual(json.loads(self.body(found)), {"version": 17})

    def test_answer_that_is_cut_off_has_no_end(self) -> None:
        for answer in (
            http(200, {"version": 17})[:-1],
            STREAM + chunked(b"a"),
            STREAM + b"5\r\nab",
        ):
            self.assertNotIn(End(), Reader().feed(answer))

    def test_garbage_is_refused(self) -> None:
        head = b"HTTP/1.1 200 OK\r\n"
        for answer in (
            b"SSH-2.0-OpenSSH\r\n\r\n",
            b"HTTP/1.1 200 OK" + b"x" * 70_000,
            head + b"no colon\r\n\r\n",
            head + b"Content-Length: -1\r\n\r\n",
            head + b"X-Version: 3\r\n\r\nhalf of the va",  # without a length
            head + b"Transfer-Encoding: gzip\r\n\r\n",
            STREAM + b"xyz\r\n",
            STREAM + b"-1\r\n",
            STREAM + b"1\r\nab\r\n",
            STREAM + b"0" * 2000,
        ):
            with self.assertRaises(Garbage, msg=answer[:60]):
                Reader().feed(answer)


class Writing(unittest.TestCase):
    """What becomes of a write whose answer is lost."""

    def setUp(self) -> None:
        self.world = World()

    def test_write_is_sent_once_and_answered(self) -> None:
        call = self.world.write(may_repeat=False)
        request = self.world.connect("a")
        self.assertTrue(request.startswith(b"POST /v1/kv HTTP/1.1\r\nHost: a:1\r\n"), request)
        self.assertTrue(request.endswith(b"\r\n\r\n{}"), request)
        self.world.arrive(http(200, {"version": 17}))
        self.assertEqual(call.value(), 17)
        self.assertTrue(call.is_finished)

    def test_write_that_reached_no_node_goes_to_the_next(self) -> None:
        call = self.world.write(may_repeat=False)
        self.world.refuse()
        self.world.connect("b")
        self.world.arrive(http(200, {"version": 17}))
        self.assertEqual(call.value(), 17)

    def test_node_that_has_done_nothing_costs_nothing(self) -> None:
        for code in ("no_leader", "overloaded"):
            call = self.world.write(may_repeat=False)
            first = self.world.host()
            self.world.connect(first)
            self.world.arrive(http(503, failure(code)))
            self.world.connect("b" if first == "a" else "a")
            self.world.arrive(http(200, {"version": 17}))
            self.assertEqual(call.value(), 17)

    def test_redirect_is_followed(self) -> None:
        call = self.world.write(may_repeat=False)
        self.world.connect("a")
        self.world.arrive(http(307, failure("not_leader"), Location="http://c:3/v1/kv"))
        self.world.connect("c")
        self.world.arrive(http(200, {"version": 17}))
        self.assertEqual(call.value(), 17)

    def test_lost_answer_to_a_write_that_may_not_be_repeated_is_unknown(self) -> None:
        answers: list[bytes | None] = [
            None,
            http(200, {"version": 17})[:-1],
            http(503, failure("leadership_lost")),
            http(503, failure("shutting_down")),
            http(502, "a proxy's page"),
            http(200, {"answer": "of another program"}),
            b"no HTTP at all\r\n\r\n",
        ]
        for answer in answers:
            world = World()
            call = world.write(may_repeat=False)
            world.connect("a")
            if answer is not None:
                world.arrive(answer)
            if not call.is_finished:
                world.cut()
            with self.assertRaises(UnknownOutcome, msg=answer) as raised:
                call.value()
            self.assertIsNone(raised.exception.refusal)
            self.assertEqual(raised.exception.code, "unknown")
            self.assertIsNone(world.link.target, "no other node is asked")

    def test_silent_node_has_all_the_time_for_a_write_that_may_not_be_repeated(self) -> None:
        call = self.world.write(may_repeat=False)
        self.world.connect("a")
        self.world.sleep(4.5)
        self.assertFalse(call.is_finished)
        self.world.sleep(0.6)
        with self.assertRaises(UnknownOutcome):
            call.value()

    def test_lost_answer_to_a_write_that_may_be_repeated_is_asked_for_at_another_node(self) -> None:
        call = self.world.write(may_repeat=True)
        self.world.connect("a")
        self.world.cut()
        self.world.connect("b")
        self.world.arrive(http(200, {"version": 17}))
        self.assertEqual(call.value(), 17)

    def test_silent_node_is_left_by_a_write_that_may_be_repeated(self) -> None:
        call = self.world.write(may_repeat=True)
        self.world.connect("a")
        self.world.sleep(2.5)
        self.world.connect("b")
        self.world.arrive(http(200, {"version": 17}))
        self.assertEqual(call.value(), 17)

    def test_refusal_of_a_repetition_is_no_refusal(self) -> None:
        for code, kind in (("other_version", OtherVersion), ("stale fencing token", StaleToken)):
            world = World()
            call = world.write(may_repeat=True)
            world.connect("a")
            world.cut()
            world.connect("b")
            world.arrive(http(409, failure(code, version=18)))
            with self.assertRaises(UnknownOutcome) as raised:
                call.value()
            self.assertIsInstance(raised.exception.refusal, kind)

    def test_end_of_the_time_after_a_lost_answer_is_unknown(self) -> None:
        call = self.world.write(may_repeat=True)
        self.world.connect("a")
        self.world.cut()
        self.world.refuse()
        self.world.sleep(6)
        with self.assertRaises(UnknownOutcome):
            call.value()

    def test_write_that_no_node_had_is_not_done(self) -> None:
        call = self.world.write(may_repeat=False)
        self.world.refuse()
        self.world.sleep(6)
        with self.assertRaises(Unreachable) as raised:
            call.value()
        self.assertIn("the last failure was: a:1", str(raised.exception))

    def test_node_that_requires_tls_had_no_write(self) -> None:
        call = self.world.write(may_repeat=False, patience=0.04)
        self.world.connect("a")
        self.world.arrive(b"\x15\x03\x03\x00\x02\x02\x32")
        self.world.connect("b")
        self.world.arrive(b"\x15\x03\x03")
        self.world.sleep(1)
        with self.assertRaises(Unreachable) as raised:
            call.value()
        self.assertIn("requires TLS", str(raised.exception))

    def test_refusals_have_types(self) -> None:
        for answer, kind, fields in (
            (http(409, failure("stale fencing token", seen=18, got=17)), StaleToken, (18, 17)),
            (http(409, failure("stale fencing token", seen=18)), StaleToken, (18, None)),
            (http(409, failure("other_version", version=0)), OtherVersion, (0,)),
            (http(507, failure("store_full")), StoreFull, ()),
            (http(404, failure("no_record")), NoRecord, ()),
            (http(403, failure("denied")), Refused, ()),
            (http(401), Refused, ()),
        ):
            world = World()
            call = world.write(may_repeat=True)
            world.connect("a")
            world.arrive(answer)
            with self.assertRaises(kind) as raised:
                call.value()
            error: Any = raised.exception
            names = {StaleToken: ("seen", "got"), OtherVersion: ("version",)}.get(kind, ())
            self.assertEqual(tuple(getattr(error, name) for name in names), fields)
            self.assertIsInstance(error, Refused)

    def test_too_many_requests_wait_as_long_as_the_node_says(self) -> None:
        call = self.world.write(may_repeat=False)
        self.world.connect("a")
        self.world.arrive(http(429, failure("too_soon"), **{"Retry-After": "2"}))
        self.world.sleep(1.9)
        self.assertIsNone(call.target)
        self.world.sleep(0.2)
        self.world.connect("a")
        self.world.arrive(http(429, failure("too_soon"), **{"Retry-After": "9"}))
        self.world.sleep(3)
        with self.assertRaises(Refused) as raised:
            call.value()
        self.assertEqual(raised.exception.code, "too_soon")

    def test_last_answer_says_why_the_time_was_over(self) -> None:
        call = self.world.write(may_repeat=False)
        self.world.connect("a")
        self.world.arrive(http(429, failure("too_soon"), **{"Retry-After": "1"}))
        self.world.sleep(1.1)
        while not call.is_finished:
            if call.target is not None:
                self.world.connect(self.world.host())
                self.world.arrive(http(503, failure("no_leader")))
            self.world.sleep(0.05)
        self.assertIsInstance(call.error, Unreachable)

    def test_time_in_which_the_process_stood_still_does_not_count(self) -> None:
        call = self.world.write(may_repeat=False)
        self.world.now += 60
        call.tick(self.world.now)
        self.assertFalse(call.is_finished)
        self.world.connect("a")
        self.world.now += 60
        self.world.arrive(http(200, {"version": 17}))
        self.assertEqual(call.value(), 17)

    def test_reports_about_an_earlier_connection_are_ignored(self) -> None:
        call = self.world.write(may_repeat=True)
        assert call.target is not None
        old = call.target.number
        self.world.connect("a")
        self.world.cut()
        self.world.connect("b")
        call.received(old, http(200, {"version": 3}), self.world.now)
        call.ended(old, "reset", self.world.now)
        call.failed(old, "refused", self.world.now)
        self.assertFalse(call.is_finished)
        self.world.arrive(http(200, {"version": 17}))
        self.assertEqual(call.value(), 17)

    def test_only_a_version_that_is_replaced_makes_a_repetition_safe(self) -> None:
        put, append, delete = Put("k", "v"), Append("k", "v"), Delete("k")
        held, version = IfHeld("l", 17), IfVersion("k", 4)
        cases: list[tuple[list[Change], list[Condition], bool]] = [
            ([put], [], False),
            ([put], [held], False),
            ([delete], [held], False),
            ([put], [version], True),
            ([append], [held, version], True),
            ([delete], [version], True),
            ([put, Append("log", "x")], [version], True),
            # Made, deleted by another client, and made again.
            ([put], [IfVersion("k", 0)], False),
            ([append], [IfVersion("k", 0)], False),
            # The record that is compared stays as it is.
            ([Append("log", "x")], [version], False),
        ]
        for changes, conditions, is_safe in cases:
            self.assertEqual(
                can_write_once_only(changes, conditions), is_safe, (changes, conditions)
            )


class ReadingRecords(unittest.TestCase):
    def test_read_is_repeated_whatever_happened_to_it(self) -> None:
        world = World("a:1,b:2,c:3")
        call = world.read()
        world.connect("a")
        world.cut()
        world.connect("b")
        world.arrive(http(503, failure("leadership_lost")))
        world.connect("c")
        world.arrive(http(200, {"version": "a text"}))
        world.connect("a")
        world.arrive(http(200, {"version": 17}))
        self.assertEqual(call.value(), 17)

    def test_certificates_that_are_not_trusted_end_a_call_if_all_are(self) -> None:
        world = World()
        call = world.read()
        world.distrust("a")
        world.connect("b")
        world.arrive(http(503, failure("no_leader")))
        world.distrust("a")
        self.assertFalse(call.is_finished, "b is trusted")
        world.distrust("b")
        self.assertIsInstance(call.error, Unreachable)

    def test_certificate_of_a_named_leader_is_no_endpoints(self) -> None:
        world = World("a:1")
        call = world.read()
        world.connect("a")
        world.arrive(http(307, failure("not_leader"), Location="http://c:3/v1/kv/k"))
        world.distrust("c")
        self.assertFalse(call.is_finished)
        world.connect("a")
        world.arrive(http(200, {"version": 17}))
        self.assertEqual(call.value(), 17)

    def test_record_has_its_headers(self) -> None:
        headers = {"x-version": "17", "x-max-fence": "12", "x-age-ms": "250"}
        record = views.record_answer("k", Answer(200, headers, b"\xff"))
        self.assertEqual((record.version, record.fence, record.age), (17, 12, 0.25))
        with self.assertRaises(UnicodeDecodeError):
            _ = record.text
        for bad in ({}, {"x-version": "-1"}, {"x-version": "x"}, {"x-version": "9" * 30}):
            with self.assertRaises(Garbage, msg=bad):
                views.record_answer("k", Answer(200, bad, b""))


class Streams(unittest.TestCase):
    """Server-sent events."""

    def test_events_may_be_cut_anywhere(self) -> None:
        text = b": 51\n\n" + written(9) + b"id:\nevent: compacted\ndata: {}\n\n" + listing(12)
        for cut in range(len(text) + 1):
            stream = EventStream()
            found = stream.feed(text[:cut]) + stream.feed(text[cut:])
            kinds = [(event.kind, event.id) for event in found]
            self.assertEqual(kinds, [("put", "9"), ("compacted", ""), ("listing", "12")])

    def test_data_of_several_lines_is_one_text(self) -> None:
        [event] = EventStream().feed(b"event: put\ndata: {\ndata: }\n\n")
        self.assertEqual(event.data, "{\n}")

    def test_event_that_is_no_text_is_garbage(self) -> None:
        with self.assertRaises(Garbage):
            EventStream().feed(b"event: put\ndata: \xff\n\n")


class Watching(unittest.TestCase):
    def setUp(self) -> None:
        self.world = World()

    def serve(self, host: str, *parts: bytes) -> str:
        """A node that takes the watch. Returns the path that was asked for."""
        request = self.world.connect(host)
        self.world.arrive(STREAM)
        self.say(*parts)
        return request.split(b" ")[1].decode()

    def say(self, *parts: bytes) -> None:
        for part in parts:
            self.world.arrive(chunked(part))

    def told(self, link: WatchLink) -> list[Item]:
        items = list(link.items)
        link.items.clear()
        return items

    def versions(self, link: WatchLink) -> list[int]:
        return [item.version for item in self.told(link) if isinstance(item, events.RecordPut)]

    def test_watch_begins_with_a_listing(self) -> None:
        link = self.world.watch()
        self.assertEqual(self.serve("a", listing(41)), "/v1/watch?key=k")
        [item] = self.told(link)
        self.assertEqual(item, events.Listing("41", 41, True, True, (), ()))

    def test_watch_goes_on_after_the_last_event_at_another_node(self) -> None:
        link = self.world.watch(after="5")
        self.assertEqual(self.serve("a", written(6), written(7)), "/v1/watch?key=k&after=5")
        self.say(written(8)[:-1])  # not complete
        self.world.cut()
        self.assertEqual(self.serve("b", written(8)), "/v1/watch?key=k&after=7")
        self.assertEqual(self.versions(link), [6, 7, 8])

    def test_end_of_a_stream_is_no_end_of_the_watch(self) -> None:
        for end in ("too_slow", "shutting_down", "no_leader", "overloaded"):
            self.world = World()
            link = self.world.watch(after="5")
            self.serve("a", written(6), sse("end", failure(end)))
            self.assertEqual(self.serve("b", written(7)), "/v1/watch?key=k&after=6")
            self.assertEqual(self.versions(link), [6, 7])
        self.world.arrive(b"0\r\n\r\n")
        self.assertEqual(self.serve("a"), "/v1/watch?key=k&after=7")

    def test_listing_that_was_interrupted_begins_anew(self) -> None:
        link = self.world.watch()
        self.serve(
            "a", listing(7, complete=False), sse("put", json.loads(written(8).split(b"data: ")[1]))
        )
        self.world.cut()
        self.assertEqual(self.serve("b", listing(9)), "/v1/watch?key=k")
        first, between, last = self.told(link)
        assert isinstance(first, events.Listing) and isinstance(last, events.Listing)
        assert isinstance(between, events.RecordPut)
        self.assertEqual((first.id, first.complete, between.id), (None, False, None))
        self.assertEqual(last.revision, 9)

    def test_compacted_past_is_told_with_the_floor(self) -> None:
        link = self.world.watch(after="5")
        compacted = sse("compacted", {"floor": 120, "message": "gone"})
        self.serve("a", compacted)
        self.world.cut()
        self.assertEqual(
            self.serve("b", listing(130)), "/v1/watch?key=k", "what was missed is listed"
        )
        error, item = self.told(link)
        assert isinstance(error, Compacted) and isinstance(item, events.Listing)
        self.assertEqual((error.floor, error.code, item.revision), (120, "compacted", 130))

    def test_unknown_kinds_and_fields_are_passed_over(self) -> None:
        link = self.world.watch(after="5")
        later = sse("eclipse", {"key": "k", "revision": 6}, "6")
        self.serve("a", later, written(7, colour="red"))
        self.world.cut()
        self.assertEqual(self.serve("b"), "/v1/watch?key=k&after=7")
        self.assertEqual(self.versions(link), [7])

    def test_garbage_costs_the_connection_only(self) -> None:
        bad = [
            b"event: put\nid: 6\ndata: {\n\n",
            sse("put", {"key": "k"}, "6"),
            sse("put", {"key": "k", "revision": 6, "version": "x"}, "6"),
            sse("listing", {"revision": 6}, "6"),
            written(6).replace(b"id: 6", b"id: six"),
        ]
        for event in bad:
            self.world = World()
            link = self.world.watch(after="5")
            self.serve("a", event)
            self.assertEqual(self.serve("b", written(6)), "/v1/watch?key=k&after=5")
            self.assertEqual(self.versions(link), [6])

    def test_silent_node_is_left(self) -> None:
        link = self.world.watch(after="5")
        self.serve("a", written(6))
        for _ in range(6):
            self.world.sleep(10)
            self.say(b": 51\n\n")
        self.world.sleep(29)
        self.assertEqual(self.world.host(), "a")
        self.world.sleep(2)
        self.assertEqual(self.serve("b"), "/v1/watch?key=k&after=6")
        self.assertFalse(link.is_finished)

    def test_watch_of_a_quiet_key_stays_at_its_node(self) -> None:
        link = self.world.watch(after="5")
        self.serve("a")
        for _ in range(3):
            self.world.sleep(9.9)  # a node that has nothing to tell sends a comment after 10 s
            assert link.target is not None, link.error
            self.assertEqual(link.target.number, 1)
            self.say(b": 51\n\n")

    def test_standstill_is_credited_once(self) -> None:
        link = self.world.watch(after="5")
        self.serve("a", written(6))
        self.world.now += 3600
        self.say(b": 51\n\n")
        self.world.sleep(31)
        self.assertEqual(self.world.host(), "b")
        self.world.now += 3600
        self.serve("b")
        self.world.sleep(31)
        self.assertEqual(self.world.host(), "a")
        self.assertFalse(link.is_finished)

    def test_reader_that_takes_its_time_does_not_blame_the_node(self) -> None:
        link = self.world.watch(after="5")
        self.serve("a", written(6))
        self.world.now += 3600
        link.tick(self.world.now)
        self.assertEqual(self.world.host(), "a")
        self.say(written(7))
        self.assertEqual(self.versions(link), [6, 7])

    def test_watch_that_was_served_looks_for_nodes_without_an_end(self) -> None:
        link = self.world.watch(after="5")
        self.serve("a", written(6))
        self.world.cut()
        for _ in range(1000):
            self.world.refuse()
        self.assertFalse(link.is_finished)
        self.assertGreater(self.world.now, 1020, "there are pauses")

    def test_watch_that_no_node_serves_fails_in_time(self) -> None:
        link = self.world.watch()
        self.world.connect("a")
        self.world.arrive(http(503, failure("no_leader")))
        self.world.sleep(6)
        self.assertIsInstance(link.error, Unreachable)

    def test_watch_that_all_nodes_refuse_is_refused(self) -> None:
        link = self.world.watch()
        self.world.connect("a")
        self.world.arrive(http(429, failure("limit")))
        self.serve("b", listing(6), sse("end", failure("denied")))
        self.assertIsNone(link.error)
        self.world.connect("a")
        self.world.arrive(http(403, failure("denied")))
        assert isinstance(link.error, Refused)
        self.assertEqual((link.error.code, len(link.items)), ("denied", 1))

    def test_refusals_of_one_node_do_not_end_a_watch(self) -> None:
        for was_served in (False, True):
            self.world = World()
            link = self.world.watch(after="5")
            if was_served:
                self.serve("a", written(6))
                self.world.cut()
                self.world.refuse()
            for _ in range(3):
                self.world.connect("a")
                self.world.arrive(http(429, failure("limit")))
                self.world.refuse()
            self.assertFalse(link.is_finished, "b only starts again")
            if not was_served:
                self.world.sleep(6)
                assert isinstance(link.error, Refused)
                self.assertEqual(link.error.code, "limit", "b could not be reached in time")

    def test_nodes_that_end_the_watch_at_once_are_not_asked_without_pauses(self) -> None:
        link = self.world.watch()
        for _ in range(100):
            self.serve(self.world.host(), listing(6))
            self.world.cut()
        self.assertGreater(self.world.now, 1002)
        self.assertEqual(len(link.items), 100)

    def test_all_kinds_of_events_are_decoded(self) -> None:
        common = {"key": "k", "session": 3}
        kinds: list[tuple[str, dict[str, object], events.Event]] = [
            (
                "granted",
                {
                    "owner": "o",
                    "token": 9,
                    "mode": "semaphore",
                    "permits": 1,
                    "of": 2,
                    "value": "v",
                },
                events.Granted("7.1", 7, "k", 3, "o", 9, "semaphore", 1, 2, (), "v"),
            ),
            (
                "queued",
                {"owner": "o", "mode": "exclusive", "ahead": 0, "keys": ["k", "l"]},
                events.Queued("7.1", 7, "k", 3, "o", "exclusive", 0, None, None, ("k", "l")),
            ),
            ("value", {"token": 9, "value": "v"}, events.ValueReplaced("7.1", 7, "k", 3, 9, "v")),
            (
                "released",
                {"token": 9, "because": "expired"},
                events.Released("7.1", 7, "k", 3, 9, "expired"),
            ),
            ("withdrawn", {"because": "closed"}, events.Withdrawn("7.1", 7, "k", 3, "closed")),
            ("expired", {}, events.Expired("7.1", 7, "k", 3)),
            ("expired", {"token": 9}, events.Expired("7.1", 7, "k", 3, 9)),
            ("broken", {"token": 9}, events.Broken("7.1", 7, "k", 3, 9)),
            ("put", {"version": 4, "fence": 9}, events.RecordPut("7.1", 7, "k", 4, 9)),
            ("deleted", {"version": 4}, events.RecordDeleted("7.1", 7, "k", 4)),
        ]
        for kind, fields, event in kinds:
            body = common | {"revision": 7, "id": "7.1", "event": kind} | fields
            self.assertEqual(views.event("7.1", kind, body), event)


if __name__ == "__main__":
    unittest.main()
