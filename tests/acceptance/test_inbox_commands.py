"""What a person sees of parked events, and does with them, on the command line."""

from __future__ import annotations

import getpass
import re
import shlex
import socket
import sqlite3
import subprocess
from contextlib import closing
from typing import Any

import pytest

HANDLERS = """
from dataclasses import dataclass
from pathlib import Path
from opencqrs_py import event_handling, event_type
from sqlalchemy import Connection

@event_type("library.book-lent.v1")
@dataclass(frozen=True)
class BookLent:
    isbn: str

@event_handling("late-fines")
def fine(event: BookLent, connection: Connection) -> None:
    if event.isbn == "isbn-2" and not Path(__file__).with_name("fixed").exists():
        raise ValueError(f"no fine for {event.isbn}")
"""
SETTINGS = """
opencqrs:
  event-store: {url: "sqlite:///events.db"}
  database: {url: "sqlite:///read.db"}
  event-handling:
    standard:
      processing: {engine: thread}
      life-cycle: {partitions: 2}
      retry: {initial-interval: 1ms, max-attempts: 1, on-exhausted: park, on-undecodable: park}
      park: {retry: {initial-interval: 1h}}
"""
TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00")
WHO = f"{getpass.getuser()}@{socket.gethostname()}"
UNREADABLE = "[OCQ-211] EventFormatError: the event's data do not fit BookLent (isbn: Field required)"
TAKEN_UP = (
    "a node that runs the group takes it up within seconds (a scheduled group at its next tick, a partition that backs "
    "off after its pause); without one, the next opencqrs run does"
)


@pytest.fixture
def parking(project: Any, event_line: Any) -> Any:
    """A project with four events: the second one fails, the third waits after it, the fourth cannot be decoded."""
    project.write("handlers.py", HANDLERS)
    project.write("application.yaml", SETTINGS)
    lines = [event_line(1), event_line(2), event_line(2, id="2b"), event_line(4, data={})]
    project.write("events.ndjson", "\n".join(lines))
    project.opencqrs("events", "import", "events.ndjson")
    return project


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def parked(request: pytest.FixtureRequest, parking: Any) -> Any:
    """The same project after a run, on each database."""
    if request.param == "postgresql":
        url = request.getfixturevalue("fresh_url")("postgresql")
        parking.write("application.yaml", SETTINGS.replace("sqlite:///read.db", url))
    run = parking.opencqrs("run", "--until-caught-up", "--format", "json")
    assert (run.code, run.json["parked"], run.json["skipped"]) == (3, 3, 0)
    return parking


def said(project: Any, *arguments: str) -> list[str]:
    """Return the output of a command without the times."""
    ran = project.opencqrs("inbox", *arguments)
    assert ran.code == 0, ran.err
    return TIME.sub("T", ran.out).splitlines()


def parked_counts(project: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for partition in project.opencqrs("status", "--format", "json").json[0]["partitions"]:
        counts |= partition["parked"]
    return counts


@pytest.mark.release(parked="sqlite")
def test_waiting_events_can_be_listed_and_changed_by_commands(parked):
    assert said(parked, "list", "--group", "Late_Fines") == [
        "[late-fines /books/isbn-2] event 2 at position 2 (library.book-lent.v1) retrying after 2 attempts, "
        "next attempt T: ValueError: no fine for isbn-2",
        "[late-fines /books/isbn-2] event 2b at position 3 (library.book-lent.v1) pending, "
        "an earlier event of its sequence comes first",
        "[late-fines /books/isbn-4] event 4 at position 4 (library.book-lent.v1) undecodable after 1 attempt: "
        + UNREADABLE,
    ]
    assert parked_counts(parked) == {"retrying": 1, "pending": 1, "undecodable": 1}
    shown = said(parked, "show", "3", "--group", "late-fines")
    assert shown[:3] == [
        "[late-fines /books/isbn-2] event 2b at position 3",
        "pending, an earlier event of its sequence comes first; came in T; attempts used up: 0",
        "it waits behind event 2 at position 2, retrying after 2 attempts, next attempt T",
    ]
    assert shown[-1] == "to leave it unhandled:    opencqrs inbox skip --group late-fines --event 2b --reason TEXT"
    as_json = parked.opencqrs("inbox", "show", "--event", "2", "--format", "json").json
    assert (as_json["event"]["data"], as_json["retries"]) == ({"isbn": "isbn-2"}, 1)
    assert "raise ValueError(f" in as_json["errors"][-1]["lines"]

    behind = "[late-fines /books/isbn-2] event 2b at position 3, pending"
    first = "[late-fines /books/isbn-2] event 2 at position 2"
    assert said(parked, "pause", "--event", "2b", "--dry-run") == [f"{behind}: would be paused"]
    assert said(parked, "pause", "--event", "2") == [f"{first}, retrying: paused"]
    assert said(parked, "pause", "--event", "2b") == [f"{behind}: paused"]
    later = parked.opencqrs("inbox", "resume", "--event", "2b")
    held = f"{behind.replace('pending', 'paused')}: resumed, but waits for event 2 at position 2, paused"
    assert (later.code, later.out.splitlines(), later.err) == (0, [held], "")
    assert said(parked, "resume", "--status", "paused") == [f"{first}, paused: resumed"]
    assert said(parked, "set-attempts", "0", "--event", "2") == [f"{first}, retrying: attempts used up: 0"]
    (changed,) = parked.opencqrs("inbox", "retry", "--event", "2b", "--format", "json").json["changed"]
    assert (changed["position"], changed["meant_position"], changed["status"]) == (2, 3, "retrying")

    skipped = parked.opencqrs("inbox", "skip", "--event", "4", "--reason", "no book")
    assert skipped.out.splitlines() == ["[late-fines /books/isbn-4] event 4 at position 4, undecodable: skipped"]
    assert skipped.err.splitlines() == [TAKEN_UP]
    (line,) = said(parked, "list", "--status", "skipped")
    assert line.endswith(f"skipped after 1 attempt at T: no book (skipped by {WHO}; last error: {UNREADABLE})")
    (row,) = parked.opencqrs("events", "skipped", "--group", "Late-Fines", "--format", "json").json
    assert row["event_id"] == "4"
    unknown = parked.opencqrs("events", "skipped", "--group", "late-fine")
    assert (unknown.code, unknown.out) == (2, "")
    assert unknown.err.startswith("[OCQ-509] no handler belongs to a group 'late-fine'")

    parked.write("fixed", "")
    run = parked.opencqrs("run", "--until-caught-up")
    assert run.code == 0, run.err
    nothing = parked.opencqrs("inbox", "list")
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "nothing waits in the inbox\n")
    assert parked_counts(parked) == {}


def test_the_shown_commands_work_verbatim_on_the_project_of_the_options(parking, tmp_path):
    parking.write("application-night.yaml", 'opencqrs: {database: {url: "sqlite:///night.db"}}')
    (tmp_path / "my library").symlink_to(parking.folder)
    given = ("--project", str(tmp_path / "my library"), "--profile", "night", "--set", "logging.format=text")
    run = parking.opencqrs("run", "--until-caught-up", *given)
    typed = f"--project '{tmp_path}/my library' --profile night --set logging.format=text"
    assert run.err.splitlines()[-1] == f"3 events wait in the inbox: opencqrs inbox list {typed}"
    shown = parking.opencqrs("inbox", "show", "--event", "4", *given)
    commands = [line[26:] for line in shown.out.splitlines() if line.startswith("to ")]
    assert commands[-1] == f"opencqrs inbox skip --group late-fines --event 4 {typed} --reason TEXT"
    for command in commands:
        ran = parking.opencqrs(*shlex.split(command)[1:])
        assert (ran.code, "event 4 at position 4" in ran.out) == (0, True), command
    assert "event 4" not in parking.opencqrs("inbox", "list", *given).out


def test_a_change_of_all_events_needs_an_explicit_option(parking):
    run = parking.opencqrs("inbox", "retry", "--dry-run")
    assert (run.code, run.out) == (2, "")
    assert run.err.splitlines() == [
        "Usage: opencqrs inbox retry [OPTIONS]",
        "Try 'opencqrs inbox retry --help' for help.",
        "",
        "Error: select events: --group, --status, --sequence, --event or --position; or --all",
    ]


def test_an_event_that_is_not_waiting_is_not_changed(parking):
    parking.opencqrs("status")  # creates the database, which would be another line
    run = parking.opencqrs("inbox", "skip", "--event", "1", "--group", "LATE-FINES", "--reason", "no book")
    assert (run.code, run.out) == (2, "")
    assert run.err.splitlines() == [
        "[OCQ-605] nothing in the inbox matches group LATE-FINES, event 1",
        "  fix:   look at opencqrs inbox list",
    ]


def test_a_change_of_all_events_names_the_groups_it_does_not_affect(parking):
    parking.opencqrs("run", "--until-caught-up")
    parking.write("handlers.py", HANDLERS.replace('"late-fines"', '"overdue-fines"'))
    in_memory = (
        HANDLERS.partition("@event_type")[0] + "@event_handling('fees', types=['*'])\ndef fee(event: Event): ...\n"
    )
    parking.write("fees.py", in_memory.replace("import event_handling", "import Event, event_handling"))
    parking.write("application.yaml", f"{SETTINGS}    groups: {{fees: {{progress: {{tracking: in-memory}}}}}}\n")
    assert parking.opencqrs("run", "--until-caught-up", "--group", "overdue-fines").code == 3
    left = [
        "group fees keeps its progress in memory: only its own process sees its inbox",
        "3 events wait in the inbox of group late-fines, which has no handler here: not changed",
    ]
    for command in (["retry", "--all"], ["skip", "--event", "2", "--reason", "no book", "--dry-run"]):
        run = parking.opencqrs("inbox", *command)
        assert (run.code, "late-fines" in run.out) == (0, False)
        assert run.err.splitlines()[:2] == left
    run = parking.opencqrs("inbox", "pause", "--group", "overdue-fines", "--format", "json")
    assert (run.code, len(run.json["changed"]), run.err) == (0, 3, "")


def test_an_inbox_in_memory_is_invisible_to_other_processes(parking):
    in_memory = ("--set", "event-handling.standard.progress.tracking=in-memory")
    listed = parking.opencqrs("inbox", "list", *in_memory)
    assert (listed.code, listed.out) == (0, "")
    assert listed.err.splitlines()[1:] == [  # after the line that the database is not there
        "group late-fines keeps its progress in memory: only its own process sees its inbox",
        "nothing waits in the inbox",
    ]
    run = parking.opencqrs("inbox", "pause", "--group", "late-fines", *in_memory)
    assert (run.code, run.out) == (2, "")
    assert run.err.splitlines() == [
        "[OCQ-606] the inbox of group 'late-fines' is in the memory of the process that runs it, and not visible here",
        "  fix:   set event-handling.groups[late-fines].progress.tracking: sql",
    ]


SCHEDULED = """
opencqrs:
  event-store: {url: "sqlite:///events.db"}
  database: {url: "sqlite:///read.db"}
  event-handling:
    standard: {processing: {engine: thread, mode: scheduled}, batch: {mode: all}}
"""


def test_purge_removes_expired_events_of_a_scheduled_group(parking):
    parking.write("application.yaml", SCHEDULED)
    run = parking.opencqrs("run", "--until-caught-up", "--format", "json")
    assert (run.code, run.json["parked"], run.json["skipped"]) == (3, 3, 0)
    run = parking.opencqrs("inbox", "purge", "--all")
    assert (run.code, run.out) == (2, "")
    refused = "[OCQ-605] none of the events that match is expired: 2 retrying, 1 undecodable"
    assert run.err.splitlines()[0] == refused

    with closing(sqlite3.connect(parking.folder / "read.db")) as database, database:
        database.execute("UPDATE opencqrs_inbox SET expires_ms = 0 WHERE status = 'retrying'")
    first, second = said(parking, "list", "--status", "expired")
    assert first.startswith("[late-fines /books/isbn-2] event 2 at position 2 (library.book-lent.v1) expired")
    assert second.startswith("[late-fines /books/isbn-2] event 2b at position 3 (library.book-lent.v1) expired")
    shown = said(parking, "show", "--event", "2")
    assert shown[1].endswith("; expires T")
    assert shown[-2:] == [
        "to remove it:             opencqrs inbox purge --group late-fines --event 2",
        "to leave it unhandled:    opencqrs inbox skip --group late-fines --event 2 --reason TEXT",
    ]
    gone = "[late-fines /books/isbn-2] event 2 at position 2, expired"
    assert said(parking, "set-attempts", "1", "--event", "2", "--dry-run")[0].startswith(f"{gone}: attempts used up ")
    assert said(parking, "purge", "--event", "2", "--dry-run") == [f"{gone}: would be removed"]
    assert said(parking, "purge", "--event", "2") == [f"{gone}: removed"]
    (purged,) = parking.opencqrs("inbox", "purge", "--all", "--format", "json").json["changed"]
    assert (purged["position"], purged["was"], purged["status"]) == (3, "expired", "removed")
    assert [row["event_id"] for row in parking.opencqrs("inbox", "list", "--format", "json").json] == ["4"]
    assert parking.opencqrs("events", "skipped", "--format", "json").json == []


@pytest.mark.release  # wording
def test_an_event_whose_batch_waits_for_a_later_event_names_that_one(parking):
    parking.write("application.yaml", SCHEDULED.replace("batch: {mode: all}", "batch: {mode: fail-first}"))
    parking.opencqrs("run", "--until-caught-up")
    parking.opencqrs("inbox", "pause", "--event", "2b")
    parking.opencqrs("inbox", "retry", "--event", "2")
    parking.opencqrs("run", "--until-caught-up")
    retrying = "retrying after 1 attempt, waits for event 2b at position 3, paused"
    (line,) = said(parking, "list", "--event", "2")
    assert line == (
        f"[late-fines /books/isbn-2] event 2 at position 2 (library.book-lent.v1) {retrying}: "
        "ValueError: no fine for isbn-2"
    )
    assert said(parking, "show", "--event", "2")[1] == f"{retrying}; came in T; attempts used up: 1"
    assert said(parking, "show", "--event", "2b")[2] == f"it waits behind event 2 at position 2, {retrying}"
    (row,) = parking.opencqrs("inbox", "list", "--event", "2", "--format", "json").json
    assert (row["status"], row["due_at"]) == ("retrying", None)


@pytest.mark.release(id_="4")
@pytest.mark.parametrize(("isbn", "id_"), [(2, "4"), (2, "2b")], ids=["other-sequence", "same-sequence"])
def test_the_shown_commands_match_no_other_event_with_the_same_id(parking, event_line, isbn, id_):
    parking.write("more.ndjson", event_line(isbn, id=id_, source="urn:another"))
    parking.opencqrs("events", "import", "more.ndjson")
    parking.opencqrs("run", "--until-caught-up")
    shown = said(parking, "show", "5", "--group", "late-fines")
    commands = [line.partition(":")[2].strip().removesuffix("TEXT") for line in shown if line.startswith("to ")]
    assert all(f"--sequence /books/isbn-2 --event {id_} --position 5" in command for command in commands)
    parking.opencqrs(*shlex.split(commands[-1])[1:], "why")
    left = parking.opencqrs("inbox", "list", "--format", "json").json
    assert [row["position"] for row in left] == [2, 3, 4]
    (skipped,) = parking.opencqrs("inbox", "list", "--status", "skipped", "--position", "5", "--format", "json").json
    assert (skipped["event_id"], skipped["event_source"]) == (id_, "urn:another")
    none = parking.opencqrs("inbox", "list", "--status", "skipped", "--position", "4")
    assert (none.code, none.err) == (0, "no event that was skipped matches position 4\n")


@pytest.mark.release(parked="postgresql")
def test_a_position_selects_an_event(parked):
    (line,) = said(parked, "list", "--position", "3")
    assert line.startswith("[late-fines /books/isbn-2] event 2b at position 3")
    assert said(parked, "pause", "--position", "3") == [
        "[late-fines /books/isbn-2] event 2b at position 3, pending: paused"
    ]
    run = parked.opencqrs("inbox", "resume", "--position", "2")
    assert (run.code, run.err.splitlines()[0]) == (
        2,
        "[OCQ-605] none of the events that match position 2 is paused: 1 retrying",
    )


@pytest.mark.release  # as above, where events expire
def test_a_run_of_a_scheduled_group_exits_with_3_while_events_wait(parking):
    grace = "schedule: {error-grace-period: 1h}, batch:"
    parking.write("application.yaml", SCHEDULED.replace("batch:", grace))
    for _ in range(2):
        assert parking.opencqrs("run", "--until-caught-up").code == 3
    parking.opencqrs("inbox", "skip", "--event", "4", "--reason", "no book")
    parking.write("fixed", "")
    run = parking.opencqrs("run", "--until-caught-up", "--format", "json")
    assert (run.code, run.json["parked"]) == (0, 0)


DEADLY = """
import os, signal
from pathlib import Path
from opencqrs_py import Event, event_handling

@event_handling("late-fines", types=["*"])
def fine(event: Event) -> None:
    if event.id == "3" and Path(__file__).with_name("deadly").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    if event.id == "2":
        raise ValueError("no fine")
"""


@pytest.mark.release  # contract/test_waiting_groups.py removes them
def test_a_run_that_removes_expired_events_says_so_and_exits_with_3(parking):
    parking.write("application.yaml", SCHEDULED)
    parking.opencqrs("run", "--until-caught-up")
    in_an_hour = "UPDATE opencqrs_inbox SET expires_ms = (unixepoch() + 3600) * 1000 WHERE status = 'retrying'"
    with closing(sqlite3.connect(parking.folder / "read.db")) as database, database:
        database.execute(in_an_hour)
    paused = "[late-fines /books/isbn-2] event 2 at position 2, retrying"
    assert said(parking, "pause", "--event", "2", "--dry-run") == [f"{paused}: would be paused; would still expire T"]
    assert said(parking, "pause", "--event", "2") == [f"{paused}: paused; still expires T"]
    parking.opencqrs("inbox", "skip", "--event", "4", "--reason", "no book")
    with closing(sqlite3.connect(parking.folder / "read.db")) as database, database:
        database.execute("UPDATE opencqrs_inbox SET expires_ms = 0")
    parking.write("application.yaml", f"{SCHEDULED}    groups: {{late-fines: {{schedule: {{expires-after: 1h}}}}}}\n")
    run = parking.opencqrs("run", "--until-caught-up")
    assert run.code == 3
    assert run.err.splitlines()[-1] == (
        "2 events expired in this run, and were removed from the inbox unhandled (schedule.expires-after)"
    )
    again = parking.opencqrs("run", "--until-caught-up", "--format", "json")
    assert (again.code, again.json["expired"], again.json["parked"]) == (0, 0, 0)


@pytest.mark.release  # unit/processing/inbox/test_scheduled.py
def test_a_run_tries_only_what_an_interrupted_tick_left(parking, event_line):
    parking.write("handlers.py", DEADLY)
    nightly = "schedule: {cron: '0 0 1 1 *'}, processing: {batch-size: 1,"
    parking.write("application.yaml", SCHEDULED.replace("processing: {", nightly))
    parking.write("events.ndjson", "\n".join(event_line(number) for number in range(1, 7)))
    parking.opencqrs("events", "import", "events.ndjson", "--format", "json")
    parking.write("deadly", "")
    command = parking.command("run", "--until-caught-up")
    assert subprocess.run(command, cwd=parking.folder, capture_output=True, check=False).returncode == -9
    (parking.folder / "deadly").unlink()
    waiting = {row["event_id"]: row["status"] for row in parking.opencqrs("inbox", "list", "--format", "json").json}
    assert {waiting.pop("2"), *waiting.values()} == {"retrying", "pending"}
    parking.opencqrs("inbox", "pause", "--event", "5")
    run = parking.opencqrs("run", "--group", "late-fines", "--until-caught-up", "--format", "json")
    assert (run.code, run.json["parked"]) == (3, 2)
    left = parking.opencqrs("inbox", "list", "--format", "json").json
    assert {row["event_id"]: (row["status"], row["attempts"]) for row in left} == {
        "2": ("retrying", 1),
        "5": ("paused", 0),
    }
