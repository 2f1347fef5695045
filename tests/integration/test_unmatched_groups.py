"""A group that has read the whole log and found nothing for its handlers says so once, on both engines."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from opencqrs_py import Application, Event
from opencqrs_py.assembly import unmatched

THREAD, SPARK = "thread", pytest.param("spark", marks=pytest.mark.spark)
STORES = [
    "sqlite",
    "file",
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
]
MISSPELT = "types=['book-purchased']"
WARNED = (
    "group 'books' has handled nothing: the log has no event of the types that its handlers want: "
    "book-purchased (did you mean book.purchased?)"
)


def handler(mark: str = MISSPELT, group: str = "books") -> str:
    return (
        f"from opencqrs_py import Event, event_handling\n\n\n@event_handling({group!r}, {mark})\n"
        "def handle(event: Event) -> None: ...\n"
    )


def event(number: int, kind: str = "book.purchased", subject: str = "/books/1") -> Event:
    return Event(0, f"e{number}", "shop", subject, kind, None, "application/json", "{}", None)


def line(one: Event) -> str:
    return json.dumps({"specversion": "1.0", "id": one.id, "source": "s", "type": one.type, "subject": one.subject})


class Log:
    """A log, and runs of an application that follows it."""

    def __init__(self, url: str, folder: Path, make_module: Callable[[str], Any], engine: str) -> None:
        self._url, self._folder, self._make_module, self._engine = url, folder, make_module, engine
        self.settings: dict[str, Any] = {}
        self._count = 0

    def run(self, code: str, caplog: pytest.LogCaptureFixture) -> list[str]:
        """Run until all events are handled; return the warnings."""
        caplog.clear()
        settings = {"event-handling.standard.processing.engine": self._engine, **self.settings}
        module = self._make_module(code)
        with Application({**self._urls(), **settings}, [module], self._folder) as application:
            application.run(until_caught_up=True)
        return [each.getMessage() for each in caplog.records if getattr(each, "action", "") == "unmatched"]

    def add(self, *events: Event) -> None:
        if self._url.startswith("file:"):
            with (self._folder / "log.ndjson").open("a") as file:
                file.writelines(line(one) + "\n" for one in events)
            return
        with Application(self._urls(), (), self._folder) as application:
            application.event_store.append(events)

    def _urls(self) -> dict[str, str]:
        if self._url.startswith("file:"):
            return {"event-store.url": self._url, "database.url": "sqlite:///read.db"}
        return {"event-store.url": self._url}


@pytest.fixture
def make_log(
    tmp_path: Path, make_module: Callable[[str], Any], fresh_url: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> Callable[..., Log]:
    caplog.set_level(logging.WARNING, "opencqrs")

    def make(store: str = "sqlite", engine: str = "thread") -> Log:
        url = "file:log.ndjson" if store == "file" else fresh_url(store)
        return Log(url, tmp_path, make_module, engine)

    return make


@pytest.mark.release(engine="spark")  # as of one among several
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("engine", [THREAD, SPARK])
def test_a_group_whose_types_match_no_event_is_warned_of_with_the_nearest_type(make_log, caplog, store, engine):
    log = make_log(store, engine)
    log.add(event(1), event(2, "reader.joined", "/readers/1"))
    (said,) = log.run(handler(), caplog)
    assert said.startswith(WARNED + "\n  fix:   correct @event_type")


@pytest.mark.parametrize("partitions", [1, 3])
def test_the_warning_appears_once_for_all_partitions_and_again_at_the_next_start(make_log, caplog, partitions):
    log = make_log()
    log.settings["event-handling.groups.books.life-cycle.partitions"] = partitions
    log.add(*(event(number, subject=f"/books/{number}") for number in range(10)))
    assert len(log.run(handler(), caplog)) == 1
    assert len(log.run(handler(), caplog)) == 1


@pytest.mark.release(store=("postgresql", "mariadb"))
@pytest.mark.parametrize("store", STORES)
def test_a_group_that_has_handled_events_before_is_not_warned_of_at_the_next_start(make_log, caplog, store):
    log = make_log(store)
    log.add(event(1))
    assert log.run(handler("types=['book.purchased']"), caplog) == []
    log.add(event(2, "reader.joined"))
    assert log.run(handler("types=['book.purchased']"), caplog) == []


def test_a_log_too_long_to_be_read_again_is_not_judged_by_a_part(make_log, caplog, monkeypatch):
    monkeypatch.setattr(unmatched, "_MOST_READ", 2)
    log = make_log()
    log.add(*map(event, range(3)))
    assert len(log.run(handler(), caplog)) == 1, "the process has seen all of it itself"
    assert log.run(handler(), caplog) == []


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("types=['book-*']", "book-*; it has book.purchased, reader.joined"),
        ("types=['lent']", "lent; it has book.purchased, reader.joined"),
        ("types=['lent', 'readerjoined']", "lent, readerjoined (did you mean reader.joined?)"),
    ],
)
def test_the_types_are_named_as_the_handlers_name_them(make_log, caplog, mark, said):
    log = make_log()
    log.add(event(1), event(2, "reader.joined"))
    (message,) = log.run(handler(mark), caplog)
    assert message.splitlines()[0].endswith(f"handlers want: {said}")


def test_a_class_is_named_by_its_type(make_log, caplog):
    log = make_log()
    log.add(event(1))
    code = (
        "from dataclasses import dataclass\nfrom opencqrs_py import event_handling, event_type\n\n"
        "@event_type('book-purchased')\n@dataclass\nclass Purchased:\n    isbn: str = ''\n\n"
        "@event_handling('books')\ndef handle(event: Purchased) -> None: ...\n"
    )
    (message,) = log.run(code, caplog)
    assert message.startswith(WARNED)


def test_a_subject_that_no_event_has_is_named_instead(make_log, caplog):
    log = make_log()
    log.settings["event-handling.groups.books.fetch.subject"] = "/bokks"
    log.add(event(1))
    (message,) = log.run(handler("types=['book.purchased']"), caplog)
    assert message.splitlines()[0] == (
        "group 'books' has handled nothing: the log has no event with the subject of fetch.subject, /bokks"
    )


@pytest.mark.parametrize(
    ("events", "mark", "settings"),
    [
        ([], MISSPELT, {}),
        ([event(1)], "types=['*']", {}),
        ([event(1)], "types=['book.*']", {}),
        ([event(1)], "types=['book-purchased', 'book.purchased']", {}),
        ([event(1)], "types=['book.purchased']", {"fetch.initial-position": "head"}),
        ([event(1)], "types=['book.purchased']", {"processing.mode": "scheduled", "schedule.initial-delay": "1h"}),
    ],
    ids=["an empty log", "any type", "a pattern", "one of two types", "begun at the end", "scheduled"],
)
def test_a_group_with_events_in_the_log_is_not_warned_of(make_log, caplog, events, mark, settings):
    log = make_log()
    log.settings = {f"event-handling.groups.books.{key}": value for key, value in settings.items()}
    if events:
        log.add(*events)
    assert log.run(handler(mark), caplog) == []


ONE_OF_TWO = "types=['reader.joined', 'book-lend.v1']"


@pytest.mark.release(store=("file", "postgresql", "mariadb"))  # as of a single one
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("engine", [THREAD, SPARK])
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.release(partitions=1)  # as of three
def test_a_misspelt_type_among_several_is_named_with_the_one_that_no_handler_takes(
    make_log, caplog, store, engine, partitions
):
    log = make_log(store, engine)
    log.settings["event-handling.groups.books.life-cycle.partitions"] = partitions
    log.add(event(1, "reader.joined"), *(event(number, "book-lent.v1", f"/books/{number}") for number in range(2, 9)))
    for _ in range(2):
        (said,) = log.run(handler(ONE_OF_TWO), caplog)
        assert said == (
            "group 'books' does not get what some of its handlers want, since the log has no event of type "
            f"book-lend.v1 (did you mean book-lent.v1?)\n  fix:   {unmatched._FIX}"
        )


@pytest.mark.parametrize(
    ("kinds", "mark", "other"),
    [
        (["book-lent.v1", "book-lend.v1"], ONE_OF_TWO, ""),
        (["book-lent.v1"], ONE_OF_TWO, handler("types=['book-lent.v1']", "others")),
        (["book-lend.v2"], ONE_OF_TWO, ""),
        (["book-lent.v1"], "types=['reader.joined', 'book-lend.*']", ""),
        (["thing-sold.v1"], ONE_OF_TWO, ""),
        (["book-lent.v1"], "types=['*', 'book-lend.v1']", ""),
    ],
    ids=["there, too", "another group's", "another version", "a pattern", "nothing near", "any type"],
)
def test_an_unmatched_type_among_several_is_not_assumed_to_be_misspelt(make_log, caplog, kinds, mark, other):
    log = make_log()
    log.add(event(1, "reader.joined"), *(event(number, kind) for number, kind in enumerate(kinds, 2)))
    assert log.run(handler(mark) + other, caplog) == []


def test_a_type_that_is_in_the_middle_of_the_log_is_found(make_log, caplog, monkeypatch):
    monkeypatch.setattr(unmatched, "_SAMPLE", 2)
    log = make_log()
    log.add(*(event(n, kind) for n, kind in enumerate(["reader.joined", "book-lent.v1", "book-lend.v1", "x", "y"])))
    assert log.run(handler(ONE_OF_TWO), caplog) == []
    monkeypatch.setattr(unmatched, "_MOST_READ", 4)
    assert log.run(handler("types=['reader.joined', 'book_lent.v1']"), caplog) == []


@pytest.mark.few
@pytest.mark.parametrize("engine", [THREAD, SPARK])
@pytest.mark.parametrize("on_exhausted", ["skip", "stop", "park"])
@pytest.mark.parametrize("retry", ["{policy: none}", "{policy: fixed, initial-interval: 1ms, max-attempts: 1}"])
def test_an_event_that_fails_is_an_event_of_the_group(make_log, caplog, engine, on_exhausted, retry):
    log = make_log(engine=engine)
    log.settings["event-handling.groups.books.retry"] = yaml.safe_load(retry) | {"on-exhausted": on_exhausted}
    log.add(event(1), event(2))
    failing = handler("types=['book.purchased']").replace("...", "raise ValueError")
    assert log.run(failing, caplog) == []


def test_an_unreadable_store_ends_no_processor(make_log, caplog, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError("away")

    monkeypatch.setattr(unmatched._Group, "warn", fail)
    log = make_log()
    log.add(event(1))
    assert log.run(handler(), caplog) == []
