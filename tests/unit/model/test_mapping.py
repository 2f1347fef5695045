"""Mappings of tables: which columns they name."""

from __future__ import annotations

from opencqrs_py.model.mapping import TableMapping


def test_the_columns_of_a_mapping_are_the_mapped_ones() -> None:
    mapping = TableMapping("log", "nr", "id", "kind", "body", time="at")
    assert mapping.columns == {"position": "nr", "id": "id", "type": "kind", "time": "at", "data": "body"}
    whole = TableMapping("log", "nr", "id", "kind", "body", "origin", "about", "at", "meta")
    assert list(whole.columns) == ["position", "id", "source", "subject", "type", "time", "data", "metadata"]
