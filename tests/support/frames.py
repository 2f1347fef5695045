"""Data frames of a group without Spark: ranges only, and errors as they come."""

from __future__ import annotations

from opencqrs_py.model.event import Event
from opencqrs_py.processing.frames import FrameMaker, OpenedFrames
from opencqrs_py.processing.ranges import PositionRange


class NoFrames(OpenedFrames):
    """A range without any data frame."""

    def of(self, event_class: type) -> object: ...

    def as_stored(self) -> object: ...


class NoFrameMaker(FrameMaker):
    """Makes them."""

    def frames(self, events: PositionRange, first: Event) -> NoFrames:
        return NoFrames(first.position, events.upto)

    def explained(self, error: BaseException) -> BaseException:
        return error
