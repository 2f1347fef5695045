from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest

from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.cli.events import listings
from opencqrs_py.cli.events.listings import Follower, last_events
from opencqrs_py.errors import DatabaseFileError, DatabaseFileGoneError, EventStoreError, OtherLogError
from opencqrs_py.model.event import Event
from opencqrs_py.model.selection import Selection

ALL = Selection()


def event(number, subject="/a"):
    return Event(0, str(number), "s", subject, "t", None, "application/json", None, None)


@pytest.mark.parametrize("window", [1, 2, 3, 100])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 50])
@pytest.mark.parametrize("root", ["/", "/rare", "/none"])
def test_the_last_events_are_those_of_the_whole_log(monkeypatch, window, count, root):
    monkeypatch.setattr(listings, "_FIRST_WINDOW", window)
    store = InMemoryEventStore(event(n, "/rare" if n % 7 == 0 else "/often") for n in range(40))
    everything = store.read(0, 100, Selection(root)).events
    found = last_events(store, store.head(), count, Selection(root))
    assert found == list(
        everything[len(everything) - count :] if 0 < count < len(everything) else everything * bool(count)
    )


def test_a_few_last_events_are_found_without_reading_the_whole_log(monkeypatch):
    store = InMemoryEventStore(event(n) for n in range(10_000))
    read, seen = store.read, []
    monkeypatch.setattr(store, "read", lambda after, *others: seen.append(after) or read(after, *others))
    assert [e.id for e in last_events(store, store.head(), 3, ALL)] == ["9997", "9998", "9999"]
    assert min(seen) == 9_000


def test_the_last_events_exclude_events_after_the_given_head():
    store = InMemoryEventStore(event(n) for n in range(5))
    assert [e.id for e in last_events(store, 3, 10, ALL)] == ["0", "1", "2"]


class Shown(list):
    """A callback that ends the run after the last event."""

    def __init__(self, store, *more):
        super().__init__()
        self.store = store
        self.more = list(more)

    def __call__(self, events):
        self += [e.id for e in events]
        if not self.more:
            raise KeyboardInterrupt
        self.store.append([self.more.pop(0)])


def test_each_new_event_is_shown_once_and_in_order():
    store = InMemoryEventStore(event(n) for n in range(3))
    shown = Shown(store, event(3), event(4, "/b"), event(5))
    follower = Follower(store, 1, ALL, shown)
    with pytest.raises(KeyboardInterrupt):
        follower.run()
    assert shown == ["1", "2", "3", "4", "5"]


class OutageError(Exception):
    pass


class Unreliable(InMemoryEventStore):
    """A store that is unavailable at every other read."""

    def __init__(self, events):
        self.calls = 0
        super().__init__(events)

    def read(self, *arguments):
        self.calls += 1
        if self.calls % 2:
            raise OutageError("down\nfor now")
        return super().read(*arguments)

    @contextmanager
    def watched(self):
        with super().watched() as watch:
            yield watch

    def is_outage(self, error):
        return isinstance(error, OutageError)


def test_following_resumes_when_an_unavailable_store_is_back(capsys):
    store, pauses = Unreliable(event(n) for n in range(3)), []
    shown = Shown(store, event(3), event(4))
    with pytest.raises(KeyboardInterrupt):
        Follower(store, 0, ALL, shown, pauses.append).run()
    assert shown == ["0", "1", "2", "3", "4"]
    assert pauses == [0.5, 0.5, 0.5]
    assert capsys.readouterr().err.splitlines() == 3 * [
        "the event store is unavailable: down; waiting for it",
        "the event store is available again",
    ]


def refused(port):
    where = f"postgresql://u@db:{port}/events"
    return EventStoreError("OCQ-304", "the database cannot be reached (refused)", where, "start it")


class WrappedError(OutageError):
    """An error of a driver as SQLAlchemy wraps it."""

    def __init__(self, cause):
        super().__init__(f"(psycopg.OperationalError) {cause}\n[SQL: SELECT 1]\n(Background on this error at …)")
        self.orig = OutageError(2013, cause)


class Unavailable(InMemoryEventStore):
    """A store that raises these errors first."""

    def __init__(self, events, *errors):
        self.errors = list(errors)
        super().__init__(events)

    @contextmanager
    def watched(self):
        if self.errors:
            raise self.errors.pop(0)
        with super().watched() as watch:
            yield watch

    def is_outage(self, error):
        return isinstance(error, OutageError | EventStoreError) and not isinstance(error, OtherLogError)


def test_an_outage_is_reported_once_per_reason_and_once_when_it_ends(capsys):
    errors = [
        WrappedError("server closed\nthe connection"),
        *(refused(5432) for _ in range(3)),
        refused(5433),
        OutageError(),
    ]
    store, pauses = Unavailable([event(1)], *errors), []
    with pytest.raises(KeyboardInterrupt):
        Follower(store, 0, ALL, Shown(store), pauses.append).run()
    assert capsys.readouterr().err.splitlines() == [
        "the event store is unavailable: server closed; waiting for it",
        "the event store is unavailable: [OCQ-304] the database cannot be reached (refused), "
        "postgresql://u@db:5432/events; waiting for it",
        "the event store is unavailable: [OCQ-304] the database cannot be reached (refused), "
        "postgresql://u@db:5433/events; waiting for it",
        "the event store is unavailable: OutageError; waiting for it",
        "the event store is available again",
    ]
    assert pauses == [0.5, 1, 2, 4, 8, 16]


def test_the_end_of_an_outage_is_reported_even_without_new_events(capsys):
    store, waits = Unavailable([], refused(1)), []

    @contextmanager
    def watched():
        if store.errors:
            raise store.errors.pop(0)
        yield SimpleNamespace(wait=lambda _after, _seconds: waits.append(1) or stop_after(waits, 3))

    store.watched = watched
    with pytest.raises(KeyboardInterrupt):
        Follower(store, 0, ALL, Shown(store), lambda _: None).run()
    assert capsys.readouterr().err.splitlines()[1:] == ["the event store is available again"]


class Watches:
    """Opens the watches of a store; the first ones raise these errors."""

    def __init__(self, store, *errors):
        self.opened = 0
        self._errors = list(errors)
        self._watched = store.watched
        store.watched = self

    def __call__(self):
        if self._errors and (error := self._errors.pop(0)) is not None:
            raise error
        self.opened += 1
        return self._watched()


def test_following_resumes_when_a_deleted_file_is_back(capsys):
    gone = DatabaseFileGoneError("OCQ-326", "the file was deleted", "/log/x.db", "put it back")
    store = InMemoryEventStore([event(1)])
    watches = Watches(store, gone, gone)
    with pytest.raises(KeyboardInterrupt):
        Follower(store, 0, ALL, Shown(store, event(2)), lambda _: None).run()
    assert watches.opened == 1
    assert capsys.readouterr().err.splitlines() == [
        "the event store is unavailable: [OCQ-326] the file was deleted, /log/x.db; waiting for it",
        "the event store is available again",
    ]


def test_a_replaced_file_ends_the_command(capsys):
    store = InMemoryEventStore([event(1)])
    Watches(store, DatabaseFileError("OCQ-326", "replaced"))
    with pytest.raises(DatabaseFileError, match="replaced"):
        Follower(store, 0, ALL, Shown(store, event(2)), lambda _: None).run()
    assert capsys.readouterr().err == ""


def restore(store, *events):
    store._events, store._known = [], {}
    store.append(events)


RESTART = "start the command again to follow the current log"


def test_a_log_restored_to_a_shorter_one_ends_the_command():
    store, waits = InMemoryEventStore(event(n) for n in range(3)), []
    store.watched = lambda: nullcontext(
        SimpleNamespace(wait=lambda *_: waits.append(1) or stop_after(waits, 4) or store.head())
    )
    with pytest.raises(OtherLogError, match=r"OCQ-316(?s:.*)ends at position 1") as ended:
        Follower(store, 0, ALL, lambda _: restore(store, event(0))).run()
    assert ended.value.fix == RESTART


def test_a_log_restored_during_an_outage_ends_the_command():
    store, pauses = Unavailable([event(1), event(2)]), []

    def fail(*_):
        restore(store, event(1), event(3), event(4))
        raise OutageError("down")

    store.watched = lambda: nullcontext(SimpleNamespace(wait=fail))
    with pytest.raises(OtherLogError, match="OCQ-316") as ended:
        Follower(store, 2, ALL, Shown(store), lambda _: pauses.append(1) or stop_after(pauses, 3)).run()
    assert ended.value.fix == RESTART
    assert len(pauses) == 1


def stop_after(waits, most):
    if len(waits) == most:
        raise KeyboardInterrupt
    return 0


def test_other_errors_end_the_command():
    store = InMemoryEventStore([event(1)])

    def show(events):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        Follower(store, 0, ALL, show).run()
