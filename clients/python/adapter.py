#!/usr/bin/env python3
"""Runs this client on commands from standard input, for the tests that all clients pass.

    adapter.py --endpoints HOST:PORT,… [--asyncio]
        [--ca FILE [--cert FILE --cert-key FILE | --token TEXT]]

It reads one JSON object a line and writes one a line: answers with the command's `id`, and the
events `lost` and those of watches. Commands run concurrently. It ends at `quit` or at the end of
the input, and releases nothing. It uses the public interface of the package only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).resolve().parent))

import palisade
import palisade.aio
from palisade import events

Command = dict[str, Any]
AnyLock = palisade.Lock | palisade.aio.Lock
LOCK_COMMANDS = ("acquire", "state", "release", "cancel", "value")
OPTIONS = ("owner", "mode", "permits", "of", "max_queue", "value")
# The server's names of events.
CHANGES: dict[type[events.Event], str] = {
    events.Granted: "granted",
    events.Queued: "queued",
    events.ValueReplaced: "value",
    events.Released: "released",
    events.Withdrawn: "withdrawn",
    events.Expired: "expired",
    events.Broken: "broken",
    events.RecordPut: "put",
    events.RecordDeleted: "deleted",
}


def lock_options(command: Command) -> dict[str, Any]:
    """The arguments of `Client.lock` for an `acquire`."""
    options: dict[str, Any] = {name: command[name] for name in OPTIONS if name in command}
    options["keys"] = command["keys"] if "keys" in command else command["key"]
    options["ttl"] = command.get("ttl_ms", 30_000) / 1000
    options["wait"] = command.get("wait_ms", 0) / 1000
    return options


def write_options(command: Command, locks: Mapping[str, AnyLock]) -> dict[str, Any]:
    """The conditions of a write."""
    lock = locks[command["under"]] if "under" in command else None
    return {"lock": lock, "if_version": command.get("if_version")}


def changes(command: Command) -> list[palisade.Put | palisade.Append | palisade.Delete]:
    kinds: dict[str, Any]
    kinds = {"put": palisade.Put, "append": palisade.Append, "delete": palisade.Delete}
    return [kinds[kind](**fields) for it in command["changes"] for kind, fields in it.items()]


def conditions(command: Command) -> list[palisade.IfHeld | palisade.IfVersion]:
    kinds: dict[str, Any] = {"held": palisade.IfHeld, "version": palisade.IfVersion}
    return [kinds[kind](**fields) for it in command["conditions"] for kind, fields in it.items()]


def shown(lock: palisade.LockView) -> dict[str, Any]:
    return dataclasses.asdict(lock) | {"held": lock.is_held}


def read(record: palisade.Record) -> dict[str, Any]:
    return {"value": record.text, "version": record.version, "fence": record.fence}


def told(event: events.Event | events.Listing) -> dict[str, Any]:
    """An event of a watch."""
    if isinstance(event, events.Listing):
        keys = {name: [it.key for it in getattr(event, name)] for name in ("locks", "records")}
        return {"event": "listed", **keys, "revision": event.revision, "complete": event.complete}
    fields = {name: it for name, it in dataclasses.asdict(event).items() if it is not None}
    return {"event": "changed", "change": CHANGES[type(event)], **fields}


def untold(error: palisade.PalisadeError) -> dict[str, Any]:
    """An error of a watch."""
    if isinstance(error, palisade.Compacted):
        return {"event": "compacted", "floor": error.floor}
    return {"event": "unwatched", "error": error.code, "message": str(error)}


def watch_options(command: Command) -> dict[str, Any]:
    return {name: command[name] for name in ("key", "prefix", "after") if name in command}


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
        answer = {"id": command["id"], "error": code, "message": str(error), "at_us": now_us()}
        details = {name: getattr(error, name, None) for name in ("seen", "got", "version")}
        self.write(answer | {name: it for name, it in details.items() if it is not None})

    def lost(self, name: str) -> Callable[[palisade.LockLost], None]:
        """The callback of the lock with this name."""

        def tell(error: palisade.LockLost) -> None:
            self.write({"event": "lost", "name": name, "error": error.code, "at_us": now_us()})

        return tell


def state(lock: AnyLock) -> dict[str, Any]:
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
        self._watches: dict[str, palisade.Watch] = {}
        self._telling = threading.Lock()

    def run(self) -> None:
        for line in sys.stdin:
            command = json.loads(line)
            if command["do"] == "quit":
                return
            if command["do"] in ("acquire", "watch") and not self._prepare(command):
                continue
            threading.Thread(target=self._execute, args=(command,), daemon=True).start()

    def _prepare(self, command: Command) -> bool:
        """Makes the lock or the watch before the next command is read: that one may name it."""
        name = command["name"]
        try:
            if command["do"] == "watch":
                self._watches[name] = self._client.watch(**watch_options(command))
                return True
            on_lost = self._output.lost(name)
            self._locks[name] = self._client.lock(**lock_options(command), on_lost=on_lost)
        except (ValueError, TypeError) as error:
            self._output.failed(command, error)
            return False
        return True

    def _execute(self, command: Command) -> None:
        try:
            if command["do"] in LOCK_COMMANDS:
                self._execute_with_lock(command, self._locks[command["name"]])
                return
            client, output, locks = self._client, self._output, self._locks
            match command["do"]:
                case "put" | "append" as do:
                    write = client.records.put if do == "put" else client.records.append
                    options = write_options(command, locks)
                    version = write(command["key"], command["value"], **options)
                    output.done(command, version=version)
                case "delete":
                    options = write_options(command, locks)
                    output.done(command, version=client.records.delete(command["key"], **options))
                case "transact":
                    version = client.records.transact(changes(command), conditions(command))
                    output.done(command, version=version)
                case "get":
                    output.done(command, **read(client.records.get(command["key"])))
                case "show":
                    output.done(command, **shown(client.show(command["key"])))
                case "list":
                    output.done(command, locks=list(map(shown, self._list(command))))
                case "watch":
                    self._follow(command)
                case "unwatch":
                    with self._telling:
                        watch = self._watches.pop(command["name"])
                    watch.close()
                    output.done(command)
                case unknown:
                    raise ValueError(f"unknown command {unknown!r}")
        except Exception as error:
            self._output.failed(command, error)

    def _list(self, command: Command) -> list[palisade.LockView]:
        """All locks with the prefix, page by page."""
        locks: list[palisade.LockView] = []
        after: str | None = None
        while True:
            limit = command.get("limit")
            page = self._client.list(command["prefix"], limit=limit, after=after)
            locks += page.locks
            after = page.next_after
            if after is None:
                return locks

    def _follow(self, command: Command) -> None:
        """Tells what the watch tells, until it is ended."""
        name = command["name"]
        watch = self._watches[name]
        self._output.done(command)
        while True:
            try:
                for event in watch:
                    self._tell(name, told(event))
                return
            except palisade.PalisadeError as error:
                self._tell(name, untold(error))

    def _tell(self, name: str, event: dict[str, Any]) -> None:
        """Tells nothing after `unwatch`."""
        with self._telling:
            if name in self._watches:
                self._output.write(event | {"name": name})

    def _execute_with_lock(self, command: Command, lock: palisade.Lock) -> None:
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


class AsyncioAdapter:
    """Runs each command in a task of its own."""

    def __init__(self, client: palisade.aio.Client, output: Output) -> None:
        self._client = client
        self._output = output
        self._locks: dict[str, palisade.aio.Lock] = {}
        self._watches: dict[str, palisade.aio.Watch] = {}
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
            if command["do"] in ("acquire", "watch") and not self._prepare(command):
                continue
            task = loop.create_task(self._execute(command))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _prepare(self, command: Command) -> bool:
        name = command["name"]
        try:
            if command["do"] == "watch":
                self._watches[name] = self._client.watch(**watch_options(command))
                return True
            on_lost = self._output.lost(name)
            self._locks[name] = self._client.lock(**lock_options(command), on_lost=on_lost)
        except (ValueError, TypeError) as error:
            self._output.failed(command, error)
            return False
        return True

    async def _execute(self, command: Command) -> None:
        try:
            if command["do"] in LOCK_COMMANDS:
                await self._execute_with_lock(command, self._locks[command["name"]])
                return
            client, output, locks = self._client, self._output, self._locks
            match command["do"]:
                case "put" | "append" as do:
                    write = client.records.put if do == "put" else client.records.append
                    options = write_options(command, locks)
                    version = await write(command["key"], command["value"], **options)
                    output.done(command, version=version)
                case "delete":
                    options = write_options(command, locks)
                    output.done(
                        command, version=await client.records.delete(command["key"], **options)
                    )
                case "transact":
                    version = await client.records.transact(changes(command), conditions(command))
                    output.done(command, version=version)
                case "get":
                    output.done(command, **read(await client.records.get(command["key"])))
                case "show":
                    output.done(command, **shown(await client.show(command["key"])))
                case "list":
                    output.done(command, locks=list(map(shown, await self._list(command))))
                case "watch":
                    await self._follow(command)
                case "unwatch":
                    await self._watches.pop(command["name"]).aclose()
                    output.done(command)
                case unknown:
                    raise ValueError(f"unknown command {unknown!r}")
        except Exception as error:
            self._output.failed(command, error)

    async def _list(self, command: Command) -> list[palisade.LockView]:
        """All locks with the prefix, page by page."""
        locks: list[palisade.LockView] = []
        after: str | None = None
        while True:
            limit = command.get("limit")
            page = await self._client.list(command["prefix"], limit=limit, after=after)
            locks += page.locks
            after = page.next_after
            if after is None:
                return locks

    async def _follow(self, command: Command) -> None:
        """Tells what the watch tells, until it is ended."""
        name = command["name"]
        watch = self._watches[name]
        self._output.done(command)
        while True:
            try:
                async for event in watch:
                    self._tell(name, told(event))
                return
            except palisade.PalisadeError as error:
                self._tell(name, untold(error))

    def _tell(self, name: str, event: dict[str, Any]) -> None:
        """Tells nothing after `unwatch`."""
        if name in self._watches:
            self._output.write(event | {"name": name})

    async def _execute_with_lock(self, command: Command, lock: palisade.aio.Lock) -> None:
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


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs locks on commands from standard input.")
    parser.add_argument("--endpoints", required=True, help="HOST:PORT,HOST:PORT")
    parser.add_argument("--ca", help="file with the CA's certificate: use TLS")
    parser.add_argument("--cert", help="file with the client's certificate")
    parser.add_argument(
        "--cert-key", dest="key", help="file with the key of the client's certificate"
    )
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
