from __future__ import annotations

import io
import json

import pytest
from rich.cells import cell_len
from rich.console import Console

from opencqrs_py.cli.events import listings
from opencqrs_py.cli.events.listings import print_list, print_table
from opencqrs_py.errors import EventFormatError
from opencqrs_py.model.event import Event


def event(position=1, subject="/a", event_type="t", payload="{}", time="2026-01-05T09:00:00Z"):
    return Event(position, str(position), "s", subject, event_type, time, "application/json", payload, None)


@pytest.fixture
def lines(monkeypatch):
    def printed(width, *events):
        out = io.StringIO()
        monkeypatch.setattr(listings, "stdout", lambda: Console(file=out, width=width))
        print_table(events)
        return out.getvalue().splitlines()

    return printed


def test_the_json_has_the_events_before_one_whose_data_are_not_json(capsys):
    with pytest.raises(EventFormatError, match="OCQ-210"):
        print_list([event(1), event(2, payload='"\ud83d"'), event(3, payload="no JSON"), event(4)])
    printed = json.loads(capsys.readouterr().out)
    assert [(each["position"], each["data"]) for each in printed] == [(1, {}), (2, "\ud83d")]


def printed_by_list(capsys, *events):
    print_list(events)
    return json.loads(capsys.readouterr().out)


def printed_by_tail(capsys, *events):
    listings._show_json(events)
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("printed_by", [printed_by_list, printed_by_tail])
@pytest.mark.parametrize("other", ['"\ud83d"', "12345678901234567890123", "[" * 253 + "]" * 253])
@pytest.mark.parametrize("name", ["source", "subject", "type", "extensions"])
def test_the_json_has_events_with_lone_surrogates_wherever_they_are(capsys, printed_by, other, name):
    value = '{"trace":"\ud83d"}' if name == "extensions" else "\ud83d"
    first, second = printed_by(capsys, event(1, payload=other), event(2)._replace(**{name: value}))
    assert first["data"] == json.loads(other)
    assert second["trace" if name == "extensions" else name] == "\ud83d"


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("odd", [{"subject": "/" + "x" * 5_000}, {"event_type": "日" * 300}, {"payload": "y" * 300}])
def test_a_value_too_long_for_the_table_is_cut_without_affecting_other_columns(lines, width, odd):
    head, first, second = lines(width, event(299_998), event(299_999, **odd))
    assert head.split() == ["position", "time", "type", "subject", "data"]
    assert first.split() == ["299998", "2026-01-05T09:00:00Z", "t", "/a", "{}"]
    assert second.split()[:2] == ["299999", "2026-01-05T09:00:00Z"]
    assert "…" in second
    assert max(map(cell_len, (head, first, second))) <= width


def test_a_value_that_fits_is_shown_in_full_however_wide_the_others_are(lines):
    subject, name = "/books/978-0008471286", "library.book-lent.v1"
    row = lines(100, event(subject=subject, event_type=name, payload="y" * 60))[1]
    assert row.split()[2:4] == [name, subject]


def test_an_event_is_one_line(lines):
    odd = event(subject="/a\nb\x1b[31m", event_type="[bold]t\n", payload="{\n}", time=None)
    assert lines(200, odd)[1].split() == ["1", "-", "[bold]t\\n", "/a\\nb\\x1b[31m", "{\\n}"]
