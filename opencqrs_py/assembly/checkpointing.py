"""Self-checkpointing: its settings, and the decision for a group."""

from __future__ import annotations

from dataclasses import replace

from opencqrs_py.assembly.conditions import Decision
from opencqrs_py.assembly.setting_conflicts import parks
from opencqrs_py.config import EffectiveGroup, Engine, Tracking
from opencqrs_py.config.choices import Mode
from opencqrs_py.engines.checkpointing import SCHEDULED, CheckpointRule
from opencqrs_py.processing.checkpoints.checkpoints import CheckpointMode
from opencqrs_py.processing.checkpoints.participation import Participation

MODE = "checkpointing.mode"
IN_MEMORY = "keeps its progress in memory, which Spark workers do not share"


def checkpoint_rule_of(settings: EffectiveGroup, tracking: Decision) -> CheckpointRule:
    """Return how the participants of a group, if it has any, confirm what is durable; or why it cannot have any."""
    in_memory = tracking.choice == Tracking.IN_MEMORY.value and not tracking.provider
    rule = CheckpointRule(CheckpointMode(settings.checkpointing.mode.value), settings.checkpointing.timeout)
    path, why, setting = f"event-handling.groups[{settings.name}]", "", ""
    if parks(settings):
        rule = replace(rule, parks=f"set {path}.retry.on-exhausted and {path}.retry.on-undecodable: skip or stop")
    if settings.processing.mode is Mode.SCHEDULED:
        why, setting = SCHEDULED, "processing.mode: streaming"
    elif settings.processing.engine is Engine.SPARK and in_memory:
        why, setting = IN_MEMORY, "progress.tracking: sql"
    return replace(rule, why_not=why, fix=f"set {path}.{setting}") if why else rule


def decide_checkpointing(settings: EffectiveGroup, checkpointing: Participation) -> Decision:
    """Decide when the progress of a group with participants is stored, and why."""
    names = tuple(participant.name for participant in checkpointing.participants)
    is_set = ("checkpointing", "mode") in settings.set_leaves
    only = checkpointing.others.usual is None
    if settings.checkpointing.mode.value != CheckpointMode.AUTO.value:
        reason = "set"
    else:
        reason = "all handlers are participants'" if only else "there are other handlers, too"
    what = "when a participant requests a checkpoint" if checkpointing.deferred else "with each chunk"
    return Decision(settings.name, MODE, checkpointing.mode, f"{reason}: {what}", names, MODE if is_set else "")
