"""An archive of trips in a few large Parquet files, with each event in exactly one of them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer

import pyarrow as pa
import pyarrow.parquet as pq

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

FOLDER = Path("archive")
MOST_EVENTS, MOST_SECONDS = 10_000, 5.0  # in memory, before a file is written


@event_type("taxi.trip-ended.v1")
@dataclass(frozen=True)
class TripEnded:
    """A trip ended and was paid."""

    taxi: str
    kilometres: float
    cents: int


@dataclass
class Buffer:
    """The events that are not written yet, and the trigger that requests a checkpoint."""

    trigger: CheckpointTrigger
    tables: list[pa.Table] = field(default_factory=list)
    events: int = 0
    timer: Timer | None = None


@checkpointing("archive")
class Archive(CheckpointParticipant):
    """Collects events, and writes a file every 5 s or 10,000 events."""

    def __init__(self) -> None:
        self.buffers: dict[Partition, Buffer] = {}

    def on_partition_claimed(self, partition: Partition, resume_at: int, trigger: CheckpointTrigger) -> None:
        """Remove files whose events come again, after a crash between a file and the progress."""
        FOLDER.mkdir(exist_ok=True)
        for file in FOLDER.glob(f"{partition.residue}-of-{partition.modulus}-*"):
            if int(file.stem.split("-")[3]) > resume_at:
                file.unlink()
        self.buffers[partition] = Buffer(trigger)

    @event_handling(events=TripEnded)
    def add(self, trips: pa.Table, context: ProcessingContext) -> None:
        """Keep a chunk of events, as columns."""
        buffer = self.buffers[context.partition]
        buffer.tables.append(trips)
        buffer.events += len(trips)
        if buffer.events >= MOST_EVENTS:
            buffer.trigger.request()
        elif buffer.timer is None:
            buffer.timer = Timer(MOST_SECONDS, buffer.trigger.request)
            buffer.timer.daemon = True
            buffer.timer.start()

    def on_checkpoint(self, partition: Partition, requested: int) -> int:
        """Write the buffered events to a new file, named after their first and last position."""
        buffer = self.buffers[partition]
        if buffer.timer is not None:
            buffer.timer.cancel()
            buffer.timer = None
        if buffer.tables:
            table = pa.concat_tables(buffer.tables)
            first, last = table["position"][0].as_py(), table["position"][-1].as_py()
            name = f"{partition.residue}-of-{partition.modulus}-{first:09}-{last:09}"
            pq.write_table(table, written := FOLDER / f"{name}.new")
            move_into_place(written, FOLDER / f"{name}.parquet")
            buffer.tables, buffer.events = [], 0
        return requested

    def on_partition_closed(self, partition: Partition) -> None:
        """Discard the events that were not written: they come again."""
        buffer = self.buffers.pop(partition, None)  # missing if the claim failed
        if buffer is not None and buffer.timer is not None:
            buffer.timer.cancel()


def move_into_place(written: Path, file: Path) -> None:
    """Sync a file, then rename it: after that, a power failure affects neither content nor name."""
    with written.open("rb+") as content:
        os.fsync(content.fileno())
    written.replace(file)
    if os.name == "posix":  # other systems cannot sync folders
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@on_reset("archive")
def remove_files(reset: Reset) -> None:
    """Remove the files whose events come again, including those of former partitions."""
    gone = []
    for file in sorted(FOLDER.glob("*.parquet")):
        first, last = map(int, file.stem.split("-")[3:])
        if first <= reset.position < last:
            msg = f"{file} has events before and after {reset.position}: reset to {first - 1}, or --to tail"
            raise ValueError(msg)
        if first > reset.position:
            gone.append(file)
    for file in gone:
        file.unlink()
