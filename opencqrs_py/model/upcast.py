"""The result of an upcaster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Upcast(NamedTuple):
    """An event's new type and data, and optionally new metadata; everything else stays unchanged.

    Attributes:
        type: CloudEvents ``type``.
        data: A JSON value: ``dict``, ``list``, text, number, ``bool`` or ``None``; dataclasses too. All digits of
            ``int`` and ``Decimal`` are kept.
        metadata: The complete new metadata; ``{}`` for none. ``None`` leaves it unchanged.
    """

    type: str
    data: Any
    metadata: Mapping[str, Any] | None = None
