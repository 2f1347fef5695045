"""Writing a file so that it is there whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

__all__ = ["written_whole"]

_CANNOT = (errno.EINVAL, errno.ENOTSUP)  # of file systems that have no way to sync a folder


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that gets its name at the end of the block, and is on the disk then.

    Until then its name begins with ``.``, so that no event source takes it in. When the block raises, it is removed;
    what had the name before stays as it is. The name is on the disk, too, where the platform can be told so: not on
    Windows, nor in a folder that this user may not list.

    Raises:
        OSError: If it cannot be written; or, with the new file in its place, if the disk fails to keep the name.
    """
    hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with hidden.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(path)
        _sync(path.parent)
    except BaseException:
        with suppress(OSError):
            hidden.unlink()
        raise


def _sync(folder: Path) -> None:
    try:
        opened = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    finally:
        os.close(opened)
