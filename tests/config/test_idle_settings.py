import pytest

from opencqrs_py.config.effects import IDLE_OF_GROUPS, IDLE_OF_JOBS

IDLE = [
    ("schedule.interval: 1s", "schedule.interval", "processing.mode is scheduled"),
    ("batch.size: 5", "batch.size", "processing.mode is scheduled"),
    ("processing.mode: streaming\n  schedule.cron: 0 * * * *", "schedule.cron", "processing.mode is scheduled"),
    ("processing.mode: scheduled\n  schedule.time-zone: Europe/Berlin", "schedule.time-zone", "schedule.cron is set"),
    (
        "processing.mode: scheduled\n  schedule: {cron: 0 * * * *, initial-delay: 1s}",
        "schedule.initial-delay",
        "schedule.cron is left out",
    ),
    ("park.max-sequences: 5", "park.max-sequences", "retry.on-exhausted or retry.on-undecodable is park"),
    ("park.retry.max-attempts: 5", "park.retry.max-attempts", "retry.on-exhausted or retry.on-undecodable is park"),
    ("sequence.level: 2", "sequence.level", "sequence.resolution is per_level_subject"),
    ("sequence.data-field: isbn", "sequence.data-field", "sequence.resolution is per_data_field"),
    ("sequence.metadata-key: tenant", "sequence.metadata-key", "sequence.resolution is per_metadata_key"),
    ("sequence: {resolver-ref: mine, level: 2}", "sequence.level", "sequence.resolution is per_level_subject"),
    (
        "retry: {policy: none, initial-interval: 1s}",
        "retry.initial-interval",
        "retry.policy is exponential_backoff or fixed",
    ),
    ("retry: {policy: fixed, multiplier: 3}", "retry.multiplier", "retry.policy is exponential_backoff"),
    ("retry: {back-off-ref: mine, jitter: 0.5}", "retry.jitter", "retry.policy is exponential_backoff"),
    ("processing.engine: thread\n  checkpointing.hold: 5s", "checkpointing.hold", "processing.engine is spark"),
]


def books(settings, standard=""):
    below = "\n".join(f"      {line}" for line in f"  {settings}".splitlines())
    return f"opencqrs.event-handling:\n  standard: {{{standard}}}\n  groups:\n    books:\n{below}\n"


def said(configuration):
    return [(each.code, each.what) for each in configuration.warnings]


@pytest.mark.parametrize(("settings", "name", "needed"), IDLE)
def test_a_setting_of_a_group_without_effect_is_warned_of(project, settings, name, needed):
    configuration = project.write("application.yaml", books(settings)).load(groups=["books"])
    assert said(configuration) == [("OCQ-126", f"{name} of group books has no effect unless {needed}")]
    assert configuration.warnings[0].where.startswith("application.yaml:")
    assert configuration.warnings[0].fix == "leave it out, or set what is needed"


def test_settings_with_the_same_requirement_are_named_together(project):
    project.write("application.yaml", books("schedule: {interval: 1s, on-exhausted: skip}\n  batch.size: 5"))
    (warning,) = project.load(groups=["books"]).warnings
    assert warning.what == (
        "schedule.interval, schedule.on-exhausted, batch.size of group books have no effect unless "
        "processing.mode is scheduled"
    )


@pytest.mark.parametrize(
    "settings",
    [
        "processing.mode: scheduled\n  schedule: {interval: 1s, kind: fixed_rate}\n  batch.size: 5",
        "processing.mode: scheduled\n  schedule: {cron: 0 * * * *, time-zone: Europe/Berlin}",
        "processing.mode: scheduled\n  park.max-sequences: 5",
        "retry: {on-exhausted: park, max-attempts: 2}\n  park.max-sequences: 5",
        "retry.on-undecodable: park\n  park.retry.max-attempts: 5",
        "sequence: {resolution: per_level_subject, level: 2}",
        "sequence: {resolution: per_data_field, data-field: isbn}",
        "sequence: {resolution: per_metadata_key, metadata-key: tenant}",
        "retry: {multiplier: 3, max-interval: 1m, jitter: 0.1}",
        "retry: {policy: fixed, initial-interval: 1s, max-attempts: 3}",
        "checkpointing.hold: 5s",
        "schedule.interval: null",
    ],
)
def test_a_setting_that_applies_is_not_mentioned(project, settings):
    assert project.write("application.yaml", books(settings)).load(groups=["books"]).warnings == ()


@pytest.mark.parametrize("setting", ["schedule.interval: 1s", "park.max-sequences: 5", "sequence.level: 2"])
def test_a_standard_that_might_apply_to_other_groups_is_not_mentioned(project, setting):
    text = books("fetch.subject: /books", setting)
    assert project.write("application.yaml", text).load(groups=["books"]).warnings == ()


def test_the_deciding_setting_can_be_inherited_from_the_standard(project):
    text = books("sequence.level: 2", "sequence.resolution: per_level_subject")
    assert project.write("application.yaml", text).load(groups=["books"]).warnings == ()
    text = books("retry.initial-interval: 1s", "retry.policy: none")
    assert [code for code, _ in said(project.write("application.yaml", text).load(groups=["books"]))] == ["OCQ-126"]


@pytest.mark.parametrize("of_profile", ["application-test.yaml", "application.yaml"])
def test_a_setting_switched_off_by_a_profile_is_not_mentioned(project, of_profile):
    base, test = books("retry.initial-interval: 1s"), "opencqrs.event-handling.standard.retry.policy: none\n"
    if of_profile == "application.yaml":
        project.write(of_profile, f"{base}---\nopencqrs.config.on-profile: test\n{test}")
    else:
        project.write("application.yaml", base).write(of_profile, test)
    assert project.load(groups=["books"], profiles=["test"]).warnings == ()


def test_a_setting_switched_off_by_another_source_is_not_mentioned(project):
    project.write("application.yaml", books("retry.initial-interval: 1s"))
    overrides = ["event-handling.groups.books.retry.policy=none"]
    assert project.load(groups=["books"], overrides=overrides).warnings == ()


@pytest.mark.parametrize("idle", [IDLE_OF_GROUPS, IDLE_OF_JOBS])
def test_the_table_names_only_existing_settings(idle):
    leaves = idle.family.leaves
    for effect in idle.effects:
        assert effect.wanted.keys() <= set(leaves)
        assert all(any(leaf[: len(each)] == each for leaf in leaves) for each in effect.settings)


IDLE_IN_JOBS = [
    ("triggers: {zone: Europe/Berlin}", "triggers.zone", "triggers.cron is set"),
    ("triggers: {fixed-rate: 1h, zone: Europe/Berlin}", "triggers.zone", "triggers.cron is set"),
    ("triggers: {events: {ids: subject}}", "triggers.events.ids", "triggers.events.types is set"),
    ("triggers: {events: {types: [], ids: subject}}", "triggers.events.ids", "triggers.events.types is set"),
    (
        "triggers: {cron: 0 3 * * *, initial-delay: 1m}",
        "triggers.initial-delay",
        "triggers.startup, triggers.fixed-rate or triggers.fixed-delay is set",
    ),
    ("triggers: {startup: true, jitter: 1m}", "triggers.jitter", "triggers have a schedule"),
    ("misfire: catch-up", "misfire", "triggers have a schedule"),
    ("triggers: {cron: 0 3 * * *}\n    misfire-grace: 1m", "misfire-grace", "misfire is skip"),
    ("queue-size: 3", "queue-size", "overlap is queue"),
    ("overlap: queue\n    cancel-grace: 1m", "cancel-grace", "overlap is cancel"),
    ("retry: {policy: fixed, multiplier: 3}", "retry.multiplier", "retry.policy is exponential_backoff"),
]


@pytest.mark.parametrize(("settings", "name", "needed"), IDLE_IN_JOBS)
def test_a_setting_of_a_job_without_effect_is_warned_of(project, settings, name, needed):
    project.write("application.yaml", f"opencqrs:\n  jobs:\n   remind:\n    {settings}\n")
    assert said(project.load()) == [("OCQ-126", f"{name} of job remind has no effect unless {needed}")]


@pytest.mark.parametrize(
    "settings",
    [
        "triggers: {cron: 0 3 * * *, zone: Europe/Berlin, jitter: 1m}\n    misfire: skip\n    misfire-grace: 1m",
        "triggers: {startup: true, initial-delay: 1m}",
        "triggers: {fixed-delay: 1h, initial-delay: 1m, jitter: 1s}\n    misfire: catch-up",
        "triggers: {events: {types: [x], ids: subject}}",
        "triggers: {cron: '${REMIND_CRON:-}', zone: Europe/Berlin, jitter: 1m}",
        "overlap: queue\n    queue-size: 3",
        "overlap: cancel\n    cancel-grace: 1m",
        "retry: {multiplier: 3}",
    ],
)
def test_a_setting_of_a_job_that_applies_is_not_mentioned(project, settings):
    project.write("application.yaml", f"opencqrs:\n  jobs:\n   remind:\n    {settings}\n")
    assert project.load().warnings == ()


def test_a_schedule_of_the_standard_applies_to_each_job(project):
    text = "opencqrs.jobs:\n  standard: {triggers: {cron: 0 3 * * *}}\n  remind: {triggers: {zone: Europe/Berlin}}\n"
    assert project.write("application.yaml", text).load().warnings == ()
