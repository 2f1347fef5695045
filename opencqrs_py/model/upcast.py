"""What an upcaster makes of an event."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Upcast"]


class Upcast(NamedTuple):
    """An event's new type and data; everything else of it stays as it was.

    Attributes:
        type: CloudEvents ``type``.
        data: What becomes JSON: ``dict``, ``list``, text, number, ``bool`` or ``None``; dataclasses too.
    """

    type: str
    data: Any
