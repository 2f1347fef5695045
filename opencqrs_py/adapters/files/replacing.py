"""Writing a file so that it is there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

__all__ = ["written_whole"]


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that gets its name at the end of the block, and is on the disk then.

    Until then its name begins with ``.``, so that no event source takes it in. When the block raises, it is removed;
    what had the name before stays as it is.

    Raises:
        OSError: If it cannot be written.
    """
    hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with hidden.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(path)
    except BaseException:
        with suppress(OSError):
            hidden.unlink()
        raise
