"""Discovery: from modules to the handlers, event classes and containers in them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import RLock
from types import CodeType, ModuleType
from typing import Any, cast

from dependency_injector.containers import Container, DeclarativeContainer

from opencqrs_py.assembly.conditions import raise_together
from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.assembly.members import (
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
from opencqrs_py.config import ConfigurationWarning
from opencqrs_py.config.problems import alike_groups
from opencqrs_py.errors import AssemblyError, ExplainedError, HandlerSignatureError
from opencqrs_py.model.checkpoint import Participant
from opencqrs_py.model.handler import (
    AROUND_ATTRIBUTE,
    BATCH_KEY_ATTRIBUTE,
    HANDLER_ATTRIBUTE,
    INBOX_FILTER_ATTRIBUTE,
    ON_REPLAY_FINISHED_ATTRIBUTE,
    ON_RESET_ATTRIBUTE,
    ON_START_ATTRIBUTE,
    UPCASTER_ATTRIBUTE,
    Handler,
    HandlerMark,
    Interceptor,
    Upcaster,
    event_type_of,
)
from opencqrs_py.model.job import JOB_ATTRIBUTE, Job, JobMark
from opencqrs_py.model.naming import canonical, listed, nearest
from opencqrs_py.processing.annotations import written_annotations
from opencqrs_py.processing.definitions import interceptors_on, order_of, place_of, upcaster_on, without_group
from opencqrs_py.processing.participants import checkpointed_groups, participant_of

_FUNCTIONS_ONLY = {
    UPCASTER_ATTRIBUTE: "@upcaster",
    AROUND_ATTRIBUTE: "@around_event or @around_handler",
    ON_START_ATTRIBUTE: "@on_start",
    ON_RESET_ATTRIBUTE: "@on_reset",
    ON_REPLAY_FINISHED_ATTRIBUTE: "@on_replay_finished",
    BATCH_KEY_ATTRIBUTE: "@batch_key",
    INBOX_FILTER_ATTRIBUTE: "@inbox_filter",
}

_NOUNS = {
    HANDLER_ATTRIBUTE: "handler",
    JOB_ATTRIBUTE: "job",
    UPCASTER_ATTRIBUTE: "upcaster",
    AROUND_ATTRIBUTE: "interceptor",
    ON_START_ATTRIBUTE: "@on_start function",
    ON_RESET_ATTRIBUTE: "@on_reset function",
    ON_REPLAY_FINISHED_ATTRIBUTE: "@on_replay_finished function",
    BATCH_KEY_ATTRIBUTE: "@batch_key function",
    INBOX_FILTER_ATTRIBUTE: "@inbox_filter function",
}

_OF_GROUPS = {
    "starts": "@on_start",
    "resets": "@on_reset",
    "replay_ends": "@on_replay_finished",
    "batch_keys": "@batch_key",
    "inbox_filters": "@inbox_filter",
}


@dataclass(frozen=True, slots=True)
class GroupFunction:
    """A function that is marked for a whole group, such as with ``@on_start`` or ``@batch_key``."""

    group: str
    call: Any
    place: str


@dataclass(frozen=True, slots=True)
class DeclaredHandler:
    """A handler as its module declares it: an instance of its class need not be there.

    Attributes:
        mark: Group, types and order.
        place: ``file:line (name)`` for messages.
        reference: Identifies it in every process that imports the same modules.
        function: The function; of a method as its class holds it.
        made: Returns the handler; of a method of the instance of its class, which the first call makes.
        owner: The class whose method it is; ``None`` for a function.
    """

    mark: HandlerMark
    place: str
    reference: str
    function: Any
    made: Callable[[], Handler]
    owner: type | None = None

    @classmethod
    def of(cls, handler: Handler) -> DeclaredHandler:
        """Return the declaration of a handler that is there already."""
        return cls(handler.mark, handler.place, handler.reference, handler.call, lambda: handler)


@dataclass(frozen=True)
class Discovered:
    """What was found in the user's modules.

    Attributes:
        declared: All handlers in the order in which they run within their group.
        starts: All ``@on_start`` functions.
        event_classes: All classes with an event type.
        injector: Provides what the user's containers hold.
        upcasters: All upcasters.
        interceptors: All interceptors, outermost first.
        batch_keys: All ``@batch_key`` functions.
        inbox_filters: All ``@inbox_filter`` functions, in the order of definition.
        resets: All ``@on_reset`` functions, likewise.
        replay_ends: All ``@on_replay_finished`` functions, likewise.
        warnings: What works, but is probably not meant.
        places: The processing groups as handlers spell them, in the order of their first handler in the source, each
            with the place of that one.
        jobs: All jobs, in the order of definition.
    """

    declared: tuple[DeclaredHandler, ...]
    starts: tuple[GroupFunction, ...]
    event_classes: tuple[type, ...]
    injector: ContainerInjector
    upcasters: tuple[Upcaster, ...] = ()
    interceptors: tuple[Interceptor, ...] = ()
    batch_keys: tuple[GroupFunction, ...] = ()
    inbox_filters: tuple[GroupFunction, ...] = ()
    resets: tuple[GroupFunction, ...] = ()
    replay_ends: tuple[GroupFunction, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[ConfigurationWarning, ...] = ()
    jobs: tuple[Job, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        """The processing groups as handlers spell them, in the order of their first handler in the source."""
        return tuple(self.places)

    @property
    def handlers(self) -> tuple[Handler, ...]:
        """All handlers in the order in which they run within their group; makes their classes' instances.

        Raises:
            AssemblyError: OCQ-503 or OCQ-504, if an argument of a constructor cannot be provided.
            HandlerSignatureError: OCQ-640, if a class cannot be the participant that it is to be.
            ProjectCodeError: OCQ-217 or OCQ-226, if a provider or a constructor raises.
        """
        return tuple(each.made() for each in self.declared)

    def of_group(self, group: str) -> tuple[Handler, ...]:
        """Return the handlers of a group, in the order in which they run; raises as ``handlers`` does."""
        return tuple(each.made() for each in self.declared_of(group))

    def declared_of(self, group: str) -> tuple[DeclaredHandler, ...]:
        """Return how the handlers of a group are declared, in the order in which they run. Makes no instance."""
        return tuple(each for each in self.declared if each.mark.group == group)

    def fingerprint(self, group: str) -> tuple[str, ...]:
        """Return what every process that has found the same handlers of a group has found."""
        return tuple(f"{h.reference} {','.join(h.mark.types)}".rstrip() for h in self.declared_of(group))


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
        AssemblyError: OCQ-116, if handlers spell a group in two ways; OCQ-517, if ``@on_start`` or an interceptor
            names a group without handlers; OCQ-519, if a file is there twice.
    """
    members = [member for module in modules for member in members_of(module)]
    _check_copies(members)
    found = discover_members(members, only, provided)
    raise_together(_spelled_in_two_ways(found))
    warnings = (
        *_imported_from_others(modules, members),
        *_alike_handlers(found.declared),
        *_inherited_twice(found.declared),
    )
    return replace(_with_groups_as_spelled(found, complete=only is None), warnings=warnings)


def discover_members(
    members: Sequence[Member],
    only: frozenset[str] | None = None,
    provided: Mapping[type, object] | None = None,
) -> Discovered:
    """Find what decorators have marked, as ``discover`` does, without looking at how it fits together."""
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
        starts=_of_groups(values, ON_START_ATTRIBUTE),
        event_classes=tuple(cls for cls in classes if event_type_of(cls)),
        injector=injector,
        upcasters=tuple(filter(None, map(upcaster_on, values))),
        interceptors=tuple(sorted((one for value in values for one in interceptors_on(value)), key=order_of)),
        batch_keys=_of_groups(values, BATCH_KEY_ATTRIBUTE),
        inbox_filters=_of_groups(values, INBOX_FILTER_ATTRIBUTE),
        resets=_of_groups(values, ON_RESET_ATTRIBUTE),
        replay_ends=_of_groups(values, ON_REPLAY_FINISHED_ATTRIBUTE),
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
        for mark in _new_marks(marks_of(cls, JOB_ATTRIBUTE), counted):
            yield Job(mark, cls, place_of(cls), member.reference)
        return
    if marks_of(cls, JOB_ATTRIBUTE):
        fix = 'put @job("…") above the method that does the work'
        raise HandlerSignatureError("OCQ-207", "@job marks a class", place_of(cls), fix)
    methods = methods_of(cls, JOB_ATTRIBUTE)
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
            marks = [mark for mark in marks_of(member.value, HANDLER_ATTRIBUTE) if id(mark) not in counted]
            counted.update(map(id, marks))
            yield from _of_function(member, marks)


def _of_function(member: Member, marks: Sequence[HandlerMark]) -> Iterator[DeclaredHandler]:
    place = place_of(member.value)
    _check_twice(marks, place)
    for mark in marks:
        if not mark.group:
            raise without_group(object, place, 'write @event_handling("catalog")')
        yield DeclaredHandler.of(Handler(mark, member.value, place, member.reference))


def _methods(member: Member, instances: _Instances, counted: set[int]) -> Iterator[DeclaredHandler]:
    cls = member.value
    own_marks = marks_of(cls, HANDLER_ATTRIBUTE)
    of_checkpoints = checkpointed_groups(cls)
    _check_twice(own_marks, place_of(cls))
    methods = [method for method in methods_of(cls) if not counted & {id(mark) for mark in method.marks}]
    if not methods:
        if own_marks:
            fix = "put @event_handling above each method that handles events"
            raise HandlerSignatureError("OCQ-207", f"class {cls.__name__} has no handler method", place_of(cls), fix)
        if of_checkpoints:
            fix = "put @event_handling above each method that handles events"
            what = f"class {cls.__name__} is marked by @checkpointing and handles no event"
            raise HandlerSignatureError("OCQ-640", what, place_of(cls), fix)
        return
    if inspect.isabstract(cls):
        return
    groups = [mark.group for mark in own_marks] or of_checkpoints or [""]
    for number, method in enumerate(methods):
        _check_twice(method.marks, method.place)
        for mark in method.marks:
            for group in [mark.group] if mark.group else groups:
                if not group:
                    fix = 'write @event_handling("catalog") above the class or the method'
                    raise without_group(cls, method.place, fix)
                reference = f"{member.reference}.{method.name}#{number}"
                known = replace(mark, group=group, replay=_replay_of(mark, group, own_marks))
                made = partial(instances.handler, known, method, cls, reference)
                yield DeclaredHandler(known, method.place, reference, inner_function(method.held), made, cls)


def _replay_of(mark: HandlerMark, group: str, of_class: Sequence[HandlerMark]) -> bool | None:
    """Return whether a method is for replays, as it says itself, or else its class for that group."""
    if mark.replay is not None or mark.group:
        return mark.replay
    return next((one.replay for one in of_class if one.group == group), None)


def _check_twice(marks: Sequence[HandlerMark], place: str) -> None:
    """Refuse two equal decorations: each event would be handled twice."""
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for mark in marks:
        if (said := (canonical(mark.group), mark.types)) in seen:
            group = f" for group '{mark.group}'" if mark.group else ""
            what = f"the handler is decorated twice{group}: it would handle each event twice"
            raise HandlerSignatureError("OCQ-209", what, place, "remove one @event_handling")
        seen.add(said)


def _check_methods(cls: type) -> None:
    """Refuse on methods, and on a class, what would silently do nothing there."""
    for marked in (cls, *decorated_in(cls)):
        for attribute, decorator in _FUNCTIONS_ONLY.items():
            if marks_of(marked, attribute):
                what = f"{decorator} marks a {'class' if isinstance(marked, type) else 'method'}"
                fix = f"put {decorator} above a function of the module; it gets what containers provide by annotation"
                raise HandlerSignatureError("OCQ-207", what, place_of(marked), fix)


def _of_groups(members: Iterable[Any], attribute: str) -> tuple[GroupFunction, ...]:
    functions = (member for member in members if not isinstance(member, type))
    marked = ((function, mark) for function in functions for mark in marks_of(function, attribute))
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
            noun = next(noun for attribute, noun in _NOUNS.items() if marks_of(value, attribute))
            what = f"module {module.__name__} imports {noun} {name} of a module that is not looked at: it never runs"
            fix = f"name module {home} in discovery.modules, with the others, or do not import it"
            yield ConfigurationWarning("OCQ-529", what, place_of(value), fix)


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
    of_groups: dict[str, Any] = {name: named(getattr(found, name)) for name in _OF_GROUPS}
    return replace(found, interceptors=tuple(around), **of_groups)


def _without_handlers(found: Discovered, spelled: Mapping[str, str]) -> Iterator[ExplainedError]:
    kinds = {decorator: getattr(found, name) for name, decorator in _OF_GROUPS.items()}
    started = [(decorator, one.group, one.place) for decorator, functions in kinds.items() for one in functions]
    around = [(f"@around_{o.mark.surrounded.value}", o.mark.group, o.place) for o in found.interceptors if o.mark.group]
    for decorator, group, place in (*started, *around):
        if canonical(group) not in spelled:
            close = nearest(group, spelled.values())
            fix = f"did you mean {close}?" if close else f"groups with handlers: {listed(spelled.values()) or 'none'}"
            yield AssemblyError("OCQ-517", f"{decorator} names group '{group}', which has no handler", place, fix)


def _check_copies(members: Sequence[Member]) -> None:
    """Refuse with OCQ-519, naming both places, what is there twice.

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
            what = f"one file was imported under two names, {known} and {module}: all that it declares is there twice"
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
    return bool(marks_of(member.value, HANDLER_ATTRIBUTE))


def _alike_handlers(handlers: Sequence[DeclaredHandler]) -> Iterator[ConfigurationWarning]:
    """Yield a warning for each handler that is most likely a copy of one of that name for the same group.

    That is one with the same code in another file, or one with the same parameters in a file beside it whose name
    continues that of the other, such as handlers_old.py. It is not an error, since both may be meant.
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


def _inherited_twice(handlers: Sequence[DeclaredHandler]) -> Iterator[ConfigurationWarning]:
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
