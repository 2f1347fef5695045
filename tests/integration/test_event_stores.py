"""Event stores of every kind, chosen by ``event-store.url``, on both engines."""

from __future__ import annotations

import pickle
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import ModuleType
from typing import Any

import orjson
import pytest
import yaml
from sqlalchemy import create_engine, text
from support.sqlite import rows_of
from support.unpacking import note_ends

from opencqrs_py import Application, Event
from opencqrs_py.adapters.eventsourcingdb import EventSourcingDbEventStore
from opencqrs_py.adapters.files import FileEventSource, format_of, writer_to, written_whole
from opencqrs_py.adapters.sql import Database, SqlEventStore
from opencqrs_py.assembly import stores
from opencqrs_py.assembly.processors import Processors
from opencqrs_py.errors import AssemblyError, EventStoreError, WaitTimedOutError
from opencqrs_py.model import Selection
from opencqrs_py.model.cloudevents import write_event
from opencqrs_py.testing.eventsourcingdb import EventSourcingDbStandIn

COUNT = 300
SECONDS = 60  # longest wait for another thread
TOKEN = "a-secret-token"
HANDLERS = """
from opencqrs_py import event_handling, on_start
from sqlalchemy import Connection, text

@on_start("sums")
def table(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS sums (number INTEGER PRIMARY KEY)"))

@event_handling("sums", types=["counted"])
def add(data: dict, connection: Connection) -> None:
    connection.execute(text("INSERT INTO sums VALUES (:number)"), data)
"""
ENGINES = [pytest.param("thread", id="thread"), pytest.param("spark", id="spark", marks=pytest.mark.spark)]


@pytest.fixture
def handlers(make_module: Callable[[str], ModuleType]) -> ModuleType:
    return make_module(HANDLERS)


def events() -> Iterator[Event]:
    for n in range(COUNT):
        kind = "counted" if n % 3 else "other"
        yield Event(0, str(n), "urn:s", f"/x/{n % 7}", kind, None, "application/json", f'{{"number": {n}}}', None)


def lines() -> list[str]:
    return [orjson.dumps(write_event(event)).decode() + "\n" for event in events()]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A folder of files, named as seen from the project folder."""
    (tmp_path / "log of events").mkdir()
    whole = lines()
    (tmp_path / "log of events" / "1.ndjson").write_text("".join(whole[:100]))
    (tmp_path / "log of events" / "2.ndjson").write_text("".join(whole[100:]))
    return {"event-store.url": "file:log%20of%20events"}


@pytest.fixture
def eventsourcingdb() -> Iterator[dict[str, str]]:
    """A server that speaks EventSourcingDB's protocol."""
    with EventSourcingDbStandIn(TOKEN, names=False) as server:
        url = server.url
        EventSourcingDbEventStore(url, TOKEN).append(events())
        yield {"event-store.url": url, "event-store.api-token": TOKEN}


def exported(folder: Path, *suffixes: str) -> dict[str, str]:
    """Files of some kinds, as an export writes them."""
    folder.mkdir()
    everything, size = list(events()), COUNT // len(suffixes)
    for number, suffix in enumerate(suffixes):
        part = everything[number * size : (number + 1) * size]
        path = folder / f"{number}{suffix}"
        form = format_of(path.name)
        assert form is not None
        with written_whole(path) as file, writer_to(file, form) as writer:
            writer.write(part)
    return {"event-store.url": f"file:{folder.name}"}


@pytest.fixture
def gzipped(tmp_path: Path) -> dict[str, str]:
    return exported(tmp_path / "log", ".ndjson.gz", ".ndjson.gz")


@pytest.fixture
def zstandard(tmp_path: Path) -> dict[str, str]:
    return exported(tmp_path / "log", ".ndjson.zst", ".ndjson.zst")


@pytest.fixture
def parquet(tmp_path: Path) -> dict[str, str]:
    return exported(tmp_path / "log", ".parquet", ".parquet")


def table_of_others(url: str, key: str, moment: str, json: str) -> dict[str, str]:
    """Fill a table of another system, as the how-to describes it, and return its mapping."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "event-store.md").read_text("utf-8")
    section = page.partition("## A table of another system")[2]
    settings = yaml.safe_load(re.findall(r"^```yaml[^\n]*\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[0])
    store = settings["opencqrs"]["event-store"]
    assert store["url"].startswith("postgresql:")
    database = Database(url)
    with database.writing() as connection:
        columns = f"event_id TEXT, stream TEXT, event_name TEXT, recorded_at {moment}, body {json}, headers {json}"
        connection.execute(text(f"CREATE TABLE domain_events (global_index {key} PRIMARY KEY, {columns})"))
        names = "event_id, stream, event_name, body, headers"
        insert = f"INSERT INTO domain_events ({names}) VALUES (:id, :subject, :type, :payload, '{{}}')"
        connection.execute(text(insert), [one._asdict() for one in events()])
    database.close()
    return {f"event-store.mapping.{part}": column for part, column in store["mapping"].items()}


@pytest.fixture
def mapped(tmp_path: Path) -> dict[str, str]:
    mapping = table_of_others(f"sqlite:///{tmp_path / 'shop.db'}", "INTEGER", "TEXT", "TEXT")
    return {"event-store.url": "sqlite:///shop.db", **mapping}


@pytest.fixture
def mapped_postgresql(postgresql_url: str) -> dict[str, str]:
    mapping = table_of_others(postgresql_url, "BIGINT GENERATED ALWAYS AS IDENTITY", "TIMESTAMPTZ", "JSON")
    return {"event-store.url": postgresql_url, **mapping}


SHELF = """
from opencqrs_py.adapters.sql import Database, SqlEventStore

def open_shelf(url: str, api_token: str) -> SqlEventStore:
    assert api_token == "a-secret-token"
    return SqlEventStore(Database("sqlite:///" + url.removeprefix("shelf://")))

class Closing(SqlEventStore):
    closed = 0

    def close(self):
        self.closed += 1
        raise OSError("busy")

def open_closing(url: str, api_token: str) -> SqlEventStore:
    return Closing(Database("sqlite:///" + url.removeprefix("closing://")))

class Reading(Closing):
    failing = False

    def read(self, *arguments):
        if self.failing:
            raise OSError("shelf is locked")
        return super().read(*arguments)

def open_reading(url: str, api_token: str) -> SqlEventStore:
    return Reading(Database("sqlite:///" + url.removeprefix("reading://")))

class Headless(Closing):
    def head(self):
        return None

    def read(self, *arguments):
        return None

def open_headless(url: str, api_token: str) -> SqlEventStore:
    return Headless(Database("sqlite://"))

def raises(url: str, api_token: str) -> None:
    raise OSError("no shelf here")

def returns_text(url: str, api_token: str) -> str:
    return url
"""


@pytest.fixture
def install(handlers: ModuleType) -> Callable[..., None]:
    """Return a function that installs a package of a given name, which registers event stores."""
    site = Path(str(handlers.__file__)).parent
    (site / "shelf_store.py").write_text(SHELF)

    def install(package: str, **registered: str) -> None:
        info = site / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{scheme} = shelf_store:{name}\n" for scheme, name in registered.items()]
        (info / "entry_points.txt").write_text("".join(["[opencqrs.event_stores]\n", *lines]))
        stores._entries.cache_clear()

    return install


@pytest.fixture
def registered(install: Callable[..., None], databases_closed: None, tmp_path: Path) -> dict[str, str]:
    """An event store whose scheme another package has registered."""
    install("shelf", shelf="open_shelf")
    SqlEventStore(Database(f"sqlite:///{tmp_path}/shelf.db")).append(events())
    return {"event-store.url": f"shelf://{tmp_path}/shelf.db", "event-store.api-token": TOKEN}


Make = Callable[[dict[str, str], ModuleType], Application]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes applications, and stops them at the end."""
    with ExitStack() as opened:

        def make(settings: dict[str, str], handlers: ModuleType) -> Application:
            application = Application(settings, [handlers], tmp_path)
            opened.callback(application.stop)
            return application

        yield make


KINDS = ["files", "gzipped", "zstandard", "parquet", "eventsourcingdb", "mapped", "registered"]
POSTGRESQL = pytest.param("mapped_postgresql", marks=pytest.mark.postgresql)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", [*KINDS, POSTGRESQL])
@pytest.mark.release(
    engine="spark", kind=("gzipped", "parquet", "zstandard", "mapped", "mapped_postgresql", "registered")
)  # read as on threads
def test_each_event_is_handled_once_and_a_second_run_has_nothing_to_do(
    kind: str, engine: str, handlers: ModuleType, make: Make, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = {
        **request.getfixturevalue(kind),
        "database.url": "sqlite:///sums.db",
        "spark.master": "local[1]",
        "spark.driver-handles": "never",
        "event-handling.standard.processing.engine": engine,
        "event-handling.standard.life-cycle.partitions": 2,
    }
    for handled in (200, 0):
        application = make(settings, handlers)
        result = application.run(until_caught_up=True)
        assert not result.failed
        assert sum(result.handled.values()) == handled
        assert [(s.head, s.lag) for s in application.status()] == [(COUNT, 0)]
    numbers = rows_of(tmp_path / "sums.db", "SELECT number FROM sums ORDER BY number")
    assert numbers == [(n,) for n in range(COUNT) if n % 3]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["mapped", POSTGRESQL])
@pytest.mark.release(engine="spark")  # read as on threads
def test_data_of_a_mapped_table_that_are_not_utf_8_concern_only_groups_that_decode_them(
    kind: str, engine: str, handlers: ModuleType, make: Make, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = request.getfixturevalue(kind)
    url = f"sqlite:///{tmp_path / 'shop.db'}" if kind == "mapped" else settings["event-store.url"]
    with closing(Database(url)) as shop, shop.writing() as connection:
        if kind != "mapped":
            alter = "ALTER TABLE domain_events ALTER body TYPE BYTEA USING convert_to(body::text, 'UTF8')"
            connection.execute(text(alter))
        update = "UPDATE domain_events SET body = :body WHERE event_name = :type OR event_id = :id"
        connection.execute(text(update), {"body": b"\x89PNG\xff", "type": "other", "id": "1"})  # 1 is counted
    settings |= {
        "database.url": "sqlite:///sums.db",
        "spark.master": "local[1]",
        "spark.driver-handles": "never",
        "event-handling.standard.processing.engine": engine,
        "event-handling.standard.retry.on-undecodable": "skip",
    }
    result = make(settings, handlers).run(until_caught_up=True)
    assert (bool(result.failed), sum(result.handled.values()), result.skipped) == (False, 199, 1)
    numbers = rows_of(tmp_path / "sums.db", "SELECT number FROM sums ORDER BY number")
    assert numbers == [(n,) for n in range(2, COUNT) if n % 3]


@pytest.mark.parametrize("of_read_model", ["sums.db", "shop.db"])
def test_the_database_of_a_mapped_table_is_changed_only_if_it_holds_the_read_model_too(
    mapped: dict[str, str], handlers: ModuleType, make: Make, tmp_path: Path, of_read_model: str
) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as other:
        other.execute("PRAGMA journal_mode = DELETE")
    before = (tmp_path / "shop.db").read_bytes()
    settings = mapped | {"database.url": f"sqlite:///{of_read_model}"}
    settings["event-handling.standard.processing.engine"] = "thread"
    application = make(settings, handlers)
    result = application.run(until_caught_up=True)
    assert (bool(result.failed), sum(result.handled.values())) == (False, 200)
    application.stop()
    assert ((tmp_path / "shop.db").read_bytes() == before) == (of_read_model != "shop.db")
    assert len(rows_of(tmp_path / of_read_model, "SELECT number FROM sums")) == 200


def test_a_run_until_caught_up_reports_a_last_line_without_a_line_end(
    handlers: ModuleType, make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = exported(tmp_path / "log", ".ndjson", ".ndjson") | {"database.url": "sqlite:///sums.db"}
    newest = max((tmp_path / "log").iterdir())
    newest.write_bytes(newest.read_bytes().rstrip())
    settings["event-handling.standard.processing.engine"] = "thread"
    assert not make(settings, handlers).run(until_caught_up=True).failed
    (said,) = [each for each in caplog.messages if "has no end yet" in each]
    assert said.startswith(f"{newest}:")


@pytest.mark.parametrize("scheme", ["FILE:", "File:"])
def test_the_scheme_of_files_is_read_in_any_case(files: dict[str, str], scheme: str, tmp_path: Path) -> None:
    url = files["event-store.url"].replace("file:", scheme)
    assert Application({"event-store.url": url}, [], tmp_path).event_store.head() == COUNT
    absolute = f"{scheme}//{tmp_path}/log%20of%20events"
    assert Application({"event-store.url": absolute}, [], tmp_path).event_store.head() == COUNT
    assert stores.open_event_store(absolute).head() == COUNT


def test_a_run_unpacks_each_compressed_file_once(
    handlers: ModuleType, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported(tmp_path / "log", ".ndjson.gz", ".ndjson.zst", ".jsonl.gz")
    names, ended = sorted(path.name for path in (tmp_path / "log").iterdir()), note_ends(monkeypatch)
    asked = threading.Event()
    caught_up, reading = Processors._caught_up, FileEventSource.read

    def asking(processors: Processors) -> bool:
        found = caught_up(processors)
        asked.set()
        return found

    def read(self: FileEventSource, after: int, *others: Any) -> Any:
        if after:  # by now the run has checked whether it has caught up, without progress
            assert asked.wait(SECONDS)
        return reading(self, after, *others)

    monkeypatch.setattr(Processors, "_caught_up", asking)
    monkeypatch.setattr(FileEventSource, "read", read)
    settings = {
        "event-store.url": "file:log",
        "database.url": "sqlite:///sums.db",
        "event-handling.standard.processing.engine": "thread",
        "event-handling.standard.batch.fetch-size": 10,
    }
    assert not make(settings, handlers).run(until_caught_up=True).failed
    assert rows_of(tmp_path / "sums.db", "SELECT count(*) FROM sums") == [(200,)]
    assert ended == names


def held(folder: Path) -> list[str]:
    """Return which files of a folder this process has open, and which of its threads talk to EventSourcingDB."""
    files = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    threads = [each.name for each in threading.enumerate() if each.name == "opencqrs-eventsourcingdb"]
    return [*(each for each in files if each.startswith(f"{folder}/log")), *threads]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="what is open is asked of Linux")
@pytest.mark.parametrize("kind", ["gzipped", "zstandard", "parquet", "eventsourcingdb"])
def test_a_stop_closes_the_event_store_and_the_next_use_opens_it_again(
    kind: str, handlers: ModuleType, make: Make, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    application = make({**request.getfixturevalue(kind), "database.url": "sqlite:///sums.db"}, handlers)
    before = held(tmp_path)
    for _ in range(2):
        source = application.event_store
        assert [len(source.read(after, 10, Selection()).events) for after in (0, 10)] == [10, 10]
        assert len(held(tmp_path)) > len(before)
        application.stop()
        assert held(tmp_path) == before


def test_the_event_store_of_an_application_is_the_object_of_the_package(
    handlers: ModuleType, make: Make, install: Callable[..., None], databases_closed: None, tmp_path: Path
) -> None:
    install("shelf", reading="open_reading")
    application = make({"event-store.url": f"reading://{tmp_path}/shelf.db", "database.url": "sqlite://"}, handlers)
    store = application.event_store
    assert type(store).__name__ == "Reading"
    assert application.event_store is store
    store.failing = True
    with pytest.raises(OSError, match="shelf is locked"):
        application.checked_event_store.read(0, 1, Selection())


@pytest.mark.parametrize("scheme", ["closing", "reading"])  # the second one is checked
def test_a_stop_closes_the_event_store_of_a_package_and_continues_if_that_fails(
    scheme: str,
    handlers: ModuleType,
    make: Make,
    install: Callable[..., None],
    databases_closed: None,
    tmp_path: Path,
    caplog: Any,
) -> None:
    install("shelf", **{scheme: f"open_{scheme}"})
    SqlEventStore(Database(f"sqlite:///{tmp_path}/shelf.db")).append(events())
    store = {"event-store.url": f"{scheme}://{tmp_path}/shelf.db", "event-store.api-token": TOKEN}
    thread = {"event-handling.standard.processing.engine": "thread", "database.url": "sqlite:///sums.db"}
    application = make({**store, **thread}, handlers)
    for number in (1, 2):
        assert not application.run(until_caught_up=True).failed
        assert application.event_store.closed == number
    assert caplog.text.count(f"the event store {scheme.title()} could not be closed: OSError: busy") == 2
    assert rows_of(tmp_path / "sums.db", "SELECT count(*) FROM sums") == [(200,)]


@pytest.mark.parametrize("kind", ["files", "eventsourcingdb", "mapped"])
def test_without_a_database_a_handler_with_a_connection_is_refused_at_the_start(
    kind: str, handlers: ModuleType, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = {**request.getfixturevalue(kind), "event-handling.standard.processing.engine": "thread"}
    with pytest.raises(AssemblyError, match="OCQ-524"):
        Application(settings, [handlers], tmp_path).start()


def test_the_database_of_a_mapped_table_is_not_used_for_read_models(
    mapped: dict[str, str], handlers: ModuleType, tmp_path: Path
) -> None:
    application = Application(mapped, [handlers], tmp_path)
    (decision,) = [one for one in application.conditions() if one.subject == "database"]
    assert decision.choice == "none"
    assert decision.reason == "the event store is only read, and no other one is configured or registered"
    assert pickle.loads(pickle.dumps(application.blueprint)) == application.blueprint
    assert len({application.blueprint}) == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"event-store.mapping.table": "t"}, "[OCQ-313] the mapping of a table lacks position, id, type, data"),
        (
            {"event-store.mapping.subject": "s"},
            "[OCQ-313] the mapping of a table lacks table, position, id, type, data",
        ),
        (
            {"event-store.url": "file:log"}
            | {f"event-store.mapping.{n}": n for n in ("table", "position", "id", "type", "data")},
            "[OCQ-325] event-store.mapping names a table, but the event store is not a SQL database",
        ),
    ],
)
def test_an_invalid_mapping_is_refused(
    settings: dict[str, str], said: str, handlers: ModuleType, tmp_path: Path
) -> None:
    with pytest.raises(EventStoreError) as caught:
        Application(settings, [handlers], tmp_path)
    assert str(caught.value).splitlines()[0] == said


def test_the_token_is_never_shown(eventsourcingdb: dict[str, str], handlers: ModuleType, tmp_path: Path) -> None:
    application = Application(eventsourcingdb, [handlers], tmp_path)
    shown = [str(application.configuration.value("event-store.api-token")), repr(application.blueprint)]
    shown += [repr(application.configuration.settings), repr(application.configuration)]
    assert not [text for text in shown if TOKEN in text]


@pytest.mark.parametrize("url", ["eventsourcingdb://{}@host", "http://{}@host:3000", "eventsourcingdb://h?token={}"])
def test_a_token_in_the_url_is_never_shown(url: str, handlers: ModuleType, tmp_path: Path) -> None:
    application = Application({"event-store.url": url.format(TOKEN)}, [handlers], tmp_path)
    shown = [repr(application.blueprint), repr(application.configuration.settings), repr(application.configuration)]
    shown += [repr(application.configuration.value("event-store.url")), repr(application)]
    with pytest.raises(EventStoreError) as caught:
        _ = application.event_store
    shown += [str(caught.value), repr(caught.value)]
    assert not [text for text in shown if TOKEN in text]


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://localhost:3000", "OCQ-330"),
        ("file://elsewhere/log", "OCQ-344"),
        ("mongodb://host/db", "OCQ-302"),
        ("eventsourcingdb://u:p@host", "OCQ-330"),
    ],
)
def test_a_url_that_names_no_event_store_is_refused(url: str, code: str, handlers: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(EventStoreError) as caught:
        _ = Application({"event-store.url": url}, [handlers], tmp_path).event_store
    assert caught.value.code == code


def test_wrong_results_of_a_registered_event_store_are_refused_with_its_masked_url(
    handlers: ModuleType, install: Callable[..., None], make: Make
) -> None:
    install("shelf", headless="open_headless")
    application = make({"event-store.url": "headless://ada:secret@shelf", "database.url": "sqlite:///x.db"}, handlers)
    store = application.checked_event_store
    for use in (application.run, store.head, lambda: store.read(0, 1, Selection())):
        with pytest.raises(EventStoreError, match=r"OCQ-354.*of the event store Headless returned None") as caught:
            use()
        assert caught.value.where == "headless://ada:***@shelf"
    with pytest.raises(EventStoreError, match="OCQ-354"):
        stores.open_event_store("headless://shelf").head()


@pytest.mark.parametrize(
    ("scheme", "registered", "message"),
    [
        ("torn", "raises", "OCQ-531.*scheme 'torn' cannot be opened: OSError: no shelf here"),
        ("text", "returns_text", "OCQ-531.*'text' registers returned str, which has no head, read, .*EventSource"),
        ("lost", "missing", "OCQ-531.*scheme 'lost' cannot be opened: AttributeError.*missing"),
        ("shalf", "", "OCQ-302.*'shalf' are not supported.*mean shelf.*file:…, .*shelf://…, sqlite:///…; or install"),
    ],
)
def test_an_unusable_registered_event_store_raises_one_error_that_says_why(
    scheme: str, registered: str, message: str, handlers: ModuleType, install: Callable[..., None], tmp_path: Path
) -> None:
    install("shelf", shelf="open_shelf", **({scheme: registered} if registered else {}))
    application = Application({"event-store.url": f"{scheme}://x"}, [], tmp_path)

    with pytest.raises(EventStoreError) as caught:
        _ = application.event_store

    assert re.search(message, str(caught.value), re.DOTALL)


def test_two_packages_with_one_scheme_are_refused(
    handlers: ModuleType, install: Callable[..., None], tmp_path: Path
) -> None:
    install("shelf", shelf="open_shelf")
    install("other-shelf", shelf="raises")

    with pytest.raises(EventStoreError, match=r"OCQ-531.*2 packages register event stores of the scheme 'shelf'"):
        _ = Application({"event-store.url": "shelf://x"}, [], tmp_path).event_store


def test_a_misspelled_scheme_is_raised_rather_than_the_missing_database(handlers: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(EventStoreError, match=r"\[OCQ-302\].*'postgrsql' are not supported"):
        Application({"event-store.url": "postgrsql://ada:secret@h/d"}, [handlers], tmp_path).start()


@pytest.mark.postgresql
def test_events_held_up_by_an_open_transaction_of_others_lag_and_are_waited_for(
    make, mapped_postgresql, handlers
) -> None:
    settings = {**mapped_postgresql, "database.url": "sqlite:///read.db"}
    settings["event-handling.standard.processing.engine"] = "thread"
    application = make(settings, handlers)
    group = application.groups[0].name
    application.start()
    newest = application.await_position(group)
    engine = create_engine(Database(mapped_postgresql["event-store.url"]).engine.url)
    columns = "event_id, stream, event_name, body, headers"
    row = f"INSERT INTO domain_events ({columns}) VALUES (:id, '/x', 't', '{{}}', '{{}}')"
    with engine.connect() as slow, engine.begin() as quick:
        slow.execute(text(row), {"id": "slow"})
        quick.execute(text(row), {"id": "quick"})
        quick.commit()
        with pytest.raises(WaitTimedOutError):
            application.await_position(group, timeout=0.5)
        (status, *_) = application.status([group])
        assert status.lag == 2
        slow.commit()
    assert application.await_position(group, timeout=60) == newest + 2
    engine.dispose()
