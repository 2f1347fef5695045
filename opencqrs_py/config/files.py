"""Files of settings: which files apply, in which order, and their contents.

A file that exists but cannot be read must not be skipped: a dangling link is a broken ConfigMap.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from dataclasses import dataclass, field
from importlib import import_module
from os.path import normpath
from pathlib import Path
from typing import TYPE_CHECKING

from opencqrs_py.config.entries import Entry, Layer, LayerKind, Origin, OriginKind, text_items
from opencqrs_py.config.inline_json import variable_layers
from opencqrs_py.config.keys import is_ours
from opencqrs_py.config.placeholders import resolved_items
from opencqrs_py.config.problems import MOST_BYTES, Code, Findings
from opencqrs_py.config.profiles import applies, mentioned
from opencqrs_py.model.naming import canonical, listed, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from opencqrs_py.config.placeholders import Found

FORMATS = {".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".properties": "properties"}
"""The formats of files; of two files in one folder the later in this list wins."""

_ON_PROFILE = frozenset({"opencqrs.config.onprofile", "opencqrs.config.activate.onprofile"})
_IMPORT = "opencqrs.config.import"
_ACTIVE = "opencqrs.profiles.active"
_BRACKETS = str.maketrans("[]", "..")
_SCHEME = re.compile(r"(?:file|configtree):", re.IGNORECASE)
_OPTIONAL = "optional:"
_KINDS = {
    stat.S_IFDIR: "it is a folder",
    stat.S_IFIFO: "it is a pipe",
    stat.S_IFSOCK: "it is a socket",
    stat.S_IFCHR: "it is a device",
    stat.S_IFBLK: "it is a device",
}


class Document:
    """A part of a file that applies as a whole or not at all: if one of its ``conditions`` on profiles holds."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries: list[Entry] = []
        self.conditions: list[Entry] = []
        self.imports: list[Entry] = []
        self.active: list[Entry] = []
        for entry in entries:
            name = canonical(".".join(entry.key)).translate(_BRACKETS).replace("..", ".").rstrip(".")
            above, _, last = name.rpartition(".")
            name = above if last.isdecimal() else name
            (self.conditions if name in _ON_PROFILE else self.entries).append(entry)
            if name == _IMPORT:
                self.imports.append(entry)
            elif name == _ACTIVE:
                self.active.append(entry)


@dataclass(slots=True)
class FileReader:
    """Reads folders and files, each once; messages name them relative to ``project``."""

    project: Path
    findings: Findings
    files: list[Path] = field(default_factory=list)
    """The files read so far, in the order in which they were read."""
    _documents: dict[Path, list[Document]] = field(default_factory=dict)
    _names: dict[Path, frozenset[str]] = field(default_factory=dict)

    def shown(self, path: Path) -> str:
        """Return ``path`` as messages show it: relative to the project if it is inside."""
        return str(path.relative_to(self.project)) if path.is_relative_to(self.project) else str(path)

    def names_in(self, folder: Path) -> frozenset[str]:
        """Return the names in ``folder``; none if it does not exist, or cannot be read, which is reported."""
        if folder not in self._names:
            reason = why_no_folder(folder)
            if reason:
                self._report_unreadable("folder", reason, self.shown(folder))
            try:
                self._names[folder] = frozenset() if reason else frozenset(os.listdir(folder))  # noqa: PTH208 names
            except (FileNotFoundError, NotADirectoryError):
                self._names[folder] = frozenset()
        return self._names[folder]

    def application_files(self, folders: tuple[Path, ...], profile: str | None = None) -> list[Path]:
        """Return the ``application`` files of ``folders`` for a profile, or for all, from the lowest to the highest."""
        name = "application" if profile is None else f"application-{profile}"
        names = [f"{name}{suffix}" for suffix in FORMATS]
        return [
            folder / each for folder in folders for there in [self.names_in(folder)] for each in names if each in there
        ]

    def text(self, file: Path) -> str | None:
        """Return the content of ``file``, ``None`` if it cannot be read."""
        self.files.append(file)
        try:
            if reason := why_no_file(file):  # opening a pipe would wait for its writer
                self._report_unreadable("file", reason, self.shown(file))
                return None
            if file.stat().st_size > MOST_BYTES:
                what = f"the file is larger than {MOST_BYTES // 1024**2} MiB"
                self.findings.error(Code.TOO_MUCH, what, self.shown(file), "check that it is the file that you mean")
                return None
            return file.read_bytes().decode("utf-8-sig")
        except OSError as error:
            self._report_unreadable("file", error.strerror, self.shown(file))
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            place = Origin(OriginKind.FILE, self.shown(file), line)
            self.findings.error(Code.FILE_UNREADABLE, "the file is not UTF-8", place, "save it as UTF-8")
        return None

    def documents(self, file: Path) -> list[Document]:
        """Return the documents of ``file``; broken parts are reported and left out."""
        if file not in self._documents:
            text = self.text(file)
            self._documents[file] = [] if text is None else self._parsed(file, text)
        return self._documents[file]

    def _report_unreadable(self, kind: str, reason: str | None, where: object) -> None:
        what = f"the {kind} cannot be read: {reason}"
        self.findings.error(
            Code.FILE_UNREADABLE, what, where, f"put back the {kind}, or check its name and permissions"
        )

    def _parsed(self, file: Path, text: str) -> list[Document]:
        origin, form = Origin(OriginKind.FILE, self.shown(file)), FORMATS.get(file.suffix.lower())
        if form is None:
            what, fix = f"{file.suffix or 'no suffix'} is not a format of settings", f"use one of {listed(FORMATS)}"
            self.findings.error(Code.FILE_UNREADABLE, what, origin, fix)
            return []
        parse = getattr(import_module(f"opencqrs_py.config.{form}_file"), f"{form}_documents")
        return [Document(entries) for entries in parse(text, origin, self.findings)]


@dataclass(slots=True)
class FileStack:
    """The layers of the files that apply with certain profiles.

    Without ``profiles``, while they are still to be found, documents with a condition and variants are left out.
    """

    reader: FileReader
    findings: Findings
    profiles: tuple[str, ...] | None
    lookup: Callable[[str], Found | None]  # of placeholders in imports
    layers: list[Layer] = field(default_factory=list)
    secrets: list[Layer] = field(default_factory=list)
    active: tuple[Entry, ...] = ()
    known_profiles: set[str] = field(default_factory=set)
    _imported: set[Path] = field(default_factory=set)

    def add_folders(self, folders: tuple[Path, ...]) -> None:
        """Put the application files of ``folders`` on top, then their variants for each profile."""
        for file in self.reader.application_files(folders):
            self._imported.add(file)
            self._add_file(file)
        for profile in self.profiles or ():
            for file in self.reader.application_files(folders, profile):
                self._add_file(file, profile)

    def add_imports(self, entry: Entry, folder: Path) -> None:
        """Put files and folders of secrets that ``entry`` names, relative to ``folder``, on top, the last highest."""
        for item in resolved_items(entry, "config.import", self.lookup, self.findings):
            self._import(item, entry, folder)

    def _add_file(self, file: Path, profile: str | None = None) -> None:
        for document in self.reader.documents(file):
            if document.conditions and not self._applies(document):
                continue
            if document.active and (profile or document.conditions):
                what = "profiles are chosen in a file or document that itself depends on a profile"
                fix = "choose them in application.yaml, as a variable or as an argument"
                self.findings.profiles_unknown(Code.PROFILE, what, document.active[0].origin, fix)
            self.active = tuple(document.active) or self.active
            self.layers.append(Layer(LayerKind.FILE, tuple(document.entries)))
            if profile:
                self.known_profiles.add(profile)
            for entry in document.imports:
                self.add_imports(entry, file.parent)

    def _applies(self, document: Document) -> bool:
        """Return whether the conditions of ``document`` hold; a broken condition is reported and does not."""
        holds = self.profiles is not None
        for entry in document.conditions:
            try:
                expressions = text_items(entry.value)
                self.known_profiles |= mentioned(expressions)
                holds = holds and (not expressions or applies(expressions, self.profiles or ()))
            except ValueError as error:
                what, fix = f"on-profile cannot be read: {error}", "write it like: prod and not (eu or us)"
                self.findings.profiles_unknown(Code.PROFILE, what, entry.origin, fix)
                holds = False
        return holds

    def _import(self, name: str, entry: Entry, folder: Path) -> None:
        is_optional = name.lower().startswith(_OPTIONAL)
        plain = _SCHEME.sub("", name[len(_OPTIONAL) :] if is_optional else name, count=1)
        path = Path(normpath(folder / plain))
        if path in self._imported:
            return
        self._imported.add(path)
        if os.path.isdir(path):  # noqa: PTH112 which does not raise without permission
            if self.reader.names_in(path):
                self.secrets.extend(_secret_layers(path, self.reader.shown(path), self.findings))
        elif exists(path):
            self._add_file(path)
            for profile in self.profiles or ():
                variant = path.with_name(f"{path.stem}-{profile}{path.suffix}")
                if exists(variant):
                    self._add_file(variant, profile)
        elif not is_optional:
            self._report_missing(plain, path, entry)

    def _report_missing(self, name: str, path: Path, entry: Entry) -> None:
        there = sorted(each.name for each in path.parent.glob("*") if each.suffix in FORMATS or each.is_dir())
        close = nearest(path.name, there)
        fix = f"did you mean {close}?" if close else f"create it, or write optional:{name}"
        where = f"{entry.origin} (looked for {self.reader.shown(path)})"
        self.findings.error(Code.FILE_MISSING, f"the import {name} does not exist", where, fix)


def _secret_layers(folder: Path, shown: str, findings: Findings) -> list[Layer]:
    """Return the files below ``folder``, as platforms mount secrets: the name is the key, the content the value.

    ``opencqrs.database.url``, ``opencqrs/database/url`` and ``OPENCQRS__DATABASE__URL`` are one key. Hidden files, by
    which platforms keep versions, are left out, and so are files of others that hold no text.
    """
    by_key: list[Entry] = []
    by_variable: list[Entry] = []
    for file in _files_below(folder):
        parts = file.relative_to(folder).parts
        is_variable = len(parts) == 1 and "." not in parts[0] and is_ours(parts[0])
        origin = Origin(OriginKind.SECRET, f"{shown.rstrip('/')}/{'/'.join(parts)}")
        try:
            text = None if why_no_file(file) else file.read_bytes().decode().rstrip("\r\n")
        except (OSError, UnicodeDecodeError):
            text = None
        if text is not None:
            (by_variable if is_variable else by_key).append(Entry(parts, text, origin))
        elif is_ours(parts[0]):
            fix = "check its permissions and encoding"
            findings.error(Code.FILE_UNREADABLE, "the secret cannot be read as text", origin, fix)
    return [Layer(LayerKind.FILE, tuple(by_key)), *variable_layers(by_variable, findings)]


def exists(path: Path) -> bool:
    """Return whether ``path`` exists; a dangling link does, and so does a path that may not be accessed."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:
        return True
    return True


def why_no_file(path: Path) -> str:
    """Return why the existing ``path`` cannot be read as a file; empty if it seems readable."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return _reason(path, error)
    return "" if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "it is not a file")


def why_no_folder(path: Path) -> str:
    """Return why ``path`` cannot be listed as a folder; empty if it can, or does not exist."""
    try:
        if stat.S_ISDIR(path.stat().st_mode) and not os.access(path, os.R_OK | os.X_OK):
            return os.strerror(errno.EACCES)
    except OSError as error:
        return _reason(path, error) if exists(path) else ""
    return ""


def _reason(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and path.is_symlink():
        return f"it is a link to {path.readlink()}, which does not exist"
    return error.strerror or type(error).__name__


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield everything below ``folder``, including folders that cannot be listed."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if os.path.isdir(path) and not why_no_folder(path):  # noqa: PTH112 which does not raise
            yield from _files_below(path)
        else:
            yield path
