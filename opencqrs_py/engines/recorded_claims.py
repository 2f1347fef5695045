"""Claims that keep the record of a group, where its tracker has records."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from opencqrs_py.engines.inbox_checks import refuse_overtaking
from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.errors import BeginningNeededError, SequencesUncheckedError
from opencqrs_py.model.group_record import FoundGroup, GroupRecord
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import Cursor
from opencqrs_py.processing.group_records import RecordRule, Warned
from opencqrs_py.processing.ports import GroupRecords, ParkingTracker

logger = logging.getLogger("opencqrs.processing")


def recorded_claim(run: GroupRun, partitions: Sequence[Partition], owner: str) -> tuple[Cursor, ...]:
    """Claim partitions of a group, and keep its record if its tracker does.

    Where a group starts is determined only if a partition has no progress; with a record, once for the group.

    Raises:
        EventStoreError: As ``ProgressTracker.claim`` and ``RecordRule.kept``.
        HandlersChangedError: As ``RecordRule.kept``.
        InboxError: OCQ-609, if events in the inbox would be overtaken, and the record cannot show that none is.
    """
    tracker, rule = run.processing.tracker, run.record
    inbox = tracker if isinstance(tracker, ParkingTracker) else None
    if rule is None or not isinstance(tracker, GroupRecords):
        initial = run.initial()
        fingerprint = run.processing.source.fingerprint(initial)
        return tracker.claim(run.group, partitions, initial, owner, layout=run.partitions, fingerprint=fingerprint)
    known: int | None = None
    is_checked = False
    while True:
        try:
            return _recorded(run, tracker, rule, partitions, owner, known, is_checked=is_checked)
        except BeginningNeededError as needed:
            known = run.initial() if needed.position is None else needed.position
        except SequencesUncheckedError:
            if inbox is not None:
                refuse_overtaking(run, inbox, all_of_them=True)
            is_checked = True


def _recorded(
    run: GroupRun,
    tracker: GroupRecords,
    rule: RecordRule,
    partitions: Sequence[Partition],
    owner: str,
    initial: int | None,
    *,
    is_checked: bool,
) -> tuple[Cursor, ...]:
    warnings: dict[Warned, str] = {}

    def keep(found: FoundGroup) -> GroupRecord:
        kept = rule.kept(found, initial, is_checked=is_checked)
        warnings.clear()  # of an attempt that has timed out
        warnings.update(kept.warnings)
        return kept.record

    at = initial or 0
    fingerprint = "" if initial is None else run.processing.source.fingerprint(at)
    layout = run.partitions
    found = tracker.claim(run.group, partitions, at, owner, layout=layout, fingerprint=fingerprint, keep=keep)
    for about, text in warnings.items():
        if about in {Warned.LOST, Warned.OTHERS} or about not in rule.said:
            rule.said.add(about)
            logger.warning("%s", text, extra={"action": about.value, "group": run.group})
    return found
