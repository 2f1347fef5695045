"""What a look at groups reads, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from opencqrs_py import Application
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
THREAD = {"event-handling.standard.processing.engine": "thread"}


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """The statements that were sent through SQLAlchemy."""
    sent: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    yield sent
    event.remove(Engine, "before_cursor_execute", note)


def application(handlers: ModuleType, folder, partitions: int = 1) -> Application:
    made = Application({**THREAD, "event-handling.standard.life-cycle.partitions": partitions}, [handlers], folder)
    lines = (f'{{"id": "{n}", "source": "s", "type": "t", "subject": "/x/{n}", "data": {{}}}}' for n in range(50))
    made.event_store.append(map(parse_event, lines))
    return made


@pytest.mark.parametrize("ask", [Application.health, Application.status])
def test_statements_of_a_look_do_not_grow_with_groups_and_partitions(ask, make_module, tmp_path, statements):
    sent = []
    for groups, partitions in ((1, 1), (7, 20)):
        folder = tmp_path / str(groups)
        folder.mkdir()
        made = application(make_module(HANDLERS.format(groups=groups)), folder, partitions)
        made.run(until_caught_up=True)
        ask(made)  # the first one makes sure that the tables are there
        statements.clear()
        ask(made)
        sent.append(len(statements))
        made.stop()
    assert sent[0] == sent[1] <= 4


def test_a_group_of_this_process_is_well_while_it_runs_and_not_afterwards(make_module, tmp_path):
    made = application(make_module(HANDLERS.format(groups=1)), tmp_path)
    made.start()
    running = made.health()
    made.stop()
    assert (running.healthy, running.groups[0].state) == (True, "running")
    assert [finding.problem.value for finding in made.health().groups[0].findings] == ["unowned"]
    made.stop()


def test_progress_in_memory_is_unknown_to_others_and_well(make_module, tmp_path):
    handlers = make_module(HANDLERS.format(groups=1))
    made = Application({**THREAD, "event-handling.standard.progress.tracking": "in-memory"}, [handlers], tmp_path)
    assert [(group.state, group.healthy) for group in made.health().groups] == [("unknown", True)]
    made.stop()
