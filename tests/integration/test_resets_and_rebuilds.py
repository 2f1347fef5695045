"""Resets, other partitions and rebuilds of one group, one after the other: nothing is lost or sent twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import create_engine
from support.rebuilding import HANDLERS, KINDS, NOT_IN_SQL, RESEQUENCED, World

from opencqrs_py import Application
from opencqrs_py.adapters.sql import Database
from opencqrs_py.adapters.sql.shadows.mariadb import MariaDbShadows
from opencqrs_py.adapters.sql.shadows.postgresql import PostgresqlShadows
from opencqrs_py.adapters.sql.shadows.shadows import Shadows
from opencqrs_py.adapters.sql.shadows.sqlite import SqliteShadows
from opencqrs_py.assembly.resets import Pausing, ResetTarget
from opencqrs_py.errors import EventStoreError, RebuildError, RebuildUnderWayError, ResetError, WaitTimedOutError

GROUP = "event-handling.groups.catalog"
MAIL = '@event_handling("catalog", types=["lent"])\ndef mail'
RESETTABLE = (
    HANDLERS.replace("import Event,", "import Event, on_reset, on_replay_finished,")
    + """
finished = []

@on_reset("catalog")
def clear(connection: Connection) -> None:
    connection.execute(text("DELETE FROM lent"))

@on_replay_finished("catalog")
def finish() -> None:
    finished.append(1)
"""
)
ONCE = RESETTABLE.replace(MAIL, MAIL.replace('["lent"]', '["lent"], replay=False'))
NOTING = (
    RESETTABLE
    + """
@on_start("catalog")
def notes(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS history (position INTEGER PRIMARY KEY)"))

@event_handling("catalog", types=["lent"], replay=False)
def note(event: Event, connection: Connection) -> None:
    connection.execute(text("INSERT INTO history VALUES (:position)"), {"position": event.position})
"""
)
PARKING = (
    ONCE.replace("    book = ", "    if event.position == fails:\n        raise ValueError('no')\n    book = ")
    + "\nfails = 0\n"
)
UNAWARE = RESETTABLE.replace("mail(event: Event, context: ProcessingContext)", "mail(event: Event)").replace(
    "(context.position, context.rebuilding)", "(event.position, False)"
)
WITHOUT_MAIL = RESETTABLE.replace(MAIL, "def mail")


class Killed(BaseException):
    """The end of a process."""


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A database without any table of a group."""
    url = "" if request.param == "sqlite" else request.getfixturevalue("fresh_url")(request.param)
    return World(url, tmp_path, request.param)


def reset_to_tail(world: World) -> None:
    with world.application() as application:
        application.resets.reset("catalog", ResetTarget(to="tail"))


def rebuild(world: World) -> None:
    with world.application() as application:
        application.rebuilds.rebuild("catalog")


def rebuild_in_a_replay(world: World, module: ModuleType) -> None:
    """Rebuild a group that was reset after 98 events, and has handled none of them again yet."""
    world.module = module
    world.add(98)
    world.run()
    reset_to_tail(world)
    rebuild(world)


def every_book(times: int) -> dict[str, int]:
    return {f"/books/{number}": times for number in range(7)}


@NOT_IN_SQL
def test_mail_is_sent_once_even_if_the_group_is_rebuilt_during_a_replay(
    world: World, make_module: Callable[[str], ModuleType]
) -> None:
    module: Any = make_module(ONCE)
    rebuild_in_a_replay(world, module)
    world.add(7, start=98)
    world.run()
    assert Counter(position for position, _ in module.mailed) == Counter(range(1, 106))
    assert world.lent() == every_book(15)
    assert module.finished == [1]


@NOT_IN_SQL
def test_new_tables_are_not_swapped_during_a_replay_that_leaves_out_a_handler_that_fills_them(
    world: World, make_module: Callable[[str], ModuleType]
) -> None:
    world.module = make_module(NOTING)
    world.add(98)
    world.run()
    with world.application() as application:
        application.resets.reset("catalog", ResetTarget(position=50))
        said = r"(?s)OCQ-536.*handles events again up to 98, without handlers with replay=False.*let the replay end"
        with pytest.raises(WaitTimedOutError, match=said):
            application.rebuilds.rebuild("catalog", timeout=0.1)
    world.run()
    rebuild(world)
    world.add(7, start=98)
    world.run()
    assert world.send("SELECT count(*), max(position) FROM history") == [(105, 105)]
    assert world.lent() == every_book(15)


@pytest.mark.release  # the test of mail, above, sees it, too
def test_the_end_of_a_replay_is_reported_even_if_the_group_is_rebuilt_meanwhile(
    world: World, make_module: Callable[[str], ModuleType]
) -> None:
    module: Any = make_module(WITHOUT_MAIL)
    rebuild_in_a_replay(world, module)
    world.run()
    world.run()
    assert module.finished == [1]
    assert world.lent() == every_book(14)


@pytest.mark.release(target="head")
@NOT_IN_SQL
@pytest.mark.parametrize(("target", "again"), [("tail", 7), ("head", 0)])
def test_mail_is_sent_for_events_added_after_the_log_was_restored_and_the_group_reset(
    world: World,
    make_module: Callable[[str], ModuleType],
    caplog: pytest.LogCaptureFixture,
    target: str,
    again: int,
) -> None:
    module: Any = make_module(ONCE)
    world.module = module
    world.add(28)
    world.run()
    (world.folder / "events.db").unlink()
    world.add(7)  # those of the backup
    for dry_run in (True, False):
        with world.application() as application:
            result = application.resets.reset("catalog", ResetTarget(to=target), dry_run=dry_run)
        assert result.until == again
        assert "the log ends at position 7, and group catalog has handled events up to 28" in caplog.text
        caplog.clear()
    world.send("DELETE FROM audit")
    with world.application() as application:
        application.resets.reset("audit", ResetTarget(to="tail"))
    module.mailed.clear()
    world.add(14, start=100)
    world.run()
    assert sorted({position for position, _ in module.mailed}) == list(range(8, 22))


@NOT_IN_SQL
def test_a_log_restored_during_a_replay_is_refused_until_the_group_is_reset_again(
    world: World, make_module: Callable[[str], ModuleType]
) -> None:
    module: Any = make_module(ONCE)
    world.module = module
    world.add(28)
    world.run()
    reset_to_tail(world)
    (world.folder / "events.db").unlink()
    world.add(14)  # those of the backup, and new ones
    world.send("DELETE FROM audit")
    with world.application() as application:
        application.resets.reset("audit", ResetTarget(to="tail"))
    with world.application() as application, pytest.raises(EventStoreError, match="OCQ-316") as caught:
        application.run(until_caught_up=True)
    assert "events up to position 28 count as handled" in caught.value.what
    assert "opencqrs groups reset catalog" in caught.value.fix
    with world.application() as application:
        errors = {each.error for status in application.status() for each in status.partitions}
        assert any("[OCQ-316]" in error and "position 28" in error for error in errors)
        with pytest.raises(EventStoreError, match="OCQ-316"):
            application.rebuilds.rebuild("catalog")
    reset_to_tail(world)
    module.mailed.clear()
    world.add(14, start=100)
    world.run()
    assert sorted({position for position, _ in module.mailed}) == list(range(15, 29))
    assert world.lent() == every_book(4)


def resequenced_reset(world: World, *, dry_run: bool = False) -> None:
    with world.application(**RESEQUENCED) as application:
        application.resets.reset("catalog", ResetTarget(to="tail"), dry_run=dry_run)


@pytest.mark.release(way="catch up")
@NOT_IN_SQL
@pytest.mark.parametrize("way", ["catch up", "merge"])
def test_a_reset_waits_for_one_common_position_if_the_sequencing_has_changed(
    world: World, make_module: Callable[[str], ModuleType], way: str
) -> None:
    module: Any = make_module(ONCE)
    world.module = module
    world.leave_lagging()
    for dry_run in (True, False):
        with pytest.raises(ResetError, match=r"(?s)OCQ-613.*different positions.*groups partitions catalog 1"):
            resequenced_reset(world, dry_run=dry_run)
    assert world.positions() == {2, 5}
    if way == "catch up":
        world.catch_up()
        resequenced_reset(world)
    else:
        with world.application() as application:
            application.layouts.repartition("catalog", 1)
        with pytest.raises(ResetError, match=r"(?s)OCQ-613.*ahead.*"):
            resequenced_reset(world)
        reset_to_tail(world)
        with world.application() as application:
            application.control.start("catalog", timeout=None)
    world.run(**RESEQUENCED)
    assert Counter(position for position, _ in module.mailed) == Counter(range(1, 6))
    assert sum(world.lent().values()) == 5


@NOT_IN_SQL
def test_a_reset_ahead_of_all_partitions_does_not_depend_on_which_events_they_handled(
    world: World, make_module: Callable[[str], ModuleType]
) -> None:
    world.module = make_module(ONCE)
    world.leave_lagging()
    with world.application(**RESEQUENCED) as application:
        assert application.resets.reset("catalog", ResetTarget(to="head")).until == 0


@NOT_IN_SQL
def test_a_reset_of_a_group_that_ignores_replays_waits_for_no_position(
    world: World, make_module: Callable[[str], ModuleType]
) -> None:
    world.module = make_module(UNAWARE)
    world.leave_lagging()
    resequenced_reset(world)
    with world.application(**RESEQUENCED) as application:
        application.control.start("catalog:1/2", timeout=None)
    world.run(**RESEQUENCED)
    assert sum(world.lent().values()) == 5


@NOT_IN_SQL
def test_events_in_the_inbox_are_new_after_a_reset_that_changes_the_sequencing(
    world: World, make_module: Callable[[str], ModuleType]
) -> None:
    module: Any = make_module(PARKING)
    world.module = module
    world.settings |= {f"{GROUP}.retry.policy": "none", f"{GROUP}.retry.on-exhausted": "park"}
    module.fails = 3
    world.leave_lagging()
    world.catch_up()
    assert sorted(position for position, _ in module.mailed) == [1, 2, 4, 5]
    module.fails = 0
    resequenced_reset(world)
    world.run(**RESEQUENCED)
    assert Counter(position for position, _ in module.mailed) == Counter(range(1, 6))
    assert sum(world.lent().values()) == 5


class FinishingFirst:
    """Has a group handle more events while it is requested to release its partitions."""

    def __init__(self, world: World, pausing: Pausing) -> None:
        self._world = world
        self._pausing = pausing
        self.runs = pausing.runs

    @contextmanager
    def paused(self, group: str, timeout: float) -> Iterator[bool]:
        self._world.add(2, start=7)
        self._world.run()
        with self._pausing.paused(group, timeout) as running:
            yield running


@NOT_IN_SQL
def test_a_reset_to_the_head_handles_nothing_again_that_was_handled_before_the_group_was_released(
    world: World, make_module: Callable[[str], ModuleType], caplog: pytest.LogCaptureFixture
) -> None:
    world.module = make_module(WITHOUT_MAIL.replace("DELETE FROM lent", "DELETE FROM lent WHERE n < 0"))
    caplog.set_level("INFO", "opencqrs.control")
    world.add(7)
    world.run()
    with world.application() as application:
        resets = application.resets
        resets._pausing = FinishingFirst(world, resets._pausing)
        result = resets.reset("catalog", ResetTarget(to="head"))
    assert (result.reset.position, result.head, result.until, result.omitted_after) == (9, 9, 0, None)
    assert "group catalog was reset to position 9 by" in caplog.text
    world.add(5, start=9)
    world.run()
    assert world.lent() == every_book(2)


@NOT_IN_SQL
def test_a_group_beyond_the_end_of_the_log_is_not_rebuilt(
    world: World, make_module: Callable[[str], ModuleType]
) -> None:
    world.module = make_module(WITHOUT_MAIL)
    world.add(28)
    world.run()
    (world.folder / "events.db").unlink()
    world.add(7)
    with world.application() as application:
        for call in (application.rebuilds.plan, application.rebuilds.rebuild, application.rebuilds.compare):
            with pytest.raises(EventStoreError, match=r"OCQ-316.*group 'catalog'.*the log ends at 7"):
                call("catalog")
    assert not world.is_there("shadow")
    assert world.lent() == every_book(4)


COMMITTING = RESETTABLE.replace(
    'text("DELETE FROM lent"))', 'text("DELETE FROM lent"))\n    connection.exec_driver_sql("COMMIT")'
)


@pytest.mark.release(world=("postgresql", "mariadb"))  # where test_sql_databases.py ends transactions
def test_a_function_that_ends_the_transaction_of_a_reset_is_named_and_its_rows_come_back(
    world: World, make_module: Callable[[str], ModuleType]
) -> None:
    world.module = make_module(COMMITTING)
    world.add(14)
    world.run()
    with pytest.raises(ResetError, match=r"(?s)OCQ-614.*@on_reset of group 'catalog'.*made_up_project.*\(clear\)"):
        reset_to_tail(world)
    assert world.positions() == {14}
    world.module = make_module(RESETTABLE)
    reset_to_tail(world)
    world.run()
    assert world.lent() == every_book(2)


@NOT_IN_SQL
def test_a_group_that_was_reset_to_before_its_beginning_is_rebuilt_from_there(
    world: World, make_module: Callable[[str], ModuleType]
) -> None:
    world.module = make_module(WITHOUT_MAIL)
    world.settings[f"{GROUP}.fetch.initial-position"] = "head"
    world.add(7)
    world.run()
    world.add(7, start=7)
    world.run()
    assert world.lent() == every_book(1)
    reset_to_tail(world)
    world.run()
    rebuild(world)
    assert world.lent() == every_book(2)


@pytest.fixture
def from_head(world: World, make_module: Callable[[str], ModuleType]) -> World:
    """A group that has begun at event 7 of 14, and has an unfinished rebuild."""
    world.module = make_module(WITHOUT_MAIL)
    world.settings[f"{GROUP}.fetch.initial-position"] = "head"
    world.add(7)
    world.run()
    world.add(7, start=7)
    world.run()
    with world.application() as application:
        application.rebuilds.compare("catalog")
    return world


@pytest.mark.release  # the next test repeats such a rebuild
def test_an_unfinished_rebuild_begins_again_if_the_group_was_reset_to_before_its_beginning(
    from_head: World, caplog: pytest.LogCaptureFixture
) -> None:
    reset_to_tail(from_head)
    from_head.run()
    rebuild(from_head)
    assert from_head.lent() == every_book(2)
    assert "group catalog: its beginning changed since the rebuild began, so it begins again" in caplog.text


@pytest.mark.release(world=("postgresql", "mariadb"))  # by records that are the same on each
def test_a_reset_to_before_the_beginning_during_a_rebuild_prevents_the_swap(
    from_head: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reset_first(shadows: Shadows, swap: Any, timeout: float) -> Any:
        monkeypatch.undo()
        reset_to_tail(from_head)
        from_head.run()
        return shadows.swap(swap, timeout)

    kind = {"sqlite": SqliteShadows, "postgresql": PostgresqlShadows, "mariadb": MariaDbShadows}[from_head.kind]
    monkeypatch.setattr(kind, "swap", reset_first)
    with pytest.raises(RebuildError, match="its beginning changed since the rebuild of group 'catalog' began"):
        rebuild(from_head)
    assert from_head.lent() == every_book(2)
    rebuild(from_head)
    assert from_head.lent() == every_book(2)


def run_of_earlier_version(world: World, make_module: Callable[[str], ModuleType], setting: str) -> None:
    """Run a group with an unknown beginning, as earlier versions did not record it."""
    world.module = make_module(WITHOUT_MAIL)
    world.settings[f"{GROUP}.fetch.initial-position"] = setting
    world.add(7)
    world.run()
    world.send("UPDATE opencqrs_groups SET initial_position = NULL")


@pytest.mark.release  # the next test shows it, too
@pytest.mark.parametrize("setting", ["head", "-P1D"])
def test_a_group_with_an_unknown_beginning_is_not_rebuilt(
    world: World, make_module: Callable[[str], ModuleType], setting: str
) -> None:
    run_of_earlier_version(world, make_module, setting)
    with world.application() as application, pytest.raises(RebuildError, match="it is unknown where group 'catalog'"):
        application.rebuilds.rebuild("catalog")
    world.settings[f"{GROUP}.fetch.initial-position"] = "0"
    rebuild(world)
    assert world.lent() == every_book(1)


@NOT_IN_SQL
def test_a_group_with_an_unknown_beginning_is_rebuilt_after_a_reset_to_the_tail(
    world: World, make_module: Callable[[str], ModuleType]
) -> None:
    run_of_earlier_version(world, make_module, "head")
    with world.application() as application, pytest.raises(RebuildError, match="it is unknown where") as caught:
        application.rebuilds.rebuild("catalog")
    assert "opencqrs groups reset catalog --to tail" in caught.value.fix
    reset_to_tail(world)
    world.run()
    rebuild(world)
    assert world.lent() == every_book(1)


@pytest.mark.release(setting="tail")
@NOT_IN_SQL
@pytest.mark.parametrize("setting", ["tail", "head"])
def test_a_group_that_was_reset_before_its_first_run_is_rebuilt_from_there(
    world: World, make_module: Callable[[str], ModuleType], setting: str
) -> None:
    world.module = make_module(HANDLERS.replace(MAIL, "def mail"))  # the table does not exist yet
    world.settings[f"{GROUP}.fetch.initial-position"] = setting
    world.add(14)
    with world.application() as application:
        application.resets.reset("catalog", ResetTarget(position=7))
    world.run()
    rebuild(world)
    assert world.lent() == every_book(1)


@pytest.fixture
def on_mariadb(fresh_url: Callable[[str], str], tmp_path: Path, make_module: Callable[[str], ModuleType]) -> World:
    """A group that has handled 98 events, on MariaDB, where a swap has steps."""
    world = World(fresh_url("mariadb"), tmp_path, "mariadb")
    world.module = make_module(WITHOUT_MAIL)
    world.add(98)
    world.run()
    return world


def killed_swap(world: World, monkeypatch: pytest.MonkeyPatch, *, back: bool) -> None:
    """Have a process end when the tables are swapped, and the progress is not."""

    def end(*_: object) -> None:
        raise Killed

    if back:
        rebuild(world)
    with world.application() as application, monkeypatch.context() as patch:
        patch.setattr(MariaDbShadows, "_follow_back" if back else "_follow", end)
        with pytest.raises(Killed):
            (application.rebuilds.undo if back else application.rebuilds.rebuild)("catalog")


@pytest.mark.release(what="partitions")
@pytest.mark.mariadb
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("what", ["reset", "partitions"])
@pytest.mark.few
def test_an_interrupted_swap_is_completed_before_the_group_is_changed(
    on_mariadb: World, monkeypatch: pytest.MonkeyPatch, what: str, *, back: bool
) -> None:
    killed_swap(on_mariadb, monkeypatch, back=back)
    if what == "reset":
        reset_to_tail(on_mariadb)
    else:
        with on_mariadb.application() as application:
            assert len(application.layouts.repartition("catalog", 3).after) == 3
    on_mariadb.add(7, start=98)
    on_mariadb.run()
    assert on_mariadb.lent() == every_book(15)


@pytest.mark.release(what="partitions")
@pytest.mark.mariadb
@pytest.mark.parametrize("what", ["reset", "partitions"])
def test_a_group_is_not_changed_between_the_swap_of_its_tables_and_that_of_its_progress(
    on_mariadb: World, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    with on_mariadb.application() as application:
        resets, layouts = application.resets, application.layouts  # of a process that was there before
        killed_swap(on_mariadb, monkeypatch, back=False)
        change = {
            "reset": partial(resets.reset, "catalog", ResetTarget(to="tail")),
            "partitions": partial(layouts.repartition, "catalog", 3),
        }[what]
        with pytest.raises(RebuildUnderWayError) as raised:
            change()
        assert raised.value.code == "OCQ-633"
    on_mariadb.add(7, start=98)
    on_mariadb.run()
    assert on_mariadb.lent() == every_book(15)


@pytest.mark.mariadb
def test_a_group_whose_engine_comes_from_a_provider_starts_on_mariadb(
    fresh_url: Callable[[str], str], tmp_path: Path, make_module: Callable[[str], ModuleType]
) -> None:
    engine = create_engine(Database(fresh_url("mariadb")).url)
    module: Any = make_module(
        "from dependency_injector import containers, providers\n"
        "class Parts(containers.DeclarativeContainer):\n"
        "    engine = providers.Object(None)\n" + WITHOUT_MAIL
    )
    module.Parts.engine.override(engine)
    settings = {"event-store.url": f"sqlite:///{tmp_path / 'events.db'}", "database.ref": "engine"}
    with Application(settings, [module], tmp_path) as application:
        assert not application.run(until_caught_up=True).failed
    engine.dispose()
