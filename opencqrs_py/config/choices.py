"""Settings whose value is one of a few words."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from typing_extensions import override

from opencqrs_py.model.naming import canonical

SYNONYMS = {"jdbc": "sql"}
"""Other words for choices, canonical."""


ENGINES = "opencqrs.engines"
"""The group of entry points by which other packages register engines."""


class Choice(StrEnum):
    """An enum whose members are found by every spelling of their value (``PER-SUBJECT``, ``perSubject``)."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str):
            return None
        wanted = canonical(value.strip())
        wanted = SYNONYMS.get(wanted, wanted)
        return next((member for member in cls if canonical(member.value) == wanted), None)


class Controller(Choice):
    """Who starts and stops the processors of a group."""

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
    """How the data of events are laid out."""

    PLAIN = "plain"
    ENVELOPE = "envelope"


class RetryPolicy(Choice):
    """How the waits between the attempts of one event follow each other."""

    NONE = "none"
    FIXED = "fixed"
    EXPONENTIAL_BACKOFF = "exponential_backoff"


class OnExhausted(Choice):
    """What happens to an event whose last attempt has failed."""

    SKIP = "skip"
    STOP = "stop"
    PARK = "park"


class OnLost(Choice):
    """What happens if progress of a group that has begun is gone."""

    REFUSE = "refuse"
    INITIAL = "initial"


class OnChangedHandlers(Choice):
    """What happens if the handlers of a group are others than at its last start."""

    WARN = "warn"
    REFUSE = "refuse"
    IGNORE = "ignore"


class LiveDuringRebuild(Choice):
    """What a process with the handlers of an unfinished rebuild does with the group that others have built."""

    PAUSE = "pause"
    CONTINUE = "continue"


class Mode(Choice):
    """When a group handles its events: as they come, or in batches on a schedule."""

    STREAMING = "streaming"
    SCHEDULED = "scheduled"


class Interval(Choice):
    """From when on the interval of a schedule counts: the end of a tick, or its beginning."""

    FIXED_DELAY = "fixed-delay"
    FIXED_RATE = "fixed-rate"


class BatchMode(Choice):
    """What an event that fails means for its batch: the others wait for it, or each is tried for itself."""

    FAIL_FIRST = "fail-first"
    ALL = "all"


class BatchOrdering(Choice):
    """In which order the events of a batch are handled; alike ones always as in the log."""

    INSERTED = "inserted"
    EVENT_TIME = "event-time"
    EVENT_ID = "event-id"


class OnBatchExhausted(Choice):
    """What happens to an event of a scheduled group whose last attempt has failed."""

    BLOCK = "block"
    SKIP = "skip"


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
        """Pickle it by its value; Python 3.11.2 would by the name of a member, and a registered engine is none."""
        return Engine, (self.value,)


class Misfire(Choice):
    """What happens to ticks of a job that no process could begin in time."""

    RUN_ONCE = "run-once"
    SKIP = "skip"
    CATCH_UP = "catch-up"


class Overlap(Choice):
    """What happens to a run of a job that would begin before the one before it has ended."""

    SKIP = "skip"
    QUEUE = "queue"
    CANCEL = "cancel"


class OverlapScope(Choice):
    """Which runs of a job overlap: all of them, or those for the same id."""

    ALL_RUNS = "all-runs"
    PER_ID = "per-id"


class JobTransaction(Choice):
    """What of a job's run is one transaction."""

    RUN = "run"
    PAGE = "page"
    ITEM = "item"


class LogFormat(Choice):
    """How the log of the command line is written."""

    TEXT = "text"
    JSON = "json"


class DriverHandles(Choice):
    """When the driver of Spark handles events itself."""

    WHILE_STARTING = "while-starting"
    NEVER = "never"


class OnUnknown(Choice):
    """What becomes of keys and variables that name no setting."""

    ERROR = "error"
    WARN = "warn"
    IGNORE = "ignore"
