"""The code of a group as its record keeps it: which code of a project belongs to which group."""

from __future__ import annotations

import pytest

from opencqrs_py import Application
from opencqrs_py.assembly.code.fingerprint import CodeReader, OwnModules

SOURCE = '''
from dataclasses import dataclass
from typing import Any
from dependency_injector import containers, providers
from collections.abc import Iterator
from opencqrs_py import Event, Invocation, Upcast, around_handler, event_handling, event_type, on_start, upcaster

NOW = "library.book-lent.v3"

@dataclass(frozen=True)
class Known:
    """What all events have."""
    isbn: str = ""

@event_type("library.book-lent.v3")
@dataclass(frozen=True)
class Lent(Known):
    isbn: str

@event_type("library.book-returned.v1")
@dataclass(frozen=True)
class Returned:
    isbn: str

@upcaster("library.book-lent.v1")
def first(event: Event) -> Upcast:
    return Upcast("library.book-lent.v2", event.data | {"first": 1})

@upcaster("library.book-lent.v2")
def second(event: Event) -> Upcast:
    return Upcast(NOW, event.data | {"second": 2})

@upcaster("library.book-returned.v0")
def third(event: Event) -> Upcast:
    return Upcast("library.book-returned.v1", event.data | {"third": 3})

@event_handling("loans", order=1)
def lend(event: Lent) -> None:
    print("lent")

@event_handling("returns")
def take_back(event: Returned) -> None:
    print("returned")

@event_handling("all", types=["library.*"])
def see(event: Event) -> None:
    print("seen")

@event_handling("parents")
def see_parents(event: Known) -> None:
    print("known")

@around_handler("returns")
def around(invocation: Invocation) -> Iterator[None]:
    print("around")
    yield

@on_start("loans")
def tables() -> None:
    print("tables")

def by_isbn(event: Event) -> str:
    return cut(event.subject)

def cut(text: str) -> str:
    return text[:4]

@dataclass(frozen=True)
class ByLength:
    length: int
    def __call__(self, event: Event) -> str:
        return event.subject[: self.length]

def of_lent(event: Lent) -> str:
    return event.isbn

class Parts(containers.DeclarativeContainer):
    function = providers.Object(by_isbn)
    nameless = providers.Object(lambda event: event.subject[:5])
    length = providers.Factory(ByLength, 3)
    other = providers.Object(1)
'''
GROUPS = ("loans", "returns", "all", "parents")
WRAPPED_GROUPS = ("wrapped", "twice", "dispatched", "slotted", "logged", "odd")


@pytest.fixture
def code_of(make_module, tmp_path):
    def code(source, **settings):
        said = {"database.url": "sqlite://", "event-handling.standard.processing.engine": "thread", **settings}
        application = Application(said, [make_module(source)], tmp_path)
        return {
            name: application._group_containers[name].code()
            for name in (*GROUPS, *WRAPPED_GROUPS)
            if f'"{name}"' in source
        }

    return code


def replaced(old, new):
    assert SOURCE.count(old) == 1
    return SOURCE.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ('print("lent")', 'print("borrowed")', {"loans"}),
        ('print("lent")', '# lent\n    print("lent")', set()),
        ("order=1", "order=2", {"loans"}),
        ('types=["library.*"]', 'types=["library.b*"]', {"all"}),
        (
            "class Lent(Known):\n    isbn: str",
            "class Lent(Known):\n    isbn: str\n    title: str = ''",
            {"loans", "parents"},
        ),
        ('    isbn: str = ""\n', '    isbn: str = "?"\n', {"loans", "parents"}),
        ('"""What all events have."""', '"""A book."""', set()),
        ('"first": 1', '"first": 2', {"loans", "all", "parents"}),
        ('"second": 2', '"second": 3', {"loans", "all", "parents"}),
        ('"third": 3', '"third": 4', {"returns", "all"}),
        ('print("around")', 'print("about")', {"returns"}),
        ('print("tables")', 'print("no tables")', set()),
        ("return text[:4]", "return text[:5]", set()),
        ("providers.Object(1)", "providers.Object(2)", set()),
    ],
)
def test_a_code_change_affects_only_the_groups_that_use_the_code(code_of, old, new, changed):
    before, after = code_of(SOURCE), code_of(replaced(old, new))
    assert {name for name in GROUPS if before[name].handlers != after[name].handlers} == changed
    assert {code.sequencing for code in (*before.values(), *after.values())} == {before["all"].sequencing}


PROVIDED = """
import random
from collections.abc import Callable, Iterator
from dependency_injector import containers, providers
from opencqrs_py import Event, event_handling

def cheap(isbn: str) -> int:
    return 1

def rate() -> float:
    return 0.5

class Mailer:
    def __init__(self, sender: str, rate: float) -> None: ...
    def send(self) -> None:
        print("sent")

class Tested(Mailer):
    def send(self) -> None:
        print("tested")

class Store:
    def save(self) -> None:
        print("saved")

def opened(path: str) -> Iterator[Store]:
    print("opened")
    yield Store()

class Clock:
    def now(self) -> int:
        return 1

class Unused:
    def use(self) -> None:
        print("unused")

class Parts(containers.DeclarativeContainer):
    config = providers.Configuration(default={"mode": "real", "sender": "a@b"})
    price = providers.Object(cheap)
    mailer = providers.Factory(Mailer, config.sender, rate=providers.Callable(rate))
    store = providers.Resource(opened, path="x.db")
    clock = providers.Object(Clock())
    random = providers.Singleton(random.Random, 1)
    unused = providers.Factory(Unused)

@event_handling("loans", types=["lent"])
def lend(event: Event, price: Callable, clock: Clock, random: random.Random) -> None:
    price(event.subject)

@event_handling("returns")
class Returns:
    def __init__(self, mailer: Mailer) -> None:
        self.mailer = mailer

    @event_handling(types=["returned"])
    def take_back(self, event: Event, store: Store) -> None:
        self.mailer.send()
"""


@pytest.mark.few
@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("return 1\n\ndef rate", "return 2\n\ndef rate", {"loans"}),
        ("return 1\n\nclass Unused", "return 2\n\nclass Unused", {"loans"}),
        ('print("sent")', 'print("mailed")', {"returns"}),
        ("return 0.5", "return 0.25", {"returns"}),
        ('print("opened")', 'print("open")', {"returns"}),
        ('print("saved")', 'print("stored")', {"returns"}),
        ("Factory(Mailer,", "Factory(Tested,", {"returns"}),
        ('print("unused")', 'print("not used")', set()),
        ('print("tested")', 'print("tried")', set()),
        ('print("sent")', '# mail\n        print("sent")', set()),
        ('"sender": "a@b"', '"sender": "c@d"', set()),
        ('path="x.db"', 'path="y.db"', set()),
        ("random.Random, 1", "random.Random, 2", set()),
    ],
)
def test_provided_objects_count_by_the_code_that_creates_them(code_of, old, new, changed):
    assert PROVIDED.count(old) == 1
    before, after = code_of(PROVIDED), code_of(PROVIDED.replace(old, new))
    assert {name for name in before if before[name].handlers != after[name].handlers} == changed


def test_an_upcaster_that_names_no_type_affects_all_groups(code_of):
    one = replaced('Upcast("library.book-lent.v2"', 'Upcast(event.data["type"]')
    before, after = code_of(one), code_of(one.replace('"first": 1', '"first": 2'))
    assert {name for name in GROUPS if before[name].handlers != after[name].handlers} == {*GROUPS}


SEQUENCE = "event-handling.standard.sequence"


@pytest.mark.few
@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({}, {"resolution": "per_second_level_subject"}, True),
        ({}, {"resolution": "per_level_subject", "level": 2}, True),
        ({}, {"resolution": "per_level_subject", "level": 3}, False),
        ({}, {"resolution": "per_subject"}, False),
        ({}, {"resolution": "no_sequence"}, False),
        (
            {"resolution": "per_data_field", "data-field": "a"},
            {"resolution": "per_data_field", "data-field": "b"},
            False,
        ),
        ({}, {"resolver-ref": "function"}, False),
        ({"resolver-ref": "function"}, {"resolver-ref": "nameless"}, False),
    ],
)
def test_sequence_settings_are_part_of_the_code(code_of, one, other, same):
    found = [
        code_of(SOURCE, **{f"{SEQUENCE}.{name}": value for name, value in said.items()})["loans"]
        for said in (one, other)
    ]
    assert (found[0].sequencing == found[1].sequencing) is same
    assert found[0].handlers == found[1].handlers


@pytest.mark.few
@pytest.mark.parametrize(
    ("reference", "old", "new", "same"),
    [
        ("function", "return text[:4]", "return text[:5]", False),
        ("function", "return cut(event.subject)", "return event.subject", False),
        ("function", "return cut(event.subject)", "# cut\n    return cut(event.subject)", True),
        ("function", "event.subject[:5]", "event.subject[:6]", True),
        ("nameless", "event.subject[:5]", "event.subject[:6]", False),
        ("nameless", "providers.Object(1)", "providers.Object(2)", True),
        ("length", "ByLength, 3", "ByLength, 4", False),
        ("length", "event.subject[: self.length]", "event.subject[1 : self.length]", False),
        ("length", "return text[:4]", "return text[:5]", True),
    ],
)
def test_the_code_of_a_resolver_is_part_of_the_code(code_of, reference, old, new, same):
    setting = {f"{SEQUENCE}.resolver-ref": reference}
    before, after = code_of(SOURCE, **setting)["loans"], code_of(replaced(old, new), **setting)["loans"]
    assert (before.sequencing == after.sequencing) is same


USED = """class Known:
    isbn: str = ""

    @property
    def shelf(self) -> str:
        return self.part(3)

    def part(self, length: int) -> str:
        return self.isbn[:length]

    @property
    def title(self) -> str:
        return "title"
"""
KNOWN = 'class Known:\n    """What all events have."""\n    isbn: str = ""\n'
OF_LENT = f"""{replaced(KNOWN, USED).split("@event_handling", maxsplit=1)[0]}
@event_handling("loans")
def lend(event: Lent) -> None:
    print("lent")

def of_lent(event: Lent) -> str:
    return shelf_of(event)

def shelf_of(event: Known) -> str:
    return event.isbn and event.shelf

class Parts(containers.DeclarativeContainer):
    decoded = providers.Object(of_lent)
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("return event.isbn", "return event.isbn[:3]", False),
        ("    isbn: str\n\n@event_type", "    isbn: str\n    b: int = 1\n\n@event_type", True),
        ("    isbn: str\n\n@event_type", "    isbn: int\n\n@event_type", False),
        ("return self.part(3)", "return self.part(4)", False),
        ("return self.isbn[:length]", "return self.isbn[length:]", False),
        ('return "title"', 'return "a title"', True),
    ],
)
def test_an_event_class_resolver_counts_with_what_it_uses_of_the_classes(code_of, old, new, same):
    assert OF_LENT.count(old) == 1
    setting = {f"{SEQUENCE}.resolver-ref": "decoded"}
    before, after = code_of(OF_LENT, **setting)["loans"], code_of(OF_LENT.replace(old, new), **setting)["loans"]
    assert (before.sequencing == after.sequencing) is same


SCHEDULED = """
from opencqrs_py import Event, batch_key, event_handling, inbox_filter

@event_handling("loans", types=["library.*"])
def lend(event: Event) -> None:
    print("lent")

@batch_key("loans")
def key(event: Event) -> str:
    return event.subject

@inbox_filter("loans")
def wanted(event: Event) -> bool:
    return True
"""


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [("return event.subject", "return event.id", "sequencing"), ("return True", "return bool(event.id)", "handlers")],
)
def test_batch_keys_and_filters_are_part_of_the_code(code_of, old, new, changed):
    setting = {"event-handling.standard.processing.mode": "scheduled"}
    before, after = (code_of(each, **setting)["loans"] for each in (SCHEDULED, SCHEDULED.replace(old, new)))
    assert [name for name in ("handlers", "sequencing") if getattr(before, name) != getattr(after, name)] == [changed]


def test_unreadable_code_is_not_compared_and_is_warned_of(code_of, monkeypatch, caplog):
    def fail(*_arguments, **_options):
        raise RecursionError("too deep")

    monkeypatch.setattr("opencqrs_py.assembly.code.fingerprint.CodeReader.fingerprint", fail)
    code = code_of(SCHEDULED, **{"event-handling.standard.processing.mode": "scheduled"})["loans"]
    assert (code.handlers, code.sequencing) == ("", "")
    assert (
        "the code of group 'loans' cannot be read (RecursionError: too deep): its changes are not detected"
        in caplog.text
    )


WRAPPED = """
from functools import singledispatch
from opencqrs_py import Event, event_handling

class Retry:
    def __init__(self, function, times: int = 3) -> None:
        self.function = function
        self.times = times

    def __call__(self, event: Event) -> None:
        for _ in range(self.times):
            self.function(event)

@event_handling("wrapped", types=["*"])
@Retry
def lend(event: Event) -> None:
    print("lent")

@event_handling("twice", types=["*"])
@Retry
@Retry
def take_back(event: Event) -> None:
    print("returned")

@singledispatch
def described(data: object) -> str:
    return "unknown"

@described.register
def _(data: dict) -> str:
    return "a dictionary"

@described.register(list)
def _of_list(data: list) -> str:
    return "a list"

@event_handling("dispatched", types=["*"])
def see(event: Event) -> None:
    print(described(event.data))
"""


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ('print("lent")', 'print("lent out")', {"wrapped"}),
        ('print("returned")', 'print("back")', {"twice"}),
        ("for _ in range(self.times)", "while True", {"wrapped", "twice"}),
        ('"a dictionary"', '"a dict"', {"dispatched"}),
        ('"a list"', '"some"', {"dispatched"}),
    ],
)
def test_wrapped_and_registered_functions_are_part_of_the_code(code_of, old, new, changed):
    before, after = code_of(WRAPPED), code_of(WRAPPED.replace(old, new))
    assert {*before} == {"wrapped", "twice", "dispatched"}
    assert {name for name in before if before[name].handlers != after[name].handlers} == changed


ODDLY_WRAPPED = """
from opencqrs_py import Event, event_handling

class Slotted:
    __slots__ = ("__dict__", "function", "unset")

    def __init__(self, function) -> None:
        self.function = function

    def __call__(self, event: Event) -> None:
        self.function(event)

class Odd:
    def __init__(self, function) -> None:
        vars(self).update({"function": function, "itself": self, 1: "no name"})

    def __call__(self, event: Event) -> None:
        vars(self)["function"](event)

def logged(function):
    def inner(event: Event) -> None:
        print("called")
        function(event)
    return inner

@event_handling("slotted", types=["*"])
@Slotted
def lend(event: Event) -> None:
    print("lent")

@event_handling("logged", types=["*"])
@logged
@Slotted
def take_back(event: Event) -> None:
    print("returned")

@event_handling("odd", types=["*"])
@Odd
def lose(event: Event) -> None:
    print("lost")
"""


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ('print("lent")', 'print("lent out")', {"slotted"}),
        ('print("returned")', 'print("back")', {"logged"}),
        ('print("lost")', 'print("gone")', {"odd"}),
    ],
)
def test_functions_wrapped_in_slots_closures_and_odd_objects_are_part_of_the_code(code_of, old, new, changed):
    before, after = code_of(ODDLY_WRAPPED), code_of(ODDLY_WRAPPED.replace(old, new))
    assert all(code.handlers for code in before.values())
    assert {name for name in before if before[name].handlers != after[name].handlers} == changed


DISPATCHING = """
from functools import singledispatch
from opencqrs_py import Event, event_handling

@event_handling("see", types=["*"])
@singledispatch
def see(event: Event) -> None:
    print("seen")

@see.register
def _(event: int) -> None:
    print("a number")

def of_text(event: str) -> None:
    print("a text")

see.register(str, of_text)
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("(str, of_text)", "(str, of_text)  # later", True),
        ('"seen"', '"looked at"', False),
        ('"a number"', '"an integer"', False),
        ('"a text"', '"words"', False),
    ],
)
def test_code_registered_for_a_handler_is_part_of_the_code(make_module, old, new, same):
    before, after = make_module(DISPATCHING), make_module(DISPATCHING.replace(old, new))
    found = [
        {text.replace(module.__name__, "") for text in CodeReader(OwnModules((module.__name__,))).texts([module.see])}
        for module in (before, after)
    ]
    assert (found[0] == found[1]) is same


READ_CAREFULLY = """
from dataclasses import dataclass

calls = []

def inner() -> None:
    print("inner")

class Slots:
    __slots__ = ("function",)

    def __call__(self) -> None:
        self.function()

    def __getattr__(self, name):
        calls.append(name)
        raise AttributeError(name)

class Properties:
    def __init__(self) -> None:
        self.function = inner

    def __call__(self) -> None:
        self.function()

    @property
    def __dict__(self):
        calls.append("__dict__")
        return {}

@dataclass
class Data:
    function: object = inner

    def __call__(self) -> None:
        self.function()

    def __getattribute__(self, name):
        if not name == "__class__":
            calls.append(name)
        return super().__getattribute__(name)
"""


@pytest.mark.parametrize("name", ["Slots", "Properties", "Data"])
def test_inspecting_wrapped_functions_calls_no_code_of_the_project(make_module, name):
    module = make_module(READ_CAREFULLY)
    wrapping = getattr(module, name)()
    module.calls.clear()
    assert CodeReader(OwnModules((module.__name__,))).texts([wrapping])
    assert module.calls == []
