"""Loggers disabled by ``logging.config`` while an application runs are enabled before a failure is logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from logging.config import dictConfig

import pytest

from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.adapters.memory.jobs import InMemoryJobStore
from opencqrs_py.engines.driver import log_notice
from opencqrs_py.engines.job_parts import JobParts
from opencqrs_py.engines.job_runner import JobRunner
from opencqrs_py.engines.run_log import log_end
from opencqrs_py.engines.watching import HeadWatcher
from opencqrs_py.jobs.runs import JobRun, RunStatus
from opencqrs_py.model.event import Event
from opencqrs_py.model.job import Trigger
from opencqrs_py.model.outcome import Failure, Origin
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.loggers import enable_loggers
from opencqrs_py.processing.notices import Notice
from opencqrs_py.processing.ports import SystemClock
from opencqrs_py.processing.recovery import Action


class Attended(Exception):  # noqa: N818 ends a loop
    pass


def skip_an_event() -> None:
    failure = Failure(Origin.HANDLER, permanent=False, error="E", message="no")
    log_notice(Notice("books", Partition(1, 0), Action.SKIP, failure))


def end_a_run() -> None:
    run = JobRun("run", "job", Trigger.MANUAL, datetime(2031, 5, 6, tzinfo=UTC), status=RunStatus.FAILED)
    log_end(run, run)


def watch_the_log() -> None:
    store = InMemoryEventStore()
    store.append([Event(0, "1", "s", "/books/1", "t", None, "application/json", "{}", None)])
    watcher = HeadWatcher(store)
    watcher.wait_beyond(0, 30)
    watcher.stop()


def attend_to_jobs() -> None:
    class Parts(InMemoryJobStore):
        def is_outage(self, error: BaseException) -> bool:
            return False

    def company() -> None:
        raise Attended

    runner = JobRunner(JobParts({}, Parts(), None, None, SystemClock()), company)
    with suppress(Attended):
        runner._watch()


@pytest.fixture(autouse=True)
def loggers() -> Iterator[list[logging.Logger]]:
    all_of_them = [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    before = [each.disabled for each in all_of_them]
    dictConfig({"version": 1})
    yield [logging.getLogger(f"opencqrs.{name}") for name in ("processing", "jobs", "control")]
    for each, disabled in zip(all_of_them, before, strict=True):
        each.disabled = disabled


@pytest.mark.parametrize("call", [skip_an_event, end_a_run, watch_the_log, attend_to_jobs, enable_loggers])
def test_disabled_loggers_are_enabled_again(call: Callable[[], None], loggers: list[logging.Logger]) -> None:
    assert all(each.disabled for each in loggers)
    call()
    assert not any(each.disabled for each in loggers)


@pytest.mark.parametrize("call", [skip_an_event, end_a_run])
def test_a_failure_is_logged_although_loggers_were_disabled(
    call: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    call()
    assert [each.levelname for each in caplog.records] == ["ERROR"]


def test_later_loggers_of_the_package_are_enabled_and_other_loggers_are_left_alone() -> None:
    enable_loggers()
    names = ("opencqrs.made_later", "opencqrs_of_others.made_later")
    ours, theirs = map(logging.getLogger, names)
    ours.disabled = theirs.disabled = True
    enable_loggers()
    assert (ours.disabled, theirs.disabled) == (False, True)
