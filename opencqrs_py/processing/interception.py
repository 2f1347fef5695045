"""Interception: the user's functions around events and around handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from opencqrs_py.model.event import Event
from opencqrs_py.model.handler import Interceptor, Invocation, Surrounded
from opencqrs_py.processing.awaiting import finish
from opencqrs_py.processing.binding import BoundHandler, Call, with_arguments
from opencqrs_py.processing.injectors import NothingProvided
from opencqrs_py.processing.ports import Injector
from opencqrs_py.processing.roles import AROUND_EVENT, AROUND_HANDLER
from opencqrs_py.processing.signatures import read_signature
from opencqrs_py.processing.surrounding import SurroundingCall
from opencqrs_py.processing.work import Work

__all__ = ["Interceptors"]


class Interceptors:
    """The interceptors of one group.

    What is surrounded runs inside the interceptor's ``yield``, and an error of it is raised there. An interceptor that
    catches the error has dealt with it: the event counts as handled. What an interceptor itself raises, before its
    ``yield`` or after it, is the event's error, as if the handler had raised it.

    Args:
        interceptors: Outermost first.
        injector: Provides what they ask for besides the event.

    Raises:
        HandlerSignatureError: OCQ-201 to OCQ-205.
    """

    def __init__(self, interceptors: Iterable[Interceptor] = (), injector: Injector | None = None) -> None:
        injector = injector or NothingProvided()
        self.sees_attributes = False
        self._around_event: list[SurroundingCall] = []
        self._around_handler: list[SurroundingCall] = []
        for one in interceptors:
            of_events = one.mark.surrounded is Surrounded.EVENT
            role = AROUND_EVENT if of_events else AROUND_HANDLER
            signature = read_signature(one.call, one.place, injector, role)
            self.sees_attributes = self.sees_attributes or signature.sees_attributes
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
        """Make a call with the interceptors of events around it.

        Args:
            event: The event as it was read: its metadata are those that handlers see.
            raw: The stored event.
            work: The transaction.
            call: Calls the handlers.
        """
        _surrounded(self._around_event, None, event, raw, work, call)

    def around_handler(self, bound: BoundHandler, call: Call) -> Call:
        """Return a handler's call with the interceptors of handlers around it."""
        if not self._around_handler:
            return call
        around = tuple(self._around_handler)

        def surrounded(decoded: Any, event: Any, raw: Any, work: Work) -> None:
            events: Sequence[Event] = tuple(raw) if bound.signature.many else (raw,)
            invocation = Invocation(bound.handler.place, events, work.context(events[0]))
            _surrounded(around, invocation, event, raw, work, lambda: finish(call(decoded, event, raw, work)))

        return surrounded


def _surrounded(
    around: Sequence[SurroundingCall],
    invocation: Invocation | None,
    event: Any,
    raw: Any,
    work: Work,
    call: Callable[[], object],
) -> None:
    """Make a call inside of interceptors, each of which is itself inside of those before it."""
    for one in reversed(around):
        call = partial(one.surround, (invocation, event, raw, work), call)
    call()
