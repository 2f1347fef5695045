"""Properties that are computed once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

import pytest
from sqlalchemy import Engine

from opencqrs_py import Application
from opencqrs_py.adapters.sql import Database
from opencqrs_py.assembly import container
from opencqrs_py.model.properties import locked_cached_property

SECONDS = 60
SOON = 0.1
"""How long the first thread waits for another one to do the same, which must not come."""


class Slow:
    def __init__(self) -> None:
        self.made: list[object] = []
        self.again = Event()

    @locked_cached_property
    def value(self) -> object:
        """Something."""
        self.made.append(object())
        if len(self.made) > 1:
            self.again.set()
        self.again.wait(SOON)
        return self.made[-1]


def at_once(ask: object, threads: int = 4) -> list[object]:
    """Return what several threads get when they call concurrently."""
    ready = Barrier(threads)

    def asked(_number: int) -> object:
        ready.wait(SECONDS)
        return ask()  # type: ignore[operator]

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(asked, range(threads), timeout=SECONDS))


def test_concurrent_threads_get_the_same_value() -> None:
    slow = Slow()
    found = at_once(lambda: slow.value)
    assert len(slow.made) == 1
    assert set(map(id, found)) == {id(slow.made[0])}


def test_a_property_is_computed_once_per_instance_and_keeps_its_docstring() -> None:
    one, other = Slow(), Slow()
    assert one.value is one.value
    assert one.value is not other.value
    assert Slow.value.__doc__ == "Something."


def test_a_failed_computation_is_tried_again() -> None:
    class Failing:
        count = 0

        @locked_cached_property
        def value(self) -> int:
            self.count += 1
            if self.count == 1:
                raise ValueError
            return self.count

    failing = Failing()
    with pytest.raises(ValueError, match=r"^$"):
        _ = failing.value
    assert (failing.value, failing.value) == (2, 2)


@pytest.mark.parametrize("url", ["sqlite://", "postgresql://user@nowhere/test"])
def test_a_database_has_one_engine_however_many_threads_use_it_first(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    database, made, again = Database(url), list[Engine](), Event()
    make = database.dialect.engine

    def slowly(given: object) -> Engine:
        made.append(make(given))  # type: ignore[arg-type]
        if len(made) > 1:
            again.set()
        again.wait(SOON)
        return made[-1]

    monkeypatch.setattr(database.dialect, "engine", slowly)
    found = at_once(lambda: database.engine)
    assert len(made) == 1
    assert set(map(id, found)) == {id(made[0])}
    database.close()


def test_an_application_has_one_container_however_many_threads_use_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assemble, made, again = container.assemble, list[object](), Event()

    def slowly(*given: object) -> object:
        made.append(assemble(*given))  # type: ignore[arg-type]
        if len(made) > 1:
            again.set()
        again.wait(SOON)
        return made[-1]

    monkeypatch.setattr(container, "assemble", slowly)
    with Application({"event-store.url": "memory"}, []) as application:
        found = at_once(lambda: application.container)
    assert len(made) == 1
    assert set(map(id, found)) == {id(made[0])}
