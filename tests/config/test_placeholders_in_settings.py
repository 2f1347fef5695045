from uuid import UUID

import pytest


@pytest.mark.parametrize(
    ("text", "given", "master"),
    [
        ("${host}", {"environ": {"host": "v"}}, "v"),
        ("${HOST_NAME}", {"environ": {"HOST_NAME": "v"}}, "v"),
        ("${host.name}", {"environ": {"HOST_NAME": "v"}}, "v"),
        ("${host-name}", {"environ": {"HOSTNAME": "v"}}, "v"),
        ("${library.host}", {}, "own"),
        ("${library.full-name}", {}, "own name"),
        ("${library.fullName}", {}, "own name"),
        ("${library.host}", {"environ": {"LIBRARY_HOST": "v"}}, "v"),
        ("${library.list}", {}, "a,b"),
        ("${library.null:default}", {}, "default"),
        ("${library.section:default}", {}, "default"),
        ("${opencqrs.event-handling.groups.books.fetch.subject}", {}, "/books"),
        ("${opencqrs.eventHandling.groups.BOOKS.fetch.subject}", {}, "/books"),
        ("${opencqrs.event-store.url}", {"overrides": ["event-store.url=sqlite:///x"]}, "sqlite:///x"),
        ("${opencqrs.event-store.url:unset}", {}, "unset"),
        ("${opencqrs.no.such:unset}", {}, "unset"),
        ("${from.dotenv}", {}, "dotenv"),
        ("${FROM_DOTENV}", {"environ": {"FROM_DOTENV": "v"}}, "v"),
        ("${opencqrs.spark.conf.x}", {}, "own"),
        ("a${nothing:${host:b}}c", {}, "abc"),
        (r"\${host}", {}, "${host}"),
    ],
)
def test_placeholders_are_resolved_against_all_sources(project, text, given, master):
    project.write(".env", "FROM_DOTENV=dotenv").yaml(f"""
        library: {{host: own, full_name: own name, list: [a, ~, b], null: ~, section: {{}}}}
        opencqrs:
          event-handling.groups.books.fetch.subject: /books
          spark: {{master: '{text}', conf: {{x: "${{library.host}}"}}}}
    """)
    assert project.load(**given).settings.spark.master == master


def test_placeholders_are_resolved_in_lists_and_in_comma_separated_values(project):
    project.yaml("opencqrs.profiles.active: ['${A:a}', b]")
    assert project.load().settings.profiles.active == ["a", "b"]
    settings = project.load(environ={"OPENCQRS__PROFILES__ACTIVE": "${BOTH}", "BOTH": "c, d"}).settings
    assert settings.profiles.active == ["c", "d"]


def test_a_random_id_is_a_uuid(project):
    configuration = project.yaml("opencqrs.spark.conf: {id: '${random.uuid}'}").load()
    assert UUID(configuration.settings.spark.conf["id"]).version == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${nothing}", "there is no value for ${nothing}"),
        ("${opencqrs.spark.master}", "${opencqrs.spark.master} refers to itself"),
        ("${a", "is not closed"),
    ],
)
def test_a_placeholder_that_cannot_be_resolved_is_an_error_with_its_place(project, text, said):
    error = project.yaml(f"opencqrs.spark.master: '{text}'").error()
    assert (error.code, error.where) == ("OCQ-108", "application.yaml:1:24")
    assert said in error.what
    assert error.what.startswith("spark.master cannot be resolved: ")


def test_an_overridden_value_need_not_be_resolvable(project):
    project.yaml("opencqrs.spark.master: '${nothing}'")
    assert project.load(overrides=["spark.master=local"]).settings.spark.master == "local"


def test_an_error_shows_the_placeholder_and_not_its_value(project):
    project.yaml("opencqrs.event-handling.standard.life-cycle.partitions: ${COUNT}")
    error = project.error(environ={"COUNT": "many"})
    assert error.what.startswith("event-handling.standard.life-cycle.partitions cannot be '${COUNT}'")
