"""The built-in default of each setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticUndefined

from opencqrs_py.config.effective import EffectiveGroup
from opencqrs_py.config.settings import GroupSettings
from opencqrs_py.config.tree import FreeNames, Section, steps

if TYPE_CHECKING:
    from opencqrs_py.config.tree import Path

__all__ = ["built_in"]

_GROUP = EffectiveGroup("")


def built_in(root: Section, path: Path) -> Any:
    """Return the built-in default of the setting at ``path``; settings of groups have that of the standard.

    Returns:
        The default in the type of the validated settings or of :class:`EffectiveGroup`; ``None`` when there is none,
        or when it depends on what else is configured.
    """
    value: Any = PydanticUndefined
    for name, parent in steps(root, path):
        match parent:
            case FreeNames(value=Section(model=model)):
                value = _GROUP if model is GroupSettings else PydanticUndefined
            case Section(model=model) if not hasattr(value, name):
                value = model.model_fields[name].get_default(call_default_factory=True)
            case _:
                value = getattr(value, name)
        if isinstance(value, GroupSettings):
            value = _GROUP
    return None if value is PydanticUndefined else value
