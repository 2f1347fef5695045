"""What is closed at the end of a test, or when it is dropped."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from opencqrs_py.adapters.sql import Database
from opencqrs_py.assembly.injection import ContainerInjector


def closing(
    test: object, database: Database, injectors: Sequence[ContainerInjector], *, is_own: bool
) -> weakref.finalize[..., object]:
    """Return a finalizer that closes what a test has opened, when it is called or when the test is dropped.

    Args:
        test: The test.
        database: Its database.
        injectors: Those with whose containers it is run; there may be more later.
        is_own: Whether the database is the test's own.
    """
    return weakref.finalize(test, _close, database if is_own else None, injectors)


def _close(database: Database | None, injectors: Sequence[ContainerInjector]) -> None:
    for each in injectors:
        each.close_resources(was_user=False)
    if database is not None:
        database.close()
