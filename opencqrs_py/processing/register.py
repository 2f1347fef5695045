"""The register of what is decorated in the body of a module or class."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import Any

_NAME = "__opencqrs_register__"

_MODULE = "<module>"  # how Python calls the code of a module


@dataclass(eq=False, slots=True)
class Register:
    """What was decorated while a body ran.

    Attributes:
        owner: ``module`` or ``module:Class`` of the body, for messages.
        spec: Identifies the run of a module's body; ``importlib.reload`` runs it again in the same namespace.
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
    outermost: Any = member
    while frame is not None:
        if outermost is member and _is_class_body(frame) and _is_written_in(member, frame):
            outermost = _added_to_class(member, frame)
        if _is_module_body(frame):
            of_module = _in_namespace(frame.f_globals, frame.f_globals["__name__"], frame.f_globals.get("__spec__"))
            if outermost is not None:
                of_module.add(outermost)
            return of_module.owner
        frame = frame.f_back
    return ""


def register_of(body: ModuleType | type) -> Register | None:
    """Return what was decorated in the body of a module, or of a class itself (not of a parent)."""
    found = vars(body).get(_NAME)
    return found if isinstance(found, Register) else None


def _in_namespace(namespace: dict[str, Any], owner: str, spec: object = None) -> Register:
    found = namespace.get(_NAME)
    if not isinstance(found, Register) or found.spec is not spec:
        found = namespace[_NAME] = Register(owner, spec)
    return found


def _added_to_class(member: Any, frame: FrameType) -> Register | None:
    """Add a method to the register of the running class body; ``None`` if only the finished class shows it."""
    if _hides_namespace(frame):
        return None
    body = _in_namespace(frame.f_locals, f"{frame.f_locals['__module__']}:{frame.f_code.co_qualname}")
    body.add(member)
    return body


def _is_class_body(frame: FrameType) -> bool:
    code = frame.f_code
    is_body = not code.co_flags & inspect.CO_OPTIMIZED and code.co_name != _MODULE
    return is_body and "__qualname__" in code.co_names  # which the body of every class sets


def _is_written_in(member: Any, frame: FrameType) -> bool:
    """Return whether a function, or a static or class method, is defined in this class body."""
    prefix = f"{frame.f_code.co_qualname}."
    name = getattr(member, "__qualname__", "")
    return not isinstance(member, type) and name.startswith(prefix) and "." not in name.removeprefix(prefix)


def _is_module_body(frame: FrameType) -> bool:
    names = frame.f_globals
    is_body = frame.f_code.co_name == _MODULE and names.get("__name__") != "__main__"
    return is_body and (frame.f_locals is names or _hides_namespace(frame))


def _hides_namespace(frame: FrameType) -> bool:
    """Return whether the body of a module or class is in a comprehension.

    Source:
        PEP 709: from Python 3.12 on a comprehension runs in the frame around it, and ``f_locals`` then is not the
        namespace, but a new mapping at each access, which has the comprehension's own variables.
    """
    return frame.f_locals is not frame.f_locals
