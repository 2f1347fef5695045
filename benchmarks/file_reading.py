"""How long it takes to read a log of files, by a plain loop that parses each line with orjson.

The ways take turns, and the best time of each counts. What is read is checked.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from opencqrs_py.adapters.files import FileEventSource, format_of, writer_to
from opencqrs_py.model.event import Event
from opencqrs_py.model.selection import Selection

LIMIT = 1_000  # events a read, as a group asks for
RARE = "bank.opened.v1"
AIM = 2.0
PROMISED = (
    "all events",
    "one type of four",
    "all events, with spaces as Python's json writes",
    "all events, .gz",
    "all events, .zst",
    "all events, .parquet",
)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000, help="events in the log (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each way (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="fail if reading takes more than what is promised")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        best = measured(ways(Path(folder), options.events), options.rounds)
    loop = best["loop with orjson"]
    for name, seconds in best.items():
        print(f"{name:44} {options.events / seconds:>10,.0f} events/s {seconds / loop:6.2f}")
    slow = [name for name in PROMISED if best[name] > AIM * loop]
    if options.check and slow:
        raise SystemExit(f"reading takes more than {AIM} times as long as the loop: {'; '.join(slow)}")


def ways(folder: Path, number: int) -> dict[str, Callable[[], int]]:
    """Write the log in several formats, and return what reads it."""
    events = [made(n) for n in range(number)]
    files = {suffix: folder / f"log.{suffix}" for suffix in ("ndjson", "ndjson.gz", "ndjson.zst", "parquet")}
    for path in files.values():
        form = format_of(path.name)
        assert form is not None
        with path.open("wb") as file, writer_to(file, form) as writer:
            writer.write(events)
    spaced = folder / "spaced.ndjson"
    with files["ndjson"].open("rb") as lines, spaced.open("w") as file:
        file.writelines(json.dumps(orjson.loads(line)) + "\n" for line in lines)
    varied = folder / "varied.ndjson"
    with files["ndjson"].open("rb") as lines, varied.open("wb") as file:
        file.writelines(vary(orjson.loads(line), at) for at, line in enumerate(lines))
    data = frozenset[str]()
    rare = Selection(types=frozenset({RARE}), attributes=data)
    return {
        "loop with orjson": lambda: looped(files["ndjson"]),
        "all events": lambda: read(files["ndjson"], Selection(attributes=data)),
        "all events, with every attribute": lambda: read(files["ndjson"], Selection()),
        "one type of four": lambda: 4 * read(files["ndjson"], rare),
        "all events, with spaces as Python's json writes": lambda: read(spaced, Selection(attributes=data)),
        "all events, with attributes that vary": lambda: read(varied, Selection(attributes=data)),
        "loop with orjson, .gz": lambda: looped_packed(files["ndjson.gz"]),
        "all events, .gz": lambda: read(files["ndjson.gz"], Selection(attributes=data)),
        "all events, .zst": lambda: read(files["ndjson.zst"], Selection(attributes=data)),
        "all events, .parquet": lambda: read(files["parquet"], Selection(attributes=data)),
        "count": lambda: FileEventSource(files["ndjson"]).head(),
    }


def made(number: int) -> Event:
    """Return an event of a common size."""
    return Event(
        0,
        str(number),
        "urn:bank",
        f"/accounts/{number * 7919 % 1_000}",
        RARE if number % 4 == 0 else "bank.paid.v1",
        f"2026-01-05T09:{number // 60 % 60:02}:{number % 60:02}Z",
        "application/json",
        f'{{"account":"{number * 7919 % 1_000}","amount":{number % 10_000 / 100},"note":"for the book"}}',
        None,
    )


def vary(fields: dict[str, Any], number: int) -> bytes:
    """Return the line of an event; every third has no time, and every fifth an extension."""
    if number % 3 == 0:
        del fields["time"]
    if number % 5 == 0:
        fields["traceparent"] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    return orjson.dumps(fields) + b"\n"


def looped(path: Path) -> int:
    """Parse each line of a file."""
    count = 0
    with path.open("rb") as lines:
        for line in lines:
            orjson.loads(line)
            count += 1
    return count


def looped_packed(path: Path) -> int:
    """Parse each line of a compressed file."""
    count = 0
    with gzip.open(path) as lines:
        for line in lines:
            orjson.loads(line)
            count += 1
    return count


def read(path: Path, selection: Selection) -> int:
    """Read a file as a group does."""
    source, after, count = FileEventSource(path), 0, 0
    while (part := source.read(after, LIMIT, selection)).upto > after:
        after, count = part.upto, count + len(part.events)
    source.close()
    return count


def measured(ways: dict[str, Callable[[], int]], rounds: int) -> dict[str, float]:
    """Return the least seconds of processor time that each way took."""
    best: dict[str, float] = {}
    for _ in range(rounds):
        counts = set()
        for name, way in ways.items():
            begun = time.process_time()
            counts.add(way())
            best[name] = min(best.get(name, float("inf")), time.process_time() - begun)
        if len(counts) != 1:
            raise SystemExit(f"the ways disagree on the number of events: {sorted(counts)}")
    return best


if __name__ == "__main__":
    main()
