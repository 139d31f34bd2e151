"""What both faces of the client have in common: options of a client, and what a lock shows."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence

from . import _clock
from ._engine import Engine
from ._hold import Phase
from ._request import Request, make_request
from ._route import Directory, parse_endpoints
from ._wire import Security
from .errors import LockLost

FENCE_HEADER = "X-Fence-Token"


class BaseClient:
    """The nodes of a cluster, and how to talk to them. Holds no connection."""

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        ca: str | os.PathLike[str] | None = None,
        cert: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        token: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        owner: str | None = None,
        timeout: float = 5.0,
    ) -> None:
        """Checks the options; connects to nothing.

        - `endpoints`: `"10.0.0.7:7401,10.0.0.8:7401"`, or a list. In a text, commas or spaces stand
          between the endpoints. A bare port takes the host before it, and an endpoint may be a URL.
          Any node will do; more of them let the client go on when one is down.
        - `ca`: a file with the CA's certificate. With it, all connections use TLS.
        - `cert`, `key`: files with the client's certificate and its key.
        - `token`: a bearer token, in place of a certificate. It needs TLS.
        - `ssl_context`: in place of `ca`, `cert` and `key`.
        - `owner`: the name that operators see; the default is `host:pid`.
        - `timeout`: how many seconds an acquire that does not wait (`wait=0`), a read, a write or
          the beginning of a watch looks for a node that serves it. It is also the time that a node
          has to answer at the end of a wait. A write that has to look at the record afterwards
          may take twice as long.
        """
        nodes, demands_tls = parse_endpoints(endpoints)
        context = ssl_context or _context(ca, cert, key)
        if demands_tls and context is None:
            context = ssl.create_default_context()
        if token is not None and context is None:
            raise ValueError("a bearer token is sent over TLS only: name the CA's file (ca=…)")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ValueError("the bearer token has characters that no token has")
        if timeout <= 0:
            raise ValueError(f"timeout is {timeout} s; it must be greater than 0")
        self._directory = Directory(nodes)
        self._security = Security(context, token)
        self._owner = owner
        self._patience = timeout

    def __repr__(self) -> str:
        nodes = ",".join(str(endpoint) for endpoint in self._directory.endpoints)
        return f"<{type(self).__module__}.{type(self).__name__} of {nodes}>"

    def _request(
        self,
        keys: str | Sequence[str],
        ttl: float,
        wait: float,
        owner: str | None,
        mode: str | None,
        permits: int | None,
        of: int | None,
        max_queue: int | None,
        value: str | None,
    ) -> Request:
        return make_request(
            keys,
            ttl=ttl,
            wait=wait,
            owner=owner if owner is not None else self._owner,
            mode=mode,
            permits=permits,
            of=of,
            max_queue=max_queue,
            value=value,
        )

    def _engine(self, request: Request) -> Engine:
        return Engine(request, self._directory, self._security, _clock.now(), self._patience)


def _context(
    ca: str | os.PathLike[str] | None,
    cert: str | os.PathLike[str] | None,
    key: str | os.PathLike[str] | None,
) -> ssl.SSLContext | None:
    if ca is None:
        if cert is not None or key is not None:
            raise ValueError("a client certificate needs the CA's file, too (ca=…)")
        return None
    context = ssl.create_default_context(cafile=os.fspath(ca))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if cert is not None:
        context.load_cert_chain(cert, key)
    elif key is not None:
        raise ValueError("a key needs its certificate, too (cert=…)")
    return context


class BaseLock:
    """What a lock shows. All of it is true at the moment of the call, without a round trip."""

    def __init__(self, request: Request) -> None:
        self._request = request
        # The engine of the last acquire.
        self._engine: Engine | None = None
        self._process = 0

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that the lock is on."""
        return self._request.keys

    @property
    def ttl(self) -> float:
        """Seconds after which the server frees the lock of a client that has died."""
        return self._request.ttl_ms / 1000

    @property
    def token(self) -> int:
        """The fencing token of the grant; also after the lock has ended.

        Raises `RuntimeError` before the lock is acquired.
        """
        token = self._engine.hold.token if self._engine else None
        if token is None:
            raise RuntimeError(f"the lock {self._request.name} has not been acquired")
        return token

    @property
    def signed(self) -> str | tuple[str, ...] | None:
        """The signed token; for several keys, one for each in the order of `keys`.

        None if the nodes do not sign.
        """
        return self._engine.hold.signed if self._engine else None

    @property
    def is_valid(self) -> bool:
        """Whether the lock is held now. A look at the clock: exact also after a pause."""
        return self._mine is not None and self._mine.hold.is_valid(_clock.now())

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends, if it is not renewed; 0 if the lock is not held."""
        return self._mine.hold.remaining(_clock.now()) if self._mine else 0.0

    def check(self) -> None:
        """Raises `LockLost` unless the lock is held now. Call it between the steps of a job."""
        if not self.is_valid:
            raise self._loss()

    def headers(self) -> dict[str, str]:
        """`{"X-Fence-Token": "17"}`, for a request to a resource that checks tokens.

        Raises `LockLost` if the lock is not held now.
        """
        self.check()
        return {FENCE_HEADER: str(self.token)}

    def __repr__(self) -> str:
        phase = self._engine.hold.phase.value if self._engine else "not acquired"
        token = self._engine.hold.token if self._engine else None
        about = f", token {token}" if token is not None else ""
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return f"<{kind} on {self._request.name}: {phase}{about}>"

    def _begin(self, engine: Engine) -> None:
        self._engine = engine
        self._process = os.getpid()

    @property
    def _mine(self) -> Engine | None:
        """The engine, in the process that acquired the lock. A fork of it holds nothing."""
        return self._engine if self._process == os.getpid() else None

    @property
    def _is_in_use(self) -> bool:
        return self._mine is not None and self._mine.hold.phase is not Phase.ENDED

    def _loss(self) -> LockLost:
        """Why the lock is not held now."""
        hold = self._mine.hold if self._mine else None
        if hold is not None and isinstance(hold.error, LockLost):
            return hold.error
        name = self._request.name
        if hold is not None and hold.is_lost(_clock.now()):
            return LockLost(f"the lock {name} is lost: its lease has ended", "expired")
        return LockLost(f"the lock {name} is not held by this process", "not_holder")
