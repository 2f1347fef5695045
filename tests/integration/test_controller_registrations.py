"""Groups whose partitions are started and stopped by controllers of the project, on both engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from types import ModuleType, SimpleNamespace

import pytest
from support.engines import ENGINES
from support.observers import Watching

from opencqrs_py import Application, ProcessorHandle
from opencqrs_py.assembly.registration import Registered
from opencqrs_py.config import LifeCycleSettings
from opencqrs_py.control.records import GroupPartition
from opencqrs_py.errors import AssemblyError, ProjectCodeError
from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.model.partition import layout
from opencqrs_py.model.progress import ProcessorState
from opencqrs_py.processing.recovery import Action

SOURCE = """
from dependency_injector import containers, providers
from opencqrs_py import Event, event_handling, on_start
from sqlalchemy import Connection, text

HANDLES, CONTROLLERS = {}, []
CONTENT = {"begins": True, "controls": True}


class OneController:
    def __init__(self, handle):
        self.handle = handle
        self.is_running = True
        self.calls = []

    def stop(self):
        self.calls.append(self.handle.is_running)
        self.is_running = False


def register(handle, settings):
    HANDLES[handle.partition.residue] = (handle, settings)
    if CONTENT["begins"] and settings.auto_start:
        handle.start()
    if CONTENT["controls"]:
        CONTROLLERS.append(OneController(handle))
        return CONTROLLERS[-1]


class Container(containers.DeclarativeContainer):
    mine = providers.Object(register)


@on_start("seen")
def table(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS seen (id VARCHAR(20) PRIMARY KEY)"))


@event_handling("seen", types=["*"])
def see(event: Event, connection: Connection) -> None:
    connection.execute(text("INSERT INTO seen VALUES (:id)"), {"id": event.id})
"""
GROUP = "event-handling.groups.seen"
DATABASES = ["sqlite_url", pytest.param("postgresql_url", marks=pytest.mark.postgresql)]
SECONDS = 300


@pytest.fixture
def project(make_module) -> ModuleType:
    return make_module(SOURCE)


@pytest.fixture
def make(project, tmp_path) -> Iterator[Callable[..., Application]]:
    """Makes applications of the project, and stops them."""
    made: list[Application] = []

    def make(engine: str = "thread", **settings: object) -> Application:
        given = {
            "event-handling.standard.processing.engine": engine,
            "spark.master": "local[1]",
            "spark.driver-handles": "never",
            f"{GROUP}.life-cycle.partitions": 2,
            f"{GROUP}.life-cycle.controller-registration": "mine",
        }
        made.append(Application({**given, **settings}, [project], tmp_path))
        return made[-1]

    yield make
    for application in made:
        application.stop()


def add_events(application: Application, *ids: object) -> None:
    lines = (f'{{"id": "{n}", "source": "s", "type": "t", "subject": "/x/{n}", "data": {{}}}}' for n in ids)
    application.event_store.append(map(parse_event, lines))


def positions(application: Application) -> list[int]:
    return [each.position for each in application.status()[0].partitions]


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.release(database="postgresql_url")  # what a handle does does not depend on SQL
def test_a_handle_starts_and_stops_its_partition(request, make, project, engine, database):
    application = make(engine, **{"event-store.url": request.getfixturevalue(database)})
    project.CONTENT["begins"] = False
    add_events(application, *range(20))
    application.start()
    (zero, settings), (one, _) = (project.HANDLES[number] for number in range(2))
    assert (zero.group, str(zero.partition), settings.partitions) == ("seen", "0/2", 2)
    assert (zero.is_running, one.is_running) == (False, False)
    zero.start()
    zero.start()
    assert (zero.is_running, one.is_running) == (True, False)
    wait_until(lambda: positions(application)[0] == 20)
    zero.stop()
    assert not zero.is_running
    add_events(application, *range(20, 30))
    one.start()
    wait_until(lambda: positions(application) == [20, 30])
    zero.start()
    wait_until(lambda: positions(application) == [30, 30])


def test_controllers_stop_before_the_partitions_and_handles_start_nothing_afterwards(make, project):
    application = make()
    application.start()
    assert all(handle.is_running for handle, _ in project.HANDLES.values())
    application.stop()
    assert [controller.calls for controller in project.CONTROLLERS] == [[True], [True]]
    handle, _ = project.HANDLES[0]
    assert not handle.is_running
    with pytest.raises(RuntimeError, match="the application of seen 0/2 has stopped"):
        handle.start()


def test_a_controller_that_cannot_be_stopped_does_not_prevent_a_stop(make, project, caplog):
    application = make()
    application.start()
    project.CONTROLLERS[0].calls = None
    application.stop()
    assert "controller OneController could not be stopped: AttributeError" in caplog.text
    assert project.CONTROLLERS[1].calls == [True]
    assert {each.state for each in application.status()[0].partitions} == {ProcessorState.STOPPED}


class Watch:
    """A controller that starts its partition on a separate thread, which its stop joins."""

    is_running = True

    def __init__(self, handle: ProcessorHandle) -> None:
        self._thread = Thread(target=handle.start, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._thread.join()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_stop_does_not_wait_for_the_end_of_an_outage_in_which_controllers_start(make, project, engine, monkeypatch):
    application, observer = make(engine), Watching()
    store = application.event_store

    def unavailable(*_: object) -> str:
        raise ConnectionError("no answer")

    with (
        project.Container.mine.override(lambda handle, _: Watch(handle)),
        monkeypatch.context() as outage,
        ThreadPoolExecutor() as threads,
    ):
        outage.setattr(store, "fingerprint", unavailable)
        outage.setattr(store, "is_outage", lambda error: isinstance(error, ConnectionError))
        application.start(observer=observer)
        observer.wait_for(lambda: ("noticed", Action.WAIT) in observer.told)
        stop = threads.submit(application.stop)
        try:
            stop.result(SECONDS)
        finally:
            outage.undo()  # for the controllers' threads, if the stop waits for them after all


def test_a_stop_during_a_registration_by_another_thread_stops_everything():
    registered, stopped = Registered(), []
    keys = [GroupPartition("g", each) for each in layout(3)]

    class Meanwhile:
        is_running = True

        def __init__(self, handle: ProcessorHandle) -> None:
            self._partition = handle.partition

        def stop(self) -> None:
            if not stopped:
                registered.register(
                    lambda handle, _: Meanwhile(handle), LifeCycleSettings(), keys[2:], SimpleNamespace()
                )
            stopped.append(self._partition)

    registered.register(lambda handle, _: Meanwhile(handle), LifeCycleSettings(), keys[:2], SimpleNamespace())
    registered.stop()
    assert stopped == [key.partition for key in keys]


def test_each_start_registers_again(make, project):
    application = make()
    application.start()
    before, _ = project.HANDLES[0]
    application.stop()
    application.start()
    assert project.HANDLES[0][0] is not before
    assert project.HANDLES[0][0].is_running


def test_auto_start_is_left_to_the_registration(make, project):
    make(**{f"{GROUP}.life-cycle.auto-start": False}).start()
    assert len(project.CONTROLLERS) == 2
    assert not any(handle.is_running for handle, _ in project.HANDLES.values())


def test_a_run_lasts_while_a_controller_may_start_something(make, project):
    project.CONTENT["begins"] = False
    application = make()
    with ThreadPoolExecutor() as threads:
        run = threads.submit(application.run)
        wait_until(lambda: len(project.CONTROLLERS) == 2)
        assert not run.done()
        for controller in project.CONTROLLERS:
            controller.is_running = False
        assert not run.result(60).failed


def test_a_run_until_caught_up_ends_when_all_started_partitions_are_caught_up(make, project):
    application = make()
    add_events(application, *range(10))
    assert not application.run(until_caught_up=True).failed
    assert positions(application) == [10, 10]


@pytest.mark.release(engine="spark")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_until_caught_up_waits_for_partitions_that_controllers_start_later(make, project, engine, caplog):
    project.CONTENT["begins"] = False
    application = make(engine)
    add_events(application, *range(10))
    caplog.set_level("INFO", "opencqrs")
    with ThreadPoolExecutor() as threads:
        run = threads.submit(application.run, until_caught_up=True)
        wait_until(lambda: run.done() or caplog.text.count("which its controller may still start") == 2)
        project.HANDLES[0][0].start()
        wait_until(lambda: run.done() or positions(application)[0] == 10)
        project.HANDLES[0][0].stop()  # partitions that have caught up are not waited for
        project.HANDLES[1][0].start()
        assert not run.result(SECONDS).failed
    assert positions(application) == [10, 10]
    assert caplog.text.count("waiting until seen 0/2 has caught up, which its controller may still start") == 1


def test_a_run_until_caught_up_does_not_wait_for_partitions_abandoned_by_their_controller(make, project):
    project.CONTENT["begins"] = False
    application = make()
    add_events(application, *range(10))
    with ThreadPoolExecutor() as threads:
        run = threads.submit(application.run, until_caught_up=True)
        wait_until(lambda: len(project.CONTROLLERS) == 2)
        project.HANDLES[0][0].start()
        project.CONTROLLERS[1].is_running = False
        assert not run.result(SECONDS).failed
    assert positions(application)[0] == 10


def test_a_run_on_an_empty_log_does_not_wait_for_controllers(make, project):
    project.CONTENT["begins"] = False
    assert not make().run(until_caught_up=True).failed


def test_a_run_without_controllers_continues_with_the_started_partitions(make, project):
    project.CONTENT["controls"] = False
    application = make()
    add_events(application, *range(10))
    assert not application.run(until_caught_up=True).failed
    assert positions(application) == [10, 10]
    project.CONTENT["begins"] = False
    assert application.run().partitions == ()


def test_the_conditions_name_the_registration(make):
    (decision,) = [each for each in make().conditions() if each.subject == "life-cycle.controller"]
    assert str(decision) == "seen: life-cycle.controller = provider mine: named (default given in code)"


def test_the_last_handle_to_start_a_partition_owns_it(make, project):
    first = make()
    add_events(first, *range(5))
    first.start()
    handles = [handle for handle, _ in project.HANDLES.values()]
    second = make()
    second.start()
    add_events(second, *range(5, 10))
    wait_until(lambda: positions(second) == [10, 10])
    wait_until(lambda: not any(handle.is_running for handle in handles))
    assert positions(first) == [10, 10]
    assert first._life.processors.running() == {}
    assert first.health().healthy
    assert first.await_position("seen", 10, timeout=SECONDS) == 10


@pytest.mark.parametrize(
    ("registration", "kind", "says"),
    [
        (lambda handle, settings: 1 / 0, ProjectCodeError, "registration raised ZeroDivisionError: division by zero"),
        (lambda handle, settings: 7, AssemblyError, "returned int, which has no is_running, stop"),
        ("none", AssemblyError, "provider 'mine' makes str, which has no __call__"),
    ],
)
def test_an_invalid_registration_ends_the_start(make, project, registration, kind, says):
    with project.Container.mine.override(registration), pytest.raises(kind, match=says):
        make().start()


def test_control_commands_are_refused(make):
    with pytest.raises(AssemblyError, match="group 'seen' does not use leases") as caught:
        make().control.stop("seen")
    assert caught.value.code == "OCQ-535"
