"""The server's frames of the hold protocol, decoded and checked.

What comes from the network may be anything: a frame that does not have the protocol's form raises
`Garbage`, and the connection that it came from is given up. Unknown kinds and unknown fields are
no garbage: a newer server may send them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

MAX_TOKEN = 2**64 - 1


class Garbage(Exception):
    """The peer does not speak the hold protocol."""


@dataclass(frozen=True)
class Waiting:
    """The session is open; the lock may be granted later, or at once."""

    session: str
    ttl_ms: int


@dataclass(frozen=True)
class Granted:
    keys: tuple[str, ...]
    token: int
    session: str
    ttl_ms: int
    signed: str | tuple[str, ...] | None


@dataclass(frozen=True)
class Check:
    n: int


@dataclass(frozen=True)
class Renewed:
    n: int
    ttl_ms: int


@dataclass(frozen=True)
class Proclaimed:
    n: int


@dataclass(frozen=True)
class Failure:
    """The body of an error: a code for programs, a sentence for people."""

    code: str
    message: str
    leader: str | None = None
    holder_owner: str | None = None
    holder_token: int | None = None
    queue: int | None = None
    seen: int | None = None
    got: int | None = None
    version: int | None = None


@dataclass(frozen=True)
class Lost:
    failure: Failure


@dataclass(frozen=True)
class Refusal:
    """`error`. With `n` it answers one `value` frame and is not final."""

    failure: Failure
    n: int | None


@dataclass(frozen=True)
class Interrupted:
    failure: Failure


@dataclass(frozen=True)
class Released:
    pass


Message = Waiting | Granted | Check | Renewed | Proclaimed | Lost | Refusal | Interrupted | Released


def decode(text: str) -> Message | None:
    """The message of a frame, or None for a kind that this client does not know."""
    frame = parse(text)
    if len(frame) != 1:
        raise Garbage(f"a frame has {len(frame)} keys instead of one")
    [(kind, body)] = frame.items()
    decoder = _DECODERS.get(kind)
    if decoder is None:
        return None
    if not isinstance(body, dict):
        raise Garbage(f"the body of `{kind}` is no object")
    return decoder(body)


def decode_failure(text: str | bytes) -> Failure | None:
    """The error in the body of an HTTP answer, or None if the body has another form."""
    try:
        return _failure(parse(text))
    except Garbage:
        return None


def parse(text: str | bytes) -> dict[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Garbage(f"a frame is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise Garbage("a frame is no JSON object")
    return value


def integer(body: dict[str, object], name: str, least: int, most: int = MAX_TOKEN) -> int:
    value = body.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise Garbage(f"the field `{name}` is no integer from {least} to {most}")
    return value


def text(body: dict[str, object], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not _is_unicode(value):
        raise Garbage(f"the field `{name}` is no text")
    return value


def _is_unicode(value: str) -> bool:
    """Whether the text can be sent again: JSON can escape halves of characters."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def texts(value: object, name: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Garbage(f"the field `{name}` is no list of texts")
    return tuple(value)


def _object(body: dict[str, object], name: str) -> dict[str, object]:
    """An optional object; anything else counts as absent, for it only explains an error."""
    value = body.get(name)
    return value if isinstance(value, dict) else {}


def _number(body: dict[str, object], name: str) -> int | None:
    """An optional integer that only explains an error."""
    value = body.get(name)
    return value if isinstance(value, int) else None


def _failure(body: dict[str, object]) -> Failure:
    message = body.get("message")
    holder = _object(body, "holder")
    owner = holder.get("owner")
    leader = _object(body, "leader").get("client_addr")
    return Failure(
        code=text(body, "error"),
        message=message if isinstance(message, str) else "",
        leader=leader if isinstance(leader, str) else None,
        holder_owner=owner if isinstance(owner, str) else None,
        holder_token=_number(holder, "token"),
        queue=_number(body, "queue"),
        seen=_number(body, "seen"),
        got=_number(body, "got"),
        version=_number(body, "version"),
    )


def _granted(body: dict[str, object]) -> Granted:
    keys = texts(body["keys"], "keys") if "keys" in body else (text(body, "key"),)
    signed = body.get("signed")
    return Granted(
        keys=keys,
        token=integer(body, "token", 1),
        session=text(body, "session"),
        ttl_ms=integer(body, "ttl_ms", 1),
        signed=signed if signed is None or isinstance(signed, str) else texts(signed, "signed"),
    )


def _refusal(body: dict[str, object]) -> Refusal:
    return Refusal(_failure(body), integer(body, "n", 0) if "n" in body else None)


_DECODERS: dict[str, Callable[[dict[str, object]], Message]] = {
    "waiting": lambda body: Waiting(text(body, "session"), integer(body, "ttl_ms", 1)),
    "granted": _granted,
    "check": lambda body: Check(integer(body, "n", 0)),
    "renewed": lambda body: Renewed(integer(body, "n", 0), integer(body, "ttl_ms", 1)),
    "proclaimed": lambda body: Proclaimed(integer(body, "n", 0)),
    "lost": lambda body: Lost(_failure(body)),
    "error": _refusal,
    "interrupted": lambda body: Interrupted(_failure(body)),
    "released": lambda body: Released(),
}
