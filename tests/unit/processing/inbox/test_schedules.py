"""The times of ticks."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from opencqrs_py.processing.inbox.schedules import CronSchedule, FixedDelay, FixedRate

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def test_a_fixed_delay_starts_at_the_end_of_the_previous_tick() -> None:
    schedule = FixedDelay(0, 5)
    assert schedule.first(NOON) == NOON
    assert schedule.following(NOON, after(7)) == after(12)
    assert schedule.following(after(12), after(19)) == after(24)


@pytest.mark.parametrize(("took", "following"), [(0, 5), (4.9, 5), (5, 10), (7, 10), (23, 25)])
def test_a_fixed_rate_keeps_its_grid_and_omits_past_ticks(took: float, following: float) -> None:
    assert FixedRate(10, 5).first(NOON) == after(10)
    assert FixedRate(10, 5).following(NOON, after(took)) == after(following)


@pytest.mark.parametrize(
    ("expression", "start", "expected"),
    [
        ("30 2 * * *", "2026-03-28T12:00", ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]),
        ("30 2 * * *", "2026-10-24T12:00", ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
        (
            "*/30 * * * *",
            "2026-10-25T01:50",
            [
                "2026-10-25T02:00+02:00",
                "2026-10-25T02:30+02:00",
                "2026-10-25T02:00+01:00",
                "2026-10-25T02:30+01:00",
                "2026-10-25T03:00+01:00",
            ],
        ),
        ("0 0 * * 0", "2026-01-01T00:00", ["2026-01-04T00:00+01:00"]),
        ("0 0 13 * 5", "2026-02-10T00:00", ["2026-02-13T00:00+01:00", "2026-02-20T00:00+01:00"]),
        ("10 0 0 * * *", "2026-01-01T12:00", ["2026-01-02T00:00:10+01:00"]),
        ("0 0 ? * MON", "2026-01-01T00:00", ["2026-01-05T00:00+01:00"]),
        ("@daily", "2026-01-01T12:00", ["2026-01-02T00:00+01:00"]),
        (" @Hourly ", "2026-01-01T12:10", ["2026-01-01T13:00+01:00"]),
    ],
)
def test_cron_expressions_behave_as_in_debian_cron(expression: str, start: str, expected: list[str]) -> None:
    schedule = CronSchedule(expression, BERLIN)
    ticks = [schedule.first(datetime.fromisoformat(start).replace(tzinfo=BERLIN).astimezone(UTC))]
    while len(ticks) < len(expected):
        ticks.append(schedule.following(ticks[-1], ticks[-1] + timedelta(seconds=1)))
    assert ticks == [datetime.fromisoformat(each) for each in expected]
    assert {tick.tzinfo for tick in islice(ticks, 3)} == {UTC}


@pytest.mark.parametrize(
    ("zone", "expression", "start", "expected"),
    [
        ("America/New_York", "30 2 * * *", "2026-03-08T00:00-05:00", "2026-03-08T03:00-04:00"),
        ("America/New_York", "30 1 * * *", "2026-11-01T00:00-04:00", "2026-11-01T01:30-04:00"),
        ("America/New_York", "30 1 * * *", "2026-11-01T01:30-04:00", "2026-11-02T01:30-05:00"),
        ("Europe/Dublin", "30 1 * * *", "2026-03-29T00:00+00:00", "2026-03-29T02:00+01:00"),
        ("Europe/Dublin", "30 1 * * *", "2026-10-25T00:00+01:00", "2026-10-25T01:30+01:00"),
        ("Europe/Dublin", "30 1 * * *", "2026-10-25T01:30+01:00", "2026-10-26T01:30+00:00"),
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-04T00:00+10:30", "2026-10-04T02:30+11:00"),
        ("Australia/Lord_Howe", "45 1 * * *", "2026-04-05T00:00+11:00", "2026-04-05T01:45+11:00"),
        ("Australia/Lord_Howe", "45 1 * * *", "2026-04-05T01:45+11:00", "2026-04-06T01:45+10:30"),
        ("Europe/Berlin", "0 30 2 * * *", "2026-03-29T00:00+01:00", "2026-03-29T03:00+02:00"),
        ("Europe/Berlin", "0 30 2 * * *", "2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"),
        ("Europe/Berlin", "00 30 2 * * *", "2026-03-29T00:00+01:00", "2026-03-29T03:00+02:00"),
        ("Europe/Berlin", "15 30 2 * * *", "2026-03-29T00:00+01:00", "2026-03-29T03:00:15+02:00"),
        ("Europe/Berlin", "15 30 2 * * *", "2026-10-25T02:30:15+02:00", "2026-10-26T02:30:15+01:00"),
        ("Europe/Berlin", "0/30 30 2 * * *", "2026-10-25T02:30:00+02:00", "2026-10-25T02:30:30+02:00"),
        ("Europe/Berlin", "0/30 30 2 * * *", "2026-10-25T02:30:30+02:00", "2026-10-26T02:30+01:00"),
    ],
)
def test_clock_changes_neither_lose_nor_repeat_a_tick(zone: str, expression: str, start: str, expected: str) -> None:
    begin = datetime.fromisoformat(start).astimezone(UTC)
    assert CronSchedule(expression, ZoneInfo(zone)).following(begin, begin) == datetime.fromisoformat(expected)


@pytest.mark.parametrize("seconds", [0, 600, 1_800, 3_599])
def test_the_first_tick_is_after_the_start_even_during_a_repeated_hour(seconds: int) -> None:
    second_two_o_clock = datetime(2026, 10, 25, 1, tzinfo=UTC)
    start = second_two_o_clock + timedelta(seconds=seconds)
    assert CronSchedule("30 2 * * *", BERLIN).first(start) == datetime.fromisoformat("2026-10-26T02:30+01:00")


def test_ticks_that_pass_during_another_are_omitted() -> None:
    assert CronSchedule("0 * * * *").following(NOON, NOON + timedelta(hours=3, minutes=5)) == NOON + timedelta(hours=4)


def test_a_cron_expression_is_parsed_once_per_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = pickle.loads(pickle.dumps(CronSchedule("@hourly", BERLIN)))
    parsed: list[str] = []
    parse = CronSim.__init__

    def counting(self: CronSim, expression: str, *others: Any) -> None:
        parsed.append(expression)
        parse(self, expression, *others)

    monkeypatch.setattr(CronSim, "__init__", counting)
    tick = schedule.first(NOON)
    assert schedule.following(tick, tick) == after(7_200)
    assert parsed == ["0 * * * *"] * 2


@pytest.mark.parametrize("wrong", ["", "every day", "0 0 31 2 *", "61 * * * *", "* * * * * * *", "-", "@reboot"])
def test_an_invalid_cron_expression_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="is not a cron expression"):
        CronSchedule(wrong)


@pytest.mark.parametrize(
    ("expression", "start", "end", "last"),
    [
        ("30 2 * * *", "2026-01-01T02:30", "2026-01-02T02:29", None),
        ("30 2 * * *", "2026-01-01T02:29", "2026-01-01T02:30", "2026-01-01T02:30+01:00"),
        ("30 2 * * *", "2026-01-01T02:30", "2026-06-05T02:29", "2026-06-04T02:30+02:00"),
        ("30 2 * * *", "2026-03-27T12:00", "2026-03-29T04:00", "2026-03-29T03:00+02:00"),
        ("0 0 29 2 *", "2020-01-01T00:00", "2027-01-01T00:00", "2024-02-29T00:00+01:00"),
        ("* * 1 1 *", "2026-01-01T00:00", "2026-12-31T00:00", "2026-01-01T23:59+01:00"),
        ("*/20 * * * * *", "2026-01-01T00:00", "2026-01-09T10:00:39.999", "2026-01-09T10:00:20+01:00"),
        ("* * * * * *", "2026-01-01T00:00", "2026-01-09T10:00:39.999", "2026-01-09T10:00:39+01:00"),
    ],
)
def test_the_last_tick_before_a_time_is_found_in_few_steps(
    expression: str, start: str, end: str, last: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[datetime] = []
    first = CronSchedule.first
    monkeypatch.setattr(CronSchedule, "first", lambda self, at: (steps.append(at), first(self, at))[1])
    schedule = CronSchedule(expression, BERLIN)
    after, upto = (datetime.fromisoformat(each).replace(tzinfo=BERLIN).astimezone(UTC) for each in (start, end))
    assert schedule.last(after, upto) == (None if last is None else datetime.fromisoformat(last))
    assert len(steps) <= 40
