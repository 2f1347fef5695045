"""Options of the data source that name a table of another system: the words of the settings ``event-store.mapping``.

Runs on the driver, in a Python worker that Spark starts for planning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from opencqrs_py.errors import EngineError
from opencqrs_py.model.mapping import TableMapping

__all__ = ["MAPPING_OPTIONS", "mapping_in", "plain", "plain_part"]

_PREFIX = "mapping."
_PLACE = 'format("opencqrs")'
_PARTS = tuple(part.name for part in fields(TableMapping) if part.name != "said_in")

MAPPING_OPTIONS = tuple(_PREFIX + part.replace("_", "-") for part in _PARTS)


def plain(name: str) -> str:
    """Return an option's name as it is looked up: Spark makes no difference between capital and small letters."""
    name = name.lower()
    return _PREFIX + plain_part(name.removeprefix(_PREFIX)) if name.startswith(_PREFIX) else name


def plain_part(name: str) -> str:
    """Return the name of a part as it is looked up: kebab, snake and camel are one name, as in settings."""
    return name.lower().replace("-", "").replace("_", "")


def mapping_in(given: Mapping[str, str]) -> TableMapping | None:
    """Return the table that options name, ``None`` when they name none.

    Args:
        given: Known options, by their plain names.

    Raises:
        EngineError: OCQ-410, if a name is empty.
        EventStoreError: OCQ-313, if a part is missing that every event needs.
    """
    named = {}
    for part, option in zip(_PARTS, MAPPING_OPTIONS, strict=True):
        text = given.get(plain(option))
        if text == "":
            what = f"the option '{option}' must be a name, as it is written in the database, got ''"
            raise EngineError("OCQ-410", what, _PLACE, "leave it out if nothing holds it")
        if text is not None:
            named[part] = text
    return TableMapping.of(named, "mapping", _PLACE)
