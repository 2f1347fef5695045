"""The events of a git history, with the fields that the handlers need."""

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
    """The base class of the four file events: a handler of this class gets each of them."""

    path: str
    author: str
    lines_added: int | None  # None: a binary file
    lines_deleted: int | None


@event_type("git.file-added.v1")
class FileAdded(FileEvent):
    """A path was added."""


@event_type("git.file-changed.v1")
class FileChanged(FileEvent):
    """The content or the mode of a path was changed."""


@event_type("git.file-deleted.v1")
class FileDeleted(FileEvent):
    """A path was deleted."""


@event_type("git.file-renamed.v1")
@dataclass(frozen=True)
class FileRenamed(FileEvent):
    """A path was renamed: it has what was at another path before."""

    previous_path: str
