"""The rows of the table ``opencqrs_inbox``: how an entry of the inbox is stored and read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import Any

from opencqrs_py.adapters.sql.tables import INBOX
from opencqrs_py.errors import InboxError
from opencqrs_py.model.inbox import MOVING, FailedAttempt, InboxEntry, InboxStatus, as_entry
from opencqrs_py.model.naming import storable
from opencqrs_py.model.partition import hash_of
from opencqrs_py.model.times import in_milliseconds

COLUMNS = tuple(str(column.name) for column in INBOX.columns)
"""The columns of a row, in their order."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_ERROR_LENGTH, _LINES_LENGTH = 1_000, 8_000  # most characters kept of an error, and of the lines it comes from
_ERRORS_LENGTH = 60_000  # most characters of the JSON of all errors of an event: MariaDB's column takes 65,535
_LEAST_LINES = 250  # characters of the lines that are kept before errors themselves are shortened
_NO_ERRORS = "[]"
_STATUSES = {status.value: status for status in InboxStatus}
_TEXTS = {status: status.value for status in InboxStatus}

SequenceKey = tuple[int, str]
"""Hash and id of a sequence, as they are stored."""


@lru_cache(4_096)
def key_of(sequence_id: str) -> SequenceKey:
    """Return the stored form of a sequence: its id as JSON in ASCII, which every database keeps unchanged."""
    return hash_of(sequence_id), encode_basestring_ascii(sequence_id)


def misfit(group: str, key: SequenceKey) -> InboxError | None:
    """Return the error for a row whose hash and id do not match; ``None`` if they do.

    Such rows are found when events are searched, but not when they are changed: they would be tried endlessly.
    """
    hash_, text = key
    try:
        right, ascii_ = key_of(id_of(text))
    except (ValueError, AttributeError):  # no JSON, or no string
        right, ascii_ = hash_, ""
    if (right, ascii_) == key:
        return None
    column = "sequence_id" if ascii_ != text else "sequence_hash"
    value = f"set sequence_hash to {right} in these rows" if column == "sequence_hash" else "restore these rows"
    what = f"column {column} of {INBOX.name} was changed by another program: its events cannot be tried"
    where = f"group '{group}', sequence_hash {hash_}, sequence_id {text}"
    return InboxError("OCQ-617", what, where, f"stop the group, and {value}")


def row_of(entry: InboxEntry, key: SequenceKey, *, first: bool) -> tuple[Any, ...]:
    """Return the row of a new entry; only one that may be tried on its own has a due time."""
    group, _, position, event, source, subject, type_, status, parked_at, attempts, retries, due_at, *_ = entry
    errors, expires_at, replaying = entry.errors, entry.expires_at, entry.replaying
    due_ms = (ms_of(due_at) or ms_of(parked_at)) if first and status in MOVING else None
    named = (event, source, subject, type_)
    if not (together := "".join(named)).isascii() or "\0" in together:  # one lookup instead of four
        named = (storable(event), storable(source), storable(subject), storable(type_))
    failures = errors_text(errors) if errors else _NO_ERRORS
    expires_ms = None if expires_at is None else ms_of(expires_at)
    waiting = (_TEXTS[status], parked_at, attempts, retries, due_ms, failures, expires_ms, 1 if replaying else None)
    return (group, position, *key, *named, *waiting)


def entry_of(row: Sequence[Any]) -> InboxEntry:
    """Return the entry of a row with all columns."""
    group, position, _, id_, event, source, subject, type_, status, parked_at, attempts, retries, due_ms, *rest = row
    errors, expires_ms, replaying = rest
    failures = () if errors == _NO_ERRORS else tuple(FailedAttempt(**one) for one in json.loads(errors))
    times = (None if due_ms is None else time_of(due_ms), failures, None if expires_ms is None else time_of(expires_ms))
    event_and_status = (event, source, subject, type_, _STATUSES[status], parked_at, attempts, retries)
    return as_entry((group, id_of(id_), position, *event_and_status, *times, bool(replaying)))


def errors_text(errors: Sequence[FailedAttempt]) -> str:
    """Return errors as JSON in ASCII, which every database takes, whatever they contain and however long they are."""
    if not errors:
        return _NO_ERRORS
    of_error, of_lines = _ERROR_LENGTH, _LINES_LENGTH
    while len(text := json.dumps([asdict(_short(one, of_error, of_lines)) for one in errors])) > _ERRORS_LENGTH:
        of_error, of_lines = (of_error // 2, _LEAST_LINES) if of_lines <= _LEAST_LINES else (of_error, of_lines // 2)
    return text


def milliseconds(moment: datetime) -> int:
    """Return the milliseconds from 1970 to a moment."""
    return (moment - _EPOCH) // _MILLISECOND


@lru_cache(256)
def ms_of(text: str | None) -> int | None:
    """Return the milliseconds of a time as entries have it."""
    return None if text is None else milliseconds(datetime.fromisoformat(text))


@lru_cache(256)
def time_of(ms: int | None) -> str | None:
    """Return the time of milliseconds as entries have it."""
    return None if ms is None else in_milliseconds(_EPOCH + ms * _MILLISECOND)


@lru_cache(4_096)
def id_of(text: str) -> str:
    """Return the id of a sequence from what is stored of it."""
    found: str = json.loads(text)
    return found


def _short(error: FailedAttempt, of_error: int, of_lines: int) -> FailedAttempt:
    return FailedAttempt(error.at, error.error[:of_error], error.lines[-of_lines:])
