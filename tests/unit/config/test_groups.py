import math
import pickle
from dataclasses import FrozenInstanceError

import pytest

from opencqrs_py.config.choices import Engine, Resolution, RetryPolicy
from opencqrs_py.config.groups import EffectiveGroup, FetchSettings
from opencqrs_py.model.choices import OnExhausted


@pytest.mark.parametrize(
    ("leaf", "value"),
    [
        ("fetch.subject", "/"),
        ("fetch.recursive", True),
        ("fetch.initial_position", "tail"),
        ("life_cycle.auto_start", True),
        ("life_cycle.controller", None),
        ("life_cycle.controller_registration", None),
        ("life_cycle.lock_registry", None),
        ("life_cycle.partitions", 1),
        ("progress.tracking", None),
        ("progress.tracker_ref", None),
        ("sequence.resolution", Resolution.PER_SECOND_LEVEL_SUBJECT),
        ("sequence.resolver_ref", None),
        ("sequence.level", None),
        ("sequence.data_field", None),
        ("sequence.metadata_key", None),
        ("retry.policy", RetryPolicy.EXPONENTIAL_BACKOFF),
        ("retry.initial_interval", 2.0),
        ("retry.max_interval", 30.0),
        ("retry.max_elapsed_time", math.inf),
        ("retry.multiplier", 1.5),
        ("retry.max_attempts", None),
        ("retry.on_exhausted", OnExhausted.SKIP),
        ("retry.jitter", 0.0),
        ("processing.engine", Engine.SPARK),
        ("processing.batch_size", None),
    ],
)
def test_an_effective_group_has_the_built_in_defaults(leaf, value):
    section, name = leaf.split(".")
    assert getattr(getattr(EffectiveGroup("books"), section), name) == value


def test_a_group_survives_pickling():
    group = EffectiveGroup("books")
    copy = pickle.loads(pickle.dumps(group))
    assert copy == group
    assert hash(copy) == hash(group)
    assert copy.retry.max_elapsed_time == math.inf


def test_a_group_is_immutable():
    with pytest.raises(FrozenInstanceError):
        EffectiveGroup("books").fetch.subject = "/books"


def test_a_group_hides_secrets_in_its_repr():
    shown = repr(EffectiveGroup("books", fetch=FetchSettings(subject="/x?password=hunter2")))
    assert "hunter2" not in shown
    assert "FetchSettings(subject='/x?password=***'" in shown
