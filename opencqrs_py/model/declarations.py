"""What decorators declare: how the decorators of each kind are called, and where their marks are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Decorators:
    """The decorators of one kind of declaration.

    Attributes:
        names: How they are called.
        noun: What messages call a decorated function; empty for decorators of classes.
        functions_only: Whether they mark functions of modules, no methods or classes.
        of_group: Whether they mark functions that serve a whole group.
        names_groups: Whether they declare groups: one that only others name has no handler.
        unmistakable: Whether only this package has decorators of these names.
    """

    names: tuple[str, ...]
    noun: str = ""
    functions_only: bool = False
    of_group: bool = False
    names_groups: bool = False
    unmistakable: bool = False

    def __str__(self) -> str:
        return " or ".join(f"@{name}" for name in self.names)


def _of_group(name: str) -> Decorators:
    return Decorators((name,), f"@{name} function", functions_only=True, of_group=True)


class Declaration(Enum):
    """A kind of declaration, with its decorators. What discovery and messages know of it is stated only here."""

    HANDLER = Decorators(("event_handling", "dataframe_handler"), "handler", names_groups=True, unmistakable=True)
    JOB = Decorators(("job",), "job")
    UPCASTER = Decorators(("upcaster",), "upcaster", functions_only=True, unmistakable=True)
    AROUND = Decorators(("around_event", "around_handler"), "interceptor", functions_only=True, unmistakable=True)
    ON_START = _of_group("on_start")
    ON_RESET = _of_group("on_reset")
    ON_REPLAY_FINISHED = _of_group("on_replay_finished")
    BATCH_KEY = _of_group("batch_key")
    INBOX_FILTER = _of_group("inbox_filter")
    CHECKPOINTING = Decorators(("checkpointing",), names_groups=True)
    EVENT_TYPE = Decorators(("event_type",))

    def __init__(self, _decorators: Decorators) -> None:
        self.attribute = f"__opencqrs_{self.name.lower()}__"
        """Where a decorated function or class has its marks."""
