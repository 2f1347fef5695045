"""Loading: all sources in their order, bound, merged, resolved, validated; all problems together."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from opencqrs_py.config.binding import Binder, BoundLayer
from opencqrs_py.config.choices import OnUnknown
from opencqrs_py.config.configuration import Configuration
from opencqrs_py.config.documents import DocumentReader
from opencqrs_py.config.entries import Layer, LayerKind, text_items
from opencqrs_py.config.free_names import FreeNamesInUse
from opencqrs_py.config.lookup import Lookup, OwnKeys
from opencqrs_py.config.merging import Merged, merged
from opencqrs_py.config.names import alike_groups, canonical, listed, nearest
from opencqrs_py.config.problems import Code, Findings, GroupWithoutHandlerWarning
from opencqrs_py.config.profiles import DEFAULT_PROFILE
from opencqrs_py.config.ranking import Given, Ranking, ranked_layers
from opencqrs_py.config.resolution import Resolved, resolved_values
from opencqrs_py.config.settings import GROUPS, Settings
from opencqrs_py.config.tree import ListLeaf, Section, display, leaves, tree_of
from opencqrs_py.config.validation import validated
from opencqrs_py.model.masking import remember

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

__all__ = ["FindGroups", "load"]

FindGroups: TypeAlias = "Callable[[Sequence[str], Sequence[str]], Mapping[str, str]]"
"""Returns the groups of handlers, each with its place, given ``discovery.modules`` and ``discovery.exclude``."""

_UNKNOWN = ("config", "unknown")
_ACTIVE = ("profiles", "active")
_DISCOVERY = "discovery"


def load(
    project: Path,
    *,
    profiles: Sequence[str] = (),
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    groups: Collection[str] | Mapping[str, str] | FindGroups = (),
    defaults: Mapping[str, object] | None = None,
    settings_class: type[Settings] = Settings,
    package: Path | None = None,
) -> Configuration:
    """Return the configuration of the project in the folder ``project``.

    Sources, from the lowest to the highest: built-in defaults, ``defaults``, the ``application`` files of ``package``,
    those of the project and its ``config`` folder (variants by profile on top), imports of variables, ``.env``, folders
    of secrets, environment variables, ``OPENCQRS_APPLICATION_JSON``, ``overrides``, pinned test properties.

    Args:
        project: Project folder.
        profiles: Active profiles, the last one wins; without any, those that a source chooses.
        overrides: ``key=value`` texts, the last one wins.
        environ: Environment variables; ``None``: those of the process.
        groups: Names of the groups that handlers declare; or these with the place of each, for messages; or a function
            that finds them, for which the settings below ``discovery`` are read first.
        defaults: Values given in code, nested or with dotted keys.
        settings_class: Class of the settings, for users who add sections or sources.
        package: Folder of a package whose ``application`` files are defaults of the project.

    Raises:
        ConfigurationErrors: Everything that is wrong, OCQ-101 to OCQ-116 and OCQ-120.
    """
    variables = os.environ if environ is None else environ
    given = Given(project, dict(variables), profiles, overrides, defaults or {}, package)
    sources = _read(given, settings_class)
    return sources.configuration(groups(*sources.discovery()) if callable(groups) else groups)


def _read(given: Given, settings_class: type[Settings]) -> _Sources:
    """Read all sources."""
    findings = Findings()
    if not given.project.is_dir():
        fix = "create it, or name another one with --project"
        findings.error(Code.FILE_MISSING, "the project folder does not exist", given.project, fix)
        raise findings.failure()
    reader = DocumentReader(given.project, findings)
    ranking = ranked_layers(given, tree_of(settings_class), reader, findings)
    return _Sources(given, settings_class, reader, ranking, findings)


@dataclass(frozen=True, slots=True)
class _Sources:
    """What all sources say; which setting a key means depends on the names of the groups."""

    given: Given
    settings_class: type[Settings]
    reader: DocumentReader
    ranking: Ranking
    found: Findings = field(repr=False)

    def discovery(self) -> tuple[list[str], list[str]]:
        """Return ``discovery.modules`` and ``discovery.exclude``; what is wrong with them is found once more later."""
        if not any(_DISCOVERY in canonical("".join(map(str, e.key))) for la in self.ranking.layers for e in la.entries):
            return [], []
        root, names, findings = tree_of(self.settings_class), FreeNamesInUse(), Findings()
        combined, own = _combined(self.ranking.layers, Binder(root, names, findings))
        lookup = Lookup(self.given.environ, own, root, names, combined)
        values = resolved_values(combined, lookup, root, findings).values
        modules, exclude = (values.get((_DISCOVERY, name)) or [] for name in ("modules", "exclude"))
        return [str(each) for each in _items(modules)], [str(each) for each in _items(exclude)]

    def configuration(self, groups: Collection[str] | Mapping[str, str]) -> Configuration:
        """Return the configuration for handlers of these groups, or raise everything that is wrong with it."""
        findings = self.found.copy()
        root = tree_of(self.settings_class)
        names = _names(groups, findings)
        combined, own = _combined(self.ranking.layers, Binder(root, names, findings))
        lookup = Lookup(self.given.environ, own, root, names, combined)
        result = resolved_values(combined, lookup, root, findings)
        _check_profiles(self.ranking.profiles, result, combined, findings)
        findings.settle_unknown(_on_unknown(result))
        settings = validated(self.settings_class, result.values, combined, self._searched(), findings)
        if settings is None or findings.errors:
            raise findings.failure()
        configured = tuple(settings.event_handling.groups)
        _warn_of_groups(configured, tuple(groups), combined, root, findings)
        known = {canonical(name) for name in configured}
        configuration = Configuration(
            settings,
            self.ranking.profiles,
            self.reader.files,
            tuple(findings.warnings),
            (*configured, *(name for name in groups if canonical(name) not in known)),
            tuple(findings.ignored),
            combined,
            names,
            result.secrets,
            self.configuration,
        )
        remember(configuration.secrets)
        return configuration

    def _searched(self) -> str:
        """Return where a value could have stood."""
        files = [self.reader.shown(file) for file in self.reader.files]
        missing = [] if files else [f"{self.given.project / 'application.yaml'} (does not exist)"]
        return "looked in " + ", ".join([*files, *missing, "environment variables", "arguments"])


def _items(value: object) -> Iterable[object]:
    return value if isinstance(value, list | tuple) else ()


def _names(groups: Collection[str] | Mapping[str, str], findings: Findings) -> FreeNamesInUse:
    """Return the names of the handlers' groups; note two that no setting could tell apart."""
    names = FreeNamesInUse()
    for group in groups:
        known = names.add(GROUPS, group)
        if known != group:
            where = f"{groups[known]} and {groups[group]}" if isinstance(groups, Mapping) else "handlers"
            findings.error(Code.ALIKE_GROUPS, *alike_groups(known, group, where))
    return names


def _warn_of_groups(
    configured: Sequence[str], groups: Sequence[str], combined: Merged, root: Section, findings: Findings
) -> None:
    """Note configured groups that no handler declares; without any handler nothing can be said."""
    handled = {canonical(group) for group in groups}
    for name in configured:
        if not handled or canonical(name) in handled:
            continue
        path = (*GROUPS, name)
        places = (bound.origin for bound in combined.winners() if bound.path[: len(path)] == path)
        close = nearest(name, groups)
        fix = f"did you mean {close}?" if close else f"groups with handlers: {listed(groups)}"
        what = f"{display(root, path)} is configured, but no handler belongs to that group"
        where = str(next(places, ""))
        findings.warnings.append(GroupWithoutHandlerWarning(Code.GROUP_WITHOUT_HANDLER.value, what, where, fix))


def _combined(layers: tuple[Layer, ...], binder: Binder) -> tuple[Merged, OwnKeys]:
    """Return the layers as one, and the user's own keys.

    Variables are bound last, since they can only be read when the names in use are known.
    """
    bound: dict[int, BoundLayer] = {}
    order = sorted(range(len(layers)), key=lambda index: layers[index].kind is LayerKind.VARIABLES)
    for index in order:
        bound[index] = binder.bind(layers[index])
    own = OwnKeys()
    for index in range(len(layers)):
        own.add(bound[index].foreign)
    parts = (part for index in range(len(layers)) for part in (bound[index].wholes, bound[index].single))
    combined = merged(parts, binder.root, binder.findings)
    for path, node in leaves(binder.root):
        if isinstance(node, ListLeaf) and node.fact.in_documents_only and path in combined.stacks:
            what = f"{display(binder.root, path)} stands outside of a file"
            origin = combined.stacks.pop(path)[-1].origin
            binder.findings.error(Code.PROFILE, what, origin, "put it into a document of a file")
    return combined, own


def _check_profiles(active: tuple[str, ...], result: Resolved, combined: Merged, findings: Findings) -> None:
    """Note that ``profiles.active`` is not what is active: it was said where profiles cannot be chosen any more."""
    bound = combined.winner(_ACTIVE)
    said = text_items(",".join(map(str, _items(result.values.get(_ACTIVE)))))
    if bound is None or tuple(dict.fromkeys(said)) == active or findings.has_error(Code.PROFILE, Code.PLACEHOLDER):
        return
    what = f"profiles.active was read after the profiles were chosen; active: {listed(active) or DEFAULT_PROFILE}"
    fix = "choose profiles with --profile, a variable or in application.yaml, without a key of a file as placeholder"
    findings.error(Code.PROFILE, what, bound.origin, fix)


def _on_unknown(result: Resolved) -> OnUnknown:
    """Return what becomes of unknown keys; a value that is none of the choices is reported elsewhere."""
    try:
        return OnUnknown(str(result.values.get(_UNKNOWN) or "error"))
    except ValueError:
        return OnUnknown.ERROR
