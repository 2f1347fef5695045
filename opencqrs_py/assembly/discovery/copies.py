"""Duplicates: files that were copied or imported twice, copied classes and handlers, inherited methods."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType

from opencqrs_py.assembly.conditions import raise_together
from opencqrs_py.assembly.discovery.discovered import DeclaredHandler
from opencqrs_py.assembly.discovery.members import Member, marks_of, methods_of
from opencqrs_py.config import ConfigurationWarning
from opencqrs_py.errors import AssemblyError
from opencqrs_py.model.declarations import Declaration
from opencqrs_py.model.handler import event_type_of
from opencqrs_py.processing.annotations import written_annotations
from opencqrs_py.processing.definitions import place_of


def check_copies(members: Sequence[Member]) -> None:
    """Refuse duplicates with OCQ-519, naming both places.

    That is a file that was imported under two names, and what was most likely copied from one file to another: two
    classes of one name in two files that declare one event type, and two files with handlers and the same content.
    """
    raise_together((*_imported_twice(members), *_copied_classes(members), *_copied_files(members)))


def _imported_twice(members: Sequence[Member]) -> Iterator[AssemblyError]:
    first: dict[Path, str] = {}
    for module in dict.fromkeys(member.module for member in members):
        if (file := _file_of(module)) is None:
            continue
        known = first.setdefault(file.resolve(), module)
        if known != module:
            what = (
                f"one file was imported under two names, {known} and {module}: everything that it declares exists twice"
            )
            yield AssemblyError("OCQ-519", what, str(file), "use one of the names everywhere, in imports and settings")


def _file_of(module: str) -> Path | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file) if file and Path(file).is_file() else None


def _share_file(module: str, other: str) -> bool:
    file, its_file = _file_of(module), _file_of(other)
    return file is not None and its_file is not None and file.samefile(its_file)


def _copied_classes(members: Sequence[Member]) -> Iterator[AssemblyError]:
    first: dict[tuple[str, str], type] = {}
    for cls in (member.value for member in members if isinstance(member.value, type)):
        if (name := event_type_of(cls)) is None:
            continue
        known = first.setdefault((name, cls.__qualname__), cls)
        if known.__module__ != cls.__module__ and not _share_file(known.__module__, cls.__module__):
            what = f"event type '{name}' is declared by a class {cls.__qualname__} in two files"
            fix = "delete the copy and import the class from the other file; or rename one, if both are meant"
            yield AssemblyError("OCQ-519", what, f"{place_of(known)} and {place_of(cls)}", fix)


def _copied_files(members: Sequence[Member]) -> Iterator[AssemblyError]:
    """Yield an error for each module with handlers whose file is the same as another's, but for white space."""
    first: dict[bytes, Path] = {}
    for module in dict.fromkeys(member.module for member in members if _handles(member)):
        if (file := _file_of(module)) is None:
            continue
        known = first.setdefault(b" ".join(file.read_bytes().split()), file)
        if not known.samefile(file):
            what = "two files with handlers have the same content: each event would be handled twice"
            yield AssemblyError("OCQ-519", what, f"{known} and {file}", "delete one of them")


def _handles(member: Member) -> bool:
    if isinstance(member.value, type):
        return not inspect.isabstract(member.value) and bool(methods_of(member.value))
    return bool(marks_of(member.value, Declaration.HANDLER))


def alike_handlers(handlers: Sequence[DeclaredHandler]) -> Iterator[ConfigurationWarning]:
    """Yield a warning for each handler that is most likely a copy of one of that name for the same group.

    That is one with the same code in another file, or one with the same parameters in a file of the same folder whose
    name continues that of the other, such as handlers_old.py. It is not an error, since both may be meant.
    """
    known: dict[tuple[object, ...], dict[tuple[Path, object], str]] = {}
    for handler in handlers:
        function = handler.function
        code = getattr(function, "__code__", None)
        if not isinstance(code, CodeType):
            continue
        asked = str(dict(written_annotations(function)))
        others = known.setdefault((handler.mark.group, handler.mark.types, function.__qualname__, asked), {})
        file, text = Path(code.co_filename), _same_in_every_file(code)
        for (other, its_text), place in others.items():
            if file != other and (text == its_text or _beside(file, other)):
                what = f"group '{handler.mark.group}' has the same handler {function.__qualname__} in two files"
                fix = "if one is a copy, delete it, or name it in discovery.exclude: each event is handled by both"
                yield ConfigurationWarning("OCQ-519", what, f"{place} and {handler.place}", fix)
                break
        others.setdefault((file, text), handler.place)


def _beside(one: Path, other: Path) -> bool:
    """Return whether two files are in one folder, and the name of one continues that of the other: not 1 and 10."""
    shorter, longer = sorted((one.stem, other.stem), key=len)
    more = longer.removeprefix(shorter)
    numbered = shorter[-1:].isdigit() and more[:1].isdigit()
    return one.parent == other.parent and longer.startswith(shorter) and not numbered


def inherited_twice(handlers: Sequence[DeclaredHandler]) -> Iterator[ConfigurationWarning]:
    """Yield a warning for each method that handles events of one group for a class and for its child."""
    serving: dict[tuple[str, object], list[type]] = {}
    warned: set[tuple[str, object]] = set()
    for handler in handlers:
        if (cls := handler.owner) is None or not inspect.isfunction(handler.function):
            continue
        key = handler.mark.group, handler.function
        relatives = [each for each in serving.setdefault(key, []) if issubclass(cls, each) or issubclass(each, cls)]
        serving[key].append(cls)
        if not relatives or key in warned:
            continue
        warned.add(key)
        parent, child = sorted((cls, relatives[0]), key=lambda each: len(each.__mro__))
        name = handler.function.__qualname__
        what = f"group '{handler.mark.group}' calls {name} for {parent.__name__}, and for its child"
        fix = f"each event is handled by both; make {parent.__name__} abstract (abc.abstractmethod) to leave it out"
        yield ConfigurationWarning("OCQ-519", f"{what} {child.__name__}", handler.place, fix)


def _same_in_every_file(code: CodeType) -> tuple[object, ...]:
    """Return what two copies of a function have in common, except their lines."""
    constants = (_same_in_every_file(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts)
    return code.co_code, code.co_names, code.co_varnames, tuple(constants)
