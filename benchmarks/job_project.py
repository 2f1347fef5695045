"""The project that the soak of jobs runs, and the checks that its tables must pass however often its processes end.

Not a benchmark itself. Each commit of a job includes a count or a mark, so the checks detect a run that is lost,
duplicated or concurrent with a run that it excludes. ``done`` counts how often each item of each run was committed.
``marks`` records the commits of runs that must not overlap, in the order of the commits. A process that resumes after
another one has taken over its run may still be executing a function, but must not commit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from soaking import Folder, named
from sqlalchemy import inspect, text

from opencqrs_py.adapters.processes import has_ended
from opencqrs_py.adapters.sql import Database, SqlControlStore, SqlJobStore
from opencqrs_py.jobs.runs import JobRun, RunStatus
from opencqrs_py.model.job import Trigger

__all__ = ["JobProject"]

ITEMS = 30
"""Rows of the table that jobs with an input process."""

PAGE = 7

DEATHS = 3
"""Processes that must end during a run before it fails."""

JOBS = '''
import time
from random import uniform

from opencqrs_py import JobContext, JobPage, job
from sqlalchemy import Connection, Select, column, select, table, text

# Update first, and insert if no row was updated: every database supports that.
AGAIN = text("UPDATE done SET times = times + 1 WHERE run = :run AND item = :item")
DONE = text("INSERT INTO done (run, item, job, times) VALUES (:run, :item, :job, 1)")
NEXT = text("UPDATE counters SET value = value + 1 WHERE name = :name")
MARK = text("""
    INSERT INTO marks (family, number, run, step) SELECT name, value, :run, :step FROM counters WHERE name = :name
""")


def note(connection: Connection, context: JobContext, item: int | str) -> None:
    row = {"run": context.run, "item": str(item), "job": context.job}
    if connection.execute(AGAIN, row).rowcount == 0:
        connection.execute(DONE, row)


def mark(connection: Connection, context: JobContext, family: str) -> None:
    """Record an item, and mark the commit: the counter's row is locked until then, so numbers are in commit order."""
    note(connection, context, context.id)
    connection.execute(NEXT, {"name": family})
    connection.execute(MARK, {"name": family, "run": context.run, "step": context.id})


def steps(count: int, shortest: float, longest: float):
    """Return an input of ``count`` ids, each of which takes some time outside the transaction."""

    def after(page: JobPage) -> list[int]:
        following = (page.after or 0) + 1
        if following > count:
            return []
        time.sleep(uniform(shortest, longest))
        return [following]

    return after


@job("tick")
def tick(context: JobContext, connection: Connection) -> None:
    note(connection, context, "")


@job("each-tick")
def each_tick(context: JobContext, connection: Connection) -> None:
    note(connection, context, "")


@job("after")
def after(context: JobContext, connection: Connection) -> None:
    note(connection, context, "")


@job("lone", input=steps(3, 0.07, 0.33))
def lone(context: JobContext, connection: Connection) -> None:
    mark(connection, context, "lone")


@job("cancel", input=steps(6, 0.1, 0.6))
def cancel(context: JobContext, connection: Connection) -> None:
    mark(connection, context, "cancel")


@job("pair-a", input=steps(3, 0.05, 0.4))
def pair_a(context: JobContext, connection: Connection) -> None:
    mark(connection, context, "pair")


@job("pair-b", input=steps(3, 0.05, 0.4))
def pair_b(context: JobContext, connection: Connection) -> None:
    mark(connection, context, "pair")


def all_items() -> Select:
    return select(column("id")).select_from(table("items"))


@job("pages", input=all_items)
def pages(context: JobContext, connection: Connection) -> None:
    for each in context.ids:
        note(connection, context, each)


@job("items", input=all_items)
def items(context: JobContext, connection: Connection) -> None:
    note(connection, context, context.id)
    if context.attempt == 1 and context.id % 9 == 0:
        raise ValueError("not yet")


@job("events")
def events(context: JobContext, connection: Connection) -> None:
    for each in context.ids:
        note(connection, context, each)
'''

SETTINGS = """
opencqrs:
  event-store: {{url: "{store}"}}
  database: {{url: "{database}"}}
  jobs:
    standard:
      history: {{keep: 1d}}
      retry: {{initial-interval: 100ms, max-interval: 500ms, max-attempts: infinite}}
    tick: {{triggers: {{fixed-rate: {rate}s}}}}
    each-tick: {{misfire: catch-up, overlap: queue, triggers: {{fixed-rate: {catch_up}s}}}}
    after: {{triggers: {{fixed-delay: 700ms}}}}
    lone: {{limit: 1, transaction: item, triggers: {{fixed-rate: 900ms}}}}
    cancel: {{limit: 1, transaction: item, overlap: cancel, cancel-grace: 2s, triggers: {{fixed-rate: 1700ms}}}}
    pair-a: {{limit: 1, transaction: item, overlap: queue, exclusive-with: [pair-b], triggers: {{fixed-rate: 2100ms}}}}
    pair-b: {{limit: 1, transaction: item, triggers: {{cron: "*/2 * * * * *"}}}}
    pages: {{limit: {page}, triggers: {{fixed-rate: 2300ms}}}}
    items: {{limit: {page}, transaction: item, triggers: {{fixed-rate: 2900ms}}}}
    events: {{limit: {page}, triggers: {{events: {{types: ["made-up.*"], ids: id}}}}}}
"""

TABLES = (
    "CREATE TABLE done (run VARCHAR(200) NOT NULL, item VARCHAR(60) NOT NULL, job VARCHAR(60) NOT NULL, "
    "times BIGINT NOT NULL, PRIMARY KEY (run, item))",
    "CREATE TABLE counters (name VARCHAR(60) PRIMARY KEY, value BIGINT NOT NULL)",
    "CREATE TABLE marks (family VARCHAR(60) NOT NULL, number BIGINT NOT NULL, run VARCHAR(200) NOT NULL, "
    "step BIGINT NOT NULL, PRIMARY KEY (family, number))",
    "CREATE TABLE items (id BIGINT PRIMARY KEY)",
    *(f"INSERT INTO counters VALUES ('{name}', 0)" for name in ("lone", "cancel", "pair")),
    *(f"INSERT INTO items VALUES ({number + 1})" for number in range(ITEMS)),
)

CLAIMED = "SELECT count(*) FROM opencqrs_progress WHERE group_name = 'job:events'"

FAMILIES = {"pair-a": "pair", "pair-b": "pair"}
"""Jobs that exclude each other. For all other jobs, two runs of one job must not overlap."""

SERIES = {"lone": 0.9, "cancel": 1.7, "pair-a": 2.1, "pair-b": 2.0, "pages": 2.3, "items": 2.9}
"""Seconds between two ticks, for jobs whose rate is not an option of the soak."""

STEPS = {"lone": 3, "cancel": 6, "pair-a": 3, "pair-b": 3, "pages": ITEMS, "items": ITEMS}
"""Number of items in a run."""

ONE = ("tick", "each-tick", "after")
"""Jobs that commit once for each run."""

DELAY = 0.7
"""Seconds from the end of a run of ``after`` to the next tick."""


class JobProject(Folder):
    """A project folder with jobs, and queries for what its processes have done.

    Args:
        folder: An empty folder.
        store: URL of the event store.
        database: URL of the database.
        rate: Seconds between two ticks of ``tick``; those of ``each-tick`` are twice as far apart.
    """

    def __init__(self, folder: Path, store: str, database: str, rate: float) -> None:
        super().__init__(folder)
        self.store_url, self.url, self.rate = store, database, rate
        self.series = SERIES | {"tick": rate, "each-tick": 2 * rate}
        folder.joinpath("soaked_jobs.py").write_text(JOBS)
        settings = {"store": store, "database": database, "rate": rate, "catch_up": 2 * rate, "page": PAGE}
        folder.joinpath("application.yaml").write_text(SETTINGS.format(**settings))
        self.database = Database(database)
        self.store = SqlJobStore(self.database)
        control = self.database.for_control()
        assert control is not None
        self.control = SqlControlStore(control)

    def create(self) -> None:
        """Create the tables of the jobs."""
        with self.database.writing() as connection:
            for statement in TABLES:
                connection.execute(text(statement))

    def close(self) -> None:
        """Close the connections."""
        self.control.close()
        self.database.close()

    def nodes(self) -> dict[str, int]:
        """Return the live nodes that run jobs, each with its process id."""
        alive = self.control.view().without(has_ended).alive
        return {id_: node.process.pid for id_, node in alive.items() if node.jobs}

    def owned(self, node: str = "") -> list[JobRun]:
        """Return the runs that some node owns, or those of one node."""
        return [run for run in self.store.look().runs if (run.owner == node if node else run.owner)]

    def last_tick(self) -> datetime | None:
        """Return when the last run of ``tick`` succeeded, by the database's clock; ``None`` if none has."""
        done = (run.ended_at for run in self.store.history("tick", 50) if run.status is RunStatus.SUCCEEDED)
        return max(filter(None, done), default=None)

    def noted(self) -> dict[str, int]:
        """Return the ids of events whose runs have committed, and how often."""
        rows = self._rows("SELECT item, sum(times) FROM done WHERE job = 'events' GROUP BY item")
        return {str(item): int(times) for item, times in rows}

    def succeeded(self, job: str) -> int:
        """Return how many of the newest runs of a job have succeeded."""
        return sum(run.status is RunStatus.SUCCEEDED for run in self.store.history(job, 50))

    def is_reading(self) -> bool:
        """Return whether a process reads the events that start runs."""
        with self.database.reading() as connection:
            claimed = inspect(connection).has_table("opencqrs_progress") and connection.execute(text(CLAIMED)).scalar()
        return bool(claimed)

    def longest_pause(self) -> float:
        """Return the longest time between two successful runs of ``tick``, in seconds."""
        done = (run.ended_at for run in self._history() if run.job == "tick" and run.status is RunStatus.SUCCEEDED)
        pauses = (later - sooner for sooner, later in pairwise(sorted(filter(None, done))))
        return max(pauses, default=timedelta()).total_seconds()

    def counts(self) -> str:
        """Return the number of runs by status, in one line."""
        found: defaultdict[str, int] = defaultdict(int)
        for run in self._history():
            found[run.status.value] += 1
        return ", ".join(f"{count:,} {name}" for name, count in sorted(found.items()))

    def differences(self, events: Iterable[str]) -> list[str]:
        """Return what is wrong after all processes have ended; empty if nothing is.

        Args:
            events: Ids of all events that were appended.
        """
        runs = self._history()
        return [
            *self._owned_at_the_end(),
            *self._wrong_series(runs),
            *self._wrong_after(runs),
            *_wrong_outcomes(runs),
            *_overlapping(runs),
            *self._wrong_commits(runs),
            *self._wrong_marks(),
            *self._wrong_events(set(events)),
        ]

    def _owned_at_the_end(self) -> Iterator[str]:
        left = (run for run in self.store.look().runs if run.owner or run.status is RunStatus.RUNNING)
        yield from named("running, or owned, though all processes have ended", [run.id for run in left])

    def _wrong_series(self, runs: Sequence[JobRun]) -> Iterator[str]:
        """Yield gaps between the ticks of a schedule, including the next tick."""
        records = self.store.look().records
        for job, seconds in self.series.items():
            ticks = sorted(
                (run.scheduled_at, run.ticks) for run in runs if run.job == job and run.scheduled_at is not None
            )
            ended = records[job].next_tick if job in records else None
            if not ticks or ended is None:
                yield f"{job} has {len(ticks)} ticks, and its next one is at {ended}"
                continue
            gaps = [
                f"{later.isoformat()}, {(later - sooner).total_seconds():g} s after the one before"
                for (sooner, _), (later, count) in pairwise([*ticks, (ended, 1)])
                if abs((later - sooner).total_seconds() - seconds * count) > 0.0015
            ]
            yield from named(f"ticks of {job} that do not follow each other every {seconds:g} s", gaps)

    def _wrong_after(self, runs: Sequence[JobRun]) -> Iterator[str]:
        """Yield what is wrong with the job whose delay begins at the end of the previous run."""
        ticks = sorted((run.scheduled_at, run) for run in runs if run.job == "after" and run.scheduled_at is not None)
        early = [
            f"{later.id}, and {sooner.id} ended at {sooner.ended_at}"
            for (_, sooner), (at, later) in pairwise(ticks)
            if sooner.ended_at is None or at < sooner.ended_at + timedelta(seconds=DELAY - 0.001)
        ]
        yield from named("ticks before the end of the run before and its delay", early)
        is_open = any(run.is_open for _, run in ticks)
        record = self.store.look(["after"]).records.get("after")
        if not ticks or (not is_open and (record is None or record.next_tick is None)):
            yield f"after has {len(ticks)} ticks, no run that has not ended, and no next tick"

    def _wrong_commits(self, runs: Sequence[JobRun]) -> Iterator[str]:
        items: defaultdict[str, list[str]] = defaultdict(list)
        again = []
        for run, item, times in self._rows("SELECT run, item, times FROM done"):
            items[run].append(item)
            if times != 1:
                again.append(f"{run} {item} ({times} times)")
        yield from named("committed more than once", again)
        yield from named("committed by a run that is not recorded", items.keys() - {run.id for run in runs})
        never = (RunStatus.SKIPPED, RunStatus.COALESCED, RunStatus.QUEUED)
        yield from named(
            "committed, but never begun", [run.id for run in runs if run.id in items and run.status in never]
        )
        for run in runs:
            if run.status is RunStatus.SUCCEEDED and run.job != "events":
                wanted = 1 if run.job in ONE else STEPS[run.job]
                if len(items[run.id]) != wanted or run.position.items != (0 if run.job in ONE else wanted):
                    yield (
                        f"{run.id} has succeeded with {len(items[run.id])} of {wanted} items committed, "
                        f"{run.position.items} recorded"
                    )

    def _wrong_marks(self) -> Iterator[str]:
        """Yield runs that have committed during a run that excludes them."""
        families: defaultdict[str, list[Any]] = defaultdict(list)
        for row in self._rows("SELECT family, run, step FROM marks ORDER BY family, number"):
            families[row.family].append(row)
        for family, marks in families.items():
            beside, seen = [], set()
            for before, row in pairwise([None, *marks]):
                if before is None or before.run != row.run:
                    if row.run in seen:
                        beside.append(f"{row.run} after {before.run}")
                    seen.add(row.run)
                elif row.step <= before.step:
                    beside.append(f"{row.run}, step {row.step} after {before.step}")
            yield from named(f"runs of {family} that have overlapped", beside)

    def _wrong_events(self, wanted: set[str]) -> Iterator[str]:
        found = self.noted()
        yield from named("events without a run", wanted - found.keys())
        yield from named("events that are not in the log", found.keys() - wanted)
        yield from named("events of several runs", [id_ for id_, times in found.items() if times != 1])

    def _history(self) -> list[JobRun]:
        return self.store.history(limit=10_000_000)

    def _rows(self, statement: str) -> list[Any]:
        with self.database.reading() as connection:
            return list(connection.execute(text(statement)).all())


def _wrong_outcomes(runs: Sequence[JobRun]) -> Iterator[str]:
    """Yield runs without an explained outcome, or that should have succeeded."""
    known = {run.id: run for run in runs}
    outcomes: defaultdict[str, list[str]] = defaultdict(list)
    for run in runs:
        if fault := _fault_of(run, known.get(run.into)):
            outcomes[fault].append(f"{run.id} ({run.error or run.reason or run.into})")
    for what, which in outcomes.items():
        yield from named(what, which)


def _fault_of(run: JobRun, into: JobRun | None) -> str:
    """Return what is wrong with the outcome of a run; empty if nothing is."""
    fault = ""
    match run.status:
        case RunStatus.COALESCED if into is None or into.job != run.job:
            fault = "coalesced into no run of the job"
        case RunStatus.COALESCED if into.started_at is not None and _moment(into.started_at) < _moment(run.ended_at):
            fault = "coalesced into a run that had begun before"
        case RunStatus.SKIPPED if run.trigger is not Trigger.SCHEDULE or not run.reason:
            fault = "skipped without a reason, or for an event"
        case RunStatus.SKIPPED | RunStatus.COALESCED if run.job == "each-tick":
            fault = "left out, though each tick has a run"
        case RunStatus.FAILED if run.deaths < DEATHS:
            fault = "failed"
        case RunStatus.CANCELLED if run.job != "cancel":
            fault = "cancelled"
    return fault


def _moment(at: datetime | None) -> float:
    return at.timestamp() if at is not None else 0.0


def _overlapping(runs: Sequence[JobRun]) -> Iterator[str]:
    """Yield runs that, by their records, began before another one had ended."""
    families: defaultdict[str, list[tuple[datetime, datetime | None, str]]] = defaultdict(list)
    for run in runs:
        if run.started_at is not None:
            families[FAMILIES.get(run.job, run.job)].append((run.started_at, run.ended_at, run.id))
    for family, spans in families.items():
        spans.sort(key=lambda span: (span[0], span[1] is None, span[1] or span[0]))
        beside = [
            f"{later[2]} began at {later[0].time()}, {sooner[2]} ended at {sooner[1] and sooner[1].time()}"
            for sooner, later in pairwise(spans)
            if sooner[1] is None or later[0] < sooner[1]
        ]
        yield from named(f"runs of {family} that were begun beside another one", beside)
