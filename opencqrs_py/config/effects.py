"""Settings of a group that have no effect, as another setting would have to be given first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opencqrs_py.config.choices import Engine, Mode, Resolution, RetryPolicy
from opencqrs_py.config.groups import GROUP_FAMILY, LEAVES
from opencqrs_py.config.inheritance import Inherited, LeafName, Level
from opencqrs_py.config.keys import GROUPS, kebab
from opencqrs_py.config.problems import Code
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.model.naming import listed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from opencqrs_py.config.binding import Merged
    from opencqrs_py.config.entries import Origin
    from opencqrs_py.config.problems import Findings

_MODE, _ENGINE, _CRON = ("processing", "mode"), ("processing", "engine"), ("schedule", "cron")
_EXHAUSTED, _UNDECODABLE = ("retry", "on_exhausted"), ("retry", "on_undecodable")
_RESOLUTION, _POLICY = ("sequence", "resolution"), ("retry", "policy")
_EXPONENTIAL, _FIXED = RetryPolicy.EXPONENTIAL_BACKOFF, RetryPolicy.FIXED


@dataclass(frozen=True, slots=True)
class _Effect:
    """Settings, and what other settings have to be for them to count.

    Attributes:
        settings: The settings, or what their paths begin with.
        wanted: Others, each with the values of which one is needed by at least one of them; ``...`` is any value.
        unless: The same in words.
    """

    settings: tuple[tuple[str, ...], ...]
    wanted: Mapping[LeafName, Collection[Any]]
    unless: str

    def of(self, leaf: LeafName) -> bool:
        """Return whether it is about a setting."""
        return any(leaf[: len(each)] == each for each in self.settings)

    def is_there(self, chosen: Mapping[LeafName, Inherited]) -> bool:
        """Return whether the settings count."""
        return any(
            chosen[leaf].value in values or (... in values and chosen[leaf].value is not None)
            for leaf, values in self.wanted.items()
        )


EFFECTS = (
    _Effect((("schedule",), ("batch",)), {_MODE: (Mode.SCHEDULED,)}, "processing.mode is scheduled"),
    _Effect((("schedule", "time_zone"),), {_CRON: (...,)}, "schedule.cron is set"),
    _Effect((("schedule", "initial_delay"), ("schedule", "kind")), {_CRON: (None,)}, "schedule.cron is left out"),
    _Effect(
        (("park",),),
        {_EXHAUSTED: (OnExhausted.PARK,), _UNDECODABLE: (OnExhausted.PARK,), _MODE: (Mode.SCHEDULED,)},
        "retry.on-exhausted or retry.on-undecodable is park",
    ),
    _Effect(
        (("sequence", "level"),),
        {_RESOLUTION: (Resolution.PER_LEVEL_SUBJECT,)},
        "sequence.resolution is per_level_subject",
    ),
    _Effect(
        (("sequence", "data_field"),),
        {_RESOLUTION: (Resolution.PER_DATA_FIELD,)},
        "sequence.resolution is per_data_field",
    ),
    _Effect(
        (("sequence", "metadata_key"),),
        {_RESOLUTION: (Resolution.PER_METADATA_KEY,)},
        "sequence.resolution is per_metadata_key",
    ),
    _Effect(
        (("retry", "initial_interval"), ("retry", "max_attempts")),
        {_POLICY: (_EXPONENTIAL, _FIXED)},
        "retry.policy is exponential_backoff or fixed",
    ),
    _Effect(
        (("retry", "max_interval"), ("retry", "max_elapsed_time"), ("retry", "multiplier"), ("retry", "jitter")),
        {_POLICY: (_EXPONENTIAL,)},
        "retry.policy is exponential_backoff",
    ),
    _Effect((("checkpointing", "hold"),), {_ENGINE: (Engine.SPARK,)}, "processing.engine is spark"),
)
"""When a setting counts. All others always do, or it depends on the code and on what the container holds."""


RULED = frozenset(leaf for leaf in LEAVES if any(effect.of(leaf) for effect in EFFECTS))
"""The settings that do not always count."""


def warn_of_idle_settings(
    groups: Mapping[str, Mapping[LeafName, Inherited]], merged: Merged, profiles: Sequence[str], findings: Findings
) -> None:
    """Warn about settings of single groups that have no effect: of groups that have such as do not always count.

    What a standard says is for other groups, too. With a profile, a setting that decides may be there for it alone, as
    ``retry.policy: none`` for tests; so it is if the setting stands in another source. Nothing is said of these.
    """
    for group, chosen in groups.items():
        said = [(leaf, one) for leaf, one in chosen.items() if leaf in RULED]
        own = [leaf for leaf, one in said if one.level is Level.OWN and one.value is not None and not one.reset]
        for effect in EFFECTS if own else ():
            idle = [] if effect.is_there(chosen) else [leaf for leaf in own if effect.of(leaf)]
            idle = [leaf for leaf in idle if _are_together(effect, leaf, group, chosen, merged, profiles)]
            if idle:
                _warn(effect, idle, group, merged, findings)


def _are_together(
    effect: _Effect,
    leaf: LeafName,
    group: str,
    chosen: Mapping[LeafName, Inherited],
    merged: Merged,
    profiles: Sequence[str],
) -> bool:
    """Return whether the source that sets ``leaf`` also sets what makes it ineffective, or no source does."""
    bound = merged.winner((*GROUPS, group, *leaf))
    deciders = list(_deciders(effect, group, chosen, merged))
    if bound is None or (profiles and deciders):
        return False
    return all((each.kind, each.place) == (bound.origin.kind, bound.origin.place) for each in deciders)


def _deciders(effect: _Effect, group: str, chosen: Mapping[LeafName, Inherited], merged: Merged) -> Iterator[Origin]:
    """Yield the origins of the settings that decide and are set."""
    for leaf in effect.wanted:
        by = chosen[leaf].replaced_by or leaf
        level = chosen[by].level
        if level is not Level.BUILT_IN:
            path = (*GROUPS, group) if level is Level.OWN else GROUP_FAMILY.standard
            bound = merged.winner((*path, *by))
            if bound is not None:
                yield bound.origin


def _warn(effect: _Effect, idle: Sequence[LeafName], group: str, merged: Merged, findings: Findings) -> None:
    names = listed(".".join(map(kebab, leaf)) for leaf in idle)
    what = f"{names} of group {group} {'has' if len(idle) == 1 else 'have'} no effect unless {effect.unless}"
    bound = merged.winner((*GROUPS, group, *idle[0]))
    fix = f"leave {'it' if len(idle) == 1 else 'them'} out, or set what is needed"
    findings.warning(Code.NO_EFFECT, what, bound.origin if bound else "", fix)
