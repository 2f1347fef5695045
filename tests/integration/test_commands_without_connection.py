"""A server ends a connection during a change of a group: one error explains it, and the command can be repeated."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
from support.cutting import Cutter
from support.rebuilding import HANDLERS, KINDS, NEW, OLD, WRONG, World

from opencqrs_py import Application
from opencqrs_py.adapters.sql import Database
from opencqrs_py.assembly.resets import ResetTarget
from opencqrs_py.errors import OpenCqrsError

pytestmark = pytest.mark.release(world="mariadb")  # as on PostgreSQL

FORGET = """
from opencqrs_py import Reset, on_reset

@on_reset("catalog")
def forget(reset: Reset, connection: Connection) -> None:
    connection.execute(text("DELETE FROM lent"))
"""
FEW, MANY = 25, pytest.param(3, marks=pytest.mark.release)

OUTAGE = re.compile(r"\[OCQ-304\] the database (no longer answers|cannot be reached)")

Act = Callable[[Application], object]


@pytest.fixture(params=KINDS[1:])
def world(request: pytest.FixtureRequest, tmp_path: Path, make_module: Callable[[str], ModuleType]) -> World:
    """A group that has handled 98 events, and one row of whose table has become wrong."""
    made = World(request.getfixturevalue("fresh_url")(request.param), tmp_path, request.param)
    made.module = make_module(HANDLERS + FORGET)
    made.add(98)
    made.run()
    made.send(WRONG)
    return made


@pytest.fixture
def cutter(world: World) -> Iterator[Cutter]:
    database = Database(world.url)
    made = Cutter(database)
    yield made
    made.close()
    database.close()


def explained(world: World, cutter: Cutter, act: Act, at: int) -> bool:
    """Do it while a connection is cut, and again if it fails; return whether so many statements were sent."""
    with cutter.counting(at) as sent, world.application() as application:
        try:
            act(application)
        except OpenCqrsError as error:
            assert OUTAGE.match(str(error))  # noqa: PT017 others are raised
            with world.application() as again:
                act(again)
        return sent() > at


def to_the_start(application: Application) -> None:
    application.resets.reset("catalog", ResetTarget(to="tail"))


@pytest.mark.parametrize("stride", [FEW, MANY])
def test_a_reset_with_a_lost_connection_is_explained_and_can_be_repeated(
    world: World, cutter: Cutter, stride: int
) -> None:
    at = stride // 2
    while explained(world, cutter, to_the_start, at):
        assert (world.positions(), world.lent()) == ({0}, {})
        world.run()
        assert (world.positions(), world.lent()) == ({98}, NEW)
        at += stride
    assert at > stride


def into_partitions(count: int, application: Application) -> None:
    application.layouts.repartition("catalog", count)


@pytest.mark.release  # as a reset
@pytest.mark.parametrize("stride", [FEW, MANY])
def test_a_repartition_with_a_lost_connection_is_explained_and_can_be_repeated(
    world: World, cutter: Cutter, stride: int
) -> None:
    at, count = stride // 2, 3
    while explained(world, cutter, partial(into_partitions, count), at):
        assert len(world.send("SELECT 1 FROM opencqrs_progress WHERE group_name = 'catalog'")) == count
        at, count = at + stride, 5 - count
    world.run()
    assert (world.positions(), world.lent()) == ({98}, OLD)
    assert at > stride


def rebuilt(application: Application) -> None:
    """Rebuild the group, unless that is done, or is completed now."""
    application.rebuilds.complete(["catalog"])
    record = application.rebuilds.records().get("catalog")
    if record is None or not record.keeps_old:
        application.rebuilds.rebuild("catalog")


def undone(application: Application) -> None:
    """Put the old tables back, unless that is done, or is completed now."""
    application.rebuilds.complete(["catalog"])
    record = application.rebuilds.records().get("catalog")
    if record is not None and record.keeps_old:
        application.rebuilds.undo("catalog")


@pytest.mark.release  # rebuilds that end early are completed in test_unfinished_rebuilds.py
@pytest.mark.parametrize("stride", [200, pytest.param(20, marks=pytest.mark.release)])
def test_a_rebuild_or_undo_with_a_lost_connection_is_explained_and_can_be_repeated(
    world: World, cutter: Cutter, stride: int
) -> None:
    at, goes_on = stride // 2, True
    while goes_on:
        built = explained(world, cutter, rebuilt, at)
        assert (world.positions(), world.lent()) == ({98}, NEW)
        goes_on = explained(world, cutter, undone, at) or built
        assert (world.positions(), world.lent()) == ({98}, OLD)
        with world.application() as application:  # tables that could not be dropped are dropped by the next command
            assert not application.rebuilds.drop_old("catalog")
        assert (world.is_there("shadow"), world.is_there("old")) == (False, False)
        at += stride
    assert at > stride
