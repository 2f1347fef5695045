"""Class-data sharing: an archive of the classes that Spark loads, so that its JVM need not parse and verify them again.

The first JVM lists the classes that it loads. When this process ends, another one makes the archive from the list
(``class_archive_maker``); later JVMs start from it. A JVM checks the archive by its checksums, its own version and its
class path, and silently starts without it if something does not match; then the archive is made again.

Runs on the driver, while the session is opened. Nothing of it reaches executors of a cluster.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from opencqrs_py.engines.spark import class_archive_maker
from opencqrs_py.engines.spark.java import Java, cache_folder

_REFUSED_SECONDS = 86_400.0  # after which a mark that no archive can be made or used is ignored
_OWN = re.compile(r"-Xshare|SharedArchive|SharedClassList|LoadedClassList|ArchiveClasses|-XX:[+-]?AOT")
_AOT_VERSION = 24  # of Java, since which messages on archives have another tag


@dataclass(frozen=True)
class ClassArchive:
    """The location of the archive of a Java and a PySpark.

    Attributes:
        file: The archive; there may be none yet.
        java: What it is for.
    """

    file: Path
    java: Java

    @property
    def can_be_used(self) -> bool:
        """Whether one exists that only this user can have written."""
        return _is_own(self.file, stat.S_ISREG)

    @property
    def list_file(self) -> Path:
        """Where the JVM of this process lists its classes."""
        return self.file.with_name(f"{self.file.stem}-{os.getpid()}.classes")

    def options(self) -> tuple[str, ...]:
        """Return what the JVM is launched with; nothing, if an archive has failed within a day."""
        if self.can_be_used:
            tags = ("cds", "aot") if self.java.version >= _AOT_VERSION else ("cds",)
            silent = (f"-Xlog:{tag}*=off" for tag in tags)
            return ("-Xshare:auto", f"-XX:SharedArchiveFile={self.file}", "-XX:+VerifySharedSpaces", *silent)
        return () if self._is_refused() else (f"-XX:DumpLoadedClassList={self.list_file}",)

    def after_launch(self, vm_info: str, class_path: str, jvm: int) -> None:
        """Have an archive made at the end of this process if there is none; discard one that the JVM has rejected.

        Args:
            vm_info: The JVM's ``java.vm.info``.
            class_path: Its ``java.class.path``.
            jvm: Its process.
        """
        if self.list_file.exists():
            atexit.register(self._make, jvm, class_path)
        elif self.can_be_used and "sharing" not in vm_info:
            self.file.with_suffix(".refused").touch(0o600)
            self.file.unlink(missing_ok=True)

    def _make(self, jvm: int, class_path: str) -> None:
        if not self.list_file.exists():  # in a fork of the listing process
            return
        script = str(Path(class_archive_maker.__file__))
        java = str(self.java.home / "bin" / "java")
        arguments = (str(jvm), java, str(self.list_file), class_path, str(self.file))
        nothing = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
        command = [sys.executable, "-I", script, *arguments]
        with suppress(OSError):  # a later run tries again
            os.posix_spawn(sys.executable, command, os.environ, file_actions=nothing, setpgroup=0)

    def _is_refused(self) -> bool:
        try:
            return time.time() - self.file.with_suffix(".refused").stat().st_mtime < _REFUSED_SECONDS
        except FileNotFoundError:
            return False


def class_archive(
    java: Java, spark: Path, version: str, said: Iterable[str | None], environ: Mapping[str, str]
) -> ClassArchive | None:
    """Return where the archive is, or ``None`` if there can be none or the user configures class sharing.

    Args:
        java: What Spark runs on.
        spark: Spark's folder, whose jars the archive is for.
        version: PySpark's.
        said: The user's settings for the JVM: its options, memory and class path.
        environ: The environment, with the user's cache folder.
    """
    values = [value or "" for value in said]
    values += [environ.get(name, "") for name in ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")]
    if os.name == "nt" or _OWN.search(" ".join(values)):
        return None
    values += [environ.get(name, "") for name in ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")]
    try:
        folder = _folder(environ)
        changed = str((spark / "jars").stat().st_mtime_ns)
    except OSError:
        return None
    parts = [str(java.home), str(java.version), version, str(spark), changed, *values]
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    file = folder / f"java{java.version}-spark{version}-{name}.jsa"
    return None if re.search(r'["\\%]', str(file)) else ClassArchive(file, java)


def _folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of archives. ``OSError`` if it cannot be made or another user can write to it."""
    folder = cache_folder(environ) / "classes"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_own(folder, stat.S_ISDIR):
        raise PermissionError(f"{folder} is not a folder that this user alone can write to")
    return folder


def _is_own(path: Path, is_kind: Callable[[int], bool]) -> bool:
    """Return whether such a file or folder exists, and only this user can write to it."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return is_kind(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
