"""The processors that an application has started: its engines, and its place among other nodes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from threading import Thread
from typing import TYPE_CHECKING

from opencqrs_py.assembly.jobs.company import company_of
from opencqrs_py.assembly.nodes import (
    coordinator_for,
    has_company,
    lock_coordinator_for,
    node_name,
    require_all_locks,
    require_exclusive,
    runnable_of,
    timing_of,
)
from opencqrs_py.assembly.rebuilds.bars import RebuildBars
from opencqrs_py.assembly.registration import ControllerRegistration, Registered
from opencqrs_py.assembly.status import NodeLoad, RunResult
from opencqrs_py.config import Controller, LifeCycleSettings
from opencqrs_py.control.ports import ControlStore
from opencqrs_py.control.records import GroupPartition, Wanted
from opencqrs_py.engines.coordination import Coordinator, LeaseTiming
from opencqrs_py.engines.job_parts import JobParts
from opencqrs_py.engines.job_runner import JobRunner
from opencqrs_py.engines.leading import Coordination, logger
from opencqrs_py.engines.locking import LockCoordinator, LockedGroup
from opencqrs_py.engines.runs import Engine, GroupRun, begin_stops, end_claims, hasten, load_of
from opencqrs_py.model.progress import OF_OWNERS, PartitionStatus, ProcessorState
from opencqrs_py.model.times import in_milliseconds
from opencqrs_py.processing.ports import Clock, EventSource, LockRegistry, knows_head, report_unfinished
from opencqrs_py.processing.supervision import SupervisedPartition

if TYPE_CHECKING:
    from opencqrs_py.config.settings import NodeSettings


@dataclass(frozen=True, slots=True)
class StartedGroup:
    """A group that the application can run.

    Attributes:
        run: What its engine needs.
        engine: Its engine.
        life_cycle: Its effective settings of this section.
        starts: Whether it starts with the application.
        led: Whether it uses leases.
        locks: The lock registry that leads it; ``None`` if none does.
        registration: What makes the controllers of its partitions; ``None`` if the project has none.

    Without leases, locks and controllers it has all of its partitions for as long as the application runs.
    """

    run: GroupRun
    engine: Engine
    life_cycle: LifeCycleSettings
    starts: bool
    led: bool
    locks: LockRegistry | None = None
    registration: ControllerRegistration | None = None

    @property
    def shared(self) -> bool:
        """Whether other processes may have partitions of it at the same time."""
        return self.led or self.locks is not None

    @property
    def keys(self) -> tuple[GroupPartition, ...]:
        """All its partitions at the start."""
        return tuple(GroupPartition(self.run.group, partition) for partition in self.run.partitions)


class Processors:
    """The processors of one start of an application, until they are stopped.

    Args:
        groups: The groups.
        store: The control tables; ``None`` if no group uses leases.
        source: The event store.
        node: The settings of this process as a node.
        clock: The clock of this process.
        jobs: The jobs that this process runs; ``None``: none.

    Attributes:
        coordinator: What keeps the leases of this process; ``None`` if no group uses leases and there are no jobs.
        jobs: What runs jobs; ``None``: nothing does.
        started: Whether ``start`` has ended.
        stopping: Whether ``stop`` has begun.
    """

    def __init__(
        self,
        groups: Sequence[StartedGroup],
        store: ControlStore | None,
        source: EventSource,
        node: NodeSettings,
        clock: Clock,
        jobs: JobParts | None = None,
    ) -> None:
        self.started = self.stopping = False
        self._groups = groups
        self._source = source
        self._name = node.name or node_name()
        self._engines = list({id(group.engine): group.engine for group in groups}.values())
        self._positions: list[int] = []
        self._target: int | None = None
        self._store = store
        self._shared = frozenset(group.run.group for group in groups if group.shared)
        self._registered = Registered()
        self._announced: set[GroupPartition] = set()
        self._barred: dict[GroupPartition, str] = {}
        led = {each.run.group: each for each in groups if each.led}
        runnable = {name: runnable_of(each.run, each.life_cycle, starts=each.starts) for name, each in led.items()}
        engines = {name: each.engine for name, each in led.items()}
        self.coordinator: Coordinator | None = None
        self._bars = RebuildBars(())
        if store is not None and (led or jobs is not None):
            timing = timing_of(each.life_cycle.lease for each in led.values()) if led else LeaseTiming()
            self._bars = RebuildBars(each.run for each in led.values())
            schedules = {} if jobs is None else jobs.schedules
            self.coordinator = coordinator_for(
                store, node, timing, runnable, engines, self._bars, schedules, clock=clock
            )
        self.jobs = None if jobs is None else JobRunner(jobs, company_of(self.coordinator, self._name, jobs.runners))
        locked = {
            each.run.group: _locked(each, each.locks) for each in groups if each.locks is not None and each.starts
        }
        self._locks: LockCoordinator | None = None
        if locked:
            timing = timing_of(each.life_cycle.lease for each in groups if each.run.group in locked)
            self._locks = lock_coordinator_for(node, timing, locked, self._is_outage)

    @property
    def _coordinations(self) -> list[Coordination]:
        return [each for each in (self.coordinator, self._locks) if each is not None]

    def start(self) -> None:
        """Claim what belongs to this process, then begin; nothing after a stop."""
        if self.stopping:
            return
        for group in self._groups:
            if group.starts and not group.shared and group.registration is None:
                group.engine.assign(group.run.group, group.run.partitions)
        if self.coordinator is not None and self._store is not None:
            self._join_leases(self.coordinator, self._store)
        if self._locks is not None:
            self._locks.join()
            require_all_locks(self._locks)
            self._locks.start()
        for group in self._groups:
            if group.registration is not None:
                self._registered.register(group.registration, group.life_cycle, group.keys, group.engine)
        for engine in self._engines:
            engine.start()
        if self.jobs is not None:
            self.jobs.start()
        self.started = True

    def check(self) -> None:
        """Raise what ended an engine or the coordination, if something did."""
        for engine in self._engines:
            engine.check()
        for coordination in self._coordinations:
            coordination.check()
        if self.jobs is not None:
            self.jobs.check()

    def _join_leases(self, coordinator: Coordinator, store: ControlStore) -> None:
        led = [group for group in self._groups if group.led]
        self._bars.require([group.run.group for group in led if group.starts])
        if has_company(store.view(), [group.run.group for group in led]):
            for engine in {id(group.engine): group.engine for group in led if group.starts}.values():
                engine.warm_up()  # others release their partitions as soon as this node has joined
        coordinator.join()
        require_exclusive(coordinator)
        coordinator.start()
        self._log_stopped(led)

    def _log_stopped(self, led: Sequence[StartedGroup]) -> None:
        for group in led:
            name = group.run.group
            if not group.starts or self._bars.holds(name):
                continue
            wanted = {self._wanted_of(key) for key in self._keys(group)}
            if wanted == {Wanted.STOPPED}:
                logger.warning("group %s is stopped by a command: opencqrs groups start %s", name, name)
            elif Wanted.PAUSED in wanted:
                text = "group %s is paused until a command ends; if the command was killed: opencqrs groups start %s"
                logger.warning(text, name, name)

    def stop(self, patience: float) -> None:
        """Finish the events in hand, for at most ``patience`` seconds in all, and release everything."""
        self.stopping = True
        for engine in self._engines:
            end_claims(engine)  # a controller may be in one, which waits for as long as an outage lasts
        self._registered.stop()
        if self.jobs is not None:
            self.jobs.end()
        for coordination in self._coordinations:
            coordination.end()
        until = time.monotonic() + patience
        for engine in begin_stops(self._engines):
            engine.stop(max(0.0, until - time.monotonic()))
        if self.jobs is not None:
            self.jobs.stop(max(0.0, until - time.monotonic()))
        for coordination in self._coordinations:
            coordination.leave()

    def lingering(self) -> list[Thread]:
        """Return the threads of the coordination that ``stop`` did not wait for: a claim in progress may take long."""
        return [thread for each in self._coordinations for thread in each.lingering()]

    def hasten(self, group: str) -> None:
        """Store progress of a group without delay for a while, as a caller waits for it."""
        for each in self._groups:
            if each.run.group == group:
                hasten(each.engine, group)

    def partitions(self) -> list[SupervisedPartition]:
        """Return the state of every partition that this process has or had."""
        return [partition for engine in self._engines for partition in engine.partitions()]

    def running(self) -> dict[GroupPartition, PartitionStatus]:
        """Return the state of every partition that this process has now."""
        own, assigned = {GroupPartition(p.group, p.partition): p for p in self.partitions()}, self._assigned()
        statuses = {key: partition.status() for key, partition in own.items() if key in assigned}
        held = self._locks.held() if self._locks is not None else {}
        name = self._locks.node if self._locks is not None else ""
        now = datetime.now(UTC)
        for key in statuses.keys() & held.keys():
            until = in_milliseconds(now + timedelta(seconds=held[key].seconds_left))
            found = replace(statuses[key], owner=name, owned_since=held[key].since, lease_until=until)
            statuses[key] = found
        return statuses

    def load(self) -> NodeLoad | None:
        """Return what this process has in hand on Spark; ``None`` if it runs no group there."""
        load = load_of(self._engines)
        id_ = self.coordinator.node.id if self.coordinator is not None else ""
        return None if load is None else NodeLoad(self._name, load, id_)

    def going_on(self, *, until_caught_up: bool) -> bool:
        """Return whether there is something left to do.

        Args:
            until_caught_up: Whether that ends when every partition, in any process, has reached what the newest event
                was at the first call; in compressed files, when a partition had read them.
        """
        self.check()
        partitions = self.partitions()
        awaits_more = bool(self._coordinations) or self._registered.is_running or self.jobs is not None
        if not awaits_more and all(p.over for p in partitions):
            return False
        before, self._positions = self._positions, [p.cursor.position for p in partitions]
        if not until_caught_up or (partitions and before != self._positions):
            return True  # a partition that moves on has not arrived
        try:
            return not self._caught_up() or (self.jobs is not None and self.jobs.is_busy())
        except Exception as error:
            if self._is_outage(error):
                return True
            raise

    def report_unfinished(self) -> None:
        """Log what is at the end of the log and not read: partitions that caught up do not poll again."""
        report_unfinished(self._source)

    def result(self) -> RunResult:
        """Return how the run has ended, for every partition of its groups, in any process."""
        partitions, mine = self.partitions(), self._mine()
        handled = {(p.group, p.partition): p.handled for p in partitions}
        own = [p.status() for p in partitions if p in mine or p.group not in self._shared]
        there = {(status.group, status.partition) for status in own}
        known = self._known(shared=False)
        others = [
            replace(each, error=self._barred.get(GroupPartition(each.group, each.partition), each.error))
            for each in known
            if each.group in self._shared and (each.group, each.partition) not in there
        ]
        parked = sum(count for each in known for _, count in each.parked)
        skipped, expired = _unhandled_of(partitions)
        return RunResult((*own, *others), handled, skipped, parked, expired=expired)

    def stopped_result(self) -> RunResult:
        """Return how the run has ended for the partitions of this process, as ``stop`` was called meanwhile."""
        partitions = self.partitions()
        handled = {(p.group, p.partition): p.handled for p in partitions}
        failed_runs = 0 if self.jobs is None else self.jobs.runs.failed
        statuses, (skipped, expired) = tuple(p.status() for p in partitions), _unhandled_of(partitions)
        return RunResult(statuses, handled, skipped, failed_runs=failed_runs, stopped=True, expired=expired)

    def settled(self, result: RunResult) -> RunResult:
        """Return the result of a run that has stopped since: what failed meanwhile has failed, as do runs of jobs.

        Partitions of this process that have not failed are stopped, unless they could not be.
        """
        partitions = self.partitions()
        at_end = {(p.group, p.partition): p.failed_at_end() for p in partitions}
        handled = {(p.group, p.partition): p.handled for p in partitions}
        over = {(p.group, p.partition) for p in partitions if p.over}
        keyed = (((each.group, each.partition), each) for each in result.partitions)
        known = tuple(_after_stop(each, at_end.get(key), stopped=key in over) for key, each in keyed)
        (skipped, expired), failed_runs = _unhandled_of(partitions), 0 if self.jobs is None else self.jobs.runs.failed
        done = replace(result, partitions=known, handled=handled, skipped=skipped, expired=expired)
        return replace(done, failed_runs=failed_runs)

    def _caught_up(self) -> bool:
        mine = self._mine()
        if self._target is None and not knows_head(self._source) and not all(map(_has_ended, mine)):
            return False  # a partition that reads to the end counts the log in passing, and is not there yet
        head = self._target = self._source.head() if self._target is None else self._target
        for partition in mine:
            partition.handle_at_once(head)
        if not all(p.done(head) or _has_ended(p) for p in mine):
            return False
        there = {GroupPartition(p.group, p.partition) for p in mine}
        waited_for = {
            key
            for group in self._groups
            if group.shared and group.starts
            for key in self._keys(group)
            if self._commanded(key) is not Wanted.STOPPED  # what a command has paused continues after it
        }
        pending = self._registered.pending() if head else set()
        missing = (waited_for - there) | pending
        done = {
            GroupPartition(status.group, status.partition)
            for status in (self._known(shared=not pending) if missing else ())
            if status.position >= head or status.state is ProcessorState.FAILED
        }
        self._log_pending(pending - done)
        self._barred = self._barred_of(missing - done)
        return missing <= done | self._barred.keys()

    def _barred_of(self, keys: Iterable[GroupPartition]) -> dict[GroupPartition, str]:
        """Return why some partitions are not waited for: no node may run them until a person acts."""
        return {
            key: f"[{error.code}] {error.what}"
            for key in keys
            if (error := self._bars.lasting(key.group)) is not None and self._wanted_of(key) is Wanted.STOPPED
        }

    def _log_pending(self, pending: set[GroupPartition]) -> None:
        for key in sorted(pending - self._announced):
            logger.info("waiting until %s has caught up, which its controller may still start", key)
        self._announced |= pending

    def _mine(self) -> list[SupervisedPartition]:
        """Return the partitions that this process has now; of groups that are not shared also those that it had."""
        found, assigned = self.partitions(), self._assigned()
        return [p for p in found if GroupPartition(p.group, p.partition) in assigned or p.group not in self._shared]

    def _assigned(self) -> set[GroupPartition]:
        return {key for engine in self._engines for key in engine.assigned()}

    def _is_outage(self, error: BaseException) -> bool:
        trackers = (group.run.processing.tracker for group in self._groups)
        return self._source.is_outage(error) or any(tracker.is_outage(error) for tracker in trackers)

    def _keys(self, group: StartedGroup) -> Sequence[GroupPartition]:
        """Return all partitions of a group; if it uses leases, its current ones."""
        view = self.coordinator.view if self.coordinator is not None and group.led else None
        leased = [lease.key for lease in view.leases if lease.key.group == group.run.group] if view is not None else []
        return leased or group.keys

    def _wanted_of(self, key: GroupPartition) -> Wanted:
        view = self.coordinator.view if self.coordinator is not None else None
        return Wanted.STARTED if view is None else view.wanted_of(key)

    def _commanded(self, key: GroupPartition) -> Wanted | None:
        view = self.coordinator.view if self.coordinator is not None else None
        return None if view is None else view.commanded(key)

    def _known(self, *, shared: bool = True) -> list[PartitionStatus]:
        """Return what trackers have of the partitions of groups that run, of each its own; only of those shared."""
        runs = [each.run for each in self._groups if each.starts and (each.shared or not shared)]
        own = {(id(run.processing.tracker), run.group): run.processing.tracker for run in runs}
        trackers = {key: tracker for (key, _), tracker in own.items()}  # groups share that of the database
        statuses = ((key, status) for key, tracker in trackers.items() for status in tracker.statuses())
        return [status for key, status in statuses if (key, status.group) in own]


def _unhandled_of(partitions: Sequence[SupervisedPartition]) -> tuple[int, int]:
    """Return how many events were skipped in this process, and how many have expired."""
    return sum(p.skipped for p in partitions), sum(p.expired for p in partitions)


def _has_ended(partition: SupervisedPartition) -> bool:
    return partition.over or partition.state is ProcessorState.FAILED


def _after_stop(before: PartitionStatus, failed: PartitionStatus | None, *, stopped: bool) -> PartitionStatus:
    """Return the status of a partition after the stop; what another process has stored since this one had it counts."""
    if failed is not None and failed.position >= before.position:
        return failed
    if stopped and before.state in OF_OWNERS and not before.owner:  # else another process has taken it
        return replace(before, state=ProcessorState.STOPPED)
    return before


def _locked(group: StartedGroup, registry: LockRegistry) -> LockedGroup:
    rule = group.life_cycle
    exclusive = rule.controller is Controller.APPLICATION_CONTEXT
    return LockedGroup(group.run.partitions, registry, group.engine, exclusive, rule.max_partitions_per_node)
