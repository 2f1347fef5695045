"""What a start reads from a database shared by many groups: data common to all of them only once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from support.statements import sent_statements

from opencqrs_py import Application

HANDLERS = """
from opencqrs_py import Event, event_handling

def make(number: int) -> None:
    def handle(event: Event) -> None:
        pass

    handle.__name__ = f"handle_{{number}}"
    globals()[handle.__name__] = event_handling(f"group-{{number}}", types=["*"])(handle)

for number in range({groups}):
    make(number)
"""
DATABASES = [
    "sqlite",
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mariadb", marks=[pytest.mark.mariadb, pytest.mark.release]),
]


@pytest.mark.parametrize("database", DATABASES)
def test_data_common_to_all_groups_are_read_as_often_for_many_groups_as_for_two(
    database: str,
    fresh_url: Callable[[str], str],
    make_module: Callable[[str], ModuleType],
    tmp_path: Path,
) -> None:
    def statements_of_a_start(groups: int) -> Counter[str]:
        """Return the statements of the second start: the first one makes tables and progress."""
        settings = {"event-store.url": fresh_url(database), "event-handling.standard.processing.engine": "thread"}
        module, found = make_module(HANDLERS.format(groups=groups)), Counter[str]()
        for _ in range(2):
            with sent_statements() as sent, Application(settings, [module], tmp_path) as application:
                application.start()
                found = Counter(" ".join(statement.split()) for statement in sent)
        return found

    few, many = statements_of_a_start(2), statements_of_a_start(20)
    versions = [text for text in few if "SELECT opencqrs_schema.version" in text]
    rows = [text for text in few if "WHERE" not in text and ("_progress" in text or "_groups" in text)]
    assert versions
    assert rows
    assert {text: many[text] for text in versions + rows} == {text: few[text] for text in versions + rows}
