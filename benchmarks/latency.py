"""Measure the time from the call that appends an event until the event is handled and the handler's work committed.

    python benchmarks/latency.py [--database sqlite|postgresql|both] [--events 1000] [--every 5]

One process appends an event every few milliseconds; another handles the events. All candidates write the same read
model in one transaction with the position. They alternate in rounds, so that a busy machine affects all of them:

* by hand: a loop on the bare driver; woken by NOTIFY on PostgreSQL, polling for changes every millisecond on SQLite
* eventsourcing: the public library, its projection runner woken by NOTIFY (``pip install eventsourcing``; it has no
  subscriptions on SQLite)
* opencqrs_py: the thread engine

Prints milliseconds: median, 95th and 99th percentile, and the median as a multiple of the loop by hand.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles

from latency_ways import WARM_UP, WAYS, Append
from servers import KINDS, kinds, machine, served

FOLLOWER = Path(__file__).with_name("latency_ways.py")
PATIENCE = 60.0  # seconds that the follower has for the remaining events after the last append


def measure(way: str, url: str, events: int, seconds: float) -> list[float]:
    """Append events at an interval in seconds, and return how many milliseconds each of them took."""
    appending = WAYS[way].appending(url)
    command = [sys.executable, str(FOLLOWER), way, url, str(events)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        with appending as append:
            if follower.stdout.readline() != "ready\n":
                msg = f"the follower of '{way}' did not start"
                raise RuntimeError(msg)
            append_paced(append, events, seconds)
        answer, _ = follower.communicate(timeout=PATIENCE)
    latencies: list[float] = json.loads(answer)
    return latencies


def append_paced(append: Append, events: int, seconds: float) -> None:
    """Append the warm-up events, then those that are measured."""
    due = time.monotonic()
    for number in range(WARM_UP + events):
        due += seconds
        time.sleep(max(0.0, due - time.monotonic()))
        append(number, f"account-{number % 100}", 0 if number < WARM_UP else time.monotonic_ns())


def table(latencies: dict[str, Sequence[float]]) -> list[str]:
    """Return one line for each way."""
    by_hand = median(next(iter(latencies.values())))
    lines = [f"  {'':<16}{'median':>8}{'p95':>8}{'p99':>8}{'max':>8}   median to by hand"]
    for way, times in latencies.items():
        cuts = quantiles(times, n=100)
        middle = median(times)
        figures = "".join(f"{value:>8.2f}" for value in (middle, cuts[94], cuts[98], max(times)))
        lines.append(f"  {way:<16}{figures}   {middle / by_hand:.2f}")
    return lines


def main() -> None:
    """Measure what the arguments select."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--database", choices=[*KINDS, "both"], default="both")
    parser.add_argument("--events", type=int, default=1_000, help="events per way and round")
    parser.add_argument("--every", type=float, default=5.0, help="milliseconds between two events")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default="", help="only these, separated by commas")
    given = parser.parse_args()
    print(machine())
    for kind in kinds(given.database):
        chosen = [n for n, way in WAYS.items() if kind in way.kinds and (not given.ways or n in given.ways.split(","))]
        for name in (name for name in chosen if not WAYS[name].installed):
            print(f"{kind}: {name} is left out (install the package {WAYS[name].package})")
        latencies: dict[str, list[float]] = {name: [] for name in chosen if WAYS[name].installed}
        if not latencies:
            print(f"{kind}: there is nothing to measure")
            continue
        with served(kind) as fresh:
            for _ in range(given.rounds):
                for name in latencies:
                    latencies[name] += measure(name, fresh(), given.events, given.every / 1_000)
        print(f"{kind}: milliseconds from append to commit, an event every {given.every:g} ms, {given.rounds} rounds")
        print(*table(dict(latencies)), sep="\n", flush=True)


if __name__ == "__main__":
    main()
