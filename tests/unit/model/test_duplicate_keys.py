"""A duplicate key in a JSON object is refused, wherever it is and however it is written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from opencqrs_py.errors import EventFormatError
from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.model.json_text import first_duplicate

CORE = '"id":"1","source":"s:1","type":"t"'
DEEP = "[" * 1_000 + "]" * 1_000  # the parser's maximum depth

REFUSED = [
    (f'{{{CORE},"id":"2"}}', "the key 'id' appears twice"),
    (f'{{{CORE},"id":"1"}}', "the key 'id' appears twice"),
    (f'{{"id":null,{CORE}}}', "the key 'id' appears twice"),
    (f'{{{CORE},"subject":"/a","subject":null}}', "the key 'subject' appears twice"),
    (f'{{{CORE},"time":"2026-01-02T03:04:05Z","time":"2026-01-02T03:04:05Z"}}', "the key 'time' appears twice"),
    (f'{{{CORE},"specversion":"0.3","specversion":"1.0"}}', "the key 'specversion' appears twice"),
    (f'{{{CORE},"data":1,"data":null}}', "the key 'data' appears twice"),
    (f'{{{CORE},"tenant":"a","tenant":"b"}}', "the key 'tenant' appears twice"),
    (f'{{{CORE},"data":{{"a":1,"a":2}}}}', "the key 'a' appears twice in data"),
    (f'{{{CORE},"data":{{ "a" : 1 , "b" : {{}} , "a" :{{"x":2}} }} }}', "the key 'a' appears twice in data"),
    (f'{{{CORE},"data":{{"n":[0,{{"a":1,"a":1}}]}}}}', "the key 'a' appears twice in data.n[1]"),
    (f'{{{CORE},"more":{{"a":1,"a":2}}}}', "the key 'a' appears twice in more"),
    (f'{{{CORE},"data":{{"a":1,"\\u0061":2}}}}', "the key 'a' appears twice in data"),
    (f'{{{CORE},"data":{{"a:":1,"a\\u003a":2}}}}', "the key 'a:' appears twice in data"),
    (f'{{{CORE},"data":{{"a":"\\u003A","a":1}}}}', "the key 'a' appears twice in data"),
    (f'{{{CORE},"data":{{"a":12345678901234567890123,"a":1}}}}', "the key 'a' appears twice in data"),
    (f'{{{CORE},"data":{{"a":{"9" * 300},"a":1}}}}', "the key 'a' appears twice in data"),
    (f'{{{CORE},"data":{{"":1,"":1}}}}', "the key '' appears twice in data"),
    (f'{{{CORE},"data":{{"a\\n":1,"a\\n":1}}}}', "the key 'a\\n' appears twice in data"),
    (f'{{{CORE},"data":{{"{"k" * 200}":1,"{"k" * 200}":1}}}}', f"the key '{'k' * 100}' appears twice in data"),
    (f'{{{CORE},"data":{DEEP},"data":1}}', "a key appears twice"),
]


@pytest.mark.parametrize("encode", [str, str.encode])
@pytest.mark.parametrize(("line", "what"), REFUSED, ids=range(len(REFUSED)))
def test_a_duplicate_key_is_refused_with_its_name_and_place(line: str, what: str, encode: Any) -> None:
    for stored in (False, True):
        with pytest.raises(EventFormatError) as caught:
            parse_event(encode(line), stored=stored)
        assert caught.value.code == "OCQ-230"
        assert caught.value.what == f"{what}; JSON parsers would keep one and drop the other"


ACCEPTED = [
    f'{{{CORE},"data":{{"a":{{"a":{{"a":1}}}},"b":[{{"a":1}},{{"a":1}}]}}}}',
    f'{{{CORE},"data":{{"a:b":"c:d:e","f":":"}},":":"::"}}',
    f'{{ "specversion" : "1.0" ,{CORE}, "time":"2026-01-02T03:04:05+01:00","datacontenttype":"a:b","subject":":" }}',
    f'{{{CORE},"data":"\\u003a \\u003A \\\\u003a \\u003c"}}',
    f'{{{CORE},"subject":null,"time":null,"datacontenttype":null,"data":null,"x":null}}',
    f'{{{CORE},"data":{{"a":1,"A":1,"\\u00e4":1,"a\\u0308":1}}}}',
]


@pytest.mark.parametrize("line", ACCEPTED)
def test_a_key_that_only_resembles_a_duplicate_is_accepted(line: str) -> None:
    assert parse_event(line) == parse_event(line.encode())


NAMES = st.sampled_from(["a", "b", ":", "a:", '"', "\\", "ä", "id", "data", "subject", "time", "x"])
COLONS = st.sampled_from([":", "\\u003a", "\\u003A"])


@st.composite
def written(draw: st.DrawFn, text: str) -> str:
    """Write a text as JSON, its colons in plain or escaped form."""
    return "".join(draw(COLONS) if part == ":" else part for part in json.dumps(text))


def objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    space = st.sampled_from(["", " "])
    member = st.tuples(NAMES.flatmap(written), space, inner).map(lambda m: f"{m[0]}{m[1]}:{m[1]}{m[2]}")
    return st.lists(member, max_size=4).map(lambda some: "{" + ",".join(some) + "}")


JSON = st.recursive(
    st.sampled_from(["null", "0", "-1.5e3", "12345678901234567890", "0.12345678901234567890", "true"])
    | st.lists(st.sampled_from(["a", ":", "\\", '"', "u003a"]), max_size=4).map("".join).flatmap(written),
    lambda inner: objects(inner) | st.lists(inner, max_size=3).map(lambda some: "[" + ",".join(some) + "]"),
    max_leaves=8,
)


def has_duplicate(text: str) -> bool:
    """Return whether the standard library, which passes on every member, sees a duplicate."""
    found = []

    def look(members: list[tuple[str, Any]]) -> None:
        found.append(len({name for name, _ in members}) < len(members))

    json.loads(text, object_pairs_hook=look)
    return any(found)


@given(JSON)
@example('{"a":{"a":1,"a":":"}}')
def test_the_same_duplicates_are_found_as_by_the_standard_library(text: str) -> None:
    assert (first_duplicate(text) is not None) == has_duplicate(text)


@given(data=JSON, extra=JSON, subject=NAMES.flatmap(written), more=st.lists(NAMES.flatmap(written), max_size=2))
def test_events_are_refused_only_for_duplicate_keys(data: str, extra: str, subject: str, more: list[str]) -> None:
    members = "".join(f',{name}:"a"' for name in more if name not in ('"id"', '"time"'))
    line = f'{{{CORE},"data":{data},"extra":{extra},"subject":{subject}{members}}}'
    try:
        parse_event(line)
    except EventFormatError as error:
        assert "twice" in error.what  # noqa: PT017 both outcomes are valid
        assert has_duplicate(line)
    else:
        assert not has_duplicate(line)
