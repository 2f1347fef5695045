"""Sequences and partitions as columns agree with the plain functions, on a real Spark."""

from __future__ import annotations

import random

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as sf

from opencqrs_py.engines.spark.columns import residue_column, subject_level_column
from opencqrs_py.model import residue_of
from opencqrs_py.processing.sequence_resolvers import cut_subject

pytestmark = pytest.mark.spark

SEED = 4711
COUNT = 5_000
NOT_TEXT = range(0xD800, 0xE000)  # halves of surrogate pairs
CHOSEN = [
    "",
    "/",
    "//",
    "book",
    "a/b",
    "/bücher/größe/1",
    "/書籍/四七一一",
    "/a//b",
    "/😀/👩‍👩‍👧/x",
    "/a\u0301/.*|\\",
    "\0/\0",
]


def random_subjects(count: int) -> list[str]:
    draw = random.Random(SEED)

    def character() -> str:
        point = draw.choice([ord("/"), draw.randrange(0x80), draw.randrange(0x3000), draw.randrange(0x110000)])
        return chr(point) if point not in NOT_TEXT else "/"

    return ["".join(character() for _ in range(draw.randrange(12))) for _ in range(count)]


@pytest.fixture(scope="module")
def subjects(spark):
    return spark.createDataFrame([Row(subject=subject) for subject in CHOSEN + random_subjects(COUNT)])


@pytest.mark.parametrize("level", [1, 2, 3, 7])
def test_subject_levels_computed_by_spark_and_python_agree(subjects, level):
    rows = subjects.select("subject", subject_level_column(sf.col("subject"), level)).collect()
    assert dict(rows) == {row[0]: cut_subject(row[0], level) for row in rows}


@pytest.mark.parametrize("modulus", [1, 2, 3, 7, 1024])
def test_residues_computed_by_spark_and_python_agree(subjects, modulus):
    rows = subjects.select("subject", residue_column(sf.col("subject"), modulus)).collect()
    assert dict(rows) == {row[0]: residue_of(row[0], modulus) for row in rows}


@pytest.mark.parametrize(("column", "number"), [(subject_level_column, 0), (residue_column, 0)])
def test_impossible_arguments_are_refused(subjects, column, number):
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        column(sf.col("subject"), number)
