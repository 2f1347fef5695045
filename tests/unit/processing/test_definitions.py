"""Definitions: functions that are given explicitly, decorated or with the arguments of a decorator."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial, partialmethod, singledispatchmethod, wraps
from typing import Any

import pytest

from opencqrs_py import Event, Upcast, around_event, around_handler, event_handling, upcaster
from opencqrs_py.errors import HandlerSignatureError
from opencqrs_py.model import AroundMark, Handler, HandlerMark, Interceptor, Surrounded, Upcaster
from opencqrs_py.processing.binding import NothingProvided, bind
from opencqrs_py.processing.definitions import (
    EventHandlerDefinition,
    in_order,
    interceptors_in_order,
    place_of,
    upcasters_of,
)


def plain(raw: Event) -> None: ...


@event_handling("catalog", types=["lent"], order=2)
def decorated(raw: Event) -> None: ...


@event_handling("one")
@event_handling("two")
def of_two_groups(raw: Event) -> None: ...


@event_handling
def of_no_group(raw: Event) -> None: ...


@event_handling("catalog")
class Reminders:
    @event_handling
    def remind(self, raw: Event) -> None: ...


class LateReminders(Reminders): ...


@upcaster("a", "b")
def up(data: dict[str, Any]) -> Upcast: ...  # type: ignore[empty-body]


@around_event("catalog")
@around_handler(order=1)
def around() -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("definition", "marks"),
    [
        (EventHandlerDefinition("catalog", plain), [HandlerMark("catalog")]),
        (EventHandlerDefinition("catalog", plain, ["lent"], 7), [HandlerMark("catalog", ("lent",), 7)]),
        (Handler(HandlerMark("catalog"), plain, "here"), [HandlerMark("catalog")]),
        (decorated, [HandlerMark("catalog", ("lent",), 2)]),
        (of_two_groups, [HandlerMark("two"), HandlerMark("one")]),
        (Reminders().remind, [HandlerMark("catalog")]),
    ],
)
def test_a_handler_is_a_definition_or_a_decorated_function(definition: Any, marks: list[HandlerMark]) -> None:
    assert [handler.mark for handler in in_order([definition])] == marks


def test_handlers_run_in_ascending_order_and_those_without_an_order_last() -> None:
    definitions = [EventHandlerDefinition("catalog", plain, order=order) for order in (None, 7, None, -1)]
    assert [handler.mark.order for handler in in_order(definitions)] == [-1, 7, None, None]


@pytest.mark.parametrize(
    ("definition", "what", "fix"),
    [
        (plain, "the function is not decorated", "decorate it with @event_handling, or give an EventHandlerDefinition"),
        (of_no_group, "the handler names no processing group", 'write @event_handling("catalog")'),
        (
            LateReminders().remind,
            "class LateReminders names no processing group, and does not inherit that of Reminders",
            'write @event_handling("catalog") above LateReminders, too',
        ),
        (
            Reminders,
            "Reminders is not a function",
            "give functions, or methods bound to an instance, such as Reminders(mailer).remind",
        ),
    ],
)
def test_an_invalid_handler_definition_is_refused_with_its_place(definition: Any, what: str, fix: str) -> None:
    with pytest.raises(HandlerSignatureError) as caught:
        in_order([definition])
    assert (caught.value.code, caught.value.what, caught.value.fix) == ("OCQ-207", what, fix)
    assert "test_definitions.py:" in caught.value.where


def test_a_function_without_source_is_named() -> None:
    with pytest.raises(HandlerSignatureError) as caught:
        in_order([print])
    assert caught.value.where == "print"


class Called:
    def __call__(self, raw: Event) -> None: ...


def in_a_circle(raw: Event) -> None: ...


in_a_circle.__wrapped__ = in_a_circle  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("member", "written"),
    [
        (plain, plain),
        (decorated, decorated),
        (contextmanager(around), around),  # its wrapper is in another file
        (cache(plain), plain),
        (cache(contextmanager(around)), around),
        (partial(contextmanager(around)), around),
        (staticmethod(plain), plain),
        (partialmethod(plain), plain),
        (singledispatchmethod(plain), plain),
        (Reminders, Reminders),
        (Reminders.remind, Reminders.remind),
        (Reminders().remind, Reminders.remind),
        (Called(), Called),
        (partial(Called()), Called),
        (wraps(plain)(Called()), plain),
    ],
)
def test_the_place_is_that_of_the_written_function_or_the_objects_class(member: Any, written: Any) -> None:
    line = inspect.getsourcelines(written)[1]
    assert place_of(member) == f"{__file__}:{line} ({written.__qualname__})"


@pytest.mark.parametrize(
    ("member", "place"), [(print, "print"), (partial(print), "print"), (3, "int"), ("".join, "str.join")]
)
def test_the_place_of_a_function_without_source_is_its_name(member: Any, place: str) -> None:
    assert place_of(member) == place


def test_a_function_that_appears_to_wrap_itself_has_a_place() -> None:
    assert place_of(in_a_circle) == "in_a_circle"


def test_upcasters_are_decorated_functions_or_upcaster_objects() -> None:
    made = Upcaster(("c",), plain, "here")
    first, second = upcasters_of([up, made])
    assert (first.types, first.call, second) == (("a", "b"), up, made)
    with pytest.raises(HandlerSignatureError) as caught:
        upcasters_of([plain])
    assert caught.value.fix == "decorate it with @upcaster, or give an Upcaster"


def test_interceptors_of_the_group_are_listed_outermost_first() -> None:
    other = Interceptor(AroundMark(Surrounded.EVENT, "other"), around, "here")
    found = interceptors_in_order([around, other], "catalog")
    assert [(one.mark.surrounded, one.mark.order) for one in found] == [
        (Surrounded.HANDLER, 1),
        (Surrounded.EVENT, None),
    ]
    with pytest.raises(HandlerSignatureError) as caught:
        interceptors_in_order([plain], "catalog")
    assert caught.value.fix == "decorate it with @around_event or @around_handler, or give an Interceptor"


@pytest.mark.parametrize(
    ("call", "lack"),
    [
        (lambda: None, "the handler has no parameter"),
        (lambda times=3, again=None: times or again, "the handler's 'times', 'again' would keep the default"),
    ],
)
def test_a_handler_without_parameters_is_refused_unless_it_names_types(call: Any, lack: str) -> None:
    with pytest.raises(HandlerSignatureError) as caught:
        bind(Handler(HandlerMark("g"), call, "handlers.py:1 (ring)"), NothingProvided())
    assert caught.value.what == f"{lack}, and it names no types, so it would be called for every event"
    assert (caught.value.code, caught.value.where) == ("OCQ-227", "handlers.py:1 (ring)")
    assert 'types=["library.*"]' in caught.value.fix
    bind(Handler(HandlerMark("g", ("library.*",)), call, "handlers.py:1 (ring)"), NothingProvided())
