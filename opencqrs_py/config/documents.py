"""Files of settings: found, read once, and taken apart into documents."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from opencqrs_py.config.entries import Entry, Layer, LayerKind
from opencqrs_py.config.limits import MOST_BYTES
from opencqrs_py.config.names import PREFIX, listed
from opencqrs_py.config.origin import Origin, OriginKind
from opencqrs_py.config.presence import is_there, why_no_file, why_no_folder
from opencqrs_py.config.problems import Code, Findings

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SUFFIXES", "Document", "DocumentReader"]

SUFFIXES = (".yaml", ".yml", ".toml", ".properties")
"""The formats of files; of two files in one folder the later in this list wins."""

_ON_PROFILE = frozenset({(PREFIX, "config", "onprofile"), (PREFIX, "config", "activate", "onprofile")})
_IMPORT = (PREFIX, "config", "import")
_ACTIVE = (PREFIX, "profiles", "active")


@dataclass(frozen=True, slots=True)
class Document:
    """A part of a file that applies as a whole or not at all.

    Args:
        file: The file.
        layer: What it sets.
        conditions: Expressions of profiles; with none the document always applies.
        imports: The files and folders that it imports.
        active: The entries that choose profiles.
    """

    file: Path
    layer: Layer
    conditions: tuple[Entry, ...] = ()
    imports: tuple[Entry, ...] = ()
    active: tuple[Entry, ...] = ()


@dataclass(slots=True)
class DocumentReader:
    """Reads files, each once.

    Args:
        project: Folder that messages name files relative to.
        findings: Takes the problems.
    """

    project: Path
    findings: Findings
    _read: dict[Path, tuple[Document, ...]] = field(default_factory=dict)
    _files: list[Path] = field(default_factory=list)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files read so far, in the order in which they were read."""
        return tuple(self._files)

    def shown(self, path: Path) -> str:
        """Return how messages call ``path``: relative to the project when it is in there."""
        return str(path.relative_to(self.project)) if path.is_relative_to(self.project) else str(path)

    def text(self, file: Path) -> str | None:
        """Return the content of ``file``, ``None`` when it cannot be read."""
        origin = Origin(OriginKind.FILE, self.shown(file))
        self._files.append(file)
        try:
            if reason := why_no_file(file):  # opening a pipe would wait for its writer
                self._report_unreadable("file", reason, origin)
                return None
            if file.stat().st_size > MOST_BYTES:
                what = f"the file is larger than {MOST_BYTES // 1024**2} MiB"
                self.findings.error(Code.TOO_MUCH, what, origin, "check that it is the file that you mean")
                return None
            return file.read_bytes().decode("utf-8-sig")
        except OSError as error:
            self._report_unreadable("file", error.strerror, origin)
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            place = Origin(OriginKind.FILE, self.shown(file), line)
            self.findings.error(Code.FILE_UNREADABLE, "the file is not UTF-8", place, "save it as UTF-8")
        return None

    def application_files(self, folders: tuple[Path, ...], profile: str | None = None) -> list[Path]:
        """Return the ``application`` files that are there, from the lowest to the highest.

        Args:
            folders: Where to look, from the lowest to the highest; one that cannot be looked into is noted.
            profile: Profile whose files are looked for; ``None``: those for all profiles.
        """
        name = "application" if profile is None else f"application-{profile}"
        readable = [folder for folder in folders if self.can_look_into(folder)]
        candidates = (folder / f"{name}{suffix}" for folder in readable for suffix in SUFFIXES)
        return [file for file in candidates if is_there(file)]

    def can_look_into(self, folder: Path) -> bool:
        """Return whether ``folder`` can be looked into, or is not there; note why it cannot."""
        reason = why_no_folder(folder)
        if reason:
            self._report_unreadable("folder", reason, self.shown(folder))
        return not reason

    def _report_unreadable(self, kind: str, reason: str | None, where: object) -> None:
        what = f"the {kind} cannot be read: {reason}"
        self.findings.error(Code.FILE_UNREADABLE, what, where, f"put back the {kind}, or check its name and rights")

    def documents(self, file: Path) -> tuple[Document, ...]:
        """Return the documents of ``file``; what is broken goes to the findings and is left out."""
        if file not in self._read:
            text = self.text(file)
            self._read[file] = () if text is None else tuple(self._parsed(file, text))
        return self._read[file]

    def _parsed(self, file: Path, text: str) -> list[Document]:
        origin = Origin(OriginKind.FILE, self.shown(file))
        parse = _parser(file.suffix.lower())
        if parse is None:
            fix = f"use one of {listed(SUFFIXES)}"
            self.findings.error(
                Code.FILE_UNREADABLE, f"{file.suffix or 'no suffix'} is no format of settings", origin, fix
            )
            return []
        return [_document(file, entries) for entries in parse(text, origin, self.findings)]


def _parser(suffix: str) -> Callable[[str, Origin, Findings], list[list[Entry]]] | None:
    """Return what reads files of this suffix; formats load when they are first needed."""
    match suffix:
        case ".yaml" | ".yml":
            from opencqrs_py.config.sources.yaml_file import yaml_documents  # noqa: PLC0415

            return yaml_documents
        case ".toml":
            from opencqrs_py.config.sources.toml_file import toml_documents  # noqa: PLC0415

            return toml_documents
        case ".properties":
            from opencqrs_py.config.sources.properties_file import properties_documents  # noqa: PLC0415

            return properties_documents
        case _:
            return None


def _document(file: Path, entries: list[Entry]) -> Document:
    named = [(entry, entry.names) for entry in entries]
    return Document(
        file,
        Layer(LayerKind.FILE, tuple(entry for entry, names in named if names not in _ON_PROFILE)),
        tuple(entry for entry, names in named if names in _ON_PROFILE),
        tuple(entry for entry, names in named if names == _IMPORT),
        tuple(entry for entry, names in named if names == _ACTIVE),
    )
