"""Shared parts of the tests of the processing core: a container and an in-memory database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class FakeInjector:
    """Provides the given objects by exact type."""

    def __init__(self, **_nothing: object) -> None:
        self.provided: dict[object, Callable[[], Any]] = {}
        self.asked = 0

    def provides(self, wanted: object) -> bool:
        return isinstance(wanted, type) and wanted in self.provided

    def provide(self, wanted: object) -> Any:
        self.asked += 1
        return self.provided[wanted]()

    def stands_in(self, wanted: object) -> bool:
        return False


class FakeUnit:
    """What a handler writes appears in the database's rows when the transaction is committed."""

    def __init__(self) -> None:
        self.connection: list[Any] = []
        self.session = self.connection

    def flush(self) -> None:
        pass

    def ended_early(self, error: BaseException) -> None:
        return None


class FakeDatabase:
    """A database of one list; transactions are all or nothing.

    If ``fails_on_commit`` is set to an error, the next commit raises it; if ``away`` is set, no transaction opens.
    """

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.opened = 0
        self.committed = 0
        self.away: Exception | None = None
        self.fails_on_commit: BaseException | None = None

    @contextmanager
    def begin(self) -> Iterator[FakeUnit]:
        if self.away is not None:
            raise self.away
        self.opened += 1
        unit = FakeUnit()
        yield unit
        if self.fails_on_commit is not None:
            error, self.fails_on_commit = self.fails_on_commit, None
            raise error
        self.rows += unit.connection
        self.committed += 1

    def is_outage(self, error: BaseException) -> bool:
        return isinstance(error, ConnectionError)


@pytest.fixture
def injector() -> FakeInjector:
    return FakeInjector()


@pytest.fixture
def database() -> FakeDatabase:
    return FakeDatabase()


@pytest.fixture
def new_database() -> Callable[[], FakeDatabase]:
    return FakeDatabase


@pytest.fixture
def unit() -> FakeUnit:
    return FakeUnit()
