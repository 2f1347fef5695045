"""Filters: functions that decide whether an event enters the inbox of a scheduled group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opencqrs_py.errors import ProjectCodeError
from opencqrs_py.model.event import Event
from opencqrs_py.processing.binding import NothingProvided, with_arguments
from opencqrs_py.processing.decoding import decoder_for
from opencqrs_py.processing.event_types import EventTypes, plain
from opencqrs_py.processing.reading import Reading
from opencqrs_py.processing.roles import RESOLVER, Kind
from opencqrs_py.processing.sequence_resolvers import check_plain
from opencqrs_py.processing.signatures import read_signature


class EventFilter:
    """A function that decides about events, as they are stored or as handlers see them.

    If it takes an event class, events of other classes are accepted without a call. Where upcasters make several events
    of one, it is accepted if one of those that are handled would be.

    Args:
        function: Returns ``True`` or ``False``.
        types: The event classes known.
        reading: How stored events are read.
        place: How messages name the function.
        handles: Returns whether the group handles events of a type, as read.

    Raises:
        HandlerSignatureError: OCQ-201 to OCQ-205.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        types: EventTypes,
        reading: Reading,
        place: str,
        handles: Callable[[str], bool],
    ) -> None:
        what = "a filter must be a plain function that returns True or False"
        check_plain(function, place, what, "def of_members(event: BookLent) -> bool")
        signature = read_signature(function, place, NothingProvided(), RESOLVER)
        self._call = with_arguments(function, signature, NothingProvided(), place)
        self._raw = all(argument.kind is Kind.RAW for argument in signature.arguments)
        self._wanted = signature.event_classes
        self._classes = tuple(map(plain, self._wanted))
        self._types = types
        self._reading = reading
        self._place = place
        self._handles = handles

    def __call__(self, event: Event) -> bool:
        """Return whether a stored event enters the inbox.

        Raises:
            ProjectCodeError: OCQ-216, if the result is neither ``True`` nor ``False``.
        """
        if self._raw:
            return self._answer(None, event)
        return any(self._takes(one) for one in self._reading.read(event) if self._handles(one.type))

    def _takes(self, event: Event) -> bool:
        if not self._wanted:
            return self._answer(None, event)
        found = self._types.class_for(self._wanted, event.type)
        if found is not None:
            return self._answer(decoder_for(found)(event), event)
        parent = self._types.parent_for(self._wanted, event.type)
        if parent is None:
            return True
        decoded = decoder_for(parent)(event)  # to one of its children, it may be
        return self._answer(decoded, event) if isinstance(decoded, self._classes) else True

    def _answer(self, decoded: Any, event: Event) -> bool:
        answer = self._call(decoded, event, event, None)
        if not isinstance(answer, bool):
            what = f"the filter returned {answer!r}, which is neither True nor False"
            raise ProjectCodeError("OCQ-216", what, self._place, "return a bool")
        return answer
