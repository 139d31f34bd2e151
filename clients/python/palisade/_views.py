"""The server's JSON of locks, records and events, decoded and checked.

What does not have its form raises `Garbage`. Unknown fields and kinds may come from a newer server.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

from . import events
from ._call import Answer
from ._messages import MAX_TOKEN, Garbage, integer, parse, text, texts
from .types import Holder, LockPage, LockView, Record, RecordSummary, Waiter

T = TypeVar("T")
Json = dict[str, object]


def lock_answer(answer: Answer) -> LockView:
    body = parse(answer.body)
    return dataclasses.replace(lock_view(body), age=_age(body))


def page_answer(answer: Answer) -> LockPage:
    body = parse(answer.body)
    locks = _each(body, "locks", lock_view)
    return LockPage(locks, _optional_text(body, "next_after"), _age(body))


def record_answer(key: str, answer: Answer) -> Record:
    names = ("version", "max-fence", "age-ms")
    fields: Json = {name: _digits(answer, f"x-{name}") for name in names}
    return Record(
        key=key,
        value=answer.body,
        version=integer(fields, "version", 1),
        fence=_optional_integer(fields, "max-fence"),
        age=_seconds(_optional_integer(fields, "age-ms")),
    )


def version_answer(answer: Answer) -> int:
    return integer(parse(answer.body), "version", 1)


def lock_view(body: Json) -> LockView:
    return LockView(
        key=text(body, "key"),
        holders=_each(body, "holders", _holder),
        queue=_each(body, "queue", _waiter),
    )


def listing(id: str | None, body: Json) -> events.Listing:
    return events.Listing(
        id=id,
        revision=integer(body, "revision", 0),
        begins=_flag(body, "begins"),
        complete=_flag(body, "complete"),
        locks=_each(body, "locks", lock_view),
        records=_each(body, "records", _summary),
    )


def event(id: str | None, kind: str, body: Json) -> events.Event | None:
    """The event, or None for a kind that this client does not know."""
    decoder = _EVENTS.get(kind)
    if decoder is None:
        return None
    return decoder(body, id, integer(body, "revision", 0), text(body, "key"))


def floor(body: Json) -> int:
    return integer(body, "floor", 0)


def _holder(body: Json) -> Holder:
    return Holder(
        owner=text(body, "owner"),
        session=integer(body, "session", 0),
        token=integer(body, "token", 0),
        expires_in=integer(body, "expires_in_ms", 0) / 1000,
        mode=text(body, "mode"),
        permits=_optional_integer(body, "permits"),
        of=_optional_integer(body, "of"),
        holds=integer(body, "holds", 0),
        keys=_keys(body),
        value=_optional_text(body, "value"),
    )


def _waiter(body: Json) -> Waiter:
    return Waiter(
        owner=text(body, "owner"),
        session=integer(body, "session", 0),
        mode=text(body, "mode"),
        permits=_optional_integer(body, "permits"),
        of=_optional_integer(body, "of"),
        keys=_keys(body),
    )


def _summary(body: Json) -> RecordSummary:
    return RecordSummary(
        key=text(body, "key"),
        version=integer(body, "version", 1),
        fence=_optional_integer(body, "fence"),
        bytes=integer(body, "bytes", 0),
    )


def _granted(body: Json, id: str | None, revision: int, key: str) -> events.Granted:
    return events.Granted(
        id,
        revision,
        key,
        session=integer(body, "session", 0),
        owner=text(body, "owner"),
        token=integer(body, "token", 0),
        mode=text(body, "mode"),
        permits=_optional_integer(body, "permits"),
        of=_optional_integer(body, "of"),
        keys=_keys(body),
        value=_optional_text(body, "value"),
    )


def _queued(body: Json, id: str | None, revision: int, key: str) -> events.Queued:
    return events.Queued(
        id,
        revision,
        key,
        session=integer(body, "session", 0),
        owner=text(body, "owner"),
        mode=text(body, "mode"),
        ahead=integer(body, "ahead", 0),
        permits=_optional_integer(body, "permits"),
        of=_optional_integer(body, "of"),
        keys=_keys(body),
    )


_EVENTS: dict[str, Callable[[Json, str | None, int, str], events.Event]] = {
    "granted": _granted,
    "queued": _queued,
    "value": lambda body, id, revision, key: events.ValueReplaced(
        id, revision, key, _session(body), integer(body, "token", 0), text(body, "value")
    ),
    "released": lambda body, id, revision, key: events.Released(
        id, revision, key, _session(body), integer(body, "token", 0), text(body, "because")
    ),
    "withdrawn": lambda body, id, revision, key: events.Withdrawn(
        id, revision, key, _session(body), text(body, "because")
    ),
    "expired": lambda body, id, revision, key: events.Expired(
        id, revision, key, _session(body), _optional_integer(body, "token")
    ),
    "broken": lambda body, id, revision, key: events.Broken(
        id, revision, key, _session(body), integer(body, "token", 0)
    ),
    "put": lambda body, id, revision, key: events.RecordPut(
        id, revision, key, integer(body, "version", 1), _optional_integer(body, "fence")
    ),
    "deleted": lambda body, id, revision, key: events.RecordDeleted(
        id, revision, key, integer(body, "version", 1)
    ),
}


def _session(body: Json) -> int:
    return integer(body, "session", 0)


def _optional_integer(body: Json, name: str) -> int | None:
    return None if body.get(name) is None else integer(body, name, 0)


def _optional_text(body: Json, name: str) -> str | None:
    return None if body.get(name) is None else text(body, name)


def _keys(body: Json) -> tuple[str, ...]:
    return texts(body.get("keys", []), "keys")


def _flag(body: Json, name: str) -> bool:
    value = body.get(name)
    if not isinstance(value, bool):
        raise Garbage(f"the field `{name}` is no boolean")
    return value


def _each(body: Json, name: str, decode: Callable[[Json], T]) -> tuple[T, ...]:
    items = body.get(name)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise Garbage(f"the field `{name}` is no list of objects")
    return tuple(decode(item) for item in items)


def _age(body: Json) -> float | None:
    return _seconds(_optional_integer(body, "age_ms"))


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _digits(answer: Answer, header: str) -> int | None:
    """The number in a header; None if there is none."""
    value = answer.headers.get(header)
    if value is None or value == "null":
        return None
    if not value.isascii() or not value.isdecimal() or int(value) > MAX_TOKEN:
        raise Garbage(f"the header {header} is no number: {value[:80]!r}")
    return int(value)
