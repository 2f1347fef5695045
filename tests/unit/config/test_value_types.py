"""Validation of values given in code, which need not be strings."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import TypeAdapter, ValidationError

from opencqrs_py.config.value_types import (
    Attempts,
    Bind,
    Duration,
    EndlessDuration,
    Name,
    Position,
    Subject,
    Url,
    Whole,
    address_of,
)

MOMENT = datetime(2024, 5, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (Duration, 2, 2.0),
        (Duration, 0.5, 0.5),
        (Duration, timedelta(minutes=1), 60.0),
        (EndlessDuration, math.inf, math.inf),
        (EndlessDuration, "infinite", math.inf),
        (EndlessDuration, 3, 3.0),
        (Attempts, 3, 3),
        (Attempts, math.inf, None),
        (Attempts, "infinite", None),
        (Whole, 3, 3),
        (Position, 4711, "4711"),
        (Position, MOMENT, "2024-05-31T12:00:00+00:00"),
        (Url, " sqlite:// ", "sqlite://"),
        (Name, "mine", "mine"),
        (Subject, "/", "/"),
    ],
)
def test_values_given_in_code_are_converted(kind, given, value):
    assert TypeAdapter(kind).validate_python(given) == value


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (Duration, True),
        (Duration, None),
        (Duration, -1),
        (Duration, math.inf),
        (Duration, math.nan),
        (Duration, timedelta(seconds=-1)),
        (EndlessDuration, -math.inf),
        (EndlessDuration, math.nan),
        (Attempts, True),
        (Attempts, 1.5),
        (Attempts, -1),
        (Attempts, None),
        (Whole, 1.5),
        (Position, True),
        (Position, -1),
        (Position, None),
        (Position, MOMENT.replace(tzinfo=None)),
        (Url, "events.db"),
        (Url, ""),
        (Name, " "),
        (Subject, "books"),
        (Subject, 3),
    ],
)
def test_values_that_make_no_sense_are_refused(kind, given):
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(given)


@pytest.mark.parametrize(
    ("given", "address"),
    [
        (8080, ("127.0.0.1", 8080)),
        ("8080", ("127.0.0.1", 8080)),
        (":8080", ("127.0.0.1", 8080)),
        (" 0.0.0.0:80 ", ("0.0.0.0", 80)),
        ("[::1]:8080", ("::1", 8080)),
        ("[::]:0", ("::", 0)),
        ("localhost:65535", ("localhost", 65_535)),
    ],
)
def test_an_address_to_listen_on_is_a_port_with_or_without_a_host(given, address):
    assert address_of(TypeAdapter(Bind).validate_python(given)) == address


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (True, "it is not an address"),
        (8080.0, "it is not an address"),
        ("", "the port is missing"),
        ("localhost", "the port is missing"),
        ("localhost:", "the port is not a number"),
        ("localhost:http", "the port is not a number"),
        ("127.0.0.1:65536", "a port is at most 65535"),
        ("-1", "the port is missing"),
        ("http://localhost:8080", "it is a URL or a path"),
        ("::1:8080", "an IPv6 address needs brackets"),
        ("[::1:8080", "an IPv6 address needs brackets"),
        ("*:8080", "there is no such host"),
        ("[]:8080", "there is no such host"),
    ],
)
def test_an_invalid_listen_address_is_refused(given, says):
    with pytest.raises(ValidationError, match=says):
        TypeAdapter(Bind).validate_python(given)
