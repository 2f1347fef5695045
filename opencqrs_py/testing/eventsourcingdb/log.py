"""The log of the stand-in: events in memory, with the rules of EventSourcingDB."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from http import HTTPStatus
from threading import Condition
from typing import Any

__all__ = ["EventLog", "Json", "RefusedError", "check_subject", "compact"]

Json = dict[str, Any]

_NO_HASH = "0" * 64
_OPTIONAL = ("traceparent", "tracestate")


class RefusedError(Exception):
    """A request that the server refuses.

    Args:
        status: Status of the answer, in version 1 of the API.
        text: What is said about it.
        code: Last part of the error's code, in version 2.
    """

    def __init__(self, status: int, text: str, code: str) -> None:
        super().__init__(status, text, code)
        self.status = status
        self.text = text
        self.code = code


class EventLog:
    """Events with ids from 0. Safe for several threads.

    Args:
        now: The clock that gives events their time: nanoseconds since 1970.
    """

    def __init__(self, now: Callable[[], int] = time.time_ns) -> None:
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
            _check(candidate)
        with self._changed:
            for precondition in preconditions:
                self._check_precondition(precondition)
            written = [self._store(candidate) for candidate in candidates]
            self._changed.notify_all()
        return written

    def forget(self, keep: int = 0) -> None:
        """Lose all events but the first ones, as a server that has lost its disk, or was restored from a backup.

        Args:
            keep: How many are left.
        """
        with self._changed:
            self._events = self._events[:keep]

    def read(self, subject: str, options: Json) -> list[Json]:
        """Return events as ``read-events`` does.

        Raises:
            RefusedError: If the subject does not start with a slash.
        """
        check_subject(subject)
        first, beyond = _bounds(options, len(self._events))
        fitting = [event for event in self._events[first:beyond] if _fits(event, subject, options)]
        return fitting[::-1] if options.get("order") == "antichronological" else fitting

    def observe(
        self, subject: str, options: Json, heartbeat: float, ended: Callable[[], bool]
    ) -> Iterator[Json | None]:
        """Yield events as ``observe-events`` does, and ``None`` after every ``heartbeat`` seconds without one."""
        at, _ = _bounds(options, 0)
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
        """Let all who observe see whether their time is over."""
        with self._changed:
            self._changed.notify_all()

    def subjects(self, base: str, options: Json) -> list[str]:
        """Return the subjects that have events, as ``read-subjects`` does."""
        check_subject(base)
        return sorted({event["subject"] for event in self._events if _fits(event, base, options)})

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
        event["hash"] = _hash(event)
        self._events.append(event)
        return event

    def _check_precondition(self, precondition: Json) -> None:
        kind, payload = precondition["type"], precondition["payload"]
        if kind == "isEventQlQueryTrue":
            raise RefusedError(HTTPStatus.BAD_REQUEST, "this stand-in knows no EventQL", "query-unevaluable")
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
            raise RefusedError(HTTPStatus.CONFLICT, "state conflict: precondition failed", "precondition-violated")


def _check(candidate: Mapping[str, Any]) -> None:
    for name in ("source", "subject", "type"):
        if not isinstance(candidate.get(name), str) or not candidate[name]:
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"{name} must not be empty", f"{name}-missing")
    if not isinstance(candidate.get("data"), dict):
        raise RefusedError(HTTPStatus.BAD_REQUEST, "data must be an object", "data-missing")
    check_subject(candidate["subject"])


def check_subject(subject: object) -> None:
    """Refuse a subject that does not start with a slash."""
    if not isinstance(subject, str) or not subject.startswith("/"):
        raise RefusedError(HTTPStatus.BAD_REQUEST, "subject must start with a slash", "subject-malformed")


def _bounds(options: Json, length: int) -> tuple[int, int]:
    """Return the indexes of the first event and of the one behind the last. Ids are compared as numbers."""
    lower, upper = options.get("lowerBound"), options.get("upperBound")
    first = int(lower["id"]) + (lower["type"] == "exclusive") if lower else 0
    return first, int(upper["id"]) + (upper["type"] == "inclusive") if upper else length


def _fits(event: Json, subject: str, options: Json) -> bool:
    if event["subject"] == subject:
        return True
    return bool(options.get("recursive")) and event["subject"].startswith(subject.rstrip("/") + "/")


def _hash(event: Json) -> str:
    """Return the hash of an event.

    Source:
        EventSourcingDB's hash of version 1: SHA-256 over the hashes of the attributes and of the data.
    """
    names = ("specversion", "id", "predecessorhash", "time", "source", "subject", "type", "datacontenttype")
    attributes = sha256("|".join(event[name] for name in names).encode()).hexdigest()
    data = sha256(compact(event["data"]).encode()).hexdigest()
    return sha256((attributes + data).encode()).hexdigest()


def compact(value: object) -> str:
    """Return JSON without spaces, in the order in which things came: the form that hashes are made of."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
