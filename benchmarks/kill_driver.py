"""Kill the driver with SIGKILL at random moments, run on, and compare the read model with a plain computation.

    python benchmarks/kill_driver.py --engine spark --kills 5 --seed 7 [--log EVENTS.ndjson.gz] [--events 200000]

Without a log one is made up. Ends with exit code 1 and the difference when a single event is missing or doubled.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HANDLERS = """
from sqlalchemy import Connection, text
from opencqrs_py import Event, event_handling, on_start

@on_start("types")
@on_start("cases")
def tables(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS types (name TEXT PRIMARY KEY, n INTEGER NOT NULL)"))
    connection.execute(text("CREATE TABLE IF NOT EXISTS cases (name TEXT PRIMARY KEY, n INTEGER NOT NULL, "
                            "positions INTEGER NOT NULL)"))

TYPE = text("INSERT INTO types VALUES (:name, 1) ON CONFLICT (name) DO UPDATE SET n = n + 1")
CASE = text("INSERT INTO cases VALUES (:name, 1, :position) "
            "ON CONFLICT (name) DO UPDATE SET n = n + 1, positions = positions + :position")

@event_handling("types", types=["*"])
def count_types(event: Event, connection: Connection) -> None:
    connection.execute(TYPE, {"name": event.type})

@event_handling("cases", types=["*"])
def count_cases(event: Event, connection: Connection) -> None:
    name = "/".join(event.subject.split("/")[:3])
    connection.execute(CASE, {"name": name, "position": event.position})
"""

SETTINGS = """
opencqrs:
  event-store: {{url: "sqlite:///events.db"}}
  database: {{url: "sqlite:///read.db"}}
  spark: {{master: "local[2]"}}
  event-handling:
    standard: {{processing: {{engine: {engine}}}}}
    groups:
      cases: {{life-cycle: {{partitions: 4}}}}
"""


def main() -> int:
    """Run the soak and return the exit code."""
    options = _options()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="opencqrs-kills-") as folder:
        project = Path(folder)
        project.joinpath("handlers.py").write_text(HANDLERS)
        project.joinpath("application.yaml").write_text(SETTINGS.format(engine=options.engine))
        log = Path(options.log) if options.log else _made_up(project / "events.ndjson.gz", options.events, chance)
        _opencqrs(project, "events", "import", str(log)).wait()
        began = time.monotonic()
        kills = _run_and_kill(project, options.kills, chance)
        print(f"{kills} kills, done after {time.monotonic() - began:.1f} s")
        return _compare(project, log)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("spark", "thread"), default="spark")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", help="CloudEvents as NDJSON, .gz")
    parser.add_argument("--events", type=int, default=200_000, help="events to make up without a log")
    return parser.parse_args()


def _made_up(file: Path, count: int, chance: random.Random) -> Path:
    with gzip.open(file, "wt", compresslevel=1) as lines:
        for number in range(count):
            event = {
                "specversion": "1.0",
                "id": str(number),
                "source": "urn:made-up",
                "subject": f"/cases/{chance.randrange(count // 4 + 1)}/steps/{number % 3}",
                "type": f"made-up.{chance.choice('abcd')}.v1",
                "data": {"number": number},
            }
            lines.write(json.dumps(event) + "\n")
    return file


def _opencqrs(project: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "opencqrs_py", *arguments, "--project", str(project)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def _run_and_kill(project: Path, kills: int, chance: random.Random) -> int:
    """Kill a run once it has moved on by a random share of what is left; after the last kill let it end."""
    done = 0
    while done < kills:
        process = _opencqrs(project, "run", "--until-caught-up")
        goal = _position(project) + chance.uniform(0.1 / kills, 0.9 / kills) * _head(project)
        while process.poll() is None and _position(project) < goal:
            time.sleep(0.02)
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        done += 1
        print(f"  killed at {_position(project):,.0f}", flush=True)
    if _opencqrs(project, "run", "--until-caught-up").wait() != 0:
        print("the last run failed")
    return done


def _position(project: Path) -> float:
    try:
        return float(_one(project / "read.db", "SELECT avg(position) FROM opencqrs_progress") or 0)
    except sqlite3.Error:  # not there yet
        return 0.0


def _head(project: Path) -> int:
    return int(_one(project / "events.db", "SELECT max(position) FROM opencqrs_events"))


def _one(database: Path, statement: str) -> float:
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        value: float = connection.execute(statement).fetchone()[0]
        return value


def _compare(project: Path, log: Path) -> int:
    types: Counter[str] = Counter()
    cases: Counter[str] = Counter()
    positions: Counter[str] = Counter()
    with gzip.open(log) as lines:
        for position, line in enumerate(lines, 1):
            event = json.loads(line)
            name = "/".join(event["subject"].split("/")[:3])
            types[event["type"]] += 1
            cases[name] += 1
            positions[name] += position
    with sqlite3.connect(project / "read.db") as connection:
        found_types = dict(connection.execute("SELECT name, n FROM types").fetchall())
        found = {name: (n, p) for name, n, p in connection.execute("SELECT name, n, positions FROM cases")}
    wanted = {name: (cases[name], positions[name]) for name in cases}
    wrong = [name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)]
    if found_types != dict(types) or wrong:
        print(f"NOT equal: {len(wrong)} cases differ, types {found_types} instead of {dict(types)}")
        return 1
    print(f"equal: {sum(types.values()):,} events in {len(cases):,} cases, each applied exactly once")
    return 0


if __name__ == "__main__":
    sys.exit(main())
