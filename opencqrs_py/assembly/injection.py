"""Injection: what the user's own containers provide to handlers."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, get_type_hints, is_typeddict

from dependency_injector import providers
from dependency_injector.containers import Container
from typing_extensions import is_protocol

from opencqrs_py.errors import AssemblyError

__all__ = ["ContainerInjector"]


class ContainerInjector:
    """Finds providers by the type of what they make, and by name.

    Args:
        containers: Instances of the user's containers.
    """

    def __init__(self, containers: Sequence[Container] = ()) -> None:
        self._providers: dict[str, providers.Provider[Any]] = {
            name: provider for container in containers for name, provider in container.providers.items()
        }

    def provides(self, wanted: object) -> bool:
        """Say whether a provider makes something of the type."""
        return bool(self._matching(wanted))

    def provide(self, wanted: object) -> Any:
        """Ask the provider of the type.

        Raises:
            AssemblyError: OCQ-503, if several providers make it.
        """
        matching = self._matching(wanted)
        if len(matching) != 1:
            what = f"{len(matching)} providers make {_shown(wanted)}: {', '.join(sorted(matching)) or 'none'}"
            raise AssemblyError("OCQ-503", what, fix="annotate the narrower type, so that one provider is left")
        return next(iter(matching.values()))()

    def named(self, name: str, setting: str) -> Any:
        """Ask the provider of that name.

        Raises:
            AssemblyError: OCQ-502, naming the setting and the providers that there are.
        """
        if name not in self._providers:
            there = ", ".join(sorted(self._providers)) or "none: no container was found in the project"
            what = f"no provider is called '{name}'"
            raise AssemblyError("OCQ-502", what, setting, f"use one of: {there}")
        return self._providers[name]()

    def create(self, cls: type, place: str) -> Any:
        """Make an instance of a handler class with what its constructor asks for.

        Raises:
            AssemblyError: OCQ-504, if an argument cannot be provided.
        """
        constructor = cls.__init__  # type: ignore[misc]
        hints = get_type_hints(constructor) if constructor is not object.__init__ else {}
        arguments = {}
        for name, parameter in inspect.signature(cls).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if self.provides(hints.get(name)):
                arguments[name] = self.provide(hints[name])
            elif parameter.default is parameter.empty:
                what = f"nothing provides argument '{name}' of {cls.__name__}"
                fix = f"add a provider of {_shown(hints.get(name))} to a container in the project"
                raise AssemblyError("OCQ-504", what, place, fix)
        return cls(**arguments)

    def _matching(self, wanted: object) -> dict[str, providers.Provider[Any]]:
        if not isinstance(wanted, type) or wanted is object or is_typeddict(wanted) or is_protocol(wanted):
            return {}
        made = {name: _made_by(provider) for name, provider in self._providers.items()}
        return {n: self._providers[n] for n, cls in made.items() if cls is not None and issubclass(cls, wanted)}


def _made_by(provider: providers.Provider[Any]) -> type | None:
    if isinstance(provider, providers.Object):
        return type(provider())
    source = getattr(provider, "cls", None) or getattr(provider, "provides", None)
    if isinstance(source, type):
        return source
    made = get_type_hints(source).get("return") if inspect.isfunction(source) else None
    return made if isinstance(made, type) else None


def _shown(wanted: object) -> str:
    return wanted.__name__ if isinstance(wanted, type) else str(wanted)
