"""Standard streams as every command needs them: open, able to write every character, and kept for results."""

from __future__ import annotations

import codecs
import os
import sys
from contextlib import suppress
from io import TextIOWrapper

TYPE_CHECKING = False  # as typing's; importing typing would take longer than everything before signals are handled
if TYPE_CHECKING:
    from typing import Any, BinaryIO, TextIO

_ESCAPED = "opencqrs.escaped"
_kept: list[TextIO] = []  # the stream of results, once it is no longer sys.stdout


def prepare_streams() -> None:
    """Open the null device in place of a stream that is closed, and escape characters that the output cannot encode."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # else the next file that is opened would get this number, and what is meant for the stream
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003 its only form
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 open until the end
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 open until the end
    if isinstance(sys.stdout, TextIOWrapper) and codecs.lookup(sys.stdout.encoding).name != "utf-8":
        codecs.register_error(_ESCAPED, _escaped)
        sys.stdout.reconfigure(errors=_ESCAPED)


def results() -> TextIO:
    """Return the stream that results are written to."""
    return _kept[0] if _kept else sys.stdout


def keep_output_for_results() -> None:
    """Send to standard error what other code writes to standard output, until the process ends.

    This includes what the project's code prints, on its threads and on Spark: other processes inherit the descriptor.
    It does nothing if ``sys.stdout`` was replaced, as in tests that run a command in their own process.
    """
    if _kept or sys.stdout is not sys.__stdout__ or not isinstance(sys.stdout, TextIOWrapper):
        return
    sys.stdout.flush()
    own = os.dup(1)  # not inherited by other processes
    kept = open(own, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors, closefd=False)  # noqa: SIM115 as above
    _kept.append(kept)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # as standard error, so that lines stay in order
    sys.stdout = losing(sys.stdout)


def losing(stream: TextIO | None = None) -> Any:
    """Return a stream of messages, standard error if none is named: what cannot be written to it is lost.

    Its reader has gone, or the disk is full: neither ends a run, nor makes a completed command fail.
    """
    return _Losing(stream)


class _Losing:
    def __init__(self, stream: TextIO | None) -> None:
        self._given = stream

    @property
    def _stream(self) -> TextIO:
        return sys.stderr if self._given is None else self._given

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def standard_input() -> BinaryIO:
    """Return standard input.

    Raises:
        click.UsageError: It is closed.
    """
    if sys.stdin is None:
        from click import UsageError  # noqa: PLC0415 loaded by the commands that read from it

        raise UsageError("standard input (-) is closed: name a file, or pass events with | or <")
    return sys.stdin.buffer


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Return characters in the escapes of JSON, so that JSON stays JSON."""
    import json  # noqa: PLC0415 rarely needed

    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end
