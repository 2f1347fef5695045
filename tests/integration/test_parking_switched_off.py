"""Events that wait in the inbox of a group that parks none any more, and is not scheduled any more."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import text

from opencqrs_py import Application, InboxFilter
from opencqrs_py.adapters.sql import Database
from opencqrs_py.adapters.sql.reading import LIVE
from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.processing.inbox.scheduled import PartitionBatches

MORE = 3 * LIVE  # events, of which a store reads only the attributes that the group needs
BOOKS = "event-handling.groups.books"
PARKING = {f"{BOOKS}.retry.policy": "none", f"{BOOKS}.retry.on-exhausted": "park"}
SCHEDULED = {f"{BOOKS}.processing.mode": "scheduled", f"{BOOKS}.schedule.on-exhausted": "block"}
EACH = {**SCHEDULED, f"{BOOKS}.batch.mode": "all"}
STREAMING = {f"{BOOKS}.retry.policy": "none", f"{BOOKS}.retry.on-exhausted": "stop"}
HANDLERS = """
from dependency_injector import containers, providers
from opencqrs_py import event_handling, on_start
from opencqrs_py.testing import FakeClock
from sqlalchemy import Connection, text

FAILING = set()
CLOCK = FakeClock()

@on_start("books")
def tables(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS handled (n INTEGER PRIMARY KEY, number INTEGER)"))

@event_handling("books", types=["*"])
def handle(data: dict, connection: Connection) -> None:
    if data["number"] in FAILING:
        raise ValueError("no")
    connection.execute(text("INSERT INTO handled (number) VALUES (:number)"), data)

class Parts(containers.DeclarativeContainer):
    clock = providers.Object(CLOCK)
"""


class Books:
    """A project whose handlers take only the data of events."""

    def __init__(self, module: ModuleType, url: str, folder: Path) -> None:
        self.module: Any = module
        self.url = url
        self.folder = folder

    def run(self, settings: dict[str, str], *subjects: str) -> Any:
        """Append events, numbered by position, and handle those that can be handled; return the result."""
        known = {"event-store.url": self.url, "event-handling.standard.processing.engine": "thread", **settings}
        with Application(known, [self.module], self.folder) as application:
            first = application.event_store.head() + 1
            known = {"source": "s", "type": "lent"}
            application.event_store.append(
                parse_event(json.dumps({**known, "id": str(n), "subject": subject, "data": {"number": n}}))
                for n, subject in enumerate(subjects, first)
            )
            return application.run(until_caught_up=True)

    @property
    def handled(self) -> list[int]:
        database = Database(self.url)
        with database.reading() as connection:
            found = connection.execute(text("SELECT number FROM handled ORDER BY n")).scalars().all()
        database.close()
        return list(found)

    def waiting(self) -> list[tuple[int, str]]:
        settings = {"event-store.url": self.url}
        with Application(settings, [self.module], self.folder) as application:
            return [(entry.position, entry.status.value) for entry in application.inbox.entries(InboxFilter())]


@pytest.fixture
def books(make_module: Callable[[str], ModuleType], sqlite_url: str, tmp_path: Path) -> Iterator[Books]:
    return Books(make_module(HANDLERS), sqlite_url, tmp_path)


@pytest.mark.release(before=SCHEDULED)
@pytest.mark.parametrize("before", [PARKING, SCHEDULED], ids=["parking", "scheduled"])
def test_later_events_of_a_waiting_sequence_wait_after_it(books: Books, before: dict[str, str]) -> None:
    books.module.FAILING.add(2)
    books.run(before, "/1", "/2")
    result = books.run(STREAMING, "/2", *["/1"] * MORE)
    assert not result.failed
    assert books.handled == [1, *range(4, 4 + MORE)]
    assert [position for position, _ in books.waiting()] == [2, 3]
    books.module.FAILING.clear()
    books.module.CLOCK.advance(3_600)
    assert books.run(STREAMING).parked == 0
    assert books.handled[-2:] == [2, 3]


@pytest.mark.release(before=EACH)
@pytest.mark.parametrize("before", [PARKING, SCHEDULED, EACH], ids=["parking", "scheduled", "all"])
def test_an_event_that_no_handler_takes_any_longer_waits_for_a_person(
    books: Books, make_module: Callable[[str], ModuleType], before: dict[str, str]
) -> None:
    """It left the inbox as if it had been handled."""
    books.module.FAILING |= {1, 3}
    books.run(before, "/1", "/1", "/3")
    former, books.module = books.module, make_module(HANDLERS.replace('types=["*"]', 'types=["returned"]'))
    books.module.CLOCK.advance(7_200)
    result = books.run(before)
    assert not result.failed
    waiting = dict(books.waiting())
    assert (waiting[1], waiting[3], result.parked) == ("undecodable", "undecodable", len(waiting))
    with Application({"event-store.url": books.url}, [books.module], books.folder) as application:
        (entry,) = application.inbox.entries(InboxFilter(position=1))
        assert entry.reason == "no handler of the group takes events of type lent any longer"
        application.inbox.retry(InboxFilter())
    former.FAILING.clear()
    books.module = former
    former.CLOCK.advance(14_400)
    assert books.run(before).parked == 0
    assert sorted(books.handled) == [1, 2, 3]


@pytest.mark.release  # only its cost
def test_all_events_that_no_handler_takes_any_longer_are_set_aside_at_once(
    books: Books, make_module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 40
    books.module.FAILING |= {*range(1, count + 1)}
    books.run(SCHEDULED, *(f"/{n}" for n in range(count)))
    books.module, fetched = make_module(HANDLERS.replace('types=["*"]', 'types=["returned"]')), []
    fetch = PartitionBatches._fetched
    monkeypatch.setattr(PartitionBatches, "_fetched", lambda self, cursor: (fetched.append(1), fetch(self, cursor))[1])
    books.module.CLOCK.advance(7_200)
    books.run(SCHEDULED)
    assert [status for _, status in books.waiting()] == count * ["undecodable"]
    assert len(fetched) < count // 4


def test_the_limits_of_the_settings_apply(books: Books) -> None:
    books.module.FAILING.add(1)
    limit = {f"{BOOKS}.park.max-sequence-size": "3"}
    books.run({**PARKING, **limit}, "/1", "/1")
    assert not books.run({**STREAMING, **limit}, "/1").failed
    assert books.run({**STREAMING, **limit}, "/1").failed


def test_the_attempts_of_the_settings_apply(books: Books) -> None:
    books.module.FAILING.add(1)
    attempts = {f"{BOOKS}.park.retry.initial-interval": "10m", f"{BOOKS}.park.retry.max-attempts": "1"}
    books.run({**PARKING, **attempts}, "/1")
    books.module.CLOCK.advance(599)
    books.run({**STREAMING, **attempts})
    assert books.waiting() == [(1, "retrying")]
    books.module.CLOCK.advance(1)
    books.run({**STREAMING, **attempts})
    assert books.waiting() == [(1, "exhausted")]
