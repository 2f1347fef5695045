"""Jobs and their runs on a SQL database, beside the progress: what a job writes is committed with what is done."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection
from typing_extensions import override

from opencqrs_py.adapters.sql.connections import FetchedRows
from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.adapters.sql.dialects.faults import RESTORE
from opencqrs_py.adapters.sql.inbox_rows import milliseconds
from opencqrs_py.adapters.sql.job_rows import (
    RECORD_COLUMNS,
    RUN_COLUMNS,
    moment_of,
    position_of,
    position_text,
    record_of,
    record_row,
    run_of,
    run_row,
)
from opencqrs_py.adapters.sql.tables import JOB_RUNS, JOBS, TableMissingError, prepare
from opencqrs_py.adapters.sql.transactions import Unit
from opencqrs_py.errors import EventStoreError, JobError
from opencqrs_py.jobs.ports import JobBook, JobStore
from opencqrs_py.jobs.runs import (
    OUTCOMES,
    UNSTARTED,
    JobRecord,
    JobRun,
    JobsView,
    LastRuns,
    RunPosition,
    RunStatus,
    last_runs,
)
from opencqrs_py.processing.ports import UnitOfWork

_PATIENCE = 2.0  # seconds that a decision waits for others; they are short, and the caller tries again
_MOST_NAMED = 500  # ends of runs in a statement
_MOST_REMOVED = 1_000  # runs in a statement

# Runs, jobs, and the time, read by one statement: with two, the first result could be older.
_OF_JOB = {"job": "job", "due_ms": "next_ms", "cancelled_ms": "paused_ms", "details": "details"}
_LOOK = f"""
SELECT 'run' AS record, {{now}} AS now_ms, {", ".join(RUN_COLUMNS)} FROM {{runs}}
WHERE ended_ms IS NULL AND parent = '' AND {{those}}
UNION ALL
SELECT 'job', {{now}}, {", ".join(_OF_JOB.get(name, "NULL") for name in RUN_COLUMNS)} FROM {{jobs}} WHERE {{those}}
UNION ALL
SELECT 'now', {{now}}, {", ".join(["NULL"] * len(RUN_COLUMNS))}
"""  # noqa: S608 our own names, as below
_OPEN_RUNS = f"""
SELECT clock.now_ms, {", ".join(RUN_COLUMNS)} FROM (SELECT {{now}} AS now_ms) clock
LEFT JOIN {{runs}} ON ended_ms IS NULL AND parent = '' AND {{those}}
"""  # noqa: S608
_ADVANCE = """
UPDATE {runs} SET position = {mark}, done = {mark}, total = {mark}
WHERE run_id = {mark} AND token = {mark} AND status = 'running'
"""
_REPORT = """
UPDATE {runs} SET done = {mark}, total = {mark} WHERE run_id = {mark} AND token = {mark} AND status = 'running'
"""
_REPORT_WAIT = """
UPDATE {runs} SET details = {mark}
WHERE run_id = {mark} AND token = {mark} AND status = 'running' AND cancelled_ms IS NULL
"""  # no decision changes the details of a running run that was not asked to end
_LAST_ENDS = f"""
SELECT job, (SELECT max(ran_ms) FROM {{runs}} ran WHERE ran.job = known.job), (
    SELECT ran_ms FROM {{runs}} ran WHERE ran.job = known.job AND ran_ms IS NOT NULL
    AND status IN ({", ".join(f"'{each.value}'" for each in OUTCOMES)}) ORDER BY ran_ms DESC LIMIT 1
) FROM {{jobs}} known WHERE {{those}}
"""  # noqa: S608
_OLD = """
SELECT run_id FROM {runs} WHERE job = {mark} AND requested_ms < {mark} AND ended_ms < {mark}
AND run_id NOT IN ({mark}, {mark})
ORDER BY requested_ms LIMIT {most}
"""
_TAKE_CHILDREN = "UPDATE {runs} SET token = token + 1, owner = {mark} WHERE parent = {mark}"
_TAKE_OVER = "UPDATE {runs} SET token = token + 1 WHERE run_id = {mark} AND owner = {mark} AND status = 'running'"
_REMOVE_CHILDREN = "DELETE FROM {runs} WHERE parent = {mark}"
_REMOVE_AHEAD = f"""
DELETE FROM {{runs}} WHERE run_id = {{mark}} AND started_ms IS NULL AND requested_ms > {{mark}}
AND status IN ({", ".join(f"'{each.value}'" for each in UNSTARTED)})
"""  # noqa: S608
_DELETE = "DELETE FROM {{runs}} WHERE run_id IN ({marks})"
_INSERT_JOB = f"INSERT INTO {{jobs}} ({', '.join(RECORD_COLUMNS)}) VALUES ({{mark}}, NULL, NULL, {{mark}})"  # noqa: S608


class SqlJobStore(JobStore):
    """Jobs and runs in the tables ``opencqrs_jobs`` and ``opencqrs_job_runs``.

    A decision about runs of a job holds the row of the job, and writes only those columns of a run that it has changed:
    the owner of a run writes its position without that row. A run is taken from its owner by another token, which keeps
    the owner from committing anything more; the position is read again, under a lock, before the token is changed.

    Args:
        database: The database of the progress.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        dialect, prefix = database.dialect, database.prefix
        self._words = {
            "mark": dialect.mark,
            "now": dialect.wall_ms,
            "jobs": prefix + JOBS.name,
            "runs": prefix + JOB_RUNS.name,
            "most": str(_MOST_REMOVED),
        }
        self._isolation: str | None = None
        self._ready = False

    @override
    def prepare(self) -> None:
        if not self._ready:
            prepare(self._database, JOBS)
            prepare(self._database, JOB_RUNS)
            self._isolation = self._database.dialect.isolation_after_waits(self._database)
            self._ready = True

    @override
    @contextmanager
    def open(self, jobs: Collection[str]) -> Iterator[JobBook]:
        self.prepare()
        names = sorted(set(jobs))
        for _ in range(2):
            with self._writing(_PATIENCE) as connection, self._database.ending_what_stands(connection):
                records = self._held_records(connection, names)
                if len(records) == len(names):
                    book = _Book(self, connection, names, records)
                    yield book
                    book.write()
                    return
            self._add_records(set(names) - records.keys())
        what = f"the rows of the jobs {', '.join(names)} do not stay in {self._words['jobs']}"
        raise EventStoreError("OCQ-304", what, self._database.label, RESTORE)

    @override
    def look(self, jobs: Collection[str] | None = None) -> JobsView:
        names = None if jobs is None else sorted(set(jobs))
        rows = self._fetched(_LOOK, *((names or ()) * 2), those=self._those(names)) if names != [] else ()
        if not rows:
            ((now_ms,),) = self._database.fetch(self.text("SELECT {now}"))
            return JobsView(moment_of(now_ms))
        runs = [run_of(row[2:]) for row in rows if row[0] == "run"]
        found = (dict(zip(RUN_COLUMNS, row[2:], strict=True)) for row in rows if row[0] == "job")
        records = [record_of([each[name] for name in _OF_JOB]) for each in found]
        now = next(moment_of(row[1]) for row in rows if row[0] == "now")
        return JobsView(now, {record.name: record for record in records}, tuple(_in_order(runs)))

    @override
    def request(self, run: JobRun, unit: UnitOfWork | None = None) -> bool:
        self.prepare()
        connection = self._connection_of(unit)
        if connection is not None:
            with self._database.explained():
                return self.add(connection, run, by_clock=True)
        with self._writing(_PATIENCE) as own:
            return self.add(own, run, by_clock=True)

    @override
    def advance(self, run: JobRun, position: RunPosition, unit: UnitOfWork | None = None) -> bool:
        values = (position_text(position), run.done, run.total, run.id, run.token)
        if unit is None:
            with self._writing() as own:
                return self.send(own, _ADVANCE, *values) == 1
        connection = self._connection_of(unit)
        if connection is None:
            what = f"the transactions of job '{run.job}' are not on the database that records what of its runs is done"
            fix = "have it write to the database of database.url, or remove the transaction from its arguments"
            raise JobError("OCQ-670", what, self._database.label, fix)
        with self._database.explained():
            return self.send(connection, _ADVANCE, *values) == 1

    @override
    def report(self, run: JobRun) -> bool:
        with self._writing(_PATIENCE) as connection:
            return self.send(connection, _REPORT, run.done, run.total, run.id, run.token) == 1

    @override
    def report_wait(self, run: JobRun, error: str, seconds: float) -> bool:
        patience = min(seconds, _PATIENCE)
        with self._writing(patience) as connection:
            self.held(connection, ("token",), "runs", "run_id", [run.id], patience)
            now_ms = connection.exec_driver_sql(self.text("SELECT {now}")).scalar_one()
            waits = replace(run, error=error, waits_until=moment_of(now_ms) + timedelta(seconds=seconds))
            return self.send(connection, _REPORT_WAIT, run_row(waits)["details"], run.id, run.token) == 1

    @override
    def find(self, run: str) -> JobRun | None:
        rows = self._fetched(f"{_select()} WHERE run_id = {{mark}}", run)
        return run_of(rows[0]) if rows else None

    @override
    def history(self, job: str | None = None, limit: int = 100) -> list[JobRun]:
        those, values = ("", ()) if job is None else ("AND job = {mark}", (job,))
        ordered = f"{_select()} WHERE parent = '' {those} ORDER BY requested_ms DESC, run_id DESC LIMIT {{mark}}"
        return [run_of(row) for row in self._fetched(ordered, *values, limit)]

    @override
    def last_runs(self) -> dict[str, LastRuns]:
        return self._last_runs(None)

    @override
    def purge(self, job: str, before: datetime) -> int:
        last = self._last_runs([job]).get(job)
        kept = ("", "") if last is None else (last.ended.id, (last.outcome or last.ended).id)
        ms = milliseconds(before)
        removed = 0
        while old := [row[0] for row in self._fetched(_OLD, job, ms, ms, *kept)]:
            marks = ", ".join(["{mark}"] * len(old))
            with self._writing(_PATIENCE) as connection:
                removed += self.send(connection, _DELETE.format(marks=marks), *old)
        return removed

    @override
    def spread(self, run: JobRun, children: Sequence[JobRun]) -> bool:
        with self._writing() as connection:
            if self.send(connection, _REPORT, run.done, run.total, run.id, run.token) != 1:
                return False
            for child in children:
                self.add(connection, child)
            return True

    @override
    def take_children(self, run: JobRun, owner: str) -> list[JobRun] | None:
        with self._writing() as connection:
            if self.send(connection, _REPORT, run.done, run.total, run.id, run.token) != 1:
                return None
            self.send(connection, _TAKE_CHILDREN, owner, run.id)
            rows = connection.exec_driver_sql(self.text(f"{_select()} WHERE parent = {{mark}}"), (run.id,)).all()
        return sorted(map(run_of, rows), key=lambda child: child.id)

    @override
    def gather(self, run: JobRun, position: RunPosition, children: Sequence[JobRun] = ()) -> bool:
        with self._writing() as connection:
            if self.send(connection, _ADVANCE, position_text(position), run.done, run.total, run.id, run.token) != 1:
                return False
            those = "".join([" AND run_id <> {mark}"] * len(children))
            self.send(connection, f"{_REMOVE_CHILDREN}{those}", run.id, *(child.id for child in children))
            for child in children:
                text = position_text(child.position)
                self.send(connection, _ADVANCE, text, child.done, child.total, child.id, child.token)
            return True

    @override
    def take_over(self, child: JobRun) -> JobRun | None:
        with self._writing() as connection:
            if self.send(connection, _TAKE_OVER, child.id, child.owner) != 1:
                return None
            query = self.text(f"{_select()} WHERE run_id = {{mark}}")
            return run_of(connection.exec_driver_sql(query, (child.id,)).one())

    @override
    def is_outage(self, error: BaseException) -> bool:
        return self._database.is_outage(error)

    def text(self, statement: str, **more: str) -> str:
        """Return a statement as the database takes it."""
        return statement.format(**self._words, **more)

    def send(self, connection: Connection, statement: str, *values: str | int | None) -> int:
        """Send a statement, and return how many rows it has changed."""
        return connection.exec_driver_sql(self.text(statement), values).rowcount

    def read(self, connection: Connection, statement: str, names: Sequence[str]) -> Sequence[Sequence[Any]]:
        """Return the rows of a statement that is about some jobs."""
        return connection.exec_driver_sql(self.text(statement, those=self._those(names)), tuple(names)).all()

    def read_runs(self, connection: Connection, ids: Sequence[str]) -> list[JobRun]:
        """Return the recorded runs with some ids."""
        if not ids:
            return []
        select = self.text(f"{_select()} WHERE run_id IN ({', '.join(['{mark}'] * len(ids))})")
        return [run_of(row) for row in connection.exec_driver_sql(select, tuple(ids))]

    def add(self, connection: Connection, run: JobRun, *, by_clock: bool = False) -> bool:
        """Insert a run unless there is one with its id; return whether it is new."""
        row = run_row(run)
        marks = ", ".join("{now}" if by_clock and name == "requested_ms" else "{mark}" for name in RUN_COLUMNS)
        insert = self.text(f"INSERT INTO {{runs}} ({', '.join(RUN_COLUMNS)}) VALUES ({marks})")  # noqa: S608
        values = tuple(row[name] for name in RUN_COLUMNS if not (by_clock and name == "requested_ms"))
        return self._database.dialect.insert_unless_known(connection, insert, "run_id", values)

    def held(
        self,
        connection: Connection,
        columns: Iterable[str],
        table: str,
        key: str,
        ids: Sequence[str],
        seconds: float = _PATIENCE,
    ) -> Any:
        """Return the rows with some keys, which no other transaction can change until this one ends.

        Other transactions are waited for, in seconds.
        """
        where = f"{key} IN ({', '.join(['{mark}'] * len(ids))})" if ids else "1 = 0"
        query = self._database.dialect.held(", ".join(columns), f"{{{table}}}", where, key, seconds)
        return connection.exec_driver_sql(self.text(query), tuple(ids)).all()

    def _held_records(self, connection: Connection, names: Sequence[str]) -> dict[str, JobRecord]:
        rows = self.held(connection, RECORD_COLUMNS, "jobs", "job", names)
        return {record.name: record for record in map(record_of, rows)}

    def _add_records(self, names: Iterable[str]) -> None:
        """Insert the rows of new jobs in a separate transaction: two that hold other rows could deadlock."""
        insert = self.text(_INSERT_JOB)
        for name in sorted(names):
            row = record_row(JobRecord(name))
            with self._writing(_PATIENCE) as connection:
                known = (name, row["details"])
                self._database.dialect.insert_unless_known(connection, insert, "job", known)

    @contextmanager
    def _writing(self, patience: float | None = None) -> Iterator[Connection]:
        with (
            self._database.explained(),
            self._database.writing(patience=patience, isolation=self._isolation) as connection,
        ):
            yield connection

    def _fetched(self, statement: str, *values: Any, **words: str) -> FetchedRows:
        """Return the rows of a statement that waits for no lock; none if the tables do not exist yet."""
        try:
            return self._database.fetch(self.text(statement, **words), values)
        except TableMissingError:
            return ()

    def _last_runs(self, names: Sequence[str] | None) -> dict[str, LastRuns]:
        """Return the last runs of the named jobs, or of all."""
        found = self._fetched(_LAST_ENDS, *(names or ()), those=self._those(names))
        ends = sorted({(job, ms) for job, *times in found for ms in times if ms is not None})
        runs: list[JobRun] = []
        for start in range(0, len(ends), _MOST_NAMED):
            part = ends[start : start + _MOST_NAMED]
            those = " OR ".join(["(job = {mark} AND ran_ms = {mark})"] * len(part))
            rows = self._fetched(f"{_select()} WHERE {those}", *(value for end in part for value in end))
            runs += map(run_of, rows)
        return last_runs(runs)

    def _those(self, names: Sequence[str] | None) -> str:
        """Return the condition for jobs by their names."""
        if names is None:
            return "1 = 1"
        return f"job IN ({', '.join([self._database.dialect.mark] * len(names))})" if names else "1 = 0"

    def _connection_of(self, unit: UnitOfWork | None) -> Connection | None:
        """Return the connection of a transaction that is one of this database."""
        same = isinstance(unit, Unit) and unit.database.url == self._database.url
        return unit.connection if isinstance(unit, Unit) and same else None


class _Book(JobBook):
    """Jobs and runs in a transaction that holds the rows of the jobs."""

    def __init__(
        self, store: SqlJobStore, connection: Connection, names: Sequence[str], records: dict[str, JobRecord]
    ) -> None:
        self._store = store
        self._connection = connection
        rows = store.read(connection, _OPEN_RUNS, names)
        self._now = moment_of(rows[0][0])
        self._read_records = dict(records)
        self._records = dict(records)
        self._read = {run.id: run for run in (run_of(row[1:]) for row in rows if row[1] is not None)}
        self._runs = dict(self._read)
        self._known: set[str] = set()
        self._fenced: set[str] = set()

    @property
    @override
    def now(self) -> datetime:
        return self._now

    @property
    @override
    def records(self) -> Mapping[str, JobRecord]:
        return self._records

    @property
    @override
    def runs(self) -> Sequence[JobRun]:
        return _in_order(run for run in self._runs.values() if run.is_open)

    @property
    @override
    def known(self) -> Collection[str]:
        return self._known

    @override
    def recorded(self, ids: Collection[str]) -> Collection[str]:
        put = self._runs.keys() & ids
        runs = self._store.read_runs(self._connection, sorted(set(ids) - put))
        return put | {run.id for run in runs if not run.gives_way(self._now)}

    @override
    def put(self, run: JobRun) -> JobRun:
        before = self._read.get(run.id)
        if before is not None and run.id not in self._fenced and _is_taken(run, before):
            run = self._as_committed(run, before)
        self._runs[run.id] = run
        return run

    @override
    def put_record(self, record: JobRecord) -> None:
        self._records[record.name] = record

    def write(self) -> None:
        """Write what was put: for a run that was read, only the changes, so that what its owner writes stays."""
        for name, record in self._records.items():
            self._change("jobs", "job", record_row(self._read_records[name]), record_row(record))
        for id_, run in self._runs.items():
            if id_ in self._read:
                self._change("runs", "run_id", run_row(self._read[id_]), run_row(run))
                if run.started_at is not None and not run.is_open:
                    self._store.send(self._connection, _REMOVE_CHILDREN, id_)
            elif not (self._store.add(self._connection, run) or self._replaced(run)):
                self._known.add(id_)

    def _replaced(self, run: JobRun) -> bool:
        """Replace a record that gives way to a new run; return whether there was one."""
        removed = self._store.send(self._connection, _REMOVE_AHEAD, run.id, milliseconds(self._now))
        return removed == 1 and self._store.add(self._connection, run)

    def _as_committed(self, run: JobRun, before: JobRun) -> JobRun:
        """Return a run with what its owner has committed last: from now on it commits nothing."""
        columns = ("position", "done", "total")
        for position, done, total in self._store.held(self._connection, columns, "runs", "run_id", [run.id]):
            found = {"position": position_of(position), "done": done, "total": total}
            self._read[run.id] = replace(before, **found)
            self._fenced.add(run.id)
            return replace(run, **found)
        return run

    def _change(self, table: str, key: str, before: dict[str, Any], after: dict[str, Any]) -> None:
        changed = {name: value for name, value in after.items() if value != before[name]}
        if changed:
            sets = ", ".join(f"{name} = {{mark}}" for name in changed)
            update = f"UPDATE {{{table}}} SET {sets} WHERE {key} = {{mark}}"  # noqa: S608
            self._store.send(self._connection, update, *changed.values(), after[key])


def _is_taken(run: JobRun, before: JobRun) -> bool:
    """Return whether a run is taken from an owner that may still write, to be continued from its position."""
    moves = before.status is RunStatus.RUNNING and run.token != before.token and run.is_open
    return moves and run.position == before.position


def _in_order(runs: Iterable[JobRun]) -> list[JobRun]:
    return sorted(runs, key=lambda run: (run.requested_at, run.id))


def _select() -> str:
    return f"SELECT {', '.join(RUN_COLUMNS)} FROM {{runs}}"  # noqa: S608
