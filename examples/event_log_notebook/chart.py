"""A chart of amounts by day: a picture if matplotlib is installed, otherwise text."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

__all__ = ["can_draw", "draw", "text_bars"]

_WIDTH = 50


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def draw(title: str, days: Sequence[str], amounts: Sequence[float], file: Path) -> None:
    """Draw one bar per day into a PNG file."""
    from matplotlib.figure import Figure  # noqa: PLC0415 optional; without pyplot, no window opens

    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.add_subplot(title=title)
    axes.bar(range(len(days)), amounts)
    axes.set_xticks(range(0, len(days), 7), days[::7])
    figure.savefig(file)


def text_bars(days: Sequence[str], amounts: Sequence[float]) -> str:
    """Return one line per day, with a bar of up to 50 characters. An amount above 0 is always visible."""
    top = max(amounts, default=0) or 1
    lengths = [max(round(amount / top * _WIDTH), min(1, round(amount + 0.5))) for amount in amounts]
    rows = zip(days, amounts, lengths, strict=True)
    return "\n".join(f"{day}  {amount:>9,.2f}  {'█' * length}" for day, amount, length in rows)
