#!/usr/bin/env python3
"""Records terminals in which Palisade runs, and draws what they showed as SVG. `just recording` runs it.

    docs/images/record.py target/release/palisade

writes `leader-killed.svg` (a leader is killed while a job keeps its lock) and `top.svg` (`palisade top`) beside
this file. Every character of the pictures was written by a shell, by `palisade`, or by the job below; what the
person types is in `leader_killed`. Times are as they were. The pictures need no script: CSS shows one frame
after the other, in the colours of the reader's system, and the last one alone if the reader wants no motion.

Linux, and Python's standard library.
"""

import argparse
import codecs
import fcntl
import html
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent

JOB = """#!/bin/sh
for step in 1 2 3 4 5 6 7 8; do
    palisade kv put report "step $step" --lock nightly --token "$PALISADE_TOKEN" > saved || exit
    echo "step $step of 8 saved under token $PALISADE_TOKEN ($(cat saved))"
    sleep 1
done
"""


class Screen:
    """What a terminal of this size shows: the control sequences that `palisade` and a plain shell use."""

    def __init__(self, columns, rows):
        self.columns, self.rows = columns, rows
        self.style = ""
        self.clear()

    def clear(self):
        self.lines = [[] for _ in range(self.rows)]
        self.row = self.column = 0

    def write(self, text):
        for part in re.findall(r"\x1b\[[?>]?[0-9;]*[A-Za-z]|\x1b.|[\r\n\b]|[^\x1b\r\n\b]+", text):
            if part == "\r":
                self.column = 0
            elif part == "\n":
                self.new_line()
            elif part == "\b":
                self.column = max(0, self.column - 1)
            elif part.startswith("\x1b["):
                self.control(part[2:-1], part[-1])
            elif not part.startswith("\x1b"):
                for character in part:
                    self.put(character)

    def new_line(self):
        if self.row + 1 < self.rows:
            self.row += 1
        else:
            self.lines = self.lines[1:] + [[]]

    def put(self, character):
        if character < " ":
            return
        if self.column == self.columns:
            self.column = 0
            self.new_line()
        line = self.lines[self.row]
        line.extend([(" ", "")] * (self.column + 1 - len(line)))
        line[self.column] = (character, self.style)
        self.column += 1

    def control(self, numbers, kind):
        if numbers.startswith("?"):
            if numbers == "?1049" and kind == "h":
                self.clear()
            return
        values = [int(number or 0) for number in numbers.split(";")]
        if kind == "m":
            for value in values:
                self.style = f"{self.style} s{value}".strip() if value else ""
        elif kind == "H":
            row, column = (values + [1, 1])[:2] if len(values) > 1 else (values[0], 1)
            self.row, self.column = max(row, 1) - 1, max(column, 1) - 1
        elif kind == "K":
            del self.lines[self.row][self.column :]
        elif kind == "J" and values[0] == 2:
            self.lines = [[] for _ in range(self.rows)]
        elif kind == "J":
            del self.lines[self.row][self.column :]
            self.lines[self.row + 1 :] = [[] for _ in self.lines[self.row + 1 :]]
        else:
            raise ValueError(f"the screen does not know ESC [ {numbers} {kind}: teach it")

    def picture(self):
        return tuple(tuple(line) for line in self.lines)


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, command, columns, rows, environment, directory):
        self.screen = Screen(columns, rows)
        self.decoder = codecs.getincrementaldecoder("utf-8")()
        self.pid, self.side = pty.fork()
        if self.pid == 0:
            os.chdir(directory)
            os.execvpe(command[0], command, environment)
        fcntl.ioctl(self.side, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text):
        os.write(self.side, text.encode())

    def read(self):
        """Takes what the program has written; false at its end."""
        try:
            data = os.read(self.side, 65536)
        except OSError:
            return False
        self.screen.write(self.decoder.decode(data))
        return bool(data)

    def text(self):
        return "\n".join("".join(character for character, _ in line).rstrip() for line in self.screen.lines)

    def end(self):
        os.close(self.side)
        os.waitpid(self.pid, 0)


class Recording:
    """The pictures of some terminals, each with the time at which it was first shown."""

    def __init__(self, terminals):
        self.terminals = terminals
        self.begin = time.monotonic()
        self.frames = []

    def watch(self, seconds, until=lambda: False):
        """Records for so long, or until the condition holds; says whether it does."""
        deadline = time.monotonic() + seconds
        while not until():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            ready, _, _ = select.select([terminal.side for terminal in self.terminals], [], [], min(left, 0.1))
            for terminal in self.terminals:
                if terminal.side in ready:
                    terminal.read()
            # What is written within a tenth of a second is one frame.
            pictures = [terminal.screen.picture() for terminal in self.terminals]
            now = round(time.monotonic() - self.begin, 1)
            if not self.frames or self.frames[-1][1] != pictures:
                if self.frames and self.frames[-1][0] == now:
                    self.frames.pop()
                self.frames.append((now, pictures))
        return True

    def expect(self, what, until, seconds=30):
        if not self.watch(seconds, until):
            shown = "\n".join(terminal.text() for terminal in self.terminals)
            raise SystemExit(f"{what}: not within {seconds} s. The terminals show:\n{shown}")


def leader_killed(environment, port, directory):
    """The terminals of a worker and of an operator, who kills the leader."""
    (Path(directory) / "job.sh").write_text(JOB)
    os.chmod(Path(directory) / "job.sh", 0o755)
    shell = ["/bin/sh", "-i"]
    job = Terminal(shell, 88, 11, environment, directory)
    operator = Terminal(shell, 88, 23, environment, directory)
    recording = Recording([job, operator])
    dev = "palisade dev > dev.log &" if port == 7400 else f"palisade dev --port {port} > dev.log &"
    log = Path(directory) / "dev.log"

    def ready():
        return log.exists() and "Ctrl-C stops" in log.read_text()

    def prompts(terminal):
        return terminal.text().rstrip().endswith("$")

    def run(terminal, command):
        """Types a command after the prompt, as a person does after a look."""
        recording.expect("a prompt", lambda: prompts(terminal))
        recording.watch(0.7)
        terminal.type(command + "\n")

    try:
        run(operator, dev)
        recording.expect("the cluster is ready", ready)
        pids = dict(re.findall(r"kill -9 (\d+) +# node (\d+)", log.read_text()))
        pids = {int(node): int(pid) for pid, node in pids.items()}
        run(operator, "head -1 dev.log")
        run(job, "palisade lock nightly --owner worker-7 -- ./job.sh")
        recording.expect("the job's second step", lambda: "step 2 of 8" in job.text())
        run(operator, "palisade status")
        recording.expect("the status", lambda: " leader " in operator.text() and prompts(operator))
        leader = int(re.search(r"\s(\d)\s+leader\s", operator.text())[1])
        recording.watch(0.8)
        run(operator, f"kill -9 {pids[leader]}        # node {leader}, the leader")
        recording.watch(1.2)
        run(operator, "palisade status")
        recording.expect("the second status", lambda: operator.text().count(" leader ") > 1 and prompts(operator))
        run(operator, "palisade show nightly")
        recording.expect("the lock", lambda: "token " in operator.text() and prompts(operator))
        recording.expect("the end of the job", lambda: "step 8 of 8" in job.text() and prompts(job))
        recording.watch(0.5)
        shown = job.text()
        tokens = set(re.findall(r"under token (\d+)", shown))
        if len(tokens) != 1 or shown.count("saved under") != 8:
            raise SystemExit(f"the job did not keep its lock:\n{shown}")
        if f"token    {tokens.pop()}" not in operator.text():
            raise SystemExit(f"another token is shown:\n{operator.text()}")
        return recording
    finally:
        operator.type("kill $!; wait; exit\n")
        while operator.read():
            pass
        operator.end()
        job.end()


def top(environment, port, directory):
    """`palisade top` on a terminal, with some locks."""
    dev = subprocess.Popen(
        ["palisade", "dev", "--port", str(port)], env=environment, stdout=subprocess.PIPE, text=True, cwd=directory
    )
    try:
        for line in dev.stdout:
            if line.startswith("ready"):
                break
        claims = [
            ("billing/close-month", "worker-3", "60s"),
            ("nightly", "worker-7", "30s"),
            ("nightly", "worker-8", "30s"),
            ("nightly", "worker-2", "30s"),
            ("reports/daily", "worker-1", "10m"),
        ]
        running = []
        for key, owner, ttl in claims:
            command = ["palisade", "lock", key, "--owner", owner, "--ttl", ttl, "--wait", "60s"]
            running.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, cwd=directory))
            time.sleep(0.5)
        try:
            terminal = Terminal(["palisade", "top"], 88, 14, environment, directory)
            recording = Recording([terminal])
            recording.expect("all locks", lambda: "reports/daily" in terminal.text())
            terminal.type("j")
            recording.expect("the waiters", lambda: "worker-8" in terminal.text())
            recording.watch(1.5)
            shown = recording.frames[-1:]
            terminal.type("q")
            while terminal.read():
                pass
            terminal.end()
            recording.frames = shown
            return recording
        finally:
            for process in running:
                process.send_signal(signal.SIGTERM)
            for process in running:
                process.wait()
    finally:
        dev.send_signal(signal.SIGINT)
        dev.wait()


CHARACTER, LINE, MARGIN, HEAD = 7.83, 17, 14, 30
STYLE = """
svg { color-scheme: light dark; --paper: #fbfbfa; --ink: #24292f; --faint: #6e7781; --edge: #d0d7de; --head: #eef0f2;
  --good: #1a7f37; --bad: #cf222e; --note: #9a6700; --link: #0969da; }
@media (prefers-color-scheme: dark) { svg { --paper: #0d1117; --ink: #e6edf3; --faint: #8b949e; --edge: #30363d;
  --head: #161b22; --good: #3fb950; --bad: #ff7b72; --note: #d29922; --link: #58a6ff; } }
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: var(--ink);
  white-space: pre; }
.head { fill: var(--faint); } .s1 { font-weight: bold; } .s2 { fill: var(--faint); } .s31 { fill: var(--bad); }
.s32 { fill: var(--good); } .s33 { fill: var(--note); } .s34, .s36 { fill: var(--link); }
.s7 { fill: var(--paper); } .bar { fill: var(--ink); }
rect.pane { fill: var(--paper); stroke: var(--edge); } path.head { fill: var(--head); }
"""


def runs(line):
    """The parts of a line that have one style."""
    parts = []
    for character, style in line:
        if parts and parts[-1][1] == style:
            parts[-1][0] += character
        else:
            parts.append([character, style])
    while parts and not parts[-1][0].strip() and "s7" not in parts[-1][1]:
        parts.pop()
    return parts


def drawn(picture, top):
    """The lines of one terminal."""
    out = []
    for row, line in enumerate(picture):
        y = top + LINE * row
        parts = runs(line)
        if not parts:
            continue
        texts, column = [], 0
        for text, style in parts:
            if "s7" in style:
                x, width = MARGIN + column * CHARACTER, len(text) * CHARACTER
                out.append(f'<rect class="bar" x="{x:.1f}" y="{y - 13}" width="{width:.1f}" height="{LINE}"/>')
            written = html.escape(text, quote=False)
            # Each part begins in its column, whatever the reader's font.
            x = f'{MARGIN + column * CHARACTER:.1f}'
            texts.append(f'<tspan x="{x}" class="{style}">{written}</tspan>' if style else f'<tspan x="{x}">{written}</tspan>')
            column += len(text)
        if len(texts) == 1 and "class" not in texts[0]:
            out.append(f'<text x="{MARGIN}" y="{y}">{html.escape(parts[0][0].rstrip(), quote=False)}</text>')
        else:
            out.append(f'<text y="{y}">{"".join(texts)}</text>')
    return "\n".join(out)


def svg(recording, heads, title, description, hold=4.0):
    """The recording as a picture: a pane for each terminal, whose frames follow one another in a circle."""
    sizes = [(terminal.screen.columns, terminal.screen.rows) for terminal in recording.terminals]
    width = round(max(columns for columns, _ in sizes) * CHARACTER + 2 * MARGIN)
    total = recording.frames[-1][0] + hold
    style, body, y = [STYLE], [], 0
    for pane, ((_, rows), head) in enumerate(zip(sizes, heads)):
        height = HEAD + rows * LINE + MARGIN
        body.append(f'<rect class="pane" x=".5" y="{y + 0.5}" width="{width - 1}" height="{height - 1}" rx="6"/>')
        body.append(f'<path class="head" d="M1 {y + HEAD}V{y + 7}a6 6 0 0 1 6-6H{width - 7}a6 6 0 0 1 6 6V{y + HEAD}z"/>')
        body.append(f'<text class="head" x="{MARGIN}" y="{y + 20}">{html.escape(head)}</text>')
        # A frame of this pane is a change of this pane alone.
        frames = []
        for at, pictures in recording.frames:
            if not frames or frames[-1][1] != pictures[pane]:
                frames.append((at, pictures[pane]))
        for number, (at, picture) in enumerate(frames):
            name, last = f"p{pane}f{number}", number + 1 == len(frames)
            if len(frames) > 1:
                begin = 0 if number == 0 else 100 * at / total
                end = "" if last else f"{100 * frames[number + 1][0] / total:.2f}%{{visibility:hidden}}"
                first = "" if number == 0 else "0%{visibility:hidden}"
                style.append(f"@keyframes {name}{{{first}{begin:.2f}%{{visibility:visible}}{end}}}")
                style.append(f"#{name}{{animation:{name} {total:.1f}s step-end infinite}}")
            shown = "last" if last else "frame"
            body.append(f'<g id="{name}" class="{shown}">\n{drawn(picture, y + HEAD + LINE)}\n</g>')
        y += height + 8
    style.append(".frame{visibility:hidden}")
    style.append("@media (prefers-reduced-motion:reduce){g.frame{animation:none!important}g.last{animation:none!important}}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y - 8}" width="{width}" height="{y - 8}" '
        f'role="img" aria-labelledby="title description">\n<title id="title">{html.escape(title)}</title>\n'
        f'<desc id="description">{html.escape(description)}</desc>\n'
        f"<style>{chr(10).join(style)}\n</style>\n" + "\n".join(body) + "\n</svg>\n"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("palisade", type=Path, help="the program to record")
    parser.add_argument("--port", type=int, default=7400, help="as of `palisade dev`")
    parser.add_argument("--out", type=Path, default=HERE, help="where the pictures are written")
    options = parser.parse_args()
    program = options.palisade.resolve()
    if not program.is_file():
        raise SystemExit(f"there is no {program}: build it with `cargo build --release -p palisade`")
    environment = {
        "PATH": f"{program.parent}:/usr/bin:/bin",
        "HOME": "/",
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "PS1": "$ ",
    }
    if options.port != 7400:
        ports = ",".join(str(options.port + node) for node in (1, 2, 3))
        environment["PALISADE_ENDPOINTS"] = f"127.0.0.1:{ports}"
    os.environ["PATH"] = environment["PATH"]
    pictures = {
        "leader-killed.svg": (
            leader_killed,
            ["a worker", "an operator"],
            "A leader is killed while a job keeps its lock",
            "Two terminals. In one, a job runs under a lock and saves each step under its fencing token. In the other, "
            "the cluster's leader is killed with kill -9: another node leads, and the job goes on with the same token.",
        ),
        "top.svg": (
            top,
            ["palisade top"],
            "palisade top",
            "A terminal with the cluster's nodes, and its locks with their tokens, waiters, holders and leases.",
        ),
    }
    for name, (record, heads, title, description) in pictures.items():
        with tempfile.TemporaryDirectory() as directory:
            recording = record(environment, options.port, directory)
        picture = svg(recording, heads, title, description)
        (options.out / name).write_text(picture)
        print(f"{options.out / name}: {len(picture.encode()) / 1024:.0f} KiB, {len(recording.frames)} frames")


if __name__ == "__main__":
    sys.exit(main())
