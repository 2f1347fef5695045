"""Random settings over random sources in random spellings, against a model of a few lines.

The model knows ranks, not files: the highest source wins per setting, then group, then standard, then built-in; of a
choice and its reference the nearer level wins, on one level the reference; null is the built-in default.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opencqrs_py.config import EffectiveGroup, load

GROUPS = ("books", "Book-Catalog", "v1.2", "Rückgabe")
STANDARD = None
VALUES = {
    ("fetch", "subject"): [("/a", "/a"), ("/b", "/b")],
    ("fetch", "recursive"): [("false", False), ("on", True), ("NO", False)],
    ("fetch", "initial_position"): [("head", "head"), ("4711", "4711")],
    ("life_cycle", "auto_start"): [("off", False), ("yes", True)],
    ("life_cycle", "controller"): [
        ("leader-election", "leader_election"),
        ("ApplicationContext", "application_context"),
    ],
    ("life_cycle", "controller_registration"): [("mine", "mine")],
    ("life_cycle", "partitions"): [("2", 2), ("16", 16)],
    ("progress", "tracking"): [("jdbc", "sql"), ("IN_MEMORY", "in_memory")],
    ("progress", "tracker_ref"): [("mine", "mine"), ("other", "other")],
    ("sequence", "resolution"): [("perSubject", "per_subject"), ("no-sequence", "no_sequence")],
    ("sequence", "resolver_ref"): [("mine", "mine")],
    ("retry", "policy"): [("FIXED", "fixed"), ("none", "none")],
    ("retry", "back_off_ref"): [("mine", "mine")],
    ("retry", "initial_interval"): [("500ms", 0.5), ("PT10S", 10.0)],
    ("retry", "max_attempts"): [("3", 3), ("infinite", None)],
    ("retry", "multiplier"): [("2.5", 2.5), ("1", 1.0)],
    ("schedule", "interval"): [("PT1M", 60.0), ("1s", 1.0)],
    ("schedule", "cron"): [("0 3 * * *", "0 3 * * *"), ("30 2 * * MON-FRI", "30 2 * * MON-FRI")],
    ("batch", "ordering"): [("eventTime", "event-time"), ("event_id", "event-id")],
    ("batch", "ordering_ref"): [("mine", "mine")],
}
NULL = ("null", "null")
PAIRS = [
    (("progress", "tracking"), ("progress", "tracker_ref")),
    (("sequence", "resolution"), ("sequence", "resolver_ref")),
    (("life_cycle", "controller"), ("life_cycle", "controller_registration")),
    (("retry", "policy"), ("retry", "back_off_ref")),
    (("schedule", "interval"), ("schedule", "cron")),
    (("batch", "ordering"), ("batch", "ordering_ref")),
]


@dataclass(frozen=True)
class Said:
    """One setting in one source."""

    group: str | None
    leaf: tuple[str, str]
    text: str
    value: object
    spelling: int

    @property
    def what(self):
        return self.group, self.leaf


def spelled(name: str, spelling: int) -> str:
    """Return a spelling of a field name."""
    words = name.split("_")
    camel = words[0] + "".join(word.title() for word in words[1:])
    return ["-".join(words), name, camel, name.upper(), "".join(words)][spelling % 5]


def spelled_group(group: str, source: int) -> str:
    """Return the spelling that a source has for a group; it keeps to it."""
    return [group, group.upper(), group.replace("-", "_"), group.lower()][source % 4]


def dotted(said: Said, source: int) -> str:
    """Return a dotted key without the prefix."""
    level = ["standard"] if said.group is None else ["groups", spelled_group(said.group, source)]
    if said.spelling % 2 and said.group and "." not in said.group:
        level = [f"groups[{level[1]}]"]
    names = [spelled("event_handling", said.spelling), *level, *(spelled(part, said.spelling) for part in said.leaf)]
    return ".".join(names)


def nested(items: list[Said], source: int) -> dict:
    """Return nested mappings; one source spells each section in one way."""
    tree: dict = {}
    for said in items:
        names = ["event_handling", "standard"] if said.group is None else ["event_handling", "groups"]
        below = tree
        for name in [
            *(spelled(part, source) for part in names),
            *([spelled_group(said.group, source)] if said.group else []),
        ]:
            below = below.setdefault(name, {})
        section, leaf = (spelled(part, source) for part in said.leaf)
        below.setdefault(section, {})[leaf] = None if said.text == "null" else said.text
    return tree


def variable(said: Said) -> str:
    """Return the name of an environment variable, in one of the styles."""
    group = [] if said.group is None else [said.group.upper().replace("-", "_").replace(".", "_")]
    names = [
        "EVENT_HANDLING",
        "STANDARD" if said.group is None else "GROUPS",
        *group,
        *(part.upper() for part in said.leaf),
    ]
    match said.spelling % 3:
        case 0:
            return "__".join(["OPENCQRS", *names])
        case 1:
            return "_".join(["OPENCQRS", *(name.replace("_", "") for name in names)])
        case _:
            return "_".join(["OPENCQRS", *names])


def yaml_dotted(items, source):
    return "".join(f"opencqrs.{dotted(said, source)}: {said.text}\n" for said in items)


def yaml_nested(items, source):
    return json.dumps({"OpenCqrs": nested(items, source)}, ensure_ascii=False)


def properties(items, source):
    return "".join(f"opencqrs.{dotted(said, source)} = {said.text}\n" for said in items)


def dotenv(items, source):
    return "".join(f"{variable(said)}={said.text}\n" for said in items)


FILES = [
    ("application.yaml", yaml_dotted),
    ("application.properties", properties),
    ("config/application.yml", yaml_nested),
    ("application-p.yaml", yaml_nested),
    ("config/application-p.yaml", yaml_dotted),
    (".env", dotenv),
]
ENVIRONMENT, JSON, ARGUMENTS = range(len(FILES), len(FILES) + 3)


def origin_of(said: Said, source: int) -> str:
    """Return how the origin of a setting begins."""
    if source == ENVIRONMENT:
        return f"environment variable {variable(said)}"
    if source == JSON:
        return "environment variable OPENCQRS_APPLICATION_JSON"
    if source == ARGUMENTS:
        return f"argument --set {dotted(said, source)}"
    return f"{FILES[source][0]}:"


@st.composite
def sources(draw):
    """Draw the settings of each source; none has a setting twice."""
    one = st.builds(
        lambda group, leaf, which, spelling: Said(
            group, leaf, *[*VALUES[leaf], NULL][which % (len(VALUES[leaf]) + 1)], spelling
        ),
        st.sampled_from([STANDARD, *GROUPS]),
        st.sampled_from(sorted(VALUES)),
        st.integers(0, 5),
        st.integers(0, 30),
    )
    return [draw(st.lists(one, max_size=5, unique_by=lambda said: said.what)) for _ in range(ARGUMENTS + 1)]


@dataclass(frozen=True)
class Winner:
    """The level that sets a setting of a group: 0 is the group, 1 the standard, 2 none."""

    level: int = 2
    text: str = ""
    value: object = None
    origin: str = "built-in default"

    @property
    def is_given(self):
        return self.level < 2 and self.text != "null"


def winner(said_by, group, leaf):
    """Return what sets a value: the nearest level, and there the highest source."""
    for level, of in enumerate((group, STANDARD)):
        for source in reversed(range(len(said_by))):
            for said in said_by[source]:
                if said.what == (of, leaf):
                    return Winner(level, said.text, said.value, origin_of(said, source))
    return Winner()


def expected(said_by, group, leaf):
    """Return value and beginning of the origin by the model."""
    for choice, reference in PAIRS:
        by_choice, by_reference = (winner(said_by, group, each) for each in (choice, reference))
        is_nearer = by_choice.is_given and by_choice.level < by_reference.level
        if by_reference.is_given and leaf == (reference if is_nearer else choice):
            return None, "replaced by"
    won = winner(said_by, group, leaf)
    built_in = getattr(getattr(EffectiveGroup(group), leaf[0]), leaf[1])
    if won.level == 2:
        return built_in, won.origin
    if won.text == "null":
        return built_in, f"built-in default (reset by {won.origin}"
    return won.value, won.origin if won.level == 0 else f"standard ({won.origin}"


numbers = count()


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(said_by=sources())
def test_value_and_origin_of_every_setting_match_the_model(tmp_path_factory, said_by):
    folder = tmp_path_factory.mktemp(f"project{next(numbers)}")
    (folder / "config").mkdir()
    for source, (name, render) in enumerate(FILES):
        (folder / name).write_text(render(said_by[source], source), encoding="utf-8")
    environ = {variable(said): said.text for said in said_by[ENVIRONMENT]}
    environ["OPENCQRS_APPLICATION_JSON"] = json.dumps(nested(said_by[JSON], JSON))
    overrides = [f"{dotted(said, ARGUMENTS)}={said.text}" for said in said_by[ARGUMENTS]]
    configuration = load(folder, profiles=["p"], environ=environ, overrides=overrides, groups=GROUPS)
    for group in GROUPS:
        effective = configuration.group(group)
        for leaf in VALUES:
            value, origin = expected(said_by, group, leaf)
            assert getattr(getattr(effective, leaf[0]), leaf[1]) == value
            assert str(configuration.origin(f"event-handling.groups[{group}].{'.'.join(leaf)}")).startswith(origin)
    assert set(configuration.group_names) == set(GROUPS)
    assert [one for one in configuration.warnings if one.code != "OCQ-126"] == []  # settings at random may be idle


@pytest.mark.parametrize("source", range(ARGUMENTS + 1))
def test_each_source_of_the_model_has_an_effect(tmp_path, source):
    said = Said("Book-Catalog", ("fetch", "subject"), "/alive", "/alive", 1)
    said_by = [[said] if number == source else [] for number in range(ARGUMENTS + 1)]
    test_value_and_origin_of_every_setting_match_the_model.hypothesis.inner_test(Factory(tmp_path), said_by)


@dataclass(frozen=True)
class Factory:
    path: object

    def mktemp(self, _name):
        return self.path
