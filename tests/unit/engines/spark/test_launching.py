"""How Spark's settings are passed to a launched JVM."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark.java_gateway
import pytest
from pyspark import SparkContext

from opencqrs_py.engines.spark import launching
from opencqrs_py.engines.spark.launching import (
    SubmitArguments,
    by_socket_files,
    environment_of_launch,
    properties_text,
    settings_by_file,
    value_before_launch,
)
from opencqrs_py.errors import EngineError

gateway: Any = pyspark.java_gateway
ARGUMENTS = "PYSPARK_SUBMIT_ARGS"


@pytest.fixture(autouse=True)
def no_arguments(monkeypatch):
    monkeypatch.delenv(ARGUMENTS, raising=False)


def launched_with() -> tuple[Path, list[str]]:
    """Return the properties file of the arguments, and the other arguments."""
    option, file, *others = shlex.split(os.environ[ARGUMENTS])
    assert option == "--properties-file"
    return Path(file), others


def test_settings_are_in_a_private_file_that_is_deleted_after_the_launch():
    with settings_by_file({"spark.hadoop.fs.s3a.secret.key": "s3cret"}):
        file, others = launched_with()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert file.read_text() == "spark.hadoop.fs.s3a.secret.key=s3cret\n"
        assert others == ["--load-spark-defaults", "pyspark-shell"]
        assert "s3cret" not in os.environ[ARGUMENTS]
    assert not file.exists()
    assert ARGUMENTS not in os.environ


@pytest.mark.parametrize("raised", [RuntimeError, KeyboardInterrupt])
def test_a_launch_that_fails_or_is_interrupted_leaves_no_file_and_restores_the_arguments(monkeypatch, raised):
    monkeypatch.setenv(ARGUMENTS, "--name x pyspark-shell")

    def launch() -> None:
        with settings_by_file({"spark.a": "1"}):
            files.append(launched_with()[0])
            raise raised

    files: list[Path] = []
    with pytest.raises(raised):
        launch()
    assert [file.exists() for file in files] == [False]
    assert os.environ[ARGUMENTS] == "--name x pyspark-shell"


@pytest.mark.parametrize("option", ["--conf spark.a=theirs=1", "-c spark.a=theirs=1", "--conf=spark.a=theirs=1"])
def test_settings_in_the_users_arguments_move_into_the_file_and_take_precedence(monkeypatch, option):
    monkeypatch.setenv(ARGUMENTS, f"--packages g:a:1 {option} pyspark-shell")
    with settings_by_file({"spark.a": "ours", "spark.b": "ours"}):
        file, others = launched_with()
        assert file.read_text() == "spark.a=theirs\\=1\nspark.b=ours\n"
        assert others == ["--load-spark-defaults", "--packages", "g:a:1", "pyspark-shell"]


@pytest.mark.parametrize("joint", [" ", "="])
def test_a_properties_file_of_the_user_is_copied_before_our_settings_and_replaces_the_defaults(
    monkeypatch, tmp_path, joint
):
    theirs = tmp_path / "theirs.conf"
    theirs.write_text("spark.a theirs\\")
    monkeypatch.setenv(ARGUMENTS, f"--properties-file{joint}{theirs} pyspark-shell")
    with settings_by_file({"spark.b": "ours"}):
        file, others = launched_with()
        assert file.read_text() == "spark.a theirs\\\n\nspark.b=ours\n"
        assert others == ["pyspark-shell"]
    assert theirs.exists()


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("plain", "plain"),
        ("a b", "a\\ b"),
        ("#!=:", "\\#\\!\\=\\:"),
        ("C:\\x", "C\\:\\\\x"),
        ("a\nb\rc\td", "a\\nb\\rc\\td"),
        ("ü€", "\\u00fc\\u20ac"),
        ("\N{GRINNING FACE}", "\\ud83d\\ude00"),
    ],
)
def test_values_are_escaped_as_java_reads_properties(value, written):
    assert properties_text({"spark.a": value}) == f"spark.a={written}\n"


def test_missing_arguments_mean_the_shell():
    assert SubmitArguments.of({}) == SubmitArguments({}, "", ("pyspark-shell",))


def test_arguments_that_cannot_be_split_are_refused():
    with pytest.raises(EngineError, match="PYSPARK_SUBMIT_ARGS cannot be read: No closing quotation") as caught:
        SubmitArguments.of({ARGUMENTS: '--name "x pyspark-shell'})
    assert caught.value.code == "OCQ-402"


DEFAULTS = "# spark.a  commented\nspark.aa no\nspark.a   in-defaults\n  spark.b=2\nspark.c: 3\n"


@pytest.mark.parametrize(
    ("key", "settings", "arguments", "value"),
    [
        ("spark.a", {"spark.a": "ours"}, "--conf spark.a=submitted", "ours"),
        ("spark.a", {}, "--conf spark.a=submitted", "submitted"),
        ("spark.a", {}, "", "in-defaults"),
        ("spark.b", {}, "", "2"),
        ("spark.c", {}, "", "3"),
        ("spark.d", {}, "", None),
        ("spark.a", {}, "--properties-file /nowhere", None),
    ],
)
def test_a_value_is_known_before_the_launch(tmp_path, key, settings, arguments, value):
    (tmp_path / "spark-defaults.conf").write_text(DEFAULTS)
    environ = {"SPARK_CONF_DIR": str(tmp_path), ARGUMENTS: f"{arguments} pyspark-shell"}
    assert value_before_launch(key, settings, environ, "/nowhere") == value


def test_without_a_settings_folder_the_defaults_of_the_spark_installation_apply(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(DEFAULTS)
    assert value_before_launch("spark.b", {}, {}, str(tmp_path)) == "2"


def test_socket_files_in_a_private_folder_are_used_only_for_a_jvm_launched_here(monkeypatch):
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(launching, "_jvms", [])
    settings = by_socket_files()
    assert settings == by_socket_files()
    folder = Path(settings["spark.python.unix.domain.socket.dir"])
    assert settings["spark.python.unix.domain.socket.enabled"] == "true"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    monkeypatch.setattr(SparkContext, "_gateway", object())  # of a JVM launched elsewhere
    assert by_socket_files() == {}
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert by_socket_files() == {}


AT_ITS_END = """
import subprocess, sys
from opencqrs_py.engines.spark import launching

print(launching.by_socket_files()["spark.python.unix.domain.socket.dir"])
command = [sys.executable, "-c", "input()"]
launching._jvms.append(subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0))
"""


def test_at_its_end_a_process_removes_the_folder_and_closes_the_pipe_to_its_jvm():
    """Each is a warning otherwise, which ``python -W error`` shows with a traceback."""
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", AT_ITS_END]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr, Path(done.stdout.strip()).exists()) == (0, "", False)


OF_DAEMON = [
    b"Traceback (most recent call last):",
    b'  File "/x/pyspark.zip/pyspark/daemon.py", line 264, in manager',
    b'  File "/x/pyspark.zip/pyspark/daemon.py", line 95, in worker',
    b"BrokenPipeError: [Errno 32] Broken pipe",
]
AT_ONCE = [line for line in OF_DAEMON for _ in range(2)]
"""Two workers write theirs."""
OF_HANDLER = [*OF_DAEMON[:2], b'  File "/x/handlers.py", line 1, in handle', OF_DAEMON[-1]]


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        ([b"a", b"NOISE b", b"c"], [b"a", b"c"]),
        ([b"a", *OF_DAEMON, b"b"], [b"a", b"b"]),
        ([*OF_HANDLER, b"b"], [*OF_HANDLER, b"b"]),
        ([b"a", *AT_ONCE, b"b"], [b"a", b"b"]),
        ([b"a", *OF_DAEMON[:2], *OF_DAEMON, *OF_DAEMON[2:], b"b"], [b"a", b"b"]),
        ([OF_DAEMON[0], *OF_HANDLER, *OF_DAEMON[1:], b"b"], [OF_DAEMON[0], *OF_HANDLER, *OF_DAEMON[1:], b"b"]),
        ([*AT_ONCE[:-1], b"ValueError"], [*AT_ONCE[:-1], b"ValueError"]),
        ([*OF_DAEMON[:-1], b"ValueError"], [*OF_DAEMON[:-1], b"ValueError"]),
        (
            [b"Traceback (most recent call last):", b"ValueError"],
            [b"Traceback (most recent call last):", b"ValueError"],
        ),
    ],
)
def test_tracebacks_of_a_daemon_with_a_broken_pipe_are_hidden_and_all_other_lines_are_shown(lines, shown):
    at_once = launching._Shown(("NOISE",))
    assert list(at_once.of(lines)) == shown
    one_by_one = launching._Shown(("NOISE",))
    assert [each for line in lines for each in one_by_one.of([line])] == shown
    everything = launching._Shown(())
    assert list(everything.of(lines)) == lines
    assert everything.held == []


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"a\n" + OF_DAEMON[0] + b"\n", b"a\n"),
        (b"a\n" + OF_DAEMON[0] + b"\n" + OF_DAEMON[1] + b'\n  File "/x/py', b"a\n"),
        (b"\n".join(AT_ONCE[:-1]), b""),
        (b"\n".join(OF_DAEMON) + b"\nb", b"b"),
        (b"a\n" + b"\n".join(OF_HANDLER[:3]) + b"\n    b", b"a\n" + b"\n".join(OF_HANDLER[:3]) + b"\n    b"),
        (b"\n".join([OF_DAEMON[0], *OF_HANDLER]), b"\n".join([OF_DAEMON[0], *OF_HANDLER])),
        (b"\n".join([*AT_ONCE[:-1], b"ValueError", b""]), b"\n".join([*AT_ONCE[:-1], b"ValueError", b""])),
    ],
)
def test_the_partial_traceback_of_a_killed_worker_is_hidden_and_all_other_lines_are_shown(capfd, written, shown):
    for quiet, expected in ((True, shown), (False, written)):
        reading, writing = os.pipe()
        os.write(writing, written)
        os.close(writing)
        launch = launching.JvmOutput(quiet=quiet)
        launch.show()
        launch.forward(reading)
        reader: Any = launch._reader
        reader.join()
        assert capfd.readouterr() == ("", expected.decode())


def test_our_jvm_options_come_before_the_users_and_launcher_options_of_the_user_replace_ours():
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    assert environment_of_launch({}, ()) == {"SPARK_LAUNCHER_OPTS": quick}
    assert environment_of_launch({"SPARK_SUBMIT_OPTS": "-Xmx2g"}, ("-XX:A=/a b/c", "-Xlog:x=off")) == {
        "SPARK_LAUNCHER_OPTS": quick,
        "SPARK_SUBMIT_OPTS": '"-XX:A=/a b/c" "-Xlog:x=off" -Xmx2g',
    }
    assert environment_of_launch({"SPARK_LAUNCHER_OPTS": "-Xint"}, ()) == {"SPARK_LAUNCHER_OPTS": "-Xint"}


def test_a_value_of_several_words_is_known_before_the_launch(tmp_path):
    (tmp_path / "spark-defaults.conf").write_text("spark.driver.extraJavaOptions  -Da=b -Xshare:off \nspark.c d\n")
    said = value_before_launch("spark.driver.extraJavaOptions", {}, {"SPARK_CONF_DIR": str(tmp_path)}, "/nowhere")
    assert said == "-Da=b -Xshare:off"


def test_the_reason_why_a_jvm_cannot_start_is_returned_and_not_printed(capfd):
    words = ["Error occurred during initialization of VM", "Too small maximum heap", "NOTE: Picked up JDK_JAVA_OPTIONS"]
    with launching.launching(quiet=True) as launch:
        said = "; ".join(f"echo '{each}' >&{1 + number % 2}" for number, each in enumerate(words))
        gateway.Popen(["/bin/sh", "-c", said])
        assert launch.refusal() == "Too small maximum heap"
    assert capfd.readouterr() == ("", "")


NAMELESS = """\
Exception in thread "main" java.lang.ExceptionInInitializerError
\tat org.apache.spark.deploy.SparkSubmit$.main(SparkSubmit.scala)
Caused by: java.net.UnknownHostException: box: box: Name or service not known
\tat java.base/java.net.InetAddress.getLocalHost(InetAddress.java:1671)
\t... 13 more
Caused by: java.net.UnknownHostException: box: Name or service not known
\t... 9 more
"""
"""What Spark's launcher says on a machine whose own name has no address, which no local session asks for."""


def test_the_root_cause_of_an_exception_that_ends_the_jvm_is_the_reason(tmp_path, capfd):
    (tmp_path / "said").write_text(NAMELESS)
    with launching.launching(quiet=True) as launch:
        gateway.Popen(["/bin/sh", "-c", f"cat {tmp_path / 'said'} >&2"])
        assert launch.refusal() == "UnknownHostException: box: Name or service not known"
    assert capfd.readouterr() == ("", "")


def test_the_reason_for_a_wrong_argument_excludes_the_usage_text(tmp_path):
    usage = "Usage: spark-submit [options] <app jar | python file | R file> [app arguments]\n\nOptions:\n  --master"
    (tmp_path / "said").write_text(f"Error: Unrecognized option: --bogus\n\n{usage}\n")
    with launching.launching(quiet=True) as launch:
        gateway.Popen(["/bin/sh", "-c", f"cat {tmp_path / 'said'} >&2"])
        assert launch.refusal() == "Error: Unrecognized option: --bogus"


@pytest.mark.parametrize("quiet", [True, False])
def test_output_of_a_running_jvm_is_printed_and_is_not_a_reason(capfd, quiet):
    with launching.launching(quiet=quiet) as launch:
        jvm = gateway.Popen(["/bin/sh", "-c", "echo mine >&2; read line"], stdin=subprocess.PIPE)
        assert launch.refusal() == ""
    jvm.communicate(b"\n")
    reader: Any = launch._reader
    reader.join()
    assert capfd.readouterr() == ("", "mine\n")
