"""Many lines at once: either the same events as one by one, or none."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py.errors import EventFormatError
from opencqrs_py.model import event_lines, line_shapes
from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.model.event import Event
from opencqrs_py.model.event_lines import columns_of, events_of, rows_of
from opencqrs_py.model.line_shapes import Shapes

TEXT = st.text(max_size=6) | st.sampled_from(["", "a b", "ü", "\0", "data", '"data":', "}\n", ":", "\\", "/", "😀"])
NUMBERS = (
    st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([2**64, -(2**63), 1e22, -0.0])
)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
TIMES = st.sampled_from(
    [
        *("2026-01-05T09:00:00Z", "2026-01-05 09:00:00.123456789+05:30", "20260105T090000Z", "2026-01-05T09:00:60Z"),
        *(
            "2026-01-05T09:00:00",
            "yesterday",
            "",
            "2016-12-31T23:59:60Z",
            "0001-01-01T00:00:00+23:59",
            "0000-01-01T00:00:00Z",
        ),
    ]
)
FIELDS = st.fixed_dictionaries(
    {"id": TEXT | NUMBERS, "source": TEXT, "type": st.sampled_from(["a", "b"])},
    optional={
        "specversion": st.sampled_from(["1.0", "1.0", "1.0", "0.3", 1.0, None]),
        "subject": TEXT | st.none(),
        "time": TIMES | st.none(),
        "datacontenttype": st.sampled_from(["application/json", "", None, 7]),
        "data": JSON,
        "traceparent": JSON,
        "x": JSON,
        "data_base64": st.just("AA=="),
    },
)
PLAIN = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='\\"'), min_size=1, max_size=4)
USUAL = st.fixed_dictionaries(
    {
        "specversion": st.just("1.0"),
        "id": PLAIN,
        "source": st.just("urn:x"),
        "subject": PLAIN,
        "type": st.sampled_from(["a", "b"]),
        "time": st.just("2026-01-05T09:00:00Z"),
        "data": JSON,
    },
)
RAW = st.sampled_from(
    [
        *(
            b"",
            b" ",
            b"{}",
            b"[]",
            b"7",
            b'"x"',
            b"null",
            b'{"id":"1"',
            b'"}',
            b"\xff",
            b"\xef\xbb\xbf{}",
            b"nope",
            b"{},{}",
        ),
        b'{"id":"1","source":"s","type":"t","id":"2"}',
        b'{"id":"1","source":"s","type":"t","data":{"a":1,"a":1}}',
        b'{"id":"1","source":"s","type":"t","data":0.12345678901234567890}',
        b'{"id":"1","source":"s","type":"t","data":18446744073709551616}',
        b'{"id":"1","source":"s","type":"t","data":1E2}',
        b'{"id":"1","source":"s","type":"t","data":"\\u00e4"}',
        b'{"id":"1","source":"s","type":"t"},{"id":"2","source":"s","type":"t"}',
        b'{"id":"1","source":"s","type":"t","data":[{"x":1}',
        b'{"x":2}]}',
    ]
)
PIECES = (
    b'"',
    b"\\",
    b":",
    b",",
    b"{",
    b"}",
    b"\0",
    b"\r",
    b"\t",
    b" ",
    b"\xff",
    b"1E2",
    rb"\u00e4",
    rb"\u007D",
    b',"id":"2"',
    b',"data":1',
    b'","',
    b'":"',
    b'"}',
    b"},{",
    b"\x1f",
    b"\xc3",
    rb"\u0000",
    rb"\ud800",
)
LAYOUTS = st.sampled_from(
    [
        orjson.dumps,
        lambda fields: json.dumps(fields).encode(),
        lambda fields: json.dumps(fields, ensure_ascii=False).encode(),
        lambda fields: json.dumps(fields, ensure_ascii=False, separators=(" , ", ":\t")).encode() + b" \r",
        lambda fields: json.dumps(fields, sort_keys=True, separators=(",", ":")).encode(),
    ]
)


@st.composite
def written(
    draw: st.DrawFn,
    fields: st.SearchStrategy[dict[str, object]],
    layouts: st.SearchStrategy[Callable[[object], bytes]] = LAYOUTS,
) -> bytes:
    try:
        return draw(layouts)(draw(fields))
    except (TypeError, UnicodeEncodeError):  # forms that orjson does not write
        return b"nope"


@st.composite
def some_left_out(draw: st.DrawFn) -> bytes:
    """Return a line without some of the optional attributes."""
    fields = draw(USUAL)
    left_out = draw(st.sets(st.sampled_from(["specversion", "subject", "time", "data"])))
    return json.dumps({name: value for name, value in fields.items() if name not in left_out}).encode()


@st.composite
def alike(draw: st.DrawFn) -> list[bytes]:
    """Return lines of one layout, one of them perhaps with a part overwritten."""
    layout, size = draw(LAYOUTS), draw(st.integers(1, 4))
    lines = [draw(written(USUAL, st.just(layout))) for _ in range(size)]
    piece = draw(st.just(b"") | st.sampled_from(PIECES) | st.binary(max_size=3).filter(lambda some: b"\n" not in some))
    at, start, length = draw(st.integers(0, size - 1)), draw(st.integers(0, 200)), draw(st.integers(0, 3))
    lines[at] = lines[at][:start] + piece + lines[at][start + length if piece else start :]
    return lines


def one_by_one(lines: list[bytes], position: int) -> list[Event] | str:
    try:
        return [parse_event(line, position + number, stored=True) for number, line in enumerate(lines)]
    except EventFormatError as error:
        return error.what


@given(
    alike()
    | st.lists(some_left_out(), min_size=1, max_size=5)
    | st.lists(written(FIELDS), min_size=1, max_size=3)
    | st.lists(written(USUAL) | written(FIELDS) | RAW, min_size=1, max_size=4),
    st.sampled_from([b"", b"\n"]),
)
def test_lines_parsed_together_give_the_same_events_as_one_by_one(lines: list[bytes], end: bytes) -> None:
    ends = [line + b"\n" for line in lines[:-1]] + [lines[-1] + end]
    columns, each = columns_of(ends), one_by_one(ends, 7)
    if columns is not None:
        assert not isinstance(each, str)
        together = events_of(columns, count(7))
        assert together == each
        assert {type(event) for event in together} <= {Event}
        assert rows_of(columns, count(7)) == [(one.position, one.type, one.payload, one.subject) for one in each]


def line(**fields: object) -> bytes:
    return orjson.dumps({"id": "1", "source": "s", "type": "t", **fields}) + b"\n"


@pytest.mark.parametrize(
    "lines",
    [
        [line()],
        [line(data=None), line(data={"a": [1.5, "ü", None]})],
        [line(subject="", datacontenttype="", time="2026-01-05T09:00:00Z", specversion="1.0")] * 3,
        [line(x=1, y={"a": "b"}), line(x=None, y=2)],
        [line(data={"a": 1}).replace(b":", b": ").replace(b",", b", ").replace(b"\n", b"\r\n")] * 2,
        [line(id=str(number), data={"n": number}) for number in range(100)],
        [line(), line(subject="/a"), line(time="2026-01-05T09:00:00Z"), line(specversion="1.0"), line(data=1)],
        [line(x=1, y="a"), line(y="b"), line(), line(data=7, x=None), line(datacontenttype="text/plain", x=[])],
        [line(subject=None, time=None, datacontenttype=None), line(subject="/a", time="2026-01-05T09:00:00Z")],
    ],
)
def test_ordinary_lines_are_parsed_together(lines: list[bytes]) -> None:
    columns = columns_of(lines)
    assert columns is not None
    assert events_of(columns, count(1)) == one_by_one(lines, 1)


SPACED = [line(id=str(number), data={"a": [1, "ü, :"]}).replace(b":", b": ").replace(b",", b", ") for number in (1, 2)]


@pytest.mark.parametrize(
    "lines",
    [
        [line(id=str(number), data={"n": number}) for number in range(100)],
        [line(subject="", time="2026-01-05T09:00:00Z", traceparent="00-ab")] * 3,
        [line(data=None), line(data={"a": "\n\\"})],
        [line(datacontenttype="application/json", data=1)[:-1]],
        SPACED,
        [json.dumps({"subject": "/ü😀/\u2028", **json.loads(each)}).encode() + b"\n" for each in SPACED],
        [line(data="\\").replace(b'"\\\\', b'"\\\\\\\\u00e4\\u00E4\\n\\u001f')],
        [each[:-1] + b" \r\n" for each in SPACED],
        [orjson.dumps({"data": {"n": [1, {"x": ","}]}, **orjson.loads(line(x="a"))}) + b"\n"] * 2,
        [json.dumps({"data": {"n": [1, ", "]}, **orjson.loads(line(x="a"))}).encode() + b"\n"] * 2,
        [line(data={"n": 1}, shard=number, flag=True, x=1.5) for number in range(20)],
        [line(datacontenttype="text/csv", data="a,b"), line(datacontenttype="", data="c")],
    ],
)
def test_only_the_data_of_lines_of_one_shape_are_parsed(monkeypatch: pytest.MonkeyPatch, lines: list[bytes]) -> None:
    monkeypatch.setattr(event_lines, "_fields", lambda *_: pytest.fail("whole lines were parsed"))
    columns = columns_of(lines)
    assert columns is not None
    assert events_of(columns, count(1)) == one_by_one(lines, 1)


NOW = "2026-01-05T09:00:00Z"
DATA = {"a": [1, ",}"], "x": "1"}
MIXED = [
    [line(time="2026-01-05T09:00:00Z", data=DATA), line(data=DATA), line(subject="/a", data=DATA)],
    [line(data=DATA), line(data=DATA, traceparent="00-ab"), line(traceparent="00-cd"), line()],
    [line(data=DATA), line(data=DATA, x="1"), line(data=DATA, y="2"), line(data=DATA, x="3", y="4")],
    [line(x=1, data=DATA), line(x="1", data=DATA), line(x=None), line(x=False), line(x=""), line(data=1)],
    [line(data=DATA, x=1), line(data=DATA, x="1"), line(data=None, x=1.5), line(data=DATA)],
    [line(datacontenttype="text/csv", data="a,b"), line(datacontenttype="application/json"), line(data=DATA)],
    [
        orjson.dumps({**first, **orjson.loads(line())}) + b"\n"
        for first in ({"data": DATA}, {"time": NOW, "x": "1"}, {})
    ],
    [orjson.dumps({"data": DATA, **some, **orjson.loads(line())}) + b"\n" for some in ({"time": NOW}, {"x": "1"}, {})],
    [line(**{name: "1" for at, name in enumerate("abcde") if number >> at & 1}, data=number) for number in range(32)],
]
MIXED += [[json.dumps(orjson.loads(each)).encode() + b"\n" for each in lines] for lines in MIXED]


@pytest.mark.parametrize("lines", MIXED)
def test_lines_of_several_shapes_are_parsed_whole_only_until_the_shapes_are_known(
    monkeypatch: pytest.MonkeyPatch, lines: list[bytes]
) -> None:
    shapes, parsed, fields = Shapes(), [], event_lines._fields
    monkeypatch.setattr(event_lines, "_fields", lambda *some: parsed.append(1) or fields(*some))
    for _ in range(3):
        columns = columns_of(lines, shapes)
        assert columns is not None
        assert events_of(columns, count(1)) == one_by_one(lines, 1)
    assert len(parsed) <= 1
    for each in lines:
        columns = columns_of([each], shapes)
        assert columns is not None
        assert events_of(columns, count(1)) == one_by_one([each], 1)
    assert len(parsed) <= 1


@st.composite
def mixed(draw: st.DrawFn) -> tuple[list[bytes], list[bytes]]:
    """Return lines of several shapes, and some of them with a part of one line overwritten."""
    lines = draw(st.sampled_from(MIXED))
    some = draw(st.lists(st.sampled_from(lines), min_size=1, max_size=4))
    at = draw(st.integers(0, len(some) - 1))
    piece = draw(st.sampled_from([*PIECES, b"", b", ", b",,", b",}", b"null", b"1.50", b',"x":', b',"x":"1"']))
    start, length = draw(st.integers(0, len(some[at]) - 1)), draw(st.integers(0, 12))
    some[at] = some[at][:start] + piece + some[at][:-1][start + length :] + b"\n"
    return lines, some


@given(mixed())
def test_known_shapes_do_not_change_the_parsed_events(
    given: tuple[list[bytes], list[bytes]],
) -> None:
    shapes, (lines, others) = Shapes(), given
    assert columns_of(lines, shapes) is not None
    columns = columns_of(others, shapes)
    if columns is not None:
        assert events_of(columns, count(7)) == one_by_one(others, 7)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (line(x="1", y="1"), line(y="1", x="1")),
        (line(x="1"), line(x={"a": 1})),
        (line(x="1"), line(subject=None)),
        (line(data=1), line(data=2).replace(b":", b": ")),
    ],
)
def test_splitting_is_rarely_tried_for_lines_whose_shapes_never_fit_together(
    monkeypatch: pytest.MonkeyPatch, one: bytes, other: bytes
) -> None:
    shapes, tried, splitter = Shapes(), [], Shapes.splitter
    monkeypatch.setattr(Shapes, "splitter", lambda *some: tried.append(splitter(*some)) or tried[-1])
    line_shapes._splitter.cache_clear()
    for _ in range(640):
        columns_of([one, other], shapes)
    assert len(list(filter(None, tried))) <= 20
    assert line_shapes._splitter.cache_info().misses <= 10


@pytest.mark.parametrize(("usual", "most"), [(0, 30), (1, 10), (5, 10)])
@pytest.mark.parametrize("name", ["x{}", "x{}" + 63 * "y"])
def test_splitting_is_rarely_tried_for_lines_with_ever_new_attributes(usual: int, most: int, name: str) -> None:
    shapes = Shapes()
    line_shapes._splitter.cache_clear()
    for number in range(640):
        for _ in range(usual):
            assert columns_of([line(), line()], shapes) is not None
        assert columns_of([line(), line(**{name.format(number): "1"})], shapes) is not None
    assert line_shapes._splitter.cache_info().misses <= most


def test_lines_are_split_again_after_their_shapes_have_changed() -> None:
    shapes = Shapes()
    for number in range(40):
        columns_of([line(), line(**{f"x{number}": "1"})], shapes)
    later = [line(source=None, time="2026-01-01T00:00:00Z", z="1"), line(z="1")]
    later = [each.replace(b'"source":null', b'"source":"s"') for each in later]
    for _ in range(200):
        assert columns_of(later, shapes) is not None
    assert shapes.splitter(b"".join(later), len(later)) is not None


@pytest.mark.parametrize(
    "lines",
    [
        [line(data=1, **{f"x{at}": "1"}) for at in range(20)],
        [line(), line(**{f"x{at}": "1" for at in range(60)})],
        [line(), line(**{65 * "x": "1"})],
        [line(data=1_000 * [1], x="1"), line(data=1_000 * [1], y="1"), line(data=1_000 * [1])],
    ],
    ids=["many attributes after the data", "many attributes", "a long name", "long lines and several attributes"],
)
def test_lines_that_would_be_slow_to_split_are_parsed_whole(lines: list[bytes]) -> None:
    shapes = Shapes()
    for _ in range(4):
        columns = columns_of(lines, shapes)
        assert columns is None or events_of(columns, count(1)) == one_by_one(lines, 1)
    splitter = shapes.splitter(b"".join(lines), len(lines))
    assert splitter is None or len(splitter.find_all("\n" + b"".join(lines).decode())) < len(lines)


@pytest.mark.parametrize(
    "lines",
    [
        [line(), line().replace(b'"type":"t"', b'"x":1')],
        [line(x=1, y=1), line(y=1, x=1)],
        [line(x=1), line(y=1), line(y=1, x=1)],
        [line(), line(subject=0)],
        [line(), line(specversion=None)],
        [line(subject="/a"), line(time="2026-01-05T09:00:00"), line()],
        [line(id="")],
        [line(id=7)],
        [line(data="\0")],
        [line(data=1).replace(b"1}", b"1.0E5}")],
        *([line(data="x").replace(b"x", escape)] for escape in (rb"\ud83d", rb"\ud83d\n\ude00", rb"\u0022", rb"\u00")),
        [line(data=1).replace(b"1}", rb"\u0031}")],
        [line(data=1).replace(b"{", rb"\u00a0{")],
        [line(time="2026-01-05T09:00:00Z"), line(time="2026-01-05T09:00:00")],
        [line(specversion="0.3")],
        [line(data_base64="AA==")],
        [b'{"id":"1","id":"1","source":"s","type":"t"}\n'],
        [b'{"id":"1","source":"s","type":"t","data":{"a":[1\n', b'2]}},{"id":"1","source":"s","type":"t","data":1}\n'],
        [b"[]\n"],
        *(
            [b'{"subject":"/a","id":"1","source":"s","type":"t"}\n', other]
            for other in (b"[]\n", b'""\n', b"7\n", b"null\n")
        ),
        [b"[1]\n"],
        [b"[18446744073709551615]\n"],
        [b"{}\n"],
    ],
)
def test_lines_that_need_closer_checks_are_not_parsed_together(lines: list[bytes]) -> None:
    assert columns_of(lines) is None


def test_a_line_cannot_spill_into_the_next_without_knowing_the_mark() -> None:
    mark = event_lines._MARK.encode()
    assert len(mark) == 16  # 64 bits
    lines = [b'{"a":[1', b'2]},"%s",7' % mark, line()]
    assert columns_of([each + b"\n" for each in lines]) is None
