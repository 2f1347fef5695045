"""The files of a log in their order."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from stat import S_ISDIR

from opencqrs_py.adapters.files.formats import SUFFIXES, Compression, format_of
from opencqrs_py.errors import EventStoreError

__all__ = ["files_of", "is_folder"]

_HIDDEN = (".", "_")  # of programs that write beside their results: temporary files, markers such as _SUCCESS


def is_folder(path: Path) -> bool:
    """Say whether ``path`` is a folder.

    Raises:
        OSError: If there is nothing, or it cannot be looked at.
    """
    return S_ISDIR(path.stat().st_mode)


def files_of(path: Path) -> list[Path]:
    """Return the files of events in a folder, ordered by name, character by character; or the one file itself.

    Files with other suffixes, files whose name begins with ``.`` or ``_`` and folders below are passed over.

    Raises:
        EventStoreError: OCQ-344, if the one file is not of events, or a folder holds the same file compressed and
            not, so that its events would come twice.
        OSError: If there is nothing, or it cannot be read.
    """
    if not is_folder(path):
        if format_of(path.name) is None:
            what = "the name does not say how events stand in the file"
            raise EventStoreError("OCQ-344", what, str(path), f"let it end with {SUFFIXES}")
        return [path]
    with os.scandir(path) as entries:
        names = sorted(entry.name for entry in entries if _holds_events(entry))
    _check_twins(path, names)
    return [path / name for name in names]


def _holds_events(entry: os.DirEntry[str]) -> bool:
    return not entry.name.startswith(_HIDDEN) and format_of(entry.name) is not None and entry.is_file()


def _check_twins(folder: Path, names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        known = format_of(name)
        suffix = known.compression.value if known else Compression.NONE.value
        other = seen.setdefault(name[: len(name) - len(suffix)], name)
        if other != name:
            what = f"{other} and {name} are the same file twice, by their names"
            raise EventStoreError(
                "OCQ-344", what, str(folder), "remove one of them, or rename it if it has other events"
            )
