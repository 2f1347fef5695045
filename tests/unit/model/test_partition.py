"""Partitions are residue classes: together they own each sequence once, however they are split."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from opencqrs_py.model import Partition, hash_of, layout, residue_of

partitions = st.integers(1, 1000).flatmap(lambda m: st.builds(Partition, st.just(m), st.integers(0, m - 1)))
sequence_ids = st.text(st.characters(exclude_categories=["Cs"]))


# Sequence id, CRC-32, and residues modulo 2, 3 and 7, as Java computes them.
VECTORS = [
    # level 2
    ("/", 2043925204, 0, 1, 6),
    ("/books", 3405892559, 1, 2, 6),
    ("/books/", 1925385278, 0, 2, 5),
    ("/books/4711", 2946016796, 0, 2, 2),
    ("/book/4711", 3006319413, 1, 0, 6),
    ("/readers/ab9c7d71-9a5e-4664-8b75-73f4d04cac5e", 1303592940, 0, 0, 6),
    ("/books/978-0008471286", 3920346788, 0, 2, 1),
    ("/a/", 459784048, 0, 1, 3),
    ("//x", 2157058476, 0, 0, 6),
    ("", 0, 0, 0, 0),
    ("/bücher/größe", 2793211012, 0, 1, 4),
    ("/書籍/四七一一", 4187482329, 1, 0, 2),
    ("/order/1", 178089344, 0, 2, 6),
    ("/order/2", 2475965498, 0, 2, 6),
    ("/order/3", 3834842284, 0, 1, 0),
    ("/order/4", 2063046927, 1, 0, 4),
    ("/order/5", 233875865, 1, 2, 6),
    # the whole subject
    ("/books/4711/", 1836914237, 1, 2, 4),
    ("/books/4711/pages/43", 573116546, 0, 2, 2),
    ("/books/4711/pages/43/lines/7", 488072213, 1, 2, 6),
    ("/books/978-0008471286/copies/1", 277211569, 1, 1, 5),
    ("/books/978-0008471286/copies/2", 2307700747, 1, 1, 2),
    ("/a//b", 2224612970, 0, 2, 6),
    ("//x/y", 482687165, 1, 2, 2),
    ("/bücher/größe/1", 1519981955, 1, 2, 2),
    ("book", 3420824369, 1, 2, 4),
    # event ids
    ("0", 4108050209, 1, 2, 4),
    ("1", 2212294583, 1, 2, 2),
    ("2", 450215437, 1, 1, 0),
    ("3", 1842515611, 1, 1, 6),
    ("4", 4088798008, 0, 1, 1),
    ("5", 2226203566, 0, 1, 6),
    ("9", 2366072709, 1, 0, 0),
    ("10", 2707236321, 1, 0, 6),
    ("42", 841265288, 0, 2, 3),
    ("99", 274208589, 1, 0, 4),
    ("100", 595022058, 0, 0, 1),
    ("12345", 3421846044, 0, 0, 1),
    # levels 1 and 3
    ("/books/4711/pages", 2160951272, 0, 2, 4),
    ("/a", 1768979292, 0, 0, 3),
]


@pytest.mark.parametrize(("sequence_id", "crc", "mod_2", "mod_3", "mod_7"), VECTORS)
def test_a_sequence_is_hashed_as_java_does(sequence_id: str, crc: int, mod_2: int, mod_3: int, mod_7: int) -> None:
    assert hash_of(sequence_id) == crc
    assert [residue_of(sequence_id, modulus) for modulus in (2, 3, 7)] == [mod_2, mod_3, mod_7]


@pytest.mark.parametrize(("sequence_id", "crc", "mod_2", "mod_3", "mod_7"), VECTORS)
def test_a_partition_owns_the_sequences_of_its_residue(
    sequence_id: str, crc: int, mod_2: int, mod_3: int, mod_7: int
) -> None:
    for modulus, residue in ((2, mod_2), (3, mod_3), (7, mod_7)):
        assert [p for p in layout(modulus) if p.owns(sequence_id)] == [Partition(modulus, residue)]


@given(sequence_ids, st.integers(1, 1000))
def test_exactly_one_partition_of_a_layout_owns_a_sequence(sequence_id: str, count: int) -> None:
    assert sum(partition.owns(sequence_id) for partition in layout(count)) == 1


@given(sequence_ids, partitions)
def test_the_halves_of_a_partition_own_its_sequences_exactly_once(sequence_id: str, whole: Partition) -> None:
    first, second = whole.split()
    assert first.owns(sequence_id) + second.owns(sequence_id) == whole.owns(sequence_id)


@given(partitions)
def test_merging_undoes_splitting_in_either_order(whole: Partition) -> None:
    first, second = whole.split()
    assert first.merge(second) == whole == second.merge(first)


@given(partitions, partitions)
@example(Partition(4, 1), Partition(4, 3))
def test_only_the_halves_of_one_partition_merge(one: Partition, other: Partition) -> None:
    try:
        whole = one.merge(other)
    except ValueError:
        whole = None
    mergeable = one.modulus == other.modulus and abs(one.residue - other.residue) * 2 == one.modulus
    assert (whole is not None) == mergeable
    assert whole is None or {one, other} == set(whole.split())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Partition(2, 0), Partition(2, 0)),
        (Partition(1, 0), Partition(1, 0)),
        (Partition(3, 0), Partition(3, 1)),
        (Partition(4, 0), Partition(4, 1)),
        (Partition(4, 0), Partition(2, 1)),
    ],
)
def test_unrelated_partitions_do_not_merge(one: Partition, other: Partition) -> None:
    with pytest.raises(ValueError, match=f"^{one} and {other} are not the halves of one partition$"):
        one.merge(other)


@given(sequence_ids, st.integers(1, 8), st.lists(st.integers(0, 100), max_size=20))
def test_a_layout_stays_complete_however_it_is_split(sequence_id: str, count: int, choices: list[int]) -> None:
    parts = list(layout(count))
    for choice in choices:
        parts.extend(parts.pop(choice % len(parts)).split())
    assert sum(partition.owns(sequence_id) for partition in parts) == 1


@pytest.mark.parametrize(
    ("modulus", "residue", "message"),
    [
        (0, 0, "modulus must be at least 1, got 0"),
        (-2, 0, "modulus must be at least 1, got -2"),
        (3, 3, "residue must be in 0..2, got 3"),
        (3, -1, "residue must be in 0..2, got -1"),
    ],
)
def test_an_invalid_residue_class_is_refused(modulus: int, residue: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Partition(modulus, residue)


def test_a_layout_counts_residues_from_zero() -> None:
    assert layout(3) == (Partition(3, 0), Partition(3, 1), Partition(3, 2))


def test_a_partition_is_a_value() -> None:
    partition = Partition(3, 1)
    assert str(partition) == "1/3"
    assert {partition: "here"}[Partition(3, 1)] == "here"
    assert sorted([Partition(4, 0), Partition(2, 1), Partition(2, 0)]) == [*layout(2), Partition(4, 0)]
    with pytest.raises(FrozenInstanceError):
        partition.residue = 2  # type: ignore[misc]
