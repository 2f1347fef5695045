"""What a user may set: found in files, variables and arguments, bound, inherited and validated.

Public names load when they are first used: the values that travel to Spark's workers need none of what reads them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opencqrs_py.config.choices import (
        Controller,
        DataFormat,
        Engine,
        OnExhausted,
        OnUnknown,
        Resolution,
        RetryPolicy,
        Tracking,
    )
    from opencqrs_py.config.configuration import Configuration, EffectiveValue
    from opencqrs_py.config.entries import Origin, OriginKind
    from opencqrs_py.config.groups import (
        EffectiveGroup,
        FetchSettings,
        GroupSettings,
        LifeCycleSettings,
        ProcessingSettings,
        ProgressSettings,
        RetrySettings,
        SequenceSettings,
        effective_group,
    )
    from opencqrs_py.config.loading import load
    from opencqrs_py.config.problems import ConfigurationWarning
    from opencqrs_py.config.settings import Settings
    from opencqrs_py.config.sources import pinned
    from opencqrs_py.model.masking import mask_url

__all__ = [
    "Configuration",
    "ConfigurationWarning",
    "Controller",
    "DataFormat",
    "EffectiveGroup",
    "EffectiveValue",
    "Engine",
    "FetchSettings",
    "GroupSettings",
    "LifeCycleSettings",
    "OnExhausted",
    "OnUnknown",
    "Origin",
    "OriginKind",
    "ProcessingSettings",
    "ProgressSettings",
    "Resolution",
    "RetryPolicy",
    "RetrySettings",
    "SequenceSettings",
    "Settings",
    "Tracking",
    "effective_group",
    "load",
    "mask_url",
    "pinned",
]

_CHOICES = ("Controller", "DataFormat", "Engine", "OnExhausted", "OnUnknown", "Resolution", "RetryPolicy", "Tracking")
_GROUP = (
    "EffectiveGroup",
    "GroupSettings",
    "FetchSettings",
    "LifeCycleSettings",
    "ProcessingSettings",
    "ProgressSettings",
    "RetrySettings",
    "SequenceSettings",
)
_MODULES = {
    **dict.fromkeys(_CHOICES, "choices"),
    **dict.fromkeys(_GROUP, "groups"),
    "Configuration": "configuration",
    "ConfigurationWarning": "problems",
    "EffectiveValue": "configuration",
    "Origin": "entries",
    "OriginKind": "entries",
    "Settings": "settings",
    "effective_group": "groups",
    "load": "loading",
    "mask_url": ".model.masking",
    "pinned": "sources",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
