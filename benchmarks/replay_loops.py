"""The process that handles the log of ``replay.py`` in one way: ``replay.py`` starts it, and it prints a line of JSON.

Not a benchmark itself. The loops written by hand read chunks of 1,000 events from our table, decode their data, and
write the read model and the position in one transaction. They do nothing else: no types, no partitions, no retries, no
claims.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import resource
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from threading import Event as Signal
from threading import Thread
from typing import Any, Self

import orjson
from process_tree import processes_below
from sqlalchemy import Engine, create_engine, event, make_url, text

from opencqrs_py.adapters.sql import Database
from opencqrs_py.processing.notices import Observer
from opencqrs_py.processing.recovery import Action

CHUNK = 1_000
"""Events in one transaction."""

POLL_SECONDS = 0.02
"""Seconds between two polls of the progress."""

WARM_UP = 0.1
"""Fraction of the events that is handled before the measurement begins."""

CREATE_POSITIONS = "CREATE TABLE positions (name TEXT PRIMARY KEY, position BIGINT NOT NULL)"
READ = "SELECT position, payload FROM opencqrs_events WHERE position > {} ORDER BY position LIMIT 1000"
MOVE = "UPDATE positions SET position = {} WHERE name = 'totals'"


class StopWatch:
    """Measures events per second between the end of the warm-up and the last commit."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.handled = 0
        self._began: tuple[int, float] | None = None
        self._ended = 0.0

    def add(self, events: int) -> None:
        """Record that this many more events have been committed."""
        self.handled += events
        self._ended = time.perf_counter()
        if self._began is None and self.handled >= self.total * WARM_UP:
            self._began = self.handled, self._ended

    @property
    def rate(self) -> float:
        """Events per second."""
        if self._began is None or self._ended <= self._began[1]:
            msg = f"only {self.handled} of {self.total} events were handled: too few to measure"
            raise RuntimeError(msg)
        return (self.handled - self._began[0]) / (self._ended - self._began[1])


def by_sqlalchemy(url: str, watch: StopWatch, *, many: bool) -> None:
    """Loop through SQLAlchemy Core, with a statement per event or an ``executemany`` per chunk."""
    from replay_handlers import UPSERT  # noqa: PLC0415 its statements depend on the environment

    engine, read, move = _engine(url), text(READ.format(":after")), text(MOVE.format(":position"))
    _create_position(url)
    position = 0
    while True:
        with engine.begin() as connection:
            rows = connection.execute(read, {"after": position}).all()
            if not rows:
                return
            decoded = [orjson.loads(payload) for _, payload in rows]
            values = [{"account": data["account"], "amount": data["amount"]} for data in decoded]
            if many:
                connection.execute(UPSERT, values)
            else:
                for value in values:
                    connection.execute(UPSERT, value)
            position = rows[-1][0]
            connection.execute(move, {"position": position})
        watch.add(len(rows))


def by_driver(url: str, watch: StopWatch, write: Callable[[Any, list[dict[str, Any]]], None]) -> None:
    """Loop on the bare driver; ``write`` gets its cursor and the decoded data of a chunk."""
    from replay_handlers import MARK  # noqa: PLC0415 its statements depend on the environment

    _create_position(url)
    read, move, position = READ.format(MARK), MOVE.format(MARK), 0
    with _driver(url) as connection:
        cursor = connection.cursor()
        while True:
            cursor.execute("BEGIN IMMEDIATE" if MARK == "?" else "BEGIN")
            rows = cursor.execute(read, (position,)).fetchall()
            if not rows:
                cursor.execute("ROLLBACK")
                return
            write(cursor, [orjson.loads(payload) for _, payload in rows])
            position = rows[-1][0]
            cursor.execute(move, (position,))
            cursor.execute("COMMIT")
            watch.add(len(rows))


def write_each(cursor: Any, decoded: list[dict[str, Any]]) -> None:
    """Send a statement per event."""
    from replay_handlers import DRIVER_SQL  # noqa: PLC0415 as above

    for data in decoded:
        cursor.execute(DRIVER_SQL, (data["account"], data["amount"]))


def write_many(cursor: Any, decoded: list[dict[str, Any]]) -> None:
    """Send an ``executemany`` per chunk."""
    from replay_handlers import DRIVER_SQL  # noqa: PLC0415 as above

    cursor.executemany(DRIVER_SQL, [(data["account"], data["amount"]) for data in decoded])


def write_count(cursor: Any, decoded: list[dict[str, Any]]) -> None:
    """Write one row per chunk, as the handler ``count`` does."""
    from replay_handlers import DRIVER_COUNT  # noqa: PLC0415 as above

    cursor.execute(DRIVER_COUNT, ("all", len(decoded), sum(data["amount"] for data in decoded)))


def write_computed(cursor: Any, decoded: list[dict[str, Any]]) -> None:
    """Compute, then send a statement, for each event, as the handler ``cpu`` does."""
    from replay_handlers import DRIVER_SQL, compute  # noqa: PLC0415 as above

    for data in decoded:
        compute(data["amount"])
        cursor.execute(DRIVER_SQL, (data["account"], data["amount"]))


class Failures(Observer):
    """Prints failures other than those of parked events: there should be none."""

    def noticed(self, notice: Any) -> None:
        """Print a failure."""
        if notice.action is not Action.PARK and notice.sequence_id is None:
            print(notice, file=sys.stderr)


class Poller:
    """Polls on a separate thread until the end of the block."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._over = Signal()
        self._thread = Thread(target=self._poll_until_over)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def poll(self) -> None:
        """Poll once."""
        raise NotImplementedError

    def _poll_until_over(self) -> None:
        while not self._over.wait(self._seconds):
            with suppress(Exception):  # the source may not exist yet, or no longer
                self.poll()


class CommittedPositions(Poller):
    """Reads the progress from the database, because Spark's tasks report it only at their end, seconds later."""

    def __init__(self, url: str, watch: StopWatch) -> None:
        super().__init__(POLL_SECONDS)
        self._database = Database(url)
        self._watch = watch

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.poll()
        self._database.close()

    def poll(self) -> None:
        """Add the events that were committed since the last poll."""
        with self._database.reading() as connection:
            found = connection.execute(text("SELECT avg(position) FROM opencqrs_progress")).scalar()
        if found is not None and int(found) > self._watch.handled:
            self._watch.add(int(found) - self._watch.handled)


class PeakMemory(Poller):
    """The peak memory of Java, and of the largest Python worker, below this process, in kB."""

    def __init__(self) -> None:
        super().__init__(10 * POLL_SECONDS)
        self.java = self.worker = 0

    def poll(self) -> None:
        """Record the largest values."""
        for process in processes_below(os.getpid()):
            with suppress(OSError, StopIteration):  # it has just ended
                peak, is_java = _peak(process), Path(f"/proc/{process}/comm").read_text() == "java\n"
                self.java, self.worker = max(self.java, peak * is_java), max(self.worker, peak * (not is_java))


class Commits(Failures):
    """Counts the events that our engine commits."""

    def __init__(self, watch: StopWatch) -> None:
        self._watch = watch

    def advanced(self, _group: str, _partition: Any, outcome: Any) -> None:
        """Count the committed events."""
        if outcome.handled:
            self._watch.add(outcome.handled)


def by_engine(url: str, watch: StopWatch, *, handler: str, partitions: int, engine: str = "thread") -> None:
    """Run one of our engines with one of the handlers; on Spark two workers, and not the driver, handle the events."""
    # Imported here, because their statements depend on the database.
    module = import_module("replay_frames" if handler == "frames" else "replay_handlers")

    from opencqrs_py import Application  # noqa: PLC0415 a loop by hand does not load it

    settings = {
        "event-store.url": url,
        "event-handling.standard.processing.engine": engine,
        "event-handling.standard.life-cycle.partitions": partitions,
        "spark.master": "local[2]",
        "spark.driver-handles": "never",
    }
    if handler == "poisoned":  # format the records of parked events, but do not show them
        logging.basicConfig(filename=os.devnull)
    function = getattr(module, handler)
    application = Application(settings, [function], Path(__file__).parent)
    gc.freeze()  # as opencqrs run does
    with CommittedPositions(url, watch) if engine == "spark" else nullcontext() as observer:
        result = application.run(observer=Commits(watch) if observer is None else Failures(), until_caught_up=True)
    if result.failed:
        raise RuntimeError([status.error for status in result.partitions if status.error])


def by_eventsourcing(url: str, watch: StopWatch) -> None:
    """Run the public library ``eventsourcing``."""
    from replay_eventsourcing import replay  # noqa: PLC0415 need not be installed

    replay(url, watch)


def _engine_way(engine: str, handler: str) -> Callable[[str, StopWatch, int], None]:
    return lambda url, watch, n: by_engine(url, watch, handler=handler, partitions=n, engine=engine)


HANDLERS = ("count", "each", "many", "columns", "cpu", "poisoned")
"""The handlers with which both engines are measured."""

WAYS: dict[str, Callable[[str, StopWatch, int], None]] = {
    "sqlalchemy": lambda url, watch, _: by_sqlalchemy(url, watch, many=False),
    "sqlalchemy-many": lambda url, watch, _: by_sqlalchemy(url, watch, many=True),
    "driver": lambda url, watch, _: by_driver(url, watch, write_each),
    "driver-many": lambda url, watch, _: by_driver(url, watch, write_many),
    "engine": lambda url, watch, n: by_engine(url, watch, handler="each", partitions=n),
    "engine-list": lambda url, watch, n: by_engine(url, watch, handler="many", partitions=n),
    "engine-list-sums": lambda url, watch, n: by_engine(url, watch, handler="sums", partitions=n),
    "engine-columns": lambda url, watch, n: by_engine(url, watch, handler="columns", partitions=n),
    "engine-exec": lambda url, watch, n: by_engine(url, watch, handler="each_exec_driver_sql", partitions=n),
    "engine-driver": lambda url, watch, n: by_engine(url, watch, handler="each_driver", partitions=n),
    "engine-driver-list": lambda url, watch, n: by_engine(url, watch, handler="many_driver", partitions=n),
    "hand-count": lambda url, watch, _: by_driver(url, watch, write_count),
    "hand-cpu": lambda url, watch, _: by_driver(url, watch, write_computed),
    **{f"thread-{name}": _engine_way("thread", name) for name in HANDLERS},
    **{f"spark-{name}": _engine_way("spark", name) for name in HANDLERS},
    "spark-frames": lambda url, watch, _: by_engine(url, watch, handler="frames", partitions=1, engine="spark"),
    "eventsourcing": lambda url, watch, _: by_eventsourcing(url, watch),
}


def _engine(url: str) -> Engine:
    parsed = make_url(url)
    if parsed.get_backend_name() == "postgresql":
        return create_engine(parsed.set(drivername="postgresql+psycopg"))
    engine = create_engine(parsed)

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


@contextmanager
def _driver(url: str) -> Iterator[Any]:
    if url.startswith("sqlite"):
        connection: Any = sqlite3.connect(make_url(url).database or "", isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
    else:
        import psycopg  # noqa: PLC0415 not needed for SQLite

        connection = psycopg.connect(url, autocommit=True)
    try:
        yield connection
    finally:
        connection.close()


def _create_position(url: str) -> None:
    with _driver(url) as connection:
        connection.execute(CREATE_POSITIONS)
        connection.execute("INSERT INTO positions VALUES ('totals', 0)")


def _peak(process: int | str = "self") -> int:
    """Return the peak memory of a process in kB; on Linux ``ru_maxrss`` would include the parent's."""
    status = Path(f"/proc/{process}/status")
    if status.exists():
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // 1024 if sys.platform == "darwin" else peak


def main() -> int:
    """Run one way: ``replay_loops.py WAY URL EVENTS PARTITIONS``."""
    way, url, events, partitions = sys.argv[1:]
    os.environ["REPLAY_DATABASE"] = "sqlite" if url.startswith("sqlite") else "postgresql"
    watch, began = StopWatch(int(events)), time.perf_counter()
    try:
        with PeakMemory() if way.startswith("spark") else nullcontext() as memory:
            WAYS[way](url, watch, int(partitions))
        whole = watch.handled / (time.perf_counter() - began)
        answer: dict[str, Any] = {"rate": watch.rate, "whole": whole, "handled": watch.handled, "peak": _peak()}
        if memory is not None:
            answer |= {"java": memory.java, "worker": memory.worker}
    except Exception as error:
        answer = {"skipped": f"{type(error).__name__}: {error}".splitlines()[0]}
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
