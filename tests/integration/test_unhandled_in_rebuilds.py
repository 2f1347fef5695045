"""What handlers could not handle in a rebuild: it is refused at the swap, and belongs to the tables of its version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.rebuilding import KINDS, NOT_IN_SQL, World

from opencqrs_py.errors import RebuildError

HANDLERS = """
from opencqrs_py import Event, ProcessingContext, event_handling, on_start
from sqlalchemy import Connection, text

fails = {"live": set(), "rebuilt": set()}

@on_start("catalog")
def tables(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS lent (position INTEGER PRIMARY KEY)"))

@event_handling("catalog", types=["lent"])
def lend(event: Event, context: ProcessingContext, connection: Connection) -> None:
    if event.position in fails["rebuilt" if context.rebuilding else "live"]:
        raise ValueError("no such book")
    connection.execute(text("INSERT INTO lent VALUES (:position)"), {"position": event.position})
"""
GROUP = "event-handling.groups.catalog"
ALL = set(range(1, 21))


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path, make_module: Callable[[str], ModuleType]) -> World:
    """A group with 20 events whose errors use no second attempt, and wait for an hour if they are parked."""
    url = "" if request.param == "sqlite" else request.getfixturevalue("fresh_url")(request.param)
    made = World(url, tmp_path, request.param)
    made.module = make_module(HANDLERS)
    made.settings |= {f"{GROUP}.retry.policy": "none", f"{GROUP}.park.retry.initial-interval": "1h"}
    made.add(20)
    return made


def failing(world: World, way: str, live: set[int], rebuilt: set[int]) -> None:
    """Have events fail in either of both, and handle all once."""
    module: Any = world.module
    world.settings[f"{GROUP}.retry.on-exhausted"] = way
    module.fails.update(live=live, rebuilt=rebuilt)
    world.run()


def positions(world: World, table: str = "lent") -> set[int]:
    return {position for (position,) in world.send(f"SELECT position FROM {table}")}


WAYS = {
    "skip": (r"lacks 1 event .* '4' was skipped \(.*ValueError: no such book", {5}),
    # The later events of its book, 12 and 19, wait after it.
    "park": (r"lacks 3 events .* '4' waits in the inbox \(.*no such book.*'11' waits .*an earlier one", {5, 12, 19}),
}


@NOT_IN_SQL
@pytest.mark.parametrize("way", WAYS)
def test_a_rebuild_that_lacks_events_of_the_live_tables_is_swapped_only_if_accepted(world: World, way: str) -> None:
    said, lacking = WAYS[way]
    failing(world, way, set(), {5})
    with world.application() as application:
        with pytest.raises(RebuildError, match=rf"(?s)OCQ-636.*{said}.*--accept-unhandled") as raised:
            application.rebuilds.rebuild("catalog")
        assert raised.value.where == "group catalog"
        assert positions(world) == ALL
        assert application.rebuilds.compare("catalog").differences[0].missing == len(lacking)
        assert application.rebuilds.rebuild("catalog", accept_unhandled=True).position == 20
    assert positions(world) == ALL - lacking


@NOT_IN_SQL
@pytest.mark.parametrize(("way", "table"), [("skip", "opencqrs_skipped"), ("park", "opencqrs_inbox")])
def test_skipped_and_parked_events_belong_to_the_tables_of_their_version(world: World, way: str, table: str) -> None:
    failing(world, way, {3, 7}, {3})
    behind = {3: {3, 10, 17}, 7: {7, 14}} if way == "park" else {3: {3}, 7: {7}}
    assert positions(world, table) == behind[3] | behind[7]
    with world.application() as application:
        application.rebuilds.rebuild("catalog")
    assert positions(world, table) == behind[3]
    assert positions(world) == ALL - behind[3]
    with world.application() as application:
        application.rebuilds.undo("catalog")
    assert positions(world, table) == behind[3] | behind[7]
    assert positions(world) == ALL - behind[3] - behind[7]


MAILING = f"""{HANDLERS}
@event_handling("catalog", types=["lent"])
def mail(event: Event) -> None:
    mailed.append(event.position)

mailed = []
"""
AGAIN = "in the inbox of the new tables, though the live group has handled them: all handlers are called for them there"


@NOT_IN_SQL
@pytest.mark.parametrize(("source", "said"), [(MAILING, f"group catalog: 3 events wait {AGAIN}"), (HANDLERS, "")])
def test_parked_events_for_which_left_out_handlers_are_called_again_are_warned_of(
    world: World,
    make_module: Callable[[str], ModuleType],
    caplog: pytest.LogCaptureFixture,
    source: str,
    said: str,
) -> None:
    world.module = make_module(source)
    failing(world, "park", {3}, {3, 5})  # 3 waits in both inboxes: the live group has sent no mail for it
    with world.application() as application:
        application.rebuilds.rebuild("catalog", accept_unhandled=True)
    assert said in caplog.text
    assert (AGAIN in caplog.text) is bool(said)


@NOT_IN_SQL
def test_an_event_not_yet_reached_by_the_live_group_is_not_missing(world: World) -> None:
    failing(world, "skip", set(), {25})
    world.add(10, start=20)
    with world.application() as application:
        assert application.rebuilds.rebuild("catalog").position == 30
    assert positions(world) == set(range(1, 31)) - {25}
