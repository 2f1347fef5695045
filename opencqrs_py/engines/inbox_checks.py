"""Checks of a claim that later events overtake none that waits in the inbox."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.errors import InboxError
from opencqrs_py.model.inbox import InboxEntry, InboxSelection
from opencqrs_py.model.partition import hash_of
from opencqrs_py.processing.ports import GroupRecords, ParkingTracker

CHECKED = 20  # events that are compared where the record of the group shows that its sequences are those of before
_PAGE = 1_000  # events that are compared at once


def refuse_overtaking(run: GroupRun, tracker: ParkingTracker, *, all_of_them: bool) -> bool:
    """Refuse to run a group that sequences events in its inbox in another way than when they came in.

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
            fix = f"change that back and let them be handled; or opencqrs inbox skip --group {run.group} --reason TEXT"
            raise InboxError("OCQ-609", what, f"group {run.group}", fix)
    return waits


def is_recorded(run: GroupRun) -> bool:
    """Return whether the record of a group has the code by which it sequences events, so that a change is noticed.

    It has none of a processor that is made by hand, nor of code that cannot be read.
    """
    rule = run.record
    return rule is not None and isinstance(run.processing.tracker, GroupRecords) and bool(rule.code().sequencing)


def _pages(group: str, tracker: ParkingTracker, most: int) -> Iterator[list[InboxEntry]]:
    """Yield the events of a group that wait, some at a time."""
    selection = InboxSelection()
    while page := list(filter(selection.matches, tracker.entries(group, most=most, selection=selection))):
        yield page
        last = page[-1]
        selection = InboxSelection(after=(hash_of(last.sequence_id), last.position))
