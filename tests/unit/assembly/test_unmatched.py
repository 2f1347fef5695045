"""What the log has for a group is never reported as absent."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from opencqrs_py.adapters.memory import InMemoryEventStore, InMemoryProgressTracker
from opencqrs_py.assembly import unmatched
from opencqrs_py.assembly.unmatched import UnmatchedGroups
from opencqrs_py.model import Event, Handler, HandlerMark, Outcome, Partition
from opencqrs_py.model.progress import Cursor
from opencqrs_py.processing.binding import NothingProvided, bind
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.groups import GroupProcessing
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import SequencingByEvent

ONLY = Partition(1, 0)


def handle(_event: Event) -> None: ...


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., UnmatchedGroups]:
    """Return a function that watches a group whose handler wants 'lent', in a log with events of some types."""
    monkeypatch.setattr(unmatched, "_SAMPLE", 1)

    def watch(*types: str) -> UnmatchedGroups:
        store = InMemoryEventStore(
            Event(0, str(n), "s", "/", name, None, "application/json", "{}", None) for n, name in enumerate(types)
        )
        processing = GroupProcessing(
            "books",
            store,
            InMemoryProgressTracker(),
            Dispatcher([bind(Handler(HandlerMark("books", ("lent",)), handle, "here"), NothingProvided())], []),
            subject="/",
            recursive=True,
            sequencing=SequencingByEvent(PerSubject()),
            partitions=1,
            batch_size=10,
        )
        run: Any = SimpleNamespace(group="books", partitions=(ONLY,), processing=processing)
        return UnmatchedGroups([run])

    return watch


def catch_up(watched: UnmatchedGroups, *claims: int) -> None:
    """Claim the partition at some positions, and handle nothing up to the end of the log."""
    for position in claims:
        watched.claimed("books", ONLY, position)
    watched.advanced("books", ONLY, Outcome(Cursor(ONLY, 1, 3, 3), idle=True))


def test_a_group_whose_events_another_process_handled_between_two_claims_is_not_warned_of(
    watch: Callable[..., UnmatchedGroups], caplog: pytest.LogCaptureFixture
) -> None:
    catch_up(watch("sold", "lent", "sold"), 0, 3)
    assert caplog.messages == []


def test_a_type_of_the_log_is_not_reported_as_absent_if_its_event_was_not_read(
    watch: Callable[..., UnmatchedGroups], caplog: pytest.LogCaptureFixture
) -> None:
    catch_up(watch("sold", "sold", "lent"), 0)
    assert caplog.messages == []


def test_a_type_that_the_log_lacks_is_reported(
    watch: Callable[..., UnmatchedGroups], caplog: pytest.LogCaptureFixture
) -> None:
    catch_up(watch("sold", "sold", "lend"), 0)
    (said,) = caplog.messages
    assert "lent (did you mean lend?)" in said
