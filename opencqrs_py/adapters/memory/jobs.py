"""Jobs and their runs in memory: for tests, and for applications without a database."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from threading import Lock, RLock

from typing_extensions import override

from opencqrs_py.jobs.ports import JobBook, JobStore
from opencqrs_py.jobs.runs import JobRecord, JobRun, JobsView, LastRuns, RunPosition, RunStatus, last_runs
from opencqrs_py.processing.ports import Clock, SystemClock, UnitOfWork


class _Book(JobBook):
    def __init__(
        self,
        now: datetime,
        records: Mapping[str, JobRecord],
        runs: Mapping[str, JobRun],
        stored: Mapping[str, JobRun],
    ) -> None:
        self._now = now
        self._records = dict(records)
        self._runs = dict(runs)
        self._stored = stored
        self._known: set[str] = set()
        self.put_runs: dict[str, JobRun] = {}
        self.put_records: dict[str, JobRecord] = {}

    @property
    @override
    def now(self) -> datetime:
        return self._now

    @property
    @override
    def records(self) -> Mapping[str, JobRecord]:
        return {**self._records, **self.put_records}

    @property
    @override
    def runs(self) -> Sequence[JobRun]:
        known = {**self._runs, **self.put_runs}.values()
        return sorted((run for run in known if run.is_open), key=lambda run: (run.requested_at, run.id))

    @property
    @override
    def known(self) -> Collection[str]:
        return self._known

    @override
    def recorded(self, ids: Collection[str]) -> Collection[str]:
        return (self.put_runs.keys() & ids) | self._kept(ids)

    @override
    def put(self, run: JobRun) -> JobRun:
        self.put_runs[run.id] = run
        return run

    @override
    def put_record(self, record: JobRecord) -> None:
        self.put_records[record.name] = record

    def written_to(self, runs: dict[str, JobRun]) -> None:
        """Write the runs, except new ones that are already known and do not give way."""
        self._known.update(self._kept(self.put_runs.keys()) - self._runs.keys())
        runs.update({id_: run for id_, run in self.put_runs.items() if id_ not in self._known})

    def _kept(self, ids: Collection[str]) -> set[str]:
        return {id_ for id_ in self._stored.keys() & ids if not self._stored[id_].gives_way(self._now)}


class InMemoryJobStore(JobStore):
    """Keeps jobs and runs for as long as the process lives.

    Args:
        clock: The store's clock.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._records: dict[str, JobRecord] = {}
        self._runs: dict[str, JobRun] = {}
        self._lock = RLock()
        self._writing = Lock()  # held while decisions are written, but not while they are made: a look waits for none

    @override
    def prepare(self) -> None:
        """Do nothing."""

    @override
    @contextmanager
    def open(self, jobs: Collection[str]) -> Iterator[JobBook]:
        with self._lock:
            records = {name: self._records.get(name, JobRecord(name)) for name in jobs}
            runs = {run.id: run for run in self._own() if run.job in jobs and run.is_open}
            book = _Book(self._clock.now(), records, runs, self._runs)
            yield book
            with self._writing:
                self._write(book)

    @override
    def look(self, jobs: Collection[str] | None = None) -> JobsView:
        with self._writing:
            records = {name: each for name, each in self._records.items() if jobs is None or name in jobs}
            runs = [run for run in self._own() if run.is_open and (jobs is None or run.job in jobs)]
        ordered = tuple(sorted(runs, key=lambda run: (run.requested_at, run.id)))
        return JobsView(self._clock.now(), records, ordered)

    @override
    def request(self, run: JobRun, unit: UnitOfWork | None = None) -> bool:
        with self._lock:
            if run.id in self._runs:
                return False
            self._runs[run.id] = replace(run, requested_at=self._clock.now())
            return True

    @override
    def advance(self, run: JobRun, position: RunPosition, unit: UnitOfWork | None = None) -> bool:
        return self._changed(replace(run, position=position), "position", "done", "total")

    @override
    def report(self, run: JobRun) -> bool:
        return self._changed(run, "done", "total")

    @override
    def report_wait(self, run: JobRun, error: str, seconds: float) -> bool:
        with self._lock:
            known = self._runs.get(run.id)
            if known is None or known.cancelled_at is not None:
                return False
            until = self._clock.now() + timedelta(seconds=seconds)
            return self._changed(replace(run, error=error, waits_until=until), "error", "waits_until")

    @override
    def find(self, run: str) -> JobRun | None:
        with self._lock:
            return self._runs.get(run)

    @override
    def history(self, job: str | None = None, limit: int = 100) -> list[JobRun]:
        with self._lock:
            runs = [run for run in self._own() if job is None or run.job == job]
            return sorted(runs, key=lambda run: (run.requested_at, run.id), reverse=True)[:limit]

    @override
    def last_runs(self) -> dict[str, LastRuns]:
        with self._lock:
            return last_runs(self._own())

    @override
    def purge(self, job: str, before: datetime) -> int:
        with self._lock:
            last = self.last_runs().get(job)
            kept = () if last is None else (last.ended, last.outcome)
            old = [
                run.id
                for run in self._runs.values()
                if run.job == job and run.ended_at is not None and run.ended_at < before
                if run not in kept
            ]
            for each in old:
                del self._runs[each]
            return len(old)

    @override
    def spread(self, run: JobRun, children: Sequence[JobRun]) -> bool:
        with self._lock:
            has_it = self._changed(run, "done", "total")
            if has_it:
                self._runs.update({child.id: child for child in children})
            return has_it

    @override
    def take_children(self, run: JobRun, owner: str) -> list[JobRun] | None:
        with self._lock:
            if not self._changed(run, "done", "total"):
                return None
            children = sorted((each for each in self._runs.values() if each.parent == run.id), key=lambda each: each.id)
            taken = [replace(child, owner=owner, token=child.token + 1) for child in children]
            self._runs.update({child.id: child for child in taken})
            return taken

    @override
    def gather(self, run: JobRun, position: RunPosition, children: Sequence[JobRun] = ()) -> bool:
        with self._lock:
            if not self.advance(run, position):
                return False
            left = {child.id: child for child in children}
            self._runs = {id_: each for id_, each in self._runs.items() if each.parent != run.id or id_ in left}
            for child in children:
                self._changed(child, "position")
            return True

    @override
    def take_over(self, child: JobRun) -> JobRun | None:
        with self._lock:
            known = self._runs.get(child.id)
            if known is None or known.owner != child.owner:
                return None
            taken = self._runs[child.id] = replace(known, token=known.token + 1)
            return taken

    @override
    def is_outage(self, error: BaseException) -> bool:
        return False

    def _own(self) -> list[JobRun]:
        """Return the runs without their children; a copy first, as a look reads them while others may be added."""
        return [run for run in list(self._runs.values()) if not run.parent]

    def _write(self, book: _Book) -> None:
        self._records.update(book.records)
        book.written_to(self._runs)
        ended = {run.id for run in book.put_runs.values() if not run.is_open}
        self._runs = {id_: run for id_, run in self._runs.items() if run.parent not in ended}

    def _changed(self, run: JobRun, *names: str) -> bool:
        with self._lock:
            known = self._runs.get(run.id)
            if known is None or known.status is not RunStatus.RUNNING or known.token != run.token:
                return False
            self._runs[run.id] = replace(known, **{name: getattr(run, name) for name in names})
            return True
