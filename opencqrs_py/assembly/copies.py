"""Copies: a file that lies in a project twice would handle each event twice."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

from opencqrs_py.assembly.conditions import raise_together
from opencqrs_py.assembly.handler_classes import methods_of
from opencqrs_py.assembly.members import Member, marks_of
from opencqrs_py.config import ConfigurationWarning
from opencqrs_py.errors import AssemblyError
from opencqrs_py.model.handler import HANDLER_ATTRIBUTE, Handler, event_type_of
from opencqrs_py.processing.definitions import place_of

__all__ = ["alike_handlers", "check_copies", "inherited_twice"]


def check_copies(members: Sequence[Member]) -> None:
    """Refuse what was most likely copied from one file to another.

    Raises:
        AssemblyError: OCQ-519, naming both places: for two classes of one name in two files that declare one event
            type, and for two files with handlers and the same content.
        AssemblyErrors: All of these, if there are several.
    """
    raise_together((*_copied_classes(members), *_copied_files(members)))


def _copied_classes(members: Sequence[Member]) -> Iterator[AssemblyError]:
    first: dict[tuple[str, str], type] = {}
    for cls in (member.value for member in members if isinstance(member.value, type)):
        if (name := event_type_of(cls)) is None:
            continue
        known = first.setdefault((name, cls.__qualname__), cls)
        if known.__module__ != cls.__module__:
            what = f"event type '{name}' is declared by a class {cls.__qualname__} in two files"
            fix = "delete the copy and import the class from the other file; or rename one, if both are meant"
            yield AssemblyError("OCQ-519", what, f"{place_of(known)} and {place_of(cls)}", fix)


def _copied_files(members: Sequence[Member]) -> Iterator[AssemblyError]:
    """Yield an error for each module with handlers whose file is the same as another's, but for white space."""
    first: dict[bytes, str] = {}
    for module in dict.fromkeys(member.module for member in members if _handles(member)):
        file = getattr(sys.modules.get(module), "__file__", None)
        if not file or not Path(file).is_file():
            continue
        known = first.setdefault(b" ".join(Path(file).read_bytes().split()), file)
        if known != file:
            what = "two files with handlers have the same content: each event would be handled twice"
            yield AssemblyError("OCQ-519", what, f"{known} and {file}", "delete one of them")


def _handles(member: Member) -> bool:
    if isinstance(member.value, type):
        return not inspect.isabstract(member.value) and bool(methods_of(member.value))
    return bool(marks_of(member.value, HANDLER_ATTRIBUTE))


def alike_handlers(handlers: Sequence[Handler]) -> Iterator[ConfigurationWarning]:
    """Yield a warning for each handler that does the same for the same group as one of that name in another file.

    It is no error, since the two may call different things that have the same names.
    """
    first: dict[tuple[object, ...], tuple[str, str]] = {}
    for handler in handlers:
        function = getattr(handler.call, "__func__", handler.call)
        code = getattr(function, "__code__", None)
        if not isinstance(code, CodeType):
            continue
        key = (handler.mark.group, handler.mark.types, function.__qualname__, _same_in_every_file(code))
        file, place = first.setdefault(key, (code.co_filename, handler.place))
        if file != code.co_filename:
            what = f"group '{handler.mark.group}' has the same handler {function.__qualname__} in two files"
            fix = "if one is a copy, delete it: each event is handled by both"
            yield ConfigurationWarning("OCQ-519", what, f"{place} and {handler.place}", fix)


def inherited_twice(handlers: Sequence[Handler]) -> Iterator[ConfigurationWarning]:
    """Yield a warning for each method that handles events of one group for a class and for its child."""
    serving: dict[tuple[str, object], list[type]] = {}
    warned: set[tuple[str, object]] = set()
    for handler in (handler for handler in handlers if inspect.ismethod(handler.call)):
        method: Any = handler.call
        cls, key = type(method.__self__), (handler.mark.group, method.__func__)
        relatives = [each for each in serving.setdefault(key, []) if issubclass(cls, each) or issubclass(each, cls)]
        serving[key].append(cls)
        if not relatives or key in warned:
            continue
        warned.add(key)
        parent, child = sorted((cls, relatives[0]), key=lambda each: len(each.__mro__))
        what = f"group '{handler.mark.group}' calls {method.__qualname__} for {parent.__name__}, and for its child"
        fix = f"each event is handled by both; make {parent.__name__} abstract (abc.abstractmethod) to leave it out"
        yield ConfigurationWarning("OCQ-519", f"{what} {child.__name__}", handler.place, fix)


def _same_in_every_file(code: CodeType) -> tuple[object, ...]:
    """Return what two copies of a function have in common, whatever line they stand in."""
    constants = (_same_in_every_file(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts)
    return code.co_code, code.co_names, code.co_varnames, tuple(constants)
