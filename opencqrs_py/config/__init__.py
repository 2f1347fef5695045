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
    from opencqrs_py.config.effective import (
        EffectiveGroup,
        FetchRule,
        LifeCycleRule,
        ProcessingRule,
        ProgressRule,
        RetryRule,
        SequenceRule,
    )
    from opencqrs_py.config.inheritance import effective_group
    from opencqrs_py.config.loading import load
    from opencqrs_py.config.origin import Origin, OriginKind
    from opencqrs_py.config.pinning import pinned
    from opencqrs_py.config.problems import ConfigurationWarning
    from opencqrs_py.config.settings import GroupSettings, Settings
    from opencqrs_py.model.masking import mask_url

__all__ = [
    "Configuration",
    "ConfigurationWarning",
    "Controller",
    "DataFormat",
    "EffectiveGroup",
    "EffectiveValue",
    "Engine",
    "FetchRule",
    "GroupSettings",
    "LifeCycleRule",
    "OnExhausted",
    "OnUnknown",
    "Origin",
    "OriginKind",
    "ProcessingRule",
    "ProgressRule",
    "Resolution",
    "RetryPolicy",
    "RetryRule",
    "SequenceRule",
    "Settings",
    "Tracking",
    "effective_group",
    "load",
    "mask_url",
    "pinned",
]

_CHOICES = ("Controller", "DataFormat", "Engine", "OnExhausted", "OnUnknown", "Resolution", "RetryPolicy", "Tracking")
_RULES = ("EffectiveGroup", "FetchRule", "LifeCycleRule", "ProcessingRule", "ProgressRule", "RetryRule", "SequenceRule")
_MODULES = {
    **dict.fromkeys(_CHOICES, "choices"),
    **dict.fromkeys(_RULES, "effective"),
    "Configuration": "configuration",
    "ConfigurationWarning": "problems",
    "EffectiveValue": "configuration",
    "GroupSettings": "settings",
    "Origin": "origin",
    "OriginKind": "origin",
    "Settings": "settings",
    "effective_group": "inheritance",
    "load": "loading",
    "mask_url": ".model.masking",
    "pinned": "pinning",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
