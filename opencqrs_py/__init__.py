"""opencqrs_py: read models that follow an event log, on Spark.

Names are imported when they are first used, so that ``import opencqrs_py`` loads neither PySpark nor SQLAlchemy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opencqrs_py.assembly.application import Application
    from opencqrs_py.assembly.spark_source import register_data_source
    from opencqrs_py.errors import NonTransientError, OpenCqrsError, TransientError
    from opencqrs_py.model.context import ProcessingContext
    from opencqrs_py.model.event import Event, Metadata
    from opencqrs_py.processing.decorators import event_handling, event_type, on_start

__all__ = [
    "Application",
    "Event",
    "Metadata",
    "NonTransientError",
    "OpenCqrsError",
    "ProcessingContext",
    "TransientError",
    "event_handling",
    "event_type",
    "on_start",
    "register_data_source",
]

_HOMES = {
    "Application": "assembly.application",
    "Event": "model.event",
    "Metadata": "model.event",
    "NonTransientError": "errors",
    "OpenCqrsError": "errors",
    "ProcessingContext": "model.context",
    "TransientError": "errors",
    "event_handling": "processing.decorators",
    "event_type": "processing.decorators",
    "on_start": "processing.decorators",
    "register_data_source": "assembly.spark_source",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        msg = f"module '{__name__}' has no attribute '{name}'"
        raise AttributeError(msg)
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
