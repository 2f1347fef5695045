"""Write the log of the example: taxi trips."""

from __future__ import annotations

import json
import random
from pathlib import Path

TRIPS = 25_000


def main() -> None:
    """Write ``trips.ndjson``, the same every time."""
    draw = random.Random(1)  # noqa: S311 not for secrets
    lines = []
    for number in range(TRIPS):
        taxi, kilometres = f"taxi-{draw.randint(1, 40)}", round(draw.uniform(0.5, 30), 1)
        attributes = {"id": str(number), "source": "taxis", "subject": f"/taxis/{taxi}", "type": "taxi.trip-ended.v1"}
        data = {"taxi": taxi, "kilometres": kilometres, "cents": 350 + round(kilometres * 220)}
        lines.append(json.dumps({**attributes, "data": data}))
    Path("trips.ndjson").write_text("\n".join(lines) + "\n", "utf-8")
    print(f"wrote {TRIPS:,} trips to trips.ndjson")


if __name__ == "__main__":
    main()
