"""Spark masters that are refused quickly: unreachable ones, and those without authentication."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from opencqrs_py.engines.spark import launching, masters
from opencqrs_py.engines.spark.cluster_addresses import LaunchSettings, kubernetes_addresses, yarn_addresses
from opencqrs_py.engines.spark.masters import is_local, not_registered, refuse_unauthenticated, require_master
from opencqrs_py.engines.spark.session import Sessions, SessionSettings
from opencqrs_py.errors import EngineError


@pytest.fixture
def listening() -> Iterator[int]:
    """Return a port that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed() -> int:
    """Return a port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def page() -> Iterator[int]:
    """Return a port that answers like a web server."""

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


def test_a_master_that_refuses_connections_is_refused_with_its_address(closed):
    with pytest.raises(EngineError) as refused:
        require_master(f"spark://127.0.0.1:{closed}")
    assert refused.value.code == "OCQ-350"
    assert refused.value.what == f"the Spark master cannot be reached: 127.0.0.1:{closed}: connection refused"
    assert refused.value.where == f"spark.master spark://127.0.0.1:{closed}"


def test_a_master_on_an_unknown_host_is_refused_with_its_address():
    with pytest.raises(EngineError, match=r"no-such-host\.invalid:7077: there is no host of this name"):
        require_master("spark://no-such-host.invalid:7077")


def test_a_master_that_never_answers_is_refused_after_a_few_seconds(monkeypatch):
    def silent(_address: object, _seconds: float) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr(masters.socket, "create_connection", silent)
    monkeypatch.setattr(masters, "ANSWER_SECONDS", 0.01)
    with pytest.raises(EngineError, match=r"10\.0\.0\.1:7077: no answer within 0\.01 s"):
        require_master("spark://10.0.0.1:7077")


def test_one_reachable_master_is_enough_otherwise_each_is_listed_with_its_reason(listening, closed):
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
def test_other_kinds_of_master_are_not_probed_in_the_jvm_of_another_program(master):
    require_master(master)
    assert not_registered(master, "any") is None


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LaunchSettings]:
    """Return a function that creates the settings and environment of a launch."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")

    def made(settings: Mapping[str, str] | None = None, /, **environ: str) -> LaunchSettings:
        return LaunchSettings((settings or {}).get, environ, str(tmp_path))

    return made


def hadoop_settings(folder: Path, name: str = "yarn-site.xml", /, **properties: str) -> str:
    """Write a Hadoop settings file, and return its folder. ``__`` stands for a dot, ``_`` for ``-``."""
    named = {key.replace("__", ".").replace("_", "-"): value for key, value in properties.items()}
    lines = [f"<property><name>{key}</name><value> {value} </value></property>" for key, value in named.items()]
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"<configuration>{''.join(lines)}</configuration>")
    return str(folder)


@pytest.mark.parametrize(
    ("master", "address"),
    [
        ("k8s://https://host:6443", ("host", 6443)),
        ("k8s://https://host", ("host", 443)),
        ("k8s://http://host", ("host", 80)),
        ("k8s://host", ("host", 443)),
        ("k8s://host:6443", ("host", 6443)),
        ("k8s://https://[::1]:6443", ("::1", 6443)),
        ("k8s://https://host/k8s/clusters/c-1", ("host", 443)),
    ],
)
def test_the_kubernetes_api_server_is_probed_at_the_address_that_spark_uses(launch, master, address):
    assert kubernetes_addresses(master, launch()) == [address]


def test_an_api_server_that_refuses_connections_is_refused_with_its_address(launch, closed, listening):
    require_master(f"k8s://http://127.0.0.1:{listening}", launch())
    with pytest.raises(EngineError, match="OCQ-350") as refused:
        require_master(f"k8s://https://user:marker@127.0.0.1:{closed}", launch())
    assert (
        refused.value.what == f"the API server of Kubernetes cannot be reached: 127.0.0.1:{closed}: connection refused"
    )
    assert refused.value.where == f"spark.master k8s://https://127.0.0.1:{closed}"
    assert "kubectl cluster-info" in refused.value.fix


@pytest.mark.parametrize(
    ("settings", "environ"),
    [
        ({}, {"HTTPS_PROXY": "http://proxy:3128"}),
        ({}, {"ALL_PROXY": "http://proxy:3128"}),
        ({}, {"KUBECONFIG": "{folder}/of-a-proxy"}),
        ({}, {"SPARK_CONF_DIR": "{folder}/with-a-script"}),
        ({"spark.driver.extraJavaOptions": "-Dhttps.proxy=http://proxy:3128"}, {}),
        ({}, {"JAVA_TOOL_OPTIONS": "-Dhttps.proxy=http://proxy:3128"}),
    ],
)
def test_an_api_server_behind_a_proxy_is_left_to_spark(launch, tmp_path, closed, settings, environ):
    (tmp_path / "of-a-proxy").write_text("clusters: [{cluster: {proxy-url: http://proxy:3128}}]")
    (tmp_path / "with-a-script").mkdir()
    (tmp_path / "with-a-script" / "spark-env.sh").write_text("export HTTPS_PROXY=http://proxy:3128")
    variables = {key: value.format(folder=tmp_path) for key, value in environ.items()}
    require_master(f"k8s://https://127.0.0.1:{closed}", launch(settings, **variables))


@pytest.mark.parametrize("master", ["k8s://https://host:seven", "k8s://ftp://host", "k8s://https://"])
def test_a_malformed_kubernetes_address_is_left_to_spark(launch, master):
    require_master(master, launch())


def test_yarn_without_a_hadoop_settings_folder_is_refused_with_the_variable_to_set(launch):
    with pytest.raises(EngineError, match="OCQ-350") as refused:
        require_master("yarn", launch())
    assert "neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set" in refused.value.what
    assert "set HADOOP_CONF_DIR" in refused.value.fix


def test_yarn_is_left_to_spark_if_its_environment_script_may_name_the_hadoop_settings(launch, tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-env.sh").write_text("export HADOOP_CONF_DIR=/etc/hadoop/conf")
    require_master("yarn", launch())


@pytest.mark.parametrize("variable", ["HADOOP_CONF_DIR", "YARN_CONF_DIR"])
def test_a_resource_manager_that_refuses_connections_is_refused_with_its_address(
    launch, tmp_path, closed, listening, variable
):
    folder = hadoop_settings(tmp_path / "hadoop", yarn__resourcemanager__address=f"127.0.0.1:{closed}")
    with pytest.raises(EngineError, match="OCQ-350") as refused:
        require_master("yarn", launch(**{variable: folder}))
    assert (
        refused.value.what == f"the ResourceManager of YARN cannot be reached: 127.0.0.1:{closed}: connection refused"
    )
    assert "yarn-site.xml" in refused.value.fix
    hadoop_settings(tmp_path / "hadoop", yarn__resourcemanager__address=f"127.0.0.1:{listening}")
    require_master("yarn", launch(**{variable: folder}))


HA = {"yarn__resourcemanager__ha__enabled": "true", "yarn__resourcemanager__ha__rm_ids": "rm1, rm2"}


@pytest.mark.parametrize(
    ("properties", "addresses"),
    [
        ({}, [("0.0.0.0", 8032)]),
        ({"yarn__resourcemanager__hostname": "rm"}, [("rm", 8032)]),
        ({"yarn__resourcemanager__address": "rm"}, [("rm", 8032)]),
        (
            {
                "yarn__resourcemanager__hostname": "rm",
                "yarn__resourcemanager__address": "${yarn.resourcemanager.hostname}:1",
            },
            [("rm", 1)],
        ),
        (
            HA | {"yarn__resourcemanager__address__rm1": "a:1", "yarn__resourcemanager__hostname__rm2": "b"},
            [("a", 1), ("b", 8032)],
        ),
    ],
)
def test_resource_managers_are_probed_at_the_addresses_that_hadoop_uses(launch, tmp_path, properties, addresses):
    folder = hadoop_settings(tmp_path / "hadoop", **properties)
    assert yarn_addresses(launch(HADOOP_CONF_DIR=folder)) == addresses


def test_a_final_property_of_an_earlier_file_wins(launch, tmp_path):
    folder = Path(hadoop_settings(tmp_path / "hadoop", yarn__resourcemanager__hostname="site"))
    named = "<name>yarn.resourcemanager.hostname</name><value>core</value>"
    core = f"<configuration><property>{named}<final>true</final></property></configuration>"
    (folder / "core-site.xml").write_text(core)
    assert yarn_addresses(launch(HADOOP_CONF_DIR=str(folder))) == [("core", 8032)]


def test_a_folder_without_yarn_settings_is_given_as_the_reason(launch, tmp_path, closed):
    said = {"spark.hadoop.yarn.resourcemanager.address": f"127.0.0.1:{closed}"}
    with pytest.raises(EngineError, match="OCQ-350") as refused:
        require_master("yarn", launch(said, HADOOP_CONF_DIR=str(tmp_path / "nowhere")))
    assert "no yarn-site.xml" in refused.value.what
    assert "HADOOP_CONF_DIR" in refused.value.fix


def test_a_token_in_the_url_of_a_master_is_not_shown(launch, closed):
    with pytest.raises(EngineError, match="OCQ-350") as refused:
        require_master(f"k8s://https://127.0.0.1:{closed}/?token=geheim", launch())
    assert "geheim" not in str(refused.value)


def test_the_api_server_is_probed_even_without_a_home_folder(launch, monkeypatch):
    def expanduser(_path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", expanduser)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert kubernetes_addresses("k8s://https://host:1", launch()) == [("host", 1)]


def test_spark_settings_override_hadoop_files_and_yarn_site_overrides_core_site(launch, tmp_path):
    folder = hadoop_settings(tmp_path / "hadoop", "core-site.xml", yarn__resourcemanager__hostname="core")
    assert yarn_addresses(launch(HADOOP_CONF_DIR=folder)) == [("core", 8032)]
    hadoop_settings(tmp_path / "hadoop", yarn__resourcemanager__hostname="site")
    assert yarn_addresses(launch(HADOOP_CONF_DIR=folder)) == [("site", 8032)]
    said = {"spark.hadoop.yarn.resourcemanager.address": "set:1"}
    assert yarn_addresses(launch(said, HADOOP_CONF_DIR=folder)) == [("set", 1)]


@pytest.mark.parametrize(
    "text",
    [
        "<configuration",
        '<configuration xmlns:xi="http://www.w3.org/2001/XInclude"><xi:include href="other.xml"/></configuration>',
        "<configuration><property><name>yarn.resourcemanager.hostname</name><value>${env.RM}</value></property>"
        "</configuration>",
        "<configuration><property><name>yarn.resourcemanager.hostname</name>"
        "<value>${yarn.resourcemanager.hostname}</value></property></configuration>",
        "<configuration><property><name>yarn.resourcemanager.ha.enabled</name><value>true</value></property>"
        "</configuration>",
        "<configuration><property><name>yarn.federation.enabled</name><value>true</value></property></configuration>",
        "<configuration><property><name>hadoop.rpc.socket.factory.class.default</name>"
        "<value>org.apache.hadoop.net.SocksSocketFactory</value></property></configuration>",
        "<configuration><property><name>yarn.resourcemanager.address</name><value>a:b:c</value></property>"
        "</configuration>",
    ],
)
def test_yarn_settings_that_cannot_be_interpreted_are_left_to_spark(launch, tmp_path, text):
    (tmp_path / "yarn-site.xml").write_text(text)
    assert yarn_addresses(launch(HADOOP_CONF_DIR=str(tmp_path))) == []


def test_a_class_path_that_may_contain_yarn_settings_is_left_to_spark(launch, tmp_path):
    folder = hadoop_settings(tmp_path / "hadoop", yarn__resourcemanager__hostname="rm")
    jars = {"spark.driver.extraClassPath": "/lib/driver.jar:/lib/*"}
    assert yarn_addresses(launch(jars, HADOOP_CONF_DIR=folder)) == [("rm", 8032)]
    assert yarn_addresses(launch({"spark.driver.extraClassPath": "/etc/hadoop"}, HADOOP_CONF_DIR=folder)) == []


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
def test_an_invalid_master_url_is_refused_with_the_valid_forms(master):
    with pytest.raises(EngineError, match="OCQ-351") as refused:
        require_master(master)
    assert "spark://HOST:7077" in refused.value.fix


def test_spark_connect_is_refused_by_name():
    with pytest.raises(EngineError, match="Spark Connect cannot be used") as refused:
        require_master("sc://host:15002/;token=marker-of-a-token")
    assert "marker" not in str(refused.value)


def test_a_web_page_instead_of_a_master_is_recognised(page):
    error = not_registered(f"spark://127.0.0.1:{page}", "All masters are unresponsive")
    assert error is not None
    assert (error.code, error.what) == ("OCQ-352", f"127.0.0.1:{page} is a web page, not the port of a Spark master")


def test_a_master_that_does_not_register_the_program_is_an_error_with_sparks_reason(closed):
    error = not_registered(f"spark://127.0.0.1:{closed}", "All masters are unresponsive")
    assert error is not None
    assert error.what == "the Spark master did not register this program (All masters are unresponsive)"
    assert "spark.authenticate.secret" in error.fix


STANDALONE = "spark://host:7077"


@pytest.fixture
def nothing_launched(monkeypatch, tmp_path):
    """Simulate a process without a JVM, on a machine without Spark settings."""
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
def test_spark_without_authentication_is_refused_with_the_possible_fixes(master, existing, remedy, said):
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
def test_settings_that_authenticate_or_need_not_are_accepted_before_the_launch(nothing_launched, settings):
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
def test_settings_that_do_not_authenticate_are_refused_before_the_launch(nothing_launched, settings):
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
def test_network_encryption_is_off_by_default_where_authentication_is_optional(nothing_launched, settings, encrypted):
    """Otherwise Spark would not start: NETWORK_AUTH_MUST_BE_ENABLED."""
    conf = settings.spark_conf()
    assert conf.get("spark.network.crypto.enabled") == encrypted
    assert conf["spark.io.encryption.enabled"] == "true"


def test_spark_defaults_may_enable_authentication(nothing_launched):
    (nothing_launched / "spark-defaults.conf").write_text("spark.authenticate true\n")
    Sessions(SessionSettings(STANDALONE)).require_authentication()


@pytest.mark.parametrize("master", ["yarn", "k8s://http://127.0.0.1:{closed}"])
def test_sessions_probe_the_cluster_before_a_launch_but_not_under_spark_submit(
    nothing_launched, monkeypatch, closed, master
):
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    sessions = Sessions(SessionSettings(master.format(closed=closed)))
    monkeypatch.setattr(launching, "_jvms", [])
    with pytest.raises(EngineError, match="OCQ-350"):
        sessions.require_master()
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    sessions.require_master()


def test_a_program_started_by_spark_submit_is_checked_when_its_session_is_open(nothing_launched, monkeypatch):
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    Sessions(SessionSettings(STANDALONE)).require_authentication()
