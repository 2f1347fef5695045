"""Frozen values that every room shares. No I/O, no clock."""

from opencqrs_py.model.context import ProcessingContext
from opencqrs_py.model.event import Event, Metadata
from opencqrs_py.model.handler import (
    AroundMark,
    Handler,
    HandlerMark,
    Interceptor,
    Invocation,
    Surrounded,
    Upcaster,
    event_type_of,
)
from opencqrs_py.model.outcome import Failure, Origin, Outcome
from opencqrs_py.model.partition import Partition, hash_of, layout, residue_of
from opencqrs_py.model.progress import Cursor, FailureRecord, PartitionStatus, ProcessorState, Skip
from opencqrs_py.model.selection import Selection, Slice
from opencqrs_py.model.upcast import Upcast

__all__ = [
    "AroundMark",
    "Cursor",
    "Event",
    "Failure",
    "FailureRecord",
    "Handler",
    "HandlerMark",
    "Interceptor",
    "Invocation",
    "Metadata",
    "Origin",
    "Outcome",
    "Partition",
    "PartitionStatus",
    "ProcessingContext",
    "ProcessorState",
    "Selection",
    "Skip",
    "Slice",
    "Surrounded",
    "Upcast",
    "Upcaster",
    "event_type_of",
    "hash_of",
    "layout",
    "residue_of",
]
