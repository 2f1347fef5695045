"""Files with settings that are not read, as their names are not quite those of settings files."""

from __future__ import annotations

import re
from difflib import SequenceMatcher, get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from opencqrs_py.config.files import FORMATS, FileReader, why_no_file
from opencqrs_py.config.keys import PREFIX
from opencqrs_py.config.problems import MOST_BYTES, Code

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

_NAME = "application"
_RIGHT = re.compile(rf"({_NAME}(?:-.*)?)(?:{'|'.join(map(re.escape, FORMATS))})").fullmatch
_ALIKE = 0.8  # aplication, applicaton, applications; not app
_MOST_CHANGED = 4  # letters
_NOT_MEANT = frozenset({"default", "dist", "example", "sample", "template"})


class _Meant(NamedTuple):
    """What the name of a file was probably meant to be."""

    profile: str
    suffix: str

    @property
    def stem(self) -> str:
        return f"{_NAME}-{self.profile}" if self.profile else _NAME

    @property
    def name(self) -> str:
        return self.stem + self.suffix


def warn_of_unread_files(reader: FileReader, folders: Collection[Path], profiles: Collection[str]) -> set[str]:
    """Warn about files of settings with a wrong name, unless there is one with the right name.

    Args:
        reader: Has read everything that applies, and collects the warnings.
        folders: Where files of settings may be.
        profiles: Active profiles. Files for others would not be read under the right name either.

    Returns:
        The profiles of which that is so.
    """
    names = [(folder, name) for folder in folders for name in reader.names_in(folder)]
    right = {match[1] for _, name in names if (match := _RIGHT(name))}
    found: set[str] = set()
    for folder, name in sorted(names):
        meant = None if _RIGHT(name) else _meant(name)
        if meant is None or meant.stem in right or (meant.profile and meant.profile not in profiles):
            continue
        file = folder / name
        if file not in reader.files and has_settings(file):
            found.add(meant.profile)
            what, fix = f"{name} is not read: files of settings have other names", f"rename it to {meant.name}"
            reader.findings.warning(Code.UNREAD_FILE, what, reader.shown(file), fix)
    return found - {""}


def _meant(name: str) -> _Meant | None:
    """Return what a name was probably meant to be, ``None`` if it is of something else."""
    stem, dot, suffix = re.sub(r"\.txt$", "", name, flags=re.IGNORECASE).rpartition(".")
    head, *rest = re.split(r"[-_.]", stem, maxsplit=1)
    profile = rest[0] if rest else ""
    if not _is_alike(head.casefold()) or profile.casefold() in _NOT_MEANT:
        return None
    ending = (dot + suffix).casefold()
    if ending == ".json":  # which is YAML, too
        return _Meant(profile, ".yaml")
    close = get_close_matches(ending, FORMATS, n=1)
    return _Meant(profile, close[0]) if close else None


def _is_alike(head: str) -> bool:
    if head == PREFIX:
        return True
    may_be = head.startswith(_NAME[0]) and abs(len(head) - len(_NAME)) <= _MOST_CHANGED  # a folder may hold thousands
    return may_be and SequenceMatcher(None, head, _NAME).ratio() >= _ALIKE


def has_settings(file: Path) -> bool:
    """Return whether a file has the prefix of settings in it, and so is one of this package."""
    try:
        if why_no_file(file) or file.stat().st_size > MOST_BYTES:
            return False
        return PREFIX in file.read_bytes().decode(errors="replace").casefold()
    except OSError:
        return False
