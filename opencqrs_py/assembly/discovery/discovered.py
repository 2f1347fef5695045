"""What discovery has found: handlers as they are declared, functions of groups, jobs, event classes and containers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.config import ConfigurationWarning
from opencqrs_py.model.declarations import Declaration
from opencqrs_py.model.handler import Handler, HandlerMark, Interceptor, Upcaster
from opencqrs_py.model.job import Job


@dataclass(frozen=True, slots=True)
class GroupFunction:
    """A function that is marked for a whole group, such as with ``@on_start`` or ``@batch_key``."""

    group: str
    call: Any
    place: str


@dataclass(frozen=True, slots=True)
class DeclaredHandler:
    """A handler as its module declares it: an instance of its class need not exist.

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
        """Return the declaration of a handler that exists already."""
        return cls(handler.mark, handler.place, handler.reference, handler.call, lambda: handler)


@dataclass(frozen=True)
class Discovered:
    """What was found in the user's modules.

    Attributes:
        declared: All handlers in the order in which they run within their group.
        functions: All functions that serve groups, such as those with ``@on_start``, in the order of definition.
        event_classes: All classes with an event type.
        injector: Provides what the user's containers hold.
        upcasters: All upcasters.
        interceptors: All interceptors, outermost first.
        warnings: What works, but is probably not intended.
        places: The processing groups as handlers spell them, in the order of their first handler in the source, each
            with the place of that one.
        jobs: All jobs, in the order of definition.
    """

    declared: tuple[DeclaredHandler, ...]
    functions: Mapping[Declaration, tuple[GroupFunction, ...]]
    event_classes: tuple[type, ...]
    injector: ContainerInjector
    upcasters: tuple[Upcaster, ...] = ()
    interceptors: tuple[Interceptor, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[ConfigurationWarning, ...] = ()
    jobs: tuple[Job, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        """The processing groups as handlers spell them, in the order of their first handler in the source."""
        return tuple(self.places)

    def make_handlers(self) -> tuple[Handler, ...]:
        """Make the instances of all handler classes, and return all handlers in their order within their group.

        Raises:
            AssemblyError: OCQ-503 or OCQ-504, if an argument of a constructor cannot be provided.
            HandlerSignatureError: OCQ-640, if a class cannot be the participant that it is to be.
            ProjectCodeError: OCQ-217 or OCQ-226, if a provider or a constructor raises.
        """
        return tuple(each.made() for each in self.declared)

    def of_group(self, group: str) -> tuple[Handler, ...]:
        """Return the handlers of a group, in the order in which they run; raises as ``make_handlers`` does."""
        return tuple(each.made() for each in self.declared_of(group))

    def declared_of(self, group: str) -> tuple[DeclaredHandler, ...]:
        """Return how the handlers of a group are declared, in the order in which they run. Makes no instance."""
        return tuple(each for each in self.declared if each.mark.group == group)

    def functions_of(self, declaration: Declaration, group: str) -> list[GroupFunction]:
        """Return the functions of one kind that serve a group."""
        return [each for each in self.functions[declaration] if each.group == group]

    def fingerprint(self, group: str) -> tuple[str, ...]:
        """Return what every process that has found the same handlers of a group has found."""
        return tuple(
            f"{h.reference} {','.join(h.mark.types or h.mark.class_types)}".rstrip() for h in self.declared_of(group)
        )
