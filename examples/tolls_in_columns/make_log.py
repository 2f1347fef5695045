"""Generate the log of a toll road, one CloudEvent per line, the same every time."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

COUNT = 50_000
STATIONS = ("Brenner", "Gotthard", "Simplon", "Tauern")
LOG = Path(__file__).with_name("tolls.ndjson")


def main() -> None:
    """Write the log beside this file."""
    chance = Random(11)  # noqa: S311 not for secrets
    moment = datetime(2026, 3, 2, 5, tzinfo=UTC)
    with LOG.open("w", encoding="utf-8") as lines:
        for number in range(1, COUNT + 1):
            moment += timedelta(seconds=chance.randrange(8))
            lines.write(json.dumps(event(number, moment, chance)) + "\n")
    print(f"wrote {COUNT:,} events to {LOG.name}")


def event(number: int, moment: datetime, chance: Random) -> dict[str, object]:
    """Return an event: usually a paid toll, sometimes a vehicle that was let through."""
    station = chance.choice(STATIONS)
    known = {
        "specversion": "1.0",
        "id": str(number),
        "source": "urn:tolls",
        "subject": f"/stations/{station.lower()}/lanes/{chance.randrange(1, 7)}",
        "time": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    if chance.random() < 0.02:
        return {
            **known,
            "type": "tolls.let-through.v1",
            "data": {"reason": chance.choice(("ambulance", "fire", "police"))},
        }
    kind, cents = chance.choice((("car", 1150), ("car", 1150), ("van", 1700), ("lorry", 8425)))
    return {**known, "type": "tolls.paid.v1", "data": {"station": station, "vehicle": kind, "cents": cents}}


if __name__ == "__main__":
    main()
