"""Diagnosis: where an error arose, and what is reported about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from opencqrs_py.errors import (
    AssemblyError,
    DatabaseFileError,
    EventFormatError,
    FencedError,
    NonTransientError,
    OrderingError,
    ProjectCodeError,
    UnavailableError,
)
from opencqrs_py.model.event import Event
from opencqrs_py.model.inbox import InboxEntry
from opencqrs_py.model.outcome import Failure, Origin
from opencqrs_py.processing.exceptions import (
    failure_of,
    label_text,
    leaves,
    own_frames,
    placed_error_text,
    raise_interrupt,
)
from opencqrs_py.processing.ports import EventSource, ProgressTracker

_OWN_CONNECTION = (
    "  fix:   if the handler opens its own connection, have it use the one that it is given: its own may wait for the "
    "transaction around the handler; if the database ends transactions that are idle for long, as "
    "idle_in_transaction_session_timeout says, have it wait for as long as handlers take"
)
_DECISIVE = (Origin.FENCED, Origin.OUTAGE, Origin.FRAMEWORK, Origin.CHECKPOINT, Origin.EVENT, Origin.HANDLER)


class NotOpenedError(Exception):
    """The tracker did not open the unit of work; no handler was called."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class Diagnosis:
    """Determines where errors of a partition arose, and what is reported about them.

    The tracker and the source know which errors mean that they are unavailable; ``places`` returns the handlers of an
    event.
    """

    def __init__(self, tracker: ProgressTracker, source: EventSource, places: Callable[[Event], Sequence[str]]) -> None:
        self._tracker = tracker
        self._source = source
        self._places = places

    def failure(self, error: BaseException, otherwise: Origin, in_hand: Event | None = None) -> Failure:
        """Return an error as a failure, which arose at ``otherwise`` unless the error itself shows its origin."""
        if type(error) is NotOpenedError:  # the tracker's error, not the event's: it uses no attempt (K1)
            return self.failure(error.error, Origin.FRAMEWORK)
        origin = self._origin(error, otherwise)
        return self._described(error, origin, None if origin in (Origin.OUTAGE, Origin.FENCED) else in_hand)

    def failure_before(self, error: BaseException, event: Event | InboxEntry) -> Failure:
        """Return the failure of a partition that stops before an event, which no handler got."""
        failure = replace(self.failure(error, Origin.FRAMEWORK), event=label_text(lambda: event.label))
        if failure.origin in (Origin.OUTAGE, Origin.FENCED):
            return failure
        if isinstance(event, InboxEntry):
            failure = replace(failure, event_id=event.event_id, event_type=event.event_type)
        else:
            failure = replace(failure, event_id=_id_of(event), event_type=event.type)
        return replace(failure, position=event.position, untried=True)

    def failure_to_read(self, error: BaseException) -> Failure:
        """Return the failure to read an event, with file and line, if any."""
        return replace(self.failure(error, Origin.FRAMEWORK), message=placed_error_text(error).message)

    def failure_of_handler(self, error: BaseException, in_hand: Event) -> Failure:
        """Return the failure for an error that was raised while handlers were called.

        It cannot mean a lost claim, whatever its class. An apparent outage uses no attempt, but has a place.
        """
        origin = self._origin(error, Origin.HANDLER)
        failure = self._described(error, Origin.HANDLER if origin is Origin.FENCED else origin, in_hand)
        if origin is not Origin.OUTAGE:
            return failure
        advice = failure.advice if failure.code else _OWN_CONNECTION
        return replace(failure, position=None, advice=advice)

    def _described(self, error: BaseException, origin: Origin, in_hand: Event | None) -> Failure:
        raised = error.__cause__ if type(error) is OrderingError and error.__cause__ is not None else error
        permanent = any(issubclass(type(one), NonTransientError | SystemExit) for one in leaves(raised))
        failure = failure_of(error, origin, permanent=permanent, traceback=self._frames(error, origin, in_hand))
        if in_hand is None:
            return failure
        return replace(
            failure,
            position=in_hand.position,
            event=label_text(lambda: in_hand.label),
            event_id=_id_of(in_hand),
            event_type=in_hand.type,
        )

    def _frames(self, error: BaseException, origin: Origin, event: Event | None) -> str:
        """Return the lines of the user's code that raised an error; without a handler among them, the handlers."""
        frames = own_frames(error) if origin in (Origin.HANDLER, Origin.FRAMEWORK) else ""
        if event is None or origin not in (Origin.HANDLER, Origin.OUTAGE) or type(error) is OrderingError:
            return frames
        places = self._places(event)
        if any(place.partition(":")[0] in frames for place in places):
            return frames
        return "\n".join(["  in handler " + place for place in places] + ([frames] if frames else []))

    def _origin(self, error: BaseException, otherwise: Origin) -> Origin:
        """Return where an error arose; for a group, where the most decisive of its exceptions did."""
        return min((self._origin_of(one, otherwise) for one in leaves(error)), key=_DECISIVE.index)

    def _origin_of(self, error: BaseException, otherwise: Origin) -> Origin:
        kind = type(error)  # not isinstance, which reads the class from the error itself
        if issubclass(kind, FencedError):
            return Origin.FENCED
        wrapped = issubclass(kind, EventFormatError | OrderingError | ProjectCodeError)
        cause = error.__cause__ if wrapped else None  # what an upcaster, a provider or a resolver raised
        if any(self._is_outage(each) for each in (error, cause) if each is not None):
            return Origin.OUTAGE
        # What the project has besides handlers (K3), or the database's file was replaced
        if issubclass(kind, AssemblyError | ProjectCodeError | DatabaseFileError):
            return Origin.FRAMEWORK
        return Origin.EVENT if issubclass(kind, EventFormatError) else otherwise

    def _is_outage(self, error: BaseException) -> bool:
        if issubclass(type(error), UnavailableError):
            return True
        try:
            return self._tracker.is_outage(error) or self._source.is_outage(error)
        except BaseException as failed:  # an error that cannot be inspected is not a store's
            raise_interrupt(failed)
            return False


def _id_of(event: Event) -> str:
    try:
        return event.id
    except Exception:  # an unavailable store must not hide what is reported about the event
        return ""
