"""What an upcaster makes of an event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Upcast(NamedTuple):
    """An event's new type and data, and perhaps new metadata; everything else of it stays as it was.

    Attributes:
        type: CloudEvents ``type``.
        data: What becomes JSON: ``dict``, ``list``, text, number, ``bool`` or ``None``; dataclasses too. All digits of
            ``int`` and ``Decimal`` are written.
        metadata: What accompanies the data from here on, all of it; ``{}`` for nothing. ``None`` leaves it as it was.
    """

    type: str
    data: Any
    metadata: Mapping[str, Any] | None = None
