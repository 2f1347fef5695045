"""Log records about partitions, and how the command line prints them."""

from __future__ import annotations

import io
import logging
import logging.config
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.console import Console

from opencqrs_py.cli import records
from opencqrs_py.cli.records import kept_on_terminal, print_only_warnings, records_on_terminal
from opencqrs_py.engines.driver import log_notice
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.outcome import Failure, Origin
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.exceptions import failure_of
from opencqrs_py.processing.loggers import enable_loggers
from opencqrs_py.processing.notices import Notice
from opencqrs_py.processing.recovery import Action

FAILED = Failure(
    Origin.HANDLER,
    permanent=False,
    error="ValueError",
    message="no",
    traceback="Traceback ...",
    position=7,
    event="event 7",
    code="OCQ-228",
)


def notice(action: Action | None, failure: Failure | None = FAILED) -> Notice:
    return Notice("books", Partition(2, 1), action, failure, attempt=1, wait=2.0)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    return shown(monkeypatch, terminal=False)


def shown(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> io.StringIO:
    out = io.StringIO()
    console = Console(file=out, width=1_000, force_terminal=terminal, color_system=None)
    monkeypatch.setattr(records, "stderr", lambda: console)
    return out


@pytest.mark.parametrize(
    ("action", "failure", "level", "named"),
    [
        (None, None, logging.INFO, "recovered"),
        (None, FAILED, logging.WARNING, "missed"),
        (Action.RETRY, FAILED, logging.WARNING, "retry"),
        (Action.WAIT, FAILED, logging.WARNING, "wait"),
        (Action.SKIP, FAILED, logging.ERROR, "skip"),
        (Action.STOP, FAILED, logging.ERROR, "stop"),
        (Action.LEAVE, FAILED, logging.WARNING, "leave"),
    ],
)
def test_each_notice_is_a_log_record_with_action_and_place(action, failure, level, named, caplog):
    with caplog.at_level(logging.INFO):
        log_notice(notice(action, failure))
    (record,) = caplog.records
    event = ("event 7", 7, "OCQ-228") if failure else ("", None, "")
    assert (record.name, record.levelno, record.action) == ("opencqrs.processing", level, named)
    assert (record.group, record.partition, record.attempt) == ("books", "1/2", 1)
    assert (record.event, record.position, record.code) == event


def test_a_percent_sign_in_a_message_is_printed_verbatim(caplog):
    log_notice(notice(Action.RETRY, Failure(Origin.HANDLER, permanent=False, error="E", message="100 %s of %d")))
    assert "100 %s of %d" in caplog.text


def test_a_record_is_printed_with_its_time_and_all_its_lines(screen, capsys):
    with records_on_terminal():
        log_notice(notice(Action.RETRY))
    first, second = screen.getvalue().splitlines()
    assert first.endswith("Z [books 1/2] event 7 failed on attempt 1 ([OCQ-228] ValueError: no); retry in 2.0 s")
    assert second == "Traceback ..."
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_no_time_is_printed(monkeypatch):
    out = shown(monkeypatch, terminal=True)
    with records_on_terminal():
        log_notice(notice(None, None))
    assert out.getvalue() == "[books 1/2] recovered\n"


def test_after_the_command_nothing_is_printed_and_levels_are_restored(screen):
    with records_on_terminal():
        pass
    log_notice(notice(Action.RETRY))
    assert screen.getvalue() == ""
    assert logging.getLogger("opencqrs").level == logging.NOTSET


def test_for_a_program_only_warnings_and_errors_are_printed(screen):
    with records_on_terminal():
        print_only_warnings()
        log_notice(notice(None, None))
        assert screen.getvalue() == ""
        log_notice(notice(Action.SKIP))
    assert "the event is skipped" in screen.getvalue()


@pytest.mark.parametrize("stream", ["stderr", "stdout", "file"])
def test_records_that_the_project_already_logs_to_the_terminal_are_not_printed_twice(stream, screen, tmp_path):
    with (tmp_path / "log.txt").open("w") as file:
        handler = logging.StreamHandler(file if stream == "file" else getattr(sys, stream))
        logging.getLogger().addHandler(handler)
        try:
            with records_on_terminal():
                log_notice(notice(Action.RETRY))
        finally:
            logging.getLogger().removeHandler(handler)
    assert bool(screen.getvalue()) == (stream == "file")


def raising(_: logging.LogRecord) -> bool:
    raise ValueError


def replacing(record: logging.LogRecord) -> logging.LogRecord:
    record.msg = "changed"
    return record


class Once:
    """A filter that lets a record pass once, as those that drop repeated messages."""

    def __init__(self) -> None:
        self.seen = False

    def __call__(self, _: logging.LogRecord) -> bool:
        self.seen, had = True, self.seen
        return not had


OPENCQRS = {"opencqrs": {"handlers": ["file"], "propagate": False}}
PROCESSING = {"opencqrs.processing": {"handlers": ["console"], "propagate": False}}


@pytest.mark.parametrize(
    ("console", "loggers", "by_project"),
    [
        ({}, {}, True),
        ({}, {"opencqrs": {"handlers": ["file"]}}, True),
        ({}, OPENCQRS, False),
        ({}, {"opencqrs": {"handlers": ["file", "console"], "propagate": False}}, True),
        ({}, OPENCQRS | PROCESSING, True),
        ({"level": "WARNING"}, {}, True),
        ({"level": "ERROR"}, {}, False),
        ({"filters": [lambda _: True]}, {}, True),
        ({"filters": [lambda _: False]}, {}, False),
        ({"filters": [logging.Filter("opencqrs")]}, {}, True),
        ({"filters": [logging.Filter("mine")]}, {}, False),
        ({"filters": [replacing]}, {}, True),
        ({"filters": [replacing, lambda _: False]}, {}, False),
        ({"filters": [Once()]}, {}, False),
    ],
)
def test_a_record_is_printed_by_the_project_or_else_by_the_command(console, loggers, by_project, screen, plain_logging):
    printed = plain_logging(console, loggers)
    with records_on_terminal():
        log_notice(notice(Action.RETRY))
    assert (bool(screen.getvalue()), bool(printed.getvalue())) == (not by_project, by_project)
    assert "changed" not in screen.getvalue()


@pytest.mark.parametrize(
    ("level", "shown_level"), [({}, logging.INFO), ({"level": "WARNING"}, logging.WARNING)], ids=["unset", "set"]
)
def test_the_command_still_prints_after_a_project_has_configured_our_logger(level, shown_level, screen, plain_logging):
    with records_on_terminal(), kept_on_terminal():
        plain_logging({}, {"opencqrs": OPENCQRS["opencqrs"] | level})
        enable_loggers()
        log_notice(notice(None, None))
        log_notice(notice(Action.RETRY))
        assert logging.getLogger("opencqrs").level == shown_level
    assert [word in screen.getvalue() for word in ("recovered", "failed")] == [shown_level == logging.INFO, True]
    assert not any(isinstance(each, records.TerminalHandler) for each in logging.getLogger("opencqrs").handlers)


def test_the_command_prints_until_the_last_of_several_applications_is_closed(screen, plain_logging):
    with records_on_terminal(), kept_on_terminal():
        with kept_on_terminal():
            plain_logging({}, OPENCQRS)
            enable_loggers()
        log_notice(notice(Action.RETRY))
        plain_logging({}, OPENCQRS)
        enable_loggers()
        log_notice(notice(Action.RETRY))
    assert screen.getvalue().count("failed") == 2


def test_filters_of_the_project_are_not_asked_about_what_is_not_printed(screen, plain_logging):
    asked: list[str] = []
    plain_logging({"filters": [lambda record: bool(asked.append(record.levelname))]}, {})
    with records_on_terminal():
        print_only_warnings()
        log_notice(notice(None, None))
        assert asked == ["INFO"]  # by their handler
        log_notice(notice(Action.RETRY))
    assert (screen.getvalue().count("failed"), "recovered" in screen.getvalue()) == (1, False)


def test_a_record_at_which_a_filter_of_the_project_raises_is_printed(screen, plain_logging):
    plain_logging({"filters": [raising]}, {})
    with records_on_terminal(), pytest.raises(ValueError, match=r"^$"):
        log_notice(notice(Action.RETRY))
    assert "event 7 failed" in screen.getvalue()


@pytest.fixture
def plain_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., io.StringIO]]:
    """Configure logging as a project does, with a console at the root; what it prints is in the stream returned."""
    changed = [logging.getLogger(name) for name in ("", *OPENCQRS, *PROCESSING)]
    before = [(logger, [*logger.handlers], logger.propagate, logger.level) for logger in changed]

    def configure(console: dict[str, Any], loggers: dict[str, Any]) -> io.StringIO:
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        handlers = {
            "console": {"class": "logging.StreamHandler", **console},
            "file": {"class": "logging.NullHandler"},
        }
        parts = {"handlers": handlers, "loggers": loggers, "root": {"handlers": ["console"]}}
        logging.config.dictConfig({"version": 1, "disable_existing_loggers": False, **parts})
        return sys.stderr

    yield configure
    for logger, its, propagate, level in before:
        logger.handlers[:], logger.propagate = its, propagate
        logger.setLevel(level)


LINK = EventStoreError("OCQ-234", "a.ndjson is a link that leads nowhere", "/events/a.ndjson", "remove the link")


@pytest.mark.parametrize(
    ("error", "printed"),
    [
        (LINK, True),
        (EventStoreError("OCQ-235", LINK.what, LINK.where, LINK.fix), False),
        (EventStoreError("OCQ-234", "b.ndjson is a link that leads nowhere", LINK.where, LINK.fix), False),
        (EventStoreError("OCQ-234", LINK.what, "/events/b.ndjson", LINK.fix), False),
        (EventStoreError("OCQ-234", LINK.what, LINK.where, "put the file back"), False),
    ],
)
def test_an_error_counts_as_printed_if_a_partition_has_failed_with_it(error, printed, screen):
    with records_on_terminal() as handler:
        assert not handler.has_printed(error)
        log_notice(notice(Action.STOP, failure_of(LINK, Origin.FRAMEWORK)))
    assert handler.has_printed(error) == printed


@pytest.mark.parametrize("action", [Action.WAIT, Action.RETRY])
def test_an_error_that_is_retried_is_printed_again_at_the_end(action, screen):
    with records_on_terminal() as handler:
        log_notice(notice(action, failure_of(LINK, Origin.FRAMEWORK)))
    assert not handler.has_printed(LINK)


@pytest.mark.parametrize("for_program", [False, True])
def test_an_error_that_recurs_after_a_recovery_is_printed_again(for_program, screen):
    with records_on_terminal() as handler:
        if for_program:
            print_only_warnings()
        log_notice(notice(Action.STOP, failure_of(LINK, Origin.FRAMEWORK)))
        log_notice(notice(None, None))
    assert not handler.has_printed(LINK)


def test_an_error_that_only_the_projects_logging_received_is_printed(screen, capsys):
    handler = logging.StreamHandler(sys.stderr)
    logging.getLogger().addHandler(handler)
    try:
        with records_on_terminal() as terminal:
            log_notice(notice(Action.STOP, failure_of(LINK, Origin.FRAMEWORK)))
    finally:
        logging.getLogger().removeHandler(handler)
    assert not terminal.has_printed(LINK)
