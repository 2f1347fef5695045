"""One value per setting: layers on top of each other, the highest wins, and who lost is remembered."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from opencqrs_py.config.entries import Nothing
from opencqrs_py.config.problems import Code, Findings
from opencqrs_py.config.shaping import Bound
from opencqrs_py.config.tree import Node, Path, display

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Merged", "merged"]


@dataclass(frozen=True, slots=True)
class Merged:
    """What all layers together set.

    Args:
        stacks: For each setting everything that was said about it, the winner last. A section that was named, such
            as a group without settings, has a stack of ``Nothing.SECTION``.
    """

    stacks: dict[Path, list[Bound]] = field(default_factory=dict)

    def winner(self, path: Path) -> Bound | None:
        """Return what holds for the setting at ``path``, ``None`` when nothing was said about it."""
        stack = self.stacks.get(path)
        return stack[-1] if stack else None

    def winners(self) -> Iterator[Bound]:
        """Yield what holds for each setting that was set, and for each section that was named."""
        return (stack[-1] for stack in self.stacks.values())


def merged(layers: Iterable[list[Bound]], root: Node, findings: Findings) -> Merged:
    """Return the layers, from the lowest to the highest, as one.

    A list is replaced as a whole; everything else is merged setting by setting.
    """
    result = Merged()
    for layer in layers:
        for bound in _once_each(layer, root, findings):
            result.stacks.setdefault(bound.path, []).append(bound)
    return result


def _once_each(layer: list[Bound], root: Node, findings: Findings) -> Iterator[Bound]:
    """Yield one value per setting of ``layer``, lists put together; note those that are set twice."""
    seen: dict[tuple[Path, int | None], Bound] = {}
    lists: dict[Path, list[Bound]] = {}
    for bound in layer:
        first = seen.setdefault((bound.path, bound.index), bound)
        if first is not bound:
            _check_repetition(first, bound, root, findings)
        elif bound.index is not None:
            lists.setdefault(bound.path, []).append(bound)
        else:
            yield bound
    for path, items in lists.items():
        whole = seen.get((path, None))
        if whole is None:
            yield _list_of(items, root, findings)
        else:
            _check_repetition(whole, items[0], root, findings)


def _check_repetition(first: Bound, second: Bound, root: Node, findings: Findings) -> None:
    """Note that one layer sets a setting twice, unless two names of a variable agree on a single value."""
    if first.value == second.value and (first.value is Nothing.SECTION or first.origin.place != second.origin.place):
        return
    what = f"{display(root, second.path)} is set twice"
    findings.error(Code.SET_TWICE, what, f"{first.origin} and {second.origin}", "remove one of them")


def _list_of(items: list[Bound], root: Node, findings: Findings) -> Bound:
    """Return single items as one list; note a gap in their numbers."""
    ordered = sorted(items, key=lambda item: item.index or 0)
    if [item.index for item in ordered] != list(range(len(ordered))):
        path = display(root, ordered[0].path)
        numbers = ", ".join(str(item.index) for item in ordered)
        fix = f"number the items from 0 to {len(ordered) - 1}"
        findings.error(Code.WRONG_SHAPE, f"the items of {path} have the numbers {numbers}", ordered[0].origin, fix)
    return replace(ordered[0], value=tuple(item.value for item in ordered), index=None)
