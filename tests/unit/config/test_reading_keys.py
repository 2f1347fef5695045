"""The possible meanings of keys, and suggestions for unknown ones."""

import pytest

from opencqrs_py.config.entries import Entry, Origin, OriginKind
from opencqrs_py.config.keys import (
    FreeNames,
    SettingKind,
    Spelling,
    index_of,
    kebab,
    spellings_of_variable,
    split_key,
    variable_name,
)
from opencqrs_py.config.mistakes import report_unknown
from opencqrs_py.config.problems import Findings
from opencqrs_py.config.settings import Settings
from opencqrs_py.model.naming import listed

INDEX = index_of(Settings)
GROUPS = ("event_handling", "groups")


def key(*written):
    return Spelling.of([split_key(each) for each in written])


@pytest.mark.parametrize(
    ("written", "paths"),
    [
        (["spark.master"], [("spark", "master")]),
        (["spark", "master"], [("spark", "master")]),
        (["event-handling", "groups.a.b", "fetch"], [(*GROUPS, "a.b", "fetch")]),
        (["event-handling.groups.a.fetch.subject"], [(*GROUPS, "a", "fetch", "subject"), (*GROUPS, "a.fetch.subject")]),
        (["event-handling", "groups", "a.fetch"], [(*GROUPS, "a", "fetch"), (*GROUPS, "a.fetch")]),
        (["event-handling", "groups", "a", "fetch"], [(*GROUPS, "a", "fetch")]),
        (["event-handling", "groups", "[a.fetch]"], [(*GROUPS, "a.fetch")]),
        (["spark", "conf", "a.b", "c"], [("spark", "conf", "a.b.c")]),
        (["profiles.active[0]"], [("profiles", "active")]),
        (["profiles", "active", "0"], [("profiles", "active")]),
        (["profiles", "active", "0.1"], []),
        (["profiles", "active", "first"], []),
        (["spark.master.deep"], []),
        (["nothing"], []),
        ([], [()]),
    ],
)
def test_a_dotted_key_has_all_its_possible_meanings(written, paths):
    assert [reading.path for reading in INDEX.meanings(key(*written), FreeNames())] == paths


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("OPENCQRS__A_B__C", [("A_B", "C"), ("A", "B", "C")]),
        ("OPENCQRS_A_B", [("A", "B")]),
        ("OPENCQRS___A___B__", [("A", "B"), ("A", "B")]),
        ("OPENCQRS", [()]),
        ("OPENCQRS_", [()]),
        ("opencqrs.a-b.c", [("a-b", "c")]),
    ],
)
def test_a_variable_is_split_at_two_underscores_then_at_one(name, keys):
    assert [spelling.pieces for spelling in spellings_of_variable(name)] == keys


def test_a_setting_has_a_recommended_variable():
    assert variable_name((*GROUPS, "v1.2 Ä", "life_cycle", "auto_start")) == (
        "OPENCQRS__EVENT_HANDLING__GROUPS__V1_2__LIFE_CYCLE__AUTO_START"
    )


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (("config", "import_"), "config.import"),
        ((*GROUPS, "v1.2", "life_cycle"), "event-handling.groups[v1.2].life-cycle"),
        ((*GROUPS, "Book_Catalog"), "event-handling.groups.Book_Catalog"),
        (("spark", "conf", "a.b"), "spark.conf.a.b"),
        ((), ""),
    ],
)
def test_paths_are_shown_as_dotted_keys_that_can_be_read_back(path, shown):
    assert INDEX.display(path) == shown
    assert INDEX.path_of(shown or "opencqrs", FreeNames()) == path


def test_a_key_prefers_the_name_that_is_in_use():
    names = FreeNames()
    assert INDEX.path_of("event-handling.groups.a.fetch", names) == (*GROUPS, "a", "fetch")
    names.add(GROUPS, "A.Fetch")
    assert INDEX.path_of("event-handling.groups.a.fetch", names) == (*GROUPS, "A.Fetch")
    assert INDEX.path_of("nothing", names) is None


TYPES, CONF = ("events", "types"), ("spark", "conf")
TIME_ZONE = "spark.sql.session.timeZone"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (f"OPENCQRS__SPARK__CONF__{TIME_ZONE}", (*CONF, TIME_ZONE)),
        (f"OPENCQRS_SPARK_CONF_{TIME_ZONE}", (*CONF, TIME_ZONE)),
        ("OPENCQRS__SPARK__CONF__spark_sql_session_timeZone", (*CONF, TIME_ZONE)),
        ("OPENCQRS_SPARK_CONF_spark_sql_session_timeZone", (*CONF, TIME_ZONE)),
        ("opencqrs__events__types__com.acme.OrderPlaced", (*TYPES, "com.acme.OrderPlaced")),
        ("OPENCQRS__EVENTS__TYPES__shop.order-placed_again.v1", (*TYPES, "shop.order-placed_again.v1")),
        ("OPENCQRS_EVENTS_TYPES_shop.order-placed_again.v1", (*TYPES, "shop.order-placed_again.v1")),
        ("opencqrs__spark__conf__spark_ui_enabled", (*CONF, "spark.ui.enabled")),
        ("OPENCQRS__SPARK__CONF__SPARK_UI_ENABLED", (*CONF, "spark.ui.enabled")),
        ("OPENCQRS__SPARK__CONF__SPARK.UI.ENABLED", (*CONF, "spark.ui.enabled")),
        ("OPENCQRS_SPARK_CONF_SPARK_SQL_SESSION_TIMEZONE", (*CONF, "spark.sql.session.timezone")),
    ],
)
def test_a_variable_keeps_the_case_of_an_event_type_or_spark_option_unless_all_is_upper_case(name, path):
    assert meant_by(name, FreeNames()) == [path]


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("OPENCQRS__SPARK__CONF__SPARK_SQL_SESSION_TIMEZONE", [TIME_ZONE], [TIME_ZONE]),
        ("OPENCQRS_SPARK_CONF_SPARK_SQL_SESSION_TIMEZONE", [TIME_ZONE], [TIME_ZONE]),
        ("OPENCQRS__SPARK__CONF__A_B_C", ["a.b-C", "a.bC"], ["a.b-C", "a.bC"]),
        ("OPENCQRS__SPARK__CONF__a_b_C", ["a.b-C", "a.b-c"], ["a.b-C"]),
        ("OPENCQRS__SPARK__CONF__a.b-C", ["a.b-C", "a.b_C"], ["a.b-C"]),
        ("OPENCQRS__SPARK__CONF__a.bC", ["a.b-C", "a.bc"], ["a.bC"]),
        ("OPENCQRS__SPARK__CONF__a_bc", ["a.bC"], ["a.bc"]),
    ],
)
def test_a_variable_matches_a_known_name_with_the_same_letters(name, known, meant):
    names = FreeNames()
    for each in known:
        names.add(CONF, each, exact=True)
    assert meant_by(name, names) == [(*CONF, each) for each in meant]


def meant_by(name, names):
    found = (INDEX.meanings(spelling, names) for spelling in spellings_of_variable(name))
    return next([each.path for each in meanings] for meanings in found if meanings)


@pytest.mark.parametrize("path", [("nothing",), ("spark", "master", "deep"), ("profiles", "active", "0")])
def test_a_path_that_does_not_exist_is_a_key_error(path):
    with pytest.raises(KeyError):
        INDEX.at(path)
    with pytest.raises(KeyError):
        INDEX.display((*path, "deeper"))


def test_a_path_leads_to_its_setting():
    assert INDEX.at(()) is INDEX.root
    assert INDEX.at(("spark", "conf", "any")).kind is SettingKind.VALUE
    assert INDEX.at((*GROUPS, "any", "retry", "max_attempts")).fact.none == "infinite"
    assert INDEX.at(("spark", "master")).default == "local[*]"


ROOTS = f"use one of {listed(sorted(map(kebab, Settings.model_fields)))}"
SECTIONS = (
    "use one of batch, checkpointing, fetch, life-cycle, park, processing, progress, rebuild, retry, "
    "schedule and 1 more"
)


@pytest.mark.parametrize(
    ("written", "key", "place", "fix"),
    [
        (["zzz"], "zzz", 0, ROOTS),
        (
            ["spark.zzz.a"],
            "spark.zzz",
            0,
            "use one of allow-unauthenticated, conf, driver-handles, master, max-tasks-per-group",
        ),
        (["spark", "master", "a", "b"], "spark.master.a", 2, "put nothing below spark.master"),
        (["event-handling.groups.a.z"], "event-handling.groups.a.z", 0, SECTIONS),
        (["event-handling", "groups", "a.b", "z"], "event-handling.groups.a.b", 2, SECTIONS),
        (["sparc.mastr"], "sparc", 0, "did you mean spark?"),
        (["spark", "mastr"], "spark.mastr", 1, "did you mean spark.master?"),
        (
            ["event-handling.groups.a.fetsch.subject"],
            "event-handling.groups.a.fetsch",
            0,
            "did you mean event-handling.groups.a.fetch?",
        ),
        (
            ["event-handling", "groups", "a.b", "fetch", "subjekt"],
            "event-handling.groups[a.b].fetch.subjekt",
            4,
            "did you mean event-handling.groups[a.b].fetch.subject?",
        ),
        (["profile.active[0]"], "profile", 0, "did you mean profiles?"),
        (
            ["event-handling.standard.policy"],
            "event-handling.standard.policy",
            0,
            "did you mean event-handling.standard.retry.policy?",
        ),
    ],
)
def test_an_unknown_key_is_reported_where_it_goes_wrong_with_a_suggestion(written, key, place, fix):
    origins = tuple(Origin(OriginKind.ARGUMENT, str(number)) for number in range(len(written)))
    entry, findings = Entry(tuple(written), "x", origins[-1], origins), Findings()
    report_unknown(entry, [Spelling.of([split_key(each) for each in written])], INDEX, FreeNames(), findings)
    (error,) = findings.unknown.values()
    assert (error.what, error.where, error.fix) == (f"there is no setting {key}", f"argument {place}", fix)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("OPENCQRS_EVENTHANDLING_GROUPS_BOOK_CATALOG_FETCH_SUBJCT", "GROUPS__BOOK_CATALOG__FETCH__SUBJECT"),
        ("OPENCQRS__EVENT_HANDLIN__GROUPS__BOOK_CATALOG__FETCH__SUBJECT", "GROUPS__BOOK_CATALOG__FETCH__SUBJECT"),
        ("OPENCQRS_EVENT_HANDLING_STANDARD_RETRY_MAXATTEMPT", "STANDARD__RETRY__MAX_ATTEMPTS"),
    ],
)
def test_a_misspelt_variable_gets_the_most_similar_setting_as_a_suggestion(name, meant):
    entry, findings = Entry((name,), "x", Origin(OriginKind.VARIABLE, name)), Findings()
    report_unknown(entry, list(spellings_of_variable(name)), INDEX, FreeNames(), findings)
    (error,) = findings.unknown.values()
    assert error.fix == f"did you mean OPENCQRS__EVENT_HANDLING__{meant}?"
