"""The settings with which an application opens its Spark session."""

from __future__ import annotations

import pytest

from opencqrs_py import Application, Event, dataframe_handler, event_handling


@event_handling("audit", types=["*"])
def audit(event: Event) -> None:
    """Do nothing."""


@dataframe_handler("popular", types=["*"])
def popular(events) -> None:
    """Do nothing."""


@pytest.mark.parametrize(("handlers", "moves_rows"), [([audit], False), ([popular], True), ([audit, popular], True)])
def test_rows_pass_through_the_drivers_jvm_only_for_data_frames(tmp_path, handlers, moves_rows):
    application = Application({"event-store.url": "sqlite:///all.db"}, handlers, tmp_path)
    assert application._life.spark.sessions(verbose=False)._settings.moves_rows is moves_rows
