"""Sequencing: the sequences of an event, and the partitions that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from math import lcm
from typing import Any, Protocol

from opencqrs_py.errors import AssemblyError, ExplainedError, ProjectCodeError
from opencqrs_py.model.event import Event
from opencqrs_py.model.partition import Partition, residue_of
from opencqrs_py.model.selection import ATTRIBUTES, Share
from opencqrs_py.processing.annotations import written_annotations
from opencqrs_py.processing.binding import IsMeant, NothingProvided, with_arguments
from opencqrs_py.processing.decoding import decoder_for
from opencqrs_py.processing.event_types import EventTypes
from opencqrs_py.processing.exceptions import message_of, raise_interrupt, type_name
from opencqrs_py.processing.ports import SequenceResolver
from opencqrs_py.processing.reading import Reading
from opencqrs_py.processing.roles import RESOLVER, Kind
from opencqrs_py.processing.sequence_resolvers import (
    OWN_CALLS,
    PerSubject,
    PerSubjectLevel,
    check_plain,
    checked_ids,
    cut_subject,
    fields_looked_at,
    warn_of_hash,
)
from opencqrs_py.processing.signatures import Signature, read_signature

_MOST_RESIDUES = 1_024  # of a share, when partitions differ in size

PartitionOf = Callable[[str, int], int]
"""``(sequence id, modulus)`` to the residue of the partition."""


class PartitionResolver(Protocol):
    """Maps sequences to partitions."""

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
    """Maps events to sequences, and sequences to partitions."""

    by_subject: bool
    """Whether events of one subject belong to the same sequence, so that only the first one has to be resolved."""

    attributes: frozenset[str]
    """The attributes that it uses besides an event's type and data."""

    id_of_subject: Callable[[str], str] | None
    """Returns the id of a subject's only sequence, where one of our own resolvers decides; else ``None``."""

    partition_of: PartitionOf
    """The residue of a sequence's partition; the same for a sequence at each call, in each process."""

    def share_of(self, partitions: Collection[Partition]) -> Share | None:
        """Return the filter by which a store can leave out the events of all other partitions, if there is one."""
        ...

    def sequence_ids(self, event: Event) -> tuple[str, ...]:
        """Return the ids of the sequences of a stored event, each once and in order.

        There are several if upcasters make several events of it, and none if the group handles none of these.
        """
        ...


class SequencingByEvent:
    """Sequencing by the attributes of an event, before it is decoded.

    Args:
        resolver: Sequence resolver of the group.
        partition_of: Partition resolver.
        opened: Unwraps an event from its envelope, if any.
        place: How messages name the resolver.

    Raises:
        HandlerSignatureError: OCQ-224, if the resolver declares attributes that events do not have.
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
        self.id_of_subject = _id_of_subject(resolver) if self.by_subject else None
        if type(resolver).__call__ in OWN_CALLS:  # it does what it declares
            self._sequence_id = resolver.__call__
        else:
            self._sequence_id = checked_ids(resolver, place, only_subject=self.by_subject)

    def share_of(self, partitions: Collection[Partition]) -> Share | None:
        """Return the share of some partitions, where the subject alone decides in a way that stores support."""
        if self.partition_of is not residue_of or self.opened is not None:
            return None
        modulus = lcm(*{partition.modulus for partition in partitions})
        if modulus > _MOST_RESIDUES:
            return None
        residues = frozenset(r for each in partitions for r in range(each.residue, modulus, each.modulus))
        if len(residues) == modulus:
            return None
        if type(self.resolver) is PerSubject:
            return Share(modulus, residues)
        return Share(modulus, residues, self.resolver.level) if type(self.resolver) is PerSubjectLevel else None

    def sequence_ids(self, event: Event) -> tuple[str, ...]:
        """Return the id of the event's only sequence; raise OCQ-216 or OCQ-224 if a resolver breaks its contract."""
        return (self._sequence_id(self.opened(event) if self.opened else event),)


def _id_of_subject(resolver: SequenceResolver) -> Callable[[str], str] | None:
    if type(resolver) is PerSubject:
        return str
    return partial(cut_subject, level=resolver.level) if type(resolver) is PerSubjectLevel else None


def sequencing_for(
    resolver: Callable[..., str],
    types: EventTypes,
    reading: Reading,
    place: str,
    partition_of: PartitionOf = residue_of,
) -> Sequencing:
    """Return how a group's events are sequenced.

    A resolver that takes an event class, or metadata, by annotation sees events as handlers do: unwrapped, upcast and
    decoded. Any other sees the stored event.

    Args:
        resolver: Returns a sequence id.
        types: The event classes known.
        reading: How stored events are read.
        place: How messages name the resolver.
        partition_of: Partition resolver.

    Raises:
        HandlerSignatureError: OCQ-201 to OCQ-205.

    Source:
        OpenCQRS sequence resolvers for raw events and for objects.
    """
    check_plain(resolver, place)
    warn_of_hash(resolver, place)
    signature = _signature(resolver, place)
    if signature is None:
        return SequencingByEvent(resolver, partition_of, place=place)
    return SequencingByObject(resolver, signature, types, reading, place, partition_of)


def _signature(resolver: Callable[..., str], place: str) -> Signature | None:
    function = resolver if hasattr(resolver, "__code__") else type(resolver).__call__
    if not set(written_annotations(function)) - {"return"}:
        return None
    call = resolver if hasattr(resolver, "__code__") else resolver.__call__  # type: ignore[operator]
    signature = read_signature(call, place, NothingProvided(), RESOLVER)
    raw_only = all(argument.kind is Kind.RAW for argument in signature.arguments)
    return None if raw_only else signature


class SequencingByObject:
    """Sequencing by what handlers see of an event.

    The results of an upcaster may belong to several sequences, and so to several partitions.

    Args:
        resolver: Sequence resolver of the group.
        signature: Its arguments.
        types: The event classes known.
        reading: How stored events are read.
        place: How messages name the resolver.
        partition_of: Partition resolver.

    Attributes:
        event_classes: What the resolver's event parameter accepts; empty when it has none.
    """

    def __init__(
        self,
        resolver: Callable[..., str],
        signature: Signature,
        types: EventTypes,
        reading: Reading,
        place: str,
        partition_of: PartitionOf = residue_of,
    ) -> None:
        self.resolver = resolver
        self._call = with_arguments(resolver, signature, NothingProvided(), place)
        self._sequence_id = checked_ids(self._asked, place)
        self.event_classes = signature.event_classes
        self.attributes = ATTRIBUTES if signature.sees_attributes or not reading.plain else frozenset[str]()
        self.by_subject = False
        self.id_of_subject: Callable[[str], str] | None = None
        self._types = types
        self._reading = reading
        self._place = place
        self.partition_of = partition_of
        self._handles: Callable[[str], bool] = _whatever

    def share_of(self, partitions: Collection[Partition]) -> None:
        """Return ``None``: no store sees what handlers see."""

    def sequence_ids(self, event: Event) -> tuple[str, ...]:
        """Return the ids of the sequences of what a stored event becomes.

        Raises OCQ-514 if the resolver does not take the event's class, and any error of reading and decoding.
        """
        read = self._reading.read(event)
        return tuple(dict.fromkeys(self._sequence_id(one) for one in read if self._handles(one.type)))

    def serve(self, types: Iterable[str], handles: Callable[[str], bool]) -> None:
        """Learn what the group handles: the known types, as read, and a check for other types. Others are not resolved.

        Raises OCQ-514, naming a type whose class the resolver does not take.
        """
        self._handles = handles
        for name in types:
            self._class_for(name)

    def belongs(self, event: Event, partition: Partition, is_meant: IsMeant | None = None) -> bool:
        """Return whether an event, as read, is for a partition.

        Raises OCQ-216 if the resolver raises: it is called while handlers run, but is not one of them.
        """
        try:
            sequence_id = self._sequence_id(event)
            mine = self.partition_of(sequence_id, partition.modulus) == partition.residue
            return mine and (is_meant is None or is_meant(sequence_id, event.position))
        except ExplainedError:
            raise
        except BaseException as error:
            raise_interrupt(error)
            what = f"the sequence resolver raised {type_name(error)}: {message_of(error)}"
            raise ProjectCodeError("OCQ-216", what, self._place) from error

    def _asked(self, event: Event) -> Any:
        return self._call(self._decoded(event), event, event, None)

    def _decoded(self, event: Event) -> Any:
        found = self._class_for(event.type)
        return None if found is None else decoder_for(found)(event)

    def _class_for(self, event_type: str) -> Any:
        found = self._types.class_for(self.event_classes, event_type)
        if found is None and self.event_classes:
            asked = " | ".join(getattr(cls, "__name__", str(cls)) for cls in self.event_classes)
            what = f"the sequence resolver takes {asked}, but the group also handles events of type '{event_type}'"
            raise AssemblyError("OCQ-514", what, self._place, "have it take their class, too, or dict")
        return found


def _whatever(_event_type: str) -> bool:
    return True
