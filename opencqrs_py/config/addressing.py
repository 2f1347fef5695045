"""From a dotted key to the path of a setting, free names in the spelling by which they are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opencqrs_py.config.matching import Dialect, readings
from opencqrs_py.config.names import PREFIX, canonical, split_key
from opencqrs_py.config.tree import FreeNames, Path, Section, steps

if TYPE_CHECKING:
    from opencqrs_py.config.free_names import FreeNamesInUse

__all__ = ["path_of"]


def path_of(key: str, root: Section, names: FreeNamesInUse) -> Path | None:
    """Return the path of what the dotted ``key`` means, ``None`` when it means nothing.

    Args:
        key: The key, with ``opencqrs`` in front or without, in any spelling.
        root: Tree of the settings.
        names: Free names in use; a name that is not in use keeps its spelling.
    """
    pieces = split_key(key)
    pieces = pieces[1:] if canonical(pieces[0]) == PREFIX else pieces
    found = [each.path for each in readings(root, (pieces,) if pieces else (), Dialect.DOTTED)]
    known = [_known(path, root, names) for path in found]
    return next((path for path, is_known in known if is_known), known[0][0] if known else None)


def _known(path: Path, root: Section, names: FreeNamesInUse) -> tuple[Path, bool]:
    """Return ``path`` with its free names as they are known, and whether all of them are."""
    result: Path = ()
    all_known = True
    for name, parent in steps(root, path):
        if isinstance(parent, FreeNames):
            spelled = names.meant(result, name, by_variable=False)
            result, all_known = (*result, *(spelled or [name])), all_known and bool(spelled)
        else:
            result = (*result, name)
    return result, all_known
