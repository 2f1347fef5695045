"""Which changes of code change its fingerprint."""

from __future__ import annotations

import importlib
import itertools
import py_compile
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from opencqrs_py.assembly.code.fingerprint import CodeReader, OwnModules
from opencqrs_py.assembly.code.normalised_source import compiled

Files = dict[str, str]
_numbers = itertools.count()

HANDLERS = '''
from dataclasses import dataclass
from math import floor

from fingerprinted.prices import rounded
from fingerprinted import rules

LIMIT = 10
UNUSED = 1


@dataclass(frozen=True)
class Address:
    city: str


@dataclass(frozen=True)
class Lent:
    """A book was lent."""
    isbn: str
    address: "Address | None" = None


def fee(event):
    return rounded(LIMIT) + rules.surcharge(event)


def other(event):
    return 1


def lend(event: Lent) -> None:
    # what it costs
    amount, width = fee(event) + floor(1.5), 9
    print(f"{event.isbn}: " f"EUR {amount:>{width}}")
'''
PRICES = """
CENTS = 100


def rounded(amount):
    return round(amount * CENTS) / CENTS


def never():
    return 0
"""
RULES = """
def surcharge(event):
    from fingerprinted.late import days
    return days(event) * 2
"""
LATE = """
def days(event):
    return 7
"""
FILES = {"handlers": HANDLERS, "prices": PRICES, "rules": RULES, "late": LATE}


class Project:
    """Packages loaded one after another under the same name, each from its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.packages = ["fingerprinted"]

    def forget(self) -> None:
        for name in [each for each in sys.modules if each.partition(".")[0] in self.packages]:
            del sys.modules[name]

    def load(self, files: Files) -> tuple[ModuleType, CodeReader]:
        self.forget()
        package = "fingerprinted"
        root = self.folder / f"root{next(_numbers)}"
        (root / package).mkdir(parents=True)
        (root / package / "__init__.py").touch()
        for module, text in files.items():
            (root / package / f"{module}.py").write_text(text)
        sys.path.insert(0, str(root))
        importlib.invalidate_caches()
        try:
            module = importlib.import_module("fingerprinted.handlers")
        finally:
            sys.path.remove(str(root))
        return module, CodeReader(OwnModules((), (str(root),)))

    def fingerprint(self, files: Files, *names: str, **options: Any) -> str:
        module, reader = self.load(files)
        return reader.fingerprint([getattr(module, name) for name in names or ("lend", "Lent")], **options)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path)
    yield made
    made.forget()


def changed(module: str, old: str, new: str) -> Files:
    assert old in FILES[module]
    return {**FILES, module: FILES[module].replace(old, new)}


SAME = {
    "nothing": FILES,
    "a comment": changed("handlers", "# what it costs", "# the fee\n    # in euros"),
    "empty lines": changed("handlers", "LIMIT = 10", "\n\n\nLIMIT = 10"),
    "a docstring": changed("handlers", '"""A book was lent."""', '"""Somebody has a book."""'),
    "no docstring": changed("handlers", '    """A book was lent."""\n', ""),
    "an added docstring": changed("handlers", "    # what it costs", '    """Lend."""'),
    "pass": changed("handlers", "    # what it costs", "    pass"),
    "parentheses": changed("handlers", "fee(event) + floor(1.5), 9", "(\n        (fee(event,)\n + (floor(1.5))), 9)"),
    "how a string is composed": changed("handlers", 'isbn}: " f"EUR', 'isbn}" f": " f"EU" f"R'),
    "the spelling of a number": changed("handlers", "LIMIT = 10", "LIMIT = 0xA"),
    "an unused function": changed("handlers", "return 1\n", "return 2\n"),
    "an unused constant": changed("handlers", "UNUSED = 1", "UNUSED = 2"),
    "an unused function beside a helper": changed("prices", "return 0", "return 1"),
    "the order of functions": changed("prices", PRICES, PRICES.replace("CENTS = 100\n", "") + "\nCENTS = 100\n"),
    "where a helper is imported from": {
        **changed("handlers", "fingerprinted.prices", "fingerprinted.amounts"),
        "amounts": PRICES,
    },
}
DIFFERENT = {
    "the handler": changed("handlers", "floor(1.5)", "floor(1.6)"),
    "an operator": changed("handlers", "fee(event) +", "fee(event) -"),
    "a string": changed("handlers", "EUR", "USD"),
    "a format": changed("handlers", ":>", ":<"),
    "an integer that becomes a float": changed("handlers", "LIMIT = 10", "LIMIT = 10.0"),
    "an integer that becomes a bool": changed("late", "return 7", "return True"),
    "the event class": changed("handlers", "isbn: str", "isbn: int"),
    "an added field": changed("handlers", "    isbn: str\n", "    isbn: str\n    title: str = ''\n"),
    "the class of a field": changed("handlers", "city: str", "city: str\n    street: str = ''"),
    "its decorator": changed("handlers", "@dataclass(frozen=True)\nclass Lent", "@dataclass(frozen=False)\nclass Lent"),
    "a helper": changed("handlers", "rounded(LIMIT)", "rounded(2 * LIMIT)"),
    "a constant": changed("handlers", "LIMIT = 10", "LIMIT = 11"),
    "a constant that is changed later": changed("handlers", "UNUSED = 1", "LIMIT += 1"),
    "a helper of another module": changed("prices", "return round(", "return int("),
    "a constant of another module": changed("prices", "CENTS = 100", "CENTS = 10"),
    "a helper called through its module": changed("rules", "* 2", "* 3"),
    "a helper that a function imports": changed("late", "return 7", "return 8"),
    "a function of another package": changed("handlers", "from math import floor", "from math import ceil as floor"),
}


@pytest.mark.parametrize("files", SAME.values(), ids=SAME.keys())
def test_changes_without_effect_on_behaviour_keep_the_fingerprint(project: Project, files: Files) -> None:
    assert project.fingerprint(files) == project.fingerprint(FILES)


@pytest.mark.parametrize("files", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_changes_of_behaviour_change_the_fingerprint(project: Project, files: Files) -> None:
    assert project.fingerprint(files) != project.fingerprint(FILES)


def test_the_fingerprint_is_the_same_on_every_python_and_machine(project: Project) -> None:
    assert project.fingerprint(FILES, said=["said"]) == "4:279fa677e98dc715"


def test_the_order_of_members_does_not_matter(project: Project) -> None:
    assert project.fingerprint(FILES, "lend", "Lent") == project.fingerprint(FILES, "Lent", "lend")


def test_the_additional_strings_matter(project: Project) -> None:
    found = {project.fingerprint(FILES, said=said) for said in ([], ["a"], ["b"], ["a", "b"])}
    assert len(found) == 4


METHODS = """
class Base:
    def helped(self, event):
        return 1

class Reminders(Base):
    def __init__(self, mailer=None):
        self.mailer = mailer

    def remind(self, event):
        return self.helped(event) + self.own(event)

    def own(self, event):
        return 2

reminders = Reminders()
remind = reminders.remind
"""


@pytest.mark.parametrize(
    ("old", "new"), [("return 1", "return 3"), ("return 2", "return 3"), ("mailer=None", "mailer=1")]
)
def test_the_class_and_parents_of_a_method_are_part_of_its_fingerprint(project: Project, old: str, new: str) -> None:
    before = project.fingerprint({"handlers": METHODS}, "remind")
    assert project.fingerprint({"handlers": METHODS.replace(old, new)}, "remind") != before


WRAPPED = """
from functools import partial, wraps

def logged(function):
    @wraps(function)
    def around(event):
        return function(event)
    return around

def plain(event):
    return 1

@logged
def decorated(event):
    return 1

by_call = logged(plain)
part = partial(plain)

def make(times):
    def made(event):
        return times
    return made

two = make(2)
number, named = (lambda e: e.subject), 1
def alone(): pass
"""


@pytest.mark.parametrize("name", ["decorated", "by_call"])
@pytest.mark.parametrize("change", [("return 1", "return 2"), ("return function(event)", "return None")])
def test_the_wrapper_of_a_function_is_part_of_its_fingerprint(
    project: Project, name: str, change: tuple[str, str]
) -> None:
    before = project.fingerprint({"handlers": WRAPPED}, name)
    assert project.fingerprint({"handlers": WRAPPED.replace(*change)}, name) != before


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("part", ("return 1", "return 2")),
        ("two", ("return times", "return -times")),
        ("number", ("e.subject", "e.type")),
    ],
)
def test_partial_nested_and_lambda_functions_are_fingerprinted(
    project: Project, name: str, change: tuple[str, str]
) -> None:
    before = project.fingerprint({"handlers": WRAPPED}, name)
    assert project.fingerprint({"handlers": WRAPPED.replace(*change)}, name) != before
    assert project.fingerprint({"handlers": WRAPPED.replace("def alone(): pass", "x = 1")}, name) == before


def test_closure_values_matter_only_if_values_are_included(project: Project) -> None:
    other = {"handlers": WRAPPED.replace("make(2)", "make(3)")}
    assert project.fingerprint(other, "two") == project.fingerprint({"handlers": WRAPPED}, "two")
    assert project.fingerprint(other, "two", values=True) != project.fingerprint(
        {"handlers": WRAPPED}, "two", values=True
    )


RESOLVER = """
class ByField:
    def __init__(self, name):
        self.name = name

    def __call__(self, event):
        return event.data[self.name]

one, other = ByField("isbn"), ByField("reader")
"""


def test_the_state_of_an_object_matters_only_if_values_are_included(project: Project) -> None:
    module, reader = project.load({"handlers": RESOLVER})
    of: Callable[..., str] = reader.fingerprint
    assert of([module.one]) == of([module.other])
    assert of([module.one], values=True) != of([module.other], values=True)
    assert of([partial(print, 1)], values=True) != of([partial(print, 2)], values=True)


REGISTERED = {
    "table": """
table, cache, named = {"others": [{}]}, {}, 0

def on(name):
    def put(function):
        table["others"][0][name] = function
        return function
    return put
""",
    "handlers": """
from fingerprinted import extra, table
from fingerprinted.bus import bus
from fingerprinted.table import cache, on, table as known

@on("lent")
def lent(event): return 1

@bus.on("back")
class Back:
    def handled(self, event): return 2

def by_table(event):
    cache[event.subject] = lambda: 1
    return known["others"][0][event.type](event)

def by_bus(event): return bus.known[event.type]().handled(event)

def by_module(event): return getattr(extra, f"on_{event.type}")(event)
""",
    "bus": """
class Bus:
    def __init__(self): self.known = {}

    def on(self, name):
        def put(made):
            self.known[name] = made
            return made
        return put

bus = Bus()
""",
    "extra": "def on_lent(event): return 3\n",
}


@pytest.mark.parametrize(
    ("name", "counts"), [("by_table", "return 1"), ("by_bus", "return 2"), ("by_module", "return 3")]
)
def test_functions_in_collections_and_modules_that_code_names_matter(project: Project, name: str, counts: str) -> None:
    before = project.fingerprint(REGISTERED, name)
    for part in ("return 1", "return 2", "return 3"):
        changed = {module: text.replace(part, f"{part}0") for module, text in REGISTERED.items()}
        assert (project.fingerprint(changed, name) == before) == (part != counts)


def test_functions_that_handlers_add_to_collections_do_not_matter(project: Project) -> None:
    module, reader = project.load(REGISTERED)
    before = reader.fingerprint([module.by_table])
    module.cache["1"] = module.on("made")
    assert reader.fingerprint([module.by_table]) == before


STAR = {"handlers": "from fingerprinted.helpers import *\ndef lend(event): return helped(event)\n"}


def test_star_imports_are_followed(project: Project) -> None:
    one, other = ({**STAR, "helpers": f"def helped(event): return {n}\n"} for n in (1, 2))
    assert project.fingerprint(one, "lend") != project.fingerprint(other, "lend")


def test_circular_imports_are_fingerprinted(project: Project) -> None:
    files = {
        "handlers": "import fingerprinted.b\ndef lend(event): return fingerprinted.b.go(event)\n",
        "b": "import fingerprinted.handlers as back\ndef go(event): return back.lend(event)\n",
    }
    assert project.fingerprint(files, "lend") != project.fingerprint(
        {**files, "b": "def go(event): return 1\n"}, "lend"
    )


@pytest.fixture
def without_source(project: Project, tmp_path: Path) -> Callable[[str], str]:
    """Return the fingerprint of ``lend`` in a module without source, from its compiled code."""

    def fingerprint(text: str) -> str:
        folder = tmp_path / f"compiled{next(_numbers)}"
        folder.mkdir()
        source = folder / f"sourceless_{next(_numbers)}.py"
        source.write_text(text)
        py_compile.compile(str(source), str(source.with_suffix(".pyc")), doraise=True)
        source.unlink()
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
        try:
            module = importlib.import_module(source.stem)
        finally:
            sys.path.remove(str(folder))
        project.packages.append(source.stem)
        return CodeReader(OwnModules((source.stem,))).fingerprint([module.lend])

    return fingerprint


def test_without_source_the_bytecode_matters(without_source: Callable[[str], str]) -> None:
    texts = [
        "return 1",
        "return 22",
        "return '1'",
        "return event",
        "print(event)",
        "return lambda: 1",
        "return lambda: 2",
    ]
    assert len({without_source(f"def lend(event): {text}") for text in texts}) == len(texts)


@pytest.mark.parametrize(
    "body",
    [
        "return 1",
        "event.append('lent')",
        "inner = lambda: 'x'; return inner",
    ],
)
def test_without_source_docstrings_and_line_numbers_do_not_matter(
    without_source: Callable[[str], str], body: str
) -> None:
    documented = f"# moved\n\ndef lend(event):\n    '''Lend.'''\n    {body}\n"
    assert without_source(documented) == without_source(f"def lend(event):\n    {body}\n")


def test_without_source_the_order_of_a_set_does_not_matter() -> None:
    first, second = (compile(f"event in {{{each}}}", "lend", "eval") for each in ("0, 8", "8, 0"))
    assert [*map(repr, first.co_consts)] != [*map(repr, second.co_consts)]
    assert compiled(first) == compiled(second)


@pytest.mark.parametrize("member", [len, str, Path, print])
def test_members_of_other_packages_are_fingerprinted_by_name(member: Any) -> None:
    reader = CodeReader(OwnModules(("nothing",)))
    assert reader.fingerprint([member]) == reader.fingerprint([member]) != reader.fingerprint([repr])
