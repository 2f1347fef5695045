"""The contract of progress trackers."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from threading import Event

import pytest

from opencqrs_py.errors import EventStoreError, FencedError
from opencqrs_py.model import Cursor, Partition, PartitionStatus, ProcessorState, layout
from opencqrs_py.processing.ports import ProgressTracker, UnitOfWork
from opencqrs_py.testing.contracts.calls import begun, returned
from opencqrs_py.testing.contracts.progress_abilities import ProgressAbilitiesContract
from opencqrs_py.testing.contracts.progress_records import (
    ONE,
    SECONDS,
    CrashError,
    ProgressRecordsContract,
    ReadModel,
    claimed,
    moved,
    timed,
)

TWO = layout(2)


def positions(tracker: ProgressTracker) -> dict[str, list[int]]:
    """Return the stored positions by group."""
    found: dict[str, list[int]] = {}
    for status in tracker.statuses():
        found.setdefault(status.group, []).append(status.position)
    return found


class ProgressTrackerContract(ProgressRecordsContract, ProgressAbilitiesContract):
    """What processors rely on.

    Give ``tracker``, without any progress; ``another``, which sees the same progress as a second process would, if
    there can be one; and ``read_model``, if what handlers write shares the transaction with the progress.
    """

    @pytest.fixture
    def tracker(self) -> ProgressTracker:
        """Return a tracker without progress."""
        raise NotImplementedError

    @pytest.fixture
    def another(self, tracker: ProgressTracker) -> ProgressTracker:
        """Return another tracker of the same progress."""
        return tracker

    @pytest.fixture
    def read_model(self) -> ReadModel:
        """Return a view of what was written in the units of ``tracker``."""
        pytest.skip("nothing that handlers write shares the transaction with this progress")

    # Claims

    def test_a_new_group_starts_at_the_given_position(self, tracker: ProgressTracker) -> None:
        cursors = tracker.claim("group", TWO, 17, "owner")
        assert [cursor.partition for cursor in cursors] == list(TWO)
        for cursor in cursors:
            assert (cursor.stored, cursor.position) == (17, 17)
            assert (cursor.attempt, cursor.failing, cursor.skip) == (1, None, False)
            assert cursor.epoch >= 1
        assert positions(tracker) == {"group": [17, 17]}

    def test_a_known_group_continues_at_its_position(self, tracker: ProgressTracker, another: ProgressTracker) -> None:
        moved(tracker, claimed(tracker), 5)
        cursor = claimed(another, initial=99)
        assert (cursor.stored, cursor.position) == (5, 5)

    def test_partitions_of_a_group_can_be_claimed_one_by_one(
        self, tracker: ProgressTracker, another: ProgressTracker
    ) -> None:
        first, second = TWO
        (mine,) = tracker.claim("group", [first], 3, "owner", layout=TWO)
        (other,) = another.claim("group", [second], 9, "another", layout=TWO)
        assert (mine.partition, mine.stored, other.partition, other.stored) == (first, 3, second, 3)
        moved(tracker, mine, 4)
        moved(another, other, 5)
        assert positions(tracker) == {"group": [4, 5]}

    def test_claiming_one_partition_does_not_affect_claims_on_others(self, tracker: ProgressTracker) -> None:
        first, second = tracker.claim("group", TWO, 0, "owner")
        tracker.claim("group", [second.partition], 0, "another", layout=TWO)
        moved(tracker, first, 1)
        with pytest.raises(FencedError), tracker.unit("group", second, 1):
            pytest.fail("the unit of a lost claim was opened")

    @pytest.mark.parametrize("whole", [layout(3), layout(4), layout(1)], ids=len)
    def test_another_layout_is_refused_even_for_one_partition(
        self, tracker: ProgressTracker, whole: tuple[Partition, ...]
    ) -> None:
        tracker.claim("group", TWO[:1], 0, "owner", layout=TWO)
        with pytest.raises(EventStoreError, match="OCQ-310"):
            tracker.claim("group", whole[:1], 0, "owner", layout=whole)

    def test_cursors_are_returned_in_the_requested_order(self, tracker: ProgressTracker) -> None:
        for asked in (TWO, TWO[::-1]):
            assert [cursor.partition for cursor in tracker.claim("group", asked, 0, "owner")] == list(asked)

    def test_each_claim_increases_the_epoch(self, tracker: ProgressTracker, another: ProgressTracker) -> None:
        epochs = [claimed(which).epoch for which in (tracker, another, another, tracker)]
        assert epochs == sorted(set(epochs))

    @pytest.mark.parametrize(
        "wrong",
        [
            layout(1),
            layout(3),
            layout(2)[:1],
            (*layout(2), Partition(3, 0)),
            (Partition(2, 0), *Partition(2, 1).split()),
        ],
        ids=lambda partitions: " ".join(map(str, partitions)),
    )
    def test_another_layout_of_partitions_is_refused(
        self, tracker: ProgressTracker, wrong: tuple[Partition, ...]
    ) -> None:
        first, second = tracker.claim("group", TWO, 0, "owner")
        with pytest.raises(EventStoreError) as caught:
            tracker.claim("group", wrong, 0, "owner")
        assert caught.value.code == "OCQ-310"
        assert "'group' has progress for 2 partition" in caught.value.what
        assert caught.value.fix
        assert positions(tracker) == {"group": [0, 0]}
        for cursor in (first, second):
            moved(tracker, cursor, 1)  # the refused claim has fenced no owner

    def test_group_names_are_compared_character_by_character(self, tracker: ProgressTracker) -> None:
        names = ["books", "Books", "bücher", "o'brien", "a%", "a_", "", "書籍 😀", 'say "so"', "x" * 100]
        for position, name in enumerate(names):
            moved(tracker, claimed(tracker, name), position, name)
        assert positions(tracker) == {name: [position] for position, name in enumerate(names)}

    # Units of work

    def test_progress_moves_when_the_block_succeeds(self, tracker: ProgressTracker, another: ProgressTracker) -> None:
        cursor = claimed(tracker)
        for to in (1, 2, 1_000, 2**53 + 1, 2**62):
            cursor = moved(tracker, cursor, to)
            assert positions(another) == {"group": [to]}

    def test_progress_can_stay_but_must_not_go_back(self, tracker: ProgressTracker) -> None:
        cursor = moved(tracker, moved(tracker, claimed(tracker), 5), 5)
        with pytest.raises(ValueError, match="must not go back from 5 to 4"), tracker.unit("group", cursor, 4):
            pytest.fail("the unit was opened")
        assert positions(tracker) == {"group": [5]}

    def test_partitions_and_groups_advance_independently(self, tracker: ProgressTracker) -> None:
        first, second = tracker.claim("one", TWO, 0, "owner")
        (other,) = tracker.claim("two", ONE, 0, "owner")
        moved(tracker, second, 7, "one")
        assert positions(tracker) == {"one": [0, 7], "two": [0]}
        moved(tracker, first, 3, "one")
        moved(tracker, other, 9, "two")
        assert positions(tracker) == {"one": [3, 7], "two": [9]}

    @pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), SystemExit(3), CrashError()])
    def test_an_error_passes_through_unchanged_and_progress_stays(
        self, tracker: ProgressTracker, error: BaseException
    ) -> None:
        cursor = claimed(tracker)
        with pytest.raises(type(error)) as caught, tracker.unit("group", cursor, 5):
            raise error
        assert caught.value is error
        assert positions(tracker) == {"group": [0]}
        moved(tracker, cursor, 5)

    def test_writes_of_handlers_are_committed_with_the_progress(
        self, tracker: ProgressTracker, read_model: ReadModel
    ) -> None:
        with tracker.unit("group", claimed(tracker), 2) as unit:
            read_model.write(unit, "one")
            read_model.write(unit, "two")
        assert read_model.values() == ["one", "two"]
        assert positions(tracker) == {"group": [2]}

    @pytest.mark.parametrize("error", [ValueError, CrashError])
    def test_a_crash_between_handler_and_progress_leaves_neither(
        self, tracker: ProgressTracker, read_model: ReadModel, error: type[BaseException]
    ) -> None:
        def crash(unit: UnitOfWork) -> None:
            read_model.write(unit, "lost")
            raise error

        with pytest.raises(error), tracker.unit("group", claimed(tracker), 1) as unit:
            crash(unit)
        assert read_model.values() == []
        with tracker.unit("group", claimed(tracker), 1) as unit:
            read_model.write(unit, "kept")
        assert read_model.values() == ["kept"]
        assert positions(tracker) == {"group": [1]}

    @pytest.mark.parametrize("failing", ["first", "second"])
    def test_units_of_two_partitions_are_committed_and_undone_independently(
        self, tracker: ProgressTracker, read_model: ReadModel, failing: str
    ) -> None:
        (first, second), seconds = timed(tracker.claim, "group", TWO, 0, "owner")
        written, ended = Event(), Event()

        def handle_second() -> None:
            with tracker.unit("group", second, 1) as unit:
                read_model.write(unit, "second")
                written.set()
                assert ended.wait(SECONDS)
                if failing == "second":
                    raise CrashError

        with suppress(CrashError), ExitStack() as ending:
            ending.callback(ended.set)
            unit = ending.enter_context(tracker.unit("group", first, 1))
            read_model.write(unit, "first")
            other = begun(handle_second)
            written.wait(seconds)  # in a store with one writer at a time, it waits for the end of this unit
            if failing == "first":
                raise CrashError
        with suppress(CrashError):
            returned(other, SECONDS, "the unit of a partition still waits although that of the other one has ended")
        kept = "second" if failing == "first" else "first"
        assert read_model.values() == [kept], "the end of a unit has committed or undone what another one had written"
        assert positions(tracker) == {"group": [int(kept == "first"), int(kept == "second")]}

    # Competing owners of a partition

    @pytest.mark.parametrize("to", [0, 3], ids=["staying", "moving"])
    def test_of_two_writers_with_one_cursor_the_second_is_fenced(
        self, tracker: ProgressTracker, another: ProgressTracker, to: int
    ) -> None:
        cursor = claimed(tracker)
        moved(tracker, cursor, 5)
        with pytest.raises(FencedError, match="'group' partition 0/1"), another.unit("group", cursor, to):
            pytest.fail("the unit was opened")
        assert positions(tracker) == {"group": [5]}

    @pytest.mark.parametrize("to", [0, 5], ids=["staying", "moving"])
    def test_a_zombie_with_an_old_epoch_is_fenced(
        self, tracker: ProgressTracker, another: ProgressTracker, to: int
    ) -> None:
        zombie = claimed(tracker)
        heir = claimed(another)
        with pytest.raises(FencedError), tracker.unit("group", zombie, to):
            pytest.fail("the unit was opened")
        assert positions(tracker) == {"group": [0]}
        moved(another, heir, 5)

    @pytest.mark.parametrize("to", [5, 6], ids=["staying", "moving"])
    def test_a_zombie_is_fenced_even_if_it_knows_the_position(
        self, tracker: ProgressTracker, another: ProgressTracker, to: int
    ) -> None:
        zombie = claimed(tracker)
        moved(another, claimed(another), 5)
        with pytest.raises(FencedError), tracker.unit("group", zombie.moved_to(5, stored=True), to):
            pytest.fail("the unit was opened")
        assert positions(tracker) == {"group": [5]}

    def test_renewing_a_valid_claim_returns_the_stored_position(
        self, tracker: ProgressTracker, another: ProgressTracker
    ) -> None:
        cursor = claimed(tracker)
        assert tracker.renewed("group", cursor) == cursor
        moved(another, cursor, 5)
        assert tracker.renewed("group", cursor.retrying(1)) == replace(cursor, stored=5, position=5)

    def test_renewing_a_lost_or_unknown_claim_returns_none(
        self, tracker: ProgressTracker, another: ProgressTracker
    ) -> None:
        zombie = claimed(tracker)
        claimed(another)
        assert tracker.renewed("group", zombie) is None
        assert tracker.renewed("unknown", zombie) is None

    def test_a_claim_during_a_unit_comes_before_or_after_it(
        self, tracker: ProgressTracker, another: ProgressTracker
    ) -> None:
        old = claimed(tracker)
        inside = Event()
        with ThreadPoolExecutor(1) as threads:
            try:
                with tracker.unit("group", old, 5):
                    claim: Future[Cursor] = threads.submit(_claim_and_signal, another, inside)
                    assert inside.wait(SECONDS)
            except FencedError:
                finished = False
            else:
                finished = True
            heir = claim.result(SECONDS)
        assert heir.stored == (5 if finished else 0)
        assert heir.epoch > old.epoch
        moved(another, heir, 9)
        assert positions(tracker) == {"group": [9]}

    def test_of_many_concurrent_writers_one_moves_the_progress(
        self, tracker: ProgressTracker, another: ProgressTracker
    ) -> None:
        cursor = claimed(tracker)

        def outcome(which: ProgressTracker, to: int) -> int | None:
            try:
                moved(which, cursor, to)
            except FencedError:
                return None
            return to

        with ThreadPoolExecutor(6) as threads:
            futures = [threads.submit(outcome, (tracker, another)[n % 2], 10 + n) for n in range(6)]
            winners = [to for future in futures if (to := future.result(SECONDS)) is not None]
        assert len(winners) == 1
        assert positions(tracker) == {"group": winners}

    def test_concurrent_claims_are_serialised(self, tracker: ProgressTracker, another: ProgressTracker) -> None:
        def claim(which: ProgressTracker) -> Sequence[Cursor]:
            return which.claim("group", TWO, 0, "owner")

        with ThreadPoolExecutor(6) as threads:
            claims = list(threads.map(claim, (tracker, another) * 3, timeout=SECONDS))
        epochs = [cursors[0].epoch for cursors in claims]
        assert len(set(epochs)) == len(epochs)
        assert all(first.epoch == second.epoch for first, second in claims)
        newest = max(claims, key=lambda cursors: cursors[0].epoch)
        for cursors in claims:
            if cursors is newest:
                moved(another, cursors[0], 1)
            else:
                with pytest.raises(FencedError), tracker.unit("group", cursors[0], 1):
                    pytest.fail("the unit was opened")

    # Statuses

    def test_statuses_of_all_groups_are_returned_in_order(
        self, tracker: ProgressTracker, another: ProgressTracker
    ) -> None:
        assert tracker.statuses() == []
        tracker.claim("zoo", ONE, 0, "owner")
        tracker.claim("books", layout(3)[::-1], 4, "owner")
        found = [(status.group, str(status.partition), status.position) for status in another.statuses()]
        assert found == [("books", "0/3", 4), ("books", "1/3", 4), ("books", "2/3", 4), ("zoo", "0/1", 0)]
        assert {status.state for status in tracker.statuses()} == {ProcessorState.STARTING}

    def test_a_report_is_seen_by_others_and_does_not_touch_progress(
        self, tracker: ProgressTracker, another: ProgressTracker
    ) -> None:
        cursor = moved(tracker, claimed(tracker), 5)
        told = PartitionStatus(
            "group", ONE[0], 99, ProcessorState.BACKING_OFF, 3, "ValueError: größe", "2026-01-01T00:00:00+00:00"
        )
        tracker.report(told, cursor.epoch)
        (seen,) = another.statuses()
        assert replace(seen, updated_at=None) == replace(told, position=5)
        moved(tracker, cursor, 6)

    def test_a_report_of_an_old_epoch_is_ignored(self, tracker: ProgressTracker, another: ProgressTracker) -> None:
        zombie = claimed(tracker)
        heir = claimed(another)
        another.report(PartitionStatus("group", ONE[0], 0, ProcessorState.RUNNING), heir.epoch)
        tracker.report(PartitionStatus("group", ONE[0], 0, ProcessorState.STOPPED), zombie.epoch)
        assert [status.state for status in tracker.statuses()] == [ProcessorState.RUNNING]

    def test_a_report_of_an_unknown_group_is_ignored(self, tracker: ProgressTracker) -> None:
        tracker.report(PartitionStatus("unknown", ONE[0], 0, ProcessorState.RUNNING), 1)
        assert tracker.statuses() == []

    @pytest.mark.parametrize("error", ["x" * 100_000, "nul \0", "surrogate \udcff", "o'brien %s :x {y} 😀"])
    def test_any_text_of_an_error_can_be_reported(self, tracker: ProgressTracker, error: str) -> None:
        cursor = claimed(tracker)
        tracker.report(PartitionStatus("group", ONE[0], 0, ProcessorState.FAILED, 1, error), cursor.epoch)
        (seen,) = tracker.statuses()
        assert seen.state is ProcessorState.FAILED
        assert seen.error[:3] == error[:3]

    @pytest.mark.parametrize("error", [ValueError("mine"), FencedError("mine"), OSError("mine"), KeyboardInterrupt()])
    def test_other_errors_are_not_outages(self, tracker: ProgressTracker, error: BaseException) -> None:
        assert not tracker.is_outage(error)


def _claim_and_signal(tracker: ProgressTracker, said: Event) -> Cursor:
    said.set()
    return claimed(tracker)
