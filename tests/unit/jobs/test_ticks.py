"""J15: what happens to ticks, by misfire rule, kind of schedule and how late they are seen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from opencqrs_py.jobs import ticks
from opencqrs_py.jobs.rules import Ticking
from opencqrs_py.jobs.ticks import MOST_TICKS, Tick, ticks_until
from opencqrs_py.model.choices import Misfire
from opencqrs_py.processing.inbox.schedules import CronSchedule, FixedDelay, FixedRate, Schedule

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
RATE = FixedRate(0, 60)
CRON = CronSchedule("* * * * *")
SECONDLY = CronSchedule("* * * * * *")


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def fate(tick: Tick) -> str:
    if tick.missed:
        return "missed"
    if tick.with_later:
        return "later"
    return "waits" if tick.waits else "runs"


@pytest.mark.parametrize("schedule", [pytest.param(RATE, id="fixed rate"), pytest.param(CRON, id="cron")])
@pytest.mark.parametrize(
    ("misfire", "late", "expected"),
    [
        pytest.param(Misfire.RUN_ONCE, -0.001, [], id="J15: run-once, not yet"),
        pytest.param(Misfire.RUN_ONCE, 0, ["runs"], id="J15: run-once, in time"),
        pytest.param(Misfire.RUN_ONCE, 59.9, ["runs"], id="J15: run-once, late"),
        pytest.param(Misfire.RUN_ONCE, 185, ["later", "later", "later", "runs"], id="J15: run-once, several missed"),
        pytest.param(Misfire.SKIP, 0, ["runs"], id="J15: skip, in time"),
        pytest.param(Misfire.SKIP, 10, ["runs"], id="J15: skip, within the grace"),
        pytest.param(Misfire.SKIP, 10.1, ["missed"], id="J15: skip, after the grace"),
        pytest.param(Misfire.SKIP, 125, ["missed", "missed", "runs"], id="J15: skip, the last one in time"),
        pytest.param(Misfire.SKIP, 140, ["missed", "missed", "missed"], id="J15: skip, all missed"),
        pytest.param(Misfire.CATCH_UP, 0, ["waits"], id="J15: catch-up, in time"),
        pytest.param(Misfire.CATCH_UP, 125, ["waits", "waits", "waits"], id="J15: catch-up, several missed"),
    ],
)
def test_due_ticks_follow_the_misfire_rule(
    schedule: Schedule, misfire: Misfire, late: float, expected: list[str]
) -> None:
    found = ticks_until(Ticking(schedule, "text", misfire=misfire, grace=10), NOON, after(late))
    assert [fate(tick) for tick in found.due] == expected
    assert [tick.at for tick in found.due] == [after(60 * index) for index in range(len(expected))]
    assert found.next == after(60 * len(expected))


def test_several_ticks_within_the_grace_become_one_run() -> None:
    found = ticks_until(Ticking(FixedRate(0, 2), "text", misfire=Misfire.SKIP, grace=5), NOON, after(8))
    assert [fate(tick) for tick in found.due] == ["missed", "missed", "later", "later", "runs"]


@pytest.mark.parametrize(
    ("misfire", "late", "expected", "following"),
    [
        pytest.param(Misfire.RUN_ONCE, 500, "runs", None, id="J14: run-once"),
        pytest.param(Misfire.CATCH_UP, 500, "runs", None, id="J14: catch-up"),
        pytest.param(Misfire.SKIP, 10, "runs", None, id="J14: skip, within the grace"),
        pytest.param(Misfire.SKIP, 11, "missed", 71, id="J14: skip, after the grace: the delay starts now"),
    ],
)
def test_a_fixed_delay_has_one_tick_at_a_time(misfire, late, expected, following) -> None:
    rule = Ticking(FixedDelay(0, 60), "text", from_end=True, misfire=misfire, grace=10)
    found = ticks_until(rule, NOON, after(late))
    assert [fate(tick) for tick in found.due] == [expected]
    assert found.next == (None if following is None else after(following))


def test_without_a_schedule_there_are_no_ticks() -> None:
    assert ticks_until(Ticking(), NOON, after(1_000)).due == ()


@pytest.mark.parametrize("schedule", [pytest.param(FixedRate(0, 1), id="rate"), pytest.param(SECONDLY, id="cron")])
@pytest.mark.parametrize(
    ("misfire", "first", "others"),
    [(Misfire.RUN_ONCE, "later", "later"), (Misfire.SKIP, "missed", "missed"), (Misfire.CATCH_UP, "missed", "waits")],
)
def test_the_oldest_of_very_many_ticks_share_one_record(schedule, misfire, first, others) -> None:
    found = ticks_until(Ticking(schedule, "text", misfire=misfire, grace=10), NOON, after(2_500))
    assert len(found.due) == MOST_TICKS + 1
    assert found.due[0].count == 2_501 - MOST_TICKS
    assert {tick.count for tick in found.due[1:]} == {1}
    assert fate(found.due[0]) == first
    assert fate(found.due[1]) == others
    assert all(later.at - tick.at == timedelta(seconds=1) for tick, later in pairwise(found.due))
    assert (found.due[-1].at, found.next) == (after(2_500), after(2_501))
    if misfire is Misfire.CATCH_UP:
        assert found.due[0].missed == "1,501 ticks were missed"


def test_the_shared_record_of_skipped_ticks_reports_misses_even_within_a_long_grace() -> None:
    rule = Ticking(FixedRate(0, 1), "text", misfire=Misfire.SKIP, grace=1e9)
    assert ticks_until(rule, NOON, after(1_000)).due[0].missed == "1 tick was missed"
    assert ticks_until(rule, NOON, after(1_001)).due[0].missed == "2 ticks were missed"


class Counted(Schedule):
    """Counts how often the next tick is computed."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.asked = 0

    def first(self, start: datetime) -> datetime:
        return self.schedule.first(start)

    def following(self, tick: datetime, end: datetime) -> datetime:
        self.asked += 1
        return self.schedule.following(tick, end)


@pytest.mark.parametrize(
    ("expression", "days"),
    [
        pytest.param("* * * * * *", 3_650, id="each second for ten years"),
        pytest.param("* * 9 * * *", 365, id="each second of an hour a day"),
    ],
)
def test_a_long_downtime_computes_a_bounded_number_of_ticks(monkeypatch, expression: str, days: int) -> None:
    monkeypatch.setattr(ticks, "MOST_WALKED", 5_000)
    schedule, now = Counted(CronSchedule(expression)), NOON + timedelta(days=days)
    found = ticks_until(Ticking(schedule, "text"), NOON, now)
    assert schedule.asked < 20_000
    assert len(found.due) == MOST_TICKS + 1
    assert found.due[0].count > 5_000 - MOST_TICKS
    assert found.next == CronSchedule(expression).first(now)
    last = found.due[-1].at
    assert last <= now < CronSchedule(expression).first(last)
    assert all(CronSchedule(expression).first(tick.at) == later.at for tick, later in pairwise(found.due))


def test_the_last_ticks_of_a_long_downtime_are_kept_however_many_of_them_were_counted_one_by_one(monkeypatch) -> None:
    monkeypatch.setattr(ticks, "MOST_WALKED", 1_500)
    found = ticks_until(Ticking(CRON, "text"), NOON, after(60 * 1_600))
    assert sum(tick.count for tick in found.due) == 1_601
    assert len(found.due) == MOST_TICKS + 1
    assert found.due[-1].at == after(60 * 1_600)


def test_missed_ticks_of_a_fixed_rate_are_computed_without_iterating() -> None:
    found = ticks_until(Ticking(FixedRate(0, 0.1), "text"), NOON, NOON + timedelta(days=3_650))
    assert found.due[0].count == 3_650 * 864_000 + 1 - MOST_TICKS
    assert len(found.due) == MOST_TICKS + 1


def test_a_night_with_a_clock_change_has_each_tick_once() -> None:
    berlin = CronSchedule("30 2 * * *", ZoneInfo("Europe/Berlin"))
    begin = datetime.fromisoformat("2026-10-24T02:30+02:00").astimezone(UTC)
    found = ticks_until(Ticking(berlin, "text", misfire=Misfire.CATCH_UP), begin, begin + timedelta(days=3))
    assert [tick.at.isoformat() for tick in found.due] == [
        "2026-10-24T00:30:00+00:00",
        "2026-10-25T00:30:00+00:00",
        "2026-10-26T01:30:00+00:00",
    ]
