"""Messages about unknown keys: where a key goes wrong, and the setting that was probably meant."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import SequenceMatcher, get_close_matches
from typing import TYPE_CHECKING

from opencqrs_py.config.keys import HOLDERS, PREFIX, FreeNames, Path, SettingKind, Spelling, kebab
from opencqrs_py.config.problems import Code, Findings
from opencqrs_py.config.variables import spellings_of_variable, variable_name
from opencqrs_py.model.naming import canonical, letters_and_digits, listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opencqrs_py.config.entries import Entry
    from opencqrs_py.config.keys import Index, Setting

_ALIKE = 0.6
_VERY_ALIKE = 0.8
_LEFT_OUT = 0.7
_NEW_NAME = 0.95
_VARIABLE_FIX = "write OPENCQRS and the names of a setting with __ between them, like OPENCQRS__SPARK__MASTER"


@dataclass(frozen=True, slots=True)
class _DeadEnd:
    """Where a key stops making sense: at the piece ``at``, with the meaning of the pieces before it."""

    at: int
    path: Path
    setting: Setting


def report_unknown(
    entry: Entry, spellings: Sequence[Spelling], index: Index, names: FreeNames, findings: Findings
) -> None:
    """Report that ``entry``, tried in all ``spellings``, names no setting."""
    if spellings[0].by_variable:
        _report_variable(entry, _nearest_to_variable(spellings, index, names), findings)
        return
    spelling = spellings[0]
    end = _dead_end(index, spelling, names)
    what = ".".join(filter(None, (index.display(end.path), spelling.pieces[end.at])))
    where = entry.key_origin(len(entry.key) - spelling.ends[end.at])
    meant = _nearest_below(index, end, spelling.pieces[end.at])
    allowed = sorted(map(kebab, end.setting.names))
    if meant is not None:
        fix = f"did you mean {index.display(meant)}?"
    else:
        fix = f"use one of {listed(allowed)}" if allowed else f"put nothing below {index.display(end.path)}"
    findings.unknown_name(Code.UNKNOWN_KEY, f"there is no setting {what}", where, fix)


def report_foreign_key(entry: Entry, index: Index, findings: Findings) -> None:
    """Report a key of a file that is outside ``opencqrs`` and probably belongs below it."""
    first = entry.pieces[0][0]
    if _likeness(canonical(first), PREFIX) >= _VERY_ALIKE:
        what, fix = f"there is no section {first}", f"did you mean {PREFIX}?"
        findings.unknown_name(Code.UNKNOWN_KEY, what, entry.key_origin(0), fix)
        return
    meant = next((name for name in index.root.names if canonical(name) == canonical(first)), "")
    if "_" in meant.rstrip("_"):  # no other program uses these names of several words
        fix = f"put it below {PREFIX}, as {PREFIX}.{kebab(meant)}"
        findings.unknown_name(Code.UNKNOWN_KEY, f"{first} stands outside of {PREFIX}", entry.key_origin(0), fix)


def report_foreign_variable(entry: Entry, index: Index, findings: Findings) -> None:
    """Report a variable that would name a setting if its first letters were ``OPENCQRS``."""
    name = entry.key[0]
    first = name.find("_")
    for length in (first, name.find("_", first + 1)):
        if length < 0 or _likeness(canonical(name[:length]), PREFIX) < _VERY_ALIKE:
            continue
        for spelling in spellings_of_variable(name, length):
            found = next(
                (each for each in index.meanings(spelling, FreeNames()) if each.setting.kind not in HOLDERS), None
            )
            if found is not None:
                _report_variable(entry, found.path, findings)
                return


def _report_variable(entry: Entry, meant: Path | None, findings: Findings) -> None:
    fix = f"did you mean {variable_name(meant)}?" if meant else _VARIABLE_FIX
    what = f"the environment variable {entry.key[0]} names no setting"
    findings.unknown_name(Code.UNKNOWN_VARIABLE, what, entry.origin, fix)


def _dead_end(index: Index, spelling: Spelling, names: FreeNames) -> _DeadEnd:
    """Return where the key stops making sense, after the longest part that does."""
    for end in range(len(spelling.pieces) - 1, 0, -1):
        beginning = replace(spelling, pieces=spelling.pieces[:end], ends=spelling.ends[:end])
        found = index.meanings(beginning, names)
        sure = [each for each in found if not each.new or "." not in each.path[-1]]
        if sure:
            return _DeadEnd(end, sure[0].path, sure[0].setting)
    return _DeadEnd(0, (), index.root)


def _nearest_below(index: Index, end: _DeadEnd, piece: str) -> Path | None:
    """Return the setting most similar to ``piece`` in a section, or of that name one section further down."""
    name = canonical(piece)
    found: list[tuple[float, Path]] = [(_likeness(name, canonical(each)), (each,)) for each in end.setting.names]
    for each in end.setting.names:
        below = index.at((*end.path, each))
        found += [(_LEFT_OUT, (each, inner)) for inner in below.names if canonical(inner) == name]
    likeness, meant = max(found, default=(0.0, ()))
    return (*end.path, *meant) if likeness >= _ALIKE else None


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
    """Yield settings in a map that are similar to a variable, which says the name between the map and the setting."""
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
