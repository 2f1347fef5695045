"""The events of a git history, as far as the handlers need them."""

from dataclasses import dataclass

from opencqrs_py import event_type


@event_type("git.commit-authored.v1")
@dataclass(frozen=True)
class CommitAuthored:
    """A commit, with the totals of its file events."""

    files: int
    lines_added: int
    lines_deleted: int


@dataclass(frozen=True)
class FileEvent:
    """What the four file events have in common: a handler of this class gets each of them."""

    path: str
    author: str
    lines_added: int | None  # None: a binary file
    lines_deleted: int | None


@event_type("git.file-added.v1")
class FileAdded(FileEvent):
    """A path is new."""


@event_type("git.file-changed.v1")
class FileChanged(FileEvent):
    """The content or the mode of a path has changed."""


@event_type("git.file-deleted.v1")
class FileDeleted(FileEvent):
    """A path is gone."""


@event_type("git.file-renamed.v1")
@dataclass(frozen=True)
class FileRenamed(FileEvent):
    """A path is new, and what it holds was at another before."""

    previous_path: str
