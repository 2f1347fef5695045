"""Makes an archive of classes, in a separate process that runs after Spark's JVM has ended.

Run by its path with the arguments of ``main``; imports the standard library only. A lock excludes a second maker, and
the archive gets its name when it is complete. If none can be made, a mark records that; it is valid for a day.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

LARGEST = 400_000_000
"""Bytes of an archive; a larger one is not kept."""
_KEPT = 2  # archives in all, such as those of two versions of Java
_OLD_SECONDS = 86_400.0  # after which files left by another process are deleted
_DUMP_SECONDS = 600.0
_END_SECONDS = 60.0  # to wait for the end of the JVM
_LOOK_SECONDS = 0.1


def main(jvm: int, java: str, classes: Path, class_path: str, archive: Path) -> None:
    """Make ``archive`` with ``java`` from the list ``classes``, which the process ``jvm`` has written, and tidy up."""
    os.umask(0o077)
    os.nice(19)
    try:
        with archive.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _has_ended(jvm) and not archive.exists():
                make(java, classes, class_path, archive)
    except BlockingIOError:
        return
    finally:
        classes.unlink(missing_ok=True)
        tidy(archive)


def make(java: str, classes: Path, class_path: str, archive: Path) -> None:
    """Make the archive, or the mark that none can be made. The caller holds the lock."""
    unfinished = archive.with_suffix(".part")
    unfinished.unlink(missing_ok=True)
    options = ("-Xshare:dump", f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={unfinished}")
    command = [java, "-XX:TieredStopAtLevel=1", *options, "-cp", class_path]
    try:
        subprocess.run(  # noqa: S603 the Java that Spark runs on
            command,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_DUMP_SECONDS,
        )
        unfinished.chmod(0o600)
        if unfinished.stat().st_size <= LARGEST:
            unfinished.replace(archive)
    except (OSError, subprocess.SubprocessError):
        pass
    finally:
        unfinished.unlink(missing_ok=True)
        if not archive.exists():
            archive.with_suffix(".refused").touch(0o600)


def tidy(archive: Path) -> None:
    """Delete all archives but this one and the newest other one, and files left by ended processes."""
    others = sorted(set(archive.parent.glob("*.jsa")) - {archive}, key=_changed, reverse=True)
    left = [file for kind in ("*.classes", "*.part", "*.refused", "*.lock") for file in archive.parent.glob(kind)]
    old = [file for file in left if time.time() - _changed(file) > _OLD_SECONDS]
    for file in (*others[_KEPT - 1 :], *old):
        file.unlink(missing_ok=True)


def _changed(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:  # deleted in the meantime
        return 0.0


def _has_ended(process: int) -> bool:
    until = time.monotonic() + _END_SECONDS
    while time.monotonic() < until:
        try:
            os.kill(process, 0)
        except OSError:
            return True
        time.sleep(_LOOK_SECONDS)
    return False


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4], Path(sys.argv[5]))
