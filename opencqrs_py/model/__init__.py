"""Frozen values that every room shares. No I/O, no clock."""

from opencqrs_py.model.context import ProcessingContext
from opencqrs_py.model.event import Event, Metadata
from opencqrs_py.model.handler import Handler, HandlerMark, event_type_of
from opencqrs_py.model.outcome import Origin, Outcome, Trouble
from opencqrs_py.model.partition import Partition, hash_of, layout, residue_of
from opencqrs_py.model.progress import Cursor, PartitionStatus, ProcessorState
from opencqrs_py.model.selection import Selection, Slice

__all__ = [
    "Cursor",
    "Event",
    "Handler",
    "HandlerMark",
    "Metadata",
    "Origin",
    "Outcome",
    "Partition",
    "PartitionStatus",
    "ProcessingContext",
    "ProcessorState",
    "Selection",
    "Slice",
    "Trouble",
    "event_type_of",
    "hash_of",
    "layout",
    "residue_of",
]
