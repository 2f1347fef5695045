"""The contract of event sources, kept by files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path

import pytest

from opencqrs_py.adapters.files import FileEventSource, event_line, format_of, writer_to
from opencqrs_py.model.event import Event
from opencqrs_py.testing.contracts import EventSourceContract
from opencqrs_py.testing.contracts.event_source import Append

Write = Callable[[Path, Iterable[Event]], None]


def write(path: Path, events: Iterable[Event]) -> None:
    """Write a file, and let it be seen only as a whole."""
    form = format_of(path.name)
    assert form is not None
    hidden = path.with_name(f"_{path.name}")
    with hidden.open("wb") as file, writer_to(file, form) as writer:
        writer.write(list(events))
    hidden.rename(path)


def appending_lines(file: Path) -> Append:
    """Return a function that adds events to a file, which it creates."""
    file.touch()

    def append(events: Iterable[Event]) -> None:
        with file.open("ab") as lines:
            lines.writelines(map(event_line, events))

    return append


@pytest.fixture
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("other")


def appending_files(folder: Path, suffix: str) -> Append:
    """Return a function that adds each batch of events as a new file."""
    numbers = count()
    return lambda events: write(folder / f"{next(numbers):05}{suffix}", events)


class FolderContract(EventSourceContract):
    """Each append is a new file."""

    suffix: str

    @pytest.fixture
    def source(self, tmp_path: Path) -> FileEventSource:
        return FileEventSource(tmp_path)

    @pytest.fixture
    def append(self, tmp_path: Path) -> Append:
        return appending_files(tmp_path, self.suffix)

    @pytest.fixture
    def other_source(self, other_folder: Path) -> FileEventSource:
        return FileEventSource(other_folder)

    @pytest.fixture
    def other_append(self, other_folder: Path) -> Append:
        return appending_files(other_folder, self.suffix)


class TestFolderOfParquetFiles(FolderContract):
    suffix = ".parquet"


class LineContract(EventSourceContract):
    """Lines hold the data as JSON, and are read as an import reads them: as compact JSON text."""

    keeps_data_verbatim = False


class TestFolderOfLines(LineContract, FolderContract):
    suffix = ".ndjson"


class TestFolderOfGzipFiles(LineContract, FolderContract):
    suffix = ".jsonl.gz"


class TestFolderOfZstdFiles(LineContract, FolderContract):
    suffix = ".ndjson.zst"


class TestOneFileThatGrows(LineContract):
    @pytest.fixture
    def source(self, append: Append, tmp_path: Path) -> FileEventSource:
        return FileEventSource(tmp_path / "events.ndjson")

    @pytest.fixture
    def append(self, tmp_path: Path) -> Append:
        return appending_lines(tmp_path / "events.ndjson")

    @pytest.fixture
    def other_source(self, other_append: Append, other_folder: Path) -> FileEventSource:
        return FileEventSource(other_folder / "events.ndjson")

    @pytest.fixture
    def other_append(self, other_folder: Path) -> Append:
        return appending_lines(other_folder / "events.ndjson")
