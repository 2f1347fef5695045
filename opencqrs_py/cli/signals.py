"""Ctrl-C and SIGTERM: every command ends the same way, at any moment.

The first signal raises ``KeyboardInterrupt`` on the main thread, so that what is open gets closed. SIGTERM does so only
when the settings are read, as one of them is its exit code; until then nothing is open. In any case, the process ends
with one line and the exit code of the signal: from then on standard error shows nothing but our own messages, and a
separate thread ends the process if closing takes too long or a second signal comes. It works while the main thread is
inside a C library, too, because Python writes each signal to a pipe before it runs its handlers.

The sudden end loses nothing: whatever is not committed is rolled back, as after ``kill -9``.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from threading import Thread, main_thread
from types import FrameType
from typing import Any, NoReturn

INTERRUPTED = 130
END_SECONDS = 1.8  # from the first signal until the process is ended, so that all is over within two seconds
SAME_SECONDS = 0.3  # within which a second signal is the first one, sent to the process and to its group

_SHOW_CURSOR = b"\x1b[?25h"
_POLL_SECONDS = 0.1
_HANDLED = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """The handling of SIGINT and SIGTERM in this process.

    Attributes:
        received: The first signal that came, 0 before.
        terminated: The exit code after SIGTERM; ``None`` until the settings are read, which name it.
        held: Names of the partitions that run. While there are any, they may finish their work in progress, and the
            command itself reports how it ended, unless the time runs out first.
        line_of: Makes a line of a message.
        said: Whether the interruption was reported.
        finished: Whether the command has ended; a signal that comes now changes nothing.
    """

    def __init__(self) -> None:
        self.received = 0
        self.terminated: int | None = None
        self.held: Collection[str] = ()
        self.finished = False
        self._messages = 2  # where messages go: the terminal, also when standard error is shut
        self.line_of: Callable[[str], str] = str
        self.said = False
        self._reading = -1
        self._swallowed = False  # whether Python has discarded the interrupt, so that it is raised again

    @property
    def exit_code(self) -> int:
        """The exit code after the signal that was received."""
        return self._code_after(self.received)

    def settle(self, terminated: int) -> None:
        """Set the exit code after SIGTERM, and end the command if that signal came before its code was known."""
        self.terminated = terminated
        if self.received:
            raise KeyboardInterrupt

    def install(self) -> None:
        """Handle both signals from now on; one that is ignored, as in the background of a shell script, stays so."""
        sys.excepthook = self._unhandled
        sys.unraisablehook = self._unraisable
        atexit.register(self._leave)  # the first to be registered is the last to be called
        for number in _HANDLED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._receive)
        if os.name == "posix":
            self._reading, writing = os.pipe()
            os.set_blocking(writing, False)
            signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
            Thread(target=self._guard, name="opencqrs-signals", daemon=True).start()

    def say(self, text: str) -> None:
        """Print a line among the messages; never waits for a reader that has stopped reading."""
        self.said = True
        self._write(f"{self.line_of(text)}\n".encode())

    def _write(self, text: bytes) -> None:
        if select.select([], [self._messages], [], 0)[1]:
            with suppress(OSError):  # as of a reader that has ended
                os.write(self._messages, text)

    def conclude(self) -> NoReturn:
        """End the command after the signal that was received."""
        if not self.said:
            self.say("interrupted")
        sys.exit(self.exit_code)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.received or self.finished:  # the guard handles the others
            if self._swallowed and not self.finished:
                self._swallowed = False
                raise KeyboardInterrupt
            return
        self.received = number
        self._messages = os.dup(2)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        sys.stderr = os.fdopen(null, "w", encoding="utf-8", errors="replace")
        if number == signal.SIGTERM and self.terminated is None:
            return  # the command continues until its settings are read, in a moment; the guard enforces the limit
        if self.held:
            self._redirect_console()
        else:
            self.say("interrupted")
        raise KeyboardInterrupt

    def _code_after(self, number: int) -> int:
        return INTERRUPTED if number != signal.SIGTERM or self.terminated is None else self.terminated

    def _redirect_console(self) -> None:
        """Let the command's messages reach the terminal: it will itself report where the partitions are."""
        from opencqrs_py.cli.output import stderr  # noqa: PLC0415 loaded by the command that holds partitions
        from opencqrs_py.cli.streams import losing  # noqa: PLC0415 likewise

        stderr().file = losing(os.fdopen(os.dup(self._messages), "w", encoding="utf-8", errors="replace"))

    def _leave(self) -> None:
        """Ignore signals while Python shuts down, when our handlers would no longer be called.

        After a signal end at once: Python would kill itself with SIGINT if the interrupt had passed through ``exec`` of
        a text, as that of dataclasses, even though it was caught.
        """
        if self.received:
            from opencqrs_py.cli.streams import results  # noqa: PLC0415 as the command line does

            with suppress(OSError, ValueError):
                results().flush()
            os._exit(self.exit_code)
        try:
            sys.stderr.flush()
        except (OSError, ValueError):  # messages that cannot be written would make the exit code 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        for number in _HANDLED:
            signal.signal(number, signal.SIG_IGN)

    def _unhandled(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if self.received:
            self._end_now(self.exit_code)
        sys.__excepthook__(kind, error, trace)

    def _unraisable(self, discarded: Any) -> None:
        """Notice that Python has discarded the interrupt, which came while it ran a finalizer."""
        if self.received and issubclass(discarded.exc_type, KeyboardInterrupt):
            self._swallowed = True
        else:
            sys.__unraisablehook__(discarded)

    def _guard(self) -> None:
        """Wait for the first signal, and then for the end: of the command, by a second signal, or of the time limit.

        A signal that arrives just before the main thread blocks, or on another thread, does not wake the main thread,
        which would look at its handlers only after the wait: sent to the main thread, it ends the wait. An interrupt
        that Python has discarded is sent again, too.
        """
        while not (came := [number for number in os.read(self._reading, 64) if number in _HANDLED]):
            pass
        began = time.monotonic()
        ours, nudged = 0, False
        while (passed := time.monotonic() - began) < END_SECONDS:
            if select.select([self._reading], [], [], min(_POLL_SECONDS, END_SECONDS - passed))[0]:
                again = sum(number in _HANDLED for number in os.read(self._reading, 64))
                if again > ours and passed > SAME_SECONDS:
                    break
                ours = max(ours - again, 0)
            elif self._swallowed or not (self.received or nudged):
                ours, nudged = 1, True
                signal.pthread_kill(main_thread().ident or 0, came[0])
        self._end_now(self._code_after(came[0]))

    def _end_now(self, code: int) -> NoReturn:
        if os.isatty(self._messages):
            self._write(_SHOW_CURSOR)
        if not self.said:
            self.say(_cut_off(list(self.held)))
        launching = sys.modules.get("opencqrs_py.engines.spark.launching")
        if launching is not None:
            launching.end_jvms(patience=0)
        os._exit(code)


def _cut_off(held: Sequence[str]) -> str:
    """Return the message for a run that ended before its partitions had stopped; what each has in hand is not known."""
    if not held:
        return "interrupted"
    first, *others = sorted(held)
    names = f"{first} and {len(others)} more" if others else first
    return f"interrupted before {names} had stopped; events that were not committed are handled again"


signals = Signals()
