"""What placeholders stand for: settings, the user's own keys, and variables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

from opencqrs_py.config.addressing import path_of
from opencqrs_py.config.entries import Nothing
from opencqrs_py.config.names import PREFIX, canonical, letters_and_digits, split_key
from opencqrs_py.config.placeholders import Found
from opencqrs_py.model.masking import holds_secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from opencqrs_py.config.entries import Entry, Value
    from opencqrs_py.config.free_names import FreeNamesInUse
    from opencqrs_py.config.merging import Merged
    from opencqrs_py.config.tree import Section

__all__ = ["Lookup", "OwnKeys"]


@dataclass(slots=True)
class OwnKeys:
    """What the user's own keys and variables say, by the letters and digits of their names."""

    _found: dict[str, Found] = field(default_factory=dict)

    def add(self, entries: Iterable[Entry]) -> None:
        """Put ``entries`` on top of what is there."""
        for entry in entries:
            if (text := _text(entry.value)) is not None:
                name = ".".join(".".join(pieces) for pieces in entry.pieces)
                self._found[letters_and_digits(name)] = Found(text, entry.origin.is_secret or holds_secret(name))

    def __call__(self, name: str) -> Found | None:
        """Return what ``name``, in any spelling, stands for."""
        return self._found.get(letters_and_digits(name))


@dataclass(frozen=True, slots=True)
class Lookup:
    """Finds what a placeholder stands for: a setting, a variable, or one of the user's own keys.

    Args:
        environ: Environment variables, by exact name.
        own: The user's own keys, variables included, by any spelling.
        root: Tree of the settings.
        names: Free names in use.
        merged: The settings.
    """

    environ: Mapping[str, str]
    own: OwnKeys
    root: Section
    names: FreeNamesInUse
    merged: Merged

    def __call__(self, name: str) -> Found | None:
        """Return the text of ``name``, its own placeholders unresolved; ``None`` when nothing is known of it."""
        if name == "random.uuid":
            return Found(str(uuid4()))
        if name in self.environ:
            return Found(self.environ[name], holds_secret(name))
        if canonical(split_key(name)[0]) == PREFIX:
            return self._setting(name)
        return self.own(name)

    def _setting(self, name: str) -> Found | None:
        path = path_of(name, self.root, self.names)
        bound = self.merged.winner(path) if path else None
        text = _text(bound.value) if bound else None
        return (
            None
            if bound is None or text is None
            else Found(text, bound.origin.is_secret or holds_secret(bound.path[-1]))
        )


def _text(value: Value) -> str | None:
    match value:
        case None | Nothing():
            return None
        case tuple():
            return ",".join(str(item) for item in value if item is not None)
        case _:
            return str(value)
