"""The life of an application: started once, stopped from any thread, and closed when nothing uses it any longer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock, Thread
from typing import TYPE_CHECKING

from opencqrs_py.assembly.blueprint import Blueprint, ProjectResources
from opencqrs_py.assembly.opened_stores import OpenedStores
from opencqrs_py.assembly.shared_spark import SharedSpark
from opencqrs_py.assembly.status import RunResult
from opencqrs_py.errors import AssemblyError
from opencqrs_py.model.progress import ProcessorState
from opencqrs_py.processing.loggers import enable_loggers
from opencqrs_py.processing.supervision import SupervisedPartition

if TYPE_CHECKING:
    from opencqrs_py.assembly.processors import Processors
    from opencqrs_py.assembly.serving import Serving

STOP_PATIENCE = 3.0  # seconds that events in hand get to finish
DONE_PATIENCE = 30.0  # when nothing is in hand: for the end of a Spark session, which the program may open again
_INTERRUPTED_PATIENCE = 1.0  # after Ctrl-C, so that all is over within two seconds
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05  # seconds between two checks of what runs
_ENDED = (ProcessorState.STOPPED, ProcessorState.FAILED)


class Lifecycle:
    """Keeps what one start has made until a stop, in the process that has started it.

    Args:
        blueprint: What the parts are made from; it names the resources of the project.
        pool_size: How many connections to each server the threads share; ``None``: as many as they need, but few.
        spark: What groups and jobs run on.
        forget_parts: Has the parts made again when they are used next.
    """

    def __init__(
        self, blueprint: Blueprint, pool_size: int | None, spark: SharedSpark, forget_parts: Callable[[], None]
    ) -> None:
        self.resources = ProjectResources(blueprint, forget_parts)
        self.stores = OpenedStores(pool_size)
        self.spark = spark
        self.processors: Processors | None = None
        self.serving: Serving | None = None
        self.last_result: RunResult | None = None
        self._starting = Lock()  # held while a thread is in start()
        self._started_in = 0  # the process that has called start()
        self._in_hand: list[SupervisedPartition] = []  # partitions that a stop has not waited for
        self._is_to_stop = False
        self._keeping = 0  # blocks that keep resources

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Let no other thread start the application during the block, which opens nothing itself, see ``opened``.

        Raises:
            AssemblyError: OCQ-511, if it runs already, here or in the process that this one was forked from, or
                another thread is starting it.
        """
        self.refuse_fork("", "start it only after the fork, or make another Application here")
        if not self._starting.acquire(blocking=False):
            raise AssemblyError("OCQ-511", "another thread is starting the application", fix="call start() once")
        self._is_to_stop = False
        try:
            if self.processors is not None:
                raise AssemblyError("OCQ-511", "the application is running already", fix="stop() it first")
            yield
        finally:
            self._starting.release()
        if self.processors is None:  # a stop has come first, and left it to this thread to close what it used
            self._close()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open the resources for the block, which sets ``serving`` and ``processors``, and start these at its end.

        If the block fails, or an engine, everything is closed.
        """
        self._started_in, self.last_result = os.getpid(), None
        try:
            self.resources.open()
            self.spark.enter(self)
            yield
            enable_loggers()  # which a resource of the project may have disabled
            serving, processors = self.serving, self.processors  # a stop in another thread takes them at any moment
            if self._is_to_stop:  # it has come when there was nothing to take
                self.stop(patience=0)
                serving = None
            if serving is not None:
                serving.start()
            if processors is not None:
                processors.start()
        except BaseException:
            self.stop(patience=0)
            self._close()
            raise

    def stop(self, patience: float) -> None:
        """Finish the events in hand, for at most ``patience`` seconds in all, and release everything."""
        if self.is_forked:
            return
        self._is_to_stop = True  # also for a start in another thread that has nothing to be stopped yet
        until = time.monotonic() + patience
        processors = self.processors
        if processors is not None:
            processors.stop(patience)
            if self.processors is not processors:  # another thread has stopped them, and may have started others
                return
        serving, self.serving = self.serving, None
        if serving is not None:
            serving.stop()
        partitions = [*self._in_hand, *(processors.partitions() if processors is not None else ())]
        self._in_hand = [each for each in partitions if each.state not in _ENDED]
        self.processors = None
        self.spark.leave(self, max(0.0, until - time.monotonic()))
        lingering = processors.lingering() if processors is not None else ()
        if not self._starting.locked():  # a start in another thread uses what is open until its end
            self._close(lingering)
        if lingering:
            self.stores.disconnect_after(lingering)

    def stay(self, *, until_caught_up: bool) -> RunResult:
        """Wait until the processors are done or have failed, and stop them; return how the run has ended.

        Raises:
            KeyboardInterrupt: After a clean stop; ``last_result`` is how the run has ended then, too.
        """
        processors = self.processors
        try:
            self.last_result = self._stay(processors, until_caught_up=until_caught_up)
        except KeyboardInterrupt:
            self.last_result = processors.stopped_result() if processors is not None else None
            raise
        return self.last_result

    def _stay(self, processors: Processors | None, *, until_caught_up: bool) -> RunResult:
        patience, pause = _INTERRUPTED_PATIENCE, _SHORTEST_PAUSE
        result = RunResult((), {}, stopped=True)
        try:
            while (
                processors is not None
                and self.processors is processors
                and processors.going_on(until_caught_up=until_caught_up)
            ):
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            patience = DONE_PATIENCE
            if processors is not None:
                result = processors.stopped_result() if processors.stopping else processors.result()
                if until_caught_up and not result.stopped:
                    processors.report_unfinished()
        finally:
            if processors is not None and self.processors is processors:  # else another thread has stopped them
                self.stop(patience)
        return result if result.stopped or processors is None else processors.settled(result)

    def end(self) -> None:
        """Stop, and close the databases, also those in memory, unless events are in hand or this is a fork."""
        self.stop(STOP_PATIENCE)
        if not self._in_hand and not self.is_forked:
            self.stores.close()

    @contextmanager
    def keeping_resources(self) -> Iterator[None]:
        """Close the project's resources at the end of the block only, also if everything is stopped within it."""
        self._keeping += 1
        try:
            yield
        finally:
            self._keeping -= 1
            if not self._keeping and self.processors is None:
                self.resources.close(self._in_hand)

    @property
    def running(self) -> Processors | None:
        """The processors that run in this process; ``None`` in a fork, whose copy of them stays as it was then."""
        return None if self.is_forked else self.processors

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the one that runs the processors."""
        return self.processors is not None and self._started_in != os.getpid()

    def refuse_fork(self, so: str, fix: str) -> None:
        """Raise OCQ-511 in a fork of the process that runs the processors; ``so`` is what follows from that."""
        if self.is_forked:
            what = f"the application was started in the process from which this one was forked{so}"
            raise AssemblyError("OCQ-511", what, fix=fix)

    def _close(self, lingering: Sequence[Thread] = ()) -> None:
        """Close what is open, unless handlers that a stop has not waited for, or threads, may still use it."""
        if not self._keeping:
            self.resources.close(self._in_hand)
        if not self._in_hand:
            self.stores.disconnect(sources=not lingering)
