"""Waiting for the progress of groups, with a fake clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Barrier
from threading import Event as Signal
from types import SimpleNamespace
from typing import Any

import pytest

from opencqrs_py.adapters.memory import InMemoryEventStore, InMemoryProgressTracker
from opencqrs_py.assembly.awaiting import Awaiting, Watched
from opencqrs_py.assembly.health import Standing
from opencqrs_py.assembly.overview import Snapshot
from opencqrs_py.config import EffectiveGroup, LeaseSettings, LifeCycleSettings
from opencqrs_py.errors import AssemblyError, NotReachedError, WaitTimedOutError
from opencqrs_py.model import Event, layout
from opencqrs_py.model.progress import FailureRecord, PartitionStatus, ProcessorState
from opencqrs_py.testing import FakeClock

SECONDS = 30  # longest wait for another thread
BOOKS = EffectiveGroup("books")
SLOW = EffectiveGroup("books", life_cycle=LifeCycleSettings(lease=LeaseSettings(duration=30.0, heartbeat=15.0)))
(WHOLE,) = layout(1)


class OutageError(Exception):
    """The database does not answer."""


class Tracker(InMemoryProgressTracker):
    """Progress that is set by the test."""

    position = -1

    def reached(self, group: str) -> int:
        return self.position + 1

    def is_outage(self, error: BaseException) -> bool:
        return isinstance(error, OutageError)


@dataclass
class World:
    """A group whose state changes during a wait: each poll applies the next change."""

    clock: FakeClock = field(default_factory=FakeClock)
    tracker: Tracker = field(default_factory=Tracker)
    standing: Standing = field(
        default_factory=lambda: Standing("books", WHOLE, wanted=True, led=True, status=None, head=9, owner="a")
    )
    changes: list[Callable[[], object]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    heads: list[int] = field(default_factory=lambda: [9])  # the head at each request; the last one is repeated
    head_queries: int = 0
    checks: int = 0
    error: Exception | None = None
    outage: str = ""
    progress_outage: bool = True  # else only the event store is unavailable, or refuses
    refusal: BaseException | None = None
    hastened: list[str] = field(default_factory=list)

    @property
    def head(self) -> int:
        return self.tracker.position + 1

    def wait_beyond(self, _position: int, seconds: float) -> None:
        self.waits.append(round(seconds, 3))
        self.clock.advance(seconds)
        if self.changes:
            self.changes.pop(0)()

    @contextmanager
    def progress(self, _tracker: object, _group: str) -> Iterator[World]:
        yield self

    def look(self, *_: object) -> Snapshot:
        self.checks += 1
        if self.error is not None:
            raise self.error
        return Snapshot(9, {}, outage=self.outage, progress_outage=self.progress_outage and bool(self.outage))

    def standings(self, *_: object) -> list[Standing]:
        return [self.standing]

    @property
    def awaiting(self) -> Awaiting:
        parts = {"books": SimpleNamespace(tracker=lambda: self.tracker)}
        container = SimpleNamespace(event_store_choice=lambda: SimpleNamespace(choice="sqlite:///events.db"))
        overview: Any = SimpleNamespace(parts=parts, look=self.look, standings=self.standings, container=container)
        watched: Any = self
        source = InMemoryEventStore()
        source.head = self.newest  # type: ignore[method-assign]
        return Awaiting(overview, source, watched, dict, self.check, self.clock.monotonic)

    def newest(self) -> int:
        self.head_queries += 1
        head = self.heads[0] if len(self.heads) == 1 else self.heads.pop(0)
        if head < 0:
            raise OutageError("no answer")
        return head

    def check(self) -> None:
        """Nothing has ended."""

    def set_standing(self, **changes: Any) -> None:
        self.standing = replace(self.standing, **changes)

    def at(self, position: int, state: ProcessorState = ProcessorState.RUNNING, **changes: Any) -> None:
        self.tracker.position = position
        self.set_standing(status=PartitionStatus("books", WHOLE, position, state, **changes))


@pytest.fixture
def world() -> World:
    return World()


def test_a_position_already_reached_costs_no_query_and_no_wait(world: World) -> None:
    world.at(9)
    world.awaiting.wait([BOOKS], 9, 60, newest=9)
    assert (world.checks, world.waits, world.head_queries) == (0, [], 0)


@pytest.mark.parametrize("heads", [[12], [-1]], ids=["in the log", "the event store is unavailable"])
def test_progress_beyond_the_position_costs_one_query_for_the_head(world: World, heads: list[int]) -> None:
    world.at(12)
    world.heads = heads
    world.awaiting.wait([BOOKS], 9, 60, newest=9)
    assert (world.checks, world.waits, world.head_queries) == (0, [], 1)


ANOTHER_LOG = "[OCQ-316] the event store ends at position 9, before this progress"


@pytest.mark.parametrize(
    ("position", "changes", "case"),
    [
        (9, {}, "running"),
        (9, {"owner": ""}, "unowned"),
        (9, {"wanted": False}, "stopped"),
        (12, {}, "a position that the log does not have"),
        (15, {}, "beyond both"),
    ],
)
def test_progress_beyond_the_end_of_the_log_ends_the_wait(
    world: World, position: int, changes: dict[str, Any], case: str
) -> None:
    world.at(12, error=ANOTHER_LOG)
    world.set_standing(**changes)
    with pytest.raises(NotReachedError) as raised:
        world.awaiting.wait([BOOKS], position, 60)
    assert raised.value.code == "OCQ-542"
    what = f"group 'books' does not reach position {position}: partition 0/1: it has failed: {ANOTHER_LOG}"
    assert raised.value.what.startswith(what), case


def test_events_added_while_the_log_is_checked_count(world: World) -> None:
    world.at(12)
    world.set_standing(head=12)
    world.awaiting.wait([BOOKS], 9, 60)
    assert (world.checks, world.waits) == (1, [])


def test_a_short_wait_checks_no_status(world: World) -> None:
    world.changes = [lambda: world.at(9)]
    world.awaiting.wait([BOOKS], 9, 60)
    assert (world.checks, world.waits) == (0, [0.05])


def test_a_longer_wait_checks_periodically_whether_it_can_end(world: World) -> None:
    world.changes = [lambda: world.at(1), lambda: world.at(5), lambda: world.at(9)]
    world.awaiting.wait([BOOKS], 9, 60)
    assert (world.checks, world.waits) == (2, [0.05, 0.5, 0.5])


FAILED = FailureRecord(7, "4711", "lent", 3, 2, "ValueError: no", "ValueError: no isbn", "2026-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("changes", "status", "text"),
    [
        (
            {},
            {"state": ProcessorState.FAILED, "failure": FAILED},
            "partition 0/1: it has failed at event 4711 (lent) at position 7 on attempt 3: ValueError: no isbn",
        ),
        ({"wanted": False}, {"state": ProcessorState.STOPPED}, "partition 0/1: it is stopped"),
        ({"owner": ""}, {"state": ProcessorState.STOPPED}, "partition 0/1: no process runs it"),
        ({"owner": ""}, {"state": ProcessorState.UNOWNED}, "partition 0/1: the process that ran it has ended"),
        ({"owner": ""}, None, "position 9: no process runs it"),
        ({"led": False, "owner": ""}, None, "its progress is in the memory of the process that runs it"),
        (
            {"led": False, "owner": "", "wanted": False},
            None,
            "its progress is in the memory of the process that runs it",
        ),
        ({"led": False, "owner": ""}, {"state": ProcessorState.STOPPED}, "no process runs it"),
    ],
    ids=["failed", "stopped", "unowned", "ended", "never-run", "elsewhere", "elsewhere-on-request", "not-led"],
)
def test_a_partition_that_cannot_reach_the_position_ends_the_wait_at_once(
    world: World, changes: dict[str, Any], status: dict[str, Any] | None, text: str
) -> None:
    if status is not None:
        world.at(3, **status)
    world.set_standing(**changes)
    with pytest.raises(NotReachedError) as raised:
        world.awaiting.wait([BOOKS], 9, 60)
    assert raised.value.code == "OCQ-542"
    assert raised.value.what.startswith("group 'books' does not reach position 9: ")
    assert text in raised.value.what
    assert world.waits == [0.05]


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, ProcessorState.STARTING),
        ({}, ProcessorState.RUNNING),
        ({}, ProcessorState.BACKING_OFF),
        ({}, ProcessorState.WAITING),
        ({"owner": "", "able": ["b"]}, ProcessorState.STANDBY),
        ({"owner": "", "able": ["b"]}, ProcessorState.UNOWNED),
    ],
)
def test_a_partition_that_may_reach_the_position_is_awaited_until_the_timeout(
    world: World, changes: dict[str, Any], state: ProcessorState
) -> None:
    world.at(3, state, error="ValueError: no")
    world.set_standing(**changes)
    with pytest.raises(WaitTimedOutError) as raised:
        world.awaiting.wait([BOOKS], 9, 1)
    assert raised.value.code == "OCQ-536"
    text = f"group 'books' has not stored position 9 after 1 s: partition 0/1 is at 3 ({state.value}, ValueError: no)"
    assert raised.value.what == text
    assert sum(world.waits) == pytest.approx(1)


def test_a_partition_that_failed_after_the_position_does_not_end_the_wait(world: World) -> None:
    world.at(9, ProcessorState.FAILED)
    world.tracker.position = 3  # another partition's
    world.changes = [lambda: None, lambda: world.at(9)]
    world.awaiting.wait([BOOKS], 9, 60)


def test_a_wait_with_a_timeout_of_0_reports_why_it_would_not_end(world: World) -> None:
    world.set_standing(owner="")
    with pytest.raises(NotReachedError):
        world.awaiting.wait([BOOKS], 9, 0)


def test_progress_made_while_the_reason_is_determined_counts(world: World) -> None:
    world.set_standing(owner="")
    world.look = lambda *_: world.at(9)  # type: ignore[method-assign]
    world.awaiting.wait([BOOKS], 9, 0)


def test_an_outage_does_not_end_the_wait(world: World) -> None:
    def back() -> None:
        world.error = None
        world.at(9)

    world.error = OutageError("no answer")
    world.changes = [lambda: None, back]
    world.awaiting.wait([BOOKS], 9, 60)
    world.error = OutageError("no answer")
    world.at(3)
    with pytest.raises(WaitTimedOutError, match="the database is unavailable: no answer"):
        world.awaiting.wait([BOOKS], 9, 1)


@pytest.mark.parametrize(("group", "seconds"), [(BOOKS, 13), (SLOW, 25)], ids=["by default", "a slow heartbeat"])
@pytest.mark.parametrize(
    ("error", "outage"),
    [(OutageError("no answer"), ""), (None, "no answer")],
    ids=["seen from outside", "seen by a process that runs other groups"],
)
def test_after_an_outage_the_wait_gives_a_process_time_to_join_again(
    world: World, error: Exception | None, outage: str, group: EffectiveGroup, seconds: int
) -> None:
    def lose() -> None:
        world.at(3, ProcessorState.UNOWNED)
        world.set_standing(owner="")
        world.error, world.outage = error, outage

    def find_again() -> None:
        world.error, world.outage = None, ""

    world.changes = [lose, find_again, *[lambda: None] * (2 * seconds - 3), lambda: world.at(9)]  # one per poll
    world.awaiting.wait([group], 9, 60)
    world.at(3)
    world.waits, world.changes = [], [lose, find_again]
    with pytest.raises(NotReachedError, match="the process that ran it has ended"):
        world.awaiting.wait([group], 9, 60)
    assert sum(world.waits) == pytest.approx(seconds, abs=0.6)


def test_the_wait_for_a_group_without_a_process_ends_while_only_the_event_store_fails(world: World) -> None:
    world.at(3, ProcessorState.UNOWNED)
    world.set_standing(owner="")
    world.outage, world.progress_outage = "[OCQ-332] wrong token", False
    with pytest.raises(NotReachedError, match="the process that ran it has ended"):
        world.awaiting.wait([BOOKS], 9, 60)
    assert sum(world.waits) == pytest.approx(0.05)


def test_after_an_outage_of_the_event_store_alone_the_wait_gives_no_process_time_to_join_again(world: World) -> None:
    def find_again() -> None:
        world.error = None

    world.at(3, ProcessorState.UNOWNED)
    world.set_standing(owner="")
    awaiting: Any = world.awaiting
    awaiting.source.is_outage = lambda error: isinstance(error, ConnectionError)
    world.error, world.changes = ConnectionError("no answer"), [lambda: None, find_again]
    with pytest.raises(NotReachedError, match="the process that ran it has ended"):
        awaiting.wait([BOOKS], 9, 60)
    assert sum(world.waits) == pytest.approx(0.55)


@pytest.mark.parametrize(
    ("group", "lapsed", "seconds"),
    [(BOOKS, 0.0, 13), (BOOKS, 7.0, 6), (BOOKS, 13.0, 0), (BOOKS, 3600.0, 0), (SLOW, 0.0, 25)],
    ids=["just now", "lately", "before", "long ago", "a slow heartbeat"],
)
def test_a_lease_that_has_just_ended_by_time_does_not_end_the_wait_at_once(
    world: World, group: EffectiveGroup, lapsed: float, seconds: float
) -> None:
    began = world.clock.monotonic()
    world.at(3, ProcessorState.UNOWNED)

    def look(*_: object) -> Snapshot:
        world.set_standing(owner="", lapsed=lapsed + world.clock.monotonic() - began)
        return Snapshot(9, {})

    world.look = look  # type: ignore[method-assign]
    with pytest.raises(NotReachedError, match="its lease has ended: its process has ended, or cannot reach"):
        world.awaiting.wait([group], 9, 60)
    assert sum(world.waits) == pytest.approx(seconds + 0.05, abs=0.5)


def test_any_other_error_ends_the_wait(world: World) -> None:
    world.error = PermissionError("no")
    with pytest.raises(PermissionError):
        world.awaiting.wait([BOOKS], 9, 60)


def test_progress_that_cannot_be_watched_ends_the_wait(world: World) -> None:
    world.refusal = PermissionError("no")
    with pytest.raises(PermissionError):
        world.awaiting.wait([BOOKS], 9, 60)


# What is waited for


def event(name: str, source: str = "s") -> Event:
    return Event(0, name, source, "/books/1", "lent", None, "application/json", None, None)


def test_the_position_is_a_number_the_position_of_an_event_or_the_head(world: World) -> None:
    store: Any = InMemoryEventStore()
    awaiting = replace(world.awaiting, source=store)
    assert awaiting.target(None) == 0
    store.append([event("1"), event("2"), event("2", "t")])
    assert (awaiting.target(None), awaiting.target(7), awaiting.target("1")) == (3, 7, 1)
    assert (awaiting.target("2", "s"), awaiting.target("2", "t")) == (2, 3)
    with pytest.raises(AssemblyError, match=r"OCQ-544\] 2 sources .* 's' \(position 2\), 't' \(position 3\)"):
        awaiting.target("2")
    with pytest.raises(NotReachedError, match=r"OCQ-543\] the event store has no event with the id '3'\n.*sqlite"):
        awaiting.target("3")
    with pytest.raises(NotReachedError, match="with the id '1' of source 't'"):
        awaiting.target("1", "t")
    with pytest.raises(ValueError, match="at least 0, not -1"):
        awaiting.target(-1)


# Threads that wait for the same group


def test_threads_that_wait_for_a_group_share_one_watch() -> None:
    tracker, opened, inside, hastened = InMemoryProgressTracker(), [], Signal(), []
    all_there = Barrier(3)
    watched_by = tracker.watched

    @contextmanager
    def counted(group: str) -> Iterator[Any]:
        opened.append(group)
        with watched_by(group) as watch:
            inside.set()
            yield watch

    tracker.watched = counted  # type: ignore[method-assign]
    (cursor,) = tracker.claim("books", layout(1), 0, "owner")
    watched = Watched(hastened.append)

    def wait() -> int:
        with watched.progress(tracker, "books") as progress:
            all_there.wait(SECONDS)
            progress.wait_beyond(5, SECONDS)
            return progress.head

    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(wait) for _ in range(3)]
        assert inside.wait(SECONDS)
        with tracker.unit("books", cursor, 5):
            pass
        assert [each.result(SECONDS) for each in waiting] == [6, 6, 6]
    assert opened == ["books"]
    assert hastened == ["books"] * 3
    assert tracker._watches == 0


def test_a_wait_that_begins_after_a_reset_does_not_use_an_earlier_watch(world: World) -> None:
    world.at(9)
    watched: Any = Watched(world.hastened.append)
    awaiting = replace(world.awaiting, watched=watched)
    with watched.progress(world.tracker, "books") as of_another_thread:
        of_another_thread.look()
        assert of_another_thread.head == 10
        world.at(0)  # by a reset
        with pytest.raises(WaitTimedOutError, match="has not stored position 9 after 0 s: partition 0/1 is at 0"):
            awaiting.wait([BOOKS], 9, 0)
        world.at(9)
        awaiting.wait([BOOKS], 9, 0)
    with watched.progress(world.tracker, "books") as later:
        assert later is not of_another_thread
