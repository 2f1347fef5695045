"""The log of the stand-in: events in memory, with the rules of EventSourcingDB."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from http import HTTPStatus
from threading import Condition
from typing import Any

from opencqrs_py.testing.eventsourcingdb.requests import Json, RefusedError, check_candidate, check_subject, compact

_NO_HASH = "0" * 64
_HASH_V2 = "esdb:hash:v2:"
_OPTIONAL = ("traceparent", "tracestate")
_HASHED = ("specversion", "id", "predecessorhash", "time", "source", "subject", "type", "datacontenttype")

_VIOLATED = RefusedError(HTTPStatus.CONFLICT, "state conflict: precondition failed", "precondition-violated")


class EventLog:
    """Events with ids from 0. Safe for several threads.

    Args:
        now: The clock that gives events their time: nanoseconds since 1970.
        eventql: Evaluates an EventQL query, given its text and all events, for the precondition ``isEventQlQueryTrue``.
            Without it such queries are refused.

    Attributes:
        hash_version: Of the hashes of events that are written from now on, 1 or 2; the server sets it when it starts.
            Existing events keep theirs.
    """

    def __init__(
        self,
        now: Callable[[], int] = time.time_ns,
        eventql: Callable[[str, Sequence[Json]], object] | None = None,
    ) -> None:
        self.hash_version = 2
        self._eventql = eventql
        self._now = now
        self._events: list[Json] = []
        self._changed = Condition()

    def write(self, candidates: Sequence[Mapping[str, Any]], preconditions: Sequence[Json] = ()) -> list[Json]:
        """Add events, all or none, and return them as they are stored.

        Raises:
            RefusedError: If an event is not well-formed or a precondition does not hold.
        """
        if not candidates:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "events must not be empty", "events-missing")
        for candidate in candidates:
            check_candidate(candidate)
        with self._changed:
            for precondition in preconditions:
                self._check_precondition(precondition)
            written = [self._store(candidate) for candidate in candidates]
            self._changed.notify_all()
        return written

    def forget(self, keep: int = 0) -> None:
        """Lose all events but the first ``keep``, like a server that lost its disk, or was restored from a backup."""
        with self._changed:
            self._events = self._events[:keep]

    def read(self, subject: str, options: Json) -> list[Json]:
        """Return events as ``read-events`` does.

        Raises:
            RefusedError: If the subject does not start with a slash, or the latest event comes after the upper bound.
        """
        check_subject(subject)
        events = self._events
        first, beyond = _bounds(options, len(events))
        if latest := options.get("fromLatestEvent"):
            found = _latest(events, latest)
            if found is not None and "upperBound" in options and found >= beyond:
                text = "state conflict: fromLatestEvent results in an event ID greater than upperBound ID"
                raise RefusedError(HTTPStatus.CONFLICT, text, "range-unsatisfiable")
            reads_all = latest["ifEventIsMissing"] == "read-everything"
            first = (0 if reads_all else beyond) if found is None else found
        fitting = [event for event in events[first:beyond] if _fits(event, subject, options)]
        return fitting[::-1] if options.get("order") == "antichronological" else fitting

    def observe(
        self, subject: str, options: Json, heartbeat: float, ended: Callable[[], bool]
    ) -> Iterator[Json | None]:
        """Yield events as ``observe-events`` does, and ``None`` after every ``heartbeat`` seconds without one."""
        at, _ = _bounds(options, 0)
        if latest := options.get("fromLatestEvent"):
            found = _latest(self._events, latest)
            while found is None and latest["ifEventIsMissing"] == "wait-for-event" and not ended():
                at += len(self._new(at, heartbeat, ended))
                found = _latest(self._events, latest)
                if found is None:
                    yield None
            at = found or 0
        while True:
            new = self._new(at, heartbeat, ended)
            if ended():
                return
            yield from (event for event in new if _fits(event, subject, options)) if new else (None,)
            at += len(new)

    def _new(self, at: int, seconds: float, ended: Callable[[], bool]) -> list[Json]:
        with self._changed:
            self._changed.wait_for(lambda: len(self._events) > at or ended(), seconds)
            return self._events[at:]

    def wake(self) -> None:
        """Have all observers check whether their time is over."""
        with self._changed:
            self._changed.notify_all()

    def subjects(self, base: str, options: Json) -> list[str]:
        """Return the subjects that have events, as ``read-subjects`` does."""
        check_subject(base)
        return sorted({event["subject"] for event in self._events if _fits(event, base, options)})

    def is_true(self, query: str) -> bool:
        """Return the value of an EventQL query, as ``isEventQlQueryTrue`` evaluates it.

        Raises:
            RefusedError: If queries are not evaluated here, or the value is not a boolean.
        """
        if self._eventql is None:
            text = "this stand-in evaluates no EventQL: pass its log a function that does"
            raise RefusedError(HTTPStatus.BAD_REQUEST, text, "query-unevaluable")
        value = self._eventql(query, tuple(self._events))
        if not isinstance(value, bool):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "the query must return a boolean", "query-not-boolean")
        return value

    def _store(self, candidate: Mapping[str, Any]) -> Json:
        nanoseconds = self._now()
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(nanoseconds // 10**9))
        event = {
            "specversion": "1.0",
            "id": str(len(self._events)),
            "time": f"{seconds}.{nanoseconds % 10**9:09d}Z",
            "source": candidate["source"],
            "subject": candidate["subject"],
            "type": candidate["type"],
            "datacontenttype": "application/json",
            "predecessorhash": self._events[-1]["hash"] if self._events else _NO_HASH,
            "data": candidate["data"],
            "signature": None,
            **{name: candidate[name] for name in _OPTIONAL if name in candidate},
        }
        event["hash"] = _hash_v1(event) if self.hash_version == 1 else _hash_v2(event)
        self._events.append(event)
        return event

    def _check_precondition(self, precondition: Json) -> None:
        kind, payload = precondition["type"], precondition["payload"]
        if kind == "isEventQlQueryTrue":
            if not self.is_true(payload["query"]):
                raise _VIOLATED
            return
        options = payload.get("options", {"recursive": False})
        ids = [event["id"] for event in self._events if _fits(event, payload["subject"], options)]
        holds = {
            "isSubjectPristine": not ids,
            "isSubjectPopulated": bool(ids),
            "isSubjectOnEventId": ids[-1:] == [payload.get("eventId")],
        }
        if kind not in holds:
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"unknown precondition {kind!r}", "precondition-unknown")
        if not holds[kind]:
            raise _VIOLATED


def _bounds(options: Json, length: int) -> tuple[int, int]:
    """Return the indexes of the first event and of the one after the last. Ids are compared as numbers."""
    lower, upper = options.get("lowerBound"), options.get("upperBound")
    first = int(lower["id"]) + (lower["type"] == "exclusive") if lower else 0
    return first, int(upper["id"]) + (upper["type"] == "inclusive") if upper else length


def _fits(event: Json, subject: str, options: Json) -> bool:
    if event["subject"] == subject:
        return True
    return bool(options.get("recursive")) and event["subject"].startswith(subject.rstrip("/") + "/")


def _latest(events: Sequence[Json], latest: Json) -> int | None:
    """Return the index of the latest event of a type on a subject itself, ``None`` if there is none."""
    found = (
        n for n in range(len(events) - 1, -1, -1) if all(events[n][at] == latest[at] for at in ("subject", "type"))
    )
    return next(found, None)


def _hash_v1(event: Json) -> str:
    """Return the hash of an event, as servers before 1.3 write it.

    Source:
        EventSourcingDB's hash of version 1: SHA-256 over the hashes of the attributes and of the data.
    """
    attributes = sha256("|".join(event[name] for name in _HASHED).encode()).hexdigest()
    data = sha256(compact(event["data"]).encode()).hexdigest()
    return sha256((attributes + data).encode()).hexdigest()


def _hash_v2(event: Json) -> str:
    """Return the hash of an event, as servers from 1.3 on write it.

    Source:
        The official client: the prefix, each attribute and the data on separate lines, ``-`` for a missing trace.
    """
    lines = [_HASH_V2, *(event[name] for name in _HASHED), *(event.get(name, "-") for name in _OPTIONAL)]
    return _HASH_V2 + sha256("\n".join([*lines, compact(event["data"])]).encode()).hexdigest()
