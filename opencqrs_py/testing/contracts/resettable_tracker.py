"""The contract of trackers that can reset groups."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from opencqrs_py.errors import EventStoreError, FencedError, ResetError, TransactionEndedError
from opencqrs_py.model import Cursor, Partition, PartitionStatus, ProcessorState, Skip, layout
from opencqrs_py.model.ahead import Ahead
from opencqrs_py.model.group_record import GroupRecord
from opencqrs_py.model.inbox import InboxChange, InboxEntry, InboxStatus
from opencqrs_py.model.replay import Replay, Reset
from opencqrs_py.processing.ports import GroupRecords, ParkingTracker, RepartitioningTracker, ResettableTracker
from opencqrs_py.testing.contracts.progress_records import SECONDS, CrashError, ReadModel
from opencqrs_py.testing.contracts.repartitioning_tracker import begun, carry_to

ONE, TWO = layout(1), layout(2)
NOW = "2026-01-01T00:00:00.000+00:00"


def reset(position: int, group: str = "group") -> Reset:
    """Return a reset with a context that only JSON keeps."""
    return Reset(group, position, {"ä": [1, None]}, "größere Spalte", NOW)


def at(tracker: ResettableTracker, position: int, partitions: Sequence[Partition] = ONE) -> tuple[Cursor, ...]:
    """Claim a group and move all of its partitions to a position."""
    cursors = tracker.claim("group", partitions, 0, "owner")
    for cursor in cursors:
        with tracker.unit("group", cursor, position, fingerprint=f"at {position}"):
            pass
    return tuple(cursor.moved_to(position, stored=True, fingerprint=f"at {position}") for cursor in cursors)


def waits(position: int, sequence_id: str = "/a", *, replaying: bool = False) -> InboxEntry:
    """Return an event that waits for its first attempt."""
    known = (position, f"id {position}", "source", sequence_id, "lent")
    return InboxEntry("group", sequence_id, *known, InboxStatus.PENDING, NOW, replaying=replaying)


class ResettableTrackerContract:
    """What resets and replays rely on.

    Give ``tracker``, without any progress; ``another``, which sees the same progress as a second process would; and
    ``read_model``, if what handlers write shares the transaction with the progress.
    """

    @pytest.fixture
    def tracker(self) -> ResettableTracker:
        """Return a tracker without progress."""
        raise NotImplementedError

    @pytest.fixture
    def another(self, tracker: ResettableTracker) -> ResettableTracker:
        """Return another tracker of the same progress."""
        return tracker

    @pytest.fixture
    def read_model(self) -> ReadModel:
        """Return the tables of the handlers."""
        pytest.skip("no transaction is shared with the read model")

    def test_a_reset_moves_all_partitions_back_and_returns_their_replays(
        self, tracker: ResettableTracker, another: ResettableTracker
    ) -> None:
        at(tracker, 8, TWO)
        with tracker.resetting(reset(3), TWO, fingerprint="at 3") as opened:
            assert {one: replay and replay.until for one, replay in opened.replays.items()} == dict.fromkeys(TWO, 8)
        cursors = another.claim("group", TWO, 0, "owner")
        assert [(one.stored, one.fingerprint, one.replay) for one in cursors] == [(3, "at 3", Replay(reset(3), 8))] * 2
        assert [one.unreleased for one in cursors] == [False, False]
        assert [status.replay for status in another.statuses()] == [Replay(reset(3), 8)] * 2

    def test_a_reset_fences_the_previous_owner(self, tracker: ResettableTracker, another: ResettableTracker) -> None:
        (cursor,) = at(tracker, 8)
        with another.resetting(reset(0), ONE):
            pass
        with pytest.raises(FencedError), tracker.unit("group", cursor, 9):
            pytest.fail("the unit of the previous owner was opened")
        assert tracker.renewed("group", cursor) is None

    def test_a_reset_waits_for_the_chunk_in_hand_which_is_handled_again(
        self, tracker: ResettableTracker, another: ResettableTracker, read_model: ReadModel
    ) -> None:
        (cursor,) = at(tracker, 8)
        with ThreadPoolExecutor(1) as threads:
            with tracker.unit("group", cursor, 9) as unit:
                read_model.write(unit, "before")
                if another is tracker:
                    pytest.skip("the unit of another thread of the same process is fenced instead")
                resetting = threads.submit(self._reset, another, read_model)
            resetting.result(SECONDS)
        assert read_model.values() == ["before", "reset"]
        assert [status.replay and status.replay.until for status in tracker.statuses()] == [9]

    @staticmethod
    def _reset(tracker: ResettableTracker, read_model: ReadModel) -> None:
        with tracker.resetting(reset(0), ONE) as opened:
            read_model.write(opened.unit, "reset")

    def test_a_reset_that_fails_changes_nothing(self, tracker: ResettableTracker, read_model: ReadModel) -> None:
        at(tracker, 8)
        with pytest.raises(CrashError), tracker.resetting(reset(0), ONE) as opened:  # noqa: PT012 it fails at its end
            read_model.write(opened.unit, "lost")
            raise CrashError
        assert read_model.values() == []
        assert [(status.position, status.replay) for status in tracker.statuses()] == [(8, None)]

    def test_a_group_that_never_ran_begins_where_it_was_reset_to(
        self, tracker: ResettableTracker, read_model: ReadModel
    ) -> None:
        with tracker.resetting(reset(5), TWO, fingerprint="at 5") as opened:
            read_model.write(opened.unit, "prepared")
            assert opened.replays == dict.fromkeys(TWO)
        cursors = tracker.claim("group", TWO, 0, "owner")
        assert [(one.stored, one.fingerprint, one.replay) for one in cursors] == [(5, "at 5", None)] * 2
        assert [one.unreleased for one in cursors] == [False, False]
        assert read_model.values() == ["prepared"]
        if isinstance(tracker, GroupRecords):
            assert [(one.position, one.began_at) for one in tracker.records()] == [(5, NOW)]

    @pytest.mark.parametrize(("to", "begins"), [(0, 0), (2, 2), (3, 3), (7, 3)])
    def test_a_reset_to_before_the_beginning_of_a_group_moves_its_beginning(
        self, tracker: ResettableTracker, to: int, begins: int
    ) -> None:
        if not isinstance(tracker, GroupRecords):
            pytest.skip("it keeps no records of groups")
        record = GroupRecord("group", "3", 3, NOW)
        tracker.claim("group", ONE, 3, "owner", keep=lambda _: record)
        with tracker.resetting(reset(to), ONE):
            pass
        assert [each.position for each in tracker.records()] == [begins]

    @pytest.mark.parametrize(("to", "begins"), [(0, 0), (2, None)])
    def test_a_reset_to_before_the_first_event_makes_an_unknown_beginning_known(
        self, tracker: ResettableTracker, to: int, begins: int | None
    ) -> None:
        if not isinstance(tracker, GroupRecords):
            pytest.skip("it keeps no records of groups")
        record = GroupRecord("group", "", None, NOW)
        tracker.claim("group", ONE, 3, "owner", keep=lambda _: record)
        with tracker.resetting(reset(to), ONE):
            pass
        assert [each.position for each in tracker.records()] == [begins]

    @pytest.mark.parametrize(("to", "known"), [(0, ""), (4, ""), (5, "s1"), (8, "s1")])
    def test_the_recorded_sequencing_is_cleared_only_if_no_event_waits_before_the_position(
        self, tracker: ResettableTracker, to: int, known: str
    ) -> None:
        if not isinstance(tracker, GroupRecords) or not isinstance(tracker, ParkingTracker):
            pytest.skip("it keeps no records of groups, or has no inbox")
        record = GroupRecord("group", "tail", 0, NOW, sequencing="s1")
        (cursor,) = tracker.claim("group", ONE, 0, "owner", keep=lambda _: record)
        with tracker.unit("group", cursor, 8, change=InboxChange(NOW, (waits(5),))):
            pass
        with tracker.resetting(reset(to), ONE):
            pass
        assert [each.sequencing for each in tracker.records()] == [known]

    def test_another_number_of_partitions_is_refused(self, tracker: ResettableTracker) -> None:
        at(tracker, 8, TWO)
        with pytest.raises(EventStoreError, match="OCQ-310"), tracker.resetting(reset(0), layout(3)):
            pytest.fail("the unit was opened")
        assert [status.position for status in tracker.statuses()] == [8, 8]

    def test_a_reset_restores_lost_partitions_of_the_same_layout(self, tracker: ResettableTracker) -> None:
        at(tracker, 8, TWO[:1])
        with tracker.resetting(reset(3), TWO) as opened:
            assert {one: replay and replay.until for one, replay in opened.replays.items()} == dict.fromkeys(TWO, 8)
        assert [one.stored for one in tracker.claim("group", TWO, 0, "owner")] == [3, 3]

    def test_a_reset_does_not_affect_other_groups(self, tracker: ResettableTracker) -> None:
        (other,) = tracker.claim("other", ONE, 4, "owner")
        at(tracker, 8)
        with tracker.resetting(reset(0), ONE):
            pass
        with tracker.unit("other", other, 6):
            pass
        assert [(one.group, one.position, one.replay is None) for one in tracker.statuses()] == [
            ("group", 0, False),
            ("other", 6, True),
        ]

    def test_a_reset_discards_the_failure_and_skips_after_its_position(self, tracker: ResettableTracker) -> None:
        (cursor,) = at(tracker, 2)
        for position in (3, 7):
            skip = Skip("group", ONE[0], position, f"id {position}", "s", "/a", "lent", 1, "no", NOW)
            with tracker.unit("group", cursor, position, skip=skip):
                pass
            cursor = cursor.moved_to(position, stored=True)
        tracker.report(PartitionStatus("group", ONE[0], 7, ProcessorState.FAILED, 3, "an error"), cursor.epoch)
        with tracker.resetting(reset(5), ONE):
            pass
        assert [skip.position for skip in tracker.skipped()] == [3]
        (status,) = tracker.statuses()
        assert (status.state, status.error, status.attempt) == (ProcessorState.STOPPED, "", 0)

    def test_events_waiting_after_the_position_are_read_again_as_new(self, tracker: ResettableTracker) -> None:
        (cursor,) = at(tracker, 8)
        assert isinstance(tracker, ParkingTracker)
        entries = (waits(2), waits(4), waits(5, "/b", replaying=True), waits(6, "/c"))
        with tracker.unit("group", cursor, 8, change=InboxChange(NOW, entries)):
            pass
        with tracker.resetting(reset(3), ONE) as opened:
            assert opened.replays == {ONE[0]: Replay(reset(3), 8, (4, 6))}
        assert [one.position for one in tracker.entries("group")] == [2]
        (status,) = tracker.statuses()
        assert status.replay == Replay(reset(3), 8, (4, 6))

    def test_events_that_a_partition_never_handled_before_others_that_it_did_are_read_as_new(
        self, tracker: ResettableTracker, another: ResettableTracker
    ) -> None:
        if not isinstance(tracker, RepartitioningTracker):
            pytest.skip("its partitions never change, so that none is ahead")
        begun(tracker, 10, 20)
        tracker.repartition("group", ONE, carry_to(ONE))
        asked: list[tuple[int, Ahead | None]] = []

        def never_handled(cursor: Cursor) -> list[int]:
            asked.append((cursor.stored, cursor.ahead))
            return [12, 14]

        with tracker.resetting(reset(3), ONE, never_handled=never_handled) as opened:
            assert opened.replays == {ONE[0]: Replay(reset(3), 20, (12, 14))}
        assert asked == [(10, Ahead(((TWO[1], 20),)))]
        assert [status.replay for status in another.statuses()] == [Replay(reset(3), 20, (12, 14))]

    def test_a_waiting_event_remembers_whether_it_is_replayed(
        self, tracker: ResettableTracker, another: ResettableTracker
    ) -> None:
        (cursor,) = at(tracker, 8)
        assert isinstance(tracker, ParkingTracker)
        assert isinstance(another, ParkingTracker)
        with tracker.unit("group", cursor, 8, change=InboxChange(NOW, (waits(2), waits(4, "/b", replaying=True)))):
            pass
        assert {one.position: one.replaying for one in another.entries("group")} == {2: False, 4: True}

    def test_a_reset_with_too_many_waiting_events_is_refused(
        self, tracker: ResettableTracker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("opencqrs_py.model.replay._LONGEST", 200)
        (cursor,) = at(tracker, 100)
        assert isinstance(tracker, ParkingTracker)
        with tracker.unit("group", cursor, 100, change=InboxChange(NOW, tuple(map(waits, range(1, 90))))):
            pass
        with pytest.raises(ResetError, match="OCQ-612"), tracker.resetting(reset(0), ONE):
            pass
        assert (tracker.statuses()[0].position, len(tracker.entries("group"))) == (100, 89)

    def test_a_replay_survives_claims_and_chunks(self, tracker: ResettableTracker, another: ResettableTracker) -> None:
        at(tracker, 8)
        with tracker.resetting(reset(0), ONE):
            pass
        (cursor,) = tracker.claim("group", ONE, 0, "owner")
        with tracker.unit("group", cursor, 5):
            pass
        found = tracker.renewed("group", cursor)
        assert found is not None
        assert found.replay == Replay(reset(0), 8)
        assert another.claim("group", ONE, 0, "next")[0].replay == Replay(reset(0), 8)

    def test_the_last_partition_ends_the_replay_of_the_group(
        self, tracker: ResettableTracker, another: ResettableTracker, read_model: ReadModel
    ) -> None:
        first, second = self._replayed(tracker, TWO)
        with tracker.ending_replay("group", first) as ending:
            assert ending is not None
            assert ending.finished is None
        with another.ending_replay("group", second) as ending:
            assert ending is not None
            assert ending.finished == reset(0)
            read_model.write(ending.unit, "finished")
        with tracker.ending_replay("group", second) as ending:  # its answer was lost
            assert ending is not None
            assert ending.finished is None
        assert read_model.values() == ["finished"]
        assert [status.replay for status in tracker.statuses()] == [None, None]

    def test_a_failed_end_of_a_replay_can_be_retried(self, tracker: ResettableTracker, read_model: ReadModel) -> None:
        (cursor,) = self._replayed(tracker, ONE)
        with pytest.raises(CrashError), tracker.ending_replay("group", cursor) as ending:  # noqa: PT012 likewise
            assert ending is not None
            read_model.write(ending.unit, "lost")
            raise CrashError
        with tracker.ending_replay("group", cursor) as ending:
            assert ending is not None
            assert ending.finished == reset(0)
        assert read_model.values() == []

    def test_only_the_owner_ends_a_replay(self, tracker: ResettableTracker) -> None:
        (cursor,) = self._replayed(tracker, ONE)
        tracker.claim("group", ONE, 0, "next")
        with pytest.raises(FencedError), tracker.ending_replay("group", cursor):
            pytest.fail("the unit was opened")
        assert tracker.statuses()[0].replay is not None

    def test_two_partitions_that_end_concurrently_end_the_replay_once(
        self, tracker: ResettableTracker, another: ResettableTracker, read_model: ReadModel
    ) -> None:
        cursors = self._replayed(tracker, TWO)

        def end(by: ResettableTracker, cursor: Cursor) -> bool:
            with by.ending_replay("group", cursor) as ending:
                assert ending is not None
                if ending.finished is not None:
                    read_model.write(ending.unit, "finished")
                return ending.finished is not None

        with ThreadPoolExecutor(2) as threads:
            found = [threads.submit(end, by, one) for by, one in zip((tracker, another), cursors, strict=True)]
            assert sorted(one.result(SECONDS) for one in found) == [False, True]
        assert read_model.values() == ["finished"]

    def test_a_scheduled_group_ends_its_replay_after_its_inbox(self, tracker: ResettableTracker) -> None:
        (cursor,) = self._replayed(tracker, ONE)
        assert isinstance(tracker, ParkingTracker)
        again = waits(4, replaying=True)
        with tracker.unit("group", cursor, 8, change=InboxChange(NOW, (again, waits(5, "/b")))):
            pass
        with tracker.ending_replay("group", cursor, after_inbox=True) as ending:
            assert ending is None
        assert tracker.statuses()[0].replay is not None
        paused = again._replace(status=InboxStatus.PAUSED, due_at=None)
        assert tracker.change("group", InboxChange(NOW, changed=((again, paused),)))
        with tracker.ending_replay("group", cursor, after_inbox=True) as ending:
            assert ending is not None
            assert ending.finished == reset(0)

    def test_a_block_that_ends_the_transaction_resets_nothing(
        self, tracker: ResettableTracker, read_model: ReadModel
    ) -> None:
        at(tracker, 8)
        with pytest.raises(TransactionEndedError), tracker.resetting(reset(0), ONE) as opened:  # noqa: PT012
            read_model.write(opened.unit, "written")
            if not hasattr(opened.unit.connection, "commit"):
                raise TransactionEndedError("there is nothing to end")
            opened.unit.connection.commit()
        assert [(status.position, status.replay) for status in tracker.statuses()] == [(8, None)]

    @staticmethod
    def _replayed(tracker: ResettableTracker, partitions: Sequence[Partition]) -> tuple[Cursor, ...]:
        """Return the cursors of a group that has handled everything again, and has not ended its replay."""
        at(tracker, 8, partitions)
        with tracker.resetting(reset(0), partitions):
            pass
        cursors = tracker.claim("group", partitions, 0, "owner")
        for cursor in cursors:
            with tracker.unit("group", cursor, 8):
                pass
        return tuple(cursor.moved_to(8, stored=True) for cursor in cursors)
