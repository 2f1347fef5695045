"""Whether a file or folder of settings is there, and why one that is there cannot be read.

What is there and cannot be read must not be passed over: a link that leads nowhere is a ConfigMap that is broken.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["is_there", "why_no_file", "why_no_folder"]

_KINDS = {
    stat.S_IFDIR: "it is a folder",
    stat.S_IFIFO: "it is a pipe",
    stat.S_IFSOCK: "it is a socket",
    stat.S_IFCHR: "it is a device",
    stat.S_IFBLK: "it is a device",
}


def is_there(path: Path) -> bool:
    """Return whether anything has the name ``path``; also a link that leads nowhere, and what may not be looked at."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:
        return True
    return True


def why_no_file(path: Path) -> str:
    """Return why ``path``, which is there, is no file that can be read; empty if it seems to be one."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return _reason(path, error)
    return "" if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "it is no file")


def why_no_folder(path: Path) -> str:
    """Return why ``path`` is a folder, or meant to be one, that cannot be looked into; empty if nothing is there."""
    try:
        if stat.S_ISDIR(path.stat().st_mode) and not os.access(path, os.R_OK | os.X_OK):
            return os.strerror(errno.EACCES)
    except OSError as error:
        return _reason(path, error) if is_there(path) else ""
    return ""


def _reason(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and path.is_symlink():
        return f"it is a link to {path.readlink()}, which does not exist"
    return error.strerror or type(error).__name__
