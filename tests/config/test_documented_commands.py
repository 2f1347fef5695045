"""The page on how settings come together shows what the commands print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "configuration.md"
FILE = re.compile(r"^```\w+ title=\"(.+?)\"\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CONSOLE = re.compile(r"^```console\n\$ (.+?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_what_the_page_says_that_commands_print_is_what_they_print(tmp_path):
    page = PAGE.read_text("utf-8")
    for name, text in FILE.findall(page):
        (tmp_path / name).write_text(text, "utf-8")
    shown = CONSOLE.findall(page)
    assert len(shown) == 4
    for line, expected in shown:
        *variables, arguments = line.partition("opencqrs ")[::2]
        given = dict(pair.split("=", 1) for pair in " ".join(variables).split())
        own = {name: value for name, value in os.environ.items() if not name.startswith("OPENCQRS")}
        command = [sys.executable, "-m", "opencqrs_py", *arguments.split()]
        done = subprocess.run(
            command, cwd=tmp_path, env={**own, **given}, check=False, capture_output=True, text=True, encoding="utf-8"
        )
        printed = [row.rstrip() for row in (done.stdout + done.stderr).splitlines()]
        assert printed == expected.splitlines()
