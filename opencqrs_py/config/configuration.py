"""The configuration of an application: validated settings, and where each of them comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path as FilePath
from typing import TypeAlias

from opencqrs_py.config.binding import Bound, Merged
from opencqrs_py.config.entries import BUILT_IN, Origin, OriginKind
from opencqrs_py.config.groups import GROUP_FAMILY, EffectiveGroup, effective_group
from opencqrs_py.config.inheritance import Family, Inherited, LeafName, Level
from opencqrs_py.config.jobs import JOB_FAMILY, JobSettings, effective_job
from opencqrs_py.config.keys import FAMILIES, HOLDERS, FreeNames, Path, SettingKind, index_of, kebab
from opencqrs_py.config.mistakes import report_rivals
from opencqrs_py.config.problems import Code, ConfigurationWarning, Findings
from opencqrs_py.config.settings import Settings
from opencqrs_py.config.value_types import typed, written
from opencqrs_py.errors import ConfigurationError
from opencqrs_py.model.masking import MASK, holds_secret, mask_url, secrets_in
from opencqrs_py.model.naming import listed, nearest

BoundFor: TypeAlias = "Callable[[Mapping[str, str], Mapping[str, str] | None], Configuration]"
"""Returns a configuration for the groups and jobs of code; see :meth:`Configuration.for_code`."""


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """One setting in effect.

    Args:
        path: Dotted key without ``opencqrs``.
        value: The value as it would be written in YAML, secrets as ``***``.
        origin: Where it comes from.
        is_default: Whether it is the built-in default.
        typed: The value for JSON: durations, secrets and missing limits are strings.
    """

    path: str
    value: str
    origin: Origin
    is_default: bool
    typed: bool | float | str | list[str] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Configuration:
    """The configuration of an application.

    Args:
        settings: The validated settings.
        profiles: The active profiles, the last one wins; empty when only ``default`` is.
        files: The files that were read.
        warnings: What works, but probably not as intended.
        group_names: Configured groups and those of handlers, each in its known spelling.
        ignored: Environment variables that Kubernetes sets for a Service whose name begins with ``opencqrs``.
        job_names: Configured jobs and those of code, each in its known spelling.
    """

    settings: Settings
    _merged: Merged = field(repr=False)
    profiles: tuple[str, ...] = ()
    files: tuple[FilePath, ...] = ()
    warnings: tuple[ConfigurationWarning, ...] = ()
    group_names: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    _bound_for: BoundFor | None = field(default=None, repr=False, compare=False)
    job_names: tuple[str, ...] = ()

    @classmethod
    def from_settings(cls, settings: Settings) -> Configuration:
        """Return the configuration of settings that were made in code, without any source.

        Raises:
            ConfigurationErrors: OCQ-123, if a job has two triggers that exclude each other.
        """
        names, groups, jobs = FreeNames(), settings.event_handling.groups, settings.jobs.named
        for family, singles in ((GROUP_FAMILY, groups), (JOB_FAMILY, jobs)):
            for name in singles:
                names.add(family.named, name)
        merged, findings = Merged(index_of(type(settings)), names), Findings()
        levels = {(*JOB_FAMILY.named, name): settings.jobs.said_of(name) for name in jobs}
        levels[JOB_FAMILY.standard] = settings.jobs.said_of(None)
        report_rivals(JOB_FAMILY, levels, merged, findings)
        if findings.errors:
            raise findings.failure()
        return cls(settings, merged, group_names=tuple(groups), job_names=tuple(jobs))

    def group(self, name: str) -> EffectiveGroup:
        """Return every setting of the group ``name``: its own, else the standard, else built in.

        Args:
            name: A group in any spelling, configured or not.
        """
        spelled = self._spelled(GROUP_FAMILY, name)
        return effective_group(self.settings, spelled, partial(self._single_origin, GROUP_FAMILY, spelled))

    def job(self, name: str) -> JobSettings:
        """Return every setting of the job ``name``: its own, else the standard, else built in.

        Args:
            name: A job in any spelling, configured or not.
        """
        return effective_job(self.settings, self._spelled(JOB_FAMILY, name))

    def for_code(self, groups: Mapping[str, str], jobs: Mapping[str, str] | None = None) -> Configuration:
        """Return the same configuration, bound for these groups and jobs: what ``load`` returns with them.

        No source is read again.

        Args:
            groups: Names of the groups as handlers spell them, with the place of each for messages.
            jobs: Names of the jobs as code spells them, likewise; ``None``: they are not known.

        Raises:
            ConfigurationErrors: If a key cannot be read correctly now that the names are known, such as OCQ-105; or if
                a name cannot be used, OCQ-116 and OCQ-124.
        """
        return self if self._bound_for is None else self._bound_for(groups, jobs)

    def origin(self, key: str) -> Origin:
        """Return where the value of a setting comes from; key and error are those of :meth:`value`."""
        return self.value(key).origin

    def value(self, key: str) -> EffectiveValue:
        """Return one setting in effect, with secrets masked.

        Args:
            key: Dotted key in any spelling, with ``opencqrs`` in front or without.

        Raises:
            ConfigurationError: OCQ-103, if there is no such setting.
        """
        path = self._path_of(key)
        if single := _single(path):
            family, name, leaf = single
            chosen = family.inherited(self.settings, name)
            return self._effective(path, chosen[leaf].value, self._single_origin(family, name, leaf, chosen))
        return self._effective(path, self._in_settings(path), self._origin(path))

    def losers(self, key: str) -> tuple[EffectiveValue, ...]:
        """Return the overridden values of a setting, from the highest to the lowest, as written.

        For a setting of a group or job, these include the standard's value, if it has one. Key and error are those of
        :meth:`value`.
        """
        path = self._path_of(key)
        every, wins = self._merged.stacks.get(path, []), 1
        if single := _single(path):
            family, name, leaf = single
            standard = self._merged.stacks.get((*family.standard, *leaf), [])
            every = [replace(each, origin=Origin(OriginKind.STANDARD, of=each.origin)) for each in standard] + every
            decision = family.inherited(self.settings, name)[leaf]
            wins = 0 if decision.replaced_by or decision.level is Level.BUILT_IN else 1
        return tuple(self._as_written(bound) for bound in reversed(every[: len(every) - wins]))

    def values(self, group: str | None = None, *, job: str | None = None) -> list[EffectiveValue]:
        """Return the settings in effect, with secrets masked.

        Args:
            group: Only the settings of this group.
            job: Only the settings of this job. ``None`` for both: the general settings, the standards, and those of all
                groups and jobs.
        """
        wanted = [(GROUP_FAMILY, group)] if group is not None else []
        wanted += [(JOB_FAMILY, job)] if job is not None else []
        if wanted:
            return [
                each for family, name in wanted for each in self._single_values(family, self._spelled(family, name))
            ]
        every = [(GROUP_FAMILY, name) for name in self.group_names] + [(JOB_FAMILY, name) for name in self.job_names]
        return [*self.general_values(), *(each for one in every for each in self._single_values(*one))]

    def general_values(self) -> list[EffectiveValue]:
        """Return what belongs to no single group or job; of the standards what they set, or reset."""
        return list(self._general_values())

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secret values that the settings hold, for :func:`opencqrs_py.model.masking.remember`.

        Values in a folder of secrets under another name, such as ``spark.master``, are hidden, but not among them:
        they would hide ordinary words in other messages.
        """
        found: dict[str, None] = {}
        for bound in self._merged.winners():
            value = self._in_settings(bound.path)
            if isinstance(value, str) and self._names_secret(bound.path):
                found[value] = None
            elif bound.path in self._merged.secrets and not bound.origin.is_secret:
                found.update(dict.fromkeys(self._merged.secrets[bound.path]))
            if isinstance(value, str):
                found.update(dict.fromkeys(secrets_in(value)))
        return tuple(found)

    def _path_of(self, key: str) -> Path:
        """Return the path of the setting that ``key`` names."""
        path = self._merged.index.path_of(key, self._merged.names)
        if path is None or self._merged.index.at(path).kind in HOLDERS:
            every = {each.key: each.path for each in self._merged.index.settings()}
            known = [name for name, each in every.items() if each[: len(path or ())] == (path or ())]
            close = nearest(key, known) if path is None else None
            fix = f"did you mean {close}?" if close else f"name one setting: {listed(known)}"
            raise ConfigurationError(Code.UNKNOWN_KEY.value, f"there is no setting {key}", "", fix)
        return path

    def _in_settings(self, path: Path) -> object:
        """Return the validated value at ``path``; ``None`` for a name that is not in use."""
        value: object = self.settings
        for name in path:
            names = getattr(value, "model_extra", None) or value
            if isinstance(names, dict) and (names is value or name in names):
                value = names.get(name)
            else:
                value = getattr(value, name, None)
        return value

    def _spelled(self, family: Family, name: str) -> str:
        known = self._merged.names.meant(family.named, name)
        return known[0] if known else name

    def _origin(self, path: Path) -> Origin:
        """Return the origin of the value at ``path``, without inheritance."""
        bound = self._merged.winner(path)
        if bound is None:
            return Origin(OriginKind.SOURCE) if self._is_set_in_code(path) else BUILT_IN
        return Origin(OriginKind.RESET, of=bound.origin) if bound.value is None else bound.origin

    def _is_set_in_code(self, path: Path) -> bool:
        """Return whether the value was set in code, not by a source."""
        for family in FAMILIES:
            holder = getattr(self.settings, family.named[0])
            if leaf := family.of_standard(path):
                return leaf in holder.said_of(None)
            if single := family.single(path):
                return single[1] in holder.said_of(single[0])
        value: object = self.settings
        for name in path:
            if name not in (value if isinstance(value, dict) else getattr(value, "model_fields_set", ())):
                return False
            value = value[name] if isinstance(value, dict) else getattr(value, name)
        return True

    def _single_origin(self, family: Family, name: str, leaf: LeafName, chosen: Mapping[LeafName, Inherited]) -> Origin:
        decision = chosen[leaf]
        if decision.replaced_by:
            by = self._single_origin(family, name, decision.replaced_by, chosen)
            return Origin(OriginKind.REPLACED, ".".join(map(kebab, decision.replaced_by)), of=by)
        if decision.level is Level.BUILT_IN:
            return BUILT_IN
        if decision.level is Level.OWN:
            return self._origin((*family.named, name, *leaf))
        origin = self._origin((*family.standard, *leaf))
        return origin if decision.reset else Origin(OriginKind.STANDARD, of=origin)

    def _single_values(self, family: Family, name: str) -> Iterator[EffectiveValue]:
        chosen = family.inherited(self.settings, name)
        for leaf, decision in chosen.items():
            origin = self._single_origin(family, name, leaf, chosen)
            yield self._effective((*family.named, name, *leaf), decision.value, origin)

    def _general_values(self) -> Iterator[EffectiveValue]:
        """Yield what belongs to no single name; of a standard what it sets, or resets from a lower source."""
        for setting in self._merged.index.settings():
            path = setting.path
            if path == GROUP_FAMILY.named or setting.fact.in_documents_only or self._is_silent_standard(path):
                continue
            value = self._in_settings(path)
            if setting.kind is SettingKind.MAP and isinstance(value, dict):
                for name, item in value.items():
                    yield self._effective((*path, name), item, self._origin((*path, name)))
            else:
                yield self._effective(path, value, self._origin(path))

    def _is_silent_standard(self, path: Path) -> bool:
        """Return whether ``path`` is a setting of a standard that no source sets."""
        for family in FAMILIES:
            if leaf := family.of_standard(path):
                said = getattr(self.settings, family.named[0]).said_of(None)
                return said.get(leaf) is None and len(self._merged.stacks.get(path, ())) <= 1
        return False

    def _effective(self, path: Path, value: object, origin: Origin) -> EffectiveValue:
        fact, secrets = self._merged.index.at(path).fact, self._merged.secrets.get(path, frozenset())
        text = plain = written(value, fact)
        # of a URL only the secret part is hidden
        if value is not None and (origin.is_secret or self._names_secret(path) or (secrets and not fact.is_url)):
            text = MASK
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, MASK) if secret else text
        text = mask_url(text)
        value_in_json = typed(value, fact) if text == plain else text
        return EffectiveValue(self._merged.index.display(path), text, origin, origin.is_default, value_in_json)

    def _as_written(self, bound: Bound) -> EffectiveValue:
        """Return a value as its source has it, with placeholders."""
        items = bound.value if isinstance(bound.value, tuple) else (bound.value,)
        text = ", ".join("null" if item is None else str(item) for item in items)
        if bound.value is not None and (self._names_secret(bound.path) or bound.origin.is_secret):
            text = MASK
        return EffectiveValue(self._merged.index.display(bound.path), mask_url(text), bound.origin, is_default=False)

    def _names_secret(self, path: Path) -> bool:
        return holds_secret(path[-1]) or self._merged.index.at(path).secret


def _single(path: Path) -> tuple[Family, str, LeafName] | None:
    """Return family, name and leaf if ``path`` is a setting of a single group or job, else ``None``."""
    for family in FAMILIES:
        if single := family.single(path):
            return family, *single
    return None
