"""What a rebuild of a group costs the readers of its tables and the process that runs it, while events arrive.

    python benchmarks/rebuild.py --database sqlite postgresql mariadb --check
    python benchmarks/rebuild.py --database postgresql --engine spark --log events.ndjson.gz

A group counts the events of each subject. First it is replayed alone. Then one process runs the group, a second one
appends events at a steady rate, and a third one reads the table every 10 ms on a permanent connection. While these
three run, the group is first replayed into a separate database, and then a fourth process rebuilds it: the difference
is the cost of a rebuild on a machine with other work. Each replay runs in a separate process, as the rebuild does. Each
read covers the subjects to which events are appended, one read in fifty covers all subjects, and the result must
contain all of them, with at least as many events as the previous read. The longest read after the rebuild has caught
up is the upper limit of the swap's pause. The latency is the time from an append to the first read that shows it. With
--check the exit code is 1 if an aim is missed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from multiprocessing import get_context
from multiprocessing.synchronize import Event as Signal
from pathlib import Path
from statistics import median
from typing import Any

from servers import machine, served
from sqlalchemy import create_engine, text

from opencqrs_py import Application
from opencqrs_py.adapters.sql import Database
from opencqrs_py.model.cloudevents import parse_event

HANDLERS = """
from opencqrs_py import Event, event_handling, on_start
from sqlalchemy import Connection, text

@on_start("counts")
def tables(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS counts (subject VARCHAR(200) PRIMARY KEY, n INTEGER NOT NULL)"))

@event_handling("counts", types=["*"])
def count(event: Event, connection: Connection) -> None:
    row = {"subject": event.subject}
    if not connection.execute(text("UPDATE counts SET n = n + 1 WHERE subject = :subject"), row).rowcount:
        connection.execute(text("INSERT INTO counts VALUES (:subject, 1)"), row)
"""
PAUSE_MS = 100.0
"""Longest allowed pause of the readers on a server."""

LATENCY = 2.0
"""Largest allowed latency during the rebuild, divided by the latency before it."""

SPEED = 0.8
"""Least ratio of the events per second to those of a replay alone."""

EVERY = 0.01  # seconds between two reads
SUBJECTS = 1_000  # to which events are appended
ALL = "SELECT count(*), sum(n) FROM counts"
SOME = f"{ALL} WHERE subject BETWEEN '/0' AND '/{SUBJECTS - 1}'"
ALL_EVERY = 50
"""One read in this many is of the whole table: if all were, they would take a core away from the rebuild."""

APPENDS = 10  # per second
SPAWNED = get_context("spawn")


def application(folder: str, engine: str, partitions: int) -> Application:
    """Return the application of the project."""
    settings = [
        f"event-handling.standard.processing.engine={engine}",
        f"event-handling.standard.life-cycle.partitions={partitions}",
        "spark.master=local[2]",
    ]
    return Application.from_project(folder, overrides=settings)


def run(folder: str, engine: str, partitions: int, stop: Signal) -> None:
    """Run the group until it is stopped."""
    with application(folder, engine, partitions) as running:
        running.start()
        stop.wait()


def append(folder: str, rate: int, start: int, stop: Signal, answers: Any) -> None:
    """Append events of known subjects at a steady rate; put their numbers and times into the queue."""
    added: list[tuple[int, float]] = []
    number = start
    with application(folder, "thread", 1) as appending:
        store, began = appending.event_store, time.monotonic()
        while not stop.is_set():
            due = start + int((time.monotonic() - began) * rate)
            if due > number:
                store.append([parse_event(line(each, each % SUBJECTS)) for each in range(number, due)])
                number = due
                added.append((number, time.monotonic()))
            stop.wait(1 / APPENDS)
    answers.put(added)


def read(url: str, subjects: int, stop: Signal, answers: Any) -> None:
    """Read until stopped; put the time, duration and sum of each read into the queue, and the wrong results."""
    engine = create_engine(Database(url).url)
    seen: list[tuple[float, float, int]] = []
    wrong: list[Any] = []
    least = {SOME: (SUBJECTS, 0), ALL: (subjects, 0)}
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        while not stop.is_set():
            began = time.monotonic()
            query = SOME if (len(seen) + 1) % ALL_EVERY else ALL
            known, total = connection.execute(text(query)).one()
            ended = time.monotonic()
            if query == SOME:
                seen.append((ended, ended - began, int(total)))
            else:
                seen.append((ended, ended - began, seen[-1][2]))
            if known < least[query][0] or total < least[query][1]:
                wrong.append((query, known, int(total), least[query]))
            least[query] = known, int(total)
            time.sleep(max(0.0, EVERY - (ended - began)))
    engine.dispose()
    answers.put((seen, wrong))


def project(folder: str, module: str, events: str, url: str) -> None:
    """Write a project, with a unique module name, because modules stay loaded in a process."""
    Path(folder).mkdir()
    Path(folder, f"{module}.py").write_text(HANDLERS)
    settings = {"opencqrs": {"event-store": {"url": events}, "database": {"url": url}}}
    Path(folder, "application.yaml").write_text(json.dumps(settings))


def replay(folder: str, engine: str, partitions: int, answers: Any) -> None:
    """Replay the group into an empty database up to the head; put the events per second into the queue."""
    with application(folder, engine, partitions) as replaying:
        count = replaying.event_store.head()
        began = time.monotonic()
        replaying.run(until_caught_up=True)
        answers.put(count / (time.monotonic() - began))


def replayed(folder: str, engine: str, partitions: int) -> float:
    """Replay the group in a separate process, like the rebuild: without an open Spark, and with cold caches."""
    answers: Any = SPAWNED.SimpleQueue()
    process = SPAWNED.Process(target=replay, args=(folder, engine, partitions, answers))
    process.start()
    speed: float = answers.get()
    process.join()
    return speed


def rebuild(folder: str, engine: str, partitions: int, answers: Any) -> None:
    """Rebuild the group; put the times at which it began, caught up and had swapped into the queue."""
    times: list[tuple[float, int]] = []
    with application(folder, engine, partitions) as rebuilding:
        result = rebuilding.rebuilds.rebuild("counts", watcher=lambda p: times.append((time.monotonic(), p.position)))
    moving = [each for each in times if each[1] > 0] or times
    answers.put((times[0][0], moving[-1], time.monotonic(), result.seconds))


def line(number: int, subject: int) -> str:
    """Return an event as a line."""
    known = {"specversion": "1.0", "id": str(number), "source": "urn:rebuild", "type": "counted", "data": {}}
    return json.dumps({**known, "subject": f"/{subject}"})


def lines(log: Path | None, events: int) -> Iterator[str]:
    """Yield the events of a log, or made-up ones, after one event of each subject that gets more events later."""
    yield from (line(-1 - number, number) for number in range(SUBJECTS))
    if log is None:
        yield from (line(number, number % SUBJECTS) for number in range(events - SUBJECTS))
        return
    with gzip.open(log, "rt") if log.suffix == ".gz" else log.open() as file:
        yield from islice(file, events)


def measured(kind: str, engine: str, options: argparse.Namespace) -> bool:
    """Measure on one kind of database, and print it; return whether the aims are met."""
    with served(kind) as fresh, tempfile.TemporaryDirectory() as parent:
        url, events = fresh(), f"sqlite:///{parent}/events.db"
        folder, alone, beside = (str(Path(parent, name)) for name in ("group", "alone", "beside"))
        for each, own in ((folder, url), (alone, fresh()), (beside, fresh())):
            project(each, f"{Path(each).name}_on_{kind}_{engine}", events, own)
        with application(alone, engine, options.partitions) as first:
            first.event_store.append(map(parse_event, lines(options.log, options.events)))
            count = first.event_store.head()
        speed_alone = replayed(alone, engine, options.partitions)
        with application(folder, "thread", options.partitions) as first:
            first.run(until_caught_up=True)
        database = Database(url)
        with database.reading() as connection:
            subjects = connection.execute(text(ALL)).one()[0]
            unread = count - connection.execute(text(SOME)).one()[1]
        database.close()
        return _reported(kind, engine, (folder, beside), url, (count, subjects, int(unread), speed_alone), options)


def _reported(
    kind: str,
    engine: str,
    folders: tuple[str, str],
    url: str,
    known: tuple[int, int, int, float],
    options: argparse.Namespace,
) -> bool:
    count, subjects, unread, alone = known
    folder, beside = folders
    stop, answers = SPAWNED.Event(), [SPAWNED.SimpleQueue() for _ in range(3)]
    partitions = options.partitions
    running = SPAWNED.Process(target=run, args=(folder, "thread", partitions, stop))
    appending = SPAWNED.Process(target=append, args=(folder, options.rate, count, stop, answers[0]))
    reading = SPAWNED.Process(target=read, args=(url, subjects, stop, answers[1]))
    for process in (running, appending, reading):
        process.start()
    time.sleep(options.before)
    speed_beside = replayed(beside, engine, partitions)
    time.sleep(options.before)
    rebuilding = SPAWNED.Process(target=rebuild, args=(folder, engine, partitions, answers[2]))
    rebuilding.start()
    began, (caught, position), ended, swap = answers[2].get()
    rebuilding.join()
    time.sleep(2)
    stop.set()
    added, (seen, wrong) = answers[0].get(), answers[1].get()
    seen = [(at, length, read + unread) for at, length, read in seen]
    for process in (running, appending, reading):
        process.join(30)
        process.kill()
    speed = position / (caught - began)
    quiet = began - options.before
    pause, longest, usual = (
        1_000 * max((length for at, length, _ in seen if low <= at < high), default=0.0)
        for low, high in ((caught, ended + 1), (began, caught), (quiet, began))
    )
    before, during = (
        _latencies([each for each in added if low <= each[1] < high], seen)
        for low, high in ((quiet, began), (began, caught))
    )
    shown = (
        f"{kind:<10} {engine:<6} {count:>9,} events: {len(wrong)} wrong of {len(seen):,} reads; "
        f"longest read {pause:.0f} ms at the swap ({1_000 * swap:.0f} ms), {longest:.0f} before it, "
        f"{usual:.0f} before the rebuild; "
        f"rebuilt {speed:,.0f}/s, replayed alone {alone:,.0f}/s ({speed / alone:.2f}), "
        f"with the same load {speed_beside:,.0f}/s ({speed / speed_beside:.2f}); "
        f"latency {1_000 * during:.0f} ms ({1_000 * before:.0f} before)"
    )
    sys.stdout.write(f"{shown}\n")
    is_server = kind != "sqlite"
    quick = speed >= SPEED * alone and during <= LATENCY * before
    return quick and not wrong and not (is_server and pause > PAUSE_MS)


def _latencies(added: list[tuple[int, float]], seen: list[tuple[float, float, int]]) -> float:
    """Return the median time from an append to the first read that shows it."""
    found, index = [], 0
    for number, at in added:
        while index < len(seen) and seen[index][2] < number:
            index += 1
        if index < len(seen):
            found.append(seen[index][0] - at)
    return median(found) if found else float("nan")


def main() -> None:
    """Measure what the arguments select."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", nargs="+", default=["sqlite", "postgresql"], help="sqlite, postgresql, mariadb")
    parser.add_argument("--engine", nargs="+", default=["thread"], choices=["thread", "spark"])
    parser.add_argument("--events", type=int, default=100_000, help="most events of the log")
    parser.add_argument("--rate", type=int, default=500, help="events per second that are appended meanwhile")
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--before", type=float, default=10.0, help="seconds before the rebuild")
    parser.add_argument("--log", type=Path, help="CloudEvents as NDJSON")
    parser.add_argument("--check", action="store_true", help="exit with 1 if an aim is missed")
    options = parser.parse_args()
    sys.stdout.write(f"{machine()}; load {os.getloadavg()[0]:.1f}\n")
    met = [measured(kind, engine, options) for kind in options.database for engine in options.engine]
    sys.exit(1 if options.check and not all(met) else 0)


if __name__ == "__main__":
    main()
