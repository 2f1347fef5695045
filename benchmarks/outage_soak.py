"""Stop PostgreSQL in the middle of a run, start it again after a while, and see that the run goes on by itself.

    python benchmarks/outage_soak.py --seconds 60
    python benchmarks/outage_soak.py --seconds 5 --outages 3 --mode immediate

Event store, progress and read models are in the server that goes away. Meanwhile the partitions must be seen as
``waiting``; at the end every event must have been applied once, in order, with its first attempt. The exit code is 1
if one of this is not so.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

from servers import Server, machine
from soaking import Project, existing_file, made_up

from opencqrs_py import Application
from opencqrs_py.processing.notices import Observer
from opencqrs_py.processing.recovery import Action

LOOK = 0.02
"""Seconds between two looks at the run."""

PATIENCE = 120.0
"""Seconds that the run gets to go on after the server is back; its own longest wait is 30 seconds."""

MODES = ("fast", "immediate")
"""How the server is stopped: sessions are ended and work is rolled back, or as in a crash."""


class Sight(Observer):
    """Sees what the run does, as the command line's monitor does."""

    def __init__(self) -> None:
        self.handled = 0
        self.actions: Counter[str] = Counter()
        self.waiting: set[tuple[str, str]] = set()

    def noticed(self, notice: Any) -> None:
        """Count failures by what is done about it, and remember which partitions wait."""
        place = notice.group, str(notice.partition)
        self.actions[notice.action.name if notice.action else "RECOVERED"] += 1
        if notice.action is Action.WAIT:
            self.waiting.add(place)
        else:
            self.waiting.discard(place)

    def advanced(self, _group: str, _partition: Any, outcome: Any) -> None:
        """Count the events handled."""
        self.handled += outcome.handled


def main() -> int:
    """Run the soak and return the exit code."""
    options = _options()
    print(machine())
    with tempfile.TemporaryDirectory(prefix="opencqrs-outage-") as folder, _served() as server:
        return _soak(server, Path(folder), options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seconds", type=float, default=60, help="how long it is away, at least (default: %(default)s)"
    )
    parser.add_argument("--outages", type=int, default=1, help="how often (default: %(default)s)")
    parser.add_argument("--mode", choices=MODES, default="fast", help="how it is stopped (default: %(default)s)")
    parser.add_argument("--engine", choices=("spark", "thread"), default="thread")
    parser.add_argument("--log", type=existing_file, metavar="FILE", help="CloudEvents as NDJSON, .gz too")
    parser.add_argument("--events", type=int, default=60_000, help="events to make up without a log")
    parser.add_argument("--batch-size", type=int, default=100, help="events in one transaction (default: %(default)s)")
    parser.add_argument("--partitions", type=int, default=4, help="of one of the two groups (default: %(default)s)")
    return parser.parse_args()


@contextmanager
def _served() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        try:
            yield server
        finally:
            server.close()


def _soak(server: Server, folder: Path, options: argparse.Namespace) -> int:
    log = options.log or made_up(folder / "events.ndjson.gz", options.events, Random(1))
    settings = {"engine": options.engine, "batch_size": options.batch_size, "partitions": options.partitions}
    project = Project(folder, server.url, server.url, **settings)
    head = project.fill(log)
    print(f"{options.outages} outage(s) of {options.seconds:g} s, engine {options.engine}, {head:,} events", flush=True)
    run = Run(folder)
    wrong = []
    for number in range(1, options.outages + 1):
        run.wait_for(2 * head * number // (options.outages + 1), "the run did not come to the outage")
        wrong += _outage(server, run, options)
    run.end()
    wrong += project.differences(log)
    used = {name: count for name, count in run.sight.actions.items() if name not in ("WAIT", "RECOVERED")}
    wrong += [f"not only waited: {used}"] if used else []
    project.close()
    print("\n".join(f"  WRONG: {line}" for line in wrong) or "  equal: each event was applied exactly once, in order")
    return 1 if wrong else 0


def _outage(server: Server, run: Run, options: argparse.Namespace) -> list[str]:
    server.stop(options.mode)
    began, before = time.monotonic(), run.sight.handled
    print(f"  stopped after {before:,} events were handled", flush=True)
    shown = 0
    while (lasted := time.monotonic() - began) < options.seconds or (not shown and lasted < PATIENCE):
        time.sleep(LOOK)
        shown = max(shown, len(run.sight.waiting))
    print(f"  {shown} partitions were seen waiting, {run.seen_by_status()}", flush=True)
    if not run.thread.is_alive():
        return ["the run has ended during the outage"]
    server.start()
    back, stood = time.monotonic(), run.sight.handled
    run.wait_for(stood + 1, "the run did not go on")
    print(f"  went on {time.monotonic() - back:.1f} s after the server was back", flush=True)
    return [] if shown else ["no partition was seen waiting"]


class Run:
    """A run of the project's application on a thread.

    Args:
        folder: The project.
    """

    def __init__(self, folder: Path) -> None:
        self.sight = Sight()
        self.failure: BaseException | None = None
        self._application = Application.from_project(folder)
        self.thread = Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            result = self._application.run(observer=self.sight, until_caught_up=True)
        except BaseException as error:
            self.failure = error
        else:
            self.failure = RuntimeError("a partition failed") if result.failed else None

    def wait_for(self, handled: int, otherwise: str) -> None:
        """Wait until so many events were handled in this run.

        Raises:
            SystemExit: If that takes longer than the patience, or the run ends before.
        """
        until, reached = time.monotonic() + PATIENCE, self.sight.handled
        while self.sight.handled < handled:
            if self.sight.handled > reached:
                until, reached = time.monotonic() + PATIENCE, self.sight.handled
            if time.monotonic() > until or not self.thread.is_alive():
                sys.exit(f"{otherwise} ({self.failure or 'still running'})")
            time.sleep(LOOK)

    def seen_by_status(self) -> str:
        """Return what ``Application.status()`` answers now."""
        try:
            statuses = self._application.status()
        except Exception as error:
            return f"status() raised {type(error).__name__}"
        states = Counter(partition.state.value for group in statuses for partition in group.partitions)
        return f"status() answers {dict(states)}"

    def end(self) -> None:
        """Wait for the end of the run.

        Raises:
            SystemExit: If the run failed.
        """
        self.thread.join()
        if self.failure is not None:
            sys.exit(f"the run failed: {type(self.failure).__name__}: {self.failure}")


if __name__ == "__main__":
    sys.exit(main())
