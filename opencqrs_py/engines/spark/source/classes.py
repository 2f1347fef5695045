"""Event classes as columns: the fields of a class, which the option ``schema`` names as ``module:Class``.

Runs in the Python workers in which Spark plans; executors get the columns, and do not need the class.
"""

from __future__ import annotations

from functools import reduce
from importlib import import_module
from typing import Any, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from opencqrs_py.errors import EngineError
from opencqrs_py.model.handler import event_type_of
from opencqrs_py.processing.columns.column_types import NoColumnError, annotations_of, classes_in, columns_of
from opencqrs_py.processing.field_names import field_names

_PLACE = 'format("opencqrs")'
_PARSED = (BooleanType, DateType, DecimalType, DoubleType, LongType, StringType, TimestampType)
_DDL = "name the fields that you need with their types instead, such as isbn STRING, extra VARIANT"
_REACH = "put the module where Spark's Python workers find it: beside the program, or on PYTHONPATH"


class EventClass(NamedTuple):
    """What the data source needs from an event class.

    Attributes:
        fields: Its fields as columns.
        type: The event type from ``@event_type``, ``None`` for none.
    """

    fields: StructType
    type: str | None


def read_class(path: str) -> EventClass:
    """Return the description of the class that ``module:Class`` names.

    Raises:
        EngineError: OCQ-410, if it cannot be imported, or a field has no column.
    """
    found = _imported(path)
    try:
        columns = columns_of(found)
    except NoColumnError as error:
        raise _refused(path, f"{error.field} is {error.annotation}, which has no column", _DDL) from None
    except (NameError, TypeError) as error:
        raise _refused(path, f"its annotations cannot be read ({error})", _DDL) from None
    if not columns:
        raise _refused(path, "it is not a class with fields", _DDL)
    _refuse_aliases(path, found, "")
    fields = StructType([StructField(name, _spark_type(path, name, one.arrow)) for name, one in columns.items()])
    return EventClass(fields, event_type_of(found))


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    if module == "__main__":
        raise _refused(path, "Spark's Python workers run another main module", "move the class to its own module")
    try:
        return reduce(getattr, name.split("."), import_module(module))
    except Exception as error:  # anything that the module raises when it is imported
        what = f"it cannot be imported ({type(error).__name__}: {error})"
        raise _refused(path, what, _REACH) from None


def _refuse_aliases(path: str, cls: Any, above: str) -> None:
    """Refuse a class with a field, at any depth, that pydantic reads by another name: its column would be empty."""
    for names in field_names(cls):
        if names.read != ((names.name,),):
            raise _refused(path, f"its field '{above}{names.name}' has another name in the data", _DDL)
    for name, annotation in annotations_of(cls).items():
        for inner in classes_in(annotation):
            _refuse_aliases(path, inner, f"{above}{name}.")


def _spark_type(path: str, name: str, arrow: Any) -> DataType:
    try:
        found = from_arrow_type(arrow)
    except PySparkException:
        found = None
    if found is None or not _is_parsed(found):
        raise _refused(path, f"its field '{name}' is {arrow}, which is not read from JSON", _DDL)
    return found


def _is_parsed(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _is_parsed(kind.elementType)
    if isinstance(kind, StructType):
        return all(_is_parsed(field.dataType) for field in kind)
    return isinstance(kind, _PARSED)


def _refused(path: str, why: str, fix: str) -> EngineError:
    return EngineError("OCQ-410", f"the option 'schema' names the class {path}: {why}", _PLACE, fix)
