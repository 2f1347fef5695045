"""Settings whose value is one of a few words, where only settings know the words; else see ``model.choices``."""

from __future__ import annotations

from typing import Self

from typing_extensions import override

from opencqrs_py.model.choices import Choice
from opencqrs_py.model.naming import canonical

ENGINES = "opencqrs.engines"
"""The group of entry points by which other packages register engines."""


class Controller(Choice):
    """What starts and stops the processors of a group."""

    APPLICATION_CONTEXT = "application_context"
    LEADER_ELECTION = "leader_election"


class Tracking(Choice):
    """Where the progress of a group is kept. ``jdbc``, the word of OpenCQRS, means ``sql``."""

    IN_MEMORY = "in_memory"
    SQL = "sql"


class Resolution(Choice):
    """What must be handled in order within a group."""

    NO_SEQUENCE = "no_sequence"
    PER_SUBJECT = "per_subject"
    PER_SECOND_LEVEL_SUBJECT = "per_second_level_subject"
    PER_LEVEL_SUBJECT = "per_level_subject"
    PER_DATA_FIELD = "per_data_field"
    PER_METADATA_KEY = "per_metadata_key"


class DataFormat(Choice):
    """The layout of the data of events."""

    PLAIN = "plain"
    ENVELOPE = "envelope"


class RetryPolicy(Choice):
    """How the waits between the attempts of one event follow each other."""

    NONE = "none"
    FIXED = "fixed"
    EXPONENTIAL_BACKOFF = "exponential_backoff"


class LiveDuringRebuild(Choice):
    """What a process with the handlers of an unfinished rebuild does with the live group."""

    PAUSE = "pause"
    CONTINUE = "continue"


class Mode(Choice):
    """When a group handles its events: as they come, or in batches on a schedule."""

    STREAMING = "streaming"
    SCHEDULED = "scheduled"


class Interval(Choice):
    """Where the interval of a schedule starts: at the end of a tick, or at its beginning."""

    FIXED_DELAY = "fixed-delay"
    FIXED_RATE = "fixed-rate"


class Checkpointing(Choice):
    """When the progress of a group with participants is stored."""

    AUTO = "auto"
    DEFERRED = "deferred"
    REQUIRE_DEFERRED = "require-deferred"


class Engine(Choice):
    """What runs the processors of a group: an engine of ours, or one that another package registers."""

    SPARK = "spark"
    THREAD = "thread"

    @classmethod
    def registered(cls) -> tuple[str, ...]:
        """Return the names of the engines that other packages register."""
        from importlib.metadata import entry_points  # noqa: PLC0415 needed for other engines than ours only

        return tuple(sorted({entry.name for entry in entry_points(group=ENGINES)} - {each.value for each in cls}))

    @classmethod
    @override
    def _missing_(cls, value: object) -> Self | None:
        found = super()._missing_(value)
        if found is not None or not isinstance(value, str):
            return found
        name = next((each for each in cls.registered() if canonical(each) == canonical(value.strip())), None)
        if name is None:
            return None
        found = str.__new__(cls, name)  # as enum.Flag makes members of combinations
        found._name_ = found._value_ = name
        return found

    @override
    def __reduce_ex__(self, _protocol: object) -> tuple[type[Engine], tuple[str]]:
        """Pickle it by its value; Python 3.11.2 would use the name of a member, and a registered engine is not one."""
        return Engine, (self.value,)


class LogFormat(Choice):
    """How the log of the command line is written."""

    TEXT = "text"
    JSON = "json"


class DriverHandles(Choice):
    """When the driver of Spark handles events itself."""

    WHILE_STARTING = "while-starting"
    NEVER = "never"


class OnUnknown(Choice):
    """What happens to keys and variables that name no setting."""

    ERROR = "error"
    WARN = "warn"
    IGNORE = "ignore"
