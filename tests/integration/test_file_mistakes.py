"""Files as event store, and mistakes in them: a message with file and line, and never a silent loss."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.sqlite import rows_of

from opencqrs_py import Application
from opencqrs_py.errors import EventFormatError, EventStoreError
from opencqrs_py.model.progress import ProcessorState

HANDLERS = """
from opencqrs_py import Event, event_handling, on_start
from sqlalchemy import Connection, text

@on_start("seen")
def table(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS seen (id TEXT)"))

@event_handling("seen", types=["*"])
def see(event: Event, connection: Connection) -> None:
    connection.execute(text("INSERT INTO seen VALUES (:id)"), {"id": event.id})
"""
LINE = '{{"id":"{}","source":"s","type":"t","subject":"/x","data":{{}}}}\n'


@pytest.fixture
def handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module with a unique name, as Spark workers keep those of other tests."""
    name = "file_handlers_" + re.sub(r"\W", "_", tmp_path.name)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / f"{name}.py").write_text(HANDLERS)
    monkeypatch.syspath_prepend(tmp_path / "code")
    yield __import__(name)
    del sys.modules[name]


@pytest.fixture
def events(tmp_path: Path) -> Path:
    folder = tmp_path / "events"
    folder.mkdir()
    return folder


@pytest.fixture
def application(tmp_path: Path, handlers: ModuleType) -> Iterator[Callable[..., Application]]:
    """Makes applications, and stops them at the end."""
    opened = ExitStack()

    def made(url: str = "file:events/", engine: str = "thread") -> Application:
        settings = {
            "spark.master": "local[1]",
            "spark.driver-handles": "never",
            "event-handling.standard.processing.engine": engine,
            "event-store.url": url,
            "database.url": "sqlite:///read.db",
        }
        application = Application(settings, [handlers], tmp_path)
        opened.callback(application.stop)
        return application

    with opened:
        yield made


def put(path: Path, *numbers: int) -> None:
    path.write_text("".join(LINE.format(number) for number in numbers))


def seen(tmp_path: Path) -> list[str]:
    return [seen for (seen,) in rows_of(tmp_path / "read.db", "SELECT id FROM seen ORDER BY rowid")]


def bad_row(path: Path) -> None:
    columns = {"id": ["1", ""], "source": ["s", "s"], "type": ["t", "t"]}
    pq.write_table(pa.table(columns), path.with_suffix(".parquet"))


BAD = {
    "line": (lambda path: path.write_text(LINE.format(1) + "nope\n"), "a.ndjson:2", "not JSON ("),
    "utf-16": (lambda path: path.write_text(LINE.format(1), "utf-16"), "a.ndjson:1", "the file is UTF-16, not UTF-8"),
    "latin-1": (lambda path: path.write_text(LINE.format(1) + '"ä"\n', "latin-1"), "a.ndjson:2", "not UTF-8 (0xe4"),
    "nul": (lambda path: path.write_text(LINE.format(1) + '"\0"\n'), "a.ndjson:2", "not JSON ("),
    "row": (bad_row, "a.parquet, row 2", "the column 'id' is empty"),
}


ENGINES = ["thread", pytest.param("spark", marks=pytest.mark.spark)]


@pytest.mark.release(engine="spark")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", BAD)
def test_run_and_status_name_file_and_line_of_a_bad_event(events, application, kind: str, engine: str) -> None:
    write, place, what = BAD[kind]
    write(events / "a.ndjson")
    (partition,) = application(engine=engine).run(until_caught_up=True).partitions
    (shown,) = (p for group in application(engine=engine).status() for p in group.partitions)
    for status in (partition, shown):
        assert status.state is ProcessorState.FAILED
        assert what in status.error
        assert status.error.split(" (attempt")[0].endswith(f", in {events / place}")


def test_a_truncated_compressed_file_is_handled_up_to_its_end_and_named_with_the_line(
    tmp_path, events, application, caplog
) -> None:
    whole = gzip.compress("".join(map(LINE.format, range(20_000))).encode())
    (events / "a.ndjson.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(EventFormatError, match="OCQ-213"):
        application().run(until_caught_up=True)
    handled = seen(tmp_path)
    assert handled == [str(number) for number in range(len(handled))] != []
    assert f", in {events / 'a.ndjson.gz'}, after line {len(handled)}); the partition has failed" in caplog.text


def test_a_byte_order_mark_is_not_an_error(tmp_path, events, application) -> None:
    (events / "a.ndjson").write_text(LINE.format(1), "utf-8-sig")
    assert not application().run(until_caught_up=True).failed
    assert seen(tmp_path) == ["1"]


@pytest.mark.parametrize("url", ["file:nowhere/", "file:events/*.ndjson"])
def test_a_path_that_never_existed_is_not_waited_for(tmp_path, events, application, url: str) -> None:
    put(events / "a.ndjson", 1)
    with pytest.raises(EventStoreError, match="OCQ-346"):
        application(url).run(until_caught_up=True)


def other_columns(events: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), events / "a.parquet")


def dangling(events: Path) -> None:
    (events / "a.ndjson").symlink_to("nowhere.ndjson")


@pytest.mark.parametrize(
    ("write", "code"), [(other_columns, "OCQ-235"), pytest.param(dangling, "OCQ-234", marks=pytest.mark.release)]
)
def test_a_log_that_cannot_be_read_is_explained_once_without_a_traceback(tmp_path, events, write, code: str) -> None:
    write(events)
    (tmp_path / "file_handlers.py").write_text(HANDLERS)
    settings = ["event-store.url=file:events/", "event-handling.standard.processing.engine=thread"]
    command = [
        sys.executable,
        "-m",
        "opencqrs_py",
        "run",
        "--until-caught-up",
        "--set",
        "database.url=sqlite:///read.db",
    ]
    done = subprocess.run(
        [*command, *(word for each in settings for word in ("--set", each))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count(f"[{code}] ") == done.stderr.count("  fix: ") == 1
    assert "Traceback" not in done.stderr + done.stdout


def remove_oldest(events: Path) -> None:
    (events / "1.ndjson").unlink()


def insert(events: Path) -> None:
    put(events / "1b.ndjson", *range(100, 105))


def copy_and_truncate(events: Path) -> None:
    put(events / "2.ndjson", *range(100, 120))


def rename_to_the_end(events: Path) -> None:
    (events / "1.ndjson").rename(events / "3.ndjson")


def replace(events: Path) -> None:
    put(events / "1.ndjson", *range(10, 15))


CHANGES = [(change, "thread") for change in (remove_oldest, insert, copy_and_truncate, rename_to_the_end, replace)]
CHANGES += [pytest.param(insert, "spark", marks=pytest.mark.spark)]


@pytest.mark.release(engine="spark")
@pytest.mark.parametrize(("change", "engine"), CHANGES)
def test_files_changed_between_two_runs_are_refused(tmp_path, events, application, change, engine) -> None:
    put(events / "1.ndjson", *range(20, 25))
    put(events / "2.ndjson", *range(25, 30))
    assert not application(engine=engine).run(until_caught_up=True).failed
    change(events)
    for _ in range(2):
        with pytest.raises(EventStoreError, match="OCQ-316"):
            application(engine=engine).run(until_caught_up=True)
    assert seen(tmp_path) == [str(number) for number in range(20, 30)]


def test_files_added_between_two_runs_are_handled(tmp_path, events, application) -> None:
    put(events / "1.ndjson", 1, 2)
    assert not application().run(until_caught_up=True).failed
    put(events / "1.ndjson", 1, 2, 3)
    put(events / "2.ndjson", 4)
    assert not application().run(until_caught_up=True).failed
    assert seen(tmp_path) == ["1", "2", "3", "4"]
