"""Discovery: from modules to the handlers, event classes and containers in them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import RLock
from types import ModuleType
from typing import Any, cast

from dependency_injector.containers import Container, DeclarativeContainer

from opencqrs_py.assembly.conditions import raise_together
from opencqrs_py.assembly.discovery.copies import alike_handlers, check_copies, inherited_twice
from opencqrs_py.assembly.discovery.discovered import DeclaredHandler, Discovered, GroupFunction
from opencqrs_py.assembly.discovery.members import (
    EVERYTHING,
    Member,
    Method,
    decorated_in,
    home_of,
    inner_function,
    mark_ids,
    marks_of,
    members_of,
    methods_of,
)
from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.config import ConfigurationWarning
from opencqrs_py.config.problems import alike_groups
from opencqrs_py.errors import AssemblyError, ExplainedError, HandlerSignatureError
from opencqrs_py.model.checkpoint import Participant
from opencqrs_py.model.declarations import Declaration
from opencqrs_py.model.handler import Handler, HandlerMark, event_type_of
from opencqrs_py.model.job import Job, JobMark
from opencqrs_py.model.naming import canonical, listed, nearest
from opencqrs_py.processing.checkpoints.participants import checkpointed_groups, participant_of
from opencqrs_py.processing.definitions import (
    check_groups,
    check_twice,
    completed_marks,
    interceptors_on,
    order_of,
    place_of,
    upcaster_on,
    without_group,
)


def discover(
    modules: Sequence[ModuleType],
    only: frozenset[str] | None = None,
    provided: Mapping[type, object] | None = None,
) -> Discovered:
    """Find what decorators have marked.

    Args:
        modules: Where to look; what they import from elsewhere does not count.
        only: References of the handlers to take, ``module:*`` for all of a module; ``None`` for all.
        provided: Objects that replace what containers provide, by requested type.

    Raises:
        HandlerSignatureError: OCQ-207, if a marked class or method cannot serve; OCQ-209, if something is decorated in
            a way that would leave it out, or call it twice.
        AssemblyError: OCQ-116, if handlers spell a group in two ways; OCQ-517, if ``@on_start`` or an interceptor names
            a group without handlers; OCQ-519, if a file exists twice.
    """
    members = [member for module in modules for member in members_of(module)]
    check_copies(members)
    found = discover_members(members, only, provided)
    check_spellings(found)
    warnings = (
        *_imported_from_others(modules, members),
        *alike_handlers(found.declared),
        *inherited_twice(found.declared),
    )
    return replace(_with_groups_as_spelled(found, complete=only is None), warnings=warnings)


def discover_members(
    members: Sequence[Member],
    only: frozenset[str] | None = None,
    provided: Mapping[type, object] | None = None,
) -> Discovered:
    """Find what decorators have marked, as ``discover`` does, without checking whether it fits together."""
    values = [member.value for member in members]
    classes = [value for value in values if isinstance(value, type)]
    for cls in classes:
        _check_methods(cls)
    containers = [cls for cls in classes if issubclass(cls, DeclarativeContainer)]
    injector = ContainerInjector([cast("Container", container()) for container in containers], provided)
    chosen = [m for m in members if only is None or {m.reference, f"{m.module}:{EVERYTHING}"} & only]
    instances = _Instances(injector)
    declared = list(_declared(chosen, instances))
    places: dict[str, str] = {}
    for handler in declared:
        places.setdefault(handler.mark.group, handler.place)
    return Discovered(
        declared=tuple(sorted(declared, key=order_of)),
        event_classes=tuple(cls for cls in classes if event_type_of(cls)),
        injector=injector,
        upcasters=tuple(filter(None, map(upcaster_on, values))),
        interceptors=tuple(sorted((one for value in values for one in interceptors_on(value)), key=order_of)),
        functions={each: _of_groups(values, each) for each in Declaration if each.value.of_group},
        places=places,
        jobs=tuple(_jobs(chosen, instances)),
    )


class _Instances:
    """One instance of each class that has handlers or jobs."""

    def __init__(self, injector: ContainerInjector) -> None:
        self._injector = injector
        self._made: dict[type, object] = {}
        self._participants: dict[tuple[type, str], Participant | None] = {}
        self._making = RLock()  # groups that share a class may be assembled on several threads

    def of(self, cls: type) -> object:
        """Return the instance of a class; made at the first call."""
        with self._making:
            if cls not in self._made:
                self._made[cls] = self._injector.create(cls, place_of(cls))
            return self._made[cls]

    def participant(self, cls: type, group: str) -> Participant | None:
        """Return the instance of a class as participant of a group; ``None`` if the class is not one."""
        with self._making:
            if (cls, group) not in self._participants:
                self._participants[cls, group] = participant_of(self.of(cls), group, place_of(cls))
            return self._participants[cls, group]

    def handler(self, mark: HandlerMark, method: Method, cls: type, reference: str) -> Handler:
        """Return the handler that a method of the instance of a class is."""
        instance, participant = self.of(cls), self.participant(cls, mark.group)
        return Handler(mark, method.of(instance), method.place, reference, participant)


def _jobs(members: Iterable[Member], instances: _Instances) -> Iterator[Job]:
    """Yield the jobs; raise OCQ-661 if two have a name that settings cannot tell apart."""
    counted: set[int] = set()  # a copy of a function has the same marks, and counts once with it
    named: dict[str, Job] = {}
    for member in members:
        for job in _jobs_of(member, instances, counted):
            known = named.setdefault(canonical(job.name), job)
            if known is not job:
                what = f"two functions are job '{known.name}'"
                what = what if known.name == job.name else f"'{known.name}' and '{job.name}' are one name in settings"
                raise AssemblyError("OCQ-661", what, f"{known.place} and {job.place}", "give one of them another name")
            yield job


def _jobs_of(member: Member, instances: _Instances, counted: set[int]) -> Iterator[Job]:
    cls = member.value
    if not isinstance(cls, type):
        for mark in _new_marks(marks_of(cls, Declaration.JOB), counted):
            yield Job(mark, cls, place_of(cls), member.reference)
        return
    if marks_of(cls, Declaration.JOB):
        fix = 'put @job("…") above the method that does the work'
        raise HandlerSignatureError("OCQ-207", "@job marks a class", place_of(cls), fix)
    methods = methods_of(cls, Declaration.JOB)
    if inspect.isabstract(cls):
        return
    for number, method in enumerate(methods):
        for mark in _new_marks(method.marks, counted):
            reference = f"{member.reference}.{method.name}#{number}"
            yield Job(mark, method.of(instances.of(cls)), method.place, reference)


def _new_marks(marks: Iterable[JobMark], counted: set[int]) -> list[JobMark]:
    found = [mark for mark in marks if id(mark) not in counted]
    counted.update(map(id, found))
    return found


def _declared(members: Iterable[Member], instances: _Instances) -> Iterator[DeclaredHandler]:
    counted: set[int] = set()  # a copy of a function has the same marks, and counts once with it
    for member in members:
        if isinstance(member.value, type):
            yield from _methods(member, instances, counted)
        elif callable(member.value):
            marks = [mark for mark in marks_of(member.value, Declaration.HANDLER) if id(mark) not in counted]
            counted.update(map(id, marks))
            yield from _of_function(member, marks)


def _of_function(member: Member, marks: Sequence[HandlerMark]) -> Iterator[DeclaredHandler]:
    place = place_of(member.value)
    check_twice(marks, place)
    for mark in marks:
        if not mark.group:
            raise without_group(object, place, 'write @event_handling("catalog")')
        yield DeclaredHandler.of(Handler(mark, member.value, place, member.reference))


def _methods(member: Member, instances: _Instances, counted: set[int]) -> Iterator[DeclaredHandler]:
    cls = member.value
    own_marks = marks_of(cls, Declaration.HANDLER)
    of_checkpoints = checkpointed_groups(cls)
    check_groups(own_marks, place_of(cls))
    methods = [method for method in methods_of(cls) if not counted & {id(mark) for mark in method.marks}]
    if not methods:
        if own_marks:
            fix = "put @event_handling above each method that handles events"
            raise HandlerSignatureError("OCQ-207", f"class {cls.__name__} has no handler method", place_of(cls), fix)
        if of_checkpoints:
            fix = "put @event_handling above each method that handles events"
            what = f"class {cls.__name__} is marked with @checkpointing and handles no event"
            raise HandlerSignatureError("OCQ-640", what, place_of(cls), fix)
        return
    if inspect.isabstract(cls):
        return
    groups = [mark.group for mark in own_marks if mark.group] or of_checkpoints
    for number, method in enumerate(methods):
        if not groups and not all(mark.group for mark in method.marks):
            fix = 'write @event_handling("catalog") above the class or the method'
            raise without_group(cls, method.place, fix)
        reference = f"{member.reference}.{method.name}#{number}"
        for mark in completed_marks(method.marks, groups, cls, method.place):
            made = partial(instances.handler, mark, method, cls, reference)
            yield DeclaredHandler(mark, method.place, reference, inner_function(method.held), made, cls)


def _check_methods(cls: type) -> None:
    """Refuse decorators that would silently do nothing on methods, or on a class."""
    for marked in (cls, *decorated_in(cls)):
        for declaration in Declaration:
            decorator = declaration.value
            if decorator.functions_only and marks_of(marked, declaration):
                what = f"{decorator} marks a {'class' if isinstance(marked, type) else 'method'}"
                fix = f"put {decorator} above a function of the module; it gets what containers provide by annotation"
                raise HandlerSignatureError("OCQ-207", what, place_of(marked), fix)


def _of_groups(members: Iterable[Any], declaration: Declaration) -> tuple[GroupFunction, ...]:
    functions = (member for member in members if not isinstance(member, type))
    marked = ((function, mark) for function in functions for mark in marks_of(function, declaration))
    return tuple(GroupFunction(mark.group, function, place_of(function)) for function, mark in marked)


def _imported_from_others(modules: Sequence[ModuleType], members: Sequence[Member]) -> Iterator[ConfigurationWarning]:
    """Yield a warning for each handler, job or the like that a module imports from one that is not searched."""
    counted = {each for member in members for each in mark_ids(member.value)}
    names = {module.__name__ for module in modules}
    for module in modules:
        for name, value in vars(module).items():
            ids = mark_ids(value) - counted
            counted |= ids
            if not ids or (home := home_of(value)) in names:
                continue
            noun = next(each.value.noun for each in Declaration if each.value.noun and marks_of(value, each))
            what = f"module {module.__name__} imports {noun} {name} from a module that discovery does not scan: it "
            what += "never runs"
            fix = f"name module {home} in discovery.modules too, or do not import it"
            yield ConfigurationWarning("OCQ-529", what, place_of(value), fix)


def check_spellings(found: Discovered) -> None:
    """Refuse handlers that spell a group in two ways.

    Raises:
        AssemblyError: OCQ-116, naming both places.
    """
    raise_together(_spelled_in_two_ways(found))


def _spelled_in_two_ways(found: Discovered) -> Iterator[ExplainedError]:
    """Yield an error for each group that handlers spell in two ways."""
    first: dict[str, str] = {}
    for group, place in found.places.items():
        known = first.setdefault(canonical(group), group)
        if known != group:
            yield AssemblyError("OCQ-116", *alike_groups(known, group, f"{found.places[known]} and {place}"))


def _with_groups_as_spelled(found: Discovered, *, complete: bool) -> Discovered:
    """Return the same with the groups of ``@on_start`` functions and interceptors in the handlers' spelling.

    If what was found is complete, a group without any handler is a mistake.
    """
    spelled = {canonical(group): group for group in found.groups}
    if complete:
        raise_together(_without_handlers(found, spelled))

    def named(functions: Iterable[GroupFunction]) -> tuple[GroupFunction, ...]:
        return tuple(replace(one, group=spelled.get(canonical(one.group), one.group)) for one in functions)

    around = (
        replace(one, mark=replace(one.mark, group=spelled.get(canonical(one.mark.group), one.mark.group)))
        for one in found.interceptors
    )
    of_groups = {declaration: named(functions) for declaration, functions in found.functions.items()}
    return replace(found, interceptors=tuple(around), functions=of_groups)


def _without_handlers(found: Discovered, spelled: Mapping[str, str]) -> Iterator[ExplainedError]:
    of_groups = [(str(kind.value), one.group, one.place) for kind, each in found.functions.items() for one in each]
    around = [(f"@around_{o.mark.surrounded.value}", o.mark.group, o.place) for o in found.interceptors if o.mark.group]
    for decorator, group, place in (*of_groups, *around):
        if canonical(group) not in spelled:
            close = nearest(group, spelled.values())
            fix = f"did you mean {close}?" if close else f"groups with handlers: {listed(spelled.values()) or 'none'}"
            yield AssemblyError("OCQ-517", f"{decorator} names group '{group}', which has no handler", place, fix)
