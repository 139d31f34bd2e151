"""The state machine of a hold, in virtual time."""

from __future__ import annotations

import json
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

from palisade import _messages as messages
from palisade._hold import STAY, Hold, Phase, Reconnect, margin
from palisade._messages import Failure, Garbage
from palisade._request import make_request
from palisade.errors import Held, LockLost, PalisadeError, Refused, Timeout, Unreachable

SESSION = "00000000-0000-0001-a3d2-6ffe1fa85f94"


def new_hold(now: float = 100.0, patience: float = 5.0, **options: Any) -> Hold:
    defaults: dict[str, Any] = dict(
        ttl=10, wait=0, owner="w", mode=None, permits=None, of=None, max_queue=None, value=None
    )
    keys = options.pop("keys", "nightly")
    return Hold(make_request(keys, **(defaults | options)), now, patience)


def said(hold: Hold) -> list[tuple[str, Any]]:
    """Takes what the hold wants to send."""
    frames = [next(iter(json.loads(text).items())) for text in hold.outbox]
    hold.outbox.clear()
    return frames


def grant(token: int = 17, session: str = SESSION, ttl_ms: int = 10_000) -> messages.Granted:
    return messages.Granted(("nightly",), token, session, ttl_ms, None)


def held(now: float = 100.0, **options: Any) -> Hold:
    """A hold whose acquire was sent and answered at `now`."""
    hold = new_hold(now, **options)
    hold.opened(now)
    hold.receive(messages.Waiting(SESSION, 10_000), now)
    hold.receive(grant(), now)
    said(hold)
    assert hold.phase is Phase.HELD
    return hold


class Lease(unittest.TestCase):
    def test_lease_counts_from_before_the_acquire_was_sent(self) -> None:
        hold = new_hold(100)
        hold.opened(101)
        hold.receive(messages.Waiting(SESSION, 10_000), 104)
        hold.receive(grant(), 104.5)
        self.assertAlmostEqual(hold.lease_end, 101 + 8.8)
        self.assertTrue(hold.is_valid(109.7))
        self.assertFalse(hold.is_valid(109.8))

    def test_lease_ends_a_margin_early(self) -> None:
        self.assertAlmostEqual(held().remaining(100), 8.8)
        # The reaction time, bounded on both sides, and 2 % of the TTL.
        for ttl, reaction in ((0.1, 0.02), (0.2, 0.02), (1, 0.1), (10, 1), (60, 1), (86_400, 1)):
            self.assertAlmostEqual(margin(ttl), reaction + ttl * 0.02)

    def test_renewal_counts_from_when_the_answer_was_sent(self) -> None:
        hold = held()
        hold.receive(messages.Check(1), 103)
        self.assertEqual(said(hold), [("here", 1)])
        hold.receive(messages.Renewed(1, 10_000), 106)
        self.assertAlmostEqual(hold.lease_end, 103 + 8.8)

    def test_check_alone_renews_nothing(self) -> None:
        hold = held()
        hold.receive(messages.Check(1), 103)
        self.assertAlmostEqual(hold.lease_end, 108.8)

    def test_renewal_of_an_older_check_changes_nothing(self) -> None:
        hold = held()
        for n, now in ((1, 103), (2, 106)):
            hold.receive(messages.Check(n), now)
        hold.receive(messages.Renewed(2, 10_000), 106.5)
        hold.receive(messages.Renewed(1, 10_000), 106.6)
        hold.receive(messages.Renewed(9, 10_000), 106.7)
        self.assertAlmostEqual(hold.lease_end, 106 + 8.8)

    def test_repeated_check_counts_from_its_first_answer(self) -> None:
        hold = held()
        hold.receive(messages.Check(1), 103)
        hold.receive(messages.Check(1), 108)
        hold.receive(messages.Renewed(1, 10_000), 108.1)
        self.assertAlmostEqual(hold.lease_end, 103 + 8.8)

    def test_checks_of_an_earlier_connection_do_not_count(self) -> None:
        hold = held()
        hold.receive(messages.Check(1), 103)
        hold.cut("test")
        hold.opened(104)
        hold.receive(grant(), 104)
        hold.receive(messages.Renewed(1, 10_000), 109)
        self.assertAlmostEqual(hold.lease_end, 104 + 8.8)

    def test_grant_after_a_wait_counts_from_the_newest_renewed_answer(self) -> None:
        hold = new_hold(100, wait=60)
        hold.opened(100)
        hold.receive(messages.Waiting(SESSION, 10_000), 100)
        for n in range(1, 11):
            hold.receive(messages.Check(n), 100 + 3 * n)
            hold.receive(messages.Renewed(n, 10_000), 100 + 3 * n)
        hold.receive(messages.Check(11), 133)
        hold.receive(grant(), 134)
        self.assertAlmostEqual(hold.lease_end, 130 + 8.8)

    def test_server_that_promises_more_than_was_asked_is_not_believed(self) -> None:
        hold = new_hold(100)
        hold.opened(100)
        hold.receive(grant(ttl_ms=10**12), 100)
        self.assertAlmostEqual(hold.lease_end, 108.8)
        hold.receive(messages.Check(1), 103)
        hold.receive(messages.Renewed(1, 10**12), 103)
        self.assertAlmostEqual(hold.lease_end, 103 + 8.8)

    def test_loss_is_told_at_the_end_of_the_lease(self) -> None:
        hold = held()
        self.assertAlmostEqual(hold.wake_at() or 0, 108.8)
        hold.tick(108.79)
        self.assertFalse(hold.lost)
        hold.tick(108.8)
        self.assertTrue(hold.lost)
        self.assertIsInstance(hold.error, LockLost)
        self.assertEqual(said(hold), [], "only the user releases: the work may still go on")

    def test_loss_of_any_kind_frees_nothing(self) -> None:
        """The server may have renewed the lease in the meantime: its answer was on its way."""
        hold = held()
        hold.cut("test")
        hold.opened(108.5)
        self.assertEqual([kind for kind, _ in said(hold)], ["resume"])
        hold.tick(108.8)
        self.assertTrue(hold.lost)
        self.assertEqual(said(hold), [])
        hold = held()
        hold.receive(messages.Lost(Failure("not_holder", "")), 101)
        hold.release(101)
        self.assertEqual(said(hold), [])
        hold = held()
        hold.fail(PalisadeError("a bug", "client_failed"))
        self.assertTrue(hold.lost)
        self.assertEqual(said(hold), [])

    def test_nothing_that_is_read_after_the_end_revives_a_lease(self) -> None:
        for message in (messages.Renewed(1, 10_000), grant()):
            hold = held()
            hold.receive(messages.Check(1), 108.5)
            self.assertTrue(hold.is_lost(110))
            hold.receive(message, 110)
            self.assertTrue(hold.lost)
            self.assertFalse(hold.is_valid(110))

    def test_expiry_that_was_seen_is_final(self) -> None:
        """A thread reads the clock, stops, and applies a renewal after another one saw the end."""
        looks: list[Callable[[Hold], bool]] = [
            lambda hold: not hold.is_valid(110),
            lambda hold: hold.remaining(110) == 0,
            lambda hold: hold.is_lost(110),
        ]
        for look in looks:
            hold = held()
            hold.receive(messages.Check(1), 108.5)
            self.assertTrue(look(hold))
            hold.receive(messages.Renewed(1, 10_000), 108.6)
            self.assertFalse(hold.is_valid(110.1))
            self.assertEqual(hold.remaining(110.1), 0)
            self.assertTrue(hold.is_lost(110.1))
            self.assertTrue(hold.lost)

    def test_expiry_that_is_seen_during_a_renewal_is_final(self) -> None:
        hold = held()
        hold.receive(messages.Check(1), 108.5)
        renew = hold._renew

        def late(n: int, ttl_ms: int) -> None:
            self.assertFalse(hold.is_valid(110))
            renew(n, ttl_ms)

        with mock.patch.object(hold, "_renew", late):
            hold.receive(messages.Renewed(1, 10_000), 108.6)
        self.assertFalse(hold.is_valid(110.1))
        self.assertLessEqual(hold.wake_at() or 0, 110.1, "the loss is told at the next step")
        hold.release(110.2)
        self.assertTrue(hold.lost)

    def late(self, **options: Any) -> Hold:
        """An acquire whose grant is read when its lease has ended, because the process stopped."""
        hold = new_hold(100, **options)
        hold.opened(100)
        hold.receive(messages.Waiting(SESSION, 10_000), 100)
        hold._timeout_at = hold._unreachable_at = 1000
        said(hold)
        self.assertEqual(hold.receive(grant(), 109.9), STAY)
        self.assertIs(hold.phase, Phase.ACQUIRING, "the user never holds it without a lease")
        self.assertFalse(hold.is_valid(109.9) or hold.lost)
        self.assertIsNone(hold.token)
        return hold

    def test_grant_that_arrives_too_late_is_delivered_by_the_next_renewal(self) -> None:
        for wait in (0, 60):
            hold = self.late(wait=wait)
            hold.receive(messages.Check(1), 109.9)
            self.assertEqual(said(hold), [("here", 1)])
            hold.receive(messages.Renewed(1, 10_000), 110.5)
            self.assertIs(hold.phase, Phase.HELD)
            self.assertEqual(hold.token, 17)
            self.assertAlmostEqual(hold.lease_end, 109.9 + 8.8)

    def test_grant_that_arrives_too_late_is_not_delivered_by_a_late_renewal(self) -> None:
        hold = self.late()
        hold.receive(messages.Check(1), 109.9)
        hold.receive(messages.Renewed(1, 10_000), 118.7)
        self.assertIs(hold.phase, Phase.ACQUIRING)

    def test_grant_that_arrives_too_late_is_resumed_with_its_token(self) -> None:
        hold = self.late(wait=60, value="v")
        hold.cut("test")
        hold.opened(110)
        [(kind, body)] = said(hold)
        self.assertEqual((kind, body["session"], body["token"]), ("resume", SESSION, 17))
        hold.receive(grant(), 110.5)
        self.assertIs(hold.phase, Phase.HELD)
        self.assertAlmostEqual(hold.lease_end, 110 + 8.8)

    def test_grant_that_arrives_too_late_is_released_when_the_acquire_ends(self) -> None:
        hold = self.late(wait=60)
        hold.tick(1000)
        self.assertEqual(said(hold), [("release", {})])
        self.assertIsInstance(hold.error, Timeout)
        hold = self.late(wait=60)
        hold.cancel(110)
        self.assertEqual(said(hold), [("release", {})])

    def test_wait_goes_on_after_a_late_grant_whose_session_has_ended(self) -> None:
        hold = self.late(wait=60)
        step = hold.receive(messages.Lost(Failure("no_session", "")), 115)
        self.assertIsInstance(step, Reconnect)
        hold.cut("test")
        hold.opened(116)
        [(kind, body)] = said(hold)
        self.assertEqual((kind, body["wait_ms"]), ("acquire", 44_000))
        self.assertNotIn("token", body)
        hold.receive(grant(token=18, session="another"), 116)
        self.assertEqual((hold.token, hold.phase), (18, Phase.HELD))


class Resume(unittest.TestCase):
    def test_resume_names_session_and_token_and_keeps_the_value(self) -> None:
        hold = held(value="first")
        hold.cut("test")
        hold.opened(102)
        [(kind, body)] = said(hold)
        self.assertEqual(kind, "resume")
        self.assertEqual((body["session"], body["token"]), (SESSION, 17))
        self.assertNotIn("value", body)

    def test_resume_extends_the_lease_only_when_it_is_answered(self) -> None:
        hold = held()
        hold.cut("test")
        hold.opened(102)
        self.assertAlmostEqual(hold.lease_end, 108.8)
        hold.receive(grant(), 103)
        self.assertAlmostEqual(hold.lease_end, 110.8)

    def test_resume_of_a_waiter_has_no_token_and_the_rest_of_its_wait(self) -> None:
        hold = new_hold(100, wait=60, value="v")
        hold.opened(100)
        hold.receive(messages.Waiting(SESSION, 10_000), 100)
        said(hold)
        hold.cut("test")
        hold.opened(105)
        [(kind, body)] = said(hold)
        self.assertEqual((kind, body["wait_ms"], body["value"]), ("resume", 55_000, "v"))
        self.assertNotIn("token", body)

    def test_acquire_is_repeated_if_its_session_is_unknown(self) -> None:
        hold = new_hold(100)
        hold.opened(100)
        hold.cut("test")
        said(hold)
        hold.opened(101)
        self.assertEqual([kind for kind, _ in said(hold)], ["acquire"])

    def test_resume_with_another_token_is_garbage(self) -> None:
        for message in (grant(token=18), grant(session="other")):
            hold = held()
            hold.cut("test")
            hold.opened(102)
            with self.assertRaises(Garbage):
                hold.receive(message, 102)

    def test_grant_of_other_keys_is_garbage(self) -> None:
        hold = new_hold()
        hold.opened(100)
        with self.assertRaises(Garbage):
            hold.receive(messages.Granted(("other",), 1, SESSION, 10_000, None), 100)

    def test_signed_tokens_are_in_the_order_of_the_keys(self) -> None:
        """The server sorts the keys; the user has an order of their own."""
        hold = new_hold(keys=("b", "c", "a"))
        hold.opened(100)
        signed = ("signed a", "signed b", "signed c")
        hold.receive(messages.Granted(("a", "b", "c"), 1, SESSION, 10_000, signed), 100)
        self.assertEqual(hold.signed, ("signed b", "signed c", "signed a"))

    def test_grant_without_a_signed_token_for_each_key_is_garbage(self) -> None:
        hold = new_hold(keys=("b", "a"))
        hold.opened(100)
        with self.assertRaises(Garbage):
            hold.receive(messages.Granted(("a", "b"), 1, SESSION, 10_000, ("signed a",)), 100)
        self.assertIs(hold.phase, Phase.ACQUIRING)

    def test_lost_session_of_a_waiter_is_replaced(self) -> None:
        hold = new_hold(100, wait=60)
        hold.opened(100)
        hold.receive(messages.Waiting(SESSION, 10_000), 100)
        hold.cut("test")
        hold.opened(120)
        step = hold.receive(messages.Refusal(Failure("no_session", ""), None), 120)
        self.assertIsInstance(step, Reconnect)
        said(hold)
        hold.cut("test")
        hold.opened(121)
        self.assertEqual([kind for kind, _ in said(hold)], ["acquire"])

    def test_told_loss_is_a_loss(self) -> None:
        hold = held()
        hold.receive(messages.Lost(Failure("not_holder", "an operator broke it")), 101)
        self.assertTrue(hold.lost)
        assert hold.error is not None
        self.assertEqual(hold.error.code, "not_holder")
        self.assertFalse(hold.is_valid(101))

    def test_held_lock_outlives_refusals_of_a_node(self) -> None:
        codes = ("no_leader", "overloaded", "limit", "too_soon", "denied", "unauthenticated")
        for code in (*codes, "invalid", "not_found", "anything"):
            hold = held()
            hold.cut("test")
            hold.opened(102)
            step = hold.receive(messages.Refusal(Failure(code, ""), None), 102)
            self.assertIsInstance(step, Reconnect, code)
            self.assertTrue(hold.is_valid(102), code)

    def test_held_lock_is_lost_if_its_session_or_grant_has_ended(self) -> None:
        for code in ("no_session", "not_holder", "gone", "withdrawn"):
            hold = held()
            hold.cut("test")
            hold.opened(102)
            hold.receive(messages.Refusal(Failure(code, ""), None), 102)
            self.assertTrue(hold.lost, code)


    def test_waiter_whom_a_node_refuses_asks_others_while_its_session_lives(self) -> None:
        for code in ("denied", "unauthenticated"):
            hold = new_hold(100, wait=60)
            hold.opened(100)
            hold.receive(messages.Waiting(SESSION, 10_000), 100)
            hold.cut("test")
            self.assertIsInstance(hold.refused(Failure(code, ""), 105), Reconnect, code)
            self.assertIs(hold.phase, Phase.ACQUIRING)
            hold.refused(Failure(code, ""), 110)
            self.assertIsInstance(hold.error, Refused, code)

    def test_waiter_whom_the_access_rules_deny_is_refused_at_once(self) -> None:
        """The server opens the session and says `waiting` before it looks at the rules."""
        for code in ("denied", "unauthenticated"):
            hold = new_hold(100, wait=60)
            hold.opened(100)
            hold.receive(messages.Waiting(SESSION, 10_000), 100)
            self.assertEqual(hold.receive(messages.Refusal(Failure(code, ""), None), 101), STAY)
            self.assertIs(hold.phase, Phase.ENDED, code)
            self.assertIsInstance(hold.error, Refused, code)
            assert hold.error is not None
            self.assertEqual(hold.error.code, code)

    def test_withdrawal_that_the_access_rules_deny_is_over(self) -> None:
        hold = new_hold(100, wait=60)
        hold.opened(100)
        hold.receive(messages.Waiting(SESSION, 10_000), 100)
        hold.cancel(101)
        self.assertEqual(hold.receive(messages.Refusal(Failure("denied", ""), None), 101), STAY)
        self.assertIs(hold.phase, Phase.ENDED)

    def test_withdrawal_that_a_node_refuses_is_sent_to_another(self) -> None:
        hold = new_hold(100, wait=60)
        hold.opened(100)
        hold.receive(messages.Waiting(SESSION, 10_000), 100)
        hold.cut("test")
        hold.cancel(101)
        self.assertIsInstance(hold.refused(Failure("denied", ""), 101), Reconnect)
        hold.opened(101.5)
        said(hold)
        hold.receive(messages.Refusal(Failure("timeout", ""), None), 101.6)
        self.assertIs(hold.phase, Phase.ENDED)


class Release(unittest.TestCase):
    def test_released_lock_is_not_valid_before_the_answer(self) -> None:
        hold = held()
        hold.release(101)
        self.assertFalse(hold.is_valid(101))
        self.assertEqual(hold.remaining(101), 0)
        self.assertEqual(said(hold), [("release", {})])
        self.assertIs(hold.phase, Phase.RELEASING)
        hold.receive(messages.Released(), 102)
        self.assertIs(hold.phase, Phase.ENDED)
        self.assertIsNone(hold.error)

    def test_release_without_an_answer_ends_with_the_ttl_and_is_no_loss(self) -> None:
        hold = held()
        hold.release(101)
        hold.cut("test")
        hold.tick(109.9)
        self.assertIs(hold.phase, Phase.RELEASING, "the server may keep the lock until then")
        hold.tick(110)
        self.assertIs(hold.phase, Phase.ENDED)
        self.assertFalse(hold.lost or hold.is_lost(200))
        self.assertIsNone(hold.error)

    def test_repeated_release_that_finds_nothing_was_a_release(self) -> None:
        for code in ("not_holder", "no_session"):
            hold = held()
            hold.release(101)
            hold.cut("the answer is lost")
            hold.opened(102)
            self.assertEqual([kind for kind, _ in said(hold)][-1], "resume")
            hold.receive(messages.Lost(Failure(code, "")), 102)
            self.assertIs(hold.phase, Phase.ENDED)
            self.assertIsNone(hold.error)

    def test_release_is_repeated_after_the_resume(self) -> None:
        hold = held()
        hold.release(101)
        hold.cut("test")
        hold.opened(102)
        said(hold)
        hold.receive(grant(), 102)
        self.assertEqual(said(hold), [("release", {})])

    def test_loss_before_the_first_release_is_no_release(self) -> None:
        hold = held()
        hold.cut("test")
        hold.release(101)
        hold.opened(102)
        hold.receive(messages.Lost(Failure("no_session", "")), 102)
        self.assertIsInstance(hold.error, LockLost)
        self.assertFalse(hold.lost, "no event after a release: the release itself raises")

    def test_release_after_the_lease_is_a_loss(self) -> None:
        hold = held()
        hold.release(110)
        self.assertTrue(hold.lost)

    def test_checks_are_not_answered_during_a_release(self) -> None:
        hold = held()
        hold.release(101)
        said(hold)
        hold.receive(messages.Check(1), 102)
        self.assertEqual(said(hold), [])


class Acquire(unittest.TestCase):
    def test_first_frame_has_the_options(self) -> None:
        hold = new_hold(100, wait=60, permits=2, of=5, max_queue=9, value="v")
        hold.opened(110)
        expected = dict(
            key="nightly", ttl_ms=10_000, wait_ms=50_000, owner="w",
            permits=2, of=5, max_queue=9, value="v",
        )  # fmt: skip
        self.assertEqual(said(hold), [("acquire", expected)])

    def test_refusals_end_the_acquire(self) -> None:
        kinds = {"held": Held, "timeout": Timeout, "denied": Refused, "too_soon": Refused}
        for code, kind in kinds.items():
            hold = new_hold()
            hold.opened(100)
            hold.receive(messages.Refusal(Failure(code, "", queue=3), None), 100)
            self.assertIsInstance(hold.error, kind)
            assert hold.error is not None
            self.assertEqual(hold.error.code, code)

    def test_waiting_acquire_waits_for_disk_space_and_for_its_rate(self) -> None:
        for code in ("no_space", "too_soon"):
            hold = new_hold(100, wait=60)
            hold.opened(100)
            step = hold.receive(messages.Refusal(Failure(code, ""), None), 100)
            self.assertEqual(step.pause if isinstance(step, Reconnect) else None, 1.0)

    def test_transient_refusals_are_retried_without_a_wait(self) -> None:
        hold = new_hold()
        hold.opened(100)
        step = hold.receive(messages.Refusal(Failure("no_leader", ""), None), 100)
        self.assertIsInstance(step, Reconnect)

    def test_acquire_without_a_node_ends_as_unreachable(self) -> None:
        hold = new_hold(100, patience=5)
        hold.cut("connection refused")
        hold.tick(104.9)
        self.assertIsNone(hold.error)
        hold.tick(105)
        self.assertIsInstance(hold.error, Unreachable)
        self.assertIn("connection refused", str(hold.error))

    def test_short_wait_is_not_prolonged_by_unreachable_nodes(self) -> None:
        for wait, limit in ((0.2, 101), (2, 102), (0, 105)):
            hold = new_hold(100, wait=wait, patience=5)
            self.assertAlmostEqual(hold.wake_at() or 0, limit)

    def test_wait_without_an_answer_ends_as_a_timeout(self) -> None:
        hold = new_hold(100, wait=60, patience=5)
        hold.opened(100)
        hold.receive(messages.Waiting(SESSION, 10_000), 100)
        hold.tick(164.9)
        self.assertIsNone(hold.error, "the server's answer may be on its way")
        said(hold)
        hold.tick(165)
        self.assertIsInstance(hold.error, Timeout)
        self.assertEqual(said(hold), [("release", {})])
        hold.receive(messages.Released(), 165.1)
        self.assertIs(hold.phase, Phase.ENDED)

    def test_wait_that_ends_without_a_connection_is_withdrawn_by_a_resume(self) -> None:
        for answer in (messages.Released(), messages.Lost(Failure("no_session", "")), None):
            hold = new_hold(100, wait=60)
            hold.opened(100)
            hold.receive(messages.Waiting(SESSION, 10_000), 100)
            hold.cut("test")
            said(hold)
            hold.tick(160)
            self.assertIs(hold.phase, Phase.RELEASING)
            hold.opened(160.5)
            self.assertEqual([kind for kind, _ in said(hold)], ["resume", "release"])
            if answer is None:
                hold.tick(162)
            else:
                hold.receive(answer, 161)
            self.assertIs(hold.phase, Phase.ENDED)
            self.assertIsInstance(hold.error, Timeout)

    def test_wait_whose_session_has_ended_has_nothing_to_withdraw(self) -> None:
        hold = new_hold(100, wait=60)
        hold.opened(100)
        hold.receive(messages.Waiting(SESSION, 10_000), 100)
        hold.receive(messages.Lost(Failure("no_session", "")), 161)
        self.assertIs(hold.phase, Phase.ENDED)
        self.assertIsInstance(hold.error, Timeout)

    def test_interruption_leads_to_the_leader(self) -> None:
        hold = held()
        failure = Failure("leadership_lost", "", leader="127.0.0.1:7402")
        step = hold.receive(messages.Interrupted(failure), 101)
        self.assertEqual(step.leader if isinstance(step, Reconnect) else None, "127.0.0.1:7402")
        self.assertTrue(hold.is_valid(101))

    def test_cancelled_wait_is_withdrawn(self) -> None:
        hold = new_hold(100, wait=60)
        hold.opened(100)
        hold.receive(messages.Waiting(SESSION, 10_000), 100)
        said(hold)
        hold.cancel(101)
        self.assertEqual(said(hold), [("release", {})])
        hold.receive(grant(), 101)
        self.assertIs(hold.phase, Phase.RELEASING, "a grant that crosses the release is none")
        hold.receive(messages.Released(), 102)
        assert hold.error is not None
        self.assertEqual(hold.error.code, "cancelled")

    def test_cancelled_wait_without_a_connection_is_withdrawn_by_a_resume(self) -> None:
        hold = new_hold(100, wait=60)
        hold.opened(100)
        hold.receive(messages.Waiting(SESSION, 10_000), 100)
        hold.cut("test")
        hold.cancel(101)
        said(hold)
        hold.opened(101.5)
        self.assertEqual([kind for kind, _ in said(hold)], ["resume", "release"])

    def test_cancellation_takes_two_seconds_at_most(self) -> None:
        hold = new_hold(100, wait=60)
        hold.opened(100)
        hold.cancel(101)
        self.assertAlmostEqual(hold.wake_at() or 0, 103)
        hold.tick(103)
        self.assertIs(hold.phase, Phase.ENDED)


class Values(unittest.TestCase):
    def test_values_go_one_by_one_and_again_after_a_resume(self) -> None:
        hold = held()
        first, second = hold.propose("a"), hold.propose("b")
        self.assertEqual(said(hold), [("value", {"n": first, "value": "a"})])
        hold.cut("test")
        hold.opened(101)
        said(hold)
        hold.receive(grant(), 101)
        self.assertEqual(said(hold), [("value", {"n": first, "value": "a"})])
        hold.receive(messages.Proclaimed(first), 101)
        self.assertEqual(said(hold), [("value", {"n": second, "value": "b"})])
        hold.receive(messages.Refusal(Failure("too_large", ""), second), 102)
        self.assertIsNone(hold.answers[first])
        self.assertIsInstance(hold.answers[second], Refused)
        self.assertTrue(hold.is_valid(102), "the refusal of a value is not final")

    def test_value_whose_outcome_is_unknown_is_sent_again_after_a_resume(self) -> None:
        hold = held()
        n = hold.propose("a")
        step = hold.receive(messages.Refusal(Failure("leadership_lost", ""), n), 101)
        self.assertIsInstance(step, Reconnect)
        self.assertNotIn(n, hold.answers)
        hold.cut("test")
        hold.opened(102)
        said(hold)
        hold.receive(grant(), 102)
        self.assertEqual(said(hold), [("value", {"n": n, "value": "a"})])

    def test_value_that_the_server_cannot_read_is_refused_and_the_lock_kept(self) -> None:
        """The server ends the connection of a frame that is too long, and cannot name its value."""
        hold = held()
        first, second = hold.propose("a"), hold.propose("b")
        said(hold)
        step = hold.receive(messages.Refusal(Failure("invalid", "too long"), None), 101)
        self.assertIsInstance(step, Reconnect)
        self.assertIsInstance(hold.answers[first], Refused)
        self.assertNotIn(second, hold.answers, "it was not sent over this connection")
        hold.cut("test")
        hold.opened(102)
        said(hold)
        hold.receive(grant(), 102)
        self.assertEqual(said(hold), [("value", {"n": second, "value": "b"})])
        hold.receive(messages.Proclaimed(second), 102)
        self.assertIsNone(hold.answers[second])
        self.assertTrue(hold.is_valid(102))

    def test_value_that_was_not_sent_is_not_refused(self) -> None:
        hold = held()
        n = hold.propose("a")
        hold.cut("test")
        invalid = Failure("invalid", "")
        self.assertIsInstance(hold.refused(invalid, 101), Reconnect, "the answer to an upgrade")
        hold.opened(102)
        hold.receive(messages.Refusal(invalid, None), 102)
        self.assertNotIn(n, hold.answers)

    def test_value_is_answered_when_the_lock_ends(self) -> None:
        hold = held()
        n = hold.propose("a")
        hold.tick(110)
        self.assertIsInstance(hold.answers[n], LockLost)
        self.assertIsInstance(hold.answers[hold.propose("b")], LockLost)


class Noise(unittest.TestCase):
    def test_messages_out_of_place_change_nothing(self) -> None:
        hold = held()
        for message in (messages.Proclaimed(7), messages.Renewed(7, 10_000)):
            self.assertEqual(hold.receive(message, 101), STAY)
        with self.assertRaises(Garbage):
            hold.receive(messages.Released(), 101)
        with self.assertRaises(Garbage):
            hold.receive(messages.Waiting("another", 10_000), 101)
        self.assertTrue(hold.is_valid(101))
        self.assertAlmostEqual(hold.lease_end, 108.8)

    def test_unanswered_checks_are_bounded(self) -> None:
        hold = held()
        for n in range(10_000):
            hold.receive(messages.Check(n), 101)
        self.assertLessEqual(len(hold._here), 64)


if __name__ == "__main__":
    unittest.main()
