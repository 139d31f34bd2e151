"""The engine with the bytes of its connections, in virtual time and without a socket."""

from __future__ import annotations

import random
import ssl
import unittest
from collections.abc import Callable
from typing import Any

from websockets.protocol import State

from palisade._engine import Engine, Target
from palisade._hold import Phase
from palisade._request import make_request
from palisade._route import Directory, Route, parse_endpoints
from palisade._wire import Security
from palisade.errors import Held, LockLost, Refused, Timeout, Unreachable

from .peer import SESSION, Peer, failure, granted, http, waiting


class World:
    """An engine, a clock, and the server's end of the connection that the engine has now."""

    def __init__(
        self, endpoints: str = "a:1,b:2", token: str | None = None, **options: Any
    ) -> None:
        defaults: dict[str, Any] = dict(
            ttl=3, wait=0, owner="w", mode=None, permits=None, of=None, max_queue=None, value=None
        )
        self.now = 1000.0
        nodes, _ = parse_endpoints(endpoints)
        self.directory = directory = Directory(nodes)
        self.engine = Engine(
            make_request("nightly", **(defaults | options)),
            directory,
            Security(None, token),
            self.now,
            5.0,
            Route(directory, random.Random(1)),
        )
        self.peer = Peer()

    @property
    def target(self) -> Target:
        assert self.engine.target is not None, "the engine wants a connection"
        return self.engine.target

    def sleep(self, seconds: float) -> None:
        """Lets time pass, in the steps that the engine asks for."""
        end = self.now + seconds
        while not self.engine.is_finished and self.engine.wake_at() < end:
            self.now = max(self.now, self.engine.wake_at())
            self.engine.tick(self.now)
            if self.engine.wake_at() <= self.now and not self.engine.is_finished:
                raise AssertionError("the engine does not sleep")
        self.now = end
        self.engine.tick(self.now)

    def pause(self, seconds: float) -> None:
        """Stops the process: time passes and the engine does nothing."""
        self.now += seconds

    def connect(self, host: str | None = None) -> None:
        """Makes the TCP connection that the engine wants; the node reads the upgrade."""
        if self.engine.target is None:
            self.sleep(0.6)
        if host is not None:
            assert self.target.endpoint.host == host, self.target
        self.peer = Peer()
        self.engine.connected(self.target.number, self.now)
        self.transmit()

    def transmit(self) -> None:
        if self.engine.target is not None:
            self.peer.feed(self.engine.outgoing(self.engine.target.number))

    def arrive(self, data: bytes) -> None:
        number = self.target.number
        self.engine.received(number, data, self.now)
        self.transmit()

    def accept(self) -> None:
        self.arrive(self.peer.accept())

    def say(self, kind: str, body: object) -> None:
        self.arrive(self.peer.say(kind, body))

    def heard(self) -> list[str]:
        kinds = [kind for kind, _ in self.peer.frames]
        self.peer.frames.clear()
        return kinds

    def hold(self) -> None:
        """Acquires the lock."""
        self.connect()
        self.accept()
        self.say("waiting", waiting())
        self.say("granted", granted())
        assert self.heard() == ["acquire"]
        assert self.engine.hold.phase is Phase.HELD

    def queue(self, ttl_ms: int) -> None:
        """Waits for the lock."""
        self.connect()
        self.accept()
        self.say("waiting", waiting(ttl_ms=ttl_ms))
        assert self.heard() == ["acquire"]

    def renew(self, n: int) -> None:
        self.say("check", {"n": n})
        self.say("renewed", {"n": n, "ttl_ms": 3000})
        assert self.heard() == ["here"]

    def break_connection(self) -> None:
        self.engine.ended(self.target.number, "connection reset", self.now)


class Connections(unittest.TestCase):
    def test_upgrade_has_the_path_and_the_bearer_token(self) -> None:
        world = World(token="secret")
        world.connect()
        assert world.peer.request is not None
        self.assertEqual(world.peer.request.path, "/v1/hold")
        self.assertEqual(world.peer.request.headers["Host"], "a:1")
        self.assertEqual(world.peer.request.headers["Authorization"], "Bearer secret")
        self.assertNotIn("Origin", world.peer.request.headers)

    def test_bearer_token_is_not_shown(self) -> None:
        self.assertNotIn("secret", repr(Security(None, "secret")))

    def test_refused_connection_leads_to_the_next_endpoint(self) -> None:
        world = World()
        world.engine.failed(world.target.number, "connection refused", world.now)
        world.connect("b")

    def test_redirect_is_followed(self) -> None:
        world = World()
        world.connect("a")
        body = failure("not_leader", leader={"id": 3, "client_addr": "c:3"})
        world.arrive(http(307, body, Location="http://c:3/v1/hold"))
        world.connect("c")
        world.accept()
        self.assertEqual(world.heard(), ["acquire"])

    def test_redirect_without_a_location_follows_the_body(self) -> None:
        world = World()
        world.connect()
        world.arrive(http(307, failure("not_leader", leader={"id": 3, "client_addr": "c:3"})))
        self.assertEqual(world.target.endpoint.host, "c")

    def test_unavailable_node_leads_to_the_next_endpoint(self) -> None:
        for status, code in ((503, "no_leader"), (503, "overloaded"), (503, "shutting_down")):
            world = World()
            world.connect("a")
            world.arrive(http(status, failure(code)))
            world.connect("b")

    def test_final_refusal_over_http_ends_the_acquire(self) -> None:
        for status, code in ((403, "denied"), (421, "wrong_host")):
            world = World()
            world.connect()
            world.arrive(http(status, failure(code)))
            self.assertIsInstance(world.engine.hold.error, Refused)
            assert world.engine.hold.error is not None
            self.assertEqual(world.engine.hold.error.code, code)

    def test_acquire_asks_all_nodes_whether_they_know_its_client(self) -> None:
        """The file of bearer tokens of one node may be older than that of the others."""
        unknown = http(401, failure("unauthenticated"))
        world = World()
        world.connect("a")
        world.arrive(unknown)
        self.assertIs(world.engine.hold.phase, Phase.ACQUIRING)
        world.connect("b")
        world.arrive(unknown)
        assert isinstance(world.engine.hold.error, Refused)
        self.assertEqual(world.engine.hold.error.code, "unauthenticated")

        world = World()
        world.connect("a")
        world.arrive(unknown)
        world.connect("b")
        world.accept()
        world.say("waiting", waiting())
        world.say("granted", granted())
        self.assertIs(world.engine.hold.phase, Phase.HELD)

    def test_node_that_other_nodes_name_is_not_all_nodes(self) -> None:
        world = World()
        world.connect("a")
        world.arrive(http(307, failure("not_leader"), Location="http://c:3/v1/hold"))
        world.connect("c")
        world.arrive(http(401, failure("unauthenticated")))
        world.connect("b")
        world.arrive(http(401, failure("unauthenticated")))
        self.assertIs(world.engine.hold.phase, Phase.ACQUIRING)
        world.connect("a")
        world.accept()
        self.assertEqual(world.heard(), ["acquire"])

    def test_refusal_is_told_if_the_other_nodes_cannot_be_reached(self) -> None:
        world = World()
        world.connect("a")
        world.arrive(http(401, failure("unauthenticated")))
        world.engine.failed(world.target.number, "connection refused", world.now)
        world.sleep(5.1)
        assert isinstance(world.engine.hold.error, Refused)
        self.assertEqual(world.engine.hold.error.code, "unauthenticated")

    def test_refusal_without_a_body_ends_the_acquire(self) -> None:
        world = World()
        world.connect()
        world.arrive(http(404))
        self.assertIsInstance(world.engine.hold.error, Refused)

    def test_silent_endpoints_end_as_unreachable(self) -> None:
        world = World()
        world.sleep(5.1)
        self.assertIsInstance(world.engine.hold.error, Unreachable)
        self.assertIn("did not answer in time", str(world.engine.hold.error))

    def test_reports_about_an_earlier_connection_are_ignored(self) -> None:
        world = World()
        world.hold()
        old = world.target.number
        world.break_connection()
        world.connect()
        for report in (world.engine.ended, world.engine.failed):
            report(old, "late", world.now)
        world.engine.received(old, b"\x81\x00", world.now)
        self.assertEqual(world.engine.outgoing(old), b"")
        self.assertNotEqual(world.target.number, old)
        world.accept()
        self.assertEqual(world.heard(), ["resume"])


class Holding(unittest.TestCase):
    def setUp(self) -> None:
        self.world = World()
        self.world.hold()

    def test_lease_is_renewed_for_ever(self) -> None:
        for n in range(1, 50):
            self.world.sleep(1)
            self.world.renew(n)
            self.assertAlmostEqual(self.world.engine.hold.remaining(self.world.now), 2.64)
        self.assertEqual(self.world.target.number, 1, "over one connection")

    def test_cut_connection_is_resumed_at_another_node(self) -> None:
        self.world.break_connection()
        self.world.connect("b")
        self.world.accept()
        self.assertEqual(self.world.peer.frames[0][1]["token"], 17)
        self.assertEqual(self.world.heard(), ["resume"])
        self.world.say("granted", granted())
        self.world.sleep(1)
        self.world.renew(1)
        self.assertTrue(self.world.engine.hold.is_valid(self.world.now))

    def test_farewell_of_the_node_leads_to_a_resume(self) -> None:
        self.world.arrive(self.world.peer.goodbye())
        self.world.connect("b")
        self.world.accept()
        self.assertEqual(self.world.heard(), ["resume"])

    def test_silent_connection_is_given_up_after_half_a_minute_at_the_most(self) -> None:
        world = World(ttl=3600, wait=600)
        world.queue(3_600_000)
        for _ in range(5):  # a node pings every 20 s, and checks every 20 minutes
            world.sleep(20)
            world.arrive(world.peer.ping())
        self.assertEqual(world.target.number, 1)
        world.sleep(31)
        world.connect("b")
        world.accept()
        self.assertEqual(world.heard(), ["resume"])

    def test_silent_connection_is_given_up_after_half_the_ttl(self) -> None:
        self.world.sleep(1.4)
        self.assertEqual(self.world.target.number, 1)
        self.world.sleep(0.2)
        self.assertGreater(self.world.target.number, 1)
        self.assertTrue(self.world.engine.hold.is_valid(self.world.now))

    def test_ping_shows_that_the_node_is_there(self) -> None:
        self.world.sleep(1)
        self.world.arrive(self.world.peer.ping())
        self.world.sleep(1.2)
        self.assertEqual(self.world.target.number, 1)
        self.assertTrue(self.world.engine.hold.is_valid(self.world.now))

    def test_node_that_talks_and_renews_no_more_leaves_time_to_ask_another_one(self) -> None:
        self.world.renew(1)
        for _ in range(2):
            self.world.sleep(1)
            self.world.arrive(self.world.peer.ping())
        self.world.sleep(0.26)
        self.assertEqual(self.world.target.number, 1)
        self.world.sleep(0.01)
        self.world.connect("b")
        self.world.accept()
        self.world.say("granted", granted())
        self.assertTrue(self.world.engine.hold.is_valid(self.world.now))

    def test_lock_is_lost_by_the_lease_though_nodes_are_silent(self) -> None:
        self.world.sleep(2.63)
        self.assertTrue(self.world.engine.hold.is_valid(self.world.now))
        self.world.sleep(0.02)
        self.assertTrue(self.world.engine.hold.lost)
        self.assertTrue(self.world.engine.is_finished)

    def test_lock_survives_a_silent_node_if_another_one_answers(self) -> None:
        self.world.sleep(1.6)
        self.assertEqual(self.world.target.endpoint.host, "b")
        self.world.sleep(0.3)
        self.world.connect("b")
        self.world.accept()
        self.world.say("granted", granted())
        self.assertTrue(self.world.engine.hold.is_valid(self.world.now))

    def test_lock_survives_a_named_leader_that_is_dead_after_an_election(self) -> None:
        leader = {"id": 2, "client_addr": "dead:9"}
        # The node names the dead leader, or is itself silent at the second fault.
        for last_words in (failure("shutting_down", leader=leader), None):
            world = World("lb:1", ttl=6)
            world.connect()
            world.accept()
            world.say("waiting", waiting(ttl_ms=6000))
            world.say("granted", granted(ttl_ms=6000))
            world.break_connection()
            for _ in range(5):
                world.connect("lb")
                world.arrive(http(503, failure("no_leader")))
            world.connect("lb")
            world.accept()
            world.say("granted", granted(ttl_ms=6000))
            world.sleep(1)
            if last_words is not None:
                world.say("interrupted", last_words)
                self.assertEqual(world.target.endpoint.host, "dead")
                self.assertLessEqual(world.engine.wake_at() - world.now, 1, "a sixth of the TTL")
            else:
                world.break_connection()
                world.sleep(0.6)
            silent = world.target.number
            while not world.engine.is_finished and (
                world.engine.target is None or world.target.number == silent
            ):
                world.now = max(world.now, world.engine.wake_at())
                world.engine.tick(world.now)
            self.assertFalse(world.engine.hold.lost, last_words)
            self.assertEqual(world.target.endpoint.host, "lb")

    def test_certificate_of_a_named_leader_is_no_endpoints(self) -> None:
        world = World("lb:1", wait=60)
        world.queue(3000)
        world.say("interrupted", failure("not_leader", leader={"id": 2, "client_addr": "c:3"}))
        self.assertEqual(world.target.endpoint.host, "c")
        error = ssl.SSLCertVerificationError()
        error.verify_message = "no such name"
        world.engine._distrust(error, world.now)
        self.assertIsNone(world.engine.hold.error)
        self.assertIs(world.engine.hold.phase, Phase.ACQUIRING)
        world.connect("lb")

    def test_nodes_that_answer_once_and_end_the_connection_are_asked_with_pauses(self) -> None:
        pauses = 0
        self.world.break_connection()
        for _ in range(20):
            if self.world.engine.target is None:
                pauses += 1
                pause = self.world.engine.wake_at() - self.world.now
                self.assertTrue(0.049 < pause < 0.501, pause)
            self.world.connect()
            self.world.accept()
            self.world.say("granted", granted())
            self.world.break_connection()
        self.assertGreaterEqual(pauses, 19, "all but the first, which leads to the other node")
        self.assertTrue(self.world.engine.hold.is_valid(self.world.now))
        self.world.connect()
        self.world.accept()
        self.world.say("granted", granted())
        self.world.heard()
        self.world.renew(1)
        self.world.break_connection()
        self.world.engine.tick(self.world.now)
        self.assertIsNotNone(self.world.engine.target, "a renewal ends the series of failures")

    def test_node_that_answers_is_remembered_before_it_renews(self) -> None:
        world = World()
        world.engine.failed(world.target.number, "connection refused", world.now)
        world.connect("b")
        world.accept()
        self.assertIsNone(world.directory.last_good)
        world.say("waiting", waiting())
        self.assertEqual(world.directory.last_good, world.target.endpoint)

    def test_pause_beyond_the_lease_loses_the_lock_whatever_was_received(self) -> None:
        check = self.world.peer.say("check", {"n": 1})
        renewed = self.world.peer.say("renewed", {"n": 1, "ttl_ms": 3000})
        self.world.pause(3)
        self.assertFalse(self.world.engine.hold.is_valid(self.world.now))
        self.world.arrive(check + renewed)
        self.assertTrue(self.world.engine.hold.lost)
        self.assertEqual(self.world.heard(), [])

    def test_pause_within_the_lease_keeps_the_connection(self) -> None:
        check = self.world.peer.say("check", {"n": 1})
        self.world.pause(2)
        self.world.arrive(check)
        self.assertEqual(self.world.target.number, 1)
        self.assertEqual(self.world.heard(), ["here"])

    def test_garbage_gives_the_connection_up_and_not_the_lock(self) -> None:
        kinds: list[Callable[[], bytes]] = [
            lambda: self.world.peer.text("nonsense"),
            lambda: self.world.peer.binary(b"\x00"),
            lambda: b"\xff\xff\xff\xff nonsense",
            lambda: self.world.peer.say("granted", granted(token=18)),
            lambda: self.world.peer.text("x" * 300_000),
        ]
        for n, garbage in enumerate(kinds, start=1):
            self.world.engine.received(self.world.target.number, garbage(), self.world.now)
            target = self.world.engine.target
            self.assertTrue(target is None or target.number > n, n)
            self.assertTrue(self.world.engine.hold.is_valid(self.world.now))
            self.world.connect()
            self.world.accept()
            self.world.say("granted", granted())
            self.assertEqual(self.world.heard(), ["resume"])

    def test_fragments_are_one_message(self) -> None:
        protocol = self.world.peer.protocol
        protocol.send_text(b'{"check":', fin=False)
        protocol.send_ping(b"between")
        protocol.send_continuation(b'{"n":1}}', fin=True)
        self.world.arrive(self.world.peer.taken())
        self.assertEqual(self.world.heard(), ["here"])

    def test_bytes_may_come_one_by_one(self) -> None:
        for byte in self.world.peer.say("check", {"n": 1}):
            self.world.arrive(bytes([byte]))
        self.assertEqual(self.world.heard(), ["here"])

    def test_interruption_leads_to_a_resume_at_the_leader(self) -> None:
        body = failure("leadership_lost", leader={"id": 3, "client_addr": "c:3"})
        self.world.say("interrupted", body)
        self.world.connect("c")
        self.world.accept()
        self.assertEqual(self.world.heard(), ["resume"])

    def test_node_that_refuses_the_client_costs_no_lock(self) -> None:
        for status in (401, 403, 404):
            world = World()
            world.hold()
            world.break_connection()
            world.connect("b")
            world.arrive(http(status))
            self.assertTrue(world.engine.hold.is_valid(world.now), status)
            world.connect("a")
            world.accept()
            world.say("granted", granted())
            self.assertEqual(world.heard(), ["resume"])

    def test_broken_lock_is_lost(self) -> None:
        self.world.say("lost", failure("not_holder"))
        self.assertIsInstance(self.world.engine.hold.error, LockLost)
        self.assertTrue(self.world.engine.is_finished)

    def test_last_frame_and_farewell_may_come_together(self) -> None:
        for kind, body in (("lost", failure("not_holder")), ("check", {"n": 1})):
            world = World()
            world.hold()
            world.arrive(world.peer.say(kind, body) + world.peer.goodbye())
            self.assertEqual(world.engine.hold.lost, kind == "lost")
            self.assertEqual(world.engine.is_finished, kind == "lost")

    def test_release_says_goodbye(self) -> None:
        self.world.engine.release(self.world.now)
        self.world.transmit()
        self.assertEqual(self.world.heard(), ["release"])
        self.world.say("released", {})
        self.assertTrue(self.world.engine.is_finished)
        goodbye = self.world.peer.protocol.close_rcvd
        self.assertEqual(goodbye.code if goodbye else None, 1000)

    def test_unanswered_release_is_repeated_over_another_connection(self) -> None:
        self.world.engine.release(self.world.now)
        self.world.break_connection()
        self.world.connect("b")
        self.world.accept()
        self.world.say("granted", granted())
        self.assertEqual(self.world.heard(), ["resume", "release"])
        self.world.say("released", {})
        self.assertIsNone(self.world.engine.hold.error)

    def test_engine_sleeps_while_no_node_answers(self) -> None:
        """Every `tick` at `wake_at` moves `wake_at` on: a driver never spins."""
        self.world.sleep(2.6)
        self.assertLess(self.world.engine._number, 30)


class Fuzz(unittest.TestCase):
    """A node that sends anything costs the lock at most; the client never fails, and never believes
    in more than the server could have promised."""

    def test_bytes_of_any_kind(self) -> None:
        chance = random.Random(17)
        for run in range(300):
            world = World(wait=chance.choice((0, 60)))
            for _ in range(30):
                if world.engine.is_finished:
                    break
                if world.engine.target is None:
                    world.sleep(0.3)
                    continue
                with self.subTest(run=run):
                    self.step(world, chance)
                    hold = world.engine.hold
                    self.assertLessEqual(hold.remaining(world.now), 2.64 + 1e-6)
                    if not world.engine.is_finished:
                        self.assertGreater(world.engine.wake_at(), world.now - 1e-6)

    def step(self, world: World, chance: random.Random) -> None:
        number = world.target.number
        if world.peer.request is None or world.engine._wire is None:
            world.connect()
            if world.engine.target is None:
                return  # a redirect to a host that cannot be
        peer = world.peer
        data = b""
        is_open = world.engine._is_open
        can_accept = peer.protocol.state is State.CONNECTING
        match chance.randrange(8):
            case 0:
                data = chance.randbytes(chance.randrange(1, 40))
            case 1:
                location = chance.choice(("http://c:3/", "http://[/", "\u00e9:1", "x" * 300, "/"))
                body = failure(chance.choice(("not_leader", "held", "x")))
                data = http(chance.choice((200, 204, 307, 401, 503)), body, Location=location)
            case 2 | 3 | 5 | 6 if can_accept:
                data = peer.accept()
            case 4 if can_accept:
                data = peer.accept()[: chance.randrange(200)]
            case _ if is_open:
                data = self.frame(world, chance)
        if chance.random() < 0.1 and data:
            place = chance.randrange(len(data))
            data = data[:place] + chance.randbytes(1) + data[place + 1 :]
        if chance.random() < 0.1:
            world.engine.ended(number, "cut", world.now)
        elif data:
            world.engine.received(number, data, world.now)
        target = world.engine.target
        if target is None or target.number != number:
            world.peer = Peer()
        else:
            world.engine.outgoing(number)
        world.sleep(chance.choice((0, 0.01, 0.5)))

    def frame(self, world: World, chance: random.Random) -> bytes:
        n = chance.randrange(4)
        bodies: dict[str, object] = {
            "waiting": waiting(ttl_ms=chance.choice((1, 3000, 10**9))),
            "granted": granted(token=chance.choice((17, 17, 17, 18))),
            "check": {"n": n},
            "renewed": {"n": n, "ttl_ms": chance.choice((3000, 10**15))},
            "proclaimed": {"n": n},
            "lost": failure("no_session"),
            "error": failure(chance.choice(("held", "no_leader", "too_soon", "no_session"))),
            "interrupted": failure("no_leader", leader={"id": 1, "client_addr": "\ud800:1"}),
            "released": {},
        }
        kind = chance.choice([*bodies, "waiting", "granted", "check", "renewed"])
        return world.peer.say(kind, bodies[kind])


class Acquires(unittest.TestCase):
    def test_held_lock_is_refused_with_its_holder(self) -> None:
        world = World()
        world.connect()
        world.accept()
        world.say("error", failure("held", holder={"owner": "o", "token": 3}, queue=2))
        error = world.engine.hold.error
        assert isinstance(error, Held)
        self.assertEqual((error.holder_owner, error.holder_token, error.queue), ("o", 3, 2))

    def test_acquire_is_sent_again_if_nothing_answers_it(self) -> None:
        world = World(wait=60)
        world.connect("a")
        world.accept()
        world.sleep(5.1)
        world.connect("b")
        world.accept()
        self.assertEqual(world.heard(), ["acquire"])

    def test_wait_is_resumed_and_goes_on_for_its_rest(self) -> None:
        world = World(wait=60)
        world.connect()
        world.accept()
        world.say("waiting", waiting())
        world.pause(1)
        world.break_connection()
        world.connect("b")
        world.accept()
        (kind, body) = world.peer.frames[0]
        self.assertEqual((kind, body["session"]), ("resume", SESSION))
        self.assertLessEqual(body["wait_ms"], 59_000)
        self.assertGreater(body["wait_ms"], 58_000)

    def test_withdrawal_over_a_silent_connection_is_repeated_at_another_node(self) -> None:
        for ttl in (3, 30, 3600):
            world = World(ttl=ttl, wait=60)
            world.queue(ttl * 1000)
            world.engine.cancel(world.now)
            world.sleep(1.01)
            world.connect("b")
            world.accept()
            self.assertEqual(world.heard(), ["resume", "release"], ttl)
            world.say("released", {})
            self.assertTrue(world.engine.is_finished)

    def test_withdrawal_does_not_wait_for_a_node_that_cannot_be_connected_to(self) -> None:
        world = World(ttl=3600, wait=60)
        world.queue(3_600_000)
        world.break_connection()
        world.sleep(0.1)
        self.assertEqual(world.target.endpoint.host, "b")
        world.engine.cancel(world.now)
        world.sleep(1.01)
        while world.engine.target is None:  # the pause after a round of failures
            world.sleep(0.05)
        world.connect("a")
        world.accept()
        self.assertEqual(world.heard(), ["resume", "release"])

    def test_release_over_a_silent_connection_is_repeated_within_seconds(self) -> None:
        world = World(ttl=3600)
        world.queue(3_600_000)
        world.say("granted", granted(ttl_ms=3_600_000))
        world.engine.release(world.now)
        world.sleep(5.1)
        world.connect("b")
        world.accept()
        world.say("granted", granted(ttl_ms=3_600_000))
        self.assertEqual(world.heard(), ["resume", "release"])

    def test_wait_that_ends_over_a_dead_connection_is_withdrawn_at_another_node(self) -> None:
        world = World(ttl=3600, wait=10)
        world.queue(3_600_000)
        world.sleep(15.01)  # the wait, and the time for the answer
        self.assertIs(world.engine.hold.phase, Phase.RELEASING)
        world.sleep(1.01)
        world.connect("b")
        world.accept()
        self.assertEqual(world.heard(), ["resume", "release"])
        world.say("released", {})
        self.assertIsInstance(world.engine.hold.error, Timeout)

    def test_slow_network_is_no_silent_one(self) -> None:
        world = World()
        world.connect("a")
        world.sleep(1.5)
        world.arrive(http(307, failure("not_leader"), Location="http://c:3/v1/hold"))
        world.connect("c")
        world.sleep(1.5)
        world.accept()
        world.sleep(1.5)
        world.say("waiting", waiting())
        world.say("granted", granted())
        self.assertAlmostEqual(world.engine.hold.remaining(world.now), 2.64 - 1.5)

    def test_nodes_that_speak_garbage_end_as_unreachable(self) -> None:
        world = World()
        while not world.engine.is_finished:
            if world.engine.target is not None:
                world.connect()
                world.arrive(b"SSH-2.0-OpenSSH_9.6\r\n" * 3)
            world.sleep(0.1)
        self.assertIsInstance(world.engine.hold.error, Unreachable)


if __name__ == "__main__":
    unittest.main()
