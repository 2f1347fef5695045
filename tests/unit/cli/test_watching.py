"""``opencqrs status --watch``: periodic updates, even during outages, until an interrupt."""

from __future__ import annotations

import io
import json
from itertools import count

import pytest
from rich.console import Console

from opencqrs_py.assembly.status import GroupStatus
from opencqrs_py.cli import tables, watching
from opencqrs_py.cli.watching import Display, LineDisplay, TerminalDisplay, Watcher
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import PartitionStatus, ProcessorState

OUTAGE = EventStoreError("OCQ-304", "the database does not answer", "postgresql://host/db")


class FakeApplication:
    """An application that returns positions or raises errors, and then is interrupted."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def status(self):
        if not self.answers:
            raise KeyboardInterrupt
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        status = PartitionStatus("books", Partition(1, 0), answer, ProcessorState.RUNNING)
        return [GroupStatus("books", 100, (status,))]


@pytest.fixture
def screen(monkeypatch):
    return shown_on(monkeypatch, terminal=False)


def shown_on(monkeypatch, *, terminal):
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=terminal, color_system=None)
    for module in (tables, watching):
        monkeypatch.setattr(module, "stdout", lambda: console)
    monkeypatch.setattr(watching, "print_line", lambda text, style: out.write(f"{style}: {text}\n"))
    return out


def watched(display, *answers, every=2.0):
    """Run with a clock that advances by a second at each reading; return the pauses."""
    pauses, times = [], count()
    watcher = Watcher(FakeApplication(*answers), every, display, pauses.append, lambda: float(next(times)))
    with pytest.raises(KeyboardInterrupt):
        watcher.run()
    return pauses


def test_each_update_is_a_block_below_its_time_with_the_rate_since_the_previous_one(screen):
    watched(Display(), 10, 40)
    first, second = screen.getvalue().strip().split("\n\n")
    assert "events/s" not in first
    assert second.splitlines()[1].split() == ["group", "partition", "position", "lag", "events/s", "state"]
    assert second.splitlines()[2].split() == ["books", "0/1", "40", "60", "10", "running"]


def test_the_duration_of_an_update_shortens_the_pause_after_it(screen):
    assert watched(Display(), 10, 40, every=5.0) == [3.0, 3.0]
    assert watched(Display(), 10, every=0.5) == [0.0]


def test_an_outage_is_reported_once_and_watching_continues(screen):
    watched(Display(), OUTAGE, OUTAGE, 10, OUTAGE)
    said = "yellow: nothing can be shown: [OCQ-304] the database does not answer, postgresql://host/db; trying again"
    assert screen.getvalue().count(said) == 2
    assert "books" in screen.getvalue()


def test_other_errors_end_the_command():
    with pytest.raises(ValueError, match="a defect"):
        Watcher(FakeApplication(ValueError("a defect")), 1.0, Display(), lambda _: None).run()


def test_for_programs_each_update_is_a_json_line(capsys):
    watched(LineDisplay(), 10, 40)
    looks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [look[0]["partitions"][0]["events_per_second"] for look in looks] == [None, 10.0]


def test_on_a_terminal_each_update_replaces_the_previous_one(monkeypatch):
    screen = shown_on(monkeypatch, terminal=True)
    watched(TerminalDisplay(), 10, OUTAGE, 40)
    looks = screen.getvalue().split("\x1b[2J\x1b[H")[1:]
    assert [("books" in look, "nothing can be shown" in look) for look in looks] == [
        (True, False),
        (False, True),
        (True, False),
    ]
    assert looks[-1].endswith("\n\n")  # a message begins on a line of its own


def test_an_interrupted_update_is_not_shown_partially(monkeypatch):
    screen = shown_on(monkeypatch, terminal=True)
    monkeypatch.setattr(watching, "print_groups", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    watched(TerminalDisplay(), 10)
    assert screen.getvalue() == ""
