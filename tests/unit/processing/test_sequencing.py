"""Sequence ids: what must be handled in order."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py.errors import EventFormatError
from opencqrs_py.model import Event, hash_of, residue_of
from opencqrs_py.model.selection import ATTRIBUTES
from opencqrs_py.processing.ports import SequenceResolver
from opencqrs_py.processing.reading import unwrapped
from opencqrs_py.processing.sequence_resolvers import (
    NoSequence,
    PerDataField,
    PerMetadataKey,
    PerSubject,
    PerSubjectLevel,
    cut_subject,
)
from opencqrs_py.processing.sequencing import PartitionKeyResolver, SequencingByEvent

READER = "/readers/ab9c7d71-9a5e-4664-8b75-73f4d04cac5e"

# Resolver, subject or id, sequence id, its CRC-32, and the residues modulo 2, 3 and 7, as Java computes them.
# The rows stand in the order of the facts about the original (section 4.4).
VECTORS: list[tuple[SequenceResolver, str, str, int, int, int, int]] = [
    (PerSubjectLevel(2), "/", "/", 2043925204, 0, 1, 6),
    (PerSubjectLevel(2), "/books", "/books", 3405892559, 1, 2, 6),
    (PerSubjectLevel(2), "/books/", "/books/", 1925385278, 0, 2, 5),
    (PerSubjectLevel(2), "/books/4711", "/books/4711", 2946016796, 0, 2, 2),
    (PerSubjectLevel(2), "/books/4711/", "/books/4711", 2946016796, 0, 2, 2),
    (PerSubjectLevel(2), "/books/4711/pages/43", "/books/4711", 2946016796, 0, 2, 2),
    (PerSubjectLevel(2), "/books/4711/pages/43/lines/7", "/books/4711", 2946016796, 0, 2, 2),
    (PerSubjectLevel(2), "/book/4711", "/book/4711", 3006319413, 1, 0, 6),
    (PerSubjectLevel(2), READER, READER, 1303592940, 0, 0, 6),
    (PerSubjectLevel(2), "/books/978-0008471286/copies/1", "/books/978-0008471286", 3920346788, 0, 2, 1),
    (PerSubjectLevel(2), "/books/978-0008471286/copies/2", "/books/978-0008471286", 3920346788, 0, 2, 1),
    (PerSubjectLevel(2), "/a//b", "/a/", 459784048, 0, 1, 3),
    (PerSubjectLevel(2), "//x/y", "//x", 2157058476, 0, 0, 6),
    (PerSubjectLevel(2), "ignored/book/4711/43", "/book/4711", 3006319413, 1, 0, 6),
    (PerSubjectLevel(2), "book", "", 0, 0, 0, 0),
    (PerSubjectLevel(2), "/bücher/größe/1", "/bücher/größe", 2793211012, 0, 1, 4),
    (PerSubjectLevel(2), "/書籍/四七一一", "/書籍/四七一一", 4187482329, 1, 0, 2),
    (PerSubjectLevel(2), "/order/1", "/order/1", 178089344, 0, 2, 6),
    (PerSubjectLevel(2), "/order/2", "/order/2", 2475965498, 0, 2, 6),
    (PerSubjectLevel(2), "/order/3", "/order/3", 3834842284, 0, 1, 0),
    (PerSubjectLevel(2), "/order/4", "/order/4", 2063046927, 1, 0, 4),
    (PerSubjectLevel(2), "/order/5", "/order/5", 233875865, 1, 2, 6),
    (PerSubject(), "/books/4711/", "/books/4711/", 1836914237, 1, 2, 4),
    (PerSubject(), "/books/4711/pages/43", "/books/4711/pages/43", 573116546, 0, 2, 2),
    (PerSubject(), "/books/4711/pages/43/lines/7", "/books/4711/pages/43/lines/7", 488072213, 1, 2, 6),
    (PerSubject(), "/books/978-0008471286/copies/1", "/books/978-0008471286/copies/1", 277211569, 1, 1, 5),
    (PerSubject(), "/books/978-0008471286/copies/2", "/books/978-0008471286/copies/2", 2307700747, 1, 1, 2),
    (PerSubject(), "/a//b", "/a//b", 2224612970, 0, 2, 6),
    (PerSubject(), "//x/y", "//x/y", 482687165, 1, 2, 2),
    (PerSubject(), "/bücher/größe/1", "/bücher/größe/1", 1519981955, 1, 2, 2),
    (PerSubject(), "book", "book", 3420824369, 1, 2, 4),
    (NoSequence(), "0", "0", 4108050209, 1, 2, 4),
    (NoSequence(), "1", "1", 2212294583, 1, 2, 2),
    (NoSequence(), "2", "2", 450215437, 1, 1, 0),
    (NoSequence(), "3", "3", 1842515611, 1, 1, 6),
    (NoSequence(), "4", "4", 4088798008, 0, 1, 1),
    (NoSequence(), "5", "5", 2226203566, 0, 1, 6),
    (NoSequence(), "9", "9", 2366072709, 1, 0, 0),
    (NoSequence(), "10", "10", 2707236321, 1, 0, 6),
    (NoSequence(), "42", "42", 841265288, 0, 2, 3),
    (NoSequence(), "99", "99", 274208589, 1, 0, 4),
    (NoSequence(), "100", "100", 595022058, 0, 0, 1),
    (NoSequence(), "12345", "12345", 3421846044, 0, 0, 1),
    (PerSubjectLevel(1), "/books/4711", "/books", 3405892559, 1, 2, 6),
    (PerSubjectLevel(3), "/books/4711/pages/43", "/books/4711/pages", 2160951272, 0, 2, 4),
    (PerSubjectLevel(3), "/books/4711/", "/books/4711/", 1836914237, 1, 2, 4),
    (PerSubjectLevel(1), "/a//b", "/a", 1768979292, 0, 0, 3),
]
MORE_LEVELS = [
    (2, "", ""),
    (1, "/", "/"),
    (9, "/books/4711/pages/43", "/books/4711/pages/43"),
]


def event(
    subject: str = "/books/1", event_id: str = "4711", payload: str | None = None, extensions: str | None = None
) -> Event:
    return Event(1, event_id, "s", subject, "t", None, "application/json", payload, extensions)


@pytest.mark.parametrize(("resolver", "given_text", "sequence_id", "crc", "mod_2", "mod_3", "mod_7"), VECTORS)
def test_events_belong_to_the_same_partitions_as_in_java(
    resolver: SequenceResolver, given_text: str, sequence_id: str, crc: int, mod_2: int, mod_3: int, mod_7: int
) -> None:
    subject, event_id = ("/any", given_text) if isinstance(resolver, NoSequence) else (given_text, "any")
    given_event = event(subject, event_id)
    assert resolver(given_event) == sequence_id
    assert hash_of(sequence_id) == crc
    sequencing = SequencingByEvent(resolver)
    assert sequencing.sequence_ids(given_event) == (sequence_id,)
    assert [sequencing.partition_of(sequence_id, n) for n in (2, 3, 7)] == [mod_2, mod_3, mod_7]


def test_two_levels_are_the_default() -> None:
    assert PerSubjectLevel() == PerSubjectLevel(2)


@pytest.mark.parametrize(("level", "subject", "sequence_id"), MORE_LEVELS)
def test_any_number_of_levels_can_be_kept(level: int, subject: str, sequence_id: str) -> None:
    assert PerSubjectLevel(level)(event(subject)) == sequence_id


segments = st.lists(st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), max_size=3), max_size=6)


@given(segments, st.integers(1, 7))
def test_a_well_formed_subject_is_cut_before_a_slash_as_spark_cuts_it(parts: list[str], level: int) -> None:
    subject = "/" + "/".join(parts)
    cut = cut_subject(subject, level)
    assert subject.startswith(cut)
    assert cut.count("/") == min(subject.count("/"), level)
    assert subject == cut or subject[len(cut)] == "/"


@given(segments, st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"])), st.integers(1, 7))
def test_text_before_the_first_slash_is_ignored(parts: list[str], before: str, level: int) -> None:
    subject = "/" + "/".join(parts)
    assert cut_subject(before + subject, level) == cut_subject(subject, level)


@pytest.mark.parametrize("level", [0, -1])
def test_at_least_one_level_is_kept(level: int) -> None:
    with pytest.raises(ValueError, match=f"level must be at least 1, got {level}"):
        PerSubjectLevel(level)


@pytest.mark.parametrize("subject", ["/books/4711/", "/a//b", "book", "/bücher/größe/1"])
def test_a_whole_subject_is_kept_unchanged(subject: str) -> None:
    assert PerSubject()(event(subject)) == subject


def test_without_sequences_each_event_is_its_own_sequence() -> None:
    assert NoSequence()(event("/books/1", "12345")) == "12345"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (NoSequence(), NoSequence()),
        (PerSubjectLevel(3), PerSubjectLevel(3)),
        (PerDataField(("a", "b")), PerDataField(("a", "b"))),
        (PerMetadataKey("a"), PerMetadataKey("a")),
    ],
)
def test_resolvers_are_values(one: SequenceResolver, other: SequenceResolver) -> None:
    assert one == other
    assert hash(one) == hash(other)


# By the contents of an event


@pytest.mark.parametrize(
    ("written", "sequence_id"),
    [
        ('"Ada"', "Ada"),
        ('""', ""),
        ("7", "7"),
        ("7.5", "7.5"),
        ("true", "true"),
        ("false", "false"),
        ("[1, 2]", "[1,2]"),
        ('{"b": 1, "a": "ü"}', '{"a":"ü","b":1}'),
        ('{"a": "ü", "b": 1}', '{"a":"ü","b":1}'),
    ],
)
def test_a_text_is_its_own_sequence_id_and_anything_else_becomes_json(written: str, sequence_id: str) -> None:
    assert PerDataField(("reader",))(event(payload=f'{{"reader": {written}}}')) == sequence_id
    assert PerDataField(("lent", "to"))(event(payload=f'{{"lent": {{"to": {written}}}}}')) == sequence_id
    assert PerMetadataKey("reader")(event(extensions=f'{{"reader": {written}}}')) == sequence_id


@pytest.mark.parametrize("payload", ["{}", "[]", "7", '"reader"', '{"reader": null}', '{"reader": {"name": "Ada"}}'])
def test_an_event_without_the_field_is_refused_with_its_name(payload: str) -> None:
    with pytest.raises(EventFormatError) as caught:
        PerDataField(("reader", "id"))(event(payload=payload))
    assert str(caught.value) == (
        "[OCQ-214] the event has no data field 'reader.id', which determines its sequence\n"
        "  where: event 4711 at position 1 (t, /books/1)\n"
        "  fix:   give every event of the group that field, or narrow fetch.subject, or choose another "
        "sequence.resolution"
    )


@pytest.mark.parametrize("extensions", [None, "{}", '{"reader": null}', '{"Reader": "Ada"}'])
def test_an_event_without_the_key_is_refused_with_its_name(extensions: str | None) -> None:
    with pytest.raises(EventFormatError) as caught:
        PerMetadataKey("reader")(event(extensions=extensions))
    assert caught.value.code == "OCQ-214"
    assert caught.value.what == "the event has no metadata 'reader', which determines its sequence"


def test_an_event_without_data_is_refused_as_such() -> None:
    with pytest.raises(EventFormatError, match="OCQ-210"):
        PerDataField(("reader",))(event())


@pytest.mark.parametrize("resolver", [PerDataField(("reader",)), PerMetadataKey("by")])
def test_fields_and_keys_are_read_from_inside_the_envelope(resolver: SequenceResolver) -> None:
    wrapped = event(payload='{"payload": {"reader": "Ada"}, "metadata": {"by": "Ada"}}', extensions='{"by": "Bob"}')
    assert SequencingByEvent(resolver, opened=unwrapped).sequence_ids(wrapped) == ("Ada",)


def test_a_custom_partition_resolver_determines_the_partition() -> None:
    sequencing = SequencingByEvent(PerSubject(), lambda sequence, modulus: len(sequence) % modulus)
    assert sequencing.partition_of(*sequencing.sequence_ids(event("/abc")), 3) == 1


@pytest.mark.parametrize("partitions", [0, -1])
def test_fewer_than_one_partition_is_refused(partitions: int) -> None:
    with pytest.raises(ValueError, match=f"partitions must be at least 1, got {partitions}"):
        PartitionKeyResolver(partitions)


@pytest.mark.parametrize("sequence_id", ["", "/", "/books/4711", "/書籍/四七一一"])
def test_a_partition_resolver_created_by_hand_follows_the_default_rule(sequence_id: str) -> None:
    assert [PartitionKeyResolver(n)(sequence_id) for n in (1, 2, 7)] == [residue_of(sequence_id, n) for n in (1, 2, 7)]


@pytest.mark.parametrize(
    ("resolver", "attributes"),
    [
        (NoSequence(), {"id"}),
        (PerSubject(), {"subject"}),
        (PerSubjectLevel(3), {"subject"}),
        (PerDataField(("reader",)), set()),
        (PerMetadataKey("by"), {"extensions"}),
        (lambda event: event.source, ATTRIBUTES),
    ],
)
def test_the_attributes_that_resolvers_read_besides_type_and_data_are_known(
    resolver: SequenceResolver, attributes: AbstractSet[str]
) -> None:
    assert SequencingByEvent(resolver).attributes == attributes
