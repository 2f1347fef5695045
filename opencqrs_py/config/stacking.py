"""Which files apply, and in which order: application files, their variants by profile, and what they import."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from os.path import normpath
from pathlib import Path
from typing import TYPE_CHECKING

from opencqrs_py.config.documents import SUFFIXES, Document, DocumentReader
from opencqrs_py.config.entries import text_items
from opencqrs_py.config.names import nearest
from opencqrs_py.config.presence import is_there
from opencqrs_py.config.problems import Code, Findings
from opencqrs_py.config.profiles import applies, mentioned
from opencqrs_py.config.resolution import resolved_items
from opencqrs_py.config.sources.secrets_folder import secrets_layers

if TYPE_CHECKING:
    from collections.abc import Callable

    from opencqrs_py.config.entries import Entry, Layer
    from opencqrs_py.config.placeholders import Found

__all__ = ["FileStack"]

_SCHEME = re.compile(r"(?:file|configtree):", re.IGNORECASE)
_OPTIONAL = "optional:"


@dataclass(slots=True)
class FileStack:
    """The layers of the files that apply with certain profiles.

    Args:
        reader: Reads files.
        findings: Takes the problems.
        profiles: The active profiles; ``None`` while they are still to be found out: then documents with a
            condition, and variants by profile, are left out.
        lookup: What placeholders in imports stand for.
    """

    reader: DocumentReader
    findings: Findings
    profiles: tuple[str, ...] | None
    lookup: Callable[[str], Found | None]
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
        """Put the files that ``entry`` names on top, the last of them highest.

        Args:
            entry: Names files and folders of secrets, ``optional:`` before those that may be missing.
            folder: What relative names start from.
        """
        for item in resolved_items(entry, "config.import", self.lookup, self.findings):
            self._import(item, entry, folder)

    def _add_file(self, file: Path, profile: str | None = None) -> None:
        for document in self.reader.documents(file):
            if not self._applies(document):
                continue
            if document.active and (profile or document.conditions):
                what = "profiles are chosen in a file or document that itself depends on a profile"
                fix = "choose them in application.yaml, as a variable or as an argument"
                self.findings.error(Code.PROFILE, what, document.active[0].origin, fix)
            self.active = document.active or self.active
            self.layers.append(document.layer)
            if profile:
                self.known_profiles.add(profile)
            for entry in document.imports:
                self.add_imports(entry, file.parent)

    def _applies(self, document: Document) -> bool:
        """Return whether the conditions of ``document`` hold; a broken one is noted and does not."""
        holds = True
        for entry in document.conditions:
            try:
                expressions = text_items(entry.value)
                self.known_profiles |= mentioned(expressions)
                holds = holds and (not expressions or applies(expressions, self.profiles or ()))
            except ValueError as error:
                what = f"on-profile cannot be read: {error}"
                fix = "write it like: prod and not (eu or us)"
                self.findings.error(Code.PROFILE, what, entry.origin, fix)
                holds = False
        return holds and not (document.conditions and self.profiles is None)

    def _import(self, name: str, entry: Entry, folder: Path) -> None:
        is_optional = name.lower().startswith(_OPTIONAL)
        plain = _SCHEME.sub("", name[len(_OPTIONAL) :] if is_optional else name, count=1)
        path = Path(normpath(folder / plain))
        if path in self._imported:
            return
        self._imported.add(path)
        if os.path.isdir(path):  # noqa: PTH112 which does not raise where it may not look
            if self.reader.can_look_into(path):
                self.secrets.extend(secrets_layers(path, self.reader.shown(path), self.findings))
        elif is_there(path):
            self._add_file(path)
            for profile in self.profiles or ():
                variant = path.with_name(f"{path.stem}-{profile}{path.suffix}")
                if is_there(variant):
                    self._add_file(variant, profile)
        elif not is_optional:
            self._report_missing(plain, path, entry)

    def _report_missing(self, name: str, path: Path, entry: Entry) -> None:
        there = sorted(each.name for each in path.parent.glob("*") if each.suffix in SUFFIXES or each.is_dir())
        close = nearest(path.name, there)
        fix = f"did you mean {close}?" if close else f"create it, or write optional:{name}"
        where = f"{entry.origin} (looked for {self.reader.shown(path)})"
        self.findings.error(Code.FILE_MISSING, f"the import {name} does not exist", where, fix)
