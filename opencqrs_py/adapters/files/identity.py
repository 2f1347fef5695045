"""How a file is known again: by its size, and by samples of its bytes."""

from __future__ import annotations

from hashlib import blake2b
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from opencqrs_py.errors import EventStoreError

__all__ = ["KnownFile", "fingerprint"]

_SAMPLE = 2048  # bytes
_SAMPLES = 8  # at equal distances, the first at the beginning and the last at the end; less is taken whole
_FIX = (
    "put the file back as it was; or, if the change is meant, rebuild the groups that have read it (delete their read "
    "models and their progress), since a restart refuses the changed file, too (OCQ-316)"
)


class KnownFile:
    """A file as it was when it was last looked at.

    Args:
        path: The file.

    Attributes:
        size: In bytes.
        print: Digest of samples of its bytes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._seen: tuple[int, int, int] | None = None
        self.print = b""

    def look(self, *, may_grow: bool) -> None:
        """Take in how large the file is by now; a file that was changed is refused.

        Args:
            may_grow: Whether bytes may have been added at its end since the last look.

        Raises:
            EventStoreError: OCQ-342, if it is gone, has shrunk, has other content where it was read before, or has
                grown and must not.
            OSError: If it cannot be looked at.
        """
        try:
            found = self.path.stat()
        except FileNotFoundError:
            raise self.refused("is gone") from None
        now = found.st_size, found.st_mtime_ns, found.st_ino
        if now == self._seen:
            return
        if found.st_size < self.size:
            raise self.refused(f"has shrunk from {self.size:,} to {found.st_size:,} bytes")
        if self._seen is not None and found.st_size > self.size and not may_grow:
            raise self.refused(f"has grown from {self.size:,} to {found.st_size:,} bytes and was complete before")
        with self.path.open("rb", buffering=0) as file:
            if self._seen is not None and fingerprint(file, self.size) != self.print:
                raise self.refused("has changed")
            self.print = fingerprint(file, found.st_size)
        self.size, self._seen = found.st_size, now

    def refused(self, what: str) -> EventStoreError:
        """Return the error that says what has happened to the file."""
        said = f"{self.path.name} {what}, so positions of events that were read would change"
        return EventStoreError("OCQ-342", said, str(self.path), _FIX)


def fingerprint(file: BinaryIO | FileIO, size: int) -> bytes:
    """Return a digest of a file's first ``size`` bytes: of all up to 16 KiB, of eight samples of a longer file.

    A longer file that was changed between the samples and kept its size has the same digest. Moves in the file.
    """
    digest = blake2b(digest_size=16)
    if size <= _SAMPLE * _SAMPLES:
        starts, length = [0], size
    else:
        starts, length = [(size - _SAMPLE) * number // (_SAMPLES - 1) for number in range(_SAMPLES)], _SAMPLE
    for start in starts:
        file.seek(start)
        digest.update(file.read(length))
    file.seek(0)
    return digest.digest()
