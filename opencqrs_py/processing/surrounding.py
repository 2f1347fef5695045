"""Surrounding calls: a generator that yields once, and what it surrounds inside of its ``yield``."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

from opencqrs_py.errors import AssemblyError, ProjectCodeError
from opencqrs_py.processing.interrupts import raise_interrupt

__all__ = ["SurroundingCall"]

_FIX = (
    "yield exactly once on every way through the function, where what it surrounds is to run; to try again, raise: the "
    "event is retried as its group says"
)
_NOT_THE_EVENTS = (AssemblyError, ProjectCodeError)


class SurroundingCall:
    """One interceptor, as it is called.

    ``contextlib`` would do the same but for its errors: they name nothing, and would pass for those of the event.

    Args:
        call: Returns the generator.
        place: How messages name the interceptor.
    """

    def __init__(self, call: Callable[..., Any], place: str) -> None:
        self._call = call
        self._place = place

    def surround(self, arguments: tuple[Any, ...], inner: Callable[[], object]) -> None:
        """Make a call inside of the interceptor's ``yield``; an error that the interceptor catches there is over.

        Not over is what no interceptor can deal with: an interrupt, a provider or another interceptor that fails.

        Raises:
            ProjectCodeError: OCQ-218, if the interceptor does not yield once.
        """
        generator = self._call(*arguments)
        if not isinstance(generator, Generator):
            raise self._broken(f"returned a {type(generator).__name__}, which is no generator")
        self._enter(generator)
        try:
            inner()
        except BaseException as error:
            self._leave(generator, error)
            raise_interrupt(error)
            if issubclass(type(error), _NOT_THE_EVENTS):
                raise
        else:
            self._leave(generator)

    def _enter(self, generator: Generator[Any, None, None]) -> None:
        try:
            next(generator)
        except StopIteration:
            raise self._broken("ended without a yield, so that no handler was called") from None

    def _leave(self, generator: Generator[Any, None, None], error: BaseException | None = None) -> None:
        """Let the interceptor go on after its ``yield``; with an error, that is raised there."""
        try:
            next(generator) if error is None else generator.throw(error)
        except StopIteration:
            return
        except RuntimeError as raised:
            if error is not None and raised.__cause__ is error and issubclass(type(error), StopIteration):
                raise error  # noqa: B904 no generator can pass a StopIteration on
            raise
        with suppress(BaseException):  # whatever it does at its end, it has yielded twice
            generator.close()
        raise self._broken("yielded a second time") from error

    def _broken(self, what: str) -> ProjectCodeError:
        return ProjectCodeError("OCQ-218", f"the interceptor {self._place} {what}", self._place, _FIX)
