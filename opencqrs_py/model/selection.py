"""Which events of a store a group reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from opencqrs_py.model.event import Event

ATTRIBUTES = frozenset(Event._fields) - {"position", "type", "payload"}
"""All attributes of an event besides position, type and data."""


@dataclass(frozen=True, slots=True)
class Share:
    """The sequences of some partitions, where the first levels of the subject are the sequence id.

    Attributes:
        modulus: Modulus of the partitions.
        residues: Residues of the partitions.
        level: Number of levels of the subject in the sequence id, at least 1; ``None`` for the whole subject.

    Source:
        OpenCQRS ``DefaultPartitionKeyResolver`` and its sequence resolvers for subjects.
    """

    modulus: int
    residues: frozenset[int]
    level: int | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """A condition on events that a store can check.

    Attributes:
        subject: Root subject; ``/`` with ``recursive`` is everything.
        recursive: Whether child subjects count too.
        types: The event types wanted, or ``None`` for all.
        attributes: Attributes that are needed besides position, type and data. A store may read the others only
            on access, which makes reading a log twice as fast.
        share: The share whose events are wanted, ``None`` for all. A store that cannot filter returns the others, too.

    Source:
        OpenCQRS observe options ``subject`` and ``recursive``.
    """

    subject: str = "/"
    recursive: bool = True
    types: frozenset[str] | None = None
    attributes: frozenset[str] = ATTRIBUTES
    share: Share | None = None

    @property
    def everything(self) -> bool:
        """Whether the subject excludes nothing."""
        return self.recursive and self.subject == "/"

    @property
    def prefix(self) -> str:
        """The prefix of every child subject."""
        return self.subject if self.subject.endswith("/") else self.subject + "/"

    def matches(self, event: Event) -> bool:
        """Return whether ``event`` is selected; stores do the same in their own language."""
        return (self.types is None or event.type in self.types) and self.includes(event.subject)

    def includes(self, subject: str) -> bool:
        """Return whether events with this subject are selected, if their types are."""
        return self.everything or subject == self.subject or (self.recursive and subject.startswith(self.prefix))


@dataclass(frozen=True, slots=True)
class Slice:
    """Selected events from one page of a log.

    Attributes:
        after: Position before the page.
        upto: Last position of the page; no event in ``after + 1..upto`` will ever be added to it.
        events: The selected ones, in the order of their positions.
    """

    after: int
    upto: int
    events: Sequence[Event] = field(default=())
