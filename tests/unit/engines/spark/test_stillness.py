"""When a round has waited too long while nothing ran on Spark."""

from __future__ import annotations

import pytest

from opencqrs_py.engines.spark.stillness import Stillness
from opencqrs_py.testing import FakeClock


class Spark:
    """A Spark with a clock of its own; its rounds are looked at every second."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.tasks = 0
        self.looks = 0
        self.stillness = Stillness(self.running, self.clock, 60)

    def running(self) -> int:
        self.looks += 1
        return self.tasks

    def noticed_after(self, seconds: int, waiting: list[float]) -> int | None:
        """Let time pass; return the second in which stillness was noticed."""
        for second in range(1, seconds + 1):
            self.clock.advance(1)
            if self.stillness.lasts(waiting):
                return second
        return None


@pytest.fixture
def spark() -> Spark:
    return Spark()


def test_a_round_for_which_nothing_runs_is_noticed_after_the_limit(spark):
    assert spark.noticed_after(100, [spark.clock.monotonic()]) == 60


def test_a_task_may_run_for_hours(spark):
    spark.tasks = 1
    assert spark.noticed_after(10_000, [spark.clock.monotonic()]) is None


def test_the_limit_counts_from_the_last_task_that_ran(spark):
    since = spark.clock.monotonic()
    spark.tasks = 1
    assert spark.noticed_after(100, [since]) is None
    spark.tasks = 0
    assert spark.noticed_after(100, [since]) == 60


def test_without_a_round_nothing_is_asked_of_spark(spark):
    assert spark.noticed_after(1_000, []) is None
    assert spark.looks == 0


def test_short_rounds_ask_nothing_of_spark(spark):
    for _ in range(1_000):
        since = spark.clock.monotonic()
        spark.clock.advance(0.1)
        assert not spark.stillness.lasts([since])
    assert spark.looks == 0


def test_the_round_that_has_waited_longest_counts(spark):
    since = spark.clock.monotonic()
    assert spark.noticed_after(30, [since]) is None
    assert spark.noticed_after(100, [since, spark.clock.monotonic()]) == 30


def test_spark_is_asked_once_a_second_at_most(spark):
    since = spark.clock.monotonic()
    for _ in range(100):
        spark.clock.advance(0.25)
        spark.stillness.lasts([since])
    assert spark.looks <= 25
