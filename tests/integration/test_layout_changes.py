"""Partitions that change under a running application, by commands that end in the middle, or are refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from opencqrs_py import Application
from opencqrs_py.adapters.sql import Database
from opencqrs_py.adapters.sql.tables import TableMissingError
from opencqrs_py.assembly.resets import ResetTarget
from opencqrs_py.control.layouts import Log, carried_over
from opencqrs_py.control.records import GroupPartition, Wanted
from opencqrs_py.errors import AssemblyError, EventStoreError, LayoutError, WaitTimedOutError
from opencqrs_py.model import layout
from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.model.partition import Partition

HANDLERS = """
from opencqrs_py import Event, ProcessingContext, event_handling, on_start
from sqlalchemy import Connection, text

@on_start("loans")
def tables(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS lent (position INTEGER)"))

@event_handling("loans", types=["*"])
def lend(event: Event, context: ProcessingContext, connection: Connection) -> None:
    connection.execute(text("INSERT INTO lent VALUES (:position)"), {"position": context.position})
"""
WHOLE = Partition(1, 0)
PATIENCE = 60.0
LOOKS = 100_000  # more than any machine needs
QUICK = {"lease.duration": "3s", "lease.heartbeat": "250ms"}
COMPARED_IN_PYTHON = pytest.mark.release(world="postgresql")
"""Rules whose statements other default tests send to servers."""


class World:
    """A project in one process whose read model can be read."""

    def __init__(self, url: str, module: Any, folder: Path) -> None:
        self.url, self.module, self.folder = url, module, folder
        self.database = Database(url)
        self.made: list[Application] = []
        self.events = 0

    def application(self, **settings: object) -> Application:
        standard = "event-handling.standard"
        given = {"event-store.url": f"sqlite:///{self.folder}/events.db", "database.url": self.url}
        given |= {f"{standard}.processing.engine": "thread", f"{standard}.life-cycle.partitions": 2}
        given |= {f"{standard}.life-cycle.{name}": value for name, value in QUICK.items()}
        made = Application({**given, **settings}, [self.module], self.folder)
        self.made.append(made)
        return made

    def append(self, application: Application, count: int = 30) -> None:
        numbers = range(self.events, self.events + count)
        lines = (
            f'{{"id": "{n}", "source": "s", "type": "t", "subject": "/x/{n % 13}", "data": {{}}}}' for n in numbers
        )
        application.event_store.append(map(parse_event, lines))
        self.events += count

    def handled(self) -> Counter[int]:
        """Return how often each position was handled; nothing until a start has made the table."""
        try:
            return Counter(position for (position,) in self.database.fetch("SELECT position FROM lent"))
        except TableMissingError:
            return Counter()

    def is_done(self) -> bool:
        return sum(self.handled().values()) >= self.events

    def close(self) -> None:
        for made in self.made:
            made.stop()
        self.database.close()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def world(request: pytest.FixtureRequest, make_module: Callable[[str], Any], tmp_path: Path) -> Iterator[World]:
    url = f"sqlite:///{tmp_path}/read.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("fresh_url")("postgresql")
    world = World(url, make_module(HANDLERS), tmp_path)
    yield world
    world.close()


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(LOOKS):
        if condition():
            return
    pytest.fail("it was never so")


def leases(application: Application) -> list[str]:
    return [str(lease.key.partition) for lease in application.control.view().leases]


@COMPARED_IN_PYTHON
def test_nodes_follow_a_change_whose_command_ended_before_changing_the_leases(world: World) -> None:
    application = world.application()
    world.append(application)
    application.start()
    wait_until(world.is_done)
    group = application._group_containers["loans"]
    processing = group.processing()
    log = Log(processing.hashes_at, processing.positions_of)
    group.tracker().repartition("loans", layout(3), lambda known: carried_over(known, layout(3), log))
    world.append(application)
    wait_until(world.is_done)
    assert world.handled() == Counter(range(1, world.events + 1))
    assert leases(application) == ["0/3", "1/3", "2/3"]


@COMPARED_IN_PYTHON
def test_partitions_left_stopped_by_a_killed_command_continue_when_it_is_repeated(world: World) -> None:
    application = world.application()
    world.append(application)
    application.start()
    wait_until(world.is_done)
    application.control.stop("loans:1/2")  # it was killed then
    result = application.layouts.repartition("loans", 4)
    assert [str(one) for one in result.positions] == ["0/4", "1/4", "2/4", "3/4"]
    application.control.start("loans")
    world.append(application)
    wait_until(world.is_done)
    assert world.handled() == Counter(range(1, world.events + 1))


@COMPARED_IN_PYTHON
def test_lost_leases_are_recreated_for_the_current_partitions(world: World) -> None:
    application = world.application()
    world.append(application)
    application.run(until_caught_up=True)
    application.layouts.split("loans:0/2")
    store = application.container.control_store()
    store.lay_out("loans", layout(2))
    world.append(application)
    application.run(until_caught_up=True)
    assert world.handled() == Counter(range(1, world.events + 1))
    assert leases(application) == ["1/2", "0/4", "2/4"]


@COMPARED_IN_PYTHON
def test_a_change_for_which_nodes_release_nothing_changes_nothing_and_nodes_continue(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    application = world.application()
    world.append(application)
    application.start()
    wait_until(world.is_done)
    with monkeypatch.context() as patch:
        patch.setattr(application._life.processors.coordinator, "reconcile", lambda: None)
        with pytest.raises(WaitTimedOutError, match="still waiting for loans 0/2, loans 1/2 to be released"):
            application.layouts.repartition("loans", 3, timeout=0.0)
    world.append(application)
    wait_until(world.is_done)
    assert {str(status.partition) for (group,) in [application.status()] for status in group.partitions} == {
        "0/2",
        "1/2",
    }


@COMPARED_IN_PYTHON
def test_a_layout_set_by_a_command_survives_the_first_run_of_this_version(world: World) -> None:
    application = world.application()
    world.append(application)
    application.run(until_caught_up=True)
    with world.database.writing() as connection:
        connection.exec_driver_sql("DELETE FROM opencqrs_groups")  # as an earlier version of this package leaves it
    application.layouts.split("loans:0/2")
    application.run(until_caught_up=True)
    assert {str(status.partition) for (group,) in [application.status()] for status in group.partitions} == {
        "1/2",
        "0/4",
        "2/4",
    }


@pytest.mark.release(way="a command")
@COMPARED_IN_PYTHON
@pytest.mark.parametrize("way", ["a command", "the setting"])
def test_partitions_with_lost_progress_are_not_merged_until_the_group_is_reset(world: World, way: str) -> None:
    application = world.application()
    world.append(application)
    application.run(until_caught_up=True)
    with world.database.writing() as connection:
        connection.exec_driver_sql("DELETE FROM opencqrs_progress WHERE residue = 1")
    setting = {"event-handling.standard.life-cycle.partitions": 1}
    changed = application if way == "a command" else world.application(**setting)
    with pytest.raises(LayoutError, match=r"OCQ-615.*of group 'loans' only the progress of partition 0/2 is left"):
        changed.layouts.repartition("loans", 1) if way == "a command" else changed.run(until_caught_up=True)
    application.resets.reset("loans", ResetTarget(to="head"))
    world.append(application)
    world.application(**setting).run(until_caught_up=True)
    assert world.handled() == Counter(range(1, world.events + 1))


@COMPARED_IN_PYTHON
def test_a_group_paused_by_a_command_is_not_caught_up(world: World) -> None:
    with world.application() as application:
        world.append(application)
        application.start()
        wait_until(world.is_done)
        processors = application._life.processors
        assert processors is not None
        with application.control.paused("loans", PATIENCE):
            world.append(application)
            assert all(processors.going_on(until_caught_up=True) for _ in range(10))
        wait_until(lambda: not processors.going_on(until_caught_up=True))
    assert world.handled() == Counter(range(1, world.events + 1))


@pytest.mark.release(name="loans:0/2")
@COMPARED_IN_PYTHON
@pytest.mark.parametrize("name", ["loans", "loans:0/2"])
def test_a_group_is_not_caught_up_while_it_restarts(world: World, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with world.application() as application, world.application() as other:
        world.append(application)
        application.start()
        wait_until(world.is_done)
        processors = application._life.processors
        assert processors is not None
        going_on: list[bool] = []
        wanted: set[Wanted] = set()

        def append_and_read(_control: object, keys: Collection[GroupPartition]) -> None:
            view = other.control.view()
            wanted.update(view.wanted_of(key) for key in keys)
            world.append(other)
            going_on.extend(processors.going_on(until_caught_up=True) for _ in range(10))

        monkeypatch.setattr(type(other.control), "_forget_crashes", append_and_read)
        assert other.control.restart(name)
        assert wanted == {Wanted.PAUSED}, "health reports it, should the command be killed now"
        assert all(going_on)
        wait_until(lambda: not processors.going_on(until_caught_up=True))
    assert world.handled() == Counter(range(1, world.events + 1))


@pytest.mark.release(world="postgresql")  # compared in Python
def test_a_number_set_by_a_command_and_then_configured_counts_as_the_setting(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def run(partitions: int) -> int:
        with world.application(**{"event-handling.standard.life-cycle.partitions": partitions}) as application:
            world.append(application, 5)
            assert not application.run(until_caught_up=True).failed
            return len(application.status()[0].partitions)

    assert run(2) == 2
    with world.application() as application:
        application.layouts.repartition("loans", 4)
    caplog.clear()
    assert run(4) == run(4) == 4
    assert "the partitions are changed" not in caplog.text
    assert run(2) == 2, "the setting has changed"
    with world.application() as application:
        application.layouts.repartition("loans", 4)
    assert run(4) == 4
    with world.application() as application:
        application.layouts.repartition("loans", 3)
    assert run(4) == 3, "a layout set by a command applies until the setting is changed"
    assert world.handled() == Counter(range(1, world.events + 1))


@COMPARED_IN_PYTHON
@pytest.mark.parametrize("way", ["a reset", "progress.on-lost"])
def test_a_group_with_lost_progress_begins_again_with_valid_partitions(world: World, way: str) -> None:
    with world.application() as application:
        world.append(application)
        application.run(until_caught_up=True)
        application.layouts.split("loans:0/2")
    with world.database.writing() as connection:
        connection.exec_driver_sql("DELETE FROM opencqrs_progress")
        connection.exec_driver_sql("DELETE FROM lent")
    on_lost = {"event-handling.standard.progress.on-lost": "initial"} if way == "progress.on-lost" else {}
    with world.application(**on_lost) as application:
        if way == "a reset":
            application.resets.reset("loans", ResetTarget(to="tail"))
        world.append(application)
        assert not application.run(until_caught_up=True).failed
        partitions = {str(status.partition) for status in application.status()[0].partitions}
    with world.application(**on_lost) as application:
        world.append(application)
        assert not application.run(until_caught_up=True).failed
    assert partitions == ({"1/2", "0/4", "2/4"} if way == "a reset" else {"0/2", "1/2"})
    assert world.handled() == Counter(range(1, world.events + 1))


ANOTHER = """
@event_handling("fines", types=["fined"])
def fine(event: Event, connection: Connection) -> None:
    pass
"""


@pytest.mark.release(began="by a command")
@pytest.mark.parametrize("began", ["by its name", "by a command"])
@pytest.mark.release(world="postgresql")  # by settings
def test_a_group_without_auto_start_does_not_start_after_a_reset_either(
    world: World, make_module: Callable[[str], Any], began: str
) -> None:
    world.module = make_module(HANDLERS + ANOTHER)
    settings = {"event-handling.groups.loans.life-cycle.auto-start": False}
    with world.application(**settings) as running, world.application(**settings) as other:
        world.append(running)
        running.start(["loans"] if began == "by its name" else None)
        if began == "by a command":
            other.control.start("loans")
        wait_until(world.is_done)
        other.resets.reset("loans", ResetTarget(to="head"))
        assert other.control.view().wanted_partitions == {}
        world.append(running)
        wait_until(world.is_done)
    with world.application(**settings) as again:
        again.start()
        view = again.control.view()
        wanted = {view.wanted_of(lease.key) for lease in view.leases if lease.key.group == "loans"}
    assert wanted == {Wanted.STOPPED if began == "by its name" else Wanted.STARTED}


@COMPARED_IN_PYTHON
def test_an_individually_started_partition_is_started_after_a_reset_too(world: World) -> None:
    with world.application() as running, world.application() as other:
        world.append(running)
        running.start()
        wait_until(world.is_done)
        other.control.stop("loans")
        other.control.start("loans:0/2")
        other.resets.reset("loans", ResetTarget(to="head"))
        first, second = (GroupPartition("loans", one) for one in layout(2))
        view = other.control.view()
        assert (view.wanted_of(first), view.wanted_of(second)) == (Wanted.STARTED, Wanted.STOPPED)


@COMPARED_IN_PYTHON
def test_a_partition_stopped_while_it_waits_to_be_split_stays_stopped(world: World) -> None:
    with world.application() as running, world.application() as other:
        world.append(running)
        running.start()
        wait_until(world.is_done)
        with other.control.let_go("loans", [Partition(2, 0)], PATIENCE):
            other.control.stop("loans:0/2")
            group = running._group_containers["loans"]
            processing, tracker = group.processing(), group.tracker()
            log, target = (
                Log(processing.hashes_at, processing.positions_of),
                [Partition(2, 1), *Partition(2, 0).split()],
            )
            tracker.repartition("loans", target, lambda known: carried_over(known, target, log))
            other.control._required().lay_out("loans", target)
        view = other.control.view()
        found = {lease.key.partition: view.wanted_of(lease.key) for lease in view.leases}
        assert found == {
            Partition(2, 1): Wanted.STARTED,
            Partition(4, 0): Wanted.STOPPED,
            Partition(4, 2): Wanted.STOPPED,
        }


@COMPARED_IN_PYTHON
def test_a_start_reports_a_group_left_paused_by_a_killed_command(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with world.application() as application:
        world.append(application)
        application.run(until_caught_up=True)
        application.control._required().want("loans", Wanted.PAUSED, [GroupPartition("loans", Partition(2, 1))])
    with world.application() as application:
        application.start()
    assert "group loans is paused until a command ends; if the command was killed: opencqrs groups start" in caplog.text


@COMPARED_IN_PYTHON
def test_a_log_restored_to_before_events_handled_ahead_is_refused_until_the_group_is_reset(
    world: World,
) -> None:
    with world.application() as application:
        world.append(application)
        application.run(until_caught_up=True)
    with world.database.writing() as connection:
        late = "UPDATE opencqrs_progress SET position = 5, log_fingerprint = NULL WHERE residue = 0"
        connection.exec_driver_sql(late)
    with world.application() as application:
        assert application.layouts.repartition("loans", 1).ahead == {WHOLE: 30}
    (world.folder / "events.db").unlink()
    with world.application() as application:
        world.append(application, 20)
        with pytest.raises(EventStoreError, match="OCQ-316") as caught:
            application.run(until_caught_up=True)
    assert "position 30 count as handled since its partitions were changed" in caught.value.what
    with world.database.writing() as connection:
        connection.exec_driver_sql("DELETE FROM lent")
    with world.application() as application:
        application.resets.reset("loans", ResetTarget(to="tail"))
        assert not application.run(until_caught_up=True).failed
    assert world.handled() == Counter(range(1, 21))


def test_processes_started_at_once_with_a_new_setting_change_the_partitions_once(world: World) -> None:
    first = world.application()
    world.append(first)
    first.run(until_caught_up=True)
    setting = {"event-handling.standard.life-cycle.partitions": 5}
    both = [world.application(**setting), world.application(**setting)]
    with ThreadPoolExecutor(2) as threads:
        for starting in [threads.submit(each.start) for each in both]:
            starting.result()
    world.append(first)
    wait_until(world.is_done)
    assert world.handled() == Counter(range(1, world.events + 1))
    assert leases(both[0]) == [f"{one}/5" for one in range(5)]


@COMPARED_IN_PYTHON
@pytest.mark.parametrize(
    ("change", "code", "what"),
    [
        (lambda layouts: layouts.split("loans"), "OCQ-535", "'loans' is not a partition"),
        (lambda layouts: layouts.split("loans:7/2"), "OCQ-535", "'loans:7/2' is not a partition"),
        (lambda layouts: layouts.repartition("lones", 2), "OCQ-509", "no handler belongs to a group 'lones'"),
        (lambda layouts: layouts.repartition("loans", 0), "OCQ-615", "0 is not a valid number of partitions"),
        (lambda layouts: layouts.repartition("loans", 3), "OCQ-615", "group 'loans' has no progress yet"),
    ],
)
def test_an_impossible_change_is_explained(world: World, change: Any, code: str, what: str) -> None:
    with pytest.raises((AssemblyError, LayoutError)) as raised:
        change(world.application().layouts)
    assert raised.value.code == code
    assert what in raised.value.what


def test_progress_in_memory_has_no_partitions_to_change(world: World) -> None:
    application = world.application(**{"event-handling.standard.progress.tracking": "in-memory"})
    with pytest.raises(
        LayoutError, match="the partitions of group 'loans' cannot be changed: its progress is in memory"
    ):
        application.layouts.repartition("loans", 3)
