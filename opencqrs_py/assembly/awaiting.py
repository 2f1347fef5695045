"""Waiting until groups have stored their progress up to a position, whichever process runs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from threading import Lock
from typing import Protocol

from opencqrs_py.adapters.memory import InMemoryProgressTracker
from opencqrs_py.assembly.health import Standing, is_unowned, obstacle
from opencqrs_py.assembly.overview import Overview, Running
from opencqrs_py.config import EffectiveGroup
from opencqrs_py.engines.watching import HeadWatcher
from opencqrs_py.errors import AssemblyError, NotReachedError, WaitTimedOutError
from opencqrs_py.model.rebuild import RebuildPhase
from opencqrs_py.processing.finding import find_event
from opencqrs_py.processing.ports import EventSource, ProgressTracker, RebuildRecords
from opencqrs_py.processing.positions import newest_in
from opencqrs_py.processing.reaching import WatchedGroup, reached

_FIRST_LOOK_SECONDS = 0.05  # until the first check whether the wait may never end: most waits are over by then
_POLL_SECONDS = 0.5  # between two such checks
_SWAP_SECONDS = 10.0  # for which no process may run a group whose tables are swapped, or just were
_REJOIN_SECONDS = 10.0  # and a heartbeat, for which no process may run it after an outage or the end of its leases


class SeenProgress(Protocol):
    """How many positions a group has stored, as seen by a waiting thread: a ``HeadWatcher`` in production."""

    @property
    def head(self) -> int:
        """How many positions, as far as is known."""
        ...

    @property
    def refusal(self) -> BaseException | None:
        """Why the progress cannot be read, other than an outage."""
        ...

    def wait_beyond(self, position: int, seconds: float) -> None:
        """Wait until there are more, or the time is over."""
        ...


class _UnownedError(NotReachedError):
    """No process runs the group."""


@dataclass(slots=True)
class _Grace:
    """Until when a group may be without a process, which is expected to join again."""

    until: float = -inf

    def extend(self, until: float) -> None:
        self.until = max(self.until, until)


@dataclass(slots=True)
class _Shared:
    watcher: HeadWatcher
    users: int = 0


class Watched:
    """The groups whose progress this process waits for: one watch per group, shared by all waiting threads.

    Args:
        hasten: Has groups that run in this process store their progress without delay.
    """

    def __init__(self, hasten: Callable[[str], None]) -> None:
        self._hasten = hasten
        self._watchers: dict[tuple[int, str], _Shared] = {}
        self._lock = Lock()

    @contextmanager
    def progress(self, tracker: ProgressTracker, group: str) -> Iterator[SeenProgress]:
        """Open a watch on the progress of a group, or share the one that is open."""
        key = (id(tracker), group)
        with self._lock:
            shared = self._watchers.setdefault(key, _Shared(HeadWatcher(WatchedGroup(tracker, group))))
            shared.users += 1
        try:
            self._hasten(group)
            yield shared.watcher
        finally:
            with self._lock:
                shared.users -= 1
                is_last = not shared.users
                if is_last and self._watchers.get(key) is shared:
                    del self._watchers[key]
            if is_last:
                shared.watcher.stop()

    def renew(self, tracker: ProgressTracker, group: str, seen: SeenProgress) -> None:
        """Make the next caller open its own watch: ``seen`` is progress that has gone back, as by a reset.

        The callers that share it still see later progress.
        """
        key = (id(tracker), group)
        with self._lock:
            if (shared := self._watchers.get(key)) is not None and shared.watcher is seen:
                del self._watchers[key]


@dataclass(frozen=True, slots=True)
class Awaiting:
    """Waits for the progress of groups.

    Attributes:
        overview: The groups.
        source: The event store.
        watched: What threads of this process share.
        running: Returns the partitions that this process has.
        check: Raises what has ended an engine of this process.
        now: Returns the seconds of a clock that never goes back.
    """

    overview: Overview
    source: EventSource
    watched: Watched
    running: Callable[[], Running]
    check: Callable[[], None]
    now: Callable[[], float] = field(default=time.monotonic)

    def target(self, position: int | str | None, source: str = "") -> int:
        """Return the position to wait for: a number, that of an event by its id, or that of the newest event.

        Raises:
            NotReachedError: OCQ-543, if no event has the id.
            AssemblyError: OCQ-544, if events of several sources have it.
            ValueError: If the position is less than 0.
        """
        if position is None:
            return newest_in(self.source)
        if not isinstance(position, str):
            if position < 0:
                raise ValueError(f"a position must be at least 0, not {position}")
            return position
        found = find_event(self.source, position, source)
        if not found:
            of = f" of source '{source}'" if source else ""
            what = f"the event store has no event with the id '{position}'{of}"
            fix = "wait only after the append has returned; see opencqrs events list"
            raise NotReachedError("OCQ-543", what, self._store, fix)
        if len(found) > 1:
            sources = ", ".join(f"'{each.source}' (position {each.position})" for each in found[:10])
            what = f"{len(found)} sources have an event with the id '{position}': {sources}"
            raise AssemblyError("OCQ-544", what, self._store, "name one of them: source=, or --source")
        return found[0].position

    def wait(self, groups: Sequence[EffectiveGroup], position: int, timeout: float, newest: int = 0) -> None:
        """Wait until every partition of the groups has stored its progress up to a position.

        Args:
            groups: The groups.
            position: The position.
            timeout: Longest wait in seconds.
            newest: Position up to which the log is known to reach; progress that is beyond is compared with it again.

        Raises:
            NotReachedError: OCQ-542, if a partition has failed, is stopped, or no process runs it; or if its progress
                belongs to another, longer log.
            WaitTimedOutError: OCQ-536, with the partitions that have not reached it.
        """
        end = self.now() + timeout
        for settings in groups:
            waiting = self._wait(settings, position, end, newest)
            if waiting:
                raise _timed_out(settings.name, position, timeout, waiting)

    def _wait(self, settings: EffectiveGroup, position: int, end: float, newest: int) -> list[str]:
        """Wait until ``end``; return why partitions have not reached the position, empty if all have."""
        tracker = self.overview.parts[settings.name].tracker()
        while (stored := reached(tracker, settings.name) - 1) < position:
            with self.watched.progress(tracker, settings.name) as progress:
                if progress.head <= position:
                    return self._watch(settings, tracker, position, end, progress)
            self.watched.renew(tracker, settings.name, progress)  # if this was seen before the progress has gone back
        if stored > newest and self._ends_before(stored, tracker):
            self._refuse_other_log(settings, position)
        return []

    def _ends_before(self, stored: int, tracker: ProgressTracker) -> bool:
        """Return whether the log ends before progress; while that cannot be known, the progress counts."""
        try:
            return newest_in(self.source) < stored
        except Exception as error:
            if not (tracker.is_outage(error) or self.source.is_outage(error)):
                raise
            return False

    def _refuse_other_log(self, settings: EffectiveGroup, position: int) -> None:
        look = self.overview.look([settings], self.source, self.running())
        for each in self.overview.standings(settings, look, self.source):
            if each.is_beyond and (why := obstacle(each)) is not None:
                raise NotReachedError("OCQ-542", *_not_reached(each, position, why))

    def _watch(
        self, settings: EffectiveGroup, tracker: ProgressTracker, position: int, end: float, progress: SeenProgress
    ) -> list[str]:
        """Watch progress until then; return as above."""
        next_poll, unable_since, grace = self.now() + _FIRST_LOOK_SECONDS, inf, _Grace()
        while progress.head <= position:
            now = self.now()
            if now >= min(end, next_poll):
                try:
                    waiting, unable_since = self._look(settings, tracker, position, grace), inf
                except _UnownedError as error:
                    unable_since = min(unable_since, now)
                    is_expected = now < unable_since + _SWAP_SECONDS and _may_be_swapped(settings.name, tracker)
                    if not is_expected and now >= grace.until:
                        raise
                    waiting = [error.what]
                if not waiting or now >= end:
                    return waiting
                next_poll = self.now() + _POLL_SECONDS
            progress.wait_beyond(position, max(0.0, min(end, next_poll) - self.now()))
            if progress.refusal is not None:
                raise progress.refusal
        return []

    def _look(self, settings: EffectiveGroup, tracker: ProgressTracker, position: int, grace: _Grace) -> list[str]:
        """Return why partitions have not reached the position, empty if all have; raise if one cannot reach it."""
        rejoin = _REJOIN_SECONDS + settings.life_cycle.lease.heartbeat
        self.check()
        try:
            look = self.overview.look([settings], self.source, self.running())
            standings = self.overview.standings(settings, look, self.source)
            if reached(tracker, settings.name) > position:
                return []
        except Exception as error:
            if not (tracker.is_outage(error) or self.source.is_outage(error)):
                raise
            if tracker.is_outage(error):  # an outage of the event store alone ends no leases
                grace.extend(self.now() + rejoin)
            return [f"the database is unavailable: {error}"]
        if look.progress_outage:
            grace.extend(self.now() + rejoin)
        behind = [each for each in standings if each.status is None or each.status.position < position]
        for each in behind:
            if each.lapsed is not None:
                grace.extend(self.now() + rejoin - each.lapsed)
            why = _unseen(each, tracker) or obstacle(each)
            if why is not None:
                may_be_taken = each.wanted and is_unowned(each) and not each.is_beyond
                raised = _UnownedError if may_be_taken else NotReachedError
                raise raised("OCQ-542", *_not_reached(each, position, why))
        if look.outage:
            return [look.outage]
        return _states(behind) or [f"it has other partitions than {len(standings)}"]

    @property
    def _store(self) -> str:
        return str(self.overview.container.event_store_choice().choice)


def _may_be_swapped(group: str, tracker: ProgressTracker) -> bool:
    """Return whether tables of a group are being swapped, or old ones are kept: the swap may just be over."""
    records = tracker.rebuilt([group]) if isinstance(tracker, RebuildRecords) else []
    phases = (RebuildPhase.SWAPPING, RebuildPhase.SWAPPED)
    return any(record.rebuild is not None and record.rebuild.phase in phases for record in records)


def _unseen(standing: Standing, tracker: ProgressTracker) -> tuple[str, str] | None:
    """Return the reason and the fix, if the progress of a group cannot be read from here."""
    if standing.led or standing.status is not None or not isinstance(tracker, InMemoryProgressTracker):
        return None
    return "its progress is in the memory of the process that runs it", "wait there, or set progress.tracking: sql"


def _not_reached(standing: Standing, position: int, why: tuple[str, str]) -> tuple[str, str, str]:
    """Return what is wrong, where, and what to do, for a reason and its fix."""
    what = f"group '{standing.group}' does not reach position {position}: {_place(standing)}{why[0]}"
    return what, f"group {standing.group}", why[1]


def _place(standing: Standing) -> str:
    if standing.status is None and not standing.able:  # the same for all of them
        return ""
    return f"partition {standing.partition}: "


def _states(behind: Sequence[Standing]) -> list[str]:
    return [f"{'' if number else 'partition '}{_state(each)}" for number, each in enumerate(behind)]


def _state(standing: Standing) -> str:
    """Return in a few words how far a partition is."""
    status = standing.status
    if status is None:
        return f"{standing.partition} has not begun"
    error = f", {status.error}" if status.error else ""
    return f"{standing.partition} is at {status.position} ({status.state.value}{error})"


def _timed_out(group: str, position: int, timeout: float, waiting: list[str]) -> WaitTimedOutError:
    shown = "; ".join(waiting[:5]) + ("; …" if len(waiting) > 5 else "")
    what = f"group '{group}' has not stored position {position} after {timeout:g} s: {shown}"
    return WaitTimedOutError("OCQ-536", what, f"group {group}", "look at opencqrs status, or wait longer")
