"""Waiting in tests until groups that run have handled what was appended."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opencqrs_py.assembly.application import Application


def caught_up(application: Application, *groups: str, timeout: float = 60.0) -> int:
    """Wait until groups of an application that has been started have handled the newest event.

    Args:
        application: The application; another process may run its groups, too.
        groups: Names of groups; none for all that it has handlers for, also those that were not started.
        timeout: Longest wait in seconds.

    Returns:
        The position of that event.

    Raises:
        NotReachedError: At once, if a group has failed, with its error, or is stopped, or nothing runs it.
        WaitTimedOutError: If the time is over, with how far each partition is.
    """
    return application.await_position(groups or [group.name for group in application.groups], timeout=timeout)
