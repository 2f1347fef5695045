#!/usr/bin/env python3
"""Set this checkout up and run its example, its tests or its checks.

usage: python3 dev.py [-v] COMMAND

    demo [REPOSITORY]   run the main example on the history of a git repository (default: this one)
    test                run all checks and tests
    test --coverage     the same, and measure coverage: takes three times as long
    test --all          the same with all that tests know, as before a release: takes hours
    test ARGUMENT...    run pytest with these arguments and nothing else
    check               run all checks and no tests
    lock [ARGUMENT]...  write requirements/*.lock again from pyproject.toml; arguments go to uv (--upgrade)

The first run makes the folder .venv and installs into it, which takes a few minutes; later runs start at
once. With -v the output of the set-up is shown. Python 3.11 or newer and a network are all that is needed.
"""

# Only the standard library, as nothing else is installed yet; and nothing that Python 3.6 cannot parse, so that an
# old Python can show the message about its version.

import os
import signal
import sys

INTERRUPTED = 130


def end_at_once(_number: int, _frame: object) -> None:
    """End by Ctrl-C or SIGTERM while nothing is started yet."""
    os.write(2, b"\ndev.py: interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end_at_once)

# ruff: noqa: E402 - the others take a while to import
import hashlib
import importlib.util
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

OLDEST = (3, 11)
VERSION = tuple(sys.version_info[:3])
KNOWN = ("python3.14", "python3.13", "python3.12", "python3.11")


def python_problem(version: "tuple[int, ...]", find: "Callable[[str], str | None]" = shutil.which) -> str:
    """Return the message for a Python that is too old; empty if it is not."""
    if version[:2] >= OLDEST:
        return ""
    newer = next(filter(find, KNOWN), None)
    fix = f"type {newer} dev.py ..." if newer else "install a newer one, then type (for example) python3.12 dev.py ..."
    return f"dev.py: this is Python {version[0]}.{version[1]}, and 3.11 or newer is needed\nfix: {fix}"


if python_problem(VERSION):
    sys.exit(python_problem(VERSION))

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / ("python.exe" if os.name == "nt" else "python")
STAMP = VENV / "dev.json"
LOG = VENV / "dev.log"
DEMO = ROOT / "examples" / "git_history" / "demo.py"

CHECKS = {
    "ruff format": [str(BIN / "ruff"), "format", "--check", "."],
    "ruff check": [str(BIN / "ruff"), "check", "."],
    "import rules": [str(BIN / "lint-imports"), "--no-logo"],
    "mypy": [str(PYTHON), "-m", "mypy"],
}
PYTEST = [str(PYTHON), "-m", "pytest"]
PROCESSES = min(4, (os.cpu_count() or 1) + 1)
"""One more than there are cores, as many tests wait for others; at most four, as each may start a Spark."""

SPREAD = [f"--numprocesses={PROCESSES}", "--dist=loadfile", "--no-loadscope-reorder"]
ALL_TESTS = [*PYTEST, *SPREAD, "--durations=10"]

WHOLE = {(): (), ("--coverage",): ("--cov",), ("--all",): ("--cov", "--all")}
"""What may follow ``test`` to run everything, and what pytest gets for it. Coverage takes more time than the tests."""

LOCKS = {
    "dev": ["--all-extras", "--group", "dev"],
    "run": ["--group", "build", "--constraint", "requirements/dev.lock"],
}
LOCK_HEADER = """\
# Exact versions of all that `python3 dev.py {command}` installs: Python 3.11-3.14, Linux, macOS, Windows.
# Made from pyproject.toml by `python3 dev.py lock`, which changes only what has to change; `lock --upgrade`
# takes the newest of everything.
"""

MISLEADING = ("PYTHONHOME", "PYTHONPATH", "SPARK_HOME", "PYTHONDONTWRITEBYTECODE")
"""Variables by which another Python, other packages or another Spark would be used than those in .venv; and the one by
which each of the hundreds of processes of the tests would compile all modules again."""

HINTS = (
    ("No space left on device", "free about 3 GB, or set TMPDIR to a folder on a larger disk, and try again"),
    ("CERTIFICATE_VERIFY_FAILED", "set PIP_CERT to the file with your network's certificates, and try again"),
    (
        "Failed to establish a new connection|Name or service not known|Connection refused|timed out",
        "connect to the internet (proxy: set HTTPS_PROXY; package mirror: set PIP_INDEX_URL), and try again",
    ),
    ("No matching distribution found", "use a Python from 3.11 to 3.14; this one may lack such a package yet"),
)
"""What pip may say, alternatives separated by a bar, and what to do then; the first that fits counts."""


class SetUpError(Exception):
    """A failure that the user can fix. Only its message is shown."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


class Request(NamedTuple):
    """A parsed command line."""

    command: str
    arguments: "list[str]"
    verbose: bool


class Ended(NamedTuple):
    """How a program ended: its exit code (128 + n after signal n), whether Ctrl-C was pressed, and how long it ran."""

    code: int
    interrupted: bool
    seconds: float


def main(typed: "list[str]") -> int:
    """Run the command and return the exit code."""
    try:
        request = parse(typed)
        return COMMANDS[request.command](request)
    except SetUpError as problem:
        print(f"dev.py: {problem}", file=sys.stderr)
        return problem.code
    except OSError as error:
        print(f"dev.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndev.py: interrupted", file=sys.stderr)
        return INTERRUPTED


def parse(typed: "list[str]") -> Request:
    """Parse the command line."""
    verbose = typed[:1] in (["-v"], ["--verbose"])
    command, *arguments = typed[verbose:] or ["help"]
    if command in {"-h", "--help"}:
        command = "help"
    if command not in COMMANDS:
        raise SetUpError(f"there is no command '{command}'; use one of demo, test, check, lock, help", code=2)
    if command == "check" and arguments:
        raise SetUpError("check takes no arguments; to choose tests: python3 dev.py test ARGUMENT...", code=2)
    return Request(command, arguments, verbose)


# --------------------------------------------------------------------------------------------------- commands


def show_help(_request: Request) -> int:
    """Print how this script is used."""
    print(__doc__.strip())
    return 0


def demo(request: Request) -> int:
    """Run the main example in this terminal; its exit code is ours."""
    if not DEMO.is_file():
        raise SetUpError(f"{DEMO} is missing; is the checkout complete? git status shows it")
    prepare("run", verbose=request.verbose)
    return run([str(PYTHON), str(DEMO), *request.arguments]).code


def test(request: Request) -> int:
    """Run the checks and the tests, or only pytest with the arguments given."""
    prepare("dev", verbose=request.verbose)
    options = WHOLE.get(tuple(request.arguments))
    if options is None:
        return run([*PYTEST, *request.arguments], cwd=ROOT).code
    return run_all({**CHECKS, "pytest": [*ALL_TESTS, *options]})


def check(request: Request) -> int:
    """Run the checks."""
    prepare("dev", verbose=request.verbose)
    return run_all(CHECKS)


def lock(request: Request) -> int:
    """Write both locks again, that of `demo` with the versions of that of `test`."""
    prepare("dev", verbose=request.verbose)
    for kind, options in LOCKS.items():
        target = ROOT / "requirements" / f"{kind}.lock"
        code = run(lock_command(target.relative_to(ROOT), options, request.arguments), cwd=ROOT).code
        if code:
            return code
        target.write_text(LOCK_HEADER.format(command="demo" if kind == "run" else "test") + target.read_text())
        print(f"{target.relative_to(ROOT)}: {len(packages(target.read_text()))} packages")
    return 0


COMMANDS = {"demo": demo, "test": test, "check": check, "lock": lock, "help": show_help}


def lock_command(target: Path, options: "list[str]", arguments: "list[str]") -> "list[str]":
    """Return the call of uv that writes one lock for all systems and Pythons."""
    uv = [str(BIN / "uv"), "pip", "compile", "pyproject.toml", "--quiet", "--no-header", "--no-annotate"]
    universal = ["--system-certs", "--universal", "--fork-strategy", "fewest", "--python-version", "3.11"]
    return [*uv, *universal, *options, "--output-file", target.as_posix(), *arguments]


# ----------------------------------------------------------------------------------------------- programs run


def run_all(steps: "dict[str, list[str]]") -> int:
    """Run each step under a headline, all of them even if one fails, and return 1 if one did."""
    ended = {name: run_step(name, command) for name, command in steps.items()}
    failed = [name for name, step in ended.items() if step.code]
    times = ", ".join(f"{name} {step.seconds:.1f} s" for name, step in ended.items())
    outcome = f"FAILED: {', '.join(failed)}" if failed else "all passed"
    print(f"\n{times}\n{outcome} after {sum(step.seconds for step in ended.values()):.0f} s", flush=True)
    return 1 if failed else 0


def run_step(name: str, command: "list[str]") -> Ended:
    """Run one step between its headline and its time."""
    print(f"\n--- {name} {'-' * (70 - len(name))}", flush=True)
    ended = run(command, cwd=ROOT)
    if ended.interrupted:
        raise KeyboardInterrupt
    print(f"--- {name}: {'failed' if ended.code else 'passed'} in {ended.seconds:.1f} s", flush=True)
    return ended


def run(command: "list[str]", cwd: "Path | None" = None) -> Ended:
    """Run a program in this terminal until it ends; it handles Ctrl-C itself."""
    begin, interrupted = time.monotonic(), False
    process = subprocess.Popen(command, cwd=cwd, env=environment(dict(os.environ)))
    before = signal.signal(signal.SIGTERM, lambda _signal, _frame: process.terminate())
    while True:
        try:
            code = process.wait()
            break
        except KeyboardInterrupt:
            interrupted = True
    signal.signal(signal.SIGTERM, before)
    return Ended(128 - code if code < 0 else code, interrupted, time.monotonic() - begin)


def environment(inherited: "dict[str, str]") -> "dict[str, str]":
    """Return the environment of an activated .venv, without variables that would mislead or slow Python or Spark."""
    kept = {name: value for name, value in inherited.items() if name not in MISLEADING}
    path = os.pathsep.join(filter(None, [str(BIN), kept.get("PATH", "")]))
    return {**kept, "PATH": path, "VIRTUAL_ENV": str(VENV)}


# ----------------------------------------------------------------------------------------------------- set-up


def prepare(kind: str, *, verbose: bool) -> None:
    """Make sure that .venv has what ``kind`` needs ("run" for the demo, "dev" for the tests).

    The result is recorded in a stamp: a hash of the lock and of what pyproject.toml says about the package, the
    Python and the place of the checkout. When it still holds, nothing is started.
    """
    stamp = read_stamp()
    sound = stamp.get("made") == made_for(VERSION) and PYTHON.exists()
    if sound and stamp.get(kind) == fingerprint(kind):
        return
    begin = time.monotonic()
    if not sound or not works(PYTHON):
        stamp = make_environment(verbose=verbose)
    install(kind, first="run" not in stamp, verbose=verbose)
    print(f"set up in {time.monotonic() - begin:.0f} s\n", flush=True)


def read_stamp() -> "dict[str, str]":
    """Return the stamp of .venv; empty if there is none or it is damaged."""
    if not VENV.exists():
        return {}
    if not STAMP.exists():
        raise SetUpError(f"{VENV} was not made by dev.py\nfix: move it away (mv .venv .venv-old), and try again")
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
    except ValueError:
        return {}
    return stamp if isinstance(stamp, dict) else {}


def made_for(version: "tuple[int, ...]") -> str:
    """Return what a .venv depends on: the Python, and its own path, since its scripts contain full paths."""
    return f"Python {version[0]}.{version[1]} in {VENV}"


def fingerprint(kind: str) -> str:
    """Return a hash of the lock and of those parts of pyproject.toml that an installation depends on."""
    import tomllib  # noqa: PLC0415 - Python 3.11 has it, and older ones have to get past the imports

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    parts = [project.get("build-system"), project.get("project"), project.get("tool", {}).get("hatch")]
    lock = (ROOT / "requirements" / f"{kind}.lock").read_bytes()
    return hashlib.sha256(lock + json.dumps(parts, sort_keys=True).encode()).hexdigest()


def works(python: Path) -> bool:
    """Return whether this interpreter starts and has pip."""
    try:
        return subprocess.run([python, "-I", "-c", "import pip"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def make_environment(*, verbose: bool) -> "dict[str, str]":
    """Make .venv, replacing an existing one, and return its stamp."""
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        raise SetUpError(missing_module(missing[0], VERSION))
    if VENV.exists():
        print("making .venv again: it is broken, or from another Python or place", flush=True)
        shutil.rmtree(VENV)
    VENV.mkdir()
    write_stamp({})
    base = getattr(sys, "_base_executable", sys.executable)
    label = "making .venv with Python {}.{}.{}".format(*VERSION)
    set_up(label, [base, "-I", "-m", "venv", str(VENV)], verbose=verbose)
    stamp = {"made": made_for(VERSION)}
    write_stamp(stamp)
    return stamp


def missing_module(name: str, version: "tuple[int, ...]") -> str:
    """Return the command that installs a missing part of this Python, as on Debian and Ubuntu."""
    package = f"python{version[0]}.{version[1]}-venv"
    return f"this Python has no module '{name}'\nfix: on Debian and Ubuntu: sudo apt install {package}"


def install(kind: str, *, first: bool, verbose: bool) -> None:
    """Install the packages of a lock and the checkout itself, and write the stamp. Fitting packages stay."""
    lock = ROOT / "requirements" / f"{kind}.lock"
    count = len(packages(lock.read_text(encoding="utf-8")))
    pip = [str(PYTHON), "-I", "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    label = f"installing {count} packages ({'first time only, a few minutes' if first else 'some are new'})"
    set_up(label, [*pip, "--requirement", str(lock)], verbose=verbose)
    itself = [*pip, "--no-deps", "--no-build-isolation", "--editable", str(ROOT)]
    set_up("installing opencqrs-py itself", itself, verbose=verbose)
    # dev.lock holds all of run.lock. The other way round, the tests' packages may have become old.
    done = {"dev": ("run", "dev"), "run": ("run",)}[kind]
    write_stamp({"made": made_for(VERSION), **{name: fingerprint(name) for name in done}})


def packages(lock: str) -> "list[str]":
    """Return the lines of a lock that name a package."""
    return [line for line in lock.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def write_stamp(stamp: "dict[str, str]") -> None:
    """Record what .venv contains."""
    STAMP.write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")


def set_up(label: str, command: "list[str]", *, verbose: bool) -> None:
    """Run one program of the set-up after a line that says what is done and, at the end, how long it took.

    On a terminal the seconds run meanwhile. With ``verbose`` the program's output is shown below the line.
    """
    begin = time.monotonic()
    ticking = sys.stdout.isatty() and not verbose
    print(f"{label} ...", end="\n" if verbose else "", flush=True)
    with LOG.open("wb") as log:
        code = wait(start_quietly(command, None if verbose else log), f"\r{label} ..." if ticking else "")
    seconds = f"{time.monotonic() - begin:.0f} s"
    print(f"\r{label} ... {seconds}" if ticking else f" {seconds}", flush=True)
    if code:
        raise SetUpError(set_up_failure(label, LOG.read_text(encoding="utf-8", errors="replace")))


def start_quietly(command: "list[str]", output: "BinaryIO | None") -> "subprocess.Popen[bytes]":
    """Start a program without prompts that installs nothing outside .venv, whatever pip's settings are."""
    environ = {**os.environ, "PIP_USER": "0"}
    group = None if os.name == "nt" else 0  # a separate group: Ctrl-C reaches only this script, which ends all of it
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=quiet, stdout=output, stderr=output, env=environ, process_group=group)


def wait(process: "subprocess.Popen[bytes]", ticker: str) -> int:
    """Wait for a program, with a running count of seconds after ``ticker``, if any; end it on Ctrl-C."""
    begin = time.monotonic()
    while True:
        try:
            return process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            if ticker:
                print(f"{ticker} {time.monotonic() - begin:.0f} s", end="", flush=True)
        except KeyboardInterrupt:
            end(process)
            raise


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a program that was started quietly, and its child processes, within a second."""
    numbers = [signal.SIGTERM] if os.name == "nt" else [signal.SIGTERM, signal.SIGKILL]
    for number in numbers:
        process.send_signal(number) if os.name == "nt" else os.killpg(process.pid, number)
        try:
            process.wait(timeout=1)
            break
        except subprocess.TimeoutExpired:
            continue


def set_up_failure(label: str, output: str) -> str:
    """Return the message for a failed step: its last error and what to do, or else the end of its output."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    advice = next((advice for parts, advice in HINTS if any(part in output for part in parts.split("|"))), "")
    shown = errors[-1:] if advice else lines[-15:]
    fix = advice or "the whole output may tell more: python3 dev.py -v ..."
    return "\n".join([f"this failed: {label}", *(f"    {line}" for line in shown), f"fix: {fix}"])


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    code = main(sys.argv[1:])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # only the exit is left
    sys.exit(code)
