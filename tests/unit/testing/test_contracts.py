"""Contracts find the mistakes that adapters typically make."""

from __future__ import annotations

import itertools
import sys
from concurrent.futures import Future, wait
from contextlib import nullcontext
from pkgutil import iter_modules
from threading import Event as Flag
from unittest.mock import Mock

import pytest
from _pytest.outcomes import Failed

from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.testing import FakeClock, contracts
from opencqrs_py.testing.contracts import (
    concurrent_reads,
    engine_assignment,
    engine_project,
    event_source,
    event_store,
    job_owners,
    job_store,
    lock_registry,
    progress_abilities,
    progress_records,
)

pytest_plugins = ["pytester"]

ARGUMENTS = ("-p", "no:cacheprovider", "-p", "no:terminalreporter")


@pytest.fixture
def failing(pytester: pytest.Pytester):
    """Return a function that runs tests of a file in this process, and returns those that fail, and all messages."""

    def failing(source: str, only: str = "") -> tuple[set[str], str]:
        pytester.makepyfile(source)
        reports = pytester.inline_run(*ARGUMENTS, "-k", only).getreports("pytest_runtest_logreport")
        assert any(report.passed for report in reports)
        failed = [report for report in reports if report.failed]
        names = {report.nodeid.rpartition("::")[2].partition("[")[0] for report in failed if report.when == "call"}
        return names, "\n".join(report.longreprtext for report in failed)

    return failing


REGISTRIES = """
from threading import Lock as Mutex
import pytest
from opencqrs_py.processing.ports import Lock, LockRegistry
from opencqrs_py.testing.contracts import LockRegistryContract

class Registry(LockRegistry):
    def __init__(self, mutexes):
        self.mutexes = mutexes

    def obtain(self, name):
        return Held(self.mutexes.setdefault(self.key(name), Mutex()))

    def key(self, name):
        return name

class Held(Lock):
    def __init__(self, mutex):
        self.mutex, self.is_held = mutex, False

    def acquire(self, timeout):
        self.is_held = self.take(timeout)
        return self.is_held

    def take(self, timeout):
        return self.mutex.acquire(timeout=timeout)

    def renew(self):
        return self.is_held

    def release(self):
        if self.is_held:
            self.is_held = False
            self.mutex.release()

class TestRegistry(LockRegistryContract):
    @pytest.fixture
    def mutexes(self):
        return {}

    @pytest.fixture
    def registry(self, mutexes):
        return Registry(mutexes)

    @pytest.fixture
    def another(self, mutexes):
        return Registry(mutexes)
"""


def test_a_lock_registry_without_mistakes_passes(failing):
    assert failing(REGISTRIES) == (set(), "")


def test_a_lock_that_waits_to_be_acquired_fails_and_does_not_hang(failing, monkeypatch):
    monkeypatch.setattr(lock_registry, "SECONDS", 0.1)
    names, shown = failing(REGISTRIES.replace("self.mutex.acquire(timeout=timeout)", "self.mutex.acquire()"))
    assert "test_a_held_lock_is_not_acquired_by_another_process" in names
    assert "test_of_two_concurrent_callers_exactly_one_acquires_a_lock" in names
    assert "acquire(0.0) did not return within 0.1 s: a node calls all its locks from one thread" in shown


def test_a_lock_that_waits_longer_than_its_timeout_to_be_acquired_fails(failing, monkeypatch):
    monkeypatch.setattr(lock_registry, "PROMPT", 0.01)
    monkeypatch.setattr(lock_registry, "ROUNDS", 3)
    names, shown = failing(REGISTRIES.replace("timeout=timeout", "timeout=0.02"))
    assert names == {"test_an_attempt_without_a_timeout_to_acquire_a_held_lock_returns_at_once"}
    assert "acquire(0.0) waits: a node calls all its locks from one thread" in shown


@pytest.mark.parametrize("key", ["name[:255]", "name.encode('ascii', 'replace')", "name.encode('ascii', 'ignore')"])
@pytest.mark.few
def test_a_registry_with_one_lock_for_names_that_differ_fails(failing, key):
    names, _ = failing(REGISTRIES.replace("return name\n", f"return {key}\n"))
    assert names == {"test_locks_with_different_names_are_independent"}


LEASES = """
from threading import Barrier
import pytest
from opencqrs_py.processing.ports import Lock, LockRegistry
from opencqrs_py.testing import FakeClock
from opencqrs_py.testing.contracts import LockRegistryContract

BOTH = Barrier(2)

class Registry(LockRegistry):
    def __init__(self, clock, held):
        self.clock, self.held = clock, held

    def obtain(self, name):
        return Lease(name, self.clock, self.held)

class Lease(Lock):
    def __init__(self, name, clock, held):
        self.name, self.clock, self.held = name, clock, held

    def holder(self):
        holder, until = self.held.get(self.name, (None, 0))
        return holder if until > self.clock.monotonic() else None

    def take(self):
        self.held[self.name] = self, self.clock.monotonic() + 10
        return True

    def acquire(self, timeout):
        is_free = self.holder() is None
        {before_it_is_taken}
        return is_free and self.take()

    def renew(self):
        return self.holder() in ({may_renew},) and self.take()

    def release(self):
        if self.holder() is self:
            del self.held[self.name]

class TestLeases(LockRegistryContract):
    @pytest.fixture
    def clock(self):
        return FakeClock()

    @pytest.fixture
    def held(self):
        return {}

    @pytest.fixture
    def registry(self, clock, held):
        return Registry(clock, held)

    @pytest.fixture
    def another(self, clock, held):
        return Registry(clock, held)

    @pytest.fixture
    def let_pass(self, clock):
        return lambda part: clock.advance(10 * part)
"""


@pytest.mark.parametrize(
    ("before_it_is_taken", "may_renew", "test", "message"),
    [
        pytest.param(
            "BOTH.wait(30)",
            "self",
            "test_of_two_concurrent_callers_exactly_one_acquires_a_lock",
            "of two callers of acquire at the same time, exactly one must get True",
            id="two-get-a-free-lock",
        ),
        pytest.param(
            "self.name in self.held and BOTH.wait(30)",
            "self",
            "test_of_two_concurrent_callers_exactly_one_acquires_an_expired_lock",
            "of two callers of acquire at the same time, exactly one must get True",
            id="two-get-an-expired-lock",
        ),
        pytest.param(
            "",
            "None, self",
            "test_an_expired_lock_is_not_renewed_even_if_it_is_free",
            "renew() acquires a lock that had expired: another process may have held it",
            id="renews-an-expired-lock",
        ),
    ],
)
def test_a_lock_that_two_processes_can_hold_fails(failing, before_it_is_taken, may_renew, test, message):
    source = LEASES.replace("{before_it_is_taken}", before_it_is_taken).replace("{may_renew}", may_renew)
    names, shown = failing(source, only=test)
    assert names == {test}
    assert message in shown


def test_all_locks_are_released_even_if_releases_fail():
    released = []

    class Failing:
        def obtain(self, name):
            return self

        def release(self):
            released.append(self)
            raise RuntimeError("no release")

    mine, theirs = Failing(), Failing()
    obtaining = lock_registry.LockRegistryContract.obtain.__wrapped__(None, mine, theirs)
    obtain = next(obtaining)
    for registry in (mine, mine, theirs):
        obtain(registry, "a")
    with pytest.raises(RuntimeError, match="no release"):
        next(obtaining)
    assert sorted(map(id, released)) == sorted(map(id, (mine, mine, theirs)))


def test_locks_are_released_one_after_another_so_that_slow_releases_do_not_add_up(monkeypatch):
    class Registry:
        def obtain(self, name):
            return self

        def release(self):
            steps.append("released")

    steps = []
    awaited = lock_registry._Node.result
    monkeypatch.setattr(lock_registry._Node, "result", lambda *a: [awaited(*a), steps.append("awaited")][0])
    obtaining = lock_registry.LockRegistryContract.obtain.__wrapped__(None, mine := Registry(), Registry())
    obtain = next(obtaining)
    locks = [obtain(mine, name) for name in "abc"]
    locks[0].release()
    steps.clear()
    next(obtaining, None)
    assert steps == ["released", "awaited"] * 2, "a lock that a test has released is not released again"


WAITS_FOR_AN_EXPIRED_LOCK = """if self.holder() is not self:
            Event().wait()
        if self.holder() is self:
            del"""


def test_a_registry_whose_releases_never_return_fails_and_is_awaited_once(failing, monkeypatch):
    def recorded(futures, seconds):
        outcomes.append(wait(futures, seconds))
        return outcomes[-1]

    outcomes = []
    monkeypatch.setattr(lock_registry, "wait", recorded)
    monkeypatch.setattr(lock_registry, "SECONDS", 0.5)
    source = (
        LEASES.replace("{before_it_is_taken}", "").replace("{may_renew}", "self").replace("import B", "import Event, B")
    )
    test = "test_of_two_concurrent_callers_exactly_one_acquires_an_expired_lock or registry_passes"
    source += "\n    def test_registry_passes(self, registry):\n        pass\n"
    _, shown = failing(
        source.replace("if self.holder() is self:\n            del", WAITS_FOR_AN_EXPIRED_LOCK), only=test
    )
    assert "release() did not return within 0.5 s" in shown
    assert sum(not outcome.done for outcome in outcomes) <= 2, "one for each node"


@pytest.mark.parametrize(("seconds", "count"), [(0.001, 300), (10.0, 20)])
def test_a_slow_lock_registry_has_fewer_rounds(monkeypatch, seconds, count):
    monkeypatch.setattr(lock_registry, "monotonic", itertools.count(step=seconds).__next__)
    assert [*lock_registry.rounds()] == [*range(count)]


def test_a_source_whose_fingerprint_does_not_identify_the_log_fails(failing):
    names, _ = failing("""
import pytest
from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.testing.contracts import EventSourceContract

class Store(InMemoryEventStore):
    def fingerprint(self, position, event=None):
        return f"same:{position}"

    def verify(self, position, fingerprint):
        if fingerprint not in ("", f"same:{position}"):
            super().verify(position, fingerprint)
        super().verify(position, "")

class TestStore(EventSourceContract):
    @pytest.fixture
    def source(self):
        return Store()

    @pytest.fixture
    def other_source(self):
        return Store()
""")
    assert names == {"test_the_fingerprint_of_another_log_is_refused"}


SOURCES = """
from contextlib import nullcontext
from threading import Lock, get_ident
import pytest
from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.adapters.memory.watching import ConditionWatch
from opencqrs_py.model.selection import Slice
from opencqrs_py.testing.contracts import EventSourceContract, EventStoreContract

class Source(InMemoryEventStore):
    {mistake}

class TestSource({contract}):
    @pytest.fixture
    def source(self):
        return Source()

    @pytest.fixture
    def other_source(self):
        return Source()
"""
GIVES_LISTS = """
    def read(self, *arguments):
        part = super().read(*arguments)
        return Slice(part.after, part.upto, list(part.events))
"""

STOPS_IN_A_GAP = """
    def read(self, after, limit, selection, upto=None):
        end = min(self.head() if upto is None else upto, self.head())
        part = super().read(after, limit, selection, min(end, after + 1_000))
        return Slice(after, after) if not part.events and part.upto < end else part
"""
DROPS_THE_FIRST_OF_A_PAGE = """
    def read(self, *arguments):
        part = super().read(*arguments)
        kept = [event for event in part.events if event.position % 256 != 1 or event.position == 1]
        return Slice(part.after, part.upto, tuple(kept))
"""

FILTERS_BY_ANOTHER_HASH = """
    def selects(self, share):
        return True

    def read(self, after, limit, selection, upto=None):
        part, share = super().read(after, limit, selection, upto), selection.share
        fits = [share is None or len(event.subject) % share.modulus in share.residues for event in part.events]
        return Slice(part.after, part.upto, [event for event, fit in zip(part.events, fits) if fit])
"""
ENDS_AT_A_LATER_HEAD = """
    def read(self, after, limit, selection, upto=None):
        part = super().read(after, limit, selection, upto)
        if len(part.events) == limit or upto is not None:
            return part
        with self._changed:
            self._changed.wait(0.001)
        return Slice(after, max(self.head(), after), part.events)
"""
ENDS_AFTER_THE_LOG = """
    def read(self, after, limit, selection, upto=None):
        end = after + limit if upto is None else max(after, min(after + limit, upto))
        return Slice(after, end, super().read(after, limit, selection, end).events)
"""
GIVES_POSITIONS_BEFORE_ITS_COMMIT = """
    _drawn = _passed = 0
    _is_late = False

    def append(self, events, *arguments):
        events = tuple(events)
        with self._changed:
            first, self._drawn = self._drawn, self._drawn + len(events)
            if first and not self._is_late:
                self._is_late = True  # one commit comes after a reader has missed it
                self._changed.wait_for(lambda: self._passed > first, 30)
            self._events += [None] * (self._drawn - len(self._events))
            for index, event in enumerate(events, first):
                self._events[index] = event._replace(position=index + 1)
            self._changed.notify_all()

    def read(self, after, limit, selection, upto=None):
        with self._changed:
            head = len(self._events) if upto is None else min(len(self._events), upto)
            found = [event for event in self._events[after:head] if event and selection.matches(event)][:limit]
            self._passed = found[-1].position if len(found) == limit else max(head, after)
            self._changed.notify_all()
            return Slice(after, self._passed, found)
"""

IGNORES_AFTER = """
    def read(self, after, limit, selection, upto=None):
        part = super().read(0, limit, selection, upto)
        return Slice(after, after + len(part.events), part.events)
"""
BOUND_TO_A_THREAD = """
    def __init__(self):
        self.thread = get_ident()
        super().__init__()

    def append(self, *arguments):
        assert get_ident() == self.thread
        return super().append(*arguments)
"""

WAITS_LONGER_THAN_ASKED = """
    def watched(self):
        watch = Watch(self.head, self._changed)
        return nullcontext(watch)

class Watch(ConditionWatch):
    def wait(self, after, seconds):
        return super().wait(after, None)
"""
STAYS_LOCKED_AFTER_AN_ERROR = """
    def append(self, *arguments, **options):
        mutex = vars(self).setdefault("mutex", Lock())
        mutex.acquire()
        appended = super().append(*arguments, **options)
        mutex.release()
        return appended
"""
SHARES_WHAT_IS_READ = """
    def read(self, *arguments):
        self.arguments = arguments
        with self._changed:
            self._changed.wait(0.001)
        return super().read(*self.arguments)
"""
SHARES_THE_POSITION_OF_A_FINGERPRINT = """
    def head(self):
        self.position = super().head()
        return self.position

    def fingerprint(self, position, event=None):
        self.position = position
        with self._changed:
            self._changed.wait(0.001)
        return super().fingerprint(self.position, event)
"""


def sources(mistake: str, contract: str = "EventSourceContract") -> str:
    """Return the test of a source whose methods are given."""
    return SOURCES.replace("{mistake}", mistake).replace("{contract}", contract)


@pytest.mark.parametrize("mistake", [SHARES_WHAT_IS_READ, SHARES_THE_POSITION_OF_A_FINGERPRINT])
def test_a_source_that_several_threads_cannot_share_fails(failing, mistake):
    test = "test_several_threads_read_different_parts_of_the_log_at_once"
    interval = sys.getswitchinterval()
    names, shown = failing(sources(mistake), only=test)
    assert names == {test}
    assert "a call returns what another thread has asked for" in shown
    assert sys.getswitchinterval() == interval


PAGES_OF_FIVE = """
    def read(self, after, limit, selection, upto=None):
        return super().read(after, min(limit, 5), selection, upto)
"""


def test_a_source_that_several_threads_can_share_may_return_small_pages(failing):
    only = "test_several_threads_read_different_parts_of_the_log_at_once"
    assert failing(sources(PAGES_OF_FIVE), only) == (set(), "")


def test_a_call_that_takes_too_long_beside_other_threads_fails(monkeypatch):
    monkeypatch.setattr(concurrent_reads, "SECONDS", 0.05)
    ended = Flag()
    calls = [*[lambda: None] * (concurrent_reads.THREADS - 1), ended.wait]
    with pytest.raises(AssertionError, match=r"a call took longer than 0\.05 s"):
        concurrent_reads.call_at_once(calls)
    ended.set()


def test_of_calls_on_several_threads_the_error_of_a_thread_is_raised():
    calls = [*[lambda: None] * (concurrent_reads.THREADS - 1), Mock(side_effect=OSError("wrong"))]
    with pytest.raises(OSError, match="wrong"):
        concurrent_reads.call_at_once(calls)


def test_a_source_that_gives_its_events_as_lists_passes(failing):
    assert failing(sources(GIVES_LISTS, "EventStoreContract")) == (set(), "")


@pytest.mark.parametrize(
    ("mistake", "test", "message"),
    [
        pytest.param(
            STOPS_IN_A_GAP,
            "test_rare_events_are_found_however_far_apart_they_are",
            "events were not found by Selection(subject='/rare'",
            id="stops-in-a-gap",
        ),
        pytest.param(
            DROPS_THE_FIRST_OF_A_PAGE,
            "test_pages_of_any_size_leave_out_nothing",
            "pages leave out or repeat some events (limit 50)",
            id="drops-the-first-of-a-page",
        ),
    ],
)
def test_a_source_that_loses_events_fails(failing, mistake, test, message):
    names, shown = failing(sources(mistake))
    assert names == {test}
    assert message in shown


@pytest.mark.parametrize(
    ("mistake", "contract", "test"),
    [
        (ENDS_AT_A_LATER_HEAD, "EventSourceContract", "test_a_reader_misses_nothing_while_events_are_added"),
        (
            GIVES_POSITIONS_BEFORE_ITS_COMMIT,
            "EventStoreContract",
            "test_a_reader_misses_nothing_while_several_writers_append",
        ),
    ],
    ids=["ends-at-a-later-head", "gives-positions-before-its-commit"],
)
def test_a_source_in_which_readers_miss_what_others_append_fails(failing, mistake, contract, test):
    names, shown = failing(sources(mistake, contract), only=test)
    assert names == {test}
    assert "events were added at or before the end of a slice that had been read without them" in shown


def test_a_source_whose_slices_end_after_the_newest_event_fails_and_does_not_hang(failing):
    names, shown = failing(sources(ENDS_AFTER_THE_LOG))
    assert "test_events_that_are_not_selected_are_passed_over" in names
    assert "read(4, 2) ends at 6, but the newest event is 5" in shown


def test_a_source_that_returns_events_from_outside_of_its_slices_fails_and_does_not_hang(failing):
    names, shown = failing(sources(IGNORES_AFTER), only="rare or empty")
    assert names == {"test_rare_events_are_found_however_far_apart_they_are"}
    assert "read(0, 2) ends at 2, but has the events 1 to 3000" in shown


def test_the_events_of_a_single_writer_are_appended_on_the_thread_of_the_test(failing):
    assert failing(sources(BOUND_TO_A_THREAD)) == (set(), "")


def race(monkeypatch, seconds: float) -> event_source.Race:
    """Return a race at a source each of whose calls takes some time."""
    clock = FakeClock()
    monkeypatch.setattr(event_source, "monotonic", clock.monotonic)

    class Slow(InMemoryEventStore):
        def append(self, *arguments):
            clock.advance(seconds)
            return super().append(*arguments)

    source = Slow()
    return event_source.Race(source, source.append)


@pytest.mark.parametrize(("seconds", "count"), [(0.0, 120), (1.0, 42), (25.0, 1)])
@pytest.mark.parametrize("writers", [1, 2])
def test_slow_writers_append_fewer_events_while_others_read(monkeypatch, seconds, count, writers):
    read, appended = race(monkeypatch, seconds).run(writers)
    assert sorted(read) == appended
    assert len(appended) >= 1
    assert writers > 1 or len(appended) == count


def test_a_reader_waits_for_as_long_as_appends_end(monkeypatch):
    monkeypatch.setattr(event_source, "ENOUGH", 10_000)
    assert len(race(monkeypatch, 25.0).run(1)[0]) == 120


def test_a_reader_does_not_wait_forever_for_an_append(monkeypatch):
    monkeypatch.setattr(event_source, "SECONDS", 0.2)
    source = InMemoryEventStore()
    with pytest.raises(Failed, match=r"append does not return while others append and read \(within 0.2 s\)"):
        event_source.Race(source, source.append).numbers_while([Future()])


def test_a_source_that_filters_partitions_by_another_hash_fails(failing):
    names, _ = failing(sources(FILTERS_BY_ANOTHER_HASH))
    assert names == {"test_shares_make_up_the_log_if_the_source_filters_them"}


def test_a_watch_that_ignores_its_timeout_fails_and_does_not_hang(failing, monkeypatch):
    for seconds in ("SECONDS", "LONG"):
        monkeypatch.setattr(event_source, seconds, 0.5)
    names, shown = failing(sources(WAITS_LONGER_THAN_ASKED), only="watch")
    assert "test_a_watch_that_times_out_returns_the_unchanged_head" in names
    assert "a watch still waits although its time is over, it was woken, or events came (within 0.5 s)" in shown


def test_a_store_that_stays_locked_after_an_append_that_failed_fails_and_does_not_hang(failing, monkeypatch):
    for name in ("SECONDS", "LONG"):
        monkeypatch.setattr(event_store, name, 0.5)
    names, shown = failing(sources(STAYS_LOCKED_AFTER_AN_ERROR, "EventStoreContract"))
    assert names == {
        "test_an_append_that_fails_adds_nothing",
        "test_of_concurrent_writers_that_begin_a_subject_one_wins",
        "test_the_first_precondition_that_does_not_hold_is_named",
    }
    assert "append still waits although every earlier one has ended or failed (within 0.5 s)" in shown


def test_a_tracker_that_keeps_one_fingerprint_for_all_partitions_of_a_group_fails(failing):
    names, _ = failing("""
from contextlib import contextmanager
from dataclasses import replace
import pytest
from opencqrs_py.adapters.memory import InMemoryProgressTracker
from opencqrs_py.testing.contracts import ProgressTrackerContract

class Tracker(InMemoryProgressTracker):
    def __init__(self):
        super().__init__()
        self.fingerprints = {}

    @contextmanager
    def unit(self, group, cursor, to, *, fingerprint="", **options):
        with super().unit(group, cursor, to, fingerprint=fingerprint, **options) as unit:
            yield unit
        self.fingerprints[group] = fingerprint

    def claim(self, group, *arguments, fingerprint="", **options):
        cursors = super().claim(group, *arguments, fingerprint=fingerprint, **options)
        self.fingerprints.setdefault(group, fingerprint)
        return tuple(replace(cursor, fingerprint=self.fingerprints[group]) for cursor in cursors)

    def renewed(self, group, cursor):
        found = super().renewed(group, cursor)
        return found and replace(found, fingerprint=self.fingerprints[group])

class TestTracker(ProgressTrackerContract):
    @pytest.fixture
    def tracker(self):
        return Tracker()
""")
    assert names == {"test_each_partition_has_its_own_fingerprint"}


INBOXES = """
from contextlib import contextmanager
from dataclasses import replace
import pytest
from opencqrs_py.adapters.memory import InMemoryProgressTracker
from opencqrs_py.errors import InboxChangedError
from opencqrs_py.model import layout
from opencqrs_py.testing.contracts import InboxContract

class Tracker(InMemoryProgressTracker):
    {mistake}

class TestTracker(InboxContract):
    @pytest.fixture
    def tracker(self):
        return Tracker()
"""
CHANGES_FIRST = """
    @contextmanager
    def _unit(self, key, cursor, to, fingerprint, skip, change):
        if change is not None and not change.added:
            self._check(key, cursor)
            self._inbox, change = self._inbox.changed(key[0], change), None
        with super()._unit(key, cursor, to, fingerprint, skip, change) as unit:
            yield unit
"""
NOT_FENCED_IN_PLACE = """
    @contextmanager
    def _unit(self, key, cursor, to, fingerprint, skip, change):
        if to == cursor.stored:
            row = self._progress[key]
            cursor, to = replace(cursor, epoch=row.epoch, stored=row.position), row.position
        with super()._unit(key, cursor, to, fingerprint, skip, change) as unit:
            yield unit
"""
OVERWRITES = """
    @contextmanager
    def _unit(self, key, cursor, to, fingerprint, skip, change):
        self._check(key, cursor)
        after = self._inbox.changed(key[0], change) if change is not None else None
        with super()._unit(key, cursor, to, fingerprint, skip, None) as unit:
            yield unit
        self._inbox = after or self._inbox
"""
CHECKS_FIRST = """
    @contextmanager
    def _unit(self, key, cursor, to, fingerprint, skip, change):
        if not change or not change.done:
            with super()._unit(key, cursor, to, fingerprint, skip, change) as unit:
                yield unit
            return
        self._inbox.changed(key[0], change)
        self._check(key, cursor)
        yield
        self._inbox = self._inbox.changed(key[0], change)
"""
FOR_ALL_PARTITIONS = """
    def next_due(self, group, partitions, **options):
        (whole,) = layout(1)
        return dict.fromkeys(partitions, super().next_due(group, [whole], **options)[whole])
"""
EXPIRED_OF_ALL = """
    def expired(self, group, partition, now, most):
        return super().expired(group, layout(1)[0], now, most)
"""
CHANGES_EARLY = {
    "test_a_unit_that_fails_leaves_the_inbox_unchanged",
    "test_a_claim_while_a_waiting_event_is_handled_comes_before_or_after_that",
}
CHECKS_EARLY = {"test_a_claim_while_a_waiting_event_is_handled_comes_before_or_after_that"}
IN_PLACE = {"test_a_lost_claim_does_not_change_the_inbox"}
MEANWHILE = {"test_a_change_by_a_person_during_a_unit_comes_before_or_after_it"}
OF_PARTITIONS = {"test_times_and_counts_of_a_partition_are_those_of_its_own_events"}


@pytest.mark.parametrize(
    ("mistake", "tests", "message"),
    [
        pytest.param(
            CHANGES_FIRST,
            CHANGES_EARLY,
            "the inbox was changed although the handler failed",
            id="changes-before-the-handler",
        ),
        pytest.param(
            NOT_FENCED_IN_PLACE,
            IN_PLACE,
            "the unit of a lost claim was opened, as its progress stays",
            id="not-fenced-in-place",
        ),
        pytest.param(CHECKS_FIRST, CHECKS_EARLY, "its claim was lost before its end", id="checks-before-the-handler"),
        pytest.param(OVERWRITES, MEANWHILE, "one of them has overwritten the other", id="overwrites-a-person"),
        pytest.param(FOR_ALL_PARTITIONS, OF_PARTITIONS, "next_due", id="due-of-all-partitions"),
        pytest.param(EXPIRED_OF_ALL, OF_PARTITIONS, "expired", id="expired-of-all-partitions"),
    ],
)
def test_an_inbox_with_a_mistake_fails(failing, mistake, tests, message):
    names, shown = failing(INBOXES.replace("{mistake}", mistake))
    assert names == tests
    assert message in shown


TRACKERS = """
from contextlib import closing, contextmanager
from dataclasses import replace
import sqlite3
import pytest
from opencqrs_py.adapters.memory import InMemoryProgressTracker
from opencqrs_py.adapters.memory.progress import NoTransactions
from opencqrs_py.processing.ports import NoUnit
from opencqrs_py.testing.contracts import ProgressTrackerContract

class Tracker(InMemoryProgressTracker):
    {mistake}

class TestTracker(ProgressTrackerContract):
    @pytest.fixture
    def tracker(self):
        return Tracker()
"""
ONE_CONNECTION = """
    @pytest.fixture
    def read_model(self):
        with closing(sqlite3.connect(":memory:", check_same_thread=False)) as connection:
            connection.execute("CREATE TABLE written (value)")
            yield OneConnection(connection)

    @pytest.fixture
    def tracker(self, read_model):
        return Tracker(read_model)

class Unit(NoUnit):
    connection = None

class OneConnection(NoTransactions):
    def __init__(self, connection):
        self.connection = connection

    @contextmanager
    def begin(self, **options):
        unit = Unit("")
        unit.connection = self.connection
        with self.connection:
            yield unit

    def write(self, unit, value):
        unit.connection.execute("INSERT INTO written VALUES (?)", (value,))

    def values(self):
        return [value for value, in self.connection.execute("SELECT value FROM written")]
"""


def test_a_tracker_that_compares_no_epochs_if_the_progress_stays_fails(failing):
    names, _ = failing(TRACKERS.replace("{mistake}", NOT_FENCED_IN_PLACE))
    assert names == {
        "test_a_zombie_with_an_old_epoch_is_fenced",
        "test_a_zombie_is_fenced_even_if_it_knows_the_position",
        "test_of_two_writers_with_one_cursor_the_second_is_fenced",
        "test_a_succeeding_run_continues_at_the_position_of_its_predecessor",
    }


def test_a_tracker_with_one_connection_for_all_units_fails(failing):
    names, shown = failing(TRACKERS.replace("{mistake}", "pass") + ONE_CONNECTION)
    assert names == {"test_units_of_two_partitions_are_committed_and_undone_independently"}
    assert shown.count("AssertionError: the end of a unit has committed or undone what another one had written") == 2


SAME_EPOCH = """
    def succeed(self, group, cursor, owner=None):
        return self.renewed(group, cursor)
"""
FASTEST = """
    def reached(self, group):
        return max((row.position + 1 for (name, _), row in self._progress.items() if name == group), default=0)
"""
BLIND = """
    @contextmanager
    def watched(self, group):
        with super().watched("unknown") as watch:
            yield watch
"""
NOTHING_NEW = """
    def resetting(self, reset, layout, *, fingerprint="", never_handled=None):
        return super().resetting(reset, layout, fingerprint=fingerprint)
"""
SAVES_NOTHING = """
    @contextmanager
    def unit_in_parts(self, group, cursor, to, *, fingerprint=""):
        with self.unit(group, cursor, to, fingerprint=fingerprint) as unit:
            unit.saved = lambda: lambda: True
            unit.conclude = lambda *end: None
            yield unit
"""
SUCCEEDING = {
    "test_a_succeeding_run_continues_at_the_position_of_its_predecessor",
    "test_a_run_can_be_succeeded_only_once",
    "test_a_run_of_another_owner_cannot_be_succeeded",
    "test_a_run_that_begins_during_a_unit_of_its_predecessor_comes_before_or_after_it",
}
REACHING = {
    "test_a_group_has_reached_the_position_of_its_slowest_partition",
    "test_a_watch_sees_the_progress_of_its_group",
}
IN_PARTS = {"test_the_last_part_of_a_unit_can_be_undone_alone", "test_a_unit_in_parts_ends_where_it_was_concluded"}


@pytest.mark.parametrize(
    ("mistake", "tests"),
    [
        pytest.param(SAME_EPOCH, SUCCEEDING, id="same-epoch"),
        pytest.param(FASTEST, REACHING, id="fastest-partition"),
        pytest.param(SAVES_NOTHING, IN_PARTS, id="saves-nothing"),
    ],
)
def test_a_tracker_with_a_mistake_in_an_optional_protocol_fails(failing, mistake, tests):
    names, _ = failing(TRACKERS.replace("{mistake}", mistake) + (ONE_CONNECTION if tests == IN_PARTS else ""))
    assert names - {"test_units_of_two_partitions_are_committed_and_undone_independently"} == tests


def test_a_tracker_whose_watches_see_another_group_fails_and_does_not_hang(failing, monkeypatch):
    for seconds in ("SECONDS", "ENDLESS"):
        monkeypatch.setattr(progress_abilities, seconds, 0.5)
    names, _ = failing(TRACKERS.replace("{mistake}", BLIND))
    assert names == {"test_a_watch_sees_the_progress_of_its_group", "test_a_watch_can_be_woken"}


def test_a_tracker_whose_resets_do_not_ask_for_what_was_never_handled_fails(failing):
    source = TRACKERS.replace("ProgressTrackerContract", "ResettableTrackerContract")
    names, _ = failing(source.replace("{mistake}", NOTHING_NEW))
    assert names == {"test_events_that_a_partition_never_handled_before_others_that_it_did_are_read_as_new"}


ENGINES = """
from threading import Event as Signal
import pytest
from opencqrs_py.engines.thread import ThreadEngine
from opencqrs_py.testing.contracts import EngineContract

class Engine(ThreadEngine):
    {mistake}

class TestEngine(EngineContract):
    @pytest.fixture
    def make_engine(self):
        return Engine
"""
NEVER_STOPS = """
    def stop(self, patience):
        super().stop(patience)
        Signal().wait()
"""
NEVER_STARTS = """
    def start(self):
        pass
"""
FIRST_EVENTS = "test_preparation_runs_before_the_first_event"
WAITED = "s without a step or notice); it has reported 0 steps, and as notices []"
HELD = "test_a_stop_waits_no_longer_than_its_timeout"


@pytest.mark.parametrize(
    ("mistake", "test", "message"),
    [
        pytest.param(NEVER_STOPS, HELD, "the engine's stop does not return (within 1 s)", id="never-stops"),
        pytest.param(NEVER_STARTS, FIRST_EVENTS, WAITED, id="never-starts"),
        pytest.param(NEVER_STARTS, HELD, "the engine has not called the handler of an event", id="calls-no-handler"),
    ],
)
def test_an_engine_that_does_nothing_or_never_stops_fails_and_does_not_hang(
    failing, monkeypatch, mistake, test, message
):
    for module, name in ((engine_project, "SECONDS"), (engine_project, "HELD_SECONDS"), (engine_assignment, "SECONDS")):
        monkeypatch.setattr(module, name, 0.5)
    names, shown = failing(ENGINES.replace("{mistake}", mistake), only=test)
    assert names == {test}
    assert message in shown


@pytest.mark.parametrize(
    ("reports_until", "outcome", "seconds"),
    [(0, "fails", 150), (300, "fails", 450), (300, "does it", 400), (9_999, "fails", 650)],  # 50 s per look
)
def test_an_engine_that_reports_something_has_more_time(monkeypatch, reports_until, outcome, seconds):
    clock = FakeClock()
    monkeypatch.setattr(engine_project, "time", clock)
    monkeypatch.setattr(engine_project, "_LOOK_SECONDS", 0)
    watching = engine_project.WatchingObserver()

    def condition():
        if outcome == "does it" and clock.monotonic() >= begun_at + seconds:
            return True
        clock.advance(50)
        if clock.monotonic() <= begun_at + reports_until:
            watching.notices.append(None)
        return False

    begun_at = clock.monotonic()
    with pytest.raises(Failed, match="waits for") if outcome == "fails" else nullcontext():
        watching.wait_for(condition)
    assert clock.monotonic() == begun_at + seconds


def test_all_engines_are_stopped_even_if_stops_fail(tmp_path):
    class Failing:
        def stop(self, patience):
            stopped.append(self)
            raise RuntimeError("no stop")

    stopped = []
    project = engine_project.EngineProject(f"sqlite:///{tmp_path}/project.db", lambda *_: Failing())
    engines = [project.engine()[0] for _ in range(2)]
    with pytest.raises(RuntimeError, match="no stop"):
        project.close()
    assert stopped == engines


@pytest.mark.parametrize(("takes", "gets"), [(0.0, 0.3), (0.05, 0.3), (2.0, 6.0)])
def test_a_call_of_a_slow_tracker_has_more_time_to_return(monkeypatch, takes, gets):
    clock = FakeClock()
    monkeypatch.setattr(progress_records, "monotonic", clock.monotonic)
    assert progress_records.timed(lambda: clock.advance(takes)) == (None, gets)


JOB_STORES = """
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock, RLock
import pytest
from opencqrs_py.adapters.memory import InMemoryJobStore
from opencqrs_py.testing.contracts import JobStoreContract

class Store(InMemoryJobStore):
    {mistake}

class TestStore(JobStoreContract):
    @pytest.fixture
    def store(self):
        return Store()
"""
PURGES_OTHERS = """
    def purge(self, job, before):
        jobs = {run.job for run in self.history()} | {job}
        return {each: super(Store, self).purge(each, before) for each in jobs}[job]
"""
UNLIMITED = """
    def history(self, job=None, limit=10_000):
        return super().history(job, limit)
"""
GATHERS_BY_ANY_TOKEN = """
    def gather(self, run, position, children=()):
        known = {child.id: replace(self.find(child.id), position=child.position) for child in children}
        gathered = super().gather(run, position, children)
        if gathered:
            self._runs.update(known)
        return gathered
"""
REQUESTS_ALL = """
    def request(self, run, unit=None):
        return super().request(replace(run, ids=None), unit)
"""
FORGETS_DUE_TIMES = """
    @contextmanager
    def open(self, jobs):
        known = dict(self._runs)
        with super().open(jobs) as book:
            yield book
        for id_, run in known.items():
            if id_ in self._runs:
                self._runs[id_] = replace(self._runs[id_], due_at=run.due_at)
"""
KEEPS_ITS_LOCK = """
    def __init__(self):
        super().__init__()
        self.mutex = Lock()

    @contextmanager
    def open(self, jobs):
        self.mutex.acquire()
        with super().open(jobs) as book:
            yield book
        self.mutex.release()

    def history(self, *arguments, **options):
        with self.mutex:
            return super().history(*arguments, **options)
"""


@pytest.mark.parametrize(
    ("mistake", "test"),
    [
        (PURGES_OTHERS, "test_purging_removes_runs_that_ended_before_a_time_except_the_last"),
        (UNLIMITED, "test_many_runs_are_written_and_found"),
        (GATHERS_BY_ANY_TOKEN, "test_a_former_copy_of_a_child_gathers_nothing"),
        (REQUESTS_ALL, "test_a_request_is_stored_unchanged_but_for_the_time_of_the_stores_clock"),
        (FORGETS_DUE_TIMES, "test_a_known_run_is_changed_as_a_whole"),
    ],
    ids=["purges-others", "unlimited", "gathers-by-any-token", "requests-all", "forgets-due-times"],
)
@pytest.mark.few
def test_a_job_store_with_a_mistake_fails(failing, mistake, test):
    names, _ = failing(JOB_STORES.replace("{mistake}", mistake))
    assert names == {test}


BOOK_OF_OTHER_TYPES = """
    @contextmanager
    def open(self, jobs):
        with super().open(jobs) as book:
            yield Book(book)

class Book:
    def __init__(self, book):
        self.book = book

    def __getattr__(self, name):
        return getattr(self.book, name)

    @property
    def runs(self):
        return tuple(self.book.runs)

    def recorded(self, ids):
        return sorted(self.book.recorded(ids))
"""


def test_a_job_store_whose_books_return_tuples_and_lists_passes(failing):
    names, _ = failing(JOB_STORES.replace("{mistake}", BOOK_OF_OTHER_TYPES))
    assert names == set()


KEEPS_ITS_LOCK_FOR_ITS_THREAD = KEEPS_ITS_LOCK.replace("Lock()", "RLock()")
RAISED = ("test_a_block_that_raises_writes_nothing_and_ends", "open() waits for a block that has raised (within 0.5 s)")
ENDED = ("test_a_second_caller_waits_for_the_first_and_sees_what_it_wrote", "a call still waits although no block")


@pytest.mark.parametrize(
    ("mistake", "test", "message"),
    [
        pytest.param(KEEPS_ITS_LOCK, *RAISED, id="raised"),
        pytest.param(KEEPS_ITS_LOCK_FOR_ITS_THREAD, *RAISED, id="raised-on-its-thread"),
        pytest.param(KEEPS_ITS_LOCK_FOR_ITS_THREAD.replace("self.mutex.release()", "pass"), *ENDED, id="ended"),
    ],
)
def test_a_job_store_that_stays_locked_after_a_block_fails_and_does_not_hang(
    failing, monkeypatch, mistake, test, message
):
    for module, name in ((job_store, "SECONDS"), (job_store, "LONG"), (job_owners, "SECONDS")):
        monkeypatch.setattr(module, name, 0.5)
    names, shown = failing(JOB_STORES.replace("{mistake}", mistake))
    assert test in names
    assert message in shown


CONTROL_STORES = """
from dataclasses import replace
import pytest
from opencqrs_py.adapters.memory import InMemoryControlStore
from opencqrs_py.testing import FakeClock
from opencqrs_py.testing.contracts import ControlStoreContract

class Store(InMemoryControlStore):
    {mistake}

class TestStore(ControlStoreContract):
    @pytest.fixture
    def clock(self):
        return FakeClock()

    @pytest.fixture
    def store(self, clock):
        return Store(clock)

    @pytest.fixture
    def let_pass(self, clock):
        return clock.advance
"""
ALWAYS_AN_OUTAGE = """
    def is_outage(self, error):
        return True
"""
EXTENDS_ALL = """
    def beat(self, node, seconds):
        for other in self.view().alive:
            super().beat(other, seconds)
        return super().beat(node, seconds)
"""
RETURNS_ALL = """
    def give_back(self, node, keys):
        super().give_back(node, list(self._leases))
"""
BURIES_ALL = """
    def take(self, node, keys, dead=()):
        return super().take(node, keys, list(self._nodes) if dead else dead)
"""
JOINS_WITHOUT_REQUESTS = """
    def join(self, node, seconds):
        super().join(node, seconds)
        self._wanted_partitions.clear()
"""
JOINS_WITHOUT_JOBS = """
    def join(self, node, seconds):
        super().join(replace(node, jobs={}), seconds)
"""
LAYS_OUT_ALL = """
    def lay_out(self, group, partitions):
        super().lay_out(group, partitions)
        self._leases.update({key: replace(lease, node="") for key, lease in self._leases.items() if key.group != group})
"""
IN_ANOTHER_ORDER = """
    def take(self, node, keys, dead=()):
        return super().take(node, keys, dead)[::-1]

    def _seen(self):
        seen = super()._seen()
        return replace(seen, leases=seen.leases[::-1])
"""


@pytest.mark.parametrize(
    ("mistake", "tests"),
    [
        pytest.param(ALWAYS_AN_OUTAGE, {"test_an_error_of_other_code_is_not_an_outage"}, id="always-an-outage"),
        pytest.param(EXTENDS_ALL, {"test_a_heartbeat_extends_no_lease_of_another_node"}, id="extends-all"),
        pytest.param(RETURNS_ALL, {"test_only_the_returned_leases_end"}, id="returns-all"),
        pytest.param(BURIES_ALL, {"test_only_the_nodes_declared_dead_lose_their_leases"}, id="buries-all"),
        pytest.param(JOINS_WITHOUT_REQUESTS, {"test_requests_outlast_nodes_and_layouts"}, id="joins-without-requests"),
        pytest.param(LAYS_OUT_ALL, {"test_partitions_new_to_a_layout_have_free_leases"}, id="lays-out-all"),
        pytest.param(IN_ANOTHER_ORDER, set(), id="right-in-another-order"),
    ],
)
def test_a_control_store_with_a_mistake_fails(failing, mistake, tests):
    names, _ = failing(CONTROL_STORES.replace("{mistake}", mistake))
    assert names == tests


def test_a_control_store_that_forgets_the_jobs_of_nodes_fails(failing):
    names, _ = failing(CONTROL_STORES.replace("{mistake}", JOINS_WITHOUT_JOBS))
    assert "test_a_joined_node_is_seen_with_all_it_can_run" in names


MODULES = sorted(module.name for module in iter_modules(contracts.__path__))


def test_failures_in_each_module_of_contracts_show_the_compared_values(pytester):
    modules = [f"{contracts.__name__}.{name}" for name in MODULES]
    pytester.makepyfile(f"""
from importlib import import_module
import pytest
import {contracts.__name__}

@pytest.mark.parametrize("name", {modules})
def test_asserts_are_rewritten(name):
    module = import_module(name)
    assert "@pytest_ar" in vars(module)
""")
    assert pytester.runpytest_subprocess(*ARGUMENTS[:2]).parseoutcomes() == {"passed": len(MODULES)}
