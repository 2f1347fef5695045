"""Columns in Spark's DDL, ``isbn STRING, amount DECIMAL(10,2)``, read without a JVM: planning workers have none."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

_PLAIN: dict[str, DataType] = {
    "boolean": BooleanType(),
    "byte": ByteType(),
    "tinyint": ByteType(),
    "short": ShortType(),
    "smallint": ShortType(),
    "int": IntegerType(),
    "integer": IntegerType(),
    "long": LongType(),
    "bigint": LongType(),
    "float": FloatType(),
    "real": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
    "variant": VariantType(),
}
_MOST_DIGITS = 38
_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|([<>(),:])|(\S))")
_KNOWN = "STRING, BIGINT, INT, DOUBLE, DECIMAL(p,s), BOOLEAN, TIMESTAMP, DATE, ARRAY<…>, STRUCT<…>, VARIANT"


def parse_ddl(text: str) -> StructType:
    """Return the columns that a text names.

    Raises:
        ValueError: Saying what is wrong, and where.
    """
    parser = _Parser(text)
    columns = parser.columns("")
    parser.expect("")
    return columns


class _Parser:
    """Takes a text apart from left to right."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = next(self._tokens)

    def columns(self, between: str) -> StructType:
        """Return the columns that follow; ``between`` stands between a name and its type."""
        columns = StructType()
        while True:
            name = self._take()
            if not name or not _is_name(name):
                raise ValueError(f"the name of a column is missing before {_shown(name or self._next)}")
            if between and self._next == between:
                self._take()
            name = _unquoted(name)
            if name in columns.names:
                raise ValueError(f"the column {name!r} appears twice")
            columns.add(name, self._inner_type(name) if between else self._type(name))
            if self._next != ",":
                return columns
            self._take()

    def expect(self, token: str) -> None:
        """Take a token that must come now."""
        found = self._take()
        if found != token:
            raise ValueError(f"expected {_shown(token)}, got {_shown(found)}")

    def _take(self) -> str:
        taken, self._next = self._next, next(self._tokens, "")
        return taken

    def _type(self, column: str) -> DataType:
        name = self._take()
        match name.lower():
            case "array":
                self.expect("<")
                element = ArrayType(self._inner_type(column))
                self.expect(">")
                return element
            case "struct":
                self.expect("<")
                fields = self.columns(":")
                self.expect(">")
                return fields
            case "decimal" | "dec" | "numeric":
                return self._decimal(column)
            case plain if plain in _PLAIN:
                return _PLAIN[plain]
        if not name:
            raise ValueError(f"the column {column!r} has no type")
        raise ValueError(f"the column {column!r} has the type {name!r}, which is none of {_KNOWN}")

    def _inner_type(self, column: str) -> DataType:
        found = self._type(column)
        if isinstance(found, VariantType):
            what = f"the column {column!r} has a VARIANT inside another type; make the whole column a VARIANT"
            raise ValueError(what)  # noqa: TRY004 it is what the text says
        return found

    def _decimal(self, column: str) -> DecimalType:
        if self._next != "(":
            return DecimalType(10, 0)
        self._take()
        precision, scale = self._number(column), 0
        if self._next == ",":
            self._take()
            scale = self._number(column)
        self.expect(")")
        if not scale <= precision <= _MOST_DIGITS:
            raise ValueError(f"the column {column!r} has DECIMAL({precision},{scale}), beyond {_MOST_DIGITS} digits")
        return DecimalType(precision, scale)

    def _number(self, column: str) -> int:
        text = self._take()
        if not (text.isascii() and text.isdigit()):
            raise ValueError(f"the column {column!r} has a DECIMAL without digits, such as DECIMAL(10,2)")
        return int(text)


def _tokens(text: str) -> Iterator[str]:
    """Yield names (quoted ones with a backtick before them), signs, and an empty text at the end."""
    for quoted, name, sign, other in _TOKEN.findall(text):
        if other:
            raise ValueError(f"{other!r} is not part of columns such as isbn STRING, amount DECIMAL(10,2)")
        yield f"`{quoted.replace('``', '`')}" if quoted else name or sign
    yield ""


def _is_name(token: str) -> bool:
    return token[0] == "`" or token[0].isalnum() or token[0] == "_"


def _unquoted(name: str) -> str:
    return name.removeprefix("`")


def _shown(token: str) -> str:
    return repr(_unquoted(token)) if token else "the end"
