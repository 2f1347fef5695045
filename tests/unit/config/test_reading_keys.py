"""What keys can mean, where they go wrong, and what they were meant to be."""

import pytest

from opencqrs_py.config.addressing import path_of
from opencqrs_py.config.free_names import FreeNamesInUse
from opencqrs_py.config.guessing import DeadEnd, best_guess, dead_end
from opencqrs_py.config.matching import Dialect, readings
from opencqrs_py.config.names import kebab, split_key
from opencqrs_py.config.settings import Settings
from opencqrs_py.config.sources.variables import keys_of_variable, variable_name
from opencqrs_py.config.tree import Leaf, display, node_at, steps, tree_of

ROOT = tree_of(Settings)
GROUPS = ("event_handling", "groups")


def key(*written):
    return tuple(split_key(each) for each in written)


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
def test_a_dotted_key_means_every_setting_that_it_can(written, paths):
    assert [reading.path for reading in readings(ROOT, key(*written), Dialect.DOTTED)] == paths


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("OPENCQRS__A_B__C", [(("A_B",), ("C",)), (("A", "B", "C"),)]),
        ("OPENCQRS_A_B", [(("A", "B"),)]),
        ("OPENCQRS___A___B__", [(("A",), ("B",)), (("A", "B"),)]),
        ("OPENCQRS", [()]),
        ("OPENCQRS_", [()]),
        ("opencqrs.a-b.c", [(("a-b", "c"),)]),
    ],
)
def test_a_variable_is_split_at_two_underscores_then_at_one(name, keys):
    assert [split for split, _ in keys_of_variable(name)] == keys


def test_the_recommended_variable_of_a_setting():
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
    assert display(ROOT, path) == shown
    assert path_of(shown or "opencqrs", ROOT, FreeNamesInUse()) == path


def test_a_key_prefers_the_name_that_is_in_use():
    names = FreeNamesInUse()
    assert path_of("event-handling.groups.a.fetch", ROOT, names) == (*GROUPS, "a", "fetch")
    names.add(GROUPS, "A.Fetch")
    assert path_of("event-handling.groups.a.fetch", ROOT, names) == (*GROUPS, "A.Fetch")
    assert path_of("nothing", ROOT, names) is None


@pytest.mark.parametrize("path", [("nothing",), ("spark", "master", "deep"), ("profiles", "active", "0")])
def test_a_path_that_does_not_exist_is_a_key_error(path):
    with pytest.raises(KeyError):
        node_at(ROOT, path)
    with pytest.raises(KeyError):
        list(steps(ROOT, (*path, "deeper")))


def test_the_node_of_a_path():
    assert node_at(ROOT, ()) is ROOT
    assert isinstance(node_at(ROOT, ("spark", "conf", "any")), Leaf)


@pytest.mark.parametrize(
    ("written", "end"),
    [
        (["zzz"], DeadEnd((("zzz",),), (), tuple(sorted(map(kebab, Settings.model_fields))))),
        (["spark.zzz.a"], DeadEnd((("zzz", "a"),), ("spark",), ("allow-unauthenticated", "conf", "master"))),
        (["spark", "master", "a", "b"], DeadEnd((("a",), ("b",)), ("spark", "master"))),
        (
            ["event-handling.groups.a.z"],
            DeadEnd((("z",),), (*GROUPS, "a"), ("fetch", "life-cycle", "processing", "progress", "retry", "sequence")),
        ),
    ],
)
def test_where_a_key_goes_wrong(written, end):
    assert dead_end(ROOT, key(*written)) == end


@pytest.mark.parametrize(
    ("written", "path", "wrong"),
    [
        (["sparc.mastr"], ("spark", "master"), 1),
        (["spark.mastr"], ("spark", "master"), 2),
        (["event-handling.groups.a.fetsch.subject"], (*GROUPS, "a", "fetch", "subject"), 4),
        (["event-handling", "groups", "a.b", "fetch", "subjekt"], (*GROUPS, "a.b", "fetch", "subject"), 5),
        (["profile.active[0]"], ("profiles", "active"), 1),
        (["spark", "master"], ("spark", "master"), 0),
        (["profiles.activ.first"], None, 0),
        (["spark.master.deep"], None, 0),
        (["xyz"], None, 0),
        (["event-handling.standard.policy"], ("event_handling", "standard", "retry", "policy"), 3),
        (["event-handling.standard.policy.deep"], None, 0),
    ],
)
def test_what_a_misspelt_key_was_meant_to_be(written, path, wrong):
    guess = best_guess(ROOT, key(*written), Dialect.DOTTED, frozenset())
    assert (guess.path, guess.wrong) == (path, wrong) if path else guess is None
