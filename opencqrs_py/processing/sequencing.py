"""Sequence resolvers: from an event to the id of what must be handled in order."""

from __future__ import annotations

from dataclasses import dataclass

from opencqrs_py.model.event import Event

__all__ = ["NoSequence", "PerSubject", "PerSubjectLevel", "cut_subject"]


def cut_subject(subject: str, level: int) -> str:
    """Return the first ``level`` levels of a subject.

    What stands before the first slash is dropped; empty segments count; a trailing slash goes only beyond the cut.

    Source:
        OpenCQRS configurable-level sequence resolver; for subjects that begin with a slash the same as Spark's
        ``substring_index(subject, '/', level + 1)``.
    """
    parts = subject.split("/", level + 1)
    return "".join(f"/{part}" for part in parts[1 : level + 1])


@dataclass(frozen=True, slots=True)
class NoSequence:
    """Every event is a sequence of its own: all are spread, none are ordered."""

    def __call__(self, event: Event, /) -> str:
        """Return the event's id."""
        return event.id


@dataclass(frozen=True, slots=True)
class PerSubject:
    """Events of one subject stay in order."""

    def __call__(self, event: Event, /) -> str:
        """Return the whole subject."""
        return event.subject


@dataclass(frozen=True, slots=True)
class PerSubjectLevel:
    """Events below one ancestor subject stay in order.

    Attributes:
        level: Number of levels kept, at least 1. OpenCQRS' default is 2.
    """

    level: int = 2

    def __post_init__(self) -> None:
        if self.level < 1:
            msg = f"level must be at least 1, got {self.level}"
            raise ValueError(msg)

    def __call__(self, event: Event, /) -> str:
        """Return the subject cut to ``level`` levels."""
        return cut_subject(event.subject, self.level)
