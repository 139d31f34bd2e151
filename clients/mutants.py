#!/usr/bin/env python3
"""Puts known mistakes into copies of the clients, and expects a test to find each (docs/clients.md).

    clients/mutants.py                          # all mutants of all clients
    clients/mutants.py python go                # those of two clients
    clients/mutants.py python --only renewed    # those whose reason, file or test has this text
    clients/mutants.py --check                  # only whether the lists still fit the sources

A client's list is clients/CLIENT/mutants.json: `file` (in the client's folder), `old` (a text that
occurs once in it), `new`, `why` (the rule that the mutant breaks), and `caught_by`: what must find
it, parts with a semicolon between them. A part is a scenario of runtime/tests/live/clients
(`clients::go::loss_is_reported_before_another_client_is_granted`), or a file of unit tests and names in
it (`engine_test.go: TestOne, TestTwo`, `tests/test_hold.py: Lease.test_one`). Any other part is a
remark for people. Each test must first pass on the client as it is: a test that always fails finds
nothing.
"""

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

CLIENTS = Path(__file__).resolve().parent
PROJECT = CLIENTS.parent
SCENARIOS = PROJECT / "runtime/tests/live/clients/mod.rs"
# What is built or downloaded, and not the client's source.
NOT_COPIED = shutil.ignore_patterns("node_modules", "dist", "__pycache__", "*.egg-info", ".venv")
# A test that hangs finds its mutant, too. No test takes half as long.
PATIENCE_S = 240


class Client:
    """How a client's copy is built, and its unit tests are run."""

    def __init__(self, name, build, unit, separator):
        self.name = name
        self.folder = CLIENTS / name
        self.build = build
        self.unit = unit
        # What stands between the names of unit tests; nothing where a name is a sentence.
        self.separator = separator


PYTHON = os.environ.get("PALISADE_PYTHON", "python3")


def python_unit(file, names):
    module = file.removesuffix(".py").replace("/", ".")
    return [PYTHON, "-m", "unittest", *(word for name in names for word in ("-k", name)), module]


def typescript_unit(file, names):
    pattern = "|".join(map(re.escape, names))
    built = Path("dist") / Path(file).with_suffix(".js")
    return ["node", "--test", "--test-reporter=tap", f"--test-name-pattern={pattern}", str(built)]


def go_unit(_file, names):
    return ["go", "test", "-count=1", "-v", "-run", f"^({'|'.join(names)})$", "./..."]


# What the compiler says about names that a mutant no longer uses is no test.
TSC = ["npx", "--no-install", "tsc", "-p", ".", "--noUnusedLocals", "false", "--noUnusedParameters", "false"]
KNOWN = [
    Client("python", [PYTHON, "-m", "compileall", "-q", "palisade"], python_unit, ", "),
    Client("typescript", TSC, typescript_unit, None),
    Client("go", ["go", "vet", "./..."], go_unit, ", "),
]


class Scenario:
    """A scenario that must find a mutant."""

    def __init__(self, face, name):
        self.label = f"clients::{face}::{name}"

    def passes(self, copy, live):
        environment = {"PALISADE_CLIENTS_FOLDER": str(copy.root), "PALISADE_CLIENTS": "required"}
        passed, said = run([live, "--exact", self.label], PROJECT / "runtime", environment)
        if "running 1 test" not in said:
            raise NoSuchTest(self.label)
        return passed, said


class Unit:
    """Unit tests of one file, of which one must find a mutant."""

    def __init__(self, client, file, names):
        self.label = f"{file}: {', '.join(names)}"
        self.command = client.unit(file, names)

    def passes(self, copy, _live):
        passed, said = run(self.command, copy.folder)
        # Names that no test has pass.
        ran = re.search(r"^(=== RUN|Ran [1-9]|# (pass|fail) [1-9])", said, re.MULTILINE)
        if passed and not ran:
            raise NoSuchTest(self.label)
        return passed, said


def scenarios(face):
    """The names of the scenarios that are run against a client."""
    text = SCENARIOS.read_text()
    found = re.findall(r"^ +(\w+)::(\w+),$", text, re.MULTILINE)
    if re.search(rf"^client!\(@portable {face},", text, re.MULTILINE):
        found = [(file, name) for file, name in found if file != "clocks"]
    return [name for _, name in found]


def tests_of(client, mutant):
    """What must find a mutant."""
    for part in mutant["caught_by"].split("; "):
        scenario = re.fullmatch(r"clients::(\w+)::(\w+)", part)
        unit = re.fullmatch(r"([\w/.-]+\.(?:py|ts|go)): (.+)", part)
        if scenario:
            yield Scenario(*scenario.groups())
        elif unit:
            file, names = unit.groups()
            yield Unit(client, file, names.split(client.separator) if client.separator else [names])


def list_of(client):
    """The mutants of a client; none if it has no list."""
    file = client.folder / "mutants.json"
    return json.loads(file.read_text()) if file.exists() else []


def faults_of(client, mutants):
    """What does not fit in a client's list."""
    for number, mutant in enumerate(mutants, 1):
        name = f"{client.name}, mutant {number}"
        missing = {"file", "old", "new", "why", "caught_by"} - set(mutant)
        if missing:
            yield f"{name} has no {', '.join(sorted(missing))}"
            continue
        file = client.folder / mutant["file"]
        times = file.read_text().count(mutant["old"]) if file.exists() else 0
        if times != 1:
            yield f"{name}: its text occurs {times} times in {mutant['file']}, not once: {mutant['old']!r}"
        if mutant["old"] == mutant["new"]:
            yield f"{name} changes nothing"
        tests = list(tests_of(client, mutant))
        if not tests:
            yield f"{name}: no part of `caught_by` is a scenario or a unit test: {mutant['caught_by']}"
        for test in tests:
            if isinstance(test, Scenario):
                _, face, scenario = test.label.split("::")
                if scenario not in scenarios(face):
                    yield f"{name}: there is no scenario {test.label}"


def run(command, folder, environment=None):
    """Whether a command succeeds, and what it said."""
    environment = {**os.environ, **(environment or {})}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode == 0, said
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        said, _ = process.communicate()
        return False, f"{said}\nnot within {PATIENCE_S} s"


class Copy:
    """A copy of a client, perhaps with a mutant in it."""

    def __init__(self, client, mutant=None):
        self.client = client
        self.mutant = mutant

    def __enter__(self):
        self.root = Path(tempfile.mkdtemp(prefix="palisade-mutant-"))
        self.folder = self.root / self.client.name
        shutil.copytree(self.client.folder, self.folder, ignore=NOT_COPIED)
        modules = self.client.folder / "node_modules"
        if modules.exists():
            (self.folder / "node_modules").symlink_to(modules)
        if self.mutant:
            file = self.folder / self.mutant["file"]
            file.write_text(file.read_text().replace(self.mutant["old"], self.mutant["new"]))
        built, said = run(self.client.build, self.folder)
        if not built:
            raise DoesNotBuild(said)
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.root, ignore_errors=True)


class DoesNotBuild(Exception):
    pass


class NoSuchTest(Exception):
    pass


def live_tests():
    """The program of the live tests."""
    command = ["cargo", "test", "--quiet", "-p", "palisade", "--test", "live", "--no-run"]
    command.append("--message-format=json")
    output = subprocess.run(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=True).stdout
    messages = map(json.loads, output.splitlines())
    return next(m["executable"] for m in messages if m.get("executable") and m["target"]["name"] == "live")


def judge(client, mutant, tests, live):
    """The verdict on a mutant, and whether it is found: by any of these tests."""
    try:
        with Copy(client, mutant) as copy:
            for test in tests:
                passed, _ = test.passes(copy, live)
                if not passed:
                    return f"found by {test.label}", True
            return "MISSED by " + "; ".join(test.label for test in tests), False
    except DoesNotBuild as error:
        return f"DOES NOT BUILD: {str(error).strip()[-300:]}", False


def check_the_unchanged(client, tests, live, pool):
    """Whether every test passes on the client as it is."""
    tests = list({test.label: test for test in tests}.values())
    with Copy(client) as copy:
        good = True
        for test, (passed, said) in zip(tests, pool.map(lambda test: test.passes(copy, live), tests)):
            if not passed:
                print(f"{client.name}: {test.label} fails without a mutant:\n{said[-3000:]}", flush=True)
            good &= passed
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [client.name for client in KNOWN]
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"of {', '.join(names)}; all if none is named")
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants that have this text in their reason, file or test")
    parser.add_argument("--check", action="store_true", help="only check that the lists fit the sources")
    parser.add_argument("--scenarios-of", metavar="FACE", help="look for the mutants with all scenarios of this client (as python_asyncio), not with what their list names")
    parser.add_argument("--live", metavar="PROGRAM", help="the program of the live tests; built if it is needed and not given")
    parser.add_argument("--jobs", type=int, default=4, help="tests at a time: they wait more than they compute")
    options = parser.parse_args()
    unknown = set(options.clients) - set(names)
    if unknown:
        parser.error(f"there is no client {', '.join(sorted(unknown))}")

    lists = {}
    for client in KNOWN:
        if options.clients and client.name not in options.clients:
            continue
        lists[client] = list_of(client)
        if client.name in options.clients and not lists[client]:
            parser.error(f"there is no list of mutants in {client.folder}")
    faults = [fault for client, mutants in lists.items() for fault in faults_of(client, mutants)]
    if faults or options.check:
        print("\n".join(faults) or f"{sum(map(len, lists.values()))} mutants fit their sources")
        return bool(faults)

    live, bad, count, printing = options.live, 0, 0, threading.Lock()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for client, mutants in lists.items():
            mutants = [mutant for mutant in mutants if options.only in json.dumps(mutant, ensure_ascii=False)]
            count += len(mutants)
            every = [Scenario(options.scenarios_of, name) for name in scenarios(options.scenarios_of)] if options.scenarios_of else []
            tests = [every or list(tests_of(client, mutant)) for mutant in mutants]
            if live is None and any(isinstance(test, Scenario) for some in tests for test in some):
                live = live_tests()
            if not check_the_unchanged(client, [test for some in tests for test in some], live, pool):
                bad += len(mutants)
                continue

            def report(mutant, tests, client=client):
                verdict, good = judge(client, mutant, tests, live)
                with printing:
                    print(f"{client.name}: {verdict}: {mutant['why']}", flush=True)
                return good

            bad += sum(not good for good in pool.map(report, mutants, tests))
    print(f"{count - bad} of {count} mutants were found")
    return bad > 0 or count == 0


if __name__ == "__main__":
    sys.exit(main())
