"""Interrupt commands at random moments: each ends in time, with one line and its exit code, and leaves no process.

    python benchmarks/interrupt_soak.py --count 200 --seed 7
    python benchmarks/interrupt_soak.py --engine spark --count 30 --commands run doctor

A signal is sent to the whole process group, as a terminal does: Ctrl-C twice as often as SIGTERM. At the end the log is
imported and handled to its end, and the read models are compared with a plain computation. The exit code is 1, and what
was wrong is shown, when a command took too long, printed more than its line, ended with another exit code or left a
process, or when an event is missing or was applied twice. What comes before Python runs our first line is counted only:
no program in Python can handle it.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import NamedTuple

from servers import KINDS, OTHERS, machine, served
from soaking import Project, made_up

COMMANDS = {
    "import": ("events", "import"),
    "list": ("events", "list", "--limit", "1000"),
    "tail": ("events", "tail"),
    "config": ("config",),
    "conditions": ("conditions",),
    "status": ("status",),
    "doctor": ("doctor",),
    "run": ("run",),
}
ENDLESS = {"tail": 3.0, "run": 8.0}
"""Commands that do not end by themselves, and how many seconds may pass before their signal."""

HANG = 120.0
"""Seconds after which a command counts as hung, and is killed."""

JVM_SECONDS = 10.0
"""After the command, in which a JVM deletes its files and ends."""

NOISE = re.compile(r"Traceback|Exception|Error|^\s+at \S+\(|\bWARN|OCQ-\d", re.MULTILINE)
OURS = re.compile(r"opencqrs_py/(?!__init__|__main__|cli/__init__)")


class Ended(NamedTuple):
    """How an interrupted command ended."""

    code: int
    seconds: float
    err: str
    left: list[int]


def main() -> int:
    """Run the soak and return the exit code."""
    options = _options()
    print(machine())
    signal.signal(signal.SIGINT, signal.default_int_handler)  # commands would ignore it as this does in the background
    chance = Random(options.seed)
    with served(options.database) as fresh, tempfile.TemporaryDirectory(prefix="opencqrs-interrupts-") as name:
        folder = Path(name)
        log = made_up(folder / "events.ndjson.gz", options.events, chance)
        settings = {"engine": options.engine, "batch_size": 100, "partitions": 4}
        project = Project(folder, fresh(), fresh(), **settings)
        wrong = _interrupted(project, log, chance, options)
        wrong += _finished(project, log)
        project.close()
    print("\n".join(f"  WRONG: {line}" for line in wrong) or "  equal: each event was applied exactly once, in order")
    return 1 if wrong else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50, help="how many interrupts (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same plan (default: %(default)s)")
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=[*COMMANDS], help="default: all")
    parser.add_argument("--engine", choices=("spark", "thread"), default="thread")
    parser.add_argument("--database", choices=(*KINDS, *OTHERS), default="sqlite")
    parser.add_argument("--events", type=int, default=100_000, help="events of the log (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="in which a command has to end")
    return parser.parse_args()


def _interrupted(project: Project, log: Path, chance: Random, options: argparse.Namespace) -> list[str]:
    wrong: list[str] = []
    codes: Counter[int] = Counter()
    early, slowest = 0, 0.0
    lasts = {name: ENDLESS.get(name, 1.0) for name in COMMANDS}
    for _ in range(options.count):
        name = chance.choice(options.commands)
        sent = chance.choice((signal.SIGINT, signal.SIGINT, signal.SIGTERM))
        moment = chance.uniform(0, lasts[name])
        ended = _interrupt(project, (*COMMANDS[name], *((str(log),) if name == "import" else ())), sent, moment)
        codes[ended.code] += 1
        slowest = max(slowest, ended.seconds)
        if _is_early(ended, sent):
            early += 1
            continue
        if ended.code == 130 and name not in ENDLESS:
            lasts[name] = min(8.0, max(lasts[name], moment * 1.5))  # it may last longer than was thought
        wrong += [f"{name}, {sent.name} after {moment:.3f} s: {what}" for what in _wrong(ended, options.seconds)]
    ended_with = f"exit codes {dict(codes)}, at most {slowest:.2f} s"
    print(f"  {options.count} interrupts, {early} before our first line, {ended_with}")
    return wrong


def _interrupt(project: Project, arguments: tuple[str, ...], sent: signal.Signals, moment: float) -> Ended:
    command = [sys.executable, "-m", "opencqrs_py", *arguments, "--project", str(project.folder)]
    with tempfile.TemporaryFile() as messages:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=messages, start_new_session=True)
        time.sleep(moment)
        began = time.monotonic()
        if process.poll() is None:
            os.killpg(process.pid, sent)
        try:
            process.wait(HANG)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        seconds = time.monotonic() - began
        messages.seek(0)
        return Ended(process.returncode, seconds, messages.read().decode(errors="replace"), _left_at_last(process.pid))


def _is_early(ended: Ended, sent: signal.Signals) -> bool:
    """Return whether Python had not come to our first line: it died by the signal, or its trace has no line of ours."""
    traced = "Traceback" in ended.err or "Fatal Python error" in ended.err
    return not OURS.search(ended.err) and (traced or (ended.code == -sent and not ended.err))


def _wrong(ended: Ended, limit: float) -> list[str]:
    said = ended.err.strip().splitlines()[-1:] or [""]
    checks = {
        f"it took {ended.seconds:.2f} s": ended.seconds <= limit,
        f"exit code {ended.code}": ended.code in {0, 130},
        f"it ended with {said[0]!r}": ended.code != 130 or said[0].startswith(("interrupted", "stopped;")),
        f"it said {ended.err!r}": not NOISE.search(ended.err),
        f"it left {len(ended.left)} processes": not ended.left,
    }
    return [what for what, good in checks.items() if not good]


def _left_at_last(session: int) -> list[int]:
    until = time.monotonic() + JVM_SECONDS
    while (left := _left(session)) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def _left(session: int) -> list[int]:
    """Return the processes of a session that live on; none where there is no /proc."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(file.parent.name))
    return found


def _finished(project: Project, log: Path) -> list[str]:
    """Import and handle the whole log; return what is wrong with the read models."""
    project.fill(log)
    code = project.opencqrs("run", "--until-caught-up").wait()
    failed = [f"the last run ended with exit code {code}: {project.said()}"] if code else []
    return failed + project.differences(log)


if __name__ == "__main__":
    sys.exit(main())
