#!/usr/bin/env python3
"""Whether the text of every mutant of the protocol and of the server stands in its source, once.

The tools that run the mutants check that, too, and more; they have to be compiled first.
"""

import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
# The lists of each folder, and the package of mutants that name none.
LISTS = {"conformance/mutants": "runtime", "model/mutants": "spec"}

faults = []
count = 0
for folder, package in LISTS.items():
    for path in sorted((PROJECT / folder).rglob("*.toml")):
        for mutant in tomllib.loads(path.read_text())["mutant"]:
            count += 1
            source = PROJECT / mutant.get("package", package) / "src" / mutant["file"]
            times = source.read_text().count(mutant["replace"]) if source.exists() else 0
            if times != 1:
                faults.append(
                    f"{path.relative_to(PROJECT)}: {mutant['name']}: its text stands {times} times in "
                    f"{source.relative_to(PROJECT)}, and must stand there once"
                )
if not faults and count < 400:
    faults.append(f"only {count} mutants were found")
print("\n".join(faults) or f"{count} mutants fit their sources")
sys.exit(bool(faults))
