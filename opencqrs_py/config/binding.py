"""From keys as written to settings: each entry of a layer finds the one setting that it means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from opencqrs_py.config.entries import Entry, Layer, LayerKind, Nothing, Value
from opencqrs_py.config.free_names import FreeNamesInUse
from opencqrs_py.config.limits import MOST_LEVELS
from opencqrs_py.config.matching import Dialect, Key, Reading, readings, without
from opencqrs_py.config.names import PREFIX, canonical, kebab
from opencqrs_py.config.problems import Code, Findings
from opencqrs_py.config.shaping import Bound, fits, holds_section, json_entries, shaped
from opencqrs_py.config.sources.services import is_service_variable
from opencqrs_py.config.sources.variables import is_ours, keys_of_variable
from opencqrs_py.config.tree import FreeNames, Path, Section, display, steps
from opencqrs_py.config.unknown_keys import report_foreign, report_unknown

__all__ = ["Binder", "BoundLayer"]

_SHOWN = 60  # characters of a key that is too long


@dataclass(slots=True)
class BoundLayer:
    """What a layer sets.

    Args:
        wholes: What whole sections, written as JSON, set.
        single: What single keys set; they win over the whole sections.
        foreign: Entries that belong to the user and serve placeholders only.
    """

    wholes: list[Bound] = field(default_factory=list)
    single: list[Bound] = field(default_factory=list)
    foreign: list[Entry] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Meaning:
    """A reading, and its path with the free names as they are known; ``new`` when one of them is not."""

    reading: Reading
    path: Path
    new: bool
    by_variable: bool


@dataclass(slots=True)
class Binder:
    """Finds the settings that keys mean.

    Args:
        root: Tree of the settings.
        names: Free names in use; the names that are bound are added.
        findings: Takes the problems.
    """

    root: Section
    names: FreeNamesInUse
    findings: Findings
    _written: dict[Path, str] = field(default_factory=dict)

    def bind(self, layer: Layer) -> BoundLayer:
        """Return what ``layer`` sets; what it says wrongly goes to the findings."""
        result = BoundLayer()
        self._written.clear()
        for entry in self._within_limits(layer):
            spellings = _spellings(entry, layer.kind)
            if spellings is None:
                result.foreign.append(entry)
                report_foreign(entry, layer.kind, self.root, self.findings)
            else:
                self._bind(entry, Reading((), self.root), spellings, result)
        return result

    def _within_limits(self, layer: Layer) -> Iterator[Entry]:
        """Yield the entries whose keys can be read; note the first of the others."""
        reported = False
        for entry in layer.entries:
            words = entry.key[0].count("_") if layer.kind is LayerKind.VARIABLES and is_ours(entry.key[0]) else 0
            if entry.levels + words <= MOST_LEVELS:
                yield entry
            elif not reported:
                reported = True
                what = f"a key has more than {MOST_LEVELS} levels: {'.'.join(entry.key)[:_SHOWN]}…"
                self.findings.error(Code.TOO_MUCH, what, entry.key_origin(-1), "write fewer levels")

    def _bind(self, entry: Entry, at: Reading, spellings: Sequence[tuple[Key, Dialect]], result: BoundLayer) -> None:
        """Add to ``result`` what ``entry`` sets, when its key begins below ``at``."""
        for key, dialect in spellings:
            found = (each.at((*at.path, *each.path)) for each in readings(at.node, key, dialect))
            meanings = [meaning for reading in found for meaning in self._meanings(reading, dialect)]
            if any(not _means_little(meaning, entry.value) for meaning in meanings):
                meaning = self._decided(meanings, entry)
                if meaning is not None:
                    self._add(self._registered(meaning, entry), entry, at, result)
                return
        if is_service_variable(entry):
            self.findings.ignored.setdefault(entry.key[0])
        elif not self.findings.has_many_unknown:
            report_unknown(entry, at, spellings, self.root, self.names.letters(), self.findings)

    def _meanings(self, reading: Reading, dialect: Dialect) -> list[_Meaning]:
        """Return ``reading`` once for each combination of known names that it can mean."""
        by_variable = dialect is Dialect.VARIABLE
        found: list[tuple[Path, bool]] = [((), False)]
        for name, parent in steps(self.root, reading.path):
            if isinstance(parent, FreeNames):
                found = [
                    ((*path, known or name), new or not known)
                    for path, new in found
                    for known in self.names.meant(path, name, by_variable=by_variable) or [""]
                ]
            else:
                found = [((*path, name), new) for path, new in found]
        return [_Meaning(reading, path, new, by_variable) for path, new in found]

    def _decided(self, meanings: list[_Meaning], entry: Entry) -> _Meaning | None:
        """Return the one meaning that the value, then the names in use, leave; ``None`` when there are several.

        Of new names in a dotted key the shortest is meant: there, a dot in a name has to be put in brackets.
        """
        if len(meanings) > 1:
            meanings = [each for each in meanings if fits(each.reading, entry.value)] or meanings
        if len(meanings) > 1:
            meanings = [each for each in meanings if not each.new] or meanings
        if len(meanings) == 1 or (meanings[0].new and not meanings[0].by_variable):
            return meanings[0]
        both = " or ".join(display(self.root, each.path) for each in meanings)
        fix = "use a dotted key instead (in a file or with --set), with a name that holds dots in brackets"
        self.findings.error(Code.TWO_READINGS, f"{entry.key[-1]} can mean {both}", entry.key_origin(-1), fix)
        return None

    def _registered(self, meaning: _Meaning, entry: Entry) -> Reading:
        """Return the reading with its free names made known; note one that the layer spells in two ways."""
        path = meaning.path
        for index, (name, parent) in enumerate(steps(self.root, path)):
            if isinstance(parent, FreeNames):
                self.names.add(path[:index], name)
                if not meaning.by_variable:
                    self._check_spelling(path[: index + 1], meaning.reading.path[index], entry)
        if meaning.reading.former:
            what = f"{meaning.reading.former} is an old name of {display(self.root, path)}"
            fix = f"write {kebab(path[-1])}; the old name still works"
            self.findings.warning(Code.DEPRECATED_KEY, what, entry.key_origin(-1), fix)
        return meaning.reading.at(path)

    def _check_spelling(self, path: Path, written: str, entry: Entry) -> None:
        """Note that the layer spells the free name at the end of ``path`` in two ways."""
        first = self._written.setdefault(path, written)
        if first != written:
            what = f"{first} and {written} are two spellings of one name"
            fix = f"write {first} in both places, or choose names that differ in letters or digits"
            self.findings.error(Code.SET_TWICE, what, entry.key_origin(-1), fix)

    def _add(self, reading: Reading, entry: Entry, at: Reading, result: BoundLayer) -> None:
        """Add what ``entry`` sets by ``reading``; JSON that holds a whole section is bound key by key."""
        if holds_section(reading, entry.value):
            result.wholes.append(Bound(reading.path, Nothing.SECTION, entry.origin))
            for below in json_entries(reading, entry, self.root, self.findings):
                self._bind(below, reading, [(below.pieces, Dialect.DOTTED)], result)
        else:
            into = result.single if at.node is self.root else result.wholes
            into.extend(shaped(reading, entry, self.root, self.findings))


def _means_little(meaning: _Meaning, value: Value) -> bool:
    """Return whether a key only means a whole section of an unknown name, and holds none: it is misspelt.

    In ``groups.books.fetsch.subject`` everything after ``groups`` could be the name of a group, and in the name of a
    variable, too.
    """
    if not meaning.new or not isinstance(meaning.reading.node, Section | FreeNames) or fits(meaning.reading, value):
        return False
    says_something = value is not None and value is not Nothing.EMPTY
    return meaning.by_variable or (says_something and "." in meaning.path[-1])


def _spellings(entry: Entry, kind: LayerKind) -> list[tuple[Key, Dialect]] | None:
    """Return the ways to split the key of ``entry``, in the order to try; ``None`` when it is none of ours."""
    if kind is LayerKind.VARIABLES:
        return list(keys_of_variable(entry.key[0])) if is_ours(entry.key[0]) else None
    key = entry.pieces
    if key and canonical(key[0][0]) == PREFIX:
        return [(without(key, 1), Dialect.DOTTED)]
    return [(key, Dialect.DOTTED)] if kind is LayerKind.KEYS else None
