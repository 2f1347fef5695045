"""The name that handlers give a group is the truth; settings find it in every spelling."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator
from itertools import count
from types import ModuleType

import pytest
from support.sqlite import rows_of

from opencqrs_py import Application
from opencqrs_py.assembly.container import GroupRecipe
from opencqrs_py.errors import AssemblyError
from opencqrs_py.model.cloudevents import parse_event

_numbers = count()

HANDLERS = """
from enum import StrEnum
from opencqrs_py import Event, event_handling, on_start
from sqlalchemy import Connection, text

class Groups(StrEnum):
    BOOKS = "book-catalog"

NAME = "book-catalog"

@on_start("book_catalog")
def table(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS seen (id TEXT)"))

@event_handling({group})
def see(event: Event, connection: Connection) -> None:
    connection.execute(text("INSERT INTO seen VALUES (:id)"), {{"id": event.id}})
"""

THREAD = {"event-handling.standard.processing.engine": "thread"}
GROUP = "event-handling.groups"


@pytest.fixture
def make(tmp_path, monkeypatch) -> Iterator[Callable[[str], ModuleType]]:
    (tmp_path / "code").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "code")
    made: list[str] = []

    def make_module(group: str) -> ModuleType:
        made.append(f"named_handlers_{next(_numbers)}")
        (tmp_path / "code" / f"{made[-1]}.py").write_text(HANDLERS.format(group=group))
        return __import__(made[-1])

    yield make_module
    for name in made:
        del sys.modules[name]


def add_events(application: Application, total: int = 20) -> None:
    lines = (f'{{"id": "{n}", "source": "s", "type": "t", "subject": "/x/{n}", "data": {{}}}}' for n in range(total))
    application.event_store.append(map(parse_event, lines))


def seen(tmp_path) -> int:
    return rows_of(tmp_path / "opencqrs.db", "SELECT count(*) FROM seen")[0][0]


SPELLINGS = ["book-catalog", "book_catalog", "bookCatalog", "BookCatalog", "BOOK_CATALOG", "bookcatalog"]
DECLARED = ['"book-catalog"', "NAME", "Groups.BOOKS", "f\"book-{'catalog'}\""]


@pytest.mark.parametrize("engine", ["thread", pytest.param("spark", marks=pytest.mark.spark)])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_settings_in_every_spelling_apply_to_the_group_that_handlers_name(make, tmp_path, spelling, engine):
    if engine == "spark" and spelling != "BookCatalog":
        pytest.skip("one spelling shows it; a session takes seconds")
    settings = {
        "event-handling.standard.processing.engine": engine,
        "spark.master": "local[1]",
        "spark.driver-handles": "never",
        f"{GROUP}.{spelling}.life-cycle.partitions": 2,
    }
    application = Application(settings, [make("NAME")], tmp_path)
    add_events(application)
    result = application.run(until_caught_up=True)
    assert {(group, str(partition)) for group, partition in result.handled} == {
        ("book-catalog", "0/2"),
        ("book-catalog", "1/2"),
    }
    assert [(status.group, status.lag) for status in application.status()] == [("book-catalog", 0)]
    application.stop()
    assert seen(tmp_path) == 20


@pytest.mark.parametrize("declared", DECLARED)
@pytest.mark.parametrize("variable", ["__{}__LIFE_CYCLE__PARTITIONS", "_{}_LIFECYCLE_PARTITIONS"])
@pytest.mark.parametrize("name", ["BOOK_CATALOG", "BOOKCATALOG"])
def test_a_variable_applies_regardless_of_how_the_group_is_declared(
    make, tmp_path, monkeypatch, declared, variable, name
):
    separator = "__EVENT_HANDLING__GROUPS" if variable.startswith("__") else "_EVENTHANDLING_GROUPS"
    monkeypatch.setenv(f"OPENCQRS{separator}{variable.format(name)}", "3")
    application = Application(THREAD, [make(declared)], tmp_path)
    (group,) = application.groups
    assert (group.name, group.life_cycle.partitions) == ("book-catalog", 3)


def test_a_variable_reaches_a_group_with_a_dot_once_its_handlers_are_known(make, tmp_path, monkeypatch):
    module = make("NAME + '.v2'")
    module.table.__opencqrs_on_start__ = ()
    monkeypatch.setenv("OPENCQRS__EVENT_HANDLING__GROUPS__BOOK_CATALOG_V2__LIFE_CYCLE__PARTITIONS", "3")
    (group,) = Application(THREAD, [module], tmp_path).groups
    assert (group.name, group.life_cycle.partitions) == ("book-catalog.v2", 3)


def test_a_configured_group_without_handlers_is_warned_of_when_the_handlers_are_known(make, tmp_path):
    application = Application({**THREAD, f"{GROUP}.book-katalog.fetch.subject": "/x"}, [make("NAME")], tmp_path)
    assert [group.name for group in application.groups] == ["book-catalog"]
    (warning,) = application.configuration.warnings
    assert (warning.code, warning.fix) == ("OCQ-117", "did you mean book-catalog?")


def test_warnings_of_the_settings_are_logged_once(make, tmp_path, caplog):
    (tmp_path / "aplication.yaml").write_text("opencqrs.node.name: here\n")
    settings = {
        **THREAD,
        f"{GROUP}.BookCatalog.retry.on-exhausted": "skip",
        f"{GROUP}.book-katalog.fetch.subject": "/x",
    }
    application = Application(settings, [make("NAME")], tmp_path)
    assert "aplication.yaml" in caplog.text
    add_events(application, 1)
    application.run(until_caught_up=True)
    once = {"OCQ-117": 1, "OCQ-121": 1, "OCQ-125": 1}
    assert {code: caplog.text.count(code) for code in once} == once


def test_warnings_of_the_settings_are_logged_even_if_logging_is_configured_after_the_import(make, tmp_path, caplog):
    (tmp_path / "aplication.yaml").write_text("opencqrs.node.name: here\n")
    logging.getLogger("opencqrs.settings").disabled = True  # as ``logging.config`` does by default
    Application(THREAD, [make("NAME")], tmp_path)
    assert caplog.text.count("OCQ-125") == 1


def test_groups_to_start_may_be_named_in_every_spelling(make, tmp_path):
    application = Application(THREAD, [make("NAME")], tmp_path)
    add_events(application)
    assert not application.run(["BookCatalog", "book_catalog"], until_caught_up=True).failed
    assert seen(tmp_path) == 20
    with pytest.raises(AssemblyError, match="OCQ-509"):
        application.start(["books"])


def test_a_group_whose_spelling_has_changed_keeps_its_progress(make, tmp_path):
    first = Application(THREAD, [make("NAME")], tmp_path)
    add_events(first)
    first.run(until_caught_up=True)
    second = Application(THREAD, [make('"bookCatalog"')], tmp_path)
    with pytest.raises(AssemblyError) as caught:
        second.run(until_caught_up=True)
    assert caught.value.code == "OCQ-528"
    assert "'bookCatalog' has no progress, but 'book-catalog' has" in caught.value.what
    # What waits under the old name would else be lost: the progress is beyond it.
    assert re.findall(r"opencqrs_\w+", caught.value.fix) == ["opencqrs_progress", "opencqrs_groups", "opencqrs_inbox"]
    assert seen(tmp_path) == 20


def test_single_handlers_and_whole_modules_can_be_given_together(make, tmp_path):
    one, two = make("NAME"), make('"other"')
    two.table.__opencqrs_on_start__ = ()
    application = Application(THREAD, [one, two.see], tmp_path)
    assert [group.name for group in application.groups] == ["book-catalog", "other"]
    assert [g.name for g in Application(THREAD, [two.see], tmp_path).groups] == ["other"]


def test_a_handler_that_no_import_decorates_is_refused(make, tmp_path):
    module = make("NAME")

    def at_run_time(event: dict) -> None: ...

    at_run_time.__module__ = module.__name__
    with pytest.raises(AssemblyError, match="OCQ-513"):
        Application(THREAD, [at_run_time], tmp_path)


def test_a_process_that_finds_other_handlers_than_the_one_that_started_it_is_refused(make, tmp_path):
    application = Application(THREAD, [make("NAME")], tmp_path)
    (group,) = application.groups
    found = application.blueprint.discover().fingerprint("book-catalog")
    assert GroupRecipe(application.blueprint, group, found)().group == "book-catalog"
    with pytest.raises(AssemblyError) as caught:
        GroupRecipe(application.blueprint, group, (*found, "gone:on"))()
    assert (caught.value.code, caught.value.where) == ("OCQ-526", "not here: gone:on")


def test_groups_of_one_application_share_connections_in_a_worker(make, tmp_path):
    application = Application(THREAD, [make("NAME"), make('"other"')], tmp_path)
    first, second = (
        GroupRecipe(application.blueprint, group, application.blueprint.discover().fingerprint(group.name))()
        for group in application.groups
    )
    assert first.source is second.source
    assert first.tracker._database is second.tracker._database


OVERLOADS = """
from opencqrs_py import Event, event_handling, on_start
from sqlalchemy import Connection, text

def noting(group: str, note: str):
    @event_handling(group)
    def on(raw: Event, connection: Connection) -> None:
        connection.execute(text("CREATE TABLE IF NOT EXISTS noted (note TEXT)"))
        connection.execute(text("INSERT INTO noted VALUES (:note)"), {"note": note})
    return on

@event_handling("one")
def on(raw: Event, connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS noted (note TEXT)"))
    connection.execute(text("INSERT INTO noted VALUES ('first')"))

@event_handling("one")
def on(raw: Event, connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS noted (note TEXT)"))
    connection.execute(text("INSERT INTO noted VALUES ('second')"))

class Outer:
    class Inner:
        @event_handling("one")
        def on(self, raw: Event, connection: Connection) -> None:
            connection.execute(text("INSERT INTO noted VALUES ('nested')"))

made = [noting("one", note) for note in ("made 1", "made 2")]
"""


@pytest.mark.parametrize("engine", ["thread", pytest.param("spark", marks=pytest.mark.spark)])
@pytest.mark.parametrize(
    ("chosen", "notes"),
    [
        (lambda module: [module], ["first", "made 1", "made 2", "nested", "second"]),
        (lambda module: [module.on, module.made[1]], ["made 2", "second"]),
    ],
)
def test_every_process_finds_each_of_several_handlers_with_the_same_name(make, tmp_path, engine, chosen, notes):
    name = make("NAME").__name__ + "_overloads"
    (tmp_path / "code" / f"{name}.py").write_text(OVERLOADS)
    module = __import__(name)
    settings = {
        "event-handling.standard.processing.engine": engine,
        "spark.master": "local[1]",
        "spark.driver-handles": "never",
    }
    application = Application(settings, chosen(module), tmp_path)
    add_events(application, 1)
    assert not application.run(until_caught_up=True).failed
    assert sorted(rows_of(tmp_path / "opencqrs.db", "SELECT note FROM noted")) == [(note,) for note in notes]
    del sys.modules[name]
