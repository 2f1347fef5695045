"""Dispatch by the decoded class: a handler is called if the decoded object is an instance of its class (K7)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import pytest
from pydantic import BaseModel, Field, TypeAdapter, model_validator

from opencqrs_py import Event, Upcast, event_type
from opencqrs_py.errors import HandlerSignatureError
from opencqrs_py.model import Handler, HandlerMark, Partition, Upcaster
from opencqrs_py.model.chunk import Chunk
from opencqrs_py.processing.binding import NothingProvided, Work, bind
from opencqrs_py.processing.decoding import yields_others
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.event_types import EventTypes
from opencqrs_py.processing.filters import EventFilter
from opencqrs_py.processing.reading import Reading, Upcasters


class Paid(BaseModel):
    """Becomes one of its children, by a discriminated union."""

    amount: int

    @model_validator(mode="wrap")
    @classmethod
    def _as_child(cls, data: Any, handler: Any) -> Any:
        return CHILDREN.validate_python(data) if cls is Paid else handler(data)


class Cash(Paid):
    kind: Literal["cash"]


class Card(Paid):
    kind: Literal["card"]


class Gift(Card):
    pass


CHILDREN: TypeAdapter[Any] = TypeAdapter(Annotated[Cash | Card, Field(discriminator="kind")])


class After(BaseModel):
    amount: int
    kind: str

    @model_validator(mode="after")
    def _as_child(self) -> Any:
        return AfterCash.model_construct(**self.__dict__) if type(self) is After and self.kind == "cash" else self


class AfterCash(After):
    pass


@dataclass
class Made:
    amount: int
    kind: str

    def __new__(cls, *_: Any, **__: Any) -> Self:
        return object.__new__(cls)


@dataclass
class Plain:
    amount: int
    kind: str


@dataclass
class PlainCash(Plain):
    pass


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (Paid, True),
        (Cash, True),  # it inherits the validator
        (After, True),
        (Made, True),
        (Plain, False),
        (PlainCash, False),
        (dict, False),
        (object, False),
        (int, False),
    ],
)
def test_only_user_code_makes_a_class_yield_other_classes(cls: Any, *, expected: bool) -> None:
    assert yields_others(cls) is expected


def event(position: int, kind: str, event_type: str = "paid") -> Event:
    payload = json.dumps({"amount": position, "kind": kind})
    return Event(position, str(position), "s", "/", event_type, None, "application/json", payload, None)


class Seen:
    """Handlers that record what they get."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, int]] = []

    def handler(self, name: str, cls: Any, *types: str) -> Any:
        def take(one: Any) -> None:
            for each in one if isinstance(one, list) else [one]:
                self.calls.append(
                    (name, type(each).__name__, each["amount"] if isinstance(each, dict) else each.amount)
                )

        take.__annotations__ = {"one": cls, "return": None}
        return bind(Handler(HandlerMark("g", types), take, name), NothingProvided())


WAYS: dict[str, Callable[[type], EventTypes]] = {
    "map": lambda cls: EventTypes(mapped={"paid": cls}),
    "resolver": lambda cls: EventTypes(resolver=lambda name: cls if name == "paid" else None),
}


def dispatch(types: EventTypes, handlers: list[Any], events: list[Event], reading: Reading | None = None) -> int:
    return Dispatcher(handlers, types, reading).handle(Chunk.of(events), Work("g", Partition(1, 0), None))  # type: ignore[arg-type]


EVENTS = [event(1, "cash"), event(2, "card"), event(3, "cash")]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("parent", [Paid, After])
def test_a_handler_of_a_child_gets_the_events_that_decode_to_it(way: str, parent: Any) -> None:
    seen = Seen()
    child = Cash if parent is Paid else AfterCash
    handled = dispatch(WAYS[way](parent), [seen.handler("child", child)], EVENTS)
    assert seen.calls == [("child", child.__name__, 1), ("child", child.__name__, 3)]
    assert handled == 2


@pytest.mark.parametrize("way", WAYS)
def test_handlers_of_parents_children_and_grandchildren_coexist(way: str) -> None:
    seen = Seen()
    handlers = [seen.handler("cash", Cash), seen.handler("paid", Paid), seen.handler("either", Cash | Card)]
    handlers += [seen.handler("gift", Gift), seen.handler("all", dict)]
    assert dispatch(WAYS[way](Paid), handlers, EVENTS[:2]) == 2
    assert seen.calls == [
        ("cash", "Cash", 1),
        ("paid", "Cash", 1),
        ("either", "Cash", 1),
        ("all", "dict", 1),
        ("paid", "Card", 2),
        ("either", "Card", 2),
        ("all", "dict", 2),
    ]


@pytest.mark.parametrize("way", WAYS)
def test_lists_contain_the_events_that_decode_to_their_class(way: str) -> None:
    seen = Seen()
    handlers = [seen.handler("cash", list[Cash]), seen.handler("paid", list[Paid])]
    assert dispatch(WAYS[way](Paid), handlers, EVENTS) == 3
    assert seen.calls == [
        ("cash", "Cash", 1),
        ("cash", "Cash", 3),
        ("paid", "Cash", 1),
        ("paid", "Card", 2),
        ("paid", "Cash", 3),
    ]
    seen.calls.clear()
    assert dispatch(WAYS[way](Paid), [seen.handler("card", list[Card])], EVENTS) == 1
    assert dispatch(WAYS[way](Paid), [seen.handler("card", list[Card]), seen.handler("one", Card)], EVENTS) == 1
    assert seen.calls == [("card", "Card", 2), ("one", "Card", 2), ("card", "Card", 2)]


def test_results_of_upcasters_are_matched_by_class_too() -> None:
    def renamed(data: dict[str, Any]) -> list[Upcast]:
        return [Upcast("paid", data), Upcast("paid", {**data, "kind": "card"})]

    upcasters = Upcasters([Upcaster(("paid.v0",), renamed, "upcasters.py:1")], NothingProvided())
    seen = Seen()
    events = [event(1, "cash", "paid.v0"), event(2, "card", "paid.v0")]
    assert dispatch(WAYS["map"](Paid), [seen.handler("cash", Cash)], events, Reading(upcasters)) == 1
    assert seen.calls == [("cash", "Cash", 1)]


def test_each_handler_gets_its_own_object() -> None:
    given: list[Any] = []

    def first(one: Cash) -> None:
        one.amount = 99
        given.append(one)

    def second(one: Cash) -> None:
        given.append(one)

    handlers = [bind(Handler(HandlerMark("g"), call, call.__name__), NothingProvided()) for call in (first, second)]
    dispatch(WAYS["map"](Paid), handlers, EVENTS[:1])
    assert [one.amount for one in given] == [99, 1]


def test_events_of_the_types_that_a_handler_names_are_decoded_to_its_class() -> None:
    seen = Seen()
    dispatch(WAYS["map"](After), [seen.handler("named", AfterCash, "paid")], EVENTS[:2])
    assert seen.calls == [("named", "AfterCash", 1), ("named", "AfterCash", 2)]


def test_a_child_of_a_class_that_yields_only_itself_is_refused() -> None:
    with pytest.raises(HandlerSignatureError, match="no event type leads to PlainCash") as caught:
        dispatch(WAYS["map"](Plain), [Seen().handler("child", PlainCash)], EVENTS)
    assert caught.value.code == "OCQ-206"


def test_with_a_resolver_a_child_of_a_class_that_yields_only_itself_is_not_decoded() -> None:
    seen = Seen()
    assert dispatch(WAYS["resolver"](Plain), [seen.handler("child", PlainCash)], [event(1, "cash")]) == 0
    assert seen.calls == []


@event_type("marked")
class Marked(Paid):
    pass


def test_a_class_with_its_own_event_type_is_found_by_it() -> None:
    seen = Seen()
    events = [event(1, "cash"), event(2, "cash", "marked")]
    assert dispatch(WAYS["map"](Paid), [seen.handler("marked", Marked)], events) == 1
    assert seen.calls == [("marked", "Marked", 2)]


def test_a_filter_applies_to_the_class_that_an_event_decodes_to() -> None:
    def expensive(event: Card) -> bool:
        return event.amount > 10

    accepts = EventFilter(expensive, EventTypes(mapped={"paid": Paid}), Reading(), "filters.py:1", lambda _: True)
    data = ['{"kind": "card", "amount": 1}', '{"kind": "card", "amount": 11}', '{"kind": "cash", "amount": 1}']
    events = [Event(1, "1", "s", "/", "paid", None, "application/json", each, None) for each in data]
    assert [accepts(event) for event in events] == [False, True, True]
