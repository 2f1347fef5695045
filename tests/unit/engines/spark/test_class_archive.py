"""The archive of Spark's classes: its place, its use and its creation, without Spark."""

from __future__ import annotations

import atexit
import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from opencqrs_py.engines.spark import class_archive_maker
from opencqrs_py.engines.spark.class_archive import ClassArchive, class_archive
from opencqrs_py.engines.spark.class_archive_maker import make, tidy
from opencqrs_py.engines.spark.java import Java, JavaOrigin

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Spark's scripts there take no archive")

CLASS_PATH = "/spark/jars/a.jar:/spark/jars/b.jar"
LONG_AGO = 1_000_000_000
NO_PROCESS = 2**22 + 1  # larger than any process id on Linux


@pytest.fixture
def spark(tmp_path) -> Path:
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    return tmp_path / "spark"


@pytest.fixture
def environ(tmp_path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def java_at(home: Path, version: int = 17) -> Java:
    return Java(home, version, JavaOrigin.JAVA_HOME)


@pytest.fixture
def archive(spark, environ, tmp_path) -> ClassArchive:
    found = class_archive(java_at(tmp_path / "java"), spark, "4.3.0", [], environ)
    assert found is not None
    return found


def write_archive(archive: ClassArchive, mode: int = 0o600) -> None:
    archive.file.write_bytes(b"classes")
    archive.file.chmod(mode)


def fake_java(folder: Path, script: str) -> str:
    """Return a program that is run instead of Java; ``$out`` is the file it should write."""
    program = folder / "fake-java"
    program.write_text(
        f'#!/bin/sh\nfor word do case "$word" in -XX:SharedArchiveFile=*) out=${{word#*=}} ;; esac; done\n{script}\n'
    )
    program.chmod(0o755)
    return str(program)


def test_the_archive_is_in_a_private_folder_of_the_users_cache(archive, environ):
    assert archive.file.parent == Path(environ["XDG_CACHE_HOME"], "opencqrs-py", "classes")
    assert stat.S_IMODE(archive.file.parent.stat().st_mode) == 0o700


def test_each_combination_of_java_pyspark_and_jvm_settings_has_its_own_archive(spark, environ, tmp_path):
    def file(home="a", version=17, pyspark="4.3.0", said=(), **more):
        found = class_archive(java_at(tmp_path / home, version), spark, pyspark, said, {**environ, **more})
        return found and found.file

    files = [
        file(),
        file(home="b"),
        file(version=25),
        file(pyspark="4.3.1"),
        file(said=["-Xmx40g"]),
        file(SPARK_CONF_DIR="/etc/spark"),
    ]
    os.utime(spark / "jars", (LONG_AGO, LONG_AGO))  # as after a new installation
    assert len({*files, file()}) == 7
    assert file() == file()


@pytest.mark.parametrize(
    "option",
    [
        "-Xshare:off",
        "-XX:SharedArchiveFile=a.jsa",
        "-XX:AOTCache=a",
        "-XX:ArchiveClassesAtExit=a",
        "-XX:+AOTClassLinking",
    ],
)
def test_no_archive_is_used_if_the_user_sets_a_class_sharing_option(spark, environ, tmp_path, option):
    java = java_at(tmp_path)
    assert class_archive(java, spark, "4.3.0", [None, f"-Da=b {option}"], environ) is None
    assert class_archive(java, spark, "4.3.0", [], {**environ, "SPARK_SUBMIT_OPTS": option}) is None
    assert class_archive(java, spark, "4.3.0", [], {**environ, "JAVA_TOOL_OPTIONS": option}) is None


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_writable_by_others_is_not_used(archive, spark, environ, mode):
    archive.file.parent.chmod(mode)
    assert class_archive(archive.java, spark, "4.3.0", [], environ) is None


def test_a_symlink_in_place_of_the_folder_is_not_used(archive, spark, environ, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    archive.file.parent.rmdir()
    archive.file.parent.symlink_to(tmp_path / "elsewhere")
    assert class_archive(archive.java, spark, "4.3.0", [], environ) is None


def test_without_a_cache_folder_no_archive_is_used(spark, tmp_path):
    assert class_archive(java_at(tmp_path), spark, "4.3.0", [], {}) is None


def test_the_first_jvm_lists_its_classes_and_later_ones_use_the_archive_silently(archive):
    assert archive.options() == (f"-XX:DumpLoadedClassList={archive.list_file}",)
    write_archive(archive)
    expected = ("-Xshare:auto", f"-XX:SharedArchiveFile={archive.file}", "-XX:+VerifySharedSpaces", "-Xlog:cds*=off")
    assert archive.options() == expected
    assert ClassArchive(archive.file, java_at(Path("/java"), 25)).options() == (*expected, "-Xlog:aot*=off")


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_an_archive_writable_by_others_is_not_used(archive, mode):
    write_archive(archive, mode)
    assert not archive.can_be_used


def test_an_archive_that_the_jvm_rejects_is_deleted_and_not_rebuilt_for_a_day(archive):
    write_archive(archive)
    archive.after_launch("mixed mode, sharing", CLASS_PATH, 1)
    assert archive.can_be_used
    archive.after_launch("mixed mode", CLASS_PATH, 1)
    assert not archive.file.exists()
    assert archive.options() == ()
    os.utime(archive.file.with_suffix(".refused"), (LONG_AGO, LONG_AGO))
    assert archive.options() == (f"-XX:DumpLoadedClassList={archive.list_file}",)


def test_the_archive_is_made_when_the_process_that_listed_the_classes_exits(archive, monkeypatch):
    registered, spawned = [], []
    monkeypatch.setattr(atexit, "register", lambda call, *arguments: registered.append((call, arguments)))
    monkeypatch.setattr(os, "posix_spawn", lambda _program, command, *_args, **_options: spawned.append(command))
    archive.after_launch("mixed mode, sharing", CLASS_PATH, 7)
    assert registered == []
    archive.list_file.write_text("java/lang/Object")
    archive.after_launch("mixed mode, sharing", CLASS_PATH, 7)
    for call, arguments in registered:
        call(*arguments)
    java = str(archive.java.home / "bin" / "java")
    assert [command[3:] for command in spawned] == [["7", java, str(archive.list_file), CLASS_PATH, str(archive.file)]]


def test_a_complete_archive_is_renamed_into_place_with_access_for_its_owner_only(archive, tmp_path):
    make(fake_java(tmp_path, 'echo "$@" >"$out"'), archive.list_file, CLASS_PATH, archive.file)
    assert stat.S_IMODE(archive.file.stat().st_mode) == 0o600
    assert f"-XX:SharedClassListFile={archive.list_file} " in archive.file.read_text()
    assert archive.file.read_text().endswith(f"-cp {CLASS_PATH}\n")
    assert [file.name for file in archive.file.parent.iterdir()] == [archive.file.name]


@pytest.mark.parametrize("script", ['echo half >"$out"; exit 1', "exit 0", 'truncate -s 400000001 "$out"'])
def test_an_incomplete_or_too_large_archive_is_discarded_and_not_retried_for_a_day(archive, tmp_path, script):
    make(fake_java(tmp_path, script), archive.list_file, CLASS_PATH, archive.file)
    assert [file.suffix for file in archive.file.parent.iterdir()] == [".refused"]
    assert archive.options() == ()


def maker_command(archive: ClassArchive, java: str) -> list[str]:
    arguments = [str(NO_PROCESS), java, str(archive.list_file), CLASS_PATH, str(archive.file)]
    return [sys.executable, "-I", class_archive_maker.__file__, *arguments]


def test_a_second_maker_does_nothing_while_the_first_one_runs(archive, tmp_path):
    java = fake_java(tmp_path, 'echo x >"$out"')
    with archive.file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(maker_command(archive, java), check=True)
        assert not archive.file.exists()
    subprocess.run(maker_command(archive, java), check=True)
    assert archive.file.read_text() == "x\n"


def test_tidying_keeps_the_new_archive_and_one_other_and_deletes_leftovers_of_killed_processes(archive):
    folder = archive.file.parent
    write_archive(archive)
    for age, name in enumerate(["a.jsa", "b.jsa", "c.jsa", "d-1.classes", "e.part", "f.refused", "g.lock"], start=1):
        (folder / name).touch()
        os.utime(folder / name, (LONG_AGO - age, LONG_AGO - age))
    (folder / "new-2.classes").touch()
    tidy(archive.file)
    assert {file.name for file in folder.iterdir()} == {archive.file.name, "a.jsa", "new-2.classes"}
