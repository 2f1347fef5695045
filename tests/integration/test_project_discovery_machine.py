"""A state machine that writes projects, and compares the handlers that ran with those decorated.

Group names in several spellings, given as literals, constants, enums and texts put together; functions, overloads,
loops, factories, classes, wrappers; files, packages, folders with and without ``__init__.py``, copies. Each project
begins with every kind of handler. After each change a run either calls every decorated handler once for each event,
or it is refused with a message.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from opencqrs_py import Application
from opencqrs_py.assembly import blueprint
from opencqrs_py.errors import OpenCqrsError
from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.model.naming import canonical

EXAMPLES = settings().max_examples // 5
WITNESS = "machine_witness"
EVENT = '{"id": "ID", "source": "s", "type": "machine.happened.v1", "subject": "/x", "data": {}}'

PRELUDE = f"""
import functools
from dataclasses import dataclass
from enum import Enum, StrEnum
from opencqrs_py import Event, event_handling, event_type, on_start
from {WITNESS} import note
"""
LIBRARY = (
    PRELUDE
    + """
def make(group, token):
    @event_handling(group)
    def on(raw: Event) -> None: note(token)

def logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper

def marking(token):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            note(token)
            return function(*args, **kwargs)
        return wrapper
    return decorate
"""
)

# Each piece: its source, with {g} for the group and {t} for a number of its own, and what its handlers note.
PIECES: dict[str, tuple[str, list[str]]] = {
    "function": ("@event_handling({g})\ndef on(raw: Event) -> None: note('{t}')", ["{t}"]),
    "overloads": (
        "@event_handling({g})\ndef on(raw: Event) -> None: note('{t}a')\n"
        "@event_handling({g})\ndef on(raw: Event) -> None: note('{t}b')",
        ["{t}a", "{t}b"],
    ),
    "loop": (
        "for letter in 'abc':\n    @event_handling({g})\n"
        "    def on(raw: Event, letter: str = letter) -> None: note('{t}' + letter)",
        ["{t}a", "{t}b", "{t}c"],
    ),
    "factory": (
        "def make_{t}(letter):\n    @event_handling({g})\n    def on(raw: Event) -> None: note('{t}' + letter)\n"
        "make_{t}('a')\nmake_{t}('b')",
        ["{t}a", "{t}b"],
    ),
    "factory of another module": ("from machine_library import make\nmake({g}, '{t}')\nmake({g}, '{t}')", ["{t}"] * 2),
    "wrapped": (
        "from machine_library import logged\n"
        "@logged\n@event_handling({g})\ndef on_{t}(raw: Event) -> None: note('{t}')",
        ["{t}"],
    ),
    "copied function": (
        "from machine_library import logged\n@event_handling({g})\ndef on_{t}(raw: Event) -> None: note('{t}')\n"
        "copy_{t} = logged(on_{t})",
        ["{t}"],
    ),
    "class": (
        "@event_handling({g})\nclass Handlers:\n    @event_handling\n    def on(self, raw: Event) -> None: note('{t}')",
        ["{t}"],
    ),
    "class without decorator": (
        "class Handlers_{t}:\n    @event_handling({g})\n    def on(self, raw: Event) -> None: note('{t}')",
        ["{t}"],
    ),
    "overloaded methods": (
        "@event_handling({g})\nclass Handlers:\n"
        "    @event_handling\n    def on(self, raw: Event) -> None: note('{t}a')\n"
        "    @event_handling\n    def on(self, raw: Event) -> None: note('{t}b')\n"
        "    @staticmethod\n    @event_handling\n    def other(raw: Event) -> None: note('{t}c')",
        ["{t}a", "{t}b", "{t}c"],
    ),
    "nested class": (
        "class Outer_{t}:\n    class Inner:\n        @event_handling({g})\n"
        "        def on(self, raw: Event) -> None: note('{t}')",
        ["{t}"],
    ),
    "child class": (
        "class Parent_{t}:\n    @event_handling({g})\n    def on(self, raw: Event) -> None: note(type(self).__name__)\n"
        "class Child_{t}(Parent_{t}): ...",
        ["Parent_{t}", "Child_{t}"],
    ),
    "event class": (
        "@event_type('machine.happened.v1')\n@dataclass\nclass Happened_{t}: ...\n"
        "@event_handling({g})\ndef on(event: Happened_{t}) -> None: note('{t}')",
        ["{t}"],
    ),
    "slotted event class": (
        "@dataclass(slots=True)\n@event_type('machine.happened.v1')\nclass Slotted_{t}: ...\n"
        "@event_handling({g})\ndef on(event: Slotted_{t}) -> None: note('{t}' + type(event).__name__)",
        ["{t}Slotted_{t}"],
    ),
    "slotted class": (
        "@dataclass(slots=True)\n@event_handling({g})\nclass Slotted:\n    made: bool = True\n"
        "    @event_handling\n    def on(self, raw: Event) -> None: note('{t}' * self.made)",
        ["{t}"],
    ),
    "classes of one name": (
        "for letter in 'ab':\n    @event_handling({g})\n    class Handlers:\n        letter = letter\n"
        "        @event_handling\n        def on(self, raw: Event) -> None: note('{t}' + self.letter)",
        ["{t}a", "{t}b"],
    ),
    "class of a factory": (
        "def made_{t}(letter):\n    @event_handling({g})\n    class Handlers:\n"
        "        @event_handling\n        def on(self, raw: Event) -> None: note('{t}' + letter)\n"
        "made_{t}('a')\nmade_{t}('b')",
        ["{t}a", "{t}b"],
    ),
    "decorated for other types": (
        "@event_handling({g}, types=['machine.*'])\n@event_handling({g}, types=['machine.happened.*'])\n"
        "def on(raw: Event) -> None: note('{t}')",
        ["{t}"] * 2,
    ),
    "decorated later": (
        "def on_{t}(raw: Event) -> None: note('{t}')\nlater_{t} = event_handling({g})(on_{t})",
        ["{t}"],
    ),
    "second name": (
        "@event_handling({g})\ndef on_{t}(raw: Event) -> None: note('{t}')\nagain_{t} = on = on_{t}",
        ["{t}"],
    ),
    "deleted name": ("@event_handling({g})\ndef gone(raw: Event) -> None: note('{t}')\ndel gone", ["{t}"]),
    "wrapped overloads": (
        "from machine_library import logged\n"
        "@logged\n@event_handling({g})\ndef on(raw: Event) -> None: note('{t}a')\n"
        "@event_handling({g})\n@logged\ndef on(raw: Event) -> None: note('{t}b')",
        ["{t}a", "{t}b"],
    ),
    "changed by its wrapper": (
        "from machine_library import marking\n"
        "@marking('{t}')\n@event_handling({g})\ndef on_{t}(raw: Event) -> None: ...",
        ["{t}"],
    ),
    "wrapped again": (
        "from machine_library import marking\n@event_handling({g})\ndef on_{t}(raw: Event) -> None: ...\n"
        "once_{t} = marking('{t}a')(on_{t})\non_{t} = marking('{t}b')(once_{t})",
        ["{t}a", "{t}b"],
    ),
    "wrapped method": (
        "from machine_library import logged\n@event_handling({g})\nclass Handlers:\n"
        "    @logged\n    @event_handling\n    def on(self, raw: Event) -> None: note('{t}a')\n"
        "    @classmethod\n    @event_handling\n    def other(cls, raw: Event) -> None: note('{t}b')",
        ["{t}a", "{t}b"],
    ),
    "overridden method": (
        "class Base_{t}:\n    @event_handling({g})\n    def on(self, raw: Event) -> None: note('{t}a')\n"
        "class Derived_{t}(Base_{t}):\n    def on(self, raw: Event) -> None: note('{t}b')",
        ["{t}a", "{t}b"],
    ),
    "start": ("@on_start({g})\ndef prepare() -> None: note('{t}')", ["{t}"]),
}
# Refused, whatever else is in the project.
REFUSED = {
    "decorated twice": "@event_handling({g})\n@event_handling({g})\ndef on(raw: Event) -> None: ...",
    "hidden by a wrapper": (
        "@lambda function: lambda raw: function(raw)\n@event_handling({g})\ndef on_{t}(raw: Event) -> None: ..."
    ),
    "class that no name holds": (
        "class Lost:\n    @event_handling({g})\n    def on(self, raw: Event) -> None: ...\ndel Lost"
    ),
    "class without handlers": "@event_handling({g})\nclass Empty: ...",
    "no group": "@event_handling\ndef on(raw: Event) -> None: ...",
    "start of a method": "class Starting_{t}:\n    @on_start({g})\n    def on(self) -> None: ...",
    "start without handlers": "@on_start('machine-unknown')\ndef prepare() -> None: ...",
    "program that ends": "@event_handling({g})\ndef on(raw: Event) -> None: ...\nraise SystemExit(0)",
    "import of nothing": "import machine_nothing\n@event_handling({g})\ndef on(raw: Event) -> None: ...",
}
# How a group is named: what is written before, and the expression; {head} and {tail} together are the name.
GROUPS = {
    "literal": ("", "{n!r}"),
    "constant": ("NAME_{t} = {n!r}\n", "NAME_{t}"),
    "text enum": ("class Names_{t}(StrEnum):\n    IT = {n!r}\n", "Names_{t}.IT"),
    "plain enum": ("class Plain_{t}(Enum):\n    IT = {n!r}\n", "Plain_{t}.IT"),
    "formatted": ("HALF_{t} = {head!r}\n", "f'{{HALF_{t}}}{tail}'"),
    "joined": ("", "''.join([{n!r}])"),
}
SPELLINGS = {
    "books": ["books", "Books", "BOOKS"],
    "book-catalog": ["book-catalog", "bookCatalog", "BOOK_CATALOG", "book_catalog"],
    "v1.2": ["v1.2", "V1.2"],
}
_SPELLED = [name for names in SPELLINGS.values() for name in names]
PLACES = [
    "machine_one.py",
    "machine_two.py",
    "machine_space/three.py",
    "machine_space/deep/four.py",
    "machine_pack/five.py",
    "src/machine_six.py",
    "src/machine_one.py",
    "src/machine_lib/seven.py",
]


COPY = "machine_space/copy.py"


@dataclass(frozen=True)
class Piece:
    """A few lines of a file."""

    kind: str
    group: str
    style: str
    number: int

    def written(self) -> str:
        values = {"t": self.number, "n": self.group, "head": self.group[:1], "tail": self.group[1:]}
        before, expression = (text.format(**values) for text in GROUPS[self.style])
        source = REFUSED.get(self.kind) or PIECES[self.kind][0]
        return before + source.format(g=expression, t=self.number)

    @property
    def notes(self) -> list[str]:
        return [note.format(t=self.number) for note in PIECES[self.kind][1]]


@dataclass(frozen=True)
class File:
    """A file, and whether a line was added to it since it was copied."""

    pieces: tuple[Piece, ...]
    edited: bool = False

    def written(self) -> str:
        return (
            PRELUDE + "\n".join(piece.written() for piece in self.pieces) + ("\nEDITED = 1\n" if self.edited else "\n")
        )

    @property
    def kinds(self) -> set[str]:
        return {piece.kind for piece in self.pieces}

    @property
    def handles(self) -> bool:
        return any(piece.kind != "start" for piece in self.pieces)


class ProjectMachine(RuleBasedStateMachine):
    """A project that grows, is copied and respelled, and is run after each change."""

    right = 0  # runs in which nothing was wrong and every handler was called

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.files: dict[str, File] = {}
        self.partitions: dict[str, int] = {}
        self.progress: dict[str, str] = {}  # spelling by canonical name
        self.done: dict[str, int] = {}  # events by canonical name
        self.numbers = count()
        self.events = 0
        self.noted: Counter[str] = Counter()
        self.opened = ExitStack()
        self.path = sys.path[:]
        witness = ModuleType(WITNESS)
        witness.note = lambda token: self.noted.update([token])  # type: ignore[attr-defined]
        sys.modules[WITNESS] = witness

    @initialize(data=st.data())
    def configure(self, data: st.DataObject) -> None:
        """Configure some groups in any spelling, in a file or as variables."""
        lines = ["opencqrs.event-handling.standard.processing.engine: thread"]
        self.environ: dict[str, str] = {}
        for group, spellings in SPELLINGS.items():
            how = data.draw(st.sampled_from(["", "file", "variable", "spring"]), label=f"settings of {group}")
            spelled = data.draw(st.sampled_from(spellings))
            name = spelled.upper().replace("-", "_").replace(".", "_")
            if how == "file":
                lines.append(f"opencqrs.event-handling.groups.[{spelled}].life-cycle.partitions: 2")
            elif how == "variable":
                self.environ[f"OPENCQRS__EVENT_HANDLING__GROUPS__{name}__LIFE_CYCLE__PARTITIONS"] = "2"
            elif how == "spring":
                self.environ[f"OPENCQRS_EVENTHANDLING_GROUPS_{name}_LIFECYCLE_PARTITIONS"] = "2"
            self.partitions[canonical(group)] = 2 if how else 1
        (self.folder / "application.yaml").write_text("\n".join(lines) + "\n")
        for kind in PIECES:
            self.add(data, data.draw(st.sampled_from(PLACES[:-2]), label=f"place of {kind}"), kind)
        for changed in self._collisions():
            self._refuse(changed)

    @rule(data=st.data(), place=st.sampled_from(PLACES), kind=st.sampled_from(list(PIECES)))
    def add(self, data: st.DataObject, place: str, kind: str) -> None:
        """Add a few lines to a file."""
        group = data.draw(st.sampled_from(list(SPELLINGS)), label="group")
        spelled = self._usual(group) if data.draw(st.integers(0, 19)) else data.draw(st.sampled_from(SPELLINGS[group]))
        if kind == "start" and self.files:
            group = data.draw(st.sampled_from([piece.group for piece in self._pieces()]), label="of")
            spelled = data.draw(st.sampled_from([s for s in _SPELLED if canonical(s) == canonical(group)]))
        style = data.draw(st.sampled_from(list(GROUPS)), label="style")
        piece = Piece(kind, spelled, style, next(self.numbers))
        self.files[place] = File((*(self.files[place].pieces if place in self.files else ()), piece))

    @precondition(lambda self: self.files)
    @rule(data=st.data(), place=st.sampled_from(PLACES), edited=st.booleans(), moved=st.integers(0, 2))
    def copy(self, data: st.DataObject, place: str, edited: bool, moved: int) -> None:  # noqa: FBT001 drawn
        """Copy a file over another place; more often, move it there."""
        of = data.draw(st.sampled_from(sorted(self.files)), label="file")
        file = self.files.pop(of) if moved else self.files[of]
        self.files[place] = File(file.pieces, edited or file.edited)

    @precondition(lambda self: self.files)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        """Remove a file."""
        del self.files[data.draw(st.sampled_from(sorted(self.files)), label="file")]

    @precondition(lambda self: self.files and not self._wrong())
    @rule(data=st.data(), place=st.sampled_from(PLACES[:-2]), kind=st.sampled_from(list(REFUSED)))
    def add_what_is_refused(self, data: st.DataObject, place: str, kind: str) -> None:
        """Add lines that are refused, run, and take them away again."""
        group = data.draw(st.sampled_from([piece.group for piece in self._pieces() if piece.kind != "start"]))
        self._refuse({place: self._with(place, kind, group)})

    def _refuse(self, changed: dict[str, File]) -> None:
        """Run the project with some files changed, which must be refused, and change them back."""
        before = dict(self.files)
        self.files.update(changed)
        self._write()
        with pytest.raises(OpenCqrsError, match="OCQ-"):
            self._ran()
        self._forget()
        self.noted.clear()
        self.files = before

    def _collisions(self) -> Iterator[dict[str, File]]:
        """Yield changes by which two things have one name."""
        used = {piece.group for piece in self._pieces() if piece.kind != "start"}
        place, of_class = next((p, file) for p, file in self.files.items() if "event class" in file.kinds)
        group = min(used)
        other = next(name for name in _SPELLED if canonical(name) == canonical(group) and name != group)
        yield {place: self._with(place, "function", other)}
        yield {COPY: of_class}
        yield {COPY: File(of_class.pieces, edited=True)}
        yield {name: self._with(name, "function", group) for name in ("machine_one.py", "src/machine_one.py")}

    def _with(self, place: str, kind: str, group: str) -> File:
        there = self.files[place].pieces if place in self.files else ()
        return File((*there, Piece(kind, group, "literal", next(self.numbers))))

    @precondition(lambda self: self.files)
    @invariant()
    def run(self) -> None:
        """Run the project for one more event, after each change."""
        self._write()
        wrong = self._wrong()
        self.noted.clear()
        refused = ""
        try:
            application, shown, failed = self._ran()
            if not wrong:
                assert not failed
                self._check(application, shown)
                type(self).right += 1
        except OpenCqrsError as error:
            refused = str(error)
        finally:
            self.opened.close()
            self._forget()  # last: the status may import the project, too
        assert refused.startswith("[OCQ-") if wrong else not refused, f"wrong: {wrong}; refused: {refused}"

    def _ran(self) -> tuple[Application, list[str], bool]:
        """Return the application after a run, the groups that it showed before it, and whether one failed."""
        application = Application.from_project(self.folder, environ=self.environ)
        self.opened.callback(application.stop)
        application.event_store.append([parse_event(EVENT.replace("ID", str(self.events)))])
        self.events += 1
        shown = [status.group for status in application.status()]
        return application, shown, application.run(until_caught_up=True).failed

    def teardown(self) -> None:
        """Clean up."""
        self._forget()
        sys.modules.pop(WITNESS, None)
        shutil.rmtree(self.folder)

    def _usual(self, group: str) -> str:
        """Return the spelling that handlers use already, so that most projects are right."""
        used = [piece.group for piece in self._pieces() if piece.kind != "start"]
        known = [self.progress.get(canonical(group), ""), *used, group]
        return next(name for name in known if canonical(name) == canonical(group))

    def _pieces(self) -> list[Piece]:
        return [piece for place in sorted(self.files) for piece in self.files[place].pieces]

    def _wrong(self) -> str:
        """Return what is wrong with the project, empty if nothing is."""
        handled = {piece.group for piece in self._pieces() if piece.kind != "start"}
        contents = Counter(file.written() for file in self.files.values() if file.handles)
        classes = Counter(piece.number for piece in self._pieces() if piece.kind.endswith("event class"))
        wrong = {
            "no handler": not handled,
            "two spellings": len(handled) != len({canonical(name) for name in handled}),
            "another spelling": any(self.progress.get(canonical(name), name) != name for name in handled),
            "a copied file": any(number > 1 for number in contents.values()),
            "a copied class": any(number > 1 for number in classes.values()),
            "two files that are one module": {"machine_one.py", "src/machine_one.py"} <= set(self.files),
            "a start without handlers": not {canonical(p.group) for p in self._pieces()}
            <= set(map(canonical, handled)),
        }
        return ", ".join(name for name, is_so in wrong.items() if is_so)

    def _check(self, application: Application, shown: list[str]) -> None:
        handled = {piece.group for piece in self._pieces() if piece.kind != "start"}
        assert {group.name for group in application.groups} == set(shown) == handled
        for status in application.status():
            assert (len(status.partitions), status.lag) == (self.partitions[canonical(status.group)], 0), status
        expected: Counter[str] = Counter()
        for piece in self._pieces():
            times = 1 if piece.kind == "start" else self.events - self.done.get(canonical(piece.group), 0)
            expected.update(piece.notes * times)
        wrong = [p for p in self._pieces() if any(self.noted[note] != expected[note] for note in p.notes)]
        assert self.noted == expected, f"called too often or too seldom: {wrong}"
        self.progress.update({canonical(name): name for name in handled})
        self.done.update({canonical(name): self.events for name in handled})

    def _write(self) -> None:
        for place in [*PLACES, COPY, "machine_library.py", "machine_pack/__init__.py"]:
            (self.folder / place).unlink(missing_ok=True)
        for place, file in self.files.items():
            (self.folder / place).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / place).write_text(file.written())
        (self.folder / "machine_library.py").write_text(LIBRARY)
        if "machine_pack/five.py" in self.files:
            (self.folder / "machine_pack" / "__init__.py").write_text("")

    def _forget(self) -> None:
        """Let the next run import everything, as a new process would."""
        for name in [name for name in sys.modules if name.startswith("machine_") and name != WITNESS]:
            del sys.modules[name]
        sys.path[:] = self.path
        blueprint._discoveries.clear()


@pytest.mark.release
def test_every_decorated_handler_runs_or_a_message_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProjectMachine, "right", 0)
    run_state_machine_as_test(
        ProjectMachine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=6,
            phases=[Phase.reuse, Phase.generate],  # a failure names the pieces; to shrink a project takes minutes
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
    assert ProjectMachine.right >= max(1, EXAMPLES // 5)
