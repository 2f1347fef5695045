"""Reading: from a stored event to the events that handlers see, unwrapped and upcast."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dis import get_instructions
from fnmatch import fnmatchcase
from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR, unwrap
from itertools import pairwise
from types import FunctionType
from typing import Any, get_origin, get_type_hints

from opencqrs_py.errors import EventFormatError, HandlerSignatureError, ProjectCodeError
from opencqrs_py.model.event import Event
from opencqrs_py.model.handler import Upcaster
from opencqrs_py.model.json_text import write_json, write_parsed
from opencqrs_py.model.naming import nearest
from opencqrs_py.model.upcast import Upcast
from opencqrs_py.processing.awaiting import finish
from opencqrs_py.processing.binding import Call, with_arguments
from opencqrs_py.processing.decoding import Decoder, decoder_for
from opencqrs_py.processing.event_types import decoded_as
from opencqrs_py.processing.exceptions import message_of, raise_interrupt, type_name
from opencqrs_py.processing.field_names import stored_members
from opencqrs_py.processing.ports import Injector
from opencqrs_py.processing.roles import UPCASTER
from opencqrs_py.processing.signatures import read_signature

_log = logging.getLogger("opencqrs.processing")
_ENVELOPE_FIX = 'set events.format: plain if the log is not written by OpenCQRS; else fix the event: {"payload": {...}}'


def unwrapped(event: Event) -> Event:
    """Return the event with the envelope's payload as its data and the envelope's metadata as its metadata.

    Missing metadata is an empty mapping. The raw event has the extension attributes of the CloudEvent.

    Raises:
        EventFormatError: OCQ-215, if the data are not an envelope.

    Source:
        OpenCQRS data envelope; decision K14.
    """
    data = event.data
    if not isinstance(data, dict) or data.get("payload") is None:
        raise EventFormatError(
            "OCQ-215", "the event's data are not an envelope with a payload", event.label, _ENVELOPE_FIX
        )
    metadata = data.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        what = f"the envelope's metadata are {type(metadata).__name__}, not a JSON object"
        raise EventFormatError("OCQ-215", what, event.label, _ENVELOPE_FIX)
    extensions = write_parsed(metadata) if metadata else None
    return event._replace(payload=write_parsed(data["payload"]), extensions=extensions)


_END = object()
_METADATA_FIX = "give Upcast(type, data, metadata) a dict, {} for none, or leave metadata out to keep them"
_UPCAST_FIX = 'return Upcast("library.book-lent.v2", data), a list of them, or None to drop the event'


class Upcasters:
    """Chains of upcasters: the results of one are passed to the next, until none takes them.

    Args:
        upcasters: At most one for each type; their order does not matter.
        injector: Provides their arguments besides the event.
        known: The types and patterns that event classes and handlers name. If an upcaster makes events of another type
            that is similar to one of them, a warning is logged once. Empty: types may be known by other means.

    Raises:
        HandlerSignatureError: OCQ-220, if two take the same type, naming both; OCQ-201 to OCQ-205 for a signature,
            which may have at most one event class.

    Source:
        OpenCQRS upcasting, with a guard against cycles.
    """

    def __init__(self, upcasters: Iterable[Upcaster], injector: Injector, known: Collection[str] = ()) -> None:
        self._known = known
        self._checked: set[str] = set()
        self._by_type: dict[str, _Bound] = {}
        for upcaster in upcasters:
            bound = _Bound(upcaster, injector)
            for name in upcaster.types:
                if name in self._by_type:
                    what = f"two upcasters take events of type '{name}'"
                    where = f"{self._by_type[name].place} and {upcaster.place}"
                    raise HandlerSignatureError("OCQ-220", what, where, "keep one of them")
                self._by_type[name] = bound

    @property
    def types(self) -> frozenset[str]:
        """The event types that are upcast."""
        return frozenset(self._by_type)

    def place_of(self, event_type: str) -> str:
        """Return ``file:line (name)`` of the upcaster that takes a type."""
        return self._by_type[event_type].place

    def upcast(self, event: Event) -> Sequence[Event]:
        """Return the events that upcasters make of an event: none, one or several, in their order.

        All of them have the event's id, position and other attributes; only type, data and, if an upcaster gives them,
        metadata change.

        Raises:
            EventFormatError: OCQ-221, if an upcaster returns anything but ``Upcast``, or values that JSON cannot hold,
                such as infinity; OCQ-222, if upcasters lead back to an earlier type; OCQ-223, if one
                raises; OCQ-210 or OCQ-211, if the data do not fit the class that it takes.
        """
        return tuple(self._chain(event, ()))

    def _chain(self, event: Event, way: tuple[str, ...]) -> Iterator[Event]:
        bound = self._by_type.get(event.type)
        if bound is None:
            if way and event.type not in self._checked:
                self._check_known(event.type, self._by_type[way[-1]].place)
            yield event
            return
        if event.type in way:
            circle = " → ".join((*way[way.index(event.type) :], event.type))
            places = ", ".join(dict.fromkeys(self._by_type[name].place for name in way))
            fix = "have the upcasters end at a type that none of them takes"
            raise EventFormatError("OCQ-222", f"upcasters lead in a circle ({circle})", places, fix)
        for result in bound.upcast(event):
            yield from self._chain(result, (*way, event.type))

    def _check_known(self, event_type: str, place: str) -> None:
        """Warn if nothing names a type that an upcaster makes, and it is most likely misspelled."""
        self._checked.add(event_type)
        if any(fnmatchcase(event_type, name) for name in self._known):
            return
        meant = nearest(event_type, (name for name in self._known if name not in self._by_type and "*" not in name))
        if meant is not None:
            _log.warning(
                "the upcaster %s makes events of type '%s', which no event class and no handler names "
                "(did you mean %s?)\n"
                "  fix:   correct the type of the Upcast; or, if no handler should get these events, leave it as it is",
                *(place, event_type, meant),
            )


class _Bound:
    """An upcaster whose arguments are resolved."""

    def __init__(self, upcaster: Upcaster, injector: Injector) -> None:
        self.place = upcaster.place
        signature = read_signature(upcaster.call, upcaster.place, injector, UPCASTER)
        self._call: Call = with_arguments(upcaster.call, signature, injector, upcaster.place)
        wanted = [decoded_as(cls) for cls in signature.event_classes]
        if len(wanted) > 1:
            what = "an upcaster takes events of one class, but its parameter names several"
            raise HandlerSignatureError("OCQ-203", what, upcaster.place, "take dict, or write one for each class")
        self._decode: Decoder | None = decoder_for(wanted[0]) if wanted else None
        if _never_returns(upcaster.call):
            types = ", ".join(f"'{name}'" for name in upcaster.types)
            what = f"the upcaster makes an Upcast and never returns it, so all events of type {types} would be dropped"
            raise HandlerSignatureError("OCQ-243", what, upcaster.place, "write return before the Upcast")
        self._promised = _promised(upcaster.call)

    def upcast(self, event: Event) -> list[Event]:
        """Return the results for an event; each one is converted before the upcaster makes the next one."""
        decoded = self._decode(event) if self._decode is not None else None
        returned = self._guarded(event, lambda: finish(self._call(decoded, event, event, None)))
        if returned is None and self._promised:
            what = f"upcaster {self.place} returned None, although it is annotated with {self._promised}"
            fix = "add the missing return; or, to drop the event, annotate the function as in '-> Upcast | None'"
            raise EventFormatError("OCQ-221", what, event.label, fix)
        results = self._guarded(event, lambda: iter(_several(returned)))
        changed = []
        while (result := self._guarded(event, lambda: next(results, _END))) is not _END:
            changed.append(self._changed(event, result))
        return changed

    def _guarded(self, event: Event, step: Callable[[], Any]) -> Any:
        try:
            return step()
        except ProjectCodeError:  # a provider: the upcaster was not called
            raise
        except BaseException as error:
            raise_interrupt(error)
            what = f"upcaster {self.place} raised {type_name(error)}: {message_of(error)}"
            raise EventFormatError("OCQ-223", what, event.label, "fix the upcaster") from error

    def _changed(self, event: Event, result: Any) -> Event:
        if not isinstance(result, Upcast) or not isinstance(result.type, str):
            what = f"upcaster {self.place} returned {type(result).__name__} instead of an Upcast"
            raise EventFormatError("OCQ-221", what, event.label, _UPCAST_FIX)
        payload = None if result.data is None else self._written(result.data, "data", event)
        if result.metadata is None:
            return event._replace(type=result.type, payload=payload)
        given: object = result.metadata
        if not isinstance(given, Mapping):
            what = f"upcaster {self.place} returned a {type(given).__name__} as metadata"
            raise EventFormatError("OCQ-221", what, event.label, _METADATA_FIX)
        metadata = dict(given)
        extensions = self._written(metadata, "metadata", event) if metadata else None
        return event._replace(type=result.type, payload=payload, extensions=extensions)

    def _written(self, value: Any, name: str, event: Event) -> str:
        try:
            return write_json(value, members=stored_members)
        except (TypeError, ValueError) as error:
            what = f"upcaster {self.place} returned {name} that cannot become JSON ({error})"
            raise EventFormatError("OCQ-221", what, event.label, _UPCAST_FIX) from error


def _several(results: Any) -> Iterable[Any]:
    if results is None:
        return ()
    if isinstance(results, Upcast | Mapping | str) or not isinstance(results, Iterable):
        return (results,)
    return results


def _never_returns(call: Callable[..., Any]) -> bool:
    """Return whether a function makes an ``Upcast``, but no return statement of it has a value."""
    function = unwrap(call)
    if not isinstance(function, FunctionType) or function.__code__.co_flags & (CO_GENERATOR | CO_ASYNC_GENERATOR):
        return False
    steps = list(get_instructions(function))
    nothing = [step.argval is None for step in steps if step.opname == "RETURN_CONST"]
    nothing += [
        before.opname == "LOAD_CONST" and before.argval is None and not step.is_jump_target
        for before, step in pairwise(steps)
        if step.opname == "RETURN_VALUE"
    ]
    return Upcast.__name__ in function.__code__.co_names and bool(nothing) and all(nothing)


def _promised(call: Callable[..., Any]) -> str:
    """Return the annotated return type; empty if it includes ``None``, or cannot be read."""
    try:
        hint = get_type_hints(call).get("return")
    except Exception:  # annotations may be readable for type checkers only
        return ""
    plain_hint = get_origin(hint) or hint
    makes_some = isinstance(plain_hint, type) and issubclass(plain_hint, Iterable)  # as an Upcast is, too
    return getattr(hint, "__name__", str(hint)) if makes_some else ""


class Reading:
    """How stored events are read: unwrapped from their envelope, then passed through the upcasters.

    Args:
        upcasters: Turn events of old types into events as they are written today.
        enveloped: Whether data are in OpenCQRS' envelope of metadata and payload.
    """

    def __init__(self, upcasters: Upcasters | None = None, *, enveloped: bool = False) -> None:
        self._upcasters = upcasters
        self._enveloped = enveloped
        self.upcast_types: frozenset[str] = upcasters.types if upcasters is not None else frozenset()

    @property
    def plain(self) -> bool:
        """Whether all events are read as they are stored."""
        return not self._enveloped and not self.upcast_types

    def upcaster_of(self, event_type: str) -> str:
        """Return ``file:line (name)`` of the upcaster that takes a type; empty if none does."""
        return self._upcasters.place_of(event_type) if self._upcasters and event_type in self.upcast_types else ""

    def plain_for(self, event_type: str) -> bool:
        """Return whether events of the type are read as they are stored."""
        return not self._enveloped and event_type not in self.upcast_types

    def unwrapped(self, event: Event) -> Event:
        """Return the event without the envelope, not upcast; raise OCQ-215 if the data are not an envelope."""
        return unwrapped(event) if self._enveloped else event

    def read(self, event: Event) -> Sequence[Event]:
        """Return the events that a stored event becomes, in their order; raise OCQ-215 or OCQ-221 to OCQ-223."""
        plain = self.unwrapped(event)
        if self._upcasters is None or plain.type not in self.upcast_types:
            return (plain,)
        return self._upcasters.upcast(plain)
