"""Choices: the words that a setting accepts, which decide how handlers and jobs are run."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from opencqrs_py.model.naming import canonical

SYNONYMS = {"jdbc": "sql"}
"""Other words for choices, canonical."""


class Choice(StrEnum):
    """An enum whose members are found by every spelling of their value (``PER-SUBJECT``, ``perSubject``)."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str):
            return None
        wanted = canonical(value.strip())
        wanted = SYNONYMS.get(wanted, wanted)
        return next((member for member in cls if canonical(member.value) == wanted), None)


class OnExhausted(Choice):
    """What happens to an event whose attempts are exhausted, or that cannot be decoded."""

    SKIP = "skip"
    STOP = "stop"
    PARK = "park"


class OnLost(Choice):
    """What happens at a start if the progress of a group is lost."""

    REFUSE = "refuse"
    INITIAL = "initial"


class OnChangedHandlers(Choice):
    """What happens at a start if the handlers of a group have changed."""

    WARN = "warn"
    REFUSE = "refuse"
    IGNORE = "ignore"


class BatchMode(Choice):
    """What a failing event means for the others of its batch."""

    FAIL_FIRST = "fail-first"  # they wait for it: the order is kept
    ALL = "all"  # nothing: each is tried on its own


class BatchOrder(Choice):
    """In which order the events of a batch are handled; ties are broken by the order of the log."""

    INSERTED = "inserted"
    EVENT_TIME = "event-time"
    EVENT_ID = "event-id"


class OnBatchExhausted(Choice):
    """What happens to an event of a scheduled group whose attempts are exhausted."""

    BLOCK = "block"  # it waits for a person, and with fail-first so does its sequence
    SKIP = "skip"


class Misfire(Choice):
    """What happens to ticks of a job that no process could begin in time."""

    RUN_ONCE = "run-once"  # one run for all of them
    SKIP = "skip"
    CATCH_UP = "catch-up"  # a run for each, one after the other


class Overlap(Choice):
    """What happens to a run of a job while another one has not ended."""

    SKIP = "skip"
    QUEUE = "queue"
    CANCEL = "cancel"  # the earlier one is requested to end


class OverlapScope(Choice):
    """Which runs of a job exclude each other."""

    ALL_RUNS = "all-runs"
    PER_ID = "per-id"  # those for the same id, and those for all


class JobTransaction(Choice):
    """Which part of a job's run is committed together."""

    RUN = "run"
    PAGE = "page"
    ITEM = "item"
