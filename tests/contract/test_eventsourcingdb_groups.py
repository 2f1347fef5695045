"""Groups that follow an EventSourcingDB into SQLite, on the thread engine: each event once, whatever streams do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, Table, Text, insert, select
from support.observers import Watching

from opencqrs_py import Event, ProcessingContext
from opencqrs_py.adapters.eventsourcingdb import EventSourcingDbEventStore
from opencqrs_py.adapters.sql import Database, SqlProgressTracker
from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.engines.thread import ThreadEngine
from opencqrs_py.model import Handler, HandlerMark, Origin, layout
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.processing.binding import NothingProvided, bind
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.groups import GroupProcessing
from opencqrs_py.processing.recovery import FixedBackOff
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import SequencingByEvent
from opencqrs_py.testing.eventsourcingdb import EventSourcingDbStandIn, Fault, Then

pytestmark = pytest.mark.release(server=1)  # another hash of the same events

SECONDS = 60  # longest wait for another thread

metadata = MetaData()
handled = Table(
    "handled",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("event_id", Text, nullable=False),
    Column("subject", Text, nullable=False),
)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def server(request: pytest.FixtureRequest) -> Iterator[EventSourcingDbStandIn]:
    with EventSourcingDbStandIn(version=request.param, heartbeat=0.05, names=False) as server:
        yield server


@pytest.fixture
def store(server: EventSourcingDbStandIn) -> Iterator[EventSourcingDbEventStore]:
    store = EventSourcingDbEventStore(server.url, server.api_token, stall_seconds=0.5)
    yield store
    store.close()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'orders.db'}")
    with database.writing() as connection:
        metadata.create_all(connection)
    yield database
    database.close()


@pytest.fixture
def watching() -> Watching:
    return Watching()


@pytest.fixture
def engine(store: EventSourcingDbEventStore, database: Database, watching: Watching) -> Iterator[ThreadEngine]:
    def handle(raw: Event, connection: Connection, context: ProcessingContext) -> None:
        connection.execute(insert(handled).values(event_id=raw.id, subject=raw.subject))

    processing = GroupProcessing(
        "orders",
        store,
        SqlProgressTracker(database),
        Dispatcher([bind(Handler(HandlerMark("orders"), handle, "here"), NothingProvided())], []),
        subject="/orders",
        recursive=True,
        sequencing=SequencingByEvent(PerSubject()),
        partitions=2,
        batch_size=20,
    )
    run = GroupRun(processing, layout(2), lambda: 0, FixedBackOff(0.001), OnExhausted.SKIP)
    engine = ThreadEngine([run], "me", watching)
    yield engine
    engine.stop(SECONDS)


def rows(database: Database) -> list[tuple[str, str]]:
    with database.reading() as connection:
        found = connection.execute(select(handled.c.event_id, handled.c.subject).order_by(handled.c.number))
        return [(event_id, subject) for event_id, subject in found]


def write(server: EventSourcingDbStandIn, count: int) -> None:
    server.log.write(
        [
            {"source": "s", "subject": f"/{('orders', 'books')[n % 5 == 4]}/{n % 7}", "type": "t", "data": {"n": n}}
            for n in range(count)
        ]
    )


def expected(server: EventSourcingDbStandIn) -> list[tuple[str, str]]:
    return [(stored["id"], stored["subject"]) for stored in server.log.read("/orders", {"recursive": True})]


def test_each_event_is_handled_once_and_in_order_despite_cuts_stalls_and_a_restart(
    engine: ThreadEngine,
    server: EventSourcingDbStandIn,
    database: Database,
    watching: Watching,
) -> None:
    def caught_up() -> bool:
        head = len(server.log.read("/", {"recursive": True}))
        return all(partition.done(head) for partition in engine.partitions())

    write(server, 2_500)
    server.misbehave(
        *[Fault("read-events", 300, then=Then.CUT)] * 2,  # a check of the head consumes one unnoticed
        *[Fault("read-events", 300, then=Then.STALL)] * 2,
        Fault("read-events", 700, '{"type":"ev', Then.CUT),
        Fault("read-events", status=503, line="starting"),
        Fault("observe-events", 5, then=Then.CUT),
    )
    engine.assign("orders", layout(2))
    engine.start()
    watching.wait_for(caught_up)
    server.stop()
    write(server, 500)
    server.start()
    watching.wait_for(caught_up)
    write(server, 50)
    watching.wait_for(caught_up)
    engine.stop(SECONDS)

    done = rows(database)
    assert sorted(done, key=lambda row: int(row[0])) == expected(server)
    for subject in {subject for _, subject in done}:
        assert [row for row in done if row[1] == subject] == [row for row in expected(server) if row[1] == subject]
    assert {notice.failure.origin for notice in watching.notices if notice.failure} == {Origin.OUTAGE}
