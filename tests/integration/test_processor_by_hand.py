"""Processors made by hand on real databases: threads, processes, one that is killed, and one that takes over."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, Table, Text, insert, select
from support.observers import Watching

from opencqrs_py import Event as StoredEvent
from opencqrs_py import (
    EventHandlerDefinition,
    EventHandlingProcessor,
    FixedBackOff,
    PartitionKeyResolver,
    PerSubject,
    ProcessorOptions,
    SqlEventStore,
    SqlProgressTracker,
)
from opencqrs_py.adapters.sql import Database
from opencqrs_py.model import PartitionStatus, ProcessorState
from opencqrs_py.processing.recovery import Action
from opencqrs_py.testing import FakeClock

SECONDS = 300  # longest wait for another thread or process
LOOK_SECONDS = 0.01
PARTITIONS = 2
EVENTS = 400

metadata = MetaData()
handled = Table(
    "handled",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("event_id", Integer, nullable=False, unique=True),  # so that none can be applied twice
    Column("subject", Text, nullable=False),
)

# A separate process: handles one partition until a line tells it to stop.
WORKER = """
import sys
from sqlalchemy import Column, Connection, Integer, MetaData, Table, Text, insert
from opencqrs_py import (
    Database, Event, EventHandlerDefinition, EventHandlingProcessor, FixedBackOff, PartitionKeyResolver, PerSubject,
    ProcessorOptions, SqlEventStore, SqlProgressTracker,
)

url, partition = sys.argv[1], int(sys.argv[2])
handled = Table("handled", MetaData(), Column("event_id", Integer), Column("subject", Text))

def handle(raw: Event, connection: Connection) -> None:
    connection.execute(insert(handled).values(event_id=int(raw.id), subject=raw.subject))

database = Database(url)
processor = EventHandlingProcessor(
    partition, "/", True, SqlEventStore(database), SqlProgressTracker(database), PerSubject(),
    PartitionKeyResolver(2), [EventHandlerDefinition("orders", handle)], FixedBackOff(0.1),
    options=ProcessorOptions(batch_size=3),
)
processor.start()
print("started", flush=True)
sys.stdin.readline()
processor.stop()
print("stopped" if not processor.is_running else "still running", flush=True)
"""


class World:
    """A log, a read model, and processors for both partitions of one group."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.database = Database(url)
        self.store = SqlEventStore(self.database)
        self.before: dict[int, Callable[[], object]] = {}
        self.made: list[tuple[EventHandlingProcessor, Database]] = []
        self.workers: list[subprocess.Popen[str]] = []
        self._script = folder / "worker.py"
        self._script.write_text(WORKER)
        with self.database.writing() as connection:
            metadata.create_all(connection)

    def append(self, count: int = EVENTS) -> None:
        first = self.store.head()
        self.store.append(
            StoredEvent(0, str(n), "s", f"/order/{n % 7}", "t", None, "application/json", "{}", None)
            for n in range(first + 1, first + 1 + count)
        )

    def processor(self, partition: int, **options: Any) -> tuple[EventHandlingProcessor, Watching]:
        watching = Watching()

        def handle(raw: StoredEvent, connection: Connection) -> None:
            self.before.get(int(raw.id), lambda: None)()
            connection.execute(insert(handled).values(event_id=int(raw.id), subject=raw.subject))

        database = Database(self.url)  # as another process has it
        made = EventHandlingProcessor(
            partition,
            "/",
            True,  # noqa: FBT003 recursive
            SqlEventStore(database),
            SqlProgressTracker(database),
            PerSubject(),
            PartitionKeyResolver(PARTITIONS),
            [EventHandlerDefinition("orders", handle)],
            FixedBackOff(0.01),
            options=ProcessorOptions(observer=watching, **options),
        )
        self.made.append((made, database))
        return made, watching

    def launch(self, partition: int) -> subprocess.Popen[str]:
        """Start a process that handles a partition."""
        command = [sys.executable, str(self._script), self.url, str(partition)]
        worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.workers.append(worker)
        return worker

    def worker(self, partition: int) -> subprocess.Popen[str]:
        """Start such a process; return when it has claimed the partition."""
        return has_claimed(self.launch(partition))

    def ids(self, subject: str | None = None) -> list[int]:
        """Return the events handled, in the order in which they were."""
        chosen = select(handled.c.event_id).order_by(handled.c.number)
        if subject is not None:
            chosen = chosen.where(handled.c.subject == subject)
        with self.database.reading() as connection:
            return list(connection.execute(chosen).scalars())

    def statuses(self) -> list[PartitionStatus]:
        return SqlProgressTracker(self.database).statuses()

    def check(self) -> None:
        """Each event was handled exactly once, those of a subject in order, and the progress is at the head."""
        head = self.store.head()
        assert sorted(self.ids()) == list(range(1, head + 1))
        for number in range(7):
            assert self.ids(f"/order/{number}") == [n for n in range(1, head + 1) if n % 7 == number]
        assert [status.position for status in self.statuses()] == [head] * PARTITIONS

    def close(self) -> None:
        for processor, database in self.made:
            processor.stop(SECONDS)
            database.close()
        for worker in self.workers:
            worker.kill()
            worker.communicate()
        self.database.close()


def has_claimed(worker: subprocess.Popen[str]) -> subprocess.Popen[str]:
    assert worker.stdout is not None
    assert worker.stdout.readline() == "started\n"
    return worker


def until(condition: Callable[[], object]) -> None:
    """Wait for another process."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(LOOK_SECONDS)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    on_file = f"sqlite:///{tmp_path / 'orders.db'}"
    world = World(on_file if request.param == "sqlite" else request.getfixturevalue("postgresql_url"), tmp_path)
    yield world
    world.close()


def test_two_processors_in_two_threads_share_the_events_of_a_group(world: World) -> None:
    world.append()
    made = [world.processor(partition, batch_size=20) for partition in range(PARTITIONS)]
    for processor, _ in made:
        processor.start()
    world.append()
    until(lambda: len(world.ids()) == 2 * EVENTS)
    for processor, _ in made:
        processor.stop(SECONDS)
    world.check()
    assert {status.state for status in world.statuses()} == {ProcessorState.STOPPED}
    assert [notice for _, watching in made for notice in watching.notices] == []


@pytest.mark.parametrize("made", ["started", "stepped"])
def test_a_processor_whose_sqlite_file_is_missing_fails_and_continues_when_it_is_back(
    tmp_path: Path, made: str
) -> None:
    world = World(f"sqlite:///{tmp_path / 'orders.db'}", tmp_path)
    world.append(3)
    clock = FakeClock()
    processor, watching = world.processor(0, clock=clock)
    file, away = tmp_path / "orders.db", tmp_path / "away.db"
    if made == "started":
        processor.start()
        watching.wait_for(lambda: watching.steps)
        file.rename(away)
        watching.wait_for(lambda: watching.notices)
    else:
        assert processor.step() == 0
        file.rename(away)
        assert processor.step() == 30.0
    (notice,) = watching.notices
    assert notice.failure is not None
    assert (notice.action, notice.failure.error) == (Action.STOP, "DatabaseFileGoneError")
    assert f"where: {file}" in notice.failure.advice
    assert processor.status().state is ProcessorState.FAILED  # type: ignore[union-attr]
    away.rename(file)
    clock.advance(30)
    if made == "stepped":
        assert processor.step() in (0, None)
        assert processor.status().state is ProcessorState.RUNNING  # type: ignore[union-attr]
    processor.stop(SECONDS)
    world.close()


@pytest.mark.release(world="postgresql")
@pytest.mark.parametrize("kills", [(40,), pytest.param((40, 120), marks=pytest.mark.release)], ids=["once", "twice"])
def test_a_killed_process_is_replaced_and_nothing_is_lost_or_duplicated(world: World, kills: tuple[int, ...]) -> None:
    world.append()
    first, second = (world.worker(partition) for partition in range(PARTITIONS))
    for killed_at in kills:
        until(lambda killed_at=killed_at: len(world.ids()) >= killed_at)
        first.kill()
        assert first.wait(SECONDS) < 0
        first = world.worker(0)
        world.append(50)
    until(lambda: len(world.ids()) == world.store.head())
    for worker in (first, second):
        out, _ = worker.communicate("stop\n", timeout=SECONDS)
        assert out == "stopped\n"
    world.check()


def test_a_second_processor_takes_over_and_the_first_ends(world: World) -> None:
    world.append(14)
    other, _ = world.processor(1)
    other.start()
    old, old_watching = world.processor(0, batch_size=1)
    old.start()
    until(lambda: len(world.ids()) == 14)
    new, _ = world.processor(0, batch_size=1)
    new.start()
    world.append(14)
    assert old.join(SECONDS)
    until(lambda: len(world.ids()) == 28)
    assert [notice.action for notice in old_watching.notices] == [Action.LEAVE]
    assert old_watching.told[-1] == ("stopped", "orders", "0/2")
    assert world.statuses()[0].state is ProcessorState.RUNNING
    new.stop(SECONDS)
    other.stop(SECONDS)
    world.check()


@pytest.mark.release(world="sqlite")
def test_a_takeover_in_mid_chunk_waits_for_the_chunk_and_loses_nothing(world: World) -> None:
    entered, opened = Event(), Event()
    mine = next(n for n in range(1, 8) if PartitionKeyResolver(PARTITIONS)(f"/order/{n % 7}") == 0)

    def wait() -> None:
        entered.set()
        assert opened.wait(SECONDS)

    world.append(14)
    world.before[mine] = wait
    old, _ = world.processor(0, batch_size=3)
    old.start()
    assert entered.wait(SECONDS)
    del world.before[mine]
    new = world.launch(0)
    opened.set()
    has_claimed(new)
    world.append(14)
    assert old.join(SECONDS)
    other, _ = world.processor(1)
    other.start()
    until(lambda: len(world.ids()) == 28)
    other.stop(SECONDS)
    new.communicate("stop\n", timeout=SECONDS)
    world.check()
