"""Binding: match each written key to one setting, and merge the layers so that the highest wins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from opencqrs_py.config.entries import Entry, Layer, LayerKind, Nothing, Origin, Value, flattened, parsed_json
from opencqrs_py.config.keys import (
    HOLDERS,
    PREFIX,
    FreeNames,
    Index,
    Meaning,
    Path,
    Setting,
    SettingKind,
    Spelling,
    kebab,
)
from opencqrs_py.config.problems import MOST_LEVELS, Code, Findings
from opencqrs_py.config.suggestions import report_foreign_key, report_foreign_variable, report_unknown
from opencqrs_py.config.variables import is_ours, is_service_variable, spellings_of_variable
from opencqrs_py.model.naming import canonical, listed

_SHOWN = 60  # characters of a key that is too long


@dataclass(frozen=True, slots=True)
class Bound:
    """A value bound to its setting.

    Args:
        path: Path of the setting, free names in their known spelling.
        value: What the source says: a text, a tuple of texts, ``None``, any object from code; ``Nothing.SECTION``
            says only that there is a section.
        origin: Where it says so.
        index: Place in a list, from 0; ``None`` for the whole.
    """

    path: Path
    value: Value
    origin: Origin
    index: int | None = None


@dataclass(slots=True)
class BoundLayer:
    """The settings of one layer.

    Args:
        wholes: What whole sections, written as JSON, set.
        single: What single keys set; they win over the whole sections.
        foreign: Entries that belong to the user and serve placeholders only.
    """

    wholes: list[Bound] = field(default_factory=list)
    single: list[Bound] = field(default_factory=list)
    foreign: list[Entry] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Merged:
    """The settings of all layers together.

    Args:
        stacks: For each setting everything that was said about it, the winner last. A section that was named, such
            as a group without settings, has a stack of ``Nothing.SECTION``.
    """

    stacks: dict[Path, list[Bound]] = field(default_factory=dict)

    def winner(self, path: Path) -> Bound | None:
        """Return the value that wins for the setting at ``path``, ``None`` if it was not set."""
        stack = self.stacks.get(path)
        return stack[-1] if stack else None

    def winners(self) -> list[Bound]:
        """Return the winning value of each setting that was set, and each section that was named."""
        return [stack[-1] for stack in self.stacks.values()]


@dataclass(slots=True)
class Binder:
    """Matches keys to settings.

    Args:
        index: All settings.
        names: Free names in use; the names that are bound are added.
        findings: Takes the problems.
    """

    index: Index
    names: FreeNames
    findings: Findings
    _written: dict[Path, str] = field(default_factory=dict)

    def merged(self, layers: Sequence[Layer]) -> tuple[Merged, list[Entry]]:
        """Merge the layers, lowest first; return the result and the entries that are the user's own.

        A list is replaced as a whole; everything else is merged setting by setting. Variables are bound last, since
        they can only be read when the names in use are known.
        """
        bound: dict[int, BoundLayer] = {}
        for kinds in ({LayerKind.FILE, LayerKind.KEYS}, {LayerKind.VARIABLES}):
            for place, layer in enumerate(layers):
                if layer.kind in kinds:
                    bound[place] = self.bind(layer)
        result, foreign = Merged(), []
        for _, each in sorted(bound.items()):
            foreign += each.foreign
            for part in (each.wholes, each.single):
                for one in self._once_each(part) if part else ():
                    result.stacks.setdefault(one.path, []).append(one)
        return result, foreign

    def bind(self, layer: Layer) -> BoundLayer:
        """Return the settings of ``layer``; mistakes go to the findings."""
        result, too_deep = BoundLayer(), None
        self._written.clear()
        for entry in layer.entries:
            words = 0
            if layer.kind is LayerKind.VARIABLES:
                if not is_ours(entry.key[0]):
                    self._leave_to_the_user(entry, layer.kind, result)
                    continue
                words = entry.key[0].count("_")
            if entry.levels + words > MOST_LEVELS:
                too_deep = too_deep or entry
            elif layer.kind is LayerKind.VARIABLES:
                self._bind(entry, list(spellings_of_variable(entry.key[0])), result.single, result)
            else:
                self._bind_key(entry, layer.kind, result)
        if too_deep:
            what = f"a key has more than {MOST_LEVELS} levels: {'.'.join(too_deep.key)[:_SHOWN]}…"
            self.findings.error(Code.TOO_MUCH, what, too_deep.key_origin(-1), "write fewer levels")
        return result

    def _bind_key(self, entry: Entry, kind: LayerKind, result: BoundLayer) -> None:
        written = entry.pieces
        if written and canonical(written[0][0]) == PREFIX:
            inside = (written[0][1:], *written[1:]) if len(written[0]) > 1 else written[1:]
            self._bind(entry, [Spelling.of(inside)], result.single, result)
        elif kind is LayerKind.KEYS:
            self._bind(entry, [Spelling.of(written)], result.single, result)
        else:
            self._leave_to_the_user(entry, kind, result)

    def _leave_to_the_user(self, entry: Entry, kind: LayerKind, result: BoundLayer) -> None:
        """Keep an entry for placeholders; report it if it was probably meant as a setting."""
        result.foreign.append(entry)
        if kind is not LayerKind.VARIABLES:
            report_foreign_key(entry, self.index, self.findings)
        elif entry.key[0][:1] in {"o", "O"}:  # thousands of variables of others are ordinary
            report_foreign_variable(entry, self.index, self.findings)

    def _bind(self, entry: Entry, spellings: list[Spelling], into: list[Bound], result: BoundLayer) -> None:
        """Bind ``entry`` and add it to ``into``; a whole section in JSON is added to ``result.wholes``."""
        for spelling in spellings:
            meanings = self.index.meanings(spelling, self.names)
            if any(not _means_little(each, spelling, entry.value) for each in meanings):
                meaning = meanings[0] if len(meanings) == 1 else self._decided(meanings, spelling, entry)
                if meaning is not None:
                    self._register(meaning, spelling, entry)
                    self._add(meaning, entry, into, result)
                return
        if is_service_variable(entry):
            self.findings.ignored.setdefault(entry.key[0])
        elif not self.findings.has_many_unknown:
            report_unknown(entry, spellings, self.index, self.names, self.findings)

    def _decided(self, meanings: list[Meaning], spelling: Spelling, entry: Entry) -> Meaning | None:
        """Return the one meaning that fits the value and the names in use; ``None`` if several do.

        Of new names in a dotted key the shortest is meant: there, a dot in a name has to be put in brackets.
        """
        meanings = [each for each in meanings if _fits(each.setting, entry.value)] or meanings
        if len(meanings) > 1:
            meanings = [each for each in meanings if not each.new] or meanings
        if len(meanings) == 1 or (meanings[0].new and not spelling.by_variable):
            return meanings[0]
        both = " or ".join(self.index.display(each.path) for each in meanings)
        fix = "use a dotted key instead (in a file or with --set), with a name that holds dots in brackets"
        self.findings.error(Code.TWO_READINGS, f"{entry.key[-1]} can mean {both}", entry.key_origin(-1), fix)
        return None

    def _register(self, meaning: Meaning, spelling: Spelling, entry: Entry) -> None:
        """Register the free names of a meaning; report a name spelled in two ways, and warn about former names."""
        path = meaning.path
        for place, written in meaning.written:
            self.names.add(path[:place], path[place])
            if not spelling.by_variable:
                self._check_spelling(path[: place + 1], written, entry)
        if meaning.former:
            what = f"{meaning.former} is an old name of {self.index.display(path)}"
            fix = f"write {kebab(path[-1])}; the old name still works"
            self.findings.warning(Code.DEPRECATED_KEY, what, entry.key_origin(-1), fix)

    def _check_spelling(self, path: Path, written: str, entry: Entry) -> None:
        """Report a free name, at the end of ``path``, that the layer spells in two ways."""
        first = self._written.setdefault(path, written)
        if first != written:
            what = f"{first} and {written} are two spellings of one name"
            fix = f"write {first} in both places, or choose names that differ in letters or digits"
            self.findings.error(Code.SET_TWICE, what, entry.key_origin(-1), fix)

    def _add(self, meaning: Meaning, entry: Entry, into: list[Bound], result: BoundLayer) -> None:
        """Add the value of ``entry``; a whole section in JSON is bound key by key."""
        path, setting = meaning.path, meaning.setting
        if setting.kind in HOLDERS and isinstance(entry.value, str) and _fits(setting, entry.value):
            result.wholes.append(Bound(path, Nothing.SECTION, entry.origin))
            for below in self._json_entries(path, entry):
                spelling = Spelling.of([*((name,) for name in path), *below.pieces])
                self._bind(below, [spelling], result.wholes, result)
            return
        if entry.value is Nothing.UNSET:
            return
        bound = Bound(path, entry.value, entry.origin, meaning.index)
        found = self._section(bound, setting) if setting.kind in HOLDERS else _shaped(bound, setting)
        if isinstance(found, str):
            what = f"{self.index.display(path) or PREFIX} {found}"
            self.findings.error(Code.WRONG_SHAPE, what, entry.origin, _fix(setting))
        else:
            into.extend(found)

    def _section(self, bound: Bound, setting: Setting) -> list[Bound] | str:
        """Return the bound values of a whole section; ``null`` resets its settings, but not the names of a map."""
        match bound.value:
            case None if setting.kind is SettingKind.SECTION and setting.path:
                return [replace(bound, path=path) for path in self.index.inside(bound.path)]
            case None | Nothing.EMPTY | Nothing.SECTION:
                return [replace(bound, value=Nothing.SECTION)]
            case _:
                return "is a section, not a single value or a list"

    def _json_entries(self, path: Path, entry: Entry) -> list[Entry]:
        """Return the entries of the JSON object that ``entry`` holds for the section at ``path``."""
        try:
            content = parsed_json(str(entry.value))
        except ValueError as error:
            what = f"{self.index.display(path) or PREFIX} holds broken JSON: {error}"
            self.findings.error(Code.WRONG_SHAPE, what, entry.origin, "correct the JSON")
            return []
        return list(flattened(content, entry.origin)) if isinstance(content, Mapping) else []

    def _once_each(self, layer: list[Bound]) -> Iterator[Bound]:
        """Yield one value per setting of ``layer``, with lists assembled; report settings that are set twice."""
        seen: dict[tuple[Path, int | None], Bound] = {}
        lists: dict[Path, list[Bound]] = {}
        for bound in layer:
            first = seen.setdefault((bound.path, bound.index), bound)
            if first is not bound:
                self._check_repetition(first, bound)
            elif bound.index is not None:
                lists.setdefault(bound.path, []).append(bound)
            else:
                yield bound
        for path, items in lists.items():
            whole = seen.get((path, None))
            if whole is None:
                yield self._list_of(items)
            else:
                self._check_repetition(whole, items[0])

    def _check_repetition(self, first: Bound, second: Bound) -> None:
        """Report a setting that one layer sets twice, unless two spellings of a variable have the same value."""
        agree = first.value is Nothing.SECTION or first.origin.place != second.origin.place
        if first.value != second.value or not agree:
            what = f"{self.index.display(second.path)} is set twice"
            self.findings.error(Code.SET_TWICE, what, f"{first.origin} and {second.origin}", "remove one of them")

    def _list_of(self, items: list[Bound]) -> Bound:
        """Return single items as one list; report a gap in their numbers."""
        ordered = sorted(items, key=lambda item: item.index or 0)
        if [item.index for item in ordered] != list(range(len(ordered))):
            numbers = ", ".join(str(item.index) for item in ordered)
            what = f"the items of {self.index.display(ordered[0].path)} have the numbers {numbers}"
            fix = f"number the items from 0 to {len(ordered) - 1}"
            self.findings.error(Code.WRONG_SHAPE, what, ordered[0].origin, fix)
        return replace(ordered[0], value=tuple(item.value for item in ordered), index=None)


def _means_little(meaning: Meaning, spelling: Spelling, value: Value) -> bool:
    """Return whether a key could only be a section under an unknown name but has no section as value: a misspelling.

    In ``groups.books.fetsch.subject`` everything after ``groups`` could be the name of a group, and in the name of a
    variable, too.
    """
    if not meaning.new or meaning.setting.kind not in HOLDERS or _fits(meaning.setting, value):
        return False
    says_something = value is not None and value is not Nothing.EMPTY
    return spelling.by_variable or (says_something and "." in meaning.path[-1])


def _fits(setting: Setting, value: Value) -> bool:
    """Return whether ``value`` and ``setting`` are both sections, or neither is."""
    is_section = value is Nothing.SECTION or (isinstance(value, str) and value.lstrip().startswith("{"))
    return is_section == (setting.kind in HOLDERS)


def _shaped(bound: Bound, setting: Setting) -> Iterable[Bound] | str:
    """Return the bound values, or what is wrong if the value has the wrong shape for its setting."""
    if bound.value is Nothing.EMPTY:
        return [replace(bound, value=None)]
    if setting.kind is SettingKind.VALUE or bound.index is not None:
        is_single = not isinstance(bound.value, Nothing | tuple)
        return [bound] if is_single else "is a single value, not a list or a section"
    if isinstance(bound.value, Nothing):
        return "is a list of single values"
    if isinstance(bound.value, str) and bound.value.lstrip().startswith("["):
        return _json_list(bound, bound.value)
    return [bound]


def _json_list(bound: Bound, text: str) -> list[Bound] | str:
    try:
        items = parsed_json(text)
    except ValueError as error:
        return f"holds broken JSON: {error}"
    if isinstance(items, list) and all(isinstance(item, str) for item in items):
        return [replace(bound, value=tuple(items))]
    return "is a list of texts"


def _fix(setting: Setting) -> str:
    match setting.kind:
        case SettingKind.SECTION:
            return f"put one of its settings below it: {listed(map(kebab, setting.names))}"
        case SettingKind.MAP:
            return "put a name and its settings below it"
        case SettingKind.VALUE:
            return "write one value"
        case SettingKind.LIST:
            return "write a list of texts, or texts with commas between them"
