"""The names that the user chose, such as group names, and the one spelling that each is known by."""

from __future__ import annotations

from dataclasses import dataclass, field

from opencqrs_py.config.names import canonical, letters_and_digits
from opencqrs_py.config.tree import Path

__all__ = ["FreeNamesInUse"]


@dataclass(slots=True)
class FreeNamesInUse:
    """Free names by the path of their map; whoever spells a name first decides its spelling."""

    _spelled: dict[Path, dict[str, str]] = field(default_factory=dict)
    _alike: dict[Path, dict[str, list[str]]] = field(default_factory=dict)

    def add(self, of: Path, name: str) -> str:
        """Return the spelling by which ``name`` is known in the map at ``of``; if there is none, it is ``name``."""
        known = self._spelled.setdefault(of, {})
        form = canonical(name)
        if form not in known:
            known[form] = name
            self._alike.setdefault(of, {}).setdefault(letters_and_digits(name), []).append(name)
        return known[form]

    def meant(self, of: Path, name: str, *, by_variable: bool) -> list[str]:
        """Return the known names of the map at ``of`` that ``name`` can mean, in a variable or elsewhere."""
        if by_variable:
            return self._alike.get(of, {}).get(letters_and_digits(name), [])
        spelled = self._spelled.get(of, {}).get(canonical(name))
        return [] if spelled is None else [spelled]

    def letters(self) -> frozenset[str]:
        """Return the letters and digits of all names in use."""
        return frozenset(letters for names in self._alike.values() for letters in names)
