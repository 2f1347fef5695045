"""What a claim checks in the inbox: that later events overtake none in it, and that none waits for a missed tick."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice

from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.errors import InboxError
from opencqrs_py.model.inbox import InboxEntry, InboxSelection
from opencqrs_py.model.naming import counted, listed
from opencqrs_py.model.partition import hash_of
from opencqrs_py.model.progress import Cursor
from opencqrs_py.model.times import in_milliseconds
from opencqrs_py.processing.inbox.schedules import CronSchedule
from opencqrs_py.processing.ports import GroupRecords, ParkingTracker

logger = logging.getLogger("opencqrs.processing")
CHECKED = 20  # events that are compared if the record of the group shows that its sequencing is unchanged
_PAGE = 1_000  # events that are compared at once
_SOON = timedelta(minutes=1)  # a tick within this time makes up for a missed one


def refuse_overtaking(run: GroupRun, tracker: ParkingTracker, *, all_of_them: bool) -> bool:
    """Refuse to run a group that sequences events in its inbox differently than when they entered it.

    Args:
        run: The group.
        tracker: Its tracker.
        all_of_them: Whether to compare all events; else only some.

    Returns:
        Whether events wait.

    Raises:
        InboxError: OCQ-609, if later events would overtake one.
    """
    waits = False
    for page in _pages(run.group, tracker, _PAGE) if all_of_them else islice(_pages(run.group, tracker, CHECKED), 1):
        waits = True
        if reason := run.processing.why_overtaken(page):
            what = f"events of group '{run.group}' wait in the inbox, and later ones would overtake them: {reason}"
            fix = f"revert that change and have them handled; or opencqrs inbox skip --group {run.group} --reason TEXT"
            raise InboxError("OCQ-609", what, f"group {run.group}", fix)
    return waits


def is_recorded(run: GroupRun) -> bool:
    """Return whether the record of a group has the code by which it sequences events, so that a change is noticed.

    It has none for a processor made by hand, nor for code that cannot be read.
    """
    rule = run.record
    return rule is not None and isinstance(run.processing.tracker, GroupRecords) and bool(rule.code().sequencing)


def warn_of_missed_tick(run: GroupRun, cursors: Sequence[Cursor], now: datetime) -> None:
    """Log which partitions have events that a tick of a cron expression has not tried, unless the next comes soon."""
    rule = run.processing.schedule
    if rule is None or not isinstance(rule.schedule, CronSchedule) or run.ticks_at_once:
        return
    waiting = {one.partition: one.parked.due_at for one in cursors if one.parked and one.parked.due_at}
    since = min(waiting.values(), default=None)
    tick = None if since is None else rule.schedule.last(datetime.fromisoformat(since), now)
    if tick is None or (following := rule.schedule.first(now)) - now <= _SOON:
        return
    late = [str(partition) for partition, due_at in waiting.items() if due_at < in_milliseconds(tick)]
    where = f"by {counted(len(late), 'partition')} ({listed(late)}): events in the inbox have been due since {since}"
    logger.warning(
        "[%s] the tick of %s was missed or not finished %s; the next tick is at %s; to handle them now, stop the "
        "processes that run the group and type: opencqrs run --group %s --until-caught-up",
        run.group,
        in_milliseconds(tick),
        where,
        in_milliseconds(following),
        run.group,
    )


def _pages(group: str, tracker: ParkingTracker, most: int) -> Iterator[list[InboxEntry]]:
    """Yield the events of a group that wait, some at a time."""
    selection = InboxSelection()
    while page := list(filter(selection.matches, tracker.entries(group, most=most, selection=selection))):
        yield page
        last = page[-1]
        selection = InboxSelection(after=(hash_of(last.sequence_id), last.position))
