"""The part of the contract of progress trackers that is about what only some of them can do: see their protocols."""

from __future__ import annotations

from contextlib import suppress

import pytest

from opencqrs_py.errors import FencedError
from opencqrs_py.model import layout
from opencqrs_py.processing.ports import ProgressTracker, SavingTracker, SucceedingTracker
from opencqrs_py.processing.reaching import WatchableTracker
from opencqrs_py.testing.contracts.calls import begun, returned
from opencqrs_py.testing.contracts.inbox_units import brought_in, entry
from opencqrs_py.testing.contracts.progress_records import SECONDS, ReadModel, claimed, meanwhile, moved, timed

ENDLESS = 100 * SECONDS  # for waits that end earlier


class ProgressAbilitiesContract:
    """Runs that succeed each other, watches and savepoints. Part of ``ProgressTrackerContract``.

    The tests of a protocol are skipped for trackers without its methods.
    """

    @pytest.fixture
    def succeeding(self, tracker: ProgressTracker) -> SucceedingTracker:
        """Return the tracker, if one run of a task can succeed another."""
        if not isinstance(tracker, SucceedingTracker):
            pytest.skip("it is not a SucceedingTracker")
        return tracker

    @pytest.fixture
    def watchable(self, tracker: ProgressTracker) -> WatchableTracker:
        """Return the tracker, if groups can be watched."""
        if not isinstance(tracker, WatchableTracker):
            pytest.skip("it is not a WatchableTracker")
        return tracker

    @pytest.fixture
    def saving(self, tracker: ProgressTracker) -> SavingTracker:
        """Return the tracker, if its transactions have savepoints."""
        if not isinstance(tracker, SavingTracker):
            pytest.skip("it is not a SavingTracker")
        return tracker

    # Runs that succeed each other

    def test_a_succeeding_run_continues_at_the_position_of_its_predecessor(self, succeeding: SucceedingTracker) -> None:
        first = claimed(succeeding)
        moved(succeeding, first, 5)
        second = succeeding.succeed("group", first)
        assert second is not None
        assert second.epoch > first.epoch, "the previous run must be fenced by its epoch"
        assert second.stored == 5
        for to in (5, 6):
            with pytest.raises(FencedError), succeeding.unit("group", first.moved_to(5, stored=True), to):
                pytest.fail("the unit of the previous run was opened")
        assert succeeding.renewed("group", first) is None
        moved(succeeding, second, 7)
        assert [status.position for status in succeeding.statuses()] == [7]

    def test_a_run_succeeds_in_its_own_partition_only(self, succeeding: SucceedingTracker) -> None:
        first, second = succeeding.claim("group", layout(2), 0, "owner")
        other = claimed(succeeding, "other")
        succeeded = succeeding.succeed("group", first)
        assert succeeded is not None
        assert succeeded.partition == first.partition
        moved(succeeding, second, 1)
        moved(succeeding, other, 1, "other")

    def test_a_run_can_be_succeeded_only_once(self, succeeding: SucceedingTracker, another: SucceedingTracker) -> None:
        first = claimed(succeeding)
        found = succeeding.succeed("group", first), another.succeed("group", first)
        assert [one is None for one in found] == [False, True]

    def test_a_claim_comes_before_a_run_that_begins_later(self, succeeding: SucceedingTracker) -> None:
        first, heir = claimed(succeeding), claimed(succeeding)
        assert succeeding.succeed("group", first) is None
        assert succeeding.renewed("group", heir) is not None

    def test_a_run_of_another_owner_cannot_be_succeeded(self, succeeding: SucceedingTracker) -> None:
        first = claimed(succeeding)
        assert succeeding.succeed("group", first, "another") is None
        assert succeeding.renewed("group", first) is not None
        assert succeeding.succeed("group", first, "owner") is not None

    def test_a_run_that_begins_during_a_unit_of_its_predecessor_comes_before_or_after_it(
        self, succeeding: SucceedingTracker, another: SucceedingTracker
    ) -> None:
        _, seconds = timed(claimed, another)
        first = claimed(succeeding)
        finished = False
        with suppress(FencedError):
            with succeeding.unit("group", first, 5):
                beginning = meanwhile(seconds, another.succeed, "group", first)
            finished = True
        second = returned(beginning, SECONDS, "succeed() still waits although the unit has ended")
        assert second is not None
        assert second.stored == (5 if finished else 0)
        moved(another, second, 9)
        assert [status.position for status in succeeding.statuses()] == [9]

    # Watches

    def test_a_group_has_reached_the_position_of_its_slowest_partition(
        self, watchable: WatchableTracker, another: WatchableTracker
    ) -> None:
        assert watchable.reached("group") == 0
        first, second = watchable.claim("group", layout(2), 0, "owner")
        moved(watchable, claimed(watchable, "other", 9), 9, "other")
        assert watchable.reached("group") == 1, "positions are counted from 0"
        first = moved(watchable, first, 8)
        assert another.reached("group") == 1
        moved(watchable, second, 5)
        assert another.reached("group") == 6
        moved(watchable, first, 9)
        assert another.reached("group") == 6
        assert [another.reached(group) for group in ("other", "unknown")] == [10, 0]

    def test_a_watch_sees_the_progress_of_its_group(
        self, watchable: WatchableTracker, another: WatchableTracker
    ) -> None:
        first, second = watchable.claim("group", layout(2), 0, "owner")
        with another.watched("group") as watch:
            assert returned(begun(watch.wait, 0, ENDLESS), SECONDS, "a wait does not end at once") == 1
            assert returned(begun(watch.wait, 1, 0.0), SECONDS, "a wait does not end after its time") == 1
            waiting = begun(watch.wait, 1, ENDLESS)
            moved(watchable, first, 4)
            moved(watchable, second, 3)
            assert returned(waiting, SECONDS, "a watch does not see that the progress has moved") == 4

    def test_a_watch_can_be_woken(self, watchable: WatchableTracker) -> None:
        claimed(watchable)
        with watchable.watched("group") as watch:
            waiting = begun(watch.wait, 9, ENDLESS)
            watch.wake()
            assert returned(waiting, SECONDS, "wake() does not end a wait") == 1

    # Savepoints

    def test_the_last_part_of_a_unit_can_be_undone_alone(self, saving: SavingTracker, read_model: ReadModel) -> None:
        with saving.unit_in_parts("group", claimed(saving), 5) as unit:
            read_model.write(unit, "kept")
            undo = unit.saved()
            if undo is None:
                pytest.skip("the database has no savepoints")
            read_model.write(unit, "undone")
            assert undo()
            read_model.write(unit, "later")
        assert read_model.values() == ["kept", "later"]
        assert [status.position for status in saving.statuses()] == [5]

    def test_a_unit_in_parts_ends_where_it_was_concluded(self, saving: SavingTracker, another: SavingTracker) -> None:
        cursor = claimed(saving)
        with saving.unit_in_parts("group", cursor, 5, fingerprint="at 5") as unit:
            unit.conclude(3, "at 3", brought_in(entry(3)))
        found = another.renewed("group", cursor)
        assert found is not None
        assert (found.stored, found.fingerprint) == (3, "at 3")
        assert [one.position for one in another.entries("group")] == [3]

    def test_a_unit_in_parts_that_fails_changes_nothing(self, saving: SavingTracker, read_model: ReadModel) -> None:
        cursor = claimed(saving)
        with pytest.raises(KeyError), saving.unit_in_parts("group", cursor, 5) as unit:  # noqa: PT012 it fails at its end
            read_model.write(unit, "lost")
            unit.conclude(3, "at 3", brought_in(entry(3)))
            raise KeyError
        assert read_model.values() == []
        assert saving.entries("group") == []
        assert [status.position for status in saving.statuses()] == [0]

    def test_a_zombie_opens_no_unit_in_parts(self, saving: SavingTracker, another: SavingTracker) -> None:
        zombie = claimed(saving)
        claimed(another)
        with pytest.raises(FencedError), saving.unit_in_parts("group", zombie, 5):
            pytest.fail("the unit of a lost claim was opened")
