"""Scheduled groups in whole applications: settings, decorators, and commands of users."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import text
from support.observers import Watching

from opencqrs_py import Application, InboxFilter
from opencqrs_py.adapters.sql import Database
from opencqrs_py.errors import ExplainedError, InboxError
from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.model.inbox import InboxStatus
from opencqrs_py.processing.inbox.schedules import CronSchedule, FixedRate

pytestmark = pytest.mark.release(url="sqlite_url")
BY_SCHEDULE = pytest.mark.release  # as the unit tests of the schedule

LENDING = "event-handling.groups.lending"
SCHEDULED = {
    "event-handling.standard.processing.engine": "thread",
    f"{LENDING}.processing.mode": "scheduled",
    f"{LENDING}.schedule.initial-delay": "1h",
}
EACH = {f"{LENDING}.batch.mode": "all"}
ALL = InboxFilter()

HANDLERS = """
from dataclasses import dataclass
from pathlib import Path

from dependency_injector import containers, providers
from opencqrs_py import Event, batch_key, event_handling, event_type, inbox_filter, on_start
from opencqrs_py.testing import FakeClock
from sqlalchemy import Connection, text

FAILING = Path(__file__).with_name("failing")
CLOCK = FakeClock()


@event_type("lent.v1")
@dataclass(frozen=True)
class Lent:
    isbn: str
    reader: str
    urgency: int = 0


@on_start("lending")
def tables(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS lent (position INTEGER PRIMARY KEY, number INTEGER)"))


@batch_key("Lending")
def reader(event: Lent) -> str:
    return event.reader


@inbox_filter("lending")
def real_books(event: Lent) -> bool:
    return event.isbn != "none"


@event_handling("lending")
def lend(event: Lent, raw: Event, connection: Connection) -> None:
    if FAILING.exists() and event.isbn in FAILING.read_text().split():
        raise ValueError(f"{event.isbn} is not in the catalogue")
    (number,) = connection.execute(text("SELECT count(*) FROM lent")).one()
    row = {"position": raw.position, "number": number}
    connection.execute(text("INSERT INTO lent VALUES (:position, :number)"), row)


def soonest(event: Event) -> float:
    return 1 / event.data["urgency"]


class Parts(containers.DeclarativeContainer):
    urgent_first = providers.Object(lambda event: -event.data.get("urgency", 0))
    fragile = providers.Object(soonest)
    clock = providers.Object(CLOCK)
"""


@pytest.fixture(
    params=[
        pytest.param("sqlite_url", id="sqlite"),
        pytest.param("postgresql_url", id="postgresql", marks=pytest.mark.postgresql),
    ]
)
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


class Library:
    """A project with a scheduled group on a database, and a clock that stands."""

    def __init__(self, module: ModuleType, url: str, folder: Path, **settings: str) -> None:
        self.module = module
        self.url = url
        self.folder = folder
        self.settings = {"event-store.url": url, **SCHEDULED, **settings}
        self.made: list[Application] = []

    def application(self) -> Application:
        self.made.append(Application(self.settings, [self.module], self.folder))
        return self.made[-1]

    def append(self, *lent: tuple[str, str, int], kind: str = "lent.v1") -> None:
        """Append events: ISBN, reader and urgency of each."""
        store = self.application().event_store
        events = []
        for number, (isbn, reader, urgency) in enumerate(lent, store.head() + 1):
            data = {"isbn": isbn, "reader": reader, "urgency": urgency}
            known = {"id": str(number), "source": "urn:library", "subject": f"/books/{isbn}", "type": kind}
            events.append(parse_event(json.dumps({**known, "data": data})))
        store.append(events)

    def fails_for(self, *isbns: str) -> None:
        self.module.FAILING.write_text(" ".join(isbns))

    def run(self) -> int:
        """Read all, try all that is due at once, and return how many events wait."""
        result = self.application().run(until_caught_up=True)
        assert not result.failed
        return result.parked

    def later(self, **time: float) -> None:
        self.module.CLOCK.advance(timedelta(**time).total_seconds())

    @property
    def handled(self) -> list[int]:
        """The positions of the events that are handled, in their order."""
        database = Database(self.url)
        with database.reading() as connection:
            found = connection.execute(text("SELECT position FROM lent ORDER BY number")).scalars().all()
        database.close()
        return list(found)

    @property
    def inbox(self) -> Any:
        return self.application().inbox

    @property
    def waiting(self) -> dict[int, str]:
        return {entry.position: entry.status.value for entry in self.inbox.entries(ALL)}


@pytest.fixture
def make_library(
    make_module: Callable[[str], ModuleType], url: str, tmp_path: Path
) -> Iterator[Callable[..., Library]]:
    made: list[Library] = []

    def make(**settings: str) -> Library:
        made.append(Library(make_module(HANDLERS), url, tmp_path, **settings))
        return made[-1]

    yield make
    for library in made:
        for application in library.made:
            application.stop()


def test_a_failed_event_delays_only_its_batch(make_library):
    library = make_library()
    library.append(("1", "ada", 0), ("2", "bob", 0), ("none", "bob", 0), ("3", "ada", 0))
    library.fails_for("1")
    assert library.run() == 2
    assert library.handled == [2]
    assert library.waiting == {1: "retrying", 4: "pending"}
    library.fails_for()
    assert library.run() == 2  # it is not due yet
    library.later(minutes=1)
    assert library.run() == 0
    assert library.handled == [2, 1, 4]


def test_in_mode_all_the_other_events_of_a_batch_are_handled(make_library):
    library = make_library(**EACH)
    library.append(("1", "ada", 0), ("2", "ada", 0))
    library.fails_for("1")
    assert library.run() == 1
    assert (library.handled, library.waiting) == ([2], {1: "retrying"})


def test_the_function_of_ordering_ref_orders_a_batch(make_library):
    library = make_library(**{f"{LENDING}.batch.ordering-ref": "urgent_first"})
    library.append(("1", "ada", 0), ("2", "bob", 1), ("3", "ada", 2), ("4", "ada", 0))
    assert library.run() == 0
    assert library.handled in ([3, 1, 4, 2], [2, 3, 1, 4])


@pytest.mark.release(settings=EACH)
@pytest.mark.parametrize(("settings", "handled"), [({}, [2]), (EACH, [2, 3])], ids=["first", "all"])
def test_a_function_of_ordering_ref_that_raises_is_a_failure_of_its_event(make_library, settings, handled):
    library = make_library(**{f"{LENDING}.batch.ordering-ref": "fragile"}, **settings)
    library.append(("1", "ada", 0), ("2", "bob", 1), ("3", "ada", 2))
    assert library.run() == 3 - len(handled)
    assert sorted(library.handled) == handled
    (entry,) = (one for one in library.inbox.entries(ALL) if one.position == 1)
    assert "batch.ordering-ref 'fragile' raised ZeroDivisionError: division by zero" in entry.reason
    assert entry.reason.startswith("[OCQ-611] OrderingError: ")
    assert "return 1 / event.data" in str(entry.errors[-1])


def test_an_event_of_another_program_with_an_unreadable_time_delays_only_its_batch(make_library):
    library = make_library(**{f"{LENDING}.batch.ordering": "event-time"})
    library.append(("1", "ada", 0), ("2", "bob", 0), ("3", "bob", 0), ("4", "cyd", 0))
    database = Database(library.url)
    with database.writing() as connection:
        connection.execute(text("UPDATE opencqrs_events SET time = '05.01.2026 10:00' WHERE position = 2"))
    database.close()
    assert library.run() == 2
    assert sorted(library.handled) == [1, 4]
    assert library.waiting == {2: "retrying", 3: "pending"}
    (entry,) = (one for one in library.inbox.entries(ALL) if one.position == 2)
    assert "the event's time is '05.01.2026 10:00', which is not an RFC 3339 time" in entry.reason


def test_events_that_wait_too_long_expire(make_library, caplog):
    library = make_library(**{f"{LENDING}.schedule.expires-after": "10m"})
    library.append(("1", "ada", 0), ("2", "bob", 0))
    library.fails_for("1", "2")
    assert library.run() == 2
    library.later(minutes=10)
    assert library.waiting == {1: "expired", 2: "expired"}
    assert [step.before.position for step in library.inbox.purge(InboxFilter(event="2"))] == [2]
    assert library.inbox.skips(ALL) == []
    result = library.application().run(until_caught_up=True)
    assert (result.expired, result.skipped, result.parked, result.failed) == (1, 0, 0, False)
    assert (library.handled, library.waiting) == ([], {})
    gone = "[lending 0/1] 1 event has expired and was removed from the inbox: event 1 at position 1"
    assert [record.message for record in caplog.records if "expired" in record.message] == [gone]


@BY_SCHEDULE
def test_a_paused_event_expires_too(make_library):
    library = make_library(**{f"{LENDING}.schedule.expires-after": "10m"})
    library.append(("1", "ada", 0))
    library.fails_for("1")
    assert library.run() == 1
    (step,) = library.inbox.pause(ALL)
    assert (step.after.status, step.after.expires_at) == (InboxStatus.PAUSED, step.before.expires_at)
    library.later(minutes=10)
    assert library.waiting == {1: "expired"}
    assert library.application().run(until_caught_up=True).expired == 1


def test_purge_keeps_events_that_have_not_expired(make_library):
    library = make_library()
    library.append(("1", "ada", 0))
    library.fails_for("1")
    library.run()
    with pytest.raises(InboxError) as caught:
        library.inbox.purge(ALL)
    assert str(caught.value).splitlines()[0] == ("[OCQ-605] none of the events that match is expired: 1 retrying")


@BY_SCHEDULE
def test_within_the_grace_period_failures_are_not_recorded(make_library):
    library = make_library(**{f"{LENDING}.schedule.error-grace-period": "10m"})
    library.append(("1", "ada", 0))
    library.fails_for("1")
    assert library.run() == 1
    (entry,) = library.inbox.entries(ALL)
    assert (entry.status, entry.attempts, entry.errors) == (InboxStatus.PENDING, 0, ())
    library.later(minutes=10)
    assert library.run() == 1
    (entry,) = library.inbox.entries(ALL)
    assert (entry.status, entry.attempts) == (InboxStatus.RETRYING, 1)


@pytest.mark.release(settings={})  # as in mode all
@pytest.mark.parametrize(
    ("settings", "due"), [({}, {1: True, 2: False, 3: True}), (EACH, {1: True, 2: True, 3: True})], ids=["first", "all"]
)
def test_a_retry_makes_all_matching_events_due_at_the_next_tick(make_library, settings, due):
    library = make_library(**settings)
    library.append(("1", "ada", 0), ("2", "ada", 0), ("3", "bob", 0))
    library.fails_for("1", "2", "3")
    library.run()
    steps = library.inbox.retry(ALL)
    assert {step.before.position: step.after.due_at is not None for step in steps} == due
    assert [step.meant for step in steps] == [None, None, None]
    library.fails_for()
    assert library.run() == 0
    assert sorted(library.handled) == [1, 2, 3]


@BY_SCHEDULE
def test_in_mode_fail_first_a_later_event_made_due_waits_for_its_batch(make_library):
    library = make_library()
    library.append(("1", "ada", 0), ("2", "ada", 0))
    library.fails_for("1")
    library.run()
    library.inbox.retry(InboxFilter(event="2"))
    assert library.run() == 2
    assert (library.handled, library.waiting) == ([], {1: "retrying", 2: "pending"})


@BY_SCHEDULE
@pytest.mark.parametrize(("settings", "handled"), [({}, []), (EACH, [1])], ids=["first", "all"])
def test_only_in_mode_fail_first_a_paused_event_delays_its_batch(make_library, settings, handled):
    library = make_library(**settings)
    library.append(("1", "ada", 0), ("2", "ada", 0))
    library.fails_for("1", "2")
    library.run()
    library.fails_for()
    library.inbox.pause(InboxFilter(event="2"))
    library.later(minutes=1)
    library.run()
    assert library.handled == handled
    library.inbox.resume(ALL)
    assert library.run() == 0
    assert sorted(library.handled) == [1, 2]


@pytest.mark.release(settings=EACH)
@pytest.mark.parametrize("settings", [{}, EACH], ids=["first", "all"])
def test_a_skipped_event_leaves_and_the_rest_of_its_batch_is_handled(make_library, settings):
    library = make_library(**settings)
    library.append(("1", "ada", 0), ("2", "ada", 0))
    library.fails_for("1")
    library.run()
    library.inbox.skip(InboxFilter(event="1"), "entered twice")
    assert library.run() == 0
    assert (library.handled, [skip.position for skip in library.inbox.skips(ALL)]) == ([2], [1])


@BY_SCHEDULE
@pytest.mark.parametrize(
    ("settings", "waiting", "skipped"),
    [({}, {1: "exhausted", 2: "pending"}, 0), ({f"{LENDING}.schedule.on-exhausted": "skip"}, {}, 1)],
    ids=["block", "skip"],
)
def test_an_event_with_exhausted_attempts_blocks_its_batch_or_is_skipped(make_library, settings, waiting, skipped):
    library = make_library(**{f"{LENDING}.schedule.retry.max-attempts": "2", **settings})
    library.append(("1", "ada", 0), ("2", "ada", 0))
    library.fails_for("1")
    library.run()
    library.later(minutes=1)
    library.run()
    library.later(hours=1)
    library.run()
    assert (library.waiting, len(library.inbox.skips(ALL))) == (waiting, skipped)
    library.fails_for()
    if waiting:
        library.inbox.retry(InboxFilter(event="1"))
    assert library.run() == 0
    assert library.handled == ([1, 2] if waiting else [2])


def test_events_are_handled_at_the_ticks_of_a_cron_expression_while_the_application_runs(make_library):
    zone = {f"{LENDING}.schedule.cron": "0 3 * * *", f"{LENDING}.schedule.time-zone": "Europe/Berlin"}
    library = make_library(**zone)
    library.append(("1", "ada", 0), ("2", "bob", 0))
    application, watching = library.application(), Watching()
    application.start(observer=watching)
    watching.wait_for(lambda: library.waiting == {1: "pending", 2: "pending"})
    assert library.handled == []
    at_three = datetime(2026, 1, 1, 2, tzinfo=UTC)
    library.module.CLOCK.advance((at_three - library.module.CLOCK.now()).total_seconds())
    watching.wait_for(lambda: library.waiting == {})
    assert sorted(library.handled) == [1, 2]
    application.stop()


@BY_SCHEDULE
def test_a_process_reports_a_missed_tick_unless_its_run_tries_all_at_once(make_library, caplog):
    library = make_library(**{f"{LENDING}.schedule.cron": "0 3 * * *"})
    library.append(("1", "ada", 0))

    def missed() -> list[str]:
        return [record.message for record in caplog.records if "the tick of" in record.message]

    def start() -> None:
        application, watching = library.application(), Watching()
        application.start(observer=watching)
        watching.wait_for(lambda: library.waiting == {1: "pending"} and bool(watching.moments))
        application.stop()

    start()
    assert missed() == []
    library.later(days=1)
    start()
    (line,) = missed()
    assert line.endswith("and type: opencqrs run --group lending --until-caught-up")
    caplog.clear()
    assert library.run() == 0
    assert (library.handled, missed()) == ([1], [])


SPLIT = (
    HANDLERS
    + """
from opencqrs_py import Upcast, upcaster

@upcaster("lent.v0")
def split(data: dict) -> list[Upcast]:
    return [Upcast("lent.v1", data), Upcast("counted.v1", {})]
"""
)


def test_a_filter_applies_to_the_upcast_events_that_handlers_take(make_library, make_module):
    library = make_library()
    library.module = make_module(SPLIT)
    library.append(("none", "ada", 0), ("2", "ada", 0), kind="lent.v0")
    assert library.run() == 0
    assert library.handled == [2]


# ------------------------------------------------------------------------------------------- what settings become

PLAIN = """
from opencqrs_py import Event, batch_key, event_handling, inbox_filter

@event_handling("lending", types=["*"])
def lend(event: Event) -> None: ...
"""
KEY = """
@batch_key("lending")
def source(event: Event) -> str:
    return event.source
"""
FILTER = """
@inbox_filter("lending")
def some(event: Event) -> bool:
    return True
"""
NUMBER = """
from dependency_injector import containers, providers

class Parts(containers.DeclarativeContainer):
    number = providers.Object(7)
"""
TRACKER = """
from dependency_injector import containers, providers
from opencqrs_py.processing.ports import ProgressTracker

class Tracker(ProgressTracker): ...

class Parts(containers.DeclarativeContainer):
    mine = providers.Singleton(Tracker)
"""
IN_MEMORY = {f"{LENDING}.progress.tracking": "in-memory"}
STREAMING = {f"{LENDING}.processing.mode": "streaming"}
ON_SPARK = {f"{LENDING}.processing.engine": "spark"}


@pytest.mark.parametrize(
    ("source", "settings", "code", "what"),
    [
        (
            PLAIN + KEY,
            STREAMING,
            "OCQ-610",
            "group 'lending' has a function with @batch_key, and is not scheduled",
        ),
        (
            PLAIN + FILTER,
            STREAMING,
            "OCQ-610",
            "group 'lending' has a function with @inbox_filter, and is not scheduled",
        ),
        (
            PLAIN + KEY + KEY.replace("source(", "other("),
            {},
            "OCQ-610",
            "group 'lending' has 2 functions with @batch_key",
        ),
        (
            PLAIN,
            {**ON_SPARK, **IN_MEMORY},
            "OCQ-604",
            "events are to wait in an inbox beside the progress, and the progress is in memory, which Spark workers "
            "do not share",
        ),
        (PLAIN, {f"{LENDING}.batch.ordering-ref": "nobody"}, "OCQ-502", "no provider is called 'nobody'"),
        (PLAIN + NUMBER, {f"{LENDING}.batch.ordering-ref": "number"}, "OCQ-502", "'number' makes int, no Callable"),
        (PLAIN + TRACKER, {f"{LENDING}.progress.tracker-ref": "mine"}, "OCQ-604", "its progress tracker has none"),
        (
            PLAIN + FILTER.replace("event: Event", "event"),
            {},
            "OCQ-201",
            "parameter 'event' has no annotation",
        ),
        (
            PLAIN + FILTER.replace("def ", "async def "),
            {},
            "OCQ-204",
            "a filter must be a plain function that returns True or False",
        ),
        (
            PLAIN.replace('batch_key, event_handling', 'batch_key, dataframe_handler, event_handling').replace(
                '@event_handling("lending", types=["*"])\ndef lend(event: Event)',
                '@dataframe_handler("lending", types=["*"])\ndef lend(events: "DataFrame")',
            ) + "\nfrom pyspark.sql import DataFrame\n",
            ON_SPARK,
            "OCQ-541",
            "is scheduled: a range has no batches",
        ),
    ],
    ids=[
        "key", "filter", "two keys", "in memory", "no provider", "no function", "no inbox", "signature",
        "async", "frames",
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_a_scheduled_group_are_refused_at_the_start(
    make_module, tmp_path, source, settings, code, what
):
    database = {"event-store.url": f"sqlite:///{tmp_path / 'test.db'}"}
    with Application({**database, **SCHEDULED, **settings}, [make_module(source)], tmp_path) as application:
        with pytest.raises(ExplainedError) as caught:
            application.start()
        (error,) = getattr(caught.value, "errors", [caught.value])
    assert error.code == code
    assert what in error.what


@pytest.mark.parametrize(
    ("settings", "schedule"),
    [
        ({"kind": "fixed-rate", "interval": "1m", "initial-delay": "5s"}, FixedRate(5, 60)),
        ({"cron": "@daily", "interval": "1m"}, CronSchedule("@daily", ZoneInfo("UTC"))),
    ],
)
def test_the_schedule_follows_the_settings(make_module, tmp_path, settings, schedule):
    given = {f"{LENDING}.schedule.{key}": value for key, value in settings.items()}
    database = {"event-store.url": f"sqlite:///{tmp_path / 'test.db'}"}
    with Application({**database, **SCHEDULED, **given}, [make_module(PLAIN)], tmp_path) as application:
        rule = application._group_containers["lending"].schedule()
    assert (rule.schedule, rule.back_off.max_attempts) == (schedule, 99)
