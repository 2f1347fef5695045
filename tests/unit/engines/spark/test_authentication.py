"""Which Spark is refused for its lack of authentication."""

from __future__ import annotations

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from opencqrs_py.engines.spark.authentication import is_local, refuse_unauthenticated
from opencqrs_py.engines.spark.session import Sessions, SessionSettings
from opencqrs_py.errors import EngineError

STANDALONE = "spark://host:7077"


@pytest.fixture
def nothing_launched(monkeypatch, tmp_path):
    """A process without a JVM, on a machine without settings of Spark."""
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
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


def test_spark_defaults_may_ask_for_authentication(nothing_launched):
    (nothing_launched / "spark-defaults.conf").write_text("spark.authenticate true\n")
    Sessions(SessionSettings(STANDALONE)).require_authentication()


def test_a_program_that_spark_submit_has_started_is_looked_at_when_its_session_is_open(nothing_launched, monkeypatch):
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    Sessions(SessionSettings(STANDALONE)).require_authentication()
