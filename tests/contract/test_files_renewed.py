"""Files replaced between two queries of long-lived processes: each query reads one consistent log."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from opencqrs_py.adapters.files import FileEventSource, format_of, writer_to, written_whole
from opencqrs_py.engines.spark.source.source import Replaceable
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.selection import Selection
from opencqrs_py.testing.contracts.event_source import event, followed

SUFFIXES = ["ndjson", "ndjson.gz", "jsonl.zst", "parquet"]


def put(path: Path, *numbers: int) -> Path:
    form = format_of(path.name)
    assert form is not None
    with written_whole(path) as file, writer_to(file, form) as writer:
        writer.write([event(number) for number in numbers])
    return path


def ids(source: FileEventSource) -> list[int]:
    return [int(one.id) for part in followed(source, 2, Selection()) for one in part.events]


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(EventStoreError) as caught:
        act()
    assert caught.value.code == "OCQ-342"
    return caught.value.what


def planned(folder: Path) -> FileEventSource:
    """A source that has seen the files as they are."""
    source = FileEventSource(folder)
    source.head()
    return source


def swap(folder: Path, suffix: str) -> None:
    put(folder / f"1.{suffix}", 7, 8, 9)


def swap_in_place(folder: Path, suffix: str) -> None:
    """Into the same inode, so that the folder does not change."""
    other = put(folder / f".other.{suffix}", 7, 8, 9)
    (folder / f"1.{suffix}").write_bytes(other.read_bytes())
    os.utime(folder / f"1.{suffix}", (1, 1))  # a coarse clock might not have gone on


def remove(folder: Path, suffix: str) -> None:
    (folder / f"1.{suffix}").unlink()


def come_early(folder: Path, suffix: str) -> None:
    put(folder / f"0.{suffix}", 7)


def start_over(folder: Path, suffix: str) -> None:
    remove(folder, suffix)
    (folder / f"2.{suffix}").unlink()


def swap_newest(folder: Path, suffix: str) -> None:
    """Lines stay as long as they were."""
    put(folder / f"2.{suffix}", 8, 9)


def rename(folder: Path, suffix: str) -> None:
    (folder / f"1.{suffix}").rename(folder / f"1b.{suffix}")


def rename_newest(folder: Path, suffix: str) -> None:
    (folder / f"2.{suffix}").rename(folder / f"3.{suffix}")


CHANGES = [
    pytest.param(swap_newest, [1, 2, 3, 8, 9], id="swap-newest"),
    pytest.param(rename, [1, 2, 3, 4, 5], id="rename"),
    pytest.param(rename_newest, [1, 2, 3, 4, 5], id="rename-newest"),
    pytest.param(swap, [7, 8, 9, 4, 5], id="swap"),
    pytest.param(swap_in_place, [7, 8, 9, 4, 5], id="swap-in-place"),
    pytest.param(remove, [4, 5], id="remove"),
    pytest.param(come_early, [7, 1, 2, 3, 4, 5], id="come-early"),
    pytest.param(start_over, [], id="start-over"),
]


@pytest.fixture
def folder(tmp_path: Path, suffix: str) -> Path:
    put(tmp_path / f"1.{suffix}", 1, 2, 3)
    put(tmp_path / f"2.{suffix}", 4, 5)
    return tmp_path


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(("change", "left"), CHANGES)
def test_after_a_renewal_the_current_files_are_read(folder: Path, suffix: str, change, left: list[int]) -> None:
    source = FileEventSource(folder)
    assert isinstance(source, Replaceable)
    assert source.read(0, 2, Selection()).upto == 2  # a reader is kept in the middle of the first file
    change(folder, suffix)
    source.renew()
    assert ids(source) == left
    assert source.head() == len(left)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_renewal_does_not_count_unchanged_files_again(
    folder: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = planned(folder)
    files = source._log.files
    put(folder / f"3.{suffix}", 6)
    source.renew()
    assert source._log.files[:2] == files
    source.expect(source.state())
    assert source._log.files[:2] == files
    assert ids(source) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(("change", "left"), CHANGES)
def test_a_file_changed_since_the_plan_is_refused_but_not_in_a_new_plan(
    folder: Path, suffix: str, change, left: list[int]
) -> None:
    """A worker that has seen the planned files, one that has seen nothing, and one that has seen the new files only."""
    plan = planned(folder)
    state, idle, fresh = pickle.loads(pickle.dumps(plan.state())), planned(folder), FileEventSource(folder)
    change(folder, suffix)
    later = planned(folder)
    said = "files of the log were changed after a query was planned, so positions in it would change"
    for worker in (plan, idle, fresh, later):
        assert refused(lambda worker=worker: worker.expect(state)) == said
    plan.renew()
    for worker in (idle, fresh, later):
        worker.expect(plan.state())
        assert ids(worker) == left


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_worker_that_has_seen_other_files_reads_those_in_the_plan(folder: Path, suffix: str) -> None:
    worker = planned(folder)
    swap(folder, suffix)
    worker.expect(planned(folder).state())
    assert ids(worker) == [7, 8, 9, 4, 5]


@pytest.mark.parametrize("suffix", ["ndjson"])
def test_files_added_since_the_plan_change_nothing(folder: Path, suffix: str) -> None:
    state, worker = planned(folder).state(), planned(folder)
    with (folder / "2.ndjson").open("ab") as file, writer_to(file, format_of("x.ndjson")) as writer:
        writer.write([event(6)])
    for one in (worker, FileEventSource(folder), planned(folder)):
        one.expect(state)
        assert ids(one) == [1, 2, 3, 4, 5, 6]
    put(folder / "3.ndjson", 7)
    worker.expect(state)
    files = worker._log.files
    worker.expect(state)
    assert worker._log.files == files
    assert ids(worker) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("suffix", ["ndjson"])
def test_the_newest_file_is_a_different_file_if_its_beginning_changed(folder: Path, suffix: str) -> None:
    state = planned(folder).state()
    put(folder / "2.ndjson", 8, 9, 10)
    assert "changed after a query was planned" in refused(lambda: FileEventSource(folder).expect(state))


@pytest.mark.parametrize("suffix", ["ndjson"])
@pytest.mark.parametrize("name", ["1", "2"])
def test_a_file_edited_in_its_middle_is_a_different_file(folder: Path, suffix: str, name: str) -> None:
    """In a place that the fingerprint does not sample."""
    path = put(folder / f"{name}.ndjson", *range(200))
    lines = path.read_bytes().splitlines(keepends=True)
    state = planned(folder).state()
    path.write_bytes(b"".join([*lines[:100], *lines[101:]]))
    assert "changed after a query was planned" in refused(lambda: FileEventSource(folder).expect(state))


@pytest.mark.parametrize("suffix", ["ndjson"])
def test_an_empty_log_can_become_any_log(folder: Path, suffix: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    state = planned(tmp_path / "empty").state()
    FileEventSource(folder).expect(state)


@pytest.mark.parametrize("suffix", ["ndjson"])
def test_a_missing_folder_is_an_outage_for_a_new_query_too(folder: Path, suffix: str) -> None:
    source = planned(folder)
    state = source.state()
    away = folder.with_name("away")
    os.rename(folder, away)  # noqa: PTH104
    for act in (source.renew, lambda: source.expect(state)):
        with pytest.raises(EventStoreError, match="OCQ-340") as caught:
            act()
        assert source.is_outage(caught.value)
    os.rename(away, folder)  # noqa: PTH104
    source.expect(state)
    assert ids(source) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("suffix", ["ndjson"])
def test_a_folder_that_cannot_be_a_log_is_refused_by_a_new_query_too(folder: Path, suffix: str) -> None:
    source = planned(folder)
    put(folder / "2.ndjson.gz", 4, 5)
    with pytest.raises(EventStoreError, match="OCQ-233"):
        source.renew()
