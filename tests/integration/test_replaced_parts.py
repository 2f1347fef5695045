"""Parts that a container of the project replaces: event store, tracker, back-off and clock, on both engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from support.sqlite import rows_of

from opencqrs_py import Application, Event, Observer
from opencqrs_py.cli.main import main
from opencqrs_py.errors import AssemblyError, AssemblyErrors, ExplainedError, ProjectCodeError, RebuildError

PARTS = """
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dependency_injector import containers, providers
from opencqrs_py.adapters.sql import Database, SqlEventStore, SqlProgressTracker
from opencqrs_py.processing.ports import BackOff, Clock

HERE = Path(__file__).parent


def note(what: str) -> None:
    with (HERE / "notes.txt").open("a") as notes:
        notes.write(f"{what} {os.getpid()}\\n")


class MyEventStore(SqlEventStore):
    def read(self, *arguments, **named):
        note("read")
        return super().read(*arguments, **named)


class MyTracker(SqlProgressTracker):
    def unit(self, *arguments, **named):
        note("unit")
        return super().unit(*arguments, **named)


class MyClock(Clock):
    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(days=2000)


class OneMore:
    def waits(self) -> Iterator[float]:
        note("waits")
        yield 0.0


def one_more() -> BackOff:
    return OneMore()


class Parts(containers.DeclarativeContainer):
    log = providers.Singleton(Database, f"sqlite:///{HERE}/log.db")
    progress = providers.Singleton(Database, f"sqlite:///{HERE}/progress.db")
    event_store = providers.Singleton(MyEventStore, log)
    tracker = providers.Singleton(MyTracker, progress)
    clock = providers.Singleton(MyClock)
    back_off = providers.Factory(one_more)
"""
HANDLERS = """
from opencqrs_py import Event, event_handling, ProcessingContext

from MODULE import note


@event_handling("seen", types=["*"])
def see(event: Event, context: ProcessingContext) -> None:
    note(f"{event.id} {context.attempt}")
    if event.id == "2":
        raise ValueError("never")
"""
ENGINES = [pytest.param("thread", id="thread"), pytest.param("spark", id="spark", marks=pytest.mark.spark)]
_numbers = count()
pytestmark = pytest.mark.usefixtures("databases_closed")


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Write a project with the given parts; its modules have unique names."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    names: list[str] = []

    def written(parts: str = PARTS, handlers: str = HANDLERS, **settings: str) -> Path:
        name = f"replaced_parts_{next(_numbers)}"
        names.extend((name, f"{name}_handlers"))
        (tmp_path / f"{name}.py").write_text(parts)
        (tmp_path / f"{name}_handlers.py").write_text(handlers.replace("MODULE", name))
        lines = {
            "event-handling.standard.processing.engine": "thread",
            "spark.master": "local[1]",
            "spark.driver-handles": "never",
            **settings,
        }
        (tmp_path / "application.yaml").write_text("".join(f"opencqrs.{key}: {v}\n" for key, v in lines.items()))
        return tmp_path

    yield written
    for name in names:
        sys.modules.pop(name, None)


def with_events(application: Application, number: int = 3) -> Application:
    application.event_store.append(
        Event(0, str(n), "urn:s", f"/x/{n}", "t", None, "application/json", "{}", None) for n in range(1, number + 1)
    )
    return application


def notes(folder: Path) -> dict[str, set[int]]:
    """Return the notes, each with the processes that wrote it."""
    found: dict[str, set[int]] = {}
    for line in (folder / "notes.txt").read_text().splitlines():
        what, _, process = line.rpartition(" ")
        found.setdefault(what, set()).add(int(process))
    return found


def chosen(folder: Path, *overrides: str) -> dict[str, tuple[str, str]]:
    decisions = Application.from_project(folder, overrides=overrides).conditions()
    subjects = ("event-store", "database", "clock", "progress.tracking", "retry.policy")
    return {each.subject: (each.choice, each.reason) for each in decisions if each.subject in subjects}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_parts_of_a_container_are_used_in_every_process(write: Callable[..., Path], engine: str) -> None:
    folder = write(**{"event-handling.standard.processing.engine": engine})
    application = with_events(Application.from_project(folder))

    result = application.run(until_caught_up=True)

    assert (result.failed, result.skipped) == (False, 1)
    seen = notes(folder)
    assert {"1 1", "2 1", "2 2", "3 1"} <= set(seen)
    assert "2 3" not in seen
    assert seen["waits"] == {os.getpid()}
    handled_in = seen["1 1"]
    assert (handled_in == {os.getpid()}) == (engine == "thread")
    assert handled_in <= seen["read"]
    assert handled_in <= seen["unit"]
    (skip,) = application.skipped()
    assert datetime.fromisoformat(skip.skipped_at) > datetime.now(UTC) + timedelta(days=1999)
    assert {each.name for each in folder.glob("*.db")} == {"log.db", "progress.db"}
    assert application.status()[0].lag == 0


WRONG_STORES = {
    "no-slice": "None",
    "no-positions": "Slice(part.after, part.upto, [event._replace(position=0) for event in part.events])",
    "twice": "Slice(part.after, part.upto, [event for event in part.events for _ in range(2)])",
    "descending": "Slice(part.after, part.upto, [*part.events][::-1])",
    "no-slice-as-outage": "None\n\n    def is_outage(self, error):\n        return True",
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("wrong", WRONG_STORES)
@pytest.mark.release(
    engine="spark", wrong=("no-slice", "twice", "descending", "no-slice-as-outage")
)  # checked as on threads
def test_an_event_store_that_returns_wrong_events_fails_the_partition_before_they_are_handled(
    write: Callable[..., Path], engine: str, wrong: str
) -> None:
    read = "        return super().read(*arguments, **named)\n"
    returned = f"        part = super().read(*arguments, **named)\n        return {WRONG_STORES[wrong]}\n"
    parts = PARTS.replace(read, returned).replace("from pathlib", "from opencqrs_py.model import Slice\nfrom pathlib")
    folder = write(parts, **{"event-handling.standard.processing.engine": engine})
    application = with_events(Application.from_project(folder))

    assert application.run(until_caught_up=True).failed

    (status,) = application.status()
    (partition,) = status.partitions
    assert (status.lag, partition.position, partition.state) == (3, 0, "failed")
    assert partition.error.startswith("[OCQ-354] EventStoreError: read(after=0, ")
    assert "of the event store MyEventStore returned" in partition.error
    assert "1 1" not in notes(folder)


def test_conditions_show_each_part_with_its_provider(write: Callable[..., Path]) -> None:
    folder = write()
    assert chosen(folder) == {
        "database": (
            "none",
            "a provider makes the event store, and no other one is configured or registered",
        ),
        "event-store": (
            "provider event_store",
            "the only provider of an event store, and event-store.url is not set",
        ),
        "clock": ("provider clock", "the only provider of a clock"),
        "progress.tracking": (
            "provider tracker",
            "the only provider of a progress tracker, and progress.tracking is not set",
        ),
        "retry.policy": ("provider back_off", "the only provider of a back-off, and retry.policy is not set"),
    }


def test_settings_win_over_providers_they_do_not_name(write: Callable[..., Path]) -> None:
    folder = write()
    overrides = (
        "event-store.url=sqlite:///mine.db",
        "event-handling.standard.progress.tracking=sql",
        "event-handling.groups.seen.retry.policy=fixed",
    )
    assert chosen(folder, *overrides) == {
        "database": (
            "sqlite:///mine.db",
            "the event store's, since no other one is configured or registered",
        ),
        "event-store": ("sqlite:///mine.db", "set (argument --set event-store.url)"),
        "clock": ("provider clock", "the only provider of a clock"),
        "progress.tracking": ("sql", "set (standard (argument --set event-handling.standard.progress.tracking))"),
        "retry.policy": ("fixed", "set (argument --set event-handling.groups.seen.retry.policy)"),
    }
    application = with_events(Application.from_project(folder, overrides=overrides), 1)
    assert not application.run(until_caught_up=True).failed
    assert notes(folder).keys() == {"1 1"}
    assert (folder / "mine.db").exists()


def ended(*arguments: str) -> int:
    """Run a command in this process and return its exit code."""
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    assert isinstance(caught.value.code, int)
    return caught.value.code


SECOND = PARTS + "    other_store = providers.Singleton(MyEventStore, progress)\n"


def test_two_event_stores_are_refused_until_a_setting_names_one(
    write: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(SECOND)
    says = "there are 2 providers of an event store, and none is chosen: event_store, other_store"
    with pytest.raises(AssemblyError, match=says) as caught:
        Application.from_project(folder).start()
    assert (caught.value.code, caught.value.fix) == (
        "OCQ-532",
        "name one with event-store.ref, or set event-store.url",
    )
    assert ended("conditions") == 2
    printed = capsys.readouterr()
    assert f"application: event-store = not decided: {says}" in printed.out
    assert "[OCQ-532]" in printed.err
    assert ended("events", "list") == 2
    assert "[OCQ-532]" in capsys.readouterr().err

    assert ended("conditions", "--set", "event-store.ref=other_store") == 0
    named = "application: event-store = provider other_store: named (argument --set event-store.ref)"
    assert named in capsys.readouterr().out


def test_commands_on_events_read_the_store_of_the_container(
    write: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write()
    with_events(Application.from_project(folder))
    assert ended("events", "list", "--format", "json") == 0
    assert [each["id"] for each in json.loads(capsys.readouterr().out)] == ["1", "2", "3"]
    command = [sys.executable, "-m", "opencqrs_py", "run", "--until-caught-up"]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode == 3
    assert "empty SQLite database" not in done.stderr
    assert not (folder / "opencqrs.db").exists()


BROKEN = 'from opencqrs_py import event_handling\n\nraise RuntimeError("imported")\n'


@pytest.mark.parametrize(
    ("uses", "overrides", "is_imported"),
    [
        ("", (), False),
        ("import dependency_injector\n", ("event-store.url=sqlite:///mine.db",), False),
        ("import dependency_injector\n", (), True),
    ],
)
def test_modules_are_imported_for_the_event_store_only_if_one_might_provide_it(
    tmp_path: Path, uses: str, overrides: tuple[str, ...], *, is_imported: bool
) -> None:
    (tmp_path / f"broken_parts_{is_imported}.py").write_text(uses + BROKEN)
    application = Application.from_project(tmp_path, overrides=overrides)
    if is_imported:
        with pytest.raises(AssemblyError, match=r"OCQ-501.*RuntimeError: imported"):
            application.event_store.head()
    else:
        assert application.event_store.head() == 0


@pytest.mark.parametrize(
    ("part", "line", "code", "says"),
    [
        ("event-store", "event_store = providers.Singleton(failing_store)", "OCQ-217", "raised OSError: no line"),
        ("event-store", "event_store = providers.Singleton(wrong_store)", "OCQ-502", "makes int, which has no head"),
        ("progress.tracking", "tracker = providers.Singleton(wrong_tracker)", "OCQ-502", "makes int, which has no"),
        ("clock", "clock = providers.Singleton(failing_clock)", "OCQ-217", "raised OSError: no line"),
        ("clock", "clock = providers.Singleton(NaiveClock)", "OCQ-547", "now() of the clock NaiveClock returned"),
        ("retry.policy", "back_off = providers.Singleton(wrong_back_off)", "OCQ-502", "makes int, which has no waits"),
    ],
)
def test_a_provider_that_yields_no_valid_part_is_refused_and_shown_with_its_part(
    write: Callable[..., Path], part: str, line: str, code: str, says: str
) -> None:
    functions = """
from opencqrs_py.processing.ports import Clock, EventStore, ProgressTracker

def failing_store() -> EventStore:
    raise OSError("no line")

def wrong_store() -> EventStore:
    return 1

def wrong_tracker() -> ProgressTracker:
    return 1

def failing_clock() -> Clock:
    raise OSError("no line")

def wrong_back_off() -> BackOff:
    return 1

class NaiveClock(MyClock):
    def now(self):
        return datetime(2031, 5, 6)

class Parts("""
    folder = write(PARTS.replace("\nclass Parts(", functions) + f"    {line}\n")
    application = Application.from_project(folder)
    (decision,) = [each for each in application.conditions() if each.subject == part]
    error: Any = decision.error
    assert (decision.choice, error.code) == ("", code)
    assert says in decision.reason
    with pytest.raises((AssemblyError, AssemblyErrors, ProjectCodeError)) as caught:
        application.start()
    raised = caught.value.errors if isinstance(caught.value, AssemblyErrors) else (caught.value,)
    assert code in {each.code for each in raised if isinstance(each, ExplainedError)}


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"progress.tracker-ref": "none"}, "progress.tracker-ref (standard (application.yaml:4:56))"),
        ({"retry.back-off-ref": "none"}, "retry.back-off-ref (standard (application.yaml:4:54))"),
        ({"sequence.resolver-ref": "none"}, "sequence.resolver-ref (standard (application.yaml:4:57))"),
        (
            {"batch.ordering-ref": "none", "processing.mode": "scheduled", "schedule.interval": "1s"},
            "batch.ordering-ref (standard (application.yaml:4:54))",
        ),
        ({"events.type-resolver-ref": "none"}, "events.type-resolver-ref (application.yaml:4:36)"),
    ],
)
def test_each_wrong_reference_is_reported_once_with_its_origin(
    write: Callable[..., Path], settings: dict[str, str], where: str
) -> None:
    standard = "event-handling.standard."
    folder = write(**{name if name.startswith("events.") else standard + name: v for name, v in settings.items()})
    with pytest.raises((AssemblyError, AssemblyErrors)) as caught:
        Application.from_project(folder).start()
    (raised,) = caught.value.errors if isinstance(caught.value, AssemblyErrors) else (caught.value,)
    assert isinstance(raised, ExplainedError)
    assert (raised.code, raised.what, raised.where) == ("OCQ-502", "no provider is called 'none'", where)


LENT = PARTS.replace(
    "\nclass Parts(",
    """
class Line:
    is_open = True

def lend_line() -> Iterator[Line]:
    line = Line()
    note("open")
    yield line
    line.is_open = False
    note("close")

class LentStore(MyEventStore):
    def __init__(self, database: Database, line: Line) -> None:
        super().__init__(database)
        self.line = line

    def head(self) -> int:
        assert self.line.is_open
        return super().head()

class LentTracker(MyTracker):
    def __init__(self, database: Database, line: Line) -> None:
        super().__init__(database)
        self.line = line

    def statuses(self):
        assert self.line.is_open
        return super().statuses()

class Parts(""",
).replace("Singleton(MyEventStore, log)", "Singleton(LentStore, log, line)")
LENT = LENT.replace("Singleton(MyTracker, progress)", "Singleton(LentTracker, progress, line)")
LENT = LENT.replace("    log = ", "    line = providers.Resource(lend_line)\n    log = ")


def opened_and_closed(folder: Path) -> tuple[int, int]:
    """Return how often this process has opened and closed the resource."""
    mine = [line.split()[0] for line in (folder / "notes.txt").read_text().splitlines() if str(os.getpid()) in line]
    return mine.count("open"), mine.count("close")


@pytest.mark.release(engine="spark")  # whose workers use the parts in the test above
@pytest.mark.parametrize("engine", ENGINES)
def test_parts_with_resources_can_be_used_before_and_after_a_run_and_are_closed_by_stop(
    write: Callable[..., Path], engine: str
) -> None:
    folder = write(LENT, **{"event-handling.standard.processing.engine": engine})
    application = with_events(Application.from_project(folder), 1)
    assert opened_and_closed(folder) == (1, 0)
    assert not application.run(until_caught_up=True).failed
    assert opened_and_closed(folder) == (1, 1)
    assert [status.lag for status in application.status()] == [0]
    assert application.skipped() == []
    assert {each.error for each in application.conditions()} == {None}
    assert opened_and_closed(folder) == (2, 1)
    application.stop()
    application.stop()
    assert opened_and_closed(folder) == (2, 2)
    with_events(application, 2)
    assert sum(application.run(until_caught_up=True).handled.values()) == 0
    assert opened_and_closed(folder) == (3, 3)


def test_a_command_closes_the_resources_of_its_parts(write: Callable[..., Path]) -> None:
    folder = write(LENT)
    with_events(Application.from_project(folder), 1).stop()
    for number, arguments in enumerate((["events", "list"], ["status"], ["conditions"], ["events", "stats"]), 2):
        assert ended(*arguments) == 0
        assert opened_and_closed(folder) == (number, number)


OBSERVED = (
    PARTS.replace(
        "\nclass Parts(",
        """
from opencqrs_py import Observer

class Watching(Observer):
    def __init__(self, name: str) -> None:
        self.name = name

    def claimed(self, group, partition, position) -> None:
        note(f"{self.name} claimed {position}")

    def advanced(self, group, partition, outcome) -> None:
        if outcome.handled:
            note(f"{self.name} advanced {outcome.cursor.position}")

    def noticed(self, notice) -> None:
        note(f"{self.name} noticed {notice.action}")

    def stopped(self, group, partition) -> None:
        note(f"{self.name} stopped")

class Parts(""",
    )
    + """
    first = providers.Singleton(Watching, "first")
    second = providers.Singleton(Watching, "second")
"""
)


@pytest.mark.release(engine="spark")  # whose workers use the parts in the test above
@pytest.mark.parametrize("engine", ENGINES)
def test_every_observer_in_a_container_sees_what_the_given_one_sees(write: Callable[..., Path], engine: str) -> None:
    folder = write(OBSERVED, **{"event-handling.standard.processing.engine": engine})
    application = with_events(Application.from_project(folder))
    given = Mock(spec=Observer)
    application.run(observer=given, until_caught_up=True)
    seen = notes(folder)
    for name in ("first", "second"):
        mine = {what.partition(" ")[2] for what in seen if what.startswith(name)}
        assert mine >= {"claimed 0", "advanced 1", "noticed Action.RETRY", "noticed Action.SKIP", "stopped"}
    assert seen["first claimed 0"] == {os.getpid()}
    assert {call[0] for call in given.method_calls} == {"claimed", "advanced", "noticed", "stopped"}
    (decision,) = [each for each in application.conditions() if each.subject == "observer"]
    assert decision.choice == "provider first, provider second"


def test_an_observer_that_cannot_be_created_ends_the_start_and_is_shown(write: Callable[..., Path]) -> None:
    folder = write(OBSERVED.replace('Singleton(Watching, "second")', "Singleton(Watching)"))
    application = Application.from_project(folder)
    with pytest.raises(ProjectCodeError, match="provider 'second' raised TypeError") as caught:
        application.start()
    assert (caught.value.code, caught.value.where) == ("OCQ-217", "as an observer")
    (decision,) = [each for each in application.conditions() if each.subject == "observer"]
    assert decision.choice == ""


SCOPES = """
import os
from itertools import count
from pathlib import Path

from dependency_injector import containers, providers


class Numbered:
    numbers = count(1)

    def __init__(self) -> None:
        self.number = next(self.numbers)


class Local(Numbered):
    numbers = count(1)


class Each(Numbered):
    numbers = count(1)


class Scopes(containers.DeclarativeContainer):
    local = providers.ThreadLocalSingleton(Local)
    each = providers.Factory(Each)


def note(what: str) -> None:
    with (Path(__file__).parent / "notes.txt").open("a") as notes:
        notes.write(f"{what} {os.getpid()}\\n")
"""
SCOPED = """
from opencqrs_py import Event, event_handling

from MODULE import Each, Local, note


@event_handling("seen", types=["*"])
def see(event: Event, local: Local, each: Each) -> None:
    note(f"local {local.number}")
    note(f"each {each.number}")
"""


def test_handlers_get_one_object_per_thread_or_call_as_the_provider_says(write: Callable[..., Path]) -> None:
    folder = write(SCOPES, SCOPED, **{"event-handling.standard.life-cycle.partitions": "2"})
    application = with_events(Application.from_project(folder), 30)
    result = application.run(until_caught_up=True)
    assert sorted(count > 0 for count in result.handled.values()) == [True, True]
    assert set(notes(folder)) == {"local 1", "local 2"} | {f"each {number}" for number in range(1, 31)}


READ_MODEL = """
from pathlib import Path

from dependency_injector import containers, providers
from opencqrs_py import Database, SqlProgressTracker


class Parts(containers.DeclarativeContainer):
    library = providers.Singleton(Database, f"sqlite:///{Path(__file__).parent}/library.db")
    tracker = providers.Singleton(SqlProgressTracker, library)
"""
IN_LIBRARY = """
from opencqrs_py import Event, event_handling, job, on_start
from sqlalchemy import Connection, text


@on_start("seen")
def create(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS seen (id TEXT)"))


@event_handling("seen", types=["*"])
def see(event: Event, connection: Connection) -> None:
    connection.execute(text("INSERT INTO seen VALUES (:id)"), {"id": event.id})
"""
COUNTING = """

@job("count")
def number(connection: Connection) -> None:
    connection.execute(text("INSERT INTO seen SELECT 'of job' FROM seen"))
"""


def seen_in(file: Path) -> list[str]:
    return [id_ for (id_,) in rows_of(file, "SELECT id FROM seen ORDER BY id")]


@pytest.mark.parametrize("engine", ENGINES)
def test_start_functions_write_where_the_groups_own_tracker_has_its_handlers_write(
    write: Callable[..., Path], engine: str
) -> None:
    settings = {"event-store.url": "sqlite:///events.db", "event-handling.standard.processing.engine": engine}
    settings["event-handling.standard.retry.policy"] = "none"
    folder = write(READ_MODEL, IN_LIBRARY, **settings)
    with_events(Application.from_project(folder)).run(until_caught_up=True)
    assert seen_in(folder / "library.db") == ["1", "2", "3"]


def refused_by(folder: Path, *overrides: str) -> list[str]:
    conditions = Application.from_project(folder, overrides=overrides).conditions()
    return [each.error.code for each in conditions if each.error]


def test_a_job_with_a_connection_is_refused_if_only_its_groups_tracker_has_another_database(
    write: Callable[..., Path],
) -> None:
    folder = write(READ_MODEL, IN_LIBRARY + COUNTING, **{"event-store.url": "sqlite:///events.db"})
    what = r"OCQ-520.*event store's, sqlite:///.*events\.db, and that of provider tracker .*'seen', sqlite:///.*library"
    fix = r"fix: +set database\.url to sqlite:///.*events\.db for jobs.*; another .*handle all events again"
    with pytest.raises(AssemblyError, match=rf"(?s){what}.*{fix}") as caught:
        Application.from_project(folder).start()
    assert refused_by(folder) == ["OCQ-520"]
    suggested = caught.value.fix.split()[3]
    assert suggested == f"sqlite:///{folder}/events.db"  # with any other, groups without own trackers begin again
    assert refused_by(folder, f"database.url={suggested}") == []


WITHOUT_CONNECTION = """
from opencqrs_py import Event, event_handling, job, on_start
from sqlalchemy import Connection, text


@on_start("seen")
def begin() -> None: ...


@event_handling("seen", types=["*"])
def see(event: Event) -> None: ...
"""
ONLY_AT_START = WITHOUT_CONNECTION.replace("begin()", "begin(connection: Connection)")
ONLY_HANDLER = WITHOUT_CONNECTION.replace("see(event: Event)", "see(event: Event, connection: Connection)")
WRONG_HANDLER = WITHOUT_CONNECTION.replace("see(event: Event)", "see(event: Event, second: Event, unknown: 1)")


@pytest.mark.parametrize(
    ("handlers", "code"),
    [
        (WITHOUT_CONNECTION, []),
        (ONLY_AT_START, ["OCQ-520"]),
        (ONLY_HANDLER, ["OCQ-520"]),
        (WRONG_HANDLER, ["OCQ-201"]),  # once, for the group
    ],
)
def test_only_groups_that_write_to_their_trackers_database_keep_a_job_from_its_own(
    write: Callable[..., Path], handlers: str, code: list[str]
) -> None:
    folder = write(READ_MODEL, handlers + COUNTING, **{"event-store.url": "sqlite:///events.db"})
    assert refused_by(folder) == code


def test_a_rebuild_of_a_group_with_its_own_tracker_is_refused_with_both_databases(write: Callable[..., Path]) -> None:
    folder = write(READ_MODEL, IN_LIBRARY, **{"event-store.url": "sqlite:///events.db"})
    with with_events(Application.from_project(folder)) as application, pytest.raises(RebuildError) as caught:
        application.rebuilds.plan("seen")
    own, ours = f"sqlite:///{folder}/library.db", f"sqlite:///{folder}/events.db"
    said = f"it has its own progress tracker, on {own}, and a rebuild needs that of the application, on {ours}"
    assert (caught.value.code, caught.value.what) == ("OCQ-630", f"group 'seen' cannot be rebuilt: {said}")
    assert (
        "opencqrs groups reset seen --to tail; or remove its tracker and set database.url to " + own in caught.value.fix
    )


OF_A_DRIVER = """
import sqlite3

import psycopg
from opencqrs_py import Event, event_handling


@event_handling("seen", types=["*"])
def see(event: Event, connection: DRIVER) -> None: ...
"""
OF_ANOTHER_KIND = READ_MODEL.replace("(SqlProgressTracker, library)", "(MyTracker)").replace(
    "\n\nclass Parts", "from opencqrs_py.adapters.memory import InMemoryProgressTracker as MyTracker\n\n\nclass Parts"
)
BROKEN_TRACKER = READ_MODEL.replace("(SqlProgressTracker, library)", "(SqlProgressTracker, library, unknown=1)")


@pytest.mark.parametrize(
    ("parts", "driver", "code"),
    [
        (READ_MODEL, "sqlite3.Connection", []),
        (READ_MODEL, "psycopg.Connection", ["OCQ-525"]),
        (OF_ANOTHER_KIND, "sqlite3.Connection", []),  # its database is not known
        (BROKEN_TRACKER, "sqlite3.Connection", ["OCQ-217"]),  # once, for the tracker
    ],
)
def test_a_driver_is_compared_with_the_database_of_the_groups_own_tracker(
    write: Callable[..., Path], parts: str, driver: str, code: list[str]
) -> None:
    handlers = OF_A_DRIVER.replace("DRIVER", driver)
    folder = write(parts, handlers, **{"event-store.url": "postgresql://localhost:1/events"})
    assert refused_by(folder) == code


@pytest.mark.parametrize(
    "settings",
    [
        {"event-store.url": "sqlite:///events.db", "database.url": "sqlite:///library.db"},
        {"event-store.url": "sqlite:///library.db"},
    ],
)
def test_jobs_write_where_handlers_do_if_the_trackers_database_is_that_of_the_application(
    write: Callable[..., Path], settings: dict[str, str]
) -> None:
    application = with_events(Application.from_project(write(READ_MODEL, IN_LIBRARY + COUNTING, **settings)))
    application.run(until_caught_up=True)
    application.run_job("count")
    assert seen_in(application.project / "library.db") == ["1", "2", "3", "of job", "of job", "of job"]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("postgresql", marks=pytest.mark.postgresql),
        pytest.param("mariadb", marks=[pytest.mark.mariadb, pytest.mark.release]),
    ],
)
def test_a_clock_that_differs_from_that_of_the_database_is_reported_once(write, fresh_url, caplog, kind):
    parts = PARTS.partition("class Parts(")[0] + (
        "class Parts(containers.DeclarativeContainer):\n    clock = providers.Singleton(MyClock)\n"
    )
    folder = write(parts, **{"event-store.url": fresh_url(kind)})
    with with_events(Application.from_project(folder), 1) as application:
        application.start()
        application.await_position("seen")
        application._life.processors.coordinator.beat()
    (said,) = [each.getMessage() for each in caplog.records if "the clock of node" in each.getMessage()]
    assert " ahead of that of the database: due times, schedule.expires-after" in said
