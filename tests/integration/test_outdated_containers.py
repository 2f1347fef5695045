"""Consecutive applications in a process: overrides and reloads in between apply to the next one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from dependency_injector import providers

from opencqrs_py import Application, Event
from opencqrs_py.errors import ExplainedError

HANDLERS = """
from collections.abc import Iterator

from dependency_injector import containers, providers
from opencqrs_py import Event, InMemoryProgressTracker, event_handling

said = []

class Mailer:
    def __init__(self, name: str) -> None:
        self.name = name

def opened() -> Iterator[Mailer]:
    said.append("open")
    yield Mailer("real")
    said.append("close")

class Parts(containers.DeclarativeContainer):
    mailer = providers.{kind}

@event_handling("g", types=["*"])
class Sender:
    def __init__(self, mailer: Mailer) -> None:
        self.mailer, self.sent = mailer, 0

    @event_handling
    def send(self, event: Event) -> None:
        self.sent += 1
        said.append(f"{{self.mailer.name}} {{self.sent}}")
"""
SETTINGS = {"event-handling.standard.processing.engine": "thread"}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[ModuleType], Application]]:
    made: list[Application] = []

    def make(module: ModuleType) -> Application:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Application(SETTINGS, [module], folder))
        return made[-1]

    yield make
    for application in made:
        with application:
            pass


def handle(application: Application) -> None:
    """Append an event and handle it."""
    at = application.event_store.head()
    application.event_store.append([Event(0, f"{at}", "s", "/x", "t", None, "application/json", "{}", None)])
    assert not application.run(until_caught_up=True).failed


def test_an_override_between_two_applications_applies_to_the_second(
    make: Callable[[ModuleType], Application], make_module: Callable[[str], Any]
) -> None:
    module = make_module(HANDLERS.format(kind='Singleton(Mailer, "real")'))
    handle(make(module))
    made_before = make(module)
    with module.Parts.mailer.override(providers.Singleton(module.Mailer, "fake")):
        handle(made_before)
        handle(make(module))
    handle(make(module))
    assert module.said == ["real 1", "fake 1", "fake 2", "real 1"]


def test_a_running_application_keeps_the_objects_it_started_with(
    make: Callable[[ModuleType], Application], make_module: Callable[[str], Any]
) -> None:
    module = make_module(HANDLERS.format(kind='Singleton(Mailer, "real")'))
    running = make(module)
    running.start()
    with module.Parts.mailer.override(providers.Singleton(module.Mailer, "fake")):
        handle(make(module))
        running.status()
        running.stop()
        running.stop()
        handle(running)
    assert module.said == ["real 1", "fake 1"]


def test_an_unused_resource_is_closed_when_another_provider_replaces_it(
    make: Callable[[ModuleType], Application], make_module: Callable[[str], Any]
) -> None:
    module = make_module(HANDLERS.format(kind="Resource(opened)"))
    looking = make(module)
    assert looking.conditions()
    with module.Parts.mailer.override(providers.Singleton(module.Mailer, "fake")):
        handle(make(module))
    looking.stop()
    assert module.said == ["open", "close", "fake 1"]


def test_a_reloaded_module_is_inspected_again(
    make: Callable[[ModuleType], Application], make_module: Callable[[str], Any]
) -> None:
    module = make_module(HANDLERS.format(kind='Singleton(Mailer, "real")'))
    handle(make(module))
    file = Path(str(module.__file__))
    file.write_text(file.read_text().replace("self.sent += 1", "self.sent += 10"))
    importlib.reload(module)
    handle(make(module))
    assert module.said == ["real 10"]


BROKEN = "broken = providers.Singleton(InMemoryProgressTracker, providers.Callable(eval, '1 / 0'))"


@pytest.mark.parametrize(
    ("tracker", "shown"),
    [("missing", "'missing'"), ("broken", "division by zero")],
    ids=["an unknown provider", "a provider that raises"],
)
def test_conditions_show_a_wrong_progress_tracker_also_after_a_start_that_failed_for_it(
    tmp_path: Path, make_module: Callable[[str], Any], tracker: str, shown: str
) -> None:
    module = make_module(HANDLERS.format(kind="Resource(opened)\n    " + BROKEN))
    reference = {"event-handling.standard.progress.tracker-ref": tracker}
    with Application({**SETTINGS, **reference}, [module], tmp_path) as application:
        for _ in range(2):
            with pytest.raises(ExplainedError):
                application.start()
            wrong = [each for each in application.conditions() if each.error]
            assert {(each.group, each.subject) for each in wrong} == {("g", "progress.tracking")}
            assert shown in wrong[0].reason
