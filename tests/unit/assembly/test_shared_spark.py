"""The Spark session of an application: its settings, and who uses it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from opencqrs_py import Application, Event, dataframe_handler, event_handling
from opencqrs_py.assembly.shared_spark import SharedSpark


@event_handling("audit", types=["*"])
def audit(event: Event) -> None:
    """Do nothing."""


@dataframe_handler("popular", types=["*"])
def popular(events) -> None:
    """Do nothing."""


class Sessions:
    """Sessions that only record that they were closed."""

    def __init__(self, *, verbose: bool) -> None:
        self.verbose = verbose
        self.closed: list[float] = []

    def close(self, patience: float) -> None:
        self.closed.append(patience)


@pytest.fixture
def application(tmp_path, monkeypatch) -> Application:
    monkeypatch.setattr(SharedSpark, "_made", lambda _self, *, verbose: Sessions(verbose=verbose))
    return Application({"event-store.url": "sqlite:///all.db"}, [audit], tmp_path)


@pytest.mark.parametrize(("handlers", "moves_rows"), [([audit], False), ([popular], True), ([audit, popular], True)])
def test_rows_pass_through_the_drivers_jvm_only_for_data_frames(tmp_path, handlers, moves_rows):
    application = Application({"event-store.url": "sqlite:///all.db"}, handlers, tmp_path)
    assert application._life.spark.sessions(verbose=False)._settings.moves_rows is moves_rows


def opened(application: Application) -> Any:
    return application._life.spark.sessions(verbose=False)


def test_the_last_user_closes_the_session(application):
    spark = application._life.spark
    spark.enter("first")
    sessions = opened(application)
    with spark.used(5.0):
        spark.leave("first", 1.0)
        spark.leave("first", 1.0)
        assert opened(application) is sessions
        assert sessions.closed == []
    assert sessions.closed == [5.0]
    assert opened(application) is not sessions


def test_without_a_user_a_stop_closes_the_session(application):
    sessions = opened(application)
    application.stop()
    assert len(sessions.closed) == 1


def test_threads_that_use_spark_first_at_the_same_moment_share_its_sessions(application, monkeypatch):
    spark, others = application._life.spark, []

    def made(_self: SharedSpark, *, verbose: bool) -> Sessions:
        if not others:
            others.append(None)
            with ThreadPoolExecutor(1) as another:
                others[0] = another.submit(opened, application).result()
        return Sessions(verbose=verbose)

    monkeypatch.setattr(SharedSpark, "_made", made)
    assert spark.sessions(verbose=True) is others[0]
