"""Messages about mistakes: all reported together, each with what, where and fix."""

import pickle
from dataclasses import asdict
from operator import attrgetter

import pytest

from opencqrs_py.config import Settings
from opencqrs_py.config.keys import kebab
from opencqrs_py.errors import ConfigurationErrors
from opencqrs_py.model.naming import listed


def test_all_errors_of_a_start_are_reported_together(project):
    project.yaml("""
        opencqrs:
          event-stor: {url: "sqlite:///events.db"}
          event-handling:
            standard:
              retry: {policy: expo, initial-interval: 2}
            groups:
              books: {fetch: {subject: books}}
    """)
    project.write("config/application.properties", "opencqrs.event-handling.groups.books.lifecycle.partitions=x")
    errors = project.errors(
        environ={"OPENCQRS__EVENT_HANDLING__GROUPS__BOOKS__FETCH__SUBJCT": "/x"}, overrides=["spark", "spark.mastr=x"]
    )
    assert [str(error) for error in errors] == [
        "[OCQ-110] the argument --set spark has no value\n"
        "  where: argument --set spark\n"
        "  fix:   write it like --set event-handling.groups.books.fetch.subject=/books",
        "[OCQ-103] there is no setting event-stor\n  where: application.yaml:3:3\n  fix:   did you mean event-store?",
        "[OCQ-103] there is no setting spark.mastr\n"
        "  where: argument --set spark.mastr\n"
        "  fix:   did you mean spark.master?",
        "[OCQ-104] the environment variable OPENCQRS__EVENT_HANDLING__GROUPS__BOOKS__FETCH__SUBJCT names no setting\n"
        "  where: environment variable OPENCQRS__EVENT_HANDLING__GROUPS__BOOKS__FETCH__SUBJCT\n"
        "  fix:   did you mean OPENCQRS__EVENT_HANDLING__GROUPS__BOOKS__FETCH__SUBJECT?",
        "[OCQ-112] event-handling.standard.retry.policy cannot be 'expo': there is no such choice\n"
        "  where: application.yaml:6:23\n"
        "  fix:   use one of none, fixed, exponential_backoff",
        "[OCQ-113] event-handling.standard.retry.initial-interval cannot be '2': the unit is missing\n"
        "  where: application.yaml:6:47\n"
        "  fix:   write 2s for seconds, 2ms for milliseconds, or PT2S in ISO-8601",
        "[OCQ-111] event-handling.groups.books.fetch.subject cannot be 'books': a subject starts with /\n"
        "  where: application.yaml:8:32\n"
        "  fix:   write /books",
        "[OCQ-111] event-handling.groups.books.life-cycle.partitions cannot be 'x': it is not a whole number\n"
        "  where: config/application.properties:1:59\n"
        "  fix:   write digits only, like 4",
    ]


def test_the_errors_survive_pickling(project):
    errors = ConfigurationErrors(project.errors(overrides=["a=1", "b=1"]))
    assert str(pickle.loads(pickle.dumps(errors))) == str(errors)


CRON = "write five fields like 0 3 * * * (each day at three), six with seconds first, or @hourly, @daily, @weekly"
ZONE = "write a name like Europe/Berlin, or UTC"


@pytest.mark.parametrize(
    ("key", "text", "code", "reason", "fix"),
    [
        (
            "retry.policy",
            "exponential_backof",
            112,
            "there is no such choice",
            "use one of none, fixed, exponential_backoff; nearest: exponential_backoff",
        ),
        ("progress.on-lost", "head", 112, "there is no such choice", "use one of refuse, initial"),
        ("processing.on-changed-handlers", "stop", 112, "there is no such choice", "use one of warn, refuse, ignore"),
        ("progress.tracking", "mongo", 112, "there is no such choice", "use one of in_memory, sql"),
        ("processing.engine", "''", 112, "there is no such choice", "use one of spark, thread"),
        ("fetch.recursive", "maybe", 111, "it is neither true nor false", "write true or false"),
        ("fetch.subject", "''", 111, "a subject starts with /", "write / for all subjects"),
        (
            "fetch.subject",
            "/books/",
            111,
            "a subject does not end with /, which would leave out the events of the subject itself",
            "write /books: it selects the subjects below it, too",
        ),
        (
            "fetch.subject",
            "//",
            111,
            "a subject does not end with /, which would leave out the events of the subject itself",
            "write /: it selects the subjects below it, too",
        ),
        ("life-cycle.partitions", "0", 114, "it is below 1", "write 1 or more"),
        ("life-cycle.partitions", "1025", 114, "it is above 1024", "write 1024 or less"),
        ("processing.batch-size", "0", 114, "it is below 1", "write 1 or more"),
        ("retry.multiplier", "0.5", 114, "it is below 1", "write 1 or more"),
        ("retry.multiplier", "1,5", 111, "it is not a number", "write digits, with a point if necessary, like 1.5"),
        ("retry.multiplier", ".inf", 111, "it is not a number", "write digits, with a point if necessary, like 1.5"),
        (
            "retry.multiplier",
            "inf",
            111,
            "it is not a finite number",
            "write digits, with a point if necessary, like 1.5",
        ),
        ("retry.jitter", "1.1", 114, "it is above 1", "write 1 or less"),
        ("retry.jitter", "-0.1", 114, "it is below 0", "write 0 or more"),
        ("retry.max-attempts", "-1", 114, "it is below 0", "write 0 or more, or infinite"),
        ("retry.max-attempts", "-2", 114, "it is below 0", "write 0 or more, or infinite"),
        ("retry.max-attempts", "many", 111, "it is not a whole number", "write digits only, like 4"),
        ("retry.max-interval", "infinite", 113, "it needs an end", "write it like 30s, 500ms or PT30S"),
        (
            "retry.max-interval",
            "P1M",
            113,
            "months and years have no fixed length",
            "write days (P30D), or put a T before minutes (PT1M)",
        ),
        (
            "retry.max-elapsed-time",
            "2",
            113,
            "the unit is missing",
            "write 2s for seconds, 2ms for milliseconds, or PT2S in ISO-8601",
        ),
        (
            "progress.tracker-ref",
            "''",
            111,
            "it names nothing",
            "write the name under which the provider is registered, or null for none",
        ),
        (
            "fetch.initial-position",
            "middle",
            111,
            "it is not a place in the store",
            "write tail (the oldest event), head (after the newest), a position, a time like 2024-05-31T12:00:00Z, or "
            "how long ago, like -P7D",
        ),
        (
            "fetch.initial-position",
            "-P1M",
            111,
            "months and years have no fixed length",
            "write days (P30D), or put a T before minutes (PT1M)",
        ),
        ("fetch.initial-position", "-P7", 111, "it is not an ISO-8601 duration", None),
        ("fetch.initial-position", "P7D", 111, "it is not a place in the store", None),
        ("life-cycle.lease.heartbeat", "50ms", 114, "it is below 100ms", "write 100ms or more"),
        ("processing.mode", "batch", 112, "there is no such choice", "use one of streaming, scheduled"),
        (
            "schedule.kind",
            "fixed-rat",
            112,
            "there is no such choice",
            "use one of fixed-delay, fixed-rate; nearest: fixed-rate",
        ),
        ("schedule.on-exhausted", "park", 112, "there is no such choice", "use one of block, skip"),
        ("schedule.interval", "9ms", 114, "it is below 10ms", "write 10ms or more"),
        ("schedule.expires-after", "0s", 114, "it is below 10ms", "write 10ms or more"),
        ("schedule.interval", "infinite", 113, "it needs an end", "write it like 30s, 500ms or PT30S"),
        ("schedule.cron", "'* *'", 111, "it is not a cron expression (wrong number of fields)", CRON),
        ("schedule.cron", "'61 * * * *'", 111, "it is not a cron expression (bad minute)", CRON),
        ("schedule.cron", "'0 0 31 2 *'", 111, "it is not a cron expression (bad day-of-month)", CRON),
        ("schedule.cron", "'0 0 0 1 1 ? 2030'", 111, "it is not a cron expression (wrong number of fields)", CRON),
        ("schedule.cron", "'@reboot'", 111, "it is not a cron expression (wrong number of fields)", CRON),
        ("schedule.cron", "''", 111, "it is not a cron expression (wrong number of fields)", CRON),
        ("schedule.time-zone", "Europe/Berlino", 111, "there is no such time zone", ZONE),
        ("schedule.time-zone", "Europe", 111, "there is no such time zone", ZONE),
        ("schedule.time-zone", "../UTC", 111, "there is no such time zone", ZONE),
        ("schedule.time-zone", "''", 111, "there is no such time zone", ZONE),
        ("schedule.retry.max-attempts", "0", 114, "it is below 1", "write 1 or more, or infinite"),
        ("schedule.retry.max-attempts", "many", 111, "it is not a whole number", "write digits only, like 4"),
        ("schedule.retry.max-interval", "infinite", 113, "it needs an end", "write it like 30s, 500ms or PT30S"),
        ("batch.mode", "fail-fast", 112, "there is no such choice", None),
        ("batch.size", "0", 114, "it is below 1", "write 1 or more"),
        ("batch.ordering", "position", 112, "there is no such choice", "use one of inserted, event-time, event-id"),
        ("batch.ordering-ref", "''", 111, "it names nothing", None),
        ("batch.fetch-size", "0", 114, "it is below 1", "write 1 or more"),
    ],
)
def test_a_refused_value_is_reported_with_reason_place_and_fix(project, key, text, code, reason, fix):
    error = project.yaml(f"opencqrs.event-handling.groups.books.{key}: {text}").error()
    shown = text.strip("'")
    assert error.code == f"OCQ-{code}"
    assert error.what == f"event-handling.groups.books.{key} cannot be {shown!r}: {reason}"
    assert error.where == f"application.yaml:1:{len(key) + 40}"
    if fix:
        assert error.fix == fix


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("retry.max-attempts", "infinite", None),
        ("retry.max-attempts", "∞", None),
        ("retry.max-attempts", "+3", 3),
        ("retry.max-elapsed-time", "unlimited", float("inf")),
        ("fetch.initial-position", "HEAD", "head"),
        ("fetch.initial-position", "4711", "4711"),
        ("fetch.initial-position", "-P7D", "-P7D"),
        ("fetch.initial-position", "-pt36h", "-PT36H"),
        ("fetch.initial-position", "2024-05-31T12:00:00Z", "2024-05-31T12:00:00Z"),
        ("fetch.initial-position", "2024-05-31 12:00:00+02:00", "2024-05-31 12:00:00+02:00"),
        ("progress.tracker-ref", "' mine '", "mine"),
        ("retry.multiplier", "2", 2.0),
        ("retry.jitter", "1e-1", 0.1),
        ("processing.mode", "Scheduled", "scheduled"),
        ("schedule.kind", "FIXED_RATE", "fixed-rate"),
        ("schedule.interval", "10ms", 0.01),
        ("schedule.cron", "' 0 3 * * MON-FRI '", "0 3 * * MON-FRI"),
        ("schedule.cron", "'*/15 0 3 ? * ?'", "*/15 0 3 ? * ?"),
        ("schedule.cron", "'@Daily'", "@Daily"),
        ("schedule.time-zone", "Europe/Berlin", "Europe/Berlin"),
        ("schedule.expires-after", "infinite", float("inf")),
        ("schedule.retry.max-attempts", "1", 1),
        ("schedule.retry.max-attempts", "infinite", None),
        ("batch.ordering", "eventTime", "event-time"),
    ],
)
def test_values_are_read_in_all_their_spellings(project, key, text, value):
    group = project.yaml(f"opencqrs.event-handling.groups.books.{key}: {text}").load().group("books")
    assert attrgetter(key.replace("-", "_"))(group) == value


EH = "event-handling"
SECTIONS = (
    "use one of batch, checkpointing, fetch, life-cycle, park, processing, progress, rebuild, retry, "
    "schedule and 1 more"
)
ROOTS = f"use one of {listed(sorted(map(kebab, Settings.model_fields)))}"


@pytest.mark.parametrize(
    ("yaml", "key", "column", "fix"),
    [
        ("{grups: {books: {}}}", f"{EH}.grups", 30, f"did you mean {EH}.groups?"),
        (
            "{groups: {books: {fetch: {subjct: /}}}}",
            f"{EH}.groups.books.fetch.subjct",
            55,
            f"did you mean {EH}.groups.books.fetch.subject?",
        ),
        (
            "{groups: {v1.2: {fetch: {subjct: /}}}}",
            f"{EH}.groups[v1.2].fetch.subjct",
            54,
            f"did you mean {EH}.groups[v1.2].fetch.subject?",
        ),
        (
            "{groups: {v1.2: {fetsch: {subject: /}}}}",
            f"{EH}.groups[v1.2].fetsch",
            46,
            f"did you mean {EH}.groups[v1.2].fetch?",
        ),
        (
            "{groups: {books.fetsch: {subject: /}}}",
            f"{EH}.groups.books.fetsch",
            39,
            f"did you mean {EH}.groups.books.fetch?",
        ),
        ("{groups: {books: {zzz: 1}}}", f"{EH}.groups.books.zzz", 47, SECTIONS),
        (
            "{standard: {fetch: {subject: {deep: 1}}}}",
            f"{EH}.standard.fetch.subject.deep",
            59,
            f"put nothing below {EH}.standard.fetch.subject",
        ),
        ("{}, profiles: {active: {first: a}}", "profiles.active.first", 53, "put nothing below profiles.active"),
        ("{}, '': 1", "", 33, ROOTS),
    ],
)
def test_an_unknown_key_is_an_error_at_the_key(project, yaml, key, column, fix):
    error = project.yaml(f"opencqrs: {{ event-handling: {yaml} }}").error()
    assert (error.what, error.where) == (f"there is no setting {key}", f"application.yaml:1:{column}")
    assert error.fix == fix


SINGLE = "is a single value, not a list or a section"
SECTION = "is a section, not a single value or a list"
LIST = "write a list of texts, or texts with commas between them"


@pytest.mark.parametrize(
    ("yaml", "what", "column", "fix"),
    [
        ("spark: {master: [a, b]}", f"spark.master {SINGLE}", 28, "write one value"),
        ("spark: {master: {}}", f"spark.master {SINGLE}", 28, "write one value"),
        (
            "spark: local",
            f"spark {SECTION}",
            19,
            "put one of its settings below it: master, conf, allow-unauthenticated, max-tasks-per-group, "
            "driver-handles",
        ),
        ("spark: {conf: 3}", f"spark.conf {SECTION}", 26, "put a name and its settings below it"),
        ("profiles: {active: {}}", "profiles.active is a list of single values", 31, LIST),
        ("profiles: {active: [[a]]}", "profiles.active is a list of single values", 31, LIST),
    ],
)
def test_a_value_of_the_wrong_shape_is_an_error_at_the_value(project, yaml, what, column, fix):
    error = project.yaml(f"opencqrs: {{{yaml}}}").error()
    assert (error.code, error.what, error.where) == ("OCQ-107", what, f"application.yaml:1:{column}")
    assert error.fix == fix


@pytest.mark.parametrize(
    ("yaml", "what", "fix"),
    [
        ("opencqr: {spark.master: x}", "there is no section opencqr", "did you mean opencqrs?"),
        ("open-cqs.spark.master: x", "there is no section open-cqs", "did you mean opencqrs?"),
        (
            "event-handling: {groups: {books: {}}}",
            "event-handling is outside of opencqrs",
            "put it below opencqrs, as opencqrs.event-handling",
        ),
        (
            "eventStore.url: x",
            "eventStore is outside of opencqrs",
            "put it below opencqrs, as opencqrs.event-store",
        ),
    ],
)
def test_a_missing_or_misspelt_prefix_is_reported(project, yaml, what, fix):
    error = project.yaml(yaml).error()
    assert (error.what, error.where, error.fix) == (what, "application.yaml:1:1", fix)


def test_the_users_own_keys_are_ignored(project):
    project.yaml("logging: {level: debug}\ndatabase: {url: x}\nspark: {x: [{y: 1}]}\nopen: {}")
    assert project.load().warnings == ()


@pytest.mark.parametrize("choice", ["error", "warn", "ignore", "WARN"])
def test_unknown_names_are_errors_warnings_or_ignored_as_configured(project, choice):
    project.yaml(f"opencqrs: {{config.unknown: {choice}, spark: {{mastr: x, mastar: y}}}}")
    given = {"environ": {"OPENCQRS_FOO": "1"}}
    found = project.errors(**given) if choice == "error" else project.load(**given).warnings
    assert [each.code for each in found] == ([] if choice == "ignore" else ["OCQ-103", "OCQ-103", "OCQ-104"])
    if choice == "warn":
        found = project.load(**given).warnings
        assert str(found[0]) == (
            "[OCQ-103] there is no setting spark.mastr\n"
            "  where: application.yaml:1:42\n"
            "  fix:   did you mean spark.master?"
        )
        assert asdict(found[0])["where"] == "application.yaml:1:42"


def test_an_invalid_choice_for_unknown_names_is_an_error(project):
    choice, unknown = sorted(project.yaml("opencqrs: {config.unknown: wran, mist: 1}").errors(), key=str, reverse=True)
    assert choice.fix == "use one of error, warn, ignore; nearest: warn"
    assert unknown.code == "OCQ-103"


def test_a_misspelt_section_gives_one_message_however_much_it_contains(project):
    error = project.yaml("opencqrs.event-handling.standard: {fetsch: {subject: /, recursive: true}}").error()
    assert error.what == "there is no setting event-handling.standard.fetsch"


def test_a_group_without_a_handler_is_warned_of_with_the_nearest_group(project):
    project.yaml("opencqrs.event-handling.groups:\n  boks: {fetch: {subject: /}}\n  zzz:\n  Backup: {}")
    warnings = project.load(groups=["books", "backup"]).warnings
    assert [str(warning) for warning in warnings] == [
        "[OCQ-117] event-handling.groups.boks is configured, but no handler belongs to that group\n"
        "  where: application.yaml:2:27\n"
        "  fix:   did you mean books?",
        "[OCQ-117] event-handling.groups.zzz is configured, but no handler belongs to that group\n"
        "  where: application.yaml:3:7\n"
        "  fix:   groups with handlers: books, backup",
    ]
    assert project.load().warnings == ()


def test_beside_a_group_without_a_name_no_nearest_group_is_suggested(project):
    (warning,) = project.yaml("opencqrs.event-handling.groups.books: {}").load(groups=[""]).warnings
    assert (warning.code, warning.fix) == ("OCQ-117", "groups with handlers: none")


_RETRY = "event-handling.groups.books.retry"
_STANDARD_RETRY = "event-handling.standard.retry"


@pytest.mark.parametrize(
    ("choice", "effect"),
    [
        ("skip", "has no effect: an event that fails is retried forever"),
        ("stop", "has no effect: an event that fails is retried forever"),
        ("park", "applies to permanent errors only: any other event that fails is retried forever"),
    ],
)
def test_on_exhausted_without_a_limit_of_attempts_is_warned_of(project, choice, effect):
    project.yaml(f"opencqrs.{_RETRY}:\n  initial-interval: 1s\n  on-exhausted: {choice}")
    assert [str(warning) for warning in project.load(groups=["books"]).warnings] == [
        f"[OCQ-121] {_RETRY}.on-exhausted: {choice} {effect}\n"
        "  where: application.yaml:3:17\n"
        f"  fix:   set {_RETRY}.max-attempts, such as 5; or to infinite, if events are to be retried forever"
    ]


def test_on_exhausted_of_the_standard_is_warned_of_once_for_all_groups_that_inherit_it(project):
    project.yaml(
        "opencqrs.event-handling:\n  standard.retry.on-exhausted: park\n  groups.limited.retry.max-attempts: 2"
    )
    (warning,) = project.load(groups=["limited", "books", "readers"]).warnings
    assert (warning.code, warning.where) == ("OCQ-121", "application.yaml:2:32")
    assert f"{_STANDARD_RETRY}.on-exhausted: park" in warning.what
    assert f"set {_STANDARD_RETRY}.max-attempts" in warning.fix
    assert project.load(groups=["limited"]).warnings == ()


@pytest.mark.parametrize(
    ("said", "warned"),
    [
        ({"retry.max-attempts": 3}, False),
        ({"retry.max-attempts": 0}, False),
        ({"retry.max-attempts": "infinite"}, False),  # it was configured explicitly
        ({"retry.max-elapsed-time": "1h"}, False),
        ({"retry.max-elapsed-time": "infinite"}, False),
        ({"retry.max-elapsed-time": "1h", "retry.policy": "fixed"}, True),  # which counts attempts only
        ({"retry.policy": "fixed"}, True),
        ({"retry.policy": "none"}, False),
        ({"retry.back-off-ref": "mine"}, False),
        ({"processing.mode": "scheduled"}, False),  # where retry.* does not apply
    ],
)
def test_on_exhausted_is_warned_of_only_where_nothing_limits_the_attempts(project, said, warned):
    defaults = {f"event-handling.groups.books.{key}": value for key, value in said.items()}
    overrides = [f"{_RETRY}.on-exhausted=stop"]
    warnings = project.load(groups=["books"], defaults=defaults, overrides=overrides).warnings
    assert [each.code for each in warnings if each.code != "OCQ-126"] == (["OCQ-121"] if warned else [])
    without = project.load(groups=["books"], defaults=defaults).warnings
    assert "OCQ-121" not in [each.code for each in without]


def test_on_exhausted_that_is_reset_is_not_warned_of(project):
    project.yaml(f"opencqrs:\n  {_STANDARD_RETRY}.on-exhausted: park\n  {_RETRY}.on-exhausted: null")
    assert project.load(groups=["books"]).warnings == ()


def test_groups_that_settings_cannot_distinguish_are_an_error(project):
    error = project.error(groups=["book-catalog", "bookCatalog", "backup"])
    assert (error.code, error.what) == (
        "OCQ-116",
        "the groups book-catalog and bookCatalog cannot be distinguished in settings",
    )


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("spark.master", "the argument --set spark.master has no value"),
        ("=x", "an argument --set has no key"),
        ("", "an argument --set has no key"),
        (":x", "an argument --set has no key"),
        ("event-store.api-token:CANARY", "the argument --set event-store.api-token has no value"),
        ("event-store.api-token:CANARY==", "the argument --set event-store.api-token has no value"),
        ("event-store.api-token CANARY", "the argument --set event-store.api-token has no value"),
        ("event-store: api-token: CANARY", "the argument --set event-store has no value"),
    ],
)
def test_an_argument_needs_key_and_value(project, override, what):
    error = project.error(overrides=[override])
    assert (error.code, error.what) == ("OCQ-110", what)
    assert "CANARY" not in str(error)


def test_an_argument_with_another_separator_is_refused_with_the_right_one(project):
    error = project.error(overrides=["http.token:CANARY=="])
    assert error.fix == "write = between key and value: --set http.token=…"


def test_a_user_defined_name_in_an_argument_can_contain_a_colon(project):
    overrides = ["spark.conf.a:b=c", "event-handling.groups.a:b.fetch.subject=/x"]
    settings = project.load(overrides=overrides).settings
    assert settings.spark.conf == {"a:b": "c"}
    assert settings.event_handling.groups["a:b"].fetch.subject == "/x"


def test_a_line_in_dotenv_that_is_not_a_variable_is_an_error(project):
    error = project.write(".env", "A=1\nno variable here\nOPENCQRS__SPARK__MASTER\n").error()
    assert (error.code, error.where, error.fix) == ("OCQ-101", ".env:2", "write it like NAME=value")


def test_an_unknown_variable_in_dotenv_is_an_error(project):
    error = project.write(".env", "# comment\n\nOTHER=1\nOPENCQRS_SPARK_MASTR=1\n").error()
    assert (error.code, error.where) == ("OCQ-104", ".env:4")


def test_a_project_folder_that_does_not_exist_is_an_error(project):
    missing = type(project)(project.folder / "missing")
    error = missing.error()
    assert (error.code, error.where) == ("OCQ-102", str(missing.folder))


@pytest.mark.parametrize("name", ["OPENCQR_X", "OPENCQR__NOTHING__LIKE__IT", "OPENCQR_EVENT_HANDLING", "OPENCQR_"])
def test_variables_that_only_share_the_prefix_are_ignored(project, name):
    assert project.load(environ={name: "x"}).warnings == ()


def test_a_list_given_both_whole_and_numbered_is_an_error(project):
    environ = {"OPENCQRS__CONFIG__IMPORT": "optional:a", "OPENCQRS__CONFIG__IMPORT__0": "optional:b"}
    error = project.error(environ=environ)
    assert (error.code, error.what) == ("OCQ-106", "config.import is set twice")


def test_a_list_item_that_is_not_a_single_value_is_an_error(project):
    error = project.yaml("opencqrs.profiles: {'active[0]': {}}").error()
    assert error.what == "profiles.active is a single value, not a list or a section"


def test_an_ambiguous_dotted_key_means_the_shorter_name(project):
    configuration = project.load(overrides=['event-handling.groups.books.retry={"policy": "fixed"}'])
    assert configuration.group_names == ("books",)
    assert configuration.group("books").retry.policy == "fixed"


def test_a_dotted_key_that_could_mean_two_existing_groups_is_an_error(project):
    project.yaml("opencqrs.event-handling.groups: {books.retry: }")
    assert project.load(groups=["books"]).warnings == ()
    error = project.error(groups=["books", "books.retry"])
    assert (error.code, error.where) == ("OCQ-105", "application.yaml:1:34")
    assert "event-handling.groups.books.retry or event-handling.groups[books.retry]" in error.what


def test_null_for_a_section_resets_the_values_of_lower_sources_in_it(project):
    project.yaml("opencqrs: {profiles.active: a, event-handling.standard.retry: {policy: fixed, max-attempts: 3}}")
    given = ["event-handling.standard.retry=null", "profiles=null"]
    configuration = project.load(overrides=given)
    assert configuration.group("any") == project.load(
        overrides=["event-handling.standard.retry.policy=null", "event-handling.standard.retry.max-attempts=null"]
    ).group("any")
    assert configuration.profiles == ()
    assert str(configuration.origin("event-handling.standard.retry.policy")) == (
        "built-in default (reset by argument --set event-handling.standard.retry)"
    )


@pytest.mark.parametrize(
    "override", ["opencqrs=null", "event-handling.groups.books=null", "event-handling.groups=null"]
)
def test_null_at_the_top_or_for_groups_changes_nothing(project, override):
    project.yaml("opencqrs.event-handling.groups.books.fetch.subject: /books")
    assert project.load(overrides=[override]).group("books").fetch.subject == "/books"


def test_a_misspelt_dotted_key_is_not_read_as_a_group_name(project):
    misspelt, deep = project.errors(
        overrides=["event-handling.groups.books.fetsch.subject=/x", "event-handling.groups.v1.2.zzz=1"]
    )
    assert misspelt.what == "there is no setting event-handling.groups.books.fetsch"
    assert misspelt.fix == "did you mean event-handling.groups.books.fetch?"
    assert deep.what.startswith("there is no setting event-handling.groups")


@pytest.mark.parametrize(
    ("override", "fix"),
    [
        ("event-handling.groups.books.partitions=3", "did you mean event-handling.groups.books.life-cycle.partitions?"),
        ("event-handling.groups.books.subject=/", "did you mean event-handling.groups.books.fetch.subject?"),
        ("event-handling.retry.policy=fixed", "did you mean event-handling.standard.retry?"),
        ("groups.books.fetch.subject=/", "did you mean event-handling.groups?"),
        ("master=local", "did you mean spark.master?"),
        ("processing.engine=thread", "did you mean event-handling.standard.processing?"),
        ("standard.retry.policy=none", "did you mean event-handling.standard?"),
    ],
)
def test_an_omitted_section_is_reported(project, override, fix):
    assert project.error(overrides=[override]).fix == fix


def test_a_section_omitted_from_a_variable_is_reported(project):
    error = project.error(environ={"OPENCQRS__EVENT_HANDLING__GROUPS__BOOKS__PARTITIONS": "3"})
    assert error.fix == "did you mean OPENCQRS__EVENT_HANDLING__GROUPS__BOOKS__LIFE_CYCLE__PARTITIONS?"


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"environ": {"OPENCQRS": "1"}}, "opencqrs is a section, not a single value or a list"),
        ({"environ": {"OPENCQRS": "{"}}, "opencqrs holds broken JSON"),
        ({"overrides": ["opencqrs=1"]}, "opencqrs is a section, not a single value or a list"),
    ],
)
def test_the_root_section_is_called_by_its_name(project, given, what):
    assert project.error(**given).what.startswith(what)


@pytest.mark.parametrize("key", ["event-store.url", "database.url"])
@pytest.mark.parametrize(
    ("url", "reason", "fix"),
    [
        ("postgres://me:secret@h/db", "its scheme is postgres", "write postgresql:// instead of postgres://"),
        (
            "postgresql+psycopg2://me:secret@h/db",
            "the driver psycopg2 is not supported",
            "write postgresql:// without a driver; psycopg is used",
        ),
        (
            "jdbc:postgresql://h/db?user=me&password=secret",
            "it is a JDBC URL",
            "write postgresql://host/database, with user:password@ in front of the host if it asks for them",
        ),
        ("events.db", "it is a path without a scheme", "write sqlite:///events.db"),
        (
            "C:\\data\\events.db",
            "it is a Windows path",
            "write sqlite:///C:/folder/events.db, or file:///C:/folder for files of events",
        ),
    ],
)
def test_a_url_from_elsewhere_is_refused_with_the_right_form(project, key, url, reason, fix):
    error = project.error(overrides=[f"{key}={url}"])
    assert (error.code, error.what, error.fix) == ("OCQ-111", f"{key} cannot be used: {reason}", fix)
