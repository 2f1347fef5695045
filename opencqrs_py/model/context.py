"""The circumstances of a handler's call, which it can take as an argument."""

from __future__ import annotations

from typing import NamedTuple

from opencqrs_py.model.partition import Partition


class ProcessingContext(NamedTuple):
    """The circumstances of one handler call.

    Attributes:
        group: Processing group.
        partition: Partition that handles the event.
        position: The event's position.
        attempt: Number of this attempt, from 1.
        replaying: Whether the event was handled before a reset of the group.
        parked: Whether the event was parked, or waited in the inbox after a parked event of its sequence.
        rebuilding: Whether the handler fills the new tables of a rebuild, beside those in use.
    """

    group: str
    partition: Partition
    position: int
    attempt: int
    replaying: bool = False
    parked: bool = False
    rebuilding: bool = False
