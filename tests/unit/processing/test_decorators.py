"""Decorators leave a mark on what they decorate, and refuse invalid arguments."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from typing import Any

import pytest

from opencqrs_py import (
    around_event,
    around_handler,
    dataframe_handler,
    event_handling,
    event_type,
    job,
    on_start,
    upcaster,
)
from opencqrs_py.errors import HandlerSignatureError
from opencqrs_py.model import AroundMark, HandlerMark, Surrounded
from opencqrs_py.model.declarations import Declaration


def handler() -> None:
    pass


def fresh() -> Callable[[], None]:
    def function() -> None:
        pass

    return function


def marks(function: Callable[..., Any]) -> tuple[HandlerMark, ...]:
    found: tuple[HandlerMark, ...] = getattr(function, Declaration.HANDLER.attribute)
    return found


@pytest.mark.parametrize(
    ("decorator", "mark"),
    [
        (event_handling("catalog"), HandlerMark("catalog")),
        (event_handling(" catalog "), HandlerMark("catalog")),
        (event_handling(), HandlerMark("")),
        (event_handling("audit", types=["library.*", "a.b"]), HandlerMark("audit", ("library.*", "a.b"))),
        (event_handling("audit", types=("library.*",), order=-3), HandlerMark("audit", ("library.*",), -3)),
        (event_handling("loans", events=dict), HandlerMark("loans", events=dict)),
        (event_handling, HandlerMark("")),
    ],
)
def test_a_decorator_leaves_its_mark_on_the_handler(decorator: Callable[..., Any], mark: HandlerMark) -> None:
    function = fresh()
    assert decorator(function) is function
    assert marks(function) == (mark,)


def test_a_handler_may_belong_to_several_groups() -> None:
    function = event_handling("one")(event_handling("two", order=1)(fresh()))
    assert marks(function) == (HandlerMark("two", (), 1), HandlerMark("one"))


def test_a_reused_decorator_applies_its_group_each_time() -> None:
    statistics = event_handling("statistics")
    one, other = statistics(fresh()), statistics(fresh())
    assert marks(one) == marks(other) == (HandlerMark("statistics"),)


def test_the_marks_of_a_class_are_not_inherited() -> None:
    @event_handling("catalog")
    class Reminders:
        pass

    class Others(Reminders):
        pass

    event_handling("other")(Others)
    assert marks(Reminders) == (HandlerMark("catalog"),)
    assert marks(Others) == (HandlerMark("other"),)


PATTERN_FIX = """write each type in full; patterns are for handlers: @event_handling("catalog", types=["library.*"])"""
UPCASTER_FIX = 'write @upcaster("library.book-lent.v1") above the function'
FIX = """write @event_handling("catalog"), with types=["library.*"] if needed"""


@pytest.mark.parametrize(
    ("call", "what", "fix"),
    [
        (lambda: event_handling(7), "a processing group's name is a text, got 7", FIX),  # type: ignore[call-overload]
        (lambda: event_handling(None), "a processing group's name is a text, got None", FIX),  # type: ignore[call-overload]
        (lambda: event_handling("a", types="library.*"), "types is a list of patterns, got 'library.*'", FIX),
        (
            lambda: event_handling("a", events="BookLent"),  # type: ignore[call-overload]
            "events is an event class, got 'BookLent'",
            """write @event_handling("loans", events=BookLent), or types=["library.*"] for events of any class""",
        ),
        (lambda: event_handling("a", types=[""]), "types is a list of patterns, got ['']", FIX),
        (lambda: event_handling("a", types=[int]), "types is a list of patterns, got [<class 'int'>]", FIX),  # type: ignore[list-item]
        (
            lambda: event_type(""),
            "@event_type needs the type's name, got ''",
            'write @event_type("library.book-lent.v1") above the class',
        ),
        (
            lambda: event_type(handler),  # type: ignore[arg-type]
            f"@event_type needs the type's name, got {handler!r}",
            'write @event_type("library.book-lent.v1") above the class',
        ),
        (
            lambda: event_type("lent")(handler),  # type: ignore[type-var]
            f"@event_type is for classes, got {handler!r}",
            'write @event_handling("loans", types=["lent"]) above a function that is to be called for events',
        ),
        (lambda: on_start(" "), "@on_start needs the name of a processing group", 'write @on_start("catalog")'),
        (
            lambda: on_start(handler),  # type: ignore[arg-type]
            "@on_start needs the name of a processing group",
            'write @on_start("catalog")',
        ),
        (
            lambda: event_type("library.*"),
            "@event_type takes types, and 'library.*' is a pattern, which no event has as its type",
            PATTERN_FIX,
        ),
        (
            lambda: upcaster("a", "library.v?"),
            "@upcaster takes types, and 'library.v?' is a pattern, which no event has as its type",
            PATTERN_FIX,
        ),
        (upcaster, "@upcaster needs the types that it takes, got ()", UPCASTER_FIX),
        (lambda: upcaster("a", " "), "@upcaster needs the types that it takes, got ('a', ' ')", UPCASTER_FIX),
        (
            lambda: upcaster(handler),  # type: ignore[arg-type]
            f"@upcaster needs the types that it takes, got ({handler!r},)",
            UPCASTER_FIX,
        ),
        (
            lambda: event_handling("cat\nalog"),
            r"the name 'cat\nalog' contains a line end or another control character",
            "write the name in letters, digits, - and _",
        ),
        (
            lambda: job("\0"),
            r"the name '\x00' contains a line end or another control character",
            "write the name in letters, digits, - and _",
        ),
        (
            lambda: around_event(7),  # type: ignore[call-overload]
            "a processing group's name is a text, got 7",
            'write @around_event("catalog"), or @around_event for every group',
        ),
        (
            lambda: around_handler(None),  # type: ignore[call-overload]
            "a processing group's name is a text, got None",
            'write @around_handler("catalog"), or @around_handler for every group',
        ),
    ],
    ids=range(20),
)
def test_invalid_decorator_arguments_are_refused_immediately(call: Callable[[], object], what: str, fix: str) -> None:
    with pytest.raises(HandlerSignatureError) as caught:
        call()
    assert (caught.value.code, caught.value.what, caught.value.fix) == ("OCQ-200", what, fix)


@pytest.mark.parametrize("decorator", [event_handling, dataframe_handler])
@pytest.mark.parametrize("parents", [(), (ABC,)])
def test_columns_are_not_described_above_a_class(parents: tuple[type, ...], decorator: Any) -> None:
    audit = type("Audit", parents, {"all": event_handling("audit", types=["library.*"])(fresh())})
    what = "events=dict above class Audit would have no effect: it describes what one method takes"
    with pytest.raises(HandlerSignatureError) as caught:
        decorator("audit", events=dict)(audit)
    fix = f"put @{decorator.__name__}(events=dict) above that method instead"
    assert (caught.value.code, caught.value.what, caught.value.fix) == ("OCQ-200", what, fix)
    assert marks(event_handling("audit", types=["a"])(audit)) == (HandlerMark("audit", ("a",)),)


def test_a_class_has_one_event_type() -> None:
    @event_type("lent.v1")
    @event_type("lent.v1")
    class Lent: ...

    @event_type("lent.v1.again")
    class Child(Lent): ...

    with pytest.raises(HandlerSignatureError, match="class Lent has two event types") as caught:
        event_type("lent.v2")(Lent)
    assert caught.value.fix.endswith('@event_handling("loans", types=["lent.v1", "lent.v2"])')


def test_an_on_start_function_may_serve_several_groups() -> None:
    function = on_start("one")(on_start(" two ")(fresh()))
    assert [mark.group for mark in getattr(function, Declaration.ON_START.attribute)] == ["two", "one"]


@pytest.mark.parametrize(
    ("decorators", "types"),
    [
        ([upcaster("a")], ("a",)),
        ([upcaster("a", "b", "a")], ("a", "b")),
        ([upcaster("a"), upcaster("b", "a")], ("b", "a")),
    ],
)
def test_an_upcaster_has_the_types_of_its_decorators(
    decorators: list[Callable[..., Any]], types: tuple[str, ...]
) -> None:
    function = fresh()
    for decorate in decorators:
        assert decorate(function) is function
    assert getattr(function, Declaration.UPCASTER.attribute) == types


@pytest.mark.parametrize(
    ("decorator", "mark"),
    [
        (around_event, AroundMark(Surrounded.EVENT)),
        (around_event(), AroundMark(Surrounded.EVENT)),
        (around_event("catalog"), AroundMark(Surrounded.EVENT, "catalog")),
        (around_event(" catalog ", order=3), AroundMark(Surrounded.EVENT, "catalog", 3)),
        (around_handler, AroundMark(Surrounded.HANDLER)),
        (around_handler(order=-1), AroundMark(Surrounded.HANDLER, "", -1)),
        (around_handler("catalog"), AroundMark(Surrounded.HANDLER, "catalog")),
    ],
)
def test_a_decorator_leaves_its_mark_on_the_interceptor(decorator: Callable[..., Any], mark: AroundMark) -> None:
    function = fresh()
    assert decorator(function) is function
    assert getattr(function, Declaration.AROUND.attribute) == (mark,)


def test_an_interceptor_may_serve_several_groups() -> None:
    function = around_event("one")(around_handler("two")(fresh()))
    assert getattr(function, Declaration.AROUND.attribute) == (
        AroundMark(Surrounded.HANDLER, "two"),
        AroundMark(Surrounded.EVENT, "one"),
    )
