"""Interception: the user's functions around events and around handlers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from opencqrs_py.errors import AssemblyError, ProjectCodeError
from opencqrs_py.model.event import Event
from opencqrs_py.model.handler import Interceptor, Invocation, Surrounded
from opencqrs_py.processing.awaiting import complete
from opencqrs_py.processing.binding import BoundHandler, Call, NothingProvided, Work, with_arguments
from opencqrs_py.processing.exceptions import raise_interrupt
from opencqrs_py.processing.ports import Injector
from opencqrs_py.processing.roles import AROUND_EVENT, AROUND_HANDLER, Kind
from opencqrs_py.processing.signatures import read_signature

_FIX = (
    "yield exactly once on every path through the function, where the surrounded call is to run; to retry, raise: the "
    "event is retried according to its group's settings"
)
_NOT_THE_EVENTS = (AssemblyError, ProjectCodeError)


class SurroundingCall:
    """One interceptor: its call, and its place, as messages name it.

    ``contextlib`` would do the same, but its errors name no interceptor, and would count as errors of the event.
    """

    def __init__(self, call: Callable[..., Any], place: str) -> None:
        self._call = call
        self._place = place

    def surround(self, arguments: tuple[Any, ...], inner: Callable[[], object]) -> None:
        """Make a call inside the interceptor's ``yield``; an error that the interceptor catches there is handled.

        Interceptors cannot handle an interrupt, a failing provider, or a failure of another interceptor.
        Raises OCQ-218 if the interceptor does not yield once.
        """
        generator = self._call(*arguments)
        if not isinstance(generator, Generator):
            raise self._broken(f"returned a {type(generator).__name__}, which is not a generator")
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
        """Resume the interceptor after its ``yield``; an error is raised there."""
        try:
            next(generator) if error is None else generator.throw(error)
        except StopIteration:
            return
        except RuntimeError as raised:
            if error is not None and raised.__cause__ is error and issubclass(type(error), StopIteration):
                raise error  # noqa: B904 no generator can pass a StopIteration on
            raise
        with suppress(BaseException):  # whatever it does now, it has yielded twice
            generator.close()
        raise self._broken("yielded a second time") from error

    def _broken(self, what: str) -> ProjectCodeError:
        return ProjectCodeError("OCQ-218", f"the interceptor {self._place} {what}", self._place, _FIX)


class Interceptors:
    """The interceptors of one group.

    The surrounded call runs inside the interceptor's ``yield``, and its errors are raised there. If an interceptor
    catches the error, the event counts as handled. What an interceptor itself raises, before its ``yield`` or after it,
    is the event's error, as if the handler had raised it.

    Args:
        interceptors: Outermost first.
        injector: Provides their arguments besides the event.

    Raises:
        HandlerSignatureError: OCQ-201 to OCQ-205.
    """

    def __init__(self, interceptors: Iterable[Interceptor] = (), injector: Injector | None = None) -> None:
        injector = injector or NothingProvided()
        self.sees_attributes = False
        self.in_transaction = list[str]()  # places of those that take parts of a transaction
        self._around_event: list[SurroundingCall] = []
        self._around_handler: list[SurroundingCall] = []
        for one in interceptors:
            of_events = one.mark.surrounded is Surrounded.EVENT
            role = AROUND_EVENT if of_events else AROUND_HANDLER
            signature = read_signature(one.call, one.place, injector, role)
            self.sees_attributes = self.sees_attributes or signature.sees_attributes
            if signature.transactional or signature.asks_for(Kind.AFTER_COMMIT):
                self.in_transaction.append(one.place)
            call = SurroundingCall(with_arguments(one.call, signature, injector, one.place), one.place)
            (self._around_event if of_events else self._around_handler).append(call)

    @property
    def of_events(self) -> bool:
        """Whether there are interceptors of events."""
        return bool(self._around_event)

    @property
    def of_handlers(self) -> bool:
        """Whether there are interceptors of handlers."""
        return bool(self._around_handler)

    def around_event(self, event: Event, raw: Event, work: Work, call: Callable[[], None]) -> None:
        """Make a call with the interceptors of events around it, which see the event as read and as stored."""
        _surrounded(self._around_event, None, event, raw, work, call)

    def around_handler(self, bound: BoundHandler) -> Call:
        """Return a handler's call with the interceptors of handlers around it."""
        call, around = bound.call, tuple(self._around_handler)
        if not around:
            return call

        def surrounded(decoded: Any, event: Any, raw: Any, work: Work) -> None:
            events: Sequence[Event] = tuple(raw) if bound.signature.many else (raw,)
            invocation = Invocation(bound.handler.place, events, work.context(events[0]))
            _surrounded(around, invocation, event, raw, work, lambda: complete(call(decoded, event, raw, work)))

        return surrounded


def _surrounded(
    around: Sequence[SurroundingCall],
    invocation: Invocation | None,
    event: Any,
    raw: Any,
    work: Work,
    call: Callable[[], object],
) -> None:
    """Make a call inside nested interceptors, the first one outermost."""
    for one in reversed(around):
        call = partial(one.surround, (invocation, event, raw, work), call)
    call()
