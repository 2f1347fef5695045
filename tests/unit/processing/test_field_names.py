"""Data with a field of a class in another spelling, which the default of the field would hide."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import attrs
import pyarrow as pa
import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

from opencqrs_py import Event, Metadata, event_handling
from opencqrs_py.processing.decoding import decoder_for
from opencqrs_py.processing.field_names import spelling_of
from opencqrs_py.testing import HandlerTest

T = TypeVar("T")


def event(payload: str, position: int = 1) -> Event:
    return Event(position, str(position), "s", "/b/1", "lent", None, "application/json", payload, None)


@dataclass
class Lent:
    isbn: str
    book_id: int = 0
    tags: list[str] = field(default_factory=list)


@dataclass
class Of(Generic[T]):
    book_id: T | None = None


@dataclass
class Model:
    book_id: int = Field(0, validation_alias=AliasChoices("book", "bookNumber"))


class ByName(BaseModel):
    model_config = ConfigDict(alias_generator=lambda name: name.replace("_", ""), validate_by_name=True)
    book_id: int = 0


class Renamed(BaseModel):
    book_id: int = 0

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, data: Any) -> Any:
        return {"book_id": data.get("bookId", 0)}


@attrs.define
class Attrs:
    book_id: int = 0


@pytest.mark.parametrize(
    ("cls", "payload", "key", "name"),
    [
        (Lent, '{"isbn": "1", "bookId": 5}', "bookId", "book_id"),
        (Lent, '{"isbn": "1", "BOOK-ID": 5}', "BOOK-ID", "book_id"),
        (Of[int], '{"BookId": 5}', "BookId", "book_id"),
        (Model, '{"book_number": 5}', "book_number", "book"),
    ],
)
def test_a_field_in_another_spelling_causes_one_warning(
    cls: Any, payload: str, key: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    spelling_of.cache_clear()
    decoder_for.cache_clear()
    for position in (1, 2):
        assert decoder_for(cls)(event(payload, position)).book_id in (0, None)
    (message,) = caplog.messages
    plain = cls.__name__
    assert message.startswith(
        f"the data of event 1 at position 1 (lent, /b/1) have '{key}', but {plain} reads '{name}', so its field "
        "book_id keeps its default"
    )
    assert message.endswith(f"or an alias: Field(alias='{key}'), with its default")


@pytest.mark.parametrize(
    ("cls", "payload"),
    [
        (Lent, '{"isbn": "1", "book_id": 5, "bookId": 5}'),  # a producer that writes both
        (Lent, '{"isbn": "1", "reader": "ada"}'),
        (Model, '{"bookNumber": 5}'),
        (ByName, '{"book_id": 5}'),
        (ByName, '{"bookid": 5}'),
        (Renamed, '{"bookId": 5}'),  # by user code
        (Attrs, '{"bookId": 5}'),  # not validated
        (dict, '{"bookId": 5}'),
    ],
)
def test_a_field_with_the_right_spelling_or_no_similar_field_causes_no_warning(
    cls: Any, payload: str, caplog: pytest.LogCaptureFixture
) -> None:
    spelling_of.cache_clear()
    decoder_for.cache_clear()
    decoder_for(cls)(event(payload))
    assert not caplog.messages


def alone(event: Lent) -> None: ...


def with_metadata(event: Lent, metadata: Metadata) -> None: ...


def listed(events: list[Lent]) -> None: ...


@pytest.mark.parametrize("handler", [alone, with_metadata, listed])
def test_spellings_are_checked_by_every_way_to_decode_events(handler: Any, caplog: pytest.LogCaptureFixture) -> None:
    spelling_of.cache_clear()
    decoder_for.cache_clear()
    test = HandlerTest(event_handling("books", types=["lent"])(handler))
    test.given(*({"type": "lent", "data": {"isbn": "1", "bookId": 5}} for _ in range(3))).handle()
    assert [message.partition(",")[0] for message in caplog.messages if "bookId" in message] == [
        "the data of event 1 at position 1 (lent"
    ]


def test_spellings_are_checked_in_events_of_a_table(caplog: pytest.LogCaptureFixture) -> None:
    spelling_of.cache_clear()
    decoder_for.cache_clear()

    def counted(events: pa.Table) -> None:
        assert events["book_id"].to_pylist() == [0, 0, 0]

    test = HandlerTest(event_handling("books", types=["lent"], events=Lent)(counted))
    test.given(*({"type": "lent", "data": {"isbn": "1", "bookId": 5}} for _ in range(3))).handle()
    (message,) = caplog.messages
    assert message.startswith("the data of event 1 at position 1 (lent")


def test_spellings_are_only_checked_in_the_first_events(caplog: pytest.LogCaptureFixture) -> None:
    spelling_of.cache_clear()
    decoder_for.cache_clear()
    for position in range(20):
        decoder_for(Lent)(event('{"isbn": "1"}', position))
    decoder_for(Lent)(event('{"isbn": "1", "bookId": 5}'))
    assert not caplog.messages
