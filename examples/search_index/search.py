"""Search the index for a word."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing


def main() -> None:
    """Print how many pages contain the word, and the first few."""
    (word,) = sys.argv[1:] or ["checkpoint"]
    with closing(sqlite3.connect("index.db")) as index:
        found = index.execute("SELECT page, text FROM pages WHERE text LIKE ? ORDER BY page", [f"%{word}%"]).fetchall()
        ((position,),) = index.execute("SELECT max(position) FROM positions").fetchall()
    print(f"{len(found)} pages with {word!r}; the index is at position {position}")
    for page, text in found[:3]:
        print(f"{page}: {text}")


if __name__ == "__main__":
    main()
