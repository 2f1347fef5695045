"""JSON texts as Spark's VARIANT, written by hand: PySpark's own builder takes five times as long.

Runs on executors, once per event.

Source:
    ``VariantUtils`` and ``VariantBuilder`` in ``pyspark.sql.variant_utils``, which describe the bytes; numbers become
    what Spark's ``parse_json`` makes of them, except those that would lose digits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

from opencqrs_py.model.json_text import read_json

_SHORT = 63  # bytes of a text whose length is part of its header
_BYTE, _TWO_BYTES = 0xFF, 0xFFFF
_LARGEST = 16 * 1024 * 1024  # bytes of a VARIANT that PySpark reads
_MOST_DIGITS = 38
_TOO_LONG = f"a number has more than {_MOST_DIGITS} digits"
_NULL, _TRUE, _FALSE = b"\x00", b"\x04", b"\x08"
_DOUBLE, _LONG_TEXT = b"\x1c", b"\x40"
_EMPTY_OBJECT, _EMPTY_ARRAY = b"\x02\x00\x00", b"\x03\x00\x00"
_INTEGERS = ((7, b"\x0c", 1), (15, b"\x10", 2), (31, b"\x14", 4), (63, b"\x18", 8))  # bits, header, bytes
_DECIMALS = ((9, b"\x20", 4), (18, b"\x24", 8), (_MOST_DIGITS, b"\x28", 16))  # digits, header, bytes

_Ids = dict[str, int]
"""The number of each key, in the order in which keys are met."""


def variant_of(text: str) -> tuple[bytes, bytes]:
    """Return value and metadata of the VARIANT that a JSON text is.

    Raises:
        ValueError: If the text is not JSON, a number has more than 38 digits, or it takes more than 16 MB.
    """
    ids: _Ids = {}
    value = _written(read_json(text), ids)
    metadata = _metadata(tuple(ids))
    if len(value) > _LARGEST or len(metadata) > _LARGEST:
        raise ValueError("they take more than the 16 MB of a VARIANT")
    return value, metadata


def _written(value: Any, ids: _Ids) -> bytes:
    return _WRITERS[type(value)](value, ids)


def _object(value: dict[str, Any], ids: _Ids) -> bytes:
    if not value:
        return _EMPTY_OBJECT
    parts, offsets, end = [], [], 0
    numbers = [ids.setdefault(name, len(ids)) for name in value]
    for inner in value.values():
        part = _WRITERS[type(inner)](inner, ids)
        parts.append(part)
        offsets.append(end)
        end += len(part)
    order = _sorted(tuple(value))
    numbers, offsets = [numbers[n] for n in order], [*[offsets[n] for n in order], end]
    if end <= _BYTE and len(ids) <= _BYTE:
        return b"".join((bytes((2, len(order), *numbers, *offsets)), *parts))
    return b"".join((_long_header(2, offsets, numbers), *parts))


def _array(value: list[Any], ids: _Ids) -> bytes:
    if not value:
        return _EMPTY_ARRAY
    parts, offsets = [], [0]
    for inner in value:
        parts.append(_WRITERS[type(inner)](inner, ids))
        offsets.append(offsets[-1] + len(parts[-1]))
    return b"".join((_long_header(3, offsets), *parts))


def _long_header(kind: int, offsets: Sequence[int], numbers: Sequence[int] = ()) -> bytes:
    """Return the header of an object (2) or an array (3) of any size."""
    count = len(offsets) - 1
    large = count > _BYTE
    per_number, per_offset = _size(max(numbers, default=0)), _size(offsets[-1])
    flags = (per_offset - 1) | (large << 2)
    if kind == 2:
        flags = (per_offset - 1) | ((per_number - 1) << 2) | (large << 4)
    head = bytes((flags << 2 | kind,)) + count.to_bytes(4 if large else 1, "little")
    listed = b"".join(number.to_bytes(per_number, "little") for number in numbers)
    return head + listed + b"".join(offset.to_bytes(per_offset, "little") for offset in offsets)


def _text(value: str, _ids: _Ids) -> bytes:
    content = value.encode()
    if len(content) <= _SHORT:
        return bytes((len(content) << 2 | 1,)) + content
    return _LONG_TEXT + len(content).to_bytes(4, "little") + content


def _integer(value: int, ids: _Ids) -> bytes:
    bits = (value if value >= 0 else ~value).bit_length()
    for most, header, size in _INTEGERS:
        if bits <= most:
            return header + value.to_bytes(size, "little", signed=True)
    return _decimal(Decimal(value), ids)


def _float(value: float, _ids: _Ids) -> bytes:
    """Return a decimal, as Spark does for numbers that are written without an exponent."""
    text = repr(value)
    if "e" in text:
        return _DOUBLE + struct.pack("<d", value)
    whole, _, fraction = text.partition(".")
    return _scaled(int(whole + fraction), len(fraction), len(whole.lstrip("-0")) + len(fraction))


def _decimal(value: Decimal, _ids: _Ids) -> bytes:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)  # noqa: S101 JSON has no infinity
    if len(digits) + max(0, exponent) > _MOST_DIGITS:
        raise ValueError(_TOO_LONG)
    unscaled = int("".join(map(str, digits))) * 10 ** max(0, exponent)
    return _scaled(-unscaled if sign else unscaled, max(0, -exponent), len(digits) + max(0, exponent))


def _scaled(unscaled: int, scale: int, digits: int) -> bytes:
    needed = max(digits, scale)
    for most, header, size in _DECIMALS:
        if needed <= most:
            return header + bytes((scale,)) + unscaled.to_bytes(size, "little", signed=True)
    raise ValueError(_TOO_LONG)


def _size(greatest: int) -> int:
    return 1 if greatest <= _BYTE else 2 if greatest <= _TWO_BYTES else 3


@lru_cache(maxsize=10_000)
def _sorted(names: tuple[str, ...]) -> tuple[int, ...]:
    """Return the order in which an object's fields are found: that of Java's texts."""
    return tuple(sorted(range(len(names)), key=lambda number: names[number].encode("utf-16-be")))


@lru_cache(maxsize=10_000)
def _metadata(names: tuple[str, ...]) -> bytes:
    keys = [name.encode() for name in names]
    offsets = [0]
    for key in keys:
        offsets.append(offsets[-1] + len(key))
    size = _size(max(offsets[-1], len(keys)))
    head = bytes((1 | (size - 1) << 6,)) + len(keys).to_bytes(size, "little")
    return head + b"".join(offset.to_bytes(size, "little") for offset in offsets) + b"".join(keys)


_WRITERS: dict[type, Callable[[Any, _Ids], bytes]] = {
    dict: _object,
    list: _array,
    str: _text,
    int: _integer,
    float: _float,
    Decimal: _decimal,
    bool: lambda value, _ids: _TRUE if value else _FALSE,
    type(None): lambda _value, _ids: _NULL,
}
