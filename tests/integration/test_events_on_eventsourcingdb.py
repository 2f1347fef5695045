"""``opencqrs events append|import`` into an EventSourcingDB, which gives events its own ids and times."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opencqrs_py.adapters.files import event_line
from opencqrs_py.cli.main import main
from opencqrs_py.model import Event
from opencqrs_py.testing.eventsourcingdb import EventSourcingDbStandIn

Run = Callable[..., tuple[int, str, str]]


def lines(*numbers: int) -> list[str]:
    made = (Event(0, f"mine-{n}", "urn:s", f"/a/{n}", "t", None, "application/json", "{}", None) for n in numbers)
    return [event_line(event).decode() for event in made]


@pytest.fixture
def server() -> Iterator[EventSourcingDbStandIn]:
    with EventSourcingDbStandIn(names=False) as server:
        yield server


@pytest.fixture
def events(
    server: EventSourcingDbStandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Run:
    """Runs a command in a project whose event store is the server; returns exit code, output and messages."""
    settings = f"opencqrs: {{event-store: {{url: '{server.url}', api-token: {server.api_token}}}}}\n"
    (tmp_path / "application.yaml").write_text(settings)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["events", *arguments])
        return int(ended.value.code or 0), *capfd.readouterr()

    return run


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name, numbers in (("1.ndjson", (1, 2)), ("2.ndjson", (3,))):
        (tmp_path / name).write_text("".join(lines(*numbers)))
    return ["1.ndjson", "2.ndjson"]


def stored(server: EventSourcingDbStandIn) -> list[str]:
    return [event["subject"] for event in server.log.read("/", {"recursive": True})]


def test_an_import_is_refused_unless_new_ids_are_requested(
    events: Run, server: EventSourcingDbStandIn, files: list[str]
) -> None:
    code, out, said = events("import", *files)
    assert (code, out) == (2, "")
    assert "[OCQ-337] this event store assigns its own ids" in said
    assert "where: event-store.url" in said
    assert "--new-ids" in said
    assert server.counts()["write-events"] == 0


def test_with_new_ids_events_imported_twice_are_stored_twice(
    events: Run, server: EventSourcingDbStandIn, files: list[str]
) -> None:
    code, out, _ = events("import", "--new-ids", *files)
    assert code == 0
    assert out.splitlines()[:2] == ["1.ndjson: imported 2 events", "2.ndjson: imported 1 event"]
    told = json.loads(events("import", "--new-ids", files[1], "--format", "json")[1])
    assert (told["events"], told["added"]) == (1, 1)
    assert stored(server) == ["/a/1", "/a/2", "/a/3", "/a/3"]


def test_an_append_reports_the_ids_given_by_the_store(events: Run, server: EventSourcingDbStandIn) -> None:
    told = json.loads(events("append", *lines(1, 2, 1), "--format", "json")[1])
    assert told == {"events": 3, "added": 3, "ids": ["0", "1", "2"]}
    append = ("append", "--type", "t", "--subject", "/a/1", "--data", "{}", "--format", "json")
    (newest,) = json.loads(events(*append, "--if-on", f"/a/1={told['ids'][2]}")[1])["ids"]
    assert newest == "3"
    assert events(*append, "--if-on", f"/a/1={newest}")[0] == 0
    assert events(*append, "--if-on", f"/a/1={newest}")[0] == 2
    assert stored(server) == ["/a/1", "/a/2", *["/a/1"] * 3]


@pytest.mark.parametrize("option", [("--id", "7"), ("--time", "2026-01-01T00:00:00Z")])
def test_an_id_or_a_time_that_the_store_would_not_keep_is_refused(
    events: Run, server: EventSourcingDbStandIn, option: tuple[str, str]
) -> None:
    code, out, said = events("append", "--type", "t", "--data", "{}", *option)
    assert (code, out) == (2, "")
    assert f"{option[0]} has no effect: this event store assigns its own ids and times" in " ".join(said.split())
    assert stored(server) == []
