"""Stop PostgreSQL in the middle of a run, start it again, and check that the run continues automatically.

    python benchmarks/outage_soak.py --seconds 60
    python benchmarks/outage_soak.py --seconds 5 --outages 3 --mode immediate

The event store, the progress and the read models are on the server that is stopped. Meanwhile partitions must be shown
as ``waiting``; in the end every event must have been applied once, in order, with its first attempt. Otherwise the exit
code is 1.
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

POLL_SECONDS = 0.02
"""Seconds between two polls of the run."""

PATIENCE = 120.0
"""Seconds within which the run must continue after the server is back; its own longest wait is 30 seconds."""

MODES = ("fast", "immediate")
"""How the server is stopped: by ending sessions and rolling back their work, or as in a crash."""


class RunObserver(Observer):
    """Observes the run, as the monitor of the command line does."""

    def __init__(self) -> None:
        self.handled = 0
        self.actions: Counter[str] = Counter()
        self.waiting: set[tuple[str, str]] = set()

    def noticed(self, notice: Any) -> None:
        """Count failures by the action that follows, and remember which partitions wait."""
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
        "--seconds", type=float, default=60, help="shortest duration of an outage (default: %(default)s)"
    )
    parser.add_argument("--outages", type=int, default=1, help="number of outages (default: %(default)s)")
    parser.add_argument(
        "--mode", choices=MODES, default="fast", help="how the server is stopped (default: %(default)s)"
    )
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
        run.wait_for(2 * head * number // (options.outages + 1), "the run did not reach the position of the outage")
        wrong += _outage(server, run, options)
    run.end()
    wrong += project.differences(log)
    used = {name: count for name, count in run.observer.actions.items() if name not in ("WAIT", "RECOVERED")}
    wrong += [f"the run did more than wait: {used}"] if used else []
    project.close()
    print("\n".join(f"  WRONG: {line}" for line in wrong) or "  equal: each event was applied exactly once, in order")
    return 1 if wrong else 0


def _outage(server: Server, run: Run, options: argparse.Namespace) -> list[str]:
    server.stop(options.mode)
    began, before = time.monotonic(), run.observer.handled
    print(f"  stopped after {before:,} events were handled", flush=True)
    shown = 0
    while (lasted := time.monotonic() - began) < options.seconds or (not shown and lasted < PATIENCE):
        time.sleep(POLL_SECONDS)
        shown = max(shown, len(run.observer.waiting))
    print(f"  {shown} partitions were seen waiting, {run.shown_states()}", flush=True)
    if not run.thread.is_alive():
        return ["the run has ended during the outage"]
    server.start()
    back, before = time.monotonic(), run.observer.handled
    run.wait_for(before + 1, "the run did not continue")
    print(f"  continued {time.monotonic() - back:.1f} s after the server was back", flush=True)
    return [] if shown else ["no partition was seen waiting"]


class Run:
    """A run of the project's application on a thread.

    Args:
        folder: The project.
    """

    def __init__(self, folder: Path) -> None:
        self.observer = RunObserver()
        self.failure: BaseException | None = None
        self._application = Application.from_project(folder)
        self.thread = Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            result = self._application.run(observer=self.observer, until_caught_up=True)
        except BaseException as error:
            self.failure = error
        else:
            self.failure = RuntimeError("a partition failed") if result.failed else None

    def wait_for(self, handled: int, failure: str) -> None:
        """Wait until this run has handled this many events.

        Raises:
            SystemExit: If no event is handled for ``PATIENCE`` seconds, or the run ends first.
        """
        until, reached = time.monotonic() + PATIENCE, self.observer.handled
        while self.observer.handled < handled:
            if self.observer.handled > reached:
                until, reached = time.monotonic() + PATIENCE, self.observer.handled
            if time.monotonic() > until or not self.thread.is_alive():
                sys.exit(f"{failure} ({self.failure or 'still running'})")
            time.sleep(POLL_SECONDS)

    def shown_states(self) -> str:
        """Return the states that ``Application.status()`` shows now."""
        try:
            statuses = self._application.status()
        except Exception as error:
            return f"status() raised {type(error).__name__}"
        states = Counter(partition.state.value for group in statuses for partition in group.partitions)
        return f"status() shows {dict(states)}"

    def end(self) -> None:
        """Wait until the run ends.

        Raises:
            SystemExit: If the run failed.
        """
        self.thread.join()
        if self.failure is not None:
            sys.exit(f"the run failed: {type(self.failure).__name__}: {self.failure}")


if __name__ == "__main__":
    sys.exit(main())
