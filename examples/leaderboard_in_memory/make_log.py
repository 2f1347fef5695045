"""Write the log of the example: rounds of a game that eight players win."""

from __future__ import annotations

import json
import random
from pathlib import Path

PLAYERS = ["Ada", "Bob", "Chandra", "Dmitri", "Eve", "Fatima", "Grace", "Heinz"]
ROUNDS = 5_000


def main() -> None:
    """Write ``game.ndjson``, the same every time."""
    draw = random.Random(1)  # noqa: S311 not for secrets
    lines = []
    for number in range(ROUNDS):
        player = draw.choice(PLAYERS)
        attributes = {"id": str(number), "source": "arcade", "subject": f"/players/{player}"}
        data = {"player": player, "points": draw.randint(1, 10)}
        lines.append(json.dumps({**attributes, "type": "game.round-won.v1", "data": data}))
    Path("game.ndjson").write_text("\n".join(lines) + "\n", "utf-8")
    print(f"wrote {ROUNDS:,} rounds to game.ndjson")


if __name__ == "__main__":
    main()
