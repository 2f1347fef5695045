"""A signal ends every command in the same way, whatever it is doing. Each case runs in its own process."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import tempfile
import termios
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent, indent

import pytest

from opencqrs_py.cli import signals as limited

PROGRAM = """
import logging, os, sqlite3, sys, threading, time
import opencqrs_py.cli
entry = opencqrs_py.cli.main
import opencqrs_py.cli.main as commands
from opencqrs_py.cli.signals import signals

def ready():
    print("ready", flush=True)

def command():
{body}

commands.main = command
entry()
"""
LONG = 60
"""Seconds that each case would take without the signal."""

SOON = "sys.modules['opencqrs_py.cli.signals'].END_SECONDS = 0.3\n"
"""Put before a command that does not end by itself after a signal: it is ended sooner, and otherwise as usual."""

PATIENT = "sys.modules['opencqrs_py.cli.signals'].END_SECONDS = 600\n"
"""Put before a command that ends by itself after a signal: the test fails if it does not."""

CUT_OFF = "interrupted before books 0/2 and 1 more had stopped; events that were not committed are handled again"


@dataclass
class Ended:
    code: int
    out: str
    err: str


def ended(body: str, *sent: signal.Signals, until_it_ends: bool = False) -> Ended:
    """Run a command, send it signals once it is ready, and return how it ended.

    With `until_it_ends` the second is sent once the first was received, and repeated until the process ends.
    """
    program = PROGRAM.format(body=indent(dedent(body), "    "))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "program.py").write_text(program)
        command = [sys.executable, "-m", "program"]
        with subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            return wait_for_end(process, sent, until_it_ends=until_it_ends)


def wait_for_end(process: subprocess.Popen[str], sent: Sequence[signal.Signals], *, until_it_ends: bool) -> Ended:
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for number, each in enumerate(sent):
            if number and until_it_ends:
                assert process.stdout.readline() == "ready\n"  # again, after it has received the first signal
            process.send_signal(each)
        while until_it_ends and process.poll() is None:
            process.send_signal(sent[-1])
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.1)
        out, err = process.communicate(timeout=LONG - 10)
    finally:
        process.kill()
    return Ended(process.returncode, out, err)


COMMANDS = {
    "sleeps": "ready(); time.sleep(60)",
    "raises another error when it is interrupted": """
        try:
            ready()
            time.sleep(60)
        finally:
            raise LookupError("this is a consequence")
        """,
    "prints while it closes": """
        try:
            ready()
            time.sleep(60)
        except KeyboardInterrupt:
            logging.getLogger("py4j").error("noise", exc_info=True)
            print("noise", file=sys.stderr)
            os.write(2, b"noise of a library\\n")
            os.system("echo noise of a child >&2")
            raise
        """,
    "swallows the interrupt": """
        try:
            ready()
            time.sleep(60)
        except BaseException:
            time.sleep(60)
        """,
    "is interrupted where Python cannot raise": """
        class Closing:
            def __del__(self):
                ready()
                time.sleep(60)
        Closing()
        time.sleep(60)
        """,
    "is inside a C library": """
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            holder, waiting = (sqlite3.connect(folder + "/a.db", timeout=60, isolation_level=None) for _ in range(2))
            holder.execute("BEGIN EXCLUSIVE")
            ready()
            waiting.execute("BEGIN EXCLUSIVE")
        """,
    "is interrupted in the text of a program": """
        exec("ready(); time.sleep(60)")
        """,
    "waits for a thread at its end": """
        threading.Thread(target=time.sleep, args=(60,)).start()
        ready()
        time.sleep(60)
        """,
    "reads its input": "ready(); os.read(os.pipe()[0], 1)",
}
ENDLESS = {"swallows the interrupt", "is inside a C library", "waits for a thread at its end"}


def program_of(command: str) -> str:
    return (SOON if command in ENDLESS else PATIENT) + dedent(COMMANDS[command])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_ends_a_command_with_one_line_and_130(command):
    assert ended(program_of(command), signal.SIGINT) == Ended(130, "", "interrupted\n")


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_only_sigterm_ends_with_its_configured_code(sent, code):
    for command in ("sleeps", "swallows the interrupt"):
        body = f"signals.terminated = 0\n{program_of(command)}"
        assert ended(body, sent) == Ended(code, "", "interrupted\n")


BEFORE_SETTINGS = """
    ready()
    while not signals.received:
        time.sleep(0.01)
    """


def test_sigterm_before_the_settings_are_read_ends_with_their_code():
    reads = f"{PATIENT}{dedent(BEFORE_SETTINGS)}signals.settle(7)\ntime.sleep(60)"
    assert ended(reads, signal.SIGTERM) == Ended(7, "", "interrupted\n")


@pytest.mark.parametrize(
    ("limit", "then"), [(SOON, "time.sleep(60)"), (PATIENT, "sys.exit(2)"), (PATIENT, "raise LookupError")]
)
def test_sigterm_ends_a_command_that_reads_no_settings_with_130(limit, then):
    assert ended(f"{limit}{dedent(BEFORE_SETTINGS)}{then}", signal.SIGTERM) == Ended(130, "", "interrupted\n")


HOLDING = """
    signals.terminated = 130
    signals.held = {"books 1/2", "books 0/2"}
    try:
        ready()
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(0.4)
        signals.say("stopped")
        raise
    """
HANGING = """
    signals.terminated = signals.terminated or 130
    signals.held = {"books 1/2", "books 0/2"}
    try:
        ready()
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(60)
    """


@pytest.mark.parametrize("sent", [[signal.SIGINT], [signal.SIGINT] * 2, [signal.SIGTERM], [signal.SIGTERM] * 2])
@pytest.mark.few
def test_a_command_with_partitions_prints_the_only_line_itself(sent):
    """The same interrupt reaches a process twice when it is sent to the process and to its group."""
    assert ended(PATIENT + dedent(HOLDING), *sent) == Ended(130, "", "stopped\n")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.release(sent=signal.SIGTERM)
def test_a_signal_delivered_to_another_thread_wakes_the_main_thread(sent):
    """The same happens to a signal that arrives between Python's last check for signals and a blocking call."""
    send = f"signal.pthread_kill(threading.get_ident(), {int(sent)})"
    elsewhere = f"{PATIENT}import signal\nthreading.Timer(0.2, lambda: {send}).start()\n{dedent(HOLDING)}"
    assert ended(elsewhere) == Ended(130, "", "stopped\n")


def test_an_interrupt_that_python_discards_is_raised_again():
    finalized = """
        signals.terminated = 130
        signals.held = {"books 1/2", "books 0/2"}
        class Closing:
            def __del__(self):
                ready()
                time.sleep(60)
        try:
            Closing()
            time.sleep(60)
        except KeyboardInterrupt:
            signals.say("stopped")
            raise
        """
    assert ended(PATIENT + dedent(finalized), signal.SIGINT) == Ended(130, "", "stopped\n")


def test_partitions_that_do_not_stop_in_time_are_named_in_one_line():
    waits = dedent(HANGING).replace("KeyboardInterrupt:", "KeyboardInterrupt:\n    print('interrupted', flush=True)")
    assert ended(waits, signal.SIGTERM) == Ended(130, "interrupted\n", f"{CUT_OFF}\n")


def test_the_time_limit_is_below_two_seconds():
    assert limited.END_SECONDS < 2


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("first", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 7)])
@pytest.mark.few
def test_a_second_signal_ends_at_once_with_the_code_of_the_first(first, second, code):
    hanging = dedent(HANGING).replace("KeyboardInterrupt:", "KeyboardInterrupt:\n    ready()")
    endless = f"{PATIENT}signals.terminated = 7\n{hanging}"
    again = ended(endless, first, second, until_it_ends=True)
    assert again == Ended(code, "", f"{CUT_OFF}\n")


def test_a_signal_after_the_end_has_no_effect():
    done = ended("import atexit; atexit.register(lambda: (ready(), time.sleep(0.5))); sys.exit(3)", signal.SIGINT)
    assert done == Ended(3, "", "")


def test_an_error_without_a_signal_is_shown_as_usual():
    done = ended("ready(); raise LookupError('a fault of ours')")
    assert (done.code, done.err.splitlines()[-1]) == (1, "LookupError: a fault of ours")


def test_an_interrupt_ignored_from_the_start_stays_ignored():
    """As in a shell script: its background programs must not end by a Ctrl-C meant for others."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        done = ended("ready(); time.sleep(0.5); sys.exit(0)", signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == Ended(0, "", "")


def interrupted(program: str, messages: int) -> int:
    """Interrupt a program whose messages are not read; return its exit code."""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=messages) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        try:
            return process.wait(LONG - 10)
        finally:
            process.kill()


def test_messages_do_not_wait_for_a_reader_that_has_stopped_reading():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 65_536)
    except BlockingIOError:
        os.set_blocking(writing, True)
    program = PROGRAM.format(body="    ready(); time.sleep(60)")
    try:
        assert interrupted(program, writing) == 130
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(program_of("swallows the interrupt"), id="swallows the interrupt"),
        pytest.param(PATIENT + "ready()\nwhile True:\n    os.write(2, b'x' * 80)", id="waits for the terminal"),
    ],
)
def test_a_command_ends_even_if_its_terminal_is_stopped(body):
    """As by Ctrl-S: writes to it block until Ctrl-Q."""
    terminal, end = pty.openpty()
    termios.tcflow(end, termios.TCOOFF)
    program = PROGRAM.format(body=indent(body, "    "))
    try:
        assert interrupted(program, end) == 130
    finally:
        os.close(terminal)
        os.close(end)
