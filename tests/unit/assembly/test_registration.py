"""Every decorated object is found exactly once, whatever names and copies it has in the module."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from opencqrs_py.assembly.blueprint import modules_of
from opencqrs_py.assembly.discovery.discovery import discover
from opencqrs_py.assembly.discovery.members import members_of, reference_of
from opencqrs_py.errors import AssemblyError, HandlerSignatureError
from opencqrs_py.model.declarations import Declaration

HEAD = """
import functools
from enum import Enum, StrEnum
from opencqrs_py import Event, around_event, event_handling, event_type, on_start, upcaster
CALLED = []
def logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        CALLED.append("logged")
        return function(*args, **kwargs)
    return wrapper
"""


@pytest.fixture
def found_in(make_module):
    return lambda source: discover([make_module(HEAD + dedent(source))])


def called(found):
    """Call each handler with only the event, and return what the calls have recorded."""
    handlers = found.make_handlers()
    for handler in handlers:
        handler.call({})
    return sys.modules[handlers[0].mark.home or handlers[0].call.__module__].CALLED


@pytest.mark.parametrize(
    ("source", "calls"),
    [
        pytest.param(
            """
            @event_handling("a")
            def on(event: dict): CALLED.append(1)
            @event_handling("a")
            def on(event: dict): CALLED.append(2)
            """,
            [1, 2],
            id="two functions with the same name",
        ),
        pytest.param(
            """
            for number in (1, 2, 3):
                @event_handling(f"group-{number}")
                def on(event: dict, number: int = number): CALLED.append(number)
            """,
            [1, 2, 3],
            id="functions made in a loop",
        ),
        pytest.param(
            """
            class Books:
                def on(self, number, event: dict): CALLED.append(number)
                first = event_handling("a")(functools.partialmethod(on, 1))
                second = event_handling("a")(functools.partialmethod(on, 2))
            """,
            [1, 2],
            id="a class with only partial methods",
        ),
        pytest.param(
            """
            def make(number):
                @event_handling("a")
                def on(event: dict): CALLED.append(number)
            make(1)
            make(2)
            """,
            [1, 2],
            id="functions made by a factory and not stored",
        ),
        pytest.param(
            """
            def make(number):
                @event_handling("a")
                def on(event: dict): CALLED.append(number)
            [[make(number) for number in numbers] for numbers in ((1, 2), (3,))]
            {make(number): number for number in (4,)}
            """,
            [1, 2, 3, 4],
            id="functions made by a factory in a comprehension",
        ),
        pytest.param(
            """
            def make(number):
                class Handlers:
                    @event_handling("a")
                    def on(self, event: dict): CALLED.append(number)
                return Handlers
            one, two = [make(number) for number in (1, 2)]
            """,
            [1, 2],
            id="classes made by a factory in a comprehension",
        ),
        pytest.param(
            """
            class Outer:
                class Inner:
                    def one(self, event: dict): CALLED.append(1)
                    def two(self, event: dict): CALLED.append(2)
                    decorated = [event_handling("a")(each) for each in (one, two)]
            """,
            [1, 2],
            id="methods decorated in a comprehension",
        ),
        pytest.param(
            """
            class Handlers:
                @event_handling("a")
                def on(self, event: dict): CALLED.append(1)
                @event_handling("a")
                def on(self, event: dict): CALLED.append(2)
            """,
            [1, 2],
            id="two methods with the same name",
        ),
        pytest.param(
            """
            class Outer:
                class Inner:
                    @event_handling("a")
                    def on(self, event: dict): CALLED.append(1)
            """,
            [1],
            id="a class in a class",
        ),
        pytest.param(
            """
            def make(number):
                @event_handling("a")
                class Handlers:
                    @event_handling
                    def on(self, event: dict): CALLED.append(number)
            make(1)
            make(2)
            """,
            [1, 2],
            id="classes made by a factory",
        ),
        pytest.param(
            """
            @event_handling("a")
            class Handlers:
                @event_handling
                def on(self, event: dict): CALLED.append(1)
            @event_handling("a")
            class Handlers:
                @event_handling
                def on(self, event: dict): CALLED.append(2)
            """,
            [1, 2],
            id="two classes with the same name",
        ),
        pytest.param(
            """
            class Handlers:
                @staticmethod
                @event_handling("a")
                def one(event: dict): CALLED.append(1)
                @event_handling("a")
                @staticmethod
                def two(event: dict): CALLED.append(2)
                @classmethod
                @event_handling("a")
                def three(cls, event: dict): CALLED.append(cls.__name__)
            """,
            [1, 2, "Handlers"],
            id="static and class methods",
        ),
        pytest.param(
            """
            @event_handling("a")
            class Handlers:
                @event_handling
                @staticmethod
                def one(event: dict): CALLED.append(1)
                @event_handling
                @classmethod
                def two(cls, event: dict): CALLED.append(cls.__name__)
                def on(self, number, event: dict): CALLED.append(number)
                three = event_handling(functools.partialmethod(on, 3))
                @event_handling
                @functools.singledispatchmethod
                def four(self, event: dict): CALLED.append(4)
            """,
            [1, "Handlers", 3, 4],
            id="methods without their own group",
        ),
        pytest.param(
            """
            class Handlers:
                @staticmethod
                @event_handling("a")
                def on(event: dict): CALLED.append(1)
                @staticmethod
                @event_handling("a")
                def on(event: dict): CALLED.append(2)
            """,
            [1, 2],
            id="two static methods with the same name",
        ),
        pytest.param(
            """
            @logged
            @event_handling("a")
            def on(event: dict): CALLED.append(1)
            """,
            ["logged", 1],
            id="a wrapper that takes the function's name is called",
        ),
        pytest.param(
            """
            @event_handling("a")
            def on(event: dict): CALLED.append(1)
            other = logged(on)
            """,
            [1],
            id="a copy under another name is not found again",
        ),
        pytest.param(
            """
            @event_handling("b")
            @logged
            @event_handling("a")
            def on(event: dict): CALLED.append(1)
            """,
            ["logged", 1, "logged", 1],
            id="decorated below and above a wrapper",
        ),
        pytest.param(
            """
            @event_handling("a")
            def on(event: dict): CALLED.append(1)
            other = event_handling("b")(logged(on))
            """,
            [1, "logged", 1],
            id="a decorated copy belongs only to its own group",
        ),
        pytest.param(
            """
            def on(event: dict): CALLED.append(1)
            for group in ("a", "b"):
                event_handling(group)(on)
            """,
            [1, 1],
            id="one function decorated for several groups in a loop",
        ),
        pytest.param(
            """
            event_handling("a")(functools.partial(lambda event, number: CALLED.append(number), number=1))
            """,
            [1],
            id="a partial",
        ),
        pytest.param(
            """
            @event_handling("a")
            def on(event: dict): CALLED.append(1)
            del on
            """,
            [1],
            id="a name that was deleted",
        ),
        pytest.param(
            """
            class Parent:
                @event_handling("a")
                def on(self, event: dict): CALLED.append("parent")
            class Child(Parent):
                @event_handling("a")
                def on(self, event: dict): CALLED.append("child")
            """,
            ["parent", "child"],
            id="an override replaces its parent's method",
        ),
        pytest.param(
            """
            class Parent:
                @event_handling("a")
                def on(self, event: dict): CALLED.append("parent")
            class Child(Parent):
                def on(self, event: dict): CALLED.append("child")
            """,
            ["parent", "child"],
            id="an override that is not decorated is called for the same events",
        ),
        pytest.param(
            """
            from abc import ABC, abstractmethod
            class Parent(ABC):
                @event_handling("a")
                def on(self, event: dict): CALLED.append(self.name())
                @abstractmethod
                def name(self): ...
            class One(Parent):
                def name(self): return 1
            class Two(Parent):
                def name(self): return 2
            """,
            [1, 2],
            id="an abstract parent serves its children only",
        ),
        pytest.param(
            """
            class Parent:
                @event_handling("a")
                def on(self, event: dict): CALLED.append("parent")
            class Child(Parent):
                on = None
            """,
            ["parent"],
            id="a child can remove a handler",
        ),
        pytest.param(
            """
            class Handlers:
                @event_handling("a")
                def on(self, event: dict): CALLED.append(1)
                other = on
            """,
            [1],
            id="a second name for a method",
        ),
        pytest.param(
            """
            from dataclasses import dataclass
            @dataclass(slots=True)
            @event_handling("a")
            class Handlers:
                number: int = 1
                @event_handling
                def on(self, event: dict): CALLED.append(self.number)
            """,
            [1],
            id="a class recreated by a decorator",
        ),
    ],
)
def test_each_decoration_is_called_once(found_in, source, calls):
    assert called(found_in(source)) == calls


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("NAME", "books"),
        ("f'boo{KS}'", "books"),
        ("Names.BOOKS", "books"),
        ("TextNames.BOOKS", "books"),
        ("StrNames.BOOKS", "books"),
        ("'  books '", "books"),
    ],
)
def test_a_group_may_be_a_constant_an_f_string_or_an_enum_member(found_in, group, name):
    found = found_in(f"""
NAME, KS = "books", "ks"
class Names(Enum):
    BOOKS = "books"
class TextNames(str, Enum):
    BOOKS = "books"
class StrNames(StrEnum):
    BOOKS = "books"
@event_handling({group})
def on(event: dict): ...
@on_start({group})
def prepare(): ...
@around_event({group})
def around(): yield
""")
    assert (found.groups, type(found.groups[0])) == ((name,), str)
    assert [one.mark.group for one in found.interceptors] == [name]
    assert [start.group for start in found.functions[Declaration.ON_START]] == [name]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("@event_handling('a')\n@event_handling('a')\ndef on(event: dict): ...", "decorated twice for group 'a'"),
        ("@event_handling('a')\n@event_handling('A')\ndef on(event: dict): ...", "decorated twice for group"),
        (
            "def plain(f):\n    return lambda event: f(event)\n@plain\n@event_handling('a')\ndef on(event: dict): ...",
            "on is wrapped by a decorator above @event_handling",
        ),
        (
            "class Plain:\n    def __init__(self, f): self.f = f\n    def __call__(self, event: dict): self.f(event)\n"
            "@Plain\n@event_handling('a')\ndef on(event: dict): ...",
            "on is wrapped by a decorator above @event_handling",
        ),
        (
            "def plain(f):\n    return lambda event: f(event)\n"
            "@plain\n@plain\n@event_handling('a')\ndef on(event: dict): ...",
            "on is wrapped by a decorator above @event_handling",
        ),
        (
            "@event_handling('a')\ndef on(event: dict): ...\non = functools.partial(on)",
            "on is wrapped by a decorator above @event_handling",
        ),
        (
            "@logged\n@event_handling('a')\ndef on(event: dict): ...\n" * 2,
            "on is wrapped by a decorator above @event_handling",
        ),
        (
            "def make():\n    class Lost:\n        @event_handling('a')\n        def on(self, e: dict): ...\nmake()",
            "class make.<locals>.Lost has handlers, but no name in the module refers to it",
        ),
        (
            "class Twice:\n    @event_handling('a')\n    def one(self, event: dict): ...\n"
            "class Twice:\n    @event_handling('a')\n    def two(self, event: dict): ...",
            "class Twice has handlers, but no name in the module refers to it",
        ),
        (
            "class Parent:\n    @event_handling('a')\n    def on(self, event: dict): ...\n"
            "    @event_handling('a')\n    def on(self, event: dict): ...\n"
            "class Child(Parent):\n    def on(self, event: dict): ...",
            "Child.on overrides 2 handlers of one name",
        ),
    ],
)
def test_a_handler_that_would_be_missed_or_called_twice_is_refused_with_its_place(found_in, source, says):
    with pytest.raises(HandlerSignatureError) as caught:
        found_in(source)
    assert caught.value.code == "OCQ-209"
    assert says in caught.value.what
    assert ".py:" in caught.value.where
    assert caught.value.fix


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("class C:\n    def f(self): ...\nevent_handling('a')(C().f)", "a method cannot be decorated"),
        ("class C:\n    def f(self): ...\nevent_handling(C().f)", "a method cannot be decorated"),
        ("class C:\n    @event_handling('a')\n    @property\n    def f(self): ...", "a property cannot be decorated"),
        ("class C:\n    @event_handling\n    @property\n    def f(self): ...", "a property cannot be decorated"),
    ],
)
def test_an_object_that_cannot_be_decorated_is_refused_with_its_name(make_module, source, what):
    with pytest.raises(HandlerSignatureError) as caught:
        make_module(HEAD + source)
    assert (caught.value.code, caught.value.what, caught.value.where) == ("OCQ-200", what, "C.f")


def test_start_functions_upcasters_interceptors_and_event_classes_made_in_a_loop_are_all_found(found_in):
    found = found_in("""
for number in (1, 2):
    @event_handling(f"group-{number}")
    def on(event: dict): ...
    @on_start(f"group-{number}")
    def prepare(): ...
    @upcaster(f"old.v{number}")
    def up(data: dict): ...
    @around_event(f"group-{number}")
    def around(): yield
    @event_type(f"new.v{number}")
    class E: ...
""")
    assert [start.group for start in found.functions[Declaration.ON_START]] == ["group-1", "group-2"]
    assert [up.types for up in found.upcasters] == [("old.v1",), ("old.v2",)]
    assert [one.mark.group for one in found.interceptors] == ["group-1", "group-2"]
    assert len(found.event_classes) == 2


def test_a_reloaded_module_begins_with_an_empty_register(make_module):
    module = make_module(HEAD + '@event_handling("a")\ndef on(event: dict): ...\n')
    assert len(discover([module]).make_handlers()) == 1
    assert len(discover([importlib.reload(module)]).make_handlers()) == 1


def test_handlers_made_after_the_import_are_not_found(make_module):
    module = make_module(HEAD + 'def make():\n    @event_handling("a")\n    def on(event: dict): ...\n    return on\n')
    made = module.make()
    assert discover([module]).make_handlers() == ()
    assert made.__opencqrs_handler__[0].group == "a"


def test_handlers_made_by_another_modules_function_belong_to_the_calling_module(make_module):
    library = make_module(HEAD + "def make(g):\n    @event_handling(g)\n    def on(event: dict): ...\n    return on\n")
    source = f"from {library.__name__} import make\none, two = make('a'), make('b')\n"
    module = make_module(source)
    assert discover([module]).groups == ("a", "b")
    assert discover([library]).make_handlers() == ()
    assert reference_of(module.two, module) == f"{module.__name__}:make.<locals>.on#2"
    assert discover([module], frozenset({reference_of(module.two, module)})).groups == ("b",)


def test_references_with_the_same_name_are_numbered_in_the_order_of_decoration(make_module):
    module = make_module(HEAD + '@event_handling("a")\ndef on(event: dict): ...\n' * 3)
    names = [member.reference.partition(":")[2] for member in members_of(module)]
    assert names == ["on", "on#2", "on#3"]


def test_handlers_and_classes_keep_their_order_in_the_source(found_in):
    found = found_in("""
@event_handling("a")
def first(event: dict): ...
class Parent:
    @event_handling("a")
    def second(self, event: dict): ...
class Child(Parent): ...
@event_handling("a")
def last(event: dict): ...
""")
    assert [handler.call.__name__ for handler in found.make_handlers()] == ["first", "second", "second", "last"]
    assert len(set(found.fingerprint("a"))) == 4


def test_two_spellings_of_a_group_are_refused_with_both_places(found_in):
    with pytest.raises(AssemblyError) as caught:
        found_in(
            '@event_handling("book-catalog")\ndef one(event: dict): ...\n'
            '@event_handling("bookCatalog")\ndef two(event: dict): ...\n'
        )
    assert caught.value.code == "OCQ-116"
    assert "(one)" in caught.value.where
    assert "(two)" in caught.value.where


def test_start_functions_and_interceptors_are_matched_in_every_spelling(found_in):
    found = found_in(
        '@event_handling("book-catalog")\ndef on(event: dict): ...\n'
        '@on_start("bookCatalog")\ndef prepare(): ...\n'
        '@around_event("BOOK_CATALOG")\ndef around(): yield\n'
    )
    assert [start.group for start in found.functions[Declaration.ON_START]] == ["book-catalog"]
    assert [one.mark.group for one in found.interceptors] == ["book-catalog"]


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ('@on_start("boks")\ndef f(): ...', "@on_start names group 'boks', which has no handler"),
        ('@around_event("boks")\ndef f(): yield', "@around_event names group 'boks', which has no handler"),
        ('@around_handler("boks")\ndef f(): yield', "@around_handler names group 'boks', which has no handler"),
    ],
)
def test_a_group_without_handlers_is_refused_with_the_nearest_one(make_module, source, what):
    head = "from opencqrs_py import around_handler" + HEAD + '@event_handling("books")\ndef on(event: dict): ...\n'
    with pytest.raises(AssemblyError) as caught:
        discover([make_module(head + source)])
    assert (caught.value.code, caught.value.what, caught.value.fix) == ("OCQ-517", what, "did you mean books?")


EVENT = '@event_type("library.lent.v1")\nclass Lent: ...\n'


def test_an_event_class_that_two_files_declare_is_refused_with_both_places(make_module):
    one, two = make_module(HEAD + EVENT), make_module(HEAD + EVENT + "# edited since")
    with pytest.raises(AssemblyError) as caught:
        discover([one, two])
    assert caught.value.code == "OCQ-519"
    assert "event type 'library.lent.v1' is declared by a class Lent in two files" in caught.value.what
    assert f"{one.__name__}.py:" in caught.value.where
    assert f"{two.__name__}.py:" in caught.value.where


def test_two_classes_with_different_names_may_represent_one_type(make_module):
    one, two = make_module(HEAD + EVENT), make_module(HEAD + EVENT.replace("class Lent", "class BookLent"))
    assert len(discover([one, two]).event_classes) == 2


def test_a_copied_file_with_handlers_is_refused_even_without_an_event_class(make_module):
    source = HEAD + '@event_handling("a", types=["x.*"])\ndef on(raw: Event): ...\n'
    one, two = make_module(source), make_module(source + "\n")
    with pytest.raises(AssemblyError, match="two files with handlers have the same content") as caught:
        discover([one, two])
    assert caught.value.where == f"{one.__file__} and {two.__file__}"


TWICE = {
    "handler": '@event_handling("a", types=["x"])\ndef on(raw: Event): ...\n',
    "class": EVENT,
    "both": f'{EVENT}@event_handling("a")\ndef on(lent: Lent): ...\n',
    "start": 'import common_twice\n@on_start("b")\ndef prepare(): ...\n',
}


@pytest.fixture
def import_twice(tmp_path, monkeypatch):
    """Write a module in a package, and import it under two names, from its folder and from the parent folder."""

    def imported(source):
        for name in ("outer_twice", "outer_twice.inner_twice", "inner_twice", "common_twice"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        folder = tmp_path / "outer_twice"
        folder.mkdir()
        (folder / "inner_twice.py").write_text(HEAD + source)
        (folder / "common_twice.py").write_text(f'{HEAD}@event_handling("b", types=["x"])\ndef other(e: Event): ...\n')
        monkeypatch.syspath_prepend(folder)
        monkeypatch.syspath_prepend(tmp_path)
        return [importlib.import_module(name) for name in ("outer_twice.inner_twice", "inner_twice", "common_twice")]

    return imported


@pytest.mark.parametrize("source", TWICE.values(), ids=TWICE)
@pytest.mark.parametrize("as_link", [False, True])
def test_a_file_imported_under_two_names_is_refused(import_twice, source, as_link):
    one, two, common = import_twice(source)
    if as_link:
        link = Path(one.__file__).with_name("link_twice.py")
        link.symlink_to(one.__file__)
        two.__file__ = str(link)
    with pytest.raises(AssemblyError) as caught:
        discover([one, two, common])
    assert str(caught.value) == (
        "[OCQ-519] one file was imported under two names, outer_twice.inner_twice and inner_twice: "
        "everything that it declares exists twice\n"
        f"  where: {two.__file__}\n"
        "  fix:   use one of the names everywhere, in imports and settings"
    )


def test_handlers_of_a_module_given_twice_or_imported_elsewhere_are_found_once(import_twice, make_module):
    module, *_ = import_twice(TWICE["both"])
    shown = make_module("from outer_twice.inner_twice import Lent, on\n")
    given = modules_of([module, module, shown, shown.on])
    found = discover([sys.modules[name] for name in given.names], given.only)
    assert [handler.place for handler in found.make_handlers()] == [f"{module.__file__}:14 (on)"]
    assert len(discover([module, module, shown]).make_handlers()) == 1


def test_the_same_handler_in_two_files_causes_a_warning(make_module):
    source = HEAD + '@event_handling("{}", types=["x.*"])\ndef on(raw: Event): CALLED.append(raw)\n'
    one, two = make_module(source.format("a")), make_module("EDITED = 1\n" + source.format("a"))
    (warning,) = discover([one, two]).warnings
    assert (warning.code, warning.what) == ("OCQ-519", "group 'a' has the same handler on in two files")
    assert f"{one.__name__}.py:" in warning.where
    assert f"{two.__name__}.py:" in warning.where
    other_group = make_module("EDITED = 2\n" + source.format("b"))
    other_code = make_module(source.format("a").replace("append(raw)", "append(1)"))
    assert discover([one, other_group, other_code]).warnings == ()


@pytest.mark.parametrize(
    ("other", "signature", "warned"),
    [
        ("copied_loans_old", "on(event: dict)", True),
        ("copied_loans copy", "on(event: dict)", True),
        ("copied_loans2", "on(event: dict)", True),
        ("copied", "on(event: dict)", True),
        ("copied_loans_old", "on(raw: Event)", False),
        ("copied_loans_old", "lent(event: dict)", False),
        ("copied_books", "on(event: dict)", False),
        ("copied_folder.copied_loans", "on(event: dict)", False),
    ],
)
def test_an_edited_copy_of_a_file_in_its_folder_causes_a_warning(tmp_path, monkeypatch, other, signature, warned):
    monkeypatch.syspath_prepend(tmp_path)
    modules = []
    for name, written in (("copied_loans", "on(event: dict)"), (other, signature)):
        file = tmp_path / f"{name.replace('.', '/')}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f'{HEAD}@event_handling("loans")\ndef {written}: CALLED.append("{name}")\n')
        monkeypatch.delitem(sys.modules, name, raising=False)
        modules.append(importlib.import_module(name))
    found = [(warning.code, warning.what) for warning in discover(modules).warnings]
    assert found == [("OCQ-519", "group 'loans' has the same handler on in two files")] * warned


def test_a_method_called_for_both_a_class_and_its_child_causes_a_warning(found_in):
    warning, *others = found_in("""
class Parent:
    @event_handling("a")
    def on(self, event: dict): ...
class One(Parent): ...
class Two(Parent): ...
""").warnings
    assert (warning.code, others) == ("OCQ-519", [])
    assert warning.what == "group 'a' calls Parent.on for Parent, and for its child One"
