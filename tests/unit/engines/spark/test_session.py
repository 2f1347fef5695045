"""Opening, sharing and closing sessions, without Spark."""

from __future__ import annotations

import logging
import os
import signal
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event as Signal
from threading import Thread, current_thread, main_thread
from types import SimpleNamespace

import numpy as np
import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.sql import SparkSession

from opencqrs_py.engines.spark import session
from opencqrs_py.engines.spark.opened_sessions import OPENED
from opencqrs_py.engines.spark.session import Sessions, SessionSettings
from opencqrs_py.engines.spark.session_start import _QUIET_LOGS, _choose_python, _not_started, start_session
from opencqrs_py.engines.spark.tasks import ALWAYS, KeptRecipe
from opencqrs_py.errors import EngineError

SECONDS = 30  # longest wait for another thread


class Context:
    """A Spark context created by the program."""

    def __init__(self, master: str, folder: Path, authenticate: str) -> None:
        self.master = master
        self.shipped: list[Path] = []
        self._python_includes: list[str] = []
        self._temp_dir = str(folder)
        self._conf = {"spark.authenticate": authenticate}

    def getConf(self) -> dict[str, str]:  # noqa: N802 Spark's name
        return self._conf

    def addPyFile(self, file: str) -> None:  # noqa: N802 Spark's name
        self.shipped.append(Path(file))


@pytest.fixture
def active(monkeypatch, tmp_path):
    """Return a function that makes a session active."""

    def activate(master: str, authenticate: str = "true") -> Context:
        context = Context(master, tmp_path, authenticate)
        monkeypatch.setattr(SparkSession, "getActiveSession", lambda: SimpleNamespace(sparkContext=context))
        return context

    return activate


def test_the_users_modules_travel_to_a_cluster_under_a_random_name(active, tmp_path):
    (tmp_path / "handlers.py").write_text("x = 1")
    context = active("spark://host:7077")
    for _ in range(2):
        sessions = Sessions(SessionSettings(sources=[(tmp_path / "handlers.py", "handlers.py")]))
        sessions.open()
        assert zipfile.ZipFile(context.shipped[-1]).namelist() == ["handlers.py"]
        assert context.shipped[-1].parent.stat().st_mode & 0o077 == 0
        sessions.close()
    names = {file.name for file in context.shipped}
    assert len(names) == 2
    assert all(len(name) > len("opencqrs_project_.zip") + 30 for name in names)
    assert not any(file.exists() for file in context.shipped)


@pytest.mark.parametrize(("master", "found"), [("local[2]", True), ("spark://host:7077", False)])
def test_workers_on_this_machine_find_modules_in_the_projects_folders(active, tmp_path, master, found):
    context = active(master)
    for _ in range(2):
        Sessions(SessionSettings(roots=[str(tmp_path), "", str(tmp_path / "src")])).open()
    assert context._python_includes == ([str(tmp_path), str(tmp_path / "src")] if found else [])


def test_with_a_local_master_recipes_stay_on_this_machine_and_are_deleted_at_the_end(active):
    active("local[2]")
    sessions = Sessions(SessionSettings())
    kept = sessions.handed_over(("the", "recipe"))
    assert isinstance(kept, KeptRecipe)
    assert kept.fetch() == ("the", "recipe")
    sessions.close()
    assert not Path(kept.file).exists()


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host"])
def test_recipes_travel_to_the_executors_of_a_cluster(active, master):
    active(master)
    assert Sessions(SessionSettings()).handed_over("the recipe") == "the recipe"


@pytest.mark.parametrize("look", [Sessions.require_authentication, Sessions.open])
@pytest.mark.parametrize("master", ["local[2]", "spark://host:7077"])
def test_an_active_session_without_authentication_is_refused_unless_allowed(active, master, look):
    active(master, "false")
    with pytest.raises(EngineError, match="OCQ-404") as refused:
        look(Sessions(SessionSettings()))
    assert "the session that was active" in refused.value.where
    look(Sessions(SessionSettings(allow_unauthenticated=True)))


def test_a_permit_is_a_local_file_only_with_a_local_master(active):
    active("local[2]")
    permit = Sessions(SessionSettings()).permit()
    assert not permit.holds
    permit.give()
    assert permit.holds
    active("spark://host:7077")
    assert Sessions(SessionSettings()).permit() == ALWAYS


def test_opening_a_session_waits_until_the_previous_one_has_stopped(active, tmp_path):
    may_end, ended = Signal(), Signal()
    closing = Sessions(SessionSettings())
    context = Context("local[2]", tmp_path, "true")
    closing._session = SimpleNamespace(stop=lambda: may_end.wait(SECONDS) and ended.set(), sparkContext=context)
    OPENED.started(closing._session, closing)
    closing.close(patience=0)
    assert not ended.is_set()
    active("local[2]")
    with ThreadPoolExecutor(1) as threads:
        opening = threads.submit(Sessions(SessionSettings()).open)
        may_end.set()
        opening.result(SECONDS)
    assert ended.is_set()


@pytest.fixture
def startable(monkeypatch, tmp_path) -> list[str]:
    """Make sessions startable; return the log of starts and stops."""
    noted: list[str] = []
    context = Context("local[2]", tmp_path, "true")
    active_one: list[SimpleNamespace] = []

    def start(_: SessionSettings) -> SimpleNamespace:
        noted.append("started")
        active_one.append(SimpleNamespace(sparkContext=context, stop=stop))
        return active_one[0]

    def stop() -> None:
        active_one.clear()
        noted.append("stopped")

    monkeypatch.setattr("opencqrs_py.engines.spark.session.start_session", start)
    monkeypatch.setattr("opencqrs_py.engines.spark.session.active_session", lambda: next(iter(active_one), None))
    monkeypatch.setattr("opencqrs_py.engines.spark.session.require_usable", lambda *_: None)
    return noted


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_session_started_here_is_stopped_by_its_last_user(startable, order):
    """Otherwise a stopping application would stop Spark for another one in its process."""
    users = [Sessions(SessionSettings()) for _ in range(2)]
    assert users[0].open() is users[1].open()
    users[order[0]].close(SECONDS)
    assert startable == ["started"]
    users[order[1]].close(SECONDS)
    assert startable == ["started", "stopped"]
    users[0].open()
    users[0].close(SECONDS)
    assert startable == ["started", "stopped"] * 2


def test_two_users_that_open_at_the_same_time_share_one_session(startable, monkeypatch):
    """The second user waits until the first has started the session, while the driver handles events."""
    begun, go = Signal(), Signal()
    start = session.start_session

    def slow(settings: SessionSettings) -> SimpleNamespace:
        begun.set()
        assert go.wait(SECONDS)
        return start(settings)

    monkeypatch.setattr("opencqrs_py.engines.spark.session.start_session", slow)
    first, second = Sessions(SessionSettings()), Sessions(SessionSettings())
    with ThreadPoolExecutor(2) as threads:
        opening = threads.submit(first.open)
        assert begun.wait(SECONDS)
        assert not OPENED.starting.acquire(blocking=False)
        other = threads.submit(second.open)
        go.set()
        assert opening.result(SECONDS) is other.result(SECONDS)
    first.close(SECONDS)
    assert startable == ["started"]
    second.close(SECONDS)
    assert startable == ["started", "stopped"]


def test_waiting_users_never_get_a_session_that_is_being_stopped(startable, monkeypatch):
    may_end = Signal()
    first = Sessions(SessionSettings())
    stop = first.open().stop
    first._session.stop = lambda: may_end.wait(SECONDS) and stop()
    first.close(0)
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(Sessions(SessionSettings()).open) for _ in range(2)]
        may_end.set()
        found = [each.result(SECONDS) for each in waiting]
    assert found[0] is found[1]
    assert startable == ["started", "stopped", "started"]
    OPENED._uses.clear()


def test_a_session_that_is_being_stopped_does_not_count_as_existing(startable, monkeypatch):
    """Otherwise its start would wait for the stop on the thread of the caller, even on the main thread."""
    may_end, waiting = Signal(), []
    first, second = Sessions(SessionSettings()), Sessions(SessionSettings())
    stop = first.open().stop
    first._session.stop = lambda: may_end.wait(SECONDS) and stop()
    first.close(0)
    await_stops = OPENED.await_stops

    def end_and_wait() -> None:
        waiting.append(current_thread())
        may_end.set()
        await_stops()

    monkeypatch.setattr(OPENED, "await_stops", end_and_wait)
    assert second.will_start == "local[*]"
    second.open()
    assert waiting
    assert main_thread() not in waiting
    assert second.will_start == ""
    second.close(SECONDS)
    assert startable == ["started", "stopped"] * 2


def test_a_session_that_will_be_stopped_once_it_is_open_does_not_count_as_existing(startable, monkeypatch, tmp_path):
    first, others = Sessions(SessionSettings()), Sessions(SessionSettings())
    given = Sessions(SessionSettings(), SimpleNamespace(sparkContext=Context("local[2]", tmp_path, "true")))
    first.open()
    may_end = Signal()
    opening = Thread(target=may_end.wait, args=(SECONDS,))
    opening.start()
    monkeypatch.setattr("opencqrs_py.engines.spark.session._closing", [opening])
    assert [each.will_start for each in (first, others, given)] == ["", "local[*]", ""]
    may_end.set()
    opening.join(SECONDS)
    assert others.will_start == ""
    first.close(SECONDS)
    assert startable == ["started", "stopped"]


def test_files_of_a_user_are_served_until_the_session_stops(startable, tmp_path):
    first, second = Sessions(SessionSettings()), Sessions(SessionSettings())
    first.open()
    second.open()
    first._folder = TemporaryDirectory(dir=tmp_path)
    folder = Path(first._folder.name)
    first.close(SECONDS)
    assert folder.exists()
    second.close(SECONDS)
    assert not folder.exists()


def test_closing_twice_releases_the_session_once(startable):
    first, second = Sessions(SessionSettings()), Sessions(SessionSettings())
    first.open()
    second.open()
    first.close(SECONDS)
    first.close(SECONDS)
    assert startable == ["started"]
    second.close(SECONDS)


def test_a_session_opened_by_the_program_is_never_stopped_here(startable, monkeypatch, tmp_path):
    theirs = SimpleNamespace(sparkContext=Context("local[2]", tmp_path, "true"))
    monkeypatch.setattr("opencqrs_py.engines.spark.session.active_session", lambda: theirs)
    users = [Sessions(SessionSettings()) for _ in range(2)]
    for each in users:
        assert each.open() is theirs
    for each in users:
        each.close(SECONDS)
    assert startable == []


@pytest.mark.parametrize(
    ("master", "named", "used", "warned"),
    [
        ("local[2]", None, sys.executable, False),
        ("local[2]", sys.executable, sys.executable, False),
        ("local[2]", "/opt/other/python", sys.executable, True),
        ("spark://host:7077", None, sys.executable, False),
        ("spark://host:7077", "/opt/other/python", "/opt/other/python", False),
        ("yarn", "python3.11", "python3.11", False),
    ],
)
def test_workers_run_the_python_of_the_driver_unless_a_cluster_names_another(
    monkeypatch, caplog, master, named, used, warned
):
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "")
    monkeypatch.setenv("PYSPARK_PYTHON", named or "")
    _choose_python(master)
    assert os.environ["PYSPARK_PYTHON"] == used
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    said = [record.getMessage() for record in caplog.records]
    expected = f"PYSPARK_PYTHON={named} is not used: workers of a local master run {sys.executable}"
    assert said == ([expected] if warned else [])


def test_a_close_waits_for_users_of_the_session(active):
    active("local[2]")
    sessions = Sessions(SessionSettings())
    kept = []
    with ThreadPoolExecutor(1) as threads:
        with sessions.used() as session:
            assert session is sessions.open()
            kept.append(sessions.handed_over("the recipe"))
            closing = threads.submit(sessions.close, SECONDS)
            while not sessions._closed:
                assert not closing.done()
            assert kept[0].fetch() == "the recipe"
            assert not closing.done()
        closing.result(SECONDS)
    assert not Path(kept[0].file).exists()


def test_a_session_opened_after_a_close_is_closed_after_its_last_use(active):
    active("local[2]")
    sessions = Sessions(SessionSettings())
    with sessions.used():
        sessions.close(0)
        kept = sessions.handed_over("the recipe")
        assert Path(kept.file).exists()
    assert not Path(kept.file).exists()


def test_a_new_session_is_opened_outside_the_main_thread_and_its_error_is_raised_to_the_caller(monkeypatch):
    opened_on = []
    monkeypatch.setattr(Sessions, "_found", lambda _: None)

    def start(_settings):
        opened_on.append(current_thread())
        raise EngineError("OCQ-402", "Spark does not start")

    monkeypatch.setattr("opencqrs_py.engines.spark.session.start_session", start)
    for open_it in (Sessions(SessionSettings()).open, lambda: in_a_thread(Sessions(SessionSettings()).open)):
        with pytest.raises(EngineError, match="OCQ-402"):
            open_it()
    assert current_thread() is main_thread()
    assert main_thread() not in opened_on
    assert [each.name for each in opened_on] == ["opencqrs-session", "caller_0"]


def in_a_thread(call):
    with ThreadPoolExecutor(1, thread_name_prefix="caller") as threads:
        return threads.submit(call).result(SECONDS)


def test_an_interrupt_while_a_session_opens_is_raised_and_the_session_is_stopped_once_open(active, monkeypatch):
    may_open, stopped = Signal(), Signal()
    context = active("local[2]")
    monkeypatch.setattr(Sessions, "_found", lambda _: None)
    opened = SimpleNamespace(sparkContext=context, stop=stopped.set)

    def start(_settings):
        signal.raise_signal(signal.SIGINT)
        assert may_open.wait(SECONDS)
        return opened

    monkeypatch.setattr("opencqrs_py.engines.spark.session.start_session", start)
    sessions = Sessions(SessionSettings())
    with pytest.raises(KeyboardInterrupt):
        sessions.open()
    sessions.close(0)
    may_open.set()
    assert stopped.wait(SECONDS)


@pytest.mark.parametrize(
    ("error", "parts", "gone"),
    [
        (Py4JError("no"), "live", False),
        (Py4JError("no"), "stopped", True),
        (Py4JError("no"), "dead", True),
        (OSError("no"), "live", False),  # such as an error of a file that the engine writes
        (OSError("no"), "dead", True),
        (AttributeError("no"), "live", False),
        (AttributeError("no"), "stopped", True),
        (AttributeError("no"), None, True),  # what remains of a session after its user stopped it
        (ValueError("no"), None, False),
    ],
)
def test_an_error_caused_by_a_stopped_session_is_recognised(error, parts, gone):
    def is_stopped():
        if parts == "dead":
            raise Py4JNetworkError
        return parts == "stopped"

    jsc = parts and SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=is_stopped))
    sessions = Sessions(SessionSettings(master="local[1]", name="test"))
    sessions._session = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=jsc))
    assert sessions.is_gone(error) is gone


QUIET = f"-Dlog4j2.configurationFile={_QUIET_LOGS.as_uri()}"
OPTIONS = "spark.driver.extraJavaOptions"


@pytest.mark.parametrize(
    ("conf", "defaults", "verbose", "options"),
    [
        ({}, "", False, QUIET),
        ({OPTIONS: "-Da=b"}, "", False, f"{QUIET} -Da=b"),
        ({}, f"{OPTIONS} -Dc=d\n", False, f"{QUIET} -Dc=d"),
        ({OPTIONS: "-Da=b"}, f"{OPTIONS} -Dc=d\n", False, f"{QUIET} -Da=b"),
        ({OPTIONS: "-Da=b"}, "", True, "-Da=b"),
        ({}, f"{OPTIONS} -Dc=d\n", True, None),
    ],
)
def test_java_options_of_the_user_come_after_ours(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    conf: dict[str, str],
    defaults: str,
    verbose: bool,  # noqa: FBT001 a parameter of the table
    options: str | None,
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert SessionSettings(conf=conf, verbose=verbose).spark_conf().get(OPTIONS) == options


@pytest.mark.parametrize(("moves_rows", "options"), [(False, ("-XX:TieredStopAtLevel=1",)), (True, ())])
def test_a_jvm_that_moves_no_rows_starts_without_the_optimizing_compiler(monkeypatch, moves_rows, options):
    given = []

    def note(*, quiet, java_options):
        given.append((quiet, java_options))
        raise InterruptedError  # nothing is launched

    monkeypatch.setattr("opencqrs_py.engines.spark.session_start.launching", note)
    with pytest.raises(InterruptedError):
        start_session(SessionSettings(moves_rows=moves_rows))
    ((quiet, said),) = given
    assert (quiet, said[: len(options)]) == (True, options)
    assert ("-XX:TieredStopAtLevel=1" in said) is not moves_rows


def test_a_jvm_that_exits_just_after_it_made_the_session_is_a_failed_start_and_the_session_is_stopped(monkeypatch):
    stopped = []

    class Builder:
        def config(self, *_):
            return self

        def getOrCreate(self):  # noqa: N802 Spark's name
            def gone(_level):
                raise ConnectionRefusedError("no JVM")

            return SimpleNamespace(sparkContext=SimpleNamespace(setLogLevel=gone), stop=lambda: stopped.append(True))

    @contextmanager
    def launching(**_):
        yield SimpleNamespace(refusal=lambda: "")

    where = "opencqrs_py.engines.spark.session_start"
    monkeypatch.setattr(f"{where}.launching", launching)
    monkeypatch.setattr(f"{where}.SparkSession", SimpleNamespace(builder=Builder()))
    monkeypatch.setattr(f"{where}.SparkContext._ensure_initialized", lambda: None)
    with pytest.raises(EngineError, match=r"OCQ-402.*no JVM"):
        start_session(SessionSettings())
    assert stopped == [True]


@pytest.mark.parametrize("conf", [{}, {"spark.master": "local[3]"}])
def test_the_start_of_a_session_is_logged_once(monkeypatch, caplog, conf):
    def end(**_options):
        raise InterruptedError

    monkeypatch.setattr("opencqrs_py.engines.spark.session_start.launching", end)
    with caplog.at_level(logging.INFO, "opencqrs"), pytest.raises(InterruptedError):
        start_session(SessionSettings(master="local[2]", conf=conf))
    assert caplog.messages == [f"starting Spark ({conf.get('spark.master', 'local[2]')})"]


@pytest.mark.parametrize("verbose", [False, True])
def test_py4j_logs_no_traceback_of_a_jvm_that_exits_during_its_start(monkeypatch, verbose):
    def end(**_options):
        raise InterruptedError

    root = logging.getLogger()
    monkeypatch.setattr(root, "filters", [])
    monkeypatch.setattr("opencqrs_py.engines.spark.session_start.launching", end)
    with pytest.raises(InterruptedError):
        start_session(SessionSettings(verbose=verbose))
    record = logging.makeLogRecord({"msg": "Exception while sending command."})
    assert bool(root.filter(record)) is verbose
    assert root.filter(logging.makeLogRecord({"msg": np.array([1, 2])}))  # as a handler may log it


@pytest.mark.parametrize(
    ("conf", "said", "zone"),
    [
        ({}, "", "UTC"),
        ({"spark.sql.session.timeZone": "Asia/Tokyo"}, "", "Asia/Tokyo"),
        ({}, "spark.sql.session.timeZone Asia/Tokyo", None),
    ],
)
def test_the_session_time_zone_is_utc_unless_set(monkeypatch, tmp_path, conf, said, zone):
    (tmp_path / "spark-defaults.conf").write_text(said)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("TZ", "America/New_York")
    assert SessionSettings(conf=conf).spark_conf().get("spark.sql.session.timeZone") == zone


UNRESPONSIVE = "An error occurred\n: org.apache.spark.SparkException: All masters are unresponsive! Giving up."


@pytest.mark.parametrize("master", ["spark://127.0.0.1:1", "yarn"])
@pytest.mark.parametrize(
    ("refusal", "reason", "fix"),
    [
        ("UnknownHostException: box: Name or service not known", "box: Name or service not known", "/etc/hosts"),
        ("Too small maximum heap", "Too small maximum heap", "SPARK_SUBMIT_OPTS"),
    ],
)
def test_a_jvm_that_failed_to_start_is_not_blamed_on_the_master(master, refusal, reason, fix):
    error = _not_started(RuntimeError("Java gateway process exited"), master, "/java", refusal)
    assert error.code == "OCQ-402"
    assert reason in error.what
    assert fix in error.fix


@pytest.fixture
def variables(monkeypatch):
    """Return a function that sets the variables that Spark reads at its start, and clears the others."""

    def set_(said: dict[str, str]) -> None:
        for name in ("SPARK_HOME", "SPARK_LOCAL_DIRS", "PYSPARK_SUBMIT_ARGS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in said.items():
            monkeypatch.setenv(name, value)

    return set_


LOG = "look at Spark's own log: opencqrs run --verbose"
PLACES = "spark.conf, SPARK_SUBMIT_OPTS or JAVA_TOOL_OPTIONS"


@pytest.mark.parametrize(
    ("said", "refusal", "fix"),
    [
        ({}, "", LOG),
        ({"SPARK_HOME": ""}, "", LOG),
        ({"SPARK_HOME": "{home}"}, "", LOG),
        ({"SPARK_HOME": "{home}/away"}, "", "unset SPARK_HOME: {home}/away has no bin/spark-submit that can be run"),
        ({"SPARK_LOCAL_DIRS": "{home}"}, "", LOG),
        ({"SPARK_LOCAL_DIRS": "{home}/new/folder"}, "", LOG),
        ({"SPARK_LOCAL_DIRS": "{file},{home}"}, "", LOG),  # one is enough for Spark
        (
            {"SPARK_LOCAL_DIRS": "{file}/a,/proc/x"},
            "",
            "correct or unset SPARK_LOCAL_DIRS: Spark cannot write to {file}/a, /proc/x",
        ),
        (
            {"SPARK_LOCAL_DIRS": "{file}"},
            "some log",
            "correct or unset SPARK_LOCAL_DIRS: Spark cannot write to {file}",
        ),
        ({"PYSPARK_SUBMIT_ARGS": "--bogus"}, "", f"correct PYSPARK_SUBMIT_ARGS, if it is wrong, or {LOG}"),
        ({}, "Invalid heap", f"correct it where options of Spark and Java are set: in {PLACES}"),
        (
            {"PYSPARK_SUBMIT_ARGS": "--bogus"},
            "Error: Unrecognized option: --bogus",
            f"correct it where options of Spark and Java are set: in PYSPARK_SUBMIT_ARGS, {PLACES}",
        ),
    ],
)
def test_the_variable_that_kept_spark_from_starting_is_named(tmp_path, variables, said, refusal, fix):
    submit, file = tmp_path / "bin" / "spark-submit", tmp_path / "file"
    submit.parent.mkdir()
    submit.touch(0o755)
    file.touch()
    variables({name: value.format(home=tmp_path, file=file) for name, value in said.items()})
    error = _not_started(RuntimeError("Connection refused"), "local[1]", "/java", refusal)
    assert (error.code, error.fix) == ("OCQ-402", fix.format(home=tmp_path, file=file))
    assert sorted(tmp_path.iterdir()) == [submit.parent, file]


def test_a_master_that_does_not_register_the_program_is_named():
    error = _not_started(Py4JError(UNRESPONSIVE), "spark://127.0.0.1:1", "/java", "")
    assert error.code == "OCQ-352"
    assert "SparkException: All masters are unresponsive! Giving up." in error.what
