"""Show the read models of a git history: files by churn, hotspots, activity per week.

python report.py --database .data/flask-6e8a1b2c/read_models.db
"""

from __future__ import annotations

import argparse
import io
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from chart import bar_chart
from queries import ACTIVITY, CHURN, HOTSPOTS
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

READ_MODELS = Path(__file__).resolve().parent / "read_models.db"
TOP = 10
"""Rows of a table."""

WEEKS = 60
"""Weeks of the chart, one bar each."""

HEIGHT = 6
"""Rows of the chart."""

Row = tuple[Any, ...]


def shown(path: str, width: int) -> Text:
    """Return a path of an event as text that is safe to print.

    Unprintable characters, and bytes that are not UTF-8, become backslash escapes.

    Args:
        path: The path, with the ``%XX`` escapes of the loader.
        width: Available cells; a longer path is cut at its beginning.
    """
    text = unquote_to_bytes(path).decode(errors="backslashreplace")
    safe = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    while cell_len(safe) > width:
        safe = "…" + safe.removeprefix("…")[1:]
    return Text(safe, no_wrap=True)


def rows_of(database: sqlite3.Connection, query: str, *values: object) -> list[Row]:
    """Return the rows of a query, or none if its group has not created its tables yet."""
    try:
        return database.execute(query, values).fetchall()
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise
        return []


def table_of(columns: Sequence[str], rows: Sequence[Row], width: int) -> Table:
    """Return a table with paths in its first column, and numbers or dates in the others."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column(columns[0], ratio=1)
    for name in columns[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    others = [[_cell(value) for value in row[1:]] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns[1:], *others, strict=True)]
    room = max(width - sum(widths) - 3 * len(widths) - 2, 12)
    for row, cells in zip(rows, others, strict=True):
        table.add_row(shown(row[0], room), *cells)
    return table


def activity_chart(rows: Sequence[Row], *, ascii_only: bool) -> Text:
    """Return the commits of each week as bars, up to the newest week."""
    commits = {_monday(week): number for week, number, *_ in rows}
    newest = max(commits)
    oldest = max(min(commits), newest - timedelta(weeks=WEEKS - 1))
    weeks = [oldest + timedelta(weeks=number) for number in range((newest - oldest).days // 7 + 1)]
    values = [commits.get(week, 0) for week in weeks]
    left = len(f"{max(values):,}")
    scale = [f"{max(values):,}", *[""] * (HEIGHT - 2), "0"]
    bars = bar_chart(values, HEIGHT, ascii_only=ascii_only)
    chart = Text(no_wrap=True)
    for number, bar in zip(scale, bars, strict=True):
        chart.append(f"{number:>{left}} ").append(f"{bar}\n", style="green")
    first, last = _week(oldest), _week(newest)
    return chart.append(f"{'':{left}} {first if oldest == newest else f'{first} to {last}'}", style="dim")


def print_report(console: Console, database: sqlite3.Connection, today: date) -> None:
    """Print the three read models; for an empty one, the command that fills it."""
    churn = rows_of(database, CHURN, TOP)
    hotspots = rows_of(database, HOTSPOTS, f"{today:%Y-%m}", TOP)
    activity = rows_of(database, ACTIVITY, _week(today))
    width = console.width
    _heading(console, "Churn", "the files that changed most, under all their names", group="churn", rows=churn)
    if churn:
        columns = ("File", "Commits", "Added", "Deleted", "Authors", "Last change")
        console.print(table_of(columns, churn, width))
    about = "folders by changes × lines in the newest six months"
    _heading(console, "Hotspots", about, group="hotspots", rows=hotspots)
    if hotspots:
        console.print(table_of(("Folder", "Changes", "Lines", "Heat", "Last change"), hotspots, width))
    total = sum(row[1] for row in activity)
    about = f"commits per week, {total:,} in all"
    _heading(console, "Activity", about, group="activity", rows=activity)
    if activity:
        console.print(activity_chart(activity, ascii_only=console.options.ascii_only))


def main(arguments: list[str] | None = None) -> int:
    """Run the report and return its exit code: 0 shown, 1 nothing to show, 2 not a database."""
    parser = argparse.ArgumentParser(prog="report.py", description=(__doc__ or "").split("\n", maxsplit=1)[0])
    where = "SQLite file with the read models (default: read_models.db beside this program)"
    parser.add_argument("--database", type=Path, default=READ_MODELS, metavar="FILE", help=where)
    file: Path = parser.parse_args(arguments).database
    if not file.is_file():
        sys.stderr.write(f"report.py: there is no {file} yet: python demo.py creates and fills one\n")
        return 1
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    console = Console(highlight=False)
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
            print_report(console, database, datetime.now(UTC).date())
    except sqlite3.DatabaseError as error:
        sys.stderr.write(f"report.py: {file} cannot be read as an SQLite database ({error})\n")
        return 2
    return 0


def _heading(console: Console, name: str, about: str, *, group: str, rows: Sequence[Row]) -> None:
    line = Text(name, style="bold cyan")
    if rows:
        console.print(line.append(f"  {about}", style="not bold default"))
    else:
        hint = f"  nothing yet; opencqrs run --until-caught-up --group {group} fills it"
        console.print(line.append(hint, style="not bold yellow"), "")


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _monday(week: str) -> date:
    return date.fromisocalendar(int(week[:-4]), int(week[-2:]), 1)


def _week(day: date) -> str:
    year, week, _ = day.isocalendar()
    return f"{year}-W{week:02}"


if __name__ == "__main__":
    sys.exit(main())
