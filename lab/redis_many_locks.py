#!/usr/bin/env python3
"""Measures one Redis (Debian's redis-server and redis-tools) as `palisade bench --locks N` measures Palisade, with the
same keys.

    lab/redis_many_locks.py --keys 10000000 --lasts 400

Each key is set as a lock is taken (SET key owner NX PX ttl), each until the same moment. Every write is synced before it
is answered (appendfsync always), as it is with us. Clients beside it are those of redis-benchmark.
"""

import argparse
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

BLOCK = 5_000
CLIENTS = "16"


def scatter(seed, place):
    """The keys of `palisade bench --locks`: the output function of SplitMix64."""
    mask = (1 << 64) - 1
    word = (seed + (place + 1) * 0x9E3779B97F4A7C15) & mask
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & mask
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & mask
    return word ^ (word >> 31)


class Redis:
    """A server of our own, on a free port and in a directory of its own."""

    def __init__(self, directory):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = str(probe.getsockname()[1])
        self.arguments = ["redis-server", "--port", self.port, "--bind", "127.0.0.1", "--dir", directory, "--save", "",
                          "--appendonly", "yes", "--appendfsync", "always", "--logfile", f"{directory}/log"]
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.arguments)
        begin = time.monotonic()
        while True:
            time.sleep(0.05)
            if self.process.poll() is not None:
                sys.exit("redis-server ended")
            answer = subprocess.run(["redis-cli", "-p", self.port, "ping"], capture_output=True, text=True)
            if answer.stdout.strip() == "PONG":
                return time.monotonic() - begin

    def ask(self, *words):
        command = ["redis-cli", "-p", self.port, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def info(self, section, name):
        lines = self.ask("info", section).splitlines()
        return int(next(line.split(":")[1] for line in lines if line.startswith(name + ":")))

    def restart(self):
        self.process.kill()
        self.process.wait()
        return self.start()

    def fill(self, keys, seed, ends):
        with socket.create_connection(("127.0.0.1", int(self.port))) as connection:
            answers = connection.makefile("rb")
            for first in range(0, keys, BLOCK):
                ttl = max(100, int((ends - time.monotonic()) * 1000))
                commands = bytearray()
                for place in range(first, min(keys, first + BLOCK)):
                    key = f"locks/{scatter(seed, place):016x}"
                    commands += b"*6\r\n$3\r\nSET\r\n$22\r\n%s\r\n$5\r\nbench\r\n$2\r\nNX\r\n$2\r\nPX\r\n" % key.encode()
                    commands += b"$%d\r\n%d\r\n" % (len(str(ttl)), ttl)
                connection.sendall(commands)
                for _ in range(first, min(keys, first + BLOCK)):
                    if answers.readline() != b"+OK\r\n":
                        sys.exit("a key was not set")

    def row(self, name, until=None, seconds=10):
        """Clients set one key after the other until something is over, or for so long; prints a line."""
        requests, worst, begin = 0, [0.0, 0.0, 0.0], time.monotonic()
        while until() if until else time.monotonic() - begin < seconds:
            command = ["redis-benchmark", "-p", self.port, "-c", CLIENTS, "-n", "20000", "-r", "1000000", "--csv",
                       "SET", "bench/__rand_int__", "x", "PX", "10000"]
            lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
            # "test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"
            fields = [float(field.strip('"')) for field in lines[-1].rsplit(",", 7)[1:]]
            requests += 20000
            worst = [max(pair) for pair in zip(worst, [fields[3], fields[5], fields[6]])]
        rate = requests / (time.monotonic() - begin)
        print(f"{name:<10} {rate:>9.0f} {worst[0]:>9.2f} {worst[1]:>9.2f} {worst[2]:>9.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--lasts", type=float, default=400, help="seconds from the first key until all end")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        redis = Redis(directory)
        try:
            measure(redis, arguments)
        finally:
            redis.process.kill()
            redis.process.wait()


def measure(redis, arguments):
    print(f"{'':<10} {'writes/s':>9} {'p50 ms':>9} {'p99 ms':>9} {'max ms':>9}   (the worst of runs of 20,000)", flush=True)
    redis.row("")
    before = redis.info("memory", "used_memory_rss")
    begin = time.monotonic()
    ends = begin + arguments.lasts
    redis.fill(arguments.keys, arguments.seed, ends)
    took = time.monotonic() - begin
    print(f"{arguments.keys} keys set in {took:.0f} s, {arguments.keys / took:.0f} a second", flush=True)
    redis.row("held")
    used = redis.info("memory", "used_memory_rss")
    print(f"{used >> 20} MB in use, {(used - before) // arguments.keys} bytes a key", flush=True)

    begin = time.monotonic()
    redis.ask("bgsave")
    with ThreadPoolExecutor() as pool:
        row = pool.submit(redis.row, "snapshot", lambda: redis.info("persistence", "rdb_bgsave_in_progress") == 1)
        while redis.info("persistence", "rdb_bgsave_in_progress") == 1:
            time.sleep(0.1)
        took = time.monotonic() - begin
        row.result()
    fork = redis.info("stats", "latest_fork_usec") / 1000
    print(f"a snapshot took {took:.1f} s; nobody was served for {fork:.0f} ms of it (fork)", flush=True)
    print(f"killed and back after {redis.restart():.1f} s", flush=True)

    if time.monotonic() > ends:
        sys.exit("the keys ended before they were to be measured: --lasts longer")
    time.sleep(ends - time.monotonic())
    begin = time.monotonic()
    redis.row("expiry", lambda: int(redis.ask("dbsize")) > 200_000)
    print(f"all of them ended within {time.monotonic() - begin:.1f} s", flush=True)


main()
