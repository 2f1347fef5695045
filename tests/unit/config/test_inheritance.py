import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from opencqrs_py.config.choices import Controller, Resolution, RetryPolicy, Tracking
from opencqrs_py.config.groups import (
    GROUP_FAMILY,
    EffectiveGroup,
    FetchSettings,
    GroupSettings,
    RetrySettings,
    effective_group,
)
from opencqrs_py.config.inheritance import Level
from opencqrs_py.config.jobs import effective_job
from opencqrs_py.config.settings import Settings


def settings(standard=None, **groups):
    return Settings(event_handling={"standard": standard or {}, "groups": groups})


def of(group, leaf):
    section, name = leaf.split(".")
    return getattr(getattr(group, section), name)


@pytest.mark.parametrize(
    ("leaf", "one", "other"),
    [
        ("fetch.subject", "/a", "/b"),
        ("fetch.recursive", False, True),
        ("fetch.initial_position", "head", "4711"),
        ("life_cycle.auto_start", False, True),
        ("life_cycle.controller", Controller.LEADER_ELECTION, Controller.APPLICATION_CONTEXT),
        ("life_cycle.controller_registration", "one", "other"),
        ("life_cycle.lock_registry", "one", "other"),
        ("life_cycle.partitions", 2, 4),
        ("progress.tracking", Tracking.SQL, Tracking.IN_MEMORY),
        ("progress.tracker_ref", "one", "other"),
        ("sequence.resolution", Resolution.NO_SEQUENCE, Resolution.PER_SUBJECT),
        ("sequence.resolver_ref", "one", "other"),
        ("sequence.level", 1, 3),
        ("sequence.data_field", "one", "other"),
        ("sequence.metadata_key", "one", "other"),
        ("retry.policy", RetryPolicy.FIXED, RetryPolicy.NONE),
        ("retry.initial_interval", 1.0, 3.0),
        ("retry.max_interval", 10.0, 20.0),
        ("retry.max_elapsed_time", 60.0, math.inf),
        ("retry.multiplier", 2.0, 3.0),
        ("retry.max_attempts", 3, 0),
        ("retry.on_exhausted", "stop", "park"),
        ("retry.jitter", 0.1, 0.2),
        ("processing.engine", "thread", "spark"),
        ("processing.batch_size", 10, 20),
    ],
)
def test_each_leaf_comes_from_the_group_the_standard_or_the_built_in_default(leaf, one, other):
    section, name = leaf.split(".")
    given = settings({section: {name: one}}, own={section: {name: other}}, other={})
    assert of(effective_group(given, "own"), leaf) == other
    assert of(effective_group(given, "other"), leaf) == one
    assert of(effective_group(given, "unheard"), leaf) == one
    assert of(effective_group(settings(), "own"), leaf) == of(effective_group(Settings(), "any"), leaf)


def test_leaves_of_one_section_are_inherited_one_by_one():
    given = settings({"retry": {"max_attempts": 5, "multiplier": 2}}, books={"retry": {"max_attempts": 3}})
    retry = effective_group(given, "books").retry
    assert (retry.max_attempts, retry.multiplier, retry.max_interval) == (3, 2.0, 30.0)


def test_null_resets_a_value_of_the_standard():
    given = settings({"fetch": {"subject": "/a"}}, books={"fetch": {"subject": None}})
    assert effective_group(given, "books").fetch.subject == "/"
    decision = GROUP_FAMILY.inherited(given, "books")["fetch", "subject"]
    assert (decision.level, decision.reset) == (Level.OWN, True)


def test_infinite_attempts_of_a_group_override_a_number():
    given = settings({"retry": {"max_attempts": 5}}, books={"retry": {"max_attempts": "infinite"}})
    assert effective_group(given, "books").retry.max_attempts is None


PAIRS = [
    ("progress", "tracking", "tracker_ref", "sql"),
    ("sequence", "resolution", "resolver_ref", "no_sequence"),
    ("life_cycle", "controller", "controller_registration", "leader_election"),
    ("retry", "policy", "back_off_ref", "fixed"),
]


@pytest.mark.parametrize(("section", "choice", "reference", "value"), PAIRS)
@pytest.mark.parametrize(
    ("standard", "own", "choice_applies"),
    [
        ({"reference"}, {"choice"}, True),
        ({"choice"}, {"reference"}, False),
        ({"choice", "reference"}, set(), False),
        (set(), {"choice", "reference"}, False),
        ({"reference"}, set(), False),
        (set(), {"choice"}, True),
        ({"choice", "reference"}, {"choice"}, True),
        ({"choice", "reference"}, {"choice", "reference"}, False),
    ],
)
def test_the_nearer_of_choice_and_reference_applies_and_on_one_level_the_reference(
    section, choice, reference, value, standard, own, choice_applies
):
    def said(what):
        return {
            section: {
                name: text
                for key, name, text in (("choice", choice, value), ("reference", reference, "mine"))
                if key in what
            }
        }

    effective = getattr(effective_group(settings(said(standard), books=said(own)), "books"), section)
    assert getattr(effective, choice) == (value if choice_applies else None)
    assert getattr(effective, reference) == (None if choice_applies else "mine")


@pytest.mark.parametrize(("section", "choice", "reference", "value"), PAIRS)
def test_null_removes_an_inherited_reference(section, choice, reference, value):
    given = settings({section: {choice: value, reference: "mine"}}, books={section: {reference: None}})
    effective = getattr(effective_group(given, "books"), section)
    assert (getattr(effective, choice), getattr(effective, reference)) == (value, None)


@pytest.mark.parametrize(("section", "choice", "reference", "value"), PAIRS)
def test_null_as_choice_does_not_remove_an_inherited_reference(section, choice, reference, value):
    given = settings({section: {reference: "mine"}}, books={section: {choice: None}})
    effective = getattr(effective_group(given, "books"), section)
    assert (getattr(effective, choice), getattr(effective, reference)) == (None, "mine")


@pytest.mark.parametrize(
    ("standard", "own", "controller", "lock_registry"),
    [
        ({}, {"lock_registry": "mine"}, None, "mine"),
        ({"lock_registry": "mine"}, {"controller": "application_context"}, "application_context", None),
        ({"controller": "application_context"}, {"lock_registry": "mine"}, None, "mine"),
        ({"controller": "application_context", "lock_registry": "mine"}, {}, "application_context", None),
        ({}, {"controller": "application_context", "lock_registry": "mine"}, "application_context", None),
        ({"lock_registry": "mine"}, {"controller": "leader_election"}, "leader_election", "mine"),
        ({"controller": "leader_election"}, {"lock_registry": "mine"}, "leader_election", "mine"),
        ({"lock_registry": "mine"}, {"lock_registry": None}, None, None),
        ({"controller": "application_context"}, {"lock_registry": None}, "application_context", None),
        ({"controller": "application_context", "lock_registry": "mine"}, {"controller": None}, None, "mine"),
    ],
)
def test_a_lock_registry_and_the_application_context_exclude_each_other(standard, own, controller, lock_registry):
    life_cycle = effective_group(settings({"life_cycle": standard}, books={"life_cycle": own}), "books").life_cycle
    assert (life_cycle.controller, life_cycle.lock_registry) == (controller, lock_registry)


@pytest.mark.parametrize("name", ["Book-Catalog", "book_catalog", "bookCatalog"])
def test_a_group_is_found_in_any_spelling(name):
    given = Settings(event_handling={"groups": {"Book-Catalog": {"fetch": {"subject": "/books"}}}})
    assert effective_group(given, name).fetch.subject == "/books"
    assert effective_group(given, name).name == name


def test_groups_may_be_given_as_settings_objects():
    retry = RetrySettings(max_attempts=3)
    given = settings(GroupSettings(retry=retry), books=GroupSettings(fetch=FetchSettings(subject="/books")))
    assert effective_group(given, "books") == EffectiveGroup(
        "books", fetch=FetchSettings(subject="/books"), retry=retry
    )
    assert effective_group(given, "other") == EffectiveGroup("other", retry=retry)


@pytest.mark.parametrize("fetch", [FetchSettings("/"), FetchSettings(subject="/"), {"subject": "/"}])
def test_a_default_that_a_group_sets_explicitly_overrides_the_standard(fetch):
    own = GroupSettings(fetch=fetch) if isinstance(fetch, FetchSettings) else {"fetch": fetch}
    given = settings({"fetch": {"subject": "/a", "recursive": False}}, books=own)
    assert effective_group(given, "books").fetch == FetchSettings(subject="/", recursive=False)


@pytest.mark.parametrize("wrong", [3, {"nothing": None}, {"fetch": 3}, {"fetch": {"subjct": "/"}}, {"nothing": {}}])
@pytest.mark.parametrize("level", ["standard", "groups"])
def test_an_invalid_group_is_refused(level, wrong):
    with pytest.raises(ValidationError):
        Settings(event_handling={level: wrong if level == "standard" else {"books": wrong}})


TRIGGERS = {"fixed_rate": ["1m", "2m"], "fixed_delay": ["1m", "2m"], "cron": ["@daily", "@hourly", "-"]}
LEVELS = st.fixed_dictionaries({}, optional={name: st.sampled_from([*texts, None]) for name, texts in TRIGGERS.items()})


def given_in(level):
    return {name for name, text in level.items() if text not in (None, "-")}


@given(standard=LEVELS, own=LEVELS)
def test_at_most_one_trigger_applies_and_comes_from_the_nearest_level_that_sets_one(standard, own):
    assume(len(given_in(standard)) <= 1 and len(given_in(own)) <= 1)
    settings = Settings(jobs={"standard": {"triggers": standard}, "cleanup": {"triggers": own}})
    triggers = effective_job(settings, "cleanup").triggers
    applies = {name for name in TRIGGERS if getattr(triggers, name) is not None}
    silent = {name for name in given_in(standard) if name not in own}
    assert applies == (given_in(own) or silent)
