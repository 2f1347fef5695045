"""Projects whose ``logging.config`` disables the loggers that it does not name, as it does by default."""

from __future__ import annotations

import logging
from collections.abc import Callable
from logging.config import dictConfig
from pathlib import Path
from typing import Any

import pytest
from support.engines import ENGINES

from opencqrs_py import Application, Event

HANDLERS = """
from logging.config import dictConfig
from opencqrs_py import Event, event_handling

dictConfig({"version": 1})


@event_handling("books", types=["*"])
def fail(event: Event) -> None:
    raise ValueError("mine")
"""
IN_ON_START = """
from logging.config import dictConfig
from opencqrs_py import Event, event_handling, on_start


@on_start("books")
def migrate() -> None:
    dictConfig({"version": 1})


@event_handling("books", types=["*"])
def fail(event: Event) -> None:
    raise ValueError("mine")
"""
IN_A_RESOURCE = """
from logging.config import dictConfig

from dependency_injector import containers, providers
from opencqrs_py import Event, event_handling


class Container(containers.DeclarativeContainer):
    logging = providers.Resource(dictConfig, {"version": 1})


@event_handling("books", types=["*"])
def fail(event: Event) -> None:
    raise ValueError("mine")
"""
SETTINGS = {
    "event-store.url": "sqlite:///books.db",
    "event-handling.standard.processing.engine": "thread",
    "event-handling.standard.retry.policy": "none",
}


@pytest.fixture(autouse=True)
def _loggers_as_before() -> Any:
    named = [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    before = [each.disabled for each in named]
    yield
    for each, disabled in zip(named, before, strict=True):
        each.disabled = disabled


def skipped(application: Application, caplog: pytest.LogCaptureFixture) -> list[int]:
    """Run a handler that fails; return the positions of the events that are logged as skipped."""
    with application:
        application.event_store.append([Event(0, "1", "s", "/books/1", "t", None, "application/json", "{}", None)])
        application.run(until_caught_up=True)
    return [each.__dict__["position"] for each in caplog.records if each.__dict__.get("action") == "skip"]


def test_a_module_that_disables_loggers_hides_no_skipped_event(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "handlers_that_disable_loggers.py").write_text(HANDLERS)
    application = Application.from_project(tmp_path, overrides=[f"{key}={value}" for key, value in SETTINGS.items()])
    assert skipped(application, caplog) == [1]


def test_a_program_that_disables_loggers_hides_no_skipped_event(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make_module: Callable[[str], Any]
) -> None:
    application = Application(SETTINGS, [make_module(HANDLERS)], tmp_path)
    dictConfig({"version": 1})
    assert skipped(application, caplog) == [1]


@pytest.mark.parametrize("handlers", [IN_ON_START, IN_A_RESOURCE], ids=["on_start", "resource"])
def test_a_start_that_disables_loggers_hides_no_skipped_event(
    handlers: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, make_module: Callable[[str], Any]
) -> None:
    application = Application(SETTINGS, [make_module(handlers)], tmp_path)
    assert skipped(application, caplog) == [1]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_program_that_disables_loggers_while_it_runs_hides_no_skipped_event(
    engine: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, make_module: Callable[[str], Any]
) -> None:
    spark = {"spark.master": "local[1]", "spark.driver-handles": "never"}
    settings = {**SETTINGS, **spark, "event-handling.standard.processing.engine": engine}
    with Application(settings, [make_module(HANDLERS)], tmp_path) as application:
        application.start()
        dictConfig({"version": 1})
        application.event_store.append([Event(0, "1", "s", "/books/1", "t", None, "application/json", "{}", None)])
        application.await_position("books", 1)
    assert [each.__dict__["position"] for each in caplog.records if each.__dict__.get("action") == "skip"] == [1]
