"""The configuration of an application: validated settings, and where each of them comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath

from opencqrs_py.config.binding import Bound, Merged
from opencqrs_py.config.entries import BUILT_IN, Origin, OriginKind
from opencqrs_py.config.groups import EffectiveGroup, Inherited, LeafName, Level, effective_group, inherited
from opencqrs_py.config.keys import GROUPS, HOLDERS, STANDARD, FreeNames, Path, SettingKind, index_of, kebab
from opencqrs_py.config.problems import Code, ConfigurationWarning
from opencqrs_py.config.settings import Settings
from opencqrs_py.config.value_types import typed, written
from opencqrs_py.errors import ConfigurationError
from opencqrs_py.model.masking import MASK, holds_secret, mask_url, secrets_in
from opencqrs_py.model.naming import listed, nearest


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """One setting in effect.

    Args:
        path: Dotted key without ``opencqrs``.
        value: The value as it would be written in YAML, secrets as ``***``.
        origin: Where it comes from.
        is_default: Whether it is the built-in default.
        typed: The value for JSON: a duration is a text, and so is what holds a secret or says that there is no limit.
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
    """

    settings: Settings
    _merged: Merged = field(repr=False)
    profiles: tuple[str, ...] = ()
    files: tuple[FilePath, ...] = ()
    warnings: tuple[ConfigurationWarning, ...] = ()
    group_names: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    _bound_for: Callable[[Mapping[str, str]], Configuration] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def from_settings(cls, settings: Settings) -> Configuration:
        """Return the configuration of settings that were made in code, without any source."""
        names = FreeNames()
        for group in settings.event_handling.groups:
            names.add(GROUPS, group)
        merged = Merged(index_of(type(settings)), names)
        return cls(settings, merged, group_names=tuple(settings.event_handling.groups))

    def group(self, name: str) -> EffectiveGroup:
        """Return every setting of the group ``name``: its own, else the standard, else built in.

        Args:
            name: A group in any spelling, configured or not.
        """
        return effective_group(self.settings, self._spelled(name))

    def for_groups(self, groups: Mapping[str, str]) -> Configuration:
        """Return the same configuration, bound for handlers of these groups: what ``load`` returns with ``groups``.

        No source is read again.

        Args:
            groups: Names of the groups as handlers spell them, with the place of each for messages.

        Raises:
            ConfigurationErrors: If a key can only be read wrongly now that the names are known, such as OCQ-105.
        """
        return self if self._bound_for is None else self._bound_for(groups)

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
        if _of_group(path):
            chosen, leaf = inherited(self.settings, path[2]), (path[3], path[4])
            return self._effective(path, chosen[leaf].value, self._group_origin(path[2], leaf, chosen))
        return self._effective(path, self._in_settings(path), self._origin(path))

    def losers(self, key: str) -> tuple[EffectiveValue, ...]:
        """Return the overridden values of a setting, from the highest to the lowest, as written.

        Of a group's setting these are also what the standard says, when the group says something itself. Key and error
        are those of :meth:`value`.
        """
        path = self._path_of(key)
        every, wins = self._merged.stacks.get(path, []), 1
        if _of_group(path):
            standard = self._merged.stacks.get((*STANDARD, *path[3:]), [])
            every = [replace(each, origin=Origin(OriginKind.STANDARD, of=each.origin)) for each in standard] + every
            decision = inherited(self.settings, path[2])[path[3], path[4]]
            wins = 0 if decision.replaced_by or decision.level is Level.BUILT_IN else 1
        return tuple(self._as_written(bound) for bound in reversed(every[: len(every) - wins]))

    def values(self, group: str | None = None) -> list[EffectiveValue]:
        """Return the settings in effect, with secrets masked.

        Args:
            group: Only the settings of this group; ``None``: the general ones, the standard, and those of all groups.
        """
        if group is not None:
            return list(self._group_values(self._spelled(group)))
        return [*self._general_values(), *(each for name in self.group_names for each in self._group_values(name))]

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secret values that the settings hold, for :func:`opencqrs_py.model.masking.remember`.

        What a folder of secrets says under another name, such as ``spark.master``, is hidden, but not among them: in
        the messages of others it would hide ordinary words.
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

    def masked_url(self, url: str) -> str:
        """Return ``url`` with its password shown as ``***``."""
        return mask_url(url)

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
            value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
        return value

    def _spelled(self, name: str) -> str:
        known = self._merged.names.meant(GROUPS, name)
        return known[0] if known else name

    def _origin(self, path: Path) -> Origin:
        """Return the origin of the value at ``path``, without inheritance."""
        bound = self._merged.winner(path)
        if bound is None:
            return Origin(OriginKind.SOURCE) if self._is_set_in_code(path) else BUILT_IN
        return Origin(OriginKind.RESET, of=bound.origin) if bound.value is None else bound.origin

    def _is_set_in_code(self, path: Path) -> bool:
        """Return whether the value was set in code, not by a source."""
        if path[: len(STANDARD)] == STANDARD or _of_group(path):
            group = None if path[: len(STANDARD)] == STANDARD else path[2]
            leaf = path[len(STANDARD) if group is None else len(GROUPS) + 1 :]
            return leaf in self.settings.event_handling.said_of(group)
        value: object = self.settings
        for name in path:
            if name not in (value if isinstance(value, dict) else getattr(value, "model_fields_set", ())):
                return False
            value = value[name] if isinstance(value, dict) else getattr(value, name)
        return True

    def _group_origin(self, group: str, leaf: LeafName, chosen: dict[LeafName, Inherited]) -> Origin:
        decision = chosen[leaf]
        if decision.replaced_by:
            by = self._group_origin(group, decision.replaced_by, chosen)
            return Origin(OriginKind.REPLACED, ".".join(map(kebab, decision.replaced_by)), of=by)
        if decision.level is Level.BUILT_IN:
            return BUILT_IN
        if decision.level is Level.GROUP:
            return self._origin((*GROUPS, group, *leaf))
        origin = self._origin((*STANDARD, *leaf))
        return origin if decision.reset else Origin(OriginKind.STANDARD, of=origin)

    def _group_values(self, group: str) -> Iterator[EffectiveValue]:
        chosen = inherited(self.settings, group)
        for leaf, decision in chosen.items():
            origin = self._group_origin(group, leaf, chosen)
            yield self._effective((*GROUPS, group, *leaf), decision.value, origin)

    def _general_values(self) -> Iterator[EffectiveValue]:
        """Yield what is no group's; of the standard what it sets, or takes back from a lower source."""
        said, stacks = self.settings.event_handling.said_of(None), self._merged.stacks
        for setting in self._merged.index.settings():
            path = setting.path
            if path == GROUPS or setting.fact.in_documents_only:
                continue
            value = self._in_settings(path)
            if setting.kind is SettingKind.MAP and isinstance(value, dict):
                for name, item in value.items():
                    yield self._effective((*path, name), item, self._origin((*path, name)))
            elif path[:2] != STANDARD or said.get((path[2], path[3])) is not None or len(stacks.get(path, ())) > 1:
                yield self._effective(path, value, self._origin(path))

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


def _of_group(path: Path) -> bool:
    return path[: len(GROUPS)] == GROUPS and len(path) == len(GROUPS) + 3
