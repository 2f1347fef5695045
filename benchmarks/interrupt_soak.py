"""Interrupt commands at random moments: each ends in time, with one line and its exit code, and leaves no process.

    python benchmarks/interrupt_soak.py --count 200 --seed 7
    python benchmarks/interrupt_soak.py --engine spark --count 30 --commands run doctor

The soak sends a signal to the whole process group, as a terminal does: Ctrl-C twice as often as SIGTERM. At the end it
imports the log, handles all of it, and compares the read models with a plain computation. The exit code is 1, and the
errors are printed, if a command took too long, printed more than its line, ended with another exit code or left a
process, or if an event is missing or was applied twice. Signals that arrive before Python runs our first line are only
counted, because no program in Python can handle them.
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
"""Commands that run until they are interrupted, and the longest time before their signal, in seconds."""

HANG = 120.0
"""Seconds after which a command is considered hung and is killed."""

JVM_SECONDS = 10.0
"""Seconds that a JVM has after the command to delete its files and end."""

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
    # In the background it is ignored, and commands would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
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
    parser.add_argument("--count", type=int, default=50, help="number of interrupts (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same plan (default: %(default)s)")
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=[*COMMANDS], help="default: all")
    parser.add_argument("--engine", choices=("spark", "thread"), default="thread")
    parser.add_argument("--database", choices=(*KINDS, *OTHERS), default="sqlite")
    parser.add_argument("--events", type=int, default=100_000, help="events of the log (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="within which a command must end")
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
            lasts[name] = min(8.0, max(lasts[name], moment * 1.5))  # it may run longer than assumed
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
    """Return whether the signal came before our first line: it killed Python, or the traceback has no line of ours."""
    traced = "Traceback" in ended.err or "Fatal Python error" in ended.err
    return not OURS.search(ended.err) and (traced or (ended.code == -sent and not ended.err))


def _wrong(ended: Ended, limit: float) -> list[str]:
    (last,) = ended.err.strip().splitlines()[-1:] or [""]
    checks = {
        f"it took {ended.seconds:.2f} s": ended.seconds <= limit,
        f"exit code {ended.code}": ended.code in {0, 130},
        f"its last line is {last!r}": ended.code != 130 or last.startswith(("interrupted", "stopped;")),
        f"it printed {ended.err!r}": not NOISE.search(ended.err),
        f"it left {len(ended.left)} processes": not ended.left,
    }
    return [what for what, good in checks.items() if not good]


def _left_at_last(session: int) -> list[int]:
    until = time.monotonic() + JVM_SECONDS
    while (left := _left(session)) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def _left(session: int) -> list[int]:
    """Return the processes of a session that are still running; none on systems without /proc."""
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
    failed = [f"the last run ended with exit code {code}: {project.last_messages()}"] if code else []
    return failed + project.differences(log)


if __name__ == "__main__":
    sys.exit(main())
