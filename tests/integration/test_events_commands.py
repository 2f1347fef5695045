"""``opencqrs events …`` on a SQLite store, and on files."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from sqlalchemy import make_url

from opencqrs_py.adapters.files import FileEventSource, FileFormat, FileKind, event_line, writer_to, written_whole
from opencqrs_py.adapters.sql import SqlEventStore
from opencqrs_py.adapters.sql.dialects.faults import DatabaseAwayError
from opencqrs_py.assembly.application import Application
from opencqrs_py.cli.events import appends, display, exports, imports, listings
from opencqrs_py.cli.main import main
from opencqrs_py.model.event import Event

SUFFIXES = ["ndjson", "jsonl", "ndjson.gz", "ndjson.zst", "parquet"]
ODD = Event(
    position=0,
    id="größe-'1'-😀",
    source="https://library.example/?a=%20&b='",
    subject="/bücher/1",
    type="library.book-lent.v1",
    time="2026-01-02T03:04:05.123456789+01:00",
    content_type="application/vnd.library+json",
    payload='{"title":"O\'Größe \\"%s\\" \\u0000 :x","n":[1.5,null,1e+300]}',
    extensions='{"traceparent":"00-1","x":{"y":"ü"}}',
)


def event(number: int, **changes: Any) -> Event:
    made = Event(
        0, str(number), "urn:test", f"/a/{number % 3}", "t", None, "application/json", f'{{"n":{number}}}', None
    )
    return made._replace(**changes)


def write_lines(path: Path, events: list[Event]) -> str:
    path.write_bytes(b"".join(map(event_line, events)))
    return str(path)


class Ran:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def events(tmp_path, monkeypatch, capfdbinary):
    """Runs a command in a new project in an empty folder."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def run(*arguments: str, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main(["events", *arguments, "--project", str(project)])
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return Ran(int(ended.value.code or 0), out.decode(), err.decode())

    return run


@pytest.fixture
def stored(events):
    """Returns the events in the store."""

    def stored() -> list[dict[str, Any]]:
        return events("list", "--limit", "1000000", "--format", "json").json

    return stored


# --------------------------------------------------------------------------------------------- import and export


def test_a_duplicate_key_is_refused_with_file_and_line_and_nothing_is_imported(events, stored) -> None:
    right = b'{"id":"1","source":"s","type":"t"}\n'
    Path("in.ndjson").write_bytes(right + b'{"id":"2","source":"s","type":"t","data":{"a":1,"a":2}}\n')
    refused = events("import", "in.ndjson")
    assert refused.code == 2
    assert "[OCQ-230] the key 'a' appears twice in data; " in refused.err
    assert "in.ndjson:2" in refused.err
    assert stored() == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_exported_events_are_imported_unchanged(tmp_path, events, suffix: str) -> None:
    given = [ODD, event(1), event(2, payload=None, subject="/"), event(3, payload='"text"'), event(4, payload="[]")]
    events("import", write_lines(tmp_path / "in.ndjson", given))
    told = events("export", f"out.{suffix}", "--format", "json").json
    seconds = told.pop("seconds")
    assert (told, seconds >= 0) == ({"file": f"out.{suffix}", "events": 5, "after": 0, "upto": 5}, True)
    again = events("import", f"out.{suffix}", "--set", "event-store.url=sqlite:///again.db")
    assert again.out == "imported 5 events\n"
    first, second = (FileEventSource(tmp_path / f"out.{suffix}"), tmp_path / "project" / "again.db")
    from opencqrs_py.adapters.sql import Database, SqlEventStore  # noqa: PLC0415 only here
    from opencqrs_py.model.selection import Selection  # noqa: PLC0415

    database = Database(f"sqlite:///{second}")
    imported = SqlEventStore(database).read(0, 100, Selection()).events
    database.close()
    assert [one._replace(position=0) for one in imported] == given
    assert [one._replace(position=0) for one in first.read(0, 100, Selection()).events] == given


def test_metadata_named_like_attributes_are_kept_in_parquet_and_reported_by_an_export_to_lines(events) -> None:
    """Headers of another system may have them; CloudEvents' JSON has one place for each name."""
    odd = event(1, extensions='{"type":"a header","user":"ada","x":{"id":1}}')
    with written_whole(Path("in.parquet")) as file, writer_to(file, FileFormat(FileKind.ROWS)) as writer:
        writer.write([odd, event(2, extensions='{"id":7}'), event(3, extensions='{"traceid":"id"}')])
    events("import", "in.parquet")
    in_rows, in_lines = events("export", "out.parquet"), events("export", "out.ndjson")
    assert (in_rows.out, in_rows.err) == ("exported 3 events\n", "")
    assert (in_lines.out, in_lines.err) == (
        "exported 3 events\n",
        "metadata named id, type were left out: NDJSON has the events' own attributes under these names; "
        "Parquet holds both\n",
    )
    (row, *_), (line, *_) = pq.read_table("out.parquet").to_pylist(), Path("out.ndjson").read_text().splitlines()
    assert json.loads(row["extensions"]) == {"type": "a header", "user": "ada", "x": {"id": 1}}
    assert (json.loads(line)["type"], json.loads(line)["user"]) == ("t", "ada")


def test_an_export_can_be_filtered_and_says_where_the_next_one_begins(tmp_path, events) -> None:
    events("import", write_lines(tmp_path / "in.ndjson", [event(n, type="ab"[n % 2]) for n in range(20)]))
    narrow = ["--after", "4", "--to", "15", "--subject", "/a/1", "--type", "a", "--type", "c", "--format", "json"]
    told = events("export", "out.ndjson", *narrow).json
    assert (told["events"], told["after"], told["upto"]) == (2, 4, 15)
    assert [json.loads(line)["id"] for line in Path("out.ndjson").read_text().splitlines()] == ["4", "10"]
    rest = events("export", "rest.ndjson", "--after", "15", "--to", "900", "--format", "json").json
    assert (rest["events"], rest["upto"]) == (5, 20)
    upto = events("export", "none.ndjson", "--after", "20", "--overwrite")
    assert (upto.out, upto.err) == ("exported 0 events\n", "")
    beyond = events("export", "none.ndjson", "--after", "50", "--overwrite", "--format", "json")
    none = beyond.json
    assert (none["events"], none["after"], none["upto"]) == (0, 50, 50)
    what = "--after 50 is beyond the newest event, which is at position 20; is this the right event store?"
    assert beyond.err == f"nothing found: {what}\n"
    assert Path("none.ndjson").read_bytes() == b""


def test_only_events_go_to_standard_output(tmp_path, events) -> None:
    lines = write_lines(tmp_path / "in.ndjson", [event(1), ODD])
    events("import", lines)
    done = events("export", "-")
    assert done.out == Path(lines).read_text()
    assert done.err == "exported 2 events\n"
    quiet = events("export", "-", "--format", "json")
    assert (quiet.out, quiet.err) == (done.out, "")


def test_the_format_can_be_given_if_the_file_name_does_not_show_it(tmp_path, events) -> None:
    events("import", write_lines(tmp_path / "in.ndjson", [event(1)]))
    assert events("export", "a.txt", "--format-of-file", "ndjson").code == 0
    assert Path("a.txt").read_bytes() == Path("in.ndjson").read_bytes()
    assert events("export", "b.txt.gz", "--format-of-file", "ndjson").code == 0
    assert Path("b.txt.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert events("export", "c.data", "--format-of-file", "parquet").code == 0
    assert pq.read_table("c.data")["id"].to_pylist() == ["1"]
    assert events("import", "a.txt", "b.txt.gz", "--set", "event-store.url=sqlite:///b.db").out.endswith(
        "imported 1 event, skipped 1 (already stored)\n"
    )


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("export", "a.csv"), "the name a.csv does not show the format"),
        (("export", "-", "--format-of-file", "parquet"), "Parquet cannot be written to standard output"),
        (("export", "there.ndjson"), "there.ndjson exists already; --overwrite replaces it"),
        (("export", "nowhere/a.ndjson"), "[OCQ-345] the file cannot be written (No such file or directory)"),
        (("import", "nowhere.ndjson"), "cannot read nowhere.ndjson: No such file or directory"),
        (("import", "there.ndjson", "nowhere"), "cannot read nowhere: No such file or directory"),
        (("import",), "Missing argument 'FILE…'"),
        (("import", ""), "the name of a FILE is empty: name a file, a folder (. is the current one) or -"),
        (("append",), "give events, or the options"),
        (("append", "{}", "--type", "t"), "give events, or the options"),
        (("append", "--subject", "/a"), "an event needs a --type"),
        (("append", "--type", "t", "--data", "{"), "--data is not JSON: "),
        (("append", "--type", "t", "--if-on", "/a"), "--if-on is SUBJECT=ID, such as /books/1=4711, got '/a'"),
        (("append", "--type", "t", "--time", "now"), "[OCQ-212] attribute 'time' is not an RFC 3339 time"),
        (("append", "--type", ""), "[OCQ-212] attribute 'type' is ''"),
        (
            ("append", "[]"),
            "[OCQ-230] a CloudEvent is a JSON object, got list; a list has to be written as one object per line\n"
            "  where: EVENT 1",
        ),
        (("append", '{"id":"1","id":"2","source":"s","type":"t"}'), "the key 'id' appears twice; "),
        (("append", "--type", "t", "--data", '{"a":1,"a":2}'), "the key 'a' appears twice in data; "),
        (("append", '{"id":null,"source":"s","type":"t"}'), "attribute 'id' is null; it must be a text"),
        (("append", "--type", "\udcff"), "it is not UTF-8"),
        (("append", "--type", "a\0"), "it must not contain the character U+0000"),
        (("list", "--subject", "/\ud800"), "it is not UTF-8"),
        (("export", "a.ndjson", "--type", "\udcff"), "it is not UTF-8"),
        (("tail", "--lines", "-1"), "Invalid value for '--lines'"),
    ],
)
def test_wrong_use_is_refused_with_what_to_do(events, stored, arguments, what: str) -> None:
    Path("there.ndjson").write_text("")
    assert stored() == []
    refused = events(*arguments)
    assert refused.code == 2
    assert what in refused.err
    assert refused.out == ""
    assert stored() == []


def test_overwriting_needs_an_option(tmp_path, events) -> None:
    events("import", write_lines(tmp_path / "in.ndjson", [event(1)]))
    Path("a.ndjson").write_text("before")
    assert events("export", "a.ndjson", "--overwrite").out == "exported 1 event\n"
    assert Path("a.ndjson").read_bytes() == Path("in.ndjson").read_bytes()


@pytest.mark.parametrize("written", ["nowhere/deeper/a.ndjson", "link.ndjson"])
def test_an_export_into_a_missing_folder_names_it(tmp_path, events, written) -> None:
    events("import", write_lines(tmp_path / "in.ndjson", [event(1)]))
    (tmp_path / "link.ndjson").symlink_to("nowhere/deeper/a.ndjson")
    folder = tmp_path / "nowhere" / "deeper"
    refused = events("export", written)
    assert f"fix:   the folder {folder} does not exist; create it, or write to another one" in refused.err
    folder.mkdir(parents=True)
    assert events("export", written).code == 0


@pytest.mark.parametrize(("file", "why"), [("-", "No space left on device"), ("a.ndjson", "No such file or directory")])
def test_an_export_that_fails_in_a_deleted_folder_is_reported(tmp_path, events, monkeypatch, file, why) -> None:
    events("import", write_lines(tmp_path / "in.ndjson", [event(1)]))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exports, "writer_to", full)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    refused = events("export", file)
    assert refused.code == 2
    assert f"[OCQ-345] the file cannot be written ({why})\n  where: {file}\n  fix:   check the folder" in refused.err


@pytest.mark.parametrize("there", [True, False])
def test_an_export_through_a_link_writes_to_its_target(tmp_path, events, there) -> None:
    events("import", write_lines(tmp_path / "in.ndjson", [event(1)]))
    target, link = tmp_path / "backup.ndjson", tmp_path / "latest.ndjson"
    if there:
        target.write_text("before")
    link.symlink_to(target)
    assert events("export", str(link), *(["--overwrite"] if there else [])).out == "exported 1 event\n"
    assert link.is_symlink()
    assert target.read_bytes() == (tmp_path / "in.ndjson").read_bytes()


def test_an_interrupted_export_leaves_no_file(tmp_path, events, monkeypatch) -> None:
    events("import", write_lines(tmp_path / "in.ndjson", [event(1)]))
    (tmp_path / "full").mkdir()

    def full(_file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    refused = events("export", "full/a.ndjson")
    assert "[OCQ-345] the file cannot be written (No space left on device)" in refused.err
    assert list((tmp_path / "full").iterdir()) == []


def test_an_empty_list_says_so_in_text_output(events, stored) -> None:
    assert stored() == []
    assert (events("list").err, events("list", "--after", "5").err) == ("no events\n", "no events after position 5\n")
    assert events("list", "--format", "json").err == ""


@pytest.mark.parametrize("command", [("list",), ("stats",), ("list", "--format", "json")])
def test_a_missing_database_is_not_silently_treated_as_empty(tmp_path, events, command) -> None:
    file = tmp_path / "project" / "opencqrs.db"
    said = (
        f"the event store does not exist: {file} (event-store.url, built-in default); it is created now, and is empty\n"
    )
    assert said in events(*command).err
    assert said not in events(*command).err


@pytest.mark.parametrize("command", [("import", "in.ndjson"), ("append", "--type", "t")])
def test_adding_to_a_missing_database_reports_where_it_is_created(tmp_path, events, command) -> None:
    write_lines(Path("in.ndjson"), [event(1)])
    file = tmp_path / "project" / "opencqrs.db"
    said = f"created a new SQLite database: {file} (event-store.url, built-in default)\n"
    assert events(*command).err == said
    assert events(*command).err == ""


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("postgresql", marks=pytest.mark.postgresql),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ],
)
@pytest.mark.parametrize("command", [("import", "in.ndjson"), ("append", "--type", "t")])
def test_adding_to_a_server_without_our_tables_reports_where_they_are_created(
    tmp_path, events, fresh_url, kind, command
) -> None:
    write_lines(Path("in.ndjson"), [event(1)])
    url = fresh_url(kind)
    (tmp_path / "project" / "application.yaml").write_text(f"opencqrs.event-store.url: {url}")
    place = make_url(url).render_as_string() + (", schema public" if kind == "postgresql" else "")
    assert events(*command).err == f"created new tables in {place} (event-store.url, application.yaml:1:27)\n"
    assert events(*command).err == ""


@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)])
def test_an_export_does_not_replace_a_pipe_or_a_folder(tmp_path, events, stored, overwrite) -> None:
    os.mkfifo(tmp_path / "pipe.ndjson")
    (tmp_path / "folder.ndjson").mkdir()
    assert stored() == []
    for name in ("pipe.ndjson", "folder.ndjson"):
        refused = events("export", name, *overwrite)
        assert refused.code == 2
        assert f"{name} is not a regular file; - writes to standard output, which can be redirected" in refused.err
    assert (tmp_path / "pipe.ndjson").is_fifo()


@pytest.mark.parametrize("shared", [False, True])
def test_an_export_of_a_missing_database_replaces_nothing(tmp_path, events, monkeypatch, shared) -> None:
    if shared:  # with the read model, by two settings
        monkeypatch.setenv("OPENCQRS__EVENT_STORE__URL", "sqlite:///opencqrs.db")
        monkeypatch.setenv("OPENCQRS__DATABASE__URL", "sqlite:///opencqrs.db")
    copy, file = tmp_path / "copy.ndjson", tmp_path / "project" / "opencqrs.db"
    copy.write_text("of yesterday")
    refused = events("export", str(copy), "--overwrite")
    assert (refused.code, refused.out) == (2, "")
    assert f"the event store does not exist: {file} (event-store.url, " in refused.err
    assert copy.read_text() == "of yesterday"
    assert not file.exists()


class Slowly(io.RawIOBase):
    """A pipe whose writer sends a line at a time, and adds an event to the store before each."""

    def __init__(self, lines: list[bytes], add: Callable[[], None]) -> None:
        self._lines = lines
        self._add = add

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        self._add()
        sent = self._lines.pop(0) if self._lines else b""
        buffer[: len(sent)] = sent
        return len(sent)


def test_an_import_with_slow_input_blocks_no_other_writer(tmp_path, events, stored, monkeypatch) -> None:
    events("append", "--type", "first", "--id", "first")
    other, added = sqlite3.connect(tmp_path / "project" / "opencqrs.db", timeout=0, isolation_level=None), []

    def add() -> None:
        insert = "INSERT INTO opencqrs_events (id, source, subject, type, content_type) VALUES (?, 's', '/', 't', 'j')"
        other.execute(insert, (f"other{len(added)}",))
        added.append(f"other{len(added)}")

    slow = io.BufferedReader(Slowly([event_line(event(n)) for n in range(2)], add))
    monkeypatch.setattr(imports, "standard_input", lambda: slow)
    with closing(other):
        assert events("import", "-").out.startswith("imported 2 events")
    assert added
    assert [one["id"] for one in stored()] == ["first", *added, "0", "1"]


def test_an_import_from_a_file_on_standard_input_copies_nothing(tmp_path, events, stored, monkeypatch) -> None:
    monkeypatch.setattr(imports, "TemporaryFile", None)
    path = Path(write_lines(tmp_path / "in.ndjson", [event(1)]))
    with path.open("rb") as file:
        monkeypatch.setattr(imports, "standard_input", lambda: file)
        assert events("import", "-").out.startswith("imported 1 event")
    assert [one["id"] for one in stored()] == ["1"]


def test_an_import_says_where_the_disk_is_too_full_for_piped_input(tmp_path, events, stored, monkeypatch) -> None:
    class Full(io.BytesIO):
        def write(self, _content: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(imports, "TemporaryFile", Full)
    refused = events("import", "-", stdin=event_line(event(1)))
    assert (refused.code, refused.out) == (2, "")
    assert "[OCQ-345] standard input cannot be kept in a temporary file (No space left on device)" in refused.err
    assert "where: the folder of temporary files (TMPDIR)" in refused.err
    assert "nothing of it was imported" in refused.err
    assert stored() == []


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="a file that opens and cannot be read, of Linux")
@pytest.mark.parametrize("command", [("import", "/proc/self/mem"), ("import", "-"), ("append", "-")])
def test_an_unreadable_input_is_named(events, stored, monkeypatch, command) -> None:
    with Path("/proc/self/mem").open("rb") as unreadable:
        for module in (appends, imports):
            monkeypatch.setattr(module, "standard_input", lambda: unreadable)
        refused = events(*command)
    named = "standard input" if command[1] == "-" else command[1]
    assert (refused.code, refused.out) == (2, "")
    assert f"[OCQ-340] the file cannot be read (Input/output error)\n  where: {named}\n" in refused.err
    assert stored() == []


@pytest.mark.parametrize("command", [("list",), ("export", "-"), ("stats",), ("export", "-", "--to", "1")])
def test_a_last_line_without_a_line_end_is_named_however_recent_it_is(tmp_path, events, command) -> None:
    path = tmp_path / "log.ndjson"
    path.write_bytes(b"".join(event_line(event(n)) for n in range(3)).rstrip())
    told = events(*command, "--set", f"event-store.url=file:{path}")
    assert told.code == 0
    assert (f"{path}:3 is not read: the line has no end yet" in told.err) == ("--to" not in command)


@pytest.mark.parametrize("command", [("list",), ("export", "-"), ("stats",)])
def test_a_mapped_table_whose_file_is_missing_is_refused(tmp_path, events, command) -> None:
    settings = {"url": "sqlite:///shop.db"} | {f"mapping.{n}": n for n in ("table", "position", "id", "type", "data")}
    options = [part for name, value in settings.items() for part in ("--set", f"event-store.{name}={value}")]
    refused = events(*command, *options)
    assert (refused.code, refused.out) == (2, "")
    file = tmp_path / "project" / "shop.db"
    assert refused.err.startswith(f"[OCQ-304] the database cannot be reached (there is no file {file})")
    assert not file.exists()


def test_a_long_export_reads_in_slices(tmp_path, events, monkeypatch) -> None:
    from opencqrs_py.cli.events import selection  # noqa: PLC0415

    monkeypatch.setattr(selection, "_EVENTS_PER_SLICE", 7)
    events("import", write_lines(tmp_path / "in.ndjson", [event(n) for n in range(50)]))
    events("export", "out.ndjson")
    assert Path("out.ndjson").read_bytes() == Path("in.ndjson").read_bytes()


# --------------------------------------------------------------------------------------------------------- import


def test_files_of_a_folder_that_are_not_imported_are_named(tmp_path, events) -> None:
    (tmp_path / "folder").mkdir()
    write_lines(tmp_path / "folder" / "events.json", [event(1)])
    ran = events("import", "folder")
    assert (ran.code, ran.out) == (0, "imported 0 events\n")
    assert "in folder, events.json is not an event file and is ignored; names of event files end with" in ran.err


@pytest.mark.parametrize(
    ("named", "is_said"),
    [
        (("folder",), True),
        (("folder/10.ndjson", "folder/9.ndjson"), True),  # as a shell expands folder/*.ndjson
        (("folder/9.ndjson", "folder/10.ndjson"), False),
    ],
)
def test_files_that_do_not_sort_by_their_numbers_are_named(tmp_path, events, named, is_said) -> None:
    (tmp_path / "folder").mkdir()
    for number in (9, 10):
        write_lines(tmp_path / "folder" / f"{number}.ndjson", [event(number)])
    ran = events("import", *named)
    assert ran.code == 0
    said = "in folder, 10.ndjson comes before 9.ndjson: names are compared character by character"
    assert (said in ran.err) == is_said


def test_a_folder_without_event_files_is_named(tmp_path, events) -> None:
    (tmp_path / "folder").mkdir()
    ran = events("import", "folder")
    assert (ran.code, ran.out) == (0, "imported 0 events\n")
    assert ran.err == "folder holds no file of events\n"


def test_several_files_and_folders_are_imported_in_order(tmp_path, events, stored) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, number in (("b.ndjson", 3), ("a.jsonl", 2), ("c.txt", 9), ("_d.ndjson", 9)):
        write_lines(folder / name, [event(number)])
    names = [write_lines(tmp_path / "z.ndjson", [event(1)]), "folder", "-", write_lines(tmp_path / "y.any", [event(1)])]
    done = events("import", *names, stdin=event_line(event(4)))
    assert [one["id"] for one in stored()] == ["1", "2", "3", "4"]
    assert done.out.splitlines() == [
        f"{names[0]}: imported 1 event",
        "folder/a.jsonl: imported 1 event",
        "folder/b.ndjson: imported 1 event",
        "-: imported 1 event",
        f"{names[3]}: imported 0 events, skipped 1 (already stored)",
        "imported 4 events, skipped 1 (already stored)",
    ]


def test_the_json_of_an_import_lists_each_file(tmp_path, events) -> None:
    one, two = write_lines(tmp_path / "1.ndjson", [event(1)]), write_lines(tmp_path / "2.ndjson", [event(1), event(2)])
    alone = events("import", one, "--format", "json").json
    assert [alone.pop("seconds") >= 0, alone["files"][0].pop("seconds") >= 0] == [True, True]
    assert alone == {"file": one, "events": 1, "added": 1, "files": [{"file": one, "events": 1, "added": 1}]}
    both = events("import", one, two, "--format", "json").json
    assert (both["file"], both["events"], both["added"]) == (None, 3, 1)
    assert [(each["file"], each["events"], each["added"]) for each in both["files"]] == [(one, 1, 0), (two, 2, 1)]
    (tmp_path / "empty").mkdir()
    assert events("import", "empty", "--format", "json").json["files"] == []


def test_a_named_pipe_is_read_to_its_end(tmp_path, events) -> None:
    os.mkfifo(tmp_path / "pipe")
    lines = Path(write_lines(tmp_path / "in.ndjson", [event(1), event(2)]))
    with subprocess.Popen(["sh", "-c", 'cat "$0" > "$1"', lines, tmp_path / "pipe"]) as writer:
        assert events("import", str(tmp_path / "pipe")).out == "imported 2 events\n"
    assert writer.returncode == 0


def test_the_json_names_files_whose_names_are_not_utf_8(tmp_path, events) -> None:
    name, copy = (os.fsdecode(os.fsencode(tmp_path) + b"/" + name) for name in (b"in\xff.ndjson", b"copy\xff.ndjson"))
    write_lines(Path(name), [event(1)])
    assert events("import", name, "--format", "json").json["files"][0]["file"] == name
    assert events("export", copy, "--format", "json").json["file"] == copy
    assert Path(copy).read_bytes() == Path(name).read_bytes()


@pytest.mark.parametrize(
    ("name", "place", "what"),
    [("bad.ndjson", "bad.ndjson:2", "fix the line and"), ("bad.parquet", "bad.parquet, row 2", "fix the file and")],
)
def test_of_several_files_those_before_a_bad_one_are_imported_completely(
    tmp_path, events, stored, name, place, what
) -> None:
    good = write_lines(tmp_path / "good.ndjson", [event(1), event(2)])
    events("import", write_lines(tmp_path / "all.ndjson", [event(3), event(4, time="2026-01-01T00:00:00Z")]))
    bad = tmp_path / name
    if name.endswith("ndjson"):
        bad.write_bytes(event_line(event(5)) + b"{}\n" + event_line(event(6)))
    else:
        events("export", str(bad))
        table = pq.read_table(bad)
        import pyarrow as pa  # noqa: PLC0415

        pq.write_table(table.set_column(5, "time", pa.array([None, "yesterday"])), bad)
    refused = events("import", good, str(bad), good)
    assert refused.code == 2
    assert place in refused.err
    assert what in refused.err
    assert "nothing of this file was imported" in refused.err
    assert [one["id"] for one in stored()] == ["3", "4", "1", "2"]


STALLED = """
import sys
from opencqrs_py.cli.events import imports
from opencqrs_py.cli.main import main

events_of_file = imports.events_of_file

def stalled(path):
    for number, event in enumerate(events_of_file(path)):
        if number == 9_000:
            sys.stdin.read()
        yield event

imports.events_of_file = stalled
main(sys.argv[1:])
"""


@pytest.mark.release  # one transaction
def test_a_killed_import_leaves_nothing_and_can_be_repeated(tmp_path, events, stored) -> None:
    """The import is killed while it is in the middle of its transaction: SQLite refuses to let another one begin."""
    first = write_lines(tmp_path / "first.ndjson", [event(n) for n in range(100)])
    second = write_lines(tmp_path / "second.ndjson", [event(n) for n in range(50, 12_000)])
    command = [sys.executable, "-c", STALLED, "events", "import", first, second, "--project", str(tmp_path / "project")]
    killed = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    store = tmp_path / "project" / "opencqrs.db"
    deadline = time.monotonic() + 300
    while not is_being_written(store):
        assert time.monotonic() < deadline, "the import did not begin"
    killed.kill()
    killed.communicate()
    assert [one["id"] for one in stored()] == [str(n) for n in range(100)]
    again = events("import", first, second, "--format", "json").json
    assert (again["events"], again["added"]) == (12_050, 11_900)
    assert [one["id"] for one in stored()] == [str(n) for n in range(12_000)]


def is_being_written(store: Path) -> bool:
    """Return whether the first file is imported, and the second is being written."""
    if not store.exists():
        return False
    connection, count = sqlite3.connect(store, timeout=0, isolation_level=None), 0
    try:
        (count,) = connection.execute("SELECT count(*) FROM opencqrs_events").fetchone()
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        return "locked" in str(error) and count == 100
    else:
        return False
    finally:
        connection.close()


# --------------------------------------------------------------------------------------------------------- append


def test_one_event_is_built_from_options(events, stored) -> None:
    assert (
        events("append", "--type", "t", "--subject", "/ü'%", "--data", '{"a": [1.50, "ü"]}').out == "appended 1 event\n"
    )
    told = events(
        "append", "--type", "t", "--id", "7", "--source", "s", "--time", "2026-01-01T00:00:00Z", "--format", "json"
    )
    assert told.json == {"events": 1, "added": 1, "ids": ["7"]}
    one, other = stored()
    assert (one["subject"], one["data"], one["source"]) == ("/ü'%", {"a": [1.5, "ü"]}, "urn:opencqrs:command-line")
    assert len(one["id"]) == 36
    assert one["time"].endswith("+00:00")
    assert (other["subject"], other["time"], "data" in other) == ("/", "2026-01-01T00:00:00Z", False)
    known = events("append", "--type", "t", "--id", "7", "--source", "s")
    assert known.out == "appended 0 events, skipped 1 (already stored)\n"


def test_after_a_lost_response_an_event_with_a_given_id_is_not_added_twice(events, stored, monkeypatch) -> None:
    append = SqlEventStore.append

    def unanswered(*arguments) -> None:
        append(*arguments)
        raise DatabaseAwayError("OCQ-304", "the database no longer answers", "db", "try again")

    with monkeypatch.context() as losing:
        losing.setattr(SqlEventStore, "append", unanswered)
        lost = events("append", "--type", "t")
        own = events("append", "--type", "t", "--id", "7")
    assert (lost.code, own.code) == (2, 2)
    named = re.search(r"\[OCQ-304\](?s:.*)fix: +try again; repeat it with --id (\S+), ", lost.err)
    assert named
    assert "--id" not in own.err
    assert events("append", "--type", "t", "--id", named[1]).out == "appended 0 events, skipped 1 (already stored)\n"
    assert [one["id"] for one in stored()] == [named[1], "7"]


def test_events_come_from_arguments_and_standard_input_all_or_none(events, stored) -> None:
    lines = [event_line(event(n)).decode() for n in range(4)]
    assert events("append", lines[0], "-", lines[3], stdin="".join(lines[1:3]).encode()).out == "appended 4 events\n"
    refused = events("append", event_line(event(9)).decode(), "-", stdin=b'\n{"id":""}\n')
    assert (refused.code, "standard input:2" in refused.err) == (2, True)
    assert "nothing was appended" in refused.err
    assert [one["id"] for one in stored()] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (("--if-pristine", "/b"), True),
        (("--if-pristine", "/a/0"), False),
        (("--if-populated", "/a/0"), True),
        (("--if-populated", "/b"), False),
        (("--if-on", "/a/0=3"), True),
        (("--if-on", "/a/0=0"), False),
        (("--if-on", "/a=b=0"), False),
        (("--if-populated", "/a/0", "--if-pristine", "/b", "--if-pristine", "/a/1"), False),
    ],
)
def test_nothing_is_appended_unless_all_conditions_hold(tmp_path, events, stored, condition, *, holds: bool) -> None:
    events("import", write_lines(tmp_path / "in.ndjson", [event(n) for n in range(4)]))
    done = events("append", "--type", "t", *condition)
    assert (done.code, "[OCQ-320]" in done.err) == ((0, False) if holds else (2, True))
    assert len(stored()) == 4 + holds


@pytest.mark.parametrize(
    ("condition", "meant"),
    [
        (("--if-pristine", "a/0"), "/a/0"),
        (("--if-pristine", "/a/0/"), "/a/0"),
        (("--if-pristine", ""), "/"),
        (("--if-populated", "/b", "--if-populated", "a/0"), "/a/0"),
        (("--if-on", "a/0=3"), "/a/0"),
    ],
)
def test_a_condition_on_a_subject_in_another_spelling_is_refused(events, stored, condition, meant) -> None:
    refused = events("append", "--type", "t", "--subject", "/a/0", *condition)
    named = condition[-1].partition("=")[0]
    assert (refused.code, stored()) == (2, [])
    assert f"a condition names the subject '{named}', and no event to append has it" in refused.err
    assert f"did you mean {meant}? Nothing was appended" in refused.err


def test_subjects_in_an_unusual_spelling_can_be_appended_with_a_comment(events, stored) -> None:
    done = events("append", "--type", "t", "--subject", "a/0", "--if-pristine", "a/0")
    assert done.code == 0
    assert done.err.startswith("most subjects are written differently: did you mean --subject /a/0?\n")
    again = events("append", event_line(event(1, subject="a/0")).decode(), "--if-pristine", "a/0")
    assert "[OCQ-320] the subject 'a/0' is not pristine" in again.err
    assert [one["subject"] for one in stored()] == ["a/0"]


# ------------------------------------------------------------------------------------------------- stats and tail


def test_stats_cover_the_whole_log_or_a_part(tmp_path, events) -> None:
    events("import", write_lines(tmp_path / "in.ndjson", [event(n, type="ab"[n % 2]) for n in range(30)]))
    told = events("stats", "--type", "a", "--top", "1", "--format", "json").json
    assert told.pop("seconds") >= 0
    assert told == {
        "events": 15,
        "first": {"position": 1, "time": None},
        "last": {"position": 29, "time": None},
        "data_characters": sum(len(f'{{"n":{n}}}') for n in range(0, 30, 2)),
        "types": {"different": 1, "not_told_apart": 0, "top": [{"type": "a", "events": 15}]},
        "subjects": {"different": 1, "not_told_apart": 0, "top": [{"subject": "/a", "events": 15}]},
    }
    shown = events("stats").out.splitlines()
    assert shown[0] == "30 events"
    assert shown[-6:] == ["types", "  15  a", "  15  b", "", "subjects, first level", "  30  /a"]
    assert "types (the 1 most frequent of 2)" in events("stats", "--top", "1").out
    events("append", "--type", "z\nz", "--subject", "/z\nz")
    assert [line for line in events("stats").out.splitlines() if "z" in line] == ["   1  z\\nz", "   1  /z\\nz"]


def test_stats_of_an_empty_log_are_short(events) -> None:
    assert events("stats").out == "0 events\n"


@pytest.mark.parametrize("stop", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.release)])
def test_tail_shows_the_last_events_and_new_ones_until_it_is_interrupted(tmp_path, events, stop) -> None:
    events("import", write_lines(tmp_path / "in.ndjson", [event(n) for n in range(5)]))
    command = [sys.executable, "-m", "opencqrs_py", "events", "tail", "--lines", "2", "--format", "json"]
    with subprocess.Popen(
        [*command, "--project", str(tmp_path / "project")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as tail:
        assert tail.stdout is not None
        seen = [json.loads(tail.stdout.readline()) for _ in range(2)]
        for number in (5, 6):
            events("append", event_line(event(number)).decode())
            seen.append(json.loads(tail.stdout.readline()))
        tail.send_signal(stop)
        _, told = tail.communicate(timeout=300)
    assert [(one["position"], one["id"]) for one in seen] == [(4, "3"), (5, "4"), (6, "5"), (7, "6")]
    assert (tail.returncode, told.strip()) == (130, "interrupted")


@pytest.mark.release  # as the contract of SQLite files
def test_tail_ends_when_its_sqlite_file_is_replaced(tmp_path, events) -> None:
    events("append", "--type", "old")
    command = [sys.executable, "-m", "opencqrs_py", "events", "tail"]
    with subprocess.Popen(
        [*command, "--project", str(tmp_path / "project")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as tail:
        assert tail.stdout is not None
        assert "  old  " in tail.stdout.readline()
        file = tmp_path / "project" / "opencqrs.db"
        shutil.copy(file, other := tmp_path / "other.db")
        other.replace(file)  # at once: one file deleted after the other would be noticed in between
        out, told = tail.communicate(timeout=300)
    assert f"[OCQ-326] another file is in the place of the SQLite database that is in use\n  where: {file}\n" in told
    assert (tail.returncode, out) == (2, "")


def test_tail_shows_one_line_per_event(tmp_path, events, monkeypatch) -> None:
    def interrupted(_self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(listings.Follower, "run", interrupted)
    odd = [event(1, subject="/a\u001b[31m[bold]\nb", payload=f'"{"x" * 100}"'), event(2, payload=None)]
    events("import", write_lines(tmp_path / "in.ndjson", odd))
    shown = events("tail")
    assert shown.code == 130
    assert shown.out.splitlines() == [
        "        1  -  t  /a\\x1b[31m[bold]\\nb  " + '"' + "x" * 58 + "…",
        "        2  -  t  /a/2  -",
    ]


@pytest.mark.few
@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("export", "out.ndjson", "--subject", "/a/1"), "12,000 of 12,000 events read ("),
        (("export", "-", "--subject", "/a/1"), "12,000 of 12,000 events read ("),
        (("stats",), "12,000 of 12,000 events read ("),
        (("import", "in.ndjson"), "12,000 events read ("),
    ],
)
def test_progress_of_long_work_goes_to_standard_error(tmp_path, events, monkeypatch, command, told, form) -> None:
    events("import", write_lines(tmp_path / "in.ndjson", [event(n) for n in range(12_000)]))
    monkeypatch.setattr(display, "_REPORT_EVERY", 0.0)
    ran = events(*command, "--format", form)
    assert ran.code == 0
    assert any(line.startswith(told) and line.endswith("…") for line in ran.err.splitlines())
    assert "…" not in ran.out
    if form == "json" and "-" not in command:
        assert "seconds" in ran.json


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("command", [("list",), ("stats",), ("tail",), ("export", "out.ndjson")])
def test_an_empty_result_comes_with_suggestions(tmp_path, events, monkeypatch, command, form) -> None:
    monkeypatch.setattr(listings.Follower, "run", lambda _self: None)
    odd = [event(1, subject="books", type="t*"), event(2)]
    events("import", write_lines(tmp_path / "in.ndjson", odd))
    nothing = events(*command, "--type", "*t", "--subject", "a/1\u001b", "--format", form)
    assert nothing.code == 0
    assert nothing.err.splitlines() == [
        "nothing found: most subjects begin with a slash: did you mean --subject /a/1\\x1b?",
        "nothing found: types are compared exactly: '*t' is not a pattern here",
    ]
    if command[0] != "tail" and form == "json":
        assert nothing.json is not None
    Path("out.ndjson").unlink(missing_ok=True)
    assert events(*command, "--type", "t*", "--subject", "books", "--format", form).err == ""


def test_positions_can_be_pasted_into_after(tmp_path, events, monkeypatch) -> None:
    monkeypatch.setattr(listings.Follower, "run", lambda _self: None)
    events("import", write_lines(tmp_path / "in.ndjson", [event(n) for n in range(1_200)]))
    assert events("list", "--after", "1199").out.splitlines()[1].split()[0] == "1200"
    assert events("tail", "--lines", "1").out.split()[0] == "1200"
    assert events("stats").out.splitlines()[:3] == [
        "1,200 events",
        "  first  position 1, no time",
        "  last   position 1200, no time",
    ]


def test_a_position_is_the_events_own_whatever_its_extensions_say(tmp_path, events, stored, monkeypatch) -> None:
    monkeypatch.setattr(listings.Follower, "run", lambda _self: None)
    events("import", write_lines(tmp_path / "in.ndjson", [event(1, extensions='{"position":77,"user":"ada"}')]))
    (listed,) = stored()
    assert (listed["position"], listed["user"], next(iter(listed))) == (1, "ada", "position")
    assert json.loads(events("tail", "--format", "json").out) == listed


# ------------------------------------------------------------------------------------------------- read-only stores


@pytest.fixture
def files(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "log"
    folder.mkdir()
    monkeypatch.setattr(Application, "checked_event_store", property(lambda _: FileEventSource(folder)))
    monkeypatch.setattr(Application, "missing_files", lambda _: {})
    write_lines(folder / "1.ndjson", [event(n) for n in range(3)])
    return folder


@pytest.mark.parametrize("command", [("import", "x.ndjson"), ("append", "--type", "t")])
def test_a_log_of_files_refuses_appends(tmp_path, events, files, command) -> None:
    write_lines(tmp_path / "x.ndjson", [event(9)])
    refused = events(*command)
    assert refused.code == 2
    assert "[OCQ-343] events cannot be added to this event store\n  where: event-store.url" in refused.err
    assert (
        "set event-store.url to a SQL database, without event-store.mapping; to add to a folder of files" in refused.err
    )
    assert [path.name for path in files.iterdir()] == ["1.ndjson"]


def test_files_can_be_listed_counted_and_exported(events, files) -> None:
    assert [one["id"] for one in events("list", "--after", "1", "--format", "json").json] == ["1", "2"]
    assert events("stats", "--format", "json").json["events"] == 3
    assert events("export", "out.parquet").out == "exported 3 events\n"
    assert pq.read_table("out.parquet")["position"].to_pylist() == [1, 2, 3]


@pytest.mark.parametrize("name", ["2.ndjson", "1.ndjson", "2.parquet", "../link/2.ndjson.gz"])
def test_an_export_does_not_become_part_of_its_own_log(tmp_path, events, files, name: str) -> None:
    (tmp_path / "link").symlink_to(files)
    refused = events("export", str(files / name), "--overwrite")
    assert refused.code == 2
    assert f"the event store is {files}, and {files / name} would belong to it: its events would exist" in refused.err
    assert [path.name for path in files.iterdir()] == ["1.ndjson"]
    for ignored in ("_2.ndjson", ".2.ndjson"):
        assert events("export", str(files / ignored)).out == "exported 3 events\n"
    assert events("stats", "--format", "json").json["events"] == 3


def test_an_export_through_a_link_does_not_become_part_of_its_own_log(tmp_path, events, files) -> None:
    link = tmp_path / "latest.ndjson"
    link.symlink_to(files / "1.ndjson")
    (files / "linked.ndjson").symlink_to(tmp_path / "elsewhere.txt")
    for name in (link, files / "linked.ndjson"):
        refused = events("export", str(name), "--overwrite")
        assert f"the event store is {files}, and {name} would belong to it: its events would exist" in refused.err
    assert (files / "1.ndjson").read_bytes().count(b"\n") == 3
    assert not (tmp_path / "elsewhere.txt").exists()


def test_an_export_does_not_replace_the_file_it_reads(events, files, monkeypatch) -> None:
    log = files / "1.ndjson"
    monkeypatch.setattr(Application, "checked_event_store", property(lambda _: FileEventSource(log)))
    refused = events("export", str(log), "--overwrite", "--type", "u")
    assert refused.code == 2
    assert f"{log} would replace it; write to another folder" in refused.err
    assert log.read_bytes().count(b"\n") == 3
    assert events("export", str(files / "part.ndjson")).out == "exported 3 events\n"


def test_a_bad_line_in_the_log_ends_an_export_and_leaves_no_file(events, files) -> None:
    (files / "2.ndjson").write_text("[]\n")
    refused = events("export", "out.ndjson")
    assert f"where: {files}/2.ndjson:1" in refused.err
    assert not Path("out.ndjson").exists()
