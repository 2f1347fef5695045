"""Checks of the README and the docs that need no Spark."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from sqlalchemy import Table
from support.zygote import Zygote

import opencqrs_py
from opencqrs_py.adapters.sql import tables
from opencqrs_py.adapters.sql.tables import EVENTS, INBOX, JOB_RUNS, JOBS, PROGRESS, SKIPPED
from opencqrs_py.assembly.status import GroupStatus
from opencqrs_py.cli.main import cli
from opencqrs_py.cli.status import group_rows
from opencqrs_py.config import load
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import PartitionStatus, ProcessorState
from opencqrs_py.processing.recovery import ExponentialBackOff
from opencqrs_py.processing.supervision import FAILURE_BACK_OFF, OUTAGE_BACK_OFF

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
CHANGELOG = ROOT / "CHANGELOG.md"
REFERENCE = DOCS / "reference"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
ALL_PAGES = [*PAGES, CHANGELOG, ROOT / "CONTRIBUTING.md"]
PACKAGE = Path(opencqrs_py.__file__).parent

_BLOCK = re.compile(
    r"^```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"OCQ-\d{3}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(\+00:00|Z)")
_TABLE = re.compile(r"(?:^ *\|.*\n)+", re.MULTILINE)
_BORDER = re.compile(r"(?<!\\)\|")  # also within code, as on GitHub
_TYPED = re.compile(r"`(opencqrs [^`]+)`")


def each(of: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", of, ids=lambda page: str(page.relative_to(ROOT)))


pages = each(PAGES)


class Block(NamedTuple):
    """A block of code; ``title`` is its file name, or empty."""

    language: str
    title: str
    text: str


def blocks(page: Path, language: str | None = None) -> list[Block]:
    found = (Block(m["language"], m["title"] or "", m["text"]) for m in _BLOCK.finditer(page.read_text("utf-8")))
    return [block for block in found if language in (None, block.language)]


def prose(page: Path) -> str:
    return _BLOCK.sub("", page.read_text("utf-8"))


def sections(page: Path, level: int = 2) -> dict[str, str]:
    """Return the text below each heading of a level, by heading."""
    parts = re.split(rf"^{'#' * level} (.+)$", page.read_text("utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def first_cells(text: str) -> list[str]:
    """Return the first cell of each row of the tables in ``text``, without backticks."""
    cells = re.findall(r"^\| (.+?) \|", text, flags=re.MULTILINE)
    return [cell.strip("`") for cell in cells if cell.startswith("`")]


# ------------------------------------------------------------------------------------------------------- links and code


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@each(ALL_PAGES)
def test_links_have_existing_targets(page: Path) -> None:
    for target in (m["target"] for m in _LINK.finditer(prose(page))):
        if "://" in target:
            continue
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {target}"
        if fragment:
            headings = re.findall(r"^#+ (.+)$", prose(file), flags=re.MULTILINE)
            assert fragment in map(anchor, headings), f"{page.name} links to {target}"


@each(ALL_PAGES)
def test_each_row_of_a_table_has_the_cells_of_its_header(page: Path) -> None:
    for table in _TABLE.findall(prose(page)):
        header, *rows = table.splitlines()
        assert [row for row in rows if len(_BORDER.findall(row)) != len(_BORDER.findall(header))] == []


def test_the_changelog_names_only_documented_error_codes() -> None:
    documented = set(_CODE.findall(prose(REFERENCE / "errors.md")))
    assert set(_CODE.findall(prose(CHANGELOG))) <= documented


def test_every_page_is_in_the_index() -> None:
    index = DOCS / "index.md"
    linked = {(DOCS / m["target"]).resolve() for m in _LINK.finditer(prose(index))}
    assert {page for page in PAGES if page.is_relative_to(DOCS)} - linked == {index}


@pages
def test_python_in_docs_parses(page: Path) -> None:
    for block in blocks(page, "python"):
        ast.parse(block.text, f"{page.name} {block.title}")


@pages
def test_json_in_docs_parses(page: Path) -> None:
    for block in blocks(page, "json"):
        for document in block.text.splitlines() if block.title.endswith(".ndjson") else [block.text]:
            json.loads(document)


@pages
def test_settings_in_docs_load_without_warnings(page: Path, tmp_path: Path) -> None:
    for number, block in enumerate(blocks(page, "yaml")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "application.yaml").write_text(block.text, "utf-8")
        assert load(folder, environ={}).warnings == ()


@pytest.fixture
def opencqrs(tmp_path: Path, zygote: Zygote) -> Callable[..., str]:
    """Return a function that runs a command like a user, in the test's folder, and returns its output."""

    def opencqrs(*arguments: str) -> str:
        ran = zygote.opencqrs(tmp_path, arguments, {"OPENCQRS__EVENT_HANDLING__STANDARD__PROCESSING__ENGINE": "thread"})
        assert ran.code == 0, ran.err
        return ran.out

    return opencqrs


def save(page: Path, folder: Path, *only: str) -> None:
    """Write the files of a page, or only the named ones."""
    for block in blocks(page):
        if block.title and (not only or block.title in only):
            (folder / block.title).write_text(block.text, "utf-8")


def trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def test_the_example_of_the_readme_prints_the_output_shown(tmp_path: Path, opencqrs: Callable[..., str]) -> None:
    save(README, tmp_path)
    (console,) = blocks(README, "console")
    for part in console.text.split("$ ")[1:]:
        line, *expected = part.splitlines()
        assert trimmed(opencqrs(*line.split()[1:])) == expected


def test_the_handlers_of_the_how_to_are_a_project(tmp_path: Path, opencqrs: Callable[..., str]) -> None:
    save(DOCS / "how-to" / "handlers.md", tmp_path)
    decided = opencqrs("conditions", "--format", "json")
    sizes = {d["group"]: d["choice"] for d in json.loads(decided) if d["subject"] == "processing.batch-size"}
    in_chunks = dict.fromkeys(("catalog", "lending", "popular", "fast"), "1000")
    assert sizes == in_chunks | dict.fromkeys(
        ("audit", "figures", "reminders", "journal", "notices", "desk", "north-desk", "south-desk"), "1"
    )


def test_the_handlers_of_the_how_to_handle_events(tmp_path: Path, opencqrs: Callable[..., str]) -> None:
    save(DOCS / "how-to" / "handlers.md", tmp_path)
    lent = [("book-lent.v1", "/books/1", {"isbn": "1", "reader": "Ada"}), ("book-lent.v0", "/r/Bob", {"isbn": "2"})]
    bought = [("books-purchased.v1", "/books", {"books": [{"isbn": "3", "title": "x"}, {"isbn": "4", "title": "y"}]})]
    dropped = [("draft-saved.v1", "/drafts/1", {})]
    lines = (
        json.dumps({"id": str(n), "source": "s", "type": f"library.{kind}", "subject": subject, "data": data})
        for n, (kind, subject, data) in enumerate([*lent, *bought, *dropped, *lent[:1] * 11])
    )
    (tmp_path / "events.ndjson").write_text("\n".join(lines), "utf-8")
    opencqrs("events", "import", "events.ndjson")
    out = opencqrs("run", "--until-caught-up")
    assert "begin 1" in out
    assert "end 14" in out
    assert "1 lent to Ada" in (tmp_path / "journal.txt").read_text("utf-8")
    with closing(sqlite3.connect(tmp_path / "opencqrs.db")) as database:
        rows = database.execute("SELECT position, isbn, reader FROM lending LIMIT 2").fetchall()
        assert rows == [(1, "1", "Ada"), (2, "2", "Bob")]
        assert database.execute("SELECT count(*) FROM fast").fetchone() == (13,)
        assert database.execute("SELECT isbn, title FROM books ORDER BY isbn").fetchall() == [("3", "x"), ("4", "y")]


def test_the_columns_of_the_how_to_are_handled(tmp_path: Path, opencqrs: Callable[..., str]) -> None:
    save(DOCS / "how-to" / "columns.md", tmp_path)
    lines = (
        json.dumps({"id": str(n), "source": "s", "type": f"library.book-{kind}.v1", "subject": "/b", "data": data})
        for n, (kind, data) in enumerate(
            [
                ("lent", {"isbn": "1", "reader": "Ada", "pages": 300}),
                ("lent", {"isbn": "2", "reader": "Ada"}),
                ("lost", {"é": 1}),
                ("lent", {"isbn": "1", "reader": "Bob", "pages": 20}),
            ]
        )
    )
    (tmp_path / "events.ndjson").write_text("\n".join(lines), "utf-8")
    opencqrs("events", "import", "events.ndjson")
    opencqrs("run", "--until-caught-up")
    decided = json.loads(opencqrs("conditions", "--format", "json"))
    assert {d["choice"] for d in decided if d["subject"] == "processing.batch-size"} == {"5000"}
    with closing(sqlite3.connect(tmp_path / "opencqrs.db")) as database:
        assert database.execute("SELECT * FROM popular ORDER BY isbn").fetchall() == [("1", 2, 320), ("2", 1, 0)]
        (lent, lost) = database.execute("SELECT * FROM volume ORDER BY type").fetchall()
        assert lent[:2] == ("library.book-lent.v1", 3)
        assert lost == ("library.book-lost.v1", 1, len('{"é":1}'))


def test_the_participant_of_the_how_to_confirms_the_events_it_has_written(
    tmp_path: Path, opencqrs: Callable[..., str]
) -> None:
    save(DOCS / "how-to" / "self-checkpointing.md", tmp_path)
    lines = (
        json.dumps({"id": str(n), "source": "s", "type": "library.lent", "subject": f"/b/{n % 3}", "data": {"n": n}})
        for n in range(1_200)
    )
    (tmp_path / "events.ndjson").write_text("\n".join(lines), "utf-8")
    opencqrs("events", "import", "events.ndjson")
    opencqrs("run", "--until-caught-up")
    files = sorted((tmp_path / "archive").iterdir())
    written = [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]
    assert [row["position"] for row in written] == list(range(1, 1_201))
    assert len(files) < 5
    (group,) = json.loads(opencqrs("status", "--format", "json"))
    (partition,) = group["partitions"]
    assert (partition["position"], partition["checkpoint"]["mode"]) == (1_200, "deferred")
    decided = json.loads(opencqrs("conditions", "--format", "json"))
    assert [each["choice"] for each in decided if each["subject"] == "checkpointing.mode"] == ["deferred"]


def test_the_participant_of_the_how_to_overwrites_nothing_and_syncs_all_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A position is requested again if the event after it failed and the partition is released."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    monkeypatch.chdir(tmp_path)
    page = next(block for block in blocks(DOCS / "how-to" / "self-checkpointing.md") if block.title == "handlers.py")
    names: dict[str, Any] = {"__name__": "archive_of_the_page"}
    exec(page.text, names)
    archive, partition = names["Archive"](), Partition(1, 0)
    archive.on_partition_claimed(partition, 0, None)
    for positions in (range(1, 9), (9,), (9,)):
        archive.lines[partition] += [json.dumps({"position": position}) for position in positions]
        assert archive.on_partition_released(partition, 8) == 8
    files = list((tmp_path / "archive").iterdir())
    written = [json.loads(line)["position"] for file in files for line in file.read_text("utf-8").splitlines()]
    assert sorted(written) == [*range(1, 10), 9]
    assert sorted(synced) == sorted(file.stat().st_size for file in files)


def _without_startup_lines(messages: str) -> list[str]:
    """Return the lines of messages without those about the settings and the database in use."""
    surroundings = ("settings: application.yaml", "created a new SQLite database: ")
    return [line for line in messages.splitlines(keepends=True) if not any(each in line for each in surroundings)]


def test_the_scheduled_group_of_the_how_to_prints_the_output_shown(tmp_path: Path, zygote: Zygote) -> None:
    page = DOCS / "how-to" / "scheduled-groups.md"
    save(page, tmp_path)
    codes = []
    for console in blocks(page, "console"):
        for part in console.text.split("$ ")[1:]:
            line, *expected = part.splitlines()
            ran = zygote.opencqrs(tmp_path, line.split()[1:], {})
            printed = trimmed(ran.out + "".join(_without_startup_lines(ran.err)))
            assert [_TIME.sub("T", row) for row in printed] == [_TIME.sub("T", row) for row in expected]
            codes.append(ran.code)
    assert codes == [0, 0, 3, 0, 0, 0, 0, 0]


_OF_ONE_MACHINE = ((_TIME, "T"), (re.compile(r'File ".*/'), 'File "'), (re.compile(r"(?<=skipped by )\S+;"), "PERSON;"))


@pytest.mark.parametrize(("name", "consoles"), [("inbox", 6), ("event-store", 4)])
def test_the_commands_of_the_how_to_print_the_output_shown(
    tmp_path: Path, zygote: Zygote, name: str, consoles: int
) -> None:
    page = DOCS / "how-to" / f"{name}.md"
    save(page, tmp_path, "handlers.py", "events.ndjson")
    (tmp_path / "application.yaml").write_text(blocks(page, "yaml")[0].text, "utf-8")

    def without_machine_specifics(text: str) -> list[str]:
        for pattern, instead in _OF_ONE_MACHINE:
            text = pattern.sub(instead, text)
        return trimmed(text)

    for console in blocks(page, "console")[:consoles]:
        for part in console.text.split("$ ")[1:]:
            line, _, output = part.partition("\n")
            if not line.startswith("opencqrs "):
                continue
            ran = zygote.opencqrs(tmp_path, shlex.split(line)[1:], {})
            expected, printed = without_machine_specifics(output), without_machine_specifics(ran.out)
            assert printed == expected[: len(printed)], line
            assert set(expected[len(printed) :]) <= set(without_machine_specifics(ran.err)), line


_OF_ONE_RUN = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.]+Z"), "T"),
    (re.compile(r"remind:[0-9a-f]{12}"), "RUN"),
    (re.compile(r"(?<=node: {7})\S+"), "NODE"),
    (re.compile(r"\b\w+@\S+"), "PERSON"),
    (re.compile(r" +0\.\d(?= )"), " 0.0"),
)


def normalised(line: str) -> str:
    for pattern, name in _OF_ONE_RUN:
        line = pattern.sub(name, line)
    return " ".join(line.split())


def test_the_job_of_the_how_to_prints_the_output_shown(tmp_path: Path, zygote: Zygote) -> None:
    page = DOCS / "how-to" / "jobs.md"
    save(page, tmp_path)
    for console in blocks(page, "console"):
        for part in console.text.split("$ ")[1:]:
            line, *expected = part.splitlines()
            ran = zygote.opencqrs(tmp_path, shlex.split(line)[1:], {})
            assert ran.code == 0, ran.err
            printed = (ran.out + "".join(_without_startup_lines(ran.err))).splitlines()
            shown, wanted = (sorted(map(normalised, rows)) for rows in (printed, expected))
            assert shown == wanted, line


def test_the_replaced_parts_of_the_how_to_are_listed_as_shown(tmp_path: Path, opencqrs: Callable[..., str]) -> None:
    page = DOCS / "how-to" / "replace-parts.md"
    save(page, tmp_path)
    (console,) = blocks(page, "console")
    line, *expected = console.text.removeprefix("$ ").splitlines()
    assert trimmed(opencqrs(*line.split()[1:])) == expected


def test_the_lock_registry_of_the_how_to_controls_a_group(tmp_path: Path, opencqrs: Callable[..., str]) -> None:
    page = DOCS / "how-to" / "lead-by-locks.md"
    save(page, tmp_path, "file_locks.py", "handlers.py")
    (console,) = blocks(page, "console")
    line, *expected = console.text.removeprefix("$ ").splitlines()
    assert trimmed(opencqrs(*line.split()[1:])) == expected
    opencqrs("run", "--until-caught-up")
    assert [file.stat().st_size for file in (tmp_path / "locks").iterdir()] == [0]


def test_the_controllers_of_the_how_to_control_a_group(tmp_path: Path, opencqrs: Callable[..., str]) -> None:
    save(DOCS / "how-to" / "control-partitions.md", tmp_path)
    decided = json.loads(opencqrs("conditions", "--format", "json"))
    (controller,) = (each for each in decided if each["subject"] == "life-cycle.controller")
    assert controller["choice"] == "provider office_hours"
    opencqrs("run", "--until-caught-up")


def test_the_lock_registry_of_the_how_to_passes_the_test_shown(tmp_path: Path) -> None:
    save(DOCS / "how-to" / "lead-by-locks.md", tmp_path, "file_locks.py", "test_file_locks.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path)))}
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    assert re.search(r"^1\d passed, 5 skipped", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize("name", ["jobs", "test-handlers", "test-with-settings"])
def test_the_tests_shown_pass(name: str, tmp_path: Path) -> None:
    page = DOCS / "how-to" / f"{name}.md"
    save(page, tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path)))}
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    shown = sum(block.text.count("\ndef test_") for block in blocks(page, "python"))
    assert f"{shown} passed" in done.stdout, done.stdout


def test_the_processor_by_hand_prints_the_output_shown(tmp_path: Path) -> None:
    page = DOCS / "how-to" / "by-hand.md"
    save(page, tmp_path)
    (console,) = blocks(page, "console")
    for part in console.text.split("$ ")[1:]:
        line, *expected = part.splitlines()
        command = [sys.executable, "-W", "error", *line.split()[1:]]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
        assert (trimmed(done.stdout), done.stderr) == (expected, "")


def test_settings_shown_with_their_origin_match_the_command(tmp_path: Path) -> None:
    page = DOCS / "explanation" / "configuration.md"
    save(page, tmp_path)
    line, *expected = blocks(page, "console")[0].text.splitlines()
    variable, value = line.split()[1].split("=")
    configuration = load(tmp_path, environ={variable: value})
    shown = {v.path.partition("books.")[2]: (v.value, str(v.origin)) for v in configuration.values("books")}
    rows = (re.split(r" {2,}", row.strip()) for row in expected[3:])
    assert {path: (value, origin) for path, value, origin in rows} == shown


# --------------------------------------------------------------------------------------------------------- command line


def leaves(command: click.Command, *names: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from leaves(below, *names, name)
    else:
        yield " ".join(names), command


COMMANDS = dict(leaves(cli, "opencqrs"))
COMMAND_LINE = sections(REFERENCE / "command-line.md")


def options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts if name.startswith("--")}


def documented(section: str) -> set[str]:
    return {cell.split()[0] for cell in first_cells(COMMAND_LINE[section]) if cell.startswith("--")}


def test_every_command_is_documented_and_nothing_else() -> None:
    titles = {title for title in COMMAND_LINE if title.startswith("opencqrs")}
    assert titles == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_documented_and_nothing_else(name: str) -> None:
    shared = documented("Options of most commands")
    shared = {"--format"} if name in ("opencqrs init", "opencqrs schema") else shared
    assert documented(name) | shared == options(COMMANDS[name])


def typed(page: Path) -> Iterator[list[str]]:
    """Yield the words of each ``opencqrs`` command on a page."""
    lines = [line[2:] for block in blocks(page) for line in block.text.splitlines() if line.startswith("$ ")]
    for line in [*lines, *_TYPED.findall(prose(page))]:
        for part in re.sub(r"'[^']*'|\"[^\"]*\"", "quoted", line).split("|"):
            words = [word for word in part.split() if not re.match(r"[A-Z_]+=", word)]
            if words[:1] == ["opencqrs"]:
                yield words[1:]


@pages
def test_every_command_shown_is_valid(page: Path) -> None:
    for words in typed(page):
        command, rest = cli, list(words)
        while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
            below = command.get_command(click.Context(command), rest.pop(0))
            assert below is not None, words
            command = below
        command.make_parser(click.Context(command)).parse_args(rest)


def test_the_documented_status_has_the_keys_of_the_real_one() -> None:
    known = PartitionStatus("loans", Partition(2, 0), 3, ProcessorState.STOPPED)
    (real,) = group_rows([GroupStatus("loans", 3, (known,))])
    ((shown,),) = (json.loads(block.text) for block in _json_of("opencqrs status"))
    assert list(shown) == list(real)
    assert list(shown["partitions"][0]) == list(real["partitions"][0])


_SETTINGS = """opencqrs:
  event-handling:
    standard: {life-cycle: {partitions: 4}}
    groups:
      loans: {life-cycle: {partitions: 2}}
      loan: {life-cycle: {partitions: 8}}
"""


def test_the_documented_settings_are_those_of_the_command(tmp_path: Path, zygote: Zygote) -> None:
    (tmp_path / "application.yaml").write_text(_SETTINGS)
    (tmp_path / "application-prod.yaml").write_text("{}")
    (tmp_path / "handlers.py").write_text(
        "from opencqrs_py import event_handling\n@event_handling('loans')\ndef f(e: dict): ...\n"
    )
    command = shlex.split("config --group loans --profile prod --changed --origin --format json")
    assert zygote.opencqrs(tmp_path, command, {}).json == json.loads(_json_of("opencqrs config")[0].text)


def _json_of(section: str) -> list[Block]:
    found = (Block(m["language"], "", m["text"]) for m in _BLOCK.finditer(COMMAND_LINE[section]))
    return [block for block in found if block.language == "json"]


# ------------------------------------------------------------------------------------------------------ facts from code


def test_every_error_code_has_a_heading_and_vice_versa() -> None:
    in_code = {code for file in PACKAGE.rglob("*.py") for code in _CODE.findall(file.read_text("utf-8"))}
    headings = list(sections(REFERENCE / "errors.md", level=3))
    assert headings == sorted(in_code)


@pytest.mark.parametrize("table", [EVENTS, PROGRESS, SKIPPED, INBOX, JOBS, JOB_RUNS], ids=lambda table: table.name)
def test_every_column_is_documented_in_its_order(table: Table) -> None:
    assert first_cells(sections(REFERENCE / "events.md")[table.name]) == [column.name for column in table.columns]


def test_the_version_of_every_table_is_documented() -> None:
    row = re.search(r"^\| `version` \|.*", sections(REFERENCE / "events.md")["opencqrs_schema"], flags=re.MULTILINE)
    assert row is not None
    named = {name: int(version) for name, version in re.findall(r"`(opencqrs_\w+)` (?:has )?(\d+)", row[0])}
    assert row[0].endswith(" all others 1 |")
    ours = EVENTS.metadata.tables
    assert {name: tables._newest(table) for name, table in ours.items()} == {**dict.fromkeys(ours, 1), **named}


def test_the_glossary_is_sorted() -> None:
    words = re.findall(r"^\*\*([^*]+)\*\*", (REFERENCE / "glossary.md").read_text("utf-8"), flags=re.MULTILINE)
    assert words == sorted(words, key=str.casefold)


PROCESSING = DOCS / "explanation" / "processing.md"


def test_every_state_is_explained() -> None:
    assert first_cells(sections(PROCESSING)["States"]) == [state.value for state in ProcessorState]


def test_the_waits_shown_are_the_default_waits() -> None:
    waits = islice(ExponentialBackOff().waits(), 9)
    assert ", ".join(f"{wait:g} s" for wait in waits) in sections(PROCESSING)["Waits"]


def test_the_documented_pauses_of_failed_partitions_and_outages_are_the_real_ones() -> None:
    text = PROCESSING.read_text("utf-8")
    assert [*islice(FAILURE_BACK_OFF.waits(), 7)] == [30, 60, 120, 240, 480, 600, 600]
    assert "30 s, then 60, 120, 240, 480 and from then on 600 s" in " ".join(text.split())
    assert [*islice(OUTAGE_BACK_OFF.waits(), 8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert "0.5 s, then doubling up to 30 s" in " ".join(text.split())
