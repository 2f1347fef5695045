"""The example of the OpenCQRS documentation, from every kind of source: the same two processors."""

import math

import pytest

from opencqrs_py.config import Engine, Resolution, RetryPolicy

YAML = """
    opencqrs:
      event-store: {url: "sqlite:///events.db"}
      database: {url: "sqlite:///library.db"}
      spark: {master: "local[*]", conf: {}}
      event-handling:
        standard:
          retry: {policy: exponential_backoff, max-attempts: 5}
        groups:
          books:
            fetch: {subject: /books}
            life-cycle: {partitions: 2}
          backup:
            life-cycle: {auto-start: false}
"""
PROPERTIES = """
    opencqrs.event-store.url=sqlite:///events.db
    opencqrs.database.url: sqlite:///library.db
    opencqrs.spark.master local[*]
    opencqrs.event-handling.standard.retry.policy=EXPONENTIAL_BACKOFF
    opencqrs.event-handling.standard.retry.max-attempts=5
    opencqrs.event-handling.groups.books.fetch.subject=/books
    opencqrs.event-handling.groups.books.life-cycle.partitions=2
    opencqrs.event-handling.groups.backup.life-cycle.auto-start=false
"""
TOML = """
    [opencqrs]
    event-store.url = "sqlite:///events.db"
    database.url = "sqlite:///library.db"
    spark.master = "local[*]"

    [opencqrs.event-handling]
    standard.retry = { policy = "exponential_backoff", max-attempts = 5 }

    [opencqrs.event-handling.groups.books]
    fetch.subject = "/books"
    life-cycle.partitions = 2

    [opencqrs.event-handling.groups.backup.life-cycle]
    auto-start = false
"""
SEGMENTS = {
    "OPENCQRS__EVENT_STORE__URL": "sqlite:///events.db",
    "OPENCQRS__DATABASE__URL": "sqlite:///library.db",
    "OPENCQRS__SPARK__MASTER": "local[*]",
    "OPENCQRS__EVENT_HANDLING__STANDARD__RETRY__POLICY": "exponential-backoff",
    "OPENCQRS__EVENT_HANDLING__STANDARD__RETRY__MAX_ATTEMPTS": "5",
    "OPENCQRS__EVENT_HANDLING__GROUPS__BOOKS__FETCH__SUBJECT": "/books",
    "OPENCQRS__EVENT_HANDLING__GROUPS__BOOKS__LIFE_CYCLE__PARTITIONS": "2",
    "OPENCQRS__EVENT_HANDLING__GROUPS__BACKUP__LIFE_CYCLE__AUTO_START": "false",
}
WORDS = {name.replace("_HANDLING", "HANDLING").replace("__", "_"): text for name, text in SEGMENTS.items()}


def from_yaml(project):
    return project.yaml(YAML).load()


def from_properties(project):
    return project.write("application.properties", PROPERTIES).load()


def from_toml(project):
    return project.write("application.toml", TOML).load()


def from_dotenv(project):
    return project.write(".env", "".join(f"export {name}='{text}'\n" for name, text in SEGMENTS.items())).load()


def from_variables(project):
    return project.load(environ=SEGMENTS)


def from_variables_of_spring(project):
    return project.load(environ=WORDS)


@pytest.mark.parametrize(
    "source", [from_yaml, from_properties, from_toml, from_dotenv, from_variables, from_variables_of_spring]
)
def test_the_worked_example_results_in_the_described_processors(project, source):
    configuration = source(project)
    assert configuration.settings.event_store.url == "sqlite:///events.db"
    assert configuration.settings.database.url == "sqlite:///library.db"
    assert configuration.settings.spark.master == "local[*]"
    assert configuration.group_names == ("books", "backup")
    books, backup = (configuration.group(name) for name in configuration.group_names)
    assert (books.fetch.subject, books.life_cycle.partitions, books.life_cycle.auto_start) == ("/books", 2, True)
    assert (backup.fetch.subject, backup.life_cycle.partitions, backup.life_cycle.auto_start) == ("/", 1, False)
    for group in (books, backup):
        assert group.retry.policy is RetryPolicy.EXPONENTIAL_BACKOFF
        assert group.retry.max_attempts == 5
        assert (group.retry.initial_interval, group.retry.max_interval, group.retry.multiplier) == (2.0, 30.0, 1.5)
        assert group.retry.max_elapsed_time == math.inf
        assert group.sequence.resolution is Resolution.PER_SECOND_LEVEL_SUBJECT
        assert group.progress.tracking is None
        assert group.life_cycle.controller is None
        assert group.processing.engine is Engine.SPARK
