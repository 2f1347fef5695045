"""Layouts of groups: which partitions a group is to have, and how progress carries over from those that it had.

Everything here is decided from arguments; ``RepartitioningTracker`` reads and writes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from opencqrs_py.errors import LayoutError
from opencqrs_py.model.ahead import ahead_of
from opencqrs_py.model.group_record import RecordedLayout
from opencqrs_py.model.partition import MOST_PARTITIONS, Partition, layout
from opencqrs_py.model.progress import Cursor, FailureRecord
from opencqrs_py.model.replay import Replay

Cursors: TypeAlias = Mapping[Partition, Cursor]


def split_of(known: Collection[Partition], partition: Partition) -> tuple[Partition, ...]:
    """Return the layout in which a partition is two.

    Raises:
        LayoutError: OCQ-615, if there is no such partition, or it is too small already.
    """
    _require(known, partition)
    if 2 * partition.modulus > MOST_PARTITIONS:
        what = f"partition {partition} cannot be split: it is one of {MOST_PARTITIONS:,} already"
        raise LayoutError("OCQ-615", what, fix="merge others first")
    return tuple(sorted((set(known) - {partition}) | set(partition.split())))


def merge_of(known: Collection[Partition], partition: Partition) -> tuple[Partition, ...]:
    """Return the layout in which a partition and the other half of what it was split from are one.

    Raises:
        LayoutError: OCQ-615, if there is no such partition, or none that it can be merged with.
    """
    _require(known, partition)
    sibling = partition.sibling()
    if sibling is None or sibling not in known:
        what = f"partition {partition} cannot be merged"
        why = "its other half does not exist" if sibling is None else f"its other half {sibling} is split further"
        if partition.modulus == 1:
            why = "it is the whole group"
        raise LayoutError("OCQ-615", f"{what}: {why}", fix="opencqrs groups partitions NAME N takes any number")
    return tuple(sorted((set(known) - {partition, sibling}) | {partition.merge(sibling)}))


def even(count: int) -> tuple[Partition, ...]:
    """Return the layout of a number of partitions of the same size.

    Raises:
        LayoutError: OCQ-615, if there cannot be that many.
    """
    if not 1 <= count <= MOST_PARTITIONS:
        what = f"{count:,} is not a valid number of partitions: use 1 to {MOST_PARTITIONS:,}"
        raise LayoutError("OCQ-615", what, fix="give another number")
    return layout(count)


def _require(known: Collection[Partition], partition: Partition) -> None:
    if partition not in known:
        fix = f"use one of {', '.join(map(str, sorted(known)[:20]))}"
        raise LayoutError("OCQ-615", f"there is no partition {partition}", fix=fix)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the layout of a group when a process starts it.

    Attributes:
        partitions: The partitions that have progress; empty before the first start.
        recorded: The recorded layout; ``None`` if a version of this package without it began the group.
        living: What ``life-cycle.partitions`` is for other live processes that can run the group.
    """

    partitions: Collection[Partition]
    recorded: RecordedLayout | None
    living: Collection[int] = ()


@dataclass(frozen=True, slots=True)
class StartLayout:
    """Which partitions a group is to have when a process starts it.

    Attributes:
        partitions: These.
        changes: Whether the setting has changed since, so that the partitions have to.
        outdated: Whether the setting of this process is older than that of another live process.
    """

    partitions: tuple[Partition, ...]
    changes: bool = False
    outdated: bool = False


def at_start(setting: int, known: Known) -> StartLayout:
    """Return which partitions a group is to have in a process whose ``life-cycle.partitions`` is ``setting``.

    What a command has set wins until the setting changes. In a rolling deployment the newer setting wins: an overridden
    one changes nothing while a process with the overriding one is alive.
    """
    wanted, recorded = layout(setting), known.recorded
    if not known.partitions:
        return StartLayout(wanted)
    if recorded is None:
        return StartLayout(wanted, changes=set(known.partitions) != set(wanted))
    if recorded.setting == setting:
        return StartLayout(recorded.partitions)
    if setting in recorded.overridden and recorded.setting in known.living:
        return StartLayout(recorded.partitions, outdated=True)
    return StartLayout(wanted, changes=True)


@dataclass(frozen=True)
class Log:
    """Facts of the log that are needed to carry progress over. Each is determined on demand.

    Attributes:
        hashes_at: Returns the hashes of the sequences of the event at a position; ``None`` if unknown.
        positions_of: Returns the positions of a partition's events after a position, up to another one.
    """

    hashes_at: Callable[[int], Collection[int] | None]
    positions_of: Callable[[Partition, int, int], Iterable[int]] = field(default=lambda *_: ())


def carried_over(known: Cursors, partitions: Sequence[Partition], log: Log) -> dict[Partition, Cursor]:
    """Return where the new ones of some partitions continue, so that no event is handled twice and none is left out.

    Args:
        known: Where the partitions of the previous layout are.
        partitions: The new layout. Partitions of both layouts are left as they are.
        log: The log.

    Raises:
        ResetError: OCQ-612, if too much would have to be remembered of replays.
    """
    epoch = 1 + max((cursor.epoch for cursor in known.values()), default=0)
    return {each: _carried_to(each, known, epoch, log) for each in partitions if each not in known}


def _carried_to(partition: Partition, known: Cursors, epoch: int, log: Log) -> Cursor:
    before = [cursor for each, cursor in sorted(known.items()) if each.overlaps(partition)]
    handled = [part for cursor in before for part in _handled(cursor)]
    whole = (position for each, position in handled if each.contains(partition))
    position = max([min(cursor.stored for cursor in before), *whole])
    return Cursor(
        partition,
        epoch,
        position,
        position,
        fingerprint=next((one.fingerprint for one in before if one.stored == position), ""),
        failure=_failure(partition, before, position, log),
        unreleased=any(cursor.unreleased for cursor in before),
        ahead=ahead_of(position, handled, partition),
        replay=_replay(before, position, log),
    )


def _handled(cursor: Cursor) -> list[tuple[Partition, int]]:
    return [(cursor.partition, cursor.stored), *(cursor.ahead.parts if cursor.ahead is not None else ())]


def _failure(partition: Partition, before: Sequence[Cursor], position: int, log: Log) -> FailureRecord | None:
    """Return the failure that holds the partition up. Of several the first one in the log is kept.

    An event that was not tried has none to keep, and its sequence may be what cannot be determined.
    """
    known = (one.failure for one in before if one.failure is not None and one.failure.has_failed)
    failures = (one for one in known if one.position > position)
    for failure in sorted(failures, key=lambda one: one.position):
        hashes = log.hashes_at(failure.position)
        if hashes is None or any(one % partition.modulus == partition.residue for one in hashes):
            return failure
    return None


def _replay(before: Sequence[Cursor], position: int, log: Log) -> Replay | None:
    """Return what a partition replays whose sequences came from others, each of which may replay up to another end."""
    replays = [cursor.replay for cursor in before if cursor.replay is not None]
    if not replays:
        return None
    last = max(replays, key=lambda replay: replay.until)
    unhandled = {one for replay in replays for one in replay.unhandled}
    for cursor in before:
        own = cursor.replay.until if cursor.replay is not None else cursor.stored
        if own < last.until:
            unhandled.update(log.positions_of(cursor.partition, own, last.until))
    replay = replace(last, unhandled=tuple(sorted(one for one in unhandled if position < one <= last.until)))
    replay.check()
    return replay
