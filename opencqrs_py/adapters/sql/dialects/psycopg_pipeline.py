"""psycopg's pipeline mode for handlers that are unaware of it.

In pipeline mode a statement returns before its answer has come. psycopg leaves it to the program to know that:
``rowcount`` is -1, errors are raised by a later statement, and some statements are refused. So the connection of a
handler is in that mode only as long as it makes no visible difference. Plain statements that read or change rows, on a
cursor of the connection's own kind, are sent in it. Any other use of the connection, and any access to a result, waits
for all answers first. After an error nothing of the transaction is kept.

It uses parts of psycopg that are not public (``Connection._pipeline``, ``Cursor._maybe_prepare_gen``). Where they are
missing it is left out.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import lru_cache
from threading import get_ident
from typing import Any

import psycopg

from opencqrs_py.processing.pipelining import Pipeline, PipelineFailedError

_NAME = "opencqrs_pipeline"  # of the attribute of a connection
_PRIVATE = {
    psycopg.Cursor: ("_start_query", "_maybe_prepare_gen", "_convert_query", "_reset"),
    psycopg.Pipeline: ("_enter_gen", "_communicate_gen", "_exit_gen", "_exit"),
}
_SENT_TOGETHER = 32  # statements
# What reads or changes rows, and can neither end the transaction nor change the session.
_PLAIN = re.compile(r"\s*(?:insert|update|delete|merge|select|with|values)\b", re.IGNORECASE)


def open_pipeline(connection: Any) -> PsycopgPipeline | None:
    """Return a pipeline for the statements of a transaction, ``None`` where that is not possible."""
    factories = (getattr(connection, "cursor_factory", None), getattr(connection, "server_cursor_factory", None))
    usual = type(connection) is psycopg.Connection and factories == (psycopg.Cursor, psycopg.ServerCursor)
    if not usual or connection.autocommit or vars(connection).get("_pipeline") is not None:
        return None
    if not psycopg.Pipeline.is_supported() or not all(hasattr(cls, name) for cls in _PRIVATE for name in _PRIVATE[cls]):
        return None
    return PsycopgPipeline(connection)


class PsycopgPipeline(Pipeline):
    """The pipeline of one transaction. One thread uses it; what others send waits for all answers first."""

    def __init__(self, connection: Any) -> None:
        self.statements = self.waits = 0
        self._connection = connection
        self._pipeline = psycopg.Pipeline(connection)
        self._wait = connection.wait
        self._thread = self._reader = get_ident()
        self._is_on = self._failed = self._closed = False
        connection.cursor_factory = PipelinedCursor
        connection.server_cursor_factory = _ServerCursor
        connection.wait = self._wait_outside
        setattr(connection, _NAME, self)

    def takes(self, query: object) -> bool:
        """Return whether a statement may be sent without waiting for its answer."""
        if self._connection._pipeline is not None or get_ident() != self._thread:  # noqa: SLF001 a handler's own one
            return False
        return type(query) is str and _is_plain(query)

    def send(self, statement: Generator[Any, Any, Any]) -> None:
        """Send a statement with others, and read the answers that have arrived."""
        connection = self._connection
        with connection.lock:
            self._reader = get_ident()
            try:
                if not self._is_on:
                    self._wait(self._pipeline._enter_gen())  # noqa: SLF001
                    self._is_on = True
                connection._pipeline = self._pipeline  # noqa: SLF001 for as long as psycopg sends it
                self._wait(statement)
                self.statements += 1
                if self.statements % _SENT_TOGETHER == 0:
                    self._wait(self._pipeline._communicate_gen())  # noqa: SLF001
            except BaseException:
                self._failed = True
                raise
            finally:
                connection._pipeline = None  # noqa: SLF001

    def is_read(self) -> bool:
        """Return whether psycopg, or a row factory that it calls, is reading answers now: they need no wait."""
        pipeline = self._connection._pipeline  # noqa: SLF001
        return pipeline is not None and (pipeline is not self._pipeline or self._reader == get_ident())

    def arrive(self) -> None:
        """Wait for the answers to everything that was sent, since one of them is needed."""
        if self._is_on:
            self.waits += 1
            with self._connection.lock:
                self._leave()

    def settle(self) -> None:
        """Wait for all answers, and restore the connection's state."""
        try:
            with self._connection.lock:
                self._leave()
        except psycopg.Error as error:
            raise PipelineFailedError from error
        finally:
            self.close()
        if self._failed:
            raise PipelineFailedError

    def close(self) -> None:
        """Restore the connection's state; idempotent."""
        if self._closed:
            return
        self._closed = True
        with suppress(psycopg.Error), self._connection.lock:
            self._leave()
        self._connection.cursor_factory = psycopg.Cursor
        self._connection.server_cursor_factory = psycopg.ServerCursor
        for name in ("wait", _NAME):
            delattr(self._connection, name)

    def _wait_outside(self, statement: Generator[Any, Any, Any], *arguments: Any, **named: Any) -> Any:
        """Do as ``wait`` of the connection does, for statements of psycopg itself."""
        if self._is_on:
            self.waits += 1
            self._leave()
        return self._wait(statement, *arguments, **named)

    def _leave(self) -> None:
        """Wait for all answers and leave the mode; raises the first error that has come."""
        if not self._is_on:
            return
        self._is_on, self._reader = False, get_ident()
        error: BaseException | None = None
        other = self._connection._pipeline  # noqa: SLF001 one that begins now: a handler's own, or of many rows at once
        try:
            self._connection._pipeline = self._pipeline  # noqa: SLF001
            self._wait(self._pipeline._exit_gen())  # noqa: SLF001
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._failed = self._failed or error is not None
            self._connection._pipeline = other  # noqa: SLF001
            self._pipeline._exit(error)  # noqa: SLF001


class PipelinedCursor(psycopg.Cursor[Any]):
    """A cursor of a connection in a pipeline: each access to a result waits for it."""

    __slots__ = ()

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        """Send a statement; wait for its answer unless it is a plain one."""
        pipeline = vars(self._conn).get(_NAME)
        if pipeline is None or self._closed or not pipeline.takes(query):
            return super().execute(query, params, **options)
        pipeline.send(self._queued(query, params, **options))
        return self

    def _queued(
        self, query: str, params: Any, *, prepare: bool | None = None, binary: bool | None = None
    ) -> Generator[Any, Any, None]:
        """Do as ``_execute_gen`` of psycopg does, but for sending the statement at once."""
        yield from self._start_query(query)
        yield from self._maybe_prepare_gen(self._convert_query(query, params), prepare=prepare, binary=binary)
        self._last_query = query
        yield from self._conn._prepared.maintain_gen(self._conn)  # noqa: SLF001

    @property
    def description(self) -> Any:
        """As psycopg has it, after the wait; so are the next ones."""
        self._arrive()
        return super().description

    @property
    def rowcount(self) -> int:  # noqa: D102
        self._arrive()
        return super().rowcount

    @property
    def rownumber(self) -> int | None:  # noqa: D102
        self._arrive()
        return super().rownumber

    @property
    def statusmessage(self) -> str | None:  # noqa: D102
        self._arrive()
        return super().statusmessage

    def fetchone(self) -> Any:  # noqa: D102
        self._arrive()
        return super().fetchone()

    def fetchmany(self, size: int = 0) -> list[Any]:  # noqa: D102
        self._arrive()
        return super().fetchmany(size)

    def fetchall(self) -> list[Any]:  # noqa: D102
        self._arrive()
        return super().fetchall()

    def __next__(self) -> Any:
        self._arrive()
        return super().__next__()

    def scroll(self, value: int, mode: str = "relative") -> None:  # noqa: D102
        self._arrive()
        super().scroll(value, mode)

    def nextset(self) -> bool | None:  # noqa: D102
        self._arrive()
        return super().nextset()

    def set_result(self, index: int) -> Any:  # noqa: D102
        self._arrive()
        return super().set_result(index)

    def results(self) -> Iterator[Any]:  # noqa: D102
        self._arrive()
        return super().results()

    def stream(self, *arguments: Any, **options: Any) -> Iterator[Any]:  # noqa: D102
        self._arrive()
        return super().stream(*arguments, **options)

    def _arrive(self) -> None:
        pipeline = vars(self._conn).get(_NAME)
        if pipeline is not None and pipeline.is_read():
            return
        if self._closed:
            self._reset(reset_query=False)  # as psycopg does at the end, before what follows now
        elif pipeline is not None:
            pipeline.arrive()


class _ServerCursor(psycopg.ServerCursor[Any]):
    """A cursor on the server, which psycopg refuses in pipeline mode."""

    __slots__ = ()

    def execute(self, *arguments: Any, **options: Any) -> Any:
        pipeline = vars(self._conn).get(_NAME)
        if pipeline is not None:
            pipeline.arrive()
        return super().execute(*arguments, **options)


@lru_cache(maxsize=1_000)
def _is_plain(query: str) -> bool:
    """Return whether a text is one plain statement; the server takes several only if they are not pipelined."""
    return _PLAIN.match(query) is not None and ";" not in query.rstrip("; \n")
