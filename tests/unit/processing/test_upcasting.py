"""Upcasting: chains of the user's functions, and the error if one of them is wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property, wraps
from itertools import pairwise
from math import inf, nan
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AliasPath, Field

import opencqrs_py
from opencqrs_py import Event, Metadata, Upcast
from opencqrs_py.errors import EventFormatError, HandlerSignatureError
from opencqrs_py.model import Upcaster
from opencqrs_py.processing.binding import NothingProvided
from opencqrs_py.processing.decoding import decoder_for
from opencqrs_py.processing.reading import Reading, Upcasters


@dataclass
class LentV1:
    isbn: str


@dataclass
class LentV2:
    isbn: str
    due: str


class Calendar:
    pass


def event(event_type: str = "lent.v1", payload: str | None = '{"isbn": "1"}', **others: Any) -> Event:
    columns = {"id": "4711", "source": "s", "subject": "/books/1", "time": "2026-01-01T00:00:00Z"} | others
    extensions = columns.pop("extensions", None)
    return Event(
        7, columns["id"], columns["source"], columns["subject"], event_type, columns["time"], "application/json",
        payload, extensions,
    )  # fmt: skip


def upcasters(*functions: tuple[str | tuple[str, ...], Callable[..., Any]], injector: Any = None) -> Upcasters:
    made = (
        Upcaster((types,) if isinstance(types, str) else types, call, f"upcasters.py:{number} ({call.__name__})")
        for number, (types, call) in enumerate(functions, start=1)
    )
    return Upcasters(made, injector or NothingProvided())


def seen(events: Any) -> list[tuple[str, Any]]:
    return [(each.type, None if each.payload is None else json.loads(each.payload)) for each in events]


def renamed(new_type: str) -> Callable[..., Any]:
    def rename(data: dict[str, Any]) -> Upcast:
        return Upcast(new_type, data)

    return rename


# The results of upcasting


def one(data: dict[str, Any]) -> Upcast:
    return Upcast("lent.v2", {**data, "due": "soon"})


def several(data: dict[str, Any]) -> list[Upcast]:
    return [Upcast("b", 1), Upcast("a", 2), Upcast("b", 3)]


def generated(raw: Event) -> Iterator[Upcast]:
    yield Upcast("a", raw.position)
    yield Upcast("b", raw.subject)


def generated_from_one_dict(data: dict[str, Any]) -> Iterator[Upcast]:
    for number in (1, 2):
        data["number"] = number
        yield Upcast("a", data)


def nothing(raw: Event) -> None:
    return None


def none_of_several(raw: Event) -> tuple[Upcast, ...]:
    return ()


def without_data(raw: Event) -> Upcast:
    return Upcast("lent.v2", None)


def from_object(event: LentV1) -> Upcast:
    return Upcast("lent.v2", LentV2(event.isbn, "soon"))


def from_all(metadata: Metadata, raw: Event, data: dict[str, Any]) -> Upcast:
    return Upcast("lent.v2", [metadata["by"], raw.id, data["isbn"]])


async def asynchronous(data: dict[str, Any]) -> Upcast:
    await asyncio.sleep(0)
    return Upcast("lent.v2", data)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (one, [("lent.v2", {"isbn": "1", "due": "soon"})]),
        (several, [("b", 1), ("a", 2), ("b", 3)]),
        (generated, [("a", 7), ("b", "/books/1")]),
        (generated_from_one_dict, [("a", {"isbn": "1", "number": 1}), ("a", {"isbn": "1", "number": 2})]),
        (nothing, []),
        (none_of_several, []),
        (without_data, [("lent.v2", None)]),
        (from_object, [("lent.v2", {"isbn": "1", "due": "soon"})]),
        (from_all, [("lent.v2", ["Ada", "4711", "1"])]),
        (asynchronous, [("lent.v2", {"isbn": "1"})]),
    ],
)
def test_an_upcaster_returns_none_one_or_several_events_in_order(call: Callable[..., Any], expected: Any) -> None:
    assert seen(upcasters(("lent.v1", call)).upcast(event(extensions='{"by": "Ada"}'))) == expected


def test_only_type_and_data_change() -> None:
    given_event = event(extensions='{"by": "Ada"}')
    first, second = upcasters(("lent.v1", generated)).upcast(given_event)
    for made in (first, second):
        assert made._replace(type="lent.v1", payload=given_event.payload) == given_event
        assert made.metadata == {"by": "Ada"}
    assert first.data == 7  # not the data of the stored event


def test_events_without_an_upcaster_stay_unchanged() -> None:
    given_event = event("other")
    assert upcasters(("lent.v1", one)).upcast(given_event) == (given_event,)
    assert upcasters().upcast(given_event) == (given_event,)


def test_an_upcaster_may_take_several_types() -> None:
    chain = upcasters((("a", "b"), renamed("c")))
    assert chain.types == {"a", "b"}
    assert [seen(chain.upcast(event(name))) for name in ("a", "b")] == [[("c", {"isbn": "1"})]] * 2


def test_an_upcaster_gets_what_the_container_provides(injector: Any) -> None:
    def with_calendar(data: dict[str, Any], calendar: Calendar) -> Upcast:
        return Upcast("lent.v2", str(calendar))

    injector.provided[Calendar] = lambda: "the calendar"
    chain = upcasters(("lent.v1", with_calendar), injector=injector)
    assert seen(chain.upcast(event())) == [("lent.v2", "the calendar")]


# Chains


def test_the_result_of_an_upcaster_is_passed_to_the_next_in_place() -> None:
    def split(data: dict[str, Any]) -> list[Upcast]:
        return [Upcast("b", 1), Upcast("x", 2), Upcast("b", 3)]

    def double(data: object) -> list[Upcast]:
        return [Upcast("x", data), Upcast("y", data)]

    chain = upcasters(("y", renamed_any("z")), ("b", double), ("a", split))
    assert seen(chain.upcast(event("a"))) == [("x", 1), ("z", 1), ("x", 2), ("x", 3), ("z", 3)]


def renamed_any(new_type: str) -> Callable[..., Any]:
    def rename(data: object) -> Upcast:
        return Upcast(new_type, data)

    return rename


NAMES = "abcdefgh"
RULES = st.dictionaries(
    st.sampled_from(NAMES[:-1]), st.lists(st.integers(1, len(NAMES)), max_size=3), max_size=len(NAMES)
)


def by_passes(rules: dict[str, list[str]], event_type: str) -> list[str]:
    """The rule as the original states it: pass after pass over a list until nothing is upcast."""
    events = [event_type]
    while any(name in rules for name in events):
        events = [result for name in events for result in rules.get(name, [name])]
    return events


@given(RULES, st.sampled_from(NAMES), st.randoms())
def test_chains_give_the_same_result_as_repeated_passes_over_a_list(
    steps: dict[str, list[int]], start: str, random: Any
) -> None:
    # Each type leads to later ones only, so that there is no cycle.
    rules = {
        name: [NAMES[index] for step in further if (index := NAMES.index(name) + step) < len(NAMES)]
        for name, further in steps.items()
    }

    def upcaster_of(name: str) -> Callable[..., Any]:
        def upcast(raw: Event) -> list[Upcast]:
            return [Upcast(result, raw.data) for result in rules[name]]

        return upcast

    functions = [(name, upcaster_of(name)) for name in rules]
    random.shuffle(functions)  # the order of registration does not matter
    made = upcasters(*functions).upcast(event(start, "[1]"))
    assert [each.type for each in made] == by_passes(rules, start)
    assert all((each.id, each.position, each.data) == ("4711", 7, [1]) for each in made)


# Errors


def warnings_of(known: set[str], *results: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    made = [Upcaster(("a.lent.v1",), lambda: [Upcast(each, {}) for each in results], "upcasters.py:1 (split)")]
    chain = Upcasters([*made, Upcaster(("a.lent.v0",), renamed_any("a.lent.v1"), "")], NothingProvided(), known)
    for old in ("a.lent.v1", "a.lent.v0", "a.lnt.v1"):
        list(chain.upcast(event(old)))
    return caplog.messages


def test_a_misspelled_result_type_of_an_upcaster_causes_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    known = {"a.lent.v1", "a.lent.v2", "a.*sold"}
    assert warnings_of(known, "a.lent.v2", "a.sold", "a.lnt.v2", "a.lnt.v2", caplog=caplog) == [
        "the upcaster upcasters.py:1 (split) makes events of type 'a.lnt.v2', which no event class and no handler "
        "names (did you mean a.lent.v2?)\n"
        "  fix:   correct the type of the Upcast; or, if no handler should get these events, leave it as it is"
    ]


@pytest.mark.parametrize("known", [set(), {"reader.registered"}, {"a.lent.v1"}, {"a.len*"}])
def test_a_result_type_that_resembles_no_known_type_causes_no_warning(
    known: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert warnings_of(known, "a.lnt.v2", caplog=caplog) == []


def test_two_upcasters_of_one_type_are_refused_and_both_named() -> None:
    with pytest.raises(HandlerSignatureError) as caught:
        upcasters(("lent.v1", one), (("other", "lent.v1"), several))
    assert str(caught.value) == (
        "[OCQ-220] two upcasters take events of type 'lent.v1'\n"
        "  where: upcasters.py:1 (one) and upcasters.py:2 (several)\n"
        "  fix:   keep one of them"
    )


@pytest.mark.parametrize(
    ("circle", "shown", "places"),
    [
        ("aa", "a → a", "upcasters.py:1 (rename)"),
        ("aba", "a → b → a", "upcasters.py:1 (rename), upcasters.py:2 (rename)"),
        ("abcb", "b → c → b", "upcasters.py:1 (rename), upcasters.py:2 (rename), upcasters.py:3 (rename)"),
    ],
)
def test_a_cycle_of_upcasters_is_refused_with_their_names(circle: str, shown: str, places: str) -> None:
    chain = upcasters(*((name, renamed(next_)) for name, next_ in pairwise(circle)))
    with pytest.raises(EventFormatError) as caught:
        chain.upcast(event("a"))
    error = caught.value
    assert (error.code, error.what) == ("OCQ-222", f"upcasters lead in a circle ({shown})")
    assert error.where == places
    assert error.fix == "have the upcasters end at a type that none of them takes"


def test_the_same_type_in_two_branches_is_not_a_cycle() -> None:
    def split(raw: Event) -> list[Upcast]:
        return [Upcast("b", {}), Upcast("b", {})]

    assert len(upcasters(("a", split), ("b", renamed("c"))).upcast(event("a"))) == 2


class Unknown:
    pass


@dataclass
class Document:
    _id: str
    pages: int

    @cached_property
    def sheets(self) -> int:
        return self.pages // 2


@pydantic.dataclasses.dataclass
class Loan:
    book_id: int = Field(0, alias="bookId")
    branch: str = Field("", validation_alias=AliasPath("place", "branch"))
    documents: list[Document] = field(default_factory=list)


@dataclass
class Exported:
    of: Loan
    number: int


@pytest.mark.parametrize("number", [1, 2**64])
def test_a_dataclass_is_serialized_by_its_fields_under_their_aliases(number: int) -> None:
    document = Document("d1", 8)
    assert document.sheets == 4
    loan = Loan(bookId=5, place={"branch": "north"}, documents=[document])  # type: ignore[call-arg]
    written = {"bookId": 5, "place": {"branch": "north"}, "documents": [{"_id": "d1", "pages": 8}]}

    def export(_data: dict[str, Any]) -> Upcast:
        return Upcast("lent.v2", Exported(loan, number))

    assert seen(upcasters(("lent.v1", export)).upcast(event())) == [("lent.v2", {"of": written, "number": number})]
    assert decoder_for(Loan)(event(payload=json.dumps(written))) == loan


FIX = 'return Upcast("library.book-lent.v2", data), a list of them, or None to drop the event'


@pytest.mark.parametrize(
    ("result", "what"),
    [
        ({"isbn": "1"}, "returned dict instead of an Upcast"),
        ({}, "returned dict instead of an Upcast"),
        ("lent.v2", "returned str instead of an Upcast"),
        (7, "returned int instead of an Upcast"),
        (True, "returned bool instead of an Upcast"),
        ([Upcast("a", 1), {"isbn": "1"}], "returned dict instead of an Upcast"),
        (("lent.v2", {}), "returned str instead of an Upcast"),
        (Upcast(7, {}), "returned Upcast instead of an Upcast"),  # type: ignore[arg-type]
        (
            Upcast("lent.v2", Unknown()),
            "returned data that cannot become JSON (Type is not JSON serializable: Unknown)",
        ),
        (Upcast("lent.v2", {1: 2}), "returned data that cannot become JSON (Dict key must be str)"),
        *[
            (Upcast("lent.v2", {"a": [1, wrong]}), f"returned data that cannot become JSON (JSON has no {wrong})")
            for wrong in (nan, inf, -inf, Decimal("NaN"), Decimal("-Infinity"))
        ],
        (Upcast("lent.v2", nan), "returned data that cannot become JSON (JSON has no nan)"),
        (Upcast("lent.v2", LentV1(inf)), "returned data that cannot become JSON (JSON has no inf)"),  # type: ignore[arg-type]
        (Upcast("lent.v2", {"x": {"y": nan}, "n": 2**64}), "returned data that cannot become JSON (JSON has no nan)"),
        (Upcast("lent.v2", {}, {"a": nan}), "returned metadata that cannot become JSON (JSON has no nan)"),
        (Upcast("lent.v2", {}, {1: 2}), "returned metadata that cannot become JSON (Dict key must be str)"),  # type: ignore[dict-item]
    ],
)
def test_a_result_that_is_not_an_upcast_is_refused_with_the_event(result: Any, what: str) -> None:
    def wrong(raw: Event) -> Any:
        return result

    with pytest.raises(EventFormatError) as caught:
        upcasters(("lent.v1", wrong)).upcast(event())
    error = caught.value
    assert (error.code, error.what) == ("OCQ-221", f"upcaster upcasters.py:1 (wrong) {what}")
    assert (error.where, error.fix) == ("event 4711 at position 7 (lent.v1, /books/1)", FIX)


@pytest.mark.parametrize("wrong", ["by Ada", ["by"], 7])
def test_metadata_other_than_a_mapping_are_refused(wrong: Any) -> None:
    def upcast(raw: Event) -> Upcast:
        return Upcast("lent.v2", {}, wrong)

    with pytest.raises(EventFormatError) as caught:
        upcasters(("lent.v1", upcast)).upcast(event())
    error = caught.value
    assert error.what == f"upcaster upcasters.py:1 (upcast) returned a {type(wrong).__name__} as metadata"
    assert "{} for none" in error.fix


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, {"by": "Ada"}),
        ({}, {}),
        ({"tenant": "main"}, {"tenant": "main"}),
        (Metadata(tenant=2**64), {"tenant": 2**64}),
    ],
)
@pytest.mark.parametrize("enveloped", [False, True])
def test_metadata_are_kept_unless_an_upcaster_replaces_them(given: Any, expected: Any, *, enveloped: bool) -> None:
    def upcast(data: dict[str, Any], metadata: Metadata) -> Upcast:
        assert metadata == {"by": "Ada"}
        return Upcast("lent.v2", data, given)

    def next_step(metadata: Metadata) -> Upcast:
        return Upcast("lent.v3", dict(metadata))

    stored = event(extensions='{"by": "Ada"}')
    if enveloped:
        stored = event(payload='{"metadata": {"by": "Ada"}, "payload": {}}', extensions='{"traceparent": "00-1"}')
    chain = upcasters(("lent.v1", upcast), ("lent.v2", next_step))
    (read,) = Reading(chain, enveloped=enveloped).read(stored)
    assert read.metadata == read.data == expected
    assert read == stored._replace(type="lent.v3", payload=read.payload, extensions=read.extensions)


def failing(data: dict[str, Any]) -> Upcast:
    raise KeyError("due")


def failing_late(raw: Event) -> Iterator[Upcast]:
    yield Upcast("a", 1)
    raise KeyError("due")


async def failing_asynchronously(raw: Event) -> Upcast:
    raise KeyError("due")


@pytest.mark.parametrize("call", [failing, failing_late, failing_asynchronously])
def test_the_error_of_an_upcaster_is_reported_with_its_place_and_the_event(call: Callable[..., Any]) -> None:
    with pytest.raises(EventFormatError) as caught:
        upcasters(("lent.v1", call)).upcast(event())
    error = caught.value
    assert (error.code, error.what) == (
        "OCQ-223",
        f"upcaster upcasters.py:1 ({call.__name__}) raised KeyError: 'due'",
    )
    assert error.where == "event 4711 at position 7 (lent.v1, /books/1)"
    assert isinstance(error.__cause__, KeyError)


@pytest.mark.parametrize(
    ("payload", "code"), [(None, "OCQ-210"), ("{", "OCQ-210"), ("{}", "OCQ-211"), ("[]", "OCQ-211")]
)
def test_data_that_do_not_match_the_class_of_an_upcaster_are_an_error_of_the_event(
    payload: str | None, code: str
) -> None:
    with pytest.raises(EventFormatError) as caught:
        upcasters(("lent.v1", from_object)).upcast(event(payload=payload))
    assert caught.value.code == code


def with_connection(data: dict[str, Any], connection: Any) -> Upcast: ...  # type: ignore[empty-body]
def with_list(data: list[LentV1]) -> Upcast: ...  # type: ignore[empty-body]
def of_either(data: LentV1 | LentV2) -> Upcast: ...  # type: ignore[empty-body]
def unannotated(data) -> Upcast: ...  # type: ignore[no-untyped-def, empty-body]


async def yielding_asynchronously(data: dict[str, Any]) -> AsyncIterator[Upcast]:
    yield Upcast("a", data)


@pytest.mark.parametrize(
    ("call", "code", "what"),
    [
        (with_connection, "OCQ-205", "an upcaster sees an event before it is handled and cannot have connection"),
        (with_list, "OCQ-205", "an upcaster sees one event at a time, but data asks for a list"),
        (of_either, "OCQ-203", "an upcaster takes events of one class, but its parameter names several"),
        (unannotated, "OCQ-201", "parameter 'data' has no annotation"),
        (yielding_asynchronously, "OCQ-204", "an upcaster must not yield: its code would never run"),
    ],
)
def test_a_wrong_signature_is_refused_at_startup(call: Callable[..., Any], code: str, what: str) -> None:
    from sqlalchemy import Connection  # noqa: PLC0415 the annotation is set here, so that the others do not need it

    if "connection" in call.__annotations__:
        call.__annotations__["connection"] = Connection
    with pytest.raises(HandlerSignatureError) as caught:
        upcasters(("lent.v1", call))
    assert (caught.value.code, caught.value.what) == (code, what)
    assert caught.value.where == f"upcasters.py:1 ({call.__name__})"


# A missing return


def returns_nothing(data: dict[str, Any]):  # type: ignore[no-untyped-def] # it is what people write
    Upcast("lent.v2", {**data, "due": "soon"})


def returns_nothing_by_module(data: dict[str, Any]) -> None:
    opencqrs_py.Upcast("lent.v2", data)


def returns_nothing_on_any_path(data: dict[str, Any]) -> None:
    if data:
        Upcast("lent.v2", data)
        return
    Upcast("lent.v3", data)


async def awaits_and_returns_nothing(data: dict[str, Any]) -> None:
    await asyncio.sleep(0)
    Upcast("lent.v2", data)


@wraps(returns_nothing)
def decorated(data: dict[str, Any]) -> Any:
    return returns_nothing(data)


@pytest.mark.parametrize(
    "function",
    [returns_nothing, returns_nothing_by_module, returns_nothing_on_any_path, awaits_and_returns_nothing, decorated],
    ids=lambda function: function.__qualname__,
)
def test_an_upcaster_that_never_returns_its_result_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(HandlerSignatureError) as caught:
        upcasters((("lent.v1", "lent.v0"), function))
    assert caught.value.code == "OCQ-243"
    assert caught.value.what == (
        "the upcaster makes an Upcast and never returns it, so all events of type 'lent.v1', 'lent.v0' would be dropped"
    )
    assert function.__name__ in caught.value.where


def sometimes(data: dict[str, Any]) -> Upcast:  # type: ignore[return] # noqa: RET503 the mistake
    if "due" in data:
        return Upcast("lent.v2", data)
    Upcast("lent.v2", {**data, "due": "soon"})


def sometimes_several(data: dict[str, Any]) -> list[Upcast]:
    return [Upcast("lent.v2", data)] if "due" in data else None  # type: ignore[return-value] # as above


async def sometimes_later(data: dict[str, Any]) -> Upcast:
    return Upcast("lent.v2", data) if "due" in data else None  # type: ignore[return-value] # as above


def raises(data: dict[str, Any]) -> None:
    raise LookupError(Upcast)


def test_an_upcaster_that_only_raises_does_not_lack_a_return() -> None:
    upcasters(("lent.v1", raises))


@pytest.mark.parametrize("function", [sometimes, sometimes_several, sometimes_later], ids=lambda one: one.__name__)
def test_none_from_an_upcaster_annotated_without_none_drops_no_event(function: Callable[..., Any]) -> None:
    chain = upcasters(("lent.v1", function))
    assert len(chain.upcast(event(payload='{"due": "soon"}'))) == 1
    with pytest.raises(EventFormatError, match=r"\[OCQ-221\] upcaster .* returned None, although") as caught:
        chain.upcast(event())
    assert "as in '-> Upcast | None'" in caught.value.fix


def without_annotation(data: dict[str, Any]):  # type: ignore[no-untyped-def] # as people write it
    return Upcast("lent.v2", data) if "due" in data else None


def with_none(data: dict[str, Any]) -> Upcast | None:
    return Upcast("lent.v2", data) if "due" in data else None


def several_or_none(data: dict[str, Any]) -> list[Upcast] | None:
    return [Upcast("lent.v2", data)] if "due" in data else None


def with_anything(data: dict[str, Any]) -> Any:
    return Upcast("lent.v2", data) if "due" in data else None


def generator(data: dict[str, Any]) -> Iterator[Upcast]:
    if "due" in data:
        yield Upcast("lent.v2", data)


@pytest.mark.parametrize(
    "function",
    [nothing, without_annotation, with_none, several_or_none, with_anything, generator, none_of_several],
    ids=lambda function: function.__name__,
)
def test_an_upcaster_that_may_drop_events_drops_them(function: Callable[..., Any]) -> None:
    assert upcasters(("lent.v1", function)).upcast(event()) == ()
