"""Kill a run with SIGKILL at random moments, start it again, and compare the read models with a plain computation.

    python benchmarks/kill_soak.py --database both --kills 200 --seed 7 --log events.ndjson.gz
    python benchmarks/kill_soak.py --engine spark --kills 5

The killed process is ``opencqrs run --until-caught-up``. One kill in ten hits it at a random moment of its start. Every
other kill follows after a random part of the remaining log, so that the kills are spread over the whole log. Without
--log the events are made up. With --parking events fail and are parked with their sequences, and the run is repeated
until no event waits: parked events are handled later than others, but in the order of their sequences. With --scheduled
both groups are scheduled, and half of the kills hit the reading of the log, half the handling of batches. The exit code
is 1, and the differences are printed, if an event is missing, applied twice, out of order, or with a second attempt.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from servers import KINDS, OTHERS, kinds, machine, served
from soaking import Project, existing_file, made_up

POLL_SECONDS = 0.005
"""Seconds between two polls of the progress."""

WHILE_STARTING = 0.1
"""Share of the kills that come before the run has handled an event."""

PATIENCE = 120.0
"""Seconds after which a run without progress is abandoned."""

EVENTS_WAIT = 3
"""Exit code of a run after which events wait in the inbox."""

LINES = 20
"""Approximate number of progress lines that are printed."""


def main() -> int:
    """Run the soak and return the exit code."""
    options = _options()
    print(machine())
    good = True
    for kind in kinds(options.database):
        with served(kind) as fresh, tempfile.TemporaryDirectory(prefix="opencqrs-kills-") as folder:
            good = _soak(kind, fresh, Path(folder), options) and good
    return 0 if good else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=(*KINDS, *OTHERS, "both"), default="sqlite")
    parser.add_argument("--engine", choices=("spark", "thread"), default="thread")
    parser.add_argument("--kills", type=int, default=10, help="for each database (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same plan (default: %(default)s)")
    parser.add_argument("--log", type=existing_file, metavar="FILE", help="CloudEvents as NDJSON, .gz too")
    parser.add_argument("--parking", type=int, default=0, metavar="N", help="one event of N fails twice and is parked")
    parser.add_argument("--scheduled", action="store_true", help="both groups are scheduled")
    parser.add_argument("--events", type=int, default=100_000, help="events to make up without a log")
    parser.add_argument("--batch-size", type=int, default=100, help="events in one transaction (default: %(default)s)")
    parser.add_argument("--partitions", type=int, default=4, help="of one of the two groups (default: %(default)s)")
    return parser.parse_args()


def _soak(kind: str, fresh: Callable[[], str], folder: Path, options: argparse.Namespace) -> bool:
    chance = Random(options.seed)
    log = options.log or made_up(folder / "events.ndjson.gz", options.events, chance)
    settings = {"engine": options.engine, "batch_size": options.batch_size, "partitions": options.partitions}
    settings["scheduled"] = options.scheduled
    project = Project(folder, fresh(), fresh(), options.parking, **settings)
    head = project.fill(log)
    print(f"\n{kind}, engine {options.engine}: {options.kills} kills over {head:,} events", flush=True)
    began = time.monotonic()
    kills = Killer(project, head, options.kills, chance)
    done = kills.run()
    code = _run_to_the_end(project, waits=options.scheduled or options.parking > 0)
    wrong = project.differences(log)
    if code:
        wrong.append(f"the last run ended with exit code {code}: {project.last_messages()}")
    if done < options.kills:
        wrong.append(f"only {done} of {options.kills} kills fitted in: use a longer log or a smaller batch size")
    project.close()
    print(f"  {done} kills, {kills.starting} of them while starting, {time.monotonic() - began:.0f} s")
    print("\n".join(f"  WRONG: {line}" for line in wrong) or "  equal: each event was applied exactly once, in order")
    return not wrong


def _run_to_the_end(project: Project, *, waits: bool) -> int:
    """Run until all events are handled and the inbox is empty; return the last run's exit code."""
    until, fewest = time.monotonic() + PATIENCE, sys.maxsize
    while True:
        code = project.opencqrs("run", "--until-caught-up").wait()
        left = project.waiting() if waits else 0
        if left < fewest:
            until, fewest = time.monotonic() + PATIENCE, left
        if not left or code not in (0, EVENTS_WAIT) or time.monotonic() > until:
            return code


class Killer:
    """Kills runs of a project, one after the other.

    Args:
        project: The project, with its log.
        head: Position of the newest event.
        kills: Number of kills.
        chance: Source of the random moments.
    """

    def __init__(self, project: Project, head: int, kills: int, chance: Random) -> None:
        self.starting = 0
        self._project = project
        self._head = head
        self._kills = kills
        self._chance = chance
        self._start_up = 1.0  # seconds from the start of a run to its first progress; a guess until measured

    def run(self) -> int:
        """Kill the runs, and return how many were killed: fewer than requested if the log ended first."""
        for number in range(self._kills):
            process = self._project.opencqrs("run", "--until-caught-up")
            if number and self._chance.random() < WHILE_STARTING:
                self.starting += 1
                time.sleep(self._chance.uniform(0, self._start_up))
            else:
                self._wait_until_mid_run(process, self._kills - number)
            if process.poll() is not None:
                return number
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            if number % max(1, self._kills // LINES) == 0:
                print(f"  kill {number + 1} at {self._project.position():,.0f}", flush=True)
        return self._kills

    def _wait_until_mid_run(self, process: subprocess.Popen[bytes], kills_left: int) -> None:
        began, position = time.monotonic(), self._project.position()
        goal = position + self._chance.uniform(0, 2) * (self._head - position) / (kills_left + 1)
        seen = position
        while process.poll() is None and seen <= goal:
            time.sleep(POLL_SECONDS)
            before, seen = seen, self._project.position()
            if before == position < seen:
                self._start_up = time.monotonic() - began
            if seen == position and time.monotonic() - began > PATIENCE:
                process.kill()
                sys.exit(f"no progress within {PATIENCE:g} s:\n{self._project.last_messages()}")
        # Not always immediately after a commit.
        time.sleep(self._chance.uniform(0, 2 * POLL_SECONDS))


if __name__ == "__main__":
    sys.exit(main())
