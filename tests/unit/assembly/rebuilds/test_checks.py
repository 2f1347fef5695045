"""What ends a rebuild while it runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opencqrs_py.assembly.rebuilds.checks import require_sound
from opencqrs_py.errors import RebuildError
from opencqrs_py.model import layout
from opencqrs_py.model.progress import FailureRecord, PartitionStatus, ProcessorState

LACKS = [
    "OperationalError: (sqlite3.OperationalError) no such table: price",
    'ProgrammingError: (psycopg.errors.UndefinedTable) relation "price" does not exist',
    'UndefinedColumn: column "price" does not exist',
    "ProgrammingError: (pymysql.err.ProgrammingError) (1146, \"Table 'x.price' doesn't exist\")",
    "DatabaseError: (sqlite3.DatabaseError) not authorized",
]
MAY_PASS = ["FileNotFoundError: the file does not exist yet", "ValueError: no such column", "HTTPError: not authorized"]


def status(state: ProcessorState, error: str) -> PartitionStatus:
    return PartitionStatus("catalog", layout(1)[0], 3, state, 1, error)


@pytest.mark.parametrize("error", LACKS)
def test_a_missing_table_ends_the_rebuild_at_the_first_attempt(error: str) -> None:
    with pytest.raises(RebuildError, match=r"OCQ-635.*partition 0/1 fails"):
        require_sound("catalog", [status(ProcessorState.BACKING_OFF, error)])


@pytest.mark.parametrize("error", MAY_PASS)
def test_a_handler_error_that_only_resembles_a_missing_table_is_retried(error: str) -> None:
    require_sound("catalog", [status(ProcessorState.BACKING_OFF, error)])


@pytest.mark.parametrize("error", [LACKS[0], MAY_PASS[0]])
def test_a_failed_partition_ends_the_rebuild(error: str) -> None:
    with pytest.raises(RebuildError, match="OCQ-635"):
        require_sound("catalog", [status(ProcessorState.FAILED, error)])


def test_the_error_of_an_earlier_event_is_not_said_to_be_that_of_the_one_that_had_failed() -> None:
    failure = FailureRecord(8, "e8", "lent", 3, 2, "ValueError: no", "ValueError: no", "2026-01-05T09:00:00+00:00")
    full = replace(status(ProcessorState.FAILED, "[OCQ-601] the inbox is full"), failure=failure)
    with pytest.raises(RebuildError, match=r"partition 0/1 fails: \[OCQ-601\]"):
        require_sound("catalog", [full])
