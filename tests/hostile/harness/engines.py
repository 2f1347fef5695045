"""Engines: run the groups of attacks once, until each is done, has failed, or keeps waiting."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock, Timer
from types import ModuleType
from typing import Any

from sqlalchemy import text

from harness.modules import SIZE, TYPE, Target
from harness.oracle import Found
from opencqrs_py import (
    Application,
    EventHandlingProcessor,
    ExponentialBackOff,
    Observer,
    PartitionKeyResolver,
    PerSubjectLevel,
    ProcessorOptions,
    SqlEventStore,
    SqlProgressTracker,
)
from opencqrs_py.adapters.sql import Database
from opencqrs_py.errors import ExplainedError, OpenCqrsError
from opencqrs_py.model import Event, Outcome, Partition, ProcessorState
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.processing.notices import Notice, line_of
from opencqrs_py.processing.recovery import Action

__all__ = ["append_log", "engine_settings", "found_of", "make_tables", "run_application", "run_by_hand", "written"]

_WAITS = 3  # unsuccessful retries after which a partition counts as waiting
_PATIENCE = 1_200.0  # seconds after which a run is taken to hang; a busy machine needs minutes for some groups on Spark
_SETTINGS = {
    "event-handling.standard.retry.initial-interval": "1ms",
    "event-handling.standard.retry.max-attempts": 2,
    "event-handling.standard.retry.on-exhausted": "stop",
    "event-handling.standard.fetch.initial-position": "tail",
}


class EnoughError(Exception):
    """All groups are done, have failed, or keep waiting, and at least one of them waits."""


class Watching(Observer):
    """Keeps the notifications about each group, and ends a run that would wait forever."""

    def __init__(self) -> None:
        self.told: dict[str, list[str]] = {}
        self.skipped: dict[str, list[int]] = {}
        self._open: set[tuple[str, Partition]] = set()
        self._waits: dict[tuple[str, Partition], int] = {}
        self._lock = Lock()

    def claimed(self, group: str, partition: Partition, position: int) -> None:
        with self._lock:
            self._open.add((group, partition))

    def advanced(self, group: str, partition: Partition, outcome: Outcome) -> None:
        if outcome.cursor.stored >= SIZE:
            self._settled(group, partition)

    def noticed(self, notice: Notice) -> None:
        told = self.told.setdefault(notice.group, [])
        told.append(line_of(notice))
        if notice.failure is not None:
            told.append(notice.failure.traceback)
        if notice.action is Action.SKIP and notice.failure is not None:
            self.skipped.setdefault(notice.group, []).append(notice.failure.position or 0)
        key = (notice.group, notice.partition)
        if notice.action is Action.WAIT:
            self._waits[key] = self._waits.get(key, 0) + 1
        if notice.action in (Action.STOP, Action.LEAVE) or self._waits.get(key, 0) >= _WAITS:
            self._settled(*key)

    def report(self, group: str) -> str:
        return "\n".join(self.told.get(group, ()))

    def _settled(self, group: str, partition: Partition) -> None:
        with self._lock:
            self._open.discard((group, partition))
            waiting = any(count >= _WAITS for count in self._waits.values())
        if waiting and not self._open:
            raise EnoughError


def append_log(url: str, schema: str = "") -> None:
    """Write the log."""
    with _closing(Database(url, schema)) as database:
        SqlEventStore(database).append(
            Event(
                0,
                f"e{n}",
                "urn:counted",
                f"/counted/{n}",
                TYPE,
                None,
                "application/json",
                f'{{"n": {n}, "tags": ["a", {{"deep": [{n}]}}]}}',
                '{"tenant": "t"}',
            )
            for n in range(1, SIZE + 1)
        )


def make_tables(target: Target) -> None:
    """Create the read model of a target, and whatever else its attack needs."""
    numbered = {
        "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "postgresql": "SERIAL PRIMARY KEY",
        "mariadb": "INTEGER PRIMARY KEY AUTO_INCREMENT",
    }[target.url.partition(":")[0]]
    statements = [
        f"CREATE TABLE {target.table} (number {numbered}, position INTEGER, what VARCHAR(200))",
        f"CREATE TABLE {target.table}_other (id INTEGER PRIMARY KEY)",
        f"INSERT INTO {target.table}_other VALUES (1)",
        *(statement.format(table=target.table) for statement in target.attack.setup),
    ]
    with _closing(target.opened()) as database, database.engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def written(target: Target) -> list[tuple[int, str]]:
    """Return the read model in the order in which it was written."""
    with _closing(target.opened()) as database, database.engine.connect() as connection:
        found = connection.execute(text(f"SELECT position, what FROM {target.table} ORDER BY number"))
        return [(position, what) for position, what in found]


def run_application(targets: Sequence[Target], engine: str) -> dict[str, Found]:
    """Run all targets as the groups of one application; return the state in which it left each group."""
    settings = engine_settings(targets, engine)
    watching = Watching()
    raised: BaseException | None = None
    failed = False
    application = None
    hung = Timer(_PATIENCE, lambda: application.stop() if application is not None else None)
    hung.start()
    try:
        application = Application(settings, [_imported(target) for target in targets], targets[0].folder)
        failed = application.run(observer=watching, until_caught_up=True).failed
    except EnoughError:
        failed = True
    except BaseException as error:  # any exception of an attack is to be judged
        raised = error
    finally:
        hung.cancel()
        with suppress(Exception):  # it may never have been made
            application.stop()
    return {target.group: _found(target, watching, raised, failed=failed) for target in targets}


def engine_settings(targets: Sequence[Target], engine: str) -> dict[str, Any]:
    """Return the settings of an application whose groups are the targets."""
    settings: dict[str, Any] = {"event-store.url": targets[0].url, **_SETTINGS}
    settings["event-handling.standard.processing.engine"] = engine
    if targets[0].schema:
        settings["database.schema"] = targets[0].schema
    for target in targets:
        settings |= _of_group(target)
    return settings


def run_by_hand(target: Target) -> Found:
    """Run a target's handlers by processors made by hand, on this thread; return the state in which they left it."""
    watching = Watching()
    database = target.opened()
    raised: BaseException | None = None
    try:
        module = _imported(target)
        for partition in range(target.attack.partitions):
            _step(_processor(target, module, database, watching, partition))
    except EnoughError:
        pass
    except BaseException as error:
        raised = error
    finally:
        database.close()
    return _found(target, watching, raised, failed=True)


def _processor(
    target: Target, module: ModuleType, database: Database, watching: Watching, partition: int
) -> EventHandlingProcessor:
    settings = target.attack.settings
    options = ProcessorOptions(
        on_exhausted=OnExhausted(settings.get("retry.on-exhausted", "stop")),
        interceptors=getattr(module, "INTERCEPTORS", ()),
        observer=watching,
    )
    return EventHandlingProcessor(
        partition,
        "/",
        True,  # noqa: FBT003 recursive
        SqlEventStore(database),
        SqlProgressTracker(database),
        getattr(module, "RESOLVER", PerSubjectLevel(2)),
        PartitionKeyResolver(target.attack.partitions),
        module.BY_HAND,
        ExponentialBackOff(initial=0.001, max_attempts=int(str(settings.get("retry.max-attempts", 2)))),
        options=options,
    )


def _step(processor: EventHandlingProcessor) -> None:
    try:
        while (wait := processor.step()) is not None:
            status = processor.status()
            if status is None or status.state in (ProcessorState.FAILED, ProcessorState.STOPPED):
                break
            time.sleep(wait)
    finally:
        processor.stop()


def _of_group(target: Target) -> dict[str, object]:
    settings = {**target.attack.settings, "life-cycle.partitions": target.attack.partitions}
    return {f"event-handling.groups.{target.group}.{name}": value for name, value in settings.items()}


def _imported(target: Target) -> ModuleType:
    with _importable(target.folder):
        sys.modules.pop(target.module, None)
        return importlib.import_module(target.module)


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    importlib.invalidate_caches()
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def found_of(target: Target) -> Found:
    """Return the state that a run in another process has left."""
    return _found(target, Watching(), None, failed=False)


def _found(target: Target, watching: Watching, raised: BaseException | None, *, failed: bool) -> Found:
    with _closing(target.opened()) as database:
        mine = [status for status in SqlProgressTracker(database).statuses() if status.group == target.group]
    return Found(
        rows=written(target),
        stored=min((status.position for status in mine), default=0),
        states=tuple(status.state.value for status in mine),
        errors=tuple(status.error for status in mine if status.error),
        report="\n".join([watching.report(target.group), *(status.error for status in mine)]),
        failed=failed,
        raised=raised,
        refusal=isinstance(raised, ExplainedError | OpenCqrsError),
        skipped=tuple(watching.skipped.get(target.group, ())),
    )


@contextmanager
def _closing(database: Database) -> Iterator[Database]:
    try:
        yield database
    finally:
        database.close()
