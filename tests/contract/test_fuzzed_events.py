"""Fuzzed lines and subjects: no crash, no injection, no wrong match.

A line is an event or refused with the reason; what is an event is the same event behind every store; and a selection
finds in every store what ``Selection.matches`` says.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opencqrs_py.adapters.files import FileEventSource, event_line, events_of_file, format_of, writer_to
from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.adapters.sql import Database, MappedEventSource, SqlEventStore
from opencqrs_py.errors import EventFormatError
from opencqrs_py.model.cloudevents import parse_event, write_event
from opencqrs_py.model.event import Event
from opencqrs_py.model.mapping import TableMapping
from opencqrs_py.model.selection import Selection
from opencqrs_py.model.times import microseconds
from opencqrs_py.processing.ports import EventSource
from opencqrs_py.testing.contracts.event_source import followed, identities

Stored = Callable[[list[Event]], Iterator[EventSource]]

MAPPING = TableMapping(
    "opencqrs_events", "position", "id", "type", "payload", source="source", subject="subject", time="time"
)

with_fixtures = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
SPECIAL = st.sampled_from(
    [
        *("%", "_", "\\", "'", '"', "''", "--", ";", "' OR 1=1 --", "\\'", "%s", ":x", "$1", "?", "[", "]", "*", "^"),
        *("\x1b", "\n", "\r", "\t", "\x7f", "\x80", "\u2028", "\ufeff", "\u200b", "\uffff", "\U0010ffff", "😀"),
        *("ß", "ẞ", "SS", "ss", "İ", "i", "I", "ı", "é", "e\u0301", "a", "A"),
        *("/", "//", "/.", ".", "..", "0", " ", "x" * 3_000),
    ]
)
SEGMENT = st.one_of(SPECIAL, TEXT, st.tuples(SPECIAL, TEXT).map("".join))
SUBJECT = st.one_of(
    st.lists(SEGMENT, max_size=4).map(lambda parts: "/" + "/".join(parts)),
    SEGMENT,
    st.just("/"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(
    ["id", "source", "subject", "type", "time", "datacontenttype", "data", "specversion", "data_base64", "x", ""]
)


def two_digits(least: int, most: int, *others: str) -> st.SearchStrategy[str]:
    return st.integers(least, most).map("{:02}".format) | st.sampled_from([f"{least:02}", f"{most:02}", *others])


def written(*, wrong: bool) -> st.SearchStrategy[str]:
    """Times, part by part; with ``wrong`` one or the other part may be as RFC 3339 does not have it."""

    def also(*others: str) -> list[str]:
        return list(others) if wrong else []

    year = st.integers(0, 9999).map("{:04}".format) | st.sampled_from(["0000", "1900", "2000", "2024", "9999"])
    month = two_digits(1, 12, *also("00", "13", "1", "W01"))
    day = two_digits(1, 28, "29", "30", "31", *also("00", "32", "1", "1T00"))
    hour = two_digits(0, 23, *also("24", "3", "-1"))
    minute = two_digits(0, 59, *also("60", "9", ""))
    second = two_digits(0, 59, "60", *also("61", "5", "05,5", "05:05"))
    fraction = (
        st.just("") | st.from_regex(r"\A\.[0-9]{1,12}\Z") | st.sampled_from([".0", *also(".", ",5", ".5.5", ".x")])
    )
    offsets = st.tuples(st.sampled_from("+-"), two_digits(0, 23, *also("24")), two_digits(0, 59, *also("60", "")))
    offset = st.sampled_from("Zz") | offsets.map(lambda o: f"{o[0]}{o[1]}:{o[2]}")
    if wrong:
        offset |= st.sampled_from(
            ["", "+01", "+0100", "+01:00:00", "+01:00:00.5", " Z", "ZZ", "Z\n", "\N{MINUS SIGN}01:00"]
        )
    hyphen = st.sampled_from(["-", "-", *also("", "/")])
    colon = st.sampled_from([":", ":", *also("", ".")])
    between = st.sampled_from(["T", "T", "t", " ", *also("", "_", "  ", "W", "x")])
    parts = (year, hyphen, month, hyphen, day, between, hour, colon, minute, colon, second, fraction, offset)
    return st.tuples(*parts).map("".join)


def near(text: str) -> st.SearchStrategy[str]:
    """The text with one character put in, left out or changed."""
    change = st.tuples(
        st.integers(0, len(text)), st.integers(0, 1), st.sampled_from([*"0159TtZzW+-:., ", "\n", "٣", ""])
    )
    return change.map(lambda c: text[: c[0]] + c[2] + text[c[0] + c[1] :])


def leap_second(year: int, month: int, east: int, early: int) -> str:
    """Return the last minute before a month, or one that is some minutes too early, with a second 60."""
    minute = datetime(year, month, 1, tzinfo=UTC) - timedelta(minutes=1 + early)
    text = minute.astimezone(timezone(timedelta(minutes=east))).isoformat()
    return f"{text[:17]}60{text[19:]}"


LEAP_SECONDS = st.builds(
    leap_second, st.integers(2, 9999), st.integers(1, 12), st.integers(-1439, 1439), st.sampled_from([0, 0, 1, 1440])
)
OTHERWISE_ISO = st.builds(
    lambda moment, form: moment.strftime(form),
    st.datetimes(datetime(1000, 1, 1)),  # noqa: DTZ001 the offset stands in the form
    st.sampled_from(["%Y%m%dT%H%M%SZ", "%G-W%V-%uT%H:%M:%SZ", "%GW%V%uT%H%M%SZ", "%Y-%jT%H:%M:%SZ", "%Y-%m-%dT%H:%MZ"]),
)
TIMES = st.one_of(
    OTHERWISE_ISO,
    written(wrong=False),
    written(wrong=True),
    written(wrong=False).flatmap(near),
    LEAP_SECONDS,
    LEAP_SECONDS.flatmap(near),
    st.datetimes(timezones=st.timezones() | st.none()).map(lambda moment: moment.isoformat()),
    st.sampled_from(["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "9999-12-31T23:59:60Z", "", "now"]),
)
ALMOST = st.fixed_dictionaries(
    {"id": JSON | TEXT, "source": TEXT, "type": TEXT},
    optional={
        "subject": SUBJECT | JSON,
        "time": TIMES | JSON,
        "data": JSON,
        "datacontenttype": TEXT | JSON,
        "specversion": st.sampled_from(["1.0", "0.3", 1.0, None]),
        "data_base64": TEXT,
        "x": JSON,
    },
)
LINES = st.one_of(
    st.binary(max_size=60),
    JSON.map(json.dumps).map(str.encode),
    st.dictionaries(NAMES, JSON, max_size=8).map(json.dumps).map(str.encode),
    ALMOST.map(json.dumps).map(str.encode),
    ALMOST.map(lambda fields: json.dumps(fields, ensure_ascii=False)).map(lambda s: s.encode("utf-8", "surrogatepass")),
    st.tuples(ALMOST, st.integers(0, 200), st.binary(max_size=2)).map(
        lambda t: (line := json.dumps(t[0]).encode())[: t[1]] + t[2] + line[t[1] :]
    ),
)


def event_or_none(line: bytes) -> Event | None:
    try:
        return parse_event(line)
    except EventFormatError as refused:
        error = refused
    assert error.code in {"OCQ-212", "OCQ-230", "OCQ-231"}
    assert error.what
    str(error).encode()
    return None


def code_of(act: Callable[[], object]) -> str | None:
    try:
        act()
    except EventFormatError as error:
        return error.code
    return None


# -------------------------------------------------------------------------------------------------- a line by itself


@given(LINES)
def test_every_line_is_an_event_or_refused_with_the_reason(line: bytes) -> None:
    event = event_or_none(line)
    if event is None:
        return
    assert all((event.id, event.source, event.type, event.subject, event.content_type))
    microseconds(event.time)
    assert event.payload is None or event.data is not None
    assert parse_event(orjson.dumps(write_event(event))) == event
    assert parse_event(event_line(event)) == event
    assert event_line(event).count(b"\n") == 1


@given(ALMOST)
def test_an_almost_valid_event_is_accepted_or_refused_as_the_rules_say(fields: dict[str, Any]) -> None:
    """The fast check for ordinary events and the full one agree."""
    event = event_or_none(json.dumps(fields).encode())
    texts = [fields.get(name) for name in ("id", "source", "type", "subject", "time", "datacontenttype")]
    right = (
        all(isinstance(text, str | None) and "\0" not in (text or "") for text in texts)
        and all(isinstance(text, str) and text for text in texts[:3])
        and fields.get("specversion", "1.0") == "1.0"
        and "data_base64" not in fields
        and is_time(fields.get("time"))
        and not has_surrogates(fields)
    )
    assert (event is not None) == right


@given(TIMES)
def test_a_time_is_accepted_if_it_follows_rfc_3339(text: str) -> None:
    """Also, all ways to compute with a time give the same instant."""
    moment = moment_by_the_rules(text)
    event = event_or_none(json.dumps({"id": "1", "source": "s", "type": "t", "time": text}).encode())
    assert (event is not None) == (moment is not None)
    if event is None or moment is None:
        return
    assert event.time == text
    assert microseconds(text) == moment
    if text[:4] > "0000" and not text.startswith("9999-12-31"):
        assert event.timestamp is not None
        assert (event.timestamp - EPOCH) // MICROSECOND == moment


# RFC 3339, section 5.6; the rules that are comments there are in the function
PARTIAL_TIME = "([0-9]{2}):([0-9]{2}):([0-9]{2})(?:[.]([0-9]+))?"
DATE_TIME = re.compile(
    f"([0-9]{{4}})-([0-9]{{2}})-([0-9]{{2}})[Tt ]{PARTIAL_TIME}(?:[Zz]|([+-])([0-9]{{2}}):([0-9]{{2}}))"
)
EPOCH, MICROSECOND, FOUR_CENTURIES = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1), timedelta(146_097)


def moment_by_the_rules(text: str) -> int | None:
    """Return the microseconds since 1970 of an RFC 3339 time, ``None`` if it is none."""
    found = DATE_TIME.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second, hours, minutes = (int(found[n] or 0) for n in (1, 2, 3, 4, 5, 6, 9, 10))
    east = timedelta(hours=hours, minutes=minutes) * (-1 if found[8] == "-" else 1)
    try:  # in centuries that Python has, with the same calendar
        begun = datetime(2000 + year % 400, month, day, hour, minute, tzinfo=timezone(east)).astimezone(UTC)
    except ValueError:
        return None
    next_minute = begun + timedelta(minutes=1)
    ends_a_month = (next_minute.day, next_minute.hour, next_minute.minute) == (1, 0, 0)
    if minutes > 59 or second > 60 or (second == 60 and not ends_a_month):
        return None
    micros = int(f"{found[7] or ''}000000"[:6]) if second < 60 else 0
    moved = FOUR_CENTURIES * (year // 400 - 5)
    return (begun - EPOCH + moved + timedelta(seconds=second)) // MICROSECOND + micros


def is_time(text: str | None) -> bool:
    return text is None or moment_by_the_rules(text) is not None


def has_surrogates(fields: dict[str, Any]) -> bool:
    try:
        json.dumps(fields, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


# ----------------------------------------------------------------------------------------------------- behind a store

ORDERED = (
    *("1969-12-31t23:59:59.9999999z", "1970-01-01 00:00:00+00:00", "2016-12-31T23:59:59Z", "2016-12-31T23:59:60Z"),
    *("2017-01-01T00:00:00.000001Z", "2017-01-01T09:00:01+09:00", "9999-12-31T23:59:59z"),
)
FORMER = ("20170101T000000Z", "2016-W52-7T00:00:00Z", "2017-01-01_00:00Z", "2017-01-01T05:30:00,5+0530")


def event(number: int, subject: str, event_type: str = "t") -> Event:
    return Event(0, str(number), "fuzz", subject, event_type, None, "application/json", None, None)


def in_memory(events: list[Event]) -> Iterator[EventSource]:
    yield InMemoryEventStore(events)


def in_sqlite(events: list[Event]) -> Iterator[EventSource]:
    database = Database("sqlite:///:memory:")
    store = SqlEventStore(database)
    store.append(events)
    yield store
    database.close()


def in_files(suffix: str) -> Stored:
    def stored(events: list[Event]) -> Iterator[EventSource]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"a.{suffix}"
            form = format_of(path.name)
            assert form is not None
            with path.open("wb") as file, writer_to(file, form) as writer:
                writer.write(events)
            source = FileEventSource(folder)
            yield source
            source.close()

    return stored


def in_a_mapped_table(events: list[Event]) -> Iterator[EventSource]:
    database = Database("sqlite:///:memory:")
    SqlEventStore(database).append(events)
    yield MappedEventSource(database, MAPPING)
    database.close()


STORES = {"memory": in_memory, "sqlite": in_sqlite, "lines": in_files("ndjson"), "rows": in_files("parquet")}
stores = pytest.mark.parametrize("store", STORES)

SUBJECTS = st.lists(SUBJECT, min_size=1, max_size=12, unique=True)


def check_matches(source: EventSource, events: list[Event], roots: list[str]) -> None:
    for root in roots:
        for recursive in (True, False):
            selection = Selection(root, recursive)
            assert identities(source, selection) == [one.id for one in events if selection.matches(one)]
    for one in events[:4]:
        selection = Selection(types=frozenset({one.type, roots[0]}))
        assert identities(source, selection) == [each.id for each in events if selection.matches(each)]


def around(subjects: list[str], more: list[str]) -> list[str]:
    """Return roots that hit, and some that nearly do."""
    parents = [subject.rpartition("/")[0] for subject in subjects]
    shorter = [subject[:-1] for subject in subjects]
    return [root for root in dict.fromkeys([*subjects, *parents, *shorter, *more]) if root]


@pytest.mark.parametrize("store", [*STORES.values(), in_a_mapped_table], ids=[*STORES, "mapped"])
@given(subjects=SUBJECTS, more=st.lists(SUBJECT, max_size=3))
def test_every_store_selects_events_as_the_rule_says(store: Stored, subjects: list[str], more: list[str]) -> None:
    events = [event(number, subject, f"{subject}?") for number, subject in enumerate(subjects)]
    for source in store(events):
        assert [one.subject for one in source.read(0, 100, Selection()).events] == subjects
        check_matches(source, events, around(subjects, more))


@stores
@given(lines=st.lists(LINES, max_size=8))
def test_every_store_returns_the_event_of_a_line(store: str, lines: list[bytes]) -> None:
    known: dict[tuple[str, str], Event] = {}
    for one in filter(None, map(event_or_none, lines)):
        known.setdefault((one.source, one.id), one)
    events = list(known.values())
    for source in STORES[store](events):
        assert [one._replace(position=0) for one in source.read(0, 100, Selection()).events] == events


def timed(times: tuple[str, ...]) -> list[Event]:
    return [event(number, "/a")._replace(time=time) for number, time in enumerate(times)]


@pytest.mark.parametrize("store", [*STORES.values(), in_a_mapped_table], ids=[*STORES, "mapped"])
def test_every_store_finds_the_same_positions_for_times(store: Stored) -> None:
    for source in store(timed(ORDERED)):
        moments = [EPOCH + timedelta(microseconds=moment_by_the_rules(time) or 0) for time in ORDERED]
        found = [source.position_before(moment) for moment in moments]
        assert found == sorted(found)
        assert [source.read(position, 1, Selection()).events[0].time for position in found] == list(ORDERED)
        assert source.position_before(datetime(2017, 1, 1, 0, 53, 28, tzinfo=timezone(timedelta(seconds=3208)))) == 3


@pytest.mark.parametrize("store", [*STORES.values(), in_a_mapped_table], ids=[*STORES, "mapped"])
def test_a_log_with_times_that_were_accepted_formerly_can_be_read(store: Stored) -> None:
    for source in store(timed(FORMER)):
        events = source.read(0, 100, Selection()).events
        assert [one.time for one in events] == list(FORMER)
        assert [(one.timestamp or EPOCH).replace(microsecond=0) for one in events] == [
            datetime(2017, 1, 1, tzinfo=UTC)
        ] * 4
        assert source.position_before(datetime(2017, 1, 1, tzinfo=UTC)) == 0
        assert source.position_before(datetime(2017, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)) == 3


@pytest.mark.parametrize("suffix", ["ndjson", "ndjson.gz", "parquet"])
@pytest.mark.parametrize("time", FORMER)
def test_times_that_were_accepted_formerly_are_not_imported(tmp_path: Path, suffix: str, time: str) -> None:
    path = tmp_path / f"a.{suffix}"
    form = format_of(path.name)
    assert form is not None
    with path.open("wb") as file, writer_to(file, form) as writer:
        writer.write(timed((ORDERED[0], time)))
    imported = events_of_file(path)
    assert next(imported).time == ORDERED[0]
    with pytest.raises(EventFormatError, match="RFC 3339 time: ") as caught:
        next(imported)
    assert caught.value.code == "OCQ-212"
    assert caught.value.where == f"{path}{', row ' if suffix == 'parquet' else ':'}2"


def test_leap_seconds_have_a_timestamp_in_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    form = format_of(path.name)
    assert form is not None
    with path.open("wb") as file, writer_to(file, form) as writer:
        writer.write(timed(("2016-12-31T23:59:60.5Z", "2017-01-01t00:00:00z", *FORMER[:2])))
    assert pq.read_table(path)["timestamp"].to_pylist() == [datetime(2017, 1, 1, tzinfo=UTC)] * 4


@pytest.mark.release(server="postgresql")  # whose texts are compared as those of SQLite
@pytest.mark.parametrize(
    "server", [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("postgresql", "mariadb")]
)
@with_fixtures
@given(subjects=SUBJECTS, more=st.lists(SUBJECT, max_size=3), lines=st.lists(LINES, max_size=8))
def test_servers_return_and_select_events_as_the_rules_say(
    request: pytest.FixtureRequest, server: str, subjects: list[str], more: list[str], lines: list[bytes]
) -> None:
    database = Database(request.getfixturevalue(f"{server}_server"))
    try:
        store = SqlEventStore(database)
        store.head()
        with database.writing() as connection:
            connection.exec_driver_sql("DELETE FROM opencqrs_events")
        events = [event(number, subject, f"{subject}?") for number, subject in enumerate(subjects)]
        parsed = [
            one._replace(source="line", id=str(n)) for n, one in enumerate(filter(None, map(event_or_none, lines)))
        ]
        store.append([*events, *parsed])
        read = [one._replace(position=0) for part in followed(store, 100) for one in part.events]
        assert read == [*events, *parsed]
        roots = around([one.subject for one in events], more)
        check_matches(store, [*events, *parsed], roots)
        if server != "mariadb":  # where tables of others are refused
            check_matches(MappedEventSource(database, MAPPING), [*events, *parsed], roots)
    finally:
        database.close()


@given(pieces=st.lists(LINES, max_size=6), end=st.sampled_from([b"\n", b"\r\n"]), closed=st.booleans())
def test_a_file_of_arbitrary_bytes_is_read_up_to_the_first_bad_line(
    pieces: list[bytes], end: bytes, *, closed: bool
) -> None:
    content = end.join(pieces) + (end if closed else b"")
    lines = [line for line in content.split(b"\n")[:-1] if line.strip()]
    parsed = list(map(event_or_none, lines))
    good = parsed.index(None) if None in parsed else len(parsed)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.ndjson").write_bytes(content)
        source = FileEventSource(folder)
        assert source.head() == len(lines)
        part = source.read(0, 100, Selection()) if good or not lines else None
        assert [one._replace(position=0) for one in (part.events if part else ())] == parsed[:good]
        if good < len(lines):
            with pytest.raises(EventFormatError) as caught:
                source.read(good, 100, Selection())
            assert caught.value.where.rpartition(":")[0] == str(Path(folder) / "a.ndjson")


@pytest.mark.parametrize("suffix", ["ndjson.gz", "ndjson.zst", "parquet"])
@given(content=st.binary(max_size=200), cut=st.integers(0, 400))
def test_a_file_of_other_bytes_is_refused_without_any_other_error(suffix: str, content: bytes, cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a.{suffix}"
        form = format_of(path.name)
        assert form is not None
        with path.open("wb") as file, writer_to(file, form) as writer:
            writer.write([event(n, "/a") for n in range(3)])
        whole = path.read_bytes()
        path.write_bytes(whole[:cut] + content + whole[cut + len(content) :])
        source = FileEventSource(folder)
        for act in (source.head, lambda: source.read(0, 100, Selection()), lambda: identities(source)):
            assert code_of(act) in {None, "OCQ-212", "OCQ-213", "OCQ-230", "OCQ-231"}
        source.close()


@pytest.mark.parametrize("bad", ["high \ud800", "/low\udfff/b", "\udcff of a byte"], ids=ascii)
def test_a_subject_that_is_not_a_text_is_refused_like_a_line(bad: str) -> None:
    fields = {"id": "1", "source": "s", "type": "t", "subject": bad}
    as_bytes = json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass")
    for line, what in ((json.dumps(fields), "not JSON"), (as_bytes, "not UTF-8")):
        with pytest.raises(EventFormatError, match=what):
            parse_event(line)
