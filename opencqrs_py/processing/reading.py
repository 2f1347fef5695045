"""Reading: from a stored event to the events that handlers see."""

from __future__ import annotations

from collections.abc import Sequence

from opencqrs_py.model.event import Event
from opencqrs_py.processing.envelope import unwrapped
from opencqrs_py.processing.upcasting import Upcasters

__all__ = ["Reading"]


class Reading:
    """How stored events are read: out of their envelope, then through the upcasters.

    Args:
        upcasters: Turn events of old types into events as they are written today.
        enveloped: Whether data come in OpenCQRS' envelope of metadata and payload.
    """

    def __init__(self, upcasters: Upcasters | None = None, *, enveloped: bool = False) -> None:
        self._upcasters = upcasters
        self._enveloped = enveloped
        self.upcast_types: frozenset[str] = upcasters.types if upcasters is not None else frozenset()

    @property
    def plain(self) -> bool:
        """Whether all events are read as they are stored."""
        return not self._enveloped and not self.upcast_types

    def plain_for(self, event_type: str) -> bool:
        """Say whether events of the type are read as they are stored."""
        return not self._enveloped and event_type not in self.upcast_types

    def unwrapped(self, event: Event) -> Event:
        """Return the event without the envelope, not upcast.

        Raises:
            EventFormatError: OCQ-215, if the data are no envelope.
        """
        return unwrapped(event) if self._enveloped else event

    def read(self, event: Event) -> Sequence[Event]:
        """Return the events that a stored event becomes, in their order.

        Raises:
            EventFormatError: OCQ-215 and OCQ-221 to OCQ-223.
        """
        plain = self.unwrapped(event)
        if self._upcasters is None or plain.type not in self.upcast_types:
            return (plain,)
        return self._upcasters.upcast(plain)
