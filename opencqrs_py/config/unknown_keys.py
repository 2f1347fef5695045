"""What is said about a key that names no setting: where it goes wrong and what it was probably meant to be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opencqrs_py.config.entries import Entry, LayerKind
from opencqrs_py.config.guessing import Guess, best_guess, dead_end
from opencqrs_py.config.matching import Dialect, Key, Reading, readings
from opencqrs_py.config.names import PREFIX, alike, canonical, kebab, listed
from opencqrs_py.config.problems import Code, Findings
from opencqrs_py.config.sources.variables import keys_of_variable, variable_name
from opencqrs_py.config.tree import FreeNames, Section, display

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from opencqrs_py.config.tree import Path

__all__ = ["report_foreign", "report_unknown"]

_VERY_ALIKE = 0.8
_VARIABLE_FIX = "write OPENCQRS and the names of a setting with __ between them, like OPENCQRS__SPARK__MASTER"


def report_unknown(
    entry: Entry,
    at: Reading,
    spellings: Sequence[tuple[Key, Dialect]],
    root: Section,
    known: Collection[str],
    findings: Findings,
) -> None:
    """Note that ``entry`` names no setting.

    Args:
        entry: The entry.
        at: What its key begins below.
        spellings: The ways in which its key was read.
        root: Tree of the settings.
        known: Letters and digits of the free names in use.
        findings: Takes the problem.
    """
    if spellings[0][1] is Dialect.VARIABLE:
        guesses = (best_guess(at.node, key, dialect, known) for key, dialect in spellings)
        _report_variable(entry, max(filter(None, guesses), key=lambda each: each.score, default=None), findings)
        return
    key = spellings[0][0]
    guess = best_guess(at.node, key, Dialect.DOTTED, known)
    if guess and guess.wrong:
        path, left = guess.path[: guess.wrong - 1], guess.left
        fix = f"did you mean {display(root, (*at.path, *guess.path[: guess.meant]))}?"
    else:
        end = dead_end(at.node, key)
        path, left = end.path, end.left
        above = display(root, (*at.path, *path))
        fix = f"use one of {listed(end.allowed)}" if end.allowed else f"put nothing below {above}"
    what = "there is no setting " + ".".join(filter(None, (display(root, (*at.path, *path)), left[0][0])))
    findings.unknown_name(Code.UNKNOWN_KEY, what, entry.key_origin(len(entry.key) - len(left)), fix)


def report_foreign(entry: Entry, kind: LayerKind, root: Section, findings: Findings) -> None:
    """Note that ``entry``, which does not claim to be a setting, was probably meant to be one."""
    if kind is LayerKind.VARIABLES:
        path = _with_misspelt_prefix(entry.key[0], root)
        if path:
            _report_variable(entry, Guess(1.0, path), findings)
        return
    first = entry.pieces[0][0]
    if alike(canonical(first), PREFIX) >= _VERY_ALIKE:
        findings.unknown_name(
            Code.UNKNOWN_KEY, f"there is no section {first}", entry.key_origin(0), f"did you mean {PREFIX}?"
        )
    elif canonical(first) in _unmistakable(root):
        fix = f"put it below {PREFIX}, as {PREFIX}.{kebab(root.children[canonical(first)].name)}"
        findings.unknown_name(Code.UNKNOWN_KEY, f"{first} stands outside of {PREFIX}", entry.key_origin(0), fix)


def _report_variable(entry: Entry, guess: Guess | None, findings: Findings) -> None:
    fix = f"did you mean {variable_name(guess.path)}?" if guess else _VARIABLE_FIX
    what = f"the environment variable {entry.key[0]} names no setting"
    findings.unknown_name(Code.UNKNOWN_VARIABLE, what, entry.origin, fix)


def _unmistakable(root: Section) -> frozenset[str]:
    """Return the sections whose names nobody uses for anything else: those of several words."""
    return frozenset(spelling for spelling, child in root.children.items() if "_" in child.name.rstrip("_"))


def _with_misspelt_prefix(name: str, root: Section) -> Path | None:
    """Return the setting that ``name`` means when its first letters are taken for ``OPENCQRS``."""
    if name[:1] not in {"o", "O"}:  # thousands of variables of others are ordinary, where there are many services
        return None
    for length in _prefix_lengths(name):
        if alike(canonical(name[:length]), PREFIX) < _VERY_ALIKE:
            continue
        for key, dialect in keys_of_variable(name, length):
            found = next((each for each in readings(root, key, dialect) if not _is_section(each)), None)
            if key and found:
                return found.path
    return None


def _prefix_lengths(name: str) -> Iterator[int]:
    """Yield where the first and the second word of ``name`` end."""
    first = name.find("_")
    yield from (end for end in (first, name.find("_", first + 1)) if end > 0)


def _is_section(reading: Reading) -> bool:
    return isinstance(reading.node, Section | FreeNames)
