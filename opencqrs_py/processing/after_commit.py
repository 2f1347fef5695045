"""Calls that wait for the commit of a transaction."""

from __future__ import annotations

from collections.abc import Callable

from opencqrs_py.errors import NonTransientError, ProjectCodeError
from opencqrs_py.processing.awaiting import complete
from opencqrs_py.processing.exceptions import raise_interrupt


class AfterCommit:
    """Takes calls to be made once the transaction is committed; a rollback discards them.

    A handler takes it by annotation: ``after_commit(lambda: bell.ring())``. The calls are made in their order, on the
    thread of the handler, at most once: a crash right after the commit loses them. One that raises is reported and
    repeats nothing. Awaitables are awaited. It belongs to its transaction: an object that a handler has stored takes no
    further calls.
    """

    def __init__(self) -> None:
        self._calls: list[Callable[[], object]] = []
        self._open = True

    def __call__(self, call: Callable[[], object]) -> None:
        """Remember ``call``; raise OCQ-225 if the transaction is over, as the call would never be made.

        Raises ``NonTransientError`` if it cannot be called, as in ``after_commit(bell.ring())``, which rings at once.
        """
        if not self._open:
            what = "AfterCommit was called when its transaction was over: the call would never be made"
            raise ProjectCodeError("OCQ-225", what, fix="take it as an argument where you need it, and do not store it")
        given: object = call
        if not callable(given):
            got = type(given).__name__
            msg = f"after_commit takes a function, got {got}: write after_commit(lambda: ...), without calling it"
            raise NonTransientError(msg)
        self._calls.append(call)

    def close(self) -> None:
        """Accept no more calls: the handlers are done, or their work is rolled back."""
        self._open = False

    def run(self) -> list[BaseException]:
        """Make the calls; return what they raised."""
        errors: list[BaseException] = []
        self._open = True  # for calls that lead to further ones
        for call in self._calls:
            try:
                complete(call())
            except BaseException as error:  # the commit stands, and the other calls are still due
                raise_interrupt(error)
                errors.append(error)
        self._open = False
        return errors
