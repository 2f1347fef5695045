"""Settings of a group or job that have no effect without another setting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opencqrs_py.config.choices import Engine, Mode, Resolution, RetryPolicy
from opencqrs_py.config.groups import GROUP_FAMILY
from opencqrs_py.config.inheritance import Family, Inherited, LeafName, Level
from opencqrs_py.config.jobs import JOB_FAMILY
from opencqrs_py.config.keys import kebab
from opencqrs_py.config.problems import Code
from opencqrs_py.model.choices import Misfire, OnExhausted, Overlap
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
_STARTUP, _RATE, _DELAY = ("triggers", "startup"), ("triggers", "fixed_rate"), ("triggers", "fixed_delay")
_JOB_CRON, _TYPES = ("triggers", "cron"), ("triggers", "events", "types")
_SCHEDULED: dict[LeafName, tuple[Any, ...]] = {_RATE: (...,), _DELAY: (...,), _JOB_CRON: (...,)}


@dataclass(frozen=True, slots=True)
class _Effect:
    """Settings, and the values of other settings with which they have an effect.

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

    def applies(self, chosen: Mapping[LeafName, Inherited]) -> bool:
        """Return whether the settings have an effect."""
        return any(
            chosen[leaf].value in values or (... in values and chosen[leaf].value not in (None, ()))
            for leaf, values in self.wanted.items()
        )

    def is_off(self, chosen: Mapping[LeafName, Inherited]) -> bool:
        """Return whether what is needed is deliberately empty, as by ``cron: ${CRON:-}``."""
        said = (chosen[leaf] for leaf, values in self.wanted.items() if ... in values)
        return any(one.level is Level.OWN and one.value is None for one in said)


_RETRIES = (
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
    *_RETRIES,
    _Effect((("checkpointing", "hold"),), {_ENGINE: (Engine.SPARK,)}, "processing.engine is spark"),
)
"""When a setting of a group has an effect. All others always have one, or it depends on code and container."""

JOB_EFFECTS = (
    _Effect((("triggers", "zone"),), {_JOB_CRON: (...,)}, "triggers.cron is set"),
    _Effect(
        (("triggers", "initial_delay"),),
        {_STARTUP: (True,), _RATE: (...,), _DELAY: (...,)},
        "triggers.startup, triggers.fixed-rate or triggers.fixed-delay is set",
    ),
    _Effect((("triggers", "jitter"), ("misfire",)), _SCHEDULED, "triggers have a schedule"),
    _Effect((("triggers", "events", "ids"),), {_TYPES: (...,)}, "triggers.events.types is set"),
    _Effect((("misfire_grace",),), {("misfire",): (Misfire.SKIP,)}, "misfire is skip"),
    _Effect((("queue_size",),), {("overlap",): (Overlap.QUEUE,)}, "overlap is queue"),
    _Effect((("cancel_grace",),), {("overlap",): (Overlap.CANCEL,)}, "overlap is cancel"),
    *_RETRIES,
)
"""The same of a job."""


def _ruled(family: Family, effects: Sequence[_Effect]) -> frozenset[LeafName]:
    return frozenset(leaf for leaf in family.leaves if any(effect.of(leaf) for effect in effects))


@dataclass(frozen=True, slots=True, eq=False)
class Idle:
    """Finds settings without effect.

    Attributes:
        what: What the settings are of, for messages.
        family: All of these settings.
        effects: When they have an effect.
        ruled: Those that do not always have an effect.
    """

    what: str
    family: Family
    effects: tuple[_Effect, ...]
    ruled: frozenset[LeafName]

    def warn(
        self,
        names: Mapping[str, Mapping[LeafName, Inherited]],
        merged: Merged,
        profiles: Sequence[str],
        findings: Findings,
    ) -> None:
        """Warn about settings of single groups or jobs that have no effect.

        A standard is for other groups, too. A deciding setting may be meant for one profile only, as ``retry.policy:
        none`` for tests, or be in another source. There is no warning about these.
        """
        for name, chosen in names.items():
            said = [(leaf, one) for leaf, one in chosen.items() if leaf in self.ruled]
            own = [leaf for leaf, one in said if one.level is Level.OWN and one.value is not None and not one.reset]
            for effect in self.effects if own else ():
                idle = [] if effect.applies(chosen) else [leaf for leaf in own if effect.of(leaf)]
                idle = [] if idle and effect.is_off(chosen) else idle
                idle = [leaf for leaf in idle if self._are_together(effect, leaf, name, chosen, merged, profiles)]
                if idle:
                    self._warn(effect, idle, name, merged, findings)

    def _are_together(
        self,
        effect: _Effect,
        leaf: LeafName,
        name: str,
        chosen: Mapping[LeafName, Inherited],
        merged: Merged,
        profiles: Sequence[str],
    ) -> bool:
        """Return whether the source that sets ``leaf`` also sets what makes it ineffective, or no source does."""
        bound = merged.winner((*self.family.named, name, *leaf))
        deciders = list(self._deciders(effect, name, chosen, merged))
        if bound is None or (profiles and deciders):
            return False
        return all((each.kind, each.place) == (bound.origin.kind, bound.origin.place) for each in deciders)

    def _deciders(
        self, effect: _Effect, name: str, chosen: Mapping[LeafName, Inherited], merged: Merged
    ) -> Iterator[Origin]:
        """Yield the origins of the settings that decide and are set."""
        for leaf in effect.wanted:
            by = chosen[leaf].replaced_by or leaf
            level = chosen[by].level
            if level is not Level.BUILT_IN:
                path = (*self.family.named, name) if level is Level.OWN else self.family.standard
                bound = merged.winner((*path, *by))
                if bound is not None:
                    yield bound.origin

    def _warn(self, effect: _Effect, idle: Sequence[LeafName], name: str, merged: Merged, findings: Findings) -> None:
        names = listed(".".join(map(kebab, leaf)) for leaf in idle)
        what = f"{names} of {self.what} {name} {'has' if len(idle) == 1 else 'have'} no effect unless {effect.unless}"
        bound = merged.winner((*self.family.named, name, *idle[0]))
        fix = f"leave {'it' if len(idle) == 1 else 'them'} out, or set what is needed"
        findings.warning(Code.NO_EFFECT, what, bound.origin if bound else "", fix)


IDLE_OF_GROUPS = Idle("group", GROUP_FAMILY, EFFECTS, _ruled(GROUP_FAMILY, EFFECTS))
IDLE_OF_JOBS = Idle("job", JOB_FAMILY, JOB_EFFECTS, _ruled(JOB_FAMILY, JOB_EFFECTS))
