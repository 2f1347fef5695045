"""Show the contents of the archive."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq


def main() -> None:
    """Print the number of trips, how many of them are distinct, and what they earned."""
    files = sorted(Path("archive").glob("*.parquet"))
    table = pq.read_table(files)
    positions = table["position"]
    print(f"{len(table):,} trips in {len(files)} files, {pc.count_distinct(positions).as_py():,} of them different")
    print(f"{pc.sum(table['kilometres']).as_py():,.1f} km, {pc.sum(table['cents']).as_py() / 100:,.2f} paid")


if __name__ == "__main__":
    main()
