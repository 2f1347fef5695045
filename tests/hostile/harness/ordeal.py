"""An ordeal: an attack is run and judged, its handler is corrected, and it is run again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attacks.attack import End

from harness.modules import AT, Target
from harness.oracle import Found, Verdict, judge
from harness.process import restored

__all__ = ["Ordeal", "undergone"]


class Ordeal:
    """The result of an attack.

    Args:
        target: What was attacked.
        first: The state after the first run.
        second: The state after the second run, with the corrected handler.
    """

    def __init__(self, target: Target, first: Found, second: Found) -> None:
        self._attack = target.attack
        self._module = target.module
        self._first, self._second = first, second

    @property
    def broke_off(self) -> bool:
        """Whether a run ended by an exception, which on Spark ends those of the other groups, too."""
        return self._first.raised is not None or self._second.raised is not None

    def check(self) -> None:
        """Raise AssertionError unless both runs ended correctly."""
        attack = self._attack
        verdict = judge(
            self._first,
            repeats=attack.commits,
            says=attack.says,
            blames=f"{self._module}.py" if attack.blames_handler else "",
            named=attack.names_event,
            partitions=attack.partitions,
            stop_at=0 if attack.anywhere else AT,
        )
        assert verdict.end in attack.ends, _explained("first run", verdict, self._first, self._second)
        if not attack.correctable and verdict.end is End.REFUSED:
            return
        corrected = self._corrected()
        assert corrected.end in (End.RIGHT, End.SKIPPED), _explained("corrected", corrected, self._first, self._second)

    def _corrected(self) -> Verdict:
        second = self._second
        skipped = Found(
            second.rows, second.stored, second.states, second.errors, skipped=self._first.skipped, raised=second.raised
        )
        return judge(skipped, repeats=self._attack.commits, partitions=self._attack.partitions)


def undergone(targets: Sequence[Target], run: Callable[[Sequence[Target]], dict[str, Found]]) -> dict[str, Ordeal]:
    """Run the targets, correct their handlers, and run them again, as another process would."""
    with restored():
        first = run(targets)
    for target in targets:
        target.correct()
    with restored():
        second = run(targets)
    return {target.group: Ordeal(target, first[target.group], second[target.group]) for target in targets}


def _explained(when: str, verdict: Verdict, first: Found, second: Found) -> str:
    def shown(found: Found) -> str:
        rows = [position for position, _ in found.rows]
        return (
            f"rows {rows}, stored {found.stored}, {found.states}, raised {_text(found.raised)}\n{found.report[:3000]}"
        )

    return f"{when}: {verdict}\n--- first: {shown(first)}\n--- second: {shown(second)}"


def _text(error: BaseException | None) -> str:
    try:
        return f"{type(error).__name__}: {error}" if error is not None else "nothing"
    except BaseException:
        return object.__repr__(error)
