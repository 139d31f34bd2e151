"""The requests of both faces: what is sent, and what the answers come to.

A request is a generator: it yields calls, which its face drives to their ends.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from . import _clock
from . import _views as views
from ._base import BaseClient, BaseLock
from ._call import Answer, Call
from ._http import HttpRequest
from ._request import check_key
from ._watch import ID, WatchLink
from .errors import PalisadeError, Refused, StaleToken, UnknownOutcome
from .types import (
    Append,
    Change,
    Condition,
    Delete,
    IfHeld,
    IfVersion,
    LockPage,
    LockView,
    Put,
    Record,
)

T = TypeVar("T")
Steps = Generator[Call[Any], None, T]

# The longest transaction that a node reads, in bytes of its JSON.
MAX_TRANSACTION = 256 * 1024


def show(client: BaseClient, key: str, stale: bool) -> Steps[LockView]:
    check_key(key)
    path = _path(f"/v1/locks/{quote(key, safe='')}", stale)
    return _read(client, f"the read of the lock {key!r}", path, views.lock_answer)


def list_locks(
    client: BaseClient, prefix: str, limit: int | None, after: str | None, stale: bool
) -> Steps[LockPage]:
    path = _path("/v1/locks", stale, prefix=prefix, limit=limit, after=after)
    return _read(client, f"the list of the locks {prefix!r}", path, views.page_answer)


def get(client: BaseClient, key: str, stale: bool) -> Steps[Record]:
    check_key(key)
    decode = functools.partial(views.record_answer, key)
    path = _path(f"/v1/kv/{quote(key, safe='')}", stale)
    return _read(client, f"the read of the record {key!r}", path, decode)


def write(
    client: BaseClient, change: Change, lock: BaseLock | None, if_version: int | None
) -> Steps[int]:
    """Writes one record, and looks at it if the outcome would be unknown otherwise."""
    conditions = [] if if_version is None else [IfVersion(change.key, if_version)]
    what = f"the write of the record {change.key!r}"
    call = _transaction(client, what, [change], conditions, lock)
    return _write(client, call, change, lock.token if lock is not None else None, if_version)


def _write(
    client: BaseClient,
    call: Call[int],
    change: Change,
    token: int | None,
    if_version: int | None,
) -> Steps[int]:
    yield call
    try:
        return call.value()
    except UnknownOutcome as unknown:
        if unknown.refusal is None or not if_version:
            raise
        # A repetition was refused: the record has left the version, which never comes back, perhaps
        # by the first attempt; or another condition is not met.
        try:
            found = yield from get(client, change.key, False)
        except PalisadeError:
            raise unknown from None
        if found.version == if_version and isinstance(unknown.refusal, StaleToken):
            # No attempt has written, and none will: a token that has ended is never good again.
            raise unknown.refusal from None
        is_ours = token is not None and found.fence == token and found.version != if_version
        if is_ours and isinstance(change, Put) and found.value == _bytes(change.value):
            return found.version
        raise


def transact(
    client: BaseClient,
    changes: Sequence[Change],
    conditions: Sequence[Condition],
    lock: BaseLock | None,
) -> Steps[int]:
    return _value_of(_transaction(client, "the transaction", changes, conditions, lock))


def watch(client: BaseClient, key: str | None, prefix: str | None, after: str | None) -> WatchLink:
    if (key is None) == (prefix is None):
        raise ValueError("a watch needs a key or a prefix, and not both")
    if after is not None and not ID.fullmatch(after):
        raise ValueError(f"after is {after!r}; it must be the ID of an event, such as '47.1'")
    if key is not None:
        check_key(key)
    what = {"key": key} if key is not None else {"prefix": prefix or ""}
    directory, security = client._directory, client._security
    return WatchLink(what, after, directory, security, _clock.now(), client._patience)


def can_write_once_only(changes: Sequence[Change], conditions: Sequence[Condition]) -> bool:
    """Whether the transaction is done once, however often nodes execute it.

    It is if it replaces a version that it demands: versions never come back. Version 0 does come
    back, when the record is deleted, and so does a condition on a record that is not changed.
    """
    changed = {change.key for change in changes}
    return any(
        isinstance(condition, IfVersion) and condition.version > 0 and condition.key in changed
        for condition in conditions
    )


def _transaction(
    client: BaseClient,
    what: str,
    changes: Sequence[Change],
    conditions: Sequence[Condition],
    lock: BaseLock | None,
) -> Call[int]:
    if not changes:
        raise ValueError("a transaction changes at least one record")
    for change in changes:
        check_key(change.key)
    # The grant is the first condition: a former holder learns that it is one, and no version.
    held = [] if lock is None else [IfHeld(lock.keys[0], lock.token)]
    conditions = [*held, *conditions]
    body = {"conditions": list(map(_condition, conditions)), "changes": list(map(_change, changes))}
    text = json.dumps(body).encode()
    if len(text) > MAX_TRANSACTION:
        # A node refuses it before it has read all: its answer could be lost with the connection.
        told = f"{what} has {len(text)} bytes as JSON; a node reads at most {MAX_TRANSACTION}"
        raise Refused(told, "too_large")
    return _call(
        client,
        what,
        HttpRequest("POST", "/v1/kv", text),
        views.version_answer,
        writes=True,
        may_repeat=can_write_once_only(changes, conditions),
    )


def _change(change: Change) -> dict[str, object]:
    match change:
        case Put(key, value):
            return {"put": {"key": key, "value": _content(value)}}
        case Append(key, value):
            return {"append": {"key": key, "value": _content(value)}}
        case Delete(key):
            return {"delete": {"key": key}}


def _condition(condition: Condition) -> dict[str, object]:
    match condition:
        case IfHeld(lock, token):
            return {"held": {"lock": lock, "token": token}}
        case IfVersion(key, version):
            if version < 0:
                raise ValueError(f"the version of {key!r} is {version}; it must be at least 0")
            return {"version": {"key": key, "version": version}}


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _content(value: str | bytes) -> dict[str, str]:
    # As text in JSON, some contents would be longer than a request may be.
    return {"base64": base64.b64encode(_bytes(value)).decode()}


def _path(path: str, stale: bool, **query: str | int | None) -> str:
    wanted = {name: value for name, value in query.items() if value is not None}
    if stale:
        wanted["consistency"] = "stale"
    return f"{path}?{urlencode(wanted)}" if wanted else path


def _read(client: BaseClient, what: str, path: str, decode: Callable[[Answer], T]) -> Steps[T]:
    return _value_of(_call(client, what, HttpRequest("GET", path), decode))


def _value_of(call: Call[T]) -> Steps[T]:
    yield call
    return call.value()


def _call(
    client: BaseClient,
    what: str,
    request: HttpRequest,
    decode: Callable[[Answer], T],
    *,
    writes: bool = False,
    may_repeat: bool = True,
) -> Call[T]:
    return Call(
        what,
        request,
        decode,
        client._directory,
        client._security,
        _clock.now(),
        client._patience,
        writes=writes,
        may_repeat=may_repeat,
    )
