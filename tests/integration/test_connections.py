"""How many connections a process opens on PostgreSQL, however many groups it runs."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event as Signal
from threading import Thread
from types import ModuleType
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from support.zygote import Zygote

from opencqrs_py import Application
from opencqrs_py.adapters.sql import Database, SqlEventStore
from opencqrs_py.adapters.sql.pool import MOST_CONNECTIONS
from opencqrs_py.model.cloudevents import parse_event

GROUPS = 50
EVENTS = 100
USUAL, MOST = 12, 14
"""Connections of a process; and when a busy machine lets leases run out, so that control uses all of its four."""

HANDLERS = f"""
from opencqrs_py import Event, event_handling
from sqlalchemy import Connection, text

def make(number: int) -> None:
    def handler(event: Event, connection: Connection) -> None:
        values = {{"group": number, "position": event.position}}
        connection.execute(text("INSERT INTO handled VALUES (:group, :position)"), values)

    handler.__name__ = f"handler_{{number}}"
    event_handling(f"group-{{number}}", types=["*"])(handler)

for number in range({GROUPS}):
    make(number)
"""

COUNT = """
SELECT count(*), pg_sleep(0.002) FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND backend_start > %s
"""


@contextmanager
def counted(url: str) -> Iterator[list[int]]:
    """Count the connections opened to a server since, repeatedly; yield the counts."""
    counts: list[int] = []
    done = Signal()
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        (since,) = connection.execute("SELECT clock_timestamp()").fetchone() or ()

        def count() -> None:
            while not done.is_set():
                counts.extend(row[0] for row in connection.execute(COUNT, (since,)))

        counting = Thread(target=count)
        counting.start()
        try:
            yield counts
        finally:
            done.set()
            counting.join()


LINE = '{{"specversion": "1.0", "id": "{0}", "source": "s", "type": "t", "subject": "/x/{0}", "data": {{}}}}\n'
LOG = [LINE.format(number) for number in range(EVENTS)]


def append(url: str) -> None:
    """Store the events, and make the table that the handlers write to."""
    with closing(Database(url)) as database:
        SqlEventStore(database).append([parse_event(line) for line in LOG])
        with database.writing() as connection:
            connection.execute(text("CREATE TABLE handled (number integer, position integer)"))


def assert_few(counts: list[int]) -> None:
    """Check the budget of run-in-production.md; servers show a connection for a moment after it was closed."""
    assert sum(count > MOST for count in counts) <= len(counts) / 100  # a busy server takes longer for that
    assert sum(count > USUAL for count in counts) <= len(counts) / 20


def handled(url: str) -> Counter[int]:
    with closing(Database(url)) as database, database.reading() as connection:
        return Counter(connection.execute(text("SELECT number FROM handled")).scalars())


@pytest.mark.postgresql
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"event-handling.standard.processing.engine": "thread"}, id="thread"),
        pytest.param(
            {"spark.master": "local[2]"}, id="spark", marks=[pytest.mark.spark, pytest.mark.slow, pytest.mark.release]
        ),
    ],
)
def test_fifty_groups_share_few_connections(
    settings: Mapping[str, Any], make_module: Callable[[str], ModuleType], postgresql_url: str, tmp_path: Path
) -> None:
    append(postgresql_url)
    application = Application({"event-store.url": postgresql_url, **settings}, [make_module(HANDLERS)], tmp_path)
    with counted(postgresql_url) as counts:
        application.run(until_caught_up=True)
    assert handled(postgresql_url) == dict.fromkeys(range(GROUPS), EVENTS)
    assert_few(counts)


@pytest.mark.postgresql
@pytest.mark.slow
@pytest.mark.release
def test_fifty_groups_on_eight_tasks_share_few_connections(
    zygote: Zygote, java: dict[str, str], postgresql_url: str, tmp_path: Path
) -> None:
    append(postgresql_url)
    (tmp_path / "fifty_groups.py").write_text(HANDLERS)
    environment = {"OPENCQRS__EVENT_STORE__URL": postgresql_url, "OPENCQRS__SPARK__MASTER": "local[8]", **java}
    with counted(postgresql_url) as counts:
        done = zygote.opencqrs(tmp_path, ["run", "--until-caught-up"], environment)
    assert done.code == 0, done.err
    assert handled(postgresql_url) == dict.fromkeys(range(GROUPS), EVENTS)
    assert_few(counts)


SLOW = """
from threading import Barrier

from opencqrs_py import Event, event_handling
from sqlalchemy import Connection

TOGETHER = Barrier({groups}, timeout=20)

def make(number: int) -> None:
    def handler(event: Event, connection: Connection) -> None:
        TOGETHER.wait()

    handler.__name__ = f"handler_{{number}}"
    event_handling(f"group-{{number}}", types=["*"])(handler)

for number in range({groups}):
    make(number)
"""


@pytest.mark.release  # as the contract of the pool
@pytest.mark.postgresql
def test_a_setting_allows_more_concurrent_transactions(
    make_module: Callable[[str], ModuleType], postgresql_url: str, tmp_path: Path
) -> None:
    append(postgresql_url)
    groups = MOST_CONNECTIONS + 4
    settings = {
        "event-store.url": postgresql_url,
        "database.pool-size": groups + 1,
        "event-handling.standard.processing.engine": "thread",
    }
    application = Application(settings, [make_module(SLOW.format(groups=groups))], tmp_path)
    assert not application.run(until_caught_up=True).failed


FORKS = """
import os, sys
from opencqrs_py.adapters.sql import Database

database = Database(sys.argv[1])
ANSWERS = {"postgresql": "SELECT pg_backend_pid()", "mariadb": "SELECT CONNECTION_ID()"}[database.kind]

def backends() -> set[int]:
    with database.reading() as one, database.writing() as two:
        return {*(each.exec_driver_sql(ANSWERS).scalar() for each in (one, two)), database.fetch(ANSWERS)[0][0]}

before = backends()
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, repr(backends()).encode())
    sys.exit()  # closes all that a program closes at its end
os.wait()
print(sorted(eval(os.read(reader, 10_000)) & before), backends() == before)
database.close()
"""


@pytest.mark.parametrize(
    "server",
    [
        pytest.param("postgresql_server", marks=pytest.mark.postgresql),
        pytest.param("mariadb_server", marks=[pytest.mark.mariadb, pytest.mark.release]),
    ],
)
def test_a_fork_sends_nothing_on_connections_of_its_parent(
    server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Each would read responses of the server to the other, and write in its transactions."""
    (tmp_path / "forks.py").write_text(FORKS)
    command = [sys.executable, "forks.py", request.getfixturevalue(server)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[] True\n", "")
