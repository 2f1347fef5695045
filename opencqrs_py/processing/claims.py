"""The claim of a partition, as its processor sees it: whether it still holds, and what others have stored under it."""

from __future__ import annotations

from dataclasses import replace

from opencqrs_py.errors import FencedError, OtherLogError
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import Cursor
from opencqrs_py.processing.ports import EventSource, ProgressTracker, SucceedingTracker


class Claim:
    """Compares the cursor of a partition with what its tracker has stored.

    Args:
        group: Processing group.
        partition: The partition.
        tracker: Where progress goes.
        source: The event store.
    """

    def __init__(self, group: str, partition: Partition, tracker: ProgressTracker, source: EventSource) -> None:
        self._group = group
        self._partition = partition
        self._tracker = tracker
        self._source = source

    def confirmed(self, cursor: Cursor) -> Cursor:
        """Return the cursor as it is stored: the answer to a commit may have been lost, and the log replaced.

        Raises:
            FencedError: If another processor has the partition.
            EventStoreError: If the log is not the one that progress was made with.
        """
        found, confirmed = self._tracker.renewed(self._group, cursor), cursor.confirmed + 1
        if found is None:
            raise self.lost()
        if found.stored > cursor.stored:
            cursor = cursor.moved_to(found.stored, stored=True, fingerprint=found.fingerprint)
        elif found.stored < cursor.stored:  # the database was restored, and the read model with it
            cursor = found
        verify_log(self._source, self._group, cursor)
        return replace(cursor, doubtful=False, confirmed=confirmed, parked=None)

    def moved_by_others(self, cursor: Cursor) -> Cursor | None:
        """Return the cursor where another run of the same task has moved the progress; ``None`` if none has."""
        found = self._tracker.renewed(self._group, cursor)
        if found is None or found.stored == cursor.stored:  # the same place again would be an endless loop
            return None
        return replace(found, shared=True, isolate=cursor.isolate)

    def succeeded(self, cursor: Cursor) -> Cursor:
        """Take the partition over from another run of the same task, which then can no longer commit.

        If the tracker does not support this, both continue, each from where the other is.

        Raises:
            FencedError: If another processor has the partition.
        """
        if not isinstance(self._tracker, SucceedingTracker):
            return cursor
        found = self._tracker.succeed(self._group, cursor)
        if found is None:
            raise self.lost()
        if found.stored == cursor.stored:
            return replace(cursor, epoch=found.epoch, parked=None)
        return replace(found, shared=cursor.shared, isolate=cursor.isolate)

    def is_succeeded(self, cursor: Cursor) -> bool:
        """Return whether another run of the same task has taken the partition over, and still has it."""
        if not isinstance(self._tracker, SucceedingTracker):
            return False
        try:
            return self._tracker.renewed(self._group, replace(cursor, epoch=cursor.epoch + 1)) is not None
        except Exception:  # an outage, which the next task reports
            return False

    def lost(self) -> FencedError:
        """Return the error that another processor has the partition."""
        what = f"progress of group '{self._group}' partition {self._partition} was taken over by another processor"
        return FencedError(what)


def verify_log(source: EventSource, group: str, cursor: Cursor) -> None:
    """Check that the log is the one that progress belongs to, and has all events that count as handled.

    In a replay, and after a change of partitions, these are beyond the progress. If the log was restored in the
    meantime, newly added events get their positions.

    Raises:
        EventStoreError: OCQ-316, naming the partition, if the check fails.
    """
    try:
        source.verify(cursor.stored, cursor.fingerprint)
    except OtherLogError as error:
        raise _of_partition(group, cursor, error, error.what, error.fix) from error
    if (farthest := cursor.farthest) > cursor.stored:
        try:
            source.verify(farthest, "")
        except OtherLogError as error:
            why = "the group was reset" if cursor.replay is not None else "its partitions were changed"
            what = f"events up to position {farthest} count as handled since {why}, but the log ends before"
            fix = (
                "restore the event store that the progress belongs to; or decide again what the group handles, by "
                f"opencqrs groups reset {group}: what the log does not have is new then"
            )
            raise _of_partition(group, cursor, error, what, fix) from error


def _of_partition(group: str, cursor: Cursor, error: OtherLogError, what: str, fix: str) -> OtherLogError:
    return OtherLogError(error.code, f"group '{group}' partition {cursor.partition}: {what}", error.where, fix)
