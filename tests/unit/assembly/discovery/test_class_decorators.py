"""What ``@event_handling`` says on a class applies to its methods, found by discovery or given by hand."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from opencqrs_py.assembly.discovery.discovery import discover
from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.errors import HandlerSignatureError
from opencqrs_py.model.handler import Handler
from opencqrs_py.processing.binding import bind
from opencqrs_py.processing.definitions import in_order

HEAD = "from opencqrs_py import Event, event_handling\n"
MAIL = """
class Mail:
    @event_handling{method}
    def send(self, raw: Event) -> None: ...
"""
CHILD = """
class Letters(Mail): ...
"""


def written(above: str, method: str = "") -> str:
    """Return a class with what stands above it, and one method with the arguments of its decorator."""
    return above + MAIL.format(method=method)


def discovered(module: ModuleType, name: str) -> list[Handler]:
    """Return the handlers of one class of a module."""
    return [each for each in discover([module]).make_handlers() if type(each.call.__self__).__name__ == name]


def given_by_hand(module: ModuleType, name: str) -> list[Handler]:
    """Return the handlers that a processor made by hand has of one class of a module."""
    return in_order([getattr(module, name)().send])


FALSE = '@event_handling("mail", replay=False)'
REPLAYS = [
    (written(FALSE), "Mail", {"mail": False}),
    (written(FALSE, "(replay=True)"), "Mail", {"mail": True}),
    (written(FALSE, '("mail")'), "Mail", {"mail": False}),
    (written(FALSE, '("MAIL", order=3)'), "Mail", {"MAIL": False}),
    (written(FALSE, '("mail", replay=True)'), "Mail", {"mail": True}),
    (written(FALSE, '("other")'), "Mail", {"other": None}),
    (written(FALSE, '("other")\n    @event_handling("mail")'), "Mail", {"other": None, "mail": False}),
    (written(FALSE + '\n@event_handling("other")'), "Mail", {"mail": False, "other": None}),
    (written("@event_handling(replay=False)", '("mail")'), "Mail", {"mail": False}),
    (written(FALSE, '("mail")') + CHILD, "Letters", {"mail": False}),
    (written(FALSE) + '@event_handling("mail")' + CHILD, "Letters", {"mail": False}),
    (written(FALSE) + '@event_handling("mail", replay=True)' + CHILD, "Letters", {"mail": True}),
    (written(FALSE) + '@event_handling("other")' + CHILD, "Letters", {"other": None}),
    (written('@event_handling("mail")') + f"{FALSE}{CHILD}", "Mail", {"mail": None}),
]


@pytest.mark.parametrize("handlers", [discovered, given_by_hand])
@pytest.mark.parametrize(("source", "name", "replays"), REPLAYS)
def test_methods_without_replay_have_that_of_their_class_for_the_group(
    make_module: Any, handlers: Any, source: str, name: str, replays: dict[str, bool | None]
) -> None:
    found = handlers(make_module(HEAD + source), name)
    assert {each.mark.group: each.mark.replay for each in found} == replays


def test_a_class_method_given_by_hand_has_the_replay_of_its_class(make_module: Any) -> None:
    source = written(FALSE).replace("    @event", "    @classmethod\n    @event").replace("self", "cls")
    (handler,) = in_order([make_module(HEAD + source).Mail.send])
    assert (handler.mark.group, handler.mark.replay) == ("mail", False)


ORDERED = '@event_handling("mail", order=7)'
ORDERS = [
    (written(ORDERED), "Mail", {"mail": 7}),
    (written('@event_handling("mail", order=0)'), "Mail", {"mail": 0}),
    (written(ORDERED, "(order=0)"), "Mail", {"mail": 0}),
    (written(ORDERED, '("MAIL", replay=False)'), "Mail", {"MAIL": 7}),
    (written(ORDERED, '("other")'), "Mail", {"other": None}),
    (written(ORDERED + '\n@event_handling("other", order=-1)'), "Mail", {"mail": 7, "other": -1}),
    (written("@event_handling(order=7)", '("mail")'), "Mail", {"mail": 7}),
    (written(ORDERED) + '@event_handling("mail")' + CHILD, "Letters", {"mail": 7}),
    (written(ORDERED) + '@event_handling("mail", order=0)' + CHILD, "Letters", {"mail": 0}),
]


@pytest.mark.parametrize("handlers", [discovered, given_by_hand])
@pytest.mark.parametrize(("source", "name", "orders"), ORDERS)
def test_methods_without_order_have_that_of_their_class_for_the_group(
    make_module: Any, handlers: Any, source: str, name: str, orders: dict[str, int | None]
) -> None:
    found = handlers(make_module(HEAD + source), name)
    assert {each.mark.group: each.mark.order for each in found} == orders


CLASSES = """
@event_handling("mail", order=2)
class Second:
    @event_handling
    def c(self, raw: Event) -> None: ...
    @event_handling("mail")
    def d(self, raw: Event) -> None: ...
    @event_handling(order=9)
    def e(self, raw: Event) -> None: ...
@event_handling("mail")
class Last:
    @event_handling
    def f(self, raw: Event) -> None: ...
@event_handling("mail", order=-1)
class First:
    @event_handling
    def a(self, raw: Event) -> None: ...
@event_handling("mail", order=1)
def b(raw: Event) -> None: ...
"""


def test_methods_run_by_the_order_of_their_class(make_module: Any) -> None:
    module = make_module(HEAD + CLASSES)
    second = module.Second()
    by_hand = in_order([second.e, module.Last().f, second.c, second.d, module.b, module.First().a])
    for handlers in (discover([module]).make_handlers(), by_hand):
        assert [each.call.__name__ for each in handlers] == list("abcdef")


PATTERNS = '@event_handling("mail", types=["library.*"])'
LENT = """
from dataclasses import dataclass

from opencqrs_py import event_type

@event_type("library.lent")
@dataclass
class Lent:
    isbn: str
"""
OF_CLASS = ("library.*",)
TYPES = [
    (written(PATTERNS), "Mail", {"mail": OF_CLASS}),
    (written(PATTERNS, '("mail")'), "Mail", {"mail": OF_CLASS}),
    (written(PATTERNS, "(order=3)"), "Mail", {"mail": OF_CLASS}),
    (written(PATTERNS, '(types=["own"])'), "Mail", {"mail": ("own",)}),
    (written(PATTERNS, '("other")'), "Mail", {"other": ()}),
    (written(PATTERNS + '\n@event_handling("other", types=["o.*"])'), "Mail", {"mail": OF_CLASS, "other": ("o.*",)}),
    (written('@event_handling(types=["library.*"])', '("mail")'), "Mail", {"mail": OF_CLASS}),
    (written(PATTERNS) + '@event_handling("mail")' + CHILD, "Letters", {"mail": OF_CLASS}),
    (written('@event_handling("mail")\n@event_handling(types=["library.*"])'), "Mail", {"mail": OF_CLASS}),
    (written(PATTERNS) + '@event_handling("mail", types=["*"])' + CHILD, "Letters", {"mail": ("*",)}),
    (written(PATTERNS).replace("raw: Event", "data: dict"), "Mail", {"mail": OF_CLASS}),
    (written(PATTERNS).replace("raw: Event", ""), "Mail", {"mail": OF_CLASS}),
    (LENT + written(PATTERNS).replace("raw: Event", "event: Lent"), "Mail", {"mail": ()}),
    (LENT + written(PATTERNS).replace("raw: Event", "event: Lent, raw: Event"), "Mail", {"mail": ()}),
]


@pytest.mark.parametrize("handlers", [discovered, given_by_hand])
@pytest.mark.parametrize(("source", "name", "types"), TYPES)
def test_methods_without_types_or_event_class_have_the_types_of_their_class_for_the_group(
    make_module: Any, handlers: Any, source: str, name: str, types: dict[str, tuple[str, ...]]
) -> None:
    bound = [bind(each, ContainerInjector()) for each in handlers(make_module(HEAD + source), name)]
    assert {each.handler.mark.group: each.handler.mark.types for each in bound} == types


def test_other_types_above_a_class_make_other_handlers(make_module: Any) -> None:
    first, second = (discover([make_module(HEAD + written(above))]) for above in (PATTERNS, '@event_handling("mail")'))
    assert [line.partition(" ")[2] for line in (*first.fingerprint("mail"), *second.fingerprint("mail"))] == [
        "library.*",
        "",
    ]


@pytest.mark.parametrize("handlers", [discovered, given_by_hand])
@pytest.mark.parametrize(
    "source",
    [
        written(PATTERNS + '\n@event_handling("mail", types=["own"])'),
        written(PATTERNS + '\n@event_handling("MAIL")'),
        written(PATTERNS, '\n    @event_handling("mail")'),
        written(PATTERNS, '\n    @event_handling("Mail", types=["library.*"])'),
        written("", '("mail")\n    @event_handling("mail")'),
    ],
)
def test_methods_that_would_be_called_twice_are_refused(make_module: Any, handlers: Any, source: str) -> None:
    with pytest.raises(HandlerSignatureError, match=r"(?i)decorated twice for group 'mail'") as caught:
        handlers(make_module(HEAD + source), "Mail")
    assert caught.value.code == "OCQ-209"


@pytest.mark.parametrize("handlers", [discovered, given_by_hand])
def test_a_method_may_have_other_types_than_its_class_as_well(make_module: Any, handlers: Any) -> None:
    source = written(PATTERNS, '\n    @event_handling("mail", types=["own"])')
    bound = [bind(each, ContainerInjector()) for each in handlers(make_module(HEAD + source), "Mail")]
    assert sorted(each.handler.mark.types for each in bound) == [OF_CLASS, ("own",)]
