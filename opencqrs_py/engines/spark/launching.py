"""Launching a JVM beside this process: its settings, which process gets which signal, what is shown, when it ends.

PySpark offers no setting for signals and messages; it calls ``Popen``, which we intercept. It would pass Spark's
settings as arguments, which every user of a machine can read; here they are in a properties file that only its owner
can read, and that is deleted as soon as the JVM runs. Runs on the driver, while the session is opened.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from threading import Lock, Thread, current_thread, main_thread
from typing import Any

import pyspark.java_gateway
from pyspark import SparkContext
from pyspark.sql import SparkSession

from opencqrs_py.errors import EngineError

# What the JVM prints at every start, whatever the settings.
_START_NOISE = (
    "WARNING: Using incubator modules",
    "WARNING: package sun.security.action not in java.base",
    "Setting default log level to",
    "To adjust logging level use",
    "Setting Spark log level to",
    "NOTE: Picked up JDK_JAVA_OPTIONS",
    "Picked up JAVA_TOOL_OPTIONS",
)
# What it prints besides the reason, if it cannot start.
_REFUSALS = ("Error occurred during initialization of VM", "Error: Could not create", "Error: A fatal exception")
_LONGEST_FOLDER = 60  # characters; the path of a socket has room for about 100
_TRACEBACK = b"Traceback (most recent call last):"
_CUT = (b"BrokenPipeError", b"ConnectionResetError")
_END_SECONDS = 0.5  # to wait for the end of a JVM

_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_JAVA_OPTIONS = "SPARK_SUBMIT_OPTS"
_LAUNCHER_OPTIONS = "SPARK_LAUNCHER_OPTS"
_FILE_OPTION = "--properties-file"
_SETTING_OPTIONS = ("--conf", "-c")
_ESCAPED = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
_jvms: list[subprocess.Popen[bytes]] = []


class JvmOutput:
    """What a JVM writes to standard output and error. Held back during its launch, since it explains a failed start.

    Args:
        quiet: Whether to hold it back, and to omit what every JVM prints at its start.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._noise = _START_NOISE if quiet else ()
        self._held: list[bytes] | None = [] if quiet else None
        self._lock = Lock()
        self._reader: Thread | None = None

    def forward(self, reading: int) -> None:
        """Show from now on what arrives at a file descriptor, or hold it back."""
        self._reader = Thread(target=self._forward, args=(reading,), name="opencqrs-jvm", daemon=True)
        self._reader.start()

    def refusal(self) -> str:
        """Return why the JVM has exited, and no longer show that; empty if it has not exited, or gave no reason."""
        if not _jvms or self._reader is None or self._held is None:
            return ""
        with suppress(subprocess.TimeoutExpired):
            _jvms[-1].wait(_END_SECONDS)
            self._reader.join(_END_SECONDS)
            with self._lock:
                said = b"".join(self._held).decode(errors="replace").splitlines()
                self._held.clear()
            reasons = (line.strip() for line in takewhile(_is_before_usage, said) if not line.startswith(_REFUSALS))
            return cause_in(said) or "; ".join(filter(None, reasons))
        return ""

    def show(self) -> None:
        """Show what was held back, and all that follows."""
        with self._lock:
            held, self._held = self._held, None
            _write(b"".join(held or ()))

    def _forward(self, reading: int) -> None:
        shown = _Shown(self._noise)
        with os.fdopen(reading, "rb", buffering=0) as lines:
            rest = b""
            while part := lines.read(65_536):
                *whole, rest = (rest + part).split(b"\n")
                self._put(b"".join(line + b"\n" for line in shown.of(whole)))
            self._put(shown.at_end(rest))

    def _put(self, text: bytes) -> None:
        with self._lock:
            if self._held is None:
                _write(text)
            else:
                self._held.append(text)


def _is_before_usage(line: str) -> bool:
    return not line.startswith("Usage: ")  # which Spark prints after what is wrong with an argument


def cause_in(lines: Iterable[str]) -> str:
    """Return the last cause that a trace of Java names, without its package; empty if it names none."""
    causes = [line.strip() for line in lines if line.startswith((": ", "Caused by: "))]
    return re.sub(r"^(: |Caused by: )(\w+\.)*", "", causes[-1]) if causes else ""


@contextmanager
def launching(*, quiet: bool, java_options: Sequence[str] = ()) -> Iterator[JvmOutput]:
    """Make PySpark launch its JVM in a separate process group; if the block fails, end it.

    This process handles Ctrl-C and any other signal that a terminal or a supervisor sends to the whole group. The JVM
    ends with this process in any case, because it notices when its standard input is closed.

    ``quiet`` omits what every JVM prints at its start, and holds everything else back until it runs. What it writes
    then, such as what handlers print on executors of a local master, is shown on standard error for as long as we show
    messages.

    ``java_options`` apply to this JVM only, and come before the user's own options.
    """
    before, launched, started = signal.getsignal(signal.SIGINT), len(_jvms), JvmOutput(quiet=quiet)

    def launch(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        reading, writing = os.pipe()
        options["env"] = environment_of_launch(options.get("env") or os.environ, java_options)
        options |= {"stdout": writing, "stderr": writing, "preexec_fn": None}
        options |= {"process_group": 0} if os.name == "posix" else {}
        with _interrupts_deferred():
            _jvms.append(subprocess.Popen(command, **options))  # noqa: S603 PySpark's command
        os.close(writing)
        started.forward(reading)
        return _jvms[-1]

    gateway: Any = pyspark.java_gateway
    popen, gateway.Popen = gateway.Popen, launch
    try:
        yield started
    except BaseException:
        if len(_jvms) > launched:
            _forget_jvm()
            end_jvms()
        raise
    finally:
        started.show()
        gateway.Popen = popen
        if current_thread() is main_thread():
            signal.signal(signal.SIGINT, before)  # PySpark sets its own handler


def environment_of_launch(environ: Mapping[str, str], java_options: Sequence[str]) -> dict[str, str]:
    """Return the environment of Spark's scripts.

    They first start a small JVM, which only prints how to start the other one: it ends before optimized compilation
    pays off.
    """
    quoted = " ".join(f'"{option}"' for option in java_options)
    submit = f"{quoted} {environ.get(_JAVA_OPTIONS, '')}".strip()
    ours = {_JAVA_OPTIONS: submit} if submit else {}
    return {_LAUNCHER_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", **environ, **ours}


def jvm_of_others() -> bool:
    """Return whether Spark runs, or would be opened, on a JVM that was not launched here and outlives this process."""
    return not _jvms and (SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ)  # noqa: SLF001 the only way


def launched_jvm() -> int | None:
    """Return the process of the JVM that was launched last; ``None`` without one."""
    return _jvms[-1].pid if _jvms else None


@atexit.register
def _remove_socket_folder() -> None:
    """Remove the folder that the JVMs have used; registered before ``end_jvms``, so it comes after that."""
    if _socket_folder.cache_info().currsize:
        shutil.rmtree(_socket_folder(), ignore_errors=True)


@atexit.register
def end_jvms(patience: float = _END_SECONDS) -> None:
    """End the JVMs that were launched here, with their Python workers, and wait for that for some seconds.

    What a JVM has not done by then, such as deleting its files, it does on its own.
    """
    for jvm in _jvms if os.name == "posix" else ():
        with suppress(ProcessLookupError, PermissionError):
            if jvm.poll() is None:
                os.killpg(jvm.pid, signal.SIGTERM)
    until = time.monotonic() + patience
    for jvm in _jvms:
        with suppress(subprocess.TimeoutExpired):
            jvm.wait(max(0.0, until - time.monotonic()))
        if jvm.stdin is not None:  # PySpark's, which never closes it
            jvm.stdin.close()
    _jvms.clear()


def by_socket_files() -> dict[str, str]:
    """Return settings that let Java and Python workers of this machine communicate through files, where possible.

    Through ports of the loopback interface each job waits 40 ms, because small packets are delayed. A JVM remembers the
    folder for as long as it lives. So there is one for all sessions of a process, for this user only, and none for a
    JVM of another program.
    """
    if jvm_of_others() or not hasattr(socket, "AF_UNIX"):
        return {}
    folder = _socket_folder()
    if len(folder) > _LONGEST_FOLDER:
        return {}
    key = "spark.python.unix.domain.socket"
    return {f"{key}.enabled": "true", f"{key}.dir": folder}


@cache
def _socket_folder() -> str:
    return tempfile.mkdtemp(prefix="opencqrs-")


def _forget_jvm() -> None:
    """Let PySpark launch another JVM next time, even if this one has already answered."""
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None  # noqa: SLF001 the only way
    SparkSession._instantiatedSession = None  # noqa: SLF001 the only way


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Defer an interrupt until the end of the block: an unknown process would never be ended."""
    if current_thread() is not main_thread():  # signals can be set by the main thread only
        yield
        return
    seen: list[signal.Signals] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if callable(handler):
            signal.signal(number, lambda number, _frame: seen.append(signal.Signals(number)))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in seen:
        signal.raise_signal(number)


class _Shown:
    """What is shown of the lines that a JVM and its Python workers write to standard error.

    Lines that begin like ``noise`` are omitted, and so are tracebacks of PySpark's daemon alone: a worker whose JVM
    ends, or has cancelled its task, can no longer answer. Several workers may write theirs at once, line by line.
    ``held`` are the lines of tracebacks that have not ended.
    """

    def __init__(self, noise: tuple[str, ...]) -> None:
        self.held: list[bytes] = []
        self._open = 0  # tracebacks of which the last line is still to come
        self._noise = noise

    def of(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        for line in lines:
            if line.startswith(_TRACEBACK):
                self.held.append(line)
                self._open += 1
            elif self._open:
                self.held.append(line)
                self._open -= not line.startswith(b" ")
                if self._open == 0:
                    tracebacks, self.held = self.held, []
                    if not (self._noise and _is_of_daemon(tracebacks)):
                        yield from tracebacks
            elif not line.decode(errors="replace").startswith(self._noise):
                yield line

    def at_end(self, rest: bytes) -> bytes:
        """Return what is shown if nothing follows the lines and the beginning of one.

        A worker that is killed while it writes its traceback leaves a part of it, perhaps only the first line.
        """
        if self._noise and self._open and _may_be_of_daemon(self.held):
            return b""
        return b"".join(line + b"\n" for line in self.held) + rest


def _is_of_daemon(tracebacks: list[bytes]) -> bool:
    return any(map(_is_frame, tracebacks)) and _may_be_of_daemon(tracebacks)


def _may_be_of_daemon(tracebacks: list[bytes]) -> bool:
    files = filter(_is_frame, tracebacks)
    ends = [line for line in tracebacks if not line.startswith((_TRACEBACK, b" "))]
    return all(b"pyspark/daemon.py" in file for file in files) and all(end.startswith(_CUT) for end in ends)


def _is_frame(line: bytes) -> bool:
    return line.startswith(b"  File ")


def _write(text: bytes) -> None:
    with suppress(OSError):  # they are not read; the JVM must not block on them
        while text:
            text = text[os.write(2, text) :]


@dataclass(frozen=True)
class SubmitArguments:
    """The content of ``PYSPARK_SUBMIT_ARGS``.

    Attributes:
        settings: Its ``--conf``.
        file: Its ``--properties-file``, empty without one.
        others: All other arguments.
    """

    settings: Mapping[str, str]
    file: str
    others: tuple[str, ...]

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> SubmitArguments:
        """Read them from an environment.

        Raises:
            EngineError: OCQ-402, if they cannot be split.
        """
        settings: dict[str, str] = {}
        file = ""
        others: list[str] = []
        words = iter(_split(environ.get(_ARGUMENTS, "pyspark-shell")))
        for word in words:
            option, joined, value = word.partition("=")
            if option not in (*_SETTING_OPTIONS, _FILE_OPTION):
                others.append(word)
                continue
            value = value if joined else next(words, "")
            if option == _FILE_OPTION:
                file = value
            else:
                key, _, setting = value.partition("=")
                settings[key] = setting
        return cls(settings, file, tuple(others))


def _split(arguments: str) -> list[str]:
    try:
        return shlex.split(arguments)
    except ValueError as error:
        what = f"Spark is not started: {_ARGUMENTS} cannot be read: {error}"
        raise EngineError("OCQ-402", what, fix=f"correct or unset {_ARGUMENTS}") from None


def properties_text(settings: Mapping[str, str]) -> str:
    """Return settings in the format of ``java.util.Properties``, in ASCII."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())


@contextmanager
def settings_by_file(settings: Mapping[str, str]) -> Iterator[None]:
    """Have a JVM that PySpark launches in this block read settings from a file, which exists as long as the block.

    The settings in the user's ``PYSPARK_SUBMIT_ARGS`` are in the file, too, and take precedence.
    ``spark-defaults.conf`` applies unless those arguments name a properties file, as without this block.
    """
    before = os.environ.get(_ARGUMENTS)
    submitted = SubmitArguments.of(os.environ)
    base = Path(submitted.file).read_text(encoding="utf-8") + "\n\n" if submitted.file else ""
    handle, name = tempfile.mkstemp(prefix="opencqrs-spark-", suffix=".properties")  # with mode 0600
    try:
        with open(handle, "w", encoding="utf-8") as file:  # noqa: PTH123 - a handle, not a path
            file.write(base + properties_text({**settings, **submitted.settings}))
        defaults = () if submitted.file else ("--load-spark-defaults",)
        os.environ[_ARGUMENTS] = shlex.join([_FILE_OPTION, name, *defaults, *submitted.others])
        yield
    finally:
        Path(name).unlink(missing_ok=True)
        if before is None:
            os.environ.pop(_ARGUMENTS, None)
        else:
            os.environ[_ARGUMENTS] = before


def value_before_launch(key: str, settings: Mapping[str, str], environ: Mapping[str, str], home: str) -> str | None:
    """Return the value that a setting will have in a JVM that is launched now; ``None`` without one.

    ``settings`` are what the session is opened with; ``home`` is Spark's folder, for ``spark-defaults.conf`` if
    ``SPARK_CONF_DIR`` is not set.
    """
    submitted = SubmitArguments.of(environ)
    for said in (settings, submitted.settings):
        if key in said:
            return said[key]
    folder = environ.get("SPARK_CONF_DIR") or str(Path(home, "conf"))
    file = Path(submitted.file or Path(folder, "spark-defaults.conf"))
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    found = re.findall(rf"^[ \t]*{re.escape(key)}(?:[ \t]*[=:][ \t]*|[ \t]+)(.*?)[ \t\r]*$", text, re.MULTILINE)
    return str(found[-1]) if found else None


def _escaped(text: str) -> str:
    """Escape what has a meaning in a key or in a value; unnecessary escapes are harmless."""
    return "".join(
        _ESCAPED.get(c) or (f"\\{c}" if c in " =:#!" else c if c.isascii() else _as_unicode(c)) for c in text
    )


def _as_unicode(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
