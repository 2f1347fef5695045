"""Times follow RFC 3339 to the letter, and every calculation gets the same moment."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py.model.times import check_time, is_time, microseconds, moment_of, surely_a_time

EXAMPLE = "write it like 2026-01-02T03:04:05Z or 2026-01-02T03:04:05.678+01:00"
NEW_YEAR_2017 = 1_483_228_800_000_000

MOMENTS = [
    ("1970-01-01T00:00:00Z", 0),
    ("1970-01-01T00:00:00.000001Z", 1),
    ("1970-01-01T00:00:00.000001999Z", 1),
    ("1970-01-01T01:00:00+01:00", 0),
    ("1970-01-01T00:00:00-00:00", 0),
    ("1969-12-31T23:59:59.999999Z", -1),
    ("2026-01-02T03:04:05.678901-09:30", 1_767_357_245_678_901),
    ("0001-01-01T00:00:00+23:59", -62_135_683_140_000_000),
    ("9999-12-31T23:59:59-23:59", 253_402_387_139_000_000),
    # forms that Python's own parser does not accept
    ("1970-01-01t00:00:00z", 0),
    ("1970-01-01 00:00:00z", 0),
    ("1969-12-31T23:59:59.9999999z", -1),
    ("1970-01-01T00:00:00." + "0" * 5 + "1" * 100 + "z", 1),
    ("1970-01-01T00:00:01.5z", 1_500_000),
    ("2024-02-29T12:00:00z", 1_709_208_000_000_000),
    ("2026-01-02T03:04:05.678901-09:30".replace("T", "t"), 1_767_357_245_678_901),
    # a leap second is the first moment of the next second
    ("2016-12-31T23:59:59.999999Z", NEW_YEAR_2017 - 1),
    ("2016-12-31T23:59:60Z", NEW_YEAR_2017),
    ("2016-12-31T23:59:60.999Z", NEW_YEAR_2017),
    ("2016-12-31T15:59:60-08:00", NEW_YEAR_2017),
    ("2017-01-01T09:29:60+09:30", NEW_YEAR_2017),
    ("2015-06-30t23:59:60z", 1_435_708_800_000_000),
]


@pytest.mark.parametrize(("time", "expected"), MOMENTS)
def test_a_time_is_the_same_moment_in_every_calculation(time: str, expected: int) -> None:
    assert is_time(time)
    assert microseconds(time) == expected
    assert moment_of(time) - datetime(1970, 1, 1, tzinfo=UTC) == timedelta(microseconds=expected)


@pytest.mark.parametrize(
    ("time", "offset"),
    [("2016-12-31t15:59:60-08:00", -8 * 60), ("2017-01-01T09:29:60+09:30", 570), ("2017-01-01 00:00:00z", 0)],
)
def test_a_moment_keeps_its_offset(time: str, offset: int) -> None:
    assert moment_of(time).utcoffset() == timedelta(minutes=offset)


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ("0000-01-01T00:00:00Z", -62_167_219_200_000_000),
        ("0000-02-29T00:00:00Z", -62_167_219_200_000_000 + 59 * 86_400_000_000),
        ("9999-12-31T23:59:60Z", 253_402_300_800_000_000),
    ],
)
def test_a_year_outside_pythons_range_has_microseconds_but_no_datetime(time: str, expected: int) -> None:
    assert is_time(time)
    assert microseconds(time) == expected
    with pytest.raises(ValueError, match=re.escape(f"{time!r} is in a year that Python's datetime does not have")):
        moment_of(time)


def test_a_missing_time_gives_no_moment_and_no_error() -> None:
    assert microseconds(None) is None
    check_time(None)


DATE = "the date must be written as YYYY-MM-DD"
SEPARATOR = "there must be a T between date and time of day"
TIME_OF_DAY = "the time of day must be written hh:mm:ss"
FRACTION = "a fraction of a second must be a point and digits"
OFFSET = "the offset must be Z, +hh:mm or -hh:mm"
LEAP = "a leap second (:60) must be the last of a month in UTC"

WRONG = [
    *[(text, DATE) for text in ("", "now", "2026", "2026-1-02T03:04:05Z", "26-01-02T03:04:05Z", "1767323045")],
    *[(text, DATE) for text in ("+2026-01-02T03:04:05Z", "02026-01-02T03:04:05Z", "2026-01-023T04:05:06Z")],
    *[(text, DATE) for text in ("2026-W01-1T00:00:00Z", "2026W011T00:00:00Z", "2026-002T03:04:05Z")],
    *[(text, DATE) for text in ("20260102T030405Z", "20260102T03:04:05Z")],
    *[(text, DATE) for text in ("2026/01/02T03:04:05Z", " 2026-01-02T03:04:05Z", "2026-01-0203:04:05Z")],
    *[(text, DATE) for text in ("２０２６-01-02T03:04:05Z", "٢٠٢٦-01-02T03:04:05Z", "2026‐01‐02T03:04:05Z")],
    *[(f"2026-01-02{between}03:04:05Z", SEPARATOR) for between in ("_", "x", "\t", "\n", "-", "😀")],
    ("2026-01-02", SEPARATOR),
    *[(f"2026-01-02T{of_day}Z", TIME_OF_DAY) for of_day in ("", "03", "03:04", "0304", "030405", "3:04:05", "03:04:5")],
    *[(f"2026-01-02T{of_day}Z", TIME_OF_DAY) for of_day in ("03:04:056", " 03:04:05", "03.04.05", "03:04:0５")],
    *[(f"2026-01-02T03:04:05{part}", FRACTION) for part in (".Z", ".", ".+01:00", ",5Z", ".-5Z", ".５Z")],
    *[(f"2026-01-02T03:04:05{part}", "an offset is missing") for part in ("", ".5")],
    *[(f"2026-01-02T03:04:05{end}", OFFSET) for end in ("+01", "+0100", "+1:00", "+01:00:00", "+01:00 ")],
    *[(f"2026-01-02T03:04:05{end}", OFFSET) for end in ("ZZ", "Z\n", " Z", "Z+01:00", "+01:00Z", "UTC")],
    *[(f"2026-01-02T03:04:05{end}", OFFSET) for end in ("−01:00", "+-1:00", "+01:0０", "+ 1:00")],
    *[(f"2026-01-02T03:04:05.5{end}", OFFSET) for end in ("e1Z", "x", ".5Z", "+01:00.5", "[UTC]", "Z[UTC]")],
    ("2026-00-02T03:04:05Z", "the month must be 01 to 12"),
    ("2026-13-02T03:04:05Z", "the month must be 01 to 12"),
    ("2026-01-00T03:04:05Z", "the day must be 01 to 31"),
    ("2026-01-32T03:04:05Z", "the day must be 01 to 31"),
    ("2026-04-31T03:04:05Z", "the day must be 01 to 30"),
    ("2026-02-29T03:04:05Z", "the day must be 01 to 28"),
    ("1900-02-29T03:04:05Z", "the day must be 01 to 28"),
    ("2024-02-30T03:04:05Z", "the day must be 01 to 29"),
    ("2026-01-02T24:00:00Z", "the hour must be 00 to 23"),
    ("2026-01-02T03:60:05Z", "the minute must be 00 to 59"),
    ("2026-01-02T03:04:61Z", "the second must be 00 to 60"),
    ("2026-01-02T03:04:05+24:00", "the hours of the offset must be 00 to 23"),
    ("2026-01-02T03:04:05-01:60", "the minutes of the offset must be 00 to 59"),
    *[(f"2026-01-31T{rest}", LEAP) for rest in ("03:04:60Z", "23:58:60Z", "23:59:60+01:00", "23:59:60-00:01")],
    *[(f"2026-{day}T23:59:60Z", LEAP) for day in ("01-30", "02-27", "07-01")],
]  # fmt: skip


@pytest.mark.parametrize(("text", "what"), WRONG)
def test_an_invalid_time_is_refused_with_the_reason_and_an_example(text: str, what: str) -> None:
    assert not is_time(text)
    with pytest.raises(ValueError, match=f"^{re.escape(f'{what}, got {text!r}; {EXAMPLE}')}$"):
        check_time(text)


def test_a_message_shows_the_beginning_of_a_long_text() -> None:
    with pytest.raises(ValueError, match="^the date .*, got '" + "x" * 40 + "'…; write") as caught:
        check_time("x" * 1_000_000)
    assert len(str(caught.value)) < 200


FORMER = {
    "20260102T030405Z": "2026-01-02T03:04:05Z",
    "2026-W01-5T03:04:05Z": "2026-01-02T03:04:05Z",
    "2026-01-02_03:04:05Z": "2026-01-02T03:04:05Z",
    "2026-01-02T03:04Z": "2026-01-02T03:04:00Z",
    "2026-01-02T03:04:05,5Z": "2026-01-02T03:04:05.5Z",
    "2026-01-02 03:04:05.5+00": "2026-01-02T03:04:05.5Z",
    "2026-01-02T03:04:05+0130": "2026-01-02T03:04:05+01:30",
}


@pytest.mark.parametrize(("former", "now"), FORMER.items())
def test_a_formerly_accepted_time_is_still_the_same_moment(former: str, now: str) -> None:
    assert not is_time(former)
    assert microseconds(former) == microseconds(now)
    assert moment_of(former) == moment_of(now)


def test_a_moment_whose_offset_has_seconds_is_converted() -> None:
    """Some regions had such offsets before standard time; the time of an event cannot."""
    moment = datetime(1890, 1, 1, tzinfo=timezone(timedelta(minutes=53, seconds=28)))
    assert microseconds(moment.isoformat()) == microseconds("1889-12-31T23:06:32Z")


@pytest.mark.parametrize("text", ["2026-01-02T03:04:05", "20260102T030405", "2026-01-02", "never", ""])
def test_an_invalid_time_has_no_microseconds(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(EXAMPLE)):
        microseconds(text)


def test_a_time_without_offset_from_another_program_becomes_a_naive_datetime() -> None:
    assert moment_of("2026-01-02 03:04:05") == datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001 that is the point


@given(
    st.datetimes(timezones=st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))),
    st.datetimes(timezones=st.just(UTC)),
)
def test_microseconds_order_moments_chronologically(one: datetime, other: datetime) -> None:
    first, second = microseconds(one.isoformat()), microseconds(other.isoformat())
    assert first is not None
    assert second is not None
    assert (first < second) == (one < other)


@given(st.datetimes(timezones=st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))))
def test_lower_case_letters_and_a_space_change_nothing(moment: datetime) -> None:
    text = moment.isoformat()
    utc = moment.replace(tzinfo=UTC).isoformat().replace("+00:00", "Z")
    for written, other in ((text, text.lower()), (text, text.replace("T", " ")), (utc, utc.lower())):
        assert is_time(other)
        assert microseconds(other) == microseconds(written)
        assert moment_of(other) == moment_of(written)


def test_the_quick_check_recognizes_the_usual_forms_of_times() -> None:
    """Otherwise imports and file reads take longer, and only a benchmark would show it."""
    for day in range(365):
        for text in ("T00:00:00Z", "T23:59:59.123456+00:00", "T12:30:00.123456789Z", "T08:15:30-07:00"):
            assert surely_a_time((datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day)).date().isoformat() + text)


@pytest.mark.parametrize("text", ["2024-01-01T00:00:05.Z", "2024-01-01T00:00:05.", "2024-01-01T00:00:05.+01:00"])
def test_a_decimal_point_without_digits_is_refused_on_every_python(text: str) -> None:
    assert not is_time(text)
    with pytest.raises(ValueError, match="a point without a digit"):
        moment_of(text)
