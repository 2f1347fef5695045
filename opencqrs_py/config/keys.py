"""The index of all settings: finds the setting that a key means, in any spelling.

A path is a tuple of field names and, below a map, of names that the user chose, such as group names:
``("event_handling", "groups", "books", "fetch", "subject")``. The index of a model knows each of its paths by the
canonical form of the dotted key, and a map has an index of what stands below each of its names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum, auto
from functools import cache, cached_property
from itertools import chain
from operator import attrgetter
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic.fields import FieldInfo

from opencqrs_py.config.value_types import NO_FACT, Fact
from opencqrs_py.model.naming import canonical, letters_and_digits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Path: TypeAlias = tuple[str, ...]
"""Field names and free names, from the root of the settings."""

PREFIX = "opencqrs"
"""The section below which all settings stand."""

_KEY_PART = re.compile(r"\[([^\]]*)\]|([^.\[]+)")
_BRACKETS = re.compile(r"[.\[\]]")


class SettingKind(Enum):
    """What a path points to."""

    VALUE = auto()
    LIST = auto()
    SECTION = auto()
    MAP = auto()
    """A section whose names the user chooses."""


HOLDERS = (SettingKind.SECTION, SettingKind.MAP)
"""The kinds below which settings stand."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting, or a section of them.

    Args:
        path: Its path in its index.
        kind: What the path leads to.
        info: The field of the model; ``None`` for the root, and for what stands below the names of a map.
        fact: What the field says beyond its type.
        nullable: Whether ``None`` is a value of it, so that ``null`` can reset what lower sources say.
        choices: The words that it allows; empty when it is no choice.
        secret: Whether its value must never be shown.
        names: The fields of a section.
        below: What stands below each name of a map.
        model: The class of a section.
        key: The dotted key in kebab case.
        default: The built-in default, ``None`` when there is none.
    """

    path: Path
    kind: SettingKind
    info: FieldInfo | None = None
    fact: Fact = NO_FACT
    nullable: bool = False
    choices: tuple[str, ...] = ()
    secret: bool = False
    names: tuple[str, ...] = ()
    below: Index | None = None
    model: type | None = None
    key: str = ""
    default: Any = None


@dataclass(frozen=True, slots=True)
class Spelling:
    """One way to split a key.

    Args:
        pieces: Names, or in words the words that names are made of.
        ends: For each piece, how many written keys end with it or after it. In ``groups: {v1.2: {fetch.subject: /}}``
            these are 3, 2, 2, 1, 1: a free name such as ``v1.2`` cannot go beyond the end of its written key.
        words: Whether a name may be several pieces, as in the variable ``GROUPS_BOOK_CATALOG_LIFE_CYCLE``.
        by_variable: Whether it is the name of a variable, in which case is lost.
    """

    pieces: tuple[str, ...]
    ends: tuple[int, ...]
    words: bool = False
    by_variable: bool = False

    @classmethod
    def of(cls, written: Sequence[Sequence[str]], *, by_variable: bool = False) -> Spelling:
        """Return the spelling of written keys, each split at its dots."""
        ends: list[int] = []
        for place, pieces in enumerate(written):
            ends += [len(written) - place] * len(pieces)
        return cls(tuple(chain.from_iterable(written)), tuple(ends), by_variable=by_variable)

    def name(self, start: int, end: int, *, dotted: bool = False) -> str:
        """Return the free name that the pieces from ``start`` to ``end`` make up; if it is dotted, ``_`` is a dot."""
        name = ("_" if self.words else ".").join(self.pieces[start:end])
        if not self.by_variable:
            return name
        return name.lower().replace("_", ".") if dotted else name.lower()


@dataclass(frozen=True, slots=True)
class Meaning:
    """One meaning of a key.

    Args:
        path: Field names, and free names in the spelling by which they are known.
        setting: What stands at the path.
        written: The free names as the key says them, each with its place in the path.
        new: Whether one of them is not known.
        index: Place in a list, from 0; ``None`` when the key means the whole.
        former: Earlier name of a field that the key uses; empty when it uses none.
    """

    path: Path
    setting: Setting
    written: tuple[tuple[int, str], ...] = ()
    new: bool = False
    index: int | None = None
    former: str = ""


class Index:
    """The settings of a model by path, and by the canonical form of their keys."""

    def __init__(self, root: Setting) -> None:
        self.by_path: dict[Path, Setting] = {}
        self.maps: list[Setting] = []
        self._by_key: dict[tuple[str, ...], tuple[Setting, str]] = {}
        self._by_letters: dict[str, list[tuple[Setting, str]]] = {}
        self._add(root, [((), "")])

    @property
    def root(self) -> Setting:
        """The model itself."""
        return self.by_path[()]

    @cached_property
    def by_letters(self) -> dict[str, Path]:
        """The paths of all settings but maps, by the letters and digits of their keys."""
        values = [each.path for each in self.by_path.values() if each.kind not in HOLDERS]
        return {letters_and_digits("".join(path)): path for path in values}

    def _add(self, setting: Setting, forms: list[tuple[tuple[str, ...], str]]) -> None:
        """Add a setting under its canonical key and its former names, and everything below it."""
        self.by_path[setting.path] = setting
        for form, former in forms:
            self._by_key[form] = (setting, former)
            self._by_letters.setdefault("".join(form), []).append((setting, former))
        if setting.kind is SettingKind.MAP:
            self.maps.append(setting)
        if setting.kind is not SettingKind.SECTION or setting.model is None:
            return
        for name, info in _fields_of(setting.model).items():
            child = _setting((*setting.path, name), info, getattr(setting.default, name, _default(info)))
            spellings = [(canonical(old), old) for old in child.fact.formerly] + [(canonical(name), "")]
            self._add(child, [((*form, own), former or old) for form, former in forms for own, old in spellings])

    def settings(self) -> Iterator[Setting]:
        """Yield every setting; a map is yielded instead of its contents."""
        return (each for each in self.by_path.values() if each.kind is not SettingKind.SECTION)

    def at(self, path: Path) -> Setting:
        """Return the setting at ``path``.

        Raises:
            KeyError: There is no such path.
        """
        found = self.by_path.get(path)
        if found is not None:
            return found
        for each in self.maps:
            length = len(each.path)
            if path[:length] == each.path and each.below is not None:
                return each.below.at(path[length + 1 :])
        raise KeyError(path)

    def inside(self, path: Path) -> list[Path]:
        """Return the paths of the settings in the section at ``path``, without those of maps."""
        if path in self.by_path:
            below = (each for each in self.by_path.values() if each.path[: len(path)] == path)
            return [each.path for each in below if each.kind not in HOLDERS]
        found = next(each for each in self.maps if path[: len(each.path)] == each.path)
        length = len(found.path) + 1
        return [(*path[:length], *each) for each in found.below.inside(path[length:])] if found.below else []

    def display(self, path: Path) -> str:
        """Return ``path`` as a dotted key in kebab case; a group name that holds a dot stands in brackets."""
        found = self.by_path.get(path)
        if found is not None:
            return found.key
        for each in self.maps:
            length = len(each.path)
            if path[:length] == each.path and each.below is not None:
                name, rest = path[length], each.below.display(path[length + 1 :])
                in_brackets = each.below.root.kind is not SettingKind.VALUE and _BRACKETS.search(name)
                above = f"{each.key}[{name}]" if in_brackets else f"{each.key}.{name}"
                return f"{above}.{rest}" if rest else above
        raise KeyError(path)

    def meanings(self, spelling: Spelling, names: FreeNames, start: int = 0, above: Path = ()) -> list[Meaning]:
        """Return all meanings of a key.

        Args:
            spelling: The key.
            names: Free names in use; a name that is not in use keeps its spelling.
            start: The first piece that counts.
            above: What the pieces before it mean.
        """
        forms = tuple(map(canonical, spelling.pieces[start:]))
        found = [Meaning((*above, *each.path), each, former=old) for each, old in self._exact(forms, spelling)]
        if forms and spelling.pieces[-1].isdecimal():
            number = int(spelling.pieces[-1])
            for each, old in self._exact(forms[:-1], spelling):
                if each.kind is SettingKind.LIST:
                    found.append(Meaning((*above, *each.path), each, index=number, former=old))
        for each in self.maps:
            length = _length_of(each, forms, words=spelling.words)
            if length is not None and length < len(forms):
                found += self._named(each, spelling, names, start + length, above)
        return found

    def _exact(self, forms: tuple[str, ...], spelling: Spelling) -> Sequence[tuple[Setting, str]]:
        if spelling.words:
            return self._by_letters.get("".join(forms), ())
        found = self._by_key.get(forms)
        return () if found is None else (found,)

    def _named(self, of: Setting, spelling: Spelling, names: FreeNames, start: int, above: Path) -> Iterator[Meaning]:
        """Yield the meanings of a key in which a free name of the map ``of`` starts at the piece ``start``."""
        path, below = (*above, *of.path), of.below
        if below is None:
            return
        takes_all = below.root.kind is SettingKind.VALUE
        for end in range(len(spelling.pieces) if takes_all else start + 1, len(spelling.pieces) + 1):
            if not takes_all and spelling.ends[end - 1] != spelling.ends[start]:
                return
            name = spelling.name(start, end, dotted=takes_all)
            known = names.meant(path, name, by_variable=spelling.by_variable)
            for spelled in known or (name,):
                for each in below.meanings(spelling, names, end, (*path, spelled)):
                    written = ((len(path), name), *each.written)
                    yield replace(each, written=written, new=each.new or not known)

    def path_of(self, key: str, names: FreeNames) -> Path | None:
        """Return the path of a dotted ``key``, ``None`` if there is no such setting.

        Args:
            key: The key, with ``opencqrs`` in front or without, in any spelling.
            names: Free names in use; a name that is not in use keeps its spelling.
        """
        pieces = split_key(key)
        pieces = pieces[1:] if canonical(pieces[0]) == PREFIX else pieces
        found = sorted(self.meanings(Spelling.of([pieces]), names), key=attrgetter("new"))
        return found[0].path if found else None


def _length_of(of: Setting, forms: tuple[str, ...], *, words: bool) -> int | None:
    """Return how many pieces form the key of a map; ``None`` if they do not start with it."""
    wanted = tuple(map(canonical, of.path))
    if not words:
        return len(wanted) if forms[: len(wanted)] == wanted else None
    letters, sought = "", "".join(wanted)
    for count, form in enumerate(forms, start=1):
        letters += form
        if letters == sought:
            return count
    return None


@dataclass(slots=True)
class FreeNames:
    """The names that the user chose, by the path of their map. The first spelling of a name is kept."""

    _spelled: dict[Path, dict[str, str]] = field(default_factory=dict)
    _alike: dict[Path, dict[str, list[str]]] = field(default_factory=dict)

    def add(self, of: Path, name: str) -> str:
        """Register ``name`` in the map at ``of``, and return its known spelling."""
        known = self._spelled.setdefault(of, {})
        form = canonical(name)
        if form not in known:
            known[form] = name
            self._alike.setdefault(of, {}).setdefault(letters_and_digits(name), []).append(name)
        return known[form]

    def meant(self, of: Path, name: str, *, by_variable: bool = False) -> Sequence[str]:
        """Return the known names of the map at ``of`` that ``name`` can mean, in a variable or elsewhere."""
        if by_variable:
            return self._alike.get(of, {}).get(letters_and_digits(name), ())
        spelled = self._spelled.get(of, {}).get(canonical(name))
        return () if spelled is None else (spelled,)

    def of(self, path: Path) -> Iterable[str]:
        """Return the known names of the map at ``path``."""
        return self._spelled.get(path, {}).values()


@cache
def index_of(model: type) -> Index:
    """Return the index of the settings of ``model``."""
    return Index(Setting((), SettingKind.SECTION, names=tuple(_fields_of(model)), model=model))


def _fields_of(model: type) -> dict[str, FieldInfo]:
    """Return the fields of a model, or of a dataclass that pydantic validates."""
    if issubclass(model, BaseModel):
        return dict(model.model_fields)
    hints = get_type_hints(model, include_extras=True)
    return {each.name: FieldInfo.from_annotated_attribute(hints[each.name], each) for each in fields(model)}  # type: ignore[arg-type]


def _default(info: FieldInfo) -> Any:
    return None if info.is_required() else info.get_default(call_default_factory=True)


def _setting(path: Path, info: FieldInfo, default: Any = None) -> Setting:
    """Return the setting of a field."""
    annotation, facts = _unwrapped(info)
    origin, arguments = get_origin(annotation), get_args(annotation)
    key, fact = ".".join(map(kebab, path)), _fact(facts)
    if _is_section(annotation):
        names = tuple(_fields_of(annotation))
        return Setting(path, SettingKind.SECTION, info, fact, names=names, model=annotation, key=key, default=default)
    if origin is dict:
        value = arguments[1]
        below = index_of(value) if _is_section(value) else Index(_setting((), FieldInfo(annotation=value)))
        return Setting(path, SettingKind.MAP, info, fact, below=below, key=key, default=default)
    if origin in {list, tuple, set, frozenset}:
        return Setting(path, SettingKind.LIST, info, fact, key=key, default=default)
    is_class = isinstance(annotation, type)
    return Setting(
        path,
        SettingKind.VALUE,
        info,
        fact,
        nullable=NoneType in get_args(info.annotation),
        choices=tuple(str(each.value) for each in annotation) if is_class and issubclass(annotation, Enum) else (),
        secret=is_class and issubclass(annotation, SecretStr | SecretBytes),
        key=key,
        default=default,
    )


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation))


def _unwrapped(info: FieldInfo) -> tuple[Any, list[object]]:
    """Return the annotation without ``None`` and ``Annotated``, and the metadata found on the way."""
    annotation, facts = info.annotation, list(info.metadata)
    options = [option for option in get_args(annotation) if option is not NoneType]
    if NoneType in get_args(annotation) and len(options) == 1:
        annotation = options[0]
    while get_origin(annotation) is Annotated:
        annotation, *metadata = get_args(annotation)
        facts.extend(metadata)
    return annotation, facts


def _fact(facts: list[object]) -> Fact:
    """Merge the facts of a field; those nearest to the field win."""
    known = [fact for fact in facts if isinstance(fact, Fact)]
    return Fact(
        unit=next((fact.unit for fact in known if fact.unit), ""),
        is_url=any(fact.is_url for fact in known),
        is_duration=any(fact.is_duration for fact in known),
        none=next((fact.none for fact in known if fact.none != NO_FACT.none), NO_FACT.none),
        in_documents_only=any(fact.in_documents_only for fact in known),
        formerly=tuple(name for fact in known for name in fact.formerly),
    )


def kebab(field: str) -> str:
    """Return the spelling that messages and documents use for the model field ``field``."""
    return field.rstrip("_").replace("_", "-")


def split_key(key: str) -> tuple[str, ...]:
    """Split a dotted key into its pieces, at least one; a piece in brackets keeps its dots (``groups[v1.2].fetch``)."""
    pieces = key.split(".") if "[" not in key else map("".join, _KEY_PART.findall(key))
    return tuple(filter(None, map(str.strip, pieces))) or (key.strip(),)
