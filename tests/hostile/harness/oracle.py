"""The oracle: compares a read model with its log and says how a run ended."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from attacks.attack import End

from harness.modules import AT, SIZE, expected_rows

__all__ = ["Found", "Verdict", "judge"]

_TROUBLED = ("failed", "backing-off", "waiting")
_ENDED = re.compile(r"TransactionEndedError")
_REMEDY = re.compile(r"\bremove\b|\bleave\b.*\balone\b|\buse\b|\binstead\b|\bwithin\b|\brun it in\b")
_NAMED = r"\bposition {0}\b|\bevent e{0}\b"


@dataclass(frozen=True)
class Found:
    """The state that a run has left.

    Attributes:
        rows: The read model: position and text.
        stored: Progress of the partitions, the lowest.
        states: State of each partition, as another process sees it.
        errors: Error of each partition that has one, as another process sees it.
        report: All that was reported in the log and in the status.
        failed: Whether the run's exit code says that a processor failed.
        raised: The exception that ended the run, if any.
        refusal: Whether that exception is one of ours, with a code.
        skipped: Positions of the events that were recorded as skipped.
    """

    rows: list[tuple[int, str]]
    stored: int
    states: tuple[str, ...] = ("stopped",)
    errors: tuple[str, ...] = ()
    report: str = ""
    failed: bool = False
    raised: BaseException | None = None
    refusal: bool = False
    skipped: tuple[int, ...] = ()

    @property
    def failing(self) -> bool:
        """Whether a person or a program can see that not all is done."""
        return bool(self.errors) or any(state in _TROUBLED for state in self.states)


@dataclass(frozen=True)
class Verdict:
    """How a run ended, and what is wrong about it.

    Attributes:
        end: The end, ``None`` if it is not the right one.
        faults: What is wrong, each in a few words.
        silent: Whether something is wrong and was not reported.
    """

    end: End | None
    faults: tuple[str, ...] = ()
    silent: bool = False

    def __str__(self) -> str:
        words = "WRONG AND SILENT: " if self.silent else ""
        return words + (", ".join(self.faults) or str(self.end))


@dataclass
class _Faults:
    found: list[str] = field(default_factory=list)

    def note(self, what: str, positions: Iterable[int]) -> None:
        if positions := sorted(positions):
            self.found.append(f"{what} {', '.join(map(str, positions))}")


def judge(
    found: Found,
    *,
    repeats: bool = False,
    says: str = "",
    blames: str = "",
    named: bool = True,
    stop_at: int = AT,
    partitions: int = 1,
) -> Verdict:
    """Compare the state that a run has left with the log.

    Args:
        found: The state that it has left.
        repeats: Whether events may be applied more than once, and rows may be ahead of the progress.
        says: Regular expression that the report of a stop contains.
        blames: Text that the report of a stop contains: the handler's file.
        named: Whether the report of a stop names the event.
        stop_at: The event before which a stop must be; 0 for any.
        partitions: Partitions of the group; of several, some are ahead of the one that stopped.
    """
    faults = _model_faults(found, repeats=repeats, ahead=partitions > 1)
    if isinstance(found.raised, KeyboardInterrupt):
        return Verdict(None if faults else End.INTERRUPTED, tuple(faults))
    if found.raised is not None:
        if found.refusal and not faults:
            return Verdict(End.REFUSED)
        return Verdict(None, (f"the run ended with {type(found.raised).__name__}", *faults))
    if found.failing:
        faults += _report_faults(found, says, blames, (stop_at or r"\d+") if named else "")
        if stop_at and found.stored >= stop_at and not faults:
            faults.append(f"it stopped at {found.stored}, not before {stop_at}")
        return Verdict(None if faults else End.STOPPED, tuple(faults))
    if found.stored < SIZE:
        faults.append(f"it ended at {found.stored} of {SIZE}")
    if faults:
        return Verdict(None, tuple(faults), silent=True)
    return Verdict(End.SKIPPED if found.skipped else End.RIGHT)


def _model_faults(found: Found, *, repeats: bool, ahead: bool) -> list[str]:
    expected = dict(expected_rows())
    counts = Counter(position for position, _ in found.rows)
    faults = _Faults()
    done = set(range(1, found.stored + 1)) - set(found.skipped)
    faults.note("lost", (position for position in done if not counts[position]))
    faults.note("wrong", {position for position, what in found.rows if expected.get(position) != what})
    faults.note("skipped, and yet written", (position for position in found.skipped if counts[position]))
    if not repeats:
        faults.note("doubled", (position for position, count in counts.items() if count > 1))
    if not repeats and not ahead:
        faults.note("ahead of the progress", (position for position in counts if position > found.stored))
    return faults.found


def _report_faults(found: Found, says: str, blames: str, at: int | str) -> list[str]:
    faults = []
    if not found.failed:
        faults.append("the run ended as if nothing had failed")
    if at and not re.search(_NAMED.format(at), found.report):
        faults.append("the report names no event")
    if _ENDED.search(found.report) and not _REMEDY.search(found.report):
        faults.append("the report names no remedy")
    if blames and blames not in found.report:
        faults.append("the report names no handler")
    if says and not re.search(says, found.report, re.DOTALL | re.IGNORECASE):
        faults.append(f"the report does not say '{says}'")
    return faults
