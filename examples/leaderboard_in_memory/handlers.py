"""A leaderboard in memory: fast to read and write, and saved to a file now and then."""

from __future__ import annotations

import json
import os
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

FOLDER = Path("snapshots")
EVERY = 1_000  # positions between two snapshots


@event_type("game.round-won.v1")
@dataclass(frozen=True)
class RoundWon:
    """A player won a round."""

    player: str
    points: int


@dataclass
class Board:
    """The points of one partition's players, from all rounds up to a position."""

    position: int
    points: dict[str, int]


@checkpointing("leaderboard")
class Leaderboard(CheckpointParticipant):
    """Keeps a board for each partition, and saves it when a checkpoint is due."""

    def __init__(self) -> None:
        self.boards: dict[Partition, Board] = {}
        self.saved: dict[Partition, int] = {}  # positions of the snapshots

    def on_partition_claimed(self, partition: Partition, resume_at: int, _trigger: CheckpointTrigger) -> None:
        """Load the last snapshot. It may be ahead of the progress, if a crash came between the two."""
        file = file_of(partition)
        if resume_at and not file.exists():
            msg = f"{file} is missing, but the progress is at {resume_at}: opencqrs groups reset leaderboard --to tail"
            raise FileNotFoundError(msg)
        board = Board(**json.loads(file.read_text("utf-8"))) if file.exists() else Board(0, {})
        if board.position < resume_at:  # a restored backup: the rounds in between would be missing
            msg = f"{file} ends at {board.position}, but the progress is at {resume_at}: "
            msg += "restore the newer file, or opencqrs groups reset leaderboard --to tail"
            raise ValueError(msg)
        self.boards[partition] = board
        self.save(partition)  # the next claim requires a snapshot

    @event_handling
    def win(self, event: RoundWon, context: ProcessingContext, trigger: CheckpointTrigger) -> None:
        """Count a round, unless the snapshot includes it."""
        board = self.boards[context.partition]
        if context.position > board.position:
            board.points[event.player] = board.points.get(event.player, 0) + event.points
            board.position = context.position
        if board.position - self.saved[context.partition] >= EVERY:
            trigger.request()

    def on_checkpoint(self, partition: Partition, requested: int) -> int:
        """Save a snapshot up to the requested position, which may be that of a round in another partition."""
        board = self.boards[partition]
        board.position = max(board.position, requested)
        self.save(partition)
        return board.position

    def on_partition_closed(self, partition: Partition) -> None:
        """Discard the board: another process may have the partition now."""
        self.boards.pop(partition, None)  # missing if the claim failed
        self.saved.pop(partition, None)

    def save(self, partition: Partition) -> None:
        """Write a board to its file atomically: a reader finds the old one or the new one."""
        board, file = self.boards[partition], file_of(partition)
        FOLDER.mkdir(exist_ok=True)
        written = file.with_suffix(".new")
        written.write_text(json.dumps(vars(board)), "utf-8")
        move_into_place(written, file)
        self.saved[partition] = board.position


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


def file_of(partition: Partition) -> Path:
    """Return the file of a partition's board."""
    return FOLDER / f"{partition.residue}-of-{partition.modulus}.json"


@on_reset("leaderboard")
def remove_snapshots(reset: Reset) -> None:
    """Remove the snapshots: rounds that they include would not be counted again."""
    if reset.position:
        msg = "a board cannot go back to an earlier position: opencqrs groups reset leaderboard --to tail"
        raise ValueError(msg)
    for file in FOLDER.glob("*.json"):
        file.unlink()
