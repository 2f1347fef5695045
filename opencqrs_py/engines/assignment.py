"""The assignment of an engine: the partitions of its groups that it has claimed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from threading import Event as Signal
from threading import Lock

from opencqrs_py.control.records import GroupPartition
from opencqrs_py.engines.driver import PartitionDriver, claim, claim_after_timeout, isolating, when_available
from opencqrs_py.engines.recorded_claims import recorded_claim
from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.errors import OpenCqrsError
from opencqrs_py.model.outcome import Failure
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.calls import CallInHand
from opencqrs_py.processing.notices import NO_OBSERVER, Observer
from opencqrs_py.processing.ports import Clock, SucceedingTracker
from opencqrs_py.processing.supervision import SupervisedPartition


class Assignment:
    """The partitions that an engine has. Safe for several threads.

    Args:
        runs: The groups that may be assigned.
        owner: Name under which partitions are claimed.
        clock: Time.
        observer: Observes what happens.
    """

    def __init__(self, runs: Sequence[GroupRun], owner: str, clock: Clock, observer: Observer = NO_OBSERVER) -> None:
        self.runs = {run.group: run for run in runs}
        self._owner = owner
        self._clock = clock
        self._observer = observer
        self._prepared: set[str] = set()
        self._drivers: dict[tuple[str, Partition], PartitionDriver] = {}
        self._known: dict[tuple[str, Partition], SupervisedPartition] = {}
        self._stopping = Signal()
        self._lock = Lock()
        self._claiming = Lock()  # held during a claim, so that no partition is claimed twice at once

    def claim(self, group: str, partitions: Sequence[Partition]) -> list[PartitionDriver]:
        """Claim the partitions that the engine does not have, or has lost; return their drivers.

        The group is prepared before each claim that finds it without partitions here. During an outage the claim is
        tried again until ``stop``, after which nothing is claimed: the partitions may be with another node by then.

        Raises:
            ValueError: For an unknown group.
            EventStoreError: As ``driver.claim``.
        """
        run = self._run(group)
        with self._claiming:
            held = {driver.partition for driver in self.of(group) if not driver.over}
            missing = [one for one in partitions if one not in held]
            if not missing or self.stopped:
                return []
            if not held:
                self._prepared.discard(group)  # its tables may have been dropped since it was released
            drivers = when_available(run, missing, lambda: self._claimed(run, missing), self._stopping, self._observer)
            with self._lock:
                for driver in drivers:
                    self._add(driver)
            return drivers

    def claim_again(self, group: str, those: Collection[PartitionDriver], *, crashed: bool) -> None:
        """Claim partitions of the engine again, which fences off any other task that may still work for them.

        Those that it has lost stay with the process that took them over. Nothing happens during an outage, or if the
        claim is refused, for example because the group has new partitions: the next step reports it.

        Args:
            group: Processing group.
            those: The partitions; ones that the engine no longer has are ignored.
            crashed: Whether one of their events may have ended the process that handled them.
        """
        run = self.runs[group]
        drivers = [driver for driver in self.of(group) if driver in those and not driver.over]
        if not drivers:
            return
        tracker = run.processing.tracker
        try:
            partitions = [driver.partition for driver in drivers]
            cursors = recorded_claim(run, partitions, self._owner)
        except Exception as error:
            if not isinstance(error, OpenCqrsError) and not tracker.is_outage(error):
                raise
        else:
            for driver, cursor in zip(drivers, cursors, strict=True):
                driver.supervised.claimed_again(isolating(run, cursor) if crashed else cursor)

    def continued(self, driver: PartitionDriver) -> bool:
        """Continue a partition that a second run of its task has taken over; return ``False`` if another process has.

        It is unknown which run ended first: the second one may still be active, and is fenced off by this.
        """
        run, cursor = self.runs[driver.supervised.group], driver.cursor
        tracker = run.processing.tracker
        if not isinstance(tracker, SucceedingTracker):
            return False
        try:
            found = tracker.succeed(run.group, replace(cursor, epoch=cursor.epoch + 1), self._owner)
        except Exception as error:
            if not tracker.is_outage(error):
                raise
            return True  # the next step reports it
        if found is not None:
            driver.supervised.claimed_again(found)
        return found is not None

    def claim_after_timeout(
        self, hung: PartitionDriver, call: CallInHand, failure: Failure, stopping: Signal
    ) -> PartitionDriver | None:
        """Replace a driver whose thread hangs; ``None`` if it was removed, or ``stopping`` was set, in the meantime.

        An outage is waited for, even if the thread hangs in it. A partition that is released in the meantime may belong
        to another node, and is not claimed.

        Raises:
            EngineLostError: As ``driver.claim_after_timeout``.
        """
        group, partition = hung.supervised.group, hung.partition
        run = self.runs[group]

        def claim_again() -> list[PartitionDriver]:
            if stopping.is_set():
                return []
            return [claim_after_timeout(run, hung, call, failure, self._owner, self._clock, self._observer)]

        with self._claiming:
            if self._drivers.get((group, partition)) is not hung:
                return None
            for driver in when_available(run, [partition], claim_again, stopping, self._observer, hung=True):
                with self._lock:
                    self._add(driver)
                return driver
            self.remove(hung)
            hung.end_without_thread(failure)
        return None

    def of(self, group: str, partitions: Sequence[Partition] | None = None) -> list[PartitionDriver]:
        """Return the drivers of a group, or of some of its partitions.

        Raises:
            ValueError: For an unknown group.
        """
        self._run(group)
        with self._lock:
            of_group = [driver for (name, _), driver in self._drivers.items() if name == group]
        return [driver for driver in of_group if partitions is None or driver.partition in partitions]

    def assigned(self) -> list[GroupPartition]:
        """Return the partitions that the engine has."""
        with self._lock:
            drivers = tuple(self._drivers.values())
        return [GroupPartition(each.supervised.group, each.partition) for each in drivers if not each.over]

    def remove(self, driver: PartitionDriver) -> bool:
        """Remove a driver, so that its partition can be assigned again; return whether it was still assigned."""
        key = (driver.supervised.group, driver.partition)
        with self._lock:
            is_there = self._drivers.get(key) is driver  # otherwise the partition was assigned again since
            if is_there:
                del self._drivers[key]
            return is_there

    def partitions(self) -> Sequence[SupervisedPartition]:
        """Return the state of every partition that the engine has or had."""
        with self._lock:
            return tuple(self._known.values())

    @property
    def stopped(self) -> bool:
        """Whether the assignment is stopped."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Claim nothing more, and stop waiting for the end of an outage."""
        self._stopping.set()

    def _add(self, driver: PartitionDriver) -> None:
        key = (driver.supervised.group, driver.partition)
        if (before := self._known.get(key)) is not None:
            driver.supervised.count_on(before)
        self._drivers[key], self._known[key] = driver, driver.supervised

    def _run(self, group: str) -> GroupRun:
        run = self.runs.get(group)
        if run is None:
            raise ValueError(f"this engine does not run group '{group}'")
        return run

    def _claimed(self, run: GroupRun, partitions: Sequence[Partition]) -> list[PartitionDriver]:
        if run.group not in self._prepared:
            run.prepare()
            self._prepared.add(run.group)
        return claim(run, partitions, self._owner, self._clock, self._observer)
