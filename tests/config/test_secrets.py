"""No secret of the settings is shown anywhere: commands, messages, logs, and what Python shows of objects."""

from __future__ import annotations

import pickle

import pytest
from sqlalchemy.exc import OperationalError

from opencqrs_py import Application
from opencqrs_py.adapters.sql import Database
from opencqrs_py.adapters.sql.connections import reason_of
from opencqrs_py.cli.main import main
from opencqrs_py.config import Settings
from opencqrs_py.errors import ConfigurationErrors, EventStoreError
from opencqrs_py.model.masking import forget, scrubbed
from opencqrs_py.processing.exceptions import MOST_MESSAGE, message_of, plain_text

YAML = """
    dbpw: ${DB_PASSWORD}
    opencqrs:
      event-store: {url: "postgresql://u:${DB_PASSWORD}@127.0.0.1:1/db?api_key=CANARY1"}
      event-store.api-token: CANARY2
      event-handling.standard.processing.engine: thread
      spark.conf:
        harmless: "x ${DB_PASSWORD}"
        indirect: ${dbpw}
        javax.jdo.option.ConnectionURL: "jdbc:postgresql://h/db?user=u&password=CANARY3"
        sqlserver: "jdbc:sqlserver://h:1433;user=sa;password=CANARY4;x=1"
        oracle: "jdbc:oracle:thin:scott/CANARY5@//h:1521/x"
        fs.azure.account.key.acc.dfs.core.windows.net: CANARY6
        fs.azure.sas.c.acc.blob.core.windows.net: CANARY7
        connection: "AccountName=a;AccountKey=CANARY8==;EndpointSuffix=core.windows.net"
        spark.driver.extraJavaOptions: "-Dkey.password='CANARY 9' -Dx=1"
        signed: "https://a.example/x?sig=CANARY10&se=1"
        redis: "redis://:CANARY11@h:1/0"
        defaulted: "x ${OTHER_PASSWORD:CANARY12}"
"""
HANDLERS = """
from opencqrs_py import event_handling

@event_handling("g")
def on(event: dict) -> None: ...
"""


@pytest.fixture
def secretive(project, monkeypatch):
    monkeypatch.setenv("DB_PASSWORD", "CANARY0")
    return project.yaml(YAML).write(f"handlers_of_{project.folder.name}.py", HANDLERS)


@pytest.mark.parametrize(
    "command",
    [
        "config",
        "config --origin",
        "config --origin --format json",
        "conditions",
        "conditions --format json",
        "doctor",
        "doctor --format json",
        "status",
        "status --format json",
        "run",
        "events list",
    ],
)
def test_no_command_shows_a_secret(secretive, capsys, monkeypatch, command):
    monkeypatch.setattr("opencqrs_py.cli.doctor._spark_workers", lambda: "not looked at")
    name, *options = command.split()
    arguments = [name, *options[:1], "--project", str(secretive.folder), *options[1:]]
    with pytest.raises(SystemExit):
        main(arguments)
    seen = capsys.readouterr()
    assert seen.out + seen.err
    assert "CANARY" not in seen.out + seen.err


def test_the_non_secret_part_of_a_value_is_shown(secretive):
    values = {value.path: value.value for value in secretive.load(environ={"DB_PASSWORD": "CANARY0"}).values()}
    conf = {path.removeprefix("spark.conf."): value for path, value in values.items()}
    assert values["event-store.url"] == "postgresql://u:***@127.0.0.1:1/db?api_key=***"
    assert conf["harmless"] == conf["indirect"] == "***"
    assert conf["sqlserver"] == "jdbc:sqlserver://h:1433;user=sa;password=***;x=1"
    assert conf["connection"] == "AccountName=a;AccountKey=***;EndpointSuffix=core.windows.net"


def test_the_default_of_a_secret_placeholder_is_as_secret_as_its_value(project):
    project.yaml("""
        opencqrs.node.name: a ${OTHER_PASSWORD:CANARY1}
        opencqrs.spark.master: local[${CORES:2}]
    """)
    configuration = project.load(overrides=["node.name=b ${OTHER_TOKEN:CANARY2}"])
    assert configuration.settings.node.name == "b CANARY2"
    assert configuration.value("node.name").value == "***"
    assert [each.value for each in configuration.losers("node.name")] == ["a ${OTHER_PASSWORD:***}"]
    assert configuration.value("spark.master").value == "local[2]"
    assert scrubbed("CANARY2 on 2 cores") == "*** on 2 cores"


def test_an_empty_default_of_a_secret_placeholder_hides_nothing(project):
    project.yaml("opencqrs.node.name: node${OTHER_PASSWORD:}")
    assert project.load().value("node.name").value == "node"


def test_a_refused_value_does_not_show_the_default_of_a_secret_placeholder(project):
    project.yaml("opencqrs.http.bind: x${OTHER_PASSWORD:CANARY}")
    with pytest.raises(ConfigurationErrors) as caught:
        project.load()
    assert "CANARY" not in str(caught.value)


def test_a_secret_in_another_part_of_a_url_is_hidden(project):
    project.yaml("opencqrs.event-store.url: postgresql://h/db?options=${DB_PASSWORD}")
    shown = project.load(environ={"DB_PASSWORD": "CANARY0"}).value("event-store.url").value
    assert shown == "postgresql://h/db?options=***"


def test_the_repr_of_no_object_shows_a_secret(secretive):
    application = Application.from_project(secretive.folder)
    settings = application.configuration.settings
    shown = [application.blueprint, application.configuration, settings, settings.spark, vars(application)]
    shown += [settings.model_dump(), settings.model_dump_json(), settings.spark.model_dump(mode="json")]
    shown += [application.container.database_choice(), application._life.spark.sessions(verbose=False)._settings]
    assert "CANARY" not in "".join(f"{each!r} {each}" for each in shown)


def test_settings_still_contain_the_values_they_hide(secretive):
    settings = secretive.load(environ={"DB_PASSWORD": "CANARY0"}).settings
    assert settings.spark.conf["harmless"] == "x CANARY0"
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert settings.model_copy() == settings


def test_settings_made_in_code_hide_their_secrets():
    settings = Settings(event_store={"url": "eventsourcingdb://CANARY@h", "api_token": "CANARY"})
    assert "CANARY" not in repr(settings) + str(settings.model_dump())
    assert settings.model_dump()["event_store"]["url"] == "eventsourcingdb://***@h"


def test_a_database_hides_its_secrets_from_the_start():
    database = Database("postgresql://u:CANARY%40x@127.0.0.1:1/db?api_key=CANARY2")
    assert "CANARY" not in database.label + repr(database)
    with pytest.raises(EventStoreError) as caught, database.reading():
        pass
    assert "CANARY" not in repr(caught.value) + str(caught.value.args)
    said = OperationalError("", {}, Exception("cannot log in with CANARY@x, or CANARY2"))
    assert reason_of(said) == "cannot log in with ***, or ***"


def test_errors_of_handlers_are_shown_without_secrets_of_the_settings(secretive):
    secretive.load(environ={"DB_PASSWORD": "CANARY0"})
    assert message_of(ValueError("no login with CANARY0 at postgresql://u:CANARY0@h")) == (
        "no login with *** at postgresql://u:***@h"
    )


@pytest.mark.parametrize("before", [0, MOST_MESSAGE - MOST_MESSAGE // 3 - 4, 10_000 - MOST_MESSAGE // 3 - 4])
def test_a_secret_at_the_cut_of_a_long_text_is_hidden(secretive, before):
    secretive.load(environ={"DB_PASSWORD": "CANARY0"})
    text = f"{' ' * before} CANARY0 {' ' * (10_000 - before)}"
    assert "CAN" not in plain_text(text, MOST_MESSAGE)
    assert "RY0" not in plain_text(text, MOST_MESSAGE)


@pytest.mark.parametrize("length", [20, 700, 3_000])
@pytest.mark.parametrize("count", [3, 40])
def test_no_part_of_a_secret_that_a_long_text_repeats_is_shown(project, length, count):
    token = "CANARY" * (length // 6)
    project.yaml(f"opencqrs.event-store.api-token: {token}")
    project.load()
    for before in range(0, length, length // 5):
        for text in (f"[{token}] ", f"postgresql://u:{token}@h "):
            shown = plain_text(f"{' ' * before}{text * count}", MOST_MESSAGE)
            assert "ANAR" not in shown


def test_a_worker_knows_the_secrets_in_its_recipe(secretive):
    blueprint = Application.from_project(secretive.folder).blueprint
    forget()
    assert scrubbed("CANARY0") == "CANARY0"
    assert {"CANARY0", "CANARY1", "CANARY2", "CANARY6"} <= set(pickle.loads(pickle.dumps(blueprint)).secrets)


def test_a_folder_of_secrets_hides_no_ordinary_word_in_the_messages_of_others(project):
    project.write("s/opencqrs.spark.master", "local").write("s/db.password", "CANARY0")
    project.yaml("opencqrs: {config.import: s, spark.conf.x: '${db.password}'}").load()
    assert scrubbed("a local CANARY0") == "a local ***"
