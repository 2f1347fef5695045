"""The law of bounds: reading a log in bounded pieces gives the same events as reading without a bound."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from opencqrs_py.adapters.eventsourcingdb import EventSourcingDbEventStore
from opencqrs_py.adapters.files import FileEventSource, event_source, format_of, writer_to
from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.adapters.sql import Database, MappedEventSource, SqlEventStore, mapped, reading
from opencqrs_py.model import Event, Selection
from opencqrs_py.model.mapping import TableMapping
from opencqrs_py.processing.ports import EventSource
from opencqrs_py.testing.contracts.event_source import followed
from opencqrs_py.testing.eventsourcingdb import EventSourcingDbStandIn

Open = Callable[[], EventSource]
Log = Callable[[list[Event], set[int]], AbstractContextManager[Open]]

NAMES = TableMapping("opencqrs_events", "position", "id", "type", "payload", source="source", subject="subject")

EVENTS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abc")), min_size=1, max_size=25)
SELECTIONS = st.builds(
    Selection,
    st.sampled_from(["/", "/x", "/x/1", "/y"]),
    st.booleans(),
    st.none() | st.frozensets(st.sampled_from("abcd"), max_size=2),
)


@contextmanager
def in_memory(events: list[Event], _holes: set[int]) -> Iterator[Open]:
    store = InMemoryEventStore(events)
    yield lambda: store


def in_files(suffix: str) -> Log:
    @contextmanager
    def stored(events: list[Event], _holes: set[int]) -> Iterator[Open]:
        with tempfile.TemporaryDirectory() as folder:
            for name, part in (("1", events[:7]), ("2", events[7:])):
                path = Path(folder) / f"{name}.{suffix}"
                form = format_of(path.name)
                assert form is not None
                with path.open("wb") as file, writer_to(file, form) as writer:
                    writer.write(part)
            yield lambda: FileEventSource(folder)

    return stored


@contextmanager
def on_eventsourcingdb(events: list[Event], _holes: set[int]) -> Iterator[Open]:
    with (
        EventSourcingDbStandIn(names=False) as server,
        closing(EventSourcingDbEventStore(server.url, server.api_token)) as store,
    ):
        store.append(events)
        yield lambda: store


def in_database(url: str, opened: Callable[[Database], EventSource]) -> Log:
    @contextmanager
    def stored(events: list[Event], holes: set[int]) -> Iterator[Open]:
        with closing(Database(url)) as database:
            store = SqlEventStore(database)
            store.head()
            with database.writing() as connection:
                connection.execute(text("DELETE FROM opencqrs_events"))
            store.append(events)
            first = store.head() - len(events) + 1
            with database.writing() as connection:
                for hole in holes:
                    connection.execute(text(f"DELETE FROM opencqrs_events WHERE position = {first + hole}"))
            yield lambda: opened(database)

    return stored


LOGS = {"memory": in_memory, "lines": in_files("ndjson"), "rows": in_files("parquet"), "esdb": on_eventsourcingdb}
SERVERS = [
    pytest.param((kind, way), id=f"{kind} {way}", marks=getattr(pytest.mark, kind))
    for kind, way in (("postgresql", "ours"), ("postgresql", "mapped"), ("mariadb", "ours"))
]


@pytest.fixture(params=[*LOGS, ("sqlite", "ours"), ("sqlite", "mapped"), *SERVERS], ids=str)
def log(request: pytest.FixtureRequest) -> Log:
    if request.param in LOGS:
        return LOGS[request.param]
    kind, way = request.param
    url = "sqlite:///:memory:" if kind == "sqlite" else request.getfixturevalue(f"{kind}_server")
    return in_database(url, SqlEventStore if way == "ours" else lambda database: MappedEventSource(database, NAMES))


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use every way of reading a long log with a short one."""
    monkeypatch.setattr(reading, "_WINDOW", 4)
    monkeypatch.setattr(reading, "_FEW", 3)
    monkeypatch.setattr(mapped, "_PAGE_ROWS", 3)
    monkeypatch.setattr(mapped, "_PAGES", 2)
    monkeypatch.setattr(event_source, "_MOST_AT_ONCE", 5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    given_events=EVENTS,
    holes=st.sets(st.integers(0, 24), max_size=12),
    cuts=st.lists(st.integers(0, 26), max_size=4),
    selection=SELECTIONS,
    limit=st.integers(1, 6),
    anew=st.booleans(),
)
@pytest.mark.release(log=("postgresql", "mapped"))  # as on SQLite
def test_bounded_reads_together_give_what_one_unbounded_read_gives(
    log: Log,
    given_events: list[tuple[int, str]],
    holes: set[int],
    cuts: list[int],
    selection: Selection,
    limit: int,
    *,
    anew: bool,
) -> None:
    events = [
        Event(0, str(n), "law", f"/x/{number}", kind, None, "application/json", "{}", None)
        for n, (number, kind) in enumerate(given_events)
    ]
    with log(events, holes) as opened:
        source = opened()
        head = source.head()
        everything = [one for part in followed(source, limit, selection) for one in part.events]
        pieces: list[Event] = []
        before, after = max(head - len(events), 0), 0  # a log of before may have had lower positions
        for bound in sorted({*(min(before + cut, head) for cut in cuts), head}):
            reader = opened() if anew else source
            for part in followed(reader, limit, selection, after, bound):
                assert part.upto <= bound
                pieces += part.events
                after = part.upto
            assert after == bound
        assert pieces == everything
