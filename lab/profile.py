#!/usr/bin/env python3
"""Where the processor time of a leader and of a follower goes, under `palisade bench`.

    RUSTFLAGS="-C force-frame-pointers=yes" cargo build --release --target-dir target/profile
    lab/profile.py --palisade target/profile/release/palisade --out target/profile

Needs perf, root, and for the flame graphs `inferno-flamegraph` (cargo install inferno). Writes a table of what the samples
were in, by their call stacks, and two flame graphs.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

# A sample belongs to the first row of which a frame of its stack matches.
ROWS = [
    ("sync of the log", r"fdatasync|ext4_sync_file"),
    ("writes to the log", r"pwrite|ext4_.*write|storage::wal"),
    ("sending", r"tcp_sendmsg|sock_write_iter|__sys_send|do_writev|vfs_writev"),
    ("receiving", r"tcp_recvmsg|sock_read_iter|__sys_recv|vfs_read"),
    ("waiting and waking: epoll, futex", r"epoll|ep_poll|futex|^__schedule|eventfd|try_to_wake_up|thread::park"),
    ("lock table", r"palisade_spec::lock"),
    ("Raft", r"palisade_spec::raft"),
    ("encoding and decoding", r"bincode|serde|palisade_client::codec|palisade_client::wire|crc32c"),
    ("the core besides: requests, answers, metrics", r"palisade::core"),
    ("connections to clients: WebSocket, HTTP", r"palisade::http|tungstenite|hyper|axum"),
    ("connections to nodes", r"palisade::peers"),
    ("tasks (tokio)", r"tokio"),
    ("memory", r"malloc|free|realloc|calloc|page_fault|memcpy|memmove"),
    ("the rest", r""),
]


def status(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/status", timeout=1) as answer:
            return json.load(answer)
    except OSError:
        return {}


def leader(port, deadline):
    while time.monotonic() < deadline:
        known = (status(port + 1).get("leader") or {}).get("id")
        if known:
            return known
        time.sleep(0.1)
    sys.exit("no leader is known")


def node_processes(parent):
    """The pid of each node that the benchmark has started, by its ID."""
    found = {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
            parents = re.search(r"^PPid:\t(\d+)", (process / "status").read_text(), re.M)
        except OSError:
            continue
        if parents and int(parents[1]) == parent and "--id" in words:
            found[int(words[words.index("--id") + 1])] = int(process.name)
    return found


def stacks(data):
    """The samples of a recording: each a stack, the leaf first."""
    text = subprocess.run(["perf", "script", "-i", data, "-F", "comm,ip,sym"], check=True, capture_output=True, text=True)
    for sample in text.stdout.split("\n\n"):
        lines = sample.strip().splitlines()
        frames = [re.sub(r"^\s*[0-9a-f]+ ", "", line).strip() for line in lines[1:]]
        frames = [re.sub(r"::h[0-9a-f]{16}$|\+0x[0-9a-f]+$", "", frame) for frame in frames]
        if frames:
            yield lines[0].strip(), frames


def row(frames):
    return next(name for name, pattern in ROWS if any(re.search(pattern, frame) for frame in frames))


def flame_graph(samples, title, path):
    folded = collections.Counter(";".join([comm, *reversed(frames)]) for comm, frames in samples)
    lines = "".join(f"{stack} {count}\n" for stack, count in folded.items())
    graph = ["inferno-flamegraph", "--title", title, "--minwidth", "0.2", "--deterministic", "--colors", "rust"]
    path.write_bytes(subprocess.run(graph, input=lines.encode(), check=True, capture_output=True).stdout)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--palisade", required=True)
    arguments.add_argument("--out", type=pathlib.Path, required=True)
    arguments.add_argument("--clients", type=int, default=64)
    arguments.add_argument("--seconds", type=int, default=10)
    arguments.add_argument("--port", type=int, default=18400)
    given = arguments.parse_args()
    lasts = given.seconds + 5
    command = [given.palisade, "bench", "--clients", str(given.clients), "--time", f"{lasts}s", "--port", str(given.port)]
    with tempfile.TemporaryDirectory() as directory:
        bench = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        first = leader(given.port, time.monotonic() + 20)
        time.sleep(3)
        nodes = node_processes(bench.pid)
        follower = next(node for node in sorted(nodes) if node != first)
        recordings = {}
        for name, node in [("leader", first), ("follower", follower)]:
            data = os.path.join(directory, name)
            record = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "997", "-g", "-p", str(nodes[node]), "-o", data]
            recordings[name] = (data, subprocess.Popen([*record, "--", "sleep", str(given.seconds)]))
        for _, recorder in recordings.values():
            recorder.wait()
        rate = bench.communicate()[0].strip().splitlines()[-1].split()[1]
        if bench.returncode:
            sys.exit("the benchmark failed")
        samples = {name: list(stacks(data)) for name, (data, _) in recordings.items()}
    counts = {name: collections.Counter(row(frames) for _, frames in of) for name, of in samples.items()}
    lines = [f"{given.clients} clients, {rate} pairs a second while the samples were taken.", ""]
    lines += ["| of the processor time of | a leader | a follower |", "|---|---|---|"]
    for name, _ in ROWS:
        shares = [100 * counts[node][name] / len(samples[node]) for node in ("leader", "follower")]
        lines.append(f"| {name} | " + " | ".join(f"{share:.0f} %" for share in shares) + " |")
    cores = [len(samples[node]) / 997 / given.seconds for node in ("leader", "follower")]
    lines.append("| **cores** | " + " | ".join(f"{core:.2f}" for core in cores) + " |")
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "profile.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    if shutil.which("inferno-flamegraph"):
        for name in samples:
            flame_graph(samples[name], f"a {name}, {given.clients} clients", given.out / f"{name}.svg")


if __name__ == "__main__":
    main()
