"""Messages about mistakes: keys that name no setting, with what was probably meant, and values that are refused."""

from __future__ import annotations

from dataclasses import replace
from difflib import SequenceMatcher, get_close_matches
from typing import TYPE_CHECKING

from opencqrs_py.config.entries import Origin, OriginKind
from opencqrs_py.config.job_types import NO_CRON
from opencqrs_py.config.keys import (
    FAMILIES,
    HOLDERS,
    PREFIX,
    STANDARD,
    FreeNames,
    Path,
    SettingKind,
    Spelling,
    kebab,
    spellings_of_variable,
    split_key,
    variable_name,
)
from opencqrs_py.config.placeholders import has_placeholder
from opencqrs_py.config.problems import Code, Findings
from opencqrs_py.config.value_types import duration_text
from opencqrs_py.model.masking import holds_secret, mask_url
from opencqrs_py.model.naming import canonical, letters_and_digits, listed, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    from opencqrs_py.config.binding import Bound, Merged
    from opencqrs_py.config.entries import Entry
    from opencqrs_py.config.inheritance import Family, LevelValues
    from opencqrs_py.config.keys import Index, Setting

_ALIKE = 0.6
_VERY_ALIKE = 0.8
_LEFT_OUT = 0.7
_NEW_NAME = 0.95
_VARIABLE_FIX = "write OPENCQRS and the names of a setting with __ between them, like OPENCQRS__SPARK__MASTER"
_LONGEST_SHOWN = 60
_NO_BOOL = ("it is neither true nor false", "write true or false")
_NO_WHOLE = ("it is not a whole number", "write digits only, like 4")
_NO_NUMBER = ("it is not a number", "write digits, with a point if necessary, like 1.5")
_NO_SECTION = ("it is not a section", "write settings below it")
_PLAIN = {
    "bool_parsing": _NO_BOOL,
    "bool_type": _NO_BOOL,
    "int_from_float": _NO_WHOLE,
    "int_parsing": _NO_WHOLE,
    "int_type": _NO_WHOLE,
    "float_parsing": _NO_NUMBER,
    "float_type": _NO_NUMBER,
    "finite_number": ("it is not a finite number", _NO_NUMBER[1]),
    "dataclass_type": _NO_SECTION,
    "model_type": _NO_SECTION,
    "dict_type": ("it is not a section", "write names and values below it"),
    "list_type": ("it is not a list", "write a list of texts"),
    "string_type": ("it is not text", "write a text"),
    "string_too_short": ("it is empty", "write a text"),
}
"""Reason and fix for pydantic's own errors."""
_LIMITS = {
    "greater_than_equal": ("it is below {}", "write {} or more"),
    "less_than_equal": ("it is above {}", "write {} or less"),
    "greater_than": ("it is not above {}", "write more than {}"),
    "less_than": ("it is not below {}", "write less than {}"),
}


def report_unknown(
    entry: Entry, spellings: Sequence[Spelling], index: Index, names: FreeNames, findings: Findings
) -> None:
    """Report that ``entry``, tried in all ``spellings``, names no setting."""
    spelling = spellings[0]
    if spelling.by_variable:
        _report_variable(entry, _nearest_to_variable(spellings, index, names), findings)
        return
    end, path, setting = _dead_end(index, spelling, names)
    meant = _nearest_below(index, path, setting, spelling.pieces[end])
    if meant is None:
        other = _dead_end(index, spelling, names, dotted=True)
        meant = _nearest_below(index, *other[1:], spelling.pieces[other[0]])
        end, path, setting = (end, path, setting) if meant is None else other
    what = ".".join(filter(None, (index.display(path), spelling.pieces[end])))
    if meant:
        fix = f"did you mean {index.display(meant)}?"
    elif setting.names:
        fix = f"use one of {listed(sorted(map(kebab, setting.names)))}"
    else:
        fix = f"put nothing below {index.display(path)}"
    where = entry.key_origin(len(entry.key) - spelling.ends[end])
    findings.unknown_name(Code.UNKNOWN_KEY, f"there is no setting {what}", where, fix)


def report_foreign_key(entry: Entry, index: Index, findings: Findings) -> None:
    """Report a key of a file that is outside ``opencqrs`` and probably belongs below it."""
    first = split_key(entry.key[0])[0]
    meant = next((name for name in index.root.names if canonical(name) == canonical(first)), "")
    if _likeness(canonical(first), PREFIX) >= _VERY_ALIKE:
        what, fix = f"there is no section {first}", f"did you mean {PREFIX}?"
    elif "_" in meant.rstrip("_"):  # no other program uses these names of several words
        what, fix = f"{first} is outside of {PREFIX}", f"put it below {PREFIX}, as {PREFIX}.{kebab(meant)}"
    else:
        return
    findings.unknown_name(Code.UNKNOWN_KEY, what, entry.key_origin(0), fix)


def report_foreign_variable(entry: Entry, index: Index, findings: Findings) -> None:
    """Report a variable that would name a setting if its first letters were ``OPENCQRS``."""
    name = entry.key[0]
    first = name.find("_")
    for length in (first, name.find("_", first + 1)):
        if length < 0 or _likeness(canonical(name[:length]), PREFIX) < _VERY_ALIKE:
            continue
        for spelling in spellings_of_variable(name, length):
            for meaning in index.meanings(spelling, FreeNames()):
                if meaning.setting.kind not in HOLDERS:
                    _report_variable(entry, meaning.path, findings)
                    return


def _report_variable(entry: Entry, meant: Path | None, findings: Findings) -> None:
    fix = f"did you mean {variable_name(meant)}?" if meant else _VARIABLE_FIX
    what = f"the environment variable {entry.key[0]} names no setting"
    findings.unknown_name(Code.UNKNOWN_VARIABLE, what, entry.origin, fix)


def _dead_end(index: Index, spelling: Spelling, names: FreeNames, *, dotted: bool = False) -> tuple[int, Path, Setting]:
    """Return the first piece of the key without a meaning, and the meaning of the pieces before it.

    If ``dotted``, a written key with dots may be a new name.
    """
    for end in range(len(spelling.pieces) - 1, 0, -1):
        beginning = replace(spelling, pieces=spelling.pieces[:end], ends=spelling.ends[:end])
        for each in index.meanings(beginning, names):
            is_plain = not each.new or "." not in each.path[-1]
            if is_plain or (dotted and _is_written(each.path[-1], beginning, spelling.ends[end])):
                return end, each.path, each.setting
    return 0, (), index.root


def _is_written(name: str, beginning: Spelling, next_end: int) -> bool:
    """Return whether the last written key of ``beginning`` is ``name`` alone, or its last piece is, in brackets."""
    last = beginning.ends[-1]
    whole = ".".join(piece for piece, end in zip(beginning.pieces, beginning.ends, strict=True) if end == last)
    return name == beginning.pieces[-1] or (name == whole and last != next_end)


def _nearest_below(index: Index, path: Path, section: Setting, piece: str) -> Path | None:
    """Return the setting most similar to ``piece`` in a section, or of that name one section further down.

    At the top that includes what applies to all groups: ``processing.engine`` is written without the sections above it.
    """
    name = canonical(piece)
    found: list[tuple[float, Path]] = [(_likeness(name, canonical(each)), (each,)) for each in section.names]
    for each in section.names:
        below = index.at((*path, each)).names
        found += [(_LEFT_OUT, (each, inner)) for inner in below if canonical(inner) == name]
    if not path:
        found += [(_LEFT_OUT, (*STANDARD, each)) for each in index.at(STANDARD).names if canonical(each) == name]
    likeness, meant = max(found, key=lambda each: each[0], default=(0.0, ()))  # of several the first
    return (*path, *meant) if likeness >= _ALIKE else None


def _nearest_to_variable(spellings: Sequence[Spelling], index: Index, names: FreeNames) -> Path | None:
    """Return the setting most similar to a variable, going by letters and digits."""
    found: list[tuple[float, Path]] = []
    for spelling in spellings:
        letters = list(map(letters_and_digits, spelling.pieces))
        found += _similar("".join(letters), index.by_letters)
        for of, below in index.maps.items():
            found += _similar_in_map(of, below, spelling, letters, names)
    return max(found)[1] if found else None


def _similar_in_map(
    of: Path, below: Index, spelling: Spelling, letters: Sequence[str], names: FreeNames
) -> Iterator[tuple[float, Path]]:
    """Yield settings in a map that are similar to a variable, which has the name between the map and the setting."""
    prefix = "".join(map(letters_and_digits, of))
    starts = {at: _similar("".join(letters[:at]), {prefix: of}) for at in range(1, len(letters))}
    likeness = max((found[0][0] for found in starts.values() if found), default=0.0)
    for start in [at for at, found in starts.items() if found and found[0][0] == likeness]:
        if below.root.kind is SettingKind.VALUE:
            if likeness >= _VERY_ALIKE:
                yield likeness * _NEW_NAME, (*of, spelling.name(start, len(letters), dotted=True))
            continue
        for end in range(start + 1, len(letters) if spelling.words else min(start + 2, len(letters))):
            name = spelling.name(start, end)
            known = names.meant(of, name, by_variable=True)
            for ratio, path in _similar("".join(letters[end:]), below.by_letters):
                yield likeness * ratio * (1 if known else _NEW_NAME), (*of, *(known[:1] or (name,)), *path)


def _similar(name: str, known: Mapping[str, Path]) -> list[tuple[float, Path]]:
    """Return the path of ``known`` whose letters are most similar to ``name``, with its likeness; at most one."""
    close = get_close_matches(name, known, n=1, cutoff=_ALIKE)
    return [(_likeness(name, close[0]), known[close[0]])] if close else []


def _likeness(one: str, other: str) -> float:
    """Return how similar two names are, from 0 to 1."""
    return SequenceMatcher(None, one, other).ratio()


def report_refusals(error: ValidationError, merged: Merged, searched: str, findings: Findings) -> None:
    """Report every value that pydantic refuses; ``searched`` names where a missing one could have been set."""
    index = merged.index
    for detail in error.errors(include_url=False, include_input=False):
        path = _known_part(tuple(map(str, detail["loc"])), index)
        if path not in merged.stacks and any(family.single(path) for family in FAMILIES):
            continue  # what the group inherits is refused at the standard
        key, setting, bound = index.display(path) or PREFIX, index.at(path), merged.winner(path)
        if detail["type"] == "missing":
            fix = f"set it in a file, as a variable ({variable_name(path)}) or with --set {key}=…"
            findings.error(Code.VALUE_MISSING, f"{key} has no value", searched, fix)
            continue
        below = (each.origin for each in merged.winners() if each.path[: len(path)] == path)
        where = bound.origin if bound else next(below, Origin(OriginKind.SOURCE))
        if setting.secret or setting.fact.is_url or where.is_secret or holds_secret("".join(path[-1:])):
            bound = None  # which is not shown
        code, reason, fix = _explained(detail, setting, None if bound and has_placeholder(str(bound.value)) else bound)
        findings.error(
            code, f"{key} cannot {f'be {_shown(bound.value)}' if bound else 'be used'}: {reason}", where, fix
        )


def report_rivals(family: Family, levels: Mapping[Path, LevelValues], merged: Merged, findings: Findings) -> None:
    """Report settings that exclude each other and are given on one level.

    Args:
        family: The settings that are inherited.
        levels: The values of each level, by its path.
        merged: Returns where.
        findings: Receives the errors.
    """
    for level, said in levels.items():
        given = [(*level, *leaf) for leaf in family.rivals if str(said.get(leaf) or NO_CRON).strip() != NO_CRON]
        if len(given) > 1:
            *firsts, last = map(merged.index.display, given)
            bounds = [merged.winner(path) for path in given]
            places = dict.fromkeys(str(bound.origin if bound else Origin(OriginKind.SOURCE)) for bound in bounds)
            what = f"{', '.join(firsts)} and {last} exclude each other"
            fix = "remove all but one of them, or set the others to null where a lower source must not be changed"
            findings.error(Code.RIVALS, what, " and ".join(places), fix)


def _known_part(location: Path, index: Index) -> Path:
    """Return the longest part of pydantic's ``location`` that is the path of a setting; list items have none."""
    while location:
        try:
            index.at(location)
        except KeyError:
            location = location[:-1]
        else:
            break
    return location


def _shown(value: object) -> str:
    text = mask_url(", ".join(map(str, value)) if isinstance(value, tuple) else str(value))
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…")


def _explained(detail: ErrorDetails, setting: Setting, quoted: Bound | None) -> tuple[Code, str, str]:
    """Return code, reason and fix. They quote the value unless ``quoted`` is ``None``."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "opencqrs":
        unseen = ("its value cannot be read", context["fix_unseen"])
        seen = quoted is not None or not context["fix_unseen"]
        return Code(context["code"]), *((context["reason"], context["fix"]) if seen else unseen)
    if kind == "enum":
        choices = (*setting.choices, *getattr(setting.info.annotation, "registered", tuple)())
        close = nearest(str(quoted.value), choices) if quoted else None
        return (
            Code.CHOICE,
            "there is no such choice",
            f"use one of {listed(choices)}" + f"; nearest: {close}" * bool(close),
        )
    if kind in _LIMITS:
        (limit,) = context.values()
        number = f"{limit:g}" if isinstance(limit, int | float) else str(limit)
        text = duration_text(float(limit)) if setting.fact.is_duration else number
        reason, fix = _LIMITS[kind]
        return Code.RANGE, reason.format(text), fix.format(text)
    return Code.VALUE, *_PLAIN.get(kind, (detail["msg"].removeprefix("Value error, "), ""))
