"""This process among those that run jobs, as its leases say."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from opencqrs_py.assembly.nodes import coordinator_for, node_name
from opencqrs_py.control.ports import ControlStore
from opencqrs_py.engines.coordination import Coordinator, LeaseTiming
from opencqrs_py.engines.job_parts import Company, JobParts
from opencqrs_py.engines.local_runs import LocalRuns
from opencqrs_py.engines.runs_in_hand import RunsInHand

if TYPE_CHECKING:
    from opencqrs_py.config.settings import NodeSettings


def company_of(coordinator: Coordinator | None, name: str, runners: set[str]) -> Callable[[], Company | None]:
    """Return a function that returns this process among those that run jobs; ``None`` while it has no leases.

    Args:
        coordinator: What keeps the leases of this process; ``None``: no other process can see its jobs.
        name: The name of this process for people.
        runners: Ids of those that run its jobs now, if no other process can see these.
    """
    if coordinator is None:
        own = uuid.uuid4().hex
        return lambda: Company(own, name, frozenset({own, *runners}), {}, lambda: {own, *runners})

    def company() -> Company | None:
        view, node = coordinator.view, coordinator.node
        if view is None or node.id not in view.alive:
            return None
        return Company(node.id, name, frozenset(view.alive), view.schedules, coordinator.alive_now)

    return company


@contextmanager
def alone(parts: JobParts, store: ControlStore | None, node: NodeSettings) -> Iterator[LocalRuns]:
    """Return what runs single jobs on the thread of the caller, in a process that runs nothing else.

    Others see the process as a node for as long as the block lasts, so that they know whether its run continues.
    """
    name = node.name or node_name()
    coordinator = None if store is None else coordinator_for(store, node, LeaseTiming(), {}, {})
    local = LocalRuns(RunsInHand(parts, company_of(coordinator, name, parts.runners)))
    with ExitStack() as stack:
        if coordinator is not None:
            coordinator.join()
            coordinator.start()
            stack.callback(coordinator.leave)
            stack.callback(coordinator.end)
        stack.enter_context(local.following())
        yield local
