"""What Kubernetes sets for a Service whose name begins like a setting of ours."""

from __future__ import annotations

import json

import pytest

from opencqrs_py.cli.main import main

SERVICE = {
    "OPENCQRS_SERVICE_HOST": "10.96.0.17",
    "OPENCQRS_SERVICE_PORT": "5432",
    "OPENCQRS_SERVICE_PORT_SQL_READ": "5432",
    "OPENCQRS_PORT": "tcp://10.96.0.17:5432",
    "OPENCQRS_PORT_5432_TCP": "tcp://10.96.0.17:5432",
    "OPENCQRS_PORT_5432_TCP_PROTO": "tcp",
    "OPENCQRS_PORT_5432_TCP_PORT": "5432",
    "OPENCQRS_PORT_5432_TCP_ADDR": "10.96.0.17",
    "OPENCQRS_PORT_53_UDP": "udp://[fd00::11]:53",
    "OPENCQRS_PORT_53_UDP_ADDR": "fd00::11",
    "OPENCQRS_EVENT_STORE_SERVICE_HOST": "10.96.0.18",
    "OPENCQRS_EVENT_STORE_SERVICE_PORT": "3000",
    "OPENCQRS_EVENT_STORE_PORT": "tcp://10.96.0.18:3000",
    "OPENCQRS_SPARK_PORT_7077_TCP": "tcp://10.96.0.19:7077",
}


def test_variables_of_services_are_ignored_and_named(project):
    assert project.load(environ=SERVICE).ignored == tuple(SERVICE)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OPENCQRS_DATABASE_PORT", "5432"),
        ("OPENCQRS_EVENT_STORE_HOST", "10.96.0.17"),
        ("OPENCQRS_SERVICE_HOST", "db.example"),
        ("OPENCQRS_SERVICE_PORT", "sql"),
        ("OPENCQRS_PORT", "tcp://db.example:5432"),
        ("OPENCQRS_PORT_TCP", "tcp://10.96.0.17:5432"),
        ("OPENCQRS_PORT_5432_TCP_HOST", "10.96.0.17"),
        ("OPENCQRS_PORT_5432_TCP_PROTO", "http"),
        ("opencqrs_service_host", "10.96.0.17"),
        ("OPENCQRS__SERVICE_HOST", "10.96.0.17"),
    ],
)
def test_a_variable_that_only_resembles_one_of_a_service_is_an_unknown_setting(project, name, value):
    assert project.error(environ={name: value}).code == "OCQ-104"


def test_the_same_names_in_files_are_unknown_settings(project):
    project.write(".env", "OPENCQRS_SERVICE_HOST=10.96.0.17\n")
    assert project.error().code == "OCQ-104"


def test_a_variable_that_names_a_setting_is_one_whatever_its_value(project):
    environ = {"OPENCQRS_SPARK_CONF_SERVICE_HOST": "10.96.0.17"}
    configuration = project.load(environ=environ)
    assert (configuration.settings.spark.conf, configuration.ignored) == ({"service.host": "10.96.0.17"}, ())


def test_the_commands_that_show_the_configuration_report_them(project, monkeypatch, capsys):
    for name, value in SERVICE.items():
        monkeypatch.setenv(name, value)
    project.write("handlers.py", "")
    with pytest.raises(SystemExit, match="0"):
        main(["config", "--project", str(project.folder)])
    assert (
        "ignored environment variables, which Kubernetes sets for a Service: OPENCQRS_SERVICE_HOST, "
        in capsys.readouterr().err
    )
    with pytest.raises(SystemExit, match="0"):
        main(["conditions", "--project", str(project.folder), "--format", "json"])
    seen = capsys.readouterr()
    (row,) = (row for row in json.loads(seen.out) if row["subject"] == "environment variables")
    assert row["choice"] == "14 ignored"
    assert row["reason"] == "Kubernetes sets them for a Service"
    assert row["candidates"] == list(SERVICE)
    assert "Kubernetes" not in seen.err


def test_other_commands_do_not_mention_them(project, monkeypatch, capsys):
    for name, value in SERVICE.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="0"):
        main(["status", "--project", str(project.folder)])
    assert "Kubernetes" not in capsys.readouterr().err
