"""Arenas: databases with a log in them, and the targets that attacks are aimed at."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from pathlib import Path

from harness.engines import append_log, make_tables
from harness.lanes import Combination
from harness.modules import Target, source_of

__all__ = ["Arena"]

_ON_ONE_DATABASE = 60
"""After so many targets a server gets another database."""

_numbers = count(1)


class Arena:
    """Makes targets on databases of each kind.

    Some targets share a server's database, as they have separate groups and tables. Since each start reads the
    partitions of all groups, a new database is used after a while. An SQLite file is shared only by targets
    that are made together.

    Args:
        folder: Where files go.
        fresh_url: Makes an empty database of a kind.
    """

    def __init__(self, folder: Path, fresh_url: Callable[[str], str]) -> None:
        self._folder = folder
        self._fresh_url = fresh_url
        self._served: dict[str, str] = {}
        self._logs: set[tuple[str, str]] = set()  # those written, by URL and schema
        self._targets_on: Counter[str] = Counter()

    def targets(self, combinations: Iterable[Combination]) -> list[Target]:
        """Make targets on one database of one kind, each with its module written and its tables made."""
        combinations = list(combinations)
        url = self._url(combinations[0].database, combinations[0].schema)
        self._targets_on[url] += len(combinations)
        return [self._target(one, url) for one in combinations]

    def _target(self, one: Combination, url: str) -> Target:
        number = next(_numbers)
        module = f"hostile_{number}"
        settings = {
            name: value.replace("{module}", module) if isinstance(value, str) else value
            for name, value in one.attack.settings.items()
        }
        attack = replace(one.attack, settings=settings, extra=one.attack.extra.replace("{module}", module))
        code = self._folder / "code"
        code.mkdir(exist_ok=True)
        target = Target(attack, one.kind, url, f"hostile-{number}", f"hostile_{number}", code, module, one.schema)
        (code / f"{module}.py").write_text(source_of(target), encoding="utf-8")
        make_tables(target)
        return target

    def _url(self, kind: str, schema: str) -> str:
        if kind == "sqlite":
            file = self._folder / f"{next(_numbers)}.db"
            shutil.copy(self._template(), file)
            return f"sqlite:///{file}"
        if kind not in self._served or self._targets_on[self._served[kind]] >= _ON_ONE_DATABASE:
            self._served[kind] = self._fresh_url(kind)
        url = self._served[kind]
        if (url, schema) not in self._logs:
            self._logs.add((url, schema))
            append_log(url, schema)
        return url

    def _template(self) -> Path:
        file = self._folder / "template.db"
        if not file.exists():
            append_log(f"sqlite:///{file}")
        return file
