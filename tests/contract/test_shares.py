"""Reading the events of some partitions only: the database assigns subjects to partitions as this package does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from opencqrs_py.adapters.memory import InMemoryEventStore, InMemoryProgressTracker
from opencqrs_py.adapters.sql import Database, SqlEventStore, SqlProgressTracker
from opencqrs_py.engines.spark.tasks import Task, TaskRunner, read_result, write_task
from opencqrs_py.model import Event, Handler, HandlerMark, Outcome, Partition, Selection, layout
from opencqrs_py.model.partition import residue_of
from opencqrs_py.model.selection import Share
from opencqrs_py.processing.binding import NothingProvided, bind
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.groups import GroupProcessing
from opencqrs_py.processing.sequence_resolvers import NoSequence, PerSubject, PerSubjectLevel, cut_subject
from opencqrs_py.processing.sequencing import SequencingByEvent

SUBJECTS = [
    "/",
    "/loans",
    "/loans/",
    "/loans/4711",
    "/loans/4711/",
    "/loans/4711/items/1",
    "/loans//4711",
    "//",
    "loans",
    "loans/4711",
    "",
    "/Bücher/€/日本語/x",
    "/a b/'quoted'/%s/x",
    *(f"/loans/{number}/items/{number % 3}" for number in range(40)),
]


def events_of(subjects: Sequence[str]) -> list[Event]:
    return [
        Event(0, str(n), "s", subject, "t", None, "application/json", "{}", None) for n, subject in enumerate(subjects)
    ]


@pytest.fixture
def store(database: Database) -> SqlEventStore:
    store = SqlEventStore(database)
    store.append(events_of(SUBJECTS))
    return store


@pytest.mark.parametrize("attributes", [frozenset({"subject"}), Selection().attributes], ids=["rows", "events"])
@pytest.mark.parametrize("level", [None, 1, 2, 3])
@pytest.mark.parametrize("modulus", [2, 3, 8])
@pytest.mark.few(kind=("postgresql", "mariadb"))
def test_each_share_has_the_events_of_its_partitions_and_all_shares_make_up_the_log(
    store: SqlEventStore, level: int | None, modulus: int, attributes: frozenset[str]
) -> None:
    for residues in [frozenset({residue}) for residue in range(modulus)] + [frozenset(range(1, modulus))]:
        share = Share(modulus, residues, level)
        assert store.selects(share)
        found = store.read(0, 1_000, Selection(attributes=attributes, share=share))
        rest = store.read(found.upto, 1_000, Selection(attributes=attributes, share=share))
        ids = [subject if level is None else cut_subject(subject, level) for subject in SUBJECTS]
        expected = [subject for subject, one in zip(SUBJECTS, ids, strict=True) if residue_of(one, modulus) in residues]
        assert [event.subject for event in found.events] == expected
        assert (list(rest.events), rest.upto) == ([], len(SUBJECTS))


def test_a_share_without_events_reaches_the_head_in_bounded_reads(
    store: SqlEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opencqrs_py.adapters.sql.reading._WINDOW", 10)
    absent = next(n for n in range(1_000) if n not in {residue_of(subject, 1_000) for subject in SUBJECTS})
    share = Share(1_000, frozenset({absent}))
    assert store.read(0, 1_000, Selection(share=share)).upto == len(SUBJECTS)


@pytest.mark.parametrize("expression", ["", "no_such_function({})", "length({})"])
def test_a_database_that_cannot_compute_the_hash_is_read_whole(
    store: SqlEventStore, database: Database, monkeypatch: pytest.MonkeyPatch, expression: str
) -> None:
    monkeypatch.setattr(type(database.dialect), "hash_of", lambda _self, column, _level: expression.format(column))
    processing = group(store, SqlProgressTracker(database), 4)
    assert not store.selects(Share(2, frozenset({0})))
    assert processing.narrowed(layout(4)[:2]) is processing


@pytest.mark.parametrize(
    ("sequencing", "partitions", "share"),
    [
        (SequencingByEvent(PerSubject()), layout(4)[:2], Share(4, frozenset({0, 1}))),
        (SequencingByEvent(PerSubjectLevel(3)), layout(4)[3:], Share(4, frozenset({3}), 3)),
        (SequencingByEvent(PerSubject()), layout(4), None),  # nothing to leave out
        (SequencingByEvent(NoSequence()), layout(4)[:2], None),
        (SequencingByEvent(PerSubject(), lambda text, modulus: len(text) % modulus), layout(4)[:2], None),
        (SequencingByEvent(PerSubject(), opened=lambda event: event), layout(4)[:2], None),
        (SequencingByEvent(lambda event: event.subject), layout(4)[:2], None),
        (SequencingByEvent(PerSubject()), (Partition(4, 0), Partition(8, 1)), Share(8, frozenset({0, 1, 4}))),  # uneven
    ],
)
def test_only_sequencing_that_stores_can_compute_gives_a_share(sequencing, partitions, share) -> None:
    assert sequencing.share_of(partitions) == share


def handle(_event: Event) -> None: ...


def group(store, tracker, partitions: int) -> GroupProcessing:
    return GroupProcessing(
        "g",
        store,
        tracker,
        Dispatcher([bind(Handler(HandlerMark("g", ("t",)), handle, "here"), NothingProvided())], []),
        subject="/",
        recursive=True,
        sequencing=SequencingByEvent(PerSubject()),
        partitions=partitions,
        batch_size=500,
    )


@pytest.fixture
def rows(database: Database, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Counts the rows with payloads that the database returns."""
    returned = [0]
    fetch = database.fetch

    def counting(statement: str, values: tuple = ()):
        found = fetch(statement, values)
        returned[0] += len(found) if "payload" in statement else 0
        return found

    monkeypatch.setattr(database, "fetch", counting)
    return lambda: returned[0]


@pytest.mark.release(kind="mariadb")
@pytest.mark.release(tasks=(2, 8))
@pytest.mark.release(kind="postgresql")  # as on MariaDB
@pytest.mark.parametrize("tasks", [2, 8, 32])
@pytest.mark.few(kind=("sqlite", "postgresql", "mariadb"))
def test_each_event_is_read_once_whatever_the_number_of_tasks(
    database: Database, rows: Callable[[], int], tasks: int
) -> None:
    store, tracker, count = SqlEventStore(database), SqlProgressTracker(database), 10_000
    store.append(events_of([f"/loans/{number % 500}" for number in range(count)]))
    processing = group(store, tracker, 32)
    cursors, runner = tracker.claim("g", layout(32), 0, "me"), TaskRunner(lambda: processing)
    handled = 0
    for task in range(tasks):
        line = runner(write_task(Task(cursors[task::tasks], 600.0)))
        outcomes = read_result(line).outcomes
        assert all(outcome.idle and outcome.cursor.position == count for outcome in outcomes)
        handled += sum(outcome.handled for outcome in outcomes)
    assert handled == count
    assert count <= rows() <= 1.1 * count


@pytest.mark.release(kind="mariadb")  # as on PostgreSQL
def test_partitions_that_lag_read_no_events_of_others(
    database: Database, rows: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opencqrs_py.processing.groups._PAGES_KEPT", 1)
    store, tracker, count = SqlEventStore(database), SqlProgressTracker(database), 10_000
    store.append(events_of([f"/loans/{number % 500}" for number in range(count)]))
    processing = group(store, tracker, 8)
    handled = 0
    for cursor in tracker.claim("g", layout(8), 0, "me"):  # each lags a whole log behind the previous one
        processor, outcome = processing.processor(cursor.partition), Outcome(cursor)
        while not outcome.idle:
            outcome = processor.step(outcome.cursor)
            handled += outcome.handled
    assert handled == count
    assert rows() <= 2 * count, "once for the first, and again for all that lag"


def test_a_store_without_shares_still_serves_tasks() -> None:
    store, tracker = InMemoryEventStore(events_of(SUBJECTS)), InMemoryProgressTracker()
    processing = group(store, tracker, 4)
    cursors = tracker.claim("g", layout(4), 0, "me")
    runner = TaskRunner(lambda: processing)
    results = [read_result(runner(write_task(Task(cursors[n::2], 600.0)))) for n in range(2)]
    assert sum(outcome.handled for result in results for outcome in result.outcomes) == len(SUBJECTS)
