"""What the command line prints about a finished rebuild."""

from __future__ import annotations

import pytest

from opencqrs_py.adapters.sql.shadows.comparison import Comparison
from opencqrs_py.assembly.rebuilds.rebuilds import RebuildResult
from opencqrs_py.cli.rebuilds import _comparison_as_json, _comparison_lines, _result_lines
from opencqrs_py.model.partition import Partition, layout
from opencqrs_py.model.rebuild import Fate, ShadowTable

WHOLE = Partition(1, 0)
TABLES = (ShadowTable("loans", "table", Fate.SWAPPED), ShadowTable("readers", "table", Fate.LEFT))


@pytest.mark.parametrize(
    ("running", "stopped", "continuation"),
    [
        (True, False, []),
        (False, False, ["catalog: no process runs it; the next opencqrs run continues there"]),
        (False, True, ["catalog: it is stopped; opencqrs groups start catalog lets it continue there"]),
        (True, True, ["catalog: it is stopped; opencqrs groups start catalog lets it continue there"]),
    ],
)
def test_the_result_names_tables_that_handlers_may_have_found_empty_and_what_continues(
    *, running: bool, stopped: bool, continuation: list[str]
) -> None:
    result = RebuildResult("catalog", 98, TABLES, 0.1, running)
    assert _result_lines(result, "was rebuilt", stopped=stopped) == [
        "catalog was rebuilt, up to position 98: loans",
        "catalog: no handler has written to readers, which is left as it was",
        "catalog: if handlers read it, they found it empty: name it in rebuild.shared-tables",
        "catalog: the old tables are kept until --drop-old or --undo",
        *continuation,
    ]
    assert not any("empty" in line for line in _result_lines(result, "was undone"))


def test_several_tables_that_are_left_as_they_were_are_named_in_one_line() -> None:
    tables = (*TABLES, ShadowTable("fines", "table", Fate.LEFT))
    result = RebuildResult("catalog", 98, tables, 0.1, True)  # noqa: FBT003 as it is running
    assert _result_lines(result, "was rebuilt")[1:3] == [
        "catalog: no handler has written to readers, fines, which are left as they were",
        "catalog: if handlers read one of them, they found it empty: name it in rebuild.shared-tables",
    ]


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (layout(3), layout(2), "catalog has 2 partitions again (3 before)"),
        (
            (Partition(2, 0), Partition(4, 1), Partition(4, 3)),
            (Partition(4, 0), Partition(4, 2), Partition(2, 1)),
            "catalog has its former partitions again: 1/2, 0/4, 2/4",
        ),
    ],
)
def test_an_undo_names_the_partitions_that_come_back(
    before: tuple[Partition, ...], after: tuple[Partition, ...], line: str
) -> None:
    result = RebuildResult("catalog", 98, TABLES, 0.1, True, before, after)  # noqa: FBT003 as it is running
    assert _result_lines(result, "has its old tables back")[-1] == line


def test_a_comparison_names_the_tables_it_leaves_out() -> None:
    found = Comparison({WHOLE: 98}, {WHOLE: 98}, (), not_made=("loans_old", "readers"))
    assert _comparison_lines("catalog", found) == [
        "catalog: live and rebuilt tables compared at position 98; nothing is swapped",
        "  not made by @on_start of the group, so a swap leaves them as they are: loans_old, readers",
    ]
    assert _comparison_as_json("catalog", found)["not_made"] == ("loans_old", "readers")


FIRST, SECOND = Partition(2, 0), Partition(2, 1)


@pytest.mark.parametrize(
    ("live", "said"),
    [
        ({FIRST: 1000, SECOND: 1000}, "live tables are at position 1,000"),
        ({FIRST: 1000, SECOND: 98}, "live tables are at positions 98 to 1,000"),
    ],
    ids=["together", "apart"],
)
def test_a_comparison_at_different_positions_explains_why_rows_differ(live: dict[Partition, int], said: str) -> None:
    (line,) = _comparison_lines("catalog", Comparison(live, {FIRST: 98, SECOND: 98}, ()))
    assert line == (
        f"catalog: {said}, rebuilt ones at position 98, so rows of the events between differ; nothing is swapped"
    )
