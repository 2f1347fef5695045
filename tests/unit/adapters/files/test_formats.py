"""Names of files, and URLs of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from opencqrs_py.adapters.files import Compression, FileFormat, FileKind, format_of, path_of_url
from opencqrs_py.errors import EventStoreError

PLAIN = FileFormat(FileKind.LINES)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.ndjson", PLAIN),
        ("a.jsonl", PLAIN),
        ("A.NDJSON", PLAIN),
        ("2026-01-01.part.ndjson", PLAIN),
        ("a.ndjson.gz", FileFormat(FileKind.LINES, Compression.GZIP)),
        ("a.jsonl.zst", FileFormat(FileKind.LINES, Compression.ZSTD)),
        ("a.parquet", FileFormat(FileKind.ROWS)),
        ("a.snappy.parquet", FileFormat(FileKind.ROWS)),
        ("a.parquet.gz", None),
        ("a.json", None),
        ("a.gz", None),
        ("ndjson", None),
        ("a.ndjson.tmp", None),
    ],
)
def test_the_format_follows_from_the_file_name(name: str, form: FileFormat | None) -> None:
    assert format_of(name) == form


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:events/", "/project/events"),
        ("file:events/2026.ndjson", "/project/events/2026.ndjson"),
        ("file:../lake", "/project/../lake"),
        ("file:/lake/events", "/lake/events"),
        ("file:///lake/events", "/lake/events"),
        ("file://localhost/lake/events", "/lake/events"),
        ("FILE:///lake", "/lake"),
        ("file:///my%20lake/gr%C3%B6%C3%9Fe", "/my lake/größe"),
        ("file:///lake#1/a?b", "/lake#1/a?b"),
    ],
)
def test_a_url_names_a_path_relative_to_the_project(url: str, path: str) -> None:
    assert path_of_url(url, Path("/project")) == Path(path)


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("file://server/share", "names the machine 'server'"),
        ("file://events", "names the machine 'events'"),
        ("file://[/x", "names the machine"),
        ("file:", "names no file or folder"),
        ("file://", "names no file or folder"),
        ("file:a%00b", "names no file or folder"),
        ("sqlite:///a.db", "is not a URL of a file"),
        ("file", "is not a URL of a file"),
    ],
)
def test_other_urls_are_refused_with_the_right_form(url: str, what: str) -> None:
    with pytest.raises(EventStoreError, match="OCQ-344") as caught:
        path_of_url(url, Path("/project"))
    assert what in caught.value.what
    assert "file:///absolute/path" in caught.value.fix
