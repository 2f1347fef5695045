"""The parser of ``git log -z --raw --numstat``: from a stream of bytes to commits with their changes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

__all__ = ["Change", "Commit", "FileChange", "Kind", "commits_in", "tokens_in"]

COMMIT = b"\x01"
"""First byte of a commit's header; file entries begin with a colon (raw), a digit or a dash (numstat)."""

RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]([01]\d|2[0-3]):[0-5]\d)")
UNKNOWN_TIME = "1970-01-01T00:00:00Z"


class Change(StrEnum):
    """What a commit did to a path."""

    ADDED = "added"
    CHANGED = "changed"
    DELETED = "deleted"
    RENAMED = "renamed"


class Kind(StrEnum):
    """The kind of a path, from its mode in git."""

    FILE = "file"
    EXECUTABLE = "executable"
    SYMLINK = "symlink"
    SUBMODULE = "submodule"


CHANGES = {b"A": Change.ADDED, b"C": Change.ADDED, b"D": Change.DELETED, b"R": Change.RENAMED}
KINDS = {b"100755": Kind.EXECUTABLE, b"120000": Kind.SYMLINK, b"160000": Kind.SUBMODULE}


@dataclass(frozen=True, slots=True)
class FileChange:
    """One changed path of a commit.

    Attributes:
        change: What happened.
        kind: The kind of the path; of a deleted one, what it was before.
        path: The path from the repository's top folder, as the bytes that git stores; after a rename the new one.
        previous: The path before a rename, else ``None``.
        added: Lines added; ``None`` for a binary file or a submodule.
        deleted: Lines deleted; ``None`` as above.
    """

    change: Change
    kind: Kind
    path: bytes
    previous: bytes | None = None
    added: int | None = None
    deleted: int | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit.

    Attributes:
        sha: Its hash, in hexadecimal digits.
        parents: How many commits it follows directly: 0 for a root, 2 or more for a merge.
        author: The author's e-mail address, or the name if there is none. It must not leave the loader.
        authored_at: When it was written, RFC 3339 with the author's offset.
        committed_at: When it entered this history, likewise.
        changes: The changed paths; none for a merge.
    """

    sha: str
    parents: int
    author: bytes
    authored_at: str
    committed_at: str
    changes: tuple[FileChange, ...] = field(default=())


def tokens_in(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Split a stream of blocks at its NUL bytes."""
    rest = b""
    for block in blocks:
        *tokens, rest = (rest + block).split(b"\0")
        yield from tokens
    if rest:
        yield rest


def commits_in(tokens: Iterable[bytes]) -> Iterator[Commit]:
    """Yield the commits of ``git log``, one at a time, each as soon as it is complete.

    Args:
        tokens: The parts between the NUL bytes: a header's six fields; then, for each changed path, a raw
            entry and its one or (renamed) two paths; then the same paths again, with their line counts.

    Raises:
        ValueError: If a token comes where none of its kind is allowed.
    """
    stream = iter(tokens)
    commit: Commit | None = None
    changes: dict[bytes, FileChange] = {}
    for token in stream:
        if token.startswith(COMMIT):
            if commit is not None:
                yield replace(commit, changes=tuple(changes.values()))
            commit, changes = _commit(token, stream), {}
        elif token.lstrip(b"\n").startswith(b":"):
            change = _raw(token, stream)
            changes[change.path] = change
        else:
            path, added, deleted = _line_counts(token, stream)
            changes[path] = _counted(changes.get(path), path, added, deleted)
    if commit is not None:
        yield replace(commit, changes=tuple(changes.values()))


def _commit(first: bytes, rest: Iterator[bytes]) -> Commit:
    sha = first.removeprefix(COMMIT).decode()
    parents, email, name, authored, committed = (_after(rest) for _ in range(5))
    times = [text for raw in (authored, committed) if RFC3339.fullmatch(text := raw.decode(errors="replace"))]
    return Commit(
        sha=sha,
        parents=len(parents.split()),
        author=email.strip().lower() or name.strip(),
        authored_at=(times or [UNKNOWN_TIME])[0],
        committed_at=(times or [UNKNOWN_TIME])[-1],
    )


def _raw(token: bytes, rest: Iterator[bytes]) -> FileChange:
    """Read ``:<old mode> <new mode> <old hash> <new hash> <status>``, followed by one path or two."""
    before, after, _, _, status = token.lstrip(b"\n")[1:].split(b" ")
    letter = status[:1]
    path = _after(rest)
    previous = None
    if letter in (b"R", b"C"):
        previous, path = path, _after(rest)
    change = CHANGES.get(letter, Change.CHANGED)
    kind = KINDS.get(before if change is Change.DELETED else after, Kind.FILE)
    return FileChange(change, kind, path, previous if change is Change.RENAMED else None)


def _line_counts(token: bytes, rest: Iterator[bytes]) -> tuple[bytes, int | None, int | None]:
    """Read added, deleted and path, separated by tabs. If the path is empty, the old and the new one follow."""
    added, deleted, path = token.split(b"\t", 2)
    if not path:
        _after(rest)
        path = _after(rest)
    return path, _number(added), _number(deleted)


def _number(digits: bytes) -> int | None:
    return None if digits == b"-" else int(digits)


def _counted(change: FileChange | None, path: bytes, added: int | None, deleted: int | None) -> FileChange:
    if change is None:
        what = f"git counts lines of {path!r}, but did not list it as changed"
        raise ValueError(what)
    return change if change.kind is Kind.SUBMODULE else replace(change, added=added, deleted=deleted)


def _after(rest: Iterator[bytes]) -> bytes:
    token = next(rest, None)
    if token is None:
        what = "the output of git log ends in the middle of a commit"
        raise ValueError(what)
    return token
