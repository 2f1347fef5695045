"""Concurrent use of one database: by threads with separate connections, and by processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from threading import Event as Signal

import pytest
from sqlalchemy import text

from opencqrs_py.adapters.sql import Database, DatabaseTransactions, SqlEventStore, SqlProgressTracker
from opencqrs_py.model import Event, Selection

SECONDS = 300  # longest wait for another thread or process


def event(name: str) -> Event:
    return Event(0, name, "s", "/books/1", "lent", None, "application/json", None, None)


def following(store: SqlEventStore, expected: int, after: int = 0) -> list[Event]:
    """Read on as a processor does, until so many events have been seen."""
    seen: list[Event] = []
    while len(seen) < expected:
        part = store.read(after, 7, Selection())
        assert part.upto >= after
        seen.extend(part.events)
        after = part.upto
    return seen


def test_a_reader_that_follows_many_writers_sees_each_event_once_and_in_order(
    open_database: Callable[[], Database],
) -> None:
    writers, appends, size = 4, 12, 5
    stores = [SqlEventStore(open_database()) for _ in range(writers + 1)]
    together = Barrier(writers + 1)

    def broken(names: list[str]) -> Iterator[Event]:
        yield from map(event, names)
        msg = "broken off"
        raise ValueError(msg)

    def write(writer: int) -> None:
        together.wait(SECONDS)
        for append in range(appends):
            names = [f"{writer}-{append}-{n}" for n in range(size)]
            if append % 3 == 0:
                with pytest.raises(ValueError, match="broken off"):
                    stores[writer].append(broken(names))
            stores[writer].append(map(event, names))

    def read() -> list[Event]:
        together.wait(SECONDS)
        return following(stores[writers], writers * appends * size)

    with ThreadPoolExecutor(writers + 1) as threads:
        reading = threads.submit(read)
        for writing in [threads.submit(write, writer) for writer in range(writers)]:
            writing.result(SECONDS)
        seen = reading.result(SECONDS)

    positions = [one.position for one in seen]
    assert positions == sorted(set(positions))
    assert seen == following(stores[0], len(seen))
    for writer in range(writers):
        expected = [f"{writer}-{append}-{n}" for append in range(appends) for n in range(size)]
        assert [one.id for one in seen if one.id.startswith(f"{writer}-")] == expected


@pytest.mark.release(kind=("postgresql", "mariadb"))  # where threads with separate connections show it
def test_no_following_program_misses_an_event_of_many_writing_programs(url: str) -> None:
    """The short form of the soak; some of its writers use the bare driver, delay their commits, or roll back."""
    soak = Path(__file__).parents[2] / "benchmarks" / "append_soak.py"
    size = ["--writers", "3", "--readers", "2", "--appends", "15"]
    command = [sys.executable, str(soak), "--url", url, "--seed", "11", *size]
    run = subprocess.run(command, capture_output=True, text=True, timeout=4 * SECONDS, check=False)
    assert (run.returncode, run.stdout.splitlines()[-1]) == (0, "every event was seen once, in order"), run.stderr


def test_an_event_committed_late_is_not_passed_over(open_database: Callable[[], Database]) -> None:
    slow, quick, reader = (SqlEventStore(open_database()) for _ in range(3))
    assert reader.head() == 0
    taken_in, go_on = Signal(), Signal()

    def waiting_events() -> Iterator[Event]:
        yield event("slow")
        taken_in.set()
        assert go_on.wait(SECONDS)

    with ThreadPoolExecutor(2) as threads:
        late = threads.submit(slow.append, waiting_events())
        assert taken_in.wait(SECONDS)
        next_one = threads.submit(quick.append, [event("quick")])
        before = reader.read(0, 10, Selection())
        go_on.set()
        late.result(SECONDS)
        next_one.result(SECONDS)
    assert (before.upto, before.events) == (0, ())
    assert [one.id for one in reader.read(before.upto, 10, Selection()).events] == ["slow", "quick"]


def test_a_writer_does_not_block_a_reader(open_database: Callable[[], Database]) -> None:
    store, reader = SqlEventStore(open_database()), SqlEventStore(open_database())
    store.append([event("old")])
    read: list[str] = []

    def events() -> Iterator[Event]:
        yield event("new")
        read.extend(one.id for one in reader.read(0, 10, Selection()).events)

    store.append(events())
    assert read == ["old"]
    assert reader.head() == 2


PROCESS = """
import sys
from sqlalchemy import text

from opencqrs_py.adapters.sql import Database, DatabaseTransactions, SqlEventStore, SqlProgressTracker
from opencqrs_py.model import layout

database = Database(sys.argv[1])
store, tracker = SqlEventStore(database), SqlProgressTracker(database)
print("ready", flush=True)
sys.stdin.readline()
store.head()
print(*(cursor.epoch for cursor in tracker.claim("group", layout(2), 0, sys.argv[2])))
database.close()
"""


@pytest.mark.release  # the next test has threads, test_control_processes.py has processes
def test_processes_that_start_at_once_create_the_tables_and_claim_one_after_the_other(
    url: str, database: Database
) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, url, f"owner {number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=SECONDS) for process in processes]
    assert sorted(answers) == [("1 1\n", ""), ("2 2\n", ""), ("3 3\n", "")]
    assert [status.position for status in SqlProgressTracker(database).statuses()] == [0, 0]


def test_processes_that_start_at_once_create_tables_one_after_the_other(
    open_database: Callable[[], Database],
) -> None:
    processes, inside = [DatabaseTransactions(open_database()) for _ in range(6)], []
    together = Barrier(len(processes))

    def start(transactions: DatabaseTransactions) -> None:
        together.wait(SECONDS)
        with transactions.begin(guarded=False) as unit:
            inside.append(transactions)
            assert inside == [transactions]
            unit.connection.execute(text("CREATE TABLE IF NOT EXISTS made (id INTEGER PRIMARY KEY)"))
            unit.connection.execute(text("INSERT INTO made SELECT count(*) FROM made"))
            inside.remove(transactions)

    with ThreadPoolExecutor(len(processes)) as pool:
        list(pool.map(start, processes))
    with open_database().reading() as connection:
        assert connection.execute(text("SELECT count(*) FROM made")).scalar() == len(processes)
