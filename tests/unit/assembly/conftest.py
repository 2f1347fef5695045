from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import count
from textwrap import dedent
from types import ModuleType

import pytest

_numbers = count()


@pytest.fixture
def make_module(tmp_path, monkeypatch) -> Iterator[Callable[[str], ModuleType]]:
    """Write source to a module with a unique name and import it."""
    made: list[str] = []
    monkeypatch.syspath_prepend(tmp_path)

    def make(source: str) -> ModuleType:
        name = f"made_up_module_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(dedent(source))
        made.append(name)
        return __import__(name)

    yield make
    for name in made:
        sys.modules.pop(name, None)
