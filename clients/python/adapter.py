#!/usr/bin/env python3
"""Runs locks of this client on commands from standard input, for the tests that all clients pass.

    adapter.py --endpoints HOST:PORT,… [--asyncio]
        [--ca FILE [--cert FILE --cert-key FILE | --token TEXT]]

It reads one JSON object a line and writes one a line: answers with the command's `id`, and the
event `lost`. Commands run concurrently. It ends at `quit` or at the end of the input, and releases
nothing. It uses the public interface of the package only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).resolve().parent))

import palisade
import palisade.aio

Command = dict[str, Any]
OPTIONS = ("owner", "mode", "permits", "of", "max_queue", "value")


def lock_options(command: Command) -> dict[str, Any]:
    """The arguments of `Client.lock` for an `acquire`."""
    options: dict[str, Any] = {name: command[name] for name in OPTIONS if name in command}
    options["keys"] = command["keys"] if "keys" in command else command["key"]
    options["ttl"] = command.get("ttl_ms", 30_000) / 1000
    options["wait"] = command.get("wait_ms", 0) / 1000
    return options


def now_us() -> int:
    return time.time_ns() // 1000


class Output:
    """Writes whole lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._mutex = threading.Lock()

    def write(self, line: dict[str, Any]) -> None:
        with self._mutex:
            self._stream.write(json.dumps(line) + "\n")
            self._stream.flush()

    def done(self, command: Command, **result: Any) -> None:
        timed = command["do"] in ("acquire", "release")
        at = {"at_us": now_us()} if timed else {}
        self.write({"id": command["id"], "ok": result, **at})

    def failed(self, command: Command, error: Exception) -> None:
        code = error.code if isinstance(error, palisade.PalisadeError) else "invalid"
        if command["do"] == "release" and isinstance(error, palisade.LockLost):
            code = "lost"
        answer = {"id": command["id"], "error": code, "message": str(error)}
        self.write(answer | {"at_us": now_us()})

    def lost(self, name: str) -> Callable[[palisade.LockLost], None]:
        """The callback of the lock with this name."""

        def tell(error: palisade.LockLost) -> None:
            self.write({"event": "lost", "name": name, "error": error.code, "at_us": now_us()})

        return tell


def state(lock: palisade.Lock | palisade.aio.Lock) -> dict[str, Any]:
    """What the lock says about itself, without a round trip."""
    valid, remaining = lock.is_valid, lock.remaining
    token: int | None = None
    with contextlib.suppress(RuntimeError):
        token = lock.token
    return {"valid": valid, "token": token, "remaining_ms": int(remaining * 1000)}


class BlockingAdapter:
    """Runs each command in a thread of its own."""

    def __init__(self, client: palisade.Client, output: Output) -> None:
        self._client = client
        self._output = output
        self._locks: dict[str, palisade.Lock] = {}

    def run(self) -> None:
        for line in sys.stdin:
            command = json.loads(line)
            if command["do"] == "quit":
                return
            if command["do"] == "acquire" and not self._prepare(command):
                continue
            threading.Thread(target=self._execute, args=(command,), daemon=True).start()

    def _prepare(self, command: Command) -> bool:
        """Makes the lock before the next command is read: that one may name it."""
        name = command["name"]
        try:
            told = self._output.lost(name)
            self._locks[name] = self._client.lock(**lock_options(command), on_lost=told)
        except (ValueError, TypeError) as error:
            self._output.failed(command, error)
            return False
        return True

    def _execute(self, command: Command) -> None:
        try:
            lock = self._locks[command["name"]]
            match command["do"]:
                case "acquire":
                    lock.acquire()
                    self._output.done(command, token=lock.token)
                case "state":
                    self._output.done(command, **state(lock))
                case "release":
                    lock.release()
                    self._output.done(command)
                case "cancel":
                    lock.cancel()
                    self._output.done(command)
                case "value":
                    lock.set_value(command["value"])
                    self._output.done(command)
                case unknown:
                    raise ValueError(f"unknown command {unknown!r}")
        except Exception as error:
            self._output.failed(command, error)


class AsyncioAdapter:
    """Runs each command in a task of its own."""

    def __init__(self, client: palisade.aio.Client, output: Output) -> None:
        self._client = client
        self._output = output
        self._locks: dict[str, palisade.aio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        lines: asyncio.Queue[str] = asyncio.Queue()

        def read() -> None:
            for line in sys.stdin:
                loop.call_soon_threadsafe(lines.put_nowait, line)
            loop.call_soon_threadsafe(lines.put_nowait, "")

        threading.Thread(target=read, daemon=True).start()
        while line := await lines.get():
            command = json.loads(line)
            if command["do"] == "quit":
                return
            if command["do"] == "acquire" and not self._prepare(command):
                continue
            task = loop.create_task(self._execute(command))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _prepare(self, command: Command) -> bool:
        name = command["name"]
        try:
            told = self._output.lost(name)
            self._locks[name] = self._client.lock(**lock_options(command), on_lost=told)
        except (ValueError, TypeError) as error:
            self._output.failed(command, error)
            return False
        return True

    async def _execute(self, command: Command) -> None:
        try:
            lock = self._locks[command["name"]]
            match command["do"]:
                case "acquire":
                    await lock.acquire()
                    self._output.done(command, token=lock.token)
                case "state":
                    self._output.done(command, **state(lock))
                case "release":
                    await lock.release()
                    self._output.done(command)
                case "cancel":
                    lock.cancel()
                    self._output.done(command)
                case "value":
                    await lock.set_value(command["value"])
                    self._output.done(command)
                case unknown:
                    raise ValueError(f"unknown command {unknown!r}")
        except Exception as error:
            self._output.failed(command, error)


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs locks on commands from standard input.")
    parser.add_argument("--endpoints", required=True, help="HOST:PORT,HOST:PORT")
    parser.add_argument("--ca", help="file with the CA's certificate: use TLS")
    parser.add_argument("--cert", help="file with the client's certificate")
    parser.add_argument("--cert-key", dest="key", help="file with the key of the client's certificate")
    parser.add_argument("--token", help="bearer token")
    parser.add_argument("--asyncio", action="store_true", help="use palisade.aio")
    options = parser.parse_args()
    security = {name: getattr(options, name) for name in ("ca", "cert", "key", "token")}
    output = Output(sys.stdout)
    if options.asyncio:
        client = palisade.aio.Client(options.endpoints, **security)
        asyncio_adapter = AsyncioAdapter(client, output)
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_run_and_exit(asyncio_adapter))
    else:
        BlockingAdapter(palisade.Client(options.endpoints, **security), output).run()
        _exit()


async def _run_and_exit(adapter: AsyncioAdapter) -> None:
    await adapter.run()
    _exit()


def _exit() -> None:
    """Ends the process as a crash does: nothing is released, no connection closed properly."""
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
