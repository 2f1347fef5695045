"""The columns of a data frame of events."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import pytest

from opencqrs_py.engines.spark.source.columns import Available
from opencqrs_py.engines.spark.source.ddl import parse_ddl
from opencqrs_py.errors import EngineError

LENT = Available(parse_ddl("isbn STRING, reader STRING"))


def values(available, ddl, *rows):
    columns = available.chosen(parse_ddl(ddl))
    batch, _ = pickle.loads(pickle.dumps(columns)).batch(rows)
    assert batch.schema.names == parse_ddl(ddl).names
    return columns.read, batch.to_pylist()


def test_without_a_schema_the_columns_are_those_of_an_event():
    assert Available().usual().simpleString() == (
        "struct<position:bigint,id:string,source:string,subject:string,type:string,time:timestamp,"
        "content_type:string,payload:variant,extensions:map<string,string>>"
    )


def test_with_a_schema_the_fields_of_the_data_follow_the_attributes():
    assert LENT.usual().simpleString() == (
        "struct<position:bigint,id:string,source:string,subject:string,type:string,time:timestamp,"
        "extensions:map<string,string>,isbn:string,reader:string>"
    )


def test_only_the_selected_attributes_are_read():
    read, found = values(LENT, "reader STRING, type STRING", (7, "lent", '{"isbn":"1","reader":"ada"}'), (8, "x", None))
    assert read == ("position", "type", "payload")
    assert found == [{"reader": "ada", "type": "lent"}, {"reader": None, "type": "x"}]


def test_times_payloads_and_extensions_can_be_read_as_stored():
    row = (1, "2026-01-05T00:00:00+01:00", '{"a":1}', '{"trace":"x","n":7}')
    ddl = "position BIGINT, time STRING, payload STRING, extensions STRING"
    assert values(Available(), ddl, row)[1] == [dict(zip(parse_ddl(ddl).names, row, strict=True))]


def test_extensions_are_a_map_of_strings():
    texts = ['{"trace":"x","n":7,"no":null}', None, "", '{"trace":"x","n":7,"no":null}']
    rows = list(enumerate(texts, 1))
    columns = Available().chosen(Available().usual()).schema
    found = Available().chosen(type(columns)([columns["extensions"]])).batch(rows)[0].to_pylist()
    one = [("trace", "x"), ("n", "7"), ("no", None)]
    assert [row["extensions"] for row in found] == [one, None, None, one]


def test_times_become_timestamps_whatever_their_offset():
    rows = [(1, "2026-01-05T01:00:00+01:00"), (2, None), (3, "2016-12-31T23:59:60Z")]
    found = [row["time"] for row in values(Available(), "time TIMESTAMP", *rows)[1]]
    assert found == [datetime(2026, 1, 5, tzinfo=UTC), None, datetime(2017, 1, 1, tzinfo=UTC)]


def test_a_prefix_separates_fields_from_attributes():
    with pytest.raises(EngineError, match=r"OCQ-410.* the field 'Id' of the option 'schema' has the name of a column"):
        Available(parse_ddl("Id STRING"))
    apart = Available(parse_ddl("id STRING"), "data_")
    assert values(apart, "id STRING, data_id STRING", (1, "e", '{"id":"d"}'))[1] == [{"id": "e", "data_id": "d"}]


@pytest.mark.parametrize(
    ("ddl", "says"),
    [
        ("isbm STRING", "there is no column 'isbm'; the columns are position, id, .*extensions, isbn, reader"),
        ("isbn INT", "the column 'isbn' is STRING, not INT"),
        ("position STRING", "the column 'position' is BIGINT, not STRING"),
        ("time DATE", "the column 'time' is TIMESTAMP or STRING, not DATE"),
    ],
)
def test_unknown_columns_and_other_types_are_refused(ddl, says):
    with pytest.raises(EngineError, match=f"OCQ-407.* {says}"):
        LENT.chosen(parse_ddl(ddl))


@pytest.mark.parametrize(
    ("ddl", "text", "says"),
    [
        (
            "time TIMESTAMP",
            "yesterday",
            "the time is 'yesterday', which is not an RFC 3339 time, in the event at position 2",
        ),
        ("time TIMESTAMP", "2026-01-05T00:00:00", "which is not an RFC 3339 time, in the event at position 2"),
        ("payload STRING", "\ud83d", r"payload is not Unicode \(.*\), in the event at position 2"),
        ("payload VARIANT", '{"a":"\ud83d"}', r"the data cannot be a VARIANT \(.*\), in the event at position 2"),
        ("payload VARIANT", "{", r"the data cannot be a VARIANT \(.*\), in the event at position 2"),
    ],
)
def test_a_value_that_a_column_cannot_hold_is_refused_with_its_event(ddl, text, says):
    with pytest.raises(EngineError, match=f"OCQ-419.* {says}"):
        values(Available(), ddl, (1, None), (2, text), (3, None))


@pytest.mark.parametrize("text", ["[]", "{", "7"])
def test_extensions_that_are_not_an_object_are_refused_with_their_event(text):
    columns = Available().chosen(type(parse_ddl("a INT"))([Available().usual()["extensions"]]))
    with pytest.raises(
        EngineError, match=r"OCQ-419.* the other attributes are not a JSON object, in the event at position 2"
    ):
        columns.batch([(1, None), (2, text)])
