"""Loading: bind, merge, resolve and validate all sources, and report all problems together."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pydantic import ValidationError
from pydantic_settings import InitSettingsSource

from opencqrs_py.config.binding import Binder, Merged
from opencqrs_py.config.choices import Mode, OnUnknown, RetryPolicy
from opencqrs_py.config.configuration import Configuration
from opencqrs_py.config.effects import IDLE_OF_GROUPS, IDLE_OF_JOBS
from opencqrs_py.config.entries import Layer, text_items
from opencqrs_py.config.files import FileReader
from opencqrs_py.config.groups import GROUP_FAMILY
from opencqrs_py.config.inheritance import Inherited, LeafName, Level
from opencqrs_py.config.jobs import JOB_FAMILY
from opencqrs_py.config.keys import FAMILIES, GROUPS, JOBS, STANDARD, FreeNames, Path, index_of
from opencqrs_py.config.mistakes import report_refusals, report_rivals
from opencqrs_py.config.placeholders import resolve
from opencqrs_py.config.problems import (
    Code,
    ConfigurationWarning,
    Findings,
    GroupWithoutHandlerWarning,
    JobWithoutCodeWarning,
    ProfilesUnknownError,
    alike_groups,
)
from opencqrs_py.config.profiles import DEFAULT_PROFILE
from opencqrs_py.config.settings import Settings
from opencqrs_py.config.sources import Given, nested, ranked
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.model.masking import remember
from opencqrs_py.model.naming import canonical, listed, nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path as FilePath

Names: TypeAlias = "Collection[str] | Mapping[str, str]"
"""Names that code declares, with the place of each or without."""
FindNames: TypeAlias = "Callable[[Sequence[str], Sequence[str]], Mapping[str, str]]"
"""Returns names that code declares, each with its place, given ``discovery.modules`` and ``discovery.exclude``."""

_ACTIVE = ("profiles", "active")
_INHERITING = frozenset(family.named[0] for family in FAMILIES)
_IN_DOCUMENTS = frozenset({("config", "on_profile"), ("config", "activate", "on_profile")})


def load(
    project: FilePath,
    *,
    profiles: Sequence[str] = (),
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    groups: Names | FindNames = (),
    jobs: Names | FindNames | None = None,
    defaults: Mapping[str, object] | None = None,
    settings_class: type[Settings] = Settings,
    package: FilePath | None = None,
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
        jobs: Names of the jobs that code declares, in the same ways; a function is called after that for groups.
            ``None``: they are not known, so that no configured job can lack its code.
        defaults: Values given in code, nested or with dotted keys.
        settings_class: Class of the settings, for users who add sections or sources.
        package: Folder of a package whose ``application`` files are defaults of the project.

    Raises:
        ConfigurationErrors: Everything that is wrong, OCQ-101 to OCQ-116, OCQ-120, OCQ-123 and OCQ-124.
    """
    variables, findings = dict(os.environ if environ is None else environ), Findings()
    if not project.is_dir():
        what, fix = "the project folder does not exist", "create it, or name another one with --project"
        if project.exists():
            what, fix = "the project folder is a file", "name the folder that it is in"
        findings.error(Code.FILE_MISSING, what, project, fix)
        raise findings.failure()
    reader = FileReader(project, findings)
    given = Given(settings_class, project, variables, profiles, overrides, defaults or {}, package, findings, reader)
    found = _Found(given, *ranked(given))
    discovery = found.discovery() if callable(groups) or callable(jobs) else ()
    of_handlers = groups(*discovery) if callable(groups) else groups
    return found.configuration(of_handlers, jobs(*discovery) if callable(jobs) else jobs)


@dataclass(frozen=True, slots=True)
class _Found:
    """The contents of all sources. Which setting a key means depends on the names of the groups."""

    given: Given
    layers: list[Layer]
    profiles: tuple[str, ...]

    def discovery(self) -> tuple[list[str], list[str]]:
        """Return ``discovery.modules`` and ``discovery.exclude``; their problems are reported later."""
        if not any("discovery" in canonical("".join(entry.key)) for each in self.layers for entry in each.entries):
            return [], []
        values = self._merged(FreeNames(), Findings()).values
        return [*text_items(values.get(("discovery", "modules")))], [*text_items(values.get(("discovery", "exclude")))]

    def configuration(self, groups: Names, jobs: Names | None) -> Configuration:
        """Return the configuration for code with these groups and jobs, or raise everything that is wrong with it."""
        findings = Findings([*self.given.findings.errors], [*self.given.findings.warnings])
        merged = self._merged(_names(groups, jobs or (), findings), findings)
        _check_profiles(self.profiles, merged, findings)
        if findings.unknown:
            _settle_unknown(merged, findings)
        settings = self._validated(merged, findings)
        if settings is None or findings.errors:
            raise findings.failure()
        if groups:
            _warn_of_groups(settings, tuple(groups), merged, findings)
        if jobs is not None:
            _warn_of_jobs(settings, tuple(jobs), merged, findings)
        names = _all_names(tuple(settings.event_handling.groups), groups)
        job_names = tuple(settings.jobs.model_extra or ())
        chosen = {name: GROUP_FAMILY.inherited(settings, name) for name in names}
        _warn_of_attempts(chosen, merged, findings)
        of_jobs = {name: JOB_FAMILY.inherited(settings, name) for name in job_names}
        for idle, found in ((IDLE_OF_GROUPS, chosen), (IDLE_OF_JOBS, of_jobs)):
            if ruled := {name: each for name, each in found.items() if not idle.ruled.isdisjoint(_own(each))}:
                idle.warn(ruled, merged, self.profiles, findings)
        configuration = Configuration(
            settings,
            merged,
            self.profiles,
            tuple(self.given.reader.files),
            tuple(findings.warnings),
            group_names=names,
            ignored=tuple(findings.ignored),
            job_names=_all_names(job_names, jobs) if jobs else job_names,
            _bound_for=self.configuration,
        )
        remember(configuration.secrets)
        return configuration

    def _merged(self, names: FreeNames, findings: Findings) -> Merged:
        merged = Binder(index_of(self.given.settings_cls), names, findings).merged(self.layers)
        for path in merged.stacks.keys() & _IN_DOCUMENTS:
            what, origin = f"{merged.index.display(path)} is outside of a file", merged.stacks.pop(path)[-1].origin
            findings.profiles_unknown(Code.PROFILE, what, origin, "put it into a document of a file")
        resolve(merged, self.given.environ, findings)
        return merged

    def _validated(self, merged: Merged, findings: Findings) -> Settings | None:
        """Return the settings that the values make, ``None`` when they are not valid."""
        values = {
            path: value
            for path, value in merged.values.items()
            # of other settings, None is not a value: it brings the default back
            if value is not None or path[0] in _INHERITING or merged.index.at(path).nullable
        }
        tree = nested(values)
        if JOBS[0] in tree:
            levels = {(*JOBS, name): JOB_FAMILY.said(each) for name, each in tree[JOBS[0]].items()}
            report_rivals(JOB_FAMILY, levels, merged, findings)
        source = InitSettingsSource(self.given.settings_cls, init_kwargs=tree)
        try:
            return self.given.settings_cls(_build_sources=((source,), {}))
        except ValidationError as error:
            files = [self.given.reader.shown(file) for file in self.given.reader.files]
            places = files or [f"{self.given.project / 'application.yaml'} (does not exist)"]
            report_refusals(error, merged, f"looked in {', '.join(places)}, environment variables, arguments", findings)
            return None


def _names(groups: Names, jobs: Names, findings: Findings) -> FreeNames:
    """Return the names that code declares; report two that settings cannot tell apart, and one that has no place."""
    names = FreeNames()
    for family, noun, declared in ((GROUP_FAMILY, "groups", groups), (JOB_FAMILY, "jobs", jobs)):
        for name in declared:
            known = names.add(family.named, name)
            if known != name:
                code = "handlers" if family is GROUP_FAMILY else "code"
                where = f"{declared[known]} and {declared[name]}" if isinstance(declared, Mapping) else code
                findings.error(Code.ALIKE_GROUPS, *alike_groups(known, name, where, noun))
            if family.reserved and canonical(name) == family.reserved:
                where = declared[name] if isinstance(declared, Mapping) else "code"
                what = f"a job cannot be called {name}: jobs.{family.reserved} holds the settings of all jobs"
                findings.error(Code.RESERVED_NAME, what, where, "give the job another name")
    return names


def _all_names(configured: tuple[str, ...], declared: Collection[str]) -> tuple[str, ...]:
    """Return the names that are configured, and those that only code has; both spell a name alike."""
    every = (*configured, *declared)
    return tuple(dict(zip(map(canonical, every), every, strict=True)).values())


def _warn_of_groups(settings: Settings, groups: Sequence[str], merged: Merged, findings: Findings) -> None:
    """Warn about configured groups without a handler."""
    handled = set(map(canonical, groups))
    for name in settings.event_handling.groups:
        if canonical(name) in handled:
            continue
        path = (*GROUPS, name)
        close = nearest(name, groups)
        fix = f"did you mean {close}?" if close else f"groups with handlers: {listed(groups) or 'none'}"
        what = f"{merged.index.display(path)} is configured, but no handler belongs to that group"
        where = merged.first_origin(path)
        findings.warnings.append(GroupWithoutHandlerWarning(Code.GROUP_WITHOUT_HANDLER.value, what, where, fix, name))


def _warn_of_jobs(settings: Settings, jobs: Sequence[str], merged: Merged, findings: Findings) -> None:
    """Warn about jobs that have settings and are not in the code; a start refuses others that are named there."""
    known = set(map(canonical, jobs))
    for name in settings.jobs.named:
        if canonical(name) not in known:
            path = (*JOBS, name)
            what = f"{merged.index.display(path)} is configured, but no code has that job"
            close = nearest(name, (*jobs, JOB_FAMILY.reserved))
            fix = f"did you mean {close}?" if close else f"jobs: {listed(jobs) or 'none'}"
            where = merged.first_origin(path)
            findings.warnings.append(JobWithoutCodeWarning(Code.JOB_WITHOUT_CODE.value, what, where, fix))


def _own(chosen: Mapping[LeafName, Inherited]) -> list[LeafName]:
    """Return the settings of a group or job under its own name."""
    return [leaf for leaf, one in chosen.items() if one.level is Level.OWN]


def _warn_of_attempts(groups: Mapping[str, Mapping[LeafName, Inherited]], merged: Merged, findings: Findings) -> None:
    """Warn about each ``retry.on-exhausted`` that is set and cannot apply, as nothing limits the attempts."""
    found: dict[Path, OnExhausted] = {}
    for name, chosen in groups.items():
        decided = chosen["retry", "on_exhausted"]
        if decided.is_given and _is_endless(chosen):
            place = STANDARD if decided.level is Level.STANDARD else (*GROUPS, name)
            found[*place, "retry", "on_exhausted"] = decided.value
    for path, choice in found.items():
        key, limit = (merged.index.display(each) for each in (path, (*path[:-1], "max_attempts")))
        what = f"{key}: {choice} has no effect: an event that fails is retried forever"
        if choice is OnExhausted.PARK:
            what = f"{key}: {choice} applies to permanent errors only: any other event that fails is retried forever"
        bound = merged.winner(path)
        fix = f"set {limit}, such as 5; or to infinite, if events are to be retried forever"
        findings.warning(Code.UNLIMITED_ATTEMPTS, what, bound.origin if bound else "", fix)


def _is_endless(chosen: Mapping[LeafName, Inherited]) -> bool:
    """Return whether a group retries an event endlessly although no setting demands it."""
    policy = chosen["retry", "policy"].value
    if chosen["processing", "mode"].value is Mode.SCHEDULED or chosen["retry", "max_attempts"].is_given:
        return False
    timed = policy is RetryPolicy.EXPONENTIAL_BACKOFF and chosen["retry", "max_elapsed_time"].is_given
    return policy not in (None, RetryPolicy.NONE) and not timed


def _check_profiles(active: tuple[str, ...], merged: Merged, findings: Findings) -> None:
    """Report a ``profiles.active`` that differs from the active profiles because it was read after they were chosen."""
    bound = merged.winner(_ACTIVE)
    if bound is None or any(isinstance(error, ProfilesUnknownError) for error in findings.errors):
        return
    said = text_items(",".join(text_items(merged.values.get(_ACTIVE))))
    if tuple(dict.fromkeys(said)) == active:
        return
    what = f"profiles.active was read after the profiles were chosen; active: {listed(active) or DEFAULT_PROFILE}"
    fix = "choose profiles with --profile, a variable or in application.yaml, without a key of a file as placeholder"
    findings.profiles_unknown(Code.PROFILE, what, bound.origin, fix)


def _settle_unknown(merged: Merged, findings: Findings) -> None:
    """Turn unknown names into errors or warnings, or drop them, as ``config.unknown`` demands."""
    try:
        choice = OnUnknown(str(merged.values.get(("config", "unknown")) or "error"))
    except ValueError:  # which is reported when it is validated
        choice = OnUnknown.ERROR
    for each in findings.unknown.values():
        if choice is OnUnknown.ERROR:
            findings.errors.append(each)
        elif choice is OnUnknown.WARN:
            findings.warnings.append(ConfigurationWarning(each.code, each.what, each.where, each.fix))
