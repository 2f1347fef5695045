"""The common parts of coordination by leases and by locks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from threading import Thread, current_thread
from typing import Protocol

from typing_extensions import override

from opencqrs_py.control.records import GroupPartition
from opencqrs_py.engines.runs import Engine, engine_has_ended
from opencqrs_py.model.naming import listed
from opencqrs_py.model.outcome import Origin
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.exceptions import failure_of, raise_interrupt
from opencqrs_py.processing.notices import Notice, Observer
from opencqrs_py.processing.recovery import Action

logger = logging.getLogger("opencqrs.control")

START_AGAIN = "stop the application and start it again"
END_PATIENCE = 0.5  # seconds for threads to end, and for the last message to other nodes
_LONGEST_RECLAIM = 600.0  # seconds between two claims of a partition that a process without leases takes over


class Coordination(Protocol):
    """Has the engines of a node drive the partitions that it may drive. Each method is called once, in this order."""

    def join(self) -> None:
        """Find out which partitions this node may drive."""
        ...

    def start(self) -> None:
        """Keep that up to date until ``end``, and have the engines drive these partitions."""
        ...

    def check(self) -> None:
        """Raise the error that ended the coordination, if any."""
        ...

    def end(self) -> None:
        """Stop assigning and releasing."""
        ...

    def leave(self) -> None:
        """Release everything, after the engines have stopped. If that takes long, it continues in the background."""
        ...

    def lingering(self) -> Sequence[Thread]:
        """Return the threads for which ``end`` and ``leave`` have not waited. They may still use the database."""
        ...


class EngineErrors:
    """Logs once each error that ended an engine, or a thread of one: not every program calls ``check``.

    Args:
        node: Name of the node.
        engines: The engine of each group.
    """

    def __init__(self, node: str, engines: Mapping[str, Engine]) -> None:
        self._node = node
        self._engines = engines
        self._reported: set[int] = set()  # engines, by their identity

    def report(self) -> None:
        """Check all engines."""
        for engine in {id(engine): engine for engine in self._engines.values()}.values():
            if id(engine) not in self._reported and (error := _error_of(engine)) is not None:
                self._reported.add(id(engine))
                groups = listed(name for name, of_group in self._engines.items() if of_group is engine)
                then = f" no longer handles their events, {START_AGAIN}" if engine_has_ended(engine) else ""
                failure = failure_of(error, Origin.FRAMEWORK)
                text = "\n".join(filter(None, (str(failure), failure.advice)))
                logger.error("[%s] node %s%s: %s", groups, self._node, then, text)


def _error_of(engine: Engine) -> BaseException | None:
    try:
        engine.check()
    except BaseException as error:
        raise_interrupt(error)
        return error
    return None


class LostPartitions(Observer):
    """Calls a function whenever this process has lost a partition to another one.

    Attributes:
        then: The function, on the thread that drives the partition; it may be set at any time.
    """

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.then = then

    @override
    def noticed(self, notice: Notice) -> None:
        if notice.action is Action.LEAVE:
            self.then()


@dataclass(slots=True)
class _Claim:
    """The claims of a partition under one lease or lock."""

    term: int
    wait: float
    not_before: float = 0.0


class LedPartitions:
    """Has the engines of a node drive exactly the partitions that it holds.

    A partition that was lost although its lease was held is claimed again after a growing wait: a process that does not
    use leases, such as one of an older version, would take it back each time.

    Args:
        engines: The engine of each group, by the group's name.
        first_wait: Seconds before the second repetition of a claim; the first one is at once.
        now: Returns the seconds of a clock that never goes back.
        held_by: ``lease`` or ``lock``, for messages.
    """

    def __init__(
        self, engines: Mapping[str, Engine], first_wait: float, now: Callable[[], float], held_by: str
    ) -> None:
        self._engines = engines
        self._first_wait = first_wait
        self._now = now
        self._held_by = held_by
        self._claims: dict[GroupPartition, _Claim] = {}

    def assigned(self) -> set[GroupPartition]:
        """Return the partitions of these groups that the engines have."""
        engines = {id(engine): engine for engine in self._engines.values()}.values()
        return {key for engine in engines for key in engine.assigned() if key.group in self._engines}

    def assign(self, keys: Collection[GroupPartition], terms: Mapping[GroupPartition, int]) -> None:
        """Assign held partitions that are not driven, if it is time to claim them.

        Args:
            keys: These partitions.
            terms: How often each has changed hands; a new term makes the claim an ordinary one.
        """
        due = self._due(keys, terms)
        try:
            for group, partitions in _by_group(due):
                self._engines[group].assign(group, partitions)
        except BaseException:
            for key in due:
                self._claims.pop(key, None)  # they were not lost to another process
            raise

    def release(self, keys: Collection[GroupPartition], patience: float) -> None:
        """Release partitions; events in hand get ``patience`` seconds."""
        for group, partitions in _by_group(keys):
            self._engines[group].release(group, partitions, patience)

    def _due(self, keys: Collection[GroupPartition], terms: Mapping[GroupPartition, int]) -> list[GroupPartition]:
        due, now = [], self._now()
        for key in keys:
            claim = self._claims.get(key)
            if claim is None or claim.term != terms[key]:
                self._claims[key] = _Claim(terms[key], self._first_wait)
            elif now < claim.not_before:
                continue
            else:
                text = "[%s] is claimed again: it was taken over without its %s, or its tables were swapped"
                logger.warning(text, key, self._held_by)
                claim.not_before = now + claim.wait
                claim.wait = min(2 * claim.wait, _LONGEST_RECLAIM)
            due.append(key)
        return due


def join_all(threads: Iterable[Thread], seconds: float) -> None:
    """Wait until threads have ended, at most ``seconds`` in all.

    Threads that were not started are left out, and so is the current one: project code on any of them may stop the
    application.
    """
    until = time.monotonic() + seconds
    for thread in threads:
        if thread.ident is not None and thread is not current_thread():
            thread.join(max(0.0, until - time.monotonic()))


def _by_group(keys: Iterable[GroupPartition]) -> list[tuple[str, Sequence[Partition]]]:
    found = groupby(sorted(keys), key=lambda key: key.group)
    return [(group, [key.partition for key in of_group]) for group, of_group in found]
