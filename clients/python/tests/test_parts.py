"""The small parts: messages, requests, endpoints and the order in which nodes are asked."""

from __future__ import annotations

import random
import socket
import unittest
from typing import Any

from palisade import _clock
from palisade import _messages as messages
from palisade._messages import Garbage, decode, decode_failure
from palisade._request import Request, make_request
from palisade._route import Directory, Endpoint, Route, parse_endpoints, parse_location
from palisade._threads import _alternated
from palisade._wire import Security, Wire


class Decoding(unittest.TestCase):
    def test_frames_of_the_protocol(self) -> None:
        failure = messages.Failure("not_holder", "a sentence")
        frames: dict[str, messages.Message] = {
            '{"waiting":{"session":"s","ttl_ms":3000}}': messages.Waiting("s", 3000),
            '{"granted":{"key":"k","token":17,"session":"s","ttl_ms":3000}}': messages.Granted(
                ("k",), 17, "s", 3000, None
            ),
            '{"granted":{"keys":["a","b"],"token":18446744073709551615,"session":"s","ttl_ms":1,'
            '"signed":["x","y"],"new":1}}': messages.Granted(
                ("a", "b"), 2**64 - 1, "s", 1, ("x", "y")
            ),
            '{"check":{"n":1}}': messages.Check(1),
            '{"renewed":{"n":1,"ttl_ms":3000}}': messages.Renewed(1, 3000),
            '{"proclaimed":{"n":5}}': messages.Proclaimed(5),
            '{"released":{}}': messages.Released(),
            '{"lost":{"error":"not_holder","message":"a sentence"}}': messages.Lost(failure),
            '{"error":{"error":"not_holder","message":"a sentence"}}': messages.Refusal(
                failure, None
            ),
            '{"error":{"n":5,"error":"not_holder","message":"a sentence"}}': messages.Refusal(
                failure, 5
            ),
            '{"interrupted":{"error":"not_leader","message":"m",'
            '"leader":{"id":2,"client_addr":"h:1"}}}': messages.Interrupted(
                messages.Failure("not_leader", "m", leader="h:1")
            ),
            '{"interrupted":{"error":"no_leader","message":"m","leader":null}}': (
                messages.Interrupted(messages.Failure("no_leader", "m"))
            ),
        }
        for text, message in frames.items():
            self.assertEqual(decode(text), message, text)

    def test_unknown_kinds_are_ignored(self) -> None:
        self.assertIsNone(decode('{"weather":{"rain":true}}'))
        self.assertIsNone(decode('{"weather":3}'))

    def test_other_forms_are_garbage(self) -> None:
        bad = [
            "", "nonsense", "[]", "{}", "17", "null", '"check"', "[" * 100_000,
            '{"check":{"n":1},"released":{}}', '{"check":1}', '{"check":{}}',
            '{"check":{"n":-1}}', '{"check":{"n":true}}', '{"check":{"n":1.5}}',
            '{"check":{"n":"1"}}', '{"check":{"n":1e400}}', '{"check":{"n":NaN}}',
            '{"waiting":{"session":7,"ttl_ms":3000}}', '{"waiting":{"session":"s","ttl_ms":0}}',
            '{"granted":{"key":"k","token":0,"session":"s","ttl_ms":3000}}',
            '{"granted":{"key":"k","token":18446744073709551616,"session":"s","ttl_ms":3000}}',
            '{"granted":{"key":"k","token":1,"session":"s"}}',
            '{"granted":{"keys":"k","token":1,"session":"s","ttl_ms":1}}',
            '{"granted":{"keys":[1],"token":1,"session":"s","ttl_ms":1}}',
            '{"granted":{"key":"k","token":1,"session":"s","ttl_ms":1,"signed":[1]}}',
            '{"waiting":{"session":"\\ud800","ttl_ms":3000}}',
            '{"lost":{}}', '{"lost":{"error":7}}', '{"error":{"n":"x","error":"e"}}',
        ]  # fmt: skip
        for text in bad:
            with self.assertRaises(Garbage, msg=text[:80]):
                decode(text)

    def test_failure_of_an_http_answer(self) -> None:
        body = b'{"error":"held","message":"m","holder":{"owner":"o","token":3},"queue":2}'
        failure = decode_failure(body)
        self.assertEqual(failure, messages.Failure("held", "m", None, "o", 3, 2))
        for other in (b"", b"<html>", b"[]", b'{"message":"m"}', b"\xff\xfe"):
            self.assertIsNone(decode_failure(other))


class Requests(unittest.TestCase):
    def request(self, keys: Any = "k", **options: Any) -> Request:
        defaults: dict[str, Any] = dict(
            ttl=30, wait=0, owner=None, mode=None, permits=None, of=None, max_queue=None, value=None
        )
        return make_request(keys, **(defaults | options))

    def test_options_that_no_server_accepts_are_refused(self) -> None:
        bad: list[dict[str, Any]] = [
            {"keys": ""}, {"keys": []}, {"keys": ["a", "a"]}, {"keys": "x" * 513},
            {"keys": [str(n) for n in range(33)]}, {"keys": ["x" * 500 + str(n) for n in range(5)]},
            {"ttl": 0.05}, {"ttl": 86_401}, {"wait": -1}, {"wait": 86_401}, {"mode": "mine"},
            {"permits": 2}, {"of": 2}, {"permits": 3, "of": 2}, {"permits": 0, "of": 2},
            {"permits": 1, "of": 2, "mode": "shared"}, {"max_queue": -1}, {"value": "x" * 4097},
            {"owner": "x" * 257},
        ]  # fmt: skip
        for options in bad:
            with self.assertRaises(ValueError, msg=str(options)):
                self.request(**options)

    def test_owner_is_host_and_process_unless_it_is_named(self) -> None:
        self.assertRegex(self.request().owner, r".+:\d+$")
        self.assertEqual(self.request(owner="").owner, "")

    def test_several_keys_are_a_list(self) -> None:
        self.assertEqual(self.request(["a", "b"]).options(0)["keys"], ["a", "b"])
        self.assertEqual(self.request(["a"]).options(0)["key"], "a")


class Endpoints(unittest.TestCase):
    """The lists that the command line and the clients of all languages read, or refuse. The same
    stand in client/src/endpoints.rs, and in the tests of the clients in Go and TypeScript."""

    def test_lists_are_read_as_the_command_line_reads_them(self) -> None:
        for text, expected in (
            ("a:1,2,b:3,4", "a:1 a:2 b:3 b:4"),
            ("[::1]:7401,7402", "[::1]:7401 [::1]:7402"),
            (
                "10.0.0.1:7400, 127.0.0.1:7401,7402",
                "10.0.0.1:7400 127.0.0.1:7401 127.0.0.1:7402",
            ),
            (
                "http://127.0.0.1:7401 http://127.0.0.1:7402",
                "127.0.0.1:7401 127.0.0.1:7402",
            ),
            ("http://a:1/,2, http://[::1]:3", "a:1 a:2 [::1]:3"),
        ):
            nodes, demands_tls = parse_endpoints(text)
            self.assertEqual(" ".join(map(str, nodes)), expected)
            self.assertFalse(demands_tls, text)

    def test_https_demands_tls(self) -> None:
        nodes, demands_tls = parse_endpoints("https://a:1/,2")
        self.assertEqual((" ".join(map(str, nodes)), demands_tls), ("a:1 a:2", True))

    def test_other_lists_are_refused(self) -> None:
        for text in (
            "", "7401", "host", "host:", "host:0", "host:70000", ":1", "::1:7401", "a:1,,a:2",
            "a:+1", "https://a", "https://a:1/x", "http://a", "http://a:1/x",
        ):  # fmt: skip
            with self.assertRaises(ValueError, msg=text):
                parse_endpoints(text)

    def test_other_forms(self) -> None:
        nodes, is_tls = parse_endpoints(["10.0.0.7:7401", "7402 ", "wss://Lock-4.example:7404"])
        expected = [("10.0.0.7", 7401), ("10.0.0.7", 7402), ("lock-4.example", 7404)]
        self.assertEqual([(node.host, node.port) for node in nodes], expected)
        self.assertTrue(is_tls)
        lists: list[list[str]] = [[], [""]]
        for bad in (",", "ftp://h:1", "u@h:1", "h:1/path", "h:1?x", "h:1/", *lists):
            with self.assertRaises(ValueError, msg=bad):
                parse_endpoints(bad)

    def test_locations(self) -> None:
        self.assertEqual(parse_location("http://h:7402/v1/hold"), Endpoint("h", 7402))
        self.assertEqual(parse_location("127.0.0.1:7402"), Endpoint("127.0.0.1", 7402))
        for text in ("/v1/hold", "", "http://", "http://[::1/", "h:x"):
            self.assertIsNone(parse_location(text), text)


class Routes(unittest.TestCase):
    def setUp(self) -> None:
        self.a, self.b = Endpoint("a", 1), Endpoint("b", 2)
        self.directory = Directory((self.a, self.b))
        self.route = Route(self.directory, random.Random(1))

    def test_every_endpoint_is_asked_before_a_pause(self) -> None:
        self.assertEqual(self.route.current, self.a)
        self.assertEqual(self.route.failed(), 0)
        self.assertEqual(self.route.current, self.b)
        pause = self.route.failed()
        self.assertGreaterEqual(pause, 0.05)
        self.assertEqual(self.route.current, self.a)

    def test_pauses_stay_between_50_and_500_ms(self) -> None:
        self.route.failed()
        pauses = [self.route.failed() for _ in range(100)]
        self.assertGreaterEqual(min(pauses), 0.05)
        self.assertLessEqual(max(pauses), 0.5)
        self.assertGreater(max(pauses), 0.3, "they grow")

    def test_redirect_is_followed_and_its_failure_leads_back(self) -> None:
        self.assertEqual(self.route.redirected("http://c:3/v1/hold"), 0)
        self.assertEqual(self.route.current, Endpoint("c", 3))
        self.route.failed()
        self.assertEqual(self.route.current, self.b)

    def test_redirects_in_a_circle_end(self) -> None:
        pauses = [self.route.redirected(f"http://{'cd'[n % 2]}:3/") for n in range(20)]
        self.assertGreater(sum(pause > 0 for pause in pauses), 0)

    def test_redirect_to_itself_or_nowhere_is_a_failure(self) -> None:
        for location in ("http://a:1/", None, "nowhere"):
            route = Route(Directory((self.a, self.b)))
            route.redirected(location)
            self.assertEqual(route.current, self.b, location)

    def test_next_lock_begins_with_the_node_that_served(self) -> None:
        self.route.redirected("http://c:3/v1/hold")
        self.route.served()
        self.assertEqual(Route(self.directory).current, Endpoint("c", 3))
        self.route.failed()
        self.assertEqual(Route(self.directory).current, self.a)


class Addresses(unittest.TestCase):
    def test_families_take_turns(self) -> None:
        six = [(socket.AF_INET6, 1, 6, "", n) for n in range(3)]
        four = [(socket.AF_INET, 1, 6, "", n) for n in range(1)]
        self.assertEqual(_alternated([*six, *four]), [six[0], four[0], six[1], six[2]])
        self.assertEqual(_alternated([]), [])


class Bytes(unittest.TestCase):
    def test_node_that_requires_tls_is_named_so(self) -> None:
        wire = Wire(Endpoint("a", 1), Security())
        with self.assertRaises(Garbage) as refused:
            wire.feed(b"\x15\x03\x03\x00\x02\x02\x32")
            wire.end()
        message = str(refused.exception)
        self.assertIn("if the node uses TLS, name the CA's file", message)
        self.assertTrue(message.startswith("the node did not open a WebSocket"), message)


class Clock(unittest.TestCase):
    def test_clock_goes_on_while_the_machine_sleeps(self) -> None:
        import time

        if not hasattr(time, "CLOCK_BOOTTIME"):
            self.skipTest("this system has no such clock")
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        now = _clock.now()
        after = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.assertTrue(before <= now <= after)


if __name__ == "__main__":
    unittest.main()
