"""Which Spark master is refused in seconds, with the reason: out of reach, or without authentication."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from threading import Thread

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from opencqrs_py.engines.spark import masters
from opencqrs_py.engines.spark.masters import is_local, not_registered, refuse_unauthenticated, require_master
from opencqrs_py.engines.spark.session import Sessions, SessionSettings
from opencqrs_py.errors import EngineError


@pytest.fixture
def listening() -> Iterator[int]:
    """A port that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed() -> int:
    """A port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def page() -> Iterator[int]:
    """A port that answers as a web server does."""

    def answer(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=answer, args=(server,), daemon=True).start()
        yield server.getsockname()[1]


def test_a_port_that_refuses_connections_is_named(closed):
    with pytest.raises(EngineError) as refused:
        require_master(f"spark://127.0.0.1:{closed}")
    assert refused.value.code == "OCQ-350"
    assert refused.value.what == f"the Spark master cannot be reached: 127.0.0.1:{closed}: connection refused"
    assert refused.value.where == f"spark.master spark://127.0.0.1:{closed}"


def test_a_host_that_no_name_server_knows_is_named():
    with pytest.raises(EngineError, match=r"no-such-host\.invalid:7077: there is no host of this name"):
        require_master("spark://no-such-host.invalid:7077")


def test_an_address_that_never_answers_is_waited_for_a_few_seconds(monkeypatch):
    def silent(_address: object, _seconds: float) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr(masters.socket, "create_connection", silent)
    monkeypatch.setattr(masters, "ANSWER_SECONDS", 0.01)
    with pytest.raises(EngineError, match=r"10\.0\.0\.1:7077: no answer within 0\.01 s"):
        require_master("spark://10.0.0.1:7077")


def test_one_of_several_masters_is_enough_and_else_each_has_its_reason(listening, closed):
    require_master(f"spark://127.0.0.1:{closed},127.0.0.1:{listening}")
    with pytest.raises(
        EngineError, match=rf"127\.0\.0\.1:{closed}: connection refused; no-such-host\.invalid:7077: there"
    ):
        require_master(f"spark://127.0.0.1:{closed},no-such-host.invalid:7077")


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[*]",
        "local[12]",
        "local[4,2]",
        "local[*, 2]",
        "local-cluster[2,1,1024]",
        "yarn",
        "k8s://https://h",
    ],
)
def test_other_kinds_of_master_have_no_address_to_look_at(master):
    require_master(master)
    assert not_registered(master, "any") is None


def test_a_setting_that_spark_refuses_is_not_blamed_on_the_master() -> None:
    assert not_registered("spark://127.0.0.1:7077", "SparkException: [INVALID_SPARK_CONFIG.X] spark.executor") is None


@pytest.mark.parametrize(
    "master",
    [
        "spark://host",
        "spark://host:seven",
        "spark://host:70777",
        "spark:/host:7077",
        "host:7077",
        "spork://host:1",
        "spark://",
        "local[many]",
        "local[0]",
        "local[]",
        "local[ 2 ]",
        "local[2,]",
        "local-cluster[2]",
    ],
)
def test_what_is_no_url_of_a_master_is_refused_with_the_forms_that_are(master):
    with pytest.raises(EngineError, match="OCQ-351") as refused:
        require_master(master)
    assert "spark://HOST:7077" in refused.value.fix


def test_spark_connect_is_refused_by_name():
    with pytest.raises(EngineError, match="Spark Connect cannot be used") as refused:
        require_master("sc://host:15002/;token=marker-of-a-token")
    assert "marker" not in str(refused.value)


def test_a_web_page_in_the_place_of_a_master_is_recognised(page):
    error = not_registered(f"spark://127.0.0.1:{page}", "All masters are unresponsive")
    assert error is not None
    assert (error.code, error.what) == ("OCQ-352", f"127.0.0.1:{page} is a web page, not the port of a Spark master")


def test_a_master_that_does_not_take_the_program_is_an_error_with_the_reason_of_spark(closed):
    error = not_registered(f"spark://127.0.0.1:{closed}", "All masters are unresponsive")
    assert error is not None
    assert error.what == "the Spark master did not register this program (All masters are unresponsive)"
    assert "spark.authenticate.secret" in error.fix


STANDALONE = "spark://host:7077"


@pytest.fixture
def nothing_launched(monkeypatch, tmp_path):
    """A process without a JVM, on a machine without settings of Spark."""
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    for name in ("PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("master", "local"),
    [
        ("local", True),
        ("local[*]", True),
        ("local[2]", True),
        ("local[2,3]", True),
        ("local-cluster[1,1,1024]", False),
        (STANDALONE, False),
        ("yarn", False),
        ("k8s://https://host", False),
        ("localhost", False),
    ],
)
def test_only_masters_within_one_jvm_are_local(master, local):
    assert is_local(master) is local


@pytest.mark.parametrize("said", ["true", "TRUE", " true "])
@pytest.mark.parametrize("master", ["local[*]", STANDALONE])
def test_authentication_is_accepted(master, said):
    refuse_unauthenticated(master, said)


@pytest.mark.parametrize(
    ("master", "existing", "remedy"),
    [
        ("local[*]", False, "remove spark.authenticate from spark.conf"),
        ("local[*]", True, 'create the session with "spark.authenticate" set to "true";'),
        (STANDALONE, False, "spark.authenticate.secret to the cluster's secret"),
        ("local-cluster[1,1,1024]", False, "spark.authenticate.secret to the cluster's secret"),
        (STANDALONE, True, '"true" and "spark.authenticate.secret"'),
        ("yarn", False, "set spark.authenticate to true in spark.conf;"),
        ("k8s://https://host", False, "set spark.authenticate to true in spark.conf;"),
    ],
)
@pytest.mark.parametrize("said", [None, "false", ""])
def test_a_spark_without_authentication_is_refused_with_the_ways_out(master, existing, remedy, said):
    with pytest.raises(EngineError) as refused:
        refuse_unauthenticated(master, said, existing=existing)
    assert refused.value.code == "OCQ-404"
    assert master in refused.value.where
    assert remedy in refused.value.fix
    assert "opencqrs.spark.allow-unauthenticated: true" in refused.value.fix


@pytest.mark.parametrize(
    "settings",
    [
        SessionSettings(),
        SessionSettings("local[2]", {"spark.authenticate": "true"}),
        SessionSettings(STANDALONE, {"spark.authenticate": "true"}),
        SessionSettings(STANDALONE, allow_unauthenticated=True),
        SessionSettings(conf={"spark.authenticate": "false"}, allow_unauthenticated=True),
    ],
)
def test_what_will_authenticate_or_need_not_is_accepted_before_the_launch(nothing_launched, settings):
    Sessions(settings).require_authentication()


@pytest.mark.parametrize(
    "settings",
    [
        SessionSettings(STANDALONE),
        SessionSettings("yarn"),
        SessionSettings("local-cluster[1,1,1024]"),
        SessionSettings(conf={"spark.authenticate": "false"}),
        SessionSettings(conf={"spark.master": STANDALONE}),
    ],
)
def test_what_will_not_authenticate_is_refused_before_the_launch(nothing_launched, settings):
    with pytest.raises(EngineError, match="OCQ-404"):
        Sessions(settings).require_authentication()


ALLOWED = SessionSettings(STANDALONE, allow_unauthenticated=True)


@pytest.mark.parametrize(
    ("settings", "encrypted"),
    [
        (SessionSettings(STANDALONE), "true"),
        (ALLOWED, None),
        (replace(ALLOWED, conf={"spark.authenticate": "false"}), None),
        (replace(ALLOWED, conf={"spark.authenticate": "true"}), "true"),
        (replace(ALLOWED, conf={"spark.network.crypto.enabled": "true"}), "true"),
    ],
)
def test_nothing_is_encrypted_by_default_where_a_cluster_may_go_without_authentication(
    nothing_launched, settings, encrypted
):
    """Spark would not start: NETWORK_AUTH_MUST_BE_ENABLED."""
    conf = Sessions(settings)._conf()
    assert conf.get("spark.network.crypto.enabled") == encrypted
    assert conf["spark.io.encryption.enabled"] == "true"


def test_spark_defaults_may_ask_for_authentication(nothing_launched):
    (nothing_launched / "spark-defaults.conf").write_text("spark.authenticate true\n")
    Sessions(SessionSettings(STANDALONE)).require_authentication()


def test_a_program_that_spark_submit_has_started_is_looked_at_when_its_session_is_open(nothing_launched, monkeypatch):
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    Sessions(SessionSettings(STANDALONE)).require_authentication()
