"""The contract of event stores, kept by each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.adapters.sql import Database, SqlEventStore
from opencqrs_py.errors import EventFormatError
from opencqrs_py.model.appending import Appended, SubjectIsPristine
from opencqrs_py.model.event import Event
from opencqrs_py.processing.ports import EventStore
from opencqrs_py.testing.contracts import EventStoreContract
from opencqrs_py.testing.contracts.event_source import event


class NoEventIsLostInSilence:
    """A further rule of our stores: an event is not silently treated as another one."""

    @pytest.mark.parametrize("count", [1, 200])  # of one statement, and of a transaction
    def test_an_event_with_a_duplicate_id_is_warned_of(
        self, source: EventStore, caplog: pytest.LogCaptureFixture, count: int
    ) -> None:
        events = [event(n) for n in range(count)]
        source.append(events)
        source.append(events)
        assert not caplog.records
        assert source.append([*events, event(0)._replace(payload='{"n": "another"}')]).added == 0
        assert [record.name for record in caplog.records] == ["opencqrs.store"]
        what, fix = caplog.messages[0].splitlines()
        assert what == (
            "1 event skipped as already stored is not what is stored with the same source and id: "
            f"event {events[0].id} of source {events[0].source}, with other data"
        )
        assert fix == "  fix:   give each event an id that no other event of its source has, and add it again"

    def test_two_events_of_one_append_with_the_same_id_are_warned_of(
        self, source: EventStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert source.append([event(1), event(1)._replace(subject="/other", type="other")]).added == 1
        assert "with other subject, type" in caplog.text

    @pytest.mark.parametrize("given", [list, iter], ids=["a list", "a stream"])  # of one statement; of a transaction
    def test_events_are_added_although_a_stored_one_has_data_that_are_not_json(
        self, source: EventStore, caplog: pytest.LogCaptureFixture, given: Callable[[list[Event]], Iterable[Event]]
    ) -> None:
        source.append([event(1)._replace(payload="{bad")])
        assert source.append(given([event(1), event(2)])) == Appended(2, 1)
        assert "with other data" in caplog.text

    @pytest.mark.parametrize("attribute", ["id", "source"])
    @pytest.mark.parametrize(
        "append",
        [
            lambda store, events: store.append(events),
            lambda store, events: store.append(iter(events)),
            lambda store, events: store.append(events, [SubjectIsPristine("/never")]),
        ],
        ids=["a list", "a stream", "on condition"],
    )
    def test_an_event_without_id_or_source_is_refused(
        self, source: EventStore, append: Callable[[EventStore, list[Event]], Appended], attribute: str
    ) -> None:
        nameless = event(2)._replace(**{attribute: ""})
        with pytest.raises(EventFormatError, match=rf"OCQ-212\] attribute '{attribute}' is ''") as caught:
            append(source, [event(1), nameless])
        assert caught.value.where == nameless.label
        assert source.head() == 0
        assert append(source, [event(1)]) == (1, 1)


class TestInMemoryEventStore(NoEventIsLostInSilence, EventStoreContract):
    @pytest.fixture
    def source(self) -> InMemoryEventStore:
        return InMemoryEventStore()

    @pytest.fixture
    def other_source(self) -> InMemoryEventStore:
        return InMemoryEventStore()


@pytest.mark.few(kind=("postgresql", "mariadb"))
class TestSqlEventStore(NoEventIsLostInSilence, EventStoreContract):
    @pytest.fixture
    def source(self, database: Database) -> SqlEventStore:
        return SqlEventStore(database)

    @pytest.fixture
    def other_source(self, tmp_path: Path) -> Iterator[SqlEventStore]:
        database = Database(f"sqlite:///{tmp_path / 'other.db'}")
        yield SqlEventStore(database)
        database.close()
