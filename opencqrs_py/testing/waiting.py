"""Waiting in tests until running groups have handled what was appended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from opencqrs_py.model.masking import scrubbed
from opencqrs_py.model.naming import canonical, counted, in_one_line

if TYPE_CHECKING:
    from opencqrs_py.assembly.application import Application
    from opencqrs_py.model.inbox import InboxEntry
    from opencqrs_py.model.progress import Skip

_MOST_SHOWN = 10  # unhandled events


def caught_up(application: Application, *groups: str, timeout: float = 60.0, allow_unhandled: bool = False) -> int:
    """Wait until groups of an application that has been started have handled the newest event.

    An event up to there was not handled if it was skipped, or waits in the inbox, such as a parked event or one that a
    scheduled group handles at its next tick. All such events in the records of the groups count, also those of earlier
    runs.

    Args:
        application: The application; another process may run its groups, too.
        groups: Names of groups; none for all with handlers in the application, also those that were not started.
        timeout: Longest wait in seconds.
        allow_unhandled: Whether such events are allowed.

    Returns:
        The position of that event.

    Raises:
        TypeError: If a group is not given by its name.
        AssertionError: If there are such events, with the error of each.
        NotReachedError: At once, if a group has failed, with its error, or is stopped, or no process runs it.
        WaitTimedOutError: If the time is over, with the position of each partition.
    """
    __tracebackhide__ = True
    if odd := [group for group in groups if not isinstance(group, str)]:
        raise TypeError(f'caught_up takes names of groups, such as caught_up(application, "books"), got {odd[0]!r}')
    names = groups or tuple(group.name for group in application.groups)
    position = application.await_position(names, timeout=timeout)
    if not allow_unhandled and (unhandled := _unhandled(application, names, position)):
        raise AssertionError(_message(unhandled, position))
    return position


def _unhandled(application: Application, groups: Sequence[str], position: int) -> list[str]:
    """Return a line for each event of groups up to a position that was skipped or waits in the inbox."""
    from opencqrs_py.assembly.inbox import InboxFilter  # noqa: PLC0415 loads SQLAlchemy

    names, inbox = {canonical(name) for name in groups}, application.inbox
    skips = inbox.skips(InboxFilter(tuple(groups)))
    entries = inbox.entries(InboxFilter())  # naming groups would refuse those that have no inbox
    lines = [_skipped(each) for each in skips if each.position <= position]
    lines += [_waiting(each) for each in entries if canonical(each.group) in names and each.position <= position]
    return lines


def _skipped(skip: Skip) -> str:
    return f"[{skip.group}] {_label(skip)} was skipped after {counted(skip.attempts, 'attempt')}: {skip.reason}"


def _waiting(entry: InboxEntry) -> str:
    line = f"[{entry.group}] {_label(entry)} waits in the inbox ({entry.status})"
    return f"{line} after {counted(entry.attempts, 'attempt')}: {entry.reason}" if entry.reason else line


def _label(event: Skip | InboxEntry) -> str:
    return f"event {event.event_id} at position {event.position} ({event.event_type}, {event.subject})"


def _message(lines: Sequence[str], position: int) -> str:
    shown = [f"  {in_one_line(scrubbed(line))}" for line in lines[:_MOST_SHOWN]]
    if len(lines) > _MOST_SHOWN:
        shown.append(f"  and {len(lines) - _MOST_SHOWN} more")
    what = f"caught up to position {position}, but not everything was handled; where the test expects that, pass"
    return "\n".join([f"{what} allow_unhandled=True", *shown])
