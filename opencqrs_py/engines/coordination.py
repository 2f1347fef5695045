"""The coordination of a node: it extends its leases, and has engines drive the partitions of its share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf
from threading import Condition, RLock, Thread

from opencqrs_py.control.heartbeats import ClockDifference, Heartbeats
from opencqrs_py.control.ports import ControlStore, Notices
from opencqrs_py.control.records import ControlView, GroupPartition, Node, NodeRecord, ProcessIdentity, Wanted
from opencqrs_py.control.sharing import Plan, plan_of
from opencqrs_py.engines.leading import END_PATIENCE, START_AGAIN, EngineErrors, LedPartitions, join_all, logger
from opencqrs_py.engines.runs import Engine, engine_has_ended, hasten, load_of
from opencqrs_py.errors import DatabaseFileError, LayoutChangedError
from opencqrs_py.model.naming import listed
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.exceptions import one_line, raise_interrupt
from opencqrs_py.processing.loggers import enable_loggers
from opencqrs_py.processing.notices import in_words
from opencqrs_py.processing.ports import Clock

_BRIEF_SECONDS = (
    0.25  # until the next heartbeat while shares change, and between two checks of processes of this machine
)
_MARGIN_SECONDS = 0.05  # after the end of another node's leases
_RELEASE_PATIENCE = 3.0  # seconds for a current chunk before its partition goes to another node


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """How long leases last.

    Attributes:
        duration: Seconds that leases last if they are not extended.
        heartbeat: Seconds between two extensions, at most half of ``duration``.
    """

    duration: float = 10.0
    heartbeat: float = 3.0


class Coordinator:
    """Has the engines of a node drive the partitions whose leases it holds. Safe for several threads.

    One thread sends heartbeats, independently of the others; another one acquires, assigns and releases. Leases end
    here no later than in the database: they count from before each heartbeat was sent.

    Args:
        store: The control tables.
        node: This node, with the groups that it can run.
        engines: The engine of each of these groups.
        timing: How long leases last.
        now: Returns the seconds of a clock that never goes back and does not stop while the machine sleeps.
        has_ended: Returns whether a process has provably ended.
        new_id: Makes the id of the node as which this process continues after its leases have ended.
        barred: Returns groups that this node must not run at present; called at each heartbeat.
        clock: The clock by which this process handles events, compared with the store's; ``None``: it handles none.
    """

    def __init__(
        self,
        store: ControlStore,
        node: Node,
        engines: Mapping[str, Engine],
        timing: LeaseTiming,
        now: Callable[[], float],
        has_ended: Callable[[ProcessIdentity], bool],
        new_id: Callable[[], str],
        barred: Callable[[], Collection[str]] = frozenset,
        clock: Clock | None = None,
    ) -> None:
        self.node = replace(node, lease_seconds=timing.duration)
        self._groups, self._barred = node.groups, barred
        self._store = store
        self._timing = timing
        self._now = now
        self._has_ended = has_ended
        self._new_id = new_id
        self._view: ControlView | None = None
        self._heartbeats, self._differences, self._clock = Heartbeats(), ClockDifference(), clock
        self._moves = 0  # how often this node took or gave back leases
        self._outdated = False  # whether the view was requested before the last change
        self._valid_until = 0.0
        self._unsettled = True
        self._engines = engines
        self._errors = EngineErrors(node.name, engines)
        self._led = LedPartitions(engines, timing.heartbeat, now, "lease")
        self._announced = ""
        self._crowded, self._crowded_at = "", inf  # what is logged of limits, and when
        self._away = False
        self._notified = False  # of a change that was not processed yet
        self._failure: BaseException | None = None
        self._notices: Notices | None = None
        self._stopping = False
        self._left = False
        self._changed = Condition()
        self._leave_begun = False
        self._once = RLock()  # of leaving; a signal may cause a stop within a stop
        self._threads = [
            Thread(target=self._guarded, args=(work,), name=f"opencqrs-{name}", daemon=True)
            for name, work in (
                ("heartbeat", self._keep_alive),
                ("coordination", self._coordinate),
                ("notices", self._listen),
            )
        ]

        # Created early: a handler may have removed a hook of Python that new threads need.
        self._leaving = Thread(target=self._leave, name="opencqrs-leave", daemon=True)

    @property
    def view(self) -> ControlView | None:
        """The state of the control tables at the last heartbeat; ``None`` while this node has no leases."""
        return self._view if self._is_valid() else None

    def alive_now(self) -> frozenset[str]:
        """Return the ids of the nodes that hold their leases at this moment, by the control tables."""
        return frozenset(self._store.view().without(self._has_ended, but=self.node.id).alive)

    def join(self) -> None:
        """Join the other nodes; acquire and assign the free partitions of this node's share; none after ``end``."""
        self._join()
        self.beat()
        self.reconcile()
        if self._stopping:  # a stop in another thread may have left before
            self._leave()

    def start(self) -> None:
        """Send heartbeats until ``end``."""
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Raise the error that ended the coordination, if any."""
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Stop assigning and releasing. The leases are held until ``leave``, or until their end."""
        self.retire()
        if (notices := self._notices) is not None:
            notices.wake()
        join_all(self._threads, END_PATIENCE)

    def retire(self) -> None:
        """Stop assigning and releasing, without waiting for the threads that do."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def leave(self) -> None:
        """Release all leases, after the engines have stopped. If that takes long, it continues in the background.

        Threads that stop the same application at the same time may all call this; one releases, all wait.
        """
        with self._once:
            if not self._leave_begun:
                self._leave_begun = True
                try:
                    self._leaving.start()
                except RuntimeError:  # Python is about to end, and starts no more threads
                    self._leave()
        with suppress(RuntimeError):  # it has not started: as above, or because a signal came in the meantime
            self._leaving.join(END_PATIENCE)

    def lingering(self) -> list[Thread]:
        """Return the threads for which ``end`` and ``leave`` stopped waiting."""
        return [each for each in (*self._threads, self._leaving) if each.is_alive()]

    def beat(self) -> bool:
        """Extend the leases; return whether they are held. Those that have ended stay ended."""
        enable_loggers()  # which the program may have disabled since; a node may have no partition
        asked, moves = self._now(), self._moves
        self._notified = False
        before = self._time_of_day()
        view = self._extended()
        if view is not None and view.now is not None:
            self._compare_clocks(view.now, before, self._time_of_day())
        heard = None if view is None else self._heartbeats.corrected(view, asked)
        with self._changed:
            self._view = None if heard is None else heard.without(self._has_ended, but=self.node.id)
            self._valid_until = asked + self._timing.duration
            self._outdated = moves != self._moves
            self._away = False
            self._changed.notify_all()
        return view is not None

    def hasten(self) -> None:
        """Send the next heartbeat at once, as this node may have lost a partition."""
        with self._changed:
            self._notified = True
            self._changed.notify_all()

    def reconcile(self) -> None:
        """Update the engines according to the last heartbeat. Without leases they release everything."""
        view = self.view
        if view is None:
            self._led.release(self._led.assigned(), 0.0)
            return
        if self._outdated:
            return
        plan, held = plan_of(self.node.id, view), _held(self.node.id, view)
        self._led.release(self._led.assigned() - held, 0.0)
        self._led.release(self._led.assigned() & set(plan.release), _RELEASE_PATIENCE)
        if given := set(plan.release) - self._led.assigned():
            self._store.give_back(self.node.id, given)
            self._moved()
        mine = held - set(plan.release)
        terms = {lease.key: lease.term for lease in view.leases}
        if wanted := {*plan.take, *self._exclusive(view)}:
            ended = [record.node.id for record in view.nodes if not record.alive]
            taken = self._store.take(self.node.id, sorted(wanted), ended)
            self._moved()
            mine.update(taken)
            terms.update((key, terms[key] + 1) for key in taken)
        try:
            self._led.assign(mine - self._led.assigned(), terms)
        except LayoutChangedError as changed:  # by a command whose process ended before it also changed the leases
            self._store.lay_out(changed.group, [Partition(*each) for each in changed.partitions])
            self._moved()
        self._unsettled = bool(plan.release or plan.share - mine)
        self._announce(mine, view)
        self._warn_of_limits(plan)

    def _moved(self) -> None:
        with self._changed:
            self._moves += 1
            self._outdated = True

    def _exclusive(self, view: ControlView) -> set[GroupPartition]:
        """Return the partitions of groups that this node runs exclusively and no other node has a part of."""
        alone = {group for group, runnable in self.node.groups.items() if runnable.exclusive}
        leases = [lease for lease in view.leases if lease.key.group in alone]
        taken = {lease.key.group for lease in leases if view.owner_of(lease) is not None}
        free = (lease.key for lease in leases if lease.key.group not in taken)
        return {key for key in free if self.node.can_run(key) and view.wanted_of(key) is Wanted.STARTED}

    def _extended(self) -> ControlView | None:
        """Extend the leases, and publish this node's load if it has changed."""
        barred = {*self._barred(), *(name for name, engine in self._engines.items() if engine_has_ended(engine))}
        groups = {name: runnable for name, runnable in self._groups.items() if name not in barred}
        node = replace(self.node, groups=groups, load=load_of(self._engines.values()))
        if node == self.node:
            return self._store.beat(node.id, self._timing.duration)
        view = self._store.beat_as(node, self._timing.duration)
        self.node = node
        return view

    def _time_of_day(self) -> datetime | None:
        """Return the time by the clock by which events are handled; its errors are reported there."""
        with suppress(Exception):
            return None if self._clock is None else self._clock.now()
        return None

    def _compare_clocks(self, known: datetime, before: datetime | None, after: datetime | None) -> None:
        """Warn if this process's clock differs from the store's, and again when that has changed enough."""
        if before is None or after is None:
            return
        ahead = self._differences.noted(known, before, after)
        if ahead is not None:
            text = (
                "the clock of node %s is %s %s that of the database: due times, schedule.expires-after and "
                "schedule.error-grace-period of events in the inbox go by the clock of each process, and so do times "
                "that are shown; synchronize the clocks"
            )
            logger.warning(text, self.node.name, in_words(abs(ahead)), "ahead of" if ahead > 0 else "behind")

    def _announce(self, mine: Collection[GroupPartition], view: ControlView) -> None:
        """Log this node's share, if it has changed and there are other nodes."""
        of_others = {
            lease.key: owner
            for lease in view.leases
            if lease.key.group in self.node.groups and lease.key not in mine
            if (owner := view.owner_of(lease)) is not None and owner.id != self.node.id
        }
        counts = Counter(key.group for key in mine)
        whole = Counter(lease.key.group for lease in view.leases)
        shares = [f"{group} {counts[group]} of {whole[group]}" for group in self.node.groups]
        names = listed(sorted({owner.name for owner in of_others.values()}))
        said = f"node {self.node.name} has partitions: {', '.join(shares)}; others are with {names}"
        if not counts:
            said = f"node {self.node.name} stands by: all partitions are with {names}"
        if not of_others:
            said = f"node {self.node.name} has partitions: {', '.join(shares)}" if self._announced else ""
        if said != self._announced:
            logger.info("%s", said)
            self._announced = said

    def _warn_of_limits(self, plan: Plan) -> None:
        """Log once which partitions wait because of limits, if that lasts as long as leases do."""
        waiting, limits = listed(map(str, plan.waiting)), " and ".join(plan.limits)
        text = f"no node has room for {waiting}, whose events wait: on node {self.node.name} {limits}"
        crowded = f"{text}; increase the limit, or start another process" if limits else ""
        if crowded != self._crowded:
            self._crowded, self._crowded_at = crowded, self._now() + self._timing.duration
        elif crowded and self._now() >= self._crowded_at:
            logger.warning("%s", crowded)
            self._crowded_at = inf

    def _is_valid(self) -> bool:
        return self._view is not None and self._now() < self._valid_until

    def _others(self, view: ControlView | None) -> list[NodeRecord]:
        records = view.nodes if view is not None else ()
        return [record for record in records if record.alive and record.node.id != self.node.id]

    def _join(self) -> None:
        self._store.join(self.node, self._timing.duration)
        self._unsettled = True

    def _join_again(self) -> None:
        """Join as a new node instead of this one, whose leases have ended although its process has not."""
        logger.warning("the leases of node %s have ended: it joins again", self.node.name)
        self._store.leave(self.node.id)
        self.node = replace(self.node, id=self._new_id())
        self._join()

    def _leave(self) -> None:
        try:
            self._store.leave(self.node.id)
        except Exception as error:
            raise_interrupt(error)
            logger.warning("the leases of node %s end by time: %s", self.node.name, one_line(error))
        finally:
            self._left = True
            self._close()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # check() reports it; the end of a thread alone is not noticed
            self._failure = self._failure or error
            if work == self._keep_alive:
                self._report_ends()
        if self._left:  # the stop has not waited for this thread
            self._close()

    def _close(self) -> None:
        with suppress(Exception):
            self._store.close()

    def _keep_alive(self) -> None:
        while self._rest():
            self._report_ends()
            if self._failure is not None:
                return  # its leases end, and others take over its partitions
            with self._through_outages():
                if not self.beat():
                    self._join_again()

    def _report_ends(self) -> None:
        """Log the error that ended an engine, one of its threads, or the coordination; ``check`` may not be called."""
        if self._stopping:
            return
        self._errors.report()
        if self._failure is not None:
            text = "node %s no longer extends its leases, %s: %s"
            logger.error(text, self.node.name, START_AGAIN, one_line(self._failure))

    def _listen(self) -> None:
        """Send the next heartbeat at once when something has changed. The heartbeats handle outages."""
        while not self._stopping and (opened := self._store.notices()) is not None:
            try:
                with opened as notices:
                    self._heed(notices)
            except Exception as error:
                raise_interrupt(error)
                if not (self._stopping or self._store.is_outage(error)):
                    text = "node %s hears of changes only at its heartbeats: %s"
                    logger.warning(text, self.node.name, one_line(error))
                    return
            with self._changed:
                if not self._stopping:
                    self._changed.wait(self._timing.heartbeat)

    def _heed(self, notices: Notices) -> None:
        self._notices = notices
        while not self._stopping:
            if notices.wait(self._timing.heartbeat):
                self.hasten()
            for group in notices.awaited():
                hasten(self._engines.get(group), group)

    def _rest(self) -> bool:
        """Wait for the next heartbeat; return ``False`` at the end."""
        began = self._now()
        while not self._stopping and (left := began + self._pause() - self._now()) > 0:
            peers = [record.node.process for record in self._others(self._view)]
            if any(self._has_ended(process) for process in peers):
                break
            with self._changed:
                if not self._stopping:
                    self._changed.wait(min(left, _BRIEF_SECONDS) if peers else left)
        return not self._stopping

    def _pause(self) -> float:
        if self._notified and not self._away:
            return 0.0
        if self._unsettled and not self._away:
            return min(_BRIEF_SECONDS, self._timing.heartbeat)
        ends = [record.seconds_left + _MARGIN_SECONDS for record in self._others(self._view)]
        return max(_MARGIN_SECONDS, min([self._timing.heartbeat, *ends]))

    def _coordinate(self) -> None:
        seen = self._view
        while self._changes(seen):
            seen = self._view if self._is_valid() else None
            with self._through_outages():
                self.reconcile()
            with self._changed:
                self._changed.notify_all()  # the next heartbeat may be due earlier now

    def _changes(self, seen: ControlView | None) -> bool:
        """Wait for a heartbeat, or for the end of the leases; return ``False`` at the end."""
        with self._changed:
            while not self._stopping and self._view is seen and (seen is None or self._is_valid()):
                left = self._valid_until - self._now()
                self._changed.wait(None if seen is None else max(0.0, left))
            if not self._is_valid():
                self._view = None
            return not self._stopping

    @contextmanager
    def _through_outages(self) -> Iterator[None]:
        """Log that the database is unavailable, once, and leave it to the next heartbeat."""
        try:
            yield
        except Exception as error:
            raise_interrupt(error)
            if isinstance(error, DatabaseFileError):
                self._store.close()  # the next heartbeat recreates the control tables, and this node joins again
            elif not self._store.is_outage(error):
                raise
            if not self._away:
                logger.warning("node %s cannot reach its leases: %s", self.node.name, one_line(error))
            self._away = self._unsettled = True


def _held(node: str, view: ControlView) -> set[GroupPartition]:
    return {lease.key for lease in view.leases if lease.node == node}
