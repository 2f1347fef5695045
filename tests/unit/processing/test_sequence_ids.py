"""Custom resolvers: they read what they declare, and their results are checked."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import pytest

from opencqrs_py import Event
from opencqrs_py.errors import HandlerSignatureError, ProjectCodeError
from opencqrs_py.model.selection import ATTRIBUTES
from opencqrs_py.processing.event_types import EventTypes
from opencqrs_py.processing.reading import Reading
from opencqrs_py.processing.sequence_resolvers import NoSequence, PerDataField, PerSubject, PerSubjectLevel
from opencqrs_py.processing.sequencing import SequencingByEvent, sequencing_for

SUBJECT = frozenset({"subject"})


def event(subject: str = "/books/1", position: int = 1, payload: str = '{"reader": "Ada"}') -> Event:
    return Event(position, str(position), "s", subject, "lent", None, "application/json", payload, '{"tenant": "a"}')


@dataclass(frozen=True, slots=True)
class AndReader(PerSubjectLevel):
    """Reads more than its parent, without declaring it."""

    def __call__(self, event: Event, /) -> str:
        return f"{PerSubjectLevel.__call__(self, event)}/{event.data['reader']}"


class AndReaderDeclared(PerSubject):
    looks_at: ClassVar[frozenset[str]] = frozenset({"subject", "data"})

    def __call__(self, event: Event, /) -> str:
        return f"{event.subject}/{event.data['reader']}"


class BelowAndReaderDeclared(AndReaderDeclared):
    def __call__(self, event: Event, /) -> str:
        return event.source


class Renamed(PerSubjectLevel):
    """Overrides nothing relevant."""


class FieldOfReader(PerDataField):
    """Overrides nothing relevant."""


class OtherField(PerDataField):
    def __call__(self, event: Event, /) -> str:
        return str(event.metadata["tenant"])


class OwnSubject:
    looks_at = SUBJECT

    def __call__(self, event):  # type: ignore[no-untyped-def]
        return event.subject[:2]


class DeclaresInConstructor:
    def __init__(self, *names: str) -> None:
        self.looks_at = set(names)

    def __call__(self, event: Event) -> str:
        return event.subject


def by_source(event: Event) -> str:
    return event.source


def by_first_letter(event: Event) -> str:
    return event.subject[:2]


by_first_letter.looks_at = SUBJECT  # type: ignore[attr-defined]


def constant(event: Event) -> str:
    return "all"


constant.looks_at = ()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("resolver", "by_subject", "attributes"),
    [
        (AndReader(1), False, ATTRIBUTES),
        (AndReaderDeclared(), False, SUBJECT),
        (BelowAndReaderDeclared(), False, ATTRIBUTES),
        (Renamed(1), True, SUBJECT),
        (FieldOfReader(("reader",)), False, frozenset()),
        (OtherField(("reader",)), False, ATTRIBUTES),
        (OwnSubject(), True, SUBJECT),
        (DeclaresInConstructor("subject"), True, SUBJECT),
        (DeclaresInConstructor("metadata", "timestamp", "type"), False, {"extensions", "time"}),
        (by_source, False, ATTRIBUTES),
        (by_first_letter, True, SUBJECT),
        (constant, True, SUBJECT),
    ],
)
def test_a_resolver_reads_its_declared_attributes_or_all_if_it_declares_none(
    resolver: Any, *, by_subject: bool, attributes: frozenset[str]
) -> None:
    sequencing = SequencingByEvent(resolver)
    assert (sequencing.by_subject, sequencing.attributes) == (by_subject, attributes)
    assert len(sequencing.sequence_ids(event())) == 1


@pytest.mark.parametrize("declared", ["subject", ["subject", "reader"], 7, {"subject": 1, None: 2}])
def test_an_invalid_declaration_of_attributes_is_refused(declared: Any) -> None:
    resolver = DeclaresInConstructor()
    resolver.looks_at = declared
    with pytest.raises(HandlerSignatureError) as caught:
        SequencingByEvent(resolver, place="provider by_reader")
    assert (caught.value.code, caught.value.where) == ("OCQ-224", "provider by_reader")
    assert caught.value.what == f"looks_at of the sequence resolver is {declared!r}"


LOOKS: list[Callable[[Event], Any]] = [
    lambda event: event.data["reader"],
    lambda event: event.metadata["tenant"],
    lambda event: event.id,
    lambda event: event.label,
    lambda event: event.timestamp,
    lambda event: str(event.position),
    lambda event: event[4],
    lambda event: "".join(map(str, event)),
    lambda event: event._asdict()["type"],
    lambda event: event._replace(type="x").type,
]


@pytest.mark.parametrize("look", LOOKS)
def test_a_resolver_that_declares_only_the_subject_cannot_read_anything_else(look: Callable[[Event], Any]) -> None:
    look.looks_at = SUBJECT  # type: ignore[attr-defined]
    with pytest.raises(ProjectCodeError) as caught:
        SequencingByEvent(look, place="provider by_reader").sequence_ids(event())
    assert (caught.value.code, caught.value.where) == ("OCQ-224", "provider by_reader")
    assert caught.value.what.startswith("the sequence resolver declares that it uses the subject alone, but it uses ")


async def asynchronous(event: Event) -> str:
    return "a"


class Text(str):
    __slots__ = ()


def numbered() -> Callable[[Event], str]:
    numbers = itertools.count()
    return lambda event: str(next(numbers) % 4)


def in_turn() -> Callable[[Event], str]:
    turns = itertools.cycle("ab")
    return lambda event: next(turns)


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (None, "None, which is not text"),
        (7, "7, which is not text"),
        (7.5, "7.5, which is not text"),
        (b"a", "b'a', which is not text"),
        (["a"], "a list, which is not text"),
    ],
)
def test_a_sequence_id_that_is_not_a_text_is_refused(answer: Any, shown: str) -> None:
    with pytest.raises(ProjectCodeError) as caught:
        SequencingByEvent(lambda _: answer, place="provider by_reader").sequence_ids(event())
    assert caught.value.code == "OCQ-216"
    assert caught.value.what == f"the sequence resolver returned {shown}"
    assert caught.value.where == "provider by_reader"


def test_a_returned_coroutine_is_refused_and_closed() -> None:
    with pytest.raises(ProjectCodeError, match="returned a coroutine, which is not text"):
        SequencingByEvent(partial(asynchronous)).sequence_ids(event())


def test_a_subclass_of_str_is_accepted_as_a_text() -> None:
    assert SequencingByEvent(lambda _: Text("a")).sequence_ids(event()) == ("a",)


@pytest.mark.parametrize("make", [numbered, in_turn, lambda: lambda _: str(random.random())])
def test_a_non_deterministic_resolver_is_refused_at_the_first_event(make: Callable[[], Any]) -> None:
    with pytest.raises(ProjectCodeError, match="when called again for the same event"):
        SequencingByEvent(make()).sequence_ids(event())


def test_a_resolver_that_becomes_non_deterministic_is_found_in_a_long_log() -> None:
    asks = itertools.count()

    def resolver(event: Event) -> str:
        return event.id if next(asks) < 500 else str(random.random())

    sequencing = SequencingByEvent(resolver)
    events = [event(position=position) for position in range(3_000)]
    with pytest.raises(ProjectCodeError, match="called again"):
        [sequencing.sequence_ids(one) for one in events]


def test_most_events_are_resolved_only_once() -> None:
    asked = itertools.count()

    def resolver(event: Event) -> str:
        next(asked)
        return event.id

    sequencing = SequencingByEvent(resolver)
    for position in range(10_000):
        sequencing.sequence_ids(event(position=position))
    assert next(asked) < 10_030


def test_built_in_resolvers_are_called_directly() -> None:
    for resolver in (NoSequence(), PerSubject(), PerSubjectLevel(), PerDataField(("reader",)), FieldOfReader(("a",))):
        assert SequencingByEvent(resolver)._sequence_id == resolver.__call__


async def async_generator(event: Event) -> AsyncIterator[str]:
    yield "a"


def generator(event: Event) -> Iterator[str]:
    yield "a"


class AsyncCall:
    async def __call__(self, event: Event) -> str:
        return "a"


@pytest.mark.parametrize("resolver", [asynchronous, async_generator, generator, AsyncCall()])
def test_a_resolver_that_cannot_return_a_text_is_refused_at_startup(resolver: Any) -> None:
    with pytest.raises(HandlerSignatureError) as caught:
        sequencing_for(resolver, EventTypes(), Reading(), "provider by_reader")
    assert (caught.value.code, caught.value.where) == ("OCQ-204", "provider by_reader")


def test_a_resolver_of_objects_gets_a_new_object_at_each_call() -> None:
    def resolver(data: dict[str, Any]) -> str:
        return str(data.pop("reader"))

    sequencing = sequencing_for(resolver, EventTypes(), Reading(), "here")
    assert sequencing.sequence_ids(event()) == ("Ada",)


def hash_of_reader(event: Event) -> str:
    return str(hash(event.data["reader"]) % 16)


class HashInside:
    def __call__(self, event: Event) -> str:
        return "/".join(str(hash(part)) for part in event.subject.split("/"))


@pytest.mark.parametrize(
    ("resolver", "seed", "warned"),
    [
        (hash_of_reader, None, True),
        (hash_of_reader, "random", True),
        (HashInside(), None, True),
        (lambda event: str(hash(event.subject)), None, True),
        (hash_of_reader, "0", False),
        (lambda event: str(event.hash), None, False),
        (PerSubject(), None, False),
    ],
)
def test_a_resolver_that_calls_hash_causes_a_warning(
    resolver: Any, seed: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, warned: bool
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if seed is not None:
        monkeypatch.setenv("PYTHONHASHSEED", seed)
    sequencing_for(resolver, EventTypes(), Reading(), "provider by_reader")
    texts = [record.getMessage() for record in caplog.records]
    assert [text.startswith("the sequence resolver provider by_reader calls hash()") for text in texts] == [
        True
    ] * warned


def test_a_user_function_named_hash_causes_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    names: dict[str, Any] = {"hash": str}
    exec("def resolver(event): return hash(event.subject)", names)
    sequencing_for(names["resolver"], EventTypes(), Reading(), "provider by_reader")
    assert not caplog.records
