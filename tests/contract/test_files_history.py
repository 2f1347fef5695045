"""Files that change while nothing runs: the fingerprint stored with the progress shows it at the next start."""

from __future__ import annotations

import gzip
import io
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py.adapters.files import FileEventSource, event_file, format_of, history, lines, writer_to, written_whole
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.selection import Selection
from opencqrs_py.testing.contracts.event_source import event

SUFFIXES = ["ndjson", "ndjson.gz", "jsonl.zst", "parquet"]


def content(suffix: str, *numbers: int) -> bytes:
    form = format_of(f"x.{suffix}")
    assert form is not None
    file = io.BytesIO()
    with writer_to(file, form) as writer:
        writer.write([event(number) for number in numbers])
    return file.getvalue()


def put(path: Path, *numbers: int) -> Path:
    with written_whole(path) as file:
        file.write(content(path.name.partition(".")[2], *numbers))
    return path


def append(path: Path, *numbers: int) -> None:
    with path.open("ab") as file:
        file.write(content("ndjson", *numbers))


def refusal(act: Callable[[], object]) -> EventStoreError:
    with pytest.raises(EventStoreError) as caught:
        act()
    assert caught.value.code == "OCQ-316"
    assert caught.value.what.startswith("the event store is not the one that the progress belongs to: ")
    for way_out in (
        "restore the files",
        "rebuild the group",
        "clear log_fingerprint",
        "set position there to the end",
    ):
        assert way_out in caught.value.fix
    return caught.value


@pytest.fixture
def folder(tmp_path: Path, suffix: str) -> Path:
    """Three files of ten events each, the last one of lines that may grow."""
    log = tmp_path / "log"
    log.mkdir()
    put(log / f"b.{suffix}", *range(1, 11))
    put(log / f"d.{suffix}", *range(11, 21))
    put(log / "f.ndjson", *range(21, 31))
    return log


def at(path: Path, position: int) -> str:
    """What a process stores that has come to a position."""
    source = FileEventSource(path)
    assert source.read(0, 1_000, Selection()).upto >= position
    return source.fingerprint(position)


def verify(path: Path, position: int, fingerprint: str) -> None:
    FileEventSource(path).verify(position, fingerprint)


# ------------------------------------------------------------------------------------------------- what may happen


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_process_computes_the_same_fingerprint_for_a_position(folder: Path, suffix: str) -> None:
    source = FileEventSource(folder)
    prints = [source.fingerprint(position) for position in range(31)]
    assert [FileEventSource(folder).fingerprint(position) for position in range(31)] == prints
    assert all(0 < len(each) <= 1_000 for each in prints)
    for position, each in enumerate(prints):
        verify(folder, position, each)
        source.verify(position, each)


@pytest.mark.parametrize("suffix", ["ndjson"])
def test_an_empty_log_has_a_fingerprint_and_can_become_any_log(tmp_path: Path, folder: Path, suffix: str) -> None:
    (tmp_path / "empty").mkdir()
    fingerprint = FileEventSource(tmp_path / "empty").fingerprint(0)
    assert fingerprint
    verify(folder, 0, fingerprint)
    FileEventSource(tmp_path / "nowhere").verify(0, fingerprint)


def grow(folder: Path) -> None:
    append(folder / "f.ndjson", 31, 32)


def add_later(folder: Path) -> None:
    put(folder / "g.parquet", 31)
    put(folder / "h.ndjson.gz", 32)


def add_empty(folder: Path) -> None:
    """No position changes by it."""
    put(folder / "c.ndjson")
    put(folder / "a.parquet")


def add_other(folder: Path) -> None:
    (folder / "readme.md").write_text("no events")
    (folder / ".a.ndjson").write_text("being written")


def touch(folder: Path) -> None:
    for path in folder.iterdir():
        os.utime(path, (1, 1))


def copy_back(folder: Path) -> None:
    """Other inodes and times."""
    shutil.copytree(folder, folder.with_name("copy"), copy_function=shutil.copyfile)
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)


def rename_in_order(folder: Path) -> None:
    """No position changes by it."""
    for number, path in enumerate(sorted(folder.iterdir())):
        path.rename(folder / f"{number}.{path.name.partition('.')[2]}")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "change", [grow, add_later, add_empty, add_other, touch, copy_back, rename_in_order], ids=lambda one: one.__name__
)
def test_a_change_that_moves_no_event_is_accepted(folder: Path, suffix: str, change: Callable[[Path], None]) -> None:
    prints = {position: at(folder, position) for position in (1, 10, 11, 20, 21, 30)}
    change(folder)
    for position, fingerprint in prints.items():
        verify(folder, position, fingerprint)


@pytest.mark.parametrize("suffix", ["ndjson"])
def test_a_copy_at_another_place_is_the_same_log(folder: Path, suffix: str, tmp_path: Path) -> None:
    fingerprint = at(folder, 25)
    shutil.copytree(folder, tmp_path / "elsewhere", copy_function=shutil.copyfile)
    verify(tmp_path / "elsewhere", 25, fingerprint)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_one_file_and_the_folder_that_it_is_moved_into_are_the_same_log(tmp_path: Path, suffix: str) -> None:
    path = put(tmp_path / f"events.{suffix}", *range(10))
    fingerprint = at(path, 7)
    (tmp_path / "log").mkdir()
    path.rename(tmp_path / "log" / f"1.{suffix}")
    verify(tmp_path / "log", 7, fingerprint)


def test_a_last_line_that_is_terminated_later_is_the_same_event(tmp_path: Path) -> None:
    path = put(tmp_path / "a.ndjson", 1, 2)
    path.write_bytes(path.read_bytes().rstrip())
    assert FileEventSource(tmp_path).head() == 1
    put(tmp_path / "b.ndjson", 3)
    prints = {position: at(tmp_path, position) for position in (1, 2, 3)}
    with path.open("ab") as file:
        file.write(b" \r\n\n")
    for position, fingerprint in prints.items():
        verify(tmp_path, position, fingerprint)


@pytest.mark.parametrize("line_end", [b"\r\n", b"\n\n  \n", b" \t\n"])
def test_spaces_and_empty_lines_between_events_change_nothing(tmp_path: Path, line_end: bytes) -> None:
    path = put(tmp_path / "a.ndjson", *range(20))
    path.write_bytes(path.read_bytes().replace(b"\n", line_end))
    source = FileEventSource(tmp_path)
    prints = [source.fingerprint(position) for position in range(21)]
    assert len(set(prints)) == 21
    for position, fingerprint in reversed(list(enumerate(prints))):
        assert source.fingerprint(position) == fingerprint
        verify(tmp_path, position, fingerprint)


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_compressed_file_read_while_it_is_written_is_the_same_file_when_complete(tmp_path: Path, suffix: str) -> None:
    numbers = random.Random(1).sample(range(10**9), 20_000)
    path = put(tmp_path / f"a.ndjson.{suffix}", *numbers)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3])
    source = FileEventSource(tmp_path)
    assert source.read(0, 500, Selection()).upto == 500
    fingerprint = source.fingerprint(500)
    path.write_bytes(whole)
    verify(tmp_path, 500, fingerprint)
    source.verify(500, fingerprint)
    assert source.fingerprint(500) != fingerprint
    put(path, *reversed(numbers))
    refusal(lambda: verify(tmp_path, 500, fingerprint))


# ------------------------------------------------------------------------------------------------- what must not


def delete_oldest(folder: Path) -> None:
    min(folder.iterdir()).unlink()


def insert_before_all(folder: Path) -> None:
    put(folder / "a.ndjson", *range(100, 110))


def insert_between(folder: Path) -> None:
    put(folder / "c.parquet", 100)


def insert_before_the_newest(folder: Path) -> None:
    put(folder / "e.ndjson.gz", *range(100, 150))


def truncate_and_refill(folder: Path) -> None:
    """As logrotate's ``copytruncate`` does: the old lines stand in a file that sorts later."""
    (folder / "f.ndjson").rename(folder / "f.ndjson.1")
    put(folder / "f.ndjson", *range(31, 71))


def rotate(folder: Path) -> None:
    """The newest file gets a name that sorts after the new one."""
    (folder / "f.ndjson").rename(folder / "f1.ndjson")
    put(folder / "f.ndjson", *range(31, 71))


def rename_to_the_end(folder: Path) -> None:
    oldest = min(folder.iterdir())
    oldest.rename(folder / f"z.{oldest.name.partition('.')[2]}")


def replace_with_the_same_size(folder: Path) -> None:
    oldest = min(folder.iterdir())
    there = oldest.read_bytes()
    if oldest.suffix == ".ndjson":
        oldest.write_bytes(there.replace(b'"n":1}', b'"n":9}', 1))
    else:
        put(oldest, *range(41, 51))
    if oldest.suffix == ".ndjson":
        assert oldest.stat().st_size == len(there)


def replace_the_newest(folder: Path) -> None:
    size = (folder / "f.ndjson").stat().st_size
    put(folder / "f.ndjson", *range(61, 71))
    assert (folder / "f.ndjson").stat().st_size == size


def reverse(folder: Path) -> None:
    oldest = min(folder.iterdir())
    put(oldest, *range(10, 0, -1))


def remove_all(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def cut_off(folder: Path) -> None:
    put(folder / "f.ndjson", *range(21, 26))


CHANGES = {
    delete_oldest: "file 1 of the log (without empty ones) is not the one that was read; file 1 is d.",
    insert_before_all: "file 1 of the log (without empty ones) is not the one that was read; file 1 is a.ndjson now",
    insert_between: "file 2 of the log (without empty ones) is not the one that was read; file 2 is c.parquet now",
    insert_before_the_newest: "e.ndjson.gz no longer begins with the",
    truncate_and_refill: "f.ndjson no longer begins with the",
    rotate: "f.ndjson no longer begins with the",
    rename_to_the_end: "file 1 of the log (without empty ones) is not the one that was read; file 1 is d.",
    replace_with_the_same_size: "file 1 of the log (without empty ones) is not the one that was read; file 1 is b.",
    replace_the_newest: "f.ndjson no longer begins with the",
    reverse: "file 1 of the log (without empty ones) is not the one that was read; file 1 is b.",
    remove_all: "the progress is at position 30, but the log ends at 0; file 1 of the log",
    cut_off: "the progress is at position 30, but the log ends at 25",
}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("change", CHANGES, ids=lambda one: one.__name__)
def test_a_change_that_moves_or_replaces_a_read_event_is_refused(
    folder: Path, suffix: str, change: Callable[[Path], None]
) -> None:
    fingerprint = at(folder, 30)
    change(folder)
    error = refusal(lambda: verify(folder, 30, fingerprint))
    assert CHANGES[change] in error.what
    assert error.where == str(folder)
    assert not FileEventSource(folder).is_outage(error)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_change_after_the_position_is_accepted_and_one_before_it_refused(folder: Path, suffix: str) -> None:
    early, late = at(folder, 10), at(folder, 11)
    put(folder / f"d.{suffix}", *range(41, 51))
    verify(folder, 10, early)
    refusal(lambda: verify(folder, 11, late))


@pytest.mark.parametrize("suffix", ["ndjson"])
def test_lines_that_were_read_must_not_change_but_later_ones_can(folder: Path, suffix: str) -> None:
    prints = {position: at(folder, position) for position in range(21, 31)}
    path = folder / "f.ndjson"
    path.write_bytes(path.read_bytes().replace(b'"n":25}', b'"n":99}'))
    for position, fingerprint in prints.items():
        if position < 25:
            verify(folder, position, fingerprint)
        else:
            refusal(lambda position=position, fingerprint=fingerprint: verify(folder, position, fingerprint))


def test_rows_in_a_different_order_are_a_different_file(tmp_path: Path) -> None:
    path = put(tmp_path / "a.parquet", *range(1_000))
    fingerprint = at(tmp_path, 500)
    table = pq.read_table(path)
    pq.write_table(table.take(pa.array(range(999, -1, -1))), path)
    assert "a.parquet no longer begins with" in refusal(lambda: verify(tmp_path, 500, fingerprint)).what


def test_the_same_events_compressed_again_are_a_different_file(tmp_path: Path) -> None:
    path = put(tmp_path / "a.ndjson.gz", *range(1_000))
    fingerprint = at(tmp_path, 500)
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), 1))
    refusal(lambda: verify(tmp_path, 500, fingerprint))


@pytest.mark.parametrize("suffix", ["ndjson"])
def test_progress_without_a_fingerprint_only_has_to_lie_within_the_log(folder: Path, suffix: str) -> None:
    verify(folder, 30, "")
    error = refusal(lambda: verify(folder, 31, ""))
    assert error.what.endswith("the progress is at position 31, but the log ends at 30")


@pytest.mark.parametrize("suffix", ["ndjson"])
@pytest.mark.parametrize("text", ["other", "[]", "{}", '{"format":"files 2"}', '{"format":"files 1","x":1}', "7"])
def test_the_fingerprint_of_another_kind_of_store_is_refused(folder: Path, suffix: str, text: str) -> None:
    assert "of another kind" in refusal(lambda: verify(folder, 30, text)).what


@pytest.mark.parametrize("suffix", ["ndjson"])
def test_a_position_after_the_log_has_no_fingerprint(folder: Path, suffix: str) -> None:
    refusal(lambda: FileEventSource(folder).fingerprint(31))


# -------------------------------------------------------------------------------------------------- what it costs


def test_a_changed_file_among_thousands_is_narrowed_down(tmp_path: Path) -> None:
    for number in range(300):
        put(tmp_path / f"{number:03}.ndjson", number)
    fingerprint = at(tmp_path, 300)
    assert len(fingerprint) <= 1_000
    put(tmp_path / "150.ndjson", 999)
    said = refusal(lambda: verify(tmp_path, 300, fingerprint)).what
    assert "one of the files 149 to 152 of the log" in said
    assert "file 149 is 148.ndjson now" in said


def test_names_of_any_length_and_bytes_fit(tmp_path: Path) -> None:
    for number in range(100):
        put(tmp_path / f"{number:03}.ndjson", number)
    try:
        path = put(tmp_path / os.fsdecode(b'9"' * 60 + b"\xff\n\\" * 20 + b"." + b"ndjson"), 1)
    except OSError:
        pytest.skip("this file system refuses such names")
    fingerprint = at(tmp_path, 101)
    assert len(fingerprint.encode()) <= 1_000
    verify(tmp_path, 101, fingerprint)
    path.write_bytes(content("ndjson", 2))
    refusal(lambda: verify(tmp_path, 101, fingerprint))


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Notes how much is digested at each call."""
    noted: list[int] = []
    blake = event_file.blake2b

    class Noted:
        def __init__(self, *given: bytes, digest_size: int) -> None:
            self._digest = blake(digest_size=digest_size)
            noted.append(0)
            for each in given:
                self.update(each)

        def update(self, more: bytes) -> None:
            noted[-1] += len(more)
            self._digest.update(more)

        def digest(self) -> bytes:
            return self._digest.digest()

    monkeypatch.setattr(event_file, "blake2b", Noted)
    return noted


def test_the_work_for_a_fingerprint_does_not_grow_with_the_log(tmp_path: Path, bytes_read: list[int]) -> None:
    put(tmp_path / "a.ndjson", *range(20_000))
    put(tmp_path / "b.ndjson.gz", *range(20_000))
    put(tmp_path / "c.ndjson", *range(20_000))
    source = FileEventSource(tmp_path)
    source.fingerprint(60_000)
    assert len(bytes_read) <= 2 * 3
    bytes_read.clear()
    for position in range(50_000, 50_100):
        source.fingerprint(position)
    assert len(bytes_read) == 100
    assert max(bytes_read) <= 16 * 1024
    bytes_read.clear()
    source.fingerprint(30_000)
    assert bytes_read == []


def test_a_position_is_located_from_the_one_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "a.ndjson", *range(5_000))
    source = FileEventSource(tmp_path)
    source.fingerprint(1_000)
    (file,) = source._log.files
    assert [mark.event for mark in file._places.values()] == [1_000]
    start = file._places[1_000].offset
    source.fingerprint(1_001)
    assert path.read_bytes()[start : file._places[1_001].offset].count(b"\n") == 1
    for position in range(1_001, 1_200):
        source.fingerprint(position)
    assert len(file._places) == lines._PLACES


def test_a_change_that_is_not_sampled_and_keeps_the_size_is_not_seen(tmp_path: Path) -> None:
    """As documented: no position changes by it."""
    path = put(tmp_path / "a.ndjson", *range(10_000, 20_000))
    fingerprint = FileEventSource(tmp_path).fingerprint(10_000)
    data = path.read_bytes()
    middle = (len(data) - event_file._SAMPLE) // 7 + 2 * event_file._SAMPLE
    where = data.index(b'"n":1', middle) + 4
    path.write_bytes(data[:where] + b"9" + data[where + 1 :])
    verify(tmp_path, 10_000, fingerprint)


def test_a_fingerprint_takes_the_names_and_steps_of_its_format() -> None:
    assert history._Trace.read(history._Trace(1, 2, "d", "s", "n", 3, "p").written()) == history._Trace(
        1, 2, "d", "s", "n", 3, "p"
    )


# ------------------------------------------------------------------------------------------------ whatever happens

NAMES = st.sampled_from([f"{number}.{suffix}" for number in range(5) for suffix in ("ndjson", "jsonl.gz")])
FILES = st.dictionaries(NAMES, st.lists(st.integers(1, 4), max_size=4), max_size=4).filter(
    lambda files: len({name[0] for name in files}) == len(files)
)


def refused(act: Callable[[], object]) -> bool:
    try:
        act()
    except EventStoreError:
        return True
    return False


def read_whole(folder: Path) -> list[str]:
    return [each.payload or "" for each in FileEventSource(folder).read(0, 1_000, Selection()).events]


@given(before=FILES, after=FILES, data=st.data())
def test_a_verified_log_contains_the_events_that_were_read(
    before: dict[str, list[int]], after: dict[str, list[int]], data: st.DataObject
) -> None:
    """Ids are few, so that many logs begin alike."""
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        for folder, files in ((one, before), (other, after)):
            for name, numbers in files.items():
                put(Path(folder) / name, *numbers)
        had, has = read_whole(Path(one)), read_whole(Path(other))
        position = data.draw(st.integers(0, len(had)))
        fingerprint = FileEventSource(Path(one)).fingerprint(position)
        if refused(lambda: verify(Path(other), position, fingerprint)):
            assert before != after
        else:
            assert has[:position] == had[:position]
