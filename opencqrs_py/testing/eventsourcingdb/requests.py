"""Requests to the stand-in: what they may contain, and how the server refuses anything else.

Source:
    The vendor's validation rules for CloudEvents (source, subject, type, data), the error codes and the notes on nulls
    and unknown fields in the official Python client 2.2, and the pages *Reading Events* and *Writing Events* of the
    documentation. Where these are silent: a size is that of the candidate as compact JSON, a request without a required
    field that has no code is refused with the status 400, and an oversized event with 413 in version 1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

Json = dict[str, Any]

_SUBJECT = re.compile(r"/([0-9A-Za-z_-]+/)*([0-9A-Za-z_-]+/?)?")
_TYPE = re.compile(r"[0-9A-Za-z_-]{2,}\.([0-9A-Za-z_-]+\.)+[0-9A-Za-z_-]+")
_SOURCE = re.compile(r"[A-Za-z][0-9A-Za-z+.-]*:[^\s]+")
_TRACE_PARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACE_STATE = re.compile(r"[0-9a-z_*/@-]+=[^,=]+(,\s*[0-9a-z_*/@-]+=[^,=]+){0,31}")


class RefusedError(Exception):
    """A request that the server refuses.

    Args:
        status: Status of the answer, in version 1 of the API, and in version 2 if there is no code.
        text: The error message.
        code: Last part of the error's code, in version 2; empty for requests that are refused before they are parsed.
    """

    def __init__(self, status: int, text: str, code: str = "") -> None:
        super().__init__(status, text, code)
        self.status = status
        self.text = text
        self.code = code


def _bad(text: str, code: str = "") -> RefusedError:
    return RefusedError(HTTPStatus.BAD_REQUEST, text, code)


def _refuse_constant(name: str) -> None:
    """Refuse NaN and infinity, which Python's parser accepts although they are not JSON."""
    raise ValueError(name)


class _Field(NamedTuple):
    """A field of a request: its kind, and the error code if it is missing or empty.

    ``None`` means that it is optional; an empty code that it is required, but has no error code.
    """

    kind: type
    missing: str | None = None


_BOUND = {"id": _Field(str, "event-id-missing"), "type": _Field(str, "bound-type-missing")}
_INCOMPLETE = "from-latest-event-incomplete"
_FROM_LATEST = {name: _Field(str, _INCOMPLETE) for name in ("subject", "type", "ifEventIsMissing")}
_OBSERVING = {"recursive": _Field(bool, ""), "lowerBound": _Field(dict), "fromLatestEvent": _Field(dict)}
_READING = {**_OBSERVING, "order": _Field(str), "upperBound": _Field(dict)}
_REQUEST = {"subject": _Field(str, "subject-missing"), "options": _Field(dict, "")}
_CANDIDATE = {
    "source": _Field(str, "source-missing"),
    "subject": _Field(str, "subject-missing"),
    "type": _Field(str, "event-type-missing"),
    "data": _Field(object, "data-missing"),
    "traceparent": _Field(str),
    "tracestate": _Field(str),
}
_PRECONDITION = {"type": _Field(str, "precondition-type-missing"), "payload": _Field(dict, "payload-missing")}
_ON_SUBJECT = {"subject": _Field(str, "subject-missing"), "options": _Field(dict)}
_PAYLOADS = {
    "isSubjectPristine": _ON_SUBJECT,
    "isSubjectPopulated": _ON_SUBJECT,
    "isSubjectOnEventId": {**_ON_SUBJECT, "eventId": _Field(str, "event-id-missing")},
    "isEventQlQueryTrue": {"query": _Field(str, "query-missing")},
}
_IF_MISSING = {
    "read-events": ("read-nothing", "read-everything"),
    "observe-events": ("wait-for-event", "read-everything"),
}


class Rules(NamedTuple):
    """What the server accepts.

    Attributes:
        version: Version of the API, 1 or 2.
        names: Whether sources, subjects and types must have the server's form, or may be any text.
        largest_event: Most bytes of an event, as JSON.
    """

    version: int
    names: bool = True
    largest_event: int = 65_536

    def parsed(self, text: bytes) -> Json:
        """Return a request's body, an empty one as an empty object; refuse what is not an object in JSON."""
        try:
            body = json.loads(text or b"{}", parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            raise _bad("the request body must be valid JSON") from None
        if not isinstance(body, dict):
            raise _bad("the request body must be an object")
        return body

    def checked(self, what: str, body: Json) -> Json:
        """Return a request's body without what counts as not given.

        Raises:
            RefusedError: If the server refuses it as it is, whatever the log holds.
        """
        match what:
            case "write-events":
                return self._write(body)
            case "read-events":
                return self._selection(body, what, _READING)
            case "observe-events":
                return self._selection(body, what, _OBSERVING)
            case "read-subjects":
                return self._subjects(body)
            case "ping" | "verify-api-token":
                return self._shaped(body, {}, "the request")
        return body

    def _write(self, body: Json) -> Json:
        fields = {"events": _Field(list, "events-missing"), "preconditions": _Field(list)}
        body = self._shaped(body, fields, "the request")
        events = [self._shaped(event, _CANDIDATE, "an event") for event in body["events"]]
        for event in events:
            check_candidate(event)
            if self.names:
                _check_names(event)
            if len(compact(event).encode()) > self.largest_event:
                status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
                raise RefusedError(status, f"an event must not exceed {self.largest_event} bytes", "event-too-large")
        return {"events": events, "preconditions": [self._condition(each) for each in body.get("preconditions", ())]}

    def _condition(self, value: object) -> Json:
        condition = self._shaped(value, _PRECONDITION, "a precondition")
        fields = _PAYLOADS.get(condition["type"])
        if fields is None:
            raise _bad(f"unknown precondition '{condition['type']}'", "precondition-unknown")
        if self.version == 1:  # which knows no options, and rejects them
            fields = {name: field for name, field in fields.items() if name != "options"}
        payload = self._shaped(condition["payload"], fields, f"the payload of {condition['type']}")
        if "subject" in payload:
            self._check_subject(payload["subject"])
        if "eventId" in payload:
            _check_id(payload["eventId"])
        if "options" in payload:
            payload["options"] = self._shaped(payload["options"], {"recursive": _Field(bool, "")}, "options")
        return {"type": condition["type"], "payload": payload}

    def _selection(self, body: Json, what: str, fields: Mapping[str, _Field]) -> Json:
        body = self._shaped(body, _REQUEST, "the request")
        self._check_subject(body["subject"])
        options = self._shaped(body["options"], fields, "options")
        for name in ("lowerBound", "upperBound"):
            if name in options:
                options[name] = self._bound(options[name], name)
        if options.get("order", "chronological") not in ("chronological", "antichronological"):
            raise _bad("order must be chronological or antichronological", "order-unknown")
        if "fromLatestEvent" in options:
            if "lowerBound" in options:
                raise _bad("lowerBound and fromLatestEvent are mutually exclusive", "selection-conflicting")
            options["fromLatestEvent"] = self._latest(options["fromLatestEvent"], _IF_MISSING[what])
        return {"subject": body["subject"], "options": options}

    def _bound(self, value: object, name: str) -> Json:
        bound = self._shaped(value, _BOUND, name)
        _check_id(bound["id"])
        if bound["type"] not in ("inclusive", "exclusive"):
            raise _bad(f"the type of {name} must be inclusive or exclusive", "bound-type-unknown")
        return bound

    def _latest(self, value: object, ways: tuple[str, ...]) -> Json:
        latest = self._shaped(value, _FROM_LATEST, "fromLatestEvent")
        self._check_subject(latest["subject"])
        if self.names and not _TYPE.fullmatch(latest["type"]):
            raise _bad("type must be a reversed domain name", "event-type-malformed")
        if latest["ifEventIsMissing"] not in ways:
            raise _bad(f"ifEventIsMissing must be one of {', '.join(ways)}", "if-event-is-missing-unknown")
        return latest

    def _subjects(self, body: Json) -> Json:
        if self.version == 1:
            body = self._shaped(body, {"baseSubject": _Field(str, "subject-missing")}, "the request")
            found = {"subject": body["baseSubject"], "options": {"recursive": True}}
        else:
            body = self._shaped(body, _REQUEST, "the request")
            options = self._shaped(body["options"], {"recursive": _Field(bool, "")}, "options")
            found = {"subject": body["subject"], "options": options}
        self._check_subject(found["subject"])
        return found

    def _check_subject(self, subject: str) -> None:
        check_subject(subject)
        if self.names and not _SUBJECT.fullmatch(subject):
            raise _bad("subject must be an absolute, slash-separated path", "subject-malformed")

    def _shaped(self, value: object, fields: Mapping[str, _Field], where: str) -> Json:
        """Return an object's fields. Version 1 takes a null for a field that is not given."""
        if not isinstance(value, dict):
            raise _bad(f"{where} must be an object")
        unknown = sorted(value.keys() - fields.keys())
        if unknown:
            raise _bad(f"{where} has an unknown field '{unknown[0]}'")
        if self.version > 1 and None in value.values():
            raise _bad(f"{where} has a field that is null")
        given = {name: item for name, item in value.items() if item is not None}
        for name, field in fields.items():
            empty = given.get(name) is None or (field.kind in (str, list) and not given[name])
            if field.missing is not None and empty:
                raise _bad(f"{name} must not be empty", field.missing)
            if name in given and not isinstance(given[name], field.kind):
                raise _bad(f"{name} of {where} has the wrong type")
        return given


def check_candidate(candidate: Mapping[str, Any]) -> None:
    """Refuse an event that no log could keep: an attribute is missing, or the data are not an object."""
    for name in ("source", "subject", "type"):
        if not isinstance(candidate.get(name), str) or not candidate[name]:
            code = "event-type-missing" if name == "type" else f"{name}-missing"
            raise _bad(f"{name} must not be empty", code)
    if candidate.get("data") is None:
        raise _bad("data must not be empty", "data-missing")
    if not isinstance(candidate["data"], dict):
        raise _bad("data must be an object", "data-malformed")
    check_subject(candidate["subject"])


def check_subject(subject: object) -> None:
    """Refuse a subject that does not start with a slash."""
    if not isinstance(subject, str) or not subject.startswith("/"):
        raise _bad("subject must start with a slash", "subject-malformed")


def _check_names(candidate: Json) -> None:
    if not _SOURCE.fullmatch(candidate["source"]):
        raise _bad(f"source '{candidate['source']}' must be a valid URI", "source-malformed")
    if not _SUBJECT.fullmatch(candidate["subject"]):
        raise _bad(f"subject '{candidate['subject']}' must be an absolute, slash-separated path", "subject-malformed")
    if not _TYPE.fullmatch(candidate["type"]):
        raise _bad(f"type '{candidate['type']}' must be a reversed domain name", "event-type-malformed")
    parent, state = candidate.get("traceparent"), candidate.get("tracestate")
    if parent is not None and not _TRACE_PARENT.fullmatch(parent):
        raise _bad("traceparent is malformed", "traceparent-malformed")
    if state is not None and parent is None:
        raise _bad("tracestate must not be given without traceparent", "tracestate-without-traceparent")
    if state is not None and not _TRACE_STATE.fullmatch(state):
        raise _bad("tracestate is malformed", "tracestate-malformed")


def _check_id(event_id: str) -> None:
    if not (event_id.isascii() and event_id.isdigit()):
        raise _bad(f"event id '{event_id}' must be a number", "event-id-malformed")


def compact(value: object) -> str:
    """Return JSON without spaces, with members in their original order: the form that is hashed."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
