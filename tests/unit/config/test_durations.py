import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py.config.value_types import duration_text, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2s", 2),
        ("500ms", 0.5),
        ("1m30s", 90),
        ("1h30m", 5400),
        ("10 s", 10),
        ("1m 30s", 90),
        (" 2s ", 2),
        ("2S", 2),
        ("1.5s", 1.5),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("10ns", 1e-8),
        ("3d", 259_200),
        ("1 day", 86_400),
        ("2 minutes", 120),
        ("10 seconds", 10),
        ("100 millis", 0.1),
        ("0s", 0),
        ("PT10S", 10),
        ("PT0.5S", 0.5),
        ("PT0,5S", 0.5),
        ("PT1M30S", 90),
        ("P1DT2H", 93_600),
        ("P1W", 604_800),
        ("P30D", 2_592_000),
        ("365000d", 365_000 * 86_400),
        ("pt10s", 10),
    ],
)
def test_strings_with_a_unit_are_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["infinite", "Infinity", "inf", ".inf", "∞", "unlimited"])
def test_infinite_is_accepted_only_where_allowed(text):
    assert parse_duration(text, infinite=True) == math.inf
    with pytest.raises(ValueError, match="needs an end"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2", "write 2s for seconds, 2ms for milliseconds, or PT2S in ISO-8601"),
        ("2.5", "write 2.5s for seconds, 2.5ms for milliseconds, or PT2.5S in ISO-8601"),
        ("+2", "write 2s for seconds"),
        ("0", "the unit is missing"),
        ("-2", "cannot be negative"),
        ("-2s", "it is not a duration"),
        ("P1M", "put a T before minutes"),
        ("P1Y", "months and years have no fixed length"),
        ("P1Y2DT3H", "months and years"),
        ("P", "not an ISO-8601 duration"),
        ("PT", "not an ISO-8601 duration"),
        ("P1DT", "not an ISO-8601 duration"),
        ("PT1X", "not an ISO-8601 duration"),
        ("true", "it is not a duration"),
        ("never", "it is not a duration"),
        ("", "it is not a duration"),
        ("1e3", "it is not a duration"),
        ("1.s", "it is not a duration"),
        ("00:00:02", "a clock time is not a duration"),
        ("10:00", "a clock time is not a duration"),
        ("1:30", "a clock time is not a duration"),
        ("2 fortnights", "'fortnights' is not a unit of time; use one of d, h, m, s, ms, us, ns"),
        ("30s1m", "the longest first"),
        ("1m1m", "each unit may come once"),
        ("9" * 20 + "d", r"longer than 1,000 years \(365000d\)"),
        ("365001d", "longer than 1,000 years"),
    ],
)
def test_other_strings_are_refused_with_the_right_form(text, message):
    with pytest.raises(ValueError, match=message):
        parse_duration(text, infinite=True)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (2.0, "2s"),
        (0.5, "500ms"),
        (1.5, "1.5s"),
        (90, "1m30s"),
        (3600, "1h"),
        (86_400, "1d"),
        (93_784.25, "1d2h3m4.25s"),
        (0.00025, "250us"),
        (1e-8, "10ns"),
        (0.0015, "1.5ms"),
        (math.inf, "infinite"),
    ],
)
def test_seconds_are_written_in_the_shortest_form(seconds, text):
    assert duration_text(seconds) == text


@given(st.floats(min_value=0, max_value=365_000 * 86_400))
def test_a_written_duration_is_read_back(seconds):
    assert parse_duration(duration_text(seconds)) == seconds
