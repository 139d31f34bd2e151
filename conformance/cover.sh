#!/usr/bin/env bash
# Which lines of the protocol live nodes take when they go through the saved traces: a table, then every line that none takes.
#
# The nodes' program is built with counters that live in a mapped file, so that a process that is killed has counted too. Only the
# workspace's own packages have them: cargo is told that this script compiles those.
set -euo pipefail
if [ -n "${COVER:-}" ]; then
    exec "$@" -C instrument-coverage -C llvm-args=-runtime-counter-relocation
fi
cd "$(dirname "$0")/.."
tools=$(rustc --print target-libdir)/../bin
target=${CARGO_TARGET_DIR:-$PWD/target}
output=$target/cover
mkdir -p "$output"
rm -f "$output"/*.prof*
cargo build --quiet --package palisade-conformance
cp "$target/debug/palisade-conformance" "$output/replay"
COVER=yes RUSTC_WORKSPACE_WRAPPER=$PWD/conformance/cover.sh cargo build --quiet --package palisade-conformance
nodes=$target/debug/palisade-conformance
LLVM_PROFILE_FILE="$output/%c%m.profraw" "$output/replay" replay --program "$nodes" "$@"
"$tools/llvm-profdata" merge --sparse "$output"/*.profraw --output "$output/replay.profdata"
measured=(--instr-profile "$output/replay.profdata" "$nodes")
"$tools/llvm-cov" report "${measured[@]}" spec/src/raft spec/src/lock
"$tools/llvm-cov" show "${measured[@]}" --show-instantiations=false spec/src/raft spec/src/lock |
    grep -E '^/|^ +[0-9]+\| +0\|' | sed "s|^$PWD/||"
