"""What a user may set: found in files, variables and arguments, bound, inherited and validated.

What reads settings loads when it is first used: the values that travel to Spark's workers need none of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from opencqrs_py.config.choices import (
    Controller,
    DataFormat,
    DriverHandles,
    Engine,
    LogFormat,
    OnUnknown,
    Resolution,
    RetryPolicy,
    Tracking,
)
from opencqrs_py.config.groups import (
    EffectiveGroup,
    FetchSettings,
    GroupSettings,
    LeaseSettings,
    LifeCycleSettings,
    ProcessingSettings,
    ProgressSettings,
    RetrySettings,
    SequenceSettings,
    effective_group,
)
from opencqrs_py.config.jobs import (
    EventTriggerSettings,
    HistorySettings,
    JobProcessingSettings,
    JobRetrySettings,
    JobSettings,
    TriggerSettings,
    effective_job,
)
from opencqrs_py.config.problems import ConfigurationWarning
from opencqrs_py.model.choices import JobTransaction, Misfire, OnExhausted, Overlap, OverlapScope
from opencqrs_py.model.masking import mask_url

if TYPE_CHECKING:
    from opencqrs_py.config.configuration import Configuration, EffectiveValue
    from opencqrs_py.config.entries import Origin, OriginKind
    from opencqrs_py.config.loading import load
    from opencqrs_py.config.settings import Settings
    from opencqrs_py.config.sources import pinned

__all__ = [
    "Configuration",
    "ConfigurationWarning",
    "Controller",
    "DataFormat",
    "DriverHandles",
    "EffectiveGroup",
    "EffectiveValue",
    "Engine",
    "EventTriggerSettings",
    "FetchSettings",
    "GroupSettings",
    "HistorySettings",
    "JobProcessingSettings",
    "JobRetrySettings",
    "JobSettings",
    "JobTransaction",
    "LeaseSettings",
    "LifeCycleSettings",
    "LogFormat",
    "Misfire",
    "OnExhausted",
    "OnUnknown",
    "Origin",
    "OriginKind",
    "Overlap",
    "OverlapScope",
    "ProcessingSettings",
    "ProgressSettings",
    "Resolution",
    "RetryPolicy",
    "RetrySettings",
    "SequenceSettings",
    "Settings",
    "Tracking",
    "TriggerSettings",
    "effective_group",
    "effective_job",
    "load",
    "mask_url",
    "pinned",
]

_LATER = ("configuration", "entries", "settings", "loading", "sources")


def __getattr__(name: str) -> Any:
    for module in (import_module(f"{__name__}.{each}") for each in _LATER if name in __all__):
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
