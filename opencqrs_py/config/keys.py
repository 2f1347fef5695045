"""The index of all settings: finds the setting that a key means, in any spelling.

A path is a tuple of field names and, below a map, of names that the user chose, such as group names:
``("event_handling", "groups", "books", "fetch", "subject")``. The index of a model knows each of its paths by the
canonical form of the dotted key, and a map has an index of the keys below each of its names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum, auto
from functools import cache, cached_property
from itertools import accumulate, chain
from operator import attrgetter
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic.fields import FieldInfo

from opencqrs_py.config.groups import GROUP_FAMILY
from opencqrs_py.config.inheritance import Family
from opencqrs_py.config.jobs import JOB_FAMILY
from opencqrs_py.config.value_types import NO_FACT, Fact
from opencqrs_py.model.naming import canonical, composed, letters_and_digits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Path: TypeAlias = tuple[str, ...]
"""Field names and free names, from the root of the settings."""

PREFIX = "opencqrs"
"""The section that contains all settings."""
GROUPS: Path = GROUP_FAMILY.named
"""Where the settings of single groups are."""
STANDARD: Path = GROUP_FAMILY.standard
"""The path of the settings that groups inherit."""
JOBS: Path = JOB_FAMILY.named
"""Where the settings of single jobs are, next to their standard."""
FAMILIES = (GROUP_FAMILY, JOB_FAMILY)
"""The settings that are inherited."""

INLINE_JSON = "OPENCQRS_APPLICATION_JSON"
"""The variable that holds settings as one JSON object."""

_OURS = re.compile(r"opencqrs(?:$|[_.])", re.IGNORECASE)
_KEY_PART = re.compile(r"\[([^\]]*)\]|([^.\[]+)")
_BRACKETS = re.compile(r"[.\[\]]")

_SERVICE = r"OPENCQRS(?:_[A-Z0-9]+)*?"
_TRANSPORT = r"(?:TCP|UDP|SCTP)"
_ADDRESS = r"(?:(?:\d{1,3}\.){3}\d{1,3}|\[?[0-9A-Fa-f]*:[0-9A-Fa-f:.]+\]?)"
_OF_SERVICES = {
    rf"{_SERVICE}_(?:SERVICE_HOST|PORT_\d+_{_TRANSPORT}_ADDR)": _ADDRESS,
    rf"{_SERVICE}_(?:SERVICE_PORT(?:_[A-Z0-9]+)*|PORT_\d+_{_TRANSPORT}_PORT)": "[0-9]+",
    rf"{_SERVICE}_PORT(?:_\d+_{_TRANSPORT})?": rf"(?:tcp|udp|sctp)://{_ADDRESS}:\d+",
    rf"{_SERVICE}_PORT_\d+_{_TRANSPORT}_PROTO": "tcp|udp|sctp",
}
"""Forms of name and value of the variables that Kubernetes sets for Services."""


class SettingKind(Enum):
    """What a path points to; the names in a ``MAP`` are the user's choice."""

    VALUE = auto()
    LIST = auto()
    SECTION = auto()
    MAP = auto()


HOLDERS = (SettingKind.SECTION, SettingKind.MAP)
"""The kinds that contain settings."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting, or a section of them."""

    path: Path  # in its index
    kind: SettingKind
    info: FieldInfo
    fact: Fact
    key: str  # dotted, in kebab case
    default: Any  # the built-in one; ``None`` when there is none
    nullable: bool  # ``None`` is a value of it, so that ``null`` can reset lower sources
    choices: tuple[str, ...]  # the words that it allows; empty when it is not a choice
    secret: bool  # its value must never be shown
    names: tuple[str, ...]  # the fields of a section


@dataclass(frozen=True, slots=True)
class Spelling:
    """One way to split a key.

    Each piece counts the written keys that end with it or after it. In ``groups: {v1.2: {fetch.subject: /}}`` these are
    3, 2, 2, 1, 1: a free name such as ``v1.2`` cannot go beyond the end of its written key.
    """

    pieces: tuple[str, ...]
    ends: tuple[int, ...]
    words: bool = False  # a name may be several pieces, as in the variable ``GROUPS_BOOK_CATALOG_LIFE_CYCLE``
    by_variable: bool = False  # in which case is lost

    @classmethod
    def of(cls, written: Sequence[Sequence[str]], *, by_variable: bool = False) -> Spelling:
        """Return the spelling of written keys, each split at its dots."""
        ends = [len(written) - place for place, pieces in enumerate(written) for _ in pieces]
        return cls(tuple(chain.from_iterable(written)), tuple(ends), by_variable=by_variable)

    def name(self, start: int, end: int, *, dotted: bool = False) -> str:
        """Return the free name that the pieces from ``start`` to ``end`` make up.

        In a variable it is lower case. If it is dotted, ``_`` is a dot, and letters that are not all capitals stay as
        they are; so does ``_`` beside a dot.
        """
        name = ("_" if self.words else ".").join(self.pieces[start:end])
        if not self.by_variable:
            return name
        if not dotted:
            return name.lower()
        name = name.lower() if name == name.upper() else name
        return name if self._is_in_full(start, end) else name.replace("_", ".")

    def agrees(self, start: int, end: int, known: str) -> bool:
        """Return whether the pieces of a variable mean a dotted name that has their letters and digits."""
        if self._is_in_full(start, end):
            return self.name(start, end, dotted=True) == known
        letters = _letters_in("".join(self.pieces[start:end]))
        return letters in {letters.upper(), _letters_in(known)}

    def _is_in_full(self, start: int, end: int) -> bool:
        """Return whether a variable has every letter of a dotted name in its case: capitals alone do not."""
        written = "".join(self.pieces[start:end])
        return "." in written and written != written.upper()


def _letters_in(name: str) -> str:
    return "".join(filter(str.isalnum, composed(name)))


@dataclass(frozen=True, slots=True)
class Meaning:
    """One meaning of a key."""

    path: Path  # with free names in the spelling by which they are known
    setting: Setting
    written: tuple[tuple[int, str], ...] = ()  # the free names as the key has them, each with its place in the path
    new: bool = False  # one of them is unknown
    index: int | None = None  # in a list, from 0; ``None`` for the whole
    former: str = ""  # the earlier name of a field that the key uses


@dataclass(slots=True)
class FreeNames:
    """The names that the user chose, by the path of their map. The first spelling of a name is kept.

    An ``exact`` name, such as an event type, is not only the user's: it has one spelling.
    """

    _known: dict[tuple[Path, str, bool], list[str]] = field(default_factory=dict)

    def add(self, of: Path, name: str, *, exact: bool = False) -> str:
        """Register ``name`` in the map at ``of``, and return its known spelling."""
        spelled = self._known.setdefault((of, name if exact else canonical(name), False), [])
        if not spelled:
            spelled.append(name)
            self._known.setdefault((of, letters_and_digits(name), True), []).append(name)
        return spelled[0]

    def meant(self, of: Path, name: str, *, by_variable: bool = False, exact: bool = False) -> Sequence[str]:
        """Return the known names of the map at ``of`` that ``name`` can mean, in a variable or elsewhere."""
        form = letters_and_digits(name) if by_variable else name if exact else canonical(name)
        return self._known.get((of, form, by_variable), ())


class Index:
    """The settings of a model by path, and by the canonical form of their keys."""

    def __init__(self, model: Any) -> None:
        self.by_path: dict[Path, Setting] = {}
        self.maps: dict[Path, Index] = {}
        self._by_form: dict[tuple[str, ...] | str, list[tuple[Setting, str]]] = {}
        self._add((), FieldInfo(annotation=model), None, [((), "")])

    @property
    def root(self) -> Setting:
        """The model itself."""
        return self.by_path[()]

    @cached_property
    def by_letters(self) -> dict[str, Path]:
        """The paths of all settings but maps, by the letters and digits of their keys."""
        return {letters_and_digits("".join(path)): path for path in self.inside(())}

    def _add(self, path: Path, info: FieldInfo, default: Any, above: list[tuple[Path, str]]) -> None:
        """Add a setting and everything below it under each form of its key, which may hold a former name.

        ``above`` are the forms of the section it is in, each with the former name that it holds.
        """
        type_, fact = _unwrapped(info)
        names = [*((old, old) for old in fact.formerly), *((name, "") for name in path[-1:])]
        forms = [((*form, canonical(own)), former or old) for form, former in above for own, old in names] or above
        children, is_class = _fields_of(type_), isinstance(type_, type)
        kind = SettingKind.SECTION if _is_section(type_) else _KINDS.get(get_origin(type_), SettingKind.VALUE)
        self.by_path[path] = setting = Setting(
            path,
            kind,
            info,
            fact,
            key=".".join(map(kebab, path)),
            default=default,
            nullable=NoneType in get_args(info.annotation),
            choices=tuple(str(each.value) for each in type_) if is_class and issubclass(type_, Enum) else (),
            secret=is_class and issubclass(type_, SecretStr | SecretBytes),
            names=tuple(children),
        )
        for form, former in forms:
            for each in (form, "".join(form)):
                self._by_form.setdefault(each, []).append((setting, former))
        if (named := get_args(type_)[1] if kind is SettingKind.MAP else _named_in(type_)) is not None:
            self.maps[path] = index_of(named)
        for name, child in children.items():
            self._add((*path, name), child, getattr(default, name, _built_in(child)), forms)

    def settings(self) -> Iterator[Setting]:
        """Yield every setting; a map is yielded instead of its contents."""
        return (each for each in self.by_path.values() if each.kind is not SettingKind.SECTION)

    def at(self, path: Path) -> Setting:
        """Return the setting at ``path``, or raise a KeyError."""
        if path in self.by_path:
            return self.by_path[path]
        of, below = self._map_above(path)
        return below.at(path[len(of) + 1 :])

    def _map_above(self, path: Path) -> tuple[Path, Index]:
        for of, below in self.maps.items():
            if path[: len(of)] == of:
                return of, below
        raise KeyError(path)

    def inside(self, path: Path) -> list[Path]:
        """Return the paths of the settings in the section at ``path``, without those of maps."""
        if path in self.by_path:
            below = (each for each in self.by_path.values() if each.path[: len(path)] == path)
            return [each.path for each in below if each.kind not in HOLDERS]
        of, index = self._map_above(path)
        return [(*path[: len(of) + 1], *each) for each in index.inside(path[len(of) + 1 :])]

    def display(self, path: Path) -> str:
        """Return ``path`` as a dotted key in kebab case; a group name with a dot is in brackets."""
        if path in self.by_path:
            return self.by_path[path].key
        of, below = self._map_above(path)
        name, rest = path[len(of)], below.display(path[len(of) + 1 :])
        in_brackets = below.root.kind is not SettingKind.VALUE and _BRACKETS.search(name)
        above = f"{self.by_path[of].key}[{name}]" if in_brackets else f"{self.by_path[of].key}.{name}"
        return f"{above}.{rest}" if rest else above

    def meanings(self, spelling: Spelling, names: FreeNames, start: int = 0, above: Path = ()) -> list[Meaning]:
        """Return all meanings of a key from the piece ``start``, before which it means ``above``.

        A free name that is not in use keeps its spelling.
        """
        forms = tuple(map(canonical, spelling.pieces[start:]))
        found = [Meaning((*above, *each.path), each, former=old) for each, old in self._exact(forms, spelling)]
        if forms and spelling.pieces[-1].isdecimal():
            number = int(spelling.pieces[-1])
            for each, old in self._exact(forms[:-1], spelling):
                if each.kind is SettingKind.LIST:
                    found.append(Meaning((*above, *each.path), each, index=number, former=old))
        counts = {letters: count for count, letters in enumerate(accumulate(forms), start=1)} if spelling.words else {}
        for path in self.maps:
            wanted = tuple(map(canonical, path))
            length = counts.get("".join(wanted), 0) if spelling.words else len(wanted)
            if 0 < length < len(forms) and (spelling.words or forms[:length] == wanted):
                found += self._named(path, spelling, names, start + length, above)
        return found

    def _exact(self, forms: tuple[str, ...], spelling: Spelling) -> Sequence[tuple[Setting, str]]:
        return self._by_form.get("".join(forms) if spelling.words else forms, ())

    def _named(self, of: Path, spelling: Spelling, names: FreeNames, start: int, above: Path) -> Iterator[Meaning]:
        """Yield the meanings of a key in which a free name of the map ``of`` starts at the piece ``start``."""
        path, below = (*above, *of), self.maps[of]
        takes_all = below.root.kind is SettingKind.VALUE
        beside = set(map(canonical, self.by_path[of].names))  # fields, which no free name can hide
        if not spelling.words and canonical(spelling.pieces[start]) in beside:
            return
        for end in range(len(spelling.pieces) if takes_all else start + 1, len(spelling.pieces) + 1):
            if not takes_all and spelling.ends[end - 1] != spelling.ends[start]:
                return
            name = spelling.name(start, end, dotted=takes_all)
            if canonical(name) in beside:
                continue
            known = names.meant(path, name, by_variable=spelling.by_variable, exact=takes_all)
            if takes_all and spelling.by_variable:
                known = [each for each in known if spelling.agrees(start, end, each)]
            for spelled in known or (name,):
                for each in below.meanings(spelling, names, end, (*path, spelled)):
                    written = ((len(path), name), *each.written)
                    yield replace(each, written=written, new=each.new or not known)

    def path_of(self, key: str, names: FreeNames) -> Path | None:
        """Return the path of a dotted ``key`` in any spelling, with ``opencqrs`` or without, if there is one."""
        pieces = split_key(key)
        pieces = pieces[1:] if canonical(pieces[0]) == PREFIX else pieces
        found = sorted(self.meanings(Spelling.of([pieces]), names), key=attrgetter("new"))
        return found[0].path if found else None


_KINDS = {dict: SettingKind.MAP, **dict.fromkeys((list, tuple, set, frozenset), SettingKind.LIST)}


@cache
def index_of(model: Any) -> Index:
    """Return the index of the settings of ``model``: a class of settings, or the type of a map's values."""
    return Index(model)


def _is_section(type_: Any) -> bool:
    return isinstance(type_, type) and (issubclass(type_, BaseModel) or is_dataclass(type_))


@cache
def _fields_of(type_: Any) -> dict[str, FieldInfo]:
    """Return the fields of a model, or of a dataclass that pydantic validates; of other types none."""
    if not _is_section(type_):
        return {}
    if issubclass(type_, BaseModel):
        return dict(type_.model_fields)
    hints = get_type_hints(type_, include_extras=True)
    return {each.name: FieldInfo.from_annotated_attribute(hints[each.name], each) for each in fields(type_)}


def _built_in(info: FieldInfo) -> Any:
    """Return the default of a field, which is shared, not copied; ``None`` if it has none."""
    if info.default_factory is not None:
        return info.get_default(call_default_factory=True)
    return None if info.is_required() else info.default


def _named_in(type_: Any) -> Any:
    """Return the type of what a section holds by names of the user's choice, beside its fields; ``None`` if nothing."""
    family = getattr(type_, "family", None)
    return type(family.built_in) if isinstance(family, Family) and family.reserved else None


def _unwrapped(info: FieldInfo) -> tuple[Any, Fact]:
    """Return the type without ``None`` and ``Annotated``, and all facts of the field."""
    type_, found = info.annotation, list(info.metadata)
    options = [option for option in get_args(type_) if option is not NoneType]
    if NoneType in get_args(type_) and len(options) == 1:
        type_ = options[0]
    while get_origin(type_) is Annotated:
        type_, *metadata = get_args(type_)
        found += metadata
    facts = [each for each in reversed(found) if isinstance(each, Fact)]
    if len(facts) < 2:
        return type_, facts[0] if facts else NO_FACT
    said: dict[str, Any] = {}
    for fact in facts:
        said |= {each.name: value for each in fields(fact) if (value := getattr(fact, each.name)) != each.default}
    return type_, Fact(**said)


def kebab(field: str) -> str:
    """Return the spelling that messages and documents use for the model field ``field``."""
    return field.rstrip("_").replace("_", "-")


def split_key(key: str) -> tuple[str, ...]:
    """Split a dotted key into its pieces, at least one; a piece in brackets keeps its dots (``groups[v1.2].fetch``)."""
    pieces = key.split(".") if "[" not in key else map("".join, _KEY_PART.findall(key))
    return tuple(filter(None, map(str.strip, pieces))) or (key.strip(),)


def is_ours(name: str) -> bool:
    """Return whether the variable ``name`` claims to be a setting of this package."""
    return _OURS.match(name) is not None


def spellings_of_variable(name: str, prefix_length: int = len(PREFIX)) -> Iterator[Spelling]:
    """Yield the ways to split the variable ``name``, in the order to try.

    ``OPENCQRS__A_B__C`` is split at ``__`` (the style of pydantic-settings) and, when that means nothing or there is
    no ``__``, at every ``_`` (the style of Spring Boot). A name with dots, which shells cannot set but containers
    can, is a dotted key.
    """
    rest = name[prefix_length:]
    if rest.startswith("."):
        yield Spelling.of([split_key(rest)])
        return
    segments = [[segment.strip("_")] for segment in rest.strip("_").split("__") if segment.strip("_")]
    if len(segments) > 1:
        yield Spelling.of(segments, by_variable=True)
    words = tuple(word for word in rest.split("_") if word)
    yield Spelling(words, (1,) * len(words), words=True, by_variable=True)


def variable_name(path: Path) -> str:
    """Return the variable that documents recommend for the setting at ``path``."""
    names = (re.sub(r"[^A-Z0-9]+", "_", name.upper()).strip("_") for name in path)
    return "__".join(("OPENCQRS", *names))


def is_service_variable(name: str, value: object) -> bool:
    """Return whether Kubernetes sets this variable in each container for a Service of the namespace.

    Those of a Service called ``opencqrs`` or ``opencqrs-store`` begin like settings of this package, but are not. Name
    and value must both be of that form: ``OPENCQRS_DATABASE_PORT=5432`` is a mistake of a person.

    Source:
        Kubernetes, "Service", section "Environment variables"; ``…_PORT_5432_TCP_ADDR`` is that of Docker's links.
    """
    forms = [form for names, form in _OF_SERVICES.items() if re.fullmatch(names, name)]
    return isinstance(value, str) and any(re.fullmatch(form, value) for form in forms)
