"""What a participant is advised to do that does not confirm a position."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import pytest

from opencqrs_py.errors import CheckpointError
from opencqrs_py.model.checkpoint import Participant
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.checkpoints.participation import (
    CallOutcome,
    CheckpointParticipant,
    ClaimedPartition,
    Halves,
    ParticipantCall,
    Participation,
)

FULL = OSError("disk full")


class AtOnce:
    """Calls participants one after the other."""

    def ask(self, calls: Mapping[Hashable, ParticipantCall], seconds: float) -> dict[Hashable, CallOutcome]:
        return {key: _outcome(call) for key, call in calls.items()}

    def still(self, key: Hashable) -> TimeoutError | None:
        return None


def _outcome(call: ParticipantCall) -> CallOutcome:
    try:
        return CallOutcome(call())
    except OSError as error:
        return CallOutcome(error=error)


class Archive:
    """Answers with a value, or an error."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def on_checkpoint(self, partition: Partition, requested: int) -> object:
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer

    def on_parked_handled(self, partition: Partition, positions: Sequence[int]) -> object:
        return self.on_checkpoint(partition, positions[0])


class Inheriting(Archive, CheckpointParticipant):
    """Is released by the inherited method, which calls ``on_checkpoint``."""


class Releasing(Archive):
    """Has a method to be released."""

    def on_partition_released(self, partition: Partition, up_to: int) -> object:
        return self.on_checkpoint(partition, up_to)


def claimed(participant: Archive) -> ClaimedPartition:
    participants = [Participant(participant, "Archive", "archive.py:1")]
    halves = Halves(None, None)
    return Participation(participants, halves, halves, AtOnce(), deferred=False, timeout=1).claim(
        "archive", Partition(1, 0), 0
    )


@pytest.mark.parametrize(
    ("kind", "answer", "fix"),
    [
        (Archive, None, "return at least position 30, or LATEST, from on_checkpoint when"),
        (Inheriting, None, "return at least position 30, or LATEST, from on_checkpoint when"),
        (Releasing, None, "return at least position 30, or LATEST, from on_partition_released when"),
        (Archive, FULL, "fix the cause of this error in on_checkpoint"),
        (Inheriting, FULL, "fix the cause of this error in on_checkpoint"),
        (Releasing, FULL, "fix the cause of this error in on_partition_released"),
    ],
)
def test_a_refused_release_names_the_method_that_the_class_has_and_what_helps(
    kind: type[Archive], answer: object, fix: str
) -> None:
    partition = claimed(kind(answer))
    partition.positions.poll(30)
    partition.positions.handle(30)
    _, refusal = partition.release(0)
    assert refusal is not None
    assert refusal.fix.startswith(fix)


@pytest.mark.parametrize("kind", [Archive, Inheriting, Releasing])
def test_an_error_of_a_parked_event_is_to_be_fixed_not_only_returned_from(kind: type[Archive]) -> None:
    with pytest.raises(CheckpointError, match=r"disk full(?s:.*)fix the cause of this error in on_parked_handled"):
        claimed(kind(FULL)).confirm_parked((3,))
