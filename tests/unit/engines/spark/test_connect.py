"""Spark Connect is refused, however it was selected, and so is a stopped session."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

from opencqrs_py.engines.spark.connect import refuse_connect, require_usable
from opencqrs_py.engines.spark.session import Sessions, SessionSettings
from opencqrs_py.errors import EngineError

TOKEN = "marker-of-a-token"
REMOTE = f"sc://host:443/;token={TOKEN}"


@pytest.mark.parametrize(
    ("conf", "environ", "where", "fix"),
    [
        ({}, {"SPARK_CONNECT_MODE_ENABLED": "1"}, "the session that is active in this process", "without .remote(…)"),
        ({}, {"SPARK_REMOTE": REMOTE}, "environment variable SPARK_REMOTE", "unset it"),
        ({"spark.remote": REMOTE}, {}, "spark.remote in spark.conf", "remove it"),
        ({"spark.api.mode": "Connect"}, {}, "spark.api.mode connect", "set spark.api.mode to classic"),
        ({}, {"SPARK_API_MODE": "connect"}, "spark.api.mode connect", "set spark.api.mode to classic"),
    ],
)
def test_settings_that_select_spark_connect_are_refused_without_showing_the_token(conf, environ, where, fix):
    with pytest.raises(EngineError, match="OCQ-416") as refused:
        refuse_connect(conf, environ)
    assert "its sessions have no SparkContext" in refused.value.what
    assert refused.value.where == where
    assert fix in refused.value.fix
    assert TOKEN not in str(refused.value)


def test_connect_as_the_default_mode_is_refused_unless_settings_choose_classic(monkeypatch):
    monkeypatch.setenv("SPARK_CONNECT_MODE", "1")
    with pytest.raises(EngineError, match="OCQ-416"):
        refuse_connect({}, {})
    refuse_connect({"spark.api.mode": "classic"}, {})
    refuse_connect({}, {"SPARK_API_MODE": "classic"})


class Remote:
    """A session of Spark Connect, as in PySpark."""

    @property
    def sparkContext(self) -> None:  # noqa: N802 Spark's name
        raise PySparkAttributeError("JVM_ATTRIBUTE_NOT_SUPPORTED")


def test_a_spark_connect_session_passed_by_the_program_is_refused():
    with pytest.raises(EngineError, match="OCQ-416") as refused:
        require_usable(Remote())
    assert refused.value.where == "the session that was handed in"


def context_that(is_stopped):
    return SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=is_stopped)))


def gone():
    raise Py4JNetworkError


ENDED = {
    "by its user": SimpleNamespace(_jsc=None),
    "by Spark, as when its master is lost": context_that(lambda: True),
    "with its JVM": context_that(gone),
}


@pytest.mark.parametrize("context", ENDED.values(), ids=ENDED)
def test_a_stopped_session_is_refused_before_any_claim(monkeypatch, context):
    ended = SimpleNamespace(sparkContext=context)
    with pytest.raises(EngineError, match="OCQ-417") as refused:
        Sessions(SessionSettings(), ended).require_authentication()
    assert refused.value.where == "the session that was handed in"
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: ended)
    with pytest.raises(EngineError, match="OCQ-417") as refused:
        Sessions(SessionSettings()).require_authentication()
    assert refused.value.where == "the session that is active in this process"
    assert "call its stop() and open a new one" in refused.value.fix


def test_a_session_whose_jvm_has_exited_is_refused(monkeypatch):
    monkeypatch.setattr(SparkSession, "getActiveSession", gone)
    with pytest.raises(EngineError, match="OCQ-417"):
        Sessions(SessionSettings()).require_master()


def test_a_running_session_is_usable():
    require_usable(SimpleNamespace(sparkContext=context_that(lambda: False)))


class Context:
    """The context of a session opened by the program."""

    def __init__(self, master: str, authenticate: str = "true") -> None:
        self.master = master
        self._authenticate = authenticate

    def getConf(self) -> dict[str, str]:  # noqa: N802 Spark's name
        return {"spark.authenticate": self._authenticate}


@pytest.mark.parametrize(
    "master", ["local[2]", "local-cluster[2,1,1024]", "spark://host:7077", "yarn", "k8s://https://h"]
)
def test_a_session_passed_by_the_program_takes_precedence_on_any_master_and_is_left_open(monkeypatch, master):
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: SimpleNamespace(sparkContext=Context("local[9]")))
    given = SimpleNamespace(sparkContext=Context(master), stop=lambda: pytest.fail("it is the program's"))
    sessions = Sessions(SessionSettings(master="spark://no-such-host.invalid:1"), given)
    sessions.require_authentication()
    sessions.require_master()
    assert sessions.will_start == ""
    assert sessions.open() is given
    sessions.close()


def test_a_session_passed_by_the_program_is_used_even_if_the_environment_selects_spark_connect(monkeypatch):
    monkeypatch.setenv("SPARK_REMOTE", REMOTE)
    given = SimpleNamespace(sparkContext=Context("local[2]"))
    assert Sessions(SessionSettings(), given).open() is given


def test_a_session_passed_by_the_program_must_authenticate():
    given = SimpleNamespace(sparkContext=Context("spark://host:7077", "false"))
    with pytest.raises(EngineError, match="OCQ-404"):
        Sessions(SessionSettings(), given).require_authentication()
    Sessions(SessionSettings(allow_unauthenticated=True), given).require_authentication()


@pytest.mark.parametrize("look", [Sessions.require_authentication, Sessions.require_master, Sessions.open])
def test_spark_connect_is_refused_before_any_launch_or_claim(monkeypatch, look):
    monkeypatch.setenv("SPARK_REMOTE", REMOTE)
    with pytest.raises(EngineError, match="OCQ-416"):
        look(Sessions(SessionSettings()))
