"""How long it takes to read a log of files, compared with a plain loop that parses each line with orjson.

The ways alternate, and the best time of each counts. The numbers of events are compared. ``--only noticing`` measures
how soon an appended line is noticed, and how long it takes to compute the fingerprint that each commit stores.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import orjson

from opencqrs_py.adapters.files import FileEventSource, event_line, format_of, writer_to
from opencqrs_py.model.event import Event
from opencqrs_py.model.selection import Selection

LIMIT = 1_000  # events per read, as in a group
RARE = "bank.opened.v1"
AIM = 2.0
AIM_OF_OTHERS = 2.5  # for lines of other shapes, some of which are longer than those of the loop
AIM_OF_MIXED = 3.0  # for lines of many shapes
GAPS = (0.1, 0.3)  # seconds between two appended lines, so that the watch polls slowly by then
MOST = 200  # most positions whose fingerprints are computed
LATEST = 60.0  # seconds after which a line is considered lost
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
    parser.add_argument("--check", action="store_true", help="fail if reading takes longer than promised")
    parser.add_argument("--only", choices=["reading", "noticing"], help="what to measure (default: both)")
    parser.add_argument("--lines", type=int, default=200, help="lines to append (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of the times at which they are appended (default: %(default)s)"
    )
    options = parser.parse_args()
    if options.only != "noticing":
        compare(options)
    if options.only != "reading":
        with tempfile.TemporaryDirectory() as folder:
            show("a line is noticed", noticed(Path(folder), options.lines, options.seed))
            for distance in (1, LIMIT):
                name = f"the fingerprint of a position, {distance:,} after the last one"
                show(name, fingerprinted(Path(folder), options.events, distance))


def compare(options: argparse.Namespace) -> None:
    """Read the log in each way, and print the times."""
    with tempfile.TemporaryDirectory() as folder:
        best = measured(ways(Path(folder), options.events), options.rounds)
    loop = best["loop with orjson"]
    for name, seconds in best.items():
        print(f"{name:48} {options.events / seconds:>10,.0f} events/s {seconds / loop:6.2f}")
    aims = dict.fromkeys(PROMISED, AIM) | {f"all events, {name}": AIM_OF_OTHERS for name in OTHERS}
    aims[f"all events, {MIXED}"] = AIM_OF_MIXED
    slow = [f"{name} (at most {aim})" for name, aim in aims.items() if best[name] > aim * loop]
    if options.check and slow:
        raise SystemExit(f"reading takes longer than promised, as a multiple of the loop: {'; '.join(slow)}")


def ways(folder: Path, number: int) -> dict[str, Callable[[], int]]:
    """Write the log in several formats, and return the functions that read it."""
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
    data = frozenset[str]()
    others = {
        name: rewrite(files["ndjson"], folder / f"{change.__name__}.ndjson", change) for name, change in OTHERS.items()
    }
    rare = Selection(types=frozenset({RARE}), attributes=data)
    return {
        "loop with orjson": lambda: looped(files["ndjson"]),
        "all events": lambda: read(files["ndjson"], Selection(attributes=data)),
        "all events, with every attribute": lambda: read(files["ndjson"], Selection()),
        "one type of four": lambda: 4 * read(files["ndjson"], rare),
        "all events, with spaces as Python's json writes": lambda: read(spaced, Selection(attributes=data)),
        **{f"all events, {name}": partial(read, path, Selection(attributes=data)) for name, path in others.items()},
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


def number_as_extension(fields: dict[str, Any], number: int) -> bytes:
    """Return the line of an event with an extension that is not a string."""
    return orjson.dumps({**fields, "shard": number % 16})


def data_first(fields: dict[str, Any], number: int) -> bytes:
    """Return the line of an event that begins with its data."""
    del number
    return orjson.dumps({"data": fields["data"], **fields})


def escaped(fields: dict[str, Any], number: int) -> bytes:
    """Return the line of an event with an escaped character."""
    del number
    fields["data"]["note"] = "für das Buch"
    return json.dumps(fields, separators=(",", ":")).encode()


def times_missing(fields: dict[str, Any], number: int) -> bytes:
    """Return the line of an event; every third line has no time."""
    if number % 3 == 0:
        del fields["time"]
    return orjson.dumps(fields)


def extensions_missing(fields: dict[str, Any], number: int) -> bytes:
    """Return the line of an event; every fifth line has an extension."""
    if number % 5 == 0:
        fields["traceparent"] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    return orjson.dumps(fields)


def mixed(fields: dict[str, Any], number: int) -> bytes:
    """Return the line of an event of one of eight shapes."""
    if number % 3 == 0:
        del fields["time"]
    if number % 5 == 0:
        fields["traceparent"] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    if number % 7 == 0:
        fields["shard"] = number % 16
    return orjson.dumps(fields)


MIXED = "of eight shapes"
OTHERS = {
    "with a number as extension": number_as_extension,
    "with the data first": data_first,
    "with an escaped character in each": escaped,
    "without a time in every third": times_missing,
    "with an extension in every fifth": extensions_missing,
    MIXED: mixed,
}
"""Functions that write the lines of the other logs."""


def rewrite(path: Path, to: Path, change: Callable[[dict[str, Any], int], bytes]) -> Path:
    """Copy a log, and change each line."""
    with path.open("rb") as lines, to.open("wb") as file:
        file.writelines(change(orjson.loads(line), at) + b"\n" for at, line in enumerate(lines))
    return to


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
    """Return the shortest processor time of each way, in seconds."""
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


def noticed(folder: Path, lines: int, seed: int) -> list[float]:
    """Append lines, one at a time; return how many seconds the watch took to notice each."""
    path, random, took = folder / "log.ndjson", Random(seed), list[float]()
    path.touch()
    with FileEventSource(path).watched() as watch, ThreadPoolExecutor(1) as executor, path.open("ab") as file:
        for number in range(lines):
            seen = executor.submit(lambda after: (watch.wait(after, LATEST), time.perf_counter()), number)
            time.sleep(random.uniform(*GAPS))
            file.write(event_line(made(number)))
            file.flush()
            written = time.perf_counter()
            head, at = seen.result()
            if head != number + 1:
                raise SystemExit(f"line {number + 1} was not noticed")
            took.append(at - written)
    return took


def fingerprinted(folder: Path, events: int, distance: int) -> list[float]:
    """Return the seconds that the fingerprints of some positions take, when they are read as in a group."""
    path, took = folder / f"{distance}.ndjson", list[float]()
    with path.open("wb") as file:
        file.writelines(event_line(made(number)) for number in range(events))
    source = FileEventSource(path)
    for after in range(0, min(events, MOST * distance), distance):
        upto = source.read(after, distance, Selection(), after + distance).upto
        begun = time.perf_counter()
        source.fingerprint(upto)
        took.append(time.perf_counter() - begun)
    source.close()
    return took


def show(name: str, took: list[float]) -> None:
    """Print the median and the maximum of some times."""
    middle, most = 1_000 * statistics.median(took), 1_000 * max(took)
    print(f"{name:56} median {middle:6.2f} ms, at most {most:6.2f} ms of {len(took):,}")


if __name__ == "__main__":
    main()
