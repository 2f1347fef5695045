"""Messages about values that pydantic refuses, each with its setting, its place and what to write instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opencqrs_py.config.entries import Origin, OriginKind
from opencqrs_py.config.keys import PREFIX
from opencqrs_py.config.placeholders import has_placeholder
from opencqrs_py.config.problems import Code, Findings
from opencqrs_py.config.settings import GROUPS
from opencqrs_py.config.variables import variable_name
from opencqrs_py.model.masking import holds_secret, mask_url
from opencqrs_py.model.naming import listed, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    from opencqrs_py.config.binding import Bound, Merged
    from opencqrs_py.config.keys import Index, Path, Setting

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


def report_refusals(error: ValidationError, merged: Merged, index: Index, searched: str, findings: Findings) -> None:
    """Report every value that pydantic refuses.

    Args:
        error: What pydantic raised.
        merged: What was said by whom.
        index: All settings.
        searched: Where a value could have stood, for those that are missing.
        findings: Takes the problems.
    """
    for detail in error.errors(include_url=False, include_input=False):
        _report(detail, merged, searched, index, findings)


def _report(detail: ErrorDetails, merged: Merged, searched: str, index: Index, findings: Findings) -> None:
    location = tuple(str(part) for part in detail["loc"])
    path = _known_part(location, index)
    if path[:2] == GROUPS and len(path) == len(GROUPS) + 3 and path not in merged.stacks:
        return  # what the group inherits is refused where the standard says it
    key = index.display(path) or PREFIX
    setting, bound = index.at(path), merged.winner(path)
    if detail["type"] == "missing":
        fix = f"set it in a file, as a variable ({variable_name(path)}) or with --set {key}=…"
        findings.error(Code.VALUE_MISSING, f"{key} has no value", searched, fix)
        return
    is_seen = bound is not None and not _is_secret(path, setting, bound)
    is_quoted = bound is not None and is_seen and not has_placeholder(str(bound.value))
    code, reason, fix = _explained(detail, setting, bound if is_quoted else None)
    said = f"be {_shown(bound.value)}" if bound is not None and is_seen else "be used"
    findings.error(code, f"{key} cannot {said}: {reason}", _place(path, bound, merged), fix)


def _known_part(location: Path, index: Index) -> Path:
    """Return the longest part of pydantic's ``location`` that is the path of a setting; list items have none."""
    for length in range(len(location), 0, -1):
        try:
            index.at(location[:length])
        except KeyError:
            continue
        return location[:length]
    return ()


def _is_secret(path: Path, setting: Setting, bound: Bound) -> bool:
    return setting.secret or setting.fact.is_url or bound.origin.is_secret or holds_secret(path[-1])


def _shown(value: object) -> str:
    text = mask_url(", ".join(map(str, value)) if isinstance(value, tuple) else str(value))
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…")


def _place(path: Path, bound: Bound | None, merged: Merged) -> Origin | str:
    """Return the place of a refused value: its own, or that of the first setting in its section."""
    if bound is not None:
        return bound.origin
    below = (each.origin for each in merged.winners() if each.path[: len(path)] == path)
    return next(below, Origin(OriginKind.SOURCE))


def _explained(detail: ErrorDetails, setting: Setting, quoted: Bound | None) -> tuple[Code, str, str]:
    """Return code, reason and fix. They quote the value unless ``quoted`` is ``None``."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "opencqrs":
        unseen = (_UNSEEN, context["fix_unseen"]) if quoted is None and context["fix_unseen"] else None
        return Code(context["code"]), *(unseen or (context["reason"], context["fix"]))
    if kind == "enum":
        return Code.CHOICE, "there is no such choice", _choices(setting, quoted)
    if kind.startswith(("greater_than", "less_than")):
        return Code.RANGE, *_limit(kind, context)
    return Code.VALUE, *_PLAIN.get(kind, (detail["msg"].removeprefix("Value error, "), ""))


def _choices(setting: Setting, quoted: Bound | None) -> str:
    registered = getattr(setting.info.annotation, "registered", tuple)
    choices = (*setting.choices, *registered())
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
