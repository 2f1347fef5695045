"""The sources of settings, as sources of pydantic-settings. Each yields layers of entries with their origins.

``Settings.settings_customise_sources`` puts them in order, the highest first, so that a subclass can put sources of its
own between them. The binder does what pydantic-settings does not: it finds one setting for all spellings of a key
before anything is merged.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_settings import InitSettingsSource, PydanticBaseSettingsSource
from typing_extensions import override

from opencqrs_py.config.binding import Binder, Merged
from opencqrs_py.config.entries import Entry, Layer, LayerKind, Nothing, Origin, OriginKind, flattened, parsed_json
from opencqrs_py.config.files import FileReader, FileStack, is_there
from opencqrs_py.config.keys import FreeNames, index_of
from opencqrs_py.config.placeholders import Lookup, resolved_items
from opencqrs_py.config.problems import Code, Findings
from opencqrs_py.config.profiles import DEFAULT_PROFILE, is_profile_name
from opencqrs_py.config.variables import INLINE_JSON, text_value
from opencqrs_py.model.naming import nearest

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from pydantic_settings import BaseSettings

_IMPORT = ("config", "import_")
_ACTIVE = ("profiles", "active")
_pinned: ContextVar[tuple[Mapping[str, object], ...]] = ContextVar("pinned", default=())
_of_this_load: ContextVar[tuple[PydanticBaseSettingsSource, ...]] = ContextVar("of_this_load", default=())


@dataclass(frozen=True, slots=True)
class Given:
    """The arguments of a load.

    Args:
        project: Project folder.
        environ: Environment variables.
        profiles: Active profiles; without any, a source chooses.
        overrides: ``key=value`` texts.
        defaults: Values given in code.
        package: Folder of a package whose files rank below those of the project.
    """

    project: Path
    environ: Mapping[str, str]
    profiles: Sequence[str] = ()
    overrides: Sequence[str] = ()
    defaults: Mapping[str, object] = field(default_factory=dict)
    package: Path | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """What the sources of a load share."""

    settings_cls: type[BaseSettings]
    given: Given
    findings: Findings
    reader: FileReader


class LayeredSource(PydanticBaseSettingsSource):
    """A source whose values have origins."""

    def __init__(self, load: Load) -> None:
        super().__init__(load.settings_cls)
        self.given = load.given
        self.findings = load.findings
        self.reader = load.reader

    @abstractmethod
    def layers(self) -> list[Layer]:
        """Return the layers of the source, the lowest first."""

    @override
    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self().get(field_name), field_name, False

    @override
    def __call__(self) -> dict[str, Any]:
        """Return the values of this source alone, unresolved, as nested mappings by field name."""
        binder = Binder(index_of(self.settings_cls), FreeNames(), self.findings)
        return nested({bound.path: bound.value for bound in binder.merged(self.layers()).winners()})


class TestSource(LayeredSource):
    """Properties that tests pin, the inner block on top."""

    __test__ = False

    @override
    def layers(self) -> list[Layer]:
        return [_code_layer(properties, OriginKind.TEST) for properties in _pinned.get()]


class ArgumentSource(LayeredSource):
    """Each ``--set key=value`` as a layer of its own, so that the last one wins."""

    @override
    def layers(self) -> list[Layer]:
        layers: list[Layer] = []
        for override_ in self.given.overrides:
            key, sign, text = override_.partition("=")
            origin = Origin(OriginKind.ARGUMENT, f"--set {key.strip()}")
            if sign and key.strip():
                value = None if text.strip() == "null" else text
                layers.append(Layer(LayerKind.KEYS, (Entry((key.strip(),), value, origin),)))
                continue
            what = f"the argument --set {key.strip()} says no value" if key.strip() else "an argument --set has no key"
            fix = "write it like --set event-handling.groups.books.fetch.subject=/books"
            self.findings.error(Code.ARGUMENT, what, origin, fix)
        return layers


class InlineJsonSource(LayeredSource):
    """``OPENCQRS_APPLICATION_JSON``; its keys may be dotted, and leave ``opencqrs`` out."""

    @override
    def layers(self) -> list[Layer]:
        name = next((name for name in self.given.environ if name.upper() == INLINE_JSON), "")
        if not self.given.environ.get(name, "").strip():
            return []
        origin = Origin(OriginKind.VARIABLE, name)
        try:
            content = parsed_json(self.given.environ[name])
        except ValueError as error:
            what, fix = f"{name} {error}", "correct the JSON"
        else:
            if isinstance(content, Mapping):
                return [Layer(LayerKind.KEYS, tuple(flattened(content, origin)))]
            what, fix = f"{name} holds no JSON object", 'write it like {"event-handling": {"groups": {}}}'
        self.findings.error(Code.WRONG_SHAPE, what, origin, fix)
        return []


class EnvironmentSource(LayeredSource):
    """All environment variables; those that are not ours serve placeholders only."""

    @override
    def layers(self) -> list[Layer]:
        entries = [
            Entry((name,), text_value(text), Origin(OriginKind.VARIABLE, name))
            for name, text in self.given.environ.items()
            if name.upper() != INLINE_JSON
        ]
        return [Layer(LayerKind.VARIABLES, tuple(entries))]


class DotenvSource(LayeredSource):
    """The file ``.env``: variables that are not set in the environment."""

    @override
    def layers(self) -> list[Layer]:
        file = self.given.project / ".env"
        if ".env" not in self.reader.names_in(self.given.project) or is_there(file / "pyvenv.cfg"):
            return []  # none, or that of ``python -m venv .env``
        text = self.reader.text(file)
        return [] if text is None else [Layer(LayerKind.VARIABLES, tuple(self._entries(file, text)))]

    def _entries(self, file: Path, text: str) -> Iterator[Entry]:
        from dotenv.parser import parse_stream  # noqa: PLC0415 most projects have no such file

        for binding in parse_stream(StringIO(text)):
            origin = Origin(OriginKind.FILE, file.name, binding.original.line)
            if binding.error:
                fix = "write it like NAME=value"
                self.findings.error(Code.FILE_UNREADABLE, "it is no variable", origin, fix)
            elif binding.key is not None:
                value = Nothing.UNSET if binding.value is None else text_value(binding.value)
                yield Entry((binding.key,), value, origin)


class FilesSource(LayeredSource):
    """The application files and what they import, as far as they apply with the active profiles."""

    stack: FileStack | None = None

    @override
    def layers(self) -> list[Layer]:
        return [] if self.stack is None else self.stack.layers


class SecretsSource(FilesSource):
    """The folders of secrets that files import."""

    @override
    def layers(self) -> list[Layer]:
        return [] if self.stack is None else self.stack.secrets


class DefaultsSource(LayeredSource):
    """Defaults given by the caller."""

    @override
    def layers(self) -> list[Layer]:
        return [_code_layer(self.given.defaults, OriginKind.CODE)] if self.given.defaults else []


OURS: tuple[type[LayeredSource], ...] = (
    TestSource,
    ArgumentSource,
    InlineJsonSource,
    EnvironmentSource,
    SecretsSource,
    DotenvSource,
    FilesSource,
    DefaultsSource,
)
"""Our sources, the highest first."""


@contextmanager
def pinned(properties: Mapping[str, object]) -> Iterator[None]:
    """Let ``properties`` win over every source of each ``load`` within the ``with`` block; meant for tests.

    Args:
        properties: Values by dotted key, or nested; of nested blocks the inner one wins.
    """
    token = _pinned.set((*_pinned.get(), properties))
    try:
        yield
    finally:
        _pinned.reset(token)


def sources_of_this_load() -> tuple[PydanticBaseSettingsSource, ...]:
    """Return the sources of the running load, the highest first; none if no load is running in this context."""
    return _of_this_load.get()


@dataclass(slots=True)
class Ranking:
    """All layers of a load, from the lowest to the highest, and the active profiles, the last one wins."""

    layers: list[Layer]
    profiles: tuple[str, ...]
    reader: FileReader


def ranked_layers(given: Given, settings_cls: type[BaseSettings], findings: Findings) -> Ranking:
    """Return all layers in the order that ``settings_cls`` puts its sources into.

    Args:
        given: What the caller gives.
        settings_cls: Class of the settings.
        findings: Takes the problems.
    """
    return _Ranker(Load(settings_cls, given, findings, FileReader(given.project, findings))).ranking()


@dataclass(frozen=True, slots=True)
class _Ranker:
    """Finds the order of the sources, the profiles, and the files that apply with them."""

    load: Load

    def ranking(self) -> Ranking:
        sources = self._in_order()
        said = [  # files say nothing yet
            source.layers() if isinstance(source, LayeredSource) else _layers_of_the_users_own(source)
            for source in sources
        ]
        place = next((at for at, source in enumerate(sources) if type(source) is FilesSource), 0)
        above = [*chain.from_iterable(said[place:])]
        variables = [entry for layer in above for entry in layer.entries if layer.kind is LayerKind.VARIABLES]
        lookup = Lookup(self.load.given.environ, variables, index_of(self.load.settings_cls))
        early = self._early([*chain.from_iterable(said)])
        is_above = _ACTIVE in early.stacks and _ACTIVE in self._early(above).stacks
        profiles = self._profiles(early, lookup, is_above=is_above)
        stack = self._stack(tuple(profiles) or (DEFAULT_PROFILE,), early, lookup, self.load.findings)
        if profiles:
            self._warn_of_unknown(profiles, stack)
        for at, source in enumerate(sources):
            if isinstance(source, FilesSource):
                source.stack = stack
                said[at] = source.layers()
        layers = [*chain.from_iterable(said)]
        if self.load.given.profiles:
            layers.append(Layer(LayerKind.KEYS, (_profiles_given(tuple(profiles)),)))
        return Ranking(layers, tuple(profiles), self.load.reader)

    def _in_order(self) -> list[Any]:
        """Return the sources in the order that the settings put them into, the lowest first."""
        ours = {kind: kind(self.load) for kind in OURS}
        token = _of_this_load.set(tuple(ours.values()))
        try:
            in_order = self.load.settings_cls.settings_customise_sources(
                self.load.settings_cls,
                init_settings=ours[ArgumentSource],
                env_settings=ours[EnvironmentSource],
                dotenv_settings=ours[DotenvSource],
                file_secret_settings=ours[SecretsSource],
            )
        finally:
            _of_this_load.reset(token)
        return list(reversed(_completed(list(in_order), ours)))

    def _early(self, layers: list[Layer]) -> Merged:
        """Return what ``layers`` set about profiles and imports. The full binding reports their problems."""
        chosen = [Layer(layer.kind, found) for layer in layers if (found := tuple(filter(_is_early, layer.entries)))]
        binder = Binder(index_of(self.load.settings_cls), FreeNames(), Findings())
        return binder.merged(chosen) if chosen else Merged()

    def _stack(self, profiles: tuple[str, ...] | None, early: Merged, lookup: Lookup, findings: Findings) -> FileStack:
        """Return the files that apply with ``profiles``."""
        stack = FileStack(self.load.reader, findings, profiles, lookup)
        for folder in filter(None, (self.load.given.package, self.load.given.project)):
            stack.add_folders((folder, folder / "config"))
        imports = early.winner(_IMPORT)
        if imports is not None:
            stack.add_imports(Entry(_IMPORT, imports.value, imports.origin), self.load.given.project)
        return stack

    def _profiles(self, early: Merged, lookup: Lookup, *, is_above: bool) -> dict[str, Origin]:
        """Return the profiles that the highest source chooses, each with its origin."""
        chosen = early.winner(_ACTIVE)
        entries: tuple[Entry, ...] = () if chosen is None else (Entry(_ACTIVE, chosen.value, chosen.origin),)
        if self.load.given.profiles:
            entries = (_profiles_given(self.load.given.profiles),)
        elif not is_above:
            entries = self._stack(None, early, lookup, Findings()).active or entries
        names: dict[str, Origin] = {}
        for entry in entries:
            for name in resolved_items(entry, "profiles.active", lookup, self.load.findings):
                if is_profile_name(name):
                    names.setdefault(name, entry.origin)
                else:
                    fix = "use letters, digits and -_.+@, and none of the words and, or, not"
                    self.load.findings.error(
                        Code.PROFILE, f"{name!r} cannot be the name of a profile", entry.origin, fix
                    )
        return names

    def _warn_of_unknown(self, profiles: dict[str, Origin], stack: FileStack) -> None:
        """Warn about active profiles that no file and no document mentions."""
        folders = (self.load.given.project, self.load.given.project / "config")
        files = (file for folder in folders for file in folder.glob("application-*"))
        known = stack.known_profiles | {file.stem.removeprefix("application-") for file in files}
        for name, origin in profiles.items():
            if name not in known:
                close = nearest(name, sorted(known))
                fix = f"did you mean {close}?" if close else f"create application-{name}.yaml, or leave it out"
                what = f"no file and no document knows the profile {name}"
                self.load.findings.warning(Code.UNKNOWN_PROFILE, what, origin, fix)


def _completed(in_order: list[Any], ours: Mapping[type, LayeredSource]) -> list[Any]:
    """Return the sources with those of ours that ``settings_customise_sources`` is not handed and so cannot return."""
    there = {type(source) for source in in_order}
    if InlineJsonSource not in there:
        arguments = ours[ArgumentSource]
        in_order.insert(in_order.index(arguments) + 1 if arguments in in_order else 0, ours[InlineJsonSource])
    if TestSource not in there:
        in_order.insert(0, ours[TestSource])
    return [*in_order, *(ours[kind] for kind in (FilesSource, DefaultsSource) if kind not in there)]


def nested(values: Mapping[tuple[str, ...], object]) -> dict[str, Any]:
    """Return values as nested mappings by field name."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        below = tree
        for name in path if value is Nothing.SECTION else path[:-1]:
            below = below.setdefault(name, {})
        if value is not Nothing.SECTION:
            below[path[-1]] = value
    return tree


def _layers_of_the_users_own(source: Any) -> list[Layer]:
    """Return the layer of a user's own source; the source's name is the origin of its values."""
    name = "" if isinstance(source, InitSettingsSource) else getattr(source, "__name__", type(source).__name__)
    return [Layer(LayerKind.KEYS, tuple(flattened(source(), Origin(OriginKind.SOURCE, name))))]


def _code_layer(values: Mapping[str, object], kind: OriginKind) -> Layer:
    """Return values given in code, nested or with dotted keys."""
    return Layer(LayerKind.KEYS, tuple(flattened(values, Origin(kind))))


def _profiles_given(profiles: Sequence[str]) -> Entry:
    return Entry((".".join(_ACTIVE),), tuple(profiles), Origin(OriginKind.ARGUMENT, "--profile"))


def _is_early(entry: Entry) -> bool:
    text = f"{''.join(entry.key)} {entry.value if isinstance(entry.value, str) else ''}".casefold()
    return "profile" in text or "import" in text
