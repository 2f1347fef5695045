"""Where the value of a setting comes from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

__all__ = ["BUILT_IN", "Origin", "OriginKind"]


class OriginKind(Enum):
    """The kinds of places in which a setting can stand."""

    BUILT_IN = auto()
    CODE = auto()
    FILE = auto()
    SECRET = auto()
    VARIABLE = auto()
    ARGUMENT = auto()
    SOURCE = auto()
    TEST = auto()
    STANDARD = auto()
    RESET = auto()
    REPLACED = auto()


@dataclass(frozen=True, slots=True)
class Origin:
    """The place that a value comes from.

    Args:
        kind: What sort of place it is.
        place: Path of the file, name of the variable, or key of the argument.
        line: Line in the file, from 1; 0 when there is none or it is unknown.
        column: Column in the line, from 1; 0 when unknown.
        of: For ``STANDARD``, ``RESET`` and ``REPLACED``: the place that the value really stands in.
    """

    kind: OriginKind
    place: str = ""
    line: int = 0
    column: int = 0
    of: Origin | None = None

    @property
    def is_default(self) -> bool:
        """Whether nobody chose the value: it is the built-in one."""
        return self.kind in {OriginKind.BUILT_IN, OriginKind.RESET}

    @property
    def is_secret(self) -> bool:
        """Whether the value was kept in a secrets folder, so that it must not be shown."""
        return self.kind is OriginKind.SECRET or (self.of is not None and self.of.is_secret)

    def __str__(self) -> str:
        numbers = "".join(f":{number}" for number in (self.line, self.column) if number)
        return _TEXTS[self.kind].format(place=self.place, numbers=numbers, of=self.of)


_TEXTS = {
    OriginKind.BUILT_IN: "built-in default",
    OriginKind.CODE: "default given in code",
    OriginKind.FILE: "{place}{numbers}",
    OriginKind.SECRET: "secret file {place}",
    OriginKind.VARIABLE: "environment variable {place}",
    OriginKind.ARGUMENT: "argument {place}",
    OriginKind.SOURCE: "settings given in code",
    OriginKind.TEST: "property of the test",
    OriginKind.STANDARD: "standard ({of})",
    OriginKind.RESET: "built-in default (reset by {of})",
    OriginKind.REPLACED: "replaced by {place} ({of})",
}

BUILT_IN = Origin(OriginKind.BUILT_IN)
"""The origin of a value that nobody set."""
