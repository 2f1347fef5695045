"""Participants of a project: allowed settings, conditions, and refusals at the start."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Event as Signal
from threading import Thread, current_thread
from threading import enumerate as enumerate_threads
from typing import Any

import pytest
from sqlalchemy import Connection, text

from opencqrs_py import (
    Application,
    CheckpointParticipant,
    Event,
    InboxFilter,
    ProcessingContext,
    checkpointing,
    event_handling,
    on_start,
)
from opencqrs_py.assembly import lifecycle
from opencqrs_py.assembly.discovery.source_text import read_source
from opencqrs_py.errors import AssemblyError, RebuildError
from opencqrs_py.model.cloudevents import parse_event


@checkpointing("archive")
class Archive:
    """Keeps nothing."""

    @event_handling(types=["*"])
    def keep(self, event: Event) -> None:
        """Keep an event."""

    def on_checkpoint(self, partition: Any, requested: int) -> int:
        """Confirm it."""
        del partition
        return requested


@event_handling("archive", types=["*"])
def count(event: Event) -> None:
    """Count an event."""


@on_start("archive")
def tables(connection: Connection) -> None:
    """Create a table."""
    connection.execute(text("CREATE TABLE IF NOT EXISTS kept (id TEXT)"))


@event_handling("archive", types=["*"])
def insert(event: Event, connection: Connection) -> None:
    """Insert nothing."""


THREAD = {"event-handling.standard.processing.engine": "thread"}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            {"event-handling.groups.archive.processing.mode": "scheduled"},
            "is scheduled: its events are handled out of the order of their positions",
        ),
        (
            {"event-handling.groups.archive.retry.on-exhausted": "park"},
            "parks events, but Archive does not report when those are durable",
        ),
        (
            {"event-handling.groups.archive.retry.on-undecodable": "park"},
            "parks events, but Archive does not report when those are durable",
        ),
        (
            {
                "event-handling.groups.archive.processing.engine": "spark",
                "event-handling.groups.archive.progress.tracking": "in-memory",
            },
            "keeps its progress in memory, which Spark workers do not share",
        ),
    ],
)
def test_a_group_that_cannot_have_participants_is_refused_at_the_start(
    tmp_path: Path, settings: dict[str, str], why: str
) -> None:
    with (
        Application({**THREAD, **settings}, [Archive], tmp_path) as application,
        pytest.raises(AssemblyError, match="OCQ-642") as caught,
    ):
        application.start()
    assert why in caught.value.what
    assert "set event-handling.groups[archive]." in caught.value.fix


@checkpointing("archive")
class Parking(CheckpointParticipant):
    """Fails for one event as long as a file exists; writes the parked events that it confirms to another."""

    @event_handling(types=["*"])
    def keep(self, event: Event) -> None:
        """Keep an event."""
        if event.id == "2" and Path("broken").exists():
            raise ValueError("broken")

    def on_checkpoint(self, partition: Any, requested: int) -> int:
        """Confirm it."""
        del partition
        return requested

    def on_parked_handled(self, partition: Any, positions: Sequence[int]) -> None:
        """Confirm them."""
        del partition
        with Path("durable").open("a") as file:
            file.write(f"{list(positions)}\n")


def test_a_group_with_participants_parks_an_event_that_a_person_can_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken").touch()
    park = {f"event-handling.groups.archive.retry.{key}": "park" for key in ("on-exhausted", "on-undecodable")}
    none = {"event-handling.groups.archive.retry.policy": "none"}
    with Application({**THREAD, **park, **none}, [Parking], tmp_path) as application:
        event = {"specversion": "1.0", "source": "s", "type": "made", "subject": "/order/1", "data": {}}
        application.event_store.append([parse_event(json.dumps({**event, "id": str(number)})) for number in (1, 2, 3)])
        application.run(until_caught_up=True)
        assert [entry.event_id for entry in application.inbox.entries(InboxFilter())] == ["2", "3"]
        Path("broken").unlink()
        application.inbox.retry(InboxFilter())
        application.run(until_caught_up=True)
        assert not application.inbox.entries(InboxFilter())
    assert Path("durable").read_text() == "[2, 3]\n"


def decided(application: Application, subject: str) -> Any:
    (found,) = (each for each in application.conditions() if each.subject == subject)
    return found


@pytest.mark.parametrize(
    ("mode", "handlers", "choice", "reason"),
    [
        (None, [Archive], "deferred", "all handlers are participants': when a participant requests a checkpoint"),
        (None, [Archive, count], "auto", "there are other handlers, too: with each chunk"),
        ("deferred", [Archive, count], "deferred", "set: when a participant requests a checkpoint"),
        ("REQUIRE_DEFERRED", [Archive], "deferred", "set: when a participant requests a checkpoint"),
        ("require-deferred", [Archive, count], "", "require-deferred, but some handlers are not of participants"),
    ],
)
def test_conditions_say_when_progress_is_stored(
    tmp_path: Path, mode: str | None, handlers: list[Any], choice: str, reason: str
) -> None:
    settings = THREAD | ({} if mode is None else {"event-handling.groups.archive.checkpointing.mode": mode})
    with Application(settings, handlers, tmp_path) as application:
        found = decided(application, "checkpointing.mode")
    assert found.choice == choice
    assert reason in found.reason


def test_a_group_without_participants_shows_no_mode(tmp_path: Path) -> None:
    with Application(THREAD, [count], tmp_path) as application:
        assert not [each for each in application.conditions() if each.subject == "checkpointing.mode"]


def test_a_group_with_participants_cannot_be_rebuilt_beside_the_live_one(tmp_path: Path) -> None:
    with Application(THREAD, [Archive, insert, tables], tmp_path) as application:
        application.run(until_caught_up=True)
        with pytest.raises(RebuildError, match="OCQ-642"):
            application.rebuilds.rebuild("archive")


def test_the_message_for_a_changed_participant_does_not_suggest_a_rebuild(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Application(THREAD, [Archive], tmp_path) as application:
        event = {"specversion": "1.0", "source": "s", "type": "made", "subject": "/order/1", "data": {}, "id": "1"}
        application.event_store.append([parse_event(json.dumps(event))])
        application.run(until_caught_up=True)
    with Application(THREAD, [Archive, count], tmp_path) as application:
        application.run(until_caught_up=True)
    (warning,) = (each for each in caplog.messages if "handlers of group 'archive' changed since position 1" in each)
    assert "opencqrs groups reset archive --to tail handles all events again" in warning
    assert "rebuild" not in warning


def test_the_group_of_a_class_is_found_without_an_import(tmp_path: Path) -> None:
    file = tmp_path / "handlers.py"
    file.write_text(
        "from opencqrs_py import checkpointing, event_handling\n\n\n"
        '@checkpointing("archive")\nclass Archive:\n    @event_handling\n    def keep(self, event): ...\n',
        "utf-8",
    )
    source = read_source(file, "handlers")
    assert source.counts
    assert source.all_named
    assert source.groups == [("archive", 4)]


class Full(CheckpointParticipant):
    """Never requests a checkpoint, and cannot flush."""

    @event_handling(types=["*"])
    def keep(self, event: Event) -> None:
        """Keep an event."""

    def on_checkpoint(self, partition: Any, requested: int) -> int:
        """Fail."""
        raise OSError("disk full")


class Slow(Full):
    """Flushes for longer than a stop waits."""

    go = Signal()

    def on_checkpoint(self, partition: Any, requested: int) -> int:
        """Wait."""
        self.go.wait(300)
        return requested


class Lazy(Full):
    """Confirms nothing."""

    def on_checkpoint(self, partition: Any, requested: int) -> int:
        """Confirm that nothing is durable."""
        return 0


@pytest.mark.parametrize(
    ("participant", "why"),
    [
        (Full, "Full has not confirmed position 1: OSError: disk full"),
        (Slow, "its participants did not flush handled events in time"),
        (Lazy, "its participants confirmed position 0 on release, of 1 handled: the rest is repeated"),
    ],
)
def test_a_run_until_caught_up_fails_if_its_effects_are_not_durable_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, participant: type[Full], why: str
) -> None:
    Slow.go.clear()
    monkeypatch.setattr(lifecycle, "DONE_PATIENCE", 0.5 if participant is Slow else 60.0)
    with Application(THREAD, [checkpointing("archive")(participant)], tmp_path) as application:
        application.event_store.append([parse_event('{"id": "1", "source": "s", "type": "t", "subject": "/a"}')])
        result = application.run(until_caught_up=True)
        left = [thread for thread in enumerate_threads() if thread.name.startswith("opencqrs-archive")]
        Slow.go.set()
        for thread in left:  # they use connections until they end
            thread.join(120)
    assert result.failed
    assert [status.error.endswith(why) for status in result.partitions if status.error] == [True]


class Hanging:
    """Notes the positions that it is given; the third event hangs once, until ``go`` is set."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.go = Signal()
        self.hangs: Thread | None = None

    @event_handling(types=["*"])
    def note(self, event: Event, context: ProcessingContext) -> None:
        """Note an event."""
        if context.position == 3 and self.hangs is None:
            self.hangs = current_thread()
            self.go.wait(300)
        self.seen.append(context.position)

    def on_checkpoint(self, partition: Any, requested: int) -> int:
        """Confirm it."""
        del partition
        return requested


@checkpointing("hanging")
class HangingAlone(Hanging):
    """All handlers of its group are a participant's."""


@checkpointing("hanging")
class HangingBeside(Hanging):
    """There is another handler, too."""


@event_handling("hanging", types=["*"])
def beside(event: Event, connection: Connection) -> None:
    """Do nothing in the transaction."""


@pytest.mark.parametrize(
    "handlers", [(HangingAlone,), pytest.param((HangingBeside, beside), marks=pytest.mark.release)]
)
def test_a_call_that_returns_after_its_timeout_handles_nothing_in_parallel_to_the_new_claim(
    tmp_path: Path, handlers: tuple[Any, ...]
) -> None:
    settings = {**THREAD, "event-handling.standard.processing.handler-timeout": "1s"}
    settings |= {"event-handling.standard.retry.initial-interval": "100ms"}
    made: list[Hanging] = []
    kept = handlers[0].__init__
    with Application(settings, list(handlers), tmp_path) as application, pytest.MonkeyPatch.context() as patch:

        def noted(self: Hanging) -> None:
            kept(self)
            made.append(self)

        patch.setattr(handlers[0], "__init__", noted)
        application.event_store.append(
            parse_event(f'{{"id": "{n}", "source": "s", "type": "t", "subject": "/a"}}') for n in range(1, 9)
        )
        application.start()
        until = time.monotonic() + 120
        while not made or made[-1].seen[-1:] != [8]:
            assert time.monotonic() < until
            time.sleep(0.05)
        board = made[-1]
        given = list(board.seen)
        board.go.set()
        assert board.hangs is not None
        board.hangs.join(120)
        assert sorted(set(given)) == list(range(1, 9))
        assert board.seen == [*given, 3]


@checkpointing("listing")
class HangingInList:
    """Takes lists, and hangs whenever an event of position 5 is among them."""

    def __init__(self) -> None:
        self.go = Signal()

    @event_handling(types=["*"])
    def keep(self, events: list[Event]) -> None:
        """Keep events."""
        if any(event.position == 5 for event in events):
            self.go.wait(120)

    def on_checkpoint(self, partition: Any, requested: int) -> int:
        """Confirm it."""
        del partition
        return requested


@pytest.mark.release  # as the unit tests of calls that hang
def test_a_hanging_list_after_others_since_the_checkpoint_is_narrowed_to_the_event_that_hangs(tmp_path: Path) -> None:
    """Its events are handled alone also after those that the participants handle again."""
    standard = "event-handling.standard"
    settings = {**THREAD, f"{standard}.processing.handler-timeout": "500ms", f"{standard}.retry.policy": "none"}
    settings |= {f"{standard}.processing.batch-size": "3"}
    made: list[HangingInList] = []
    kept = HangingInList.__init__
    with Application(settings, [HangingInList], tmp_path) as application, pytest.MonkeyPatch.context() as patch:

        def noted(self: HangingInList) -> None:
            kept(self)
            made.append(self)

        patch.setattr(HangingInList, "__init__", noted)
        application.event_store.append(
            parse_event(f'{{"id": "{n}", "source": "s", "type": "t", "subject": "/a"}}') for n in range(1, 9)
        )
        application.run(until_caught_up=True)
        assert [skip.position for skip in application.skipped()] == [5]
        for board in made:
            board.go.set()
