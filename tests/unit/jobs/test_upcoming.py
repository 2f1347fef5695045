"""The next instants of a job, as ``opencqrs jobs explain`` shows them."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from opencqrs_py.jobs.rules import Ticking
from opencqrs_py.jobs.upcoming import Upcoming, upcoming
from opencqrs_py.processing.inbox.schedules import CronSchedule, FixedDelay, FixedRate

FORWARD = "the clocks go forward: "
BACK = "the clocks go back: "
BERLIN, NEW_YORK, DUBLIN = "Europe/Berlin", "America/New_York", "Europe/Dublin"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("zone", "expression", "now", "local", "note"),
    [
        (
            BERLIN,
            "30 2 * * *",
            "2026-03-28T12:00",
            "2026-03-29 03:00:00 CEST",
            "02:30 does not exist, it runs at 03:00",
        ),
        (
            BERLIN,
            "15 30 2 * * *",
            "2026-03-28T12:00",
            "2026-03-29 03:00:15 CEST",
            "02:30 does not exist, it runs at 03:00",
        ),
        (BERLIN, "15 0 3 * * *", "2026-03-28T12:00", "2026-03-29 03:00:15 CEST", ""),
        (BERLIN, "10,20 * * * * *", "2026-03-29T00:59:20", "2026-03-29 03:00:10 CEST", ""),
        (
            BERLIN,
            "15 30 2 * * *",
            "2026-10-24T12:00",
            "2026-10-25 02:30:15 CEST",
            "02:30 comes twice, it runs at the first",
        ),
        (BERLIN, "15,45 2 * * *", "2026-03-28T12:00", "2026-03-29 03:00:00 CEST", "02:15 to 02:45 do not exist, "),
        (BERLIN, "0 3 * * *", "2026-03-28T12:00", "2026-03-29 03:00:00 CEST", ""),
        (BERLIN, "*/30 * * * *", "2026-03-29T00:30", "2026-03-29 03:00:00 CEST", ""),
        (BERLIN, "30 3 * * *", "2026-03-28T12:00", "2026-03-29 03:30:00 CEST", ""),
        (
            BERLIN,
            "30 2 * * *",
            "2026-10-24T12:00",
            "2026-10-25 02:30:00 CEST",
            "02:30 comes twice, it runs at the first",
        ),
        (BERLIN, "30 2 * * *", "2026-10-25T00:30", "2026-10-26 02:30:00 CET", ""),
        (
            BERLIN,
            "*/30 * * * *",
            "2026-10-25T00:10",
            "2026-10-25 02:30:00 CEST",
            "02:30 comes twice, it runs both times",
        ),
        (
            BERLIN,
            "*/30 * * * *",
            "2026-10-25T01:10",
            "2026-10-25 02:30:00 CET",
            "02:30 comes twice, it runs both times",
        ),
        (BERLIN, "*/30 * * * *", "2026-10-25T01:40", "2026-10-25 03:00:00 CET", ""),
        (
            NEW_YORK,
            "30 2 * * *",
            "2026-03-08T00:00",
            "2026-03-08 03:00:00 EDT",
            "02:30 does not exist, it runs at 03:00",
        ),
        (
            NEW_YORK,
            "30 1 * * *",
            "2026-11-01T00:00",
            "2026-11-01 01:30:00 EDT",
            "01:30 comes twice, it runs at the first",
        ),
        (DUBLIN, "30 1 * * *", "2026-03-28T12:00", "2026-03-29 02:00:00 IST", "01:30 does not exist, it runs at 02:00"),
        (
            DUBLIN,
            "30 1 * * *",
            "2026-10-24T12:00",
            "2026-10-25 01:30:00 IST",
            "01:30 comes twice, it runs at the first",
        ),
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03T00:00", "2026-10-04 02:30:00 +11", "02:15 does not exist"),
        ("UTC", "30 2 * * *", "2026-03-28T12:00", "2026-03-29 02:30:00 UTC", ""),
    ],
)
def test_an_instant_notes_the_effect_of_a_clock_change(zone, expression, now, local, note):
    (found,) = upcoming(Ticking(CronSchedule(expression, ZoneInfo(zone)), expression), utc(now), 1)
    assert found.local == local
    assert f"{found.at.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M:%S %Z}" == local
    assert found.at.utcoffset() == utc(now).utcoffset()
    if note:
        assert found.note.removeprefix(FORWARD).removeprefix(BACK).startswith(note)
        assert found.note.startswith(BACK if "twice" in note else FORWARD)
    else:
        assert found.note == ""


def test_the_next_instants_start_at_the_recorded_tick():
    ticking, now = Ticking(FixedRate(0, 90), "rate"), utc("2026-01-01T12:00")
    recorded = upcoming(ticking, now, 3, utc("2026-01-01T12:00:20"))
    assert [each.local for each in recorded] == [
        "2026-01-01 12:00:20 UTC",
        "2026-01-01 12:01:50 UTC",
        "2026-01-01 12:03:20 UTC",
    ]
    assert upcoming(ticking, now, 1) == (Upcoming(now, "2026-01-01 12:00:00 UTC"),)
    assert len(upcoming(ticking, now)) == 10


def test_only_the_next_tick_of_a_fixed_delay_is_known():
    ticking, now = Ticking(FixedDelay(7, 90), "delay", from_end=True), utc("2026-01-01T12:00")
    assert [each.local for each in upcoming(ticking, now, 10)] == ["2026-01-01 12:00:07 UTC"]
    assert upcoming(ticking, now, 0) == ()


def test_a_job_without_a_schedule_has_no_next_instant():
    assert upcoming(Ticking(), utc("2026-01-01T12:00"), 10) == ()
