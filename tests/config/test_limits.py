"""What is too large, nested too deeply or refers to itself in a long chain is refused at once, in every format."""

from __future__ import annotations

import json
import os

import pytest

from opencqrs_py.errors import ConfigurationError

SECONDS = 15.0  # of the processor, measured too; before, these took minutes or ended in RecursionError


@pytest.fixture(autouse=True)
def _at_once():
    before = os.times()
    yield
    after = os.times()
    assert after.user + after.system - before.user - before.system < SECONDS


BOMB = "a0: &a0 {k: v}\n" + "".join(f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}\n" for n in range(1, 25))
MERGED = "a0: &a0 {k: v}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 25))
LISTS = "a0: &a0 [" + "x, " * 10_000 + "x]\nb: {" + ", ".join(f"k{n}: *a0" for n in range(10_000)) + "}"
CHAIN = "a0: &a0 {k: v}\n" + "".join(f"a{n}: &a{n} {{x: *a{n - 1}}}\n" for n in range(1, 110))
MERGE_CHAIN = "a0: &a0 {k: v}\n" + "".join(f"a{n}: &a{n} {{<<: *a{n - 1}}}\n" for n in range(1, 150))
LEVELS = [" " * n + "a:" for n in range(1_000)]


@pytest.mark.parametrize(
    ("name", "text", "where", "what"),
    [
        ("application.yaml", BOMB, ":3:5", "it holds more than 20,000 keys and values"),
        ("application.yml", MERGED, ":1:5", "it holds more than 20,000 keys and values"),
        ("application.yaml", LISTS, ":2:4", "it holds more than 20,000 keys and values"),
        ("application.yaml", CHAIN, ":1:10", "a key has more than 100 levels: a99.x.x"),
        ("application.yaml", MERGE_CHAIN, ":1:5", "more than 100 sections merge each other with <<"),
        ("application.yaml", "a: " + "[" * 100_000, ":1:103", "it is nested deeper than 100 levels"),
        ("application.yaml", "a:\n" + "- " * 100_000, ":2:199", "it is nested deeper than 100 levels"),
        ("application.yaml", "x: 1\n" + "\n".join(LEVELS), ":102:101", "it is nested deeper than 100 levels"),
        ("application.yaml", "{a: " * 100_000 + "}" * 100_000, ":1:401", "it is nested deeper than 100 levels"),
        ("application.yaml", f"{'a.' * 400}b: 1", ":1:1", "a key has more than 100 levels: a.a.a"),
        ("application.toml", "x = 1\na = " + "[" * 100_000, ":2", "it is nested deeper than 100 levels"),
        ("application.toml", "x = 1\na = " + "{b = " * 150 + "1" + "}" * 150, ":2:1", "a key has more than 100 levels"),
        ("application.toml", f"x = 1\n{'a.' * 2_000}b = 1", ":2:1", "a key has more than 100 levels: a.a.a"),
        ("application.toml", f"x = 1\n[{'a.' * 2_000}b]\nc = 1", ":2:2", "a key has more than 100 levels: a.a.a"),
        ("application.toml", f"x = 1\na = {'9' * 5_000}", ":2", "a number has too many digits"),
        ("application.properties", f"x=1\n{'a.' * 100_000}b=1", ":2:1", "a key has more than 100 levels: a.a.a"),
        (
            "application.properties",
            f"x=1\nopencqrs.event-handling.groups.{'a.' * 10_000}b=1",
            ":2:1",
            "a key has more than 100 levels: opencqrs.event-handling",
        ),
        ("application.properties", f"x=1\n{'.' * 100_000}b=1", ":2:1", "a key has more than 100 levels"),
        (".env", f"X=1\nOPENCQRS_EVENT_HANDLING_GROUPS_{'A_' * 10_000}B=1", ":2", "a key has more than 100 levels"),
        ("application.yaml", "#" * (4 * 1024**2 + 1), "", "the file is larger than 4 MiB"),
    ],
)
def test_a_file_that_is_too_large_or_too_deep_is_named_with_its_line(project, name, text, where, what):
    error = project.write(name, text).error()
    assert error.where == f"{name}{where}"
    assert error.what.startswith(what)
    assert len(str(error)) < 500


@pytest.mark.parametrize(("text", "where"), [("{} = 1", ":2:1"), ("[{}]\nb = 1", ":2:2")])
def test_a_key_too_deep_for_python_is_refused_at_the_key(project, monkeypatch, text, where):
    def refuse(*_: object, **__: object) -> None:
        raise RecursionError  # as newer ones do from 1,000 levels on

    monkeypatch.setattr("tomllib.loads", refuse)
    error = project.write("application.toml", "x = 1\n" + text.format("a." * 2_000 + "b")).error()
    assert error.where == f"application.toml{where}"
    assert error.what.startswith("a key has more than 100 levels: a.a.a")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"a": ' * 100_000 + "1" + "}" * 100_000, "it is nested too deeply"),
        ('{"a": ' * 150 + "1" + "}" * 150, "a key has more than 100 levels: a.a.a"),
        ("[" * 100_000, "it is nested too deeply"),
    ],
)
@pytest.mark.parametrize(
    ("name", "key"), [("OPENCQRS_APPLICATION_JSON", ""), ("OPENCQRS__EVENT_HANDLING", "event-handling.")]
)
def test_json_too_deep_in_a_variable_is_reported_with_the_variable(project, name, key, text, what):
    if key and text.startswith("["):
        return
    error = project.error(environ={name: text})
    assert error.where == f"environment variable {name}"
    assert what in error.what or (key and error.what == "there is no setting event-handling.a")


def test_defaults_in_code_that_contain_themselves_are_refused(project):
    defaults: dict[str, object] = {}
    defaults["a"] = defaults
    with pytest.raises(ConfigurationError, match="a key has more than 100 levels"):
        project.load(defaults=defaults)


def test_many_continued_lines_in_properties_are_read_quickly(project):
    text = "opencqrs.spark.master=" + "a\\\n" * 200_000 + "b"
    assert project.write("application.properties", text).load().settings.spark.master == "a" * 200_000 + "b"


def test_a_file_with_many_settings_is_read(project):
    groups = "".join(f"\n  g{n}: {{fetch.subject: /{n}, retry.max-attempts: {n}}}" for n in range(1_000))
    assert len(project.yaml(f"opencqrs.event-handling.groups:{groups}").load().group_names) == 1_000


def chain_of(length: int) -> str:
    links = "".join(f"k{n}: ${{k{n + 1}}}\n" for n in range(length))
    return f"{links}k{length}: end\nopencqrs.spark.master: ${{k0}}"


def test_a_chain_of_placeholders_can_have_fifty_links(project):
    assert project.yaml(chain_of(49)).load().settings.spark.master == "end"
    error = project.yaml(chain_of(5_000)).error()
    assert (error.code, error.where) == ("OCQ-108", "application.yaml:5002:24")
    assert error.what == ("spark.master cannot be resolved: more than 50 placeholders refer to each other in a chain")


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("${" * 5_000 + "a" + "}" * 5_000, "more than 50 placeholders refer to each other in a chain"),
        ("${x:" * 5_000 + "a" + "}" * 5_000, "more than 50 placeholders refer to each other in a chain"),
        ("${" * 100_000, "a placeholder that begins with ${ is not closed by }"),
    ],
)
def test_placeholders_that_are_nested_too_deeply_are_refused(project, value, what):
    error = project.yaml(f'opencqrs.spark.master: "{value}"').error()
    assert (error.code, error.where) == ("OCQ-108", "application.yaml:1:24")
    assert error.what == f"spark.master cannot be resolved: {what}"


@pytest.mark.parametrize(
    ("end", "what"),
    [
        ("", "more than 20,000 placeholders have to be replaced"),
        ("x" * 1_000, "it expands to more than 1,048,576 characters"),
    ],
)
def test_placeholders_that_multiply_are_refused(project, end, what):
    links = "".join(f"k{n}: '{f'${{k{n + 1}}}' * 10}'\n" for n in range(10))
    users = "".join(f"\n  c{n}: ${{k0}}" for n in range(100))
    errors = project.yaml(f"{links}k10: '{end}'\nopencqrs.spark.conf:{users}").errors()
    assert errors[0].where == "application.yaml:13:7"
    assert errors[0].what == f"spark.conf.c0 cannot be resolved: {what}"


@pytest.mark.parametrize("name", ["application.yaml", "application.properties", "application.toml"])
def test_thousands_of_unknown_keys_are_reported_quickly(project, name):
    sign, quote = (": ", "") if name.endswith("yaml") else ("=", '"')
    lines = "\n".join(f"opencqrs.evnt-handling.grops.g{n}.ftch.sbject{sign}{quote}/a{quote}" for n in range(5_000))
    errors = project.write(name, lines).errors()
    assert len(errors) == (1 if name.endswith("toml") else 100)  # the line of such a key is not known
    assert errors[0].where.startswith(name)


def test_thousands_of_unknown_keys_in_json_are_reported_quickly(project):
    text = json.dumps({f"evnt-handling.grops.g{n}.ftch.sbject": "/a" for n in range(5_000)})
    assert project.errors(environ={"OPENCQRS_APPLICATION_JSON": text})[0].code == "OCQ-103"


@pytest.mark.parametrize(
    ("groups", "name"),
    [(500, "OPENCQRS_EVENTHANDLING_GROUPS_G{}_FETCH_SUBJCT"), (0, f"OPENCQRS_{'A_' * 80}{{}}_SUBJCT")],
)
def test_hundreds_of_misspelled_variables_are_reported_quickly(project, groups, name):
    project.yaml(
        "opencqrs.event-handling.groups:" + "".join(f"\n  g{n}: {{fetch.subject: /{n}}}" for n in range(groups))
    )
    errors = project.errors(environ={name.format(number): "/x" for number in range(120)})
    assert len(errors) == 100
    if groups:
        assert errors[7].fix == "did you mean OPENCQRS__EVENT_HANDLING__GROUPS__G7__FETCH__SUBJECT?"
