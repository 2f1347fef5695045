"""The final value of each setting: placeholders replaced, lists split."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from opencqrs_py.config.entries import Entry, text_items
from opencqrs_py.config.placeholders import Budget, PlaceholderError, resolved_value
from opencqrs_py.config.problems import Code, Findings
from opencqrs_py.config.tree import ListLeaf, Path, Section, display, node_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from opencqrs_py.config.lookup import Lookup
    from opencqrs_py.config.merging import Merged
    from opencqrs_py.config.origin import Origin
    from opencqrs_py.config.placeholders import Found

__all__ = ["Resolved", "resolved_items", "resolved_values"]


@dataclass(frozen=True, slots=True)
class Resolved:
    """The values that were set, ready to be validated.

    Args:
        values: Final value by path.
        secrets: What of a value is secret since a placeholder or a folder of secrets has brought it in, by path.
    """

    values: dict[Path, object] = field(default_factory=dict)
    secrets: dict[Path, frozenset[str]] = field(default_factory=dict)


def resolved_values(merged: Merged, lookup: Lookup, root: Section, findings: Findings) -> Resolved:
    """Return the value of each setting of ``merged``; one that cannot be resolved is noted and left out."""
    result, budget = Resolved(), Budget()
    for bound in merged.winners():
        try:
            value, secrets = resolved_value(bound.value, lookup, budget)
        except PlaceholderError as error:
            _report(error, display(root, bound.path), bound.origin, findings)
            continue
        is_list = isinstance(value, str | tuple) and isinstance(node_at(root, bound.path), ListLeaf)
        result.values[bound.path] = list(text_items(value)) if is_list else value
        if bound.origin.is_secret:
            secrets |= {str(value)}
        if secrets:
            result.secrets[bound.path] = secrets
    return result


def resolved_items(
    entry: Entry, key: str, lookup: Callable[[str], Found | None], findings: Findings
) -> tuple[str, ...]:
    """Return the items of the list ``key``, which is needed before all sources are known; no unresolvable ones."""
    items: list[str] = []
    for item in entry.value if isinstance(entry.value, tuple) else (entry.value,):
        try:
            value, _ = resolved_value(item, lookup)
        except PlaceholderError as error:
            _report(error, key, entry.origin, findings)
        else:
            items.extend(text_items(value))
    return tuple(items)


def _report(error: PlaceholderError, key: str, origin: Origin, findings: Findings) -> None:
    fix = r"set it, give it a default (${key:default}), or write \${ for the text itself"
    findings.error(Code.PLACEHOLDER, f"{key} cannot be resolved: {error}", origin, fix)
