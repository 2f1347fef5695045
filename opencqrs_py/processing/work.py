"""The work of one transaction, as handlers see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from opencqrs_py.errors import ProjectCodeError
from opencqrs_py.model.context import ProcessingContext
from opencqrs_py.model.event import Event
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.awaiting import finish
from opencqrs_py.processing.exceptions import raise_interrupt
from opencqrs_py.processing.ports import UnitOfWork


class AfterCommit:
    """Takes calls that are made once the transaction is committed; when it is rolled back, they are forgotten.

    A handler asks for it by annotation: ``after_commit(lambda: bell.ring())``. The calls are made in their order, on
    the thread of the handler, at most once: a crash right after the commit loses them. One that raises is reported
    and repeats nothing. What is awaitable is awaited. It belongs to its transaction: one that a handler has kept takes
    no calls any more.
    """

    def __init__(self) -> None:
        self._calls: list[Callable[[], object]] = []
        self._open = True

    def __call__(self, call: Callable[[], object]) -> None:
        """Remember ``call``.

        Raises:
            ProjectCodeError: OCQ-225, if the transaction is over: the call would never be made.
        """
        if not self._open:
            what = "AfterCommit was called when its transaction was over: the call would never be made"
            raise ProjectCodeError("OCQ-225", what, fix="ask for it in each handler that needs it, and keep it nowhere")
        self._calls.append(call)

    def close(self) -> None:
        """Take no more calls: the handlers are done, or what they did is rolled back."""
        self._open = False

    def run(self) -> list[BaseException]:
        """Make the calls; return what they raised."""
        errors: list[BaseException] = []
        self._open = True  # for calls that lead to further ones
        for call in self._calls:
            try:
                finish(call())
            except BaseException as error:  # committed is committed; the others are owed
                raise_interrupt(error)
                errors.append(error)
        self._open = False
        return errors


@dataclass(eq=False)
class Work:
    """One transaction and the circumstances in which handlers are called in it.

    Attributes:
        group: Processing group.
        partition: Partition that handles the events.
        unit: The transaction.
        failing: Position of an event that failed before, or ``None``.
        attempt: Number of this attempt of that event, from 1.
        calls_wait: Whether a handler has asked for ``after_commit``.
    """

    group: str
    partition: Partition
    unit: UnitOfWork
    failing: int | None = None
    attempt: int = 1
    calls_wait: bool = field(default=False, init=False)

    @cached_property
    def connection(self) -> Any:
        """The transaction's connection."""
        return self.unit.connection

    @cached_property
    def session(self) -> Any:
        """A session on the same connection."""
        return self.unit.session

    @cached_property
    def driver_connection(self) -> Any:
        """The connection of the database's driver, such as ``sqlite3.Connection``, below ``connection``."""
        return self.unit.connection.connection.driver_connection

    @cached_property
    def after_commit(self) -> AfterCommit:
        """Takes what is to be called after the commit."""
        self.calls_wait = True
        return AfterCommit()

    def close(self) -> None:
        """Take no more calls for after the commit; those that there are wait for it."""
        if self.calls_wait:
            self.after_commit.close()

    def committed(self) -> list[BaseException]:
        """Make the calls that wait for the commit; return what they raised."""
        return self.after_commit.run() if self.calls_wait else []

    def context(self, event: Event) -> ProcessingContext:
        """Return the circumstances of a call for ``event``."""
        attempt = self.attempt if event.position == self.failing else 1
        return ProcessingContext(self.group, self.partition, event.position, attempt)
