"""Handlers that a rebuild leaves out, such as one that sends mail: the live group calls them once for each event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Event as Signal
from threading import Thread
from types import ModuleType
from typing import Any

import pytest
from support.rebuilding import HANDLERS, KINDS, NOT_IN_SQL, RESEQUENCED, World

from opencqrs_py.errors import WaitTimedOutError

pytestmark = pytest.mark.release(world="sqlite")

FAILING = (
    HANDLERS.replace("    book = ", "    if fails:\n        raise ValueError('no')\n    book = ") + "\nfails = False\n"
)


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path, make_module: Callable[[str], ModuleType]) -> World:
    """A group that has handled 20 events, and sent mail for each."""
    url = "" if request.param == "sqlite" else request.getfixturevalue("fresh_url")(request.param)
    made = World(url, tmp_path, request.param)
    made.module = make_module(FAILING)
    made.add(20)
    made.run()
    return made


def mailed(world: World) -> Counter[int]:
    module: Any = world.module
    return Counter(position for position, _ in module.mailed)


def once(count: int) -> Counter[int]:
    return Counter(range(1, count + 1))


@NOT_IN_SQL
def test_a_rebuild_goes_no_further_than_the_group_that_sends_mail(world: World) -> None:
    world.add(7, start=20)
    with world.application() as application:
        assert application.rebuilds.rebuild("catalog").position == 20
    assert mailed(world) == once(20)
    world.run()
    assert mailed(world) == once(27)
    assert sum(world.lent().values()) == 27


@pytest.mark.release(world="mariadb")  # as on PostgreSQL
def test_a_swap_waits_for_a_partition_that_has_mail_to_send(world: World) -> None:
    with world.application() as application:
        application.control.stop("catalog:1/2", timeout=None)
    world.add(14, start=20)
    world.run()
    assert len(world.positions()) == 2
    before = mailed(world)
    assert len(before) < 34
    with world.application() as application:
        said = r"OCQ-536.*handlers that the rebuild leaves out have events to handle.*1/2"
        with pytest.raises(WaitTimedOutError, match=rf"(?s){said}"):
            application.rebuilds.rebuild("catalog", timeout=0.1)
        application.control.start("catalog:1/2", timeout=None)
    world.run()
    with world.application() as application:
        assert application.rebuilds.rebuild("catalog").position == 34
    assert mailed(world) == once(34)
    assert sum(world.lent().values()) == 34


@NOT_IN_SQL
@pytest.mark.parametrize("fourth", [0, 1])
def test_a_swap_waits_for_one_common_position_if_the_sequencing_has_changed(world: World, fourth: int) -> None:
    world.leave_lagging(20, fourth)
    with world.application(**RESEQUENCED) as application:
        said = r"OCQ-536.*sequenced in another way now.*different positions.*processes with the earlier sequencing"
        with pytest.raises(WaitTimedOutError, match=rf"(?s){said}"):
            application.rebuilds.rebuild("catalog", timeout=0.1)
    world.catch_up()
    with world.application(**RESEQUENCED) as application:
        assert application.rebuilds.rebuild("catalog").position == 25
    world.add(2, start=25)
    world.run(**RESEQUENCED)
    assert mailed(world) == once(27)
    assert sum(world.lent().values()) == 27


@NOT_IN_SQL
def test_while_events_arrive_mail_is_sent_once_for_each(world: World) -> None:
    stop, count = Signal(), 20

    def add() -> None:
        nonlocal count
        while not stop.is_set():
            world.add(3, start=count)
            count += 3
            live.await_position("catalog")

    adding = Thread(target=add)
    with world.application() as live:
        live.start()
        adding.start()
        try:
            with world.application() as other:
                other.rebuilds.rebuild("catalog")
        finally:
            stop.set()
            adding.join()
    world.run()
    assert mailed(world) == once(count)
    assert sum(world.lent().values()) == count


@NOT_IN_SQL
def test_events_in_the_inbox_of_the_live_group_are_warned_of(world: World, caplog: pytest.LogCaptureFixture) -> None:
    module: Any = world.module
    group = "event-handling.groups.catalog"
    world.settings |= {f"{group}.retry.policy": "none", f"{group}.retry.on-exhausted": "park"}
    module.fails = True
    world.add(1, start=20)
    world.run()
    module.fails = False
    with world.application() as application:
        application.rebuilds.rebuild("catalog")
    said = "group catalog: 1 event waits in the inbox of the live tables; handlers that the rebuild leaves out are not"
    assert said in caplog.text
    assert sum(world.lent().values()) == 21


@NOT_IN_SQL
def test_after_commit_calls_are_made_once_per_event_and_not_by_a_rebuild(
    request: pytest.FixtureRequest, world: World, make_module: Callable[[str], ModuleType]
) -> None:
    world.module = make_module(
        HANDLERS.replace("import Event, P", "import AfterCommit, Event, P")
        .replace(
            "def lend(event: Event, connection: Connection)",
            "def lend(event: Event, connection: Connection, after: AfterCommit)",
        )
        .replace("    book = {", "    after(lambda: called.append(event.position))\n    book = {")
        + "\ncalled = []\n"
    )
    module: Any = world.module
    world.add(7, start=20)
    with world.application() as application:
        assert application.rebuilds.rebuild("catalog").position == 20
        assert module.called == []
    world.run()
    assert Counter(module.called) == Counter(range(21, 28))
    with world.application(**{"event-handling.groups.catalog.rebuild.run-all-handlers": True}) as application:
        application.rebuilds.drop_old("catalog")
        application.rebuilds.rebuild("catalog")
    assert Counter(module.called) == Counter(range(1, 28)) + Counter(range(21, 28))
