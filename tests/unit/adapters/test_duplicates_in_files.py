"""Duplicate events in files are warned of where detecting them costs almost nothing."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opencqrs_py.adapters.files import FileEventSource, events_of_file, format_of, writer_to
from opencqrs_py.model.selection import Selection

FULL = 1_000  # events, more than a reader parses at once


def line(number: int | str, source: str = "shop") -> str:
    event = {"specversion": "1.0", "id": f"e{number}", "source": source, "type": "sold", "subject": "/a"}
    return json.dumps({**event, "time": "2026-01-01T00:00:00Z", "data": {"n": 1}}) + "\n"


def warnings(path: Path, caplog: pytest.LogCaptureFixture, *, step: int = 5_000) -> list[str]:
    """Read a log in steps, and return the warnings."""
    source, after = FileEventSource(path), 0
    while (part := source.read(after, step, Selection())).upto > after:
        after = part.upto
    source.close()
    return [each.getMessage() for each in caplog.records]


LOG = [line(number) for number in range(FULL)]


@pytest.mark.parametrize("step", [5_000, 20])
@pytest.mark.parametrize("name", ["log.ndjson", "log.ndjson.gz"])
@pytest.mark.parametrize(
    ("lines", "twice", "event"),
    [
        ([*LOG, *LOG], (1, FULL + 1), "e0"),
        ([*LOG, line(0)], (1, FULL + 1), "e0"),
        ([*LOG[:9], *LOG[8:]], (9, 10), "e8"),
        ([*LOG[:9], LOG[3], *LOG[9:]], (4, 10), "e3"),
        ([line(0), line(0)], (1, 2), "e0"),
        (["\n", *LOG[:3], "\n", " \n", LOG[2], "\n", *LOG[3:]], (4, 7), "e2"),
    ],
    ids=[
        "the whole log again",
        "its first event again",
        "a line after itself",
        "an early line again",
        "two lines",
        "with empty lines",
    ],
)
def test_a_duplicate_event_causes_a_warning_with_both_lines(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    name: str,
    lines: list[str],
    twice: tuple[int, int],
    event: str,
    step: int,
) -> None:
    path, text = tmp_path / name, "".join(lines).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    (said,) = warnings(path, caplog, step=step)
    first, second = twice
    assert said.startswith(f"{path}: lines {first} and {second} are the same event (id {event}, source shop), and")


@pytest.mark.parametrize(
    "lines",
    [
        LOG,
        [line(0), line(0, "other")],
        [*LOG, line(0, "other")],
        [line(number, str(number)) for number in range(9)],
        [],
    ],
    ids=["all differ", "another source next", "another source later", "different sources", "an empty file"],
)
def test_events_with_different_ids_or_sources_are_not_duplicates(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lines: list[str]
) -> None:
    path = tmp_path / "log.ndjson"
    path.write_text("".join(lines))
    assert warnings(path, caplog) == []


def test_duplicates_cause_one_warning_per_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("1.ndjson", "2.ndjson"):
        (tmp_path / name).write_text("".join([line(name), line(name)] * 3))
    assert len(warnings(tmp_path, caplog)) == 2


def test_reading_a_file_twice_is_not_a_duplicate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "log.ndjson"
    path.write_text("".join(LOG))
    source = FileEventSource(path)
    for after in (0, 0, FULL - 1, 0, 1):
        source.read(after, 5_000, Selection())
    source.close()
    assert caplog.records == []


def _as_parquet(path: Path) -> None:
    other = path.with_name("2.parquet")
    with other.open("wb") as file, writer_to(file, format_of(other.name)) as writer:
        writer.write(list(events_of_file(path)))


def _as_rest(path: Path) -> None:
    path.with_name("2.ndjson").write_text("".join(LOG[5:]))


@pytest.mark.parametrize(
    ("change", "other"),
    [
        (lambda path: shutil.copy2(path, path.with_name("2.ndjson")), "2.ndjson"),
        (lambda path: path.with_name("2.ndjson").symlink_to(path), "2.ndjson"),
        (lambda path: path.with_name("2.ndjson").write_text("\n" + "".join(LOG)), "2.ndjson"),
        (lambda path: path.with_name("2.jsonl.gz").write_bytes(gzip.compress(path.read_bytes())), "2.jsonl.gz"),
        (_as_parquet, "2.parquet"),
    ],
    ids=["a copy", "a link", "a longer export", "compressed", "in another format"],
)
def test_files_that_begin_with_the_same_event_cause_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Callable[[Path], object], other: str
) -> None:
    path = tmp_path / "1.ndjson"
    path.write_text("".join(LOG[:5]))
    change(path)
    (tmp_path / "3.ndjson").write_text(LOG[0])
    source = FileEventSource(tmp_path)
    for _ in range(2):
        source.head()
    (said,) = [each.getMessage() for each in caplog.records]
    assert said.startswith(f"{path} and {tmp_path / other} begin with the same event (id e0, source shop), and")


def test_a_copy_that_appears_while_the_log_is_followed_causes_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "1.ndjson").write_text(line(1))
    (tmp_path / "2.ndjson").touch()
    source = FileEventSource(tmp_path)
    assert (source.head(), caplog.records) == (1, [])
    (tmp_path / "2.ndjson").write_text(line(1))
    assert (source.head(), len(caplog.records)) == (2, 1)


@pytest.mark.parametrize("second", [line(1), line(0, "other"), "", "no event\n", line(0).rstrip()], ids=repr)
def test_files_that_begin_with_different_events_are_not_duplicates(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, second: str
) -> None:
    (tmp_path / "1.ndjson").write_text(line(0))
    (tmp_path / "2.ndjson").write_text(second)
    FileEventSource(tmp_path).head()
    assert caplog.records == []


def test_rows_without_an_id_are_not_duplicates(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("1.parquet", "2.parquet"):
        pq.write_table(pa.table({"id": pa.nulls(1), "source": ["shop"], "type": ["sold"]}), tmp_path / name)
    assert FileEventSource(tmp_path).head() == 2
    assert caplog.records == []
