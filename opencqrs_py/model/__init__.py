"""Frozen values that all packages share. No I/O, no clock. A name loads its module on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_MODULES = ("context", "event", "handler", "outcome", "partition", "progress", "selection", "upcast")


def __getattr__(name: str) -> Any:
    for module in (import_module(f"{__name__}.{each}") for each in _MODULES if name in __all__):
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
