"""Groups that use locks of a registry in the project's container, on both engines."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
from support.engines import ENGINES
from support.observers import Watching
from support.sqlite import rows_of

from opencqrs_py import Application
from opencqrs_py.errors import AssemblyError, NotReachedError, ProjectCodeError
from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.model.progress import ProcessorState

SOURCE = """
import os
from pathlib import Path

from dependency_injector import containers, providers
from opencqrs_py import Event, event_handling, on_start
from sqlalchemy import Connection, text

HELD = {}
CALLS = Path(__file__).with_suffix(".calls")
REFUSED = set()


class OneLock:
    def __init__(self, name):
        self.name = name

    def acquire(self, timeout):
        with CALLS.open("a") as calls:
            calls.write(f"{os.getpid()}\\n")
        return self.name not in REFUSED and HELD.setdefault(self.name, self) is self

    def renew(self):
        return HELD.get(self.name) is self

    def release(self):
        if HELD.get(self.name) is self:
            del HELD[self.name]


class Registry:
    def obtain(self, name):
        return OneLock(name)


class Container(containers.DeclarativeContainer):
    locks = providers.Singleton(Registry)


@on_start("seen")
def table(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS seen (id VARCHAR(20) PRIMARY KEY)"))


@event_handling("seen", types=["*"])
def see(event: Event, connection: Connection) -> None:
    if event.id == "poison":
        raise ValueError("never")
    connection.execute(text("INSERT INTO seen VALUES (:id)"), {"id": event.id})
"""
KEYS = [f"[group=seen, partition={number}]" for number in range(4)]
GROUP = "event-handling.groups.seen"
DATABASES = ["sqlite_url", pytest.param("postgresql_url", marks=pytest.mark.postgresql)]
SECONDS = 300


@pytest.fixture
def project(make_module) -> ModuleType:
    return make_module(SOURCE)


@pytest.fixture
def make(project, tmp_path) -> Iterator[Callable[..., Application]]:
    """Makes applications of the project, each like a separate process, and stops them."""
    made: list[Application] = []

    def make(engine: str = "thread", **settings: object) -> Application:
        given = {
            "event-handling.standard.processing.engine": engine,
            "spark.master": "local[1]",
            "spark.driver-handles": "never",
            f"{GROUP}.life-cycle.partitions": 4,
            f"{GROUP}.life-cycle.lease.duration": "2s",
            f"{GROUP}.life-cycle.lease.heartbeat": "100ms",
        }
        made.append(Application({**given, **settings}, [project], tmp_path))
        return made[-1]

    yield make
    for application in made:
        application.stop()


def add_events(application: Application, *ids: object) -> None:
    lines = (f'{{"id": "{n}", "source": "s", "type": "t", "subject": "/x/{n}", "data": {{}}}}' for n in ids)
    application.event_store.append(map(parse_event, lines))


def of(application: Application):
    return application.status()[0].partitions


def owned(application: Application) -> list[int]:
    """Return the partitions that an application has, as its status shows them."""
    return [each.partition.residue for each in of(application) if each.owner]


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until


@pytest.mark.release(database="postgresql_url")  # the locks are not in SQL
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("database", DATABASES)
def test_events_are_handled_under_locks_held_only_by_the_driver(request, make, project, engine, database):
    url = request.getfixturevalue(database)
    application = make(engine, **{"event-store.url": url})
    add_events(application, *range(50))
    held: set[str] = set()
    observer = Watching()
    observer.on_advanced = lambda outcome: held.update(project.HELD)
    result = application.run(observer=observer, until_caught_up=True)
    assert (result.failed, sum(result.handled.values())) == (False, 50)
    assert held == {*KEYS}
    assert project.HELD == {}
    assert {*project.CALLS.read_text().split()} == {str(os.getpid())}


def test_a_failed_group_started_by_name_is_unhealthy_in_every_process(make):
    life_cycle, standard = f"{GROUP}.life-cycle", "event-handling.standard"
    settings = {
        f"{life_cycle}.auto-start": False,
        f"{life_cycle}.partitions": 1,
        f"{standard}.retry.policy": "none",
        f"{standard}.retry.on-exhausted": "stop",
    }
    first, second = make(**settings), make(**settings)
    add_events(first, "poison")
    first.start(["seen"])
    wait_until(lambda: any(each.state is ProcessorState.FAILED for each in of(second)))
    assert [each.health().groups[0].state for each in (first, second)] == ["failed", "failed"]
    assert not second.health().healthy
    for each in (first, second):
        with pytest.raises(NotReachedError, match="it has failed at event poison"):
            each.await_position("seen")


@pytest.mark.release(engine="spark")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_second_process_stands_by_and_takes_over(make, engine):
    first, second = make(engine), make()
    add_events(first, *range(10))
    first.start()
    second.start()
    assert (owned(first), owned(second)) == ([0, 1, 2, 3], [])
    wait_until(lambda: {each.position for each in of(second)} == {10})
    first.stop()
    wait_until(lambda: owned(second) == [0, 1, 2, 3])
    add_events(second, *range(10, 20))
    wait_until(lambda: {each.position for each in of(second)} == {20})


def test_the_status_names_owners_only_of_locks_held_by_this_process(make):
    first, second = make(**{"node.name": "here"}), make()
    first.start()
    second.start()
    shown = of(first)[0]
    assert (shown.owner, shown.wanted) == ("here", "started")
    assert shown.owned_since is not None
    assert shown.lease_until is not None
    assert {each.owner for each in of(second)} == {""}


@pytest.mark.release  # as the unit tests of shares
def test_processes_share_partitions_up_to_the_limit_of_each(make):
    most = {f"{GROUP}.life-cycle.max-partitions-per-node": 2}
    first, second, third = make(**most), make(**most), make(**most)
    for application in (first, second, third):
        application.start()
    assert (owned(first), owned(second), owned(third)) == ([0, 1], [2, 3], [])


def test_a_run_until_caught_up_waits_for_partitions_of_another_process(make, project):
    other, one = make(), make()
    add_events(other, *range(30))
    other.start()
    assert not one.run(until_caught_up=True).failed
    assert {each.position for each in of(one)} == {30}
    assert len(project.HELD) == 4


def test_a_partition_whose_lock_is_lost_is_released_until_the_lock_is_free(make, project):
    application = make()
    application.start()
    project.HELD[KEYS[2]] = "another"
    wait_until(lambda: owned(application) == [0, 1, 3])
    del project.HELD[KEYS[2]]
    wait_until(lambda: owned(application) == [0, 1, 2, 3])


def test_a_failed_partition_keeps_its_lock(make, project):
    application = make(**{f"{GROUP}.retry.policy": "none", f"{GROUP}.retry.on-exhausted": "stop"})
    add_events(application, "poison")
    application.start()
    wait_until(lambda: any(each.state is ProcessorState.FAILED for each in of(application)))
    assert owned(application) == [0, 1, 2, 3]
    assert len(project.HELD) == 4


def test_progress_in_memory_uses_locks_too(make, project):
    application = make(**{f"{GROUP}.progress.tracking": "in-memory"})
    add_events(application, 1)
    application.start()
    assert len(project.HELD) == 4
    wait_until(lambda: {each.position for each in of(application)} == {1})


ALONE = {f"{GROUP}.life-cycle.controller": "application_context"}


def test_a_group_limited_to_one_process_is_refused_in_a_second_which_claims_nothing(make, project):
    first, second = make(**ALONE), make(**ALONE)
    add_events(first, *range(10))
    first.start()
    with pytest.raises(AssemblyError, match="is to run in this process alone, but another process has the lock") as it:
        second.start()
    assert (it.value.code, it.value.where) == ("OCQ-534", "group seen")
    assert owned(first) == [0, 1, 2, 3]
    wait_until(lambda: {each.position for each in of(first)} == {10})
    assert not any(each.error for each in of(first))


def test_if_one_of_all_locks_is_taken_the_others_are_released(make, project):
    project.REFUSED.add(KEYS[2])
    with pytest.raises(AssemblyError, match="another process has the lock of partition 2/4"):
        make(**ALONE).start()
    assert project.HELD == {}


def test_a_registry_that_fails_is_named_when_all_locks_are_needed(make, project, monkeypatch):
    monkeypatch.setattr(project.OneLock, "acquire", lambda lock, timeout: 1 / 0)
    with pytest.raises(AssemblyError, match="its lock registry fails: ZeroDivisionError: division by zero"):
        make(**ALONE).start()


def test_a_provider_of_a_lock_registry_that_raises_ends_the_start(make, project, monkeypatch):
    def fail(registry: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(project.Registry, "__init__", fail)
    application = make()
    with pytest.raises(ProjectCodeError, match="provider 'locks' raised ConnectionError: no route"):
        application.start()
    (decision,) = [each for each in application.conditions() if each.subject == "life-cycle.controller"]
    assert (decision.choice, decision.error.code) == ("", "OCQ-217")


def test_the_conditions_name_the_registry_in_use_and_why(make):
    (decision,) = [each for each in make().conditions() if each.subject == "life-cycle.controller"]
    assert (
        str(decision) == "seen: life-cycle.controller = leader_election: exactly one lock registry is registered, locks"
    )


def test_leases_from_before_the_registry_are_not_shown(make, make_module, tmp_path):
    without = make_module(SOURCE.replace("    locks = providers.Singleton(Registry)", "    pass"))
    settings = {"event-handling.standard.processing.engine": "thread", f"{GROUP}.life-cycle.partitions": 4}
    leased = Application(settings, [without], tmp_path)
    leased.control.stop("seen", timeout=None)
    leased.run(until_caught_up=True)
    leased.stop()
    assert len(rows_of(tmp_path / "opencqrs.db-control.db", "SELECT * FROM opencqrs_leases")) >= 4
    application = make()
    add_events(application, 1)
    application.start()
    wait_until(lambda: {each.position for each in of(application)} == {1})
    assert {each.wanted for each in of(application)} == {"started"}


@pytest.mark.parametrize("call", ["start", "stop", "restart", "release"])
def test_control_commands_are_refused(make, call):
    with pytest.raises(AssemblyError, match="group 'seen' does not use leases") as caught:
        getattr(make().control, call)("seen:0/4")
    assert caught.value.code == "OCQ-535"


def test_a_lease_too_short_for_its_heartbeats_is_refused(make):
    with pytest.raises(AssemblyError, match="OCQ-537"):
        make(**{f"{GROUP}.life-cycle.lease.heartbeat": "1900ms"}).start()
