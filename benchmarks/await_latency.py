"""Measure how long ``await_position`` takes from the append, and the group's own latency in the same run.

    python benchmarks/await_latency.py [--database sqlite|postgresql|both] [--events 500] [--partitions 1,4]

One process follows with the thread engine, and records when it has committed each event. The other process appends an
event, waits for it, and appends the next one; in every other round it appends at the same rate without waiting. The two
kinds of round alternate, so that a busy machine affects both.

Prints milliseconds from the beginning of the append: until the commit without a waiting caller, until the commit with
one, and until ``await_position`` returns; and the milliseconds between the commit and that return.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from latency_opencqrs import OBSERVER, create, pay
from servers import KINDS, kinds, machine, served

from opencqrs_py import Application, Observer
from opencqrs_py.model.event import Event

HERE = Path(__file__).parent
WARM_UP = 50  # events that are not measured
PATIENCE = 120.0


class Commits(Observer):
    """Records when events were committed."""

    def __init__(self) -> None:
        self.at: dict[int, int] = {}

    def handled(self, _at: int) -> None:
        """Do nothing: the handler calls this for ``latency.py``."""

    def advanced(self, _group: str, _partition: object, outcome: Any) -> None:
        """Record the time after each step."""
        if outcome.handled:
            self.at[outcome.cursor.stored] = time.monotonic_ns()


def application(url: str, partitions: int) -> Application:
    """Return the application of both processes."""
    settings = {
        "event-store.url": url,
        "event-handling.standard.processing.engine": "thread",
        "event-handling.groups.totals.life-cycle.partitions": partitions,
    }
    return Application(settings, [create, pay], HERE)


def follow(url: str, partitions: int) -> None:
    """Run the group until standard input has a line; then print when each event was committed."""
    commits = OBSERVER.latencies = Commits()
    with application(url, partitions) as following:
        following.start(observer=commits)
        print("ready", flush=True)
        sys.stdin.readline()
    print(json.dumps(commits.at))


def measure(url: str, partitions: int, events: int, rounds: int, every: float) -> dict[str, list[float]]:
    """Return the times of the events, by what was measured."""
    command = [sys.executable, __file__, "--follow", url, "--partitions", str(partitions)]
    pipe = subprocess.PIPE
    taken: list[tuple[int, bool, int, int]] = []  # position, whether a caller waited for it, begin, end
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as follower:
        assert follower.stdout is not None
        if follower.stdout.readline() != "ready\n":
            raise RuntimeError("the follower did not start")
        with application(url, partitions) as appending:
            store, position = appending.event_store, 0
            for turn in range(2 * rounds):
                waits = turn % 2 == 1
                for number in range(WARM_UP + events):
                    position += 1
                    began = time.monotonic_ns()
                    store.append([paid(position)])
                    if waits:
                        appending.await_position("totals", position, PATIENCE)
                    ended = time.monotonic_ns()
                    if number >= WARM_UP:
                        taken.append((position, waits, began, ended))
                    time.sleep(max(0.0, every - (time.monotonic_ns() - began) / 1e9))
                appending.await_position("totals", position, PATIENCE)
        answer, _ = follower.communicate("end\n", timeout=PATIENCE)
    committed = {int(at): ns for at, ns in json.loads(answer).items()}
    known = [(waits, committed[at] - began, ended - began) for at, waits, began, ended in taken if at in committed]
    return {
        "own, no waiting": [own / 1e6 for waits, own, _ in known if not waits],
        "own, with waiting": [own / 1e6 for waits, own, _ in known if waits],
        "await_position": [whole / 1e6 for waits, _, whole in known if waits],
        "after the commit": [(whole - own) / 1e6 for waits, own, whole in known if waits],
    }


def paid(number: int) -> Event:
    """Return an event."""
    account = f"account-{number % 100}"
    payload = json.dumps({"account": account, "at": 0})
    return Event(0, str(number), "bank", f"/{account}", "paid", None, "application/json", payload, None)


def table(taken: dict[str, list[float]]) -> list[str]:
    """Return one line for each measurement."""
    lines = [f"    {'':<20}{'median':>8}{'p95':>8}{'p99':>8}"]
    for name, times in taken.items():
        cuts = quantiles(times, n=100)
        lines.append(f"    {name:<20}" + "".join(f"{value:>8.2f}" for value in (median(times), cuts[94], cuts[98])))
    return lines


def main() -> None:
    """Measure what the arguments select."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--database", choices=[*KINDS, "both"], default="both")
    parser.add_argument("--events", type=int, default=500, help="events per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--every", type=float, default=10.0, help="minimum milliseconds between two events")
    parser.add_argument("--partitions", default="1,4", help="numbers of partitions, separated by commas")
    parser.add_argument("--follow", metavar="URL", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.follow:
        follow(given.follow, int(given.partitions))
        return
    print(machine())
    for kind in kinds(given.database):
        with served(kind) as fresh:
            for partitions in map(int, given.partitions.split(",")):
                print(f"{kind}, {partitions} partition(s): milliseconds", flush=True)
                taken = measure(fresh(), partitions, given.events, given.rounds, given.every / 1_000)
                print(*table(taken), sep="\n", flush=True)


if __name__ == "__main__":
    main()
