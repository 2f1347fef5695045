"""Coordination by locks of the user's own registry: a node drives a partition while it holds its lock."""

from __future__ import annotations

import inspect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from threading import Condition, Thread
from typing import Any, TypeAlias

from opencqrs_py.control.records import GroupPartition
from opencqrs_py.engines.coordination import LeaseTiming
from opencqrs_py.engines.leading import END_PATIENCE, EngineErrors, LedPartitions, join_all, logger
from opencqrs_py.engines.runs import Engine, engine_has_ended
from opencqrs_py.model.naming import listed
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.times import in_milliseconds
from opencqrs_py.processing.exceptions import one_line, raise_interrupt
from opencqrs_py.processing.loggers import enable_loggers
from opencqrs_py.processing.ports import Lock, LockRegistry

_BRIEF_SECONDS = 0.25  # between two checks whether a partition, and so its lock, can be released
_LOST = "node %s has lost the lock of %s: %s"
_FAILS = "node %s cannot use the lock of %s, and tries again at each heartbeat: %s"
_ENDS = "node %s leaves the lock of %s to its end: %s"

_Failures: TypeAlias = dict[tuple[str, str], list[GroupPartition]]  # by the message and its reason


@dataclass(frozen=True, slots=True)
class LockedGroup:
    """A group whose partitions are assigned by locks.

    Attributes:
        partitions: All its partitions.
        registry: Knows their locks.
        engine: Drives them.
        exclusive: Whether the node runs either all of them or none.
        most: Most of them that the node takes, at least 1; ``None``: all. Does not apply to an exclusive group.
    """

    partitions: tuple[Partition, ...]
    registry: LockRegistry
    engine: Engine
    exclusive: bool = False
    most: int | None = None


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A lock that this node holds.

    Attributes:
        since: ISO 8601 time at which it was taken.
        seconds_left: How long it counts as held if it is not renewed again.
    """

    since: str
    seconds_left: float


class _State(Enum):
    FREE = auto()  # not this node's
    HELD = auto()
    ENDING = auto()  # the engine has to release the partition first, then the lock is released


@dataclass(slots=True, eq=False)
class _PartitionLock:
    """The lock of one partition. ``due`` is the time of the next call of the registry."""

    key: GroupPartition
    group: LockedGroup
    lock: Lock | None = None
    state: _State = _State.FREE
    term: int = 0
    since: str = ""
    due: float = float("-inf")
    valid_until: float = 0.0
    failure: str = ""  # the registry's last error, until it works again

    @property
    def name(self) -> str:
        """The key under which OpenCQRS locks the same partition."""
        return f"[group={self.key.group}, partition={self.key.partition.residue}]"


class LockCoordinator:
    """Has the engines of a node drive the partitions whose locks it holds.

    All calls of registries and locks come from one thread, which renews held locks at each heartbeat, whatever
    handlers do. Another one assigns and releases partitions; it releases those whose locks were not renewed in time,
    even while a call of a registry hangs. Errors of a registry are logged once, and its calls are repeated.

    Args:
        node: Name of this node, for messages.
        groups: The groups, by name.
        timing: How long a lock counts as held after a renewal, from before it was sent; and how often it is renewed.
        now: Returns the seconds of a clock that never goes back and does not stop while the machine sleeps.
        is_outage: Returns whether an engine could not claim a partition because a database is unavailable.
        most: Most partitions that the node takes in all; ``None``: no limit.
    """

    def __init__(
        self,
        node: str,
        groups: Mapping[str, LockedGroup],
        timing: LeaseTiming,
        now: Callable[[], float],
        is_outage: Callable[[BaseException], bool],
        most: int | None = None,
    ) -> None:
        self.node = node
        self._groups = groups
        self._timing = timing
        self._now = now
        self._is_outage = is_outage
        self._most = most
        keys = ((GroupPartition(name, each), group) for name, group in groups.items() for each in group.partitions)
        self._locks = [_PartitionLock(key, group) for key, group in keys]
        engines = {name: group.engine for name, group in groups.items()}
        self._led = LedPartitions(engines, timing.heartbeat, now, "lock")
        self._errors = EngineErrors(node, engines)
        self._rounds = 0
        self._version = 0  # increases with each change that the engines have to follow
        self._away = False
        self._announced = ""
        self._failure: BaseException | None = None
        self._stopping = False
        self._leaving = False
        self._changed = Condition()

        # Created early: a handler may have removed a hook of Python that new threads need.
        self._keeping, self._coordinating = (
            Thread(target=self._guarded, args=(work,), name=f"opencqrs-{name}", daemon=True)
            for name, work in (("locks", self._keep_locks), ("lock-coordination", self._coordinate))
        )

    def join(self) -> None:
        """Request the locks, and wait for the answers, or for ``end`` in another thread. Nothing is assigned yet."""
        self._keeping.start()
        with self._changed:
            self._changed.wait_for(lambda: self._rounds or self._stopping or self._failure is not None)
        self.check()

    def start(self) -> None:
        """Assign the partitions whose locks are held, and follow the locks until ``end``."""
        if not self._stopping:
            self.reconcile()
            self._coordinating.start()

    def check(self) -> None:
        """Raise the error that ended the coordination, if any."""
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Stop assigning, releasing and locking. Held locks are renewed until ``leave``."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        join_all([self._coordinating], END_PATIENCE)

    def leave(self) -> None:
        """Release the locks of partitions that the engines have released, and the others as soon as they have.

        If that takes long, it continues in the background.
        """
        with self._changed:
            self._stopping = self._leaving = True
            self._changed.notify_all()
        join_all([self._keeping], END_PATIENCE)

    def lingering(self) -> list[Thread]:
        """Return the threads for which ``end`` and ``leave`` stopped waiting."""
        return [each for each in (self._coordinating, self._keeping) if each.is_alive()]

    def held(self) -> dict[GroupPartition, HeldLock]:
        """Return the locks held now."""
        now = self._now()
        return {
            each.key: HeldLock(each.since, each.valid_until - now)
            for each in self._locks
            if each.state is _State.HELD and now < each.valid_until
        }

    def missing(self) -> list[tuple[GroupPartition, str]]:
        """Return the partition of each exclusive group whose lock was not available, with the registry's error."""
        if self._stopping:
            return []
        free = {each.key.group: each for each in reversed(self._locks) if each.state is not _State.HELD}
        return [(each.key, each.failure) for each in free.values() if each.group.exclusive]

    def round(self) -> None:
        """Renew, release and acquire the locks that are due. Called by one thread only."""
        enable_loggers()  # as a heartbeat does
        failures: _Failures = defaultdict(list)
        self._end_of_ended_engines()
        self._renew_due(failures)
        self._give_up_released(failures)
        if not self._stopping:
            self._errors.report()
            for group in self._groups.values():
                if not engine_has_ended(group.engine):
                    self._take_of(group, failures)
        _log(self.node, failures)
        self._announce()
        with self._changed:
            self._rounds += 1
            self._changed.notify_all()

    def reconcile(self) -> None:
        """Update the engines according to the locks."""
        with self._changed:
            lapsed = [each for each in self._locks if self._has_lapsed(each)]
            for each in lapsed:
                self._end(each)
            held = {each.key: each.term for each in self._locks if each.state is _State.HELD}
        if lapsed:
            _log(self.node, {(_LOST, self._not_renewed()): [each.key for each in lapsed]})
        assigned = self._led.assigned()
        self._led.release(assigned - held.keys(), 0.0)
        self._led.assign(held.keys() - assigned, held)
        self._away = False
        with self._changed:
            self._changed.notify_all()  # a lock may be released now

    def _end_of_ended_engines(self) -> None:
        """Leave the partitions of engines that have ended to other nodes."""
        for each in self._locks:
            if each.state is _State.HELD and engine_has_ended(each.group.engine):
                self._end(each)

    def _renew_due(self, failures: _Failures) -> None:
        for each in self._locks:
            if each.state is _State.HELD and self._now() >= each.due:
                self._renew(each, failures)

    def _renew(self, each: _PartitionLock, failures: _Failures) -> None:
        asked, reason = self._now(), ""
        if asked >= each.valid_until:
            reason = self._not_renewed()
        else:
            try:
                reason = "" if _answer(_lock_of(each).renew) else "its renewal returned that it is no longer held"
                each.failure = ""
            except BaseException as error:
                raise_interrupt(error)
                each.failure = one_line(error)
                reason = f"its renewal raised {each.failure}"
            if not reason and self._now() >= asked + self._timing.duration:
                reason = self._not_renewed()
        with self._changed:
            if each.state is not _State.HELD:  # it has expired in the meantime
                return
            each.valid_until, each.due = asked + self._timing.duration, asked + self._timing.heartbeat
            if reason:
                self._end(each)
                failures[_LOST, reason].append(each.key)

    def _give_up_released(self, failures: _Failures) -> None:
        assigned = self._led.assigned()
        for each in self._locks:
            if each.key in assigned:
                continue
            if self._leaving and each.state is _State.HELD:
                self._end(each)
            if each.state is _State.ENDING and self._now() >= each.due:
                self._give_up(each, failures)

    def _give_up(self, each: _PartitionLock, failures: _Failures) -> None:
        try:
            if each.lock is not None:
                _called(each.lock.release)
        except BaseException as error:
            raise_interrupt(error)
            self._note(each, error, failures)
            if not self._leaving:
                return
        else:
            each.due = self._now()
        with self._changed:
            each.state = _State.FREE

    def _take_of(self, group: LockedGroup, failures: _Failures) -> None:
        """Acquire the free locks of a group. Of two nodes that want all, the one that gets the first lock gets all."""
        going_on = True
        for each in self._locks:
            if each.group is group and each.state is _State.FREE and self._now() >= each.due:
                going_on = going_on and self._has_room(group)
                if going_on:
                    going_on = self._take(each, failures) or not group.exclusive
                    self._renew_due(failures)  # held locks must not wait for others
                else:
                    each.due = self._now() + self._timing.heartbeat

    def _take(self, each: _PartitionLock, failures: _Failures) -> bool:
        asked = self._now()
        each.due = asked + self._timing.heartbeat
        try:
            if each.lock is None:
                each.lock = _called(each.group.registry.obtain, each.name)
            taken = _answer(each.lock.acquire, 0.0)
        except BaseException as error:
            raise_interrupt(error)
            self._note(each, error, failures)
            with self._changed:
                each.state = _State.ENDING  # it may be held although the answer was lost
            return False
        each.failure = ""
        if taken:
            with self._changed:
                each.state = _State.HELD
                each.term += 1
                each.since = in_milliseconds(datetime.now(UTC))
                each.valid_until = asked + self._timing.duration
                self._version += 1
                self._changed.notify_all()
        return taken

    def _has_room(self, group: LockedGroup) -> bool:
        mine = [each for each in self._locks if each.state is not _State.FREE]
        of_group = sum(each.group is group for each in mine)
        has_room = group.most is None or group.exclusive or of_group < group.most
        return has_room and (self._most is None or len(mine) < self._most)

    def _end(self, each: _PartitionLock) -> None:
        with self._changed:
            each.state, each.due = _State.ENDING, self._now()
            self._version += 1
            self._changed.notify_all()

    def _note(self, each: _PartitionLock, error: BaseException, failures: _Failures) -> None:
        """Remember an error of the registry, to be logged unless it was logged already."""
        each.due = self._now() + self._timing.heartbeat
        if not each.failure:
            failures[_ENDS if self._leaving else _FAILS, one_line(error)].append(each.key)
        each.failure = one_line(error)

    def _announce(self) -> None:
        """Log this node's share, if it has changed."""
        if self._stopping:
            return
        held = Counter(each.key.group for each in self._locks if each.state is _State.HELD)
        shares = [f"{name} {held[name]} of {len(group.partitions)}" for name, group in self._groups.items()]
        said = f"node {self.node} has partitions: {', '.join(shares)}"
        if not held:
            said = f"node {self.node} stands by: other processes have all locks"
        if said != self._announced and (held or not any(each.failure for each in self._locks)):
            logger.info("%s", said)
            self._announced = said

    def _not_renewed(self) -> str:
        return f"it was not renewed within {self._timing.duration:g} s"

    def _has_lapsed(self, each: _PartitionLock) -> bool:
        return each.state is _State.HELD and self._now() >= each.valid_until

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # check() reports it; the end of a thread alone is not noticed
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()

    def _keep_locks(self) -> None:
        while not ((leaving := self._leaving) and all(each.state is _State.FREE for each in self._locks)):
            self.round()
            self._rest(leaving=leaving)

    def _rest(self, *, leaving: bool) -> None:
        """Wait until a lock is due, or until something has changed since the node was ``leaving`` or not."""
        with self._changed:
            if self._leaving == leaving:
                self._changed.wait(self._pause())

    def _pause(self) -> float:
        waits, now = [_BRIEF_SECONDS if self._leaving else self._timing.heartbeat], self._now()
        for each in self._locks:
            left = each.due - now
            if each.state is _State.ENDING and left <= 0:  # its partition is not released yet
                waits.append(_BRIEF_SECONDS)
            elif each.state is not _State.FREE or not self._stopping:
                waits.append(left)
        return max(0.0, min(waits))

    def _coordinate(self) -> None:
        version = -1
        while self._changes(version):
            version = self._version
            with self._through_outages():
                self.reconcile()

    def _changes(self, version: int) -> bool:
        """Wait for a change of a lock or a heartbeat; return ``False`` at the end."""
        with self._changed:
            ends = [each.valid_until for each in self._locks if each.state is _State.HELD]
            until = min([self._now() + self._timing.heartbeat, *ends])
            while not self._stopping and self._version == version and (left := until - self._now()) > 0:
                self._changed.wait(left)
            return not self._stopping

    @contextmanager
    def _through_outages(self) -> Iterator[None]:
        """Log that a database is unavailable, once, and leave it to the next heartbeat."""
        try:
            yield
        except Exception as error:
            if not self._is_outage(error):
                raise
            if not self._away:
                logger.warning("node %s cannot claim partitions: %s", self.node, one_line(error))
            with self._changed:
                self._away = True
                self._changed.notify_all()


def _log(node: str, failures: Mapping[tuple[str, str], Sequence[GroupPartition]]) -> None:
    for (text, reason), keys in failures.items():
        logger.warning(text, node, listed([f"[{key}]" for key in keys]), reason)


def _lock_of(each: _PartitionLock) -> Lock:
    if each.lock is None:
        raise ValueError(f"the lock of {each.key} was never acquired")
    return each.lock


def _answer(method: Callable[..., bool], *arguments: object) -> bool:
    """Return the result of a lock's method, which must be a ``bool``."""
    answer = _called(method, *arguments)
    if not isinstance(answer, int):
        raise TypeError(f"{method.__qualname__}() returned {type(answer).__name__}, not whether the lock is held")
    return bool(answer)


def _called(method: Callable[..., Any], *arguments: object) -> Any:
    """Return the result of a user's method; refuse an awaitable, since nothing has happened yet."""
    result = method(*arguments)
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(f"{method.__qualname__}() is async; locks are used without an event loop")
    return result
