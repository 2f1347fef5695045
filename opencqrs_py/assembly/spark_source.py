"""``format("opencqrs")`` for the user's own Spark session."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from urllib.parse import quote

from opencqrs_py.assembly.stores import is_in_files, open_event_store, refuse_all_but_sql
from opencqrs_py.engines.spark.source.source import EventLogSource, Session
from opencqrs_py.errors import EngineError
from opencqrs_py.model.mapping import TableMapping
from opencqrs_py.processing.ports import EventSource

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_TOKEN = "OPENCQRS__EVENT_STORE__API_TOKEN"  # noqa: S105 the variable of the setting event-store.api-token
_RANGES_PER_TASK_SLOT = 4  # so that slots stay busy when some ranges hold more than others


class EventStoreSource(EventLogSource):
    """Event stores as a Spark data source: every store that a project can have."""

    @staticmethod
    def open_source(url: str, mapping: TableMapping | None = None) -> EventSource:
        """Open the event store, once per process, URL and mapping."""
        return _opened(url, mapping)


def register_data_source(spark: Session, *, push_filters: bool = False) -> None:
    """Make ``spark.read.format("opencqrs")`` and ``spark.readStream.format("opencqrs")`` known to a session.

    The log is read in four ranges for each task that the session can run at once (``spark.default.parallelism``),
    unless the option ``ranges`` sets another number.

    Args:
        spark: The session. Its executors need this package installed.
        push_filters: Whether the store checks what it can of a query's WHERE, besides what the options say. Only for
            sessions in which each data frame that ``load()`` returns is used in one query: with Spark 4.3 all queries
            of a data frame read what the last one was narrowed to, and so find too little.
    """
    context = getattr(spark, "sparkContext", None)
    slots = EventLogSource.ranges // _RANGES_PER_TASK_SLOT if context is None else context.defaultParallelism
    pushed = push_filters  # another name: what a class body defines, it sees nowhere else

    class Registered(EventStoreSource):
        """The data source as it suits the session; sent to Spark's workers by value."""

        ranges = _RANGES_PER_TASK_SLOT * slots
        push_filters = pushed

    if push_filters:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(Registered)


@cache
def _opened(url: str, mapping: TableMapping | None) -> EventSource:
    located = _with_variables(url)
    _refuse_missing_file(located)
    if mapping is not None:
        refuse_all_but_sql(located, mapping, 'format("opencqrs")')
    return open_event_store(located, os.environ.get(_TOKEN, ""), mapping=mapping, creates=False)


def _with_variables(url: str) -> str:
    """Fill in ``${NAME}`` from the environment of this process, so that a password stays out of options."""

    def value_of(found: re.Match[str]) -> str:
        name = found[1]
        if name not in os.environ:
            what = f"the option 'url' needs the environment variable {name}, which is not set"
            fix = f"set it before Spark starts; for the executors of a cluster also set spark.executorEnv.{name}"
            raise EngineError("OCQ-408", what, 'format("opencqrs")', fix)
        return quote(os.environ[name], safe="")

    return _VARIABLE.sub(value_of, url)


def _refuse_missing_file(url: str) -> None:
    """Check that the file of a database exists: SQLite would create an empty one."""
    scheme, _, path = url.partition(":///")
    path = path.partition("?")[0]
    scheme = scheme.removesuffix("://")
    if ":" in scheme or not is_in_files(url) or path.startswith("file:"):
        return
    if path in ("", ":memory:"):
        what = "the option 'url' names an in-memory database, which only the process that created it can see"
        raise EngineError("OCQ-409", what, 'format("opencqrs")', f"name a file: {scheme}:////path/events.db")
    file = Path(path).absolute()
    if not file.is_file():
        what = f"the option 'url' names the file {file}, which does not exist"
        fix = f"write its full path, {scheme}:////path/events.db; a relative path starts at the folder of the program"
        raise EngineError("OCQ-409", what, 'format("opencqrs")', fix)
