"""Sequences: what must be handled in order, and which partitions an event goes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from opencqrs_py.errors import EventFormatError
from opencqrs_py.model.event import Event
from opencqrs_py.model.json_text import write_parsed
from opencqrs_py.model.partition import residue_of
from opencqrs_py.processing.ports import SequenceResolver
from opencqrs_py.processing.sequence_ids import checked_ids, fields_looked_at

PartitionOf = Callable[[str, int], int]
"""``(sequence id, modulus)`` to the residue of the partition."""


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

    looks_at: ClassVar[frozenset[str]] = frozenset({"id"})

    def __call__(self, event: Event, /) -> str:
        """Return the event's id."""
        return event.id


@dataclass(frozen=True, slots=True)
class PerSubject:
    """Events of one subject stay in order."""

    looks_at: ClassVar[frozenset[str]] = frozenset({"subject"})

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

    looks_at: ClassVar[frozenset[str]] = frozenset({"subject"})

    def __post_init__(self) -> None:
        if self.level < 1:
            msg = f"level must be at least 1, got {self.level}"
            raise ValueError(msg)

    def __call__(self, event: Event, /) -> str:
        """Return the subject cut to ``level`` levels."""
        return cut_subject(event.subject, self.level)


@dataclass(frozen=True, slots=True)
class PerDataField:
    """Events whose data agree in one field stay in order.

    Attributes:
        path: Names of nested members, such as ``("reader", "id")``.
    """

    path: tuple[str, ...]

    looks_at: ClassVar[frozenset[str]] = frozenset({"data"})

    def __call__(self, event: Event, /) -> str:
        """Return the field's value: a text as it is, anything else as JSON would write it.

        Raises:
            EventFormatError: OCQ-214, if the event has no such field, or ``null`` in it.
        """
        value = event.data
        for name in self.path:
            value = value.get(name) if isinstance(value, dict) else None
        return _sequence_id(value, f"data field '{'.'.join(self.path)}'", event)


@dataclass(frozen=True, slots=True)
class PerMetadataKey:
    """Events whose metadata agree in one key stay in order.

    Attributes:
        key: Name of the CloudEvent's extension attribute, or of the envelope's metadata.
    """

    key: str

    looks_at: ClassVar[frozenset[str]] = frozenset({"metadata"})

    def __call__(self, event: Event, /) -> str:
        """Return the value of the key: a text as it is, anything else as JSON would write it.

        Raises:
            EventFormatError: OCQ-214, if the event has no such key, or ``null`` in it.
        """
        return _sequence_id(event.metadata.get(self.key), f"metadata '{self.key}'", event)


def _sequence_id(value: Any, name: str, event: Event) -> str:
    if value is None:
        fix = "give every event of the group that field, or narrow fetch.subject, or choose another sequence.resolution"
        raise EventFormatError(
            "OCQ-214", f"the event has no {name}, which says what it is in order with", event.label, fix
        )
    return value if isinstance(value, str) else write_parsed(value, sort_keys=True)


class PartitionResolver(Protocol):
    """Says which partition a sequence goes to."""

    @property
    def partitions(self) -> int:
        """Number of partitions, at least 1."""
        ...

    def __call__(self, sequence_id: str, /) -> int:
        """Return the partition, ``0..partitions - 1``; the same for a sequence at each call, in each process."""
        ...


@dataclass(frozen=True, slots=True)
class PartitionKeyResolver:
    """From a sequence id to a partition: CRC-32 of its UTF-8 bytes, modulo the number of partitions.

    Attributes:
        partitions: Number of partitions, at least 1.

    Source:
        OpenCQRS ``DefaultPartitionKeyResolver``.
    """

    partitions: int

    def __post_init__(self) -> None:
        if self.partitions < 1:
            msg = f"partitions must be at least 1, got {self.partitions}"
            raise ValueError(msg)

    def __call__(self, sequence_id: str, /) -> int:
        """Return the partition, ``0..partitions - 1``."""
        return residue_of(sequence_id, self.partitions)


class Sequencing(Protocol):
    """Says which partitions an event goes to."""

    by_subject: bool
    """Whether events of one subject go to the same partition, so that the first one tells for all."""

    attributes: frozenset[str]
    """What it looks at besides an event's type and data."""

    def residues(self, event: Event, modulus: int) -> Sequence[int]:
        """Return the residues of the partitions to which a stored event goes: one, or several that differ."""
        ...


class SequencingByEvent:
    """Sequences by what can be seen of an event before it is decoded.

    Args:
        resolver: Sequence resolver of the group.
        partition_of: Partition resolver.
        opened: Takes an event out of its envelope, where there is one.
        place: How messages name the resolver.

    Raises:
        HandlerSignatureError: OCQ-224, if what the resolver says that it looks at is nothing that an event has.
    """

    def __init__(
        self,
        resolver: SequenceResolver,
        partition_of: PartitionOf = residue_of,
        opened: Callable[[Event], Event] | None = None,
        place: str = "sequence_resolver",
    ) -> None:
        self.resolver = resolver
        self.partition_of = partition_of
        self.opened = opened
        looked_at = fields_looked_at(resolver, place)
        self.by_subject = looked_at <= {"subject"} and opened is None
        self.attributes = frozenset({"subject"}) if self.by_subject else looked_at - {"position", "type", "payload"}
        if type(resolver).__call__ in _OWN_CALLS:  # it does what it says
            self._sequence_id = resolver.__call__
        else:
            self._sequence_id = checked_ids(resolver, place, only_subject=self.by_subject)

    def residues(self, event: Event, modulus: int) -> Sequence[int]:
        """Return the residue of the event's only partition.

        Raises:
            ProjectCodeError: OCQ-216 or OCQ-224, if a resolver of the project breaks its contract.
        """
        return (self.partition_of(self._sequence_id(self.opened(event) if self.opened else event), modulus),)


_OWN_CALLS = {cls.__call__ for cls in (NoSequence, PerSubject, PerSubjectLevel, PerDataField, PerMetadataKey)}
