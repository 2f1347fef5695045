"""The last line of a file that is completed just after the next file came, while an application runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event as Signal
from types import ModuleType

import pytest

from opencqrs_py import Application
from opencqrs_py.processing.notices import Notice, Observer

SECONDS = 60  # longest wait for another thread
LINE = '{{"id": "{0}", "source": "s", "type": "lent", "subject": "/a", "data": {{}}}}\n'
HANDLERS = """
from pathlib import Path
from opencqrs_py import Event, event_handling

@event_handling("books", types=["*"])
def handle(event: Event) -> None:
    with Path(FILE).open("a") as file:
        file.write(event.id)
"""


class Waiting(Observer):
    """Sees that a partition waits."""

    def __init__(self) -> None:
        self.seen = Signal()

    def noticed(self, notice: Notice) -> None:
        self.seen.set()


@pytest.mark.release(engine="spark")
@pytest.mark.parametrize("engine", ["thread", pytest.param("spark", marks=pytest.mark.spark)])
def test_a_line_completed_later_is_waited_for_and_handled_in_order(
    engine: str, tmp_path: Path, make_module: Callable[[str], ModuleType], request: pytest.FixtureRequest
) -> None:
    if engine == "spark":
        request.getfixturevalue("spark")
    (folder := tmp_path / "events").mkdir()
    (folder / "1.ndjson").write_text(LINE.format(1) + LINE.format(2)[:20])
    (folder / "2.ndjson").write_text(LINE.format(3))
    module = make_module(HANDLERS + f"\nFILE = {str(tmp_path / 'handled')!r}\n")
    settings = {
        "event-store.url": f"file:{folder}",
        "database.url": f"sqlite:///{tmp_path / 'read.db'}",
        "event-handling.standard.processing.engine": engine,
        "spark.driver-handles": "never",
    }
    waiting = Waiting()
    with Application(settings, [module], tmp_path) as application:
        application.start(observer=waiting)
        assert waiting.seen.wait(SECONDS)
        with (folder / "1.ndjson").open("a") as file:
            file.write(LINE.format(2)[20:])
        application.await_position("books", 3, timeout=SECONDS)
    assert (tmp_path / "handled").read_text() == "123"
