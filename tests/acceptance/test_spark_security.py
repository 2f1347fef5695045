"""What other users of the machine can see of a run on Spark, and do to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.output import without_times
from support.sqlite import rows_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="reads /proc"),
]

SECRET = "marker-3f9c1e"
ATTACK = Path(__file__).with_name("spark_attack.py")
LISTENING = "0A"

HOLDING_HANDLERS = """
from pathlib import Path
import time
from opencqrs_py import Event, event_handling
from sqlalchemy import Connection

@event_handling("catalog", types=["library.*"])
def lend(event: Event, connection: Connection) -> None:
    Path("begun").touch()
    while not Path("go").exists():
        time.sleep(0.01)
"""


def held_run(project, **environment: str) -> subprocess.Popen[str]:
    """Start a run whose handlers wait until the file ``go`` exists; return it when the first of them waits."""
    project.write("handlers.py", HOLDING_HANDLERS)
    project.write_events(20)
    assert project.opencqrs("events", "import", "events.ndjson").code == 0
    return subprocess.Popen(
        project.command("run", "--until-caught-up"),
        cwd=project.folder,
        env={**os.environ, "OPENCQRS__SPARK__CONF__SPARK_HADOOP_FS_S3A_SECRET_KEY": SECRET, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@contextmanager
def held(project, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A run that waits in its handlers; it ends when the test has let it go."""
    process = held_run(project, **environment)
    try:
        while not (project.folder / "begun").exists():
            with suppress(subprocess.TimeoutExpired):
                pytest.fail(f"the run ended with {process.wait(timeout=0.05)}: {process.communicate()[1]}")
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def processes_below(parent: int) -> set[int]:
    """Return the ids of a process and of all that it has started."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {parent}
    while more := {child for child, its in parents.items() if its in found} - found:
        found |= more
    return found


def arguments_below(process: subprocess.Popen[str]) -> list[str]:
    """Return the arguments of a run and of all processes that it has started."""
    said = [(Path("/proc") / str(pid) / "cmdline").read_bytes().decode() for pid in processes_below(process.pid)]
    assert any("org.apache.spark.deploy.SparkSubmit" in arguments for arguments in said)
    assert any("pyspark" in arguments and "daemon" in arguments for arguments in said)
    return said


def let_go(project, process: subprocess.Popen[str]) -> None:
    """Let a held run end, and see that nothing has disturbed it."""
    (project.folder / "go").touch()
    out, err = process.communicate(timeout=300)
    usual = ("settings: ", "created a new, empty SQLite database", "created new, empty tables", "starting Spark")
    said = [line for line in without_times(err).splitlines() if ", lag " not in line and not line.startswith(usual)]
    assert (process.returncode, said) == (0, []), out


def listening_ports(pids: set[int]) -> set[str]:
    """Return the TCP ports on which these processes listen."""
    sockets = set()
    for entry in (entry for pid in pids for entry in Path(f"/proc/{pid}/fd").glob("*")):
        try:
            sockets.add(str(entry.readlink()))
        except OSError:
            continue
    files = (Path("/proc/net", name).read_text() for name in ("tcp", "tcp6"))
    fields = [line.split() for file in files for line in file.splitlines()[1:]]
    mine = [words[1] for words in fields if words[3] == LISTENING and f"socket:[{words[9]}]" in sockets]
    return {str(int(address.rpartition(":")[2], 16)) for address in mine}


def attacked(process: subprocess.Popen[str]) -> list[tuple[str, str]]:
    """Let another user request the block of the first round from each port of a run; return the answers."""
    ports = listening_ports(processes_below(process.pid))
    assert len(ports) >= 2  # for messages and for blocks
    command = [sys.executable, str(ATTACK), "broadcast_0_piece0", *ports]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return [(kind, body) for kind, body in json.loads(done.stdout).values()]


@pytest.mark.release
def test_another_user_can_neither_read_spark_settings_or_blocks_nor_disturb_a_run(project):
    with held(project) as process:
        said = arguments_below(process)
        assert [arguments for arguments in said if SECRET in arguments or "--conf" in arguments] == []
        answers = attacked(process)
        assert "block" not in {kind for kind, _ in answers}
        assert sum("Sasl" in body for _, body in answers) >= 2, answers
        let_go(project, process)


@pytest.mark.release
def test_without_authentication_another_user_gets_blocks_but_they_hold_no_settings(project):
    place = project.folder / f"{SECRET}.db"
    unprotected = {
        "OPENCQRS__DATABASE__URL": f"sqlite:///{place}",
        "OPENCQRS__SPARK__ALLOW_UNAUTHENTICATED": "true",
        "OPENCQRS__SPARK__CONF__SPARK_AUTHENTICATE": "false",
        "OPENCQRS__SPARK__CONF__SPARK_BROADCAST_COMPRESS": "false",
    }
    with held(project, **unprotected) as process:
        (block,) = [body for kind, body in attacked(process) if kind == "block"]
        assert "TaskRunner" in block
        assert SECRET not in block
        let_go(project, process)
        assert place.exists()


OWN_SESSION = """
import sys
from pyspark.sql import SparkSession
from opencqrs_py import Application
from opencqrs_py.errors import EngineError

if __name__ == "__main__":
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    for setting in sys.argv[1:]:
        builder = builder.config(*setting.split("="))
    spark = builder.getOrCreate()
    try:
        Application.from_project(".").run(until_caught_up=True)
        print("ran")
    except EngineError as error:
        print(error)
    print("still open", spark.range(1).count())
    spark.stop()
"""


@pytest.mark.release(begins="ran")  # test_cluster.py shows that authenticated runs work
@pytest.mark.parametrize(
    ("argument", "variable", "begins"),
    [
        ("", "false", "[OCQ-404] Spark does not authenticate"),
        ("spark.authenticate=true", "false", "ran"),
        ("", "true", "ran"),
    ],
)
@pytest.mark.release  # unit/engines/spark/test_session.py
def test_the_programs_own_session_is_refused_without_authentication(project, java, argument, variable, begins):
    project.write("program.py", OWN_SESSION)
    project.write_events(10)
    assert project.opencqrs("events", "import", "events.ndjson").code == 0
    ran = subprocess.run(
        [sys.executable, "program.py", *argument.split()],
        cwd=project.folder,
        env={
            **os.environ,
            **java,
            "PYSPARK_PYTHON": sys.executable,
            "OPENCQRS__SPARK__ALLOW_UNAUTHENTICATED": variable,
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.stdout.startswith(begins), ran.stderr
    assert ran.stdout.endswith("still open 1\n")
    if begins == "ran":
        assert rows_of(project.folder / "read.db", "SELECT count(*) FROM audit") == [(10,)]


def test_a_cluster_without_authentication_is_refused_even_if_there_is_nothing_to_do(project):
    refused = project.opencqrs(
        "run", "--set", "spark.master=spark://127.0.0.1:1", JAVA_HOME="/nowhere", PATH="/nowhere"
    )
    assert refused.code == 2
    told = [line for line in refused.err.splitlines() if line.startswith("[OCQ-404] Spark does not authenticate")]
    assert len(told) == 1, refused.err
    assert "spark.authenticate.secret" in refused.err
    assert "opencqrs.spark.allow-unauthenticated: true" in refused.err
