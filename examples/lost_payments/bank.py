"""Fill the table of the bank statement, as a nightly download would: orders o1 and o2 are paid."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

DATABASE = Path(__file__).with_name("read_models.db")
PAID = ["o1", "o2"]


def main() -> None:
    """Write the paid orders."""
    with closing(sqlite3.connect(DATABASE)) as database, database:
        database.executemany("INSERT OR IGNORE INTO bank_statement VALUES (?)", [(order,) for order in PAID])
    print(f"paid according to the bank: {', '.join(PAID)}")


if __name__ == "__main__":
    main()
