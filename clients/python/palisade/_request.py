"""What a lock asks for: the options of an acquire, checked before anything is sent.

The server checks them, too. A wrong option is a mistake in the program, so it raises `ValueError`
where it was written and not when the cluster answers.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

# Bounds of docs/api.md, "Values".
MAX_KEYS = 32
MAX_KEY_BYTES = 512
MAX_KEYS_BYTES = 2048
MAX_OWNER_BYTES = 256
MAX_VALUE_BYTES = 4096
MIN_TTL_MS = 100
MAX_MS = 86_400_000


def default_owner() -> str:
    """The name that operators see: the host and the process."""
    host = socket.gethostname().encode()[: MAX_OWNER_BYTES - 12].decode(errors="ignore")
    return f"{host}:{os.getpid()}"


@dataclass(frozen=True)
class Request:
    """The options of one acquire, in the protocol's units."""

    keys: tuple[str, ...]
    ttl_ms: int
    wait_ms: int
    owner: str
    mode: str | None = None
    permits: int | None = None
    of: int | None = None
    max_queue: int | None = None
    value: str | None = None

    @property
    def wait(self) -> float:
        return self.wait_ms / 1000

    @property
    def name(self) -> str:
        """The lock's name in messages."""
        return ", ".join(repr(key) for key in self.keys)

    def options(self, wait_ms: int, *, with_value: bool = True) -> dict[str, object]:
        """The fields that `acquire` and `resume` have in common."""
        fields: dict[str, object]
        fields = {"key": self.keys[0]} if len(self.keys) == 1 else {"keys": list(self.keys)}
        fields |= {"ttl_ms": self.ttl_ms, "wait_ms": wait_ms, "owner": self.owner}
        optional = {
            "mode": self.mode,
            "permits": self.permits,
            "of": self.of,
            "max_queue": self.max_queue,
            "value": self.value if with_value else None,
        }
        return fields | {name: value for name, value in optional.items() if value is not None}


def make_request(
    keys: str | Sequence[str],
    *,
    ttl: float,
    wait: float,
    owner: str | None,
    mode: str | None,
    permits: int | None,
    of: int | None,
    max_queue: int | None,
    value: str | None,
) -> Request:
    """Checks the options of `Client.lock`. Raises `ValueError` for those that no server accepts."""
    names = (keys,) if isinstance(keys, str) else tuple(keys)
    _check_keys(names)
    if mode not in (None, "exclusive", "shared"):
        raise ValueError(f"mode is {mode!r}; it must be 'exclusive' or 'shared'")
    if (permits is None) != (of is None):
        raise ValueError("permits and of belong together: permits=2, of=5 takes 2 of 5 permits")
    if permits is not None and of is not None:
        if mode is not None:
            raise ValueError("a semaphore (permits, of) has no mode")
        if not 1 <= permits <= of <= 1_000_000:
            raise ValueError(f"permits={permits}, of={of}; need 1 <= permits <= of <= 1000000")
    if max_queue is not None and max_queue < 0:
        raise ValueError(f"max_queue is {max_queue}; it must be at least 0")
    if value is not None:
        check_value(value)
    owner = default_owner() if owner is None else owner
    if len(owner.encode()) > MAX_OWNER_BYTES:
        raise ValueError(f"the owner's name is longer than {MAX_OWNER_BYTES} bytes")
    ttl_ms, wait_ms = _milliseconds("ttl", ttl, MIN_TTL_MS), _milliseconds("wait", wait, 0)
    return Request(names, ttl_ms, wait_ms, owner, mode, permits, of, max_queue, value)


def check_value(value: str) -> None:
    """Raises `ValueError` if the value of a grant is too long."""
    if len(value.encode()) > MAX_VALUE_BYTES:
        raise ValueError(f"the value is longer than {MAX_VALUE_BYTES} bytes")


def check_key(key: str) -> None:
    """Raises `ValueError` for a key of no lock and no record."""
    if not 1 <= len(key.encode()) <= MAX_KEY_BYTES:
        raise ValueError(f"the key {key!r} has not 1 to {MAX_KEY_BYTES} bytes")


def _check_keys(keys: tuple[str, ...]) -> None:
    if not 1 <= len(keys) <= MAX_KEYS:
        raise ValueError(f"{len(keys)} keys; a lock has 1 to {MAX_KEYS}")
    if len(set(keys)) != len(keys):
        raise ValueError("a key is named twice")
    for key in keys:
        check_key(key)
    if len(keys) > 1 and sum(len(key.encode()) for key in keys) > MAX_KEYS_BYTES:
        raise ValueError(f"the keys are longer than {MAX_KEYS_BYTES} bytes together")


def _milliseconds(name: str, seconds: float, least: int) -> int:
    ms = round(seconds * 1000)
    if not least <= ms <= MAX_MS:
        raise ValueError(f"{name} is {seconds} s; it must be {least / 1000} to {MAX_MS // 1000} s")
    return ms
