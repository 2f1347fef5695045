"""What reading the state of groups costs: the rows that are read, and the number of statements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import pytest
from support.statements import sent_statements

from opencqrs_py import Application, InboxFilter
from opencqrs_py.assembly.health import GroupHealth
from opencqrs_py.model.cloudevents import parse_event

HANDLERS = """
from opencqrs_py import Event, event_handling
from sqlalchemy import Connection

def handle(event: Event, connection: Connection) -> None: ...

for number in range({groups}):
    def handler(event: Event, connection: Connection) -> None: ...
    handler.__name__ = f"handler_{{number}}"
    event_handling(f"group-{{number}}", types=["*"])(handler)
"""
FAILING = """
from opencqrs_py import Event, event_handling
from sqlalchemy import Connection

@event_handling("loans", types=["*"])
def handle(event: Event, connection: Connection) -> None:
    if event.subject in ("/x/7", "/x/8"):
        raise ValueError("no")

@event_handling("readers", types=["*"])
def read(event: Event, connection: Connection) -> None: ...
"""
THREAD = {"event-handling.standard.processing.engine": "thread"}
NONE: Mapping[str, object] = {}
PARKING = {
    "event-handling.standard.retry.policy": "none",
    "event-handling.standard.retry.on-exhausted": "park",
    "event-handling.standard.park.retry.initial-interval": "1h",
}


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """The statements that were sent through SQLAlchemy."""
    with sent_statements() as sent:
        yield sent


def application(handlers: ModuleType, folder, partitions: int = 1, more: Mapping[str, object] = NONE) -> Application:
    settings = {**THREAD, **more, "event-handling.standard.life-cycle.partitions": partitions}
    made = Application(settings, [handlers], folder)
    lines = (f'{{"id": "{n}", "source": "s", "type": "t", "subject": "/x/{n}", "data": {{}}}}' for n in range(50))
    made.event_store.append(map(parse_event, lines))
    return made


@pytest.mark.release(ask=Application.health)
@pytest.mark.parametrize("ask", [Application.health, Application.status])
def test_statements_of_a_look_do_not_grow_with_groups_and_partitions(ask, make_module, tmp_path, statements):
    sent = []
    for groups, partitions in ((1, 1), (7, 20)):
        folder = tmp_path / str(groups)
        folder.mkdir()
        made = application(make_module(HANDLERS.format(groups=groups)), folder, partitions)
        made.run(until_caught_up=True)
        ask(made)  # the first one makes sure that the tables exist
        statements.clear()
        ask(made)
        sent.append(len(statements))
        made.stop()
    most = 4 if ask is Application.health else 6  # a status shows the records of groups and their rebuilds, too
    assert sent[0] == sent[1] <= most


def test_a_group_of_this_process_is_healthy_while_it_runs_and_not_afterwards(make_module, tmp_path):
    made = application(make_module(HANDLERS.format(groups=1)), tmp_path)
    made.start()
    running = made.health()
    made.stop()
    assert (running.healthy, running.groups[0].state) == (True, "running")
    assert [finding.problem.value for finding in made.health().groups[0].findings] == ["unowned"]
    made.stop()


SLOW = """
from threading import Event as Signal
from opencqrs_py import Event, event_handling, on_start

BEGUN, MAY_END = Signal(), Signal()

@on_start("seen")
def prepare() -> None:
    BEGUN.set()
    MAY_END.wait()

@event_handling("seen", types=["*"])
def see(event: Event) -> None: ...
"""


def test_a_group_that_its_process_does_not_begin_is_stalled(make_module, tmp_path):
    handlers = make_module(SLOW)
    made = application(handlers, tmp_path)

    def seen(tries: int, **health: object) -> GroupHealth:
        """Return the health that another process sees, with the first finding of some tries."""
        settings = {**THREAD, **{f"health.{name.replace('_', '-')}": value for name, value in health.items()}}
        with Application(settings, [handlers], tmp_path) as other:
            looks = (other.health().groups[0] for _ in range(tries))
            return next((each for each in looks if each.findings), other.health().groups[0])

    with ThreadPoolExecutor(1) as threads:
        started = threads.submit(made.start)
        try:
            assert handlers.BEGUN.wait(60)
            stalled, lagging = seen(1_000, stalled_after="1ms"), seen(1, stalled_after="1h", max_lag=9)
            well = seen(1, stalled_after="1h")
        finally:
            handlers.MAY_END.set()
            started.result(60)
            made.stop()
    assert (stalled.state, lagging.state, well.state, well.healthy) == ("stalled", "lagging", "running", True)
    assert stalled.findings[0].why.startswith("has not begun for ")


def test_progress_in_memory_is_unknown_to_other_processes_and_healthy(make_module, tmp_path):
    handlers = make_module(HANDLERS.format(groups=1))
    made = Application({**THREAD, "event-handling.standard.progress.tracking": "in-memory"}, [handlers], tmp_path)
    assert [(group.state, group.healthy) for group in made.health().groups] == [("unknown", True)]
    made.stop()


def test_waiting_events_are_seen_by_the_process_that_runs_the_group_and_by_others(make_module, tmp_path):
    made = application(make_module(FAILING), tmp_path, 2, PARKING)
    assert made.run(until_caught_up=True).parked == 2
    made.start()
    running, health = made.status(), made.health()
    made.stop()
    assert health.healthy  # a restart would not heal them
    for seen in (running, made.status()):
        assert sum(count for partition in seen[0].partitions for _, count in partition.parked) == 2
    assert [one.position for one in made.inbox.entries(InboxFilter())] == [8, 9]
    made.stop()  # closes the connections opened for the check


def test_skipped_events_are_seen_by_the_process_that_runs_the_group_and_by_others(make_module, tmp_path):
    skipping = {"event-handling.standard.retry.policy": "none", "event-handling.standard.retry.on-exhausted": "skip"}
    made = application(make_module(FAILING), tmp_path, 2, skipping)
    assert made.run(until_caught_up=True).skipped == 2
    made.start()
    running = made.status()
    made.stop()
    for seen in (running, made.status()):
        assert sum(partition.skipped for partition in seen[0].partitions) == 2
        assert all(partition.updated_at for partition in seen[0].partitions)
    made.stop()
