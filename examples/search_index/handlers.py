"""A search index that keeps its own position, which the progress follows."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from opencqrs_py import (
    CheckpointParticipant,
    CheckpointTrigger,
    ProcessingContext,
    Reset,
    checkpointing,
    event_handling,
    event_type,
    on_reset,
)
from opencqrs_py.model import Partition

INDEX = Path("index.db")  # represents a search engine: its transactions are separate from those of the progress
EVERY = 200  # pages in a bulk


@event_type("docs.page-saved.v1")
@dataclass(frozen=True)
class PageSaved:
    """A page was saved with a new text."""

    page: str
    text: str


@checkpointing("search")
class SearchIndex(CheckpointParticipant):
    """Sends pages in bulk, each bulk in one transaction of the index with the position of its last event."""

    def __init__(self) -> None:
        self.positions: dict[Partition, int] = {}  # of the last event that is in the index or in ``pages``
        self.pages: dict[Partition, dict[str, str]] = {}

    def on_partition_claimed(self, partition: Partition, resume_at: int, _trigger: CheckpointTrigger) -> None:
        """Read the position of the index. It may be ahead of the progress, but never behind."""
        with closing(sqlite3.connect(INDEX)) as index, index:
            index.execute("CREATE TABLE IF NOT EXISTS pages (page TEXT PRIMARY KEY, text TEXT)")
            index.execute("CREATE TABLE IF NOT EXISTS positions (part TEXT PRIMARY KEY, position INTEGER)")
            if not resume_at:
                index.execute("INSERT OR IGNORE INTO positions VALUES (?, 0)", [str(partition)])
            row = index.execute("SELECT position FROM positions WHERE part = ?", [str(partition)]).fetchone()
        if row is None:
            msg = (
                f"the index has no position, but the progress is at {resume_at}: opencqrs groups reset search --to tail"
            )
            raise LookupError(msg)
        if row[0] < resume_at:  # a restored backup: the pages saved in between would be missing
            msg = f"the index is at {row[0]}, but the progress is at {resume_at}: "
            msg += f"opencqrs groups reset search --to-position {row[0]}"
            raise LookupError(msg)
        self.positions[partition], self.pages[partition] = row[0], {}

    @event_handling
    def save(self, event: PageSaved, context: ProcessingContext, trigger: CheckpointTrigger) -> None:
        """Keep a page for the next bulk, unless the index has it already."""
        if context.position <= self.positions[context.partition]:
            return
        pages = self.pages[context.partition]
        pages[event.page] = event.text
        self.positions[context.partition] = context.position
        if len(pages) >= EVERY:
            trigger.request()

    def on_checkpoint(self, partition: Partition, requested: int) -> int:
        """Send the bulk and its position; return the new position of the index."""
        position = self.positions[partition] = max(self.positions[partition], requested)
        with closing(sqlite3.connect(INDEX)) as index, index:
            index.executemany("INSERT OR REPLACE INTO pages VALUES (?, ?)", self.pages[partition].items())
            index.execute("INSERT OR REPLACE INTO positions VALUES (?, ?)", [str(partition), position])
        self.pages[partition] = {}
        return position

    def on_partition_closed(self, partition: Partition) -> None:
        """Discard the pages that were not sent: their events come again."""
        self.positions.pop(partition, None)  # missing if the claim failed
        self.pages.pop(partition, None)


@on_reset("search")
def set_back(reset: Reset) -> None:
    """Reset the position of the index, too; otherwise it would ignore the pages that come again."""
    with closing(sqlite3.connect(INDEX)) as index, index:
        if index.execute("SELECT count(*) FROM sqlite_master WHERE name = 'positions'").fetchone()[0]:
            index.execute("UPDATE positions SET position = ?", [reset.position])
            if not reset.position:
                index.execute("DELETE FROM pages")
