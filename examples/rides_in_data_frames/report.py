"""Print the read models."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

DATABASE = Path(__file__).with_name("read_models.db")


def main() -> None:
    """Print the income by district and day, and how many bikes came to and went from each station."""
    with closing(sqlite3.connect(DATABASE)) as database:
        income = database.execute("SELECT day, district, rides, minutes, cents FROM income ORDER BY day, district")
        for day, district, rides, minutes, cents in income:
            print(f"{day}  {district:15}{rides:>6,} rides {minutes:>8,} minutes {cents // 100:>7,}.{cents % 100:02}")
        for station, came, went in database.execute("SELECT station, came, went FROM stock ORDER BY station"):
            print(f"{station:18}{came:>6,} bikes came {went:>6,} went {came - went:>+5}")


if __name__ == "__main__":
    main()
