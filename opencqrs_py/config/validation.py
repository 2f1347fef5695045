"""From merged values to validated settings; what pydantic refuses becomes a message with its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from opencqrs_py.config.entries import Nothing
from opencqrs_py.config.names import PREFIX, listed, nearest
from opencqrs_py.config.origin import Origin, OriginKind
from opencqrs_py.config.placeholders import has_placeholder
from opencqrs_py.config.problems import Code, Findings
from opencqrs_py.config.settings import GROUPS, Settings, bound_values
from opencqrs_py.config.sources.variables import variable_name
from opencqrs_py.config.tree import Leaf, ListLeaf, Node, Path, Section, display, node_at, tree_of
from opencqrs_py.model.masking import holds_secret, mask_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import ErrorDetails

    from opencqrs_py.config.merging import Merged
    from opencqrs_py.config.shaping import Bound

__all__ = ["validated"]

_LONGEST_SHOWN = 60
_UNSEEN = "its value cannot be read"
_NO_BOOL = ("it is neither true nor false", "write true or false")
_NO_WHOLE = ("it is no whole number", "write digits only, like 4")
_NO_NUMBER = ("it is no number", "write digits, with a point if need be, like 1.5")
_PLAIN = {
    "bool_parsing": _NO_BOOL,
    "bool_type": _NO_BOOL,
    "int_from_float": _NO_WHOLE,
    "int_parsing": _NO_WHOLE,
    "int_type": _NO_WHOLE,
    "float_parsing": _NO_NUMBER,
    "float_type": _NO_NUMBER,
    "finite_number": ("it is no finite number", _NO_NUMBER[1]),
    "dataclass_type": ("it is no section", "write settings below it"),
    "model_type": ("it is no section", "write settings below it"),
    "dict_type": ("it is no section", "write names and values below it"),
    "list_type": ("it is no list", "write a list of texts"),
    "string_type": ("it is no text", "write a text"),
    "string_too_short": ("it is empty", "write a text"),
}
"""Reason and fix for the errors that pydantic finds by itself."""


def validated(
    model: type[Settings],
    values: Mapping[Path, object],
    merged: Merged,
    searched: str,
    findings: Findings,
) -> Settings | None:
    """Return the settings that ``values`` make, ``None`` when they are not valid.

    Args:
        model: Class of the settings.
        values: Value of each setting that was set, placeholders resolved.
        merged: What was said by whom.
        searched: Where a value could have stood, for those that are missing.
        findings: Takes the problems.
    """
    root = tree_of(model)
    token = bound_values.set(_nested(values, root))
    try:
        return model()
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_input=False):
            _report(detail, merged, searched, root, findings)
        return None
    finally:
        bound_values.reset(token)


def _nested(values: Mapping[Path, object], root: Section) -> dict[str, Any]:
    """Return the values as nested mappings by field name; what is reset to its default is left out."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        node = node_at(root, path)
        if value is Nothing.SECTION:
            _below(tree, path)
        elif value is not None or (isinstance(node, Leaf) and node.nullable) or path[0] == "event_handling":
            _below(tree, path[:-1])[path[-1]] = value
    return tree


def _below(tree: dict[str, Any], path: Path) -> dict[str, Any]:
    for name in path:
        tree = tree.setdefault(name, {})
    return tree


def _report(detail: ErrorDetails, merged: Merged, searched: str, root: Section, findings: Findings) -> None:
    location = tuple(str(part) for part in detail["loc"])
    path = _known_part(location, root)
    if path[:2] == GROUPS and len(path) == len(GROUPS) + 3 and path not in merged.stacks:
        return  # what the group inherits is refused where the standard says it
    key = display(root, path) or PREFIX
    node, bound = node_at(root, path), merged.winner(path)
    if detail["type"] == "missing":
        fix = f"set it in a file, as a variable ({variable_name(path)}) or with --set {key}=…"
        findings.error(Code.VALUE_MISSING, f"{key} has no value", searched, fix)
        return
    if detail["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
        what = f"{key} has no setting {location[len(path)]}"
        findings.error(Code.UNKNOWN_KEY, what, _place(path, bound, merged), "remove it")
        return
    is_seen = bound is not None and not _is_secret(path, node, bound)
    is_quoted = bound is not None and is_seen and not has_placeholder(str(bound.value))
    code, reason, fix = _explained(detail, node, bound if is_quoted else None)
    said = f"be {_shown(bound.value)}" if bound is not None and is_seen else "be used"
    findings.error(code, f"{key} cannot {said}: {reason}", _place(path, bound, merged), fix)


def _known_part(location: Path, root: Section) -> Path:
    """Return the beginning of pydantic's ``location`` that is a path of the tree; list items have none."""
    path: Path = ()
    node: Node = root
    for name in location:
        if isinstance(node, Leaf | ListLeaf) or (isinstance(node, Section) and name not in _names(node)):
            break
        path, node = (*path, name), node_at(node, (name,))
    return path


def _names(section: Section) -> set[str]:
    return {child.name for child in section.children.values()}


def _is_secret(path: Path, node: Node, bound: Bound) -> bool:
    is_url = isinstance(node, Leaf) and (node.secret or node.fact.is_url)
    return is_url or bound.origin.is_secret or holds_secret(path[-1])


def _shown(value: object) -> str:
    text = mask_url(", ".join(map(str, value)) if isinstance(value, tuple) else str(value))
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…")


def _place(path: Path, bound: Bound | None, merged: Merged) -> Origin | str:
    """Return where a refused value stands: its own place, else that of the first setting below its section."""
    if bound is not None:
        return bound.origin
    below = (each.origin for each in merged.winners() if each.path[: len(path)] == path)
    return next(below, Origin(OriginKind.SOURCE))


def _explained(detail: ErrorDetails, node: Node, quoted: Bound | None) -> tuple[Code, str, str]:
    """Return code, reason and fix; when the value must not be quoted (``None``), they do not."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "opencqrs":
        unseen = (_UNSEEN, context["fix_unseen"]) if quoted is None and context["fix_unseen"] else None
        return Code(context["code"]), *(unseen or (context["reason"], context["fix"]))
    if kind == "enum":
        return Code.CHOICE, "there is no such choice", _choices(node, quoted)
    if kind.startswith(("greater_than", "less_than")):
        return Code.RANGE, *_limit(kind, context)
    return Code.VALUE, *_PLAIN.get(kind, (detail["msg"].removeprefix("Value error, "), ""))


def _choices(node: Node, quoted: Bound | None) -> str:
    choices = node.choices if isinstance(node, Leaf) else ()
    close = nearest(str(quoted.value), choices) if quoted else None
    return f"use one of {listed(choices)}" + (f"; nearest: {close}" if close else "")


def _limit(kind: str, context: Mapping[str, Any]) -> tuple[str, str]:
    """Return reason and fix for a number beyond its limit."""
    (limit,) = context.values()
    text = f"{limit:g}" if isinstance(limit, int | float) else str(limit)
    match kind:
        case "greater_than_equal":
            return f"it is below {text}", f"write {text} or more"
        case "less_than_equal":
            return f"it is above {text}", f"write {text} or less"
        case "greater_than":
            return f"it is not above {text}", f"write more than {text}"
        case _:
            return f"it is not below {text}", f"write less than {text}"
