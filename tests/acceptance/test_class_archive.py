"""An archive of Spark's classes that is damaged."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess

import pytest
from support.output import without_times
from support.sqlite import rows_of

pytestmark = [pytest.mark.spark, pytest.mark.skipif(os.name == "nt", reason="Spark's scripts there take no archive")]

WITHOUT_ARCHIVE = "-Xshare:auto"  # tests/conftest.py


@pytest.mark.release  # the first run's archive may be under way, which takes a core for half a minute
def test_a_damaged_archive_changes_nothing_and_is_deleted(project, tmp_path):
    java = os.environ["SPARK_SUBMIT_OPTS"].replace(WITHOUT_ARCHIVE, "")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "SPARK_SUBMIT_OPTS": java}

    def run() -> tuple[int, str, list[str], list[tuple[str, int]]]:
        command = project.command("run", "--until-caught-up")
        ran = subprocess.run(
            command, cwd=project.folder, env=environment, check=False, capture_output=True, encoding="utf-8"
        )
        lent = rows_of(project.folder / "read.db", "SELECT isbn, n FROM lent ORDER BY isbn")
        for file in project.folder.glob("read.db*"):
            file.unlink()
        said = [
            line
            for line in without_times(ran.stderr).splitlines()
            if not re.match(r"\[.*\] [\d,]+ of [\d,]+, lag ", line)
        ]
        return ran.returncode, ran.stdout, said, lent  # without how far it is every few seconds, on a slow machine

    project.write_events(50)
    project.opencqrs("events", "import", "events.ndjson")
    without = run()
    assert without[0] == 0, without
    folder = tmp_path / "cache" / "opencqrs-py" / "classes"
    name = "-".join(next(folder.iterdir()).stem.split("-")[:3])
    archive = folder / f"{name}.jsa"
    with (folder / f"{name}.lock").open("w") as lock:  # no other process makes one now
        fcntl.flock(lock, fcntl.LOCK_EX)
        archive.unlink(missing_ok=True)
        archive.write_bytes(b"damaged" * 10_000)
        archive.chmod(0o600)
        assert run() == without
    assert not archive.exists()
    assert (folder / f"{name}.refused").exists()
