"""Print the read models."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

DATABASE = Path(__file__).with_name("read_models.db")


def main() -> None:
    """Print the revenue by station and day, and the vehicles that were let through."""
    with closing(sqlite3.connect(DATABASE)) as database:
        for station, day, vehicles, cents in database.execute("SELECT * FROM revenue ORDER BY day, station"):
            print(f"{day}  {station:10}{vehicles:>7,} vehicles {cents // 100:>9,}.{cents % 100:02}")
        for reason, vehicles, newest in database.execute("SELECT * FROM let_through ORDER BY reason"):
            print(f"{reason:10}{vehicles:>5} let through, the newest at {newest}")


if __name__ == "__main__":
    main()
