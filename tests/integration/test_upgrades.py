"""Groups that were rebuilt continue after an upgrade, whichever of our tables an older version of the package made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from support.rebuilding import KINDS, NEW, OLD, World, with_wrong_row

from opencqrs_py.adapters.sql import tables as module
from opencqrs_py.adapters.sql.shadows.mariadb import MariaDbShadows
from opencqrs_py.adapters.sql.tables import EVENTS, GROUPS, INBOX, PROGRESS, SCHEMA
from opencqrs_py.assembly.resets import ResetTarget
from opencqrs_py.model.rebuild import RebuildPhase

ADDED = {
    GROUPS.name: (("layout",), ("selection",)),
    INBOX.name: (("expires_ms",), ("replaying",)),
    PROGRESS.name: (("log_fingerprint", "failure", "connection_id"), ("replay",), ("ahead",), ("checkpoint",)),
}
"""The columns that each later version of a table has added."""

OLDER = [(name, version) for name, added in ADDED.items() for version in range(len(added), 0, -1)]
older = pytest.mark.parametrize(("name", "version"), OLDER)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def world(
    request: pytest.FixtureRequest, kind: str, tmp_path: Path, make_module: Callable[[str], ModuleType]
) -> Iterator[World]:
    url = "" if kind == "sqlite" else request.getfixturevalue("fresh_url")(kind)
    yield from with_wrong_row(World(url, tmp_path, kind), make_module)


def set_back(world: World, name: str, version: int, *places: str) -> None:
    """Have a table as an older version of the package has made it, in the live place and in others."""
    lost = [column for added in ADDED[name][version - 1 :] for column in added]
    for place in ("", *places):
        ours = "" if not place or world.kind == "sqlite" else f"{world.place(place)}."
        there = World("", world.folder, world.kind) if world.kind == "sqlite" else world
        if world.kind == "sqlite" and place:
            there.url = f"{world.url}-{world.place(place)}.db"
        there.send(*(f"ALTER TABLE {ours}{name} DROP COLUMN {column}" for column in lost))
        if place != "old" or world.kind != "postgresql":  # where there is no table of versions
            there.send(f"UPDATE {ours}{SCHEMA.name} SET version = {version} WHERE table_name = '{name}'")


def version_of(world: World, name: str) -> int:
    ((version,),) = world.send(f"SELECT version FROM {SCHEMA.name} WHERE table_name = '{name}'")
    return int(version)


def begin_rebuild(world: World) -> None:
    """Begin a rebuild, and leave it unfinished."""
    with world.application() as application:
        application.rebuilds.compare("catalog")


def test_each_step_to_a_later_version_has_a_case() -> None:
    steps = {name: len(steps) for name, steps in module._STEPS.items() if name != EVENTS.name}
    assert steps == {name: len(added) for name, added in ADDED.items()}


@pytest.mark.few
@pytest.mark.release(kind=("postgresql", "mariadb"))  # test_sql_versions.py has the steps of each
@older
def test_a_rebuilt_group_runs_is_reset_and_undone_after_an_upgrade(world: World, name: str, version: int) -> None:
    with world.application() as application:
        application.rebuilds.rebuild("catalog")
    set_back(world, name, version)
    world.add(7, start=98)
    world.run()
    assert world.positions() == {105}
    set_back(world, name, version)
    with world.application() as application:
        application.resets.reset("catalog", ResetTarget(position=98))
    world.run()
    assert world.lent() == {book: count + 2 for book, count in NEW.items()}
    set_back(world, name, version, "old")
    with world.application() as application:
        assert application.rebuilds.undo("catalog").position == 98
    assert world.lent() == OLD


@pytest.mark.few
@pytest.mark.release(kind="postgresql", name=(GROUPS.name, INBOX.name))
@pytest.mark.release(kind="postgresql", version=(2, 3, 4))
@pytest.mark.release(kind="mariadb")  # whose swap is below
@older
def test_an_unfinished_rebuild_is_completed_after_an_upgrade(world: World, name: str, version: int) -> None:
    begin_rebuild(world)
    set_back(world, name, version, "shadow")
    world.run()
    set_back(world, name, version)
    with world.application() as application:
        application.rebuilds.rebuild("catalog")
    assert world.lent() == NEW


@pytest.mark.release(kind=("postgresql", "mariadb"))
@pytest.mark.parametrize("version", [1, 2])
def test_a_status_shows_records_of_an_older_version_without_an_upgrade_of_their_table(
    world: World, version: int
) -> None:
    begin_rebuild(world)
    set_back(world, GROUPS.name, version)
    with world.application() as application:
        (shown,) = (each for each in application.status() if each.group == "catalog")
    assert shown.record is not None
    assert shown.record.rebuild is not None
    assert shown.record.rebuild.phase is RebuildPhase.BUILDING
    assert (shown.record.layout is None) == (version == 1)
    assert shown.record.selection is None
    assert version_of(world, GROUPS.name) == version


class KilledError(BaseException):
    """The end of the process."""


@pytest.mark.parametrize("kind", [pytest.param("mariadb", marks=pytest.mark.mariadb)])
def test_an_interrupted_swap_is_completed_after_an_upgrade(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(*_: object) -> None:
        raise KilledError

    with world.application() as application, monkeypatch.context() as patch:
        patch.setattr(MariaDbShadows, "_follow", end)
        with pytest.raises(KilledError):
            application.rebuilds.rebuild("catalog")
    set_back(world, GROUPS.name, 2, "shadow")
    world.run()
    assert world.lent() == NEW
    with world.application() as application:
        application.rebuilds.undo("catalog")
    assert world.lent() == OLD
