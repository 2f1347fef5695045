"""The files of a log in their order."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from stat import S_ISDIR
from typing import NamedTuple

from opencqrs_py.adapters.files.formats import SUFFIXES, Compression, format_of
from opencqrs_py.errors import EventStoreError

__all__ = ["Listing", "files_of", "is_folder", "listing"]

_HIDDEN = (".", "_")  # of programs that write beside their results: temporary files, markers such as _SUCCESS


def is_folder(path: Path) -> bool:
    """Say whether ``path`` is a folder.

    Raises:
        OSError: If there is nothing, or it cannot be looked at.
    """
    return S_ISDIR(path.stat().st_mode)


class Listing(NamedTuple):
    """What stands in a folder.

    Attributes:
        files: The files of events, ordered by name, character by character.
        others: Names of what is passed over although it is not hidden: files with other suffixes, folders.
    """

    files: list[Path]
    others: list[str]


def listing(path: Path) -> Listing:
    """Return what stands in a folder; of one file, the file itself.

    Raises:
        EventStoreError: OCQ-232, if the one file is not of events; OCQ-234, if a link leads nowhere; OCQ-233, if a
            folder holds the same file compressed and not, so that its events would come twice.
        OSError: If there is nothing, or it cannot be read.
    """
    if not is_folder(path):
        if format_of(path.name) is None:
            what = "the name does not say how events stand in the file"
            raise EventStoreError("OCQ-232", what, str(path), f"let it end with {SUFFIXES}")
        return Listing([path], [])
    names: list[str] = []
    others: list[str] = []
    with os.scandir(path) as entries:
        for entry in entries:
            if not entry.name.startswith(_HIDDEN):
                (names if _holds_events(entry) else others).append(entry.name)
    names.sort()
    _check_twins(path, names)
    return Listing([path / name for name in names], sorted(others))


def files_of(path: Path) -> list[Path]:
    """Return the files of events in a folder, ordered by name, character by character; or the one file itself.

    Files with other suffixes, files whose name begins with ``.`` or ``_`` and folders below are passed over.

    Raises:
        EventStoreError: As ``listing``.
        OSError: If there is nothing, or it cannot be read.
    """
    return listing(path).files


def _holds_events(entry: os.DirEntry[str]) -> bool:
    if format_of(entry.name) is None:
        return False
    if not entry.is_file() and not Path(entry.path).exists():
        what = f"{entry.name} is a link that leads nowhere, so its events cannot be read"
        raise EventStoreError("OCQ-234", what, entry.path, "put back what it leads to, or remove the link")
    return entry.is_file()


def _check_twins(folder: Path, names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        known = format_of(name)
        suffix = known.compression.value if known else Compression.NONE.value
        other = seen.setdefault(name[: len(name) - len(suffix)], name)
        if other != name:
            what = f"{other} and {name} are the same file twice, by their names"
            raise EventStoreError(
                "OCQ-233", what, str(folder), "remove one of them, or rename it if it has other events"
            )
