"""The watch over calls of handlers: a separate thread detects calls that take long, or too long."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from math import inf
from threading import Event as Signal
from threading import Thread

from opencqrs_py.model.outcome import Failure
from opencqrs_py.processing.calls import CallInHand, CallLimits, CallTimer
from opencqrs_py.processing.exceptions import one_line, raise_interrupt
from opencqrs_py.processing.notices import in_words
from opencqrs_py.processing.ports import Clock
from opencqrs_py.processing.processor import PartitionProcessor

logger = logging.getLogger("opencqrs.processing")

TimedOut = Callable[[PartitionProcessor, CallInHand, Failure], None]


class CallWatcher:
    """Checks the active calls of processors, warns of long ones, and reports those that time out.

    Args:
        processors: Returns the current processors.
        limits: Their limits, which determine how often it checks.
        timed_out: Called, on the thread of the watch, with a call that has taken too long and its failure.
        clock: Time.
    """

    def __init__(
        self,
        processors: Callable[[], Collection[PartitionProcessor]],
        limits: Collection[CallLimits],
        timed_out: TimedOut,
        clock: Clock,
    ) -> None:
        self._processors = processors
        self._interval = min((each.interval for each in limits), default=inf)
        self._timed_out = timed_out
        self._clock = clock
        self._timers: dict[PartitionProcessor, CallTimer] = {}
        self._stopping = Signal()
        self._thread = Thread(target=self._run, name="opencqrs-calls", daemon=True)

    def start(self) -> None:
        """Start checking, if there is a limit."""
        if self._interval < inf:
            self._thread.start()

    def stop(self) -> None:
        """Stop checking. Does not wait for a timeout that is being handled."""
        self._stopping.set()

    def look(self) -> None:
        """Check once."""
        there = self._processors()
        self._timers = {each: self._timers.get(each) or CallTimer(each.limits) for each in there}
        for processor, timer in tuple(self._timers.items()):
            overdue = timer.look(processor.calls.in_hand(), self._clock.monotonic())
            if overdue is None:
                continue
            failure = processor.calls.overdue(overdue.call, overdue.seconds)
            if overdue.timed_out:
                self._timed_out(processor, overdue.call, failure)
            else:
                _warn(processor, overdue.call, overdue.seconds, failure)

    def _run(self) -> None:
        while not self._stopping.wait(self._interval):
            try:
                self.look()
            except BaseException as error:  # a failing check must not end the watch
                raise_interrupt(error)
                logger.warning("calls of handlers cannot be watched: %s", one_line(error))


def _warn(processor: PartitionProcessor, call: CallInHand, seconds: float, failure: Failure) -> None:
    extra = {
        "action": "slow",
        "group": processor.group,
        "partition": str(processor.partition),
        "event": failure.event,
        "position": failure.position,
        "attempt": call.work.attempt if call.work.failing == failure.position else 1,
        "code": "",
    }
    head = f"[{processor.group} {processor.partition}]"
    who = f"{failure.event} has been with its handler"
    if call.committed:
        who = f"the calls after the commit of {failure.event} have not returned"
    text = f"{head} {who} for {in_words(seconds)}\n{failure.traceback}"
    logger.warning("%s", text.rstrip(), extra=extra)
