"""Exceptions: how they are shown, and which are interrupts."""

from __future__ import annotations

import ast
import asyncio
import gc
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from dependency_injector import providers
from py4j.protocol import get_return_value
from pydantic import TypeAdapter
from pyspark.sql.types import StructType
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from opencqrs_py.assembly.code.normalised_source import parsed
from opencqrs_py.errors import (
    AssemblyError,
    EventFormatError,
    EventStoreError,
    ExplainedError,
    TransactionEndedError,
    TransientError,
)
from opencqrs_py.model import Cursor, Failure, Origin, Partition
from opencqrs_py.processing import exceptions
from opencqrs_py.processing.definitions import place_of
from opencqrs_py.processing.dispatch import ChunkFailedError
from opencqrs_py.processing.exceptions import (
    advice_of,
    error_text,
    failure_of,
    interrupts_are_errors,
    label_text,
    one_line,
    own_frames,
    placed_error_text,
    plain_text,
    raise_interrupt,
    stack_of_thread,
)

NOTHING: Any = None


class SilentError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class PanickingTextError(Exception):
    def __str__(self) -> str:
        raise PanicException("in the text")


class EndlessTextError(Exception):
    def __str__(self) -> str:
        return str(self)


class TextOfNothingError(Exception):
    def __str__(self) -> str:
        return NOTHING  # type: ignore[no-any-return]


class OddText(str):
    __slots__ = ()

    def encode(self, *_: Any, **__: Any) -> bytes:
        raise ValueError("not me")

    def splitlines(self, *_: Any) -> list[str]:
        raise ValueError("not me")


class OddTextError(Exception):
    def __str__(self) -> str:
        return OddText("odd")


class PanicException(BaseException):
    """What a panic of a Rust extension becomes."""


class NamelessMeta(type):
    @property
    def __name__(cls) -> str:
        raise ValueError("no name")

    @property
    def __module__(cls) -> str:  # type: ignore[override]
        raise ValueError("no module")


class NamelessError(Exception, metaclass=NamelessMeta):
    pass


class ClosedError(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise ValueError(name)


class HalfMadeError(AssemblyError):
    def __init__(self) -> None: ...


class UnpicklableError(Exception):
    def __init__(self, *, lock: Any) -> None:
        super().__init__("cannot travel")
        self.lock = lock


def strange_name() -> BaseException:
    return type("a\x1b\n b" + "n" * 1_000, (Exception,), {})("x")


def circle() -> BaseException:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def long_chain() -> BaseException:
    error = ValueError("0")
    for number in range(1, 2_000):
        error, before = ValueError(str(number)), error
        error.__context__ = before
    return error


def deep_recursion() -> BaseException:
    def descend() -> None:
        descend()

    try:
        descend()
    except RecursionError as error:
        return error
    pytest.fail("there is no end")


def deep_groups() -> BaseException:
    error: BaseException = PanicException("inner")
    for _ in range(500):
        error = BaseExceptionGroup("outer", [error])
    return error


def odd_notes() -> BaseException:
    error = ValueError("x")
    error.__notes__ = 7  # type: ignore[assignment]
    return error


ERRORS: dict[str, Callable[[], BaseException]] = {
    "no text": SilentError,
    "a text that panics": PanickingTextError,
    "a text without end": EndlessTextError,
    "a text that is none": TextOfNothingError,
    "a text with methods of its own": OddTextError,
    "a panic": lambda: PanicException("index out of bounds"),
    "a group": lambda: BaseExceptionGroup("two", [PanicException("a"), SilentError()]),
    "groups in groups": deep_groups,
    "a generator's end": GeneratorExit,
    "a cancelled task": asyncio.CancelledError,
    "the end of the process": lambda: SystemExit(3),
    "a lone surrogate": lambda: ValueError("a\ud800b"),
    "a NUL": lambda: ValueError("a\x00b"),
    "megabytes": lambda: ValueError("long " * 1_000_000),
    "a circle of causes": circle,
    "a long chain": long_chain,
    "deep recursion": deep_recursion,
    "no name": lambda: NamelessError("x"),
    "a strange name": strange_name,
    "closed to all who look": lambda: ClosedError("x"),
    "explained, but half made": HalfMadeError,
    "odd notes": odd_notes,
    "one that does not pickle": lambda: UnpicklableError(lock=threading.Lock()),
}


def raised(error: BaseException) -> BaseException:
    with suppress(BaseException):
        raise error
    return error


@pytest.mark.parametrize("make", ERRORS.values(), ids=ERRORS.keys())
def test_every_exception_can_be_shown_and_serialized_as_plain_text(make: Callable[[], BaseException]) -> None:
    error = raised(make())
    name, message = error_text(error)
    failure = Failure(Origin.HANDLER, permanent=False, error=name, message=message, traceback=own_frames(error))
    assert failure.error
    assert len(failure.error) < 300
    assert len(failure.message) < 5_000
    assert len(failure.traceback) < 25_000
    for text in (name, message, failure.traceback, one_line(error), str(failure)):
        assert type(text) is str
        assert "\x00" not in text
        text.encode()  # no lone surrogate
    travels = TypeAdapter(Failure)
    assert travels.validate_json(travels.dump_json(failure)) == failure
    assert pickle.loads(pickle.dumps(failure)) == failure


@pytest.mark.parametrize(
    ("error", "name", "message"),
    [
        (ValueError("mine"), "ValueError", "mine"),
        (KeyError("isbn"), "KeyError", "'isbn'"),
        (ValueError(), "ValueError", ""),
        (
            AssemblyError("OCQ-503", "2 providers make Mailer", "here", "do this"),
            "AssemblyError",
            "2 providers make Mailer",
        ),
        (SilentError(), "SilentError", "its text cannot be shown: str() raised ValueError"),
        (TextOfNothingError(), "TextOfNothingError", "its text cannot be shown: str() raised TypeError"),
        (NamelessError("x"), "NamelessError", "x"),
        (ValueError("a\ud800b\x00c\x1b[31md\te\nf\r\ng"), "ValueError", "a\\ud800b\\x00c\\x1b[31md\te\nf\ng"),
    ],
)
def test_the_text_of_an_exception(error: BaseException, name: str, message: str) -> None:
    assert error_text(error) == (name, message)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ValueError("first\nsecond"), "ValueError: first"),
        (ValueError("\n\n  third"), "ValueError: third"),
        (ValueError(), "ValueError"),
    ],
)
def test_one_line_of_an_exception(error: BaseException, shown: str) -> None:
    assert one_line(error) == shown


def test_the_advice_of_an_explained_error_names_place_and_fix() -> None:
    assert advice_of(ValueError("x")) == ""
    error = EventStoreError("OCQ-342", "gone", "/log/a.db\x1b[0m", "put it back")
    assert advice_of(error) == "  where: /log/a.db\\x1b[0m\n  fix:   put it back"
    assert advice_of(EventStoreError("OCQ-342", "gone")) == ""
    assert advice_of(EventStoreError.__new__(EventStoreError)) == ""


class _OwnCodeError(TransientError):
    code = 404


class _NoCodeError(ExplainedError):
    @property
    def code(self) -> str:
        raise RuntimeError

    @code.setter
    def code(self, value: str) -> None: ...


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (EventFormatError("OCQ-211", "no"), "[OCQ-211] EventFormatError: no"),
        (TransactionEndedError("ended"), "[OCQ-228] TransactionEndedError: ended"),
        (EventStoreError("OCQ-342\x1b[0m", "gone"), "EventStoreError: gone"),
        (
            EventStoreError.__new__(EventStoreError),
            "EventStoreError: its text cannot be shown: str() raised AttributeError",
        ),
        (_OwnCodeError("x"), "_OwnCodeError: x"),
        (_NoCodeError("OCQ-211", "x"), "_NoCodeError: x"),
        (SystemExit("OCQ-211"), "SystemExit: OCQ-211"),
    ],
)
def test_only_codes_of_this_package_are_shown(error: BaseException, shown: str) -> None:
    assert str(failure_of(error, Origin.HANDLER)) == shown


def test_the_middle_of_a_long_text_is_omitted() -> None:
    shown = plain_text("a" * 500 + "b" * 500, 300)
    assert shown == "a" * 200 + " … (1,000 characters in all) … " + "b" * 100


def test_the_label_of_an_unreadable_event_names_the_error() -> None:
    def label() -> str:
        raise ConnectionError("away")

    assert label_text(label) == "an event whose label raised ConnectionError"
    assert label_text(lambda: "event 4711\x00") == "event 4711\\x00"


def test_only_the_last_parts_of_a_deep_recursion_and_a_long_chain_are_shown() -> None:
    assert "descend" in own_frames(deep_recursion())
    shown = own_frames(raised(long_chain()))
    assert "ValueError: 1999" in shown
    assert "ValueError: 1000\n" not in shown


def test_the_members_of_a_group_are_shown_with_their_frames() -> None:
    members = [raised(ValueError("first")), raised(KeyError("second"))]
    shown = own_frames(raised(ExceptionGroup("both", members)))
    assert "exception 1 of 2:" in shown
    assert "    ValueError: first" in shown
    assert "    KeyError: 'second'" in shown


def test_notes_are_shown() -> None:
    error = EventFormatError("OCQ-210", "no data")
    error.add_note("while looking at the annex")
    assert own_frames(raised(error)).endswith("no data\nwhile looking at the annex")


INTERRUPTS = [
    KeyboardInterrupt(),
    BaseExceptionGroup("several", [ValueError(), KeyboardInterrupt()]),
    BaseExceptionGroup("outer", [BaseExceptionGroup("inner", [KeyboardInterrupt()])]),
]


@pytest.mark.parametrize("error", INTERRUPTS, ids=["alone", "in a group", "in a group of a group"])
def test_an_interrupt_is_only_raised_on_the_main_thread(error: BaseException) -> None:
    with pytest.raises(KeyboardInterrupt):
        raise_interrupt(error)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(raise_interrupt, error).result()  # signals go to the main thread: code has raised this one


def test_an_interrupt_is_an_ordinary_error_where_none_can_come_from_outside() -> None:
    with interrupts_are_errors():
        raise_interrupt(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        raise_interrupt(KeyboardInterrupt())


@pytest.mark.parametrize("make", ERRORS.values(), ids=ERRORS.keys())
def test_no_other_error_counts_as_an_interrupt(make: Callable[[], BaseException]) -> None:
    raise_interrupt(make())


class _NoPlaceError(ExplainedError):
    @property
    def where(self) -> str:
        raise RuntimeError

    @where.setter
    def where(self, value: str) -> None: ...


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ExplainedError("OCQ-212", "not JSON", "a.ndjson:3", "fix"), "not JSON, in a.ndjson:3"),
        (ExplainedError("OCQ-212", "not JSON"), "not JSON"),
        (_NoPlaceError("OCQ-212", "not JSON", "a.ndjson:3"), "not JSON"),
        (ValueError("wrong"), "wrong"),
    ],
)
def test_an_error_without_an_event_names_its_place(error: Exception, message: str) -> None:
    assert placed_error_text(error).message == message


def failure_in_a_handler() -> Exception:
    def look_up() -> None:
        raise KeyError("isbn")

    try:
        look_up()
    except KeyError as error:
        return error


def failure_in_the_package_called_from_here() -> Exception:
    try:
        Cursor(Partition(1, 0), 1, 5, 5).check_forward(4)
    except ValueError as error:
        return error
    pytest.fail("it went back")


def test_frames_of_user_code_are_kept() -> None:
    shown = own_frames(failure_in_a_handler())
    assert shown.startswith("Traceback (most recent call last):")
    assert "in look_up" in shown
    assert shown.endswith("KeyError: 'isbn'")


def test_frames_of_the_package_are_omitted() -> None:
    shown = own_frames(failure_in_the_package_called_from_here())
    assert __file__ in shown
    assert "progress.py" not in shown


def test_an_error_of_the_package_itself_has_no_frames_left() -> None:
    error = failure_in_the_package_called_from_here()
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next
    assert own_frames(error) == ""


class Mailer:
    def __init__(self, url: str) -> None:
        raise OSError(f"{url} is closed")


def test_frames_of_a_container_are_omitted() -> None:
    with pytest.raises(OSError, match="closed") as caught:
        providers.Singleton(Mailer, providers.Callable(str, "smtp://here"))()
    shown = own_frames(caught.value)
    assert "in __init__" in shown
    assert "dependency_injector" not in shown
    with pytest.raises(TypeError) as caught_before:
        providers.Singleton(Mailer)()  # no user code has run
    assert "dependency_injector" not in own_frames(caught_before.value)


def test_an_error_that_was_never_raised_has_no_frames() -> None:
    assert own_frames(ValueError("made, not raised")) == ""


def explained(cause: Exception) -> EventStoreError:
    """Return an error of a store, as if all its frames were the package's."""
    error = EventStoreError("OCQ-332", "the token is wrong")
    error.__cause__ = cause
    return error


def test_causes_of_an_event_store_error_are_not_shown() -> None:
    assert own_frames(explained(failure_in_a_handler())) == ""


def test_an_event_store_error_in_a_handler_is_shown_with_the_handler() -> None:
    try:
        raise explained(failure_in_a_handler())
    except EventStoreError as error:
        shown = own_frames(error)
    assert shown.count("Traceback (most recent call last):") == 2
    assert "test_an_event_store_error_in_a_handler" in shown


def test_causes_are_shown_with_their_frames() -> None:
    try:
        try:
            raise failure_in_a_handler()
        except KeyError as error:
            raise RuntimeError("no such book") from error
    except RuntimeError as error:
        shown = own_frames(error)
    assert shown.index("KeyError: 'isbn'") < shown.index("RuntimeError: no such book")
    assert "in look_up" in shown


def failing_statement() -> Exception:
    engine = create_engine("sqlite://")
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql("INSERT INTO nowhere VALUES (1)")
    except OperationalError as error:
        return error
    finally:
        engine.dispose()
    pytest.fail("there is such a table")


def test_a_failing_statement_is_shown_with_lines_of_user_code_and_its_text_once() -> None:
    shown = own_frames(failing_statement())
    frames = [line for line in shown.splitlines() if line.startswith("  File ")]
    assert len(frames) == 1
    assert __file__ in frames[0]
    assert shown.count("no such table: nowhere") == 1
    assert "INSERT INTO nowhere VALUES (1)" in shown


def wrong_data_frame() -> None:
    StructType().add("isbn")  # without a type


def unknown_answer_of_the_jvm() -> None:
    get_return_value("!xs", None, "o1", "count")


@pytest.mark.parametrize(
    ("call", "library"), [(wrong_data_frame, "pyspark"), (unknown_answer_of_the_jvm, "py4j")], ids=["PySpark", "Py4J"]
)
def test_a_failure_in_spark_is_shown_with_lines_of_user_code_only(call: Callable[[], None], library: str) -> None:
    with pytest.raises((ValueError, KeyError)) as caught:
        call()
    assert f"/{library}/" in str(caught.traceback[-1].path)
    shown = own_frames(caught.value)
    frames = [line for line in shown.splitlines() if line.startswith("  File ")]
    assert len(frames) == 2
    assert all(__file__ in frame for frame in frames)


def test_a_cause_set_by_user_code_is_shown_for_a_failing_statement_too() -> None:
    error = failing_statement()
    error.__cause__ = ValueError("of the author")
    assert own_frames(error).startswith("ValueError: of the author\n")


def test_the_earlier_failure_of_the_whole_chunk_is_omitted() -> None:
    error = failure_in_a_handler()
    error.__context__ = ChunkFailedError(None, ValueError("earlier"))
    error.__context__.__cause__ = ValueError("earlier")
    shown = own_frames(error)
    assert shown.endswith("KeyError: 'isbn'")
    assert "earlier" not in shown


def test_a_folder_whose_name_starts_like_the_packages_is_user_code(monkeypatch: pytest.MonkeyPatch) -> None:
    package = exceptions._PACKAGE
    code = compile("raise ValueError('mine')", f"{package.rstrip('/')}_of_mine/handlers.py", "exec")
    try:
        exec(code, {})
    except ValueError as error:
        shown = own_frames(error)
    assert "_of_mine" in shown


class Parsing:
    """Garbage whose finalizer parses, like a hook or a log that shows its error, and creates new such garbage."""

    def __init__(self, done: list[int], most: int) -> None:
        self.itself, self.done, self.most = self, done, most

    def __del__(self) -> None:
        self.done.append(len(ast.parse("a + (b * c)").body))
        if len(self.done) < self.most:
            Parsing(self.done, self.most)


def of_a_long_line() -> BaseException:
    try:
        return [1, 2, 3][(7 + 1) * len("seven" + "eight")] + (1, 2)[0 * 1]  # type: ignore[return-value]
    except IndexError as error:
        return error


SOURCE = "\n".join(f"x{number} = (a + b) * c(d, e=[1, {{2: 3}}])" for number in range(50))
PARSES: dict[str, Callable[[], Any]] = {
    "the source of a file": lambda: ast.dump(parsed(SOURCE)),
    "the place of a class": lambda: place_of(Parsing),
    "the lines of an error": partial(own_frames, of_a_long_line()),
    "the stack of a thread": lambda: len(stack_of_thread(threading.get_ident())),
}


@pytest.mark.parametrize("collects", [True, False])
@pytest.mark.parametrize("parses", PARSES.values(), ids=PARSES.keys())
def test_no_finalizer_disturbs_the_parser(parses: Callable[[], Any], *, collects: bool) -> None:
    """On Python 3.11 parsing would fail: a start, showing an error, or the comparison of handlers."""
    expected, known, was_enabled = parses(), gc.get_threshold(), gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        gc.set_threshold(5)
        for _ in range(20):
            Parsing(done := list[int](), 1_000)
            assert parses() == expected
            done.extend([0] * 1_000)  # the last one
        assert gc.isenabled() is collects
    finally:
        gc.set_threshold(*known)
        (gc.enable if was_enabled else gc.disable)()
