"""The overview of groups that any process can show: nodes on Spark, inboxes, leases and waiting times."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from opencqrs_py import Event
from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.adapters.processes import boot_id, this_process
from opencqrs_py.assembly.awaiting import Awaiting, Watched
from opencqrs_py.assembly.health import Standing
from opencqrs_py.assembly.overview import Overview, Snapshot, Waiting
from opencqrs_py.assembly.rows import group_rows
from opencqrs_py.assembly.status import GroupStatus, NodeLoad
from opencqrs_py.config import EffectiveGroup, LifeCycleSettings
from opencqrs_py.control.records import (
    ControlView,
    GroupPartition,
    Lease,
    Node,
    NodeRecord,
    ProcessIdentity,
    TaskLoad,
    Wanted,
)
from opencqrs_py.errors import EventStoreError, NotReachedError, OtherLogError, WaitTimedOutError
from opencqrs_py.model.checkpoint import CheckpointStatus
from opencqrs_py.model.group_record import GroupRecord
from opencqrs_py.model.inbox import InboxStatus
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import FailureRecord, PartitionStatus, ProcessorState
from opencqrs_py.model.rebuild import RebuildPhase, RebuildRecord


def record(id_: str, load: TaskLoad | None, *, alive: bool = True) -> NodeRecord:
    return NodeRecord(Node(id_, f"host:{id_}", ProcessIdentity("b", "p", 1, "1"), load=load), 5.0, alive)


LOANS = TaskLoad({"loans": 2}, 8, 2, 60)
VIEW = ControlView(
    (record("2", LOANS), record("1", TaskLoad({"audit": 1}, 4)), record("3", None), record("4", LOANS, alive=False))
)


def test_live_nodes_that_run_the_group_on_spark_are_listed():
    look = Snapshot(9, {}, view=VIEW)
    assert look.on_spark("loans") == (NodeLoad("host:2", LOANS, "2"),)
    assert look.on_spark("other") == ()


def test_the_current_load_of_this_process_replaces_its_recorded_one():
    now = TaskLoad({"loans": 3}, 8, 2, 60)
    own = NodeLoad("host:2", now, "2")
    assert Snapshot(9, {}, view=VIEW, own=own).on_spark("loans") == (own,)
    apart = NodeLoad("host:0", now)
    assert [each.load for each in Snapshot(9, {}, view=VIEW, own=apart).on_spark("loans")] == [now, LOANS]


def test_the_json_of_a_group_has_a_row_for_each_of_its_nodes_on_spark():
    (row,) = group_rows([GroupStatus("loans", 9, (), nodes_on_spark=Snapshot(9, {}, view=VIEW).on_spark("loans"))])
    assert row["spark"] == [{"node": "host:2", "tasks": 2, "slots": 8, "executors": 2, "handled_by_driver": 60}]


@pytest.mark.parametrize("phase", RebuildPhase)
def test_the_json_of_a_group_has_a_rebuild_that_is_open_or_can_be_undone(phase):
    of_group = GroupRecord("loans", rebuild=RebuildRecord("loans", phase, started_at="2026-01-07T10:14:58+00:00"))
    (row,) = group_rows([GroupStatus("loans", 9, (), record=of_group)])
    open_one = {"phase": phase.value, "began": "2026-01-07T10:14:58+00:00"}
    assert row["rebuild"] == (None if phase is RebuildPhase.ENDED else open_one)


def test_inbox_counts_come_from_the_database_only():
    key = GroupPartition("loans", Partition(1, 0))
    own = PartitionStatus(key.group, key.partition, 9, ProcessorState.RUNNING)
    known = replace(own, position=8, parked=((InboxStatus.RETRYING, 1), (InboxStatus.PENDING, 2)))
    look = Snapshot(9, {key: own}, {key: known})
    (status,) = look.statuses_of(EffectiveGroup("loans")).values()
    assert (status.position, status.parked) == (9, known.parked)
    (row,) = group_rows([GroupStatus("loans", 9, (status,))])
    assert row["partitions"][0]["parked"] == {"retrying": 1, "pending": 2}


STARTING, RUNNING, BACKING_OFF, WAITING, FAILED, STOPPED, UNOWNED = (
    ProcessorState(name) for name in ("starting", "running", "backing-off", "waiting", "failed", "stopped", "unowned")
)


@pytest.mark.parametrize(
    ("state", "node", "seen"),
    [
        (STARTING, "", STOPPED),
        (RUNNING, "", STOPPED),
        (BACKING_OFF, "", STOPPED),
        (WAITING, "", STOPPED),
        (STOPPED, "", STOPPED),
        (FAILED, "", FAILED),
        (STARTING, "2", STARTING),
        (RUNNING, "4", UNOWNED),
    ],
)
def test_a_partition_without_a_node_is_not_shown_in_its_last_running_state(state, node, seen):
    key = GroupPartition("loans", Partition(1, 0))
    known = PartitionStatus(key.group, key.partition, 8, state, next_attempt_at="2026-01-05T00:00:00Z")
    look = Snapshot(9, {}, {key: known}, view=replace(VIEW, leases=(Lease(key, node),)))
    (status,) = look.statuses_of(EffectiveGroup("loans")).values()
    assert status.state is seen
    assert (status.next_attempt_at is None) is (seen is STOPPED and state is not STOPPED)


@pytest.mark.parametrize(("wanted", "seen"), [(Wanted.STARTED, STARTING), (Wanted.STOPPED, STOPPED)])
def test_a_partition_that_a_live_node_has_just_been_assigned_is_starting_unless_a_command_stops_it(wanted, seen):
    known = PartitionStatus("loans", Partition(1, 0), 8, STOPPED)  # as its last owner has left it
    view = replace(VIEW, leases=(Lease(LOANS_0, "2"),), wanted={"loans": wanted})
    (status,) = Snapshot(9, {}, {LOANS_0: known}, view=view).statuses_of(EffectiveGroup("loans")).values()
    assert (status.state, status.owner) == (seen, "host:2")


LOANS_0 = GroupPartition("loans", Partition(1, 0))
ON_REQUEST = EffectiveGroup("loans", life_cycle=LifeCycleSettings(auto_start=False))


def standings(look: Snapshot, *, led: bool = False) -> list[Standing]:
    """Return the partitions of a group without auto-start."""
    decided = SimpleNamespace(choice="sql", provider="" if led else "locks")
    part: Any = SimpleNamespace(tracking=lambda: SimpleNamespace(choice="sql", provider=""), controller=lambda: decided)
    container: Any = None
    overview = Overview([ON_REQUEST], {"loans": part}, container)
    return overview.standings(ON_REQUEST, look, InMemoryEventStore())


class RefusingStore(InMemoryEventStore):
    """A store whose head raises an error."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def head(self) -> int:
        raise self.error

    def is_outage(self, error: BaseException) -> bool:
        return isinstance(error, ConnectionError)


HALF, OTHER_HALF = (PartitionStatus("loans", Partition(2, n), at, RUNNING) for n, at in ((0, 3), (1, 7)))


def in_two_processes(other: PartitionStatus = OTHER_HALF) -> Overview:
    """Return an overview of a group, of which another process has the second half."""
    tracker = SimpleNamespace(statuses=lambda: [HALF, other], is_outage=lambda _: False)
    unled = SimpleNamespace(choice="memory", provider="")
    part: Any = SimpleNamespace(tracker=lambda: tracker, tracking=lambda: unled, controller=lambda: unled)
    container: Any = None
    return Overview([ON_REQUEST], {"loans": part}, container)


def looked(error: Exception, *, running: bool) -> Snapshot:
    """Return what is read of the group while the event store raises an error."""
    own = {GroupPartition("loans", HALF.partition): HALF} if running else {}
    return in_two_processes().look([ON_REQUEST], RefusingStore(error), own)


FAILING_STORES = pytest.mark.parametrize(
    ("error", "line"),
    [
        pytest.param(ConnectionError("no answer"), "no answer", id="unavailable"),
        pytest.param(EventStoreError("OCQ-332", "wrong token", "here", "set it"), "[OCQ-332] wrong token", id="token"),
        pytest.param(OtherLogError("OCQ-316", "another log", "here", "restore"), "[OCQ-316] another log", id="log"),
    ],
)


@FAILING_STORES
def test_while_the_event_store_fails_or_refuses_partitions_are_known_without_the_head(error, line):
    look = looked(error, running=True)
    assert (look.head, line in look.outage, look.progress_outage) == (None, True, False)
    found = look.statuses_of(ON_REQUEST).values()
    assert [(each.position, each.error) for each in found] == [(3, ""), (7, "")], "no other log: its end is not known"
    with pytest.raises(type(error)):
        looked(error, running=False)


@FAILING_STORES
def test_no_lag_is_shown_while_the_event_store_fails_or_refuses(error, line):
    look = looked(error, running=True)
    assert line in look.outage
    not_queried: Any = object()
    (row,) = group_rows(in_two_processes().statuses([ON_REQUEST], look, not_queried))
    assert (row["head"], row["lag"]) == (None, None)
    lags = [(each["position"], each["lag"], each["lag_events"], each["lag_seconds"]) for each in row["partitions"]]
    assert lags == [(3, None, None, None), (7, None, None, None)]


def waited_for(error: Exception, other: PartitionStatus) -> None:
    """Wait until the group has stored position 10, while the event store raises an error."""
    running = {GroupPartition("loans", HALF.partition): HALF}
    watched = Watched(lambda _: None)
    awaiting = Awaiting(in_two_processes(other), RefusingStore(error), watched, lambda: running, lambda: None)
    awaiting.wait([ON_REQUEST], 10, 0)


@FAILING_STORES
def test_a_wait_reports_that_the_event_store_fails_or_refuses_and_no_partition_as_failed_that_has_not(error, line):
    with pytest.raises(WaitTimedOutError, match=f"has not stored position 10 after 0 s: .*{re.escape(line)}"):
        waited_for(error, OTHER_HALF)
    failed = replace(OTHER_HALF, state=ProcessorState.FAILED, error="ValueError: no")
    with pytest.raises(NotReachedError, match="partition 1/2: it has failed: ValueError: no"):
        waited_for(error, failed)


def test_an_outage_of_progress_is_not_one_of_the_event_store() -> None:
    def lost() -> list[PartitionStatus]:
        raise ConnectionError("no answer")

    overview: Any = in_two_processes()
    tracker = overview.parts["loans"].tracker()
    tracker.statuses, tracker.is_outage = lost, lambda _: True
    look = overview.look([ON_REQUEST], InMemoryEventStore(), {GroupPartition("loans", HALF.partition): HALF})
    assert (look.head, look.outage, look.progress_outage) == (0, "ConnectionError: no answer", True)


def test_a_defect_of_the_event_store_is_raised_although_partitions_run():
    with pytest.raises(ZeroDivisionError):
        looked(ZeroDivisionError(), running=True)


def is_wanted(look: Snapshot, *, led: bool = False) -> bool:
    """Return whether the only partition of that group is wanted."""
    (standing,) = standings(look, led=led)
    return standing.wanted


@pytest.mark.parametrize("state", [STARTING, RUNNING, BACKING_OFF, WAITING, FAILED])
def test_a_partition_run_by_this_process_is_wanted_even_without_auto_start(state):
    own = {LOANS_0: PartitionStatus("loans", LOANS_0.partition, 3, state)}
    assert is_wanted(Snapshot(9, own))
    assert is_wanted(Snapshot(9, own), led=True)
    stopped = ControlView(wanted={"loans": Wanted.STOPPED})
    assert not is_wanted(Snapshot(9, own, view=stopped), led=True)


@pytest.mark.parametrize(
    ("state", "without_leases"),
    [(STARTING, True), (RUNNING, True), (BACKING_OFF, True), (WAITING, True), (FAILED, True), (STOPPED, False)],
)
def test_without_leases_a_partition_that_another_process_runs_or_failed_in_is_wanted(state, without_leases):
    look = Snapshot(9, {}, {LOANS_0: PartitionStatus("loans", LOANS_0.partition, 3, state)})
    assert is_wanted(look) is without_leases
    assert not is_wanted(look, led=True)  # the control tables tell which node runs it


def test_a_group_without_auto_start_is_not_wanted_before_its_first_start():
    assert not is_wanted(Snapshot(9, {}))


HALVES = [GroupPartition("loans", Partition(2, residue)) for residue in (0, 1)]


@pytest.mark.parametrize(
    ("known", "leases", "seen"),
    [
        ([], [], [LOANS_0]),  # as configured
        ([], HALVES, HALVES),
        (HALVES[:1], HALVES, HALVES),
        (HALVES, [LOANS_0], HALVES),  # of an earlier layout
        ([LOANS_0], HALVES, [LOANS_0]),
    ],
)
def test_a_partition_with_a_lease_but_no_progress_is_listed(known, leases, seen):
    now = datetime(2026, 1, 7, 10, tzinfo=UTC)
    since = (now - timedelta(seconds=90)).isoformat()
    view = replace(VIEW, leases=tuple(Lease(key, "2", since=since) for key in leases))
    statuses = {key: PartitionStatus(key.group, key.partition, 9, RUNNING) for key in known}
    found = standings(Snapshot(9, {}, statuses, view=view, now=now), led=True)
    assert [GroupPartition(each.group, each.partition) for each in found] == seen
    begun = {key: (bool(key in known), "host:2" if key in leases else "") for key in seen}
    assert [(each.status is not None, each.owner) for each in found] == list(begun.values())
    missing = [each for each in found if each.status is None and each.owner]
    assert [(each.lag, each.waited()) for each in missing] == [(9, 90)] * len(missing)
    assert {each.partition for each in standings(Snapshot(9, {}, statuses, view=view), led=False)} == {
        key.partition for key in known or [LOANS_0]
    }


@pytest.mark.parametrize(
    ("age_of_event", "idle", "waited"),
    [
        (7_000, 3_600, 3_600),  # without any progress since then
        (90, 3_600, 90),  # idle before
        (1, 3_600, 1),
        (-1, 3_600, 0),  # the sender's clock is ahead
        (-60, 3_600, 3_600),  # its time cannot be the time of arrival
        (-86_400, 3_600, 3_600),
        (-86_400, 59, 59),
        (None, 3_600, 3_600),
    ],
)
def test_the_waiting_time_counts_from_the_last_progress_or_the_arrival_of_the_event(age_of_event, idle, waited):
    now = datetime(2026, 1, 7, 10, tzinfo=UTC)
    times = [] if age_of_event is None else [(now - timedelta(seconds=age_of_event)).isoformat()]
    source = InMemoryEventStore([Event(1, "1", "s", "/x", "t", each, None, None, None) for each in times])
    since = (now - timedelta(seconds=idle)).isoformat()
    status = PartitionStatus("loans", Partition(1, 0), 0, ProcessorState.RUNNING, updated_at=since)
    assert Waiting(status, EffectiveGroup("loans"), source, now, 60.0)() == waited


def test_an_event_time_without_an_offset_is_read_as_utc():
    now = datetime(2026, 1, 7, 10, tzinfo=UTC)
    time = (now - timedelta(seconds=90)).replace(tzinfo=None).isoformat(" ")
    source = InMemoryEventStore([Event(1, "1", "s", "/x", "t", time, None, None, None)])
    since = (now - timedelta(seconds=3_600)).isoformat()
    status = PartitionStatus("loans", Partition(1, 0), 0, ProcessorState.RUNNING, updated_at=since)
    assert Waiting(status, EffectiveGroup("loans"), source, now, 60.0)() == 90


@pytest.mark.parametrize(
    ("handled", "state", "waited"),
    [
        (2, ProcessorState.RUNNING, 0),  # nothing is left to handle
        (1, ProcessorState.RUNNING, 90),
        (0, ProcessorState.RUNNING, 3_600),
        (2, ProcessorState.WAITING, 3_600),
    ],
)
def test_events_that_wait_for_a_checkpoint_do_not_count_as_unhandled(handled, state, waited):
    now = datetime(2026, 1, 7, 10, tzinfo=UTC)
    times = [(now - timedelta(seconds=age)).isoformat() for age in (7_000, 90)]
    source = InMemoryEventStore([Event(0, str(n), "s", "/x", "t", at, None, None, None) for n, at in enumerate(times)])
    since = (now - timedelta(seconds=3_600)).isoformat()
    checkpoint = CheckpointStatus("deferred", handled, handled)
    status = PartitionStatus("archive", Partition(1, 0), 0, state, updated_at=since, checkpoint=checkpoint)
    assert Waiting(status, EffectiveGroup("archive"), source, now, 60.0)() == waited


@pytest.mark.parametrize(
    ("error", "event_id", "message"),
    [("", "e8", "ValueError: no"), ("[OCQ-601] full - event e7", None, "[OCQ-601] full - event e7")],
)
def test_the_last_error_names_the_failed_event_only_if_it_is_its_own(error, event_id, message):
    failure = FailureRecord(8, "e8", "lent", 3, 2, "first", "ValueError: no", "2026-01-05T09:00:00+00:00")
    status = PartitionStatus("loans", Partition(1, 0), 6, ProcessorState.FAILED, error=error, failure=failure)
    (row,) = group_rows([GroupStatus("loans", 9, (status,))])
    shown = row["partitions"][0]
    assert (shown["last_error"]["event_id"], shown["last_error"]["message"]) == (event_id, message)
    assert shown["failure"]["event_id"] == "e8"


def test_an_age_is_never_negative_even_if_a_clock_is_ahead():
    ahead = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    status = PartitionStatus("loans", Partition(1, 0), 3, ProcessorState.RUNNING, updated_at=ahead)
    (row,) = group_rows([GroupStatus("loans", 3, (status,))])
    assert row["partitions"][0]["progress_age_seconds"] == 0.0


@pytest.mark.parametrize(
    ("seconds_left", "alive", "boot", "lapsed"),
    [
        (5.0, True, "b", None),
        (5.0, False, "b", None),
        (0.0, False, "b", 0.0),
        (-7.5, False, "b", 7.5),
        (-7.5, False, boot_id(), None),
    ],
    ids=["held", "ended early", "just ended", "ended by time", "its process has provably ended"],
)
def test_a_lease_lapses_unless_its_process_has_provably_ended(seconds_left, alive, boot, lapsed):
    process = replace(this_process(), boot=boot, started="0")
    ended = NodeRecord(Node("n", "host:n", process), seconds_left, alive)
    look = Snapshot(9, {}, view=ControlView((ended,), (Lease(LOANS_0, "n"),)))
    assert standings(look, led=True)[0].lapsed == lapsed
    assert look.lapsed(Lease(LOANS_0)) is None
