"""Print the invoices."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

DATABASE = Path(__file__).with_name("read_models.db")


def main() -> None:
    """Print each order with its customer and price."""
    with closing(sqlite3.connect(DATABASE)) as database:
        for order, name, cents in database.execute("SELECT * FROM invoices ORDER BY order_id"):
            print(f"{order}  {name:5}{cents // 100:>6}.{cents % 100:02}")


if __name__ == "__main__":
    main()
