"""Claims that keep the record of a group, where its tracker has records."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.errors import BeginningNeededError
from opencqrs_py.model.group_record import FoundGroup, GroupRecord
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import Cursor
from opencqrs_py.processing.group_records import RecordRule, Warned
from opencqrs_py.processing.ports import GroupRecords

logger = logging.getLogger("opencqrs.processing")


def claimed(run: GroupRun, partitions: Sequence[Partition], owner: str) -> tuple[Cursor, ...]:
    """Claim partitions of a group, and keep its record if its tracker does.

    Where a group starts is determined only if a partition has no progress; with a record, once for the group.

    Raises:
        EventStoreError: As ``ProgressTracker.claim`` and ``RecordRule.kept``.
        HandlersChangedError: As ``RecordRule.kept``.
    """
    tracker, rule = run.processing.tracker, run.record
    if rule is None or not isinstance(tracker, GroupRecords):
        initial = run.initial()
        fingerprint = run.processing.source.fingerprint(initial)
        return tracker.claim(run.group, partitions, initial, owner, layout=run.partitions, fingerprint=fingerprint)
    try:
        return _recorded(run, tracker, rule, partitions, owner, None)
    except BeginningNeededError as needed:
        initial = run.initial() if needed.position is None else needed.position
        return _recorded(run, tracker, rule, partitions, owner, initial)


def _recorded(
    run: GroupRun,
    tracker: GroupRecords,
    rule: RecordRule,
    partitions: Sequence[Partition],
    owner: str,
    initial: int | None,
) -> tuple[Cursor, ...]:
    warnings: dict[Warned, str] = {}

    def keep(found: FoundGroup) -> GroupRecord:
        kept = rule.kept(found, initial)
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
