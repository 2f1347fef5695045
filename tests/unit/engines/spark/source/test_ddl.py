"""Columns in Spark's DDL, as the option ``schema`` names them."""

from __future__ import annotations

import pytest

from opencqrs_py.engines.spark.source.ddl import parse_ddl


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("isbn STRING", "struct<isbn:string>"),
        (" isbn string , n BigInt,d date", "struct<isbn:string,n:bigint,d:date>"),
        ("amount DECIMAL(10, 2), whole decimal(5), usual DEC", "decimal(10,2),whole:decimal(5,0),usual:decimal(10,0)"),
        ("`to be` INT, `a``b` long", "struct<to be:int,a`b:bigint>"),
        ("l ARRAY<STRUCT<x: TIMESTAMP, y BOOLEAN>>, v VARIANT", "l:array<struct<x:timestamp,y:boolean>>,v:variant"),
        ("s struct<a: array<array<double>>>", "struct<s:struct<a:array<array<double>>>>"),
        ("a tinyint, b smallint, c float, t timestamp_ntz", "a:tinyint,b:smallint,c:float,t:timestamp_ntz"),
    ],
)
def test_columns_are_parsed_as_spark_parses_them(text, columns):
    assert columns in parse_ddl(text).simpleString()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the name of a column is missing before the end"),
        ("isbn STRING,", "the name of a column is missing before the end"),
        (": STRING", "the name of a column is missing before ':'"),
        ("isbn", "the column 'isbn' has no type"),
        ("isbn STRNG", "the column 'isbn' has the type 'STRNG', which is none of STRING, BIGINT"),
        ("extra MAP<STRING, STRING>", "the column 'extra' has the type 'MAP', which is none of"),
        ("isbn STRING NOT NULL", "expected the end, got 'NOT'"),
        ("isbn STRING; n INT", "';' is not part of columns such as isbn STRING"),
        ("n INT, n INT", "the column 'n' appears twice"),
        ("l ARRAY<INT", "expected '>', got the end"),
        ("l ARRAY", "expected '<', got the end"),
        ("s STRUCT<v: VARIANT>", "the column 'v' has a VARIANT inside another type"),
        ("l ARRAY<VARIANT>", "the column 'l' has a VARIANT inside another type"),
        ("d DECIMAL(39,2)", r"the column 'd' has DECIMAL\(39,2\), beyond 38 digits"),
        ("d DECIMAL(3,4)", "beyond 38 digits|DECIMAL"),
        ("d DECIMAL(x)", "has a DECIMAL without digits"),
    ],
)
def test_invalid_ddl_is_refused_with_the_reason(text, says):
    with pytest.raises(ValueError, match=says):
        parse_ddl(text)
