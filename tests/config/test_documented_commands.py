"""The page on how settings are merged shows the actual output of the commands."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "configuration.md"
FILE = re.compile(r"^```\w+ title=\"(.+?)\"\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CONSOLE = re.compile(r"^```console\n\$ (.+?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_commands_print_what_the_page_shows(tmp_path, zygote):
    page = PAGE.read_text("utf-8")
    for name, text in FILE.findall(page):
        (tmp_path / name).write_text(text, "utf-8")
    shown = CONSOLE.findall(page)
    assert len(shown) == 5
    for line, expected in shown:
        *variables, arguments = line.partition("opencqrs ")[::2]
        given = dict(pair.split("=", 1) for pair in " ".join(variables).split())
        ran = zygote.opencqrs(tmp_path, arguments.split(), given)
        printed = [row.rstrip() for row in (ran.out + ran.err).splitlines()]
        assert printed == expected.splitlines()
