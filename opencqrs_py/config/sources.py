"""The sources of settings, as sources of pydantic-settings. Each yields layers of entries with their origins.

``Settings.settings_customise_sources`` puts them in order, the highest first, so that a subclass can put its own
sources between them. The binder does what pydantic-settings does not: it finds one setting for all spellings of a key
before anything is merged.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_settings import InitSettingsSource, PydanticBaseSettingsSource
from typing_extensions import override

from opencqrs_py.config.binding import Binder, Merged
from opencqrs_py.config.entries import Entry, Layer, LayerKind, Nothing, Origin, OriginKind, keys_layer
from opencqrs_py.config.files import FileReader, FileStack, exists
from opencqrs_py.config.inline_json import inline_entries, variable_layers
from opencqrs_py.config.keys import HOLDERS, INLINE_JSON, FreeNames, index_of
from opencqrs_py.config.placeholders import Lookup, resolved_items
from opencqrs_py.config.problems import Code, Findings
from opencqrs_py.config.profiles import DEFAULT_PROFILE, is_profile_name
from opencqrs_py.config.unread_files import warn_of_unread_files
from opencqrs_py.model.naming import nearest

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from opencqrs_py.config.entries import Value
    from opencqrs_py.config.settings import Settings

_IMPORT = ("config", "import_")
_ACTIVE = ("profiles", "active")
_END_OF_KEY = re.compile(r"[\s:]")
_pinned: dict[object, Mapping[str, object]] = {}
"""What is pinned in the process, the innermost last.

Not a context variable: threads begin without their starter's, and an event loop keeps those of its creation.
"""


@dataclass(slots=True)
class Given:
    """What the sources of a load share: its arguments, as :func:`opencqrs_py.config.load` has them, and its files."""

    settings_cls: type[Settings]
    project: Path
    environ: Mapping[str, str]
    profiles: Sequence[str]
    overrides: Sequence[str]
    defaults: Mapping[str, object]
    package: Path | None
    findings: Findings
    reader: FileReader
    ours: tuple[LayeredSource, ...] = ()
    """All sources of the package, the highest first."""
    stack: FileStack | None = None
    """The files that apply; ``None`` until the profiles are known."""


class LayeredSource(PydanticBaseSettingsSource):
    """A source whose values have origins."""

    def __init__(self, given: Given) -> None:
        super().__init__(given.settings_cls)
        self.given = given
        self.findings = given.findings

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
        return [keys_layer(properties, Origin(OriginKind.TEST)) for properties in tuple(_pinned.values())]


class ArgumentSource(LayeredSource):
    """Each ``--set key=value`` is a separate layer, so that the last one wins."""

    @override
    def layers(self) -> list[Layer]:
        layers: list[Layer] = []
        for key, sign, text in (each.partition("=") for each in self.given.overrides):
            name, value = key.strip(), None if text.strip() == "null" else text
            begin = _END_OF_KEY.split(name, maxsplit=1)[0]  # what follows may be a secret value
            needs_sign = begin != name and self._is_one_setting(begin)
            if name and sign and not needs_sign:
                layers.append(keys_layer({name: value}, Origin(OriginKind.ARGUMENT, f"--set {name}")))
                continue
            what = f"the argument --set {begin} has no value" if begin else "an argument --set has no key"
            fix = "write it like --set event-handling.groups.books.fetch.subject=/books"
            if needs_sign:
                fix = f"write = between key and value: --set {begin}=…"
            self.findings.error(Code.ARGUMENT, what, Origin(OriginKind.ARGUMENT, f"--set {begin}"), fix)
        return layers

    def _is_one_setting(self, key: str) -> bool:
        """Return whether a key names a setting with a value, and does not end with a free name."""
        index = index_of(self.settings_cls)
        path = index.path_of(key, FreeNames())
        return path is not None and path[:-1] not in index.maps and index.at(path).kind not in HOLDERS


class InlineJsonSource(LayeredSource):
    """The environment variable ``OPENCQRS_APPLICATION_JSON``."""

    @override
    def layers(self) -> list[Layer]:
        name = next((name for name in self.given.environ if name.upper() == INLINE_JSON), "")
        if not name:
            return []
        variable = Entry((name,), self.given.environ[name], Origin(OriginKind.VARIABLE, name))
        return [Layer(LayerKind.KEYS, tuple(inline_entries(variable, self.findings)))]


class EnvironmentSource(LayeredSource):
    """All environment variables; foreign ones serve placeholders only."""

    @override
    def layers(self) -> list[Layer]:
        entries = [
            Entry((name,), _text_value(text), Origin(OriginKind.VARIABLE, name))
            for name, text in self.given.environ.items()
            if name.upper() != INLINE_JSON
        ]
        return [Layer(LayerKind.VARIABLES, tuple(entries))]


class DotenvSource(LayeredSource):
    """The file ``.env``: variables that are not set in the environment."""

    @override
    def layers(self) -> list[Layer]:
        file = self.given.project / ".env"
        if ".env" not in self.given.reader.names_in(self.given.project) or exists(file / "pyvenv.cfg"):
            return []  # none, or that of ``python -m venv .env``
        text = self.given.reader.text(file)
        return [] if text is None else variable_layers(self._entries(file.name, text), self.findings)

    def _entries(self, file: str, text: str) -> Iterator[Entry]:
        from dotenv.parser import parse_stream  # noqa: PLC0415 most projects have no such file

        for binding in parse_stream(StringIO(text)):
            origin = Origin(OriginKind.FILE, file, binding.original.line)
            if binding.error:
                fix = "write it like NAME=value"
                self.findings.error(Code.FILE_UNREADABLE, "it is not a variable", origin, fix)
            elif binding.key is not None:
                yield Entry((binding.key,), _text_value(binding.value), origin)


class FilesSource(LayeredSource):
    """The application files and what they import, as far as they apply with the active profiles."""

    @override
    def layers(self) -> list[Layer]:
        return self.given.stack.layers if self.given.stack else []


class SecretsSource(LayeredSource):
    """The folders of secrets that files import."""

    @override
    def layers(self) -> list[Layer]:
        return self.given.stack.secrets if self.given.stack else []


class DefaultsSource(LayeredSource):
    """Defaults given by the caller."""

    @override
    def layers(self) -> list[Layer]:
        return [keys_layer(self.given.defaults, Origin(OriginKind.CODE))] if self.given.defaults else []


_OURS: tuple[type[LayeredSource], ...] = (
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

    They also win in all other threads and event loops of the process meanwhile.

    Args:
        properties: Values by dotted key, or nested; of blocks at the same time, the one that began last wins.
    """
    key = object()
    _pinned[key] = properties
    try:
        yield
    finally:
        del _pinned[key]


def ranked(given: Given) -> tuple[list[Layer], tuple[str, ...]]:
    """Return all layers in the order that the settings put their sources into, and the active profiles.

    The last layer and the last profile win. Files are read after the other sources have chosen the profiles.
    """
    sources = _in_order(given)
    said = [source.layers() if isinstance(source, LayeredSource) else [_layer_of(source)] for source in sources]
    place = next(at for at, source in enumerate(sources) if isinstance(source, FilesSource))
    above = [*chain.from_iterable(said[place:])]
    index = index_of(given.settings_cls)
    variables = [entry for layer in above if layer.kind is LayerKind.VARIABLES for entry in layer.entries]
    lookup = Lookup(given.environ, Merged(index, FreeNames(), variables))
    early = [Layer(layer.kind, tuple(filter(_is_early, layer.entries))) for layer in chain.from_iterable(said)]
    merged = Binder(index, FreeNames(), Findings()).merged([layer for layer in early if layer.entries])
    profiles = _profiles(given, merged, lookup, above)
    given.stack = _stack(given, tuple(profiles) or (DEFAULT_PROFILE,), merged, lookup, given.findings)
    unread = set[str]()
    if profiles or all(file.stem != "application" for file in given.reader.files):
        unread = warn_of_unread_files(given.reader, (given.project, given.project / "config"), profiles)
    if profiles:
        _warn_of_unknown(given, profiles, given.stack.known_profiles | unread)
    for at, source in enumerate(sources):
        if isinstance(source, FilesSource | SecretsSource):
            said[at] = source.layers()
    if given.profiles:
        said.append([_given_profiles(tuple(profiles))])
    return [*chain.from_iterable(said)], tuple(profiles)


def _in_order(given: Given) -> list[Any]:
    """Return the sources in the order that the settings put them into, the lowest first.

    Our sources that ``settings_customise_sources`` does not receive, and so cannot return, are added.
    """
    ours = {kind: kind(given) for kind in _OURS}
    arguments = ours[ArgumentSource]
    given.ours = tuple(ours.values())
    in_order: list[Any] = list(
        given.settings_cls.settings_customise_sources(
            given.settings_cls,
            init_settings=arguments,
            env_settings=ours[EnvironmentSource],
            dotenv_settings=ours[DotenvSource],
            file_secret_settings=ours[SecretsSource],
        )
    )
    missing = [kind for kind, source in ours.items() if source not in in_order]
    if InlineJsonSource in missing:
        in_order.insert(in_order.index(arguments) + 1 if arguments in in_order else 0, ours[InlineJsonSource])
    if TestSource in missing:
        in_order.insert(0, ours[TestSource])
    in_order += [ours[kind] for kind in missing if kind in {FilesSource, DefaultsSource}]
    return in_order[::-1]


def _layer_of(source: Any) -> Layer:
    """Return the layer of a user's own source, whose name is the origin of its values."""
    name = "" if isinstance(source, InitSettingsSource) else getattr(source, "__name__", type(source).__name__)
    return keys_layer(source(), Origin(OriginKind.SOURCE, name))


def _stack(
    given: Given, profiles: tuple[str, ...] | None, early: Merged, lookup: Lookup, findings: Findings
) -> FileStack:
    """Return the files that apply with ``profiles``."""
    stack = FileStack(given.reader, findings, profiles, lookup)
    for folder in filter(None, (given.package, given.project)):
        stack.add_folders((folder, folder / "config"))
    imports = early.winner(_IMPORT)
    if imports is not None:
        stack.add_imports(Entry(_IMPORT, imports.value, imports.origin), given.project)
    return stack


def _profiles(given: Given, early: Merged, lookup: Lookup, above: Sequence[Layer]) -> dict[str, Origin]:
    """Return the profiles that the highest source chooses, each with its origin; ``above`` are those above files."""
    chosen = early.winner(_ACTIVE)
    entries = [Entry(_ACTIVE, chosen.value, chosen.origin)] if chosen else []
    if given.profiles:
        entries = [*_given_profiles(given.profiles).entries]
    elif not chosen or not any(entry.origin is chosen.origin for layer in above for entry in layer.entries):
        entries = [*_stack(given, None, early, lookup, Findings()).active] or entries
    names: dict[str, Origin] = {}
    for entry in entries:
        for name in resolved_items(entry, "profiles.active", lookup, given.findings):
            if is_profile_name(name):
                names.setdefault(name, entry.origin)
            else:
                fix = "use letters, digits and -_.+@, and none of the words and, or, not"
                given.findings.profiles_unknown(
                    Code.PROFILE, f"{name!r} cannot be the name of a profile", entry.origin, fix
                )
    return names


def _warn_of_unknown(given: Given, profiles: dict[str, Origin], mentioned: set[str]) -> None:
    """Warn about active profiles that no file or document mentions."""
    files = chain.from_iterable(folder.glob("application-*") for folder in (given.project, given.project / "config"))
    known = mentioned | {file.stem.removeprefix("application-") for file in files}
    for name, origin in profiles.items():
        if name not in known:
            close = nearest(name, sorted(known))
            fix = f"did you mean {close}?" if close else f"create application-{name}.yaml, or leave it out"
            what = f"no file or document mentions the profile {name}"
            given.findings.warning(Code.UNKNOWN_PROFILE, what, origin, fix)


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


def _text_value(text: str | None) -> Value:
    """Return the value of a variable: an empty text is unset, ``null`` is null."""
    return Nothing.UNSET if not text or not text.strip() else None if text.strip() == "null" else text


def _given_profiles(profiles: Sequence[str]) -> Layer:
    return keys_layer({".".join(_ACTIVE): tuple(profiles)}, Origin(OriginKind.ARGUMENT, "--profile"))


def _is_early(entry: Entry) -> bool:
    """Return whether ``entry`` may concern profiles and imports, which are needed before everything else."""
    text = f"{''.join(entry.key)} {entry.value if isinstance(entry.value, str) else ''}".casefold()
    return "profile" in text or "import" in text
