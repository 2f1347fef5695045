"""opencqrs_py: read models that follow an event log, on Spark.

Names are imported when they are first used, so that ``import opencqrs_py`` loads neither PySpark nor SQLAlchemy.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as typing's, whose import would take longer than all else here
if TYPE_CHECKING:
    from opencqrs_py.adapters.memory import InMemoryEventStore, InMemoryProgressTracker
    from opencqrs_py.adapters.sql import Database, SqlEventStore, SqlProgressTracker
    from opencqrs_py.assembly.application import Application
    from opencqrs_py.assembly.inbox import InboxFilter
    from opencqrs_py.assembly.registration import ControllerRegistration, ProcessorController, ProcessorHandle
    from opencqrs_py.assembly.spark_source import register_data_source
    from opencqrs_py.engines.parts import ProcessorOptions
    from opencqrs_py.engines.processor import EventHandlingProcessor
    from opencqrs_py.errors import JobCancelledError, NonTransientError, OpenCqrsError, TransientError
    from opencqrs_py.model.checkpoint import LATEST
    from opencqrs_py.model.context import ProcessingContext
    from opencqrs_py.model.event import Event, Metadata
    from opencqrs_py.model.frames import EventFrames
    from opencqrs_py.model.handler import Invocation
    from opencqrs_py.model.job import JobContext, JobPage
    from opencqrs_py.model.replay import Reset
    from opencqrs_py.model.upcast import Upcast
    from opencqrs_py.processing.after_commit import AfterCommit
    from opencqrs_py.processing.checkpoints.checkpoints import CheckpointTrigger
    from opencqrs_py.processing.checkpoints.participation import CheckpointParticipant
    from opencqrs_py.processing.decorators import (
        around_event,
        around_handler,
        batch_key,
        checkpointing,
        dataframe_handler,
        event_handling,
        event_type,
        inbox_filter,
        job,
        on_replay_finished,
        on_reset,
        on_start,
        upcaster,
    )
    from opencqrs_py.processing.definitions import EventHandlerDefinition
    from opencqrs_py.processing.notices import Observer
    from opencqrs_py.processing.recovery import ExponentialBackOff, FixedBackOff, NoRetry
    from opencqrs_py.processing.sequence_resolvers import (
        NoSequence,
        PerDataField,
        PerMetadataKey,
        PerSubject,
        PerSubjectLevel,
    )
    from opencqrs_py.processing.sequencing import PartitionKeyResolver

__all__ = [
    "LATEST",
    "AfterCommit",
    "Application",
    "CheckpointParticipant",
    "CheckpointTrigger",
    "ControllerRegistration",
    "Database",
    "Event",
    "EventFrames",
    "EventHandlerDefinition",
    "EventHandlingProcessor",
    "ExponentialBackOff",
    "FixedBackOff",
    "InMemoryEventStore",
    "InMemoryProgressTracker",
    "InboxFilter",
    "Invocation",
    "JobCancelledError",
    "JobContext",
    "JobPage",
    "Metadata",
    "NoRetry",
    "NoSequence",
    "NonTransientError",
    "Observer",
    "OpenCqrsError",
    "PartitionKeyResolver",
    "PerDataField",
    "PerMetadataKey",
    "PerSubject",
    "PerSubjectLevel",
    "ProcessingContext",
    "ProcessorController",
    "ProcessorHandle",
    "ProcessorOptions",
    "Reset",
    "SqlEventStore",
    "SqlProgressTracker",
    "TransientError",
    "Upcast",
    "around_event",
    "around_handler",
    "batch_key",
    "checkpointing",
    "dataframe_handler",
    "event_handling",
    "event_type",
    "inbox_filter",
    "job",
    "on_replay_finished",
    "on_reset",
    "on_start",
    "register_data_source",
    "upcaster",
]

_HOMES = {
    "AfterCommit": "processing.after_commit",
    "Application": "assembly.application",
    "CheckpointParticipant": "processing.checkpoints.participation",
    "CheckpointTrigger": "processing.checkpoints.checkpoints",
    "ControllerRegistration": "assembly.registration",
    "Database": "adapters.sql",
    "Event": "model.event",
    "EventFrames": "model.frames",
    "EventHandlerDefinition": "processing.definitions",
    "EventHandlingProcessor": "engines.processor",
    "ExponentialBackOff": "processing.recovery",
    "FixedBackOff": "processing.recovery",
    "InMemoryEventStore": "adapters.memory",
    "InMemoryProgressTracker": "adapters.memory",
    "InboxFilter": "assembly.inbox",
    "LATEST": "model.checkpoint",
    "Invocation": "model.handler",
    "JobCancelledError": "errors",
    "JobContext": "model.job",
    "JobPage": "model.job",
    "Metadata": "model.event",
    "NoRetry": "processing.recovery",
    "NoSequence": "processing.sequence_resolvers",
    "NonTransientError": "errors",
    "Observer": "processing.notices",
    "OpenCqrsError": "errors",
    "PartitionKeyResolver": "processing.sequencing",
    "PerDataField": "processing.sequence_resolvers",
    "PerMetadataKey": "processing.sequence_resolvers",
    "PerSubject": "processing.sequence_resolvers",
    "PerSubjectLevel": "processing.sequence_resolvers",
    "ProcessingContext": "model.context",
    "ProcessorController": "assembly.registration",
    "ProcessorHandle": "assembly.registration",
    "ProcessorOptions": "engines.parts",
    "Reset": "model.replay",
    "SqlEventStore": "adapters.sql",
    "SqlProgressTracker": "adapters.sql",
    "TransientError": "errors",
    "Upcast": "model.upcast",
    "around_event": "processing.decorators",
    "around_handler": "processing.decorators",
    "batch_key": "processing.decorators",
    "checkpointing": "processing.decorators",
    "dataframe_handler": "processing.decorators",
    "event_handling": "processing.decorators",
    "event_type": "processing.decorators",
    "inbox_filter": "processing.decorators",
    "job": "processing.decorators",
    "on_replay_finished": "processing.decorators",
    "on_reset": "processing.decorators",
    "on_start": "processing.decorators",
    "register_data_source": "assembly.spark_source",
    "upcaster": "processing.decorators",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        msg = f"module '{__name__}' has no attribute '{name}'"
        raise AttributeError(msg)
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
