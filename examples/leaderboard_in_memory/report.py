"""Show the leaderboard from the snapshots."""

from __future__ import annotations

import json
from pathlib import Path

SHOWN = 5


def main() -> None:
    """Print the players with the most points."""
    points: dict[str, int] = {}
    for file in sorted(Path("snapshots").glob("*.json")):
        points |= json.loads(file.read_text("utf-8"))["points"]
    for place, (player, count) in enumerate(sorted(points.items(), key=lambda each: -each[1])[:SHOWN], 1):
        print(f"{place}. {player:<8}{count:>7,}")


if __name__ == "__main__":
    main()
