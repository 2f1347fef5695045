"""Resources of the project's containers: opened at the start, closed at the stop."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event as Signal
from types import ModuleType

import pytest
from support.zygote import Zygote

from opencqrs_py import Application, Event
from opencqrs_py.errors import ProjectCodeError
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.notices import Observer

HANDLERS = """
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Event as Signal

from dependency_injector import containers, providers
from opencqrs_py import event_handling

IN_HAND, MAY_END = Signal(), Signal()
LOG = Path(__file__).with_name("log.txt")

def note(what: str) -> None:
    with LOG.open("a") as log:
        log.write(what + "\\n")

class Line:
    is_open = True

def lend_line() -> Iterator[Line]:
    note(f"open in {os.getpid()}")
    line = Line()
    yield line
    line.is_open = False
    note("close")
    if "fails-to-close" in LOG.read_text():
        raise OSError("busy")

class Sender:
    def __init__(self, line: Line) -> None:
        self.line = line

def lend_other(sender: Sender) -> Iterator[int]:
    if "fails-to-open" in LOG.read_text():
        raise OSError("no other line")
    note("open other")
    yield 1
    note("close other")

class Container(containers.DeclarativeContainer):
    sender = providers.Singleton(Sender, line=providers.Dependency())
    other = providers.Resource(lend_other, sender)
    line = providers.Resource(lend_line)
    sender.set_kwargs(line=line)

@event_handling("sent", types=["t"])
class Handlers:
    def __init__(self, sender: Sender) -> None:
        self.sender = sender

    @event_handling
    def send(self, data: dict) -> None:
        if data.get("slow"):
            IN_HAND.set()
            MAY_END.wait(60)
        note(f"sent {data['number']} {self.sender.line.is_open}")
"""
ENGINES = [pytest.param("thread", id="thread"), pytest.param("spark", id="spark", marks=pytest.mark.spark)]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "handlers_with_resources.py").write_text(HANDLERS)
    (tmp_path / "log.txt").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("handlers_with_resources")
    del sys.modules["handlers_with_resources"]


@pytest.fixture
def make(module: ModuleType, tmp_path: Path) -> Callable[..., Application]:
    def make(engine: str = "thread", **settings: str) -> Application:
        processing = {
            "event-handling.standard.processing.engine": engine,
            "spark.master": "local[1]",
            "spark.driver-handles": "never",
        }
        return Application({**processing, **settings}, [module], tmp_path)

    return make


def append(application: Application, number: int, *, slow: bool = False) -> None:
    data = json.dumps({"number": number, "slow": slow})
    application.event_store.append([Event(0, str(number), "urn:s", "/x", "t", None, "application/json", data, None)])


def logged(folder: Path) -> list[str]:
    return (folder / "log.txt").read_text().splitlines()


@pytest.mark.parametrize("engine", ENGINES)
def test_resources_are_open_while_handlers_run_and_closed_at_the_stop_in_reverse_order(
    engine: str, make: Callable[..., Application], tmp_path: Path
) -> None:
    application = make(engine)
    append(application, 1)

    assert not application.run(until_caught_up=True).failed

    lines = logged(tmp_path)
    assert "sent 1 True" in lines
    opened = [line for line in lines if line.startswith("open in ")]
    assert len(opened) == len(set(opened)) == (1 if engine == "thread" else 2)  # the driver and its worker
    assert [line for line in lines if "other" in line or line == "close"] == ["open other", "close other", "close"]


@pytest.mark.parametrize("tracking", ["sql", "in_memory"])
def test_a_second_start_gives_handlers_resources_that_are_open_and_handles_no_event_again(
    tracking: str, make: Callable[..., Application], tmp_path: Path
) -> None:
    application = make(**{"event-handling.standard.progress.tracking": tracking})
    append(application, 1)
    application.run(until_caught_up=True)
    append(application, 2)

    application.run(until_caught_up=True)

    assert [line for line in logged(tmp_path) if "sent" in line] == ["sent 1 True", "sent 2 True"]
    assert logged(tmp_path).count("close") == 2


def test_applications_that_share_containers_close_them_with_the_last_one(
    make: Callable[..., Application], tmp_path: Path
) -> None:
    first, second = make(**{"database.url": "sqlite:///a.db"}), make(**{"database.url": "sqlite:///b.db"})
    first.start()
    second.start()

    first.stop()
    first.stop()
    assert "close" not in logged(tmp_path)
    second.stop()

    assert logged(tmp_path)[-2:] == ["close other", "close"]


def test_a_resource_that_cannot_be_opened_ends_the_start_and_the_others_are_closed(
    make: Callable[..., Application], tmp_path: Path
) -> None:
    (tmp_path / "log.txt").write_text("fails-to-open\n")

    with pytest.raises(ProjectCodeError, match=r"OCQ-217.*provider 'other' raised OSError: no other line"):
        make().start()

    assert logged(tmp_path)[-1] == "close"


def test_an_error_when_closing_is_logged(
    make: Callable[..., Application], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "log.txt").write_text("fails-to-close\n")
    application = make()
    application.start()

    application.stop()

    assert logged(tmp_path)[-2:] == ["close other", "close"]
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "resource Container.line could not be closed: OSError: busy" in record.getMessage()


class Stopped(Observer):
    """Notes when a partition has been released."""

    def __init__(self) -> None:
        self.signal = Signal()

    def stopped(self, group: str, partition: Partition) -> None:
        self.signal.set()


def test_resources_stay_open_for_a_handler_that_a_stop_did_not_wait_for(
    make: Callable[..., Application], module: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    application, observer = make(), Stopped()
    append(application, 1, slow=True)
    application.start(observer=observer)
    assert module.IN_HAND.wait(60)

    application.stop(patience=0)
    assert "resources stay open: handlers are still running (sent 0/1)" in caplog.text
    module.MAY_END.set()
    assert observer.signal.wait(60)
    assert "close" not in logged(tmp_path)

    application.stop()
    assert logged(tmp_path)[-3:] == ["sent 1 True", "close other", "close"]


ONCE = """
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from dependency_injector import containers, providers
from opencqrs_py import Event, event_handling
from sqlalchemy import Engine, create_engine

LOG = Path(__file__).with_name("log.txt")

class Line: ...

def read_model(line: Line) -> Engine:
    return create_engine("sqlite:///read.db")

def lend_line() -> Iterator[Line]:
    if LOG.exists():
        raise OSError("address in use")
    LOG.touch()
    yield Line()
    LOG.write_text(LOG.read_text() + "close")

class Container(containers.DeclarativeContainer):
    line = providers.Resource(lend_line)
    read_model = providers.Singleton(read_model, line)

@event_handling("sent", types=["*"])
class Handlers:
    def __init__(self, line: Line) -> None:
        LOG.write_text(LOG.read_text() + "make ")

    @event_handling
    def send(self, event: Event) -> None:
        if event.id == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize("id_", ["finish", "interrupt"])
@pytest.mark.parametrize("form", ["json", "text"])
def test_the_table_at_the_end_of_a_run_opens_and_creates_nothing_again(
    form: str, id_: str, zygote: Zygote, tmp_path: Path
) -> None:
    (tmp_path / "handlers.py").write_text(ONCE)
    line = json.dumps({"specversion": "1.0", "id": id_, "source": "urn:s", "type": "t", "subject": "/x", "data": {}})
    settings = {"OPENCQRS_EVENT_HANDLING_STANDARD_PROCESSING_ENGINE": "thread"}
    assert zygote.opencqrs(tmp_path, ["events", "import", "-"], settings, stdin=line).code == 0

    format_ = ["--format", "json"] if form == "json" else []
    ran = zygote.opencqrs(tmp_path, ["run", *(["--until-caught-up"] if id_ == "finish" else []), *format_], settings)

    assert (ran.code, "OCQ-217" in ran.err) == (0 if id_ == "finish" else 130, False)
    shown = ran.json["groups"][0]["group"] if form == "json" else ran.out.splitlines()[-1].split()[0]
    assert shown == "sent"
    assert (tmp_path / "log.txt").read_text() == "make close"


def test_blocks_that_keep_resources_may_be_nested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_read_model = "    read_model = providers.Singleton(read_model, line)\n"
    assert of_read_model in ONCE
    (tmp_path / "handlers.py").write_text(ONCE.replace(of_read_model, ""))  # an engine that would not be disposed of
    monkeypatch.chdir(tmp_path)
    overrides = ["event-handling.standard.processing.engine=thread"]
    with Application.from_project(tmp_path, overrides=overrides) as application:
        with application.keeping_resources():
            with application.keeping_resources():
                application.run(until_caught_up=True)
            assert (tmp_path / "log.txt").read_text() == "make "
            application.run(until_caught_up=True)
        assert (tmp_path / "log.txt").read_text() == "make close"


FOR_MAIL = """
from dependency_injector import containers, providers
from opencqrs_py import Event, event_handling

class Mail: ...

def connect() -> Mail:
    raise ConnectionError("no mail server")

class Container(containers.DeclarativeContainer):
    mail = providers.KIND(connect)

@event_handling("sent", types=["*"])
class Sender:
    def __init__(self, mail: Mail) -> None: ...

    @event_handling
    def send(self, event: Event) -> None: ...

@event_handling("books", types=["*"])
def lend(event: Event) -> None: ...
"""


@pytest.mark.release(kind="Singleton")
@pytest.mark.parametrize("kind", ["Resource", "Singleton"])
def test_resources_of_handler_classes_are_opened_only_by_a_start(kind: str, zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "handlers.py").write_text(FOR_MAIL.replace("KIND", kind))
    line = json.dumps({"specversion": "1.0", "id": "1", "source": "urn:s", "type": "t", "subject": "/x", "data": {}})
    settings = {"OPENCQRS_EVENT_HANDLING_STANDARD_PROCESSING_ENGINE": "thread"}

    def ran(*arguments: str) -> tuple[int, bool]:
        done = zygote.opencqrs(tmp_path, arguments, settings, stdin=line)
        return done.code, "provider 'mail' raised ConnectionError: no mail server" in done.err + done.out

    assert ran("events", "import", "-") == (0, False)
    for looks in (["status"], ["events", "list"], ["events", "skipped"], ["inbox", "list"], ["nodes"]):
        assert ran(*looks) == (0, False), looks
    assert ran("health") == (1, False)  # nothing runs the groups
    assert ran("conditions") == (2, True)
    settings["OPENCQRS_DATABASE_URL"] = "sqlite:///read.db"
    assert ran("run", "--until-caught-up") == (2, True)
    assert ran("run", "--until-caught-up", "--group", "books") == (2, True)
    assert not (tmp_path / "read.db").exists()  # a start refuses it before anything is opened
    assert not zygote.opencqrs(tmp_path, ["status", "--format", "json"], settings).json[0]["partitions"]
