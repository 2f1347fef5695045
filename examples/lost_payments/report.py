"""Print the orders, and what shipped them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

DATABASE = Path(__file__).with_name("read_models.db")
QUERY = "SELECT order_id, shipped_by FROM orders LEFT JOIN shipments USING (order_id) ORDER BY order_id"


def main() -> None:
    """Print a line for each order."""
    with closing(sqlite3.connect(DATABASE)) as database:
        for order, shipped_by in database.execute(QUERY):
            print(f"{order}  {f'shipped by the {shipped_by}' if shipped_by else 'not shipped'}")


if __name__ == "__main__":
    main()
