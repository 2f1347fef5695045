"""Whatever code of a project raises or does wrong is reported by its own event or partition, on both engines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from types import ModuleType

import pytest
from sqlalchemy import text
from support.observers import Watching

from opencqrs_py import Application
from opencqrs_py.adapters.sql import Database
from opencqrs_py.model import Event, ProcessorState
from opencqrs_py.processing.notices import Notice
from opencqrs_py.processing.recovery import Action

THREAD = {"event-handling.standard.processing.engine": "thread"}
SPARK = {
    "spark.master": "local[2]",
    "spark.driver-handles": "never",
    "event-handling.standard.processing.engine": "spark",
}
RULES = {
    "event-handling.standard.life-cycle.lease.duration": "10m",  # on a slow machine no partition is taken again
    "event-handling.standard.retry.policy": "none",
    "event-handling.standard.life-cycle.partitions": 1,
    "event-handling.groups.resolver.life-cycle.partitions": 2,
    "event-handling.groups.resolver.sequence.resolver-ref": "by_nothing",
}
EVENTS = 5
BAD = 3

PROJECT = '''
import asyncio
import threading
from collections.abc import Iterator

from dependency_injector import containers, providers
from opencqrs_py import AfterCommit, Event, around_event, around_handler, event_handling, on_start
from sqlalchemy import Connection, text


class PanicException(BaseException):
    """What a panic of a Rust extension becomes."""


class SilentError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class UnpicklableError(Exception):
    def __init__(self, *, lock: object) -> None:
        super().__init__("cannot travel")
        self.lock = lock


def recurse(depth: int = 0) -> None:
    recurse(depth + 1)


def panic() -> None:
    raise PanicException("index out of bounds")


def several() -> None:
    raise BaseExceptionGroup("two", [PanicException("one"), SilentError()])


def silent() -> None:
    raise SilentError


def surrogate() -> None:
    raise ValueError("a\\ud800b\\x00c")


def megabytes() -> None:
    raise ValueError("long " * 1_000_000)


def cancelled() -> None:
    raise asyncio.CancelledError("mine")


def ended() -> None:
    raise GeneratorExit


def unpicklable() -> None:
    raise UnpicklableError(lock=threading.Lock())


FAULTS = [recurse, panic, several, silent, surrogate, megabytes, cancelled, ended, unpicklable]


@on_start("healthy")
def tables(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS handled (name TEXT, position INTEGER)"))


def note(connection: Connection, name: str, *positions: int) -> None:
    for position in positions:
        connection.execute(text("INSERT INTO handled VALUES (:n, :p)"), {"n": name, "p": position})


def failing(fault):
    def handle(raw: Event, connection: Connection) -> None:
        note(connection, fault.__name__, raw.position)
        if raw.position == 3:
            fault()

    return handle


def failing_with_lists(fault):
    def handle(raws: list[Event], connection: Connection) -> None:
        note(connection, f"{fault.__name__}-lists", *(raw.position for raw in raws))
        if any(raw.position == 3 for raw in raws):
            fault()

    return handle


def failing_async(fault):
    async def handle(raw: Event, connection: Connection) -> None:
        note(connection, f"{fault.__name__}-async", raw.position)
        await asyncio.sleep(0)
        if raw.position == 3:
            fault()

    return handle


def of_group(group, handle):
    globals()["on_" + group.replace("-", "_")] = event_handling(group, types=["t"])(handle)


for fault in FAULTS:
    of_group(fault.__name__, failing(fault))
for fault in (panic, silent, surrogate):
    of_group(f"{fault.__name__}-lists", failing_with_lists(fault))
    of_group(f"{fault.__name__}-async", failing_async(fault))


@event_handling("healthy", types=["t"])
def healthy(raw: Event, connection: Connection, after_commit: AfterCommit) -> None:
    note(connection, "healthy", raw.position)
    if raw.position == 3:
        after_commit(panic)


# What is not the event's fault


class Mailer:
    pass


def make_mailer() -> Mailer:
    raise ConnectionRefusedError("the mail server is unavailable")


def nothing(event: Event) -> str:
    return None if event.position == 3 else event.subject


class Container(containers.DeclarativeContainer):
    mailer = providers.Factory(make_mailer)
    by_nothing = providers.Object(nothing)


@event_handling("provider", types=["t"])
def mail(raw: Event, connection: Connection, mailer: Mailer) -> None:
    note(connection, "provider", raw.position)


@around_event("twice")
def twice(raw: Event) -> Iterator[None]:
    yield
    if raw.position == 3:
        yield


@event_handling("twice", types=["t"])
def handle_twice(raw: Event, connection: Connection) -> None:
    note(connection, "twice", raw.position)


@around_handler("never")
def never() -> Iterator[None]:
    yield from ()


@event_handling("never", types=["t"])
def handle_never(raw: Event, connection: Connection) -> None:
    note(connection, "never", raw.position)


@event_handling("resolver", types=["t"])
def handle_resolver(raw: Event, connection: Connection) -> None:
    note(connection, "resolver", raw.position)
'''
MESSAGES = {  # of the errors that are the event's: class and beginning of the message
    "recurse": ("RecursionError", "maximum recursion depth exceeded"),
    "panic": ("PanicException", "index out of bounds"),
    "several": ("BaseExceptionGroup", "two (2 sub-exceptions)"),
    "silent": ("SilentError", "its text cannot be shown: str() raised ValueError"),
    "surrogate": ("ValueError", "a\\ud800b\\x00c"),
    "megabytes": ("ValueError", "long long "),
    "cancelled": ("CancelledError", "mine"),
    "ended": ("GeneratorExit", ""),
    "unpicklable": ("UnpicklableError", "cannot travel"),
}
FRAMEWORK = {  # the events handled before, and the message
    "provider": (0, "of {file}:"),
    "twice": (BAD - 1, "yielded a second time"),
    "never": (0, "ended without a yield"),
    "resolver": (BAD - 1, "the sequence resolver returned None, which is not text"),
}

_numbers = count()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The project, as an importable module of a fresh name."""
    name = f"hostile_project_{next(_numbers)}"
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / f"{name}.py").write_text(PROJECT)
    monkeypatch.syspath_prepend(folder)
    yield __import__(name)
    sys.modules.pop(name, None)


def handled(url: str) -> Callable[[str], list[int]]:
    database = Database(url)
    with database.reading() as connection:
        found = connection.execute(text("SELECT name, position FROM handled ORDER BY position")).all()
    database.close()
    return lambda group: [position for name, position in found if name == group]


@pytest.mark.release(settings=SPARK)
@pytest.mark.parametrize(
    "settings", [pytest.param(THREAD, id="thread"), pytest.param(SPARK, id="spark", marks=pytest.mark.spark)]
)
def test_each_group_has_its_own_errors_and_all_of_them_are_reported(
    tmp_path: Path, module: ModuleType, settings: Mapping[str, object]
) -> None:
    url, watching = f"sqlite:///{tmp_path}/library.db", Watching()
    application = Application({"event-store.url": url, **settings, **RULES}, [module], tmp_path)
    application.event_store.append(
        Event(0, str(n), "urn:library", f"/books/{n}", "t", None, "application/json", "{}", None)
        for n in range(1, EVENTS + 1)
    )
    assert application.run(observer=watching, until_caught_up=True).failed
    states = {status.group: status for status in application.status()}
    notices: dict[str, list[Notice]] = {}
    for notice in watching.notices:
        notices.setdefault(notice.group, []).append(notice)
    found = handled(url)
    application.stop()

    (missed,) = notices["healthy"]
    assert found("healthy") == [1, 2, 3, 4, 5]
    assert missed.failure is not None
    assert str(missed.failure) == "PanicException: index out of bounds"

    of_events = [group for group in notices if group.partition("-")[0] in MESSAGES]
    assert len(of_events) == len(MESSAGES) + 6
    for group in of_events:
        error, message = MESSAGES[group.partition("-")[0]]
        (skipped,) = notices[group]
        assert (group, skipped.action, found(group)) == (group, Action.SKIP, [1, 2, 4, 5])
        assert skipped.failure is not None
        assert skipped.failure.error == error
        assert skipped.failure.message.startswith(message)
        assert (skipped.failure.position, skipped.attempt) == (BAD, 1)
        assert len(skipped.failure.message) < 5_000
        assert "opencqrs_py" not in skipped.failure.message + skipped.failure.traceback

    for group, (before, says) in FRAMEWORK.items():
        assert found(group) == list(range(1, before + 1)), group
        assert {notice.action for notice in notices[group]} == {Action.STOP}
        for notice in notices[group]:
            assert notice.failure is not None
            assert says.format(file=module.__file__) in notice.failure.message
        assert {partition.state for partition in states[group].partitions} == {ProcessorState.FAILED}
    (provider,) = notices["provider"]
    assert provider.failure is not None
    assert "provider 'mailer' raised ConnectionRefusedError: the mail server is unavailable" in provider.failure.message
