"""HandlerTest: events are handled as in production, and failed expectations are explained."""

from __future__ import annotations

import asyncio
import gc
import re
import sqlite3
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import attrs
import pyarrow as pa
import pytest
from dependency_injector import containers, providers
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection, column, create_engine, select, table, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import opencqrs_py.testing
from opencqrs_py import (
    AfterCommit,
    CheckpointParticipant,
    Database,
    Event,
    FixedBackOff,
    Metadata,
    NonTransientError,
    NoRetry,
    ProcessingContext,
    Reset,
    TransientError,
    Upcast,
    around_handler,
    bulk,
    checkpointing,
    event_handling,
    event_type,
    on_replay_finished,
    on_reset,
    on_start,
    upcaster,
)
from opencqrs_py.errors import AssemblyError, EventFormatError, EventStoreError, TransactionEndedError
from opencqrs_py.processing.recovery import ExponentialBackOff
from opencqrs_py.testing import HandlerTest

LENT = "SELECT isbn, reader FROM lent"
DATABASE = 'database takes a URL such as "sqlite:///library.db", a Database or an engine of SQLAlchemy'


@dataclass(frozen=True)
class BookEvent:
    isbn: str


@event_type("purchased")
@dataclass(frozen=True)
class Purchased(BookEvent):
    pass


@event_type("lent")
@dataclass(frozen=True)
class Lent(BookEvent):
    reader: str = "ada"


@on_start("catalog")
def tables(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS lent (isbn TEXT, reader TEXT)"))


@event_handling("catalog")
def lend(event: Lent, connection: Connection) -> None:
    if event.reader == "nobody":
        msg = "who is that?"
        raise ValueError(msg)
    connection.execute(text("INSERT INTO lent VALUES (:isbn, :reader)"), {"isbn": event.isbn, "reader": event.reader})


@event_handling("loans")
def count(event: Lent) -> None: ...


@event_handling("catalog")
def refuse(event: Purchased) -> None:
    msg = "never"
    raise NonTransientError(msg)


class Mailer:
    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, to: str) -> None:
        self.sent.append(to)


class Bell(Protocol):
    def ring(self) -> None: ...


@event_handling("reminders")
class Reminders:
    def __init__(self, mailer: Mailer) -> None:
        self.mailer = mailer

    @event_handling
    def remind(self, event: Lent) -> None:
        self.mailer.send(event.reader)


@event_handling("reminders")
def ring(event: Lent, bell: Bell, after_commit: AfterCommit) -> None:
    after_commit(bell.ring)


catalog = pytest.mark.parametrize("batch_size", [None, 1, 2])


# ---------------------------------------------------------------------------------------------------- given and handled


@catalog
def test_given_events_are_handled_into_the_read_model(batch_size: int | None) -> None:
    test = HandlerTest(tables, lend, batch_size=batch_size)
    test.given(Lent("1"), Lent("2", "bob"), Lent("3")).handle()
    test.expect_rows(LENT, [("1", "ada"), ("2", "bob"), ("3", "ada")])
    test.expect_rows(text(LENT), [["1", "ada"], ["2", "bob"], ["3", "ada"]])
    test.expect_progress(3).expect_no_failure().expect_waits([]).expect_skipped()
    assert test.rows("SELECT count(*) FROM lent WHERE reader LIKE 'a%'") == [(2,)]


def test_events_given_later_are_handled_by_the_next_call() -> None:
    test = HandlerTest(tables, lend)
    test.handle().expect_progress(0)
    test.given(Lent("1")).handle().expect_progress(1)
    test.given(Lent("2")).handle().expect_progress(2)


def test_each_test_has_its_own_database() -> None:
    first, second = HandlerTest(tables, lend), HandlerTest(tables, lend)
    first.given(Lent("1")).handle()
    second.handle().expect_rows(LENT, [])


def test_the_database_may_be_prepared_before_handle() -> None:
    test = HandlerTest(lend)
    with test.connection() as connection:
        tables(connection)
        connection.execute(text("INSERT INTO lent VALUES ('0', 'eve')"))
    test.given(Lent("1")).handle().expect_rows(LENT, [("0", "eve"), ("1", "ada")])


def test_a_restart_runs_start_functions_again() -> None:
    starts: list[int] = []

    @on_start("catalog")
    def note() -> None:
        starts.append(1)

    test = HandlerTest(tables, lend, note)
    test.given(Lent("1")).handle().handle()
    test.restart().given(Lent("2")).handle()
    assert len(starts) == 2
    test.expect_rows(LENT, [("1", "ada"), ("2", "ada")])


def test_a_failed_start_function_is_run_again_by_the_next_call() -> None:
    @on_start("catalog")
    def fail() -> None:
        raise LookupError

    test = HandlerTest(fail, lend)
    for _ in range(2):
        with pytest.raises(LookupError):
            test.handle()


@pytest.mark.parametrize("kind", ["database", "engine", "url"])
def test_the_database_may_be_given(kind: str) -> None:
    engine = create_engine("sqlite://")
    given: dict[str, Any] = {"database": Database.of(engine), "engine": engine, "url": "sqlite://"}
    test = HandlerTest(tables, lend, database=given[kind])
    test.given(Lent("1")).handle().expect_rows(LENT, [("1", "ada")])
    test.close()
    if kind != "url":
        with engine.connect() as connection:
            assert connection.execute(text(LENT)).all() == [("1", "ada")]
    engine.dispose()


def test_all_members_of_a_module_are_used() -> None:
    seen: list[str] = []
    module = ModuleType("library")

    @upcaster("lent.v0")
    def renamed(data: dict) -> Upcast:
        return Upcast("lent", {"isbn": data["book"], "reader": "old"})

    @around_handler
    def noted() -> Iterator[None]:
        seen.append("around")
        yield

    @event_handling("audit")
    def audit(event: BookEvent) -> None:
        seen.append(repr(event))

    @dataclass(frozen=True)
    class Aged(BookEvent):
        reader: str

    for member in (renamed, noted, audit, event_type("lent")(Aged)):
        member.__module__ = "library"
        setattr(module, member.__name__, member)
    HandlerTest(module).given({"type": "lent.v0", "data": {"book": "1"}}).handle()
    assert seen == ["around", f"{Aged.__qualname__}(isbn='1', reader='old')"]


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        ([], {}, "no handlers were found"),
        ([tables], {}, "no handlers were found"),
        ([lend, count], {}, "handlers of several groups: choose one of catalog, loans with group=…"),
        ([lend], {"group": "loans"}, "no handler belongs to a group 'loans'; the groups are: catalog"),
        ([tables], {"group": "loans"}, "no handler belongs to a group 'loans'; the groups are: none"),
        ([lend], {"on_exhausted": "wait"}, "'wait' is not a valid OnExhausted"),
    ],
)
def test_arguments_that_cannot_be_tested_are_refused(given: list[Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        HandlerTest(*given, **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retry": 3}, "retry takes a back-off such as FixedBackOff(2, max_attempts=3), got 3"),
        ({"provide": {"Mailer": object()}}, "provide takes objects by the requested type, such as {Mailer: …}"),
        *(
            ({"database": given}, f"{DATABASE}, got {given!r}")
            for given in (Path("library.db"), create_engine("sqlite://").url, Session())
        ),
    ],
)
def test_options_of_another_type_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=re.escape(said)):
        HandlerTest(lend, **options)


@event_handling("my-group")
def lend_with_hyphen(event: Lent) -> None: ...


@event_handling("my_group")
def lend_with_underscore(event: Lent) -> None: ...


@event_handling("my-group")
class LendInTwoSpellings:
    @event_handling
    def as_the_class(self, event: Lent) -> None: ...

    @event_handling("myGroup")
    def in_camel_case(self, event: Lent) -> None: ...


@event_handling("my-group")
class LendAsTheMethod:
    @event_handling("my_group")
    def in_the_only_spelling(self, event: Lent) -> None: ...


@checkpointing("my-group")
class CheckpointedInAnotherSpelling(CheckpointParticipant):
    lent = 0

    @event_handling("my_group")
    def lend(self, event: Lent) -> None:
        self.lent += 1

    def on_checkpoint(self, partition: Any, requested: Any) -> int:
        return self.lent


@pytest.mark.parametrize("group", ["", "my-group", "my_group", "MyGroup"])
@pytest.mark.parametrize(
    "handlers",
    [
        [lend_with_hyphen, lend_with_underscore],
        [lend_with_underscore, lend_with_hyphen],
        [LendInTwoSpellings],
        [CheckpointedInAnotherSpelling, lend_with_hyphen],
    ],
)
def test_a_group_that_handlers_spell_in_two_ways_is_refused(handlers: list[Any], group: str) -> None:
    said = r"OCQ-116\] the groups my.?group and my.?group cannot be distinguished in settings\n.*: .* and .*"
    with pytest.raises(AssemblyError, match=f"(?i){said}"):
        HandlerTest(*handlers, group=group)


def test_another_group_may_be_tested_beside_one_that_is_spelled_in_two_ways() -> None:
    handlers = tables, lend, lend_with_hyphen, lend_with_underscore
    HandlerTest(*handlers, group="catalog").given(Lent("1")).handle().expect_rows(LENT, [("1", "ada")])


@pytest.mark.parametrize("cls", [LendAsTheMethod, CheckpointedInAnotherSpelling])
def test_a_class_may_spell_its_group_unlike_its_methods(cls: type) -> None:
    test = HandlerTest(cls).given(Lent("1")).handle()
    assert (test.group, test.attempts(1)) == ("my_group", 1)


def test_a_reset_to_a_position_before_the_log_is_refused() -> None:
    with pytest.raises(ValueError, match="reset takes the position after which the group continues, 0 for the start"):
        HandlerTest(tables, lend).reset(-1)


def test_only_modules_functions_and_classes_have_handlers() -> None:
    with pytest.raises(TypeError, match="takes modules, functions and classes, got 'library'"):
        HandlerTest("library")  # type: ignore[arg-type]


def test_the_group_may_be_chosen() -> None:
    test = HandlerTest(tables, lend, count, group="catalog").given(Lent("1")).handle()
    test.expect_rows(LENT, [("1", "ada")])
    assert test.group == "catalog"


@on_start("columns")
def table_of_columns(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS columns (isbn VARCHAR(20) PRIMARY KEY, loans BIGINT)"))


@event_handling("columns", events=Lent)
def in_columns(loans: pa.Table, connection: Connection) -> None:
    if "broken" in loans["isbn"].to_pylist():
        raise ValueError("broken")
    counted = loans.group_by("isbn").aggregate([([], "count_all")]).rename_columns(["isbn", "loans"])
    bulk.upsert(connection, "columns", counted, keys="isbn", add="loans")


@pytest.mark.parametrize("batch_size", [None, 1, 2])
def test_handlers_that_take_columns_are_tested_like_others(batch_size: int | None) -> None:
    test = HandlerTest(table_of_columns, in_columns, batch_size=batch_size)
    test.given(Lent("1"), Lent("2"), Purchased("3"), Lent("1")).handle()
    test.expect_rows("SELECT * FROM columns ORDER BY isbn", [("1", 2), ("2", 1)])
    test.expect_progress(4).expect_no_failure().expect_attempts(1, 1).expect_attempts(3, 0)


@pytest.mark.parametrize("batch_size", [None, 1, 2])
def test_an_event_that_makes_a_table_fail_is_retried_alone_and_skipped(batch_size: int | None) -> None:
    retry = FixedBackOff(2, max_attempts=1)
    test = HandlerTest(table_of_columns, in_columns, batch_size=batch_size, retry=retry)
    test.given(*(Lent(isbn) for isbn in ("1", "2", "broken", "3", "1"))).handle()
    test.expect_rows("SELECT * FROM columns ORDER BY isbn", [("1", 2), ("2", 1), ("3", 1)])
    test.expect_waits([2.0]).expect_attempts(3, 2).expect_progress(5)
    assert [event.position for event in test.skipped] == [3]


def test_a_row_of_a_wrong_shape_is_raised_with_its_event() -> None:
    test = HandlerTest(table_of_columns, in_columns)
    test.given(Lent("1"), {"type": "lent", "id": "wrong", "data": {"isbn": 5}}, Lent("1"))
    with pytest.raises(EventFormatError, match=r"OCQ-211.*\n.*event wrong at position 2"):
        test.handle()
    test.expect_rows("SELECT * FROM columns", [("1", 1)])


def test_async_handlers_and_handlers_of_lists_are_called_as_usual() -> None:
    seen: list[Any] = []

    @event_handling("g")
    async def later(event: Lent) -> None:
        await asyncio.sleep(0)
        seen.append(event.isbn)

    @event_handling("g")
    def many(events: list[Lent]) -> None:
        seen.append([event.isbn for event in events])

    test = HandlerTest(later, many, batch_size=2).given(Lent("1"), Lent("2"), Lent("3")).handle()
    assert seen == ["1", "2", ["1", "2"], "3", ["3"]]
    test.expect_attempts(Lent("2"), 1)


@pytest.mark.parametrize("file", [False, True], ids=["in memory", "in a file"])
def test_async_handlers_are_tested_in_async_tests(tmp_path: Path, *, file: bool) -> None:
    @on_start("g")
    async def table(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE lent (isbn TEXT)"))

    @event_handling("g")
    async def lend(event: Lent, connection: Connection, session: Session) -> None:
        await asyncio.sleep(0)
        for writer in (connection, session):
            writer.execute(text("INSERT INTO lent VALUES (:isbn)"), {"isbn": event.isbn})

    async def within() -> None:
        test = HandlerTest(table, lend, database=f"sqlite:///{tmp_path}/lent.db" if file else "")
        test.given(Lent("1")).handle().expect_rows("SELECT isbn FROM lent", [("1",), ("1",)])
        test.close()

    asyncio.run(within())


# ------------------------------------------------------------------------------------------------------------- provided


def test_provided_objects_are_passed_to_classes_and_functions() -> None:
    class Ringing:
        def __init__(self) -> None:
            self.rung = 0

        def ring(self) -> None:
            self.rung += 1

    mailer, bell = Mailer(), Ringing()
    HandlerTest(Reminders, ring, provide={Mailer: mailer, Bell: bell}).given(Lent("1"), Lent("2", "bob")).handle()
    assert (mailer.sent, bell.rung) == (["ada", "bob"], 2)


class Container(containers.DeclarativeContainer):
    mailer = providers.Singleton(Mailer)
    other = providers.Singleton(Mailer)


def test_provided_objects_replace_those_of_containers() -> None:
    with pytest.raises(AssemblyError, match="OCQ-503"):
        HandlerTest(Reminders, Container)
    mailer = Mailer()
    HandlerTest(Reminders, Container, provide={Mailer: mailer}).given(Lent("1")).handle()
    assert mailer.sent == ["ada"]


def test_a_missing_provider_is_an_error() -> None:
    with pytest.raises(AssemblyError, match="OCQ-504"):
        HandlerTest(Reminders)


# --------------------------------------------------------------------------------------------------------------- errors


def test_an_error_of_a_handler_is_raised_unchanged() -> None:
    test = HandlerTest(tables, lend).given(Lent("1"), Lent("2", "nobody"))
    with pytest.raises(ValueError, match=r"who is that\?") as raised:
        test.handle()
    assert raised.value.__notes__ == ["raised for event 2 at position 2 (lent, /)"]
    assert raised.traceback[-1].name == "lend"
    assert {str(entry.path).rpartition("/")[2] for entry in raised.traceback[-1:]} == {"test_handling.py"}
    test.expect_rows(LENT, [("1", "ada")]).expect_progress(1)
    with pytest.raises(ValueError, match="who is that"):
        test.handle()
    assert len(raised.value.__notes__) == 1


class PanicException(BaseException):
    """What a panic of a Rust extension becomes."""


class ClosedError(Exception):
    def __getattribute__(self, name: str) -> Any:
        if name in ("__notes__", "add_note"):
            raise LookupError(name)
        return super().__getattribute__(name)


ODD_ERRORS = [
    PanicException("out of bounds"),
    ClosedError("no notes"),
    GeneratorExit(),
    BaseExceptionGroup("a", [GeneratorExit()]),
]


@pytest.mark.parametrize("error", ODD_ERRORS, ids=lambda error: type(error).__name__)
def test_every_error_is_raised_or_with_a_retry_handled_as_in_production(error: BaseException) -> None:
    @event_handling("library")
    def handle(event: Lent) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        HandlerTest(handle).given(Lent("1", "ada")).handle()
    assert caught.value is error
    test = HandlerTest(handle, retry=FixedBackOff(1, max_attempts=2)).given(Lent("1", "ada")).handle()
    test.expect_attempts(Lent("1", "ada"), 3).expect_skipped(Lent("1", "ada"))


def test_data_that_do_not_fit_the_event_class_are_an_error() -> None:
    with pytest.raises(EventFormatError, match="OCQ-211"):
        HandlerTest(tables, lend).given({"type": "lent", "data": {}}).handle()


class Base(DeclarativeBase): ...


class Loan(Base):
    __tablename__ = "loan"
    isbn: Mapped[str] = mapped_column(primary_key=True)


def test_an_error_of_the_commit_is_raised() -> None:
    @on_start("loans")
    def create(connection: Connection) -> None:
        Base.metadata.create_all(connection)

    @event_handling("loans")
    def add(event: Lent, session: Session) -> None:
        session.add(Loan(isbn="the same"))

    test = HandlerTest(create, add, batch_size=1).given(Lent("1"), Lent("2"))
    with pytest.raises(IntegrityError):
        test.handle()
    test.expect_rows("SELECT isbn FROM loan", [("the same",)]).expect_progress(1)


@pytest.mark.parametrize("retry", [None, NoRetry()], ids=["raises", "retry"])
def test_an_error_after_the_commit_fails_the_test(retry: NoRetry | None) -> None:
    @event_handling("g")
    def late(event: Lent, after_commit: AfterCommit) -> None:
        after_commit(lambda: 1 / 0)

    test = HandlerTest(late, retry=retry).given(Lent("1"))
    with pytest.raises(AssertionError, match="a call after the commit raised ZeroDivisionError"):
        test.handle()
    test.handle().expect_progress(1).expect_log("a call after the commit raised ZeroDivisionError")


def test_an_event_is_tried_again_after_its_waits_and_skipped() -> None:
    bad = Lent("2", "nobody")
    test = HandlerTest(tables, lend, retry=ExponentialBackOff(max_attempts=2)).given(Lent("1"), bad, Lent("3"))
    test.handle().expect_attempts(bad, 3).expect_waits([2.0, 3.0]).expect_skipped(bad).expect_progress(3)
    test.expect_attempts(Lent("1"), 1).expect_attempts(3, 1)
    test.expect_log("failed on attempt 1 (ValueError: who is that?); retry in 2.0 s", "the event is skipped")
    test.expect_rows(LENT, [("1", "ada"), ("3", "ada")])
    assert test.clock.monotonic() == 5.0
    assert isinstance(test.error, ValueError)


def test_a_parked_event_blocks_its_subject_and_is_retried_when_due() -> None:
    ready = False

    @event_handling("catalog")
    def when_ready(event: Lent, connection: Connection, context: ProcessingContext) -> None:
        if event.isbn == "1" and not ready:
            raise TransientError
        lend(event, connection)

    test = HandlerTest(tables, when_ready, retry=NoRetry(), on_exhausted="park")
    test.given(Lent("1"), Lent("3"), subject="/a").given(Lent("2"), subject="/b").handle()
    test.expect_rows(LENT, [("2", "ada")]).expect_parked(Lent("1"), Lent("3")).expect_progress(3)
    test.expect_log("the event is parked, and its sequence waits for it").expect_attempts(Lent("1"), 1)
    ready = True
    test.clock.advance(29)
    test.handle().expect_parked(Lent("1"), Lent("3"))
    test.clock.advance(1)
    test.handle().expect_parked().expect_rows(LENT, [("2", "ada"), ("1", "ada"), ("3", "ada")])
    test.expect_attempts(Lent("1"), 2).expect_attempts(Lent("3"), 1)


def test_an_event_that_recovers_counts_all_its_attempts() -> None:
    @event_handling("g")
    def third_time_lucky(event: Lent, context: ProcessingContext) -> None:
        if context.attempt < 3:
            raise TransientError

    test = HandlerTest(third_time_lucky, retry=FixedBackOff(1)).given(Lent("1")).handle()
    test.expect_attempts(Lent("1"), 3).expect_waits([1, 1]).expect_skipped().expect_log("attempt 2", "recovered")


def test_an_event_with_exhausted_attempts_may_stop_the_partition() -> None:
    test = HandlerTest(tables, lend, retry=NoRetry(), on_exhausted="stop").given(Lent("2", "nobody"), Lent("3"))
    test.handle().expect_failed(ValueError).expect_progress(0).expect_attempts(Lent("3"), 0)
    test.handle().expect_attempts(1, 1)
    test.clock.advance(30)
    test.handle().expect_attempts(1, 2)


def test_an_event_in_a_list_that_stops_the_partition_counts_as_tried() -> None:
    @event_handling("catalog")
    def lend_all(events: list[Lent]) -> None:
        if any(event.reader == "nobody" for event in events):
            raise ValueError

    test = HandlerTest(lend_all, retry=NoRetry(), on_exhausted="stop").given(Lent("1", "nobody"), Lent("2"))
    test.handle().expect_failed(ValueError).expect_attempts(1, 1).expect_attempts(2, 1)


def test_a_non_transient_error_stops_the_partition() -> None:
    test = HandlerTest(refuse, retry=FixedBackOff(1)).given(Purchased("1")).handle()
    test.expect_failed(NonTransientError).expect_failed().expect_waits([])


def test_waits_can_be_stepped_through() -> None:
    test = HandlerTest(tables, lend, retry=FixedBackOff(60)).given(Lent("1", "nobody"))
    test.handle(seconds=0).expect_attempts(1, 1)
    test.handle(seconds=59).expect_attempts(1, 1)
    test.clock.advance(1)
    test.handle(seconds=0).expect_attempts(1, 2)
    test.handle().expect_attempts(1, 62)


@pytest.mark.parametrize(
    ("retry", "on_exhausted", "calls", "seconds"),
    [
        (FixedBackOff(0, max_attempts=1), "skip", 6, 6 * 4_000),  # events and attempts that wait for nothing are tried
        (FixedBackOff(2), "skip", 1, 4_000),
        (NoRetry(), "park", 1, 4_000),
    ],
)
def test_a_handler_that_moves_the_clock_past_the_limit_ends_only_the_waits(
    retry: FixedBackOff | NoRetry, on_exhausted: str, calls: int, seconds: float
) -> None:
    @event_handling("slow")
    def slow(event: Event) -> None:
        test.clock.advance(4_000)
        raise ValueError(event.id)

    test = HandlerTest(slow, retry=retry, on_exhausted=on_exhausted)
    test.given({"type": "a"}, {"type": "b"}, {"type": "c"}).handle()
    assert sum(test.attempts(position) for position in (1, 2, 3)) == calls
    assert test.clock.monotonic() == seconds


@pytest.mark.parametrize("batch_size", [None, 1])
def test_a_handler_may_move_the_clock_past_the_limit(batch_size: int | None) -> None:
    @event_handling("slow")
    def slow(event: Event) -> None:
        test.clock.advance(4_000)

    test = HandlerTest(slow, batch_size=batch_size)
    test.given({"type": "a"}, {"type": "b"}).handle().expect_progress(2)


def test_the_limit_of_the_waits_is_not_negative() -> None:
    with pytest.raises(ValueError, match="time does not go back, got -1"):
        HandlerTest(tables, lend).handle(-1)


def test_an_endless_retry_without_waits_fails_the_test() -> None:
    test = HandlerTest(tables, lend, retry=FixedBackOff(0)).given(Lent("1", "nobody"))
    with pytest.raises(AssertionError, match="was tried 1000 times: set max_attempts in retry"):
        test.handle()


def test_an_event_without_a_handler_has_no_attempts() -> None:
    test = HandlerTest(tables, lend).given({"type": "other"}, Lent("1")).handle()
    test.expect_attempts(1, 0).expect_attempts(2, 1).expect_progress(2)


# --------------------------------------------------------------------------------------------------------- expectations


FAILED = "\nlog:\n  [catalog 0/1] event 2 at position 2 (lent, /) failed on attempt 1 (ValueError: who is that?)"


@pytest.mark.parametrize(
    ("expect", "said"),
    [
        (
            lambda test: test.expect_rows(LENT, [("1", "eve"), ("3", "ada")]),
            f"rows of {LENT}: not as expected\n  - expected, + found\n"
            f"  - ('1', 'eve')\n  + ('1', 'ada')\n    ('3', 'ada'){FAILED}",
        ),
        (lambda test: test.expect_progress(4), f"progress: not as expected\n  expected: 4\n  found:    3{FAILED}"),
        (
            lambda test: test.expect_attempts(2, 3),
            "attempts of event 2 at position 2 (lent, /): not as expected\n  expected: 3\n  found:    1",
        ),
        (lambda test: test.expect_waits([2.0]), "waits: not as expected\n  - expected, + found\n  - 2.0"),
        (
            lambda test: test.expect_skipped(),
            "events skipped: not as expected\n  - expected, + found\n  + 'event 2 at position 2 (lent, /)'",
        ),
        (
            lambda test: test.expect_failed(ValueError),
            "end: not as expected\n  expected: 'ValueError'\n  found:    'running'",
        ),
        (lambda test: test.expect_no_failure(), f"there was a failure{FAILED}"),
        (lambda test: test.expect_log("nothing"), f"the log has no line with 'nothing'{FAILED}"),
        (
            lambda test: test.expect_log("skipped", "attempt 1"),
            f"the log has no line with 'attempt 1' after the others{FAILED}",
        ),
    ],
)
def test_a_failed_expectation_shows_expected_and_found(expect: Callable[[HandlerTest], object], said: str) -> None:
    test = HandlerTest(tables, lend, retry=NoRetry()).given(Lent("1"), Lent("2", "nobody"), Lent("3")).handle()
    with pytest.raises(AssertionError) as raised:
        expect(test)
    assert str(raised.value).startswith(said)


def test_a_different_error_than_expected_is_shown() -> None:
    test = HandlerTest(refuse, retry=NoRetry()).given(Purchased("1")).handle()
    with pytest.raises(AssertionError, match=r"expected: 'LookupError'\n  found:    'NonTransientError'"):
        test.expect_failed(LookupError)


@on_replay_finished("catalog")
def end_badly() -> None:
    raise KeyError("the end")


def test_a_failed_partition_has_its_last_error_and_not_an_earlier_one() -> None:
    test = HandlerTest(tables, lend, end_badly, retry=NoRetry()).given(Lent("1", "nobody")).handle()
    assert isinstance(test.error, ValueError)
    test.reset().handle().expect_failed(KeyError).expect_failed(LookupError)
    assert isinstance(test.error, KeyError)
    with pytest.raises(AssertionError, match=r"expected: 'ValueError'\n  found:    'KeyError'"):
        test.expect_failed(ValueError)
    test.handle().expect_failed(KeyError)


def test_an_error_at_the_end_of_a_replay_is_raised_and_not_an_earlier_one() -> None:
    fails = [True]

    @event_handling("catalog")
    def fail_at_first(event: Lent) -> None:
        if fails:
            raise ValueError(fails.pop())

    test = HandlerTest(fail_at_first, end_badly).given(Lent("1"))
    with pytest.raises(ValueError, match="True"):
        test.handle()
    test.handle().reset()
    with pytest.raises(KeyError, match="the end"):
        test.handle()


def test_the_error_of_the_first_of_several_failing_events_is_raised() -> None:
    @event_handling("catalog")
    def fail(event: Lent) -> None:
        raise NonTransientError(f"never {event.isbn}")

    test = HandlerTest(fail, on_exhausted="park").given(Lent("1"), subject="/a").given(Lent("2"), subject="/b")
    with pytest.raises(NonTransientError, match="never 1") as raised:
        test.handle()
    assert raised.value.__notes__ == ["raised for event 1 at position 1 (lent, /a)"]


def test_without_log_lines_a_failed_expectation_shows_no_log() -> None:
    with pytest.raises(AssertionError) as raised:
        HandlerTest(tables, lend).expect_progress(1)
    assert str(raised.value) == "progress: not as expected\n  expected: 1\n  found:    0"


# ------------------------------------------------------------------------------------------------------- given events


class RecordingGroup:
    """A group that keeps what it sees."""

    def __init__(self, **options: Any) -> None:
        self.seen: list[tuple[Any, Event, Metadata]] = []
        seen = self.seen

        @event_handling("g", types=["*"])
        def see(event: dict, raw: Event, metadata: Metadata) -> None:
            seen.append((event, raw, metadata))

        self.test = HandlerTest(see, **options)


def test_objects_become_events_of_their_type_with_the_given_attributes() -> None:
    recording = RecordingGroup()
    recording.test.given(Lent("1"), subject="/books/1", time="2026-02-03T04:05:06Z", metadata={"tenant": "a", "n": 1})
    recording.test.given(Lent("2")).handle()
    ((first, raw, metadata), (second, other, none)) = recording.seen
    assert (first, second) == ({"isbn": "1", "reader": "ada"}, {"isbn": "2", "reader": "ada"})
    assert (raw.id, raw.position, raw.type, raw.subject, raw.time) == (
        "1",
        1,
        "lent",
        "/books/1",
        "2026-02-03T04:05:06Z",
    )
    assert (metadata, none) == ({"tenant": "a", "n": 1}, {})
    assert (other.id, other.subject, other.timestamp) == ("2", "/", recording.test.clock.now())


def test_mappings_are_cloud_events_that_need_only_a_type() -> None:
    recording = RecordingGroup()
    recording.test.given(
        {"type": "t", "data": {"a": 1}}, {"type": "t", "id": "x", "source": "s", "subject": "/y", "k": 1}
    )
    with pytest.raises(EventFormatError, match="OCQ-210"):
        recording.test.handle()
    assert recording.seen[0][0] == {"a": 1}
    raw = recording.test._given.at(2)
    assert (raw.id, raw.source, raw.subject, raw.metadata) == ("x", "s", "/y", {"k": 1})


def test_given_events_are_used_unchanged() -> None:
    recording = RecordingGroup()
    given = Event(77, "e", "s", "/x", "t", None, "application/json", "{}", None)
    recording.test.given(given).handle().expect_attempts(given, 1)
    assert recording.seen[0][1] == given._replace(position=1)


@pytest.mark.parametrize(
    "expect",
    [
        lambda test: test.expect_no_failure(),
        lambda test: test.expect_skipped(),
        lambda test: test.expect_parked(),
        lambda test: test.expect_waits([]),
        lambda test: test.expect_progress(1),
        lambda test: test.expect_rows("SELECT 1", [(1,)]),
        lambda test: test.expect_log(),
        lambda test: test.expect_failed(),
        lambda test: test.expect_attempts(1, 0),
        lambda test: test.skipped,
        lambda test: test.parked,
        lambda test: test.waits,
        lambda test: test.progress,
        lambda test: test.log,
        lambda test: test.attempts(1),
        lambda test: test.rows("SELECT 1"),
        lambda test: test.error,
        lambda test: test.state,
    ],
)
def test_expectations_fail_if_handle_was_forgotten(expect: Callable[[HandlerTest], object]) -> None:
    test = RecordingGroup().test.given(Lent("1"), Lent("2"))
    with pytest.raises(AssertionError, match=r"^2 events given but not handled yet: call handle\(\) first"):
        expect(test)
    test.handle().given(Lent("3"))
    with pytest.raises(AssertionError, match=r"^1 event given but not handled yet: call handle\(\) first"):
        expect(test)


def test_a_test_may_be_prepared_and_inspected_before_handle() -> None:
    test = HandlerTest(lend)
    assert test.rows("SELECT 1") == [(1,)]
    assert (test.skipped, test.progress, test.log) == ([], 0, [])
    with test.given(Lent("1")).connection() as connection:
        tables(connection)
    test.handle().expect_rows(LENT, [("1", "ada")])


def test_data_are_wrapped_in_the_envelope_if_enabled() -> None:
    recording = RecordingGroup(enveloped=True)
    recording.test.given(Lent("1"), metadata={"tenant": "a"}).handle()
    ((data, raw, metadata),) = recording.seen
    assert (data, metadata) == ({"isbn": "1", "reader": "ada"}, {"tenant": "a"})
    assert raw.data == {"metadata": {"tenant": "a"}, "payload": {"isbn": "1", "reader": "ada"}}


def test_objects_of_every_kind_of_event_class_may_be_given() -> None:
    @event_type("pydantic")
    class Model(BaseModel):
        model_config = ConfigDict(populate_by_name=True)
        isbn: str = Field(alias="ISBN")
        day: date

    @event_type("attrs")
    @attrs.define
    class Attrs:
        isbn: str
        day: date

    recording = RecordingGroup()
    day = date(2026, 1, 2)
    recording.test.given(Model(isbn="1", day=day), Attrs("2", day)).handle()
    assert [data for data, _, _ in recording.seen] == [
        {"ISBN": "1", "day": "2026-01-02"},
        {"isbn": "2", "day": "2026-01-02"},
    ]


def test_classes_may_be_named_by_a_map_of_types() -> None:
    @dataclass
    class Returned:
        isbn: str

    recording = RecordingGroup(event_types={"returned": Returned})
    recording.test.given(Returned("1")).handle()
    assert recording.seen[0][1].type == "returned"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("lent", "a str is not an event"),
        ({"data": {}}, "a dict without 'type' is not an event"),
        (BookEvent("1"), "a BookEvent is not an event: write @event_type"),
        ({"type": "t", "data": object()}, "a object cannot become JSON"),
        (
            {"type": "t", "Subject": "/books/1"},
            "the attributes of an event are lower-case: not 'Subject', write 'subject'",
        ),
    ],
)
def test_an_object_that_is_not_an_event_is_refused(given: Any, said: str) -> None:
    with pytest.raises(TypeError, match=re.escape(said)):
        RecordingGroup().test.given(given)


def test_an_event_that_the_log_would_not_accept_is_refused() -> None:
    with pytest.raises(ValueError, match="an event with source 's' and id '1' was given before"):
        RecordingGroup().test.given(*[{"type": "t", "id": "1", "source": "s"}] * 2)


def test_equal_events_are_distinguished_by_identity_or_position() -> None:
    first, second = Lent("1"), Lent("1")
    test = HandlerTest(tables, lend).given(first, second)
    assert test._given.find(second).position == 2
    with pytest.raises(LookupError, match="several such events were given: name one by its position"):
        test.attempts(Lent("1"))
    with pytest.raises(LookupError, match="no such event was given"):
        test.attempts(3)


# -------------------------------------------------------------------------------------------------------------- resets


@event_handling("catalog", replay=False)
class Letters:
    def __init__(self, mailer: Mailer) -> None:
        self.mailer = mailer

    @event_handling
    def write(self, event: Lent) -> None:
        self.mailer.send(event.isbn)


@event_handling("catalog", replay=False)
class NamedLetters:
    def __init__(self, mailer: Mailer) -> None:
        self.mailer = mailer

    @event_handling("catalog")
    def write(self, event: Lent) -> None:
        self.mailer.send(event.isbn)


@on_reset("catalog")
def empty(reset: Reset, connection: Connection) -> None:
    connection.execute(text("DELETE FROM lent"))
    if reset.context == "fail":
        raise ValueError("no")


@on_replay_finished("catalog")
def close_book(reset: Reset, connection: Connection) -> None:
    row = {"isbn": "end", "reader": f"{reset.reason} {reset.context}"}
    connection.execute(text("INSERT INTO lent VALUES (:isbn, :reader)"), row)


@catalog
@pytest.mark.parametrize("letters", [Letters, NamedLetters])
def test_after_a_reset_events_are_handled_again_except_by_handlers_without_replay(
    letters: type, batch_size: int | None
) -> None:
    mailer = Mailer()
    given = (tables, lend, letters, empty, close_book)
    test = HandlerTest(*given, provide={Mailer: mailer}, batch_size=batch_size)
    test.given(Lent("1"), Lent("2")).handle().reset(reason="a column", context=7).given(Lent("3")).handle()
    rows = [("1", "ada"), ("2", "ada"), ("end", "a column 7"), ("3", "ada")]
    test.expect_rows(LENT, rows)
    assert mailer.sent == ["1", "2", "3"]


def test_a_reset_that_raises_changes_nothing() -> None:
    test = HandlerTest(tables, lend, empty).given(Lent("1")).handle()
    with pytest.raises(ValueError, match="no"):
        test.reset(context="fail")
    test.handle().expect_rows(LENT, [("1", "ada")]).expect_progress(1)


@pytest.mark.parametrize(
    "kind",
    [
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.postgresql),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ],
)
@pytest.mark.parametrize(
    ("query", "shown", "missing"),
    [
        ("SELECT *\n FROM boks WHERE isbn = 'x%'", "SELECT * FROM boks WHERE isbn = 'x%'", "boks"),
        (select(column("isbn")).select_from(table("boks")), "SELECT isbn FROM boks", "boks"),
        ("SELECT isbm FROM lent", "SELECT isbm FROM lent", "isbm"),
    ],
)
def test_a_query_of_the_test_whose_table_or_column_is_missing_is_named(
    fresh_url: Callable[[str], str], kind: str, query: Any, shown: str, missing: str
) -> None:
    test = HandlerTest(tables, lend, database=fresh_url(kind)).handle()
    with pytest.raises(EventStoreError, match="OCQ-304") as caught:
        test.expect_rows(query, [])
    assert re.fullmatch(f"the query {re.escape(shown)} cannot be run \\(.*{missing}.*\\)", caught.value.what)
    assert caught.value.fix.startswith("correct its name in the query, or create it in an @on_start function")
    test.expect_rows(LENT, []).close()


def test_other_errors_of_a_query_of_the_test_are_those_of_its_driver() -> None:
    with pytest.raises(OperationalError, match="SELEC isbn"):
        HandlerTest(tables, lend).handle().rows("SELEC isbn FROM lent")


# --------------------------------------------------------------------------------------------------------- cleaning up


@pytest.mark.mariadb
def test_start_functions_may_create_tables_even_if_ddl_commits(fresh_url: Callable[[str], str]) -> None:
    @on_start("shelves")
    def create(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE IF NOT EXISTS shelf (id VARCHAR(9) PRIMARY KEY)"))

    @event_handling("shelves", types=["t"])
    def add(event: Event, connection: Connection) -> None:
        connection.execute(text("INSERT INTO shelf VALUES (:id)"), {"id": event.id})

    test = HandlerTest(create, add, database=fresh_url("mariadb"))
    test.given({"type": "t"}).handle().restart().handle().expect_rows("SELECT id FROM shelf", [("1",)])
    test.close()


class Pipe:
    open = True


def opened() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.open = False


class Pipes(containers.DeclarativeContainer):
    pipe = providers.Resource(opened)
    other = providers.Resource(pytest.fail, "it is not needed")


def test_opened_resources_are_closed_with_the_test_even_those_from_before_a_crash() -> None:
    seen = []

    @event_handling("pipes", types=["t"])
    def see(data: dict, pipe: Pipe) -> None:
        seen.append((pipe, pipe.open))

    event = {"type": "t", "data": {}}
    test = HandlerTest(see, Pipes).given(event).handle().restart().given(event).handle()
    test.crash().given(event).handle().close()
    assert [was_open for _, was_open in seen] == [True, True, True]
    assert [pipe.open for pipe, _ in seen] == [False, False, False]
    assert len({id(pipe) for pipe, _ in seen}) == 2


def _noted(close: Callable[[], None], closed: list[bool]) -> None:
    close()
    closed.append(True)


def test_the_database_is_closed_when_the_test_is_dropped() -> None:
    test = HandlerTest(tables, lend).given(Lent("1")).handle()
    database, dropped = test.database, weakref.ref(test)
    closed: list[bool] = []
    database.close = partial(_noted, database.close, closed)  # type: ignore[method-assign]
    del test
    gc.collect()
    assert (dropped(), closed) == (None, [True])


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'opencqrs_py.testing' has no attribute 'nothing'"):
        opencqrs_py.testing.nothing  # noqa: B018


def test_a_test_can_be_closed_twice() -> None:
    test = HandlerTest(tables, lend).given(Lent("1")).handle()
    test.close()
    test.close()


@pytest.mark.parametrize("in_lists", [False, True])
def test_a_handler_that_ends_the_transaction_once_fails_its_chunk(*, in_lists: bool) -> None:
    """Events handled alone do not end it, as the table exists by then; but the first row exists twice."""
    known: set[str] = set()

    def create(connection: sqlite3.Connection, name: str) -> None:
        if name not in known:
            known.add(name)
            connection.executescript(f"CREATE TABLE IF NOT EXISTS of_{name} (id TEXT)")  # which commits

    @event_handling("monthly", types=["*"])
    def one(raw: Event, connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO seen VALUES (?)", (raw.id,))
        create(connection, "may")

    @event_handling("monthly", types=["*"])
    def many(raws: list[Event], connection: sqlite3.Connection) -> None:
        connection.executemany("INSERT INTO seen VALUES (?)", [(raw.id,) for raw in raws])
        create(connection, "may")

    def start(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE IF NOT EXISTS seen (id TEXT)")

    handlers = (many if in_lists else one, on_start("monthly")(start))
    test = HandlerTest(*handlers)
    test.given(*(Event(n, str(n), "s", "/a", "t", None, None, "{}", None) for n in range(1, 4)))
    with pytest.raises(TransactionEndedError):
        test.handle()
    test.expect_failed(TransactionEndedError).expect_log("may exist twice")
    assert len(test.rows("SELECT id FROM seen")) > 3
    test.close()
