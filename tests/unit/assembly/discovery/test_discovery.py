from __future__ import annotations

import pytest

from opencqrs_py.assembly.blueprint import import_modules
from opencqrs_py.assembly.discovery.discovery import discover
from opencqrs_py.errors import AssemblyError, HandlerSignatureError
from opencqrs_py.model.declarations import Declaration

HEAD = """
from opencqrs_py import Event, event_handling, event_type, on_start
"""


def call_names(found):
    return [handler.call.__name__ for handler in found.make_handlers()]


def test_functions_are_found_in_the_order_of_definition(make_module):
    found = discover(
        [
            make_module(
                HEAD
                + """
@event_handling("b")
def second(event: dict) -> None: ...
@event_handling("a")
def first(event: dict) -> None: ...
"""
            )
        ]
    )
    assert call_names(found) == ["second", "first"]
    assert found.groups == ("b", "a")


def test_handlers_run_by_ascending_order_and_those_without_an_order_last(make_module):
    found = discover(
        [
            make_module(
                HEAD
                + """
@event_handling("a")
def last(event: dict) -> None: ...
@event_handling("a", order=20)
def third(event: dict) -> None: ...
@event_handling("a", order=10)
def first(event: dict) -> None: ...
@event_handling("a", order=15)
def second(event: dict) -> None: ...
"""
            )
        ]
    )
    assert call_names(found) == ["first", "second", "third", "last"]


def test_one_function_may_serve_two_groups(make_module):
    found = discover(
        [make_module(HEAD + '@event_handling("a")\n@event_handling("b")\ndef both(event: dict) -> None: ...\n')]
    )
    assert sorted(found.groups) == ["a", "b"]


def test_a_decorator_made_once_carries_its_group(make_module):
    found = discover(
        [make_module(HEAD + 'stats = event_handling("statistics")\n@stats\ndef f(event: dict) -> None: ...\n')]
    )
    assert found.groups == ("statistics",)


def test_an_imported_handler_is_not_found_twice(make_module):
    first = make_module(HEAD + '@event_handling("a")\ndef f(event: dict) -> None: ...\n')
    second = make_module(f"from {first.__name__} import f\n")
    assert len(discover([first, second]).make_handlers()) == 1


def test_methods_of_a_class_are_bound_to_one_instance_with_its_dependencies(make_module):
    found = discover(
        [
            make_module(
                HEAD
                + """
from dependency_injector import containers, providers

class Mailer: ...

class Container(containers.DeclarativeContainer):
    mailer = providers.Singleton(Mailer)

@event_handling("mail")
class Reminders:
    def __init__(self, mailer: Mailer) -> None:
        self.mailer = mailer

    @event_handling
    def remind(self, event: dict) -> None: ...

    @event_handling(order=1)
    def first(self, event: dict) -> None: ...
"""
            )
        ]
    )
    assert call_names(found) == ["first", "remind"]
    assert found.groups == ("mail",)
    first, second = found.make_handlers()
    assert first.call.__self__ is second.call.__self__
    assert type(first.call.__self__.mailer).__name__ == "Mailer"


def test_a_method_inherited_from_a_parent_is_a_handler(make_module):
    found = discover(
        [
            make_module(
                HEAD
                + """
class Parent:
    @event_handling("p")
    def handle(self, event: dict) -> None: ...

class Child(Parent): ...
"""
            )
        ]
    )
    assert len(found.make_handlers()) == 2


@pytest.mark.parametrize(
    ("source", "code", "says"),
    [
        ("@event_handling\ndef f(event: dict) -> None: ...\n", "OCQ-207", "names no processing group"),
        ('@event_handling("a")\nclass Empty: ...\n', "OCQ-207", "class Empty has no handler method"),
        ("class C:\n    @event_handling\n    def f(self, event: dict): ...\n", "OCQ-207", "names no processing group"),
        (
            '@event_handling("a")\nclass C:\n    def __init__(self, x: int): ...\n'
            "    @event_handling\n    def f(self, event: dict): ...\n",
            "OCQ-504",
            "nothing provides argument 'x' of C",
        ),
    ],
)
def test_an_unsuitable_handler_is_refused_with_its_place(make_module, source, code, says):
    module = make_module(HEAD + source)
    with pytest.raises((HandlerSignatureError, AssemblyError)) as caught:
        assert discover([module]).make_handlers()
    assert caught.value.code == code
    assert says in caught.value.what
    assert f"{module.__name__}.py:" in caught.value.where


PARENT = """
from abc import ABC, abstractmethod
from opencqrs_py import checkpointing

@event_handling("catalog")
class Parent(ABC):
    @abstractmethod
    def more(self) -> None: ...
    @event_handling
    def handle(self, event: dict) -> None: ...

class Between(Parent, ABC): ...

"""


@pytest.mark.parametrize(
    ("source", "what", "fix"),
    [
        (
            PARENT + "class Child(Between):\n    def more(self) -> None: ...\n",
            "class Child names no processing group, and does not inherit that of Parent",
            'write @event_handling("catalog") above Child, too',
        ),
        (
            PARENT.replace('@event_handling("catalog")', '@checkpointing("catalog")')
            + "class Child(Between):\n    def more(self) -> None: ...\n",
            "class Child names no processing group, and does not inherit that of Parent",
            'write @checkpointing("catalog") above Child, too',
        ),
        (
            PARENT.replace('@event_handling("catalog")\n', "") + "class Child(Between):\n    def more(self): ...\n",
            "the handler names no processing group",
            'write @event_handling("catalog") above the class or the method',
        ),
    ],
)
def test_a_class_without_its_own_group_is_refused_with_the_decorator_to_add(make_module, source, what, fix):
    module = make_module(HEAD + source)
    with pytest.raises(HandlerSignatureError) as caught:
        discover([module])
    assert (caught.value.code, caught.value.what, caught.value.fix) == ("OCQ-207", what, fix)
    assert caught.value.where.endswith("(Child)" if "Child" in what else "(Parent.handle)")


def test_event_classes_and_start_functions_are_found(make_module):
    found = discover(
        [
            make_module(
                HEAD
                + """
@event_type("x.v1")
class X: ...

class NotOne(X): ...

@on_start("a")
def prepare() -> None: ...

@event_handling("a")
def handle(event: X) -> None: ...
"""
            )
        ]
    )
    assert [cls.__name__ for cls in found.event_classes] == ["X"]
    assert [(start.group, start.call.__name__) for start in found.functions[Declaration.ON_START]] == [("a", "prepare")]


def test_upcasters_are_found_as_defined_and_interceptors_in_their_order(make_module):
    found = discover(
        [
            make_module(
                HEAD
                + """
from collections.abc import Iterator
from opencqrs_py import Upcast, around_event, around_handler, upcaster

@upcaster("b.v1", "c.v1")
def second(data: dict) -> Upcast: ...
@upcaster("a.v1")
def first(data: dict) -> Upcast: ...

@around_event
def inner() -> Iterator[None]: yield
@around_event("a", order=2)
@around_handler("b", order=1)
def both() -> Iterator[None]: yield

@event_handling("a")
@event_handling("b")
def handle(event: dict) -> None: ...
"""
            )
        ]
    )
    assert [(u.types, u.call.__name__) for u in found.upcasters] == [(("b.v1", "c.v1"), "second"), (("a.v1",), "first")]
    assert [(i.call.__name__, i.mark.surrounded.value, i.mark.group) for i in found.interceptors] == [
        ("both", "handler", "b"),
        ("both", "event", "a"),
        ("inner", "event", ""),
    ]
    for place in (*(u.place for u in found.upcasters), *(i.place for i in found.interceptors)):
        assert ".py:" in place


def test_upcasters_and_interceptors_are_found_even_if_handlers_are_named(make_module):
    source = """
from opencqrs_py import Upcast, upcaster
@upcaster("a")
def up(data: dict) -> Upcast: ...
@event_handling("a")
def wanted(event: dict) -> None: ...
@event_handling("a")
def other(event: dict) -> None: ...
"""
    module = make_module(HEAD + source)
    found = discover([module], frozenset({f"{module.__name__}:wanted"}))
    assert (call_names(found), len(found.upcasters)) == (["wanted"], 1)


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("class C:\n    @upcaster('a')\n    def f(self, data: dict): ...\n", "@upcaster marks a method"),
        ("class C:\n    @staticmethod\n    @upcaster('a')\n    def f(data: dict): ...\n", "@upcaster marks a method"),
        ("class C:\n    @on_start('a')\n    def f(self): ...\n", "@on_start marks a method"),
        (
            "class C:\n    @around_event\n    def f(self): yield\n",
            "@around_event or @around_handler marks a method",
        ),
        ("@around_handler('a')\nclass C: ...\n", "@around_event or @around_handler marks a class"),
        ("@upcaster('a')\nclass C: ...\n", "@upcaster marks a class"),
    ],
)
def test_a_decorator_without_effect_on_a_method_or_class_is_refused(make_module, source, what):
    module = make_module(HEAD + "from opencqrs_py import around_event, around_handler, upcaster\n" + source)
    with pytest.raises(HandlerSignatureError) as caught:
        discover([module])
    assert (caught.value.code, caught.value.what) == ("OCQ-207", what)
    assert f"{module.__name__}.py:" in caught.value.where
    assert "above a function of the module" in caught.value.fix


def test_only_named_handlers_are_found(make_module):
    module = make_module(
        HEAD
        + """
@event_handling("a")
def wanted(event: dict) -> None: ...
@event_handling("b")
def other(event: dict) -> None: ...
"""
    )
    found = discover([module], frozenset({f"{module.__name__}:wanted"}))
    assert call_names(found) == ["wanted"]


def test_a_failed_import_is_reported_with_the_line_that_raised(tmp_path):
    (tmp_path / "broken_one.py").write_text("x = 1\nimport nothing_of_that_name\n")
    with pytest.raises(AssemblyError) as caught:
        import_modules(["broken_one"], [tmp_path])
    assert caught.value.code == "OCQ-501"
    assert "No module named 'nothing_of_that_name'" in caught.value.what
    assert caught.value.where.endswith("broken_one.py:2")


def test_a_syntax_error_is_reported_with_its_line(tmp_path):
    (tmp_path / "broken_two.py").write_text("x = 1\ndef (\n")
    with pytest.raises(AssemblyError) as caught:
        import_modules(["broken_two"], [tmp_path])
    assert caught.value.where.endswith("broken_two.py:2")
