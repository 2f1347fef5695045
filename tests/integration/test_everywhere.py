"""The groups of ``everywhere/everywhere.py``, on both engines and by hand, on three databases."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import text

from opencqrs_py import (
    Application,
    Event,
    EventHandlingProcessor,
    FixedBackOff,
    Observer,
    PartitionKeyResolver,
    ProcessorOptions,
    SqlEventStore,
    SqlProgressTracker,
)
from opencqrs_py.adapters.sql import Database
from opencqrs_py.model import PartitionStatus
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.processing.notices import Notice, line_of
from opencqrs_py.processing.recovery import Action
from opencqrs_py.testing import FakeClock

PARTITIONS = 3
SOURCE = Path(__file__).with_name("everywhere") / "everywhere.py"
BECOMING = [(name, kind) for name in ("paid", "settled", "ended", "closed") for kind in ("cash", "card", "cash")]
TYPES = {"events.types.paid": "everywhere:Paid", "events.types.ended": "everywhere:Ended"}


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The module, in a separate project folder."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copy(SOURCE, folder)
    (folder / "notes").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield __import__("everywhere")
    del sys.modules["everywhere"]


@pytest.fixture
def database(request: pytest.FixtureRequest, fresh_url: Callable[[str], str], tmp_path: Path) -> Iterator[Database]:
    kind = request.param
    opened = Database(f"sqlite:///{tmp_path}/log.db" if kind == "sqlite" else fresh_url(kind))
    SqlEventStore(opened).append(events())
    with opened.writing() as connection:
        connection.execute(text("CREATE TABLE seen (of_group VARCHAR(40), position INTEGER, what VARCHAR(40))"))
    yield opened
    opened.close()


def events() -> Iterator[Event]:
    for n in range(1, 25):
        data = {"reader": f"reader {n}", "tags": ["a", "b"]}
        yield event(n, "lent" if n % 2 else "lent.v0", f"/readers/{n % 4}", data, f'{{"tenant": "tenant {n % 5}"}}')
    for n, (name, kind) in enumerate(BECOMING, start=25):
        yield event(n, name, "/payments", {"amount": n, "kind": kind}, None)


def event(number: int, kind: str, subject: str, data: Any, metadata: str | None) -> Event:
    payload = json.dumps(data)
    return Event(0, str(number), "urn:library", subject, kind, None, "application/json", payload, metadata)


class Impatient(Observer):
    """Ends a run at the first thing that is neither a second attempt nor the outage of ``prepare``."""

    def noticed(self, notice: Notice) -> None:
        waits = notice.action is Action.WAIT and notice.group == "becomes-method"
        assert waits or notice.action in (None, Action.RETRY), line_of(notice)


def by_engine(engine: str, database: Database, everywhere: ModuleType) -> list[PartitionStatus]:
    settings: dict[str, Any] = {
        "event-store.url": database.engine.url.render_as_string(hide_password=False),
        "events.type-resolver-ref": "resolve_type",
        "event-handling.standard.processing.engine": engine,
        "event-handling.standard.life-cycle.partitions": PARTITIONS,
        "event-handling.standard.retry.initial-interval": "1ms",
        "event-handling.standard.retry.max-attempts": 5,
        "event-handling.standard.retry.on-exhausted": "stop",
        **TYPES,
    }
    for group in everywhere.RESOLVERS:
        settings[f"event-handling.groups.{group}.sequence.resolver-ref"] = group.replace("-", "_")
    application = Application(settings, [everywhere], Path(str(everywhere.__file__)).parent)
    try:
        application.run(observer=Impatient(), until_caught_up=True)
        return [partition for group in application.status() for partition in group.partitions]
    finally:
        application.stop()


class CountingStore(SqlEventStore):
    """Counts the reads."""

    reads = 0

    def read(self, *given: Any, **more: Any) -> Any:
        self.reads += 1
        return super().read(*given, **more)


def by_hand(engine: str, database: Database, everywhere: ModuleType) -> list[PartitionStatus]:
    statuses = []
    for group in everywhere.HANDLERS:
        for partition in range(PARTITIONS):
            store = CountingStore(database)
            statuses.append(stepped(processor(everywhere, group, partition, store, database)))
            assert store.reads <= 3 * (1 + len(everywhere.FAILING)), "events are read together, not one by one"
    return statuses


CLOCK = FakeClock()


def processor(
    everywhere: ModuleType, group: str, partition: int, store: SqlEventStore, database: Database
) -> EventHandlingProcessor:
    options = ProcessorOptions(
        OnExhausted.STOP,
        upcasters=[everywhere.spoils_and_upcasts],
        interceptors=everywhere.INTERCEPTORS,
        event_classes=everywhere.CLASSES,
        event_types=everywhere.MAPPED,
        type_resolver=everywhere.resolve_type,
        clock=CLOCK,
    )
    resolver = everywhere.RESOLVERS.get(group, lambda event: event.id)
    return EventHandlingProcessor(
        partition, "/", True, store, SqlProgressTracker(database), resolver, PartitionKeyResolver(PARTITIONS),  # noqa: FBT003 recursive
        everywhere.HANDLERS[group], FixedBackOff(1, max_attempts=5), options=options,
    )  # fmt: skip


def stepped(processor: EventHandlingProcessor) -> PartitionStatus:
    for _ in range(200):
        if (wait := processor.step()) is None:
            break
        CLOCK.advance(wait)
    status = processor.status()
    processor.stop()
    assert status is not None
    return status


ENGINES = [
    pytest.param(by_hand, "hand", id="hand"),
    pytest.param(by_engine, "thread", id="thread"),
    pytest.param(by_engine, "spark", id="spark", marks=pytest.mark.spark),
]
CONNECTIONS = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()",
    "mariadb": "SELECT count(*) FROM information_schema.processlist WHERE db = database()",
}
MOST_CONNECTIONS = 16
"""Of a test, an application, and two workers, however many groups there are."""

DATABASES = ["sqlite", *(pytest.param(n, marks=getattr(pytest.mark, n)) for n in ("postgresql", "mariadb"))]


@pytest.mark.release(engine="spark")
@pytest.mark.release(engine="thread", database="sqlite")
@pytest.mark.release(engine="spark", database=("sqlite", "mariadb"))
@pytest.mark.release(engine="hand")  # as in test_processor_by_hand.py
@pytest.mark.parametrize("database", DATABASES, indirect=True)
@pytest.mark.parametrize(("run", "engine"), ENGINES)
@pytest.mark.release(engine="thread", database="mariadb")  # as on PostgreSQL, for handlers
def test_handlers_get_each_stored_event_once_in_its_upcast_form(
    run: Any, engine: str, database: Database, everywhere: ModuleType
) -> None:
    for note in everywhere.NOTES.iterdir():
        note.unlink()
    statuses = run(engine, database, everywhere)
    assert [f"{status.group}: {status.error}" for status in statuses if status.error] == []
    with database.reading() as connection:
        if database.kind in CONNECTIONS:
            assert connection.execute(text(CONNECTIONS[database.kind])).scalar_one() <= MOST_CONNECTIONS
        rows = [tuple(row) for row in connection.execute(text("SELECT of_group, position, what FROM seen"))]
    lent = {group for group in everywhere.HANDLERS if not group.startswith("becomes")}
    check_given_and_spread([row for row in rows if row[0] in lent], lent)
    assert Counter(row for row in rows if row[0] not in lent) == expected_objects(everywhere)
    noted = {f"{group}-{n}" for group in lent for n in everywhere.FAILING}
    noted |= {"prepare"} if engine != "hand" and database.kind in CONNECTIONS else set()
    assert {note.name for note in everywhere.NOTES.iterdir()} == noted


def check_given_and_spread(rows: list[tuple[str, int, str]], groups: set[str]) -> None:
    assert sorted((group, n) for group, n, _ in rows) == sorted((group, n) for group in groups for n in range(1, 25))
    assert all(what == f"tenant {n % 5}" for group, n, what in rows if group.startswith("given"))
    for group in (group for group in groups if group.startswith("spread")):
        assert len({partition for of, _, partition in rows if of == group}) > 1, group


def expected_objects(everywhere: ModuleType) -> Counter[tuple[str, int, str]]:
    """Return the rows that the groups write for their upcast events: one for each of three handlers."""
    made = {
        ("paid", "cash"): "Cash",
        ("paid", "card"): "Card",
        ("ended", "cash"): "EndedEarly",
        ("ended", "card"): "Ended",
    }
    same = {"settled": "paid", "closed": "ended"}
    objects = [(n, made[same.get(name, name), kind]) for n, (name, kind) in enumerate(BECOMING, start=25)]
    rows = Counter({("becomes-method", n, what): 1 for n, what in objects if what == "Cash"})
    for group, cls in everywhere.BECOMES.items():
        rows += Counter({(group, n, what): 3 for n, what in objects if what in everywhere.EXPECTED[cls].split()})
    return rows
