"""The final value of each setting: placeholders replaced, lists split."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from opencqrs_py.config.placeholders import PlaceholderError, has_placeholder, resolved
from opencqrs_py.config.problems import Code, Findings
from opencqrs_py.config.tree import ListLeaf, Path, Section, display, node_at

if TYPE_CHECKING:
    from opencqrs_py.config.lookup import Lookup
    from opencqrs_py.config.merging import Merged

__all__ = ["Resolved", "resolved_values"]


@dataclass(frozen=True, slots=True)
class Resolved:
    """The values that were set, ready to be validated.

    Args:
        values: Final value by path.
        secrets: Paths of the values that came from a secret.
    """

    values: dict[Path, object] = field(default_factory=dict)
    secrets: set[Path] = field(default_factory=set)


def resolved_values(merged: Merged, lookup: Lookup, root: Section, findings: Findings) -> Resolved:
    """Return the value of each setting of ``merged``; one that cannot be resolved is noted and left out."""
    result = Resolved()
    for bound in merged.winners():
        try:
            value, secret = _resolved(bound.value, lookup)
        except PlaceholderError as error:
            what = f"{display(root, bound.path)} cannot be resolved: {error}"
            fix = r"set it, give it a default (${key:default}), or write \${ for the text itself"
            findings.error(Code.PLACEHOLDER, what, bound.origin, fix)
            continue
        is_list = isinstance(value, str) and isinstance(node_at(root, bound.path), ListLeaf)
        result.values[bound.path] = _split(str(value)) if is_list else value
        if secret or bound.origin.is_secret:
            result.secrets.add(bound.path)
    return result


def _resolved(value: object, lookup: Lookup) -> tuple[object, bool]:
    match value:
        case str(text) if has_placeholder(text):
            found = resolved(text, lookup)
            return found.text, found.secret
        case tuple(items):
            parts = [_resolved(item, lookup) for item in items]
            return [item for item, _ in parts], any(secret for _, secret in parts)
        case _:
            return value, False


def _split(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
