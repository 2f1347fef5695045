"""What tells a log of files from another one at the same place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from opencqrs_py.adapters.files.identity import KnownFile, fingerprint
from opencqrs_py.adapters.files.readers import EventFile

__all__ = ["LogState", "holds", "state_of"]


@dataclass(frozen=True, slots=True)
class LogState:
    """A log of files as somebody has seen it; small, whatever number of files there is.

    Attributes:
        closed: Number of files before the newest one.
        digest: Of their names, sizes and samples of their bytes.
        newest: Name of the newest file, empty when there is none.
        size: Its size in bytes; it may have grown since.
        print: Digest of samples of its bytes.
    """

    closed: int = 0
    digest: bytes = b""
    newest: str = ""
    size: int = 0
    print: bytes = b""


def state_of(files: Sequence[EventFile]) -> LogState:
    """Return the state of a log as it was looked at last."""
    if not files:
        return LogState()
    *closed, newest = (file.known for file in files)
    return LogState(len(closed), _digest(closed), newest.path.name, newest.size, newest.print)


def holds(files: Sequence[EventFile], state: LogState) -> bool:
    """Say whether a log, as it was looked at last, is the one of a state: the same, or with more at its end.

    Raises:
        OSError: If the file that was the newest cannot be read.
    """
    if not state.newest:
        return True
    if len(files) <= state.closed:
        return False
    *closed, newest = (file.known for file in files[: state.closed + 1])
    if newest.path.name != state.newest or _digest(closed) != state.digest:
        return False
    if newest.size == state.size:
        return newest.print == state.print
    with newest.path.open("rb") as file:
        return fingerprint(file, state.size) == state.print


def _digest(files: Sequence[KnownFile]) -> bytes:
    digest = blake2b(digest_size=16)
    for file in files:
        digest.update(f"{file.path.name}\0{file.size}\0".encode(errors="surrogateescape") + file.print)
    return digest.digest()
