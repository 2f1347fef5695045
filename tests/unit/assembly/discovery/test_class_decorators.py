"""What ``@event_handling`` says on a class applies to its methods, found by discovery or given by hand."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from opencqrs_py.assembly.discovery.discovery import discover
from opencqrs_py.model.handler import Handler
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
