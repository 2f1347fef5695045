"""Groups are rebuilt beside the live ones: tables, progress and dependent objects, on each database."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from functools import partialmethod
from pathlib import Path
from threading import Event as Signal
from threading import Thread
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import text
from support.rebuilding import HANDLERS, KINDS, RIGHT, World, of, with_wrong_row

from opencqrs_py import Application
from opencqrs_py.adapters.sql import Database
from opencqrs_py.adapters.sql.shadows import sqlite as shadows_sqlite
from opencqrs_py.adapters.sql.shadows.mariadb import MariaDbShadows
from opencqrs_py.assembly import awaiting
from opencqrs_py.assembly.awaiting import Awaiting
from opencqrs_py.assembly.rebuilds import shadow_build
from opencqrs_py.cli.rebuilds import _result_as_json, _result_lines
from opencqrs_py.engines.at_once import AtOnce
from opencqrs_py.engines.thread import engine as thread_engine
from opencqrs_py.errors import EventStoreError, HandlersChangedError, NotReachedError, RebuildError
from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.model.partition import layout
from opencqrs_py.model.rebuild import Fate, RebuildPhase
from opencqrs_py.processing.notices import NO_OBSERVER
from opencqrs_py.processing.pacing import ArrivalRate, Pace
from opencqrs_py.testing import FakeClock

ALL_HANDLERS = "event-handling.groups.catalog.rebuild.run-all-handlers"
"""With it a rebuild leaves out no handler, so it goes beyond the live group."""


NOT_IN_SQL = pytest.mark.release(kind=("postgresql", "mariadb"))
"""Rules that no statement keeps are shown on one database."""

ELSEWHERE_ON_SERVERS = pytest.mark.release(kind=("postgresql", "mariadb"))
"""Rules whose statements other default tests send to servers are shown on SQLite."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def empty(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> World:
    """A database without anything."""
    url = "" if kind == "sqlite" else request.getfixturevalue("fresh_url")(kind)
    return World(url, tmp_path, kind)


@pytest.fixture
def world(empty: World, make_module: Callable[[str], ModuleType]) -> Iterator[World]:
    yield from with_wrong_row(empty, make_module)


# ------------------------------------------------------------------------------------------------ swap and way back


@ELSEWHERE_ON_SERVERS
def test_new_tables_replace_the_old_ones_together_with_their_progress(world: World) -> None:
    world.add(7, start=98)
    with world.application(**{ALL_HANDLERS: True}) as application:
        result = application.rebuilds.rebuild("Catalog")
    assert (result.group, result.position, result.running) == ("catalog", 105, False)
    assert result.before == result.after == layout(2)
    assert {one.name: one.fate for one in result.tables} == {"lent": Fate.SWAPPED, "audit": Fate.LEFT}
    assert world.lent() == {f"/books/{n}": 15 for n in range(7)}
    assert world.positions() == {105}
    assert world.is_there("old")
    assert not world.is_there("shadow")
    world.add(7, start=105)
    world.run()
    assert world.lent() == {f"/books/{n}": 16 for n in range(7)}
    assert world.send("SELECT count(*) FROM audit") == [(112,)]


@ELSEWHERE_ON_SERVERS
def test_undo_puts_the_old_tables_back_and_they_catch_up(world: World) -> None:
    with world.application() as application:
        application.rebuilds.rebuild("catalog")
    world.add(7, start=98)
    world.run()
    assert world.positions() == {105}
    with world.application() as application:
        undone = application.rebuilds.undo("catalog")
    assert undone.position == 98
    assert world.lent() == {f"/books/{n}": RIGHT for n in range(7)} | {"/books/3": 99}
    world.run()
    assert world.lent() == {f"/books/{n}": RIGHT + 1 for n in range(7)} | {"/books/3": 100}
    assert (world.is_there("old"), world.is_there("shadow")) == (False, False)
    with world.application() as application:
        with pytest.raises(RebuildError, match=r"OCQ-630.*no old tables of group 'catalog' are kept"):
            application.rebuilds.undo("catalog")
        assert application.rebuilds.rebuild("catalog").position == 105
    assert world.lent() == {f"/books/{n}": RIGHT + 1 for n in range(7)}


@ELSEWHERE_ON_SERVERS
def test_undo_brings_back_the_partitions_that_were_changed_since_the_swap(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with world.application() as application:
        application.rebuilds.rebuild("catalog")
        application.layouts.repartition("catalog", 3)
    world.add(7, start=98)
    world.run()
    with caplog.at_level(logging.INFO), world.application() as application:
        undone = application.rebuilds.undo("catalog")
    assert (undone.before, undone.after) == (layout(3), layout(2))
    assert "group catalog has its former partitions again: 0/2, 1/2" in caplog.messages
    assert _result_lines(undone, "has its old tables back") == [
        "catalog has its old tables back, up to position 98: lent",
        "catalog has 2 partitions again (3 before)",
        "catalog: no process runs it; the next opencqrs run continues there",
    ]
    as_json = _result_as_json(undone, "undone")
    assert (as_json["before"], as_json["partitions"]) == (["0/3", "1/3", "2/3"], ["0/2", "1/2"])
    world.run()
    assert world.lent() == {f"/books/{n}": RIGHT + 1 for n in range(7)} | {"/books/3": 100}
    with world.application() as application:
        (catalog,) = (status for status in application.status() if status.group == "catalog")
    assert {status.partition for status in catalog.partitions} == set(layout(2))


@pytest.mark.skipif(os.name != "posix", reason="files have no such rights")
@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_the_files_of_a_rebuild_have_the_permissions_of_the_live_one(world: World) -> None:
    live = world.folder / "read.db"
    live.chmod(0o600)
    with world.application() as application:
        application.rebuilds.compare("catalog")
        built = modes_beside(live)
        application.rebuilds.rebuild("catalog")
    swapped = modes_beside(live)
    assert any("shadow" in name for name in built)
    assert any("old" in name for name in swapped)
    assert {*built.values(), *swapped.values()} == {0o600}


def modes_beside(file: Path) -> dict[str, int]:
    return {each.name: each.stat().st_mode & 0o777 for each in file.parent.glob(f"{file.name}-opencqrs*")}


FINES = """
from opencqrs_py import Event, event_handling, on_start
from sqlalchemy import Connection, text

@on_start("catalog")
def tables(connection: Connection) -> None:
    for name in ("lent", "fines", "later"):
        connection.execute(text(f"CREATE TABLE IF NOT EXISTS {name} (position INTEGER)"))

@event_handling("catalog", types=["lent"])
def lend(event: Event, connection: Connection) -> None:
    connection.execute(text("INSERT INTO lent VALUES (:position)"), {"position": event.position})

@event_handling("catalog", types=["fined"])
def fine(event: Event, connection: Connection) -> None:
    connection.execute(text("INSERT INTO fines VALUES (:position)"), {"position": event.position})

@event_handling("other", types=["fined"])
def note(event: Event, connection: Connection) -> None:
    connection.execute(text("INSERT INTO later VALUES (:position)"), {"position": event.position})
"""
FINED = '{"id": "fined", "source": "s", "type": "fined", "subject": "/books/1", "data": {}}'


@ELSEWHERE_ON_SERVERS
def test_a_table_first_filled_after_a_swap_prevents_an_undo(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    empty.module = make_module(FINES)
    empty.add(10)
    empty.run()
    with empty.application() as application:
        fates = {one.name: one.fate for one in application.rebuilds.rebuild("catalog").tables}
        assert fates == {"lent": Fate.SWAPPED, "fines": Fate.LEFT, "later": Fate.LEFT}
        application.event_store.append([parse_event(FINED)])
    empty.run()
    with empty.application() as application:
        with pytest.raises(RebuildError, match=r"OCQ-630.*fines had no rows when the tables .* were swapped"):
            application.rebuilds.undo("catalog")
        empty.send("DELETE FROM fines")
        application.rebuilds.undo("catalog")
    empty.run()
    assert empty.send("SELECT position FROM fines") == empty.send("SELECT position FROM later") == [(11,)]
    with empty.application() as application:
        application.rebuilds.rebuild("catalog")
    empty.run()
    with empty.application() as application:  # fines was swapped now, with its rows
        application.rebuilds.undo("catalog")
    assert empty.send("SELECT position FROM fines") == [(11,)]


@pytest.mark.parametrize("kind", ["sqlite"])
def test_a_table_filled_in_bulk_after_a_swap_prevents_an_undo(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    count = 'bulk.upsert(connection, "fines", [{"position": 1, "n": 1}], keys="position", add="n")'
    fines = "connection.execute(text('CREATE TABLE IF NOT EXISTS fines (position INTEGER PRIMARY KEY, n INTEGER)'))"
    source = FINES.replace('"fines", ', "").replace("import Event", "import Event, bulk")
    source = source.replace("    for name", f"    {fines}\n    for name")
    empty.module = make_module(re.sub(r"connection.execute\(text\(.INSERT INTO fines .*", count, source))
    empty.add(10)
    empty.run()
    with empty.application() as application:
        application.rebuilds.rebuild("catalog")
        application.event_store.append([parse_event(FINED)])
    empty.run()
    with (
        empty.application() as application,
        pytest.raises(RebuildError, match=r"OCQ-630.*fines had no rows when the tables .* were swapped"),
    ):
        application.rebuilds.undo("catalog")
    assert empty.send("SELECT n FROM fines") == [(1,)]


@pytest.mark.release  # test_rebuilds_on_mariadb.py has them
@ELSEWHERE_ON_SERVERS
def test_old_tables_dropped_by_hand_are_not_restored(world: World) -> None:
    with world.application() as application:
        application.rebuilds.rebuild("catalog")
        if world.kind == "sqlite":
            (world.folder / f"read.db-{world.place('old')}.db").unlink()
        else:
            kind, rest = ("SCHEMA", "CASCADE") if world.kind == "postgresql" else ("DATABASE", "")
            world.send(f"DROP {kind} {world.place('old')} {rest}")
        with pytest.raises(RebuildError, match=r"OCQ-630.*the old tables of group 'catalog' are gone"):
            application.rebuilds.undo("catalog")
        assert world.lent() == {f"/books/{n}": RIGHT for n in range(7)}
        assert application.rebuilds.drop_old("catalog")
        assert application.rebuilds.rebuild("catalog").position == 98


@ELSEWHERE_ON_SERVERS
def test_kept_tables_are_dropped_before_the_next_rebuild(world: World) -> None:
    with world.application() as application:
        rebuilds = application.rebuilds
        rebuilds.rebuild("catalog")
        with pytest.raises(RebuildError, match="old tables of the last rebuild of group 'catalog' are kept"):
            rebuilds.rebuild("catalog")
        assert rebuilds.drop_old("catalog")
        assert not rebuilds.drop_old("catalog")
        assert not world.is_there("old")
        assert rebuilds.rebuild("catalog").position == 98
        assert rebuilds.records()["catalog"].phase is RebuildPhase.SWAPPED


@NOT_IN_SQL
def test_handlers_outside_the_transaction_are_called_only_if_the_group_says_so(world: World) -> None:
    module: Any = world.module
    assert module.mailed == [(n, False) for n in range(1, 99)] or len(module.mailed) == 98
    del module.mailed[:]
    with world.application() as application:
        application.rebuilds.rebuild("catalog")
        assert module.mailed == []
        application.rebuilds.drop_old("catalog")
    with world.application(**{ALL_HANDLERS: True}) as application:
        application.rebuilds.rebuild("catalog")
    assert sorted(module.mailed) == [(n, True) for n in range(1, 99)]


@NOT_IN_SQL
def test_a_dry_run_says_what_would_happen_and_leaves_nothing(world: World) -> None:
    with world.application() as application:
        plan = application.rebuilds.plan("catalog")
    assert (plan.engine, plan.events, plan.refusals) == ("thread", 98, ())
    assert {one.name for one in plan.tables} == {"lent", "audit"}
    assert [place.rpartition("(")[2] for place in plan.handlers] == ["lend)"]
    assert [place.rpartition("(")[2] for place in plan.left_out] == ["mail)"]
    assert (world.is_there("old"), world.is_there("shadow")) == (False, False)
    assert world.lent()["/books/3"] == 99


@ELSEWHERE_ON_SERVERS
def test_a_comparison_shows_the_rows_that_differ_and_swaps_nothing(world: World) -> None:
    with world.application() as application:
        found = application.rebuilds.compare("catalog")
        assert found.exact
        (lent,) = found.differences
        assert (lent.table, lent.live, lent.shadow, lent.missing, lent.added) == ("lent", 7, 7, 1, 1)
        assert [example[0] for example in lent.examples] == ["-", "+"]
        assert "99" in lent.examples[0]
        assert world.lent()["/books/3"] == 99
        assert application.rebuilds.rebuild("catalog").position == 98  # it continues
        assert world.lent()["/books/3"] == RIGHT


@ELSEWHERE_ON_SERVERS
def test_a_comparison_is_made_at_the_position_of_a_stopped_group(world: World) -> None:
    world.add(7, start=98)
    with world.application(**{ALL_HANDLERS: True}) as application:
        found = application.rebuilds.compare("catalog", timeout=0)
        assert (found.exact, {*found.shadow.values()}) == (True, {98})
        (lent,) = found.differences
        assert (lent.missing, lent.added) == (1, 1)
        assert application.rebuilds.rebuild("catalog").position == 105  # it continues
    assert world.lent() == {f"/books/{n}": RIGHT + 1 for n in range(7)}


NOTES = "CREATE TABLE IF NOT EXISTS notes (position INTEGER, note {})"


@pytest.mark.few(kind="mariadb")
@pytest.mark.release(kind="sqlite", change=("'/Böoks/0'", "concat(note, ' ')"))
@pytest.mark.release(kind="postgresql")  # where other texts are other values
@pytest.mark.parametrize("change", ["upper(note)", "'/Böoks/0'", "concat(note, ' ')"])
def test_a_comparison_sees_case_accents_and_spaces_under_any_collation(
    empty: World, make_module: Callable[[str], ModuleType], change: str
) -> None:
    table = NOTES.format("TEXT COLLATE NOCASE" if empty.kind == "sqlite" else "VARCHAR(100)")
    world = of(empty, make_module, table, "INSERT INTO notes VALUES (:position, '/Books/0')")
    change = change.replace("concat(note, ' ')", "note || ' '") if world.kind == "sqlite" else change
    world.send(f"UPDATE notes SET note = {change} WHERE position = 3")
    with world.application() as application:
        (notes,) = application.rebuilds.compare("catalog").differences
    assert (notes.missing, notes.added) == (1, 1)
    assert "Books/0" in notes.examples[1]


@ELSEWHERE_ON_SERVERS
def test_a_comparison_counts_duplicate_rows(empty: World, make_module: Callable[[str], ModuleType]) -> None:
    world = of(empty, make_module, NOTES.format("VARCHAR(100)"), "INSERT INTO notes VALUES (1, NULL)")
    world.send("INSERT INTO notes VALUES (1, NULL)", "INSERT INTO notes VALUES (1, NULL)")
    with world.application() as application:
        (notes,) = application.rebuilds.compare("catalog").differences
    assert (notes.live, notes.shadow, notes.missing, notes.added) == (22, 20, 2, 0)


@ELSEWHERE_ON_SERVERS
def test_a_comparison_matches_columns_by_name_and_names_those_in_only_one_table(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    insert = "INSERT INTO notes (position, note) VALUES (:position, :subject)"
    world = of(empty, make_module, NOTES.format("VARCHAR(100), old INTEGER"), insert)
    new = "CREATE TABLE IF NOT EXISTS notes (due INTEGER, note VARCHAR(100), position INTEGER)"
    world.module = make_module(
        Path(str(world.module.__file__)).read_text().replace(NOTES.format("VARCHAR(100), old INTEGER"), new)
    )
    with world.application() as application:
        (notes,) = application.rebuilds.compare("catalog").differences
    assert (notes.live, notes.shadow, notes.differs) == (20, 20, False)
    assert (notes.live_columns, notes.shadow_columns) == (("old",), ("due",))


@ELSEWHERE_ON_SERVERS
def test_an_unfinished_rebuild_continues_or_is_aborted(world: World) -> None:
    with world.application() as application:
        application.rebuilds.compare("catalog")
        assert world.is_there("shadow")
        with pytest.raises(RebuildError, match="is being rebuilt"):
            application.rebuilds.plan("catalog")
        assert application.rebuilds.abort("catalog")
        assert not application.rebuilds.abort("catalog")
    assert not world.is_there("shadow")
    assert world.lent()["/books/3"] == 99


@pytest.mark.release  # test_resets_and_rebuilds.py has other beginnings
def test_a_group_is_rebuilt_from_its_own_beginning(empty: World, make_module: Callable[[str], ModuleType]) -> None:
    empty.module = make_module(HANDLERS)
    empty.add(10)
    empty.settings["event-handling.groups.catalog.fetch.initial-position"] = "head"
    empty.run()
    empty.add(7, start=10)
    empty.run()
    with empty.application() as application:
        application.rebuilds.rebuild("catalog")
    assert sum(empty.lent().values()) == 7


@pytest.mark.release  # what a log says
@pytest.mark.parametrize("kind", KINDS[:1], indirect=True)
def test_on_sqlite_a_swap_announces_how_long_other_writers_wait(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shadows_sqlite, "_BYTES_A_SECOND", 10_000)
    with world.application() as application:
        application.rebuilds.rebuild("catalog")
    (said,) = (one.getMessage() for one in caplog.records if "other writers wait" in one.getMessage())
    found = re.search(r"group catalog are copied into the live file \(([\d,]+) bytes\): .* about (\d+) s", said)
    assert found is not None
    size = int(found[1].replace(",", ""))
    assert int(found[2]) == round(2 * size / 10_000) > 2  # old tables and new ones


@pytest.mark.parametrize("kind", KINDS[:1], indirect=True)
def test_a_rebuild_is_possible_after_a_change_of_sequencing(world: World) -> None:
    world.settings["event-handling.groups.catalog.sequence.resolution"] = "no_sequence"
    world.add(7, start=98)
    with world.application() as application, pytest.raises(HandlersChangedError, match=r"(?s)OCQ-319.*groups rebuild"):
        application.run(until_caught_up=True)
    with world.application() as application:
        assert application.rebuilds.rebuild("catalog").position == 98
    world.run()
    assert world.lent() == {f"/books/{n}": RIGHT + 1 for n in range(7)}


@NOT_IN_SQL
def test_a_group_that_has_never_run_is_refused(empty: World, make_module: Callable[[str], ModuleType]) -> None:
    empty.module = make_module(HANDLERS)
    with empty.application() as application, pytest.raises(RebuildError, match=r"OCQ-630.*'catalog' has never run"):
        application.rebuilds.rebuild("catalog")


# ------------------------------------------------------------------------------------------------ limits


class Paces:
    """Paces a rebuild by a clock that advances with each read of its progress; keeps the values read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.25) -> None:
        self.clock = FakeClock()
        self.seconds = seconds
        self.seen: list[tuple[float, int]] = []
        self.lifted_at: list[int] = []
        self.looked: Callable[[], None] = lambda: None
        monkeypatch.setattr(shadow_build, "Pace", self._pace)
        monkeypatch.setattr(shadow_build, "ArrivalRate", lambda *given: ArrivalRate(*given, self.clock.monotonic))

    def _pace(self, per_second: int, position: int) -> Pace:
        paces = self

        class Observed(Pace):
            def reached(self, position: int) -> None:
                super().reached(position)
                paces.seen.append((paces.clock.monotonic(), position))
                paces.clock.advance(paces.seconds)
                paces.looked()

            def lift(self) -> None:
                super().lift()
                paces.lifted_at.append(paces.seen[-1][1])

        return Observed(per_second, position, self.clock.monotonic)


LIMIT = "event-handling.groups.catalog.rebuild.max-events-per-second"
PER_NODE = "event-handling.groups.catalog.life-cycle.max-partitions-per-node"


@NOT_IN_SQL
def test_a_rebuild_respects_its_limit_of_events_per_second(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    paces = Paces(monkeypatch)
    with world.application(**{LIMIT: 40}) as application:
        assert application.rebuilds.plan("catalog").max_events_per_second == 40
        assert application.rebuilds.rebuild("catalog").position == 98
    assert all(position <= 40 * seconds for seconds, position in paces.seen)
    assert len({position for _, position in paces.seen}) > 3
    assert paces.lifted_at == [98]
    assert world.lent() == {f"/books/{n}": RIGHT for n in range(7)}


@pytest.mark.release  # test_pacing.py shows where a pace begins
@NOT_IN_SQL
def test_a_resumed_rebuild_is_limited_from_its_position(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.application(**{ALL_HANDLERS: True}) as application:
        application.rebuilds.compare("catalog")
    world.add(21, start=98)
    paces = Paces(monkeypatch)
    with world.application(**{LIMIT: 40, ALL_HANDLERS: True}) as application:
        assert application.rebuilds.rebuild("catalog").position == 119
    assert all(98 <= position <= 98 + 40 * seconds for seconds, position in paces.seen)
    assert paces.lifted_at == [119]


@pytest.mark.parametrize("kind", KINDS[:1], indirect=True)
def test_the_task_limit_of_a_rebuild_applies_only_to_the_rebuild(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(thread_engine, "AtOnce", lambda most: made.append(most) or AtOnce(most))
    setting = {"event-handling.groups.catalog.rebuild.max-tasks": 1}
    world.run(**setting)
    assert made == []
    with world.application(**setting) as application:
        assert application.rebuilds.plan("catalog").max_tasks == 1
        assert application.rebuilds.rebuild("catalog").position == 98
    assert made == [1]
    assert world.lent() == {f"/books/{n}": RIGHT for n in range(7)}


@pytest.mark.parametrize("limit", [PER_NODE, pytest.param("node.max-partitions", marks=pytest.mark.release)])
@pytest.mark.parametrize("kind", KINDS[:1], indirect=True)
def test_a_rebuild_takes_all_partitions_however_few_a_process_may_have(world: World, limit: str) -> None:
    with world.application(**{limit: 1}) as application:
        assert application.rebuilds.rebuild("catalog").position == 98
    assert world.lent() == {f"/books/{n}": RIGHT for n in range(7)}


@pytest.mark.release  # test_pacing.py shows the rate of arrival
@pytest.mark.parametrize("kind", KINDS[:1], indirect=True)
def test_events_arriving_faster_than_the_limit_of_a_rebuild_are_warned_of_once(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    paces = Paces(monkeypatch, seconds=1)

    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if "does not catch up" in record.getMessage()]

    def arrive() -> None:
        if not warnings():
            world.add(14, start=98 + 14 * len(paces.seen))

    paces.looked = arrive
    with world.application(**{LIMIT: 10}) as application:
        application.rebuilds.compare("catalog", timeout=0)
    (warning,) = warnings()
    assert "group catalog: 14 events arrive in a second, and its rebuild may handle 10" in warning
    assert "rebuild.max-events-per-second" in warning


# ------------------------------------------------------------------------------------------------ what tables may have

VIEW = "CREATE TABLE IF NOT EXISTS lent (position INTEGER);DROP VIEW IF EXISTS late;CREATE VIEW late AS SELECT position FROM lent WHERE position > 15"  # noqa: E501


@pytest.mark.release  # the next test has one, and so has the file of each server
@ELSEWHERE_ON_SERVERS
def test_views_of_the_group_are_swapped_with_its_tables(empty: World, make_module: Callable[[str], ModuleType]) -> None:
    world = of(empty, make_module, VIEW, "INSERT INTO lent VALUES (:position)")
    world.send("DELETE FROM lent")
    assert world.send("SELECT count(*) FROM late") == [(0,)]
    with world.application() as application:
        application.rebuilds.rebuild("catalog")
    assert world.send("SELECT count(*) FROM late") == [(5,)]
    world.add(1, start=20)
    world.run()
    assert world.send("SELECT count(*) FROM late") == [(6,)]
    with world.application() as application:
        application.rebuilds.undo("catalog")
    assert world.send("SELECT count(*) FROM late") == [(0,)]
    world.run()
    assert world.send("SELECT count(*) FROM late") == [(1,)]


BECOMES = """
from opencqrs_py import Event, event_handling, on_start
from sqlalchemy import Connection, inspect, text

@on_start("catalog")
def tables(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS loan (n INTEGER)"))
    known = inspect(connection)
    if "totals" not in (*known.get_table_names(), *known.get_view_names()):
        connection.execute(text("CREATE KIND"))

@event_handling("catalog", types=["*"])
def handle(event: Event, connection: Connection) -> None:
    for table in WRITTEN:
        connection.execute(text(f"INSERT INTO {table} VALUES (1)"))
"""
AS_TABLE = BECOMES.replace("KIND", "TABLE totals (n INTEGER)").replace("WRITTEN", "('loan', 'totals')")
AS_VIEW = BECOMES.replace("KIND", "VIEW totals AS SELECT n FROM loan").replace("WRITTEN", "('loan',)")


@pytest.mark.release(kind="postgresql")  # as on SQLite
@pytest.mark.parametrize(
    "kinds",
    [(AS_TABLE, AS_VIEW), pytest.param((AS_VIEW, AS_TABLE), marks=pytest.mark.release)],
    ids=["a view", "a table"],
)
def test_a_table_that_becomes_a_view_can_be_undone_or_is_refused(
    empty: World, make_module: Callable[[str], ModuleType], kinds: tuple[str, str]
) -> None:
    empty.module = make_module(kinds[0])
    empty.add(20)
    empty.run()
    empty.send("DELETE FROM loan", *(["DELETE FROM totals"] if kinds[0] is AS_TABLE else []))
    empty.module = make_module(kinds[1])
    asked = "SELECT count(*) FROM totals"
    with empty.application() as application:
        if empty.kind == "mariadb":
            with pytest.raises(
                RebuildError, match=r"OCQ-630.*totals is a (table|view) and would become a (view|table)"
            ):
                application.rebuilds.rebuild("catalog")
        else:
            application.rebuilds.rebuild("catalog")
            assert empty.send(asked) == [(20,)]
            application.rebuilds.undo("catalog")
    assert empty.send(asked) == [(0,)]


KEYS = (
    "CREATE TABLE IF NOT EXISTS book (isbn VARCHAR(20) PRIMARY KEY, n INTEGER UNIQUE);"
    "CREATE TABLE IF NOT EXISTS loan (position INTEGER PRIMARY KEY, isbn VARCHAR(20) NOT NULL, "
    "CONSTRAINT of_book FOREIGN KEY (isbn) REFERENCES book (isbn))"
)
KEYED = {
    "sqlite": "INSERT OR IGNORE INTO book (isbn) VALUES (:subject)",
    "postgresql": "INSERT INTO book (isbn) VALUES (:subject) ON CONFLICT DO NOTHING",
    "mariadb": "INSERT IGNORE INTO book (isbn) VALUES (:subject)",
}


@pytest.mark.release(kind=("sqlite", "postgresql"))  # where no table changes its name
def test_foreign_keys_between_tables_of_the_group_are_kept(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    world = of(empty, make_module, KEYS, f"{KEYED[empty.kind]};INSERT INTO loan VALUES (:position, :subject)")
    world.send("DELETE FROM loan WHERE position = 3")
    with world.application() as application:
        application.rebuilds.rebuild("catalog")
    assert world.send("SELECT count(*) FROM loan") == [(20,)]
    with pytest.raises(Exception, match=r"(?i)foreign key|of_book"):
        world.send(
            *(["PRAGMA foreign_keys = ON"] if world.kind == "sqlite" else []), "INSERT INTO loan VALUES (99, 'no')"
        )
    with world.application() as application:
        application.rebuilds.undo("catalog")
        application.rebuilds.rebuild("catalog")
        application.rebuilds.drop_old("catalog")
    assert world.send("SELECT count(*) FROM loan") == [(20,)]


COUNTED = {
    "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "postgresql": "serial PRIMARY KEY",
    "mariadb": "INTEGER AUTO_INCREMENT PRIMARY KEY",
}


@ELSEWHERE_ON_SERVERS
def test_tables_of_migrations_are_recreated_with_separate_sequences(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    table = f"CREATE TABLE loan (number {COUNTED[empty.kind]}, position INTEGER NOT NULL UNIQUE)"
    world = of(empty, make_module, "", "INSERT INTO loan (position) VALUES (:position)", table)
    world.send("DELETE FROM loan WHERE position < 5")
    with world.application() as application, pytest.raises(RebuildError, match=r"OCQ-630.*there is no table"):
        application.rebuilds.rebuild("catalog")
    with world.application(**{"event-handling.groups.catalog.rebuild.tables": "loan"}) as application:
        assert application.rebuilds.rebuild("catalog").position == 20
    assert sorted(world.send("SELECT number FROM loan")) == [(n,) for n in range(1, 21)]
    world.add(1, start=20)
    world.run()
    assert world.send("SELECT max(number) FROM loan") == [(21,)]


@pytest.mark.release  # test_rebuilds_on_mariadb.py has one
@pytest.mark.mariadb
@pytest.mark.parametrize("kind", KINDS[2:], indirect=True)
def test_sequences_are_swapped_if_they_have_been_used(empty: World, make_module: Callable[[str], ModuleType]) -> None:
    tables = (
        "CREATE SEQUENCE IF NOT EXISTS numbers;"
        "CREATE SEQUENCE IF NOT EXISTS of_others NOCACHE;"  # closing a table drops its cache
        "CREATE TABLE IF NOT EXISTS loan (number BIGINT, position INTEGER)"
    )
    world = of(empty, make_module, tables, "INSERT INTO loan VALUES (NEXT VALUE FOR numbers, :position)")
    world.send("SELECT NEXT VALUE FOR of_others")
    with world.application() as application:
        known = {one.name: one.fate for one in application.rebuilds.rebuild("catalog").tables}
    assert known == {"loan": Fate.SWAPPED, "numbers": Fate.SWAPPED, "of_others": Fate.LEFT}
    assert world.send("SELECT min(number), max(number) FROM loan") == [(1, 20)]
    assert world.send("SELECT NEXT VALUE FOR of_others") == [(2,)]


@pytest.mark.few
@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize(
    "columns",
    [
        "(position INTEGER, rowid TEXT)",
        "(position INTEGER, twice INTEGER AS (2 * position))",
        "(position INTEGER UNIQUE, twice INTEGER AS (2 * position))",
        "(position INTEGER PRIMARY KEY, twice INTEGER AS (2 * position))",
        "(position INTEGER UNIQUE)",
    ],
)
def test_rows_keep_their_row_ids_on_sqlite(
    empty: World, make_module: Callable[[str], ModuleType], columns: str
) -> None:
    tables = f"CREATE TABLE IF NOT EXISTS lent {columns};CREATE TABLE IF NOT EXISTS fines (lent INTEGER, n INTEGER)"
    insert = "INSERT INTO lent (position) VALUES (:position)"
    note = "INSERT INTO fines SELECT max(_rowid_), :position FROM lent"
    empty.settings["event-handling.groups.catalog.life-cycle.partitions"] = 1
    world = of(
        empty, make_module, tables, f"{insert};{note};DELETE FROM lent WHERE position % 3 = 0 AND position < :position"
    )
    known = "SELECT position, n FROM lent JOIN fines ON fines.lent = lent._rowid_ ORDER BY n"
    found = world.send(known)
    assert found
    with world.application() as application:
        for change in (application.rebuilds.rebuild, application.rebuilds.undo):
            change("catalog")
            assert world.send(known) == found


@pytest.mark.parametrize("kind", ["sqlite"])
def test_a_table_without_row_ids_is_copied_with_its_generated_columns(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    columns = "(position INTEGER PRIMARY KEY, twice INTEGER AS (2 * position)) WITHOUT ROWID"
    insert = "INSERT INTO lent (position) VALUES (:position)"
    world = of(empty, make_module, f"CREATE TABLE IF NOT EXISTS lent {columns}", insert)
    with world.application() as application:
        application.rebuilds.rebuild("catalog")
    assert world.send("SELECT * FROM lent") == [(n, 2 * n) for n in range(1, 21)]


@pytest.mark.release(kind="mariadb")  # test_rebuilds_on_mariadb.py has one
def test_shared_tables_are_read_live_and_cannot_be_written(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    tables = "CREATE TABLE IF NOT EXISTS lent (position INTEGER, price INTEGER)"
    reading = "INSERT INTO lent SELECT :position, price FROM price"
    world = of(
        empty, make_module, tables, reading, "CREATE TABLE price (price INTEGER)", "INSERT INTO price VALUES (3)"
    )
    with world.application() as application, pytest.raises(RebuildError, match=r"OCQ-635.*price"):
        application.rebuilds.rebuild("catalog")
    with world.application() as application:
        application.rebuilds.abort("catalog")
    world.send("UPDATE price SET price = 4")
    with world.application(**{"event-handling.groups.catalog.rebuild.shared-tables": "price"}) as application:
        result = application.rebuilds.rebuild("catalog")
    assert {one.name: one.fate for one in result.tables} == {"lent": Fate.SWAPPED, "price": Fate.SHARED}
    assert world.send("SELECT DISTINCT price FROM lent") == [(4,)]
    assert world.send("SELECT * FROM price") == [(4,)]


@pytest.mark.release(asked=("1", "id"))
@pytest.mark.parametrize("asked", ["count(*)", "1", "id"])
@pytest.mark.release(kind=("postgresql", "mariadb"))  # where the shared table hides the other one
def test_a_shared_table_that_on_start_creates_too_is_read_live_whatever_is_asked_of_it(
    empty: World, make_module: Callable[[str], ModuleType], asked: str
) -> None:
    tables = "CREATE TABLE IF NOT EXISTS lent (position INTEGER);CREATE TABLE IF NOT EXISTS reader (id INTEGER)"
    reading = f"INSERT INTO lent SELECT :position WHERE (SELECT {asked} FROM reader) = 1"
    world = of(empty, make_module, tables, reading)
    world.send("INSERT INTO reader VALUES (1)")
    with world.application(**{"event-handling.groups.catalog.rebuild.shared-tables": "reader"}) as application:
        result = application.rebuilds.rebuild("catalog")
    assert sorted((one.name, one.fate) for one in result.tables) == [("lent", Fate.SWAPPED), ("reader", Fate.SHARED)]
    assert world.send("SELECT count(*) FROM lent") == [(20,)]
    assert world.send("SELECT id FROM reader") == [(1,)]


@ELSEWHERE_ON_SERVERS
def test_a_table_is_either_rebuilt_or_shared(world: World) -> None:
    twice = {f"event-handling.groups.catalog.rebuild.{each}": "lent" for each in ("tables", "shared-tables")}
    with (
        world.application(**twice) as application,
        pytest.raises(RebuildError, match=r"lent is in rebuild\.tables and"),
    ):
        application.rebuilds.rebuild("catalog")


@ELSEWHERE_ON_SERVERS
def test_a_write_to_a_shared_table_fails_the_rebuild(empty: World, make_module: Callable[[str], ModuleType]) -> None:
    tables = "CREATE TABLE IF NOT EXISTS lent (position INTEGER)"
    writing = "INSERT INTO lent VALUES (:position);UPDATE price SET price = price + 1"
    world = of(
        empty, make_module, tables, writing, "CREATE TABLE price (price INTEGER)", "INSERT INTO price VALUES (3)"
    )
    assert world.send("SELECT * FROM price") == [(23,)]
    shared = {
        "event-handling.groups.catalog.rebuild.shared-tables": "price",
        "event-handling.groups.catalog.retry.policy": "none",
        "event-handling.groups.catalog.retry.on-exhausted": "stop",
    }
    with world.application(**shared) as application, pytest.raises(RebuildError, match=r"OCQ-635"):
        application.rebuilds.rebuild("catalog")
    assert world.send("SELECT * FROM price") == [(23,)]


@pytest.mark.release(kind="mariadb")  # test_shadow_guards.py has them all
def test_a_write_outside_the_shadow_by_a_qualified_name_fails_the_rebuild(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    if empty.kind == "sqlite":
        pytest.skip("the only other file is that of the shared tables, which is above")
    live = "public" if empty.kind == "postgresql" else Database(empty.url).url.database
    tables = "CREATE TABLE IF NOT EXISTS lent (position INTEGER)"
    writing = f"INSERT INTO lent VALUES (:position);INSERT INTO {live}.notes VALUES (:position)"
    world = of(empty, make_module, tables, writing, "CREATE TABLE notes (position INTEGER)")
    with world.application() as application, pytest.raises(RebuildError, match=r"OCQ-635.*OCQ-634.*outside") as raised:
        application.rebuilds.rebuild("catalog")
    assert "rebuild.tables" in str(raised.value)
    assert world.send("SELECT count(*) FROM notes") == [(20,)]


# ------------------------------------------------------------------------------------------------ refusals

OBSTACLES = {
    "postgresql": {
        "the view report would keep using the old table lent": "CREATE VIEW report AS SELECT isbn FROM lent",
        "constraint reader_isbn_fkey on table reader": "CREATE TABLE reader (isbn VARCHAR(20) REFERENCES lent (isbn))",
        "lent has row level security": "ALTER TABLE lent ENABLE ROW LEVEL SECURITY",
        "lent has a rule": "CREATE RULE never AS ON DELETE TO lent DO INSTEAD NOTHING",
    },
    "mariadb": {
        "lent has the trigger counted": "CREATE TRIGGER counted BEFORE INSERT ON lent FOR EACH ROW SET NEW.n = 1",
        "which is not swapped|one of which is not swapped": (
            "CREATE TABLE reader (isbn VARCHAR(20), FOREIGN KEY (isbn) REFERENCES lent (isbn))"
        ),
    },
}


@pytest.mark.release(kind="postgresql")  # test_rebuilds_beside_others.py has some
@pytest.mark.parametrize("kind", KINDS[1:], indirect=True)
def test_a_relation_that_cannot_be_swapped_is_refused_before_any_event_is_handled(world: World) -> None:
    for said, statement in OBSTACLES[world.kind].items():
        world.send(statement)
        with world.application() as application:
            with pytest.raises(RebuildError, match=f"OCQ-630.*({said})"):
                application.rebuilds.rebuild("catalog")
            assert any("lent" in reason for reason in application.rebuilds.plan("catalog").refusals)
        assert not world.is_there("shadow")
        world.send(
            {
                "CREATE VIEW report": "DROP VIEW report",
                "CREATE TABLE reader": "DROP TABLE reader",
                "ALTER TABLE lent": "ALTER TABLE lent DISABLE ROW LEVEL SECURITY",
                "CREATE RULE never": "DROP RULE never ON lent",
                "CREATE TRIGGER counted": "DROP TRIGGER counted",
            }[" ".join(statement.split()[:3])]
        )
    assert world.lent()["/books/3"] == 99


@ELSEWHERE_ON_SERVERS
def test_a_table_named_like_those_of_the_package_is_refused(
    empty: World, make_module: Callable[[str], ModuleType]
) -> None:
    tables = "CREATE TABLE IF NOT EXISTS opencqrs_demo (position INTEGER);CREATE TABLE IF NOT EXISTS lent (n INTEGER)"
    world = of(empty, make_module, tables, "INSERT INTO opencqrs_demo VALUES (:position)")
    with world.application() as application:
        refused = "opencqrs_demo has the prefix of this package's tables"
        assert application.rebuilds.plan("catalog").refusals == (refused,)
        with pytest.raises(RebuildError, match=f"OCQ-630.*{refused}"):
            application.rebuilds.rebuild("catalog")
    assert not world.is_there("shadow")


@ELSEWHERE_ON_SERVERS
def test_an_index_added_by_hand_is_warned_of_before_it_is_lost(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.send("CREATE INDEX by_number ON lent (n)", "CREATE UNIQUE INDEX other ON lent (n, isbn)")
    with world.application() as application:
        application.rebuilds.plan("catalog")
    assert "the new tables lack index by_number of lent, index other of lent: let @on_start" in caplog.text
    world.send("DROP INDEX by_number" + " ON lent" * (world.kind == "mariadb"))
    world.send("DROP INDEX other" + " ON lent" * (world.kind == "mariadb"))
    caplog.clear()
    with world.application() as application:
        application.rebuilds.rebuild("catalog")
    assert "new tables lack" not in caplog.text


@pytest.mark.release(kind=("sqlite", "postgresql"))  # as on MariaDB
def test_columns_and_checks_added_by_hand_are_warned_of_before_they_are_lost(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    check = "" if world.kind == "sqlite" else "check few of lent, "
    world.send("ALTER TABLE lent ADD COLUMN note VARCHAR(20)")
    if check:
        world.send("ALTER TABLE lent ADD CONSTRAINT few CHECK (n < 1000)")
    with world.application() as application:
        application.rebuilds.plan("catalog")
    assert f"the new tables lack {check}column note of lent: let @on_start" in caplog.text


@pytest.mark.release  # as those that the new ones lack
@ELSEWHERE_ON_SERVERS
def test_objects_missing_from_the_old_tables_are_warned_of_before_an_undo(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    check = "" if world.kind == "sqlite" else "check few of lent, "
    with world.application() as application:
        application.rebuilds.rebuild("catalog")
    world.send("CREATE UNIQUE INDEX other ON lent (n, isbn)", "ALTER TABLE lent ADD COLUMN note VARCHAR(20)")
    if check:
        world.send("ALTER TABLE lent ADD CONSTRAINT few CHECK (n < 1000)")
    with world.application() as application:
        application.rebuilds.undo("catalog")
    assert f"group catalog: the old tables lack {check}column note of lent, index other of lent" in caplog.text


@pytest.mark.release  # what a log says
@ELSEWHERE_ON_SERVERS
def test_a_table_that_did_not_exist_before_the_swap_is_not_warned_of(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.send("DROP TABLE lent")
    with world.application() as application:
        application.rebuilds.rebuild("catalog")
        if world.kind != "mariadb":
            make_noted(world)
        application.rebuilds.undo("catalog")
    assert "old tables lack" not in caplog.text
    assert "old tables come back without" not in caplog.text


def make_noted(world: World) -> None:
    """Make a trigger by hand."""
    does = "BEGIN SELECT 1; END"
    if world.kind == "postgresql":
        world.send("CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'")
        does = "FOR EACH ROW EXECUTE FUNCTION note()"
    world.send(f"CREATE TRIGGER noted AFTER INSERT ON lent {does}")


NOTED = "the new tables are filled without trigger noted of lent, which only the swap adds: let @on_start make it"


@pytest.mark.release  # the next test has one
@ELSEWHERE_ON_SERVERS
@pytest.mark.parametrize("kind", KINDS[:2], indirect=True)
def test_triggers_of_live_tables_only_are_warned_of_since_they_do_not_fire_in_a_rebuild(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    make_noted(world)
    with world.application() as application:
        application.rebuilds.plan("catalog")
    assert f"group catalog: {NOTED}" in caplog.text
    caplog.clear()
    with world.application(**{"event-handling.groups.catalog.rebuild.tables": "lent"}) as application:
        application.rebuilds.plan("catalog")  # whose tables have it
    assert "trigger noted" not in caplog.text


@pytest.mark.release(state=("DISABLE", "ENABLE REPLICA"))
@pytest.mark.postgresql
@pytest.mark.parametrize("kind", KINDS[1:2], indirect=True)
@pytest.mark.parametrize(("state", "warned"), [("DISABLE", False), ("ENABLE REPLICA", False), ("ENABLE ALWAYS", True)])
def test_only_triggers_that_fire_on_the_live_tables_are_warned_of(
    world: World, caplog: pytest.LogCaptureFixture, state: str, *, warned: bool
) -> None:
    world.send(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
        "CREATE TRIGGER noted AFTER INSERT ON lent FOR EACH ROW EXECUTE FUNCTION note()",
        f"ALTER TABLE lent {state} TRIGGER noted",
    )
    with world.application() as application:
        application.rebuilds.plan("catalog")
    assert (NOTED in caplog.text) is warned


COUNTS = """
from opencqrs_py import Event, event_handling, on_start
from sqlalchemy import Connection, text

@on_start("catalog")
def tables(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS loan (position INTEGER PRIMARY KEY)"))
    connection.execute(text("CREATE TABLE IF NOT EXISTS total (n INTEGER NOT NULL)"))
    connection.execute(text("INSERT INTO total SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM total)"))
    for statement in MADE:
        connection.execute(text(statement))

@event_handling("catalog", types=["*"])
def handle(event: Event, connection: Connection) -> None:
    connection.execute(text("INSERT INTO loan VALUES (:position)"), {"position": event.position})
    for statement in CALLED:
        connection.execute(text(statement))
"""
COUNT = "UPDATE total SET n = n + 1"
MAKE_COUNTED = {
    "sqlite": [f"CREATE TRIGGER IF NOT EXISTS counted AFTER INSERT ON loan BEGIN {COUNT}; END"],
    "postgresql": [
        f"CREATE OR REPLACE FUNCTION count_loan() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {COUNT}; RETURN NEW; END'",
        "DROP TRIGGER IF EXISTS counted ON loan",
        "CREATE TRIGGER counted AFTER INSERT ON loan FOR EACH ROW EXECUTE FUNCTION count_loan()",
    ],
}


@ELSEWHERE_ON_SERVERS
@pytest.mark.parametrize("kind", KINDS[:2], indirect=True)
def test_undo_restores_tables_without_triggers_of_the_new_ones(
    empty: World, make_module: Callable[[str], ModuleType], caplog: pytest.LogCaptureFixture
) -> None:
    made = MAKE_COUNTED[empty.kind]
    before, after = (
        make_module(COUNTS.replace("MADE", repr(made)).replace("CALLED", repr(called)))
        for made, called in (([], [COUNT]), (made, []))
    )
    empty.module = before
    empty.add(3)
    empty.run()
    empty.module = after
    with empty.application() as application:
        application.rebuilds.rebuild("catalog")
        assert empty.send("SELECT n FROM total") == [(3,)]
        empty.send(made[-1].replace("counted", "by_hand"))
        application.rebuilds.undo("catalog")
    said = "group catalog: the old tables come back without trigger by_hand of loan, trigger counted of loan, which"
    assert said in caplog.text
    empty.module = before
    empty.add(2, start=3)
    empty.run()
    assert empty.send("SELECT n FROM total") == [(5,)]
    assert not empty.is_there("shadow")


@NOT_IN_SQL
def test_progress_in_memory_is_refused(world: World) -> None:
    settings = {"event-handling.standard.progress.tracking": "in_memory"}
    said = r"OCQ-630.*progress is not in the database of its tables"
    with world.application(**settings) as application, pytest.raises(RebuildError, match=said):
        application.rebuilds.rebuild("catalog")


@pytest.mark.parametrize("kind", KINDS[:1], indirect=True)
def test_a_scheduled_group_is_refused(world: World) -> None:
    scheduled = {"event-handling.groups.catalog.processing.mode": "scheduled"}
    with world.application(**scheduled) as application:
        for call in (application.rebuilds.rebuild, application.rebuilds.compare, application.rebuilds.plan):
            with pytest.raises(RebuildError, match=r"(?s)OCQ-630.*'catalog' is scheduled.*groups reset catalog"):
                call("catalog")
    assert not world.is_there("shadow")
    assert world.lent()["/books/3"] == 99


@NOT_IN_SQL
def test_an_unknown_table_name_in_the_settings_is_refused(world: World) -> None:
    settings = {"event-handling.groups.catalog.rebuild.shared-tables": "prices"}
    said = r"OCQ-630.*there is no table prices"
    with world.application(**settings) as application, pytest.raises(RebuildError, match=said):
        application.rebuilds.rebuild("catalog")


# ------------------------------------------------------------------------------------------------ PostgreSQL alone


@pytest.mark.postgresql
@pytest.mark.parametrize("kind", KINDS[1:2], indirect=True)
def test_owners_grants_triggers_and_publications_move_to_the_new_tables(world: World) -> None:
    world.send(
        "DROP ROLE IF EXISTS reading_role",
        "CREATE ROLE reading_role",
        "GRANT SELECT, UPDATE (n) ON lent TO reading_role",
        "GRANT SELECT ON lent TO PUBLIC",
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
        "CREATE TRIGGER noted AFTER INSERT ON lent FOR EACH ROW WHEN (NEW.isbn LIKE '/b%') EXECUTE FUNCTION note()",
        "CREATE PUBLICATION loans FOR TABLE lent",
        "ALTER TABLE lent REPLICA IDENTITY FULL",
    )
    asked = (
        "SELECT has_table_privilege('reading_role', 'lent', 'SELECT'), "
        "has_column_privilege('reading_role', 'lent', 'n', 'UPDATE'), "
        "has_column_privilege('reading_role', 'lent', 'isbn', 'UPDATE'), "
        "(SELECT array_agg(tgname::text) FROM pg_trigger WHERE tgrelid = 'lent'::regclass), "
        "(SELECT array_agg(schemaname || '.' || tablename) FROM pg_publication_tables WHERE pubname = 'loans'), "
        "(SELECT relreplident::text FROM pg_class WHERE oid = 'lent'::regclass)"
    )
    before = world.send(asked)
    assert before == [(True, True, False, ["noted"], ["public.lent"], "f")]
    with world.application() as application:
        application.rebuilds.rebuild("catalog")
    assert world.send(asked) == before
    assert world.lent()["/books/3"] == RIGHT
    with world.application() as application:
        application.rebuilds.undo("catalog")
    assert world.send(asked) == before
    world.send("DROP PUBLICATION loans", "REVOKE ALL ON lent FROM reading_role", "DROP ROLE reading_role")


@pytest.mark.postgresql
@pytest.mark.parametrize("kind", KINDS[1:2], indirect=True)
def test_a_swap_that_cannot_get_its_locks_times_out_and_can_be_repeated(world: World) -> None:
    database = Database(world.url)
    with database.writing() as connection:
        connection.execute(text("SELECT * FROM lent")).all()
        with world.application() as application, pytest.raises(Exception, match=r"OCQ-536.*could not be swapped"):
            application.rebuilds.rebuild("catalog", timeout=0.5)
        assert world.lent()["/books/3"] == 99
    database.close()
    with world.application() as application:
        assert application.rebuilds.rebuild("catalog").position == 98
    assert world.lent()["/books/3"] == RIGHT


TYPED = """
from opencqrs_py import Event, event_handling, on_start
from sqlalchemy import Column, Connection, Enum, Integer, MetaData, Table

metadata = MetaData()
lent = Table("lent", metadata, Column("position", Integer), Column("state", Enum("lent", "back", name="state")))

@on_start("catalog")
def tables(connection: Connection) -> None:
    metadata.create_all(connection)

@event_handling("catalog", types=["*"])
def lend(event: Event, connection: Connection) -> None:
    connection.execute(lent.insert().values(position=event.position, state="lent"))
"""


@pytest.mark.release  # test_rebuilds_on_postgresql.py has types
@pytest.mark.postgresql
@pytest.mark.parametrize("kind", KINDS[1:2], indirect=True)
def test_types_of_the_group_are_swapped_with_its_tables(empty: World, make_module: Callable[[str], ModuleType]) -> None:
    empty.module = make_module(TYPED)
    empty.add(20)
    empty.run()
    of_column = (
        "SELECT atttypid::regtype::text FROM pg_attribute WHERE attrelid = 'lent'::regclass AND attname = 'state'"
    )
    with empty.application() as application:
        result = application.rebuilds.rebuild("catalog")
        assert {(one.name, one.kind, one.fate) for one in result.tables} == {
            ("lent", "table", Fate.SWAPPED),
            ("state", "type", Fate.SWAPPED),
        }
        assert empty.send(of_column) == [("state",)]
    empty.add(1, start=20)
    empty.run()
    assert empty.send("SELECT state::text, count(*) FROM lent GROUP BY state") == [("lent", 21)]
    with empty.application() as application:
        application.rebuilds.undo("catalog")
    assert empty.send(of_column) == [("state",)]
    empty.run()
    empty.send("CREATE TABLE other (state state)")
    with (
        empty.application() as application,
        pytest.raises(
            RebuildError, match=r"OCQ-630.*the column state of table other would keep using the old type state"
        ),
    ):
        application.rebuilds.rebuild("catalog")


# ------------------------------------------------------------------------------------------------ crashes in the swap

CRASHES = {
    "sqlite": ["_keep", "_record_undo", "_record_swap"],
    "postgresql": ["_lock", "_record_swap"],
    "mariadb": ["_rename", "_follow", "_record_swap"],
}


class KilledError(BaseException):
    """The end of the process."""


@pytest.mark.release(point=(0, 2))
@pytest.mark.release(kind="postgresql")  # which swaps in one transaction
@pytest.mark.parametrize("point", [0, 1, 2])
def test_a_swap_interrupted_by_the_end_of_its_process_is_completed_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch, point: int
) -> None:
    places = [each for each in CRASHES[world.kind] if each != "_record_undo"]
    if point >= len(places):
        pytest.skip("there are fewer places")

    def end(*_: Any, **__: Any) -> None:
        raise KilledError

    with world.application() as application:
        rebuilds = application.rebuilds
        with monkeypatch.context() as patch:
            patch.setattr(type(rebuilds._shadows("catalog")), places[point], end)
            with pytest.raises(KilledError):
                rebuilds.rebuild("catalog")
    if world.kind == "mariadb" and places[point] != "_rename":
        assert world.send("SELECT phase FROM opencqrs_rebuilds") == [("swapping",)]
        world.run()  # which completes it
        assert world.send("SELECT phase FROM opencqrs_rebuilds") == [("swapped",)]
    else:
        assert world.lent()["/books/3"] == 99
        world.run()
        with world.application() as application:
            application.rebuilds.rebuild("catalog")
    assert world.lent() == {f"/books/{n}": RIGHT for n in range(7)}
    assert world.positions() == {98}
    world.add(7, start=98)
    world.run()
    assert world.lent() == {f"/books/{n}": RIGHT + 1 for n in range(7)}


@pytest.mark.release(place=("_rename", "_record_undo"))
@pytest.mark.mariadb
@pytest.mark.parametrize("kind", KINDS[2:], indirect=True)
@pytest.mark.parametrize("place", ["_rename", "_follow_back", "_record_undo"])
def test_an_undo_interrupted_by_the_end_of_its_process_is_completed_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def end(*_: Any, **__: Any) -> None:
        raise KilledError

    with world.application() as application:
        rebuilds = application.rebuilds
        rebuilds.rebuild("catalog")
        with monkeypatch.context() as patch:
            patch.setattr(type(rebuilds._shadows("catalog")), place, end)
            with pytest.raises(KilledError):
                rebuilds.undo("catalog")
    world.run()
    if place == "_rename":  # nothing was moved yet
        with world.application() as application:
            application.rebuilds.undo("catalog")
    assert world.lent()["/books/3"] == 99
    assert world.positions() == {98}


def begin_rebuild_elsewhere(world: World, make_module: Callable[[str], ModuleType]) -> None:
    """Give the world other handlers, and have these begin a rebuild."""
    world.module = make_module(HANDLERS.replace("VALUES (:isbn, 1)", "VALUES (:isbn, 1001)"))
    with world.application() as application:
        application.rebuilds.compare("catalog")


@ELSEWHERE_ON_SERVERS
def test_a_run_until_caught_up_fails_if_a_group_is_waiting_for_its_rebuild(
    world: World, make_module: Callable[[str], ModuleType]
) -> None:
    begin_rebuild_elsewhere(world, make_module)
    world.add(7, start=98)
    with world.application() as application:
        result = application.run(until_caught_up=True)
    errors = {status.partition: status.error for status in result.partitions if status.group == "catalog"}
    assert result.failed
    assert list(map(str, errors)) == ["0/2", "1/2"]
    assert {error.partition(":")[0] for error in errors.values()} == {
        "[OCQ-632] group 'catalog' waits for its rebuild by these handlers"
    }
    assert not any(status.error for status in result.partitions if status.group == "audit")
    assert world.positions() == {98}
    world.run(**{"event-handling.groups.catalog.rebuild.live": "continue"})
    assert world.positions() == {105}


@NOT_IN_SQL
def test_a_run_until_caught_up_does_not_wait_for_a_group_that_is_stopped_and_barred_by_a_rebuild(
    world: World, make_module: Callable[[str], ModuleType]
) -> None:
    begin_rebuild_elsewhere(world, make_module)
    with world.application() as application:
        application.control.stop("catalog", timeout=None)
    world.add(7, start=98)
    world.run()
    assert world.positions() == {98}


@ELSEWHERE_ON_SERVERS
def test_a_run_until_caught_up_waits_for_the_end_of_a_swap(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.application() as application:
        application.rebuilds.compare("catalog")
    world.add(7, start=98)
    heartbeat = {"event-handling.standard.life-cycle.lease.heartbeat": "100ms"}
    (before,) = world.send("SELECT phase FROM opencqrs_rebuilds")
    world.send("UPDATE opencqrs_rebuilds SET phase = 'swapping'")
    monkeypatch.setattr(Application, "_complete_rebuilds", lambda *_: None)  # of a process that was there before
    with world.application(**heartbeat) as application:
        application.start()
        processors = application._life.processors
        assert processors is not None
        while {partition.cursor.position for partition in processors.partitions()} != {105}:
            assert processors.going_on(until_caught_up=True)  # as long as the other group has something to do
        assert [processors.going_on(until_caught_up=True) for _ in range(3)] == [True, True, True]
        assert not application.control.can_run("catalog")
        world.send(f"UPDATE opencqrs_rebuilds SET phase = '{before[0]}'")
        while processors.going_on(until_caught_up=True):
            time.sleep(0.01)
        assert not processors.result().failed
    assert world.positions() == {105}


@pytest.mark.mariadb
@pytest.mark.parametrize("kind", KINDS[2:], indirect=True)
def test_a_claim_between_the_tables_and_their_progress_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opencqrs_py.adapters.sql import SqlProgressTracker  # noqa: PLC0415
    from opencqrs_py.errors import RebuildUnderWayError  # noqa: PLC0415

    def end(*_: Any, **__: Any) -> None:
        raise KilledError

    with world.application() as application, monkeypatch.context() as patch:
        patch.setattr(MariaDbShadows, "_follow", end)
        with pytest.raises(KilledError):
            application.rebuilds.rebuild("catalog")
    with world.application() as application, monkeypatch.context() as patch:
        patch.setattr(Application, "_complete_rebuilds", lambda *_: None)
        chosen = application._chosen(["catalog"])
        launch = application._launch(verbose=False, until_caught_up=False)
        runs = launch.processors(chosen, [], NO_OBSERVER, None, application.layouts.started)
        (group,) = runs._groups
        from opencqrs_py.engines.recorded_claims import recorded_claim  # noqa: PLC0415

        with pytest.raises(RebuildUnderWayError, match=r"OCQ-633.*being swapped"):
            recorded_claim(group.run, group.run.partitions, "me")
        assert isinstance(group.run.processing.tracker, SqlProgressTracker)


@pytest.mark.release  # the test above shows that it claims nothing
@pytest.mark.parametrize("kind", [KINDS[2]], indirect=True)
def test_a_process_that_pauses_the_group_during_a_mariadb_swap_still_counts_as_running_it(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    heartbeat = {"event-handling.standard.life-cycle.lease.heartbeat": "100ms"}
    with world.application(**heartbeat) as running, world.application() as application:
        running.start(["catalog"])

        def until(*, can_run: bool) -> None:
            end = time.monotonic() + 120
            while running.control.can_run("catalog") is not can_run:
                assert time.monotonic() < end
                time.sleep(0.01)

        def slowly(shadows: MariaDbShadows, follow: Callable[..., int], *args: Any) -> int:
            until(can_run=False)
            return follow(shadows, *args)

        for name in ("_follow", "_follow_back"):
            monkeypatch.setattr(MariaDbShadows, name, partialmethod(slowly, getattr(MariaDbShadows, name)))
        with caplog.at_level("INFO"):
            assert application.rebuilds.rebuild("catalog").running
            until(can_run=True)
            assert application.rebuilds.undo("catalog").running
            until(can_run=True)
    assert caplog.text.count("are being swapped by a rebuild: this process does not run the group; wait a moment") == 2
    assert caplog.text.count("group catalog may be run by this process again") == 2


# ------------------------------------------------------------------------------------------------ Spark


@pytest.mark.spark
@NOT_IN_SQL
@pytest.mark.parametrize("kind", [KINDS[0], KINDS[1]], indirect=True)
def test_on_spark_a_group_is_rebuilt_by_its_tasks(world: World) -> None:
    with world.application(**{"event-handling.standard.processing.engine": "spark"}) as application:
        result = application.rebuilds.rebuild("catalog")
    assert result.position == 98
    assert {one.name: one.fate for one in result.tables} == {"lent": Fate.SWAPPED, "audit": Fate.LEFT}
    assert world.lent() == {f"/books/{n}": RIGHT for n in range(7)}
    world.run()


@pytest.mark.release  # threads keep to the same pace
@pytest.mark.spark
@pytest.mark.parametrize("kind", [KINDS[0]], indirect=True)
def test_on_spark_tasks_read_no_further_than_the_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    paces = Paces(monkeypatch)
    settings = {"event-handling.standard.processing.engine": "spark", "spark.driver-handles": "never", LIMIT: 40}
    with world.application(**settings) as application:
        assert application.rebuilds.rebuild("catalog").position == 98
    assert all(position <= 40 * seconds for seconds, position in paces.seen)
    assert len({position for _, position in paces.seen}) > 2
    assert world.lent() == {f"/books/{n}": RIGHT for n in range(7)}


def test_a_database_url_that_names_a_shadow_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EventStoreError, match=r"OCQ-301.*opencqrs_shadow"):
        Database(f"sqlite:///{tmp_path}/x.db?opencqrs_shadow=no")


@pytest.mark.release  # the next test shows how long it lasts
def test_a_wait_for_a_group_continues_during_the_swap_of_its_tables(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, reached = Signal(), list[int]()
    look = Awaiting._look

    def looking(self: Awaiting, *arguments: Any) -> list[str]:
        try:
            return look(self, *arguments)
        finally:
            looked.set()

    monkeypatch.setattr(Awaiting, "_look", looking)
    with world.application() as application:
        application.rebuilds.rebuild("catalog")
    world.add(1, start=500)
    with world.application() as application:
        waiting = Thread(target=lambda: reached.append(application.await_position("catalog")))
        waiting.start()
        assert looked.wait(60)  # while no process runs it
        world.run()
        waiting.join(60)
    assert reached


@ELSEWHERE_ON_SERVERS
def test_a_group_that_no_process_runs_for_long_after_a_swap_ends_the_wait(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(awaiting, "_SWAP_SECONDS", 0.0)
    with world.application() as application:
        application.rebuilds.rebuild("catalog")
    world.add(1, start=500)
    with world.application() as application, pytest.raises(NotReachedError, match="no process runs it"):
        application.await_position("catalog")
