#!/usr/bin/env python3
"""Puts known bugs into a copy of the client, one at a time: the named test must find each.

python mutants/run.py [NAME…]
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# A mutant that makes its test hang is found, too. Seconds.
LIMIT = 120


def passes(folder: Path, test: str) -> bool:
    """Whether the test passes with the package in this folder."""
    command = [sys.executable, "-m", "unittest", test]
    # Without bytecode, a file that is changed twice within a second is read anew.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    if b"Ran 1 test" not in done.stderr:
        raise SystemExit(f"{test} did not run:\n{done.stderr.decode()}")
    return done.returncode == 0


def main() -> int:
    mutants = json.loads((ROOT / "mutants" / "mutants.json").read_text(encoding="utf-8"))
    names = sys.argv[1:]
    chosen = [mutant for mutant in mutants if not names or mutant["name"] in names]
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "python"
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns("__pycache__"))
        for mutant in chosen:
            path = folder / mutant["file"]
            source = path.read_text(encoding="utf-8")
            count = source.count(mutant["old"])
            if count != 1:
                verdict = f"the text to replace is there {count} times instead of once"
            elif not passes(folder, mutant["test"]):
                verdict = "its test fails without it, too"
            else:
                path.write_text(source.replace(mutant["old"], mutant["new"]), encoding="utf-8")
                verdict = "NOT FOUND" if passes(folder, mutant["test"]) else "found"
                path.write_text(source, encoding="utf-8")
            failed += verdict != "found"
            print(f"{mutant['name']}: {verdict} ({mutant['test']})", flush=True)
    print(f"{len(chosen) - failed} of {len(chosen)} mutants were found")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
