"""Resets of groups: their progress moves to another position, whichever process runs them."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from opencqrs_py.adapters.memory import InMemoryProgressTracker
from opencqrs_py.assembly.actor import actor
from opencqrs_py.assembly.discovery.discovered import Discovered, GroupFunction
from opencqrs_py.assembly.group_names import group_named
from opencqrs_py.assembly.layouts import partitions_of
from opencqrs_py.assembly.resequencing import is_resequenced, never_handled, require_same_events
from opencqrs_py.config import EffectiveGroup
from opencqrs_py.errors import ExplainedError, ResetError, TransactionEndedError
from opencqrs_py.model.declarations import Declaration
from opencqrs_py.model.naming import listed
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import Cursor, PartitionStatus
from opencqrs_py.model.replay import Replay, Reset, replay_after
from opencqrs_py.model.times import in_milliseconds
from opencqrs_py.processing.binding import Work, of_reset
from opencqrs_py.processing.exceptions import message_of, raise_interrupt, type_name
from opencqrs_py.processing.feed import UnsequencedError
from opencqrs_py.processing.finding import find_event
from opencqrs_py.processing.groups import GroupProcessing
from opencqrs_py.processing.ports import EventSource, NeverHandled, ProgressTracker, ResettableTracker, statuses_of
from opencqrs_py.processing.replays import ResetFunction
from opencqrs_py.processing.roles import ON_RESET, Kind

if TYPE_CHECKING:
    from opencqrs_py.assembly.container import ApplicationContainer, GroupContainer

_log = logging.getLogger("opencqrs.control")


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """Where a group continues after a reset. One of them is given.

    Attributes:
        to: ``tail`` (before the oldest event) or ``head`` (after the newest).
        position: After this position, at least 0.
        time: With the first event of this time or a later one; a time without an offset is UTC.
        event: With the event of this CloudEvents ``id``.
        source: Its CloudEvents ``source``, needed if several sources have events of the id.
    """

    to: str | None = None
    position: int | None = None
    time: datetime | None = None
    event: str | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class ResetResult:
    """The result of a reset, or of a dry run.

    Attributes:
        reset: The reset.
        head: Position of the newest event.
        replays: What each partition handles again; ``None`` for one that handles nothing again.
        running: Whether a live node runs the group; without one, the next that starts will.
        dry_run: Whether nothing was changed.
        omitted_after: Position after which events that were still to be handled are left out, up to that of the reset;
            ``None`` if the reset leaves out none.
    """

    reset: Reset
    head: int
    replays: Mapping[Partition, Replay | None]
    running: bool
    dry_run: bool = False
    omitted_after: int | None = None

    @property
    def until(self) -> int:
        """The last position that is handled again; 0 if nothing is."""
        return max((replay.until for replay in self.replays.values() if replay is not None), default=0)


class Pausing(Protocol):
    """Makes the nodes that run a group release it for a while."""

    def paused(self, group: str, timeout: float) -> AbstractContextManager[bool]:
        """Stop a group until the end of the block; yields whether a live node can run it then."""
        ...

    def runs(self, group: str) -> bool:
        """Return whether a live node can run a group and should."""
        ...


class Resets:
    """Resets groups, from any process. Each reset is logged by the logger ``opencqrs.control``.

    Args:
        groups: The groups.
        parts: Their parts, by name.
        container: The parts that they share.
        pausing: Makes nodes release a group.
    """

    def __init__(
        self,
        groups: Sequence[EffectiveGroup],
        parts: Mapping[str, GroupContainer],
        container: ApplicationContainer,
        pausing: Pausing,
    ) -> None:
        self._groups = groups
        self._parts = parts
        self._container = container
        self._pausing = pausing

    def reset(
        self,
        name: str,
        target: ResetTarget,
        *,
        reason: str = "",
        context: Any = None,
        timeout: float = 60.0,
        dry_run: bool = False,
    ) -> ResetResult:
        """Move the progress of a group, after its ``@on_reset`` functions have run in the same transaction.

        Nodes that run the group release it first, and take it again afterwards.

        Args:
            name: The group, in any spelling.
            target: Where it continues.
            reason: Why, for the log and for ``@on_reset`` functions.
            context: Further data for ``@on_reset`` functions, as JSON values.
            timeout: Longest wait in seconds for the nodes to release it.
            dry_run: Whether only to return what would happen; no function is called.

        Raises:
            AssemblyError: OCQ-509 for a name that is not a group.
            ResetError: OCQ-612, if too many events wait in the inbox; OCQ-613, if the group cannot be reset, or there
                is no such position; OCQ-614, if an ``@on_reset`` function has raised its cause.
            WaitTimedOutError: OCQ-536, if a node has not released them in time.
            EventStoreError: OCQ-310, if the progress belongs to another number of partitions.
        """
        group = group_named(name, self._groups)
        parts, discovered = self._parts[group.name], self._container.discovered()
        tracker = parts.tracker()
        if not isinstance(tracker, ResettableTracker) or isinstance(tracker, InMemoryProgressTracker):
            what = f"the progress of group '{group.name}' cannot be reset: {_why_not(tracker)}"
            raise ResetError("OCQ-613", what, f"group {group.name}", "keep progress in a database")
        own = discovered.functions_of(Declaration.ON_RESET, group.name)
        functions = [_bound(each, discovered) for each in own]
        source = self._container.event_store()
        head = source.head()
        position = self._position(target, source, head)
        at = in_milliseconds(self._container.clock().now())
        reset = Reset(group.name, position, _as_json(context, group.name), " ".join(reason.split()), at)
        fingerprint = source.fingerprint(position)
        if dry_run:
            reset = _of_this_log(tracker, source, reset)
            self._never_handled(tracker, reset)
            foreseen, omitted_after = _foreseen(tracker, reset), _omitted_after(tracker, reset)
            running = self._pausing.runs(group.name)
            return ResetResult(reset, head, foreseen, running, dry_run=True, omitted_after=omitted_after)
        partitions = partitions_of(tracker, group)
        with self._pausing.paused(group.name, timeout) as running:
            if target.to == "head":  # nodes have handled more events until they released the group
                head = position = source.head()
                reset, fingerprint = replace(reset, position=position), source.fingerprint(position)
            reset, omitted_after = _of_this_log(tracker, source, reset), _omitted_after(tracker, reset)
            new = self._never_handled(tracker, reset)
            opening = tracker.resetting(reset, partitions, fingerprint=fingerprint, never_handled=new)
            with _whole(functions, group.name), opening as opened:
                for function, place in functions:
                    _call(function, place, reset, Work(group.name, Partition(1, 0), opened.unit), tracker)
            result = ResetResult(reset, head, opened.replays, running, omitted_after=omitted_after)
            why = f": {reset.reason}" if reset.reason else ""
            _log.info("group %s was reset to position %d by %s%s", group.name, position, actor(), why)
        return result

    def _never_handled(self, tracker: ProgressTracker, reset: Reset) -> NeverHandled:
        """Return what finds the events that are new though a partition is beyond them.

        Raises:
            ResetError: OCQ-613, if that cannot be found, and functions of the group look at it.
        """
        parts = self._parts[reset.group]
        processing: GroupProcessing = parts.processing()
        if not self._looks_at_replays(reset.group):
            return partial(_handled_later, reset.group, processing)
        if not is_resequenced(tracker, reset.group, parts.code().sequencing):
            return partial(_handled_later, reset.group, processing)
        statuses = statuses_of(tracker, reset.group)
        with _sequenced(reset.group):
            require_same_events(reset, statuses, processing)
        return partial(_new_for_all, statuses, never_handled(tracker, reset, statuses))

    def _looks_at_replays(self, group: str) -> bool:
        """Return whether functions of a group are left out of replays, or can ask for them."""
        around = (one for one in self._container.discovered().interceptors if one.mark.group in ("", group))
        handlers = self._parts[group].handlers()
        asks = any(one.handler.mark.replay is False or one.signature.asks_for(Kind.CONTEXT) for one in handlers)
        return asks or any(around)

    def _position(self, target: ResetTarget, source: EventSource, head: int) -> int:
        given = [each for each in (target.to, target.position, target.time, target.event) if each is not None]
        if len(given) != 1:
            what = "name one place to reset to: tail, head, a position, a time or an event"
            raise ResetError("OCQ-613", what, fix="opencqrs groups reset NAME --to tail")
        if target.to is not None:
            if target.to not in ("tail", "head"):
                raise ResetError("OCQ-613", f"'{target.to}' is neither tail nor head", fix="use --to tail")
            return 0 if target.to == "tail" else head
        if target.position is not None:
            if not 0 <= target.position <= head:
                what = f"position {target.position:,} is not in the log, whose newest event is at {head:,}"
                raise ResetError("OCQ-613", what, fix=f"use 0 to {head}")
            return target.position
        if target.time is not None:
            return source.position_before(target.time)
        return self._before(target.event or "", target.source, source)

    def _before(self, event_id: str, of_source: str, source: EventSource) -> int:
        found = find_event(source, event_id, of_source)
        if not found:
            what = f"there is no event {event_id!r}" + (f" of source {of_source!r}" if of_source else "")
            raise ResetError("OCQ-613", what, fix="look at opencqrs events list")
        if len(found) > 1:
            sources = listed(repr(one.source) for one in found)
            raise ResetError("OCQ-613", f"several sources have an event {event_id!r}", sources, "add --source")
        return found[0].position - 1


def _foreseen(tracker: ProgressTracker, reset: Reset) -> Mapping[Partition, Replay | None]:
    """Return what would be handled again by how far the group is now, waiting events left out."""
    own = statuses_of(tracker, reset.group)
    reached = ((status, status.position if status.ahead is None else status.ahead.until) for status in own)
    return {status.partition: replay_after(reset, position, status.replay) for status, position in reached}


def _of_this_log(tracker: ProgressTracker, source: EventSource, reset: Reset) -> Reset:
    """Return a reset by which only events of this log count as handled, as after it was restored."""
    reached = max((status.farthest for status in statuses_of(tracker, reset.group)), default=0)
    newest = source.head()  # read after the progress, so it is not before that in the same log
    if reached <= newest:
        return reset
    text = "the log ends at position %d, and group %s has handled events up to %d: what is added from now on is new"
    _log.warning(text, newest, reset.group, reached)
    return replace(reset, newest=newest)


def _omitted_after(tracker: ProgressTracker, reset: Reset) -> int | None:
    """Return after which position a reset leaves out what a group has not handled yet; ``None`` if it does not."""
    positions = (status.position for status in statuses_of(tracker, reset.group))
    return min((position for position in positions if position < reset.position), default=None)


def _bound(function: GroupFunction, discovered: Discovered) -> tuple[ResetFunction, str]:
    call = of_reset(function.call, function.place, discovered.injector, ON_RESET)
    return call, function.place


def _handled_later(group: str, processing: GroupProcessing, cursor: Cursor) -> Collection[int]:
    if cursor.ahead is None:
        return ()
    with _sequenced(group):
        return processing.never_handled(cursor)


def _new_for_all(statuses: Sequence[PartitionStatus], new: Collection[int], cursor: Cursor) -> Collection[int]:
    """Return what is new, if the partition is where it was; a group that uses locks is not paused for a reset."""
    if all(one.partition != cursor.partition or one.position == cursor.stored for one in statuses):
        return new
    what = f"partition {cursor.partition} has handled events meanwhile, and its events are sequenced in another way now"
    raise ResetError("OCQ-613", what, fix="stop the processes with the earlier code, and reset it again")


@contextmanager
def _sequenced(group: str) -> Iterator[None]:
    """Explain, with OCQ-613, that the sequence of an event cannot be determined in this block."""
    try:
        yield
    except UnsequencedError as failed:
        what = f"the sequence of {failed.event.label} cannot be determined: {failed.error}"
        raise ResetError("OCQ-613", what, f"group {group}", "fix its resolver") from failed


def _call(function: ResetFunction, place: str, reset: Reset, work: Work, tracker: ProgressTracker) -> None:
    try:
        function(reset, work)
    except ExplainedError:
        raise
    except BaseException as error:
        raise_interrupt(error)
        if tracker.is_outage(error):
            raise
        what = f"@on_reset of group '{reset.group}' raised {type_name(error)}: {message_of(error)}"
        raise ResetError("OCQ-614", what, place, "nothing was changed; fix the function and reset again") from error


@contextmanager
def _whole(functions: Sequence[tuple[ResetFunction, str]], group: str) -> Iterator[None]:
    """Explain, with OCQ-614, that one of the functions has ended the transaction of the reset in this block."""
    try:
        yield
    except TransactionEndedError as error:
        what = f"@on_reset of group '{group}' ended the transaction of the reset: what it wrote may be kept, but the "
        what += "group was not reset"
        fix = "leave out what commits or rolls back, and reset again; until then its tables may lack rows"
        raise ResetError("OCQ-614", what, ", ".join(place for _, place in functions), fix) from error


def _as_json(context: Any, group: str) -> Any:
    """Return a context as it comes back from where it is stored."""
    try:
        return json.loads(json.dumps(context, allow_nan=False))
    except (TypeError, ValueError) as error:
        what = f"the context of a reset is kept as JSON, and this one cannot be: {message_of(error)}"
        raise ResetError("OCQ-613", what, f"group {group}", "use JSON values") from None


def _why_not(tracker: ProgressTracker) -> str:
    if isinstance(tracker, InMemoryProgressTracker):
        return "it is in the memory of the process that runs it, whose next start handles everything again"
    return "its tracker does not support it"
