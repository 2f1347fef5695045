"""Runs started by events: one for each event, even if the log was replaced."""

from __future__ import annotations

from opencqrs_py import InMemoryEventStore
from opencqrs_py.adapters.memory.jobs import InMemoryJobStore
from opencqrs_py.assembly.jobs.events import Bell, JobEvents, _recorder
from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.model.context import ProcessingContext
from opencqrs_py.model.event import Event
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.selection import Selection
from opencqrs_py.processing.after_commit import AfterCommit
from opencqrs_py.testing import FakeClock


def first_of_a_log(id_: str) -> Event:
    """Return an event as it is stored at position 1."""
    store = InMemoryEventStore()
    store.append([parse_event(f'{{"id": "{id_}", "source": "s", "type": "t", "subject": "/a"}}')])
    (found,) = store.read(0, 1, Selection()).events
    return found


def test_an_event_starts_one_run_and_a_different_event_at_its_position_another() -> None:
    store = InMemoryJobStore(FakeClock())
    record = _recorder(JobEvents("note", ("*",), "id", "here"), lambda: store, None, Bell())
    first, other = map(first_of_a_log, ("e1", "e101"))
    usual = ProcessingContext("job:note", Partition(1, 0), 1, 1)
    for event in (first, first, other):
        record(event, AfterCommit(), usual)
    runs = store.history()
    assert sorted(run.ids or () for run in runs) == [("e1",), ("e101",)]
    assert {run.due_at for run in runs} == {None}  # at once, by the clock of the store
    record(first, AfterCommit(), usual._replace(replaying=True))
    assert sorted(run.ids or () for run in store.history()) == [("e1",), ("e1",), ("e101",)]
