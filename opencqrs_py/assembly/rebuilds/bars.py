"""What keeps a process from running groups that are being rebuilt, or were rebuilt by other handlers."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.errors import ExplainedError, HandlersChangedError, RebuildUnderWayError, SwapUnderWayError
from opencqrs_py.processing.group_records import RecordRule
from opencqrs_py.processing.ports import RebuildRecords

_log = logging.getLogger("opencqrs.control")


class RebuildBars:
    """Checks at each heartbeat which groups this process must not run now. Changes are logged.

    A check takes one statement for each tracker, which the groups of a database share.

    Args:
        runs: The groups that it can run.
    """

    def __init__(self, runs: Iterable[GroupRun]) -> None:
        self._rules: dict[RebuildRecords, dict[str, RecordRule]] = {}
        self._known: dict[str, ExplainedError] = {}
        for run in runs:
            tracker = run.processing.tracker
            if run.record is not None and isinstance(tracker, RebuildRecords):
                self._rules.setdefault(tracker, {})[run.group] = run.record

    def __call__(self) -> Collection[str]:
        """Return the names of these groups."""
        found = self._errors()
        for group, error in found.items():
            known = self._known.get(group)
            if known is None or known.what != error.what:
                level = logging.ERROR if isinstance(error, HandlersChangedError) else logging.WARNING
                _log.log(level, "%s: this process does not run the group; %s", error.what, error.fix)
        for group in self._known.keys() - found.keys():
            _log.info("group %s may be run by this process again", group)
        self._known = found
        return found.keys()

    def holds(self, group: str) -> bool:
        """Return whether the last check has found that this process must not run a group now."""
        return group in self._known

    def lasting(self, group: str) -> ExplainedError | None:
        """Return why this process must not run a group until a person acts; ``None``: it may, or a swap will end."""
        error = self._known.get(group)
        return None if isinstance(error, SwapUnderWayError) else error

    def require(self, groups: Collection[str]) -> None:
        """Refuse to start groups that other handlers have rebuilt.

        Raises:
            HandlersChangedError: OCQ-631.
        """
        for group, error in self._errors().items():
            if group in groups and isinstance(error, HandlersChangedError):
                raise error

    def _errors(self) -> dict[str, ExplainedError]:
        found: dict[str, ExplainedError] = {}
        for tracker, rules in self._rules.items():
            for record in tracker.rebuilt(rules.keys()):
                if record.rebuild is None:
                    continue
                try:
                    rules[record.group].check_rebuild(record, record.rebuild)
                except (HandlersChangedError, RebuildUnderWayError) as error:
                    found[record.group] = error
        return found
