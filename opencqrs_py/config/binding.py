"""Binding: match each written key to one setting, and merge the layers so that the highest wins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

from opencqrs_py.config.entries import (
    Entry,
    Layer,
    LayerKind,
    Nothing,
    Origin,
    OriginKind,
    Value,
    flattened,
    parsed_json,
)
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
    is_ours,
    is_service_variable,
    kebab,
    spellings_of_variable,
    split_key,
)
from opencqrs_py.config.mistakes import report_foreign_key, report_foreign_variable, report_unknown
from opencqrs_py.config.problems import MOST_LEVELS, MOST_UNKNOWN, Code, Findings
from opencqrs_py.model.naming import canonical, listed

_SHOWN = 60  # characters of a key that is too long


@dataclass(frozen=True, slots=True)
class Bound:
    """A value bound to its setting; ``Nothing.SECTION`` says only that there is a section."""

    path: Path  # with free names in their known spelling
    value: Value
    origin: Origin
    index: int | None = None  # in a list, from 0; ``None`` for the whole


@dataclass(frozen=True, slots=True)
class Merged:
    """The settings of all layers together.

    A section that was named, such as a group without settings, has a stack of ``Nothing.SECTION``.
    """

    index: Index
    names: FreeNames
    own: Sequence[Entry] = ()  # the user's, which serve placeholders only, the highest last
    stacks: dict[Path, list[Bound]] = field(default_factory=dict)  # all values of a setting, the winner last
    values: dict[Path, object] = field(default_factory=dict)  # the winners, with placeholders replaced
    secrets: dict[Path, frozenset[str]] = field(default_factory=dict)  # what of a value a placeholder brought in

    def winner(self, path: Path) -> Bound | None:
        """Return the winning value of the setting at ``path``, ``None`` if it was not set."""
        stack = self.stacks.get(path)
        return stack[-1] if stack else None

    def winners(self) -> list[Bound]:
        """Return the winning value of each setting that was set, and each section that was named."""
        return [stack[-1] for stack in self.stacks.values()]

    def first_origin(self, path: Path) -> str:
        """Return the place of the first setting at or below ``path``; empty if there is none."""
        return next((str(bound.origin) for bound in self.winners() if bound.path[: len(path)] == path), "")


@dataclass(slots=True)
class Binder:
    """Matches keys to settings, adds the free names that it binds to ``names``, and problems to ``findings``."""

    index: Index
    names: FreeNames
    findings: Findings
    _rank: int = 0
    _bound: dict[tuple[int, bool], list[Bound]] = field(default_factory=dict)  # by rank; single keys beat JSON
    _own: dict[int, list[Entry]] = field(default_factory=dict)
    _written: dict[Path, str] = field(default_factory=dict)

    def merged(self, layers: Sequence[Layer]) -> Merged:
        """Merge the layers, lowest first.

        A list is replaced as a whole; everything else is merged setting by setting. Variables are bound last, since
        they can only be read when the names in use are known.
        """
        for by_variable in (False, True):
            for self._rank, layer in enumerate(layers):
                if (layer.kind is LayerKind.VARIABLES) is by_variable:
                    self._bind_layer(layer, by_variable=by_variable)
        own = [entry for _, entries in sorted(self._own.items()) for entry in entries]
        result = Merged(self.index, self.names, own)
        for _, part in sorted(self._bound.items(), key=itemgetter(0)):
            for one in self._once_each(part):
                result.stacks.setdefault(one.path, []).append(one)
        return result

    def _bind_layer(self, layer: Layer, *, by_variable: bool) -> None:
        too_deep = None
        self._written.clear()
        for entry in layer.entries:
            name = entry.key[0] if by_variable else ""
            if by_variable and not is_ours(name):
                self._own.setdefault(self._rank, []).append(entry)
                if name[:1] in {"o", "O"}:  # thousands of variables of others are ordinary
                    report_foreign_variable(entry, self.index, self.findings)
            elif len(entry.key) + "".join(entry.key).count(".") + name.count("_") > MOST_LEVELS:
                too_deep = too_deep or entry
            elif by_variable:
                self._bind(entry, list(spellings_of_variable(name)))
            else:
                self._bind_key(entry, layer.kind)
        if too_deep:
            what = f"a key has more than {MOST_LEVELS} levels: {'.'.join(too_deep.key)[:_SHOWN]}…"
            self.findings.error(Code.TOO_MUCH, what, too_deep.key_origin(-1), "write fewer levels")

    def _bind_key(self, entry: Entry, kind: LayerKind) -> None:
        pieces = list(map(split_key, entry.key))
        if pieces and canonical(pieces[0][0]) == PREFIX:
            pieces[0] = pieces[0][1:]
        elif kind is LayerKind.FILE:
            self._own.setdefault(self._rank, []).append(entry)
            report_foreign_key(entry, self.index, self.findings)
            return
        self._bind(entry, [Spelling.of(pieces)])

    def _bind(self, entry: Entry, spellings: list[Spelling], *, single: bool = True) -> None:
        """Bind ``entry`` by the first spelling that has a meaning."""
        for spelling in spellings:
            meanings = self.index.meanings(spelling, self.names)
            if any(not _means_little(each, spelling, entry.value) for each in meanings):
                meaning = meanings[0] if len(meanings) == 1 else self._decided(meanings, spelling, entry)
                if meaning is not None:
                    self._register(meaning, spelling, entry)
                    self._add(meaning, spelling, entry, single=single)
                return
        if entry.origin.kind is OriginKind.VARIABLE and is_service_variable(entry.key[0], entry.value):
            self.findings.ignored.setdefault(entry.key[0])
        elif self.findings.unknown_found < MOST_UNKNOWN:
            report_unknown(entry, spellings, self.index, self.names, self.findings)

    def _decided(self, meanings: list[Meaning], spelling: Spelling, entry: Entry) -> Meaning | None:
        """Return the one meaning that fits the value and the names in use; ``None`` if several do.

        A new name in a dotted key ends at the next dot: a dot in a name has to be put in brackets.
        """
        meanings = [each for each in meanings if _fits(each.setting, entry.value)] or meanings
        meanings = [each for each in meanings if not each.new] or meanings
        if len(meanings) == 1 or (meanings[0].new and not spelling.by_variable):
            return meanings[0]
        both = " or ".join(self.index.display(each.path) for each in meanings)
        fix = "use a dotted key instead (in a file or with --set), with a name that holds dots in brackets"
        self.findings.error(Code.TWO_READINGS, f"{entry.key[-1]} can mean {both}", entry.key_origin(-1), fix)
        return None

    def _register(self, meaning: Meaning, spelling: Spelling, entry: Entry) -> None:
        """Register the free names of a meaning; report a name spelled in two ways, and warn about former names."""
        of_value = len(meaning.path) - 1 if meaning.setting.kind is SettingKind.VALUE else None
        for place, written in meaning.written:
            self.names.add(meaning.path[:place], meaning.path[place], exact=place == of_value)
            first = written if spelling.by_variable else self._written.setdefault(meaning.path[: place + 1], written)
            if first != written:
                what = f"{first} and {written} are two spellings of one name"
                fix = f"write {first} in both places, or choose names that differ in letters or digits"
                self.findings.error(Code.SET_TWICE, what, entry.key_origin(-1), fix)
        if meaning.former:
            what = f"{meaning.former} is an old name of {self.index.display(meaning.path)}"
            fix = f"write {kebab(meaning.path[-1])}; the old name still works"
            self.findings.warning(Code.DEPRECATED_KEY, what, entry.key_origin(-1), fix)

    def _add(self, meaning: Meaning, spelling: Spelling, entry: Entry, *, single: bool) -> None:
        """Add the value of ``entry``; a whole section in JSON is bound key by key."""
        path, setting = meaning.path, meaning.setting
        in_json = setting.kind in HOLDERS and isinstance(entry.value, str) and _fits(setting, entry.value)
        bound = Bound(path, Nothing.SECTION if in_json else entry.value, entry.origin, meaning.index)
        entries: Iterable[Entry] = ()
        try:
            if entry.value is not Nothing.UNSET:
                self._bound.setdefault((self._rank, single and not in_json), []).extend(self._shaped(bound, setting))
            if in_json:
                entries = flattened(parsed_json(str(entry.value)), entry.origin)
        except ValueError as error:
            what, fix = (
                f"{self.index.display(path) or PREFIX} {error}",
                "correct the JSON" if in_json else _fix(setting),
            )
            self.findings.error(Code.WRONG_SHAPE, what, entry.origin, fix)
        written = {} if spelling.by_variable else dict(meaning.written)  # else a name would have two spellings
        above = [(written.get(place, name),) for place, name in enumerate(path)]
        for below in entries:
            self._bind(below, [Spelling.of([*above, *map(split_key, below.key)])], single=False)

    def _shaped(self, bound: Bound, setting: Setting) -> list[Bound]:
        """Return what a value sets, in the shape of its setting.

        ``null`` resets all settings of a section, but not the names of a map.

        Raises:
            ValueError: It has another shape; the message completes the name of the setting.
        """
        value, is_nothing = bound.value, isinstance(bound.value, Nothing)
        if setting.kind in HOLDERS:
            if value is None and setting.kind is SettingKind.SECTION and setting.path:
                return [replace(bound, path=path) for path in self.index.inside(bound.path)]
            if value in (None, Nothing.EMPTY, Nothing.SECTION):
                return [replace(bound, value=Nothing.SECTION)]
            raise ValueError("is a section, not a single value or a list")
        if value is Nothing.EMPTY:
            return [replace(bound, value=None)]
        if setting.kind is SettingKind.VALUE or bound.index is not None:
            if is_nothing or isinstance(value, tuple):
                raise ValueError("is a single value, not a list or a section")
        elif is_nothing:
            raise ValueError("is a list of single values")
        elif isinstance(value, str) and value.lstrip().startswith("["):
            items = parsed_json(value)
            if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
                raise ValueError("is a list of texts")
            return [replace(bound, value=tuple(items))]
        return [bound]

    def _once_each(self, layer: list[Bound]) -> Iterable[Bound]:
        """Return one value per setting of ``layer``, with lists assembled; report settings that are set twice."""
        wholes: dict[Path, Bound] = {}
        lists: dict[Path, dict[int, Bound]] = {}
        for bound in layer:
            if bound.index is None:
                first = wholes.setdefault(bound.path, bound)
            else:
                first = lists.setdefault(bound.path, {}).setdefault(bound.index, bound)
            if first is not bound:
                self._check_repetition(first, bound)
        for path, items in lists.items():
            if path in wholes:
                self._check_repetition(wholes[path], next(iter(items.values())))
            else:
                wholes[path] = self._list_of(path, items)
        return wholes.values()

    def _check_repetition(self, first: Bound, second: Bound) -> None:
        """Report a setting that one layer sets twice, unless two spellings of a variable have the same value."""
        agree = first.value is Nothing.SECTION or first.origin.place != second.origin.place
        if first.value != second.value or not agree:
            what = f"{self.index.display(second.path)} is set twice"
            self.findings.error(Code.SET_TWICE, what, f"{first.origin} and {second.origin}", "remove one of them")

    def _list_of(self, path: Path, items: dict[int, Bound]) -> Bound:
        """Return single items as one list; report a gap in their numbers."""
        numbers = sorted(items)
        first = items[numbers[0]]
        if numbers != list(range(len(numbers))):
            what = f"the items of {self.index.display(path)} have the numbers {', '.join(map(str, numbers))}"
            fix = f"number the items from 0 to {len(numbers) - 1}"
            self.findings.error(Code.WRONG_SHAPE, what, first.origin, fix)
        return replace(first, value=tuple(items[number].value for number in numbers), index=None)


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
