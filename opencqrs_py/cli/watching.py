"""``opencqrs status --watch``: refreshes the status, in place on a terminal, until Ctrl-C."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NoReturn, Protocol

import orjson
from typing_extensions import override

from opencqrs_py.assembly.rates import Rates
from opencqrs_py.assembly.rows import group_rows
from opencqrs_py.cli.output import clean, print_line, stdout
from opencqrs_py.cli.streams import results
from opencqrs_py.cli.tables import print_groups

if TYPE_CHECKING:
    from opencqrs_py.assembly.status import GroupStatus

DEFAULT_SECONDS = 2.0
_CLEAR = "\x1b[2J\x1b[H"


class StatusSource(Protocol):
    """What can be polled for status, such as an application."""

    def status(self) -> list[GroupStatus]:
        """Return how far groups are."""
        ...


class Display:
    """Shows one status after another: a table each, below the time."""

    def show(self, statuses: Sequence[GroupStatus]) -> None:
        """Show a status."""
        stdout().print(_time())
        print_groups(statuses, {})
        stdout().print()
        sys.stdout.flush()

    def outage(self, line: str) -> None:
        """Show why there is no status; the same reason is not repeated."""
        print_line(line, "yellow")


class LineDisplay(Display):
    """The same for programs: one JSON array a line."""

    @override
    def show(self, statuses: Sequence[GroupStatus]) -> None:
        results().write(orjson.dumps(group_rows(statuses), option=orjson.OPT_NON_STR_KEYS).decode() + "\n")
        results().flush()


class TerminalDisplay(Display):
    """The same in place: each status begins on an empty screen, and is written at once, so that none is cut short."""

    def show(self, statuses: Sequence[GroupStatus]) -> None:
        """Show a status in place of the previous one."""
        with stdout().capture() as shown:
            super().show(statuses)
        _replace_screen(shown.get())

    def outage(self, line: str) -> None:
        """Show the outage in place of the last status."""
        with stdout().capture() as shown:
            stdout().print(_time())
            stdout().print(clean(line), style="yellow", markup=False, soft_wrap=True)
        _replace_screen(shown.get())


@dataclass(frozen=True, slots=True)
class Watcher:
    """Polls the status and shows it, until it is stopped.

    Attributes:
        source: What is polled.
        every: Seconds between two polls.
        display: Shows them.
        pause: Waits for a number of seconds.
        now: Returns the seconds of a clock that never goes back.
    """

    source: StatusSource
    every: float
    display: Display
    pause: Callable[[float], object] = time.sleep
    now: Callable[[], float] = time.monotonic

    def run(self) -> NoReturn:
        """Continue until something raises, such as Ctrl-C. While a database is unavailable, wait for it."""
        rates, said = Rates(), ""
        while True:
            began = self.now()
            line = self._look(rates)
            if line and line != said:
                self.display.outage(line)
            said = line
            self.pause(max(0.0, began + self.every - self.now()))

    def _look(self, rates: Rates) -> str:
        """Show a status; return why there is none, in one line."""
        from opencqrs_py.assembly.overview import line_of_outage  # noqa: PLC0415 loads SQLAlchemy

        try:
            statuses = rates.measured(self.source.status(), self.now())
        except Exception as error:
            if (line := line_of_outage(error)) is None:
                raise
            return f"nothing can be shown: {line}; trying again"
        self.display.show(statuses)
        return ""


def watch(source: StatusSource, every: float, *, as_json: bool) -> NoReturn:
    """Show the status of an application, refreshed until Ctrl-C."""
    display = LineDisplay() if as_json else TerminalDisplay() if stdout().is_terminal else Display()
    Watcher(source, every, display).run()


def _replace_screen(text: str) -> None:
    file = stdout().file
    file.write(f"{_CLEAR}{text}")
    file.flush()


def _time() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
