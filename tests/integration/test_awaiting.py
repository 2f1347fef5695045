"""Waiting for the groups of an application that runs in this process, on both engines."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from shutil import copyfile
from threading import Event as Signal
from types import ModuleType
from typing import Any

import pytest
from support.engines import ENGINES
from support.relay import relayed
from support.sqlite import rows_of

from opencqrs_py import Application
from opencqrs_py.assembly import awaiting
from opencqrs_py.assembly.awaiting import Awaiting
from opencqrs_py.assembly.overview import Overview
from opencqrs_py.errors import NotReachedError
from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.testing import caught_up

LEASE = {"duration": 1500, "heartbeat": 300}
HANDLERS = """
from opencqrs_py import Event, NonTransientError, event_handling, on_start
from sqlalchemy import Connection, text

@on_start("seen")
def table(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY)"))

@event_handling("seen", types=["t"])
def see(event: Event, connection: Connection) -> None:
    connection.execute(text("INSERT INTO seen VALUES (:id)"), {"id": event.id})

@event_handling("fragile", types=["*"])
def break_(event: Event) -> None:
    if event.type == "bad":
        raise NonTransientError("no paper")
"""


@pytest.fixture
def handlers(make_module) -> ModuleType:
    return make_module(HANDLERS)


def settings(engine: str) -> dict[str, object]:
    standard = "event-handling.standard"
    return {f"{standard}.processing.engine": engine, f"{standard}.life-cycle.partitions": 3}


def until(condition: Callable[[], bool], patience: float = 120.0) -> None:
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        Signal().wait(0.02)


def add(application: Application, *ids: str, kind: str = "t") -> None:
    lines = (
        f'{{"id": "{each}", "source": "s", "type": "{kind}", "subject": "/x/{each}", "data": {{}}}}' for each in ids
    )
    application.event_store.append(map(parse_event, lines))


@pytest.mark.parametrize("engine", ENGINES)
def test_after_the_wait_the_read_model_has_the_event(tmp_path, handlers, engine):
    with Application(settings(engine), [handlers], tmp_path) as application:
        application.start()
        assert caught_up(application) == 0
        for number in range(1, 4):
            add(application, f"e-{number}")
            assert application.await_position("seen", f"e-{number}", source="s") == number
            assert rows_of(tmp_path / "opencqrs.db", "SELECT count(*) FROM seen") == [(number,)]
        assert caught_up(application, "seen", "fragile") == 3


@pytest.mark.release(engine="spark")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_group_that_fails_ends_the_wait_with_its_reason(tmp_path, handlers, engine):
    with Application(settings(engine), [handlers], tmp_path) as application:
        application.start()
        add(application, "1", kind="bad")
        with pytest.raises(NotReachedError, match=r"group 'fragile' .* it has failed at event 1 .*no paper"):
            caught_up(application)
        assert application.await_position("seen") == 1


def test_groups_to_wait_for_are_given_by_their_names(tmp_path, handlers):
    application = Application(settings("thread"), [handlers], tmp_path)
    with pytest.raises(TypeError, match=r'caught_up takes names of groups, such as .*"books"\), got \[.seen.\]'):
        caught_up(application, ["seen"])


def test_a_group_that_was_not_started_ends_the_wait(tmp_path, handlers):
    with Application(settings("thread"), [handlers], tmp_path) as application:
        with pytest.raises(NotReachedError, match="no process runs it"):
            caught_up(application)
        application.start(["seen"])
        assert caught_up(application, "seen") == 0
        with pytest.raises(NotReachedError, match="group 'fragile'"):
            caught_up(application)


def test_a_wait_fails_if_the_log_was_restored_since(tmp_path, handlers):
    log, backup = tmp_path / "events.db", tmp_path / "backup.db"
    apart = settings("thread") | {"event-store.url": f"sqlite:///{log}", "database.url": "sqlite:///read.db"}
    with Application(apart, [handlers], tmp_path) as application:
        add(application, "1")
    copyfile(log, backup)
    with Application(apart, [handlers], tmp_path) as application:
        add(application, "2", "3")
        application.run(until_caught_up=True)
    log.unlink()
    copyfile(backup, log)
    with Application(apart, [handlers], tmp_path) as application:
        add(application, "new")
        waits = (
            lambda: caught_up(application, "seen"),
            lambda: application.await_position("seen", "new"),
            lambda: application.await_position("seen", 3),
        )
        for wait in waits:
            with pytest.raises(NotReachedError, match=r"OCQ-542.* partition 0/3: it has failed: \[OCQ-316\] the event"):
                wait()
        findings = [finding for group in application.health(["seen"]).groups for finding in group.findings]
        assert {(each.problem, each.fix.partition(";")[0]) for each in findings} == {
            ("failed", "fix its cause, then start opencqrs run")
        }


@pytest.mark.postgresql
def test_a_wait_survives_an_outage_in_which_the_leases_of_its_process_end(tmp_path, handlers, fresh_url, monkeypatch):
    url, looking, unowned, look = fresh_url("postgresql"), Signal(), Signal(), Awaiting._look

    def noted_look(*given: Any) -> list[str]:
        looking.set()
        try:
            return look(*given)
        except NotReachedError:
            unowned.set()
            raise

    monkeypatch.setattr(Awaiting, "_look", noted_look)
    monkeypatch.setattr(awaiting, "_REJOIN_SECONDS", 120.0)
    lease = {f"event-handling.standard.life-cycle.lease.{key}": f"{ms}ms" for key, ms in LEASE.items()}

    def made(url: str) -> Application:
        return Application(settings("thread") | lease | {"event-store.url": url}, [handlers], tmp_path)

    def wait_until_it_is(state: str) -> None:
        until(lambda: [each.state for each in looks.health(["seen"]).groups] == [state])

    with (
        relayed(url) as (relay, through),
        relayed(url) as (other_relay, through_other),
        made(through) as runs,
        made(through_other) as waits,
        made(url) as looks,
    ):
        runs.start()
        wait_until_it_is("running")
        with ThreadPoolExecutor(1) as threads:
            waited = threads.submit(waits.await_position, "seen", 1, 120)
            assert looking.wait(120)
            relay.stop()
            other_relay.stop()
            wait_until_it_is("unowned")
            assert "its lease has ended: its process has ended, or cannot" in looks.health(["seen"]).lines()[0]
            other_relay.start()
            assert unowned.wait(120)
            relay.start()
            add(looks, "1")
            assert waited.result(120) == 1


def test_progress_in_memory_can_be_awaited_in_the_process_that_runs_the_group(tmp_path, handlers):
    in_memory = settings("thread") | {"event-handling.standard.progress.tracking": "in_memory"}
    with Application(in_memory, [handlers], tmp_path) as application:
        add(application, "1")
        with pytest.raises(NotReachedError, match="its progress is in the memory of the process that runs it"):
            application.await_position("seen")
        application.start()
        assert caught_up(application) == 1


MAILS = """
from opencqrs_py import Event, event_handling

@event_handling("mails", types=["t"])
def mail(event: Event) -> None:
    raise ConnectionError("no mail server")

@event_handling("other", types=["*"])
def other(event: Event) -> None: ...
"""
FAILED_ONCE = r"after 1 attempt: ConnectionError: no mail server$"
UNHANDLED = [
    ({"retry.policy": "none"}, rf"was skipped {FAILED_ONCE}"),
    ({"retry.policy": "none", "retry.on-exhausted": "park"}, rf"waits in the inbox \(retrying\) {FAILED_ONCE}"),
    ({"processing.mode": "scheduled", "schedule.cron": "0 0 1 1 *"}, r"waits in the inbox \(pending\)$"),
]
TRACKED = [("thread", "sql"), pytest.param("spark", "sql", marks=pytest.mark.spark), ("thread", "in_memory")]


@pytest.mark.release(engine="spark")
@pytest.mark.parametrize(("engine", "tracking"), TRACKED)
@pytest.mark.parametrize(("group", "why"), UNHANDLED, ids=["skip", "park", "schedule"])
def test_an_event_that_was_not_handled_fails_the_wait(tmp_path, make_module, engine, tracking, group, why):
    own = {f"event-handling.groups.mails.{key}": value for key, value in group.items()}
    chosen = settings(engine) | own | {"event-handling.standard.progress.tracking": tracking}
    with Application(chosen, [make_module(MAILS)], tmp_path) as application:
        application.start()
        add(application, "1")
        with pytest.raises(AssertionError, match=rf"(?s)^caught up to position 1,.*\n  \[mails\] event 1 at.* {why}"):
            caught_up(application)
        with pytest.raises(AssertionError, match=why):
            caught_up(application, "Mails")
        assert caught_up(application, "other") == 1
        assert caught_up(application, allow_unhandled=True) == 1


def test_events_skipped_by_earlier_runs_fail_the_wait_too(tmp_path, make_module):
    handlers = make_module(MAILS)
    chosen = settings("thread") | {"event-handling.standard.retry.policy": "none"}
    with Application(chosen, [handlers], tmp_path) as application:
        add(application, *map(str, range(12)))
        application.run(until_caught_up=True)
    with Application(chosen, [handlers], tmp_path) as application:
        application.start()
        with pytest.raises(AssertionError, match=r"\n  \[mails\] event 0 at(.*\n){10}  and 2 more$"):
            caught_up(application)


SLOW = """
from opencqrs_py import event_handling

MAY_END = []

@event_handling("seen", types=["t"])
def see(event: dict) -> None:
    MAY_END[0].wait()
"""


@pytest.mark.parametrize("tracking", ["in_memory", "sql"])
def test_a_group_started_by_name_is_awaited_while_its_handler_works(tmp_path, make_module, monkeypatch, tracking):
    handlers, looked = make_module(SLOW), Signal()
    handlers.MAY_END.append(looked)
    standings = Overview.standings

    def look(*given, **named):
        try:
            return standings(*given, **named)
        finally:
            looked.set()

    monkeypatch.setattr(Overview, "standings", look)
    on_request = settings("thread") | {
        "event-handling.standard.progress.tracking": tracking,
        "event-handling.standard.life-cycle.auto-start": False,
    }
    with Application(on_request, [handlers], tmp_path) as application:
        application.start(["seen"])
        add(application, "1")
        assert caught_up(application, "seen") == 1
        assert looked.is_set()


def test_waiting_needs_the_names_of_groups(tmp_path, handlers):
    with (
        Application(settings("thread"), [handlers], tmp_path) as application,
        pytest.raises(ValueError, match="name a group to wait for"),
    ):
        application.await_position([])
