"""Generate the log of a bike hire, one CloudEvent per line, the same every time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

RIDES = 40_000
STATIONS = (
    "Alexanderplatz",
    "Friedrichstraße",
    "Hauptbahnhof",
    "Kottbusser Tor",
    "Schlesisches Tor",
    "Ostkreuz",
    "Warschauer Straße",
    "Zoo",
    "Airport",
)
LOG = Path(__file__).with_name("rides.ndjson")


def main() -> None:
    """Write the log beside this file."""
    found = sorted(rides(Random(7)), key=lambda event: str(event["time"]))  # noqa: S311 not for secrets
    with LOG.open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(event) + "\n" for event in found)
    print(f"wrote {len(found):,} events to {LOG.name}")


def rides(chance: Random) -> Iterator[dict[str, object]]:
    """Yield two events for each ride; the price depends on the minutes."""
    moment = datetime(2026, 5, 4, 6, tzinfo=UTC)
    for ride in range(1, RIDES + 1):
        moment += timedelta(seconds=chance.randrange(13))
        bike, minutes = chance.randrange(1, 900), chance.randrange(3, 45)
        begun = {"ride": ride, "bike": bike, "station": chance.choice(STATIONS)}
        ended = {"ride": ride, "bike": bike, "station": chance.choice(STATIONS)}
        yield event("ride-begun", ride, moment, begun)
        price = {"minutes": minutes, "cents": 100 + 15 * minutes}
        yield event("ride-ended", ride, moment + timedelta(minutes=minutes), {**ended, **price})


def event(kind: str, ride: int, moment: datetime, data: dict[str, object]) -> dict[str, object]:
    """Return an event as a CloudEvent."""
    return {
        "specversion": "1.0",
        "id": f"{kind}-{ride}",
        "source": "urn:bikes",
        "subject": f"/bikes/{data['bike']}",
        "type": f"bikes.{kind}.v1",
        "time": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "data": data,
    }


if __name__ == "__main__":
    main()
