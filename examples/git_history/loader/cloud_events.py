"""CloudEvents from commits: one for the commit, then one for each changed path."""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from loader.git_log import Commit, FileChange

__all__ = ["AuthorHash", "author_hash", "cloud_events", "path_text"]

AuthorHash = Callable[[bytes], str]
"""Turns an author's address into the hash that stands for the author in events."""

UNPRINTABLE = re.compile(r"[%\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""The characters that CloudEvents do not allow in a subject, and the percent sign, which escapes them."""


def author_hash(salt: bytes) -> AuthorHash:
    """Return a function that replaces an author's address by 16 hexadecimal digits.

    Args:
        salt: The secret; another salt gives the same author another hash.
    """

    @lru_cache(maxsize=65_536)
    def hidden(author: bytes) -> str:
        return hmac.digest(salt, author, "sha256").hex()[:16]

    return hidden


def path_text(path: bytes) -> str:
    """Return a path as text that any event store accepts, and that can be turned back into the bytes.

    Control characters, bytes that are not UTF-8, and the percent sign become ``%XX``;
    ``urllib.parse.unquote_to_bytes`` restores the bytes.
    """
    text = path.decode(errors="surrogateescape")
    return UNPRINTABLE.sub(_percent, text)


def cloud_events(commit: Commit, source: str, hidden: AuthorHash) -> Iterator[dict[str, Any]]:
    """Yield the events of one commit.

    Args:
        commit: The commit.
        source: CloudEvents ``source`` of the repository.
        hidden: The function that hashes its author.
    """
    author = hidden(commit.author)
    shared = {
        "specversion": "1.0",
        "source": source,
        "time": commit.authored_at,
        "datacontenttype": "application/json",
    }
    changes = commit.changes
    data = {
        "author": author,
        "parents": commit.parents,
        "committed_at": commit.committed_at,
        "files": len(changes),
        "lines_added": sum(change.added or 0 for change in changes),
        "lines_deleted": sum(change.deleted or 0 for change in changes),
    }
    subject = f"/commits/{commit.sha}"
    yield {**shared, "id": commit.sha, "subject": subject, "type": "git.commit-authored.v1", "data": data}
    for number, change in enumerate(changes, 1):
        path = path_text(change.path)
        yield {
            **shared,
            "id": f"{commit.sha}.{number}",
            "subject": f"/files/{path}",
            "type": f"git.file-{change.change}.v1",
            "data": {"commit": commit.sha, "author": author, **_facts(change, path)},
        }


def _facts(change: FileChange, path: str) -> dict[str, Any]:
    facts = {"path": path, "kind": change.kind, "lines_added": change.added, "lines_deleted": change.deleted}
    return facts if change.previous is None else {**facts, "previous_path": path_text(change.previous)}


def _percent(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode(errors="surrogateescape"))
