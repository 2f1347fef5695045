"""Reading: first unwrapped, then upcast."""

from __future__ import annotations

from typing import Any

import pytest

from opencqrs_py import Event, Metadata, Upcast
from opencqrs_py.errors import EventFormatError
from opencqrs_py.model import Upcaster
from opencqrs_py.processing.binding import NothingProvided
from opencqrs_py.processing.reading import Reading, Upcasters

WRAPPED = '{"payload": {"isbn": "1"}, "metadata": {"by": "Ada"}}'


def event(event_type: str = "v1", payload: str = '{"isbn": "1"}') -> Event:
    return Event(7, "4711", "s", "/books/1", event_type, None, "application/json", payload, None)


def with_reader(data: dict[str, Any], metadata: Metadata) -> Upcast:
    return Upcast("v2", {**data, "reader": metadata.get("by", "nobody")})


def upcasters() -> Upcasters:
    return Upcasters([Upcaster(("v1",), with_reader, "here")], NothingProvided())


@pytest.mark.parametrize(
    ("reading", "upcast_types", "plain"),
    [
        (Reading(), set(), {"v1", "v2"}),
        (Reading(upcasters()), {"v1"}, {"v2"}),
        (Reading(enveloped=True), set(), set()),
        (Reading(upcasters(), enveloped=True), {"v1"}, set()),
    ],
)
def test_types_that_are_read_unchanged_are_known(reading: Reading, upcast_types: set[str], plain: set[str]) -> None:
    assert reading.upcast_types == upcast_types
    assert {name for name in ("v1", "v2") if reading.plain_for(name)} == plain


@pytest.mark.parametrize(
    ("reading", "given", "expected"),
    [
        (Reading(), event(), [("v1", {"isbn": "1"})]),
        (Reading(upcasters()), event(), [("v2", {"isbn": "1", "reader": "nobody"})]),
        (Reading(upcasters()), event("other"), [("other", {"isbn": "1"})]),
        (Reading(enveloped=True), event("v1", WRAPPED), [("v1", {"isbn": "1"})]),
        (Reading(upcasters(), enveloped=True), event("v1", WRAPPED), [("v2", {"isbn": "1", "reader": "Ada"})]),
        (Reading(upcasters(), enveloped=True), event("other", WRAPPED), [("other", {"isbn": "1"})]),
    ],
)
def test_an_event_is_unwrapped_and_then_upcast(reading: Reading, given: Event, expected: list[tuple[str, Any]]) -> None:
    assert [(one.type, one.data) for one in reading.read(given)] == expected


def test_without_upcasting_only_the_envelope_is_removed() -> None:
    assert Reading(upcasters()).unwrapped(event()) == event()
    opened = Reading(upcasters(), enveloped=True).unwrapped(event("v1", WRAPPED))
    assert (opened.type, opened.data, opened.metadata) == ("v1", {"isbn": "1"}, {"by": "Ada"})


def test_an_event_without_the_required_envelope_is_refused() -> None:
    with pytest.raises(EventFormatError, match="OCQ-215"):
        Reading(enveloped=True).read(event())
