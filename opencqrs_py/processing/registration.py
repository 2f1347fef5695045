"""The register of what was decorated: each module and each class body keeps its own, in the order of decoration.

A name can only hold one function, and a loop, an overload or a factory makes several. So a decorator registers what it
decorates, with the body (of a module or a class) that is being run by an import. The register lives in that body's
namespace: a module that is imported again begins with an empty one.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import Any

__all__ = ["Register", "register", "register_of"]

_NAME = "__opencqrs_register__"


@dataclass(eq=False, slots=True)
class Register:
    """What was decorated while one body ran.

    Attributes:
        owner: ``module`` or ``module:Class`` of the body, for messages.
        spec: Identifies one run of a module's body; ``importlib.reload`` runs it again in the same namespace.
        members: Functions, classes, and the registers of class bodies, in the order of decoration.
    """

    owner: str
    spec: object = None
    members: list[Any] = field(default_factory=list)

    def add(self, member: Any) -> None:
        """Add ``member`` unless it is there already."""
        if not any(member is each for each in self.members):
            self.members.append(member)


def register(member: Any) -> str:
    """Register what a decorator was applied to, if an import is under way.

    A function written in the body of a class belongs to that class; everything else to the module that is being
    imported, even if another module's function has decorated it there.

    Returns:
        Name of that module; empty at run time, when no module is being imported.
    """
    frame = inspect.currentframe()
    within: Register | None = None
    while frame is not None:
        if within is None and _is_class_body(frame) and _is_written_in(member, frame):
            within = _in_namespace(frame.f_locals, f"{frame.f_locals['__module__']}:{frame.f_locals['__qualname__']}")
            within.add(member)
        if _is_module_body(frame):
            of_module = _in_namespace(frame.f_globals, frame.f_globals["__name__"], frame.f_globals.get("__spec__"))
            of_module.add(member if within is None else within)
            return of_module.owner
        frame = frame.f_back
    return ""


def register_of(body: ModuleType | type) -> Register | None:
    """Return what was decorated in the body of a module or of this very class (not of a parent)."""
    found = vars(body).get(_NAME)
    return found if isinstance(found, Register) else None


def _in_namespace(namespace: dict[str, Any], owner: str, spec: object = None) -> Register:
    found = namespace.get(_NAME)
    if not isinstance(found, Register) or found.spec is not spec:
        found = namespace[_NAME] = Register(owner, spec)
    return found


def _is_class_body(frame: FrameType) -> bool:
    return not frame.f_code.co_flags & inspect.CO_OPTIMIZED and "__qualname__" in frame.f_locals


def _is_written_in(member: Any, frame: FrameType) -> bool:
    """Return whether a function, or what wraps one as static or class method, is written in this class body."""
    prefix = f"{frame.f_locals['__qualname__']}."
    name = getattr(member, "__qualname__", "")
    return not isinstance(member, type) and name.startswith(prefix) and "." not in name.removeprefix(prefix)


def _is_module_body(frame: FrameType) -> bool:
    names = frame.f_globals
    return frame.f_code.co_name == "<module>" and frame.f_locals is names and names.get("__name__") != "__main__"
