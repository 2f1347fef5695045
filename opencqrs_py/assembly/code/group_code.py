"""The code of a group, as its record keeps it: fingerprints of its handlers, and of what sequences its events."""

from __future__ import annotations

import ast
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FunctionType
from typing import Any, get_origin, get_type_hints

from opencqrs_py.assembly.blueprint import UserModules
from opencqrs_py.assembly.code.fingerprint import CodeReader, OwnModules
from opencqrs_py.assembly.discovery.discovered import Discovered
from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.config import EffectiveGroup
from opencqrs_py.model.declarations import Declaration
from opencqrs_py.model.handler import Upcaster
from opencqrs_py.processing.binding import BoundHandler
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.event_types import EventTypes
from opencqrs_py.processing.exceptions import one_line
from opencqrs_py.processing.group_records import GroupCode
from opencqrs_py.processing.sequencing import Sequencing
from opencqrs_py.processing.signatures import without_none

_log = logging.getLogger("opencqrs.processing")
_HASH = "crc32"  # of a sequence, by which its partition is found


def code_reader_for(modules: UserModules) -> CodeReader:
    """Return what reads the code of a project."""
    return CodeReader(OwnModules(modules.names, modules.roots))


def group_code(
    settings: EffectiveGroup,
    discovered: Discovered,
    handlers: Sequence[BoundHandler],
    dispatcher: Dispatcher,
    event_types: EventTypes,
    sequencing: Sequencing,
    reader: CodeReader,
) -> GroupCode:
    """Return the fingerprints of a group's code; code that cannot be read has none, which is logged."""
    try:
        members = list(_members(settings, discovered, handlers))
        said = [f"handles {' '.join(one.handler.mark.types)} {one.handler.mark.order}" for one in handlers]
        upcasters = _upcasters_of(discovered.upcasters, dispatcher, event_types, reader)
        members += [one.call for one in upcasters]
        return GroupCode(
            reader.fingerprint([*members, *_injected_into(members, discovered.injector)], said),
            _sequencing(sequencing, discovered, reader),
        )
    except Exception as error:  # whatever the project's modules hold: comparing code must not fail
        what = "the code of group '%s' cannot be read (%s): its changes are not detected"
        _log.warning(what, settings.name, one_line(error))
        return GroupCode()


def starts_fingerprint(group: str, starts: Sequence[object], reader: CodeReader) -> str:
    """Return the fingerprint of a group's ``@on_start`` functions; empty, with a warning, if they cannot be read."""
    try:
        return reader.fingerprint(starts)
    except Exception as error:  # as above
        _log.warning("the code of @on_start of group '%s' cannot be read (%s)", group, one_line(error))
        return ""


def resolver_fingerprint(event_types: EventTypes, reader: CodeReader) -> str:
    """Return the fingerprint of the function from a type to its class; empty without one, or if it cannot be read.

    What an object, a bound method or a closure holds may be anything, and may change with each call.
    """
    resolver = event_types.resolver
    if resolver is None:
        return ""
    if not isinstance(resolver, FunctionType) or resolver.__closure__:
        text = (
            "events.type-resolver-ref is not a plain function, so changes of its classes since a "
            "rebuild began are not detected; if they have changed, end it with --abort"
        )
        _log.warning(text)
        return ""
    try:
        return reader.fingerprint([resolver], values=True)
    except Exception as error:  # as above
        _log.warning("the code of events.type-resolver-ref cannot be read (%s)", one_line(error))
        return ""


@dataclass(frozen=True, slots=True)
class UserCode:
    """The code of a group or a job.

    Attributes:
        texts: As texts.
        nodes: As source; ``None`` if some has none.
    """

    texts: Collection[str]
    nodes: Sequence[ast.AST] | None = None


def code_of_users(discovered: Discovered, reader: CodeReader) -> dict[str, UserCode]:
    """Return the code of all groups and jobs, by what messages call them; without what cannot be read."""
    members: dict[str, list[Any]] = {f"job {one.name}": [one.call] for one in discovered.jobs}
    members |= {f"group {name}": [one.call for one in discovered.of_group(name)] for name in discovered.groups}
    found = {}
    for user, calls in members.items():
        with suppress(Exception):  # as above
            whole = [*calls, *_injected_into(calls, discovered.injector)]
            found[user] = UserCode(reader.texts(whole), reader.nodes(whole))
    return found


def _members(settings: EffectiveGroup, discovered: Discovered, handlers: Sequence[BoundHandler]) -> Iterator[Any]:
    """Yield the handlers, the event classes that they take, and what surrounds and filters them."""
    taken: set[type] = set()
    for bound in handlers:
        yield bound.handler.call
        named = (*bound.signature.event_classes, bound.handler.mark.events)
        taken.update(each for each in named if isinstance(each, type))
    yield from taken
    yield from (each for each in discovered.event_classes if taken & {*each.__mro__})
    yield from (one.call for one in discovered.interceptors if one.mark.group in ("", settings.name))
    yield from (one.call for one in discovered.functions_of(Declaration.INBOX_FILTER, settings.name))


def _injected_into(members: Sequence[Any], injector: ContainerInjector) -> Iterator[object]:
    """Yield the code by which containers make what functions ask for, and the constructors of their classes."""
    for member in members:
        owner = getattr(member, "__self__", None)
        if isinstance(member, type):  # an event class, which no container makes
            continue
        for function in [member] if owner is None else [member, type(owner).__init__]:
            for wanted in _annotations_of(function):
                yield from injector.code_behind(wanted)


def _annotations_of(function: Any) -> list[object]:
    """Return the annotations of the parameters of a function; none if they cannot be read, as then nothing is made."""
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError):
        return []
    return [without_none(hint) for name, hint in hints.items() if name != "return"]


def _upcasters_of(
    upcasters: Sequence[Upcaster], dispatcher: Dispatcher, event_types: EventTypes, reader: CodeReader
) -> list[Upcaster]:
    """Return the upcasters that may make what a group handles, or take it away.

    What one makes is seen by the event types that its code names; one that names none makes anything.
    """
    known = {*event_types.names, *(name for one in upcasters for name in one.types)}
    wanted = {name for name in known if dispatcher.handles(name)}
    makes = {one: _named_in(reader.texts([one.call]), known) - {*one.types} for one in upcasters}
    chosen: list[Upcaster] = []
    while found := [
        one for one in upcasters if one not in chosen and (wanted & {*one.types, *makes[one]} or not makes[one])
    ]:
        chosen += found
        wanted.update(name for one in found for name in one.types)
    return chosen


def _named_in(texts: Collection[str], names: Collection[str]) -> set[str]:
    return {name for name in names if any(f"<str {name!r}>" in text for text in texts)}


def _sequencing(sequencing: Sequencing, discovered: Discovered, reader: CodeReader) -> str:
    """Return the fingerprint of a resolver, and of what it uses of event classes: other parts of these may change."""
    resolver = getattr(sequencing, "resolver", None)
    said = {_HASH, "enveloped"} if getattr(sequencing, "opened", None) is not None else {_HASH}
    named = (get_origin(each) or each for each in getattr(sequencing, "event_classes", ()))
    taken = {each for each in named if isinstance(each, type)} - {dict, object}  # which are given no class's instances
    taken.update(each for each in discovered.event_classes if taken & {*each.__mro__})
    if taken:
        said |= reader.used_of(taken, resolver)
    return reader.fingerprint([resolver], said, values=True)
