"""A bar chart for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["bar_chart"]

BLOCKS = " ▁▂▃▄▅▆▇█"
"""A cell from empty to full, in eighths."""


def bar_chart(values: Sequence[int], height: int, *, ascii_only: bool = False) -> list[str]:
    """Draw one bar per value, side by side.

    Args:
        values: The values, 0 or more; the greatest is as high as the chart.
        height: Rows of the chart.
        ascii_only: Whether to use only ``#``, in whole rows.

    Returns:
        The rows from the top down, with one character per value. A value above 0 is always visible.
    """
    top = max(values, default=0) or 1
    eighths = [max(round(value * height * 8 / top), min(value, 1)) for value in values]
    blocks = " ########" if ascii_only else BLOCKS
    return ["".join(blocks[max(0, min(bar - row * 8, 8))] for bar in eighths) for row in reversed(range(height))]
