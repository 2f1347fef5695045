"""How fast a buffered Parquet writer with its own checkpoints is, compared with a loop written by hand.

    python benchmarks/checkpointing.py --check
    python benchmarks/checkpointing.py --events 300000 --repeats 5

Each way writes the events of a log in SQLite to Parquet files. ``loop`` reads rows, decodes them, and writes a file and
its position for every 10,000 events, as people write such code today. ``participant``, a class with ``@checkpointing``
that takes tables, does the same. ``by event`` is such a class that takes one event at a time. ``chunks`` is an ordinary
handler with transactions of 100 events, which must write a file for each chunk, because the progress moves with it. The
ways alternate, each in a separate process, and are measured from the claim to the last commit; the best of each counts.
At the end each event must be in exactly one file. With --check the exit code is 1 if an aim is missed.

Measured on two cores that other programs used as well: at load 4, with 200,000 events, the participant reached 1.60 of
the loop (196,291 of 122,479 events per second) and 9.5 times the chunks, ``by event`` 0.88 of the loop; at load 19,
with 60,000 events, the participant reached 3.0 and 8.9.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from servers import machine
from typing_extensions import override

from opencqrs_py import (
    Application,
    CheckpointParticipant,
    CheckpointTrigger,
    Event,
    Observer,
    ProcessingContext,
    checkpointing,
    event_handling,
    event_type,
)
from opencqrs_py.adapters.sql import Database, SqlEventStore

EVENTS, BUFFER, CHUNK = 200_000, 10_000, 100
LEAST_OF_LOOP, LEAST_OF_CHUNKS = 0.8, 5.0
FOLDER = Path("files")  # below the working folder of a run


@event_type("taxi.trip-ended.v1")
@dataclass(frozen=True)
class TripEnded:
    """A trip of a taxi."""

    taxi: str
    kilometres: float
    cents: int


def write(table: pa.Table) -> None:
    """Write a file, named after its first position."""
    pq.write_table(table, FOLDER / f"{table['position'][0].as_py():012}.parquet")


@checkpointing("participant")
class Tables(CheckpointParticipant):
    """Buffers the tables of chunks."""

    def __init__(self) -> None:
        self.tables: list[pa.Table] = []
        self.events = 0

    @event_handling(events=TripEnded)
    def add(self, trips: pa.Table, trigger: CheckpointTrigger) -> None:
        """Buffer a chunk."""
        self.tables.append(trips)
        self.events += len(trips)
        if self.events >= BUFFER:
            trigger.request()

    def on_checkpoint(self, _partition: Any, requested: int) -> int:
        """Write the buffered tables."""
        if self.tables:
            write(pa.concat_tables(self.tables))
            self.tables, self.events = [], 0
        return requested


@checkpointing("by_event")
class Rows(CheckpointParticipant):
    """Buffers single events."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, str, float, int]] = []

    @event_handling
    def add(self, trip: TripEnded, context: ProcessingContext, trigger: CheckpointTrigger) -> None:
        """Buffer an event."""
        self.rows.append((context.position, trip.taxi, trip.kilometres, trip.cents))
        if len(self.rows) >= BUFFER:
            trigger.request()

    def on_checkpoint(self, _partition: Any, requested: int) -> int:
        """Write the buffered events."""
        if self.rows:
            write(table_of(self.rows))
            self.rows = []
        return requested


@event_handling("chunks", events=TripEnded)
def write_chunk(trips: pa.Table) -> None:
    """Write a file for a chunk, which must be durable before the progress moves."""
    write(trips)


def table_of(rows: list[tuple[int, str, float, int]]) -> pa.Table:
    """Return rows as columns."""
    return pa.table(dict(zip(("position", "taxi", "kilometres", "cents"), zip(*rows, strict=True), strict=True)))


WAYS = {"loop": None, "participant": Tables, "by event": Rows, "chunks": write_chunk}


class Watch(Observer):
    """Measures the seconds from the first claim to the release."""

    def __init__(self) -> None:
        self.began = self.ended = 0.0

    @override
    def claimed(self, group: str, partition: Any, position: int) -> None:
        self.began = self.began or time.perf_counter()

    @override
    def stopped(self, group: str, partition: Any) -> None:
        self.ended = time.perf_counter()


def loop(file: str) -> float:
    """Read, decode, buffer and write by hand; return the seconds."""
    began, position, rows = time.perf_counter(), 0, list[tuple[int, str, float, int]]()
    chosen = "SELECT position, payload FROM opencqrs_events WHERE position > ? AND type = ? ORDER BY position LIMIT ?"
    with closing(sqlite3.connect(file)) as log, closing(sqlite3.connect("progress.db")) as progress:
        progress.execute("CREATE TABLE progress (position INTEGER)")
        progress.execute("INSERT INTO progress VALUES (0)")
        progress.commit()
        while page := log.execute(chosen, [position, "taxi.trip-ended.v1", BUFFER]).fetchall():
            for at, payload in page:
                trip = TripEnded(**json.loads(payload))
                rows.append((at, trip.taxi, trip.kilometres, trip.cents))
            position = page[-1][0]
            if len(rows) >= BUFFER:
                write(table_of(rows))
                rows = []
                progress.execute("UPDATE progress SET position = ?", [position])
                progress.commit()
        if rows:
            write(table_of(rows))
    return time.perf_counter() - began


def main() -> int:
    """Measure and return the exit code."""
    options = _options()
    print(machine())
    best = dict.fromkeys(WAYS, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/events.db"
        database = Database(f"sqlite:///{file}")
        SqlEventStore(database).append(_events(options.events))
        database.close()
        for _ in range(options.repeats):
            for way in WAYS:
                best[way] = max(best[way], options.events / _seconds(way, file, options.events))
    print(
        f"{options.events:,} events: " + ", ".join(f"{way} {rate:,.0f}" for way, rate in best.items()) + " per second"
    )
    ours = best["participant"]
    of_loop, of_chunks = ours / best["loop"], ours / best["chunks"]
    print(f"participant: {of_loop:.2f} of the loop (at least {LEAST_OF_LOOP}),", end=" ")
    print(f"{of_chunks:.1f} times the chunks (at least {LEAST_OF_CHUNKS:g})")
    return 1 if options.check and (of_loop < LEAST_OF_LOOP or of_chunks < LEAST_OF_CHUNKS) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=EVENTS, help=f"events of the log (default: {EVENTS:,})")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each way; the best counts (default: 3)")
    parser.add_argument("--check", action="store_true", help="exit with 1 if an aim is missed")
    return parser.parse_args()


def _events(count: int) -> Iterator[Event]:
    for number in range(count):
        data = json.dumps({"taxi": f"taxi-{number % 40}", "kilometres": number % 300 / 10, "cents": number % 7_000})
        yield Event(
            0, str(number), "s", f"/t/{number % 40}", "taxi.trip-ended.v1", None, "application/json", data, None
        )


def _seconds(way: str, file: str, events: int) -> float:
    here, there = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=_run, args=(there, way, file, events))
    process.start()
    there.close()
    try:
        seconds: float = here.recv()
    except EOFError:
        sys.exit(f"the run of {way} ended without a result")
    process.join()
    return seconds


def _run(answer: Pipe, way: str, file: str, events: int) -> None:
    import os  # noqa: PLC0415 for this process only

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        FOLDER.mkdir()
        seconds = loop(file) if way == "loop" else _handled(way, file)
        _check(way, events)
        answer.send(seconds)


def _handled(way: str, file: str) -> float:
    watch = Watch()
    settings: dict[str, Any] = {
        "event-store.url": f"sqlite:///{file}",
        "database.url": "sqlite:///progress.db",
        "event-handling.standard.processing.engine": "thread",
    }
    if way == "chunks":
        settings["event-handling.standard.processing.batch-size"] = CHUNK
    with Application(settings, [WAYS[way]], Path.cwd()) as application:
        application.run(until_caught_up=True, observer=watch)
    return watch.ended - watch.began


def _check(way: str, events: int) -> None:
    positions = [at for file in sorted(FOLDER.iterdir()) for at in pq.read_table(file)["position"].to_pylist()]
    if positions != list(range(1, events + 1)):
        sys.exit(f"{way}: {len(positions)} events in files, not {events} in order")


if __name__ == "__main__":
    sys.exit(main())
