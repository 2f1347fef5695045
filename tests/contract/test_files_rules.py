"""What files have to keep to, so that positions are stable: every change that would move an event is refused."""

from __future__ import annotations

import codecs
import errno
import gzip
import io
import json
import os
import pickle
import shutil
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import BinaryIO

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.unpacking import note_ends

from opencqrs_py.adapters.files import (
    FileEventSource,
    event_file,
    event_line,
    events_of_file,
    format_of,
    lines,
    rows,
    whole_files,
    writer_to,
    written_whole,
)
from opencqrs_py.adapters.files import event_source as event_sources
from opencqrs_py.adapters.files.event_file import Readers, Selected
from opencqrs_py.adapters.files.lines import Mark, PlainLines
from opencqrs_py.cli.events.imports import _events_of
from opencqrs_py.errors import DamagedFileError, EventFormatError, EventStoreError
from opencqrs_py.model import event_lines
from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.model.event import Event
from opencqrs_py.model.selection import Selection
from opencqrs_py.testing import FakeClock
from opencqrs_py.testing.contracts.event_source import event, followed, identities

ALL = Selection()
ONCE_WRITTEN = ["ndjson.gz", "jsonl.zst", "parquet"]
SUFFIXES = ["ndjson", *ONCE_WRITTEN]

WIDE = "/" + "x" * 300


def line(number: int, **changes: object) -> bytes:
    return event_line(event(number)._replace(**changes))


def put(path: Path, *numbers: int, subject: str = WIDE) -> Path:
    form = format_of(path.name)
    assert form is not None
    with written_whole(path) as file, writer_to(file, form) as writer:
        writer.write([event(number, subject) for number in numbers])
    return path


def ids(source: FileEventSource, after: int = 0, limit: int = 1_000) -> list[str]:
    return [one.id for part in followed(source, limit, after=after) for one in part.events]


def refusal(act: Callable[[], object], code: str) -> EventStoreError | EventFormatError:
    with pytest.raises((EventStoreError, EventFormatError)) as caught:
        act()
    assert caught.value.code == code
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    return caught.value


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(datetime.now(UTC))


@pytest.fixture
def source(tmp_path: Path, clock: FakeClock) -> FileEventSource:
    return FileEventSource(tmp_path, clock)


def settle(folder: Path, clock: FakeClock) -> None:
    """Let the folder's last change be so long ago that it cannot be hidden by a coarse clock."""
    long_ago = (clock.now() - timedelta(hours=1)).timestamp()
    os.utime(folder, (long_ago, long_ago))


# ------------------------------------------------------------------------------------------- order and positions


def test_positions_continue_across_files_in_the_order_of_their_names(tmp_path, source) -> None:
    put(tmp_path / "b.parquet", 4, 5)
    put(tmp_path / "a.ndjson", 1, 2, 3)
    put(tmp_path / "d.ndjson.gz", 7)
    put(tmp_path / "c.ndjson.zst", 6)
    read = source.read(0, 100, ALL).events
    assert [(one.position, one.id) for one in read] == [(n, str(n)) for n in range(1, 8)]
    assert source.head() == source.count() == 7


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_a_log_reads_the_same_from_every_position(tmp_path, suffix: str, limit: int) -> None:
    put(tmp_path / f"1.{suffix}", *range(1, 8))
    put(tmp_path / f"2.{suffix}")
    put(tmp_path / f"3.{suffix}", *range(8, 10))
    for after in range(12):
        assert ids(FileEventSource(tmp_path), after, limit) == [str(n) for n in range(after + 1, 10)]


def test_hidden_files_other_suffixes_and_folders_are_passed_over(tmp_path, source) -> None:
    put(tmp_path / "a.ndjson", 1)
    for name in (".b.ndjson", "_c.ndjson", "_SUCCESS", "d.ndjson.tmp", "readme.md"):
        (tmp_path / name).write_text("no event")
    (tmp_path / "e.ndjson").mkdir()
    assert ids(source) == ["1"]


def test_capital_letters_sort_before_small_ones_and_10_before_9(tmp_path, source) -> None:
    for number, name in enumerate(["10", "9", "B", "a"]):
        put(tmp_path / f"{name}.ndjson", number)
    assert ids(source) == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("1.ndjson", "10.ndjson", "9.ndjson"), "10.ndjson comes before 9.ndjson"),
        (("log-10.ndjson.gz", "log-9.ndjson"), "log-10.ndjson.gz comes before log-9.ndjson"),
        (("2026-10-1.ndjson", "2026-9-30.parquet"), "2026-10-1.ndjson comes before 2026-9-30.parquet"),
        (("08.ndjson", "09.ndjson", "10.ndjson"), ""),
        (("a10.ndjson", "b9.ndjson"), ""),
        (("2026-01-05T09-00.ndjson", "2026-01-05T10-00.ndjson"), ""),
        (("0198c0de-7000.ndjson", "0198c0df-10.ndjson"), ""),
    ],
)
def test_names_that_do_not_sort_by_their_numbers_are_logged_once(tmp_path, source, caplog, names, said: str) -> None:
    for number, name in enumerate(names):
        put(tmp_path / name, number)
    assert ids(source) == [str(number) for number in range(len(names))]
    put(tmp_path / "z-10.ndjson", 10)
    put(tmp_path / "z-9.ndjson", 9)
    source.renew()
    (logged,) = caplog.messages
    assert f"in {tmp_path}, {said or 'z-10.ndjson comes before z-9.ndjson'}: names are compared character by" in logged


def test_empty_lines_and_foreign_line_ends_are_not_events(tmp_path, source) -> None:
    (tmp_path / "a.ndjson").write_bytes(b"\n \r\n" + line(1).replace(b"\n", b"\r\n") + b"\t\n\n" + line(2) + b"\n")
    assert [(one.position, one.id) for one in source.read(0, 9, ALL).events] == [(1, "1"), (2, "2")]
    assert source.head() == 2


def test_one_file_is_a_log_too(tmp_path) -> None:
    for suffix in SUFFIXES:
        path = put(tmp_path / f"a.{suffix}", 1, 2)
        assert ids(FileEventSource(path)) == ["1", "2"]


def test_a_single_file_of_another_kind_is_refused(tmp_path) -> None:
    (tmp_path / "events.json").write_text("[]")
    error = refusal(FileEventSource(tmp_path / "events.json").head, "OCQ-232")
    assert ".ndjson" in error.fix


def test_a_file_beside_its_compressed_copy_is_refused(tmp_path, source) -> None:
    put(tmp_path / "a.ndjson", 1)
    put(tmp_path / "a.ndjson.gz", 1)
    assert "a.ndjson and a.ndjson.gz" in refusal(source.head, "OCQ-233").what


# ------------------------------------------------------------------------------------------------ what may happen


def test_new_files_after_all_others_are_followed(tmp_path, source) -> None:
    for number, suffix in enumerate([*SUFFIXES, *SUFFIXES], start=1):
        put(tmp_path / f"{number}.{suffix}", number)
        assert source.head() == number
        assert ids(source, number - 1) == [str(number)]


def test_a_new_file_is_seen_even_in_a_folder_unchanged_for_long(tmp_path, source, clock) -> None:
    put(tmp_path / "a.ndjson", 1)
    settle(tmp_path, clock)
    assert source.head() == 1
    put(tmp_path / "b.ndjson", 2)
    assert source.head() == 2


def test_an_unchanged_folder_is_not_listed_repeatedly(tmp_path, source, clock, monkeypatch) -> None:
    put(tmp_path / "a.ndjson", 1)
    put(tmp_path / "b.ndjson", 2)
    settle(tmp_path, clock)
    source.head()
    listings: list[object] = []
    monkeypatch.setattr(os, "scandir", lambda path: listings.append(path) or pytest.fail("listed"))
    for _ in range(10):
        assert source.head() == 2
        clock.advance(0.4)
    assert listings == []


def test_a_file_added_within_the_resolution_of_the_folders_timestamp_is_seen(tmp_path, source, clock) -> None:
    put(tmp_path / "a.ndjson", 1)
    stamp = clock.now().timestamp()
    os.utime(tmp_path, (stamp, stamp))
    assert source.head() == 1
    put(tmp_path / "b.ndjson", 2)
    os.utime(tmp_path, (stamp, stamp))
    assert source.head() == 2


def test_the_newest_file_of_lines_can_grow(tmp_path, source) -> None:
    path = put(tmp_path / "a.ndjson", 1)
    for number in range(2, 50):
        with path.open("ab") as file:
            file.write(line(number, subject=WIDE))
        assert source.head() == number
        assert ids(source, number - 1) == [str(number)]
    assert len(ids(source)) == 49


def test_a_line_without_a_line_end_is_not_an_event_yet(tmp_path, source) -> None:
    path = tmp_path / "a.ndjson"
    whole = line(1) + line(2)
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        read = ids(FileEventSource(tmp_path))
        assert read == [["1", "2"][n] for n in range(whole[:size].count(b"\n"))]
        assert source.head() == len(read)
        assert ids(source) == read


def test_a_last_line_without_a_line_end_is_an_event_once_another_file_follows(tmp_path, source) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(line(1) + line(2).rstrip())
    assert ids(source) == ["1"]
    put(tmp_path / "b.ndjson", 3)
    assert ids(source, 1) == ["2", "3"]
    assert ids(FileEventSource(tmp_path)) == ["1", "2", "3"]
    assert source.head() == 3


def test_a_last_line_completed_after_the_next_file_was_added_is_waited_for(tmp_path, source) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(line(1) + line(2)[:20])
    assert source.head() == 1
    put(tmp_path / "b.ndjson", 3)
    assert source.head() == 3
    assert [one.id for one in source.read(0, 10, ALL).events] == ["1"]
    error = refusal(lambda: source.read(1, 10, ALL), "OCQ-213")
    assert error.what.startswith("the file's last line is not complete, although another file comes after it: not JSON")
    assert error.where == f"{path}:2"
    assert "complete the line" in error.fix
    with path.open("ab") as file:
        file.write(line(2)[20:])
    assert source.head() == 3
    assert [(one.position, one.id) for one in source.read(1, 10, ALL).events] == [(2, "2"), (3, "3")]
    assert ids(FileEventSource(tmp_path)) == ["1", "2", "3"]


def test_an_incomplete_last_line_is_an_outage_for_some_seconds_and_then_an_error(tmp_path, clock) -> None:
    source = FileEventSource(tmp_path, clock)
    (tmp_path / "a.ndjson").write_bytes(line(1) + line(2)[:20])
    put(tmp_path / "b.ndjson", 3)
    assert source.head() == 3
    incomplete, other = refusal(lambda: source.read(1, 10, ALL), "OCQ-213"), DamagedFileError("OCQ-213", "cut off")
    assert (source.is_outage(incomplete), source.is_outage(other)) == (True, False)
    clock.advance(4.9)
    assert source.is_outage(incomplete)
    clock.advance(0.2)
    assert not source.is_outage(refusal(lambda: source.read(1, 10, ALL), "OCQ-213"))


@pytest.mark.parametrize("by_a_read", [False, True])
def test_lines_added_after_positions_of_the_next_file_are_known_are_refused(
    tmp_path, source, clock, *, by_a_read: bool
) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(line(1) + line(2)[:20])
    put(tmp_path / "b.ndjson", 3)
    assert source.head() == 3
    with path.open("ab") as file:
        file.write(line(2)[20:] + line(9))
    if by_a_read:  # before the log is checked again
        refusal(lambda: source.read(1, 10, ALL), "OCQ-342")
    clock.advance(5)
    for _ in range(2):
        error = refusal(source.head, "OCQ-342")
    assert "a.ndjson has grown by more than the end of its last line after a file came after it" in error.what


@pytest.mark.parametrize("name", ["b.ndjson", "b.ndjson.gz", "b.parquet"])
def test_a_last_line_completed_while_it_is_read_is_not_passed_over(tmp_path, source, monkeypatch, name: str) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(line(1) + line(2)[:20])
    assert source.head() == 1
    put(tmp_path / name, 3, 4)
    assert source.head() == 4
    opened, rest = PlainLines._opened, [line(2)[20:]]

    def completing(lines: PlainLines, mark: Mark) -> BinaryIO:
        """After its size was checked."""
        if lines.path == path and rest:
            with path.open("ab") as file:
                file.write(rest.pop())
        return opened(lines, mark)

    monkeypatch.setattr(PlainLines, "_opened", completing)
    assert ids(source) == ["1", "2", "3", "4"]
    assert not rest


def test_lines_added_before_positions_of_the_next_file_are_known_are_read(tmp_path, source, clock) -> None:
    path = put(tmp_path / "a.ndjson", 1)
    assert source.read(0, 1, ALL).upto == 1
    put(tmp_path / "b.ndjson", 3)
    source._log.look_at_all()
    with path.open("ab") as file:
        file.write(line(2))
    clock.advance(5)
    assert ids(source) == ["1", "2", "3"]


@pytest.mark.parametrize("ended", [True, False], ids=["whole lines", "a line without a line end"])
def test_lines_that_a_file_server_shows_late_are_read_before_the_next_file(
    tmp_path, source, clock, monkeypatch, *, ended: bool
) -> None:
    """On NFS a client may have an old size of a file in its cache, until it opens the file."""
    path, stat = put(tmp_path / "a.ndjson", 1, 2), Path.stat
    assert ids(source) == ["1", "2"]
    cached = path.stat()
    with path.open("ab") as file:
        file.write(line(3) + (line(4) if ended else line(4).rstrip()))
    put(tmp_path / "b.ndjson", 5)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", lambda self, **how: cached if self == path else stat(self, **how))
        assert ids(source, after=2) == ["3", "4", "5"]
        fingerprint = source.fingerprint(4)
    clock.advance(10)
    assert ids(source) == ["1", "2", "3", "4", "5"]
    FileEventSource(tmp_path).verify(4, fingerprint)


def test_checking_unchanged_files_opens_none(tmp_path, source, clock, monkeypatch) -> None:
    for name in "abc":
        put(tmp_path / f"{name}.ndjson", ord(name))
    assert source.head() == 3
    opened, open_file = [], Path.open
    monkeypatch.setattr(Path, "open", lambda path, *how, **more: opened.append(path) or open_file(path, *how, **more))
    clock.advance(10)
    assert (source.head(), opened) == (3, [])


@pytest.mark.parametrize("suffix", ["ndjson", "ndjson.gz", "jsonl.zst"])
@pytest.mark.parametrize("start", [b"", b"\n", b"\r\n \n"])
def test_a_byte_order_mark_is_passed_over(tmp_path, source, suffix: str, start: bytes) -> None:
    path = tmp_path / f"a.{suffix}"
    content = b"\xef\xbb\xbf" + start + line(1) + line(2)
    if suffix == "ndjson":
        path.write_bytes(content)
    elif suffix == "ndjson.gz":
        path.write_bytes(gzip.compress(content))
    else:
        with pa.OSFile(str(path), "wb") as raw, pa.CompressedOutputStream(raw, "zstd") as file:
            file.write(content)
    assert FileEventSource(tmp_path).head() == 2
    assert ids(source, limit=1) == ["1", "2"]
    assert [one.id for one in events_of_file(path)] == ["1", "2"]
    fingerprint = source.fingerprint(1)
    FileEventSource(tmp_path).verify(1, fingerprint)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("content", [b"", b"\n", b"\n\n"])
def test_a_byte_order_mark_alone_is_not_an_event(tmp_path, source, content: bytes, *, packed: bool) -> None:
    alone = b"\xef\xbb\xbf" + content
    (tmp_path / f"a.ndjson{'.gz' * packed}").write_bytes(gzip.compress(alone) if packed else alone)
    put(tmp_path / "b.ndjson", 1, 2)
    assert ids(source) == ["1", "2"]
    assert source.head() == 2
    fingerprint = source.fingerprint(1)
    began_in_the_middle = FileEventSource(tmp_path)
    began_in_the_middle.verify(1, fingerprint)
    assert ids(began_in_the_middle, after=1) == ["2"]
    assert began_in_the_middle.head() == 2


@pytest.mark.parametrize(
    ("content", "what", "fix"),
    [
        (gzip.compress(line(1)), "packed by gzip, but its name does not end with .gz", "rename it"),
        (b"\x28\xb5\x2f\xfd\x04", "packed by Zstandard, but its name does not end with .zst", "rename it"),
        (b"PAR1\x15\x04", "Parquet, but its name does not end with .parquet", "rename it"),
        (b"PK\x03\x04\x14", "a ZIP archive, not lines of JSON", "unpack it"),
    ],
)
def test_a_file_of_another_kind_is_named_as_such(tmp_path, source, content: bytes, what: str, fix: str) -> None:
    (tmp_path / "a.ndjson").write_bytes(content + b"\n")
    error = refusal(lambda: source.read(0, 1, ALL), "OCQ-230")
    assert (error.what, error.where) == (f"the file is {what}", f"{tmp_path / 'a.ndjson'}:1")
    assert error.fix == f"{fix}, then restart"
    with pytest.raises(EventFormatError) as caught:
        list(_events_of(str(tmp_path / "a.ndjson")))
    assert caught.value.fix == "fix the file and import again; nothing of this file was imported"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_a_file_in_utf_16_is_named_as_such(tmp_path, source, encoding: str) -> None:
    bom = b"\xfe\xff" if encoding == "utf-16-be" else b""
    (tmp_path / "a.ndjson").write_bytes(bom + line(1).decode().encode(encoding))
    put(tmp_path / "b.ndjson", 1)
    error = refusal(lambda: source.read(0, 1, ALL), "OCQ-230")
    assert (error.what, error.where) == ("the file is UTF-16, not UTF-8", f"{tmp_path / 'a.ndjson'}:1")
    assert "iconv" in error.fix


@pytest.mark.parametrize(
    ("bad", "what"), [(b'{"id":"\xe4"}\n', "not UTF-8 (0xe4 at byte 8 of the line)"), (b'{"id":"\0"}\n', "not JSON (")]
)
def test_latin_1_and_nul_are_named_with_their_line(tmp_path, source, bad: bytes, what: str) -> None:
    (tmp_path / "a.ndjson").write_bytes(line(1) + bad)
    error = refusal(lambda: source.read(1, 1, ALL), "OCQ-230")
    assert error.what.startswith(what)
    assert error.where == f"{tmp_path / 'a.ndjson'}:2"


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_compressed_last_line_needs_no_line_end(tmp_path, suffix: str) -> None:
    path = put(tmp_path / f"a.ndjson.{suffix}", 1)
    if suffix == "gz":
        path.write_bytes(gzip.compress(line(1) + line(2).rstrip()))
    else:
        with pa.OSFile(str(path), "wb") as raw, pa.CompressedOutputStream(raw, "zstd") as file:
            file.write(line(1) + line(2).rstrip())
    assert FileEventSource(tmp_path).head() == 2
    assert ids(FileEventSource(tmp_path)) == ["1", "2"]


def test_concatenated_compressed_pieces_are_one_file(tmp_path, source) -> None:
    (tmp_path / "a.ndjson.gz").write_bytes(gzip.compress(line(1)) + gzip.compress(line(2)))
    assert ids(source) == ["1", "2"]


def test_a_file_that_was_only_touched_or_restored_is_the_same(tmp_path, source, clock) -> None:
    path = put(tmp_path / "a.ndjson", 1)
    put(tmp_path / "b.ndjson", 2)
    assert source.head() == 2
    shutil.copy(path, tmp_path / "copy")
    (tmp_path / "copy").replace(path)
    assert source.head() == 2
    assert ids(source) == ["1", "2"]


# ------------------------------------------------------------------------------------------- what must not happen


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_new_file_that_sorts_before_known_ones_is_refused_and_never_read(tmp_path, source, suffix: str) -> None:
    put(tmp_path / "b.ndjson", 1)
    put(tmp_path / "d.ndjson", 2)
    assert source.head() == 2
    put(tmp_path / f"c.{suffix}", 9)
    for act in (source.head, lambda: source.read(2, 10, ALL), lambda: source.position_before(datetime.now(UTC))):
        error = refusal(act, "OCQ-341")
    assert error.what.startswith(f"c.{suffix} appeared after d.ndjson was read")
    assert error.where == str(tmp_path / f"c.{suffix}")
    assert "sorts after" in error.fix
    assert "OCQ-316" in error.fix
    assert not source.is_outage(error)
    (tmp_path / f"c.{suffix}").rename(tmp_path / f"e.{suffix}")
    assert ids(source) == ["1", "2", "9"]


CHANGES = {
    "shrunk": (lambda path: os.truncate(path, path.stat().st_size - 1), "has shrunk"),
    "emptied": (lambda path: os.truncate(path, 0), "has shrunk"),
    "gone": (lambda path: path.unlink(), "is gone"),
    "renamed": (lambda path: path.rename(path.with_name(f"z.{path.name}")), "is gone"),
    "other": (lambda path: path.write_bytes(bytes(path.stat().st_size)), "has changed"),
    "grown": (lambda path: path.open("ab").write(b"\n"), "has grown"),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_that_was_read_must_not_change(tmp_path, source, clock, suffix: str, change: str) -> None:
    path = put(tmp_path / f"a.{suffix}", *range(20))
    put(tmp_path / "b.ndjson", 1)
    source.head()
    act, what = CHANGES[change]
    act(path)
    clock.advance(5)  # a change within a file is noticed at the next check of all files
    error = refusal(source.head, "OCQ-342")
    assert f"a.{suffix} {what}" in error.what
    assert error.where == str(path)
    assert "rebuild the groups" in error.fix
    assert "OCQ-316" in error.fix
    refusal(lambda: source.read(0, 10, ALL), "OCQ-342")


@pytest.mark.parametrize("change", ["shrunk", "emptied", "gone", "other"])
def test_the_newest_file_must_not_change_in_the_part_that_was_read(tmp_path, source, change: str) -> None:
    path = put(tmp_path / "a.ndjson", *range(20))
    source.head()
    CHANGES[change][0](path)
    refusal(source.head, "OCQ-342")


def test_lines_moved_by_an_edit_above_them_are_noticed(tmp_path, source) -> None:
    path = put(tmp_path / "a.ndjson", *range(100))
    source.head()
    path.write_bytes(path.read_bytes().replace(b'"n":50', b'"n":5000000') + line(100))
    refusal(source.head, "OCQ-342")


def test_a_file_truncated_and_refilled_by_its_writer_is_noticed(tmp_path, source) -> None:
    path = put(tmp_path / "a.ndjson", 1, 2)
    source.head()
    put(path, *range(50, 60))
    refusal(source.head, "OCQ-342")


def test_an_old_file_is_checked_before_it_is_read_again(tmp_path, clock, source) -> None:
    path = put(tmp_path / "a.ndjson", *range(10))
    put(tmp_path / "b.ndjson", 1)
    settle(tmp_path, clock)
    assert len(ids(source)) == 11
    path.write_bytes(bytes(path.stat().st_size))
    refusal(lambda: source.read(5, 1, ALL), "OCQ-342")


# ------------------------------------------------------------------------------------- events of which little is seen

SELECTIONS = {
    "all": Selection(),
    "a subject": Selection("/books", recursive=False),
    "subjects": Selection("/books"),
    "types": Selection(types=frozenset({"lent"})),
    "both": Selection("/books", types=frozenset({"lent"})),
    "none": Selection("/books", types=frozenset({"other"})),
}
SUBJECTS = ("/books", "/books/1", "/cars")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_an_event_is_the_same_whichever_attributes_were_selected(
    tmp_path, source, suffix: str, selection: Selection
) -> None:
    events = [event(n, SUBJECTS[n % 3])._replace(type=("lent", "paid")[n % 2]) for n in range(300)]
    events[150] = events[150]._replace(payload='"\\u00e4"', extensions='{"x":1}')  # is parsed separately
    form = format_of(f"a.{suffix}")
    assert form is not None
    with written_whole(tmp_path / f"a.{suffix}") as file, writer_to(file, form) as writer:
        writer.write(events)
    part = source.read(10, 200, replace(selection, attributes=frozenset()))
    whole = source.read(10, 200, selection)
    assert ([*part.events], part.upto) == ([*whole.events], whole.upto)
    assert [one.id for one in part.events] == [one.id for one in events[10:] if selection.matches(one)][:200]
    assert [one.type for one in part.events] == [one.type for one in whole.events]
    assert [one.label for one in part.events[3:5]] == [one.label for one in whole.events[3:5]]


def test_subjects_are_distinguished_even_if_no_line_has_one(tmp_path, source) -> None:
    lines = [json.dumps({"id": str(n), "source": "s", "type": "t"}) for n in range(3)]
    (tmp_path / "a.ndjson").write_text("\n".join(lines) + "\n")
    for selection in (Selection("/"), Selection("/", recursive=False)):
        part = source.read(0, 10, replace(selection, attributes=frozenset()))
        assert [(one.subject, one.id) for one in part.events] == [("/", "0"), ("/", "1"), ("/", "2")]
    assert source.read(0, 10, Selection("/books", attributes=frozenset())).events == ()


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("attributes", [frozenset(), frozenset({"subject"})])
def test_a_bad_event_stops_even_a_read_that_does_not_use_its_attributes(
    tmp_path, source, suffix: str, attributes
) -> None:
    path = tmp_path / f"a.{suffix}"
    form = format_of(path.name)
    assert form is not None
    with written_whole(path) as file, writer_to(file, form) as writer:
        writer.write([event(n)._replace(source="" if n == 3 else "s") for n in range(6)])
    selection = Selection(attributes=attributes)
    part = source.read(0, 10, selection)
    assert ([one.id for one in part.events], part.upto) == (["0", "1", "2"], 3)
    for types in (None, frozenset({"other"})):
        error = refusal(lambda types=types: source.read(3, 10, replace(selection, types=types)), "OCQ-212")
        assert error.where == (f"{path}, row 4" if suffix == "parquet" else f"{path}:4")
    assert [one.id for one in source.read(4, 10, selection).events] == ["4", "5"]


# --------------------------------------------------------------------------------------------------- bad content


def test_a_read_returns_the_events_before_a_bad_line_and_raises_at_it(tmp_path, source) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(line(1) + b"\n" + line(2) + b'{"id":\n' + line(3))
    part = source.read(0, 10, ALL)
    assert ([one.id for one in part.events], part.upto) == (["1", "2"], 2)
    for _ in range(2):
        error = refusal(lambda: source.read(2, 10, ALL), "OCQ-230")
        assert error.where == f"{path}:4"
        assert error.what.startswith("not JSON (")
    refusal(lambda: source.read(2, 10, Selection("/elsewhere")), "OCQ-230")
    assert source.read(0, 10, Selection("/elsewhere")).upto == 2
    assert source.head() == 4
    assert ids(source, 3) == ["3"]


def test_a_line_with_a_duplicate_key_is_refused_with_its_place(tmp_path, source) -> None:
    path = put(tmp_path / "a.ndjson", 1)
    with path.open("ab") as file:
        file.write(b'{"id":"2","source":"s","type":"t","data":{"copies":1,"copies":2}}\n')
    assert source.read(0, 10, ALL).upto == 1
    error = refusal(lambda: source.read(1, 10, ALL), "OCQ-230")
    assert (error.what.partition(";")[0], error.where) == ("the key 'copies' appears twice in data", f"{path}:2")


COMPACT = [line(number, time="2026-01-05T09:00:00Z") for number in range(200)]
LAYOUTS = {
    "compact": COMPACT,
    "spaced": [json.dumps(json.loads(each)).encode() + b"\n" for each in COMPACT],
    "CRLF": [each.replace(b"\n", b"\r\n") for each in COMPACT],
}
WRONG = {  # what is put instead of what, and what is said
    "a byte order mark": (b"{", codecs.BOM_UTF8 + b"{", "OCQ-230", "not JSON"),
    "NUL": (b'"id"', b'\0"id"', "OCQ-230", "not JSON"),
    "NUL in a text": (b"contract", b"con\0tract", "OCQ-230", "not JSON"),
    "an escaped NUL": (b"contract", b"con\\u0000tract", "OCQ-212", "U+0000"),
    "a tab in a text": (b"contract", b"con\ttract", "OCQ-230", "not JSON"),
    "Latin-1": (b"contract", b"contr\xe4ct", "OCQ-230", "not UTF-8 (0xe4"),
    "UTF-16": (b"{", b"{\0", "OCQ-230", "not JSON"),
    "no JSON": (b"}", b"", "OCQ-230", "not JSON"),
    "another value": (b"}", b"},7", "OCQ-230", "not JSON"),
    "no number": (b"100}", b"0100}", "OCQ-230", "not JSON"),
    "NaN": (b"100}", b"NaN}", "OCQ-230", "not JSON"),
    "beyond doubles": (b"100}", b"1E400}", "OCQ-230", "infinity"),
    "a key twice": (b'"id"', b'"type":"x","id"', "OCQ-230", "the key 'type' appears twice"),
    "a key twice in data": (b'{"n"', b'{"n":1,"n"', "OCQ-230", "the key 'n' appears twice in data"),
    "a key twice at the end": (b"}}", b'},"id":"x"}', "OCQ-230", "the key"),
    "deep data": (b'{"n"', b'{"m":' + b"[" * 300 + b"]" * 300 + b',"n"', "OCQ-230", "nested deeper than 254"),
    "no time": (b"T09:00:00Z", b"T25:00:00Z", "OCQ-212", "time"),
    "a time without an offset": (b"T09:00:00Z", b"T09:00:00", "OCQ-212", "time"),
    "an empty source": (b'"contract"', b'""', "OCQ-212", "attribute 'source'"),
    "no text": (b'"contract"', b"7", "OCQ-212", "attribute 'source'"),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("types", [None, frozenset({"of no event"})], ids=["all", "others"])
def test_a_bad_line_among_many_good_ones_is_named(tmp_path, source, layout, wrong, types) -> None:
    part, instead, code, what = wrong
    path = tmp_path / "a.ndjson"
    lines_there = [*layout]
    lines_there[100] = layout[100].replace(part, instead, 1)
    assert lines_there[100] != layout[100]
    path.write_bytes(b"".join(lines_there))
    selection = Selection(types=types, attributes=frozenset())
    assert source.read(0, 500, selection).upto == 100
    error = refusal(lambda: source.read(100, 500, selection), code)
    assert what in error.what
    assert error.where == f"{path}:101"
    assert source.read(101, 500, selection).upto == 200


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize(
    "number", ["18446744073709551616", "0.12345678901234567890", "-0.0", "1E40", "1.10", "9" * 300]
)
def test_a_long_number_among_many_ordinary_lines_keeps_its_digits(tmp_path, source, layout, number: str) -> None:
    lines_there = [*layout]
    lines_there[100] = layout[100].replace(b"100}", number.encode() + b"}")
    (tmp_path / "a.ndjson").write_bytes(codecs.BOM_UTF8 + b"".join(lines_there)[:-1].rstrip() + b"\n" + layout[0][:50])
    for selection in (ALL, Selection(attributes=frozenset())):
        events = source.read(0, 500, selection).events
        assert len(events) == 200
        assert Decimal(json.loads(events[100].payload, parse_float=str, parse_int=str)["n"]) == Decimal(number)


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_bad_line_of_a_compressed_file_is_named_too(tmp_path, source, suffix: str) -> None:
    path = put(tmp_path / f"a.ndjson.{suffix}", 1, 2)
    content = line(1) + b"[]\n" + line(2)
    if suffix == "gz":
        path.write_bytes(gzip.compress(content))
    else:
        with pa.OSFile(str(path), "wb") as raw, pa.CompressedOutputStream(raw, "zstd") as file:
            file.write(content)
    assert source.read(0, 10, ALL).upto == 1
    for _ in range(2):
        assert refusal(lambda: source.read(1, 10, ALL), "OCQ-230").where == f"{path}:2"
    assert ids(source, 2) == ["2"]


@pytest.mark.parametrize("suffix", ONCE_WRITTEN)
def test_a_truncated_file_is_not_the_end_of_the_log(tmp_path, source, suffix: str) -> None:
    put(tmp_path / "a.ndjson", 1)
    whole = put(tmp_path / f"_b.{suffix}", *range(2, 4_000), subject="/" + os.urandom(20).hex()).read_bytes()
    for size in (0, 1, len(whole) // 2, len(whole) - 1):
        (tmp_path / f"b.{suffix}").write_bytes(whole[:size])
        refusal(source.head, "OCQ-213")
        error = refusal(lambda: ids(source), "OCQ-213")
        assert str(tmp_path / f"b.{suffix}") in error.where
        assert not source.is_outage(error)
    (tmp_path / f"b.{suffix}").write_bytes(whole)
    assert source.head() == len(ids(source)) == 3_999


@pytest.mark.parametrize("suffix", ONCE_WRITTEN)
def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path, source, suffix: str) -> None:
    (tmp_path / f"a.{suffix}").write_bytes(b'{"id":"1"}\n' * 100)
    refusal(source.head, "OCQ-213")
    refusal(lambda: source.read(0, 1, ALL), "OCQ-213")


def test_missing_columns_get_the_defaults_of_their_attributes(tmp_path, source) -> None:
    table = pa.table({"id": ["1", "2"], "source": ["s", "s"], "type": pa.array(["t", "u"]).dictionary_encode()})
    pq.write_table(table.append_column("subject", pa.array(["", None], pa.string())), tmp_path / "a.parquet")
    assert source.read(0, 9, ALL).events == (
        Event(1, "1", "s", "/", "t", None, "application/json", None, None),
        Event(2, "2", "s", "/", "u", None, "application/json", None, None),
    )


def test_columns_with_other_names_are_ignored_and_positions_are_counted(tmp_path, source) -> None:
    columns = {"position": [70, 80], "id": ["1", "2"], "source": ["s"] * 2, "type": ["t"] * 2, "region": [1, 2]}
    both = {"payload": ["3", "4"], "data": ["5", "6"]}
    pq.write_table(pa.table(columns | both), tmp_path / "a.parquet")
    assert [(one.position, one.payload) for one in source.read(0, 9, ALL).events] == [(1, "3"), (2, "4")]


ATTRIBUTES = {"id": ["1"], "source": ["s"], "type": ["t"]}


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"id": ["1"], "source": ["s"]}, "there is no column 'type'"),
        ({"id": [1], "source": ["s"], "type": ["t"]}, "the column 'id' is int64"),
        (
            {"id": ["1"], "source": ["s"], "type": ["t"], "time": [datetime(2026, 1, 1, tzinfo=UTC)]},
            "the column 'time' is timestamp",
        ),
        (ATTRIBUTES | {"data": ["{}"]}, "the column 'data' must be called 'payload'"),
        (
            ATTRIBUTES | {"datacontenttype": ["text/plain"]},
            "the column 'datacontenttype' must be called 'content_type'",
        ),
        (ATTRIBUTES | {"Subject": ["/a"]}, "the column 'Subject' must be called 'subject'"),
    ],
)
def test_columns_that_do_not_match_those_of_events_are_refused(tmp_path, source, columns, what: str) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    error = refusal(source.head, "OCQ-235")
    assert what in error.what
    assert "content_type" in error.fix


@pytest.mark.parametrize("name", ["id", "payload"])
def test_a_duplicate_column_is_refused(tmp_path, source, name: str) -> None:
    names = [*ATTRIBUTES, "payload", name]
    pq.write_table(pa.Table.from_arrays([pa.array(["1"])] * len(names), names=names), tmp_path / "a.parquet")
    assert f"there are several columns '{name}'" in refusal(source.head, "OCQ-235").what


@pytest.mark.parametrize(
    ("column", "value", "code", "what"),
    [
        ("id", None, "OCQ-212", "the column 'id' is empty"),
        ("source", "", "OCQ-212", "the column 'source' is empty"),
        ("type", None, "OCQ-212", "the column 'type' is empty"),
        ("subject", "/a\0", "OCQ-212", "the column 'subject' contains the character U+0000"),
        ("time", "yesterday", "OCQ-212", "the column 'time' holds no RFC 3339 time"),
        ("time", "2026-01-01T00:00:00", "OCQ-212", "an offset is missing"),
        ("extensions", "[]", "OCQ-230", "the column 'extensions' holds no JSON object"),
        ("extensions", "{", "OCQ-230", "the column 'extensions' holds no JSON object"),
        ("extensions", '{"a":1,"a":1}', "OCQ-230", "the column 'extensions': the key 'a' appears twice"),
    ],
)
def test_a_bad_row_is_refused_with_its_place(
    tmp_path, source, column: str, value: str | None, code: str, what: str
) -> None:
    path = put(tmp_path / "a.parquet", 1, 2, 3)
    table = pq.read_table(path)
    values = table[column].to_pylist()
    values[1] = value
    changed = table.set_column(table.column_names.index(column), column, pa.array(values, pa.string()))
    pq.write_table(changed, path)
    assert source.read(0, 10, ALL).upto == 1
    error = refusal(lambda: source.read(1, 10, ALL), code)
    assert what in error.what
    assert error.where == f"{path}, row 2"
    assert ids(source, 2) == ["3"]


@pytest.mark.parametrize("payload", ["nope", "", '"a\0b"', "NaN"])
def test_an_import_refuses_a_row_whose_data_are_not_json(tmp_path, payload: str) -> None:
    path = tmp_path / "a.parquet"
    with path.open("wb") as file, writer_to(file, format_of(path.name)) as writer:
        writer.write([event(1), event(2)._replace(payload=None), event(3)._replace(payload=payload)])
    events = events_of_file(path)
    assert [next(events).id, next(events).id] == ["1", "2"]
    error = refusal(lambda: next(events), "OCQ-230")
    assert (error.what, error.where) == ("the column 'payload' holds no JSON", f"{path}, row 3")


def test_an_import_refuses_a_row_whose_data_have_a_duplicate_key(tmp_path) -> None:
    path = tmp_path / "a.parquet"
    with path.open("wb") as file, writer_to(file, format_of(path.name)) as writer:
        writer.write([event(1)._replace(payload='{"a":{"b":1,"b":1}}')])
    error = refusal(lambda: next(events_of_file(path)), "OCQ-230")
    assert (error.what, error.where) == ("the column 'payload': the key 'b' appears twice in a", f"{path}, row 1")


def test_extensions_of_rows_are_kept(tmp_path, source) -> None:
    given = [event(1)._replace(extensions='{"x":1}'), event(2)]
    with written_whole(tmp_path / "a.parquet") as file, writer_to(file, format_of("a.parquet")) as writer:
        writer.write(given)
    assert [one._replace(position=0) for one in source.read(0, 9, ALL).events] == given


def test_an_invalid_time_stays_a_text_in_parquet(tmp_path) -> None:
    """Tables of other systems hold such times, SQLite's own ``CURRENT_TIMESTAMP`` among them."""
    texts = ["2026-01-05 09:00:00", "yesterday", None, "2026-01-05T09:00:00Z"]
    path = tmp_path / "a.parquet"
    with written_whole(path) as file, writer_to(file, format_of(path.name)) as writer:
        writer.write([event(number)._replace(time=time) for number, time in enumerate(texts)])
    table = pq.read_table(path)
    assert table["time"].to_pylist() == texts
    assert table["timestamp"].to_pylist() == [None, None, None, datetime(2026, 1, 5, 9, tzinfo=UTC)]


# ------------------------------------------------------------------------------------------------------- outages


def test_a_missing_folder_is_an_outage_until_it_is_back(tmp_path, clock) -> None:
    folder = tmp_path / "log"
    source = FileEventSource(folder, clock)
    folder.mkdir()
    put(folder / "a.ndjson", 1)
    assert source.head() == 1
    folder.rename(tmp_path / "away")
    clock.advance(10)
    error = refusal(lambda: source.read(0, 1, ALL), "OCQ-340")
    assert source.is_outage(error)
    assert error.where == str(folder)
    assert "No such file or directory" in error.what
    (tmp_path / "away").rename(folder)
    assert ids(source) == ["1"]


@pytest.mark.parametrize(
    "name", ["nowhere", "nowhere/events.ndjson", "a.ndjson/b.ndjson", "*.ndjson", "2026-??.ndjson"]
)
def test_a_path_that_never_existed_is_not_an_outage(tmp_path, clock, name: str) -> None:
    put(tmp_path / "a.ndjson", 1)
    source = FileEventSource(tmp_path / name, clock)
    for act in (source.head, lambda: source.read(0, 1, ALL), lambda: source.verify(1, "")):
        error = refusal(act, "OCQ-346")
        assert not source.is_outage(error)
        assert error.where == str(tmp_path / name)
        assert ("patterns are not expanded" in error.fix) == ("*" in name or "?" in name)


def test_a_path_that_is_created_later_is_a_log(tmp_path, clock) -> None:
    source = FileEventSource(tmp_path / "log", clock)
    refusal(source.head, "OCQ-346")
    (tmp_path / "log").mkdir()
    assert source.head() == 0


def test_a_broken_link_is_refused(tmp_path, source) -> None:
    put(tmp_path / "b.ndjson", 1)
    (tmp_path / "a.ndjson").symlink_to(tmp_path / "nowhere")
    error = refusal(source.head, "OCQ-234")
    assert error.what == "a.ndjson is a dangling link, so its events cannot be read"
    assert error.where == str(tmp_path / "a.ndjson")
    put(tmp_path / "nowhere.ndjson", 2).rename(tmp_path / "nowhere")
    assert ids(source) == ["2", "1"]


def test_an_unfinished_last_line_is_logged_once(tmp_path, source, caplog) -> None:
    """A log written by a program without the last line feed would silently lose its last event."""
    path = put(tmp_path / "a.ndjson", 1, 2)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert source.head() == 1
    assert caplog.messages == []  # it may be being written
    os.utime(path, (0, 0))
    assert source.head() == source.head() == 1
    (said,) = caplog.messages
    assert said.startswith(f"{path}:2 is not read: the line has no end yet.")
    with path.open("ab") as file:
        file.write(b"\n")
    assert source.head() == 2
    assert len(caplog.messages) == 1
    following = put(tmp_path / "b.ndjson", 3, 4)
    following.write_bytes(following.read_bytes().rstrip(b"\n"))
    os.utime(following, (0, 0))
    source.renew()
    assert source.head() == 3
    assert caplog.messages[1].startswith(f"{following}:2 is not read")


@pytest.mark.parametrize("age", [0, 3_600, -3_600], ids=["just now", "an hour ago", "by a clock that is ahead"])
def test_report_unfinished_logs_a_last_line_without_a_line_end(tmp_path, source, caplog, clock, age: int) -> None:
    source.report_unfinished()
    path = put(tmp_path / "a.ndjson", 1, 2)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    os.utime(path, (clock.now().timestamp() - age,) * 2)
    assert source.head() == 1
    for _ in range(2):
        source.report_unfinished()
    (said,) = caplog.messages
    assert said.startswith(f"{path}:2 is not read: the line has no end yet.")
    caplog.clear()
    with path.open("ab") as file:
        file.write(b"\n" + line(3) + line(4))
    source._log.look()  # and nothing was counted since
    source.report_unfinished()
    shutil.rmtree(tmp_path)
    source.report_unfinished()
    assert caplog.messages == []


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_half_a_line_end_of_utf_16_is_not_an_unfinished_line(tmp_path, source, caplog, line_end: str) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes((line(1).decode().rstrip() + line_end).encode("utf-16"))
    os.utime(path, (0, 0))
    assert source.head() == 1
    assert caplog.messages == []
    assert refusal(lambda: source.read(0, 1, ALL), "OCQ-230").what == "the file is UTF-16, not UTF-8"


@pytest.mark.parametrize("rest", [b"", b"  ", b"\t "])
def test_whitespace_after_the_last_line_is_not_an_unfinished_line(tmp_path, source, caplog, rest) -> None:
    path = put(tmp_path / "a.ndjson", 1)
    with path.open("ab") as file:
        file.write(rest)
    os.utime(path, (0, 0))
    assert source.head() == 1
    assert caplog.messages == []


def test_ignored_files_are_logged_once(tmp_path, source, caplog) -> None:
    put(tmp_path / "a.ndjson", 1)
    for name in ("b.json", ".hidden", "_SUCCESS", "c.csv"):
        (tmp_path / name).write_text("x")
    (tmp_path / "2026").mkdir()
    (tmp_path / "d.ndjson").mkdir()
    source.head()
    source.renew()
    (said,) = caplog.messages
    assert "2026, b.json, c.csv, d.ndjson are not event files and are ignored" in said
    assert str(tmp_path) in said
    (tmp_path / "z.json").write_text("x")
    source.renew()
    assert "z.json is not an event file and is ignored" in caplog.messages[1]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_without_read_permission_is_an_outage(tmp_path, source, suffix: str) -> None:
    put(tmp_path / f"a.{suffix}", 1).chmod(0)
    error = refusal(source.head, "OCQ-340")
    assert source.is_outage(error)
    assert "Permission denied" in error.what


class FailingDisk(io.RawIOBase):
    """Returns some bytes, and then an error of the operating system."""

    def __init__(self, content: bytes) -> None:
        self._content = io.BytesIO(content)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        if not (taken := self._content.readinto(buffer)):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return taken


def breaks(*_arguments: object, **_named: object) -> None:
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))


@pytest.fixture(params=["open", "read"])
def failing_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A disk that fails where packed files are opened, or where they are read on."""
    if request.param == "open":
        monkeypatch.setattr(gzip, "open", breaks)
        monkeypatch.setattr(pa, "input_stream", breaks)
        monkeypatch.setattr(pq, "ParquetFile", breaks)
    else:
        for module in (lines, whole_files):
            monkeypatch.setattr(module, "unpacked", lambda *_: io.BufferedReader(FailingDisk(line(1))))
        monkeypatch.setattr(pq.ParquetFile, "iter_batches", breaks)
    return monkeypatch


@pytest.mark.parametrize("suffix", ONCE_WRITTEN)
def test_a_disk_error_is_an_outage_and_not_a_damaged_file(tmp_path, source, failing_disk, suffix: str) -> None:
    path = put(tmp_path / f"a.{suffix}", 1, 2)
    error = refusal(lambda: source.read(0, 10, ALL), "OCQ-340")
    assert source.is_outage(error)
    assert error.where == str(path)
    failing_disk.undo()
    assert ids(source) == ["1", "2"]


@pytest.mark.parametrize("suffix", ONCE_WRITTEN)
def test_an_import_names_a_file_that_cannot_be_read_from_disk(tmp_path, failing_disk, suffix: str) -> None:
    path = put(tmp_path / f"a.{suffix}", 1, 2)
    error = refusal(lambda: list(_events_of(str(path))), "OCQ-340")
    assert error.what.startswith("the file cannot be read (")
    assert error.where == str(path)
    assert error.fix.endswith("import again; nothing of this file was imported")


# -------------------------------------------------------------------------------- work that grows with the log only


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Tells which files are opened to be read."""
    seen: list[Path] = []
    unpacked, open_parquet = lines.unpacked, rows.open_parquet
    monkeypatch.setattr(lines, "unpacked", lambda path, how: seen.append(path) or unpacked(path, how))
    monkeypatch.setattr(rows, "open_parquet", lambda path: seen.append(path) or open_parquet(path))
    return seen


@pytest.mark.parametrize("suffix", ONCE_WRITTEN)
def test_a_read_continues_where_the_previous_one_ended(tmp_path, source, opened, suffix: str) -> None:
    put(tmp_path / f"a.{suffix}", *range(100))
    assert len(ids(source, limit=3)) == 100
    assert len(opened) <= 2  # once for the footer of Parquet, once for all reads
    for _ in range(2):
        assert source.head() == 100
        assert len(opened) <= 3  # again for the first event, which other files must not have
    assert source._readers._kept == []  # nothing stays open after the end


@pytest.mark.parametrize("suffix", ["ndjson.gz", "jsonl.zst"])
def test_a_compressed_file_that_is_read_from_its_beginning_is_unpacked_once(
    tmp_path, source, opened, suffix: str
) -> None:
    for number in range(3):
        put(tmp_path / f"{number}.{suffix}", *range(number * 100, number * 100 + 100))
    assert len(ids(source, limit=7)) == 300
    assert source.head() == 300
    names = [f"{number}.{suffix}" for number in range(3)]
    assert sorted(path.name for path in opened) == sorted(names * 2)  # the second time for the first event only


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tells which compressed files are unpacked to their end."""
    return note_ends(monkeypatch)


@pytest.fixture
def packed(tmp_path: Path) -> list[str]:
    """Three compressed files of a hundred events each."""
    names = ["0.ndjson.gz", "1.jsonl.zst", "2.ndjson.gz"]
    for number, name in enumerate(names):
        put(tmp_path / name, *range(number * 100, number * 100 + 100))
    return names


def test_fingerprints_of_what_was_read_unpack_no_file_again(source, packed, ended) -> None:
    expected = [FileEventSource(source.path).fingerprint(position) for position in range(301)]
    ended.clear()
    after = 0
    while (part := source.read(after, 7, ALL)).upto > after:
        after = part.upto
        assert source.fingerprint(after) == expected[after]
    assert source.head() == after == 300
    assert ended == packed


@pytest.mark.parametrize("after", [50, 150, 299, 300])
def test_a_read_that_begins_in_the_middle_unpacks_each_compressed_file_once(source, packed, ended, after: int) -> None:
    assert ids(source, after, limit=7) == [str(number) for number in range(after, 300)]
    assert ended == packed


@pytest.mark.parametrize("position", [50, 150, 250, 300])
def test_a_claim_in_the_middle_and_the_reads_after_it_unpack_each_compressed_file_once(
    source, packed, ended, position: int
) -> None:
    fingerprint = FileEventSource(source.path).fingerprint(position)
    ended.clear()
    source.verify(position, fingerprint)
    assert ids(source, position, limit=7) == [str(number) for number in range(position, 300)]
    assert source.head() == 300
    assert ended == packed


def test_a_check_counts_no_compressed_file_and_a_read_to_the_end_counts_all(source, packed, ended) -> None:
    source.check()
    assert not source.knows_head()
    assert ended == []
    assert len(ids(source)) == 300
    assert source.knows_head()
    assert source.head() == 300
    assert ended == packed


def test_a_check_of_other_files_counts_their_events(tmp_path, source, monkeypatch) -> None:
    for number, suffix in enumerate(("ndjson", "parquet", "ndjson")):
        put(tmp_path / f"{number}.{suffix}", number)
    source.check()
    assert source.knows_head()
    monkeypatch.setattr(PlainLines, "first", lambda _: pytest.fail("a file was looked at again"))
    assert source.head() == 3


@pytest.mark.parametrize("suffix", ONCE_WRITTEN)
@pytest.mark.parametrize("content", [b"", b'{"id":"1"}\n' * 100])
def test_a_check_refuses_a_file_that_is_not_what_its_name_says(tmp_path, source, suffix: str, content: bytes) -> None:
    put(tmp_path / "a.ndjson.gz", 1)
    (tmp_path / f"b.{suffix}").write_bytes(content)
    assert str(tmp_path / f"b.{suffix}") in refusal(source.check, "OCQ-213").where


@pytest.mark.parametrize("suffix", ["ndjson.gz", "jsonl.zst"])
def test_a_compressed_file_that_grows_while_it_is_read_moves_no_event(tmp_path, source, clock, suffix: str) -> None:
    path = put(tmp_path / f"a.{suffix}", *range(100))
    put(tmp_path / f"b.{suffix}", *range(150, 200))
    first = source.read(0, 10, ALL)
    rest = put(tmp_path / f"_rest.{suffix}", *range(100, 150))
    longer = tmp_path / "_longer"
    longer.write_bytes(path.read_bytes() + rest.read_bytes())
    longer.rename(path)  # the reader of the first events has the shorter file open
    clock.advance(60)
    assert ids(source, first.upto) == [str(number) for number in range(first.upto, 200)]
    assert source.head() == 200


@pytest.mark.parametrize("types", [None, frozenset({"of no event"})])
def test_lines_are_parsed_many_at_once_and_not_one_by_one(tmp_path, source, monkeypatch, types) -> None:
    put(tmp_path / "a.ndjson", *range(1_000))
    for module in (lines, event_file):
        monkeypatch.setattr(module, "parse_event", lambda *_, **__: pytest.fail("a line was parsed alone"))
    read = source.read(0, 1_000, Selection(types=types, attributes=frozenset()))
    assert (len(read.events), read.upto) == (1_000 if types is None else 0, 1_000)


def data_first(number: int, fields: dict[str, object]) -> dict[str, object]:
    return {"data": {"number": number}, **fields}


def number_as_extension(number: int, fields: dict[str, object]) -> dict[str, object]:
    return {**fields, "shard": number % 16}


def time_in_some(number: int, fields: dict[str, object]) -> dict[str, object]:
    return {**fields, "time": "2026-01-05T09:00:00Z"} if number % 3 else fields


def extensions_in_some(number: int, fields: dict[str, object]) -> dict[str, object]:
    return {**fields, **({} if number % 5 else {"traceparent": "00-ab"}), **({} if number % 7 else {"shard": number})}


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("change", [data_first, number_as_extension, time_in_some, extensions_in_some])
def test_lines_of_several_shapes_are_parsed_in_full_only_at_the_beginning_of_a_file(
    tmp_path,
    source,
    monkeypatch,
    pack: Callable[[bytes], bytes],
    change: Callable[[int, dict[str, object]], dict[str, object]],
) -> None:
    written = [orjson.dumps(change(number, orjson.loads(line(number)))) + b"\n" for number in range(2_000)]
    (tmp_path / ("a.ndjson" if pack is bytes else "a.ndjson.gz")).write_bytes(pack(b"".join(written)))
    monkeypatch.setattr(lines, "parse_event", lambda *_, **__: pytest.fail("a line was parsed alone"))
    parsed: list[int] = []
    fields = event_lines._fields
    monkeypatch.setattr(event_lines, "_fields", lambda text, some: parsed.append(some) or fields(text, some))
    read = [one for after in range(0, 2_000, 250) for one in source.read(after, 250, ALL).events]
    assert read == [parse_event(each, at, stored=True) for at, each in enumerate(written, 1)]
    assert sum(parsed) <= 64


def test_a_nearly_full_read_ends_early_rather_than_read_a_few_lines_at_a_time(tmp_path, source, monkeypatch) -> None:
    lines_of_four = (line(number, subject="/rest" if number % 4 else "/one") for number in range(2_000))
    (tmp_path / "a.ndjson").write_bytes(b"".join(lines_of_four))
    taken: list[int] = []
    columns_of = lines.columns_of
    monkeypatch.setattr(lines, "columns_of", lambda some, shapes: taken.append(len(some)) or columns_of(some, shapes))
    read = source.read(0, 160, Selection("/one"))
    assert 150 <= len(read.events) <= 160
    assert min(taken) > 10


def test_lines_that_were_read_are_not_counted_again(tmp_path, source, monkeypatch) -> None:
    put(tmp_path / "a.ndjson", *range(1_000))
    counted: list[int] = []
    advance = lines.LineIndex.advance
    noted = lambda index, file, size: counted.append(size - index.end.offset) or advance(index, file, size)  # noqa: E731
    monkeypatch.setattr(lines.LineIndex, "advance", noted)
    assert len(ids(source, limit=100)) == 1_000
    assert source.head() == 1_000
    assert sum(counted) < (tmp_path / "a.ndjson").stat().st_size / 5


@pytest.mark.parametrize("suffix", ONCE_WRITTEN)
def test_readers_at_different_positions_do_not_affect_each_other(tmp_path, source, opened, suffix: str) -> None:
    put(tmp_path / f"a.{suffix}", *range(60))
    afters = [0, 0, 20, 40]
    reads: list[list[str]] = [[] for _ in afters]
    for _ in range(12):
        for number, after in enumerate(afters):
            part = source.read(after, 5, ALL)
            reads[number] += [one.id for one in part.events]
            afters[number] = part.upto
    assert [read == [str(n) for n in range(start, 60)] for read, start in zip(reads, [0, 0, 20, 40], strict=True)]
    assert all(len(read) == 60 - start for read, start in zip(reads, [0, 0, 20, 40], strict=True))
    assert len(opened) <= len(afters) + 2


def test_the_number_of_kept_readers_is_bounded(tmp_path) -> None:
    path = put(tmp_path / "a.ndjson.gz", *range(50))
    file, readers = lines.CompressedLines(path, format_of(path.name).compression), Readers(most=3)
    file.look(newest=True)
    for first in (10, 9, 8, 7, 6):
        with readers.at(file, first, 0) as reader:
            taken = Selected(ALL)
            reader.take(1, taken)
            assert [one.id for one in taken.events()] == [str(first)]
    assert len(readers._kept) == 3
    readers.close()
    assert readers._kept == []


def test_a_closed_source_can_be_used_again(tmp_path, source) -> None:
    put(tmp_path / "a.ndjson.gz", *range(10))
    source.read(0, 3, ALL)
    source.close()
    assert ids(source, 3) == [str(n) for n in range(3, 10)]


@pytest.fixture
def skipped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tells how many lines each reader passes over."""
    seen: list[int] = []
    skip = lines.LineReader.skip_to

    def skip_to(reader: lines.LineReader, number: int) -> None:
        seen.append(number - reader.number)
        skip(reader, number)

    monkeypatch.setattr(lines.LineReader, "skip_to", skip_to)
    return seen


def test_a_read_in_the_middle_of_a_large_file_begins_near_by(tmp_path, source, monkeypatch, skipped) -> None:
    monkeypatch.setattr(lines, "_BLOCK", 1_000)
    put(tmp_path / "a.ndjson", *range(1_000))
    assert source.head() == 1_000
    for after in (500, 17, 999, 250):
        assert [one.id for one in source.read(after, 1, ALL).events] == [str(after)]
    assert max(skipped) <= 3


def test_consecutive_reads_of_lines_do_not_skip_forward_again(tmp_path, source, skipped) -> None:
    put(tmp_path / "a.ndjson", *range(100))
    put(tmp_path / "b.ndjson", *range(100, 150))
    afters = [0, 0, 40]
    while any(after < 150 for after in afters):
        afters = [source.read(after, 7, ALL).upto for after in afters]
    with (tmp_path / "b.ndjson").open("ab") as file:
        file.write(line(150) + line(151))
    assert ids(source, 150, limit=1) == ["150", "151"]
    assert sorted(skipped, reverse=True)[2:] == [0] * (len(skipped) - 2)  # but for the one that began at 40, and growth


def test_the_places_where_readers_stopped_are_remembered_up_to_a_bound(tmp_path, source, monkeypatch) -> None:
    monkeypatch.setattr(lines, "_PLACES", 3)
    put(tmp_path / "a.ndjson", *range(50))
    for after in range(0, 40, 5):
        source.read(after, 1, ALL)
    (file,) = source._log.files
    assert list(file._places) == [26, 31, 36]


def test_a_parquet_reader_begins_at_the_row_group_that_it_needs(tmp_path, source, monkeypatch) -> None:
    pq.write_table(pq.read_table(put(tmp_path / "_a.parquet", *range(100))), tmp_path / "a.parquet", row_group_size=10)
    groups: list[int] = []
    go_through = rows._rows
    noted = lambda file, group, *rest: groups.append(group) or go_through(file, group, *rest)  # noqa: E731
    monkeypatch.setattr(rows, "_rows", noted)
    assert [one.id for one in source.read(55, 10, ALL).events] == [str(n) for n in range(55, 65)]
    assert groups == [5]


def test_of_a_bad_row_and_damage_after_it_the_bad_row_is_reported(tmp_path, source) -> None:
    path = tmp_path / "a.parquet"
    columns = pq.read_table(put(tmp_path / "_a.parquet", *range(4_000))).to_pydict()
    columns["id"][4] = ""
    pq.write_table(pa.table(columns), path, row_group_size=2_000)
    content = bytearray(path.read_bytes())
    start = pq.read_metadata(path).row_group(1).column(1).dictionary_page_offset
    content[start : start + 50] = b"\xff" * 50
    path.write_bytes(content)
    assert [one.id for one in source.read(0, 4_000, ALL).events] == ["0", "1", "2", "3"]
    assert refusal(lambda: source.read(4, 4_000, ALL), "OCQ-212").where == f"{path}, row 5"
    assert source.read(5, 4_000, ALL).upto == 2_000
    assert refusal(lambda: source.read(2_000, 4_000, ALL), "OCQ-213").where == f"{path}, after row 2000"


def test_a_long_read_that_finds_little_lets_other_threads_read(tmp_path, source, monkeypatch) -> None:
    monkeypatch.setattr(event_sources, "_MOST_AT_ONCE", 10)
    put(tmp_path / "a.ndjson", *range(25))
    assert source.read(0, 5, Selection("/nothing")).upto == 10
    assert identities(source, Selection("/nothing")) == []
    assert [part.upto for part in followed(source, 5, Selection("/nothing"))] == [10, 20, 25]


def test_several_threads_read_the_same_events_while_files_are_added(tmp_path) -> None:
    source = FileEventSource(tmp_path)
    put(tmp_path / "000.ndjson.gz", *range(200))

    def follow(limit: int) -> list[str]:
        seen: list[str] = []
        with source.watched() as watch:
            while len(seen) < 1_000:
                watch.wait(len(seen), 5)
                part = source.read(len(seen), limit, ALL)
                assert [one.position for one in part.events] == list(range(len(seen) + 1, part.upto + 1))
                seen += [one.id for one in part.events]
        return seen

    with ThreadPoolExecutor(4) as threads:
        followers = [threads.submit(follow, limit) for limit in (7, 50, 333, 1_000)]
        for number in range(1, 5):
            suffix = SUFFIXES[number - 1]
            put(tmp_path / f"{number:03}.{suffix}", *range(number * 200, number * 200 + 200))
        assert all(follower.result(60) == [str(n) for n in range(1_000)] for follower in followers)


# ------------------------------------------------------------------------------------------------------- writing


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_that_is_being_written_is_not_part_of_the_log(tmp_path, source, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    with written_whole(path) as file, writer_to(file, format_of(path.name)) as writer:
        writer.write([event(1)])
        file.flush()
        assert source.head() == 0
    assert ids(source) == ["1"]
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_an_interrupted_write_leaves_the_existing_file(tmp_path) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(b"before")

    def break_off() -> None:
        with written_whole(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        break_off()
    assert path.read_bytes() == b"before"
    assert [each.name for each in tmp_path.iterdir()] == ["a.ndjson"]


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, None], ids=lambda mode: "new" if mode is None else oct(mode))
def test_a_replaced_file_keeps_its_mode_and_a_new_one_follows_the_umask(tmp_path, mode: int | None) -> None:
    path, before = tmp_path / "a.ndjson", os.umask(0o027)
    try:
        if mode is not None:
            path.write_bytes(b"private")
            path.chmod(mode)
        with written_whole(path) as file:
            (hidden,) = set(tmp_path.iterdir()) - {path}
            seen = stat.S_IMODE(hidden.stat().st_mode)
            file.write(b"private, too")
    finally:
        os.umask(before)
    assert path.read_bytes() == b"private, too"
    assert stat.S_IMODE(path.stat().st_mode) == seen == (0o640 if mode is None else mode)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may give a file away")
def test_a_replaced_file_keeps_its_owner_or_is_hidden_from_its_group(tmp_path, monkeypatch) -> None:
    path = put(tmp_path / "a.ndjson", 1)
    os.chown(path, 12_345, 54_321)
    path.chmod(0o664)
    put(path, 2)
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (12_345, 54_321, 0o664)

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchown", refuse)
    put(path, 3)
    assert stat.S_IMODE(path.stat().st_mode) == 0o604


@pytest.fixture
def synced(tmp_path, monkeypatch) -> list[tuple[str, int, list[str]]]:
    """Notes what is brought to the disk: file or folder, the file's size, and what names there are then."""
    noted = []

    def note(opened: int) -> None:
        found = os.fstat(opened)
        folder = stat.S_ISDIR(found.st_mode)
        assert not folder or os.path.samestat(found, tmp_path.stat())
        names = [each.name for each in tmp_path.iterdir()]
        noted.append(("folder", 0, names) if folder else ("file", found.st_size, names))

    monkeypatch.setattr(os, "fsync", note)
    return noted


def test_content_is_synced_before_the_rename_and_the_rename_at_the_end(tmp_path, synced) -> None:
    with written_whole(tmp_path / "a.ndjson") as file:
        file.write(b"content")
        hidden = [each.name for each in tmp_path.iterdir()]
        assert synced == []
    assert synced == [("file", 7, hidden), ("folder", 0, ["a.ndjson"])]


def test_a_folder_that_cannot_be_synced_is_not_an_error_but_a_disk_error_is(tmp_path, monkeypatch) -> None:
    def break_down(name: str, number: int) -> Callable[..., object]:
        works = getattr(os, name)

        def raise_for_folders(place: Path | str | int, *rest: object) -> object:
            if stat.S_ISDIR(os.fstat(place).st_mode) if isinstance(place, int) else Path(place).is_dir():
                raise OSError(number, os.strerror(number))
            return works(place, *rest)

        return raise_for_folders

    for name, number in (("open", errno.EACCES), ("fsync", errno.EINVAL), ("fsync", errno.ENOTSUP)):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, break_down(name, number))
            put(tmp_path / "a.ndjson", number)
        assert ids(FileEventSource(tmp_path)) == [str(number)]
    monkeypatch.setattr(os, "fsync", break_down("fsync", errno.EIO))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        put(tmp_path / "a.ndjson", 1)
    assert [each.name for each in tmp_path.iterdir()] == ["a.ndjson"]


@pytest.mark.parametrize("name", ["a.ndjson", "a.txt", "a.json.gz", "a.unknown.zst", "a.parquet"])
def test_all_events_of_one_file_are_read_including_the_last_line(tmp_path, name: str) -> None:
    form = format_of(name) or format_of({"gz": "a.ndjson.gz", "zst": "a.ndjson.zst"}.get(name[-2:], "a.ndjson"))
    if name.endswith("zst"):
        form = format_of("a.ndjson.zst")
    with (tmp_path / name).open("wb") as file, writer_to(file, form) as writer:
        writer.write([event(1), event(2)])
    assert [one.id for one in events_of_file(tmp_path / name)] == ["1", "2"]
    if name == "a.ndjson":
        (tmp_path / name).write_bytes(line(1) + json.dumps(json.loads(line(2))).encode())
        assert [one.id for one in events_of_file(tmp_path / name)] == ["1", "2"]
