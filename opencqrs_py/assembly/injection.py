"""Injection: what the user's own containers provide to handlers."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import FunctionType, MethodType
from typing import Any, TypeGuard, get_args, get_origin, get_type_hints

from dependency_injector import providers, resources
from dependency_injector.containers import Container, DeclarativeContainer
from typing_extensions import is_protocol, is_typeddict, override

from opencqrs_py.errors import AssemblyError, HandlerSignatureError, ProjectCodeError
from opencqrs_py.model.naming import listed, nearest
from opencqrs_py.processing.annotations import why_not_called_with, written_annotations
from opencqrs_py.processing.exceptions import one_line, one_line_with_place, raise_interrupt
from opencqrs_py.processing.packages import missing_methods
from opencqrs_py.processing.ports import Injector
from opencqrs_py.processing.signatures import without_none
from opencqrs_py.processing.wiring import MARKER_FIX, marker_in, wired_parameters

_log = logging.getLogger("opencqrs.container")
_OF_GENERATORS = (Generator, Iterable, Iterator)
_CALLS_CODE = (providers.Factory, providers.Callable, providers.BaseSingleton, providers.Resource)
_CODE = (type, FunctionType, MethodType, partial)
_GENERATOR_TEXT = re.compile(r"(?:\w+\.)*(?:Generator|Iterable|Iterator)\[([\w.]+).*\]", re.DOTALL)


@dataclass(frozen=True)
class _Registered:
    """A provider of a container."""

    name: str
    container: str
    provider: providers.Provider[Any]

    @property
    def full_name(self) -> str:
        """The name with that of the container before it, for names that several containers have."""
        return f"{self.container}.{self.name}"

    def make(self, place: str = "") -> Any:
        """Make what it makes; raise OCQ-217, naming it, if it raises, or if it returns what has to be awaited."""
        try:
            part = self.provider()
        except BaseException as error:
            raise_interrupt(error)
            what = f"provider '{self.name}' raised {one_line_with_place(error)}"
            fix = "check that what it needs is reachable; if it may be unavailable for long, let the handler open it"
            raise ProjectCodeError("OCQ-217", what, place, fix) from error
        if inspect.iscoroutine(part):
            part.close()
            fix = "use a plain function, and open what has to be awaited in an async handler"
            raise ProjectCodeError("OCQ-217", f"provider '{self.name}' returned a coroutine", place, fix)
        return part

    @cached_property
    def made(self) -> type | str | None:
        """What it makes; a text when the annotation can only be read by type checkers, ``None`` when unknown."""
        return _made_by(self.provider)

    def makes(self, wanted: type) -> bool:
        """Return whether it makes a ``wanted``; of a protocol, whether it makes something that has its methods."""
        match self.made:
            case type() as made:
                return not missing_methods(made, wanted) if is_protocol(wanted) else issubclass(made, wanted)
            case made:
                return made == wanted.__name__

    def declares(self, wanted: type) -> bool:
        """Return whether its objects derive from ``wanted``, or are declared to."""
        made = self.made
        return wanted in made.__mro__ if isinstance(made, type) else made == wanted.__name__


class ContainerInjector(Injector):
    """Finds providers by the type of what they make, and by name.

    Args:
        containers: Instances of the user's containers. One whose class has a child among them, or is nested in one of
            them, gives way to it.
        provided: Objects by requested type; they replace what containers provide.
    """

    def __init__(self, containers: Sequence[Container] = (), provided: Mapping[type, object] | None = None) -> None:
        classes = [_class_of(container) for container in containers]
        nested = {_class_of(each.container) for c in containers for each in c.traverse([providers.Container])}
        used = [
            (container, cls)
            for container, cls in zip(containers, classes, strict=True)
            if cls not in nested and not any(other is not cls and issubclass(other, cls) for other in classes)
        ]
        self._registered = tuple(each for container, cls in used for each in _registered_in(container, cls.__name__))
        self._with_resources = [c for c, _ in used if any(True for _ in c.traverse([providers.Resource]))]
        self._classes = [cls for cls in classes if issubclass(cls, DeclarativeContainer)]
        self._overridden = _overridden_in(self._classes)
        self._users = 0  # running applications of this process, for which resources are open
        self._provided = {
            wanted: _Registered(wanted.__name__, "provided", providers.Object(stand_in))
            for wanted, stand_in in (provided or {}).items()
        }
        self._found: dict[type, tuple[_Registered, ...]] = {}

    @property
    def has_resources(self) -> bool:
        """Whether a container holds a ``providers.Resource``."""
        return bool(self._with_resources)

    @property
    def in_use(self) -> bool:
        """Whether an application of this process runs with these containers."""
        return self._users > 0

    @property
    def is_outdated(self) -> bool:
        """Whether a provider of the user's classes was overridden, or is no longer, since the containers were made."""
        return _overridden_in(self._classes) != self._overridden

    def open_resources(self) -> None:
        """Open every ``providers.Resource`` that needs no event loop.

        Applications that share the containers share them, too.

        Raises:
            ProjectCodeError: OCQ-217, naming the resource that cannot be opened.
        """
        self._users += 1
        for each in self._registered:
            if isinstance(each.provider, providers.Resource) and not _is_async(each.provider):
                each.make(f"container {each.container}")

    def close_resources(self, *, was_user: bool = True) -> bool:
        """Close every resource that is open, dependents first, unless other applications use them.

        An error of one is logged; the others are still closed. If the caller was not a user, only resources are open
        that a part opened when it was created.

        Returns:
            Whether resources are closed now, and were not before.
        """
        self._users -= was_user
        open_ones = [r for c in self._with_resources for r in c.traverse([providers.Resource]) if r.initialized]
        if self._users or not self._with_resources or not (was_user or open_ones):
            return False
        for resource in _dependents_first(open_ones):
            try:
                resource.shutdown()
            except BaseException as error:
                raise_interrupt(error)
                name = next((each.full_name for each in self._registered if each.provider is resource), str(resource))
                _log.error("resource %s could not be closed: %s", name, one_line(error))
        return True

    @override
    def provides(self, wanted: object) -> bool:
        """Return whether a provider makes something of the type.

        Raises:
            AssemblyError: OCQ-503, if several providers make it: found here, at the start, not with the first event.
        """
        matching = self._matching(wanted)
        if len(matching) > 1:
            raise self._ambiguous(wanted, matching)
        return bool(matching)

    @override
    def provide(self, wanted: object) -> Any:
        """Ask the provider of the type.

        Raises:
            AssemblyError: OCQ-503, if not exactly one provider makes it.
            ProjectCodeError: OCQ-217, if the provider raises.
        """
        matching = self._matching(wanted)
        if len(matching) != 1:
            raise self._ambiguous(wanted, matching)
        return matching[0].make()

    @override
    def stands_in(self, wanted: object) -> bool:
        """Return whether an object was given that replaces what containers provide."""
        return isinstance(wanted, type) and wanted in self._provided

    def code_behind(self, wanted: object) -> Iterator[object]:
        """Yield the functions and classes that make an object of this annotation, and those of their arguments.

        Nothing is made for it, and values do not matter: an existing object contributes its class.
        """
        for each in self._matching(wanted):
            yield from _code_of(each.provider)

    def makers(self, wanted: type, *, declared: bool = False) -> tuple[str, ...]:
        """Return the names of the providers that make a ``wanted``, in the order in which they are registered.

        If it must be declared, having the methods of a protocol is not enough: what is made must derive from it.
        """
        found = self._makers(wanted)
        return tuple(self._shown(each) for each in found if not declared or each.declares(wanted))

    def check(self, name: str, setting: str, wanted: type | None = None) -> None:
        """Check that a setting names exactly one provider, which makes a ``wanted`` as far as that is known.

        Raises:
            AssemblyError: OCQ-502, naming the setting and the existing providers; OCQ-503, if several providers have
                the name.
        """
        self._checked(name, setting, wanted)

    def named(self, name: str, setting: str, wanted: type | None = None) -> Any:
        """Ask the provider of that name.

        Raises:
            AssemblyError: As for ``check``, and OCQ-502 if what it has made is not a ``wanted``.
            ProjectCodeError: OCQ-217, if the provider raises.
        """
        part = self._checked(name, setting, wanted).make(setting)
        if wanted and is_protocol(wanted) and (missing := missing_methods(part, wanted)):
            raise _wrong_part(name, setting, type(part).__name__, f"which has no {', '.join(missing)}")
        if wanted and not is_protocol(wanted) and not isinstance(part, wanted):
            raise _wrong_part(name, setting, type(part).__name__, f"no {wanted.__name__}")
        return part

    def function(self, name: str, setting: str) -> Any:
        """Ask the provider of that name for a function.

        Raises:
            AssemblyError: As for ``named``, and OCQ-502 if it makes what cannot be called.
            ProjectCodeError: OCQ-217, if the provider raises.
        """
        return self.named(name, setting, Callable)  # type: ignore[arg-type]  # isinstance accepts it, too

    def create(self, cls: type, place: str) -> Any:
        """Make an instance of a handler class with what its constructor asks for.

        Raises:
            AssemblyError: OCQ-503 or OCQ-504, if an argument cannot be provided.
            HandlerSignatureError: OCQ-202, if an annotation cannot be read.
            ProjectCodeError: OCQ-217, if a provider raises; OCQ-226, if the constructor does.
        """
        hints = _hints_of_constructor(cls, place)
        wired = wired_parameters([cls.__init__])  # type: ignore[misc]
        arguments = {}
        for name, parameter in inspect.signature(cls).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            wanted = without_none(hints.get(name))
            if name in wired and not self.stands_in(wanted):
                continue
            if (marker := marker_in(parameter.default)) and not self.stands_in(wanted):
                raise _not_wired(cls, name, marker, place)
            matching = self._matching(wanted)
            if len(matching) > 1:
                raise self._ambiguous(wanted, matching, place)
            if matching:
                arguments[name] = matching[0].make(place)
            elif parameter.default is parameter.empty:
                what = f"nothing provides argument '{name}' of {cls.__name__}"
                raise AssemblyError("OCQ-504", what, place, _fix_to_provide(hints, name))
        try:
            return cls(**arguments)
        except BaseException as error:
            raise_interrupt(error)
            what = f"the constructor of handler class {cls.__name__} raised {one_line_with_place(error)}"
            raise ProjectCodeError("OCQ-226", what, place) from error

    def _matching(self, wanted: object) -> tuple[_Registered, ...]:
        """Return the providers for an argument with this annotation; a ``dict`` is the data of the event."""
        if isinstance(wanted, type) and wanted in self._provided:
            return (self._provided[wanted],)
        return self._makers(wanted) if _may_be_provided(wanted) else ()

    def _makers(self, wanted: type) -> tuple[_Registered, ...]:
        if wanted not in self._found:
            self._found[wanted] = tuple(each for each in self._registered if each.makes(wanted))
        return self._found[wanted]

    def _checked(self, name: str, setting: str, wanted: type | None) -> _Registered:
        matching = [each for each in self._registered if name in (each.name, each.full_name)]
        if not matching:
            there = sorted({self._shown(each) for each in self._registered})
            close = nearest(name, there)
            fix = f"use one of: {listed(there) or 'none: no container was found in the project'}"
            fix = f"did you mean {close}? There are: {listed(there)}" if close else fix
            raise AssemblyError("OCQ-502", f"no provider is called '{name}'", setting, fix)
        if len(matching) > 1:
            names = [each.full_name for each in matching]
            what = f"{len(matching)} providers are called '{name}': {listed(names)}"
            raise AssemblyError("OCQ-503", what, setting, f"include the container: {names[0]}")
        (found,) = matching
        made = found.made  # of a class that passes calls on, only an instance can tell what it has
        if wanted and isinstance(made, type) and not hasattr(made, "__getattr__") and not found.makes(wanted):
            lack = f"which has no {', '.join(missing_methods(made, wanted))}" if is_protocol(wanted) else ""
            raise _wrong_part(name, setting, made.__name__, lack or f"no {wanted.__name__}")
        return found

    def _ambiguous(self, wanted: object, matching: Sequence[_Registered], place: str = "") -> AssemblyError:
        names = ", ".join(sorted(map(self._shown, matching))) or "none"
        what = f"{len(matching)} providers make {_shown_type(wanted)}: {names}"
        return AssemblyError("OCQ-503", what, place, "annotate a narrower type that only one provider makes")

    def _shown(self, registered: _Registered) -> str:
        """Return the provider's name, with its container's when another container has the name, too."""
        alone = sum(each.name == registered.name for each in self._registered) == 1
        return registered.name if alone else registered.full_name


def _class_of(container: Container) -> type:
    """Return the class as the user wrote it; its instances are of another one."""
    written: Any = container.declarative_parent
    return written if isinstance(written, type) else type(container)


def _overridden_in(classes: Iterable[Any]) -> frozenset[tuple[object, ...]]:
    """Return the providers of containers that are overridden, each with those that override it."""
    found = (provider for cls in classes for provider in cls.traverse())
    return frozenset((provider, *provider.overridden) for provider in found if provider.overridden)


def _registered_in(container: Container, place: str) -> Iterator[_Registered]:
    """Yield the providers of a container, and of those that are nested in it."""
    for name, provider in container.providers.items():
        if isinstance(provider, providers.Container):
            yield from _registered_in(provider.container, f"{place}.{name}")
        else:
            yield _Registered(name, place, provider)


def _dependents_first(resources: Iterable[providers.Resource[Any]]) -> Iterator[providers.Resource[Any]]:
    left = list(resources)
    needs = {id(each): list(each.traverse([providers.Resource])) for each in left}
    while left:
        needed = [need for each in left for need in needs[id(each)] if need is not each]
        free = next((each for each in left if not any(each is need for need in needed)), left[0])
        left.remove(free)
        yield free


def _is_async(provider: providers.Resource[Any]) -> bool:
    source: Any = provider.provides
    if isinstance(source, type):
        return issubclass(source, resources.AsyncResource)
    return inspect.iscoroutinefunction(source) or inspect.isasyncgenfunction(source)


def _made_by(provider: providers.Provider[Any]) -> type | str | None:
    if (instead := provider.last_overriding) is not None:
        return _made_by(instead)
    source = getattr(provider, "provides", None)
    if isinstance(provider, providers.Object):
        return type(source)
    if isinstance(source, type):
        return source
    if not inspect.isfunction(source) and not inspect.ismethod(source):
        return None
    yields = isinstance(provider, providers.Resource) and inspect.isgeneratorfunction(inspect.unwrap(source))
    return _returned_by(source, yields=yields)


def _code_of(provider: providers.Provider[Any]) -> Iterator[object]:
    used = provider.last_overriding or provider
    for each in (used, *used.traverse()):
        if isinstance(each, _CALLS_CODE):
            made_by = each.provides  # of a generator function that is a resource, this is what wraps it
            given = (inspect.unwrap(made_by) if callable(made_by) else None, *each.args, *each.kwargs.values())
            yield from (one for one in given if isinstance(one, _CODE))
        elif isinstance(each, providers.Object):
            yield each.provides if isinstance(each.provides, _CODE) else type(each.provides)


def _returned_by(function: Any, *, yields: bool) -> type | str | None:
    """Return what a function is annotated to return; with ``yields``, what it is annotated to yield."""
    try:
        made = get_type_hints(function).get("return")
    except NameError:  # imported for type checkers only, as SQLAlchemy does it for create_engine
        text = str(written_annotations(inspect.unwrap(function)).get("return", ""))
        yielded = _GENERATOR_TEXT.fullmatch(text) if yields else None
        return (yielded[1] if yielded else text).rpartition(".")[2] or None
    if yields and get_origin(made) in _OF_GENERATORS:
        made = get_args(made)[0]
    return made if isinstance(made, type) and made not in (object, Any) else None


def _wrong_part(name: str, setting: str, made: str, lack: str) -> AssemblyError:
    what = f"provider '{name}' makes {made}, {lack}"
    return AssemblyError("OCQ-502", what, setting, "name another provider, or fix this one")


def check_argument(function: Any, given: str, name: str, setting: str) -> None:
    """Raise OCQ-502 if what provider ``name`` has made cannot be called with one argument, which is ``given``."""
    if why := why_not_called_with(function, given):
        made = getattr(function, "__qualname__", type(function).__qualname__)
        raise _wrong_part(name, setting, made, f"which cannot be called with {given} ({why})")


def _may_be_provided(wanted: object) -> TypeGuard[type]:
    """Return whether an annotation names a class whose instances a provider may make."""
    if not isinstance(wanted, type) or wanted in (object, dict, type(None)):
        return False
    return not is_typeddict(wanted) and not is_protocol(wanted)


def _hints_of_constructor(cls: type, place: str) -> dict[str, Any]:
    constructor = cls.__init__  # type: ignore[misc]
    try:
        written = get_type_hints(constructor) if constructor is not object.__init__ else {}
        return {**_hints_in(inspect.signature(cls)), **written}
    except Exception as error:  # an annotation is any expression: whatever it raises is the user's to fix
        what = f"the annotations of the constructor of {cls.__name__} cannot be read ({error})"
        fix = "import the annotated types at run time, not only under TYPE_CHECKING"
        raise HandlerSignatureError("OCQ-202", what, place, fix) from error


def _hints_in(signature: inspect.Signature) -> dict[str, Any]:
    """Return the annotations of a class's signature: pydantic's models do not have them in their constructor."""
    hints = {parameter.name: parameter.annotation for parameter in signature.parameters.values()}
    return {
        name: hint for name, hint in hints.items() if hint is not inspect.Parameter.empty and not isinstance(hint, str)
    }


def _not_wired(cls: type, name: str, marker: str, place: str) -> AssemblyError:
    what = f"argument '{name}' of {cls.__name__} would get {marker} itself: dependency-injector does not fill it"
    return AssemblyError("OCQ-504", what, place, MARKER_FIX.format(marker=marker))


def _fix_to_provide(hints: Mapping[str, Any], name: str) -> str:
    """Return how an argument can be provided that is annotated like this, or is not."""
    wanted = without_none(hints.get(name))
    if _may_be_provided(wanted):
        return f"add a provider of {_shown_type(wanted)} to a container in the project"
    shown = "None" if wanted is type(None) else _shown_type(wanted)
    found = f"{shown} names none" if name in hints else "it has no annotation"
    found = f"{shown} is a protocol" if isinstance(wanted, type) and is_protocol(wanted) else found
    return f"annotate it with a class that a provider makes, as in {name}: Mailer ({found}); or give it a default"


def _shown_type(wanted: object) -> str:
    return wanted.__name__ if isinstance(wanted, type) else str(wanted)
