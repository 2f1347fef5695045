"""Events as lines and rows."""

from __future__ import annotations

import gzip
import io
import json
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opencqrs_py.adapters.files import Compression, FileFormat, FileKind, event_line, whole_files, writer_to
from opencqrs_py.errors import EventFormatError
from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.model.event import Event

EVENT = Event(
    7, "1", "s", "/größe", "t", "2026-01-02T04:04:05.123456789+01:00", "application/json", '{"n":1}', '{"x":{"y":"ü"}}'
)
BARE = Event(8, "2", "s", "/", "t", None, "application/json", None, None)


def written(form: FileFormat, *parts: list[Event]) -> bytes:
    file = io.BytesIO()
    with writer_to(file, form) as writer:
        for part in parts:
            writer.write(part)
    assert not file.closed
    return file.getvalue()


def unpacked(content: bytes, compression: Compression) -> bytes:
    if compression is Compression.GZIP:
        return gzip.decompress(content)
    if compression is Compression.ZSTD:
        with pa.CompressedInputStream(pa.BufferReader(content), "zstd") as stream:
            return bytes(stream.read())
    return content


@pytest.mark.parametrize("event", [EVENT, BARE], ids=["full", "bare"])
def test_an_event_survives_being_written_as_a_line(event: Event) -> None:
    assert parse_event(event_line(event), event.position) == event


def test_a_line_has_the_attributes_in_a_fixed_order() -> None:
    assert list(json.loads(event_line(EVENT))) == [
        *("x", "specversion", "id", "source", "subject", "type", "time", "datacontenttype", "data")
    ]


def test_data_are_written_to_a_line_as_stored() -> None:
    number = "123456789012345678901234567890.10"
    line = event_line(BARE._replace(payload='{"n": ' + number + "}"))
    assert b'"data":{"n": ' + number.encode() in line


@pytest.mark.parametrize("payload", ['{\n"a": 1}', "[1,\r\n2]", '"a"\r'])
def test_line_breaks_within_data_do_not_break_the_line(payload: str) -> None:
    line = event_line(BARE._replace(payload=payload))
    assert line.count(b"\n") == 1
    assert b"\r" not in line
    assert json.loads(line)["data"] == json.loads(payload)


def test_extensions_never_replace_an_attribute() -> None:
    line = event_line(BARE._replace(extensions='{"id":"other","time":"never","data":1,"x":2}'))
    assert json.loads(line) == {**json.loads(event_line(BARE)), "x": 2}


@pytest.mark.parametrize("kind", [FileKind.LINES, FileKind.ROWS])
def test_data_that_are_not_json_are_refused_in_lines_and_kept_in_rows(kind: FileKind) -> None:
    odd = BARE._replace(payload="{no")
    if kind is FileKind.LINES:
        with pytest.raises(EventFormatError, match="OCQ-210"):
            written(FileFormat(kind), [odd])
    else:
        assert pq.read_table(io.BytesIO(written(FileFormat(kind), [odd])))["payload"].to_pylist() == ["{no"]


@pytest.mark.parametrize("compression", Compression)
def test_a_file_of_lines_keeps_the_order_of_events(compression: Compression) -> None:
    content = unpacked(written(FileFormat(FileKind.LINES, compression), [EVENT], [], [BARE, EVENT]), compression)
    assert content == event_line(EVENT) + event_line(BARE) + event_line(EVENT)


@pytest.mark.parametrize("compression", Compression)
def test_a_file_without_events_can_be_read(compression: Compression) -> None:
    assert unpacked(written(FileFormat(FileKind.LINES, compression)), compression) == b""


def test_the_same_events_always_give_the_same_gzip_file(monkeypatch: pytest.MonkeyPatch) -> None:
    once = written(FileFormat(FileKind.LINES, Compression.GZIP), [EVENT])
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert written(FileFormat(FileKind.LINES, Compression.GZIP), [EVENT]) == once


def test_rows_have_the_columns_of_an_event_and_a_timestamp() -> None:
    table = pq.read_table(io.BytesIO(written(FileFormat(FileKind.ROWS), [EVENT], [BARE])))
    assert table.column_names == [*Event._fields, "timestamp"]
    assert [Event(*row) for row in zip(*(table[name].to_pylist() for name in Event._fields), strict=True)] == [
        EVENT,
        BARE,
    ]
    assert table.schema.field("timestamp").type == pa.timestamp("us", "UTC")
    assert table["timestamp"].to_pylist() == [datetime(2026, 1, 2, 3, 4, 5, 123456, UTC), None]


def test_rows_are_written_in_groups_of_a_fixed_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_files, "_ROWS_PER_GROUP", 10)
    content = written(FileFormat(FileKind.ROWS), [EVENT] * 7, [EVENT] * 18)
    metadata = pq.ParquetFile(io.BytesIO(content)).metadata
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [10, 10, 5]
