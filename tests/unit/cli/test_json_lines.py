"""Log records as JSON lines: one valid line each, whatever they contain."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest
from rich.console import Console

from opencqrs_py.cli import output, records
from opencqrs_py.cli.json_lines import JsonFormatter, json_line
from opencqrs_py.cli.output import explain, messages, print_line
from opencqrs_py.cli.records import print_only_warnings, records_on_terminal, write_json_lines
from opencqrs_py.cli.signals import signals
from opencqrs_py.engines.driver import log_notice
from opencqrs_py.errors import AssemblyError, OnStartError
from opencqrs_py.model.masking import remember
from opencqrs_py.model.outcome import Failure, Origin
from opencqrs_py.model.partition import Partition
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


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Return what is written to standard error, as JSON lines."""
    out = io.StringIO()
    console = Console(file=out, width=20, force_terminal=True)
    monkeypatch.setattr(records, "stderr", lambda: console)
    monkeypatch.setattr(output, "stderr", lambda: console)
    line_of = signals.line_of
    with records_on_terminal():
        write_json_lines()
        yield out
    messages.line_of, signals.line_of = None, line_of


def lines(screen):
    return [json.loads(line) for line in screen.getvalue().splitlines()]


def raise_it(error):
    raise error


def caught(error):
    """Return ``sys.exc_info`` of a raised error."""
    try:
        raise_it(error)
    except Exception:
        return sys.exc_info()


def formatted(message, *arguments, **changes):
    record = logging.LogRecord("opencqrs.x", logging.WARNING, "file.py", 1, message, arguments, None)
    record.created = 1_767_780_900.5
    vars(record).update(changes)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    return json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_a_line_has_time_level_logger_and_message_first():
    assert list(formatted("100 %s", "%").items()) == [
        ("time", "2026-01-07T10:15:00.500Z"),
        ("level", "WARNING"),
        ("logger", "opencqrs.x"),
        ("message", "100 %"),
    ]


@pytest.mark.parametrize(
    ("message", "arguments", "text"),
    [
        ("two\nlines\r\n\ttab", (), "two\nlines\r\n\ttab"),
        ('"quoted" \\ {} \x00\x1b[31m\u2028', (), '"quoted" \\ {} \x00\x1b[31m\u2028'),
        ("Zürich 🏔", (), "Zürich 🏔"),
        ("file \udcff", (), "file \\udcff"),
        ("%d of %d", (1,), "%d of %d (1,)"),
        ("%d", ("x",), "%d ('x',)"),
        (ValueError("an object"), (), "an object"),
    ],
)
def test_any_message_is_valid_json_on_one_line(message, arguments, text):
    assert formatted(message, *arguments)["message"] == text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (7, 7),
        (None, None),
        (True, True),
        (1.5, 1.5),
        (10**30, 10**30),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (Partition(2, 1), "1/2"),
        (["a", 1], "['a', 1]"),
        ("\udcff", "\\udcff"),
    ],
)
def test_any_extra_is_a_key_with_a_json_value(value, shown):
    assert formatted("x", thing=value)["thing"] == shown


def test_an_extra_never_replaces_a_standard_key():
    line = formatted("x", time="noon", level="deep", logger="a tool")
    assert (line["level"], line["extra_time"], line["extra_level"], line["extra_logger"]) == (
        "WARNING",
        "noon",
        "deep",
        "a tool",
    )


def test_an_exception_is_text_in_the_same_line():
    line = formatted("failed", exc_info=caught(ValueError("no\nway")), stack_info="Stack ...")
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert line["exception"].endswith("ValueError: no\nway")
    assert line["stack"] == "Stack ..."
    assert "exception" not in formatted("x", exc_info=(None, None, None))


def test_secrets_are_hidden_in_every_part():
    remember(["hunter22"])
    error = caught(ValueError("hunter22"))
    line = formatted("at postgresql://joe:hunter22@host/db", thing="hunter22", exc_info=error)
    assert "hunter22" not in json.dumps(line)
    assert line["message"] == "at postgresql://joe:***@host/db"


def test_secrets_are_hidden_in_plain_text_output(monkeypatch):
    remember(["hunter22"])
    out = io.StringIO()
    console = Console(file=out, width=200)
    monkeypatch.setattr(records, "stderr", lambda: console)
    with records_on_terminal():
        logging.getLogger("opencqrs.x").warning("it was hunter22")
    assert out.getvalue().endswith("it was ***\n")


def test_a_notice_has_keys_for_the_action_and_its_place(screen):
    log_notice(Notice("books", Partition(2, 1), Action.RETRY, FAILED, attempt=1, wait=2.0))
    (line,) = lines(screen)
    assert line["message"].startswith("[books 1/2] event 7 failed on attempt 1")
    assert {
        key: line[key] for key in ("level", "action", "group", "partition", "event", "position", "attempt", "code")
    } == {
        "level": "WARNING",
        "action": "retry",
        "group": "books",
        "partition": "1/2",
        "event": "event 7",
        "position": 7,
        "attempt": 1,
        "code": "OCQ-228",
    }


def test_messages_of_the_command_are_json_lines(screen):
    for style in ("default", "yellow", "red"):
        print_line("a message", style)
    explain(AssemblyError("OCQ-508", "no handlers were found", "here", "write some"))
    *said, error = lines(screen)
    assert [(line["logger"], line["level"]) for line in said] == [
        ("opencqrs.command", level) for level in ("INFO", "WARNING", "ERROR")
    ]
    assert (error["level"], error["code"]) == ("ERROR", "OCQ-508")
    assert error["message"] == "[OCQ-508] no handlers were found\n  where: here\n  fix:   write some"


def test_an_error_of_project_code_includes_its_traceback(screen):
    error = OnStartError("OCQ-507", "@on_start raised")
    _, error.__cause__, _ = caught(ValueError("no table"))
    explain(error)
    (line,) = lines(screen)
    assert line["message"].startswith("[OCQ-507] @on_start raised\n")
    assert "ValueError: no table" in line["message"]


def test_for_a_program_only_warnings_are_written(screen):
    print_only_warnings()
    logging.getLogger("opencqrs.x").info("all is well")
    logging.getLogger("opencqrs.x").warning("not all")
    assert [line["message"] for line in lines(screen)] == ["not all"]


@pytest.mark.usefixtures("screen")
def test_the_message_about_a_signal_is_a_json_line():
    assert json.loads(signals.line_of("interrupted"))["message"] == "interrupted"


def test_a_message_without_a_code_has_no_code_key():
    assert "code" not in json.loads(json_line("x", logging.ERROR))
