"""The driver of a partition: every engine uses it to claim, move and release partitions, and to log what happens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from threading import Event as Signal

from opencqrs_py.engines.inbox_checks import is_recorded, refuse_overtaking, warn_of_missed_tick
from opencqrs_py.engines.recorded_claims import recorded_claim
from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.errors import DatabaseFileError, EngineLostError, EventStoreError
from opencqrs_py.model.naming import counted, listed
from opencqrs_py.model.outcome import Failure, Origin, Outcome, Uncounted
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import Cursor, PartitionStatus, ProcessorState
from opencqrs_py.processing.calls import CallInHand
from opencqrs_py.processing.claims import verify_log
from opencqrs_py.processing.exceptions import failure_of, one_line
from opencqrs_py.processing.frames import FrameProcessing
from opencqrs_py.processing.inbox.parking import freed, unseen
from opencqrs_py.processing.inbox.ticks import WatchedClock
from opencqrs_py.processing.loggers import enable_loggers
from opencqrs_py.processing.notices import NO_OBSERVER, Notice, Observer, text_of
from opencqrs_py.processing.ports import Clock, EventSource, ParkingTracker
from opencqrs_py.processing.reaching import reached
from opencqrs_py.processing.recovery import Action
from opencqrs_py.processing.supervision import OUTAGE_BACK_OFF, SupervisedPartition

logger = logging.getLogger("opencqrs.processing")
_MOST_ISOLATED = 100  # events of a partition with participants
_MOST_SEEN = 10_000  # events of a partition whose failures in the grace period are logged once


class PartitionDriver:
    """Moves one partition from its claim, which has returned the cursor, to its release.

    An engine decides on which thread, and when. If the steps run in another process, only their outcomes are processed
    here. One thread at a time may use a driver.

    Attributes:
        supervised: The state of the partition.
        processor: Runs the steps.
        abandoned: Whether the partition was claimed again in this process because the thread of this driver hangs.
    """

    def __init__(self, run: GroupRun, cursor: Cursor, clock: Clock, observer: Observer = NO_OBSERVER) -> None:
        schedule = None if run.processing.schedule is None else run.processing.schedule.schedule
        self.supervised = SupervisedPartition(
            run.group,
            cursor,
            run.back_off,
            run.on_exhausted,
            clock,
            on_undecodable=run.on_undecodable,
            schedule=schedule,
        )
        self.processor = run.processing.processor(cursor.partition, clock)
        self.abandoned = False
        self._participates = run.processing.checkpointing is not None
        if self._participates:
            self.supervised.withholds = self.processor.withholds
            self.supervised.checkpoint_status = self.processor.checkpoint_status
        self._seen_uncounted: dict[int | None, None] = {}
        self._unpublished = False  # the last state, in an outage
        self._processing = run.processing
        self._clock = clock
        self._watched_clock = WatchedClock(clock)
        self._set_back = False  # the clock, since the inbox was last checked
        self._tracker = run.processing.tracker
        self._observer = observer
        self._rebuilding = run.rebuilding
        self.partition = cursor.partition
        self._publish()
        if cursor.replay is not None and not cursor.replayed:
            _log_replay(run.group, cursor.partition, f"handles again what was handled up to {cursor.replay.until}")
        observer.claimed(run.group, cursor.partition, cursor.stored)

    @property
    def cursor(self) -> Cursor:
        """Where the next step begins."""
        return self.supervised.cursor

    @property
    def over(self) -> bool:
        """Whether this process must no longer touch the partition."""
        return self.supervised.over

    def wait(self) -> float:
        """Return the seconds until the next step may begin, 0 when it may now."""
        wait = self.supervised.wait()
        return 0.0 if wait > 0 and self._participates and self.processor.has_checkpoint() else wait

    def mind_clock(self) -> None:
        """Have events in the inbox tried in time if the clock of their due times was set back."""
        _, was_set_back = self._watched_clock.look()
        self._set_back = self._set_back or was_set_back
        if not self._set_back:
            return
        supervised = self.supervised
        try:
            found = self._processing.bring_forward([supervised.cursor], self._clock)
        except Exception as error:
            if self._tracker.is_outage(error):  # which the next step reports
                return
            where = f"[{supervised.group} {self.partition}]"
            logger.warning("%s events in its inbox may be tried too late: %s", where, one_line(error))
            found = 0
        self._set_back = False
        _log_brought_forward(supervised.group, found)
        supervised.cursor = unseen(supervised.cursor)

    def step(self) -> Outcome:
        """Handle the next chunk of events, and process the outcome."""
        supervised = self.supervised
        if supervised.scheduled:
            self.mind_clock()
            return self.settle(self.processor.step(supervised.begin()))
        if (parked := supervised.cursor.parked) is not None and parked.ids:
            self.mind_clock()
        return self.settle(self.processor.step(supervised.cursor))

    def flush(self) -> Outcome:
        """Store progress over events of other partitions, and process the outcome."""
        return self.settle(self.processor.flush(self.cursor))

    def settle(self, outcome: Outcome, *, releases: bool = False) -> Outcome:
        """Record the outcome of a step or release, wherever it was done; notify the observer and publish a new state.

        Outcomes of an abandoned driver are ignored: its work since then was rolled back, or is fenced off.
        """
        if self.abandoned:
            return outcome
        supervised, before, failed = self.supervised, self.supervised.state, self.supervised.failure is not None
        replay = supervised.cursor.replay
        notice = supervised.take(outcome)
        if replay is not None and supervised.cursor.replay is None:
            _log_replay(supervised.group, self.partition, f"has handled again all up to {replay.until}")
        self._observer.advanced(supervised.group, self.partition, outcome)
        for failure in outcome.missed:
            _report(Notice(supervised.group, self.partition, None, failure), self._observer)
        if outcome.parked or outcome.freed:
            for about_inbox in _notices(supervised.group, self.partition, outcome):
                _report(about_inbox, self._observer)
        for one in outcome.uncounted:
            self._log_uncounted(one)
        if outcome.expired:
            gone = counted(outcome.expired, "event has expired and was", "events have expired and were")
            those = listed(outcome.expired_events, outcome.expired)
            logger.warning("[%s %s] %s removed from the inbox: %s", supervised.group, self.partition, gone, those)
        if notice is not None:
            self._report_step(replace(notice, releases=releases))
        is_over = failed and supervised.failure is None  # also of an abandoned event, without a notice
        still_fails = outcome.checkpoint and supervised.failure is not None  # the processor publishes nothing then
        if notice is not None or supervised.state is not before or is_over or still_fails or self._unpublished:
            self._publish()
        return outcome

    def settle_timeout(self, failure: Failure, listed: int, before: int, *, parked: bool, sequence_id: str) -> None:
        """Process a call that was abandoned because it timed out: the events are tried again.

        Which one of a list has hung is unknown, so each is handled alone next, and none has used an attempt. So are
        earlier ones that participants handle again since their last checkpoint.

        Args:
            failure: The failure, with the position of the first event of the call.
            listed: How many events the call had.
            before: How many were handled before them, under the same claim; most of them perhaps before the checkpoint.
            parked: Whether they come from the inbox.
            sequence_id: The sequence as part of which an event of the inbox was tried.
        """
        beyond = 0 if failure.position is None else failure.position - self.cursor.stored
        if not parked and beyond <= 0:
            return  # it has returned after all; in the inbox, positions may be beyond the progress
        if listed > 1:
            repeated = min(before, beyond - 1) if self._participates and not parked else 0
            self.supervised.isolate(listed + repeated)
            _report(Notice(self.supervised.group, self.partition, Action.ISOLATE, failure), self._observer)
        elif parked:
            self.settle(self.processor.failed_in_inbox(self.cursor, failure, sequence_id))
        else:
            self.settle(Outcome(self.cursor, failure=failure))

    def _report_step(self, notice: Notice) -> None:
        """Report the outcome of a step, but do not log that a swap takes a partition of a rebuild."""
        if self._rebuilding and notice.action is Action.LEAVE:
            self._observer.noticed(notice)
        else:
            _report(notice, self._observer)

    def _log_uncounted(self, one: Uncounted) -> None:
        """Log a failure in an event's grace period: the first as INFO, since nothing else shows it, others as DEBUG."""
        seen, failure = self._seen_uncounted, one.failure
        level = logging.DEBUG if failure.position in seen else logging.INFO
        seen[failure.position] = None
        if len(seen) > _MOST_SEEN:
            del seen[next(iter(seen))]
        what = "%s %s failed (%s); failures count from %s on; next attempt at the next tick"
        logger.log(level, what, f"[{self.supervised.group} {self.partition}]", failure.event, failure, one.until)

    def saw(self, cursor: Cursor) -> None:
        """Note what waits in the inbox, which was read between two steps."""
        for sequence_id in freed(self.cursor, cursor):
            _report(Notice(self.supervised.group, self.partition, None, sequence_id=sequence_id), self._observer)
        if cursor.parked is not None:
            self.supervised.saw(cursor.parked)

    def refuse(self, error: BaseException) -> None:
        """Record that no step is possible because the event store cannot be watched."""
        self.settle(Outcome(self.cursor, failure=failure_of(error, Origin.FRAMEWORK)))

    def fail(self, error: BaseException) -> None:
        """Record an error outside of a step, such as an observer's."""
        if self.abandoned:
            return
        self.supervised.take(Outcome(self.cursor, failure=failure_of(error, Origin.FRAMEWORK)))

    def release(self) -> None:
        """Store the progress that is not stored yet, record that the partition was stopped, and publish it."""
        if self.abandoned:
            return
        supervised = self.supervised
        failed = supervised.failure if supervised.state is ProcessorState.FAILED else None
        try:
            holds = supervised.failure is None or self._participates
            outcome = self.processor.release(self.cursor) if holds and not self.over else None
            if outcome is not None and not outcome.is_fenced:  # otherwise another process has it already
                self.settle(replace(outcome, without_log=True), releases=True)
        finally:
            if failed is not None:
                supervised.remain_failed(failed)
            supervised.stop()
            try:
                self._publish()
            finally:
                self.processor.close()
                self._observer.stopped(supervised.group, self.partition)

    def end_without_thread(self, failure: Failure) -> None:
        """Record that the partition was released while its thread hangs in a call; the status shows it."""
        self.supervised.failure = failure
        self.supervised.stop()
        self.processor.abandon()
        self._publish()
        self._observer.stopped(self.supervised.group, self.partition)

    def _publish(self) -> None:
        """Publish the partition's state. An outage ends nothing: the next step reports it, or publishes again."""
        self._unpublished = False
        try:
            self._tracker.report(self.supervised.status(), self.cursor.epoch)
        except DatabaseFileError:
            pass
        except Exception as error:
            self._unpublished = self._tracker.is_outage(error)
            if not self._unpublished:
                where = f"[{self.supervised.group} {self.partition}]"
                logger.warning("%s its status cannot be published: %s", where, one_line(error))


def claim(
    run: GroupRun, partitions: Sequence[Partition], owner: str, clock: Clock, observer: Observer = NO_OBSERVER
) -> list[PartitionDriver]:
    """Take some or all partitions of a group over from their owners; messages name this process as the new owner.

    Raises:
        EventStoreError: OCQ-310 for another layout of partitions; OCQ-316, if the log is not the one that the progress
            belongs to; OCQ-317, if progress is missing.
        HandlersChangedError: OCQ-318 or OCQ-319, if code that must not change has.
        InboxError: OCQ-609, if events in the inbox would be overtaken.
    """
    tracker, source = run.processing.tracker, run.processing.source
    cursors = [isolating(run, cursor) for cursor in recorded_claim(run, partitions, owner)]
    try:
        for cursor in cursors:
            verify_log(source, run.group, cursor)
    except EventStoreError as error:
        for cursor in cursors:
            state, message = ProcessorState.FAILED, f"[{error.code}] {error.what}"
            status = PartitionStatus(run.group, cursor.partition, cursor.stored, state, 0, message)
            tracker.report(replace(status, failure=cursor.failure), cursor.epoch)
        raise
    run.processing.forget_earlier(cursors)
    if run.processing.checkpointing is not None:
        run.processing.checkpointing.warn()
    seen = run.processing.look(cursors, clock)
    if _check_inbox(run, seen, clock):
        seen = run.processing.look(cursors, clock)
    warn_of_missed_tick(run, seen, clock.now())
    return [PartitionDriver(run, cursor, clock, observer) for cursor in seen]


def _check_inbox(run: GroupRun, cursors: Sequence[Cursor], clock: Clock) -> bool:
    """Refuse with OCQ-609 to run a group with settings under which events in the inbox would be overtaken.

    Adapts their due times to the settings; returns whether there are any.
    """
    processing, tracker = run.processing, run.processing.tracker
    if not isinstance(tracker, ParkingTracker):
        return False
    known = [cursor.parked for cursor in cursors if cursor.parked is not None]
    if not processing.has_inbox:
        known = list(tracker.parked(run.group, [cursor.partition for cursor in cursors]).values())
    if processing.schedule is None and not any(parked.ids for parked in known):
        return False
    waits = refuse_overtaking(run, tracker, all_of_them=not is_recorded(run))
    if waits and processing.has_inbox:
        rule, mine = processing.schedule, [cursor.partition for cursor in cursors]
        each, expiring = rule is not None and rule.each, rule is not None and rule.expiring
        tracker.arrange(run.group, mine, clock.now(), each=each, expiring=expiring)
        _log_brought_forward(run.group, processing.bring_forward(cursors, clock))
    return waits


def isolating(run: GroupRun, cursor: Cursor) -> Cursor:
    """Return the cursor of a claim: events that a crashed owner was handling are handled one by one.

    Ranges of data frames are not: each event would be a Spark job, and executors decode them.
    """
    singly = cursor.unreleased and not isinstance(run.processing, FrameProcessing)
    most = run.processing.batch_size
    if run.processing.checkpointing is not None:  # many events may be repeated, and handlers take them in bulk
        most = min(most, _MOST_ISOLATED)
    return replace(cursor, isolate=most) if singly else cursor


def claim_after_timeout(
    run: GroupRun,
    hung: PartitionDriver,
    call: CallInHand,
    failure: Failure,
    owner: str,
    clock: Clock,
    observer: Observer,
) -> PartitionDriver:
    """Claim again a partition whose thread hangs in a call, which fences that thread off.

    See ``PartitionDriver.settle_timeout`` for what happens to the events.

    Raises:
        EngineLostError: OCQ-414, if the database cannot end the session of the call's transaction.
    """
    if not call.work.unit.end_session():
        what = f"group '{run.group}' partition {hung.partition}: {failure.event}: {failure.message}"
        logger.error("[%s %s] %s hangs\n%s", run.group, hung.partition, failure.event, failure.traceback)
        fix = "make sure that the handler returns, or keep progress on a server; then start again"
        where = ", ".join(hung.processor.calls.places(call))
        raise EngineLostError("OCQ-414", f"{what}, and its transaction cannot be ended", where, fix)
    hung.processor.abandon()
    (found,) = recorded_claim(run, [hung.partition], owner)
    known = hung.supervised.record
    cursor = replace(found, attempt=1, failing=None, failure=None, isolate=hung.cursor.isolate)
    if known is not None and known.position > cursor.stored:
        cursor = cursor.resuming(known)
    observer.stopped(run.group, hung.partition)
    driver = PartitionDriver(run, cursor, clock, observer)
    driver.supervised.keep_ticks_of(hung.supervised)
    listed = len(call.chunk) if call.index is None else 1
    before = hung.supervised.handled
    driver.settle_timeout(failure, listed, before, parked=call.work.parked, sequence_id=call.sequence_id)
    return driver


def when_available(
    run: GroupRun,
    partitions: Sequence[Partition],
    act: Callable[[], list[PartitionDriver]],
    stopping: Signal,
    observer: Observer = NO_OBSERVER,
    *,
    hung: bool = False,
) -> list[PartitionDriver]:
    """Return the result of ``act``, which claims partitions; during an outage, retry after a wait.

    A database that cannot be reached at all when partitions start is an error, since its URL is probably wrong; it is
    not an error when a partition that has ``hung`` is claimed again. Later outages, such as a stopped process that
    holds the write lock of an SQLite file, are waited for. The observer is notified of each wait, about the first
    partition, and the first time of what is unavailable and what to do, since a URL may be wrong; ``stopping`` ends it,
    and nothing is claimed then.

    Raises:
        DatabaseAwayError: OCQ-304, if the database of the progress cannot be reached at a start.
    """
    tracker, source = run.processing.tracker, run.processing.source
    if not hung:
        reached(tracker, run.group)
    failed: Failure | None = None
    for wait in OUTAGE_BACK_OFF.waits():
        try:
            return act()
        except Exception as error:
            if not (tracker.is_outage(error) or source.is_outage(error)):
                raise
            first, failed = failed is None, failure_of(error, Origin.OUTAGE)
            shown = _placed(failed, source) if first else failed
            _report(Notice(run.group, partitions[0], Action.WAIT, shown, wait=wait, advises=first), observer)
        if stopping.wait(wait):
            break
    return []


def _placed(failure: Failure, source: EventSource) -> Failure:
    """Return the failure of an outage; its message says so if the event store is unavailable."""
    try:
        source.head()
    except Exception as error:
        if source.is_outage(error):
            return replace(failure, message=f"the event store is unavailable: {failure.message}")
    return failure


def _notices(group: str, partition: Partition, outcome: Outcome) -> Iterator[Notice]:
    """Yield notices about sequences in the inbox."""
    for one in outcome.parked:
        if one.new:
            yield Notice(group, partition, Action.PARK, one.failure, one.attempt)
            continue
        action = Action.SKIP if one.skipped else Action.PARK if one.wait is None else Action.RETRY
        yield Notice(group, partition, action, one.failure, one.attempt, one.wait or 0.0, one.sequence_id)
    for sequence_id in outcome.freed:
        yield Notice(group, partition, None, sequence_id=sequence_id)


def _log_brought_forward(group: str, count: int) -> None:
    if count:
        those = counted(count, "event in the inbox has", "events in the inbox have")
        why = "their times are from a clock that was ahead, or from longer waits in the settings"
        logger.warning("[%s] %s an earlier next attempt now: %s", group, those, why)


def _log_replay(group: str, partition: Partition, what: str) -> None:
    extra = {"action": "replay", "group": group, "partition": str(partition)}
    logger.info("[%s %s] %s", group, partition, what, extra=extra)


def _report(notice: Notice, observer: Observer) -> None:
    log_notice(notice)
    observer.noticed(notice)


def log_notice(notice: Notice) -> None:
    """Log what happened to a partition.

    The record has ``action`` (``recovered``, ``missed``, ``freed`` or that of the notice), ``group``, ``partition``,
    ``event``, ``position``, ``attempt`` and ``code``. Its level is INFO for a recovery, WARNING for what is retried,
    belongs to another process or repeats nothing, and ERROR for what needs a person.
    """
    failure = notice.failure
    extra = {
        "action": notice.action.value if notice.action else _passive(notice),
        "group": notice.group,
        "partition": str(notice.partition),
        "event": failure.event if failure else "",
        "position": failure.position if failure else None,
        "attempt": notice.attempt,
        "code": failure.code if failure else "",
    }
    enable_loggers()
    logger.log(_level(notice), "%s", text_of(notice), extra=extra)


def _passive(notice: Notice) -> str:
    if notice.failure is not None:
        return "missed"
    return "recovered" if notice.sequence_id is None else "freed"


def _level(notice: Notice) -> int:
    if notice.failure is None:
        return logging.INFO
    mild: tuple[Action | None, ...] = (Action.RETRY, Action.ISOLATE, Action.WAIT, Action.LEAVE, None)
    if notice.sequence_id is None:  # parked now: it is retried automatically
        mild += (Action.PARK,)
    return logging.WARNING if notice.action in mild else logging.ERROR
