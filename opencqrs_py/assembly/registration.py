"""Controllers of the project: they start and stop partitions instead of leases, locks or the application.

Source:
    OpenCQRS registration SPI: a function that is called once for each partition, and may register a controller.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from opencqrs_py.config import LifeCycleSettings
from opencqrs_py.control.records import GroupPartition
from opencqrs_py.engines.runs import Engine
from opencqrs_py.errors import AssemblyError, ProjectCodeError
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.exceptions import one_line, raise_interrupt

_log = logging.getLogger("opencqrs.control")
STOP_PATIENCE = 3.0  # seconds that events in hand get to finish, unless the controller gives them another time


class ProcessorHandle:
    """One partition of a group, to be started and stopped by a controller. Safe for several threads.

    Args:
        key: The partition.
        engine: Drives it.
    """

    def __init__(self, key: GroupPartition, engine: Engine) -> None:
        self._key = key
        self._engine = engine
        self._closed = False

    @property
    def group(self) -> str:
        """The processing group."""
        return self._key.group

    @property
    def partition(self) -> Partition:
        """The partition."""
        return self._key.partition

    @property
    def is_running(self) -> bool:
        """Whether this process drives the partition; a partition that has failed and waits counts."""
        return self._key in self._engine.assigned()

    def start(self) -> None:
        """Take the partition over from any other process, and drive it. Nothing happens if it is driven already.

        If the database of its progress cannot be reached, that is raised. During other outages, such as of the event
        store, this waits until they are over; if the application stops meanwhile, it returns without the partition.

        Raises:
            RuntimeError: If the application has stopped.
            EventStoreError: If the group's progress does not fit its configuration, or a database cannot be used.
        """
        if self._closed:
            raise RuntimeError(f"the application of {self._key} has stopped")
        self._engine.assign(self.group, (self.partition,))

    def stop(self, patience: float = STOP_PATIENCE) -> None:
        """Let the events in hand finish, for at most ``patience`` seconds, and release the partition."""
        self._engine.release(self.group, (self.partition,), patience)

    def close(self) -> None:
        """Have ``start`` raise from now on."""
        self._closed = True


class ProcessorController(Protocol):
    """What starts and stops one partition, by its handle."""

    @property
    def is_running(self) -> bool:
        """Whether it may still start the partition. A run ends when nothing runs and no controller does."""
        ...

    def stop(self) -> None:
        """End. Called when the application stops, which then stops the partition itself."""
        ...


class ControllerRegistration(Protocol):
    """Makes the controllers of a group. It has to honour ``life-cycle.auto-start``."""

    def __call__(self, handle: ProcessorHandle, settings: LifeCycleSettings, /) -> ProcessorController | None:
        """Return what starts and stops a partition; ``None`` if nothing does after this call.

        Called at each start of the application, once for each partition of the group, before events are handled.
        """
        ...


class Registered:
    """The controllers of one start of an application."""

    def __init__(self) -> None:
        self._handles: list[ProcessorHandle] = []
        self._controllers: list[tuple[ProcessorHandle, ProcessorController]] = []

    @property
    def is_running(self) -> bool:
        """Whether a controller may still start its partition."""
        return any(controller.is_running for _, controller in self._controllers)

    def pending(self) -> set[GroupPartition]:
        """Return the partitions that do not run here and that their controllers may still start."""
        found = [handle for handle, controller in self._controllers if not handle.is_running and controller.is_running]
        return {GroupPartition(handle.group, handle.partition) for handle in found}

    def register(
        self,
        registration: ControllerRegistration,
        settings: LifeCycleSettings,
        keys: Sequence[GroupPartition],
        engine: Engine,
    ) -> None:
        """Have a controller made for each partition of a group.

        Raises:
            ProjectCodeError: OCQ-217, if the registration raises something else than an explained error.
            AssemblyError: OCQ-502, if it returns something that is not a controller.
        """
        for key in keys:
            self._handles.append(ProcessorHandle(key, engine))
            controller = _controller_of(registration, self._handles[-1], settings)
            if controller is not None:
                self._controllers.append((self._handles[-1], controller))

    def stop(self) -> None:
        """End all controllers, whatever one of them raises. None starts anything afterwards."""
        for handle in self._handles:
            handle.close()
        for _, controller in self._controllers:
            try:
                controller.stop()
            except BaseException as error:
                raise_interrupt(error)
                _log.error("controller %s could not be stopped: %s", type(controller).__name__, one_line(error))


def _controller_of(
    registration: ControllerRegistration, handle: ProcessorHandle, settings: LifeCycleSettings
) -> ProcessorController | None:
    setting, where = "life-cycle.controller-registration", f"group {handle.group}, partition {handle.partition}"
    try:
        controller = registration(handle, settings)
    except BaseException as error:
        raise_interrupt(error)
        raise ProjectCodeError("OCQ-217", f"{setting} raised {one_line(error)}", where) from error
    missing = [name for name in ("is_running", "stop") if not hasattr(controller, name)]
    if controller is not None and missing:
        what = f"{setting} returned {type(controller).__name__}, which has no {', '.join(missing)}"
        raise AssemblyError("OCQ-502", what, where, "return a ProcessorController, or None")
    return controller
