"""The built-in default of each setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticUndefined

from opencqrs_py.config.tree import FreeNames, Section, fields_of, steps

if TYPE_CHECKING:
    from opencqrs_py.config.tree import Path

__all__ = ["built_in"]


def built_in(root: Section, path: Path) -> Any:
    """Return the built-in default of the setting at ``path``, ``None`` when there is none."""
    value: Any = PydanticUndefined
    for name, parent in steps(root, path):
        match parent:
            case FreeNames():
                value = PydanticUndefined
            case Section(model=model) if not hasattr(value, name):
                value = fields_of(model)[name].get_default(call_default_factory=True)
            case _:
                value = getattr(value, name)
    return None if value is PydanticUndefined else value
