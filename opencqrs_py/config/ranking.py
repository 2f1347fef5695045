"""The order of the sources, and the profiles on which it depends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from opencqrs_py.config.binding import Binder
from opencqrs_py.config.documents import DocumentReader
from opencqrs_py.config.entries import Entry, Layer, LayerKind
from opencqrs_py.config.free_names import FreeNamesInUse
from opencqrs_py.config.lookup import Lookup, OwnKeys
from opencqrs_py.config.merging import Merged, merged
from opencqrs_py.config.names import nearest
from opencqrs_py.config.origin import Origin, OriginKind
from opencqrs_py.config.pinning import pinned_layers
from opencqrs_py.config.presence import is_there
from opencqrs_py.config.problems import Code, Findings
from opencqrs_py.config.profiles import DEFAULT_PROFILE, is_profile_name
from opencqrs_py.config.resolution import resolved_items
from opencqrs_py.config.sources.arguments import argument_layers, code_layer
from opencqrs_py.config.sources.dotenv_file import dotenv_layer
from opencqrs_py.config.sources.inline_json import inline_json_layer
from opencqrs_py.config.sources.variables import environment_layer
from opencqrs_py.config.stacking import FileStack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from opencqrs_py.config.tree import Section

__all__ = ["Given", "Ranking", "ranked_layers"]

_IMPORT = ("config", "import_")
_ACTIVE = ("profiles", "active")


@dataclass(frozen=True, slots=True)
class Given:
    """What the caller gives to a load.

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
class Ranking:
    """All layers, from the lowest to the highest, and the active profiles, the last one wins."""

    layers: tuple[Layer, ...]
    profiles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Ranker:
    """Finds profiles and files; ``early`` is what the sources beside the files say about both."""

    given: Given
    root: Section
    reader: DocumentReader
    findings: Findings
    lookup: Lookup
    early: Merged

    def stack(self, profiles: tuple[str, ...] | None, findings: Findings) -> FileStack:
        """Return the files that apply with ``profiles``."""
        stack = FileStack(self.reader, findings, profiles, self.lookup)
        for folder in filter(None, (self.given.package, self.given.project)):
            stack.add_folders((folder, folder / "config"))
        imports = self.early.winner(_IMPORT)
        if imports is not None:
            stack.add_imports(Entry(_IMPORT, imports.value, imports.origin), self.given.project)
        return stack

    def profiles(self) -> dict[str, Origin]:
        """Return the profiles that the highest source chooses, each with where that is."""
        if self.given.profiles:
            return self._checked((_profiles_given(self.given.profiles),))
        chosen = self.early.winner(_ACTIVE)
        beside_files = () if chosen is None else (Entry(_ACTIVE, chosen.value, chosen.origin),)
        if chosen is None or chosen.origin.kind is OriginKind.CODE:
            return self._checked(self.stack(None, Findings()).active or beside_files)
        return self._checked(beside_files)

    def _checked(self, entries: tuple[Entry, ...]) -> dict[str, Origin]:
        """Return the profiles that ``entries`` name, without those that are no names."""
        names: dict[str, Origin] = {}
        for entry in entries:
            for name in resolved_items(entry, "profiles.active", self.lookup, self.findings):
                if is_profile_name(name):
                    names.setdefault(name, entry.origin)
                else:
                    fix = "use letters, digits and -_.+@, and none of the words and, or, not"
                    self.findings.error(Code.PROFILE, f"{name!r} cannot be the name of a profile", entry.origin, fix)
        return names

    def warn_of_unknown(self, profiles: dict[str, Origin], stack: FileStack) -> None:
        """Note active profiles that no file and no document knows."""
        folders = (self.given.project, self.given.project / "config")
        files = (file for folder in folders for file in folder.glob("application-*"))
        known = stack.known_profiles | {file.stem.removeprefix("application-") for file in files}
        for name, origin in profiles.items():
            if name not in known:
                close = nearest(name, sorted(known))
                fix = f"did you mean {close}?" if close else f"create application-{name}.yaml, or leave it out"
                what = f"no file and no document knows the profile {name}"
                self.findings.warning(Code.UNKNOWN_PROFILE, what, origin, fix)


def ranked_layers(given: Given, root: Section, reader: DocumentReader, findings: Findings) -> Ranking:
    """Return all layers in their order.

    Args:
        given: What the caller gives.
        root: Tree of the settings.
        reader: Reads files.
        findings: Takes the problems.
    """
    code = code_layer(given.defaults)
    dotenv = _dotenv(given.project, reader, findings)
    above = [
        environment_layer(given.environ),
        inline_json_layer(given.environ, findings),
        *argument_layers(given.overrides, findings),
        *pinned_layers(),
    ]
    own = OwnKeys()
    own.add(entry for layer in (*dotenv, above[0]) for entry in layer.entries)
    lookup = Lookup(given.environ, own, root, FreeNamesInUse(), Merged())
    ranker = _Ranker(given, root, reader, findings, lookup, _early([code, *dotenv, *above], root))
    profiles = ranker.profiles()
    stack = ranker.stack(tuple(profiles) or (DEFAULT_PROFILE,), findings)
    ranker.warn_of_unknown(profiles, stack)
    chosen = [Layer(LayerKind.KEYS, (_profiles_given(tuple(profiles)),))] if given.profiles else []
    return Ranking((code, *stack.layers, *dotenv, *stack.secrets, *above, *chosen), tuple(profiles))


def _profiles_given(profiles: Sequence[str]) -> Entry:
    return Entry((".".join(_ACTIVE),), tuple(profiles), Origin(OriginKind.ARGUMENT, "--profile"))


def _dotenv(project: Path, reader: DocumentReader, findings: Findings) -> list[Layer]:
    file = project / ".env"
    is_environment = is_there(file / "pyvenv.cfg")  # ``python -m venv .env``
    text = reader.text(file) if is_there(file) and not is_environment else None
    return [] if text is None else [dotenv_layer(file, text, findings)]


def _early(layers: list[Layer], root: Section) -> Merged:
    """Return what ``layers`` say about profiles and imports; their problems are found again by the full binding."""
    ignored = Findings()
    binder = Binder(root, FreeNamesInUse(), ignored)
    chosen = (Layer(layer.kind, tuple(filter(_is_early, layer.entries))) for layer in layers)
    bound = (binder.bind(layer) for layer in chosen)
    return merged((part for each in bound for part in (each.wholes, each.single)), root, ignored)


def _is_early(entry: Entry) -> bool:
    text = f"{''.join(entry.key)} {entry.value if isinstance(entry.value, str) else ''}".casefold()
    return "profile" in text or "import" in text
