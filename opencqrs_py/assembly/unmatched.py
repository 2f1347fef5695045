"""Groups that have read the log and found nothing for a handler: most likely a type or subject is misspelt."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from typing_extensions import override

from opencqrs_py.model.naming import listed, nearest
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.selection import Selection
from opencqrs_py.processing.exceptions import one_line
from opencqrs_py.processing.notices import Observer
from opencqrs_py.processing.ports import knows_head

if TYPE_CHECKING:
    from opencqrs_py.engines.runs import GroupRun
    from opencqrs_py.model.outcome import Outcome
    from opencqrs_py.processing.groups import GroupProcessing

_log = logging.getLogger("opencqrs.processing")
_MOST_READ = 50_000  # events of which it is unknown whether the group has handled one: 0.2 s in a log of files
_SAMPLE = 1_000  # of the oldest events, and of the newest ones, of which the types are shown
_WILD = re.compile(r"[*?\[]")
_FIX = (
    "correct @event_type or types= of @event_handling; or, if such events are yet to come, leave it: they are "
    "handled when they arrive"
)
_SUBJECT_FIX = "correct it: write a subject as it is in the log, such as /books; case matters"


class UnmatchedGroups(Observer):
    """Warns of each group that has caught up for the first time since the start, if the log has nothing for it.

    It also warns of a type of several that the log lacks, if the log has a similar one that no handler takes. A group
    costs one check of its outcomes until it has caught up. Where a process has not seen itself what was handled, the
    log is read up to 50,000 events; a longer one is not checked then.

    Args:
        runs: The groups.
    """

    def __init__(self, runs: Sequence[GroupRun]) -> None:
        samples: dict[tuple[str, bool], set[str]] = {}
        self._groups = {run.group: _Group(run, samples) for run in runs}
        self._all = [run.processing for run in runs]

    @override
    def claimed(self, group: str, partition: Partition, position: int) -> None:
        if (watched := self._groups.get(group)) is not None:
            watched.begun[partition] = max(position, watched.begun.get(partition, 0))

    @override
    def advanced(self, group: str, partition: Partition, outcome: Outcome) -> None:
        watched = self._groups.get(group)
        if watched is None:
            return
        try:
            watched.matched = watched.matched or _has_matched(outcome)
            if not (watched.matched or outcome.cursor.position) or not watched.has_caught_up(partition, outcome):
                return
            if self._groups.pop(group, None) is not None:  # of several threads one gets it
                watched.warn(self._is_wanted)
        except Exception as error:  # of a store that is unavailable, or whatever: a warning ends no processor
            _log.debug("group %s: cannot check whether the log has events for it: %s", group, one_line(error))

    def _is_wanted(self, event_type: str) -> bool:
        """Return whether a handler of any group takes events of a type."""
        return any(processing.wants(event_type) for processing in self._all)


def _has_matched(outcome: Outcome) -> bool:
    """Return whether a step has found an event for a handler, or may have."""
    cursor, failure = outcome.cursor, outcome.failure
    failed = failure is not None and failure.position is not None
    waits = cursor.parked is not None and bool(cursor.parked.ids)
    return bool(outcome.handled or outcome.skips or outcome.parked or failed or waits) or cursor.replay is not None


class _Group:
    """A group that has not caught up yet.

    Attributes:
        begun: Where its partitions in this process have begun; after a second claim, where that begins.
        matched: Whether it has handled something.

    Args:
        run: The group.
        samples: The types of some events of a subject, which all groups share.
    """

    def __init__(self, run: GroupRun, samples: dict[tuple[str, bool], set[str]]) -> None:
        self.begun: dict[Partition, int] = {}
        self.matched = False
        self._run = run
        self._samples = samples
        self._done: set[Partition] = set()
        self._head = 0

    def has_caught_up(self, partition: Partition, outcome: Outcome) -> bool:
        """Note the position of a partition; return whether all of this process have reached the former newest event."""
        source = self._run.processing.source
        if not (self._head or outcome.idle or knows_head(source)):
            return False  # the head is not worth reading a log twice
        self._head = self._head or source.head()
        if outcome.idle or outcome.cursor.position >= self._head:
            self._done.add(partition)
        return self._done >= self.begun.keys()

    def warn(self, is_wanted: Callable[[str], bool]) -> None:
        """Warn if the log has nothing for the group's handlers, or for some of them, and something for others."""
        if self.matched:
            self._warn_of_absent(is_wanted)
            return
        processing = self._run.processing
        unseen = self._unseen()
        wanted = processing.type_names
        if unseen > _MOST_READ or not wanted:
            return
        if _has_wanted(processing, unseen):
            self._warn_of_absent(is_wanted)
            return
        chosen = processing.selection
        seen = self._types(Selection(chosen.subject, chosen.recursive))
        if any(map(processing.wants, seen)):  # the store has not returned it to the group
            return
        if seen:
            none = "has handled nothing: the log has no event of the types that its handlers want"
            self._say(f"{none}: {_beside(wanted, seen)}", _FIX)
        elif not chosen.everything and self._types(Selection()):
            none = "has handled nothing: the log has no event with the subject of fetch.subject"
            self._say(f"{none}, {chosen.subject}", _SUBJECT_FIX)

    def _warn_of_absent(self, is_wanted: Callable[[str], bool]) -> None:
        """Warn of types that the log lacks, if it has similar ones that no handler takes; not of another version."""
        processing, chosen = self._run.processing, self._run.processing.selection
        names = processing.type_names
        if len(names) < 2 or self._head > _MOST_READ:  # something was handled, so the log has the only one
            return
        seen = self._types(Selection(chosen.subject, chosen.recursive))
        others = {each for each in seen if not is_wanted(each)}
        close = {name: nearest(name, others) for name in names if name not in seen and not _WILD.search(name)}
        meant = {name: other for name, other in close.items() if other and _unversioned(name) != _unversioned(other)}
        if meant:
            there = set(_selected_types(processing, self._head))
            if absent := [f"{name} (did you mean {meant[name]}?)" for name in meant if name not in there]:
                what = (
                    f"does not get what some of its handlers want, since the log has no event of type {listed(absent)}"
                )
                self._say(what, _FIX)

    def _unseen(self) -> int:
        """Return up to which position this process does not know that the group has handled nothing."""
        all_here = len(self.begun) == len(self._run.partitions) and self._run.processing.schedule is None
        return min(self.begun.values()) if all_here else self._head

    def _types(self, selection: Selection) -> set[str]:
        key = (selection.subject, selection.recursive)
        if key not in self._samples:
            read, newest = self._run.processing.source.read, max(0, self._head - _SAMPLE)
            parts = (read(0, _SAMPLE, selection, self._head), read(newest, _SAMPLE, selection, self._head))
            self._samples[key] = {event.type for part in parts for event in part.events}
        return self._samples[key]

    def _say(self, what: str, fix: str) -> None:
        group = self._run.group
        extra = {"action": "unmatched", "group": group}
        _log.warning("group '%s' %s\n  fix:   %s", group, what, fix, extra=extra)


def _has_wanted(processing: GroupProcessing, upto: int) -> bool:
    return any(processing.wants(event_type) for event_type in _selected_types(processing, upto))


def _selected_types(processing: GroupProcessing, upto: int) -> Iterator[str]:
    """Yield the types of the events up to a position that the group's reads select."""
    after = 0
    while after < upto:
        part = processing.source.read(after, _SAMPLE, processing.selection, upto)
        yield from (event.type for event in part.events)
        if part.upto <= after:
            return
        after = part.upto


def _beside(wanted: Sequence[str], seen: set[str]) -> str:
    """Return the types that are wanted, each with the nearest existing one; else with the existing ones."""
    close = {name: nearest(name, seen) for name in wanted}
    shown = listed(f"{name} (did you mean {meant}?)" if meant else name for name, meant in close.items())
    return shown if any(close.values()) else f"{shown}; it has {listed(sorted(seen))}"


def _unversioned(name: str) -> str:
    return re.sub(r"\d+", "", name)
