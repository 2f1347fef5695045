"""The sample file, the JSON Schema and the settings page are up to date, and agree with the loader."""

import json
import re
import runpy
import sys
from pathlib import Path
from typing import Annotated

import pytest
import yaml
from pydantic import Field

from opencqrs_py.config import EffectiveGroup, JobSettings, Settings, load
from opencqrs_py.config.keys import index_of
from opencqrs_py.config.schema import json_schema
from opencqrs_py.config.settings import Section
from opencqrs_py.config.value_types import Fact

ROOT = Path(__file__).parents[2]
REFERENCE = runpy.run_path(str(ROOT / "config" / "reference.py"))
application_yaml, settings_page = REFERENCE["application_yaml"], REFERENCE["settings_page"]
reference_files = REFERENCE["reference_files"]


@pytest.mark.parametrize("name", sorted(reference_files()))
def test_the_committed_files_are_up_to_date(name):
    fix = "run: python config/reference.py"
    assert (ROOT / name).read_text(encoding="utf-8") == reference_files()[name], fix


def test_running_the_script_writes_the_files(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["reference.py", str(tmp_path)])
    runpy.run_path(str(ROOT / "config" / "reference.py"), run_name="__main__")
    written = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.*") if file.is_file()}
    assert written == set(reference_files())


def test_the_sample_file_equals_the_built_in_defaults(project):
    configuration = project.write("application.yaml", application_yaml()).load()
    assert configuration.settings.model_dump(exclude={"event_handling"}) == Settings().model_dump(
        exclude={"event_handling"}
    )
    assert configuration.group("any") == EffectiveGroup("any")
    assert configuration.job("any") == JobSettings()
    assert configuration.group_names == configuration.job_names == ()
    assert configuration.warnings == ()


def test_the_sample_file_lists_every_key_with_a_comment():
    keys = {setting.key for setting in index_of(Settings).settings()}
    lines = [line.strip() for line in application_yaml().splitlines()]
    named = [line.removeprefix("# ").partition(":")[0] for line in lines if re.match(r"(?:# )?[a-z-]+:", line)]
    assert {key.rpartition(".")[2] for key in keys} <= set(named)
    text = yaml.safe_load(application_yaml())["opencqrs"]
    in_file = {key for key in keys if "on-profile" not in key}
    assert in_file == {key for key in in_file if key in dotted(text)}
    for number, line in enumerate(lines):
        if re.match(r"[a-z-]+: \S", line):
            assert lines[number - 1].startswith("# ")


def dotted(tree, prefix=""):
    found = set()
    for name, value in tree.items():
        found.add(f"{prefix}{name}")
        if isinstance(value, dict):
            found |= dotted(value, f"{prefix}{name}.")
    return found


@pytest.mark.parametrize("column", [1, 2])
def test_every_variable_on_the_page_sets_its_setting(project, column):
    rows = re.findall(r"^\| `(\S+)` \| `(OPENCQRS\S+)` \| `(\S+)` \|$", settings_page(), re.MULTILINE)
    paths = [setting.path for setting in index_of(Settings).settings()]
    every = [path for path in paths if path[-1] != "on_profile" and path[1] != "groups"]
    inherited = [path for path in every if path[1] == "standard"]
    assert len(rows) == len(every) + len(inherited)
    values = {
        "url": "sqlite:///x",
        "import": "optional:x",
        "unknown": "warn",
        "format": "envelope",
        "allow-unauthenticated": "true",
        "max-tasks-per-group": "3",
        "driver-handles": "never",
        "sigterm-exit-code": "0",
        "bind": "127.0.0.1:8080",
        "max-lag": "1000",
        "stalled-after": "2m",
    }
    for row in rows:
        leaf = row[0].rpartition(".")[2]
        section = row[0].rpartition(".")[0].rpartition(".")[2]
        value = SAME_LEAVES.get(f"{section}.{leaf}") or values.get(leaf, LEAVES.get(leaf, "x"))
        value = (
            JOB_LEAVES.get(row[0].partition(".")[2].partition(".")[2], value) if row[0].startswith("jobs.") else value
        )
        name = row[column].replace("<GROUP>", "BOOKS").replace("<JOB>", "CLEANUP").replace("<KEY>", "SOME_KEY")
        configuration = project.load(environ={name: value}, groups=["books"], jobs=["cleanup"])
        key = row[0].replace("<group>", "books").replace("<job>", "cleanup") + (
            ".some.key" if "<KEY>" in row[column] else ""
        )
        assert str(configuration.origin(key)) == f"environment variable {name}"


LEAVES = {
    "subject": "/x",
    "recursive": "false",
    "initial-position": "head",
    "auto-start": "false",
    "controller": "leader-election",
    "controller-registration": "mine",
    "lock-registry": "mine",
    "partitions": "2",
    "max-partitions-per-node": "2",
    "max-partitions": "2",
    "max-runs": "2",
    "pool-size": "2",
    "duration": "20s",
    "heartbeat": "2s",
    "tracking": "sql",
    "tracker-ref": "mine",
    "resolution": "per_subject",
    "resolver-ref": "mine",
    "level": "2",
    "policy": "fixed",
    "back-off-ref": "mine",
    "initial-interval": "1s",
    "max-interval": "1s",
    "max-elapsed-time": "1s",
    "multiplier": "2",
    "max-attempts": "3",
    "on-exhausted": "stop",
    "on-undecodable": "skip",
    "max-sequences": "7",
    "max-sequence-size": "8",
    "jitter": "0.5",
    "initial-delay": "1s",
    "interval": "1s",
    "kind": "fixed-rate",
    "cron": "0 3 * * *",
    "time-zone": "Europe/Berlin",
    "error-grace-period": "1s",
    "expires-after": "1s",
    "size": "9",
    "ordering": "event-time",
    "ordering-ref": "mine",
    "fetch-size": "10",
    "engine": "thread",
    "batch-size": "5",
    "handler-warn-after": "5s",
    "handler-timeout": "5s",
    "on-changed-handlers": "refuse",
    "on-lost": "initial",
    "run-all-handlers": "true",
    "live": "continue",
    "max-events-per-second": "500",
    "max-tasks": "2",
    "timeout": "5s",
    "hold": "5s",
}

JOB_LEAVES = {
    "enabled": "false",
    "triggers.startup": "true",
    "triggers.fixed-rate": "1s",
    "triggers.fixed-delay": "1s",
    "triggers.zone": "Europe/Berlin",
    "triggers.jitter": "1s",
    "triggers.events.types": "library.*",
    "triggers.events.ids": "data.invoice",
    "misfire": "catch-up",
    "misfire-grace": "1s",
    "overlap": "queue",
    "overlap-scope": "per-id",
    "queue-size": "2",
    "cancel-grace": "1s",
    "exclusive-with": "cleanup",
    "transaction": "item",
    "limit": "10",
    "max-items-per-run": "10",
    "time-budget": "1s",
    "history.keep": "1d",
}
"""What leaves of jobs are set to."""

SAME_LEAVES = {
    "logging.format": "json",
    "schedule.on-exhausted": "skip",
    "processing.mode": "scheduled",
    "checkpointing.mode": "deferred",
    "batch.mode": "all",
}
"""What leaves of several sections are set to, by section and leaf."""


def problems(value, schema, root, where=""):
    """Yield where ``value`` breaks ``schema``: as much of draft 07 as the schema uses."""
    if "$ref" in schema:
        target = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        yield from problems(value, target, root, where)
        return
    yield from (f"{where}: {problem}" for problem in simple_problems(value, schema))
    if "anyOf" in schema and all(any(problems(value, option, root)) for option in schema["anyOf"]):
        yield f"{where}: anyOf"
    for option in schema.get("allOf", []):
        yield from problems(value, option, root, where)
    for item in value if isinstance(value, list) else []:
        yield from problems(item, schema.get("items", {}), root, where)
    for name, below in value.items() if isinstance(value, dict) else []:
        yield from in_object(name, below, schema, root, f"{where}.{name}")


def simple_problems(value, schema):
    """Yield the keywords that a value violates on its own."""
    types = schema.get("type", [])
    if types and not any(TYPES[name](value) for name in ([types] if isinstance(types, str) else types)):
        yield "type"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield "enum"
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield "pattern"
    if isinstance(value, int | float) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield "limit"


def in_object(name, value, schema, root, where):
    named = [schema["properties"][name]] if name in schema.get("properties", {}) else []
    named += [below for pattern, below in schema.get("patternProperties", {}).items() if re.search(pattern, name)]
    if not named and schema.get("additionalProperties", True) is False:
        yield f"{where}: unknown"
    if not named and isinstance(schema.get("additionalProperties"), dict):
        named = [schema["additionalProperties"]]
    for below in named:
        yield from problems(value, below, root, where)


TYPES = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
}


@pytest.mark.parametrize(
    "text",
    [
        application_yaml(),
        "",
        "opencqrs:",
        "logging: {level: debug}",
        "opencqrs: {eventHandling: {groups: {Books: {lifeCycle: {autoStart: no}, life_cycle: {partitions: 3}}}}}",
        "opencqrs: {event-handling: {groups: {books: {fetch.subject: /, retry: {max-attempts: infinite}}}}}",
        "opencqrs: {event-handling: {standard: {progress: {tracking: JDBC}, sequence: {resolution: perSubject}}}}",
        "opencqrs: {event-handling: {standard: {retry: {max-elapsed-time: infinite, max-interval: PT10S, jitter: ~}}}}",
        "opencqrs: {event-handling: {standard: {life-cycle: {partitions: '${N}'}, fetch: {subject: '${S:/}'}}}}",
        "opencqrs: {profiles: {active: 'a, b'}, config: {import: [a.yaml]}, spark: {conf: {a: 1, b: {c: yes}}}}",
        "opencqrs: {config: {on-profile: a and b, activate: {onProfile: [a]}}}",
        "opencqrs: {jobs: {standard: {limit: 5, triggers: {fixedRate: 1m}}, cleanup: {triggers: {cron: '@daily'}}}}",
        "opencqrs: {jobs: {Clean_Up: {misfire: CATCH_UP, overlapScope: perId, exclusive-with: a, queue_size: 2}}}",
        "opencqrs: {jobs: {report: , v1.2: {triggers: {cron: '-', events: {types: [a.*], ids: data.a}}}}}",
        "opencqrs: {jobs: {x: {time-budget: infinite, retry: {max-attempts: infinite}, limit: '${N}'}}}",
    ],
)
def test_the_schema_accepts_what_the_loader_accepts(project, text):
    schema = json_schema()
    assert list(problems(yaml.safe_load(text) or {}, schema, schema)) == []
    project.write("application.yaml", text.replace("a.yaml", "optional:a.yaml")).load(environ={"N": "2"})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("event-stor: {}", ".opencqrs.event-stor: unknown"),
        ("spark: local", ".opencqrs.spark: type"),
        ("event-store: {url: events.db}", ".opencqrs.event-store.url: anyOf"),
        (
            "event-handling: {groups: {books: {fetch: {subject: books}}}}",
            ".opencqrs.event-handling.groups.books.fetch.subject: anyOf",
        ),
        (
            "event-handling: {standard: {retry: {policy: expo}}}",
            ".opencqrs.event-handling.standard.retry.policy: anyOf",
        ),
        (
            "event-handling: {standard: {retry: {max-interval: 2}}}",
            ".opencqrs.event-handling.standard.retry.max-interval: anyOf",
        ),
        ("event-handling: {standard: {retry: {jitter: 2}}}", ".opencqrs.event-handling.standard.retry.jitter: anyOf"),
        (
            "event-handling: {standard: {life-cycle: {partitions: 0}}}",
            ".opencqrs.event-handling.standard.life-cycle.partitions: anyOf",
        ),
        (
            "event-handling: {standard: {processing: {batch-size: 1.5}}}",
            ".opencqrs.event-handling.standard.processing.batch-size: anyOf",
        ),
        ("jobs: 5", ".opencqrs.jobs: type"),
        ("jobs: {cleanup: {limt: 5}}", ".opencqrs.jobs.cleanup: anyOf"),
        ("jobs: {cleanup: {limit: 0}}", ".opencqrs.jobs.cleanup: anyOf"),
        ("jobs: {standard: {limt: 5}}", ".opencqrs.jobs.standard.limt: unknown"),
        ("jobs: {standard: {overlap: wait}}", ".opencqrs.jobs.standard.overlap: anyOf"),
        ("jobs: {standard: {triggers: {fixed-rate: 2}}}", ".opencqrs.jobs.standard.triggers.fixed-rate: anyOf"),
        ("jobs: {standard: {triggers: {events: {ids: x}}}}", ".opencqrs.jobs.standard.triggers.events.ids: anyOf"),
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(project, text, found):
    schema = json_schema()
    assert set(problems(yaml.safe_load(f"opencqrs: {{{text}}}"), schema, schema)) == {found}
    assert project.yaml(f"opencqrs: {{{text}}}").errors()


def test_the_schema_has_default_and_unit_of_each_setting():
    retry = json_schema()["definitions"]["RetrySettings"]["properties"]
    assert retry["max-interval"]["default"] == "30s"
    assert retry["max-attempts"]["default"] == "infinite"
    assert (
        retry["jitter"]["description"]
        == "How much of each wait is left out at most, at random. (share of the wait, 0 to 1)"
    )
    life_cycle = json_schema()["definitions"]["LifeCycleSettings"]["properties"]
    assert life_cycle["partitions"]["default"] == 1
    assert "default" not in life_cycle["controller"]


class Mail(Section):
    host: str
    smtp_port: int = 25
    name: str | None = None
    new_name: Annotated[str, Fact(formerly=("old",))] = "x"


class Shelf(Section):
    width: int = 80


class WithMail(Settings):
    mail: Mail
    shelves: dict[str, Shelf] = Field({})
    titles: dict[str, int] = Field({})
    mails: dict[str, Mail] = Field({})


def test_the_schema_contains_the_users_own_sections():
    schema = json_schema(WithMail)
    mail = schema["definitions"]["Mail"]
    assert mail["properties"]["smtp-port"]["default"] == 25
    assert "default" not in mail["properties"]["host"]
    assert schema["definitions"]["Shelf"]["properties"]["width"]["default"] == 80
    assert mail["patternProperties"]["^old$"] == {"deprecated": True}
    assert json.loads(json.dumps(schema)) == schema


def test_the_repository_used_as_a_project_has_the_defaults():
    assert load(ROOT, environ={}).group("any") == EffectiveGroup("any")
