"""The oracle itself: it must detect each way in which a read model can be wrong."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest
from attacks import (
    ATTACKS,
    data,
    errors,
    parts,
    registration,
    sessions,
    statements,
    surroundings,
    transactions,
)
from attacks.attack import ERROR, PASSING_ERROR, End
from attacks.flaws import KNOWN
from harness.lanes import all_combinations, quick_lane
from harness.modules import AT, SIZE, expected_rows
from harness.oracle import Found, Verdict, judge

TABLES = [transactions, statements, sessions, data, errors, parts, surroundings, registration]
ROWS = expected_rows()
RIGHT = Found(ROWS, SIZE)
REPORT = "[group 0/1] event e5 at position 5 (counted.v1, /counted/5) failed\nhandlers.py:7"
STOPPED = Found(ROWS[: AT - 1], AT - 1, ("failed",), ("ValueError: mine",), REPORT, failed=True)


def test_a_complete_read_model_is_correct() -> None:
    assert judge(RIGHT) == Verdict(End.RIGHT)


def test_a_stop_before_the_event_with_a_report_is_correct() -> None:
    assert judge(STOPPED, blames="handlers.py", says="failed") == Verdict(End.STOPPED)


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (replace(RIGHT, rows=ROWS[:-1]), "lost 12"),
        (replace(RIGHT, rows=[]), "lost 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12"),
        (replace(RIGHT, rows=[*ROWS, ROWS[3]]), "doubled 4"),
        (replace(RIGHT, rows=[*ROWS[:3], (4, "4 other []"), *ROWS[4:]]), "wrong 4"),
        (replace(RIGHT, rows=[*ROWS, (99, "")]), "wrong 99"),
        (replace(RIGHT, rows=ROWS[:4], stored=4), "it ended at 4 of 12"),
        (replace(RIGHT, stored=4), "ahead of the progress 5, 6, 7, 8, 9, 10, 11, 12"),
        (replace(RIGHT, skipped=(5,)), "skipped, and yet written 5"),
    ],
)
def test_a_fault_without_a_message_is_wrong_and_silent(found: Found, fault: str) -> None:
    verdict = judge(found)
    assert verdict.silent
    assert fault in verdict.faults


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (replace(STOPPED, rows=ROWS[:3]), "lost 4"),
        (replace(STOPPED, rows=ROWS[:5]), "ahead of the progress 5"),
        (replace(STOPPED, report="handlers.py:7 failed"), "the report names no event"),
        (replace(STOPPED, report="event e5 failed"), "the report names no handler"),
        (replace(STOPPED, report="event e5 in handlers.py"), "the report does not say 'failed'"),
        (replace(STOPPED, report=f"{REPORT}\nTransactionEndedError: it was ended"), "the report names no remedy"),
        (replace(STOPPED, failed=False), "the run ended as if nothing had failed"),
        (replace(STOPPED, rows=ROWS[:6], stored=6), "it stopped at 6, not before 5"),
        (replace(STOPPED, raised=ValueError("ours")), "the run ended with ValueError"),
    ],
)
def test_a_stop_that_loses_or_hides_something_is_not_correct(found: Found, fault: str) -> None:
    verdict = judge(found, blames="handlers.py", says="failed")
    assert verdict.end is None
    assert fault in verdict.faults


def test_if_a_handler_has_committed_repeats_are_allowed_but_not_losses() -> None:
    assert judge(replace(STOPPED, rows=[*ROWS[:5], *ROWS[:4]]), repeats=True) == Verdict(End.STOPPED)
    assert judge(replace(STOPPED, rows=ROWS[:2]), repeats=True).faults == ("lost 3, 4",)


def test_a_refusal_must_leave_the_read_model_unchanged() -> None:
    refused = Found([], 0, raised=ValueError("ours"), refusal=True)
    assert judge(refused) == Verdict(End.REFUSED)
    assert judge(replace(refused, stored=3)).end is None


def test_a_recorded_skip_is_not_a_loss() -> None:
    assert judge(replace(RIGHT, rows=[*ROWS[:4], *ROWS[5:]], skipped=(5,))) == Verdict(End.SKIPPED)


def test_an_interrupt_must_lose_nothing() -> None:
    interrupted = replace(STOPPED, raised=KeyboardInterrupt())
    assert judge(interrupted) == Verdict(End.INTERRUPTED)
    assert judge(replace(interrupted, rows=[])).end is None


def test_each_known_defect_belongs_to_an_attack() -> None:
    flawed = {one.attack.name for one in all_combinations() if one.flaw}
    assert flawed == set(KNOWN)


@pytest.mark.parametrize("what", ["database", "engine", "kind", "schema"])
def test_the_quick_lane_covers_every_database_engine_and_kind(what: str) -> None:
    def seen(lane: list) -> set[str]:
        return {getattr(one, what) for one in lane}

    assert seen(quick_lane()) == seen(all_combinations())


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
def test_the_quick_lane_tries_a_third_of_the_attacks_of_each_cause(table: ModuleType) -> None:
    forms = (ERROR, PASSING_ERROR)  # of an attack that an error follows, one form counts
    names = {attack.name.removesuffix(PASSING_ERROR).removesuffix(ERROR) for attack in table.ATTACKS}
    tried = {one.attack.name for one in quick_lane()}
    assert sum(any(name + form in tried for form in ("", *forms)) for name in names) >= len(names) // 3


@pytest.mark.parametrize("engine", ["hand", "thread", "spark"])
def test_the_full_run_tries_each_attack_on_each_database_and_with_each_kind(engine: str) -> None:
    tried = {(one.attack.name, what) for one in all_combinations() for what in (one.database, one.kind)
             if one.engine == engine}  # fmt: skip
    assert tried == {
        (attack.name, what)
        for attack in ATTACKS
        if engine in attack.engines
        for what in (*attack.databases, *attack.kinds)
    }
